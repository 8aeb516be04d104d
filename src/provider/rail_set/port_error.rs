//! What ports refuse, and what breaks them.

use crate::memory::Errno;
use crate::provider::vendor::port as vendor;
use crate::provider::{libfabric, verbs};
use core::fmt;

/// Why a port could not be opened. Nothing is left behind.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PortOpenError {
    /// There is no room for its records.
    Records(Errno),
    /// The RDMA device refused.
    Verbs(verbs::OpenError),
    /// libfabric refused.
    Libfabric(libfabric::OpenError),
    /// The vendor refused, or promises too little.
    Vendor(vendor::PortOpenError),
}

impl PortOpenError {
    /// For how many peers it could be opened, if it refused so many for want of completions.
    pub fn peers_most(&self, refused: u32) -> Option<u32> {
        match *self {
            PortOpenError::Verbs(verbs::OpenError::Completions { wanted, most })
            | PortOpenError::Libfabric(libfabric::OpenError::Completions { wanted, most }) => {
                Some((u64::from(refused) * u64::from(most) / u64::from(wanted)) as u32)
            }
            PortOpenError::Records(_)
            | PortOpenError::Verbs(_)
            | PortOpenError::Libfabric(_)
            | PortOpenError::Vendor(_) => None,
        }
    }
}

impl fmt::Display for PortOpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PortOpenError::Records(errno) => write!(f, "no room for its records: {errno}"),
            PortOpenError::Verbs(error) => error.fmt(f),
            PortOpenError::Libfabric(error) => error.fmt(f),
            PortOpenError::Vendor(error) => error.fmt(f),
        }
    }
}

/// Why a peer of a port could not be opened. Its number is closed, but for
/// [`PortPeerError::NO_ANSWER`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PortPeerError {
    /// No such port, or no such peer of it.
    Index,
    /// The other end is of another kind of port.
    Kind,
    /// The RDMA device refused.
    Verbs(verbs::PeerOpenError),
    /// libfabric refused.
    Libfabric(libfabric::PeerOpenError),
    /// The vendor refused.
    Vendor(vendor::PortPeerError),
}

impl PortPeerError {
    /// The port failed after the peer was prepared.
    pub const RAIL_LOST: PortPeerError =
        PortPeerError::Libfabric(libfabric::PeerOpenError::RailLost);
    /// The port's GID or device has gone.
    pub const GONE: PortPeerError = PortPeerError::Verbs(verbs::PeerOpenError::RailLost);
    /// The way to the other end is looked for, and the peer stays prepared: try again.
    pub const NO_ANSWER: PortPeerError = PortPeerError::Verbs(verbs::PeerOpenError::NoAnswer);
    /// The last peer of that number is owed a word: try again after a poll.
    pub const AGAIN: PortPeerError = PortPeerError::Libfabric(libfabric::PeerOpenError::Again);
}

impl fmt::Display for PortPeerError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PortPeerError::Index => f.write_str("the port has no free peer of that number"),
            PortPeerError::Kind => f.write_str("the two ends are of different kinds"),
            PortPeerError::Verbs(error) => error.fmt(f),
            PortPeerError::Libfabric(error) => error.fmt(f),
            PortPeerError::Vendor(error) => error.fmt(f),
        }
    }
}

/// What broke the connection to a peer of a port.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PortError {
    /// As the RDMA device says.
    Verbs(verbs::ErrorReport),
    /// As libfabric says.
    Libfabric(libfabric::ErrorReport),
    /// As is known of the vendor's rail.
    Vendor(vendor::ErrorReport),
}

impl PortError {
    /// Whether we have given it up: nothing on it ended, or words on it lose whose they are.
    pub fn is_given_up(&self) -> bool {
        let is_ours = |report: &libfabric::ErrorReport| report.silent.0 != 0 || report.cuts_words;
        matches!(self, PortError::Libfabric(report) if is_ours(report))
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PortError::Verbs(report) => report.fmt(f),
            PortError::Libfabric(report) => report.fmt(f),
            PortError::Vendor(report) => report.fmt(f),
        }
    }
}
