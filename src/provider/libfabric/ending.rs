//! Ends and fences of peers: the message that a fence waits for, and the substitutes if it does not
//! come.
//!
//! A fence holds when the peer has said that nothing of its ops is under way.
//! A peer may be unable to say it. The side band cannot decide either (`DownCause::Severed`): a
//! dead process has lost all its sockets. So has a living one that computes while its network was
//! reset.
//!
//! So the rail goes on asking, by an op whose end the library reports:
//!
//! - The op fails because the peer's endpoint is gone: the rail waits for what the peer had posted
//!   ([`Peers::outlast`]).
//! - It fails with a code of the path: this says nothing.
//! - It fails because a connection broke: this says nothing, since the next connection may stand.
//!
//! A peer that closes or reopens its endpoint says so. That message may overtake the peer's earlier
//! ops, if they went over a socket: the peer's kernel may still have to send them. So the rail asks
//! in the same way ([`Peers::outlast_closed`]).

use super::area::SENDS;
use super::keys::AGAIN;
use super::peer::{Down, Peer, State, Use, wants};
use super::peers::{DEATH, PATIENCE, Peers};
use super::probe::Probes;
use super::report::Complaint;
use crate::base::ids::PeerIndex;
use crate::base::units::{Instant, Span};
use crate::fabric::{Completion, Op, OpId, PostError, Posted};
use crate::provider::asides::Aside;
use crate::provider::events::Events;
use crate::provider::ops::Ops;

/// How long the word of peers is awaited on an endpoint that reaches nobody, before it is closed.
const STUCK: Span = Span::millis(3000);
/// How long a fence waits for a peer that is elsewhere before somebody is told: as long as requests
/// do that end unfenced.
const UNFENCED: Span = Span::millis(10_000);

/// What ends, or is fenced.
#[derive(Debug)]
pub struct Endings<'m> {
    /// Fences, and ops that were refused for a key.
    asides: Ops<'m, Aside>,
    pub probes: Probes,
}

impl<'m> Endings<'m> {
    pub fn new(asides: &'m mut [Aside]) -> Endings<'m> {
        Endings { asides: Ops::new(asides), probes: Probes::NONE }
    }

    pub fn fence(
        &mut self,
        peers: &mut Peers,
        op: &Op,
        generation: u32,
    ) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        let record = &mut peers.all[index];
        let fences = &mut record.ending.fences;
        self.asides.fence_append(fences, op, generation).ok_or(PostError::Again)?;
        record.ops.in_flight += 1;
        record.is_fenced = true;
        let is_known = record.ending.is_attested || record.state == State::Prepared;
        record.ending.is_attested = is_known;
        peers.mark_ending(index);
        if !is_known {
            peers.want(index, wants::DRAIN);
        }
        Ok(Posted::Pending)
    }

    /// Accepts an op that ends with `Key`, if there is room beside that for a fence.
    #[cold]
    pub fn refuse(
        &mut self,
        peers: &mut Peers,
        peer: PeerIndex,
        id: OpId,
    ) -> Result<Posted, PostError> {
        if self.asides.is_full() {
            return Err(PostError::Again);
        }
        let aside = Aside { peer, id, ..Aside::default() };
        let entry = self.asides.acquire(aside).expect("a free entry was seen");
        self.asides.finish(entry);
        peers.all[peer.as_usize()].ops.in_flight += 1;
        Ok(Posted::Pending)
    }

    /// Reports fences that hold, and refused ops.
    #[inline]
    pub fn report(&mut self, peers: &mut Peers, events: &mut Events) {
        while !self.asides.none_done() && events.has_room() {
            let Some(aside) = self.asides.take_done() else { return };
            peers.all[aside.peer.as_usize()].ops.in_flight -= 1;
            events.push(aside.completion());
        }
    }

    /// Goes on with every peer that is ending or being fenced. `is_empty`: all that had come has
    /// been taken.
    #[cold]
    pub fn go_on(&mut self, peers: &mut Peers, is_empty: bool, events: &mut Events) {
        for index in 0..peers.all.len() {
            if peers.all[index].is_ending {
                self.end_on(peers, index, is_empty, events);
            }
        }
    }

