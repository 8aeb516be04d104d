//! The straight path of short messages: one look at each record, one call of the rail.
//!
//! Both halves first ask whether the message is the common one; everything else is left to the
//! general way in [`super::eager`], with nothing changed.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Outgoing};
use super::rail::DataRail;
use super::records::{ConnectionState, NIL};
use super::request::RequestError;
use crate::base::ids::PeerIndex;
use crate::base::seq::Seq;
use crate::fabric::{Provider, RecvSlot};
use crate::wire::head::{KIND_EAGER, SendHead};

impl<P: Provider> Endpoint<'_, P> {
    /// Sends the common message: short, with a credit at hand, on a rail that pulls and sends it
    /// within the call. `false`: it is another, and nothing was changed.
    #[inline(always)]
    pub(super) fn eager_straight(&mut self, index: usize, region: u16, message: &Outgoing) -> bool {
        let c = &mut self.connections[index];
        let copied = message.length <= self.config.eager_mapped_bytes_max.0
            || !self.regions.is_mapped(region);
        let common = c.pull
            && c.send.queue.is_empty()
            && c.control.credits.may_consume(0)
            && c.send.is_short(message.length)
            && copied;
        if !common {
            return false;
        }
        let span = self.regions.span(region, message.address, message.length, DataRail(0));
        let head = c.head(KIND_EAGER, message.tag, 0).encode();
        if !self.rail.send_now(c.rails.control_lane.peer, &head, span) {
            return false;
        }
        c.head_left(false);
        self.stats.eager += 1;
        true
    }

    /// Delivers the common message: short, in turn, and for the one receive of the oldest group.
    /// `false`: it is another, and nothing was changed.
    ///
    /// Every record is looked up once; whatever needs the whole endpoint comes last.
    #[inline(always)]
    pub(super) fn eager_expected(
        &mut self,
        index: usize,
        peer: PeerIndex,
        slot: RecvSlot,
        head: &SendHead,
        length: u32,
    ) -> bool {
        let length = u64::from(length);
        let at = self.group_at(index, self.connections[index].recv.oldest);
        let c = &mut self.connections[index];
        let (group, receive) = (&mut self.groups[at], &mut self.receives[at]);
        let common = head.kind == KIND_EAGER
            && head.stripes == 0
            && c.state == ConnectionState::Open
            && head.eager_number == c.recv.expected.0
            && c.recv.oldest != c.recv.post
            && c.has_groups(Seq(head.group_base))
            && c.recv.has_no_detours()
            && group.count == 1
            && group.bound == 0
            && receive.label as i32 == head.tag
            && length <= receive.length;
        if !common {
            return false;
        }
        let delivered = Seq(head.delivered_through);
        let delivers = c.acks_raise(Seq(head.credits_through), delivered);
        c.recv.offers.passed_take(Seq(head.group_base));
        c.recv.expected = c.recv.expected.next();
        c.recv.oldest = c.recv.oldest.next();
        let more = c.recv.oldest != c.recv.post;
        (group.bound, group.done) = (1, 1);
        receive.length = length;
        receive.label = head.eager_number;
        let owes = P::SEVERAL_LANES && c.took(length as u32);
        if receive.cell != NIL {
            c.recv.cells.drop_user(receive);
        }
        if c.control.credits.free() || owes {
            self.work.insert(index);
        }
        self.stats.receives += 1;
        self.stats.receive_bytes += length;
        let region = receive.region;
        if length != 0 {
            let span = self.regions.span(region, receive.address, length, DataRail(0));
            self.rail.received_take(peer, slot, span);
        } else {
            self.rail.received_release(peer, slot);
        }
        self.regions.unpin(region);
        if delivers {
            self.deliveries_apply(index, delivered, 0);
        }
        if more {
            self.oldest_advance(index); // over groups that were withdrawn
        }
        if P::SEVERAL_LANES && head.filled != 0 && !self.filled_heard(index, head) {
            self.connection_fail(index, RequestError::Protocol);
        }
        true
    }
}
