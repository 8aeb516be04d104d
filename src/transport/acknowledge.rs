//! Credits, deliveries and verdicts: what both sides tell each other in heads and state lines.
#![forbid(unsafe_code)]

use super::eager::{OP_CONTROL, OP_STATE, op_id};
use super::endpoint::Endpoint;
use super::matching;
use super::rail::{CtrlRail, CtrlSpan};
use super::records::{ConnectionState, GroupRecord, SendState};
use super::request::RequestError;
use crate::base::ids::ConnectionIndex;
use crate::base::seq::Seq;
use crate::fabric::{Line, OpId, PostError, Posted, Provider};
use crate::wire::state::{STATE_CANCELED, STATE_FAILED, StateLine};

/// Whether requests of either side may end well only when this op of ours has reached the peer.
/// Offers of receives and news of credits are of no use to the peer of a connection that closes.
pub const fn is_awaited(id: OpId) -> bool {
    id.0 != op_id(OP_CONTROL, 0, 0).0 && id.0 != op_id(OP_STATE, 0, 0).0
}

impl<P: Provider> Endpoint<'_, P> {
    /// Whether requests of the peer's wait for a state line that has not been posted.
    pub fn is_owing(&self, connection: ConnectionIndex) -> bool {
        let c = &self.connections[connection.as_usize()];
        c.state == ConnectionState::Open && c.ends_requests()
    }

    /// A receive of ours that the peer had consumed is free again.
    #[inline]
    pub(super) fn credit_return(&mut self, index: usize) {
        if self.connections[index].control.credits.free() {
            self.work.insert(index);
        }
    }

    /// Takes in the cumulative fields that heads, slots and state lines share.
    #[inline(always)]
    pub(super) fn acks_take(&mut self, index: usize, credits: Seq, delivered: Seq) {
        if self.connections[index].acks_raise(credits, delivered) {
            self.deliveries_apply(index, delivered, 0);
        }
    }

    /// Ends the sends that the peer has: those below `through`, and those in `mask` from there on.
    /// The mask counts from its own line's `through`, which a head may have overtaken.
    #[inline(never)]
    pub(super) fn deliveries_apply(&mut self, index: usize, through: Seq, mask: u64) {
        for record in self.sends_used(index) {
            let at = self.send_at(index, record);
            let send = &mut self.sends[at];
            if !matches!(send.state, SendState::Waiting | SendState::Writing) {
                continue;
            }
            let ahead = send.number.ahead_of(through);
            if ahead < 0 || (ahead < 64 && mask >> ahead & 1 == 1) {
                send.delivered = true;
                self.send_settle(index, record);
            }
        }
    }

    /// Looks at the peer's state line. *Cost*: one load when nothing is new.
    #[inline(never)]
    pub(super) fn state_look(&mut self, index: usize) {
        let last = self.mailboxes.last_word(index, 0);
        let c = &self.connections[index];
        if last as u32 == c.control.lines.seen || (last >> 32) as u32 != c.control.peer_epoch {
            return;
        }
        self.state_take(index);
    }

    fn state_take(&mut self, index: usize) {
        let Ok(line) = StateLine::decode(&self.mailboxes.line(index, 0)) else {
            return; // half written: the whole line will be there at the next look
        };
        if Seq(line.sequence).ahead_of(Seq(self.connections[index].control.lines.seen)) <= 0 {
            return;
        }
        self.connections[index].control.lines.seen = line.sequence;
        self.news += 1;
        self.acks_take(index, Seq(line.credits_through), Seq(line.delivered_through));
        let c = &mut self.connections[index];
        if !c.has_groups(Seq(line.groups_through)) {
            return self.connection_fail(index, RequestError::Protocol);
        }
        c.recv.offers.passed_take(Seq(line.groups_through));
        c.send.stream.taken_take(Seq(line.eager_through));
        if self.connections[index].send.waiting != 0 && line.delivered_mask != 0 {
            self.deliveries_apply(index, Seq(line.delivered_through), line.delivered_mask);
        }
        if line.flags & STATE_CANCELED != 0 {
            self.canceled_take(index, Seq(line.canceled_group));
        }
        if line.flags & STATE_FAILED != 0 {
            self.connection_fail(index, RequestError::PeerGaveUp);
        }
        if !self.connections[index].pull {
            self.work.insert(index); // slots may have become writable
        }
    }

    /// The peer will not write into a group that we asked back.
    fn canceled_take(&mut self, index: usize, group: Seq) {
        if !self.groups[self.group_at(index, group)].is_canceled(group) {
            return;
        }
        self.group_withdraw(index, group);
        self.work.insert(index); // the next withdrawal may be asked for
    }

    /// The peer has passed all groups below `base` when it sent what is in turn now: those that we
    /// asked back, and that nothing was bound to until now, it has given up.
    pub(super) fn passed_take(&mut self, index: usize, base: Seq) {
        loop {
            let oldest = self.connections[index].recv.oldest;
            let canceled = self.groups[self.group_at(index, oldest)].is_canceled(oldest);
            if !canceled || !oldest.before(base) {
                return;
            }
            self.canceled_take(index, oldest);
        }
    }

    /// Ends a group that nothing was, or will be, bound to.
    pub(super) fn group_withdraw(&mut self, index: usize, number: Seq) {
        let at = self.group_at(index, number);
        let GroupRecord { count, .. } = self.groups[at];
        self.groups[at].bound = matching::full(count);
        self.groups[at].done = matching::full(count);
        self.groups[at].error = Some(RequestError::Canceled);
        for receive in 0..count {
            let cell = self.receive_at(at, receive);
            self.receives[cell].length = 0;
            self.regions.unpin(self.receives[cell].region);
            self.cell_leave(index, cell);
        }
        self.oldest_advance(index);
        self.unexpected_match(index);
    }

    /// Writes our state line if it is due; says whether it could not be written.
    pub(super) fn state_step(&mut self, index: usize) -> bool {
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
    pub(super) fn state_write(&mut self, index: usize, flags: u32) -> bool {
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
        c.control.lines.state_flying = posted == Posted::Pending && !self.caps.ordered;
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
    pub(super) fn line_write(&mut self, index: usize, target: CtrlSpan, line: &Line) -> bool {
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
}
