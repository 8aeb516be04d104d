//! The program `crosstie`: measures, tells what this host offers and what a process waits for, runs
//! simulated schedules.
//!
//! One subcommand is one file or folder. Each takes its arguments and returns what to tell the
//! user when it fails; it writes results to standard output, everything else to standard error.
#![deny(unsafe_code)]

pub mod arguments;
mod cpus;
#[allow(unsafe_code)] // it hands on to the system's allocator
mod heap;
pub mod info;
pub mod launch;
mod libfabric;
mod network;
mod opened;
#[allow(unsafe_code)] // it vouches for the endpoint's memory
mod owned;
pub mod perf;
pub mod plot;
mod rdma;
pub mod rendezvous;
pub mod report;
mod screen;
mod section;
pub mod settings;
#[allow(unsafe_code)] // its memory.rs alone
pub mod sim;
mod table;
mod text;

use clap::Command;
use crosstie::host::log;
pub use heap::Heap;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Why a command ended early: a sentence for the user.
pub type Failure = String;

/// The failure whose sentence another process of the command has written.
const SAID: &str = "";

/// Exit status when a command cannot be carried out.
const STATUS_USAGE: u8 = 2;

/// What the exit statuses mean.
const STATUSES: &str = "\
Exit status: 0: done. 1: done, and the answer is no (info --peer, perf --chaos, sim). 2: it could
not be done. 77: this system does not let perf --chaos take its processes' sockets.";

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match run(&args) {
        Ok(status) => ExitCode::from(u8::try_from(status).unwrap_or(STATUS_USAGE)),
        Err(failure) => {
            if failure != SAID {
                log::line_write(&failure);
            }
            ExitCode::from(STATUS_USAGE)
        }
    }
}

/// The commands that are typed.
fn command() -> Command {
    Command::new("crosstie")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures, shows what this host offers and what a process waits for, and simulates.")
        .after_help(STATUSES)
        .subcommand_required(true)
        .subcommands([perf::command(), info::command(), report::command(), sim::command()])
}

/// Runs a command; the result is the process's exit status.
fn run(args: &[String]) -> Result<i32, Failure> {
    let own = |command| arguments::parse(command, &args[2..]);
    match args.get(1).map(String::as_str) {
        Some(perf::WORKER_COMMAND) => perf::run_worker(&own(perf::worker_command())?)?,
        Some(perf::PEER_COMMAND) => perf::run_peer(&own(perf::peer_command())?)?,
        Some(info::READER_COMMAND) => info::run_reader(&own(info::reader_command())?)?,
        _ => return run_typed(args),
    }
    Ok(0)
}

fn run_typed(args: &[String]) -> Result<i32, Failure> {
    let given = match command().try_get_matches_from(args) {
        Ok(given) => given,
        Err(error) if !error.use_stderr() => return write_out(&error.to_string()).map(|()| 0),
        Err(error) => return Err(arguments::sentence(&error)),
    };
    let (name, given) = given.subcommand().expect("a command is required");
    match name {
        "perf" => perf::run(given, &args[2..]),
        "info" => info::run(given),
        "report" => report::run(given).map(|()| 0),
        _ => Ok(sim::run(given)),
    }
}

/// Ends the program, for which the system has no memory any more: nothing here allocates.
pub fn memory_is_out(bytes: usize) -> ! {
    let mut digits = [0; 20];
    let bytes = text::decimal(bytes as u64, &mut digits);
    log::parts_write([
        "out of memory: the system gives no ",
        bytes,
        " bytes more (ulimit -v, or a limit of the container?)",
    ]);
    heap::exit(STATUS_USAGE.into())
}

/// Writes results. A reader that has seen enough, such as `head`, is no failure.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}"))
        }
        _ => Ok(()),
    }
}
