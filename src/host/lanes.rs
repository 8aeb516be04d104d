//! The lanes of connections: what the side band brings is opened in the rail, what the machine lets
//! go of is given back to the side band.
#![forbid(unsafe_code)]

use super::endpoint::{ConnectionRail, Endpoint};
use super::log::Level;
use super::machine::{Machine, each};
use super::news::say_of;
use super::shared::SetUp;
use super::stall::PEER_BYTES_MAX;
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::connect::{Rail, STREAMS_MAX};
use crate::fabric::{DownCause, Provider};
use crate::provider::tcp::PeerOpenError;
use crate::transport::LaneView;

/// A lane whose sockets the side band has handed over, and that is not open yet.
#[derive(Copy, Clone, Debug)]
pub(super) struct Fresh {
    pub(super) generation: u32,
    pub(super) streams: [i32; STREAMS_MAX],
    pub(super) stream_count: u8,
}

/// What the data thread knows of one lane.
#[derive(Copy, Clone, Debug)]
pub struct LaneKnown {
    pub(super) fresh: Option<Fresh>,
}

impl LaneKnown {
    /// Nothing.
    pub(super) const NOTHING: LaneKnown = LaneKnown { fresh: None };
}

impl Endpoint {
    /// Lanes of one connection at most.
    fn lanes_each(&self) -> usize {
        self.lanes.len() / self.known.len()
    }

    fn lane_place(&self, index: u32, lane: u8) -> usize {
        index as usize * self.lanes_each() + usize::from(lane)
    }

    /// A connection is new: nothing is known of its lanes.
    pub(super) fn lanes_forget(&mut self, index: u32) {
        let (first, each) = (self.lane_place(index, 0), self.lanes_each());
        for lane in &mut self.lanes[first..first + each] {
            self.lanes_fresh -= u32::from(lane.fresh.take().is_some());
        }
    }

    /// The side band has a lane's sockets.
    #[cold]
    pub(super) fn lane_came(&mut self, index: u32, lane: u8, fresh: Fresh) {
        if usize::from(lane) >= self.lanes_each() {
            return;
        }
        let place = self.lane_place(index, lane);
        let before = self.lanes[place].fresh.replace(fresh);
        self.lanes_fresh += u32::from(before.is_none());
        self.lanes_look();
    }

    /// The side band says that a lane's packets vanish.
    #[cold]
    pub(super) fn lane_gone(&mut self, index: u32, lane: u8, cause: DownCause) {
        if !self.known[index as usize].in_use || usize::from(lane) >= self.lanes_each() {
            return;
        }
        if let Machine::Host(endpoint) = &mut self.machine {
            let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
            endpoint.rail_mut().peer_fail(peer, cause);
        }
    }

    /// The side band says that a connection's peer is gone: what had come is still taken in.
    #[cold]
    pub(super) fn connection_gone(&mut self, index: u32, cause: DownCause) {
        let Machine::Host(endpoint) = &mut self.machine else { return };
        let connection = ConnectionIndex(index);
        let lanes = self.known[index as usize].params.lanes.max(1) as u8;
        if lanes > 1 {
            endpoint.connection_gone(connection, cause);
        }
        for lane in 0..lanes {
            let peer = endpoint.lane_peer(connection, lane);
            endpoint.rail_mut().peer_fail(peer, cause);
        }
    }

    /// Opens the lanes that have come, of connections in use.
    #[cold]
    #[inline(never)]
    pub(super) fn lanes_look(&mut self) {
        let each = self.lanes_each();
        for place in 0..self.lanes.len() {
            let Some(fresh) = self.lanes[place].fresh else { continue };
            let (index, lane) = ((place / each) as u32, (place % each) as u8);
            if self.known[index as usize].in_use && self.lane_open(index, lane, &fresh) {
                self.lanes[place].fresh = None;
                self.lanes_fresh -= 1;
            }
        }
    }

