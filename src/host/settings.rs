//! The `CROSSTIE_` variables: one table, read at open.
#![forbid(unsafe_code)]

extern crate std;

use super::device::Rails;
use super::log::{self, Level, say_once};
use super::numbers::{among, number, value_of};
use super::options::Options;
use crate::base::units::{Bytes, Span};
use crate::connect::{STREAMS_MAX, USERS_NAMED_MAX, Users, overflow_user};
use crate::memory::CpuSet;
use crate::provider::libfabric::settings as libfabric;
use crate::provider::shm;
use crate::provider::verbs::settings as verbs;
use crate::wire::RAILS_MAX;
use core::ops::RangeInclusive;
use std::format;
use std::path::PathBuf;
use std::string::{String, ToString};

/// One variable.
#[derive(Copy, Clone, Debug)]
pub struct Setting {
    /// Its name in the environment.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What its number counts.
    pub unit: &'static str,
    /// What it does.
    pub effect: &'static str,
}

/// All variables, those of RDMA devices and libfabric among them.
pub fn all() -> impl Iterator<Item = Setting> {
    let of_verbs = verbs::VARIABLES.iter().map(|variable| {
        let verbs::Variable { name, default, unit, effect, .. } = *variable;
        Setting { name, default, unit, effect }
    });
    let of_libfabric = libfabric::VARIABLES.iter().map(|variable| {
        let libfabric::Variable { name, default, unit, effect, .. } = *variable;
        Setting { name, default, unit, effect }
    });
    SETTINGS.iter().copied().chain(of_verbs).chain(of_libfabric)
}

