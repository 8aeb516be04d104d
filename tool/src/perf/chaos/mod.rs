//! `crosstie perf --chaos`: the rails of two processes are killed from outside while messages flow
//! both ways between them, and no message may be lost, doubled, damaged or late.
//!
//! The parent starts both processes ([`worker`]), takes copies of their data sockets
//! (pidfd_getfd(2)) and breaks one rail at a time, of a random side and in a random way. The next
//! kill waits until the rail that died is in use again on both sides and has carried bytes.
#![forbid(unsafe_code)]

mod rails;
mod traffic;
mod worker;
mod workers;

use super::options::device;
use crate::arguments::{is_given, number, refused};
use crate::table::Table;
use crate::{Failure, write_out};
use clap::ArgMatches;
use crosstie::host::DeviceKind;
use crosstie::host::settings::environment;
use crosstie::memory::Variables;
use crosstie::memory::probe::clock_ns;
use crosstie_kit::random::Random;
use rails::{Blow, BorrowError, Rail};
use std::time::{Duration, Instant};
use workers::{SIDES, Workers};

pub use worker::{NAME as WORKER_COMMAND, command as worker_command, run as run_worker};

/// Seconds of messages and kills when nobody says otherwise, and the most that may be asked for.
const SECONDS: f64 = 10.0;
const SECONDS_MAX: f64 = 40.0;
/// What starting and ending may take besides.
const BESIDE: Duration = Duration::from_secs(7);
/// How long a rail may take to come back and carry bytes.
const BACK: Duration = Duration::from_secs(8);
/// Between a rail's return and the next kill, at most.
const PAUSE_MS: u64 = 100;
/// Exit status where the system does not let one process into another: what was asked for was not
/// done, and nothing is known to be wrong (as automake's tests have it).
const STATUS_SKIPPED: i32 = 77;
const STATUS_FAILED: i32 = 1;

/// What is measured of each kill, on either side.
const TIMES: [&str; 5] = [
    "to the first message after it",
    "until a message begun after it is there",
    "until the loss is noticed",
    "until the rail is in use again",
    "until the rail carries bytes again",
];

/// What was found.
struct Found {
    kills: u64,
    messages: u64,
    bytes: u64,
    /// By [`TIMES`], in nanoseconds.
    times: [Vec<u64>; 5],
    rails: [Vec<Rail>; 2],
}

enum End {
    Forbidden(crosstie::memory::Errno),
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Failed(failure)
    }
}

impl From<&str> for End {
    fn from(failure: &str) -> End {
        End::Failed(failure.to_string())
    }
}

/// Runs it; says the exit status.
pub fn run(given: &ArgMatches) -> Result<i32, Failure> {
    if is_given(given, "device") && device(given) != DeviceKind::Tcp {
        return Err(refused("--device", "--chaos kills TCP rails: tcp0"));
    }
    let rails = number(given, "rails").unwrap_or(2) as u8;
    if rails < 2 {
        return Err(refused("--rails", "2 or more with --chaos"));
    }
    let seconds = given.get_one("seconds").copied().unwrap_or(SECONDS);
    if seconds > SECONDS_MAX {
        return Err(refused("--seconds", &format!("at most {SECONDS_MAX} with --chaos")));
    }
    settings_check()?;
    let seed = number(given, "seed").unwrap_or_else(clock_ns);
    write_out(&format!("chaos: tcp0, {rails} rails, {seconds} s, --seed {seed}\n"))?;
    write_out(&overridden())?;
    let mut found = Found {
        kills: 0,
        messages: 0,
        bytes: 0,
        times: [const { Vec::new() }; 5],
        rails: [vec![], vec![]],
    };
    let end = chaos(rails, Duration::from_secs_f64(seconds), seed, &mut found);
    write_out(&tables(&mut found))?;
    match end {
        Ok(()) => {
            write_out(&passed(&found))?;
            Ok(0)
        }
        Err(End::Forbidden(errno)) => {
            let why = "this system does not let a process take its children's sockets";
            write_out(&format!("chaos: skipped: {why} (pidfd_getfd: {errno})\n"))?;
            Ok(STATUS_SKIPPED)
        }
        Err(End::Failed(failure)) => {
            let kills = found.kills;
            write_out(&format!("chaos: failed: {failure}; after {kills} kills, seed {seed}\n"))?;
            Ok(STATUS_FAILED)
        }
    }
}

/// *Errors*: the setting without which there would be rails to kill.
fn settings_check() -> Result<(), Failure> {
    match environment().rails.tcp {
        true => Ok(()),
        false => {
            let rails = Variables::of_process().text("CROSSTIE_RAILS").unwrap_or_default();
            let why =
                format!("CROSSTIE_RAILS={rails} leaves no TCP rail, and chaos kills TCP rails");
            Err(refused("--chaos", &why))
        }
    }
}

/// Which settings both processes have not, in a line; nothing for none.
fn overridden() -> String {
    let set = |name: &&str| Variables::of_process().get(name).is_some();
    let names: Vec<&str> = workers::OVERRIDDEN.iter().copied().filter(set).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            "chaos: without effect here: {}; --rails says how many, and all go over lo\n",
            names.join(", ")
        ),
    }
}

