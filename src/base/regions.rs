//! Registered address ranges: written from any thread, looked up on the data path without a lock.
#![forbid(unsafe_code)]

use super::pool::Pool;
use super::slab::Handle;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// One registered range. Zeroed storage is a free slot.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RegionSlot {
    /// Even: free. Odd: in use; the handle carries it.
    generation: AtomicU32,
    /// Outstanding operations that use the range; written by the data thread alone.
    pins: AtomicU32,
    start: AtomicU64,
    /// In the bits of [`LENGTH_MAX`]; above, the pins of threads beside the data thread.
    length: AtomicU64,
    tag: AtomicU64,
}

/// The longest range. No memory is as long.
pub const LENGTH_MAX: u64 = (1 << 56) - 1;

/// What a slot says of its range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Range {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// A word of the owner's, such as the kind of memory.
    pub tag: u64,
}

impl Range {
    /// Whether `length` bytes at `start` lie inside; a range that wraps lies nowhere.
    pub const fn contains(&self, start: u64, length: u64) -> bool {
        // a start before ours wraps to an offset beyond any length
        let offset = start.wrapping_sub(self.start);
        offset <= self.length && length <= self.length - offset
    }
}

impl RegionSlot {
    /// The word of the owner's.
    #[inline(always)]
    pub fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    /// Counts one more (`+1`) or one fewer (`-1`) operation on the range. Data thread only: the
    /// count has one writer, and whoever removes a range has ordered itself after the last use.
    #[inline(always)]
    pub fn pin(&self, change: i32) {
        let pins = &self.pins;
        pins.store(pins.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Release);
    }

    /// [`RegionSlot::pin`] for a thread beside the data thread.
    #[inline]
    fn pin_beside(&self, change: i32) {
        // release: the use of the range before it, for whoever removes the range
        self.length.fetch_add((change as u64) << LENGTH_MAX.count_ones(), Ordering::Release);
    }

    /// Either of them.
    #[inline(always)]
    fn count(&self, counter: Counter, change: i32) {
        match counter {
            Counter::Data => self.pin(change),
            Counter::Beside => self.pin_beside(change),
        }
    }

    /// Changes the length alone: a use that is about to see that its range has gone counts above.
    fn length_set(&self, length: u64) {
        let mut old = self.length.load(Ordering::Relaxed);
        while let Err(now) = self.length.compare_exchange(
            old,
            old & !LENGTH_MAX | length,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            old = now;
        }
    }

    /// Whether an operation uses the range.
    fn is_pinned(&self) -> bool {
        // acquire: pairs with the end of the last use
        self.pins.load(Ordering::Acquire) != 0 || self.length.load(Ordering::Acquire) > LENGTH_MAX
    }
}

/// Who counts an operation on a range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Counter {
    /// The data thread, of which there is one: two plain accesses.
    Data,
    /// Any other thread: one atomic operation.
    Beside,
}

/// Why a range could not be taken out.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RemoveError {
    /// The handle names no range that is in.
    Stale,
    /// Operations that use the range are outstanding; nothing was changed.
    Busy,
}

/// A table of ranges over borrowed slots.
#[derive(Copy, Clone, Debug)]
pub struct RegionTable<'m> {
    slots: &'m [RegionSlot],
    free: Pool<'m>,
    /// The generation of slots that were never used. They read as zero, and need no page yet.
    salt: u32,
}

