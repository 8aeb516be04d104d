//! Messages on a rail that pushes: the sender binds long ones to the slots that it sees, and short
//! ones may leave before.
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use super::limits::{EARLY_LONG_MAX, EARLY_MAX};
use super::matching;
use super::rail::DataSpan;
use super::records::{EarlySend, NIL, SendState};
use super::schedule::Cut;
use super::slots::NO_CELL;
use crate::base::seq::Seq;
use crate::fabric::{Provider, RailKey, RemoteSpan};
use crate::wire::head::KIND_START;
use crate::wire::slot::{SLOT_CANCEL, SLOT_TAKEN};

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
    /// What the peer's oldest unbound group says to a message with `tag`.
    pub(super) fn offer(&mut self, index: usize, tag: i32) -> Offer {
        if !self.group_seen(index) {
            return Offer::NotYet;
        }
        let c = &self.connections[index];
        let (group, count, bound) = (c.send.cursor.group, c.send.cursor.count, c.send.cursor.bound);
        let tags = (0..count).map(|receive| self.slot_tag(index, group, receive));
        match matching::find(tags, bound, tag) {
            Some(receive) => Offer::Receive(receive),
            None => Offer::NoMatch,
        }
    }

    /// Binds a message to a receive of the peer's oldest group.
    pub(super) fn offer_take(&mut self, index: usize, receive: u8) {
        let c = &mut self.connections[index];
        c.send.cursor.bound |= 1 << receive;
        if c.send.cursor.bound == matching::full(c.send.cursor.count) {
            self.group_pass(index);
        }
    }

    #[cfg_attr(feature = "std", inline(always))]
    pub(super) fn group_pass(&mut self, index: usize) {
        let c = &mut self.connections[index];
        c.send.cursor.pass();
        // who answers tells of it with the next answer, or with slots of its own that are held
        let tells = P::SEVERAL_LANES && c.recv.hold.on && !c.ends_requests();
        if c.state_due() && !tells {
            self.work.insert(index);
        }
    }

    /// Whether the peer's oldest unbound group is there. Steps over groups that early messages
    /// fill, and gives back those that the peer wants back.
    fn group_seen(&mut self, index: usize) -> bool {
        loop {
            let c = &self.connections[index];
            if c.send.cursor.count == 0 && !self.group_appears(index) {
                return false;
            }
            let c = &self.connections[index];
            let untouched = c.send.cursor.bound == 0 && c.send.cursor.count != 0;
            if untouched && self.slot_flags(index, c.send.cursor.group, 0) & SLOT_CANCEL != 0 {
                let c = &mut self.connections[index];
                c.send.cursor.canceled = Some(c.send.cursor.group);
                c.send.cursor.canceled_news = true;
                self.group_pass(index);
                self.work.insert(index);
                continue;
            }
            if c.send.cursor.count != 0 {
                return true;
            }
        }
    }

    /// Steps over groups that the peer wants back, if its oldest was never looked at since; also
    /// over those before them that early messages have filled.
    pub(super) fn withdrawals_look(&mut self, index: usize) {
        let c = &self.connections[index];
        let number = c.send.cursor.group;
        if c.send.cursor.bound != 0 || !self.slot_is_there(index, number, 0) {
            return;
        }
        let flags = self.slot_flags(index, number, 0);
        let fresh =
            c.send.cursor.count == 0 && (flags & SLOT_TAKEN != 0 || c.send.cursor.early != 0);
        if (flags & SLOT_CANCEL != 0 || fresh) && self.slot_glance(index, number, 0).is_some() {
            self.group_seen(index);
            self.news += usize::from(self.connections[index].send.cursor.group != number);
        }
    }

    /// Looks for all slots of the oldest group; when they are there, replays the early messages.
    fn group_appears(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        let number = c.send.cursor.group;
        let Some(first) = self.slot_glance(index, number, 0) else {
            return false;
        };
        if first.index != 0 {
            return false;
        }
        for receive in 1..first.count {
            if self.slot_glance(index, number, receive).is_none() {
                return false;
            }
        }
        self.acks_take(index, Seq(first.credits_through), Seq(first.delivered_through));
        if first.more != 0 {
            self.run_pass(index, number, first.more);
            return true;
        }
        self.connections[index].send.cursor.count = first.count;
        if first.count > 1
            || first.flags & SLOT_TAKEN != 0
            || self.connections[index].send.cursor.early > 0
        {
            self.early_replay(index, number, first.count);
        }
        let c = &self.connections[index];
        if c.send.cursor.bound == matching::full(c.send.cursor.count) {
            self.group_pass(index);
        }
        true
    }

    /// Steps over groups that early messages have filled, one each, of which one slot speaks: the
    /// peer has taken those in.
    #[inline(never)]
    fn run_pass(&mut self, index: usize, number: Seq, more: u8) {
        let first = Seq(self.slot_read(index, number, 0).taken_by);
        self.connections[index].send.stream.taken_take(first.plus(1 + u32::from(more)));
        for filled in 0..=u32::from(more) {
            self.taken_forget(index, first.plus(filled));
            self.group_pass(index);
        }
    }

    /// Accounts for the messages that were sent before their group was seen.
    fn early_replay(&mut self, index: usize, number: Seq, count: u8) {
        for receive in 0..count {
            let slot = self.slot_read(index, number, receive);
            if slot.flags & SLOT_TAKEN != 0 {
                self.connections[index].send.cursor.bound |= 1 << receive;
                self.taken_forget(index, Seq(slot.taken_by));
            }
        }
        let mut at = 0;
        while at < usize::from(self.connections[index].send.cursor.early) {
            let early = self.early[index * EARLY_MAX as usize + at];
            let bound = self.connections[index].send.cursor.bound;
            let tags = (0..count).map(|receive| self.slot_tag(index, number, receive));
            match matching::find(tags, bound, early.tag) {
                Some(receive) => {
                    self.connections[index].send.cursor.bound |= 1 << receive;
                    self.early_forget(index, at);
                }
                None => at += 1,
            }
        }
    }

    /// The message of that number, if it was sent early, is in a slot.
    fn taken_forget(&mut self, index: usize, number: Seq) {
        let first = index * EARLY_MAX as usize;
        let count = usize::from(self.connections[index].send.cursor.early);
        let list = &self.early[first..first + count];
        if let Some(place) = list.iter().position(|early| early.number == number) {
            self.early_forget(index, place);
        }
    }

    fn early_forget(&mut self, index: usize, place: usize) {
        let first = index * EARLY_MAX as usize;
        let count = usize::from(self.connections[index].send.cursor.early);
        self.early[first..first + count].copy_within(place + 1.., place);
        self.connections[index].send.cursor.early -= 1;
    }

    /// Whether one more message, of `length` bytes, may leave before its receive was seen.
    #[inline]
    pub(super) fn may_go_early(&self, index: usize, length: u64) -> bool {
        let c = &self.connections[index];
        let is_long = length > self.caps.send_payload_max.0;
        let waits = is_long && !(P::SEVERAL_LANES && c.control.credits.is_all_taken());
        u32::from(c.send.cursor.early) < if waits { EARLY_LONG_MAX } else { EARLY_MAX }
    }

    /// What the peer's oldest group says to a message with `tag` that may go early: either it
    /// takes the message, or it is not visible and there is room to remember the message.
    #[inline]
    pub(super) fn early_offer(&mut self, index: usize, tag: i32, length: u64) -> Option<Offer> {
        match self.offer(index, tag) {
            Offer::NoMatch => None,
            Offer::NotYet if !self.may_go_early(index, length) => None,
            offer => Some(offer),
        }
    }

    /// On a rail that pushes, accounts for a message that has left in the stream, to which the
    /// peer's oldest group said `offer`.
    #[cfg_attr(feature = "std", inline(always))]
    pub(super) fn eager_account(&mut self, index: usize, tag: i32, offer: Offer) {
        match offer {
            Offer::Receive(receive) => self.offer_take(index, receive),
            Offer::NoMatch | Offer::NotYet => {
                let c = &mut self.connections[index];
                let number = Seq(c.send.stream.number.0.wrapping_sub(1));
                let at = index * EARLY_MAX as usize + usize::from(c.send.cursor.early);
                self.early[at] = EarlySend { tag, number };
                c.send.cursor.early += 1;
            }
        }
    }

    /// Binds queued messages to visible slots, in order; says whether some remain queued.
    pub(super) fn bind_step(&mut self, index: usize) -> bool {
        let (mut previous, mut head) = (None, self.connections[index].send.queue.head);
        while let Some(record) = head {
            let send = self.sends[self.send_at(index, record)];
            let next = self.queue_after(index, record);
            let short = self.connections[index].send.is_short(send.length);
            let group = self.connections[index].send.cursor.group;
            let offer = self.offer(index, send.tag);
            let left = match offer {
                Offer::NoMatch => {
                    (previous, head) = (Some(record), next);
                    continue;
                }
                Offer::Receive(_) if short => self.eager_queued(index, previous, record, offer),
                Offer::Receive(receive) => self.start_send(index, previous, record, receive),
                Offer::NotYet => {
                    let room = self.may_go_early(index, send.length);
                    let may = previous.is_none() && short && room;
                    may && self.eager_queued(index, previous, record, offer)
                }
            };
            if !left {
                break;
            }
            // a new oldest group may take what the last one did not
            let same = self.connections[index].send.cursor.group == group && previous.is_some();
            let first = self.connections[index].send.queue.head;
            (previous, head) = if same { (previous, next) } else { (None, first) };
        }
        let queued = !self.connections[index].send.queue.is_empty();
        if queued {
            self.watch.insert(index);
        }
        // what waits for a slot is looked at by `watch_step`
        false
    }

    /// Tells the peer which receive a message is bound to; its stripes follow.
    fn start_send(&mut self, index: usize, previous: Option<u8>, record: u8, receive: u8) -> bool {
        let group = self.connections[index].send.cursor.group;
        let slot = self.slot_read(index, group, receive);
        let send = self.sends[self.send_at(index, record)];
        let fits = send.length <= slot.length;
        let Some(keys) = self.cell_read(index, &slot) else {
            return false;
        };
        let cut = match fits {
            true => self.cut(index, send.length),
            false => Cut { count: 1, stripe_bytes: send.length },
        };
        let stripes = cut.count as u8;
        let payload = self.scratch.fill(&send.length.to_le_bytes());
        let number = self.connections[index].send.number;
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
        send.target = DataSpan(RemoteSpan { key: RailKey(keys[0]), address: slot.address });
        send.next = if slot.cell == NO_CELL { NIL } else { slot.cell as u8 };
        send.state = SendState::Writing;
        if !fits {
            // the receive ends as truncated by the start alone
            send.posted = 1;
            send.written = 1;
            send.state = SendState::Waiting;
        }
        self.connections[index].send.waiting += 1;
        self.stats.pushed += 1;
        self.watch.insert(index);
        true
    }
}
