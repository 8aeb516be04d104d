//! W9: the frames on a data stream of a TCP rail.
//!
//! A stream is a row of frames without gaps. A frame is a header of 8, 16, 32 or 40 bytes, as its
//! kind says, and for some kinds a payload of `length` bytes behind it.

use super::DecodeError;
use crate::base::words::numbered;

/// The longest header, that of a send.
pub const HEADER_BYTES_MAX: usize = 40;
/// Where a send's head lies in its header.
pub const SEND_HEAD_AT: usize = 8;
/// Bytes of a sum behind a header, or behind a payload (W9.1).
pub const SUM_BYTES: usize = 4;
/// Bytes of a send's head.
pub const SEND_HEAD_BYTES: usize = 32;
/// Bytes of a write's header.
pub const WRITE_HEADER_BYTES: usize = 32;
/// Writes and adds of one stream that may be on their way without an answer.
pub const UNANSWERED_MAX: u32 = 64;
/// Reads of one stream that may be on their way without an answer.
pub const READS_MAX: u32 = 16;
/// Longest payload of a frame.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;

/// The write carries an immediate.
const FLAG_IMMEDIATE: u8 = 1;
/// The write is not answered; one that could not be carried out breaks the stream.
const FLAG_SILENT: u8 = 2;
/// The read is refused: its key or range is bad.
const FLAG_REFUSED: u8 = 4;

numbered! {
    /// What a frame is: its first byte.
    StreamKind: u8 {
        /// A message: head, payload.
        Send = 1,
        /// Bytes for a region of the reader.
        Write = 2,
        /// Asks for bytes of a region of the reader.
        Read = 3,
        /// Answers a read.
        ReadReply = 4,
        /// Adds to a word of a region of the reader.
        Add = 5,
        /// So many writes and adds of the reader were carried out or refused.
        Done = 6,
        /// One write or add of the reader was refused: its key or range is bad.
        Failed = 7,
        /// Nothing follows: the writer closes.
        Bye = 8,
    }
}

impl StreamKind {
    /// Bytes of the header.
    #[inline]
    pub const fn header_bytes(self) -> usize {
        match self {
            StreamKind::Send => HEADER_BYTES_MAX,
            StreamKind::Write | StreamKind::Read | StreamKind::Add => WRITE_HEADER_BYTES,
            StreamKind::ReadReply => 16,
            StreamKind::Done | StreamKind::Failed | StreamKind::Bye => 8,
        }
    }
}

/// A decoded header. A send's head stays where it is ([`SEND_HEAD_AT`]).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum StreamFrame {
    /// A message.
    Send {
        /// Bytes of payload that follow.
        length: u32,
    },
    /// A write.
    Write {
        /// Bytes of payload that follow.
        length: u32,
        /// The reader's region.
        key: u64,
        /// Where in it.
        address: u64,
        /// Reported at the reader.
        immediate: Option<u32>,
        /// Whether it gets no answer.
        silent: bool,
    },
    /// A read.
    Read {
        /// How much.
        length: u32,
        /// Comes back with the answer.
        token: u32,
        /// The reader's region.
        key: u64,
        /// Where in it.
        address: u64,
    },
    /// A read's answer.
    ReadReply {
        /// Bytes of payload that follow.
        length: u32,
        /// The read's.
        token: u32,
        /// Whether it was refused; then nothing follows.
        refused: bool,
    },
    /// An add.
    Add {
        /// The reader's region.
        key: u64,
        /// An aligned word in it.
        address: u64,
        /// Added modulo 2^64.
        value: u64,
    },
    /// How many writes and adds have been answered, modulo 2^32.
    Done {
        /// The count.
        through: u32,
    },
    /// The write or add of that number, counted from zero modulo 2^32, was refused.
    Failed {
        /// Its number.
        index: u32,
    },
    /// The end.
    Bye,
}

