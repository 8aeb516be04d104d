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
//! # Deadlines
//!
//! Deadlines after a lane's failure or close. When one passes, the connection ends with an error.
//! Only time in which this process looked is counted ([`Endpoint::deadlines_look`]).
//!
//! If a fence does not come in time, the requests end with [`RequestError::Unfenced`]. Their memory
//! goes into *quarantine* until the fence holds after all: it stays registered, and deregistering
//! it says busy. The connection cannot be closed before either.
//!
//! [`RECEIVES_SPARE`]: crate::transport::limits::RECEIVES_SPARE

use super::Rails;
use super::breaks::{EPROTO, breach};
use super::table::{Answer, Fence, Flush, LaneState, Probe};
use crate::base::ids::{ConnectionIndex, PeerIndex, RailGeneration};
use crate::base::seq::Seq;
use crate::base::units::{Instant, Span};
use crate::fabric::{
    DownCause, LocalSpan, OpError, OpErrorKind, OpKind, PostError, Posted, Provider, RecvSlot,
};
use crate::transport::connection::Connection;
use crate::transport::control::report;
use crate::transport::control::report::ReportError;
use crate::transport::endpoint::Endpoint;
use crate::transport::mutant::Mutant;
use crate::transport::net::{OP_FENCE, op_id};
use crate::transport::records::{ConnectionState, NEVER, SendState};
use crate::transport::request::RequestError;
use crate::wire::RAILS_MAX;
use crate::wire::head::{
    KIND_FLUSH, KIND_FLUSHED, KIND_PROBE, KIND_PROBED, KIND_REPORT, KIND_REPORT_READ, SendHead,
};
use crate::wire::report::{LaneReport, LaneStatus, REPORT_BYTES_MAX, Report};

/// After this part of its deadline without a sign of life a peer's silence is no refusal: its
/// program computes, or is stopped, which is reported and ends nothing.
const SILENT: u64 = 8;

const _: () = assert!(RAILS_MAX <= 8, "lanes are bits of a byte");

