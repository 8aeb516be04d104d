//! The way in: bytes are read where they belong, or into the scratch buffer, and frames taken out.

use super::area::{Asked, SCRATCH_BYTES, SEND_BYTES_MAX, SHORT_BYTES_MAX};
use super::ops::Outcome;
use super::peer::State;
use super::rail::{NONE, Tcp};
use super::socket::{self, Moved, Piece};
use super::stream::{Payload, To};
use super::sums::{self, SUM_BYTES};
use crate::base::ids::PeerIndex;
use crate::fabric::{Completion, DownCause, Head, RailKey, RecvSlot};
use crate::provider::events::Events;
use crate::provider::notes::NOTE_KEY;
use crate::provider::touch;
use crate::wire::stream::{
    self, HEADER_BYTES_MAX, SEND_HEAD_AT, SEND_HEAD_BYTES, SilentWrite, StreamFrame,
    WRITE_HEADER_BYTES,
};

/// Bytes of one read at most, beside the scratch buffer.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one read at least, so that a small budget does not cost a call per page.
pub(super) const READ_BYTES_MIN: u64 = 64 << 10;
/// Payloads from here on are likely followed by their like, so that little is read behind them:
/// what is read into the scratch buffer is copied once more.
const LONG_BYTES: u64 = 16 << 10;
/// How much is read behind a long payload: a few headers.
const BEHIND_LONG: usize = 256;

const _: () = assert!(LONG_BYTES < READ_BYTES_MIN && READ_BYTES_MIN < SCRATCH_BYTES as u64);

/// What one read gives the scratch buffer at most: what it holds is copied before the next one.
fn scratch_bytes(budget: u64) -> usize {
    budget.clamp(READ_BYTES_MIN, SCRATCH_BYTES as u64) as usize
}

/// The peer broke the rules of the wire.
pub(super) struct Garbage;

/// How far a look at the scratch buffer came.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Parsed {
    /// To its end.
    All,
    /// To an event that found no room.
    Full,
}

/// What a read of a stream gave.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Read {
    /// As much as was asked for: there may be more.
    Whole,
    /// Less: there is no more.
    Short,
    /// Nothing.
    Empty,
    /// The stream is closed now.
    Closed,
}

