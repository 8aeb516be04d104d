//! Waking a peer that sleeps, and making sure before one's own sleep that nothing was missed.
//!
//! A sleeper stores a number that it has not stored before, and zero when it is awake. The other
//! side cannot clear it. It keeps the number for which it has rung, so that one sleep is rung for
//! once.

use super::layout::{ACKED_AT, ARMED_AT, LEFT_NOT, RUNG_AT};
use super::peer::{Peer, State};
use super::view::SharedView;
use super::word::{FULL, RELAXED, compiler_fence, fence, u64_at};
use crate::memory::wake;
use core::sync::atomic::Ordering;

/// How a peer is woken.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bell {
    /// Address of the word that says whether it sleeps: the peer's, which we only read.
    armed: u64,
    /// Address of the word that says for which sleep we have rung: ours.
    rung: u64,
    /// The eventfd, or -1.
    doorbell: i32,
    /// Order by a fence of ours.
    use_fence: bool,
}

/// Wakes a peer if it sleeps.
#[inline(always)]
pub(super) fn ring(bell: Bell) {
    if bell.use_fence {
        // [armed]: our store before our look at the flag
        fence(FULL);
    } else {
        // [armed]: the sleeper's process-wide barrier does the rest
        compiler_fence(FULL);
    }
    // SAFETY: the word lies in the peer's rings, which stay until it is closed (`Peer::bell`).
    let armed = unsafe { SharedView::new(bell.armed as *const u8, 8) }.load_u64(0);
    if armed != 0 {
        wake_up(armed, bell);
    }
}

impl Peer {
    /// Wakes the peer if it sleeps. Called after every store that it might wait for.
    #[inline(always)]
    pub(super) fn ring_bell(&mut self) {
        ring(self.bell());
    }

    /// What it takes to wake the peer, from any thread, until the peer is closed.
    #[inline(always)]
    pub(super) fn bell(&self) -> Bell {
        let armed = self.theirs.at(ARMED_AT, 8) as u64;
        let rung = self.ours.wrapping_add(RUNG_AT) as u64;
        Bell { armed, rung, doorbell: self.doorbell, use_fence: self.use_fence }
    }

    /// Asks to be woken, or not to be.
    pub(super) fn set_armed(&mut self, armed: bool) {
        self.arms += u64::from(armed);
        let number = if armed { self.arms } else { 0 };
        // SAFETY: a word of our flags (`open`).
        // [armed]: the caller's barrier follows
        unsafe { u64_at(self.ours.add(ARMED_AT)) }.store(number, RELAXED);
    }

    /// Tells the peer everything that it might wait for while we sleep.
    pub(super) fn before_sleep(&mut self) {
        if self.send_in.retire_all(self.held.base())
            | self.write_in.retire_all(self.write_in.position())
        {
            self.ring_bell();
        }
    }

    /// Whether a poll would find something to do without the peer's doing anything first.
    pub(super) fn must_stay_awake(&self) -> bool {
        if self.state == State::Draining || (self.state == State::Down && !self.reported) {
            return true;
        }
        if self.state != State::Open {
            return false;
        }
        if self.fenced {
            return self.their_left() != LEFT_NOT;
        }
        let acked = self.theirs.load_u32(ACKED_AT);
        !self.send_in.is_empty()
            || !self.write_in.is_empty()
            || self.their_left() != LEFT_NOT
            || !self.writes.is_empty()
            || !self.serves.is_empty()
            || (!self.acks.is_empty() && acked != self.acks_seen)
            || self.must_pull()
    }

    /// Whether arming needs a fence here rather than the process-wide barrier.
    pub(super) fn uses_fence(&self) -> bool {
        self.use_fence
    }
}

#[cold]
fn wake_up(armed: u64, bell: Bell) {
    // SAFETY: the word lies in our rings, which stay until the peer is closed (`Peer::bell`).
    let rung = unsafe { u64_at(bell.rung as *mut u8) };
    // Of several threads that find it armed one rings. One that is late may ring for nothing.
    if rung.load(RELAXED) != armed
        && rung.swap(armed, Ordering::AcqRel) != armed
        && bell.doorbell >= 0
    {
        wake::ring(bell.doorbell);
    }
}
