//! A table of reference-counted address ranges: the index of the registration cache. Readers take
//! no lock. There is one writer at a time.
//!
//! The table has two copies of a sorted index. A writer rewrites the copy that is not in use, then
//! switches to it. So a writer that stops anywhere keeps no reader waiting. Each copy has a version
//! number, which is odd while the copy is rewritten. A reader compares the version before and
//! after, and repeats its search if it changed.
//!
//! Ranges may overlap, and one may lie inside another. The owner gives each range an *identity*,
//! which tells two uses of the same addresses apart, such as two allocations. A lookup needs the
//! same identity:
//!
//! | identity | lookup of a part of a range |
//! |---|---|
//! | known | finds the range: an allocation is freed as a whole |
//! | 0: unknown | finds nothing: other pages of the range may be freed alone |
#![forbid(unsafe_code)]

use super::pool::Pool;
use super::slab::Handle;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// A range as its owner names it.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Span {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte; above `start`.
    pub end: u64,
    /// Which use of these addresses; 0: nobody knows.
    pub identity: u64,
    /// What kind of memory, as the owner packs it.
    pub kind: u64,
}

impl Span {
    /// Whether they have a byte in common.
    pub const fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether the other lies inside, and is of the same use and kind.
    const fn holds(&self, part: &Span) -> bool {
        let is_inside = self.start <= part.start && part.end <= self.end;
        is_inside && self.identity == part.identity && self.kind == part.kind
    }
}

/// One range: its use, its count, and itself. Zeroed storage is a free slot.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CountedSlot {
    /// Generation in the upper half, odd while in use; how often it is held in the lower, and
    /// [`ALONE`].
    word: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    identity: AtomicU64,
    kind: AtomicU64,
}

/// One entry of one copy of the index.
#[derive(Debug, Default)]
#[repr(C)]
pub struct IndexEntry {
    start: AtomicU64,
    end: AtomicU64,
    identity: AtomicU64,
    kind: AtomicU64,
    handle: AtomicU64,
}

/// Which copy of the index is in use, and how each one stands.
#[derive(Debug, Default)]
#[repr(C)]
pub struct IndexHead {
    active: AtomicU32,
    /// Odd while the copy is rewritten.
    versions: [AtomicU32; 2],
    counts: [AtomicU32; 2],
}

/// What became of a range that was let go.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Released {
    /// Others hold it.
    Held,
    /// Nobody holds it any more, and nobody can again: it is the caller's to withdraw and to free.
    Last,
}

/// The handle names no range that is held.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Stale;

/// A table of counted ranges over borrowed storage.
#[derive(Copy, Clone, Debug)]
pub struct CountedRanges<'m> {
    slots: &'m [CountedSlot],
    entries: [&'m [IndexEntry]; 2],
    head: &'m IndexHead,
    free: Pool<'m>,
}

/// Set in the count of a range that nobody but its holder may hold.
const ALONE: u32 = 1 << 31;

const fn word(generation: u32, held: u32) -> u64 {
    (generation as u64) << 32 | held as u64
}

impl<'m> CountedRanges<'m> {
    /// An empty table. Each copy of the index has as many entries as there are slots, and `free` as
    /// many indices.
    pub fn new(
        slots: &'m [CountedSlot],
        entries: [&'m [IndexEntry]; 2],
        head: &'m IndexHead,
        free: Pool<'m>,
    ) -> CountedRanges<'m> {
        assert!(entries.iter().all(|copy| copy.len() == slots.len()));
        CountedRanges { slots, entries, head, free }
    }

