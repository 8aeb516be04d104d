//! Takes the frames of one stream out of the scratch buffer, and carries them out.

use super::NONE;
use super::area::{Area, SEND_BYTES_MAX, SHORT_BYTES_MAX};
use super::ops::Ops;
use super::peer::Peer;
use super::scratch::Scratch;
use super::stream::{ASKED_MAX, Asked, CARRY_BYTES, Garbage, Payload, Stream, To};
use super::sums::{self, SUM_BYTES};
use crate::base::ids::PeerIndex;
use crate::fabric::{Completion, Head, LINE_BYTES, Next, RailKey, RecvSlot};
use crate::provider::events::Events;
use crate::provider::host_domain::HostDomain;
use crate::provider::notes::NOTE_KEY;
use crate::provider::touch;
use crate::wire::stream::{
    self, HEADER_BYTES_MAX, SEND_HEAD_AT, SEND_HEAD_BYTES, SilentWrite, StreamFrame,
    WRITE_HEADER_BYTES,
};

/// Payloads from here on are likely followed by their like, so that little is read behind them:
/// what is read into the scratch buffer is copied once more.
pub const LONG_BYTES: u64 = 16 << 10;

/// How far a look at the scratch buffer came.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Parsed {
    /// To its end.
    All,
    /// To an event that found no room.
    Full,
}

/// One stream and what its frames act on.
pub struct Parser<'a, 'm> {
    pub stream: &'a mut Stream,
    /// Its number, and which of its peer's streams it is.
    pub index: usize,
    pub n: usize,
    pub peer: &'a mut Peer,
    pub peer_index: usize,
    pub scratch: &'a mut Scratch,
    pub area: &'a mut Area,
    pub ops: &'a mut Ops<'m>,
    pub domain: &'a HostDomain<'m>,
    /// Whether long writes alone come here.
    pub is_bulk: bool,
    /// Whether the peer is owed something from now on.
    pub owes: bool,
}

impl Parser<'_, '_> {
    /// Takes what is whole, as long as events find room.
    pub fn parse(&mut self, events: &mut Events) -> Result<Parsed, Garbage> {
        loop {
            let is_taken = match self.stream.payload.to {
                To::Nowhere => self.frame(events)?,
                To::Cell | To::Region | To::Read | To::Drop | To::Note => self.payload(events)?,
            };
            if is_taken {
                continue;
            }
            if core::mem::take(&mut self.scratch.waits) {
                return Ok(Parsed::Full);
            }
            let is_all = self.scratch.left() == 0 && self.is_between_frames();
            return Ok(if events.has_room() || is_all { Parsed::All } else { Parsed::Full });
        }
    }

    /// Whether no payload is whole and waits to be reported.
    fn is_between_frames(&self) -> bool {
        self.stream.payload.to == To::Nowhere || self.stream.payload.left > 0
    }

    /// The next short send. Carries out the lines before it; leaves everything else to a poll.
    #[inline]
    pub fn next_send(&mut self) -> Result<Next, Garbage> {
        loop {
            let bytes = self.scratch.bytes();
            if let Some(length) = stream::send_length(bytes) {
                let is_there = bytes.len() - HEADER_BYTES_MAX >= length as usize;
                if !is_there || length > SHORT_BYTES_MAX {
                    return Ok(Next::Poll);
                }
                let Some((slot, head)) = self.send(length)? else { return Ok(Next::Poll) };
                let (peer, slot) = (PeerIndex(self.peer_index as u32), RecvSlot(slot.into()));
                return Ok(Next::Received { peer, slot, head, length });
            }
            if bytes.is_empty() {
                self.scratch.owner = NONE;
                // less came than was asked for: there is no more
                return Ok(if self.scratch.is_full { Next::Poll } else { Next::Nothing });
            }
            match stream::silent_write(bytes) {
                Some(line) if line.is_whole(bytes) && line.key != NOTE_KEY.0 => self.line(line)?,
                Some(_) | None => return Ok(Next::Poll),
            }
        }
    }

    /// Takes one frame. `false`: there is no whole header, or no room for an event.
    #[inline]
    fn frame(&mut self, events: &mut Events) -> Result<bool, Garbage> {
        let bytes = self.scratch.bytes();
        let Some(first) = bytes.first() else { return Ok(false) };
        if !events.has_room() {
            return Ok(false);
        }
        if self.stream.sums {
            return self.frame_with_sum(events);
        }
        if let Some(length) = stream::send_length(bytes) {
            if self.waits_for_cell(length) {
                return Ok(false);
            }
            if let Some((slot, head)) = self.send(length)? {
                self.report(events, slot, head, length);
            }
            return Ok(true);
        }
        if !self.is_bulk
            && let Some(line) = stream::silent_write(bytes)
            && line.is_whole(bytes)
        {
            if self.has_no_room_for(line.key) {
                return Ok(false);
            }
            self.line(line)?;
            return Ok(true);
        }
        let length = StreamFrame::header_bytes(*first).map_err(|_| Garbage)?;
        if bytes.len() < length {
            return Ok(self.carry_rest());
        }
        let frame = StreamFrame::decode(&bytes[..length]).map_err(|_| Garbage)?;
        self.act_or_wait(frame, length)
    }

