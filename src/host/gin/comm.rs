//! The ranks of one communicator, and what they do together.

use super::adds::Adds;
use super::clock::{NAP, Times};
use super::context::{Config, Context, OwnWords};
use super::flow::Flow;
use super::hosts::{Far, Hosts};
use super::leaked::Leaked;
use super::loopback::DETOUR_BYTES;
use super::report::Told;
use super::state::{Reach, Region, State, end};
use super::{EndCount, GinError, all_have, report};
use crate::connect::group::{Group, HANDLE_BYTES, Listener, Lives, Part};
use crate::fabric::MemoryKind;
use crate::hca::completion::Syndrome;
use crate::hca::keys::{Keys, Kind, Slot};
use crate::hca::layout::WindowHandle;
use crate::host::log::event::tell;
use crate::host::log::gin::{GinEvent, ReportHead};
use crate::memory::cuda::vmm::{self, EXPORT_WORDS};
use crate::memory::cuda::{DeviceBlock, Entered, Export, Gpu, Import, Library};
use crate::memory::locked;
use crate::transport::RequestError;
use crate::window::group::Flushed;
use std::format;
use std::os::fd::{AsFd, BorrowedFd};
use std::string::String;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use std::vec;
use std::vec::Vec;

/// Regions of a communicator: windows, and signals, counters and a sink for each set of contexts.
const REGIONS_MAX: usize = 1024;
/// How long ranks wait for each other in a collective call.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an end waits for copies under way.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// One communicator.
#[derive(Debug)]
pub struct Comm {
    gpu: Arc<Gpu>,
    lives: Arc<Lives>,
    group: Mutex<Group>,
    state: Mutex<State>,
    /// Calls of the user that wait for the state: the engine then leaves it alone.
    waiting: AtomicU32,
    /// Whether each rank is of this host.
    near: Vec<bool>,
    patience: Duration,
    rank: usize,
    ranks: usize,
    next: AtomicU64,
    /// Counts ranks that have ended, for a kernel to see.
    ends: OnceLock<EndCount>,
}

/// A window as the GPU and the user name it.
#[derive(Copy, Clone, Debug)]
pub struct Window {
    /// Its key, for [`Comm::deregister`].
    pub key: u32,
    /// The device address of its handle.
    pub handle: u64,
}

/// The parts of a window: what keeps those of others mapped, where they lie, and how long they are.
struct Parts {
    imports: Vec<Import>,
    addresses: Vec<u64>,
    sizes: Vec<u64>,
}

