//! How requests end: well, or because an operation, a peer or the user ended them.
#![forbid(unsafe_code)]

use super::eager::{OP_CONTROL, OP_FENCE, OP_READ, OP_STATE, OP_STREAM, OP_STRIPE, op_id};
use super::endpoint::Endpoint;
use super::matching;
use super::records::{ConnectionState, Fence, GroupRecord, NIL, Queue, SendState};
use super::request::{RequestError, RequestId, RequestIdError, RequestKind};
use crate::base::ids::RailGeneration;
use crate::base::seq::{Arrival, Seq};
use crate::fabric::{DownCause, OpError, OpErrorKind, OpId, OpKind, PostError, Posted, Provider};
use crate::wire::GROUP_MAX;
use crate::wire::state::STATE_FAILED;

impl<P: Provider> Endpoint<'_, P> {
    /// An op that was pending has completed.
    pub(super) fn op_done(&mut self, index: usize, id: OpId, result: Result<(), OpError>) {
        let c = &mut self.connections[index];
        c.ops_in_flight = c.ops_in_flight.saturating_sub(1);
        if let Err(error) = result {
            self.op_failed(index, error);
        }
        let (record, part) = ((id.0 >> 8) as u8, id.0 as u8);
        match id.0 >> 32 {
            OP_STRIPE => self.stripe_written(index, record, part, result.is_ok()),
            OP_READ => self.read_done(index, record, part, result.is_ok()),
            OP_STATE => self.connections[index].state_flying = false,
            OP_CONTROL => self.connections[index].lines_flying -= 1,
            OP_STREAM | OP_FENCE => {}
            _ => debug_assert!(false, "completion of an op that was never posted"),
        }
        if self.connections[index].state != ConnectionState::Open {
            self.work.insert(index);
        }
    }

    fn op_failed(&mut self, index: usize, error: OpError) {
        match error.kind {
            // the provider reports the peer itself, with the cause
            OpErrorKind::PeerDown | OpErrorKind::Canceled => {}
            OpErrorKind::Key => self.connection_fail(index, RequestError::Protocol),
            OpErrorKind::Fabric => {
                self.connection_fail(index, RequestError::Fabric(error.code));
            }
        }
    }

    fn stripe_written(&mut self, index: usize, record: u8, stripe: u8, ok: bool) {
        let at = self.send_at(index, record);
        if ok && self.sends[at].state != SendState::Free {
            self.sends[at].written |= 1 << stripe;
            self.send_settle(index, record);
        }
    }

    fn read_done(&mut self, index: usize, cell: u8, receive: u8, ok: bool) {
        let at = index * self.limits.requests_max as usize + usize::from(cell);
        let group = self.groups[at];
        if ok && !group.free && self.connections[index].state == ConnectionState::Open {
            self.receive_end(index, group.number, receive, None);
        }
    }

    /// Ends a send that is delivered and whose source is free.
    pub(super) fn send_settle(&mut self, index: usize, record: u8) {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        if send.state == SendState::Waiting && send.delivered && send.posted == send.written {
            self.connections[index].waiting -= 1;
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
        let record_at = at * GROUP_MAX + usize::from(receive);
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
        if c.arrived.record(number) != Arrival::New {
            return self.connection_fail(index, RequestError::Protocol);
        }
        c.delivery_news = true;
        self.work.insert(index);
    }

    /// Asks for a request to end early.
    ///
    /// A receive that no message is bound to ends with [`RequestError::Canceled`], at once or,
    /// where its slot has been offered, when the peer has given it up. A send that has not left
    /// ends at once. Anything else says [`RequestIdError::Busy`] and ends by itself.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), RequestIdError> {
        match request.unpack().ok_or(RequestIdError::Stale)? {
            RequestKind::Complete { generation, .. } if generation == self.config.salt => {
                Err(RequestIdError::Busy)
            }
            RequestKind::Complete { .. } => Err(RequestIdError::Stale),
            RequestKind::Send { connection, record, generation } => {
                self.send_cancel(connection.as_usize(), record, generation)
            }
            RequestKind::Receive { connection, record, generation } => {
                self.receive_cancel(connection.as_usize(), record, generation)
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
        let mut previous = NIL;
        let mut at = self.connections[index].queue.head;
        while at != record {
            (previous, at) = (at, self.sends[self.send_at(index, at)].next);
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
        if group.free || group.generation != generation {
            return Err(RequestIdError::Stale);
        }
        let number = group.number;
        if group.bound != 0 {
            return Err(RequestIdError::Busy);
        }
        if self.connections[index].pull {
            self.group_withdraw(index, number);
        } else {
            group.cancel = true;
            self.connections[index].cancels_due = true;
            self.work.insert(index);
        }
        Ok(())
    }

    /// The connection cannot go on: nothing more is posted, what is posted is fenced, then every
    /// request ends with `error`.
    pub(super) fn connection_fail(&mut self, index: usize, error: RequestError) {
        if self.connections[index].state != ConnectionState::Open {
            return;
        }
        self.stats.failures += 1;
        if !self.connections[index].peer_down {
            self.state_write(index, STATE_FAILED); // one try: the peer has its own means too
        }
        let c = &mut self.connections[index];
        c.state = ConnectionState::Failing;
        c.failure.0 = error;
        self.work.insert(index);
    }

    /// The provider says that nothing more will come from a peer.
    pub(super) fn peer_went_down(&mut self, index: usize, cause: DownCause) {
        self.connections[index].peer_down = true;
        let error = match cause {
            DownCause::Closed => RequestError::PeerClosed,
            DownCause::Died => RequestError::PeerDied,
            DownCause::Failed => RequestError::Protocol,
            DownCause::Broken(code) => RequestError::Fabric(code),
        };
        self.connection_fail(index, error);
    }

    /// Fences both directions; says whether the rail had no room for it.
    pub(super) fn fence_step(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        if c.fence == Fence::Needed {
            let generation = RailGeneration(c.epoch);
            match self.post(index, op_id(OP_FENCE, 0, 0), OpKind::Fence { generation }) {
                Ok(Posted::Pending) => {
                    let c = &mut self.connections[index];
                    c.fence = Fence::Posted;
                    c.ops_in_flight -= 1; // answered by `Fenced`, not counted as an op
                }
                Err(PostError::Again) => return true,
                // a rail that cannot even be asked has forgotten the peer
                Ok(Posted::Done) | Err(PostError::PeerDown | PostError::Unsupported) => {
                    self.connections[index].fence = Fence::Holds;
                }
            }
        }
        self.fence_settle(index);
        false
    }

    /// A fence holds.
    pub(super) fn fenced(&mut self, index: usize) {
        self.connections[index].fence = Fence::Holds;
        self.fence_settle(index);
    }

    fn fence_settle(&mut self, index: usize) {
        let c = &self.connections[index];
        if c.is_quiet() && c.state == ConnectionState::Failing {
            self.requests_end(index);
            self.connections[index].state = ConnectionState::Failed;
        }
    }

    /// Ends everything that is outstanding on a connection.
    pub(super) fn requests_end(&mut self, index: usize) {
        let error = self.connections[index].failure.0;
        for record in 0..self.limits.requests_max as u8 {
            let at = self.send_at(index, record);
            if !matches!(self.sends[at].state, SendState::Free | SendState::Done) {
                self.send_end(index, record, Some(error));
            }
            self.group_end(index, at, error);
        }
        let c = &mut self.connections[index];
        c.queue = Queue::EMPTY;
        c.unexpected = Queue::EMPTY;
        c.ahead = Queue::EMPTY;
        c.pulls = Queue::EMPTY;
        c.waiting = 0;
        c.canceling = None;
    }

    fn group_end(&mut self, index: usize, at: usize, error: RequestError) {
        let GroupRecord { count, done, free, .. } = self.groups[at];
        if free || done == matching::full(count) {
            return;
        }
        for receive in 0..count {
            if done >> receive & 1 == 0 {
                let record_at = at * GROUP_MAX + usize::from(receive);
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
