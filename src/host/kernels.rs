//! Queues of a group that kernels write: its ranks as a communicator of [`crate::host::gin`], and
//! its windows as kernels see them. What the group itself knows of it is in
//! [`crate::host::group::seen`].

use crate::base::slab::Handle;
use crate::base::units::Span as Time;
use crate::connect::group::{HANDLE_BYTES, Listener};
use crate::hca::layout::{DEVICE_READ_ONLY, DEVICE_VERSION, DevicePeer, DeviceWindow};
use crate::host::gin::comm::bytes_of;
use crate::host::gin::{self, Comm, Config, Counts, EndCount, Engine, GinError, Layout, OwnWords};
use crate::host::group::seen::{Mirror, Seen, States};
use crate::host::settings;
use crate::memory::SharedMapping;
use crate::memory::cuda::{DeviceBlock, Pinned};
use crate::memory::heap::page_bytes;
use crate::window::{Limits, WindowMemory};
use std::sync::Arc;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

/// Most sets of queues.
pub const SETS_MAX: u32 = 64;

/// What the queues of a group are opened with.
#[derive(Copy, Clone, Debug)]
pub struct DeviceOptions {
    /// Sets of queues: each has one to each rank, and its companion. 1 to [`SETS_MAX`].
    pub sets: u32,
    /// Entries of each queue; 0: the library's choice.
    pub depth: u32,
    /// How long a kernel waits that does not say.
    pub timeout: Time,
}

/// What the engine tells.
#[derive(Debug)]
struct Ends(Arc<States>);

impl Counts for Ends {
    fn count(&self) {
        self.0.end_count();
    }
}

/// A window that kernels see.
#[derive(Debug)]
struct Attached {
    window: Handle,
    key: u32,
    /// The view, and the table that it names.
    view: DeviceBlock,
    _peers: DeviceBlock,
}

/// The queues of a group. Dropped on the group's thread, before memory of its windows is freed.
#[derive(Debug)]
pub struct Device {
    limits: Limits,
    options: DeviceOptions,
    /// By slot: each has its part of the words.
    windows: Vec<Option<Attached>>,
    context: (u64, u64),
    words: [OwnWords; 2],
    /// Dropped before the words that it registers.
    pinned: Pinned,
    seen: Arc<Seen>,
    comm: Arc<Comm>,
    engine: Engine,
}

// SAFETY: its pointers are to words that are only touched as atomics.
unsafe impl Send for Device {}

/// A rank's own listener, before the ranks have exchanged its handle.
#[derive(Debug)]
pub struct Door(Listener);

impl Door {
    /// Listens for the other ranks.
    pub fn open() -> Result<Door, GinError> {
        gin::listen(&settings::environment(), false).map(Door)
    }

    /// What all ranks need of each.
    pub fn handle(&self) -> &[u8; HANDLE_BYTES] {
        self.0.handle()
    }
}

impl Device {
    /// Brings the ranks together by their handles, on the GPU of the calling thread. A collective
    /// call: it fails at all ranks if one of them fails.
    ///
    /// *Errors*: [`GinError`].
    pub fn open(
        door: &Door,
        handles: &[[u8; HANDLE_BYTES]],
        rank: u32,
        limits: Limits,
        options: DeviceOptions,
    ) -> Result<Device, GinError> {
        let comm = Arc::new(Comm::connect(&door.0, handles, rank as usize, patience())?);
        let each = |ids: u32| limits.windows_max as usize * ids as usize;
        let config = Config {
            signals: each(limits.signals_max),
            counters: each(limits.counters_max),
            contexts: options.sets as usize,
            depth: options.depth as usize,
            layout: Layout::Nccl30,
        };
        let context = comm.context(&config)?;
        let made = Device::parts(&comm, context.0);
        let agreed = comm.all_have(made.is_ok());
        let made = made.and_then(|parts| agreed.map(|()| parts));
        let (engine, states, pinned, words) = made.inspect_err(|_| comm.context_end(context.0))?;
        comm.tell_ends(EndCount(Arc::new(Ends(states.clone()))));
        engine.add(comm.clone());
        let windows = (0..limits.windows_max).map(|_| None).collect();
        let seen = Arc::new(Seen::new(states));
        Ok(Device { limits, options, windows, context, words, pinned, seen, comm, engine })
    }

    fn parts(
        comm: &Comm,
        context: u64,
    ) -> Result<(Engine, Arc<States>, Pinned, [OwnWords; 2]), GinError> {
        let mapping = SharedMapping::create(c"crosstie-states", page_bytes())?;
        mapping.populate(0, page_bytes())?;
        // SAFETY: the mapping stands behind its registration ([`Device`]).
        let pinned = unsafe { Pinned::new(comm.gpu(), mapping.start(), page_bytes()) }?;
        let words = comm.words(context).ok_or(GinError::Argument("the contexts"))?;
        let engine = Engine::start(&settings::environment())?;
        Ok((engine, Arc::new(States::new(mapping)), pinned, words))
    }

