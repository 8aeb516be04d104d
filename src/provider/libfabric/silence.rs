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
//!
//! [`Libfabric::peer_polls`]: super::Libfabric::peer_polls

use super::peer::{Peer, Watched};
use super::peers::Peers;
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
pub const NO_KEY: RailKey = RailKey(u64::MAX);

/// When peers are looked at.
#[derive(Copy, Clone, Debug)]
pub struct Silence {
    /// From one look to the next.
    every: Span,
    /// Whether who is silent is given up; if not, of whom the library refuses every post is told.
    gives_up: bool,
    last: Instant,
    /// Whether there may be peers of which is to be known whether their programs poll.
    pub has_doubts: bool,
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

    /// Looks at all peers, behind a poll that has taken what had ended.
    #[cold]
    pub fn look(&mut self, peers: &mut Peers) {
        self.last = peers.now;
        self.has_doubts = false;
        for index in 0..peers.all.len() {
            let record = &mut peers.all[index];
            if !record.takes_ops() {
                record.watch_anew();
                continue;
            }
            if self.gives_up && record.wants_question() {
                ask_anything(peers, index);
            }
            let record = &mut peers.all[index];
            let silent = record.look(self.last, self);
            if let Some(silent) = silent.filter(|_| !self.gives_up) {
                record.watched = Watched::default();
                if !core::mem::replace(&mut record.refusals.again_told, true) {
                    peers.complain(index, Complaint::Refused(silent));
                }
            } else if let Some(silent) = silent {
                let report = ErrorReport { silent, ..ErrorReport::new(libc::ETIMEDOUT, 0) };
                record.report.get_or_insert(report);
                peers.end(index, DownCause::Broken(libc::ETIMEDOUT));
            }
            self.has_doubts |= peers.all[index].watched.is_doubted;
        }
    }

    /// The next peer of whose ops nothing ends: see
    /// [`Libfabric::doubted`](super::Libfabric::doubted).
    #[cold]
    pub fn doubted(&mut self, peers: &mut Peers) -> Option<(PeerIndex, Span)> {
        let mut all = peers.all.iter_mut();
        let index = all.position(|peer| core::mem::take(&mut peer.watched.is_doubted));
        self.has_doubts = index.is_some();
        // the answer to one look's question is there at the next
        index.map(|index| (PeerIndex(index as u32), Span(2 * self.every.0)))
    }
}

impl Peer {
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
            self.watched = Watched::default();
            return None;
        }
        let most = silence.most();
        let stands = owes || self.is_refused(self.watched.since, now, lately);
        let (ended, watched) = (self.ops.ended, &mut self.watched);
        if watched.looks == 0 || watched.ended != ended || !stands {
            // this one may be right behind the post
            *watched = Watched { ended, looks: 1, since: now, ..Watched::default() };
            return None;
        }
        watched.looks = watched.looks.saturating_add(u8::from(watched.polls));
        (watched.polls, watched.is_doubted) = (false, true);
        let silent = now.since(watched.since);
        (watched.looks >= LOOKS && silent >= most).then_some(silent)
    }

    /// Whether messages have been sent since it was asked something: their ends say nothing.
    fn wants_question(&self) -> bool {
        self.sent_count != self.keys.asked_after && !self.keys.is_asked()
    }

    /// What it was sent so far needs no question.
    fn watch_anew(&mut self) {
        (self.watched, self.keys.asked_after) = (Watched::default(), self.sent_count);
    }
}

/// Asks a peer about a key that is none. Where all places have good answers, messages alone show
/// nothing, and only what touches its memory counts.
fn ask_anything(peers: &mut Peers, index: usize) {
    let place = peers.keys.free_place(index);
    let record = &mut peers.all[index];
    match place {
        Some(place) => {
            record.keys.asked_after = record.sent_count;
            peers.ask(index, NO_KEY, place);
        }
        None if record.ops.touching == 0 => record.watch_anew(),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use() -> Peer {
        let mut peer = Peer::default();
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
        let mut peer = Peer::default();
        assert_eq!(looks(&mut peer, |_| true), None, "nothing was sent");
        peer.ops.used = 1;
        assert_eq!(looks(&mut peer, |_| true), Some((9, Span(800))));
        peer.watched = Watched::default();
        peer.ops.ended += 1;
        assert_eq!(looks(&mut peer, |look| look % 2 == 0), Some((14, Span(1300))));
        peer.watched = Watched::default();
        for _ in 0..3 {
            for _ in 0..7 {
                peer.watched.polls = true;
                assert_eq!(peer.look(Instant(5), &Silence::new(Span(8))), None);
            }
            peer.ops.ended += 1;
        }
        // of an earlier use of the number
        (peer.ops.left_ops, peer.watched) = (1, Watched::default());
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
        let mut peer = Peer { sent_count: 1, ..Peer::default() };
        assert!(peer.wants_question());
        peer.keys.asked_after = 1;
        assert!(!peer.wants_question(), "it was asked since");
        peer.sent_count = 2;
        (peer.ops.used, peer.ops.ended) = (1, 5);
        assert!(peer.wants_question());
        assert_eq!(peer.look(Instant(0), &Silence::new(Span(8))), None);
        assert_eq!(peer.look(Instant(1), &Silence::new(Span(8))), None);
        assert!(peer.wants_question(), "looks put no question");
        peer.keys.asked.words.key = 7;
        assert!(!peer.wants_question(), "one is on its way");
    }

    #[test]
    fn question_without_an_answer_is_something_that_was_sent() {
        let mut peer = Peer::default();
        peer.keys.asked.words.key = 7;
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
            assert_eq!(refused(&mut Peer::default(), silence, |_| false), Some(9));
            let mut peer = Peer::default();
            assert_eq!(refused(&mut peer, silence, |look| look % 7 == 0), None);
            let mut peer = in_use();
            assert_eq!(refused(&mut peer, silence, |_| false), Some(9), "and something is");
        }
    }

    #[test]
    fn peer_that_was_refused_once_and_is_posted_nothing_since_is_not_silent() {
        let mut peer = Peer::default();
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
