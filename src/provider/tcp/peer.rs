//! One peer: its state, and its receive slots.

use super::area::{Area, LONG_CELLS, SHORT_BYTES_MAX, SLOTS, Slot};
use super::aside::Aside;
use crate::base::carve::Zeroable;
use crate::base::units::Instant;
use crate::fabric::DownCause;

/// How far a peer's life has gone.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum State {
    /// Not in use.
    #[default]
    Closed = 0,
    /// In use.
    Open = 1,
    /// Nothing goes out any more; what had come is reported, then the end.
    Ending = 2,
    /// The end was reported.
    Down = 3,
}

/// The record of one peer. Zeroed: closed.
#[derive(Debug)]
#[repr(C)]
pub struct Peer {
    pub state: State,
    /// Whether a fence was posted: nothing is received any more.
    pub is_fenced: bool,
    /// Whether `until` is set.
    pub has_until: bool,
    /// Whether a stream ended without a goodbye: the side band may know better why.
    pub is_unsure: bool,
    /// Whether it has just begun to end.
    pub is_fresh: bool,
    /// Whether it is one of several ways to one process.
    pub is_lane: bool,
    /// Why it ends: see [`Peer::cause`].
    cause: u8,
    /// The system's code of that.
    pub code: i32,
    /// Ops accepted and not reported.
    pub in_flight: u32,
    /// Streams in use.
    pub streams: u32,
    /// Bit `i`: slot `i` is held.
    pub held: u64,
    /// Bit `i`: a slot that is held has long cell `i`.
    pub long_held: u16,
    /// Bit `i`: the payload of slot `i` lies in the scratch buffer.
    pub in_scratch: u64,
    /// When the end is reported although more might come.
    pub until: Instant,
    /// What copy threads have of it.
    pub aside: Aside,
}

// SAFETY: integers, and enums with a zero value: a closed peer.
unsafe impl Zeroable for Peer {}

impl Peer {
    /// A peer that was just opened. `held`: slots of its last use that are held still, and their
    /// long cells.
    pub fn opened(streams: u32, aside: Aside, (held, long_held): (u64, u16)) -> Peer {
        Peer { state: State::Open, streams, aside, held, long_held, ..Peer::zeroed() }
    }

    /// Whether ops other than fences are accepted.
    #[inline]
    pub fn takes_ops(&self) -> bool {
        self.state == State::Open && !self.is_fenced
    }

    /// Begins to end, once.
    pub fn end(&mut self, cause: DownCause, code: i32) {
        self.state = State::Ending;
        self.is_fresh = true;
        self.code = code;
        self.cause = match cause {
            DownCause::Closed => 0,
            DownCause::Died => 1,
            DownCause::Failed => 2,
            DownCause::Broken(broken) => {
                self.code = broken;
                3
            }
            DownCause::Silent => 4,
            DownCause::Unheard => 5,
            DownCause::Severed => 6,
        };
    }

    /// Why it ends.
    pub fn cause(&self) -> DownCause {
        match self.cause {
            0 => DownCause::Closed,
            1 => DownCause::Died,
            2 => DownCause::Failed,
            4 => DownCause::Silent,
            5 => DownCause::Unheard,
            6 => DownCause::Severed,
            _ => DownCause::Broken(self.code),
        }
    }

    /// Whether one more payload of `length` bytes may be held, as far as its cell goes.
    #[inline]
    pub fn has_cell(&self, length: u32) -> bool {
        length <= SHORT_BYTES_MAX || self.long_held.trailing_ones() < LONG_CELLS as u32
    }

    /// Takes a receive slot for a payload of `length` bytes, for which there is a cell. `None`: the
    /// peer has sent more messages than there are slots.
    #[inline]
    pub fn slot_acquire(&mut self, area: &Area, peer: usize, length: u32) -> Option<u32> {
        let slot = (!self.held).trailing_zeros();
        if slot as usize >= SLOTS {
            return None;
        }
        self.held |= 1 << slot;
        let mut long = 0;
        if length > SHORT_BYTES_MAX {
            let free = self.long_held.trailing_ones();
            self.long_held |= 1 << free;
            long = free + 1;
        }
        let address = area.cell(peer, slot as usize, long) as u64;
        let record = area.slot(peer, slot as usize);
        // SAFETY: the record is this slot's alone, and inside the reserve.
        unsafe { (*record).address = address };
        // SAFETY: as above.
        unsafe { (*record).length = length };
        // SAFETY: as above.
        unsafe { (*record).long = long };
        Some(slot)
    }

    /// Gives a held slot back. *Panics* when it is not held.
    #[inline]
    pub fn slot_release(&mut self, area: &Area, peer: usize, slot: u64) {
        let bit = 1u64 << (slot & 63);
        assert!(slot < SLOTS as u64 && self.held & bit != 0, "a receive slot that is held");
        self.held &= !bit;
        self.in_scratch &= !bit;
        if self.long_held != 0 {
            // SAFETY: inside the reserve, and written when the slot was acquired.
            let long = unsafe { (*area.slot(peer, slot as usize)).long };
            self.long_held &= !long.checked_sub(1).map_or(0, |cell| 1 << cell);
        }
    }

    /// A held slot's record. *Panics* when it is not held.
    #[inline]
    pub fn slot(&self, area: &Area, peer: usize, slot: u64) -> Slot {
        assert!(slot < SLOTS as u64 && self.held & 1 << slot != 0, "a receive slot that is held");
        // SAFETY: inside the reserve, and written when it was acquired.
        unsafe { area.slot(peer, slot as usize).read() }
    }

    /// Where the payload of a held slot lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    pub fn payload(&self, area: &Area, peer: usize, slot: u64, offset: u64, length: u64) -> u64 {
        let record = self.slot(area, peer, slot);
        let whole = u64::from(record.length);
        assert!(offset <= whole && length <= whole - offset, "bytes inside the payload");
        record.address + offset
    }

    /// Moves what lies in the scratch buffer to the slots' own cells.
    #[cold]
    pub fn evacuate(&mut self, area: &Area, peer: usize) {
        while self.in_scratch != 0 {
            let slot = self.in_scratch.trailing_zeros() as usize;
            self.in_scratch &= self.in_scratch - 1;
            let record = area.slot(peer, slot);
            // SAFETY: written when the slot was acquired.
            let Slot { address: from, length, long, .. } = unsafe { record.read() };
            let cell = area.cell(peer, slot, long);
            // SAFETY: the payload lies in the scratch buffer, and fits into a cell (checked when
            // its frame was read).
            unsafe { cell.copy_from(from as *const u8, length as usize) };
            // SAFETY: as above.
            unsafe { (*record).address = cell as u64 };
        }
    }
}
