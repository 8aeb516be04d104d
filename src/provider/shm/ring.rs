//! A ring of records from one process to another.
//!
//! The header word of a record is stored last, with release. It is zero where no record stands yet.
//! So the reader polls the line in which the record arrives, and a small message moves one cache
//! line. The writer keeps the header words of the next two lines zero. It clears one line after a
//! record before it publishes the record, and one more afterwards, off the critical path. Positions
//! count lines, run freely and wrap at 2^32.
//!
//! The reader publishes its position only now and then ([`RingReader::retire`]). The writer reads
//! it only when its copy says that the ring is full. There is no read-modify-write.
//!
//! A ring grows into use. Before the writer uses new lines, it tries to turn back to the start,
//! with a padding that neither side touches. It turns back if the reader is done with all records.
//! Otherwise it uses twice as many lines from then on. So a record that is held for long does not
//! keep it from the rest of the ring. Where the reader holds none, a few unread ones do not keep
//! the writer from turning ([`RingWriter::reserve_unheld`]). A connection whose reader keeps up
//! stays in a page or two of each ring.
//!
//! The ring lies in its writer's memory, the position in its reader's. Each side has a
//! [`SharedView`] of the other's part. A reader trusts nothing: a record must lie inside the ring,
//! or it is [`Corrupt`].

use super::record::{Header, Kind, LINE, lines_for};
use super::view::{SharedView, SharedWord};
use super::word::{RELAXED, RELEASE, u32_at, u64_at};
use crate::memory::shared::allocated;

/// Lines past a record whose header words the writer clears.
const SPARE: u32 = 2;
/// The fewest lines that a ring works with: four of the largest records and the spare ones.
pub const LINES_MIN: u32 = 16;
/// Lines of a ring that are there before it grows: with what stands before a connection's first
/// ring they fill a page of 4 KiB, and every other ring starts as far from the start of its page.
const LINES_FIRST: u32 = 56;
/// Lines of a page.
const LINES_PAGE: u32 = 64;
/// Lines of unread records behind which a ring turns whose reader holds none: the slots of early
/// messages, whose sender looks seldom. Of long messages more is unread, and the ring grows.
const UNREAD: u32 = LINES_PAGE;

/// Lines of a ring of `lines` that must be there before either end is used.
pub const fn lines_first(lines: u32) -> u32 {
    if lines <= LINES_PAGE { lines } else { LINES_FIRST }
}

/// The other side wrote what no writer of this protocol writes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Corrupt;

/// The writing end. Zeroed: of no ring, and not to be used.
#[derive(Debug)]
pub struct RingWriter {
    start: *mut u8,
    /// The reader's position. None: nothing can be written any more.
    consumed: SharedWord,
    mask: u32,
    /// Lines from the start on that records stand in for now; at least [`SPARE`] more are there.
    limit: u32,
    tail: u32,
    head: u32,
}

impl RingWriter {
    /// The writing end of a zeroed ring of `lines`, a power of two; its reader's position stands at
    /// `consumed`.
    ///
    /// # Safety
    /// - `start` is aligned to a line and valid for reads and writes of `lines` lines for as long
    ///   as the end is used;
    /// - it is the ring's only writer.
    pub unsafe fn new(start: *mut u8, lines: u32, consumed: SharedWord) -> RingWriter {
        assert!(lines.is_power_of_two() && lines >= LINES_MIN);
        let limit = limit_of(lines_first(lines), lines);
        RingWriter { start, consumed, mask: lines - 1, limit, tail: 0, head: 0 }
    }

    /// The most lines of one record: with padding, two of them always fit an empty ring.
    pub const fn record_lines_max(lines: u32) -> u32 {
        lines / 4
    }

    /// The most lines of one record in this ring.
    pub fn lines_max(&self) -> u32 {
        RingWriter::record_lines_max(self.mask + 1)
    }

