//! The seam between the protocol and the rails: traits and plain data, no logic.
//!
//! # The provider contract
//!
//! The transport assumes these and nothing else. Each is an entry of the conformance suite
//! (`tests/kit`), and each entry has a deliberately broken provider that fails it.
//!
//! - **P1** [`Provider::post`] takes the whole op, or returns [`PostError::Again`] and has changed
//!   nothing: of a write with an immediate that finds no receive, not its target either.
//! - **P2** Each accepted op yields exactly one completion, with its id, success or error: either
//!   at once ([`Posted::Done`], success only) or later from `poll` ([`Posted::Pending`]).
//! - **P3** `poll` is bounded by the slice and, each way, by the byte budget that it is given; it
//!   never blocks and never calls out. What it does not divide may overrun the budget by at most
//!   [`Caps::copy_granule`].
//! - **P4** No allocation, no lock shared with user threads; system calls only as
//!   [`Caps::syscalls`] says.
//! - **P5** Order, atomic width, inline size, and when data is visible are promised in [`Caps`].
//! - **P6** An error names op and peer; after [`Completion::PeerDown`] a provider still completes
//!   everything that it accepted, with an error where it must.
//! - **P7** A region stays valid until `deregister` returns; an op on a key that is not registered
//!   ends with [`OpErrorKind::Key`] and moves nothing.
//! - **P8** Time and randomness are arguments.
//! - **P9** [`PeerLife::peer_close`] with ops in flight says [`CloseError::Busy`] and changes
//!   nothing.
//! - **P10** [`OpKind::Fence`] never blocks; its completion [`Completion::Fenced`] means: nothing
//!   of that generation, whenever it was posted, by either side, can still write here, nor read or
//!   write here on our own behalf. [`Caps::fence`] says what that takes. Ops of ours that were
//!   accepted before may be reported after it, and have ended by then; those that are posted behind
//!   the fence are refused, or end with an error, and move nothing.
#![deny(unsafe_code)]

pub mod caps;
pub mod completion;
pub mod op;
#[allow(unsafe_code)]
pub mod provider;
pub mod region;

pub use caps::{Caps, FenceKind, Syscalls};
pub use completion::{Completion, DownCause, Next, OpError, OpErrorKind};
pub use op::{Gather, HEAD_BYTES, Head, LINE_BYTES, Line, Op, OpId, OpKind, RemoteSpan, Source};
pub use provider::{
    CloseError, Domain, LONG_SLOTS, LocalSpan, MemoryDomain, PeerLife, PostError, Posted, Provider,
    RecvSlot, SentThrough,
};
pub use region::{DeregisterError, MemoryKind, RailKey, Region, RegisterError};
