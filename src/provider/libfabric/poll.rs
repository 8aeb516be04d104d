//! Taking completions and reporting what they say.

use super::area::{CELLS, RECEIVES, SENDS};
use super::domain::turns::Act;
use super::message::{
    BRIEF_BYTES, Kind, PREFIX_BYTES, Prefix, head_renew, word_is_cut, word_parts,
};
use super::peer::{Down, KEYS, Sent, State, Use};
use super::rail::{BATCH, Cell, Libfabric};
use super::report::{ErrorReport, TEXT_BYTES, errno};
use super::sys::abi::{CqEntry, CqErrEntry};
use super::sys::{Code, numbers as n};
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::fabric::{Completion, DownCause, HEAD_BYTES, OpError, OpErrorKind, RecvSlot};
use crate::provider::events::Events;
use crate::provider::touch;

const _: () = assert!(RECEIVES < CELLS);

/// Looks into the queue that one poll takes at most: what nobody is told of fills no room, and a
/// queue may have more and more of it.
pub(super) const LOOKS_MAX: u32 = 64;
/// Failures of no op, in a row and none of them a second behind the one before, that are the
/// endpoint's. `ofi_rxm` says so with every look when its device has died; some may be of
/// connections that strangers have broken.
pub(super) const FAILURES_MAX: u32 = 64;
const FAILURES_APART: Span = Span::millis(1000);

/// A received message's name: its cell, and how long its payload is.
#[inline]
pub(super) fn slot_of(cell: u32, length: u32) -> RecvSlot {
    RecvSlot(u64::from(length) << 32 | u64::from(cell))
}

/// The inverse of [`slot_of`].
#[inline]
pub(super) fn slot_parts(slot: RecvSlot) -> (usize, u32) {
    ((slot.0 & 0xffff_ffff) as usize, (slot.0 >> 32) as u32)
}

