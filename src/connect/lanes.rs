//! Lanes of a connection over TCP: each has data streams of its own (W8.10).
//!
//! Lane 0 is up when the connection stands. The others join later, in the same way as a lane that
//! comes back after a failure:
//!
//! 1. The data thread of each side says that it wants the lane, after it let go of the old streams.
//! 2. The connector dials the streams ([`super::lane_dialing`]). A hello on each stream names the
//!    lane and its generation.
//! 3. The listener gathers the streams of one generation.
//! 4. The data thread gets the streams.
//!
//! The connector may dial before the listener's data thread wants the lane. The listener keeps the
//! streams of the newest generation until then.
#![forbid(unsafe_code)]

use super::connection::Phase;
use super::control::Control;
use super::error::CloseError;
use super::event::{BandEvent, STREAMS_MAX, Side};
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::plan::Path;
use super::stalls::Stall;
use super::stream::StreamSocket;
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};
use crate::fabric::completion::DownCause;
use crate::wire::hello::StreamHello;
use std::os::fd::{AsFd, AsRawFd};

/// The sockets of one lane.
pub(super) type LaneSockets = [Option<StreamSocket>; STREAMS_MAX];

/// How far a lane is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum LaneState {
    /// It will not come up, or not again: there is no such lane, or the peer is gone.
    Absent,
    /// The data thread has its streams, or is owed them.
    Held,
    /// We listen: the data thread waits for it.
    Wanted,
    /// We connect: its streams are dialled.
    Dialing,
    /// We connect: it is dialled again when it is time.
    Waiting,
}

/// An entry of the table of lanes.
#[derive(Debug)]
pub(super) struct Lane {
    pub state: LaneState,
    /// What it was handed over with, or is dialled with; 0: it was never up.
    pub generation: u32,
    /// Its streams. Those of lane 0 are in the table of connections' streams.
    pub streams: LaneSockets,
    /// A bit for each stream on which its hello is still to be sent.
    pub unsent: u8,
    /// Streams of a later generation, where the peer dials.
    next: LaneSockets,
    next_generation: u32,
    /// When it is dialled, or what is not whole is given up.
    pub at: Instant,
    /// How long the next dial waits.
    pub backoff: Span,
    /// When it came up last.
    pub stood: Instant,
    pub path: Path,
    /// How long the streams' bytes have been without an answer.
    pub stalls: [Stall; STREAMS_MAX],
    /// For so long that the data thread is told, or owed it.
    pub stalled: bool,
    /// It has been up: its path leads, or led, to the peer.
    pub known: bool,
    /// That it cannot be dialled has been reported.
    pub noted: bool,
    owes_up: bool,
    owes_gone: Option<(DownCause, Span)>,
}

impl Lane {
    /// An entry not in use.
    pub const fn free() -> Lane {
        Lane {
            state: LaneState::Absent,
            generation: 0,
            streams: [const { None }; STREAMS_MAX],
            unsent: 0,
            next: [const { None }; STREAMS_MAX],
            next_generation: 0,
            at: Instant(0),
            backoff: Span(0),
            stood: Instant(0),
            path: Path::OF_LINK,
            stalls: [Stall::NONE; STREAMS_MAX],
            stalled: false,
            known: false,
            noted: false,
            owes_up: false,
            owes_gone: None,
        }
    }

    /// Whether something is gathered that will not be handed over as it is.
    fn is_gathering(&self, stream_count: u8) -> bool {
        let here = self.next.iter().flatten().count();
        here > 0 && here < usize::from(stream_count)
    }

    /// Takes one more of the streams of a generation that the peer dials; those of older ones go.
    /// `false`: it is too old, or there already.
    fn gather(&mut self, socket: StreamSocket, hello: &StreamHello, deadline: Instant) -> bool {
        let generation = hello.lane_generation;
        if generation <= self.generation || generation < self.next_generation {
            return false;
        }
        if generation > self.next_generation {
            self.next = [const { None }; STREAMS_MAX];
            self.next_generation = generation;
        }
        if self.next.iter().all(Option::is_none) {
            self.at = deadline;
        }
        let place = &mut self.next[hello.stream as usize];
        if place.is_some() {
            return false;
        }
        *place = Some(socket);
        true
    }
}

impl<M: LinkMemory> Control<M> {
    /// Where a connection's lane stands in the tables of lanes, which a band whose connections have
    /// one lane each has not.
    pub fn lane_place(&self, index: u32, lane: u32) -> u32 {
        index * self.config.lanes_max + lane
    }

    /// The entry of a lane of a connection that has several.
    pub fn lane(&mut self, index: u32, lane: u32) -> &mut Lane {
        let place = self.lane_place(index, lane);
        &mut self.lanes[place as usize]
    }

    /// The streams of a lane that is dialled or handed over.
    pub fn lane_sockets(&mut self, index: u32, lane: u32) -> &mut LaneSockets {
        match lane {
            0 => &mut self.streams[index as usize],
            lane => &mut self.lane(index, lane).streams,
        }
    }

