//! The connections of an endpoint, lent to what looks after their lanes, closes them, or reports
//! on them.
#![forbid(unsafe_code)]

use super::known::{ConnectionRail, Known};
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::Instant;
use crate::connect::Rail;
use crate::fabric::{DownCause, PeerLife};
use crate::host::machine::{Machine, each};
use crate::host::shared::Shared;
use crate::memory::probe::clock_ns;
use crate::transport::snapshot::Tick;
use crate::wire::status::{RequestStatus, STATUS_FRESH, STATUS_SNAPSHOT, StatusHello};

/// Longest name of a peer.
pub(in crate::host) const PEER_BYTES_MAX: usize = 128;

/// The connections of an endpoint.
pub(in crate::host) struct Connections<'e> {
    pub(in crate::host) machine: &'e mut Machine,
    pub(in crate::host) known: &'e mut [Known],
    pub(in crate::host) shared: &'e Shared,
    /// [`clock_ns`] when the endpoint was opened.
    pub(in crate::host) opened_ns: u64,
}

impl Connections<'_> {
    /// The time since the endpoint was opened.
    pub(in crate::host) fn now(&self) -> Instant {
        since(self.opened_ns)
    }

    /// The handle of a connection.
    pub(in crate::host) fn handle(&self, index: u32) -> Handle {
        self.known[index as usize].handle(index)
    }

    /// The name of a connection's peer.
    pub(in crate::host) fn peer_name<'n>(
        &self,
        index: u32,
        name: &'n mut [u8; PEER_BYTES_MAX],
    ) -> &'n str {
        let length = self.shared.peer_text(self.handle(index), name);
        core::str::from_utf8(&name[..length]).unwrap_or("a peer")
    }

    /// What one lane of a connection runs over.
    pub(in crate::host) fn lane_rail(&self, index: u32, lane: u8) -> ConnectionRail {
        if let Some(port) = self.machine.port(index, lane) {
            return ConnectionRail::of(port);
        }
        match (&*self.machine, self.known[index as usize].params.rail) {
            (Machine::Loopback(_), _) => ConnectionRail::Loopback,
            (_, Rail::Shm) => ConnectionRail::Shm,
            (_, Rail::Tcp) => ConnectionRail::Tcp,
        }
    }

    /// The lanes of a connection.
    pub(in crate::host) fn lanes_of(&self, index: u32) -> core::ops::Range<u8> {
        0..self.known[index as usize].params.lanes.max(1)
    }

    /// A lane of a connection in use fails.
    pub(in crate::host) fn lane_fail(&mut self, index: u32, lane: u8, cause: DownCause) {
        if let Some((rail, peer)) = self.machine.end_mut(index, lane) {
            rail.peer_fail(peer, cause);
        }
    }

    /// A connection's peer is gone, and its rails fail: what had come is still taken in.
    #[cold]
    pub(in crate::host) fn gone(&mut self, index: u32, cause: DownCause, rails: DownCause) {
        let lanes = self.lanes_of(index);
        if let Machine::Host(endpoint) = &mut *self.machine
            && lanes.len() > 1
        {
            endpoint.connection_gone(ConnectionIndex(index), cause);
        }
        lanes.for_each(|lane| self.lane_fail(index, lane, rails));
    }

    /// How a connection in use stands on our side.
    pub(in crate::host) fn status(&self, index: u32, tick: Tick) -> StatusHello {
        let connection = ConnectionIndex(index);
        let mut said = each!(&*self.machine, endpoint => endpoint.status(connection, tick));
        for lane in 0..said.status.lane_count {
            match self.lane_rail(index, lane) {
                ConnectionRail::Shm => said.status.lanes_shm |= 1 << lane,
                ConnectionRail::Tcp => said.status.lanes_tcp |= 1 << lane,
                ConnectionRail::Loopback
                | ConnectionRail::Verbs
                | ConnectionRail::Libfabric
                | ConnectionRail::Vendor => {}
            }
        }
        said
    }

    /// The sends of a connection in use that are open.
    pub(in crate::host) fn sends(
        &self,
        index: u32,
        tick: Tick,
    ) -> impl Iterator<Item = RequestStatus> {
        let of = move |at| {
            let connection = ConnectionIndex(index);
            each!(&*self.machine, endpoint => endpoint.request_status(connection, at, tick))
        };
        let records = each!(&*self.machine, endpoint => endpoint.limits().requests_max);
        (0..records).filter_map(of)
    }

    /// Where both ends are ours, how it stands on the other one.
    pub(in crate::host) fn status_of_partner(&self, index: u32, tick: Tick) -> Option<StatusHello> {
        let Machine::Loopback(_) = self.machine else { return None };
        let partner = self.known[index as usize].params.peer.connection as u32;
        let mut said = self.status(partner, tick);
        said.status.flags = STATUS_SNAPSHOT | STATUS_FRESH;
        Some(said)
    }

    /// Leaves with the side band how a connection stands, for a peer that asks.
    pub(in crate::host) fn status_leave(&self, handle: Handle, tick: Tick) {
        let Some(band) = self.shared.band() else { return };
        let is_used = self.known[handle.index as usize].is_use_of(handle);
        let status = if is_used { self.status(handle.index, tick) } else { StatusHello::ZERO };
        band.status_leave(handle, &status);
    }
}

/// The time since an endpoint was opened, by [`clock_ns`] then.
#[inline]
pub(in crate::host) fn since(opened_ns: u64) -> Instant {
    Instant(clock_ns().saturating_sub(opened_ns))
}

/// The connections of an endpoint, with the rest of it free.
macro_rules! connections {
    ($endpoint:expr) => {
        $crate::host::life::connections::Connections {
            machine: &mut $endpoint.machine,
            known: &mut *$endpoint.known,
            shared: &$endpoint.shared,
            opened_ns: $endpoint.opened_ns,
        }
    };
}
pub(in crate::host) use connections;
