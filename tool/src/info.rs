//! `crosstie info`: which devices this host has, what they lack and why, and what an endpoint
//! takes.
#![forbid(unsafe_code)]

use super::arguments::{flag, number, option};
use super::opened::{listen, opens, plan, said};
use super::section::{Line, Section, json, line, text};
use super::settings::{self, Setting};
use super::text::bytes_long;
use super::{Failure, write_out};
use super::{libfabric, network, rdma, screen};
use clap::{Arg, ArgMatches, Command, value_parser};
use crosstie::diagnose::kernel::{self, ResourceLimit, Yama};
use crosstie::fabric::Syscalls;
use crosstie::host::device::{DEVICES, Rails, properties};
use crosstie::host::gin;
use crosstie::host::log;
use crosstie::host::mistyped;
use crosstie::host::settings::{GinWish, environment, wrong};
use crosstie::host::{DeviceKind, Options};
use crosstie::memory::Variables;
use crosstie::memory::cuda::Library;
use crosstie::memory::cuda::gpu::{GpuLink, GpuName, visible};
use crosstie::memory::{heap, kernel_copy, probe, wake};
use crosstie::wire::{WIRE_MAJOR, WIRE_MINOR};
use std::process::Stdio;

/// The hidden command of the process that tries to read this one's memory.
pub const READER_COMMAND: &str = "info-reader";

/// The command's arguments.
pub fn command() -> Command {
    Command::new("info")
        .about("Says which devices this host has, and what is unavailable and why")
        .long_about(
            "Says on one screen which devices this host has, what is unavailable and why, which\n\
             limits hold, and which CROSSTIE_ variables are set.",
        )
        .arg(option(
            "peer",
            "HOST[:PORT]",
            "say instead by which rail that host would be reached, and why;\n\
             with a port, whether it answers; status 1: by no rail, or\n\
             no endpoint opens with these settings",
        ))
        .arg(flag("all", "everything, with each setting's meaning and default"))
        .arg(flag("json", "everything as one JSON object"))
}

/// The arguments of the process that tries to read this one's memory.
pub fn reader_command() -> Command {
    let number = |name| Arg::new(name).required(true).value_parser(value_parser!(u64));
    Command::new(READER_COMMAND).args([number("pid"), number("address")])
}

/// Exit status when no rail leads to the peer that was asked for, or no endpoint opens.
const STATUS_NONE: i32 = 1;

/// Prints what was asked for.
pub fn run(given: &ArgMatches) -> Result<i32, Failure> {
    let mut status = 0;
    let sections = match given.get_one::<String>("peer") {
        Some(peer) => {
            let (section, leads) = network::peer(peer)?;
            status = if leads { 0 } else { STATUS_NONE };
            vec![section]
        }
        None => {
            let plan = plan().ok();
            log::sink_set(Some((listen, 0)));
            vec![
                host(),
                devices(),
                network::section(),
                rdma::section(plan.as_ref()),
                libfabric::section(plan.as_ref()),
                gpu(),
                kernel_offers(),
                limits(),
                endpoint(),
                variables(),
            ]
        }
    };
    let is_whole = given.get_flag("all") || given.contains_id("peer");
    write_out(&match given.get_flag("json") {
        true => json(&sections),
        false if is_whole => text(&sections),
        false => screen::text(&sections),
    })?;
    Ok(status)
}

fn host() -> Section {
    let version = env!("CARGO_PKG_VERSION");
    let cpus = probe::cpus_allowed().len();
    let processor = kernel::processor().unwrap_or_else(|| "processor unknown".into());
    let pages = |word: Option<String>| word.unwrap_or_else(|| "not in this kernel".into());
    Section {
        name: "host",
        lines: vec![
            line("crosstie", format!("{version}, wire format {WIRE_MAJOR}.{WIRE_MINOR}")),
            line("node id", node_id()),
            line("kernel", kernel::release()),
            line("processor", format!("{processor}, {cpus} CPUs for this process")),
            line("page", format!("{} bytes", heap::page_bytes())),
            line("huge pages", pages(kernel::huge_pages())),
            line("huge pages, shared memory", pages(kernel::huge_pages_shared())),
        ],
    }
}

