//! The lanes of connections, between the side band and the rails.
//!
//! - Sockets or queue pairs that the side band brings are opened in the rail.
//! - What the machine lets go of is given back to the side band.
//! - The log names each lane that was lost, and each that is back.
#![forbid(unsafe_code)]

use super::connections::{Connections, PEER_BYTES_MAX};
use super::join;
use super::known::{ConnectionRail, Fresh, LaneKnown, RailView};
use super::pairs::{Pairs, is_timeout};
use crate::base::ids::ConnectionIndex;
use crate::base::units::{Instant, Span};
use crate::connect::{STREAMS_MAX, ends_of};
use crate::fabric::{CloseError, DownCause, PeerLife};
use crate::host::log::RailEnd;
use crate::host::log::event::tell_briefly;
use crate::host::log::life::LifeEvent;
use crate::host::log::rail_news::{Loss, RailAt, packets_tell, rail_back, rail_first, rail_lost};
use crate::host::machine::{Machine, NIC_BYTES_MAX, each};
use crate::provider::rail_set::{Due, PortRail};
use crate::provider::tcp::PeerOpenError;
use crate::transport::LaneView;
use crate::transport::rail::LaneState;
use crate::wire::features::CONNECT_GPUS;

/// The lanes of an endpoint.
pub(in crate::host) struct Lanes {
    /// By connection and lane.
    all: &'static mut [LaneKnown],
    /// Lanes of one connection at most.
    each: usize,
    /// How many of them have come and are not open.
    fresh: u32,
    /// Failures and joins, in the machine's count, of which people were told.
    changes: u64,
    /// When people are to be told something that was held back.
    due: Instant,
    /// Where connections end with their RDMA rail
    /// ([`Options::companions`](crate::host::Options::companions)): losses of rails that were
    /// looked at.
    losses_seen: Option<u64>,
    pub(in crate::host) pairs: Pairs,
}

impl Lanes {
    /// Those of so many connections. `end_with_rdma`: each ends with its RDMA rail.
    pub(in crate::host) fn new(
        all: &'static mut [LaneKnown],
        connections: usize,
        end_with_rdma: bool,
    ) -> Lanes {
        let each = all.len() / connections;
        let losses_seen = end_with_rdma.then_some(0);
        let due = Instant(u64::MAX);
        Lanes { all, each, fresh: 0, changes: 0, due, losses_seen, pairs: Pairs::NEW }
    }

    fn place(&self, index: u32, lane: u8) -> usize {
        index as usize * self.each + usize::from(lane)
    }

    /// Whether sockets have come of lanes that are not open.
    #[inline(always)]
    pub(in crate::host) fn has_fresh(&self) -> bool {
        self.fresh != 0
    }

    /// Whether connections end with their RDMA rail.
    #[inline(always)]
    pub(in crate::host) fn end_with_rdma(&self) -> bool {
        self.losses_seen.is_some()
    }

    /// A connection is new: nothing is known of its lanes.
    pub(in crate::host) fn forget(&mut self, index: u32) {
        let first = self.place(index, 0);
        for lane in &mut self.all[first..first + self.each] {
            self.fresh -= u32::from(lane.fresh.is_some());
            *lane = LaneKnown::NOTHING;
        }
    }

    /// A lane's sockets are open in the rail.
    pub(in crate::host) fn ends_keep(&mut self, index: u32, lane: u8, streams: &[i32]) {
        let place = self.place(index, lane);
        if let Some(known) = self.all.get_mut(place) {
            known.ends = streams.first().and_then(|fd| ends_of(*fd));
        }
    }

    /// The side band has a lane's sockets.
    #[cold]
    pub(in crate::host) fn came(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        fresh: Fresh,
    ) {
        if usize::from(lane) >= self.each {
            return;
        }
        let place = self.place(index, lane);
        let before = self.all[place].fresh.replace(fresh);
        self.fresh += u32::from(before.is_none());
        self.look(connections);
    }

    /// The side band has the peer's end of a lane on a port.
    #[cold]
    pub(in crate::host) fn pair_came(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        generation: u32,
    ) {
        let place = self.place(index, lane);
        let joined = self.pairs.came(connections, index, lane, generation);
        if let (Some(ends), Some(known)) = (joined, self.all.get_mut(place)) {
            known.ends = ends;
        }
    }

