//! What ports refuse, and what breaks them.

use crate::base::words::said;
use crate::memory::Errno;
use crate::provider::vendor::port as vendor;
use crate::provider::{libfabric, verbs};

said! {
    /// Why a port could not be opened. Nothing is left behind.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PortOpenError {
        Records(errno: Errno) => "no room for its records: {errno}",
        /// The RDMA device refused.
        Verbs(error: verbs::OpenError) => "{error}",
        /// libfabric refused.
        Libfabric(error: libfabric::OpenError) => "{error}",
        /// The vendor refused, or promises too little.
        Vendor(error: vendor::PortOpenError) => "{error}",
    }
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

said! {
    /// Why a peer of a port could not be opened. Its number is closed, but for
    /// [`PortPeerError::NO_ANSWER`].
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PortPeerError {
        /// No such port, or no such peer of it.
        Index => "the port has no free peer of that number",
        /// The other end is of another kind of port.
        Kind => "the two ends are of different kinds",
        /// The RDMA device refused.
        Verbs(error: verbs::PeerOpenError) => "{error}",
        /// libfabric refused.
        Libfabric(error: libfabric::PeerOpenError) => "{error}",
        /// The vendor refused.
        Vendor(error: vendor::PortPeerError) => "{error}",
    }
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

said! {
    /// What broke the connection to a peer of a port.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum PortError {
        /// As the RDMA device says.
        Verbs(report: verbs::ErrorReport) => "{report}",
        /// As libfabric says.
        Libfabric(report: libfabric::ErrorReport) => "{report}",
        /// As is known of the vendor's rail.
        Vendor(report: vendor::ErrorReport) => "{report}",
    }
}

impl PortError {
    /// Whether we have given it up: nothing on it ended, or words on it lose whose they are.
    pub fn is_given_up(&self) -> bool {
        let is_ours = |report: &libfabric::ErrorReport| report.silent.0 != 0 || report.cuts_words;
        matches!(self, PortError::Libfabric(report) if is_ours(report))
    }
}