    /// Where a record of `lines` may be written, or `None` when there is no room now. Nothing is
    /// visible to the reader before [`RingWriter::publish`].
    #[inline(always)]
    pub fn reserve(&mut self, lines: u32) -> Option<*mut u8> {
        self.reserve_behind(lines, 0)
    }

    /// As [`RingWriter::reserve`], in a ring whose reader passes all records as it reads them.
    #[inline(always)]
    pub fn reserve_unheld(&mut self, lines: u32) -> Option<*mut u8> {
        self.reserve_behind(lines, UNREAD)
    }

    #[inline(always)]
    fn reserve_behind(&mut self, lines: u32, unread: u32) -> Option<*mut u8> {
        debug_assert!(lines <= self.lines_max());
        if lines > self.limit - (self.tail & self.mask) && !self.turn(lines, unread) {
            return None;
        }
        let needed = lines + SPARE;
        if needed > self.free() && !self.refresh(needed) {
            return None;
        }
        Some(self.line(self.tail))
    }

    /// Makes a way for a record that goes beyond the limit: at the start of the ring, if the reader
    /// is done with all but `unread` lines and with half of those used, else beyond. Of a ring that
    /// is used whole, the start must be free. Says whether there is one.
    #[cold]
    fn turn(&mut self, lines: u32, unread: u32) -> bool {
        let place = self.tail & self.mask;
        let to_end = self.mask + 1 - place;
        loop {
            let least = if self.limit <= self.mask {
                self.mask + 1 - unread.min(self.limit / 2)
            } else {
                0
            };
            let needed = least.max(to_end + lines + SPARE);
            if lines <= self.limit && (needed <= self.free() || self.refresh(needed)) {
                self.pad(to_end);
                return true;
            }
            if !self.grow(lines) {
                return false;
            }
            if lines <= self.limit - place {
                return true;
            }
        }
    }

    /// Doubles the limit, if there is more of the ring and memory for it.
    fn grow(&mut self, lines: u32) -> bool {
        let whole = self.mask + 1;
        if self.limit == whole {
            return false;
        }
        let there = self.limit + SPARE;
        let next = 2 * there + LINES_PAGE - LINES_FIRST;
        let next = if next > whole / 2 { whole } else { next };
        let more = (next - there) as usize * LINE;
        // SAFETY: `there` is less than the lines of the ring (`new`).
        let start = unsafe { self.start.add(there as usize * LINE) };
        if !allocated(start, more) {
            // a record that has room waits for it; one that has not will never have it
            if lines > self.limit {
                self.consumed = SharedWord::NONE;
            }
            return false;
        }
        self.limit = limit_of(next, whole);
        true
    }

    /// Makes the record visible that was written at the last [`RingWriter::reserve`].
    #[inline(always)]
    pub fn publish(&mut self, lines: u32, header: Header) {
        let next = self.tail.wrapping_add(lines);
        if lines > 1 {
            self.header(next).store(0, RELAXED);
        }
        // release: [record], the record's bytes, and the zero after it, come before
        self.header(self.tail).store(header.0, RELEASE);
        self.tail = next;
        self.header(next.wrapping_add(1)).store(0, RELAXED);
    }

    /// As [`RingWriter::publish`], but for the header word: another thread stores it with release,
    /// once it has written the record. What follows may be published before; the reader waits.
    /// Returns the word's place.
    pub fn leave(&mut self, lines: u32) -> *mut u8 {
        debug_assert!(lines > 1);
        let (at, next) = (self.line(self.tail), self.tail.wrapping_add(lines));
        self.header(next).store(0, RELAXED);
        self.tail = next;
        self.header(next.wrapping_add(1)).store(0, RELAXED);
        at
    }

    /// Whether the reader published a position that cannot be, or there is no memory for a record.
    pub fn is_broken(&self) -> bool {
        self.consumed.is_none()
    }

