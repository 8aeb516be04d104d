//! Free indices of a table, taken and given back from any thread without a lock.
//!
//! A Treiber stack of indices: the head word carries an index and a tag that steps with every
//! change, so that an index which left and came back in between (ABA) is noticed.
#![forbid(unsafe_code)]

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// End of the list. Indices are stored plus one.
const NONE: u32 = 0;

/// A pool of the indices `0..next.len()` over borrowed words.
#[derive(Copy, Clone, Debug)]
pub struct Pool<'m> {
    head: &'m AtomicU64,
    /// What follows each index, as its difference from what follows in a new pool ([`Pool::new`]):
    /// the words of indices that were never used stay zero, and need no page.
    next: &'m [AtomicU32],
}

impl<'m> Pool<'m> {
    /// A pool in which every index is free. `head` and `next`, which is zeroed, belong to it from
    /// now on.
    pub fn new(head: &'m AtomicU64, next: &'m [AtomicU32]) -> Pool<'m> {
        head.store(u64::from(if next.is_empty() { NONE } else { 1 }), Ordering::Release);
        Pool { head, next }
    }

    /// What follows an index in a new pool.
    fn next_at_first(&self, index: u32) -> u32 {
        let after = index + 2;
        if after as usize <= self.next.len() { after } else { NONE }
    }

    /// Whether all are in use: a hint, where others take and give back.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) as u32 == NONE
    }

    /// Takes a free index, or `None` when all are in use.
    pub fn acquire(&self) -> Option<u32> {
        // acquire: pairs with [pool-release] of the thread that gave the index back
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let first = head as u32;
            if first == NONE {
                return None;
            }
            let difference = self.next[first as usize - 1].load(Ordering::Relaxed);
            let after = difference ^ self.next_at_first(first - 1);
            let new = tagged(head, after);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first - 1),
                Err(seen) => head = seen,
            }
        }
    }

    /// Gives `index` back. It must have come from [`Pool::acquire`].
    pub fn release(&self, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let difference = head as u32 ^ self.next_at_first(index);
            self.next[index as usize].store(difference, Ordering::Relaxed);
            let new = tagged(head, index + 1);
            // release: [pool-release], what was done with the index happens before its next use
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }
}

/// The head word that follows `head` and points at `first`.
const fn tagged(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1)) << 32 | first as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn hands_out_each_index_once_and_takes_it_back() {
        let head = AtomicU64::new(0);
        let next = [const { AtomicU32::new(0) }; 3];
        let pool = Pool::new(&head, &next);
        let mut got = [pool.acquire(), pool.acquire(), pool.acquire()];
        assert_eq!(pool.acquire(), None);
        got.sort();
        assert_eq!(got, [Some(0), Some(1), Some(2)]);
        pool.release(1);
        assert_eq!(pool.acquire(), Some(1));
        assert_eq!(pool.acquire(), None);
    }
}
