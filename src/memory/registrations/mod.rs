//! A cache of registrations: memory that is registered again and again is registered once.
//!
//! Memory is registered by whole pages and counted, in one table under one lock: registering is no
//! data path.
//!
//! | what is asked for | |
//! |---|---|
//! | the very same pages, of the same kind | a hit: no system call |
//! | a part of a registration | a miss: holders of the whole may give up its other pages |
//!
//! What the last holder lets go is deregistered. Where a rail says that it is busy, the
//! registration *leaves*: no lookup finds it, and each later change tries again.
//!
//! A registration that came with a dma-buf keeps a descriptor of its own. So a rail that comes back
//! can make it again, whatever its owner has closed.
//!
//! Everything is in memory of the caller, as much as [`Registrations::bytes`] says; nothing is
//! allocated. Full is an answer.

mod descriptor;
#[cfg(test)]
mod tests;

use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::ranges::{CountedRanges, CountedSlot, Released, Span, Stale};
use crate::base::slab::Handle;
use crate::base::units::Bytes;
use crate::fabric::{DeregisterError, MemoryKind, RailKey, Region, RegisterError};
use crate::memory::locked;
use descriptor::Descriptors;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};

/// Most rails, each with a key of its own.
pub const RAILS_MAX: usize = 8;

/// Keys of one registration, by rail.
pub type Keys = [RailKey; RAILS_MAX];

/// Memory to register.
#[derive(Copy, Clone, Debug)]
pub struct Memory<'f> {
    /// Where it lies; by whole pages it is what gets registered.
    pub region: Region,
    /// The dma-buf that the memory is part of, and the offset of its first byte in it.
    pub dmabuf: Option<(BorrowedFd<'f>, u64)>,
}

/// What a registration is of, as the rails see it.
#[derive(Copy, Clone, Debug)]
pub struct Pages<'f> {
    /// Whole pages.
    pub region: Region,
    /// The cache's own descriptor, and the offset of the first page in it.
    pub dmabuf: Option<(BorrowedFd<'f>, u64)>,
}

/// Who registers with the rails. Called under the cache's lock, by one thread at a time.
pub trait Registrar {
    /// Registers pages on every rail, or on none; or on some, if it says so by
    /// [`Registrar::may_be_shared`].
    fn register(&mut self, pages: &Pages<'_>) -> Result<Keys, RegisterError>;

    /// Whether others may be given these keys. What some rail has refused is its holder's alone:
    /// the rail may grant it to whoever asks later.
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
    /// What the rails call it.
    pub keys: Keys,
}

/// What became of a registration that was let go.
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

/// What one registration has beside its range.
#[derive(Debug, Default)]
#[repr(C)]
struct Beside {
    keys: Keys,
    /// Where the first page lies in the dma-buf.
    offset: u64,
}

// SAFETY: integers.
unsafe impl crate::base::carve::Zeroable for Beside {}

/// The table, and what belongs to its ranges.
#[derive(Debug)]
struct Table<'m, R> {
    ranges: CountedRanges<'m>,
    beside: &'m mut [Beside],
    registrar: R,
    descriptors: Descriptors<'m>,
}

