//! Messages that are taken out of a ring as they come, into memory of the receiver's own.
//!
//! A ring gives its space back in order: one message that stays in it, because nobody receives it
//! yet, holds up all behind it in the end. On a connection of one lane that is its sender's
//! business. A ring that is one of several lanes must not be held up: the word of how another lane
//! ended comes through it, and a receive may wait for that word.

use crate::fabric::RecvSlot;
use crate::memory::{Errno, Reserve};

/// Messages of one peer that may be held here. What finds no room stays in the ring.
pub const SLOTS: usize = 64;
/// Longest message that is taken.
pub const CELL_BYTES: usize = 2048;
/// The part of a peer before its cells: a word with a bit for each that is held. It shares a page
/// with the first cell, which is all that a peer with one message at a time uses.
const HEAD_BYTES: usize = 64;
/// Address space of one peer, in whole pages.
pub const PEER_RESERVE_BYTES: usize = (HEAD_BYTES + SLOTS * CELL_BYTES).next_multiple_of(4096);
/// Says in a slot's number that it is one of these: no payload in a ring is so long.
const MARK: u64 = 1 << 31;

/// The cells of all peers.
#[derive(Debug)]
pub struct Taken {
    reserve: Reserve,
}

/// Where a slot's message lies: its cell, and how long it is.
fn parts(slot: RecvSlot) -> (usize, usize) {
    ((slot.0 >> 32) as usize, (slot.0 & (MARK - 1)) as usize)
}

impl Taken {
    /// Room for so many peers, which becomes memory as it is used.
    pub fn create(peers_max: u32) -> Result<Taken, Errno> {
        let reserve =
            Reserve::create((peers_max as usize * PEER_RESERVE_BYTES).max(PEER_RESERVE_BYTES))?;
        Ok(Taken { reserve })
    }

    /// Whether a slot is one of these.
    #[inline(always)]
    pub fn is(slot: RecvSlot) -> bool {
        slot.0 & MARK != 0
    }

    fn part(&self, peer: usize) -> *mut u8 {
        let at = peer * PEER_RESERVE_BYTES;
        assert!(at < self.reserve.length());
        // SAFETY: inside the reserve (asserted), which is cut into whole parts.
        unsafe { self.reserve.start().add(at) }
    }

    fn held(&mut self, peer: usize) -> &mut u64 {
        // SAFETY: the first word of a part, aligned to a page; zero at first, and reached through
        // this function alone.
        unsafe { &mut *self.part(peer).cast::<u64>() }
    }

    fn cell(&self, peer: usize, cell: usize) -> *mut u8 {
        assert!(cell < SLOTS);
        // SAFETY: inside the peer's part.
        unsafe { self.part(peer).add(HEAD_BYTES + cell * CELL_BYTES) }
    }

    /// A slot for a message of a peer, and where its bytes go; `None`: there is no room for it.
    pub fn acquire(&mut self, peer: usize, length: usize) -> Option<(RecvSlot, *mut u8)> {
        let held = self.held(peer);
        let cell = held.trailing_ones() as usize;
        if cell >= SLOTS || length > CELL_BYTES {
            return None;
        }
        *held |= 1 << cell;
        Some((RecvSlot((cell as u64) << 32 | MARK | length as u64), self.cell(peer, cell)))
    }

    /// The bytes of a message that is held, from `offset` on. *Panics* when the slot is not held,
    /// or there are fewer than `length`.
    pub fn bytes(&self, peer: usize, slot: RecvSlot, offset: u64, length: usize) -> *const u8 {
        let (cell, whole) = parts(slot);
        // SAFETY: the part's first word, which changes through `held` alone.
        let held = unsafe { self.part(peer).cast::<u64>().read() };
        assert!(cell < SLOTS && held >> cell & 1 == 1, "slot {slot:?} is not held");
        assert!(offset <= whole as u64 && length as u64 <= whole as u64 - offset);
        // SAFETY: inside the cell (asserted).
        unsafe { self.cell(peer, cell).add(offset as usize) }
    }

    /// Gives a slot back. *Panics* when it is not held.
    pub fn release(&mut self, peer: usize, slot: RecvSlot) {
        let (cell, _) = parts(slot);
        let held = self.held(peer);
        assert!(cell < SLOTS && *held >> cell & 1 == 1, "slot {slot:?} is not held");
        *held &= !(1 << cell);
    }

    /// Gives all of a peer's back, and its memory.
    pub fn discard(&mut self, peer: usize) {
        self.reserve.release(peer * PEER_RESERVE_BYTES, PEER_RESERVE_BYTES);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {

    use super::*;

    #[test]
    fn slots_are_taken_held_and_given_back_per_peer() {
        let mut taken = Taken::create(2).unwrap();
        let (first, at) = taken.acquire(1, 5).unwrap();
        // SAFETY: a cell of our own.
        unsafe { at.copy_from(b"hello".as_ptr(), 5) };
        let mut slots = std::vec![first];
        while let Some((slot, _)) = taken.acquire(1, CELL_BYTES) {
            slots.push(slot);
        }
        assert_eq!(slots.len(), SLOTS);
        assert!(slots.iter().all(|slot| Taken::is(*slot)));
        assert!(taken.acquire(0, 0).is_some(), "peers have cells of their own");
        assert!(taken.acquire(0, CELL_BYTES + 1).is_none());
        // SAFETY: inside the message, as `bytes` has checked.
        let byte = unsafe { taken.bytes(1, first, 4, 1).read() };
        assert_eq!(byte, b'o');
        taken.release(1, slots[7]);
        assert_eq!(taken.acquire(1, 0).map(|(slot, _)| slot.0 >> 32), Some(7));
        taken.discard(1);
        assert_eq!(taken.acquire(1, 0).map(|(slot, _)| slot.0 >> 32), Some(0));
    }

    #[test]
    #[should_panic = "is not held"]
    fn slot_that_was_given_back_is_not_read() {
        let mut taken = Taken::create(1).unwrap();
        let (slot, _) = taken.acquire(0, 1).unwrap();
        taken.release(0, slot);
        taken.bytes(0, slot, 0, 1);
    }
}