    /// A lane's packets vanish, as the side band says.
    #[cold]
    pub(in crate::host) fn gone(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        (cause, silent): (DownCause, Span),
    ) {
        if !connections.known[index as usize].in_use || usize::from(lane) >= self.each {
            return;
        }
        let machine = &*connections.machine;
        let view = machine.lane_view(index, lane);
        let is_in_use = |view: LaneView| matches!(view.state, LaneState::Up | LaneState::Joining);
        // what was said of the last queue pair is no matter of the one that is being prepared
        if machine.port_place(index, lane).is_some() && !view.is_some_and(is_in_use) {
            return;
        }
        let place = self.place(index, lane);
        self.all[place].silent = silent;
        let cause = match cause {
            DownCause::Silent => DownCause::Broken(libc::ETIMEDOUT),
            cause => cause,
        };
        connections.lane_fail(index, lane, cause);
    }

    /// Looks whether connections have lost their RDMA rail, with which they end.
    #[inline]
    pub(in crate::host) fn rdma_lost_look(&mut self, connections: &mut Connections<'_>) {
        let losses = each!(&*connections.machine, endpoint => endpoint.stats().lane_failures);
        if self.losses_seen != Some(losses) {
            self.losses_seen = Some(losses);
            rdma_lost_end(connections, self.each as u8);
        }
    }

