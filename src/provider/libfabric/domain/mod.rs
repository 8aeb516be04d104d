//! Registration with the library.

pub mod turns;

use super::sys::calls::FidEp;
use super::sys::{Code, Domain as LibraryDomain, Registration, numbers as n};
use super::{Step, Traits};
use crate::base::carve::{BlockTooSmall, Carver, bytes_for};
use crate::base::gate::{Entry, Gate};
use crate::base::pool::Pool;
use crate::base::recall::Recall;
use crate::base::regions::{Range, RegionSlot, RegionTable};
use crate::base::slab::Handle;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering, spin_loop};
use crate::fabric::{DeregisterError, Domain, MemoryKind, RailKey, Region, RegisterError};
use core::ffi::{c_int, c_void};
use turns::{Act, Turn, Turns, pause};

/// Most regions.
pub const REGIONS_MAX: u32 = 0xffff;
/// What the library, for us and for peers, may do in memory.
const ACCESS: u64 = n::SEND | n::RECV | n::READ | n::WRITE | n::REMOTE_READ | n::REMOTE_WRITE;

/// The tag of a region of the host's memory. A GPU's is its number, and one more.
const HOST: u64 = 0;

/// Every key of ours has been used, and none is used twice.
const NO_KEY_LEFT: Code = Code(libc::ENOSPC);

/// To what a registration belongs. Chosen once, when the rail is opened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Scope {
    /// To the domain.
    Domain,
    /// To the endpoint: it is bound to that, and enabled (`FI_MR_ENDPOINT`).
    Endpoint,
}

/// Who chooses keys.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Keys {
    /// The library.
    Library,
    /// We do, of so many bytes.
    Ours(u8),
}

/// What rail and registering threads share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Before what is registered, and what that takes.
    gate: Gate,
    scope: Scope,
    keys: Keys,
    reaches_gpus: bool,
    takes_dmabufs: bool,
    /// Domain and endpoint, as numbers: open objects while the gate is open, or 0: there are none,
    /// since they could not be opened again.
    domain: AtomicU64,
    endpoint: AtomicU64,
    /// Keys that were used.
    keys_made: AtomicU64,
    /// Whether a region is wanted back from peers.
    wanted: AtomicU32,
    turns: Turns,
}

/// The registrations of one rail, shared by copy with every thread that registers.
///
/// A key is the region's generation, high, and its index. What the library calls the region, peers
/// ask for when they first use it: some libraries have keys of 64 bits, and some want an offset
/// where others want an address.
#[derive(Copy, Clone, Debug)]
pub struct LibfabricDomain<'m> {
    shared: &'m Shared,
    table: RegionTable<'m>,
    /// The library's registration of each region, as a number.
    registrations: &'m [AtomicU64],
    /// What the library calls each towards peers.
    library_keys: &'m [AtomicU64],
    /// Whether it is wanted back from peers, or doomed.
    recalls: &'m [Recall],
    /// How many peers were told of it and may use it.
    holders: &'m [AtomicU32],
    /// Of a GPU's region: the dma-buf that it was registered by.
    dmabufs: &'m [DmabufSlot],
}

/// A descriptor, and one more, and the offset of a region in it; 0: there is none. It is open until
/// the region is deregistered.
#[derive(Debug, Default)]
struct DmabufSlot {
    file: AtomicU32,
    offset: AtomicU64,
}

impl DmabufSlot {
    /// Before the region is registered, and so before anybody else looks.
    fn set(&self, dmabuf: Option<(c_int, u64)>) {
        let (file, offset) = dmabuf.map_or((0, 0), |(file, offset)| (file as u32 + 1, offset));
        self.offset.store(offset, Ordering::Relaxed);
        self.file.store(file, Ordering::Relaxed);
    }

    fn get(&self) -> Option<(c_int, u64)> {
        let file = self.file.load(Ordering::Relaxed).checked_sub(1)?;
        Some((file as c_int, self.offset.load(Ordering::Relaxed)))
    }
}

fn refused(code: Code) -> RegisterError {
    RegisterError::Fabric(code.0)
}

const fn key_of(handle: Handle) -> RailKey {
    RailKey((handle.generation as u64) << 32 | handle.index as u64)
}

const fn handle_of(key: RailKey) -> Handle {
    Handle { index: key.0 as u32, generation: (key.0 >> 32) as u32 }
}

