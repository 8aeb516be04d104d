//! Control channels whose path failed while other lanes of their connections still work (W8.11).
//!
//! A link over TCP is one socket on one path. When the path goes silent or the socket ends,
//! connections of one lane end with it. Connections of several lanes stay; [`super::stalls`] judges
//! their lanes. The lanes show whether the peer is alive:
//!
//! - The link is *silent*: the kernel is asked about the lanes, from the first unanswered ping on.
//!   The peer is dead when no lane has heard it for as long as a peer may be silent. So a host that
//!   dies is noticed within the deadline.
//! - The link's socket *ended*: the peer is dead when the lanes' sockets have ended, too. A process
//!   that dies closes all its sockets; a firewall does not.
//! - Lanes on ports: the data thread says whether the peer answers ([`super::vouch`]). That counts
//!   as much as a socket that stands and is heard.
//!
//! The side that connected dials the link again ([`super::resume`]). If the peer's address refuses
//! the dial, the peer is dead, too.
//!
//! The old socket stays open and unread until a new one replaces it. If it were closed, the peer
//! would check whether this process is gone. For the same reason the kernel's own timeout is
//! switched off for links with connections of several lanes. The listening side uses the old socket
//! again when the peer goes on sending on it: the peer may have noticed nothing.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::connection::{NONE, Phase};
use super::control::Control;
use super::ending::Ending;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::lanes::LaneState;
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::note::Note;
use super::resume::Redial;
use super::stream::shutdown;
use super::vouch::ANSWER;
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;
use core::net::SocketAddr;
use std::os::fd::AsFd;

/// How long a peer may be silent where no deadline is set, but a peer's was shorter.
const LIMIT: Span = Span::millis(10_000);
/// Looks at the lanes per limit.
const LOOKS: u64 = 8;
/// How soon the lanes are looked at after their link's socket has ended; later each time.
const FIRST_LOOK: Span = Span::millis(1);
/// How long the peer has to dial again when its link and all its lanes have ended together. No
/// other sign tells a process that died from a network that was reset; it is longer than a dial
/// takes.
const ALONE_MAX: Span = Span::millis(100);
/// How long words wait on the old socket before it comes back into use: a peer that has noticed,
/// too, dials within that time.
const REVIVE: Span = Span::millis(2000);

/// How a link has been lost.
#[derive(Copy, Clone, Debug)]
pub(super) struct Outage {
    pub since: Instant,
    /// When the peer was heard last, over whatever lane.
    heard: Instant,
    /// When its lanes were looked at, and when they are next.
    looked: Instant,
    look_at: Instant,
    /// Since when words wait on the old socket.
    words: Option<Instant>,
    /// The old socket has ended: what else the peer had with us is looked at after this time, and
    /// since when that has been nothing.
    ended: Option<Span>,
    alone: Option<Instant>,
    /// It has been reported.
    noted: bool,
    pub redial: Redial,
}

impl Outage {
    /// None.
    pub const NONE: Outage = Outage::at(Instant(0));

    const fn at(now: Instant) -> Outage {
        Outage {
            since: now,
            heard: now,
            looked: now,
            look_at: now,
            words: None,
            ended: None,
            alone: None,
            noted: false,
            redial: Redial::at(now),
        }
    }
}

impl<M: LinkMemory> Control<M> {
    /// The path of a link's socket is gone.
    pub fn link_silent(&mut self, index: u32) {
        if self.has_kept(index) {
            self.link_lost(index, None);
        } else {
            let peer = self.links[index as usize].peer;
            self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
        }
    }

    /// A link's socket has ended: the peer is dead, unless a connection has other lanes, which
    /// know better.
    pub fn link_broken(&mut self, index: u32) {
        if self.has_kept(index) {
            self.link_lost(index, Some(FIRST_LOOK));
        } else {
            let peer = self.links[index as usize].peer;
            self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
        }
    }

    /// What came over a link is no frame: its socket is of no use any more, to the peer either,
    /// and is made anew. `false`: nothing needs it, or it happened a moment ago.
    pub fn link_damaged(&mut self, index: u32) -> bool {
        let now = self.now();
        let link = &mut self.links[index as usize];
        let again = link.outage.since != Instant(0) && now.since(link.outage.since) < LIMIT;
        if again || !self.has_kept(index) {
            return false;
        }
        let link = &mut self.links[index as usize];
        link.ending = Some(Ending::Broken(libc::EPROTO));
        if let Some(Channel::Stream(socket)) = &link.socket {
            shutdown(socket.as_fd());
        }
        self.link_lost(index, Some(FIRST_LOOK));
        true
    }