    /// `false`: the rail has no room for it yet.
    fn lane_open(&mut self, index: u32, lane: u8, fresh: &Fresh) -> bool {
        let Machine::Host(endpoint) = &mut self.machine else { return true };
        let connection = ConnectionIndex(index);
        let peer = endpoint.lane_peer(connection, lane);
        let streams = &fresh.streams[..usize::from(fresh.stream_count).min(STREAMS_MAX)];
        match endpoint.rail_mut().peer_open_tcp(peer, streams) {
            Ok(()) => {
                endpoint.rail_mut().peer_is_lane(peer);
                if !endpoint.lane_rejoin(connection, lane, fresh.generation) {
                    // the connection has failed meanwhile
                    let _ = endpoint.rail_mut().peer_detach(peer);
                }
                true
            }
            Err(PeerOpenError::Again) => false,
            Err(PeerOpenError::Index | PeerOpenError::Streams | PeerOpenError::System(_)) => {
                // these sockets are of no use; others are asked for
                self.lane_return(index, lane);
                true
            }
        }
    }

    /// Gives the sockets of lanes that are down back to the side band, which gets others.
    #[cold]
    #[inline(never)]
    pub(super) fn lanes_return(&mut self) {
        loop {
            let Machine::Host(endpoint) = &mut self.machine else { return };
            let Some((connection, lane)) = endpoint.next_lane_down() else { return };
            let peer = endpoint.lane_peer(connection, lane);
            if endpoint.rail_mut().peer_detach(peer).is_ok() {
                self.lane_return(connection.0, lane);
            }
        }
    }

    /// Gives up a lane of a connection in use, as if packets vanished on it: for who wants to see
    /// what becomes of it where there is no socket to break.
    pub fn lane_break(&mut self, connection: Handle, lane: u8) {
        if self.used(connection).is_some() {
            self.lane_gone(connection.index, lane, DownCause::Failed);
        }
    }

    /// What one lane of a connection runs over.
    pub(super) fn lane_rail(&self, index: u32, lane: u8) -> ConnectionRail {
        match (&self.machine, self.known[index as usize].params.rail) {
            (Machine::Loopback(_), _) => ConnectionRail::Loopback,
            (Machine::Host(_), Rail::Shm) if lane == 0 => ConnectionRail::Shm,
            (Machine::Host(_), _) => ConnectionRail::Tcp,
        }
    }

    /// How a lane of a connection is that was used; `None`: there is no such lane.
    pub fn lane_view(&self, connection: Handle, lane: u8) -> Option<LaneView> {
        let index = self.used(connection)?;
        each!(&self.machine, endpoint => endpoint.lane_view(index, lane))
    }

    /// The first socket of a lane that is open, which stays the library's: for who wants to see
    /// what becomes of a lane that breaks.
    pub fn lane_socket(&self, connection: Handle, lane: u8) -> Option<i32> {
        let index = self.used(connection)?;
        match &self.machine {
            Machine::Host(endpoint) => endpoint.rail().socket(endpoint.lane_peer(index, lane)),
            Machine::Loopback(_) => None,
        }
    }

    fn used(&self, connection: Handle) -> Option<ConnectionIndex> {
        let known = self.known.get(connection.index as usize)?;
        let used = known.in_use && known.generation == connection.generation;
        used.then_some(ConnectionIndex(connection.index))
    }

    /// Says of a peer whose report was not believed why that is.
    pub(super) fn lies_tell(&mut self) {
        let Machine::Host(endpoint) = &mut self.machine else { return };
        if let Some((connection, error)) = endpoint.take_report_error() {
            let mut name = [0; PEER_BYTES_MAX];
            let peer = self.peer_name(connection.0, &mut name);
            say_of(Level::Error, format_args!("{peer} breaks the protocol: {error}"));
        }
    }

    fn lane_return(&mut self, index: u32, lane: u8) {
        let generation = self.known[index as usize].generation;
        if let SetUp::Band(band) = &self.shared.set_up {
            // a connection that the band has closed gets no lanes
            let _ = band.lane_wanted(Handle { index, generation }, u32::from(lane));
        }
    }
}
