//! Memory: the user's regions ([`DataMrs`]) and the mailboxes that peers write ([`CtrlMr`]).
//!
//! They are different types on purpose: a control rail cannot be given user data, nor a data rail
//! a mailbox.

use super::rails::table::DataRail;
use super::records::{
    EarlySend, GroupRecord, HeldMessage, NO_REGION, ReceiveRecord, SendRecord, StreamRecord,
};
use super::request::{RequestError, SubmitError};
use crate::base::carve::{BlockTooSmall, Carver, RawSlice, Zeroable, lines};
use crate::base::pool::Pool;
use crate::base::regions::{Range, RegionTable, RemoveError};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};
use crate::base::units::Bytes;
use crate::fabric::{Line, LocalSpan, MemoryKind, RailKey, Region};
use crate::wire::RAILS_MAX;
use crate::wire::report::REPORT_BYTES_MAX;

/// The tag of a region that peers read without being helped.
pub const MAPPED: u64 = 1;
/// The tag of a region of a GPU, which the CPU neither reads nor writes.
const DEVICE: u64 = 2;

/// The user's registered memory: one key per data rail for each region.
///
/// Copies of the handle may be used from any thread; only pins belong to the data thread.
#[derive(Copy, Clone, Debug)]
pub struct DataMrs<'m> {
    table: RegionTable<'m>,
    keys: &'m [[AtomicU64; RAILS_MAX]],
    /// How often keys of regions in the table were changed, at most 255.
    versions: &'m AtomicU64,
}

/// A region that is kept from being deregistered.
#[derive(Copy, Clone, Debug)]
pub struct Held(u16);

/// Why a buffer is not one that may be sent or received into.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SpanError {
    /// The handle names no registered region.
    Region,
    /// The buffer does not lie inside the region.
    Range,
}

impl From<SpanError> for SubmitError {
    #[inline]
    fn from(error: SpanError) -> SubmitError {
        match error {
            SpanError::Region => SubmitError::Region,
            SpanError::Range => SubmitError::Range,
        }
    }
}

