//! The `CROSSTIE_` variables: their names and values, applied at open.
#![forbid(unsafe_code)]

use super::device::Rails;
use super::mistyped::report_of;
use super::options::Options;
pub use super::values::GinWish;
pub use super::values::Wrong;
use super::values::{
    Reader, cpus, gin_wish, interfaces, log_level, node_id, rails, required, users,
};
use crate::base::units::{Bytes, Span};
use crate::connect::key::Key;
use crate::connect::{SHM_DIR_BYTES_MAX, STREAMS_MAX, Users};
use crate::host::error::OpenError;
use crate::host::log::event::tell;
use crate::host::log::settings::SettingEvent;
use crate::host::log::{self, Level};
use crate::memory::{CpuSet, Variables};
use crate::provider::libfabric::settings as libfabric;
use crate::provider::shm;
use crate::provider::verbs::settings as verbs;
use crate::wire::RAILS_MAX;
use core::ops::RangeInclusive;
use std::format;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::vec::Vec;

/// The names of all variables, those of RDMA ports and libfabric among them. What they mean is told
/// by `crosstie info --all` and `doc/settings.md`.
pub fn names() -> impl Iterator<Item = &'static str> {
    let of_verbs = verbs::VARIABLES.iter().map(|variable| variable.name);
    let of_libfabric = libfabric::VARIABLES.iter().map(|variable| variable.name);
    NAMES.iter().copied().chain(of_verbs).chain(of_libfabric)
}

/// The names of all others.
const NAMES: &[&str] = &[
    "CROSSTIE_EAGER_BYTES",
    "CROSSTIE_SEND_RING_BYTES",
    "CROSSTIE_WRITE_RING_BYTES",
    "CROSSTIE_HEAP_BYTES",
    "CROSSTIE_KERNEL_COPY",
    "CROSSTIE_GIN",
    "CROSSTIE_NCCL_CUDA",
    "CROSSTIE_GIN_CPUS",
    "CROSSTIE_CONNECT_TIMEOUT_MS",
    "CROSSTIE_SHM_DIR",
    "CROSSTIE_RAILS",
    "CROSSTIE_RAILS_REQUIRED",
    "CROSSTIE_SOCKET_IFNAME",
    "CROSSTIE_TCP_RAILS",
    "CROSSTIE_TCP_STREAMS",
    "CROSSTIE_TCP_THREADS",
    "CROSSTIE_TCP_THREAD_CPUS",
    "CROSSTIE_SHM_THREADS",
    "CROSSTIE_KEY_FILE",
    "CROSSTIE_ALLOW_UIDS",
    "CROSSTIE_PEER_TIMEOUT_MS",
    "CROSSTIE_STALL_MS",
    "CROSSTIE_CHECKSUM",
    "CROSSTIE_NODE_ID",
    "CROSSTIE_LOG",
    "CROSSTIE_RANK",
    "CROSSTIE_SIZE",
    "CROSSTIE_LOCAL_RANK",
    "CROSSTIE_RENDEZVOUS",
];

/// Names the rails that must be there.
pub(in crate::host) const REQUIRED: &str = "CROSSTIE_RAILS_REQUIRED";
/// Names the file with the key.
pub(in crate::host) const KEY_FILE: &str = "CROSSTIE_KEY_FILE";

