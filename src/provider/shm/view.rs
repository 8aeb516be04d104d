//! Memory that the peer writes and we only read: what one end of a connection may do with it.

use super::word::{ACQUIRE, fence, u32_at, u64_at};
use core::sync::atomic::Ordering::{self, Relaxed};

/// The order of a load that has an acquire fence behind it. ThreadSanitizer knows no fences.
const FENCED: Ordering = if cfg!(tsan) { ACQUIRE } else { Relaxed };

/// Memory of the peer's, mapped here for reading alone. Zeroed: no bytes.
///
/// The kernel refuses to map it for writing, so that a store would end this process with SIGSEGV.
/// A view has loads and no stores:
///
/// ```compile_fail,E0599
/// # let view = crosstie::provider::shm::SharedView::EMPTY;
/// view.store_u32(0, 1);
/// ```
///
/// It has no references either, since the peer may write at any time.
#[derive(Copy, Clone, Debug)]
pub struct SharedView {
    start: *const u8,
    length: usize,
}

impl SharedView {
    /// No bytes.
    pub const EMPTY: SharedView = SharedView { start: core::ptr::null(), length: 0 };

    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// - they are valid for reads for as long as the view, a copy or a part of it is used;
    /// - `start` is aligned to 64 bytes.
    pub const unsafe fn new(start: *const u8, length: usize) -> SharedView {
        SharedView { start, length }
    }

    /// Length in bytes.
    #[inline(always)]
    pub const fn length(self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Where `length` bytes at `offset` stand, to be copied out.
    ///
    /// *Panics* when they do not lie in the view.
    #[inline(always)]
    pub fn at(self, offset: usize, length: usize) -> *const u8 {
        assert!(offset <= self.length && length <= self.length - offset);
        // SAFETY: inside the view, checked above; valid by `new`.
        unsafe { self.start.add(offset) }
    }

    /// The `length` bytes at `offset` alone. *Panics* as [`SharedView::at`].
    pub fn part(self, offset: usize, length: usize) -> SharedView {
        SharedView { start: self.at(offset, length), length }
    }

    /// The half word at `offset`, a multiple of 4. *Panics* as [`SharedView::at`].
    #[inline(always)]
    pub fn load_u32(self, offset: usize) -> u32 {
        self.u32(offset, Relaxed)
    }

    #[inline(always)]
    fn u32(self, offset: usize, order: Ordering) -> u32 {
        let at = self.at(offset, 4).cast_mut();
        // SAFETY: in the view, so valid for the load; nothing but a load is made of it.
        unsafe { u32_at(at) }.load(order)
    }

    /// The word at `offset`, a multiple of 8. *Panics* as [`SharedView::at`].
    #[inline(always)]
    pub fn load_u64(self, offset: usize) -> u64 {
        self.u64(offset, Relaxed)
    }

    #[inline(always)]
    fn u64(self, offset: usize, order: Ordering) -> u64 {
        let at = self.at(offset, 8).cast_mut();
        // SAFETY: in the view, so valid for the load; nothing but a load is made of it.
        unsafe { u64_at(at) }.load(order)
    }

    /// [`SharedView::load_u32`], and what the peer wrote before a release store of the value is
    /// seen after it.
    ///
    /// *Source*: `core::sync::atomic`, "Atomic accesses to read-only memory": of such memory a
    /// relaxed load is defined, and a fence behind it makes it an acquire load.
    #[inline(always)]
    pub fn acquire_u32(self, offset: usize) -> u32 {
        let value = self.u32(offset, FENCED);
        fence(ACQUIRE);
        value
    }

    /// The half word at `offset`, to be kept. *Panics* as [`SharedView::at`].
    pub fn word(self, offset: usize) -> SharedWord {
        SharedWord(self.at(offset, 4))
    }

    /// [`SharedView::load_u64`], likewise.
    #[inline(always)]
    pub fn acquire_u64(self, offset: usize) -> u64 {
        let value = self.u64(offset, FENCED);
        fence(ACQUIRE);
        value
    }
}

/// A half word of a view. Zeroed: none.
#[derive(Copy, Clone, Debug)]
pub struct SharedWord(*const u8);

impl SharedWord {
    /// No word.
    pub const NONE: SharedWord = SharedWord(core::ptr::null());

    /// Whether it is none.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// [`SharedView::acquire_u32`]. *Panics* when there is none.
    pub fn acquire(self) -> u32 {
        assert!(!self.is_none());
        // SAFETY: a word of a view, so valid for the load (`SharedView::word`).
        unsafe { SharedView::new(self.0, 4) }.acquire_u32(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::carve::heap::HeapBlock;

    #[test]
    fn view_shows_what_its_writer_stores_and_ends_where_it_was_told() {
        let mut block = HeapBlock::new(128);
        let start = block.start();
        // SAFETY: the block outlives the view.
        let view = unsafe { SharedView::new(start, 128) };
        let part = view.part(64, 16);
        // SAFETY: words of the block.
        unsafe {
            u64_at(start.add(72)).store(7 << 32 | 5, Relaxed);
        }
        assert_eq!((part.load_u64(8), part.acquire_u64(8)), (7 << 32 | 5, 7 << 32 | 5));
        assert_eq!((part.load_u32(8), part.acquire_u32(12)), (5, 7));
        assert_eq!((part.word(8).acquire(), part.word(12).acquire()), (5, 7));
        assert!(SharedWord::NONE.is_none() && !part.word(0).is_none());
        assert_eq!(part.at(16, 0), start.wrapping_add(80).cast_const());
        for (offset, length) in [(9, 8), (17, 0), (0, 17), (usize::MAX, 1), (1, usize::MAX)] {
            let outside = std::panic::catch_unwind(|| part.at(offset, length));
            assert!(outside.is_err(), "{offset} {length}");
        }
    }
}
