//! Writes and adds: how they go into the ring, and how their target executes them.
//!
//! A write from memory goes out in parts. Each part says how much is still to come, so the target
//! checks the whole range before it stores the first byte. The write ends when the target has
//! counted it as executed or refused.
//!
//! A write of a line is copied and done at post. Its key was looked up on the peer's board. If the
//! region is deregistered on the way, the connection is taken down: the writer has no op left that
//! could fail.

use super::copiers::{Copiers, Job, PART_BYTES_MIN, Taken};
use super::ops::{Kind as OpKind, Outcome};
use super::peer::{Peer, Work};
use super::record::{FLAG_ACK, FLAG_IMMEDIATE, Header, Kind, LINE, PREFIX_AT, body_at, lines_for};
use super::ring::{Corrupt, Record};
use super::word::{RELEASE, u64_at};
use crate::base::slab::Handle;
use crate::fabric::{Completion, Head, LINE_BYTES, Line, LocalSpan, PostError, RemoteSpan};
use crate::provider::notes::{self, NOTE_KEY, Note};

/// The four words before a body.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Prefix {
    pub(super) key: u64,
    pub(super) address: u64,
    /// Bytes to the end of the op; an add's value; a request's length.
    pub(super) amount: u64,
    /// Immediate or serial.
    pub(super) word: u32,
    pub(super) zero: u32,
}

const _: () = assert!(PREFIX_AT + size_of::<Prefix>() == super::record::INLINE_AT);

/// Writes prefix and body of a record.
///
/// # Safety
/// - `at` is what `reserve(lines_for(length))` returned just now;
/// - `from` is valid for reads of `length` bytes.
#[inline]
pub(super) unsafe fn fill(at: *mut u8, prefix: Prefix, from: *const u8, length: usize) {
    // SAFETY: the first line is reserved, and aligned for the four words.
    unsafe { at.add(PREFIX_AT).cast::<Prefix>().write(prefix) };
    // SAFETY: the reserved lines hold `length` bytes from `body_at` on; the ring is not memory
    // that a user names.
    unsafe { from.copy_to_nonoverlapping(at.add(body_at(length)), length) };
}

/// Reads a record's prefix, once: the writer may be changing it.
pub(super) fn prefix_of(record: &Record) -> Prefix {
    // SAFETY: the record's first line lies in the ring (`peek`), aligned.
    unsafe { record.at.add(PREFIX_AT).cast::<Prefix>().read_volatile() }
}

impl Peer {
    /// Puts a message into the send ring.
    #[inline]
    pub(super) fn send(&mut self, head: &Head, payload: LocalSpan) -> Result<(), PostError> {
        let length = payload.length().as_usize();
        let lines = lines_for(length);
        let at = self.send_out.reserve(lines).ok_or(PostError::Again)?;
        let from = payload.address() as *const u8;
        // SAFETY: `reserve` gave room for head and payload; the payload's maker vouches for it.
        unsafe {
            at.add(PREFIX_AT).cast::<Head>().write(*head);
            if lines == 1 {
                super::word::copy_tiny(from, at.add(super::record::INLINE_AT), length);
            } else {
                from.copy_to_nonoverlapping(at.add(body_at(length)), length);
            }
        }
        self.send_out.publish(lines, Header::new(Kind::Send, 0, length as u32));
        self.ring_bell();
        Ok(())
    }

    /// Puts a line into the write ring; its key was looked up.
    #[inline]
    pub(super) fn write_line(
        &mut self,
        line: &Line,
        target: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        let lines = lines_for(LINE_BYTES);
        let at = self.write_out.reserve(lines).ok_or(PostError::Again)?;
        let (key, address, word) = (target.key.0, target.address, immediate.unwrap_or(0));
        let prefix = Prefix { key, address, amount: LINE_BYTES as u64, word, zero: 0 };
        // SAFETY: just reserved for a body of this length.
        unsafe { fill(at, prefix, line.as_ptr(), LINE_BYTES) };
        let flags = if immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
        self.write_out.publish(lines, Header::new(Kind::Write, flags, LINE_BYTES as u32));
        self.ring_bell();
        Ok(())
    }

    /// Puts as much of the queued writes and adds into the ring as room, budget and outstanding
    /// acknowledgements allow.
    pub(super) fn push_writes(&mut self, work: &mut Work) -> bool {
        let mut pushed = false;
        while let Some(index) = self.writes.first() {
            if work.budget == 0 || !self.may_await_ack() || !self.push_part(work, index) {
                break;
            }
            pushed = true;
        }
        if pushed {
            self.ring_bell();
        }
        pushed
    }

