//! The protocol over the rails of a host, or over the loopback alone: one choice per call.
#![forbid(unsafe_code)]

use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::connect::TextBuffer;
use crate::provider::loopback::Loopback;
use crate::provider::rail_set::{PortRail, RailSet};
use crate::transport;
use crate::transport::LaneView;
use crate::transport::rail::LaneState;

/// Longest name of what a port is opened on.
pub(super) const NIC_BYTES_MAX: usize = 96;

/// Calls the same thing on each.
macro_rules! each {
    ($machine:expr, $endpoint:ident => $body:expr) => {
        match $machine {
            $crate::host::machine::Machine::Host($endpoint) => $body,
            $crate::host::machine::Machine::Loopback($endpoint) => $body,
        }
    };
}
pub(super) use each;

/// The machine of an endpoint. Its `'static` is the life of the endpoint's block, which
/// [`super::Endpoint::open`]'s caller vouches for.
#[allow(clippy::large_enum_variant)] // one per endpoint, in the caller's storage, never moved
pub(super) enum Machine {
    Host(transport::Endpoint<'static, RailSet<'static>>),
    Loopback(transport::Endpoint<'static, Loopback<'static>>),
}

impl Machine {
    /// Whether something was posted that no poll has handed to the kernel yet. *Cost*: one load.
    #[inline(always)]
    pub(super) fn is_unsent(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.rail().is_unsent(),
            Machine::Loopback(_) => false,
        }
    }

    /// Whether a lane is to be opened anew. *Cost*: one load.
    #[inline(always)]
    pub(super) fn has_lane_down(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.has_lane_down() || endpoint.rail().is_waiting(),
            Machine::Loopback(endpoint) => endpoint.has_lane_down(),
        }
    }

    /// Whether the next poll wants to know the time.
    #[inline(always)]
    pub(super) fn wants_time(&self) -> bool {
        match self {
            Machine::Host(endpoint) => endpoint.wants_time() || endpoint.rail().wants_time(),
            Machine::Loopback(_) => false,
        }
    }

    /// The rails of a host, and the end of a lane there.
    pub(super) fn end(&self, index: u32, lane: u8) -> Option<(&RailSet<'static>, PeerIndex)> {
        let Machine::Host(endpoint) = self else { return None };
        Some((endpoint.rail(), endpoint.lane_peer(ConnectionIndex(index), lane)))
    }

    /// The same, to be changed.
    pub(super) fn end_mut(
        &mut self,
        index: u32,
        lane: u8,
    ) -> Option<(&mut RailSet<'static>, PeerIndex)> {
        let Machine::Host(endpoint) = self else { return None };
        let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
        Some((endpoint.rail_mut(), peer))
    }

    /// The place of the port of a lane, if it is on one or will be again.
    pub(super) fn port_place(&self, index: u32, lane: u8) -> Option<usize> {
        let (rail, peer) = self.end(index, lane)?;
        rail.port_of(peer)
    }

    /// The port of a lane, if it is on one, and the lane's end there.
    pub(super) fn port_end(&self, index: u32, lane: u8) -> Option<(&PortRail<'static>, PeerIndex)> {
        let (rail, peer) = self.end(index, lane)?;
        rail.port_end(peer)
    }

    /// The port of a lane, if it is on one.
    pub(super) fn port(&self, index: u32, lane: u8) -> Option<&PortRail<'static>> {
        Some(self.port_end(index, lane)?.0)
    }

    /// The port at a place.
    pub(super) fn port_at(&self, place: usize) -> Option<&PortRail<'static>> {
        let Machine::Host(endpoint) = self else { return None };
        endpoint.rail().port(place)
    }

    /// What the port of a lane is opened on, where it says so; see [`PortRail::nic_write`].
    pub(super) fn nic<'t>(&self, index: u32, lane: u8, text: &'t mut [u8]) -> &'t str {
        let mut buffer = TextBuffer::new(text);
        if let Some(port) = self.port(index, lane) {
            let _ = port.nic_write(&mut buffer);
        }
        buffer.text()
    }

    /// The first socket of a lane that is open.
    pub(super) fn socket(&self, index: u32, lane: u8) -> Option<i32> {
        let (rail, peer) = self.end(index, lane)?;
        rail.socket(peer)
    }

    /// How a lane is; `None`: there is no such lane.
    pub(super) fn lane_view(&self, index: u32, lane: u8) -> Option<LaneView> {
        each!(self, endpoint => endpoint.lane_view(ConnectionIndex(index), lane))
    }

    /// Whether a lane carries.
    pub(super) fn is_up(&self, index: u32, lane: u8) -> bool {
        self.lane_view(index, lane).is_some_and(|view| view.state == LaneState::Up)
    }

    /// Whether a long message of a connection is half written.
    pub(super) fn is_writing(&self, index: u32) -> bool {
        each!(self, endpoint => endpoint.is_writing(ConnectionIndex(index)))
    }
}
