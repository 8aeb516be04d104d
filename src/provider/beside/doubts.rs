//! Peers of whose ops nothing ends, and what ports hear of them, of all ports together.

use super::{Device, WithPorts};
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::provider::libfabric::Complaint;

impl WithPorts<'_> {
    /// Whether [`WithPorts::doubted`] may have a peer to name.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        self.devices.iter().any(|device| device.rail.has_doubts())
    }

    /// The next peer of which is to be known whether its program has polled within that time; see
    /// [`PortRail::doubted`](crate::provider::port::PortRail::doubted).
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        for Device { rail, seats, .. } in &mut self.devices {
            if let Some((PeerIndex(number), within)) = rail.doubted() {
                let peer = number << self.lane_bits | seats.lane(number as usize);
                return Some((PeerIndex(peer), within));
            }
        }
        None
    }

    /// Whether [`WithPorts::complaint`] has one to name.
    #[inline]
    pub fn has_complaints(&self) -> bool {
        self.devices.iter().any(|device| device.rail.has_complaints())
    }

    /// The next peer that people should know something of; see
    /// [`PortRail::complaint`](crate::provider::port::PortRail::complaint).
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        for Device { rail, seats, .. } in &mut self.devices {
            if let Some((PeerIndex(number), complaint)) = rail.complaint() {
                let peer = number << self.lane_bits | seats.lane(number as usize);
                return Some((PeerIndex(peer), complaint));
            }
        }
        None
    }

    /// It has.
    pub fn peer_polls(&mut self, peer: PeerIndex) {
        if let Some((rail, number)) = self.port_of(peer) {
            rail.peer_polls(number);
        }
    }

    /// See [`PortRail::hear_begin`](crate::provider::port::PortRail::hear_begin).
    pub fn hear_begin(&mut self, peer: PeerIndex) -> bool {
        self.port_of(peer).is_some_and(|(rail, number)| rail.hear_begin(number))
    }

    /// See [`PortRail::is_heard`](crate::provider::port::PortRail::is_heard).
    pub fn is_heard(&self, peer: PeerIndex) -> Option<bool> {
        let (rail, number) = self.port_at(peer)?;
        rail.is_heard(number)
    }

    /// See [`PortRail::has_answered`](crate::provider::port::PortRail::has_answered).
    pub fn has_answered(&self, peer: PeerIndex) -> bool {
        self.port_at(peer).is_some_and(|(rail, number)| rail.has_answered(number))
    }
}
