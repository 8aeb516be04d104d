//! The prefix of every message on a rail's endpoint: its sender and its kind.
//!
//! All peers of a rail send to one endpoint, and so can strangers that know its address. So a
//! message names the peer by the receiver's number, with a token that the receiver gave to that
//! peer alone. It also has a sequence number, because a library may lose messages that it has
//! copied.
#![forbid(unsafe_code)]

use crate::base::words::numbered;
use crate::fabric::{HEAD_BYTES, Head};

/// Bytes of it.
pub const PREFIX_BYTES: usize = 16;
/// Bytes of a [`Kind::Brief`]'s, which ends before `word`.
pub const BRIEF_BYTES: usize = 12;
/// Bytes of a message about a key, with the prefix.
pub const KEY_MESSAGE_BYTES: usize = PREFIX_BYTES + 32;

numbered! {
    /// What a message is.
    Kind: u8 {
        /// A send: head and payload follow.
        Send = 1,
        /// A word that belongs to a write, whose data is there.
        Word = 2,
        /// Asks what the library calls a region.
        Ask = 3,
        /// The answer.
        Tell = 4,
        /// Asks to forget an answer.
        Revoke = 5,
        /// It is forgotten, and nothing that used it is under way.
        GivenBack = 6,
        /// Asks to stop, and to say when nothing is under way. Its key is the token that the writer
        /// gave: what an earlier end of the writer's said to the same end of ours is not for the
        /// next. With [`IN_ORDER`] for its place: nothing has failed, and the writer closes.
        Drain = 7,
        /// Nothing is under way, nor will be. Its key as above. With [`AT_CLOSED`] for its place:
        /// the writer's endpoint was closed, and what it had posted may still be on its way, and
        /// come behind this, which has taken another connection.
        Drained = 8,
        /// A send whose head says only what is not as in the one before: `place` has a bit for each
        /// of its eight words that follow. To an end that takes messages in order, and has said
        /// that it knows these ([`READS_BRIEF`]).
        Brief = 9,
    }
}

/// Of a [`Kind::Drained`]: nobody knows what has become of what was posted.
pub const AT_CLOSED: u8 = 1;

/// Of a [`Kind::Drain`]: as far as its writer's rail knows nothing has failed.
pub const IN_ORDER: u8 = 1;

/// A bit of W13's `format`.
pub const READS_BRIEF: u32 = 1 << 30;
/// Another: its provider has cut a word that came with a write. They are sent as messages to it.
pub const CUTS_WORDS: u32 = 1 << 29;

/// The prefix.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Prefix {
    /// What it is.
    pub kind: Kind,
    /// Of messages about keys: the asker's place for the answer. Of brief sends: which words of
    /// the head follow. Of words about the end: [`IN_ORDER`], [`AT_CLOSED`], or 0.
    pub place: u8,
    /// Which peer of the receiver's it comes from.
    pub peer: u16,
    /// What the receiver gave to that peer.
    pub token: u32,
    /// How many sends and words came before it.
    pub number: u32,
    /// A word. Of messages about keys: how many questions the asker had asked with the one that
    /// it is about, so that none is taken for a later one's.
    pub word: u32,
}

impl Prefix {
    /// As bytes.
    #[inline]
    pub fn encode(&self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        (bytes[0], bytes[1]) = (self.kind as u8, self.place);
        bytes[2..4].copy_from_slice(&self.peer.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }

    /// Bytes that stand before the payload, or before what a message about a key says.
    #[inline]
    pub const fn ahead(&self) -> usize {
        match self.kind {
            Kind::Send => PREFIX_BYTES + HEAD_BYTES,
            Kind::Brief => BRIEF_BYTES + news_bytes(self.place),
            _ => PREFIX_BYTES,
        }
    }

    /// `None`: a kind that is none.
    #[inline]
    pub fn decode(bytes: &[u8; PREFIX_BYTES]) -> Option<Prefix> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        Some(Prefix {
            kind: Kind::from_wire(bytes[0])?,
            place: bytes[1],
            peer: u16::from_le_bytes([bytes[2], bytes[3]]),
            token: word(4),
            number: word(8),
            word: word(12),
        })
    }
}

/// Bytes of a word of a head.
const HEAD_WORD: usize = HEAD_BYTES / 8;

