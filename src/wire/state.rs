//! W5: the state line, by which each side tells the other how far it has come.

use super::{DecodeError, wire_struct};

/// The writer has given the connection up; nothing more will come.
pub const STATE_FAILED: u32 = 1;
/// `canceled_group` answers a `SLOT_CANCEL`: nothing will be written into that group.
pub const STATE_CANCELED: u32 = 2;
/// Every flag that this version knows.
pub const STATE_FLAGS: u32 = STATE_FAILED | STATE_CANCELED;

wire_struct! {
    /// W5. Everything is absolute or cumulative, so that only the newest line matters.
    StateLine [64] {
        /// Same as `sequence`: a line half written shows two numbers.
        sequence_first: u32 = 0,
        /// The reader may consume receives up to this count.
        credits_through: u32 = 4,
        /// Bit `i`: the reader's long message `delivered_through + i` is delivered.
        delivered_mask: u64 = 8,
        /// The reader's long messages below this number are delivered.
        delivered_through: u32 = 16,
        /// The writer has bound messages to every receive of the reader's groups below this one
        /// (or withdrawn them), so that their slots may be used again.
        groups_through: u32 = 20,
        /// With `STATE_CANCELED`, the group of the reader that was withdrawn last.
        canceled_group: u32 = 24,
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
    /// Decodes; a line that is half written, or has unknown flags, is refused.
    pub fn decode(bytes: &[u8; 64]) -> Result<StateLine, DecodeError> {
        let line = StateLine::from_bytes(bytes);
        let known = line.flags & !STATE_FLAGS == 0;
        if line.sequence_first == line.sequence && known {
            Ok(line)
        } else {
            Err(DecodeError::Field)
        }
    }
}
