//! Our writes and adds: how they go into the ring, and how they end.
//!
//! A write from memory goes out in parts. Each part says how much is still to come, so the target
//! checks the whole range before it stores the first byte. The write ends when the target has
//! counted it as executed or refused.
//!
//! A write of a line is copied and done at post. Its key was looked up on the peer's board. If the
//! region is deregistered on the way, the connection is taken down: the writer has no op left that
//! could fail.

use super::copiers::{Copiers, Job, PART_BYTES_MIN};
use super::layout::{ACKED_AT, REFUSED_AT};
use super::ops::{Kind as OpKind, List, Outcome, Work};
use super::record::{FLAG_ACK, FLAG_IMMEDIATE, Header, Kind, LINE};
use super::ring::Corrupt;
use super::sides::{Prefix, Sides};
use crate::fabric::{LINE_BYTES, Line, PostError, RemoteSpan};

/// Acknowledged ops that may be outstanding: one bit each in the word of refusals.
pub(super) const ACKS_MAX: u32 = 64;

/// Puts a line into the write ring; its key was looked up.
#[inline]
pub(super) fn write_line(
    sides: &mut Sides,
    line: &Line,
    target: RemoteSpan,
    immediate: Option<u32>,
) -> Result<(), PostError> {
    let (key, address, word) = (target.key.0, target.address, immediate.unwrap_or(0));
    let prefix = Prefix { key, address, amount: LINE_BYTES as u64, word, zero: 0 };
    let flags = if immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
    let header = Header::new(Kind::Write, flags, LINE_BYTES as u32);
    // SAFETY: a line is so long.
    if !unsafe { sides.put(header, prefix, line.as_ptr()) } {
        return Err(PostError::Again);
    }
    sides.bell().ring();
    Ok(())
}

/// Writes and adds that have not ended. Zeroed: none.
#[derive(Debug)]
pub(super) struct Pushes {
    /// Not wholly in the ring yet.
    pub(super) queued: List,
    /// In the ring, not acknowledged yet.
    acks: List,
    acks_posted: u32,
    acks_seen: u32,
}

impl Pushes {
    /// Whether there is none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.queued.is_empty()
    }

    /// Whether a poll would find something to do.
    pub(super) fn must_move(&self, sides: &Sides) -> bool {
        let acked = sides.theirs.load_u32(ACKED_AT);
        !self.queued.is_empty() || (!self.acks.is_empty() && acked != self.acks_seen)
    }

    /// Puts as much of the queued ones into the ring as room, budget and outstanding
    /// acknowledgements allow.
    pub(super) fn push(&mut self, sides: &mut Sides, work: &mut Work) -> bool {
        let mut pushed = false;
        while let Some(index) = self.queued.first() {
            let may_await_ack = self.acks_posted.wrapping_sub(self.acks_seen) < ACKS_MAX;
            if work.budget == 0 || !may_await_ack || !self.push_part(sides, work, index) {
                break;
            }
            pushed = true;
        }
        if pushed {
            sides.bell().ring();
        }
        pushed
    }

    /// One record of the oldest queued op.
    fn push_part(&mut self, sides: &mut Sides, work: &mut Work, index: u32) -> bool {
        let entry = work.ops.get(index);
        let add = entry.kind == OpKind::Add;
        let left = entry.local.length().0 - entry.progress;
        let aside = if add { None } else { aside_for(sides, work.copiers.as_deref(), left) };
        let most = aside.map_or(sides.chunk_bytes, |(_, most)| most);
        let part = if add { 0 } else { left.min(u64::from(most)) };
        let prefix = Prefix {
            key: entry.key,
            address: entry.address.wrapping_add(entry.progress),
            amount: if add { entry.value } else { left },
            word: entry.immediate,
            zero: 0,
        };
        let from = entry.local.address() + entry.progress;
        let last = part == left;
        let immediate = if entry.has_immediate && last { FLAG_IMMEDIATE } else { 0 };
        let flags = immediate | if last { FLAG_ACK } else { 0 };
        let (kind, length) = (if add { Kind::Add } else { Kind::Write }, part as u32);
        let header = Header::new(kind, flags, length);
        if let (Some((copier, _)), Some(copiers)) = (aside, work.copiers.as_deref_mut()) {
            let Some((body, place)) = sides.put_prefix(header, prefix) else { return false };
            let (word, bell) = (header.0, sides.bell());
            let job = Job::In { from, body, length, header: place, word, bell };
            copiers.give(copier, sides.peer, Some(self.acks_posted), job);
            entry.progress += part;
            work.charge(0);
        } else {
            // SAFETY: the bytes lie in the op's source; that stays readable until the op ends
            // (`LocalSpan::new`).
            if !unsafe { sides.put(header, prefix, from as *const u8) } {
                return false;
            }
            entry.progress += part;
            work.charge(part);
        }
        if last {
            work.ops.take_first(&mut self.queued);
            work.ops.append(&mut self.acks, index);
            self.acks_posted = self.acks_posted.wrapping_add(1);
        }
        true
    }

    /// Ends what the peer has counted as carried out or refused, but nothing that a thread still
    /// reads, whatever the peer says.
    pub(super) fn take_acks(&mut self, sides: &Sides, work: &mut Work) -> Result<bool, Corrupt> {
        if self.acks.is_empty() {
            return Ok(false);
        }
        // acquire: pairs with [acked]
        let acked = sides.theirs.acquire_u32(ACKED_AT);
        let news = acked.wrapping_sub(self.acks_seen);
        if news > self.acks_posted.wrapping_sub(self.acks_seen) {
            return Err(Corrupt);
        }
        let refused = if news == 0 { 0 } else { sides.theirs.load_u64(REFUSED_AT) };
        let before = self.acks_seen;
        while self.acks_seen != acked && !work.is_read(sides.peer, self.acks_seen) {
            let index = work.ops.take_first(&mut self.acks).ok_or(Corrupt)?;
            let bit = refused >> (self.acks_seen % ACKS_MAX) & 1;
            work.finish(index, if bit == 1 { Outcome::Key } else { Outcome::Success }, 0);
            self.acks_seen = self.acks_seen.wrapping_add(1);
        }
        Ok(self.acks_seen != before)
    }

    /// Ends all of them.
    pub(super) fn cancel(&mut self, work: &mut Work, outcome: Outcome) {
        work.finish_all(&mut self.acks, outcome);
        work.finish_all(&mut self.queued, outcome);
    }
}

/// Who copies the next part of a write of which so much is left, and how much of it at most;
/// `None`: we do.
fn aside_for(sides: &Sides, copiers: Option<&Copiers>, left: u64) -> Option<(usize, u32)> {
    let copiers = copiers?;
    let room = (sides.ring.lines_max() - 1) * LINE as u32;
    let most = copiers.part_bytes(left).min(room);
    let is_long = left.min(u64::from(most)) >= u64::from(PART_BYTES_MIN);
    is_long.then(|| copiers.choose())?.map(|copier| (copier, most))
}
