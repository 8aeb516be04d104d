//! Which descriptors of this process a forked child must not keep: sockets, whose peers would take
//! a process for alive as long as a child of its holds them.
//!
//! One table for the process, because a fork is of the process. It only remembers; who knows the
//! operating system acts on it (`connect/fork.rs`). Lock-free, since the child of a process with
//! several threads may not wait for any of them.
#![forbid(unsafe_code)]

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Descriptors that are remembered: Linux's usual most per process (`fs.nr_open`).
const FDS_MAX: usize = 1 << 20;

/// The table, a bit each; pages of it take memory when they are touched.
#[cfg(not(loom))]
static KEPT: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
/// Words of the table that were ever used.
#[cfg(not(loom))]
static WORDS: AtomicU32 = AtomicU32::new(0);
/// Threads between a system call that makes or closes a descriptor and its note here.
#[cfg(not(loom))]
static OPENING: AtomicU32 = AtomicU32::new(0);
/// Threads that are about to fork.
#[cfg(not(loom))]
static FORKING: AtomicU32 = AtomicU32::new(0);
/// How often a thread looks whether another is out of its way. It never waits for ever: a signal
/// handler that forks may have interrupted just who it waits for.
#[cfg(not(loom))]
const SPINS_MAX: u32 = 100_000;

#[cfg(not(loom))]
fn place(fd: i32) -> Option<(&'static AtomicU64, u64, u32)> {
    let fd = usize::try_from(fd).ok()?;
    Some((KEPT.get(fd / 64)?, 1 << (fd % 64), fd as u32 / 64))
}

/// Waits until nobody is about to fork, and keeps them waiting until OPENING is less again.
#[cfg(not(loom))]
fn enter() {
    let mut spins = 0;
    loop {
        // seqcst: [fork], our note before our look, against `fork_begins`
        OPENING.fetch_add(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) == 0 || spins == SPINS_MAX {
            break;
        }
        OPENING.fetch_sub(1, Ordering::SeqCst);
        spins += 1;
        core::hint::spin_loop();
    }
}

/// Runs `make`, which makes a descriptor, so that no fork falls between that and the note.
#[cfg(not(loom))]
pub fn made<E>(make: impl FnOnce() -> Result<i32, E>) -> Result<i32, E> {
    enter();
    let made = make();
    if let Ok(fd) = made {
        note(fd);
    }
    OPENING.fetch_sub(1, Ordering::SeqCst);
    made
}

#[cfg(not(loom))]
fn note(fd: i32) {
    if let Some((word, bit, at)) = place(fd) {
        // relaxed: a fork that could miss it waits for OPENING
        word.fetch_or(bit, Ordering::Relaxed);
        WORDS.fetch_max(at + 1, Ordering::Relaxed);
    }
}

/// Runs `close`, which closes a descriptor, so that no fork falls between that and the note.
#[cfg(not(loom))]
pub fn closed(fd: i32, close: impl FnOnce()) {
    enter();
    if let Some((word, bit, _)) = place(fd) {
        // relaxed: a fork that could miss it waits for OPENING
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    close();
    OPENING.fetch_sub(1, Ordering::SeqCst);
}

/// Before a fork: waits until no thread has a descriptor that is not noted.
#[cfg(not(loom))]
pub fn fork_begins() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    for _ in 0..SPINS_MAX {
        // seqcst: [fork], our note before our look, against `made`
        if OPENING.load(Ordering::SeqCst) == 0 {
            break;
        }
        core::hint::spin_loop();
    }
}

/// After a fork, in the parent.
#[cfg(not(loom))]
pub fn fork_ends() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// After a fork, in the child, which has one thread: takes all out of the table.
#[cfg(not(loom))]
pub fn fork_takes(mut each: impl FnMut(i32)) {
    // relaxed: nobody else is here
    OPENING.store(0, Ordering::Relaxed);
    FORKING.store(0, Ordering::Relaxed);
    for at in 0..WORDS.load(Ordering::Relaxed) {
        let mut bits = KEPT[at as usize].swap(0, Ordering::Relaxed);
        while bits != 0 {
            each((at * 64 + bits.trailing_zeros()) as i32);
            bits &= bits - 1;
        }
    }
}

/// Loom's atomics are of one run each, and its models open no descriptors.
#[cfg(loom)]
pub fn made<E>(make: impl FnOnce() -> Result<i32, E>) -> Result<i32, E> {
    make()
}

/// As above.
#[cfg(loom)]
pub fn closed(_fd: i32, close: impl FnOnce()) {
    close();
}

/// As above.
#[cfg(loom)]
pub fn fork_begins() {}

/// As above.
#[cfg(loom)]
pub fn fork_ends() {}

/// As above.
#[cfg(loom)]
pub fn fork_takes(_each: impl FnMut(i32)) {}
