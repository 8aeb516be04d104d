//! Planted faults, each a mistake that windows could have been written with: the simulator shows
//! that its oracle finds them (`tool/src/sim/one_sided`). In a build without the feature `proof`
//! the question whether one is planted is the constant `false`.
#![forbid(unsafe_code)]

/// A fault.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Mutant {
    /// The owner takes records with a fence in before the bytes ahead of them have come.
    FenceIgnored,
    /// The owner adds a put's signal when its record comes, before its bytes have.
    SignalAtRecord,
    /// The owner adds to a word although it has refused what the add needs.
    RefusalIgnored,
}
