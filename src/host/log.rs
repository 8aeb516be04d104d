//! Messages for people: a callback of the user's, or standard error.

extern crate std;

use crate::base::hash::fnv1a;
use std::io::{ErrorKind, IoSlice, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

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

/// Bytes of the longest sentence about a stalled request, and at least what a sink must take whole.
pub const TEXT_BYTES_MAX: usize = 1_280;

/// What standard error is told: `CROSSTIE_LOG`, as the last open has read it.
static LEVEL: AtomicU32 = AtomicU32::new(Level::Warning as u32);

static SINK: RwLock<Option<(Sink, usize)>> = RwLock::new(None);

/// Hashes of what was said by [`say_once`] to the sink of now; 0: a free place.
static SAID: Mutex<[u64; SAID_MAX]> = Mutex::new([0; SAID_MAX]);

/// Sentences of [`say_once`] that are remembered: more than there are variables. What comes after
/// them is said each time.
const SAID_MAX: usize = 128;

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

/// Sends messages to `sink` from now on; `None`: to standard error, as far as `CROSSTIE_LOG` says.
pub fn sink_set(sink: Option<(Sink, usize)>) {
    if let Ok(mut place) = SINK.write() {
        *place = sink;
    }
    *SAID.lock().unwrap_or_else(PoisonError::into_inner) = [0; SAID_MAX];
}

/// Says what is no less true of each further endpoint of this process, and would be said again with
/// each. Control path only.
pub(crate) fn say_once(level: Level, text: &str) {
    if !is_heard(level) {
        return;
    }
    let is_news = is_news(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner), text);
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

/// A line of standard error, whole: two processes may share it, so it is one system call.
pub(crate) fn line_write(text: &str) {
    let mut parts = ["crosstie: ", text, "\n"].map(|part| IoSlice::new(part.as_bytes()));
    let mut rest = &mut parts[..];
    let mut out = std::io::stderr().lock();
    // a pipe that is nearly full may take a part; who cannot be told is told nothing
    while !rest.is_empty() {
        match out.write_vectored(rest) {
            Ok(0) => return,
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_is_news_once_and_always_where_no_place_is_left_for_it() {
        let mut said = [0; 2];
        assert!(is_news(&mut said, "a") && is_news(&mut said, "b"));
        assert!(!is_news(&mut said, "a") && !is_news(&mut said, "b"));
        assert!(is_news(&mut said, "c") && is_news(&mut said, "c"));
        assert!(!is_news(&mut said, "b"));
    }
}
