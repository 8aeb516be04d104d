//! Writes whose bytes lie in several places: one request for all of them.

use super::peer::{PARTS_MAX, SENDS, Sent};
use super::post::{NOTHING, Owner, write_shape};
use super::rail::Verbs;
use super::sys::abi::Sge;
use crate::fabric::{Gather, LocalSpan, PostError, Posted};

/// Parts whose regions are pinned.
struct Held {
    pins: [u32; PARTS_MAX],
    parts: [Sge; PARTS_MAX],
    count: usize,
}

impl Verbs<'_> {
    /// A write of several parts, one behind the other.
    pub(super) fn gather(&mut self, gather: &Gather) -> Result<Posted, PostError> {
        let Gather { id, peer, parts, target, immediate } = *gather;
        let index = peer.as_usize();
        let length = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.length().0));
        let most = self.transfer_bytes_max();
        let parts_max = self.peers[index].parts_max.into();
        let length = length.filter(|length| parts.len() <= parts_max && *length <= most);
        let length = length.ok_or(PostError::Unsupported)?;
        let splits = immediate.is_some() && length >= self.adaptive_bytes_min;
        // a place for the pin of each, and one for the word
        let places = parts.len().max(1) + usize::from(splits);
        if !self.has_room(index, places, None) || self.asides.is_full() {
            return Err(PostError::Again);
        }
        let Some(held) = self.hold_all(parts) else { return Ok(self.refuse(id, peer)) };
        let Held { pins, parts, count } = held;
        let last = count.max(1) - 1;
        for pin in &pins[..last] {
            self.push_pin(index, *pin);
        }
        let (shape, owner) = (write_shape(target, immediate), Owner::loud(id, pins[last]));
        match splits {
            false => self.push_parts(index, &parts[..=last], &shape, owner),
            true => self.push_split(index, &parts[..=last], &shape, owner),
        }
        Ok(Posted::Pending)
    }

    /// Pins the regions of all parts that have bytes, or of none.
    fn hold_all(&mut self, parts: &[LocalSpan]) -> Option<Held> {
        let mut held = Held { pins: [0; PARTS_MAX], parts: [NOTHING; PARTS_MAX], count: 0 };
        for part in parts.iter().filter(|part| part.length().0 > 0) {
            let (addr, length) = (part.address(), part.length().0);
            let Some((region, lkey)) = self.domain.hold(part.key(), addr, length) else {
                held.pins[..held.count].iter().for_each(|pin| self.domain.release(pin - 1));
                return None;
            };
            held.pins[held.count] = region + 1;
            held.parts[held.count] = Sge { addr, length: length as u32, lkey };
            held.count += 1;
        }
        Some(held)
    }

    /// Takes a place for the pin of a part that is not the last.
    fn push_pin(&mut self, index: usize, pin: u32) {
        let record = &mut self.peers[index];
        let place = (record.next % SENDS) as usize;
        record.next = record.next.wrapping_add(1);
        self.sent[index * SENDS as usize + place] = Sent { pin, ..Sent::FREE };
    }
}
