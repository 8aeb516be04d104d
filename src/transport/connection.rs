//! One connection: what it sends, what it receives, what both sides tell each other, and its rails.
//!
//! What the four know together stands here: the heads of sends, and what is due.
#![forbid(unsafe_code)]

use super::control::Control;
use super::limits::{KEPT_BYTES, STREAM_KEPT};
use super::rails::Rails;
use super::records::{ConnectionState, Failure};
use super::recv::Recv;
use super::request::RequestError;
use super::send::Send;
use crate::base::seq::Seq;
use crate::wire::head::SendHead;
use core::hash::Hash;

/// Groups of the peer that are bound before a state line is written for them alone.
const GROUPS_OWED: i32 = 8;

/// Sends of the peer that are taken in before a state line is written for that alone, and bytes of
/// them: well before what the peer keeps of them is full.
const TAKEN_OWED: i32 = STREAM_KEPT as i32 / 4;
const TAKEN_BYTES_OWED: u32 = KEPT_BYTES / 4;

/// The same where a line leaves with a send, at no call of its own: so that few lines are due when
/// a message comes that somebody waits to answer.
const TAKEN_WORTH: i32 = TAKEN_OWED * 3 / 4;
const TAKEN_BYTES_WORTH: u32 = TAKEN_BYTES_OWED / 4 * 3;

/// The peer reads slots that speak for several groups.
pub const READS_RUNS: u8 = 1;
/// The peer reads in heads which groups its messages have filled.
pub const READS_FILLED: u8 = 2;
/// In both mailboxes the first slots of all groups lie together.
pub const READS_ROWS: u8 = 4;

/// All as bits.
pub const fn reads(runs: bool, filled: bool, rows: bool) -> u8 {
    (READS_RUNS * runs as u8) | (READS_FILLED * filled as u8) | (READS_ROWS * rows as u8)
}

/// One connection, both directions of it.
#[repr(align(64))] // whole lines, as `Limits::connection_bytes` counts it
#[derive(Copy, Clone, Hash, Debug)]
pub struct Connection {
    pub state: ConnectionState,
    /// The rail pulls: long messages go by descriptor, and no slots are written.
    pub pull: bool,
    pub failure: Failure,
    pub rails: Rails,
    pub control: Control,
    pub send: Send,
    pub recv: Recv,
    /// What the watch looks at to see that something moves, and when it last did.
    pub moved: u16,
    pub moved_at_ms: u32,
}

impl Connection {
    /// Not in use.
    pub const FREE: Connection = Connection {
        state: ConnectionState::Free,
        pull: false,
        failure: Failure(RequestError::Closed),
        rails: Rails::ONE,
        control: Control::NEW,
        send: Send::NONE,
        recv: Recv::NONE,
        moved: 0,
        moved_at_ms: 0,
    };

    /// Whether it was lost because the peer has ended: whatever came of it is right.
    pub const fn outlived(&self) -> bool {
        use RequestError::{PeerClosed, PeerDied, PeerGaveUp};
        matches!(self.failure.0, PeerDied | PeerClosed | PeerGaveUp)
    }

    /// Changes with whatever the peer does: what it sends, says, takes in or acknowledges.
    pub fn heard(&self) -> u32 {
        let (send, recv, control) = (&self.send, &self.recv, &self.control);
        let counts = [recv.expected, send.stream.taken_through, recv.arrived.through()];
        let acks = [control.credits.through, send.delivered_through, recv.offers.passed];
        let sum = counts.iter().chain(&acks).fold(0u32, |sum, count| sum.wrapping_add(count.0));
        sum.wrapping_add(control.lines.seen).wrapping_add(control.report.seen)
    }

    /// Whether the peer's state line or slots are waited for.
    pub const fn is_watching(&self) -> bool {
        self.send.waiting != 0
            || !self.send.queue.is_empty()
            || self.recv.offers.cancels_due
            || (!self.pull && self.recv.offers.next.0 != self.recv.post.0)
    }

