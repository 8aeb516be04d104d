//! Messages for people: a callback of the user's, or standard error.

extern crate std;

use std::sync::RwLock;

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

static SINK: RwLock<Option<(Sink, usize)>> = RwLock::new(None);

/// Sends messages to `sink` from now on; `None`: warnings and errors to standard error.
pub fn sink_set(sink: Option<(Sink, usize)>) {
    if let Ok(mut place) = SINK.write() {
        *place = sink;
    }
}

/// Says something. Control path only: never called while data moves.
pub fn say(level: Level, text: &str) {
    let sink = SINK.read().map(|place| *place).unwrap_or(None);
    match sink {
        Some((sink, userdata)) => sink(userdata, level, text),
        None if level <= Level::Warning => std::eprintln!("crosstie: {text}"),
        None => {}
    }
}