    #[inline(always)]
    fn free(&self) -> u32 {
        self.mask + 1 - self.tail.wrapping_sub(self.head)
    }

    #[cold]
    fn refresh(&mut self, needed: u32) -> bool {
        if self.is_broken() {
            return false;
        }
        // acquire: pairs with [consumed], the reader is done with the lines before it
        let head = self.consumed.acquire();
        if head.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
            self.consumed = SharedWord::NONE;
            return false;
        }
        self.head = head;
        needed <= self.free()
    }

    #[cold]
    fn pad(&mut self, lines: u32) {
        self.publish(lines, Header::new(Kind::Pad, 0, lines));
    }

    #[inline(always)]
    fn line(&self, position: u32) -> *mut u8 {
        // SAFETY: the masked position is a line of the ring (`new`).
        unsafe { self.start.add((position & self.mask) as usize * LINE) }
    }

    #[inline(always)]
    fn header(&self, position: u32) -> &core::sync::atomic::AtomicU64 {
        // SAFETY: a line's first word: aligned, valid as long as this end is used (`new`).
        unsafe { u64_at(self.line(position)) }
    }
}

/// How far records go where so many of a ring's lines are there: the whole ring wraps, and any
/// other part has spare lines behind it.
const fn limit_of(there: u32, whole: u32) -> u32 {
    if there == whole { whole } else { there - SPARE }
}

/// A record that was found in a ring.
#[derive(Copy, Clone, Debug)]
pub struct Record {
    /// What it is; its length was checked against the ring.
    pub kind: Kind,
    /// Its flags.
    pub flags: u8,
    /// Length of the body in bytes.
    pub length: u32,
    /// Its first line.
    pub at: *const u8,
    /// Position of its first line.
    pub position: u32,
    /// How many lines it takes.
    pub lines: u32,
}

/// The reading end. Zeroed: of no ring, and not to be used.
#[derive(Debug)]
pub struct RingReader {
    /// Where the lines start, of a view that [`RingReader::ring`] makes whole again.
    start: *const u8,
    consumed: *mut u8,
    mask: u32,
    read: u32,
    published: u32,
    /// A quarter of the lines that the writer turned behind last: it must hear of them in time.
    quarter: u32,
}

impl RingReader {
    /// The reading end of a zeroed ring, of which the lines are a power of two.
    ///
    /// # Safety
    /// - `consumed` is an aligned half word, valid for as long as the end is used;
    /// - it is the ring's only reader.
    pub unsafe fn new(ring: SharedView, consumed: *mut u8) -> RingReader {
        let lines = (ring.length() / LINE) as u32;
        assert!(lines.is_power_of_two() && lines >= LINES_MIN);
        let quarter = lines_first(lines) / 4;
        let start = ring.at(0, ring.length());
        RingReader { start, consumed, mask: lines - 1, read: 0, published: 0, quarter }
    }

