//! Peers of whose ops nothing ends.
//!
//! A library may hold an op for as long as it likes: `tcp` sends again for a quarter of an hour,
//! others for ever. Whoever opened the rail says how long is too long
//! ([`Config::silence_max`](super::Config::silence_max)): a peer that was sent something ends as on
//! a failed op when nothing of that ends for so long. Any end counts, however long the others take,
//! and so does an answer about a key.
//!
//! Ends say less than a device's acknowledgements do ([`verbs`](crate::provider::verbs)).
//! Providers of software confirm a delivery when the peer's *program* polls, so that one which
//! computes, or is stopped, looks like a path that loses everything. Nothing on the rail tells the
//! two apart; the side band does, to whom the peer says when its program has polled. So looks are
//! counted, as there, but a look at a silent peer counts only if its program has polled since the
//! last one ([`Libfabric::peer_polls`]); of whom that is not known nobody is given up.
//!
//! How safe it is to give a peer up depends on its fence. Where it has an endpoint of its own, that
//! is our act, and costs nobody else anything. On a shared endpoint it waits for the word of the
//! peer, on that very path, and for our own ops, which the library may keep. So who opens rails
//! looks by default where endpoints are connected, and on shared ones if it is asked to
//! (`CROSSTIE_OFI_SILENCE_MS`, `doc/decisions/0020`).

use super::link::Phase;
use super::peer::Peer;
use super::rail::Libfabric;
use super::report::ErrorReport;
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
    /// Whether there may be peers of which is to be known whether their programs poll.
    has_doubts: bool,
}

impl Silence {
    pub const fn new(most: Span) -> Silence {
        let every = Span(most.0.div_ceil(LOOKS as u64));
        Silence { every, last: Instant(0), has_doubts: false }
    }

    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.every.0 != 0 && now.since(self.last) >= self.every
    }
}

/// What looks at a peer have seen.
#[derive(Copy, Clone, Debug)]
pub struct Watched {
    /// How many ops had ended.
    ended: u32,
    /// Looks in a row at which that was so.
    looks: u8,
    /// Whether its program has polled since the last one.
    polls: bool,
    /// Whether somebody is to find that out.
    is_doubted: bool,
    /// When the first was.
    since: Instant,
}

impl Watched {
    /// None yet.
    pub const NOTHING: Watched =
        Watched { ended: 0, looks: 0, polls: false, is_doubted: false, since: Instant(0) };
}

impl Peer {
    /// One look; for how long nothing has ended, if it was the last at a silent peer.
    fn look(&mut self, now: Instant) -> Option<Span> {
        if !self.is_owing() {
            self.watched = Watched::NOTHING;
            return None;
        }
        let watched = &mut self.watched;
        if watched.looks == 0 || watched.ended != self.ended {
            *watched = Watched { ended: self.ended, since: now, ..Watched::NOTHING };
        }
        // the first may be right behind the post
        watched.looks += u8::from(watched.looks == 0 || watched.polls);
        (watched.polls, watched.is_doubted) = (false, true);
        (watched.looks > LOOKS).then(|| now.since(watched.since))
    }
}

impl Libfabric<'_> {
    /// Looks at all peers, behind a poll that has taken what had ended.
    #[cold]
    pub(super) fn silence_look(&mut self) {
        self.silence.last = self.now;
        self.silence.has_doubts = false;
        for index in 0..self.peers.len() {
            let record = &mut self.peers[index];
            let stands = !self.traits.connected || self.links[index].phase == Phase::Up;
            if !record.takes_ops() || !stands {
                record.watched = Watched::NOTHING;
                continue;
            }
            if let Some(silent) = record.look(self.now) {
                let report = ErrorReport { silent, ..ErrorReport::new(libc::ETIMEDOUT, 0) };
                record.report.get_or_insert(report);
                self.end(index, DownCause::Broken(libc::ETIMEDOUT));
            }
            self.silence.has_doubts |= self.peers[index].watched.is_doubted;
        }
    }

    /// Whether [`Libfabric::doubted`] may have a peer to name.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        self.silence.has_doubts
    }

    /// The next peer of whose ops nothing ends, and within what time its program must have polled
    /// for [`Libfabric::peer_polls`] to be said of it. Each is named once between two looks.
    #[cold]
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        let index = self.peers.iter().position(|peer| peer.watched.is_doubted);
        let Some(index) = index else {
            self.silence.has_doubts = false;
            return None;
        };
        self.peers[index].watched.is_doubted = false;
        // the answer to one look's question is there at the next
        Some((PeerIndex(index as u32), Span(2 * self.silence.every.0)))
    }

    /// The program of a peer has polled within that time: what it has not confirmed is lost, or
    /// late.
    pub fn peer_polls(&mut self, peer: PeerIndex) {
        if let Some(record) = self.peers.get_mut(peer.as_usize()) {
            record.watched.polls = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until one is the last, each so much later.
    fn looks(peer: &mut Peer, polls: impl Fn(u32) -> bool) -> Option<(u32, Span)> {
        (1..100).find_map(|look| {
            peer.watched.polls = polls(look);
            let silent = peer.look(Instant(u64::from(look) * 100))?;
            Some((look, silent))
        })
    }

    #[test]
    fn peer_ends_when_nothing_ends_for_as_many_looks_in_a_row_although_it_polls() {
        let mut peer = Peer::CLOSED;
        assert_eq!(looks(&mut peer, |_| true), None, "nothing was sent");
        peer.used = 1;
        assert_eq!(looks(&mut peer, |_| true), Some((9, Span(800))));
        peer.watched = Watched::NOTHING;
        peer.ended += 1;
        assert_eq!(looks(&mut peer, |look| look % 2 == 0), Some((16, Span(1500))));
        peer.watched = Watched::NOTHING;
        for _ in 0..3 {
            for _ in 0..8 {
                peer.watched.polls = true;
                assert_eq!(peer.look(Instant(5)), None);
            }
            peer.ended += 1;
        }
        // of an earlier use of the number
        (peer.left_ops, peer.watched) = (1, Watched::NOTHING);
        assert_eq!(looks(&mut peer, |_| true), None);
    }

    #[test]
    fn peer_whose_program_does_not_poll_stays() {
        let mut peer = Peer { used: 1, ..Peer::CLOSED };
        assert_eq!(looks(&mut peer, |_| false), None);
        assert!(peer.watched.is_doubted, "it is to be found out");
    }

    #[test]
    fn question_without_an_answer_is_something_that_was_sent() {
        let mut peer = Peer::CLOSED;
        peer.asked.key = 7;
        assert!(looks(&mut peer, |_| true).is_some());
    }

    #[test]
    fn nobody_looks_where_no_time_is_too_long() {
        assert!(!Silence::new(Span(0)).is_due(Instant(u64::MAX)));
        let silence = Silence::new(Span::millis(80));
        assert!(!silence.is_due(Instant(9_999_999)) && silence.is_due(Instant(10_000_000)));
    }
}
