//! Memory keys: which region a key names, how long it is at each peer, and whether it still stands.
//!
//! A key is a slot of the table and the slot's generation, so that a key of a region that was
//! deregistered names nothing, even where its slot was taken again.

use super::completion::Syndrome;
use super::entry::Address;

/// Low bits of a key that number its slot.
const SLOT_BITS: u32 = 16;
/// Most slots of a table.
pub const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// What a region is, which decides how it is reached.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Kind {
    /// Memory that a user registered.
    Window,
    /// Words that peers add to.
    Signals,
    /// Words that this rank adds to.
    Counters,
    /// Where old values of atomics go, and where nobody looks.
    Sink,
}

/// One slot of the table.
#[derive(Copy, Clone, Debug, Default)]
pub struct Slot {
    generation: u16,
    kind: Option<Kind>,
}

/// A stretch of a region that was found in bounds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Place {
    /// The region's slot.
    pub region: u16,
    /// What the region is.
    pub kind: Kind,
    /// Whose part of the region, as a rank.
    pub rank: u16,
    /// Bytes from the start of that part.
    pub offset: u64,
}

/// The regions of one group of ranks. *Shape*: a slot each, and a length for each slot and rank.
#[derive(Debug)]
pub struct Keys<'m> {
    slots: &'m mut [Slot],
    bytes: &'m mut [u64],
    ranks: usize,
}

impl<'m> Keys<'m> {
    /// A table over `slots`, all free, for `ranks`.
    ///
    /// *Panics*: when there are more than [`SLOTS_MAX`] slots, or `bytes` is not slots × ranks.
    pub fn new(slots: &'m mut [Slot], bytes: &'m mut [u64], ranks: usize) -> Keys<'m> {
        assert!(slots.len() <= SLOTS_MAX && bytes.len() == slots.len() * ranks);
        slots.fill(Slot::default());
        Keys { slots, bytes, ranks }
    }

    /// Registers a region whose part at each rank has so many bytes; its key, or `None` when the
    /// table is full.
    pub fn register(&mut self, kind: Kind, bytes: &[u64]) -> Option<u32> {
        let slot = self.slots.iter().position(|slot| slot.kind.is_none())?;
        self.slots[slot].kind = Some(kind);
        self.bytes[slot * self.ranks..][..self.ranks].copy_from_slice(bytes);
        Some(self.key(slot))
    }

    /// Takes a region out: its key names nothing from now on. Whether it named anything.
    pub fn deregister(&mut self, key: u32) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        let slot = &mut self.slots[slot];
        *slot = Slot { generation: slot.generation.wrapping_add(1), kind: None };
        true
    }

    /// The slot that a key names, while it does.
    pub fn slot(&self, key: u32) -> Option<usize> {
        let at = key as usize & (SLOTS_MAX - 1);
        let slot = self.slots.get(at)?;
        (slot.kind.is_some() && self.key(at) == key).then_some(at)
    }

    /// Where `bytes` from `at` lie in the part of `rank`.
    ///
    /// *Errors*: `refusal`, for a key that names nothing and for bytes that lie outside.
    pub fn place(
        &self,
        at: Address,
        bytes: u64,
        rank: usize,
        refusal: Syndrome,
    ) -> Result<Place, Syndrome> {
        let slot = self.slot(at.key).ok_or(refusal)?;
        let end = at.offset.checked_add(bytes).ok_or(refusal)?;
        if end > self.bytes[slot * self.ranks + rank] {
            return Err(refusal);
        }
        let kind = self.slots[slot].kind.ok_or(refusal)?;
        Ok(Place { region: slot as u16, kind, rank: rank as u16, offset: at.offset })
    }

    /// Bit 31 says that it is a key: zero is none.
    fn key(&self, slot: usize) -> u32 {
        let generation = u32::from(self.slots[slot].generation) << SLOT_BITS;
        (generation | slot as u32) ^ (1 << 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Syndrome = Syndrome::RemoteAccess;

    fn at(key: u32, offset: u64) -> Address {
        Address { key, offset }
    }

    #[test]
    fn bytes_outside_a_rank_s_part_are_refused() {
        let (mut slots, mut bytes) = ([Slot::default(); 2], [0; 4]);
        let mut keys = Keys::new(&mut slots, &mut bytes, 2);
        let key = keys.register(Kind::Window, &[64, 16]).unwrap();
        assert!(keys.place(at(key, 8), 8, 1, REFUSED).is_ok());
        assert!(keys.place(at(key, 9), 8, 1, REFUSED).is_err());
        assert!(keys.place(at(key, 9), 8, 0, REFUSED).is_ok());
        assert!(keys.place(at(key, 17), 0, 1, REFUSED).is_err());
        assert!(keys.place(at(key, u64::MAX), 2, 0, REFUSED).is_err());
    }

    #[test]
    fn a_key_of_a_region_that_went_names_nothing() {
        let (mut slots, mut bytes) = ([Slot::default(); 1], [0; 1]);
        let mut keys = Keys::new(&mut slots, &mut bytes, 1);
        let old = keys.register(Kind::Window, &[64]).unwrap();
        assert_eq!(keys.register(Kind::Window, &[64]), None);
        assert!(keys.deregister(old));
        assert!(!keys.deregister(old));
        let new = keys.register(Kind::Window, &[64]).unwrap();
        assert_ne!(old, new);
        assert_eq!(keys.slot(old), None);
        assert!(keys.slot(new).is_some());
    }

    #[test]
    fn words_that_are_no_key_name_nothing() {
        let (mut slots, mut bytes) = ([Slot::default(); 1], [0; 1]);
        let keys = Keys::new(&mut slots, &mut bytes, 1);
        for key in [0, 1, 1 << 31, u32::MAX] {
            assert_eq!(keys.slot(key), None);
        }
    }
}
