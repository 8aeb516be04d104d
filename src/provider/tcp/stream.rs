//! One stream: what waits to go out, what has come in by halves, and who owes whom an answer.

use super::ops::{List, Ops, Outcome};
use super::out::Out;
use super::peek::Peeked;
use super::sums::{self, SUM_BYTES};
use crate::base::carve::Zeroable;
use crate::fabric::{LINE_BYTES, RailKey};
use crate::provider::host_domain::HostDomain;
use crate::wire::stream::{
    HEADER_BYTES_MAX, READS_MAX, StreamFrame, UNANSWERED_MAX, WRITE_HEADER_BYTES,
};

/// Reads of the peer that may wait to be answered.
pub const ASKED_MAX: usize = READS_MAX as usize;

/// What may be kept of a frame of which the rest has not come: with sums a line, which nobody may
/// see before it is known to be right, else a header.
pub const CARRY_BYTES: usize = WRITE_HEADER_BYTES + LINE_BYTES + 2 * SUM_BYTES;

/// Staged bytes that ops leave free for answers: 64 refusals, and the count, with their sums.
pub const ROOM_FOR_ANSWERS: u32 = 1024;
/// Room for the sums of a header and of a payload.
pub const ROOM_FOR_SUMS: u32 = 2 * SUM_BYTES as u32;
/// Payloads up to here are copied to the staged bytes: cheaper than a piece of their own.
pub const COPIED_MAX: u64 = 1024;

/// The peer broke the rules of the wire.
#[derive(Debug)]
pub struct Garbage;

/// A read of the peer that waits to be answered.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct Asked {
    pub key: u64,
    pub address: u64,
    pub length: u32,
    pub token: u32,
}

/// Where a payload goes that has come in part.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum To {
    /// Between frames.
    #[default]
    Nowhere = 0,
    /// To a receive slot's cell.
    Cell = 1,
    /// To a registered region.
    Region = 2,
    /// To the target of our oldest read.
    Read = 3,
    /// Away: its key was bad.
    Drop = 4,
    /// To the part of a note.
    Note = 5,
}

/// A payload that has come in part. Zeroed: none.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Payload {
    /// The place of its next byte.
    pub address: u64,
    /// Bytes that have not come.
    pub left: u64,
    /// Of a write: the region.
    pub key: u64,
    /// Of a send: the slot.
    pub slot: u32,
    /// Of a write: reported in the end.
    pub immediate: u32,
    /// Whether `immediate` counts.
    pub has_immediate: bool,
    /// Of a write: whether nobody waits for its answer.
    pub silent: bool,
    /// Whether its sum follows.
    pub has_sum: bool,
    /// The sum of what has come.
    pub sum: u32,
    /// Where it goes.
    pub to: To,
}

/// The record of one stream. Zeroed: closed.
#[derive(Debug)]
#[repr(C)]
pub struct Stream {
    pub fd: i32,
    /// Whether the socket is in use.
    pub is_open: bool,
    /// Whether it is in the list of those with something to send.
    pub is_dirty: bool,
    /// Whether we are told when there is room.
    pub wants_room: bool,
    /// Whether the kernel refused the last bytes.
    pub is_blocked: bool,
    /// Whether the peer has said that nothing follows.
    pub bye: bool,
    /// Whether what came last was a write with a long payload.
    pub was_long: bool,
    /// Whether sums follow headers and payloads, both ways.
    pub sums: bool,
    /// Whether one was wrong.
    pub is_changed: bool,
    /// Bytes of `carry`.
    pub carried: u8,
    /// What was read and is still with the kernel.
    pub peeked: Peeked,
    /// The start of a frame of which the rest has not come.
    pub carry: [u8; CARRY_BYTES],
    pub payload: Payload,
    pub out: Out,
    /// Writes and adds of the peer that were carried out or refused.
    pub answered: u32,
    /// How many of them the peer knows of.
    pub told: u32,
    /// Bit `i`: number `told + i` was refused.
    pub refused: u64,
    /// Writes and adds of ours that were posted.
    pub posted: u32,
    /// How many of them the peer has answered.
    pub done: u32,
    /// These ops, oldest first.
    pub flying: List,
    /// Our reads that are under way, oldest first.
    pub reads: List,
    /// How many were posted, and how many were answered.
    pub reads_posted: u32,
    pub reads_done: u32,
    /// Reads of the peer: how many came, and how many were answered.
    pub asked: u32,
    pub served: u32,
}

// SAFETY: integers, enums with a zero value, and pointers that are null: a closed stream.
unsafe impl Zeroable for Stream {}

