//! The shared-memory rail: peers on one host.
//!
//! Each connection has four rings: a send ring and a write ring each way ([`ring`], [`record`],
//! [`layout`]). Each side's rings lie in its own memory, which the other side maps read-only
//! ([`view`]).
//!
//! | op | how it moves |
//! |---|---|
//! | message | stays in the send ring until its receiver releases it, in any order ([`held`]) |
//! | write, add | through the write ring; the target checks the key ([`mod@push`], [`target`]) |
//! | read | a copy by the reader ([`pull`]), so its own act is the fence (P10) |
//! | read, if the kernel forbids that | two pipelined copies through the write ring ([`target`]) |
//!
//! - Optional threads copy long data, in and out ([`copiers`]). The data thread keeps the order.
//! - No side waits for the other. An op without room stays queued until a later poll. Each record
//!   in a ring can be consumed without room in another, so two full rings do not block each
//!   other ([`target`]).
//! - A sleeper is woken only if it said that it sleeps (`sides`).
//! - After some polls that found nothing, the thread yields the processor: the peer may need it
//!   (`waiting`).
//! - Shared memory is not trusted: lengths, kinds, serials and positions are checked. A peer with a
//!   wrong one is down with [`crate::fabric::DownCause::Failed`].

pub mod board;
mod copiers;
pub mod domain;
pub mod held;
pub mod layout;
pub mod ops;
mod peer;
pub mod provider;
mod pull;
mod push;
pub mod record;
pub mod ring;
pub mod rota;
mod sides;
mod target;
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