fn node_id() -> String {
    let told = environment().node_id;
    let (number, whose) = match (told, crosstie::connect::node_id()) {
        (Some(number), _) => (number, "CROSSTIE_NODE_ID"),
        (None, Ok(number)) => (number, "from the boot id"),
        (None, Err(error)) => return format!("unknown: {error}"),
    };
    format!("{number:016x} ({whose}); messages name hosts by it")
}

fn devices() -> Section {
    let lines = DEVICES.iter().map(|kind| {
        let properties = properties(*kind);
        let state = match opens(*kind) {
            Ok(()) => String::from("available"),
            Err(why) => format!("unavailable: {why}"),
        };
        let allowed = environment().rails;
        let mut text = match (kind, allowed == Rails::ALL) {
            (DeviceKind::Host, false) => format!("{state}; {}", left(allowed)),
            _ => format!("{state}; {}; {}", properties.description, rail(*kind)),
        };
        if !properties.remark.is_empty() {
            text.push_str(&format!("; {}", properties.remark));
        }
        line(properties.name, text)
    });
    Section { name: "devices", lines: lines.collect() }
}

/// The GPUs, and whether NCCL's GPU-initiated operations run here, as the plugin decides it on one
/// host.
fn gpu() -> Section {
    let driver = Library::load();
    let wish = environment().gin;
    let (gin, rma) = match (&driver, gin::refusal(GinWish::hca(wish))) {
        (Err(_), _) => ("off: it needs the CUDA driver".into(), "off: as GIN".to_string()),
        (Ok(_), _) if wish == Some(GinWish::Proxy) => {
            ("on, by NCCL's proxy, in the NCCL plugin".into(), "on, in the NCCL plugin".into())
        }
        (Ok(_), Some(why)) => (format!("off: {why}"), "off: as GIN".into()),
        (Ok(_), None) => ("on, in the NCCL plugin".into(), "on, in the NCCL plugin".into()),
    };
    let gpus = driver.as_ref().map(|library| visible(library));
    let mut lines = vec![
        line("driver", driver.map_or_else(|error| error.to_string(), |_| "loaded".into())),
        line("GIN", gin),
        line("RMA", rma),
    ];
    lines.push(line(
        "GPUs",
        match &gpus {
            Ok(Ok(gpus)) => gpus_text(gpus),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "none: no CUDA driver".into(),
        },
    ));
    let each = gpus.into_iter().flatten().flatten().collect::<Vec<_>>();
    lines.extend(each.iter().enumerate().map(gpu_line));
    Section { name: "gpu", lines }
}

/// How many GPUs there are, and how their memory moves between them.
fn gpus_text(gpus: &[GpuName]) -> String {
    let Some(first) = gpus.first() else { return "0".into() };
    let others = gpus.iter().any(|gpu| gpu.name != first.name);
    let others = if others { " and others" } else { "" };
    let mut text = format!("{} ({}{others})", gpus.len(), first.name);
    match GpuLink::slowest(gpus) {
        GpuLink::Own => {}
        GpuLink::NvLink => text.push_str(", between all by copy engine over NVLink"),
        GpuLink::Pcie => text.push_str(", between all by copy engine over PCIe"),
        GpuLink::None => {
            let links = gpus.iter().flat_map(|gpu| &gpu.links);
            let unreached = links.filter(|link| **link == GpuLink::None).count();
            let ways = gpus.len() * (gpus.len() - 1);
            text.push_str(&format!(", {unreached} of {ways} ways through host memory"));
        }
    }
    text
}

/// A GPU, and how its memory moves to each of the others.
fn gpu_line((number, gpu): (usize, &GpuName)) -> Line {
    let list = |link: GpuLink| {
        let others = gpu.links.iter().enumerate().filter(|(_, its)| **its == link);
        others.map(|(other, _)| other.to_string()).collect::<Vec<_>>().join(", ")
    };
    let id = u128::from_be_bytes(gpu.uuid);
    let mut text = format!("{}, id {id:032x}", gpu.name);
    for (link, how) in [
        (GpuLink::NvLink, "by copy engine over NVLink"),
        (GpuLink::Pcie, "by copy engine over PCIe"),
        (GpuLink::None, "through host memory"),
    ] {
        let others = list(link);
        if !others.is_empty() {
            text.push_str(&format!("; to {others} {how}"));
        }
    }
    line(&format!("GPU {number}"), text)
}

