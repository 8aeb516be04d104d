//! What comes up out of a rail.
#![forbid(unsafe_code)]

use super::op::{Head, OpId};
use super::provider::RecvSlot;
use crate::base::ids::{PeerIndex, RailGeneration};

/// One event of a poll.
#[derive(Copy, Clone, Debug)]
pub enum Completion {
    /// An accepted op ended.
    Done {
        /// Whose peer.
        peer: PeerIndex,
        /// The op's id.
        id: OpId,
        /// How.
        result: Result<(), OpError>,
    },
    /// A peer's send arrived. Its payload stays in `slot` until it is released.
    Received {
        /// From whom.
        peer: PeerIndex,
        /// For [`super::Provider::received_copy`] and [`super::Provider::received_release`].
        slot: RecvSlot,
        /// The sender's head.
        head: Head,
        /// Length of the payload in bytes.
        length: u32,
    },
    /// A peer's write with immediate arrived; its data is visible.
    Immediate {
        /// From whom.
        peer: PeerIndex,
        /// The writer's word.
        immediate: u32,
    },
    /// A fence holds.
    Fenced {
        /// Towards whom.
        peer: PeerIndex,
        /// The fence's id.
        id: OpId,
        /// Up to which generation.
        generation: RailGeneration,
    },
    /// Nothing more will come from this peer; what had come was reported before.
    PeerDown {
        /// Who.
        peer: PeerIndex,
        /// Why.
        cause: DownCause,
    },
}

/// What a look at a rail's next event shows.
#[derive(Copy, Clone, Debug)]
pub enum Next {
    /// A peer's send arrived: the same as [`Completion::Received`], and reported with this.
    Received {
        /// From whom.
        peer: PeerIndex,
        /// For [`super::Provider::received_copy`] and [`super::Provider::received_release`].
        slot: RecvSlot,
        /// The sender's head.
        head: Head,
        /// Length of the payload in bytes.
        length: u32,
    },
    /// Nothing; a poll now would report and do nothing.
    Nothing,
    /// Something else, or the rail does not say: poll.
    Poll,
}

/// Why a peer is gone.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum DownCause {
    /// It closed the connection.
    Closed,
    /// Its process ended, as the kernel says, or the rail's own.
    Died,
    /// All that it had with us beside the rail has ended, without a silence before, as it does when
    /// a process dies: it counts as dead, and nobody has seen it die. It may live behind a network
    /// that was reset.
    Severed,
    /// Its host was not heard for too long, or the path to it broke: it counts as dead, but may
    /// live, and what it has posted may come when the path is there again.
    Unheard,
    /// It broke the wire format.
    Failed,
    /// Its host has acknowledged nothing for too long on what carried the connection, although the
    /// peer was heard otherwise: packets are lost on the way.
    Silent,
    /// The rail to it failed, although it lives as far as is known: the provider's code, an errno;
    /// 0 if what carried it just ended.
    Broken(i32),
}

/// Why an op failed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct OpError {
    /// The kind, on which the transport acts.
    pub kind: OpErrorKind,
    /// An errno, for people; of a vendor's rail the provider's own code. 0 if none.
    pub code: i32,
}

/// Kinds of failed ops.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpErrorKind {
    /// The peer is gone (a `PeerDown` is or will be reported).
    PeerDown,
    /// A key names no registered region, or the range lies outside of it.
    Key,
    /// Our side closed the peer or fenced the op.
    Canceled,
    /// The rail failed otherwise.
    Fabric,
}
