//! A cache of registrations: memory that is registered again and again is registered once.
//!
//! Memory is registered by whole pages and counted.
//!
//! | request | allocation | result |
//! |---|---|---|
//! | the same pages and kind | the same | a hit: no lock and no system call |
//! | a part of a registered range | known, the same | a hit: allocations are freed as a whole |
//! | a part of a registered range | unknown | no hit: the other pages may be freed |
//!
//! When the last holder lets go, the memory is deregistered. If a rail says that it is busy, the
//! registration *leaves*: lookups no longer find it. Deregistration is tried again whenever a
//! registration is made or let go.
//!
//! Addresses are used again. A caller that can tell two allocations apart, as by a GPU's buffer id,
//! sets [`Memory::identity`]. A registration with another identity at the same addresses is of
//! memory that is gone. Lookups no longer find it; it stays for its holders alone.
//!
//! A registration with a dma-buf keeps a descriptor of its own. So it can be made again
//! ([`Registrations::renew`]) when a rail comes back, even if its owner has closed the descriptor.
//!
//! The cache lives in memory of the caller, [`Registrations::bytes`] long, and allocates nothing.
//! It can be full.

mod descriptor;
#[cfg(test)]
mod tests;

use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::pool::Pool;
use crate::base::ranges::{
    CountedRanges, CountedSlot, IndexEntry, IndexHead, Released, Span, Stale,
};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};
use crate::base::units::Bytes;
use crate::fabric::{DeregisterError, MemoryKind, RailKey, Region, RegisterError};
use descriptor::Descriptors;
extern crate std;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most rails, each with a key of its own.
pub const RAILS_MAX: usize = 8;

/// Keys of one registration, by rail.
pub type Keys = [RailKey; RAILS_MAX];

/// Memory to register.
#[derive(Copy, Clone, Debug)]
pub struct Memory<'f> {
    /// Where it lies; by whole pages it is what gets registered.
    pub region: Region,
    /// A number that another allocation at the same addresses does not have; 0: unknown.
    pub identity: u64,
    /// The dma-buf that the memory is part of, and the offset of its first byte in it.
    pub dmabuf: Option<(BorrowedFd<'f>, u64)>,
}

/// The memory of a registration, as the rails see it.
#[derive(Copy, Clone, Debug)]
pub struct Pages<'f> {
    /// Whole pages.
    pub region: Region,
    /// The cache's own descriptor, and the offset of the first page in it.
    pub dmabuf: Option<(BorrowedFd<'f>, u64)>,
}

/// Registers memory with the rails. Called under the cache's lock, by one thread at a time.
pub trait Registrar {
    /// Registers pages on every rail, or on none; or on some, if it says so by
    /// [`Registrar::may_be_shared`].
    fn register(&mut self, pages: &Pages<'_>) -> Result<Keys, RegisterError>;

    /// Whether other holders may get these keys. If a rail has refused the memory, the keys are
    /// their holder's alone: the rail may grant it at a later request.
    fn may_be_shared(&self, keys: &Keys) -> bool {
        let _ = keys;
        true
    }

    /// Forgets them on every rail. What is forgotten on some of them when others say Busy stays
    /// forgotten: the registrar changes its key to one that it passes over when it is asked again.
    fn deregister(&mut self, keys: &mut Keys) -> Result<(), DeregisterError>;
}

/// Why memory could not be registered. There is no registration then, and no descriptor.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AcquireError {
    /// The cache is full: let something go.
    Full,
    /// The range is empty, or its pages wrap around the address space.
    Range,
    /// The dma-buf's descriptor could not be duplicated; the errno.
    Descriptor(i32),
    /// A rail refused.
    Rail(RegisterError),
}

/// A registration that is held. Not an owner: it is given back by [`Registrations::release`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Lease {
    /// Its name, for giving it back.
    pub handle: Handle,
    /// The keys of the rails.
    pub keys: Keys,
}

/// The result of letting a registration go.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LetGo {
    /// Others hold it.
    Held,
    /// The rails have forgotten it.
    Forgotten,
}

/// Why a registration could not be let go for good: it is held as before, and found no more.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LetGoError {
    /// The handle names none.
    Stale,
    /// A rail refuses to forget it.
    Rail(DeregisterError),
}

