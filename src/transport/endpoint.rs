//! The endpoint: owns the parts, takes requests, makes progress, tells outcomes.
#![forbid(unsafe_code)]

pub use super::life::ConnectionCloseError;

use super::limits::{Config, Limits, MESSAGE_BYTES_MAX, POLL_BATCH};
use super::mr::DataMrs;
use super::mutant::{Mutant, NARROW};
use super::net::{Net, OP_CONTROL, OP_FENCE, OP_READ, OP_REPORT, OP_STATE, OP_STREAM, OP_STRIPE};
use super::records::{ConnectionState, HeldMessage, NIL, SendState};
use super::recv::groups::Recvs;
use super::recv::matching;
use super::request::{
    Incoming, Outcome, Outgoing, RequestError, RequestId, RequestIdError, RequestKind, SubmitError,
};
use super::send::eager::ALONE_MAX;
use super::send::queue::Sends;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{Completion, DownCause, Head, Next, OpError, OpId, Provider, RecvSlot};
use crate::wire::head::{KIND_DESCRIPTOR, KIND_PROBED, KIND_REPORT, KIND_START, SendHead};

/// What a call of [`Endpoint::progress`] did.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Progress {
    /// Events that the rail reported, lines of peers that said something new, and sends that ended
    /// since the last call. Zero does not mean that nothing is outstanding.
    pub events: usize,
}

/// The machine of one endpoint over one rail. `&mut`: one owner at a time.
#[derive(Debug)]
pub struct Endpoint<'m, P: Provider> {
    pub(super) net: Net<'m, P>,
    pub(super) sends: Sends<'m>,
    pub(super) recvs: Recvs<'m>,
    /// Connections of several lanes.
    pub(super) failing_over: usize,
    /// Why a peer's report was not believed last.
    pub(super) report_error: Option<(ConnectionIndex, super::ReportError)>,
    /// Pushing connections in use, whose peers may ask groups back.
    pub(super) pushing: usize,
    /// The connection whose slots are looked at next, although nothing waits for them.
    rota: usize,
    /// When deadlines were looked at last, and the time over which they have been.
    pub(super) looked_at: Instant,
    pub(super) waited: Instant,
    batch: [Completion; POLL_BATCH],
}

/// Receives of which one at least is followed by a look at what came without an event.
const WATCH_RECEIVES: u64 = 8;

