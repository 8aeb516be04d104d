//! W16: frames of one-sided records, which ranks of a group send each other as messages.
//!
//! A frame is one message on the first connection of a pair of ranks: a head, then records, each
//! followed by its inline bytes and padded to 8. The bytes of a record that carries none inline
//! are one message on the pair's second connection, in the order of the records.
//!
//! A short frame is one record whose numbers are small, with at most 8 inline bytes. It fits the
//! line in which shared memory and NICs carry a message at the least cost.
//!
//! All numbers are little-endian.

use super::handle::HANDLE_BYTES;
use crate::base::words::numbered;

/// Longest frame in bytes.
pub const FRAME_BYTES: usize = 4096;
/// Bytes of a frame's head.
pub const FRAME_HEAD_BYTES: usize = 16;
/// Bytes of a record without its inline bytes.
pub const RECORD_BYTES: usize = 32;
/// Bytes of a short frame: no other frame has so many.
pub const SHORT_FRAME_BYTES: usize = 24;
/// Where a short frame's inline bytes stand.
pub const SHORT_INLINE_AT: usize = 16;
/// Most bytes that a record carries inline.
pub const INLINE_BYTES_MAX: usize = 2048;

/// The record takes effect after all earlier ones of its sender have.
pub const FENCE: u8 = 1;
/// The record has a signal: `id` grows by `value` once its bytes are visible.
pub const SIGNAL: u8 = 2;
/// The bytes come as a message of their own; or, of a get, must not come inline.
pub const APART: u8 = 4;
/// The answer to a get: there are no bytes, `value` has the code of a [`Refusal`].
pub const REFUSED: u8 = 8;
/// A share: peers may not write to the window.
pub const READ_ONLY: u8 = 16;
/// A share: the window's memory is a GPU's.
pub const DEVICE: u8 = 32;

numbered! {
    /// What a record does.
    RecordKind: u8 {
        /// Bytes appear in the window at `offset`.
        Put = 1,
        /// The window's signal `id` grows by `value`.
        Signal = 2,
        /// Asks for the window's bytes; `value` names the request.
        Get = 3,
        /// The answer to the get that `value` names.
        Got = 4,
        /// Record number `offset` of the other direction was not applied; `value` has the code.
        Refused = 5,
        /// The sender's part of the window whose exchange has number `offset`: `length` bytes, and
        /// `id` signals.
        Share = 6,
        /// The sender has come to barrier `id` of the window.
        Arrive = 7,
        /// The 64-bit word of the window at `offset` grows by `value`; `length` is 8. It needs the
        /// `id` records before it; the highest number stands for all.
        Add = 8,
    }
}

numbered! {
    /// Why the owner of a window did not apply a record.
    Refusal: u64 else Memory {
        /// The window was freed, or another has its place.
        Stale = 1,
        /// The bytes do not lie inside it.
        Range = 2,
        /// It has no such signal or barrier.
        Id = 3,
        /// It is read only.
        ReadOnly = 4,
        /// The owner's endpoint could not move the bytes.
        Memory = 5,
    }
}

/// The head of a frame.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct FrameHead {
    /// How many records of the other direction have taken effect, counted from the first.
    pub applied: u64,
    /// The sender waits to hear how many of its own have.
    pub wants_applied: bool,
}

impl FrameHead {
    /// As bytes.
    pub const fn to_bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        *bytes.first_chunk_mut().expect("16 bytes") = self.applied.to_le_bytes();
        bytes[8] = self.wants_applied as u8;
        bytes
    }

    /// From the start of a frame; `None`: it is too short.
    pub fn from_bytes(frame: &[u8]) -> Option<FrameHead> {
        let head: &[u8; FRAME_HEAD_BYTES] = frame.first_chunk()?;
        Some(FrameHead { applied: word(head, 0), wants_applied: head[8] & 1 != 0 })
    }
}

/// A record, without its inline bytes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Record {
    /// What it does.
    pub kind: RecordKind,
    /// Bits such as [`FENCE`].
    pub flags: u8,
    /// Of a signal or barrier; of an add, how many records before it it needs.
    pub id: u16,
    /// The window's place at its owner; of a share, at its sender.
    pub window: u16,
    /// Which use of that place.
    pub generation: u16,
    /// Where in the window.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Added to a signal, or as the kind says.
    pub value: u64,
}

