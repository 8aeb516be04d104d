//! Lanes over ports of RDMA or libfabric: each side prepares an end and describes it to the peer
//! (W8.14). A "queue pair" here is either kind of end.
//!
//! Such a lane has no sockets, and the data thread owns its queue pairs. This module sends the ends
//! over the link of the connection. It also keeps the lane's generation, which the connector
//! counts:
//!
//! ```text
//! data thread          connector                                listener
//! has it               Held                                     Held
//! offers a prepared    Held ─► Waiting ─time─► Dialing: ASK     Held ─► Wanted
//!  queue pair
//! the peer's word      Dialing ─ANSWER─► Held: gets the end     Wanted ─ASK─► Held: gets the end
//! has connected it                                              Held: ANSWER
//! offers anew          Held ─► Waiting: GONE, later ASK         Held ─► Wanted: GONE
//!  what it had offered  Dialing ─► Waiting: GONE, later ASK      Wanted: nothing
//!  has ended
//! the peer's GONE      Dialing ─► Waiting; Held: is told        Held: is told
//! a newer ASK                                                   Held: is told, then gets the end
//! ```
//!
//! - The listener connects its end before it answers. So the connector may send as soon as it has
//!   the answer.
//! - The listener sends after it has heard the connector on the queue pair.
//! - The listener prepares a new end for each generation.
//! - The connector prepares a new end only if it has received an end of the listener's. Otherwise
//!   it asks again with the same one: it has not connected that end, so nothing is under way on it.
//! - libfabric rails may send early messages: a connection request, or that an end is closed. Such
//!   a message carries the listener's own token, or it is answered by a failure. After a failure,
//!   both sides prepare new ends for the next generation.
#![forbid(unsafe_code)]

use super::connection::Phase;
use super::control::Control;
use super::error::CloseError;
use super::event::{BandEvent, Rail, Side};
use super::lanes::LaneState;
use super::link::PORTS_AT;
use super::memory::LinkMemory;
use super::note::Note;
use crate::base::slab::Handle;
use crate::base::units::Span;
use crate::fabric::completion::DownCause;
use crate::wire::hello::{CONNECT_PAIRS, FRAME_BYTES_WRITTEN, Frame, RAIL_PORTS, RAIL_TCP};
use crate::wire::pair::{
    LaneEnd, PAIR_ANSWER, PAIR_ASK, PAIR_GONE, PORTS_MAX, PairHello, PortHello, PortList,
};

/// Which ports of two endpoints make lanes: ours, theirs, whether both are of one host; writes the
/// places of ours, lane by lane from the first that has one, and says how many. Both sides must
/// find the same pairs in the same order.
pub type PairPorts = fn(&[PortHello], &[PortHello], bool, &mut [u8; PORTS_MAX]) -> usize;

/// One end of a lane between ports.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PairEnd {
    /// It; of a peer, checked.
    pub end: LaneEnd,
    /// What its device calls the mailbox region of its side.
    pub mailbox_key: u64,
}

impl PairEnd {
    const NONE: PairEnd = PairEnd { end: LaneEnd::NONE, mailbox_key: 0 };
}

/// What is known of a lane's queue pair, beside the table of lanes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pair {
    ours: PairEnd,
    theirs: PairEnd,
    /// The generation that the peer asks for and that is not handed over; 0: none.
    asked: u32,
    /// What we said last, and of which generation.
    word: u8,
    generation: u32,
}

impl Pair {
    /// Nothing.
    pub const NONE: Pair =
        Pair { ours: PairEnd::NONE, theirs: PairEnd::NONE, asked: 0, word: 0, generation: 0 };

    /// Whether our end is one that can find out if the peer is there.
    pub const fn may_vouch(&self) -> bool {
        match self.ours.end {
            LaneEnd::QueuePair(_) | LaneEnd::Shared(_) => true,
            LaneEnd::Vendor(_) => false,
        }
    }
}

/// Ports make further lanes of connections over TCP.
pub(super) fn rails_sound(rails: u32, lanes_max: u32, ports: usize) -> u32 {
    match rails & RAIL_TCP != 0 && lanes_max > 1 && ports > 0 {
        true => rails,
        false => rails & !RAIL_PORTS,
    }
}

impl<M: LinkMemory> Control<M> {
    /// Whether a lane of a connection is one of queue pairs.
    pub fn is_pair(&self, index: u32, lane: u32) -> bool {
        lane != 0 && lane <= u32::from(self.connections[index as usize].pairs)
    }

