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

use super::suspect::Suspect;
use crate::base::ids::ConnectionIndex;
use crate::connect::{Traffic, ends_of};
use crate::diagnose::lost::{Missing, missing};
use crate::fabric::{DownCause, PeerLife};
use crate::host::endpoint::Endpoint;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::LifeEvent;
use crate::host::log::rail_news::RailAt;
use crate::host::log::stall::PEER_BYTES_MAX;
use crate::host::machine::Machine;
use crate::transport::snapshot::Tick;

/// How long the answer to a question is waited for, at least, before it is put again: the link may
/// have been lost with it.
const PATIENCE_MS: u32 = 10_000;
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
        tell_briefly(&LifeEvent::Lost { at: &at, what: found.what, silent_ms });
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                endpoint.rail_mut().peer_fail(peer, DownCause::Broken(libc::EBADMSG));
            }
            Machine::Loopback(_) => {}
        };
    }
}