impl<'m> LibfabricDomain<'m> {
    /// What [`LibfabricDomain::carve`] cuts.
    pub const fn bytes(regions_max: u32) -> usize {
        let count = regions_max as usize;
        bytes_for::<RegionSlot>(count)
            + 2 * bytes_for::<AtomicU32>(count)
            + bytes_for::<Recall>(count)
            + 2 * bytes_for::<AtomicU64>(count)
            + bytes_for::<DmabufSlot>(count)
            + bytes_for::<AtomicU64>(1)
            + bytes_for::<Shared>(1)
    }

    pub(super) fn carve(
        carver: &mut Carver<'m>,
        regions_max: u32,
        traits: &Traits,
    ) -> Result<LibfabricDomain<'m>, BlockTooSmall> {
        let count = regions_max as usize;
        let slots = carver.slice::<RegionSlot>(count)?;
        let next = carver.slice::<AtomicU32>(count)?;
        let recalls = carver.filled_with(count, Recall::default)?;
        let holders = carver.slice::<AtomicU32>(count)?;
        let registrations = carver.slice::<AtomicU64>(count)?;
        let library_keys = carver.slice::<AtomicU64>(count)?;
        let dmabufs = carver.filled_with(count, DmabufSlot::default)?;
        let head = carver.value::<AtomicU64>()?;
        let shared = carver.filled_with(1, || Shared {
            gate: Gate::default(),
            scope: traits.scope,
            keys: traits.keys,
            reaches_gpus: traits.reaches_gpus,
            takes_dmabufs: traits.takes_dmabufs,
            domain: AtomicU64::new(0),
            endpoint: AtomicU64::new(0),
            keys_made: AtomicU64::new(1),
            wanted: AtomicU32::new(0),
            turns: Turns::new(traits.callers, traits.scope),
        })?;
        let table = RegionTable::new(slots, Pool::new(head, next));
        let shared = &shared[0];
        Ok(LibfabricDomain {
            shared,
            table,
            registrations,
            library_keys,
            recalls,
            holders,
            dmabufs,
        })
    }

    /// From now on memory is registered with these, once threads are let in.
    ///
    /// # Safety
    /// - both, the first by [`LibraryDomain::as_raw`], stay open until
    ///   [`LibfabricDomain::shut`] has returned;
    /// - it is called by the rail's thread, while the gate is closed.
    pub(super) unsafe fn open(&self, domain: u64, endpoint: *mut FidEp) {
        self.shared.domain.store(domain, Ordering::Relaxed);
        self.shared.endpoint.store(endpoint as u64, Ordering::Relaxed);
    }

    /// Lets threads in. Where nothing is open, because the NIC is still away, what they register is
    /// registered with the library when it is back: the thread that waits may be the one that
    /// brings it back.
    pub(super) fn admit(&self) {
        self.shared.gate.admit();
    }

    /// Turns threads away, waits for those inside, and closes every registration. The regions stay
    /// in the table. `for_good`: whoever comes later is refused, rather than kept waiting.
    pub(super) fn shut(&self, for_good: bool) {
        self.shared.gate.shut(for_good);
        for registration in self.registrations {
            let raw = registration.swap(0, Ordering::AcqRel);
            if raw != 0 {
                // nothing can be done about a refusal: the domain goes with it
                let _ = Registration::from_raw(raw).close();
            }
        }
        self.shared.domain.store(0, Ordering::Relaxed);
        self.shared.endpoint.store(0, Ordering::Relaxed);
    }

    /// Registers every region of the table anew, before threads are let in: one that came or went
    /// meanwhile would be registered twice, or for nobody. What is doomed is left out, since its
    /// memory may have gone; [`LibfabricDomain::bury`] frees its place. Peers hold keys of the
    /// others, so that where one is refused, the endpoint cannot be used.
    pub(super) fn restore(&self) -> Result<(), (Step, Code)> {
        for (index, registration) in self.registrations.iter().enumerate() {
            let handle = self.table.current(index as u32);
            let Some(range) = self.table.get(handle) else { continue };
            // nobody dooms it from here on: that is done inside the gate, which is closed
            if self.is_doomed(index as u32) {
                continue;
            }
            let dmabuf = self.dmabufs[index].get();
            let bounds = (range.start, range.length as usize);
            // SAFETY: who registered it vouches for the range until it is deregistered.
            let made = unsafe { self.make_of(bounds, range.tag, dmabuf) };
            let made = made.map_err(|code| (Step::Regions, code))?;
            self.library_keys[index].store(made.key(), Ordering::Relaxed);
            registration.store(made.into_raw(), Ordering::Release);
        }
        Ok(())
    }

    /// Registers memory: a region's, or the rail's own. No key is used twice, also not when the
    /// endpoint is opened again: who knew an old one reaches nothing with it.
    ///
    /// # Safety
    /// - the range stays valid until the registration is closed;
    /// - the caller is inside the gate, or is the rail's thread, and the domain is open.
    pub(super) unsafe fn make(&self, range: (u64, usize)) -> Result<Registration, Code> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.make_of(range, HOST, None) }
    }

    /// The same of memory of which a region's tag says whose it is. A provider that refuses the
    /// dma-buf is given the address.
    ///
    /// # Safety
    /// - as [`LibfabricDomain::make`]; the dma-buf is open.
    unsafe fn make_of(
        &self,
        range: (u64, usize),
        tag: u64,
        dmabuf: Option<(c_int, u64)>,
    ) -> Result<Registration, Code> {
        let endpoint = match self.shared.scope {
            Scope::Domain => None,
            Scope::Endpoint => Some(self.shared.endpoint.load(Ordering::Relaxed) as *mut FidEp),
        };
        let key = self.key_next()?;
        let domain = self.shared.domain.load(Ordering::Relaxed);
        // SAFETY: inside the gate the domain is open.
        let domain = unsafe { LibraryDomain::from_raw(domain) };
        let _turn = self.turn(Act::Register);
        let Some(gpu) = tag.checked_sub(1) else {
            // SAFETY: the caller vouches for the range; the endpoint closes after its
            // registrations.
            return unsafe { domain.register(range, ACCESS, key, endpoint) };
        };
        let gpu = gpu as u32;
        if let Some(dmabuf) = dmabuf {
            let access = (ACCESS, key);
            // SAFETY: as above; the descriptor is open.
            let made = unsafe { domain.register_dmabuf(range, dmabuf, access, endpoint, gpu) };
            if made.is_ok() {
                return made;
            }
        }
        // SAFETY: as above.
        unsafe { domain.register_gpu(range, ACCESS, key, endpoint, gpu) }
    }

    /// Whether memory of GPUs may be registered.
    pub fn reaches_gpus(&self) -> bool {
        self.shared.reaches_gpus
    }

    /// Whether that may be named by a dma-buf.
    pub fn takes_dmabufs(&self) -> bool {
        self.shared.takes_dmabufs
    }

    /// The key that is asked for: the next of ours, or none where the library chooses. No key is
    /// used twice, so that short ones end.
    fn key_next(&self) -> Result<u64, Code> {
        let Keys::Ours(bytes) = self.shared.keys else { return Ok(0) };
        let number = self.shared.keys_made.fetch_add(1, Ordering::Relaxed);
        let is_short = number.checked_shr(8 * u32::from(bytes)).unwrap_or(0) == 0;
        if is_short { Ok(number) } else { Err(NO_KEY_LEFT) }
    }

    /// This thread's turn in the library, where it wants turns.
    #[inline]
    pub(super) fn turn(&self, act: Act) -> Turn<'m> {
        self.shared.turns.take(act)
    }

    /// Counts this thread in. `false`: the rail has closed for good.
    fn enter(&self) -> bool {
        let mut looks = 0u32;
        loop {
            match self.shared.gate.enter() {
                Entry::Inside => return true,
                Entry::Gone => return false,
                // the endpoint is being opened again, by a thread that may want this CPU
                Entry::Shut => {
                    looks = looks.wrapping_add(1);
                    pause(looks);
                    spin_loop();
                }
            }
        }
    }

    fn leave(&self) {
        self.shared.gate.leave();
    }

    /// Pins the region of ours that a range lies in: its index, and what the library's calls name
    /// it by. `None`: the key names none, or the range lies outside.
    #[inline(always)]
    pub(super) fn hold(
        &self,
        key: RailKey,
        address: u64,
        length: u64,
    ) -> Option<(u32, *mut c_void)> {
        let handle = handle_of(key);
        self.table.hold(handle, address, length)?;
        // acquire: pairs with `file`
        let raw = self.registrations[handle.index as usize].load(Ordering::Acquire);
        if raw == 0 {
            self.release(handle.index);
            return None;
        }
        Some((handle.index, Registration::from_raw(raw).descriptor()))
    }

    /// Pins a whole region for a peer: its index, and where it lies. Not one that is doomed, as far
    /// as is known now.
    pub(super) fn hold_whole(&self, key: RailKey) -> Option<(u32, Range)> {
        let handle = handle_of(key);
        let whole = self.table.get(handle)?;
        if self.is_doomed(handle.index) {
            return None;
        }
        self.table.hold(handle, whole.start, whole.length)?;
        self.count_holder(handle.index as usize, 1);
        // who wanted it back asks again; what is doomed by now stays so, for nobody asks
        self.recalls[handle.index as usize].want_no_more();
        Some((handle.index, whole))
    }

    /// What the library calls a region that is pinned towards peers; `None`: it is not registered.
    pub(super) fn library_key(&self, index: u32) -> Option<u64> {
        let index = index as usize;
        let is_registered = self.registrations[index].load(Ordering::Acquire) != 0;
        is_registered.then(|| self.library_keys[index].load(Ordering::Relaxed))
    }

    /// Pins the region of ours that an address lies in, for a flush of `most` bytes or as many as
    /// the region has from there.
    pub(super) fn hold_for_flush(
        &self,
        key: RailKey,
        address: u64,
        most: u64,
    ) -> Option<FlushSource> {
        let handle = handle_of(key);
        let range = self.table.get(handle)?;
        let offset = address.checked_sub(range.start)?;
        let length = range.length.checked_sub(offset).filter(|left| *left > 0)?.min(most);
        let (region, _) = self.hold(key, address, length)?;
        let library_key = self.library_keys[handle.index as usize].load(Ordering::Relaxed);
        Some(FlushSource { region, library_key, start: range.start, length })
    }

    /// Lets go of a region.
    #[inline]
    pub(super) fn release(&self, index: u32) {
        self.table.pin(index, -1);
    }

    /// A peer holds a whole region no more.
    pub(super) fn release_whole(&self, index: u32) {
        self.count_holder(index as usize, -1);
        self.release(index);
    }

    /// By the rail's thread alone.
    fn count_holder(&self, index: usize, change: i32) {
        let before = self.holders[index].load(Ordering::Relaxed);
        self.holders[index].store(before.wrapping_add_signed(change), Ordering::Release);
    }

    /// [`Domain::deregister`] for memory that no request uses any more: where nothing but peers
    /// that were told of it stand in the way, which may be elsewhere, it succeeds, and the region
    /// goes when they have given it back or are gone. The memory stays registered so long, and
    /// takes a place of the table.
    pub fn deregister_soon(&self, key: RailKey) -> Result<(), DeregisterError> {
        match self.deregister(key) {
            Err(DeregisterError::Busy) => self.doom(handle_of(key).index),
            result => result,
        }
    }

    /// [`LibfabricDomain::deregister_soon`] of a region that was busy. Inside the gate: while an
    /// endpoint is opened again, [`LibfabricDomain::restore`] registers whatever is not doomed.
    fn doom(&self, index: u32) -> Result<(), DeregisterError> {
        if !self.enter() {
            return Err(DeregisterError::Fabric(libc::ENODEV));
        }
        let holders = self.holders[index as usize].load(Ordering::Acquire);
        let result = match self.table.pins(index) > holders {
            true => Err(DeregisterError::Busy), // ops of ours use it
            false => {
                self.recalls[index as usize].doom();
                self.shared.wanted.store(1, Ordering::Release);
                Ok(())
            }
        };
        self.leave();
        result
    }

    fn is_doomed(&self, index: u32) -> bool {
        self.recalls[index as usize].is_doomed()
    }

    /// Closes the regions that are doomed and that nobody holds any more; whether there are others.
    pub(super) fn bury(&self) -> bool {
        let mut left = false;
        for (index, recall) in self.recalls.iter().enumerate() {
            if recall.is_doomed() {
                match self.deregister(self.key_at(index as u32)) {
                    // what the library does not close stays doomed: its memory may have gone
                    Err(DeregisterError::Busy | DeregisterError::Fabric(_)) => left = true,
                    // its place may be another region's by now
                    Ok(()) => {}
                    Err(DeregisterError::Stale) => recall.reset(),
                }
            }
        }
        left
    }

    /// The key of the region that is at an index now.
    pub(super) fn key_at(&self, index: u32) -> RailKey {
        key_of(self.table.current(index))
    }

    /// Whether some region is wanted back from peers.
    #[inline]
    pub(super) fn wants_any(&self) -> bool {
        self.shared.wanted.load(Ordering::Relaxed) != 0
    }

    /// Whether this one is.
    pub(super) fn wants(&self, index: u32) -> bool {
        self.recalls[index as usize].is_wanted()
    }

    /// Looks for what is wanted back, which peers are `asked` for: whether they hold some.
    pub(super) fn look_for_wanted(&self, asked: impl FnOnce() -> bool) {
        // before the look, so that what another thread wants meanwhile is looked for next time.
        // acquire: pairs with its release; the look sees all that was wanted before
        self.shared.wanted.swap(0, Ordering::AcqRel);
        let left = self.bury();
        if asked() || left {
            self.shared.wanted.store(1, Ordering::Release);
        }
    }
}

