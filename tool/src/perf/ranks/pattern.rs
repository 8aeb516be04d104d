//! Which ranks talk to each other when more than two processes measure.
#![forbid(unsafe_code)]

/// A pattern.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Pattern {
    /// Ranks 0 and 1, 2 and 3, and so on, each pair for itself.
    Pair,
    /// Each rank sends to the next and receives from the one before.
    Ring,
    /// Each rank sends to, and receives from, all others.
    AllToAll,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] = [Pattern::Pair, Pattern::Ring, Pattern::AllToAll];

    /// As it is typed and printed.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Pair => "pair",
            Pattern::Ring => "ring",
            Pattern::AllToAll => "all-to-all",
        }
    }

    /// Whether so many ranks can form it.
    pub fn takes(self, size: u32) -> bool {
        match self {
            Pattern::Pair => size.is_multiple_of(2),
            Pattern::Ring | Pattern::AllToAll => true,
        }
    }

    /// The ranks that a rank connects to. Where two send to each other, one connection serves both
    /// directions, and the higher rank makes it; a ring has one connection from each to the next.
    pub fn targets(self, rank: u32, size: u32) -> Vec<u32> {
        match self {
            Pattern::Pair if rank % 2 == 1 => vec![rank - 1],
            Pattern::Pair => vec![],
            Pattern::Ring => vec![(rank + 1) % size],
            Pattern::AllToAll => (0..rank).collect(),
        }
    }

    /// The ranks that connect to a rank.
    pub fn comers(self, rank: u32, size: u32) -> Vec<u32> {
        (0..size).filter(|other| self.targets(*other, size).contains(&rank)).collect()
    }

    /// Most connections of one rank.
    pub fn connections(self, size: u32) -> u32 {
        match self {
            Pattern::Pair => 1,
            Pattern::Ring => 2,
            Pattern::AllToAll => size - 1,
        }
    }

    /// How many ranks a rank sends to at once, at most.
    pub fn fan(self, size: u32) -> u32 {
        match self {
            Pattern::Pair | Pattern::Ring => 1,
            Pattern::AllToAll => size - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_one_maker_and_one_taker() {
        for pattern in Pattern::ALL {
            for size in (2..20).filter(|size| pattern.takes(*size)) {
                let (mut made, mut taken) = (0, 0);
                for rank in 0..size {
                    let (to, from) = (pattern.targets(rank, size), pattern.comers(rank, size));
                    assert!(!to.contains(&rank), "{pattern:?} of {size}");
                    assert!(to.len() + from.len() <= pattern.connections(size) as usize);
                    (made, taken) = (made + to.len(), taken + from.len());
                }
                assert_eq!(made, taken, "{pattern:?} of {size}");
            }
        }
    }

    #[test]
    fn all_to_all_has_a_connection_for_each_two() {
        let made = (0..64).map(|rank| Pattern::AllToAll.targets(rank, 64).len()).sum::<usize>();
        assert_eq!(made, 64 * 63 / 2);
        assert_eq!(Pattern::Ring.targets(7, 8), [0]);
        assert!(!Pattern::Pair.takes(3));
    }
}
