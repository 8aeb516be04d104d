//! The lanes of connections, between the side band and the rails.
//!
//! - Sockets or queue pairs that the side band brings are opened in the rail.
//! - What the machine lets go of is given back to the side band.
//! - The log names each lane that was lost, and each that is back.
#![forbid(unsafe_code)]

use super::join;
use super::known::{ConnectionRail, Fresh, LaneKnown, LanesTold, RailView};
use super::pairs::{NIC_BYTES_MAX, is_timeout};
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::base::units::{Instant, Span};
use crate::connect::{Rail, STREAMS_MAX, ends_of};
use crate::fabric::{CloseError, DownCause, PeerLife};
use crate::host::endpoint::Endpoint;
use crate::host::log::RailEnd;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::LifeEvent;
use crate::host::log::rail_news::{Loss, RailAt, packets_tell, rail_back, rail_first, rail_lost};
use crate::host::log::stall::PEER_BYTES_MAX;
use crate::host::machine::{Machine, each};
use crate::host::shared::SetUp;
use crate::provider::tcp::PeerOpenError;
use crate::transport::LaneView;
use crate::transport::rail::LaneState;
use crate::wire::features::CONNECT_GPUS;

impl Endpoint {
    /// Lanes of one connection at most.
    fn lanes_each(&self) -> usize {
        self.lanes.len() / self.known.len()
    }

    pub(in crate::host) fn lane_place(&self, index: u32, lane: u8) -> usize {
        index as usize * self.lanes_each() + usize::from(lane)
    }

    /// A connection is new: nothing is known of its lanes.
    pub(in crate::host) fn lanes_forget(&mut self, index: u32) {
        let (first, each) = (self.lane_place(index, 0), self.lanes_each());
        for lane in &mut self.lanes[first..first + each] {
            self.lanes_fresh -= u32::from(lane.fresh.is_some());
            *lane = LaneKnown::NOTHING;
        }
    }

    /// A lane's sockets are open in the rail.
    pub(in crate::host) fn lane_ends_keep(&mut self, index: u32, lane: u8, streams: &[i32]) {
        let place = self.lane_place(index, lane);
        if let Some(known) = self.lanes.get_mut(place) {
            known.ends = streams.first().and_then(|fd| ends_of(*fd));
        }
    }

