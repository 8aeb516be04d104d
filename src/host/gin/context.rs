//! Queues, signals and counters of a set of contexts, and the structures that device code reads.

use super::GinError;
use super::comm::{Comm, bytes_of};
use super::hosts::Far;
use super::leaked::Leaked;
use super::report::{Watch, Watched};
use super::state::{Reach, Region};
use crate::base::bitset;
use crate::connect::group::{Part, secret};
use crate::fabric::MemoryKind;
use crate::hca::completion::Syndrome;
use crate::hca::executor::{Executor, Lane, Operation};
use crate::hca::keys::Kind;
use crate::hca::layout::{
    Context72, Context88, QueueAddresses, QueuePair28, QueuePair30, WordTable,
};
use crate::hca::queue::{Class, Memory, Queue};
use crate::hca::{DEPTH_MAX, ENTRY_BYTES, ENTRY_WORDS};
use crate::memory::cuda::{DeviceBlock, Pinned};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::vec;
use std::vec::Vec;

/// Depth of a queue where NCCL leaves it to us.
const DEPTH: usize = 512;
/// Shallowest queue: a put with signal and counter takes two entries.
const DEPTH_MIN: usize = 64;
/// Number of the first queue of a set.
const FIRST: u32 = 0x100;
/// Doorbell and doorbell record of a queue have a cache line.
const DOORBELL_BYTES: usize = 64;
/// Most words of a set, and most contexts: beyond them an argument is garbage.
const WORDS_MAX: usize = 1 << 24;
const CONTEXTS_MAX: usize = 64;

/// Which structures the device code of a release reads.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Layout {
    /// NCCL 2.28.7 to 2.29.7.
    Nccl28,
    /// NCCL 2.30.3 and 2.30.4, and programs of their headers.
    Nccl30,
    /// NCCL 2.30.5 and later.
    Nccl30Gets,
}

/// The sizes of a set of contexts. Counts are for each context.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// Signals.
    pub signals: usize,
    /// Counters.
    pub counters: usize,
    /// Contexts.
    pub contexts: usize,
    /// Entries of a queue; zero: ours to choose.
    pub depth: usize,
    /// The structures.
    pub layout: Layout,
}

/// A set of contexts.
#[derive(Debug)]
pub struct Context {
    number: u64,
    executor: Executor<'static, 'static>,
    watch: Watch,
    _lanes: Leaked<Lane<'static>>,
    _ended: Leaked<u64>,
    _classes: Leaked<Class>,
    inline: *mut u8,
    depth: usize,
    address: u64,
    keys: [u32; 3],
    /// The mapping, as other hosts are sent from it.
    far: Option<Far>,
    _blocks: Vec<DeviceBlock>,
    /// Dropped before the mapping that it registers.
    _pinned: Pinned,
    _mapping: SharedMapping,
}

// SAFETY: the pointer is into the mapping that the value owns; whoever holds the value may use it.
unsafe impl Send for Context {}

/// Where the parts of the pinned mapping lie, in bytes.
struct Plan {
    lanes: usize,
    depth: usize,
}

impl Plan {
    fn ring(&self) -> usize {
        self.depth * ENTRY_BYTES
    }

    fn lane_bytes(&self) -> usize {
        3 * self.ring() + DOORBELL_BYTES
    }

    fn bytes(&self) -> usize {
        self.lanes * self.lane_bytes()
    }

    fn addresses(&self, start: u64, lane: usize) -> QueueAddresses {
        let at = start + (lane * self.lane_bytes()) as u64;
        let ring = self.ring() as u64;
        QueueAddresses {
            entries: at,
            completions: at + ring,
            doorbell: at + 3 * ring,
            doorbell_record: at + 3 * ring + 8,
        }
    }
}

/// The own words of contexts.
#[derive(Copy, Clone, Debug)]
pub struct OwnWords {
    /// Where the CPU sees them, as long as the contexts stand. Only touched as atomics.
    pub start: *mut u8,
    /// Where the GPU does.
    pub device: u64,
    /// Their key.
    pub key: u32,
}

impl OwnWords {
    pub(super) fn of(region: &Region, rank: usize, key: u32) -> Option<OwnWords> {
        let Reach::Words(tables) = &region.reach else { return None };
        let (start, pinned) = (tables[rank].as_ref()?.start(), region.pinned.as_ref()?);
        Some(OwnWords { start, device: pinned.device(), key })
    }
}