impl LibfabricDomain<'_> {
    /// Registers memory; of a GPU's also a descriptor of the dma-buf that it lies in, and the
    /// offset of its first byte there, which a library that has no dma-bufs does without.
    ///
    /// # Safety
    /// - as [`Domain::register`]; the descriptor is open until the region was deregistered.
    pub unsafe fn register_with(
        &self,
        region: Region,
        dmabuf: Option<(c_int, u64)>,
    ) -> Result<RailKey, RegisterError> {
        let tag = match region.kind {
            MemoryKind::Host | MemoryKind::Mapped => HOST,
            MemoryKind::Cuda(gpu) if self.reaches_gpus() => u64::from(gpu) + 1,
            MemoryKind::Cuda(_) => return Err(RegisterError::Kind),
        };
        let end = region.address.checked_add(region.length.0);
        if region.length.0 == 0 || end.is_none() {
            return Err(RegisterError::Range);
        }
        if !self.enter() {
            return Err(RegisterError::Fabric(libc::ENODEV));
        }
        let dmabuf = dmabuf.filter(|_| self.takes_dmabufs());
        let range = Range { start: region.address, length: region.length.0, tag };
        let result = self.table.insert(range).ok_or(RegisterError::Full).and_then(|handle| {
            // SAFETY: the caller vouches for the range; we are inside the gate.
            unsafe { self.enter_library(handle, range, dmabuf) }
        });
        self.leave();
        result
    }

    /// Registers a region of the table with the library.
    ///
    /// # Safety
    /// - as [`LibfabricDomain::register_with`]; the caller is inside the gate.
    unsafe fn enter_library(
        &self,
        handle: Handle,
        range: Range,
        dmabuf: Option<(c_int, u64)>,
    ) -> Result<RailKey, RegisterError> {
        let index = handle.index as usize;
        self.dmabufs[index].set(dmabuf);
        if self.shared.domain.load(Ordering::Relaxed) == 0 {
            self.recalls[index].reset();
            return Ok(key_of(handle)); // `restore` does
        }
        // SAFETY: by this function's contract.
        match unsafe { self.make_of((range.start, range.length as usize), range.tag, dmabuf) } {
            Ok(made) => {
                self.library_keys[index].store(made.key(), Ordering::Relaxed);
                self.recalls[index].reset();
                // release: pairs with `hold`
                self.registrations[index].store(made.into_raw(), Ordering::Release);
                Ok(key_of(handle))
            }
            Err(code) => {
                // nobody has its key, so nobody holds it
                let _ = self.table.remove(handle);
                Err(refused(code))
            }
        }
    }
}

