//! The life of connections and of their lanes, as their owner sees it: opened, looked at, closed.
#![forbid(unsafe_code)]

use super::connection::{Connection, reads};
use super::control::report::ReportError;
use super::endpoint::Endpoint;
use super::limits::{CREDITS, KEPT_BYTES, Limits};
use super::mr::CtrlMr;
use super::rails::table::{CtrlSpan, Fence, Lane, LaneMeter, LaneState, LaneStats, Probe};
use super::records::{ConnectionState, NO_REGION, Queue, SendState};
use super::request::{COMPLETE_BYTES_MAX, RequestError, SubmitError};
use super::send::used::SendQueue;
use super::snapshot::{self, Tick, View, Watched};
use super::stats::Stats;
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span};
use crate::fabric::{CloseError, DownCause, Provider, RailKey, RemoteSpan};
use crate::wire::GROUP_MAX;
use crate::wire::status::{RequestStatus, StatusHello};

/// What the hello of both sides agreed on for one connection.
#[derive(Copy, Clone, Debug)]
pub struct ConnectionSetup {
    /// The rail pulls, in both directions.
    pub pull: bool,
    /// The peer's mailbox for this connection.
    pub mailbox: RemoteSpan,
    /// Longest eager payload that the peer takes.
    pub eager_bytes_max: Bytes,
    /// Receives that the peer keeps for us.
    pub credits: u32,
    /// Groups that may be outstanding at the peer; must equal ours on rails that push.
    pub groups_max: u32,
    /// Lanes that the connection has at both ends, 1 to [`Limits::rails_max`]. Lane 0 is up, the
    /// others come up by [`Endpoint::lane_rejoin`]. With several the rail pushes.
    pub lanes: u8,
    /// A bit for each lane that carries bytes for the others when they cannot, and else as many as
    /// tell how fast it is: what it carries costs more than theirs.
    pub reserve: u8,
    /// Both ends answer probes: a lane is used by whom the other has heard there (W10).
    pub probed: bool,
    /// The peer reads slots that speak for several groups (W3).
    pub reads_runs: bool,
    /// The peer reads in heads which groups its messages have filled (W1).
    pub reads_filled: bool,
    /// Both sides know mailboxes in which the first slots of all groups lie together (W3).
    pub slots_in_rows: bool,
}

/// Why a connection could not be closed yet, or at all.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ConnectionCloseError {
    /// Operations are being fenced: make progress, then call again.
    Again,
    /// No such connection.
    Stale,
}

/// A lane that has been opened anew in the rail.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct LaneJoin {
    /// Which use of it, more than the last one.
    pub generation: u32,
    /// What it calls the peer's mailbox; `None`: as before.
    pub mailbox_key: Option<RailKey>,
    /// Whether the peer may not be able to receive on it yet: it is probed when the peer's probe
    /// has come, which this side must be able to receive.
    pub waits: bool,
}

/// Longest payload of the stream where it is kept to be sent again.
const KEPT_PAYLOAD_MAX: Bytes = Bytes((KEPT_BYTES / 4) as u64);

/// What a connection's lane is doing, for whoever asks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct LaneView {
    /// Where it is.
    pub state: LaneState,
    /// Which use of it.
    pub generation: u32,
    /// The provider's code of its last failure, kept when it is up again; 0: it has not failed, or
    /// without a code.
    pub code: i32,
    /// Bytes per second as measured lately; 0: not known.
    pub speed: u64,
    /// Whether it carries our control.
    pub control: bool,
    /// Whether it has carried a stripe since it joined last, as far as we know: one of ours that
    /// has ended well, or one of the peer's. Not kept of a connection's only lane.
    pub carried: bool,
    /// Bytes of our stripes that have ended well since then.
    pub ended: Bytes,
    /// How long stripes of ours had waited for the next of them to end when it failed last.
    pub stood: Span,
    /// When it failed last, short messages of ours had come to the peer since it joined, and
    /// nothing long: not the long probe, or no stripe.
    pub short_alone: bool,
    /// Counts.
    pub stats: LaneStats,
}

