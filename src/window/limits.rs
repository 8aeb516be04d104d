//! How much of everything a group has, and what that takes in bytes.
#![forbid(unsafe_code)]

use super::outbox::FRAMES;
use crate::wire::one_sided::FRAME_BYTES;

/// Most ranks of a group.
pub const RANKS_MAX: u32 = 4096;
/// Most windows of a group at a time.
pub const WINDOWS_MAX: u32 = 1024;
/// Most signals, counters or barriers of one window.
pub const IDS_MAX: u32 = 4096;

/// The capacities of a group. Each rank may have its own, but for the numbers of ranks and windows.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Ranks of the group, 1 to [`RANKS_MAX`].
    pub ranks: u32,
    /// Windows at a time, 1 to [`WINDOWS_MAX`].
    pub windows_max: u32,
    /// Signals of each window, 0 to [`IDS_MAX`].
    pub signals_max: u32,
    /// Counters of each window, likewise.
    pub counters_max: u32,
    /// Barriers of each window, likewise.
    pub barriers_max: u32,
}

/// A limit is out of its range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct BadLimits;

impl Limits {
    /// Refuses what is out of range.
    pub const fn check(&self) -> Result<(), BadLimits> {
        let are_ids = self.signals_max <= IDS_MAX
            && self.counters_max <= IDS_MAX
            && self.barriers_max <= IDS_MAX;
        let is_some = self.ranks != 0 && self.windows_max != 0;
        if is_some && are_ids && self.ranks <= RANKS_MAX && self.windows_max <= WINDOWS_MAX {
            Ok(())
        } else {
            Err(BadLimits)
        }
    }

    /// Bytes of frames that a group needs, to and from each rank. They lie in registered memory.
    pub const fn frames_bytes(&self) -> usize {
        self.ranks as usize * frames_bytes_each()
    }

    /// Words of signals, or of what has come to barriers: one for each rank.
    pub(super) const fn words(&self, ids: u32) -> usize {
        self.windows_max as usize * ids as usize * self.ranks as usize
    }
}

/// Bytes of the frames to and from one rank, half of them each way.
pub const fn frames_bytes_each() -> usize {
    2 * FRAMES * FRAME_BYTES
}