    fn pair(&mut self, index: u32, lane: u32) -> &mut Pair {
        let place = self.lane_place(index, lane);
        &mut self.pairs[place as usize]
    }

    /// The ports of a link's peer, kept for connections that come later.
    pub fn ports(&mut self, link: u32, list: &PortList) {
        if !self.links[link as usize].has_ports {
            return;
        }
        let mut bytes = [0; FRAME_BYTES_WRITTEN];
        let length = Frame::Ports(*list).encode(&mut bytes);
        let at = link as usize * super::link::BUFFER_BYTES + PORTS_AT;
        self.buffers[at..at + length].copy_from_slice(&bytes[..length]);
        if !core::mem::replace(&mut self.links[link as usize].ported, true) {
            self.gathered_all(link);
        }
    }

    /// Whether a connection that a peer asks for waits for the peer's ports: its streams may be
    /// faster than what the link says behind its last word.
    pub fn awaits_ports(&self, index: u32) -> bool {
        let connection = &self.connections[index as usize];
        let link = &self.links[connection.link as usize];
        connection.peer.features & CONNECT_PAIRS != 0 && link.has_ports && !link.ported
    }

    /// The ports that a link's peer has told of.
    fn ports_of(&self, link: u32) -> PortList {
        let at = link as usize * super::link::BUFFER_BYTES + PORTS_AT;
        let bytes = self.buffers.get(at..at + super::link::PORTS_BYTES);
        match bytes.filter(|_| self.links[link as usize].has_ports).map(Frame::decode) {
            Some(Ok(Frame::Ports(theirs))) => theirs,
            Some(_) | None => PortList::EMPTY,
        }
    }

    /// Our ports that make lanes with those of a link's peer, in the order of the lanes.
    fn pairs_of(&self, link: u32) -> ([u8; PORTS_MAX], usize) {
        let mut places = [0; PORTS_MAX];
        let theirs = self.ports_of(link);
        let same_host = self.links[link as usize].peer.node_id == self.node_id;
        let ours = self.config.ports.as_slice();
        let count = (self.config.pair_ports)(ours, theirs.as_slice(), same_host, &mut places);
        (places, count.min(PORTS_MAX))
    }

    /// Plans the lanes of a connection that is about to be asked for; `false`: no port of ours
    /// reaches one of the peer's.
    pub fn pairs_plan(&mut self, index: u32) -> bool {
        let link = self.connections[index as usize].link;
        let most = self.links[link as usize].lanes.saturating_sub(1);
        let count = (self.pairs_of(link).1 as u32).min(most);
        let connection = &mut self.connections[index as usize];
        connection.pairs = count as u8;
        if count != 0 {
            connection.lanes = 1 + count as u8;
        }
        count != 0
    }

    /// The peer has asked for a connection with lanes of queue pairs: it has those that both have.
    pub fn pairs_admit(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        if connection.peer.features & CONNECT_PAIRS == 0 {
            return;
        }
        let wanted = connection.lanes.max(1) - 1;
        let count = self.pairs_of(connection.link).1.min(usize::from(wanted)) as u8;
        let connection = &mut self.connections[index as usize];
        (connection.pairs, connection.lanes) = (count, 1 + count);
    }

    /// The peer has made a connection, with lanes of queue pairs or without.
    pub fn pairs_accepted(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if connection.pairs == 0 {
            return;
        }
        let agreed = connection.peer.features & CONNECT_PAIRS != 0;
        connection.pairs = if agreed { connection.pairs.min(connection.lanes - 1) } else { 0 };
        connection.lanes = 1 + connection.pairs;
    }

    /// Our ports for the lanes of a connection from lane 1 on, and how many such lanes it has.
    pub fn pair_ports(&self, handle: Handle) -> ([u8; PORTS_MAX], usize) {
        let Some(index) = self.live(handle) else { return ([0; PORTS_MAX], 0) };
        let connection = &self.connections[index as usize];
        match connection.pairs {
            0 => ([0; PORTS_MAX], 0),
            count => {
                let (places, found) = self.pairs_of(connection.link);
                (places, found.min(usize::from(count)))
            }
        }
    }

    /// Our ports and the peer's, whether or not they make lanes, and whether the peer is on our
    /// host; `None`: the connection is gone.
    pub fn ports_towards(&self, handle: Handle) -> Option<(PortList, PortList, bool)> {
        let link = self.connections[self.live(handle)? as usize].link;
        let same_host = self.links[link as usize].peer.node_id == self.node_id;
        Some((self.config.ports, self.ports_of(link), same_host))
    }

