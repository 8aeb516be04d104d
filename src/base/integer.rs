//! Whole numbers, as people write them, and what numbers have in common.
#![forbid(unsafe_code)]

use core::net::IpAddr;

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

/// The number that a text begins with, as C reads it (`strtoll` to the base 0): behind a sign,
/// hexadecimal where it begins with `0x`, octal with `0`, else decimal; and what follows it. Of one
/// too long to be kept, the nearest that can be. `None`: it begins with no number.
pub fn of_c(text: &str) -> Option<(i128, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let hex = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let (digits, base) = match hex.filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit())) {
        Some(hex) => (hex, 16),
        None if unsigned.starts_with('0') => (unsigned, 8),
        None => (unsigned, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    let value = nearest(digits, base)?;
    Some((if text.starts_with('-') { -value } else { value }, rest))
}

/// Bits that two addresses have in common at their front; `None`: of different families.
pub fn bits_common(a: IpAddr, b: IpAddr) -> Option<u32> {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_is_too_long_is_out_of_range_and_no_word_of_another_kind() {
        assert_eq!((nearest("17", 10), nearest("-ff", 16)), (Some(17), Some(-255)));
        let long = "9999999999999999999999999999999999999999999";
        assert_eq!(nearest(long, 10), Some(i128::MAX));
        assert_eq!(nearest(&std::format!("-{long}"), 10), Some(i128::MIN));
        assert_eq!((nearest("", 10), nearest("1 GiB", 10)), (None, None));
    }

    #[test]
    fn numbers_of_c_have_the_base_of_their_prefix_and_end_where_it_ends() {
        for (text, number, rest) in [
            ("22", 22, ""),
            ("010", 8, ""),
            ("0x10", 16, ""),
            ("-0X1f", -31, ""),
            ("+7", 7, ""),
            ("0", 0, ""),
            ("08", 0, "8"),
            ("0x", 0, "x"),
            ("22 ms", 22, " ms"),
            ("-2,", -2, ","),
        ] {
            assert_eq!(of_c(text), Some((number, rest)), "{text}");
        }
        for text in ["", "-", "yes", "--1", "x10", "+-1"] {
            assert_eq!(of_c(text), None, "{text}");
        }
        let long = "-9999999999999999999999999999999999999999999";
        assert_eq!(of_c(long), Some((-i128::MAX, "")));
    }
}
