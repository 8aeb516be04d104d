//! The one place that names atomics, so that loom can stand in for them.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Between two looks at what another thread is about to change.
#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(loom)]
pub use loom::hint::spin_loop;

#[cfg(not(loom))]
pub use core::cell::UnsafeCell;

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

/// One cache line of its own, so that what two cores write does not share one.
///
/// *Shape*: aligned to a line, as everything in a block is.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CachePadded<T>(pub T);

/// A place that two threads take turns to touch; whose turn it is, an index beside it says.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct Cell<T>(UnsafeCell<core::mem::MaybeUninit<T>>);

/// The same, watched by loom.
#[cfg(loom)]
#[derive(Debug)]
#[repr(transparent)]
pub struct Cell<T>(UnsafeCell<T>);

// SAFETY: a `Cell` only offers unsafe access; each caller states whose turn it is.
unsafe impl<T: Send> Sync for Cell<T> {}

#[cfg(not(loom))]
impl<T: Copy> Cell<T> {
    /// A cell that holds `item`. A zeroed one holds nothing yet.
    pub const fn new(item: T) -> Cell<T> {
        Cell(UnsafeCell::new(core::mem::MaybeUninit::new(item)))
    }

    /// Replaces the item.
    ///
    /// # Safety
    /// - no other thread touches the cell until this one hands it over through an atomic.
    #[inline]
    pub unsafe fn write(&self, item: T) {
        // SAFETY: the caller has the turn.
        unsafe { (*self.0.get()).write(item) };
    }

    /// Copies the item out.
    ///
    /// # Safety
    /// - no other thread writes the cell until this one hands it over through an atomic;
    /// - the cell holds an item.
    #[inline]
    pub unsafe fn read(&self) -> T {
        // SAFETY: the caller has the turn, and says that an item is there.
        unsafe { (*self.0.get()).assume_init() }
    }
}

#[cfg(loom)]
impl<T: Copy> Cell<T> {
    /// A cell that holds `item`.
    pub fn new(item: T) -> Cell<T> {
        Cell(UnsafeCell::new(item))
    }

    /// Replaces the item.
    ///
    /// # Safety
    /// - no other thread touches the cell until this one hands it over through an atomic.
    pub unsafe fn write(&self, item: T) {
        // SAFETY: the caller has the turn; loom checks it.
        self.0.with_mut(|place| unsafe { *place = item });
    }

    /// Copies the item out.
    ///
    /// # Safety
    /// - no other thread writes the cell until this one hands it over through an atomic.
    pub unsafe fn read(&self) -> T {
        // SAFETY: the caller has the turn; loom checks it.
        self.0.with(|place| unsafe { *place })
    }
}
