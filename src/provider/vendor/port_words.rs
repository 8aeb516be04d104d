//! What people are told of a vendor's rail: why it could not be opened, why a peer could not be
//! joined, or ended, or is not fenced.
#![forbid(unsafe_code)]

use super::{Breach, CapsError, PeerError};
use crate::base::units::Span;
use crate::base::words::said;
use core::fmt;

said! {
    /// Why a port could not be opened. There is none then.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PortOpenError {
        /// What it promises cannot be.
        Caps(error: CapsError) => |f|
            write!(f, "its caps contradict themselves: {}", error.words()),
        /// Its `open` refused with this code, when it was asked for so many peers and regions.
        Refused {
            /// The vendor's.
            code: i32,
            /// Peers that are open at a time.
            peers: u32,
            /// Regions that are registered at a time.
            regions: u32,
        } =>
            "its open refused peers_max {peers} and regions_max {regions} with code {code}",
        /// Its promises are too little for a lane, in this.
        Small(what: &'static str) => "its caps are too small for a rail: {what}",
        /// The block is too short.
        Block => "no room for its records",
    }
}

said! {
    /// Why a peer could not be prepared or joined. Its number is closed.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PortPeerError {
        /// No such peer, or not in a state for it.
        Index => "the rail has no free peer of that number",
        /// The rail is out of use.
        Lost => "the rail has broken its promises",
        /// The vendor refused.
        Peer(what: PeerError) => |f| match what {
            PeerError::Again => f.write_str("the vendor says: not yet"),
            PeerError::Blob => f.write_str("the vendor does not know the other end's blob"),
            PeerError::Refused(code) => write!(f, "the vendor refused the peer with code {code}"),
        },
    }
}

/// Of a peer that was given up, the vendor has not ended something. Behind the words for a rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Unended {
    /// For how long.
    pub waited: Span,
    /// How many ops and fences.
    pub count: u32,
    /// Whether it takes no fence.
    pub is_refused: bool,
}

impl fmt::Display for Unended {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (waited, count) = (self.waited.0 / 1_000_000, self.count);
        write!(
            f,
            "is not fenced after {waited} ms: it has failed or is closed, and its provider "
        )?;
        match self.is_refused {
            true => f.write_str("still refuses its fence. ")?,
            false => write!(f, "has not ended {count} operations and fences. ")?,
        }
        f.write_str(
            "Its requests wait, or end with Unfenced and their memory stays registered. A close \
             waits for the fence, too",
        )
    }
}

said! {
    /// What ended the life of a peer.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum ErrorReport {
        /// The vendor gave an answer that is none: the whole rail is out of use.
        Breach(breach: Breach) => |f| {
            let Breach { entry, why } = breach;
            write!(f, "the rail is out of use: of the vendor's {entry}, {why}")
        },
        /// It could not join the peer.
        Peer(error: PeerError) => |f| PortPeerError::Peer(*error).fmt(f),
    }
}
