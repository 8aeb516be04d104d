//! One peer of the shared endpoint: what was posted to it, what rails say to each other about it,
//! and how it ends.

use super::area::SENDS;
use super::message::KeyWords;
use super::report::{Complaint, ErrorReport, errno};
use super::silence::Watched;
use super::sys::{Port, numbers as n};
use crate::base::units::{Instant, Span};
use crate::fabric::{DownCause, HEAD_BYTES, Head, OpError, OpErrorKind, OpId, RailKey};
use crate::provider::ops::List;
use core::ffi::c_void;

/// Answers about keys that are kept of each peer.
pub const KEYS: usize = 64;

const _: () = assert!(SENDS == u64::BITS as usize && KEYS <= u8::MAX as usize);

/// How far a peer has come.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum State {
    /// There is none; what it was last may still be answered.
    Closed,
    /// It does not know the other end.
    Prepared,
    /// It works, or ends.
    Live,
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

/// What a peer has told about one of its regions.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Answer {
    pub words: KeyWords,
    pub state: AnswerState,
    /// Ops in flight that use it.
    pub users: u16,
    /// Whether the peer wants it forgotten.
    pub is_revoked: bool,
    /// Which question it answers.
    pub count: u32,
}

/// What a peer was told of at one of its places for answers.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Told {
    /// The region of ours that it holds, plus one; 0: none.
    pub region: u32,
    /// Which question of its that answered, or the next one, if it has given that back: what is
    /// said of earlier ones counts no more.
    pub count: u32,
}

#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub enum AnswerState {
    #[default]
    Empty,
    /// The question is on its way.
    Asked,
    /// There is such a region.
    Good,
    /// There is none.
    Gone,
}

/// What a post finds out about a peer's key.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Lookup {
    /// The library's key, the address or offset's base, and the place of the answer.
    Found { library_key: u64, start: u64, place: u8 },
    /// No region, or the range lies outside.
    Bad,
    /// Ask, at this place.
    Ask(u8),
    /// Wait for an answer.
    Wait,
}

/// Where the answer about a key is kept.
pub const fn key_place(key: RailKey) -> u8 {
    (key.0 % KEYS as u64) as u8
}

impl Answer {
    /// What this place, which is the key's, says of a range.
    #[inline]
    pub fn lookup(&self, key: RailKey, address: u64, length: u64) -> Lookup {
        let words = self.words;
        match self.state {
            AnswerState::Good if words.key == key.0 && !self.is_revoked => {
                let offset = address.wrapping_sub(words.start);
                match offset <= words.length && length <= words.length - offset {
                    true => Lookup::Found {
                        library_key: words.library_key,
                        start: words.start,
                        place: key_place(key),
                    },
                    false => Lookup::Bad,
                }
            }
            AnswerState::Gone if words.key == key.0 => Lookup::Bad,
            AnswerState::Asked => Lookup::Wait,
            // another key's answer gives way when nothing uses it
            AnswerState::Good if self.users > 0 || self.is_revoked => Lookup::Wait,
            AnswerState::Good | AnswerState::Gone | AnswerState::Empty => {
                Lookup::Ask(key_place(key))
            }
        }
    }
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

/// A peer's part of the area, from its first use until the endpoint closes.
#[derive(Copy, Clone, Debug)]
pub struct Part {
    /// The library's registration, as a number; 0: none yet.
    pub registration: u64,
    pub descriptor: *mut c_void,
    /// Where its receives are posted, and its ops.
    pub port: Option<Port>,
}

impl Part {
    pub const UNUSED: Part =
        Part { registration: 0, descriptor: core::ptr::null_mut(), port: None };
}

/// Ops that are under way to a peer. What every op looks at comes first.
#[derive(Debug)]
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
    pub left: u64,
}

