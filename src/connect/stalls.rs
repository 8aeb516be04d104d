//! Data streams whose packets vanish while their link answers: one path of several, or a firewall
//! that has forgotten one socket.
//!
//! The kernel would try again for a quarter of an hour. So each stream's unacknowledged bytes are
//! looked at a few times per deadline, and a connection ends whose peer's host has acknowledged
//! nothing for as long as ends a link ([`Control::silence_ms`]), although the link was heard since;
//! of a connection with several lanes, the lane ends. While the link is lost, another lane of the
//! connection must have been heard instead ([`super::outage`]).
//! A peer that does not read is no such case: its host acknowledges that its window is closed.
#![forbid(unsafe_code)]

use super::connection::{NONE, Phase};
use super::control::{Control, Note};
use super::event::STREAMS_MAX;
use super::lanes::{LaneSockets, LaneState};
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::peer::Peer;
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;

/// Rounds per deadline: a stall is seen within one round, and is as long as it may be at most one
/// round later.
const ROUNDS: u64 = 8;
/// Connections looked at in one go, under the lock: one system call per stream that is open.
const LOOKED_MAX: usize = 512;
/// Goes per round at most, so that a large table does not wake the thread all the time; one of
/// more than 8,192 connections has longer rounds.
const GOES_MAX: u64 = 16;

/// How long one stream's bytes have been without an answer.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Stall {
    /// Since when the peer's host owes an answer, as far as we have seen.
    since: Option<Instant>,
}

impl Stall {
    /// Nothing is owed.
    pub const NONE: Stall = Stall { since: None };

    /// `silent`: how long ago the peer's host acknowledged anything, if it owes that. Gives since
    /// when it is known to owe it.
    fn look(&mut self, now: Instant, silent: Option<Span>) -> Option<Instant> {
        self.since = silent.map(|silent| {
            // before we saw that something is owed, the stream may just have been idle
            let heard = Instant(now.0.saturating_sub(silent.0));
            self.since.map_or(now, |since| since.max(heard))
        });
        self.since
    }
}

/// Whose turn it is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Rounds {
    /// When the next ones are looked at; `Instant(u64::MAX)`: there are none.
    next: Instant,
    /// From which slot on.
    from: usize,
    /// Whether this round has met a connection over TCP.
    met: bool,
}

impl Rounds {
    /// No connection yet.
    pub const NONE: Rounds = Rounds { next: Instant(u64::MAX), from: 0, met: false };
}

impl<M: LinkMemory> Control<M> {
    /// A connection over TCP stands: rounds begin if there were none.
    pub fn stalls_start(&mut self, index: u32) {
        let deadline = self.config.peer_deadline;
        let streams = self.connections[index as usize].stream_count;
        if deadline != Span(0) && streams > 0 && self.stalls.next == Instant(u64::MAX) {
            let next = self.now().after(self.stalls_pause());
            self.stalls = Rounds { next, ..Rounds::NONE };
            self.look_by(next);
        }
    }

    /// Time between two goes.
    fn stalls_pause(&self) -> Span {
        let goes = (self.connections.len().div_ceil(LOOKED_MAX) as u64).clamp(1, GOES_MAX);
        Span(self.config.peer_deadline.0 / ROUNDS / goes)
    }

    /// Called whenever something may be due: looks at the connections whose turn it is.
    pub fn stalls_look(&mut self, now: Instant) {
        let Rounds { next, from, .. } = self.stalls;
        if now < next {
            self.look_by(next);
            return;
        }
        let to = (from + LOOKED_MAX).min(self.connections.len());
        for index in from..to {
            self.stall_look(index as u32, now);
        }
        self.stalls.from = to;
        self.stalls.next = now.after(self.stalls_pause());
        if to == self.connections.len() {
            if !self.stalls.met {
                self.stalls = Rounds::NONE;
                return;
            }
            (self.stalls.from, self.stalls.met) = (0, false);
        }
        self.look_by(self.stalls.next);
    }

