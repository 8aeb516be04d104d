//! Registration with the device.

use super::sys::objects::deregister_raw;
use super::sys::{Device, MemoryRegion, ProtectionDomain, numbers};
use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::gate::{Entry, Gate};
use crate::base::pool::Pool;
use crate::base::regions::{Range, RegionSlot, RegionTable};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};
use crate::fabric::{DeregisterError, Domain, MemoryKind, RailKey, Region, RegisterError};
use crate::memory::Errno;
use core::ffi::c_int;
use core::mem::ManuallyDrop;

/// Most regions: a key has 16 bits for which.
pub const REGIONS_MAX: u32 = 0xffff;
/// What peers, and the device for us, may do in a region or through a queue pair.
const ACCESS: c_int =
    numbers::ACCESS_LOCAL_WRITE | numbers::ACCESS_REMOTE_WRITE | numbers::ACCESS_REMOTE_READ;
/// The same with adds, which nothing but rails that are used by themselves needs.
const ACCESS_ADDING: c_int = ACCESS | numbers::ACCESS_REMOTE_ATOMIC;
/// Set in the number of a registration that is one of a dma-buf: the library's are addresses, whose
/// lowest bits are 0.
const IS_DMABUF: u64 = 1;
/// The same of one that the device made without adds, which it was asked for.
const HAS_NO_ADDS: u64 = 2;
const MARKS: u64 = IS_DMABUF | HAS_NO_ADDS;

/// What rail and registering threads share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Before what is registered, and what that takes.
    gate: Gate,
    /// Whether payload regions may be registered with relaxed ordering.
    relaxed: bool,
    /// Whether the device has adds.
    has_adds: bool,
    pd: ManuallyDrop<ProtectionDomain>,
    device: ManuallyDrop<Device>,
}

impl Shared {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Asks the device for something that peers have access to, and once more without adds where it
    /// says that it has them and refuses: not every memory can be added to.
    pub fn with_access<T>(
        &self,
        mut ask: impl FnMut(c_int) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match ask(if self.has_adds { ACCESS_ADDING } else { ACCESS }) {
            Err(error) if self.has_adds && is_refusal(error) => ask(ACCESS),
            asked => asked,
        }
    }
}

/// Whether a device, or its driver, cannot do what it was asked for; rather than cannot now.
pub(super) fn is_refusal(error: Errno) -> bool {
    matches!(error.0, libc::EINVAL | libc::EOPNOTSUPP)
}

/// The registrations of one rail, shared by copy with every thread that registers.
///
/// A key is the device's key for peers, high, and below it 16 bits of the region's generation and
/// its index: peers use the high half, and we find the region by the low one.
#[derive(Copy, Clone, Debug)]
pub struct VerbsDomain<'m> {
    shared: &'m Shared,
    table: RegionTable<'m>,
    /// The device's registration of each region, as a number.
    registrations: &'m [AtomicU64],
}

/// The part of a key that the device knows.
pub(super) const fn rkey(key: RailKey) -> u32 {
    (key.0 >> 32) as u32
}

fn system(error: Errno) -> RegisterError {
    RegisterError::Fabric(error.0)
}

impl<'m> VerbsDomain<'m> {
    /// What [`VerbsDomain::carve`] cuts.
    pub const fn bytes(regions_max: u32) -> usize {
        bytes_for::<RegionSlot>(regions_max as usize)
            + bytes_for::<AtomicU32>(regions_max as usize)
            + bytes_for::<AtomicU64>(regions_max as usize)
            + bytes_for::<AtomicU64>(1)
            + bytes_for::<Shared>(1)
    }

