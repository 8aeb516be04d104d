//! Frames on their way to one rank: records are written into the last one, which leaves with the
//! next progress, so that records that were issued together travel together.
#![forbid(unsafe_code)]

use super::carrier::Carrier;
use super::memory::{Span, WORD};
use crate::base::slab::Handle;
use crate::transport::{Outgoing, RequestError, RequestId, SubmitError};
use crate::wire::one_sided::{
    FRAME_BYTES, FRAME_HEAD_BYTES, FrameHead, RECORD_BYTES, Record, SHORT_FRAME_BYTES,
    SHORT_INLINE_AT, Short,
};

/// Frames of one direction.
pub(super) const FRAMES: usize = 8;
/// The tag of all messages between ranks of a group: their order says what they are.
pub(super) const TAG: i32 = 0;

/// Where in a frame's place a short frame stands: behind the longest record that fits one.
const SHORT_AT: usize = 64;
const _: () = assert!(SHORT_AT >= FRAME_HEAD_BYTES + RECORD_BYTES + WORD as usize);

/// What the peer is due beside records.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Due {
    Nothing,
    /// That it is asked what has taken effect there.
    Ask,
    /// What has taken effect here.
    Tell,
}

/// What has left of that.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Left {
    /// Not the last frame.
    Nothing,
    /// The last frame, which asks and does not tell.
    Asked,
    /// The last frame, with its head.
    Told,
}

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
    /// The first record of that frame.
    first: Option<Record>,
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
            first: None,
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

    /// Whether nothing waits to leave, and nothing that has left is on its way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.oldest == self.unsent && !self.is_waiting()
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
        if at == FRAME_HEAD_BYTES as u64 {
            self.first = Some(*record);
        }
        *used += bytes as u32;
        let frame = self.span(self.filling);
        frame.part(at, RECORD_BYTES as u64).write(&record.to_bytes());
        let length = record.inline_bytes();
        if length != 0 {
            frame.part(at + RECORD_BYTES as u64, length).copy_from(inline);
        }
    }

    /// Sends what can leave, and takes back the places of what has. Where a frame is due one
    /// without records leaves, too, if none with some does. `applied` goes with the last frame
    /// alone: a refusal in a frame before comes before it. Whether that one has left.
    #[inline]
    pub fn step<C: Carrier>(
        &mut self,
        carrier: &mut C,
        link: C::Link,
        (told, head): (u64, FrameHead),
        due: Due,
    ) -> Result<Left, RequestError> {
        self.ended_take(carrier)?;
        while self.is_waiting() || (due != Due::Nothing && self.has_place(self.unsent)) {
            let is_last = self.unsent == self.filling;
            let applied = if is_last { head.applied } else { told };
            let short = if due == Due::Tell { None } else { self.short(head.wants_applied) };
            let bytes = short.unwrap_or_else(|| self.long(FrameHead { applied, ..head }));
            let (region, address, length) = (self.region, bytes.address(), bytes.length());
            match carrier.isend(link, Outgoing { region, address, length, tag: TAG }) {
                Ok(request) => self.requests[Outbox::place(self.unsent)] = request,
                Err(SubmitError::Again) => break,
                Err(SubmitError::Failed(error)) => return Err(error),
                Err(_) => return Err(RequestError::Closed),
            }
            self.unsent += 1;
            if is_last {
                self.filling += 1;
                self.used[Outbox::place(self.filling)] = FRAME_HEAD_BYTES as u32;
                self.ended_take(carrier)?;
                return Ok(if short.is_some() { Left::Asked } else { Left::Told });
            }
        }
        Ok(Left::Nothing)
    }

    /// Takes back the places of frames whose sends have ended.
    #[inline]
    fn ended_take<C: Carrier>(&mut self, carrier: &mut C) -> Result<(), RequestError> {
        while self.oldest != self.unsent {
            match carrier.test(self.requests[Outbox::place(self.oldest)]) {
                Ok(Some(outcome)) => outcome.result?,
                Ok(None) => break,
                Err(_) => return Err(RequestError::Closed),
            }
            self.oldest += 1;
        }
        // the first place is the one that caches have
        if self.is_idle() && self.filling == self.unsent {
            self.used[0] = FRAME_HEAD_BYTES as u32;
            (self.oldest, self.unsent, self.filling) = (0, 0, 0);
        }
        Ok(())
    }

    /// The first frame that was not sent, with its head.
    #[inline]
    fn long(&self, head: FrameHead) -> Span {
        let frame = self.span(self.unsent);
        frame.part(0, FRAME_HEAD_BYTES as u64).write(&head.to_bytes());
        frame.part(0, u64::from(self.used[Outbox::place(self.unsent)]))
    }

    /// The same as a short frame, where it is one record that fits. It is written behind that
    /// record, which stays as it is: there may be no room for the frame now.
    #[inline]
    fn short(&self, wants_applied: bool) -> Option<Span> {
        let used = self.used[Outbox::place(self.unsent)] as usize;
        let record = self.first?;
        if self.unsent != self.filling || FRAME_HEAD_BYTES + record.frame_bytes() != used {
            return None;
        }
        let frame = self.span(self.unsent);
        let bytes = Short { record, wants_applied }.to_bytes()?;
        let short = frame.part(SHORT_AT as u64, SHORT_FRAME_BYTES as u64);
        short.write(&bytes);
        if record.inline_bytes() != 0 {
            let inline = frame.part((FRAME_HEAD_BYTES + RECORD_BYTES) as u64, WORD);
            short.part(SHORT_INLINE_AT as u64, WORD).copy_from(inline);
        }
        Some(short)
    }
}
