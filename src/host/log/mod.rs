//! Messages for people: a callback of the user's, or standard error.
//!
//! All sentences stand in this folder. Other code tells what has happened, as a value
//! ([`event::Event`]).

pub(super) mod event;
pub(super) mod gather;
pub(super) mod gin;
pub(super) mod life;
pub(super) mod network;
pub(super) mod news;
pub(super) mod ports;
mod rail_end;
pub(super) mod rail_news;
pub(super) mod settings;
pub(super) mod silence;
pub mod stall;
pub(super) mod stalls;
pub(super) mod told;

pub use rail_end::{END_BYTES_MAX, RailEnd};

use crate::base::hash::fnv1a;
use crate::memory::{Errno, stderr};
use std::io::IoSlice;
use std::string::String;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, TryLockError};

/// How urgent a message is.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
#[repr(u32)]
pub enum Level {
    /// Something does not work.
    Error = 1,
    /// Something works otherwise than was asked.
    Warning = 2,
    /// What is going on, once per object.
    Info = 3,
}

/// Receives messages. May be called from any thread; must not call back into the library.
pub type Sink = fn(userdata: usize, level: Level, text: &str);

/// Bytes of the longest sentence, about a stalled request or all ports of two sides, and at least
/// what a sink must take whole.
pub const TEXT_BYTES_MAX: usize = 1_280;

/// What standard error is told: `CROSSTIE_LOG`, as the last open has read it.
static LEVEL: AtomicU32 = AtomicU32::new(Level::Warning as u32);

static SINK: RwLock<Option<(Sink, usize)>> = RwLock::new(None);

/// Hashes of what was said by [`say_once`] to the sink of now; 0: a free place.
static SAID: Mutex<[u64; SAID_MAX]> = Mutex::new([0; SAID_MAX]);

/// Sentences of [`say_once`] that are remembered: more than there are variables. What comes after
/// them is said each time.
const SAID_MAX: usize = 128;

/// How often [`SAID`] is tried for: another thread has it for as long as it takes to look through.
const SAID_TRIES: u32 = 1000;

/// What stands before each line of standard error, where several processes share it.
static BEFORE: OnceLock<String> = OnceLock::new();

/// Says which of several processes that share standard error this one is. The first name counts.
pub fn name_set(name: &str) {
    let _ = BEFORE.set(std::format!("crosstie, {name}: "));
}

/// Sets the least urgent level that goes to standard error.
pub fn level_set(level: Level) {
    // relaxed: nothing else is told by it
    LEVEL.store(level as u32, Ordering::Relaxed);
}

/// Whether anybody would hear what is said at a level.
pub fn is_heard(level: Level) -> bool {
    let sink = SINK.read().is_ok_and(|place| place.is_some());
    // relaxed: see `level_set`
    sink || level as u32 <= LEVEL.load(Ordering::Relaxed)
}

/// Whether standard error is told what is said at a level, as far as `CROSSTIE_LOG` says.
pub fn is_told(level: Level) -> bool {
    // relaxed: see `level_set`
    level as u32 <= LEVEL.load(Ordering::Relaxed)
}

/// Sends messages to `sink` from now on; `None`: to standard error, as far as `CROSSTIE_LOG` says.
pub fn sink_set(sink: Option<(Sink, usize)>) {
    if let Ok(mut place) = SINK.write() {
        *place = sink;
    }
    if let Some(mut said) = said() {
        *said = [0; SAID_MAX];
    }
}

/// What was said once. `None`: another thread looks at it, or did when this process was forked off,
/// which nobody can wait for.
fn said() -> Option<MutexGuard<'static, [u64; SAID_MAX]>> {
    for _ in 0..SAID_TRIES {
        match SAID.try_lock() {
            Ok(said) => return Some(said),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Says what is no less true of each further endpoint of this process, and would be said again with
/// each. Control path only.
pub(crate) fn say_once(level: Level, text: &str) {
    if !is_heard(level) {
        return;
    }
    // twice rather than never
    let is_news = said().is_none_or(|mut said| is_news(&mut *said, text));
    if is_news {
        say(level, text);
    }
}

/// Whether a text was not said yet; remembers it.
fn is_news(said: &mut [u64], text: &str) -> bool {
    let hash = fnv1a(text.as_bytes()).max(1);
    match said.iter_mut().find(|place| matches!(**place, 0) || **place == hash) {
        Some(place) => core::mem::replace(place, hash) != hash,
        None => true,
    }
}

/// Says something. Control path only: never called while data moves.
pub fn say(level: Level, text: &str) {
    let sink = SINK.read().map(|place| *place).unwrap_or(None);
    match sink {
        Some((sink, userdata)) => sink(userdata, level, text),
        // relaxed: see `level_set`
        None if level as u32 > LEVEL.load(Ordering::Relaxed) => {}
        None => line_write(text),
    }
}

/// A line of standard error, whole: two processes may share it, so it is one system call. Without
/// the lock of the standard library, which a child that was forked while another thread wrote would
/// wait for.
pub fn line_write(text: &str) {
    parts_write([text, "", ""]);
}

/// As [`line_write`], of a text in parts. Neither allocates.
pub fn parts_write(text: [&str; 3]) {
    let before = BEFORE.get().map_or("crosstie: ", String::as_str);
    let [first, second, third] = text;
    let mut parts = [before, first, second, third, "\n"].map(|part| IoSlice::new(part.as_bytes()));
    let mut rest = &mut parts[..];
    // a pipe that is nearly full may take a part; who cannot be told is told nothing
    while !rest.is_empty() {
        match stderr::write(rest) {
            Ok(0) => return,
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::locked;

    #[test]
    fn sentence_is_news_once_and_always_where_no_place_is_left_for_it() {
        let mut said = [0; 2];
        assert!(is_news(&mut said, "a") && is_news(&mut said, "b"));
        assert!(!is_news(&mut said, "a") && !is_news(&mut said, "b"));
        assert!(is_news(&mut said, "c") && is_news(&mut said, "c"));
        assert!(!is_news(&mut said, "b"));
    }

    /// Another thread was writing to standard error when it was forked off, and never will again.
    #[test]
    fn forked_child_that_says_something_does_not_wait_for_a_thread_that_it_has_not() {
        let (holds, held) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let _lock = std::io::stderr().lock();
            let _said = locked(&SAID);
            holds.send(()).unwrap();
            let _ = released.recv();
        });
        held.recv().unwrap();
        // SAFETY: the child says a line and is gone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it waits for ever.
            unsafe { libc::alarm(20) };
            say_once(Level::Error, "of a forked child, for a test");
            // SAFETY: without the parent's destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        release.send(()).unwrap();
        writer.join().unwrap();
        assert_eq!(status, 0, "the child waited");
    }
}
