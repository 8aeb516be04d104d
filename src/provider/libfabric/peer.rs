//! One peer of the shared endpoint: what was posted to it, what rails say to each other about it,
//! and how it ends.

use super::area::SENDS;
use super::keys::Questions;
use super::report::{Complaint, ErrorReport, errno};
use super::sys::numbers as n;
use crate::base::units::{Instant, Span};
use crate::fabric::{DownCause, Head, OpError, OpErrorKind, OpId};
use crate::provider::ops::List;

const _: () = assert!(SENDS == u64::BITS as usize);

/// What the library calls an endpoint.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Address(pub u64);

impl Address {
    /// It is not known.
    pub const NONE: Address = Address(n::ADDR_UNSPEC);
}

impl Default for Address {
    fn default() -> Address {
        Address::NONE
    }
}

/// How far a peer has come.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum State {
    /// There is none; what it was last may still be answered.
    #[default]
    Closed,
    /// It does not know the other end.
    Prepared,
    /// It works, or ends.
    Live,
}

/// Whether the end of a peer was reported.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum Down {
    /// It has not ended.
    #[default]
    No,
    /// It has, and nobody was told.
    Due(DownCause),
    /// It was reported.
    Told,
}

/// Whether a peer has closed whose endpoint may have left something to its kernel to send.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum Lingering {
    /// It has not, or leaves nothing.
    #[default]
    No,
    /// It has closed the connection; its endpoint may live, and others' use it.
    Closed,
    /// Its endpoint was closed.
    Ended,
}

/// What a place of the table of ops holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Use {
    /// Nothing.
    Free,
    /// An op whose end is reported.
    Loud,
    /// One whose end nobody waits for, or was told of.
    Quiet,
    /// A request to stop, whose failure may say that nobody is there.
    Drain,
    /// A write whose data is there, and whose word could not leave yet.
    WordDue,
}

/// An op that the library has.
#[derive(Copy, Clone, Debug)]
pub struct Sent {
    pub id: OpId,
    pub used: Use,
    /// Whether it reads or writes memory of the peer's.
    pub touches: bool,
    pub is_read: bool,
    /// The region of ours that it holds a pin of, plus one; 0: none.
    pub pin: u32,
    /// The answer about a key that it uses, plus one; 0: none.
    pub key_place: u8,
    /// The word that goes behind it as a message.
    pub word: Option<u32>,
}

impl Sent {
    pub const FREE: Sent = Sent {
        id: OpId(0),
        used: Use::Free,
        touches: false,
        is_read: false,
        pin: 0,
        key_place: 0,
        word: None,
    };
}

/// Messages about keys and fences that a peer is owed: a bit each. They leave in this order, what
/// ends a hold before what asks for the next one.
pub mod wants {
    pub const GIVEN_BACK: u8 = 1 << 0;
    pub const ASK: u8 = 1 << 1;
    pub const TELL: u8 = 1 << 2;
    pub const REVOKE: u8 = 1 << 3;
    pub const DRAIN: u8 = 1 << 4;
    pub const DRAINED: u8 = 1 << 5;
}

/// Ops that are under way to a peer. What every op looks at comes first.
#[derive(Default, Debug)]
#[repr(C)]
pub struct UnderWay {
    /// Bit `i`: op `i` is in use, of this use of the number or an earlier one.
    pub used: u64,
    /// Bit `i`: op `i` is under way to the number's last peer; see `left`.
    pub left_ops: u64,
    /// How many of this use's ops touch memory of the peer's, and how many are reads.
    pub touching: u32,
    pub reads: u32,
    /// Ops accepted and not reported.
    pub in_flight: u32,
    /// Ops of it that have ended and that it has a part in, and questions that were answered.
    pub ended: u32,
    /// How much had ended when it was to be heard.
    pub heard_from: u32,
    /// Bit `i`: the word of op `i` could not leave yet.
    pub words_due: u64,
    /// What the library calls the endpoint of the number's last peer, while some of its ops are
    /// under way.
    pub left: Address,
}

/// How a peer's end, and its fence, go on.
#[derive(Default, Debug)]
pub struct Ending {
    /// Whether the other end has said that nothing of its is under way, nor will be; or it cannot
    /// be, because our endpoint was closed.
    pub is_attested: bool,
    /// Whether the library has nothing of it any more, because our endpoint was closed.
    pub is_cut: bool,
    /// How long what a peer has posted is waited for that is gone, as was heard beside the rail, or
    /// whose endpoint is; and how many polls are still to take some of it in.
    pub gone: Option<Span>,
    pub gone_polls: u32,
    /// Why it counts as dead for the side band, where it may live.
    pub doubt: Option<DownCause>,
    /// Whether it has closed, and a kernel may go on sending what its endpoint has left.
    pub lingering: Lingering,
    /// Whether the library refused the last request to stop, or ended it with an error. What that
    /// says: `Peers::has_no_connection`.
    pub is_bounced: bool,
    /// Whether it was told that its fence waits.
    pub is_complained: bool,
    /// When it is to be found out next whether anybody listens at its address.
    pub probe_at: Instant,
    /// When it was fenced, as far as polls have seen.
    pub fenced_at: Option<Instant>,
    /// Whether `ends_since` is set.
    pub is_timed: bool,
    pub ends_since: Instant,
    /// How many the peer had posted when it spoke of the end, where they may come behind that word.
    pub awaited_count: Option<u32>,
    /// Fences that wait for the end.
    pub fences: List,
}

