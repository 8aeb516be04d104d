//! The ranks of one communicator on this host, and the memory that they registered.

extern crate std;

use super::adds::Adds;
use super::clock::{NAP, Times};
use super::context::{Config, Context};
use super::flow::{Flow, Posted};
use super::leaked::Leaked;
use super::loopback::DETOUR_BYTES;
use super::road::Pending;
use super::{GinError, report};
use crate::connect::group::{Group, HANDLE_BYTES, Listener, Lives, Part};
use crate::hca::completion::Syndrome;
use crate::hca::entry::Address;
use crate::hca::executor::{Action, Local, Operation, Step};
use crate::hca::keys::{Keys, Kind, Place, Slot};
use crate::hca::layout::WindowHandle;
use crate::hca::outbox::Request;
use crate::host::log::event::tell;
use crate::host::log::gin::{GinEvent, ReportHead};
use crate::memory::SharedMapping;
use crate::memory::cuda::{DeviceBlock, Entered, Export, Gpu, Import, Library, Pinned, vmm};
use std::format;
use std::os::fd::{AsFd, BorrowedFd};
use std::string::String;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::vec;
use std::vec::Vec;

/// Regions of a communicator: windows, and signals, counters and a sink for each set of contexts.
const REGIONS_MAX: usize = 1024;
/// How long ranks wait for each other in a collective call.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an end waits for copies under way.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Most entries that a pass takes of one queue, so that others have their turn.
const PASS_ENTRIES: usize = 128;

/// How a region is reached from here.
#[derive(Debug)]
pub enum Reach {
    /// Device memory: where each rank's part lies, and that rank's key for it.
    Device(Vec<(u64, u32)>),
    /// Words of shared host memory, one table for each rank; `None`: only the own rank has it.
    Words(Vec<Option<SharedMapping>>),
    /// Nowhere.
    Sink,
}

/// A region and what keeps it.
#[derive(Debug)]
pub struct Region {
    /// How it is reached.
    pub reach: Reach,
    /// Mappings of other ranks' memory.
    pub imports: Vec<Import>,
    /// The structures that the GPU was given.
    pub blocks: Vec<DeviceBlock>,
    /// Registrations of host memory, dropped before the memory (`reach`).
    pub pinned: Option<Pinned>,
}

/// The state that the engine and the calls of the user share.
#[derive(Debug)]
pub struct State {
    /// Dropped before the memory that they use.
    flow: Flow,
    adds: Adds,
    keys: Keys<'static>,
    regions: Vec<Option<Region>>,
    contexts: Vec<Context>,
    lost: Vec<bool>,
    own: usize,
    _slots: Leaked<Slot>,
    _bytes: Leaked<u64>,
}

/// One communicator.
#[derive(Debug)]
pub struct Comm {
    gpu: Arc<Gpu>,
    lives: Arc<Lives>,
    group: Mutex<Group>,
    state: Mutex<State>,
    /// Calls of the user that wait for the state: the engine then leaves it alone.
    waiting: AtomicU32,
    rank: usize,
    ranks: usize,
    next: AtomicU64,
}

/// A window as the GPU and the user name it.
#[derive(Copy, Clone, Debug)]
pub struct Window {
    /// Its key, for [`Comm::deregister`].
    pub key: u32,
    /// The device address of its handle.
    pub handle: u64,
}

