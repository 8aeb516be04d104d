//! Ops that a rail has accepted and not reported: one table for all peers, threaded into lists.
#![forbid(unsafe_code)]

use crate::fabric::{OpError, OpErrorKind};

/// How an op ended.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// Well.
    #[default]
    Success = 0,
    /// [`OpErrorKind::PeerDown`].
    PeerDown = 1,
    /// [`OpErrorKind::Key`].
    Key = 2,
    /// [`OpErrorKind::Canceled`].
    Canceled = 3,
    /// [`OpErrorKind::Fabric`].
    Fabric = 4,
}

impl Outcome {
    /// As it is reported, with the system's code of a failure.
    pub const fn result(self, code: i32) -> Result<(), OpError> {
        let kind = match self {
            Outcome::Success => return Ok(()),
            Outcome::PeerDown => OpErrorKind::PeerDown,
            Outcome::Key => OpErrorKind::Key,
            Outcome::Canceled => OpErrorKind::Canceled,
            Outcome::Fabric => OpErrorKind::Fabric,
        };
        Err(OpError { kind, code })
    }
}

impl From<OpErrorKind> for Outcome {
    fn from(kind: OpErrorKind) -> Outcome {
        match kind {
            OpErrorKind::PeerDown => Outcome::PeerDown,
            OpErrorKind::Key => Outcome::Key,
            OpErrorKind::Canceled => Outcome::Canceled,
            OpErrorKind::Fabric => Outcome::Fabric,
        }
    }
}

/// First and last of a list of entries, as index plus one. Zeroed: empty.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct List {
    first: u32,
    last: u32,
}

impl List {
    /// Nothing is in it.
    pub const EMPTY: List = List { first: 0, last: 0 };

    /// Whether nothing is in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// The oldest entry.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }
}

/// What the table holds: it keeps its place in a list itself.
pub trait Linked: Copy {
    /// The entry behind it, as index plus one; 0: none.
    fn next(&self) -> u32;

    /// Puts another one behind it.
    fn set_next(&mut self, next: u32);
}

/// Says of an entry that its place in a list is its field `next`.
macro_rules! linked {
    ($entry:ty) => {
        impl $crate::provider::ops::Linked for $entry {
            #[inline]
            fn next(&self) -> u32 {
                self.next
            }

            #[inline]
            fn set_next(&mut self, next: u32) {
                self.next = next;
            }
        }
    };
}
pub(crate) use linked;

/// The table.
#[derive(Debug)]
pub struct Ops<'m, E> {
    entries: &'m mut [E],
    free: List,
    done: List,
}

impl<'m, E: Linked> Ops<'m, E> {
    /// A table in which every entry is free.
    pub fn new(entries: &'m mut [E]) -> Ops<'m, E> {
        let mut ops = Ops { entries, free: List::default(), done: List::default() };
        let mut free = List::default();
        for index in 0..ops.entries.len() as u32 {
            ops.append(&mut free, index);
        }
        ops.free = free;
        ops
    }

    /// Takes an entry, or `None` when all are in use.
    #[inline]
    pub fn acquire(&mut self, entry: E) -> Option<u32> {
        let mut free = self.free;
        let index = self.take_first(&mut free)?;
        self.free = free;
        self.entries[index as usize] = entry;
        Some(index)
    }

    /// Whether no entry is free but one, which is kept for a fence: that ends what holds others.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.first == self.free.last
    }

    /// Whether there is not even room for a fence: one has ended and was not reported.
    #[inline]
    pub fn is_full_of_fences(&self) -> bool {
        self.free.is_empty()
    }

    /// The entry at `index`.
    #[inline]
    pub fn get(&mut self, index: u32) -> &mut E {
        &mut self.entries[index as usize]
    }

    /// Puts an entry, which is in no list, at the end of one.
    #[inline]
    pub fn append(&mut self, list: &mut List, index: u32) {
        self.entries[index as usize].set_next(0);
        match list.last.checked_sub(1) {
            Some(last) => self.entries[last as usize].set_next(index + 1),
            None => list.first = index + 1,
        }
        list.last = index + 1;
    }

    /// Takes the oldest entry out of a list.
    #[inline]
    pub fn take_first(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first()?;
        list.first = self.entries[index as usize].next();
        if list.first == 0 {
            list.last = 0;
        }
        Some(index)
    }

    /// The entry after `index` in its list.
    pub fn after(&self, index: u32) -> Option<u32> {
        self.entries[index as usize].next().checked_sub(1)
    }

    /// The entry `n` behind the oldest of a list.
    pub fn nth(&mut self, list: &List, n: u32) -> Option<&mut E> {
        let mut index = list.first()?;
        for _ in 0..n {
            index = self.after(index)?;
        }
        Some(self.get(index))
    }

    /// Ends an op that is in no list: `take_done` will hand it out.
    pub fn finish(&mut self, index: u32) {
        let mut done = self.done;
        self.append(&mut done, index);
        self.done = done;
    }

    /// Whether nothing waits to be reported.
    #[inline(always)]
    pub fn none_done(&self) -> bool {
        self.done.is_empty()
    }

    /// The oldest ended op; its entry is free now.
    pub fn take_done(&mut self) -> Option<E> {
        let mut done = self.done;
        let index = self.take_first(&mut done)?;
        self.done = done;
        let entry = self.entries[index as usize];
        let mut free = self.free;
        self.append(&mut free, index);
        self.free = free;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Copy, Clone, Default, Debug)]
    struct Entry {
        next: u32,
        id: u64,
        ended: Outcome,
    }

    linked!(Entry);

    #[test]
    fn entries_come_out_in_order_and_are_free_again() {
        let mut storage = [Entry::default(); 2];
        let mut ops = Ops::new(&mut storage);
        let mut list = List::default();
        let named = |id| Entry { id, ..Entry::default() };
        for id in 0..10 {
            let a = ops.acquire(named(id)).unwrap();
            let b = ops.acquire(named(id + 100)).unwrap();
            assert!(ops.acquire(named(0)).is_none() && ops.is_full());
            ops.append(&mut list, a);
            ops.append(&mut list, b);
            assert_eq!(ops.after(a), Some(b));
            assert_eq!(ops.nth(&list, 1).map(|e| e.id), Some(id + 100));
            assert!(ops.nth(&list, 2).is_none());
            assert_eq!(ops.take_first(&mut list), Some(a));
            assert_eq!(ops.take_first(&mut list), Some(b));
            assert!(list.is_empty());
            ops.get(a).ended = Outcome::Key;
            ops.finish(b);
            ops.finish(a);
            let ended = [(); 2].map(|()| ops.take_done().map(|e| (e.id, e.ended)));
            assert_eq!(ended, [Some((id + 100, Outcome::Success)), Some((id, Outcome::Key))]);
            assert!(ops.none_done());
        }
    }
}