/// The cache.
#[derive(Debug)]
pub struct Registrations<'m, R> {
    page_bytes: u64,
    table: Mutex<Table<'m, R>>,
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
    /// What [`Registrations::carve`] cuts.
    pub const fn bytes(max: u32) -> usize {
        let max = max as usize;
        bytes_for::<CountedSlot>(max) + bytes_for::<Beside>(max) + Descriptors::bytes(max)
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
        let ranges = CountedRanges::new(carver.slice::<CountedSlot>(max)?);
        let beside = carver.slice::<Beside>(max)?;
        let descriptors = Descriptors::carve(carver, max)?;
        let table = Mutex::new(Table { ranges, beside, registrar, descriptors });
        Ok(Registrations { page_bytes, table })
    }

    /// A registration of the memory: one that is there, or a new one. Any thread.
    ///
    /// *Cost*: of a hit a look at every slot in use; of a miss what the rails take, too.
    pub fn acquire(&self, memory: &Memory<'_>) -> Result<Lease, AcquireError> {
        let span = self.span_of(memory)?;
        let table = &mut *self.lock();
        if let Some(handle) = table.ranges.acquire(&span) {
            return Ok(table.lease(handle));
        }
        table.leave_all();
        let handle = table.ranges.reserve(&span).ok_or(AcquireError::Full)?;
        match table.make(handle, memory, &span) {
            Ok(keys) => {
                if table.registrar.may_be_shared(&keys) {
                    table.ranges.publish(handle);
                }
                Ok(Lease { handle, keys })
            }
            Err(error) => {
                table.end(handle);
                Err(error)
            }
        }
    }

    /// Keys of a registration that the caller holds.
    pub fn keys(&self, handle: Handle) -> Option<Keys> {
        let table = self.lock();
        table.ranges.held(handle)?;
        Some(table.lease(handle).keys)
    }

    /// Gives a registration back. The last holder deregisters it. Any thread.
    ///
    /// *Cost*: of the last, what the rails take, and a look at every slot in use.
    pub fn release(&self, handle: Handle) -> Result<(), Stale> {
        let mut table = self.lock();
        match table.ranges.release(handle)? {
            Released::Held => {}
            Released::Last => {
                table.leave_all();
            }
        }
        Ok(())
    }

    /// [`Registrations::release`] by a holder that gives the memory up, and must know whether the
    /// rails still use it: what the last holder cannot deregister it goes on holding.
    pub fn release_wholly(&self, handle: Handle) -> Result<LetGo, LetGoError> {
        let mut table = self.lock();
        match table.ranges.release(handle) {
            Err(Stale) => return Err(LetGoError::Stale),
            Ok(Released::Held) => return Ok(LetGo::Held),
            Ok(Released::Last) => {}
        }
        table.ranges.withdraw(handle);
        match table.forget(handle) {
            Ok(()) | Err(DeregisterError::Stale) => {
                table.end(handle);
                Ok(LetGo::Forgotten)
            }
            Err(error) => {
                table.ranges.hold_again(handle);
                Err(LetGoError::Rail(error))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<'m, R>> {
        locked(&self.table)
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
        Ok(Span { start: address & !mask, end, kind: kind_pack(memory.region.kind) })
    }
}

/// What the rails see of a registration.
fn pages<'f>(
    handle: Handle,
    span: &Span,
    beside: &Beside,
    descriptors: &'f Descriptors<'_>,
) -> Pages<'f> {
    let kind = kind_unpack(span.kind);
    let region = Region { address: span.start, length: Bytes(span.end - span.start), kind };
    Pages { region, dmabuf: descriptors.get(handle.index).map(|fd| (fd, beside.offset)) }
}

impl<R: Registrar> Table<'_, R> {
    fn lease(&self, handle: Handle) -> Lease {
        Lease { handle, keys: self.beside[handle.index as usize].keys }
    }

    /// Registers a reserved range with the rails.
    fn make(
        &mut self,
        handle: Handle,
        memory: &Memory<'_>,
        span: &Span,
    ) -> Result<Keys, AcquireError> {
        let beside = &mut self.beside[handle.index as usize];
        if let Some((fd, offset)) = memory.dmabuf {
            beside.offset = offset - (memory.region.address - span.start);
            self.descriptors.keep(handle.index, fd).map_err(AcquireError::Descriptor)?;
        }
        let pages = pages(handle, span, beside, &self.descriptors);
        beside.keys = self.registrar.register(&pages).map_err(AcquireError::Rail)?;
        Ok(beside.keys)
    }

    /// Has the rails forget a range without a holder.
    fn forget(&mut self, handle: Handle) -> Result<(), DeregisterError> {
        self.registrar.deregister(&mut self.beside[handle.index as usize].keys)
    }

    /// Ends a range that the rails have forgotten, or never knew.
    fn end(&mut self, handle: Handle) {
        self.descriptors.close(handle.index);
        self.ranges.free(handle);
    }

    /// Deregisters ranges without a holder; says how many of them the rails keep busy.
    fn leave_all(&mut self) -> usize {
        let mut busy = 0;
        for index in 0..self.ranges.touched() {
            let Some(handle) = self.ranges.at(index) else { continue };
            if self.ranges.held(handle) != Some(0) {
                continue;
            }
            self.ranges.withdraw(handle);
            match self.forget(handle) {
                Err(DeregisterError::Busy) => busy += 1,
                // a key that the rails do not know, or cannot forget, is no use either
                Ok(()) | Err(DeregisterError::Stale | DeregisterError::Fabric(_)) => {
                    self.end(handle);
                }
            }
        }
        busy
    }
}