impl<'m, P: Provider> Endpoint<'m, P> {
    /// Checks that a buffer lies in a registered region; says whether that is memory of a GPU.
    #[inline]
    pub fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SubmitError> {
        Ok(self.net.regions.locate(region, address, length)?)
    }

    /// Whether messages of an open connection may lie in memory of GPUs.
    pub fn reaches_device(&self, connection: ConnectionIndex) -> bool {
        let index = self.net.open_index(connection);
        index.is_ok_and(|index| self.net.reaches_device(index))
    }

    /// Ends requests of which no rail knows, as closing would; says whether others are left: rails
    /// may read and write memory of what is posted or offered until it is fenced.
    pub fn requests_give_up(&mut self, connection: ConnectionIndex) -> bool {
        let index = connection.as_usize();
        let mut is_left = false;
        for record in self.net.records() {
            is_left |= self.sends.send_give_up(&mut self.net, index, record);
        }
        for record in self.net.records() {
            is_left |= self.recvs.group_give_up(&mut self.net, index, record);
        }
        is_left
    }

    /// Ends the requests of a connection that is lost and fenced.
    pub(super) fn fence_settle(&mut self, index: usize) {
        let failing = self.net.connections[index].state == ConnectionState::Failing;
        if failing && self.net.is_quiet(index) {
            self.requests_end(index);
            self.net.connections[index].state = ConnectionState::Failed;
        }
        if P::SEVERAL_LANES
            && self.net.connections[index].rails.quarantine
            && self.net.is_quiet(index)
        {
            self.quarantine_end(index);
        }
    }

    /// Ends everything that is outstanding on a connection.
    fn requests_end(&mut self, index: usize) {
        let error = self.net.connections[index].failure.0;
        for record in self.net.records() {
            let at = self.net.send_at(index, record);
            if !matches!(self.sends.records[at].state, SendState::Free | SendState::Done) {
                self.sends.send_end(&mut self.net, index, record, Some(error));
            }
            self.recvs.group_end(&mut self.net, index, at, error);
        }
        self.recvs.left_keep(&mut self.net, index);
        let c = &mut self.net.connections[index];
        c.send.queue = SendQueue::EMPTY;
        c.recv.messages.ahead = Queue::EMPTY;
        c.recv.messages.pulls = Queue::EMPTY;
        c.send.waiting = 0;
        (c.recv.offers.canceling, c.recv.offers.cancels_due) = (None, false);
    }

    /// The same of a connection that is open; `None`: it is not.
    pub fn message_bytes_max(&self, connection: ConnectionIndex) -> Option<Bytes> {
        let index = connection.as_usize();
        self.is_open(connection).then(|| Bytes(self.net.length_max(index)))
    }

    /// Whether requests of the peer's wait for a state line that has not been posted.
    pub fn is_owing(&self, connection: ConnectionIndex) -> bool {
        let c = &self.net.connections[connection.as_usize()];
        c.state == ConnectionState::Open && c.ends_requests()
    }

    /// Whether sends whose requests have ended may have been lost with a lane, and are to be sent
    /// again on another.
    pub fn is_resending(&self, connection: ConnectionIndex) -> bool {
        let c = &self.net.connections[connection.as_usize()];
        c.state == ConnectionState::Open
            && (c.rails.control_lane.blocked || c.send.stream.resend.is_some())
    }

    /// Whether the rail is reading memory of sends that have not ended, to write it to the peer.
    pub fn is_writing(&self, connection: ConnectionIndex) -> bool {
        let index = connection.as_usize();
        let c = &self.net.connections[index];
        let under_way = |record| {
            let send = &self.sends.records[self.net.send_at(index, record)];
            matches!(send.state, SendState::Writing | SendState::Waiting)
        };
        c.state == ConnectionState::Open && !c.pull && self.net.records().any(under_way)
    }

    /// The end of the lane that carries control, messages among it.
    pub fn control_peer(&self, connection: ConnectionIndex) -> PeerIndex {
        self.net.connections[connection.as_usize()].rails.control_lane.peer
    }

