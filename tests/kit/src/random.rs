//! Chance for simulator, fault injector and tests: seeded, small, the same on every machine.
#![forbid(unsafe_code)]

/// A sequence of numbers that its seed determines.
///
/// *Source*: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one word of state, every seed is good.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Random(u64);

/// What a probability counts in: `Chance(65536)` always happens, `Chance(0)` never.
pub const CERTAIN: u32 = 1 << 16;

impl Random {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero when `bound` is zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // The high half of a product is uniform enough for dice (bias below 2^-32 per draw).
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// True `chance` times in [`CERTAIN`]. Draws nothing when `chance` is zero, so that a fault
    /// which is switched off does not disturb the sequence of the others.
    pub const fn chance(&mut self, chance: u32) -> bool {
        chance != 0 && (self.next() >> 48) < chance as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_are_those_of_the_paper() {
        let mut random = Random::new(1234567);
        assert_eq!(random.next(), 6457827717110365317);
        assert_eq!(random.next(), 3203168211198807973);
    }

    #[test]
    fn chance_keeps_its_frequency() {
        let mut random = Random::new(7);
        let hits = (0..65_536).filter(|_| random.chance(CERTAIN / 4)).count();
        assert!((15_500..17_300).contains(&hits), "{hits}");
        assert!(!random.chance(0) && random.chance(CERTAIN));
    }
}
