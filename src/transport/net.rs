//! What sends, receives and lanes stand on: the connections, the rail under them, and what is due.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::limits::{Config, Limits, MESSAGE_BYTES_MAX};
use super::mr::{CtrlMr, DataMrs, Scratch};
use super::mutant::Mutant;
use super::rails::schedule;
use super::rails::schedule::{Cut, Load};
use super::rails::table::{DataRail, DataSpan, Fence, Lane, LaneMeter, LaneState, Lanes};
use super::records::{ConnectionState, NEVER, NIL, SendRecord};
use super::request::{Outgoing, RequestError, RequestId, RequestIdError, RequestKind, SubmitError};
use super::stats::Stats;
use crate::base::bitset;
use crate::base::bitset::BitSet;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    LocalSpan, Op, OpId, OpKind, PostError, Posted, Provider, RailKey, RemoteSpan,
};
use crate::wire::head::{KIND_EAGER, SendHead};
use crate::wire::state::STATE_FAILED;

/// What an op id says: kind high, then record, then stripe or receive.
pub(super) const OP_CONTROL: u64 = 0;
pub(super) const OP_STREAM: u64 = 1;
pub(super) const OP_STRIPE: u64 = 2;
pub(super) const OP_READ: u64 = 3;
pub(super) const OP_FENCE: u64 = 4;
pub(super) const OP_STATE: u64 = 5;
pub(super) const OP_REPORT: u64 = 6;

pub(super) const fn op_id(kind: u64, record: u8, part: u8) -> OpId {
    OpId(kind << 32 | (record as u64) << 8 | part as u64)
}

/// Whether requests of either side may end well only when this op of ours has reached the peer.
/// Offers of receives and news of credits are of no use to the peer of a connection that closes.
pub const fn is_awaited(id: OpId) -> bool {
    id.0 != op_id(OP_CONTROL, 0, 0).0 && id.0 != op_id(OP_STATE, 0, 0).0
}

/// No credit or no room: the send stays where it is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Blocked;

/// Shortest stripe where one stream carries all of them.
const STRIPE_BYTES_ONE_STREAM: Bytes = Bytes::mib(1);

/// The connections of an endpoint, and the rail that they go by.
#[derive(Debug)]
pub struct Net<'m, P: Provider> {
    pub rail: P,
    pub limits: Limits,
    pub config: Config,
    pub regions: DataMrs<'m>,
    pub mailboxes: CtrlMr,
    pub scratch: Scratch,
    pub connections: &'m mut [Connection],
    pub lanes: Lanes<'m>,
    pub due: Due<'m>,
    pub stats: Stats,
    /// What happened since the last progress ended, without an event of the rail's.
    pub news: usize,
    /// Connections that hold slots back.
    pub holding: usize,
    /// When progress was made last.
    pub now: Instant,
    /// The fault that was planted, if any.
    #[cfg(feature = "proof")]
    pub mutant: Option<super::mutant::Mutant>,
}

/// Connections that are to be looked at.
#[derive(Debug)]
pub struct Due<'m> {
    /// Those with something to post.
    pub work: BitSet<'m>,
    /// Those whose mailbox will change.
    pub watch: BitSet<'m>,
    /// Those that wait for something with a deadline.
    pub troubled: BitSet<'m>,
}

impl<'m, P: Provider> Net<'m, P> {
    /// Cuts it out of a block.
    pub fn carve(
        block: &mut Carver<'m>,
        limits: Limits,
        config: Config,
        regions: DataMrs<'m>,
        rail: P,
    ) -> Result<Net<'m, P>, BlockTooSmall> {
        let connections = limits.connections_max as usize;
        let words = bitset::words(connections);
        Ok(Net {
            rail,
            limits,
            config,
            regions,
            scratch: Scratch::carve(block, limits.rails_max)?,
            mailboxes: CtrlMr::carve(block, limits.connections_max, limits.mailbox_bytes())?,
            connections: block.filled(connections, Connection::FREE)?,
            lanes: Lanes::carve(block, &limits)?,
            due: Due {
                work: BitSet::new(block.slice(words)?),
                watch: BitSet::new(block.slice(words)?),
                troubled: BitSet::new(block.slice(words)?),
            },
            stats: Stats::default(),
            news: 0,
            holding: 0,
            now: Instant::default(),
            #[cfg(feature = "proof")]
            mutant: None,
        })
    }
}

