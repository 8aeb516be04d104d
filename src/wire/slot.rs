//! W3: the control slot, by which a receiver offers one buffer to the sender.

use super::{DecodeError, GROUP_MAX, wire_struct};

/// The receiver wants this group back; the sender answers in its state line.
pub const SLOT_CANCEL: u16 = 1;
/// An early message fills this receive already: `taken_by` is its eager number.
pub const SLOT_TAKEN: u16 = 2;
/// Most further groups that one slot speaks for.
pub const SLOT_MORE_MAX: u8 = 31;
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
        /// With `SLOT_TAKEN` and one receive, how many groups behind this one have one receive
        /// each, too, filled by the messages behind `taken_by`: they have no slots of their own.
        more: u8 = 36,
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
        check(slot.index, slot.count, slot.flags, slot.more)?;
        Ok(slot)
    }
}

#[inline]
fn check(index: u8, count: u8, flags: u16, more: u8) -> Result<(), DecodeError> {
    if !(1..=GROUP_MAX).contains(&usize::from(count)) || index >= count {
        return Err(DecodeError::Field);
    }
    if flags & !SLOT_FLAGS != 0 {
        return Err(DecodeError::Field);
    }
    if more != 0 && (count != 1 || flags != SLOT_TAKEN || more > SLOT_MORE_MAX) {
        return Err(DecodeError::Field);
    }
    Ok(())
}

/// What a sender wants of a slot whose tag alone it looks at besides: two words of eight.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SlotGlance {
    /// As in the slot.
    pub index: u8,
    /// As in the slot.
    pub count: u8,
    /// As in the slot.
    pub flags: u16,
    /// As in the slot.
    pub more: u8,
    /// As in the slot.
    pub credits_through: u32,
    /// As in the slot.
    pub delivered_through: u32,
}

impl SlotGlance {
    /// Which word holds position, count, flags and what more it speaks for.
    pub const PLACE_WORD: usize = 4;
    /// Which word holds both counts.
    pub const COUNTS_WORD: usize = 5;

    /// Decodes and checks the same fields as [`ControlSlot::decode`].
    #[inline]
    pub fn decode(place: u64, counts: u64) -> Result<SlotGlance, DecodeError> {
        let (index, count, flags) = (place as u8, (place >> 8) as u8, (place >> 16) as u16);
        let more = (place >> 32) as u8;
        check(index, count, flags, more)?;
        let (credits_through, delivered_through) = (counts as u32, (counts >> 32) as u32);
        Ok(SlotGlance { index, count, flags, more, credits_through, delivered_through })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_shows_the_same() {
        let taken = SLOT_TAKEN;
        for (index, count, flags, more) in [
            (0, 1, 0, 0),
            (7, 8, SLOT_CANCEL, 0),
            (1, 1, 0, 0),
            (0, 9, 0, 0),
            (0, 1, 4, 0),
            (0, 1, taken, SLOT_MORE_MAX),
            (0, 1, taken, SLOT_MORE_MAX + 1),
            (0, 2, taken, 1),
            (0, 1, taken | SLOT_CANCEL, 1),
            (0, 1, 0, 1),
        ] {
            let (credits_through, delivered_through) = (0x0102_0304, 0x0506_0708);
            let slot = ControlSlot {
                address: 1,
                length: 2,
                cell: 3,
                cell_sequence: 4,
                tag: 5,
                token: 6,
                index,
                count,
                flags,
                more,
                credits_through,
                delivered_through,
                taken_by: 7,
                sequence: 8,
                epoch: 9,
            };
            let bytes = slot.encode();
            let word = |at| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[8 * at..][..8]);
                u64::from_le_bytes(word)
            };
            let glance =
                SlotGlance::decode(word(SlotGlance::PLACE_WORD), word(SlotGlance::COUNTS_WORD));
            let whole = ControlSlot::decode(&bytes).map(|slot| SlotGlance {
                index: slot.index,
                count: slot.count,
                flags: slot.flags,
                more: slot.more,
                credits_through: slot.credits_through,
                delivered_through: slot.delivered_through,
            });
            assert_eq!(glance, whole);
        }
    }
}