impl StreamFrame {
    /// Writes the header, and says how long it is. A send's head is left out.
    #[inline]
    pub fn encode(&self, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        let (kind, flags, word) = match *self {
            StreamFrame::Send { length } => (StreamKind::Send, 0, length),
            StreamFrame::Write { length, key, address, immediate, silent } => {
                put_remote(out, key, address);
                put(out, 24, u64::from(immediate.unwrap_or(0)));
                let flags = if immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
                (StreamKind::Write, flags | if silent { FLAG_SILENT } else { 0 }, length)
            }
            StreamFrame::Read { length, token, key, address } => {
                put_remote(out, key, address);
                put(out, 24, token.into());
                (StreamKind::Read, 0, length)
            }
            StreamFrame::ReadReply { length, token, refused } => {
                put(out, 8, token.into());
                (StreamKind::ReadReply, if refused { FLAG_REFUSED } else { 0 }, length)
            }
            StreamFrame::Add { key, address, value } => {
                put_remote(out, key, address);
                put(out, 24, value);
                (StreamKind::Add, 0, 0)
            }
            StreamFrame::Done { through } => (StreamKind::Done, 0, through),
            StreamFrame::Failed { index } => (StreamKind::Failed, 0, index),
            StreamFrame::Bye => (StreamKind::Bye, 0, 0),
        };
        put(out, 0, u64::from(word) << 32 | u64::from(flags) << 8 | kind as u64);
        kind.header_bytes()
    }

    /// How long the header is that starts with `first`, or why no header does.
    #[inline]
    pub const fn header_bytes(first: u8) -> Result<usize, DecodeError> {
        match StreamKind::from_wire(first) {
            Some(kind) => Ok(kind.header_bytes()),
            None => Err(DecodeError::Field),
        }
    }

    /// Reads a header.
    ///
    /// *Errors*: `Short` when more bytes are wanted, `Field` for anything that is not ours.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<StreamFrame, DecodeError> {
        let first = *bytes.first().ok_or(DecodeError::Short)?;
        let kind = StreamKind::from_wire(first).ok_or(DecodeError::Field)?;
        let bytes = bytes.get(..kind.header_bytes()).ok_or(DecodeError::Short)?;
        let word = get(bytes, 0);
        let (flags, length) = ((word >> 8) as u8, (word >> 32) as u32);
        let known = match kind {
            StreamKind::Write => FLAG_IMMEDIATE | FLAG_SILENT,
            StreamKind::ReadReply => FLAG_REFUSED,
            _ => 0,
        };
        if flags & !known != 0 || (word >> 16) as u16 != 0 {
            return Err(DecodeError::Field);
        }
        let frame = body(kind, flags, length, bytes);
        let counts = matches!(kind, StreamKind::Done | StreamKind::Failed);
        if !counts && length > PAYLOAD_BYTES_MAX {
            return Err(DecodeError::Field);
        }
        Ok(frame)
    }
}

/// A write that nobody answers and that carries no immediate: a line, as a rule.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SilentWrite {
    /// Bytes of payload that follow.
    pub length: u32,
    /// The reader's region.
    pub key: u64,
    /// Where in it.
    pub address: u64,
}

