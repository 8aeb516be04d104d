//! `crosstie perf`: latency, bandwidth, message rate, one-sided operations and set-up, between two
//! processes or within one.
//!
//! The measuring process starts this program a second time as its peer ([`peer`]), and pins both to
//! different CPUs. It asks the peer over a pipe for one window after the other. While a window
//! runs, both touch nothing but their endpoint. A window starts with an empty message of the peer,
//! sent after its first receives are posted. A stream ends with another, sent when the peer has
//! received everything.
//!
//! With a launcher or `--pattern`, each process is a rank, and all ranks measure at once
//! ([`ranks`]).
#![forbid(unsafe_code)]

mod alone;
mod bench;
mod chaos;
mod flow;
mod measure;
mod memory;
mod once;
mod one_sided;
mod options;
mod pace;
mod peer;
mod pingpong;
mod place;
mod process;
mod rails;
mod ranks;
mod remote;
mod report;
mod setup;
mod side;
mod socket;
mod window;

use crate::owned::{Backing, Location};
use crate::{Failure, launch};
use alone::Alone;
use bench::Bench;
use clap::ArgMatches;
use crosstie::host::{DeviceKind, log};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use memory::Locations;
use options::{Measure, Options};
use peer::{Pair, Setting};
use remote::Server;
use report::{Report, Row};
use side::Shape;
use socket::SocketPair;
use std::rc::Rc;
use window::{Kind, Window};

/// Length of the message that each connection carries once when set-up is measured.
const SETUP_BYTES: u64 = 8;

pub use chaos::{WORKER_COMMAND, run_worker, worker_command};
pub use options::command;
pub use peer::{command as peer_command, run as run_peer};
pub use process::PEER_COMMAND;

/// Does what the arguments ask for; says the exit status.
///
/// `args` are those behind the command's name.
pub fn run(given: &ArgMatches, args: &[String]) -> Result<i32, Failure> {
    once::listen(given);
    if given.get_flag("chaos") {
        return chaos::run(given);
    }
    measure(given, args).map(|()| 0)
}

fn measure(given: &ArgMatches, args: &[String]) -> Result<(), Failure> {
    if given.get_flag("listen") {
        return remote::serve(given);
    }
    let options = Options::read(given)?;
    let server = options.place.as_ref().map(Server::find).transpose()?.map(Rc::new);
    // a server has no rank
    let launch = match server {
        Some(_) => None,
        None => launch::read(&launch::environment)?,
    };
    if let Some(launch) = &launch {
        log::name_set(&format!("rank {}", launch.rank));
    }
    if launch.is_some() || options.pattern.is_some() || options.processes.is_some() {
        return ranks::run(&options, launch, args);
    }
    let mut report = Report::new(&options);
    let progress = bar(steps(&options));
    // neighbours that messages answer have their connections in common
    for measures in options.measures.chunk_by(|a, b| a.shares_connections(*b)) {
        match measures {
            [Measure::Setup] => {
                progress.set_message("setup");
                let row = setup(&options, server.clone())?;
                progress.suspend(|| report.add(row))?;
                progress.inc(1);
            }
            [Measure::Socket] => socket_run(&options, &mut report, &progress)?,
            transfers => {
                let server = server.clone();
                transfers_run(&options, transfers, server, &mut report, &progress)?;
            }
        }
    }
    progress.finish_and_clear();
    report.finish()
}

/// A bar of so many steps on standard error, where that is a terminal.
fn bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}");
    let style = style.expect("a template").progress_chars("##.");
    let bar = ProgressBar::new(steps as u64).with_style(style);
    bar.with_finish(ProgressFinish::AndClear)
}

fn steps(options: &Options) -> usize {
    let each = |measure: &Measure| match measure {
        Measure::Setup => 1,
        Measure::Socket => options.socket_plans().iter().map(|(_, sizes)| sizes.len()).sum(),
        measure => options.sizes(*measure).len() * options.backings(*measure).len(),
    };
    options.measures.iter().map(each).sum()
}

