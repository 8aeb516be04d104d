//! Lanes that show whether the peer is alive while its side band is lost
//! ([`crate::connect::Vouch`]).
//!
//! On a queue pair, something is posted that the peer's device answers. Over libfabric, the peer's
//! program is asked. The lanes are polled until one has heard the peer, or the time is over.
#![forbid(unsafe_code)]

use super::connections::Connections;
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};
use crate::connect::Vouch;
use crate::host::machine::Machine;
use crate::host::shared::Shared;
use crate::provider::rail_set::PortRail;
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

    /// The side band wants to know whether lanes hear a connection's peer.
    #[cold]
    pub(in crate::host) fn begin(
        &mut self,
        connections: &mut Connections<'_>,
        connection: Handle,
        patience: Span,
    ) {
        let index = connection.index;
        let mut asked = false;
        if connections.known[index as usize].is_use_of(connection) {
            for lane in vouchers(connections.machine, index) {
                let end = connections.machine.end_mut(index, lane);
                let end = end.and_then(|(rail, peer)| rail.port_end_mut(peer));
                asked |= end.is_some_and(|(port, peer)| port.hear_begin(peer));
            }
        }
        // one of an earlier use of the place has nobody to tell any more
        self.all.retain(|(other, _)| other.index != index);
        match asked {
            true => self.all.push((connection, connections.now().after(patience))),
            false => vouch(connections.shared, connection, Vouch::Silent),
        }
    }

    /// Behind a poll: whether they have.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn look(&mut self, connections: &mut Connections<'_>) {
        let now = connections.now();
        let mut at = 0;
        while let Some((connection, until)) = self.all.get(at).copied() {
            let heard = is_vouched_for(connections, connection);
            let is_late = heard.is_none() || now >= until;
            if heard == Some(true) {
                let spoken = self.has_spoken(connections.machine, connection.index);
                vouch(connections.shared, connection, Vouch::Heard { spoken });
            } else if is_late {
                vouch(connections.shared, connection, Vouch::Silent);
            } else {
                at += 1;
                continue;
            }
            self.all.swap_remove(at);
        }
    }

    /// Whether the program of a connection's peer has sent something since this was asked last, or
    /// has answered now.
    fn has_spoken(&mut self, machine: &Machine, index: u32) -> bool {
        let Machine::Host(endpoint) = machine else { return false };
        let answered = |(port, peer): (&PortRail<'_>, PeerIndex)| port.has_answered(peer);
        let mut lanes = vouchers(machine, index);
        let has_answered = lanes.any(|lane| machine.port_end(index, lane).is_some_and(answered));
        let now = endpoint.peer_moves(ConnectionIndex(index));
        let before = self.moves.get_mut(index as usize);
        has_answered || before.is_some_and(|before| core::mem::replace(before, now) != now)
    }
}

/// The lanes of a connection in use that carry, but for its sockets.
fn vouchers(machine: &Machine, index: u32) -> impl Iterator<Item = u8> + use<> {
    let lanes = (1..u8::BITS as u8).filter(|lane| machine.is_up(index, *lane));
    let up = lanes.fold(0, |up, lane| up | 1u8 << lane);
    (1..u8::BITS as u8).filter(move |lane| up & 1 << lane != 0)
}

fn vouch(shared: &Shared, connection: Handle, vouch: Vouch) {
    if let Some(band) = shared.band() {
        band.vouch(connection, vouch);
    }
}

/// Whether a lane has heard a connection's peer since [`Vouching::begin`]; `None`: none works.
fn is_vouched_for(connections: &Connections<'_>, connection: Handle) -> Option<bool> {
    let index = connection.index;
    if !connections.known[index as usize].is_use_of(connection) {
        return None;
    }
    let heard = |lane| {
        let (port, peer) = connections.machine.port_end(index, lane)?;
        port.is_heard(peer)
    };
    vouchers(connections.machine, index).filter_map(heard).reduce(|one, other| one | other)
}
