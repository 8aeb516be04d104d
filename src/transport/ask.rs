//! How requests stand: what the user asks by number.
#![forbid(unsafe_code)]

use super::endpoint::Endpoint;
use super::matching;
use super::records::{ConnectionState, SendRecord, SendState};
use super::request::{Outcome, RequestError, RequestId, RequestIdError, RequestKind};
use super::used::record_leave;
use crate::base::ids::ConnectionIndex;
use crate::base::units::Bytes;
use crate::fabric::Provider;
use crate::wire::GROUP_MAX;

impl<P: Provider> Endpoint<'_, P> {
    /// Whether a request is under way: [`Endpoint::test`] would say `None`.
    #[inline(always)]
    pub fn is_outstanding(&self, request: RequestId) -> bool {
        match request.unpack() {
            Some(RequestKind::Receive { connection, record, generation }) => {
                let generation = self.unsalted(generation);
                self.group_used(connection, record, generation).is_some_and(|at| {
                    let group = &self.groups[at];
                    group.done != matching::full(group.count)
                })
            }
            Some(RequestKind::Send { connection, record, generation }) => {
                self.send_is_outstanding(connection, record, self.unsalted(generation))
            }
            Some(RequestKind::Complete { .. }) | None => false,
        }
    }

    #[inline(never)]
    fn send_is_outstanding(
        &self,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> bool {
        self.record_at(connection, record).is_ok_and(|at| {
            let send = &self.sends[at];
            let ended = matches!(send.state, SendState::Free | SendState::Done);
            send.generation == generation && !ended
        })
    }

    /// The request of the eager send that was posted last, complete as it is.
    #[inline(always)]
    pub(super) fn complete(&self, length: u64) -> RequestId {
        let number = self.stats.eager.wrapping_sub(1) as u8;
        RequestId::pack(RequestKind::Complete { length, number, generation: self.config.salt })
    }

    /// Whether a request is an eager send that was complete when it was accepted, and was posted
    /// before `eager` others: that is [`super::Stats::eager`] at some time since.
    #[inline]
    pub fn is_complete_before(&self, request: RequestId, eager: u64) -> bool {
        match request.unpack() {
            Some(RequestKind::Complete { number, .. }) => {
                let since = self.stats.eager.wrapping_sub(eager);
                u64::from(number.wrapping_sub(eager as u8)) >= since
            }
            Some(_) | None => false,
        }
    }

    /// Has the next [`Endpoint::progress`] look at what comes on the connection of a request, and
    /// not at others, where a look costs a call of the system.
    #[inline]
    pub fn look_for(&mut self, request: RequestId) {
        let connection = match request.unpack() {
            Some(
                RequestKind::Send { connection, .. } | RequestKind::Receive { connection, .. },
            ) => connection.as_usize(),
            Some(RequestKind::Complete { .. }) | None => return,
        };
        if let Some(c) = self.connections.get(connection)
            && !c.pull
            && !c.rails.fails_over()
            && c.state == ConnectionState::Open
        {
            self.rail.look_at(c.rails.control_lane.peer);
        }
    }

    /// Hands over what was posted, and nothing more.
    #[inline]
    pub fn flush(&mut self, budget: Bytes) {
        self.rail.flush(budget);
    }

    /// Asks how a request stands. `None`: it is outstanding. An outcome is told once; after that
    /// the number is stale.
    #[inline(always)]
    pub fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        match request.unpack().ok_or(RequestIdError::Stale)? {
            RequestKind::Complete { length, generation, .. } if generation == self.config.salt => {
                Ok(Some(send_outcome(Ok(()), length)))
            }
            RequestKind::Complete { .. } => Err(RequestIdError::Stale),
            RequestKind::Send { connection, record, generation } => {
                self.send_test(connection, record, self.unsalted(generation))
            }
            RequestKind::Receive { connection, record, generation } => {
                let used = self.group_used(connection, record, self.unsalted(generation));
                let at = used.ok_or(RequestIdError::Stale)?;
                let group = &self.groups[at];
                if group.done != matching::full(group.count) {
                    return Ok(None);
                }
                Ok(Some(self.receive_outcome(at)))
            }
        }
    }

    /// The generation of a record, out of a request's number.
    #[inline(always)]
    pub(super) const fn unsalted(&self, generation: u32) -> u32 {
        generation.wrapping_sub(self.config.salt)
    }

    /// The same the other way round: records begin at zero, and numbers differ by endpoint.
    #[inline(always)]
    pub(super) const fn salted(&self, generation: u32) -> u32 {
        generation.wrapping_add(self.config.salt)
    }

    /// Where a group that its user has not been told of stands.
    #[inline(always)]
    fn group_used(
        &self,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> Option<usize> {
        let requests = self.limits.requests_max;
        // with such a record, only a connection that exists has its place in the table
        let at = connection.as_usize() * requests as usize + usize::from(record);
        let group = self.groups.get(at)?;
        let used = u32::from(record) < requests && group.generation == generation && group.used;
        used.then_some(at)
    }

    #[inline(never)]
    fn send_test(
        &mut self,
        connection: ConnectionIndex,
        record: u8,
        generation: u32,
    ) -> Result<Option<Outcome>, RequestIdError> {
        let at = self.record_at(connection, record)?;
        let send = &self.sends[at];
        if send.generation != generation || send.state == SendState::Free {
            return Err(RequestIdError::Stale);
        }
        if send.state != SendState::Done {
            return Ok(None);
        }
        let outcome = send_outcome(send.error.map_or(Ok(()), Err), send.length);
        let (generation, region) = (send.generation.wrapping_add(1), send.region);
        // where it is in quarantine, the record says so also when its user has asked
        self.sends[at] = SendRecord { generation, region, ..SendRecord::FREE };
        record_leave(self.sends_used_mut(connection.as_usize()), record);
        Ok(Some(outcome))
    }

    /// How a group ended; its record is free from now on.
    #[inline(always)]
    fn receive_outcome(&mut self, at: usize) -> Outcome {
        let group = &mut self.groups[at];
        group.used = false;
        let (count, result) = (group.count, group.error.map_or(Ok(()), Err));
        if count > 1 {
            return self.group_outcome(at, count, result);
        }
        send_outcome(result, self.receives[at].length)
    }

    #[inline(never)]
    fn group_outcome(&self, at: usize, count: u8, result: Result<(), RequestError>) -> Outcome {
        let mut lengths = [0; GROUP_MAX];
        for (length, receive) in lengths.iter_mut().zip(self.receives_of(at, count)) {
            *length = receive.length;
        }
        Outcome { result, count, lengths }
    }

    /// Where the send record, and the group record, of that number stand.
    #[inline]
    fn record_at(&self, connection: ConnectionIndex, record: u8) -> Result<usize, RequestIdError> {
        let known = connection.0 < self.limits.connections_max
            && u32::from(record) < self.limits.requests_max;
        if known {
            Ok(self.send_at(connection.as_usize(), record))
        } else {
            Err(RequestIdError::Stale)
        }
    }
}

#[inline]
const fn send_outcome(result: Result<(), RequestError>, length: u64) -> Outcome {
    Outcome { result, count: 1, lengths: [length, 0, 0, 0, 0, 0, 0, 0] }
}
