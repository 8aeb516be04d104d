//! The stream of sends: short messages in it, and what arrives from the peer's.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Outgoing};
use super::limits::{CREDITS_FOR_STARTS, UNDELIVERED_MAX};
use super::matching;
use super::mutant::{Mutant, NARROW};
use super::push::Offer;
use super::rail::DataRail;
use super::records::{ConnectionState, HeldMessage, NIL};
use super::request::{RequestError, RequestId, SubmitError};
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::fabric::{Head, LocalSpan, OpId, PostError, Posted, Provider, RecvSlot};
use crate::wire::head::{
    KIND_DESCRIPTOR, KIND_EAGER, KIND_PROBED, KIND_REPORT, KIND_START, SendHead,
};

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

/// No credit or no room: the send stays where it is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Blocked;

impl<P: Provider> Endpoint<'_, P> {
    /// Sends a short message within the call, if nothing stands before it.
    pub(super) fn eager_at_once(
        &mut self,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Option<RequestId> {
        let c = &self.connections[index];
        let pull = c.pull;
        if !c.send.queue.is_empty() || !self.is_short(index, region, message.length) {
            return None;
        }
        // of a long one the rail may keep a part, for which a record stands
        let is_long = message.length > self.caps.send_payload_max.0;
        if is_long && !self.has_record(index) {
            return None;
        }
        let offer = match pull {
            true => Offer::NotYet,
            false => self.early_offer(index, message.tag, message.length)?,
        };
        let span = self.regions.span(region, message.address, message.length, DataRail(0));
        self.stream_post(index, KIND_EAGER, message.tag, 0, span).ok()?;
        self.stats.eager += 1;
        if !pull {
            self.eager_account(index, message.tag, offer);
        }
        let kept = self.kept_through(index, message.length);
        if let Some(through) = kept
            && let Some((record, request)) = self.send_take(index, region, message)
        {
            self.leaving_begin(index, record, through);
            return Some(request);
        }
        Some(self.complete(message.length))
    }

    /// Whether a message travels in the stream.
    #[inline(always)]
    pub(super) fn is_short(&self, index: usize, region: u16, length: u64) -> bool {
        let c = &self.connections[index];
        let copied = length <= self.config.eager_mapped_bytes_max.0
            || !c.pull
            || !self.regions.is_mapped(region);
        c.send.is_short(length) && copied
    }

    /// Puts one send into the stream; the rail copies it at post. `stripes` is for starts.
    pub(super) fn stream_post(
        &mut self,
        index: usize,
        kind: u8,
        tag: i32,
        stripes: u8,
        payload: LocalSpan,
    ) -> Result<(), Blocked> {
        let kept_at = self.stream_room(index, kind, payload.length().0)?;
        let fields = self.connections[index].head(kind, tag, stripes);
        self.stream_hand(index, &fields, payload)?;
        self.stream_left(index, &fields, kept_at, payload);
        let c = &self.connections[index];
        if P::SEVERAL_LANES && c.is_taken_worth() && self.rail.is_leaving(c.rails.control_lane.peer)
        {
            self.work.insert(index);
        }
        Ok(())
    }

    /// Whether the next send of the stream may leave: where it is kept, if it is.
    #[inline(always)]
    pub(super) fn stream_room(
        &mut self,
        index: usize,
        kind: u8,
        length: u64,
    ) -> Result<Option<u32>, Blocked> {
        // where nothing is bound by starts, nothing is kept for them
        let spare = kind == KIND_START || self.connections[index].pull;
        let reserve = if spare { 0 } else { CREDITS_FOR_STARTS };
        let long = kind != KIND_EAGER;
        if !self.may_consume(index, reserve) || (long && !self.connections[index].send.may_number())
        {
            return Err(Blocked);
        }
        let c = &self.connections[index];
        match P::SEVERAL_LANES && c.rails.fails_over() {
            false => Ok(None),
            true if c.rails.control_lane.blocked || c.send.stream.resend.is_some() => Err(Blocked),
            true => Ok(Some(self.keep_room(index, length).ok_or(Blocked)?)),
        }
    }

    /// Posts it.
    #[inline(always)]
    pub(super) fn stream_hand(
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

    /// Accounts for it, and keeps it where another lane may have to carry it again.
    #[inline(always)]
    pub(super) fn stream_left(
        &mut self,
        index: usize,
        fields: &SendHead,
        kept_at: Option<u32>,
        payload: LocalSpan,
    ) {
        if let Some(kept_at) = kept_at {
            self.keep(index, fields, kept_at, payload);
        }
        self.connections[index].head_left(fields.kind != KIND_EAGER);
    }

    /// Whether one more receive of the peer may be consumed, leaving `reserve`; looks at the
    /// peer's state line before it says no.
    #[inline(always)]
    pub(super) fn may_consume(&mut self, index: usize, reserve: u32) -> bool {
        self.connections[index].control.credits.may_consume(reserve)
            || self.may_consume_now(index, reserve)
    }

    #[cold]
    #[inline(never)]
    fn may_consume_now(&mut self, index: usize, reserve: u32) -> bool {
        self.state_look(index);
        self.connections[index].control.credits.may_consume(reserve)
    }

    /// Keeps a send for later, and tries at once.
    #[inline(never)]
    pub(super) fn send_queue(
        &mut self,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Result<RequestId, SubmitError> {
        let plain = message.length <= self.caps.transfer_max.0;
        if !plain && message.length > self.length_max(index) {
            return Err(SubmitError::TooLong);
        }
        let taken = self.send_take(index, region, message);
        let (record, request) = taken.ok_or(SubmitError::Again)?;
        self.queue_append(index, record);
        if self.sends_step(index) {
            self.stats.queued += 1;
            self.watch.insert(index);
            self.work.insert(index);
        }
        Ok(request)
    }

    fn queue_append(&mut self, index: usize, record: u8) {
        let queue = &mut self.connections[index].send.queue;
        let tail = core::mem::replace(&mut queue.tail, record);
        if queue.is_empty() {
            queue.head = Some(record);
        } else {
            let at = self.send_at(index, tail);
            self.sends[at].next = record;
        }
    }

    /// What follows a queued send.
    #[inline]
    pub(super) fn queue_after(&self, index: usize, record: u8) -> Option<u8> {
        let last = self.connections[index].send.queue.tail == record;
        (!last).then(|| self.sends[self.send_at(index, record)].next)
    }

    /// Takes `record`, which follows `previous`, out of the queue.
    pub(super) fn queue_remove(&mut self, index: usize, previous: Option<u8>, record: u8) {
        let next = self.queue_after(index, record);
        let at = self.send_at(index, record);
        self.sends[at].next = NIL;
        match (previous, next) {
            (None, next) => self.connections[index].send.queue.head = next,
            (Some(previous), Some(next)) => {
                let before = self.send_at(index, previous);
                self.sends[before].next = next;
            }
            (Some(_), None) => {}
        }
        if next.is_none() {
            self.connections[index].send.queue.tail = previous.unwrap_or(0);
        }
    }

    /// Moves queued sends on; says whether some remain.
    pub(super) fn sends_step(&mut self, index: usize) -> bool {
        if self.connections[index].pull {
            self.descriptors_step(index)
        } else {
            self.bind_step(index) | self.stripes_step(index)
        }
    }

    /// Sends a queued short message; `false` when it is blocked.
    pub(super) fn eager_queued(
        &mut self,
        index: usize,
        previous: Option<u8>,
        record: u8,
        offer: Offer,
    ) -> bool {
        let send = self.sends[self.send_at(index, record)];
        let span = self.regions.span(send.region, send.address, send.length, DataRail(0));
        if self.stream_post(index, KIND_EAGER, send.tag, 0, span).is_err() {
            return false;
        }
        self.queue_remove(index, previous, record);
        self.stats.eager += 1;
        if !self.connections[index].pull {
            self.eager_account(index, send.tag, offer);
        }
        match self.kept_through(index, send.length) {
            Some(through) => self.leaving_begin(index, record, through),
            None => self.send_end(index, record, None),
        }
        true
    }

    /// A send of the peer's stream has come.
    #[inline(always)]
    pub(super) fn send_arrived(
        &mut self,
        peer: PeerIndex,
        slot: RecvSlot,
        head: &Head,
        length: u32,
    ) {
        let mut fields = SendHead::from_bytes(head);
        if self.is_mutant(Mutant::SequenceNarrow) {
            fields.eager_number &= NARROW;
        }
        let (index, lane) = self.lane_of(peer);
        if !self.eager_expected(index, peer, slot, &fields, length) {
            self.other_arrived(index, lane, slot, fields, length);
        }
    }

    /// Takes in a send that [`Endpoint::eager_expected`] left alone.
    #[inline(never)]
    fn other_arrived(
        &mut self,
        index: usize,
        lane: u8,
        slot: RecvSlot,
        head: SendHead,
        length: u32,
    ) {
        if self.connections[index].state != ConnectionState::Open {
            let peer = self.lane_peer_of(index, lane);
            self.rail.received_release(peer, slot);
            return;
        }
        if head.check().is_err() {
            return self.connection_fail(index, RequestError::Protocol);
        }
        if matches!(head.kind, KIND_REPORT..=KIND_PROBED) {
            return self.word_arrived(index, lane, slot, &head, length);
        }
        self.stream_take(index, lane, slot, &head, length);
    }

    /// The end of a lane by the connection's number.
    #[inline]
    pub(super) fn lane_peer_of(&self, index: usize, lane: u8) -> PeerIndex {
        self.lane_peer(ConnectionIndex(index as u32), lane)
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
        self.acks_take(index, Seq(head.credits_through), Seq(head.delivered_through));
        let c = &mut self.connections[index];
        let is_of_its_kind = match head.kind {
            KIND_START => !c.pull,
            KIND_DESCRIPTOR => c.pull,
            _ => true,
        };
        let is_known = is_of_its_kind && c.has_groups(Seq(head.group_base));
        if !is_known || (P::SEVERAL_LANES && !self.filled_heard(index, head)) {
            let message = HeldMessage { slot, lane, ..HeldMessage::FREE };
            self.release(index, &message);
            return self.connection_fail(index, RequestError::Protocol);
        }
        let c = &mut self.connections[index];
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
            return self.hold_ahead(index, message);
        }
        self.in_turn(index, message);
        if !self.connections[index].recv.messages.ahead.is_empty() {
            self.ahead_step(index);
        }
    }

    /// Takes in the next send of the stream.
    #[inline]
    fn in_turn(&mut self, index: usize, message: HeldMessage) {
        let c = &mut self.connections[index];
        c.recv.expected = c.recv.expected.next();
        c.control.taken.bytes = c.control.taken.bytes.wrapping_add(message.length);
        if c.taken_due() {
            self.work.insert(index);
        }
        if self.connections[index].recv.offers.cancels_due {
            self.passed_take(index, message.group_base);
            self.work.insert(index); // it may fill the group that asks: the next one has its turn
        }
        let oldest = self.connections[index].recv.oldest;
        if message.kind == KIND_START {
            self.start_arrived(index, message);
        } else if let Some(receive) = self.match_oldest(index, message.tag) {
            self.bind(index, receive, message);
        } else {
            self.stats.unexpected += 1;
            self.hold_unexpected(index, message);
        }
        let c = &self.connections[index];
        if c.recv.oldest != oldest && !c.recv.messages.unexpected.is_empty() {
            self.unexpected_match(index); // the new oldest group may take what the last did not
        }
    }

    /// The receive of the oldest group that takes `tag`.
    #[inline]
    fn match_oldest(&self, index: usize, tag: i32) -> Option<u8> {
        let c = &self.connections[index];
        if c.recv.oldest == c.recv.post {
            return None;
        }
        let at = self.group_at(index, c.recv.oldest);
        let group = &self.groups[at];
        let receives = self.receives_of(at, group.count);
        matching::find(receives.map(|r| r.label as i32), group.bound, tag)
    }

    /// Gives a message to a receive of the oldest group.
    fn bind(&mut self, index: usize, receive: u8, message: HeldMessage) {
        let number = self.connections[index].recv.oldest;
        let at = self.group_at(index, number);
        let cell = self.receive_at(at, receive);
        self.groups[at].bound |= 1 << receive;
        let record = &mut self.receives[cell];
        let room = record.length;
        let long = message.kind == KIND_DESCRIPTOR;
        record.label = if long { message.number.0 } else { message.eager_number.0 };
        if self.groups[at].bound == matching::full(self.groups[at].count) {
            self.oldest_advance(index);
        }
        match message.kind {
            KIND_DESCRIPTOR => self.pull_begin(index, number, receive, message),
            _ => self.eager_deliver(index, number, receive, room, message),
        }
    }

    /// Steps over the groups that are fully bound.
    pub(super) fn oldest_advance(&mut self, index: usize) {
        loop {
            let c = &self.connections[index];
            if c.recv.oldest == c.recv.post {
                return;
            }
            let group = self.groups[self.group_at(index, c.recv.oldest)];
            let open = group.number == c.recv.oldest
                && group.used
                && group.bound != matching::full(group.count);
            if open {
                return;
            }
            self.connections[index].recv.oldest = c.recv.oldest.next();
        }
    }

    #[inline]
    fn eager_deliver(
        &mut self,
        index: usize,
        group: Seq,
        receive: u8,
        room: u64,
        message: HeldMessage,
    ) {
        let length = u64::from(message.length);
        let at = self.receive_at(self.group_at(index, group), receive);
        let record = &mut self.receives[at];
        record.length = length;
        let error = if length > room {
            self.stats.truncated += 1;
            Some(RequestError::Truncated)
        } else {
            let span = self.regions.span(record.region, record.address, length, DataRail(0));
            if length != 0 {
                let peer = self.lane_peer_of(index, message.lane);
                self.rail.received_copy(peer, message.slot, 0, span);
            }
            None
        };
        self.release(index, &message);
        self.receive_end(index, group, receive, error);
    }

    /// Gives a receive slot back to the rail, and with it a credit to the peer.
    #[inline]
    pub(super) fn release(&mut self, index: usize, message: &HeldMessage) {
        let peer = self.lane_peer_of(index, message.lane);
        self.rail.received_release(peer, message.slot);
        self.credit_return(index);
    }

    /// Tries the unexpected messages against the oldest group, in order, until none fits.
    pub(super) fn unexpected_match(&mut self, index: usize) {
        let mut previous = NIL;
        let mut record = self.connections[index].recv.messages.unexpected.head;
        while record != NIL {
            let message = self.held[self.held_at(index, record)];
            match self.match_oldest(index, message.tag) {
                Some(receive) => {
                    let oldest = self.connections[index].recv.oldest;
                    let next = self.held_remove(index, previous, record);
                    self.bind(index, receive, message);
                    let same = self.connections[index].recv.oldest == oldest;
                    // a new oldest group may take what the last one did not
                    (previous, record) = if same {
                        (previous, next)
                    } else {
                        (NIL, self.connections[index].recv.messages.unexpected.head)
                    };
                }
                None => (previous, record) = (record, message.next),
            }
        }
    }

    fn hold_unexpected(&mut self, index: usize, message: HeldMessage) {
        let Some(record) = self.held_acquire(index, message) else {
            return self.connection_fail(index, RequestError::Protocol);
        };
        let tail = self.connections[index].recv.messages.unexpected.tail;
        if tail == NIL {
            self.connections[index].recv.messages.unexpected.head = record;
        } else {
            let at = self.held_at(index, tail);
            self.held[at].next = record;
        }
        self.connections[index].recv.messages.unexpected.tail = record;
    }

    fn held_remove(&mut self, index: usize, previous: u8, record: u8) -> u8 {
        let at = self.held_at(index, record);
        let next = self.held[at].next;
        if previous == NIL {
            self.connections[index].recv.messages.unexpected.head = next;
        } else {
            let before = self.held_at(index, previous);
            self.held[before].next = next;
        }
        if self.connections[index].recv.messages.unexpected.tail == record {
            self.connections[index].recv.messages.unexpected.tail = previous;
        }
        self.held_release(index, record);
        next
    }

    /// A record for a message that stays in its slot; `None` when the peer overran its credits.
    pub(super) fn held_acquire(&mut self, index: usize, message: HeldMessage) -> Option<u8> {
        let record = self.connections[index].recv.messages.free;
        if record == NIL {
            return None;
        }
        let at = self.held_at(index, record);
        self.connections[index].recv.messages.free = self.held[at].next;
        self.held[at] = HeldMessage { next: NIL, ..message };
        Some(record)
    }

    pub(super) fn held_release(&mut self, index: usize, record: u8) {
        let free = self.connections[index].recv.messages.free;
        let at = self.held_at(index, record);
        self.held[at].next = free;
        self.connections[index].recv.messages.free = record;
    }

    /// Keeps a send that came before its turn; one from the past breaks the protocol.
    fn hold_ahead(&mut self, index: usize, message: HeldMessage) {
        let c = &self.connections[index];
        let ahead = message.eager_number.ahead_of(c.recv.expected);
        // an ordered lane that has lost a send has failed: its sender knows, and sends again
        let ordered = self.caps.ordered && !(P::SEVERAL_LANES && c.rails.fails_over());
        if ahead <= 0 || ahead as u32 > UNDELIVERED_MAX || ordered {
            return self.connection_fail(index, RequestError::Protocol);
        }
        let head = c.recv.messages.ahead.head;
        match self.held_acquire(index, message) {
            Some(record) => {
                let at = self.held_at(index, record);
                self.held[at].next = head;
                self.connections[index].recv.messages.ahead.head = record;
            }
            None => self.connection_fail(index, RequestError::Protocol),
        }
    }

    /// Takes in those whose turn has come.
    fn ahead_step(&mut self, index: usize) {
        let (mut previous, mut record) = (NIL, self.connections[index].recv.messages.ahead.head);
        while record != NIL {
            let message = self.held[self.held_at(index, record)];
            if message.eager_number != self.connections[index].recv.expected {
                (previous, record) = (record, message.next);
                continue;
            }
            if previous == NIL {
                self.connections[index].recv.messages.ahead.head = message.next;
            } else {
                let before = self.held_at(index, previous);
                self.held[before].next = message.next;
            }
            self.held_release(index, record);
            self.in_turn(index, HeldMessage { next: NIL, ..message });
            (previous, record) = (NIL, self.connections[index].recv.messages.ahead.head);
        }
    }
}