impl Libfabric<'_> {
    /// Takes completions and reports, as long as there is room. Whether the queue was seen empty.
    ///
    /// A queue that gave less than there was room for is not asked once more before its completions
    /// are heard of: an empty one makes system calls to see what has come (`tcp`: a microsecond of
    /// each message). Who waits for a peer's end does ask, because that comes behind everything.
    pub(super) fn take(&mut self, events: &mut Events) -> bool {
        let (mut is_short, mut looks) = (false, 0);
        while events.has_room() {
            if self.batch_at == self.batch_count {
                if is_short && self.endings == 0 {
                    return false;
                }
                if looks == LOOKS_MAX {
                    return false;
                }
                looks += 1;
                let Some(open) = self.open.as_ref() else { return true };
                (self.batch_at, self.batch_count) = (0, 0);
                let turn = self.domain.turn(Act::Poll);
                let read = open.cq.read(&mut self.batch);
                drop(turn);
                match read {
                    Ok(0) | Err(Code::AGAIN) => return true,
                    Ok(count) => {
                        (self.batch_count, is_short) = (count, count < BATCH);
                        self.watch.failures = 0;
                    }
                    Err(Code(n::EAVAIL)) => {
                        if !self.take_error(events) {
                            return true;
                        }
                    }
                    Err(code) => {
                        self.failed_beside(ErrorReport::new(code.0, 0));
                        return true;
                    }
                }
                continue;
            }
            let entry = self.batch[self.batch_at];
            self.batch_at += 1;
            self.look(&entry, events);
        }
        false
    }

    #[inline]
    fn look(&mut self, entry: &CqEntry, events: &mut Events) {
        const WORD: u64 = n::REMOTE_CQ_DATA | n::REMOTE_WRITE;
        let index = self.context_index(entry.op_context);
        if entry.flags & WORD == WORD {
            self.word_came(entry.data, events);
            // whether it took a receive: its context says so, where the library wants it
            if self.traits.words_take_receives
                && let Some(cell) = index.and_then(|at| at.checked_sub(self.peers.len() * SENDS))
                && cell < self.cells.len()
                && self.has_ended(cell)
            {
                self.receive_again(cell);
            }
            return;
        }
        match index {
            None => self.unknown(),
            Some(op) if op < self.peers.len() * SENDS => self.retire(op, Ok(()), events),
            Some(at) => {
                let cell = at - self.peers.len() * SENDS;
                if cell == self.cells.len() {
                    self.flush_retire(Ok(()));
                } else if self.has_ended(cell) {
                    self.received(cell, entry.len, events);
                }
            }
        }
    }

    /// Whether a cell of which the library says that its receive has ended was posted.
    #[inline]
    fn has_ended(&mut self, cell: usize) -> bool {
        let was_posted = self.cells[cell] == Cell::Posted;
        if !was_posted {
            self.unknown();
        }
        was_posted
    }

    /// A completion of what is not under way.
    #[cold]
    pub(super) fn unknown(&mut self) {
        self.health.strange = self.health.strange.wrapping_add(1);
        self.health.unknown = self.health.unknown.wrapping_add(1);
    }

    /// A write with a word has landed.
    #[inline]
    fn word_came(&mut self, data: u64, events: &mut Events) {
        let (peer, token, immediate) = word_parts(data);
        let index = usize::from(peer);
        match self.peers.get(index) {
            Some(record) if record.token as u16 == token && record.hears() => {
                events.push(Completion::Immediate { peer: PeerIndex(index as u32), immediate });
            }
            Some(_) | None if word_is_cut(data) => self.words_cut(),
            Some(_) | None => self.health.strange += 1,
        }
    }

    /// A word came whose upper half the provider has cut off: nobody knows who waits for what it
    /// says, so every peer ends. Who joins again is told to send words as messages, and we do.
    #[cold]
    fn words_cut(&mut self) {
        self.health.strange += 1;
        self.health.cuts_words = true;
        self.traits.carries_words = false;
        let code = libc::EPROTO;
        let report = ErrorReport { cuts_words: true, ..ErrorReport::new(code, 0) };
        for index in 0..self.peers.len() {
            if self.peers[index].takes_ops() && self.peers[index].sends_words {
                self.peers[index].report.get_or_insert(report);
                self.end(index, DownCause::Broken(code));
            }
        }
    }

    /// `false`: there is none, whatever was said, or none can be had. Asked again at once, a
    /// library may say for ever that one waits.
    #[cold]
    fn take_error(&mut self, events: &mut Events) -> bool {
        let mut text = [0; TEXT_BYTES];
        let Some(open) = self.open.as_ref() else { return false };
        let turn = self.domain.turn(Act::Poll);
        let read = open.cq.read_error(&mut text);
        drop(turn);
        match read {
            Ok(entry) => self.look_at_error(&entry, text, events),
            Err(code) => {
                if code != Code::AGAIN {
                    self.lose(code.0);
                }
                return false;
            }
        }
        self.watch.failures < FAILURES_MAX
    }

    fn look_at_error(&mut self, entry: &CqErrEntry, text: [u8; TEXT_BYTES], events: &mut Events) {
        let (code, provider_code) = (entry.err, entry.prov_errno);
        let report = ErrorReport { text, ..ErrorReport::new(code, provider_code) };
        let ops = self.peers.len() * SENDS;
        match self.context_index(entry.op_context) {
            None => {
                self.health.strange += 1;
                let is_of_none = entry.op_context.is_null();
                self.health.unknown += u32::from(!is_of_none);
                if is_of_none && code != 0 {
                    self.failed_of_none(report);
                }
            }
            Some(op) if op < ops => {
                let index = op / SENDS;
                if self.sent[op].used == Use::Drain {
                    self.drain_failed(index, code, provider_code);
                }
                let is_its = self.peers[index].under_way() & 1 << (op % SENDS) != 0;
                if !is_its {
                    // the number's last peer's
                    return self.retire(op, Err(self.peers[index].cut_off()), events);
                }
                if self.peers[index].report.is_none() {
                    self.peers[index].report = Some(report);
                }
                let error = OpError { kind: OpErrorKind::Fabric, code: errno(code) };
                self.retire(op, Err(error), events);
                self.end(index, DownCause::Broken(code));
            }
            Some(at) if at - ops == self.cells.len() => {
                let kind = OpErrorKind::Fabric;
                self.flush_retire(Err(OpError { kind, code: errno(code) }));
            }
            Some(at) => {
                self.health.strange += 1;
                if self.has_ended(at - ops) {
                    self.receive_again(at - ops);
                }
            }
        }
    }

    /// A failure that belongs to no op may be the endpoint's.
    fn failed_of_none(&mut self, report: ErrorReport) {
        if self.now.since(self.watch.failed_at) >= FAILURES_APART {
            self.watch.failures = 0;
        }
        self.watch.failed_at = self.now;
        self.watch.failures = self.watch.failures.saturating_add(1);
        if self.watch.failures >= FAILURES_MAX {
            self.failed_beside(report);
        }
    }

    /// The library has done with an op.
    pub(super) fn retire(&mut self, op: usize, result: Result<(), OpError>, events: &mut Events) {
        if self.op_is_free(op) {
            return self.unknown();
        }
        let index = op / SENDS;
        let bit = 1u64 << (op % SENDS);
        let Sent { id, used, touches, is_read, pin, key_place, word } = self.sent[op];
        if let Some(region) = pin.checked_sub(1) {
            self.domain.release(region);
        }
        if let Some(place) = key_place.checked_sub(1) {
            let place = usize::from(place);
            let answer = &mut self.answers[index * KEYS + place];
            answer.users = answer.users.saturating_sub(1);
            if answer.is_revoked && answer.users == 0 {
                self.give_back(index, place);
            }
        }
        let record = &mut self.peers[index];
        // a message has ended when the library has it
        record.ops.ended = record.ops.ended.wrapping_add(u32::from(touches || is_read));
        record.ops.touching -= u32::from(touches);
        record.ops.reads -= u32::from(is_read);
        if used == Use::Loud {
            record.ops.in_flight -= 1;
            events.push(Completion::Done { peer: PeerIndex(index as u32), id, result });
        }
        record.ops.used &= !bit;
        if record.ops.left_ops != 0 {
            self.left_retired(index, bit);
        }
        self.sent[op] = Sent::FREE;
        if let (Some(word), Ok(())) = (word, result) {
            self.word_follows(index, word);
        }
        let record = &self.peers[index];
        if record.owes_word && record.ops.touching == 0 {
            self.say_drained(index);
        }
    }

    /// The data of a write is there: its word goes now, or as soon as there is room.
    #[cold]
    fn word_follows(&mut self, index: usize, word: u32) {
        let is_first = self.peers[index].ops.words_due == 0;
        if !self.peers[index].takes_ops() {
            return;
        }
        if is_first {
            match self.word_message(index, word) {
                Ok(()) => return,
                Err(Code::AGAIN) => {}
                Err(code) => return self.end(index, DownCause::Broken(code.0)),
            }
        }
        // its op has just ended, so there is a free place
        let free = self.free_op(index).expect("the place of the op that has ended");
        self.sent[index * SENDS + free] =
            Sent { used: Use::WordDue, word: Some(word), ..Sent::FREE };
        self.peers[index].ops.used |= 1 << free;
        self.peers[index].ops.words_due |= 1 << free;
        self.has_chores = true;
    }

    /// Takes a message. `cell` holds it.
    #[inline]
    fn received(&mut self, cell: usize, bytes: usize, events: &mut Events) {
        let mut prefix = [0; PREFIX_BYTES];
        let at = self.area.cell(cell);
        // SAFETY: a cell that the library has filled, and does not touch until it is posted again.
        unsafe { touch::copy_in(at, &mut prefix) };
        let is_whole = |prefix: &Prefix| {
            let is_read = prefix.kind != Kind::Brief || self.traits.messages_ordered;
            is_read && bytes >= prefix.ahead()
        };
        let prefix = Prefix::decode(&prefix).filter(is_whole);
        let Some(prefix) = prefix else { return self.strange(cell) };
        let index = usize::from(prefix.peer);
        let Some(record) = self.peers.get_mut(index) else { return self.strange(cell) };
        if record.token != prefix.token || record.token == 0 {
            return self.strange(cell);
        }
        if record.state == State::Prepared {
            // it came before its peer was joined, and is taken when that is
            self.cells[cell] = Cell::Early(bytes as u32);
            return self.early.push(cell as u32);
        }
        let is_due = prefix.number == record.seen_count || !self.traits.messages_ordered;
        if !is_due && record.hears() {
            // something before it was lost; words about the end still count
            self.end(index, DownCause::Broken(libc::EPROTO));
        }
        let is_message = matches!(prefix.kind, Kind::Send | Kind::Brief);
        if is_message && bytes - prefix.ahead() > self.limits.payload_bytes_max as usize {
            // more than it was told to send, although its cell held it
            self.end(index, DownCause::Broken(libc::EPROTO));
            return self.receive_again(cell);
        }
        let record = &mut self.peers[index];
        let hears = record.hears() && is_due;
        let peer = PeerIndex(index as u32);
        match prefix.kind {
            Kind::Send | Kind::Brief if hears => {
                record.seen_count = record.seen_count.wrapping_add(1);
                let mut head = [0; HEAD_BYTES];
                let ahead = prefix.ahead();
                if prefix.kind == Kind::Brief {
                    let words = &mut head[..ahead - BRIEF_BYTES];
                    // SAFETY: as above; the message is as long.
                    unsafe { touch::copy_in(at + BRIEF_BYTES as u64, words) };
                    head_renew(&mut record.head_seen, prefix.place, &head);
                    head = record.head_seen;
                } else {
                    // SAFETY: as above; the message is as long.
                    unsafe { touch::copy_in(at + PREFIX_BYTES as u64, &mut head) };
                }
                self.cells[cell] = Cell::Held { peer: index as u32, ahead: ahead as u8 };
                let length = (bytes - ahead) as u32;
                let slot = slot_of(cell as u32, length);
                return events.push(Completion::Received { peer, slot, head, length });
            }
            Kind::Word if hears => {
                record.seen_count = record.seen_count.wrapping_add(1);
                events.push(Completion::Immediate { peer, immediate: prefix.word });
            }
            Kind::Send | Kind::Brief | Kind::Word => {}
            _ => {
                let mut words = [0u8; 32];
                let length = (bytes - PREFIX_BYTES).min(words.len());
                // SAFETY: as above; the message is as long.
                unsafe { touch::copy_in(at + PREFIX_BYTES as u64, &mut words[..length]) };
                self.control_received(index, &prefix, &words[..length]);
            }
        }
        self.receive_again(cell);
    }

    #[cold]
    fn strange(&mut self, cell: usize) {
        self.health.strange += 1;
        self.receive_again(cell);
    }

    /// Takes what came before its peer was joined.
    #[cold]
    pub(super) fn take_early(&mut self, events: &mut Events) {
        let mut is_left = false;
        // the whole queue goes round, so that what is left stays in order
        for _ in 0..self.early.len() {
            let Some(cell) = self.early.pop() else { break };
            if !events.has_room() {
                is_left = true;
                self.early.push(cell);
            } else if let Cell::Early(bytes) = self.cells[cell as usize] {
                self.received(cell as usize, bytes as usize, events);
            }
        }
        self.early_due = is_left;
    }

    /// Posts the receive of a cell, now or when the library takes it.
    #[inline]
    pub(super) fn receive_again(&mut self, cell: usize) {
        if !self.receive_post(cell) {
            self.due.push(cell as u32);
        }
    }

    /// Whether the library has taken it, or it is not to be posted.
    fn receive_post(&mut self, cell: usize) -> bool {
        let part = cell / CELLS;
        let Some(port) = self.parts[part].port else {
            // held since before the endpoint was opened anew: it is posted with its part
            self.cells[cell] = Cell::Unused;
            return true;
        };
        let range = (self.area.cell(cell), self.area.message_bytes_max());
        let (descriptor, context) = (self.parts[part].descriptor, self.cell_context(cell));
        self.cells[cell] = Cell::Posted;
        let turn = self.domain.turn(Act::Post);
        // SAFETY: a cell that nobody uses, registered with its part, and its context.
        let posted = unsafe { port.receive(range, descriptor, context) };
        drop(turn);
        match posted {
            Ok(()) => true,
            // some libraries say so when their queue is full
            Err(Code::AGAIN | Code(libc::ENOMEM | libc::ENOBUFS)) => {
                self.cells[cell] = Cell::Due;
                false
            }
            Err(code) => {
                self.cells[cell] = Cell::Due;
                self.lose(code.0);
                false
            }
        }
    }

    /// Posts what was put off, or the library would not take before.
    #[cold]
    pub(super) fn receives_due(&mut self) {
        for _ in 0..self.due.len() {
            let Some(cell) = self.due.pop() else { return };
            if !self.receive_post(cell as usize) {
                return self.due.push(cell);
            }
        }
    }

    #[cold]
    pub(super) fn report_asides(&mut self, events: &mut Events) {
        while events.has_room() {
            let Some(aside) = self.asides.take_done() else { return };
            self.peers[aside.peer.as_usize()].ops.in_flight -= 1;
            events.push(aside.completion());
        }
    }

    /// The endpoint failed: every peer ends.
    #[cold]
    pub(super) fn lose(&mut self, code: i32) {
        self.health.lost_code = code;
        for index in 0..self.peers.len() {
            if self.peers[index].state == State::Live && self.peers[index].down == Down::No {
                self.end(index, DownCause::Broken(code));
            }
        }
    }
}