impl Comm {
    /// Brings the ranks together, on the GPU of the calling thread.
    ///
    /// *Errors*: [`GinError`]. *Cost*: blocks until all ranks have come.
    pub fn connect(
        listener: &Listener,
        first: &[u8; HANDLE_BYTES],
        rank: usize,
        ranks: usize,
    ) -> Result<Comm, GinError> {
        if ranks == 0 || rank >= ranks {
            return Err(GinError::Argument("the rank"));
        }
        let library = Library::load().map_err(GinError::Driver)?;
        let gpu = Arc::new(Gpu::of_thread(library)?);
        let mut group = Group::form(listener, first, rank, ranks, PATIENCE)?;
        let detour = detour(&gpu, &mut group)?;
        let adds = Adds::new(&gpu, &mut group)?;
        // SAFETY: the owners are the last fields of the state, behind the keys that borrow.
        let (slots, slots_lent) = unsafe { Leaked::lend(vec![Slot::default(); REGIONS_MAX]) };
        // SAFETY: as above.
        let (bytes, bytes_lent) = unsafe { Leaked::lend(vec![0; REGIONS_MAX * ranks]) };
        let state = State {
            keys: Keys::new(slots_lent, bytes_lent, ranks),
            regions: (0..REGIONS_MAX).map(|_| None).collect(),
            contexts: Vec::new(),
            flow: Flow::new(&gpu, ranks, rank, detour)?,
            adds,
            lost: vec![false; ranks],
            own: rank,
            _slots: slots,
            _bytes: bytes,
        };
        Ok(Comm {
            gpu,
            lives: group.lives().clone(),
            group: Mutex::new(group),
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            rank,
            ranks,
            next: AtomicU64::new(1),
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
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed); // as above
        state
    }

    /// Gives a record to all ranks, and gets theirs. A rank that could not do its part says so, and
    /// then the call fails at all ranks alike.
    pub fn agree(
        &self,
        part: Result<(&[u64], &[BorrowedFd<'_>]), GinError>,
    ) -> Result<Vec<Part>, GinError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
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
            if part.descriptors.len() != descriptors.len() {
                return Err(GinError::Rank(rank));
            }
        }
        Ok(parts)
    }

    /// Registers device memory: a window. A collective call.
    ///
    /// *Errors*: [`GinError`], at all ranks if one of them fails.
    pub fn register(&self, address: u64, bytes: usize) -> Result<Window, GinError> {
        let entered = self.gpu.enter()?;
        let export = Export::of(&entered, address, bytes).map_err(GinError::NotExportable);
        let parts = match export {
            Ok(export) => {
                let words = [bytes as u64, export.bytes as u64, export.offset as u64];
                self.agree(Ok((&words, &[export.descriptor.as_fd()])))
            }
            Err(error) => self.agree(Err(error)),
        }?;
        let made = self.import(&parts, address).and_then(|(region, addresses, sizes)| {
            Ok((region, addresses, self.add(Kind::Window, &sizes)?))
        });
        let key = made.as_ref().map(|(_, _, key)| [u64::from(*key)]);
        let part = key.as_ref().map(|key| (&key[..], &[][..]));
        let agreed = self.agree(part.map_err(|_| GinError::Rank(self.rank)));
        let (mut region, addresses, key) = made?;
        let keys = agreed.and_then(|parts| {
            let keys = parts.iter().map(|part| words(part).map(|[key]| key as u32));
            keys.collect::<Option<Vec<_>>>().ok_or(GinError::Rank(self.rank))
        });
        let keys = keys.inspect_err(|_| self.deregister(key))?;
        region.reach = Reach::Device(addresses.into_iter().zip(keys).collect());
        self.publish(region, key)
    }

    /// Maps every other rank's part: a region that cannot be reached yet, where the parts lie, and
    /// how long they are.
    fn import(&self, parts: &[Part], own: u64) -> Result<(Region, Vec<u64>, Vec<u64>), GinError> {
        let (mut addresses, mut sizes, mut imports) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, part) in parts.iter().enumerate() {
            let [bytes, whole, offset] = words(part).ok_or(GinError::Rank(rank))?;
            sizes.push(bytes);
            if rank == self.rank {
                addresses.push(own);
                continue;
            }
            let import = Import::new(&self.gpu, part.descriptors[0].as_fd(), whole as usize)?;
            addresses.push(import.start() + offset);
            imports.push(import);
        }
        let region = Region { reach: Reach::Sink, imports, blocks: Vec::new(), pinned: None };
        Ok((region, addresses, sizes))
    }

    /// Gives the GPU the handle of a window.
    fn publish(&self, mut region: Region, key: u32) -> Result<Window, GinError> {
        let keys: Vec<u8> = (0..self.ranks).flat_map(|_| key.to_le_bytes()).collect();
        let given = DeviceBlock::of(&self.gpu, &keys).and_then(|keys| {
            let handle = WindowHandle::new(keys.start(), key);
            Ok([keys, DeviceBlock::of(&self.gpu, bytes_of(&handle))?])
        });
        let [keys, handle] = given.inspect_err(|_| self.deregister(key))?;
        let window = Window { key, handle: handle.start() };
        region.blocks = vec![keys, handle];
        self.put(key, region);
        Ok(window)
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
        if !self.wait_for_posted() {
            tell(&GinEvent::CopiesWait);
            core::mem::forget(region);
        }
    }

