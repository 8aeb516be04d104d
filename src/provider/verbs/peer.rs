//! One peer: its queue pair, what was posted to it, and how it ends.

use super::area::{RECEIVES, STAGING_BYTES};
use super::report::ErrorReport;
use super::sys::abi::Gid;
use super::sys::{MemoryRegion, QueuePair};
use crate::base::units::Instant;
use crate::fabric::{DownCause, OpError, OpErrorKind, OpId};
use crate::provider::ops::List;
use core::mem::ManuallyDrop;

/// Sends of one peer that the device may have: a power of two.
pub const SENDS: u32 = 128;
/// Parts of a write at most.
pub const PARTS_MAX: usize = 4;
/// Sends that go out with one doorbell.
pub const CHAIN: usize = 16;
/// Sends after which one is signalled, so that the queue never fills with what nobody hears of.
const QUIET_MAX: u32 = SENDS / 4;
/// Staged bytes after which one is, likewise.
const QUIET_STAGED_MAX: u32 = STAGING_BYTES / 4;
/// Bytes of ops that wait for their completion after which one is, so that a long write does not
/// wait for the whole chain.
const WAITING_BYTES_MAX: u64 = 64 << 10;

const _: () = assert!(SENDS.is_power_of_two() && CHAIN as u32 <= QUIET_MAX);
const _: () = assert!(RECEIVES == u64::BITS as usize);

/// How far a peer's queue pair has come.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum State {
    /// There is none.
    Closed,
    /// It has receives, and does not know the other end.
    Prepared,
    /// It works.
    Live,
    /// It moves nothing any more; what it had is coming back.
    Draining,
    /// All of that has come back: it touches nothing.
    Drained,
}

/// Whether the end of a peer was reported.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Down {
    /// It has not ended.
    No,
    /// It has, and nobody was told.
    Due(DownCause),
    /// It was reported.
    Told,
}

/// How an op ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Outcome {
    /// Not yet.
    Open,
    /// Well, and whoever posted it was told at once.
    Quiet,
    /// As is to be reported.
    Loud(Result<(), OpError>),
}

/// One place of the send queue. An op of several parts has a place for each, with the pin of its
/// region, and is what the last of them says.
#[derive(Copy, Clone, Debug)]
pub struct Sent {
    pub id: OpId,
    /// The region of ours that it holds a pin of, plus one; 0: none.
    pub pin: u32,
    /// Bytes of staging that are free when it has ended.
    pub staged: u32,
    /// Whether its end is reported: otherwise it was, with the post.
    pub is_loud: bool,
    /// Whether it is the data of an op whose word is the next: its error is that one's.
    pub is_first: bool,
    pub outcome: Outcome,
}

impl Sent {
    pub const FREE: Sent = Sent {
        id: OpId(0),
        pin: 0,
        staged: 0,
        is_loud: false,
        is_first: false,
        outcome: Outcome::Open,
    };
}

