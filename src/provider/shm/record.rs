//! What stands in a ring: records of whole lines, each with one header word.
//!
//! ```text
//! 0        8                      40            64
//! | header | prefix, by kind      | inline body | body of more than 24 bytes, whole lines ...
//! ```
//!
//! A body of up to 24 bytes stands in the first line; a longer one starts on the second, so that
//! large copies are aligned. All fields are in the host's byte order: both ends run on one host.
#![forbid(unsafe_code)]

use crate::base::words::numbered;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Where a record's prefix stands.
pub const PREFIX_AT: usize = 8;
/// Where a body that fits the first line stands.
pub const INLINE_AT: usize = 40;
/// The longest such body.
pub const INLINE_MAX: usize = LINE - INLINE_AT;

numbered! {
    /// What a record is. Zero is no record.
    Kind: u8 {
        /// Fills the end of the ring; no body, the next record is at the ring's start.
        Pad = 1,
        /// A message. Prefix: the 32-byte head.
        Send = 2,
        /// A write, or a part of one. Prefix: key, address, bytes to the end of the op, immediate.
        Write = 3,
        /// A 64-bit add. Prefix: key, address, value.
        Add = 4,
        /// A request for memory. Prefix: key, address, length, serial.
        Read = 5,
        /// A part of what a request asked for. Prefix: serial.
        Data = 6,
        /// The answer to a request that cannot be met. Prefix: serial.
        Refuse = 7,
    }
}

/// On a write's last part: report the immediate.
pub const FLAG_IMMEDIATE: u8 = 1;
/// On a write's last part, and on adds: count it as acknowledged.
pub const FLAG_ACK: u8 = 2;

/// A header word: body length in bits 0..32, kind in 32..40, flags in 40..48, zero above.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Header(pub u64);

impl Header {
    /// No record here yet.
    pub const EMPTY: Header = Header(0);

    /// The word of a record with a body of `length` bytes.
    #[inline]
    pub const fn new(kind: Kind, flags: u8, length: u32) -> Header {
        Header(length as u64 | (kind as u64) << 32 | (flags as u64) << 40)
    }

    /// Length of the body in bytes; of padding, of all of it in lines.
    #[inline]
    pub const fn length(self) -> u32 {
        self.0 as u32
    }

    /// The kind, when it is one and nothing unknown is set.
    #[inline]
    pub const fn kind(self) -> Option<Kind> {
        if self.0 >> 42 != 0 {
            return None;
        }
        Kind::from_wire((self.0 >> 32) as u8)
    }

    /// The flags.
    #[inline]
    pub const fn flags(self) -> u8 {
        (self.0 >> 40) as u8
    }
}

/// Lines of a record whose body is `length` bytes.
#[inline]
pub const fn lines_for(length: usize) -> u32 {
    if length <= INLINE_MAX { 1 } else { 1 + length.div_ceil(LINE) as u32 }
}

/// Where the body of `length` bytes stands in its record.
#[inline]
pub const fn body_at(length: usize) -> usize {
    if length <= INLINE_MAX { INLINE_AT } else { LINE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bodies_take_one_line_and_longer_ones_whole_lines_after_it() {
        assert_eq!(lines_for(0), 1);
        assert_eq!(lines_for(24), 1);
        assert_eq!(lines_for(25), 2);
        assert_eq!(lines_for(64), 2);
        assert_eq!(lines_for(65), 3);
        assert_eq!((body_at(24), body_at(25)), (40, 64));
    }

    #[test]
    fn header_keeps_its_fields_and_refuses_unknown_bits() {
        let header = Header::new(Kind::Write, FLAG_ACK | FLAG_IMMEDIATE, 77);
        assert_eq!(header.kind(), Some(Kind::Write));
        assert_eq!((header.flags(), header.length()), (3, 77));
        assert_eq!(Header(header.0 | 1 << 50).kind(), None);
        assert_eq!(Header(9 << 32).kind(), None);
        assert_eq!(Header::EMPTY.kind(), None);
    }
}
