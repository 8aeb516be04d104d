//! What the side band has to say to people.
#![forbid(unsafe_code)]

use super::error::KeyCause;
use super::event::{Rail, Side};
use super::interfaces::InterfaceName;
use super::peer::Peer;
use super::tried::Tried;
use super::trust::UserCause;
use crate::base::units::Span;

/// What the side band wants to be known, once each.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Note {
    /// Something that is no peer of ours talks to our socket, from there if that is known; the
    /// first time only.
    Stranger(Tried),
    /// A peer was not let in: its key is not ours, or one side alone has one; the first time.
    Key(Peer, KeyCause),
    /// A process of this host is refused for its user, or we for ours; once while it tries.
    User(Peer, UserCause),
    /// A peer of this host speaks another version of what is said within it; the first time.
    LocalVersion(Peer),
    /// A peer of this major version was refused, from there if that is known; the first time only.
    Version(Tried, u16),
    /// A peer has said nothing for the deadline, although nothing says that its host is gone: its
    /// process is stopped or does not get a processor, or its host cannot be reached and owes too
    /// little yet to be given up. Its connections stay. Once per silence.
    Stopped {
        /// Who.
        peer: Peer,
        /// How long.
        silent: Span,
    },
    /// A peer that was reported as stopped has spoken.
    Resumed {
        /// Who.
        peer: Peer,
        /// How long it was silent.
        silent: Span,
        /// Since when it had left a question without an answer, although its host lived: for so
        /// long its process did not run.
        owed: Span,
    },
    /// Our own thread, which was due, did not run for so long.
    Paused(Span),
    /// Packets of one connection vanish on the way, although its peer answers otherwise: the
    /// connection has ended.
    Stalled {
        /// Who.
        peer: Peer,
        /// How long its host has acknowledged nothing of that connection.
        silent: Span,
    },
    /// A lane of a connection cannot be dialled; it is tried again for as long as the connection
    /// stands. Once per outage.
    LaneMissed {
        /// Who.
        peer: Peer,
        /// Which lane.
        lane: u8,
        /// The kernel's code.
        code: i32,
    },
    /// Who has told no end of a lane between ports for so long, and is waited for. Once per outage.
    PairAwaited(Peer, u8, Span),
    /// Packets of one lane of a connection vanish on the way, although its peer answers otherwise:
    /// the lane is given up, and dialled again.
    LaneStalled {
        /// Who.
        peer: Peer,
        /// Which lane.
        lane: u8,
        /// How long its host has acknowledged nothing of that lane.
        silent: Span,
    },
    /// Large packets to a peer are lost on a lane, and small ones pass on the same way; how many
    /// bytes this host's have at most. Once per stall.
    LargeLost(Peer, u8, u32),
    /// The kernel tells nothing of interfaces that lose their carrier, with its code: rails over
    /// them are given up when they have been silent.
    CarriersUnknown(i32),
    /// The path of a link is gone while a connection of several lanes stands: the link is dialled
    /// again, and the other lanes go on.
    LinkLost {
        /// Who.
        peer: Peer,
    },
    /// A link that was reported as lost is back.
    LinkBack {
        /// Who.
        peer: Peer,
        /// How long it was away.
        lost: Span,
    },
    /// None of the interfaces of the endpoint's choice leads to a peer, and another does that may
    /// be used then. Once per attempt, and address.
    Spare {
        /// Who.
        peer: Peer,
        /// The other.
        over: InterfaceName,
    },
    /// A peer was turned away because this process may open no more descriptors; its limit.
    Descriptors(u64),
    /// A peer was turned away because there was no memory for what it shares with us.
    Memory,
    /// The kernel refuses what shared memory needs, with its code, or 0: peers of this host are
    /// reached over the network, or not at all. Once per endpoint.
    SharedRefused(i32),
    /// A connection stands; once per connection.
    Connected {
        /// To whom.
        peer: Peer,
        /// Over which rail.
        rail: Rail,
        /// How many lanes; those behind the first are over TCP, or queue pairs.
        lanes: u8,
        /// How many of them are queue pairs.
        pairs: u8,
        /// Which side we are.
        side: Side,
    },
    /// Sums were wanted on the data streams of a connection, and its peer, of an earlier version,
    /// cannot; once per connection.
    Unchecked(Peer),
    /// We have closed a connection that stood; once per connection.
    Closed(Peer),
}
