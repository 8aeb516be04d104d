//! How a target tells a writer what it has carried out: a counter and a word of refusals beside
//! the rings.
//!
//! The ops of one direction are acknowledged in the order in which their last records stand in the
//! ring, so a count says which. They are no records themselves: two full rings could never be
//! emptied if emptying one took room in the other.

use super::layout::{ACKED_AT, REFUSED_AT};
use super::ops::Outcome;
use super::peer::{Peer, Work};
use super::ring::Corrupt;
use super::word::{RELAXED, RELEASE, u32_at, u64_at};

/// Acknowledged ops that may be outstanding: one bit each in the word of refusals.
const ACKS_MAX: u32 = 64;

impl Peer {
    /// Counts one more of the peer's acknowledged ops as carried out; told by [`Peer::tell_acks`].
    pub(super) fn acknowledge(&mut self, refused: bool) {
        let bit = 1u64 << (self.acks_given % ACKS_MAX);
        let bits = if refused { self.refused_bits | bit } else { self.refused_bits & !bit };
        if bits != self.refused_bits {
            self.refused_bits = bits;
            // SAFETY: a word of our places (`open`).
            unsafe { u64_at(self.ours.add(REFUSED_AT)) }.store(bits, RELAXED);
        }
        self.acks_given = self.acks_given.wrapping_add(1);
        self.acks_unpublished = true;
    }

    /// Publishes what [`Peer::acknowledge`] counted, and that the ring was read.
    pub(super) fn tell_acks(&mut self, told_position: bool) {
        if self.acks_unpublished {
            self.acks_unpublished = false;
            // SAFETY: a word of our places (`open`).
            // release: [acked], the ops took effect and their refusals are written
            unsafe { u32_at(self.ours.add(ACKED_AT)) }.store(self.acks_given, RELEASE);
            self.bell_due = true;
        }
        self.bell_due |= told_position;
    }

    /// Whether one more acknowledged op may go out.
    pub(super) fn may_await_ack(&self) -> bool {
        self.acks_posted.wrapping_sub(self.acks_seen) < ACKS_MAX
    }

    /// Ends what the peer has counted as carried out or refused, but nothing that a thread still
    /// reads, whatever the peer says.
    pub(super) fn take_acks(&mut self, work: &mut Work) -> Result<bool, Corrupt> {
        if self.acks.is_empty() {
            return Ok(false);
        }
        // acquire: pairs with [acked]
        let acked = self.theirs.acquire_u32(ACKED_AT);
        let news = acked.wrapping_sub(self.acks_seen);
        if news > self.acks_posted.wrapping_sub(self.acks_seen) {
            return Err(Corrupt);
        }
        let refused = if news == 0 { 0 } else { self.theirs.load_u64(REFUSED_AT) };
        let before = self.acks_seen;
        while self.acks_seen != acked && !work.is_read(self.index, self.acks_seen) {
            let index = work.ops.take_first(&mut self.acks).ok_or(Corrupt)?;
            let bit = refused >> (self.acks_seen % ACKS_MAX) & 1;
            work.finish(index, if bit == 1 { Outcome::Key } else { Outcome::Success }, 0);
            self.acks_seen = self.acks_seen.wrapping_add(1);
        }
        Ok(self.acks_seen != before)
    }
}
