//! The stripes of long messages on a rail that pushes.
#![forbid(unsafe_code)]

use super::eager::{OP_STRIPE, op_id};
use super::endpoint::{Endpoint, MESSAGE_BYTES_MAX};
use super::rail::{DataRail, DataSpan};
use super::records::{NEVER, NIL, SendRecord, SendState};
use super::schedule::{self, Cut};
use crate::base::ids::ConnectionIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{Posted, Provider, RailKey, RemoteSpan};
use crate::wire::immediate;

/// Shortest stripe where one stream carries all of them.
const STRIPE_BYTES_ONE_STREAM: Bytes = Bytes::mib(1);

impl<P: Provider> Endpoint<'_, P> {
    /// The cut of a message that was accepted: once, whatever becomes of the lanes.
    pub(super) fn cut(&self, index: usize, length: u64) -> Cut {
        let lanes = u32::from(self.connections[index].rails.count);
        let min = match self.rail.is_single_stream(self.lane_peer_of(index, 0)) {
            // parts only let short messages pass between them
            true => self.config.stripe_bytes_min.max(STRIPE_BYTES_ONE_STREAM),
            false => self.config.stripe_bytes_min,
        };
        let min = schedule::stripe_min(length, lanes, min);
        let every = self.caps.transfer_max;
        let first = match length > schedule::length_max(every) {
            true => self.rail.transfer_max(self.lane_peer_of(index, 0)),
            false => every,
        };
        schedule::cut(length, min, every, first).expect("what is too long was refused")
    }

    /// Longest message that a connection takes: what its first lane carries, in stripes or, where
    /// the peer pulls, in one op. The others may carry less in one op: what is too long for them,
    /// they leave to those that can.
    #[cold]
    pub(super) fn length_max(&self, index: usize) -> u64 {
        let first = self.rail.transfer_max(self.lane_peer_of(index, 0));
        let most = match self.connections[index].pull {
            true => first.0,
            false => schedule::length_max(first),
        };
        most.min(MESSAGE_BYTES_MAX)
    }

    /// The same of a connection that is open; `None`: it is not.
    pub fn message_bytes_max(&self, connection: ConnectionIndex) -> Option<Bytes> {
        let index = connection.as_usize();
        self.is_open(connection).then(|| Bytes(self.length_max(index)))
    }

    /// A bit for each lane of a connection that carries so many bytes in one op.
    #[cold]
    pub(super) fn lanes_carrying(&self, index: usize, bytes: u64) -> u8 {
        let carries =
            |lane: &u8| self.rail.transfer_max(self.lane_peer_of(index, *lane)).0 >= bytes;
        let lanes = 0..self.connections[index].rails.count;
        lanes.filter(carries).fold(0, |all, lane| all | 1 << lane)
    }

    /// The same, without a look where each does.
    #[inline]
    pub(super) fn lanes_long(&self, index: usize, bytes: u64) -> u8 {
        if bytes > self.caps.transfer_max.0 { self.lanes_carrying(index, bytes) } else { u8::MAX }
    }

    /// Writes the stripes that are due; says whether some remain.
    pub(super) fn stripes_step(&mut self, index: usize) -> bool {
        if self.connections[index].send.waiting == 0 {
            return false;
        }
        let mut remain = false;
        for record in self.sends_used(index) {
            match self.sends[self.send_at(index, record)].state {
                SendState::Writing => remain |= !self.stripes_write(index, record),
                SendState::Leaving => remain |= !self.leaving_end(index, record),
                SendState::Free | SendState::Queued | SendState::Waiting | SendState::Done => {}
            }
        }
        remain
    }

    /// Writes the stripes of one message; `false` when some could not be posted.
    fn stripes_write(&mut self, index: usize, record: u8) -> bool {
        let at = self.send_at(index, record);
        let send = self.sends[at];
        let cut = Cut { count: u32::from(send.stripes), stripe_bytes: send.stripe_bytes };
        let mut missing = cut.all() & !send.posted;
        let lanes = self.lanes_knowing(index, &send);
        while missing != 0 {
            let stripe = missing.trailing_zeros();
            missing &= missing - 1;
            let (offset, length) = cut.stripe(stripe, send.length);
            if !self.may_consume(index, 0) {
                return false;
            }
            let Some(lane) = self.lane_pick(index, length, lanes) else {
                // goes on when one of its stripes has ended, or a lane is back that has keys
                if P::SEVERAL_LANES && self.is_unknown(index, &send) {
                    self.strand(index);
                }
                return false;
            };
            let (rail, target) = self.stripe_ends(index, &send, lane);
            let span = self.regions.span(send.region, send.address + offset, length, rail);
            let word = immediate::encode(send.token, stripe);
            let write = rail.write(span, target.plus(offset), word);
            let id = op_id(OP_STRIPE, record, stripe as u8);
            let Ok(posted) = self.post_on(index, lane, id, write) else {
                return false;
            };
            self.stripe_left(index, at, (lane, stripe), length, posted);
        }
        self.sends[at].state = SendState::Waiting;
        self.send_settle(index, record);
        true
    }

    /// A bit for each lane whose rail knows the memory of both ends. All that go by the first
    /// rail's keys do.
    fn lanes_knowing(&self, index: usize, send: &SendRecord) -> u8 {
        if send.next == NIL || !self.fails_over(index) {
            return u8::MAX;
        }
        let knows = |lane: &u8| match self.lane(index, *lane).key {
            0 => true,
            key => {
                self.cell_key(index, send.next, *lane) != 0
                    && self.regions.key(send.region, DataRail(key)) != 0
            }
        };
        let lanes = 0..self.connections[index].rails.count;
        lanes.filter(knows).fold(0, |all, lane| all | 1 << lane)
    }

    /// No lane is in use, or none that carries a message: one is waited for, for so long.
    #[cold]
    pub(super) fn strand(&mut self, index: usize) {
        let c = &mut self.connections[index];
        if c.rails.stranded_at == NEVER {
            c.rails.stranded_at = Instant(0);
            self.troubled.insert(index);
        }
    }

    /// Whether a message waits for a lane that knows its memory, and none of these is in use.
    #[cold]
    pub(super) fn has_unknown(&self, index: usize) -> bool {
        self.sends_used(index).any(|record| {
            let send = &self.sends[self.send_at(index, record)];
            send.state == SendState::Writing && self.is_unknown(index, send)
        })
    }

    /// Whether no lane in use carries the stripes of a message.
    fn is_unknown(&self, index: usize, send: &SendRecord) -> bool {
        let lanes = self.lanes_knowing(index, send) & self.lanes_long(index, send.stripe_bytes);
        lanes & self.connections[index].rails.up == 0
    }

    /// By which keys a stripe goes on a lane that knows its memory.
    #[inline]
    fn stripe_ends(&self, index: usize, send: &SendRecord, lane: u8) -> (DataRail, DataSpan) {
        let key = match self.fails_over(index) {
            true => self.lane(index, lane).key,
            false => 0,
        };
        if key == 0 || send.next == NIL {
            return (DataRail(0), send.target);
        }
        let theirs = RailKey(self.cell_key(index, send.next, lane));
        let target = RemoteSpan { key: theirs, address: send.target.0.address };
        (DataRail(key), DataSpan(target))
    }

    /// Accounts for a stripe that was posted.
    #[inline]
    fn stripe_left(
        &mut self,
        index: usize,
        at: usize,
        (lane, stripe): (u8, u32),
        bytes: u64,
        posted: Posted,
    ) {
        let now = self.now;
        let c = &mut self.connections[index];
        c.control.credits.consumed = c.control.credits.consumed.next();
        let number = c.control.credits.consumed.0;
        let several = P::SEVERAL_LANES && c.rails.fails_over();
        c.rails.turn = if lane + 1 < c.rails.count { lane + 1 } else { 0 };
        self.sends[at].posted |= 1 << stripe;
        if posted == Posted::Done {
            self.sends[at].written |= 1 << stripe;
        }
        if several {
            self.carried_mut(at)[usize::from(lane)] |= 1 << stripe;
            let meter = self.meter_mut(index, lane);
            meter.load.number = number;
            meter.load.posted(bytes, now);
            if posted == Posted::Done {
                meter.completed(bytes, true, now);
            }
            meter.stats.bytes += bytes;
            meter.stats.stripes += 1;
        }
    }
}