    /// The data thread has prepared a queue pair for a lane of which it has let go.
    pub fn pair_offer(
        &mut self,
        handle: Handle,
        lane: u32,
        end: &PairEnd,
    ) -> Result<(), CloseError> {
        let index = self.live(handle).ok_or(CloseError::Stale)?;
        let connection = &self.connections[index as usize];
        if connection.phase != Phase::Open || !self.is_pair(index, lane) {
            return Err(CloseError::Stale);
        }
        let (ended, side) = (connection.peer_closed, connection.side);
        let state = self.lane(index, lane).state;
        if !matches!(
            state,
            LaneState::Held | LaneState::Wanted | LaneState::Waiting | LaneState::Dialing
        ) {
            return Err(CloseError::Stale);
        }
        self.pair(index, lane).ours = *end;
        if !ended && matches!(state, LaneState::Wanted | LaneState::Waiting) {
            return Ok(()); // it takes the place of one that has ended
        }
        self.lane_owes_nothing(index, lane);
        let entry = self.lane(index, lane);
        entry.stalled = false;
        let before = entry.generation;
        match side {
            _ if ended => entry.state = LaneState::Absent,
            Side::Listener => {
                entry.state = LaneState::Wanted;
                if before != 0 && self.pair(index, lane).asked == 0 {
                    self.pair_say(index, lane, PAIR_GONE, before);
                }
                self.pair_await(index, lane);
                self.pair_hand_over(index, lane);
            }
            Side::Connector => {
                self.lane_redial(index, lane);
                if before != 0 && self.lane(index, lane).state == LaneState::Waiting {
                    self.pair_say(index, lane, PAIR_GONE, before);
                }
            }
        }
        Ok(())
    }

    /// The data thread has connected the end of a lane that it was given, and receives on it.
    pub fn pair_answer(&mut self, handle: Handle, lane: u32, generation: u32) {
        let Some(index) = self.live(handle) else { return };
        let side = self.connections[index as usize].side;
        if side != Side::Listener || !self.is_pair(index, lane) {
            return;
        }
        let entry = self.lane(index, lane);
        if entry.state == LaneState::Held && entry.generation == generation {
            self.pair_say(index, lane, PAIR_ANSWER, generation);
        }
    }

    /// Asks for the peer's end of the next generation.
    pub fn pair_ask(&mut self, index: u32, lane: u32) {
        let entry = self.lane(index, lane);
        entry.state = LaneState::Dialing;
        entry.generation += 1;
        let generation = entry.generation;
        self.pair_await(index, lane);
        self.pair_say(index, lane, PAIR_ASK, generation);
    }

    /// The peer's end may take so long to come before somebody is told.
    fn pair_await(&mut self, index: u32, lane: u32) {
        let at = self.deadline();
        self.lane(index, lane).at = at;
        self.lane_due(index, lane, Some(at));
    }

    /// It has not come, and is waited for all the same.
    pub fn pair_awaited(&mut self, index: u32, lane: u32) {
        self.lane_due(index, lane, None);
        let noted = core::mem::replace(&mut self.lane(index, lane).noted, true);
        let link = &self.links[self.connections[index as usize].link as usize];
        if !noted {
            let (peer, silent) = (link.peer, self.config.handshake_deadline);
            (self.config.note)(Note::PairAwaited(peer, lane as u8, silent));
        }
    }

    fn pair_say(&mut self, index: u32, lane: u32, word: u8, generation: u32) {
        let pair = self.pair(index, lane);
        (pair.word, pair.generation) = (word, generation);
        self.connections[index as usize].owes_pairs |= 1 << lane;
        self.flush(index);
    }

    /// The next of the words that a connection owes its peer.
    pub fn pair_frame(&self, index: u32) -> Option<Frame> {
        let connection = &self.connections[index as usize];
        if connection.owes_pairs == 0 || connection.phase != Phase::Open {
            return None;
        }
        let lane = connection.owes_pairs.trailing_zeros();
        let pair = &self.pairs[self.lane_place(index, lane) as usize];
        let hello = PairHello {
            connection: connection.peer.connection,
            mailbox_key: pair.ours.mailbox_key,
            lane_generation: pair.generation,
            lane: lane as u8,
            word: pair.word,
            kind: pair.ours.end.kind(),
        };
        Some(Frame::Pair(hello, pair.ours.end))
    }

    /// What was said last of lanes may have been lost with the link's socket.
    pub fn pairs_say_again(&mut self, index: u32) {
        let lanes = u32::from(self.connections[index as usize].pairs);
        for lane in 1..=lanes {
            if self.pair(index, lane).word != 0 {
                self.connections[index as usize].owes_pairs |= 1 << lane;
            }
        }
    }