/// The record of one peer.
#[derive(Debug)]
pub struct Peer {
    pub state: State,
    pub down: Down,
    /// Whether a fence was posted: nothing is received any more.
    pub is_fenced: bool,
    /// Whether it stands in the list of those with something to send.
    pub is_dirty: bool,
    /// Whether the end of its sends, and of its receives, has come back.
    pub drained_sends: bool,
    pub drained_receives: bool,
    /// Whether the device has said that it stopped the queue pair.
    pub is_stopped: bool,
    /// Whether the queue pair did not take a marker, so that none of that will.
    pub is_unmarked: bool,
    /// Whether `drains_since` is set.
    pub is_timed: bool,
    /// Which use of this number: completions of an earlier one are dropped. 14 bits.
    pub generation: u16,
    pub drains_since: Instant,
    pub qp: ManuallyDrop<Option<QueuePair>>,
    pub mr: ManuallyDrop<Option<MemoryRegion>>,
    pub lkey: u32,
    /// Bytes that a post may copy.
    pub inline_max: u32,
    /// Most parts of a write.
    pub parts_max: u8,
    /// `IBV_MTU_…` that it was told of our port.
    pub mtu_code: u8,
    /// That of the peer's port; 0: not joined.
    pub mtu_code_theirs: u8,
    /// Whether it was told of our extensions.
    pub offered: bool,
    /// Longest payload of a send to it.
    pub payload_bytes_max: u32,
    /// Its GID.
    pub gid: Gid,
    /// The first packet that we send to it.
    pub first_packet: u32,
    /// Position behind the last op that was accepted.
    pub next: u32,
    /// Requests that wait for the doorbell, and whether some have more parts than one.
    pub chained: u32,
    pub has_parts: bool,
    /// All before have ended.
    pub ended: u32,
    /// All before were reported.
    pub reported: u32,
    /// What had ended at the last look, and looks since at which no more had.
    pub looked_at: u32,
    pub looks: u8,
    /// Whether its device has been heard since that was asked.
    pub heard: bool,
    /// Sends since the last one that is signalled, their staged bytes, and bytes of those that
    /// somebody waits for.
    quiet: u32,
    quiet_staged: u32,
    waiting_bytes: u64,
    /// Whether somebody waits for one of them.
    pub waits: bool,
    /// Position behind the last read or add, and whether it was a read.
    fetch: u32,
    fetch_is_read: bool,
    /// Staged, and free again, since it was opened.
    pub staged: u32,
    pub unstaged: u32,
    /// Ops accepted and not reported.
    pub in_flight: u32,
    /// Bit `i`: the message in cell `i` is held.
    pub held: u64,
    /// Bit `i`: cell `i` is free, and to be posted again; and how many are.
    pub due: u64,
    pub due_count: u8,
    /// Fences that wait for the end of the queue pair.
    pub fences: List,
    /// What broke it.
    pub report: Option<ErrorReport>,
}

impl Peer {
    /// Nobody, with an earlier use's held cells and generation.
    pub fn closed(held: u64, generation: u16, is_dirty: bool) -> Peer {
        Peer {
            state: State::Closed,
            down: Down::No,
            is_fenced: false,
            is_dirty,
            drained_sends: false,
            drained_receives: false,
            is_stopped: false,
            is_unmarked: false,
            is_timed: false,
            generation,
            drains_since: Instant(0),
            qp: ManuallyDrop::new(None),
            mr: ManuallyDrop::new(None),
            lkey: 0,
            inline_max: 0,
            parts_max: 0,
            mtu_code: 0,
            mtu_code_theirs: 0,
            offered: false,
            payload_bytes_max: 0,
            gid: Gid([0; 16]),
            first_packet: 0,
            next: 0,
            chained: 0,
            has_parts: false,
            ended: 0,
            reported: 0,
            looked_at: 0,
            looks: 0,
            heard: false,
            quiet: 0,
            quiet_staged: 0,
            waiting_bytes: 0,
            waits: false,
            fetch: 0,
            fetch_is_read: false,
            staged: 0,
            unstaged: 0,
            in_flight: 0,
            held,
            due: 0,
            due_count: 0,
            fences: List::default(),
            report: None,
        }
    }

    /// Whether ops other than fences are accepted.
    #[inline]
    pub fn takes_ops(&self) -> bool {
        self.state == State::Live && !self.is_fenced && self.down == Down::No
    }

    /// Whether everything that was posted has come back since it was stopped.
    pub fn is_drained(&self) -> bool {
        self.drained_sends && self.drained_receives
    }

    /// Whether so many more fit into the send queue.
    #[inline]
    pub fn has_room(&self, count: usize) -> bool {
        self.next.wrapping_sub(self.reported) + count as u32 <= SENDS
    }

    /// Whether the device has something of which we have not heard.
    #[inline]
    pub fn is_undelivered(&self) -> bool {
        self.ended != self.next
    }

    /// A place of so many bytes in staging, with what it takes of it. `None`: there is none now.
    #[inline]
    pub fn stage(&self, length: u32) -> Option<(u32, u32)> {
        let wanted = length.next_multiple_of(64);
        let at = self.staged % STAGING_BYTES;
        // what does not fit before the end of the ring starts anew
        let skipped = if at + wanted > STAGING_BYTES { STAGING_BYTES - at } else { 0 };
        let used = self.staged.wrapping_sub(self.unstaged);
        let takes = skipped + wanted;
        let offset = if skipped == 0 { at } else { 0 };
        (used + takes <= STAGING_BYTES).then_some((offset, takes))
    }

