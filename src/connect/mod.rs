//! The side band: who talks to whom, before and beside the data path. Within a host, and between.
//!
//! A [`Band`] belongs to one endpoint. It is a passive state machine behind one lock
//! ([`control`]), driven by whoever has time: its own thread, which sleeps until a socket is ready
//! and so answers peers while the application computes, and every caller of `connect` and
//! `accept`, so that a caller who polls does not wait for a thread to wake. The data path never
//! takes the lock: it learns of connections from a queue of [`BandEvent`]s. The thread runs from
//! open; when the last listener, handshake and link is gone it ends, and the next use starts it.
//!
//! Two endpoints share one *link* per direction of connecting. Within a host it is a socket, an
//! arena of each side with the rings that it writes ([`rings`]), both doorbells, and the verdict of
//! a trial whether each can read the other's memory; between hosts it is a TCP socket. The first
//! connection pays for it (`LinkHello`, `LinkReply`, `LinkReady`, W8.1); later ones are two frames
//! (`Connect`, `Accepted`, W8.2), or over TCP a socket per data stream and `Accepted`
//! ([`streams`]). The listening side answers without waiting for `accept`, so that two ranks that
//! both connect first do not wait for each other. How a listener is found is in [`dialing`] and
//! [`route`].
//!
//! A connection over TCP may have several *lanes*, each with streams of its own and between other
//! addresses ([`plan`]): lane 0 is up when the connection stands, others join, and one that dies
//! comes back while the connection stands ([`lanes`], [`lane_dialing`]). The link is one socket on
//! one path; where other lanes live it may be lost and come back, too ([`outage`], [`resume`]). A
//! lane whose interface loses its carrier is given up at once ([`carrier`]). On one host lanes over
//! TCP may join a connection through shared memory ([`mod@together`]).
//!
//! A link without connections is kept for the next one as long as nobody else needs its place
//! ([`idle`]).
//!
//! Who has not said a valid hello stands in a small table apart from the links ([`greeting`]), so
//! that scanners cost little and disturb nobody.
//!
//! A connection's slot, arena space and mailbox are used again only when both sides have said
//! `Closed` or the link is dead, because until then the peer may still write there. An attempt over
//! TCP that is given up need not wait: its sockets are closed, and what comes later is known by its
//! number to be late.
//!
//! Nothing allocates between [`Band::open`] and [`Band::close`], on any thread, but the start of a
//! thread that had ended. Kernel calls are in [`os`], [`socket`], [`stream`], [`ifaddrs`],
//! [`netlink`], [`routed`] and [`fork`] only; all other files forbid unsafe code.

extern crate std;

mod address;
mod announce;
mod asks;
mod band;
mod carrier;
mod channel;
mod connection;
mod control;
mod dialing;
mod dialog;
mod ending;
mod entry;
mod error;
mod event;
pub mod fork;
mod greeting;
pub mod group;
mod handshake;
mod idle;
mod ifaddrs;
pub mod interfaces;
pub mod key;
mod lane_dialing;
mod lanes;
mod link;
mod listener;
mod listening;
mod liveness;
mod memory;
mod netlink;
mod note;
mod os;
mod outage;
mod pairs;
mod peer;
mod plan;
mod proof;
mod reading;
mod report;
mod requests;
mod resume;
mod rings;
mod route;
pub mod routed;
mod socket;
mod stalls;
mod status;
mod stream;
mod streams;
mod table;
mod teardown;
pub mod text_door;
mod together;
mod tried;
mod trust;
mod vouch;
mod way;

pub use address::{SHM_DIR_BYTES_MAX, node_id};
pub use band::{Band, BandConfig, BandTables, PendingId};
pub use ending::Ending;
pub use error::{
    AcceptError, CloseError, ConnectError, DialCause, KeyCause, ListenError, OpenError,
};
pub use event::{
    BandCounters, BandEvent, LinkParams, LocalTemplate, Rail, STREAMS_MAX, Side, Wake,
};
pub use listener::ListenerId;
pub use memory::{LinkMemory, MemoryError};
pub use note::Note;
pub use os::{NoThread, descriptor_limit, random};
pub use pairs::{PairEnd, PairPorts};
pub use peer::{NAME_BYTES, Peer, TextBuffer};
pub use report::{ReportEntry, reports};
pub use requests::handle_error;
pub use status::Watch;
pub use stream::{Traffic, ends_of};
pub use together::Apart;
pub use tried::Tried;
pub use trust::{Trust, USERS_NAMED_MAX, UserCause, Users, overflow_user};
pub use vouch::Vouch;
