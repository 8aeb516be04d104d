//! Where a peer's storage lies: one part of the reserve each, touched where it is used.

use super::Limits;
use super::out::{Out, OutSpan, SPANS_MAX};
use super::stream::{ASKED_MAX, Asked, CARRY_BYTES};
use crate::fabric::{Head, LONG_SLOTS};
use crate::memory::Reserve;
use crate::provider::notes::Notes;

/// Received messages of one peer that may be held: more than the credits of the transport.
pub const SLOTS: usize = 64;
/// Longest payload of a send.
pub const SEND_BYTES_MAX: u32 = 128 << 10;
/// Longest payload of which every slot may have one.
pub const SHORT_BYTES_MAX: u32 = 8 << 10;
/// Longer ones of one peer: those that may be held, and one that is released before a next.
pub const LONG_CELLS: usize = LONG_SLOTS as usize + 1;
/// Staged bytes of a peer's first stream: short messages, and what the kernel leaves of a long one.
const STAGING_FIRST: u32 = SEND_BYTES_MAX + (32 << 10);
/// Staged bytes of the others, which carry long writes alone: their headers and answers.
const STAGING_OTHER: u32 = 8 << 10;
/// What a stream has beside its staging: spans, and reads of the peer that wait to be answered.
const STREAM_TABLES: usize = 4096;
const ASKED_AT: usize = SPANS_MAX as usize * size_of::<OutSpan>();
/// The table of receive slots.
const SLOT_TABLE: usize = 4096;
/// The scratch buffer, and before it room for the start of a frame that came before.
pub const SCRATCH_BYTES: usize = 256 << 10;
pub const SCRATCH_AT: usize = 128;
/// The scratch buffer's part of the reserve.
const SCRATCH_PART: usize = SCRATCH_BYTES + 4096;

/// The long cells of a peer that has them.
const LONG_BYTES: usize = LONG_CELLS * SEND_BYTES_MAX as usize;

const _: () = assert!(CARRY_BYTES <= SCRATCH_AT);
const _: () = assert!(SLOTS * size_of::<Slot>() <= SLOT_TABLE);
const _: () = assert!(ASKED_AT + ASKED_MAX * size_of::<Asked>() <= STREAM_TABLES);

/// A message that was received and not released.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct Slot {
    /// Where its payload lies now: in the scratch buffer, or in the slot's own cell.
    pub address: u64,
    pub length: u32,
    /// The long cell that it has, plus one; 0: none.
    pub long: u32,
    pub head: Head,
}

/// The reserve, cut into parts; the long cells lie behind them.
#[derive(Debug)]
pub struct Area {
    reserve: Reserve,
    peers: usize,
    streams: usize,
    lanes: usize,
    /// What other rails' ends have said.
    pub(super) notes: Notes,
}

/// Address space of one peer with so many streams, and its long cells; what is used of it becomes
/// memory.
pub const fn peer_reserve_bytes(streams: usize) -> usize {
    part_bytes(streams) + LONG_BYTES
}

const fn part_bytes(streams: usize) -> usize {
    let staging = STAGING_FIRST as usize + (streams - 1) * STAGING_OTHER as usize;
    staging + streams * STREAM_TABLES + SLOT_TABLE + SLOTS * SHORT_BYTES_MAX as usize
}

impl Area {
    /// Parts for all peers.
    pub fn create(limits: &Limits) -> Result<Area, i32> {
        let Limits { peers_max, streams, lanes, .. } = *limits;
        let (peers, streams, lanes) = (peers_max as usize, streams as usize, lanes as usize);
        let parts = SCRATCH_PART + peers * part_bytes(streams);
        let length = parts + peers.div_ceil(lanes) * LONG_BYTES;
        let reserve = Reserve::create(length).map_err(|errno| errno.0)?;
        Ok(Area { reserve, peers, streams, lanes, notes: Notes::refused() })
    }

    /// Whether a peer has long cells.
    #[inline]
    pub fn has_long(&self, peer: usize) -> bool {
        peer.is_multiple_of(self.lanes)
    }

    /// First byte of the scratch buffer's room for starts of frames.
    pub fn scratch(&self) -> *mut u8 {
        self.reserve.start()
    }

    fn part(&self, peer: usize, offset: usize) -> *mut u8 {
        let at = SCRATCH_PART + peer * part_bytes(self.streams) + offset;
        assert!(at < self.reserve.length());
        // SAFETY: inside the reserve, as just asserted.
        unsafe { self.reserve.start().add(at) }
    }

    fn slots_at(&self) -> usize {
        self.streams * STREAM_TABLES
    }

    fn staging_at(&self, stream: usize) -> usize {
        let first = if stream == 0 { 0 } else { STAGING_FIRST as usize };
        let others = stream.saturating_sub(1) * STAGING_OTHER as usize;
        self.cells_at() + SLOTS * SHORT_BYTES_MAX as usize + first + others
    }

    fn cells_at(&self) -> usize {
        self.slots_at() + SLOT_TABLE
    }

    /// An empty queue of one stream of a peer. Nobody else uses it.
    pub fn out(&self, peer: usize, stream: usize) -> Out {
        let size = if stream == 0 { STAGING_FIRST } else { STAGING_OTHER };
        let staging = self.part(peer, self.staging_at(stream));
        // SAFETY: both are parts of the reserve that nothing else uses; the queue is dropped
        // before the reserve, as a record of the same rail.
        unsafe { Out::new(staging, size, self.part(peer, stream * STREAM_TABLES)) }
    }

    /// The place of one of the reads that wait.
    pub fn asked(&self, peer: usize, stream: usize, count: u32) -> *mut Asked {
        let at = count as usize % ASKED_MAX * size_of::<Asked>();
        self.part(peer, stream * STREAM_TABLES + ASKED_AT + at).cast()
    }

    /// A receive slot's record.
    pub fn slot(&self, peer: usize, slot: usize) -> *mut Slot {
        assert!(slot < SLOTS);
        self.part(peer, self.slots_at() + slot * size_of::<Slot>()).cast()
    }

    /// A receive slot's own memory, [`SHORT_BYTES_MAX`] long, or the long cell that it has,
    /// counted from one, [`SEND_BYTES_MAX`] long.
    pub fn cell(&self, peer: usize, slot: usize, long: u32) -> *mut u8 {
        assert!(slot < SLOTS);
        match (long as usize).checked_sub(1) {
            None => self.part(peer, self.cells_at() + slot * SHORT_BYTES_MAX as usize),
            Some(cell) => {
                assert!(cell < LONG_CELLS && self.has_long(peer));
                let at = self.long_at(peer) + cell * SEND_BYTES_MAX as usize;
                assert!(at < self.reserve.length());
                // SAFETY: inside the reserve, as just asserted.
                unsafe { self.reserve.start().add(at) }
            }
        }
    }

    /// Where the long cells of a peer lie that has them.
    fn long_at(&self, peer: usize) -> usize {
        SCRATCH_PART + self.peers * part_bytes(self.streams) + peer / self.lanes * LONG_BYTES
    }

    /// Gives a closed peer's pages back.
    pub fn release(&self, peer: usize) {
        let length = part_bytes(self.streams);
        self.reserve.release(SCRATCH_PART + peer * length, length);
        if self.has_long(peer) {
            self.reserve.release(self.long_at(peer), LONG_BYTES);
        }
    }
}