/// Why a variable that is set has no effect, as it was said at open.
fn ignored(name: &str) -> Option<String> {
    said().into_iter().find_map(|(_, text)| {
        let rest = text.strip_prefix(name)?;
        let own = rest.starts_with('=') || rest.starts_with(' ');
        let (_, why) = rest.split_once(" is ignored: ")?;
        own.then(|| format!("ignored: {why}"))
    })
}

/// Why a variable's value cannot be meant.
fn refused(name: &str) -> Option<String> {
    let wrong = wrong().into_iter().find(|it| it.name == name)?;
    Some(format!("refused: {}; no endpoint opens until that is corrected", wrong.why))
}

/// What was said at open of a variable's value that is heeded in part.
fn capped(name: &str) -> Option<String> {
    said().into_iter().find_map(|(_, text)| {
        let rest = text.strip_prefix(name)?.strip_prefix('=')?;
        rest.contains(" is more than ").then(|| rest.to_string())
    })
}

/// What a setting leaves of the rails of `host0`.
fn left(allowed: Rails) -> String {
    let names: Vec<_> = allowed.names().collect();
    match names.is_empty() {
        true => String::from("CROSSTIE_RAILS allows no rail"),
        false => format!("of its rails CROSSTIE_RAILS allows {}", names.join(" and ")),
    }
}

/// The rails of a device, and what they cost.
fn rail(kind: DeviceKind) -> String {
    let (rail, syscalls) = match kind {
        DeviceKind::Host => {
            return "two rails, one of them for each peer: shm (the receiver pulls) and tcp (the \
                    sender pushes)"
                .into();
        }
        DeviceKind::SharedMemory => ("shm, the receiver pulls", Syscalls::PerCopy),
        DeviceKind::Tcp => ("tcp, the sender pushes", Syscalls::PerBatch),
        DeviceKind::Loopback => ("loopback", Syscalls::None),
    };
    let syscalls = match syscalls {
        Syscalls::None => "no system calls",
        Syscalls::PerCopy => "system calls only for large messages in private memory",
        Syscalls::PerBatch => "system calls per batch of messages",
    };
    format!("one rail ({rail}), {syscalls}")
}

fn kernel_offers() -> Section {
    let memfd = match probe::shared_memory() {
        Ok(()) => String::from("yes"),
        Err((call, errno)) => format!("no ({call}: {errno}): shm0 cannot share memory"),
    };
    let membarrier = match wake::barrier_register() {
        true => "yes: waking a sleeper costs senders nothing",
        false => "no: senders pay a fence to wake a sleeper",
    };
    let dir = Variables::of_process().text("CROSSTIE_SHM_DIR").unwrap_or_else(|| "/dev/shm".into());
    let room = match probe::file_system(&dir) {
        Ok((size, free)) => format!("{}, {} free", bytes_long(size), bytes_long(free)),
        Err(error) => format!("missing ({error}): peers in other containers not found"),
    };
    Section {
        name: "kernel",
        lines: vec![
            line("kernel copy", kernel_copy_text()),
            line("yama", Yama::read().name()),
            line("membarrier", membarrier),
            line("memfd", memfd),
            line(&dir, room),
        ],
    }
}

/// What the reader must find; odd, so that it is not there by chance.
const WORD: u64 = 0x6372_6f73_7374_6965;
/// Where it must find it.
static PLACE: u64 = WORD;

fn kernel_copy_text() -> String {
    if Variables::of_process().get("CROSSTIE_KERNEL_COPY").is_some_and(|it| it == "0") {
        return "switched off by CROSSTIE_KERNEL_COPY: private memory takes two copies".into();
    }
    match kernel_copy_tried() {
        Ok(true) => "yes: private memory is read in place (process_vm_readv)".into(),
        Ok(false) => "no: private memory takes two copies; shared memory is not affected".into(),
        Err(failure) => format!("unknown: {failure}"),
    }
}

