//! Data streams whose packets are lost while their link answers.
//!
//! One path of several may be down, or a firewall may have forgotten one socket. The kernel would
//! retransmit for a quarter of an hour. So this module looks at each stream's unacknowledged bytes
//! a few times per deadline. The limit is the silence that ends a link ([`Control::silence_ms`]).
//!
//! | the peer's host acknowledged nothing for the limit | what happens |
//! |---|---|
//! | connection of one lane, and the link was heard since | the connection ends |
//! | connection of several lanes, and the link was heard since | the lane ends |
//! | the link is lost ([`super::outage`]) | the lane ends if another lane was heard since |
//!
//! A peer that does not read is no such case: its host acknowledges that its window is closed.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::connection::{NONE, Phase};
use super::control::Control;
use super::event::STREAMS_MAX;
use super::lanes::{LaneSockets, LaneState};
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::note::Note;
use super::peer::Peer;
use super::stream::{StreamSocket, Traffic};
use crate::base::slab::Handle;
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
    /// When we looked last.
    looked: Instant,
    /// How long the peer's host owes an answer, as far as we have seen; `None`: it owes none.
    owed: Option<Millis>,
}

/// A short span, in little room.
type Millis = u32;

impl Stall {
    /// Nothing is owed.
    pub const NONE: Stall = Stall { looked: Instant(0), owed: None };

