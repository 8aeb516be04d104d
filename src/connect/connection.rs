//! One connection as the side band sees it.
#![forbid(unsafe_code)]

use super::error::ConnectError;
use super::event::{STREAMS_MAX, Side};
use super::stalls::Stall;
use super::vouch::Vouched;
use crate::base::slab::Handle;
use crate::base::units::Instant;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{CONNECT_TAKEN, ConnectHello};

/// No link, no arena slot, no next connection.
pub(super) const NONE: u32 = u32::MAX;

/// How far a connection is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Phase {
    /// The slot is not in use.
    Free,
    /// We connect, and wait for the link or for `Accepted`.
    Connecting,
    /// A peer connects over TCP, and not all of its streams, or not the link's end of the
    /// handshake, have come.
    Gathering,
    /// The attempt ended with an error that its caller has not seen yet.
    Failed(ConnectError),
    /// Both sides have it.
    Open,
}

/// An entry of the table of connections.
#[derive(Copy, Clone, Debug)]
pub(super) struct Connection {
    pub phase: Phase,
    pub side: Side,
    /// The use of the slot that the peer knows.
    pub generation: u32,
    /// The link; [`NONE`] once failed.
    pub link: u32,
    /// The next and the last one before of the same link.
    pub link_next: u32,
    pub link_before: u32,
    /// The next one in the chain of those that peers dialled, by the peer's number.
    pub met_next: u32,
    /// Which part of the link's arena is ours; [`NONE`] on the listening side.
    pub arena_slot: u32,
    /// The next connection waiting at the listener.
    pub next: u32,
    /// The listener: the peer's number when we connect, else our own packed handle.
    pub listener: u64,
    /// Where the rings lie.
    pub rings_offset: u64,
    pub peer: ConnectHello,
    pub deadline: Instant,
    /// Data streams over TCP; 0 over shared memory.
    pub stream_count: u8,
    /// Lanes; before both sides agree, as many as we plan.
    pub lanes: u8,
    /// Those from lane 1 on that are queue pairs; 0: all further lanes are streams.
    pub pairs: u8,
    /// A bit for each of them of which something is still to be sent.
    pub owes_pairs: u8,
    /// A bit for each stream of lane 0 on which its first hello is still to be sent.
    pub streams_unsent: u8,
    /// How long the bytes of lane 0's streams have been without an answer.
    pub stalls: [Stall; STREAMS_MAX],
    /// For so long that the connection has ended; the data thread is told, or owed it.
    pub stalled: bool,
    /// The stream that asks for the connection has come.
    pub streams_asked: bool,
    /// The peer's user does not have it yet, and it is not for ours before.
    pub untaken: bool,
    /// Nobody has accepted it yet.
    pub queued: bool,
    /// The caller of its attempt has it: that attempt is over.
    pub handed: bool,
    /// Our user is done with it; the handle is stale.
    pub closed_here: bool,
    /// Our user never had it.
    pub abandoned: bool,
    /// The peer has closed it; it will not touch the rings again.
    pub peer_closed: bool,
    /// `Connect` or `Accepted` is still to be sent.
    pub owes_hello: bool,
    /// `Connect` was sent.
    pub asked: bool,
    /// `Taken` is still to be sent.
    pub owes_taken: bool,
    /// `Closed` is still to be sent.
    pub owes_closed: bool,
    /// The data thread has not been told that it stands.
    pub owes_established: bool,
    /// The data thread has not been told that it is gone, and why.
    pub owes_gone: Option<DownCause>,
    /// A bit for each lane of which it has not been told something.
    pub owes_lanes: u8,
    /// Whether its queue pairs hear the peer.
    pub vouched: Vouched,
}

impl Connection {
    /// A slot not in use.
    pub const FREE: Connection = Connection {
        phase: Phase::Free,
        side: Side::Connector,
        generation: 0,
        link: NONE,
        link_next: NONE,
        link_before: NONE,
        met_next: NONE,
        arena_slot: NONE,
        next: NONE,
        listener: 0,
        rings_offset: 0,
        peer: ConnectHello::ZERO,
        deadline: Instant(0),
        stream_count: 0,
        lanes: 1,
        pairs: 0,
        owes_pairs: 0,
        streams_unsent: 0,
        stalls: [Stall::NONE; STREAMS_MAX],
        stalled: false,
        streams_asked: false,
        untaken: false,
        queued: false,
        handed: false,
        closed_here: false,
        abandoned: false,
        peer_closed: false,
        owes_hello: false,
        asked: false,
        owes_taken: false,
        owes_closed: false,
        owes_established: false,
        owes_gone: None,
        owes_lanes: 0,
        vouched: Vouched::NONE,
    };

    /// Whether both sides said that it is for the listener's user once the connector's has it.
    pub fn is_told_of_taking(&self) -> bool {
        self.peer.features & CONNECT_TAKEN != 0
    }

    /// Whether the peer is to hear, or to hear again, that our user has it.
    pub fn is_taking_due(&self) -> bool {
        self.handed && !self.peer_closed && self.is_told_of_taking()
    }

    /// Its handle, given its slot.
    pub fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.generation }
    }

    /// Whether the data thread is owed an event.
    pub fn owes_event(&self) -> bool {
        self.owes_established
            || self.owes_gone.is_some()
            || self.owes_lanes != 0
            || self.vouched.owed
    }
}