/// What is asked and said about keys: see [`Answer`] and [`Told`].
#[derive(Default, Debug)]
pub struct Questions {
    /// The region that is asked about, at which place, and how many questions there were with it.
    pub asked: KeyWords,
    pub ask_place: u8,
    pub ask_count: u32,
    /// How many messages it had been sent when a look asked it something last.
    pub asked_after: u32,
    /// Whether it has answered a question since it was to be heard.
    pub has_answered: bool,
    /// The answer that is owed, and to which question.
    pub told: KeyWords,
    pub tell_place: u8,
    pub tell_count: u32,
    /// What is wanted back from the peer, plus one; 0: nothing. And which question told it of that.
    pub revoking: u8,
    pub revoked: KeyWords,
    pub revoke_count: u32,
    /// What the peer wants back, likewise.
    pub giving: Option<u8>,
    pub given: KeyWords,
    pub give_count: u32,
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
    /// says: `Libfabric::has_no_connection`.
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

/// The record of one peer. What every op looks at lies in its first cache line, since the system
/// calls of some libraries leave little of it in the cache.
#[derive(Debug)]
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
    /// What the library calls its endpoint; `ADDR_UNSPEC`: not known.
    pub address: u64,
    pub ops: UnderWay,
    /// Sends and words: posted, and received.
    pub sent_count: u32,
    pub seen_count: u32,
    /// Longest payload of a send to it.
    pub payload_bytes_max: u32,
    /// The heads of the last sends, posted and received.
    pub head_sent: Head,
    pub head_seen: Head,
    /// Whether words may come with its writes: it was not told to send messages instead.
    pub sends_words: bool,
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
    /// Nobody.
    pub fn closed() -> Peer {
        let ops = UnderWay {
            used: 0,
            left_ops: 0,
            touching: 0,
            reads: 0,
            in_flight: 0,
            ended: 0,
            heard_from: 0,
            words_due: 0,
            left: n::ADDR_UNSPEC,
        };
        Peer {
            down: Down::No,
            state: State::Closed,
            is_fenced: false,
            is_ending: false,
            owes_word: false,
            reads_brief: false,
            their_number: 0,
            token: 0,
            their_token: 0,
            address: n::ADDR_UNSPEC,
            ops,
            sent_count: 0,
            seen_count: 0,
            payload_bytes_max: 0,
            head_sent: [0; HEAD_BYTES],
            head_seen: [0; HEAD_BYTES],
            sends_words: true,
            name_bytes: 0,
            wants: 0,
            keys: Questions::default(),
            ending: Ending::default(),
            refusals: Refusals::default(),
            watched: Watched::NOTHING,
            report: None,
            complaint: None,
        }
    }

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
        self.under_way() != 0 || self.keys.asked != KeyWords::default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_for_its_key_and_range_alone() {
        let key = RailKey(5 << 32 | 7);
        let words = KeyWords { key: key.0, library_key: 99, start: 4096, length: 100 };
        let good = Answer { words, state: AnswerState::Good, ..Answer::default() };
        let found = Lookup::Found { library_key: 99, start: 4096, place: 7 };
        assert_eq!(good.lookup(key, 4096, 100), found);
        assert_eq!(good.lookup(key, 4196, 0), found);
        assert_eq!(good.lookup(key, 4096, 101), Lookup::Bad);
        assert_eq!(good.lookup(key, 4095, 1), Lookup::Bad);
        let other = RailKey(6 << 32 | 7);
        assert_eq!(good.lookup(other, 4096, 1), Lookup::Ask(7));
        assert_eq!(Answer { users: 1, ..good }.lookup(other, 4096, 1), Lookup::Wait);
        assert_eq!(Answer { is_revoked: true, ..good }.lookup(key, 4096, 1), Lookup::Wait);
        let gone = Answer { state: AnswerState::Gone, ..good };
        assert_eq!(gone.lookup(key, 4096, 1), Lookup::Bad);
        assert_eq!(gone.lookup(other, 4096, 1), Lookup::Ask(7));
        assert_eq!(Answer::default().lookup(key, 4096, 1), Lookup::Ask(7));
    }
}