    fn end_on(&mut self, peers: &mut Peers, index: usize, is_empty: bool, events: &mut Events) {
        let now = peers.now;
        let record = &mut peers.all[index];
        let ending = &mut record.ending;
        if !ending.is_timed {
            (ending.is_timed, ending.ends_since) = (true, now);
        }
        let waited = now.since(ending.ends_since);
        let is_all_here = record.is_fenced
            || ending.awaited_count.is_none_or(|count| count == record.seen_count)
            || waited >= DEATH;
        if let Down::Due(cause) = record.down
            && is_empty
            && is_all_here
            && events.has_room()
        {
            record.down = Down::Told;
            events.push(Completion::PeerDown { peer: PeerIndex(index as u32), cause });
        }
        if let Some(span) = ending.gone
            && is_empty
            && !ending.is_attested
        {
            ending.gone_polls = ending.gone_polls.saturating_sub(1);
            ending.is_attested = waited >= span && ending.gone_polls == 0;
            if ending.is_attested {
                peers.told_release_all(index);
            }
        }
        let record = &peers.all[index];
        if record.down == Down::Told && (record.ending.is_cut || waited >= PATIENCE) {
            answer_for(peers, index, events);
        }
        if !peers.all[index].ending.fences.is_empty() {
            self.fence_on(peers, index, waited);
        }
        let record = &peers.all[index];
        let is_told = matches!(record.down, Down::Told | Down::No);
        // of a fenced peer, ops whose ends the library says are not waited for here
        let others_end = record.down == Down::No || record.ops.in_flight == 0;
        if is_told && record.ending.fences.is_empty() && others_end {
            peers.unmark_ending(index);
        }
    }

    /// A fence holds when the peer has said its word and nothing of ours is under way.
    fn fence_on(&mut self, peers: &mut Peers, index: usize, waited: Span) {
        let now = peers.now;
        let record = &mut peers.all[index];
        let ending = &mut record.ending;
        let since = *ending.fenced_at.get_or_insert(now);
        if !ending.is_attested {
            if waited >= AGAIN && ending.gone.is_none() && record.wants & wants::DRAIN == 0 {
                ending.is_timed = false;
                // a second one would go the way of the first
                if !peers.ops(index).iter().any(|it| it.used == Use::Drain) {
                    peers.want(index, wants::DRAIN);
                }
            }
            let record = &peers.all[index];
            if record.is_drain_watched() && record.ending.gone.is_none() {
                self.probes.go_on(peers, index);
            }
            return look_stuck(peers, index, since);
        }
        self.probes.end(index);
        // who is gone answers nothing: what is left of ours is on its way to nobody
        let is_over = ending.gone.is_some() && waited >= PATIENCE;
        if record.ops.touching > 0 && !is_over {
            return look_stuck(peers, index, since);
        }
        let mut fences = core::mem::take(&mut ending.fences);
        while let Some(fence) = self.asides.take_first(&mut fences) {
            self.asides.finish(fence);
        }
    }
}

/// Answers for ops that the library does not give back. Unless its endpoint was closed, it still
/// has them: what they hold stays held.
fn answer_for(peers: &mut Peers, index: usize, events: &mut Events) {
    let error = peers.all[index].cut_off();
    for op in 0..SENDS {
        let sent = &mut peers.sent[index * SENDS + op];
        if sent.used == Use::Loud && events.has_room() {
            let (peer, id) = (PeerIndex(index as u32), sent.id);
            events.push(Completion::Done { peer, id, result: Err(error) });
            sent.used = Use::Quiet;
            peers.all[index].ops.in_flight -= 1;
            if peers.all[index].ending.is_cut {
                peers.op_free(index, op);
            } else {
                peers.health.orphans += 1;
            }
        }
    }
}

/// A fence that does not hold on an endpoint that reaches nobody any more: it is the NIC's fault,
/// or nobody's loss, and the endpoint is closed and opened anew. As long as a peer is reached it is
/// left alone, and so are some libraries.
fn look_stuck(peers: &mut Peers, index: usize, since: Instant) {
    let stays = peers.dies_of_a_close() || peers.health.is_lost();
    let waited = peers.now.since(since);
    let late = waited >= STUCK;
    let ending = &mut peers.all[index].ending;
    let is_told = if ending.doubt.is_some() { late } else { waited >= UNFENCED };
    if is_told && !core::mem::replace(&mut ending.is_complained, true) {
        peers.complain(index, Complaint::Unfenced(waited));
    }
    if late && !stays && !peers.all.iter().any(Peer::takes_ops) {
        peers.lose(libc::ETIMEDOUT);
    }
}