    /// The end of a lane, as the rail knows it.
    #[inline(always)]
    pub fn lane_peer(&self, connection: ConnectionIndex, lane: u8) -> PeerIndex {
        self.net.lanes.peer(connection.as_usize(), lane)
    }

    /// A number that changes with whatever the program of a connection's peer does.
    pub fn peer_moves(&self, connection: ConnectionIndex) -> u32 {
        self.net.connections[connection.as_usize()].heard()
    }

    /// Which connection, and which of its lanes, the rail means.
    #[inline(always)]
    pub fn lane_of(&self, peer: PeerIndex) -> (usize, u8) {
        self.net.lane_of(peer)
    }

    /// How a lane is.
    pub fn lane_view(&self, connection: ConnectionIndex, lane: u8) -> Option<LaneView> {
        let c = self.net.connections.get(connection.as_usize())?;
        if c.state == ConnectionState::Free || lane >= c.rails.count {
            return None;
        }
        let at = self.net.lane_at(connection.as_usize(), lane);
        let (entry, meter) =
            (&self.net.lanes.table[at], self.net.lanes.meters.get(at).unwrap_or(&LaneMeter::NONE));
        Some(LaneView {
            state: entry.state,
            generation: entry.generation,
            code: entry.code,
            speed: meter.load.speed,
            control: c.rails.control_lane.lane == lane,
            carried: meter.carried,
            ended: Bytes(meter.ended),
            stood: meter.stood,
            short_alone: meter.short_alone,
            stats: meter.stats,
        })
    }

    /// Takes a connection that the side band has set up into use. The rail's peer of its lane 0 is
    /// open.
    ///
    /// *Panics* when the connection is in use, on a pushing rail the peers' `groups_max` differ, or
    /// there are more lanes than [`super::Limits::rails_max`].
    pub fn connection_open(&mut self, connection: ConnectionIndex, setup: &ConnectionSetup) {
        let index = connection.as_usize();
        assert_eq!(self.net.connections[index].state, ConnectionState::Free);
        assert!(setup.pull || setup.groups_max == self.net.limits.groups_max());
        assert!((1..=self.net.limits.rails_max).contains(&u32::from(setup.lanes)));
        let several = setup.lanes > 1;
        assert!(!(setup.pull && several), "who fails over, pushes");
        let peer = self.net.lanes.peer(connection.as_usize(), 0);
        let mut eager = setup.eager_bytes_max.min(self.net.config.eager_bytes_max);
        if several {
            eager = eager.min(KEPT_PAYLOAD_MAX);
        }
        let sent = self.net.rail.send_payload_max(peer).min(Bytes(COMPLETE_BYTES_MAX));
        self.net.mailboxes.clear(index);
        self.sends.clear(&self.net, index);
        self.recvs.clear(&self.net, index);
        self.net.lanes.clear(index);
        self.pushing += usize::from(!setup.pull);
        self.failing_over += usize::from(several);
        self.net.connections[index] = connection_new(setup, eager.min(sent));
        self.net.lane_opened(index, 0);
        self.net.control_set(index, 0);
        if P::SEVERAL_LANES && several {
            let all = ((1u32 << setup.lanes) - 1) as u8;
            self.net.connections[index].rails.first = all & !setup.reserve;
            for lane in 0..setup.lanes {
                self.net.meter_mut(index, lane).load.reserve = setup.reserve >> lane & 1 == 1;
            }
        }
        let mailbox_key = setup.mailbox.key;
        for lane in 1..setup.lanes {
            self.net.lane_mut(index, lane).mailbox_key = mailbox_key;
        }
        *self.net.lane_mut(index, 0) = Lane {
            state: LaneState::Up,
            fence: Fence::Needed,
            peer_fenced: false,
            generation: 1,
            mailbox_key,
            ..Lane::DOWN
        };
    }

