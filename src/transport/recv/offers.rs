//! On a rail that pushes, the receiver offers its buffers in control slots.
//!
//! Where a line costs a system call, slots are held back while nothing but short messages comes:
//! those need no offer. Several leave together when their receives are filled, one when nothing has
//! come for a while, or all before the user sleeps. To the peer we are a receiver that posts a
//! little later. What such messages have filled by then, one slot says.
//!
//! # Filled groups
//!
//! The heads of answers say which groups short messages have filled. This saves a slot for each: a
//! line, which is a packet. Where messages come one at a time, it also saves a system call or a
//! doorbell.
//!
//! [`SendHead::filled`] names a group. All groups before it are filled by the peer's messages, one
//! each. They come after those that the peer has said that it is past. The receiver says it only
//! if:
//!
//! - no such group ever had a slot by which the peer could have passed it;
//! - the peer was told of all earlier messages;
//! - none of these messages is left over, or in a group that is not full.
//!
//! So the oldest of the messages that the peer has sent early fill these groups.
//!
//! [`SendHead::filled`]: crate::wire::head::SendHead::filled

use super::groups::Recvs;
use crate::base::ids::PeerIndex;
use crate::base::seq::Seq;
use crate::fabric::Provider;
use crate::transport::connection::{READS_FILLED, READS_RUNS};
use crate::transport::control::lines::NO_CELL;
use crate::transport::limits::{EARLY_MAX, MESSAGE_BYTES_MAX, REQUESTS_MAX};
use crate::transport::mutant::Mutant;
use crate::transport::net::Net;
use crate::transport::records::{CellDue, GroupRecord, HeldMessage, KnownRegion, NIL, NO_REGION};
use crate::transport::request::RequestError;
use crate::wire::head::{FILLED_MASK, FILLED_SAID};
use crate::wire::report::{ENTRIES_MAX, Report, StripesReport};
use crate::wire::slot::{ControlSlot, SLOT_CANCEL, SLOT_MORE_MAX, SLOT_TAKEN};
use crate::wire::{GROUP_MAX, immediate};

/// Filled receives that are held back are fewer: the peer remembers more messages that it sends
/// early.
const HELD_MAX: u32 = 8;
/// Whether those alone count, and what is not filled is offered one by one. Not in the core, which
/// is built for size, for cards that write a line without a system call: there all count.
const FILLED_ALONE: bool = cfg!(feature = "std");
/// The last version of keys: of changes behind it nobody knows, so that it is never known.
const LATE: u8 = u8::MAX;
/// Messages of the stream without a start after which the next is taken to be short as well.
const SHORT_RUN: u16 = 8;

const _: () = assert!(HELD_MAX < EARLY_MAX / 2);
// users of a cell are counted in 16 bits
const _: () = assert!(REQUESTS_MAX as usize * GROUP_MAX <= u16::MAX as usize);

