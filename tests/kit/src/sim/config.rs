//! What a simulated network is like, and what it counts.
#![forbid(unsafe_code)]

pub use crate::random::CERTAIN;

use core::fmt;
use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::Syscalls;

/// Ports of one network at most; tests of groups use eight.
pub const PORTS_MAX: usize = 16;

/// The chance of each fault per op, in parts of [`CERTAIN`].
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Faults {
    /// It lands late by up to [`SimConfig::delay_max`].
    pub delay: u32,
    /// It may overtake others to the same peer. Without effect on an ordered rail.
    pub reorder: u32,
    /// `post` says `Again`.
    pub again: u32,
    /// It fails; half of these have had their effect nevertheless.
    pub error: u32,
    /// The connection dies right after it was accepted.
    pub rail_death: u32,
    /// Its completion comes long after its effect.
    pub late_completion: u32,
    /// If the connection dies before it lands, it lands nevertheless, after its error.
    pub ghost: u32,
}

/// What no rail may do, and some do. Told of by reports, proven by them alone.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum Breach {
    /// Nothing.
    #[default]
    None,
    /// No fence holds, as long as this lasts.
    Fences,
    /// Lines are said to be written, and are not (P2).
    Lines,
    /// Writes from memory do not land and do not end, as long as this lasts (P6).
    Writes,
}

/// The shape of a network.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SimConfig {
    /// Endpoints, up to [`PORTS_MAX`].
    pub ports: u32,
    /// Connections of one port.
    pub peers_max: u32,
    /// Receive slots of one connection's end; an immediate holds one until it is polled.
    pub recv_slots: u32,
    /// Longest payload of one send.
    pub payload_max: Bytes,
    /// Regions that may be registered.
    pub regions_max: u32,
    /// Ops under way in the whole network.
    pub flights_max: u32,
    /// Reads work.
    pub pull: bool,
    /// Ops to one peer land in the order in which they were posted.
    pub ordered: bool,
    /// Writes carry immediates.
    pub immediate: bool,
    /// The payload of a send is read at post, not when it lands.
    pub copies_at_post: bool,
    /// What ops are said to cost.
    pub syscalls: Syscalls,
    /// How long every op takes at least.
    pub latency: Span,
    /// How much longer a delayed or overtaken op takes at most.
    pub delay_max: Span,
    /// Where all chance comes from.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Faults,
}

/// What has happened in a network.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct SimCounts {
    /// Ops accepted.
    pub accepted: u64,
    /// Sends that landed.
    pub sends: u64,
    /// Writes that landed.
    pub writes: u64,
    /// Reads that landed.
    pub reads: u64,
    /// Adds that landed.
    pub adds: u64,
    /// Fences that hold.
    pub fences: u64,
    /// Bytes moved between memories.
    pub bytes: u64,
    /// Ops that ended with `Key`.
    pub key_errors: u64,
    /// Messages and immediates that found no receive slot: the user overran the credits.
    pub violations: u64,
    /// Faults: late landings.
    pub delayed: u64,
    /// Faults: ops that could be overtaken.
    pub reordered: u64,
    /// Faults: posts refused with `Again`.
    pub agains: u64,
    /// Faults: failed ops.
    pub errors: u64,
    /// Faults: dead connections.
    pub deaths: u64,
    /// Faults: completions long after their effect.
    pub late_completions: u64,
    /// Faults: writes that went on after the death of their connection.
    pub ghosts: u64,
}

impl SimCounts {
    /// Adds the counts of another network.
    pub const fn add(&mut self, other: &SimCounts) {
        self.accepted += other.accepted;
        self.sends += other.sends;
        self.writes += other.writes;
        self.reads += other.reads;
        self.adds += other.adds;
        self.fences += other.fences;
        self.bytes += other.bytes;
        self.key_errors += other.key_errors;
        self.violations += other.violations;
        self.delayed += other.delayed;
        self.reordered += other.reordered;
        self.agains += other.agains;
        self.errors += other.errors;
        self.deaths += other.deaths;
        self.late_completions += other.late_completions;
        self.ghosts += other.ghosts;
    }
}

impl fmt::Display for SimCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} accepted: {} sends, {} writes, {} reads, {} adds, {} fences, {} bytes; ",
            self.accepted, self.sends, self.writes, self.reads, self.adds, self.fences, self.bytes
        )?;
        write!(out, "{} violations, {} key errors; faults: ", self.violations, self.key_errors)?;
        write!(
            out,
            "{} delayed, {} reordered, {} again, {} errors, {} deaths, {} late, {} ghosts",
            self.delayed,
            self.reordered,
            self.agains,
            self.errors,
            self.deaths,
            self.late_completions,
            self.ghosts
        )
    }
}