    /// The side band says that a connection's peer is gone, and so do its lanes, one by one, when
    /// what had come on them is taken in: the connection ends with the last.
    pub fn connection_gone(&mut self, connection: ConnectionIndex, cause: DownCause) {
        let c = &mut self.net.connections[connection.as_usize()];
        let waits = c.rails.lost.is_none() || cause != DownCause::Closed;
        if P::SEVERAL_LANES && c.rails.fails_over() && c.rails.up != 0 && waits {
            c.rails.peer_down = true;
            c.rails.lost = Some(cause);
            return;
        }
        self.connection_lost(connection, cause);
    }

    /// A connection's peer is gone, and nothing more of it is to come: the connection ends.
    pub(super) fn connection_lost(&mut self, connection: ConnectionIndex, cause: DownCause) {
        let index = connection.as_usize();
        self.net.connections[index].rails.peer_down = true;
        // what it has said of itself is the better reason
        self.sends.state_look(&mut self.net, &mut self.recvs, index);
        let error = match cause {
            DownCause::Closed => RequestError::PeerClosed,
            DownCause::Died | DownCause::Severed | DownCause::Unheard => RequestError::PeerDied,
            DownCause::Failed => RequestError::Protocol,
            DownCause::Silent => RequestError::Silent,
            DownCause::Broken(code) => RequestError::Fabric(code),
        };
        self.net.connection_fail(index, error);
    }

    /// Why a connection has ended that was not told before, if a peer's report was the reason.
    pub fn take_report_error(&mut self) -> Option<(ConnectionIndex, ReportError)> {
        self.report_error.take()
    }

    /// Whether [`Endpoint::next_lane_down`] has one to name. *Cost*: one load.
    #[inline(always)]
    pub fn has_lane_down(&self) -> bool {
        P::SEVERAL_LANES && !self.net.lanes.down.is_empty()
    }

    /// The next lane that is down: its end may be detached from the rail, and opened again for
    /// [`Endpoint::lane_rejoin`]. Each is named once.
    pub fn next_lane_down(&mut self) -> Option<(ConnectionIndex, u8)> {
        let at = self.net.lanes.down.next_from(0)?;
        self.net.lanes.down.remove(at);
        let (index, lane) = self.net.lane_of(PeerIndex(at as u32));
        Some((ConnectionIndex(index as u32), lane))
    }

    /// Gives up a connection: its outstanding requests end with [`RequestError::Closed`] and can
    /// still be tested until the connection's number is used again.
    pub fn connection_close(
        &mut self,
        connection: ConnectionIndex,
    ) -> Result<(), ConnectionCloseError> {
        let index = connection.as_usize();
        let c = self.net.connections.get_mut(index).ok_or(ConnectionCloseError::Stale)?;
        match c.state {
            ConnectionState::Free => return Err(ConnectionCloseError::Stale),
            ConnectionState::Open => {
                c.state = ConnectionState::Closing;
                c.failure.0 = RequestError::Closed;
                self.net.lanes_fail(index);
                self.net.trouble(index);
            }
            ConnectionState::Failing | ConnectionState::Failed | ConnectionState::Closing => {}
        }
        self.fences_step(index);
        if !self.net.is_quiet(index) {
            self.net.due.work.insert(index);
            return Err(ConnectionCloseError::Again);
        }
        for lane in 0..self.net.connections[index].rails.count {
            match self.net.rail.peer_close(self.net.lane_peer_of(connection.as_usize(), lane)) {
                Ok(()) | Err(CloseError::Stale) => {}
                Err(CloseError::Busy) => return Err(ConnectionCloseError::Again),
            }
            let at = self.net.lane_at(index, lane);
            self.net.lanes.down.remove(at);
        }
        self.requests_end(index);
        self.net.offers_hold(index, false);
        self.pushing -= usize::from(!self.net.connections[index].pull);
        self.failing_over -= usize::from(self.net.fails_over(index));
        self.net.connections[index].state = ConnectionState::Free;
        self.net.due.work.remove(index);
        self.net.due.watch.remove(index);
        self.net.due.troubled.remove(index);
        Ok(())
    }

    /// A lane of a connection that has just been opened goes by keys of its own: those that were
    /// entered at place `key` of [`super::DataMrs::insert`]. Others go by the first.
    pub fn lane_key_set(&mut self, connection: ConnectionIndex, lane: u8, key: u8) {
        self.net.lane_mut(connection.as_usize(), lane).key = key;
    }

