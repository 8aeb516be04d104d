//! The way out: posts stage frames, and everything goes to the kernel.

use super::area::SHORT_BYTES_MAX;
use super::ops::{Entry, Outcome};
use super::out::PIECES_MAX;
use super::rail::Tcp;
use super::socket::{self, Moved, NO_PIECE, Piece};
use super::stream::{COPIED_MAX, ROOM_FOR_ANSWERS, ROOM_FOR_SUMS, Stream};
use super::threads::Command;
use crate::base::ids::PeerIndex;
use crate::base::units::Bytes;
use crate::fabric::{
    HEAD_BYTES, Head, LINE_BYTES, Line, LocalSpan, Op, PostError, Posted, Provider, RemoteSpan,
    Source,
};
use crate::wire::stream::{
    HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX, SEND_HEAD_AT, SilentWrite, StreamFrame,
};

/// Writes from here on go over the streams beside the first, where there are any: it stays free
/// for what is short.
const LONG_WRITE: u64 = 64 << 10;
/// What a post hands over when it needs room.
const POST_BYTES: u64 = 64 << 10;
/// Bytes of one call at least, so that a small budget does not cost a call per page.
const CALL_BYTES_MIN: u64 = 64 << 10;

const _: () = assert!(SEND_HEAD_AT + HEAD_BYTES == HEADER_BYTES_MAX);

