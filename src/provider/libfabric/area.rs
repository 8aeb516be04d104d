//! Memory that the library reads and writes for us: receive cells and staging.
//!
//! Each peer brings as many cells as it may have messages on their way. All peers share the cells:
//! a message may land in any of them.

use super::message::PREFIX_BYTES;
use crate::fabric::HEAD_BYTES;
use crate::memory::{Errno, Reserve};

/// Messages that one peer may have on their way, or received and not released.
pub const RECEIVES: usize = 64;
/// Cells that a peer brings: also for what rails say to each other about keys and fences, which is
/// never more than this much at a time.
pub const CELLS: usize = RECEIVES + 8;
/// Cells of an endpoint that may wait to be posted again: with them a peer still has a cell for
/// each message that it may send, and half of those for what rails say.
pub const LAZY: usize = (CELLS - RECEIVES) / 2;
/// Ops of one peer that the library may have. Each has a place in staging. Each is a bit of a word.
pub const SENDS: usize = 64;
/// Parts start on pages, because registration is by page.
const PAGE: usize = 4096;
/// Before the payload.
pub const AHEAD: usize = PREFIX_BYTES + HEAD_BYTES;

/// The reserve, cut into a part for each peer, and the buffer for flushes behind them.
#[derive(Debug)]
pub struct Area {
    reserve: Reserve,
    payload_bytes_max: u32,
}

/// Bytes of a cell, and of a place in staging.
const fn cell_bytes(payload_bytes_max: u32) -> usize {
    (AHEAD + payload_bytes_max as usize).next_multiple_of(64)
}

/// What one peer's part takes.
pub const fn part_bytes(payload_bytes_max: u32) -> usize {
    ((CELLS + SENDS) * cell_bytes(payload_bytes_max)).next_multiple_of(PAGE)
}

impl Area {
    /// Parts for so many peers.
    pub fn create(peers_max: u32, payload_bytes_max: u32) -> Result<Area, Errno> {
        let length = peers_max as usize * part_bytes(payload_bytes_max) + PAGE;
        Ok(Area { reserve: Reserve::create(length)?, payload_bytes_max })
    }

    /// A part: its first byte, and its length.
    pub fn part(&self, peer: usize) -> (u64, usize) {
        (self.at(peer, 0), part_bytes(self.payload_bytes_max))
    }

    fn at(&self, peer: usize, offset: usize) -> u64 {
        let at = peer * part_bytes(self.payload_bytes_max) + offset;
        assert!(at < self.reserve.length());
        self.reserve.start() as u64 + at as u64
    }

    /// Where reads of flushes go: a page.
    pub fn flush_buffer(&self) -> u64 {
        self.reserve.start() as u64 + (self.reserve.length() - PAGE) as u64
    }

    /// Longest message.
    pub fn message_bytes_max(&self) -> usize {
        AHEAD + self.payload_bytes_max as usize
    }

    /// Where a cell's message goes.
    #[inline]
    pub fn cell(&self, cell: usize) -> u64 {
        self.at(cell / CELLS, cell % CELLS * cell_bytes(self.payload_bytes_max))
    }

    /// The place in staging of an op.
    #[inline]
    pub fn staging(&self, op: usize) -> u64 {
        self.at(op / SENDS, (CELLS + op % SENDS) * cell_bytes(self.payload_bytes_max))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn cells_and_places_lie_side_by_side_in_their_part() {
        let area = Area::create(3, 1000).unwrap();
        let (start, length) = area.part(1);
        assert_eq!(area.cell(CELLS), start);
        let last = area.staging(2 * SENDS - 1);
        assert!(last + 1048 <= start + length as u64);
        assert_eq!(area.staging(SENDS) - area.cell(2 * CELLS - 1), 1088);
        assert_eq!(area.part(2).0, start + length as u64);
        assert_eq!(area.flush_buffer(), area.part(2).0 + length as u64);
    }
}
