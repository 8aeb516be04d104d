//! What aborted communicators have left: NCCL closes neither their listeners nor their attempts to
//! connect. Tables from v11 on say when a communicator ends; for the others a thread looks now and
//! then, which ends when nothing is there to be looked at.
#![forbid(unsafe_code)]

use super::process::OfProcess;
use super::{locked, setup};
use crosstie::memory::threads;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
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

/// Whether the thread runs, and what wakes it.
struct Keeper {
    runs: Mutex<bool>,
    bell: Condvar,
}

impl Keeper {
    const fn new() -> Keeper {
        Keeper { runs: Mutex::new(false), bell: Condvar::new() }
    }
}

static KEEPER: OfProcess<Keeper> = OfProcess::new(Keeper::new(), Keeper::new);

/// Something is there that nobody may ever close.
pub fn begin() {
    let mut runs = locked(&KEEPER.get().runs);
    if !*runs {
        // without a thread all stays as it is until NCCL closes it, or the process ends
        *runs = threads::start("crosstie-left", keep).is_ok();
    }
}

/// Something was closed: it may have been the last.
pub fn closed() {
    KEEPER.get().bell.notify_one();
}

fn keep() {
    let keeper = KEEPER.get();
    let mut runs = locked(&keeper.runs);
    while setup::is_anything_left() {
        let waited = keeper.bell.wait_timeout(runs, LOOK);
        drop(waited.unwrap_or_else(PoisonError::into_inner).0);
        setup::sweep(Patience::USUAL);
        runs = locked(&keeper.runs);
    }
    *runs = false;
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
    *locked(&KEEPER.get().runs)
}
