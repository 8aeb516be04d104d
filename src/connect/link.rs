//! One link: what two endpoints share below their connections.
#![forbid(unsafe_code)]

use super::address::Address;
use super::asks::Asks;
use super::channel::Channel;
use super::connection::NONE;
use super::ending::{Ending, is_of_path};
use super::entry::Entry;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::liveness::Hearing;
use super::memory::LinkMemory;
use super::os;
use super::outage::Outage;
use super::peer::Peer;
use super::route::Route;
use super::tried::Tried;
use crate::base::units::Instant;
use crate::wire::hello::{FRAME_BYTES_WRITTEN, Frame, FrameHeader, RefusedHello};
use crate::wire::pair::PortList;
use core::net::SocketAddr;
use std::io;
use std::os::fd::OwnedFd;

/// Bytes received on a stream and not yet read as frames: the longest frame, and more, so that many
/// come with one call.
pub(super) const RECEIVED_BYTES_MAX: usize = 2048;
/// Bytes of a frame begun that the socket had no room for: of three, as a handshake sends.
pub(super) const UNSENT_BYTES_MAX: usize = 1024;
/// Where a link's buffer has the bytes not yet sent, and where the peer's `Addresses`.
pub(super) const UNSENT_AT: usize = RECEIVED_BYTES_MAX;
pub(super) const ADDRESSES_AT: usize = UNSENT_AT + UNSENT_BYTES_MAX;
/// Where it has the peer's `Ports`, and their bytes.
pub(super) const PORTS_AT: usize = ADDRESSES_AT + FRAME_BYTES_WRITTEN;
pub(super) const PORTS_BYTES: usize = FrameHeader::SIZE + PortList::BYTES_MAX;
/// Bytes per link over TCP; not touched by others.
pub(super) const BUFFER_BYTES: usize = PORTS_AT + PORTS_BYTES;

/// How far a link is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum LinkPhase {
    /// The entry is not in use.
    Free,
    /// We connect: the socket is connecting, or we dial again when it is time.
    Dialing,
    /// We connect; `LinkReply` is awaited.
    HelloSent,
    /// `LinkReady` is awaited.
    ReplySent,
    /// Connections can be made.
    Ready,
    /// The socket leads nowhere any more, but connections of several lanes stand: the link is
    /// dialled again where we connect, and awaited where we listen ([`super::outage`]).
    Lost,
    /// The socket is closed; mappings stay while connections use them.
    Dead,
}

/// A last word on something that is not, or no longer, a connection.
#[derive(Copy, Clone, Debug)]
pub(super) enum Parting {
    /// It was not made.
    Refused(RefusedHello),
    /// It was made, and nobody wants it.
    Closed(RefusedHello),
}

impl Parting {
    /// The frame that says so.
    pub fn frame(self) -> Frame {
        match self {
            Parting::Refused(body) => Frame::Refused(body),
            Parting::Closed(body) => Frame::Closed(body),
        }
    }
}

/// An entry of the table of links.
pub(super) struct Link<M: LinkMemory> {
    pub phase: LinkPhase,
    pub side: Side,
    pub rail: Rail,
    pub socket: Option<Channel>,
    /// Readable when the peer's process ends.
    pub pidfd: Option<OwnedFd>,
    /// Our arena, and the peer's; both are as long.
    pub arena: Option<M::Mapping>,
    pub peer_arena: Option<M::View>,
    pub arena_bytes: u64,
    /// Where we listen: no connection has had rings behind this place.
    pub rings_end: u64,
    pub heap: Option<(M::View, u64)>,
    pub doorbell: Option<OwnedFd>,
    /// Where we dial on this host; only when we connect.
    pub address: Option<Address>,
    /// How far we are at the listener's door there.
    pub entry: Entry,
    /// Where we dial on the network; only when we connect.
    pub route: Route,
    /// Where the link's socket leads on the network; data streams are dialled there, too.
    pub remote: Option<SocketAddr>,
    /// Whether it was said that an interface which is not the first choice leads to the peer.
    pub spare_said: bool,
    pub peer: Peer,
    /// How it ended without a word from the peer, as far as it was seen.
    pub ending: Option<Ending>,
    /// The peer's process in our namespace, as the kernel says; 0: not visible.
    pub pid: i32,
    /// `RAIL_` bits that its handle says; 0: we did not connect.
    pub peer_rails: u32,
    /// Wire minor version of the peer.
    pub peer_minor: u16,
    /// What the peer offers.
    pub features: u64,
    /// Whether we can read its memory.
    pub copies: bool,
    /// Our random number for this link, and the peer's.
    pub nonce: u128,
    pub peer_nonce: u128,
    /// Data streams of each lane.
    pub streams: u32,
    /// Most lanes of each connection.
    pub lanes: u32,
    /// Both sides have ports of a kind.
    pub has_ports: bool,
    /// The peer has said its ports.
    pub ported: bool,
    /// The peer has said its addresses.
    pub addressed: bool,
    /// The numbers of its `StreamHello`s: ours where we connect, else the peer's.
    pub asks: Asks,
    /// When the peer was heard last.
    pub hearing: Hearing,
    /// Whether it is asked when it is silent.
    pub pings: bool,
    /// When the handshake must be through.
    pub deadline: Instant,
    /// When the entry was taken, the link stood, or its last connection went, whatever came last:
    /// compared with others.
    pub order: u64,
    /// Connections that use the link, and the first of them.
    pub connections: u32,
    pub first: u32,
    /// The next link in its chain, by endpoint; and whether it stands in one.
    pub chain_next: u32,
    pub chained: bool,
    /// Bytes received and not yet read, and their place in the link's buffer.
    pub received: usize,
    /// Bytes not yet sent, likewise.
    pub unsent: usize,
    /// The socket took no more; it is watched for room.
    pub blocked: bool,
    /// A last word that did not fit. While it waits, nothing is read, so one place is enough.
    pub parting: Option<Parting>,
    /// What the kernel said when the socket failed; 0: nothing.
    pub code: i32,
    /// The lost link that this one is to take over, else [`NONE`].
    pub resumes: u32,
    /// How the link has been lost.
    pub outage: Outage,
}