    /// The same of a stream with sums: nothing is done by a header, or a line, before it is known
    /// to be right. There is at least one byte.
    fn frame_with_sum(&mut self, events: &mut Events) -> Result<bool, Garbage> {
        // whatever is no frame was changed
        self.stream.is_changed = true;
        let bytes = self.scratch.bytes();
        let header = StreamFrame::header_bytes(bytes[0]).map_err(|_| Garbage)?;
        let Some(sum) = bytes.get(header..).and_then(sums::read) else {
            return Ok(self.carry_rest());
        };
        if sum != sums::of(&bytes[..header]) {
            return Err(Garbage);
        }
        let frame = StreamFrame::decode(&bytes[..header]).map_err(|_| Garbage)?;
        if let StreamFrame::Write { length, silent: true, .. } = frame
            && length as usize == LINE_BYTES
            && !self.is_bulk
        {
            let rest = &bytes[header + SUM_BYTES..];
            match rest.get(LINE_BYTES..).and_then(sums::read) {
                None => return Ok(self.carry_rest()),
                Some(sum) if sum != sums::of(&rest[..LINE_BYTES]) => return Err(Garbage),
                Some(_) => {}
            }
        }
        self.stream.is_changed = false;
        if let StreamFrame::Send { length } = frame {
            if self.waits_for_cell(length) {
                return Ok(false);
            }
            match self.send(length)? {
                Some((slot, head)) => self.report(events, slot, head, length),
                None => self.stream.payload.has_sum = true,
            }
            return Ok(true);
        }
        let is_taken = self.act_or_wait(frame, header + SUM_BYTES)?;
        if is_taken {
            self.stream.payload.has_sum = self.stream.payload.left > 0;
        }
        Ok(is_taken)
    }

    /// Keeps what has come of a header, a line or a sum until the rest comes; says that nothing was
    /// taken.
    fn carry_rest(&mut self) -> bool {
        let bytes = self.scratch.bytes();
        let left = bytes.len();
        let mut carry = [0; CARRY_BYTES];
        carry[..left].copy_from_slice(bytes);
        (self.stream.carry, self.stream.carried) = (carry, left as u8);
        self.stream.is_changed = false;
        self.scratch.pass(left);
        false
    }

    /// Whether a send must wait until a long message that this poll has reported is given back.
    #[inline]
    fn waits_for_cell(&mut self, length: u32) -> bool {
        let waits = self.scratch.has_long && !self.peer.has_cell(length);
        self.scratch.waits |= waits;
        waits
    }

    /// Whether what is written to a key is a note for which there is no room: it waits.
    #[inline]
    fn has_no_room_for(&mut self, key: u64) -> bool {
        let waits = key == NOTE_KEY.0 && !self.area.notes.has_room();
        self.scratch.waits |= waits;
        waits
    }

    #[inline]
    fn report(&self, events: &mut Events, slot: u32, head: Head, length: u32) {
        let (peer, slot) = (PeerIndex(self.peer_index as u32), RecvSlot(slot.into()));
        events.push(Completion::Received { peer, slot, head, length });
    }

