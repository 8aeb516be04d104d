//! On a rail that pushes, the receiver offers its buffers in control slots.
//!
//! Where a line costs a system call, slots are held back while nothing but short messages comes:
//! those need no offer. Several leave together when their receives are filled, one when nothing has
//! come for a while, or all before the user sleeps. To the peer we are a receiver that posts a
//! little later. What such messages have filled by then, one slot says.
#![forbid(unsafe_code)]

use super::connection::READS_RUNS;
use super::endpoint::{Endpoint, MESSAGE_BYTES_MAX};
use super::mutant::Mutant;
use super::rail::DataRail;
use super::records::{CellDue, GroupRecord, HeldMessage, KnownRegion, NIL};
use super::request::RequestError;
use super::slots::{NO_CELL, cell_line};
use crate::base::ids::PeerIndex;
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::fabric::{Provider, Syscalls};
use crate::wire::slot::{ControlSlot, SLOT_CANCEL, SLOT_MORE_MAX, SLOT_TAKEN};
use crate::wire::{GROUP_MAX, RAILS_MAX, cell, immediate};

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

const _: () = assert!(HELD_MAX < super::limits::EARLY_MAX / 2);
// users of a cell are counted in 16 bits
const _: () = assert!(super::limits::REQUESTS_MAX as usize * GROUP_MAX <= u16::MAX as usize);