/// What the library has refused for a peer.
#[derive(Default, Debug)]
pub struct Refusals {
    /// Since when the library has had no memory for a call, and how much of `sent_count` and
    /// `ended` there was then.
    pub refused_since: Option<Instant>,
    pub refused_count: u32,
    /// Since when the library has refused whatever was posted, as far as is known, when it did so
    /// last, what else was so then, and whether that was told.
    pub again_since: Option<Instant>,
    pub again_at: Instant,
    pub again_count: (u32, u64),
    pub again_told: bool,
}

/// What looks at a peer have seen.
#[derive(Copy, Clone, Default, Debug)]
pub struct Watched {
    /// How much had ended.
    pub ended: u32,
    /// The look after which that was so, and those that count in a row behind it.
    pub looks: u8,
    /// Whether its program has polled since the last one.
    pub polls: bool,
    /// Whether somebody is to find that out.
    pub is_doubted: bool,
    /// When the first was.
    pub since: Instant,
}

/// The record of one peer. What every op looks at lies in its first cache line, since the system
/// calls of some libraries leave little of it in the cache.
#[derive(Default, Debug)]
#[repr(C, align(64))]
pub struct Peer {
    pub down: Down,
    pub state: State,
    /// Whether a fence was posted: nothing is received any more.
    pub is_fenced: bool,
    /// Whether it is among those that are ending.
    pub is_ending: bool,
    /// Whether the other end wants us to say the same, and when.
    pub owes_word: bool,
    /// Whether it knows sends that say what is new in their heads alone.
    pub reads_brief: bool,
    /// What we are called there.
    pub their_number: u16,
    /// What the peer's messages carry.
    pub token: u32,
    /// What ours carry.
    pub their_token: u32,
    pub address: Address,
    pub ops: UnderWay,
    /// Sends and words: posted, and received.
    pub sent_count: u32,
    pub seen_count: u32,
    /// Longest payload of a send to it.
    pub payload_bytes_max: u32,
    /// The heads of the last sends, posted and received.
    pub head_sent: Head,
    pub head_seen: Head,
    /// Whether no words may come with its writes: it was told to send messages instead.
    pub sends_no_words: bool,
    /// Bytes of its address as its library gives it.
    pub name_bytes: u8,
    /// Of [`wants`].
    pub wants: u8,
    pub keys: Questions,
    pub ending: Ending,
    pub refusals: Refusals,
    /// What looks at it have seen.
    pub watched: Watched,
    /// What broke it.
    pub report: Option<ErrorReport>,
    /// What people should know of it.
    pub complaint: Option<Complaint>,
}

const _: () = assert!(core::mem::offset_of!(Peer, ops.ended) + size_of::<u32>() == 64);

impl Peer {
    /// Whether ops other than fences are accepted.
    #[inline]
    pub fn takes_ops(&self) -> bool {
        self.state == State::Live && !self.is_fenced && self.down == Down::No
    }

    /// Whether messages of it are reported.
    #[inline]
    pub fn hears(&self) -> bool {
        self.state == State::Live && !self.is_fenced && self.down != Down::Told
    }

    /// Ops that are under way to it, by their bits: not those to the number's last peer.
    pub fn under_way(&self) -> u64 {
        self.ops.used & !self.ops.left_ops
    }

    /// Whether something of ours is under way to it, or a question of ours has no answer.
    pub fn is_owing(&self) -> bool {
        self.under_way() != 0 || self.keys.is_asked()
    }

    /// A count that changes with whatever the library accepts for it, or ends.
    pub fn moves(&self) -> (u32, u64) {
        (self.sent_count.wrapping_add(self.ops.ended), self.ops.used)
    }

    /// The library has refused a post, or there was no place for it. What was accepted since it did
    /// so first, or has ended, shows in counts.
    #[cold]
    pub fn was_refused(&mut self, now: Instant) {
        let count = self.moves();
        let said = &mut self.refusals;
        if said.again_since.is_none() || said.again_count != count {
            (said.again_since, said.again_count, said.again_told) = (Some(now), count, false);
        }
        said.again_at = now;
    }

    /// Whether its word may never come, and something else is to show that it is not needed: of a
    /// request to stop it must be known how that ends.
    pub fn is_drain_watched(&self) -> bool {
        self.ending.doubt == Some(DownCause::Severed) || self.ending.lingering != Lingering::No
    }

    /// Whether it is owed a message.
    pub fn has_chores(&self) -> bool {
        self.wants != 0 || self.ops.words_due != 0
    }

    /// An error of this peer's end, for ops that were under way.
    pub fn cut_off(&self) -> OpError {
        let code = self.report.map_or(0, |report| errno(report.code));
        let kind = if self.is_fenced { OpErrorKind::Canceled } else { OpErrorKind::PeerDown };
        OpError { kind, code }
    }
}
