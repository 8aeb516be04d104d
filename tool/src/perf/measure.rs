//! From windows to numbers: warm-up, the best and the median window, percentiles.
#![forbid(unsafe_code)]

use super::alone::Alone;
use super::bench::{Bench, Ran};
use super::options::{Measure, Options, Verify};
use super::pace::Pace;
use super::report::Row;
use super::window::{Kind, Window};
use crate::Failure;
use crate::owned::Backing;
use std::time::{Duration, Instant};

/// Windows of a given number of messages: odd, so that the median is one of them.
const WINDOWS: usize = 9;
/// Windows that are run even when their time is over.
const WINDOWS_MIN: usize = 3;
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

/// When a window is cut short; none: it has the rounds that were asked for.
type Until = Option<Instant>;

/// Runs a window of so many rounds; what each took goes to the samples.
type Run<'a> = dyn FnMut(u64, Until, Option<&mut Vec<u32>>) -> Result<Ran, Failure> + 'a;

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
            // both processes look at what they get
            let kind = match window.kind {
                Kind::Stream if bench.has_two_ways() => Kind::Both,
                kind => kind,
            };
            bench.window(&Window { kind, rounds, verify: true, ..window }, self.until(), None)?;
        }
        let mut samples = Vec::new();
        let latency = self.measure == Measure::Latency;
        let windows = self.windows(
            &mut |rounds, until, samples| {
                bench.window(&Window { rounds, ..window }, until, samples)
            },
            latency.then_some(&mut samples),
        )?;
        let mut row = self.row();
        match self.measure {
            Measure::Latency => {
                row.put("mean_best_us", windows.best() / 2e3);
                row.put("mean_us", windows.median() / 2e3);
                percentiles(&mut row, samples);
            }
            Measure::Bandwidth
            | Measure::Rate
            | Measure::Setup
            | Measure::Pair
            | Measure::Socket => {
                self.throughput(&mut row, &windows, &window);
            }
            // has windows of its own
            Measure::Put | Measure::Get | Measure::Signal | Measure::Counter => {}
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
        let mut run = |rounds, until, _: Option<&mut Vec<u32>>| {
            let (ran, tests) = alone.pairs(&Window { rounds, ..window }, until)?;
            tests_per_pair = tests as f64 / ran.rounds;
            Ok(ran)
        };
        let windows = self.windows(&mut run, None)?;
        let mut row = self.row();
        row.put("best_ns", windows.best());
        row.put("median_ns", windows.median());
        row.put("tests_per_pair", tests_per_pair);
        Ok(row)
    }

    /// The window that is asked for.
    pub fn window(&self) -> Window {
        self.options.window(self.measure, self.backing, self.bytes)
    }

    /// A row for it.
    pub fn row(&self) -> Row {
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

    /// Runs windows, by number or by time; for `samples` one that looks at the clock each round.
    fn windows(
        &self,
        run: &mut Run<'_>,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Windows, Failure> {
        let mut each = match self.options.iterations {
            Some(rounds) => self.windows_of(rounds, run, samples)?,
            None => self.windows_for(run, samples)?,
        };
        each.sort_by(f64::total_cmp);
        Ok(Windows(each))
    }

    /// Windows of a given number of rounds; each one's nanoseconds per round.
    fn windows_of(
        &self,
        rounds: u64,
        run: &mut Run<'_>,
        samples: Option<&mut Vec<u32>>,
    ) -> Result<Vec<f64>, Failure> {
        let (began, until) = (Instant::now(), self.until());
        run(rounds.min(WARM_UP_ROUNDS), until, None)?;
        let count = if self.exact() { 1 } else { WINDOWS };
        let mut each = vec![];
        while each.len() < count {
            let least = if until.is_some() { 1 } else { WINDOWS_MIN };
            if each.len() >= least && began.elapsed().as_secs_f64() > self.options.seconds {
                break;
            }
            let ran = run(rounds, until, None)?;
            each.push(ran.ns() / ran.rounds);
        }
        if let Some(samples) = samples {
            sample(rounds, until, run, samples)?;
        }
        Ok(each)
    }

    /// Windows that fill the time, samples included.
    fn windows_for(
        &self,
        run: &mut Run<'_>,
        mut samples: Option<&mut Vec<u32>>,
    ) -> Result<Vec<f64>, Failure> {
        let mut pace = Pace::new(self.options.seconds);
        let (began, until) = (Instant::now(), self.until());
        let mut each = vec![];
        while !pace.is_over(each.len(), began.elapsed().as_nanos() as f64) {
            let ran = run(pace.rounds(), until, None)?;
            let counts = pace.took(ran.rounds, ran.ns());
            // one that was cut short counts where there is no other
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            if counts || (is_over && each.is_empty()) {
                each.push(ran.ns() / ran.rounds);
                if let Some(samples) = samples.take() {
                    sample(pace.rounds(), until, run, samples)?;
                }
            }
        }
        Ok(each)
    }

    /// When what begins now is over. Rounds by number have their time too, where it was given.
    fn until(&self) -> Until {
        let is_timed = self.options.iterations.is_none() || self.options.is_time_given;
        is_timed.then(|| Instant::now() + Duration::from_secs_f64(self.options.seconds))
    }

    /// Pairs by number are counted by instrumentation from outside: one window and nothing else.
    fn exact(&self) -> bool {
        self.measure == Measure::Pair && self.options.iterations.is_some()
    }
}

/// A window that looks at the clock each round, twice as long as others.
fn sample(
    rounds: u64,
    until: Until,
    run: &mut Run<'_>,
    samples: &mut Vec<u32>,
) -> Result<(), Failure> {
    let rounds = (rounds * 2).min(SAMPLES_MAX);
    samples.reserve_exact(rounds as usize);
    run(rounds, until, Some(samples)).map(|_| ())
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
