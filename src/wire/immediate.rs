//! W6: the immediate of a stripe: token and stripe number.

use super::{GROUP_MAX, STRIPES_MAX};
use crate::base::seq::{Seq, WINDOW_MAX};

const STRIPE_BITS: u32 = 6;
const INDEX_BITS: u32 = 3;
/// Bits of the group number that a token carries.
pub const GROUP_BITS: u32 = 32 - STRIPE_BITS - INDEX_BITS;

const _: () = assert!(1 << STRIPE_BITS == STRIPES_MAX && 1 << INDEX_BITS == GROUP_MAX);
const _: () = assert!(1u32 << GROUP_BITS > 2 * WINDOW_MAX, "tokens must outlive the window");

/// W6. Names one receive among those outstanding: low bits of the group number, and position.
pub const fn token(group: Seq, index: u8) -> u32 {
    (group.0 & ((1 << GROUP_BITS) - 1)) << INDEX_BITS | index as u32
}

/// The immediate of stripe `stripe` of the message bound to `token`.
pub const fn encode(token: u32, stripe: u32) -> u32 {
    token << STRIPE_BITS | stripe
}

/// Token and stripe of an immediate. Every value is one.
pub const fn decode(immediate: u32) -> (u32, u32) {
    (immediate >> STRIPE_BITS, immediate & (STRIPES_MAX - 1))
}

/// Group and position that a token means, given the oldest outstanding group; a token of no group
/// within the window is `None`.
pub const fn resolve(token: u32, oldest: Seq, window: u32) -> Option<(Seq, u8)> {
    let mask = (1u32 << GROUP_BITS) - 1;
    let ahead = (token >> INDEX_BITS).wrapping_sub(oldest.0) & mask;
    if ahead >= window {
        return None;
    }
    Some((oldest.plus(ahead), (token & (GROUP_MAX as u32 - 1)) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_finds_its_group_across_both_wraps() {
        for oldest in [Seq(0), Seq((1 << GROUP_BITS) - 2), Seq(u32::MAX - 3)] {
            for ahead in [0, 1, 5, 31] {
                for index in [0, 7] {
                    let (t, stripe) = decode(encode(token(oldest.plus(ahead), index), 63));
                    assert_eq!(stripe, 63);
                    assert_eq!(resolve(t, oldest, 32), Some((oldest.plus(ahead), index)));
                }
            }
            assert_eq!(resolve(token(oldest.plus(32), 0), oldest, 32), None);
            assert_eq!(resolve(token(Seq(oldest.0.wrapping_sub(1)), 0), oldest, 32), None);
        }
    }
}
