//! Access to what several threads share: one closes it, asks for it back, or all take turns.
#![forbid(unsafe_code)]

use super::sync;

pub mod gate;
pub mod recall;
pub mod tickets;
