//! A thread that makes progress for a group while its user does not: signals and puts of peers are
//! applied although the owner computes.

use super::Group;
use crate::host::Endpoint;
use crate::memory::{Errno, locked, threads};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, yield_now};

/// Calls of progress without an event before the thread sleeps.
const IDLE_MAX: u32 = 256;

/// Who may use the endpoint and the group.
#[derive(Debug, Default)]
struct Turn {
    lock: Mutex<()>,
    /// Users that wait for the lock: the thread lets them pass.
    wanted: AtomicU32,
    stop: AtomicBool,
}

impl Turn {
    fn take(&self) -> MutexGuard<'_, ()> {
        locked(&self.lock)
    }
}

/// The thread, named `crosstie-window`. It sleeps while nothing happens.
#[derive(Debug)]
pub struct Helper {
    turn: Arc<Turn>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works on.
struct Work {
    endpoint: *mut Endpoint,
    group: *mut Group,
}

// SAFETY: both are used by one thread at a time, which holds the lock ([`Helper::start`]).
unsafe impl Send for Work {}

impl Helper {
    /// Starts the thread.
    ///
    /// # Safety
    /// - both stay where they are until [`Helper::stop`] has returned;
    /// - until then they are used only by who holds what [`Helper::enter`] has given.
    pub unsafe fn start(endpoint: *mut Endpoint, group: *mut Group) -> Result<Helper, Errno> {
        let turn = Arc::new(Turn::default());
        let (work, its) = (Work { endpoint, group }, Arc::clone(&turn));
        let thread = threads::start("crosstie-window", move || tend(&work, &its))?;
        Ok(Helper { turn, thread: Some(thread) })
    }

    /// Waits for the thread to leave the endpoint and the group, which are the caller's until the
    /// result is dropped.
    #[inline]
    pub fn enter(&self) -> impl Drop + use<'_> {
        self.turn.wanted.fetch_add(1, Ordering::Relaxed);
        let guard = self.turn.take();
        self.turn.wanted.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Ends the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.turn.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // it ends within one sleep; a panic of its own was told
            let _ = thread.join();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

fn tend(work: &Work, turn: &Turn) {
    let mut idle = 0;
    while !turn.stop.load(Ordering::Acquire) {
        if turn.wanted.load(Ordering::Relaxed) != 0 {
            yield_now();
            continue;
        }
        let guard = turn.take();
        // SAFETY: they stand until the thread has ended, and are ours while we hold the lock
        // (`Helper::start`).
        let (endpoint, group) = unsafe { (&mut *work.endpoint, &mut *work.group) };
        let has_moved = group.progress(endpoint);
        idle = if has_moved { 0 } else { idle + 1 };
        if idle < IDLE_MAX {
            drop(guard);
            if idle > IDLE_MAX / 4 {
                yield_now();
            }
            continue;
        }
        let fd = endpoint.wait_arm().then(|| endpoint.shared.wait_fd());
        drop(guard);
        match fd {
            Some(fd) => super::doze(fd),
            None => yield_now(),
        }
    }
}
