//! What a connection has to send: its queue, its stream of sends, and its place in the groups that
//! the peer offers.
#![forbid(unsafe_code)]

pub mod bind;
pub mod eager;
pub mod queue;
pub mod used;

use super::limits::UNDELIVERED_MAX;
use super::send::used::SendQueue;
use crate::base::seq::Seq;
use crate::base::units::Bytes;
#[cfg(doc)]
use crate::fabric::Caps;
use crate::fabric::LINE_BYTES;
use core::hash::Hash;

/// One connection as sender.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Send {
    /// Longest message that travels in the stream.
    pub eager_bytes_max: u32,
    /// A longer one is long for the rail of the control lane: whole lines of 64 bytes.
    payload_lines_max: u16,
    pub stream: Stream,
    pub cursor: Cursor,
    /// Number of the next long message.
    pub number: Seq,
    /// The peer has all long messages below this.
    pub delivered_through: Seq,
    /// Sends in state `Waiting`.
    pub waiting: u16,
    /// Sends that are not bound, or not told to the peer, in order.
    pub queue: SendQueue,
}

impl Send {
    /// Nothing to send.
    pub const NONE: Send = Send {
        eager_bytes_max: 0,
        payload_lines_max: 0,
        stream: Stream::NEW,
        cursor: Cursor::NEW,
        number: Seq(0),
        delivered_through: Seq(0),
        waiting: 0,
        queue: SendQueue::EMPTY,
    };

    /// Whether a message of this length travels in the stream.
    #[inline(always)]
    pub const fn is_short(&self, length: u64) -> bool {
        length <= self.eager_bytes_max as u64
    }

    /// Control runs on a rail with this [`Caps::send_payload_max`].
    pub fn payload_max_set(&mut self, most: Bytes) {
        self.payload_lines_max = (most.0 / LINE_BYTES as u64).min(u16::MAX.into()) as u16;
    }

    /// Whether a payload of the stream is one that the rail takes few of at a time, and may keep a
    /// part of.
    #[inline(always)]
    pub const fn is_long(&self, bytes: u64) -> bool {
        bytes > self.payload_lines_max as u64 * LINE_BYTES as u64
    }

    /// Whether one more long message may be on its way: the delivery mask can say so many.
    pub fn may_number(&self) -> bool {
        self.number.ahead_of(self.delivered_through) < UNDELIVERED_MAX as i32
    }
}

/// The stream of sends, and what of it may have to be sent again.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Stream {
    /// Number of the next send.
    pub number: Seq,
    /// The peer has taken in our sends below this.
    pub taken_through: Seq,
    /// Where the next payload is kept.
    pub kept_next: u32,
    /// The next send that is to be sent again, if any.
    pub resend: Option<Seq>,
}

impl Stream {
    /// Nothing was sent.
    pub const NEW: Stream =
        Stream { number: Seq(0), taken_through: Seq(0), kept_next: 0, resend: None };

    /// Takes in how far the peer has taken in our sends.
    #[inline]
    pub fn taken_take(&mut self, through: Seq) {
        let sound = through.ahead_of(self.number) <= 0;
        if sound && through.ahead_of(self.taken_through) > 0 {
            self.taken_through = through;
        }
    }
}

/// The place in the groups that the peer offers.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Cursor {
    /// The oldest group of the peer that is not fully bound.
    pub group: Seq,
    /// Its receives; 0 until its slots have been seen.
    pub count: u8,
    /// Which of them are bound.
    pub bound: u8,
    /// Early sends that no visible slot accounts for yet.
    pub early: u8,
    /// The group in `canceled` has not been told yet.
    pub canceled_news: bool,
    /// The group of the peer's that was withdrawn last; every state line says it, since only the
    /// newest is read.
    pub canceled: Option<Seq>,
}

impl Cursor {
    /// At the first group, which was not seen yet.
    pub const NEW: Cursor = Cursor {
        group: Seq(0),
        count: 0,
        bound: 0,
        early: 0,
        canceled_news: false,
        canceled: None,
    };

    /// Goes to the next group.
    #[inline(always)]
    pub const fn pass(&mut self) {
        self.group = self.group.next();
        (self.count, self.bound) = (0, 0);
    }
}