    /// The head of the next send of the stream.
    #[inline(always)]
    pub fn head(&self, kind: u8, tag: i32, stripes: u8) -> SendHead {
        SendHead {
            kind,
            stripes,
            filled: 0,
            epoch: self.control.epoch,
            tag,
            send_number: self.send.number.0,
            eager_number: self.send.stream.number.0,
            group_base: self.send.cursor.group.0,
            credits_through: self.control.credits.now().0,
            delivered_through: self.recv.arrived.through().0,
        }
    }

    /// The next send of the stream has left; a long one has a number of its own.
    #[inline(always)]
    pub fn head_left(&mut self, long: bool) {
        self.told_by_head();
        let consumed = &mut self.control.credits.consumed;
        *consumed = consumed.next();
        self.send.number = self.send.number.plus(u32::from(long));
        self.send.stream.number = self.send.stream.number.next();
    }

    /// A head has just carried everything that it can.
    #[inline]
    pub fn told_by_head(&mut self) {
        self.control.credits.told = self.control.credits.now();
        self.control.groups_told = self.send.cursor.group;
        // a head has no room for the mask: news of a delivery out of order is still due
        self.recv.delivery_news &= self.recv.arrived.mask() != 0;
    }

    /// Whether the peer waits for something that only a state line can tell.
    #[inline]
    pub fn state_due(&self) -> bool {
        self.recv.delivery_news
            || self.send.cursor.canceled_news
            || self.control.credits.is_due()
            || self.groups_due()
            || self.taken_due()
    }

    /// Whether a request of the peer's may end by our next state line, and not before.
    pub const fn ends_requests(&self) -> bool {
        self.recv.delivery_news || self.send.cursor.canceled_news
    }

    /// Whether the peer may wait to hear how far we have bound its groups: its slots wait for room
    /// when many are bound, and our own queue waits for its slots.
    fn groups_due(&self) -> bool {
        let owed = self.send.cursor.group.ahead_of(self.control.groups_told);
        !self.pull && (owed >= GROUPS_OWED || (owed > 0 && !self.send.queue.is_empty()))
    }

    /// Takes in the cumulative fields that heads, slots and state lines share; says whether sends
    /// may have been delivered by it.
    #[inline(always)]
    #[must_use]
    pub fn acks_raise(&mut self, credits: Seq, delivered: Seq) -> bool {
        self.control.credits.raise(credits);
        let news = delivered.ahead_of(self.send.delivered_through) > 0
            && delivered.ahead_of(self.send.number) <= 0; // else the number was changed on the way
        if news {
            self.send.delivered_through = delivered;
        }
        news && self.send.waiting != 0
    }

    /// Whether the peer, which pushes, can have bound our groups so far: that many were posted.
    #[inline]
    pub fn has_groups(&self, through: Seq) -> bool {
        self.pull || !self.recv.post.before(through)
    }

    /// One more message was taken in; says whether the peer must hear of it.
    #[inline(always)]
    pub fn took(&mut self, bytes: u32) -> bool {
        self.control.taken.bytes = self.control.taken.bytes.wrapping_add(bytes);
        self.taken_due()
    }

    /// Whether the peer must hear what we have taken in, so that it need not keep it.
    #[inline]
    pub fn taken_due(&self) -> bool {
        self.is_taken(TAKEN_OWED, TAKEN_BYTES_OWED)
    }

    /// Whether the peer hears of that by a line that leaves with something else.
    #[inline]
    pub fn is_taken_worth(&self) -> bool {
        self.is_taken(TAKEN_WORTH, TAKEN_BYTES_WORTH)
    }

    #[inline(always)]
    fn is_taken(&self, sends: i32, bytes: u32) -> bool {
        let taken = &self.control.taken;
        self.rails.fails_over()
            && (taken.bytes >= bytes || self.recv.expected.ahead_of(taken.told) >= sends)
    }
}
