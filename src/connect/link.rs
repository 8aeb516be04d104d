//! One link: what two endpoints share below their connections.
#![forbid(unsafe_code)]

extern crate std;

use super::address::Address;
use super::event::Side;
use super::liveness::Hearing;
use super::peer::Peer;
use super::socket::Socket;
use crate::base::units::Instant;
use crate::wire::hello::RefusedHello;
use std::os::fd::OwnedFd;

/// How far a link is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum LinkPhase {
    /// The entry is not in use.
    Free,
    /// We connect; the listener's queue is full, so we dial again.
    Dialing,
    /// We connect; `LinkReply` is awaited.
    HelloSent,
    /// Somebody dialled; `LinkHello` is awaited.
    Greeting,
    /// `LinkReady` is awaited.
    ReplySent,
    /// Connections can be made.
    Ready,
    /// The socket is closed; mappings stay while connections use them.
    Dead,
}

/// An entry of the table of links.
pub(super) struct Link<Mapping> {
    pub phase: LinkPhase,
    pub side: Side,
    pub socket: Option<Socket>,
    /// Readable when the peer's process ends.
    pub pidfd: Option<OwnedFd>,
    pub arena: Option<Mapping>,
    pub arena_bytes: u64,
    pub heap: Option<(Mapping, u64)>,
    pub doorbell: Option<OwnedFd>,
    /// Where we dial; only when we connect.
    pub address: Option<Address>,
    pub peer: Peer,
    /// The peer's process in our namespace, as the kernel says; 0: not visible.
    pub pid: i32,
    /// What the peer offers.
    pub features: u64,
    /// Whether we can read its memory.
    pub copies: bool,
    /// Our random number of this link.
    pub nonce: u128,
    /// The peer's; 0: it has said none, or is of minor version 0.
    pub peer_nonce: u128,
    /// When the peer was heard last.
    pub hearing: Hearing,
    /// Whether it is asked when it is silent.
    pub pings: bool,
    /// When the handshake must be through.
    pub deadline: Instant,
    /// Connections that use the link.
    pub connections: u32,
    /// The socket took no more; it is watched for room.
    pub blocked: bool,
    /// A refusal that did not fit. While it waits, nothing is read, so one place is enough.
    pub refusal: Option<RefusedHello>,
}

impl<Mapping> Link<Mapping> {
    /// An entry not in use.
    pub const fn free() -> Link<Mapping> {
        Link {
            phase: LinkPhase::Free,
            side: Side::Connector,
            socket: None,
            pidfd: None,
            arena: None,
            arena_bytes: 0,
            heap: None,
            doorbell: None,
            address: None,
            peer: Peer { name: [0; super::NAME_BYTES], pid: 0, node_id: 0, endpoint_id: 0 },
            pid: 0,
            features: 0,
            copies: false,
            nonce: 0,
            peer_nonce: 0,
            hearing: Hearing::NONE,
            pings: false,
            deadline: Instant(0),
            connections: 0,
            blocked: false,
            refusal: None,
        }
    }

    /// Whether the handshake is still going on, so that the deadline counts.
    pub fn is_half_open(&self) -> bool {
        match self.phase {
            LinkPhase::Dialing
            | LinkPhase::HelloSent
            | LinkPhase::Greeting
            | LinkPhase::ReplySent => true,
            LinkPhase::Free | LinkPhase::Ready | LinkPhase::Dead => false,
        }
    }

    /// Whether a connect to `endpoint` goes over this link.
    pub fn leads_to(&self, endpoint: u128) -> bool {
        let usable = self.phase == LinkPhase::Ready || self.is_half_open();
        usable && self.side == Side::Connector && self.peer.endpoint_id == endpoint
    }
}
