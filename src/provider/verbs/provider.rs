//! [`Provider`] on top of the queue pairs.

use super::VerbsDomain;
use super::area::{LAZY, RECEIVES_KEPT};
use super::peer::State;
use super::poll::slot_parts;
use super::rail::Verbs;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Gather, HEAD_BYTES, Head, Line, LocalSpan,
    MemoryDomain, Op, OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan,
    Syscalls,
};
use crate::provider::events::Events;
use crate::provider::touch;

impl Verbs<'_> {
    #[inline]
    fn takes_ops(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|peer| peer.takes_ops())
    }

    /// Where a held payload lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    fn payload(&self, peer: PeerIndex, slot: RecvSlot, offset: u64, length: u64) -> u64 {
        let (cell, whole) = slot_parts(slot);
        let whole = u64::from(whole);
        let is_held = self.peers[peer.as_usize()].receives.is_held(cell);
        assert!(is_held, "a receive slot that is held");
        let fits = offset <= whole && length <= whole - offset;
        assert!(fits && whole <= self.limits.payload_bytes_max.into(), "bytes of the payload");
        self.area.head(peer.as_usize(), cell) as u64 + HEAD_BYTES as u64 + offset
    }

    /// A cell that is held is free again, and posted at once or with a few others: without those
    /// the peer has enough, so that the credit for it may be there first.
    #[inline]
    fn slot_free(&mut self, index: usize, cell: usize) {
        self.peers[index].receives.release(cell);
        self.receive_again(index, cell);
    }
}

impl<'m> MemoryDomain for Verbs<'m> {
    type Domain = VerbsDomain<'m>;

    fn domain(&self) -> VerbsDomain<'m> {
        self.domain
    }
}

impl<'m> Provider for Verbs<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        Caps {
            send_payload_max: Bytes(self.limits.payload_bytes_max.into()),
            recv_slots: RECEIVES_KEPT as u32,
            transfer_max: Bytes(self.transfer_bytes_max()),
            pull: true,
            immediate: true,
            ordered: self.is_ordered(),
            copies_at_post: true,
            atomic_bytes: if self.has_atomics { 8 } else { 0 },
            copy_granule: Bytes::ZERO,
            fence: FenceKind::Local,
            bad_key_breaks: true,
            syscalls: if self.port.is_software { Syscalls::PerBatch } else { Syscalls::None },
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let open = self.peers.get(peer.as_usize()).filter(|peer| peer.state == State::Live);
        let own = self.limits.payload_bytes_max;
        Bytes(open.map_or(own, |peer| peer.terms.payload_bytes_max).into())
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

    fn parts_max(&self, peer: PeerIndex) -> usize {
        let open = self.peers.get(peer.as_usize()).filter(|peer| peer.state == State::Live);
        open.map_or(self.parts_max, |peer| peer.terms.parts_max).into()
    }

    #[inline]
    fn post_gather(&mut self, gather: &Gather, _now: Instant) -> Result<Posted, PostError> {
        match self.takes_ops(gather.peer) {
            true => self.gather(gather),
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
        self.watch();
        if !self.dirty.is_empty() {
            self.ring_all();
        }
        if !self.owing.is_empty() {
            self.report_owed(&mut events);
        }
        self.take(&mut events);
        // where there is no room, completions may be left
        if self.silence.is_due() && events.has_room() {
            self.silence_look();
        }
        if self.endings > 0 {
            self.end_peers(&mut events);
        }
        if !self.asides.none_done() {
            self.report_asides(&mut events);
        }
        if events.used == 0
            && let Some(index) = self.due.take()
            && self.peers[index as usize].receives.due() >= LAZY / 2
        {
            self.receives_due(index as usize); // while nobody waits for an answer
        }
        events.used
    }

    #[inline]
    fn flush(&mut self, _budget: Bytes) {
        if !self.dirty.is_empty() {
            self.ring_all();
        }
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|peer| peer.sends.is_chained())
    }

    #[inline]
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
        let is_held = self.peers[peer.as_usize()].receives.is_held(cell);
        assert!(is_held, "a receive slot that is held");
        self.slot_free(peer.as_usize(), cell);
    }

    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        self.received_copy(peer, slot, 0, to); // which has seen that it is held
        let (cell, _) = slot_parts(slot);
        self.slot_free(peer.as_usize(), cell);
    }
}

impl<'m> PeerLife for Verbs<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if peer.as_usize() < self.peers.len() {
            self.end(peer.as_usize(), cause);
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

impl Verbs<'_> {
    fn closable(&self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.peers.get(peer.as_usize()) {
            None => Err(CloseError::Stale),
            Some(record) if record.state == State::Closed => Err(CloseError::Stale),
            Some(record) if record.sends.in_flight > 0 => Err(CloseError::Busy),
            Some(_) => Ok(()),
        }
    }
}
