//! What the shared-memory rail keeps of an op.
#![forbid(unsafe_code)]

use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{Completion, LocalSpan, OpError, OpErrorKind, OpId, RemoteSpan};
use crate::provider::ops::{self, Linked};

pub use crate::provider::ops::List;

/// What an entry is.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A write from memory.
    #[default]
    Write = 0,
    /// An add.
    Add = 1,
    /// A read.
    Read = 2,
    /// A fence, on its way to be reported.
    Fence = 3,
}

/// How a read is carried out.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(u8)]
pub enum Way {
    /// It has not begun.
    #[default]
    Undecided = 0,
    /// Out of the peer's shared heap, which is mapped here.
    Direct = 1,
    /// By the kernel, out of the peer's private memory.
    Kernel = 2,
    /// By the peer, through its write ring; not asked for yet.
    Ring = 3,
    /// The same, asked for.
    RingAsked = 4,
}

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

/// One op.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Entry {
    next: u32,
    /// Whose.
    pub peer: PeerIndex,
    /// The poster's name for it.
    pub id: OpId,
    /// Our memory.
    pub local: LocalSpan,
    /// The peer's address.
    pub address: u64,
    /// The peer's key.
    pub key: u64,
    /// Bytes done.
    pub progress: u64,
    /// The addend, or the fence's generation.
    pub value: u64,
    /// Reported at the target, when `has_immediate`.
    pub immediate: u32,
    /// Which of our ring reads this is.
    pub serial: u32,
    /// The system's code of a failure.
    pub code: i32,
    /// What it is.
    pub kind: Kind,
    /// How a read is carried out.
    pub way: Way,
    /// How it ended, once it has.
    pub outcome: Outcome,
    /// Whether `immediate` counts.
    pub has_immediate: bool,
    /// Whether `local` holds a pin of its region.
    pub pinned: bool,
}

impl Entry {
    /// An op on our memory and the peer's.
    pub fn new(kind: Kind, id: OpId, peer: PeerIndex, local: LocalSpan, at: RemoteSpan) -> Entry {
        let (address, key) = (at.address, at.key.0);
        Entry { kind, id, peer, local, address, key, ..Entry::default() }
    }

    /// What `poll` reports of it.
    pub fn completion(&self) -> Completion {
        let (peer, id) = (self.peer, self.id);
        if self.kind == Kind::Fence {
            let generation = RailGeneration(self.value as u32);
            return Completion::Fenced { peer, id, generation };
        }
        let error = |kind| Err(OpError { kind, code: self.code });
        let result = match self.outcome {
            Outcome::Success => Ok(()),
            Outcome::PeerDown => error(OpErrorKind::PeerDown),
            Outcome::Key => error(OpErrorKind::Key),
            Outcome::Canceled => error(OpErrorKind::Canceled),
            Outcome::Fabric => error(OpErrorKind::Fabric),
        };
        Completion::Done { peer, id, result }
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

impl Ops<'_> {
    /// Ends an op that is in no list, in this way.
    pub fn end(&mut self, index: u32, outcome: Outcome, code: i32) {
        let entry = self.get(index);
        entry.outcome = outcome;
        entry.code = code;
        self.finish(index);
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
            assert!(ops.acquire(named(0)).is_none());
            ops.append(&mut list, a);
            ops.append(&mut list, b);
            assert_eq!(ops.after(a), Some(b));
            assert_eq!(ops.take_first(&mut list), Some(a));
            assert_eq!(ops.take_first(&mut list), Some(b));
            assert!(list.is_empty());
            ops.end(b, Outcome::Success, 0);
            ops.end(a, Outcome::Key, 0);
            assert_eq!(ops.take_done().map(|e| e.id), Some(OpId(id + 100)));
            assert_eq!(ops.take_done().map(|e| e.id), Some(OpId(id)));
            assert!(ops.none_done());
        }
    }
}
