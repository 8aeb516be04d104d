//! The only places where a provider that copies with the CPU touches memory of an op.

use crate::base::sync::{AtomicU64, Ordering};

/// Bytes of the words that a short copy consists of.
const WORD: usize = size_of::<u64>();

/// Moves `length` bytes between two addresses; they may overlap.
///
/// # Safety
/// - both ranges are valid for as long as the call takes, and `to` may be written.
#[inline]
pub unsafe fn copy(from: u64, to: u64, length: u64) {
    // SAFETY: the caller vouches for both ranges.
    unsafe { copy_bytes(from as *const u8, to as *mut u8, length as usize) };
}

/// A copy that needs no call when it is one or two words: then the call would be most of it.
///
/// # Safety
/// - as [`copy`].
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    if !(WORD..=2 * WORD).contains(&length) {
        // SAFETY: the caller vouches for both ranges.
        unsafe { core::ptr::copy(from, to, length) };
        return;
    }
    let last = length - WORD;
    // SAFETY: both words lie inside the ranges that the caller vouches for. They may overlap, and
    // so may the ranges: all is read before anything is written.
    unsafe {
        let first_word = from.cast::<u64>().read_unaligned();
        let last_word = from.add(last).cast::<u64>().read_unaligned();
        to.cast::<u64>().write_unaligned(first_word);
        to.add(last).cast::<u64>().write_unaligned(last_word);
    }
}

/// Fills `to` from an address.
///
/// # Safety
/// - `from` is valid for reads of as many bytes, and does not overlap `to`.
#[inline]
pub unsafe fn copy_in(from: u64, to: &mut [u8]) {
    // SAFETY: the caller vouches for `from`; a borrowed slice is nobody else's.
    unsafe { copy_bytes(from as *const u8, to.as_mut_ptr(), to.len()) };
}

/// Writes `from` to an address.
///
/// # Safety
/// - `to` is valid for writes of as many bytes.
#[inline]
pub unsafe fn copy_out(from: &[u8], to: u64) {
    // SAFETY: the caller vouches for `to`.
    unsafe { copy_bytes(from.as_ptr(), to as *mut u8, from.len()) };
}

/// Adds to the 64-bit word at `to`, which other threads may be watching.
///
/// # Safety
/// - `to` is 8-byte aligned and valid for reads and writes.
#[inline]
pub unsafe fn add(to: u64, value: u64) {
    // SAFETY: aligned and valid, as the caller vouches.
    let word = unsafe { AtomicU64::from_ptr(to as *mut u64) };
    // release: whoever sees the sum sees what this thread wrote before it
    word.fetch_add(value, Ordering::Release);
}
