//! Registration: a table that the data thread looks keys up in, and the board that peers read.

use super::board::Board;
use crate::base::regions::{Range, RegionTable};
use crate::base::slab::Handle;
use crate::fabric::{
    DeregisterError, Domain, LocalSpan, MemoryKind, RailKey, Region, RegisterError,
};

/// The registration side of [`super::Shm`], from any thread.
#[derive(Copy, Clone, Debug)]
pub struct ShmDomain<'m> {
    pub(super) regions: RegionTable<'m>,
    pub(super) board: Board,
}

impl<'m> ShmDomain<'m> {
    /// The table, for a rail beside this one that knows regions by the same keys.
    pub const fn table(&self) -> RegionTable<'m> {
        self.regions
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
        match region.kind {
            MemoryKind::Host | MemoryKind::Mapped => {}
            MemoryKind::Cuda(_) => return Err(RegisterError::Kind),
        }
        let (start, length) = (region.address, region.length.0);
        if length == 0 || start.checked_add(length).is_none() {
            return Err(RegisterError::Range);
        }
        let range = Range { start, length, tag: 0 };
        let handle = self.regions.insert(range).ok_or(RegisterError::Full)?;
        self.board.publish(handle, range);
        Ok(RailKey(handle.pack()))
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let handle = Handle::unpack(key.0);
        self.regions.remove(handle)?;
        self.board.withdraw(handle);
        Ok(())
    }
}
