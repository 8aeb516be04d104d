//! The stream of sends: short messages in it, descriptors of long ones, and what of it is kept to
//! be sent again.

use super::bind::Offer;
use super::queue::Sends;
use crate::base::seq::Seq;
use crate::base::units::Bytes;
use crate::fabric::{LocalSpan, OpKind, Provider};
use crate::transport::limits::{
    CREDITS_FOR_STARTS, EARLY_LONG_MAX, EARLY_MAX, KEPT_BYTES, STREAM_KEPT,
};
use crate::transport::net::{Blocked, Net, OP_STREAM, op_id};
use crate::transport::rails::table::DataRail;
use crate::transport::records::{EarlySend, NO_REGION, SendState, StreamRecord};
use crate::transport::recv::groups::Recvs;
use crate::transport::recv::offers::filled_said;
use crate::transport::request::{Outgoing, RequestId};
use crate::wire::descriptor::Descriptor;
use crate::wire::head::{
    FILLED_MASK, FILLED_SAID, KIND_DESCRIPTOR, KIND_EAGER, KIND_START, SendHead,
};

/// Length of a descriptor for the one data rail of this endpoint.
const DESCRIPTOR_BYTES: usize = Descriptor::bytes(1);

/// A message of this length at most leaves with its call when none of its connection is on the way:
/// somebody waits for it, and nothing is there that could leave with it in one call of the system.
pub const ALONE_MAX: Bytes = Bytes::kib(4);

/// Messages whose receives were not seen beyond which the next one looks for them.
const EARLY_ALONE_MAX: u32 = EARLY_MAX * 3 / 4;

