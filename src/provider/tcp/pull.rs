//! The way in: bytes are read where they belong, or into the scratch buffer, and frames taken out.

use super::NONE;
use super::area::SCRATCH_BYTES;
use super::parser::{LONG_BYTES, Parsed, Parser};
use super::peer::State;
use super::rail::Tcp;
use super::socket::{self, Moved, Piece};
use super::stream::{Garbage, To};
use super::sums;
use crate::fabric::{DownCause, Next};
use crate::provider::events::Events;

/// Bytes of one read at most, beside the scratch buffer.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one read at least, so that a small budget does not cost a call per page.
pub(super) const READ_BYTES_MIN: u64 = 64 << 10;
/// How much is read behind a long payload: a few headers.
const BEHIND_LONG: usize = 256;
/// Staged bytes that one look hands over.
const LOOK_BYTES: u64 = 64 << 10;

const _: () = assert!(LONG_BYTES < READ_BYTES_MIN && READ_BYTES_MIN < SCRATCH_BYTES as u64);

/// What one read gives the scratch buffer at most: what it holds is copied before the next one.
fn scratch_bytes(budget: u64) -> usize {
    budget.clamp(READ_BYTES_MIN, SCRATCH_BYTES as u64) as usize
}

/// What a read of a stream gave.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Read {
    /// As much as was asked for: there may be more.
    Whole,
    /// Less: there is no more.
    Short,
    /// Nothing.
    Empty,
    /// The stream is closed now.
    Closed,
}

impl<'m> Tcp<'m> {
    /// Reads what there is, about `budget` bytes of it, as long as events find room.
    #[inline]
    pub(super) fn receive(&mut self, events: &mut Events, budget: &mut u64) {
        let only = self.streams.take_only();
        self.scratch.has_long = false;
        if self.scratch.owner != NONE && self.parse(events) == Parsed::Full {
            return;
        }
        if let Some(index) = only {
            self.receive_stream(index, events, budget);
            return;
        }
        let mut turn = 0;
        while *budget > 0 && events.has_room() && !self.scratch.has_long {
            let Some(index) = self.streams.next_readable(&mut turn) else { return };
            self.streams[index].peeked.note_turn();
            self.receive_stream(index, events, budget);
        }
        self.streams.turns_end(turn);
    }

