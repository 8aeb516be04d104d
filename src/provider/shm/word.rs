//! Atomic words in memory that two processes share, and the only plain copies out of and into it.
//!
//! Such memory is never behind a reference, and loom cannot stand in for it, so this file names
//! the atomics of `core` where the rest of the library names those of `base::sync`.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use core::sync::atomic::{compiler_fence, fence};

/// The word at `at`.
///
/// # Safety
/// - `at` is aligned and valid for reads and writes for as long as the result is used.
#[inline(always)]
pub unsafe fn u64_at<'a>(at: *mut u8) -> &'a AtomicU64 {
    debug_assert_eq!(at as usize % 8, 0);
    // SAFETY: aligned and valid by this function's contract.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// The half word at `at`.
///
/// # Safety
/// - `at` is aligned and valid for reads and writes for as long as the result is used.
#[inline(always)]
pub unsafe fn u32_at<'a>(at: *mut u8) -> &'a AtomicU32 {
    debug_assert_eq!(at as usize % 4, 0);
    // SAFETY: aligned and valid by this function's contract.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

/// Copies up to 24 bytes with a few overlapping moves and no call.
///
/// # Safety
/// - `from` is valid for reads and `to` for writes of `length` bytes; they do not overlap;
/// - `length` is at most 24.
#[inline(always)]
pub unsafe fn copy_tiny(from: *const u8, to: *mut u8, length: usize) {
    debug_assert!(length <= 24);
    // SAFETY: each arm moves words that lie inside `length` bytes of both sides.
    unsafe {
        match length {
            8 => move_as::<u64>(from, to, 0),
            17..=24 => {
                move_as::<u64>(from, to, 0);
                move_as::<u64>(from, to, 8);
                move_as::<u64>(from, to, length - 8);
            }
            9..=16 => {
                move_as::<u64>(from, to, 0);
                move_as::<u64>(from, to, length - 8);
            }
            4..=7 => {
                move_as::<u32>(from, to, 0);
                move_as::<u32>(from, to, length - 4);
            }
            0 => {}
            _ => {
                move_as::<u8>(from, to, 0);
                move_as::<u8>(from, to, length / 2);
                move_as::<u8>(from, to, length - 1);
            }
        }
    }
}

/// # Safety
/// - a `T` at `offset` lies inside both sides.
#[inline(always)]
unsafe fn move_as<T: Copy>(from: *const u8, to: *mut u8, offset: usize) {
    // SAFETY: inside by this function's contract; no alignment is assumed.
    unsafe {
        to.add(offset).cast::<T>().write_unaligned(from.add(offset).cast::<T>().read_unaligned());
    }
}

/// What a relaxed store or load is called here.
pub const RELAXED: Ordering = Ordering::Relaxed;
/// What an acquire load is called here.
pub const ACQUIRE: Ordering = Ordering::Acquire;
/// What a release store is called here.
pub const RELEASE: Ordering = Ordering::Release;
/// What a full fence is called here.
pub const FULL: Ordering = Ordering::SeqCst;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_copies_move_exactly_their_length() {
        let from: [u8; 24] = core::array::from_fn(|i| i as u8 + 1);
        for length in 0..=24 {
            let mut to = [0u8; 26];
            // SAFETY: both arrays are long enough.
            unsafe { copy_tiny(from.as_ptr(), to[1..].as_mut_ptr(), length) };
            assert_eq!(to[1..=length], from[..length]);
            assert_eq!(to[0], 0);
            assert!(to[length + 1..].iter().all(|b| *b == 0));
        }
    }
}
