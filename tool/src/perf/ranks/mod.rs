//! `crosstie perf` among ranks: latency, bandwidth and rate in a pattern, one table on rank 0.
//!
//! After each window all ranks learn all times, and so all come to the same conclusions: how many
//! messages the next window has, and when there have been enough.
#![forbid(unsafe_code)]

mod crew;
pub mod lanes;
pub mod pattern;

use super::options::{Measure, Options, Verify};
use super::pace::Pace;
use super::rails;
use super::side::{Shape, Side};
use crate::launch::{Launch, Launcher};
use crate::owned::Location;
use crate::rendezvous::Rendezvous;
use crate::table::Columns;
use crate::text::{bytes_short, number};
use crate::{Failure, write_out};
use crew::Crew;
use crosstie::memory::probe;
use lanes::{Job, Lanes, STEP_LIMIT, stride};
use pattern::Pattern;
use serde_json::{Value, json};
use std::time::Instant;

/// Windows of a measurement whose messages are given by number, unless its time is over.
const WINDOWS: usize = 5;
/// Messages on each way in the window that is checked.
const VERIFY_ROUNDS: u64 = 16;
/// Messages of one rank that are outstanding, all ways together, unless asked otherwise.
const OUTSTANDING_ALL: u64 = 32;
/// With more ranks than this, large messages are measured on request only: their buffers are
/// needed once for each two ranks.
const MANY: u32 = 8;

/// A rank's part of a gathering after each window.
#[derive(Copy, Clone)]
struct Heard {
    ns: u64,
    /// Since the measurement's first window began.
    spent_ns: u64,
    verified: u64,
    wrong: u64,
}

impl Heard {
    fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.ns, self.spent_ns, self.verified, self.wrong];
        for (at, value) in words.into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Heard> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Heard { ns: word(0)?, spent_ns: word(8)?, verified: word(16)?, wrong: word(24)? })
    }
}

/// A row of the table: nanoseconds of a round in each rank, sorted.
struct Row {
    measure: Measure,
    bytes: u64,
    outstanding: u64,
    ns: Vec<f64>,
    verified: u64,
}

/// All that a rank needs to measure.
struct Together<'a> {
    options: &'a Options,
    pattern: Pattern,
    met: Rendezvous,
    lanes: Lanes,
    /// Bytes that all ranks have verified, up to the last row.
    verified: u64,
    /// When the measurement that is under way began.
    began: Instant,
}

/// A window that counts.
struct Counted {
    rounds: u64,
    heard: Vec<Heard>,
}

/// Measures as one rank of a launch, or starts ranks and measures with them.
pub fn run(options: &Options, launch: Option<Launch>, args: &[String]) -> Result<(), Failure> {
    let pattern = options.pattern.unwrap_or(Pattern::Pair);
    let size = launch.as_ref().map_or(options.processes.unwrap_or(2), |launch| launch.size);
    let measures = options.pattern_check(pattern, size)?;
    let connections = pattern.connections(size);
    let (device, rails, location) = (options.device, options.rails, Location::Host);
    let shape = Shape { device, connections, rails, location, has_group: false };
    let Some(launch) = launch else {
        // what it warns of the others need not; they inherit the CPUs that it may run on
        let side = Side::open(&shape)?;
        let (crew, met) = Crew::start(size, args)?;
        pin(options, 0, size)?;
        measure(options, pattern, &measures, side, met)?;
        return crew.finish();
    };
    let met = Rendezvous::meet(&launch)?;
    if launch.launcher == Launcher::Crosstie {
        pin(options, launch.local_rank, size)?;
    }
    measure(options, pattern, &measures, Side::open(&shape)?, met)
}

/// Ranks that we started ourselves get a CPU each, where there are as many. A launcher has seen to
/// that in its own way.
fn pin(options: &Options, local_rank: u32, size: u32) -> Result<(), Failure> {
    let cpus = probe::cpus_allowed();
    match cpus.get(local_rank as usize) {
        Some(cpu) if options.cpus.is_some() && cpus.len() >= size as usize => {
            probe::cpu_pin(*cpu).map_err(|error| format!("CPU {cpu}: {error}"))
        }
        _ => Ok(()),
    }
}

