//! What happens, as values: each has a level and its sentence, as its `Display`.
#![forbid(unsafe_code)]

use super::news::say_by;
use super::{Level, say, say_once};
use core::fmt;
use std::string::ToString;

/// Something that happened.
pub(in crate::host) trait Event: fmt::Display {
    /// How urgent it is.
    fn level(&self) -> Level;

    /// Whether this process says the same sentence only once.
    fn is_once(&self) -> bool {
        false
    }
}

/// Says an event with a sentence of any length. Allocates.
pub(in crate::host) fn tell(event: &impl Event) {
    way(event)(event.level(), &event.to_string());
}

/// Says an event without the heap; the sentence is cut at
/// [`TEXT_BYTES_MAX`](super::TEXT_BYTES_MAX).
pub(in crate::host) fn tell_briefly(event: &impl Event) {
    say_by(way(event), event.level(), format_args!("{event}"));
}

fn way(event: &impl Event) -> fn(Level, &str) {
    if event.is_once() { say_once } else { say }
}
