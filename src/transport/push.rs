//! Long messages on a rail that pushes: the receiver offers slots, the sender binds and writes.
#![forbid(unsafe_code)]

use super::eager::{OP_STRIPE, op_id};
use super::endpoint::Endpoint;
use super::limits::EARLY_MAX;
use super::matching;
use super::records::{HeldMessage, KnownRegion, NIL, SendState};
use super::request::RequestError;
use super::schedule::{self, Cut};
use super::slots::{NO_CELL, cell_line};
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::fabric::{OpKind, Posted, Provider, RailKey, RemoteSpan, Source};
use crate::wire::head::KIND_START;
use crate::wire::slot::{ControlSlot, SLOT_CANCEL, SLOT_TAKEN};
use crate::wire::{GROUP_MAX, cell, immediate};

/// What the peer's oldest group says to a message.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Offer {
    /// This receive takes it.
    Receive(u8),
    /// The group is there, and none of its receives takes it.
    NoMatch,
    /// The group has not been seen yet.
    NotYet,
}

impl<P: Provider> Endpoint<'_, P> {
    // ---- receiver ----

    /// Writes the slots that are due; says whether some remain.
    pub(super) fn slots_step(&mut self, index: usize) -> bool {
        if self.connections[index].pull {
            return false;
        }
        let blocked = self.offers_step(index);
        let canceling = self.cancel_step(index);
        blocked | canceling
    }

    /// Offers the groups that have not been; says whether the rail or the cells have no room.
    fn offers_step(&mut self, index: usize) -> bool {
        loop {
            let c = &self.connections[index];
            let (number, first) = (c.slots_next, c.slots_at);
            let room = number.ahead_of(c.peer_groups_through) < self.limits.requests_max as i32;
            if number == c.group_post {
                return false;
            }
            if !room {
                self.watch.insert(index); // the peer's state line will make room
                return false;
            }
            if !self.group_offer(index, number, first) {
                return true;
            }
            self.connections[index].slots_next = number.next();
            self.connections[index].slots_at = 0;
        }
    }

    /// Writes the slots of the next group from `first` on; `false` when the rail has no room or no
    /// cell is free, and then those written stay written.
    fn group_offer(&mut self, index: usize, number: Seq, first: u8) -> bool {
        let group = self.groups[self.group_at(index, number)];
        debug_assert_eq!(group.number, number);
        for receive in first..group.count {
            if !self.slot_write(index, number, receive, group.count, 0) {
                return false;
            }
            self.connections[index].slots_at = receive + 1;
        }
        true
    }

    fn slot_write(
        &mut self,
        index: usize,
        number: Seq,
        receive: u8,
        count: u8,
        flags: u16,
    ) -> bool {
        let at = self.group_at(index, number);
        let record_at = at * GROUP_MAX + usize::from(receive);
        let record = self.receives[record_at];
        let taken = self.groups[at].bound >> receive & 1 == 1;
        let Some((cell, cell_sequence)) = self.cell_for(index, record_at, taken) else {
            return false;
        };
        let c = &self.connections[index];
        let slot = ControlSlot {
            address: record.address,
            length: record.length,
            cell,
            cell_sequence,
            tag: record.label as i32,
            token: immediate::token(number, receive),
            index: receive,
            count,
            flags: flags | if taken { SLOT_TAKEN } else { 0 },
            credits_through: c.credits_now().0,
            delivered_through: c.arrived.through().0,
            taken_by: if taken { record.label } else { 0 },
            sequence: number.0,
            epoch: c.epoch,
        };
        let target = c.mailbox.plus((self.slot_line(number, receive) * 64) as u64);
        self.line_write(index, target, &slot.encode())
    }

    /// The cell that tells the keys of a receive's region, written if the peer does not know them.
    fn cell_for(&mut self, index: usize, record_at: usize, taken: bool) -> Option<(u32, u32)> {
        let record = self.receives[record_at];
        if record.region == super::mr::NO_REGION || taken {
            return Some((NO_CELL, 0));
        }
        if record.cell != NIL {
            let known = self.connections[index].cells[usize::from(record.cell)];
            return Some((u32::from(record.cell), known.sequence));
        }
        let region = self.regions.handle(record.region);
        let cells = &self.connections[index].cells;
        let known = cells.iter().position(|cell| cell.region == region);
        let at = match known {
            Some(at) => at,
            None => {
                let free = cells.iter().position(|cell| cell.users == 0)?;
                if !self.cell_write(index, free, record.region, region) {
                    return None;
                }
                free
            }
        };
        let cell = &mut self.connections[index].cells[at];
        cell.users += 1;
        self.receives[record_at].cell = at as u8;
        Some((at as u32, cell.sequence))
    }

    fn cell_write(&mut self, index: usize, at: usize, region: u16, handle: Handle) -> bool {
        let c = &mut self.connections[index];
        let used = c.cells[at].sequence != 0;
        if used && c.lines_flying != 0 && !self.caps.ordered {
            return false; // what is written anew must not land before what it replaces
        }
        // a number is never used for two contents, not even when the second line finds no room
        let sequence = c.cells[at].sequence.wrapping_add(1);
        c.cells[at] = KnownRegion { region: Handle::default(), sequence, users: 0 };
        let (epoch, target) = (c.epoch, c.mailbox.plus((cell_line(at) * 64) as u64));
        let mut keys = [0; 8];
        keys[0] = self.regions.key(region, 0);
        let (first, second) = cell::encode(&keys, sequence, epoch);
        let written = self.line_write(index, target, &first)
            && self.line_write(index, target.plus(64), &second);
        if written {
            self.connections[index].cells[at].region = handle;
        }
        written
    }

    /// A receive has ended: its slot names the cell no more.
    #[inline(always)]
    pub(super) fn cell_leave(&mut self, index: usize, record_at: usize) {
        let receive = &mut self.receives[record_at];
        if receive.cell != NIL {
            self.connections[index].cell_drop(receive);
        }
    }

    /// Asks for the oldest group back that the user canceled; says whether that must be retried.
    fn cancel_step(&mut self, index: usize) -> bool {
        if let Some(number) = self.connections[index].canceling {
            let group = self.groups[self.group_at(index, number)];
            if group.number == number && !group.free && group.bound == 0 {
                return false; // the verdict is on its way
            }
            self.connections[index].canceling = None; // a message came first
        }
        let c = &self.connections[index];
        if !c.cancels_due {
            return false;
        }
        if c.lines_flying != 0 && !self.caps.ordered {
            return true; // what is written anew must not land before what it replaces
        }
        let mut number = c.group_oldest;
        while number != c.slots_next && number.before(c.slots_next) {
            let group = self.groups[self.group_at(index, number)];
            if group.number == number && group.cancel && !group.free && group.bound == 0 {
                // the first slot speaks for the group, so that asking is one write
                if !self.slot_write(index, number, 0, group.count, SLOT_CANCEL) {
                    return true;
                }
                self.connections[index].canceling = Some(number);
                self.watch.insert(index);
                return false;
            }
            number = number.next();
        }
        let c = &mut self.connections[index];
        c.cancels_due = c.slots_next != c.group_post; // those that are not offered were not seen
        false
    }

    /// The start of a message that the sender bound to one of our slots has come, in turn.
    pub(super) fn start_arrived(&mut self, index: usize, message: HeldMessage) {
        let mut length = [0; 8];
        if message.length as usize != length.len() {
            return self.connection_fail(index, RequestError::Protocol);
        }
        let peer = self.connections[index].peer;
        self.rail.received_peek(peer, message.slot, &mut length);
        self.release(index, message.slot);
        let Some((group, receive)) = self.token_find(index, message.tag as u32) else {
            return self.connection_fail(index, RequestError::Protocol);
        };
        let at = self.group_at(index, group);
        let record_at = at * GROUP_MAX + usize::from(receive);
        if self.groups[at].bound >> receive & 1 == 1 {
            return self.connection_fail(index, RequestError::Protocol);
        }
        self.groups[at].bound |= 1 << receive;
        let record = &mut self.receives[record_at];
        let room = record.length;
        record.length = u64::from_le_bytes(length);
        record.label = message.number.0;
        record.total = message.stripes;
        let (wanted, stripes) = (record.length, record.stripes);
        self.oldest_advance(index);
        if wanted > room {
            self.stats.truncated += 1;
            self.receive_end(index, group, receive, Some(RequestError::Truncated));
        } else {
            self.stripes_settle(index, group, receive, stripes, message.stripes);
        }
    }

    /// A stripe is in place.
    pub(super) fn stripe_arrived(&mut self, index: usize, word: u32) {
        self.credit_return(index);
        let (token, stripe) = immediate::decode(word);
        let Some((group, receive)) = self.token_find(index, token) else {
            return self.connection_fail(index, RequestError::Protocol);
        };
        let record_at = self.group_at(index, group) * GROUP_MAX + usize::from(receive);
        let record = &mut self.receives[record_at];
        if record.stripes >> stripe & 1 == 1 {
            return self.connection_fail(index, RequestError::Protocol);
        }
        record.stripes |= 1 << stripe;
        let (stripes, total) = (record.stripes, record.total);
        self.stripes_settle(index, group, receive, stripes, total);
    }

    fn stripes_settle(&mut self, index: usize, group: Seq, receive: u8, stripes: u64, total: u8) {
        if total != 0 && stripes.count_ones() == u32::from(total) {
            self.receive_end(index, group, receive, None);
        }
    }

    /// The outstanding receive that a token means.
    fn token_find(&self, index: usize, token: u32) -> Option<(Seq, u8)> {
        let c = &self.connections[index];
        let window = self.limits.requests_max;
        let oldest = Seq(c.group_post.0.wrapping_sub(window));
        let (number, receive) = immediate::resolve(token, oldest, window)?;
        let group = self.groups[self.group_at(index, number)];
        let open = group.number == number && !group.free && receive < group.count;
        (open && group.done >> receive & 1 == 0).then_some((number, receive))
    }

    // ---- sender ----

    /// What the peer's oldest unbound group says to a message with `tag`.
    pub(super) fn offer(&mut self, index: usize, tag: i32) -> Offer {
        if !self.group_seen(index) {
            return Offer::NotYet;
        }
        let c = &self.connections[index];
        let (group, count, bound) = (c.group_next, c.group_count, c.group_bound);
        let tags = (0..count).map(|receive| self.slot_tag(index, group, receive));
        match matching::find(tags, bound, tag) {
            Some(receive) => Offer::Receive(receive),
            None => Offer::NoMatch,
        }
    }

    /// Binds a message to a receive of the peer's oldest group.
    pub(super) fn offer_take(&mut self, index: usize, receive: u8) {
        let c = &mut self.connections[index];
        c.group_bound |= 1 << receive;
        if c.group_bound == matching::full(c.group_count) {
            self.group_pass(index);
        }
    }

    fn group_pass(&mut self, index: usize) {
        let c = &mut self.connections[index];
        c.group_next = c.group_next.next();
        c.group_count = 0;
        c.group_bound = 0;
        if c.state_due() {
            self.work.insert(index);
        }
    }

    /// Whether the peer's oldest unbound group is there. Steps over groups that early messages
    /// fill, and gives back those that the peer wants back.
    fn group_seen(&mut self, index: usize) -> bool {
        loop {
            let c = &self.connections[index];
            if c.group_count == 0 && !self.group_appears(index) {
                return false;
            }
            let c = &self.connections[index];
            let untouched = c.group_bound == 0 && c.group_count != 0;
            if untouched && self.slot_flags(index, c.group_next, 0) & SLOT_CANCEL != 0 {
                let c = &mut self.connections[index];
                c.canceled = Some(c.group_next);
                c.canceled_news = true;
                self.group_pass(index);
                self.work.insert(index);
                continue;
            }
            if c.group_count != 0 {
                return true;
            }
        }
    }

    /// Steps over groups that the peer wants back, if its oldest was never looked at since.
    pub(super) fn withdrawals_look(&mut self, index: usize) {
        let c = &self.connections[index];
        let number = c.group_next;
        if c.group_bound == 0
            && self.slot_is_there(index, number, 0)
            && self.slot_flags(index, number, 0) & SLOT_CANCEL != 0
            && self.slot_whole(index, number, 0).is_some()
        {
            self.group_seen(index);
            self.news += usize::from(self.connections[index].group_next != number);
        }
    }

    /// Looks for all slots of the oldest group; when they are there, replays the early messages.
    fn group_appears(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        let number = c.group_next;
        let Some(first) = self.slot_glance(index, number) else {
            return false;
        };
        if first.index != 0 {
            return false;
        }
        for receive in 1..first.count {
            if self.slot_whole(index, number, receive).is_none() {
                return false;
            }
        }
        self.acks_take(index, Seq(first.credits_through), Seq(first.delivered_through));
        self.connections[index].group_count = first.count;
        if first.count > 1 || first.flags & SLOT_TAKEN != 0 || self.connections[index].early > 0 {
            self.early_replay(index, number, first.count);
        }
        let c = &self.connections[index];
        if c.group_bound == matching::full(c.group_count) {
            self.group_pass(index);
        }
        true
    }

    /// Accounts for the messages that were sent before their group was seen.
    fn early_replay(&mut self, index: usize, number: Seq, count: u8) {
        for receive in 0..count {
            let slot = self.slot_read(index, number, receive);
            if slot.flags & SLOT_TAKEN != 0 {
                self.connections[index].group_bound |= 1 << receive;
                self.early_forget(index, |_, number| number == Seq(slot.taken_by));
            }
        }
        let mut at = 0;
        while at < usize::from(self.connections[index].early) {
            let early = self.early[index * EARLY_MAX as usize + at];
            let bound = self.connections[index].group_bound;
            let tags = (0..count).map(|receive| self.slot_tag(index, number, receive));
            match matching::find(tags, bound, early.tag) {
                Some(receive) => {
                    self.connections[index].group_bound |= 1 << receive;
                    self.early_forget(index, |place, _| place == at);
                }
                None => at += 1,
            }
        }
    }

    fn early_forget(&mut self, index: usize, is: impl Fn(usize, Seq) -> bool) {
        let first = index * EARLY_MAX as usize;
        let count = usize::from(self.connections[index].early);
        let list = &mut self.early[first..first + count];
        if let Some(at) = (0..count).find(|at| is(*at, list[*at].number)) {
            list.copy_within(at + 1.., at);
            self.connections[index].early -= 1;
        }
    }

    /// Binds queued messages to visible slots, in order; says whether some remain queued.
    pub(super) fn bind_step(&mut self, index: usize) -> bool {
        let (mut previous, mut record) = (NIL, self.connections[index].queue.head);
        while record != NIL {
            let send = self.sends[self.send_at(index, record)];
            let short = send.length <= self.connections[index].eager_bytes_max;
            let group = self.connections[index].group_next;
            let offer = self.offer(index, send.tag);
            let left = match offer {
                Offer::NoMatch => {
                    (previous, record) = (record, send.next);
                    continue;
                }
                Offer::Receive(_) if short => self.eager_queued(index, previous, record, offer),
                Offer::Receive(receive) => self.start_send(index, previous, record, receive),
                Offer::NotYet => {
                    let room = u32::from(self.connections[index].early) < EARLY_MAX;
                    let may = previous == NIL && short && room;
                    may && self.eager_queued(index, previous, record, offer)
                }
            };
            if !left {
                break;
            }
            // a new oldest group may take what the last one did not
            let same = self.connections[index].group_next == group && previous != NIL;
            let head = self.connections[index].queue.head;
            (previous, record) = if same { (previous, send.next) } else { (NIL, head) };
        }
        let queued = !self.connections[index].queue.is_empty();
        if queued {
            self.watch.insert(index);
        }
        // what waits for a slot is looked at by `watch_step`
        false
    }

    /// Tells the peer which receive a message is bound to; its stripes follow.
    fn start_send(&mut self, index: usize, previous: u8, record: u8, receive: u8) -> bool {
        let group = self.connections[index].group_next;
        let slot = self.slot_read(index, group, receive);
        let send = self.sends[self.send_at(index, record)];
        let fits = send.length <= slot.length;
        let (Some(cut), Some(keys)) = (self.cut(send.length), self.cell_read(index, &slot)) else {
            return false;
        };
        let stripes = if fits { cut.count as u8 } else { 1 };
        let payload = self.scratch.fill(&send.length.to_le_bytes());
        let number = self.connections[index].send_number;
        let token = slot.token as i32;
        if self.stream_post(index, KIND_START, token, stripes, payload).is_err() {
            return false;
        }
        self.queue_remove(index, previous, record);
        self.offer_take(index, receive);
        let at = self.send_at(index, record);
        let send = &mut self.sends[at];
        send.number = number;
        send.token = slot.token;
        send.stripes = stripes;
        send.stripe_bytes = cut.stripe_bytes;
        send.target = RemoteSpan { key: RailKey(keys[0]), address: slot.address };
        send.state = SendState::Writing;
        if !fits {
            // the receive ends as truncated by the start alone
            send.posted = 1;
            send.written = 1;
            send.state = SendState::Waiting;
        }
        self.connections[index].waiting += 1;
        self.stats.pushed += 1;
        self.watch.insert(index);
        true
    }

    fn cut(&self, length: u64) -> Option<Cut> {
        schedule::cut(length, self.config.stripe_bytes_min, self.caps.transfer_max)
    }

    /// Writes the stripes that are due; says whether some remain.
    pub(super) fn stripes_step(&mut self, index: usize) -> bool {
        if self.connections[index].waiting == 0 {
            return false;
        }
        let records = self.limits.requests_max;
        let mut used = !self.connections[index].sends_free;
        let mut remain = false;
        while used.trailing_zeros() < records {
            let record = used.trailing_zeros() as u8;
            used &= used - 1;
            if self.sends[self.send_at(index, record)].state == SendState::Writing {
                remain |= !self.stripes_write(index, record);
            }
        }
        remain
    }

    /// Writes the stripes of one message; `false` when some could not be posted.
    fn stripes_write(&mut self, index: usize, record: u8) -> bool {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        let cut = Cut { count: u32::from(send.stripes), stripe_bytes: send.stripe_bytes };
        let mut missing = cut.all() & !send.posted;
        while missing != 0 {
            let stripe = missing.trailing_zeros();
            missing &= missing - 1;
            let (offset, length) = cut.stripe(stripe, send.length);
            if !self.may_consume(index, 0) {
                return false;
            }
            let span = self.regions.span(send.region, send.address + offset, length, 0);
            let write = OpKind::Write {
                source: Source::Span(span),
                target: send.target.plus(offset),
                immediate: Some(immediate::encode(send.token, stripe)),
            };
            let Ok(posted) = self.post(index, op_id(OP_STRIPE, record, stripe as u8), write) else {
                return false;
            };
            let c = &mut self.connections[index];
            c.consumed = c.consumed.next();
            self.sends[at].posted |= 1 << stripe;
            if posted == Posted::Done {
                self.sends[at].written |= 1 << stripe;
            }
        }
        self.sends[at].state = SendState::Waiting;
        self.send_settle(index, record);
        true
    }
}