/// Which words of a head are not as in the one before, and those, one behind the other; as many
/// bytes of `words` count as there are bits times four.
#[inline]
pub fn head_news(head: &Head, before: &Head, words: &mut Head) -> u8 {
    let (mut news, mut at) = (0, 0);
    for n in 0..8 {
        let place = n * HEAD_WORD..(n + 1) * HEAD_WORD;
        let is_new = head[place.clone()] != before[place.clone()];
        words[at..at + HEAD_WORD].copy_from_slice(&head[place]);
        news |= u8::from(is_new) << n;
        at += HEAD_WORD * usize::from(is_new);
    }
    news
}

/// How many bytes the words take that `news` announces.
#[inline]
pub const fn news_bytes(news: u8) -> usize {
    news.count_ones() as usize * HEAD_WORD
}

/// The inverse of [`head_news`]: makes the head before the next one.
#[inline]
pub fn head_renew(head: &mut Head, news: u8, words: &Head) {
    let mut at = 0;
    for n in 0..8 {
        if news >> n & 1 == 1 {
            head[n * HEAD_WORD..(n + 1) * HEAD_WORD].copy_from_slice(&words[at..at + HEAD_WORD]);
            at += HEAD_WORD;
        }
    }
}

/// What a message about a key says.
pub use crate::wire::shared_end::ToldRegion as KeyWords;

/// A token whose lower half, all of it that a word with a write carries, is not zero.
#[inline]
pub const fn word_token(token: u32) -> u32 {
    if token as u16 == 0 { token | 1 } else { token }
}

/// Whether a provider has delivered 4 of the 8 bytes of such a word: whose it is stands in the
/// others, and no token is zero there ([`word_token`]).
#[inline]
pub const fn word_is_cut(data: u64) -> bool {
    data >> 32 == 0
}

/// The word that goes with a write, where the library carries 64 bits.
#[inline]
pub const fn word_data(peer: u16, token: u32, word: u32) -> u64 {
    (peer as u64) << 48 | (token as u64 & 0xffff) << 32 | word as u64
}

/// The inverse: the peer, 16 bits of its token, and the word.
#[inline]
pub const fn word_parts(data: u64) -> (u16, u16, u32) {
    ((data >> 48) as u16, (data >> 32) as u16, data as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_and_key_come_back_as_they_were() {
        for kind in 1..=9 {
            let kind = Kind::from_wire(kind).unwrap();
            let (place, peer, token) = (63, 0xfedc, 0x89ab_cdef);
            let prefix = Prefix { kind, place, peer, token, number: 0x7654_3210, word: 0xffee };
            assert_eq!(Prefix::decode(&prefix.encode()), Some(prefix));
        }
        assert_eq!(Prefix::decode(&[0; PREFIX_BYTES]), None);
        assert_eq!(Prefix::decode(&[10; PREFIX_BYTES]), None);
        let words =
            KeyWords { key: 1 << 40, library_key: u64::MAX - 1, start: 77, length: 1 << 50 };
        assert_eq!(KeyWords::decode(&words.encode()), words);
        assert_eq!(word_parts(word_data(0xabcd, 0x1234_5678, 9)), (0xabcd, 0x5678, 9));
    }

    /// Cut to 4 bytes it was a word of peer 0 whose token ended with zeroes.
    #[test]
    fn word_of_which_the_upper_half_was_cut_off_is_nobodys() {
        for token in [1, 0xffff, 0x1_0000, 0xabcd_0000, 0x1234_5678] {
            let data = word_data(0, word_token(token), u32::MAX);
            assert!(!word_is_cut(data) && word_is_cut(data & 0xffff_ffff), "{token:#x}");
        }
        assert_eq!([word_token(0x1234_5678), word_token(1 << 16)], [0x1234_5678, 1 << 16 | 1]);
    }

    #[test]
    fn heads_come_back_from_what_is_new_in_them() {
        let (mut state, mut before, mut seen) = (7u32, [0; HEAD_BYTES], [0; HEAD_BYTES]);
        for round in 0..2000u32 {
            let mut head = before;
            for n in 0..8 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // all words, none, or some of them
                if state >> 24 < round % 3 * 128 {
                    head[n * 4..n * 4 + 4].copy_from_slice(&state.to_le_bytes());
                }
            }
            let mut words = [0xee; HEAD_BYTES];
            let news = head_news(&head, &before, &mut words);
            let same = (0..8).filter(|n| head[n * 4..n * 4 + 4] == before[n * 4..n * 4 + 4]);
            assert_eq!(news_bytes(news), (8 - same.count()) * 4);
            words[news_bytes(news)..].fill(0x77);
            head_renew(&mut seen, news, &words);
            assert_eq!(seen, head);
            before = head;
        }
    }
}