impl Sends<'_> {
    /// Sends a message that nothing of its connection is on the way before, and that nothing is due
    /// beside: it has left before it is accounted for, since somebody waits for it. For the peer's
    /// slots nobody looks, as if they came a little later. `false`: it is another, and nothing was
    /// changed.
    #[inline(always)]
    pub fn eager_alone<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> bool {
        let c = &net.connections[index];
        let is_common = !c.pull
            && c.send.queue.is_empty()
            && c.send.cursor.count == 0
            && u32::from(c.send.cursor.early) < EARLY_ALONE_MAX
            && !c.is_taken_worth()
            && c.send.is_short(message.length)
            && !c.send.is_long(message.length)
            && !recvs.offers_are_near(net, index)
            && !net.due.work.contains(index);
        if !is_common {
            return false;
        }
        let Ok(kept_at) = self.stream_room(net, recvs, index, KIND_EAGER, message.length) else {
            return false;
        };
        let span = net.regions.span(region, message.address, message.length, DataRail(0));
        let filled = recvs.filled_through(net, index);
        let head = net.connections[index].head(KIND_EAGER, message.tag, 0);
        let fields = SendHead { filled: filled.map_or(0, filled_said), ..head };
        if net.stream_hand(index, &fields, span).is_err() {
            return false;
        }
        net.rail.flush(ALONE_MAX);
        self.stream_left(net, index, &fields, kept_at, span);
        if let Some(through) = filled {
            net.filled_told(index, through);
        }
        self.eager_account(net, index, message.tag, Offer::NotYet);
        net.stats.eager += 1;
        true
    }

    #[inline(never)]
    fn leaving_begin<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
        through: u64,
    ) {
        let at = net.send_at(index, record);
        let send = &mut self.records[at];
        (send.state, send.address) = (SendState::Leaving, through);
        (send.stripes, send.posted) = (1, 1);
        // the rail has copied what it keeps
        let region = core::mem::replace(&mut send.region, NO_REGION);
        net.regions.unpin(region);
        net.connections[index].send.waiting += 1;
        net.due.work.insert(index);
    }

    /// Ends a long send whose last bytes have left; whether they have.
    pub fn leaving_end<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
    ) -> bool {
        let through = self.records[net.send_at(index, record)].address;
        if net.rail.sent_through(net.connections[index].rails.control_lane.peer).left < through {
            return false;
        }
        net.connections[index].send.waiting -= 1;
        self.send_end(net, index, record, None);
        true
    }

    /// Sends a short message within the call, if nothing stands before it.
    pub fn eager_at_once<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Option<RequestId> {
        let c = &net.connections[index];
        let pull = c.pull;
        if !c.send.queue.is_empty() || !net.is_short(index, region, message.length) {
            return None;
        }
        // of a long one the rail may keep a part, for which a record stands
        let is_long = c.send.is_long(message.length);
        if is_long && !self.has_record(net, index) {
            return None;
        }
        let offer = match pull {
            true => Offer::NotYet,
            false => self.early_offer(net, index, message.tag, message.length)?,
        };
        let span = net.regions.span(region, message.address, message.length, DataRail(0));
        self.stream_post(net, recvs, index, (KIND_EAGER, message.tag, 0), span).ok()?;
        net.stats.eager += 1;
        if !pull {
            self.eager_account(net, index, message.tag, offer);
        }
        let kept = net.kept_through(index, message.length);
        if let Some(through) = kept
            && let Some((record, request)) = self.send_take(net, index, region, message)
        {
            self.leaving_begin(net, index, record, through);
            return Some(request);
        }
        Some(net.complete(message.length))
    }

    /// Puts one send into the stream; the rail copies it at post. `stripes` is for starts.
    pub fn stream_post<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        (kind, tag, stripes): (u8, i32, u8),
        payload: LocalSpan,
    ) -> Result<(), Blocked> {
        let kept_at = self.stream_room(net, recvs, index, kind, payload.length().0)?;
        let fields = net.connections[index].head(kind, tag, stripes);
        net.stream_hand(index, &fields, payload)?;
        self.stream_left(net, index, &fields, kept_at, payload);
        let c = &net.connections[index];
        if P::SEVERAL_LANES && c.is_taken_worth() && net.rail.is_leaving(c.rails.control_lane.peer)
        {
            net.due.work.insert(index);
        }
        Ok(())
    }

    /// Whether the next send of the stream may leave: where it is kept, if it is.
    #[inline(always)]
    fn stream_room<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        kind: u8,
        length: u64,
    ) -> Result<Option<u32>, Blocked> {
        // where nothing is bound by starts, nothing is kept for them
        let spare = kind == KIND_START || net.connections[index].pull;
        let reserve = if spare { 0 } else { CREDITS_FOR_STARTS };
        let long = kind != KIND_EAGER;
        if !self.may_consume(net, recvs, index, reserve)
            || (long && !net.connections[index].send.may_number())
        {
            return Err(Blocked);
        }
        let c = &net.connections[index];
        match P::SEVERAL_LANES && c.rails.fails_over() {
            false => Ok(None),
            true if c.rails.control_lane.blocked || c.send.stream.resend.is_some() => Err(Blocked),
            true => Ok(Some(self.keep_room(net, index, length).ok_or(Blocked)?)),
        }
    }

    /// Accounts for it, and keeps it where another lane may have to carry it again.
    #[inline(always)]
    fn stream_left<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        fields: &SendHead,
        kept_at: Option<u32>,
        payload: LocalSpan,
    ) {
        if let Some(kept_at) = kept_at {
            self.keep(net, index, fields, kept_at, payload);
        }
        net.connections[index].head_left(fields.kind != KIND_EAGER);
    }

    /// Whether one more receive of the peer may be consumed, leaving `reserve`; looks at the
    /// peer's state line before it says no.
    #[inline(always)]
    pub fn may_consume<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        reserve: u32,
    ) -> bool {
        net.connections[index].control.credits.may_consume(reserve)
            || self.may_consume_now(net, recvs, index, reserve)
    }

    #[cold]
    #[inline(never)]
    fn may_consume_now<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        reserve: u32,
    ) -> bool {
        self.state_look(net, recvs, index);
        net.connections[index].control.credits.may_consume(reserve)
    }

    /// Sends a queued short message; `false` when it is blocked.
    pub fn eager_queued<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        (previous, record): (Option<u8>, u8),
        offer: Offer,
    ) -> bool {
        let send = self.records[net.send_at(index, record)];
        let span = net.regions.span(send.region, send.address, send.length, DataRail(0));
        if self.stream_post(net, recvs, index, (KIND_EAGER, send.tag, 0), span).is_err() {
            return false;
        }
        self.queue_remove(net, index, previous, record);
        net.stats.eager += 1;
        if !net.connections[index].pull {
            self.eager_account(net, index, send.tag, offer);
        }
        match net.kept_through(index, send.length) {
            Some(through) => self.leaving_begin(net, index, record, through),
            None => self.send_end(net, index, record, None),
        }
        true
    }

    /// Takes in what a head says. `false`: it cannot be.
    #[inline(always)]
    pub fn filled_heard<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        head: &SendHead,
    ) -> bool {
        let c = &mut net.connections[index];
        // numbers of 15 bits, of a window of some hundred
        let ahead = (head.filled.wrapping_sub(c.send.cursor.group.0 as u16) & FILLED_MASK) << 1;
        let ahead = i32::from(ahead as i16 >> 1);
        if head.filled & FILLED_SAID == 0 || ahead <= 0 {
            return true; // a slot has said so before
        }
        let count = ahead as usize;
        if c.pull || c.send.cursor.count != 0 || count > usize::from(c.send.cursor.early) {
            return false;
        }
        let first = index * EARLY_MAX as usize;
        let early = &mut self.early[first..first + usize::from(c.send.cursor.early)];
        c.send.stream.taken_take(early[count - 1].number.next());
        early.copy_within(count.., 0);
        c.send.cursor.early -= count as u8;
        for _ in 0..count {
            self.group_pass(net, index);
        }
        true
    }

    /// Sends again what the peer has not taken in; says whether some is left.
    pub fn resend_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        while let Some(number) = net.connections[index].send.stream.resend {
            let c = &net.connections[index];
            if c.rails.control_lane.blocked {
                return false; // goes on when the next control lane is known
            }
            if number == c.send.stream.number {
                net.connections[index].send.stream.resend = None;
                return false;
            }
            let record = self.stream[self.stream_at(index, number)];
            let head = SendHead {
                send_number: record.send_number.0,
                eager_number: number.0,
                group_base: record.group_base.0,
                ..c.head(record.kind, record.tag, record.stripes)
            };
            let payload = self.kept_span(index, record.kept_at, record.length);
            let send = OpKind::Send { head: head.encode(), payload };
            if net.post(index, op_id(OP_STREAM, 0, 0), send).is_err() {
                return true;
            }
            net.connections[index].send.stream.resend = Some(number.next());
            net.stats.resends += 1;
        }
        false
    }

    #[inline]
    fn stream_at(&self, index: usize, number: Seq) -> usize {
        index * STREAM_KEPT as usize + number.cell(STREAM_KEPT)
    }

    fn kept_span(&self, index: usize, kept_at: u32, length: u16) -> LocalSpan {
        let offset = index * KEPT_BYTES as usize + (kept_at % KEPT_BYTES) as usize;
        self.kept.span(offset, usize::from(length))
    }

    /// Where a payload of so many bytes can be kept; `None`: the peer has to take in others first.
    #[cfg_attr(feature = "std", inline(always))]
    fn keep_room<P: Provider>(&self, net: &Net<'_, P>, index: usize, length: u64) -> Option<u32> {
        let c = &net.connections[index];
        if c.send.stream.number.ahead_of(c.send.stream.taken_through) >= STREAM_KEPT as i32 {
            return None;
        }
        let length = length as u32;
        let (mut at, left) =
            (c.send.stream.kept_next, KEPT_BYTES - c.send.stream.kept_next % KEPT_BYTES);
        if length > left {
            at = at.wrapping_add(left); // a payload lies in one piece
        }
        let oldest = match c.send.stream.taken_through == c.send.stream.number {
            true => at,
            false => self.stream[self.stream_at(index, c.send.stream.taken_through)].kept_at,
        };
        (at.wrapping_add(length).wrapping_sub(oldest) <= KEPT_BYTES).then_some(at)
    }

    /// Keeps what leaves as the next send of the stream.
    #[cfg_attr(feature = "std", inline(always))]
    fn keep<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        head: &SendHead,
        kept_at: u32,
        payload: LocalSpan,
    ) {
        let length = payload.length().0 as u16;
        let offset = index * KEPT_BYTES as usize + (kept_at % KEPT_BYTES) as usize;
        self.kept.put(offset, payload);
        let at = self.stream_at(index, Seq(head.eager_number));
        self.stream[at] = StreamRecord {
            tag: head.tag,
            send_number: Seq(head.send_number),
            group_base: Seq(head.group_base),
            kept_at,
            length,
            kind: head.kind,
            stripes: head.stripes,
        };
        net.connections[index].send.stream.kept_next = kept_at.wrapping_add(u32::from(length));
    }

    /// Whether one more message, of `length` bytes, may leave before its receive was seen.
    #[inline]
    pub fn may_go_early<P: Provider>(&self, net: &Net<'_, P>, index: usize, length: u64) -> bool {
        let c = &net.connections[index];
        let is_long = c.send.is_long(length);
        let waits = is_long && !(P::SEVERAL_LANES && c.control.credits.is_all_taken());
        u32::from(c.send.cursor.early) < if waits { EARLY_LONG_MAX } else { EARLY_MAX }
    }

    /// What the peer's oldest group says to a message with `tag` that may go early: either it
    /// takes the message, or it is not visible and there is room to remember the message.
    #[inline]
    fn early_offer<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        tag: i32,
        length: u64,
    ) -> Option<Offer> {
        match self.offer(net, index, tag) {
            Offer::NoMatch => None,
            Offer::NotYet if !self.may_go_early(net, index, length) => None,
            offer => Some(offer),
        }
    }

    /// On a rail that pushes, accounts for a message that has left in the stream, to which the
    /// peer's oldest group said `offer`.
    #[cfg_attr(feature = "std", inline(always))]
    fn eager_account<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        tag: i32,
        offer: Offer,
    ) {
        match offer {
            Offer::Receive(receive) => self.offer_take(net, index, receive),
            Offer::NoMatch | Offer::NotYet => {
                let c = &mut net.connections[index];
                let number = Seq(c.send.stream.number.0.wrapping_sub(1));
                let at = index * EARLY_MAX as usize + usize::from(c.send.cursor.early);
                self.early[at] = EarlySend { tag, number };
                c.send.cursor.early += 1;
            }
        }
    }

    /// Sends what is queued, in order; says whether some remains.
    pub fn descriptors_step<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) -> bool {
        loop {
            let Some(record) = net.connections[index].send.queue.head else {
                return false;
            };
            let send = self.records[net.send_at(index, record)];
            let left = if net.is_short(index, send.region, send.length) {
                self.eager_queued(net, recvs, index, (None, record), Offer::NotYet)
            } else {
                self.descriptor_send(net, recvs, index, record)
            };
            if !left {
                net.due.watch.insert(index);
                return true;
            }
        }
    }

    fn descriptor_send<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        record: u8,
    ) -> bool {
        let at = net.send_at(index, record);
        let send = self.records[at];
        let mut keys = [0; 8];
        keys[0] = net.regions.key(send.region, DataRail(0));
        let descriptor =
            Descriptor { address: send.address, length: send.length, keys, rails: 1 }.encode();
        let payload = net.scratch.fill(&descriptor[..DESCRIPTOR_BYTES]);
        let number = net.connections[index].send.number;
        if self.stream_post(net, recvs, index, (KIND_DESCRIPTOR, send.tag, 0), payload).is_err() {
            return false;
        }
        self.queue_remove(net, index, None, record);
        self.records[at].number = number;
        self.records[at].state = SendState::Waiting;
        net.connections[index].send.waiting += 1;
        net.due.watch.insert(index);
        net.stats.pulled += 1;
        true
    }
}