    /// `silent`: how long ago the peer's host acknowledged anything, if it owes that; `round`: the
    /// usual time between two looks. Gives how long it is known to owe it.
    ///
    /// A look counts no more than a round. What lies before it was our own time: a process that
    /// was stopped finds bytes that it has only just sent, and an acknowledgement as old as the
    /// stop.
    fn look(&mut self, now: Instant, silent: Option<Millis>, round: Millis) -> Span {
        let gap = (now.since(self.looked).0 / 1_000_000).min(Millis::MAX.into()) as Millis;
        self.owed = silent.map(|silent| match self.owed {
            // before we saw that something is owed, the stream may just have been idle
            None => 0,
            // acknowledged since
            Some(_) if silent < gap => silent.min(round),
            Some(owed) => owed.saturating_add(gap.min(round)),
        });
        self.looked = now;
        Span::millis(u64::from(self.owed.unwrap_or(0)))
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

    /// Usual time between two looks at the same connection.
    fn stalls_round(&self) -> Millis {
        let goes = self.connections.len().div_ceil(LOOKED_MAX).max(1) as u64;
        (self.stalls_pause().0 * goes / 1_000_000).clamp(1, Millis::MAX.into()) as Millis
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

    /// For how long the peer's host has acknowledged nothing, on none of the lanes that stand, of
    /// what it was sent over TCP; nothing: it owes nothing on one.
    pub fn silence(&self, handle: Handle) -> Span {
        let Some(index) = self.live(handle) else { return Span(0) };
        let lanes = u32::from(self.connections[index as usize].lanes);
        let sockets = |lane| match lane {
            0 => Some(&self.streams[index as usize]),
            _ => {
                let entry = &self.lanes[self.lane_place(index, lane) as usize];
                (entry.state == LaneState::Held).then_some(&entry.streams)
            }
        };
        let silent_ms = |sockets: &LaneSockets| {
            let of = |socket: &StreamSocket| socket.unacknowledged_ms();
            sockets.iter().flatten().filter_map(of).max().unwrap_or(0)
        };
        let shortest_ms = (0..lanes.max(1)).filter_map(sockets).map(silent_ms).min();
        Span::millis(shortest_ms.unwrap_or(0).into())
    }

    /// What the sockets of a lane have carried; `None`: it has none that stand.
    pub fn lane_traffic(&self, handle: Handle, lane: u32) -> Option<Traffic> {
        let index = self.live(handle)?;
        let sockets = match lane {
            0 => &self.streams[index as usize],
            _ if lane < self.lanes_of(index) => {
                &self.lanes[self.lane_place(index, lane) as usize].streams
            }
            _ => return None,
        };
        let mut sockets = sockets.iter().flatten().peekable();
        sockets.peek()?;
        sockets.try_fold(Traffic::NONE, |all, socket| Some(all.and(socket.traffic()?)))
    }

    fn stall_look(&mut self, index: u32, now: Instant) {
        let round = self.stalls_round();
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
        let silent = owed(&self.streams[index as usize], &mut connection.stalls, now, round);
        if let Some(peer) = self.stall_judge(index, 0, silent, now) {
            self.large_look(index, 0, &peer);
            self.connections[index as usize].stalled = true;
            (self.config.note)(Note::Stalled { peer, silent });
            self.owe(index, false, Some(DownCause::Silent));
        }
    }

    fn lane_stall_look(&mut self, index: u32, lane: u32, now: Instant) {
        let (place, round) = (self.lane_place(index, lane), self.stalls_round());
        let entry = &mut self.lanes[place as usize];
        if entry.state != LaneState::Held || entry.stalled {
            return;
        }
        let sockets = if lane == 0 { &self.streams[index as usize] } else { &entry.streams };
        let silent = owed(sockets, &mut entry.stalls, now, round);
        if let Some(peer) = self.stall_judge(index, lane, silent, now) {
            self.large_look(index, lane, &peer);
            (self.config.note)(Note::LaneStalled { peer, lane: lane as u8, silent });
            self.lane_gone(index, lane, DownCause::Silent, silent);
        }
    }

    /// Whose streams have stalled of a lane whose bytes have been unanswered for so long; `None`:
    /// they have not.
    fn stall_judge(&self, index: u32, lane: u32, silent: Span, now: Instant) -> Option<Peer> {
        let link = self.connections[index as usize].link;
        if silent.0 < u64::from(self.silence_ms()) * 1_000_000 || link == NONE {
            return None;
        }
        // who answers is heard a little after it was asked at the latest; what came at the stall's
        // beginning says nothing, since a network that goes down takes a moment for all its links
        let since = |recent: Span| Instant(now.0.saturating_sub(silent.0.min(recent.0)));
        let recent = Span(self.config.peer_deadline.0 * 3 / 8);
        let link = &self.links[link as usize];
        // one that is silent too has its own judge
        let answers = match link.phase {
            LinkPhase::Ready => {
                // a word that waited for a processor was said before
                let is_late = match &link.socket {
                    Some(Channel::Stream(socket)) => socket
                        .heard_ms()
                        .is_none_or(|ms| Span::millis(ms.into()) > silent.min(recent)),
                    Some(Channel::Record(_)) | None => false,
                };
                !is_late && link.hearing.is_heard_since(since(recent))
            }
            // without a link another lane says that the peer lives
            LinkPhase::Lost => {
                let asked = Span(self.asks_s() as u64 * 1_500_000_000);
                self.others_heard(index, lane, now) > since(recent.max(asked))
            }
            _ => false,
        };
        answers.then_some(link.peer)
    }
}

impl<M: LinkMemory> Control<M> {
    /// Says so where a lane's large packets are lost, and the small ones of its link pass on the
    /// same way: the link has been heard, and its frames are small.
    fn large_look(&self, index: u32, lane: u32, peer: &Peer) {
        let link = &self.links[self.connections[index as usize].link as usize];
        let entry = self.lanes.get(self.lane_place(index, lane) as usize);
        let to = entry.and_then(|entry| entry.path.to).or(link.remote);
        let same_way = to.map(|to| to.ip()) == link.remote.map(|at| at.ip());
        if link.phase != LinkPhase::Ready || !same_way {
            return;
        }
        let sockets = match (lane, entry) {
            (0, _) | (_, None) => &self.streams[index as usize],
            (_, Some(entry)) => &entry.streams,
        };
        let bytes = sockets.iter().flatten().find_map(StreamSocket::large_unanswered);
        if let Some(packet_bytes) = bytes {
            (self.config.note)(Note::LargeLost(*peer, lane as u8, packet_bytes));
        }
    }
}

/// How long some of the streams' bytes are unanswered; nothing: none are.
fn owed(
    sockets: &LaneSockets,
    stalls: &mut [Stall; STREAMS_MAX],
    now: Instant,
    round: Millis,
) -> Span {
    let mut longest = Span(0);
    for (socket, stall) in sockets.iter().zip(stalls) {
        let silent_ms = socket.as_ref().and_then(|socket| socket.unacknowledged_ms());
        longest = longest.max(stall.look(now, silent_ms, round));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant(1_000_000 * MS + ms * MS)
    }

    #[test]
    fn what_was_idle_before_owes_since_it_was_seen_to() {
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(0), None, 100), Span(0));
        // the last answer is an hour old, since nothing was asked
        assert_eq!(stall.look(at(100), Some(3_600_000), 100), Span(0));
        for round in 1..9 {
            let (now, silent) = (100 + round * 100, 3_600_000 + round as u32 * 100);
            assert_eq!(stall.look(at(now), Some(silent), 100), Span::millis(round * 100));
        }
    }

    #[test]
    fn whatever_is_acknowledged_begins_it_anew() {
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(100), Some(50), 100), Span(0));
        assert_eq!(stall.look(at(200), Some(150), 100), Span::millis(100));
        assert_eq!(stall.look(at(300), Some(70), 100), Span::millis(70));
        assert_eq!(stall.look(at(400), None, 100), Span(0));
        assert_eq!(stall.look(at(500), Some(270), 100), Span(0));
    }

    #[test]
    fn time_in_which_we_did_not_look_counts_for_nobody() {
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(0), Some(0), 100), Span(0));
        // stopped for a second, and sends at once when it goes on
        assert_eq!(stall.look(at(1000), Some(990), 100), Span::millis(100));
        // again and again, with less than a round in between, in which answers come
        for stop in 1..50 {
            assert!(stall.look(at(1000 + stop * 450), Some(430), 100) <= Span::millis(100));
        }
        // nothing comes, however the looks lie: each counts no more than a round
        let mut stall = Stall::NONE;
        assert_eq!(stall.look(at(0), Some(0), 100), Span(0));
        for stop in 1..9 {
            let owed = stall.look(at(stop * 350), Some(stop as u32 * 350), 100);
            assert_eq!(owed, Span::millis(stop * 100));
        }
    }
}