    /// How many lanes a connection has that may come and go; 0: it has one, which stays.
    pub fn lanes_of(&self, index: u32) -> u32 {
        match self.connections[index as usize].lanes {
            _ if self.lanes.is_empty() => 0,
            1 => 0,
            lanes => u32::from(lanes),
        }
    }

    /// A connection stands: lanes that it has besides the first may join.
    pub fn lanes_start(&mut self, index: u32) {
        let now = self.now();
        let side = self.connections[index as usize].side;
        let lanes = self.lanes_of(index);
        if lanes > 1 {
            self.link_be_patient(self.connections[index as usize].link);
        }
        self.pairs_start(index);
        for lane in 0..lanes {
            let pair = self.is_pair(index, lane);
            let entry = self.lane(index, lane);
            entry.stood = now;
            (entry.state, entry.generation) = match (lane, side) {
                (0, _) => (LaneState::Held, 1),
                (_, _) if pair => (LaneState::Held, 0),
                (_, Side::Listener) => (LaneState::Wanted, 0),
                (_, Side::Connector) => (LaneState::Waiting, 0),
            };
            if entry.state == LaneState::Waiting {
                self.lane_dial(index, lane);
            }
        }
    }

    /// The data thread has let go of a lane's streams, and wants the next ones.
    pub fn lane_wanted(&mut self, handle: Handle, lane: u32) -> Result<(), CloseError> {
        let index = self.live(handle).ok_or(CloseError::Stale)?;
        let connection = &self.connections[index as usize];
        if connection.phase != Phase::Open || lane >= self.lanes_of(index) {
            return Err(CloseError::Stale);
        }
        let ended = connection.peer_closed;
        let side = connection.side;
        if self.is_pair(index, lane) {
            return Err(CloseError::Stale);
        }
        if self.lane(index, lane).state != LaneState::Held {
            return Ok(());
        }
        *self.lane_sockets(index, lane) = [const { None }; STREAMS_MAX];
        self.lane_owes_nothing(index, lane);
        let entry = self.lane(index, lane);
        entry.stalled = false;
        match side {
            _ if ended => entry.state = LaneState::Absent,
            Side::Listener => {
                entry.state = LaneState::Wanted;
                self.lane_hand_over(index, lane);
            }
            Side::Connector => self.lane_redial(index, lane),
        }
        Ok(())
    }

    /// A peer has dialled a stream of a lane; dropped unless it belongs to a connection that stands
    /// and is newer than what came before.
    pub fn lane_hello(&mut self, link: u32, socket: StreamSocket, hello: &StreamHello) {
        let Some(index) = self.met_find(link, hello.connection) else { return };
        let connection = &self.connections[index as usize];
        let (count, lane) = (connection.stream_count, u32::from(hello.lane));
        let fits = connection.phase == Phase::Open
            && !connection.closed_here
            && !connection.peer_closed
            && u32::from(count) == hello.streams
            && lane < self.lanes_of(index)
            && !self.is_pair(index, lane);
        if !fits {
            return;
        }
        let deadline = self.deadline();
        let entry = self.lane(index, lane);
        if entry.state == LaneState::Absent || !entry.gather(socket, hello, deadline) {
            return;
        }
        let (at, gathering) = (entry.at, entry.is_gathering(count));
        self.lane_due(index, lane, gathering.then_some(at));
        self.lane_hand_over(index, lane);
    }

    /// Gives the data thread what was gathered, if it is whole and wanted.
    fn lane_hand_over(&mut self, index: u32, lane: u32) {
        let count = usize::from(self.connections[index as usize].stream_count);
        let entry = self.lane(index, lane);
        let whole = entry.next.iter().flatten().count() == count;
        if entry.state != LaneState::Wanted || !whole {
            return;
        }
        entry.generation = core::mem::take(&mut entry.next_generation);
        let next = core::mem::replace(&mut entry.next, [const { None }; STREAMS_MAX]);
        *self.lane_sockets(index, lane) = next;
        self.lane_stands(index, lane);
    }

    /// A lane is up: the data thread is told.
    pub fn lane_stands(&mut self, index: u32, lane: u32) {
        let now = self.now();
        let entry = self.lane(index, lane);
        entry.state = LaneState::Held;
        entry.known = true;
        entry.stood = now;
        entry.stalls = [Stall::NONE; STREAMS_MAX];
        if core::mem::take(&mut entry.noted) {
            // what could not be dialled can be now
            entry.backoff = Span(0);
        }
        entry.owes_up = true;
        self.lane_due(index, lane, None);
        self.owe_lane(index, lane);
        let link = self.connections[index as usize].link;
        if self.links[link as usize].phase == LinkPhase::Lost {
            self.lane_ask(index, lane);
        }
        self.lanes_darken(index);
    }

