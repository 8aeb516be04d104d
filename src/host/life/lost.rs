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

use super::connections::{Connections, PEER_BYTES_MAX};
use super::suspect::Suspect;
use crate::connect::{Traffic, ends_of};
use crate::diagnose::lost::{Missing, missing};
use crate::fabric::DownCause;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::LifeEvent;
use crate::host::log::rail_news::RailAt;
use crate::host::log::stalls::Stalls;
use crate::transport::snapshot::Tick;
use crate::wire::status::StatusHello;

/// How long the answer to a question is waited for, at least, before it is put again: the link may
/// have been lost with it.
const PATIENCE_MS: u32 = 10_000;

impl Stalls {
    /// Looks at a connection of which a request stands, ours or the peer's. Says when it is to be
    /// looked at again, in ms.
    pub(in crate::host) fn lost_look(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        stands: bool,
        (now_ms, tick): (u64, Tick),
    ) -> Option<u64> {
        let (look_ms, asked_ms) = (u64::from(self.look_ms), self.asked_ms[index as usize]);
        let suspect = &mut self.suspects[index as usize];
        if !stands && now_ms >= suspect.wanted_ms {
            *suspect = Suspect::NONE;
            return None;
        }
        // a report that waits for its answer comes first
        if now_ms < suspect.next_ms || asked_ms != 0 {
            return Some(suspect.next_ms.max(now_ms + 1));
        }
        let (handle, band) = (connections.handle(index), connections.shared.band()?);
        let said = band.status_of_peer(handle);
        // what it had left before the last look says nothing of what has come since
        let pause = suspect.pause;
        let polled = |left_ms: u32| u64::from(left_ms) <= 2 * pause * look_ms;
        if let Some(theirs) = said.filter(|said| polled(said.status.left_ms)) {
            let found = oldest_missing(connections, (index, tick), &theirs, suspect.turn);
            let traffic =
                found.map_or(Some(Traffic::NONE), |found| traffic(connections, index, &found));
            let found = found.filter(|_| traffic.is_some());
            if suspect.look(found, traffic.unwrap_or(Traffic::NONE), now_ms)
                && let Some(found) = suspect.missing.take()
            {
                suspect.turn = suspect.turn.wrapping_add(1);
                fail(connections, index, found, now_ms - suspect.since_ms);
            }
        }
        // who computes answers the question that it has when it polls; a new one would hide what it
        // has said so far
        let patience_ms = self.stall_ms.max(PATIENCE_MS);
        if band.status_owed_ms(handle).is_none_or(|owed_ms| owed_ms >= patience_ms) {
            match stands {
                true => band.status_ask_standing(handle),
                false => band.status_ask(handle),
            };
        }
        suspect.next_ms = now_ms + suspect.pause * look_ms;
        Some(suspect.next_ms)
    }
}

/// What is missing of a connection: any of its sends may have lost something, also behind an older
/// one that waits for its receive.
fn oldest_missing(
    connections: &Connections<'_>,
    (index, tick): (u32, Tick),
    theirs: &StatusHello,
    turn: u8,
) -> Option<Missing> {
    let ours = connections.status(index, tick);
    let of_send = |send| missing(&StatusHello { send, ..ours }, theirs, turn);
    let sends = connections.sends(index, tick).filter_map(|send| Some((send, of_send(send)?)));
    // of those that are as old the first
    let oldest =
        sends.reduce(|first, next| if next.0.age_ms > first.0.age_ms { next } else { first });
    oldest.map(|(_, found)| found).or_else(|| missing(&ours, theirs, turn))
}

/// What the lane of something missing has carried, with what is still staged here, and what has
/// come where its answer would.
fn traffic(connections: &Connections<'_>, index: u32, found: &Missing) -> Option<Traffic> {
    let (band, handle) = (connections.shared.band()?, connections.handle(index));
    let traffic = band.lane_traffic(handle, found.lane.into())?;
    let received = match found.answer {
        Some(lane) if lane != found.lane => band.lane_traffic(handle, lane.into())?.received,
        Some(_) | None => traffic.received,
    };
    let end = connections.machine.end(index, found.lane);
    let staged = end.is_some_and(|(rail, peer)| rail.is_tcp_undelivered(peer));
    Some(Traffic { delivered: traffic.delivered && !staged, received })
}

/// A rail has lost something: it fails.
#[cold]
fn fail(connections: &mut Connections<'_>, index: u32, found: Missing, silent_ms: u64) {
    let lane = found.lane;
    let mut name = [0; PEER_BYTES_MAX];
    let peer = connections.peer_name(index, &mut name);
    let ends = connections.machine.socket(index, lane).and_then(ends_of);
    let rail = connections.lane_rail(index, lane);
    let at = RailAt { rail, lane, peer, ends, nic: "" };
    tell_briefly(&LifeEvent::Lost { at: &at, what: found.what, silent_ms });
    connections.lane_fail(index, lane, DownCause::Broken(libc::EBADMSG));
}
