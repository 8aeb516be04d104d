//! The heap of the program `crosstie`: where the system has no more, one line says so, and the
//! program ends. The standard library would print a line of its own and abort.

use core::alloc::{GlobalAlloc, Layout};
use std::alloc::System;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory is out.
static OUT: AtomicBool = AtomicBool::new(false);

/// The system's heap, and what is called when it has nothing left for so many bytes.
pub struct Heap {
    out: fn(usize) -> !,
}

impl Heap {
    /// `out` must not allocate.
    pub const fn new(out: fn(usize) -> !) -> Heap {
        Heap { out }
    }

    fn checked(&self, start: *mut u8, bytes: usize) -> *mut u8 {
        if start.is_null() {
            // the first of several threads ends the program, and alone says why
            // relaxed: nothing is told by it
            while OUT.swap(true, Ordering::Relaxed) {
                std::thread::yield_now();
            }
            (self.out)(bytes);
        }
        start
    }
}

// SAFETY: each call is the system allocator's, which keeps the contract; where that gives nothing,
// no call returns.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller has promised.
        self.checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller has promised.
        self.checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: what the caller has promised.
        self.checked(unsafe { System.realloc(start, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: what the caller has promised.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Ends the program at once, without what is registered for its end.
pub fn exit(status: i32) -> ! {
    // SAFETY: ends the process, and takes no memory.
    unsafe { libc::_exit(status) }
}
