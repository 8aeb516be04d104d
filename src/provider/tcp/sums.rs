//! Sums behind headers and payloads (W9.1), where both sides have agreed on them: CRC-32C, which
//! processors compute by themselves.

use crate::provider::touch;
pub use crate::wire::stream::SUM_BYTES;

/// What is summed at a time: it stays in the nearest cache.
const PART_BYTES: usize = 4 << 10;

/// The sum of bytes of our own.
pub fn of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Goes on with a sum, 0 at first, over memory that others may touch.
///
/// # Safety
/// - the memory is valid for reads.
pub unsafe fn of_memory(mut sum: u32, address: u64, length: u64) -> u32 {
    let mut part = [0; PART_BYTES];
    let mut at = 0;
    while at < length {
        let count = (length - at).min(PART_BYTES as u64) as usize;
        // SAFETY: inside the memory that the caller vouches for.
        unsafe { touch::copy_in(address + at, &mut part[..count]) };
        sum = crc32c::crc32c_append(sum, &part[..count]);
        at += count as u64;
    }
    sum
}

/// The sum that bytes begin with; `None`: there are too few.
pub fn read(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<SUM_BYTES>().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {

    use super::*;

    /// RFC 3720, B.4.
    #[test]
    fn sum_is_that_of_iscsi() {
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        let bytes: std::vec::Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        // SAFETY: bytes of ours.
        let sum = unsafe { of_memory(0, bytes.as_ptr() as u64, bytes.len() as u64) };
        assert_eq!(sum, of(&bytes));
    }
}