/// The variables but for those of RDMA devices and libfabric.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "CROSSTIE_EAGER_BYTES",
        default: "8192",
        unit: "bytes",
        effect: "longest message that is copied through the ring instead of read in place; over \
            TCP one of sixteen times as many, at most 131072, or 32768 with threads, leaves before \
            its receive was offered",
    },
    Setting {
        name: "CROSSTIE_SEND_RING_BYTES",
        default: "65536",
        unit: "bytes, a power of two",
        effect: "shared memory for messages, per connection and direction",
    },
    Setting {
        name: "CROSSTIE_WRITE_RING_BYTES",
        default: "32768",
        unit: "bytes, a power of two",
        effect: "shared memory for control and two-copy transfers, per connection and direction; \
            from 262144 on they take the place of kernel copies",
    },
    Setting {
        name: "CROSSTIE_HEAP_BYTES",
        default: "68719476736",
        unit: "bytes",
        effect: "address space for xtie_memory_alloc; 0 for none",
    },
    Setting {
        name: "CROSSTIE_KERNEL_COPY",
        default: "1",
        unit: "0 or 1",
        effect: "read a peer's ordinary memory through the kernel where that is allowed",
    },
    Setting {
        name: "CROSSTIE_CONNECT_TIMEOUT_MS",
        default: "10000",
        unit: "milliseconds",
        effect: "how long a connect may take",
    },
    Setting {
        name: "CROSSTIE_SHM_DIR",
        default: "/dev/shm",
        unit: "path",
        effect: "where side-band sockets lie that containers may share; 60 bytes at most",
    },
    Setting {
        name: "CROSSTIE_RAILS",
        default: "shm,verbs,libfabric,vendor,tcp",
        unit: "names, with commas between them",
        effect: "the rails that host0, shm0 and tcp0 may use: shm (peers of this host; all that \
                 shm0 has), verbs (RDMA ports, with tcp as their reserve), libfabric (NICs that \
                 it reaches, likewise; by default where there is no RDMA port), vendor (rails \
                 that the program brings, likewise), tcp (all peers; all that tcp0 has); shm+tcp \
                 is both, and with peers of this host that have it too both in one connection of \
                 host0",
    },
    Setting {
        name: "CROSSTIE_RAILS_REQUIRED",
        default: "none",
        unit: "names, with commas between them",
        effect: "rails of which host0 must have one each, or it does not open: shm, verbs, \
                 libfabric, vendor, tcp; by default what is not there is done without, over TCP",
    },
    Setting {
        name: "CROSSTIE_SOCKET_IFNAME",
        default: "every one with a carrier but loopback, docker and virbr",
        unit: "prefixes, with commas between them; ^ in front excludes, = wants the whole name",
        effect: "the interfaces between this host and others, both ways",
    },
    Setting {
        name: "CROSSTIE_TCP_RAILS",
        default: "one for each subnet that both hosts are in",
        unit: "1 to 8",
        effect: "TCP rails of each connection that this side makes, up to the smaller rails_max \
                 of both sides: while one lives, no message is lost",
    },
    Setting {
        name: "CROSSTIE_TCP_STREAMS",
        default: "one more than CROSSTIE_TCP_THREADS",
        unit: "1 to 6",
        effect: "sockets of each connection over TCP that this side opens; where neither this nor \
                 CROSSTIE_TCP_THREADS is set, one when a quarter of the descriptors that the \
                 process may have are in use",
    },
    Setting {
        name: "CROSSTIE_TCP_THREADS",
        default: "0; in the NCCL plugin, where there are no ports, an eighth of the CPUs that it \
                  may use, 3 at most, fewer with many ranks",
        unit: "threads, 0 to 5, and fewer than CROSSTIE_TCP_STREAMS",
        effect: "threads that move long messages over TCP; 0: the caller does",
    },
    Setting {
        name: "CROSSTIE_TCP_THREAD_CPUS",
        default: "those of the thread that opens",
        unit: "numbers, with commas between them",
        effect: "the CPUs that those threads run on",
    },
    Setting {
        name: "CROSSTIE_SHM_THREADS",
        default: "0; in the NCCL plugin an eighth of the CPUs that it may use, 4 at most, fewer \
                  with many ranks",
        unit: "threads, 0 to 7",
        effect: "threads that copy long messages through shared memory where they are pushed, as \
                 the NCCL plugin does; 0: the caller does",
    },
    Setting {
        name: "CROSSTIE_KEY_FILE",
        default: "none",
        unit: "path",
        effect: "a file with a key that every peer must have the same of, also on this host",
    },
    Setting {
        name: "CROSSTIE_ALLOW_UIDS",
        default: "none",
        unit: "numbers, with commas between them",
        effect: "without a key: users whose processes may be peers over shared memory, beside this \
                 process's own user and root; both sides must allow the other's, root too",
    },
    Setting {
        name: "CROSSTIE_PEER_TIMEOUT_MS",
        default: "10000",
        unit: "milliseconds",
        effect: "how long a peer on another host may be silent before it counts as dead; five \
                 eighths of it end a rail whose data nobody acknowledges",
    },
    Setting {
        name: "CROSSTIE_STALL_MS",
        default: "10000",
        unit: "milliseconds",
        effect: "how old a request must be to be reported as stalled, once; 0: never",
    },
    Setting {
        name: "CROSSTIE_NODE_ID",
        default: "from the boot id",
        unit: "up to 16 hexadecimal digits",
        effect: "this host's number: processes with the same number are peers of one host",
    },
    Setting {
        name: "CROSSTIE_LOG",
        default: "warning",
        unit: "error, warning or info",
        effect: "what is written to standard error when no log callback is set",
    },
    Setting {
        name: "CROSSTIE_RANK",
        default: "the launcher's",
        unit: "number",
        effect: "of `crosstie perf` and the examples: which of the processes this one is",
    },
    Setting {
        name: "CROSSTIE_SIZE",
        default: "the launcher's",
        unit: "processes",
        effect: "of `crosstie perf` and the examples: how many processes there are",
    },
    Setting {
        name: "CROSSTIE_LOCAL_RANK",
        default: "the launcher's",
        unit: "number",
        effect: "of `crosstie perf` and the examples: which of the processes of its host",
    },
    Setting {
        name: "CROSSTIE_RENDEZVOUS",
        default: "the launcher's",
        unit: "host:port",
        effect: "of `crosstie perf` and the examples: where rank 0 waits for the others",
    },
];