    /// How many ranges fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The range that is `span`, to the byte; else, if `span` has an identity, one that holds it.
    /// *Cost*: a binary search, and a step for each range that begins where `span` does; for a
    /// part, one for each range that begins before the part.
    pub fn find(&self, span: &Span) -> Option<Handle> {
        loop {
            // acquire: pairs with [active]
            let copy = self.head.active.load(Ordering::Acquire) as usize & 1;
            // acquire: pairs with [even]
            let version = self.head.versions[copy].load(Ordering::Acquire);
            // odd: the other copy is in use by now
            if version & 1 == 0 {
                let found = self.search(copy, span);
                // [odd] what was read was of one version, or the version has changed by now
                fence(Ordering::Acquire);
                if self.head.versions[copy].load(Ordering::Relaxed) == version {
                    return found;
                }
            }
            spin_loop();
        }
    }

    fn search(&self, copy: usize, span: &Span) -> Option<Handle> {
        let entries = self.entries[copy];
        let count = (self.head.counts[copy].load(Ordering::Relaxed) as usize).min(entries.len());
        let first =
            entries[..count].partition_point(|e| e.start.load(Ordering::Relaxed) < span.start);
        let same = (first..count).map(|at| self.entry(copy, at));
        let mut same = same.take_while(|(other, _)| other.start == span.start);
        if let Some((_, handle)) = same.find(|(other, _)| other == span) {
            return Some(handle);
        }
        if span.identity == 0 {
            return None;
        }
        let behind =
            entries[..count].partition_point(|e| e.start.load(Ordering::Relaxed) <= span.start);
        let mut before = (0..behind).rev().map(|at| self.entry(copy, at));
        before.find(|(other, _)| other.holds(span)).map(|(_, handle)| handle)
    }

    /// [`CountedRanges::find`], and holds the range. `None` also where its last holder has just let
    /// it go: whoever makes ranges then makes another. Any thread.
    pub fn acquire(&self, span: &Span) -> Option<Handle> {
        let handle = self.find(span)?;
        self.hold(handle).then_some(handle)
    }