impl Tcp<'_> {
    #[inline]
    pub(super) fn takes_ops(&self, peer: PeerIndex) -> bool {
        self.peers.get(peer.as_usize()).is_some_and(|peer| peer.takes_ops())
    }

    /// Remembers that an op found no room.
    #[inline]
    pub(super) fn note_starved(
        &mut self,
        result: Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
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

    pub(super) fn send(
        &mut self,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
    ) -> Result<(), PostError> {
        let index = self.streams.first_of(peer.as_usize());
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
        stream.put(&header);
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
        self.streams.mark_dirty(index);
        Ok(())
    }

    #[inline]
    pub(super) fn line(
        &mut self,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        let index = self.streams.first_of(peer.as_usize());
        if !self.makes_room(index, (HEADER_BYTES_MAX + LINE_BYTES) as u32) {
            return Err(PostError::Again);
        }
        let (length, key, address) = (LINE_BYTES as u32, target.key.0, target.address);
        let stream = &mut self.streams[index];
        if immediate.is_none() {
            stream.put(&SilentWrite { length, key, address }.encode());
        } else {
            let silent = true;
            stream.stage(&StreamFrame::Write { length, key, address, immediate, silent });
        }
        stream.put(line);
        self.streams.mark_dirty(index);
        Ok(Posted::Done)
    }

    pub(super) fn write(
        &mut self,
        op: &Op,
        source: &Source,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        match source {
            Source::Line(line) => self.line(op.peer, target, line, immediate),
            Source::Span(span) => self.write_span(op, *span, target, immediate),
        }
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
        if self.helpers.are_up()
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
        let stream = &mut self.streams[index];
        let (length_sent, key, address) = (length as u32, target.key.0, target.address);
        let silent = false;
        stream.stage(&StreamFrame::Write { length: length_sent, key, address, immediate, silent });
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

    /// Hands a long write to a copy thread. `None`: none has streams of the peer.
    fn hand_over(
        &mut self,
        op: &Op,
        source: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Option<Result<Posted, PostError>> {
        let peer = op.peer;
        let aside = &self.peers[peer.as_usize()].aside;
        let thread = self.helpers.idlest(aside)?;
        if !aside.takes_writes(thread) || self.ops.is_full() {
            return Some(Err(PostError::Again));
        }
        let Some(pin) = self.pin(source) else { return Some(self.refuse(op)) };
        let length = source.length().0 as u32;
        let op = self.accept(Entry { peer, id: op.id, pin, length, ..Entry::default() });
        self.peers[peer.as_usize()].aside.write_begins(thread);
        let command = Command::Write { op, peer, source, target, immediate };
        self.helpers.write(thread, length, command);
        Some(Ok(Posted::Pending))
    }

    /// The stream that a write of so many bytes takes.
    fn write_stream(&self, peer: PeerIndex, length: u64) -> usize {
        let first = self.streams.first_of(peer.as_usize());
        let beside = usize::from(!self.is_bulk);
        let others = first + beside..first + self.peers[peer.as_usize()].streams as usize;
        if length < LONG_WRITE || others.is_empty() {
            return first;
        }
        others.min_by_key(|index| self.streams[*index].out.queued()).unwrap_or(first)
    }

    /// Pins a span's region: its number plus one, or 0 for a span of no bytes. `None`: it lies in
    /// no region.
    fn pin(&self, span: LocalSpan) -> Option<u32> {
        if span.length() == Bytes::ZERO || self.is_bulk {
            return Some(0); // or it is pinned already
        }
        let region = self.domain.hold(span.key(), span.address(), span.length().0)?;
        Some(region + 1)
    }

    /// Accepts an op, for which there is room.
    fn accept(&mut self, entry: Entry) -> u32 {
        self.peers[entry.peer.as_usize()].in_flight += 1;
        self.ops.acquire(entry).expect("a free entry was seen")
    }

    /// Accepts an op that ends with [`Outcome::Key`]. There is room for it.
    fn refuse(&mut self, op: &Op) -> Result<Posted, PostError> {
        let outcome = Outcome::Key;
        let op = self.accept(Entry { peer: op.peer, id: op.id, outcome, ..Entry::default() });
        self.ops.finish(op);
        Ok(Posted::Pending)
    }

    /// Files a write or an add that was staged. There is room for it.
    fn fly(&mut self, index: usize, entry: Entry) {
        let op = self.accept(entry);
        let stream = &mut self.streams[index];
        stream.posted = stream.posted.wrapping_add(1);
        self.ops.append(&mut stream.flying, op);
        self.streams.mark_dirty(index);
    }

    pub(super) fn post_read(
        &mut self,
        op: &Op,
        to: LocalSpan,
        from: RemoteSpan,
    ) -> Result<Posted, PostError> {
        let index = self.streams.first_of(op.peer.as_usize());
        if to.length().0 > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(PostError::Unsupported);
        }
        let room = self.makes_room(index, HEADER_BYTES_MAX as u32);
        if !room || !self.streams[index].takes_reads() || self.ops.is_full() {
            return Err(PostError::Again);
        }
        let Some(pin) = self.pin(to) else { return self.refuse(op) };
        let length = to.length().0 as u32;
        let (peer, id, address) = (op.peer, op.id, to.address());
        let number = self.accept(Entry { peer, id, address, length, pin, ..Entry::default() });
        let stream = &mut self.streams[index];
        let token = stream.reads_posted;
        stream.reads_posted = token.wrapping_add(1);
        let (key, address) = (from.key.0, from.address);
        stream.stage(&StreamFrame::Read { length, token, key, address });
        self.ops.append(&mut stream.reads, number);
        self.streams.mark_dirty(index);
        Ok(Posted::Pending)
    }

    pub(super) fn add(
        &mut self,
        op: &Op,
        target: RemoteSpan,
        value: u64,
    ) -> Result<Posted, PostError> {
        if !target.address.is_multiple_of(8) {
            return Err(PostError::Unsupported);
        }
        let index = self.streams.first_of(op.peer.as_usize());
        let room = self.makes_room(index, HEADER_BYTES_MAX as u32);
        if !room || !self.streams[index].takes_writes() || self.ops.is_full() {
            return Err(PostError::Again);
        }
        let (key, address) = (target.key.0, target.address);
        self.streams[index].stage(&StreamFrame::Add { key, address, value });
        self.fly(index, Entry { peer: op.peer, id: op.id, ..Entry::default() });
        Ok(Posted::Pending)
    }

    pub(super) fn post_fence(&mut self, op: &Op, generation: u32) -> Result<Posted, PostError> {
        if self.ops.is_full_of_fences() {
            return Err(PostError::Again);
        }
        self.fence(op.peer.as_usize());
        let (peer, id, is_fence) = (op.peer, op.id, true);
        let fence = self.accept(Entry { peer, id, is_fence, generation, ..Entry::default() });
        self.peers[peer.as_usize()].aside.finish_fence(&mut self.ops, fence);
        Ok(Posted::Pending)
    }

    /// Hands what is staged to the kernel, about `budget` bytes of it.
    #[inline]
    pub(super) fn flush_dirty(&mut self, budget: &mut u64) {
        for _ in 0..self.streams.dirty_count() {
            if *budget == 0 {
                return; // those that are left come first the next time
            }
            let Some(index) = self.streams.take_dirty() else { return };
            self.flush_stream(index, budget);
            let stream = &self.streams[index];
            if stream.is_open && !stream.out.is_empty() {
                self.streams.waits(index);
            }
        }
    }

    /// The same for one stream.
    pub(super) fn flush_stream(&mut self, index: usize, budget: &mut u64) {
        let (peer, _) = self.streams.peer_of(index);
        let stream = &mut self.streams[index];
        if !stream.is_open || !self.peers[peer].takes_ops() {
            return;
        }
        if stream.owed() > 0 {
            stream.stage_answers();
        }
        if stream.has_asked() {
            self.serve_all(index);
        }
        while !self.streams[index].out.is_empty() && *budget > 0 {
            let stream = &mut self.streams[index];
            let (wanted, moved) = match stream.out.only_staged() {
                Some(mut piece) => {
                    // SAFETY: staged bytes.
                    let moved =
                        unsafe { socket::send(stream.fd, core::slice::from_mut(&mut piece)) };
                    (piece.iov_len, moved)
                }
                // SAFETY: staged bytes, and spans whose regions are pinned until they were sent.
                None => unsafe { send_gathered(stream, (*budget).min(self.call_bytes)) },
            };
            let sent = match moved {
                Moved::Bytes(sent) => sent,
                Moved::Nothing => 0,
                Moved::Ended => return,
                Moved::Broken(code) => return self.end_unsure(peer, code),
            };
            stream.out.advance(sent as u64, |region| self.domain.pin(region, -1));
            stream.is_blocked = sent < wanted;
            self.moved |= sent > 0;
            self.drained |= sent > 0;
            *budget = budget.saturating_sub(sent as u64);
            if stream.is_blocked {
                return;
            }
            if stream.has_asked() {
                self.serve_all(index);
            }
        }
        if self.streams[index].out.is_empty() {
            self.streams.want_no_room(index);
        }
    }

    /// Hands over what is staged, which ends with the head of a message, and behind it the payload,
    /// which is so spared a copy; stages what the kernel does not take. There is room for it.
    ///
    /// # Safety
    /// - the payload is valid for reads.
    unsafe fn send_directly(&mut self, index: usize, payload: LocalSpan) {
        let stream = &mut self.streams[index];
        let (address, length) = (payload.address(), payload.length().0);
        let mut sent = 0;
        if let Some(staged) = stream.out.only_staged() {
            let place = Piece { iov_base: address as *mut _, iov_len: length as usize };
            // SAFETY: staged bytes, and the caller vouches for the payload.
            let moved = unsafe { socket::send(stream.fd, &mut [staged, place]) };
            let all = match moved {
                Moved::Bytes(all) => all as u64,
                Moved::Nothing | Moved::Ended => 0,
                Moved::Broken(code) => {
                    let (peer, _) = self.streams.peer_of(index);
                    return self.end_unsure(peer, code);
                }
            };
            sent = stream.out.advance_past(all);
            stream.is_blocked = sent < length;
            self.moved |= all > 0;
            self.drained |= all > 0;
        }
        // SAFETY: the caller vouches for the payload.
        unsafe { stream.out.put_from(address + sent, (length - sent) as u32) };
        // SAFETY: as above.
        unsafe { stream.put_sum(address, length) };
        stream.out.direct_ends();
        if !stream.out.is_empty() {
            self.streams.mark_dirty(index);
        }
    }

    /// Answers the peer's reads, oldest first, as far as there is room.
    #[inline(never)]
    fn serve_all(&mut self, index: usize) {
        let (peer, n) = self.streams.peer_of(index);
        let stream = &mut self.streams[index];
        while stream.has_asked() && stream.has_room_to_serve() {
            // SAFETY: between `served` and `asked`, so it was written when the read came.
            let asked = unsafe { self.area.asked(peer, n, stream.served).read() };
            stream.serve(&asked, &self.domain);
        }
    }
}

/// One call for staged bytes and spans; says how many bytes it was given, and what it took.
///
/// # Safety
/// - the regions of all spans that wait are pinned.
#[inline(never)]
unsafe fn send_gathered(stream: &mut Stream, budget: u64) -> (usize, Moved) {
    let mut pieces = [NO_PIECE; PIECES_MAX];
    let most = budget.max(CALL_BYTES_MIN);
    let count = stream.out.gather(&mut pieces, most);
    let wanted = pieces[..count].iter().map(|piece| piece.iov_len).sum();
    // SAFETY: staged bytes lie in the storage, and the caller vouches for the spans.
    (wanted, unsafe { socket::send(stream.fd, &mut pieces[..count]) })
}