    /// The same for one stream. Says whether it has nothing more.
    pub(super) fn receive_stream(
        &mut self,
        index: usize,
        events: &mut Events,
        budget: &mut u64,
    ) -> bool {
        while *budget > 0 && events.has_room() && self.streams[index].is_open {
            let (peer, _) = self.streams.peer_of(index);
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

    /// [`crate::fabric::Provider::next`]: the straight way in of the common message, for one stream
    /// that is read directly, with short sends on it and the lines between them. Hands over what is
    /// staged, reads once, and gives out what was read, one send per call. Whatever else there is,
    /// it leaves to a poll as it was. *Cost*: at most two system calls, a third for eight messages.
    #[inline(never)]
    pub fn next_straight(&mut self) -> Next {
        let Some(index) = self.straight_stream() else { return Next::Poll };
        self.streams.take_only(); // there is one
        if self.scratch.owner == NONE {
            if self.streams.dirty_count() != 0 {
                self.flush_dirty(&mut LOOK_BYTES.clone());
            }
            match self.read(index, &mut (SCRATCH_BYTES as u64)) {
                Read::Whole | Read::Short => {}
                Read::Empty if self.endings == 0 => return Next::Nothing,
                Read::Empty | Read::Closed => return Next::Poll,
            }
        }
        self.parser(index).next_send().unwrap_or_else(|Garbage| {
            self.break_off(self.streams.peer_of(index).0, DownCause::Failed);
            Next::Poll
        })
    }

    /// The one stream, if nothing but short frames is under way on it.
    #[inline]
    fn straight_stream(&self) -> Option<usize> {
        let index = self.streams.single()?;
        if self.endings != 0 || !self.ops.none_done() || self.helpers.are_up() {
            return None;
        }
        let stream = &self.streams[index];
        let is_short = stream.payload.to == To::Nowhere && stream.out.only_staged().is_some();
        (is_short && stream.carried == 0 && !stream.sums).then_some(index)
    }

    /// One system call.
    #[inline]
    fn read(&mut self, index: usize, budget: &mut u64) -> Read {
        let start = self.scratch.place();
        if self.scratch.holder != NONE {
            self.evacuate();
        }
        let may_peek = self.streams.are_awake();
        let stream = &mut self.streams[index];
        let Some(peeks) = stream.peeks(may_peek) else {
            self.break_off(self.streams.peer_of(index).0, DownCause::Failed);
            return Read::Closed;
        };
        let has_place = stream.payload.to != To::Nowhere && stream.payload.to != To::Drop;
        if has_place && stream.payload.left > 0 {
            return self.read_payload(index, budget);
        }
        let carried = stream.carried as usize;
        if carried > 0 {
            self.scratch.carry(&stream.carry[..carried]);
        }
        // what follows a long payload is likely one more: its bytes wait for their place
        let is_long = stream.was_long || self.is_bulk;
        let most = if is_long { BEHIND_LONG } else { scratch_bytes(*budget) };
        // SAFETY: the scratch buffer is as long, and nobody looks at it now.
        let moved = unsafe { socket::receive(stream.fd, start, most, peeks) };
        let Moved::Bytes(bytes) = moved else {
            stream.peeked.note_vain(stream.fd);
            return self.read_nothing(index, moved);
        };
        self.moved = true;
        stream.peeked.note(bytes, peeks);
        (stream.was_long, stream.carried) = (false, 0);
        self.streams.note_peek(peeks);
        self.scratch.filled(index, carried, bytes, bytes == most);
        *budget = budget.saturating_sub(bytes as u64);
        if bytes == most { Read::Whole } else { Read::Short }
    }

    /// Reads the rest of a payload to its place, and what comes behind it to the scratch buffer.
    fn read_payload(&mut self, index: usize, budget: &mut u64) -> Read {
        let stream = &mut self.streams[index];
        let Some(pinned) = stream.payload_pin(&self.domain) else {
            return self.read(index, budget); // it is dropped from now on
        };
        let (payload, fd) = (&mut stream.payload, stream.fd);
        let most = (*budget).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let part = payload.left.min(most);
        let behind = match part == payload.left {
            true if payload.left >= LONG_BYTES => BEHIND_LONG,
            true => scratch_bytes(*budget) - part as usize,
            false => 0,
        };
        let mut pieces = [
            Piece { iov_base: payload.address as *mut _, iov_len: part as usize },
            Piece { iov_base: self.scratch.place().cast(), iov_len: behind },
        ];
        let moved = if behind == 0 {
            // SAFETY: the payload's place is a cell of ours, or lies in a pinned region
            // (`payload_pin`, or the read's own pin).
            unsafe { socket::receive(fd, payload.address as *mut u8, part as usize, false) }
        } else {
            // SAFETY: as above; the scratch buffer is as long, and nobody looks at it now.
            unsafe { socket::receive_into(fd, &mut pieces) }
        };
        let own = if let Moved::Bytes(bytes) = moved { part.min(bytes as u64) } else { 0 };
        if payload.has_sum {
            // SAFETY: as above, and the place is still pinned.
            payload.sum = unsafe { sums::of_memory(payload.sum, payload.address, own) };
        }
        self.domain.unpin(pinned);
        let Moved::Bytes(bytes) = moved else { return self.read_nothing(index, moved) };
        self.moved = true;
        payload.left -= own;
        payload.address = payload.address.wrapping_add(own);
        *budget = budget.saturating_sub(bytes as u64);
        let is_full = bytes == part as usize + behind;
        self.scratch.filled(index, 0, bytes - own as usize, is_full);
        if is_full { Read::Whole } else { Read::Short }
    }

    fn read_nothing(&mut self, index: usize, moved: Moved) -> Read {
        let (peer, _) = self.streams.peer_of(index);
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

    /// What the scratch buffer holds of messages moves to cells, so that it may be written over.
    pub(super) fn evacuate(&mut self) {
        let holder = core::mem::replace(&mut self.scratch.holder, NONE) as usize;
        self.peers[holder].evacuate(&self.area, holder);
    }

    #[inline]
    fn parser(&mut self, index: usize) -> Parser<'_, 'm> {
        let (peer_index, n) = self.streams.peer_of(index);
        Parser {
            stream: &mut self.streams[index],
            index,
            n,
            peer: &mut self.peers[peer_index],
            peer_index,
            scratch: &mut self.scratch,
            area: &mut self.area,
            ops: &mut self.ops,
            domain: &self.domain,
            is_bulk: self.is_bulk,
            owes: false,
        }
    }

    /// Takes the frames out of the scratch buffer.
    fn parse(&mut self, events: &mut Events) -> Parsed {
        let index = self.scratch.owner as usize;
        let mut parser = self.parser(index);
        let parsed = parser.parse(events);
        if parser.owes {
            self.streams.mark_dirty(index);
        }
        match parsed {
            Ok(Parsed::Full) => return Parsed::Full,
            Ok(Parsed::All) => {}
            Err(Garbage) => {
                let cause = match self.streams[index].is_changed {
                    true => DownCause::Broken(libc::EBADMSG),
                    false => DownCause::Failed,
                };
                self.break_off(self.streams.peer_of(index).0, cause);
            }
        }
        self.scratch.owner = NONE;
        Parsed::All
    }
}