    /// Holds a range that was found, if somebody has held it ever since.
    fn hold(&self, handle: Handle) -> bool {
        let Some(slot) = self.slots.get(handle.index as usize) else { return false };
        // acquire: pairs with [range], what belongs to the range was written before it was there
        let mut old = slot.word.load(Ordering::Acquire);
        loop {
            let held = old as u32;
            if old != word(handle.generation, held) || held == 0 || held >= ALONE - 1 {
                return false;
            }
            match slot.word.compare_exchange_weak(
                old,
                old + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Lets a range go that was acquired or inserted. Any thread.
    pub fn release(&self, handle: Handle) -> Result<Released, Stale> {
        let slot = self.slots.get(handle.index as usize).ok_or(Stale)?;
        let mut old = slot.word.load(Ordering::Relaxed);
        loop {
            let held = old as u32 & !ALONE;
            let is_live = (old >> 32) as u32 == handle.generation && handle.generation & 1 == 1;
            if !is_live || held == 0 {
                return Err(Stale);
            }
            let new = if held == 1 { word(handle.generation, 0) } else { old - 1 };
            // acqrel: [last] each use of the range comes before what its last holder does with it
            match slot.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if held == 1 => return Ok(Released::Last),
                Ok(_) => return Ok(Released::Held),
                Err(now) => old = now,
            }
        }
    }

    /// How often a range is held; zero between its last release and its end. `None`: it is no more.
    pub fn held(&self, handle: Handle) -> Option<u32> {
        let now = self.slots.get(handle.index as usize)?.word.load(Ordering::Acquire);
        let is_live = (now >> 32) as u32 == handle.generation && handle.generation & 1 == 1;
        is_live.then_some(now as u32 & !ALONE)
    }

    /// The range itself, as long as it is not freed.
    pub fn span(&self, handle: Handle) -> Option<Span> {
        self.held(handle)?;
        let slot = &self.slots[handle.index as usize];
        let span = Span {
            start: slot.start.load(Ordering::Relaxed),
            end: slot.end.load(Ordering::Relaxed),
            identity: slot.identity.load(Ordering::Relaxed),
            kind: slot.kind.load(Ordering::Relaxed),
        };
        // with [fields], what was read was of this use
        fence(Ordering::Acquire);
        self.held(handle).map(|_| span)
    }

    /// The handle of a slot in use. Writer only.
    pub fn at(&self, index: usize) -> Option<Handle> {
        let generation = (self.slots.get(index)?.word.load(Ordering::Relaxed) >> 32) as u32;
        (generation & 1 == 1).then_some(Handle { index: index as u32, generation })
    }

    /// Takes a slot for a range, which nobody finds before [`CountedRanges::publish`]. Held once.
    /// Writer only. `None` when the table is full.
    pub fn reserve(&self, span: &Span) -> Option<Handle> {
        let index = self.free.acquire()?;
        let slot = &self.slots[index as usize];
        let generation = (slot.word.load(Ordering::Relaxed) >> 32) as u32;
        let generation = generation.wrapping_add(1);
        // [fields] whoever reads a field from here on sees that the last use has ended
        fence(Ordering::Release);
        slot.start.store(span.start, Ordering::Relaxed);
        slot.end.store(span.end, Ordering::Relaxed);
        slot.identity.store(span.identity, Ordering::Relaxed);
        slot.kind.store(span.kind, Ordering::Relaxed);
        // release: [range], the fields above are of this use
        slot.word.store(word(generation, 1), Ordering::Release);
        Some(Handle { index, generation })
    }

    /// Puts a reserved range into the index; what its owner keeps beside it is written by now.
    /// Writer only. *Cost*: all entries are copied.
    pub fn publish(&self, handle: Handle) {
        if let Some(span) = self.span(handle) {
            self.rewrite(None, Some((span, handle)));
        }
    }

    /// Whether a range is in the index. Writer only. *Cost*: a binary search.
    pub fn is_published(&self, handle: Handle) -> bool {
        let Some(span) = self.span(handle) else { return false };
        let copy = self.head.active.load(Ordering::Relaxed) as usize & 1;
        let count = self.head.counts[copy].load(Ordering::Relaxed) as usize;
        let entries = &self.entries[copy][..count];
        let first = entries.partition_point(|e| e.start.load(Ordering::Relaxed) < span.start);
        let same = (first..count).map(|at| self.entry(copy, at));
        let mut same = same.take_while(|(other, _)| other.start == span.start);
        same.any(|(_, other)| other == handle)
    }

    /// Takes a range out of the index: nobody finds it from now on; whoever holds it goes on
    /// holding it. Writer only.
    pub fn withdraw(&self, handle: Handle) {
        self.rewrite(Some(handle), None);
    }

    /// Whoever was the last to let a withdrawn range go holds it again, alone: whoever found it
    /// before must not hold what is half ended. Writer only.
    ///
    /// *Panics* when it is held, or was freed.
    pub fn hold_again(&self, handle: Handle) {
        assert_eq!(self.held(handle), Some(0));
        // release: as `reserve`; nobody else changes the word of a range that nobody holds
        let slot = &self.slots[handle.index as usize];
        slot.word.store(word(handle.generation, ALONE | 1), Ordering::Release);
    }

    /// Gives the slot of a withdrawn range back, which nobody holds. Writer only.
    ///
    /// *Panics* when it is held, or was freed.
    pub fn free(&self, handle: Handle) {
        assert_eq!(self.held(handle), Some(0));
        self.end(handle);
    }

    /// Gives the slot of a range back that was reserved and never published. Writer only.
    pub fn forget(&self, handle: Handle) {
        assert_eq!(self.held(handle), Some(1));
        self.end(handle);
    }

    fn end(&self, handle: Handle) {
        let slot = &self.slots[handle.index as usize];
        slot.word.store(word(handle.generation.wrapping_add(1), 0), Ordering::Release);
        self.free.release(handle.index);
    }

    /// The first range in the index, from entry `from` on, that has a byte in common with `span`,
    /// and the entry behind it. Writer only.
    pub fn overlapping(&self, span: &Span, from: usize) -> Option<(Handle, usize)> {
        let copy = self.head.active.load(Ordering::Relaxed) as usize & 1;
        let count = self.head.counts[copy].load(Ordering::Relaxed) as usize;
        let overlaps = |at: &usize| self.entry(copy, *at).0.overlaps(span);
        let at = (from..count).find(overlaps)?;
        Some((self.entry(copy, at).1, at + 1))
    }

    fn entry(&self, copy: usize, at: usize) -> (Span, Handle) {
        let entry = &self.entries[copy][at];
        let span = Span {
            start: entry.start.load(Ordering::Relaxed),
            end: entry.end.load(Ordering::Relaxed),
            identity: entry.identity.load(Ordering::Relaxed),
            kind: entry.kind.load(Ordering::Relaxed),
        };
        (span, Handle::unpack(entry.handle.load(Ordering::Relaxed)))
    }

    /// Writes the copy that is not in use anew, and makes it the one in use.
    fn rewrite(&self, without: Option<Handle>, mut with: Option<(Span, Handle)>) {
        let from = self.head.active.load(Ordering::Relaxed) as usize & 1;
        let to = 1 - from;
        let version = self.head.versions[to].load(Ordering::Relaxed);
        self.head.versions[to].store(version.wrapping_add(1), Ordering::Relaxed);
        // [odd] whoever reads what follows sees that the version is odd, or another
        fence(Ordering::Release);
        let mut out = Writer { entries: self.entries[to], count: 0 };
        for at in 0..self.head.counts[from].load(Ordering::Relaxed) as usize {
            let (span, handle) = self.entry(from, at);
            if let Some(new) = with.take_if(|(new, _)| new.start < span.start) {
                out.put(new);
            }
            if Some(handle) != without {
                out.put((span, handle));
            }
        }
        if let Some(new) = with {
            out.put(new);
        }
        self.head.counts[to].store(out.count as u32, Ordering::Relaxed);
        // release: [even], the copy is whole
        self.head.versions[to].store(version.wrapping_add(2), Ordering::Release);
        // release: [active]
        self.head.active.store(to as u32, Ordering::Release);
    }
}

/// Fills a copy of the index from its front.
struct Writer<'m> {
    entries: &'m [IndexEntry],
    count: usize,
}

impl Writer<'_> {
    fn put(&mut self, (span, handle): (Span, Handle)) {
        let entry = &self.entries[self.count];
        entry.start.store(span.start, Ordering::Relaxed);
        entry.end.store(span.end, Ordering::Relaxed);
        entry.identity.store(span.identity, Ordering::Relaxed);
        entry.kind.store(span.kind, Ordering::Relaxed);
        entry.handle.store(handle.pack(), Ordering::Relaxed);
        self.count += 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn span(start: u64, end: u64, identity: u64) -> Span {
        Span { start, end, identity, kind: 0 }
    }

    macro_rules! table {
        ($name:ident, $count:literal) => {
            let head = AtomicU64::new(0);
            let next = [const { AtomicU32::new(0) }; $count];
            let slots: [CountedSlot; $count] = Default::default();
            let copies: [[IndexEntry; $count]; 2] = Default::default();
            let index = IndexHead::default();
            let [a, b] = &copies;
            let $name = CountedRanges::new(&slots, [a, b], &index, Pool::new(&head, &next));
        };
    }

    fn insert(table: &CountedRanges<'_>, span: Span) -> Handle {
        let handle = table.reserve(&span).unwrap();
        table.publish(handle);
        handle
    }

    #[test]
    fn range_is_found_by_its_very_span() {
        table!(table, 4);
        let long = insert(&table, span(100, 1000, 0));
        let short = insert(&table, span(100, 300, 0));
        let mapped = Span { kind: 1, ..span(100, 300, 0) };
        assert_eq!(table.find(&span(100, 300, 0)), Some(short));
        assert_eq!(table.find(&span(100, 1000, 0)), Some(long));
        for part in [span(101, 300, 0), span(100, 299, 0), span(250, 260, 0), span(99, 300, 0)] {
            assert_eq!(table.find(&part), None, "{part:?}");
        }
        assert_eq!(table.find(&span(100, 300, 7)), None, "another use of the addresses");
        assert_eq!(table.find(&mapped), None, "another kind of memory");
        let mapped = (insert(&table, mapped), mapped);
        assert_eq!(table.find(&mapped.1), Some(mapped.0));
        assert_eq!(table.find(&span(100, 300, 0)), Some(short));
    }

    #[test]
    fn part_of_a_known_allocation_finds_the_whole() {
        table!(table, 4);
        let whole = insert(&table, span(100, 1000, 7));
        insert(&table, span(100, 300, 7));
        let late = insert(&table, span(500, 600, 7));
        for part in [span(100, 301, 7), span(499, 600, 7), span(999, 1000, 7)] {
            assert_eq!(table.find(&part), Some(whole), "{part:?}");
        }
        assert_eq!(table.find(&span(501, 600, 7)), Some(late), "the nearest");
        for other in [span(99, 300, 7), span(100, 1001, 7), span(101, 300, 8), span(101, 300, 0)] {
            assert_eq!(table.find(&other), None, "{other:?}");
        }
        assert_eq!(table.find(&Span { kind: 1, ..span(101, 300, 7) }), None, "of another kind");
    }

    #[test]
    fn last_holder_is_told_and_nobody_takes_it_up_again() {
        table!(table, 2);
        let handle = insert(&table, span(100, 200, 0));
        assert_eq!(table.acquire(&span(100, 200, 0)), Some(handle));
        assert_eq!(table.release(handle), Ok(Released::Held));
        assert_eq!(table.release(handle), Ok(Released::Last));
        assert_eq!(table.acquire(&span(100, 200, 0)), None);
        assert_eq!(table.release(handle), Err(Stale));
        table.withdraw(handle);
        table.free(handle);
        let again = insert(&table, span(100, 200, 0));
        assert_ne!(again, handle);
        assert_eq!(table.span(handle), None);
        assert_eq!(table.release(handle), Err(Stale));
    }

    #[test]
    fn full_table_says_so_and_takes_up_what_was_freed() {
        table!(table, 2);
        let first = insert(&table, span(0, 10, 0));
        insert(&table, span(20, 30, 0));
        assert_eq!(table.reserve(&span(40, 50, 0)), None);
        assert_eq!(table.overlapping(&span(5, 25, 0), 0), Some((first, 1)));
        assert_eq!(table.release(first), Ok(Released::Last));
        table.withdraw(first);
        table.free(first);
        assert!(table.reserve(&span(40, 50, 0)).is_some());
    }

    #[test]
    fn range_that_its_last_holder_holds_again_is_nobody_elses() {
        table!(table, 1);
        let handle = table.reserve(&span(64, 128, 0)).unwrap();
        table.publish(handle);
        let found = table.find(&span(64, 128, 0)).unwrap();
        // meanwhile its holder gives it up, and cannot
        assert_eq!(table.release(handle), Ok(Released::Last));
        table.withdraw(handle);
        table.hold_again(handle);
        assert!(!table.hold(found), "whoever found it before has it with its holder");
        assert_eq!((table.held(handle), table.span(handle)), (Some(1), Some(span(64, 128, 0))));
        assert_eq!(table.release(handle), Ok(Released::Last));
        assert_eq!((table.held(handle), table.release(handle)), (Some(0), Err(Stale)));
        table.free(handle);
        let other = table.reserve(&span(64, 128, 0)).unwrap();
        table.publish(other);
        assert_eq!(table.acquire(&span(64, 128, 0)), Some(other), "its slot is as any other");
    }
}
