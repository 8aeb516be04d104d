//! The thread that executes what GPUs queue.
//!
//! There is one for a process, while a communicator lives. It spins while there is work, and naps
//! once nothing has come for a while: a doorbell is a store, which wakes nobody.

extern crate std;

use super::{Comm, GinError};
use crate::memory::threads;
use core::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, yield_now};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// How long the thread sleeps at a time when nothing has come for a while.
pub const NAP: Duration = Duration::from_micros(50);
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
    /// Starts it.
    pub fn start() -> Result<Engine, GinError> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = threads::start(NAME, move || run(&of_thread))?;
        Ok(Engine { shared, thread: Some(thread) })
    }

    /// Executes what `comm` queues, from now on.
    pub fn add(&self, comm: Arc<Comm>) {
        self.change(|comms| comms.push(comm));
    }

    /// Leaves `comm` alone; whether any other is left. The thread may hold it for one more pass.
    pub fn remove(&self, comm: &Arc<Comm>) -> bool {
        self.change(|comms| comms.retain(|other| !Arc::ptr_eq(other, comm)));
        !self.shared.comms.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn change(&self, act: impl FnOnce(&mut Vec<Arc<Comm>>)) {
        act(&mut self.shared.comms.lock().unwrap_or_else(PoisonError::into_inner));
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

fn run(shared: &Shared) {
    let mut comms: Vec<Arc<Comm>> = Vec::new();
    let mut seen = 0;
    let start = Instant::now();
    let (mut worked, mut looked) = (start, start);
    while !shared.stop.load(Ordering::Relaxed) {
        // pairs with `Engine::change`
        let changes = shared.changes.load(Ordering::Acquire);
        if changes != seen {
            seen = changes;
            comms.clone_from(&shared.comms.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let now = Instant::now();
        let mut busy = false;
        for comm in &comms {
            let Ok(entered) = comm.gpu().enter() else { continue };
            busy |= comm.pass(&entered, now.duration_since(start).as_nanos() as u64);
        }
        if now.duration_since(looked) >= ENDS {
            looked = now;
            comms.iter().for_each(|comm| comm.look_for_ends());
        }
        match now.duration_since(worked) {
            _ if busy => worked = now,
            idle if idle < SPIN => spin_loop(),
            idle if idle < YIELD => yield_now(),
            _ => sleep(NAP),
        }
    }
}