impl Stream {
    /// A stream that was just opened.
    pub fn opened(fd: i32, sums: bool, peeked: Peeked, out: Out) -> Stream {
        Stream { fd, is_open: true, sums, peeked, out, ..Stream::zeroed() }
    }

    /// Whether one more write or add may be posted.
    #[inline]
    pub fn takes_writes(&self) -> bool {
        self.posted.wrapping_sub(self.done) < UNANSWERED_MAX
    }

    /// Whether one more read may be posted.
    #[inline]
    pub fn takes_reads(&self) -> bool {
        self.reads_posted.wrapping_sub(self.reads_done) < READS_MAX
    }

    /// Nothing is read or written any more: what was peeked at is taken, what waits is dropped.
    /// Gives back what had come in part.
    pub fn close(&mut self, domain: &HostDomain<'_>) -> Payload {
        if self.peeked.is_due() {
            self.peeked.take(self.fd);
        }
        self.is_open = false;
        self.carried = 0;
        self.out.clear(|region| domain.pin(region, -1));
        core::mem::take(&mut self.payload)
    }

    /// Whether the next read leaves what it reads, if it `may`: see [`Peeked::leaves`].
    #[inline]
    pub fn peeks(&mut self, may: bool) -> Option<bool> {
        let between = self.payload.to == To::Nowhere && !self.was_long;
        self.peeked.leaves(may && between, self.fd)
    }

    /// Pins the region that a payload goes to: its number plus one, or 0 where it needs no pin.
    /// `None`: it is gone, and so is the payload.
    #[inline]
    pub fn payload_pin(&mut self, domain: &HostDomain<'_>) -> Option<u32> {
        let payload = &mut self.payload;
        if payload.to != To::Region {
            return Some(0);
        }
        let region = domain.hold(RailKey(payload.key), payload.address, payload.left);
        if region.is_none() {
            payload.to = To::Drop;
        }
        Some(region? + 1)
    }

