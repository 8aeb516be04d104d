//! Which of a connection's records hold a send, and in what order queued ones leave.
#![forbid(unsafe_code)]

use super::endpoint::{Endpoint, Outgoing};
use super::limits::REQUESTS_MAX;
use super::records::{SendRecord, SendState};
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
        let connection = ConnectionIndex(index as u32);
        let request = RequestId::pack(RequestKind::Send { connection, record, generation });
        Some((record, request))
    }
}