/// The fields of a registration beside its range.
#[derive(Debug, Default)]
#[repr(C)]
struct Beside {
    keys: [AtomicU64; RAILS_MAX],
    /// Where the first page lies in the dma-buf.
    offset: AtomicU64,
}

// SAFETY: atomics of integers.
unsafe impl crate::base::carve::Zeroable for Beside {}

/// State that only one thread at a time accesses.
#[derive(Debug)]
struct Inside<'m, R> {
    registrar: R,
    descriptors: Descriptors<'m>,
}

/// The cache.
#[derive(Debug)]
pub struct Registrations<'m, R> {
    ranges: CountedRanges<'m>,
    beside: &'m [Beside],
    page_bytes: u64,
    inside: Mutex<Inside<'m, R>>,
}

const fn kind_pack(kind: MemoryKind) -> u64 {
    match kind {
        MemoryKind::Host => 0,
        MemoryKind::Mapped => 1,
        MemoryKind::Cuda(ordinal) => 2 | (ordinal as u64) << 8,
    }
}

const fn kind_unpack(kind: u64) -> MemoryKind {
    match kind & 0xff {
        0 => MemoryKind::Host,
        1 => MemoryKind::Mapped,
        _ => MemoryKind::Cuda((kind >> 8) as u32),
    }
}

impl<'m, R: Registrar> Registrations<'m, R> {
    /// Bytes that [`Registrations::carve`] cuts.
    pub const fn bytes(max: u32) -> usize {
        let max = max as usize;
        bytes_for::<CountedSlot>(max)
            + 2 * bytes_for::<IndexEntry>(max)
            + bytes_for::<IndexHead>(1)
            + bytes_for::<AtomicU32>(max)
            + bytes_for::<AtomicU64>(1)
            + bytes_for::<Beside>(max)
            + Descriptors::bytes(max)
    }

