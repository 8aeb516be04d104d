//! Where a poll puts what it reports.
#![forbid(unsafe_code)]

use crate::fabric::Completion;

/// The caller's places, the first `used` of which are filled.
pub struct Events<'a> {
    /// All of them.
    pub slots: &'a mut [Completion],
    /// How many are filled.
    pub used: usize,
}

impl Events<'_> {
    /// Whether one more finds a place.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.used < self.slots.len()
    }

    /// Fills the next place, which is there.
    #[inline(always)]
    pub fn push(&mut self, completion: Completion) {
        self.slots[self.used] = completion;
        self.used += 1;
    }
}
