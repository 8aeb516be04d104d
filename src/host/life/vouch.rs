//! Lanes that show whether the peer is alive while its side band is lost
//! ([`crate::connect::Vouch`]).
//!
//! On a queue pair, something is posted that the peer's device answers. Over libfabric, the peer's
//! program is asked. The lanes are polled until one has heard the peer, or the time is over.
#![forbid(unsafe_code)]

extern crate std;

use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};
use crate::connect::Vouch;
use crate::host::endpoint::Endpoint;
use crate::host::machine::Machine;
use crate::host::shared::SetUp;
use crate::transport::rail::LaneState;
use std::vec::Vec;

/// Connections of which that is to be found out.
#[derive(Debug)]
pub(in crate::host) struct Vouching {
    /// Until when.
    all: Vec<(Handle, Instant)>,
    /// Of each place: what the program of its peer had done when that was said last.
    moves: Vec<u32>,
}

impl Vouching {
    /// Of so many at most.
    pub(in crate::host) fn new(connections_max: usize) -> Vouching {
        let moves = std::vec![0; connections_max];
        Vouching { all: Vec::with_capacity(connections_max), moves }
    }

    /// Whether there are any.
    #[inline(always)]
    pub(in crate::host) fn has_some(&self) -> bool {
        !self.all.is_empty()
    }
}

impl Endpoint {
    /// The lanes of a connection in use that carry, but for its sockets.
    fn vouchers(&self, index: u32) -> impl Iterator<Item = u8> + use<> {
        let mut up = 0u8;
        if let Machine::Host(endpoint) = &self.machine {
            let view = |lane| endpoint.lane_view(ConnectionIndex(index), lane);
            let is_up = |lane| view(lane).is_some_and(|view| view.state == LaneState::Up);
            let lanes = (1..u8::BITS as u8).filter(|lane| is_up(*lane));
            up = lanes.fold(0, |up, lane| up | 1 << lane);
        }
        (1..u8::BITS as u8).filter(move |lane| up & 1 << lane != 0)
    }

    /// The side band wants to know whether lanes hear a connection's peer.
    #[cold]
    pub(in crate::host) fn vouch_begin(&mut self, connection: Handle, patience: Span) {
        let index = connection.index;
        let known = &self.known[index as usize];
        let in_use = known.in_use && known.generation == connection.generation;
        let mut asked = false;
        for lane in self.vouchers(index).filter(|_| in_use) {
            if let Machine::Host(endpoint) = &mut self.machine {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                asked |= endpoint.rail_mut().hear_begin(peer);
            }
        }
        // one of an earlier use of the place has nobody to tell any more
        self.vouching.all.retain(|(other, _)| other.index != index);
        match asked {
            true => self.vouching.all.push((connection, self.now().after(patience))),
            false => self.vouch(connection, Vouch::Silent),
        }
    }

    fn vouch(&self, connection: Handle, vouch: Vouch) {
        if let SetUp::Band(band) = &self.shared.set_up {
            band.vouch(connection, vouch);
        }
    }

    /// Behind a poll: whether they have.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn vouch_look(&mut self) {
        let now = self.now();
        let mut at = 0;
        while let Some((connection, until)) = self.vouching.all.get(at).copied() {
            let heard = self.is_vouched_for(connection);
            let is_late = heard.is_none() || now >= until;
            if heard == Some(true) || is_late {
                let is_heard = heard == Some(true);
                let vouch = match is_heard {
                    true => Vouch::Heard { spoken: self.has_spoken(connection.index) },
                    false => Vouch::Silent,
                };
                self.vouch(connection, vouch);
                self.vouching.all.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Whether the program of a connection's peer has sent something since this was asked last, or
    /// has answered now.
    fn has_spoken(&mut self, index: u32) -> bool {
        let Machine::Host(endpoint) = &self.machine else { return false };
        let peer = |lane| endpoint.lane_peer(ConnectionIndex(index), lane);
        let mut lanes = self.vouchers(index);
        let has_answered = lanes.any(|lane| endpoint.rail().has_answered(peer(lane)));
        let now = endpoint.peer_moves(ConnectionIndex(index));
        let before = self.vouching.moves.get_mut(index as usize);
        has_answered || before.is_some_and(|before| core::mem::replace(before, now) != now)
    }

    /// Whether a lane has heard a connection's peer since [`Endpoint::vouch_begin`]; `None`:
    /// none works.
    fn is_vouched_for(&self, connection: Handle) -> Option<bool> {
        let known = &self.known[connection.index as usize];
        if !known.in_use || known.generation != connection.generation {
            return None;
        }
        let Machine::Host(endpoint) = &self.machine else { return None };
        let peer = |lane| endpoint.lane_peer(ConnectionIndex(connection.index), lane);
        let heard = |lane| endpoint.rail().is_heard(peer(lane));
        self.vouchers(connection.index).filter_map(heard).reduce(|one, other| one | other)
    }
}
