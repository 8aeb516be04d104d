//! Which of a connection's records hold a send, and in what order queued ones leave.

use crate::transport::limits::REQUESTS_MAX;
use core::hash::Hash;

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
