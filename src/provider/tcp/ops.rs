//! Ops that were accepted and have not been reported: one table for all peers, threaded into lists.
#![forbid(unsafe_code)]

use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{Completion, OpError, OpErrorKind, OpId};

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
}

/// One op. Zeroed: a write without bytes.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Entry {
    pub(super) next: u32,
    /// Whose.
    pub peer: PeerIndex,
    /// The poster's name for it.
    pub id: OpId,
    /// Of a read: where its bytes go.
    pub address: u64,
    /// Of a read: how many.
    pub length: u32,
    /// The region of ours that it holds a pin of, plus one; 0: none.
    pub pin: u32,
    /// A fence's generation.
    pub generation: u32,
    /// The system's code of a failure.
    pub code: i32,
    /// Whether it is a fence.
    pub is_fence: bool,
    /// How it ended, once it has.
    pub outcome: Outcome,
}

impl Entry {
    /// What `poll` reports of it.
    pub fn completion(&self) -> Completion {
        let (peer, id) = (self.peer, self.id);
        if self.is_fence {
            return Completion::Fenced { peer, id, generation: RailGeneration(self.generation) };
        }
        let error = |kind| Err(OpError { kind, code: self.code });
        let result = match self.outcome {
            Outcome::Success => Ok(()),
            Outcome::PeerDown => error(OpErrorKind::PeerDown),
            Outcome::Key => error(OpErrorKind::Key),
            Outcome::Canceled => error(OpErrorKind::Canceled),
        };
        Completion::Done { peer, id, result }
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
    /// Whether nothing is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == 0
    }

    /// The oldest entry.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }
}

/// The table.
#[derive(Debug)]
pub struct Ops<'m> {
    entries: &'m mut [Entry],
    free: List,
    done: List,
}

impl<'m> Ops<'m> {
    /// A table in which every entry is free.
    pub fn new(entries: &'m mut [Entry]) -> Ops<'m> {
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
    pub fn acquire(&mut self, entry: Entry) -> Option<u32> {
        let mut free = self.free;
        let index = self.take_first(&mut free)?;
        self.free = free;
        self.entries[index as usize] = entry;
        Some(index)
    }

    /// Whether no entry is free.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The entry at `index`.
    #[inline]
    pub fn get(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    /// Puts an entry, which is in no list, at the end of one.
    #[inline]
    pub fn append(&mut self, list: &mut List, index: u32) {
        self.entries[index as usize].next = 0;
        match list.last.checked_sub(1) {
            Some(last) => self.entries[last as usize].next = index + 1,
            None => list.first = index + 1,
        }
        list.last = index + 1;
    }

    /// Takes the oldest entry out of a list.
    #[inline]
    pub fn take_first(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first()?;
        list.first = self.entries[index as usize].next;
        if list.first == 0 {
            list.last = 0;
        }
        Some(index)
    }

    /// The entry `n` behind the oldest of a list.
    pub fn nth(&mut self, list: &List, n: u32) -> Option<&mut Entry> {
        let mut index = list.first()?;
        for _ in 0..n {
            index = self.entries[index as usize].next.checked_sub(1)?;
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
    #[inline]
    pub fn none_done(&self) -> bool {
        self.done.is_empty()
    }

    /// The oldest ended op; its entry is free now.
    pub fn take_done(&mut self) -> Option<Entry> {
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

    #[test]
    fn entries_come_out_in_order_and_are_free_again() {
        let mut storage = [Entry::default(); 2];
        let mut ops = Ops::new(&mut storage);
        let mut list = List::default();
        let named = |id| Entry { id: OpId(id), ..Entry::default() };
        for id in 0..10 {
            let a = ops.acquire(named(id)).unwrap();
            let b = ops.acquire(named(id + 100)).unwrap();
            assert!(ops.acquire(named(0)).is_none() && ops.is_full());
            ops.append(&mut list, a);
            ops.append(&mut list, b);
            assert_eq!(ops.nth(&list, 1).map(|e| e.id), Some(OpId(id + 100)));
            assert!(ops.nth(&list, 2).is_none());
            assert_eq!(ops.take_first(&mut list), Some(a));
            assert_eq!(ops.take_first(&mut list), Some(b));
            assert!(list.is_empty());
            ops.finish(b);
            ops.finish(a);
            assert_eq!(ops.take_done().map(|e| e.id), Some(OpId(id + 100)));
            assert_eq!(ops.take_done().map(|e| e.id), Some(OpId(id)));
            assert!(ops.none_done());
        }
    }
}