/// Regions that end when this is dropped.
struct Regions<'a> {
    comm: &'a Comm,
    keys: Vec<u32>,
}

impl Drop for Regions<'_> {
    fn drop(&mut self) {
        self.keys.drain(..).for_each(|key| self.comm.deregister(key));
    }
}

/// A table of words of this rank, which is a region.
struct Words {
    key: u32,
    file: OwnedFd,
    bytes: usize,
    /// Where the GPU sees it.
    device: u64,
    far: Option<Far>,
}

impl Context {
    /// Makes a set of contexts. All ranks make the same call.
    pub(super) fn new(comm: &Comm, config: &Config, number: u64) -> Result<Context, GinError> {
        let checked = check(config);
        let plan = Plan {
            lanes: config.contexts * 2 * comm.ranks().1,
            depth: match config.depth {
                0 => DEPTH,
                depth => depth.min(DEPTH_MAX).next_power_of_two().max(DEPTH_MIN),
            },
        };
        let own = comm.ranks().0;
        let mut regions = Regions { comm, keys: Vec::new() };
        let made = checked.and_then(|()| {
            let signals =
                Words::make(&mut regions, Kind::Signals, config.signals * config.contexts)?;
            let counters =
                Words::make(&mut regions, Kind::Counters, config.counters * config.contexts)?;
            Ok([signals, counters])
        });
        let gathered = match &made {
            Ok([signals, _]) => comm.agree(Ok((&[signals.bytes as u64], &[signals.file.as_fd()]))),
            Err(_) => comm.agree(Err(GinError::Rank(own))),
        };
        let [signals, counters] = made?;
        let parts = gathered?;
        let met = comm.meet(signals.far.as_ref());
        let built = met.and_then(|()| signals.fill(comm, parts)).and_then(|()| {
            Context::build(regions, config, number, &plan, [signals.device, counters.device])
        });
        let agreed = comm.all_have(built.is_ok());
        let context = built?;
        match agreed {
            Ok(()) => Ok(context),
            Err(error) => {
                comm.retire(context);
                Err(error)
            }
        }
    }