    /// One record of the oldest queued op.
    fn push_part(&mut self, work: &mut Work, index: u32) -> bool {
        let entry = work.ops.get(index);
        let add = entry.kind == OpKind::Add;
        let left = entry.local.length().0 - entry.progress;
        let aside = if add { None } else { self.aside_for(work.copiers.as_deref(), left) };
        let most = aside.map_or(self.chunk_bytes, |(_, most)| most);
        let copier = aside.map(|(copier, _)| copier);
        let part = if add { 0 } else { left.min(u64::from(most)) };
        let lines = lines_for(part as usize);
        let Some(at) = self.write_out.reserve(lines) else { return false };
        let prefix = Prefix {
            key: entry.key,
            address: entry.address.wrapping_add(entry.progress),
            amount: if add { entry.value } else { left },
            word: entry.immediate,
            zero: 0,
        };
        let from = entry.local.address() + entry.progress;
        entry.progress += part;
        let last = part == left;
        let immediate = if entry.has_immediate && last { FLAG_IMMEDIATE } else { 0 };
        let flags = immediate | if last { FLAG_ACK } else { 0 };
        let kind = if add { Kind::Add } else { Kind::Write };
        let header = Header::new(kind, flags, part as u32);
        match (copier, work.copiers.as_deref_mut()) {
            (Some(copier), Some(copiers)) => {
                // SAFETY: the first line is reserved, and aligned for the four words.
                unsafe { at.add(PREFIX_AT).cast::<Prefix>().write(prefix) };
                let body = at.wrapping_add(body_at(part as usize)) as u64;
                let place = self.write_out.leave(lines) as u64;
                let (word, length, bell) = (header.0, part as u32, self.bell());
                let job = Job::In { from, body, length, header: place, word, bell };
                copiers.give(copier, self.index, Some(self.acks_posted), job);
                work.charge(0);
            }
            _ => {
                // SAFETY: just reserved for a body of `part` bytes, which lie in the op's source;
                // that stays readable until the op ends (`LocalSpan::new`).
                unsafe { fill(at, prefix, from as *const u8, part as usize) };
                self.write_out.publish(lines, header);
                work.charge(part);
            }
        }
        if last {
            work.ops.take_first(&mut self.writes);
            work.ops.append(&mut self.acks, index);
            self.acks_posted = self.acks_posted.wrapping_add(1);
        }
        true
    }

    /// Who copies the next part of a write of which so much is left, and how much of it at most;
    /// `None`: we do.
    fn aside_for(&self, copiers: Option<&Copiers>, left: u64) -> Option<(usize, u32)> {
        let copiers = copiers?;
        let room = (self.write_out.lines_max() - 1) * LINE as u32;
        let most = copiers.part_bytes(left).min(room);
        let is_long = left.min(u64::from(most)) >= u64::from(PART_BYTES_MIN);
        is_long.then(|| copiers.choose())?.map(|copier| (copier, most))
    }

    /// Carries out what came through the write ring.
    pub(super) fn take_writes(&mut self, work: &mut Work) -> Result<(), Corrupt> {
        let mut told = false;
        while work.budget != 0 && work.has_room_for_taken(self.index) && work.notes.has_room() {
            let Some(record) = self.write_in.peek()? else { break };
            if record.flags & FLAG_IMMEDIATE != 0 && !work.out.has_room() {
                break;
            }
            let mut taken = Taken::behind(&record);
            match record.kind {
                Kind::Write => self.take_write(work, &record, &mut taken)?,
                Kind::Add => self.take_add(work, &record, &mut taken),
                Kind::Read => self.take_request(work, &record)?,
                Kind::Data => self.take_data(work, &record)?,
                Kind::Refuse => self.take_refusal(work, &record)?,
                Kind::Pad => self.write_in.turned(&record),
                Kind::Send => return Err(Corrupt),
            }
            work.charge(if taken.region == 0 { u64::from(record.length) } else { 0 });
            self.write_in.pass(&record);
            told |= self.end_or_wait(work, taken);
        }
        self.tell_acks(told);
        Ok(())
    }

    /// Ends a record that was passed, or has it wait for its copy and for those before it. Says
    /// whether the peer was told.
    fn end_or_wait(&mut self, work: &mut Work, taken: Taken) -> bool {
        match work.copiers.as_deref_mut() {
            Some(copiers) if taken.region != 0 || !copiers.none_taken(self.index) => {
                copiers.take(self.index, taken);
                false
            }
            _ => self.end_taken(work, taken),
        }
    }

    /// What follows when a record has been carried out.
    fn end_taken(&mut self, work: &mut Work, taken: Taken) -> bool {
        if taken.is_acked {
            self.acknowledge(taken.is_refused);
        }
        if taken.has_immediate && !taken.is_refused {
            let (peer, immediate) = (self.index, taken.immediate);
            work.out.push(Completion::Immediate { peer, immediate });
        }
        self.write_in.retire(taken.end)
    }

    /// Ends what threads have copied. There is something.
    pub(super) fn end_copied(&mut self, work: &mut Work) {
        let mut told = false;
        while let Some(taken) = work.copiers.as_deref().and_then(|all| all.front(self.index)) {
            if taken.has_immediate && !work.out.has_room() {
                break;
            }
            self.drop_taken(work, taken);
            told |= self.end_taken(work, taken);
        }
        self.tell_acks(told);
    }

