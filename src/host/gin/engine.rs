//! The thread that executes what GPUs queue.
//!
//! A process has one while a communicator lives. It spins while there is work. After a while
//! without work it naps: a doorbell is a store, which wakes no thread.

use super::clock::{NAP, Times};
use super::report::DOOR;
use super::{Comm, GinError};
use crate::connect::text_door::TextDoor;
use crate::host::settings::Environment;
use crate::memory::{locked, thread_pin, threads};
use core::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, yield_now};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// How long it spins after the last work, and how long it then gives its processor up at each look.
const SPIN: Duration = Duration::from_millis(2);
const YIELD: Duration = Duration::from_millis(50);
/// Between two looks for ranks that have ended.
const ENDS: Duration = Duration::from_millis(20);
/// The thread's name.
const NAME: &str = "crosstie-gin";

#[derive(Debug, Default)]
struct Shared {
    comms: Mutex<Vec<Arc<Comm>>>,
    changes: AtomicU64,
    stop: AtomicBool,
}

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts it on the CPUs that the settings name, else on those of the calling thread.
    ///
    /// *Errors*: [`GinError::Pin`], [`GinError::System`].
    pub fn start(settings: &Environment) -> Result<Engine, GinError> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let stall_ns = settings.stall.0;
        let thread = threads::start(NAME, move || run(&of_thread, stall_ns))?;
        let engine = Engine { shared, thread: Some(thread) };
        if let (false, Some(thread)) = (settings.gin_cpus.is_empty(), &engine.thread) {
            thread_pin(thread, &settings.gin_cpus).map_err(GinError::Pin)?;
        }
        Ok(engine)
    }

    /// Executes what `comm` queues, from now on.
    pub fn add(&self, comm: Arc<Comm>) {
        self.change(|comms| comms.push(comm));
    }

    /// Leaves `comm` alone; whether any other is left. The thread may hold it for one more pass.
    pub fn remove(&self, comm: &Arc<Comm>) -> bool {
        self.change(|comms| comms.retain(|other| !Arc::ptr_eq(other, comm)));
        !locked(&self.shared.comms).is_empty()
    }

    fn change(&self, act: impl FnOnce(&mut Vec<Arc<Comm>>)) {
        act(&mut locked(&self.shared.comms));
        // pairs with the thread's look: it then takes the lock
        self.shared.changes.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed); // nothing is ordered by it
        if let Some(thread) = self.thread.take() {
            // a panic there was reported when it happened
            let _ = thread.join();
        }
    }
}

/// Looks for failed GPUs, ended ranks and stalled queues, and answers callers at the door.
fn look_after(comms: &[Arc<Comm>], door: Option<&TextDoor>, times: &Times) {
    for comm in comms {
        comm.look_for_fault();
        comm.look_for_ends();
        comm.look_for_failures();
        comm.look_for_stalls(times);
    }
    let text = || comms.iter().map(|comm| comm.report(times)).collect();
    door.iter().for_each(|door| door.answer(text));
}

fn run(shared: &Shared, stall_ns: u64) {
    // who cannot be asked works
    let door = TextDoor::open(DOOR).ok();
    let mut comms: Vec<Arc<Comm>> = Vec::new();
    let mut seen = 0;
    let start = Instant::now();
    let (mut worked, mut looked) = (start, start);
    while !shared.stop.load(Ordering::Relaxed) {
        // pairs with `Engine::change`
        let changes = shared.changes.load(Ordering::Acquire);
        if changes != seen {
            seen = changes;
            comms.clone_from(&locked(&shared.comms));
        }
        let now = Instant::now();
        let now_ns = now.duration_since(start).as_nanos() as u64;
        let mut busy = false;
        for comm in &comms {
            let Ok(entered) = comm.gpu().enter() else { continue };
            busy |= comm.pass(&entered, now_ns);
        }
        if now.duration_since(looked) >= ENDS {
            looked = now;
            look_after(&comms, door.as_ref(), &Times { now_ns, stall_ns });
        }
        match now.duration_since(worked) {
            _ if busy => worked = now,
            idle if idle < SPIN => spin_loop(),
            idle if idle < YIELD => yield_now(),
            _ => sleep(NAP),
        }
    }
}
