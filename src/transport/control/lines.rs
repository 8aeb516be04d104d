//! The lines of both mailboxes: state lines, slots and cells. The peer's are read here, and ours
//! are written.

use super::report::ReportError;
use crate::base::seq::Seq;
use crate::base::slab::Handle;
use crate::fabric::{Line, LocalSpan, OpKind, PostError, Posted, Provider};
use crate::transport::connection::READS_ROWS;
use crate::transport::limits::CELLS;
use crate::transport::net::{Net, OP_CONTROL, OP_REPORT, OP_STATE, op_id};
use crate::transport::rails::table::{CtrlRail, CtrlSpan, DataRail};
use crate::transport::records::{CellDue, KnownRegion};
use crate::wire::head::SendHead;
use crate::wire::slot::{ControlSlot, SlotGlance};
use crate::wire::state::{STATE_CANCELED, StateLine};
use crate::wire::{GROUP_MAX, RAILS_MAX, cell};

/// A slot's cell number when the receive has no room and hence no region.
pub const NO_CELL: u32 = u32::MAX;

/// Which words of a slot (W3) hold its tag, in the low half, and its flags, in the second quarter.
const TAG_WORD: usize = 3;
const FLAGS_WORD: usize = 4;

/// Line numbers of a mailbox: state line, cells of two lines each, slots.
pub const fn cell_line(cell: usize) -> usize {
    1 + cell * 2
}

