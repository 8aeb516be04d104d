//! A queue of at most `N` values.
#![forbid(unsafe_code)]

/// First in, first out. `N` is a power of two.
#[derive(Copy, Clone, Debug)]
pub(super) struct Fifo<T, const N: usize> {
    items: [Option<T>; N],
    first: u32,
    count: u32,
}

impl<T: Copy, const N: usize> Fifo<T, N> {
    pub const EMPTY: Fifo<T, N> = Fifo { items: [None; N], first: 0, count: 0 };

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub const fn is_full(&self) -> bool {
        self.count as usize == N
    }

    pub const fn count(&self) -> usize {
        self.count as usize
    }

    fn place(&self, at: usize) -> usize {
        const { assert!(N.is_power_of_two()) };
        (self.first as usize + at) & (N - 1)
    }

    /// Puts an item behind the others. `false`: it is full.
    pub fn push(&mut self, item: T) -> bool {
        if self.is_full() {
            return false;
        }
        let place = self.place(self.count as usize);
        self.items[place] = Some(item);
        self.count += 1;
        true
    }

    /// The first item.
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The item that so many are before.
    pub fn get(&self, at: usize) -> Option<&T> {
        if at < self.count as usize { self.items[self.place(at)].as_ref() } else { None }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        let place = self.place(at);
        if at < self.count as usize { self.items[place].as_mut() } else { None }
    }

    /// Takes the first item out.
    pub fn pop(&mut self) -> Option<T> {
        let place = self.place(0);
        let item = if self.count == 0 { None } else { self.items[place].take() };
        if item.is_some() {
            self.first = self.first.wrapping_add(1);
            self.count -= 1;
        }
        item
    }

    /// The items, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.count()).filter_map(|at| self.get(at))
    }
}
