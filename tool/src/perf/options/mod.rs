//! What `crosstie perf` was asked for.
#![forbid(unsafe_code)]

mod questions;

use super::memory::{Locations, Memory};
use super::once;
use super::place::Place;
use super::ranks::pattern::Pattern;
use super::window::{OUTSTANDING_MAX, SIZE_MAX, Window};
use crate::arguments::{self, flag, is_given, operands, option, refused, seconds};
use crate::owned::Backing;
use crate::text::sizes_parse;
use crate::{Failure, cpus};
use clap::{Arg, ArgMatches, Command, Id, value_parser};
use crosstie::host::DeviceKind;
use crosstie::host::settings::environment;
use crosstie::wire::RAILS_MAX;
pub use questions::{Measure, measures_known};
use questions::{measures, words};
use std::path::Path;

/// Connections of the measurement of set-up, when none are asked for.
pub const SETUP_CONNECTIONS: u32 = 100;
/// Most connections.
pub const CONNECTIONS_MAX: u64 = 1 << 15;
/// Most memory that buffers may take in one process, so that they fit into small machines.
pub const BUFFERS_BYTES_MAX: u64 = 8 << 30;
/// Outstanding messages that the rate is measured with.
const RATE_OUTSTANDING: u64 = 32;
/// Most bytes of a one-sided operation of which as many are outstanding.
const SHORT_BYTES: u64 = 4 << 10;
/// Seconds of one measurement: the default set then ends within half a minute.
const SECONDS: f64 = 0.4;

/// Options of `crosstie perf` that go together with `--chaos`.
const CHAOS_OPTIONS: [&str; 6] = ["chaos", "rails", "seconds", "seed", "device", "warned"];

const ABOUT: &str = "\
Measures between two processes of this host, each on a CPU of its own; with HOST, between this
process and `crosstie perf --listen` there. WHAT is any of:
  latency     half of a round trip, one message at a time
  bandwidth   several messages outstanding
  rate        short messages per second, 32 outstanding
  setup       how long connections take, and what memory they need
  socket      a bare TCP socket of this host instead of crosstie: latency, rate and bandwidth,
              or those of them that are named beside it
  pair        loopback0 only: one receive, one send and their tests
  put, get, signal, counter
              one-sided operations of a group, and beside them messages in the same run: puts
              with a signal, gets, signals alone, and what a counter costs
  all         latency, bandwidth, rate and setup; the default

Started by mpirun, srun or torchrun, each process is a rank of --pattern, and rank 0 prints. Where
they meet is read from the launcher's variables, or from CROSSTIE_RENDEZVOUS=HOST:PORT.
";

/// The usage line.
const USAGE: &str = "crosstie perf [HOST [PORT]] [WHAT...] [OPTIONS]";

/// The command's arguments.
pub fn command() -> Command {
    let args = [messages(), ranks(), checks_and_output()].concat();
    let names = args.iter().map(|arg| arg.get_id().clone()).chain(["what".into()]);
    let others: Vec<Id> = names.filter(|it| !CHAOS_OPTIONS.contains(&it.as_str())).collect();
    let chaos = flag(
        "chaos",
        "kill TCP rails of two processes from outside while messages flow both ways\n\
         and every byte is verified; the last line is the verdict (status 1: failed;\n\
         77: this system does not allow it)",
    );
    Command::new("perf")
        .about("Measures latency, bandwidth, message rate and set-up between two processes")
        .long_about(ABOUT)
        .override_usage(USAGE)
        .arg(Arg::new("what").num_args(0..).hide(true))
        .args(args)
        .arg(chaos.conflicts_with_all(others))
        .arg(
            number("seed", "N", "which rails --chaos kills, and how", 0, u64::MAX)
                .requires("chaos"),
        )
        .arg(once::warned_option())
}

/// An option whose value is a number.
fn number(name: &'static str, value: &'static str, help: &'static str, min: u64, max: u64) -> Arg {
    option(name, value, help).value_parser(value_parser!(u64).range(min..=max))
}

/// The option of the device, which is of the peer process, too.
pub fn device_option(help: &'static str) -> Arg {
    option("device", "NAME", help).value_parser(["host0", "shm0", "tcp0", "loopback0"])
}