    /// The side band has a lane's sockets.
    #[cold]
    pub(in crate::host) fn lane_came(&mut self, index: u32, lane: u8, fresh: Fresh) {
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
    pub(in crate::host) fn lane_gone(
        &mut self,
        index: u32,
        lane: u8,
        cause: DownCause,
        silent: Span,
    ) {
        if !self.known[index as usize].in_use || usize::from(lane) >= self.lanes_each() {
            return;
        }
        // what was said of the last queue pair is no matter of the one that is being prepared
        if self.is_pair(index, lane) && !self.is_lane_in_use(index, lane) {
            return;
        }
        let place = self.lane_place(index, lane);
        self.lanes[place].silent = silent;
        let cause = match cause {
            DownCause::Silent => DownCause::Broken(libc::ETIMEDOUT),
            cause => cause,
        };
        match &mut self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(ConnectionIndex(index), lane);
                endpoint.rail_mut().peer_fail(peer, cause);
            }
            Machine::Loopback(_) => {}
        };
    }

    fn is_lane_in_use(&self, index: u32, lane: u8) -> bool {
        let connection = ConnectionIndex(index);
        let view = each!(&self.machine, endpoint => endpoint.lane_view(connection, lane));
        view.is_some_and(|view| matches!(view.state, LaneState::Up | LaneState::Joining))
    }

    /// The side band says that a connection's peer is gone: what had come is still taken in.
    #[cold]
    pub(in crate::host) fn connection_gone(&mut self, index: u32, cause: DownCause) {
        let connection = ConnectionIndex(index);
        let lanes = self.known[index as usize].params.lanes.max(1);
        match &mut self.machine {
            Machine::Host(endpoint) => {
                if lanes > 1 {
                    endpoint.connection_gone(connection, cause);
                }
                for lane in 0..lanes {
                    let peer = endpoint.lane_peer(connection, lane);
                    endpoint.rail_mut().peer_fail(peer, cause);
                }
            }
            Machine::Loopback(_) => {}
        };
    }

    /// Looks whether connections have lost their RDMA rail, with which they end.
    #[inline]
    pub(in crate::host) fn rdma_lost_look(&mut self) {
        let losses = each!(&self.machine, endpoint => endpoint.stats().lane_failures);
        if self.losses_seen != Some(losses) {
            self.losses_seen = Some(losses);
            self.rdma_lost_end();
        }
    }

    #[cold]
    fn rdma_lost_end(&mut self) {
        for index in 0..self.known.len() as u32 {
            let known = &self.known[index as usize];
            if known.in_use && known.gone.is_none() {
                for lane in 1..known.params.lanes.min(self.lanes_each() as u8) {
                    self.rdma_rail_end(index, lane);
                }
            }
        }
    }

    /// Ends a connection whose RDMA rail is that lane, if it was up and is not.
    fn rdma_rail_end(&mut self, index: u32, lane: u8) {
        let connection = ConnectionIndex(index);
        let view = each!(&self.machine, endpoint => endpoint.lane_view(connection, lane));
        let is_lost =
            |view: &LaneView| view.stats.joins > 0 && !matches!(view.state, LaneState::Up);
        let Some(view) = view.filter(is_lost) else { return };
        let rail = self.lane_rail(index, lane);
        if rail != ConnectionRail::Verbs {
            return;
        }
        let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
        let peer = self.peer_name(index, &mut name);
        let nic = self.pair_nic(index, lane, &mut nic);
        tell_briefly(&LifeEvent::Ends { at: &RailAt { rail, lane, peer, ends: None, nic } });
        let code = if view.code == 0 { libc::ECONNRESET } else { view.code };
        let cause = DownCause::Broken(code);
        self.known[index as usize].gone = Some(cause);
        self.connection_gone(index, cause);
    }

    /// Opens the lanes that have come, of connections in use.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn lanes_look(&mut self) {
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
        let connection = ConnectionIndex(index);
        let streams = &fresh.streams[..usize::from(fresh.stream_count).min(STREAMS_MAX)];
        let params = &self.known[index as usize].params;
        let (sums, has_gpus) = (params.sums, join::has(params, CONNECT_GPUS));
        let opened = match &mut self.machine {
            Machine::Host(endpoint) => {
                let peer = endpoint.lane_peer(connection, lane);
                let rail = endpoint.rail_mut();
                let opened = rail.peer_open_tcp(peer, streams, sums);
                join::threads_say(rail);
                if opened.is_ok() {
                    rail.peer_is_lane(peer);
                    if has_gpus {
                        rail.peer_has_gpus(peer);
                    }
                    if !endpoint.lane_rejoin(connection, lane, fresh.generation) {
                        // the connection has failed meanwhile
                        let _ = endpoint.rail_mut().peer_detach(peer);
                    }
                }
                opened
            }
            Machine::Loopback(_) => return true,
        };
        match opened {
            Ok(()) => {
                let place = self.lane_place(index, lane);
                let known = &mut self.lanes[place];
                (known.ends, known.silent) = (streams.first().and_then(|fd| ends_of(*fd)), Span(0));
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
    pub(in crate::host) fn lanes_return(&mut self) {
        self.pairs_look();
        loop {
            let (connection, lane, is_port) = match &mut self.machine {
                Machine::Host(endpoint) => {
                    let Some((connection, lane)) = endpoint.next_lane_down() else { return };
                    let peer = endpoint.lane_peer(connection, lane);
                    let rail = endpoint.rail_mut();
                    let device = rail.port_of(peer);
                    // a queue pair that failed while it was joined is gone already
                    if rail.peer_detach(peer) == Err(CloseError::Busy) {
                        continue;
                    }
                    (connection, lane, device.is_some())
                }
                Machine::Loopback(_) => return,
            };
            match is_port {
                true => self.pair_offer(connection.0, lane),
                false => self.lane_return(connection.0, lane),
            }
        }
    }

    /// Gives up a lane of a connection in use, as if packets vanished on it: for who wants to see
    /// what becomes of it where there is no socket to break.
    pub fn lane_break(&mut self, connection: Handle, lane: u8) {
        if self.used(connection).is_some() {
            self.lane_gone(connection.index, lane, DownCause::Failed, Span(0));
        }
    }

    /// What one lane of a connection runs over.
    pub(in crate::host) fn lane_rail(&self, index: u32, lane: u8) -> ConnectionRail {
        if let Some(rail) = self.pair_rail(index, lane) {
            return rail;
        }
        match (&self.machine, self.known[index as usize].params.rail) {
            (Machine::Loopback(_), _) => ConnectionRail::Loopback,
            (_, Rail::Shm) => ConnectionRail::Shm,
            (_, Rail::Tcp) => ConnectionRail::Tcp,
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
        self.socket_of(self.used(connection)?, lane)
    }

    fn socket_of(&self, index: ConnectionIndex, lane: u8) -> Option<i32> {
        match &self.machine {
            Machine::Host(endpoint) => endpoint.rail().socket(endpoint.lane_peer(index, lane)),
            Machine::Loopback(_) => None,
        }
    }

    pub(in crate::host) fn used(&self, connection: Handle) -> Option<ConnectionIndex> {
        let known = self.known.get(connection.index as usize)?;
        let used = known.in_use && known.generation == connection.generation;
        used.then_some(ConnectionIndex(connection.index))
    }

    /// How a lane of a connection in use is; `None`: there is no such lane.
    pub(in crate::host) fn rail_of(&self, index: ConnectionIndex, lane: u8) -> Option<RailView> {
        let mut view = each!(&self.machine, endpoint => endpoint.lane_view(index, lane))?;
        let rail = self.lane_rail(index.0, lane);
        if view.stats.failures > 0 && view.code == 0 && rail != ConnectionRail::Vendor {
            // its stream just ended, or the peer gave it up first; a vendor's codes are its own
            view.code = libc::ECONNRESET;
        }
        // where a connection has one lane, nothing is kept of it
        let kept = self.lanes.get(self.lane_place(index.0, lane)).and_then(|known| known.ends);
        let addresses = kept.or_else(|| self.socket_of(index, lane).and_then(ends_of));
        let mut nic = [0; NIC_BYTES_MAX];
        let ends = RailEnd::both(self.pair_nic(index.0, lane, &mut nic), addresses);
        Some(RailView { lane: view, rail, ends })
    }

    /// Tells people of lanes that were lost or came up, if any have.
    #[inline]
    pub(in crate::host) fn lanes_tell(&mut self, now: Instant) {
        let stats = match &self.machine {
            Machine::Host(endpoint) => endpoint.stats(),
            Machine::Loopback(_) => return,
        };
        let changes = stats.lane_failures + stats.lane_joins;
        if changes != self.lanes_told.changes || now >= self.lanes_told.due {
            let before = self.lanes_told;
            self.lanes_told = LanesTold { changes, due: LanesTold::NOTHING.due, ..before };
            self.ports_tell();
            self.lanes_tell_of(now.0 / 1_000_000);
        }
    }

    #[cold]
    fn lanes_tell_of(&mut self, now_ms: u64) {
        for index in 0..self.known.len() as u32 {
            let known = &self.known[index as usize];
            let several = known.params.lanes > 1;
            // the end of a peer is not the loss of each of its rails
            if !known.in_use || !several || known.gone.is_some() {
                continue;
            }
            for lane in 0..known.params.lanes.min(self.lanes_each() as u8) {
                self.lane_tell(index, lane, now_ms);
            }
        }
    }

    fn lane_tell(&mut self, index: u32, lane: u8, now_ms: u64) {
        let connection = ConnectionIndex(index);
        let view = each!(&self.machine, endpoint => endpoint.lane_view(connection, lane));
        let Some(view) = view else { return };
        let place = self.lane_place(index, lane);
        let up = view.state == LaneState::Up;
        if self.lanes[place].failures != view.stats.failures {
            self.lanes[place].failures = view.stats.failures;
            self.lanes[place].error = self.pair_error_of(index, lane);
        }
        let error = self.lanes[place].error;
        let given_up = error.is_some_and(|error| error.is_given_up());
        let in_order = !given_up && self.may_be_in_order(connection, lane, view.code);
        let (told, failures) = (&mut self.lanes[place].told, view.stats.failures);
        let say = told.look(failures, up, in_order, now_ms);
        if let Some(due_ms) = say.due_ms {
            self.lanes_told.due = self.lanes_told.due.min(Instant(due_ms * 1_000_000));
        }
        if !say.first && say.losses == 0 && say.back_ms.is_none() {
            return;
        }
        let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
        let peer = self.peer_name(index, &mut name);
        let nic = self.pair_nic(index, lane, &mut nic);
        let LaneKnown { ends, silent, .. } = self.lanes[place];
        let at = RailAt { rail: self.lane_rail(index, lane), lane, peer, ends, nic };
        // the first lane is in use from the start, and others join; what is told now was before
        let is_new = lane > 0 && view.stats.joins == u64::from(up);
        if say.first && lane > 0 {
            rail_first(&at);
        }
        if say.losses > 0 {
            let others = self.lanes_up(connection) - u32::from(up);
            let (rail, code, times) = (at.rail, view.code, say.losses);
            let short_alone = view.short_alone && is_timeout(Some(rail), code);
            let is_gone = self.is_pair_gone(index, lane);
            let loss =
                Loss { rail, times, is_new, code, silent, short_alone, error, is_gone, others };
            rail_lost(&at, &loss);
        }
        if let Some(away_ms) = say.back_ms {
            rail_back(&at, away_ms, is_new);
        }
        if (say.first && lane > 0) || say.back_ms.is_some() {
            packets_tell(&at, self.pair_packets(index, lane));
        }
    }

    /// Whether a rail that was lost may have ended because the peer closes the connection, which
    /// the side band says later: rails of libfabric go first, and tell it by a code that says
    /// little. Of a connection that waits for an answer when its socket ends, `tcp` of 1.17 says
    /// the last errno of its thread, whatever that was about. A peer that never used the
    /// connection ends its streams without a goodbye, all at once.
    fn may_be_in_order(&self, connection: ConnectionIndex, lane: u8, code: i32) -> bool {
        match self.lane_rail(connection.0, lane) {
            ConnectionRail::Libfabric => true,
            ConnectionRail::Tcp => {
                let is_ended = matches!(code, 0 | libc::ECONNRESET | libc::EPIPE);
                is_ended && self.lanes_up(connection) == 0
            }
            ConnectionRail::Shm
            | ConnectionRail::Loopback
            | ConnectionRail::Verbs
            | ConnectionRail::Vendor => false,
        }
    }

    /// How many lanes of a connection are in use.
    fn lanes_up(&self, connection: ConnectionIndex) -> u32 {
        let view = |lane| each!(&self.machine, endpoint => endpoint.lane_view(connection, lane));
        (0..self.lanes_each() as u8)
            .filter_map(view)
            .filter(|view| view.state == LaneState::Up)
            .count() as u32
    }

    /// Says of a peer whose report was not believed why that is.
    pub(in crate::host) fn lies_tell(&mut self) {
        let error = match &mut self.machine {
            Machine::Host(endpoint) => endpoint.take_report_error(),
            Machine::Loopback(_) => None,
        };
        if let Some((connection, error)) = error {
            let mut name = [0; PEER_BYTES_MAX];
            let peer = self.peer_name(connection.0, &mut name);
            tell_briefly(&LifeEvent::Broken { peer, error });
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