fn transfers_run(
    options: &Options,
    measures: &[Measure],
    server: Option<Rc<Server>>,
    report: &mut Report,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    let connections = options.connections.unwrap_or(1);
    let mut bench: Box<dyn Bench> = match options.device {
        DeviceKind::Loopback if measures == [Measure::Pair] => {
            return pairs(options, report, progress);
        }
        DeviceKind::Loopback => Box::new(Alone::open(connections, &options.buffers())?),
        DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => {
            let mut setting = setting(options, connections, server);
            setting.shape.has_group = measures.iter().any(|measure| measure.is_one_sided());
            Box::new(Pair::open(&setting)?)
        }
    };
    for measure in measures {
        for backing in options.backings(*measure) {
            for bytes in options.sizes(*measure) {
                progress.set_message(measure.name());
                let plan = measure::Plan { options, measure: *measure, backing, bytes };
                let row = match measure.is_one_sided() {
                    true => one_sided::beside::run(&plan, bench.as_mut())?,
                    false => plan.run(bench.as_mut())?,
                };
                progress.suspend(|| report.add(row))?;
                progress.inc(1);
            }
        }
    }
    report.rails(&bench.rails())?;
    if options.locations.has_gpu() { report.paths(bench.paths()) } else { Ok(()) }
}

/// The cost of the library alone: one receive, one send and their tests.
fn pairs(options: &Options, report: &mut Report, progress: &ProgressBar) -> Result<(), Failure> {
    let mut alone = Alone::open(1, &options.buffers())?;
    for backing in options.backings(Measure::Pair) {
        for bytes in options.sizes(Measure::Pair) {
            progress.set_message("pair");
            let plan = measure::Plan { options, measure: Measure::Pair, backing, bytes };
            let row = plan.pairs(&mut alone)?;
            progress.suspend(|| report.add(row))?;
            progress.inc(1);
        }
    }
    Ok(())
}

/// What the kernel gives without us.
fn socket_run(
    options: &Options,
    report: &mut Report,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    let plans: Vec<(Measure, u64)> = options
        .socket_plans()
        .into_iter()
        .flat_map(|(measure, sizes)| sizes.into_iter().map(move |bytes| (measure, bytes)))
        .collect();
    let backing = Backing::Private;
    let room = |(measure, bytes): &(Measure, u64)| {
        options.window(*measure, backing, *bytes).outstanding * bytes
    };
    let bytes = plans.iter().map(room).max().unwrap_or(0);
    let mut bench = SocketPair::open(options.cpus, bytes)?;
    for (measure, bytes) in plans {
        progress.set_message("socket");
        let plan = measure::Plan { options, measure, backing, bytes };
        let row = plan.run(&mut bench)?.of(socket::DEVICE);
        progress.suspend(|| report.add(row))?;
        progress.inc(1);
    }
    Ok(())
}

/// What connections take, on endpoints of their own.
fn setup(options: &Options, server: Option<Rc<Server>>) -> Result<Row, Failure> {
    let connections = options.connections.unwrap_or(options::SETUP_CONNECTIONS);
    let backing = Backing::Private;
    let window = Window {
        kind: Kind::PingPong,
        rounds: u64::from(connections),
        group: 1,
        verify: false,
        ..options.window(Measure::Latency, backing, SETUP_BYTES)
    };
    let buffers = vec![(backing, window.buffer_bytes())];
    if options.device == DeviceKind::Loopback {
        let (device, connections_all, location) = (options.device, 2 * connections, Location::Host);
        let shape =
            Shape { device, connections: connections_all, rails: None, location, has_group: false };
        let mut alone = Alone::open(connections, &buffers)?;
        alone.window(&window, None, None)?;
        alone.setup.used();
        return Ok(alone.setup.row(options, &shape));
    }
    let setting = Setting { buffers, ..setting(options, connections, server) };
    let mut pair = Pair::open(&setting)?;
    pair.window(&window, None, None)?;
    pair.setup.used();
    Ok(pair.setup.row(options, &setting.shape))
}

fn setting(options: &Options, connections: u32, server: Option<Rc<Server>>) -> Setting {
    let (device, rails) = (options.device, options.rails);
    let Locations(location, far) = options.locations;
    Setting {
        shape: Shape { device, connections, rails, location, has_group: false },
        connections,
        cpus: options.cpus,
        server,
        is_cpu_free: options.is_cpu_free,
        buffers: options.buffers(),
        location: far,
    }
}
