//! Memory with a stable address that borrowers outlive in type only.

use std::boxed::Box;
use std::vec::Vec;

/// A boxed slice whose borrowers are fields declared before it, so that they are dropped first.
#[derive(Debug)]
pub struct Leaked<T>(*mut [T]);

// SAFETY: it owns its items like a box.
unsafe impl<T: Send> Send for Leaked<T> {}

impl<T> Leaked<T> {
    /// Takes the items, and lends them.
    ///
    /// # Safety
    /// - the loan is dropped before the returned owner.
    pub unsafe fn lend(items: Vec<T>) -> (Leaked<T>, &'static mut [T]) {
        let items = Box::into_raw(items.into_boxed_slice());
        // SAFETY: a box's slice, of which this is the only borrow while the owner lives.
        (Leaked(items), unsafe { &mut *items })
    }
}

impl<T> Drop for Leaked<T> {
    fn drop(&mut self) {
        // SAFETY: made from a box in `lend`, whose loan has ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
