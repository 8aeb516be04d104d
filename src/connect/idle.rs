//! Room for links: who gives way when somebody needs a place (W8.3).
//!
//! A link without connections is kept, so that the next connection costs little, until its place is
//! needed: then the one idle longest is closed. Links whose peer owes the last word of the
//! handshake have a part of the table, in which the oldest makes room for the newest, so that
//! hellos without an end keep nobody out. In both cases the peer is told that there is no
//! connection on the link; an attempt of its that was on its way goes on over a new link, and its
//! caller notices nothing.
#![forbid(unsafe_code)]

use super::connection::{NONE, Phase};
use super::control::Control;
use super::error::ConnectError;
use super::event::Side;
use super::link::{Link, LinkPhase};
use super::memory::LinkMemory;
use super::os;
use crate::base::units::Instant;
use crate::fabric::completion::DownCause;
use crate::wire::WIRE_MAJOR;
use crate::wire::hello::{Frame, RefuseReason, RefusedHello};

/// The number of no connection: in a `Closed` it means the link. A live handle is odd.
pub(super) const NO_CONNECTION: u64 = 0;
/// Links whose peers owe the last word of the handshake, if half of the table is not less: more
/// than peers that dial within one round trip, and few enough to look for the oldest each time.
const GREETED_MAX: usize = 1024;

/// Peers that are remembered after their links have given way: more than data streams that cross
/// with the goodbyes of as many links.
const DISMISSED_MAX: usize = 64;

/// Endpoints whose links have given way lately: a stream of theirs that is on its way is late, and
/// no stranger's.
#[derive(Copy, Clone, Debug)]
pub(super) struct Dismissed {
    endpoints: [u128; DISMISSED_MAX],
    next: usize,
}

impl Dismissed {
    /// Nobody.
    pub const NONE: Dismissed = Dismissed { endpoints: [0; DISMISSED_MAX], next: 0 };

    fn note(&mut self, endpoint_id: u128) {
        self.endpoints[self.next] = endpoint_id;
        self.next = (self.next + 1) % DISMISSED_MAX;
    }

    /// Whether it is one of them.
    pub fn knows(&self, endpoint_id: u128) -> bool {
        endpoint_id != 0 && self.endpoints.contains(&endpoint_id)
    }
}

impl<M: LinkMemory> Control<M> {
    /// An entry for a link, if need be that of one without connections. The caller gives it a
    /// phase, or gives it back.
    pub fn link_acquire(&mut self) -> Option<u32> {
        self.worked = true;
        if self.links_free.is_empty() {
            let idle = self.link_oldest(|link| link.phase == LinkPhase::Ready);
            let oldest = idle.or_else(|| self.link_oldest(Link::is_half_open))?;
            self.link_dismiss(oldest);
        }
        let index = self.links_free.pop()?;
        if self.links.len() <= index as usize {
            // they are used in order first; there is room for all
            self.links.push(Link::free());
        }
        // a peer of each link may ask for a connection, whatever this side has open now
        let links = self.links_used();
        self.links[index as usize].streams = self.streams_each(self.config.streams, links);
        self.link_stamp(index);
        Some(index)
    }

    /// Links that are in use.
    pub fn links_used(&self) -> usize {
        self.config.links_max as usize - self.links_free.len()
    }

    /// Makes room for one more peer that owes the last word of the handshake.
    pub fn greeted_bound(&mut self) {
        let limit = (self.config.links_max as usize / 2).clamp(1, GREETED_MAX);
        if self.links_greeted as usize >= limit
            && let Some(oldest) = self.link_oldest(Link::is_greeted)
        {
            self.link_dismiss(oldest);
        }
    }

    /// Something begins or ends for a link: its age counts from now.
    pub fn link_stamp(&mut self, index: u32) {
        self.links_order += 1;
        self.links[index as usize].order = self.links_order;
    }