impl SilentWrite {
    /// Its header, the same as [`StreamFrame::encode`] writes.
    #[inline]
    pub fn encode(&self) -> [u8; WRITE_HEADER_BYTES] {
        let start = u64::from(self.length) << 32 | u64::from(SILENT_WRITE);
        let mut bytes = [0; WRITE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    /// Whether `bytes`, which start with its header, hold all of its payload.
    #[inline]
    pub const fn is_whole(&self, bytes: &[u8]) -> bool {
        bytes.len() - WRITE_HEADER_BYTES >= self.length as usize
    }
}

/// The low half of a silent write's first word.
const SILENT_WRITE: u32 = StreamKind::Write as u32 | (FLAG_SILENT as u32) << 8;

/// The payload's length of the send whose whole header `bytes` start with, if they do: the same as
/// [`StreamFrame::decode`] says, in one comparison.
#[inline]
pub fn send_length(bytes: &[u8]) -> Option<u32> {
    if bytes.len() < HEADER_BYTES_MAX {
        return None;
    }
    let word = get(bytes, 0);
    (word as u32 == StreamKind::Send as u32).then_some((word >> 32) as u32)
}

/// The same for a silent write.
#[inline]
pub fn silent_write(bytes: &[u8]) -> Option<SilentWrite> {
    if bytes.len() < WRITE_HEADER_BYTES {
        return None;
    }
    let word = get(bytes, 0);
    let (key, address) = (get(bytes, 8), get(bytes, 16));
    let write = SilentWrite { length: (word >> 32) as u32, key, address };
    (word as u32 == SILENT_WRITE && write.length <= PAYLOAD_BYTES_MAX).then_some(write)
}

#[inline]
fn body(kind: StreamKind, flags: u8, length: u32, bytes: &[u8]) -> StreamFrame {
    match kind {
        StreamKind::Send => StreamFrame::Send { length },
        StreamKind::Write => StreamFrame::Write {
            length,
            key: get(bytes, 8),
            address: get(bytes, 16),
            immediate: (flags & FLAG_IMMEDIATE != 0).then_some(get(bytes, 24) as u32),
            silent: flags & FLAG_SILENT != 0,
        },
        StreamKind::Read => StreamFrame::Read {
            length,
            key: get(bytes, 8),
            address: get(bytes, 16),
            token: get(bytes, 24) as u32,
        },
        StreamKind::ReadReply => {
            let refused = flags & FLAG_REFUSED != 0;
            StreamFrame::ReadReply { length, token: get(bytes, 8) as u32, refused }
        }
        StreamKind::Add => {
            StreamFrame::Add { key: get(bytes, 8), address: get(bytes, 16), value: get(bytes, 24) }
        }
        StreamKind::Done => StreamFrame::Done { through: length },
        StreamKind::Failed => StreamFrame::Failed { index: length },
        StreamKind::Bye => StreamFrame::Bye,
    }
}

#[inline]
fn put_remote(out: &mut [u8; HEADER_BYTES_MAX], key: u64, address: u64) {
    put(out, 8, key);
    put(out, 16, address);
}

#[inline]
fn put(out: &mut [u8; HEADER_BYTES_MAX], at: usize, word: u64) {
    out[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

#[inline]
fn get(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(frame: StreamFrame) {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = frame.encode(&mut bytes);
        assert_eq!(StreamFrame::decode(&bytes[..length]), Ok(frame));
        assert_eq!(StreamFrame::decode(&bytes[..length - 1]), Err(DecodeError::Short));
        assert_eq!(StreamFrame::header_bytes(bytes[0]), Ok(length));
    }

    #[test]
    fn every_frame_comes_back() {
        back(StreamFrame::Send { length: 8192 });
        for immediate in [None, Some(0), Some(u32::MAX)] {
            for silent in [false, true] {
                let (key, address) = (u64::MAX, 1 << 63);
                let length = PAYLOAD_BYTES_MAX;
                back(StreamFrame::Write { length, key, address, immediate, silent });
            }
        }
        back(StreamFrame::Read { length: 1, token: 2, key: 3, address: 4 });
        back(StreamFrame::ReadReply { length: 1, token: u32::MAX, refused: false });
        back(StreamFrame::ReadReply { length: 0, token: 2, refused: true });
        back(StreamFrame::Add { key: 1, address: 8, value: u64::MAX });
        back(StreamFrame::Done { through: u32::MAX });
        back(StreamFrame::Failed { index: u32::MAX });
        back(StreamFrame::Bye);
    }

    #[test]
    fn a_quick_look_says_the_same() {
        let (key, address) = (u64::MAX, 1 << 63);
        let write = |length, immediate, silent| {
            let mut bytes = [0; HEADER_BYTES_MAX];
            StreamFrame::Write { length, key, address, immediate, silent }.encode(&mut bytes);
            silent_write(&bytes)
        };
        let found = write(64, None, true);
        let line = SilentWrite { length: 64, key, address };
        assert_eq!((found, silent_write(&line.encode())), (Some(line), Some(line)));
        assert!(write(64, None, false).is_none() && write(64, Some(0), true).is_none());
        assert!(write(PAYLOAD_BYTES_MAX + 1, None, true).is_none());
        let mut bytes = [0; HEADER_BYTES_MAX];
        StreamFrame::Send { length: 8192 }.encode(&mut bytes);
        assert_eq!((send_length(&bytes), silent_write(&bytes)), (Some(8192), None));
        assert_eq!(send_length(&bytes[..HEADER_BYTES_MAX - 1]), None);
        bytes[2] = 1;
        assert_eq!(send_length(&bytes), None, "a byte that is zero in this version");
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let refused = |bytes: [u8; 8]| StreamFrame::decode(&bytes) == Err(DecodeError::Field);
        assert!(refused([0; 8]) && refused([9, 0, 0, 0, 0, 0, 0, 0]));
        assert!(refused([6, 1, 0, 0, 0, 0, 0, 0]), "a flag that a kind lacks");
        assert!(refused([6, 0, 1, 0, 0, 0, 0, 0]), "a byte that is zero in this version");
        let mut long = [0; HEADER_BYTES_MAX];
        StreamFrame::Send { length: PAYLOAD_BYTES_MAX + 1 }.encode(&mut long);
        assert_eq!(StreamFrame::decode(&long), Err(DecodeError::Field));
    }
}
