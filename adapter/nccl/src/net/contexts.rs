//! What a process has opened: its devices, and a context for each communicator.
#![forbid(unsafe_code)]

use super::Fault;
use super::device::Device;
use super::process::{self, OfProcess, locked};
use super::room::{Room, Rooms};
use crosstie::host::Attempt;
use crosstie::wire::handle::HANDLE_BYTES;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A communicator of NCCL's, or all those of a table that does not tell them apart.
pub struct Context {
    /// Its rooms.
    pub rooms: Rooms,
    /// Connections that are being made.
    pub attempts: Mutex<Vec<Pending>>,
    /// Whether it is of one communicator.
    pub(super) own: bool,
    /// The traffic class that its user wants.
    pub(super) traffic_class: Option<i32>,
    /// Whether a rank of its communicator runs another network.
    strange: AtomicBool,
}

impl Context {
    pub(super) fn new(own: bool, traffic_class: Option<i32>) -> Arc<Context> {
        let (rooms, attempts) = (Rooms::default(), Mutex::new(Vec::new()));
        let strange = AtomicBool::new(false);
        Arc::new(Context { rooms, attempts, own, traffic_class, strange })
    }

    /// A rank has given a handle of another network. What all communicators share cannot tell whose
    /// rank it is, and goes on.
    pub fn strange_set(&self) {
        self.strange.store(self.own, Ordering::Relaxed); // nothing is ordered by it
    }

    /// Whether one has.
    pub fn is_strange(&self) -> bool {
        self.strange.load(Ordering::Relaxed) // nothing is ordered by it
    }
}

/// What an attempt to connect is known by: where its handle lies and what the handle is, since NCCL
/// asks again with both, and the device.
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct Asked {
    pub(super) address: usize,
    pub(super) handle: [u8; HANDLE_BYTES],
    pub(super) device: usize,
}

/// An attempt to connect.
pub struct Pending {
    pub(super) by: Asked,
    pub(super) room: Arc<Room>,
    pub(super) attempt: Attempt,
    pub(super) at: Instant,
}

/// What a process has opened.
pub(super) struct State {
    /// Calls of init without their finalize.
    pub(super) uses: u64,
    /// Physical devices, then those made of them; entries are never freed, because NCCL keeps
    /// pointers to their texts.
    pub(super) devices: Vec<&'static Device>,
    /// How many of them are physical, and how many NCCL has been told of since it loaded the
    /// plugin. It may unload and load it without a new process, and then makes its devices again;
    /// until then their numbers stay good. Some make them again with each communicator, and take
    /// what they are told of in the meantime for physical.
    pub(super) physical: usize,
    pub(super) shown: usize,
    /// How long a connect may take.
    pub(super) patience: Duration,
    /// The context of tables that have none.
    pub(super) common: Option<Arc<Context>>,
    pub(super) contexts: BTreeMap<u64, Arc<Context>>,
    pub(super) next: u64,
}

impl State {
    const fn new(next: u64) -> State {
        State {
            uses: 0,
            devices: Vec::new(),
            physical: 0,
            shown: 0,
            patience: Duration::ZERO,
            common: None,
            contexts: BTreeMap::new(),
            next,
        }
    }
}

static STATE: OfProcess<Mutex<State>> =
    OfProcess::new(Mutex::new(State::new(1)), || Mutex::new(State::new(process::first_number())));

/// It, for this process.
pub(super) fn state() -> MutexGuard<'static, State> {
    locked(STATE.get())
}

/// The context of a number; that of all others when it is zero or has ended, since communicators
/// that share resources may outlive the one that opened them.
pub fn context(number: u64) -> Result<Arc<Context>, Fault> {
    let mut state = state();
    if let Some(context) = state.contexts.get(&number) {
        return Ok(Arc::clone(context));
    }
    Ok(Arc::clone(state.common.get_or_insert_with(|| Context::new(false, None))))
}

/// The context of tables that have none, once it was used.
pub(super) fn common() -> Option<Arc<Context>> {
    state().common.clone()
}

/// How long a connect may take; who waits longer for one is told why that may be.
pub fn patience() -> Duration {
    state().patience
}

/// How many devices there are, with those that were made; 0 before init.
pub fn device_count() -> usize {
    state().shown
}

/// A device.
pub fn device(number: i32) -> Result<(usize, &'static Device), Fault> {
    let place = usize::try_from(number).map_err(|_| Fault::Argument)?;
    let state = state();
    if state.uses == 0 && state.devices.is_empty() {
        // nobody has opened the plugin, or a forked child's parent has
        return Err(Fault::Usage);
    }
    let found = state.devices.get(place).copied();
    found.map(|device| (place, device)).ok_or(Fault::Argument)
}