    /// Whether a link has connections that outlive its path.
    fn has_kept(&self, index: u32) -> bool {
        let link = &self.links[index as usize];
        let stands = link.phase == LinkPhase::Ready && link.rail == Rail::Tcp;
        stands && self.is_any(link.first, |control, at| control.is_kept(at))
    }

    /// Whether something is true of any connection from `at` on in its link's chain.
    pub fn is_any(&self, at: u32, of: impl Fn(&Self, u32) -> bool) -> bool {
        self.joined_from(at).any(|at| of(self, at))
    }

    /// The connections of a link, the youngest first.
    pub fn joined(&self, link: u32) -> impl Iterator<Item = u32> + use<'_, M> {
        self.joined_from(self.links[link as usize].first)
    }

    fn joined_from(&self, at: u32) -> impl Iterator<Item = u32> + use<'_, M> {
        let known = |at: u32| (at != NONE).then_some(at);
        let next = move |at: &u32| known(self.connections[*at as usize].link_next);
        core::iter::successors(known(at), next)
    }

    /// Acts on each connection of a link, which may leave it meanwhile.
    pub fn each_joined(&mut self, link: u32, mut act: impl FnMut(&mut Self, u32)) {
        let mut at = self.links[link as usize].first;
        while at != NONE {
            let next = self.connections[at as usize].link_next;
            act(self, at);
            at = next;
        }
    }

    /// Whether a connection outlives the path of its link.
    pub fn is_kept(&self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let open = connection.phase == Phase::Open && !connection.peer_closed;
        open && !connection.closed_here && self.lanes_of(index) > 1
    }

    /// The socket goes out of use; connections of several lanes stay, and those that our user has
    /// closed: their peer has yet to hear of it. `ended`: the socket has, and when to look why.
    fn link_lost(&mut self, index: u32, ended: Option<Span>) {
        let now = self.now();
        self.lanes_ask(index);
        self.link_phase(index, LinkPhase::Lost);
        self.lost.put(index, true);
        let link = &mut self.links[index as usize];
        if let Some(socket) = &link.socket {
            self.poller.remove(socket.as_fd());
        }
        link.outage = Outage { heard: link.hearing.when(), ended, ..Outage::at(now) };
        link.parting = None;
        link.hearing.owes_pong = None;
        link.code = 0;
        let error = ConnectError::Unreachable(link.peer, libc::ETIMEDOUT);
        self.each_joined(index, |control, at| {
            let connection = &control.connections[at as usize];
            let stays = connection.phase == Phase::Open && connection.closed_here;
            if !stays && !control.is_kept(at) {
                control.connection_lost(at, DownCause::Died, error);
            }
        });
        if ended.is_none() {
            self.outage_note(index);
        }
        let patience = self.vouch_patience(index);
        self.vouch_ask(index, true, patience);
        self.look_by(now);
    }

    /// How long a queue pair may take to hear the peer of a link that is silent, or lost.
    fn vouch_patience(&self, index: u32) -> Span {
        match self.links[index as usize].outage.ended {
            Some(_) if self.links[index as usize].phase == LinkPhase::Lost => ANSWER,
            Some(_) | None => self.outage_limit(),
        }
    }

    /// Reports an outage, once.
    fn outage_note(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if !core::mem::replace(&mut link.outage.noted, true) {
            (self.config.note)(Note::LinkLost { peer: link.peer });
        }
    }

    /// How long a peer may be silent on all lanes: less than its deadline by the time between two
    /// looks, and at least two of the kernel's questions.
    fn outage_limit(&self) -> Span {
        let deadline = match self.config.peer_deadline {
            Span(0) => LIMIT,
            deadline => deadline,
        };
        Span((deadline.0 - deadline.0 / LOOKS).max(self.asks_s() as u64 * 2_000_000_000))
    }

    /// A link may be lost soon: the peer's kernel is asked over the lanes of its connections.
    pub fn lanes_ask(&mut self, index: u32) {
        let now = self.now();
        if !self.links[index as usize].hearing.lanes_asked(now) {
            return;
        }
        self.each_joined(index, |control, at| {
            if control.is_kept(at) {
                (0..control.lanes_of(at)).for_each(|lane| control.lane_ask(at, lane));
            }
        });
        let patience = self.vouch_patience(index);
        self.vouch_ask(index, true, patience);
    }

    /// Seconds between two questions to the peer's kernel on an idle lane.
    pub fn asks_s(&self) -> i32 {
        (self.config.peer_deadline.0 / 4_000_000_000).clamp(1, 32_767) as i32
    }

    /// While there is no link an idle lane's peer is asked by the kernel.
    pub fn lane_ask(&mut self, index: u32, lane: u32) {
        let interval_s = self.asks_s();
        for socket in self.lane_sockets(index, lane).iter().flatten() {
            // one that refuses tells less
            let _ = socket.keep_alive(interval_s);
        }
    }

    /// When the peer of a connection was heard last over its lanes, but for one.
    pub fn others_heard(&self, index: u32, but: u32, now: Instant) -> Instant {
        let mut newest = Instant(0);
        for lane in (0..self.lanes_of(index)).filter(|lane| *lane != but) {
            let entry = &self.lanes[self.lane_place(index, lane) as usize];
            if entry.state != LaneState::Held || entry.stalled {
                continue;
            }
            let sockets = if lane == 0 { &self.streams[index as usize] } else { &entry.streams };
            for heard_ms in sockets.iter().flatten().filter_map(|socket| socket.heard_ms()) {
                let heard = now.0.saturating_sub(u64::from(heard_ms) * 1_000_000);
                newest = newest.max(Instant(heard));
            }
        }
        newest.max(self.when_vouched(index))
    }

    /// How long nothing has come of the host of a link's peer, on the link or any of its streams.
    /// *Cost*: a system call for each of them; for links that end.
    pub fn host_silence(&self, index: u32, now: Instant) -> Span {
        let link = &self.links[index as usize];
        let mut least_ms = match &link.socket {
            Some(Channel::Stream(socket)) => socket.heard_ms(),
            Some(Channel::Record(_)) | None => None,
        };
        for at in self.joined(index) {
            let heard = self.streams[at as usize].iter().flatten().filter_map(|s| s.heard_ms());
            least_ms = least_ms.into_iter().chain(heard).min();
            if self.lanes_of(at) > 1 {
                let since_ms = now.since(self.others_heard(at, 0, now)).0 / 1_000_000;
                least_ms = least_ms.into_iter().chain([since_ms.min(u32::MAX.into()) as u32]).min();
            }
        }
        let least = least_ms.map(|ms| Span::millis(ms.into()));
        // the kernel may know less, when a socket has ended
        least.unwrap_or(link.hearing.silence(now))
    }

    /// What time brings to lost links.
    pub fn outages_look(&mut self, now: Instant) {
        let mut from = 0;
        while let Some(index) = self.lost.next_from(from) {
            from = index + 1;
            let link = &self.links[index as usize];
            let (peer, side) = (link.peer, link.side);
            if self.is_alone(index, now) {
                self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
                continue;
            }
            if self.is_given_up_on(index, now) {
                let silent = now.since(self.links[index as usize].outage.heard);
                self.links[index as usize].ending = Some(Ending::Silent(silent));
                self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
                continue;
            }
            match side {
                Side::Connector => self.redial_look(index, now),
                Side::Listener => self.revive_look(index, now),
            }
        }
    }

    /// Whether a link's socket has ended, all lanes of its connections have, no queue pair hears
    /// the peer, or none its program for as long as it may be silent, and it has not dialled again
    /// in time. *Cost*: a system call per stream until one
    /// stands, the more seldom the longer they do.
    fn is_alone(&mut self, index: u32, now: Instant) -> bool {
        let Some(pause) = self.links[index as usize].outage.ended else { return false };
        let longest_silence = self.outage_limit();
        let longest = Span(longest_silence.0 / LOOKS);
        let outage = &self.links[index as usize].outage;
        let (since, alone) = (outage.since, outage.alone);
        let is_fresh = now.since(since) < longest_silence;
        let lately = if is_fresh { 0 } else { now.0.saturating_sub(longest_silence.0) };
        let lives = self.is_resumed(index)
            || self.is_any(self.links[index as usize].first, |control, at| {
                let mut lanes = 0..control.lanes_of(at);
                lanes.any(|lane| control.is_lane_standing(at, lane))
                    || control.is_vouched_for(at, Instant(lately))
            });
        if lives && now.since(since) >= ALONE_MAX {
            self.outage_note(index);
        }
        let outage = &mut self.links[index as usize].outage;
        outage.ended = Some(Span((pause.0 * 2).min(longest.0)));
        outage.alone = (!lives).then_some(alone.unwrap_or(now));
        let end = outage.alone.map(|alone| alone.after(ALONE_MAX));
        let next = now.after(pause);
        self.look_by(end.map_or(next, |end| next.min(end)));
        // queue pairs of a process that ends may outlive its sockets by a little
        self.vouch_ask(index, false, ANSWER);
        end.is_some_and(|end| now >= end)
    }

    /// Whether a lane's sockets are open at both ends, as far as is known.
    fn is_lane_standing(&self, index: u32, lane: u32) -> bool {
        let entry = &self.lanes[self.lane_place(index, lane) as usize];
        let sockets = if lane == 0 { &self.streams[index as usize] } else { &entry.streams };
        entry.state == LaneState::Held
            && !entry.stalled
            && sockets.iter().any(Option::is_some) // of queue pairs, somebody else says so
            && sockets.iter().flatten().all(|socket| socket.heard_ms().is_some())
    }

    /// Whether no lane has heard the peer of a lost link for too long. One of which it is not known
    /// yet whether a queue pair does is not given up. *Cost*: a system call per stream until one
    /// was heard lately, a few times per limit.
    fn is_given_up_on(&mut self, index: u32, now: Instant) -> bool {
        let limit = self.outage_limit();
        let answer = Span(self.asks_s() as u64 * 1_500_000_000);
        let link = &mut self.links[index as usize];
        let asked = link.hearing.when_lanes_asked().unwrap_or(now);
        let (outage, first) = (&mut link.outage, link.first);
        if now < outage.look_at {
            let at = outage.look_at;
            self.look_by(at);
            return false;
        }
        if now.since(outage.looked).0 > limit.0 / 2 {
            // we were stopped, or suspended with the host: the silence was ours
            outage.heard = now;
        }
        outage.looked = now;
        let (mut heard, enough) = (outage.heard, Instant(now.0.saturating_sub(limit.0 / 2)));
        for at in self.joined_from(first) {
            if heard >= enough {
                break;
            }
            heard = heard.max(self.others_heard(at, NONE, now));
        }
        // who is asked answers within that time
        let end = heard.after(limit).max(asked.after(answer));
        let outage = &mut self.links[index as usize].outage;
        outage.heard = heard;
        let (later, is_whole) = (now.after(Span(limit.0 / LOOKS)), outage.ended.is_none());
        outage.look_at = if end > now { later.min(end) } else { later };
        let next = outage.look_at;
        self.look_by(next);
        let is_known = !self.is_any(first, |control, at| control.is_vouch_pending(at));
        let is_over = is_known && now >= end;
        if !is_over {
            // where all sockets have ended, one silence is enough
            let patience = self.vouch_patience(index);
            self.vouch_ask(index, is_whole, patience);
        }
        is_over
    }

    /// Takes the old socket back into use on which a peer has gone on talking.
    fn revive_look(&mut self, index: u32, now: Instant) {
        let link = &mut self.links[index as usize];
        let Some(Channel::Stream(socket)) = &link.socket else { return };
        if link.outage.ended.is_some() || !matches!(socket.peek(&mut [0; 1]), Ok(more) if more > 0)
        {
            return;
        }
        let words = *link.outage.words.get_or_insert(now);
        if now < words.after(REVIVE) {
            self.look_by(words.after(REVIVE));
        } else if !self.is_resumed(index) && self.watch_socket(index).is_ok() {
            self.link_back(index);
        }
    }

    /// A lost link has a socket that is watched.
    pub fn link_back(&mut self, index: u32) {
        let now = self.now();
        let link = &self.links[index as usize];
        let (peer, since, lost) = (link.peer, link.outage.since, link.phase == LinkPhase::Lost);
        if lost {
            self.outage_note(index);
        }
        self.lost.put(index, false);
        self.links[index as usize].ending = None; // of the old socket
        self.link_phase(index, LinkPhase::Ready);
        self.link_be_patient(index);
        self.hearing_start(index);
        if lost {
            (self.config.note)(Note::LinkBack { peer, lost: now.since(since) });
        }
        self.flush_link(index);
        self.gathered_all(index);
        self.pump(index);
    }

    /// A link over which a connection of several lanes runs is given up by us, not by the kernel:
    /// who meets a socket that is gone would take it for a process that is.
    pub fn link_be_patient(&mut self, index: u32) {
        if let Some(Channel::Stream(socket)) = &self.links[index as usize].socket {
            // one that is reset already is read as such
            let _ = socket.be_patient();
        }
    }

    /// A lost link ends: it is not dialled any more.
    pub fn outage_end(&mut self, index: u32) {
        let link = &mut self.links[index as usize];
        if link.phase != LinkPhase::Lost {
            return;
        }
        let attempt = core::mem::replace(&mut link.outage.redial.attempt, NONE);
        self.lost.put(index, false);
        if attempt != NONE {
            debug_assert_eq!(self.links[attempt as usize].resumes, index);
            self.link_forget(attempt);
        }
    }

    /// Where a link to an endpoint led that is lost now.
    pub fn path_lost(&self, endpoint_id: u128) -> Option<SocketAddr> {
        let mut links = self.lost.all().map(|index| &self.links[index as usize]);
        links.find_map(|link| link.remote.filter(|_| link.peer.endpoint_id == endpoint_id))
    }
}
