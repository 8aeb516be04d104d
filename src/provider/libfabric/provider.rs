//! [`Provider`] on top of the shared endpoint.

use super::LibfabricDomain;
use super::area::RECEIVES;
use super::endpoint::SharedEndpoint;
use super::peer::State;
use super::rail::Libfabric;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, Line, LocalSpan, MemoryDomain, Op,
    OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan, Source, Syscalls,
};
use crate::provider::events::Events;
use crate::provider::touch;

impl Libfabric<'_> {
    /// What is said of an op; `None`: it ends with `Key`.
    #[inline(always)]
    fn posted(
        &mut self,
        (id, peer): (OpId, PeerIndex),
        posted: Option<Posted>,
    ) -> Result<Posted, PostError> {
        match posted {
            Some(posted) => Ok(posted),
            None => self.endings.refuse(&mut self.peers, peer, id),
        }
    }

    /// Closes a peer, and discards what it sent and is held, if that is wanted.
    fn close(&mut self, peer: PeerIndex, discard: bool) -> Result<(), CloseError> {
        let record = self.peers.all.get(peer.as_usize());
        let open = record.filter(|it| it.state != State::Closed).ok_or(CloseError::Stale)?;
        if open.ops.in_flight > 0 {
            return Err(CloseError::Busy);
        }
        self.forget(peer.as_usize(), discard);
        Ok(())
    }
}

impl<'m> MemoryDomain for Libfabric<'m> {
    type Domain = LibfabricDomain<'m>;

    fn domain(&self) -> LibfabricDomain<'m> {
        self.peers.endpoint.domain
    }
}

impl<'m> Provider for Libfabric<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        let SharedEndpoint { traits, limits, has_atomics, .. } = &self.peers.endpoint;
        let transfer_max = Bytes(traits.transfer_max);
        Caps {
            send_payload_max: Bytes(limits.payload_bytes_max.into()),
            recv_slots: RECEIVES as u32,
            transfer_max,
            pull: true,
            immediate: true,
            ordered: traits.ordered,
            copies_at_post: true,
            atomic_bytes: if *has_atomics { 8 } else { 0 },
            // providers of software move bytes when they are polled, and take no budget for it
            copy_granule: if traits.moves_alone { Bytes::ZERO } else { transfer_max },
            fence: FenceKind::WriterDrained,
            bad_key_breaks: false,
            syscalls: Syscalls::PerBatch,
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let open = self.peers.all.get(peer.as_usize()).filter(|it| it.state == State::Live);
        let own = self.peers.endpoint.limits.payload_bytes_max;
        Bytes(open.map_or(own, |it| it.payload_bytes_max).into())
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        let peers = &mut self.peers;
        let record = peers.all.get(op.peer.as_usize()).ok_or(PostError::PeerDown)?;
        let takes_ops = record.takes_ops();
        let posted = match op.kind {
            OpKind::Fence { generation } if record.state != State::Closed => {
                return self.endings.fence(peers, op, generation.0);
            }
            OpKind::Fence { .. } => return Err(PostError::PeerDown),
            _ if !takes_ops => return Err(PostError::PeerDown),
            // writes go in a straight line, and what is rarer has calls of its own
            OpKind::Write { source: Source::Span(span), target, immediate } => {
                peers.write_span(op, span, target, immediate)
            }
            OpKind::Write { source: Source::Line(ref line), target, immediate } => {
                peers.line((op.id, op.peer), target, line, immediate)
            }
            OpKind::Send { ref head, payload } => {
                peers.send(op.peer, head, payload).map(|()| Some(Posted::Done))
            }
            OpKind::Read { target, source } => peers.read_span(op, target, source),
            OpKind::Add { target, value } => peers.add(op, target, value),
        };
        self.posted((op.id, op.peer), posted?)
    }

    #[inline]
    fn post_send(
        &mut self,
        _id: OpId,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
        _now: Instant,
    ) -> Result<Posted, PostError> {
        if !self.peers.takes_ops(peer) {
            return Err(PostError::PeerDown);
        }
        self.peers.send(peer, head, payload).map(|()| Posted::Done)
    }

    #[inline]
    fn post_line(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        _now: Instant,
    ) -> Result<Posted, PostError> {
        if !self.peers.takes_ops(peer) {
            return Err(PostError::PeerDown);
        }
        let posted = self.peers.line((id, peer), target, line, None)?;
        self.posted((id, peer), posted)
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        self.peers.takes_ops(peer) && self.peers.send(peer, head, payload).is_ok()
    }

    fn poll(&mut self, out: &mut [Completion], _budget: Bytes, now: Instant) -> usize {
        self.peers.now = now;
        let mut events = Events { slots: out, used: 0 };
        self.watch.events_on(&mut self.peers);
        if self.peers.has_chores {
            self.peers.chores();
        }
        if self.peers.keys.is_asking() {
            self.peers.ask_again();
        }
        if self.receives.early_due {
            self.take_early(&mut events);
        }
        let is_empty = self.take(&mut events);
        let peers = &mut self.peers;
        if self.silence.is_due(now) && events.has_room() {
            self.silence.look(peers);
        }
        self.receives.due_on(peers, events.used == 0);
        if peers.endpoint.domain.wants_any() {
            peers.revoke_wanted();
        }
        if peers.endings > 0 {
            self.endings.go_on(peers, is_empty, &mut events);
        }
        self.endings.report(peers, &mut events);
        events.used
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let endpoint = &self.peers.endpoint;
        let from = self.receives.payload(endpoint, (peer, slot), offset, to.length().0);
        // SAFETY: inside a held payload; the span's maker vouches for the target.
        unsafe { touch::copy(from, to.address(), to.length().0) };
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let endpoint = &self.peers.endpoint;
        let from = self.receives.payload(endpoint, (peer, slot), 0, to.len() as u64);
        // SAFETY: inside a held payload.
        unsafe { touch::copy_in(from, to) };
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.receives.release(&mut self.peers, peer, slot);
    }
}

impl<'m> PeerLife for Libfabric<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if peer.as_usize() < self.peers.all.len() {
            self.peers.hear(peer.as_usize(), cause);
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.close(peer, true)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.close(peer, false)
    }
}