impl Record {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.window.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// From bytes; `None`: they are too few, of an unknown kind, a put that is [`REFUSED`], or say
    /// more inline bytes than a record may have.
    pub fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; RECORD_BYTES] = bytes.first_chunk()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let record = Record {
            kind: RecordKind::from_wire(bytes[0])?,
            flags: bytes[1],
            id: half(2),
            window: half(4),
            generation: half(6),
            offset: word(bytes, 8),
            length: word(bytes, 16),
            value: word(bytes, 24),
        };
        let is_whole = record.inline_bytes() <= INLINE_BYTES_MAX as u64;
        (is_whole && !record.is_refused_put()).then_some(record)
    }

    /// A put that says that it is an answer which was refused: there is no such record.
    const fn is_refused_put(&self) -> bool {
        matches!(self.kind, RecordKind::Put) && self.flags & REFUSED != 0
    }

    /// Bytes that follow it in its frame, without the padding.
    pub const fn inline_bytes(&self) -> u64 {
        match self.kind {
            RecordKind::Put | RecordKind::Got if self.flags & (APART | REFUSED) == 0 => self.length,
            _ => 0,
        }
    }

    /// Whether its bytes come as a message of their own.
    pub const fn is_apart(&self) -> bool {
        let is_transfer = matches!(self.kind, RecordKind::Put | RecordKind::Got);
        is_transfer && self.flags & (APART | REFUSED) == APART
    }

    /// Bytes of it in its frame, with what follows it.
    pub const fn frame_bytes(&self) -> usize {
        RECORD_BYTES + (self.inline_bytes() as usize).next_multiple_of(8)
    }
}

/// The record of a short frame: `kind` and the number of inline bytes in one byte, then `flags`,
/// `window`, `generation` and `id` as in a record, then `offset` and `value` in 4 bytes each. The
/// last 8 bytes are the inline bytes; of a record that carries none, its `length`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Short {
    /// The record.
    pub record: Record,
    /// As [`FrameHead::wants_applied`].
    pub wants_applied: bool,
}

/// Bit of the flags of a short frame: its sender asks what has taken effect.
const SHORT_WANTS_APPLIED: u8 = 128;
/// Most bytes that a short frame carries inline.
const SHORT_INLINE_BYTES_MAX: u64 = (SHORT_FRAME_BYTES - SHORT_INLINE_AT) as u64;

impl Short {
    /// As bytes; the inline bytes are missing. `None`: the record has numbers that are too large.
    #[inline]
    pub fn to_bytes(self) -> Option<[u8; SHORT_FRAME_BYTES]> {
        let Record { kind, flags, id, window, generation, offset, length, value } = self.record;
        let inline = self.record.inline_bytes();
        if (offset | value) >> 32 != 0 || inline > SHORT_INLINE_BYTES_MAX {
            return None;
        }
        let asks = if self.wants_applied { SHORT_WANTS_APPLIED } else { 0 };
        let first = u64::from(kind as u8 | (inline as u8) << 4)
            | u64::from(flags | asks) << 8
            | u64::from(window) << 16
            | u64::from(generation) << 32
            | u64::from(id) << 48;
        let mut bytes = [0; SHORT_FRAME_BYTES];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..16].copy_from_slice(&(offset | value << 32).to_le_bytes());
        bytes[16..].copy_from_slice(&length.to_le_bytes());
        Some(bytes)
    }

    /// From a short frame; `None`: it is none, or not well formed.
    #[inline]
    pub fn from_bytes(frame: &[u8; SHORT_FRAME_BYTES]) -> Option<Short> {
        let (first, second) = (word(frame, 0), word(frame, 8));
        let flags = (first >> 8) as u8;
        let mut record = Record {
            kind: RecordKind::from_wire(first as u8 & 15)?,
            flags: flags & !SHORT_WANTS_APPLIED,
            id: (first >> 48) as u16,
            window: (first >> 16) as u16,
            generation: (first >> 32) as u16,
            offset: second & u64::from(u32::MAX),
            length: first >> 4 & 15,
            value: second >> 32,
        };
        let inline = record.length;
        if record.inline_bytes() == 0 {
            record.length = word(frame, SHORT_INLINE_AT);
        }
        let is_whole = inline <= SHORT_INLINE_BYTES_MAX && record.inline_bytes() == inline;
        (is_whole && !record.is_refused_put())
            .then_some(Short { record, wants_applied: flags & SHORT_WANTS_APPLIED != 0 })
    }
}

/// Bytes of a [`Member`].
pub const MEMBER_BYTES: usize = 32 + HANDLE_BYTES;
const MEMBER_MAGIC: u64 = u64::from_le_bytes(*b"xtiegrp3");

/// What each rank gives the bootstrap when a group is opened, and again when it has connected.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Member {
    /// Whose this is.
    pub rank: u32,
    /// How many ranks it expects.
    pub ranks: u32,
    /// It could not do its part.
    pub has_failed: bool,
    /// How many windows it may have at a time.
    pub windows_max: u32,
    /// Where it listens.
    pub handle: [u8; HANDLE_BYTES],
}

