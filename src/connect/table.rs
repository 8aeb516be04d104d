//! Tables without searching: a set of indices, and chains of entries by a number of theirs.
#![forbid(unsafe_code)]

use super::connection::NONE;
use std::vec::Vec;

/// A set of indices, walked in order. *Cost* of a walk: a word per 64 indices, and the members.
#[derive(Debug)]
pub(super) struct Marks {
    words: Vec<u64>,
    count: u32,
}

impl Marks {
    /// An empty set over `0..bits`.
    pub fn new(bits: usize) -> Marks {
        Marks { words: std::vec![0; bits.div_ceil(64)], count: 0 }
    }

    /// How many are in.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Puts `index` in, or takes it out.
    pub fn put(&mut self, index: u32, member: bool) {
        let word = &mut self.words[index as usize / 64];
        let bit = 1 << (index % 64);
        let before = *word & bit != 0;
        *word = if member { *word | bit } else { *word & !bit };
        self.count = self.count + u32::from(member) - u32::from(before);
    }

    /// The first member at or after `from`.
    pub fn next_from(&self, from: u32) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let at = from as usize / 64;
        let first = *self.words.get(at)? & (u64::MAX << (from % 64));
        let rest = self.words[at + 1..].iter().copied();
        let mut words = core::iter::once(first).chain(rest).enumerate();
        words.find_map(|(i, word)| {
            (word != 0).then(|| ((at + i) * 64) as u32 + word.trailing_zeros())
        })
    }

    /// All members.
    pub fn all(&self) -> impl Iterator<Item = u32> {
        core::iter::successors(self.next_from(0), |at| self.next_from(at + 1))
    }
}

/// Heads of chains of entries, by a random number; each has the index of the next in its chain.
#[derive(Debug)]
pub(super) struct Chains {
    heads: Vec<u32>,
}

impl Chains {
    /// Chains for so many entries.
    pub fn new(entries: usize) -> Chains {
        Chains { heads: std::vec![NONE; entries.next_power_of_two()] }
    }

    /// The head of the chain in which `key` stands, if it does.
    pub fn head(&mut self, key: u128) -> &mut u32 {
        let at = key as usize & (self.heads.len() - 1);
        &mut self.heads[at]
    }

    /// The first of the chain.
    pub fn first(&self, key: u128) -> u32 {
        self.heads[key as usize & (self.heads.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_walked_in_order() {
        let mut marks = Marks::new(200);
        for index in [3, 64, 199, 64] {
            marks.put(index, true);
        }
        marks.put(5, false);
        assert_eq!(marks.count(), 3);
        assert!(marks.all().eq([3, 64, 199]));
        marks.put(64, false);
        assert_eq!(marks.next_from(4), Some(199));
        assert_eq!(marks.next_from(200), None);
    }
}