impl<M: LinkMemory> Link<M> {
    /// An entry not in use.
    pub const fn free() -> Link<M> {
        Link {
            phase: LinkPhase::Free,
            side: Side::Connector,
            rail: Rail::Shm,
            socket: None,
            pidfd: None,
            arena: None,
            peer_arena: None,
            arena_bytes: 0,
            rings_end: 0,
            heap: None,
            doorbell: None,
            address: None,
            entry: Entry::NONE,
            route: Route::NONE,
            remote: None,
            spare_said: false,
            peer: Peer::UNKNOWN,
            ending: None,
            pid: 0,
            peer_rails: 0,
            peer_minor: 0,
            features: 0,
            copies: false,
            nonce: 0,
            peer_nonce: 0,
            streams: 0,
            lanes: 1,
            has_ports: false,
            ported: false,
            addressed: false,
            asks: Asks::NONE,
            hearing: Hearing::NONE,
            pings: false,
            deadline: Instant(0),
            order: 0,
            connections: 0,
            first: NONE,
            chain_next: NONE,
            chained: false,
            received: 0,
            unsent: 0,
            blocked: false,
            parting: None,
            code: 0,
            resumes: NONE,
            outage: Outage::NONE,
        }
    }

    /// Whether connections can be made on it, now or soon.
    pub fn is_usable(&self) -> bool {
        match self.phase {
            LinkPhase::Dialing | LinkPhase::HelloSent | LinkPhase::ReplySent | LinkPhase::Ready => {
                true
            }
            LinkPhase::Free | LinkPhase::Lost | LinkPhase::Dead => false,
        }
    }

    /// The socket has failed. The first cause counts: what comes after it is without one.
    pub fn failed(&mut self, error: &io::Error) {
        if !self.is_path_dead() {
            self.code = error.raw_os_error().unwrap_or(0);
        }
    }

    /// Whether the kernel has said that packets do not get through, and nothing of the peer.
    pub fn is_path_dead(&self) -> bool {
        is_of_path(self.code)
    }

    /// Whether its connections have, or may have, data streams.
    pub fn has_streams(&self) -> bool {
        self.rail == Rail::Tcp
    }

    /// Whether its connections have a peer, with a socket or for now without.
    pub fn stands(&self) -> bool {
        matches!(self.phase, LinkPhase::Ready | LinkPhase::Lost)
    }

    /// Whether we can ask for connections on it: where there may be several lanes, the peer's
    /// addresses say how many.
    pub fn is_askable(&self) -> bool {
        self.phase == LinkPhase::Ready && (self.lanes == 1 || self.addressed)
    }

    /// The peer, and where we dialled it: the one address that answered, or all.
    pub fn named(&self) -> Peer {
        let dials = matches!(self.phase, LinkPhase::Dialing | LinkPhase::HelloSent);
        let answered = !dials || self.route.connected;
        let tried = match (self.rail, self.remote) {
            (Rail::Shm, _) => Tried::NONE,
            (Rail::Tcp, Some(remote)) if answered => Tried::of([remote]),
            (Rail::Tcp, _) => Tried::of(self.route.addresses()),
        };
        Peer { tried, ..self.peer }
    }

    /// Why the deadline of the handshake passed. A listener in this very process may have had no
    /// descriptor to say so with.
    pub fn unanswered(&self) -> ConnectError {
        let peer = self.named();
        let ours = peer.pid == std::process::id() && self.rail == Rail::Shm;
        match ours && os::is_out_of_descriptors() {
            true => ConnectError::Descriptors(os::descriptor_limit()),
            false => ConnectError::Deadline(peer),
        }
    }

    /// Whether the handshake is still going on, so that the deadline counts.
    pub fn is_half_open(&self) -> bool {
        self.is_usable() && self.phase != LinkPhase::Ready
    }

    /// Whether it is half open and the peer's turn: it has dialled, and not said its last word.
    pub fn is_greeted(&self) -> bool {
        self.phase == LinkPhase::ReplySent
    }
}
