//! How long closing waits for what was accepted and is on its way.
#![forbid(unsafe_code)]

use super::known::Patience;
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::Span;
use crate::host::endpoint::Endpoint;
use crate::host::log::news;
use crate::host::log::stall::PEER_BYTES_MAX;
use crate::host::machine::{Machine, each};
use crate::host::shared::SetUp;
use crate::transport::is_awaited;

/// A time that is past.
const LINGERED: u64 = 1;

/// How long closing waits for what no request waits for: most peers poll within it.
const LINGER_BRIEF_MS: u64 = 200;

impl Endpoint {
    /// Whether messages of accepted requests are still on their way to a living peer's host: a
    /// closed socket may drop them, and a rail that died may have. A peer that takes nothing for
    /// too long has lost them. What no request of the peer's waits for, offers of receives that it
    /// does not poll for, is waited for briefly, and nobody is told when that is over.
    ///
    /// With a long send that has not ended, messages alone are waited for: its memory is the
    /// caller's again when the connection is closed, and what it has half written cannot be made
    /// whole. On a port nobody tells them from its stripes, so that they are waited for briefly.
    pub(in crate::host) fn lingers(&mut self, index: u32, patience: Patience) -> bool {
        if patience == Patience::Memory {
            let connection = ConnectionIndex(index);
            if each!(&mut self.machine, endpoint => endpoint.requests_give_up(connection)) {
                return false;
            }
        }
        // a rail may have died since somebody looked
        if self.known[index as usize].params.lanes <= 1 && !self.is_undelivered(index) {
            return false;
        }
        self.progress();
        let is_writing = self.is_writing(index);
        let is_left = match is_writing {
            true => self.is_message_left(index),
            false => self.is_undelivered(index),
        };
        if !is_left {
            return false;
        }
        let now_ms = self.now().0 / 1_000_000;
        let linger_ms = 1 + self.linger.0 / 1_000_000;
        let is_awaiting = match is_writing {
            true => !self.is_controlled_by_port(index),
            false => self.is_awaiting(index),
        };
        let until_ms = &mut self.known[index as usize].linger_until_ms;
        if *until_ms == 0 {
            *until_ms = now_ms + linger_ms;
        }
        let beyond_ms = if is_awaiting { 0 } else { linger_ms.saturating_sub(LINGER_BRIEF_MS) };
        let waits = now_ms + beyond_ms < *until_ms;
        if waits {
            let next_ms = *until_ms - beyond_ms;
            let known_ms = core::mem::replace(&mut self.linger_next_ms, next_ms);
            self.linger_next_ms = if known_ms == 0 { next_ms } else { next_ms.min(known_ms) };
        }
        if !waits && core::mem::replace(until_ms, LINGERED) != LINGERED && is_awaiting {
            self.lingered(index, self.linger);
        }
        waits
    }

    /// Who closes, and sleeps in between, is woken when that waits no longer.
    pub(in crate::host) fn linger_wake(&mut self) {
        let next_ms = core::mem::take(&mut self.linger_next_ms);
        if let (1.., SetUp::Band(band)) = (next_ms, &self.shared.set_up) {
            let now_ms = self.now().0 / 1_000_000;
            band.wake_after(Span::millis(next_ms.saturating_sub(now_ms)));
        }
    }

    fn lingered(&self, index: u32, waited: Span) {
        let mut name = [0; PEER_BYTES_MAX];
        news::closed_on_messages(self.peer_name(index, &mut name), waited);
    }

    /// Whether a close that says [`Closing::Again`](crate::host::endpoint::Closing::Again) waits
    /// for a peer to take what has left, and not for memory of requests to be let go, or read.
    pub fn is_lingering(&self, connection: Handle) -> bool {
        let index = connection.index as usize % self.known.len();
        let known = &self.known[index];
        known.generation == connection.generation
            && known.linger_until_ms > LINGERED
            && !self.is_writing(index as u32)
    }

    /// Whether rails may still read or write memory of requests of a connection. Asked after a
    /// close said [`Closing::Again`](crate::host::endpoint::Closing::Again). If not, what it waits
    /// for uses the endpoint's own memory alone.
    pub fn is_memory_used(&mut self, connection: Handle) -> bool {
        let index = connection.index as usize % self.known.len();
        let known = &self.known[index];
        known.in_use && known.generation == connection.generation && {
            let index = ConnectionIndex(index as u32);
            each!(&mut self.machine, endpoint => endpoint.requests_give_up(index))
        }
    }

    /// Closing waits no longer for the peer of a connection to take what has left, for which it has
    /// waited so long, nor begins to.
    pub fn linger_end(&mut self, connection: Handle, waited: Span) {
        let index = connection.index as usize % self.known.len();
        let known = &mut self.known[index];
        let is_its = known.in_use && known.generation == connection.generation;
        if !is_its || core::mem::replace(&mut known.linger_until_ms, LINGERED) == LINGERED {
            return;
        }
        if self.is_awaiting(index as u32) {
            self.lingered(index as u32, waited);
        }
    }

    fn is_writing(&self, index: u32) -> bool {
        each!(&self.machine, endpoint => endpoint.is_writing(ConnectionIndex(index)))
    }

    pub(in crate::host) fn is_undelivered(&mut self, index: u32) -> bool {
        let known = &self.known[index as usize];
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let connection = ConnectionIndex(index);
                let undelivered = |lane| {
                    let peer = endpoint.lane_peer(connection, lane);
                    endpoint.rail_mut().is_undelivered(peer)
                };
                known.gone.is_none()
                    && ((0..known.params.lanes.max(1)).any(undelivered)
                        || endpoint.is_resending(connection))
            }
            Machine::Loopback(_) => false,
        }
    }

    /// Whether some of what is undelivered is messages of the stream.
    fn is_message_left(&mut self, index: u32) -> bool {
        let known = &self.known[index as usize];
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let connection = ConnectionIndex(index);
                let peer = endpoint.control_peer(connection);
                known.gone.is_none()
                    && (endpoint.rail_mut().is_message_undelivered(peer)
                        || endpoint.is_resending(connection))
            }
            Machine::Loopback(_) => false,
        }
    }

    /// Whether a port carries the stream of messages.
    fn is_controlled_by_port(&self, index: u32) -> bool {
        match &self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.control_peer(ConnectionIndex(index));
                endpoint.rail().port_of(peer).is_some()
            }
            Machine::Loopback(_) => false,
        }
    }

    /// Whether requests wait for some of what is undelivered.
    fn is_awaiting(&mut self, index: u32) -> bool {
        let known = &self.known[index as usize];
        let connection = ConnectionIndex(index);
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let awaiting = |lane| {
                    let peer = endpoint.lane_peer(connection, lane);
                    endpoint.rail_mut().is_awaiting(peer, is_awaited)
                };
                (0..known.params.lanes.max(1)).any(awaiting)
                    || endpoint.is_resending(connection)
                    || endpoint.is_owing(connection)
            }
            Machine::Loopback(_) => false,
        }
    }
}
