//! The numbers that the `StreamHello`s of one link carry, so that none is taken twice (W8.6).
#![forbid(unsafe_code)]

/// Numbers that are remembered, below and with the highest one: more than the hellos that cross
/// when hundreds of connections are asked for at once. Who falls behind asks again.
pub const ASKS_REMEMBERED: u64 = 1024;

const WORDS: usize = ASKS_REMEMBERED as usize / 64;
const _: () = assert!(WORDS * 64 == ASKS_REMEMBERED as usize, "whole words");

/// What a number is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Ask {
    /// It has not come before.
    Fresh,
    /// It has.
    Seen,
    /// Too low to be remembered, or none.
    Late,
}

/// The highest number given or taken, and which of those before it were.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asks {
    highest: u64,
    /// A bit per number, at its place modulo [`ASKS_REMEMBERED`].
    seen: [u64; WORDS],
}

impl Asks {
    /// No number yet.
    pub const NONE: Asks = Asks { highest: 0, seen: [0; WORDS] };

    /// The next number of ours.
    pub fn next(&mut self) -> u64 {
        self.highest += 1;
        self.highest
    }

    /// Takes a number of the peer's.
    pub fn take(&mut self, number: u64) -> Ask {
        if number == 0 || self.highest.saturating_sub(number) >= ASKS_REMEMBERED {
            return Ask::Late;
        }
        let passed = number.saturating_sub(self.highest);
        if passed >= ASKS_REMEMBERED {
            self.seen = [0; WORDS];
        } else {
            for between in number - passed..number {
                let (word, bit) = place(between + 1);
                self.seen[word] &= !bit;
            }
        }
        let (word, bit) = place(number);
        let seen = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        self.highest = self.highest.max(number);
        if seen { Ask::Seen } else { Ask::Fresh }
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % ASKS_REMEMBERED;
    (at as usize / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_is_fresh_once_in_whatever_order() {
        // steps back and forth from a fixed seed, against a set that forgets nothing
        let (mut asks, mut oracle, mut highest) = (Asks::NONE, BTreeSet::new(), 0u64);
        let mut random = 7u64;
        for _ in 0..200_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let span = [4, 100, 2 * ASKS_REMEMBERED][(random >> 40) as usize % 3];
            let number = (highest + random % span).saturating_sub(span * 3 / 4);
            let expected = match number {
                0 => Ask::Late,
                number if number + ASKS_REMEMBERED <= highest => Ask::Late,
                number if oracle.insert(number) => Ask::Fresh,
                _ => Ask::Seen,
            };
            assert_eq!(asks.take(number), expected, "{number} after {highest}");
            highest = highest.max(number);
        }
        assert!(oracle.len() > 10_000);
    }

    #[test]
    fn the_highest_numbers_are_taken_once_too() {
        let mut asks = Asks::NONE;
        for number in [u64::MAX, u64::MAX - 1, u64::MAX - ASKS_REMEMBERED + 1] {
            assert_eq!((asks.take(number), asks.take(number)), (Ask::Fresh, Ask::Seen));
        }
        assert_eq!(asks.take(u64::MAX - ASKS_REMEMBERED), Ask::Late);
        assert_eq!(asks.take(1), Ask::Late);
    }

    #[test]
    fn numbers_of_ours_grow_from_one() {
        let mut asks = Asks::NONE;
        assert_eq!([asks.next(), asks.next(), asks.next()], [1, 2, 3]);
    }
}