impl Recvs<'_> {
    /// Writes the slots that are due; says whether some remain.
    pub fn slots_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        let c = &net.connections[index];
        if c.pull || c.rails.control_lane.blocked {
            return false; // goes on when the next control lane is known
        }
        let blocked = self.offers_step(net, index);
        let canceling = self.cancel_step(net, index);
        blocked | canceling
    }

    /// Offers the groups that have not been; says whether the rail or the cells have no room.
    fn offers_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        let c = &mut net.connections[index];
        if c.recv.offers.next.before(c.recv.offers.passed) {
            // what was to be written again has been seen
            (c.recv.offers.next, c.recv.offers.at) = (c.recv.offers.passed, 0);
        }
        let idle = {
            let recv = &net.connections[index].recv;
            recv.hold.is_idle(recv.expected, net.now)
        };
        let mut holds = !idle && self.offers_wait(net, index);
        loop {
            net.offers_hold(index, holds);
            if holds {
                return false;
            }
            let c = &net.connections[index];
            let (number, first) = (c.recv.offers.next, c.recv.offers.at);
            if number == c.recv.post {
                return false;
            }
            let is_filled = !FILLED_ALONE || self.groups[net.group_at(index, number)].bound != 0;
            if !net.offers_have_room(index) {
                net.due.watch.insert(index); // the peer will say when there is room
                return false;
            }
            let more = self.more_taken(net, index, number);
            if !self.group_offer(net, index, number, first, more) {
                return true;
            }
            self.run_told(net, index, number, more);
            let c = &mut net.connections[index];
            (c.recv.offers.next, c.recv.offers.at) = (number.plus(1 + u32::from(more)), 0);
            // so that the run stays one that the record can say
            c.recv.short_run_set(c.recv.short_run().min(SHORT_RUN));
            // they were many because of what is filled, or the next message has a slot, should it
            // be long: the others go on waiting
            let may_hold = if idle { !is_filled } else { more != 0 };
            holds = may_hold && self.offers_wait(net, index);
            if idle && holds {
                net.connections[index].recv.hold.again(net.now);
            }
        }
    }

    /// How many groups behind `number` its slot speaks for: each of one receive, as that one is,
    /// filled by the messages of the stream behind the one that fills that. None of them ever had a
    /// slot: of slots on an earlier control lane the peer may have passed some, and it looks for
    /// that of the next.
    #[inline(never)]
    fn more_taken<P: Provider>(&self, net: &Net<'_, P>, index: usize, number: Seq) -> u8 {
        let c = &net.connections[index];
        if c.control.lines.reads & READS_RUNS == 0 || c.recv.offers.through != number {
            return 0;
        }
        let (mut number, mut filled, mut due) = (number, 0, None);
        while number != c.recv.post && filled <= SLOT_MORE_MAX {
            let at = net.group_at(index, number);
            let message = Seq(self.receives[at].label);
            let is_alone = self.groups[at].count == 1 && self.groups[at].bound == 1;
            // one that was taken back has a number that is nobody's, nor is the next one
            if !is_alone || due.unwrap_or(message) != message {
                break;
            }
            (number, filled, due) = (number.next(), filled + 1, Some(message.next()));
        }
        filled.saturating_sub(1)
    }

    /// A slot has left that speaks for `more` groups behind `number`: to have filled them, their
    /// messages were taken in, so that no state line need say it.
    fn run_told<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize, number: Seq, more: u8) {
        if more == 0 {
            return;
        }
        let last = net.group_at(index, number.plus(more.into()));
        let through = Seq(self.receives[last].label).next();
        let c = &mut net.connections[index];
        if c.control.taken.told.before(through) {
            c.control.taken.told = through;
            c.control.taken.bytes =
                if through == c.recv.expected { 0 } else { c.control.taken.bytes };
        }
    }

    /// Whether the slots that are due may wait for more.
    #[inline(never)]
    fn offers_wait<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> bool {
        let c = &net.connections[index];
        let some = c.recv.post != c.recv.offers.next;
        let short = c.recv.short_run() >= SHORT_RUN;
        let whole = c.recv.offers.at == 0 && !c.recv.offers.cancels_due;
        // a record is used again when its slot was written, and the peer is past it
        let kept = c.recv.post.ahead_of(c.recv.offers.passed) + 1;
        let has_room = !FILLED_ALONE || kept < net.limits.requests_max as i32;
        c.rails.control_lane.costs_calls()
            && some
            && short
            && whole
            && has_room
            && self.receives_due(net, index) < HELD_MAX
    }

    /// Whether slots wait for one more, which would make them enough, of groups of one receive.
    #[inline]
    pub fn offers_are_near<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> bool {
        let c = &net.connections[index];
        let last = c.recv.offers.next.plus(HELD_MAX - 2);
        c.recv.hold.on
            && last.before(c.recv.post)
            && (!FILLED_ALONE || self.groups[net.group_at(index, last)].bound != 0)
    }

    /// How many receives are filled and have slots that are due, or some more than may be held
    /// back. They are filled in order. Of long messages, of which the peer sends few, all count.
    fn receives_due<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> u32 {
        let c = &net.connections[index];
        let (mut number, mut count) = (c.recv.offers.next, 0);
        while number != c.recv.post && count < HELD_MAX {
            let at = net.group_at(index, number);
            let GroupRecord { bound, count: receives, .. } = self.groups[at];
            let is_long = P::SEVERAL_LANES && c.send.is_long(self.receives[at].length);
            count += if !FILLED_ALONE {
                receives.into()
            } else if bound == 0 {
                break;
            } else if is_long {
                return c.recv.post.ahead_of(c.recv.offers.next) as u32;
            } else {
                bound.count_ones()
            };
            number = number.next();
        }
        count
    }

    /// Writes the slots of the next group from `first` on; `false` when the rail has no room or no
    /// cell is free, and then those written stay written. That of one receive speaks for `more`
    /// groups behind it.
    fn group_offer<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        number: Seq,
        first: u8,
        more: u8,
    ) -> bool {
        let group = self.groups[net.group_at(index, number)];
        debug_assert_eq!(group.number, number);
        for receive in first..group.count {
            // a slot that was written anew may lie where this one will, and land later
            let offers = &net.connections[index].recv.offers;
            let anew = offers.cancels_due || offers.again && !number.before(offers.through);
            if anew && !net.next_lands_last(index)
                || !self.slot_write(net, index, (number, receive), 0, more)
            {
                return false;
            }
            let c = &mut net.connections[index];
            c.recv.offers.at = receive + 1;
            if !number.before(c.recv.offers.through) {
                c.recv.offers.again = false; // all of those have landed
                c.recv.offers.through = number.plus(1 + u32::from(more));
            }
        }
        true
    }

    fn slot_write<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (number, receive): (Seq, u8),
        flags: u16,
        more: u8,
    ) -> bool {
        let at = net.group_at(index, number);
        let record_at = self.receive_at(at, receive);
        let record = self.receives[record_at];
        let GroupRecord { count, bound, .. } = self.groups[at];
        let taken = bound >> receive & 1 == 1;
        let Some((cell, cell_sequence)) = self.cell_for(net, index, record_at, taken) else {
            return false;
        };
        if net.is_mutant(Mutant::SlotUnwritten) {
            return true;
        }
        let c = &net.connections[index];
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
            more,
            credits_through: c.control.credits.now().0,
            delivered_through: c.recv.arrived.through().0,
            taken_by: if taken { record.label } else { 0 },
            sequence: number.0,
            epoch: c.control.epoch,
        };
        let target = c.control.mailbox.plus((net.slot_line(index, number, receive) * 64) as u64);
        net.line_write(index, target, &slot.encode())
    }

    /// The cell that tells the keys of a receive's region, written if the peer does not know them.
    fn cell_for<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record_at: usize,
        taken: bool,
    ) -> Option<(u32, u32)> {
        let record = self.receives[record_at];
        if record.region == NO_REGION || taken {
            return Some((NO_CELL, 0));
        }
        if record.cell != NIL {
            let at = usize::from(record.cell);
            if net.connections[index].recv.cells.is_due(at) && !net.cell_rewrite(index, at) {
                return None;
            }
            return Some((
                u32::from(record.cell),
                net.connections[index].recv.cells.known[at].sequence,
            ));
        }
        let region = net.regions.handle(record.region);
        let cells = net.connections[index].recv.cells.known;
        let version = net.regions.keys_version();
        let is_known = |cell: &KnownRegion| {
            cell.region == region && cell.version == version && version != LATE
        };
        let known = cells.iter().position(is_known);
        let at = match known {
            Some(at) if cells[at].due != CellDue::Nothing && !net.cell_rewrite(index, at) => {
                return None;
            }
            Some(at) => at,
            None => {
                let free = cells.iter().position(|cell| cell.users == 0)?;
                if !net.cell_write(index, free, region) {
                    return None;
                }
                free
            }
        };
        let cell = &mut net.connections[index].recv.cells.known[at];
        cell.users += 1;
        self.receives[record_at].cell = at as u8;
        Some((at as u32, cell.sequence))
    }

    /// A receive has ended: its slot names the cell no more.
    #[inline(always)]
    pub fn cell_leave<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        record_at: usize,
    ) {
        let receive = &mut self.receives[record_at];
        if receive.cell != NIL {
            net.connections[index].recv.cells.drop_user(receive);
        }
    }

    /// Asks for the oldest group back that the user canceled; says whether that must be retried.
    ///
    /// One slot at a time asks, and none newer than the oldest: the sender answers for the group
    /// that it gave up last, so that of two given up at once it would tell one.
    fn cancel_step<P: Provider>(&mut self, net: &mut Net<'_, P>, index: usize) -> bool {
        if !net.connections[index].recv.offers.cancels_due {
            return false;
        }
        let Some(number) = self.canceled_oldest(net, index) else {
            let landed = net.next_lands_last(index);
            let c = &mut net.connections[index];
            (c.recv.offers.canceling, c.recv.offers.cancels_due) = (None, !landed);
            return !landed;
        };
        net.due.watch.insert(index);
        let c = &net.connections[index];
        // the verdict is on its way, or a message; where the slots of one that the peer has passed
        // lay, those of a later one may lie
        let decided =
            c.recv.offers.canceling == Some(number) || number.before(c.recv.offers.passed);
        if decided || !c.recv.offers.is_written_again() || !number.before(c.recv.offers.next) {
            return false;
        }
        if let Some(newer) = c.recv.offers.canceling.filter(|newer| number.before(*newer)) {
            if !self.first_slot_rewrite(net, index, newer, 0) {
                return true;
            }
            net.connections[index].recv.offers.canceling = None;
        }
        // the first slot speaks for the group, so that asking is one write
        if !self.first_slot_rewrite(net, index, number, SLOT_CANCEL) {
            return true;
        }
        net.connections[index].recv.offers.canceling = Some(number);
        false
    }

    /// The oldest group that the user canceled, and of which it is open how it ends.
    fn canceled_oldest<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> Option<Seq> {
        let c = &net.connections[index];
        let mut number = c.recv.oldest;
        while number.before(c.recv.offers.through) {
            if self.groups[net.group_at(index, number)].is_canceled(number) {
                return Some(number);
            }
            number = number.next();
        }
        None
    }

    /// Writes the first slot of a group that is offered anew; `false` when that must be retried.
    fn first_slot_rewrite<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        number: Seq,
        flags: u16,
    ) -> bool {
        net.next_lands_last(index) && self.slot_write(net, index, (number, 0), flags, 0)
    }

    /// The start of a message that the sender bound to one of our slots has come, in turn.
    pub fn start_arrived<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        message: HeldMessage,
    ) {
        let mut length = [0; 8];
        if message.length as usize != length.len() {
            return net.connection_fail(index, RequestError::Protocol);
        }
        let peer = net.lane_peer_of(index, message.lane);
        net.rail.received_peek(peer, message.slot, &mut length);
        self.release(net, index, &message);
        let Some((group, receive)) = self.token_find(net, index, message.tag as u32) else {
            return net.connection_fail(index, RequestError::Protocol);
        };
        net.connections[index].recv.short_run_set(0);
        let at = net.group_at(index, group);
        let record_at = self.receive_at(at, receive);
        let length = u64::from_le_bytes(length);
        if self.groups[at].bound >> receive & 1 == 1 || length > MESSAGE_BYTES_MAX {
            return net.connection_fail(index, RequestError::Protocol);
        }
        self.groups[at].bound |= 1 << receive;
        let record = &mut self.receives[record_at];
        let room = record.length;
        record.length = length;
        record.label = message.number.0;
        record.total = message.stripes;
        let (wanted, stripes) = (record.length, record.stripes);
        self.oldest_advance(net, index);
        if wanted > room {
            net.stats.truncated += 1;
            self.receive_end(net, index, group, receive, Some(RequestError::Truncated));
        } else {
            self.stripes_settle(net, index, (group, receive), stripes, message.stripes);
        }
    }

    /// A stripe is in place.
    pub fn stripe_arrived<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        peer: PeerIndex,
        word: u32,
    ) {
        let (index, lane) = net.lane_of(peer);
        if net.fails_over(index) {
            net.meter_mut(index, lane).carried = true;
        }
        net.credit_return(index);
        let (token, stripe) = immediate::decode(word);
        let pulls = net.connections[index].pull;
        let Some((group, receive)) = self.token_find(net, index, token).filter(|_| !pulls) else {
            return net.connection_fail(index, RequestError::Protocol);
        };
        let record_at = self.receive_at(net.group_at(index, group), receive);
        let record = &mut self.receives[record_at];
        if record.stripes >> stripe & 1 == 1 {
            return net.connection_fail(index, RequestError::Protocol);
        }
        record.stripes |= 1 << stripe;
        let (stripes, total) = (record.stripes, record.total);
        self.stripes_settle(net, index, (group, receive), stripes, total);
    }

    fn stripes_settle<P: Provider>(
        &mut self,
        net: &mut Net<'_, P>,
        index: usize,
        (group, receive): (Seq, u8),
        stripes: u64,
        total: u8,
    ) {
        if total != 0 && stripes.count_ones() == u32::from(total) {
            self.receive_end(net, index, group, receive, None);
        }
    }

    /// The outstanding receive that a token means.
    fn token_find<P: Provider>(
        &self,
        net: &Net<'_, P>,
        index: usize,
        token: u32,
    ) -> Option<(Seq, u8)> {
        let c = &net.connections[index];
        let window = net.limits.requests_max;
        let oldest = Seq(c.recv.post.0.wrapping_sub(window));
        let (number, receive) = immediate::resolve(token, oldest, window)?;
        let group = self.groups[net.group_at(index, number)];
        let open = group.number == number && group.used && receive < group.count;
        (open && group.done >> receive & 1 == 0).then_some((number, receive))
    }

    /// The group below which the next head says that all are filled; `None`: it says nothing.
    #[inline(always)]
    pub fn filled_through<P: Provider>(&self, net: &Net<'_, P>, index: usize) -> Option<Seq> {
        let c = &net.connections[index];
        let count = c.recv.oldest.ahead_of(c.recv.offers.next);
        if c.control.lines.reads & READS_FILLED == 0
            || !(1..=EARLY_MAX as i32).contains(&count)
            || !c.recv.is_past_slots()
        {
            return None;
        }
        let (mut number, mut message) =
            (c.recv.offers.next, Seq(c.recv.expected.0.wrapping_sub(count as u32)));
        while number != c.recv.oldest {
            let at = net.group_at(index, number);
            let group = &self.groups[at];
            let is_alone = group.number == number && group.count == 1 && group.bound == 1;
            if !is_alone || self.receives[at].label != message.0 {
                return None;
            }
            (number, message) = (number.next(), message.next());
        }
        // one that fills a part of the next group may be older than all of these
        let is_whole = number == c.recv.post || self.groups[net.group_at(index, number)].bound == 0;
        is_whole.then_some(number)
    }

    /// Says which stripes of a group's open receives have come.
    pub fn report_group<P: Provider>(
        &self,
        net: &Net<'_, P>,
        index: usize,
        number: Seq,
        report: &mut Report,
    ) {
        let at = net.group_at(index, number);
        let group = &self.groups[at];
        if group.number != number || !group.used {
            return;
        }
        for receive in 0..group.count {
            let arrived = self.receives[self.receive_at(at, receive)].stripes;
            let count = usize::from(report.entry_count);
            if group.done >> receive & 1 == 0 && arrived != 0 && count < ENTRIES_MAX {
                let token = immediate::token(number, receive);
                report.entries[count] = StripesReport { token, arrived };
                report.entry_count += 1;
            }
        }
    }
}

/// What a head says of it.
pub const fn filled_said(through: Seq) -> u16 {
    FILLED_SAID | through.0 as u16 & FILLED_MASK
}