    /// A lane that was down has been opened anew in the rail, as `generation`: it is probed, and
    /// used again when the peer has said that the probe has come. `false`: the connection is
    /// closed, or the lane is not down.
    pub fn lane_rejoin(&mut self, connection: ConnectionIndex, lane: u8, generation: u32) -> bool {
        let join = LaneJoin { generation, mailbox_key: None, waits: false };
        self.lane_join(connection, lane, &join)
    }

    /// [`Endpoint::lane_rejoin`] of a lane that says more.
    pub fn lane_join(&mut self, connection: ConnectionIndex, lane: u8, join: &LaneJoin) -> bool {
        let generation = join.generation;
        let index = connection.as_usize();
        let c = &self.net.connections[index];
        let entry = self.net.lane(index, lane.min(c.rails.count - 1));
        let down = c.state == ConnectionState::Open
            && lane < c.rails.count
            && entry.state == LaneState::Down
            && generation > entry.generation;
        if !down {
            return false;
        }
        let (peer_past, code, key) = (entry.peer_past, entry.code, entry.key);
        let mailbox_key = join.mailbox_key.unwrap_or(entry.mailbox_key);
        *self.net.lane_mut(index, lane) = Lane {
            state: LaneState::Joining,
            fence: Fence::Needed,
            peer_fenced: false,
            probe: if join.waits { Probe::Waits } else { Probe::Due },
            key,
            generation,
            peer_past,
            code,
            mailbox_key,
            ..Lane::DOWN
        };
        if let Some(meter) = self.net.lanes.meters.get_mut(self.net.lane_at(index, lane)) {
            meter.joins();
        }
        self.net.lanes.down.remove(self.net.lane_at(index, lane));
        self.net.lane_opened(index, lane);
        self.net.due.work.insert(index);
        if generation < peer_past {
            // the peer's end is dead already, and it will not say so again
            self.lane_fail(index, lane, 0);
        }
        true
    }

    /// Ends the requests of a connection that is lost and cannot be fenced: their memory stays
    /// registered, because somebody may still touch it.
    pub(super) fn requests_abandon(&mut self, index: usize) {
        let c = &mut self.net.connections[index];
        c.failure.0 = RequestError::Unfenced;
        c.rails.quarantine = true;
        if c.state == ConnectionState::Failing {
            c.state = ConnectionState::Failed;
        }
        for record in self.net.records() {
            self.record_quarantine(index, record);
        }
        self.net.stats.unfenced += 1;
        self.requests_end(index);
        self.net.due.work.insert(index); // a fence may have had no room yet
    }

    /// Leaves in a record the regions that it keeps in quarantine, and no others.
    fn record_quarantine(&mut self, index: usize, record: u8) {
        let at = self.net.send_at(index, record);
        let send = &mut self.sends.records[at];
        if matches!(send.state, SendState::Free | SendState::Done) {
            send.region = NO_REGION;
        }
        self.net.regions.pin(send.region);
        let group = self.recvs.groups[at];
        for receive in 0..GROUP_MAX as u8 {
            let open = group.used && receive < group.count && group.done >> receive & 1 == 0;
            let place = self.recvs.receive_at(at, receive);
            let entry = &mut self.recvs.receives[place];
            if !open {
                entry.region = NO_REGION;
            }
            self.net.regions.pin(entry.region);
        }
    }

    /// The fence has come after all: what was in quarantine is given back.
    fn quarantine_end(&mut self, index: usize) {
        self.net.connections[index].rails.quarantine = false;
        for record in self.net.records() {
            let at = self.net.send_at(index, record);
            self.net
                .regions
                .unpin(core::mem::replace(&mut self.sends.records[at].region, NO_REGION));
            for receive in 0..GROUP_MAX as u8 {
                let place = self.recvs.receive_at(at, receive);
                let entry = &mut self.recvs.receives[place];
                self.net.regions.unpin(core::mem::replace(&mut entry.region, NO_REGION));
            }
        }
    }

