//! `crosstie perf`: latency, bandwidth, message rate and set-up, between two processes or within
//! one.
//!
//! The measuring process starts this program a second time as its peer ([`peer`]), pins both to
//! different CPUs, and asks it for one window after the other over a pipe; while a window runs,
//! both touch nothing but their endpoint. A window starts with an empty message of the peer, when
//! it has posted its first receives, and a stream ends with another, when it has received all.
#![forbid(unsafe_code)]

extern crate std;

mod alone;
mod flow;
mod measure;
mod options;
mod peer;
mod pingpong;
mod report;
mod side;
mod window;

use super::Failure;
use super::progress::Progress;
use crate::host::DeviceKind;
use alone::Alone;
use options::{Measure, Options};
use peer::{Pair, Setting};
use report::{Report, Row};
use side::Shape;
use std::boxed::Box;
use std::format;
use std::string::String;
use std::time::Duration;
use std::vec::Vec;
use window::Window;

pub use peer::{NAME as PEER_COMMAND, run as run_peer};

/// Whoever can run windows.
trait Bench {
    /// Runs one window to its end and says how long it took.
    fn window(
        &mut self,
        window: &Window,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Duration, Failure>;

    /// Bytes verified and messages found wrong until now, in both processes.
    fn checked(&self) -> (u64, u64);
}

/// Measures what the arguments ask for.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let given = options::COMMAND.parse(args)?;
    if given.help {
        return super::write_out(&options::COMMAND.usage());
    }
    let options = Options::read(&given)?;
    let mut report = Report::new(&options);
    let mut progress = Progress::new(steps(&options));
    let transfers: Vec<Measure> =
        options.measures.iter().copied().filter(|measure| *measure != Measure::Setup).collect();
    if !transfers.is_empty() {
        transfers_run(&options, &transfers, &mut report, &mut progress)?;
    }
    if options.measures.contains(&Measure::Setup) {
        progress.step("setup");
        let row = setup(&options)?;
        progress.clear();
        report.add(row)?;
    }
    progress.clear();
    report.finish()
}

fn steps(options: &Options) -> usize {
    let each = |measure: &Measure| match measure {
        Measure::Setup => 1,
        measure => options.sizes(*measure).len() * options.backings(*measure).len(),
    };
    options.measures.iter().map(each).sum()
}

fn transfers_run(
    options: &Options,
    measures: &[Measure],
    report: &mut Report,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let connections = options.connections.unwrap_or(1);
    let mut bench: Box<dyn Bench> = match options.device {
        DeviceKind::Loopback if measures == [Measure::Pair] => {
            return pairs(options, report, progress);
        }
        DeviceKind::Loopback => Box::new(Alone::open(connections, &options.buffers())?),
        DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => {
            Box::new(Pair::open(&setting(options, connections))?)
        }
    };
    for measure in measures {
        for backing in options.backings(*measure) {
            for bytes in options.sizes(*measure) {
                progress.step(measure.name());
                let plan = measure::Plan { options, measure: *measure, backing, bytes };
                let row = plan.run(bench.as_mut())?;
                progress.clear();
                report.add(row)?;
            }
        }
    }
    Ok(())
}

/// The cost of the library alone: one receive, one send and their tests.
fn pairs(options: &Options, report: &mut Report, progress: &mut Progress) -> Result<(), Failure> {
    let mut alone = Alone::open(1, &options.buffers())?;
    for backing in options.backings(Measure::Pair) {
        for bytes in options.sizes(Measure::Pair) {
            progress.step("pair");
            let plan = measure::Plan { options, measure: Measure::Pair, backing, bytes };
            let row = plan.pairs(&mut alone)?;
            progress.clear();
            report.add(row)?;
        }
    }
    Ok(())
}

/// How long connections take, on endpoints of their own.
fn setup(options: &Options) -> Result<Row, Failure> {
    let connections = options.connections.unwrap_or(options::SETUP_CONNECTIONS);
    let (setup, shape) = match options.device {
        DeviceKind::Loopback => {
            let shape = Shape { device: DeviceKind::Loopback, connections: 2 * connections };
            (Alone::open(connections, &[])?.setup, shape)
        }
        DeviceKind::Host | DeviceKind::SharedMemory | DeviceKind::Tcp => {
            let setting = setting(options, connections);
            (
                Pair::open(&Setting { buffers: [].into(), ..setting.clone() })?.setup.clone(),
                setting.shape,
            )
        }
    };
    Ok(measure::setup_row(options, &setup, &shape))
}

fn setting(options: &Options, connections: u32) -> Setting {
    Setting {
        shape: Shape { device: options.device, connections },
        connections,
        cpus: options.cpus,
        buffers: options.buffers(),
    }
}

/// A failure that tells which option cannot be met.
fn refused(option: &str, why: &str) -> Failure {
    format!("option {option}: {why}")
}