    /// Takes a send whose header is there: its slot and head, or `None` when bytes are missing.
    #[inline(always)]
    fn send(&mut self, length: u32) -> Result<Option<(u32, Head)>, Garbage> {
        if self.n != 0 || self.is_bulk || length > SEND_BYTES_MAX {
            return Err(Garbage);
        }
        let mut head: Head = [0; SEND_HEAD_BYTES];
        head.copy_from_slice(&self.scratch.bytes()[SEND_HEAD_AT..][..SEND_HEAD_BYTES]);
        let sum_bytes = if self.stream.sums { SUM_BYTES } else { 0 };
        self.scratch.pass(HEADER_BYTES_MAX + sum_bytes);
        let (peer, area) = (self.peer_index, &*self.area);
        let is_long = length > SHORT_BYTES_MAX;
        if !self.peer.has_cell(length) || (is_long && !area.has_long(peer)) {
            return Err(Garbage);
        }
        let slot = self.peer.slot_acquire(area, peer, length).ok_or(Garbage)?;
        let sum_bytes = if length > 0 { sum_bytes } else { 0 };
        let bytes = self.scratch.bytes();
        let place = bytes.as_ptr() as u64;
        if bytes.len() < length as usize + sum_bytes {
            // SAFETY: the record is this slot's alone.
            unsafe { (*area.slot(peer, slot as usize)).head = head };
            let (to, address) = (To::Cell, self.peer.slot(area, peer, slot.into()).address);
            let left = length.into();
            self.stream.payload = Payload { to, address, left, slot, ..Payload::default() };
            return Ok(None);
        }
        self.scratch.has_long |= is_long;
        if length > 0 {
            // SAFETY: the record is this slot's alone.
            unsafe { (*area.slot(peer, slot as usize)).address = place };
            self.peer.in_scratch |= 1 << slot;
            self.scratch.holder = peer as u32;
            let (payload, rest) = self.scratch.bytes().split_at(length as usize);
            let sum = sums::read(&rest[..sum_bytes]);
            let is_changed = sum.is_some_and(|sum| sum != sums::of(payload));
            self.scratch.pass(length as usize + sum_bytes);
            if is_changed {
                self.stream.is_changed = true;
                self.peer.slot_release(area, peer, slot.into());
                return Err(Garbage);
            }
        }
        Ok(Some((slot, head)))
    }

    /// A line that lies in the scratch buffer, whole, with its header. Whoever hears of no refusal
    /// has counted on it.
    #[inline]
    fn line(&mut self, line: SilentWrite) -> Result<(), Garbage> {
        let SilentWrite { length, key, address } = line;
        self.scratch.pass(WRITE_HEADER_BYTES);
        let Some(region) = self.domain.hold(RailKey(key), address, length.into()) else {
            return self.note(line);
        };
        let from = self.scratch.bytes().as_ptr() as u64;
        // SAFETY: the source lies in the scratch buffer, as the caller has found, and the target in
        // a region, which is pinned.
        unsafe { touch::copy(from, address, length.into()) };
        self.domain.pin(region, -1);
        self.scratch.pass(length as usize);
        Ok(())
    }

    /// A line to no region is a note, or breaks the format.
    #[cold]
    fn note(&mut self, line: SilentWrite) -> Result<(), Garbage> {
        let bytes = self.scratch.bytes().first_chunk::<LINE_BYTES>().copied().ok_or(Garbage)?;
        let is_note = line.key == NOTE_KEY.0 && line.length as usize == LINE_BYTES;
        if !is_note || !self.area.notes.put(PeerIndex(self.peer_index as u32), &bytes) {
            return Err(Garbage);
        }
        self.scratch.pass(LINE_BYTES);
        Ok(())
    }

    /// Acts on a frame that is no send, whose header is so long. `false`: it waits.
    fn act_or_wait(&mut self, frame: StreamFrame, header: usize) -> Result<bool, Garbage> {
        if let StreamFrame::Write { key, .. } = frame
            && self.has_no_room_for(key)
        {
            return Ok(false);
        }
        self.scratch.pass(header);
        self.act(frame)?;
        Ok(true)
    }

    fn act(&mut self, frame: StreamFrame) -> Result<(), Garbage> {
        match frame {
            StreamFrame::Send { .. } => unreachable!("a whole header is taken by `send`"),
            StreamFrame::Write { length, key, silent: true, .. } if key == NOTE_KEY.0 => {
                self.note_begins(length)
            }
            StreamFrame::Write { length, key, address, immediate, silent } => {
                let left = length.into();
                let found = self.domain.find(RailKey(key), address, left);
                let to = if found.is_some() || length == 0 { To::Region } else { To::Drop };
                let (has_immediate, immediate) = (immediate.is_some(), immediate.unwrap_or(0));
                self.stream.was_long = left >= LONG_BYTES;
                let none = Payload::default();
                self.stream.payload =
                    Payload { address, left, key, immediate, has_immediate, silent, to, ..none };
                Ok(())
            }
            StreamFrame::Read { .. } | StreamFrame::ReadReply { .. } | StreamFrame::Add { .. }
                if self.is_bulk || self.n != 0 =>
            {
                Err(Garbage)
            }
            StreamFrame::Read { length, token, key, address } => {
                self.read(Asked { key, address, length, token })
            }
            StreamFrame::ReadReply { length, token, refused } => {
                self.stream.take_reply(self.ops, length, token, refused)
            }
            StreamFrame::Add { key, address, value } => {
                let found = match address.is_multiple_of(8) {
                    true => self.domain.hold(RailKey(key), address, 8),
                    false => None,
                };
                if let Some(region) = found {
                    // SAFETY: aligned, and in a registered region, which is pinned (`hold`).
                    unsafe { touch::add(address, value) };
                    self.domain.pin(region, -1);
                }
                self.answer(found.is_some())
            }
            StreamFrame::Done { through } => self.stream.take_done(self.ops, self.domain, through),
            StreamFrame::Failed { index } => self.stream.take_failed(self.ops, index),
            StreamFrame::Bye => {
                self.stream.bye = true;
                Ok(())
            }
        }
    }

