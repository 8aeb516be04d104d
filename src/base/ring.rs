//! A bounded queue from one thread to another, over storage of the caller.
//!
//! Indices count freely and wrap at 2^32. Each side keeps a copy of the other side's index, and
//! reads the real one only when the copy says full or empty. So a burst shares no cache line of the
//! indices.

use super::sync::{AtomicU32, CachePadded, Cell, Ordering};

/// The two shared indices, a cache line each.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Indices {
    tail: CachePadded<AtomicU32>,
    head: CachePadded<AtomicU32>,
}

/// Splits `slots` into the two ends of an empty queue. The number of slots is a power of two.
pub fn split<'m, T: Copy>(
    indices: &'m Indices,
    slots: &'m [Cell<T>],
) -> (Producer<'m, T>, Consumer<'m, T>) {
    assert!(slots.len().is_power_of_two(), "ring of {} slots", slots.len());
    indices.tail.0.store(0, Ordering::Relaxed);
    indices.head.0.store(0, Ordering::Relaxed);
    (Producer { indices, slots, tail: 0, head: 0 }, Consumer { indices, slots, tail: 0, head: 0 })
}

/// The writing end.
#[derive(Debug)]
pub struct Producer<'m, T> {
    indices: &'m Indices,
    slots: &'m [Cell<T>],
    tail: u32,
    head: u32,
}

// SAFETY: the two ends share only the atomics and cells; a cell is touched by the producer before
// [ring-tail] and by the consumer after it, and the other way round at [ring-head].
unsafe impl<T: Send> Send for Producer<'_, T> {}

impl<T: Copy> Producer<'_, T> {
    /// Appends `item`, or hands it back when the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head) as usize == self.slots.len() {
            // acquire: pairs with [ring-head]
            self.head = self.indices.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) as usize == self.slots.len() {
                return Err(item);
            }
        }
        let cell = &self.slots[self.tail as usize & (self.slots.len() - 1)];
        // SAFETY: `tail - head < len`, so the consumer is done with this cell ([ring-head]).
        unsafe { cell.write(item) };
        self.tail = self.tail.wrapping_add(1);
        // release: [ring-tail], the item is in the cell
        self.indices.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<'m, T> {
    indices: &'m Indices,
    slots: &'m [Cell<T>],
    tail: u32,
    head: u32,
}

// SAFETY: as for the producer.
unsafe impl<T: Send> Send for Consumer<'_, T> {}

impl<T: Copy> Consumer<'_, T> {
    /// Whether an item waits. *Cost*: one load of a line that only changes on a push.
    #[inline(always)]
    pub fn has_some(&self) -> bool {
        // relaxed: nothing is read by it; `pop` looks again, in order
        self.indices.tail.0.load(Ordering::Relaxed) != self.head
    }

    /// Takes the oldest item. *Cost* when empty: one load of a line that only changes on a push.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            // acquire: pairs with [ring-tail]
            self.tail = self.indices.tail.0.load(Ordering::Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        let cell = &self.slots[self.head as usize & (self.slots.len() - 1)];
        // SAFETY: `head != tail`, so the producer has filled this cell ([ring-tail]) and will not
        // touch it before the head passes it.
        let item = unsafe { cell.read() };
        self.head = self.head.wrapping_add(1);
        // release: [ring-head], the cell may be written again
        self.indices.head.0.store(self.head, Ordering::Release);
        Some(item)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn keeps_order_and_says_full_like_a_deque() {
        let indices = Indices::default();
        let slots = [const { Cell::new(0u32) }; 4];
        let (mut producer, mut consumer) = split(&indices, &slots);
        let mut oracle = VecDeque::new();
        let mut state = 7u64;
        for item in 0..if cfg!(miri) { 500 } else { 10_000u32 } {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if state >> 63 == 0 {
                let expected = if oracle.len() == 4 { Err(item) } else { Ok(()) };
                assert_eq!(producer.push(item), expected);
                if expected.is_ok() {
                    oracle.push_back(item);
                }
            } else {
                assert_eq!(consumer.pop(), oracle.pop_front());
            }
        }
    }
}