    /// Stages a header, or a line behind it, and its sum where sums are wanted. There is room.
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
        if self.sums {
            self.put_sum_of(bytes);
        }
    }

    #[inline(never)]
    fn put_sum_of(&mut self, bytes: &[u8]) {
        self.out.put(&sums::of(bytes).to_le_bytes());
    }

    /// Stages the sum of a payload that was staged, or queued, or sent, where sums are wanted.
    ///
    /// # Safety
    /// - the payload is valid for reads.
    #[inline]
    pub unsafe fn put_sum(&mut self, address: u64, length: u64) {
        if self.sums && length > 0 {
            // SAFETY: the caller vouches for the payload.
            let sum = unsafe { sums::of_memory(0, address, length) };
            self.out.put(&sum.to_le_bytes());
        }
    }

    /// Stages the header of a frame.
    #[inline]
    pub fn stage(&mut self, frame: &StreamFrame) {
        let mut header = [0; HEADER_BYTES_MAX];
        let length = frame.encode(&mut header);
        self.put(&header[..length]);
    }

    /// Answers that the peer waits for.
    #[inline]
    pub fn owed(&self) -> u32 {
        self.answered.wrapping_sub(self.told)
    }

    /// Counts one write or add of the peer as carried out, or refused.
    #[inline]
    pub fn answer(&mut self, carried_out: bool) -> Result<(), Garbage> {
        let number = self.owed();
        if number >= UNANSWERED_MAX {
            return Err(Garbage); // the peer has posted more than it may
        }
        self.refused |= u64::from(!carried_out) << number;
        self.answered = self.answered.wrapping_add(1);
        Ok(())
    }

    /// Stages what is owed to the peer, if there is room.
    pub fn stage_answers(&mut self) {
        if !self.out.has_room(ROOM_FOR_ANSWERS) {
            return;
        }
        let (told, answered) = (self.told, self.answered);
        let mut refused = core::mem::take(&mut self.refused);
        self.told = answered;
        while refused != 0 {
            let index = told.wrapping_add(refused.trailing_zeros());
            refused &= refused - 1;
            self.stage(&StreamFrame::Failed { index });
        }
        self.stage(&StreamFrame::Done { through: answered });
    }

    /// Whether reads of the peer wait to be answered.
    #[inline]
    pub fn has_asked(&self) -> bool {
        self.served != self.asked
    }

    /// Whether there is room for one more answer to a read.
    pub fn has_room_to_serve(&self) -> bool {
        let room = ROOM_FOR_ANSWERS + HEADER_BYTES_MAX as u32 + COPIED_MAX as u32 + ROOM_FOR_SUMS;
        self.out.has_room(room) && self.out.has_span_room()
    }

    /// Answers the oldest read of the peer's, for which there is room.
    pub fn serve(&mut self, asked: &Asked, domain: &HostDomain<'_>) {
        let found = match asked.length {
            0 => None,
            length => domain.hold(RailKey(asked.key), asked.address, length.into()),
        };
        let refused = found.is_none() && asked.length > 0;
        let length = if refused { 0 } else { asked.length };
        self.stage(&StreamFrame::ReadReply { length, token: asked.token, refused });
        self.served = self.served.wrapping_add(1);
        let Some(region) = found else { return };
        let is_copied = u64::from(length) <= COPIED_MAX;
        if is_copied {
            // SAFETY: the range lies in a registered region, which is pinned (`hold`).
            unsafe { self.out.put_from(asked.address, length) };
        } else {
            // SAFETY: as above; pinned until the span was sent or dropped.
            unsafe { self.out.span(asked.address, length.into(), region + 1) };
        }
        // SAFETY: as above.
        unsafe { self.put_sum(asked.address, length.into()) };
        if is_copied {
            domain.pin(region, -1);
        }
    }

    /// The oldest of our reads is answered from now on.
    pub fn take_reply(
        &mut self,
        ops: &mut Ops<'_>,
        length: u32,
        token: u32,
        refused: bool,
    ) -> Result<(), Garbage> {
        let op = self.reads.first().ok_or(Garbage)?;
        let entry = ops.get(op);
        let fits = if refused { length == 0 } else { length == entry.length };
        if token != self.reads_done || !fits {
            return Err(Garbage);
        }
        if refused {
            entry.outcome = Outcome::Key;
        }
        let (address, left) = (entry.address, length.into());
        self.payload = Payload { to: To::Read, address, left, ..Payload::default() };
        Ok(())
    }

    /// The oldest of our reads was answered.
    pub fn end_read(&mut self, ops: &mut Ops<'_>, domain: &HostDomain<'_>) -> Result<(), Garbage> {
        self.reads_done = self.reads_done.wrapping_add(1);
        let op = ops.take_first(&mut self.reads).ok_or(Garbage)?;
        domain.unpin(ops.get(op).pin);
        ops.finish(op);
        Ok(())
    }

    /// The peer has answered our writes and adds up to that count.
    pub fn take_done(
        &mut self,
        ops: &mut Ops<'_>,
        domain: &HostDomain<'_>,
        through: u32,
    ) -> Result<(), Garbage> {
        if through.wrapping_sub(self.done) > self.posted.wrapping_sub(self.done) {
            return Err(Garbage);
        }
        while self.done != through {
            let op = self.flying.first().ok_or(Garbage)?;
            let entry = ops.get(op);
            // nobody has carried out what was not sent: its memory is still to be read
            if entry.span.checked_sub(1).is_some_and(|span| !self.out.is_sent(span)) {
                return Err(Garbage);
            }
            domain.unpin(entry.pin);
            self.done = self.done.wrapping_add(1);
            ops.take_first(&mut self.flying);
            ops.finish(op);
        }
        Ok(())
    }

    /// The peer refused the write or add of that number.
    pub fn take_failed(&mut self, ops: &mut Ops<'_>, number: u32) -> Result<(), Garbage> {
        let behind = number.wrapping_sub(self.done);
        ops.nth(&self.flying, behind).ok_or(Garbage)?.outcome = Outcome::Key;
        Ok(())
    }

    /// Ends whatever is under way that has not ended otherwise.
    pub fn end_ops(
        &mut self,
        ops: &mut Ops<'_>,
        domain: &HostDomain<'_>,
        outcome: Outcome,
        code: i32,
    ) {
        for mut list in [core::mem::take(&mut self.flying), core::mem::take(&mut self.reads)] {
            while let Some(op) = ops.take_first(&mut list) {
                let entry = ops.get(op);
                if entry.outcome == Outcome::Success {
                    (entry.outcome, entry.code) = (outcome, code);
                }
                domain.unpin(entry.pin);
                ops.finish(op);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_owed_an_answer_for_each_of_as_many_as_it_may_post() {
        let mut stream = Stream::zeroed();
        for number in 0..UNANSWERED_MAX {
            assert_eq!(stream.owed(), number);
            assert!(stream.answer(number != 3).is_ok());
        }
        assert!(stream.answer(true).is_err(), "one more than it may");
        assert_eq!((stream.owed(), stream.refused), (UNANSWERED_MAX, 1 << 3));
    }
}
