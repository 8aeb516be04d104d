//! Registration for rails that reach host memory with the CPU.

use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::pool::Pool;
use crate::base::regions::{Counter, Range, RegionSlot, RegionTable};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64};
use crate::fabric::{DeregisterError, Domain, MemoryKind, RailKey, Region, RegisterError};

/// A table of regions, shared by copy with every thread that registers.
///
/// A key is the region's handle as one number, so that a key kept too long names nothing.
#[derive(Copy, Clone, Debug)]
pub struct HostDomain<'m> {
    table: RegionTable<'m>,
    counter: Counter,
}

impl<'m> HostDomain<'m> {
    /// What [`HostDomain::carve`] cuts.
    pub const fn bytes(regions_max: u32) -> usize {
        bytes_for::<RegionSlot>(regions_max as usize)
            + bytes_for::<AtomicU32>(regions_max as usize)
            + bytes_for::<AtomicU64>(1)
    }

    /// A domain without regions.
    pub fn carve(carver: &mut Carver<'m>, max: u32) -> Result<HostDomain<'m>, BlockTooSmall> {
        let slots = carver.slice::<RegionSlot>(max as usize)?;
        let next = carver.slice::<AtomicU32>(max as usize)?;
        let head = carver.value::<AtomicU64>()?;
        Ok(HostDomain::over(RegionTable::new(slots, Pool::new(head, next))))
    }

    /// A domain over a table that another rail of this process shares, so that one key names a
    /// region on both.
    pub const fn over(table: RegionTable<'m>) -> HostDomain<'m> {
        HostDomain { table, counter: Counter::Data }
    }

    /// The same domain for a thread beside the data thread: what it holds is counted apart.
    pub const fn beside(self) -> HostDomain<'m> {
        HostDomain { counter: Counter::Beside, ..self }
    }

    /// The table index of the region that holds the range, if `key` names one that does.
    #[inline]
    pub fn find(&self, key: RailKey, address: u64, length: u64) -> Option<u32> {
        let handle = Handle::unpack(key.0);
        self.table.get(handle)?.contains(address, length).then_some(handle.index)
    }

    /// [`HostDomain::find`] for a range that a peer names, and pins the region: a thread that takes
    /// it out meanwhile is refused, or has come first. See [`RegionTable::hold`].
    #[inline]
    pub fn hold(&self, key: RailKey, address: u64, length: u64) -> Option<u32> {
        let handle = Handle::unpack(key.0);
        self.table.hold_as(self.counter, handle, address, length).map(|_| handle.index)
    }

    /// Counts an op that uses the region in (`+1`) or out (`-1`); see [`RegionTable::pin`].
    pub fn pin(&self, index: u32, change: i32) {
        self.table.pin_as(self.counter, index, change);
    }

    /// Lets go of a pin that was kept as the region's index plus one; 0: there is none.
    #[inline]
    pub fn unpin(&self, pin: u32) {
        if let Some(index) = pin.checked_sub(1) {
            self.pin(index, -1);
        }
    }
}

impl Domain for HostDomain<'_> {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        match region.kind {
            MemoryKind::Host | MemoryKind::Mapped => {}
            MemoryKind::Cuda(_) => return Err(RegisterError::Kind),
        }
        let end = region.address.checked_add(region.length.0);
        if region.length.0 == 0 || end.is_none() {
            return Err(RegisterError::Range);
        }
        let range = Range { start: region.address, length: region.length.0, tag: 0 };
        let handle = self.table.insert(range).ok_or(RegisterError::Full)?;
        Ok(RailKey(handle.pack()))
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        Ok(self.table.remove(Handle::unpack(key.0))?)
    }
}