/// Which messages, in which memory, over which device.
fn messages() -> Vec<Arg> {
    let sizes = "message sizes, such as 8,1K,64K or 8..1M (doublings)";
    let outstanding = "receives outstanding per direction (bandwidth 8, rate 32)";
    let connections = "connections, used in turn (default 1; setup: 100)";
    let memory = "shared (the library's), private (the heap, registered) or both\n\
                  (default both; rate: shared; tcp0: private); or host or cuda:N, a GPU\n\
                  by number: A,B for this side and the other, A for both; bytes are\n\
                  verified then, and counted by the path that they took";
    let one_buffer = "all outstanding messages use one buffer, as ucx_perftest and\n\
                      fi_pingpong do; by default each has its own";
    let rails = "rails of each connection, 1 to 8: of TCP, and of RDMA ports or\n\
                 libfabric if there are any (default: one for each address that has\n\
                 one of the peer in its subnet, 2 at most);\n\
                 with --chaos 2 to 8 (default 2)";
    vec![
        option("sizes", "LIST", sizes).value_parser(|text: &str| sizes_parse(text, SIZE_MAX)),
        number("outstanding", "N", outstanding, 1, OUTSTANDING_MAX),
        flag("both", "bandwidth and rate in both directions at once"),
        number("connections", "N", connections, 1, CONNECTIONS_MAX),
        number("group", "K", "messages per receive, 1 to 8 (default 1)", 1, 8),
        option("memory", "KIND", memory).value_parser(Memory::parse),
        flag("one-buffer", one_buffer),
        device_option("host0 (default), shm0, tcp0, loopback0"),
        number("rails", "N", rails, 1, RAILS_MAX as u64),
    ]
}

/// Which processes.
fn ranks() -> Vec<Arg> {
    let listen = "wait for `crosstie perf HOST [PORT]` of another host or terminal, and measure\n\
                  with it what it asks for; an operand is the port (default 18530; 0: any)";
    let pattern = "pair, ring or all-to-all: latency, bandwidth and rate among ranks";
    let processes = "ranks that are started here when no launcher does (default 2)";
    vec![
        flag("listen", listen).conflicts_with_all(["pattern", "processes"]),
        option("pattern", "NAME", pattern).value_parser(Pattern::ALL.map(|it| it.name())),
        number("processes", "N", processes, 2, 64),
        option("cpus", "A,B", "CPUs of the two processes").value_parser(cpus_parse),
        flag("no-pin", "let the scheduler choose").conflicts_with("cpus"),
    ]
}

/// How long, what is checked, and how it is shown.
fn checks_and_output() -> Vec<Arg> {
    let time = "time for each line of the result (default 0.4); when it is over,\n\
                the messages under way are the last";
    let verify = "check every byte of some messages, outside the timed part";
    let inside = "check every byte of every message, inside the timed part";
    vec![
        option("seconds", "S", time).value_parser(seconds),
        number("iterations", "N", "receives per window, instead of a time", 1, 1 << 40),
        flag("verify", verify).conflicts_with("verify-inside"),
        flag("verify-inside", inside),
        flag("json", "one JSON object per line"),
        option("svg", "FILE", "draw latency and bandwidth over size"),
    ]
}

/// When bytes are checked.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verify {
    /// Never.
    No,
    /// In a window of their own.
    Outside,
    /// In every window.
    Inside,
}

/// What was asked for, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The questions, in the order in which they are answered.
    pub measures: Vec<Measure>,
    sizes: Option<Vec<u64>>,
    outstanding: Option<u64>,
    /// Both directions at once.
    pub both: bool,
    /// Connections, when given.
    pub connections: Option<u32>,
    /// Messages per receive.
    pub group: u64,
    memory: Option<Vec<Backing>>,
    /// Where messages lie whose memory is located.
    pub locations: Locations,
    /// All outstanding messages use one buffer.
    pub one_buffer: bool,
    /// On which device.
    pub device: DeviceKind,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// They were asked for.
    pub is_time_given: bool,
    /// Receives per window, instead of a time.
    pub iterations: Option<u64>,
    /// When bytes are checked.
    pub verify: Verify,
    /// CPUs of both processes; `None`: not pinned.
    pub cpus: Option<(u32, u32)>,
    /// JSON lines instead of tables.
    pub json: bool,
    /// Where the plot goes.
    pub svg: Option<String>,
    /// Who talks to whom among ranks, when given.
    pub pattern: Option<Pattern>,
    /// Ranks that we start ourselves, when given.
    pub processes: Option<u32>,
    /// TCP rails of each connection, when given.
    pub rails: Option<u32>,
    /// The server to measure with, instead of a process of this host's.
    pub place: Option<Place>,
    /// No CPU was asked for: whoever is pinned chooses.
    pub is_cpu_free: bool,
}