    pub(super) fn carve(
        carver: &mut Carver<'m>,
        regions_max: u32,
        device: Device,
        pd: ProtectionDomain,
        (relaxed, has_adds): (bool, bool),
    ) -> Result<VerbsDomain<'m>, BlockTooSmall> {
        let count = regions_max as usize;
        let slots = carver.slice::<RegionSlot>(count)?;
        let next = carver.slice::<AtomicU32>(count)?;
        let registrations = carver.slice::<AtomicU64>(count)?;
        let head = carver.value::<AtomicU64>()?;
        let mut parts = Some((pd, device)); // dropped in this order, if at all
        let shared = carver.filled_with(1, || {
            let (pd, device) = parts.take().expect("one value is made");
            let (pd, device) = (ManuallyDrop::new(pd), ManuallyDrop::new(device));
            Shared { gate: Gate::default(), relaxed, has_adds, pd, device }
        })?;
        let table = RegionTable::new(slots, Pool::new(head, next));
        shared[0].gate.admit();
        Ok(VerbsDomain { shared: &shared[0], table, registrations })
    }

    pub(super) fn shared(&self) -> &'m Shared {
        self.shared
    }

    /// Counts this thread in. `false`: the rail has closed.
    fn enter(&self) -> bool {
        self.shared.gate.enter() == Entry::Inside
    }

    /// Registers memory of the host that carries payload alone: where the rail was opened so,
    /// writes into it may overtake each other on the bus. Never for memory that somebody polls.
    ///
    /// # Safety
    /// - as [`Domain::register`].
    pub unsafe fn register_payload(&self, region: Region) -> Result<RailKey, RegisterError> {
        // SAFETY: the caller vouches for the range.
        unsafe { self.register_as(region, self.shared.relaxed) }
    }

    /// # Safety
    /// - as [`Domain::register`].
    unsafe fn register_as(&self, region: Region, relaxed: bool) -> Result<RailKey, RegisterError> {
        match region.kind {
            MemoryKind::Host | MemoryKind::Mapped => {}
            MemoryKind::Cuda(_) if self.takes_dmabufs() => return Err(RegisterError::Kind),
            MemoryKind::Cuda(_) => return Err(RegisterError::Fabric(libc::ENOSYS)),
        }
        self.insert(region, 0, |pd, access| {
            // SAFETY: the caller vouches for the range.
            unsafe { pd.register(region.address, region.length.as_usize(), access, relaxed) }
        })
    }

    /// Whether the library can register dma-bufs; the device is asked with each.
    pub fn takes_dmabufs(&self) -> bool {
        self.shared.device.library().reg_dmabuf_mr.is_some()
    }

    /// Registers `length` bytes of a dma-buf, from `offset` on, which ops name by
    /// [`Region::address`]. The descriptor stays the caller's. It is for payload alone, as what
    /// [`VerbsDomain::register_payload`] registers.
    ///
    /// *Errors*: [`RegisterError::Fabric`] with EOPNOTSUPP where the device or its driver cannot,
    /// ENOSYS where libibverbs is too old; see [`dmabuf_refusal`].
    pub fn register_dmabuf(
        &self,
        region: Region,
        fd: c_int,
        offset: u64,
    ) -> Result<RailKey, RegisterError> {
        let order = if self.shared.relaxed { numbers::ACCESS_RELAXED_ORDERING } else { 0 };
        self.insert(region, IS_DMABUF, |pd, access| {
            let length = region.length.as_usize();
            pd.register_dmabuf(fd, offset, length, region.address, access | order)
        })
    }

    fn insert(
        &self,
        region: Region,
        kind: u64,
        make: impl Fn(&ProtectionDomain, c_int) -> Result<MemoryRegion, Errno>,
    ) -> Result<RailKey, RegisterError> {
        let end = region.address.checked_add(region.length.0);
        if region.length.0 == 0 || end.is_none() {
            return Err(RegisterError::Range);
        }
        if !self.enter() {
            return Err(RegisterError::Fabric(libc::ENODEV));
        }
        let made = self.shared.with_access(|access| {
            let adds = access & numbers::ACCESS_REMOTE_ATOMIC != 0;
            let mark = if adds { 0 } else { HAS_NO_ADDS };
            Ok((make(self.shared.pd(), access)?, kind | mark))
        });
        let result = made.map_err(system).and_then(|(made, marks)| self.file(region, marks, made));
        self.shared.gate.leave();
        result
    }

    fn file(
        &self,
        region: Region,
        marks: u64,
        made: MemoryRegion,
    ) -> Result<RailKey, RegisterError> {
        let (lkey, rkey) = (u64::from(made.lkey()), u64::from(made.rkey()));
        let (start, length) = (region.address, region.length.0);
        let range = Range { start, length, tag: lkey << 32 | rkey };
        let handle = self.table.insert(range).ok_or(RegisterError::Full)?;
        // whoever deregisters it has the key from us
        let raw = made.into_raw() | marks;
        self.registrations[handle.index as usize].store(raw, Ordering::Release);
        Ok(RailKey(rkey << 32 | u64::from(handle.generation & 0xffff) << 16 | handle.index as u64))
    }

    /// What a key names, if the index in it is one.
    fn handle(&self, key: RailKey) -> Option<Handle> {
        let index = (key.0 & 0xffff) as u32;
        if index as usize >= self.table.capacity() {
            return None;
        }
        let handle = self.table.current(index);
        let same = handle.generation & 0xffff == (key.0 >> 16) as u32 & 0xffff;
        (same && self.table.tag(index) as u32 == rkey(key)).then_some(handle)
    }

    /// Pins the region of ours that a range lies in: its index, and what the device calls it.
    /// `None`: the key names none, or the range lies outside.
    #[inline]
    pub(super) fn hold(&self, key: RailKey, address: u64, length: u64) -> Option<(u32, u32)> {
        let handle = self.handle(key)?;
        self.table.hold(handle, address, length)?;
        Some((handle.index, (self.table.tag(handle.index) >> 32) as u32))
    }

    /// Pins the region of ours that an address lies in: its index, and how much it has from there,
    /// `most` bytes at most.
    pub(super) fn hold_from(&self, key: RailKey, address: u64, most: u64) -> Option<(u32, u64)> {
        let range = self.table.get(self.handle(key)?)?;
        let offset = address.checked_sub(range.start)?;
        let length = range.length.checked_sub(offset).filter(|left| *left > 0)?.min(most);
        let (region, _) = self.hold(key, address, length)?;
        Some((region, length))
    }

    /// Whether a region that is pinned is one of a dma-buf, which the processor may not read.
    #[inline]
    pub(super) fn is_dmabuf(&self, index: u32) -> bool {
        // relaxed: whoever posts has the key from whoever registered
        self.registrations[index as usize].load(Ordering::Relaxed) & IS_DMABUF != 0
    }

    /// Whether a region that is pinned takes adds.
    #[inline]
    pub(super) fn takes_adds(&self, index: u32) -> bool {
        // relaxed: as above
        self.registrations[index as usize].load(Ordering::Relaxed) & HAS_NO_ADDS == 0
    }

    /// Lets go of a region.
    #[inline]
    pub(super) fn release(&self, index: u32) {
        self.table.pin(index, -1);
    }

    /// Gives everything back. Waits for threads that are registering.
    ///
    /// # Safety
    /// - it is called once; nobody uses the device, or what was made of it, afterwards but through
    ///   this type.
    pub(super) unsafe fn close(&self) {
        let shared = self.shared;
        shared.gate.shut(true);
        for registration in self.registrations {
            let raw = registration.swap(0, Ordering::AcqRel);
            if raw != 0 {
                // SAFETY: stored by `file`, and taken out by whoever gives it back.
                let _ = unsafe { deregister_raw(shared.device.library(), raw & !MARKS) };
            }
        }
        // SAFETY: taken once, as the caller vouches; whoever enters from now on is turned away.
        unsafe { drop(core::ptr::read(&*shared.pd)) };
        // SAFETY: as above.
        unsafe { drop(core::ptr::read(&*shared.device)) };
    }
}