impl<'m> DataMrs<'m> {
    /// Cuts a table for `regions_max` regions, as `Limits::regions_bytes` counts.
    /// Handles of a table with another `salt` are not taken for this one's.
    pub fn carve(
        block: &mut Carver<'m>,
        regions_max: u32,
        salt: u32,
    ) -> Result<DataMrs<'m>, BlockTooSmall> {
        let count = regions_max as usize;
        let [head, versions]: &[AtomicU64; 2] = block.value()?;
        let next: &[AtomicU32] = block.slice(count)?;
        let slots = block.slice(count)?;
        let keys = block.slice(count)?;
        let table = RegionTable::salted(slots, Pool::new(head, next), salt);
        Ok(DataMrs { table, keys, versions })
    }

    /// Enters a region whose rails gave `keys`. `None` when the table is full.
    ///
    /// # Safety
    /// - the range stays valid for reads and writes until [`DataMrs::remove`] succeeded, and until
    ///   then nobody else touches parts that an outstanding request was given, as the request's
    ///   direction demands.
    pub unsafe fn insert(&self, region: Region, keys: &[RailKey; RAILS_MAX]) -> Option<Handle> {
        let tag = match region.kind {
            MemoryKind::Host => 0,
            MemoryKind::Mapped => MAPPED,
            MemoryKind::Cuda(_) => DEVICE,
        };
        let range = Range { start: region.address, length: region.length.0, tag };
        let handle = self.table.insert(range)?;
        for (key, cell) in keys.iter().zip(&self.keys[handle.index as usize]) {
            // release: the handle goes to the data thread by the user's own ordering
            cell.store(key.0, Ordering::Release);
        }
        Some(handle)
    }

    /// Whether there is no room for another region: a hint, where other threads register.
    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    /// The range of a region.
    pub fn range(&self, handle: Handle) -> Option<Range> {
        self.table.get(handle)
    }

    /// What rails call a region that lies in memory of a GPU, and its address lies in.
    pub fn keys_on_gpu(&self, handle: Handle, address: u64) -> Option<[RailKey; RAILS_MAX]> {
        let range = self.table.get(handle)?;
        let is_inside = address.checked_sub(range.start).is_some_and(|at| at < range.length);
        let keys = &self.keys[handle.index as usize];
        (range.tag == DEVICE && is_inside)
            .then(|| keys.each_ref().map(|key| RailKey(key.load(Ordering::Acquire))))
    }

    /// The keys of a region that no outstanding request uses.
    pub fn idle_keys(&self, handle: Handle) -> Result<[RailKey; RAILS_MAX], RemoveError> {
        self.table.idle(handle)?;
        let keys = &self.keys[handle.index as usize];
        Ok(keys.each_ref().map(|key| RailKey(key.load(Ordering::Acquire))))
    }

    /// What rails from `first` on call a region from now on. Key 0: nothing of it goes over that
    /// rail. No request uses the region, and nobody removes it meanwhile.
    pub fn keys_set(&self, region: Handle, first: usize, keys: &[RailKey]) {
        let mut is_other = false;
        for (key, cell) in keys.iter().zip(&self.keys[region.index as usize][first..]) {
            is_other |= cell.swap(key.0, Ordering::Release) != key.0;
        }
        if !is_other {
            return;
        }
        // whoever sees the new count, sees the keys
        let next = |version: u64| (version < u64::from(u8::MAX)).then(|| version + 1);
        let _ = self.versions.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }

    /// A number that changes with each change of keys, up to 255.
    pub(super) fn keys_version(&self) -> u8 {
        self.versions.load(Ordering::Acquire) as u8
    }

    /// Takes a region out.
    pub fn remove(&self, handle: Handle) -> Result<(), RemoveError> {
        self.table.remove(handle)
    }

    /// The same, if `forget` succeeds, which is called when no use of the region is left and none
    /// can begin. When it fails, the region stays in.
    pub fn remove_with<E: From<RemoveError>>(
        &self,
        handle: Handle,
        forget: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.table.remove_with(handle, forget)
    }

    /// Checks that a buffer lies in a region, and returns the region's number for the records.
    #[inline(always)]
    pub(super) fn check(
        &self,
        region: Handle,
        address: u64,
        length: u64,
    ) -> Result<u16, SpanError> {
        if length == 0 {
            return Ok(NO_REGION);
        }
        match self.table.holding(region, address, length) {
            Some(_) => Ok(region.index as u16),
            None => Err(self.error(region)),
        }
    }

    /// Checks that a buffer lies in a region; says whether the region is memory of a GPU.
    #[inline]
    pub fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SpanError> {
        let index = self.check(region, address, length)?;
        Ok(index != NO_REGION && self.is_device(index))
    }

    /// What a rail, by its place among the keys, calls the region that a buffer lies in; 0: it does
    /// not know the region.
    pub fn key_of(
        &self,
        region: Handle,
        address: u64,
        length: u64,
        rail: usize,
    ) -> Result<RailKey, SpanError> {
        self.check(region, address, length)?;
        // whoever registered has handed the region over
        Ok(RailKey(self.keys[region.index as usize][rail].load(Ordering::Acquire)))
    }

    /// Keeps a region from being deregistered until [`DataMrs::let_go`]. Data thread only.
    pub fn hold(&self, region: Handle, address: u64, length: u64) -> Result<Held, SpanError> {
        self.check_and_pin(region, address, length).map(Held)
    }

    /// Ends a [`DataMrs::hold`].
    pub fn let_go(&self, held: Held) {
        self.unpin(held.0);
    }

    /// [`DataMrs::check`], and counts an outstanding use. Data thread only.
    #[inline(always)]
    pub(super) fn check_and_pin(
        &self,
        region: Handle,
        address: u64,
        length: u64,
    ) -> Result<u16, SpanError> {
        if length == 0 {
            return Ok(NO_REGION);
        }
        match self.table.holding(region, address, length) {
            Some(slot) => {
                slot.pin(1);
                Ok(region.index as u16)
            }
            None => Err(self.error(region)),
        }
    }

    #[cold]
    #[inline(never)]
    fn error(&self, region: Handle) -> SpanError {
        if self.table.get(region).is_some() { SpanError::Range } else { SpanError::Region }
    }

    /// Whether a region's peers read it without being helped.
    pub(super) fn is_mapped(&self, region: u16) -> bool {
        region != NO_REGION && self.table.tag(u32::from(region)) == MAPPED
    }

    /// Whether a region lies in memory of a GPU.
    #[inline(always)]
    pub(super) fn is_device(&self, region: u16) -> bool {
        // no table is long enough for `NO_REGION`
        self.table.slot(u32::from(region)).is_some_and(|slot| slot.tag() == DEVICE)
    }

    /// The span of a buffer that [`DataMrs::check`] let pass, on one rail.
    #[inline(always)]
    pub(super) fn span(&self, region: u16, address: u64, length: u64, rail: DataRail) -> LocalSpan {
        // no table is long enough for `NO_REGION`
        let Some(keys) = self.keys.get(usize::from(region)) else {
            return LocalSpan::EMPTY;
        };
        let key = RailKey(keys[usize::from(rail.0)].load(Ordering::Relaxed));
        // SAFETY: `check` found the buffer inside a region whose registrant vouched for it
        // (`insert`), and the record that holds its number has it pinned against removal.
        unsafe { LocalSpan::new(address, Bytes(length), key) }
    }

    /// The key of a region on one rail.
    pub(super) fn key(&self, region: u16, rail: DataRail) -> u64 {
        match region {
            NO_REGION => 0,
            _ => self.keys[usize::from(region)][usize::from(rail.0)].load(Ordering::Relaxed),
        }
    }

    /// The handle of a region that is in use.
    pub(super) fn handle(&self, region: u16) -> Handle {
        self.table.current(u32::from(region))
    }

    /// Counts an outstanding use of a region. Data thread only.
    #[inline]
    pub(super) fn pin(&self, region: u16) {
        if region != NO_REGION {
            self.table.pin(u32::from(region), 1);
        }
    }

    /// Ends a use.
    #[inline(always)]
    pub(super) fn unpin(&self, region: u16) {
        // no table is long enough for `NO_REGION`
        if let Some(slot) = self.table.slot(u32::from(region)) {
            slot.pin(-1);
        }
    }
}

