//! From windows to numbers: warm-up, calibration, the best and the median window, percentiles.
#![forbid(unsafe_code)]

extern crate std;

use super::Bench;
use super::alone::Alone;
use super::options::{Measure, Options, Verify};
use super::report::Row;
use super::window::{Kind, Window};
use crate::host::owned::Backing;
use crate::tool::Failure;
use std::format;
use std::time::{Duration, Instant};
use std::vec;
use std::vec::Vec;

/// Windows of one measurement: odd, so that the median is one of them.
const WINDOWS: usize = 9;
/// Windows that are run even when their time is over.
const WINDOWS_MIN: usize = 3;
/// A window this long tells how many messages fill the wanted time.
const CALIBRATION: Duration = Duration::from_millis(4);
/// Most samples of latency that are kept: 4 MiB.
const SAMPLES_MAX: u64 = 1 << 20;
/// Receives of a window that checks bytes.
const VERIFY_ROUNDS: u64 = 64;
/// Receives before a window of a given number of them.
const WARM_UP_ROUNDS: u64 = 1000;
/// Bytes per second in a gigabyte per second: decimal, as networks count.
const GIGA: f64 = 1e9;

/// One measurement: what is asked, of which messages.
pub struct Plan<'a> {
    /// Everything that was asked for.
    pub options: &'a Options,
    /// Which question this is.
    pub measure: Measure,
    /// Where the messages lie.
    pub backing: Backing,
    /// Their length.
    pub bytes: u64,
}

/// Windows that were run: nanoseconds per round of each, sorted.
struct Windows(Vec<f64>);

impl Windows {
    fn best(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

impl Plan<'_> {
    /// Measures.
    pub fn run(&self, bench: &mut dyn Bench) -> Result<Row, Failure> {
        let window = self.window();
        let before = bench.checked();
        if self.options.verify == Verify::Outside {
            let rounds = self.options.iterations.unwrap_or(VERIFY_ROUNDS).min(VERIFY_ROUNDS);
            bench.window(&Window { rounds, verify: true, ..window }, None)?;
        }
        let mut run = |rounds| bench.window(&Window { rounds, ..window }, None);
        let (windows, rounds) = self.windows(&mut run)?;
        let mut row = self.row();
        match self.measure {
            Measure::Latency => {
                row.put("mean_best_us", windows.best() / 2e3);
                row.put("mean_us", windows.median() / 2e3);
                let rounds = (rounds * 2).min(SAMPLES_MAX);
                let mut samples = Vec::with_capacity(rounds as usize);
                bench.window(&Window { rounds, ..window }, Some(&mut samples))?;
                percentiles(&mut row, samples);
            }
            Measure::Bandwidth
            | Measure::Rate
            | Measure::Setup
            | Measure::Pair
            | Measure::Socket => {
                self.throughput(&mut row, &windows, &window);
            }
        }
        let after = bench.checked();
        row.verified = after.0 - before.0;
        if after.1 != before.1 {
            let wrong = after.1 - before.1;
            return Err(format!(
                "{wrong} messages of {} bytes arrived with wrong bytes",
                self.bytes
            ));
        }
        Ok(row)
    }

    /// Measures receive, send and tests within one process.
    pub fn pairs(&self, alone: &mut Alone) -> Result<Row, Failure> {
        let window = Window { kind: Kind::PingPong, ..self.window() };
        let mut tests_per_pair = 0.0;
        let mut run = |rounds| {
            let (took, tests) = alone.pairs(&Window { rounds, ..window })?;
            tests_per_pair = tests as f64 / rounds as f64;
            Ok(took)
        };
        let (windows, _) = self.windows(&mut run)?;
        let mut row = self.row();
        row.put("best_ns", windows.best());
        row.put("median_ns", windows.median());
        row.put("tests_per_pair", tests_per_pair);
        Ok(row)
    }

    fn window(&self) -> Window {
        self.options.window(self.measure, self.backing, self.bytes)
    }

    fn row(&self) -> Row {
        Row::new(self.options, self.measure, Some((self.backing, self.bytes)))
    }

    fn throughput(&self, row: &mut Row, windows: &Windows, window: &Window) {
        let directions = if window.kind == Kind::Both { 2.0 } else { 1.0 };
        let messages = window.group as f64 * directions;
        for (name, rate, round) in [
            ("best_gb_s", "best_mmsg_s", windows.best()),
            ("median_gb_s", "median_mmsg_s", windows.median()),
        ] {
            let per_second = messages * 1e9 / round;
            row.put(name, per_second * self.bytes as f64 / GIGA);
            row.put(rate, per_second / 1e6);
        }
    }

    /// Warms up, finds out how many rounds a window takes, runs them. Also says how many.
    fn windows(
        &self,
        run: &mut dyn FnMut(u64) -> Result<Duration, Failure>,
    ) -> Result<(Windows, u64), Failure> {
        let rounds = match self.options.iterations {
            Some(rounds) => {
                run(rounds.min(WARM_UP_ROUNDS))?;
                rounds
            }
            None => self.calibrate(run)?,
        };
        let count = if self.exact() { 1 } else { WINDOWS };
        let began = Instant::now();
        let mut each = vec![];
        while each.len() < count {
            // On a busy host each window takes longer than the calibration promised.
            if each.len() >= WINDOWS_MIN && began.elapsed().as_secs_f64() > self.options.seconds {
                break;
            }
            each.push(run(rounds)?.as_nanos() as f64 / rounds as f64);
        }
        each.sort_by(f64::total_cmp);
        Ok((Windows(each), rounds))
    }

    /// Pairs by number are counted by instrumentation from outside: one window and nothing else.
    fn exact(&self) -> bool {
        self.measure == Measure::Pair && self.options.iterations.is_some()
    }

    fn calibrate(
        &self,
        run: &mut dyn FnMut(u64) -> Result<Duration, Failure>,
    ) -> Result<u64, Failure> {
        let wanted = self.options.seconds / (WINDOWS + 2) as f64;
        let long_enough = CALIBRATION.as_secs_f64().min(wanted);
        let mut rounds = 2 * self.options.outstanding(self.measure);
        loop {
            let took = run(rounds)?.as_secs_f64();
            if took >= long_enough {
                return Ok(((rounds as f64 * wanted / took) as u64).max(4));
            }
            rounds *= 4;
        }
    }
}

/// Half of each round trip: least, 50th and 99th percentile, in microseconds.
fn percentiles(row: &mut Row, mut samples: Vec<u32>) {
    samples.sort_unstable();
    let at = |share: f64| match samples.len() {
        0 => f64::NAN,
        count => f64::from(samples[((count - 1) as f64 * share).round() as usize]) / 2e3,
    };
    row.put("min_us", at(0.0));
    row.put("p50_us", at(0.5));
    row.put("p99_us", at(0.99));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_ranked_by_time_per_round() {
        let windows = Windows(vec![1.0, 2.0, 9.0]);
        assert_eq!((windows.best(), windows.median()), (1.0, 2.0));
        assert!(Windows(vec![]).median().is_nan());
    }
}
