//! Registration: a table that the data thread looks keys up in, and the board that peers read.

use super::board::Board;
use crate::base::regions::{Range, RegionTable};
use crate::base::slab::Handle;
use crate::fabric::{
    DeregisterError, Domain, LocalSpan, MemoryKind, RailKey, Region, RegisterError,
};
use crate::provider::copy_engine::DEVICE_KEY;

/// The registration side of [`super::Shm`], from any thread.
#[derive(Copy, Clone, Debug)]
pub struct ShmDomain<'m> {
    pub(super) regions: RegionTable<'m>,
    pub(super) board: Board,
    /// Whether memory of GPUs may be registered: a copy engine moves it.
    pub(super) has_gpus: bool,
}

impl<'m> ShmDomain<'m> {
    /// The table, for a rail beside this one that knows regions by the same keys.
    pub const fn table(&self) -> RegionTable<'m> {
        self.regions
    }

    /// The same, for memory of GPUs too.
    pub const fn with_gpus(self) -> ShmDomain<'m> {
        ShmDomain { has_gpus: true, ..self }
    }

    /// Pins the region of a span that an op is about to use. `None`: the span does not lie in the
    /// region that its key names.
    pub(super) fn pin(&self, span: LocalSpan) -> Option<()> {
        let handle = Handle::unpack(span.key().0);
        self.regions.hold(handle, span.address(), span.length().0).map(|_| ())
    }
}

impl Domain for ShmDomain<'_> {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        if matches!(region.kind, MemoryKind::Cuda(_)) && !self.has_gpus {
            return Err(RegisterError::Kind);
        }
        let (start, length) = (region.address, region.length.0);
        if length == 0 || start.checked_add(length).is_none() {
            return Err(RegisterError::Range);
        }
        // whose memory it is: 0 the process's, else a GPU's, by its number
        let tag = match region.kind {
            MemoryKind::Host | MemoryKind::Mapped => 0,
            MemoryKind::Cuda(gpu) => u64::from(gpu) + 1,
        };
        let range = Range { start, length, tag };
        let handle = self.regions.insert(range).ok_or(RegisterError::Full)?;
        if tag != 0 {
            return Ok(RailKey(handle.pack() | DEVICE_KEY));
        }
        self.board.publish(handle, range);
        Ok(RailKey(handle.pack()))
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let handle = Handle::unpack(key.0 & !DEVICE_KEY);
        self.regions.remove(handle)?;
        self.board.withdraw(handle);
        Ok(())
    }
}
