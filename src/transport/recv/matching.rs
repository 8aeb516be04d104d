//! Which receive of a group a message fills: the one function that both sides apply.

use super::groups::Recvs;
use super::matching;
use crate::base::ids::PeerIndex;
use crate::base::seq::Seq;
use crate::fabric::{OpKind, PostError, Posted, Provider, RailKey, RecvSlot, RemoteSpan};
use crate::transport::limits::{MESSAGE_BYTES_MAX, UNDELIVERED_MAX};
use crate::transport::net::{Net, OP_READ, op_id};
use crate::transport::rails::table::DataRail;
use crate::transport::records::{ConnectionState, HeldMessage, NIL, Queue};
use crate::transport::request::RequestError;
use crate::wire::descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor};
use crate::wire::head::{KIND_DESCRIPTOR, KIND_EAGER, KIND_START, SendHead};

/// The first receive that is not bound and has `tag`. `bound` has bit `i` set when receive `i` is
/// taken; `tags` are those of the group in order.
#[inline]
pub fn find(tags: impl Iterator<Item = i32>, bound: u8, tag: i32) -> Option<u8> {
    for (index, receive_tag) in tags.enumerate() {
        if receive_tag == tag && bound >> index & 1 == 0 {
            return Some(index as u8);
        }
    }
    None
}

/// The `bound` mask of a group of `count` receives that are all taken.
pub const fn full(count: u8) -> u8 {
    ((1u16 << count) - 1) as u8
}

