//! What connections cost when they are made: time, and memory of this process.
#![forbid(unsafe_code)]

use super::options::{Measure, Options};
use super::report::Row;
use super::side::Shape;
use std::fs;
use std::time::{Duration, Instant};

/// How connections came to be, in order.
#[derive(Clone, Default, Debug)]
pub struct Setup {
    took: Vec<Duration>,
    /// Memory in bytes before the endpoint was opened, after the first connection, and after each
    /// had carried a message.
    before: u64,
    first: u64,
    used: Option<u64>,
}

impl Setup {
    /// None yet, and no endpoint either; there will be so many.
    pub fn new(connections: u32) -> Setup {
        let took = Vec::with_capacity(connections as usize);
        Setup { took, before: resident_bytes(), ..Setup::default() }
    }

    /// One more, which took from then until now.
    pub fn made(&mut self, began: Instant) {
        self.took.push(began.elapsed());
        if self.took.len() == 1 {
            self.first = resident_bytes();
        }
    }

    /// Each of them has carried a message.
    pub fn used(&mut self) {
        self.used = Some(resident_bytes());
    }

    /// The first connection, the others, all.
    pub fn row(&self, options: &Options, shape: &Shape) -> Row {
        let mut row = Row::new(options, Measure::Setup, None);
        let mut micros: Vec<f64> = self.took.iter().map(|took| took.as_secs_f64() * 1e6).collect();
        row.put("connections", micros.len() as f64);
        row.put("first_us", micros[0]);
        row.put("all_ms", micros.iter().sum::<f64>() / 1e3);
        micros.remove(0);
        micros.sort_by(f64::total_cmp);
        // a single connection has no further ones, and no numbers of theirs
        let further = micros.len();
        let at = |share: f64| micros[((further - 1) as f64 * share).round() as usize];
        if further > 0 {
            row.put("further_p50_us", at(0.5));
            row.put("further_p99_us", at(0.99));
        }
        row.put("endpoint_bytes", shape.options().bytes() as f64);
        row.put("first_memory_bytes", self.first.saturating_sub(self.before) as f64);
        if let (1.., Some(used)) = (further, self.used) {
            let bytes = used.saturating_sub(self.first) as f64;
            row.put("further_memory_bytes", bytes / further as f64);
        }
        row
    }
}

/// Memory that this process has in use, in bytes; 0 where the kernel does not say.
fn resident_bytes() -> u64 {
    // Exact, unlike the counters of /proc/self/statm, which lag behind by some pages per CPU.
    resident_in(&fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default())
}

fn resident_in(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_is_in_use() {
        assert_eq!(
            resident_in("00-ff ---p [rollup]\nRss:                1234 kB\nPss: 1"),
            1234 << 10
        );
        assert_eq!(resident_in(""), 0);
        assert!(resident_bytes() > 0);
    }
}
