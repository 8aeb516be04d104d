//! What the data thread knows of connections and of their lanes.
#![forbid(unsafe_code)]

use crate::base::slab::Handle;
use crate::base::units::Span;
use crate::base::words::named;
use crate::connect::{LinkParams, STREAMS_MAX};
use crate::fabric::DownCause;
use crate::host::log::RailEnd;
use crate::host::log::told::Told;
use crate::provider::rail_set::{PortError, PortRail};
use crate::transport::LaneView;
use core::net::SocketAddr;

/// What the side band has told of a connection. The data thread takes the connection into use when
/// its user does, because until then the side band may close it without a word.
#[derive(Copy, Clone, Debug)]
pub(in crate::host) struct Known {
    pub(in crate::host) generation: u32,
    /// When closing gives up on messages that are on their way, in ms since open; 0: not closing;
    /// [`LINGERED`](super::linger): it has.
    pub(in crate::host) linger_until_ms: u64,
    pub(in crate::host) in_use: bool,
    /// Its receives wait for whatever the peer may do some day: they are not reported as stalled.
    pub(in crate::host) is_standing: bool,
    pub(in crate::host) gone: Option<DownCause>,
    pub(in crate::host) params: LinkParams,
}

impl Known {
    /// Nothing.
    pub(in crate::host) const NOTHING: Known = Known::new(0, LinkParams::NONE);

    pub(in crate::host) const fn new(generation: u32, params: LinkParams) -> Known {
        let (in_use, is_standing, gone) = (false, false, None);
        Known { generation, linger_until_ms: 0, in_use, is_standing, gone, params }
    }

    /// The handle of the connection at a place, of which this is known.
    pub(in crate::host) fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.generation }
    }

    /// Whether it is that connection, and in use.
    #[inline(always)]
    pub(in crate::host) fn is_use_of(&self, connection: Handle) -> bool {
        self.in_use && self.generation == connection.generation
    }
}

/// A lane whose sockets the side band has handed over, and that is not open yet.
#[derive(Copy, Clone, Debug)]
pub(in crate::host) struct Fresh {
    pub(in crate::host) generation: u32,
    pub(in crate::host) streams: [i32; STREAMS_MAX],
    pub(in crate::host) stream_count: u8,
}

/// What the data thread knows of one lane.
#[derive(Copy, Clone, Debug)]
pub struct LaneKnown {
    pub(in crate::host) fresh: Option<Fresh>,
    /// From which address to which it led when it was opened last.
    pub(in crate::host) ends: Option<[SocketAddr; 2]>,
    /// How long nothing of it was acknowledged when it was given up for that.
    pub(in crate::host) silent: Span,
    /// Failures that were seen, and what its port has told of the last: the next peer of the port
    /// may be there when people are told.
    pub(in crate::host) failures: u64,
    pub(in crate::host) error: Option<PortError>,
    pub(in crate::host) told: Told,
}

/// How a rail of a connection is.
#[derive(Copy, Clone, Debug)]
pub struct RailView {
    /// What the machine knows. Its `code` is never 0 of a rail that has failed.
    pub lane: LaneView,
    /// What it runs over.
    pub rail: ConnectionRail,
    /// Our side of it and the peer's, or what they were when it was up last.
    pub ends: [RailEnd; 2],
}

impl LaneKnown {
    /// Nothing.
    pub(in crate::host) const NOTHING: LaneKnown = LaneKnown {
        fresh: None,
        ends: None,
        silent: Span(0),
        failures: 0,
        error: None,
        told: Told::NOTHING,
    };
}

named! {
    /// What a connection runs over.
    pub enum ConnectionRail {
        /// Shared memory.
        Shm = "shm",
        /// Sockets.
        Tcp = "tcp",
        /// The endpoint itself.
        Loopback = "loopback",
        /// RDMA ports; of a connection, with sockets as rail 0, which is their reserve.
        Verbs = "verbs",
        /// NICs that libfabric reaches; of a connection likewise.
        Libfabric = "libfabric",
        /// Rails of vendors; of a connection likewise.
        Vendor = "vendor",
    }
}

impl ConnectionRail {
    /// What a port is.
    pub(in crate::host) const fn of(port: &PortRail<'_>) -> ConnectionRail {
        match port {
            PortRail::Verbs(_) => ConnectionRail::Verbs,
            PortRail::Libfabric(_) => ConnectionRail::Libfabric,
            PortRail::Vendor(_) => ConnectionRail::Vendor,
        }
    }
}

/// What closing waits for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::host) enum Patience {
    /// Messages that have left, whatever else the connection carries.
    Messages,
    /// The same, but nothing while a rail may use memory of requests: it is wanted back.
    Memory,
}