impl Recvs<'_> {
    /// Delivers the common message: short, in turn, and for the one receive of the oldest group.
    /// Says whether sends may have been delivered by what its head acknowledges; `None`: it is
    /// another message, and nothing was changed.
    ///
    /// Every record is looked up once.
    #[inline(always)]
    pub fn expected_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (peer, slot): (PeerIndex, RecvSlot),
        head: &SendHead,
        length: u32,
    ) -> Option<bool> {
        let length = u64::from(length);
        let at = net.group_at(index, net.connections[index].recv.oldest);
        let c = &mut net.connections[index];
        let (group, receive) = (&mut self.groups[at], &mut self.receives[at]);
        let common = head.kind == KIND_EAGER
            && head.stripes == 0
            && c.state == ConnectionState::Open
            && head.eager_number == c.recv.expected.0
            && c.recv.oldest != c.recv.post
            && c.has_groups(Seq(head.group_base))
            && c.recv.has_no_detours()
            && group.count == 1
            && group.bound == 0
            && receive.label as i32 == head.tag
            && length <= receive.length
            && !(P::REACHES_DEVICES && net.regions.is_device(receive.region));
        if !common {
            return None;
        }
        let delivers = c.acks_raise(Seq(head.credits_through), Seq(head.delivered_through));
        c.recv.offers.passed_take(Seq(head.group_base));
        c.recv.expected = c.recv.expected.next();
        c.recv.oldest = c.recv.oldest.next();
        let more = c.recv.oldest != c.recv.post;
        (group.bound, group.done) = (1, 1);
        receive.length = length;
        receive.label = head.eager_number;
        let owes = P::SEVERAL_LANES && c.took(length as u32);
        if receive.cell != NIL {
            c.recv.cells.drop_user(receive);
        }
        if c.control.credits.free() || owes {
            net.due.work.insert(index);
        }
        net.stats.receives += 1;
        net.stats.receive_bytes += length;
        let region = receive.region;
        if length != 0 {
            let span = net.regions.span(region, receive.address, length, DataRail(0));
            net.rail.received_take(peer, slot, span);
        } else {
            net.rail.received_release(peer, slot);
        }
        net.regions.unpin(region);
        if more {
            self.oldest_advance(net, index); // over groups that were withdrawn
        }
        Some(delivers)
    }

    /// Takes in the next send of the stream.
    #[inline]
    pub fn in_turn<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        message: HeldMessage,
    ) {
        let c = &mut net.connections[index];
        c.recv.expected = c.recv.expected.next();
        c.control.taken.bytes = c.control.taken.bytes.wrapping_add(message.length);
        if c.taken_due() {
            net.due.work.insert(index);
        }
        if net.connections[index].recv.offers.cancels_due {
            self.passed_take(net, index, message.group_base);
            // it may fill the group that asks: the next one has its turn
            net.due.work.insert(index);
        }
        let oldest = net.connections[index].recv.oldest;
        if message.kind == KIND_START {
            self.start_arrived(net, index, message);
        } else if let Some(receive) = self.match_oldest(net, index, message.tag) {
            self.bind(net, index, receive, message);
        } else {
            net.stats.unexpected += 1;
            self.hold_unexpected(net, index, message);
        }
        let c = &net.connections[index];
        if c.recv.oldest != oldest && !c.recv.messages.unexpected.is_empty() {
            // the new oldest group may take what the last did not
            self.unexpected_match(net, index);
        }
    }

    /// The receive of the oldest group that takes `tag`.
    #[inline]
    fn match_oldest<P: Provider>(&self, net: &Net<'_, P>, index: usize, tag: i32) -> Option<u8> {
        let c = &net.connections[index];
        if c.recv.oldest == c.recv.post {
            return None;
        }
        let at = net.group_at(index, c.recv.oldest);
        let group = &self.groups[at];
        let receives = self.receives_of(at, group.count);
        matching::find(receives.map(|r| r.label as i32), group.bound, tag)
    }

    /// Gives a message to a receive of the oldest group.
    fn bind<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        receive: u8,
        message: HeldMessage,
    ) {
        let number = net.connections[index].recv.oldest;
        let at = net.group_at(index, number);
        let cell = self.receive_at(at, receive);
        self.groups[at].bound |= 1 << receive;
        let record = &mut self.receives[cell];
        let room = record.length;
        let long = message.kind == KIND_DESCRIPTOR;
        record.label = if long { message.number.0 } else { message.eager_number.0 };
        if self.groups[at].bound == matching::full(self.groups[at].count) {
            self.oldest_advance(net, index);
        }
        match message.kind {
            KIND_DESCRIPTOR => self.pull_begin(net, index, number, receive, message),
            _ => self.eager_deliver(net, index, (number, receive), room, message),
        }
    }

    /// Steps over the groups that are fully bound.
    pub fn oldest_advance<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        loop {
            let c = &net.connections[index];
            if c.recv.oldest == c.recv.post {
                return;
            }
            let group = self.groups[net.group_at(index, c.recv.oldest)];
            let open = group.number == c.recv.oldest
                && group.used
                && group.bound != matching::full(group.count);
            if open {
                return;
            }
            net.connections[index].recv.oldest = c.recv.oldest.next();
        }
    }

    #[inline]
    fn eager_deliver<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (group, receive): (Seq, u8),
        room: u64,
        message: HeldMessage,
    ) {
        let length = u64::from(message.length);
        let at = self.receive_at(net.group_at(index, group), receive);
        let record = &mut self.receives[at];
        record.length = length;
        let error = if length > room {
            net.stats.truncated += 1;
            Some(RequestError::Truncated)
        } else if length != 0 && net.is_device(record.region) {
            return self.pull_begin(net, index, group, receive, message);
        } else {
            let span = net.regions.span(record.region, record.address, length, DataRail(0));
            if length != 0 {
                let peer = net.lane_peer_of(index, message.lane);
                net.rail.received_copy(peer, message.slot, 0, span);
            }
            None
        };
        self.release(net, index, &message);
        self.receive_end(net, index, group, receive, error);
    }

    /// Gives a receive slot back to the rail, and with it a credit to the peer.
    #[inline]
    pub fn release<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        message: &HeldMessage,
    ) {
        let peer = net.lane_peer_of(index, message.lane);
        net.rail.received_release(peer, message.slot);
        net.credit_return(index);
    }

    /// Tries the unexpected messages against the oldest group, in order, until none fits.
    pub fn unexpected_match<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        let mut previous = NIL;
        let mut record = net.connections[index].recv.messages.unexpected.head;
        while record != NIL {
            let message = *self.held.get(index, record);
            match self.match_oldest(net, index, message.tag) {
                Some(receive) => {
                    let oldest = net.connections[index].recv.oldest;
                    let messages = &mut net.connections[index].recv.messages;
                    let list = &mut messages.unexpected;
                    let next = self.held.unlink(index, list, previous, record);
                    self.held.release(index, messages, record);
                    self.bind(net, index, receive, message);
                    let same = net.connections[index].recv.oldest == oldest;
                    // a new oldest group may take what the last one did not
                    (previous, record) = if same {
                        (previous, next)
                    } else {
                        (NIL, net.connections[index].recv.messages.unexpected.head)
                    };
                }
                None => (previous, record) = (record, message.next),
            }
        }
    }

    fn hold_unexpected<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        message: HeldMessage,
    ) {
        let messages = &mut net.connections[index].recv.messages;
        match self.held.acquire(index, messages, message) {
            Some(record) => self.held.append(index, &mut messages.unexpected, record),
            None => net.connection_fail(index, RequestError::Protocol),
        }
    }

    /// Keeps a send that came before its turn; one from the past breaks the protocol.
    pub fn hold_ahead<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        message: HeldMessage,
    ) {
        let c = &net.connections[index];
        let ahead = message.eager_number.ahead_of(c.recv.expected);
        // an ordered lane that has lost a send has failed: its sender knows, and sends again
        let ordered =
            c.rails.control_lane.is_ordered() && !(P::SEVERAL_LANES && c.rails.fails_over());
        if ahead <= 0 || ahead as u32 > UNDELIVERED_MAX || ordered {
            return net.connection_fail(index, RequestError::Protocol);
        }
        let messages = &mut net.connections[index].recv.messages;
        match self.held.acquire(index, messages, message) {
            Some(record) => self.held.prepend(index, &mut messages.ahead, record),
            None => net.connection_fail(index, RequestError::Protocol),
        }
    }

    /// Takes in those whose turn has come.
    pub fn ahead_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        let (mut previous, mut record) = (NIL, net.connections[index].recv.messages.ahead.head);
        while record != NIL {
            let message = *self.held.get(index, record);
            if message.eager_number != net.connections[index].recv.expected {
                (previous, record) = (record, message.next);
                continue;
            }
            let messages = &mut net.connections[index].recv.messages;
            self.held.unlink(index, &mut messages.ahead, previous, record);
            self.held.release(index, messages, record);
            self.in_turn(net, index, HeldMessage { next: NIL, ..message });
            (previous, record) = (NIL, net.connections[index].recv.messages.ahead.head);
        }
    }

    /// The peer will not write into a group that we asked back.
    pub fn canceled_take<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, group: Seq) {
        if !self.groups[net.group_at(index, group)].is_canceled(group) {
            return;
        }
        self.group_withdraw(net, index, group);
        net.due.work.insert(index); // the next withdrawal may be asked for
    }

    /// The peer has passed all groups below `base` when it sent what is in turn now: those that we
    /// asked back, and that nothing was bound to until now, it has given up.
    fn passed_take<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, base: Seq) {
        loop {
            let oldest = net.connections[index].recv.oldest;
            let canceled = self.groups[net.group_at(index, oldest)].is_canceled(oldest);
            if !canceled || !oldest.before(base) {
                return;
            }
            self.canceled_take(net, index, oldest);
        }
    }

    /// Of the messages that nobody has asked for, keeps those that lie here whole, up to the first
    /// that would have to be read at the peer's. None once the user has closed the connection.
    pub fn left_keep<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        let c = &net.connections[index];
        let (mut last, mut record) = (NIL, NIL);
        if c.state == ConnectionState::Failing && c.outlived() {
            record = c.recv.messages.unexpected.head;
        }
        while record != NIL {
            let message = self.held.get(index, record);
            if message.kind != KIND_EAGER {
                break;
            }
            (last, record) = (record, message.next);
        }
        let list = &mut net.connections[index].recv.messages.unexpected;
        match last {
            NIL => *list = Queue::EMPTY,
            last => self.held.cut_behind(index, list, last),
        }
    }

    /// Forgets sends that came on a lane before their turn: they come again, on another.
    pub fn ahead_drop<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, lane: u8) {
        let peer = net.lane_peer_of(index, lane);
        let (mut previous, mut record) = (NIL, net.connections[index].recv.messages.ahead.head);
        while record != NIL {
            let message = *self.held.get(index, record);
            if message.lane != lane {
                (previous, record) = (record, message.next);
                continue;
            }
            let messages = &mut net.connections[index].recv.messages;
            self.held.unlink(index, &mut messages.ahead, previous, record);
            self.held.release(index, messages, record);
            // no credit returns: the same credit pays for it when it comes again
            net.rail.received_release(peer, message.slot);
            record = message.next;
        }
    }

    pub fn read_done<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        cell: u8,
        receive: u8,
        ok: bool,
    ) {
        let at = index * net.limits.requests_max as usize + usize::from(cell);
        let group = self.groups[at];
        if ok && group.used && net.connections[index].state == ConnectionState::Open {
            self.receive_end(net, index, group.number, receive, None);
        }
    }

    /// A descriptor was bound to a receive: reads the message, now or when the rail has room.
    pub fn pull_begin<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        group: Seq,
        receive: u8,
        message: HeldMessage,
    ) {
        if net.connections[index].recv.messages.pulls.is_empty()
            && self.pull_read(net, index, group, receive, &message) == Reading::Begun
        {
            return;
        }
        // the descriptor stays in its slot; the record says which receive it is bound to
        let waiting = HeldMessage { tag: receive.into(), number: group, ..message };
        let messages = &mut net.connections[index].recv.messages;
        match self.held.acquire(index, messages, waiting) {
            Some(record) => {
                self.held.append(index, &mut messages.pulls, record);
                net.due.work.insert(index);
            }
            None => net.connection_fail(index, RequestError::Protocol),
        }
    }

    /// Has the rail copy a short message that was bound to a receive into a GPU's memory.
    fn eager_read<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (group, receive): (Seq, u8),
        message: &HeldMessage,
    ) -> Reading {
        let at = self.receive_at(net.group_at(index, group), receive);
        let record = self.receives[at];
        let target = net.regions.span(record.region, record.address, record.length, DataRail(0));
        let id = op_id(OP_READ, group.cell(net.limits.requests_max) as u8, receive);
        let peer = net.lane_peer_of(index, message.lane);
        match net.rail.received_read(id, peer, message.slot, target) {
            Err(PostError::Again) => {
                net.stats.again += 1;
                return Reading::Again;
            }
            Err(PostError::PeerDown | PostError::Unsupported) => {
                net.connection_fail(index, RequestError::Protocol);
                return Reading::Begun;
            }
            Ok(Posted::Pending) => net.lane_mut(index, message.lane).ops_in_flight += 1,
            Ok(Posted::Done) => self.receive_end(net, index, group, receive, None),
        }
        self.release(net, index, message);
        Reading::Begun
    }

    /// Reads what is bound and waits, in order; says whether some remains.
    pub fn pulls_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        loop {
            let record = net.connections[index].recv.messages.pulls.head;
            if record == NIL {
                return false;
            }
            let message = *self.held.get(index, record);
            if self.pull_read(net, index, message.number, message.tag as u8, &message)
                == Reading::Again
            {
                return true;
            }
            let messages = &mut net.connections[index].recv.messages;
            self.held.unlink(index, &mut messages.pulls, NIL, record);
            self.held.release(index, messages, record);
        }
    }

    /// What a descriptor says, whatever the number of its sender's rails.
    fn descriptor_read<P: Provider>(
        &self,
        net: &Net<'_, P>,
        index: usize,
        message: &HeldMessage,
    ) -> Option<Descriptor> {
        let mut payload = [0; DESCRIPTOR_BYTES_MAX];
        let payload = payload.get_mut(..message.length as usize)?;
        let peer = net.lane_peer_of(index, message.lane);
        net.rail.received_peek(peer, message.slot, payload);
        Descriptor::decode(payload).ok()
    }

    fn pull_read<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        group: Seq,
        receive: u8,
        message: &HeldMessage,
    ) -> Reading {
        if P::REACHES_DEVICES && message.kind == KIND_EAGER {
            return self.eager_read(net, index, (group, receive), message);
        }
        let sound = |descriptor: &Descriptor| descriptor.length <= MESSAGE_BYTES_MAX;
        let Some(descriptor) = self.descriptor_read(net, index, message).filter(sound) else {
            net.connection_fail(index, RequestError::Protocol);
            return Reading::Begun;
        };
        let group_at = net.group_at(index, group);
        let at = self.receive_at(group_at, receive);
        let record = self.receives[at];
        let room = record.length;
        self.receives[at].total = 1; // the sender waits to hear of it
        if descriptor.length > room {
            net.stats.truncated += 1;
            self.receives[at].length = descriptor.length;
            self.release(net, index, message);
            self.receive_end(net, index, group, receive, Some(RequestError::Truncated));
            return Reading::Begun;
        }
        let target =
            net.regions.span(record.region, record.address, descriptor.length, DataRail(0));
        let source = RemoteSpan { key: RailKey(descriptor.keys[0]), address: descriptor.address };
        let cell = group.cell(net.limits.requests_max) as u8;
        match net.post(index, op_id(OP_READ, cell, receive), OpKind::Read { target, source }) {
            Err(PostError::Again) => return Reading::Again,
            Err(PostError::PeerDown) => {
                // its completion is on its way up and ends the request
            }
            // longer than our end of the rail reads, while the peer's takes it
            Err(PostError::Unsupported) => {
                net.connection_fail(index, RequestError::Protocol);
                return Reading::Begun;
            }
            Ok(posted) => {
                self.receives[at].length = descriptor.length;
                if posted == Posted::Done {
                    self.receive_end(net, index, group, receive, None);
                }
            }
        }
        self.release(net, index, message);
        Reading::Begun
    }
}

/// What became of an attempt to read a message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Reading {
    /// The read is under way, or the receive has ended.
    Begun,
    /// The rail has no room.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_free_receive_with_the_tag() {
        let tags = [7, -1, 7];
        assert_eq!(find(tags.into_iter(), 0b000, 7), Some(0));
        assert_eq!(find(tags.into_iter(), 0b001, 7), Some(2));
        assert_eq!(find(tags.into_iter(), 0b101, 7), None);
        assert_eq!(find(tags.into_iter(), 0b101, -1), Some(1));
        assert_eq!(find(tags.into_iter(), 0, i32::MAX), None);
        assert_eq!(full(8), 0xff);
        assert_eq!(full(1), 1);
    }
}