    /// Waits for what is under way now, not for what is posted later; whether that ended.
    fn wait_for_posted(&self) -> bool {
        let until = Instant::now() + END_PATIENCE;
        let (mut posted, round) = self.state().posted();
        loop {
            let ended = self.state().has_ended(&mut posted, round);
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
        let Some(context) = context else { return };
        let keys = context.keys();
        if !self.wait_for_posted() {
            self.state().flow.forget(number);
            core::mem::forget(context); // copies may still read its memory
        }
        keys.into_iter().for_each(|key| self.deregister(key));
    }

    /// Whether a queue of the contexts has failed.
    pub fn has_failed(&self, number: u64) -> bool {
        let state = self.state();
        let of = |context: &&Context| context.number() == number;
        state.contexts.iter().find(of).is_some_and(Context::has_failed)
    }

    /// Fails what is under way if the GPU has failed.
    pub fn look_for_fault(&self) {
        let Ok(entered) = self.gpu.enter() else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.flow.look_for_fault(&entered);
    }

    /// Looks for ranks that have ended; their queues fail.
    pub fn look_for_ends(&self) {
        for rank in 0..self.ranks {
            if !self.lives.has_ended(rank) {
                continue;
            }
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
            tell(&GinEvent::Ended { rank });
        }
    }

    /// Says once of each entry that it has stood for too long.
    pub fn look_for_stalls(&self, times: &Times) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |context| report::stalls(context, self.ranks, times);
        let all: Vec<_> = state.contexts.iter_mut().flat_map(of).collect();
        drop(state);
        for sentence in all {
            tell(&GinEvent::Stalled { rank: self.rank, sentence: &sentence });
        }
    }

    /// How all queues stand, a line for each that does not rest.
    pub fn report(&self, times: &Times) -> String {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lost: Vec<_> = (0..self.ranks).filter(|rank| state.lost[*rank]).collect();
        let head = ReportHead { rank: self.rank, ranks: self.ranks, ended: &lost };
        let head = format!("{head}\n");
        let of = |context| report::lines(context, self.ranks, times);
        state.contexts.iter_mut().map(of).fold(head, |text, more| text + &more)
    }

    /// One pass over all queues: whether anything was done.
    pub fn pass(&self, entered: &Entered<'_>, now_ns: u64) -> bool {
        // a hint: the lock orders
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return true;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pass(entered, now_ns)
    }
}

/// Every rank lends memory to the one before it, if that has another GPU; what the next one lends.
/// Where memory cannot be had, copies within a GPU go through host memory.
fn detour(gpu: &Arc<Gpu>, group: &mut Group) -> Result<Option<Import>, GinError> {
    let uuid = gpu.uuid()?;
    let lent = vmm::create_exported(&gpu.enter()?, DETOUR_BYTES).ok();
    let descriptors: Vec<_> = lent.iter().map(AsFd::as_fd).collect();
    let parts = group.gather(&uuid, &descriptors)?;
    let next = &parts[(group.rank() + 1) % group.ranks()];
    match next.descriptors.first() {
        Some(descriptor) if next.bytes != uuid => {
            Ok(Import::new(gpu, descriptor.as_fd(), DETOUR_BYTES).ok())
        }
        Some(_) | None => Ok(None),
    }
}