/// Memory of ours that a flush reads.
#[derive(Copy, Clone, Debug)]
pub(super) struct FlushSource {
    /// Which region, pinned.
    pub region: u32,
    pub library_key: u64,
    /// Where the region starts.
    pub start: u64,
    /// How much is read.
    pub length: u64,
}

impl Domain for LibfabricDomain<'_> {
    unsafe fn register(&self, region: Region) -> Result<RailKey, RegisterError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.register_with(region, None) }
    }

    /// *Errors*: `Busy` also while peers may write there; they are asked to stop, and have when
    /// they and we have polled.
    fn deregister(&self, key: RailKey) -> Result<(), DeregisterError> {
        let handle = handle_of(key);
        if !self.enter() {
            return Err(DeregisterError::Fabric(libc::ENODEV));
        }
        let result = self.table.remove_with(handle, || {
            let registration = &self.registrations[handle.index as usize];
            let raw = registration.swap(0, Ordering::AcqRel);
            // 0: the library refused it when the endpoint was opened again, or is not open
            if raw != 0 {
                let _turn = self.turn(Act::Register);
                Registration::from_raw(raw).close().map_err(|code| {
                    registration.store(raw, Ordering::Release);
                    match code.0 {
                        libc::EBUSY => DeregisterError::Busy,
                        code => DeregisterError::Fabric(code),
                    }
                })?;
            }
            // before the place is another region's, which `bury` must not take for a doomed one
            self.recalls[handle.index as usize].reset();
            Ok(())
        });
        if let Err(DeregisterError::Busy) = result {
            self.recalls[handle.index as usize].want();
            self.shared.wanted.store(1, Ordering::Release);
        }
        self.leave();
        result
    }
}

