//! What the two ends of the copy engine tell each other, as notes of the rail below.
//!
//! | note | asks, or says | words behind the first |
//! |---|---|---|
//! | `Where` | where descriptors can be had | |
//! | `Here` | that | exporter (4 words) |
//! | `Pull` | copy our memory into yours | immediate; source (key, address); length; target |
//! | `Pulled` | that this was done, or why not | outcome, code |
//! | `Lend` | put a piece of your GPU's memory where I can read it | source; length |
//! | `Lent` | where it is, or why not | outcome, code; place |
//! | `Free` | that it was read | |
//!
//! The first word has the kind in bits 0 to 7, flags in 8 to 15, and a serial in 16 to 47.
#![forbid(unsafe_code)]

use crate::fabric::{OpError, OpErrorKind, RailKey, RemoteSpan};
use crate::provider::notes::Note;

const WHERE: u64 = 1;
const HERE: u64 = 2;
const PULL: u64 = 3;
const PULLED: u64 = 4;
const LEND: u64 = 5;
const LENT: u64 = 6;
const FREE: u64 = 7;
const FLAG_IMMEDIATE: u64 = 1 << 8;

/// Where descriptors of a process's GPU memory can be had: the name of a socket, and what has to be
/// said there first.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct Exporter {
    /// Name of the socket.
    pub name: u128,
    /// Known to those alone that the owner has told it.
    pub secret: u128,
}

/// A copy that the receiver is asked to make.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Pull {
    /// The asker's number for it.
    pub serial: u32,
    /// Reported at the receiver when the bytes are there.
    pub immediate: Option<u32>,
    /// The asker's memory.
    pub source: RemoteSpan,
    /// How much.
    pub length: u64,
    /// The receiver's memory.
    pub target: RemoteSpan,
}

/// How a copy ended; with the driver's code if it refused, and 0 for another reason.
pub type Outcome = Result<(), OpError>;

/// A key names no region, or the range lies outside of it.
pub const BAD_KEY: Outcome = Err(OpError { kind: OpErrorKind::Key, code: 0 });
/// The peer is gone.
pub const GONE: Outcome = Err(OpError { kind: OpErrorKind::PeerDown, code: 0 });
/// It was fenced off.
pub const CANCELED: Outcome = Err(OpError { kind: OpErrorKind::Canceled, code: 0 });

/// The driver refused.
pub const fn failed(code: i32) -> Outcome {
    Err(OpError { kind: OpErrorKind::Fabric, code })
}

/// Kinds of outcomes in a note, by their numbers from 1 on; 0: success.
const KINDS: [OpErrorKind; 4] =
    [OpErrorKind::Key, OpErrorKind::Fabric, OpErrorKind::PeerDown, OpErrorKind::Canceled];

fn words_of(outcome: Outcome) -> (u64, u64) {
    let Err(OpError { kind, code }) = outcome else { return (0, 0) };
    let at = KINDS.iter().position(|known| *known == kind).expect("every kind is there");
    (at as u64 + 1, code as u32 as u64)
}

fn outcome_of(kind: u64, code: u64) -> Option<Outcome> {
    let Some(at) = kind.checked_sub(1) else { return Some(Ok(())) };
    let kind = *KINDS.get(at as usize)?;
    let code = if kind == OpErrorKind::Fabric { code as u32 as i32 } else { 0 };
    Some(Err(OpError { kind, code }))
}

/// One note.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Word {
    /// Asks for the [`Exporter`].
    Where,
    /// The [`Exporter`].
    Here(Exporter),
    /// Asks for a copy.
    Pull(Pull),
    /// How the copy of that serial ended.
    Pulled {
        /// The asker's number for it.
        serial: u32,
        /// How it ended.
        outcome: Outcome,
    },
    /// Asks for a piece of a GPU's memory.
    Lend {
        /// The asker's number for it.
        serial: u32,
        /// Where it lies.
        source: RemoteSpan,
        /// How much.
        length: u64,
    },
    /// Where the piece is.
    Lent {
        /// The asker's number for it.
        serial: u32,
        /// Whether it is there.
        outcome: Outcome,
        /// Host memory that the asker may read.
        place: RemoteSpan,
    },
    /// The piece was read.
    Free {
        /// The asker's number for it.
        serial: u32,
    },
}