impl<'m> RegionTable<'m> {
    /// An empty table; `free` is a fresh pool of as many indices.
    pub fn new(slots: &'m [RegionSlot], free: Pool<'m>) -> RegionTable<'m> {
        RegionTable::salted(slots, free, 0)
    }

    /// An empty table whose handles another table, with another salt, will not take for its own.
    /// *Cost*: none; a zeroed slot is touched when it is first used.
    pub fn salted(slots: &'m [RegionSlot], free: Pool<'m>, salt: u32) -> RegionTable<'m> {
        RegionTable { slots, free, salt: salt & !1 }
    }

    /// Whether there is no room: a hint, where other threads put ranges in.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts a range in, from any thread. `None` when the table is full, or the range is longer than
    /// [`LENGTH_MAX`].
    pub fn insert(&self, range: Range) -> Option<Handle> {
        if range.length > LENGTH_MAX {
            return None;
        }
        let index = self.free.acquire()?;
        let slot = &self.slots[index as usize];
        // [fields] whoever reads a field from here on sees that the last range has gone
        fence(Ordering::Release);
        slot.start.store(range.start, Ordering::Relaxed);
        slot.length_set(range.length);
        slot.tag.store(range.tag, Ordering::Relaxed);
        // the count is zero but for a use that is about to see that its range has gone
        let last = match slot.generation.load(Ordering::Relaxed) {
            0 => self.salt,
            last => last,
        };
        let generation = last.wrapping_add(1);
        // release: [region], the fields above belong to this generation
        slot.generation.store(generation, Ordering::Release);
        Some(Handle { index, generation })
    }

    /// The range that `handle` names, if it is still in. *Cost*: four loads.
    #[inline]
    pub fn get(&self, handle: Handle) -> Option<Range> {
        let slot = self.slots.get(handle.index as usize)?;
        // acquire: pairs with [region]
        if slot.generation.load(Ordering::Acquire) != handle.generation || !live(handle) {
            return None;
        }
        Some(Range {
            start: slot.start.load(Ordering::Relaxed),
            length: slot.length.load(Ordering::Relaxed) & LENGTH_MAX,
            tag: slot.tag.load(Ordering::Relaxed),
        })
    }

    /// The slot of the range that `handle` names, if it is still in and holds `length` bytes at
    /// `start`. *Cost*: three loads of one line.
    #[inline(always)]
    pub fn holding(&self, handle: Handle, start: u64, length: u64) -> Option<&'m RegionSlot> {
        let slot = self.slots.get(handle.index as usize)?;
        // acquire: pairs with [region]
        if slot.generation.load(Ordering::Acquire) != handle.generation || !live(handle) {
            return None;
        }
        let range = Range {
            start: slot.start.load(Ordering::Relaxed),
            length: slot.length.load(Ordering::Relaxed) & LENGTH_MAX,
            tag: 0,
        };
        range.contains(start, length).then_some(slot)
    }

    /// [`RegionTable::holding`] for whom nobody else keeps the range in, and pins it: from now on
    /// it stays, or it was gone. Data thread only. *Cost*: a fence.
    #[inline]
    pub fn hold(&self, handle: Handle, start: u64, length: u64) -> Option<&'m RegionSlot> {
        self.hold_as(Counter::Data, handle, start, length)
    }

    /// [`RegionTable::hold`] by the data thread or another; what it counts in, the same counter
    /// counts out.
    #[inline(always)]
    pub fn hold_as(
        &self,
        counter: Counter,
        handle: Handle,
        start: u64,
        length: u64,
    ) -> Option<&'m RegionSlot> {
        let slot = self.holding(handle, start, length)?;
        slot.count(counter, 1);
        // [hold] either we see that the range has gone, or `remove` sees the pin; with [fields],
        // what `holding` has read was of one range
        fence(Ordering::SeqCst);
        if slot.generation.load(Ordering::Relaxed) != handle.generation {
            slot.count(counter, -1);
            return None;
        }
        Some(slot)
    }

    /// The slot with that number, if there is one.
    #[inline(always)]
    pub fn slot(&self, index: u32) -> Option<&'m RegionSlot> {
        self.slots.get(index as usize)
    }

    /// The handle to the range that is in slot `index` now.
    pub fn current(&self, index: u32) -> Handle {
        let generation = self.slots[index as usize].generation.load(Ordering::Acquire);
        Handle { index, generation }
    }

    /// The owner's word of the range that is in slot `index` now.
    #[inline]
    pub fn tag(&self, index: u32) -> u64 {
        self.slots[index as usize].tag.load(Ordering::Relaxed)
    }

    /// How often a region is pinned by the data thread.
    pub fn pins(&self, index: u32) -> u32 {
        self.slots[index as usize].pins.load(Ordering::Acquire)
    }

    /// [`RegionSlot::pin`] by number.
    #[inline]
    pub fn pin(&self, index: u32, change: i32) {
        self.pin_as(Counter::Data, index, change);
    }

    /// The same by the data thread or another.
    #[inline(always)]
    pub fn pin_as(&self, counter: Counter, index: u32, change: i32) {
        self.slots[index as usize].count(counter, change);
    }

    /// Whether a range is in and no operation uses it.
    pub fn idle(&self, handle: Handle) -> Result<(), RemoveError> {
        self.get(handle).ok_or(RemoveError::Stale)?;
        match self.slots[handle.index as usize].is_pinned() {
            false => Ok(()),
            true => Err(RemoveError::Busy),
        }
    }

    /// Takes a range out, from any thread. Where a use begins at the same moment, that use may be
    /// refused although the range stays.
    pub fn remove(&self, handle: Handle) -> Result<(), RemoveError> {
        self.remove_with(handle, || Ok(()))
    }

    /// The same, if `forget` succeeds, which is called when no use of the range is left and none
    /// can begin. When it fails, the range stays in.
    pub fn remove_with<E: From<RemoveError>>(
        &self,
        handle: Handle,
        forget: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.idle(handle)?;
        let slot = &self.slots[handle.index as usize];
        let after = handle.generation.wrapping_add(1);
        slot.generation
            .compare_exchange(handle.generation, after, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| RemoveError::Stale)?;
        // nobody else changes it: the handle is stale, and the slot is not free
        let put_back = || slot.generation.store(handle.generation, Ordering::Release);
        // pairs with [hold]
        fence(Ordering::SeqCst);
        if slot.is_pinned() {
            put_back();
            return Err(RemoveError::Busy.into());
        }
        forget().inspect_err(|_| put_back())?;
        self.free.release(handle.index);
        Ok(())
    }

    /// How many ranges fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

