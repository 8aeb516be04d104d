//! Queue pairs that are over are destroyed by a thread of the rail: a driver may wait in that call
//! for as long as packets of theirs are anywhere. soft-RoCE does so while some wait for the answer
//! of a neighbour, which is 3 s when a link is down, and whoever makes progress has other peers.
//!
//! The thread starts with the first of them, so that a rail which loses no peer has none, and ends
//! with the rail.

use super::sys::QueuePair;
use crate::memory::threads;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::vec::Vec;

/// A queue pair whose device has given back everything that was posted to it, and takes no packets
/// for it.
struct Over(QueuePair);

// SAFETY: libibverbs lets any thread destroy what another has made; nobody else has it any more.
unsafe impl Send for Over {}

#[derive(Debug, Default)]
struct Waiting {
    list: Vec<Over>,
    is_ended: bool,
}

impl core::fmt::Debug for Over {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Over({})", self.0.number())
    }
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut waiting = self.lock();
        loop {
            if let Some(over) = waiting.list.pop() {
                drop(waiting);
                drop(over.0);
                waiting = self.lock();
            } else if waiting.is_ended {
                return;
            } else {
                waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// The thread of one rail, and what it has to do.
#[derive(Debug)]
pub(super) struct Closer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Who has started the thread: a forked child has none.
    process: u32,
}

impl Closer {
    /// For a rail of so many peers, each of which has one queue pair at a time.
    pub(super) fn new(peers_max: u32) -> Closer {
        let shared = Arc::new(Shared::default());
        shared.lock().list.reserve_exact(peers_max as usize);
        Closer { shared, thread: None, process: 0 }
    }

    /// Has a queue pair destroyed, soon; at once where no thread starts, or more of them wait than
    /// there are peers.
    ///
    /// *Cost*: control path; a lock that nobody holds for long, and for the first a new thread.
    pub(super) fn take(&mut self, over: QueuePair) {
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            self.thread = threads::start("crosstie-close", move || shared.run()).ok();
            self.process = std::process::id();
        }
        let mut waiting = self.shared.lock();
        if self.thread.is_some() && waiting.list.len() < waiting.list.capacity() {
            waiting.list.push(Over(over));
            self.shared.more.notify_one();
        } else {
            drop(waiting);
            drop(over);
        }
    }

    /// Destroys all that wait, and ends the thread. The rail's queue goes after this.
    pub(super) fn finish(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            core::mem::forget(thread);
            return;
        }
        self.shared.lock().is_ended = true;
        self.shared.more.notify_one();
        drop(thread.join()); // it does not panic
    }
}
