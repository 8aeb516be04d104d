//! Looking at the mailbox on a rail that pushes: the slots that a peer offers, and the cells that
//! tell the keys of its regions.
#![forbid(unsafe_code)]

use super::connection::READS_ROWS;
use super::endpoint::Endpoint;
use super::limits::CELLS;
use crate::base::seq::Seq;
use crate::fabric::Provider;
use crate::wire::slot::{ControlSlot, SlotGlance};
use crate::wire::{GROUP_MAX, cell};

/// A slot's cell number when the receive has no room and hence no region.
pub(super) const NO_CELL: u32 = u32::MAX;

/// Which words of a slot (W3) hold its tag, in the low half, and its flags, in the second quarter.
const TAG_WORD: usize = 3;
const FLAGS_WORD: usize = 4;

/// Line numbers of a mailbox: state line, cells of two lines each, slots.
pub(super) const fn cell_line(cell: usize) -> usize {
    1 + cell * 2
}

impl<P: Provider> Endpoint<'_, P> {
    /// Where a slot lies: after the state line and the cells, the first slots of all groups, which
    /// mostly are the only ones, before the second ones. With a peer that does not know that, those
    /// of one group lie together.
    #[inline]
    pub(super) fn slot_line(&self, index: usize, group: Seq, receive: u8) -> usize {
        let (groups, receive) = (self.limits.groups_max(), usize::from(receive));
        let group = group.cell(groups);
        // the core archive never agrees on rows (c-api/core), and has no room for their code
        let reads =
            if cfg!(feature = "std") { self.connections[index].control.lines.reads } else { 0 };
        1 + CELLS * 2
            + match reads & READS_ROWS {
                0 => group * GROUP_MAX + receive,
                _ => receive * groups as usize + group,
            }
    }

    /// A slot that is there.
    pub(super) fn slot_read(&self, index: usize, group: Seq, receive: u8) -> ControlSlot {
        ControlSlot::from_bytes(&self.mailboxes.line(index, self.slot_line(index, group, receive)))
    }

    /// The tag of a slot that is there.
    #[inline]
    pub(super) fn slot_tag(&self, index: usize, group: Seq, receive: u8) -> i32 {
        let word = self.mailboxes.word_at(index, self.slot_line(index, group, receive), TAG_WORD);
        word as i32
    }

    /// The flags of a slot that is there.
    #[inline]
    pub(super) fn slot_flags(&self, index: usize, group: Seq, receive: u8) -> u16 {
        let word = self.mailboxes.word_at(index, self.slot_line(index, group, receive), FLAGS_WORD);
        (word >> 16) as u16
    }

    /// Whether a slot is there.
    #[inline]
    pub(super) fn slot_is_there(&self, index: usize, group: Seq, receive: u8) -> bool {
        let expected =
            u64::from(self.connections[index].control.peer_epoch) << 32 | u64::from(group.0);
        self.mailboxes.last_word(index, self.slot_line(index, group, receive)) == expected
    }

    /// What a slot that is there and valid says of its place.
    #[inline]
    pub(super) fn slot_glance(&self, index: usize, group: Seq, receive: u8) -> Option<SlotGlance> {
        if !self.slot_is_there(index, group, receive) {
            return None;
        }
        let line = self.slot_line(index, group, receive);
        let word = |at| self.mailboxes.word_at(index, line, at);
        SlotGlance::decode(word(SlotGlance::PLACE_WORD), word(SlotGlance::COUNTS_WORD)).ok()
    }

    /// The key of the peer's buffer that a bound message goes to, on one of several lanes; 0: it
    /// has none there. The cell stays as it is until the receive has ended.
    pub(super) fn cell_key(&self, index: usize, cell: u8, lane: u8) -> u64 {
        let line = cell_line(usize::from(cell)) + usize::from(lane / 7);
        self.mailboxes.word_at(index, line, usize::from(lane % 7))
    }

    /// The keys of a slot's region, once they are there. A receive that is open keeps its cell, so
    /// they will be; one that an early message has filled may have lost it, and needs none.
    pub(super) fn cell_read(&self, index: usize, slot: &ControlSlot) -> Option<[u64; 8]> {
        if slot.cell == NO_CELL {
            return Some([0; 8]);
        }
        let at = slot.cell as usize;
        if at >= CELLS {
            return None;
        }
        let first = self.mailboxes.line(index, cell_line(at));
        let second = self.mailboxes.line(index, cell_line(at) + 1);
        cell::decode(
            &first,
            &second,
            slot.cell_sequence,
            self.connections[index].control.peer_epoch,
        )
    }
}
