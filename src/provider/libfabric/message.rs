//! What stands before every message on a rail's endpoint: whose it is, and what.
//!
//! All peers of a rail send to one endpoint, and who knows its address may too. So a message says
//! which peer of the receiver's it comes from, with a token that the receiver gave to that peer
//! alone; and it is numbered, because a library may lose what it was told to copy.
#![forbid(unsafe_code)]

/// Bytes of it.
pub const PREFIX_BYTES: usize = 16;
/// Bytes of a message about a key, with the prefix.
pub const KEY_MESSAGE_BYTES: usize = PREFIX_BYTES + 32;

/// What a message is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Kind {
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
    /// gave: what an earlier end of the writer's said to the same end of ours is not for the next.
    Drain = 7,
    /// Nothing is under way, nor will be. Its key as above.
    Drained = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Send,
            2 => Kind::Word,
            3 => Kind::Ask,
            4 => Kind::Tell,
            5 => Kind::Revoke,
            6 => Kind::GivenBack,
            7 => Kind::Drain,
            8 => Kind::Drained,
            _ => return None,
        })
    }
}

/// The prefix.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Prefix {
    /// What it is.
    pub kind: Kind,
    /// Of messages about keys: the asker's place for the answer.
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

    /// `None`: a kind that is none.
    #[inline]
    pub fn decode(bytes: &[u8; PREFIX_BYTES]) -> Option<Prefix> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        Some(Prefix {
            kind: Kind::from_byte(bytes[0])?,
            place: bytes[1],
            peer: u16::from_le_bytes([bytes[2], bytes[3]]),
            token: word(4),
            number: word(8),
            word: word(12),
        })
    }
}

/// What a message about a key says.
pub use crate::wire::shared_end::ToldRegion as KeyWords;

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
        for kind in 1..=8 {
            let kind = Kind::from_byte(kind).unwrap();
            let (place, peer, token) = (63, 0xfedc, 0x89ab_cdef);
            let prefix = Prefix { kind, place, peer, token, number: 0x7654_3210, word: 0xffee };
            assert_eq!(Prefix::decode(&prefix.encode()), Some(prefix));
        }
        assert_eq!(Prefix::decode(&[0; PREFIX_BYTES]), None);
        assert_eq!(Prefix::decode(&[9; PREFIX_BYTES]), None);
        let words =
            KeyWords { key: 1 << 40, library_key: u64::MAX - 1, start: 77, length: 1 << 50 };
        assert_eq!(KeyWords::decode(&words.encode()), words);
        assert_eq!(word_parts(word_data(0xabcd, 0x1234_5678, 9)), (0xabcd, 0x5678, 9));
    }
}
