//! [`Provider`] on top of the queue pairs.

use super::VerbsDomain;
use super::area::RECEIVES_KEPT;
use super::peer::State;
use super::rail::Verbs;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Gather, Head, Line, LocalSpan,
    MemoryDomain, Op, OpId, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan, Syscalls,
};
use crate::provider::events::Events;
use crate::provider::touch;

impl<'m> MemoryDomain for Verbs<'m> {
    type Domain = VerbsDomain<'m>;

    fn domain(&self) -> VerbsDomain<'m> {
        self.domain
    }
}

impl<'m> Provider for Verbs<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        let abilities = &self.peers.abilities;
        Caps {
            send_payload_max: Bytes(abilities.payload_bytes_max.into()),
            recv_slots: RECEIVES_KEPT as u32,
            transfer_max: Bytes(abilities.message_bytes_max.into()),
            pull: true,
            immediate: true,
            ordered: abilities.is_ordered(),
            copies_at_post: true,
            atomic_bytes: if abilities.has_atomics { 8 } else { 0 },
            copy_granule: Bytes::ZERO,
            fence: FenceKind::Local,
            bad_key_breaks: true,
            syscalls: if abilities.is_software { Syscalls::PerBatch } else { Syscalls::None },
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let live = self.peers.get(peer).filter(|peer| peer.state == State::Live);
        let own = self.peers.abilities.payload_bytes_max;
        Bytes(live.map_or(own, |peer| peer.terms.payload_bytes_max).into())
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        self.peers.post_op(op)
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
        self.peers.send(peer, head, payload)
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
        self.peers.line(id, peer, target, line, None)
    }

    fn parts_max(&self, peer: PeerIndex) -> usize {
        let live = self.peers.get(peer).filter(|peer| peer.state == State::Live);
        live.map_or(self.peers.abilities.parts_max, |peer| peer.terms.parts_max).into()
    }

    #[inline]
    fn post_gather(&mut self, gather: &Gather, _now: Instant) -> Result<Posted, PostError> {
        self.peers.gather(gather)
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        self.peers.send(peer, head, payload).is_ok()
    }

    fn poll(&mut self, out: &mut [Completion], _budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let mut events = Events { slots: out, used: 0 };
        self.watch();
        self.peers.ring_all();
        self.peers.report_owed(&mut events);
        let taken = self.peers.take(&mut self.completions, &self.port, &mut events);
        if taken.is_err() {
            self.lose(libc::EIO);
        }
        // where there is no room, completions may be left
        if events.has_room() && self.silence.take_due(now) {
            self.peers.end_silent(self.port.place.gid);
        }
        if self.peers.endings > 0 {
            let is_gone = self.port.health.lost_code == libc::ENODEV;
            let so_far = (is_gone, self.completions.is_empty());
            self.peers.end_peers(now, so_far, &mut self.port.health.undrained, &mut events);
        }
        self.peers.report_asides(&mut events);
        if events.used == 0 {
            self.peers.receives_late(); // while nobody waits for an answer
        }
        events.used
    }

    #[inline]
    fn flush(&mut self, _budget: Bytes) {
        self.peers.ring_all();
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.sends.chained > 0)
    }

    #[inline]
    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let from = self.peers.payload(peer, slot, offset, to.length().0);
        // SAFETY: inside a held payload; the span's maker vouches for the target.
        unsafe { touch::copy(from, to.address(), to.length().0) };
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let from = self.peers.payload(peer, slot, 0, to.len() as u64);
        // SAFETY: inside a held payload.
        unsafe { touch::copy_in(from, to) };
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.peers.slot_free(peer.as_usize(), slot);
    }

    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        self.received_copy(peer, slot, 0, to);
        self.peers.slot_free(peer.as_usize(), slot);
    }
}

impl<'m> PeerLife for Verbs<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if self.peers.get(peer).is_some() {
            self.peers.end(peer.as_usize(), cause);
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.peers.forget(peer, true)
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.peers.forget(peer, false)
    }
}