/// What the environment says beside the options.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Environment {
    /// Read peers' memory through the kernel where allowed.
    pub kernel_copy: bool,
    /// Have sums on data streams over TCP.
    pub checksum: bool,
    /// Whether the plugin takes memory of GPUs.
    pub nccl_cuda: Option<bool>,
    /// By what the plugin offers one-sided operations; `None`: the machine decides.
    pub gin: Option<GinWish>,
    /// The CPUs of their thread; empty: it inherits those of the thread that connects.
    pub gin_cpus: CpuSet,
    /// Where path sockets lie.
    pub shm_dir: PathBuf,
    /// Which rails the user allows.
    pub rails: Rails,
    /// Which must be there.
    pub required: Rails,
    /// Which interfaces other hosts reach us by; `None`: as by default.
    pub socket_ifname: Option<String>,
    /// Sockets of a connection over TCP, when we connect.
    pub tcp_streams: Option<u32>,
    /// TCP rails of each connection; 0: as many as there are common subnets.
    pub tcp_rails: u32,
    /// Threads that move long payloads.
    pub tcp_threads: Option<u32>,
    /// Their CPUs; empty: they inherit the opener's.
    pub tcp_thread_cpus: CpuSet,
    /// Threads that copy what is long through shared memory, if not as the options say.
    pub shm_threads: Option<u32>,
    /// The file with the key that all hosts share.
    pub key_file: Option<PathBuf>,
    /// Users whose processes may be peers on this host without a key.
    pub users: Users,
    /// How long a connect may take, if not as the options say.
    pub connect_timeout: Option<Span>,
    /// How long a peer on another host may be silent.
    pub peer_timeout: Span,
    /// How old a request must be to be reported; zero: none is.
    pub stall: Span,
    /// Our host's number, if not the kernel's.
    pub node_id: Option<u64>,
    /// What is wanted of RDMA devices.
    pub verbs: verbs::Settings,
    /// `CROSSTIE_RAILS` or `CROSSTIE_RAILS_REQUIRED` asks for them by name.
    pub verbs_named: bool,
    /// What is wanted of libfabric.
    pub libfabric: libfabric::Settings,
    /// The same of it.
    pub libfabric_named: bool,
    /// The same of rails of vendors.
    pub vendor_named: bool,
}

impl Default for Environment {
    fn default() -> Environment {
        Environment {
            kernel_copy: true,
            checksum: false,
            nccl_cuda: None,
            gin: None,
            gin_cpus: CpuSet::EMPTY,
            shm_dir: PathBuf::from("/dev/shm"),
            rails: Rails::ALL,
            required: Rails::NONE,
            socket_ifname: None,
            tcp_streams: None,
            tcp_rails: 0,
            tcp_threads: None,
            tcp_thread_cpus: CpuSet::EMPTY,
            shm_threads: None,
            key_file: None,
            users: Users::default(),
            connect_timeout: None,
            peer_timeout: Span::millis(10_000),
            stall: Span::millis(10_000),
            node_id: None,
            verbs: verbs::Settings::default(),
            verbs_named: false,
            libfabric: libfabric::Settings::default(),
            libfabric_named: false,
            vendor_named: false,
        }
    }
}

/// Most threads that move payloads: one for each stream beside the first.
const TCP_THREADS_MAX: u64 = STREAMS_MAX as u64 - 1;

impl Environment {
    /// Whether the rails of a set must be there, so that nothing goes on without them.
    pub fn requires(&self, rails: Rails) -> bool {
        self.required.has(rails)
    }

    /// Sockets of each connection over TCP, and threads that move some of them, where `threads` are
    /// wanted when the environment does not say how many.
    pub fn tcp(&self, threads: u32) -> (u32, u32) {
        match (self.tcp_streams, self.tcp_threads) {
            (None, wanted) => {
                let threads = wanted.unwrap_or(threads);
                (threads + 1, threads)
            }
            (Some(streams), None) => (streams, threads.min(streams - 1)),
            (Some(streams), Some(wanted)) => (streams, wanted),
        }
    }
}

/// Lets the environment change `options`. *Errors*: a setting cannot be meant; the log has a line
/// for each.
pub fn apply(options: &mut Options) -> Result<Environment, OpenError> {
    let all = options.variables.unwrap_or_else(Variables::of_process);
    let (environment, level, wrong) = read(all, options);
    log::level_set(level);
    report_of(all);
    wrong.iter().for_each(|it| tell(&SettingEvent::Wrong(it)));
    if let Some(first) = wrong.first() {
        return Err(OpenError::Setting(first.name));
    }
    let (wish, most) = (environment.tcp_rails, options.limits.rails_max);
    if wish > most && options.device.rails().tcp {
        tell(&SettingEvent::TcpRails { wish, most });
    }
    Ok(environment)
}

/// What the environment of this process says beside the options; where a setting cannot be meant,
/// as if it were not set.
pub fn environment() -> Environment {
    read(Variables::of_process(), &mut Options::default()).0
}

/// The settings of this process that cannot be meant.
pub fn wrong() -> Vec<Wrong> {
    read(Variables::of_process(), &mut Options::default()).2
}

