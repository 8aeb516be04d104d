//! W5: the state line, by which each side tells the other how far it has come.
#![forbid(unsafe_code)]

use super::{DecodeError, wire_struct};

/// No verdict on a cancellation yet.
pub const VERDICT_NONE: u32 = 0;
/// The group was withdrawn; nothing will be written into it.
pub const VERDICT_CANCELED: u32 = 1;
/// A message was bound to it already and will arrive.
pub const VERDICT_REFUSED: u32 = 2;

/// The writer has given the connection up; nothing more will come.
pub const STATE_FAILED: u32 = 1;

wire_struct! {
    /// W5. Everything is absolute or cumulative, so that only the newest line matters.
    StateLine [64] {
        /// Same as `sequence`: a line half written shows two numbers.
        sequence_first: u32 = 0,
        /// The reader may consume receives up to this count.
        credits_through: u32 = 4,
        /// Bit `i`: the reader's message `delivered_through + i` is delivered.
        delivered_mask: u64 = 8,
        /// The reader's messages below this number are delivered.
        delivered_through: u32 = 16,
        /// The reader will see no slots for groups below this one: they are bound.
        groups_through: u32 = 20,
        /// The group that `cancel_verdict` is about.
        cancel_group: u32 = 24,
        /// A `VERDICT_` constant, in answer to the reader's `SLOT_CANCEL`.
        cancel_verdict: u32 = 28,
        /// The reader's sends below this eager number have been taken in.
        eager_through: u32 = 32,
        /// `STATE_` flags.
        flags: u32 = 36,
        /// How often the line was written.
        sequence: u32 = 56,
        /// The writer's control epoch.
        epoch: u32 = 60,
    }
}

impl StateLine {
    /// Decodes; a line that is half written, or has an unknown verdict, is refused.
    pub fn decode(bytes: &[u8; 64]) -> Result<StateLine, DecodeError> {
        let line = StateLine::from_bytes(bytes);
        let known = line.cancel_verdict <= VERDICT_REFUSED && line.flags & !STATE_FAILED == 0;
        if line.sequence_first == line.sequence && known {
            Ok(line)
        } else {
            Err(DecodeError::Field)
        }
    }
}
