//! The records of sends: how they are queued, and how they end.

use super::used::{RecordsUsed, record_leave, record_take, record_words};
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::ConnectionIndex;
use crate::base::seq::Seq;
use crate::fabric::Provider;
use crate::transport::limits::{EARLY_MAX, KEPT_BYTES, Limits, STREAM_KEPT};
use crate::transport::mr::Kept;
use crate::transport::mutant::Mutant;
use crate::transport::net::Net;
use crate::transport::records::{
    ConnectionState, EarlySend, NIL, SendRecord, SendState, StreamRecord,
};
use crate::transport::recv::groups::Recvs;
use crate::transport::request::{
    Outcome, Outgoing, RequestError, RequestId, RequestIdError, RequestKind, SubmitError,
};
use crate::wire::state::{STATE_CANCELED, STATE_FAILED, StateLine};

/// The sends of all connections.
#[derive(Debug)]
pub struct Sends<'m> {
    pub records: &'m mut [SendRecord],
    /// A bit for each of them that holds a send, in words of each connection.
    pub used: &'m mut [u64],
    pub early: &'m mut [EarlySend],
    /// Which stripes of each send each lane has carried and not been relieved of.
    pub carried: &'m mut [u64],
    /// Sends of the stream that may have to be sent again, and their payloads.
    pub stream: &'m mut [StreamRecord],
    pub kept: Kept,
}

