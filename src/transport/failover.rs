//! After a lane's failure, both sides say what it carried, and the rest moves to living lanes.
//!
//! 1. Each side fences the failed lane for itself.
//! 2. Each side sends a *report* (W10), which says what came on the lane.
//! 3. A side with its own fence and the peer's report knows which of its stripes, sends and lines
//!    were lost. None of them can still arrive. It sends them again on other lanes.
//!
//! So a stripe belongs to one lane in one generation at any time.
//!
//! Reports travel outside of the stream of sends, on any lane that is up. They need no credit: at
//! most one of each side is unread, and a lane has receives to spare for it ([`RECEIVES_SPARE`]).
//!
//! [`RECEIVES_SPARE`]: super::limits::RECEIVES_SPARE
#![forbid(unsafe_code)]

use super::eager::{OP_REPORT, op_id};
use super::endpoint::Endpoint;
use super::limits::{KEPT_BYTES, STREAM_KEPT};
use super::mutant::Mutant;
use super::rail::{Lane, LaneState};
use super::records::{ConnectionState, NIL, SendState, StreamRecord};
use super::report_error::ReportError;
use super::request::RequestError;
use crate::base::ids::{ConnectionIndex, PeerIndex};
use crate::base::seq::Seq;
use crate::fabric::{LocalSpan, OpKind, Posted, Provider, RecvSlot};
use crate::wire::RAILS_MAX;
use crate::wire::head::{
    KIND_FLUSH, KIND_FLUSHED, KIND_PROBE, KIND_PROBED, KIND_REPORT, KIND_REPORT_READ, SendHead,
};
use crate::wire::immediate;
use crate::wire::report::{
    ENTRIES_MAX, LaneReport, LaneStatus, REPORT_BYTES_MAX, Report, StripesReport,
};