const NOWHERE: RemoteSpan = RemoteSpan { key: RailKey(0), address: 0 };

impl Word {
    /// As a note.
    pub fn encode(self) -> Note {
        let head = |kind: u64, serial: u32| kind | u64::from(serial) << 16;
        match self {
            Word::Where => [WHERE, 0, 0, 0, 0, 0, 0, 0],
            Word::Here(Exporter { name, secret }) => {
                let half = |number: u128| [number as u64, (number >> 64) as u64];
                let ([a, b], [c, d]) = (half(name), half(secret));
                [HERE, a, b, c, d, 0, 0, 0]
            }
            Word::Pull(pull) => {
                let flags = if pull.immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
                [
                    head(PULL | flags, pull.serial),
                    pull.immediate.unwrap_or(0).into(),
                    pull.source.key.0,
                    pull.source.address,
                    pull.length,
                    pull.target.key.0,
                    pull.target.address,
                    0,
                ]
            }
            Word::Pulled { serial, outcome } => {
                let (kind, code) = words_of(outcome);
                [head(PULLED, serial), kind, code, 0, 0, 0, 0, 0]
            }
            Word::Lend { serial, source, length } => {
                [head(LEND, serial), source.key.0, source.address, length, 0, 0, 0, 0]
            }
            Word::Lent { serial, outcome, place } => {
                let (kind, code) = words_of(outcome);
                [head(LENT, serial), kind, code, place.key.0, place.address, 0, 0, 0]
            }
            Word::Free { serial } => [head(FREE, serial), 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// What a note says; `None`: it breaks the format.
    pub fn decode(note: &Note) -> Option<Word> {
        let [head, a, b, c, d, e, f, _] = *note;
        let serial = (head >> 16) as u32;
        let span = |key, address| RemoteSpan { key: RailKey(key), address };
        match head & 0xff {
            WHERE => Some(Word::Where),
            HERE => {
                let whole = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
                Some(Word::Here(Exporter { name: whole(a, b), secret: whole(c, d) }))
            }
            PULL => Some(Word::Pull(Pull {
                serial,
                immediate: (head & FLAG_IMMEDIATE != 0).then_some(a as u32),
                source: span(b, c),
                length: d,
                target: span(e, f),
            })),
            PULLED => Some(Word::Pulled { serial, outcome: outcome_of(a, b)? }),
            LEND => Some(Word::Lend { serial, source: span(a, b), length: c }),
            LENT => Some(Word::Lent { serial, outcome: outcome_of(a, b)?, place: span(c, d) }),
            FREE => Some(Word::Free { serial }),
            _ => None,
        }
    }

    /// The answer to a [`Word::Lend`] that cannot be met.
    pub const fn not_lent(serial: u32, outcome: Outcome) -> Word {
        Word::Lent { serial, outcome, place: NOWHERE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_as_they_went_in() {
        let span = |key, address| RemoteSpan { key: RailKey(key), address };
        let pull = Pull {
            serial: 0xfedc_ba98,
            immediate: Some(u32::MAX),
            source: span(1 << 63 | 5, 7 << 40),
            length: 1 << 40,
            target: span(9, 11),
        };
        let words = [
            Word::Where,
            Word::Here(Exporter { name: 1 << 127 | 3, secret: 5 << 64 | 1 }),
            Word::Pull(pull),
            Word::Pull(Pull { immediate: None, serial: 0, ..pull }),
            Word::Pulled { serial: 7, outcome: Ok(()) },
            Word::Pulled { serial: u32::MAX, outcome: failed(-5) },
            Word::Pulled { serial: 1, outcome: BAD_KEY },
            Word::Pulled { serial: 1, outcome: GONE },
            Word::Pulled { serial: 1, outcome: CANCELED },
            Word::Lend { serial: 3, source: span(1 << 31, 5), length: 1 << 20 },
            Word::Lent { serial: 3, outcome: Ok(()), place: span(4, 6) },
            Word::not_lent(u32::MAX, failed(700)),
            Word::Free { serial: 3 },
        ];
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
        assert_eq!(Word::decode(&[0; 8]), None);
        assert_eq!(Word::decode(&[PULLED, 5, 0, 0, 0, 0, 0, 0]), None);
    }
}