impl<'m, P: Provider> Endpoint<'m, P> {
    /// Cuts an endpoint out of a block, as [`Limits::machine_bytes`] counts. `limits` have passed
    /// [`Limits::check`].
    pub fn open(
        block: &mut Carver<'m>,
        limits: Limits,
        config: Config,
        regions: DataMrs<'m>,
        rail: P,
    ) -> Result<Endpoint<'m, P>, BlockTooSmall> {
        let nothing = Completion::PeerDown { peer: PeerIndex(0), cause: DownCause::Closed };
        Ok(Endpoint {
            net: Net::carve(block, limits, config, regions, rail)?,
            sends: Sends::carve(block, &limits)?,
            recvs: Recvs::carve(block, &limits)?,
            failing_over: 0,
            report_error: None,
            pushing: 0,
            rota: 0,
            looked_at: Instant::default(),
            waited: Instant(1), // 0 is no time
            batch: [nothing; POLL_BATCH],
        })
    }

    /// Accepts a message. The buffer belongs to the library until the request has ended.
    ///
    /// *Cost*: a short message is copied and posted at once; a long one is described.
    #[inline(always)]
    pub fn isend(
        &mut self,
        connection: ConnectionIndex,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let index = self.net.open_index(connection)?;
        if message.length > MESSAGE_BYTES_MAX {
            return Err(SubmitError::TooLong);
        }
        let region = self.net.regions.check(message.region, message.address, message.length)?;
        if self.net.eager_straight(index, region, &message) {
            self.net.stats.sends += 1;
            self.net.stats.send_bytes += message.length;
            return Ok(self.net.complete(message.length));
        }
        self.isend_other(index, region, message)
    }

    /// Accepts a group of 1 to 8 receives. The buffers belong to the library until the request has
    /// ended.
    #[inline(always)]
    pub fn irecv(
        &mut self,
        connection: ConnectionIndex,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        match self.net.open_index(connection) {
            Ok(index) => self.recvs.group_take(&mut self.net, connection, index, buffers),
            Err(refusal) => self.recvs.irecv_left(&mut self.net, connection, buffers, refusal),
        }
    }

    /// Moves everything on that can move now; copies about `budget` bytes at most.
    #[inline(always)]
    pub fn progress(&mut self, now: Instant, budget: Bytes) -> Progress {
        self.net.now = now;
        if !self.net.due.work.is_empty() {
            self.work_step(); // what the user has asked for since leaves with this poll
        }
        let (mut events, received) = (0, self.net.stats.receives);
        while events < POLL_BATCH {
            match self.net.rail.next() {
                Next::Received { peer, slot, head, length } => {
                    self.send_arrived(peer, slot, &head, length);
                    events += 1;
                }
                Next::Nothing => break,
                Next::Poll => {
                    events += self.poll(budget);
                    break;
                }
            }
        }
        if self.pushing != 0 {
            self.rota_step();
        }
        // what has come may wait for an answer: with most of such polls the next one looks
        let may_wait = P::SEVERAL_LANES
            && self.net.stats.receives != received
            && self.net.stats.receives / WATCH_RECEIVES == received / WATCH_RECEIVES;
        if !self.net.due.watch.is_empty() && !may_wait {
            self.watch_step();
        }
        if !self.net.due.work.is_empty() {
            self.work_step();
        }
        if P::SEVERAL_LANES && !self.net.due.troubled.is_empty() {
            self.deadlines_look();
        }
        self.net.rail.flush(budget);
        events += core::mem::take(&mut self.net.news);
        Progress { events }
    }

    /// Before its user sleeps: looks at what every peer has asked for without an event. `false`:
    /// something is due now, make progress instead.
    pub fn look_around(&mut self) -> bool {
        if self.pushing == 0 {
            return true;
        }
        let before = self.net.news;
        if self.net.holding != 0 {
            self.net.offers_release();
        }
        for _ in 0..self.net.connections.len() {
            self.rota_step();
        }
        self.net.news == before
    }

    /// Looks at one connection's slots: a peer that wants a group back waits for the verdict, also
    /// when we have nothing to send.
    fn rota_step(&mut self) {
        let index = self.rota;
        self.rota = if index + 1 < self.net.connections.len() { index + 1 } else { 0 };
        let c = &self.net.connections[index];
        if c.state == ConnectionState::Open && !c.pull {
            self.sends.withdrawals_look(&mut self.net, index);
        }
    }

    /// Takes in a batch of the rail's events.
    #[inline(never)]
    fn poll(&mut self, budget: Bytes) -> usize {
        let events = self.net.rail.poll(&mut self.batch, budget, self.net.now);
        for at in 0..events {
            let completion = self.batch[at];
            self.completion(&completion);
        }
        events
    }

    #[inline]
    fn completion(&mut self, completion: &Completion) {
        match *completion {
            Completion::Received { peer, slot, ref head, length } => {
                self.send_arrived(peer, slot, head, length);
            }
            Completion::Done { peer, id, result } => self.op_done(peer, id, result),
            Completion::Immediate { peer, immediate } => {
                self.recvs.stripe_arrived(&mut self.net, peer, immediate);
            }
            Completion::Fenced { peer, .. } => self.fenced(peer),
            Completion::PeerDown { peer, cause } => self.peer_went_down(peer, cause),
        }
    }

    #[inline(never)]
    fn watch_step(&mut self) {
        let mut from = 0;
        while let Some(index) = self.net.due.watch.next_from(from) {
            from = index + 1;
            if self.net.connections[index].state != ConnectionState::Open {
                self.net.due.watch.remove(index); // what the peer still says is not for us any more
                continue;
            }
            self.sends.state_look(&mut self.net, &mut self.recvs, index);
            if self.net.connections[index].recv.hold.on {
                self.net.offers_look(index);
            } else if self.net.offers_have_room(index) {
                self.net.due.work.insert(index); // heads tell of it as well as state lines
            }
            let c = &self.net.connections[index];
            if !c.send.queue.is_empty() {
                self.net.due.work.insert(index);
            } else if !c.is_watching() {
                self.net.due.watch.remove(index);
            }
        }
    }

    #[inline(never)]
    fn work_step(&mut self) {
        let mut from = 0;
        while let Some(index) = self.net.due.work.next_from(from) {
            from = index + 1;
            self.net.due.work.remove(index);
            if self.connection_work(index) {
                self.net.due.work.insert(index);
            }
        }
    }

    /// Posts what is due on one connection; says whether something is still due.
    pub(super) fn connection_work(&mut self, index: usize) -> bool {
        match self.net.connections[index].state {
            ConnectionState::Free => false,
            ConnectionState::Failed => {
                P::SEVERAL_LANES
                    && self.net.connections[index].rails.quarantine
                    && self.fences_step(index)
            }
            ConnectionState::Failing | ConnectionState::Closing => self.fences_step(index),
            ConnectionState::Open => {
                let failover = self.net.fails_over(index) && self.failover_step(index);
                let pulls = self.recvs.pulls_step(&mut self.net, index);
                let slots = self.recvs.slots_step(&mut self.net, index);
                let sends = self.sends.sends_step(&mut self.net, &mut self.recvs, index);
                let state = self.net.state_step(index);
                failover | pulls | slots | sends | state
            }
        }
    }

    /// Accepts a message that [`Net::eager_straight`] left alone.
    #[inline(never)]
    pub(super) fn isend_other(
        &mut self,
        index: usize,
        region: u16,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let is_device = self.net.is_device(region);
        if is_device && !self.net.reaches_device(index) {
            return Err(SubmitError::Device);
        }
        // a core of one rail has no room for it, and hands over with its next poll
        let is_alone = P::SEVERAL_LANES
            && self.net.connections[index].control.credits.is_all_taken()
            && message.length <= ALONE_MAX.0
            && !is_device;
        if is_alone {
            self.turn_now(index); // a receive that was posted since needs nothing most of the time
        }
        let request = if is_alone
            && self.sends.eager_alone(&mut self.net, &mut self.recvs, index, region, &message)
        {
            self.net.complete(message.length)
        } else if let Some(request) =
            self.sends.eager_at_once(&mut self.net, &mut self.recvs, index, region, &message)
        {
            if is_alone {
                self.leave_now(index);
            }
            request
        } else {
            self.sends.send_queue(&mut self.net, &mut self.recvs, index, region, &message)?
        };
        self.net.stats.sends += 1;
        self.net.stats.send_bytes += message.length;
        Ok(request)
    }

    /// Hands over a message that nothing of its connection is on the way before, with what else is
    /// due there. Where slots would be due with one more receive, the message waits for it: they
    /// would cost a call of the system of their own.
    fn leave_now(&mut self, index: usize) {
        if self.recvs.offers_are_near(&self.net, index) {
            return;
        }
        self.turn_now(index);
        self.net.rail.flush(ALONE_MAX);
    }

    /// Posts what is due on one connection.
    #[inline(always)]
    fn turn_now(&mut self, index: usize) {
        if self.net.due.work.contains(index) {
            self.net.due.work.remove(index);
            if self.connection_work(index) {
                self.net.due.work.insert(index);
            }
        }
    }

    /// Before its user sleeps, and after the rail has handed over what it could: ends the long
    /// sends that have left by that. Whether there are some: nothing else would tell.
    pub fn has_left(&mut self) -> bool {
        let before = self.net.news;
        let mut from = 0;
        while let Some(index) = self.net.due.work.next_from(from) {
            from = index + 1;
            if self.net.connections[index].state != ConnectionState::Open {
                continue;
            }
            for record in self.sends.sends_used(&self.net, index) {
                if self.sends.records[self.net.send_at(index, record)].state == SendState::Leaving {
                    self.sends.leaving_end(&mut self.net, index, record);
                }
            }
        }
        self.net.news != before
    }

    /// A send of the peer's stream has come.
    #[inline(always)]
    fn send_arrived(&mut self, peer: PeerIndex, slot: RecvSlot, head: &Head, length: u32) {
        let mut fields = SendHead::from_bytes(head);
        if self.net.is_mutant(Mutant::SequenceNarrow) {
            fields.eager_number &= NARROW;
        }
        let (index, lane) = self.net.lane_of(peer);
        let net = &mut self.net;
        let Some(delivers) = self.recvs.expected_take(net, index, (peer, slot), &fields, length)
        else {
            return self.other_arrived(index, lane, slot, fields, length);
        };
        if delivers {
            self.sends.deliveries_apply(net, index, Seq(fields.delivered_through), 0);
        }
        let is_sound =
            !P::SEVERAL_LANES || fields.filled == 0 || self.sends.filled_heard(net, index, &fields);
        if !is_sound {
            self.net.connection_fail(index, RequestError::Protocol);
        }
    }

    /// Takes in a send that [`Recvs::expected_take`] left alone.
    #[inline(never)]
    fn other_arrived(
        &mut self,
        index: usize,
        lane: u8,
        slot: RecvSlot,
        head: SendHead,
        length: u32,
    ) {
        if self.net.connections[index].state != ConnectionState::Open {
            let peer = self.net.lane_peer_of(index, lane);
            self.net.rail.received_release(peer, slot);
            return;
        }
        if head.check().is_err() {
            return self.net.connection_fail(index, RequestError::Protocol);
        }
        if matches!(head.kind, KIND_REPORT..=KIND_PROBED) {
            return self.word_arrived(index, lane, slot, &head, length);
        }
        self.stream_take(index, lane, slot, &head, length);
    }

    /// Takes in any other send of the stream.
    fn stream_take(
        &mut self,
        index: usize,
        lane: u8,
        slot: RecvSlot,
        head: &SendHead,
        length: u32,
    ) {
        self.sends.acks_take(
            &mut self.net,
            index,
            Seq(head.credits_through),
            Seq(head.delivered_through),
        );
        let c = &mut self.net.connections[index];
        let is_of_its_kind = match head.kind {
            KIND_START => !c.pull,
            KIND_DESCRIPTOR => c.pull,
            _ => true,
        };
        let is_known = is_of_its_kind && c.has_groups(Seq(head.group_base));
        if !is_known || (P::SEVERAL_LANES && !self.sends.filled_heard(&mut self.net, index, head)) {
            let message = HeldMessage { slot, lane, ..HeldMessage::FREE };
            self.recvs.release(&mut self.net, index, &message);
            return self.net.connection_fail(index, RequestError::Protocol);
        }
        let c = &mut self.net.connections[index];
        c.recv.offers.passed_take(Seq(head.group_base));
        let message = HeldMessage {
            group_base: Seq(head.group_base),
            slot,
            tag: head.tag,
            number: Seq(head.send_number),
            eager_number: Seq(head.eager_number),
            length,
            kind: head.kind,
            stripes: head.stripes,
            lane,
            next: NIL,
        };
        if message.eager_number != c.recv.expected {
            return self.recvs.hold_ahead(&mut self.net, index, message);
        }
        self.recvs.in_turn(&mut self.net, index, message);
        if !self.net.connections[index].recv.messages.ahead.is_empty() {
            self.recvs.ahead_step(&mut self.net, index);
        }
    }

    /// An op that was pending has completed.
    fn op_done(&mut self, peer: PeerIndex, id: OpId, result: Result<(), OpError>) {
        let (index, lane) = self.net.lane_of(peer);
        let entry = self.net.lane_mut(index, lane);
        entry.ops_in_flight = entry.ops_in_flight.saturating_sub(1);
        if let Err(error) = result {
            self.op_failed(index, lane, error);
        }
        let (record, part) = ((id.0 >> 8) as u8, id.0 as u8);
        match id.0 >> 32 {
            OP_STRIPE => self.sends.stripe_written(
                &mut self.net,
                index,
                lane,
                (record, part),
                result.is_ok(),
            ),
            OP_READ => self.recvs.read_done(&mut self.net, index, record, part, result.is_ok()),
            OP_STATE => self.net.connections[index].control.lines.state_flying = false,
            OP_CONTROL => {
                let c = &mut self.net.connections[index];
                c.control.lines.flying = c.control.lines.flying.saturating_sub(1);
            }
            OP_STREAM | OP_FENCE | OP_REPORT => {}
            _ => debug_assert!(false, "completion of an op that was never posted"),
        }
        self.lane_settle(index, lane);
        if self.net.connections[index].state != ConnectionState::Open {
            self.net.due.work.insert(index);
        }
    }

    /// Asks for a request to end early.
    ///
    /// A receive that no message is bound to ends with [`RequestError::Canceled`]: at once, or,
    /// where its slot has been offered, when the peer has given it up. That it does in order, when
    /// the receives before it have their messages or are canceled, too; until then a message may
    /// still come. (In a whole endpoint the peer's end takes part from the first request that is
    /// posted there.) A send that has not left ends at once. Anything else says
    /// [`RequestIdError::Busy`] and ends by itself.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestIdError> {
        match request.unpack().ok_or(RequestIdError::Stale)? {
            RequestKind::Complete { generation, .. } if generation == self.net.config.salt => {
                Err(RequestIdError::Busy)
            }
            RequestKind::Complete { .. } => Err(RequestIdError::Stale),
            RequestKind::Send { connection, record, generation } => {
                let generation = self.net.unsalted(generation);
                self.sends.send_cancel(&mut self.net, connection.as_usize(), record, generation)
            }
            RequestKind::Receive { connection, record, generation } => {
                let generation = self.net.unsalted(generation);
                self.recvs.receive_cancel(&mut self.net, connection.as_usize(), record, generation)
            }
        }
    }

    /// Whether a request is under way: [`Endpoint::test`] would say `None`.
    #[inline(always)]
    pub fn is_outstanding(&self, request: RequestId) -> bool {
        match request.unpack() {
            Some(RequestKind::Receive { connection, record, generation }) => {
                let generation = self.net.unsalted(generation);
                self.recvs.group_used(&self.net, connection, record, generation).is_some_and(|at| {
                    let group = &self.recvs.groups[at];
                    group.done != matching::full(group.count)
                })
            }
            Some(RequestKind::Send { connection, record, generation }) => self
                .sends
                .is_outstanding(&self.net, connection, record, self.net.unsalted(generation)),
            Some(RequestKind::Complete { .. }) | None => false,
        }
    }

    /// Whether a request is an eager send that was complete when it was accepted, and was posted
    /// before `eager` others: that is [`super::Stats::eager`] at some time since.
    #[inline]
    pub fn is_complete_before(&self, request: RequestId, eager: u64) -> bool {
        match request.unpack() {
            Some(RequestKind::Complete { number, .. }) => {
                let since = self.net.stats.eager.wrapping_sub(eager);
                u64::from(number.wrapping_sub(eager as u8)) >= since
            }
            Some(_) | None => false,
        }
    }

    /// Has the next [`Endpoint::progress`] look at what comes on the connection of a request, and
    /// not at others, where a look costs a call of the system.
    #[inline]
    pub fn look_for(&mut self, request: RequestId) {
        let connection = match request.unpack() {
            Some(
                RequestKind::Send { connection, .. } | RequestKind::Receive { connection, .. },
            ) => connection.as_usize(),
            Some(RequestKind::Complete { .. }) | None => return,
        };
        if let Some(c) = self.net.connections.get(connection)
            && !c.pull
            && !c.rails.fails_over()
            && c.state == ConnectionState::Open
        {
            self.net.rail.look_at(c.rails.control_lane.peer);
        }
    }

    /// Hands over what was posted, and nothing more.
    #[inline]
    pub fn flush(&mut self, budget: Bytes) {
        self.net.rail.flush(budget);
    }

    /// Asks how a request stands. `None`: it is outstanding. An outcome is told once; after that
    /// the number is stale.
    #[inline(always)]
    pub fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        match request.unpack().ok_or(RequestIdError::Stale)? {
            RequestKind::Complete { length, generation, .. }
                if generation == self.net.config.salt =>
            {
                Ok(Some(Outcome::one(Ok(()), length)))
            }
            RequestKind::Complete { .. } => Err(RequestIdError::Stale),
            RequestKind::Send { connection, record, generation } => {
                let generation = self.net.unsalted(generation);
                self.sends.send_test(&mut self.net, connection, record, generation)
            }
            RequestKind::Receive { connection, record, generation } => {
                let used = self.recvs.group_used(
                    &self.net,
                    connection,
                    record,
                    self.net.unsalted(generation),
                );
                let at = used.ok_or(RequestIdError::Stale)?;
                let group = &self.recvs.groups[at];
                if group.done != matching::full(group.count) {
                    return Ok(None);
                }
                Ok(Some(self.recvs.receive_outcome(at)))
            }
        }
    }
}