    /// Opens the lanes that have come, of connections in use.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn look(&mut self, connections: &mut Connections<'_>) {
        for place in 0..self.all.len() {
            let Some(fresh) = self.all[place].fresh else { continue };
            let (index, lane) = ((place / self.each) as u32, (place % self.each) as u8);
            let in_use = connections.known[index as usize].in_use;
            if in_use && self.open(connections, index, lane, &fresh) {
                self.all[place].fresh = None;
                self.fresh -= 1;
            }
        }
    }

    /// `false`: the rail has no room for it yet.
    fn open(
        &mut self,
        connections: &mut Connections<'_>,
        index: u32,
        lane: u8,
        fresh: &Fresh,
    ) -> bool {
        let connection = ConnectionIndex(index);
        let streams = &fresh.streams[..usize::from(fresh.stream_count).min(STREAMS_MAX)];
        let params = &connections.known[index as usize].params;
        let Machine::Host(endpoint) = &mut *connections.machine else { return true };
        let peer = endpoint.lane_peer(connection, lane);
        let rail = endpoint.rail_mut();
        let opened = rail.peer_open_tcp(peer, streams, params.sums);
        join::threads_say(rail);
        match opened {
            Ok(()) => {
                rail.peer_is_lane(peer);
                if join::has(params, CONNECT_GPUS) {
                    rail.peer_has_gpus(peer);
                }
                if !endpoint.lane_rejoin(connection, lane, fresh.generation) {
                    // the connection has failed meanwhile
                    let _ = endpoint.rail_mut().peer_detach(peer);
                }
                let place = self.place(index, lane);
                self.all[place].silent = Span(0);
                self.ends_keep(index, lane, streams);
                true
            }
            Err(PeerOpenError::Again) => false,
            Err(PeerOpenError::Index | PeerOpenError::Streams | PeerOpenError::System(_)) => {
                // these sockets are of no use; others are asked for
                give_back(connections, index, lane);
                true
            }
        }
    }

    /// Gives the sockets of lanes that are down back to the side band, which gets others.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn give_back_down(&mut self, connections: &mut Connections<'_>) {
        let now = connections.now();
        while let Some((index, lane, place, due)) = pair_due(connections.machine, now) {
            match due {
                Due::Prepare => self.pairs.prepare(connections, index, lane, place),
                Due::Join(generation) => self.pair_came(connections, index, lane, generation),
            }
        }
        while let Machine::Host(endpoint) = &mut *connections.machine
            && let Some((connection, lane)) = endpoint.next_lane_down()
        {
            let peer = endpoint.lane_peer(connection, lane);
            let rail = endpoint.rail_mut();
            let is_port = rail.port_of(peer).is_some();
            // a queue pair that failed while it was joined is gone already
            if rail.peer_detach(peer) == Err(CloseError::Busy) {
                continue;
            }
            match is_port {
                true => self.pairs.offer(connections, connection.0, lane),
                false => give_back(connections, connection.0, lane),
            }
        }
    }

    /// How a lane of a connection in use is; `None`: there is no such lane.
    pub(in crate::host) fn rail_of(
        &self,
        connections: &Connections<'_>,
        index: u32,
        lane: u8,
    ) -> Option<RailView> {
        let machine = &*connections.machine;
        let mut view = machine.lane_view(index, lane)?;
        let rail = connections.lane_rail(index, lane);
        if view.stats.failures > 0 && view.code == 0 && rail != ConnectionRail::Vendor {
            // its stream just ended, or the peer gave it up first; a vendor's codes are its own
            view.code = libc::ECONNRESET;
        }
        // where a connection has one lane, nothing is kept of it
        let kept = self.all.get(self.place(index, lane)).and_then(|known| known.ends);
        let addresses = kept.or_else(|| machine.socket(index, lane).and_then(ends_of));
        let mut nic = [0; NIC_BYTES_MAX];
        let ends = RailEnd::both(machine.nic(index, lane, &mut nic), addresses);
        Some(RailView { lane: view, rail, ends })
    }

    /// Tells people of lanes that were lost or came up, if any have.
    #[inline]
    pub(in crate::host) fn tell(&mut self, connections: &Connections<'_>, now: Instant) {
        let Machine::Host(endpoint) = &*connections.machine else { return };
        let stats = endpoint.stats();
        let changes = stats.lane_failures + stats.lane_joins;
        if changes != self.changes || now >= self.due {
            (self.changes, self.due) = (changes, Instant(u64::MAX));
            self.pairs.ports_tell(connections.machine);
            self.tell_of_all(connections, now.0 / 1_000_000);
        }
    }

    #[cold]
    fn tell_of_all(&mut self, connections: &Connections<'_>, now_ms: u64) {
        for (index, known) in (0u32..).zip(&*connections.known) {
            let several = known.params.lanes > 1;
            // the end of a peer is not the loss of each of its rails
            if !known.in_use || !several || known.gone.is_some() {
                continue;
            }
            for lane in 0..known.params.lanes.min(self.each as u8) {
                self.tell_of(connections, index, lane, now_ms);
            }
        }
    }

    fn tell_of(&mut self, connections: &Connections<'_>, index: u32, lane: u8, now_ms: u64) {
        let machine = &*connections.machine;
        let Some(view) = machine.lane_view(index, lane) else { return };
        let up = view.state == LaneState::Up;
        let (rail, others) = (connections.lane_rail(index, lane), self.count_up(machine, index));
        let place = self.place(index, lane);
        let known = &mut self.all[place];
        if known.failures != view.stats.failures {
            known.failures = view.stats.failures;
            let end = machine.port_end(index, lane);
            known.error = end.and_then(|(port, peer)| port.error(peer));
        }
        let error = known.error;
        let given_up = error.is_some_and(|error| error.is_given_up());
        let in_order = !given_up && may_be_in_order(rail, view.code, others);
        let say = known.told.look(view.stats.failures, up, in_order, now_ms);
        if let Some(due_ms) = say.due_ms {
            self.due = self.due.min(Instant(due_ms * 1_000_000));
        }
        if !say.first && say.losses == 0 && say.back_ms.is_none() {
            return;
        }
        let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
        let peer = connections.peer_name(index, &mut name);
        let nic = machine.nic(index, lane, &mut nic);
        let LaneKnown { ends, silent, .. } = *known;
        let at = RailAt { rail, lane, peer, ends, nic };
        // the first lane is in use from the start, and others join; what is told now was before
        let is_new = lane > 0 && view.stats.joins == u64::from(up);
        if say.first && lane > 0 {
            rail_first(&at);
        }
        if say.losses > 0 {
            let (others, code, times) = (others - u32::from(up), view.code, say.losses);
            let short_alone = view.short_alone && is_timeout(Some(rail), code);
            let is_gone = machine.port(index, lane).is_some_and(PortRail::is_gone);
            let loss =
                Loss { rail, times, is_new, code, silent, short_alone, error, is_gone, others };
            rail_lost(&at, &loss);
        }
        if let Some(away_ms) = say.back_ms {
            rail_back(&at, away_ms, is_new);
        }
        if (say.first && lane > 0) || say.back_ms.is_some() {
            // known where both ends have told how long packets they take
            let end = machine.port_end(index, lane);
            let packets = end.and_then(|(port, peer)| port.packets(peer));
            packets_tell(&at, packets);
        }
    }

    /// How many lanes of a connection are in use.
    fn count_up(&self, machine: &Machine, index: u32) -> u32 {
        (0..self.each as u8).filter(|lane| machine.is_up(index, *lane)).count() as u32
    }
}