#[cfg(test)]
mod tests {

    use super::turns::Callers;
    use super::*;
    use crate::base::carve::heap::HeapBlock;
    use crate::base::units::Bytes;

    const TRAITS: Traits = Traits {
        scope: Scope::Domain,
        keys: Keys::Library,
        by_address: false,
        carries_words: true,
        words_take_receives: false,
        messages_ordered: true,
        ordered: true,
        reads_ordered: true,
        inject_max: 0,
        transfer_max: 0,
        moves_alone: true,
        reaches_gpus: false,
        takes_dmabufs: false,
        callers: Callers::All,
    };

    /// Its peer gives it back, and it is looked for, between two steps of the thread that dooms it.
    #[test]
    fn region_that_is_doomed_during_a_look_is_looked_for_again() {
        let mut block = HeapBlock::new(LibfabricDomain::bytes(1));
        let (domain, index) = one_region(&mut block);
        let key = domain.key_at(index);
        domain.table.pin(index, 1);
        domain.count_holder(index as usize, 1);
        assert_eq!(domain.deregister(key), Err(DeregisterError::Busy));
        assert!(domain.wants_any() && domain.wants(index));
        domain.release_whole(index);
        domain.look_for_wanted(|| {
            assert_eq!(domain.doom(index), Ok(()));
            false
        });
        assert!(domain.wants_any(), "nobody asks again for what is doomed");
        domain.look_for_wanted(|| false);
        assert!(!domain.wants_any() && domain.table.get(handle_of(key)).is_none());
    }

