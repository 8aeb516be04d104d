//! Peers whose ops never end.
//!
//! A library may hold an op for as long as it likes: `tcp` retransmits for a quarter of an hour,
//! others for ever. [`Config::silence_max`](super::Config::silence_max) limits this. A peer that
//! was sent something ends, as on a failed op, when nothing of that ends for so long.
//!
//! - Any end of an op of this peer counts, however long the others take. An answer about a key
//!   counts.
//! - Ends of messages do not count: libraries end those when they have taken them. So a peer that
//!   was sent messages since the last question is asked again, about a key that does not exist.
//!
//! Ends say less here than a device's acknowledgements ([`verbs`](crate::provider::verbs)).
//! Software providers confirm a delivery when the peer's *program* polls. So a program that
//! computes looks like a path that loses everything. Only the side band can tell: the peer reports
//! there when its program has polled. Looks are counted, not time. A look at a silent peer counts
//! only if its program has polled since the last one ([`Libfabric::peer_polls`]). Without such
//! reports, no peer is given up.
//!
//! By default nobody is given up: the fence waits for the peer's word on that very path, and for
//! our own ops. `CROSSTIE_OFI_SILENCE_MS` changes that (`doc/decisions/0020`).

use super::message::KeyWords;
use super::peer::{Answer, AnswerState, KEYS, Peer};
use super::rail::Libfabric;
use super::report::{Complaint, ErrorReport};
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::{DownCause, RailKey};

/// Looks in the time that is too long.
const LOOKS: u8 = 8;
/// How long a library may refuse whatever is posted before somebody is told, where nobody is to be
/// given up: as long as a path may be silent by default.
const REFUSED: Span = Span::millis(6250);
/// No region has it.
const NO_KEY: RailKey = RailKey(u64::MAX);

/// When peers are looked at.
#[derive(Copy, Clone, Debug)]
pub(super) struct Silence {
    /// From one look to the next.
    every: Span,
    /// Whether who is silent is given up; if not, of whom the library refuses every post is told.
    gives_up: bool,
    last: Instant,
    /// Whether there may be peers of which is to be known whether their programs poll.
    has_doubts: bool,
}

impl Silence {
    pub const fn new(most: Span) -> Silence {
        let gives_up = most.0 != 0;
        let most = if gives_up { most } else { REFUSED };
        let every = Span(most.0.div_ceil(LOOKS as u64));
        Silence { every, gives_up, last: Instant(0), has_doubts: false }
    }

    /// Where nothing ends for so long, that is too long.
    fn most(&self) -> Span {
        Span(self.every.0 * u64::from(LOOKS))
    }

    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now.since(self.last) >= self.every
    }
}

/// What looks at a peer have seen.
#[derive(Copy, Clone, Debug)]
pub struct Watched {
    /// How much had ended.
    ended: u32,
    /// The look after which that was so, and those that count in a row behind it.
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
    /// A count that changes with whatever the library accepts for it, or ends.
    fn moves(&self) -> (u32, u64) {
        (self.sent_count.wrapping_add(self.ops.ended), self.ops.used)
    }

    /// The library has refused a post, or there was no place for it. What was accepted since it did
    /// so first, or has ended, shows in counts.
    #[cold]
    pub fn was_refused(&mut self, now: Instant) {
        let count = self.moves();
        if self.refusals.again_since.is_none() || self.refusals.again_count != count {
            (self.refusals.again_since, self.refusals.again_count, self.refusals.again_told) =
                (Some(now), count, false);
        }
        self.refusals.again_at = now;
    }

    /// Whether every post was refused since then, and one lately.
    fn is_refused(&self, since: Instant, now: Instant, lately: Span) -> bool {
        let is_so = self.refusals.again_count == self.moves()
            && now.since(self.refusals.again_at) <= lately;
        is_so && self.refusals.again_since.is_some_and(|first| first <= since)
    }

