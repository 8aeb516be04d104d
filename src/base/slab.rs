//! Handles that go stale: an index into a table, and the generation of what stood there.
#![forbid(unsafe_code)]

/// Names one use of one slot. When the slot is used again its generation has moved on, so that an
/// old handle finds nothing instead of finding a stranger.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
#[repr(C)]
pub struct Handle {
    /// Which slot.
    pub index: u32,
    /// Which use of it; odd while the slot is in use, so that zero is never a live handle.
    pub generation: u32,
}

impl Handle {
    /// As one number: generation high, index low. Zero is no handle.
    pub const fn pack(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The inverse of [`Handle::pack`].
    pub const fn unpack(number: u64) -> Handle {
        Handle { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// The generation of one slot: even while free, odd while in use, stepped at each change.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(transparent)]
pub struct Generation(u32);

impl Generation {
    /// A free slot of a table whose handles another table, with another salt, will not take for its
    /// own.
    pub const fn salted(salt: u32) -> Generation {
        Generation(salt & !1)
    }

    /// Whether the slot is in use.
    pub const fn is_live(self) -> bool {
        self.0 & 1 == 1
    }

    /// Marks the slot used and returns what its handle carries.
    pub const fn acquire(&mut self) -> u32 {
        debug_assert!(!self.is_live());
        self.0 = self.0.wrapping_add(1);
        self.0
    }

    /// Marks the slot free; handles that carry the old number are stale from now on.
    pub const fn release(&mut self) {
        debug_assert!(self.is_live());
        self.0 = self.0.wrapping_add(1);
    }

    /// Whether a handle's number is this use of the slot.
    pub const fn is(self, generation: u32) -> bool {
        self.is_live() && self.0 == generation
    }

    /// The number that a handle to the present use carries.
    pub const fn number(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_a_table_with_another_salt_is_stale() {
        let (mut here, mut there) = (Generation::salted(0x5a17), Generation::salted(u32::MAX));
        assert!(!here.is_live() && !there.is_live());
        let handle = here.acquire();
        there.acquire();
        assert!(here.is(handle) && !there.is(handle));
    }

    #[test]
    fn handle_of_an_earlier_use_is_stale() {
        let mut slot = Generation::default();
        let first = slot.acquire();
        assert!(slot.is(first));
        slot.release();
        assert!(!slot.is(first));
        let second = slot.acquire();
        assert!(slot.is(second) && !slot.is(first));
        let handle = Handle { index: 7, generation: second };
        assert_eq!(Handle::unpack(handle.pack()), handle);
    }
}
