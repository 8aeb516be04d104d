//! How a pushed message is cut into stripes: a pure function, applied once per message.
#![forbid(unsafe_code)]

use crate::base::units::Bytes;
use crate::wire::STRIPES_MAX;

/// Stripes start on multiples of this, so that no two rails write one pair of cache lines.
pub const STRIPE_ALIGN: u64 = 128;

/// The cut of one message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Cut {
    /// Stripes, 1 to [`STRIPES_MAX`].
    pub count: u32,
    /// Length of each but the last; a multiple of [`STRIPE_ALIGN`] when there are several.
    pub stripe_bytes: u64,
}

/// Cuts `length` bytes into stripes of at least `stripe_min`, none longer than `transfer_max`.
/// `None` when that takes more than [`STRIPES_MAX`].
pub const fn cut(length: u64, stripe_min: Bytes, transfer_max: Bytes) -> Option<Cut> {
    let evenly = length.div_ceil(STRIPES_MAX as u64);
    let wanted = if evenly > stripe_min.0 { evenly } else { stripe_min.0 };
    let mut stripe_bytes = wanted.div_ceil(STRIPE_ALIGN) * STRIPE_ALIGN;
    if stripe_bytes > transfer_max.0 {
        stripe_bytes = transfer_max.0 / STRIPE_ALIGN * STRIPE_ALIGN;
    }
    if stripe_bytes == 0 {
        return None;
    }
    let count = if length == 0 { 1 } else { length.div_ceil(stripe_bytes) };
    if count > STRIPES_MAX as u64 {
        return None;
    }
    Some(Cut { count: count as u32, stripe_bytes })
}

impl Cut {
    /// Offset and length of one stripe of a message of `length` bytes.
    pub const fn stripe(&self, index: u32, length: u64) -> (u64, u64) {
        let start = index as u64 * self.stripe_bytes;
        let left = length.saturating_sub(start);
        (start, if left < self.stripe_bytes { left } else { self.stripe_bytes })
    }

    /// Bits of all stripes.
    pub const fn all(&self) -> u64 {
        if self.count == 64 { u64::MAX } else { (1 << self.count) - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_the_message_once_aligned_and_bounded() {
        let lengths = [0, 1, 127, 128, 129, 4096, 65_537, 1 << 20, (1 << 30) + 3];
        for length in lengths {
            for min in [1, 128, 4096, 131_072] {
                let cut = cut(length, Bytes(min), Bytes::mib(64)).unwrap();
                assert!(cut.count >= 1 && cut.count <= STRIPES_MAX);
                let mut next = 0;
                for index in 0..cut.count {
                    let (start, bytes) = cut.stripe(index, length);
                    assert_eq!(start, next);
                    assert_eq!(start % STRIPE_ALIGN, 0);
                    assert!(bytes > 0 || length == 0);
                    next = start + bytes;
                }
                assert_eq!(next, length);
            }
        }
        assert_eq!(cut(1 << 40, Bytes(128), Bytes::mib(1)), None);
    }
}
