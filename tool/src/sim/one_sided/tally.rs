//! How often everything happened.
#![forbid(unsafe_code)]

use crate::sim::lanes;
use crosstie_kit::sim::SimCounts;

/// What happened in schedules.
#[derive(Copy, Clone, Default, Debug)]
pub struct Tally {
    /// The network's counts.
    pub network: SimCounts,
    /// Calls of the users.
    pub calls: u64,
    /// Windows that were registered.
    pub windows: u64,
    /// Puts accepted, and those whose bytes went apart from their record.
    pub puts: u64,
    pub puts_apart: u64,
    /// Gets that brought their bytes.
    pub gets: u64,
    /// Signals that were added once.
    pub signals: u64,
    /// Adds to words inside of windows.
    pub adds: u64,
    /// Those among them that need operations before them.
    pub needs: u64,
    /// Counters that were added once.
    pub counters: u64,
    /// Operations with a fence that had earlier ones to wait for.
    pub fences: u64,
    pub flushes: u64,
    pub barriers: u64,
    pub resets: u64,
    /// Operations that were told to be refused, since their window was given up.
    pub refused: u64,
    /// Windows that could not be given up at once.
    pub frees_waited: u64,
    /// Bad arguments that were refused.
    pub bad: u64,
    /// Schedules whose connections failed for good.
    pub failed: u64,
    /// Lanes that were killed between the addition of a signal and its acknowledgement.
    pub strikes: u64,
    /// Times that bytes were held back behind their records.
    pub held: u64,
    pub lanes: lanes::Counts,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Tally) {
        self.network.add(&other.network);
        self.lanes.sum(&other.lanes);
        self.calls += other.calls;
        self.windows += other.windows;
        self.puts += other.puts;
        self.puts_apart += other.puts_apart;
        self.gets += other.gets;
        self.signals += other.signals;
        self.adds += other.adds;
        self.needs += other.needs;
        self.counters += other.counters;
        self.fences += other.fences;
        self.flushes += other.flushes;
        self.barriers += other.barriers;
        self.resets += other.resets;
        self.refused += other.refused;
        self.frees_waited += other.frees_waited;
        self.bad += other.bad;
        self.failed += other.failed;
        self.strikes += other.strikes;
        self.held += other.held;
    }

    /// The lines of a report. Each must occur.
    pub fn classes(&self) -> Vec<(&'static str, u64)> {
        let network = &self.network;
        vec![
            ("user calls", self.calls),
            ("operations", network.accepted),
            ("windows", self.windows),
            ("puts", self.puts),
            ("puts apart from their record", self.puts_apart),
            ("gets", self.gets),
            ("signals", self.signals),
            ("adds inside of windows", self.adds),
            ("adds that need operations", self.needs),
            ("counters", self.counters),
            ("fences that waited", self.fences),
            ("flushes", self.flushes),
            ("barriers", self.barriers),
            ("resets", self.resets),
            ("refused: window freed", self.refused),
            ("refused: bad argument", self.bad),
            ("frees that waited for bytes", self.frees_waited),
            ("bytes held back", self.held),
            ("signals added as a lane died", self.strikes),
            ("connections that failed", self.failed),
            ("fault: delay", network.delayed),
            ("fault: reorder", network.reordered),
            ("fault: again", network.agains),
            ("fault: error", network.errors),
            ("fault: rail death", network.deaths),
            ("fault: late completion", network.late_completions),
            ("fault: ghost write", network.ghosts),
            ("lane: failed", self.lanes.failures),
            ("lane: came up", self.lanes.joins),
            ("lane: stripes moved", self.lanes.moved),
            ("lane: sends sent again", self.lanes.resends),
            ("lane: control moved", self.lanes.control_moves),
        ]
    }
}
