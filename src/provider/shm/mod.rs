//! The shared-memory rail: peers on one host.
//!
//! Each connection has four rings: a send ring and a write ring each way ([`ring`], [`record`],
//! [`layout`]). Each side's lie in memory of its own, which the other maps for reading alone
//! ([`view`]). Messages lie in the send ring until their receiver has released them, in any order
//! ([`held`]). Writes and adds go through the write ring and are carried out by their target, which
//! checks each key in its own table ([`mod@push`]). Reads are copies of the reader's own
//! ([`pull`]), so that its own act is the fence (P10), or, where the kernel forbids that, two
//! pipelined copies through the write ring ([`serve`]).
//!
//! Where threads were asked for, they copy what is long, in and out ([`copiers`]); the data thread
//! keeps the order.
//!
//! Nobody waits for anybody: what finds no room stays queued and moves on with the next poll, and
//! everything in a ring can be consumed without room in another, so two full rings do not block
//! each other (`acks`). A sleeper is woken only when it said that it sleeps (`doorbell`). After
//! some polls that found nothing the processor is offered to others, as the peer may need it
//! (`waiting`).
//!
//! What stands in shared memory is not believed: lengths, kinds, serials and positions are checked,
//! and a peer that breaks them is down with [`crate::fabric::DownCause::Failed`].

mod acks;
pub mod board;
mod copiers;
pub mod domain;
mod doorbell;
pub mod held;
pub mod layout;
pub mod ops;
pub mod pair;
mod peer;
pub mod provider;
mod pull;
mod push;
pub mod record;
pub mod ring;
pub mod rota;
mod serve;
pub mod view;
mod waiting;
pub mod word;

pub use board::{HeapSpan, board_bytes};
pub use copiers::THREADS_MAX;
pub use domain::ShmDomain;
pub use layout::{RingSizes, first_parts, rings_bytes};
pub use peer::PeerSetup;
pub use provider::{Limits, OpenError, Shm, bytes};
pub use pull::Pulled;
pub use view::SharedView;
