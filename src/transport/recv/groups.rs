//! The records of receives: how groups are taken, and how they end.

use super::held::Held;
use super::matching;
use crate::base::carve::{BlockTooSmall, Carver};
use crate::base::ids::ConnectionIndex;
use crate::base::seq::{Arrival, Seq};
use crate::fabric::Provider;
use crate::transport::limits::{Limits, MESSAGE_BYTES_MAX};
use crate::transport::mr::DataMrs;
use crate::transport::net::Net;
use crate::transport::records::{ConnectionState, GroupRecord, ReceiveRecord};
use crate::transport::request::{
    Incoming, Outcome, RequestError, RequestId, RequestIdError, RequestKind, SubmitError,
};
use crate::wire::GROUP_MAX;

/// The receives of all connections.
#[derive(Debug)]
pub struct Recvs<'m> {
    pub groups: &'m mut [GroupRecord],
    pub receives: &'m mut [ReceiveRecord],
    pub held: Held<'m>,
}

impl<'m> Recvs<'m> {
    /// Cuts the records of all receives out of a block.
    pub fn carve(block: &mut Carver<'m>, limits: &Limits) -> Result<Recvs<'m>, BlockTooSmall> {
        let connections = limits.connections_max as usize;
        let requests = connections * limits.requests_max as usize;
        Ok(Recvs {
            groups: block.slice(requests)?,
            receives: block.slice(requests * GROUP_MAX)?,
            held: Held::carve(block, connections)?,
        })
    }
}

impl Recvs<'_> {
    /// Where a receive of the group stands whose record is at `at`: the first receives of all
    /// groups, which mostly are the only ones, lie together.
    #[inline]
    pub fn receive_at(&self, at: usize, receive: u8) -> usize {
        at + usize::from(receive) * self.groups.len()
    }

