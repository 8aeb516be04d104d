//! [`Provider`] on top of the shared endpoint.

use super::LibfabricDomain;
use super::area::{LAZY, RECEIVES};
use super::peer::State;
use super::poll::slot_parts;
use super::rail::{Cell, Libfabric};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, Line, LocalSpan, MemoryDomain, Op,
    OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan, Syscalls,
};
use crate::provider::events::Events;
use crate::provider::touch;

impl Libfabric<'_> {
    #[inline]
    fn takes_ops(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|peer| peer.takes_ops())
    }

    /// How many bytes stand before the payload of a cell that a peer's message holds.
    #[inline]
    fn held(&self, peer: PeerIndex, cell: usize) -> u8 {
        match self.cells.get(cell) {
            Some(&Cell::Held { peer: holder, ahead }) if holder == peer.0 => ahead,
            Some(_) | None => panic!("a receive slot that is held"),
        }
    }

    /// Where a held payload lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    fn payload(&self, peer: PeerIndex, slot: RecvSlot, offset: u64, length: u64) -> u64 {
        let (cell, whole) = slot_parts(slot);
        let whole = u64::from(whole);
        let ahead = self.held(peer, cell);
        let fits = offset <= whole && length <= whole - offset;
        assert!(fits && whole <= self.limits.payload_bytes_max.into(), "bytes of the payload");
        self.area.cell(cell) + u64::from(ahead) + offset
    }
}

impl<'m> MemoryDomain for Libfabric<'m> {
    type Domain = LibfabricDomain<'m>;

    fn domain(&self) -> LibfabricDomain<'m> {
        self.domain
    }
}

impl<'m> Provider for Libfabric<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        let transfer_max = Bytes(self.traits.transfer_max);
        Caps {
            send_payload_max: Bytes(self.limits.payload_bytes_max.into()),
            recv_slots: RECEIVES as u32,
            transfer_max,
            pull: true,
            immediate: true,
            ordered: self.traits.ordered,
            copies_at_post: true,
            atomic_bytes: if self.has_atomics { 8 } else { 0 },
            // providers of software move bytes when they are polled, and take no budget for it
            copy_granule: if self.traits.moves_alone { Bytes::ZERO } else { transfer_max },
            fence: FenceKind::WriterDrained,
            bad_key_breaks: false,
            syscalls: Syscalls::PerBatch,
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let open = self.peers.get(peer.as_usize()).filter(|peer| peer.state == State::Live);
        let own = self.limits.payload_bytes_max;
        Bytes(open.map_or(own, |peer| peer.payload_bytes_max).into())
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        let peer = self.peers.get(op.peer.as_usize()).ok_or(PostError::PeerDown)?;
        let is_open = peer.state != State::Closed;
        match op.kind {
            OpKind::Fence { generation } if is_open => self.fence(op, generation.0),
            _ if peer.takes_ops() => self.post_op(op),
            _ => Err(PostError::PeerDown),
        }
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
        match self.takes_ops(peer) {
            true => self.send(peer, head, payload),
            false => Err(PostError::PeerDown),
        }
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
        match self.takes_ops(peer) {
            true => self.line(id, peer, target, line, None),
            false => Err(PostError::PeerDown),
        }
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        self.takes_ops(peer) && self.send(peer, head, payload).is_ok()
    }

    fn poll(&mut self, out: &mut [Completion], _budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let mut events = Events { slots: out, used: 0 };
        if self.watch.is_on {
            self.events_on();
        }
        if self.has_chores {
            self.chores();
        }
        if self.asks > 0 {
            self.ask_again();
        }
        if self.early_due {
            self.take_early(&mut events);
        }
        let is_empty = self.take(&mut events);
        if self.silence.is_due(now) && events.has_room() {
            self.silence_look();
        }
        if !self.due.is_empty() && (events.used == 0 || self.due.len() > LAZY) {
            self.receives_due();
        }
        if self.domain.wants_any() {
            self.revoke_wanted();
        }
        if self.endings > 0 {
            self.end_peers(is_empty, &mut events);
        }
        if !self.asides.none_done() {
            self.report_asides(&mut events);
        }
        events.used
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let from = self.payload(peer, slot, offset, to.length().0);
        // SAFETY: inside a held payload; the span's maker vouches for the target.
        unsafe { touch::copy(from, to.address(), to.length().0) };
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let from = self.payload(peer, slot, 0, to.len() as u64);
        // SAFETY: inside a held payload.
        unsafe { touch::copy_in(from, to) };
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        let (cell, _) = slot_parts(slot);
        self.held(peer, cell);
        // a few of many wait for a poll that finds nothing, while nobody waits for an answer
        self.cells[cell] = Cell::Due;
        self.due.push(cell as u32);
        if self.due.len() > LAZY {
            self.receives_due();
        }
    }
}

impl<'m> PeerLife for Libfabric<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if peer.as_usize() < self.peers.len() {
            self.hear(peer.as_usize(), cause);
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.closable(peer)?;
        self.forget(peer.as_usize(), true);
        Ok(())
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.closable(peer)?;
        self.forget(peer.as_usize(), false);
        Ok(())
    }
}