/// Names the rails that must be there.
pub(super) const REQUIRED: &str = "CROSSTIE_RAILS_REQUIRED";

/// What the environment says beside the options.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Environment {
    /// Read peers' memory through the kernel where allowed.
    pub kernel_copy: bool,
    /// Where path sockets lie.
    pub shm_dir: PathBuf,
    /// Which rails the user allows.
    pub rails: Rails,
    /// Which must be there; `None`: that is not understood, and must not pass for none.
    pub required: Option<Rails>,
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
    /// The file with the key that all hosts share; an empty path is one that was forgotten.
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
            shm_dir: PathBuf::from("/dev/shm"),
            rails: Rails::ALL,
            required: Some(Rails::NONE),
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
        self.required.is_none_or(|required| required.has(rails))
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
            (Some(streams), Some(wanted)) => (streams, if wanted < streams { wanted } else { 0 }),
        }
    }
}

/// Lets the environment change `options`, and says what it does not understand.
pub fn apply(options: &mut Options) -> Environment {
    log::level_set(understood("CROSSTIE_LOG", log_level).unwrap_or(Level::Warning));
    unknown_report();
    if let Some(bytes) = number("CROSSTIE_SEND_RING_BYTES") {
        options.send_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // who wants a short ring need not know what else follows from it
        options.eager_bytes_fit();
    }
    if let Some(bytes) = number("CROSSTIE_EAGER_BYTES") {
        options.eager_bytes_max = Bytes(bytes);
    }
    if let Some(bytes) = number("CROSSTIE_WRITE_RING_BYTES") {
        options.write_ring_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = number("CROSSTIE_HEAP_BYTES") {
        // who opens without a heap has no use for one
        if options.heap_bytes != Bytes::ZERO {
            options.heap_bytes = Bytes(bytes);
        }
    }
    let mut environment = environment_of(options.verbs_names);
    if let Some(class) = options.verbs_traffic_class {
        environment.verbs.traffic_class_default(class);
    }
    if let Some(timeout) = environment.connect_timeout {
        options.handshake_deadline = timeout;
    }
    let (wish, most) = (environment.tcp_rails, options.limits.rails_max);
    if wish > most && options.device.rails().tcp {
        let text = format!(
            "CROSSTIE_TCP_RAILS={wish} is more than rails_max, {most}, of this endpoint: its \
             connections have {most} at most"
        );
        say_once(Level::Warning, &text);
    }
    environment
}

/// What the environment says beside the options; what it does not understand is reported.
pub fn environment() -> Environment {
    environment_of(verbs::Names::Own)
}

/// The same, with NCCL's variables for RDMA ports, if they count.
fn environment_of(names: verbs::Names) -> Environment {
    let default = Environment::default();
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    Environment {
        kernel_copy: among("CROSSTIE_KERNEL_COPY", 0..=1).map_or(default.kernel_copy, |n| n != 0),
        shm_dir: path("CROSSTIE_SHM_DIR").map_or(default.shm_dir, directory),
        rails: demanded("CROSSTIE_RAILS", rails, Rails::NONE).unwrap_or(default.rails),
        required: demanded(REQUIRED, |text| required(text).map(Some), None)
            .unwrap_or(default.required),
        socket_ifname: understood("CROSSTIE_SOCKET_IFNAME", |text| Ok(text.to_string())),
        tcp_rails: among("CROSSTIE_TCP_RAILS", 1..=RAILS_MAX as u64).map_or(0, |n| n as u32),
        tcp_streams: among("CROSSTIE_TCP_STREAMS", 1..=STREAMS_MAX as u64).map(|n| n as u32),
        tcp_threads: among("CROSSTIE_TCP_THREADS", 0..=TCP_THREADS_MAX).map(|n| n as u32),
        tcp_thread_cpus: understood("CROSSTIE_TCP_THREAD_CPUS", cpus)
            .unwrap_or(default.tcp_thread_cpus),
        shm_threads: among("CROSSTIE_SHM_THREADS", 0..=shm::THREADS_MAX as u64).map(|n| n as u32),
        key_file: path("CROSSTIE_KEY_FILE"),
        users: understood("CROSSTIE_ALLOW_UIDS", users).unwrap_or(default.users),
        connect_timeout: among("CROSSTIE_CONNECT_TIMEOUT_MS", CONNECT_TIMEOUT_MS).map(Span::millis),
        peer_timeout: among("CROSSTIE_PEER_TIMEOUT_MS", PEER_TIMEOUT_MS)
            .map_or(default.peer_timeout, Span::millis),
        stall: among("CROSSTIE_STALL_MS", STALL_MS).map_or(default.stall, Span::millis),
        node_id: understood("CROSSTIE_NODE_ID", node_id),
        verbs: of_verbs(names),
        verbs_named: is_named("verbs"),
        libfabric: of_libfabric(),
        libfabric_named: is_named("libfabric"),
        vendor_named: is_named("vendor"),
    }
}

/// Whether a rail is named among those that may be used, or those that must be there.
fn is_named(rail: &str) -> bool {
    let names = |name: &str| std::env::var(name).map(|text| text.to_ascii_lowercase());
    ["CROSSTIE_RAILS", REQUIRED].into_iter().any(|it| names(it).is_ok_and(|it| it.contains(rail)))
}

/// What the variables of RDMA devices say; what is not understood is reported.
fn of_verbs(names: verbs::Names) -> verbs::Settings {
    let (settings, complaints) = verbs::read(value_of, names);
    // who lets NCCL's count complains of them once, not with each endpoint
    for complaint in complaints.iter().filter(|it| it.name.starts_with("CROSSTIE_")) {
        say_once(Level::Warning, &format!("{complaint}"));
    }
    settings
}

/// The same of libfabric's.
fn of_libfabric() -> libfabric::Settings {
    let (settings, complaints) = libfabric::read(value_of);
    complaints.iter().for_each(|complaint| say_once(Level::Warning, complaint));
    settings
}

/// The directory of `CROSSTIE_SHM_DIR`, which is said when it is none: peers of the same network
/// namespace are reached without.
fn directory(path: PathBuf) -> PathBuf {
    if !path.is_dir() {
        let text = format!(
            "CROSSTIE_SHM_DIR={} is no directory: peers in other network namespaces of this host \
             are not reached by shared memory",
            path.display()
        );
        say_once(Level::Warning, &text);
    }
    path
}

/// From the clock's step to a day.
const CONNECT_TIMEOUT_MS: RangeInclusive<u64> = 1..=86_400_000;
/// From what a ping needs on a busy host, to a day.
const PEER_TIMEOUT_MS: RangeInclusive<u64> = 100..=86_400_000;

/// From never to a day.
const STALL_MS: RangeInclusive<u64> = 0..=86_400_000;

/// A variable's value, if it is set and `read` understands it.
fn understood<T>(name: &str, read: fn(&str) -> Result<T, String>) -> Option<T> {
    let text = value_of(name)?;
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    match read(text) {
        Ok(value) => Some(value),
        Err(why) => {
            say_once(Level::Warning, &format!("{name}={text} is ignored: {why}"));
            None
        }
    }
}

/// As [`understood`], for what must not be ignored: `otherwise` if it is not understood.
fn demanded<T>(name: &str, read: fn(&str) -> Result<T, String>, otherwise: T) -> Option<T> {
    let text = std::env::var_os(name)?;
    let text = text.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    Some(read(text).unwrap_or_else(|why| {
        let then = "no endpoint with peers opens until that is mended";
        say_once(Level::Error, &format!("{name}={text}: {why}; {then}"));
        otherwise
    }))
}

/// What a list of rails is made of.
const RAIL_NAMES: &str = "there are shm, verbs, libfabric, vendor and tcp";
/// What a list of those that may be used has beside.
const RAIL_NAMES_MORE: &str = ", and shm+tcp for both in one connection";

/// The rails of a list.
fn rails(text: &str) -> Result<Rails, String> {
    let mut rails = Rails::NONE;
    for name in text.split(',').map(str::trim) {
        match name.to_ascii_lowercase().as_str() {
            "shm" => rails.shm = true,
            "tcp" => rails.tcp = true,
            // it is set up over TCP, and TCP remains when it fails
            "verbs" => (rails.verbs, rails.tcp) = (true, true),
            "libfabric" => (rails.libfabric, rails.tcp) = (true, true),
            "vendor" => (rails.vendor, rails.tcp) = (true, true),
            "shm+tcp" | "tcp+shm" => {
                (rails.shm, rails.tcp, rails.together) = (true, true, true);
            }
            "" => return Err(format!("a name is missing; {RAIL_NAMES}{RAIL_NAMES_MORE}")),
            _ => return Err(format!("there is no rail {name}; {RAIL_NAMES}{RAIL_NAMES_MORE}")),
        }
    }
    Ok(rails)
}

/// The rails that must be there, of which none brings another along.
fn required(text: &str) -> Result<Rails, String> {
    let mut rails = Rails::NONE;
    for name in text.split(',').map(str::trim) {
        let rail = rails.named(&name.to_ascii_lowercase());
        *rail.ok_or_else(|| format!("there is no rail {name}; {RAIL_NAMES}"))? = true;
    }
    Ok(rails)
}

/// The CPUs of a list.
fn cpus(text: &str) -> Result<CpuSet, String> {
    text.split(',').map(str::trim).try_fold(CpuSet::EMPTY, |set, cpu| {
        let more = cpu.parse().ok().and_then(|cpu| set.with(cpu));
        more.ok_or_else(|| {
            let range = cpu.contains('-');
            let hint = if range { "; ranges are not taken, numbers with commas are" } else { "" };
            format!("{cpu} is no CPU below {}{hint}", CpuSet::END)
        })
    })
}

/// The users of a list, whose processes are let in.
fn users(text: &str) -> Result<Users, String> {
    let overflow = overflow_user();
    text.split(',').map(str::trim).try_fold(Users::default(), |users, user| {
        let number = user.parse().map_err(|_| format!("{user} is no user's number"))?;
        if number == overflow {
            return Err(format!(
                "{number} stands for all users that a namespace does not know; a shared key \
                 (CROSSTIE_KEY_FILE) lets such peers in"
            ));
        }
        users.with(number).ok_or_else(|| format!("it may name {USERS_NAMED_MAX} users at most"))
    })
}

fn node_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| String::from("it is not a hexadecimal number of up to 16 digits"))
}

