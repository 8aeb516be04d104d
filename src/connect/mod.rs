//! The side band: it makes connections within a host and between hosts, beside the data path.
//!
//! A [`Band`] belongs to one endpoint. It is a passive state machine behind one lock ([`control`]).
//! Two kinds of callers drive it:
//!
//! - its own thread, which sleeps until a socket is ready. So peers are answered while the
//!   application computes.
//! - each caller of `connect` and `accept`. So a caller that polls does not wait for a thread to
//!   wake.
//!
//! The data path never takes the lock: it learns of connections from a queue of [`BandEvent`]s. The
//! thread starts at open. It ends with the last listener, handshake and link, and the next use
//! starts it again.
//!
//! # Links
//!
//! Two endpoints share one *link* per direction of connecting. The first connection sets it up
//! (`LinkHello`, `LinkReply`, `LinkReady`, W8.1).
//!
//! - Within a host a link is a socket, an arena of each side with the rings that it writes
//!   ([`rings`]), and both doorbells. A trial shows whether each side can read the other's memory.
//!   Each further connection takes two frames (`Connect`, `Accepted`, W8.2).
//! - Between hosts a link is a TCP socket. Each further connection takes a socket per data stream,
//!   and `Accepted` ([`streams`]).
//!
//! The listening side answers without waiting for `accept`. So two ranks that both connect first do
//! not wait for each other. [`dialing`] and [`route`] find the listener. A link without connections
//! is kept for the next one until its place is needed ([`idle`]). Sockets without a valid hello
//! stand in a small table apart from the links ([`greeting`]), so that scanners cost little.
//!
//! # Lanes
//!
//! A connection over TCP may have several *lanes*, each with streams of its own and between other
//! addresses ([`plan`]).
//!
//! - Lane 0 is up when the connection stands. Others join later, and a lane that failed comes back
//!   ([`lanes`], [`lane_dialing`]).
//! - A link is one socket on one path. It may be lost and come back while other lanes work
//!   ([`outage`], [`resume`]).
//! - A lane whose interface loses its carrier is given up at once ([`carrier`]).
//!
//! # Reuse
//!
//! The peer may write to a connection's slot, arena space and mailbox until both sides have said
//! `Closed` or the link is dead. They are reused only after that. An attempt over TCP that is given
//! up need not wait: its sockets are closed, and late frames are known by their number.
//!
//! # Rules
//!
//! - Nothing allocates between [`Band::open`] and [`Band::close`], on any thread. The one exception
//!   is the start of the thread after it has ended.
//! - Kernel calls are in [`os`], [`socket`], [`stream`], [`netdevice`], [`netlink`], [`routed`] and
//!   [`fork`] only. All other files forbid unsafe code.

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
pub mod interfaces;
pub mod key;
mod lane_dialing;
mod lanes;
mod link;
mod listener;
mod listening;
mod liveness;
mod memory;
mod netdevice;
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
pub use socket::{Name, Socket};
pub use status::Watch;
pub use stream::{Traffic, ends_of};
pub use tried::Tried;
pub use trust::{Trust, USERS_NAMED_MAX, UserCause, Users, overflow_user};
pub use vouch::Vouch;
