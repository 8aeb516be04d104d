//! A queue inside one thread over borrowed storage, whose waiting items can be walked.
#![forbid(unsafe_code)]

/// A first-in first-out queue; the storage is a power of two long.
#[derive(Debug)]
pub struct Fifo<'m, T> {
    cells: &'m mut [T],
    head: u32,
    tail: u32,
}

impl<'m, T: Copy> Fifo<'m, T> {
    /// An empty queue.
    pub fn new(cells: &'m mut [T]) -> Fifo<'m, T> {
        assert!(cells.len().is_power_of_two(), "queue of {} cells", cells.len());
        Fifo { cells, head: 0, tail: 0 }
    }

    /// How many items wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// How many items fit beside those that wait.
    #[inline]
    pub fn room(&self) -> usize {
        self.cells.len() - self.len()
    }

    /// Appends. The caller has reserved the place, so a full queue is a broken invariant.
    #[inline]
    pub fn push(&mut self, item: T) {
        debug_assert!(self.room() > 0);
        let cell = self.cell(self.tail);
        self.cells[cell] = item;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Takes the oldest.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let item = self.cells[self.cell(self.head)];
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// The oldest, to be looked at in place. What was just written field by field is read back
    /// fastest field by field, so the data path does not [`Fifo::pop`] whole items.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        if self.is_empty() { None } else { Some(&self.cells[self.cell(self.head)]) }
    }

    /// Drops the oldest, which [`Fifo::front`] has shown.
    #[inline]
    pub fn skip(&mut self) {
        debug_assert!(!self.is_empty());
        self.head = self.head.wrapping_add(1);
    }

    /// The oldest, to be worked on in place.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let cell = self.cell(self.head);
        Some(&mut self.cells[cell])
    }

    /// The `n`-th oldest; `n` is below [`Fifo::len`].
    pub fn at_mut(&mut self, n: usize) -> &mut T {
        debug_assert!(n < self.len());
        let cell = self.cell(self.head.wrapping_add(n as u32));
        &mut self.cells[cell]
    }

    #[inline]
    fn cell(&self, index: u32) -> usize {
        index as usize & (self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_across_the_end_of_its_storage() {
        let mut cells = [0u32; 4];
        let mut fifo = Fifo::new(&mut cells);
        for round in 0..10 {
            fifo.push(round);
            fifo.push(round + 100);
            *fifo.at_mut(1) += 1;
            assert_eq!(fifo.room(), 2);
            assert_eq!((fifo.pop(), fifo.pop()), (Some(round), Some(round + 101)));
        }
        assert!(fifo.is_empty() && fifo.front_mut().is_none());
    }
}