impl Tcp<'_> {
    /// Reads what there is, about `budget` bytes of it, as long as events find room.
    #[inline]
    pub(super) fn receive(&mut self, events: &mut Events, budget: &mut u64) {
        let only = core::mem::replace(&mut self.only, NONE);
        self.scratch.has_long = false;
        if self.scratch.owner != NONE && self.parse(events) == Parsed::Full {
            return;
        }
        if only != NONE {
            self.receive_stream(only as usize, events, budget);
            return;
        }
        let mut turn = 0;
        while *budget > 0 && events.has_room() && !self.scratch.has_long {
            let Some(index) = self.next_readable(&mut turn) else { return };
            self.streams[index].peeks_in_turn();
            self.receive_stream(index, events, budget);
        }
        // one that has more than a poll takes must not keep the others from being read
        let next = self.first_read as usize + turn;
        self.first_read = (next % self.open_count.max(1)) as u32;
    }

    /// The same for one stream. Says whether it has nothing more.
    pub(super) fn receive_stream(
        &mut self,
        index: usize,
        events: &mut Events,
        budget: &mut u64,
    ) -> bool {
        while *budget > 0 && events.has_room() && self.streams[index].is_open {
            let (peer, _) = self.peer_of(index);
            let enough = self.scratch.has_long && self.peers[peer].state == State::Open;
            if self.scratch.owner != NONE || enough {
                return false;
            }
            let read = self.read(index, budget);
            if matches!(read, Read::Whole | Read::Short) && self.parse(events) == Parsed::Full {
                return false;
            }
            match read {
                Read::Whole => {}
                Read::Short => return false,
                Read::Empty | Read::Closed => return true,
            }
        }
        false
    }

    /// One system call.
    #[inline]
    pub(super) fn read(&mut self, index: usize, budget: &mut u64) -> Read {
        self.clear_scratch();
        let may_peek = self.is_awake();
        let stream = &mut self.streams[index];
        let Some(peeks) = stream.peeks(may_peek) else {
            self.break_off(self.peer_of(index).0, DownCause::Failed);
            return Read::Closed;
        };
        let carried = stream.carried as usize;
        let start = self.scratch.start;
        self.scratch.at = 0;
        self.scratch.end = 0;
        let has_place = stream.payload.to != To::Nowhere && stream.payload.to != To::Drop;
        if has_place && stream.payload.left > 0 {
            return self.read_payload(index, budget);
        }
        if carried > 0 {
            // SAFETY: there is room for the start of a frame before the buffer.
            let before = unsafe { start.sub(carried) };
            touch_out(&stream.carry[..carried], before);
        }
        // what follows a long payload is likely one more: its bytes wait for their place
        let is_long = stream.was_long || self.is_bulk;
        let most = if is_long { BEHIND_LONG } else { scratch_bytes(*budget) };
        // SAFETY: the scratch buffer is as long, and nobody looks at it now.
        let moved = unsafe { socket::receive(stream.fd, start, most, peeks) };
        match moved {
            Moved::Bytes(bytes) => {
                self.moved = true;
                stream.peeks_note(bytes, peeks);
                self.has_peeked |= peeks;
                stream.was_long = false;
                stream.carried = 0;
                self.scratch.end = bytes;
                self.scratch.is_full = bytes == most;
                self.scratch.at = 0;
                self.scratch.before = carried;
                self.scratch.owner = index as u32;
                *budget = budget.saturating_sub(bytes as u64);
                if bytes == most { Read::Whole } else { Read::Short }
            }
            other => {
                stream.peeks_in_vain();
                self.read_nothing(index, other)
            }
        }
    }

    /// Reads the rest of a payload to its place, and what comes behind it to the scratch buffer.
    fn read_payload(&mut self, index: usize, budget: &mut u64) -> Read {
        let payload = self.streams[index].payload;
        let most = (*budget).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let part = payload.left.min(most);
        let Some(pinned) = self.payload_pin(index) else {
            return self.read(index, budget); // it is dropped from now on
        };
        let whole = part == payload.left;
        let behind = match whole {
            true if payload.left >= LONG_BYTES => BEHIND_LONG,
            true => scratch_bytes(*budget) - part as usize,
            false => 0,
        };
        let mut pieces = [
            Piece { iov_base: payload.address as *mut _, iov_len: part as usize },
            Piece { iov_base: self.scratch.start.cast(), iov_len: behind },
        ];
        let fd = self.streams[index].fd;
        let moved = if behind == 0 {
            // SAFETY: the payload's place is a cell of ours, or lies in a pinned region
            // (`payload_pin`, or the read's own pin).
            unsafe { socket::receive(fd, payload.address as *mut u8, part as usize, false) }
        } else {
            // SAFETY: as above; the scratch buffer is as long, and nobody looks at it now.
            unsafe { socket::receive_into(fd, &mut pieces) }
        };
        let own = if let Moved::Bytes(bytes) = moved { part.min(bytes as u64) } else { 0 };
        let payload = &mut self.streams[index].payload;
        if payload.has_sum {
            // SAFETY: as above, and the place is still pinned.
            payload.sum = unsafe { sums::of_memory(payload.sum, payload.address, own) };
        }
        self.unpin(pinned);
        let Moved::Bytes(bytes) = moved else { return self.read_nothing(index, moved) };
        self.moved = true;
        let payload = &mut self.streams[index].payload;
        payload.left -= own;
        payload.address = payload.address.wrapping_add(own);
        *budget = budget.saturating_sub(bytes as u64);
        self.scratch.end = bytes - own as usize;
        self.scratch.before = 0;
        self.scratch.owner = index as u32;
        self.scratch.is_full = bytes == part as usize + behind;
        if self.scratch.is_full { Read::Whole } else { Read::Short }
    }

    fn read_nothing(&mut self, index: usize, moved: Moved) -> Read {
        let (peer, _) = self.peer_of(index);
        match moved {
            Moved::Bytes(_) | Moved::Nothing => return Read::Empty,
            Moved::Ended | Moved::Broken(_) if self.streams[index].bye => {
                self.end_with_goodbye(peer);
            }
            Moved::Ended => self.end_unsure(peer, 0),
            Moved::Broken(code) => self.end_unsure(peer, code),
        }
        self.stream_close(index);
        Read::Closed
    }

    /// Makes the scratch buffer free to be written over.
    #[inline]
    fn clear_scratch(&mut self) {
        assert!(self.scratch.owner == NONE, "bytes that were not looked at are not written over");
        if self.scratch.holder != NONE {
            let holder = self.scratch.holder as usize;
            self.peers[holder].evacuate(&self.area, holder);
            self.scratch.holder = NONE;
        }
    }

    /// Pins the region that a payload goes to. `None`: it is gone, and so is the payload.
    #[inline]
    fn payload_pin(&mut self, index: usize) -> Option<u32> {
        let payload = &mut self.streams[index].payload;
        if payload.to != To::Region {
            return Some(NONE); // it needs no pin
        }
        match self.domain.hold(RailKey(payload.key), payload.address, payload.left) {
            Some(region) => Some(region),
            None => {
                payload.to = To::Drop;
                None
            }
        }
    }

    #[inline]
    fn unpin(&self, region: u32) {
        if region != NONE {
            self.domain.pin(region, -1);
        }
    }

    /// Takes the frames out of the scratch buffer.
    pub(super) fn parse(&mut self, events: &mut Events) -> Parsed {
        let index = self.scratch.owner as usize;
        loop {
            let step = match self.streams[index].payload.to {
                To::Nowhere => self.parse_frame(index, events),
                To::Cell | To::Region | To::Read | To::Drop | To::Note => {
                    self.parse_payload(index, events)
                }
            };
            match step {
                Ok(true) => {}
                Ok(false) if core::mem::take(&mut self.scratch.waits) => return Parsed::Full,
                Ok(false) if events.has_room() => break,
                Ok(false) if self.scratch_left() == 0 && self.between_frames(index) => break,
                Ok(false) => return Parsed::Full,
                Err(Garbage) => {
                    let (peer, _) = self.peer_of(index);
                    let cause = match self.streams[index].is_changed {
                        true => DownCause::Broken(libc::EBADMSG),
                        false => DownCause::Failed,
                    };
                    self.break_off(peer, cause);
                    break;
                }
            }
        }
        self.scratch.owner = NONE;
        Parsed::All
    }

    #[inline]
    pub(super) fn scratch_left(&self) -> usize {
        self.scratch.end - self.scratch.at + self.scratch.before
    }

    /// Whether no payload is whole and waits to be reported.
    fn between_frames(&self, index: usize) -> bool {
        let payload = &self.streams[index].payload;
        payload.to == To::Nowhere || payload.left > 0
    }

    /// The bytes that were not looked at.
    #[inline]
    pub(super) fn scratch_bytes(&self) -> &[u8] {
        // SAFETY: `before` bytes before the buffer and those up to `end` were written, and nobody
        // writes them while they are looked at.
        unsafe {
            let at = self.scratch.start.add(self.scratch.at).sub(self.scratch.before);
            core::slice::from_raw_parts(at, self.scratch_left())
        }
    }

    #[inline]
    pub(super) fn scratch_pass(&mut self, bytes: usize) {
        let carried = self.scratch.before.min(bytes);
        self.scratch.before -= carried;
        self.scratch.at += bytes - carried;
    }

    /// Takes one frame. `false`: there is no whole header, or no room for an event.
    #[inline]
    fn parse_frame(&mut self, index: usize, events: &mut Events) -> Result<bool, Garbage> {
        let bytes = self.scratch_bytes();
        let Some(first) = bytes.first() else { return Ok(false) };
        if !events.has_room() {
            return Ok(false);
        }
        if self.streams[index].sums {
            return self.parse_summed(index, events);
        }
        if let Some(length) = stream::send_length(bytes) {
            if self.scratch.has_long && !self.peers[self.peer_of(index).0].has_cell(length) {
                self.scratch.waits = true;
                return Ok(false);
            }
            if let Some((slot, head)) = self.take_send(index, length)? {
                events.push(received(self.peer_of(index).0, slot, head, length));
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
            self.take_line(index, line)?;
            return Ok(true);
        }
        let length = StreamFrame::header_bytes(*first).map_err(|_| Garbage)?;
        if bytes.len() < length {
            self.carry_rest(index);
            return Ok(false);
        }
        let frame = StreamFrame::decode(&bytes[..length]).map_err(|_| Garbage)?;
        if let StreamFrame::Write { key, .. } = frame
            && self.has_no_room_for(key)
        {
            return Ok(false);
        }
        self.scratch_pass(length);
        self.take(index, frame)?;
        Ok(true)
    }

    /// Takes a send whose header is there: its slot and head, or `None` when bytes are missing.
    #[inline]
    pub(super) fn take_send(
        &mut self,
        index: usize,
        length: u32,
    ) -> Result<Option<(u32, Head)>, Garbage> {
        let (peer, n) = self.peer_of(index);
        if n != 0 || self.is_bulk || length > SEND_BYTES_MAX {
            return Err(Garbage);
        }
        let mut head: Head = [0; SEND_HEAD_BYTES];
        head.copy_from_slice(&self.scratch_bytes()[SEND_HEAD_AT..][..SEND_HEAD_BYTES]);
        let sum_bytes = if self.streams[index].sums { SUM_BYTES } else { 0 };
        self.scratch_pass(HEADER_BYTES_MAX + sum_bytes);
        let is_long = length > SHORT_BYTES_MAX;
        if !self.peers[peer].has_cell(length) || (is_long && !self.area.has_long(peer)) {
            return Err(Garbage);
        }
        let slot = self.peers[peer].slot_acquire(&self.area, peer, length).ok_or(Garbage)?;
        let sum_bytes = if length > 0 { sum_bytes } else { 0 };
        if self.scratch_left() < length as usize + sum_bytes {
            // SAFETY: the record is this slot's alone.
            unsafe { (*self.area.slot(peer, slot as usize)).head = head };
            let record = self.peers[peer].slot(&self.area, peer, slot.into());
            let (to, address) = (To::Cell, record.address);
            self.streams[index].payload =
                Payload { to, address, left: length.into(), slot, ..Payload::default() };
            return Ok(None);
        }
        self.scratch.has_long |= is_long;
        if length > 0 {
            // SAFETY: the payload lies in the buffer, whole.
            let address = unsafe { self.scratch.start.add(self.scratch.at) } as u64;
            // SAFETY: the record is this slot's alone.
            unsafe { (*self.area.slot(peer, slot as usize)).address = address };
            self.peers[peer].in_scratch |= 1 << slot;
            self.scratch.holder = peer as u32;
            let bytes = &self.scratch_bytes()[..length as usize + sum_bytes];
            let (payload, sum) = bytes.split_at(length as usize);
            let is_changed = sums::read(sum).is_some_and(|sum| sum != sums::of(payload));
            self.scratch_pass(length as usize + sum_bytes);
            if is_changed {
                self.streams[index].is_changed = true;
                self.peers[peer].slot_release(&self.area, peer, slot.into());
                return Err(Garbage);
            }
        }
        Ok(Some((slot, head)))
    }

    /// Acts on a frame that is no send.
    pub(super) fn take(&mut self, index: usize, frame: StreamFrame) -> Result<(), Garbage> {
        match frame {
            StreamFrame::Send { .. } => unreachable!("a whole header is taken by `take_send`"),
            StreamFrame::Write { length, key, silent: true, .. } if key == NOTE_KEY.0 => {
                self.begin_note(index, length)
            }
            StreamFrame::Write { length, key, address, immediate, silent } => {
                let found = self.domain.find(RailKey(key), address, length.into());
                let to = if found.is_some() || length == 0 { To::Region } else { To::Drop };
                let has_immediate = immediate.is_some();
                let immediate = immediate.unwrap_or(0);
                let (left, slot) = (length.into(), 0);
                let stream = &mut self.streams[index];
                stream.was_long = left >= LONG_BYTES;
                let (has_sum, sum) = (false, 0);
                stream.payload = Payload {
                    address,
                    left,
                    key,
                    slot,
                    immediate,
                    has_immediate,
                    silent,
                    has_sum,
                    sum,
                    to,
                };
                Ok(())
            }
            StreamFrame::Read { .. } | StreamFrame::ReadReply { .. } | StreamFrame::Add { .. }
                if self.is_bulk || self.peer_of(index).1 != 0 =>
            {
                Err(Garbage)
            }
            StreamFrame::Read { length, token, key, address } => {
                self.take_read(index, Asked { key, address, length, token })
            }
            StreamFrame::ReadReply { length, token, refused } => {
                self.take_reply(index, length, token, refused)
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
                self.answer(index, found.is_some())
            }
            StreamFrame::Done { through } => self.take_done(index, through),
            StreamFrame::Failed { index: op } => {
                let stream = &self.streams[index];
                let number = op.wrapping_sub(stream.done);
                let entry = self.ops.nth(&stream.flying, number).ok_or(Garbage)?;
                entry.outcome = Outcome::Key;
                Ok(())
            }
            StreamFrame::Bye => {
                self.streams[index].bye = true;
                Ok(())
            }
        }
    }

    /// A line that lies in the scratch buffer, whole, with its header. Whoever hears of no refusal
    /// has counted on it.
    #[inline]
    pub(super) fn take_line(&mut self, index: usize, line: SilentWrite) -> Result<(), Garbage> {
        let SilentWrite { length, key, address } = line;
        self.scratch_pass(WRITE_HEADER_BYTES);
        let Some(region) = self.domain.hold(RailKey(key), address, length.into()) else {
            return self.take_note(index, line);
        };
        let from = self.scratch_bytes().as_ptr() as u64;
        // SAFETY: the source lies in the scratch buffer, as the caller has found, and the target in
        // a region, which is pinned.
        unsafe { touch::copy(from, address, length.into()) };
        self.domain.pin(region, -1);
        self.scratch_pass(length as usize);
        Ok(())
    }

    /// Takes what there is of a payload. `false`: more must come, or there is no room.
    #[inline]
    fn parse_payload(&mut self, index: usize, events: &mut Events) -> Result<bool, Garbage> {
        let part = self.streams[index].payload.left.min(self.scratch_left() as u64);
        if part > 0 {
            debug_assert!(
                self.scratch.before == 0 || self.streams[index].sums,
                "a carried start is less than a header, and what follows it with sums"
            );
            let pinned = self.payload_pin(index);
            let payload = &mut self.streams[index].payload;
            if payload.to != To::Drop {
                let from = self.scratch_bytes().as_ptr() as u64;
                let to = self.streams[index].payload.address;
                // SAFETY: the payload's place is a cell of ours, or lies in a pinned region; the
                // source lies in the scratch buffer.
                unsafe { touch::copy(from, to, part) };
            }
            self.unpin(pinned.unwrap_or(NONE));
            let from = self.scratch_bytes().as_ptr() as u64;
            let payload = &mut self.streams[index].payload;
            if payload.has_sum {
                // SAFETY: the source lies in the scratch buffer.
                payload.sum = unsafe { sums::of_memory(payload.sum, from, part) };
            }
            payload.left -= part;
            payload.address = payload.address.wrapping_add(part);
            self.scratch_pass(part as usize);
        }
        if self.streams[index].payload.left > 0 || !events.has_room() {
            return Ok(false);
        }
        if self.streams[index].payload.has_sum && !self.parse_sum(index)? {
            return Ok(false);
        }
        self.finish_payload(index, events)?;
        Ok(true)
    }

    /// A payload is whole.
    fn finish_payload(&mut self, index: usize, events: &mut Events) -> Result<(), Garbage> {
        let payload = core::mem::take(&mut self.streams[index].payload);
        let (peer, _) = self.peer_of(index);
        match payload.to {
            To::Nowhere => {}
            To::Cell => {
                let record = self.peers[peer].slot(&self.area, peer, payload.slot.into());
                self.scratch.has_long |= record.long != 0;
                events.push(received(peer, payload.slot, record.head, record.length));
            }
            To::Region => {
                if payload.has_immediate {
                    let (peer, immediate) = (PeerIndex(peer as u32), payload.immediate);
                    events.push(Completion::Immediate { peer, immediate });
                }
                if !payload.silent {
                    self.answer(index, true)?;
                }
            }
            To::Read => {
                let stream = &mut self.streams[index];
                stream.reads_done = stream.reads_done.wrapping_add(1);
                let op = self.ops.take_first(&mut stream.reads).ok_or(Garbage)?;
                if let Some(region) = self.ops.get(op).pin.checked_sub(1) {
                    self.domain.pin(region, -1);
                }
                self.ops.finish(op);
            }
            To::Note => {
                if !self.area.notes.put_parts(PeerIndex(peer as u32), index) {
                    return Err(Garbage);
                }
            }
            // whoever hears of no refusal has counted on the write
            To::Drop if payload.silent => return Err(Garbage),
            To::Drop => self.answer(index, false)?,
        }
        Ok(())
    }
}

fn touch_out(from: &[u8], to: *mut u8) {
    // SAFETY: the caller has found room for a header there.
    unsafe { touch::copy_out(from, to as u64) };
}

#[inline]
pub(super) fn received(peer: usize, slot: u32, head: Head, length: u32) -> Completion {
    let slot = RecvSlot(slot.into());
    Completion::Received { peer: PeerIndex(peer as u32), slot, head, length }
}
