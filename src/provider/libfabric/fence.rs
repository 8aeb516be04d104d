//! Fences of peers: the message they wait for, and the substitutes if it does not come.
//!
//! A fence holds when the peer has said that nothing of its ops is under way.
//! A peer may be unable to say it. The side band cannot decide either (`DownCause::Severed`): a
//! dead process has lost all its sockets. So has a living one that computes while its network was
//! reset.
//!
//! So the rail goes on asking, by an op whose end the library reports:
//!
//! - The op fails because the peer's endpoint is gone: the rail waits for what the peer had posted
//!   ([`Libfabric::outlast`]).
//! - It fails with a code of the path: this says nothing.
//! - It fails because a connection broke: this says nothing, since the next connection may stand.
//!
//! A peer that closes or reopens its endpoint says so. That message may overtake the peer's earlier
//! ops, if they went over a socket: the peer's kernel may still have to send them. So the rail asks
//! in the same way ([`Libfabric::outlast_closed`]).

use super::area::SENDS;
use super::control::AGAIN;
use super::ending::{DEATH, PATIENCE};
use super::peer::{KEYS, Lingering, Peer, Sent, State, Use, wants};
use super::rail::Libfabric;
use super::report::Complaint;
use crate::base::units::{Instant, Span};
use crate::fabric::{Op, PostError, Posted};

/// How long the word of peers is awaited on an endpoint that reaches nobody, before it is closed.
const STUCK: Span = Span::millis(3000);
/// How long a fence waits for a peer that is elsewhere before somebody is told: as long as requests
/// do that end unfenced.
const UNFENCED: Span = Span::millis(10_000);
/// Where `efa` says that the peer's queue pair is no more (`EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_
/// DEST_QPN` of its `efa_io_defs.h`): its device's, beside an errno that it has for much else.
const EFA_BAD_DEST_QPN: i32 = 9;