    /// A lane's path is gone: the data thread is told.
    pub fn lane_gone(&mut self, index: u32, lane: u32, cause: DownCause, silent: Span) {
        let entry = self.lane(index, lane);
        entry.stalled = true;
        entry.stood_silent(silent);
        entry.owes_gone = Some((cause, silent));
        self.owe_lane(index, lane);
    }

    /// Says when a lane is to be looked at.
    pub fn lane_due(&mut self, index: u32, lane: u32, at: Option<Instant>) {
        let place = self.lane_place(index, lane);
        self.lanes_due.put(place, at.is_some());
        if let Some(at) = at {
            self.look_by(at);
        }
    }

    /// What time brings to lanes.
    pub fn lanes_look(&mut self, now: Instant) {
        let mut from = 0;
        while let Some(place) = self.lanes_due.next_from(from) {
            from = place + 1;
            let (index, lane) = (place / self.config.lanes_max, place % self.config.lanes_max);
            let is_pair = self.is_pair(index, lane);
            let entry = &mut self.lanes[place as usize];
            let (at, state) = (entry.at, entry.state);
            if now < at {
                self.look_by(at);
                continue;
            }
            match state {
                LaneState::Waiting => self.lane_dial(index, lane),
                LaneState::Dialing | LaneState::Wanted if is_pair => {
                    self.pair_awaited(index, lane);
                }
                LaneState::Dialing => self.lane_missed(index, lane, libc::ETIMEDOUT),
                // the rest of a generation has not come
                LaneState::Absent | LaneState::Held | LaneState::Wanted => {
                    entry.next = [const { None }; STREAMS_MAX];
                    self.lanes_due.put(place, false);
                }
            }
        }
    }

    /// A connection's peer is gone: no lane comes up again. The data thread keeps what it has.
    pub fn lanes_rest(&mut self, index: u32) {
        for lane in 0..self.lanes_of(index) {
            self.lane_unplug(index, lane);
            let entry = self.lane(index, lane);
            entry.next = [const { None }; STREAMS_MAX];
            if entry.state != LaneState::Held {
                entry.state = LaneState::Absent;
            }
            self.lane_due(index, lane, None);
        }
    }

    /// Closes all that a connection's lanes have.
    pub fn lanes_close(&mut self, index: u32) {
        self.lanes_rest(index);
        for lane in 0..self.lanes_of(index) {
            *self.lane(index, lane) = Lane::free();
        }
    }

    /// Closes streams that are still dialled.
    pub fn lane_unplug(&mut self, index: u32, lane: u32) {
        let entry = self.lane(index, lane);
        let unsent = core::mem::take(&mut entry.unsent);
        if entry.state != LaneState::Dialing {
            return;
        }
        for stream in 0..STREAMS_MAX {
            let Some(socket) = self.lane_sockets(index, lane)[stream].take() else { continue };
            if unsent & (1 << stream) != 0 {
                self.poller.remove(socket.as_fd());
            }
        }
    }

    fn owe_lane(&mut self, index: u32, lane: u32) {
        self.connections[index as usize].owes_lanes |= 1 << lane;
        self.owe(index, false, None);
    }

    /// Forgets what the data thread is owed of a lane that it has let go of.
    pub fn lane_owes_nothing(&mut self, index: u32, lane: u32) {
        let entry = self.lane(index, lane);
        entry.owes_up = false;
        entry.owes_gone = None;
        let connection = &mut self.connections[index as usize];
        connection.owes_lanes &= !(1 << lane);
        let owes = connection.owes_event();
        self.owing.put(index, owes);
    }

    /// Pushes what is owed of a connection's lanes; `false`: the queue is full.
    pub fn announce_lanes(&mut self, index: u32) -> bool {
        let connection = self.connections[index as usize];
        let generation = connection.generation;
        for lane in 0..self.lanes_of(index) {
            if connection.owes_lanes & (1 << lane) == 0 {
                continue;
            }
            if self.lane(index, lane).owes_up {
                let fd = |socket: &Option<StreamSocket>| {
                    socket.as_ref().map_or(-1, |socket| socket.as_fd().as_raw_fd())
                };
                let event = match self.is_pair(index, lane) {
                    true => self.pair_event(index, lane),
                    false => BandEvent::Lane {
                        index,
                        generation,
                        lane: lane as u8,
                        lane_generation: self.lane(index, lane).generation,
                        streams: self.lane_sockets(index, lane).each_ref().map(fd),
                        stream_count: connection.stream_count,
                    },
                };
                if self.tables.events.push(event).is_err() {
                    return false;
                }
                self.lane(index, lane).owes_up = false;
            }
            if let Some((cause, silent)) = self.lane(index, lane).owes_gone {
                let lane = lane as u8;
                let event = BandEvent::LaneGone { index, generation, lane, cause, silent };
                if self.tables.events.push(event).is_err() {
                    return false;
                }
                self.lane(index, lane.into()).owes_gone = None;
            }
            self.connections[index as usize].owes_lanes &= !(1 << lane);
        }
        true
    }
}
