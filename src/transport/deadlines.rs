//! Deadlines after a lane's failure or close. When one passes, the connection ends with an error.
//! Only time in which this process looked is counted ([`Endpoint::deadlines_look`]).
//!
//! If a fence does not come in time, the requests end with [`RequestError::Unfenced`]. Their memory
//! goes into *quarantine* until the fence holds after all: it stays registered, and deregistering
//! it says busy. The connection cannot be closed before either.
#![forbid(unsafe_code)]

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::mr::NO_REGION;
use super::rail::LaneState;
use super::rails::Rails;
use super::records::{ConnectionState, NEVER, SendState};
use super::request::RequestError;
use crate::base::units::{Instant, Span};
use crate::fabric::Provider;
use crate::wire::GROUP_MAX;

/// After this part of its deadline without a sign of life a peer's silence is no refusal: its
/// program computes, or is stopped, which is reported and ends nothing.
const SILENT: u64 = 8;

impl<P: Provider> Endpoint<'_, P> {
    /// A connection waits for something with a deadline from now on.
    #[cold]
    pub(super) fn trouble(&mut self, index: usize) {
        if P::SEVERAL_LANES {
            self.troubled.insert(index);
        }
    }

    /// What has a deadline: lanes that are not fenced, reports that do not come, no lane at all.
    #[cold]
    pub(super) fn deadlines_look(&mut self) {
        // time in which nobody looked is none in which a peer said nothing: this process may have
        // been stopped, and what came meanwhile may not be read yet
        let gap_max = self.config.loss_span.0.min(self.config.fence_span.0) / 2;
        let gap = Span(self.now.since(self.looked_at).0.min(gap_max));
        (self.looked_at, self.waited) = (self.now, self.waited.after(gap));
        let mut from = 0;
        while let Some(index) = self.troubled.next_from(from) {
            from = index + 1;
            if !self.deadline_look(index, gap) {
                self.troubled.remove(index);
            }
        }
    }

    /// Says whether there is still something to wait for. `gap`: since the last look.
    fn deadline_look(&mut self, index: usize, gap: Span) -> bool {
        let (now, config) = (self.waited, self.config);
        let Connection { state, rails: Rails { count: lane_count, .. }, .. } =
            self.connections[index];
        if matches!(state, ConnectionState::Free | ConnectionState::Failed) {
            return false;
        }
        let mut waits = false;
        let mut late = None;
        let heard = self.connections[index].heard();
        for lane in 0..lane_count {
            waits |= self.closed_look(index, lane);
            let entry = self.lane_mut(index, lane);
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
        let c = &mut self.connections[index];
        if c.rails.stranded_at != NEVER {
            waits = true;
            if c.rails.stranded_at == Instant(0) {
                c.rails.stranded_at = now;
            }
            if is_past(now, c.rails.stranded_at, config.loss_span.0) {
                let control = c.rails.control_lane.lane;
                if c.rails.up != 0 && !self.has_unknown(index) {
                    self.connections[index].rails.stranded_at = NEVER; // what waited is gone
                    return waits;
                }
                let code = self.lane(index, control).code;
                self.connection_fail(index, RequestError::RailsLost(code));
                return true;
            }
        }
        if let Some(error) = late {
            self.connection_fail(index, error);
        }
        waits
    }

    /// The provider says that the peer has closed a lane in good order.
    pub(super) fn lane_closed(&mut self, index: usize, lane: u8) {
        let entry = self.lane_mut(index, lane);
        (entry.closed, entry.heard_at) = (true, Instant(0));
        self.trouble(index);
    }

    /// A lane that the peer has closed goes before the others, and before the peer's word: that it
    /// has fenced the lane, or closed the connection. Where neither comes, and others stay, it is a
    /// loss like any. Says whether there is still something to wait for.
    fn closed_look(&mut self, index: usize, lane: u8) -> bool {
        let (now, span) = (self.waited, self.config.loss_span);
        let Connection { state, rails: Rails { peer_down, .. }, .. } = self.connections[index];
        let entry = self.lane_mut(index, lane);
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

    /// Ends the requests of a connection that is lost and cannot be fenced: their memory stays
    /// registered, because somebody may still touch it.
    fn requests_abandon(&mut self, index: usize) {
        let c = &mut self.connections[index];
        c.failure.0 = RequestError::Unfenced;
        c.rails.quarantine = true;
        if c.state == ConnectionState::Failing {
            c.state = ConnectionState::Failed;
        }
        for record in self.records() {
            self.record_quarantine(index, record);
        }
        self.stats.unfenced += 1;
        self.requests_end(index);
        self.work.insert(index); // a fence may have had no room yet
    }

    /// Leaves in a record the regions that it keeps in quarantine, and no others.
    fn record_quarantine(&mut self, index: usize, record: u8) {
        let at = self.send_at(index, record);
        let send = &mut self.sends[at];
        if matches!(send.state, SendState::Free | SendState::Done) {
            send.region = NO_REGION;
        }
        self.regions.pin(send.region);
        let group = self.groups[at];
        for receive in 0..GROUP_MAX as u8 {
            let open = group.used && receive < group.count && group.done >> receive & 1 == 0;
            let place = self.receive_at(at, receive);
            let entry = &mut self.receives[place];
            if !open {
                entry.region = NO_REGION;
            }
            self.regions.pin(entry.region);
        }
    }

    /// The fence has come after all: what was in quarantine is given back.
    pub(super) fn quarantine_end(&mut self, index: usize) {
        self.connections[index].rails.quarantine = false;
        for record in self.records() {
            let at = self.send_at(index, record);
            self.regions.unpin(core::mem::replace(&mut self.sends[at].region, NO_REGION));
            for receive in 0..GROUP_MAX as u8 {
                let place = self.receive_at(at, receive);
                let entry = &mut self.receives[place];
                self.regions.unpin(core::mem::replace(&mut entry.region, NO_REGION));
            }
        }
    }
}

fn is_past(now: Instant, since: Instant, span_ns: u64) -> bool {
    now.since(since).0 > span_ns
}