    /// Whether nothing has come. *Cost*: one load of a line that changes only when something does.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ring().load_u64(self.place(self.read)) == 0
    }

    /// The oldest record that was not passed yet.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<Record>, Corrupt> {
        // acquire: pairs with [record]
        let header = Header(self.ring().acquire_u64(self.place(self.read)));
        if header == Header::EMPTY {
            return Ok(None);
        }
        let kind = header.kind().ok_or(Corrupt)?;
        let to_end = self.mask + 1 - (self.read & self.mask);
        let length = header.length();
        let lines = match kind {
            Kind::Pad => length,
            _ if length as usize > self.mask as usize * LINE => return Err(Corrupt),
            _ => lines_for(length as usize),
        };
        if lines == 0 || lines > to_end || (kind == Kind::Pad && lines != to_end) {
            return Err(Corrupt);
        }
        let at = self.lines_at(self.read, lines);
        Ok(Some(Record { kind, flags: header.flags(), length, at, position: self.read, lines }))
    }

    /// Steps past a record; its lines stay the reader's until [`RingReader::retire`].
    #[inline(always)]
    pub fn pass(&mut self, record: &Record) {
        debug_assert_eq!(record.position, self.read);
        self.read = self.read.wrapping_add(record.lines);
    }

    /// Takes note of a padding: the lines before it are those that the writer uses.
    pub fn turned(&mut self, padding: &Record) {
        self.quarter = ((padding.position & self.mask) / 4).max(LINES_MIN / 4);
    }

    /// Position of the next record.
    #[inline(always)]
    pub fn position(&self) -> u32 {
        self.read
    }

    /// Lines of the ring.
    pub fn lines(&self) -> u32 {
        self.mask + 1
    }

    /// Gives all lines before `position` back to the writer; tells it when a quarter of the
    /// lines that it uses has gathered. Says whether it told.
    #[inline(always)]
    pub fn retire(&mut self, position: u32) -> bool {
        self.is_due(position, self.quarter) && self.tell(position)
    }

    /// Whether the writer should hear of `position`: when more than `least` lines have gathered. In
    /// the last quarter of a ring that is not used whole it hears of each record, so that it sees
    /// whether it may turn.
    #[inline(always)]
    fn is_due(&self, position: u32, least: u32) -> bool {
        let gathered = position.wrapping_sub(self.published);
        let is_near_end = self.quarter < self.mask / 4
            && position & self.mask >= 3 * self.quarter
            && position == self.read;
        gathered > least || (is_near_end && gathered > 0)
    }

    /// As [`RingReader::retire`], when there is time: tells when an eighth has gathered.
    #[inline(always)]
    pub fn retire_idle(&mut self, position: u32) -> bool {
        self.is_due(position, self.quarter / 2) && self.tell(position)
    }

    /// As [`RingReader::retire`], before sleep: tells when there is anything to tell.
    pub fn retire_all(&mut self, position: u32) -> bool {
        position != self.published && self.tell(position)
    }

    /// Where the record of `lines` at `position` stands. *Panics* when it leaves the ring.
    #[inline(always)]
    pub fn lines_at(&self, position: u32, lines: u32) -> *const u8 {
        self.ring().at(self.place(position), lines as usize * LINE)
    }

    #[inline(always)]
    fn ring(&self) -> SharedView {
        // SAFETY: the bytes of the view that `new` was given.
        unsafe { SharedView::new(self.start, (self.mask as usize + 1) * LINE) }
    }

    /// Offset of the line at `position`.
    #[inline(always)]
    fn place(&self, position: u32) -> usize {
        (position & self.mask) as usize * LINE
    }

    fn tell(&mut self, position: u32) -> bool {
        self.published = position;
        // the writer goes further than it did
        self.quarter = self.quarter.max((position & self.mask) / 4);
        // SAFETY: an aligned word, valid as long as this end is used (`new`).
        // release: [consumed], we have read everything before `position`
        unsafe { u32_at(self.consumed) }.store(position, RELEASE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{FLAG_ACK, body_at};
    use super::*;
    use crate::base::carve::heap::HeapBlock;
    use std::collections::VecDeque;
    use std::vec::Vec;

    const LINES: u32 = 64;

    struct Memory(HeapBlock, u32);

    impl Memory {
        fn new() -> Memory {
            Memory::of(LINES)
        }

        fn of(lines: u32) -> Memory {
            Memory(HeapBlock::new((lines as usize + 1) * LINE), lines)
        }

        fn ends(&mut self) -> (RingWriter, RingReader) {
            let (start, lines) = (self.0.start(), self.1);
            // SAFETY: the block holds `lines` lines and one more for the word, and lives longer
            // than the ends in every test.
            unsafe {
                let consumed = start.add(lines as usize * LINE);
                let writer = RingWriter::new(start, lines, SharedView::new(consumed, 4).word(0));
                let ring = SharedView::new(start, lines as usize * LINE);
                (writer, RingReader::new(ring, consumed))
            }
        }

        /// Lines up to the last that anything was written to.
        fn touched(&mut self) -> usize {
            let start: *const u64 = self.0.start().cast();
            // SAFETY: words of the block, in the ring.
            let is_zero = |word: &usize| unsafe { start.add(*word).read() } == 0;
            let words = self.1 as usize * LINE / 8;
            (0..words).rev().find(|word| !is_zero(word)).map_or(0, |word| word / 8 + 1)
        }
    }

    fn push(writer: &mut RingWriter, number: u32, length: usize) -> bool {
        push_behind(writer, number, length, 0)
    }

    fn push_behind(writer: &mut RingWriter, number: u32, length: usize, unread: u32) -> bool {
        let lines = lines_for(length);
        let Some(at) = writer.reserve_behind(lines, unread) else { return false };
        // SAFETY: `reserve_behind` gave `lines` lines.
        unsafe {
            at.add(8).cast::<u32>().write(number);
            at.add(body_at(length)).write_bytes(number as u8, length);
        }
        writer.publish(lines, Header::new(Kind::Send, FLAG_ACK, length as u32));
        true
    }

    /// Number and length of the next record, whose bytes were checked.
    fn pop(reader: &mut RingReader) -> Option<(u32, usize)> {
        loop {
            let record = reader.peek().unwrap()?;
            reader.pass(&record);
            if record.kind == Kind::Pad {
                continue;
            }
            let length = record.length as usize;
            // SAFETY: `peek` checked that the record lies in the ring.
            let number = unsafe { record.at.add(8).cast::<u32>().read() };
            for i in 0..length {
                // SAFETY: as above.
                let byte = unsafe { record.at.add(body_at(length) + i).read() };
                assert_eq!(byte, number as u8);
            }
            reader.retire(reader.position());
            return Some((number, length));
        }
    }

    fn next(state: &mut u64) -> u32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) as u32
    }

    #[test]
    fn keeps_order_and_bytes_like_a_deque() {
        [LINES, 1024].into_iter().for_each(keeps_order_and_bytes);
    }

    fn keeps_order_and_bytes(lines: u32) {
        let mut memory = Memory::of(lines);
        let (mut writer, mut reader) = memory.ends();
        let mut oracle = VecDeque::new();
        let mut state = 11;
        let mut refused = 0;
        for number in 0..if cfg!(miri) { 300 } else { 20_000 } {
            // now the writer is ahead for a while, now the reader
            if next(&mut state) % 9 < 4 + (number / 2000) % 2 * 2 {
                let length = next(&mut state) as usize % (15 * LINE);
                if push(&mut writer, number, length) {
                    oracle.push_back((number, length));
                } else {
                    refused += 1;
                }
            } else {
                assert_eq!(pop(&mut reader), oracle.pop_front());
            }
        }
        assert!(refused > 0 || cfg!(miri), "the ring was never full");
        while let Some(expected) = oracle.pop_front() {
            assert_eq!(pop(&mut reader), Some(expected));
        }
        assert_eq!(pop(&mut reader), None);
    }

    struct Moved<T>(T);
    // SAFETY: each end is moved to one thread; the test joins before the memory goes.
    unsafe impl<T> Send for Moved<T> {}

    #[test]
    fn two_threads_exchange_all_records() {
        [LINES, 1024].into_iter().for_each(two_threads_exchange);
    }

    fn two_threads_exchange(lines: u32) {
        let count = if cfg!(miri) { 200 } else { 100_000 };
        let mut memory = Memory::of(lines);
        let (writer, mut reader) = memory.ends();
        let sent = Moved(writer);
        let lengths = |number: u32| number as usize * 37 % 300;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let Moved(mut writer) = { sent };
                for number in 0..count {
                    while !push(&mut writer, number, lengths(number)) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..count {
                let got = loop {
                    if let Some(got) = pop(&mut reader) {
                        break got;
                    }
                    reader.retire_all(reader.position());
                    std::thread::yield_now();
                };
                assert_eq!(got, (number, lengths(number)));
            }
        });
    }

    /// Every connection had touched all of its rings after as many messages.
    #[test]
    fn ring_whose_reader_keeps_up_stays_in_its_first_lines() {
        for length in [8, 100, 500] {
            let mut memory = Memory::of(1024);
            let (mut writer, mut reader) = memory.ends();
            for number in 0..if cfg!(miri) { 150 } else { 3000 } {
                assert!(push(&mut writer, number, length));
                assert_eq!(pop(&mut reader), Some((number, length)));
            }
            assert!(memory.touched() <= LINES_FIRST as usize, "{length}: {}", memory.touched());
        }
    }

    /// A peer had two records in each answer, and read them before it answered: such a ring grew
    /// to all that it had.
    #[test]
    fn ring_that_nothing_is_held_in_turns_behind_a_few_unread_records() {
        for (unread, grows) in [(0, true), (UNREAD, false)] {
            let mut memory = Memory::of(1024);
            let (mut writer, mut reader) = memory.ends();
            for number in 0..if cfg!(miri) { 60 } else { 3000 } {
                assert!(push_behind(&mut writer, number, 64, unread));
                if number >= 4 {
                    assert_eq!(pop(&mut reader), Some((number - 4, 64)));
                }
            }
            assert_eq!(memory.touched() > LINES_FIRST as usize, grows, "{}", memory.touched());
        }
    }

    #[test]
    fn ring_whose_reader_falls_behind_grows_to_all_of_it() {
        let mut memory = Memory::of(1024);
        let (mut writer, mut reader) = memory.ends();
        let mut pushed = 0;
        while push(&mut writer, pushed, 8) {
            pushed += 1;
        }
        assert_eq!(pushed, 1024 - SPARE);
        for number in 0..pushed {
            assert_eq!(pop(&mut reader), Some((number, 8)));
        }
        // what is as long as a record may be has room from the beginning
        let longest = (RingWriter::record_lines_max(1024) as usize - 1) * LINE;
        let mut memory = Memory::of(1024);
        let (mut writer, mut reader) = memory.ends();
        for number in 0..9 {
            assert!(push(&mut writer, number, longest));
            assert_eq!(pop(&mut reader), Some((number, longest)));
        }
    }

    #[test]
    fn full_ring_takes_nothing_until_the_reader_tells() {
        let mut memory = Memory::new();
        let (mut writer, mut reader) = memory.ends();
        let mut pushed = 0;
        while push(&mut writer, pushed, 8) {
            pushed += 1;
        }
        assert_eq!(pushed, LINES - SPARE);
        for number in 0..pushed {
            assert_eq!(pop(&mut reader), Some((number, 8)));
        }
        reader.retire_all(reader.position());
        assert!(push(&mut writer, 0, 8));
    }

    #[test]
    fn corrupt_headers_and_positions_are_noticed() {
        let mut memory = Memory::new();
        let (mut writer, reader) = memory.ends();
        let bad = [
            Header(9 << 32),
            Header(5),
            Header::new(Kind::Send, 0, LINES * LINE as u32),
            Header::new(Kind::Send, 0, u32::MAX),
            Header::new(Kind::Pad, 0, 3),
            Header::new(Kind::Pad, 0, 0),
        ];
        let seen: Vec<bool> = bad
            .iter()
            .map(|header| {
                writer.header(0).store(header.0, RELAXED);
                reader.peek().is_err()
            })
            .collect();
        assert_eq!(seen, [true; 6]);
        // SAFETY: the word of the block.
        unsafe { u32_at(reader.consumed) }.store(1000, RELAXED);
        while writer.reserve(1).is_some() {
            writer.publish(1, Header::new(Kind::Send, 0, 0));
        }
        assert!(writer.is_broken());
    }
}