/// Control memory: the mailboxes of all connections, written by peers and read here line by line.
#[derive(Copy, Clone, Debug)]
pub struct CtrlMr {
    memory: RawSlice,
    stride: usize,
}

impl CtrlMr {
    /// Cuts mailboxes of `stride` bytes for `connections`.
    pub fn carve(
        block: &mut Carver<'_>,
        connections: u32,
        stride: usize,
    ) -> Result<CtrlMr, BlockTooSmall> {
        let memory = block.raw(connections as usize * stride)?;
        memory.start.expose_provenance(); // peers reach it by address
        Ok(CtrlMr { memory, stride })
    }

    /// All of it, for registration on control rails.
    pub fn region(&self) -> Region {
        Region {
            address: self.memory.start as u64,
            length: Bytes::of(self.memory.length),
            kind: MemoryKind::Host,
        }
    }

    /// Distance from one connection's mailbox to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Address of one connection's mailbox, for the hello.
    pub fn address(&self, connection: u32) -> u64 {
        self.memory.start as u64 + (connection as usize * self.stride) as u64
    }

    /// The last word of a line: sequence and epoch. *Cost*: one load.
    #[inline]
    pub(super) fn last_word(&self, connection: usize, line: usize) -> u64 {
        // acquire: pairs with the peer's write, whose last word is written last (doc/wire.md W3)
        self.word(connection, line, 7).load(Ordering::Acquire)
    }

