//! `crosstie sim`: random schedules over the simulated network, judged by a plain oracle.
#![deny(unsafe_code)]

extern crate std;

#[allow(unsafe_code)] // it vouches for what a simulation registers
mod memory;
mod oracle;
mod schedule;

use schedule::Tally;
use std::string::String;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec::Vec;
use std::{eprintln, format, println, thread};

/// Fewest events (operations of the network and calls of the user) per schedule on average.
const EVENTS_MIN: u64 = 200;
/// Fewest schedules that every class must occur in.
const CLASSES_FROM: u64 = 1_000;

const USAGE: &str = "\
usage: crosstie sim [--seed N] [--schedules M] [--threads T]

Runs M random schedules (default 10000), the first with seed N (default 1), each over a network
that delays, reorders, refuses, fails and dies, and compares what arrives with a plain oracle.
A schedule that fails is printed with its seed; `--seed S --schedules 1` runs it again.
";

struct Options {
    seed: u64,
    schedules: u64,
    threads: u64,
}

/// Runs the command; the result is the process's exit status.
pub fn run(arguments: &[String]) -> i32 {
    match options(arguments) {
        Ok(Some(options)) => simulate(&options),
        Ok(None) => {
            std::print!("{USAGE}");
            0
        }
        Err(sentence) => {
            eprintln!("crosstie sim: {sentence}\n{USAGE}");
            2
        }
    }
}

fn options(arguments: &[String]) -> Result<Option<Options>, String> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let mut options = Options { seed: 1, schedules: 10_000, threads: cores.min(8) };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let place = match name.as_str() {
            "--seed" => &mut options.seed,
            "--schedules" => &mut options.schedules,
            "--threads" => &mut options.threads,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown option {name}")),
        };
        let value = arguments.next().ok_or_else(|| format!("{name} needs a number"))?;
        *place = value.parse().map_err(|_| format!("{name} needs a number, not {value}"))?;
    }
    options.threads = options.threads.max(1);
    Ok(Some(options))
}

fn simulate(options: &Options) -> i32 {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..options.threads).map(|_| scope.spawn(|| worker(options, &next, &stop))).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    if stop.load(Ordering::Relaxed) || tallies.len() as u64 != options.threads {
        return 1;
    }
    report(options, &total(&tallies))
}

fn worker(options: &Options, next: &AtomicU64, stop: &AtomicBool) -> Tally {
    let mut sum = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= options.schedules {
            break;
        }
        let seed = options.seed.wrapping_add(at);
        let judged = std::panic::catch_unwind(|| schedule::run(seed));
        match judged {
            Ok(Ok(tally)) => sum = total(&[sum, tally]),
            Ok(Err(sentence)) => {
                eprintln!("seed {seed} failed: {sentence}");
                eprintln!("again with: crosstie sim --seed {seed} --schedules 1");
                stop.store(true, Ordering::Relaxed);
            }
            Err(_) => {
                eprintln!("seed {seed} panicked");
                eprintln!("again with: crosstie sim --seed {seed} --schedules 1");
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    sum
}

fn classes(tally: &Tally) -> [(&'static str, u64); 20] {
    let network = &tally.network;
    [
        ("user calls", tally.calls),
        ("operations", network.accepted),
        ("sends", network.sends),
        ("writes", network.writes),
        ("reads", network.reads),
        ("fences", network.fences),
        ("delivered", tally.delivered),
        ("unexpected", tally.unexpected),
        ("pushed", tally.pushed),
        ("pulled", tally.pulled),
        ("truncated", tally.truncated),
        ("canceled", tally.canceled),
        ("failed", tally.failed),
        ("fault: delay", network.delayed),
        ("fault: reorder", network.reordered),
        ("fault: again", network.agains),
        ("fault: error", network.errors),
        ("fault: rail death", network.deaths),
        ("fault: late completion", network.late_completions),
        ("fault: ghost write", network.ghosts),
    ]
}

fn total(tallies: &[Tally]) -> Tally {
    let mut sum = Tally::default();
    for tally in tallies {
        sum.calls += tally.calls;
        sum.delivered += tally.delivered;
        sum.truncated += tally.truncated;
        sum.canceled += tally.canceled;
        sum.failed += tally.failed;
        sum.unexpected += tally.unexpected;
        sum.pushed += tally.pushed;
        sum.pulled += tally.pulled;
        sum.network.add(&tally.network);
    }
    sum
}

fn report(options: &Options, tally: &Tally) -> i32 {
    let last = options.seed.wrapping_add(options.schedules.saturating_sub(1));
    println!(
        "{} schedules, seeds {} to {last}: all as the oracle says",
        options.schedules, options.seed
    );
    for (class, count) in classes(tally) {
        println!("{count:>14}  {class}");
    }
    let events = tally.calls + tally.network.accepted;
    let average = events / options.schedules.max(1);
    println!("{average:>14}  events per schedule");
    if average < EVENTS_MIN {
        eprintln!("fewer than {EVENTS_MIN} events per schedule: the schedules prove too little");
        return 1;
    }
    if options.schedules >= CLASSES_FROM {
        for (class, count) in classes(tally) {
            if count == 0 {
                eprintln!("nothing of class '{class}' ever happened");
                return 1;
            }
        }
    }
    0
}
