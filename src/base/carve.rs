//! One block of the caller's memory, cut into typed slices.
//!
//! The size is a sum of [`bytes_for`] terms, so it is known before anything is opened, and the
//! same sum stands in the C header as a macro. Every slice starts and ends on a cache line, so
//! that the order of the cuts does not change the sum.

use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use core::slice;

/// Alignment of a block and of every slice in it: one cache line.
pub const BLOCK_ALIGN: usize = 64;

/// Types for which zeroed memory is a value and which need no drop.
///
/// # Safety
/// - all-zero bytes must be a valid value;
/// - the type must own nothing, so that forgetting it leaks nothing.
pub unsafe trait Zeroable: Sized {
    /// The value of zeroed memory.
    #[inline]
    fn zeroed() -> Self {
        // SAFETY: zero is a value (the trait's contract).
        unsafe { core::mem::zeroed() }
    }
}

macro_rules! zeroable {
    ($($t:ty),* $(,)?) => {
        // SAFETY: integers and atomics of integers: zero is a value and nothing is owned.
        $(unsafe impl Zeroable for $t {})*
    };
}

zeroable!(u8, u16, u32, u64, i32, crate::base::seq::Seq, crate::base::seq::SeqWindow);
#[cfg(not(loom))]
zeroable!(
    crate::base::sync::AtomicU8,
    crate::base::sync::AtomicU32,
    crate::base::sync::AtomicU64,
    crate::base::ranges::CountedSlot,
    crate::base::regions::RegionSlot,
    crate::base::ring::Indices,
);

// SAFETY: a cell may hold nothing, and drops nothing.
#[cfg(not(loom))]
unsafe impl<T: Copy> Zeroable for crate::base::sync::Cell<T> {}

// SAFETY: an array of zeroable values is zeroable.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

// SAFETY: a wrapper that only adds alignment.
unsafe impl<T: Zeroable> Zeroable for crate::base::sync::CachePadded<T> {}

/// `n` rounded up to whole cache lines.
pub const fn lines(n: usize) -> usize {
    n.div_ceil(BLOCK_ALIGN) * BLOCK_ALIGN
}

/// What a slice of `count` values of `T` takes out of a block.
pub const fn bytes_for<T>(count: usize) -> usize {
    lines(size_of::<T>() * count)
}

/// The block was smaller than the sum of what was cut from it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct BlockTooSmall;

/// Memory of a block that is reached through raw pointers only, because a device or another
/// process may write it.
#[derive(Copy, Clone, Debug)]
pub struct RawSlice {
    /// First byte; aligned to [`BLOCK_ALIGN`].
    pub start: *mut u8,
    /// Length in bytes.
    pub length: usize,
}

/// Bytes that are looked at, and zeroed where one of them is not zero: a page of most machines.
const ZEROED_BYTES: usize = 4096;

/// Makes a part of a block zero.
///
/// # Safety
/// - `start` is aligned to [`BLOCK_ALIGN`] and valid for reads and writes of `bytes` bytes, and
///   nobody else touches them.
unsafe fn zero(start: *mut u8, bytes: usize) {
    let words = bytes / size_of::<u64>();
    // SAFETY: by this function's contract; volatile, as the memory may never have been written.
    let is_zero = |word: usize| unsafe { start.cast::<u64>().add(word).read_volatile() } == 0;
    // miri takes half a minute to look at the block of one endpoint
    if cfg!(miri) || !bytes.is_multiple_of(size_of::<u64>()) || !(0..words).all(is_zero) {
        // SAFETY: by this function's contract.
        unsafe { start.write_bytes(0, bytes) };
    }
}

/// Cuts a block from front to back.
#[derive(Debug)]
pub struct Carver<'m> {
    next: *mut u8,
    left: usize,
    block: PhantomData<&'m mut [u8]>,
}