/// What `CROSSTIE_LOG` lets through.
fn log_level(text: &str) -> Result<Level, String> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Ok(Level::Error),
        "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        _ => Err(String::from("it may be error, warning or info")),
    }
}

/// Says which variables look like ours and are not.
pub(crate) fn unknown_report() {
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if let Some(sentence) = unknown_sentence(name) {
            say_once(Level::Warning, &sentence);
        }
    }
}

/// Edits that a mistyped name has at most: more make another word.
const NEAREST_MAX: usize = 5;

/// What to say of a variable that looks like ours and is not.
pub fn unknown_sentence(name: &str) -> Option<String> {
    if !name.starts_with("CROSSTIE_") || all().any(|setting| setting.name == name) {
        return None;
    }
    let far = |setting: &Setting| distance(setting.name, name);
    let nearest = all().min_by_key(far).filter(|near| far(near) <= NEAREST_MAX);
    // who wrote only the beginning meant that one, however much is missing
    let begun = name.len() > "CROSSTIE_".len() + 2;
    let whole = all().find(|setting| begun && setting.name.starts_with(name));
    let nearest = whole.or(nearest);
    let hint = nearest.map(|near| format!("; the nearest is {}", near.name)).unwrap_or_default();
    Some(format!("{name} is not a variable of crosstie{hint}"))
}

