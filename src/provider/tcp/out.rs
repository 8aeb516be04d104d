//! What waits to be sent on one stream: staged bytes, and between them spans of user memory.

use super::socket::Piece;
use crate::base::carve::Zeroable;
use crate::fabric::SentThrough;
use crate::provider::touch;

/// Spans that may wait: every unanswered write and read reply of a stream, rounded up.
pub const SPANS_MAX: u32 = 128;
/// Pieces of one gathered call. Two per long write; more in one call do not make it cheaper.
pub const PIECES_MAX: usize = 32;

/// User memory that waits to be sent.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct OutSpan {
    /// Staged bytes up to this count go first.
    at: u32,
    /// The region to let go when it was sent, plus one; 0: somebody else does that.
    pin: u32,
    address: u64,
    left: u64,
}

/// The queue. Counts of staged bytes run freely and wrap. Zeroed: no storage, nothing queued.
#[derive(Debug)]
#[repr(C)]
pub struct Out {
    staging: *mut u8,
    spans: *mut OutSpan,
    size: u32,
    /// Count of the byte that lies first in the storage.
    origin: u32,
    /// How many were handed to the kernel.
    sent: u32,
    /// How many were staged.
    filled: u32,
    /// Count of the oldest span.
    first: u32,
    /// Count of the next span.
    next: u32,
    /// Bytes of all spans.
    span_bytes: u64,
    /// Bytes that were handed to the kernel, spans and all.
    handed: u64,
    /// How many that will be when the last message has been.
    message_end: u64,
    /// The same of the last one that went to the kernel at once, as far as it took it.
    direct_end: u64,
}

// SAFETY: integers, and pointers that are null: a queue without storage.
unsafe impl Zeroable for Out {}

impl Out {
    /// An empty queue.
    ///
    /// # Safety
    /// - `staging` is valid for `size` bytes, and `spans`, aligned to 8, for [`SPANS_MAX`] spans,
    ///   for as long as the queue is used; nobody else touches either.
    pub unsafe fn new(staging: *mut u8, size: u32, spans: *mut u8) -> Out {
        Out { staging, spans: spans.cast(), size, ..Out::zeroed() }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent == self.filled && self.first == self.next
    }

    /// Bytes that wait.
    #[inline]
    pub fn queued(&self) -> u64 {
        u64::from(self.staged()) + self.span_bytes
    }

    /// Staged bytes that wait.
    #[inline]
    pub fn staged(&self) -> u32 {
        self.filled.wrapping_sub(self.sent)
    }

    /// Says that what was staged last is the end of a message.
    #[inline]
    pub fn message_ends(&mut self) {
        self.message_end = self.handed + self.queued();
    }

    /// The same of a message that the kernel was asked to take at once.
    pub fn direct_ends(&mut self) {
        self.message_ends();
        self.direct_end = self.message_end;
    }

    /// What the kernel was handed, and where the last such message ends.
    pub fn sent_through(&self) -> SentThrough {
        SentThrough { left: self.handed, posted: self.direct_end }
    }

    /// Whether some of the messages waits, or is among the last bytes that the kernel was handed,
    /// so many, which the peer's has not acknowledged.
    pub fn is_message_left(&self, unacknowledged: u64) -> bool {
        self.handed.saturating_sub(unacknowledged) < self.message_end
    }

