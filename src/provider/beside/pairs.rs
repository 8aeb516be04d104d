//! Ends of lanes on ports: prepared, joined, and when the next of them is due.

use super::seats::{Due, Later, Seats};
use super::{Device, WithPorts};
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::Instant;
use crate::provider::port::PortPeerError;
use crate::wire::pair::LaneEnd;

impl WithPorts<'_> {
    /// Prepares a queue pair for a peer; see [`super::PortRail::peer_prepare`].
    pub fn pair_prepare(
        &mut self,
        peer: PeerIndex,
        place: usize,
        generation: RailGeneration,
        random: u32,
    ) -> Result<LaneEnd, PortPeerError> {
        let (number, lane) = (self.number(peer), self.lane(peer));
        let device = self.devices.get_mut(place).ok_or(PortPeerError::Index)?;
        if !device.seats.has(number.as_usize()) {
            return Err(PortPeerError::Index);
        }
        let mailbox_key = device.mailbox_key;
        let hello = device.rail.peer_prepare(number, generation, random, mailbox_key)?;
        device.seats.prepared(number.as_usize(), lane);
        self.on[peer.as_usize()] = place as u8 + 1;
        Ok(hello)
    }

    /// Whether a port has refused a queue pair to a peer that waits for one.
    pub fn is_refusing(&self, place: usize) -> bool {
        self.devices.get(place).is_some_and(|device| device.seats.is_refused())
    }

    /// The port has refused to prepare a peer's queue pair: it is asked again later. `false`: it
    /// has no place for that peer, and is not.
    pub fn pair_refused(&mut self, peer: PeerIndex, place: usize, now: Instant) -> bool {
        let number = self.number(peer).as_usize();
        let Some(seats) = self.seats_of(place, number) else { return false };
        seats.was_refused(number);
        self.pair_later(peer, place, now, Later::Missed);
        true
    }

    /// Whether a port is down: a queue pair cannot be joined then.
    pub fn is_down(&self, place: usize) -> bool {
        self.devices.get(place).is_some_and(|device| device.rail.is_down())
    }

    /// The queue pair of a peer is to be prepared later.
    pub fn pair_later(&mut self, peer: PeerIndex, place: usize, now: Instant, why: Later) {
        let (number, lane) = (self.number(peer).as_usize(), self.lane(peer));
        let Some(seats) = self.seats_of(place, number) else { return };
        seats.later(number, lane, now, why);
        self.on[peer.as_usize()] = place as u8 + 1;
    }

    /// The queue pair of a peer is to be joined later, to the end of this generation of its lane:
    /// nobody answers for that end yet. `false`: nobody has for too long.
    pub fn pair_unanswered(&mut self, peer: PeerIndex, now: Instant, generation: u32) -> bool {
        let (number, place) = (self.number(peer).as_usize(), self.device_of(peer));
        let seats = place.and_then(|place| self.seats_of(place, number));
        seats.is_some_and(|seats| seats.unanswered(number, now, generation))
    }

    /// Whether [`WithPorts::pair_due`] may have one to name.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.devices.iter().any(|device| device.seats.is_waiting())
    }

    /// The next peer with whose queue pair something is to be done now, on which port, and what.
    /// Each is named once.
    pub fn pair_due(&mut self, now: Instant) -> Option<(PeerIndex, usize, Due)> {
        for (place, device) in self.devices.iter_mut().enumerate() {
            if let Some((number, due)) = device.seats.due(now) {
                let peer = (number as u32) << self.lane_bits | device.seats.lane(number);
                return Some((PeerIndex(peer), place, due));
            }
        }
        None
    }

    /// The places of a port, if that number has one.
    fn seats_of(&mut self, place: usize, number: usize) -> Option<&mut Seats> {
        let seats = self.devices.get_mut(place).map(|device| &mut device.seats)?;
        seats.has(number).then_some(seats)
    }

    /// Joins it to its other end; see [`super::PortRail::peer_connect`].
    pub fn pair_connect(&mut self, peer: PeerIndex, other: &LaneEnd) -> Result<(), PortPeerError> {
        let place = self.device_of(peer).ok_or(PortPeerError::Index)?;
        let number = self.number(peer);
        let Device { rail, seats, .. } = &mut self.devices[place];
        rail.peer_connect(number, other)?;
        seats.joined(number.as_usize());
        Ok(())
    }

    /// The last queue pair of a peer has carried something. `enough`: that its path is one for
    /// payload, too.
    pub fn pair_carried(&mut self, peer: PeerIndex, place: usize, enough: bool) {
        let number = self.number(peer).as_usize();
        if let Some(seats) = self.seats_of(place, number) {
            seats.carried(number, enough);
        }
    }
}