impl<P: Provider> Endpoint<'_, P> {
    /// What is due on the lanes of a connection; says whether something still is.
    pub(super) fn failover_step(&mut self, index: usize) -> bool {
        !self.lanes_are_calm(index) && self.lanes_step(index)
    }

    /// Whether nothing is due on the lanes of a connection, as is so nearly always: then none of
    /// the steps below has anything to do.
    #[inline]
    fn lanes_are_calm(&self, index: usize) -> bool {
        let c = &self.connections[index];
        let owes = c.rails.quarantine
            | c.rails.control_lane.blocked
            | c.send.stream.resend.is_some()
            | c.control.report.is_due()
            | c.rails.is_control_away();
        let lanes = &self.lanes[self.lane_at(index, 0)..][..usize::from(c.rails.count)];
        !owes && lanes.iter().all(Lane::is_calm)
    }

    #[inline(never)]
    fn lanes_step(&mut self, index: usize) -> bool {
        let fences = self.fences_step(index);
        let probes = self.probes_step(index);
        let reports = self.reports_step(index);
        let c = &self.connections[index];
        let fenced = c.rails.control_lane.fenced || self.is_mutant(Mutant::ControlUnfenced);
        if c.rails.control_lane.blocked && fenced && c.rails.up != 0 {
            self.control_resume(index);
        }
        let resends = self.resend_step(index);
        let flushes = self.flushes_step(index);
        fences | probes | reports | resends | flushes
    }

    /// Sends a word outside of the stream on one lane; `false` when there is no room.
    pub(super) fn word_send(
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

    /// Sends our report if it is due, and says that we have read the peer's.
    fn reports_step(&mut self, index: usize) -> bool {
        let c = &self.connections[index];
        let Some(lane) = c.rails.report_lane() else { return false };
        let mut remain = false;
        if c.control.report.read_due {
            let seen = c.control.report.seen as i32;
            if self.word_send(index, lane, KIND_REPORT_READ, seen, LocalSpan::EMPTY) {
                let state = &mut self.connections[index].control.report;
                (state.read_due, state.read_on) = (false, Some(lane));
            } else {
                remain = true;
            }
        }
        let state = self.connections[index].control.report;
        let (again, fresh) = state.ours_due();
        if !again && !fresh {
            return remain;
        }
        let number = if again { state.number } else { state.number.wrapping_add(1) };
        let report = self.report_make(index, number);
        let mut bytes = [0; REPORT_BYTES_MAX];
        let length = report.encode(&mut bytes);
        let payload = self.scratch.fill(&bytes[..length]);
        if !self.word_send(index, lane, KIND_REPORT, number as i32, payload) {
            return true;
        }
        let state = &mut self.connections[index].control.report;
        state.number = number;
        state.unread_on = Some(lane);
        // the word that the first one was read would stand for the second, which may be lost: what
        // is new in it stays due
        (state.lost, state.due) = (false, state.due && again);
        self.stats.reports += 1;
        remain
    }

    fn report_make(&self, index: usize, number: u32) -> Report {
        let c = &self.connections[index];
        let mut report = Report {
            number,
            epoch: c.control.epoch,
            delivered_mask: c.recv.arrived.mask(),
            delivered_through: c.recv.arrived.through().0,
            eager_through: c.recv.expected.0,
            credits_through: c.control.credits.now().0,
            groups_through: c.send.cursor.group.0,
            lane_count: c.rails.count,
            ..Report::EMPTY
        };
        for lane in 0..c.rails.count {
            let entry = self.lane(index, lane);
            let status = match entry.state {
                LaneState::Up | LaneState::Joining => LaneStatus::Up,
                LaneState::Failing if self.is_mutant(Mutant::AnswerBeforeFence) => {
                    LaneStatus::Fenced
                }
                LaneState::Failing => LaneStatus::Failing,
                LaneState::Down if entry.generation == 0 && lane != 0 => LaneStatus::Absent,
                LaneState::Fenced | LaneState::Down if self.is_mutant(Mutant::AnswerNever) => {
                    LaneStatus::Failing
                }
                LaneState::Fenced | LaneState::Down => LaneStatus::Fenced,
            };
            let generation = entry.generation;
            report.lanes[usize::from(lane)] = LaneReport { generation, status };
        }
        let window = self.limits.requests_max;
        let oldest = Seq(c.recv.post.0.wrapping_sub(window));
        for ahead in 0..window {
            self.report_group(index, oldest.plus(ahead), &mut report);
        }
        report
    }

    /// Says which stripes of a group's open receives have come.
    fn report_group(&self, index: usize, number: Seq, report: &mut Report) {
        let at = self.group_at(index, number);
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

    /// A send outside of the stream has come.
    pub(super) fn word_arrived(
        &mut self,
        index: usize,
        lane: u8,
        slot: RecvSlot,
        head: &SendHead,
        length: u32,
    ) {
        let peer = self.lane_peer_of(index, lane);
        if !self.fails_over(index) {
            self.rail.received_release(peer, slot);
            return self.connection_fail(index, RequestError::Protocol);
        }
        let mut bytes = [0; REPORT_BYTES_MAX];
        let length = (length as usize).min(REPORT_BYTES_MAX + 1);
        if head.kind == KIND_REPORT && length <= REPORT_BYTES_MAX {
            self.rail.received_peek(peer, slot, &mut bytes[..length]);
        }
        self.rail.received_release(peer, slot);
        let taken = match head.kind {
            KIND_PROBE => self.probe_arrived(index, lane, head.tag as u32),
            KIND_PROBED => self.probe_answered(index, lane, head.tag as u32),
            KIND_FLUSH => self.flush_asked(index, lane, head),
            KIND_FLUSHED => self.flush_answered(index, lane, head.tag as u32),
            KIND_REPORT_READ => self.report_read(index, head.tag as u32),
            _ => match bytes.get(..length).map(Report::decode) {
                Some(Ok(report)) => self.report_arrived(index, &report),
                Some(Err(_)) | None => Err(ReportError::Malformed),
            },
        };
        if let Err(error) = taken {
            self.report_error = Some((ConnectionIndex(index as u32), error));
            self.connection_fail(index, RequestError::Protocol);
        }
    }

    /// The peer has read our report.
    fn report_read(&mut self, index: usize, number: u32) -> Result<(), ReportError> {
        let state = &mut self.connections[index].control.report;
        if Seq(number).ahead_of(Seq(state.number)) > 0 {
            return Err(ReportError::Number);
        }
        if number == state.number {
            (state.unread_on, state.lost) = (None, false);
            self.work.insert(index);
        }
        Ok(())
    }

    /// The peer has said what came.
    fn report_arrived(&mut self, index: usize, report: &Report) -> Result<(), ReportError> {
        let seen = Seq(self.connections[index].control.report.seen);
        match Seq(report.number).ahead_of(seen) {
            // the same may come twice, when the lane died that should have told that we read it;
            // what is true in one of them stays true
            0 | 1 if report.number != 0 => {}
            // one that was sent again, and overtaken by the next
            ..0 if report.number != 0 => return Ok(()),
            _ => return Err(ReportError::Number),
        }
        self.report_check(index, report)?;
        let c = &mut self.connections[index];
        c.control.report.seen = report.number;
        c.control.report.read_due = true;
        if Seq(report.epoch).ahead_of(Seq(c.control.peer_epoch)) > 0 {
            c.control.peer_epoch = report.epoch;
        }
        self.work.insert(index);
        self.news += 1;
        if !self.is_mutant(Mutant::DeliveriesIgnored) {
            self.acks_take(index, Seq(report.credits_through), Seq(report.delivered_through));
            self.deliveries_apply(index, Seq(report.delivered_through), report.delivered_mask);
        }
        let c = &mut self.connections[index];
        c.recv.offers.passed_take(Seq(report.groups_through));
        c.send.stream.taken_take(Seq(report.eager_through));
        self.arrivals_take(index, report);
        for lane in 0..self.connections[index].rails.count {
            self.lane_report_take(index, lane, report.lanes[usize::from(lane)]);
        }
        Ok(())
    }

    /// The send on its way that is bound to a receive of the peer's.
    pub(super) fn send_by_token(&self, index: usize, token: u32) -> Option<usize> {
        let first = self.send_at(index, 0);
        (first..first + self.limits.requests_max as usize).find(|at| {
            let send = &self.sends[*at];
            let bound = matches!(send.state, SendState::Writing | SendState::Waiting);
            bound && send.token == token
        })
    }

    fn arrivals_take(&mut self, index: usize, report: &Report) {
        for entry in report.entries() {
            if let Some(at) = self.send_by_token(index, entry.token) {
                *self.arrived_mut(at) |= entry.arrived;
            }
        }
    }

    /// What the peer says of one lane.
    fn lane_report_take(&mut self, index: usize, lane: u8, said: LaneReport) {
        let past = match said.status {
            LaneStatus::Fenced => said.generation.saturating_add(1),
            // who has opened it anew had fenced it, also where no report was in time to say so
            LaneStatus::Up | LaneStatus::Failing => said.generation,
            LaneStatus::Absent => 0,
        };
        let entry = self.lane_mut(index, lane);
        entry.peer_past = entry.peer_past.max(past);
        if entry.state == LaneState::Down {
            return;
        }
        let fenced = entry.generation < entry.peer_past;
        let failing = said.status == LaneStatus::Failing && said.generation == entry.generation;
        if fenced || failing {
            self.lane_fail(index, lane, 0);
        }
        if fenced {
            self.lane_mut(index, lane).peer_fenced = true;
            if self.lane(index, lane).state == LaneState::Fenced {
                self.lane_reconcile(index, lane);
            }
        }
    }

    /// A lane is fenced on both sides, and the peer has said what came: what did not is ours to
    /// send again.
    pub(super) fn lane_reconcile(&mut self, index: usize, lane: u8) {
        for record in self.records() {
            self.send_relieve(index, record, lane);
        }
        let c = &mut self.connections[index];
        if lane == c.rails.control_lane.lane && c.rails.control_lane.blocked {
            c.rails.control_lane.fenced = true;
        }
        self.lane_is_down(index, lane);
        self.work.insert(index);
    }

    /// Takes a message's stripes from a lane that is no more: those that did not arrive are to be
    /// written again.
    fn send_relieve(&mut self, index: usize, record: u8, lane: u8) {
        let at = self.send_at(index, record);
        let carried = core::mem::take(&mut self.carried_mut(at)[usize::from(lane)]);
        let arrived = *self.arrived_mut(at);
        let send = &mut self.sends[at];
        let bound = matches!(send.state, SendState::Writing | SendState::Waiting);
        if carried == 0 || !bound {
            return;
        }
        send.written |= carried;
        let missing = if send.delivered { 0 } else { carried & !arrived };
        send.posted &= !missing;
        send.written &= !missing;
        if missing == 0 {
            return self.send_settle(index, record);
        }
        send.state = SendState::Writing;
        let moved = missing.count_ones();
        // the peer never spent a receive on them
        let c = &mut self.connections[index];
        c.control.credits.consumed = Seq(c.control.credits.consumed.0.wrapping_sub(moved));
        self.meter_mut(index, lane).stats.moved += u64::from(moved);
        self.stats.stripes_moved += u64::from(moved);
    }

    /// The peer cannot be reached by what was written on our old control lane any more: everything
    /// that it may have lost is written again, on another.
    pub(super) fn control_resume(&mut self, index: usize) {
        let from_start = self.is_mutant(Mutant::CursorIgnored);
        let control = self.connections[index].rails.control_next();
        let mailbox_key = self.lane(index, control).mailbox_key;
        let c = &mut self.connections[index];
        (c.rails.control_lane.blocked, c.rails.control_lane.fenced) = (false, false);
        c.rails.control_lane.lane = control;
        c.control.mailbox.0.key = mailbox_key;
        c.rails.control_lane.peer =
            PeerIndex((index as u32) << self.lane_bits | u32::from(c.rails.control_lane.lane));
        // lines: whatever the peer may still look for
        c.control.lines.flying = 0;
        c.control.lines.state_flying = false;
        c.recv.delivery_news = true;
        c.send.cursor.canceled_news |= c.send.cursor.canceled.is_some();
        c.recv.offers.canceling = None; // asked once more when all slots are written
        c.recv.offers.next = c.recv.offers.passed;
        c.recv.offers.at = 0;
        c.recv.cells.lose();
        // the stream: what the peer has not taken in
        let untaken = c.send.stream.taken_through != c.send.stream.number;
        c.send.stream.resend = untaken.then_some(c.send.stream.taken_through);
        if from_start && c.send.stream.number.0 <= STREAM_KEPT {
            c.send.stream.resend = Some(Seq(0));
        }
        self.stats.control_moves += 1;
        self.watch.insert(index);
        self.work.insert(index);
    }

    /// Whether sends whose requests have ended may have been lost with a lane, and are to be sent
    /// again on another.
    pub fn is_resending(&self, connection: ConnectionIndex) -> bool {
        let c = &self.connections[connection.as_usize()];
        c.state == ConnectionState::Open
            && (c.rails.control_lane.blocked || c.send.stream.resend.is_some())
    }

    /// Whether the rail is reading memory of sends that have not ended, to write it to the peer.
    pub fn is_writing(&self, connection: ConnectionIndex) -> bool {
        let index = connection.as_usize();
        let c = &self.connections[index];
        let under_way = |record| {
            let send = &self.sends[self.send_at(index, record)];
            matches!(send.state, SendState::Writing | SendState::Waiting)
        };
        c.state == ConnectionState::Open && !c.pull && self.records().any(under_way)
    }

    /// The end of the lane that carries control, messages among it.
    pub fn control_peer(&self, connection: ConnectionIndex) -> PeerIndex {
        self.connections[connection.as_usize()].rails.control_lane.peer
    }

    /// Sends again what the peer has not taken in; says whether some is left.
    fn resend_step(&mut self, index: usize) -> bool {
        while let Some(number) = self.connections[index].send.stream.resend {
            let c = &self.connections[index];
            if c.rails.control_lane.blocked {
                return false; // goes on when the next control lane is known
            }
            if number == c.send.stream.number {
                self.connections[index].send.stream.resend = None;
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
            if self.post(index, op_id(super::eager::OP_STREAM, 0, 0), send).is_err() {
                return true;
            }
            self.connections[index].send.stream.resend = Some(number.next());
            self.stats.resends += 1;
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
    pub(super) fn keep_room(&self, index: usize, length: u64) -> Option<u32> {
        let c = &self.connections[index];
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
    pub(super) fn keep(&mut self, index: usize, head: &SendHead, kept_at: u32, payload: LocalSpan) {
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
        self.connections[index].send.stream.kept_next = kept_at.wrapping_add(u32::from(length));
    }

    /// Forgets sends that came on a lane before their turn: they come again, on another.
    pub(super) fn ahead_drop(&mut self, index: usize, lane: u8) {
        let peer = self.lane_peer_of(index, lane);
        let (mut previous, mut record) = (NIL, self.connections[index].recv.messages.ahead.head);
        while record != NIL {
            let message = self.held[self.held_at(index, record)];
            if message.lane != lane {
                (previous, record) = (record, message.next);
                continue;
            }
            if previous == NIL {
                self.connections[index].recv.messages.ahead.head = message.next;
            } else {
                let before = self.held_at(index, previous);
                self.held[before].next = message.next;
            }
            // no credit returns: the same credit pays for it when it comes again
            self.rail.received_release(peer, message.slot);
            self.held_release(index, record);
            record = message.next;
        }
    }
}

const _: () = assert!(RAILS_MAX <= 8, "lanes are bits of a byte");