    /// Makes what touches no other rank.
    fn build(
        mut regions: Regions<'_>,
        config: &Config,
        number: u64,
        plan: &Plan,
        words: [u64; 2],
    ) -> Result<Context, GinError> {
        let comm = regions.comm;
        let mapping = SharedMapping::create(c"crosstie-queues", plan.bytes())?;
        mapping.populate(0, plan.bytes())?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(comm.gpu(), mapping.start(), plan.bytes()) }?;
        let sink = comm.add(Kind::Sink, &vec![u64::MAX; comm.ranks().1])?;
        comm.put(sink, Region::SINK);
        regions.keys.push(sink);
        let keys = [regions.keys[0], regions.keys[1], sink];
        let (blocks, address) = describe(comm, config, plan, pinned.device(), words, keys)?;
        // SAFETY: the owners are fields behind the executor that borrows.
        let (ended_owner, ended) =
            unsafe { Leaked::lend(vec![0; plan.lanes * bitset::words(plan.depth)]) };
        // SAFETY: as above.
        let (class_owner, classes) =
            unsafe { Leaked::lend(vec![Class::Write; plan.lanes * plan.depth]) };
        let lanes = lanes(comm, plan, mapping.start(), ended, classes)?;
        // SAFETY: as above.
        let (lane_owner, lanes) = unsafe { Leaked::lend(lanes) };
        // SAFETY: the mapping stands in the same value, until `Comm::retire`.
        let far = unsafe { comm.lend(mapping.start().expose_provenance() as u64, plan.bytes()) }?;
        regions.keys.clear();
        Ok(Context {
            number,
            executor: Executor::new(lanes, comm.ranks().0),
            watch: Watch::new(plan.lanes),
            _lanes: lane_owner,
            _ended: ended_owner,
            _classes: class_owner,
            inline: mapping.start(),
            depth: plan.depth,
            address,
            keys,
            far,
            _blocks: blocks,
            _pinned: pinned,
            _mapping: mapping,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn keys(&self) -> [u32; 3] {
        self.keys
    }

    /// The queues' memory, as other hosts are sent from it.
    pub(super) fn far(&self) -> Option<Far> {
        self.far
    }

    pub(super) fn executor(&mut self) -> &mut Executor<'static, 'static> {
        &mut self.executor
    }

    /// The queues, and how long each has stood.
    pub(super) fn watched(&mut self) -> Watched<'_> {
        (&self.executor, &mut self.watch)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.executor.lanes().iter().any(|lane| lane.queue.has_completed_with_error())
    }

    /// Whether a queue has failed for another reason than a rank that is lost, which all ranks see.
    pub(super) fn has_failed_alone(&self) -> bool {
        self.executor.lanes().iter().any(|lane| {
            let failure = lane.queue.failure();
            let is_alone = failure.is_some_and(|it| it.syndrome != Syndrome::PeerLost);
            is_alone && lane.queue.has_completed_with_error()
        })
    }

    /// Pinned room for the inline value of an entry in flight.
    pub(super) fn inline(&self, operation: &Operation) -> *mut u8 {
        let plan = Plan { lanes: self.executor.lanes().len(), depth: self.depth };
        let entry = (operation.index % self.depth as u64) as usize * ENTRY_BYTES;
        let at = operation.queue * plan.lane_bytes() + 2 * plan.ring() + entry;
        // SAFETY: inside the mapping: the third ring of the queue's part.
        unsafe { self.inline.add(at) }
    }
}

fn check(config: &Config) -> Result<(), GinError> {
    if !(1..=CONTEXTS_MAX).contains(&config.contexts) {
        return Err(GinError::Argument("the number of contexts"));
    }
    if config.signals > WORDS_MAX || config.counters > WORDS_MAX || config.depth > DEPTH_MAX {
        return Err(GinError::Argument("the number of signals, counters or entries"));
    }
    Ok(())
}

impl Words {
    /// Makes a table of `count` words, at least one. All ranks have signals of the same size, and
    /// those of other hosts reach them; counters are this rank's alone.
    fn make(regions: &mut Regions<'_>, kind: Kind, count: usize) -> Result<Words, GinError> {
        let comm = regions.comm;
        let (own, ranks) = comm.ranks();
        let bytes = (count.max(1) * 8).next_multiple_of(page_bytes());
        let mapping = SharedMapping::create(c"crosstie-words", bytes)?;
        mapping.populate(0, bytes)?;
        let file = mapping.fd().try_clone_to_owned().map_err(Errno::from)?;
        // SAFETY: the table stands in the same region, behind its registration.
        let pinned = unsafe { Pinned::new(comm.gpu(), mapping.start(), bytes) }?;
        let device = pinned.device();
        let is_shown = kind == Kind::Signals;
        let sizes = |rank| if is_shown || rank == own { bytes as u64 } else { 0 };
        let key = comm.add(kind, &(0..ranks).map(sizes).collect::<Vec<_>>())?;
        let start = mapping.start().expose_provenance() as u64;
        let mut tables: Vec<_> = (0..ranks).map(|_| None).collect();
        tables[own] = Some(mapping);
        let reach = Reach::Words(tables);
        comm.put(key, Region { reach, pinned: Some(pinned), ..Region::SINK });
        regions.keys.push(key);
        let mut far = None;
        if is_shown {
            // SAFETY: the table stands until its region is deregistered.
            far = unsafe { comm.show(start, bytes, MemoryKind::Host) }?;
            comm.change(key, |region| region.far = far);
        }
        Ok(Words { key, file, bytes, device, far })
    }