impl<P: Provider> Net<'_, P> {
    /// Which connection, and which of its lanes, the rail means.
    #[inline(always)]
    pub fn lane_of(&self, peer: PeerIndex) -> (usize, u8) {
        if P::SEVERAL_LANES { self.lanes.of(peer) } else { (peer.as_usize(), 0) }
    }
}

impl<P: Provider> Net<'_, P> {
    /// Whether a fault is planted.
    #[cfg(not(feature = "proof"))]
    #[inline(always)]
    pub const fn is_mutant(&self, _mutant: Mutant) -> bool {
        false
    }

    #[cfg(feature = "proof")]
    pub fn is_mutant(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The connection cannot go on: nothing more is posted, what is posted is fenced, then every
    /// request ends with `error`.
    pub fn connection_fail(&mut self, index: usize, error: RequestError) {
        if self.connections[index].state != ConnectionState::Open {
            return;
        }
        let is_end = matches!(error, RequestError::PeerClosed | RequestError::Closed);
        self.stats.failures += u64::from(!is_end);
        let c = &self.connections[index];
        if !c.rails.peer_down && !c.rails.control_lane.blocked {
            self.state_write(index, STATE_FAILED); // one try: the peer has its own means too
        }
        let c = &mut self.connections[index];
        c.state = ConnectionState::Failing;
        c.failure.0 = error;
        self.offers_hold(index, false);
        self.lanes_fail(index);
        self.due.work.insert(index);
        self.trouble(index);
    }

    /// How far the peer's bytes must leave until a message has left that was just posted; `None`:
    /// it has. A short one leaves with the test of its request.
    #[inline(always)]
    pub fn kept_through(&self, index: usize, length: u64) -> Option<u64> {
        let c = &self.connections[index];
        if !c.send.is_long(length) {
            return None;
        }
        let sent = self.rail.sent_through(c.rails.control_lane.peer);
        (sent.left < sent.posted).then_some(sent.posted)
    }

    /// Whether a message travels in the stream.
    #[inline(always)]
    pub fn is_short(&self, index: usize, region: u16, length: u64) -> bool {
        let c = &self.connections[index];
        let copied = length <= self.config.eager_mapped_bytes_max.0
            || !c.pull
            || !self.regions.is_mapped(region);
        c.send.is_short(length) && copied && !self.is_device(region)
    }

    /// Whether a region lies in memory of a GPU, which the CPU cannot copy.
    #[inline(always)]
    pub fn is_device(&self, region: u16) -> bool {
        P::REACHES_DEVICES && self.regions.is_device(region)
    }

    /// Whether what a connection runs over moves memory of GPUs.
    #[cold]
    pub fn reaches_device(&self, index: usize) -> bool {
        let count = self.connections[index].rails.count;
        (0..count).any(|lane| self.rail.reaches_device(self.lane_peer_of(index, lane)))
    }

    /// Posts it.
    #[inline(always)]
    pub fn stream_hand(
        &mut self,
        index: usize,
        fields: &SendHead,
        payload: LocalSpan,
    ) -> Result<(), Blocked> {
        let c = &self.connections[index];
        let (id, peer, control) =
            (op_id(OP_STREAM, 0, 0), c.rails.control_lane.peer, c.rails.control_lane.lane);
        match self.rail.post_send(id, peer, &fields.encode(), payload, self.now) {
            Ok(Posted::Done) => Ok(()),
            Ok(Posted::Pending) => {
                self.lane_mut(index, control).ops_in_flight += 1;
                Ok(())
            }
            Err(error) => {
                self.stats.again += u64::from(error == PostError::Again);
                Err(Blocked)
            }
        }
    }

    /// The end of a lane by the connection's number.
    #[inline]
    pub fn lane_peer_of(&self, index: usize, lane: u8) -> PeerIndex {
        self.lanes.peer(index, lane)
    }

    /// The cut of a message that was accepted: once, whatever becomes of the lanes.
    pub fn cut(&self, index: usize, length: u64) -> Cut {
        let lanes = u32::from(self.connections[index].rails.count);
        let min = match self.rail.is_single_stream(self.lane_peer_of(index, 0)) {
            // parts only let short messages pass between them
            true => self.config.stripe_bytes_min.max(STRIPE_BYTES_ONE_STREAM),
            false => self.config.stripe_bytes_min,
        };
        let min = schedule::stripe_min(length, lanes, min);
        let every = self.connections[index].rails.transfer_max();
        let first = match length > schedule::length_max(every) {
            true => self.transfer_max(index, 0),
            false => every,
        };
        schedule::cut(length, min, every, first).expect("what is too long was refused")
    }

    /// Longest message that a connection takes: what its first lane carries, in stripes or, where
    /// the peer pulls, in one op. The others may carry less in one op: what is too long for them,
    /// they leave to those that can.
    #[cold]
    pub fn length_max(&self, index: usize) -> u64 {
        let first = self.transfer_max(index, 0);
        let most = match self.connections[index].pull {
            true => first.0,
            false => schedule::length_max(first),
        };
        most.min(MESSAGE_BYTES_MAX)
    }

    /// What a lane carries in one op.
    #[cold]
    fn transfer_max(&self, index: usize, lane: u8) -> Bytes {
        self.rail.caps(self.lane_peer_of(index, lane)).transfer_max
    }

    /// A bit for each lane of a connection that carries so many bytes in one op.
    #[cold]
    fn lanes_carrying(&self, index: usize, bytes: u64) -> u8 {
        let carries = |lane: &u8| self.transfer_max(index, *lane).0 >= bytes;
        let lanes = 0..self.connections[index].rails.count;
        lanes.filter(carries).fold(0, |all, lane| all | 1 << lane)
    }

    /// The same, without a look where each does.
    #[inline]
    fn lanes_long(&self, index: usize, bytes: u64) -> u8 {
        match bytes > self.connections[index].rails.transfer_max().0 {
            true => self.lanes_carrying(index, bytes),
            false => u8::MAX,
        }
    }

    /// A bit for each lane whose rail knows the memory of both ends. All that go by the first
    /// rail's keys do.
    pub fn lanes_knowing(&self, index: usize, send: &SendRecord) -> u8 {
        if send.next == NIL || !self.fails_over(index) {
            return u8::MAX;
        }
        let knows = |lane: &u8| match self.lane(index, *lane).key {
            0 => true,
            key => {
                self.cell_key(index, send.next, *lane) != 0
                    && self.regions.key(send.region, DataRail(key)) != 0
            }
        };
        let lanes = 0..self.connections[index].rails.count;
        lanes.filter(knows).fold(0, |all, lane| all | 1 << lane)
    }

    /// No lane is in use, or none that carries a message: one is waited for, for so long.
    #[cold]
    pub fn strand(&mut self, index: usize) {
        let c = &mut self.connections[index];
        if c.rails.stranded_at == NEVER {
            c.rails.stranded_at = Instant(0);
            self.due.troubled.insert(index);
        }
    }

    /// Whether no lane in use carries the stripes of a message.
    pub fn is_unknown(&self, index: usize, send: &SendRecord) -> bool {
        let lanes = self.lanes_knowing(index, send) & self.lanes_long(index, send.stripe_bytes);
        lanes & self.connections[index].rails.up == 0
    }

    /// By which keys a stripe goes on a lane that knows its memory.
    #[inline]
    pub fn stripe_ends(&self, index: usize, send: &SendRecord, lane: u8) -> (DataRail, DataSpan) {
        let key = match self.fails_over(index) {
            true => self.lane(index, lane).key,
            false => 0,
        };
        if key == 0 || send.next == NIL {
            return (DataRail(0), send.target);
        }
        let theirs = RailKey(self.cell_key(index, send.next, lane));
        let target = RemoteSpan { key: theirs, address: send.target.0.address };
        (DataRail(key), DataSpan(target))
    }

    /// Sends the common message: short, with a credit at hand, on a rail that pulls and sends it
    /// within the call. `false`: it is another, and nothing was changed.
    #[inline(always)]
    pub fn eager_straight(&mut self, index: usize, region: u16, message: &Outgoing) -> bool {
        let is_device = self.is_device(region);
        let c = &mut self.connections[index];
        let copied = message.length <= self.config.eager_mapped_bytes_max.0
            || !self.regions.is_mapped(region);
        let common = c.pull
            && c.send.queue.is_empty()
            && c.control.credits.may_consume(0)
            && c.send.is_short(message.length)
            && copied
            && !is_device;
        if !common {
            return false;
        }
        let span = self.regions.span(region, message.address, message.length, DataRail(0));
        let head = c.head(KIND_EAGER, message.tag, 0).encode();
        if !self.rail.send_now(c.rails.control_lane.peer, &head, span) {
            return false;
        }
        c.head_left(false);
        self.stats.eager += 1;
        true
    }

    #[inline(always)]
    pub fn open_index(&self, connection: ConnectionIndex) -> Result<usize, SubmitError> {
        let index = connection.as_usize();
        match self.connections.get(index) {
            Some(c) if c.state == ConnectionState::Open => Ok(index),
            known => Err(not_open(known)),
        }
    }

    /// The numbers of a connection's records.
    pub fn records(&self) -> core::ops::RangeInclusive<u8> {
        0..=(self.limits.requests_max - 1) as u8
    }

    #[inline]
    pub fn send_at(&self, index: usize, record: u8) -> usize {
        index * self.limits.requests_max as usize + usize::from(record)
    }

    #[inline]
    pub fn group_at(&self, index: usize, number: Seq) -> usize {
        index * self.limits.requests_max as usize + number.cell(self.limits.requests_max)
    }

    /// The request of the eager send that was posted last, complete as it is.
    #[inline(always)]
    pub fn complete(&self, length: u64) -> RequestId {
        let number = self.stats.eager.wrapping_sub(1) as u8;
        RequestId::pack(RequestKind::Complete { length, number, generation: self.config.salt })
    }

    /// The generation of a record, out of a request's number.
    #[inline(always)]
    pub const fn unsalted(&self, generation: u32) -> u32 {
        generation.wrapping_sub(self.config.salt)
    }

    /// The same the other way round: records begin at zero, and numbers differ by endpoint.
    #[inline(always)]
    pub const fn salted(&self, generation: u32) -> u32 {
        generation.wrapping_add(self.config.salt)
    }

    /// Where the send record, and the group record, of that number stand.
    #[inline]
    pub fn record_at(
        &self,
        connection: ConnectionIndex,
        record: u8,
    ) -> Result<usize, RequestIdError> {
        let known = connection.0 < self.limits.connections_max
            && u32::from(record) < self.limits.requests_max;
        if known {
            Ok(self.send_at(connection.as_usize(), record))
        } else {
            Err(RequestIdError::Stale)
        }
    }

    /// Whether a lane may die without its connection.
    #[inline(always)]
    pub fn fails_over(&self, index: usize) -> bool {
        P::SEVERAL_LANES && self.connections[index].rails.fails_over()
    }

    /// A lane's end has just been opened in the rail: no stripe is to be longer than it carries.
    ///
    /// *Panics* when its rail does not copy sends at post
    /// ([`copies_at_post`](crate::fabric::Caps::copies_at_post)).
    pub fn lane_opened(&mut self, index: usize, lane: u8) {
        let caps = self.rail.caps(self.lane_peer_of(index, lane));
        assert!(caps.copies_at_post);
        self.connections[index].rails.carries(caps.transfer_max);
    }

    /// Control runs on this lane from now on.
    pub fn control_set(&mut self, index: usize, lane: u8) {
        let peer = self.lane_peer_of(index, lane);
        let caps = self.rail.caps(peer);
        let c = &mut self.connections[index];
        (c.rails.control_lane.lane, c.rails.control_lane.peer) = (lane, peer);
        c.rails.control_lane.caps_set(&caps);
        c.send.payload_max_set(caps.send_payload_max);
    }

    #[inline(always)]
    pub fn lane_at(&self, index: usize, lane: u8) -> usize {
        self.lanes.at(index, lane)
    }

    #[inline(always)]
    pub fn lane(&self, index: usize, lane: u8) -> &Lane {
        &self.lanes.table[self.lane_at(index, lane)]
    }

    #[inline(always)]
    pub fn lane_mut(&mut self, index: usize, lane: u8) -> &mut Lane {
        let at = self.lane_at(index, lane);
        &mut self.lanes.table[at]
    }

    /// What a lane of several carries.
    #[inline]
    pub fn meter_mut(&mut self, index: usize, lane: u8) -> &mut LaneMeter {
        let at = self.lane_at(index, lane);
        &mut self.lanes.meters[at]
    }

    /// Posts an op on one lane and keeps count of what is in flight.
    #[inline]
    pub fn post_on(
        &mut self,
        index: usize,
        lane: u8,
        id: OpId,
        kind: OpKind,
    ) -> Result<Posted, PostError> {
        let peer = self.lane_peer_of(index, lane);
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
    pub fn post(&mut self, index: usize, id: OpId, kind: OpKind) -> Result<Posted, PostError> {
        self.post_on(index, self.connections[index].rails.control_lane.lane, id, kind)
    }

    /// Whether nothing is in flight on a connection any more.
    pub fn is_quiet(&self, index: usize) -> bool {
        let count = self.connections[index].rails.count;
        (0..count).all(|lane| self.lane(index, lane).is_quiet())
    }

    /// Nothing more is posted on any lane; each that was in use is fenced.
    pub fn lanes_fail(&mut self, index: usize) {
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

    /// A lane is fenced on both sides: its peer may be detached, and opened again.
    pub fn lane_is_down(&mut self, index: usize, lane: u8) {
        self.lane_mut(index, lane).state = LaneState::Down;
        let at = self.lane_at(index, lane);
        self.lanes.down.insert(at);
        self.news += 1;
    }

    /// Chooses the lane for a stripe among `lanes`, a bit for each; `None`: none of them is in use,
    /// or each has enough on its way.
    #[inline]
    pub fn lane_pick(&mut self, index: usize, bytes: u64, lanes: u8) -> Option<u8> {
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
        let first = index << self.lanes.bits;
        let count = usize::from(c.rails.count);
        let mut loads = [Load::IDLE; crate::wire::RAILS_MAX];
        for (lane, load) in loads[..count].iter_mut().enumerate() {
            let meter = &self.lanes.meters[first + lane];
            *load = meter.load;
            // what has come back carries one stripe until that has ended: it may lose all others
            let is_back = self.lanes.table[first + lane].generation > 1;
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

    /// A connection waits for something with a deadline from now on.
    #[cold]
    pub fn trouble(&mut self, index: usize) {
        if P::SEVERAL_LANES {
            self.due.troubled.insert(index);
        }
    }
}

#[cold]
#[inline(never)]
fn not_open(connection: Option<&Connection>) -> SubmitError {
    match connection.map(|c| c.state) {
        Some(ConnectionState::Failing | ConnectionState::Failed) => {
            SubmitError::Failed(connection.map_or(RequestError::Closed, |c| c.failure.0))
        }
        Some(ConnectionState::Open | ConnectionState::Free | ConnectionState::Closing) | None => {
            SubmitError::Connection
        }
    }
}