    /// The peer says how far it is with a lane's queue pair.
    pub fn paired(&mut self, link: u32, pair: &PairHello, end: &LaneEnd) {
        let Some(index) = self.find(link, pair.connection, Phase::Open) else { return };
        let (lane, generation) = (u32::from(pair.lane), pair.lane_generation);
        if !self.is_pair(index, lane) || generation == 0 {
            return self.nonsense(link);
        }
        let side = self.connections[index as usize].side;
        if self.connections[index as usize].closed_here {
            return;
        }
        match (pair.word, side, end.checked()) {
            (PAIR_GONE, _, _) => self.pair_gone(index, lane, generation),
            (PAIR_ASK, Side::Listener, Ok(end)) => {
                let end = PairEnd { end, mailbox_key: pair.mailbox_key };
                self.pair_asked(index, lane, generation, &end);
            }
            (PAIR_ANSWER, Side::Connector, Ok(end)) => {
                let entry = self.lane(index, lane);
                if entry.state == LaneState::Dialing && entry.generation == generation {
                    let mailbox_key = pair.mailbox_key;
                    self.pair(index, lane).theirs = PairEnd { end, mailbox_key };
                    self.lane_stands(index, lane);
                }
            }
            _ => self.nonsense(link),
        }
    }

    fn pair_asked(&mut self, index: u32, lane: u32, generation: u32, end: &PairEnd) {
        let entry = self.lane(index, lane);
        if generation <= entry.generation || entry.state == LaneState::Absent {
            return; // said again because the link was lost
        }
        let in_use = entry.state == LaneState::Held && entry.generation != 0 && !entry.stalled;
        let pair = self.pair(index, lane);
        (pair.asked, pair.theirs) = (generation, *end);
        if in_use {
            // the peer has let go of the last one
            self.lane_gone(index, lane, DownCause::Failed, Span(0));
        }
        self.pair_hand_over(index, lane);
    }

    fn pair_gone(&mut self, index: u32, lane: u32, generation: u32) {
        let entry = self.lane(index, lane);
        let (state, same) = (entry.state, entry.generation == generation);
        let stalled = entry.stalled;
        let pair = self.pair(index, lane);
        if pair.asked == generation {
            pair.asked = 0;
        }
        match state {
            LaneState::Dialing if same => self.lane_missed(index, lane, libc::ECONNABORTED),
            LaneState::Held if same && !stalled => {
                self.lane_gone(index, lane, DownCause::Failed, Span(0));
            }
            _ => {}
        }
    }

    /// Gives the data thread the end that the peer asks with, if it has one prepared.
    fn pair_hand_over(&mut self, index: u32, lane: u32) {
        let asked = self.pair(index, lane).asked;
        let entry = self.lane(index, lane);
        if entry.state != LaneState::Wanted || asked <= entry.generation {
            return;
        }
        entry.generation = asked;
        self.pair(index, lane).asked = 0;
        self.lane_stands(index, lane);
    }

    /// What the data thread is told of a lane's queue pair.
    pub fn pair_event(&mut self, index: u32, lane: u32) -> BandEvent {
        let generation = self.connections[index as usize].generation;
        let lane_generation = self.lane(index, lane).generation;
        BandEvent::Pair { index, generation, lane: lane as u8, lane_generation }
    }

    /// The peer's end of a generation of a lane, of which the data thread was told. `None`: the
    /// peer has let go of it meanwhile, or we have, and have offered another.
    pub fn pair_end(&mut self, handle: Handle, lane: u32, generation: u32) -> Option<PairEnd> {
        let index = self.live(handle)?;
        let entry = self.is_pair(index, lane).then(|| self.lane(index, lane))?;
        if entry.state != LaneState::Held || entry.generation != generation {
            return None;
        }
        let pair = self.pair(index, lane);
        // what it asks for anew has taken the place of what it asked for before
        (pair.asked == 0).then_some(pair.theirs)
    }

    /// A connection stands: its lanes of queue pairs are the data thread's to prepare.
    pub fn pairs_start(&mut self, index: u32) {
        for lane in 1..=u32::from(self.connections[index as usize].pairs) {
            *self.pair(index, lane) = Pair::NONE;
        }
    }

    /// Takes in whether the peer of a link has ports of a kind that we have, too.
    pub fn ports_take(&mut self, index: u32, rails: u32) {
        let link = &mut self.links[index as usize];
        let both = self.config.rails & rails & RAIL_PORTS != 0;
        link.has_ports = both && link.rail == Rail::Tcp;
    }
}