    /// The first `count` receives of that group.
    pub fn receives_of(&self, at: usize, count: u8) -> impl Iterator<Item = &ReceiveRecord> + '_ {
        (0..count).map(move |receive| &self.receives[self.receive_at(at, receive)])
    }

    /// Accepts a group of receives on a connection that takes it.
    #[inline(always)]
    pub fn group_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        connection: ConnectionIndex,
        index: usize,
        buffers: &[Incoming],
    ) -> Result<RequestId, SubmitError> {
        if buffers.is_empty() || buffers.len() > GROUP_MAX {
            return Err(SubmitError::Group);
        }
        let requests = net.limits.requests_max;
        let is_device = |it: &Incoming| it.length != 0 && net.is_device(it.region.index as u16);
        if P::REACHES_DEVICES && buffers.iter().any(is_device) && !net.reaches_device(index) {
            return Err(SubmitError::Device);
        }
        let c = &mut net.connections[index];
        let number = c.recv.post;
        let at = index * requests as usize + number.cell(requests);
        let requests_all = self.groups.len();
        let group = &mut self.groups[at];
        let offered = c.pull || number.ahead_of(c.recv.offers.next) < requests as i32;
        // where slots may have to be written again, their records wait until the peer is past them
        let kept = P::SEVERAL_LANES
            && c.rails.fails_over()
            && number.ahead_of(c.recv.offers.passed) >= requests as i32;
        if group.used || !offered || kept {
            return Err(SubmitError::Again);
        }
        // the record is free: what a refused group leaves in it does not count
        match buffers {
            [buffer] => self.receives[at] = receive_take(&net.regions, buffer)?,
            _ => receives_take(&net.regions, &mut self.receives[at..], requests_all, buffers)?,
        }
        let generation = group.generation.wrapping_add(1);
        let count = buffers.len() as u8;
        *group = GroupRecord { number, generation, count, used: true, ..GroupRecord::FREE };
        c.recv.post = number.next();
        let unexpected = !c.recv.messages.unexpected.is_empty() && c.recv.oldest == number;
        if !c.pull {
            net.due.work.insert(index);
        }
        if unexpected {
            self.unexpected_match(net, index);
        }
        let (record, generation) = (number.cell(requests) as u8, net.salted(generation));
        Ok(RequestId::pack(RequestKind::Receive { connection, record, generation }))
    }

    /// A receive on a connection that is not open, which `refusal` is the answer to where nothing
    /// is left.
    #[cold]
    #[inline(never)]
    pub fn irecv_left<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        connection: ConnectionIndex,
        buffers: &[Incoming],
        refusal: SubmitError,
    ) -> Result<RequestId, SubmitError> {
        let index = connection.as_usize();
        let Some(c) = net.connections.get_mut(index) else { return Err(refusal) };
        if !c.outlived() || c.recv.messages.unexpected.is_empty() {
            return Err(refusal);
        }
        match c.state {
            ConnectionState::Failing => return Err(SubmitError::Again), // what is posted is fenced
            ConnectionState::Failed => {}
            _ => return Err(refusal),
        }
        // nobody is offered anything any more
        (c.recv.offers.next, c.recv.offers.passed) = (c.recv.post, c.recv.post);
        self.oldest_advance(net, index);
        let request = self.group_take(net, connection, index, buffers)?;
        if let Some(RequestKind::Receive { record, .. }) = request.unpack() {
            let (at, error) = (net.send_at(index, record), net.connections[index].failure.0);
            self.group_end(net, index, at, error);
        }
        Ok(request)
    }

    /// Ends one receive of a group: the message is whole, or never will be.
    #[inline]
    pub fn receive_end<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        group: Seq,
        receive: u8,
        error: Option<RequestError>,
    ) {
        let at = net.group_at(index, group);
        let record_at = self.receive_at(at, receive);
        let record = self.receives[record_at];
        self.groups[at].done |= 1 << receive;
        if error.is_some() && self.groups[at].error.is_none() {
            self.groups[at].error = error;
        }
        net.regions.unpin(record.region);
        self.cell_leave(net, index, record_at);
        net.stats.receives += 1;
        net.stats.receive_bytes += record.length;
        if record.total != 0 {
            self.delivered(net, index, Seq(record.label));
        }
    }

    /// A long message is no longer the sender's business, and the sender waits to hear of it. (A
    /// short one's request ended when it left.)
    #[inline]
    fn delivered<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, number: Seq) {
        let c = &mut net.connections[index];
        if c.recv.arrived.record(number) != Arrival::New {
            return net.connection_fail(index, RequestError::Protocol);
        }
        c.recv.delivery_news = true;
        let held = P::SEVERAL_LANES && c.rails.control_lane.blocked;
        net.due.work.insert(index);
        if held {
            net.control_release(index);
        }
    }

    pub fn receive_cancel<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
        generation: u32,
    ) -> Result<(), RequestIdError> {
        if index >= net.connections.len() || u32::from(record) >= net.limits.requests_max {
            return Err(RequestIdError::Stale);
        }
        let at = net.send_at(index, record);
        let group = &mut self.groups[at];
        if !group.used || group.generation != generation {
            return Err(RequestIdError::Stale);
        }
        let number = group.number;
        if group.bound != 0 {
            return Err(RequestIdError::Busy);
        }
        let c = &mut net.connections[index];
        if !c.pull && number.before(c.recv.offers.through) {
            group.cancel = true;
            c.recv.offers.cancels_due = true;
            net.due.work.insert(index);
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
        self.group_withdraw(net, index, number);
        Ok(())
    }

    pub fn group_give_up<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
    ) -> bool {
        let c = &net.connections[index];
        let at = net.send_at(index, record);
        let group = self.groups[at];
        if !group.used || group.done == matching::full(group.count) {
            return false;
        }
        let is_offered = !c.pull && group.number.before(c.recv.offers.through);
        let is_held = c.state != ConnectionState::Open || group.bound != 0 || is_offered;
        if is_held || self.receive_cancel(net, index, record, group.generation).is_err() {
            return true;
        }
        self.groups[at].error = Some(RequestError::Closed);
        false
    }

    /// Ends a group that nothing was, or will be, bound to.
    pub fn group_withdraw<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, number: Seq) {
        let at = net.group_at(index, number);
        let GroupRecord { count, .. } = self.groups[at];
        self.groups[at].bound = matching::full(count);
        self.groups[at].done = matching::full(count);
        self.groups[at].error = Some(RequestError::Canceled);
        for receive in 0..count {
            let cell = self.receive_at(at, receive);
            self.receives[cell].length = 0;
            net.regions.unpin(self.receives[cell].region);
            self.cell_leave(net, index, cell);
        }
        self.oldest_advance(net, index);
        self.unexpected_match(net, index);
    }

    pub fn group_end<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        at: usize,
        error: RequestError,
    ) {
        let GroupRecord { count, done, used, .. } = self.groups[at];
        if !used || done == matching::full(count) {
            return;
        }
        for receive in 0..count {
            if done >> receive & 1 == 0 {
                let record_at = self.receive_at(at, receive);
                self.receives[record_at].length = 0;
                net.regions.unpin(self.receives[record_at].region);
                self.cell_leave(net, index, record_at);
            }
        }
        self.groups[at].done = matching::full(count);
        self.groups[at].bound = matching::full(count);
        self.groups[at].error = Some(error);
    }

    /// Where a group that its user has not been told of stands.
    #[inline(always)]
    pub fn group_used<P: Provider>(
        &self,
        net: &Net<'_, P>,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> Option<usize> {
        let requests = net.limits.requests_max;
        // with such a record, only a connection that exists has its place in the table
        let at = connection.as_usize() * requests as usize + usize::from(record);
        let group = self.groups.get(at)?;
        let used = u32::from(record) < requests && group.generation == generation && group.used;
        used.then_some(at)
    }

    /// How a group ended; its record is free from now on.
    #[inline(always)]
    pub fn receive_outcome(&mut self, at: usize) -> Outcome {
        let group = &mut self.groups[at];
        group.used = false;
        let (count, result) = (group.count, group.error.map_or(Ok(()), Err));
        if count > 1 {
            return self.group_outcome(at, count, result);
        }
        Outcome::one(result, self.receives[at].length)
    }

    #[inline(never)]
    fn group_outcome(&self, at: usize, count: u8, result: Result<(), RequestError>) -> Outcome {
        let mut lengths = [0; GROUP_MAX];
        for (length, receive) in lengths.iter_mut().zip(self.receives_of(at, count)) {
            *length = receive.length;
        }
        Outcome { result, count, lengths }
    }

    /// Makes the records of a connection free; requests of its earlier use are stale from now on.
    pub fn clear<P: Provider>(&mut self, net: &Net<'_, P>, index: usize) {
        let first = net.send_at(index, 0);
        for group in &mut self.groups[first..][..net.limits.requests_max as usize] {
            // one that was never used stays untouched
            if group.generation != 0 {
                *group = GroupRecord { generation: group.generation, ..GroupRecord::FREE };
            }
        }
        self.held.clear(index);
    }
}

/// The record of one receive, whose region is pinned for it.
#[inline(always)]
fn receive_take(regions: &DataMrs<'_>, buffer: &Incoming) -> Result<ReceiveRecord, SubmitError> {
    if buffer.length > MESSAGE_BYTES_MAX {
        return Err(SubmitError::TooLong);
    }
    let region = regions.check_and_pin(buffer.region, buffer.address, buffer.length)?;
    Ok(ReceiveRecord {
        address: buffer.address,
        length: buffer.length,
        label: buffer.tag as u32,
        region,
        ..ReceiveRecord::FREE
    })
}

/// The records of a group, every `step`-th; when one buffer is refused, none is pinned.
#[inline(never)]
fn receives_take(
    regions: &DataMrs<'_>,
    records: &mut [ReceiveRecord],
    step: usize,
    buffers: &[Incoming],
) -> Result<(), SubmitError> {
    for (at, buffer) in buffers.iter().enumerate() {
        match receive_take(regions, buffer) {
            Ok(record) => records[at * step] = record,
            Err(error) => {
                let taken = records.iter().step_by(step).take(at);
                taken.for_each(|record| regions.unpin(record.region));
                return Err(error);
            }
        }
    }
    Ok(())
}