    fn one_region(block: &mut HeapBlock) -> (LibfabricDomain<'_>, u32) {
        // no library is open, so that nothing is registered with one
        let domain = LibfabricDomain::carve(&mut block.carver(), 1, &TRAITS).unwrap();
        domain.admit();
        let region = Region { address: 4096, length: Bytes(4096), kind: MemoryKind::Host };
        // SAFETY: nothing touches it.
        let key = unsafe { domain.register(region) }.unwrap();
        (domain, handle_of(key).index)
    }

    /// While an endpoint is opened again, whatever is not doomed is registered.
    #[cfg(not(miri))]
    #[test]
    fn region_is_not_doomed_while_the_endpoint_is_opened_again() {
        use std::sync::atomic::AtomicBool;
        const LONG: std::time::Duration = std::time::Duration::from_millis(50);
        let mut block = HeapBlock::new(LibfabricDomain::bytes(1));
        let (domain, index) = one_region(&mut block);
        domain.hold_whole(domain.key_at(index)).unwrap();
        domain.shut(false);
        let is_restored = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(domain.doom(index), Ok(()));
                assert!(is_restored.load(Ordering::Acquire), "its memory was registered again");
            });
            std::thread::sleep(LONG);
            is_restored.store(true, Ordering::Release);
            domain.admit();
        });
    }

    /// After 2^32 registrations they came again, and a library may still have had the first.
    #[test]
    fn keys_of_ours_are_used_once_and_end() {
        for (bytes, are_more) in [(4, false), (5, true), (8, true)] {
            let mut block = HeapBlock::new(LibfabricDomain::bytes(1));
            let traits = Traits { keys: Keys::Ours(bytes), ..TRAITS };
            let domain = LibfabricDomain::carve(&mut block.carver(), 1, &traits).unwrap();
            assert_eq!(domain.key_next(), Ok(1));
            domain.shared.keys_made.store(u32::MAX.into(), Ordering::Relaxed);
            assert_eq!(domain.key_next(), Ok(u32::MAX.into()));
            let next = domain.key_next();
            assert_eq!(next, if are_more { Ok(1 << 32) } else { Err(NO_KEY_LEFT) });
        }
    }
}
