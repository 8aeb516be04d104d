//! A companion: a queue pair that adds to words of this process.
//!
//! A port's companion is connected to a second queue pair of the same port, the responder, which
//! posts nothing. The companion posts fetch-and-adds, and the responder carries them out in memory
//! of this process. Old values go to the sink, 8 bytes that nobody reads. The sink is registered at
//! address 0 (iova 0), so that a request names it without knowing where it lies.
//!
//! Adds end in the order of posts, so a number says how each ended: those before the first that
//! has not ended were carried out. The device's error ends the companion for good. Of all adds that
//! had not ended by then nobody knows whether they were carried out ([`OutcomeUnknown`]).
//!
//! The adds of one port are atomic among each other. Adds of two ports, or of a port and a
//! processor, to one word are so only where the device says `IBV_ATOMIC_GLOB`, which nobody asks
//! for: a word takes the adds of one port alone.
//!
//! A port also has a queue pair that is its own other end, for flushes ([`Flushing`]).

mod adds;
mod ends;
mod error;
mod flush;

pub use adds::{ADDS_MAX, AddNumber, Companion};
/// Queue pairs of a companion: that which adds, and the responder.
pub const QUEUE_PAIRS: usize = 2;

pub use error::{AddError, CompanionError, OutcomeUnknown};
pub use flush::Flushing;