impl Member {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; MEMBER_BYTES] {
        let mut bytes = [0; MEMBER_BYTES];
        bytes[..8].copy_from_slice(&MEMBER_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rank.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.ranks.to_le_bytes());
        bytes[16] = u8::from(self.has_failed);
        bytes[20..24].copy_from_slice(&self.windows_max.to_le_bytes());
        bytes[32..].copy_from_slice(&self.handle);
        bytes
    }

    /// From bytes; `None`: they are none, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Member> {
        let bytes: &[u8; MEMBER_BYTES] = bytes.first_chunk()?;
        if word(bytes, 0) != MEMBER_MAGIC {
            return None;
        }
        let ranks = word(bytes, 8);
        Some(Member {
            rank: ranks as u32,
            ranks: (ranks >> 32) as u32,
            has_failed: bytes[16] != 0,
            windows_max: (word(bytes, 16) >> 32) as u32,
            handle: *bytes[32..].first_chunk()?,
        })
    }
}

/// Bytes of a [`Greeting`].
pub const GREETING_BYTES: usize = 16;
const GREETING_MAGIC: u64 = u64::from_le_bytes(*b"xtiegrt1");

/// The first message on each connection of a group: whose it is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Greeting {
    /// The rank that has connected.
    pub rank: u32,
    /// 0: frames; 1: bytes.
    pub kind: u32,
}

impl Greeting {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&GREETING_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rank.to_le_bytes());
        bytes[12..].copy_from_slice(&self.kind.to_le_bytes());
        bytes
    }

    /// From bytes; `None`: they are none.
    pub fn from_bytes(bytes: &[u8; GREETING_BYTES]) -> Option<Greeting> {
        let who = word(bytes, 8);
        let greeting = Greeting { rank: who as u32, kind: (who >> 32) as u32 };
        (word(bytes, 0) == GREETING_MAGIC).then_some(greeting)
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_written() {
        for (at, kind) in (1..=8).filter_map(RecordKind::from_wire).enumerate() {
            assert_eq!(kind as usize, at + 1);
            let record = Record {
                kind,
                flags: SIGNAL | FENCE,
                id: 0x1234,
                window: 7,
                generation: 0xfffe,
                offset: u64::MAX,
                length: INLINE_BYTES_MAX as u64,
                value: 1 << 63,
            };
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
            assert_eq!(Record::from_bytes(&record.to_bytes()[..RECORD_BYTES - 1]), None);
        }
        let head = FrameHead { applied: 77, wants_applied: true };
        assert_eq!(FrameHead::from_bytes(&head.to_bytes()), Some(head));
    }

    #[test]
    fn unknown_kinds_and_long_inline_bytes_are_refused() {
        let put = Record {
            kind: RecordKind::Put,
            flags: 0,
            id: 0,
            window: 0,
            generation: 0,
            offset: 0,
            length: INLINE_BYTES_MAX as u64 + 1,
            value: 0,
        };
        assert_eq!(Record::from_bytes(&put.to_bytes()), None);
        let apart = Record { flags: APART, length: 1 << 40, ..put };
        assert_eq!(Record::from_bytes(&apart.to_bytes()), Some(apart));
        let refused = Record { flags: REFUSED, length: 8, ..put };
        assert_eq!(Record::from_bytes(&refused.to_bytes()), None);
        let mut bytes = apart.to_bytes();
        for kind in [0, 9, 255] {
            bytes[0] = kind;
            assert_eq!(Record::from_bytes(&bytes), None);
        }
    }

    #[test]
    fn short_frames_carry_what_is_small_and_nothing_else() {
        let record = Record {
            kind: RecordKind::Put,
            flags: SIGNAL | FENCE,
            id: 0x1234,
            window: 7,
            generation: 0xfffe,
            offset: u64::from(u32::MAX),
            length: 8,
            value: 3,
        };
        let empty = Record { length: 0, ..record };
        let apart = Record { flags: APART, length: u64::MAX, ..record };
        for record in [record, empty, apart, Record { flags: REFUSED, ..record }] {
            for (kind, wants_applied) in
                (1..=8).filter_map(RecordKind::from_wire).zip([false, true].repeat(4))
            {
                if kind == RecordKind::Put && record.flags & REFUSED != 0 {
                    continue; // no record of one that writes it
                }
                let short = Short { record: Record { kind, ..record }, wants_applied };
                assert_eq!(
                    short.to_bytes().and_then(|bytes| Short::from_bytes(&bytes)),
                    Some(short)
                );
            }
        }
        let long = Record { length: 9, ..record };
        for large in
            [long, Record { offset: 1 << 32, ..record }, Record { value: 1 << 32, ..record }]
        {
            assert_eq!(Short { record: large, wants_applied: false }.to_bytes(), None);
        }
        let get = Record { kind: RecordKind::Get, ..long };
        let mut bytes = Short { record: get, wants_applied: false }.to_bytes().unwrap();
        // unknown kinds, inline bytes of a get, and too many of a put, or a length beside
        for wrong in [0x00, 0x09, 0x0f, 0x13, 0x91, 0x01] {
            bytes[0] = wrong;
            assert_eq!(Short::from_bytes(&bytes), None, "{wrong:#x}");
        }
    }
}