    /// Counts a send in, of which `bytes` are waited for; whether it must be signalled.
    #[inline]
    pub fn count(&mut self, staged: u32, waited: Option<u64>) -> bool {
        self.quiet += 1;
        self.quiet_staged += staged;
        if let Some(bytes) = waited {
            self.waits = true;
            self.waiting_bytes += bytes;
        }
        let signal = self.quiet >= QUIET_MAX
            || self.quiet_staged >= QUIET_STAGED_MAX
            || self.waiting_bytes >= WAITING_BYTES_MAX;
        if signal {
            self.signalled();
        }
        signal
    }

    /// Somebody waits for bytes whose end another send will tell.
    #[inline]
    pub fn wait_for(&mut self, bytes: u64) {
        self.waiting_bytes += bytes;
    }

    /// The last send is signalled.
    #[inline]
    pub fn signalled(&mut self) {
        (self.quiet, self.quiet_staged, self.waiting_bytes, self.waits) = (0, 0, 0, false);
    }

    /// Whether there are sends behind the last that is signalled.
    pub fn is_quiet(&self) -> bool {
        self.quiet > 0
    }

    /// Whether the next op must wait for a read or an add before it, to keep the order that
    /// [`crate::fabric::Caps::ordered`] promises: the queue pair alone lets later ops overtake
    /// their answers. `fetches`: it is one itself, and whether a read.
    #[inline]
    pub fn waits_for_answer(&self, fetches: Option<bool>) -> bool {
        let outstanding = (self.fetch.wrapping_sub(self.ended) as i32) > 0;
        outstanding && fetches != Some(self.fetch_is_read)
    }

    /// [`Peer::waits_for_answer`] of the op that comes next.
    #[inline]
    pub fn follows(&mut self, fetches: Option<bool>) -> bool {
        let waits = self.waits_for_answer(fetches);
        if let Some(is_read) = fetches {
            (self.fetch, self.fetch_is_read) = (self.next.wrapping_add(1), is_read);
        } else if !waits {
            self.fetch = self.ended; // so that the comparison never wraps
        }
        waits
    }

    /// An error of this peer's end, for ops that were under way.
    pub fn cut_off(&self) -> OpError {
        let code = self.report.map_or(0, |report| report.errno());
        let kind = if self.is_fenced { OpErrorKind::Canceled } else { OpErrorKind::PeerDown };
        OpError { kind, code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::closed(0, 0, false)
    }

    #[test]
    fn staging_starts_anew_where_a_message_would_not_fit() {
        let mut peer = peer();
        assert_eq!(peer.stage(100), Some((0, 128)));
        (peer.staged, peer.unstaged) = (STAGING_BYTES - 64, STAGING_BYTES - 64);
        assert_eq!(peer.stage(64), Some((STAGING_BYTES - 64, 64)));
        assert_eq!(peer.stage(65), Some((0, 64 + 128)));
        peer.unstaged = 0;
        assert_eq!(peer.stage(65), None, "what the device still has is not written over");
        // the counters run over the end of their numbers
        (peer.staged, peer.unstaged) = (u32::MAX - 63, u32::MAX - 63);
        assert_eq!(peer.stage(128), Some((0, 64 + 128)));
    }

    #[test]
    fn one_of_the_sends_is_signalled_before_the_queue_fills() {
        let mut peer = peer();
        let first = (1..).find(|_| peer.count(64, None)).unwrap();
        assert_eq!(first, QUIET_MAX);
        let mut bytes = 0;
        while !peer.count(8192, None) {
            bytes += 8192;
        }
        assert!(bytes < QUIET_STAGED_MAX);
        assert!(!peer.count(0, Some(WAITING_BYTES_MAX - 1)) && peer.waits);
        assert!(peer.count(0, Some(1)) && !peer.waits);
    }

    #[test]
    fn what_follows_a_read_or_an_add_waits_for_it() {
        let mut peer = peer();
        assert!(!peer.follows(None), "nothing is under way");
        assert!(!peer.follows(Some(true)));
        peer.next = 1;
        assert!(!peer.follows(Some(true)), "a read behind a read");
        peer.next = 2;
        assert!(peer.follows(None), "a write behind a read");
        assert!(peer.follows(Some(false)), "an add behind a read");
        peer.next = 3;
        peer.ended = 3;
        assert!(!peer.follows(None), "all has ended");
    }
}
