//! Ops that end without the device's or the library's having seen them: fences, and what was
//! refused for a key of our own. Of rails that hand ops on to others.

use super::ops::{List, Ops, linked};
use crate::base::carve::Zeroable;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{Completion, Op, OpError, OpErrorKind, OpId};

/// One of them.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Aside {
    /// Its place in a list.
    pub next: u32,
    /// Whose.
    pub peer: PeerIndex,
    /// The poster's name for it.
    pub id: OpId,
    /// The fence's.
    pub generation: u32,
    /// Otherwise it was refused for a key.
    pub is_fence: bool,
}

// SAFETY: integers and a bool: zero is a value.
unsafe impl Zeroable for Aside {}

impl Aside {
    /// What `poll` reports of it.
    pub fn completion(&self) -> Completion {
        let (peer, id) = (self.peer, self.id);
        if self.is_fence {
            return Completion::Fenced { peer, id, generation: RailGeneration(self.generation) };
        }
        Completion::Done { peer, id, result: Err(OpError { kind: OpErrorKind::Key, code: 0 }) }
    }
}

impl Ops<'_, Aside> {
    /// A fence of a peer, behind those that it has; `None`: there is no room.
    pub fn fence_append(&mut self, fences: &mut List, op: &Op, generation: u32) -> Option<()> {
        let (peer, id, is_fence) = (op.peer, op.id, true);
        let entry = self.acquire(Aside { peer, id, generation, is_fence, ..Aside::default() })?;
        self.append(fences, entry);
        Some(())
    }
}

linked!(Aside);