impl<'m> Sends<'m> {
    /// Cuts the records of all sends out of a block.
    pub fn carve(block: &mut Carver<'m>, limits: &Limits) -> Result<Sends<'m>, BlockTooSmall> {
        let connections = limits.connections_max as usize;
        let requests = connections * limits.requests_max as usize;
        let (stream, kept) = match limits.rails_max {
            1 => (0, 0),
            _ => (STREAM_KEPT as usize, KEPT_BYTES as usize),
        };
        Ok(Sends {
            records: block.slice(requests)?,
            used: block.slice(connections * record_words(limits.requests_max))?,
            early: block.slice(connections * EARLY_MAX as usize)?,
            carried: block.slice(requests * limits.carried_words())?,
            stream: block.slice(connections * stream)?,
            kept: Kept::carve(block, connections * kept)?,
        })
    }
}

impl Sends<'_> {
    /// Ends a send that is delivered and whose source is free.
    pub fn send_settle<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, record: u8) {
        let at = net.send_at(index, record);
        let send = self.records[at];
        let delivered = send.delivered || net.is_mutant(Mutant::ReleaseOnLocal);
        if send.state == SendState::Waiting && delivered && send.posted == send.written {
            net.connections[index].send.waiting -= 1;
            self.send_end(net, index, record, None);
        }
    }

    /// Ends a send; the user learns of it by `test`.
    pub fn send_end<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
        error: Option<RequestError>,
    ) {
        let at = net.send_at(index, record);
        let send = &mut self.records[at];
        send.state = SendState::Done;
        send.error = error;
        net.news += 1;
        net.regions.unpin(send.region);
    }

    pub fn send_cancel<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
        generation: u32,
    ) -> Result<(), RequestIdError> {
        let requests = net.limits.requests_max;
        if index >= net.connections.len() || u32::from(record) >= requests {
            return Err(RequestIdError::Stale);
        }
        let send = self.records[net.send_at(index, record)];
        if send.generation != generation || send.state == SendState::Free {
            return Err(RequestIdError::Stale);
        }
        if send.state != SendState::Queued {
            return Err(RequestIdError::Busy);
        }
        let (mut previous, mut at) = (None, net.connections[index].send.queue.head);
        while let Some(before) = at.filter(|at| *at != record) {
            (previous, at) = (at, self.queue_after(net, index, before));
        }
        self.queue_remove(net, index, previous, record);
        self.send_end(net, index, record, Some(RequestError::Canceled));
        net.due.work.insert(index);
        Ok(())
    }

    pub fn send_give_up<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
    ) -> bool {
        let is_open = net.connections[index].state == ConnectionState::Open;
        let at = net.send_at(index, record);
        let SendRecord { state, generation, .. } = self.records[at];
        // what is leaving is nobody's memory but the rail's
        if matches!(state, SendState::Free | SendState::Done | SendState::Leaving) {
            return false;
        }
        if !is_open || self.send_cancel(net, index, record, generation).is_err() {
            return true;
        }
        self.records[at].error = Some(RequestError::Closed);
        false
    }

    /// Whether a record is free for a send.
    pub fn has_record<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> bool {
        self.sends_used(net, index).count() < net.limits.requests_max as usize
    }

    /// A record for a send, and the request that names it.
    pub fn send_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Option<(u8, RequestId)> {
        let records = net.limits.requests_max;
        let record = record_take(self.sends_used_mut(net, index), records)?;
        let at = net.send_at(index, record);
        let generation = self.records[at].generation;
        self.records[at] = SendRecord {
            address: message.address,
            length: message.length,
            tag: message.tag,
            region,
            generation,
            state: SendState::Queued,
            ..SendRecord::FREE
        };
        self.carried_clear(net, at);
        net.regions.pin(region);
        let (connection, generation) = (ConnectionIndex(index as u32), net.salted(generation));
        let request = RequestId::pack(RequestKind::Send { connection, record, generation });
        Some((record, request))
    }

    /// Keeps a send for later, and tries at once.
    #[inline(never)]
    pub fn send_queue<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let plain = message.length <= net.connections[index].rails.transfer_max().0;
        if !plain && message.length > net.length_max(index) {
            return Err(SubmitError::TooLong);
        }
        let taken = self.send_take(net, index, region, message);
        let (record, request) = taken.ok_or(SubmitError::Again)?;
        self.queue_append(net, index, record);
        if self.sends_step(net, recvs, index) {
            net.stats.queued += 1;
            net.due.watch.insert(index);
            net.due.work.insert(index);
        }
        Ok(request)
    }

    fn queue_append<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, record: u8) {
        let queue = &mut net.connections[index].send.queue;
        let tail = core::mem::replace(&mut queue.tail, record);
        if queue.is_empty() {
            queue.head = Some(record);
        } else {
            let at = net.send_at(index, tail);
            self.records[at].next = record;
        }
    }

    /// What follows a queued send.
    #[inline]
    pub fn queue_after<P: Provider>(
        &self,
        net: &Net<'_, P>,
        index: usize,
        record: u8,
    ) -> Option<u8> {
        let last = net.connections[index].send.queue.tail == record;
        (!last).then(|| self.records[net.send_at(index, record)].next)
    }

    /// Takes `record`, which follows `previous`, out of the queue.
    pub fn queue_remove<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        previous: Option<u8>,
        record: u8,
    ) {
        let next = self.queue_after(net, index, record);
        let at = net.send_at(index, record);
        self.records[at].next = NIL;
        match (previous, next) {
            (None, next) => net.connections[index].send.queue.head = next,
            (Some(previous), Some(next)) => {
                let before = net.send_at(index, previous);
                self.records[before].next = next;
            }
            (Some(_), None) => {}
        }
        if next.is_none() {
            net.connections[index].send.queue.tail = previous.unwrap_or(0);
        }
    }

    /// Moves queued sends on; says whether some remain.
    pub fn sends_step<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) -> bool {
        if net.connections[index].pull {
            self.descriptors_step(net, recvs, index)
        } else {
            self.bind_step(net, recvs, index) | self.stripes_step(net, recvs, index)
        }
    }

    /// Takes in the cumulative fields that heads, slots and state lines share.
    #[inline(always)]
    pub fn acks_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        credits: Seq,
        delivered: Seq,
    ) {
        if net.connections[index].acks_raise(credits, delivered) {
            self.deliveries_apply(net, index, delivered, 0);
        }
    }

    /// Ends the sends that the peer has: those below `through`, and those in `mask` from there on.
    /// The mask counts from its own line's `through`, which a head may have overtaken.
    #[inline(never)]
    pub fn deliveries_apply<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        through: Seq,
        mask: u64,
    ) {
        for record in self.sends_used(net, index) {
            let at = net.send_at(index, record);
            let send = &mut self.records[at];
            if !matches!(send.state, SendState::Waiting | SendState::Writing) {
                continue;
            }
            let ahead = send.number.ahead_of(through);
            if ahead < 0 || (ahead < 64 && mask >> ahead & 1 == 1) {
                send.delivered = true;
                self.send_settle(net, index, record);
            }
        }
    }

    /// Looks at the peer's state line. *Cost*: one load when nothing is new.
    #[inline(never)]
    pub fn state_look<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) {
        let last = net.mailboxes.last_word(index, 0);
        let c = &net.connections[index];
        if last as u32 == c.control.lines.seen || (last >> 32) as u32 != c.control.peer_epoch {
            return;
        }
        self.state_take(net, recvs, index);
    }

    fn state_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) {
        let Ok(line) = StateLine::decode(&net.mailboxes.line(index, 0)) else {
            return; // half written: the whole line will be there at the next look
        };
        if Seq(line.sequence).ahead_of(Seq(net.connections[index].control.lines.seen)) <= 0 {
            return;
        }
        net.connections[index].control.lines.seen = line.sequence;
        net.news += 1;
        self.acks_take(net, index, Seq(line.credits_through), Seq(line.delivered_through));
        let c = &mut net.connections[index];
        if !c.has_groups(Seq(line.groups_through)) {
            return net.connection_fail(index, RequestError::Protocol);
        }
        c.recv.offers.passed_take(Seq(line.groups_through));
        c.send.stream.taken_take(Seq(line.eager_through));
        if net.connections[index].send.waiting != 0 && line.delivered_mask != 0 {
            self.deliveries_apply(net, index, Seq(line.delivered_through), line.delivered_mask);
        }
        if line.flags & STATE_CANCELED != 0 {
            recvs.canceled_take(net, index, Seq(line.canceled_group));
        }
        if line.flags & STATE_FAILED != 0 {
            net.connection_fail(index, RequestError::PeerGaveUp);
        }
        if !net.connections[index].pull {
            net.due.work.insert(index); // slots may have become writable
        }
    }

    /// The numbers of the records that hold sends.
    #[inline]
    pub fn sends_used<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> RecordsUsed {
        let words = record_words(net.limits.requests_max);
        RecordsUsed::of(&self.used[index * words..][..words])
    }

    #[inline]
    pub fn sends_used_mut<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
    ) -> &mut [u64] {
        let words = record_words(net.limits.requests_max);
        &mut self.used[index * words..][..words]
    }

    /// The send on its way that is bound to a receive of the peer's.
    pub fn send_by_token<P: Provider>(
        &self,
        net: &Net<'_, P>,
        index: usize,
        token: u32,
    ) -> Option<usize> {
        let first = net.send_at(index, 0);
        (first..first + net.limits.requests_max as usize).find(|at| {
            let send = &self.records[*at];
            let bound = matches!(send.state, SendState::Writing | SendState::Waiting);
            bound && send.token == token
        })
    }

    #[inline(never)]
    pub fn send_test<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> Result<Option<Outcome>, RequestIdError> {
        let at = net.record_at(connection, record)?;
        let send = &self.records[at];
        if send.generation != generation || send.state == SendState::Free {
            return Err(RequestIdError::Stale);
        }
        if send.state != SendState::Done {
            return Ok(None);
        }
        let outcome = Outcome::one(send.error.map_or(Ok(()), Err), send.length);
        let (generation, region) = (send.generation.wrapping_add(1), send.region);
        // where it is in quarantine, the record says so also when its user has asked
        self.records[at] = SendRecord { generation, region, ..SendRecord::FREE };
        record_leave(self.sends_used_mut(net, connection.as_usize()), record);
        Ok(Some(outcome))
    }

    /// By lane, the stripes of a send that it has carried. Where there is one lane at most, nobody
    /// asks.
    #[inline]
    pub fn carried_mut<P: Provider>(&mut self, net: &mut Net<'_, P>, send_at: usize) -> &mut [u64] {
        let (first, _) = self.carried_place(net, send_at);
        &mut self.carried[first..first + (1 << net.lanes.bits)]
    }

    /// The same, to look at.
    pub fn carried_of<P: Provider>(&self, net: &Net<'_, P>, send_at: usize) -> &[u64] {
        let (first, _) = self.carried_place(net, send_at);
        &self.carried[first..first + (1 << net.lanes.bits)]
    }

    /// The stripes of a send that the peer has said it has.
    #[inline]
    pub fn arrived_mut<P: Provider>(&mut self, net: &mut Net<'_, P>, send_at: usize) -> &mut u64 {
        let (first, each) = self.carried_place(net, send_at);
        &mut self.carried[first + each - 1]
    }

    /// The same.
    pub fn arrived_of<P: Provider>(&self, net: &Net<'_, P>, send_at: usize) -> u64 {
        let (first, each) = self.carried_place(net, send_at);
        self.carried[first + each - 1]
    }

    /// Nothing of a send was carried yet.
    #[inline]
    fn carried_clear<P: Provider>(&mut self, net: &mut Net<'_, P>, send_at: usize) {
        if net.lanes.bits != 0 {
            let (first, each) = self.carried_place(net, send_at);
            self.carried[first..first + each].fill(0);
        }
    }

    #[inline]
    fn carried_place<P: Provider>(&self, net: &Net<'_, P>, send_at: usize) -> (usize, usize) {
        let each = (1 << net.lanes.bits) + 1;
        (send_at * each, each)
    }

    #[inline(never)]
    pub fn is_outstanding<P: Provider>(
        &self,
        net: &Net<'_, P>,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> bool {
        net.record_at(connection, record).is_ok_and(|at| {
            let send = &self.records[at];
            let ended = matches!(send.state, SendState::Free | SendState::Done);
            send.generation == generation && !ended
        })
    }

    /// Makes the records of a connection free; requests of its earlier use are stale from now on.
    pub fn clear<P: Provider>(&mut self, net: &Net<'_, P>, index: usize) {
        for record in self.sends_used(net, index) {
            let at = net.send_at(index, record);
            let generation = self.records[at].generation.wrapping_add(1);
            self.records[at] = SendRecord { generation, ..SendRecord::FREE };
        }
        let words = record_words(net.limits.requests_max);
        self.used[index * words..][..words].fill(0);
    }
}