fn measure(
    options: &Options,
    pattern: Pattern,
    measures: &[Measure],
    side: Side,
    mut met: Rendezvous,
) -> Result<(), Failure> {
    let size = met.size();
    let backing = options.pattern_backing();
    let plans: Vec<(Measure, u64)> = measures
        .iter()
        .flat_map(|measure| sizes(options, *measure, size).into_iter().map(|b| (*measure, b)))
        .collect();
    let room = |(measure, bytes): &(Measure, u64)| {
        let slots = outstanding(options, *measure, pattern, size) * u64::from(pattern.fan(size));
        slots * stride(*bytes)
    };
    let room = plans.iter().map(room).max().unwrap_or(0);
    let lanes = Lanes::open(pattern, side, (backing, room), &mut met)?;
    let mut together =
        Together { options, pattern, met, lanes, verified: 0, began: Instant::now() };
    let is_first = together.met.rank() == 0;
    if is_first && !options.json {
        write_out(&heading(&together))?;
    }
    for (measure, bytes) in plans {
        let row = together.row(measure, bytes)?;
        if is_first {
            write_out(&match options.json {
                true => format!("{}\n", json(&together, &row)),
                false => columns().row(&cells(&together, &row)),
            })?;
        }
    }
    if is_first {
        let rails = together.lanes.rails();
        let verified = format!("\n{} bytes verified, none wrong\n", together.verified);
        write_out(&match options.json {
            true => rails::json(&rails),
            false => rails::table(&rails) + &verified,
        })?;
    }
    // Closing would cut short whoever is still at work.
    let Together { met, lanes, .. } = &mut together;
    lanes.attend(|| met.barrier(STEP_LIMIT))
}

fn sizes(options: &Options, measure: Measure, size: u32) -> Vec<u64> {
    match (options.sizes_given(), measure) {
        (Some(sizes), _) => sizes.to_vec(),
        (None, Measure::Bandwidth) if size > MANY => vec![4 << 10, 64 << 10],
        (None, Measure::Bandwidth) => vec![4 << 10, 64 << 10, 1 << 20],
        (None, Measure::Latency) => vec![8, 4 << 10],
        (None, _) => vec![8],
    }
}

/// Outstanding on each way.
fn outstanding(options: &Options, measure: Measure, pattern: Pattern, size: u32) -> u64 {
    match measure {
        Measure::Latency => 1,
        measure => {
            let most = options.outstanding(measure).min(super::side::REQUESTS_MAX.into());
            let share = (OUTSTANDING_ALL / u64::from(pattern.fan(size))).max(1);
            if options.outstanding_given() { most } else { most.min(share) }
        }
    }
}

impl Together<'_> {
    fn row(&mut self, measure: Measure, bytes: u64) -> Result<Row, Failure> {
        let size = self.met.size();
        let outstanding = outstanding(self.options, measure, self.pattern, size);
        let verify = self.options.verify == Verify::Inside;
        let job = Job { bytes, rounds: 1, outstanding, verify };
        self.verified_first(measure, &Job { verify: true, ..job })?;
        self.began = Instant::now();
        let windows = match self.options.iterations {
            Some(rounds) => self.windows_of(measure, &Job { rounds, ..job })?,
            None => self.windows_for(measure, &job)?,
        };
        let last = windows.last().map_or(&[][..], |window| &window.heard[..]);
        let wrong: u64 = last.iter().map(|heard| heard.wrong).sum();
        if wrong != 0 {
            return Err(format!("{wrong} messages of {bytes} bytes arrived with wrong bytes"));
        }
        let all = last.iter().map(|heard| heard.verified).sum::<u64>();
        let verified = all - self.verified;
        self.verified = all;
        let ns = each_rank(&windows);
        Ok(Row { measure, bytes, outstanding, ns, verified })
    }

    /// One message whose bytes are checked, and as many more as there is time for.
    fn verified_first(&mut self, measure: Measure, job: &Job) -> Result<(), Failure> {
        let one = slowest(&self.window(measure, &Job { rounds: 1, ..*job })?);
        let fitting = (self.options.seconds * 1e9 / one.max(1.0)) as u64;
        match fitting.min(VERIFY_ROUNDS - 1) {
            0 => Ok(()),
            rounds => self.window(measure, &Job { rounds, ..*job }).map(|_| ()),
        }
    }

    /// Runs one window; returns what all ranks have to say of it.
    fn window(&mut self, measure: Measure, job: &Job) -> Result<Vec<Heard>, Failure> {
        self.lanes.align(self.met.size())?;
        let began = Instant::now();
        match measure {
            Measure::Latency => self.lanes.steps(job)?,
            _ => self.lanes.stream(job)?,
        }
        let since = |start: Instant| u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (ns, spent_ns) = (since(began), since(self.began));
        let (verified, wrong) = self.lanes.checked();
        let (told, met) = (Heard { ns, spent_ns, verified, wrong }.bytes(), &mut self.met);
        let parts = self.lanes.attend(|| met.gather(&told, STEP_LIMIT))?;
        let heard = parts.iter().map(|part| Heard::read(part));
        heard.collect::<Option<_>>().ok_or_else(|| "a rank runs another version".into())
    }

    /// Windows of a given number of messages.
    fn windows_of(&mut self, measure: Measure, job: &Job) -> Result<Vec<Counted>, Failure> {
        let mut windows: Vec<Counted> = Vec::new();
        let mut spent = 0.0;
        while windows.len() < WINDOWS && (windows.is_empty() || spent < self.options.seconds * 1e9)
        {
            let heard = self.window(measure, job)?;
            spent += slowest(&heard);
            windows.push(Counted { rounds: job.rounds, heard });
        }
        Ok(windows)
    }

    /// Windows that fill the time.
    fn windows_for(&mut self, measure: Measure, job: &Job) -> Result<Vec<Counted>, Failure> {
        let mut pace = Pace::new(self.options.seconds);
        let (mut windows, mut spent) = (Vec::new(), 0.0);
        while !pace.is_over(windows.len(), spent) {
            let rounds = pace.rounds();
            let heard = self.window(measure, &Job { rounds, ..*job })?;
            spent = heard.iter().map(|heard| heard.spent_ns).max().unwrap_or(0) as f64;
            if pace.took(rounds as f64, slowest(&heard)) {
                windows.push(Counted { rounds, heard });
            }
        }
        Ok(windows)
    }
}

