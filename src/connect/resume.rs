//! How a lost link gets another socket (W8.11).
//!
//! The side that connected dials the peer's addresses in turn, over a temporary link that serves
//! nothing else. Its hellos name the lost link, and prove that both sides know both numbers of it.
//! When the temporary link would stand, its socket moves into the record of the lost link. That has
//! kept its numbers and connections. Frames that may have been lost are sent again.
//!
//! If an address answered before and now refuses the dial, the peer's process is dead.
#![forbid(unsafe_code)]

use super::connection::{NONE, Phase};
use super::control::Control;
use super::dialing::system;
use super::ending::Ending;
use super::error::ConnectError;
use super::event::{Rail, Side};
use super::interfaces::ip_of;
use super::link::{BUFFER_BYTES, LinkPhase, UNSENT_AT};
use super::memory::LinkMemory;
use super::os;
use super::route::{ROUTE_MAX, Route, is_way};
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;

use crate::wire::hello::{ADDRESSES_MAX, FrameKind, LinkHello, RefuseReason};
use core::net::SocketAddr;

/// How long after a round through all addresses the next one begins; doubled each time.
const BACKOFF: Span = Span::millis(100);
/// Longest wait.
const BACKOFF_MAX: Span = Span::millis(1000);
/// How long an address may leave a dial unanswered: the kernel's second attempt would come then.
const DIAL_MAX: Span = Span::millis(1000);

/// Places of a round: the peer's addresses, those of its handle, and where the link led.
const OF_HANDLE: usize = ADDRESSES_MAX;
const OF_LINK: usize = OF_HANDLE + ROUTE_MAX;

/// How far dialling a lost link again is.
#[derive(Copy, Clone, Debug)]
pub(super) struct Redial {
    /// When it is dialled.
    at: Instant,
    backoff: Span,
    /// Whose turn it is.
    place: usize,
    /// Where it is dialled.
    to: Option<SocketAddr>,
    /// The link that dials, else [`NONE`].
    pub attempt: u32,
}

impl Redial {
    /// At once.
    pub const fn at(now: Instant) -> Redial {
        Redial { at: now, backoff: BACKOFF, place: 0, to: None, attempt: NONE }
    }

    /// All addresses have been tried.
    fn rest(&mut self, now: Instant) {
        self.at = now.after(self.backoff);
        self.backoff = Span((self.backoff.0 * 2).min(BACKOFF_MAX.0));
        self.place = 0;
    }
}

impl<M: LinkMemory> Control<M> {
    /// Dials a lost link when it is time, address by address while they fail at once.
    pub fn redial_look(&mut self, index: u32, now: Instant) {
        loop {
            let redial = self.links[index as usize].outage.redial;
            if redial.attempt != NONE {
                return;
            }
            if now < redial.at {
                self.look_by(redial.at);
                return;
            }
            let found = (redial.place..=OF_LINK)
                .find_map(|place| self.redial_address(index, place).map(|to| (place, to)));
            let redial = &mut self.links[index as usize].outage.redial;
            let Some((place, to)) = found else {
                redial.rest(now);
                continue;
            };
            (redial.place, redial.to) = (place + 1, Some(to));
            match self.redial(index, to) {
                Ok(attempt) => {
                    self.links[index as usize].outage.redial.attempt = attempt;
                    return;
                }
                Err(error) => {
                    if self.redial_missed(index, error) {
                        return;
                    }
                }
            }
        }
    }

    /// The address at a place of the round: each once, and the one that was lost last.
    fn redial_address(&self, index: u32, place: usize) -> Option<SocketAddr> {
        let link = &self.links[index as usize];
        let lost = link.remote?;
        if place == OF_LINK {
            return Some(lost);
        }
        let said = self.addresses_of(index);
        let at = |place: usize| match place {
            OF_HANDLE.. => link.route.addresses().nth(place - OF_HANDLE),
            _ => {
                let hello = said.as_slice().get(place).filter(|hello| hello.port != 0)?;
                ip_of(hello).map(|ip| SocketAddr::new(ip, hello.port))
            }
        };
        let to = at(place)?;
        let again = to == lost || (0..place).any(|before| at(before) == Some(to));
        let same_host = link.peer.node_id == self.node_id;
        let way = is_way(self.config.addresses.as_slice(), to.ip(), same_host);
        (way && !again).then_some(to)
    }