impl<P: Provider> Endpoint<'_, P> {
    pub(in crate::transport) fn op_failed(&mut self, index: usize, lane: u8, error: OpError) {
        match error.kind {
            // the provider reports the peer itself, with the cause
            OpErrorKind::PeerDown | OpErrorKind::Canceled => {}
            OpErrorKind::Key => self.net.connection_fail(index, RequestError::Protocol),
            OpErrorKind::Fabric if self.net.fails_over(index) => {
                self.lane_fail(index, lane, error.code);
            }
            OpErrorKind::Fabric => {
                self.net.connection_fail(index, RequestError::Fabric(error.code));
            }
        }
    }

    /// What is due on the lanes of a connection; says whether something still is.
    pub(in crate::transport) fn failover_step(&mut self, index: usize) -> bool {
        !self.net.lanes_are_calm(index) && self.lanes_step(index)
    }

    #[inline(never)]
    fn lanes_step(&mut self, index: usize) -> bool {
        let fences = self.fences_step(index);
        let probes = self.net.probes_step(index);
        let reports = self.reports_step(index);
        let c = &self.net.connections[index];
        let fenced = c.rails.control_lane.fenced || self.net.is_mutant(Mutant::ControlUnfenced);
        if c.rails.control_lane.blocked && fenced && c.rails.up != 0 {
            self.net.control_resume(index);
        }
        let resends = self.sends.resend_step(&mut self.net, index);
        let flushes = self.net.flushes_step(index);
        fences | probes | reports | resends | flushes
    }

    /// Sends our report if it is due, and says that we have read the peer's.
    fn reports_step(&mut self, index: usize) -> bool {
        let c = &self.net.connections[index];
        let Some(lane) = c.rails.report_lane() else { return false };
        let mut remain = false;
        if c.control.report.read_due {
            let seen = c.control.report.seen as i32;
            if self.net.word_send(index, lane, KIND_REPORT_READ, seen, LocalSpan::EMPTY) {
                let state = &mut self.net.connections[index].control.report;
                (state.read_due, state.read_on) = (false, Some(lane));
            } else {
                remain = true;
            }
        }
        let state = self.net.connections[index].control.report;
        let (again, fresh) = state.ours_due();
        if !again && !fresh {
            return remain;
        }
        let number = if again { state.number } else { state.number.wrapping_add(1) };
        let report = report::make(&self.net, &self.recvs, index, number);
        let mut bytes = [0; REPORT_BYTES_MAX];
        let length = report.encode(&mut bytes);
        let payload = self.net.scratch.fill(&bytes[..length]);
        if !self.net.word_send(index, lane, KIND_REPORT, number as i32, payload) {
            return true;
        }
        let state = &mut self.net.connections[index].control.report;
        state.number = number;
        state.unread_on = Some(lane);
        // the word that the first one was read would stand for the second, which may be lost: what
        // is new in it stays due
        (state.lost, state.due) = (false, state.due && again);
        self.net.stats.reports += 1;
        remain
    }

    /// A send outside of the stream has come.
    pub(in crate::transport) fn word_arrived(
        &mut self,
        index: usize,
        lane: u8,
        slot: RecvSlot,
        head: &SendHead,
        length: u32,
    ) {
        let peer = self.net.lane_peer_of(index, lane);
        if !self.net.fails_over(index) {
            self.net.rail.received_release(peer, slot);
            return self.net.connection_fail(index, RequestError::Protocol);
        }
        let mut bytes = [0; REPORT_BYTES_MAX];
        let length = (length as usize).min(REPORT_BYTES_MAX + 1);
        if head.kind == KIND_REPORT && length <= REPORT_BYTES_MAX {
            self.net.rail.received_peek(peer, slot, &mut bytes[..length]);
        }
        self.net.rail.received_release(peer, slot);
        let taken = match head.kind {
            KIND_PROBE => self.probe_arrived(index, lane, head.tag as u32),
            KIND_PROBED => self.probe_answered(index, lane, head.tag as u32),
            KIND_FLUSH => self.net.flush_asked(index, lane, head),
            KIND_FLUSHED => self.net.flush_answered(index, lane, head.tag as u32),
            KIND_REPORT_READ => self.net.report_read(index, head.tag as u32),
            _ => match bytes.get(..length).map(Report::decode) {
                Some(Ok(report)) => self.report_arrived(index, &report),
                Some(Err(_)) | None => Err(ReportError::Malformed),
            },
        };
        if let Err(error) = taken {
            self.report_error = Some((ConnectionIndex(index as u32), error));
            self.net.connection_fail(index, RequestError::Protocol);
        }
    }

    /// The peer has said what came.
    fn report_arrived(&mut self, index: usize, report: &Report) -> Result<(), ReportError> {
        let seen = Seq(self.net.connections[index].control.report.seen);
        match Seq(report.number).ahead_of(seen) {
            // the same may come twice, when the lane died that should have told that we read it;
            // what is true in one of them stays true
            0 | 1 if report.number != 0 => {}
            // one that was sent again, and overtaken by the next
            ..0 if report.number != 0 => return Ok(()),
            _ => return Err(ReportError::Number),
        }
        report::check(&self.net, &self.sends, index, report)?;
        let c = &mut self.net.connections[index];
        c.control.report.seen = report.number;
        c.control.report.read_due = true;
        if Seq(report.epoch).ahead_of(Seq(c.control.peer_epoch)) > 0 {
            c.control.peer_epoch = report.epoch;
        }
        self.net.due.work.insert(index);
        self.net.news += 1;
        if !self.net.is_mutant(Mutant::DeliveriesIgnored) {
            self.sends.acks_take(
                &mut self.net,
                index,
                Seq(report.credits_through),
                Seq(report.delivered_through),
            );
            self.sends.deliveries_apply(
                &mut self.net,
                index,
                Seq(report.delivered_through),
                report.delivered_mask,
            );
        }
        let c = &mut self.net.connections[index];
        c.recv.offers.passed_take(Seq(report.groups_through));
        c.send.stream.taken_take(Seq(report.eager_through));
        self.sends.arrivals_take(&mut self.net, index, report);
        for lane in 0..self.net.connections[index].rails.count {
            self.lane_report_take(index, lane, report.lanes[usize::from(lane)]);
        }
        Ok(())
    }

    /// What the peer says of one lane.
    fn lane_report_take(&mut self, index: usize, lane: u8, said: LaneReport) {
        let past = match said.status {
            LaneStatus::Fenced => said.generation.saturating_add(1),
            // who has opened it anew had fenced it, also where no report was in time to say so
            LaneStatus::Up | LaneStatus::Failing => said.generation,
            LaneStatus::Absent => 0,
        };
        let entry = self.net.lane_mut(index, lane);
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
            self.net.lane_mut(index, lane).peer_fenced = true;
            if self.net.lane(index, lane).state == LaneState::Fenced {
                self.sends.lane_reconcile(&mut self.net, index, lane);
            }
        }
    }

    /// A lane carries nothing more: it failed, or the peer says so. What it carried is sorted out
    /// when both sides have fenced it. The connection goes on, if it has others.
    pub(in crate::transport) fn lane_fail(&mut self, index: usize, lane: u8, code: i32) {
        let entry = self.net.lane_mut(index, lane);
        let joining = match entry.state {
            LaneState::Joining => true,
            LaneState::Up => false,
            LaneState::Down | LaneState::Failing | LaneState::Fenced => return,
        };
        entry.state = LaneState::Failing;
        entry.fence = Fence::Needed;
        let held = core::mem::take(&mut entry.flush) != Flush::No;
        // what has only been probed has carried nothing that anybody waits for
        entry.peer_fenced = joining;
        let probe = joining.then_some(entry.probe);
        (entry.probe, entry.answer) = (Probe::No, Answer::No);
        entry.code = code;
        entry.failed_at = Instant(0);
        let now = self.net.now;
        self.net.meter_mut(index, lane).failed(probe, now);
        let c = &mut self.net.connections[index];
        // what was held for the peer's word is sorted out with the lane
        c.rails.control_lane.blocked &= !held;
        c.rails.up &= !(1 << lane);
        c.control.report.due = true;
        if c.control.report.unread_on == Some(lane) {
            c.control.report.lost = true;
        }
        if c.control.report.read_on == Some(lane) {
            c.control.report.read_due = true;
        }
        if !joining && lane == c.rails.control_lane.lane && !c.rails.control_lane.blocked {
            c.rails.control_lane.blocked = true;
            c.control.epoch = c.control.epoch.wrapping_add(1);
        }
        let (is_stranded, lost) = (c.rails.up == 0, c.rails.lost.filter(|_| c.rails.up == 0));
        if is_stranded {
            self.net.strand(index);
        }
        self.net.stats.lane_failures += 1;
        self.net.news += 1;
        self.net.due.work.insert(index);
        self.net.due.troubled.insert(index);
        if let Some(cause) = lost {
            self.connection_lost(ConnectionIndex(index as u32), cause);
        }
    }

    /// Posts the fences of failed lanes; says whether one had no room.
    pub(in crate::transport) fn fences_step(&mut self, index: usize) -> bool {
        let mut remain = false;
        for lane in 0..self.net.connections[index].rails.count {
            if self.net.lane(index, lane).state == LaneState::Failing {
                remain |= self.lane_fence(index, lane);
            }
        }
        self.fence_settle(index); // no lane may have been left to fence
        remain
    }

    /// Fences one lane in both directions; says whether the rail had no room for it.
    fn lane_fence(&mut self, index: usize, lane: u8) -> bool {
        if self.net.is_mutant(Mutant::FenceNever) {
            return false;
        }
        if self.net.is_mutant(Mutant::FenceSkipped) {
            self.net.lane_mut(index, lane).fence = Fence::Holds;
        }
        if self.net.lane(index, lane).fence == Fence::Needed {
            let generation = RailGeneration(self.net.lane(index, lane).generation);
            match self.net.post_on(index, lane, op_id(OP_FENCE, 0, 0), OpKind::Fence { generation })
            {
                Ok(Posted::Pending) => {
                    let entry = self.net.lane_mut(index, lane);
                    entry.fence = Fence::Posted;
                    entry.ops_in_flight -= 1; // answered by `Fenced`, not counted as an op
                }
                Err(PostError::Again) => return true,
                // a rail that cannot even be asked has forgotten the peer
                Ok(Posted::Done) | Err(PostError::PeerDown | PostError::Unsupported) => {
                    self.net.lane_mut(index, lane).fence = Fence::Holds;
                }
            }
        }
        self.lane_settle(index, lane);
        false
    }

    /// A fence holds.
    pub(in crate::transport) fn fenced(&mut self, peer: PeerIndex) {
        let (index, lane) = self.net.lane_of(peer);
        self.net.lane_mut(index, lane).fence = Fence::Holds;
        self.lane_settle(index, lane);
    }

    /// Goes on with a lane, or a connection, of which nothing is in flight any more.
    pub(in crate::transport) fn lane_settle(&mut self, index: usize, lane: u8) {
        let entry = self.net.lane(index, lane);
        if entry.state != LaneState::Failing || !entry.is_quiet() {
            return;
        }
        self.lane_fenced(index, lane);
        match self.net.connections[index].state {
            ConnectionState::Open => {
                if P::SEVERAL_LANES && self.net.lane(index, lane).peer_fenced {
                    self.sends.lane_reconcile(&mut self.net, index, lane);
                }
            }
            _ => self.fence_settle(index),
        }
    }

    /// A lane is fenced here: its operations read no source any more, and what came on it is known.
    fn lane_fenced(&mut self, index: usize, lane: u8) {
        self.net.lane_mut(index, lane).state = LaneState::Fenced;
        let several = self.net.fails_over(index);
        if several {
            self.net.meter_mut(index, lane).load.reset();
        }
        for record in self.net.records() {
            let at = self.net.send_at(index, record);
            let carried = match several {
                true => self.sends.carried_mut(&mut self.net, at)[usize::from(lane)],
                false => 0,
            };
            if carried != 0 && self.sends.records[at].state != SendState::Free {
                self.sends.records[at].written |= carried;
                self.sends.send_settle(&mut self.net, index, record);
            }
        }
        self.recvs.ahead_drop(&mut self.net, index, lane);
        self.net.connections[index].control.report.due = true;
        self.net.due.work.insert(index);
    }

    /// The provider says that nothing more will come on a lane.
    pub(in crate::transport) fn peer_went_down(&mut self, peer: PeerIndex, cause: DownCause) {
        let (index, lane) = self.net.lane_of(peer);
        if !self.net.fails_over(index) {
            return self.connection_lost(ConnectionIndex(index as u32), cause);
        }
        let state = self.net.lane(index, lane).state;
        let in_use = matches!(state, LaneState::Up | LaneState::Joining);
        let failed = matches!(state, LaneState::Failing | LaneState::Fenced);
        if let (DownCause::Broken(code), true) =
            (cause, failed && self.net.lane(index, lane).code == 0)
        {
            // the peer's word has come first, and says no code
            self.net.lane_mut(index, lane).code = code;
        }
        if self.net.connections[index].state != ConnectionState::Open || !in_use {
            return;
        }
        match cause {
            DownCause::Closed => self.net.lane_closed(index, lane),
            DownCause::Broken(code) => self.lane_fail(index, lane, code),
            DownCause::Failed => self.lane_fail(index, lane, EPROTO),
            DownCause::Died | DownCause::Severed | DownCause::Unheard | DownCause::Silent => {
                self.lane_fail(index, lane, 0);
            }
        }
        if let (Some(error), LaneState::Up) = (breach(cause), state) {
            let mark = self.view().progress(index);
            if self.net.meter_mut(index, 0).breaks.add(mark) {
                self.net.connection_fail(index, error);
            }
        }
        // what was sent on others before may still be on its way
        let c = &self.net.connections[index];
        let closed = |lane: &u8| self.net.lane(index, *lane).closed;
        let joins = |lane: &u8| self.net.lane(index, *lane).state == LaneState::Joining;
        let open = |lane: &u8| (c.rails.up >> *lane & 1 == 1 || joins(lane)) && !closed(lane);
        if (0..c.rails.count).any(|lane| closed(&lane))
            && !(0..c.rails.count).any(|lane| open(&lane))
        {
            self.connection_lost(ConnectionIndex(index as u32), DownCause::Closed);
        }
    }

    /// The peer has opened a lane too, and what it sends there comes. Whether what we send gets to
    /// it, its answer to our own probe says; one that gives no answers is believed to hear us.
    fn probe_arrived(&mut self, index: usize, lane: u8, number: u32) -> Result<(), ReportError> {
        let answers = self.net.connections[index].rails.probed;
        let entry = self.net.lane_mut(index, lane);
        if number != entry.generation {
            return Err(ReportError::Generation);
        }
        if !matches!(entry.state, LaneState::Joining | LaneState::Up) {
            return Ok(());
        }
        if entry.probe == Probe::Waits {
            entry.probe = Probe::Due;
        }
        if answers {
            entry.answer = match entry.answer {
                Answer::No | Answer::Due => Answer::Due,
                Answer::Given | Answer::DueAgain => Answer::DueAgain,
            };
        }
        self.net.due.work.insert(index);
        if !answers {
            self.lane_joined(index, lane);
        }
        Ok(())
    }

    /// Our probe of a lane has come to the peer: the long one is next, or the lane is used.
    fn probe_answered(&mut self, index: usize, lane: u8, number: u32) -> Result<(), ReportError> {
        if !self.net.connections[index].rails.probed {
            return Err(ReportError::Malformed);
        }
        let entry = self.net.lane_mut(index, lane);
        if number != entry.generation {
            return Err(ReportError::Generation);
        }
        match entry.probe {
            Probe::Sent => {
                entry.probe = Probe::LongDue;
                self.net.due.work.insert(index);
            }
            Probe::LongSent => {
                entry.probe = Probe::No;
                self.lane_joined(index, lane);
            }
            Probe::No => {} // it has failed since
            Probe::Waits | Probe::Due | Probe::LongDue => return Err(ReportError::Generation),
        }
        Ok(())
    }

    fn lane_joined(&mut self, index: usize, lane: u8) {
        let entry = self.net.lane_mut(index, lane);
        if entry.state != LaneState::Joining {
            return;
        }
        entry.state = LaneState::Up;
        self.net.meter_mut(index, lane).stats.joins += 1;
        let c = &mut self.net.connections[index];
        c.rails.up |= 1 << lane;
        // what this one does not carry either has waited since before
        if !self.sends.has_unknown(&self.net, index) {
            self.net.connections[index].rails.stranded_at = NEVER;
        }
        self.net.stats.lane_joins += 1;
        self.net.news += 1;
        self.net.due.work.insert(index);
    }

    /// What has a deadline: lanes that are not fenced, reports that do not come, no lane at all.
    #[cold]
    pub(in crate::transport) fn deadlines_look(&mut self) {
        // time in which nobody looked is none in which a peer said nothing: this process may have
        // been stopped, and what came meanwhile may not be read yet
        let gap_max = self.net.config.loss_span.0.min(self.net.config.fence_span.0) / 2;
        let gap = Span(self.net.now.since(self.looked_at).0.min(gap_max));
        (self.looked_at, self.waited) = (self.net.now, self.waited.after(gap));
        let mut from = 0;
        while let Some(index) = self.net.due.troubled.next_from(from) {
            from = index + 1;
            if !self.deadline_look(index, gap) {
                self.net.due.troubled.remove(index);
            }
        }
    }

    /// Says whether there is still something to wait for. `gap`: since the last look.
    fn deadline_look(&mut self, index: usize, gap: Span) -> bool {
        let (now, config) = (self.waited, self.net.config);
        let Connection { state, rails: Rails { count: lane_count, .. }, .. } =
            self.net.connections[index];
        if matches!(state, ConnectionState::Free | ConnectionState::Failed) {
            return false;
        }
        let mut waits = false;
        let mut late = None;
        let heard = self.net.connections[index].heard();
        for lane in 0..lane_count {
            waits |= self.closed_look(index, lane);
            let entry = self.net.lane_mut(index, lane);
            let error = match entry.state {
                LaneState::Failing => RequestError::Unfenced,
                LaneState::Fenced => RequestError::NoAnswer,
                LaneState::Down | LaneState::Joining | LaneState::Up => continue,
            };
            waits = true;
            if entry.failed_at == Instant(0) {
                (entry.failed_at, entry.heard_mark, entry.heard_at) = (now, heard, now);
            }
            if entry.heard_mark != heard {
                (entry.heard_mark, entry.heard_at) = (heard, now);
            }
            let silent = is_past(now, entry.heard_at, config.fence_span.0 / SILENT);
            if silent && error == RequestError::NoAnswer {
                entry.failed_at = entry.failed_at.after(gap);
            }
            // what may still be touched comes before what is only not known
            let worst = late.is_none() || error == RequestError::Unfenced;
            if worst && is_past(now, entry.failed_at, config.fence_span.0) {
                late = Some(error);
            }
        }
        if state != ConnectionState::Open {
            if late == Some(RequestError::Unfenced) {
                self.requests_abandon(index);
                return false;
            }
            return waits;
        }
        let c = &mut self.net.connections[index];
        if c.rails.stranded_at != NEVER {
            waits = true;
            if c.rails.stranded_at == Instant(0) {
                c.rails.stranded_at = now;
            }
            if is_past(now, c.rails.stranded_at, config.loss_span.0) {
                let control = c.rails.control_lane.lane;
                if c.rails.up != 0 && !self.sends.has_unknown(&self.net, index) {
                    self.net.connections[index].rails.stranded_at = NEVER; // what waited is gone
                    return waits;
                }
                let code = self.net.lane(index, control).code;
                self.net.connection_fail(index, RequestError::RailsLost(code));
                return true;
            }
        }
        if let Some(error) = late {
            self.net.connection_fail(index, error);
        }
        waits
    }

    /// A lane that the peer has closed goes before the others, and before the peer's word: that it
    /// has fenced the lane, or closed the connection. Where neither comes, and others stay, it is a
    /// loss like any. Says whether there is still something to wait for.
    fn closed_look(&mut self, index: usize, lane: u8) -> bool {
        let (now, span) = (self.waited, self.net.config.loss_span);
        let Connection { state, rails: Rails { peer_down, .. }, .. } = self.net.connections[index];
        let entry = self.net.lane_mut(index, lane);
        let in_use = matches!(entry.state, LaneState::Up | LaneState::Joining);
        if !entry.closed || !in_use || peer_down || state != ConnectionState::Open {
            return false;
        }
        if entry.heard_at == Instant(0) {
            entry.heard_at = now;
        }
        if is_past(now, entry.heard_at, span.0) {
            entry.closed = false;
            self.lane_fail(index, lane, 0);
        }
        true
    }
}

fn is_past(now: Instant, since: Instant, span_ns: u64) -> bool {
    now.since(since).0 > span_ns
}
