//! What the peer asks for and what it answers: writes and adds that were carried out, and reads.
//! Its notes, too.

use super::area::Asked;
use super::ops::Outcome;
use super::pull::Garbage;
use super::rail::Tcp;
use super::stream::{ASKED_MAX, Payload, To};
use crate::base::ids::PeerIndex;
use crate::fabric::LINE_BYTES;
use crate::provider::notes::NOTE_KEY;
use crate::wire::stream::SilentWrite;

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

    /// A note comes, maybe in parts.
    pub(super) fn begin_note(&mut self, index: usize, length: u32) -> Result<(), Garbage> {
        let part = self.area.notes.part(index).ok_or(Garbage)?;
        if length as usize != LINE_BYTES || self.is_bulk {
            return Err(Garbage);
        }
        let (to, address) = (To::Note, part as u64);
        self.streams[index].payload =
            Payload { to, address, left: length.into(), ..Payload::default() };
        Ok(())
    }

    /// Whether what is written to a key is a note for which there is no room: it waits.
    #[inline]
    pub(super) fn has_no_room_for(&mut self, key: u64) -> bool {
        let waits = key == NOTE_KEY.0 && !self.area.notes.has_room();
        self.scratch.waits |= waits;
        waits
    }

    /// A line to no region is a note, or breaks the format.
    #[cold]
    pub(super) fn take_note(&mut self, index: usize, line: SilentWrite) -> Result<(), Garbage> {
        let bytes = self.scratch_bytes().first_chunk::<LINE_BYTES>().copied().ok_or(Garbage)?;
        let peer = PeerIndex(self.peer_of(index).0 as u32);
        let is_note = line.key == NOTE_KEY.0 && line.length as usize == LINE_BYTES;
        if !is_note || !self.area.notes.put(peer, &bytes) {
            return Err(Garbage);
        }
        self.scratch_pass(LINE_BYTES);
        Ok(())
    }
}