impl<P: Provider> Endpoint<'_, P> {
    /// Writes the slots that are due; says whether some remain.
    pub(super) fn slots_step(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        if c.pull || c.rails.control_lane.blocked {
            return false; // goes on when the next control lane is known
        }
        let blocked = self.offers_step(index);
        let canceling = self.cancel_step(index);
        blocked | canceling
    }

    /// Offers the groups that have not been; says whether the rail or the cells have no room.
    fn offers_step(&mut self, index: usize) -> bool {
        let c = &mut self.connections[index];
        if c.recv.offers.next.before(c.recv.offers.passed) {
            // what was to be written again has been seen
            (c.recv.offers.next, c.recv.offers.at) = (c.recv.offers.passed, 0);
        }
        let idle = {
            let recv = &self.connections[index].recv;
            recv.hold.is_idle(recv.expected, self.now)
        };
        let mut holds = !idle && self.offers_wait(index);
        loop {
            self.offers_hold(index, holds);
            if holds {
                return false;
            }
            let c = &self.connections[index];
            let (number, first) = (c.recv.offers.next, c.recv.offers.at);
            if number == c.recv.post {
                return false;
            }
            let is_filled = !FILLED_ALONE || self.groups[self.group_at(index, number)].bound != 0;
            if !self.offers_have_room(index) {
                self.watch.insert(index); // the peer will say when there is room
                return false;
            }
            let more = self.more_taken(index, number);
            if !self.group_offer(index, number, first, more) {
                return true;
            }
            self.run_told(index, number, more);
            let c = &mut self.connections[index];
            (c.recv.offers.next, c.recv.offers.at) = (number.plus(1 + u32::from(more)), 0);
            // so that the run stays one that the record can say
            c.recv.short_run_set(c.recv.short_run().min(SHORT_RUN));
            // they were many because of what is filled, or the next message has a slot, should it
            // be long: the others go on waiting
            let may_hold = if idle { !is_filled } else { more != 0 };
            holds = may_hold && self.offers_wait(index);
            if idle && holds {
                self.connections[index].recv.hold.again(self.now);
            }
        }
    }

    /// How many groups behind `number` its slot speaks for: each of one receive, as that one is,
    /// filled by the messages of the stream behind the one that fills that. None of them ever had a
    /// slot: of slots on an earlier control lane the peer may have passed some, and it looks for
    /// that of the next.
    #[inline(never)]
    fn more_taken(&self, index: usize, number: Seq) -> u8 {
        let c = &self.connections[index];
        if c.control.lines.reads & READS_RUNS == 0 || c.recv.offers.through != number {
            return 0;
        }
        let (mut number, mut filled, mut due) = (number, 0, None);
        while number != c.recv.post && filled <= SLOT_MORE_MAX {
            let at = self.group_at(index, number);
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
    fn run_told(&mut self, index: usize, number: Seq, more: u8) {
        if more == 0 {
            return;
        }
        let last = self.group_at(index, number.plus(more.into()));
        let through = Seq(self.receives[last].label).next();
        let c = &mut self.connections[index];
        if c.control.taken.told.before(through) {
            c.control.taken.told = through;
            c.control.taken.bytes =
                if through == c.recv.expected { 0 } else { c.control.taken.bytes };
        }
    }

    /// Whether there is a group to offer, and room for its slots at the peer.
    pub(super) fn offers_have_room(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let ahead = c.recv.offers.next.ahead_of(c.recv.offers.passed);
        !c.pull && c.recv.offers.next != c.recv.post && ahead < self.limits.groups_max() as i32
    }

    /// Whether the slots that are due may wait for more.
    #[inline(never)]
    fn offers_wait(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let some = c.recv.post != c.recv.offers.next;
        let short = c.recv.short_run() >= SHORT_RUN;
        let costs = self.caps.syscalls == Syscalls::PerBatch;
        let whole = c.recv.offers.at == 0 && !c.recv.offers.cancels_due;
        // a record is used again when its slot was written, and the peer is past it
        let kept = c.recv.post.ahead_of(c.recv.offers.passed) + 1;
        let has_room = !FILLED_ALONE || kept < self.limits.requests_max as i32;
        costs && some && short && whole && has_room && self.receives_due(index) < HELD_MAX
    }

    /// Whether slots wait for one more, which would make them enough, of groups of one receive.
    #[inline]
    pub(super) fn offers_are_near(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let last = c.recv.offers.next.plus(HELD_MAX - 2);
        c.recv.hold.on
            && last.before(c.recv.post)
            && (!FILLED_ALONE || self.groups[self.group_at(index, last)].bound != 0)
    }

    /// How many receives are filled and have slots that are due, or some more than may be held
    /// back. They are filled in order. Of long messages, of which the peer sends few, all count.
    fn receives_due(&self, index: usize) -> u32 {
        let c = &self.connections[index];
        let (mut number, mut count) = (c.recv.offers.next, 0);
        while number != c.recv.post && count < HELD_MAX {
            let at = self.group_at(index, number);
            let GroupRecord { bound, count: receives, .. } = self.groups[at];
            let longest = self.caps.send_payload_max.0;
            let is_long = P::SEVERAL_LANES && self.receives[at].length > longest;
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

    /// Notes whether a connection holds slots back.
    pub(super) fn offers_hold(&mut self, index: usize, holds: bool) {
        let c = &mut self.connections[index];
        if c.recv.hold.on == holds {
            return;
        }
        c.recv.hold.on = holds;
        if holds {
            c.recv.hold.note(c.recv.expected, self.now, true);
            self.holding += 1;
            self.watch.insert(index);
        } else {
            self.holding -= 1;
        }
    }

    /// A look at a connection that holds slots back: whether nothing comes any more.
    pub(super) fn offers_look(&mut self, index: usize) {
        let c = &mut self.connections[index];
        c.recv.hold.note(c.recv.expected, self.now, false);
        if c.recv.hold.is_idle(c.recv.expected, self.now) {
            self.work.insert(index);
        }
    }

    /// Before the user sleeps: nothing is held back any more, nor soon again.
    pub(super) fn offers_release(&mut self) {
        for index in 0..self.connections.len() {
            let c = &mut self.connections[index];
            if c.recv.hold.on {
                c.recv.short_run_set(0);
                self.work.insert(index);
                self.news += 1;
            }
        }
    }

    /// Writes the slots of the next group from `first` on; `false` when the rail has no room or no
    /// cell is free, and then those written stay written. That of one receive speaks for `more`
    /// groups behind it.
    fn group_offer(&mut self, index: usize, number: Seq, first: u8, more: u8) -> bool {
        let group = self.groups[self.group_at(index, number)];
        debug_assert_eq!(group.number, number);
        for receive in first..group.count {
            // a slot that was written anew for a cancel may lie where this one will, and land later
            let covered =
                self.connections[index].recv.offers.cancels_due && !self.next_lands_last(index);
            if covered || !self.slot_write(index, number, receive, 0, more) {
                return false;
            }
            let c = &mut self.connections[index];
            c.recv.offers.at = receive + 1;
            if !number.before(c.recv.offers.through) {
                c.recv.offers.through = number.plus(1 + u32::from(more));
            }
        }
        true
    }

    fn slot_write(&mut self, index: usize, number: Seq, receive: u8, flags: u16, more: u8) -> bool {
        let at = self.group_at(index, number);
        let record_at = self.receive_at(at, receive);
        let record = self.receives[record_at];
        let GroupRecord { count, bound, .. } = self.groups[at];
        let taken = bound >> receive & 1 == 1;
        let Some((cell, cell_sequence)) = self.cell_for(index, record_at, taken) else {
            return false;
        };
        if self.is_mutant(Mutant::SlotUnwritten) {
            return true;
        }
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
            more,
            credits_through: c.control.credits.now().0,
            delivered_through: c.recv.arrived.through().0,
            taken_by: if taken { record.label } else { 0 },
            sequence: number.0,
            epoch: c.control.epoch,
        };
        let target = c.control.mailbox.plus((self.slot_line(index, number, receive) * 64) as u64);
        self.line_write(index, target, &slot.encode())
    }

    /// The cell that tells the keys of a receive's region, written if the peer does not know them.
    fn cell_for(&mut self, index: usize, record_at: usize, taken: bool) -> Option<(u32, u32)> {
        let record = self.receives[record_at];
        if record.region == super::mr::NO_REGION || taken {
            return Some((NO_CELL, 0));
        }
        if record.cell != NIL {
            let at = usize::from(record.cell);
            if self.connections[index].recv.cells.is_due(at) && !self.cell_rewrite(index, at) {
                return None;
            }
            return Some((
                u32::from(record.cell),
                self.connections[index].recv.cells.known[at].sequence,
            ));
        }
        let region = self.regions.handle(record.region);
        let cells = self.connections[index].recv.cells.known;
        let version = self.regions.keys_version();
        let is_known = |cell: &KnownRegion| {
            cell.region == region && cell.version == version && version != LATE
        };
        let known = cells.iter().position(is_known);
        let at = match known {
            Some(at) if cells[at].due != CellDue::Nothing && !self.cell_rewrite(index, at) => {
                return None;
            }
            Some(at) => at,
            None => {
                let free = cells.iter().position(|cell| cell.users == 0)?;
                if !self.cell_write(index, free, region) {
                    return None;
                }
                free
            }
        };
        let cell = &mut self.connections[index].recv.cells.known[at];
        cell.users += 1;
        self.receives[record_at].cell = at as u8;
        Some((at as u32, cell.sequence))
    }

    fn cell_write(&mut self, index: usize, at: usize, region: Handle) -> bool {
        let used = self.connections[index].recv.cells.known[at].sequence != 0;
        if used && !self.next_lands_last(index) {
            return false;
        }
        let version = self.regions.keys_version();
        let c = &mut self.connections[index];
        // a number is never used for two contents, not even when the second line is never written
        let sequence = c.recv.cells.known[at].sequence.wrapping_add(1);
        c.recv.cells.known[at] =
            KnownRegion { region, sequence, version, due: CellDue::Both, ..KnownRegion::NONE };
        self.cell_rewrite(index, at)
    }

    /// Writes the lines of a cell that have not been written, or were lost with their lane: under
    /// one number they have one content. A rail that has room for one line at a time gets them one
    /// by one: if the first were written anew with the second, it might never have room for that.
    fn cell_rewrite(&mut self, index: usize, at: usize) -> bool {
        let c = &self.connections[index];
        let (sequence, epoch) = (c.recv.cells.known[at].sequence, c.control.epoch);
        let region = c.recv.cells.known[at].region.index as u16;
        let target = c.control.mailbox.plus((cell_line(at) * 64) as u64);
        let mut keys = [self.regions.key(region, DataRail(0)); RAILS_MAX];
        if self.fails_over(index) {
            let lanes = c.rails.count;
            for (lane, key) in (0..lanes).zip(&mut keys) {
                *key = self.regions.key(region, DataRail(self.lane(index, lane).key));
            }
        }
        let (first, second) = cell::encode(&keys, sequence, epoch);
        if self.connections[index].recv.cells.known[at].due != CellDue::Second {
            if !self.line_write(index, target, &first) {
                return false;
            }
            self.connections[index].recv.cells.known[at].due = CellDue::Second;
        }
        let written = self.line_write(index, target.plus(64), &second);
        if written {
            self.connections[index].recv.cells.known[at].due = CellDue::Nothing;
        }
        written
    }

    /// A receive has ended: its slot names the cell no more.
    #[inline(always)]
    pub(super) fn cell_leave(&mut self, index: usize, record_at: usize) {
        let receive = &mut self.receives[record_at];
        if receive.cell != NIL {
            self.connections[index].recv.cells.drop_user(receive);
        }
    }

    /// Asks for the oldest group back that the user canceled; says whether that must be retried.
    ///
    /// One slot at a time asks, and none newer than the oldest: the sender answers for the group
    /// that it gave up last, so that of two given up at once it would tell one.
    fn cancel_step(&mut self, index: usize) -> bool {
        if !self.connections[index].recv.offers.cancels_due {
            return false;
        }
        let Some(number) = self.canceled_oldest(index) else {
            let landed = self.next_lands_last(index);
            let c = &mut self.connections[index];
            (c.recv.offers.canceling, c.recv.offers.cancels_due) = (None, !landed);
            return !landed;
        };
        self.watch.insert(index);
        let c = &self.connections[index];
        // the verdict is on its way, or a message; where the slots of one that the peer has passed
        // lay, those of a later one may lie
        let decided =
            c.recv.offers.canceling == Some(number) || number.before(c.recv.offers.passed);
        if decided || !c.recv.offers.is_written_again() || !number.before(c.recv.offers.next) {
            return false;
        }
        if let Some(newer) = c.recv.offers.canceling.filter(|newer| number.before(*newer)) {
            if !self.first_slot_rewrite(index, newer, 0) {
                return true;
            }
            self.connections[index].recv.offers.canceling = None;
        }
        // the first slot speaks for the group, so that asking is one write
        if !self.first_slot_rewrite(index, number, SLOT_CANCEL) {
            return true;
        }
        self.connections[index].recv.offers.canceling = Some(number);
        false
    }

    /// The oldest group that the user canceled, and of which it is open how it ends.
    fn canceled_oldest(&self, index: usize) -> Option<Seq> {
        let c = &self.connections[index];
        let mut number = c.recv.oldest;
        while number.before(c.recv.offers.through) {
            if self.groups[self.group_at(index, number)].is_canceled(number) {
                return Some(number);
            }
            number = number.next();
        }
        None
    }

    /// Writes the first slot of a group that is offered anew; `false` when that must be retried.
    fn first_slot_rewrite(&mut self, index: usize, number: Seq, flags: u16) -> bool {
        self.next_lands_last(index) && self.slot_write(index, number, 0, flags, 0)
    }

    /// Whether a line that is written now lands behind all that were written before: what is
    /// written anew must not land before what it replaces.
    fn next_lands_last(&self, index: usize) -> bool {
        self.caps.ordered || self.connections[index].control.lines.flying == 0
    }

    /// The start of a message that the sender bound to one of our slots has come, in turn.
    pub(super) fn start_arrived(&mut self, index: usize, message: HeldMessage) {
        let mut length = [0; 8];
        if message.length as usize != length.len() {
            return self.connection_fail(index, RequestError::Protocol);
        }
        let peer = self.lane_peer_of(index, message.lane);
        self.rail.received_peek(peer, message.slot, &mut length);
        self.release(index, &message);
        let Some((group, receive)) = self.token_find(index, message.tag as u32) else {
            return self.connection_fail(index, RequestError::Protocol);
        };
        self.connections[index].recv.short_run_set(0);
        let at = self.group_at(index, group);
        let record_at = self.receive_at(at, receive);
        let length = u64::from_le_bytes(length);
        if self.groups[at].bound >> receive & 1 == 1 || length > MESSAGE_BYTES_MAX {
            return self.connection_fail(index, RequestError::Protocol);
        }
        self.groups[at].bound |= 1 << receive;
        let record = &mut self.receives[record_at];
        let room = record.length;
        record.length = length;
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
    pub(super) fn stripe_arrived(&mut self, peer: PeerIndex, word: u32) {
        let (index, lane) = self.lane_of(peer);
        if self.fails_over(index) {
            self.meter_mut(index, lane).carried = true;
        }
        self.credit_return(index);
        let (token, stripe) = immediate::decode(word);
        let pulls = self.connections[index].pull;
        let Some((group, receive)) = self.token_find(index, token).filter(|_| !pulls) else {
            return self.connection_fail(index, RequestError::Protocol);
        };
        let record_at = self.receive_at(self.group_at(index, group), receive);
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
        let oldest = Seq(c.recv.post.0.wrapping_sub(window));
        let (number, receive) = immediate::resolve(token, oldest, window)?;
        let group = self.groups[self.group_at(index, number)];
        let open = group.number == number && group.used && receive < group.count;
        (open && group.done >> receive & 1 == 0).then_some((number, receive))
    }
}
