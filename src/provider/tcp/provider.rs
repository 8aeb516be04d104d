//! [`Provider`] on top of the streams.

use super::area::{SEND_BYTES_MAX, SHORT_BYTES_MAX};
use super::ops::{Entry, Outcome};
use super::peer::State;
use super::pull::READ_BYTES_MIN;
use super::push::{COPIED_MAX, ROOM_FOR_ANSWERS, ROOM_FOR_SUMS};
use super::rail::Tcp;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, HEAD_BYTES, Head, LINE_BYTES, Line,
    LocalSpan, MemoryDomain, Op, OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot,
    RemoteSpan, SentThrough, Source, Syscalls,
};
use crate::provider::events::Events;
use crate::provider::host_domain::HostDomain;
use crate::provider::touch;
use crate::wire::stream::{
    HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX, SEND_HEAD_AT, SilentWrite, StreamFrame, WRITE_HEADER_BYTES,
};

/// Writes from here on go over the streams beside the first, where there are any: it stays free
/// for what is short.
const LONG_WRITE: u64 = 64 << 10;
/// What a post hands over when it needs room.
const POST_BYTES: u64 = 64 << 10;
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

const _: () = assert!(SEND_HEAD_AT + HEAD_BYTES == HEADER_BYTES_MAX);

impl Tcp<'_> {
    #[inline]
    fn takes_ops(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|peer| peer.takes_ops())
    }

    /// Remembers that an op found no room.
    #[inline]
    fn note_starved(&mut self, result: Result<Posted, PostError>) -> Result<Posted, PostError> {
        if result == Err(PostError::Again) {
            (self.starved, self.drained) = (true, false);
        }
        result
    }

    /// Whether so many bytes can be staged, if need be after handing others over.
    #[inline]
    fn makes_room(&mut self, index: usize, bytes: u32) -> bool {
        let wanted = bytes + ROOM_FOR_SUMS + ROOM_FOR_ANSWERS;
        if self.streams[index].out.has_room(wanted) {
            return true;
        }
        self.flush_stream(index, &mut POST_BYTES.clone());
        self.streams[index].out.has_room(wanted)
    }

    /// Whether the kernel may take what is posted now at once, behind staged bytes alone.
    fn is_ready(&mut self, index: usize) -> bool {
        if self.streams[index].out.has_spans() {
            self.flush_stream(index, &mut POST_BYTES.clone());
        }
        let stream = &self.streams[index];
        !stream.is_blocked && !stream.out.has_spans()
    }

    fn send(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> Result<(), PostError> {
        let index = self.stream_index(peer, 0);
        let length = payload.length().0;
        if length > self.send_payload_max(peer).0 {
            return Err(PostError::Unsupported);
        }
        let is_direct = length > u64::from(SHORT_BYTES_MAX);
        if is_direct && !self.is_ready(index) {
            return Err(PostError::Again);
        }
        if !self.makes_room(index, HEADER_BYTES_MAX as u32 + length as u32) {
            return Err(PostError::Again);
        }
        let mut header = [0; HEADER_BYTES_MAX];
        StreamFrame::Send { length: length as u32 }.encode(&mut header);
        header[SEND_HEAD_AT..].copy_from_slice(head);
        let stream = &mut self.streams[index];
        stream.put_header(&header);
        if is_direct {
            // SAFETY: the span's maker vouches for it until the op has completed, which is now.
            unsafe { self.send_directly(index, payload) };
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { stream.out.put_from(payload.address(), length as u32) };
        // SAFETY: as above.
        unsafe { stream.put_sum(payload.address(), length) };
        stream.out.message_ends();
        self.mark_dirty(index);
        Ok(())
    }

    #[inline]
    fn line(
        &mut self,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
    ) -> Result<Posted, PostError> {
        let index = self.stream_index(peer, 0);
        if !self.makes_room(index, (WRITE_HEADER_BYTES + LINE_BYTES) as u32) {
            return Err(PostError::Again);
        }
        let (key, address) = (target.key.0, target.address);
        let header = SilentWrite { length: LINE_BYTES as u32, key, address };
        let stream = &mut self.streams[index];
        stream.put_header(&header.encode());
        stream.put_line(line);
        self.mark_dirty(index);
        Ok(Posted::Done)
    }

    fn write(&mut self, op: &Op) -> Result<Posted, PostError> {
        let OpKind::Write { source, target, immediate } = &op.kind else {
            unreachable!("called for writes")
        };
        match source {
            Source::Line(line) if immediate.is_none() => self.line(op.peer, *target, line),
            Source::Line(line) => {
                let index = self.stream_index(op.peer, 0);
                let bytes = HEADER_BYTES_MAX + LINE_BYTES;
                if !self.makes_room(index, bytes as u32) {
                    return Err(PostError::Again);
                }
                self.stage_write(index, *target, LINE_BYTES as u32, *immediate, true);
                self.streams[index].put_line(line);
                self.mark_dirty(index);
                Ok(Posted::Done)
            }
            Source::Span(span) => self.write_span(op, *span, *target, *immediate),
        }
    }

    fn stage_write(
        &mut self,
        index: usize,
        target: RemoteSpan,
        length: u32,
        immediate: Option<u32>,
        silent: bool,
    ) {
        let (key, address) = (target.key.0, target.address);
        self.stage(index, &StreamFrame::Write { length, key, address, immediate, silent });
    }

    fn write_span(
        &mut self,
        op: &Op,
        span: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        let length = span.length().0;
        if length > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(PostError::Unsupported);
        }
        if self.has_helpers()
            && length >= LONG_WRITE
            && let Some(posted) = self.hand_over(op, span, target, immediate)
        {
            return posted;
        }
        let index = self.write_stream(op.peer, length);
        let copied = if length <= COPIED_MAX { length as u32 } else { 0 };
        let room = self.makes_room(index, HEADER_BYTES_MAX as u32 + copied);
        let stream = &self.streams[index];
        if !room || !stream.takes_writes() || !stream.out.has_span_room() || self.ops.is_full() {
            return Err(PostError::Again);
        }
        let Some(pin) = self.pin(span) else { return self.refuse(op) };
        let mut entry = Entry { peer: op.peer, id: op.id, pin, ..Entry::default() };
        self.stage_write(index, target, length as u32, immediate, false);
        let stream = &mut self.streams[index];
        let out = &mut stream.out;
        if copied > 0 {
            // SAFETY: the span's maker vouches for it.
            unsafe { out.put_from(span.address(), copied) };
        } else if length > 0 {
            entry.span = out.next_span().wrapping_add(1);
            // SAFETY: the span's maker vouches for it until the op has completed, before which the
            // queue has sent or dropped it (`take_done`); its region is pinned until then.
            unsafe { out.span(span.address(), length, 0) };
        }
        // SAFETY: as above.
        unsafe { stream.put_sum(span.address(), length) };
        self.fly(index, entry);
        Ok(Posted::Pending)
    }

    /// The stream that a write of so many bytes takes.
    fn write_stream(&self, peer: PeerIndex, length: u64) -> usize {
        let first = self.stream_index(peer, 0);
        let beside = usize::from(!self.is_bulk);
        let others = first + beside..first + self.peers[peer.as_usize()].streams as usize;
        if length < LONG_WRITE || others.is_empty() {
            return first;
        }
        others.min_by_key(|index| self.streams[*index].out.queued()).unwrap_or(first)
    }

    /// Pins a span's region: its number plus one, or 0 for a span of no bytes. `None`: it lies in
    /// no region.
    pub(super) fn pin(&self, span: LocalSpan) -> Option<u32> {
        if span.length() == Bytes::ZERO || self.is_bulk {
            return Some(0); // or it is pinned already
        }
        let region = self.domain.hold(span.key(), span.address(), span.length().0)?;
        Some(region + 1)
    }

    /// Accepts an op that ends with [`Outcome::Key`]. There is room for it.
    pub(super) fn refuse(&mut self, op: &Op) -> Result<Posted, PostError> {
        let outcome = Outcome::Key;
        let entry = Entry { peer: op.peer, id: op.id, outcome, ..Entry::default() };
        let index = self.ops.acquire(entry).ok_or(PostError::Again)?;
        self.ops.finish(index);
        self.peers[op.peer.as_usize()].in_flight += 1;
        Ok(Posted::Pending)
    }

    /// Files a write or an add that was staged. There is room for it.
    fn fly(&mut self, index: usize, entry: Entry) {
        let peer = entry.peer.as_usize();
        let op = self.ops.acquire(entry).expect("a free entry was seen");
        let stream = &mut self.streams[index];
        stream.posted = stream.posted.wrapping_add(1);
        self.ops.append(&mut stream.flying, op);
        self.peers[peer].in_flight += 1;
        self.mark_dirty(index);
    }

    fn post_read(&mut self, op: &Op, to: LocalSpan, from: RemoteSpan) -> Result<Posted, PostError> {
        let index = self.stream_index(op.peer, 0);
        if to.length().0 > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(PostError::Unsupported);
        }
        let room = self.makes_room(index, HEADER_BYTES_MAX as u32);
        if !room || !self.streams[index].takes_reads() || self.ops.is_full() {
            return Err(PostError::Again);
        }
        let Some(pin) = self.pin(to) else { return self.refuse(op) };
        let length = to.length().0 as u32;
        let stream = &mut self.streams[index];
        let token = stream.reads_posted;
        stream.reads_posted = token.wrapping_add(1);
        let (key, address) = (from.key.0, from.address);
        self.stage(index, &StreamFrame::Read { length, token, key, address });
        let (peer, id, address) = (op.peer, op.id, to.address());
        let entry = Entry { peer, id, address, length, pin, ..Entry::default() };
        let number = self.ops.acquire(entry).expect("a free entry was seen");
        self.ops.append(&mut self.streams[index].reads, number);
        self.peers[op.peer.as_usize()].in_flight += 1;
        self.mark_dirty(index);
        Ok(Posted::Pending)
    }

    fn add(&mut self, op: &Op, target: RemoteSpan, value: u64) -> Result<Posted, PostError> {
        if !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        let index = self.stream_index(op.peer, 0);
        let room = self.makes_room(index, HEADER_BYTES_MAX as u32);
        if !room || !self.streams[index].takes_writes() || self.ops.is_full() {
            return Err(PostError::Again);
        }
        let (key, address) = (target.key.0, target.address);
        self.stage(index, &StreamFrame::Add { key, address, value });
        self.fly(index, Entry { peer: op.peer, id: op.id, ..Entry::default() });
        Ok(Posted::Pending)
    }

    fn post_fence(&mut self, op: &Op, generation: u32) -> Result<Posted, PostError> {
        if self.ops.is_full_of_fences() {
            return Err(PostError::Again);
        }
        self.fence(op.peer.as_usize());
        let (peer, id, is_fence) = (op.peer, op.id, true);
        let entry = Entry { peer, id, is_fence, generation, ..Entry::default() };
        let index = self.ops.acquire(entry).expect("a free entry was seen");
        self.peers[op.peer.as_usize()].in_flight += 1;
        self.finish_fence(op.peer.as_usize(), index);
        Ok(Posted::Pending)
    }

    /// Where a held payload lies from `offset` on, of which `length` bytes are wanted.
    #[inline]
    fn payload(&self, peer: PeerIndex, slot: RecvSlot, offset: u64, length: u64) -> u64 {
        let peer = peer.as_usize();
        let record = self.peers[peer].slot(&self.area, peer, slot.0);
        let whole = u64::from(record.length);
        assert!(offset <= whole && length <= whole - offset, "bytes inside the payload");
        record.address + offset
    }
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
        self.streams[self.stream_index(peer, 0)].out.sent_through()
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        self.streams[self.stream_index(peer, 0)].out.staged() != 0
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
            OpKind::Write { .. } => self.write(op),
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
        let result = self.line(peer, target, line);
        self.note_starved(result)
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        self.takes_ops(peer) && self.send(peer, head, payload).is_ok()
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let is_timed = self.wants_time();
        if self.is_watching {
            self.poll_awake();
        }
        let mut events = Events { slots: out, used: 0 };
        if self.has_helpers() {
            if self.armed {
                self.disarm_aside();
            }
            self.hear(&mut events);
        }
        if !self.dirty.is_empty() {
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
        if !self.dirty.is_empty() {
            self.flush_dirty(&mut budget.0.clone());
        }
    }

    #[inline]
    fn look_at(&mut self, peer: PeerIndex) {
        let index = self.stream_index(peer, 0);
        let stream = &self.streams[index];
        // that a full one has room again is seen where all are asked
        if self.peers[peer.as_usize()].streams == 1 && stream.is_open && !stream.wants_room {
            self.only = index as u32;
        }
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
        match self.peers.get(peer.as_usize()) {
            None => Err(CloseError::Stale),
            Some(record) if record.state == State::Closed => Err(CloseError::Stale),
            Some(record) if record.in_flight > 0 => Err(CloseError::Busy),
            Some(_) => {
                self.forget(peer.as_usize());
                self.discard(peer.as_usize());
                Ok(())
            }
        }
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