fn chaos(rails: u8, span: Duration, seed: u64, found: &mut Found) -> Result<(), End> {
    let deadline = Instant::now() + span + BESIDE;
    let mut workers = Workers::start(rails, deadline)?;
    let mut random = Random::new(seed);
    let over = Instant::now() + span;
    loop {
        found.rails = all_up(&mut workers, rails)?;
        let pause = Duration::from_millis(random.below(PAUSE_MS));
        if Instant::now() + pause > over {
            break;
        }
        workers.pause(pause)?;
        kill(&mut workers, &mut random, found)?;
    }
    end(&mut workers, deadline, found)?;
    match found.kills {
        0 => Err("no rail was killed".into()),
        _ => Ok(()),
    }
}

/// Waits until every rail is in use on both sides.
fn all_up(workers: &mut Workers, count: u8) -> Result<[Vec<Rail>; 2], Failure> {
    let until = Instant::now() + BACK;
    loop {
        let both = workers.rails(until)?;
        let up = |rails: &Vec<Rail>| {
            rails.len() == usize::from(count) && rails.iter().all(|rail| rail.up)
        };
        if both.iter().all(up) {
            return Ok(both);
        }
        if Instant::now() > until {
            let text = format!("not every rail is in use: {both:?}");
            return Err(text);
        }
        workers.pause(Duration::from_millis(1))?;
    }
}

/// Kills one rail, and waits until it is back.
fn kill(workers: &mut Workers, random: &mut Random, found: &mut Found) -> Result<(), End> {
    let side = random.below(2) as usize;
    let lane = random.below(found.rails[0].len() as u64) as usize;
    let blow = Blow::ALL[random.below(Blow::ALL.len() as u64) as usize];
    let mut ends = Vec::new();
    for (of, rails) in found.rails.iter().enumerate() {
        match rails::borrow(workers.process(of), &rails[lane]) {
            Ok(socket) => ends.push(socket),
            Err(BorrowError::Forbidden(errno)) => return Err(End::Forbidden(errno)),
            Err(BorrowError::Failed(failure)) => return Err(End::Failed(failure)),
        }
    }
    if !rails::are_ends(&ends[0], &ends[1]) {
        return Err(format!("rail {lane} is not the same on both sides").into());
    }
    let generation = found.rails[side][lane].generation;
    let at_ns = clock_ns();
    rails::kill(&ends[side], blow)?;
    drop(ends);
    found.kills += 1;
    workers.say_both(&format!("kill {at_ns} {lane} {generation}"))?;
    let until = Instant::now() + BACK;
    for (of, name) in SIDES.iter().enumerate() {
        let back = workers.hear_numbers(of, "back", until).map_err(|failure| {
            format!("{failure}: rail {lane} of the {name} after {blow:?} at the {}", SIDES[side])
        })?;
        for (times, time) in found.times.iter_mut().zip(back) {
            times.push(time);
        }
    }
    Ok(())
}

/// Lets both end their messages, and compares what was sent with what came.
fn end(workers: &mut Workers, until: Instant, found: &mut Found) -> Result<(), Failure> {
    workers.say_both("stop")?;
    for side in 0..SIDES.len() {
        let sent = workers.hear_numbers(side, "sent", until)?;
        let sent = *sent.first().ok_or("no number of messages")?;
        workers.say(1 - side, &format!("until {sent}"))?;
    }
    for side in 0..SIDES.len() {
        match workers.hear_numbers(side, "done", until)?[..] {
            [messages, bytes] => {
                found.messages += messages;
                found.bytes += bytes;
            }
            _ => return Err("no count of messages".into()),
        }
    }
    found.rails = workers.rails(until)?;
    let carried = |rails: &Vec<Rail>| rails.iter().all(|rail| rail.counts[0] > 0);
    match found.rails.iter().all(carried) {
        true => Ok(()),
        false => Err("a rail has carried nothing".into()),
    }
}

fn tables(found: &mut Found) -> String {
    let mut table =
        Table::new(&["rail, side", "bytes", "stripes", "moved", "failures", "joins", "use"]);
    for lane in 0..found.rails[0].len() {
        for (side, rails) in SIDES.iter().zip(&found.rails) {
            let Some(rail) = rails.get(lane) else { continue };
            let mut cells = vec![format!("{lane}, {side}")];
            cells.extend(rail.counts.iter().map(u64::to_string));
            cells.push(rail.generation.to_string());
            table.row(cells);
        }
    }
    let mut text = table.text();
    let mut table = Table::new(&["ms after a kill", "min", "p50", "max"]);
    for (name, times) in TIMES.iter().zip(&mut found.times) {
        times.sort_unstable();
        if let (Some(least), Some(most)) = (times.first(), times.last()) {
            let cells = [*least, times[times.len() / 2], *most].map(ms);
            table.row([vec![name.to_string()], cells.to_vec()].concat());
        }
    }
    text.push('\n');
    text.push_str(&table.text());
    text
}

fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

fn passed(found: &Found) -> String {
    let Found { kills, messages, bytes, times, .. } = found;
    let p50 = |at: usize| times[at].get(times[at].len() / 2).copied().map_or("?".into(), ms);
    format!(
        "chaos: passed: {messages} messages, {kills} kills, 0 errors, {bytes} bytes verified; p50: \
         a new message there after {} ms, the rail in use after {} ms\n",
        p50(1),
        p50(3)
    )
}
