//! W8.15: what the two ends of a local socket say before either is let in.

use super::wire_struct;

/// The version of what peers of one host say to each other, which has no bearing on the wire
/// between hosts.
pub const LOCAL_VERSION: u32 = 3;

wire_struct! {
    /// W8.15. Body of `Knock`, `Challenge`, `Prove` and `Proved`.
    DoorHello [96] {
        /// [`LOCAL_VERSION`] of the writer; in `Knock` and `Challenge`.
        version: u32 = 0,
        /// In `Prove`: the listener that is meant.
        door: u64 = 8,
        /// In `Knock` and `Challenge`: a random number of the writer.
        nonce: u128 = 16,
        /// In `Prove` and `Proved`: that the writer holds the handle.
        proof_low: u128 = 32,
        /// Continued.
        proof_high: u128 = 48,
        /// Likewise: that it has the shared key; 0: it has none.
        key_low: u128 = 64,
        /// Continued.
        key_high: u128 = 80,
    }
}
