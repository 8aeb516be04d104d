//! What the TCP rail keeps of an op.
#![forbid(unsafe_code)]

use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{Completion, OpId};
use crate::provider::ops::{self, linked};

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

linked!(Entry);

/// The table of this rail.
pub type Ops<'m> = ops::Ops<'m, Entry>;
