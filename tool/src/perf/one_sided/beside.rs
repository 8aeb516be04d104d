//! One-sided operations beside messages: short windows of both in turn, and the best of each. So
//! both have undisturbed ones also where other programs run.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::perf::bench::Bench;
use crate::perf::measure::Plan;
use crate::perf::options::{Measure, Verify};
use crate::perf::pace::Pace;
use crate::perf::report::Row;
use crate::perf::window::{Kind, Window};
use std::time::{Duration, Instant};

/// Windows of each kind where their number of rounds is given.
const WINDOWS: usize = 9;
/// Windows of each kind that fill the time. Each takes less than a slice of the scheduler's.
const PARTS: f64 = 8.0;
/// Windows that verify have so many rounds at most.
const VERIFY_ROUNDS: u64 = 64;

/// Kinds of windows that are measured in turn.
struct Beside {
    kinds: Vec<(Window, Pace)>,
    /// Nanoseconds per round: a turn, then a kind.
    turns: Vec<Vec<f64>>,
}

impl Beside {
    fn new(windows: &[Window], seconds: f64) -> Beside {
        let each = seconds / windows.len() as f64 / PARTS;
        let kinds = windows.iter().map(|window| (*window, Pace::new(each))).collect();
        Beside { kinds, turns: Vec::new() }
    }

    /// Runs windows of all kinds until their time is over.
    fn run(&mut self, bench: &mut dyn Bench, plan: &Plan) -> Result<(), Failure> {
        let seconds = plan.options.seconds;
        let began = Instant::now();
        let is_timed = plan.options.iterations.is_none() || plan.options.is_time_given;
        // longer than the time that its windows aim at
        let until = is_timed.then(|| began + Duration::from_secs_f64(2.0 * seconds));
        let is_enough = |turns: usize| match plan.options.iterations {
            Some(_) if turns >= WINDOWS => true,
            _ => turns > 0 && is_timed && began.elapsed().as_secs_f64() > seconds,
        };
        while !is_enough(self.turns.len()) {
            let (mut counts, mut turn) = (true, Vec::new());
            for (window, pace) in &mut self.kinds {
                let rounds = plan.options.iterations.unwrap_or(pace.rounds());
                let ran = bench.window(&Window { rounds, ..*window }, until, None)?;
                counts &= pace.took(ran.rounds, ran.ns()) || plan.options.iterations.is_some();
                turn.push(ran.ns() / ran.rounds);
            }
            // what was cut short counts where there is nothing else
            if counts || (self.turns.is_empty() && until.is_some_and(|at| Instant::now() >= at)) {
                self.turns.push(turn);
            }
        }
        Ok(())
    }

    /// Nanoseconds per round of the best window of a kind.
    fn best(&self, kind: usize) -> f64 {
        self.turns.iter().map(|turn| turn[kind]).fold(f64::INFINITY, f64::min)
    }
}

/// Windows of a turn: of operations and of messages, one at a time, then several outstanding.
const OWN: usize = 0;
const SENT: usize = 1;
const OWN_STREAM: usize = 2;
const SENT_STREAM: usize = 3;
/// Short messages, which ask for what a get gets.
const ASKED: usize = 4;
/// Length of such a message.
const ASKED_BYTES: u64 = 8;

/// The windows of a turn.
fn windows(measure: Measure, own: Window) -> Vec<Window> {
    let kinds = match measure {
        Measure::Get => [Kind::Get, Kind::PingPong, Kind::GetStream, Kind::Stream],
        Measure::Signal => [Kind::SignalPing, Kind::PingPong, Kind::SignalStream, Kind::Stream],
        Measure::Counter => [Kind::PutCounter, Kind::PutLocal, Kind::PutStream, Kind::Stream],
        _ => [Kind::PutPing, Kind::PingPong, Kind::PutStream, Kind::Stream],
    };
    let mut windows: Vec<Window> = kinds.map(|kind| Window { kind, ..own }).to_vec();
    match measure {
        Measure::Get => {
            let bytes = ASKED_BYTES.min(own.bytes);
            windows.push(Window { kind: Kind::PingPong, bytes, ..own });
        }
        Measure::Counter => {
            windows.remove(OWN_STREAM);
            windows[OWN_STREAM].outstanding = 1;
        }
        _ => {}
    }
    windows
}

/// Measures one-sided operations, and messages beside them.
pub fn run(plan: &Plan, bench: &mut dyn Bench) -> Result<Row, Failure> {
    let own = plan.window();
    let before = bench.checked();
    if plan.options.verify != Verify::No && plan.measure != Measure::Signal {
        let kind = if plan.measure == Measure::Get { Kind::Get } else { Kind::PutPing };
        let rounds = plan.options.iterations.unwrap_or(VERIFY_ROUNDS).min(VERIFY_ROUNDS);
        bench.window(&Window { kind, rounds, verify: true, ..own }, None, None)?;
    }
    let mut beside = Beside::new(&windows(plan.measure, own), plan.options.seconds);
    beside.run(bench, plan)?;
    let mut row = plan.row();
    row.outstanding = own.outstanding;
    beside.values(plan.measure, own.bytes, &mut row);
    let after = bench.checked();
    row.verified = after.0 - before.0;
    match after.1 - before.1 {
        0 => Ok(row),
        wrong => Err(format!("{wrong} operations of {} bytes left wrong bytes", own.bytes)),
    }
}

impl Beside {
    /// Puts the numbers of all turns into a row.
    fn values(&self, measure: Measure, bytes: u64, row: &mut Row) {
        let (own, sent) = (self.best(OWN), self.best(SENT));
        match measure {
            Measure::Counter => {
                let (local, sent) = (sent, self.best(OWN_STREAM));
                row.put("counter_ns", own);
                row.put("local_ns", local);
                row.put("more_ns", own - local);
                row.put("sent_ns", sent);
                row.put("ratio", own / sent);
                return;
            }
            Measure::Get => {
                let asked = (sent + self.best(ASKED)) / 2.0;
                row.put("get_us", own / 1e3);
                row.put("sent_us", asked / 1e3);
                row.put("us_ratio", own / asked);
            }
            _ => {
                row.put("one_way_us", own / 2e3);
                row.put("sent_us", sent / 2e3);
                row.put("us_ratio", own / sent);
            }
        }
        let (own, sent) = (self.best(OWN_STREAM), self.best(SENT_STREAM));
        row.put("mmsg_s", 1e3 / own);
        row.put("sent_mmsg_s", 1e3 / sent);
        row.put("rate_ratio", sent / own);
        if measure != Measure::Signal {
            row.put("gb_s", bytes as f64 / own);
        }
    }
}