impl<'m> Carver<'m> {
    /// Takes a block and zeroes it. Parts that read as zero, as memory that nobody has used yet
    /// does, are not written: they need no page of their own.
    ///
    /// # Safety
    /// - `start` is aligned to [`BLOCK_ALIGN`] and valid for reads and writes of `length` bytes
    ///   for all of `'m`;
    /// - nobody else touches the block during `'m`.
    pub unsafe fn new(start: *mut u8, length: usize) -> Carver<'m> {
        debug_assert_eq!(start as usize % BLOCK_ALIGN, 0);
        for at in (0..length).step_by(ZEROED_BYTES) {
            let bytes = ZEROED_BYTES.min(length - at);
            // SAFETY: inside the block, which is this function's alone.
            unsafe { zero(start.add(at), bytes) };
        }
        Carver { next: start, left: length, block: PhantomData }
    }

    /// Takes a block that reads as zero, such as fresh pages, without touching it.
    ///
    /// # Safety
    /// - as [`Carver::new`];
    /// - all of its bytes are zero.
    pub const unsafe fn over_zeroed(start: *mut u8, length: usize) -> Carver<'m> {
        Carver { next: start, left: length, block: PhantomData }
    }

    /// Cuts `count` zeroed values.
    pub fn slice<T: Zeroable>(&mut self, count: usize) -> Result<&'m mut [T], BlockTooSmall> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGN) };
        let raw = self.take(size_of::<T>() * count)?;
        // SAFETY: `take` handed out this part of the block once; it is zeroed (`new`), aligned to
        // a line, and zero is a value of `T` (Zeroable). `'m` is the life of the block.
        Ok(unsafe { slice::from_raw_parts_mut(raw.start.cast(), count) })
    }

    /// Cuts `count` copies of `value`.
    pub fn filled<T: Copy>(
        &mut self,
        count: usize,
        value: T,
    ) -> Result<&'m mut [T], BlockTooSmall> {
        self.filled_with(count, || value)
    }

    /// Cuts `count` values, each of them made by `value`. They are never dropped.
    pub fn filled_with<T>(
        &mut self,
        count: usize,
        mut value: impl FnMut() -> T,
    ) -> Result<&'m mut [T], BlockTooSmall> {
        const {
            assert!(align_of::<T>() <= BLOCK_ALIGN);
            assert!(!core::mem::needs_drop::<T>());
        }
        let raw = self.take(size_of::<T>() * count)?;
        let start: *mut T = raw.start.cast();
        for index in 0..count {
            // SAFETY: `take` handed out room for `count` values once, aligned to a line.
            unsafe { start.add(index).write(value()) };
        }
        // SAFETY: as above, and every value has just been written. `'m` is the life of the block.
        Ok(unsafe { slice::from_raw_parts_mut(start, count) })
    }

    /// Cuts one zeroed value.
    pub fn value<T: Zeroable>(&mut self) -> Result<&'m mut T, BlockTooSmall> {
        Ok(&mut self.slice(1)?[0])
    }

    /// Cuts `length` bytes that will be reached through raw pointers only.
    pub fn raw(&mut self, length: usize) -> Result<RawSlice, BlockTooSmall> {
        self.take(length)
    }

    /// Bytes not cut yet.
    pub fn left(&self) -> usize {
        self.left
    }

    fn take(&mut self, length: usize) -> Result<RawSlice, BlockTooSmall> {
        let whole = lines(length);
        if whole > self.left {
            return Err(BlockTooSmall);
        }
        let start = self.next;
        // SAFETY: `whole` bytes are left in the block, so the sum stays inside or one past it.
        self.next = unsafe { start.add(whole) };
        self.left -= whole;
        Ok(RawSlice { start, length })
    }
}

/// A block for tests and tools: aligned, on the heap, freed at the end.
#[cfg(any(test, feature = "std"))]
pub mod heap {
    use super::{BLOCK_ALIGN, Carver};
    use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
    use std::vec::Vec;

    #[derive(Debug)]
    #[repr(align(64))]
    struct Line(#[allow(dead_code)] [u8; BLOCK_ALIGN]);

    /// Heap memory with the alignment of a block.
    #[derive(Debug)]
    pub struct HeapBlock(Vec<Line>);

    impl HeapBlock {
        /// At least `length` bytes, zeroed; of a long block, memory that nobody has touched yet.
        pub fn new(length: usize) -> HeapBlock {
            let lines = length.div_ceil(BLOCK_ALIGN);
            if lines == 0 {
                return HeapBlock(Vec::new());
            }
            let layout = Layout::array::<Line>(lines).expect("less than the address space");
            // SAFETY: the layout is not of zero bytes.
            let start: *mut Line = unsafe { alloc_zeroed(layout) }.cast();
            if start.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: allocated just now as a vector of so many lines is; zero is a value of bytes.
            HeapBlock(unsafe { Vec::from_raw_parts(start, lines, lines) })
        }

        /// First byte.
        pub fn start(&mut self) -> *mut u8 {
            self.0.as_mut_ptr().cast()
        }

        /// Length in bytes, whole lines.
        pub fn length(&self) -> usize {
            self.0.len() * BLOCK_ALIGN
        }

        /// Cuts from all of it.
        pub fn carver(&mut self) -> Carver<'_> {
            // SAFETY: the vector's memory is aligned to `Line`, as long as `length` says, and
            // borrowed mutably for as long as the carver's slices live.
            unsafe { Carver::new(self.start(), self.length()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::heap::HeapBlock;
    use super::*;

    #[test]
    fn slices_start_on_lines_are_zeroed_and_do_not_overlap() {
        let mut block = HeapBlock::new(bytes_for::<u64>(3) + bytes_for::<u8>(65));
        let mut carver = block.carver();
        let words = carver.slice::<u64>(3).unwrap();
        let bytes = carver.slice::<u8>(65).unwrap();
        words.fill(u64::MAX);
        assert!(bytes.iter().all(|b| *b == 0));
        assert_eq!(bytes.as_ptr() as usize % BLOCK_ALIGN, 0);
        assert_eq!(carver.left(), 0);
        assert_eq!(carver.slice::<u8>(1).unwrap_err(), BlockTooSmall);
    }
}
