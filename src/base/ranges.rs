//! Counted address ranges that are looked up by what they are: the table of a registration cache.
//!
//! A range may overlap others, also be inside of one. A lookup finds the very same range alone: the
//! holder of a whole may give up all but a part of it.
#![forbid(unsafe_code)]

use super::slab::Handle;

/// A range as its owner names it.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(C)]
pub struct Span {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte; above `start`.
    pub end: u64,
    /// What kind of memory, as the owner packs it.
    pub kind: u64,
}

/// One range. Zeroed storage is a free slot.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CountedSlot {
    span: Span,
    /// Odd while in use.
    generation: u32,
    held: u32,
    /// Lookups find it.
    is_published: bool,
}

impl CountedSlot {
    fn is_live(&self) -> bool {
        self.generation & 1 == 1
    }
}

/// What became of a range that was let go.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Released {
    /// Others hold it.
    Held,
    /// This was the last holder: the caller withdraws and frees the range.
    Last,
}

/// The handle names no range that is held.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Stale;

/// A table of counted ranges over borrowed storage.
#[derive(Debug)]
pub struct CountedRanges<'m> {
    slots: &'m mut [CountedSlot],
    /// No slot from here on was ever used.
    touched: usize,
}

impl<'m> CountedRanges<'m> {
    /// An empty table over zeroed slots.
    pub fn new(slots: &'m mut [CountedSlot]) -> CountedRanges<'m> {
        CountedRanges { slots, touched: 0 }
    }

    /// The ranges in use.
    pub fn all(&self) -> impl Iterator<Item = Handle> + use<'_, 'm> {
        (0..self.touched).filter_map(|index| self.at(index))
    }

    /// The range of a slot in use.
    pub fn at(&self, index: usize) -> Option<Handle> {
        let slot = self.slots.get(index).filter(|slot| slot.is_live())?;
        Some(Handle { index: index as u32, generation: slot.generation })
    }

    /// How many slots were ever used: [`CountedRanges::at`] has something below that alone.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// The range that is `span`, to the byte. *Cost*: a look at every slot that was ever used.
    pub fn find(&self, span: &Span) -> Option<Handle> {
        self.all().find(|handle| {
            let slot = &self.slots[handle.index as usize];
            slot.is_published && slot.held > 0 && slot.span == *span
        })
    }

    /// [`CountedRanges::find`], and holds the range.
    pub fn acquire(&mut self, span: &Span) -> Option<Handle> {
        let handle = self.find(span)?;
        let held = &mut self.slots[handle.index as usize].held;
        *held = held.checked_add(1)?;
        Some(handle)
    }

    /// Lets a range go that was acquired or reserved.
    pub fn release(&mut self, handle: Handle) -> Result<Released, Stale> {
        let slot = self.live_mut(handle).filter(|slot| slot.held > 0).ok_or(Stale)?;
        slot.held -= 1;
        Ok(if slot.held == 0 { Released::Last } else { Released::Held })
    }

    /// How often a range is held; zero between its last release and its end. `None`: the range is
    /// gone.
    pub fn held(&self, handle: Handle) -> Option<u32> {
        self.live(handle).map(|slot| slot.held)
    }

    /// The range itself.
    pub fn span(&self, handle: Handle) -> Option<Span> {
        self.live(handle).map(|slot| slot.span)
    }

    fn live(&self, handle: Handle) -> Option<&CountedSlot> {
        let slot = self.slots.get(handle.index as usize)?;
        (slot.generation == handle.generation && slot.is_live()).then_some(slot)
    }

    fn live_mut(&mut self, handle: Handle) -> Option<&mut CountedSlot> {
        self.live(handle)?;
        self.slots.get_mut(handle.index as usize)
    }

    /// Takes a slot for a range, found by no lookup before [`CountedRanges::publish`]. It is held
    /// once. `None` when the table is full.
    pub fn reserve(&mut self, span: &Span) -> Option<Handle> {
        let index = self.slots.iter().position(|slot| !slot.is_live())?;
        self.touched = self.touched.max(index + 1);
        let slot = &mut self.slots[index];
        let generation = slot.generation.wrapping_add(1);
        *slot = CountedSlot { span: *span, generation, held: 1, is_published: false };
        Some(Handle { index: index as u32, generation })
    }

    /// Lets lookups find a reserved range; what its owner keeps beside it is written by now.
    pub fn publish(&mut self, handle: Handle) {
        self.live_mut(handle).into_iter().for_each(|slot| slot.is_published = true);
    }

    /// No lookup finds a range from now on; its holders go on holding it.
    pub fn withdraw(&mut self, handle: Handle) {
        self.live_mut(handle).into_iter().for_each(|slot| slot.is_published = false);
    }

    /// The last holder of a withdrawn range holds it again.
    ///
    /// *Panics* when it is held, or was freed.
    pub fn hold_again(&mut self, handle: Handle) {
        assert_eq!(self.held(handle), Some(0));
        self.slots[handle.index as usize].held = 1;
    }

    /// Gives the slot of a range back that was let go, or of one that was never published.
    ///
    /// *Panics* when others hold it, or it was freed.
    pub fn free(&mut self, handle: Handle) {
        assert!(self.held(handle).is_some_and(|held| held <= 1));
        let slot = &mut self.slots[handle.index as usize];
        (slot.generation, slot.is_published) = (slot.generation.wrapping_add(1), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end, kind: 0 }
    }

    macro_rules! table {
        ($name:ident, $count:literal) => {
            let mut slots: [CountedSlot; $count] = Default::default();
            let mut $name = CountedRanges::new(&mut slots);
        };
    }

    fn insert(table: &mut CountedRanges<'_>, span: Span) -> Handle {
        let handle = table.reserve(&span).unwrap();
        table.publish(handle);
        handle
    }

    #[test]
    fn range_is_found_by_its_very_span() {
        table!(table, 4);
        let long = insert(&mut table, span(100, 1000));
        let short = insert(&mut table, span(100, 300));
        let mapped = Span { kind: 1, ..span(100, 300) };
        assert_eq!(table.find(&span(100, 300)), Some(short));
        assert_eq!(table.find(&span(100, 1000)), Some(long));
        for part in [span(101, 300), span(100, 299), span(250, 260), span(99, 300)] {
            assert_eq!(table.find(&part), None, "{part:?}");
        }
        assert_eq!(table.find(&mapped), None, "another kind of memory");
        let mapped = (insert(&mut table, mapped), mapped);
        assert_eq!(table.find(&mapped.1), Some(mapped.0));
        assert_eq!(table.find(&span(100, 300)), Some(short));
    }

    #[test]
    fn last_holder_is_told_and_nobody_takes_it_up_again() {
        table!(table, 2);
        let handle = insert(&mut table, span(100, 200));
        assert_eq!(table.acquire(&span(100, 200)), Some(handle));
        assert_eq!(table.release(handle), Ok(Released::Held));
        assert_eq!(table.release(handle), Ok(Released::Last));
        assert_eq!(table.acquire(&span(100, 200)), None);
        assert_eq!(table.release(handle), Err(Stale));
        table.withdraw(handle);
        table.free(handle);
        let again = insert(&mut table, span(100, 200));
        assert_ne!(again, handle);
        assert_eq!(table.span(handle), None);
        assert_eq!(table.release(handle), Err(Stale));
    }

    #[test]
    fn full_table_says_so_and_takes_up_what_was_freed() {
        table!(table, 2);
        let first = insert(&mut table, span(0, 10));
        insert(&mut table, span(20, 30));
        assert_eq!(table.reserve(&span(40, 50)), None);
        assert_eq!(table.release(first), Ok(Released::Last));
        table.withdraw(first);
        table.free(first);
        assert!(table.reserve(&span(40, 50)).is_some());
    }

    #[test]
    fn range_that_its_last_holder_holds_again_is_nobody_elses() {
        table!(table, 1);
        let handle = insert(&mut table, span(64, 128));
        // its holder gives it up, and cannot
        assert_eq!(table.release(handle), Ok(Released::Last));
        table.withdraw(handle);
        table.hold_again(handle);
        assert_eq!(table.acquire(&span(64, 128)), None);
        assert_eq!((table.held(handle), table.span(handle)), (Some(1), Some(span(64, 128))));
        assert_eq!(table.release(handle), Ok(Released::Last));
        assert_eq!((table.held(handle), table.release(handle)), (Some(0), Err(Stale)));
        table.free(handle);
        let other = insert(&mut table, span(64, 128));
        assert_eq!(table.acquire(&span(64, 128)), Some(other), "its slot is as any other");
    }
}
