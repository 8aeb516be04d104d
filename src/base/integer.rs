//! Whole numbers, as people write them.
#![forbid(unsafe_code)]

use core::num::IntErrorKind;

/// The number that a text is, to this base; of one too long to be kept, the nearest that can be, so
/// that it is out of whatever range its reader has. `None`: it is no number.
pub fn nearest(text: &str, base: u32) -> Option<i128> {
    i128::from_str_radix(text, base).map_or_else(
        |error| match error.kind() {
            IntErrorKind::PosOverflow => Some(i128::MAX),
            IntErrorKind::NegOverflow => Some(i128::MIN),
            _ => None,
        },
        Some,
    )
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn what_is_too_long_is_out_of_range_and_no_word_of_another_kind() {
        assert_eq!((nearest("17", 10), nearest("-ff", 16)), (Some(17), Some(-255)));
        let long = "9999999999999999999999999999999999999999999";
        assert_eq!(nearest(long, 10), Some(i128::MAX));
        assert_eq!(nearest(&std::format!("-{long}"), 10), Some(i128::MIN));
        assert_eq!((nearest("", 10), nearest("1 GiB", 10)), (None, None));
    }
}
