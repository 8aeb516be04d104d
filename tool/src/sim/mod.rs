//! `crosstie sim`: random schedules over the simulated network, judged by a plain oracle.
#![deny(unsafe_code)]

mod answers;
mod judge;
#[cfg(test)]
mod keyless;
mod lanes;
#[allow(unsafe_code)] // it vouches for what a simulation registers
mod memory;
mod network;
mod one_sided;
#[cfg(test)]
mod one_way;
mod oracle;
mod peers;
#[cfg(feature = "proof")]
pub mod proof;
mod schedule;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod stalls;
#[cfg(any(test, feature = "proof"))]
mod throttle;
#[cfg(test)]
mod unfenced;
mod world;

use crate::arguments::{flag, number, option};
use clap::{ArgMatches, Command, value_parser};
use judge::Tally;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Fewest events (operations of the network and calls of the user) per schedule on average.
const EVENTS_MIN: u64 = 200;
/// Fewest schedules that every class must occur in.
const CLASSES_FROM: u64 = 1_000;

const ABOUT: &str = "\
Runs random schedules over a network that delays, reorders, refuses, fails and dies, and compares
what arrives with a plain oracle. A schedule that fails is printed with its seed;
`--seed S --schedules 1` runs it again.";

const PEERS: &str = "\
instead, measure one endpoint with N peers: its bytes, and the time for taking the
connections into use, a message on each, and an idle call of progress";

const ONE_SIDED: &str = "\
puts, gets, signals and counters on windows of two ranks, instead of messages";

struct Options {
    seed: u64,
    schedules: u64,
    threads: u64,
    /// Arguments beside the seed that run a schedule again.
    again: &'static str,
}

/// The command's arguments.
pub fn command() -> Command {
    let peers = value_parser!(u32).range(1..=i64::from(peers::PEERS_MAX));
    let from = |least| value_parser!(u64).range(least..);
    Command::new("sim")
        .about("Runs simulated schedules with faults against a plain model")
        .long_about(ABOUT)
        .arg(
            option("seed", "N", "seed of the first schedule")
                .value_parser(from(0))
                .default_value("1"),
        )
        .arg(option("schedules", "M", "").value_parser(from(1)).default_value("10000"))
        .arg(option("threads", "T", "default: one for each CPU, 8 at most").value_parser(from(1)))
        .arg(flag("one-sided", ONE_SIDED))
        .arg(option("peers", "N", PEERS).value_parser(peers).conflicts_with_all([
            "seed",
            "schedules",
            "threads",
            "one-sided",
        ]))
}

/// Runs the command; the result is the process's exit status.
pub fn run(given: &ArgMatches) -> i32 {
    if let Some(peers) = given.get_one("peers") {
        return account(*peers);
    }
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let value = |name, usual| number(given, name).unwrap_or(usual);
    let (seed, schedules) = (value("seed", 1), value("schedules", 10_000));
    let threads = value("threads", cores.min(8));
    match given.get_flag("one-sided") {
        true => {
            let options = Options { seed, schedules, threads, again: " --one-sided" };
            simulate(&options, one_sided::run)
        }
        false => simulate(&Options { seed, schedules, threads, again: "" }, schedule::run),
    }
}

fn account(peers: u32) -> i32 {
    match peers::run(peers) {
        Ok(account) => {
            print!("{}", account.text());
            0
        }
        Err(sentence) => {
            eprintln!("crosstie sim: {sentence}");
            1
        }
    }
}

/// Runs the schedule of a seed, and judges it.
type Judged<T> = fn(u64) -> Result<T, String>;