impl Options {
    /// Checks what was given.
    pub fn read(given: &ArgMatches) -> Result<Options, Failure> {
        let (place, operands) = Place::among(&operands(given), words)?;
        let number = |name| arguments::number(given, name);
        let seconds = given.get_one("seconds").copied();
        let memory = given.get_one::<Memory>("memory");
        let mut options = Options {
            measures: measures(&operands)?,
            sizes: given.get_one::<Vec<u64>>("sizes").cloned(),
            outstanding: number("outstanding"),
            both: given.get_flag("both"),
            connections: number("connections").map(|count| count as u32),
            group: number("group").unwrap_or(1),
            memory: memory.map(Memory::backings),
            locations: memory.map_or(Locations::HOSTS, Memory::locations),
            one_buffer: given.get_flag("one-buffer"),
            device: device(given),
            seconds: seconds.unwrap_or(SECONDS),
            is_time_given: seconds.is_some(),
            iterations: number("iterations"),
            verify: match (given.get_flag("verify"), given.get_flag("verify-inside")) {
                (false, false) => Verify::No,
                (true, _) => Verify::Outside,
                (false, true) => Verify::Inside,
            },
            cpus: match given.get_one("cpus") {
                None if given.get_flag("no-pin") => None,
                None => cpus::two(),
                Some(pair) => Some(*pair),
            },
            json: given.get_flag("json"),
            svg: given.get_one("svg").cloned(),
            pattern: pattern(given),
            processes: number("processes").map(|count| count as u32),
            rails: number("rails").map(|count| count as u32),
            place,
            is_cpu_free: !is_given(given, "cpus"),
        };
        if options.place.is_some() {
            options.remote_check(given)?;
        }
        // some messages are verified, unless that is impossible
        let is_wanted = options.place.is_some() || options.locations.has_gpu();
        if is_wanted && options.verify == Verify::No && !options.one_buffer {
            options.verify = Verify::Outside;
        }
        options.check()?;
        options.socket_check(given)?;
        options.svg_check()?;
        Ok(options)
    }

    /// What a server is not asked for.
    fn remote_check(&self, given: &ArgMatches) -> Result<(), Failure> {
        if let Some(name) = ["pattern", "processes"].iter().find(|name| is_given(given, name)) {
            return Err(refused(&format!("--{name}"), "not together with a HOST"));
        }
        if self.device == DeviceKind::Loopback {
            return Err(refused("--device", "loopback0 leads to no other process"));
        }
        if self.measures.contains(&Measure::Socket) {
            return Err("`socket` measures within a host".into());
        }
        Ok(())
    }

