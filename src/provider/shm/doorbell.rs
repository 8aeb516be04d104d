//! Waking a peer that sleeps, and making sure before one's own sleep that nothing was missed.

use super::layout::{ACKED_AT, ARMED_AT, LEFT_NOT};
use super::peer::{Peer, State};
use super::word::{FULL, RELAXED, compiler_fence, fence, u32_at};
use crate::memory::wake;
use core::sync::atomic::{AtomicU32, Ordering};

/// How a peer is woken.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bell {
    /// Address of the word that says whether it sleeps.
    armed: u64,
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
    // SAFETY: the word lies in the rings, which stay until the peer is closed (`Peer::bell`).
    let armed = unsafe { u32_at(bell.armed as *mut u8) };
    if armed.load(RELAXED) != 0 {
        wake_up(armed, bell.doorbell);
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
        // SAFETY: a word of their flags (`open`).
        let armed = unsafe { self.their_flags.add(ARMED_AT) };
        Bell { armed: armed as u64, doorbell: self.doorbell, use_fence: self.use_fence }
    }

    /// Asks to be woken, or not to be.
    pub(super) fn set_armed(&mut self, armed: bool) {
        // SAFETY: a word of our flags (`open`).
        // [armed]: the caller's barrier follows
        unsafe { u32_at(self.our_flags.add(ARMED_AT)) }.store(u32::from(armed), RELAXED);
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
        // SAFETY: a word of their places (`open`).
        let acked = unsafe { u32_at(self.their_places.add(ACKED_AT)) }.load(RELAXED);
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
fn wake_up(armed: &AtomicU32, doorbell: i32) {
    // Of several that find it armed one rings.
    if armed.swap(0, Ordering::AcqRel) != 0 && doorbell >= 0 {
        wake::ring(doorbell);
    }
}