    fn drop_taken(&self, work: &mut Work, taken: Taken) {
        if let Some(region) = taken.region.checked_sub(1) {
            work.regions.pin(region, -1);
        }
        if let Some(copiers) = work.copiers.as_deref_mut() {
            copiers.drop_front(self.index);
        }
    }

    /// Waits until threads are done with the peer, and forgets what they have copied: it ends.
    pub(super) fn settle(&mut self, work: &mut Work) {
        let Some(copiers) = work.copiers.as_deref() else { return };
        copiers.settle(self.index);
        while let Some(taken) = work.copiers.as_deref().and_then(|all| all.front(self.index)) {
            self.drop_taken(work, taken);
        }
    }

    fn take_write(
        &mut self,
        work: &mut Work,
        record: &Record,
        taken: &mut Taken,
    ) -> Result<(), Corrupt> {
        let prefix = prefix_of(record);
        let length = u64::from(record.length);
        let (last, acked) = (length == prefix.amount, record.flags & FLAG_ACK != 0);
        if length > prefix.amount || (acked && !last) {
            return Err(Corrupt);
        }
        let key = Handle::unpack(prefix.key);
        let held = work.regions.hold(key, prefix.address, prefix.amount);
        if held.is_none() && last && !acked {
            return self.take_note(work, record, &prefix);
        }
        self.part_refused |= held.is_none();
        if last {
            let is_refused = core::mem::take(&mut self.part_refused);
            let has_immediate = record.flags & FLAG_IMMEDIATE != 0;
            (taken.is_acked, taken.is_refused) = (acked, is_refused);
            (taken.immediate, taken.has_immediate) = (prefix.word, has_immediate);
        }
        let Some(region) = held else { return Ok(()) };
        if self.part_refused || taken.is_refused {
            region.pin(-1);
            return Ok(());
        }
        // SAFETY: the record lies in the ring (`peek`).
        let body = unsafe { record.at.add(body_at(record.length as usize)) };
        if record.length >= PART_BYTES_MIN
            && let Some(copiers) = work.copiers.as_deref_mut()
            && let Some(copier) = copiers.choose()
        {
            // it stays pinned until the copy has ended
            taken.region = key.index + 1;
            copiers.begin(self.index);
            let (body, to, number) = (body as u64, prefix.address, copiers.next_taken(self.index));
            let job = Job::Out { body, to, length: record.length, taken: number };
            copiers.give(copier, self.index, None, job);
            return Ok(());
        }
        // SAFETY: the target lies in a registered region, which is pinned (`hold`).
        unsafe { body.copy_to(prefix.address as *mut u8, record.length as usize) };
        region.pin(-1);
        Ok(())
    }

    /// A line to no region is a note, or breaks the format.
    #[cold]
    fn take_note(
        &mut self,
        work: &mut Work,
        record: &Record,
        prefix: &Prefix,
    ) -> Result<(), Corrupt> {
        if prefix.key != NOTE_KEY.0 || record.length as usize != LINE_BYTES {
            return Err(Corrupt);
        }
        // SAFETY: the record lies in the ring (`peek`), its body on a line of its own; the writer
        // may be changing it, so it is read once.
        let line = unsafe { record.at.add(body_at(LINE_BYTES)).cast::<Line>().read_volatile() };
        if work.notes.put(self.index, &line) { Ok(()) } else { Err(Corrupt) }
    }

    /// Puts a note into the write ring.
    pub(super) fn note_send(&mut self, note: &Note) -> bool {
        let target = RemoteSpan { key: NOTE_KEY, address: 0 };
        self.write_line(&notes::line_of(note), target, None).is_ok()
    }

    fn take_add(&mut self, work: &mut Work, record: &Record, taken: &mut Taken) {
        let prefix = prefix_of(record);
        let held = match prefix.address.is_multiple_of(8) {
            true => work.regions.hold(Handle::unpack(prefix.key), prefix.address, 8),
            false => None,
        };
        if let Some(region) = held {
            // SAFETY: an aligned word of a registered region, which is pinned (`hold`).
            let word = unsafe { u64_at(prefix.address as *mut u8) };
            // All adds through this rail are made by this thread, so a load and a store will do.
            // release: [add], for a user thread that waits for the sum with acquire
            word.store(word.load(super::word::RELAXED).wrapping_add(prefix.amount), RELEASE);
            region.pin(-1);
        }
        (taken.is_acked, taken.is_refused) = (true, held.is_none());
    }

    /// Ends with [`Outcome::Key`] what the board says cannot succeed.
    pub(super) fn board_refuses(&self, target: RemoteSpan, length: u64) -> bool {
        let handle = Handle::unpack(target.key.0);
        self.board.is_some() && !self.board.allows(handle, target.address, length)
    }

    fn take_refusal(&mut self, work: &mut Work, record: &Record) -> Result<(), Corrupt> {
        let index = self.asked_front(work, record)?;
        work.ops.take_first(&mut self.reads);
        work.finish(index, Outcome::Key, 0);
        Ok(())
    }
}
