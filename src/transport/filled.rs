//! The heads of answers say which groups short messages have filled. This saves a slot for each: a
//! line, which is a packet. Where messages come one at a time, it also saves a system call or a
//! doorbell.
//!
//! [`SendHead::filled`] names a group. All groups before it are filled by the peer's messages, one
//! each. They come after those that the peer has said that it is past. The receiver says it only
//! if:
//!
//! - no such group ever had a slot by which the peer could have passed it;
//! - the peer was told of all earlier messages;
//! - none of these messages is left over, or in a group that is not full.
//!
//! So the oldest of the messages that the peer has sent early fill these groups.
#![forbid(unsafe_code)]

use super::connection::READS_FILLED;
use super::endpoint::Endpoint;
use super::limits::EARLY_MAX;
use crate::base::seq::Seq;
use crate::fabric::Provider;
use crate::wire::head::{FILLED_MASK, FILLED_SAID, SendHead};

impl<P: Provider> Endpoint<'_, P> {
    /// The group below which the next head says that all are filled; `None`: it says nothing.
    #[inline(always)]
    pub(super) fn filled_through(&self, index: usize) -> Option<Seq> {
        let c = &self.connections[index];
        let count = c.recv.oldest.ahead_of(c.recv.offers.next);
        if c.control.lines.reads & READS_FILLED == 0
            || !(1..=EARLY_MAX as i32).contains(&count)
            || !c.recv.is_past_slots()
        {
            return None;
        }
        let (mut number, mut message) =
            (c.recv.offers.next, Seq(c.recv.expected.0.wrapping_sub(count as u32)));
        while number != c.recv.oldest {
            let at = self.group_at(index, number);
            let group = &self.groups[at];
            let is_alone = group.number == number && group.count == 1 && group.bound == 1;
            if !is_alone || self.receives[at].label != message.0 {
                return None;
            }
            (number, message) = (number.next(), message.next());
        }
        // one that fills a part of the next group may be older than all of these
        let is_whole =
            number == c.recv.post || self.groups[self.group_at(index, number)].bound == 0;
        is_whole.then_some(number)
    }

    /// A head has left that says so: no slot need, nor a state line that their messages were taken
    /// in.
    #[inline(always)]
    pub(super) fn filled_told(&mut self, index: usize, through: Seq) {
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

    /// Takes in what a head says. `false`: it cannot be.
    #[inline(always)]
    pub(super) fn filled_heard(&mut self, index: usize, head: &SendHead) -> bool {
        let c = &mut self.connections[index];
        // numbers of 15 bits, of a window of some hundred
        let ahead = (head.filled.wrapping_sub(c.send.cursor.group.0 as u16) & FILLED_MASK) << 1;
        let ahead = i32::from(ahead as i16 >> 1);
        if head.filled & FILLED_SAID == 0 || ahead <= 0 {
            return true; // a slot has said so before
        }
        let count = ahead as usize;
        if c.pull || c.send.cursor.count != 0 || count > usize::from(c.send.cursor.early) {
            return false;
        }
        let first = index * EARLY_MAX as usize;
        let early = &mut self.early[first..first + usize::from(c.send.cursor.early)];
        c.send.stream.taken_take(early[count - 1].number.next());
        early.copy_within(count.., 0);
        c.send.cursor.early -= count as u8;
        for _ in 0..count {
            self.group_pass(index);
        }
        true
    }
}

/// What a head says of it.
pub(super) const fn filled_said(through: Seq) -> u16 {
    FILLED_SAID | through.0 as u16 & FILLED_MASK
}