/// What schedules count.
trait Counted: Copy + Default + Send {
    fn add(&mut self, other: &Self);
    /// How often each class occurred. In many schedules each must.
    fn counts(&self) -> Vec<(&'static str, u64)>;
    /// Calls of the user, and operations of the network.
    fn events(&self) -> u64;
}

fn simulate<T: Counted>(options: &Options, judged: Judged<T>) -> i32 {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let (tallies, refused) = thread::scope(|scope| {
        let work = || worker(options, judged, &next, &stop);
        let started: Result<Vec<_>, _> = (0..options.threads)
            .map(|_| thread::Builder::new().spawn_scoped(scope, work))
            .collect();
        // joined by the scope where one is refused
        let refused = started.as_ref().err().map(|error| error.kind());
        stop.fetch_or(refused.is_some(), Ordering::Relaxed);
        let workers = started.unwrap_or_default();
        let tallies: Vec<_> = workers.into_iter().filter_map(|one| one.join().ok()).collect();
        (tallies, refused)
    });
    // A worker whose memory is out ends the program with a line of its own, so this one waits for
    // all of them.
    if let Some(reason) = refused {
        eprintln!("crosstie sim: a thread: {reason}; fewer --threads?");
        return 1;
    }
    if stop.load(Ordering::Relaxed) || tallies.len() as u64 != options.threads {
        return 1;
    }
    report(options, &total(&tallies))
}

fn worker<T: Counted>(
    options: &Options,
    judged: Judged<T>,
    next: &AtomicU64,
    stop: &AtomicBool,
) -> T {
    let mut sum = T::default();
    while !stop.load(Ordering::Relaxed) {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= options.schedules {
            break;
        }
        let seed = options.seed.wrapping_add(at);
        match std::panic::catch_unwind(|| judged(seed)) {
            Ok(Ok(tally)) => sum.add(&tally),
            Ok(Err(sentence)) => {
                eprintln!("seed {seed} failed: {sentence}");
                eprintln!("again with: crosstie sim --seed {seed} --schedules 1{}", options.again);
                stop.store(true, Ordering::Relaxed);
            }
            Err(_) => {
                eprintln!("seed {seed} panicked");
                eprintln!("again with: crosstie sim --seed {seed} --schedules 1{}", options.again);
                stop.store(true, Ordering::Relaxed);
            }
        }
    }
    sum
}

fn classes(tally: &Tally) -> [(&'static str, u64); 25] {
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
        ("lane: failed", tally.lanes.failures),
        ("lane: came up", tally.lanes.joins),
        ("lane: stripes moved", tally.lanes.moved),
        ("lane: sends sent again", tally.lanes.resends),
        ("lane: control moved", tally.lanes.control_moves),
    ]
}

impl Counted for Tally {
    fn add(&mut self, tally: &Tally) {
        self.calls += tally.calls;
        self.delivered += tally.delivered;
        self.truncated += tally.truncated;
        self.canceled += tally.canceled;
        self.failed += tally.failed;
        self.unexpected += tally.unexpected;
        self.pushed += tally.pushed;
        self.pulled += tally.pulled;
        self.lanes.sum(&tally.lanes);
        self.network.add(&tally.network);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        classes(self).to_vec()
    }

    fn events(&self) -> u64 {
        self.calls + self.network.accepted
    }
}

impl Counted for one_sided::Tally {
    fn add(&mut self, other: &Self) {
        one_sided::Tally::add(self, other);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        one_sided::Tally::classes(self)
    }

    fn events(&self) -> u64 {
        self.calls + self.network.accepted
    }
}

fn total<T: Counted>(tallies: &[T]) -> T {
    let mut sum = T::default();
    tallies.iter().for_each(|tally| sum.add(tally));
    sum
}

fn report<T: Counted>(options: &Options, tally: &T) -> i32 {
    let last = options.seed.wrapping_add(options.schedules.saturating_sub(1));
    println!(
        "{} schedules, seeds {} to {last}: all as the oracle says",
        options.schedules, options.seed
    );
    for (class, count) in tally.counts() {
        println!("{count:>14}  {class}");
    }
    let average = tally.events() / options.schedules.max(1);
    println!("{average:>14}  events per schedule");
    if average < EVENTS_MIN {
        eprintln!("fewer than {EVENTS_MIN} events per schedule: the schedules prove too little");
        return 1;
    }
    if options.schedules >= CLASSES_FROM {
        for (class, count) in tally.counts() {
            if count == 0 {
                eprintln!("nothing of class '{class}' ever happened");
                return 1;
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULES: u64 = 1_000;

    fn status(judged: Judged<Tally>) -> i32 {
        simulate(&Options { seed: 1, schedules: SCHEDULES, threads: 2, again: "" }, judged)
    }

    /// A schedule in which everything happened.
    fn full() -> Tally {
        let network = crosstie_kit::sim::SimCounts {
            accepted: EVENTS_MIN,
            sends: 1,
            writes: 1,
            reads: 1,
            fences: 1,
            delayed: 1,
            reordered: 1,
            agains: 1,
            errors: 1,
            deaths: 1,
            late_completions: 1,
            ghosts: 1,
            ..Default::default()
        };
        Tally {
            network,
            calls: 1,
            delivered: 1,
            truncated: 1,
            canceled: 1,
            failed: 1,
            unexpected: 1,
            pushed: 1,
            pulled: 1,
            lanes: lanes::Counts { failures: 1, joins: 1, moved: 1, resends: 1, control_moves: 1 },
        }
    }

    #[test]
    fn schedules_with_everything_in_them_pass() {
        assert_eq!(status(|_| Ok(full())), 0);
    }

    #[test]
    fn seed_that_fails_or_panics_ends_with_status_1() {
        assert_eq!(status(|seed| if seed == 700 { Err("so".into()) } else { Ok(full()) }), 1);
        assert_eq!(status(|seed| if seed == 700 { panic!("so") } else { Ok(full()) }), 1);
    }

    #[test]
    fn too_few_events_end_with_status_1() {
        assert_eq!(status(|_| Ok(Tally { calls: 0, ..full() })), 1, "a class without events");
        let network = crosstie_kit::sim::SimCounts { accepted: 10, ..full().network };
        assert_eq!(status_of(network), 1, "few events per schedule");
    }

    fn status_of(network: crosstie_kit::sim::SimCounts) -> i32 {
        let tally = Tally { network, ..full() };
        report(&Options { seed: 1, schedules: 1, threads: 1, again: "" }, &tally)
    }
}
