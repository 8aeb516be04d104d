//! The machine over whichever rail the device has: one choice per call, none per operation.
#![forbid(unsafe_code)]

extern crate std;

use crate::base::ids::PeerIndex;
use crate::fabric::{OpId, Provider};
use crate::provider::beside::WithPorts;
use crate::provider::loopback::Loopback;
use crate::provider::mixed::Mixed;
use crate::provider::shm::ShmDomain;
use crate::transport;
use std::vec::Vec;

/// The machine of an endpoint. Its `'static` is the life of the endpoint's block, which
/// [`super::Endpoint::open`]'s caller vouches for.
#[allow(clippy::large_enum_variant)] // one per endpoint, in the caller's storage, never moved
pub(super) enum Machine {
    Host(transport::Endpoint<'static, Mixed<'static>>),
    /// With ports of RDMA or libfabric.
    Ports(transport::Endpoint<'static, WithPorts<'static>>),
    Loopback(transport::Endpoint<'static, Loopback<'static>>),
}

/// A rail on which the peers of hosts are.
pub(super) trait HostRail: Provider<Domain = ShmDomain<'static>> {
    /// What is no port.
    fn mixed(&self) -> &Mixed<'static>;
    /// The same, for set-up of its peers.
    fn mixed_mut(&mut self) -> &mut Mixed<'static>;
    /// All of it, where there are ports.
    fn ports(&self) -> Option<&WithPorts<'static>>;
    /// The same.
    fn ports_mut(&mut self) -> Option<&mut WithPorts<'static>>;
    /// See [`Mixed::is_undelivered`].
    fn undelivered(&mut self, peer: PeerIndex) -> bool;
    /// See [`Mixed::is_message_undelivered`].
    fn message_undelivered(&mut self, peer: PeerIndex) -> bool;
    /// See [`crate::provider::port::PortRail::is_awaiting`].
    fn awaiting(&mut self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool;
    /// See [`Mixed::arm`].
    fn arm_all(&mut self) -> bool;
    /// What is to be readable then, beside the doorbell.
    fn wait_fds(&self) -> Vec<i32>;
}

impl HostRail for Mixed<'static> {
    fn mixed(&self) -> &Mixed<'static> {
        self
    }

    fn mixed_mut(&mut self) -> &mut Mixed<'static> {
        self
    }

    fn ports(&self) -> Option<&WithPorts<'static>> {
        None
    }

    fn ports_mut(&mut self) -> Option<&mut WithPorts<'static>> {
        None
    }

    fn undelivered(&mut self, peer: PeerIndex) -> bool {
        self.is_undelivered(peer)
    }

    fn message_undelivered(&mut self, peer: PeerIndex) -> bool {
        self.is_message_undelivered(peer)
    }

    fn awaiting(&mut self, peer: PeerIndex, _: fn(OpId) -> bool) -> bool {
        self.is_undelivered(peer)
    }

    fn arm_all(&mut self) -> bool {
        self.arm()
    }

    fn wait_fds(&self) -> Vec<i32> {
        self.wait_fd().into_iter().collect()
    }
}

impl HostRail for WithPorts<'static> {
    fn mixed(&self) -> &Mixed<'static> {
        WithPorts::mixed(self)
    }

    fn mixed_mut(&mut self) -> &mut Mixed<'static> {
        WithPorts::mixed_mut(self)
    }

    fn ports(&self) -> Option<&WithPorts<'static>> {
        Some(self)
    }

    fn ports_mut(&mut self) -> Option<&mut WithPorts<'static>> {
        Some(self)
    }

    fn undelivered(&mut self, peer: PeerIndex) -> bool {
        self.is_undelivered(peer)
    }

    fn message_undelivered(&mut self, peer: PeerIndex) -> bool {
        self.is_message_undelivered(peer)
    }

    fn awaiting(&mut self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        self.is_awaiting(peer, awaits)
    }

    fn arm_all(&mut self) -> bool {
        self.arm()
    }

    fn wait_fds(&self) -> Vec<i32> {
        WithPorts::wait_fds(self)
    }
}

impl Machine {
    /// Whether something was posted that no poll has handed to the kernel yet. *Cost*: one load.
    #[inline(always)]
    pub(super) fn is_unsent(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.rail().is_unsent(),
            Machine::Ports(endpoint) => endpoint.rail().is_unsent(),
            Machine::Loopback(_) => false,
        }
    }

    /// Whether a lane is to be opened anew. *Cost*: one load.
    #[inline(always)]
    pub(super) fn has_lane_down(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.has_lane_down(),
            Machine::Ports(endpoint) => endpoint.has_lane_down() || endpoint.rail().is_waiting(),
            Machine::Loopback(endpoint) => endpoint.has_lane_down(),
        }
    }

    /// Whether the next poll wants to know the time.
    #[inline(always)]
    pub(super) fn wants_time(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.wants_time() || endpoint.rail().wants_time(),
            Machine::Ports(endpoint) => endpoint.wants_time() || endpoint.rail().wants_time(),
            Machine::Loopback(_) => false,
        }
    }
}

/// Calls the same thing on each.
macro_rules! each {
    ($machine:expr, $endpoint:ident => $body:expr) => {
        match $machine {
            Machine::Host($endpoint) => $body,
            Machine::Ports($endpoint) => $body,
            Machine::Loopback($endpoint) => $body,
        }
    };
}
pub(super) use each;

/// Calls the same thing on each that has peers on rails.
macro_rules! hosted {
    ($machine:expr, $endpoint:ident => $body:expr, else $other:expr) => {
        match $machine {
            Machine::Host($endpoint) => $body,
            Machine::Ports($endpoint) => $body,
            Machine::Loopback(_) => $other,
        }
    };
}
pub(super) use hosted;
