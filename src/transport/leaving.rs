//! When sends leave. A short one that nothing is on the way before leaves with its call; others
//! leave with what follows. Of long ones the rail may keep a part: their requests end when it has
//! left, since their user may make no call after that.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Outgoing};
use super::filled::filled_said;
use super::limits::EARLY_MAX;
use super::mr::NO_REGION;
use super::push::Offer;
use super::rail::DataRail;
use super::records::{ConnectionState, SendState};
use super::request::{RequestId, SubmitError};
use crate::base::units::Bytes;
use crate::fabric::Provider;
use crate::wire::head::{KIND_EAGER, SendHead};

/// A message of this length at most leaves with its call when none of its connection is on the way:
/// somebody waits for it, and nothing is there that could leave with it in one call of the system.
const ALONE_MAX: Bytes = Bytes::kib(4);

/// Messages whose receives were not seen beyond which the next one looks for them.
const EARLY_ALONE_MAX: u32 = EARLY_MAX * 3 / 4;

impl<P: Provider> Endpoint<'_, P> {
    /// Accepts a message that [`Endpoint::eager_straight`] left alone.
    #[inline(never)]
    pub(super) fn isend_other(
        &mut self,
        index: usize,
        region: u16,
        message: Outgoing,
    ) -> Result<RequestId, SubmitError> {
        // a core of one rail has no room for it, and hands over with its next poll
        let is_alone = P::SEVERAL_LANES
            && self.connections[index].control.credits.is_all_taken()
            && message.length <= ALONE_MAX.0;
        if is_alone {
            self.turn_now(index); // a receive that was posted since needs nothing most of the time
        }
        let request = if is_alone && self.eager_alone(index, region, &message) {
            self.complete(message.length)
        } else if let Some(request) = self.eager_at_once(index, region, &message) {
            if is_alone {
                self.leave_now(index);
            }
            request
        } else {
            self.send_queue(index, region, &message)?
        };
        self.stats.sends += 1;
        self.stats.send_bytes += message.length;
        Ok(request)
    }

    /// Sends a message that nothing of its connection is on the way before, and that nothing is due
    /// beside: it has left before it is accounted for, since somebody waits for it. For the peer's
    /// slots nobody looks, as if they came a little later. `false`: it is another, and nothing was
    /// changed.
    #[inline(always)]
    fn eager_alone(&mut self, index: usize, region: u16, message: &Outgoing) -> bool {
        let c = &self.connections[index];
        let is_common = !c.pull
            && c.send.queue.is_empty()
            && c.send.cursor.count == 0
            && u32::from(c.send.cursor.early) < EARLY_ALONE_MAX
            && !c.is_taken_worth()
            && c.send.is_short(message.length)
            && message.length <= self.caps.send_payload_max.0
            && !self.offers_are_near(index)
            && !self.work.contains(index);
        if !is_common {
            return false;
        }
        let Ok(kept_at) = self.stream_room(index, KIND_EAGER, message.length) else {
            return false;
        };
        let span = self.regions.span(region, message.address, message.length, DataRail(0));
        let filled = self.filled_through(index);
        let head = self.connections[index].head(KIND_EAGER, message.tag, 0);
        let fields = SendHead { filled: filled.map_or(0, filled_said), ..head };
        if self.stream_hand(index, &fields, span).is_err() {
            return false;
        }
        self.rail.flush(ALONE_MAX);
        self.stream_left(index, &fields, kept_at, span);
        if let Some(through) = filled {
            self.filled_told(index, through);
        }
        self.eager_account(index, message.tag, Offer::NotYet);
        self.stats.eager += 1;
        true
    }

    /// Hands over a message that nothing of its connection is on the way before, with what else is
    /// due there. Where slots would be due with one more receive, the message waits for it: they
    /// would cost a call of the system of their own.
    fn leave_now(&mut self, index: usize) {
        if self.offers_are_near(index) {
            return;
        }
        self.turn_now(index);
        self.rail.flush(ALONE_MAX);
    }

    /// Posts what is due on one connection.
    #[inline(always)]
    fn turn_now(&mut self, index: usize) {
        if self.work.contains(index) {
            self.work.remove(index);
            if self.connection_work(index) {
                self.work.insert(index);
            }
        }
    }

    /// How far the peer's bytes must leave until a message has left that was just posted; `None`:
    /// it has. A short one leaves with the test of its request.
    #[inline(always)]
    pub(super) fn kept_through(&self, index: usize, length: u64) -> Option<u64> {
        if length <= self.caps.send_payload_max.0 {
            return None;
        }
        let sent = self.rail.sent_through(self.connections[index].rails.control_lane.peer);
        (sent.left < sent.posted).then_some(sent.posted)
    }

    #[inline(never)]
    pub(super) fn leaving_begin(&mut self, index: usize, record: u8, through: u64) {
        let at = self.send_at(index, record);
        let send = &mut self.sends[at];
        (send.state, send.address) = (SendState::Leaving, through);
        (send.stripes, send.posted) = (1, 1);
        // the rail has copied what it keeps
        let region = core::mem::replace(&mut send.region, NO_REGION);
        self.regions.unpin(region);
        self.connections[index].send.waiting += 1;
        self.work.insert(index);
    }

    /// Before its user sleeps, and after the rail has handed over what it could: ends the long
    /// sends that have left by that. Whether there are some: nothing else would tell.
    pub fn has_left(&mut self) -> bool {
        let before = self.news;
        let mut from = 0;
        while let Some(index) = self.work.next_from(from) {
            from = index + 1;
            if self.connections[index].state != ConnectionState::Open {
                continue;
            }
            for record in self.sends_used(index) {
                if self.sends[self.send_at(index, record)].state == SendState::Leaving {
                    self.leaving_end(index, record);
                }
            }
        }
        self.news != before
    }

    /// Ends a long send whose last bytes have left; whether they have.
    pub(super) fn leaving_end(&mut self, index: usize, record: u8) -> bool {
        let through = self.sends[self.send_at(index, record)].address;
        if self.rail.sent_through(self.connections[index].rails.control_lane.peer).left < through {
            return false;
        }
        self.connections[index].send.waiting -= 1;
        self.send_end(index, record, None);
        true
    }
}