/// Says what became of an operation, if its context still stands.
fn end(contexts: &mut [Context], pending: &Pending, outcome: Result<(), Syndrome>) {
    let of = |context: &&mut Context| context.number() == pending.context;
    if let Some(context) = contexts.iter_mut().find(of) {
        context.executor().complete(&pending.operation, outcome);
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

impl State {
    fn pass(&mut self, entered: &Entered<'_>, now_ns: u64) -> bool {
        let mut busy = false;
        self.flow.pass(entered, now_ns);
        while let Some((pending, outcome)) = self.flow.ended().or_else(|| self.adds.ended()) {
            busy = true;
            end(&mut self.contexts, &pending, outcome);
        }
        let State { adds, keys, regions, own, .. } = self;
        busy |= adds.serve(entered, |request| own_word(keys, regions, *own, request));
        for at in 0..self.contexts.len() {
            for lane in 0..self.contexts[at].executor().lanes().len() {
                busy |= self.pass_lane(entered, at, lane, now_ns);
            }
        }
        self.flow.mark(entered);
        busy
    }

    fn pass_lane(&mut self, entered: &Entered<'_>, at: usize, lane: usize, now_ns: u64) -> bool {
        let rank = self.contexts[at].executor().lanes()[lane].rank;
        for count in 0..PASS_ENTRIES {
            if self.flow.is_held(rank) {
                return count > 0;
            }
            match self.contexts[at].executor().step(lane, &self.keys, now_ns) {
                Step::Idle | Step::Blocked | Step::Failed => return count > 0,
                Step::Ended => {}
                Step::Operation(operation) => self.begin(entered, at, operation),
            }
        }
        true
    }

    /// Starts an operation: an add has ended with this, a copy ends with its marker.
    fn begin(&mut self, entered: &Entered<'_>, at: usize, operation: Operation) {
        let pending = Pending { context: self.contexts[at].number(), operation };
        let road = match operation.action {
            Action::Add { word, value, .. } => match self.add(word, value, pending) {
                Some(outcome) => return end(&mut self.contexts, &pending, outcome),
                None => return,
            },
            Action::Write { to, .. } | Action::WriteInline { to, .. } => to.rank,
            Action::Read { from, .. } => from.rank,
        };
        match self.post(entered, at, &operation) {
            Ok(()) => self.flow.note(entered, usize::from(road), pending),
            Err(syndrome) => end(&mut self.contexts, &pending, Err(syndrome)),
        }
    }

    fn post(
        &mut self,
        entered: &Entered<'_>,
        at: usize,
        operation: &Operation,
    ) -> Result<(), Syndrome> {
        match operation.action {
            Action::Add { .. } => Ok(()),
            Action::Write { to, from } => {
                let mut start = self.address(to)?;
                for local in from.iter().flatten() {
                    let from = self.address(local.at)?;
                    self.copy(entered, to.rank, start, from, local);
                    start += local.bytes;
                }
                Ok(())
            }
            Action::Read { from, to } => {
                let mut start = self.address(from)?;
                for local in to.iter().flatten() {
                    let to = self.address(local.at)?;
                    self.copy(entered, from.rank, to, start, local);
                    start += local.bytes;
                }
                Ok(())
            }
            Action::WriteInline { to, data, bytes } => {
                let kept = self.contexts[at].inline(operation);
                let (rank, start) = (usize::from(to.rank), self.address(to)?);
                let value = &data[..usize::from(bytes)];
                // SAFETY: a registered region in bounds (`Keys::place`), which stays until copies
                // have ended (`Comm::deregister`); the place of an entry in flight is its own.
                let posted = unsafe { self.flow.write(entered, rank, start, value, kept) };
                posted.map_err(refused)
            }
        }
    }

    fn copy(&mut self, entered: &Entered<'_>, rank: u16, to: u64, from: u64, local: &Local) {
        let (rank, bytes) = (usize::from(rank), local.bytes as usize);
        // SAFETY: registered regions in bounds (`Keys::place`), which stay until copies have ended
        // (`Comm::deregister`).
        unsafe { self.flow.copy(entered, rank, to, from, bytes) };
    }

    /// Where a place of device memory lies.
    fn address(&self, place: Place) -> Result<u64, Syndrome> {
        match &self.regions[usize::from(place.region)] {
            Some(Region { reach: Reach::Device(addresses), .. }) => {
                Ok(addresses[usize::from(place.rank)].0 + place.offset)
            }
            Some(_) | None => Err(Syndrome::RemoteOperation),
        }
    }

    /// Adds to a word that the ranks share, or asks the owner of a word of a window; `None`: the
    /// outcome comes later.
    fn add(&mut self, place: Place, value: u64, pending: Pending) -> Option<Result<(), Syndrome>> {
        let rank = usize::from(place.rank);
        let table = match self.regions[usize::from(place.region)].as_ref().map(|r| &r.reach) {
            Some(Reach::Words(tables)) => tables[rank].as_ref(),
            Some(Reach::Device(parts)) => {
                let request = Request { key: parts[rank].1, offset: place.offset, value };
                self.adds.ask(rank, pending, request);
                return None;
            }
            Some(Reach::Sink) | None => None,
        };
        let Some(table) = table else { return Some(Err(Syndrome::RemoteOperation)) };
        // SAFETY: in bounds of the table (`Keys::place`, whose sizes are the tables'), aligned
        // (`Executor`), and only touched as an atomic.
        let word = unsafe { &*table.start().add(place.offset as usize).cast::<AtomicU64>() };
        // pairs with the system-scope acquire of the GPU that waits; what it covers has ended
        word.fetch_add(value, Ordering::Release);
        Some(Ok(()))
    }

    fn posted(&self) -> (Posted, u64) {
        (self.flow.posted(), self.adds.due())
    }

    fn has_ended(&self, posted: &mut Posted, round: u64) -> bool {
        self.flow.has_ended(posted) && self.adds.has_reached(round)
    }
}

/// Where the own word lies that a peer asks to add to.
fn own_word(
    keys: &Keys<'_>,
    regions: &[Option<Region>],
    own: usize,
    request: &Request,
) -> Result<u64, Syndrome> {
    let at = Address { key: request.key, offset: request.offset };
    let place = keys.place(at, 8, own, Syndrome::RemoteAccess)?;
    match &regions[usize::from(place.region)] {
        Some(Region { reach: Reach::Device(parts), .. }) => {
            let word = parts[own].0 + place.offset;
            word.is_multiple_of(8).then_some(word).ok_or(Syndrome::RemoteAccess)
        }
        Some(_) | None => Err(Syndrome::RemoteAccess),
    }
}

fn refused(error: crate::memory::cuda::CudaError) -> Syndrome {
    tell(&GinEvent::CopyRefused(error));
    Syndrome::RemoteOperation
}
