//! The side band: who talks to whom, before and beside the data path. For endpoints of one host.
//!
//! A [`Band`] belongs to one endpoint. It is a passive state machine behind one lock
//! ([`control`]), driven by whoever has time: its own thread, which sleeps until a socket is ready
//! and so answers peers while the application computes, and every caller of `connect` and
//! `accept`, so that a caller who polls does not wait for a thread to wake. The data path never
//! takes the lock: it learns of connections from a queue of [`BandEvent`]s.
//!
//! Two endpoints share one *link* per direction of connecting: a socket, the arena with the rings
//! of all its connections, both doorbells, and the verdict of a trial whether each can read the
//! other's memory. The first connection pays for it (`LinkHello`, `LinkReply`, `LinkReady`, W8.1);
//! later ones are two frames (`Connect`, `Accepted`, W8.2). The listening side answers without
//! waiting for `accept`, so that two ranks that both connect first do not wait for each other.
//!
//! A connection's slot, arena space and mailbox are used again only when both sides have said
//! `Closed` or the link is dead, because until then the peer may still write there.
//!
//! Nothing allocates between [`Band::open`] and [`Band::close`], on any thread. Kernel calls are in
//! [`os`], [`socket`] and [`ifaddrs`] only; all other files forbid unsafe code.

extern crate std;

mod address;
mod announce;
mod band;
mod channel;
mod connection;
mod control;
mod dialing;
mod dialog;
mod error;
mod event;
mod greeting;
mod handshake;
mod ifaddrs;
pub mod interfaces;
pub mod key;
mod link;
mod listener;
mod listening;
mod liveness;
mod memory;
mod os;
mod peer;
mod proof;
mod reading;
mod requests;
mod route;
mod socket;
mod stream;
mod streams;
mod table;
mod teardown;

pub use address::node_id;
pub use band::{Band, BandConfig, BandTables, PendingId};
pub use control::{BandCounters, Note};
pub use error::{AcceptError, CloseError, ConnectError, ListenError, OpenError};
pub use event::{BandEvent, LinkParams, LocalTemplate, Rail, STREAMS_MAX, Side, Wake};
pub use listener::ListenerId;
pub use memory::{LinkMemory, MemoryError};
pub use os::random;
pub use peer::{NAME_BYTES, Peer, TextBuffer};
pub use requests::handle_error;
pub use route::{address_hello, hello_ip};
