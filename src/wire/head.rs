//! W1: the head of every send.

use super::{DecodeError, wire_struct};

/// The payload is the message.
pub const KIND_EAGER: u8 = 1;
/// The payload is a [`super::descriptor::Descriptor`]: the receiver pulls the message.
pub const KIND_DESCRIPTOR: u8 = 2;
/// The message was bound to a slot; its stripes come by write with immediate. The payload is its
/// length (8 bytes).
pub const KIND_START: u8 = 3;

/// Outside of the stream: the payload is a [`super::report::Report`].
pub const KIND_REPORT: u8 = 4;
/// Outside of the stream: the report whose number is the tag has been read.
pub const KIND_REPORT_READ: u8 = 5;
/// Outside of the stream: the lane that carries it is open at its writer; the tag is its
/// generation.
pub const KIND_PROBE: u8 = 6;
/// Outside of the stream: the writer asks, by the number in the tag, whether all that it sent on
/// this lane before has come: its control leaves the lane.
pub const KIND_FLUSH: u8 = 7;
/// Outside of the stream: it has; the tag is the number of the `KIND_FLUSH`.
pub const KIND_FLUSHED: u8 = 8;
/// Outside of the stream: the reader's probe of the lane that carries this has come; the tag is the
/// lane's generation. Where both say so ([`super::hello::CONNECT_PROBED`]) alone.
pub const KIND_PROBED: u8 = 9;

/// A head says by `filled` what is filled.
pub const FILLED_SAID: u16 = 0x8000;
/// The bits of a group's number in `filled`.
pub const FILLED_MASK: u16 = 0x7fff;

wire_struct! {
    /// W1. What every send says before its payload.
    SendHead [32] {
        /// One of the `KIND_` constants.
        kind: u8 = 0,
        /// Stripes of the message, 1 to 64; for `KIND_START`, else 0.
        stripes: u8 = 1,
        /// 0, or [`FILLED_SAID`] and the last bits of a number: the reader's messages have filled
        /// all groups of the sender's below that, one each, behind those that `group_base` of the
        /// reader has told of. Where the reader says that it reads it
        /// ([`super::hello::CONNECT_FILLED`]) alone.
        filled: u16 = 2,
        /// The sender's control epoch.
        epoch: u32 = 4,
        /// The user's tag; for `KIND_START` the token of the slot it was bound to; outside of the
        /// stream a number, see the `KIND_` constants.
        tag: i32 = 8,
        /// Number of the next long message (descriptor or start) of the sender; this one's if it is
        /// one.
        send_number: u32 = 12,
        /// Number of the send among the sends, which a receiver puts in order by.
        eager_number: u32 = 16,
        /// Every group below this is bound as far as the sender has seen.
        group_base: u32 = 20,
        /// The peer may consume receives up to this count (absolute).
        credits_through: u32 = 24,
        /// The peer's long messages below this number are delivered.
        delivered_through: u32 = 28,
    }
}

impl SendHead {
    /// Decodes and checks the kind and the stripe count.
    #[inline]
    pub fn decode(bytes: &[u8; 32]) -> Result<SendHead, DecodeError> {
        let head = SendHead::from_bytes(bytes);
        head.check()?;
        Ok(head)
    }

    /// Checks the kind and the stripe count.
    #[inline]
    pub fn check(&self) -> Result<(), DecodeError> {
        match self.kind {
            KIND_EAGER | KIND_DESCRIPTOR if self.stripes == 0 => Ok(()),
            KIND_REPORT..=KIND_PROBED if self.stripes == 0 => Ok(()),
            KIND_START if (1..=super::STRIPES_MAX as u8).contains(&self.stripes) => Ok(()),
            _ => Err(DecodeError::Field),
        }
    }
}