    /// One look; for how long nothing has ended, if that is too long. Who is owed nothing counts
    /// where all that was posted lately was refused.
    fn look(&mut self, now: Instant, silence: &Silence) -> Option<Span> {
        // looks come when a poll does
        let lately = Span(2 * silence.every.0);
        let owes = self.is_owing() && silence.gives_up;
        if !owes && !self.is_refused(now, now, lately) {
            self.watched = Watched::NOTHING;
            return None;
        }
        let most = silence.most();
        let stands = owes || self.is_refused(self.watched.since, now, lately);
        let (ended, watched) = (self.ops.ended, &mut self.watched);
        if watched.looks == 0 || watched.ended != ended || !stands {
            // this one may be right behind the post
            *watched = Watched { ended, looks: 1, since: now, ..Watched::NOTHING };
            return None;
        }
        watched.looks = watched.looks.saturating_add(u8::from(watched.polls));
        (watched.polls, watched.is_doubted) = (false, true);
        let silent = now.since(watched.since);
        (watched.looks >= LOOKS && silent >= most).then_some(silent)
    }

    /// Whether messages have been sent since it was asked something: their ends say nothing.
    fn wants_question(&self) -> bool {
        self.sent_count != self.keys.asked_after && self.keys.asked == KeyWords::default()
    }