    /// Begins a link that is to take over a lost one, or leaves nothing behind.
    fn redial(&mut self, lost: u32, to: SocketAddr) -> Result<u32, ConnectError> {
        let nonce = os::random().map_err(|error| system(&error))?;
        let index = self.link_acquire().ok_or(ConnectError::LinksFull)?;
        let (now, deadline) = (self.now(), self.deadline());
        let peer = self.links[lost as usize].peer;
        // not chained: nobody else shall find it
        let link = &mut self.links[index as usize];
        link.side = Side::Connector;
        link.rail = Rail::Tcp;
        link.route = Route::only(to);
        link.nonce = nonce;
        link.peer = peer;
        link.deadline = deadline;
        link.resumes = lost;
        link.route.begin(now, deadline);
        link.route.slice_end = link.route.slice_end.min(now.after(DIAL_MAX));
        self.link_phase(index, LinkPhase::Dialing);
        self.look_by(deadline);
        match self.dial_remote(index) {
            Ok(()) => Ok(index),
            Err(error) => {
                self.link_forget(index);
                Err(error)
            }
        }
    }

    /// The link `index` that was to take over `lost` has ended.
    pub fn redial_failed(&mut self, lost: u32, index: u32, error: ConnectError) {
        if self.redial_over(lost, index) && !self.redial_missed(lost, error) {
            self.look_by(self.now());
        }
    }

    /// The link `index` that was to take over `lost` was closed because others want its place: it
    /// is tried again later, not at once, or they would close each other's in turn.
    pub fn redial_put_off(&mut self, lost: u32, index: u32) {
        if self.redial_over(lost, index) {
            // what answers at other addresses is still to be seen
            let now = self.now();
            let redial = &mut self.links[lost as usize].outage.redial;
            redial.at = now.after(redial.backoff);
            let at = redial.at;
            self.look_by(at);
        }
    }

    /// The link `index` is nobody's attempt any more; whether it was that of `lost`.
    fn redial_over(&mut self, lost: u32, index: u32) -> bool {
        let link = &mut self.links[lost as usize];
        let was_its = link.phase == LinkPhase::Lost && link.outage.redial.attempt == index;
        if was_its {
            link.outage.redial.attempt = NONE;
        }
        was_its
    }

    /// An address does not lead to the peer now; `true`: it says that the peer is gone.
    fn redial_missed(&mut self, index: u32, error: ConnectError) -> bool {
        let link = &self.links[index as usize];
        let (peer, to) = (link.peer, link.outage.redial.to);
        let first = link.first;
        let gone = matches!(error, ConnectError::NoListener(_))
            && to.is_some_and(|to| self.is_peers(index, to))
            && !self.is_any(first, |control, at| control.is_vouched_for(at, Instant(0)));
        if gone {
            // the host answers, and nobody is there; a firewall refuses likewise, but then lanes
            // hear the peer that it is not for
            self.links[index as usize].ending = Some(Ending::Closed);
            self.link_down(index, DownCause::Died, ConnectError::PeerDied(peer));
        }
        gone
    }

    /// Whether the peer of a link has answered at an address: others may lead elsewhere.
    fn is_peers(&self, index: u32, to: SocketAddr) -> bool {
        let link = &self.links[index as usize];
        if link.remote == Some(to) {
            return true;
        }
        self.joined(index).any(|at| {
            let of_connection = |lane| &self.lanes[self.lane_place(at, lane) as usize];
            let mut lanes = (0..self.lanes_of(at)).map(of_connection);
            lanes.any(|lane| lane.known && lane.path.to == Some(to))
        })
    }

