//! Frames that come from one rank: receives that wait for them, and the record that is read next.
#![forbid(unsafe_code)]

use super::carrier::Carrier;
use super::memory::Span;
use super::outbox::{FRAMES, TAG};
use crate::base::slab::Handle;
use crate::transport::{Incoming, RequestError, RequestId, SubmitError};
use crate::wire::one_sided::{FRAME_BYTES, FRAME_HEAD_BYTES, FrameHead, RECORD_BYTES, Record};

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

    /// What is there to be read. A record stays until it is passed by [`Inbox::pass`].
    #[inline]
    pub fn read<C: Carrier>(&mut self, carrier: &mut C) -> Result<Read, RequestError> {
        if self.length == 0 {
            return self.frame_take(carrier);
        }
        if self.at >= self.length {
            self.length = 0;
            self.next += 1;
            return Ok(Read::End);
        }
        let frame = self.span(self.next).part(0, u64::from(self.length));
        let rest = frame.part(u64::from(self.at), u64::from(self.length - self.at));
        let record = rest.record().ok_or(RequestError::Protocol)?;
        if record.frame_bytes() as u32 > self.length - self.at {
            return Err(RequestError::Protocol);
        }
        Ok(Read::Record(record, rest.part(RECORD_BYTES as u64, record.inline_bytes())))
    }

    #[inline]
    fn frame_take<C: Carrier>(&mut self, carrier: &mut C) -> Result<Read, RequestError> {
        if self.next == self.posted {
            return Ok(Read::Nothing);
        }
        let outcome = match carrier.test(self.requests[self.next as usize % FRAMES]) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(Read::Nothing),
            Err(_) => return Err(RequestError::Closed),
        };
        match outcome.result {
            // longer than any frame
            Err(RequestError::Truncated) => return Err(RequestError::Protocol),
            result => result?,
        }
        let length = outcome.lengths[0];
        let head = self.span(self.next).part(0, length).frame_head();
        let head = head.ok_or(RequestError::Protocol)?;
        (self.length, self.at) = (length as u32, FRAME_HEAD_BYTES as u32);
        Ok(Read::Frame(head))
    }

    /// Goes on to what is behind a record that was read.
    #[inline]
    pub fn pass(&mut self, record: &Record) {
        self.at += record.frame_bytes() as u32;
    }
}