    /// Of the links like that which no connection uses, the oldest.
    fn link_oldest(&self, like: impl Fn(&Link<M>) -> bool) -> Option<u32> {
        let all = self.links.iter().enumerate();
        let unused = all.filter(|(_, link)| link.connections == 0 && like(link));
        unused.min_by_key(|(_, link)| link.order).map(|(index, _)| index as u32)
    }

    /// Closes a link that no connection uses, and says so.
    pub fn link_dismiss(&mut self, index: u32) {
        if matches!(self.links[index as usize].phase, LinkPhase::ReplySent | LinkPhase::Ready) {
            let reason = RefuseReason::Closed as u32;
            let goodbye = RefusedHello { target: NO_CONNECTION, reason, major: WIRE_MAJOR };
            // one that does not fit need not: the end says nearly the same
            self.send(index, &Frame::Closed(goodbye));
            self.dismissed.note(self.links[index as usize].peer.endpoint_id);
        }
        let resumes = self.links[index as usize].resumes;
        self.link_forget(index);
        if resumes != NONE {
            self.redial_put_off(resumes, index);
        }
    }

    /// The peer has closed a link on which it has no connection.
    pub fn dismissed(&mut self, index: u32) {
        self.attempts_move(index);
        self.each_joined(index, |control, at| {
            let connection = &mut control.connections[at as usize];
            if connection.queued {
                connection.peer_closed = true; // nobody has it on either side
                control.close(at);
            }
        });
        let peer = self.links[index as usize].peer;
        self.link_down(index, DownCause::Closed, ConnectError::PeerDied(peer));
    }

    /// Attempts over a link that stood, and that the peer has given up, go on over a new one.
    pub fn attempts_move(&mut self, index: u32) {
        let (Some(deadline), mut at) = self.attempts_of(index) else { return };
        let Some(new) = self.link_again(index, deadline) else { return };
        // the oldest first, so that they are asked for in the same order again
        while at != NONE {
            let before = self.connections[at as usize].link_before;
            if self.connections[at as usize].is_wanted() {
                self.link_leave(at);
                self.streams_close(at);
                let connection = &mut self.connections[at as usize];
                connection.asked = false;
                connection.owes_hello = false;
                connection.stream_count = 0;
                connection.lanes = 1;
                connection.rings_offset = 0;
                self.link_join(at, new);
            }
            at = before;
        }
    }

    /// The last deadline of a link's attempts, and the oldest of its connections.
    fn attempts_of(&self, index: u32) -> (Option<Instant>, u32) {
        self.joined(index).fold((None, NONE), |(deadline, _), at| {
            let it = &self.connections[at as usize];
            (deadline.max(it.is_wanted().then_some(it.deadline)), at)
        })
    }

    /// A link to the same listener, soon to be dialled. `None`: there is none to be had.
    fn link_again(&mut self, index: u32, deadline: Instant) -> Option<u32> {
        let nonce = os::random().ok()?;
        // not this one: it has connections
        let new = self.link_acquire()?;
        let now = self.now();
        let old = &mut self.links[index as usize];
        let (address, mut route) = (old.address.take(), old.route);
        let (rail, peer, listener) = (old.rail, old.peer, old.entry.listener);
        // not at once: a peer that shows everybody out is not asked without a pause
        route.begin(now, deadline);
        route.again(now);
        let link = &mut self.links[new as usize];
        link.side = Side::Connector;
        link.entry.listener = listener;
        (link.rail, link.peer, link.nonce) = (rail, peer, nonce);
        (link.address, link.route, link.deadline) = (address, route, deadline);
        self.link_phase(new, LinkPhase::Dialing);
        self.link_chain(new);
        self.look_by(route.retry_at);
        Some(new)
    }
}

impl super::connection::Connection {
    /// Whether it is an attempt that its caller waits for.
    fn is_wanted(&self) -> bool {
        self.phase == Phase::Connecting && !self.closed_here
    }
}