    /// A cache of `max` registrations by pages of `page_bytes`, a power of two.
    pub fn carve(
        carver: &mut Carver<'m>,
        max: u32,
        page_bytes: u64,
        registrar: R,
    ) -> Result<Registrations<'m, R>, BlockTooSmall> {
        assert!(page_bytes.is_power_of_two(), "pages of {page_bytes} bytes");
        let max = max as usize;
        let slots = carver.slice::<CountedSlot>(max)?;
        let copies = [&*carver.slice::<IndexEntry>(max)?, &*carver.slice::<IndexEntry>(max)?];
        let head = carver.value::<IndexHead>()?;
        let next = carver.slice::<AtomicU32>(max)?;
        let first = carver.value::<AtomicU64>()?;
        let beside = carver.slice::<Beside>(max)?;
        let descriptors = Descriptors::carve(carver, max)?;
        let ranges = CountedRanges::new(slots, copies, head, Pool::new(first, next));
        let inside = Mutex::new(Inside { registrar, descriptors });
        Ok(Registrations { ranges, beside, page_bytes, inside })
    }

    /// A registration of the memory: an existing one, or a new one. Any thread.
    ///
    /// *Cost*: a hit takes a search and one atomic operation. A miss takes the rails' time and a
    /// copy of the index.
    pub fn acquire(&self, memory: &Memory<'_>) -> Result<Lease, AcquireError> {
        let span = self.span_of(memory)?;
        if let Some(handle) = self.ranges.acquire(&span) {
            return Ok(self.lease(handle));
        }
        let mut inside = self.lock();
        // another thread may have made it meanwhile
        if let Some(handle) = self.ranges.acquire(&span) {
            return Ok(self.lease(handle));
        }
        self.supersede(&span);
        self.leave_all(&mut inside);
        let handle = self.ranges.reserve(&span).ok_or(AcquireError::Full)?;
        match self.make(&mut inside, handle, memory, &span) {
            Ok(keys) => {
                if inside.registrar.may_be_shared(&keys) {
                    self.ranges.publish(handle);
                }
                Ok(Lease { handle, keys })
            }
            Err(error) => {
                inside.descriptors.close(handle.index);
                self.ranges.forget(handle);
                Err(error)
            }
        }
    }

    /// The registration of the very same pages, without holding it. For callers that know of a
    /// holder. Any thread.
    pub fn find(&self, memory: &Memory<'_>) -> Option<Handle> {
        self.ranges.find(&self.span_of(memory).ok()?)
    }

    /// Keys of a registration that the caller holds.
    pub fn keys(&self, handle: Handle) -> Option<Keys> {
        self.ranges.held(handle)?;
        Some(self.lease(handle).keys)
    }

    /// Gives a registration back. The last holder deregisters it. Any thread.
    ///
    /// *Cost*: one atomic operation. The last holder adds the rails' time, a look at every slot,
    /// and a copy of the index.
    pub fn release(&self, handle: Handle) -> Result<(), Stale> {
        match self.ranges.release(handle)? {
            Released::Held => {}
            Released::Last => {
                self.leave_all(&mut self.lock());
            }
        }
        Ok(())
    }

    /// [`Registrations::release`] for a caller that gives the memory up, and must know whether the
    /// rails still use it. If the last holder's deregistration is refused, it goes on holding the
    /// registration.
    pub fn release_wholly(&self, handle: Handle) -> Result<LetGo, LetGoError> {
        let mut inside = self.lock();
        match self.ranges.release(handle) {
            Err(Stale) => return Err(LetGoError::Stale),
            Ok(Released::Held) => return Ok(LetGo::Held),
            Ok(Released::Last) => {}
        }
        if self.ranges.is_published(handle) {
            self.ranges.withdraw(handle);
        }
        match self.forget(&mut inside, handle) {
            Ok(()) | Err(DeregisterError::Stale) => {
                inside.descriptors.close(handle.index);
                self.ranges.free(handle);
                Ok(LetGo::Forgotten)
            }
            Err(error) => {
                self.ranges.hold_again(handle);
                Err(LetGoError::Rail(error))
            }
        }
    }

    /// The memory there is gone, or about to be: what is registered of it is found no more, and
    /// stays for its holders alone. For memory whose uses have no identities.
    pub fn invalidate(&self, region: &Region) {
        let _inside = self.lock();
        let end = region.address.saturating_add(region.length.0);
        let span = Span { start: region.address, end, ..Span::default() };
        while let Some((handle, _)) = self.ranges.overlapping(&span, 0) {
            self.ranges.withdraw(handle);
        }
    }

    /// Registers all held memory anew on one rail that has come back. `register` gives the new key.
    ///
    /// Registrations that lookups no longer find and that have no dma-buf are left out: their
    /// addresses may be other memory's. Stops at the first refusal; otherwise returns how many were
    /// made.
    pub fn renew(
        &self,
        rail: usize,
        mut register: impl FnMut(&mut R, &Pages<'_>) -> Result<RailKey, RegisterError>,
    ) -> Result<usize, RegisterError> {
        let mut inside = self.lock();
        let Inside { registrar, descriptors } = &mut *inside;
        let mut made = 0;
        for handle in self.all().filter(|handle| self.ranges.held(*handle) != Some(0)) {
            let Some(span) = self.ranges.span(handle) else { continue };
            let pages = self.pages(handle, &span, descriptors);
            if pages.dmabuf.is_none() && !self.ranges.is_published(handle) {
                continue;
            }
            let key = register(registrar, &pages)?;
            // release: whoever reads the key uses a rail that has it
            self.beside[handle.index as usize].keys[rail].store(key.0, Ordering::Release);
            made += 1;
        }
        Ok(made)
    }

    /// How many registrations there are, those that leave included.
    pub fn count(&self) -> usize {
        let _inside = self.lock();
        self.all().count()
    }

    /// Tries again to deregister what leaves; says how many are left.
    pub fn sweep(&self) -> usize {
        self.leave_all(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Inside<'m, R>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every registration. Under the lock.
    fn all(&self) -> impl Iterator<Item = Handle> {
        (0..self.ranges.capacity()).filter_map(|index| self.ranges.at(index))
    }

    fn span_of(&self, memory: &Memory<'_>) -> Result<Span, AcquireError> {
        let mask = self.page_bytes - 1;
        let Region { address, length, .. } = memory.region;
        let last = address.checked_add(length.0).ok_or(AcquireError::Range)?;
        let end = last.checked_add(mask).ok_or(AcquireError::Range)? & !mask;
        // the way into a dma-buf is by its own pages: there must be as much before the first byte
        let before = address & mask;
        let room = memory.dmabuf.is_none_or(|(_, offset)| offset >= before);
        if length.0 == 0 || !room {
            return Err(AcquireError::Range);
        }
        let (identity, kind) = (memory.identity, kind_pack(memory.region.kind));
        Ok(Span { start: address & !mask, end, identity, kind })
    }

    fn lease(&self, handle: Handle) -> Lease {
        let keys = &self.beside[handle.index as usize].keys;
        // acquire: pairs with `renew`; a lease's own keys came with the range
        Lease { handle, keys: keys.each_ref().map(|key| RailKey(key.load(Ordering::Acquire))) }
    }

    fn pages<'f>(
        &self,
        handle: Handle,
        span: &Span,
        descriptors: &'f Descriptors<'_>,
    ) -> Pages<'f> {
        let beside = &self.beside[handle.index as usize];
        let kind = kind_unpack(span.kind);
        let region = Region { address: span.start, length: Bytes(span.end - span.start), kind };
        let offset = beside.offset.load(Ordering::Relaxed);
        Pages { region, dmabuf: descriptors.get(handle.index).map(|fd| (fd, offset)) }
    }

    /// Registers a reserved range with the rails. Under the lock.
    fn make(
        &self,
        inside: &mut Inside<'m, R>,
        handle: Handle,
        memory: &Memory<'_>,
        span: &Span,
    ) -> Result<Keys, AcquireError> {
        let beside = &self.beside[handle.index as usize];
        if let Some((fd, offset)) = memory.dmabuf {
            let before = memory.region.address - span.start;
            beside.offset.store(offset - before, Ordering::Relaxed);
            inside.descriptors.keep(handle.index, fd).map_err(AcquireError::Descriptor)?;
        }
        let pages = self.pages(handle, span, &inside.descriptors);
        let keys = inside.registrar.register(&pages).map_err(AcquireError::Rail)?;
        for (cell, key) in beside.keys.iter().zip(keys) {
            cell.store(key.0, Ordering::Relaxed); // `publish` hands them over
        }
        Ok(keys)
    }

    /// Deregisters a registration without holders on all rails. Under the lock.
    fn forget(&self, inside: &mut Inside<'m, R>, handle: Handle) -> Result<(), DeregisterError> {
        let mut keys = self.lease(handle).keys;
        let forgotten = inside.registrar.deregister(&mut keys);
        for (cell, key) in self.beside[handle.index as usize].keys.iter().zip(keys) {
            cell.store(key.0, Ordering::Release);
        }
        forgotten
    }

    /// Memory at these addresses is another allocation's: what is registered of the old one is
    /// found no more. Under the lock.
    fn supersede(&self, span: &Span) {
        let mut from = 0;
        while let Some((handle, next)) = self.ranges.overlapping(span, from) {
            let old = self.ranges.span(handle);
            if old.is_some_and(|old| old.identity != span.identity) {
                self.ranges.withdraw(handle);
            } else {
                from = next;
            }
        }
    }

    /// Deregisters all registrations without holders. Returns how many the rails keep busy. Under
    /// the lock.
    fn leave_all(&self, inside: &mut Inside<'m, R>) -> usize {
        let mut busy = 0;
        for handle in self.all().filter(|handle| self.ranges.held(*handle) == Some(0)) {
            // its last holder may be on the way to do this
            if self.ranges.is_published(handle) {
                self.ranges.withdraw(handle);
            }
            match self.forget(inside, handle) {
                Err(DeregisterError::Busy) => busy += 1,
                // a key that the rails do not know, or cannot forget, is no use either
                Ok(()) | Err(DeregisterError::Stale | DeregisterError::Fabric(_)) => {
                    inside.descriptors.close(handle.index);
                    self.ranges.free(handle);
                }
            }
        }
        busy
    }
}

impl<R> Registrations<'_, R> {
    /// Returns the registrar, after `forget` has got each remaining registration. For teardown,
    /// when no thread uses the cache any more. Descriptors are closed.
    pub fn close(self, mut forget: impl FnMut(&mut R, &Keys)) -> R {
        let inside = self.inside.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Inside { mut registrar, mut descriptors } = inside;
        for handle in (0..self.ranges.capacity()).filter_map(|index| self.ranges.at(index)) {
            let keys = &self.beside[handle.index as usize].keys;
            forget(
                &mut registrar,
                &keys.each_ref().map(|key| RailKey(key.load(Ordering::Acquire))),
            );
            descriptors.close(handle.index);
        }
        registrar
    }
}