impl Comm {
    /// Brings the ranks together by their handles, on the GPU of the calling thread. `timeout`:
    /// how long ranks wait for each other, here and in each collective call; `None`: [`PATIENCE`].
    ///
    /// *Errors*: [`GinError`]. *Cost*: blocks until all ranks have come.
    pub fn connect(
        listener: &Listener,
        handles: &[[u8; HANDLE_BYTES]],
        rank: usize,
        timeout: Option<Duration>,
    ) -> Result<Comm, GinError> {
        let (ranks, patience) = (handles.len(), timeout.unwrap_or(PATIENCE));
        if rank >= ranks {
            return Err(GinError::Argument("the rank"));
        }
        let library = Library::load().map_err(GinError::Driver)?;
        let gpu = Arc::new(Gpu::of_thread(library)?);
        let mut group = Group::form(listener, handles, rank, patience)?;
        let detour = detour(&gpu, &mut group)?;
        let adds = Adds::new(&gpu, &mut group)?;
        let flow = Flow::new(&gpu, ranks, rank, detour);
        let agreed = all_have(&mut group, flow.is_ok());
        let flow = flow.and_then(|flow| agreed.map(|()| flow))?;
        let hosts = Hosts::open(&mut group, REGIONS_MAX, patience);
        let agreed = all_have(&mut group, hosts.is_ok());
        let hosts = hosts.and_then(|hosts| agreed.map(|()| hosts))?;
        // SAFETY: the owners are the last fields of the state, behind the keys that borrow.
        let (slots, slots_lent) = unsafe { Leaked::lend(vec![Slot::default(); REGIONS_MAX]) };
        // SAFETY: as above.
        let (bytes, bytes_lent) = unsafe { Leaked::lend(vec![0; REGIONS_MAX * ranks]) };
        let state = State {
            keys: Keys::new(slots_lent, bytes_lent, ranks),
            regions: (0..REGIONS_MAX).map(|_| None).collect(),
            contexts: Vec::new(),
            flow,
            adds,
            hosts,
            lost: vec![false; ranks],
            told: None,
            own: rank,
            _slots: slots,
            _bytes: bytes,
        };
        Ok(Comm {
            gpu,
            lives: group.lives().clone(),
            near: (0..ranks).map(|rank| group.members().contains(&rank)).collect(),
            patience,
            group: Mutex::new(group),
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            rank,
            ranks,
            next: AtomicU64::new(1),
            ends: OnceLock::new(),
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The own rank, and how many there are.
    pub fn ranks(&self) -> (usize, usize) {
        (self.rank, self.ranks)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.waiting.fetch_add(1, Ordering::Relaxed); // a hint: the lock orders
        let state = locked(&self.state);
        self.waiting.fetch_sub(1, Ordering::Relaxed); // as above
        state
    }

    /// Gives a record to all ranks, and gets theirs; descriptors go to those of this host. A rank
    /// that could not do its part says so, and then the call fails at all ranks alike.
    pub fn agree(
        &self,
        part: Result<(&[u64], &[BorrowedFd<'_>]), GinError>,
    ) -> Result<Vec<Part>, GinError> {
        let mut group = locked(&self.group);
        let (words, descriptors, fault) = match part {
            Ok((words, descriptors)) => (words, descriptors, None),
            Err(error) => (&[][..], &[][..], Some(error)),
        };
        let mut record = vec![u8::from(fault.is_none())];
        words.iter().for_each(|word| record.extend_from_slice(&word.to_le_bytes()));
        let mut parts = group.gather(&record, descriptors)?;
        if let Some(error) = fault {
            return Err(error);
        }
        for (rank, part) in parts.iter_mut().enumerate() {
            if part.bytes.first() != Some(&1) || part.bytes.len() != record.len() {
                return Err(GinError::Rank(rank));
            }
            part.bytes.remove(0);
            let expected = if self.near[rank] { descriptors.len() } else { 0 };
            if part.descriptors.len() != expected {
                return Err(GinError::Rank(rank));
            }
        }
        Ok(parts)
    }

    /// Whether all ranks could do their part, which this one could or not. A collective call.
    pub fn all_have(&self, has: bool) -> Result<(), GinError> {
        all_have(&mut locked(&self.group), has)
    }

    /// Registers device memory: a window. A collective call.
    ///
    /// *Errors*: [`GinError`], at all ranks if one of them fails.
    pub fn register(&self, address: u64, bytes: usize) -> Result<Window, GinError> {
        let export = self.gpu.enter().map_err(GinError::from).and_then(|entered| {
            Export::of(&entered, address, bytes).map_err(GinError::NotExportable)
        });
        let kind = MemoryKind::Cuda(self.gpu.device() as u32);
        // SAFETY: the user's memory stands until `deregister`.
        let shown =
            export.and_then(|export| Ok((export, unsafe { self.show(address, bytes, kind) }?)));
        let parts = match &shown {
            Ok((export, _)) => {
                let words = [&[bytes as u64][..], &export.words()].concat();
                self.agree(Ok((&words, &[export.descriptor.as_fd()])))
            }
            Err(_) => self.agree(Err(GinError::Rank(self.rank))),
        };
        let (_, far) = shown?;
        let parts = parts.inspect_err(|_| {
            self.hide(far);
        })?;
        let placed = self.meet(far.as_ref()).and_then(|()| self.import(&parts, address));
        let placed = placed.and_then(|Parts { imports, addresses, sizes }| {
            let key = self.add(Kind::Window, &sizes)?;
            // peers that know of it may ask this rank to add as soon as all agree
            let reach = Reach::Device(addresses.into_iter().map(|start| (start, key)).collect());
            self.put(key, Region { reach, far, imports, ..Region::SINK });
            Ok(key)
        });
        let placed = placed.inspect_err(|_| {
            self.hide(far);
        });
        let made = placed.and_then(|key| self.publish(key).inspect_err(|_| self.deregister(key)));
        let key = made.as_ref().map(|window| [u64::from(window.key)]);
        let part = key.as_ref().map(|key| (&key[..], &[][..]));
        let agreed = self.agree(part.map_err(|_| GinError::Rank(self.rank)));
        let window = made?;
        let keys = agreed.and_then(|parts| {
            let keys = parts.iter().map(|part| words(part).map(|[key]| key as u32));
            keys.collect::<Option<Vec<_>>>().ok_or(GinError::Rank(self.rank))
        });
        let keys = keys.inspect_err(|_| self.deregister(window.key))?;
        self.change(window.key, |region| {
            if let Reach::Device(parts) = &mut region.reach {
                parts.iter_mut().zip(keys).for_each(|((_, key), theirs)| *key = theirs);
            }
        });
        Ok(window)
    }

    /// Gives ranks of other hosts, if there are any, memory of this rank: a window. They reach it
    /// once [`Comm::meet`] has succeeded.
    ///
    /// # Safety
    /// - the memory stands until [`Comm::hide`].
    pub(super) unsafe fn show(
        &self,
        address: u64,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<Option<Far>, GinError> {
        let mut state = self.state();
        let Some(hosts) = &mut state.hosts else { return Ok(None) };
        // SAFETY: by this function's contract.
        let mut far = unsafe { hosts.register(address, bytes, kind) }?;
        // SAFETY: as above.
        match unsafe { hosts.window(&mut far, address, bytes) } {
            Ok(()) => Ok(Some(far)),
            Err(error) => {
                drop(state);
                self.hide(Some(far));
                Err(error)
            }
        }
    }

    /// Lets queues send out of host memory of this rank to other hosts.
    ///
    /// # Safety
    /// - as [`Comm::show`].
    pub(super) unsafe fn lend(&self, address: u64, bytes: usize) -> Result<Option<Far>, GinError> {
        let mut state = self.state();
        // SAFETY: by this function's contract.
        let lend = |hosts: &mut Hosts| unsafe { hosts.register(address, bytes, MemoryKind::Host) };
        state.hosts.as_mut().map(lend).transpose()
    }

    /// Waits until all ranks have made their part of a window.
    pub(super) fn meet(&self, far: Option<&Far>) -> Result<(), GinError> {
        let until = Instant::now() + self.patience;
        loop {
            let mut state = self.state();
            let (Some(hosts), Some(far)) = (&mut state.hosts, far) else { return Ok(()) };
            match hosts.exchange_look(far)? {
                Flushed::Done => return Ok(()),
                Flushed::Waiting(rank) if Instant::now() >= until => {
                    return Err(GinError::Late(rank));
                }
                Flushed::Waiting(_) => {}
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Takes memory back from other hosts. Whether nothing touches it any more.
    pub(super) fn hide(&self, far: Option<Far>) -> bool {
        let Some(mut far) = far else { return true };
        let until = Instant::now() + END_PATIENCE;
        loop {
            let is_gone = self.state().hosts.as_mut().is_none_or(|it| it.forget(&mut far));
            if is_gone || Instant::now() >= until {
                return is_gone;
            }
            std::thread::sleep(NAP);
        }
    }

    /// Maps the parts of the other ranks of this host.
    fn import(&self, parts: &[Part], own: u64) -> Result<Parts, GinError> {
        let (mut addresses, mut sizes, mut imports) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, part) in parts.iter().enumerate() {
            let [bytes, export @ ..] =
                words::<{ 1 + EXPORT_WORDS }>(part).ok_or(GinError::Rank(rank))?;
            sizes.push(bytes);
            if rank == self.rank {
                addresses.push(own);
                continue;
            }
            let Some(descriptor) = part.descriptors.first() else {
                addresses.push(0); // of another host
                continue;
            };
            let (import, offset) = Import::of_export(&self.gpu, descriptor.as_fd(), &export)?;
            addresses.push(import.start() + offset);
            imports.push(import);
        }
        Ok(Parts { imports, addresses, sizes })
    }

    /// Gives the GPU the handle of a window.
    fn publish(&self, key: u32) -> Result<Window, GinError> {
        let keys: Vec<u8> = (0..self.ranks).flat_map(|_| key.to_le_bytes()).collect();
        let keys = DeviceBlock::of(&self.gpu, &keys)?;
        let handle = DeviceBlock::of(&self.gpu, bytes_of(&WindowHandle::new(keys.start(), key)))?;
        let window = Window { key, handle: handle.start() };
        self.change(key, |region| region.blocks = vec![keys, handle]);
        Ok(window)
    }

    /// Changes the region of a key, if there is one.
    pub(super) fn change(&self, key: u32, change: impl FnOnce(&mut Region)) {
        let mut state = self.state();
        let slot = state.keys.slot(key);
        if let Some(region) = slot.and_then(|slot| state.regions[slot].as_mut()) {
            change(region);
        }
    }

    /// A key for a region that [`Comm::put`] brings.
    pub fn add(&self, kind: Kind, sizes: &[u64]) -> Result<u32, GinError> {
        self.state().keys.register(kind, sizes).ok_or(GinError::Full)
    }

    /// Brings the region of a key.
    pub fn put(&self, key: u32, region: Region) {
        let mut state = self.state();
        if let Some(slot) = state.keys.slot(key) {
            state.regions[slot] = Some(region);
        }
    }

    /// Ends a registration. Touches neither the memory nor other ranks.
    pub fn deregister(&self, key: u32) {
        let region = {
            let mut state = self.state();
            let Some(slot) = state.keys.slot(key) else { return };
            state.keys.deregister(key);
            state.regions[slot].take()
        };
        let is_quiet = self.wait_for_posted();
        let is_gone = self.hide(region.as_ref().and_then(|region| region.far));
        if !(is_quiet && is_gone) {
            tell(&GinEvent::CopiesWait);
            core::mem::forget(region);
        }
    }

    /// Waits for what is under way now, not for what is posted later; whether that ended.
    fn wait_for_posted(&self) -> bool {
        let until = Instant::now() + END_PATIENCE;
        let mut under_way = self.state().under_way();
        loop {
            let ended = self.state().has_ended(&mut under_way);
            if ended || Instant::now() >= until {
                return ended;
            }
            std::thread::sleep(NAP);
        }
    }

    /// Makes contexts. A collective call. Their number, and the device address of the first.
    pub fn context(&self, config: &Config) -> Result<(u64, u64), GinError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed); // only counts
        let context = Context::new(self, config, number)?;
        let address = context.address();
        self.state().contexts.push(context);
        Ok((number, address))
    }

    /// Ends contexts. Touches no other rank.
    pub fn context_end(&self, number: u64) {
        let context = {
            let mut state = self.state();
            let at = state.contexts.iter().position(|context| context.number() == number);
            at.map(|at| state.contexts.swap_remove(at))
        };
        context.into_iter().for_each(|context| self.retire(context));
    }

    /// Ends contexts that no thread looks at any more.
    pub(super) fn retire(&self, context: Context) {
        let number = context.number();
        let (keys, far) = (context.keys(), context.far());
        let is_quiet = self.wait_for_posted();
        if !is_quiet {
            self.state().flow.forget(number);
        }
        if !(self.hide(far) && is_quiet) {
            core::mem::forget(context); // copies may still read its memory
        }
        keys.into_iter().for_each(|key| self.deregister(key));
    }

    /// The own signals and counters of contexts, while they stand.
    pub fn words(&self, number: u64) -> Option<[OwnWords; 2]> {
        let state = self.state();
        let context = state.contexts.iter().find(|context| context.number() == number)?;
        let [signals, counters, _] = context.keys();
        let of = |key| OwnWords::of(state.regions[state.keys.slot(key)?].as_ref()?, self.rank, key);
        Some([of(signals)?, of(counters)?])
    }

    /// Has `count` called when a rank has ended, from now on, by the thread that notices. Once.
    pub fn tell_ends(&self, count: EndCount) {
        let _ = self.ends.set(count);
    }

    /// Whether a queue of the contexts has failed, or a rank has told that one of its own has.
    pub fn has_failed(&self, number: u64) -> bool {
        let state = self.state();
        let of = |context: &&Context| context.number() == number;
        state.told.is_some() || state.contexts.iter().find(of).is_some_and(Context::has_failed)
    }

    /// Tells all ranks once a queue of this one has failed, and hears whether one of theirs has.
    /// Queues go on all the same.
    pub fn look_for_failures(&self) {
        let mut state = locked(&self.state);
        let told = state.look_for_failures();
        drop(state);
        if let Some(rank) = told {
            tell(&GinEvent::Told { rank });
        }
    }

    /// Fails what is under way if the GPU has failed.
    pub fn look_for_fault(&self) {
        let Ok(entered) = self.gpu.enter() else { return };
        let mut state = locked(&self.state);
        state.flow.look_for_fault(&entered);
    }

    /// Looks for ranks that have ended, or are out of reach; their queues fail.
    pub fn look_for_ends(&self) {
        for rank in 0..self.ranks {
            let failure = match self.near[rank] {
                true if !self.lives.has_ended(rank) => continue,
                true => None,
                false => match self.failure_of(rank) {
                    None => continue,
                    failure => failure,
                },
            };
            let mut state = self.state();
            if core::mem::replace(&mut state.lost[rank], true) {
                continue;
            }
            let state = &mut *state;
            for context in &mut state.contexts {
                context.executor().fail_rank(rank, Syndrome::PeerLost);
            }
            for pending in state.adds.lose(rank) {
                end(&mut state.contexts, &pending, Err(Syndrome::PeerLost));
            }
            self.ends.get().into_iter().for_each(|ends| ends.0.count());
            match failure {
                None => tell(&GinEvent::Ended { rank }),
                // it has closed its communicator before this rank
                Some(RequestError::PeerClosed) => {}
                Some(error) => tell(&GinEvent::Lost { rank, error }),
            }
        }
    }

    /// Whether a rank is of another host.
    pub(super) fn is_far(&self, rank: usize) -> bool {
        self.state().hosts.as_ref().is_some_and(|hosts| hosts.is_far(rank))
    }

    fn failure_of(&self, rank: usize) -> Option<RequestError> {
        let state = locked(&self.state);
        state.hosts.as_ref()?.failure_of(rank)
    }

    /// Says once of each entry that it has stood for too long.
    pub fn look_for_stalls(&self, times: &Times) {
        let mut state = locked(&self.state);
        let beyond = state.beyond();
        let told = Told { beyond: &beyond, times: *times };
        let of = |context: &mut Context| report::stalls(context.watched(), &told);
        let all: Vec<_> = state.contexts.iter_mut().flat_map(of).collect();
        drop(state);
        for sentence in all {
            tell(&GinEvent::Stalled { rank: self.rank, sentence: &sentence });
        }
    }

    /// How all queues stand, a line for each that does not rest.
    pub fn report(&self, times: &Times) -> String {
        let mut state = locked(&self.state);
        let lost: Vec<_> = (0..self.ranks).filter(|rank| state.lost[*rank]).collect();
        let head = ReportHead { rank: self.rank, ranks: self.ranks, ended: &lost };
        let head = format!("{head}\n");
        let beyond = state.beyond();
        let told = Told { beyond: &beyond, times: *times };
        let of = |context: &mut Context| report::lines(context.number(), context.watched(), &told);
        state.contexts.iter_mut().map(of).fold(head, |text, more| text + &more)
    }

    /// One pass over all queues: whether anything was done.
    pub fn pass(&self, entered: &Entered<'_>, now_ns: u64) -> bool {
        // a hint: the lock orders
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return true;
        }
        let mut state = locked(&self.state);
        state.pass(entered, now_ns)
    }
}

/// Every rank lends memory to the one before it on its host, if that has another GPU; what the next
/// one lends.
/// Where memory cannot be had, copies within a GPU go through host memory.
fn detour(gpu: &Arc<Gpu>, group: &mut Group) -> Result<Option<Import>, GinError> {
    let uuid = gpu.uuid()?;
    let lent = vmm::create_exported(&gpu.enter()?, DETOUR_BYTES).ok();
    let descriptors: Vec<_> = lent.iter().map(AsFd::as_fd).collect();
    let parts = group.gather(&uuid, &descriptors)?;
    let members = group.members();
    let own = members.iter().position(|rank| *rank == group.rank()).unwrap_or(0);
    let next = &parts[members[(own + 1) % members.len()]];
    match next.descriptors.first() {
        Some(descriptor) if next.bytes != uuid => {
            Ok(Import::new(gpu, descriptor.as_fd(), DETOUR_BYTES).ok())
        }
        Some(_) | None => Ok(None),
    }
}

fn words<const N: usize>(part: &Part) -> Option<[u64; N]> {
    let mut words = [0; N];
    if part.bytes.len() != N * 8 {
        return None;
    }
    for (word, bytes) in words.iter_mut().zip(part.bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

/// The bytes of a structure of numbers without gaps (asserted where it is declared).
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: as long as the value, and every byte of it is written: padding is a named field.
    unsafe { core::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}
