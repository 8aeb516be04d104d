//! One stream: what waits to go out, what has come in by halves, and who owes whom an answer.

use super::ops::List;
use super::out::Out;
use super::peek::Peeked;
use crate::base::carve::Zeroable;
use crate::fabric::LINE_BYTES;
use crate::wire::stream::{READS_MAX, SUM_BYTES, UNANSWERED_MAX, WRITE_HEADER_BYTES};

/// Reads of the peer that may wait to be answered.
pub const ASKED_MAX: usize = READS_MAX as usize;

/// What may be kept of a frame of which the rest has not come: with sums a line, which nobody may
/// see before it is known to be right, else a header.
pub const CARRY_BYTES: usize = WRITE_HEADER_BYTES + LINE_BYTES + 2 * SUM_BYTES;

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
    /// Whether answers must go out although nothing else does.
    pub answer_now: bool,
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
    /// A stream that was just opened. It may still be in the list of those with something to send
    /// from an earlier use.
    pub fn opened(fd: i32, is_dirty: bool, sums: bool, peeked: Peeked, out: Out) -> Stream {
        Stream {
            fd,
            is_open: true,
            is_dirty,
            wants_room: false,
            is_blocked: false,
            bye: false,
            was_long: false,
            sums,
            is_changed: false,
            answer_now: false,
            carried: 0,
            peeked,
            carry: [0; CARRY_BYTES],
            payload: Payload::default(),
            out,
            answered: 0,
            told: 0,
            refused: 0,
            posted: 0,
            done: 0,
            flying: List::default(),
            reads: List::default(),
            reads_posted: 0,
            reads_done: 0,
            asked: 0,
            served: 0,
        }
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

    /// Answers that the peer waits for.
    #[inline]
    pub fn owed(&self) -> u32 {
        self.answered.wrapping_sub(self.told)
    }

    /// Counts one write or add of the peer as carried out, or refused. `false`: the peer has posted
    /// more than it may.
    #[inline]
    pub fn answer(&mut self, carried_out: bool) -> bool {
        let number = self.owed();
        if number >= UNANSWERED_MAX {
            return false;
        }
        self.refused |= u64::from(!carried_out) << number;
        self.answered = self.answered.wrapping_add(1);
        self.answer_now = true;
        true
    }
}