    /// The control memory, to be registered on the rail before any connection is opened.
    pub fn mailboxes(&self) -> CtrlMr {
        self.net.mailboxes
    }

    /// The rail, for set-up of its peers.
    pub fn rail_mut(&mut self) -> &mut P {
        &mut self.net.rail
    }

    /// The rail.
    pub fn rail(&self) -> &P {
        &self.net.rail
    }

    /// Counts since open.
    pub fn stats(&self) -> &Stats {
        &self.net.stats
    }

    /// The limits it was opened with.
    pub fn limits(&self) -> &Limits {
        &self.net.limits
    }

    /// Whether a connection is open.
    pub fn is_open(&self, connection: ConnectionIndex) -> bool {
        self.net
            .connections
            .get(connection.as_usize())
            .is_some_and(|c| c.state == ConnectionState::Open)
    }

    /// Whether the number is one of a connection that was opened and not closed to its end.
    pub fn is_used(&self, connection: ConnectionIndex) -> bool {
        self.net
            .connections
            .get(connection.as_usize())
            .is_some_and(|c| c.state != ConnectionState::Free)
    }

    /// Whether calls of [`Endpoint::progress`] must be told the time: a connection of several lanes
    /// is open, one waits for its fence, or one holds slots back.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        let troubled = P::SEVERAL_LANES && !self.net.due.troubled.is_empty();
        self.failing_over != 0 || troubled || self.net.holding != 0
    }

    /// Looks at the open requests of a connection; those that it sees first begin to age.
    ///
    /// *Cost*: reads each record of the connection.
    pub fn watch(&mut self, connection: ConnectionIndex, tick: Tick) -> Watched {
        snapshot::watch((&mut self.net, &mut self.sends, &mut self.recvs), connection, tick)
    }

    /// The next open request of a connection that is older than `age_ms` and was not given before.
    pub fn next_stalled(
        &mut self,
        connection: ConnectionIndex,
        age_ms: u32,
        tick: Tick,
    ) -> Option<RequestStatus> {
        let parts = (&mut self.net, &mut self.sends, &mut self.recvs);
        snapshot::next_stalled(parts, connection, age_ms, tick)
    }

    /// One of the open requests of a connection: `at` goes over the records, sends first, to twice
    /// [`super::Limits::requests_max`].
    pub fn request_status(
        &self,
        connection: ConnectionIndex,
        at: u32,
        tick: Tick,
    ) -> Option<RequestStatus> {
        self.view().request_status(connection, at, tick)
    }

    /// How a connection stands, with its oldest requests.
    pub fn status(&self, connection: ConnectionIndex, tick: Tick) -> StatusHello {
        self.view().status(connection, tick)
    }

    pub(super) const fn view(&self) -> View<'_, 'm, P> {
        View { net: &self.net, sends: &self.sends, recvs: &self.recvs }
    }

    /// Plants a fault.
    #[cfg(feature = "proof")]
    pub fn mutant_set(&mut self, mutant: Option<super::mutant::Mutant>) {
        self.net.mutant = mutant;
    }

    /// Everything that decides what the machine does next, but for its mailboxes, its regions and
    /// time.
    #[cfg(feature = "proof")]
    pub fn digest(&self, out: &mut impl core::hash::Hasher) {
        self.view().digest(out);
    }
}

/// A connection that is open, as its set-up says.
fn connection_new(setup: &ConnectionSetup, eager: Bytes) -> Connection {
    let mut c = Connection { state: ConnectionState::Open, pull: setup.pull, ..Connection::FREE };
    c.rails.count = setup.lanes;
    c.rails.probed = setup.probed;
    c.control.lines.reads = reads(setup.reads_runs, setup.reads_filled, setup.slots_in_rows);
    c.control.credits.through = Seq(setup.credits);
    c.control.credits.told = Seq(CREDITS);
    c.control.mailbox = CtrlSpan(setup.mailbox);
    c.send.eager_bytes_max = eager.0 as u32; // COMPLETE_BYTES_MAX at most
    c.recv.messages.free = 0;
    c
}
