//! The way out: answers and read replies are staged, and everything goes to the kernel.

use super::out::PIECES_MAX;
use super::rail::Tcp;
use super::socket::{self, Moved, NO_PIECE, Piece};
use super::stream::Stream;
use super::sums::{self, SUM_BYTES};
use crate::fabric::{Line, LocalSpan, RailKey};
use crate::wire::stream::{HEADER_BYTES_MAX, StreamFrame};

/// Staged bytes that ops leave free for answers: 64 refusals, and the count, with their sums.
pub(super) const ROOM_FOR_ANSWERS: u32 = 1024;
/// Room for the sums of a header and of a payload.
pub(super) const ROOM_FOR_SUMS: u32 = 2 * SUM_BYTES as u32;
/// Payloads up to here are copied to the staged bytes: cheaper than a piece of their own.
pub(super) const COPIED_MAX: u64 = 1024;
/// Bytes of one call at least, so that a small budget does not cost a call per page.
const CALL_BYTES_MIN: u64 = 64 << 10;

impl Tcp<'_> {
    /// Hands what is staged to the kernel, about `budget` bytes of it.
    #[inline]
    pub(super) fn flush_dirty(&mut self, budget: &mut u64) {
        for _ in 0..self.dirty.len() {
            if *budget == 0 {
                return; // those that are left come first the next time
            }
            let Some(index) = self.dirty.pop() else { return };
            let index = index as usize;
            self.streams[index].is_dirty = false;
            self.flush_stream(index, budget);
            let stream = &self.streams[index];
            if !stream.is_open || stream.out.is_empty() {
                continue;
            }
            if stream.is_blocked && !self.reads_directly() {
                self.want_room(index);
            } else {
                self.mark_dirty(index);
            }
        }
    }

    /// The same for one stream.
    pub(super) fn flush_stream(&mut self, index: usize, budget: &mut u64) {
        if !self.streams[index].is_open || !self.takes_bytes(index) {
            return;
        }
        if self.streams[index].owed() > 0 {
            self.stage_answers(index);
        }
        self.serve(index);
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
                Moved::Broken(code) => {
                    let (peer, _) = self.peer_of(index);
                    return self.end_unsure(peer, code);
                }
            };
            let domain = self.domain;
            stream.out.advance(sent as u64, |region| domain.pin(region, -1));
            stream.is_blocked = sent < wanted;
            self.moved |= sent > 0;
            self.drained |= sent > 0;
            *budget = budget.saturating_sub(sent as u64);
            if stream.is_blocked {
                return;
            }
            self.serve(index);
        }
        let stream = &self.streams[index];
        if stream.wants_room && stream.out.is_empty() {
            self.want_no_room(index);
        }
    }

    /// Hands over what is staged, which ends with the head of a message, and behind it the payload,
    /// which is so spared a copy; stages what the kernel does not take. There is room for it.
    ///
    /// # Safety
    /// - the payload is valid for reads.
    pub(super) unsafe fn send_directly(&mut self, index: usize, payload: LocalSpan) {
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
                    let (peer, _) = self.peer_of(index);
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
            self.mark_dirty(index);
        }
    }

    /// Whether the stream's peer still wants bytes.
    fn takes_bytes(&self, index: usize) -> bool {
        self.peers[self.peer_of(index).0].takes_ops()
    }

    /// Stages a header.
    #[inline]
    pub(super) fn stage(&mut self, index: usize, frame: &StreamFrame) {
        let mut header = [0; HEADER_BYTES_MAX];
        let length = frame.encode(&mut header);
        self.streams[index].put_header(&header[..length]);
    }

    /// Stages what is owed to the peer, if there is room.
    fn stage_answers(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if !stream.out.has_room(ROOM_FOR_ANSWERS) {
            return;
        }
        let (told, answered) = (stream.told, stream.answered);
        let mut refused = core::mem::take(&mut stream.refused);
        stream.told = answered;
        stream.answer_now = false;
        while refused != 0 {
            let index_of_op = told.wrapping_add(refused.trailing_zeros());
            refused &= refused - 1;
            self.stage(index, &StreamFrame::Failed { index: index_of_op });
        }
        self.stage(index, &StreamFrame::Done { through: answered });
    }

    /// Answers the peer's reads, oldest first, as far as there is room.
    #[inline]
    fn serve(&mut self, index: usize) {
        let stream = &self.streams[index];
        if stream.served != stream.asked {
            self.serve_all(index);
        }
    }

    #[inline(never)]
    fn serve_all(&mut self, index: usize) {
        while self.streams[index].served != self.streams[index].asked {
            if !self.serve_one(index) {
                return;
            }
        }
    }

    fn serve_one(&mut self, index: usize) -> bool {
        let (peer, n) = self.peer_of(index);
        let stream = &self.streams[index];
        let room = ROOM_FOR_ANSWERS + HEADER_BYTES_MAX as u32 + COPIED_MAX as u32 + ROOM_FOR_SUMS;
        if !stream.out.has_room(room) || !stream.out.has_span_room() {
            return false;
        }
        // SAFETY: between `served` and `asked`, so it was written when the read came.
        let asked = unsafe { self.area.asked(peer, n, stream.served).read() };
        let found = match asked.length {
            0 => None,
            length => self.domain.hold(RailKey(asked.key), asked.address, length.into()),
        };
        let refused = found.is_none() && asked.length > 0;
        let length = if refused { 0 } else { asked.length };
        let token = asked.token;
        self.stage(index, &StreamFrame::ReadReply { length, token, refused });
        let stream = &mut self.streams[index];
        stream.served = stream.served.wrapping_add(1);
        let Some(region) = found else { return true };
        let is_copied = u64::from(length) <= COPIED_MAX;
        if is_copied {
            // SAFETY: the range lies in a registered region, which is pinned (`hold`).
            unsafe { stream.out.put_from(asked.address, length) };
        } else {
            // SAFETY: as above; pinned until the span was sent or dropped.
            unsafe { stream.out.span(asked.address, length.into(), region + 1) };
        }
        // SAFETY: as above.
        unsafe { stream.put_sum(asked.address, length.into()) };
        if is_copied {
            self.domain.pin(region, -1);
        }
        true
    }
}

impl Stream {
    /// Stages a header, for which there is room.
    #[inline]
    pub(super) fn put_header(&mut self, header: &[u8]) {
        self.out.put(header);
        if self.sums {
            self.out.put(&sums::of(header).to_le_bytes());
        }
    }

    /// Stages a line behind its header.
    #[inline]
    pub(super) fn put_line(&mut self, line: &Line) {
        self.out.put(line);
        if self.sums {
            self.out.put(&sums::of(line).to_le_bytes());
        }
    }

    /// Stages the sum of a payload that was staged, or queued, or sent, where sums are wanted.
    ///
    /// # Safety
    /// - the payload is valid for reads.
    #[inline]
    pub(super) unsafe fn put_sum(&mut self, address: u64, length: u64) {
        if self.sums && length > 0 {
            // SAFETY: the caller vouches for the payload.
            let sum = unsafe { sums::of_memory(0, address, length) };
            self.out.put(&sum.to_le_bytes());
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
