//! What aborted communicators have left: NCCL closes neither their listeners nor their attempts to
//! connect. Tables from v11 on say when a communicator ends; for the others a thread looks now and
//! then, which ends when nothing is there to be looked at.
#![forbid(unsafe_code)]

use super::process::{OfProcess, locked};
use super::setup;
use super::threads::{ended, joined};
use crosstie::memory::threads;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After how long what nobody asks for was dropped.
#[derive(Copy, Clone)]
pub struct Patience {
    /// An attempt, which NCCL asks for all the time; a listener whose thread has ended.
    pub dropped: Duration,
    /// A listener of a thread that lives: it may wait so long for what other ranks say before it
    /// asks.
    pub silent: Duration,
}

impl Patience {
    /// That of the plugin.
    pub const USUAL: Patience =
        Patience { dropped: Duration::from_secs(60), silent: Duration::from_secs(3600) };
}

/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);

/// The thread of a process that looks, and what wakes it.
struct Keeper {
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    /// The thread that was started last, until somebody has waited for it.
    thread: Option<JoinHandle<()>>,
    /// Whether it looks.
    runs: bool,
    /// Which thread it is, counted: one that is waited for begins no other's work.
    number: u64,
}

static KEEPER: OfProcess<Keeper> = OfProcess::new(Keeper::new(), Keeper::new);

impl Keeper {
    const fn new() -> Keeper {
        let state = State { thread: None, runs: false, number: 0 };
        Keeper { state: Mutex::new(state), bell: Condvar::new() }
    }

    fn begin(&'static self) {
        let mut state = locked(&self.state);
        if state.runs {
            return;
        }
        joined(state.thread.take());
        state.number += 1;
        let number = state.number;
        let sweep = || setup::sweep(Patience::USUAL);
        let work = move || self.work(number, LOOK, setup::is_anything_left, sweep);
        // without a thread all stays as it is until NCCL closes it, or the process ends
        state.thread = threads::start("crosstie-left", work).ok();
        state.runs = state.thread.is_some();
    }

    /// Looks until nothing is left, or the thread of this number is waited for.
    fn work(&self, number: u64, look: Duration, is_left: impl Fn() -> bool, sweep: impl Fn()) {
        let mut state = locked(&self.state);
        while state.number == number && is_left() {
            let waited = self.bell.wait_timeout(state, look);
            drop(waited.unwrap_or_else(PoisonError::into_inner).0);
            sweep();
            state = locked(&self.state);
        }
        if state.number == number {
            state.runs = false;
            ended(&mut state.thread);
        }
    }

    fn closed(&self) {
        // the thread is before its look at what is left, or it waits
        drop(locked(&self.state));
        self.bell.notify_all();
    }

    fn finish(&self, is_left: impl Fn() -> bool) {
        let thread = {
            let mut state = locked(&self.state);
            if state.runs && is_left() {
                return;
            }
            // what is left from now on has a thread of its own
            state.number += 1;
            state.runs = false;
            state.thread.take()
        };
        self.bell.notify_all();
        joined(thread);
    }
}

/// Something is there that nobody may ever close.
pub fn begin() {
    KEEPER.get().begin();
}

/// Something was closed: it may have been the last.
pub fn closed() {
    KEEPER.get().closed();
}

/// Waits for the thread, if nothing is left to be looked at: NCCL may unload the plugin afterwards.
pub fn finish() {
    KEEPER.get().finish(setup::is_anything_left);
}

/// Who has opened something, and who asked for it last.
pub struct Asker {
    /// Its place below `/proc`, where that can be had.
    thread: Option<PathBuf>,
    asked: Mutex<Instant>,
}

impl Asker {
    /// The calling thread, now.
    pub fn new() -> Asker {
        let thread = std::fs::read_link("/proc/thread-self").ok();
        Asker { thread, asked: Mutex::new(Instant::now()) }
    }

    /// Somebody asks.
    pub fn asks(&self) {
        *locked(&self.asked) = Instant::now();
    }

    /// Whether nobody will any more, as far as can be told.
    pub fn is_gone(&self, patience: Patience) -> bool {
        let silent = locked(&self.asked).elapsed();
        silent >= patience.silent || (silent >= patience.dropped && self.has_ended())
    }

    /// Whether it may be asked for by another thread than the calling one.
    pub fn is_elsewhere(&self) -> bool {
        let here = std::fs::read_link("/proc/thread-self").ok();
        self.thread.is_some() && self.thread != here && !self.has_ended()
    }

    /// Whether the thread has ended for certain.
    fn has_ended(&self) -> bool {
        let there = |path: &Path| Path::new("/proc").join(path).symlink_metadata();
        let Some(thread) = &self.thread else { return false };
        let missing = there(thread).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        missing && there(Path::new("thread-self")).is_ok()
    }
}

#[cfg(test)]
pub fn runs() -> bool {
    locked(&KEEPER.get().state).runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    const HANGS: Duration = Duration::from_secs(20);
    const NEVER: Duration = Duration::from_secs(3600);

    /// It rang while the thread stood between its look and its sleep, and nobody heard it.
    #[test]
    fn what_is_closed_right_after_the_look_wakes_the_thread() {
        static LEFT: AtomicBool = AtomicBool::new(true);
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper::new()));
        let (looked, look) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let is_left = move || {
            let is_left = LEFT.load(Ordering::Relaxed);
            let _ = looked.send(());
            // for who closes meanwhile
            std::thread::sleep(Duration::from_millis(100));
            is_left
        };
        std::thread::spawn(move || {
            keeper.work(0, NEVER, is_left, || {});
            let _ = ended.send(());
        });
        look.recv().unwrap();
        LEFT.store(false, Ordering::Relaxed);
        keeper.closed();
        end.recv_timeout(HANGS).expect("the thread sleeps over the end of what was left");
    }

    /// It was told, and the end of the last communicator did not wait until it had heard it.
    #[test]
    fn the_end_waits_for_a_thread_that_has_nothing_left() {
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper::new()));
        let (ended, end) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            keeper.work(0, NEVER, || true, || std::thread::sleep(Duration::from_millis(100)));
            let _ = ended.send(());
        });
        *locked(&keeper.state) = State { thread: Some(thread), runs: true, number: 0 };
        keeper.finish(|| true);
        assert!(end.try_recv().is_err(), "something is left");
        keeper.finish(|| false);
        assert!(end.try_recv().is_ok());
    }
}
