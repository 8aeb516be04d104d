//! Quantities as people write them: `64K`, `8..1M`, `1.5 GiB`.
#![forbid(unsafe_code)]

use super::Failure;

/// Most sizes that a list may have: as many measurements are made.
const SIZES_MAX: usize = 64;

/// Reads a number of bytes: digits, then nothing, `K`, `M` or `G` (powers of 1024).
pub fn bytes_parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

/// Reads a list of sizes: `8,1K,64K` or a range of doublings `8..1M`, or both mixed.
pub fn sizes_parse(text: &str, max: u64) -> Result<Vec<u64>, Failure> {
    let mut sizes = Vec::new();
    let wrong = |part: &str| format!("`{part}` is not a size such as 8, 64K or 1M");
    for part in text.split(',') {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let first = bytes_parse(first).ok_or_else(|| wrong(part))?;
        let last = bytes_parse(last).ok_or_else(|| wrong(part))?;
        if last > max {
            return Err(format!("{part} is over {}", bytes_short(max)));
        }
        if first > last {
            return Err(format!("the range {part} goes downwards"));
        }
        let mut size = first;
        loop {
            sizes.push(size);
            if size == last || sizes.len() > SIZES_MAX {
                break;
            }
            size = size.max(1).saturating_mul(2).min(last);
        }
    }
    if sizes.len() > SIZES_MAX {
        return Err(format!("more than {SIZES_MAX} sizes"));
    }
    Ok(sizes)
}

/// Bytes in the shortest exact form: `8`, `64K`, `1000000`.
pub fn bytes_short(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Bytes rounded for people: `1.9 MiB`.
pub fn bytes_long(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift != 0 {
            return format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes} B")
}

/// A number with about four digits that count.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A whole number, in room for the longest: for who may not allocate.
pub fn decimal(mut value: u64, room: &mut [u8; 20]) -> &str {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    core::str::from_utf8(&room[at..]).unwrap_or_default()
}

/// Bytes as text: two digits for each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`hex`].
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if !text.is_ascii() || text.len() != 2 * N {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosstie::wire::handle::HANDLE_BYTES;

    #[test]
    fn sizes_are_read_as_lists_and_ranges() {
        let sizes = |text| sizes_parse(text, 1 << 30);
        assert_eq!(sizes("8,1K,64k").unwrap(), [8, 1024, 65_536]);
        assert_eq!(sizes("0..4").unwrap(), [0, 2, 4]);
        assert_eq!(sizes("8..60").unwrap(), [8, 16, 32, 60]);
        for wrong in ["", "8x", "-1", "64..8", "2G", "99999999999999999999", "8,,16"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn handle_survives_its_text() {
        let handle: [u8; HANDLE_BYTES] = core::array::from_fn(|at| at as u8);
        assert_eq!(unhex(&hex(&handle)), Some(handle));
        assert_eq!(unhex::<HANDLE_BYTES>("zz"), None);
    }

    #[test]
    fn decimal_is_what_the_standard_library_writes() {
        for value in [0, 7, 10, 4096, u64::MAX] {
            assert_eq!(decimal(value, &mut [0; 20]), value.to_string());
        }
    }

    #[test]
    fn numbers_keep_the_digits_that_count() {
        assert_eq!(bytes_short(65_536), "64K");
        assert_eq!(bytes_short(1_000_000), "1000000");
        assert_eq!(bytes_short(0), "0");
        assert_eq!(bytes_long(1_992_294), "1.9 MiB");
        assert_eq!(number(0.3123), "0.312");
        assert_eq!(number(17.456), "17.46");
        assert_eq!(number(2.0), "2");
    }
}
