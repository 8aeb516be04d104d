//! A word of a window, in which each operation has two bits of its own. So it says which
//! operations were applied, and one that was applied twice shows.
#![forbid(unsafe_code)]

/// Operations that a word has bits for.
const BITS: u32 = 32;

/// A word with bits for operations.
#[derive(Copy, Clone, Default, Debug)]
pub struct Word {
    known: u64,
    used: u64,
}

impl Word {
    /// A value for the next operation, if bits are left.
    pub fn take(&mut self) -> Option<u64> {
        let free = (0..BITS).map(|at| 1 << (2 * at)).find(|value| self.used & value == 0)?;
        self.used |= free;
        Some(free)
    }

    /// A value that was taken is not used.
    pub fn give_back(&mut self, value: u64) {
        self.used &= !value;
    }

    /// What was added since the last look.
    pub fn look(&mut self, word: u64) -> Result<u64, String> {
        let new = word & !self.known;
        if word & self.known != self.known || new & !self.used != 0 {
            return Err(format!("a word is {word:x}, was {:x}, of {:x}", self.known, self.used));
        }
        self.known = word;
        Ok(new)
    }

    /// It was set to zero. What is on its way keeps its bits.
    pub fn reset(&mut self) {
        self.used &= !self.known;
        self.known = 0;
    }
}