/// Whether a rail that was lost may have ended because the peer closes the connection, which
/// the side band says later: rails of libfabric go first, and tell it by a code that says
/// little. Of a connection that waits for an answer when its socket ends, `tcp` of 1.17 says
/// the last errno of its thread, whatever that was about. A peer that never used the
/// connection ends its streams without a goodbye, all at once.
fn may_be_in_order(rail: ConnectionRail, code: i32, lanes_up: u32) -> bool {
    match rail {
        ConnectionRail::Libfabric => true,
        ConnectionRail::Tcp => matches!(code, 0 | libc::ECONNRESET | libc::EPIPE) && lanes_up == 0,
        ConnectionRail::Shm
        | ConnectionRail::Loopback
        | ConnectionRail::Verbs
        | ConnectionRail::Vendor => false,
    }
}

#[cold]
fn rdma_lost_end(connections: &mut Connections<'_>, lanes_max: u8) {
    for index in 0..connections.known.len() as u32 {
        let known = &connections.known[index as usize];
        if known.in_use && known.gone.is_none() {
            for lane in 1..known.params.lanes.min(lanes_max) {
                rdma_rail_end(connections, index, lane);
            }
        }
    }
}

/// Ends a connection whose RDMA rail is that lane, if it was up and is not.
fn rdma_rail_end(connections: &mut Connections<'_>, index: u32, lane: u8) {
    let machine = &*connections.machine;
    let is_lost = |view: &LaneView| view.stats.joins > 0 && view.state != LaneState::Up;
    let Some(view) = machine.lane_view(index, lane).filter(is_lost) else { return };
    let rail = connections.lane_rail(index, lane);
    if rail != ConnectionRail::Verbs {
        return;
    }
    let (mut name, mut nic) = ([0; PEER_BYTES_MAX], [0; NIC_BYTES_MAX]);
    let peer = connections.peer_name(index, &mut name);
    let nic = machine.nic(index, lane, &mut nic);
    tell_briefly(&LifeEvent::Ends { at: &RailAt { rail, lane, peer, ends: None, nic } });
    let code = if view.code == 0 { libc::ECONNRESET } else { view.code };
    let cause = DownCause::Broken(code);
    connections.known[index as usize].gone = Some(cause);
    connections.gone(index, cause, cause);
}

/// A lane on a port that had to wait and need not any more: its connection, itself, the port's
/// place, and what to do.
fn pair_due(machine: &mut Machine, now: Instant) -> Option<(u32, u8, usize, Due)> {
    let Machine::Host(endpoint) = machine else { return None };
    let (peer, place, due) = endpoint.rail_mut().pair_due(now)?;
    let (index, lane) = endpoint.lane_of(peer);
    Some((index as u32, lane, place, due))
}

/// The side band closes a lane's sockets, and makes others.
fn give_back(connections: &Connections<'_>, index: u32, lane: u8) {
    if let Some(band) = connections.shared.band() {
        // a connection that the band has closed gets no lanes
        let _ = band.lane_wanted(connections.handle(index), u32::from(lane));
    }
}

/// Says of a peer whose report was not believed why that is.
pub(in crate::host) fn lies_tell(connections: &mut Connections<'_>) {
    if let Machine::Host(endpoint) = &mut *connections.machine
        && let Some((connection, error)) = endpoint.take_report_error()
    {
        let mut name = [0; PEER_BYTES_MAX];
        let peer = connections.peer_name(connection.0, &mut name);
        tell_briefly(&LifeEvent::Broken { peer, error });
    }
}
