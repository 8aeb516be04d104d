//! Bytes that a TCP rail has lost although its socket stands: the bytes were changed on the way,
//! and no kernel knows.
//!
//! When a request stands for long, both sides say how they stand, a few times within
//! `CROSSTIE_STALL_MS`. Each side judges what it has sent itself. Bytes are lost when all of this
//! holds at each of these looks:
//!
//! - they have reached the peer's host;
//! - the peer's program has polled since the last look;
//! - the peer has not acknowledged them.
//!
//! Then the rail fails. Another rail carries the rest, or the connection ends with an error. A peer
//! whose program does not poll is reported and never given up.
//!
//! A peer may ask because a request of its own stands. It is asked back. So a lost message is found
//! even if its sender no longer waits for it.
#![forbid(unsafe_code)]

extern crate std;

use crate::base::ids::ConnectionIndex;
use crate::connect::{Traffic, ends_of};
use crate::diagnose::lost::{Missing, missing};
use crate::fabric::{DownCause, PeerLife};
use crate::host::endpoint::Endpoint;
use crate::host::log::Level;
use crate::host::log::news::say_of;
use crate::host::log::rail_news::RailAt;
use crate::host::log::stall::PEER_BYTES_MAX;
use crate::host::machine::Machine;
use crate::transport::snapshot::Tick;

/// Looks in a row that find the same missing, behind the first.
const LOOKS: u8 = 8;
/// How long the answer to a question is waited for, at least, before it is put again: the link may
/// have been lost with it.
const PATIENCE_MS: u32 = 10_000;
/// Looks that are left out while nothing is missing, at most.
const PAUSE_MAX: u64 = 8;

/// What looks at one connection have found.
#[derive(Copy, Clone, Debug)]
pub(in crate::host) struct Suspect {
    missing: Option<Missing>,
    /// What had come on that rail.
    received: u64,
    /// Looks that count.
    looks: u8,
    /// Rails that have failed.
    turn: u8,
    since_ms: u64,
    /// Looks between two questions.
    pause: u64,
    /// When the next is due; 0: at once.
    next_ms: u64,
    /// Until when the peer wants us to look.
    wanted_ms: u64,
}

impl Suspect {
    /// Nothing is open.
    pub(in crate::host) const NONE: Suspect = Suspect {
        missing: None,
        received: 0,
        looks: 0,
        turn: 0,
        since_ms: 0,
        pause: 1,
        next_ms: 0,
        wanted_ms: 0,
    };

    /// The peer wants us to look, until it asks no more.
    pub(in crate::host) fn want(&mut self, now_ms: u64, look_ms: u64) {
        self.wanted_ms = now_ms + 2 * PAUSE_MAX * look_ms;
        self.pause = 1;
        self.next_ms = self.next_ms.min(now_ms + look_ms);
    }

    /// One look: what is missing, and what the rail has carried. Whether it is lost.
    fn look(&mut self, missing: Option<Missing>, traffic: Traffic, now_ms: u64) -> bool {
        let Some(found) = missing else {
            let pause = if self.missing.is_some() { 1 } else { (2 * self.pause).min(PAUSE_MAX) };
            (self.missing, self.looks, self.pause) = (None, 0, pause);
            return false;
        };
        let quiet = !found.is_answered() || self.received == traffic.received;
        if self.missing != missing || !quiet {
            (self.missing, self.received) = (missing, traffic.received);
            (self.looks, self.since_ms) = (0, now_ms);
        } else if traffic.delivered {
            self.looks += 1;
        }
        self.pause = 1;
        self.looks >= LOOKS
    }
}