    /// A note comes, maybe in parts.
    fn note_begins(&mut self, length: u32) -> Result<(), Garbage> {
        let part = self.area.notes.part(self.index).ok_or(Garbage)?;
        if length as usize != LINE_BYTES || self.is_bulk {
            return Err(Garbage);
        }
        let (to, address, left) = (To::Note, part as u64, length.into());
        self.stream.payload = Payload { to, address, left, ..Payload::default() };
        Ok(())
    }

    /// A read of the peer's waits to be answered.
    fn read(&mut self, asked: Asked) -> Result<(), Garbage> {
        let stream = &mut *self.stream;
        if stream.asked.wrapping_sub(stream.served) as usize >= ASKED_MAX {
            return Err(Garbage);
        }
        // SAFETY: a place that no waiting read has.
        unsafe { self.area.asked(self.peer_index, self.n, stream.asked).write(asked) };
        stream.asked = stream.asked.wrapping_add(1);
        self.owes = true;
        Ok(())
    }

    fn answer(&mut self, carried_out: bool) -> Result<(), Garbage> {
        self.owes = true;
        self.stream.answer(carried_out)
    }

    /// Takes what there is of a payload. `false`: more must come, or there is no room.
    #[inline]
    fn payload(&mut self, events: &mut Events) -> Result<bool, Garbage> {
        let bytes = self.scratch.bytes();
        let part = self.stream.payload.left.min(bytes.len() as u64);
        if part > 0 {
            let pinned = self.stream.payload_pin(self.domain);
            let (from, payload) = (bytes.as_ptr() as u64, &mut self.stream.payload);
            if payload.to != To::Drop {
                // SAFETY: the payload's place is a cell of ours, or lies in a pinned region; the
                // source lies in the scratch buffer.
                unsafe { touch::copy(from, payload.address, part) };
            }
            self.domain.unpin(pinned.unwrap_or(0));
            if payload.has_sum {
                // SAFETY: the source lies in the scratch buffer.
                payload.sum = unsafe { sums::of_memory(payload.sum, from, part) };
            }
            payload.left -= part;
            payload.address = payload.address.wrapping_add(part);
            self.scratch.pass(part as usize);
        }
        if self.stream.payload.left > 0 || !events.has_room() {
            return Ok(false);
        }
        if self.stream.payload.has_sum && !self.payload_sum()? {
            return Ok(false);
        }
        self.payload_ends(events)?;
        Ok(true)
    }

    /// Looks at the sum behind a payload that is whole. `false`: it has not come.
    fn payload_sum(&mut self) -> Result<bool, Garbage> {
        let Some(sum) = sums::read(self.scratch.bytes()) else {
            return Ok(self.carry_rest());
        };
        self.scratch.pass(SUM_BYTES);
        self.stream.payload.has_sum = false;
        self.stream.is_changed = sum != self.stream.payload.sum;
        if self.stream.is_changed { Err(Garbage) } else { Ok(true) }
    }

    /// A payload is whole.
    fn payload_ends(&mut self, events: &mut Events) -> Result<(), Garbage> {
        let payload = core::mem::take(&mut self.stream.payload);
        let peer = PeerIndex(self.peer_index as u32);
        match payload.to {
            To::Nowhere => {}
            To::Cell => {
                let slot = self.peer.slot(self.area, self.peer_index, payload.slot.into());
                self.scratch.has_long |= slot.long != 0;
                self.report(events, payload.slot, slot.head, slot.length);
            }
            To::Region => {
                if payload.has_immediate {
                    events.push(Completion::Immediate { peer, immediate: payload.immediate });
                }
                if !payload.silent {
                    self.answer(true)?;
                }
            }
            To::Read => self.stream.end_read(self.ops, self.domain)?,
            To::Note if self.area.notes.put_parts(peer, self.index) => {}
            To::Note => return Err(Garbage),
            // whoever hears of no refusal has counted on the write
            To::Drop if payload.silent => return Err(Garbage),
            To::Drop => self.answer(false)?,
        }
        Ok(())
    }
}