    /// A whole line, its last word read first.
    pub(super) fn line(&self, connection: usize, line: usize) -> Line {
        let mut bytes = [0u8; 64];
        for index in (0..8).rev() {
            let word = self.word(connection, line, index).load(Ordering::Acquire);
            bytes[index * 8..index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// One word of a line that is whole.
    #[inline]
    pub(super) fn word_at(&self, connection: usize, line: usize, index: usize) -> u64 {
        self.word(connection, line, index).load(Ordering::Acquire)
    }

    /// Forgets what an earlier connection left. What no peer has written stays untouched.
    pub(super) fn clear(&self, connection: usize) {
        for line in 0..self.stride / lines(1) {
            for index in 0..8 {
                let word = self.word(connection, line, index);
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    fn word(&self, connection: usize, line: usize, index: usize) -> &AtomicU64 {
        let offset = connection * self.stride + line * lines(1) + index * 8;
        assert!(line * lines(1) < self.stride && offset < self.memory.length);
        // SAFETY: inside the raw slice (assert), which the block keeps alive for the endpoint and
        // which starts on a line; everyone touches it by atomics or as the provider's own thread.
        unsafe { &*self.memory.start.add(offset).cast::<AtomicU64>() }
    }
}

// SAFETY: the pointer is into memory that is reached by atomics only.
unsafe impl Send for CtrlMr {}

// SAFETY: integers, and a state whose zero is `Free` and an error whose zero is `None`: the first
// is `repr(u8)`, the second is checked below.
unsafe impl Zeroable for SendRecord {}
// SAFETY: integers, booleans, and an error as above.
unsafe impl Zeroable for GroupRecord {}
// SAFETY: integers.
unsafe impl Zeroable for ReceiveRecord {}
// SAFETY: integers.
unsafe impl Zeroable for EarlySend {}
// SAFETY: integers.
unsafe impl Zeroable for HeldMessage {}
// SAFETY: integers.
unsafe impl Zeroable for StreamRecord {}

/// The tag of a `repr(u8)` enum is its first byte, and `Option` has its own tag there: zero, as no
/// error has that.
const _: () = {
    let none: Option<RequestError> = None;
    // SAFETY: the first byte of the value, which is its tag and always there.
    assert!(unsafe { (&raw const none).cast::<u8>().read() } == 0);
    assert!(size_of::<Option<RequestError>>() == size_of::<RequestError>());
};

/// A little memory of the library's own, from which sends are filled that no user memory holds.
/// Rails copy a send at post, so one is enough.
#[derive(Debug)]
pub struct Scratch {
    memory: RawSlice,
}

/// Bytes of a long probe: as many as the longest message of the stream of a connection of several
/// lanes has, and longer than the packets of a network of 1500 bytes.
pub(super) const PROBE_BYTES: usize = super::limits::KEPT_BYTES as usize / 4;

const _: () = assert!(PROBE_BYTES > 1500);
const _: () = assert!(PROBE_BYTES >= REPORT_BYTES_MAX);
const _: () = assert!(REPORT_BYTES_MAX >= crate::wire::descriptor::DESCRIPTOR_BYTES_MAX);

/// Bytes of a scratch: the longest report, and a long probe where lanes may join.
pub const fn scratch_bytes(rails_max: u32) -> usize {
    if rails_max == 1 { REPORT_BYTES_MAX } else { PROBE_BYTES }
}

impl Scratch {
    /// Cuts one.
    pub fn carve(block: &mut Carver<'_>, rails_max: u32) -> Result<Scratch, BlockTooSmall> {
        let memory = block.raw(scratch_bytes(rails_max))?;
        memory.start.expose_provenance();
        Ok(Scratch { memory })
    }

    pub(super) fn length(&self) -> usize {
        self.memory.length
    }

    /// Puts `bytes` there; the span is good until the next call.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> LocalSpan {
        assert!(bytes.len() <= self.memory.length);
        // SAFETY: inside the raw slice (assert), which only this object touches.
        unsafe { self.memory.start.copy_from(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the memory lives as long as the endpoint; rails copy a send at post
        // (`Caps::copies_at_post`, asserted in `Net::lane_opened`), so nothing reads it later.
        unsafe {
            LocalSpan::new(self.memory.start as u64, Bytes::of(bytes.len()), RailKey::default())
        }
    }
}

// SAFETY: the pointer is into memory that only this object touches.
unsafe impl Send for Scratch {}

/// Copies of payloads of the stream that may have to be sent again: a ring of bytes for each
/// connection.
#[derive(Debug)]
pub struct Kept {
    memory: RawSlice,
}

impl Kept {
    /// Cuts rings of `length` bytes together.
    pub fn carve(block: &mut Carver<'_>, length: usize) -> Result<Kept, BlockTooSmall> {
        let memory = block.raw(length)?;
        if length != 0 {
            memory.start.expose_provenance();
        }
        Ok(Kept { memory })
    }

    /// Copies a payload to `offset`.
    pub(super) fn put(&mut self, offset: usize, payload: LocalSpan) {
        let length = payload.length().0 as usize;
        if length == 0 {
            return;
        }
        assert!(offset <= self.memory.length && length <= self.memory.length - offset);
        let from = core::ptr::with_exposed_provenance::<u8>(payload.address() as usize);
        // SAFETY: the span's maker vouches for the source, which is no part of this memory; the
        // target lies inside the raw slice (assert), which only this object touches.
        unsafe { self.memory.start.add(offset).copy_from(from, length) };
    }

    /// A payload that was put there.
    pub(super) fn span(&self, offset: usize, length: usize) -> LocalSpan {
        if length == 0 {
            return LocalSpan::EMPTY;
        }
        assert!(offset <= self.memory.length && length <= self.memory.length - offset);
        // SAFETY: inside the raw slice (assert), which lives as long as the endpoint; rails copy a
        // send at post (`Caps::copies_at_post`, asserted in `Net::lane_opened`).
        unsafe {
            LocalSpan::new(
                self.memory.start as u64 + offset as u64,
                Bytes::of(length),
                RailKey::default(),
            )
        }
    }
}

// SAFETY: the pointer is into memory that only this object touches.
unsafe impl Send for Kept {}

/// Registration for tests, which have no unsafe code of their own.
#[cfg(test)]
pub mod vouched {
    use super::*;
    use crate::fabric::{Domain, MemoryKind, RegisterError};

    /// Makes a mailbox known to a rail. The block must outlive the rail.
    pub fn register(domain: &impl Domain, region: Region) -> Result<RailKey, RegisterError> {
        // SAFETY: tests drop a block after the endpoint that was cut from it.
        unsafe { domain.register(region) }
    }

    /// Registers `memory`, which must stay untouched while requests stand on it.
    pub fn insert(domain: &impl Domain, table: &DataMrs<'_>, memory: &mut [u8]) -> Handle {
        let region = Region {
            address: memory.as_mut_ptr().expose_provenance() as u64,
            length: Bytes::of(memory.len()),
            kind: MemoryKind::Host,
        };
        let keys = [register(domain, region).expect("room for a region"); RAILS_MAX];
        // SAFETY: tests drop their memory after the endpoint, and look at it when a request ended.
        unsafe { table.insert(region, &keys) }.expect("room for a region")
    }
}