    fn stall_look(&mut self, index: u32, now: Instant) {
        let connection = &mut self.connections[index as usize];
        let open = connection.phase == Phase::Open && !connection.peer_closed;
        if !open || connection.closed_here || connection.stream_count == 0 || connection.stalled {
            return;
        }
        self.stalls.met = true;
        let lanes = u32::from(connection.lanes);
        if lanes > 1 {
            (0..lanes).for_each(|lane| self.lane_stall_look(index, lane, now));
            return;
        }
        let oldest = oldest(&self.streams[index as usize], &mut connection.stalls, now);
        if let Some((peer, silent)) = self.stall_judge(index, 0, oldest, now) {
            self.connections[index as usize].stalled = true;
            (self.config.note)(Note::Stalled { peer, silent });
            self.owe(index, false, Some(DownCause::Failed));
        }
    }

    fn lane_stall_look(&mut self, index: u32, lane: u32, now: Instant) {
        let place = self.lane_place(index, lane);
        let entry = &mut self.lanes[place as usize];
        if entry.state != LaneState::Held || entry.stalled {
            return;
        }
        let sockets = if lane == 0 { &self.streams[index as usize] } else { &entry.streams };
        let oldest = oldest(sockets, &mut entry.stalls, now);
        if let Some((peer, silent)) = self.stall_judge(index, lane, oldest, now) {
            (self.config.note)(Note::LaneStalled { peer, lane: lane as u8, silent });
            self.lane_gone(index, lane, DownCause::Failed);
        }
    }

    /// Whether the streams of a lane whose bytes are unanswered since `oldest` have stalled: of
    /// whom, and for how long.
    fn stall_judge(
        &self,
        index: u32,
        lane: u32,
        oldest: Instant,
        now: Instant,
    ) -> Option<(Peer, Span)> {
        let silent = now.since(oldest);
        let link = self.connections[index as usize].link;
        if silent.0 < u64::from(self.silence_ms()) * 1_000_000 || link == NONE {
            return None;
        }
        let link = &self.links[link as usize];
        // one that is silent too has its own judge
        let answers = match link.phase {
            LinkPhase::Ready => link.hearing.is_heard_since(oldest),
            // without a link another lane says that the peer lives
            LinkPhase::Lost => self.others_heard(index, lane, now) > oldest,
            _ => false,
        };
        answers.then_some((link.peer, silent))
    }
}

/// Since when some of the streams' bytes are unanswered; `now`: none are.
fn oldest(sockets: &LaneSockets, stalls: &mut [Stall; STREAMS_MAX], now: Instant) -> Instant {
    let mut oldest = now;
    for (socket, stall) in sockets.iter().zip(stalls) {
        let silent_ms = socket.as_ref().and_then(|socket| socket.unacknowledged_ms());
        let silent = silent_ms.map(|silent_ms| Span::millis(u64::from(silent_ms)));
        oldest = oldest.min(stall.look(now, silent).unwrap_or(now));
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant(1_000_000 * MS + ms * MS)
    }

    fn silent(ms: u64) -> Option<Span> {
        Some(Span::millis(ms))
    }

    #[test]
    fn what_was_idle_before_owes_since_it_was_seen_to() {
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(0), None), None);
        // the last answer is an hour old, since nothing was asked
        assert_eq!(stall.look(at(100), silent(3_600_000)), Some(at(100)));
        assert_eq!(stall.look(at(900), silent(3_600_800)), Some(at(100)));
    }

    #[test]
    fn whatever_is_acknowledged_begins_it_anew() {
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(100), silent(50)), Some(at(100)));
        assert_eq!(stall.look(at(900), silent(200)), Some(at(700)));
        assert_eq!(stall.look(at(1000), None), None);
        assert_eq!(stall.look(at(1100), silent(500)), Some(at(1100)));
    }
}