/// Edits between two words (Levenshtein).
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: std::vec::Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_string().bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variable_is_reported_with_the_nearest_name() {
        let sentence = unknown_sentence("CROSSTIE_EGER_BYTE").unwrap();
        assert!(sentence.contains("CROSSTIE_EAGER_BYTES"), "{sentence}");
        let begun = unknown_sentence("CROSSTIE_IB_QP").unwrap();
        assert!(begun.ends_with("the nearest is CROSSTIE_IB_QPS_PER_CONNECTION"), "{begun}");
        let far = unknown_sentence("CROSSTIE_FAVOURITE_COLOUR").unwrap();
        assert!(!far.contains("nearest"), "{far}");
        assert_eq!(unknown_sentence("CROSSTIE_HEAP_BYTES"), None);
        assert_eq!(unknown_sentence("PATH"), None);
    }

    #[test]
    fn rails_are_a_list_of_known_names() {
        assert_eq!(rails("shm, verbs, libfabric, vendor, tcp"), Ok(Rails::ALL));
        let hosts = Rails { verbs: false, libfabric: false, vendor: false, ..Rails::ALL };
        assert_eq!(rails("shm, tcp"), Ok(hosts));
        let verbs = Rails { verbs: true, ..hosts };
        assert_eq!(rails("shm,verbs"), Ok(verbs), "verbs has tcp as its reserve");
        let libfabric = Rails { libfabric: true, tcp: true, ..Rails::NONE };
        assert_eq!(rails("libfabric"), Ok(libfabric), "and so has libfabric");
        assert_eq!(rails("tcp"), Ok(Rails { tcp: true, ..Rails::NONE }));
        let together = Rails { together: true, ..hosts };
        for text in ["shm+tcp", "tcp, shm+tcp", "Shm+TCP,shm"] {
            assert_eq!(rails(text), Ok(together), "{text}");
        }
        assert!(rails("tcp,ofi").unwrap_err().contains("there are shm, verbs, libfabric"));
        assert_eq!(rails("TCP,Shm"), Ok(hosts));
        for empty in [",", "shm,", ",tcp", "shm,,tcp"] {
            assert!(rails(empty).unwrap_err().contains("a name is missing"), "{empty}");
        }
    }

    #[test]
    fn rails_that_are_required_bring_no_other_along() {
        let two = Rails { libfabric: true, verbs: true, ..Rails::NONE };
        assert_eq!(required("libfabric, Verbs"), Ok(two));
        for wrong in ["efa", "shm,", "shm+tcp"] {
            assert!(required(wrong).unwrap_err().contains("there is no rail"), "{wrong}");
        }
    }

    #[test]
    fn cpus_are_numbers_also_from_64_on() {
        let listed = |text| cpus(text).map(|set| set.iter().collect::<std::vec::Vec<_>>());
        assert_eq!(listed("2,3"), Ok(std::vec![2, 3]));
        assert_eq!(listed("127, 0,64"), Ok(std::vec![0, 64, 127]));
        assert!(cpus("1024").unwrap_err().contains("below 1024"));
        assert!(cpus("2-3").unwrap_err().contains("ranges are not taken"));
        assert!(cpus("-1").is_err());
    }

    #[test]
    fn users_are_numbers_and_never_the_one_that_stands_for_all_unknown_users() {
        assert_eq!(users("1000, 7").map(|users| users.named().to_vec()), Ok(std::vec![1000, 7]));
        assert!(users("root").unwrap_err().contains("root is no user's number"));
        let text = overflow_user().to_string();
        assert!(users(&text).unwrap_err().contains("does not know"));
        assert!(users(&"5,".repeat(40)).is_err());
    }

    #[test]
    fn node_ids_are_hexadecimal() {
        assert_eq!(node_id("0x2a"), Ok(42));
        assert_eq!(node_id("ffffffffffffffff"), Ok(u64::MAX));
        assert!(node_id("host").is_err() && node_id("1ffffffffffffffff").is_err());
    }
}