const fn live(handle: Handle) -> bool {
    handle.generation & 1 == 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn handle_is_stale_after_removal_and_busy_while_pinned() {
        let head = AtomicU64::new(0);
        let next = [const { AtomicU32::new(0) }; 2];
        let slots: [RegionSlot; 2] = Default::default();
        let table = RegionTable::new(&slots, Pool::new(&head, &next));
        let range = Range { start: 4096, length: 100, tag: 1 };
        let handle = table.insert(range).unwrap();
        assert_eq!(table.get(handle), Some(range));
        table.pin(handle.index, 1);
        assert_eq!(table.remove(handle), Err(RemoveError::Busy));
        table.pin(handle.index, -1);
        assert_eq!(table.remove(handle), Ok(()));
        assert_eq!(table.remove(handle), Err(RemoveError::Stale));
        assert_eq!(table.get(handle), None);
        let again = table.insert(range).unwrap();
        assert_ne!(again, handle);
        assert_eq!(table.get(Handle::default()), None);
    }

    #[test]
    fn range_that_its_owner_cannot_forget_stays_in() {
        let head = AtomicU64::new(0);
        let next = [const { AtomicU32::new(0) }; 2];
        let slots: [RegionSlot; 2] = Default::default();
        let table = RegionTable::new(&slots, Pool::new(&head, &next));
        let handle = table.insert(Range { start: 4096, length: 100, tag: 1 }).unwrap();
        let refused = table.remove_with(handle, || Err(RemoveError::Busy));
        assert_eq!(refused, Err(RemoveError::Busy));
        assert!(table.get(handle).is_some());
        assert_eq!(table.remove(handle), Ok(()));
    }

    #[test]
    fn range_ends_are_exact_and_wrapping_is_outside() {
        let range = Range { start: 100, length: 50, tag: 0 };
        assert!(range.contains(100, 50));
        assert!(range.contains(150, 0));
        assert!(!range.contains(99, 1));
        assert!(!range.contains(100, 51));
        assert!(!range.contains(u64::MAX, 2));
    }
}
