//! How long closing waits for what was accepted and is on its way.
#![forbid(unsafe_code)]

use super::connections::{Connections, PEER_BYTES_MAX};
use super::known::Patience;
use crate::base::ids::ConnectionIndex;
use crate::base::units::Span;
use crate::host::log::news;
use crate::host::machine::{Machine, each};
use crate::transport::is_awaited;

/// A time that is past.
pub(super) const LINGERED: u64 = 1;

/// How long closing waits for what no request waits for: most peers poll within it.
const LINGER_BRIEF_MS: u64 = 200;

/// How long closing a connection waits for messages of accepted requests that are still on their
/// way to a living peer's host: a closed socket may drop them, and a rail that died may have. A
/// peer that takes nothing for too long has lost them. What no request of the peer's waits for,
/// offers of receives that it does not poll for, is waited for briefly, and nobody is told when
/// that is over.
///
/// With a long send that has not ended, messages alone are waited for: its memory is the caller's
/// again when the connection is closed, and what it has half written cannot be made whole. On a
/// port nobody tells them from its stripes, so that they are waited for briefly.
pub(in crate::host) struct Linger {
    /// For so long at most.
    span: Span,
    /// When the next close that was told to wait waits no longer, in ms since open; 0: none does.
    next_ms: u64,
}

impl Linger {
    /// For so long at most.
    pub(in crate::host) fn new(span: Span) -> Linger {
        Linger { span, next_ms: 0 }
    }

    /// Whether closing a connection waits, asked behind a poll.
    pub(super) fn waits(&mut self, connections: &mut Connections<'_>, index: u32) -> bool {
        let is_writing = connections.machine.is_writing(index);
        let is_left = match is_writing {
            true => is_message_left(connections, index),
            false => is_undelivered(connections, index),
        };
        if !is_left {
            return false;
        }
        let now_ms = connections.now().0 / 1_000_000;
        let linger_ms = 1 + self.span.0 / 1_000_000;
        let is_awaiting = match is_writing {
            true => !is_controlled_by_port(connections.machine, index),
            false => is_awaiting(connections, index),
        };
        let until_ms = &mut connections.known[index as usize].linger_until_ms;
        if *until_ms == 0 {
            *until_ms = now_ms + linger_ms;
        }
        let beyond_ms = if is_awaiting { 0 } else { linger_ms.saturating_sub(LINGER_BRIEF_MS) };
        let waits = now_ms + beyond_ms < *until_ms;
        if waits {
            let next_ms = *until_ms - beyond_ms;
            self.next_ms = if self.next_ms == 0 { next_ms } else { next_ms.min(self.next_ms) };
        } else if core::mem::replace(until_ms, LINGERED) != LINGERED && is_awaiting {
            tell(connections, index, self.span);
        }
        waits
    }

    /// Who closes, and sleeps in between, is woken when that waits no longer.
    pub(in crate::host) fn wake(&mut self, connections: &Connections<'_>) {
        let next_ms = core::mem::take(&mut self.next_ms);
        if let (1.., Some(band)) = (next_ms, connections.shared.band()) {
            let now_ms = connections.now().0 / 1_000_000;
            band.wake_after(Span::millis(next_ms.saturating_sub(now_ms)));
        }
    }
}

/// `false`: closing a connection has nothing to wait for, without a poll.
pub(super) fn may_wait(connections: &mut Connections<'_>, index: u32, patience: Patience) -> bool {
    if patience == Patience::Memory {
        let connection = ConnectionIndex(index);
        if each!(&mut *connections.machine, endpoint => endpoint.requests_give_up(connection)) {
            return false;
        }
    }
    // a rail may have died since somebody looked
    connections.lanes_of(index).len() > 1 || is_undelivered(connections, index)
}

/// Closing waits no longer: its user is told if requests wait for some of what is left.
pub(super) fn end_tell(connections: &mut Connections<'_>, index: u32, waited: Span) {
    if is_awaiting(connections, index) {
        tell(connections, index, waited);
    }
}

fn tell(connections: &Connections<'_>, index: u32, waited: Span) {
    let mut name = [0; PEER_BYTES_MAX];
    news::closed_on_messages(connections.peer_name(index, &mut name), waited);
}

/// Whether something is on its way to the peer.
pub(super) fn is_undelivered(connections: &mut Connections<'_>, index: u32) -> bool {
    let mut lanes = connections.lanes_of(index);
    let Machine::Host(endpoint) = &mut *connections.machine else { return false };
    let connection = ConnectionIndex(index);
    let undelivered = |lane| {
        let peer = endpoint.lane_peer(connection, lane);
        endpoint.rail_mut().is_undelivered(peer)
    };
    connections.known[index as usize].gone.is_none()
        && (lanes.any(undelivered) || endpoint.is_resending(connection))
}

/// Whether some of what is undelivered is messages of the stream.
fn is_message_left(connections: &mut Connections<'_>, index: u32) -> bool {
    let Machine::Host(endpoint) = &mut *connections.machine else { return false };
    let connection = ConnectionIndex(index);
    let peer = endpoint.control_peer(connection);
    connections.known[index as usize].gone.is_none()
        && (endpoint.rail_mut().is_message_undelivered(peer) || endpoint.is_resending(connection))
}

/// Whether a port carries the stream of messages.
fn is_controlled_by_port(machine: &Machine, index: u32) -> bool {
    let Machine::Host(endpoint) = machine else { return false };
    endpoint.rail().port_of(endpoint.control_peer(ConnectionIndex(index))).is_some()
}

/// Whether requests wait for some of what is undelivered.
fn is_awaiting(connections: &mut Connections<'_>, index: u32) -> bool {
    let mut lanes = connections.lanes_of(index);
    let Machine::Host(endpoint) = &mut *connections.machine else { return false };
    let connection = ConnectionIndex(index);
    let awaiting = |lane| {
        let peer = endpoint.lane_peer(connection, lane);
        endpoint.rail_mut().is_awaiting(peer, is_awaited)
    };
    lanes.any(awaiting) || endpoint.is_resending(connection) || endpoint.is_owing(connection)
}
