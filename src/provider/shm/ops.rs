//! What the shared-memory rail keeps of an op, and what ops are carried out with.
#![forbid(unsafe_code)]

use super::copiers::{Copiers, Taken};
use super::record::LINE;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::regions::RegionTable;
use crate::base::slab::Handle;
use crate::fabric::{Completion, LocalSpan, OpId, RemoteSpan};
use crate::provider::events::Events;
use crate::provider::notes::Notes;
use crate::provider::ops::{self, linked};

pub use crate::provider::ops::{List, Outcome};

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
        Completion::Done { peer, id, result: self.outcome.result(self.code) }
    }
}

linked!(Entry);

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

/// What a rail's peers share. They are lent it as [`Work`].
#[derive(Debug)]
pub(super) struct Tools<'m> {
    pub(super) ops: Ops<'m>,
    pub(super) regions: RegionTable<'m>,
    pub(super) copiers: Option<Copiers>,
    /// What other rails' ends have said.
    pub(super) notes: Notes,
}

impl<'m> Tools<'m> {
    #[inline(always)]
    pub(super) fn work<'a, 'o>(&'a mut self, out: Events<'o>, budget: u64) -> Work<'a, 'm, 'o> {
        let Tools { ops, regions, copiers, notes } = self;
        Work { ops, regions: *regions, out, copiers: copiers.as_mut(), notes, budget }
    }

    /// To report nothing.
    pub(super) fn quiet(&mut self, budget: u64) -> Work<'_, 'm, 'static> {
        self.work(Events { slots: &mut [], used: 0 }, budget)
    }
}

/// What a peer works with and does not own.
pub(super) struct Work<'a, 'm, 'o> {
    pub(super) ops: &'a mut Ops<'m>,
    pub(super) regions: RegionTable<'m>,
    pub(super) out: Events<'o>,
    pub(super) copiers: Option<&'a mut Copiers>,
    pub(super) notes: &'a mut Notes,
    /// Bytes that may still be copied.
    pub(super) budget: u64,
}

impl Work<'_, '_, '_> {
    pub(super) fn charge(&mut self, bytes: u64) {
        self.budget = self.budget.saturating_sub(bytes.max(LINE as u64));
    }

    /// Whether something of the peer's waits for copies.
    #[inline(always)]
    pub(super) fn has_taken(&self, peer: PeerIndex) -> bool {
        self.copiers.as_ref().is_some_and(|copiers| !copiers.none_taken(peer))
    }

    /// Whether one more record of the peer's may wait for its copy.
    #[inline(always)]
    pub(super) fn has_room_for_taken(&self, peer: PeerIndex) -> bool {
        self.copiers.as_ref().is_none_or(|copiers| copiers.has_room(peer))
    }

    /// Whether a thread reads the memory of that acknowledged op of the peer's.
    pub(super) fn is_read(&self, peer: PeerIndex, op: u32) -> bool {
        self.copiers.as_ref().is_some_and(|copiers| copiers.is_read(peer, op))
    }

    /// Forgets the peer's oldest taken record.
    pub(super) fn drop_taken(&mut self, peer: PeerIndex, taken: Taken) {
        if let Some(region) = taken.region.checked_sub(1) {
            self.regions.pin(region, -1);
        }
        if let Some(copiers) = self.copiers.as_deref_mut() {
            copiers.drop_front(peer);
        }
    }

    /// Waits until threads are done with the peer, and forgets what they have copied: it ends.
    pub(super) fn settle(&mut self, peer: PeerIndex) {
        let Some(copiers) = self.copiers.as_deref() else { return };
        copiers.settle(peer);
        while let Some(taken) = self.copiers.as_deref().and_then(|all| all.front(peer)) {
            self.drop_taken(peer, taken);
        }
    }

    /// Ends an op that is in no list, and unpins its memory.
    pub(super) fn finish(&mut self, index: u32, outcome: Outcome, code: i32) {
        let entry = self.ops.get(index);
        if core::mem::take(&mut entry.pinned) {
            self.regions.pin(Handle::unpack(entry.local.key().0).index, -1);
        }
        self.ops.end(index, outcome, code);
    }

    /// Ends all ops of a list.
    pub(super) fn finish_all(&mut self, list: &mut List, outcome: Outcome) {
        while let Some(index) = self.ops.take_first(list) {
            self.finish(index, outcome, 0);
        }
    }
}
