//! A set of small numbers over words that the caller owns, walked in order.
#![forbid(unsafe_code)]

/// How many words hold a set over `0..bits`.
pub const fn words(bits: usize) -> usize {
    bits.div_ceil(64)
}

/// A set over borrowed words; bit `i % 64` of word `i / 64` says that `i` is in.
#[derive(Debug)]
pub struct BitSet<'m> {
    words: &'m mut [u64],
    count: usize,
}

impl<'m> BitSet<'m> {
    /// Takes `words`, whose bits are the members already in.
    pub fn new(words: &'m mut [u64]) -> BitSet<'m> {
        let count = words.iter().map(|word| word.count_ones() as usize).sum();
        BitSet { words, count }
    }

    /// Whether nothing is in. *Cost*: one compare.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `index` is in.
    #[inline]
    pub fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    /// Puts `index` in. Without a hint to inline it: some thirty places call it, and a build for
    /// size keeps it as a function.
    pub fn insert(&mut self, index: usize) {
        let word = &mut self.words[index / 64];
        let bit = 1u64 << (index % 64);
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Takes `index` out.
    pub fn remove(&mut self, index: usize) {
        let word = &mut self.words[index / 64];
        let bit = 1u64 << (index % 64);
        self.count -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    /// The first member at or after `from`.
    pub fn next_from(&self, from: usize) -> Option<usize> {
        let mut word_index = from / 64;
        let mut word = *self.words.get(word_index)? & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                return Some(word_index * 64 + word.trailing_zeros() as usize);
            }
            word_index += 1;
            word = *self.words.get(word_index)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_order_and_leave() {
        let mut words = [0u64; 3];
        let mut set = BitSet::new(&mut words);
        for index in [130, 0, 63, 64] {
            set.insert(index);
        }
        set.insert(64);
        let mut seen = [0usize; 4];
        let (mut from, mut n) = (0, 0);
        while let Some(index) = set.next_from(from) {
            seen[n] = index;
            n += 1;
            from = index + 1;
        }
        assert_eq!(seen, [0, 63, 64, 130]);
        for index in seen {
            set.remove(index);
        }
        assert!(set.is_empty());
        assert_eq!(set.next_from(0), None);
    }
}
