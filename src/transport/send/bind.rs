//! Messages on a rail that pushes: the sender binds long ones to the slots that it sees, and short
//! ones may leave before.

use super::queue::Sends;
use crate::base::seq::Seq;
use crate::fabric::{Posted, Provider, RailKey, RemoteSpan};
use crate::transport::control::lines::NO_CELL;
use crate::transport::limits::EARLY_MAX;
use crate::transport::net::{Net, OP_STRIPE, op_id};
use crate::transport::rails::schedule::Cut;
use crate::transport::rails::table::DataSpan;
use crate::transport::records::{NIL, SendState};
use crate::transport::recv::groups::Recvs;
use crate::transport::recv::matching;
use crate::wire::head::KIND_START;
use crate::wire::immediate;
use crate::wire::report::Report;
use crate::wire::slot::{SLOT_CANCEL, SLOT_TAKEN};

/// What the peer's oldest group says to a message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Offer {
    /// This receive takes it.
    Receive(u8),
    /// The group is there, and none of its receives takes it.
    NoMatch,
    /// The group has not been seen yet.
    NotYet,
}

impl Sends<'_> {
    pub fn stripe_written<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        lane: u8,
        (record, stripe): (u8, u8),
        ok: bool,
    ) {
        let at = net.send_at(index, record);
        let send = self.records[at];
        if net.fails_over(index) {
            let cut = Cut { count: u32::from(send.stripes), stripe_bytes: send.stripe_bytes };
            let (_, bytes) = cut.stripe(u32::from(stripe), send.length);
            let now = net.now;
            net.meter_mut(index, lane).completed(bytes, ok, now);
            // lanes that had enough on their way may take more
            net.due.work.insert(index);
        }
        if ok && send.state != SendState::Free {
            self.records[at].written |= 1 << stripe;
            self.send_settle(net, index, record);
        }
    }

    /// Writes the stripes that are due; says whether some remain.
    pub fn stripes_step<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) -> bool {
        if net.connections[index].send.waiting == 0 {
            return false;
        }
        let mut remain = false;
        for record in self.sends_used(net, index) {
            match self.records[net.send_at(index, record)].state {
                SendState::Writing => remain |= !self.stripes_write(net, recvs, index, record),
                SendState::Leaving => remain |= !self.leaving_end(net, index, record),
                SendState::Free | SendState::Queued | SendState::Waiting | SendState::Done => {}
            }
        }
        remain
    }

    /// Writes the stripes of one message; `false` when some could not be posted.
    fn stripes_write<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        record: u8,
    ) -> bool {
        let at = net.send_at(index, record);
        let send = self.records[at];
        let cut = Cut { count: u32::from(send.stripes), stripe_bytes: send.stripe_bytes };
        let mut missing = cut.all() & !send.posted;
        let lanes = net.lanes_knowing(index, &send);
        while missing != 0 {
            let stripe = missing.trailing_zeros();
            missing &= missing - 1;
            let (offset, length) = cut.stripe(stripe, send.length);
            if !self.may_consume(net, recvs, index, 0) {
                return false;
            }
            let Some(lane) = net.lane_pick(index, length, lanes) else {
                // goes on when one of its stripes has ended, or a lane is back that has keys
                if P::SEVERAL_LANES && net.is_unknown(index, &send) {
                    net.strand(index);
                }
                return false;
            };
            let (rail, target) = net.stripe_ends(index, &send, lane);
            let span = net.regions.span(send.region, send.address + offset, length, rail);
            let word = immediate::encode(send.token, stripe);
            let write = rail.write(span, target.plus(offset), word);
            let id = op_id(OP_STRIPE, record, stripe as u8);
            let Ok(posted) = net.post_on(index, lane, id, write) else {
                return false;
            };
            self.stripe_left(net, index, (at, lane, stripe), length, posted);
        }
        self.records[at].state = SendState::Waiting;
        self.send_settle(net, index, record);
        true
    }

    /// Whether a message waits for a lane that knows its memory, and none of these is in use.
    #[cold]
    pub fn has_unknown<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> bool {
        self.sends_used(net, index).any(|record| {
            let send = &self.records[net.send_at(index, record)];
            send.state == SendState::Writing && net.is_unknown(index, send)
        })
    }

    /// Accounts for a stripe that was posted.
    #[inline]
    fn stripe_left<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (at, lane, stripe): (usize, u8, u32),
        bytes: u64,
        posted: Posted,
    ) {
        let now = net.now;
        let c = &mut net.connections[index];
        c.control.credits.consumed = c.control.credits.consumed.next();
        let number = c.control.credits.consumed.0;
        let several = P::SEVERAL_LANES && c.rails.fails_over();
        c.rails.turn = if lane + 1 < c.rails.count { lane + 1 } else { 0 };
        self.records[at].posted |= 1 << stripe;
        if posted == Posted::Done {
            self.records[at].written |= 1 << stripe;
        }
        if several {
            self.carried_mut(net, at)[usize::from(lane)] |= 1 << stripe;
            let meter = net.meter_mut(index, lane);
            meter.load.number = number;
            meter.load.posted(bytes, now);
            if posted == Posted::Done {
                meter.completed(bytes, true, now);
            }
            meter.stats.bytes += bytes;
            meter.stats.stripes += 1;
        }
    }

    pub fn arrivals_take<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        report: &Report,
    ) {
        for entry in report.entries() {
            if let Some(at) = self.send_by_token(net, index, entry.token) {
                *self.arrived_mut(net, at) |= entry.arrived;
            }
        }
    }

    /// A lane is fenced on both sides, and the peer has said what came: what did not is ours to
    /// send again.
    pub fn lane_reconcile<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, lane: u8) {
        for record in net.records() {
            self.send_relieve(net, index, record, lane);
        }
        let c = &mut net.connections[index];
        if lane == c.rails.control_lane.lane && c.rails.control_lane.blocked {
            c.rails.control_lane.fenced = true;
        }
        net.lane_is_down(index, lane);
        net.due.work.insert(index);
    }

    /// Takes a message's stripes from a lane that is no more: those that did not arrive are to be
    /// written again.
    fn send_relieve<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record: u8,
        lane: u8,
    ) {
        let at = net.send_at(index, record);
        let carried = core::mem::take(&mut self.carried_mut(net, at)[usize::from(lane)]);
        let arrived = *self.arrived_mut(net, at);
        let send = &mut self.records[at];
        let bound = matches!(send.state, SendState::Writing | SendState::Waiting);
        if carried == 0 || !bound {
            return;
        }
        send.written |= carried;
        let missing = if send.delivered { 0 } else { carried & !arrived };
        send.posted &= !missing;
        send.written &= !missing;
        if missing == 0 {
            return self.send_settle(net, index, record);
        }
        send.state = SendState::Writing;
        let moved = missing.count_ones();
        // the peer never spent a receive on them
        let c = &mut net.connections[index];
        c.control.credits.consumed = Seq(c.control.credits.consumed.0.wrapping_sub(moved));
        net.meter_mut(index, lane).stats.moved += u64::from(moved);
        net.stats.stripes_moved += u64::from(moved);
    }

    /// What the peer's oldest unbound group says to a message with `tag`.
    pub fn offer<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, tag: i32) -> Offer {
        if !self.group_seen(net, index) {
            return Offer::NotYet;
        }
        let c = &net.connections[index];
        let (group, count, bound) = (c.send.cursor.group, c.send.cursor.count, c.send.cursor.bound);
        let tags = (0..count).map(|receive| net.slot_tag(index, group, receive));
        match matching::find(tags, bound, tag) {
            Some(receive) => Offer::Receive(receive),
            None => Offer::NoMatch,
        }
    }

    /// Binds a message to a receive of the peer's oldest group.
    pub fn offer_take<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, receive: u8) {
        let c = &mut net.connections[index];
        c.send.cursor.bound |= 1 << receive;
        if c.send.cursor.bound == matching::full(c.send.cursor.count) {
            self.group_pass(net, index);
        }
    }

    #[cfg_attr(feature = "std", inline(always))]
    pub fn group_pass<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        let c = &mut net.connections[index];
        c.send.cursor.pass();
        // who answers tells of it with the next answer, or with slots of its own that are held
        let tells = P::SEVERAL_LANES && c.recv.hold.on && !c.ends_requests();
        if c.state_due() && !tells {
            net.due.work.insert(index);
        }
    }

    /// Whether the peer's oldest unbound group is there. Steps over groups that early messages
    /// fill, and gives back those that the peer wants back.
    fn group_seen<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        loop {
            let c = &net.connections[index];
            if c.send.cursor.count == 0 && !self.group_appears(net, index) {
                return false;
            }
            let c = &net.connections[index];
            let untouched = c.send.cursor.bound == 0 && c.send.cursor.count != 0;
            if untouched && net.slot_flags(index, c.send.cursor.group, 0) & SLOT_CANCEL != 0 {
                let c = &mut net.connections[index];
                c.send.cursor.canceled = Some(c.send.cursor.group);
                c.send.cursor.canceled_news = true;
                self.group_pass(net, index);
                net.due.work.insert(index);
                continue;
            }
            if c.send.cursor.count != 0 {
                return true;
            }
        }
    }

    /// Steps over groups that the peer wants back, if its oldest was never looked at since; also
    /// over those before them that early messages have filled.
    pub fn withdrawals_look<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) {
        let c = &net.connections[index];
        let number = c.send.cursor.group;
        if c.send.cursor.bound != 0 || !net.slot_is_there(index, number, 0) {
            return;
        }
        let flags = net.slot_flags(index, number, 0);
        let fresh =
            c.send.cursor.count == 0 && (flags & SLOT_TAKEN != 0 || c.send.cursor.early != 0);
        if (flags & SLOT_CANCEL != 0 || fresh) && net.slot_glance(index, number, 0).is_some() {
            self.group_seen(net, index);
            net.news += usize::from(net.connections[index].send.cursor.group != number);
        }
    }

    /// Looks for all slots of the oldest group; when they are there, replays the early messages.
    fn group_appears<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        let c = &net.connections[index];
        let number = c.send.cursor.group;
        let Some(first) = net.slot_glance(index, number, 0) else {
            return false;
        };
        if first.index != 0 {
            return false;
        }
        for receive in 1..first.count {
            if net.slot_glance(index, number, receive).is_none() {
                return false;
            }
        }
        self.acks_take(net, index, Seq(first.credits_through), Seq(first.delivered_through));
        if first.more != 0 {
            self.run_pass(net, index, number, first.more);
            return true;
        }
        net.connections[index].send.cursor.count = first.count;
        if first.count > 1
            || first.flags & SLOT_TAKEN != 0
            || net.connections[index].send.cursor.early > 0
        {
            self.early_replay(net, index, number, first.count);
        }
        let c = &net.connections[index];
        if c.send.cursor.bound == matching::full(c.send.cursor.count) {
            self.group_pass(net, index);
        }
        true
    }

    /// Steps over groups that early messages have filled, one each, of which one slot speaks: the
    /// peer has taken those in.
    #[inline(never)]
    fn run_pass<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, number: Seq, more: u8) {
        let first = Seq(net.slot_read(index, number, 0).taken_by);
        net.connections[index].send.stream.taken_take(first.plus(1 + u32::from(more)));
        for filled in 0..=u32::from(more) {
            self.taken_forget(net, index, first.plus(filled));
            self.group_pass(net, index);
        }
    }

    /// Accounts for the messages that were sent before their group was seen.
    fn early_replay<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        number: Seq,
        count: u8,
    ) {
        for receive in 0..count {
            let slot = net.slot_read(index, number, receive);
            if slot.flags & SLOT_TAKEN != 0 {
                net.connections[index].send.cursor.bound |= 1 << receive;
                self.taken_forget(net, index, Seq(slot.taken_by));
            }
        }
        let mut at = 0;
        while at < usize::from(net.connections[index].send.cursor.early) {
            let early = self.early[index * EARLY_MAX as usize + at];
            let bound = net.connections[index].send.cursor.bound;
            let tags = (0..count).map(|receive| net.slot_tag(index, number, receive));
            match matching::find(tags, bound, early.tag) {
                Some(receive) => {
                    net.connections[index].send.cursor.bound |= 1 << receive;
                    self.early_forget(net, index, at);
                }
                None => at += 1,
            }
        }
    }

    /// The message of that number, if it was sent early, is in a slot.
    fn taken_forget<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, number: Seq) {
        let first = index * EARLY_MAX as usize;
        let count = usize::from(net.connections[index].send.cursor.early);
        let list = &self.early[first..first + count];
        if let Some(place) = list.iter().position(|early| early.number == number) {
            self.early_forget(net, index, place);
        }
    }

    fn early_forget<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, place: usize) {
        let first = index * EARLY_MAX as usize;
        let count = usize::from(net.connections[index].send.cursor.early);
        self.early[first..first + count].copy_within(place + 1.., place);
        net.connections[index].send.cursor.early -= 1;
    }

    /// Binds queued messages to visible slots, in order; says whether some remain queued.
    pub fn bind_step<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
    ) -> bool {
        let (mut previous, mut head) = (None, net.connections[index].send.queue.head);
        while let Some(record) = head {
            let send = self.records[net.send_at(index, record)];
            let next = self.queue_after(net, index, record);
            let short = net.is_short(index, send.region, send.length);
            let group = net.connections[index].send.cursor.group;
            let offer = self.offer(net, index, send.tag);
            let left = match offer {
                Offer::NoMatch => {
                    (previous, head) = (Some(record), next);
                    continue;
                }
                Offer::Receive(_) if short => {
                    self.eager_queued(net, recvs, index, (previous, record), offer)
                }
                Offer::Receive(receive) => {
                    self.start_send(net, recvs, index, (previous, record), receive)
                }
                Offer::NotYet => {
                    let room = self.may_go_early(net, index, send.length);
                    let may = previous.is_none() && short && room;
                    may && self.eager_queued(net, recvs, index, (previous, record), offer)
                }
            };
            if !left {
                break;
            }
            // a new oldest group may take what the last one did not
            let same = net.connections[index].send.cursor.group == group && previous.is_some();
            let first = net.connections[index].send.queue.head;
            (previous, head) = if same { (previous, next) } else { (None, first) };
        }
        let queued = !net.connections[index].send.queue.is_empty();
        if queued {
            net.due.watch.insert(index);
        }
        // what waits for a slot is looked at by `watch_step`
        false
    }

    /// Tells the peer which receive a message is bound to; its stripes follow.
    fn start_send<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        recvs: &mut Recvs<'_>,
        index: usize,
        (previous, record): (Option<u8>, u8),
        receive: u8,
    ) -> bool {
        let group = net.connections[index].send.cursor.group;
        let slot = net.slot_read(index, group, receive);
        let send = self.records[net.send_at(index, record)];
        let fits = send.length <= slot.length;
        let Some(keys) = net.cell_read(index, &slot) else {
            return false;
        };
        let cut = match fits {
            true => net.cut(index, send.length),
            false => Cut { count: 1, stripe_bytes: send.length },
        };
        let stripes = cut.count as u8;
        let payload = net.scratch.fill(&send.length.to_le_bytes());
        let number = net.connections[index].send.number;
        let token = slot.token as i32;
        if self.stream_post(net, recvs, index, (KIND_START, token, stripes), payload).is_err() {
            return false;
        }
        self.queue_remove(net, index, previous, record);
        self.offer_take(net, index, receive);
        let at = net.send_at(index, record);
        let send = &mut self.records[at];
        send.number = number;
        send.token = slot.token;
        send.stripes = stripes;
        send.stripe_bytes = cut.stripe_bytes;
        send.target = DataSpan(RemoteSpan { key: RailKey(keys[0]), address: slot.address });
        send.next = if slot.cell == NO_CELL { NIL } else { slot.cell as u8 };
        send.state = SendState::Writing;
        if !fits {
            // the receive ends as truncated by the start alone
            send.posted = 1;
            send.written = 1;
            send.state = SendState::Waiting;
        }
        net.connections[index].send.waiting += 1;
        net.stats.pushed += 1;
        net.due.watch.insert(index);
        true
    }
}
