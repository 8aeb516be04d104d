//! `crosstie report`: what the open requests of a running process wait for, from both sides.
#![forbid(unsafe_code)]

use super::{Failure, write_out};
use clap::{Arg, ArgMatches, Command, value_parser};
use core::fmt::Write;
use crosstie::connect::text_door::texts;
use crosstie::connect::{ReportEntry, reports};
use crosstie::diagnose::stall::Answer;
use crosstie::host::gin::report::DOOR;
use crosstie::host::stall::describe;
use crosstie::wire::status::STATUS_FRESH;
use std::io::ErrorKind;
use std::time::Duration;

/// How long data threads and peers get to say how they stand.
const PATIENCE: Duration = Duration::from_millis(1_000);

const ABOUT: &str = "\
Says what the open requests of a process wait for, from both sides. It shows each connection with
its oldest send and receive, the state of its peer, and the class of a stall (doc/stalls.md). The
process need not cooperate: its side band answers, also while its program is stuck in its own code.
Run this command as the same user or root, in the same network namespace. PID is as the process
itself sees it. The command takes one second, in which the peers answer, or three if the process is
stopped.";

/// The command's arguments.
pub fn command() -> Command {
    let pid = Arg::new("pid").value_name("PID").required(true).value_parser(value_parser!(u32));
    Command::new("report")
        .about("Says what the open requests of a running process wait for")
        .long_about(ABOUT)
        .arg(pid.help("as the process itself sees it"))
}

/// Runs the command.
pub fn run(given: &ArgMatches) -> Result<(), Failure> {
    let pid: u32 = *given.get_one("pid").expect("it is required");
    let queues = texts(DOOR, pid, PATIENCE).map_err(|error| format!("process {pid}: {error}"));
    let queues = queues?;
    let endpoints = reports(pid, PATIENCE).or_else(|error| match error.kind() {
        ErrorKind::NotFound if !queues.is_empty() => Ok(Vec::new()),
        _ => Err(error),
    });
    let endpoints = endpoints.map_err(|error| match error.kind() {
        ErrorKind::NotFound if !is_there(pid) => format!("there is no process {pid}"),
        ErrorKind::NotFound => {
            format!(
                "process {pid} has no endpoint that could be asked: it has none, or runs in \
                 another network namespace; then run this command there"
            )
        }
        ErrorKind::ConnectionRefused | ErrorKind::TimedOut | ErrorKind::WouldBlock => format!(
            "process {pid} does not answer: it is stopped, gets no processor, or has ended \
             ({error})"
        ),
        ErrorKind::UnexpectedEof => {
            format!("process {pid} has ended, or has closed its endpoint, while it was asked")
        }
        ErrorKind::ConnectionAborted => format!(
            "process {pid} has hung up: another command asks it, or its library has another version"
        ),
        ErrorKind::PermissionDenied => {
            format!("process {pid} of another user does not answer ({error})")
        }
        _ => format!("process {pid}: {error}"),
    })?;
    let mut out = String::new();
    for (number, entries) in endpoints.iter().enumerate() {
        let _ = writeln!(out, "endpoint {number}: {} connection(s)", entries.len());
        for entry in entries {
            entry_write(entry, &mut out).map_err(|error| error.to_string())?;
        }
    }
    queues.iter().for_each(|line| {
        let _ = writeln!(out, "{line}");
    });
    write_out(&out)
}

fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// What the peer has said within our patience.
fn answer_of(entry: &ReportEntry) -> Answer<'_> {
    match &entry.theirs {
        Some(said) => Answer::Said(said),
        None if entry.asked => Answer::Silent(PATIENCE.as_millis() as u32),
        None => Answer::Cannot,
    }
}

fn entry_write(entry: &ReportEntry, out: &mut String) -> core::fmt::Result {
    let status = &entry.ours.status;
    let (peer, sends, receives) = (&entry.peer, status.sends, status.receives);
    write!(out, "connection {} with {peer}: ", entry.connection)?;
    match status.flags & STATUS_FRESH == 0 && status.silent_ms == u32::MAX {
        // what stands there was written before
        true => writeln!(out, "its open requests are not known")?,
        false => writeln!(out, "{sends} send(s), {receives} group(s) of receives open")?,
    }
    describe(&entry.ours, answer_of(entry), peer, out)
}
