//! How many messages each window of a measurement has, so that all of its windows fill the time
//! that was asked for.
//!
//! The first few milliseconds say little of what follows: buffers are empty, ranks share a CPU. So
//! windows grow step by step, none by more than [`GROWTH`], and each tells the next its length. One
//! that was held up, as on a busy host, makes the next too short to say much: it does not count.
#![forbid(unsafe_code)]

/// Parts of the time that are aimed at: some windows, and what growing takes before them.
const PARTS: f64 = 8.0;
/// A window has at most so many times the messages of the one before.
const GROWTH: u64 = 4;
/// The share of its part that a window which counts takes: after one step of growth it does.
const PART_LEAST: f64 = 1.0 / GROWTH as f64;

/// The next window's messages.
pub struct Pace {
    wanted_ns: f64,
    rounds: u64,
}

impl Pace {
    /// For a measurement of so many seconds. The first window is a single message, whose time is
    /// not known.
    pub fn new(seconds: f64) -> Pace {
        Pace { wanted_ns: seconds * 1e9, rounds: 1 }
    }

    /// Messages of the next window.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// That window, of so many messages when it was cut short, took so long: says whether it
    /// counts, or was too short and one to grow by.
    pub fn took(&mut self, rounds: f64, ns: f64) -> bool {
        let part = self.wanted_ns / PARTS;
        let fitting = (rounds * part / ns.max(1.0)) as u64;
        self.rounds = fitting.clamp(1, self.rounds.saturating_mul(GROWTH));
        ns >= part * PART_LEAST
    }

    /// Whether so many windows that count are enough, `spent_ns` after the first began.
    pub fn is_over(&self, windows: usize, spent_ns: f64) -> bool {
        windows > 0 && spent_ns >= self.wanted_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a measurement in which a message takes as long as `cost_ns` says `spent_ns` after the
    /// start. The window that the time runs out in is cut short, after one message at least.
    /// Returns how long the windows that counted took, in nanoseconds, and the seconds.
    fn measured(seconds: f64, cost_ns: impl Fn(f64) -> f64) -> (Vec<f64>, f64) {
        let (mut pace, mut windows, mut spent) = (Pace::new(seconds), Vec::new(), 0.0);
        while !pace.is_over(windows.len(), spent) {
            let cost = cost_ns(spent);
            let left = ((seconds * 1e9 - spent) / cost).ceil().max(1.0);
            let rounds = (pace.rounds() as f64).min(left);
            let ns = rounds * cost;
            spent += ns;
            if pace.took(rounds, ns) {
                windows.push(ns);
            }
        }
        (windows, spent / 1e9)
    }

    /// One window of 4 ms decided for all: 8 s became 41, and 6 became 2.
    #[test]
    fn time_is_kept_although_the_first_windows_were_faster_or_slower_than_the_others() {
        for (early, late) in [(1e3, 1e4), (1e4, 1e3), (5e3, 5e3)] {
            let cost = |spent: f64| if spent < 1e7 { early } else { late };
            for seconds in [0.1, 0.4, 8.0] {
                let (windows, took) = measured(seconds, cost);
                assert!(windows.len() >= 2, "{windows:?}");
                assert!((1.0..1.1).contains(&(took / seconds)), "{seconds}: {took}");
            }
        }
    }

    /// There were three of two messages, whatever they took.
    #[test]
    fn pair_whose_message_takes_longer_than_the_time_exchanges_one() {
        assert_eq!(measured(0.1, |_| 1e9), (Vec::from([1e9]), 1.0));
    }

    /// Windows of four messages followed one that was held up: 0.1 s of 3, and 70 GB/s.
    #[test]
    fn windows_after_one_that_was_held_up_are_as_long_as_others() {
        let (windows, took) = measured(3.0, |spent| if spent < 1.0 { 2e8 } else { 1e3 });
        let least = windows.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(took >= 3.0 && least >= 3e9 / PARTS / 4.0, "{took}: {windows:?}");
    }
}
