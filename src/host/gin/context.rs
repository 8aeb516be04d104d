//! Queues, signals and counters of a set of contexts, and the structures that device code reads.

use super::GinError;
use super::comm::{Comm, bytes_of};
use super::hosts::Far;
use super::leaked::Leaked;
use super::report::{Watch, Watched};
use super::state::{Reach, Region};
use crate::base::bitset;
use crate::connect::group::secret;
use crate::fabric::MemoryKind;
use crate::hca::completion::Syndrome;
use crate::hca::executor::{Executor, Lane, Operation};
use crate::hca::keys::Kind;
use crate::hca::layout::{
    Context72, Context88, QueueAddresses, QueuePair28, QueuePair30, WordTable,
};
use crate::hca::queue::{Class, Memory, Queue};
use crate::hca::{DEPTH_MAX, ENTRY_BYTES, ENTRY_WORDS};
use crate::memory::SharedMapping;
use crate::memory::cuda::{DeviceBlock, Pinned};
use crate::memory::heap::page_bytes;
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

/// Words that all ranks of the host add to, and the own ones' place.
struct Words {
    region: Region,
    sizes: Vec<u64>,
    device: u64,
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
        let parts = checked.and_then(|()| {
            let signals = Words::make(config.signals * config.contexts)?;
            let counters = Words::make(config.counters * config.contexts)?;
            let mapping = SharedMapping::create(c"crosstie-queues", plan.bytes())?;
            mapping.populate(0, plan.bytes())?;
            let start = signals.start().expose_provenance() as u64;
            // SAFETY: the table stands until it is deregistered, with the region (`Words::pin`).
            let far = unsafe { comm.show(start, signals.length(), MemoryKind::Host) }?;
            Ok((signals, counters, mapping, far))
        });
        let own = comm.ranks().0;
        let gathered = match &parts {
            Ok((signals, ..)) => {
                let bytes = [signals.length() as u64];
                comm.agree(Ok((&bytes, &[signals.fd()])))
            }
            Err(_) => comm.agree(Err(GinError::Rank(own))),
        };
        let (signals, counters, mapping, far) = parts?;
        let parts = gathered.inspect_err(|_| {
            comm.hide(far);
        })?;
        let met = comm.meet(far.as_ref()).inspect_err(|_| {
            comm.hide(far);
        });
        let made = met.and_then(|()| {
            let length = signals.length();
            let mut tables = Vec::new();
            for (rank, part) in parts.into_iter().enumerate() {
                // ranks of other hosts give none
                let fd = part.descriptors.into_iter().next().filter(|_| rank != own);
                tables.push(fd.map(|fd| SharedMapping::from_fd(fd, length)).transpose()?);
            }
            tables[own] = Some(signals);
            let signals = Words::pin(comm, tables, far, &vec![length as u64; comm.ranks().1])?;
            let mut tables: Vec<_> = (0..comm.ranks().1).map(|_| None).collect();
            let mut sizes = vec![0; comm.ranks().1];
            sizes[own] = counters.length() as u64;
            tables[own] = Some(counters);
            Ok((signals, Words::pin(comm, tables, None, &sizes)?))
        });
        let blank = made.as_ref().map(|_| (&[][..], &[][..]));
        let agreed = comm.agree(blank.map_err(|_| GinError::Rank(own)));
        let (signals, counters) = made?;
        agreed.inspect_err(|_| {
            comm.hide(far);
        })?;
        Context::build(comm, config, number, &plan, [signals, counters], mapping)
    }

    fn build(
        comm: &Comm,
        config: &Config,
        number: u64,
        plan: &Plan,
        [signals, counters]: [Words; 2],
        mapping: SharedMapping,
    ) -> Result<Context, GinError> {
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(comm.gpu(), mapping.start(), plan.bytes()) }?;
        let words = [signals.device, counters.device];
        let keys = [
            signals.publish(comm, Kind::Signals)?,
            counters.publish(comm, Kind::Counters)?,
            comm.add(Kind::Sink, &vec![u64::MAX; comm.ranks().1])?,
        ];
        comm.put(keys[2], Region::SINK);
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
        // SAFETY: the mapping stands in the same value, until `Comm::context_end`.
        let far = unsafe { comm.lend(mapping.start().expose_provenance() as u64, plan.bytes()) }?;
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
    /// Shared memory for `count` words, at least one.
    fn make(count: usize) -> Result<SharedMapping, GinError> {
        let bytes = (count.max(1) * 8).next_multiple_of(page_bytes());
        let mapping = SharedMapping::create(c"crosstie-words", bytes)?;
        mapping.populate(0, bytes)?;
        Ok(mapping)
    }

    /// Shows the own table to the GPU. `sizes` are those of all ranks' tables, in bytes.
    fn pin(
        comm: &Comm,
        tables: Vec<Option<SharedMapping>>,
        far: Option<Far>,
        sizes: &[u64],
    ) -> Result<Words, GinError> {
        let own = tables[comm.ranks().0].as_ref().expect("the own table");
        // SAFETY: the table stands in the same region, behind its registration.
        let pinned = unsafe { Pinned::new(comm.gpu(), own.start(), own.length()) };
        let pinned = pinned.inspect_err(|_| {
            comm.hide(far);
        })?;
        let device = pinned.device();
        let reach = Reach::Words(tables);
        let region = Region { reach, far, pinned: Some(pinned), ..Region::SINK };
        Ok(Words { region, sizes: sizes.into(), device })
    }

    fn publish(self, comm: &Comm, kind: Kind) -> Result<u32, GinError> {
        let key = comm.add(kind, &self.sizes)?;
        comm.put(key, self.region);
        Ok(key)
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
