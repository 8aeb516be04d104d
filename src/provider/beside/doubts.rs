//! Peers of whose ops nothing ends, and what ports hear of them, of all ports together.

use super::{Device, WithPorts};
use crate::base::ids::PeerIndex;
use crate::base::units::Span;
use crate::provider::port::{Complaint, PortRail};

impl<'m> WithPorts<'m> {
    /// Whether [`WithPorts::doubted`] or [`WithPorts::complaint`] may have a peer to name.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.devices.iter().any(|device| device.rail.has_words())
    }

    /// The next peer of which is to be known whether its program has polled within that time; see
    /// [`PortRail::doubted`].
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        self.next_named(PortRail::doubted)
    }

    /// The next peer that people should know something of; see
    /// [`PortRail::complaint`].
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        self.next_named(PortRail::complaint)
    }

    /// What the first rail says that names a peer of its own: of that peer as all of them know it.
    fn next_named<T>(
        &mut self,
        says: impl Fn(&mut PortRail<'m>) -> Option<(PeerIndex, T)>,
    ) -> Option<(PeerIndex, T)> {
        let lane_bits = self.lane_bits;
        self.devices.iter_mut().find_map(|Device { rail, seats, .. }| {
            let (PeerIndex(number), said) = says(rail)?;
            Some((PeerIndex(number << lane_bits | seats.lane(number as usize)), said))
        })
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