impl Libfabric<'_> {
    pub(super) fn fence(&mut self, op: &Op, generation: u32) -> Result<Posted, PostError> {
        let index = op.peer.as_usize();
        let record = &mut self.peers[index];
        self.asides
            .fence_append(&mut record.ending.fences, op, generation)
            .ok_or(PostError::Again)?;
        record.ops.in_flight += 1;
        record.is_fenced = true;
        let is_known = record.ending.is_attested || record.state == State::Prepared;
        record.ending.is_attested = is_known;
        self.mark_ending(index);
        if !is_known {
            self.want(index, wants::DRAIN);
        }
        Ok(Posted::Pending)
    }

    /// Whether a peer can have posted what writes here: it was told of memory of ours.
    fn is_told(&self, index: usize) -> bool {
        self.told[index * KEYS..(index + 1) * KEYS].iter().any(|it| it.region != 0)
    }

    /// How long what a peer has posted may be on its way whose endpoint is closed.
    pub(super) fn posted_for(&self, index: usize) -> Span {
        if self.is_told(index) { PATIENCE } else { DEATH }
    }

    /// What a peer has posted is waited for instead of its word. Time alone takes nothing in: a
    /// library of sockets does, when it is polled, and each time at least one op of a connection,
    /// or all that has come. Peers at one endpoint may share one connection.
    pub(super) fn outlast(&mut self, index: usize, span: Span) {
        let address = self.peers[index].address;
        let beside = self.peers.iter().filter(|peer| peer.address == address).count();
        let polls = if self.is_told(index) { SENDS * beside } else { 0 };
        let record = &mut self.peers[index];
        if record.ending.gone.is_none() {
            (record.ending.gone, record.ending.gone_polls) = (Some(span), polls as u32);
            record.ending.is_timed = false;
            self.mark_ending(index);
        }
    }

    /// The peer's endpoint is closed, and what it had posted is waited for instead of its word: by
    /// time; but where its kernel goes on sending what a closed socket has, until the library has
    /// no connection to that endpoint any more, or its word has come after all.
    pub(super) fn outlast_closed(&mut self, index: usize, lingering: Lingering) {
        if self.is_told(index) && self.has_listener(index) {
            self.peers[index].ending.lingering = lingering;
            self.mark_ending(index);
        } else {
            self.outlast(index, self.posted_for(index));
        }
    }

    /// Whether the library has such a request.
    pub(super) fn is_draining(&self, index: usize) -> bool {
        let sent = &self.sent[index * SENDS..(index + 1) * SENDS];
        sent.iter().any(|it| it.used == Use::Drain)
    }

    /// Whether the library has no connection to a peer that nobody answers for: it takes no request
    /// to stop, and has nothing else for its address. As long as it has one, the peer's kernel may
    /// go on sending what a dead process had posted, or a closed endpoint, at intervals that grow
    /// to two minutes behind an outage; what comes for a connection that is no more is refused by
    /// our own kernel.
    ///
    /// `-FI_EAGAIN` counts as a refusal, whatever it is for. `tcp` says it of a peer to which no
    /// connection stands, and has no queue that fills up; `tcp;ofi_rxm` says it of such a peer, and
    /// when the buffers of the whole endpoint are taken. The call has no other code, and fi_msg(3)
    /// calls the reasons "varied"; `fi_tx_size_left`, which said how much room there is, is
    /// deprecated, and `ofi_rxm` does not have it (`-FI_ENOSYS`). Nor do our own books say: a
    /// message that was injected takes room until nobody knows when, without a completion. And that
    /// another peer's message is taken next says nothing of the one before, because calls that are
    /// refused move on what is under way. So with a full queue a peer may be held for one to which
    /// the library has no connection, if nothing of ours is under way to its address and its kernel
    /// refuses connections meanwhile.
    pub(super) fn has_no_connection(&self, index: usize) -> bool {
        let address = self.peers[index].address;
        let is_over = |it: &Sent| matches!(it.used, Use::Free | Use::WordDue);
        // a number that is given anew may have ops under way to the peer before
        let is_there = |peer: &Peer| peer.address == address || peer.ops.left == address;
        let has_nothing =
            |(peer, sent): (&Peer, &[Sent])| !is_there(peer) || sent.iter().all(is_over);
        let mut there = self.peers.iter().zip(self.sent.chunks(SENDS));
        self.peers[index].ending.is_bounced && there.all(has_nothing)
    }

    /// The library has ended a request to stop with an error, or refused it: where that says that
    /// nobody is at the peer's address, a peer that counts as dead is gone.
    #[cold]
    pub(super) fn drain_failed(&mut self, index: usize, code: i32, provider_code: i32) {
        self.peers[index].ending.is_bounced = true;
        let is_efa = self.provider_name() == c"efa" && provider_code == EFA_BAD_DEST_QPN;
        if self.peers[index].is_drain_watched() && (code == libc::ECONNREFUSED || is_efa) {
            self.outlast(index, self.posted_for(index));
        }
    }

    /// A fence holds when the peer has said its word and nothing of ours is under way.
    pub(super) fn fence_on(&mut self, index: usize, waited: Span) {
        let now = self.now;
        let record = &mut self.peers[index];
        let since = *record.ending.fenced_at.get_or_insert(now);
        if !record.ending.is_attested {
            if waited >= AGAIN && record.ending.gone.is_none() && record.wants & wants::DRAIN == 0 {
                record.ending.is_timed = false;
                // a second one would go the way of the first
                if !self.is_draining(index) {
                    self.want(index, wants::DRAIN);
                }
            }
            let record = &self.peers[index];
            if record.is_drain_watched() && record.ending.gone.is_none() {
                self.probe_on(index);
            }
            return self.look_stuck(index, since);
        }
        self.probes.end(index);
        // who is gone answers nothing: what is left of ours is on its way to nobody
        let is_over = record.ending.gone.is_some() && waited >= PATIENCE;
        if record.ops.touching > 0 && !is_over {
            return self.look_stuck(index, since);
        }
        let mut fences = core::mem::take(&mut self.peers[index].ending.fences);
        while let Some(fence) = self.asides.take_first(&mut fences) {
            self.asides.finish(fence);
        }
    }

    /// A fence that does not hold on an endpoint that reaches nobody any more: it is the NIC's
    /// fault, or nobody's loss, and the endpoint is closed and opened anew. As long as a peer is
    /// reached it is left alone, and so are some libraries.
    fn look_stuck(&mut self, index: usize, since: Instant) {
        let stays = self.dies_of_a_close() || self.health.is_lost();
        let waited = self.now.since(since);
        let late = waited >= STUCK;
        let record = &mut self.peers[index];
        let is_told = if record.ending.doubt.is_some() { late } else { waited >= UNFENCED };
        if is_told && !core::mem::replace(&mut record.ending.is_complained, true) {
            self.complain(index, Complaint::Unfenced(waited));
        }
        if late && !stays && !self.peers.iter().any(Peer::takes_ops) {
            self.lose(libc::ETIMEDOUT);
        }
    }
}
