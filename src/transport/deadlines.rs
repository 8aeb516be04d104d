//! What follows a lane's failure in time, or ends its connection by name.
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use super::rail::LaneState;
use super::records::ConnectionState;
use super::request::RequestError;
use crate::base::units::Instant;
use crate::fabric::Provider;

impl<P: Provider> Endpoint<'_, P> {
    /// What has a deadline: lanes that are not fenced, reports that do not come, no lane at all.
    #[cold]
    pub(super) fn deadlines_look(&mut self) {
        let mut from = 0;
        while let Some(index) = self.troubled.next_from(from) {
            from = index + 1;
            if !self.deadline_look(index) {
                self.troubled.remove(index);
            }
        }
    }

    /// Says whether there is still something to wait for.
    fn deadline_look(&mut self, index: usize) -> bool {
        let (now, config) = (self.now, self.config);
        let c = &self.connections[index];
        if matches!(c.state, ConnectionState::Free | ConnectionState::Failed) {
            return false;
        }
        let mut waits = false;
        let mut late = None;
        for lane in 0..c.lane_count {
            let entry = self.lane(index, lane);
            let error = match entry.state {
                LaneState::Failing => RequestError::Unfenced,
                LaneState::Fenced => RequestError::NoAnswer,
                LaneState::Down | LaneState::Joining | LaneState::Up => continue,
            };
            waits = true;
            if late.is_none() && is_past(now, entry.failed_at, config.fence_span.0) {
                late = Some(error);
            }
        }
        if c.state != ConnectionState::Open {
            if late == Some(RequestError::Unfenced) {
                self.requests_abandon(index);
                return false;
            }
            return waits;
        }
        if let Some(since) = c.stranded_at {
            waits = true;
            if is_past(now, since, config.loss_span.0) {
                let code = self.lane(index, c.control).code;
                self.connection_fail(index, RequestError::RailsLost(code));
                return true;
            }
        }
        if let Some(error) = late {
            self.connection_fail(index, error);
        }
        waits
    }
}

fn is_past(now: Instant, since: Instant, span_ns: u64) -> bool {
    now.since(since).0 > span_ns
}