/// Reads all settings.
fn read(all: &Variables, options: &mut Options) -> (Environment, Level, Vec<Wrong>) {
    let mut reader = Reader::new(all);
    let level = reader.understood("CROSSTIE_LOG", log_level).unwrap_or(Level::Warning);
    sizes(&mut reader, options);
    let mut environment = environment_of(&mut reader, options.verbs_names);
    if let Some(class) = options.verbs_traffic_class {
        environment.verbs.traffic_class_default(class);
    }
    if let Some(timeout) = environment.connect_timeout {
        options.handshake_deadline = timeout;
    }
    (environment, level, reader.wrong)
}

/// Sizes, whose bounds depend on each other.
fn sizes(reader: &mut Reader<'_>, options: &mut Options) {
    if let Some(bytes) = reader.number("CROSSTIE_SEND_RING_BYTES") {
        options.send_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // who wants a short ring need not know what else follows from it
        options.eager_bytes_fit();
    }
    if let Some(bytes) = reader.number("CROSSTIE_EAGER_BYTES") {
        options.eager_bytes_max = Bytes(bytes);
    }
    if let Some(bytes) = reader.number("CROSSTIE_WRITE_RING_BYTES") {
        options.write_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = reader.number("CROSSTIE_HEAP_BYTES") {
        // who opens without a heap has no use for one
        if options.heap_bytes != Bytes::ZERO {
            options.heap_bytes = Bytes(bytes);
        }
    }
    if let Err(OpenError::Rings(error)) = options.check()
        && let Some(name) = error.settings().iter().find(|name| reader.is_set(name))
    {
        reader.refuse(name, error.rule());
    }
}

/// The rest, with NCCL's variables for RDMA ports, if they count.
fn environment_of(reader: &mut Reader<'_>, names: verbs::Names) -> Environment {
    let default = Environment::default();
    let kernel_copy = reader.among("CROSSTIE_KERNEL_COPY", 0..=1);
    let checksum = reader.among("CROSSTIE_CHECKSUM", 0..=1);
    let nccl_cuda = reader.among("CROSSTIE_NCCL_CUDA", 0..=1);
    let tcp_streams = reader.among("CROSSTIE_TCP_STREAMS", 1..=STREAMS_MAX as u64);
    let tcp_threads = reader.among("CROSSTIE_TCP_THREADS", 0..=TCP_THREADS_MAX);
    if let (Some(streams), Some(threads)) = (tcp_streams, tcp_threads)
        && threads >= streams
    {
        let why = format!(
            "it may be {} at most with CROSSTIE_TCP_STREAMS={streams}, since each thread moves a \
             stream beside the first",
            streams - 1
        );
        reader.refuse("CROSSTIE_TCP_THREADS", why);
    }
    let all = reader.all;
    Environment {
        gin: reader.understood("CROSSTIE_GIN", gin_wish),
        nccl_cuda: nccl_cuda.map(|n| n != 0),
        gin_cpus: reader.understood("CROSSTIE_GIN_CPUS", cpus).unwrap_or(default.gin_cpus),
        kernel_copy: kernel_copy.map_or(default.kernel_copy, |n| n != 0),
        checksum: checksum.map_or(default.checksum, |n| n != 0),
        shm_dir: shm_dir(reader).unwrap_or(default.shm_dir),
        rails: reader.understood("CROSSTIE_RAILS", rails).unwrap_or(default.rails),
        required: reader.understood(REQUIRED, required).unwrap_or(default.required),
        socket_ifname: reader.understood("CROSSTIE_SOCKET_IFNAME", interfaces),
        tcp_rails: reader.among("CROSSTIE_TCP_RAILS", 1..=RAILS_MAX as u64).map_or(0, |n| n as u32),
        tcp_streams: tcp_streams.map(|n| n as u32),
        tcp_threads: tcp_threads.map(|n| n as u32),
        tcp_thread_cpus: reader
            .understood("CROSSTIE_TCP_THREAD_CPUS", cpus)
            .unwrap_or(default.tcp_thread_cpus),
        shm_threads: reader
            .among("CROSSTIE_SHM_THREADS", 0..=shm::THREADS_MAX as u64)
            .map(|n| n as u32),
        key_file: key_file(reader),
        users: reader.understood("CROSSTIE_ALLOW_UIDS", users).unwrap_or(default.users),
        connect_timeout: reader
            .among("CROSSTIE_CONNECT_TIMEOUT_MS", CONNECT_TIMEOUT_MS)
            .map(Span::millis),
        peer_timeout: reader
            .among("CROSSTIE_PEER_TIMEOUT_MS", PEER_TIMEOUT_MS)
            .map_or(default.peer_timeout, Span::millis),
        stall: reader.among("CROSSTIE_STALL_MS", STALL_MS).map_or(default.stall, Span::millis),
        node_id: reader.understood("CROSSTIE_NODE_ID", node_id),
        verbs: of_verbs(reader, names),
        verbs_named: is_named(all, "verbs"),
        libfabric: of_libfabric(reader),
        libfabric_named: is_named(all, "libfabric"),
        vendor_named: is_named(all, "vendor"),
    }
}

/// A path, which need not be a text.
fn set(all: &Variables, name: &str) -> Option<PathBuf> {
    all.get(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Where path sockets lie, if it is set.
fn shm_dir(reader: &mut Reader<'_>) -> Option<PathBuf> {
    const NAME: &str = "CROSSTIE_SHM_DIR";
    let path = set(reader.all, NAME)?;
    let why = if path.as_os_str().len() > SHM_DIR_BYTES_MAX {
        let why = "bytes at most, for which the name of a socket has room";
        format!("it may have {SHM_DIR_BYTES_MAX} {why}")
    } else if !path.is_absolute() {
        "it may be an absolute path".into()
    } else if !path.is_dir() {
        "it is no directory".into()
    } else {
        return Some(path);
    };
    reader.refuse(NAME, why);
    None
}

/// The file of the key, also where there is no key in it: nobody may go on as if none was wanted. A
/// script whose own variable is not set must not open the port without one.
fn key_file(reader: &mut Reader<'_>) -> Option<PathBuf> {
    if reader.all.get(KEY_FILE).is_some_and(|path| path.is_empty()) {
        reader.refuse(KEY_FILE, "it names no file; unset it to have no key");
    }
    let path = set(reader.all, KEY_FILE)?;
    if let Err(error) = Key::read(&path) {
        reader.refuse(KEY_FILE, error.to_string());
    }
    Some(path)
}

/// Whether a rail is named among those that may be used, or those that must be there.
fn is_named(all: &Variables, rail: &str) -> bool {
    let names = |name: &str| all.text(name).map(|text| text.to_ascii_lowercase());
    ["CROSSTIE_RAILS", REQUIRED].into_iter().any(|it| names(it).is_some_and(|it| it.contains(rail)))
}

/// What the variables of RDMA devices say. Who lets NCCL's count complains of those.
fn of_verbs(reader: &mut Reader<'_>, names: verbs::Names) -> verbs::Settings {
    let all = reader.all;
    for variable in verbs::VARIABLES {
        reader.understood(variable.name, |_| Ok(()));
    }
    let (settings, complaints) = verbs::read(|name| all.text(name), names);
    for complaint in complaints {
        let ours = verbs::VARIABLES.iter().find(|variable| variable.name == complaint.name);
        if let Some(variable) = ours {
            reader.refuse(variable.name, complaint.why);
        }
    }
    settings
}

/// The same of libfabric's.
fn of_libfabric(reader: &mut Reader<'_>) -> libfabric::Settings {
    let all = reader.all;
    for variable in libfabric::VARIABLES {
        reader.understood(variable.name, |_| Ok(()));
    }
    let (settings, complaints) = libfabric::read(|name| all.text(name));
    complaints.into_iter().for_each(|(name, why)| reader.refuse(name, why));
    settings
}

/// From the clock's step to a day.
const CONNECT_TIMEOUT_MS: RangeInclusive<u64> = 1..=86_400_000;
/// From what a ping needs on a busy host, to a day.
const PEER_TIMEOUT_MS: RangeInclusive<u64> = 100..=86_400_000;

/// From never to a day.
const STALL_MS: RangeInclusive<u64> = 0..=86_400_000;