/// Starts a process that is no ancestor of this one and lets it read [`PLACE`].
fn kernel_copy_tried() -> Result<bool, Failure> {
    // Where that fails, so will the reader.
    let _ = kernel_copy::allow_tracer();
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let address = (&raw const PLACE).expose_provenance();
    let status = std::process::Command::new(program)
        .args([READER_COMMAND, &std::process::id().to_string(), &address.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    Ok(status.map_err(|error| format!("starting a reader: {error}"))?.success())
}

/// What the reader does: succeeds when it can read the word.
pub fn run_reader(given: &ArgMatches) -> Result<(), Failure> {
    let [pid, address] = ["pid", "address"].map(|name| number(given, name).unwrap_or_default());
    match kernel_copy::probe(pid as i32, address, WORD) {
        true => Ok(()),
        false => Err("not readable".into()),
    }
}

fn limits() -> Section {
    let shown = |value: Option<u64>| value.map_or("unlimited".into(), |value| value.to_string());
    let text = |limit: Option<ResourceLimit>| match limit {
        Some(limit) => format!("{} (hard {})", shown(limit.soft), shown(limit.hard)),
        None => "unknown".into(),
    };
    Section {
        name: "limits",
        lines: vec![
            line("RLIMIT_NOFILE", text(kernel::resource_limit("Max open files"))),
            line("RLIMIT_MEMLOCK", text(kernel::resource_limit("Max locked memory"))),
        ],
    }
}

fn endpoint() -> Section {
    let options = Options::default();
    let limits = options.limits;
    let text = |kind| {
        let bytes = Options { device: kind, ..options }.storage_bytes();
        format!("{bytes} bytes of storage")
    };
    let kept = 2 * limits.kept_bytes();
    let pair = 2 * limits.connection_bytes() - kept;
    let rings =
        2 * crosstie::provider::shm::rings_bytes(options.send_ring_bytes, options.write_ring_bytes)
            .next_multiple_of(heap::page_bytes());
    Section {
        name: "endpoint",
        lines: vec![
            line(
                "default limits",
                format!(
                    "{} connections, {} requests each way, {} regions",
                    limits.connections_max, limits.requests_max, limits.regions_max
                ),
            ),
            line("on host0", text(DeviceKind::Host)),
            line("on shm0", text(DeviceKind::SharedMemory)),
            line("on tcp0", text(DeviceKind::Tcp)),
            line("on loopback0", text(DeviceKind::Loopback)),
            line(
                "connection pair",
                format!(
                    "{pair} bytes of protocol state in both endpoints, and {kept} of sends that \
                     are kept for another rail; the state of rails and side band comes on top \
                     (doc/limits.md)"
                ),
            ),
            line("rings of a pair", format!("{rings} bytes of shared memory, in whole pages")),
        ],
    }
}

/// Set variables with their value, unknown ones with the nearest name, then those not set.
fn variables() -> Section {
    let mut lines = Vec::new();
    for (name, value) in Variables::of_process().iter() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if let Some(sentence) = mistyped::sentence(&name) {
            lines.push(line(&name, format!("unknown: {sentence}")));
        } else if let Some(setting) = settings::all().find(|setting| setting.name == name) {
            let effect = Setting::plain(setting.effect);
            let text = match (refused(&name).or_else(|| ignored(&name)), capped(&name)) {
                (Some(why), _) => format!("set to {value}, and {why}"),
                (None, Some(how)) => format!("set to {value}, and capped: {how}"),
                (None, None) if value.trim().is_empty() => {
                    format!("set to nothing: {effect}")
                }
                (None, None) => format!("set to {value}: {effect}"),
            };
            lines.push(line(&name, text));
        }
    }
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    for setting in settings::all() {
        if !lines.iter().any(|line| line.name == setting.name) {
            let Setting { name, default, values, effect } = setting;
            let text = format!("default {default} ({values}): {effect}");
            lines.push(line(name, Setting::plain(&text)));
        }
    }
    Section { name: "variables", lines }
}