    /// Whether so many more bytes can be staged.
    #[inline]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.size - self.staged() >= bytes
    }

    /// Whether one more span can be queued.
    #[inline]
    pub fn has_span_room(&self) -> bool {
        self.next.wrapping_sub(self.first) < SPANS_MAX
    }

    /// Stages bytes, for which there is room.
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        let to = self.stage(bytes.len() as u32);
        // SAFETY: `stage` has found room for as many bytes.
        unsafe { touch::copy_out(bytes, to as u64) };
    }

    /// Stages bytes of user memory, for which there is room.
    ///
    /// # Safety
    /// - `from` is valid for reads of `length` bytes.
    #[inline]
    pub unsafe fn put_from(&mut self, from: u64, length: u32) {
        let to = self.stage(length);
        // SAFETY: `stage` has found room, and the caller vouches for the source.
        unsafe { touch::copy(from, to as u64, length.into()) };
    }

    /// The place of the next `length` bytes, which count as staged from now on.
    #[inline]
    fn stage(&mut self, length: u32) -> *mut u8 {
        debug_assert!(self.has_room(length));
        if self.sent == self.filled {
            self.origin = self.filled;
        } else if self.size - self.filled.wrapping_sub(self.origin) < length {
            self.compact();
        }
        let at = self.filled.wrapping_sub(self.origin);
        assert!(at <= self.size && length <= self.size - at);
        self.filled = self.filled.wrapping_add(length);
        // SAFETY: inside the storage, as just asserted.
        unsafe { self.staging.add(at as usize) }
    }

    /// Moves what waits to the start of the storage.
    #[cold]
    fn compact(&mut self) {
        let gone = self.sent.wrapping_sub(self.origin) as usize;
        // SAFETY: `gone + staged` bytes lie in the storage; the ranges may overlap.
        unsafe { self.staging.copy_from(self.staging.add(gone), self.staged() as usize) };
        self.origin = self.sent;
    }

    /// Queues user memory behind everything else. There is room, and `length` is not zero.
    ///
    /// # Safety
    /// - the memory stays valid for reads until the span was sent or [`Out::clear`]ed.
    pub unsafe fn span(&mut self, address: u64, length: u64, pin: u32) {
        assert!(self.has_span_room() && length > 0);
        let span = OutSpan { at: self.filled, pin, address, left: length };
        // SAFETY: the place is masked to the storage.
        unsafe { self.place(self.next).write(span) };
        self.next = self.next.wrapping_add(1);
        self.span_bytes += length;
    }

    /// Whether spans wait.
    #[inline]
    pub fn has_spans(&self) -> bool {
        self.first != self.next
    }

    /// The count of the next span that is queued.
    #[inline]
    pub fn next_span(&self) -> u32 {
        self.next
    }

    /// Whether the span of that count was sent, all of it.
    #[inline]
    pub fn is_sent(&self, count: u32) -> bool {
        count.wrapping_sub(self.first) >= self.next.wrapping_sub(self.first)
    }

    fn place(&self, count: u32) -> *mut OutSpan {
        // SAFETY: below SPANS_MAX, for which the storage is valid (`new`).
        unsafe { self.spans.add((count % SPANS_MAX) as usize) }
    }

    /// What waits, if that is staged bytes alone; something waits.
    #[inline]
    pub fn only_staged(&self) -> Option<Piece> {
        if self.has_spans() {
            return None;
        }
        let at = self.sent.wrapping_sub(self.origin) as usize;
        // SAFETY: staged bytes lie in the storage.
        let start = unsafe { self.staging.add(at) };
        Some(Piece { iov_base: start.cast(), iov_len: self.staged() as usize })
    }

    /// The first pieces of what waits, about `most` bytes; says how many pieces.
    pub fn gather(&self, pieces: &mut [Piece; PIECES_MAX], most: u64) -> usize {
        let (mut staged, mut span, mut count, mut total) = (self.sent, self.first, 0, 0);
        while count < PIECES_MAX && total < most {
            let front = (span != self.next).then(|| {
                // SAFETY: between `first` and `next`, so it was written.
                unsafe { self.place(span).read() }
            });
            let until = front.map_or(self.filled, |front| front.at);
            let length = until.wrapping_sub(staged);
            let piece = if length > 0 {
                let at = staged.wrapping_sub(self.origin) as usize;
                staged = until;
                // SAFETY: staged bytes lie in the storage.
                let start = unsafe { self.staging.add(at) };
                Piece { iov_base: start.cast(), iov_len: length as usize }
            } else if let Some(front) = front {
                span = span.wrapping_add(1);
                let length = front.left.min(most - total) as usize;
                if (length as u64) < front.left {
                    span = self.next; // it is not whole, so nothing goes behind it
                    staged = self.filled;
                }
                Piece { iov_base: front.address as *mut _, iov_len: length }
            } else {
                break;
            };
            total += piece.iov_len as u64;
            pieces[count] = piece;
            count += 1;
        }
        count
    }

    /// Counts the first `bytes` as sent, and calls `unpin` for every region that is let go.
    pub fn advance(&mut self, mut bytes: u64, mut unpin: impl FnMut(u32)) {
        self.handed += bytes;
        while bytes > 0 || self.first != self.next {
            let until = match self.first == self.next {
                true => self.filled,
                // SAFETY: between `first` and `next`, so it was written.
                false => unsafe { (*self.place(self.first)).at },
            };
            let staged = u64::from(until.wrapping_sub(self.sent)).min(bytes);
            self.sent = self.sent.wrapping_add(staged as u32);
            bytes -= staged;
            if bytes == 0 || self.first == self.next {
                debug_assert!(bytes == 0);
                return;
            }
            // SAFETY: as above; nobody else holds a reference.
            let span = unsafe { &mut *self.place(self.first) };
            let part = span.left.min(bytes);
            span.left -= part;
            span.address += part;
            self.span_bytes -= part;
            bytes -= part;
            if span.left > 0 {
                return;
            }
            if let Some(region) = span.pin.checked_sub(1) {
                unpin(region);
            }
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Counts staged bytes as sent, and what `bytes` is beyond them as handed to the kernel from
    /// elsewhere; says how many those are. No span waits.
    pub fn advance_past(&mut self, bytes: u64) -> u64 {
        let staged = bytes.min(self.staged().into());
        self.advance(staged, |_| ());
        self.handed += bytes - staged;
        bytes - staged
    }

    /// Drops everything.
    pub fn clear(&mut self, mut unpin: impl FnMut(u32)) {
        while self.first != self.next {
            // SAFETY: between `first` and `next`, so it was written.
            let span = unsafe { self.place(self.first).read() };
            if let Some(region) = span.pin.checked_sub(1) {
                unpin(region);
            }
            self.first = self.first.wrapping_add(1);
        }
        self.sent = self.filled;
        self.span_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::carve::heap::HeapBlock;
    use crate::provider::tcp::socket::NO_PIECE;
    use std::vec::Vec;

    /// What the queue would send, at most `most` bytes.
    fn bytes(out: &Out, most: u64) -> Vec<u8> {
        let mut pieces = [NO_PIECE; PIECES_MAX];
        let count = out.gather(&mut pieces, most);
        let mut all = Vec::new();
        for piece in &pieces[..count] {
            let start: *const u8 = piece.iov_base.cast();
            // SAFETY: pieces lead to staged bytes, or to memory that the test keeps.
            all.extend_from_slice(unsafe { core::slice::from_raw_parts(start, piece.iov_len) });
        }
        all
    }

    #[test]
    fn pieces_come_in_order_however_they_are_taken() {
        for step in 1..40 {
            let mut staging = HeapBlock::new(64);
            let mut spans = HeapBlock::new(SPANS_MAX as usize * size_of::<OutSpan>());
            // SAFETY: both blocks outlive the queue.
            let mut out = unsafe { Out::new(staging.start(), 64, spans.start()) };
            let (mut expected, mut seen) = (Vec::new(), Vec::new());
            let source: Vec<u8> = (0..=255).collect();
            let mut unpinned = 0;
            for round in 0..40u8 {
                while !out.has_room(7) || !out.has_span_room() {
                    let part = bytes(&out, step);
                    let part = &part[..part.len().min(step as usize)];
                    seen.extend_from_slice(part);
                    out.advance(part.len() as u64, |_| unpinned += 1);
                }
                let frame = [round; 7];
                out.put(&frame);
                expected.extend_from_slice(&frame);
                let span = &source[round as usize..][..11 + round as usize];
                // SAFETY: the source outlives the queue.
                unsafe { out.span(span.as_ptr() as u64, span.len() as u64, 1) };
                expected.extend_from_slice(span);
            }
            while !out.is_empty() {
                let part = bytes(&out, step);
                let part = &part[..part.len().min(step as usize)];
                seen.extend_from_slice(part);
                out.advance(part.len() as u64, |_| unpinned += 1);
            }
            assert_eq!((seen == expected, unpinned, out.queued()), (true, 40, 0), "step {step}");
        }
    }
}