    /// Brings the tables of the other ranks of this host.
    fn fill(&self, comm: &Comm, parts: Vec<Part>) -> Result<(), GinError> {
        let own = comm.ranks().0;
        for (rank, part) in parts.into_iter().enumerate() {
            // ranks of other hosts give none
            let Some(file) = part.descriptors.into_iter().next().filter(|_| rank != own) else {
                continue;
            };
            let table = SharedMapping::from_fd(file, self.bytes)?;
            comm.change(self.key, |region| {
                if let Reach::Words(tables) = &mut region.reach {
                    tables[rank] = Some(table);
                }
            });
        }
        Ok(())
    }
}

/// The queues: for each context those to the ranks, then their companions.
fn lanes(
    comm: &Comm,
    plan: &Plan,
    start: *mut u8,
    ended: &'static mut [u64],
    classes: &'static mut [Class],
) -> Result<Vec<Lane<'static>>, GinError> {
    let (own, ranks) = comm.ranks();
    let mut lanes = Vec::new();
    let parts =
        ended.chunks_exact_mut(bitset::words(plan.depth)).zip(classes.chunks_exact_mut(plan.depth));
    for (at, (ended, classes)) in parts.enumerate() {
        let addresses = plan.addresses(start as u64, at);
        let words = |address: u64, count: usize| {
            // SAFETY: inside the mapping (`Plan`), aligned, only touched as atomics, and the
            // mapping outlives the executor that borrows (`Context`).
            unsafe { core::slice::from_raw_parts(address as *const AtomicU64, count) }
        };
        let memory = Memory {
            ring: words(addresses.entries, plan.depth * ENTRY_WORDS),
            completions: words(addresses.completions, plan.depth * ENTRY_WORDS),
            doorbell: &words(addresses.doorbell, 1)[0],
            ended,
            classes,
        };
        let pattern = secret()?;
        let queue = Queue::new(memory, FIRST + at as u32, pattern as u64);
        let companion = at / ranks % 2 == 1;
        let rank = if companion { own } else { at % ranks };
        lanes.push(Lane { queue, rank, keeps_order: comm.is_far(rank) });
    }
    Ok(lanes)
}

/// Writes the structures of device code to device memory; they, and the first context's address.
fn describe(
    comm: &Comm,
    config: &Config,
    plan: &Plan,
    rings: u64,
    [signals, counters]: [u64; 2],
    keys: [u32; 3],
) -> Result<(Vec<DeviceBlock>, u64), GinError> {
    let gpu = comm.gpu();
    let ranks = comm.ranks().1;
    let (mut pairs, mut each) = (Vec::new(), 0);
    for lane in 0..plan.lanes {
        let (number, depth) = (FIRST + lane as u32, plan.depth as u16);
        let at = plan.addresses(rings, lane);
        let before = pairs.len();
        match config.layout {
            Layout::Nccl28 => {
                pairs.extend_from_slice(bytes_of(&QueuePair28::new(number, depth, &at)));
            }
            Layout::Nccl30 | Layout::Nccl30Gets => {
                pairs.extend_from_slice(bytes_of(&QueuePair30::new(number, depth, &at)));
            }
        }
        each = (pairs.len() - before) as u64;
    }
    let pairs = DeviceBlock::of(gpu, &pairs)?;
    let remote = |key: u32| {
        let keys: Vec<u8> = (0..ranks).flat_map(|_| key.to_le_bytes()).collect();
        DeviceBlock::of(gpu, &keys)
    };
    let (signal_keys, counter_keys) = (remote(keys[0])?, remote(keys[1])?);
    let gets = DeviceBlock::of(gpu, &vec![0; config.contexts * ranks * 16])?;
    let mut contexts = Vec::new();
    for at in 0..config.contexts {
        let table = |words: u64, each: usize, keys: &DeviceBlock, key: u32| WordTable {
            words: words + (at * each * 8) as u64,
            remote_keys: keys.start(),
            local_key: key,
            offset: (at * each) as u32,
        };
        let queues = pairs.start() + (2 * at * ranks) as u64 * each;
        let base = Context72::new(
            queues,
            queues + ranks as u64 * each,
            table(counters, config.counters, &counter_keys, keys[1]),
            table(signals, config.signals, &signal_keys, keys[0]),
            keys[2],
        );
        let issued_gets = gets.start() + (at * ranks * 16) as u64;
        let visible_gets = issued_gets + (ranks * 8) as u64;
        match config.layout {
            Layout::Nccl28 | Layout::Nccl30 => contexts.extend_from_slice(bytes_of(&base)),
            Layout::Nccl30Gets => {
                let context = Context88 { base, issued_gets, visible_gets };
                contexts.extend_from_slice(bytes_of(&context));
            }
        }
    }
    let contexts = DeviceBlock::of(gpu, &contexts)?;
    let address = contexts.start();
    Ok((vec![pairs, signal_keys, counter_keys, gets, contexts], address))
}