    /// What it was sent so far needs no question.
    fn watch_anew(&mut self) {
        (self.watched, self.keys.asked_after) = (Watched::NOTHING, self.sent_count);
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
            if !record.takes_ops() {
                record.watch_anew();
                continue;
            }
            if self.silence.gives_up && record.wants_question() {
                self.ask_anything(index);
            }
            let record = &mut self.peers[index];
            let silent = record.look(self.now, &self.silence);
            if let Some(silent) = silent.filter(|_| !self.silence.gives_up) {
                record.watched = Watched::NOTHING;
                if !core::mem::replace(&mut record.refusals.again_told, true) {
                    self.complain(index, Complaint::Refused(silent));
                }
            } else if let Some(silent) = silent {
                let report = ErrorReport { silent, ..ErrorReport::new(libc::ETIMEDOUT, 0) };
                record.report.get_or_insert(report);
                self.end(index, DownCause::Broken(libc::ETIMEDOUT));
            }
            self.silence.has_doubts |= self.peers[index].watched.is_doubted;
        }
    }

    /// A place for the answer to a question about a key that is none: one that holds no good
    /// answer.
    fn free_place(&self, index: usize) -> Option<usize> {
        let answers = &self.answers[index * KEYS..][..KEYS];
        let is_free = |it: &Answer| matches!(it.state, AnswerState::Empty | AnswerState::Gone);
        answers.iter().rposition(is_free)
    }

    /// Asks a peer about a key that is none. Where all places have good answers, messages alone
    /// show nothing, and only what touches its memory counts.
    fn ask_anything(&mut self, index: usize) {
        match self.free_place(index) {
            Some(place) => {
                self.peers[index].keys.asked_after = self.peers[index].sent_count;
                self.ask(index, NO_KEY, place as u8);
            }
            None if self.peers[index].ops.touching == 0 => self.peers[index].watch_anew(),
            None => {}
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

    /// Asks a peer something, for who hears nothing of it otherwise; `false`: it takes no ops.
    #[cold]
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        let index = peer.as_usize();
        let Some(record) = self.peers.get_mut(index).filter(|it| it.takes_ops()) else {
            return false;
        };
        (record.ops.heard_from, record.keys.has_answered) = (record.ops.ended, false);
        let answers = &self.answers[index * KEYS..][..KEYS];
        // a good answer that nothing uses can be asked for again
        let is_unused = |it: &Answer| it.state == AnswerState::Good && it.users == 0;
        let is_spare = |it: &Answer| is_unused(it) && !it.is_revoked;
        let place = self.free_place(index).or_else(|| answers.iter().rposition(is_spare));
        if let Some(place) = place {
            self.ask(index, NO_KEY, place as u8);
        }
        true
    }

    /// Whether anything has ended since that the peer has a part in; `None`: it takes no ops.
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let record = self.peers.get(peer.as_usize()).filter(|it| it.takes_ops())?;
        Some(record.ops.ended != record.ops.heard_from)
    }

    /// Whether its program has: that answers questions, where a device may end ops without it.
    pub fn has_answered(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|it| it.keys.has_answered)
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

    fn in_use() -> Peer {
        let mut peer = Peer::closed();
        peer.ops.used = 1;
        peer
    }

    /// Looks until one is the last, each so much later.
    fn looks(peer: &mut Peer, polls: impl Fn(u32) -> bool) -> Option<(u32, Span)> {
        (1..100).find_map(|look| {
            peer.watched.polls = polls(look);
            let silence = Silence::new(Span(800));
            let silent = peer.look(Instant(u64::from(look) * 100), &silence)?;
            Some((look, silent))
        })
    }

    #[test]
    fn peer_ends_when_nothing_ends_for_as_many_looks_in_a_row_although_it_polls() {
        let mut peer = Peer::closed();
        assert_eq!(looks(&mut peer, |_| true), None, "nothing was sent");
        peer.ops.used = 1;
        assert_eq!(looks(&mut peer, |_| true), Some((9, Span(800))));
        peer.watched = Watched::NOTHING;
        peer.ops.ended += 1;
        assert_eq!(looks(&mut peer, |look| look % 2 == 0), Some((14, Span(1300))));
        peer.watched = Watched::NOTHING;
        for _ in 0..3 {
            for _ in 0..7 {
                peer.watched.polls = true;
                assert_eq!(peer.look(Instant(5), &Silence::new(Span(8))), None);
            }
            peer.ops.ended += 1;
        }
        // of an earlier use of the number
        (peer.ops.left_ops, peer.watched) = (1, Watched::NOTHING);
        assert_eq!(looks(&mut peer, |_| true), None);
    }

    #[test]
    fn peer_whose_program_does_not_poll_stays() {
        let mut peer = in_use();
        assert_eq!(looks(&mut peer, |_| false), None);
        assert!(peer.watched.is_doubted, "it is to be found out");
    }

    #[test]
    fn peer_that_was_sent_messages_is_asked_something_whatever_else_it_was_sent() {
        let mut peer = Peer { sent_count: 1, ..Peer::closed() };
        assert!(peer.wants_question());
        peer.keys.asked_after = 1;
        assert!(!peer.wants_question(), "it was asked since");
        peer.sent_count = 2;
        (peer.ops.used, peer.ops.ended) = (1, 5);
        assert!(peer.wants_question());
        assert_eq!(peer.look(Instant(0), &Silence::new(Span(8))), None);
        assert_eq!(peer.look(Instant(1), &Silence::new(Span(8))), None);
        assert!(peer.wants_question(), "looks put no question");
        peer.keys.asked.key = 7;
        assert!(!peer.wants_question(), "one is on its way");
    }

    #[test]
    fn question_without_an_answer_is_something_that_was_sent() {
        let mut peer = Peer::closed();
        peer.keys.asked.key = 7;
        assert!(looks(&mut peer, |_| true).is_some());
    }

    /// Whatever is posted is refused at each look, from the first on.
    fn refused(peer: &mut Peer, silence: Span, accepts: impl Fn(u32) -> bool) -> Option<u32> {
        let silence = Silence::new(silence);
        (1..100).find(|look| {
            let now = Instant(u64::from(*look) * silence.every.0);
            peer.sent_count += u32::from(accepts(*look));
            peer.was_refused(now);
            peer.watched.polls = true;
            peer.look(now, &silence).is_some()
        })
    }

    /// It stood still for ever, since nothing was under way.
    #[test]
    fn peer_to_which_every_post_is_refused_is_silent() {
        for silence in [Span(800), Span(0)] {
            assert_eq!(refused(&mut Peer::closed(), silence, |_| false), Some(9));
            let mut peer = Peer::closed();
            assert_eq!(refused(&mut peer, silence, |look| look % 7 == 0), None);
            let mut peer = in_use();
            assert_eq!(refused(&mut peer, silence, |_| false), Some(9), "and something is");
        }
    }

    #[test]
    fn peer_that_was_refused_once_and_is_posted_nothing_since_is_not_silent() {
        let mut peer = Peer::closed();
        peer.was_refused(Instant(0));
        assert_eq!(looks(&mut peer, |_| true), None);
    }

    #[test]
    fn looks_come_each_eighth_of_the_time_that_is_too_long() {
        let silence = Silence::new(Span::millis(80));
        assert!(!silence.is_due(Instant(9_999_999)) && silence.is_due(Instant(10_000_000)));
        let nobody = Silence::new(Span(0));
        assert!(!nobody.gives_up && nobody.is_due(Instant(REFUSED.0)));
        let mut peer = in_use();
        let look = |look: u64| peer.look(Instant(look * nobody.every.0), &nobody);
        assert_eq!((1..100).find_map(look), None, "nothing was refused");
    }
}
