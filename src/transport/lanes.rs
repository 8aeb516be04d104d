//! The lanes of a connection in use: opening, posting, failing, fencing, closing.
#![forbid(unsafe_code)]

use super::connection::{Connection, reads};
use super::eager::{OP_FENCE, op_id};
use super::endpoint::{ConnectionCloseError, ConnectionSetup, Endpoint};
use super::limits::{CREDITS, KEPT_BYTES};
use super::mutant::Mutant;
use super::rail::{Answer, CtrlSpan, Flush, Lane, LaneMeter, LaneState, LaneStats, Probe};
use super::records::{ConnectionState, Fence, SendState};
use super::report_error::ReportError;
use super::request::{COMPLETE_BYTES_MAX, RequestError};
use super::schedule::Load;
use crate::base::ids::{ConnectionIndex, PeerIndex, RailGeneration};
use crate::base::seq::Seq;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{CloseError, DownCause, Op, OpId, OpKind, PostError, Posted, Provider};

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

impl<P: Provider> Endpoint<'_, P> {
    /// The end of a lane, as the rail knows it.
    #[inline(always)]
    pub fn lane_peer(&self, connection: ConnectionIndex, lane: u8) -> PeerIndex {
        PeerIndex(connection.0 << self.lane_bits | u32::from(lane))
    }

    /// A number that changes with whatever the program of a connection's peer does.
    pub fn peer_moves(&self, connection: ConnectionIndex) -> u32 {
        self.connections[connection.as_usize()].heard()
    }

    /// Which connection, and which of its lanes, the rail means.
    #[inline(always)]
    pub fn lane_of(&self, peer: PeerIndex) -> (usize, u8) {
        if !P::SEVERAL_LANES {
            return (peer.as_usize(), 0);
        }
        let lane = peer.0 & ((1 << self.lane_bits) - 1);
        (peer.as_usize() >> self.lane_bits, lane as u8)
    }

    /// Whether a lane may die without its connection.
    #[inline(always)]
    pub(super) fn fails_over(&self, index: usize) -> bool {
        P::SEVERAL_LANES && self.connections[index].rails.fails_over()
    }

    #[inline(always)]
    pub(super) fn lane_at(&self, index: usize, lane: u8) -> usize {
        index << self.lane_bits | usize::from(lane)
    }

    #[inline(always)]
    pub(super) fn lane(&self, index: usize, lane: u8) -> &Lane {
        &self.lanes[self.lane_at(index, lane)]
    }

    #[inline(always)]
    pub(super) fn lane_mut(&mut self, index: usize, lane: u8) -> &mut Lane {
        let at = self.lane_at(index, lane);
        &mut self.lanes[at]
    }

    /// What a lane of several carries.
    #[inline]
    pub(super) fn meter_mut(&mut self, index: usize, lane: u8) -> &mut LaneMeter {
        let at = self.lane_at(index, lane);
        &mut self.meters[at]
    }

    /// How a lane is.
    pub fn lane_view(&self, connection: ConnectionIndex, lane: u8) -> Option<LaneView> {
        let c = self.connections.get(connection.as_usize())?;
        if c.state == ConnectionState::Free || lane >= c.rails.count {
            return None;
        }
        let at = self.lane_at(connection.as_usize(), lane);
        let (entry, meter) = (&self.lanes[at], self.meters.get(at).unwrap_or(&LaneMeter::NONE));
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

    /// Whether calls of [`Endpoint::progress`] must be told the time: a connection of several lanes
    /// is open, one waits for its fence, or one holds slots back.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        let troubled = P::SEVERAL_LANES && !self.troubled.is_empty();
        self.failing_over != 0 || troubled || self.holding != 0
    }

    /// Takes a connection that the side band has set up into use. The rail's peer of its lane 0 is
    /// open.
    ///
    /// *Panics* when the connection is in use, on a pushing rail the peers' `groups_max` differ, or
    /// there are more lanes than [`super::Limits::rails_max`].
    pub fn connection_open(&mut self, connection: ConnectionIndex, setup: &ConnectionSetup) {
        let index = connection.as_usize();
        assert_eq!(self.connections[index].state, ConnectionState::Free);
        assert!(setup.pull || setup.groups_max == self.limits.groups_max());
        assert!((1..=self.limits.rails_max).contains(&u32::from(setup.lanes)));
        let several = setup.lanes > 1;
        assert!(!(setup.pull && several), "who fails over, pushes");
        let peer = self.lane_peer(connection, 0);
        let mut eager = setup.eager_bytes_max.min(self.config.eager_bytes_max);
        if several {
            eager = eager.min(KEPT_PAYLOAD_MAX);
        }
        let sent = self.rail.send_payload_max(peer).min(Bytes(COMPLETE_BYTES_MAX));
        self.mailboxes.clear(index);
        self.records_clear(index);
        self.pushing += usize::from(!setup.pull);
        self.failing_over += usize::from(several);
        self.connections[index] = connection_new(peer, setup, eager.min(sent));
        if P::SEVERAL_LANES && several {
            let all = ((1u32 << setup.lanes) - 1) as u8;
            self.connections[index].rails.first = all & !setup.reserve;
            for lane in 0..setup.lanes {
                self.meter_mut(index, lane).load.reserve = setup.reserve >> lane & 1 == 1;
            }
        }
        let mailbox_key = setup.mailbox.key;
        for lane in 1..setup.lanes {
            self.lane_mut(index, lane).mailbox_key = mailbox_key;
        }
        *self.lane_mut(index, 0) = Lane {
            state: LaneState::Up,
            fence: Fence::Needed,
            peer_fenced: false,
            generation: 1,
            mailbox_key,
            ..Lane::DOWN
        };
    }

    /// By lane, the stripes of a send that it has carried. Where there is one lane at most, nobody
    /// asks.
    #[inline]
    pub(super) fn carried_mut(&mut self, send_at: usize) -> &mut [u64] {
        let (first, _) = self.carried_place(send_at);
        &mut self.carried[first..first + (1 << self.lane_bits)]
    }

    /// The same, to look at.
    pub(super) fn carried_of(&self, send_at: usize) -> &[u64] {
        let (first, _) = self.carried_place(send_at);
        &self.carried[first..first + (1 << self.lane_bits)]
    }

    /// The stripes of a send that the peer has said it has.
    #[inline]
    pub(super) fn arrived_mut(&mut self, send_at: usize) -> &mut u64 {
        let (first, each) = self.carried_place(send_at);
        &mut self.carried[first + each - 1]
    }

    /// Nothing of a send was carried yet.
    #[inline]
    pub(super) fn carried_clear(&mut self, send_at: usize) {
        if self.lane_bits != 0 {
            let (first, each) = self.carried_place(send_at);
            self.carried[first..first + each].fill(0);
        }
    }

    #[inline]
    fn carried_place(&self, send_at: usize) -> (usize, usize) {
        let each = (1 << self.lane_bits) + 1;
        (send_at * each, each)
    }

    /// Posts an op on one lane and keeps count of what is in flight.
    #[inline]
    pub(super) fn post_on(
        &mut self,
        index: usize,
        lane: u8,
        id: OpId,
        kind: OpKind,
    ) -> Result<Posted, PostError> {
        let peer = self.lane_peer(ConnectionIndex(index as u32), lane);
        let result = self.rail.post(&Op { id, peer, kind }, self.now);
        match result {
            Ok(Posted::Pending) => self.lane_mut(index, lane).ops_in_flight += 1,
            Ok(Posted::Done) => {}
            Err(PostError::Again) => self.stats.again += 1,
            Err(PostError::PeerDown | PostError::Unsupported) => {}
        }
        result
    }

    /// Posts an op of control.
    #[inline]
    pub(super) fn post(
        &mut self,
        index: usize,
        id: OpId,
        kind: OpKind,
    ) -> Result<Posted, PostError> {
        self.post_on(index, self.connections[index].rails.control_lane.lane, id, kind)
    }

    /// A lane carries nothing more: it failed, or the peer says so. What it carried is sorted out
    /// when both sides have fenced it. The connection goes on, if it has others.
    pub(super) fn lane_fail(&mut self, index: usize, lane: u8, code: i32) {
        let entry = self.lane_mut(index, lane);
        let joining = match entry.state {
            LaneState::Joining => true,
            LaneState::Up => false,
            LaneState::Down | LaneState::Failing | LaneState::Fenced => return,
        };
        entry.state = LaneState::Failing;
        entry.fence = Fence::Needed;
        let held = core::mem::take(&mut entry.flush) != Flush::No;
        // what has only been probed has carried nothing that anybody waits for
        entry.peer_fenced = joining;
        let probe = joining.then_some(entry.probe);
        (entry.probe, entry.answer) = (Probe::No, Answer::No);
        entry.code = code;
        entry.failed_at = Instant(0);
        let now = self.now;
        self.meter_mut(index, lane).failed(probe, now);
        let c = &mut self.connections[index];
        // what was held for the peer's word is sorted out with the lane
        c.rails.control_lane.blocked &= !held;
        c.rails.up &= !(1 << lane);
        c.control.report.due = true;
        if c.control.report.unread_on == Some(lane) {
            c.control.report.lost = true;
        }
        if c.control.report.read_on == Some(lane) {
            c.control.report.read_due = true;
        }
        if !joining && lane == c.rails.control_lane.lane && !c.rails.control_lane.blocked {
            c.rails.control_lane.blocked = true;
            c.control.epoch = c.control.epoch.wrapping_add(1);
        }
        let (is_stranded, lost) = (c.rails.up == 0, c.rails.lost.filter(|_| c.rails.up == 0));
        if is_stranded {
            self.strand(index);
        }
        self.stats.lane_failures += 1;
        self.news += 1;
        self.work.insert(index);
        self.troubled.insert(index);
        if let Some(cause) = lost {
            self.connection_lost(ConnectionIndex(index as u32), cause);
        }
    }

    /// Posts the fences of failed lanes; says whether one had no room.
    pub(super) fn fences_step(&mut self, index: usize) -> bool {
        let mut remain = false;
        for lane in 0..self.connections[index].rails.count {
            if self.lane(index, lane).state == LaneState::Failing {
                remain |= self.lane_fence(index, lane);
            }
        }
        self.fence_settle(index); // no lane may have been left to fence
        remain
    }

    /// Fences one lane in both directions; says whether the rail had no room for it.
    fn lane_fence(&mut self, index: usize, lane: u8) -> bool {
        if self.is_mutant(Mutant::FenceNever) {
            return false;
        }
        if self.is_mutant(Mutant::FenceSkipped) {
            self.lane_mut(index, lane).fence = Fence::Holds;
        }
        if self.lane(index, lane).fence == Fence::Needed {
            let generation = RailGeneration(self.lane(index, lane).generation);
            match self.post_on(index, lane, op_id(OP_FENCE, 0, 0), OpKind::Fence { generation }) {
                Ok(Posted::Pending) => {
                    let entry = self.lane_mut(index, lane);
                    entry.fence = Fence::Posted;
                    entry.ops_in_flight -= 1; // answered by `Fenced`, not counted as an op
                }
                Err(PostError::Again) => return true,
                // a rail that cannot even be asked has forgotten the peer
                Ok(Posted::Done) | Err(PostError::PeerDown | PostError::Unsupported) => {
                    self.lane_mut(index, lane).fence = Fence::Holds;
                }
            }
        }
        self.lane_settle(index, lane);
        false
    }

    /// A fence holds.
    pub(super) fn fenced(&mut self, peer: PeerIndex) {
        let (index, lane) = self.lane_of(peer);
        self.lane_mut(index, lane).fence = Fence::Holds;
        self.lane_settle(index, lane);
    }

    /// Goes on with a lane, or a connection, of which nothing is in flight any more.
    pub(super) fn lane_settle(&mut self, index: usize, lane: u8) {
        let entry = self.lane(index, lane);
        if entry.state != LaneState::Failing || !entry.is_quiet() {
            return;
        }
        self.lane_fenced(index, lane);
        match self.connections[index].state {
            ConnectionState::Open => {
                if P::SEVERAL_LANES && self.lane(index, lane).peer_fenced {
                    self.lane_reconcile(index, lane);
                }
            }
            _ => self.fence_settle(index),
        }
    }

    /// A lane is fenced here: its operations read no source any more, and what came on it is known.
    fn lane_fenced(&mut self, index: usize, lane: u8) {
        self.lane_mut(index, lane).state = LaneState::Fenced;
        let several = self.fails_over(index);
        if several {
            self.meter_mut(index, lane).load.reset();
        }
        for record in self.records() {
            let at = self.send_at(index, record);
            let carried = match several {
                true => self.carried_mut(at)[usize::from(lane)],
                false => 0,
            };
            if carried != 0 && self.sends[at].state != SendState::Free {
                self.sends[at].written |= carried;
                self.send_settle(index, record);
            }
        }
        self.ahead_drop(index, lane);
        self.connections[index].control.report.due = true;
        self.work.insert(index);
    }

    /// Whether nothing is in flight on a connection any more.
    pub(super) fn is_quiet(&self, index: usize) -> bool {
        let count = self.connections[index].rails.count;
        (0..count).all(|lane| self.lane(index, lane).is_quiet())
    }

    /// Nothing more is posted on any lane; each that was in use is fenced.
    pub(super) fn lanes_fail(&mut self, index: usize) {
        for lane in 0..self.connections[index].rails.count {
            let entry = self.lane_mut(index, lane);
            if matches!(entry.state, LaneState::Up | LaneState::Joining) {
                entry.state = LaneState::Failing;
                entry.fence = Fence::Needed;
                entry.failed_at = Instant(0);
            }
        }
        self.connections[index].rails.up = 0;
    }

    /// The provider says that nothing more will come on a lane.
    pub(super) fn peer_went_down(&mut self, peer: PeerIndex, cause: DownCause) {
        let (index, lane) = self.lane_of(peer);
        if !self.fails_over(index) {
            return self.connection_lost(ConnectionIndex(index as u32), cause);
        }
        let state = self.lane(index, lane).state;
        let in_use = matches!(state, LaneState::Up | LaneState::Joining);
        let failed = matches!(state, LaneState::Failing | LaneState::Fenced);
        if let (DownCause::Broken(code), true) = (cause, failed && self.lane(index, lane).code == 0)
        {
            // the peer's word has come first, and says no code
            self.lane_mut(index, lane).code = code;
        }
        if self.connections[index].state != ConnectionState::Open || !in_use {
            return;
        }
        match cause {
            DownCause::Closed => self.lane_closed(index, lane),
            DownCause::Broken(code) => self.lane_fail(index, lane, code),
            DownCause::Died
            | DownCause::Severed
            | DownCause::Unheard
            | DownCause::Failed
            | DownCause::Silent => {
                self.lane_fail(index, lane, 0);
            }
        }
        // what was sent on others before may still be on its way
        let c = &self.connections[index];
        let closed = |lane: &u8| self.lane(index, *lane).closed;
        let joins = |lane: &u8| self.lane(index, *lane).state == LaneState::Joining;
        let open = |lane: &u8| (c.rails.up >> *lane & 1 == 1 || joins(lane)) && !closed(lane);
        if (0..c.rails.count).any(|lane| closed(&lane))
            && !(0..c.rails.count).any(|lane| open(&lane))
        {
            self.connection_lost(ConnectionIndex(index as u32), DownCause::Closed);
        }
    }

    /// The side band says that a connection's peer is gone, and so do its lanes, one by one, when
    /// what had come on them is taken in: the connection ends with the last.
    pub fn connection_gone(&mut self, connection: ConnectionIndex, cause: DownCause) {
        let c = &mut self.connections[connection.as_usize()];
        let waits = c.rails.lost.is_none() || cause != DownCause::Closed;
        if P::SEVERAL_LANES && c.rails.fails_over() && c.rails.up != 0 && waits {
            c.rails.peer_down = true;
            c.rails.lost = Some(cause);
            return;
        }
        self.connection_lost(connection, cause);
    }

    /// A connection's peer is gone, and nothing more of it is to come: the connection ends.
    fn connection_lost(&mut self, connection: ConnectionIndex, cause: DownCause) {
        let index = connection.as_usize();
        self.connections[index].rails.peer_down = true;
        // what it has said of itself is the better reason
        self.state_look(index);
        let error = match cause {
            DownCause::Closed => RequestError::PeerClosed,
            DownCause::Died | DownCause::Severed | DownCause::Unheard => RequestError::PeerDied,
            DownCause::Failed => RequestError::Protocol,
            DownCause::Silent => RequestError::Silent,
            DownCause::Broken(code) => RequestError::Fabric(code),
        };
        self.connection_fail(index, error);
    }

    /// Why a connection has ended that was not told before, if a peer's report was the reason.
    pub fn take_report_error(&mut self) -> Option<(ConnectionIndex, ReportError)> {
        self.report_error.take()
    }

    /// Whether [`Endpoint::next_lane_down`] has one to name. *Cost*: one load.
    #[inline(always)]
    pub fn has_lane_down(&self) -> bool {
        P::SEVERAL_LANES && !self.lanes_down.is_empty()
    }

    /// The next lane that is down: its end may be detached from the rail, and opened again for
    /// [`Endpoint::lane_rejoin`]. Each is named once.
    pub fn next_lane_down(&mut self) -> Option<(ConnectionIndex, u8)> {
        let at = self.lanes_down.next_from(0)?;
        self.lanes_down.remove(at);
        let (index, lane) = self.lane_of(PeerIndex(at as u32));
        Some((ConnectionIndex(index as u32), lane))
    }

    /// A lane is fenced on both sides: its peer may be detached, and opened again.
    pub(super) fn lane_is_down(&mut self, index: usize, lane: u8) {
        self.lane_mut(index, lane).state = LaneState::Down;
        let at = self.lane_at(index, lane);
        self.lanes_down.insert(at);
        self.news += 1;
    }

    /// Gives up a connection: its outstanding requests end with [`RequestError::Closed`] and can
    /// still be tested until the connection's number is used again.
    pub fn connection_close(
        &mut self,
        connection: ConnectionIndex,
    ) -> Result<(), ConnectionCloseError> {
        let index = connection.as_usize();
        let c = self.connections.get_mut(index).ok_or(ConnectionCloseError::Stale)?;
        match c.state {
            ConnectionState::Free => return Err(ConnectionCloseError::Stale),
            ConnectionState::Open => {
                c.state = ConnectionState::Closing;
                c.failure.0 = RequestError::Closed;
                self.lanes_fail(index);
                self.trouble(index);
            }
            ConnectionState::Failing | ConnectionState::Failed | ConnectionState::Closing => {}
        }
        self.fences_step(index);
        if !self.is_quiet(index) {
            self.work.insert(index);
            return Err(ConnectionCloseError::Again);
        }
        for lane in 0..self.connections[index].rails.count {
            match self.rail.peer_close(self.lane_peer(connection, lane)) {
                Ok(()) | Err(CloseError::Stale) => {}
                Err(CloseError::Busy) => return Err(ConnectionCloseError::Again),
            }
            let at = self.lane_at(index, lane);
            self.lanes_down.remove(at);
        }
        self.requests_end(index);
        self.offers_hold(index, false);
        self.pushing -= usize::from(!self.connections[index].pull);
        self.failing_over -= usize::from(self.fails_over(index));
        self.connections[index].state = ConnectionState::Free;
        self.work.remove(index);
        self.watch.remove(index);
        self.troubled.remove(index);
        Ok(())
    }

    /// Chooses the lane for a stripe among `lanes`, a bit for each; `None`: none of them is in use,
    /// or each has enough on its way.
    #[inline]
    pub(super) fn lane_pick(&mut self, index: usize, bytes: u64, lanes: u8) -> Option<u8> {
        let c = &self.connections[index];
        if !(P::SEVERAL_LANES && c.rails.fails_over()) {
            return Some(0);
        }
        let up = c.rails.up & lanes & self.lanes_long(index, bytes);
        if up == 0 {
            return None;
        }
        if self.is_mutant(Mutant::WeightsEqual) {
            let behind = up >> c.rails.turn << c.rails.turn;
            return Some(if behind == 0 { up } else { behind }.trailing_zeros() as u8);
        }
        let first = index << self.lane_bits;
        let count = usize::from(c.rails.count);
        let mut loads = [Load::IDLE; crate::wire::RAILS_MAX];
        for (lane, load) in loads[..count].iter_mut().enumerate() {
            let meter = &self.meters[first + lane];
            *load = meter.load;
            // what has come back carries one stripe until that has ended: it may lose all others
            let is_back = self.lanes[first + lane].generation > 1;
            if is_back && meter.ended == 0 && load.flying != 0 {
                load.on_trial();
            }
        }
        super::schedule::pick(
            &loads[..count],
            up,
            bytes,
            c.rails.turn,
            (self.now, c.control.credits.consumed.0),
        )
    }
}

/// A connection that is open, as its set-up says.
fn connection_new(peer: PeerIndex, setup: &ConnectionSetup, eager: Bytes) -> Connection {
    let mut c = Connection { state: ConnectionState::Open, pull: setup.pull, ..Connection::FREE };
    (c.rails.control_lane.peer, c.rails.count) = (peer, setup.lanes);
    c.rails.probed = setup.probed;
    c.control.lines.reads = reads(setup.reads_runs, setup.reads_filled, setup.slots_in_rows);
    c.control.credits.through = Seq(setup.credits);
    c.control.credits.told = Seq(CREDITS);
    c.control.mailbox = CtrlSpan(setup.mailbox);
    c.send.eager_bytes_max = eager.0 as u32; // COMPLETE_BYTES_MAX at most
    c.recv.messages.free = 0;
    c
}
