//! Peers whose devices acknowledge nothing.
//!
//! The device notices a path that loses all packets after its last retry: half a minute by default.
//! [`Config::silence_max`](super::Config::silence_max) may be shorter. A peer that was sent
//! something ends when nothing of that completes for so long.
//!
//! Any completion counts, however long it took. The peer's device makes it, so a peer whose program
//! is stopped stays. Looks are counted, not time: time in which this process did not look ends no
//! peer.

use crate::base::units::{Instant, Span};

/// Looks in the time that is too long.
const LOOKS: u8 = 8;

/// When peers are looked at.
#[derive(Copy, Clone, Debug)]
pub(super) struct Silence {
    /// From one look to the next; 0: nobody looks.
    every: Span,
    last: Instant,
    /// The next poll looks.
    is_due: bool,
}

impl Silence {
    pub const fn new(most: Span) -> Silence {
        Silence { every: Span(most.0.div_ceil(LOOKS as u64)), last: Instant(0), is_due: false }
    }

    /// Whether this poll looks.
    #[inline]
    pub fn take_due(&mut self, now: Instant) -> bool {
        let is_due = core::mem::take(&mut self.is_due);
        if is_due {
            self.last = now;
        }
        is_due
    }

    /// Called now and then.
    pub fn tick(&mut self, now: Instant) {
        self.is_due |= self.every.0 != 0 && now.since(self.last) >= self.every;
    }
}

/// What was seen of one peer.
#[derive(Copy, Clone, Default, Debug)]
pub struct Looks {
    /// What had ended at the last look, and looks since at which no more had.
    looked_at: u32,
    looks: u8,
    /// Whether its device has been heard since that was asked.
    pub heard: bool,
}

impl Looks {
    /// One look, at how many sends have ended and whether some have not; whether it was the last at
    /// a peer of which nothing completes.
    pub fn is_silent(&mut self, ended: u32, is_undelivered: bool) -> bool {
        if !is_undelivered || self.looked_at != ended {
            (self.looked_at, self.looks) = (ended, 0);
            return false;
        }
        self.looks += 1;
        // the first may have been right behind the post
        self.looks > LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_ends_when_nothing_completes_for_as_many_looks_in_a_row() {
        let mut peer = Looks::default();
        let looks = |peer: &mut Looks, ended| (1..).find(|_| peer.is_silent(ended, true)).unwrap();
        assert!((0..100).all(|_| !peer.is_silent(0, false)), "nothing was sent");
        assert_eq!(looks(&mut peer, 0), 9);
        peer.looks = 0;
        for ended in [1, 0, 1] {
            assert!((0..8).all(|_| !peer.is_silent(1 - ended, true)));
            assert!(!peer.is_silent(ended, true), "something completed");
        }
        assert_eq!(looks(&mut peer, 1), 9);
        assert!(!peer.is_silent(2, false) && peer.looks == 0);
    }

    #[test]
    fn nobody_looks_where_no_time_is_too_long() {
        let mut silence = Silence::new(Span(0));
        silence.tick(Instant(u64::MAX));
        assert!(!silence.is_due);
        let mut silence = Silence::new(Span::millis(80));
        silence.tick(Instant(9_999_999));
        assert!(!silence.is_due);
        silence.tick(Instant(10_000_000));
        assert!(silence.is_due);
    }
}
