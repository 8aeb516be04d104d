//! Peers whose devices acknowledge nothing.
//!
//! The device notices a path that loses all packets after its last retry: half a minute by default.
//! [`Config::silence_max`](super::Config::silence_max) may be shorter. A peer that was sent
//! something ends when nothing of that completes for so long.
//!
//! Any completion counts, however long it took. The peer's device makes it, so a peer whose program
//! is stopped stays. Looks are counted, not time: time in which this process did not look ends no
//! peer.

use super::peer::Peer;
use super::rail::Verbs;
use super::report::{ErrorReport, SILENT};
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::DownCause;

/// Looks in the time that is too long.
const LOOKS: u8 = 8;

/// When peers are looked at.
#[derive(Copy, Clone, Debug)]
pub(super) struct Silence {
    /// From one look to the next; 0: nobody looks.
    every: Span,
    last: Instant,
    /// The next poll looks.
    pub is_due: bool,
}

impl Silence {
    pub const fn new(most: Span) -> Silence {
        Silence { every: Span(most.0.div_ceil(LOOKS as u64)), last: Instant(0), is_due: false }
    }

    /// Called now and then.
    pub fn tick(&mut self, now: Instant) {
        self.is_due |= self.every.0 != 0 && now.since(self.last) >= self.every;
    }
}

impl Peer {
    /// One look; whether it was the last at a peer of which nothing completes.
    fn is_silent(&mut self) -> bool {
        if !self.is_undelivered() || self.looked_at != self.ended {
            (self.looked_at, self.looks) = (self.ended, 0);
            return false;
        }
        self.looks += 1;
        // the first may have been right behind the post
        self.looks > LOOKS
    }
}

impl Verbs<'_> {
    /// Looks at all peers, behind a poll that has taken every completion there was.
    #[cold]
    pub(super) fn silence_look(&mut self) {
        (self.silence.is_due, self.silence.last) = (false, self.now);
        for index in 0..self.peers.len() {
            let record = &mut self.peers[index];
            if !record.takes_ops() {
                continue;
            }
            if record.is_silent() {
                let (status, vendor, was_send) = (SILENT, 0, true);
                let (local, remote) = (self.gid, record.gid);
                let report = ErrorReport { status, vendor, was_send, local, remote };
                record.report.get_or_insert(report);
                self.end(index, DownCause::Broken(libc::ETIMEDOUT));
            } else {
                // of what nobody waits for nothing would be heard
                self.ask(index);
            }
        }
    }
}

/// Whether a peer's device is there, for who hears nothing of the peer otherwise.
impl Verbs<'_> {
    /// Posts what a peer's device acknowledges, unless that is under way; `false`: it takes no ops.
    #[cold]
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        let Some(record) = self.peers.get_mut(peer.as_usize()).filter(|it| it.takes_ops()) else {
            return false;
        };
        record.heard = false;
        self.ask_anyway(peer.as_usize());
        true
    }

    /// Whether something has come of it since, or was acknowledged; `None`: it takes no ops.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let record = self.peers.get(peer.as_usize()).filter(|it| it.takes_ops())?;
        Some(record.heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_ends_when_nothing_completes_for_as_many_looks_in_a_row() {
        let mut peer = Peer::closed(0, 0, false);
        let looks = |peer: &mut Peer| (1..).find(|_| peer.is_silent()).unwrap();
        assert!((0..100).all(|_| !peer.is_silent()), "nothing was sent");
        peer.next = 2;
        assert_eq!(looks(&mut peer), 9);
        peer.looks = 0;
        for _ in 0..3 {
            assert!((0..8).all(|_| !peer.is_silent()));
            peer.ended = 1 - peer.ended;
            assert!(!peer.is_silent(), "something completed");
        }
        assert_eq!(looks(&mut peer), 9);
        peer.ended = peer.next;
        assert!(!peer.is_silent() && peer.looks == 0);
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