impl Domain for VerbsDomain<'_> {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        // SAFETY: the caller vouches for the range.
        unsafe { self.register_as(region, false) }
    }

    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let handle = self.handle(key).ok_or(DeregisterError::Stale)?;
        if !self.enter() {
            return Err(DeregisterError::Fabric(libc::ENODEV));
        }
        let registration = &self.registrations[handle.index as usize];
        let result = self.table.remove_with(handle, || {
            let raw = registration.swap(0, Ordering::AcqRel);
            let library = self.shared.device.library();
            // SAFETY: stored by `file`; the table lets one thread come here.
            let done = unsafe { deregister_raw(library, raw & !MARKS) };
            done.map_err(|errno| {
                registration.store(raw, Ordering::Release);
                DeregisterError::Fabric(errno.0)
            })
        });
        self.shared.gate.leave();
        result
    }
}

/// Whether a device registers dma-bufs: asked with a descriptor that is none, which one that does
/// complains of, and one that does not never looks at.
pub fn device_takes_dmabufs(device: &Device) -> bool {
    let Ok(pd) = ProtectionDomain::create(device) else { return false };
    let asked = pd.register_dmabuf(-1, 0, 0, 0, 0);
    asked.err() == Some(Errno(libc::EBADF))
}

/// Why a dma-buf was not registered, in words, for what [`VerbsDomain::register_dmabuf`] said.
pub fn dmabuf_refusal(error: RegisterError) -> &'static str {
    match error {
        RegisterError::Fabric(libc::EOPNOTSUPP) => {
            "the RDMA device or its driver cannot register dma-bufs"
        }
        RegisterError::Fabric(libc::ENOSYS) => {
            "libibverbs is too old to register dma-bufs: it needs IBVERBS_1.12 (rdma-core 34)"
        }
        RegisterError::Fabric(libc::EBADF) => "the descriptor is no dma-buf",
        RegisterError::Fabric(_) => "the RDMA device refused to register the dma-buf",
        RegisterError::Full => "the rail's table of regions is full",
        RegisterError::Range => "the range of the dma-buf is empty or wraps around",
        RegisterError::Kind => "the rail cannot reach that kind of memory",
    }
}
