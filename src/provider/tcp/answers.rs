//! What the peer asks for and what it answers: writes and adds that were carried out, and reads.

use super::area::Asked;
use super::ops::Outcome;
use super::pull::Garbage;
use super::rail::Tcp;
use super::stream::{ASKED_MAX, Payload, To};

impl Tcp<'_> {
    pub(super) fn answer(&mut self, index: usize, carried_out: bool) -> Result<(), Garbage> {
        if !self.streams[index].answer(carried_out) {
            return Err(Garbage);
        }
        self.mark_dirty(index);
        Ok(())
    }

    pub(super) fn take_read(&mut self, index: usize, asked: Asked) -> Result<(), Garbage> {
        let (peer, n) = self.peer_of(index);
        let stream = &mut self.streams[index];
        if stream.asked.wrapping_sub(stream.served) as usize >= ASKED_MAX {
            return Err(Garbage);
        }
        // SAFETY: a place that no waiting read has.
        unsafe { self.area.asked(peer, n, stream.asked).write(asked) };
        stream.asked = stream.asked.wrapping_add(1);
        self.mark_dirty(index);
        Ok(())
    }

    pub(super) fn take_reply(
        &mut self,
        index: usize,
        length: u32,
        token: u32,
        refused: bool,
    ) -> Result<(), Garbage> {
        let stream = &mut self.streams[index];
        let op = stream.reads.first().ok_or(Garbage)?;
        let entry = self.ops.get(op);
        let fits = if refused { length == 0 } else { length == entry.length };
        if token != stream.reads_done || !fits {
            return Err(Garbage);
        }
        if refused {
            entry.outcome = Outcome::Key;
        }
        let (address, left) = (entry.address, length.into());
        stream.payload = Payload { to: To::Read, address, left, ..Payload::default() };
        Ok(())
    }

    pub(super) fn take_done(&mut self, index: usize, through: u32) -> Result<(), Garbage> {
        let stream = &mut self.streams[index];
        if through.wrapping_sub(stream.done) > stream.posted.wrapping_sub(stream.done) {
            return Err(Garbage);
        }
        while stream.done != through {
            let op = stream.flying.first().ok_or(Garbage)?;
            let entry = self.ops.get(op);
            // nobody has carried out what was not sent: its memory is still to be read
            if entry.span.checked_sub(1).is_some_and(|span| !stream.out.is_sent(span)) {
                return Err(Garbage);
            }
            if let Some(region) = entry.pin.checked_sub(1) {
                self.domain.pin(region, -1);
            }
            stream.done = stream.done.wrapping_add(1);
            self.ops.take_first(&mut stream.flying);
            self.ops.finish(op);
        }
        Ok(())
    }
}
