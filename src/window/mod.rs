//! One-sided operations: windows, signals and counters of a group of ranks.
//!
//! A *window* is memory that every rank of a group gives to the others, each its own size. Ranks
//! put bytes into each other's windows, get bytes out, and add to *signals*, words that belong to a
//! window at its owner. A *counter* is such a word at the rank that issues an operation.
//!
//! # How it works
//!
//! The ranks of a pair have two connections. The first carries *frames* of records (W16,
//! [`crate::wire::one_sided`]); short bytes are inside. Long ones are messages on the second, in
//! the order of their records. The owner posts their receives into the window itself: nothing is
//! copied that the rail would not copy anyway, also where memory is a GPU's.
//!
//! Both are two-sided messages of [`crate::transport`]: they arrive once, in order, whatever rail
//! dies. So a signal is added once, and a put whose signal was added is never written again,
//! without a protocol of its own (`doc/decisions/0025-windows-are-messages.md`).
//!
//! # Progress
//!
//! The owner's [`Group::step`] applies what has come: an operation needs the owner's progress.
//! `doc/one-sided.md` says when what is visible.
#![deny(unsafe_code)]

pub mod carrier;
pub mod comparison;
pub mod error;
mod fifo;
pub mod group;
mod inbox;
mod lane;
pub mod limits;
#[allow(unsafe_code)]
pub mod memory;
#[cfg(not(feature = "proof"))]
mod mutant;
#[cfg(feature = "proof")]
pub mod mutant;
mod outbox;
mod refusals;
mod table;
mod ticket;

pub use carrier::{Add, AddError, Carrier};
pub use comparison::Comparison;
pub use error::WindowError;
pub use group::{Group, Local, Put};
pub use lane::Links;
pub use limits::{Limits, frames_bytes_each};
pub use memory::Span;
pub use table::WindowMemory;
pub use ticket::{After, Ticket};
