//! Which of a connection's records hold a send, and in what order queued ones leave.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Outgoing};
use super::limits::{CREDITS, REQUESTS_MAX};
use super::rail::{Lane, LaneMeter};
use super::records::{GroupRecord, HeldMessage, NIL, ReceiveRecord, SendRecord, SendState};
use super::request::{RequestId, RequestKind};
use crate::base::ids::ConnectionIndex;
use crate::fabric::Provider;

/// Queued sends, through the `next` fields of their records: with as many of them as a number can
/// say, none is left for "no more", so that the last is known by being the tail.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct SendQueue {
    pub head: Option<u8>,
    /// Means nothing where there is no head.
    pub tail: u8,
}

impl SendQueue {
    /// Nothing in it.
    pub const EMPTY: SendQueue = SendQueue { head: None, tail: 0 };

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.head.is_none()
    }
}

/// Words that one connection's numbers of records take.
pub const fn record_words(records: u32) -> usize {
    records.div_ceil(u64::BITS) as usize
}

/// Adds to `used` the lowest number below `records` that is missing; `None`: there is none.
#[inline]
pub fn record_take(used: &mut [u64], records: u32) -> Option<u8> {
    let at = used.iter().position(|word| *word != u64::MAX)?;
    let bit = used[at].trailing_ones();
    let record = at as u32 * u64::BITS + bit;
    if record >= records {
        return None;
    }
    used[at] |= 1 << bit;
    Some(record as u8)
}

/// Takes a number out of `used`.
#[inline]
pub const fn record_leave(used: &mut [u64], record: u8) {
    used[record as usize / 64] &= !(1 << (record % 64));
}

/// Numbers of records, as they were when they were copied, in order.
#[derive(Copy, Clone, Debug)]
pub struct RecordsUsed([u64; record_words(REQUESTS_MAX)]);

impl RecordsUsed {
    /// Those in `used`.
    #[inline]
    pub fn of(used: &[u64]) -> RecordsUsed {
        let mut words = [0; record_words(REQUESTS_MAX)];
        words[..used.len()].copy_from_slice(used);
        RecordsUsed(words)
    }
}

impl Iterator for RecordsUsed {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let at = self.0.iter().position(|word| *word != 0)?;
        let bit = self.0[at].trailing_zeros();
        self.0[at] &= self.0[at] - 1;
        Some((at as u32 * u64::BITS + bit) as u8)
    }
}

impl<P: Provider> Endpoint<'_, P> {
    /// Whether a record is free for a send.
    pub(super) fn has_record(&self, index: usize) -> bool {
        self.sends_used(index).count() < self.limits.requests_max as usize
    }

    /// Where a receive of the group stands whose record is at `at`: the first receives of all
    /// groups, which mostly are the only ones, lie together.
    #[inline]
    pub(super) fn receive_at(&self, at: usize, receive: u8) -> usize {
        at + usize::from(receive) * self.groups.len()
    }

    /// The first `count` receives of that group.
    pub(super) fn receives_of(
        &self,
        at: usize,
        count: u8,
    ) -> impl Iterator<Item = &ReceiveRecord> + '_ {
        (0..count).map(move |receive| &self.receives[self.receive_at(at, receive)])
    }

    /// Makes every record of a connection free; requests of its earlier use are stale from now on.
    pub(super) fn records_clear(&mut self, index: usize) {
        for record in self.sends_used(index) {
            let at = self.send_at(index, record);
            let generation = self.sends[at].generation.wrapping_add(1);
            self.sends[at] = SendRecord { generation, ..SendRecord::FREE };
        }
        self.sends_used_mut(index).fill(0);
        let first = self.send_at(index, 0);
        for group in &mut self.groups[first..][..self.limits.requests_max as usize] {
            // one that was never used stays untouched
            if group.generation != 0 {
                *group = GroupRecord { generation: group.generation, ..GroupRecord::FREE };
            }
        }
        for record in 0..CREDITS as u8 {
            let next = if u32::from(record) + 1 < CREDITS { record + 1 } else { NIL };
            let at = self.held_at(index, record);
            self.held[at] = HeldMessage { next, ..HeldMessage::FREE };
        }
        let (first, end) = (index << self.lane_bits, (index + 1) << self.lane_bits);
        self.lanes[first..end].fill(Lane::DOWN);
        if let Some(meters) = self.meters.get_mut(first..end) {
            meters.fill(LaneMeter::NONE);
        }
    }

    /// A record for a send, and the request that names it.
    pub(super) fn send_take(
        &mut self,
        index: usize,
        region: u16,
        message: &Outgoing,
    ) -> Option<(u8, RequestId)> {
        let records = self.limits.requests_max;
        let record = record_take(self.sends_used_mut(index), records)?;
        let at = self.send_at(index, record);
        let generation = self.sends[at].generation;
        self.sends[at] = SendRecord {
            address: message.address,
            length: message.length,
            tag: message.tag,
            region,
            generation,
            state: SendState::Queued,
            ..SendRecord::FREE
        };
        self.carried_clear(at);
        self.regions.pin(region);
        let (connection, generation) = (ConnectionIndex(index as u32), self.salted(generation));
        let request = RequestId::pack(RequestKind::Send { connection, record, generation });
        Some((record, request))
    }
}