    /// What the group is to know: [`Group::see`](crate::host::group::Group::see).
    pub fn seen(&self) -> &Arc<Seen> {
        &self.seen
    }

    /// The device address of a window's [`DeviceWindow`]. The first call for a window is
    /// collective, and fails at all ranks if one of them fails.
    ///
    /// *Errors*: [`GinError`].
    pub fn attach(&mut self, window: Handle, memory: &WindowMemory) -> Result<u64, GinError> {
        if let Some(one) = self.windows.iter().flatten().find(|one| one.window == window) {
            return Ok(one.view.start());
        }
        let free = self.windows.iter().position(Option::is_none);
        let slot = free.ok_or(GinError::Full);
        let slot = slot.and_then(|slot| match memory.is_device && memory.length > 0 {
            true => Ok(slot),
            false => Err(GinError::Argument("the window's part, which is no memory of a GPU,")),
        });
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return self.comm.agree(Err(error)).map(|_| 0),
        };
        let registered = self.comm.register(memory.address, memory.length as usize)?;
        let made = self.describe(slot, memory, registered.key);
        let agreed = self.comm.all_have(made.is_ok());
        let made = made.and_then(|made| agreed.map(|()| made));
        let (mirror, view, peers) = made.inspect_err(|_| self.comm.deregister(registered.key))?;
        let address = view.start();
        self.seen.add(window, mirror);
        self.windows[slot] = Some(Attached { window, key: registered.key, view, _peers: peers });
        Ok(address)
    }

    fn describe(
        &self,
        slot: usize,
        memory: &WindowMemory,
        key: u32,
    ) -> Result<(Mirror, DeviceBlock, DeviceBlock), GinError> {
        let [signals, counters] = self.words;
        let offset = |ids: u32| (slot * ids as usize * 8) as u64;
        let signals_offset = offset(self.limits.signals_max);
        let counters_offset = offset(self.limits.counters_max);
        let at = |words: &OwnWords, offset: u64| words.start.wrapping_add(offset as usize);
        // SAFETY: words of the contexts, which stand as long as `self`; the window is forgotten, or
        // the group closed, before.
        let mirror = unsafe {
            Mirror::new(
                (at(&signals, signals_offset), self.limits.signals_max),
                (at(&counters, counters_offset), self.limits.counters_max),
            )
        };
        let flags = if memory.is_read_only { DEVICE_READ_ONLY } else { 0 };
        let own = [signals_offset, self.limits.signals_max.into(), flags.into(), memory.length];
        let parts = self.comm.agree(Ok((&own, &[])))?;
        let mut peers = Vec::new();
        for (rank, part) in parts.iter().enumerate() {
            let [signals_offset, ids, flags, bytes] =
                words(&part.bytes).ok_or(GinError::Rank(rank))?;
            let (ids, flags, signals_key) = (ids as u32, flags as u32, signals.key);
            let peer = DevicePeer { bytes, signals_offset, key, signals: ids, signals_key, flags };
            peers.extend_from_slice(bytes_of(&peer));
        }
        let peers = DeviceBlock::of(self.comm.gpu(), &peers)?;
        let view = DeviceWindow {
            version: DEVICE_VERSION,
            rank: self.comm.ranks().0 as u32,
            ranks: self.limits.ranks,
            sets: self.options.sets,
            peers: peers.start(),
            queues: self.context.1,
            data: memory.address,
            signals: signals.device + signals_offset,
            counters: counters.device + counters_offset,
            counters_offset,
            signals_max: self.limits.signals_max,
            counters_max: self.limits.counters_max,
            counters_key: counters.key,
            state: self.pinned.device(),
            timeout_ns: self.options.timeout.0.max(1),
            ..DeviceWindow::default()
        };
        let view = DeviceBlock::of(self.comm.gpu(), bytes_of(&view))?;
        Ok((mirror, view, peers))
    }

    /// Takes a window from kernels, which must not use it any more. Waits for copies under way.
    /// Touches no other rank.
    pub fn detach(&mut self, window: Handle) {
        self.seen.forget(window);
        let is_it = |one: &Option<Attached>| one.as_ref().is_some_and(|it| it.window == window);
        if let Some(at) = self.windows.iter().position(is_it) {
            let attached = self.windows[at].take();
            attached.into_iter().for_each(|one| self.comm.deregister(one.key));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.seen.states().abort_set(true); // a kernel that still waits
        self.comm.context_end(self.context.0);
        for one in self.windows.iter_mut().filter_map(Option::take) {
            self.seen.forget(one.window);
            self.comm.deregister(one.key);
        }
        self.engine.remove(&self.comm);
    }
}

/// How long ranks wait for each other, where the settings say.
fn patience() -> Option<Duration> {
    let timeout = settings::environment().connect_timeout;
    timeout.map(|timeout| Duration::from_nanos(timeout.0))
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map(u64::from_le_bytes))
        .collect::<Result<_, _>>()
        .unwrap_or(vec![]);
    words.try_into().ok()
}
