//! Taking completions and reporting what they say.

use super::area::SENDS;
use super::endpoint::BATCH;
use super::message::{
    BRIEF_BYTES, Kind, PREFIX_BYTES, Prefix, head_renew, word_is_cut, word_parts,
};
use super::peer::{Peer, Sent, State, Use};
use super::rail::Libfabric;
use super::receives::{Cell, slot_of};
use super::report::{ErrorReport, TEXT_BYTES, errno};
use super::sys::abi::{CqEntry, CqErrEntry};
use super::sys::{Code, numbers as n};
use super::watch::LOOKS_MAX;
use crate::base::ids::PeerIndex;
use crate::fabric::{Completion, DownCause, HEAD_BYTES, Head, OpError, OpErrorKind};
use crate::provider::events::Events;
use crate::provider::touch;

impl Libfabric<'_> {
    /// Takes completions and reports, as long as there is room. Whether the queue was seen empty.
    ///
    /// A queue that gave less than there was room for is not asked once more before its completions
    /// are heard of: an empty one makes system calls to see what has come (`tcp`: a microsecond of
    /// each message). Who waits for a peer's end does ask, because that comes behind everything.
    pub(super) fn take(&mut self, events: &mut Events) -> bool {
        let (mut is_short, mut looks) = (false, 0);
        while events.has_room() {
            if self.batch_at < self.batch_count {
                let entry = self.batch[self.batch_at];
                self.batch_at += 1;
                self.look(&entry, events);
                continue;
            }
            if is_short && self.peers.endings == 0 || looks == LOOKS_MAX {
                return false;
            }
            looks += 1;
            (self.batch_at, self.batch_count) = (0, 0);
            match self.peers.endpoint.read(&mut self.batch) {
                None | Some(Ok(0) | Err(Code::AGAIN)) => return true,
                Some(Ok(count)) => {
                    (self.batch_count, is_short) = (count, count < BATCH);
                    self.watch.works();
                }
                Some(Err(Code(n::EAVAIL))) => {
                    if !self.take_error(events) {
                        return true;
                    }
                }
                Some(Err(code)) => {
                    self.peers.failed_beside(ErrorReport::new(code.0, 0));
                    return true;
                }
            }
        }
        false
    }

    #[inline]
    fn look(&mut self, entry: &CqEntry, events: &mut Events) {
        const WORD: u64 = n::REMOTE_CQ_DATA | n::REMOTE_WRITE;
        let endpoint = &self.peers.endpoint;
        let (ops, cells) = (endpoint.ops(), endpoint.cells());
        let index = endpoint.context_index(entry.op_context);
        if entry.flags & WORD == WORD {
            // whether it took a receive: its context says so, where the library wants it
            let takes_receives = endpoint.traits.words_take_receives;
            self.word_came(entry.data, events);
            if takes_receives
                && let Some(cell) = index.and_then(|at| at.checked_sub(ops))
                && cell < cells
                && self.has_ended(cell)
            {
                self.receives.again(&mut self.peers, cell);
            }
            return;
        }
        match index {
            None => self.peers.unknown(),
            Some(op) if op < ops => self.retire(op, Ok(()), events),
            Some(at) if at - ops == cells => self.flush_retire(Ok(())),
            Some(at) if self.has_ended(at - ops) => self.received(at - ops, entry.len, events),
            Some(_) => {}
        }
    }

    /// Whether a cell of which the library says that its receive has ended was posted.
    #[inline]
    fn has_ended(&mut self, cell: usize) -> bool {
        let was_posted = self.receives.has_ended(cell);
        if !was_posted {
            self.peers.unknown();
        }
        was_posted
    }

    /// The library has done with the read of a flush.
    #[cold]
    fn flush_retire(&mut self, result: Result<(), OpError>) {
        if !self.flushing.retire(&self.peers.endpoint.domain, result) {
            self.peers.unknown();
        }
    }

    /// A write with a word has landed.
    #[inline]
    fn word_came(&mut self, data: u64, events: &mut Events) {
        let (peer, token, immediate) = word_parts(data);
        let index = usize::from(peer);
        match self.peers.all.get(index) {
            Some(record) if record.token as u16 == token && record.hears() => {
                events.push(Completion::Immediate { peer: PeerIndex(index as u32), immediate });
            }
            Some(_) | None if word_is_cut(data) => self.words_cut(),
            Some(_) | None => self.peers.health.strange += 1,
        }
    }

    /// A word came whose upper half the provider has cut off: nobody knows who waits for what it
    /// says, so every peer ends. Who joins again is told to send words as messages, and we do.
    #[cold]
    fn words_cut(&mut self) {
        let peers = &mut self.peers;
        peers.health.strange += 1;
        peers.health.cuts_words = true;
        peers.endpoint.traits.carries_words = false;
        let code = libc::EPROTO;
        let report = ErrorReport { cuts_words: true, ..ErrorReport::new(code, 0) };
        for index in 0..peers.all.len() {
            if peers.all[index].takes_ops() && !peers.all[index].sends_no_words {
                peers.all[index].report.get_or_insert(report);
                peers.end(index, DownCause::Broken(code));
            }
        }
    }

    /// `false`: there is none, whatever was said, or none can be had. Asked again at once, a
    /// library may say for ever that one waits.
    #[cold]
    fn take_error(&mut self, events: &mut Events) -> bool {
        let mut text = [0; TEXT_BYTES];
        match self.peers.endpoint.read_error(&mut text) {
            Some(Ok(entry)) => self.look_at_error(&entry, text, events),
            Some(Err(code)) => {
                if code != Code::AGAIN {
                    self.peers.lose(code.0);
                }
                return false;
            }
            None => return false,
        }
        !self.watch.is_failed()
    }

    fn look_at_error(&mut self, entry: &CqErrEntry, text: [u8; TEXT_BYTES], events: &mut Events) {
        let (code, provider_code) = (entry.err, entry.prov_errno);
        let report = ErrorReport { text, ..ErrorReport::new(code, provider_code) };
        let error = OpError { kind: OpErrorKind::Fabric, code: errno(code) };
        let peers = &mut self.peers;
        let ops = peers.endpoint.ops();
        match peers.endpoint.context_index(entry.op_context) {
            None => {
                peers.health.strange += 1;
                let is_of_none = entry.op_context.is_null();
                peers.health.unknown += u32::from(!is_of_none);
                if is_of_none && code != 0 {
                    self.watch.failed_of_none(report, peers);
                }
            }
            Some(op) if op < ops => {
                let index = op / SENDS;
                if peers.sent[op].used == Use::Drain {
                    peers.drain_failed(index, code, provider_code);
                }
                let record = &mut peers.all[index];
                if record.under_way() & 1 << (op % SENDS) == 0 {
                    // the number's last peer's
                    let error = record.cut_off();
                    return self.retire(op, Err(error), events);
                }
                record.report.get_or_insert(report);
                self.retire(op, Err(error), events);
                self.peers.end(index, DownCause::Broken(code));
            }
            Some(at) if at - ops == peers.endpoint.cells() => self.flush_retire(Err(error)),
            Some(at) => {
                peers.health.strange += 1;
                if self.has_ended(at - ops) {
                    self.receives.again(&mut self.peers, at - ops);
                }
            }
        }
    }

    /// The library has done with an op.
    fn retire(&mut self, op: usize, result: Result<(), OpError>, events: &mut Events) {
        let peers = &mut self.peers;
        if peers.sent[op].used == Use::Free {
            return peers.unknown();
        }
        let (index, place) = (op / SENDS, op % SENDS);
        let Sent { id, used, touches, is_read, pin, key_place, word } = peers.sent[op];
        if let Some(region) = pin.checked_sub(1) {
            peers.endpoint.domain.release(region);
        }
        if let Some(place) = key_place.checked_sub(1) {
            peers.use_end(index, place);
        }
        let ops = &mut peers.all[index].ops;
        // a message has ended when the library has it
        ops.ended = ops.ended.wrapping_add(u32::from(touches || is_read));
        ops.touching -= u32::from(touches);
        ops.reads -= u32::from(is_read);
        if used == Use::Loud {
            ops.in_flight -= 1;
            events.push(Completion::Done { peer: PeerIndex(index as u32), id, result });
        }
        peers.op_free(index, place);
        if peers.all[index].ops.left_ops != 0 {
            peers.left_retired(index, 1 << place);
        }
        if let (Some(word), Ok(())) = (word, result) {
            peers.word_follows(index, word);
        }
        peers.say_drained(index);
    }

    /// Takes a message. `cell` holds it.
    #[inline]
    fn received(&mut self, cell: usize, bytes: usize, events: &mut Events) {
        let peers = &mut self.peers;
        let (traits, payload_bytes_max) =
            (&peers.endpoint.traits, peers.endpoint.limits.payload_bytes_max as usize);
        let mut prefix = [0; PREFIX_BYTES];
        let at = peers.endpoint.area.cell(cell);
        // SAFETY: a cell that the library has filled, and does not touch until it is posted again.
        unsafe { touch::copy_in(at, &mut prefix) };
        let is_whole = |prefix: &Prefix| {
            let is_read = prefix.kind != Kind::Brief || traits.messages_ordered;
            is_read && bytes >= prefix.ahead()
        };
        let prefix = Prefix::decode(&prefix).filter(is_whole);
        let Some(prefix) = prefix else { return self.strange(cell) };
        let index = usize::from(prefix.peer);
        let Some(record) = peers.all.get_mut(index) else { return self.strange(cell) };
        if record.token != prefix.token || record.token == 0 {
            return self.strange(cell);
        }
        if record.state == State::Prepared {
            // it came before its peer was joined, and is taken when that is
            return self.receives.put_early(cell, bytes);
        }
        let is_due = prefix.number == record.seen_count || !traits.messages_ordered;
        if !is_due && record.hears() {
            // something before it was lost; words about the end still count
            peers.end(index, DownCause::Broken(libc::EPROTO));
        }
        let is_message = matches!(prefix.kind, Kind::Send | Kind::Brief);
        if is_message && bytes - prefix.ahead() > payload_bytes_max {
            // more than it was told to send, although its cell held it
            peers.end(index, DownCause::Broken(libc::EPROTO));
            return self.receives.again(peers, cell);
        }
        let record = &mut peers.all[index];
        let hears = record.hears() && is_due;
        let peer = PeerIndex(index as u32);
        match prefix.kind {
            Kind::Send | Kind::Brief if hears => {
                record.seen_count = record.seen_count.wrapping_add(1);
                let (ahead, head) = (prefix.ahead(), head_read(record, &prefix, at));
                self.receives.cells[cell] = Cell::Held { peer: index as u32, ahead: ahead as u8 };
                let length = (bytes - ahead) as u32;
                let slot = slot_of(cell, length);
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
                peers.control_received(index, &prefix, &words[..length]);
            }
        }
        self.receives.again(peers, cell);
    }

    #[cold]
    fn strange(&mut self, cell: usize) {
        self.peers.health.strange += 1;
        self.receives.again(&mut self.peers, cell);
    }

    /// Takes what came before its peer was joined.
    #[cold]
    pub(super) fn take_early(&mut self, events: &mut Events) {
        let mut is_left = false;
        // the whole queue goes round, so that what is left stays in order
        for _ in 0..self.receives.early.len() {
            let Some(cell) = self.receives.early.pop() else { break };
            if !events.has_room() {
                is_left = true;
                self.receives.early.push(cell);
            } else if let Cell::Early(bytes) = self.receives.cells[cell as usize] {
                self.received(cell as usize, bytes as usize, events);
            }
        }
        self.receives.early_due = is_left;
    }
}

/// The head of a send, whose message is at `at` and as long as its prefix says.
#[inline]
fn head_read(record: &mut Peer, prefix: &Prefix, at: u64) -> Head {
    let mut head = [0; HEAD_BYTES];
    if prefix.kind == Kind::Brief {
        let words = &mut head[..prefix.ahead() - BRIEF_BYTES];
        // SAFETY: a cell that the library has filled, with a message that is so long.
        unsafe { touch::copy_in(at + BRIEF_BYTES as u64, words) };
        head_renew(&mut record.head_seen, prefix.place, &head);
        return record.head_seen;
    }
    // SAFETY: as above.
    unsafe { touch::copy_in(at + PREFIX_BYTES as u64, &mut head) };
    head
}