    /// Whether the plot's folder is there, asked before anything is measured.
    fn svg_check(&self) -> Result<(), Failure> {
        let Some(file) = &self.svg else { return Ok(()) };
        match Path::new(file).parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                Err(format!("option --svg: {file}: there is no folder {}", folder.display()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What a bare socket has not.
    fn socket_check(&self, given: &ArgMatches) -> Result<(), Failure> {
        if !self.measures.contains(&Measure::Socket) {
            return Ok(());
        }
        if self.both || self.group != 1 {
            return Err("`socket` has one direction, and no groups".into());
        }
        if self.sizes.as_ref().is_some_and(|sizes| sizes.contains(&0)) {
            return Err(refused("--sizes", "`socket` has no messages of 0 bytes"));
        }
        // beside what is measured of ours they are of that
        let ours = [
            ("--device", "which is no device of ours"),
            ("--connections", "which is one connection"),
            ("--rails", "which has no rails"),
            ("--memory", "which has private memory only"),
            ("--one-buffer", "whose messages have a ring for each direction"),
            ("--svg", "which is not plotted"),
        ];
        match ours
            .iter()
            .find(|(option, _)| self.is_socket_alone() && is_given(given, &option[2..]))
        {
            Some((option, why)) => Err(refused(option, &format!("not of `socket` alone, {why}"))),
            None => Ok(()),
        }
    }

    /// Whether nothing of ours is measured.
    pub fn is_socket_alone(&self) -> bool {
        self.measures.iter().all(|measure| *measure == Measure::Socket)
    }

    fn check(&self) -> Result<(), Failure> {
        let loopback = self.device == DeviceKind::Loopback;
        if self.measures.contains(&Measure::Pair) && !(loopback && self.measures.len() == 1) {
            return Err("`pair` stands alone, and wants --device loopback0".into());
        }
        self.one_sided_check()?;
        if self.both && loopback {
            return Err(refused("--both", "loopback0 is one process, which takes turns"));
        }
        if matches!(self.device, DeviceKind::Loopback | DeviceKind::SharedMemory)
            && self.rails.is_some()
        {
            return Err(refused("--rails", "of tcp0, or host0 where peers are reached over TCP"));
        }
        let wish = environment().tcp_rails;
        if self.rails.is_some_and(|rails| wish != 0 && wish != rails) {
            let why = format!("CROSSTIE_TCP_RAILS says {wish}: unset it");
            return Err(refused("--rails", &why));
        }
        if self.verify != Verify::No && self.one_buffer {
            return Err(refused("--verify", "not with --one-buffer, whose bytes overlap"));
        }
        let is_private = |kinds: &Vec<Backing>| kinds == &[Backing::Private];
        if loopback && !self.memory.as_ref().is_none_or(is_private) {
            return Err(refused("--memory", "loopback0 has private memory only"));
        }
        if self.buffers().iter().any(|(_, bytes)| *bytes > BUFFERS_BYTES_MAX) {
            let why = "these messages outstanding take over 8 GiB; fewer --outstanding?";
            return Err(refused("--sizes", why));
        }
        Ok(())
    }

    /// What operations of a group have not.
    fn one_sided_check(&self) -> Result<(), Failure> {
        if !self.measures.iter().any(|measure| measure.is_one_sided()) {
            return Ok(());
        }
        let why = "not with put, get, signal and counter, which are";
        for (option, is_given, what) in [
            ("--device", self.device == DeviceKind::Loopback, "between two processes"),
            ("--both", self.both, "of one direction"),
            ("--connections", self.connections.is_some(), "of the group's own connections"),
            ("--group", self.group != 1, "single operations"),
            ("--verify-inside", self.verify == Verify::Inside, "checked by --verify"),
        ] {
            if is_given {
                return Err(refused(option, &format!("{why} {what}")));
            }
        }
        Ok(())
    }

    /// The sizes of a measurement.
    pub fn sizes(&self, measure: Measure) -> Vec<u64> {
        match (&self.sizes, measure) {
            (_, Measure::Setup | Measure::Socket) => vec![],
            (_, Measure::Signal) => vec![0],
            (Some(sizes), _) => sizes.clone(),
            (None, Measure::Rate | Measure::Pair | Measure::Counter) => vec![8],
            (None, Measure::Put | Measure::Get) => vec![8, 4 << 10, 64 << 10, 1 << 20],
            (None, Measure::Latency | Measure::Bandwidth) => {
                [3, 10, 12, 13, 14, 16, 18, 20, 22].iter().map(|shift| 1 << shift).collect()
            }
        }
    }

    /// The kinds of memory of a measurement.
    pub fn backings(&self, measure: Measure) -> Vec<Backing> {
        match (&self.memory, self.device, measure) {
            (Some(kinds), _, _) => kinds.clone(),
            (None, DeviceKind::Loopback, _) => vec![Backing::Private],
            // Sockets read and write any memory alike.
            (None, DeviceKind::Tcp, _) => vec![Backing::Private],
            (None, _, Measure::Rate) => vec![Backing::Shared],
            (None, _, measure) if measure.is_one_sided() => vec![Backing::Shared],
            (None, _, _) => vec![Backing::Shared, Backing::Private],
        }
    }

    /// Receives outstanding in a measurement.
    pub fn outstanding(&self, measure: Measure) -> u64 {
        match measure {
            Measure::Latency | Measure::Pair => 1,
            Measure::Rate | Measure::Signal | Measure::Counter => {
                self.outstanding.unwrap_or(RATE_OUTSTANDING)
            }
            Measure::Bandwidth | Measure::Setup | Measure::Socket | Measure::Put | Measure::Get => {
                self.outstanding.unwrap_or(8)
            }
        }
    }

    /// A window of a measurement, with one receive.
    pub fn window(&self, measure: Measure, backing: Backing, bytes: u64) -> Window {
        use super::window::Kind;
        Window {
            kind: match (measure, self.both) {
                (Measure::Latency, _) => Kind::PingPong,
                (_, false) => Kind::Stream,
                (_, true) => Kind::Both,
            },
            backing,
            bytes,
            rounds: 1,
            outstanding: match self.outstanding {
                None if measure.is_one_sided() && bytes <= SHORT_BYTES => RATE_OUTSTANDING,
                _ => self.outstanding(measure),
            },
            group: self.group,
            one_buffer: self.one_buffer,
            verify: self.verify == Verify::Inside,
        }
    }

    /// What is measured over a bare socket, and with which sizes: what is asked of us beside it, so
    /// that there is something to compare, and everything where nothing is.
    pub fn socket_plans(&self) -> Vec<(Measure, Vec<u64>)> {
        let sizes = |usual: &[u64]| self.sizes.as_deref().unwrap_or(usual).to_vec();
        let mut plans = vec![
            (Measure::Latency, sizes(&[8])),
            (Measure::Rate, sizes(&[8])),
            (Measure::Bandwidth, sizes(&[64 << 10, 1 << 20])),
        ];
        let is_asked = |(measure, _): &(Measure, Vec<u64>)| self.measures.contains(measure);
        if plans.iter().any(is_asked) {
            plans.retain(is_asked);
        }
        plans
    }

    /// The sizes that were asked for.
    pub fn sizes_given(&self) -> Option<&[u64]> {
        self.sizes.as_deref()
    }

    /// Whether a number of outstanding messages was asked for.
    pub fn outstanding_given(&self) -> bool {
        self.outstanding.is_some()
    }

    /// The memory that ranks of a pattern use.
    pub fn pattern_backing(&self) -> Backing {
        self.backings(Measure::Rate)[0]
    }

    /// Checks what only ranks of a pattern cannot do; returns what they measure.
    pub fn pattern_check(&self, pattern: Pattern, size: u32) -> Result<Vec<Measure>, Failure> {
        if !pattern.takes(size) {
            let why = format!("{} wants an even number of processes, not {size}", pattern.name());
            return Err(refused("--pattern", &why));
        }
        if self.processes.is_some_and(|count| count != size) {
            return Err(refused("--processes", &format!("the launcher has started {size}")));
        }
        for (option, given) in [
            ("--both", self.both),
            ("--connections", self.connections.is_some()),
            ("--group", self.group != 1),
            ("--one-buffer", self.one_buffer),
            ("--svg", self.svg.is_some()),
            (
                "--memory",
                self.memory.as_ref().is_some_and(|kinds| {
                    !matches!(kinds[..], [Backing::Shared | Backing::Private])
                }),
            ),
            ("--device", self.device == DeviceKind::Loopback),
        ] {
            if given {
                return Err(refused(option, "not among ranks of a pattern"));
            }
        }
        let mut measures = self.measures.clone();
        measures.retain(|measure| *measure != Measure::Setup); // one of the default set
        let wrong = measures.iter().find(|measure| {
            measure.is_one_sided() || matches!(measure, Measure::Pair | Measure::Socket)
        });
        match (wrong, measures.is_empty()) {
            (None, false) => Ok(measures),
            _ => Err("among ranks of a pattern, WHAT is latency, bandwidth or rate".into()),
        }
    }

    /// Each kind of memory that is wanted, and the largest buffer in it.
    pub fn buffers(&self) -> Vec<(Backing, u64)> {
        let mut buffers: Vec<(Backing, u64)> = Vec::new();
        for measure in &self.measures {
            for backing in self.backings(*measure) {
                for bytes in self.sizes(*measure) {
                    let bytes = self.window(*measure, backing, bytes).buffer_bytes();
                    match buffers.iter_mut().find(|(kind, _)| *kind == backing) {
                        Some((_, most)) => *most = (*most).max(bytes),
                        None => buffers.push((backing, bytes)),
                    }
                }
            }
        }
        buffers
    }
}

/// The device of `--device`.
pub fn device(given: &ArgMatches) -> DeviceKind {
    let name = given.get_one::<String>("device");
    name.and_then(|name| DeviceKind::named(name)).unwrap_or(DeviceKind::Host)
}

fn pattern(given: &ArgMatches) -> Option<Pattern> {
    let name = given.get_one::<String>("pattern")?;
    Pattern::ALL.into_iter().find(|pattern| pattern.name() == name)
}

fn cpus_parse(text: &str) -> Result<(u32, u32), Failure> {
    match text.split_once(',').map(|(a, b)| (a.parse(), b.parse())) {
        Some((Ok(a), Ok(b))) => Ok((a, b)),
        _ => Err("it is not two numbers such as 0,1".into()),
    }
}
