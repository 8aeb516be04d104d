//! Taking turns at a library that lets two threads into the same table.

use crate::base::sync::{AtomicU32, Ordering};

/// Looks before a waiting thread lets others have its processor.
const LOOKS: u32 = 64;

/// Who may be in the library: where turns are kept, one thread at a time.
#[derive(Debug)]
pub(super) struct Turns {
    are_kept: bool,
    is_taken: AtomicU32,
}

/// One thread's turn, until it is dropped.
pub(super) struct Turn<'t>(Option<&'t AtomicU32>);

impl Turns {
    pub fn new(are_kept: bool) -> Turns {
        Turns { are_kept, is_taken: AtomicU32::new(0) }
    }

    /// Waits until nobody has a turn. Nothing that waits for another thread is done in one.
    #[inline]
    pub fn take(&self) -> Turn<'_> {
        if !self.are_kept {
            return Turn(None);
        }
        let mut looks = 0;
        // acquire: pairs with the drop of the turn before
        while self.is_taken.swap(1, Ordering::Acquire) != 0 {
            looks += 1;
            if looks % LOOKS == 0 {
                // SAFETY: takes nothing.
                unsafe { libc::sched_yield() };
            }
            core::hint::spin_loop();
        }
        Turn(Some(&self.is_taken))
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(is_taken) = self.0 {
            is_taken.store(0, Ordering::Release);
        }
    }
}
