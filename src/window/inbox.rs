//! Frames that come from one rank: receives that wait for them, and the record that is read next.
#![forbid(unsafe_code)]

use super::carrier::Carrier;
use super::memory::Span;
use super::outbox::{FRAMES, TAG};
use crate::base::slab::Handle;
use crate::transport::{Incoming, RequestError, RequestId, SubmitError};
use crate::wire::one_sided::{
    FRAME_BYTES, FRAME_HEAD_BYTES, FrameHead, RECORD_BYTES, Record, SHORT_FRAME_BYTES,
    SHORT_INLINE_AT, Short,
};

/// Frames are numbered; number n lies in place n mod [`FRAMES`].
#[derive(Debug)]
pub(super) struct Inbox {
    memory: Span,
    region: Handle,
    requests: [RequestId; FRAMES],
    /// The frame that is read, or comes next.
    next: u32,
    /// The first frame that no receive waits for.
    posted: u32,
    /// Bytes of the frame that is read; 0: none is.
    length: u32,
    /// Where its next record stands.
    at: u32,
}

/// What an [`Inbox`] has next.
#[derive(Copy, Clone, Debug)]
pub(super) enum Read {
    /// Nothing has come.
    Nothing,
    /// A frame has come.
    Frame(FrameHead),
    /// The same, which asks what has taken effect and does not tell it.
    Asks,
    /// A record, and its inline bytes.
    Record(Record, Span),
    /// The frame was read to its end.
    End,
}

impl Inbox {
    /// `memory`: `FRAMES` frames of it, which lie in `region`.
    pub fn new(memory: Span, region: Handle) -> Inbox {
        let requests = [RequestId::default(); FRAMES];
        Inbox { memory, region, requests, next: 0, posted: 0, length: 0, at: 0 }
    }

    fn span(&self, frame: u32) -> Span {
        let place = (frame as usize % FRAMES * FRAME_BYTES) as u64;
        self.memory.part(place, FRAME_BYTES as u64)
    }

    /// Posts receives into the places that are free.
    #[inline]
    pub fn post<C: Carrier>(&mut self, carrier: &mut C, link: C::Link) -> Result<(), RequestError> {
        while self.posted - self.next < FRAMES as u32 {
            let room = Incoming {
                region: self.region,
                address: self.span(self.posted).address(),
                length: FRAME_BYTES as u64,
                tag: TAG,
            };
            match carrier.irecv(link, &[room]) {
                Ok(request) => self.requests[self.posted as usize % FRAMES] = request,
                Err(SubmitError::Again) => return Ok(()),
                Err(SubmitError::Failed(error)) => return Err(error),
                Err(_) => return Err(RequestError::Closed),
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Whether there is something to be read.
    #[inline]
    pub fn has_frame<C: Carrier>(&mut self, carrier: &mut C) -> Result<bool, RequestError> {
        if self.length != 0 {
            return Ok(true);
        }
        if self.next == self.posted {
            return Ok(false);
        }
        let outcome = match carrier.test(self.requests[self.next as usize % FRAMES]) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(false),
            Err(_) => return Err(RequestError::Closed),
        };
        match outcome.result {
            // longer than any frame
            Err(RequestError::Truncated) => return Err(RequestError::Protocol),
            result => result?,
        }
        (self.length, self.at) = (outcome.lengths[0] as u32, 0);
        if self.length == 0 { Err(RequestError::Protocol) } else { Ok(true) }
    }

    /// Whether each place has a receive, and nothing is to be read.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.length == 0 && self.posted - self.next == FRAMES as u32
    }

    /// What is there to be read. A record stays until it is passed by [`Inbox::pass`].
    #[inline]
    pub fn read<C: Carrier>(&mut self, carrier: &mut C) -> Result<Read, RequestError> {
        if !self.has_frame(carrier)? {
            return Ok(Read::Nothing);
        }
        if self.at >= self.length {
            self.length = 0;
            self.next += 1;
            return Ok(Read::End);
        }
        let frame = self.span(self.next).part(0, u64::from(self.length));
        if self.length == SHORT_FRAME_BYTES as u32 {
            return self.short_read(frame);
        }
        if self.at == 0 {
            self.at = FRAME_HEAD_BYTES as u32;
            return frame.frame_head().map(Read::Frame).ok_or(RequestError::Protocol);
        }
        let rest = frame.part(u64::from(self.at), u64::from(self.length - self.at));
        let record = rest.record().ok_or(RequestError::Protocol)?;
        if record.frame_bytes() as u32 > self.length - self.at {
            return Err(RequestError::Protocol);
        }
        Ok(Read::Record(record, rest.part(RECORD_BYTES as u64, record.inline_bytes())))
    }

    #[inline]
    fn short_read(&mut self, frame: Span) -> Result<Read, RequestError> {
        let Short { record, wants_applied } = frame.short_frame().ok_or(RequestError::Protocol)?;
        if self.at == 0 && wants_applied {
            self.at = FRAME_HEAD_BYTES as u32;
            return Ok(Read::Asks);
        }
        let inline = frame.part(SHORT_INLINE_AT as u64, record.inline_bytes());
        Ok(Read::Record(record, inline))
    }

    /// Goes on to what is behind a record that was read.
    #[inline]
    pub fn pass(&mut self, record: &Record) {
        self.at += record.frame_bytes() as u32;
    }
}
