//! The protocol machine: one owner, no clock, no allocation. Events and time go in, operations and
//! outcomes come out.
//!
//! # How a message travels
//!
//! Sends of a connection form one ordered stream, numbered by `eager_number`. A short message
//! travels in the stream itself (*eager*). The rail decides how a long one travels:
//!
//! - **pull**: the stream carries a descriptor, the receiver reads the message out of the sender's
//!   memory, and its state line says that it has;
//! - **push**: the receiver has offered its buffer in a control slot. The sender binds the message
//!   to the slot, says so in the stream (*start*), and writes the stripes with immediates.
//!
//! # Matching
//!
//! A message is matched inside the oldest group that is not fully bound, to the first free receive
//! with its tag.
//!
//! - The receiver decides this for messages that arrive unasked, in stream order.
//! - The sender decides it for messages that it binds to slots. First it replays what it sent
//!   unasked before it saw the slots, in the same order and by the same function
//!   ([`recv::matching::find`]).
//!
//! Both see the same sequence of groups and of sends, so both reach the same pairing
//! (`doc/wire.md`, safety argument).
//!
//! # Transitions
//!
//! The tables of states and their transitions stand with the states in `records`.
#![deny(unsafe_code)]

mod block;
mod connection;
mod control;
#[cfg(feature = "proof")]
mod digest;
pub mod endpoint;
pub mod flush;
mod life;
pub mod limits;
#[allow(unsafe_code)]
pub mod mr;
#[cfg(not(feature = "proof"))]
mod mutant;
#[cfg(feature = "proof")]
pub mod mutant;
mod net;
mod rails;
mod records;
mod recv;
pub mod request;
mod send;
pub mod snapshot;
pub mod stats;

pub use block::RECORD_SIZES;
pub use control::report::ReportError;
pub use endpoint::{Endpoint, Progress};
pub use life::{ConnectionSetup, LaneJoin, LaneView};
pub use limits::{Config, Limits};
pub use mr::{DataMrs, MAPPED};
pub use net::is_awaited;
pub use rails::{schedule, table as rail};
pub use request::{Incoming, Outcome, Outgoing, RequestError, RequestId, SubmitError};
pub use stats::Stats;

#[cfg(test)]
mod tests;
