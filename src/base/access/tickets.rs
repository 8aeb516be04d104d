//! Turns: one thread at a time, in the order in which they came.

use super::sync::{AtomicU32, Ordering, spin_loop};

/// Whose turn it is. So a thread waits for one turn of each other thread at most.
#[derive(Debug, Default)]
pub struct Tickets {
    next: AtomicU32,
    now: AtomicU32,
}

/// One thread's turn, until it is dropped.
#[derive(Debug)]
pub struct Ticket<'t>(&'t AtomicU32);

impl Tickets {
    /// Waits for this thread's turn, with a `pause` of its own between two looks, whose number it
    /// is told. Who has a turn takes no other.
    pub fn take(&self, mut pause: impl FnMut(u32)) -> Ticket<'_> {
        let own = self.next.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0u32;
        // acquire: [turn], what was done in the turn before happens before this one
        while self.now.load(Ordering::Acquire) != own {
            looks = looks.wrapping_add(1);
            pause(looks);
            spin_loop();
        }
        Ticket(&self.now)
    }
}

impl Drop for Ticket<'_> {
    #[inline]
    fn drop(&mut self) {
        // release: [turn]; nobody else changes it meanwhile
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}
