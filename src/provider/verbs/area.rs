//! Memory that the device reads and writes for a peer: receive cells, staging, a place for answers.

use crate::fabric::HEAD_BYTES;
use crate::memory::{Errno, Reserve};

/// Receives of one peer. Each is a bit of a word.
pub const RECEIVES: usize = 64;
/// Those of them that may wait to be posted again, so that several are with one call of the driver:
/// the others are more than the transport's credits.
pub const LAZY: usize = 8;
/// Those that are posted or held at any time: a peer may count on so many.
pub const RECEIVES_KEPT: usize = RECEIVES - LAZY;
/// Bytes of a peer's staging: heads, payloads and lines that were copied at post, until the device
/// has done with them.
pub const STAGING_BYTES: u32 = 64 << 10;
/// A cell's payload starts here, with the head before it.
const PAYLOAD_AT: usize = 64;
/// Where the answers to adds go, which nobody reads.
const SINK_BYTES: usize = 64;
/// Parts start on pages, because registration is by page.
const PAGE: usize = 4096;

/// The reserve, cut into a part for each peer.
#[derive(Debug)]
pub struct Area {
    reserve: Reserve,
    payload_bytes_max: u32,
}

const fn cell_bytes(payload_bytes_max: u32) -> usize {
    PAYLOAD_AT + (payload_bytes_max as usize).next_multiple_of(64)
}

/// What one peer's part takes: it is pinned while the peer is open.
pub const fn part_bytes(payload_bytes_max: u32) -> usize {
    let cells = RECEIVES * cell_bytes(payload_bytes_max);
    (cells + STAGING_BYTES as usize + SINK_BYTES).next_multiple_of(PAGE)
}

impl Area {
    /// Parts for so many peers.
    pub fn create(peers_max: u32, payload_bytes_max: u32) -> Result<Area, Errno> {
        let length = peers_max as usize * part_bytes(payload_bytes_max);
        Ok(Area { reserve: Reserve::create(length)?, payload_bytes_max })
    }

    /// First byte of a peer's part.
    pub fn part(&self, peer: usize) -> *mut u8 {
        self.at(peer, 0)
    }

    fn at(&self, peer: usize, offset: usize) -> *mut u8 {
        let at = peer * part_bytes(self.payload_bytes_max) + offset;
        assert!(at < self.reserve.length());
        // SAFETY: inside the reserve, as just asserted.
        unsafe { self.reserve.start().add(at) }
    }

    /// How long a part is.
    pub fn part_bytes(&self) -> usize {
        part_bytes(self.payload_bytes_max)
    }

    /// Where a receive's head goes; its payload comes right behind it.
    pub fn head(&self, peer: usize, cell: usize) -> *mut u8 {
        assert!(cell < RECEIVES);
        let cells = cell * cell_bytes(self.payload_bytes_max);
        self.at(peer, cells + PAYLOAD_AT - HEAD_BYTES)
    }

    /// Bytes of a peer's staging from `offset` on; the caller stays inside [`STAGING_BYTES`].
    #[inline(always)]
    pub fn staging(&self, peer: usize, offset: u32) -> *mut u8 {
        assert!(offset < STAGING_BYTES);
        self.at(peer, RECEIVES * cell_bytes(self.payload_bytes_max) + offset as usize)
    }

    /// Where answers to adds go.
    pub fn sink(&self, peer: usize) -> *mut u8 {
        let cells = RECEIVES * cell_bytes(self.payload_bytes_max);
        self.at(peer, cells + STAGING_BYTES as usize)
    }

    /// Gives a closed peer's pages back.
    pub fn release(&self, peer: usize) {
        let length = self.part_bytes();
        self.reserve.release(peer * length, length);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_peer_do_not_overlap() {
        let area = Area::create(2, 1000).unwrap();
        let next = area.part(1) as usize;
        for cell in 0..RECEIVES {
            let head = area.head(0, cell) as usize;
            let end = head + HEAD_BYTES + 1000;
            let after = match cell + 1 {
                RECEIVES => area.staging(0, 0) as usize,
                cell => area.head(0, cell) as usize,
            };
            assert!(end <= after, "cell {cell}");
            assert_eq!((head + HEAD_BYTES) % 64, 0, "payloads start on a line");
        }
        let staging = area.staging(0, 0) as usize;
        assert_eq!(staging + STAGING_BYTES as usize, area.sink(0) as usize);
        assert!(area.sink(0) as usize + SINK_BYTES <= next);
        assert_eq!(next % PAGE, 0);
    }
}
