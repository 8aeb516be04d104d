//! How requests end: well, or because an operation, a peer or the user ended them.
#![forbid(unsafe_code)]

use super::eager::{OP_CONTROL, OP_FENCE, OP_READ, OP_REPORT, OP_STATE, OP_STREAM, OP_STRIPE};
use super::endpoint::Endpoint;
use super::matching;
use super::mutant::Mutant;
use super::records::{ConnectionState, GroupRecord, Queue, SendRecord, SendState};
use super::request::{RequestError, RequestId, RequestIdError, RequestKind};
use super::schedule::Cut;
use super::used::SendQueue;
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::{Arrival, Seq};
use crate::fabric::{OpError, OpErrorKind, OpId, Provider};
use crate::wire::state::STATE_FAILED;

impl<P: Provider> Endpoint<'_, P> {
    /// An op that was pending has completed.
    pub(super) fn op_done(&mut self, peer: PeerIndex, id: OpId, result: Result<(), OpError>) {
        let (index, lane) = self.lane_of(peer);
        let entry = self.lane_mut(index, lane);
        entry.ops_in_flight = entry.ops_in_flight.saturating_sub(1);
        if let Err(error) = result {
            self.op_failed(index, lane, error);
        }
        let (record, part) = ((id.0 >> 8) as u8, id.0 as u8);
        match id.0 >> 32 {
            OP_STRIPE => self.stripe_written(index, lane, record, part, result.is_ok()),
            OP_READ => self.read_done(index, record, part, result.is_ok()),
            OP_STATE => self.connections[index].control.lines.state_flying = false,
            OP_CONTROL => {
                let c = &mut self.connections[index];
                c.control.lines.flying = c.control.lines.flying.saturating_sub(1);
            }
            OP_STREAM | OP_FENCE | OP_REPORT => {}
            _ => debug_assert!(false, "completion of an op that was never posted"),
        }
        self.lane_settle(index, lane);
        if self.connections[index].state != ConnectionState::Open {
            self.work.insert(index);
        }
    }

    fn op_failed(&mut self, index: usize, lane: u8, error: OpError) {
        match error.kind {
            // the provider reports the peer itself, with the cause
            OpErrorKind::PeerDown | OpErrorKind::Canceled => {}
            OpErrorKind::Key => self.connection_fail(index, RequestError::Protocol),
            OpErrorKind::Fabric if self.fails_over(index) => {
                self.lane_fail(index, lane, error.code);
            }
            OpErrorKind::Fabric => {
                self.connection_fail(index, RequestError::Fabric(error.code));
            }
        }
    }

    fn stripe_written(&mut self, index: usize, lane: u8, record: u8, stripe: u8, ok: bool) {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        if self.fails_over(index) {
            let cut = Cut { count: u32::from(send.stripes), stripe_bytes: send.stripe_bytes };
            let (_, bytes) = cut.stripe(u32::from(stripe), send.length);
            let now = self.now;
            self.meter_mut(index, lane).completed(bytes, ok, now);
            // lanes that had enough on their way may take more
            self.work.insert(index);
        }
        if ok && send.state != SendState::Free {
            self.sends[at].written |= 1 << stripe;
            self.send_settle(index, record);
        }
    }

    fn read_done(&mut self, index: usize, cell: u8, receive: u8, ok: bool) {
        let at = index * self.limits.requests_max as usize + usize::from(cell);
        let group = self.groups[at];
        if ok && group.used && self.connections[index].state == ConnectionState::Open {
            self.receive_end(index, group.number, receive, None);
        }
    }

    /// Ends a send that is delivered and whose source is free.
    pub(super) fn send_settle(&mut self, index: usize, record: u8) {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        let delivered = send.delivered || self.is_mutant(Mutant::ReleaseOnLocal);
        if send.state == SendState::Waiting && delivered && send.posted == send.written {
            self.connections[index].send.waiting -= 1;
            self.send_end(index, record, None);
        }
    }

    /// Ends a send; the user learns of it by `test`.
    pub(super) fn send_end(&mut self, index: usize, record: u8, error: Option<RequestError>) {
        let at = self.send_at(index, record);
        let send = &mut self.sends[at];
        send.state = SendState::Done;
        send.error = error;
        self.news += 1;
        self.regions.unpin(send.region);
    }

    /// Ends one receive of a group: the message is whole, or never will be.
    #[inline]
    pub(super) fn receive_end(
        &mut self,
        index: usize,
        group: Seq,
        receive: u8,
        error: Option<RequestError>,
    ) {
        let at = self.group_at(index, group);
        let record_at = self.receive_at(at, receive);
        let record = self.receives[record_at];
        self.groups[at].done |= 1 << receive;
        if error.is_some() && self.groups[at].error.is_none() {
            self.groups[at].error = error;
        }
        self.regions.unpin(record.region);
        self.cell_leave(index, record_at);
        self.stats.receives += 1;
        self.stats.receive_bytes += record.length;
        if record.total != 0 {
            self.delivered(index, Seq(record.label));
        }
    }

    /// A long message is no longer the sender's business, and the sender waits to hear of it. (A
    /// short one's request ended when it left.)
    #[inline]
    fn delivered(&mut self, index: usize, number: Seq) {
        let c = &mut self.connections[index];
        if c.recv.arrived.record(number) != Arrival::New {
            return self.connection_fail(index, RequestError::Protocol);
        }
        c.recv.delivery_news = true;
        let held = P::SEVERAL_LANES && c.rails.control_lane.blocked;
        self.work.insert(index);
        if held {
            self.control_release(index);
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
            RequestKind::Complete { generation, .. } if generation == self.config.salt => {
                Err(RequestIdError::Busy)
            }
            RequestKind::Complete { .. } => Err(RequestIdError::Stale),
            RequestKind::Send { connection, record, generation } => {
                self.send_cancel(connection.as_usize(), record, self.unsalted(generation))
            }
            RequestKind::Receive { connection, record, generation } => {
                self.receive_cancel(connection.as_usize(), record, self.unsalted(generation))
            }
        }
    }

    fn send_cancel(
        &mut self,
        index: usize,
        record: u8,
        generation: u32,
    ) -> Result<(), RequestIdError> {
        let requests = self.limits.requests_max;
        if index >= self.connections.len() || u32::from(record) >= requests {
            return Err(RequestIdError::Stale);
        }
        let send = self.sends[self.send_at(index, record)];
        if send.generation != generation || send.state == SendState::Free {
            return Err(RequestIdError::Stale);
        }
        if send.state != SendState::Queued {
            return Err(RequestIdError::Busy);
        }
        let (mut previous, mut at) = (None, self.connections[index].send.queue.head);
        while let Some(before) = at.filter(|at| *at != record) {
            (previous, at) = (at, self.queue_after(index, before));
        }
        self.queue_remove(index, previous, record);
        self.send_end(index, record, Some(RequestError::Canceled));
        self.work.insert(index);
        Ok(())
    }

    fn receive_cancel(
        &mut self,
        index: usize,
        record: u8,
        generation: u32,
    ) -> Result<(), RequestIdError> {
        if index >= self.connections.len() || u32::from(record) >= self.limits.requests_max {
            return Err(RequestIdError::Stale);
        }
        let at = self.send_at(index, record);
        let group = &mut self.groups[at];
        if !group.used || group.generation != generation {
            return Err(RequestIdError::Stale);
        }
        let number = group.number;
        if group.bound != 0 {
            return Err(RequestIdError::Busy);
        }
        let c = &mut self.connections[index];
        if !c.pull && number.before(c.recv.offers.through) {
            group.cancel = true;
            c.recv.offers.cancels_due = true;
            self.work.insert(index);
            return Ok(());
        }
        if !c.pull {
            // its slots will say that it is taken, by a number that no send has for long; an even
            // one, so that two withdrawn groups are never taken for a run of messages
            let nobody = Seq(c.recv.expected.plus(1 << 31).0 & !1);
            for receive in 0..group.count {
                let at = self.receive_at(at, receive);
                self.receives[at].label = nobody.0;
            }
        }
        self.group_withdraw(index, number);
        Ok(())
    }

    /// Ends requests of which no rail knows, as closing would; says whether others are left: rails
    /// may read and write memory of what is posted or offered until it is fenced.
    pub fn requests_give_up(&mut self, connection: ConnectionIndex) -> bool {
        let index = connection.as_usize();
        let mut is_left = false;
        for record in self.records() {
            is_left |= self.send_give_up(index, record);
        }
        for record in self.records() {
            is_left |= self.group_give_up(index, record);
        }
        is_left
    }

    fn send_give_up(&mut self, index: usize, record: u8) -> bool {
        let is_open = self.connections[index].state == ConnectionState::Open;
        let at = self.send_at(index, record);
        let SendRecord { state, generation, .. } = self.sends[at];
        // what is leaving is nobody's memory but the rail's
        if matches!(state, SendState::Free | SendState::Done | SendState::Leaving) {
            return false;
        }
        if !is_open || self.send_cancel(index, record, generation).is_err() {
            return true;
        }
        self.sends[at].error = Some(RequestError::Closed);
        false
    }

    fn group_give_up(&mut self, index: usize, record: u8) -> bool {
        let c = &self.connections[index];
        let at = self.send_at(index, record);
        let group = self.groups[at];
        if !group.used || group.done == matching::full(group.count) {
            return false;
        }
        let is_offered = !c.pull && group.number.before(c.recv.offers.through);
        let is_held = c.state != ConnectionState::Open || group.bound != 0 || is_offered;
        if is_held || self.receive_cancel(index, record, group.generation).is_err() {
            return true;
        }
        self.groups[at].error = Some(RequestError::Closed);
        false
    }

    /// The connection cannot go on: nothing more is posted, what is posted is fenced, then every
    /// request ends with `error`.
    pub(super) fn connection_fail(&mut self, index: usize, error: RequestError) {
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
        self.work.insert(index);
        self.trouble(index);
    }

    /// Ends the requests of a connection that is lost and fenced.
    pub(super) fn fence_settle(&mut self, index: usize) {
        let failing = self.connections[index].state == ConnectionState::Failing;
        if failing && self.is_quiet(index) {
            self.requests_end(index);
            self.connections[index].state = ConnectionState::Failed;
        }
        if P::SEVERAL_LANES && self.connections[index].rails.quarantine && self.is_quiet(index) {
            self.quarantine_end(index);
        }
    }

    /// Ends everything that is outstanding on a connection.
    pub(super) fn requests_end(&mut self, index: usize) {
        let error = self.connections[index].failure.0;
        for record in self.records() {
            let at = self.send_at(index, record);
            if !matches!(self.sends[at].state, SendState::Free | SendState::Done) {
                self.send_end(index, record, Some(error));
            }
            self.group_end(index, at, error);
        }
        self.left_keep(index);
        let c = &mut self.connections[index];
        c.send.queue = SendQueue::EMPTY;
        c.recv.messages.ahead = Queue::EMPTY;
        c.recv.messages.pulls = Queue::EMPTY;
        c.send.waiting = 0;
        (c.recv.offers.canceling, c.recv.offers.cancels_due) = (None, false);
    }

    pub(super) fn group_end(&mut self, index: usize, at: usize, error: RequestError) {
        let GroupRecord { count, done, used, .. } = self.groups[at];
        if !used || done == matching::full(count) {
            return;
        }
        for receive in 0..count {
            if done >> receive & 1 == 0 {
                let record_at = self.receive_at(at, receive);
                self.receives[record_at].length = 0;
                self.regions.unpin(self.receives[record_at].region);
                self.cell_leave(index, record_at);
            }
        }
        self.groups[at].done = matching::full(count);
        self.groups[at].bound = matching::full(count);
        self.groups[at].error = Some(error);
    }
}