    /// The peer's endpoint is there, and knows nothing of the link that `index` was to take over:
    /// it has ended there. `false`: `index` is no such link.
    pub fn resume_refused(&mut self, index: u32) -> bool {
        let lost = self.links[index as usize].resumes;
        if lost == NONE {
            return false;
        }
        let peer = self.links[lost as usize].peer;
        self.link_down(lost, DownCause::Unheard, ConnectError::PeerDied(peer));
        true
    }

    /// Whether a peer takes a link over at this moment: the end of the old socket is no death then.
    pub fn is_resumed(&self, index: u32) -> bool {
        self.half_open.all().any(|at| self.links[at as usize].resumes == index)
    }

    /// The link that a peer's hello on `index` takes over.
    pub fn resume_find(&self, index: u32, hello: &LinkHello) -> Option<u32> {
        let endpoint_id = self.links[index as usize].peer.endpoint_id;
        self.chained(endpoint_id).find(|at| {
            let link = &self.links[*at as usize];
            let fits = link.rail == Rail::Tcp && link.side == Side::Listener && link.stands();
            fits && self.resume_verify(index, *at, FrameKind::LinkHello, hello)
        })
    }

    /// Whether a later hello on a link takes over the one that it is to take over, if any.
    pub fn resume_check(
        &self,
        index: u32,
        kind: FrameKind,
        hello: &LinkHello,
    ) -> Result<(), RefuseReason> {
        let lost = self.links[index as usize].resumes;
        if lost == NONE {
            return Ok(());
        }
        // it may have ended, and its entry be another's: then the numbers are
        let stands = self.links[lost as usize].stands();
        if stands && self.resume_verify(index, lost, kind, hello) {
            return Ok(());
        }
        Err(RefuseReason::Protocol)
    }

    /// The handshake of a link that takes over another is through: its socket moves there.
    pub fn resumed(&mut self, index: u32) {
        let lost = self.links[index as usize].resumes;
        self.links[lost as usize].outage.redial.attempt = NONE;
        self.link_unplug_socket(lost);
        let (from, to) = (index as usize * BUFFER_BYTES, lost as usize * BUFFER_BYTES);
        let link = &mut self.links[index as usize];
        let (socket, remote) = (link.socket.take(), link.remote);
        let (received, unsent) = (link.received, link.unsent);
        self.buffers.copy_within(from..from + received, to);
        let row = from + UNSENT_AT;
        self.buffers.copy_within(row..row + unsent, to + UNSENT_AT);
        self.link_forget(index);
        self.paths_keep(lost);
        let link = &mut self.links[lost as usize];
        (link.socket, link.received, link.unsent) = (socket, received, unsent);
        link.remote = remote;
        self.say_again(lost);
        self.link_back(lost);
    }

    /// Lanes that went where the link led stay there; it may lead elsewhere from now on.
    fn paths_keep(&mut self, index: u32) {
        let remote = self.links[index as usize].remote;
        self.each_joined(index, |control, at| {
            for lane in 0..control.lanes_of(at) {
                let path = &mut control.lane(at, lane).path;
                path.to = path.to.or(remote);
            }
        });
    }

    /// What was said last on the old socket may not have arrived. Connections that our user has
    /// closed are over with that: no memory is shared, and what comes for them is known to be late.
    fn say_again(&mut self, index: u32) {
        self.each_joined(index, |control, at| {
            let connection = &mut control.connections[at as usize];
            if connection.phase != Phase::Open {
                return;
            }
            let closed = connection.closed_here;
            connection.owes_taken = connection.is_taking_due();
            connection.owes_closed = closed;
            connection.peer_closed |= closed;
            connection.owes_hello = connection.side == Side::Listener && !connection.peer_closed;
            if !connection.peer_closed {
                control.pairs_say_again(at);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_wait_longer_each_time() {
        let mut redial = Redial::at(Instant(0));
        let mut waits = [0; 6];
        for wait in &mut waits {
            redial.place = OF_LINK + 1;
            redial.rest(Instant(0));
            *wait = redial.at.0 / 1_000_000;
        }
        assert_eq!((waits, redial.place), ([100, 200, 400, 800, 1000, 1000], 0));
    }
}