impl<P: Provider> Net<'_, P> {
    /// Whether there is a group to offer, and room for its slots at the peer.
    pub fn offers_have_room(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let ahead = c.recv.offers.next.ahead_of(c.recv.offers.passed);
        !c.pull && c.recv.offers.next != c.recv.post && ahead < self.limits.groups_max() as i32
    }

    /// Notes whether a connection holds slots back.
    pub fn offers_hold(&mut self, index: usize, holds: bool) {
        let c = &mut self.connections[index];
        if c.recv.hold.on == holds {
            return;
        }
        c.recv.hold.on = holds;
        if holds {
            c.recv.hold.note(c.recv.expected, self.now, true);
            self.holding += 1;
            self.due.watch.insert(index);
        } else {
            self.holding -= 1;
        }
    }

    /// A look at a connection that holds slots back: whether nothing comes any more.
    pub fn offers_look(&mut self, index: usize) {
        let c = &mut self.connections[index];
        c.recv.hold.note(c.recv.expected, self.now, false);
        if c.recv.hold.is_idle(c.recv.expected, self.now) {
            self.due.work.insert(index);
        }
    }

    /// Before the user sleeps: nothing is held back any more, nor soon again.
    pub fn offers_release(&mut self) {
        for index in 0..self.connections.len() {
            let c = &mut self.connections[index];
            if c.recv.hold.on {
                c.recv.short_run_set(0);
                self.due.work.insert(index);
                self.news += 1;
            }
        }
    }

    pub fn cell_write(&mut self, index: usize, at: usize, region: Handle) -> bool {
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
    pub fn cell_rewrite(&mut self, index: usize, at: usize) -> bool {
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

    /// Whether a line that is written now lands behind all that were written before: what is
    /// written anew must not land before what it replaces.
    pub fn next_lands_last(&self, index: usize) -> bool {
        let c = &self.connections[index];
        c.rails.control_lane.is_ordered() || c.control.lines.flying == 0
    }

    /// Where a slot lies: after the state line and the cells, the first slots of all groups, which
    /// mostly are the only ones, before the second ones. With a peer that does not know that, those
    /// of one group lie together.
    #[inline]
    pub fn slot_line(&self, index: usize, group: Seq, receive: u8) -> usize {
        let (groups, receive) = (self.limits.groups_max(), usize::from(receive));
        let group = group.cell(groups);
        // the core archive never agrees on rows (c-api/core), and has no room for their code
        let reads =
            if cfg!(feature = "std") { self.connections[index].control.lines.reads } else { 0 };
        1 + CELLS * 2
            + match reads & READS_ROWS {
                0 => group * GROUP_MAX + receive,
                _ => receive * groups as usize + group,
            }
    }

    /// A slot that is there.
    pub fn slot_read(&self, index: usize, group: Seq, receive: u8) -> ControlSlot {
        ControlSlot::from_bytes(&self.mailboxes.line(index, self.slot_line(index, group, receive)))
    }

    /// The tag of a slot that is there.
    #[inline]
    pub fn slot_tag(&self, index: usize, group: Seq, receive: u8) -> i32 {
        let word = self.mailboxes.word_at(index, self.slot_line(index, group, receive), TAG_WORD);
        word as i32
    }

    /// The flags of a slot that is there.
    #[inline]
    pub fn slot_flags(&self, index: usize, group: Seq, receive: u8) -> u16 {
        let word = self.mailboxes.word_at(index, self.slot_line(index, group, receive), FLAGS_WORD);
        (word >> 16) as u16
    }

    /// Whether a slot is there.
    #[inline]
    pub fn slot_is_there(&self, index: usize, group: Seq, receive: u8) -> bool {
        let expected =
            u64::from(self.connections[index].control.peer_epoch) << 32 | u64::from(group.0);
        self.mailboxes.last_word(index, self.slot_line(index, group, receive)) == expected
    }

    /// What a slot that is there and valid says of its place.
    #[inline]
    pub fn slot_glance(&self, index: usize, group: Seq, receive: u8) -> Option<SlotGlance> {
        if !self.slot_is_there(index, group, receive) {
            return None;
        }
        let line = self.slot_line(index, group, receive);
        let word = |at| self.mailboxes.word_at(index, line, at);
        SlotGlance::decode(word(SlotGlance::PLACE_WORD), word(SlotGlance::COUNTS_WORD)).ok()
    }

    /// The key of the peer's buffer that a bound message goes to, on one of several lanes; 0: it
    /// has none there. The cell stays as it is until the receive has ended.
    pub fn cell_key(&self, index: usize, cell: u8, lane: u8) -> u64 {
        let line = cell_line(usize::from(cell)) + usize::from(lane / 7);
        self.mailboxes.word_at(index, line, usize::from(lane % 7))
    }

    /// The keys of a slot's region, once they are there. A receive that is open keeps its cell, so
    /// they will be; one that an early message has filled may have lost it, and needs none.
    pub fn cell_read(&self, index: usize, slot: &ControlSlot) -> Option<[u64; 8]> {
        if slot.cell == NO_CELL {
            return Some([0; 8]);
        }
        let at = slot.cell as usize;
        if at >= CELLS {
            return None;
        }
        let first = self.mailboxes.line(index, cell_line(at));
        let second = self.mailboxes.line(index, cell_line(at) + 1);
        cell::decode(
            &first,
            &second,
            slot.cell_sequence,
            self.connections[index].control.peer_epoch,
        )
    }

    /// A receive of ours that the peer had consumed is free again.
    #[inline]
    pub fn credit_return(&mut self, index: usize) {
        if self.connections[index].control.credits.free() {
            self.due.work.insert(index);
        }
    }

    /// Writes our state line if it is due; says whether it could not be written.
    pub fn state_step(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        let worth = c.is_taken_worth() || c.control.credits.is_worth();
        let rides = P::SEVERAL_LANES && worth && self.rail.is_leaving(c.rails.control_lane.peer);
        if !c.state_due() && !rides {
            return false;
        }
        !self.state_write(index, 0)
    }

    /// Writes our state line; `false` when the rail has no room.
    ///
    /// On a rail without order two lines on their way could land the wrong way round and hide the
    /// newer one: the next is written when the last has landed.
    pub fn state_write(&mut self, index: usize, flags: u32) -> bool {
        let c = &self.connections[index];
        if c.control.lines.state_flying || c.rails.control_lane.blocked {
            return false;
        }
        let sequence = c.control.lines.sequence.wrapping_add(1);
        let line = StateLine {
            sequence_first: sequence,
            credits_through: c.control.credits.now().0,
            delivered_mask: c.recv.arrived.mask(),
            delivered_through: c.recv.arrived.through().0,
            groups_through: c.send.cursor.group.0,
            canceled_group: c.send.cursor.canceled.map_or(0, |group| group.0),
            eager_through: c.recv.expected.0,
            flags: flags | if c.send.cursor.canceled.is_some() { STATE_CANCELED } else { 0 },
            sequence,
            epoch: c.control.epoch,
        };
        let ends = flags != 0 || c.ends_requests();
        let write = CtrlRail(c.rails.control_lane.lane).write(line.encode(), c.control.mailbox);
        let Ok(posted) = self.post(index, op_id(OP_STATE, 0, ends.into()), write) else {
            return false;
        };
        let c = &mut self.connections[index];
        c.control.lines.state_flying =
            posted == Posted::Pending && !c.rails.control_lane.is_ordered();
        c.control.lines.sequence = sequence;
        c.told_by_head();
        c.recv.delivery_news = false;
        c.send.cursor.canceled_news = false;
        c.control.taken.told = c.recv.expected;
        c.control.taken.bytes = 0;
        self.stats.state_lines += 1;
        true
    }

    /// Writes a line of the peer's control memory; `false` when the rail has no room.
    pub fn line_write(&mut self, index: usize, target: CtrlSpan, line: &Line) -> bool {
        let c = &self.connections[index];
        if c.rails.control_lane.blocked {
            return false;
        }
        let (id, peer, control) =
            (op_id(OP_CONTROL, 0, 0), c.rails.control_lane.peer, c.rails.control_lane.lane);
        match self.rail.post_line(id, peer, target.0, line, self.now) {
            Ok(Posted::Done) => {}
            Ok(Posted::Pending) => {
                self.lane_mut(index, control).ops_in_flight += 1;
                self.connections[index].control.lines.flying += 1;
            }
            Err(error) => {
                self.stats.again += u64::from(error == PostError::Again);
                return false;
            }
        }
        true
    }

    /// A head has left that says so: no slot need, nor a state line that their messages were taken
    /// in.
    #[inline(always)]
    pub fn filled_told(&mut self, index: usize, through: Seq) {
        let c = &mut self.connections[index];
        c.recv.offers.next = through;
        if c.recv.offers.through.before(through) {
            c.recv.offers.through = through;
        }
        (c.control.taken.told, c.control.taken.bytes) = (c.recv.expected, 0);
        if c.recv.offers.next == c.recv.post {
            self.offers_hold(index, false); // nothing: the next receive begins anew
        }
    }

    /// Sends a word outside of the stream on one lane; `false` when there is no room.
    pub fn word_send(
        &mut self,
        index: usize,
        lane: u8,
        kind: u8,
        number: i32,
        payload: LocalSpan,
    ) -> bool {
        let c = &self.connections[index];
        let head = SendHead { kind, tag: number, ..c.head(kind, 0, 0) }.encode();
        let send = OpKind::Send { head, payload };
        match self.post_on(index, lane, op_id(OP_REPORT, lane, 0), send) {
            Ok(Posted::Pending | Posted::Done) => true,
            Err(_) => false,
        }
    }

    /// The peer has read our report.
    pub fn report_read(&mut self, index: usize, number: u32) -> Result<(), ReportError> {
        let state = &mut self.connections[index].control.report;
        if Seq(number).ahead_of(Seq(state.number)) > 0 {
            return Err(ReportError::Number);
        }
        if number == state.number {
            (state.unread_on, state.lost) = (None, false);
            self.due.work.insert(index);
        }
        Ok(())
    }
}