fn slowest(heard: &[Heard]) -> f64 {
    heard.iter().map(|heard| heard.ns).max().unwrap_or(0) as f64
}

/// Each rank's median window, in nanoseconds per round; sorted.
fn each_rank(windows: &[Counted]) -> Vec<f64> {
    let ranks = windows.first().map_or(0, |window| window.heard.len());
    let median_of = |rank: usize| {
        let each = windows.iter().map(|window| window.heard[rank].ns as f64 / window.rounds as f64);
        let mut ns: Vec<f64> = each.collect();
        ns.sort_by(f64::total_cmp);
        ns[ns.len() / 2]
    };
    let mut all: Vec<f64> = (0..ranks).map(median_of).collect();
    all.sort_by(f64::total_cmp);
    all
}

// ---------------------------------------------------------------- what is shown

impl Row {
    /// The unit, and the least, the median and the greatest value of a rank.
    fn values(&self, together: &Together) -> (&'static str, [f64; 3]) {
        let count = self.ns.len();
        let (least, middle, most) = (self.ns[0], self.ns[count / 2], self.ns[count - 1]);
        // In a pair half of a round trip.
        let half = if together.pattern == Pattern::Pair { 2e3 } else { 1e3 };
        let fan = together.lanes.fan() as f64;
        let bytes = self.bytes as f64;
        match self.measure {
            Measure::Latency => ("us", [least, middle, most].map(|ns| ns / half)),
            Measure::Rate => ("mmsg_s", [most, middle, least].map(|ns| fan * 1e3 / ns)),
            _ => ("gb_s", [most, middle, least].map(|ns| fan * bytes / ns)),
        }
    }
}

fn json(together: &Together, row: &Row) -> Value {
    let (unit, values) = row.values(together);
    let options = together.options;
    let mut object = json!({
        "measure": row.measure.name(),
        "pattern": together.pattern.name(),
        "processes": together.met.size(),
        "device": options.device.name(),
        "memory": options.pattern_backing().name(),
        "bytes": row.bytes,
        "outstanding": row.outstanding,
        "verified_bytes": row.verified,
    });
    for (name, value) in ["min", "median", "max"].iter().zip(values) {
        object[format!("{name}_{unit}")] = value.into();
    }
    object
}

fn columns() -> Columns {
    let numbers = ["min", "median", "max"].map(|name| (name, 7));
    let before = [("what", 9), ("bytes", 7), ("outstanding", 0), ("unit", 9)];
    Columns::new(before.into_iter().chain(numbers))
}

fn cells(together: &Together, row: &Row) -> Vec<String> {
    let (unit, values) = row.values(together);
    let unit = match unit {
        "us" => "us",
        "gb_s" => "GB/s",
        _ => "million/s",
    };
    let mut cells = vec![row.measure.name().to_string(), bytes_short(row.bytes)];
    cells.extend([row.outstanding.to_string(), unit.to_string()]);
    cells.extend(values.map(number));
    cells
}

/// What stands above the rows.
fn heading(together: &Together) -> String {
    let (pattern, size) = (together.pattern, together.met.size());
    let step = match pattern {
        Pattern::Pair => "half of a round trip",
        Pattern::Ring => "until each rank has sent to the next and heard from the one before",
        Pattern::AllToAll => "until each rank has sent to, and heard from, all others",
    };
    format!(
        "{}, {}, {size} processes\n\
         latency: {step}\n\
         bandwidth and rate: what each rank sends; least, median and greatest of all ranks\n\n{}",
        pattern.name(),
        together.options.device.name(),
        columns().head()
    )
}
