//! What the TCP rail keeps of an op.
#![forbid(unsafe_code)]

use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{Completion, OpId};
use crate::provider::ops::{self, Linked};

pub use crate::provider::ops::{List, Outcome};

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
    /// Of a write of a span: the span's count in its queue, plus one; else 0.
    pub span: u32,
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
        Completion::Done { peer, id, result: self.outcome.result(self.code) }
    }
}

impl Linked for Entry {
    #[inline]
    fn next(&self) -> u32 {
        self.next
    }

    #[inline]
    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

/// The table of this rail.
pub type Ops<'m> = ops::Ops<'m, Entry>;

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
