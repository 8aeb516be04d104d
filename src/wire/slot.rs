//! W3: the control slot, by which a receiver offers one buffer to the sender.
#![forbid(unsafe_code)]

use super::{DecodeError, GROUP_MAX, wire_struct};

/// The receiver wants this group back; the sender answers in its state line.
pub const SLOT_CANCEL: u16 = 1;
/// An early message fills this receive already: `taken_by` is its eager number.
pub const SLOT_TAKEN: u16 = 2;
/// Every flag that this version knows.
pub const SLOT_FLAGS: u16 = SLOT_CANCEL | SLOT_TAKEN;

wire_struct! {
    /// W3. One receive of one group, written into the sender's mailbox.
    ControlSlot [64] {
        /// Address in the receiver's process.
        address: u64 = 0,
        /// Room in bytes.
        length: u64 = 8,
        /// Which region cell holds the keys.
        cell: u32 = 16,
        /// The cell's sequence; until the cell shows it, the slot is not there yet.
        cell_sequence: u32 = 20,
        /// The user's tag.
        tag: i32 = 24,
        /// What the immediates of this slot's stripes carry.
        token: u32 = 28,
        /// Position in the group.
        index: u8 = 32,
        /// Receives in the group, 1 to 8.
        count: u8 = 33,
        /// `SLOT_` flags.
        flags: u16 = 34,
        /// As in the send head.
        credits_through: u32 = 40,
        /// As in the send head.
        delivered_through: u32 = 44,
        /// With `SLOT_TAKEN`, the eager number of the message that fills the receive.
        taken_by: u32 = 48,
        /// The group's number; the slot is there when this and the epoch are the expected ones.
        sequence: u32 = 56,
        /// The receiver's control epoch.
        epoch: u32 = 60,
    }
}

impl ControlSlot {
    /// Decodes and checks position, count and flags.
    pub fn decode(bytes: &[u8; 64]) -> Result<ControlSlot, DecodeError> {
        let slot = ControlSlot::from_bytes(bytes);
        let count = usize::from(slot.count);
        if !(1..=GROUP_MAX).contains(&count) || slot.index >= slot.count {
            return Err(DecodeError::Field);
        }
        if slot.flags & !SLOT_FLAGS != 0 {
            return Err(DecodeError::Field);
        }
        Ok(slot)
    }
}