impl Endpoint {
    /// Looks at a connection of which a request stands, ours or the peer's. Says when it is to be
    /// looked at again, in ms.
    pub(in crate::host) fn lost_look(
        &mut self,
        index: u32,
        stands: bool,
        now_ms: u64,
        tick: Tick,
    ) -> Option<u64> {
        let suspect = self.stalls.suspects[index as usize];
        if !stands && now_ms >= suspect.wanted_ms {
            self.stalls.suspects[index as usize] = Suspect::NONE;
            return None;
        }
        // a report that waits for its answer comes first
        if now_ms < suspect.next_ms || self.stalls.asked_ms[index as usize] != 0 {
            return Some(suspect.next_ms.max(now_ms + 1));
        }
        let (handle, look_ms) = (self.handle_of(index), self.stalls.look_span().0 / 1_000_000);
        let said = self.band()?.status_of_peer(handle);
        // what it had left before the last look says nothing of what has come since
        let polled = |left_ms: u32| u64::from(left_ms) <= 2 * suspect.pause * look_ms;
        if let Some(theirs) = said.filter(|said| polled(said.status.left_ms)) {
            let found = missing(&self.status_of(index, tick), &theirs, suspect.turn);
            let traffic =
                found.map_or(Some(Traffic::NONE), |found| self.traffic(index, found.lane));
            let suspect = &mut self.stalls.suspects[index as usize];
            if suspect.look(
                found.filter(|_| traffic.is_some()),
                traffic.unwrap_or(Traffic::NONE),
                now_ms,
            ) && let Some(found) = suspect.missing.take()
            {
                let silent_ms = now_ms - suspect.since_ms;
                suspect.turn = suspect.turn.wrapping_add(1);
                self.lost_fail(index, found, silent_ms);
            }
        }
        let band = self.band()?;
        // who computes answers the question that it has when it polls; a new one would hide what it
        // has said so far
        let patience_ms = self.stalls.stall_ms.max(PATIENCE_MS);
        if band.status_owed_ms(handle).is_none_or(|owed_ms| owed_ms >= patience_ms) {
            match stands {
                true => band.status_ask_standing(handle),
                false => band.status_ask(handle),
            };
        }
        let suspect = &mut self.stalls.suspects[index as usize];
        suspect.next_ms = now_ms + suspect.pause * look_ms;
        Some(suspect.next_ms)
    }

    /// What a lane has carried, with what is still staged here.
    fn traffic(&self, index: u32, lane: u8) -> Option<Traffic> {
        let traffic = self.band()?.lane_traffic(self.handle_of(index), lane.into())?;
        let staged = match &self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                endpoint.rail().is_tcp_undelivered(peer)
            }
            Machine::Loopback(_) => false,
        };
        Some(Traffic { delivered: traffic.delivered && !staged, ..traffic })
    }

    /// A rail has lost something: it fails.
    #[cold]
    fn lost_fail(&mut self, index: u32, found: Missing, silent_ms: u64) {
        let lane = found.lane;
        let mut name = [0; PEER_BYTES_MAX];
        let peer = self.peer_name(index, &mut name);
        let ends = match &self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                endpoint.rail().socket(peer)
            }
            Machine::Loopback(_) => None,
        };
        let (rail, ends) = (self.lane_rail(index, lane), ends.and_then(ends_of));
        let at = RailAt { rail, lane, peer, ends, nic: "" };
        say_of(
            Level::Warning,
            format_args!(
                "{at} has lost {}: all of it has reached the peer's host, and for {silent_ms} ms \
                 the peer's program, which polls, has not acknowledged it (bytes were changed on \
                 the way); the rail fails",
                found.what
            ),
        );
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                endpoint.rail_mut().peer_fail(peer, DownCause::Broken(libc::EBADMSG));
            }
            Machine::Loopback(_) => {}
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::lost::What;

    const QUIET: Traffic = Traffic { received: 5, delivered: true };

    fn missing(what: What) -> Option<Missing> {
        Some(Missing { what, mark: 0, lane: 0 })
    }

    /// At which look the rail fails, if at all.
    fn fails(look: impl Fn(u64) -> (Option<Missing>, Traffic)) -> Option<u64> {
        let mut suspect = Suspect::NONE;
        (0..100).find(|at| {
            let (missing, traffic) = look(*at);
            suspect.look(missing, traffic, *at)
        })
    }

    #[test]
    fn rail_fails_when_the_same_is_missing_for_as_many_looks() {
        let looks = u64::from(LOOKS);
        assert_eq!(fails(|_| (missing(What::Slot(3)), QUIET)), Some(looks));
        assert_eq!(fails(|at| (missing(What::Stream(at as u32 / 8)), QUIET)), None);
        assert_eq!(fails(|at| (missing(What::Slot(3)).filter(|_| at % 8 != 0), QUIET)), None);
    }

    #[test]
    fn what_has_not_reached_the_peers_host_is_not_lost() {
        let slow = Traffic { delivered: false, ..QUIET };
        assert_eq!(fails(|_| (missing(What::Stream(3)), slow)), None);
    }

    #[test]
    fn answer_may_stand_behind_what_comes_and_a_message_may_not() {
        let busy = |at| Traffic { received: at, ..QUIET };
        assert_eq!(fails(|at| (missing(What::Stripes(3)), busy(at))), None);
        assert_eq!(fails(|at| (missing(What::Stream(3)), busy(at))), Some(u64::from(LOOKS)));
    }
}
