//! Frames on their way to one rank: records are written into the last one, which leaves with the
//! next progress, so that records that were issued together travel together.
#![forbid(unsafe_code)]

use super::carrier::Carrier;
use super::memory::Span;
use crate::base::slab::Handle;
use crate::transport::{Outgoing, RequestError, RequestId, SubmitError};
use crate::wire::one_sided::{FRAME_BYTES, FRAME_HEAD_BYTES, FrameHead, RECORD_BYTES, Record};

/// Frames of one direction.
pub(super) const FRAMES: usize = 8;
/// The tag of all messages between ranks of a group: their order says what they are.
pub(super) const TAG: i32 = 0;

/// Frames are numbered; number n lies in place n mod [`FRAMES`].
#[derive(Debug)]
pub(super) struct Outbox {
    memory: Span,
    region: Handle,
    /// Bytes written into each place.
    used: [u32; FRAMES],
    requests: [RequestId; FRAMES],
    /// The oldest frame whose send has not ended.
    oldest: u32,
    /// The first frame that was not sent.
    unsent: u32,
    /// The frame that takes records, if its place is free.
    filling: u32,
}

impl Outbox {
    /// `memory`: `FRAMES` frames of it, which lie in `region`.
    pub fn new(memory: Span, region: Handle) -> Outbox {
        Outbox {
            memory,
            region,
            used: [FRAME_HEAD_BYTES as u32; FRAMES],
            requests: [RequestId::default(); FRAMES],
            oldest: 0,
            unsent: 0,
            filling: 0,
        }
    }

    fn place(frame: u32) -> usize {
        frame as usize % FRAMES
    }

    fn has_place(&self, frame: u32) -> bool {
        ((frame - self.oldest) as usize) < FRAMES
    }

    fn span(&self, frame: u32) -> Span {
        let place = (Outbox::place(frame) * FRAME_BYTES) as u64;
        self.memory.part(place, FRAME_BYTES as u64)
    }

    /// Whether a record of so many bytes in its frame has room now.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        let used = self.used[Outbox::place(self.filling)] as usize;
        self.has_place(self.filling)
            && (used + bytes <= FRAME_BYTES || self.has_place(self.filling + 1))
    }

    /// Whether records wait to leave.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.has_place(self.unsent)
            && self.used[Outbox::place(self.unsent)] > FRAME_HEAD_BYTES as u32
    }

    /// Appends a record, which has room, and its inline bytes.
    #[inline]
    pub fn push(&mut self, record: &Record, inline: Span) {
        let bytes = record.frame_bytes();
        if self.used[Outbox::place(self.filling)] as usize + bytes > FRAME_BYTES {
            self.filling += 1;
            self.used[Outbox::place(self.filling)] = FRAME_HEAD_BYTES as u32;
        }
        let used = &mut self.used[Outbox::place(self.filling)];
        let at = u64::from(*used);
        *used += bytes as u32;
        let frame = self.span(self.filling);
        frame.part(at, RECORD_BYTES as u64).write(&record.to_bytes());
        let length = record.inline_bytes();
        if length != 0 {
            frame.part(at + RECORD_BYTES as u64, length).copy_from(inline);
        }
    }

    /// Sends what can leave, and takes back the places of what has. With `is_due` a frame without
    /// records leaves, too, where none with some does. `applied` goes with the last frame alone: a
    /// refusal in a frame before comes before it. Whether that one has left.
    #[inline]
    pub fn step<C: Carrier>(
        &mut self,
        carrier: &mut C,
        link: C::Link,
        (told, head): (u64, FrameHead),
        is_due: bool,
    ) -> Result<bool, RequestError> {
        while self.oldest != self.unsent {
            match carrier.test(self.requests[Outbox::place(self.oldest)]) {
                Ok(Some(outcome)) => outcome.result?,
                Ok(None) => break,
                Err(_) => return Err(RequestError::Closed),
            }
            self.oldest += 1;
        }
        while self.is_waiting() || (is_due && self.has_place(self.unsent)) {
            let is_last = self.unsent == self.filling;
            let applied = if is_last { head.applied } else { told };
            let frame = self.span(self.unsent);
            frame.part(0, FRAME_HEAD_BYTES as u64).write(&FrameHead { applied, ..head }.to_bytes());
            let message = Outgoing {
                region: self.region,
                address: frame.address(),
                length: u64::from(self.used[Outbox::place(self.unsent)]),
                tag: TAG,
            };
            match carrier.isend(link, message) {
                Ok(request) => self.requests[Outbox::place(self.unsent)] = request,
                Err(SubmitError::Again) => break,
                Err(SubmitError::Failed(error)) => return Err(error),
                Err(_) => return Err(RequestError::Closed),
            }
            self.unsent += 1;
            if is_last {
                self.filling += 1;
                self.used[Outbox::place(self.filling)] = FRAME_HEAD_BYTES as u32;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
