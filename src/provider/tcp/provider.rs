//! [`Provider`] on top of the streams.

use super::area::{SEND_BYTES_MAX, SHORT_BYTES_MAX};
use super::peer::State;
use super::pull::READ_BYTES_MIN;
use super::rail::Tcp;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, Line, LocalSpan, MemoryDomain, Op,
    OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan, SentThrough,
    Syscalls,
};
use crate::provider::events::Events;
use crate::provider::host_domain::HostDomain;
use crate::provider::touch;
use crate::wire::stream::PAYLOAD_BYTES_MAX;

/// What a poll takes in at least where it has come, whatever it handed over, in calls of the
/// kernel, and not more than [`IN_BYTES_MAX`]. With one budget for both, a side that sends and
/// receives fills its peer's buffers and takes little out of its own: both then wait for room, and
/// copy what no cache holds any more.
const IN_CALLS: u64 = 4;
const IN_BYTES_MAX: u64 = 1 << 20;

/// What a poll takes in at least, where a call of the kernel takes so much.
fn in_bytes(call_bytes: u64) -> u64 {
    call_bytes.saturating_mul(IN_CALLS).min(IN_BYTES_MAX)
}

impl<'m> MemoryDomain for Tcp<'m> {
    type Domain = HostDomain<'m>;

    fn domain(&self) -> HostDomain<'m> {
        self.domain
    }
}

impl<'m> Provider for Tcp<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        Caps {
            send_payload_max: Bytes(SHORT_BYTES_MAX.into()),
            recv_slots: super::area::SLOTS as u32,
            transfer_max: Bytes(PAYLOAD_BYTES_MAX.into()),
            pull: true,
            immediate: true,
            ordered: self.limits.streams == 1,
            copies_at_post: true,
            atomic_bytes: 8,
            copy_granule: Bytes(self.call_bytes + in_bytes(self.call_bytes) + READ_BYTES_MIN),
            fence: FenceKind::Local,
            bad_key_breaks: false,
            syscalls: Syscalls::PerBatch,
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let is_long = self.area.has_long(peer.as_usize());
        Bytes(if is_long { SEND_BYTES_MAX } else { SHORT_BYTES_MAX }.into())
    }

    fn sent_through(&self, peer: PeerIndex) -> SentThrough {
        self.streams[self.streams.first_of(peer.as_usize())].out.sent_through()
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        self.streams[self.streams.first_of(peer.as_usize())].out.staged() != 0
    }

    #[inline]
    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        let peer = self.peers.get(op.peer.as_usize()).ok_or(PostError::PeerDown)?;
        if !peer.takes_ops() {
            return match op.kind {
                OpKind::Fence { generation } if peer.state != State::Closed => {
                    self.post_fence(op, generation.0)
                }
                _ => Err(PostError::PeerDown),
            };
        }
        let result = match &op.kind {
            OpKind::Send { head, payload } => {
                self.send(op.peer, head, *payload).map(|()| Posted::Done)
            }
            OpKind::Write { source, target, immediate } => {
                self.write(op, source, *target, *immediate)
            }
            OpKind::Read { target, source } => self.post_read(op, *target, *source),
            OpKind::Add { target, value } => self.add(op, *target, *value),
            OpKind::Fence { generation } => self.post_fence(op, generation.0),
        };
        self.note_starved(result)
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
        if !self.takes_ops(peer) {
            return Err(PostError::PeerDown);
        }
        let result = self.send(peer, head, payload).map(|()| Posted::Done);
        self.note_starved(result)
    }

    #[inline]
    fn post_line(
        &mut self,
        _id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        _now: Instant,
    ) -> Result<Posted, PostError> {
        if !self.takes_ops(peer) {
            return Err(PostError::PeerDown);
        }
        let result = self.line(peer, target, line, None);
        self.note_starved(result)
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        self.takes_ops(peer) && self.send(peer, head, payload).is_ok()
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let is_timed = self.wants_time();
        self.streams.note_poll();
        let mut events = Events { slots: out, used: 0 };
        if self.helpers.are_up() {
            self.helpers.disarm();
            self.hear(&mut events);
        }
        if self.streams.dirty_count() != 0 {
            self.flush_dirty(&mut budget.0.max(self.call_bytes));
        }
        if !self.ops.none_done() {
            self.report_done(&mut events);
        }
        self.receive(&mut events, &mut budget.0.max(in_bytes(self.call_bytes)));
        if is_timed {
            self.end_peers(&mut events);
        }
        if !self.ops.none_done() {
            self.report_done(&mut events);
        }
        events.used
    }

    #[inline]
    fn flush(&mut self, budget: Bytes) {
        if self.streams.dirty_count() != 0 {
            self.flush_dirty(&mut budget.0.clone());
        }
    }

    #[inline]
    fn look_at(&mut self, peer: PeerIndex) {
        if self.peers[peer.as_usize()].streams == 1 {
            self.streams.read_only(self.streams.first_of(peer.as_usize()));
        }
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let (peer, length) = (peer.as_usize(), to.length().0);
        let from = self.peers[peer].payload(&self.area, peer, slot.0, offset, length);
        // SAFETY: inside a held payload; the span's maker vouches for the target.
        unsafe { touch::copy(from, to.address(), length) };
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let (peer, length) = (peer.as_usize(), to.len() as u64);
        let from = self.peers[peer].payload(&self.area, peer, slot.0, 0, length);
        // SAFETY: inside a held payload.
        unsafe { touch::copy_in(from, to) };
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        let peer = peer.as_usize();
        self.peers[peer].slot_release(&self.area, peer, slot.0);
    }
}

impl<'m> PeerLife for Tcp<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        if peer.as_usize() < self.peers.len() {
            self.end_as_told(peer.as_usize(), cause);
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.peer_detach(peer)?;
        self.discard(peer.as_usize());
        Ok(())
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.peers.get(peer.as_usize()) {
            None => Err(CloseError::Stale),
            Some(record) if record.state == State::Closed => Err(CloseError::Stale),
            Some(record) if record.in_flight > 0 => Err(CloseError::Busy),
            Some(_) => {
                self.forget(peer.as_usize());
                Ok(())
            }
        }
    }
}
