//! Messages of a vendor's rail that were received and not released, under slots of ours; and memory
//! that they are brought to when the vendor's object is closed before they were taken.

use super::Vendor;
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::fabric::{Provider, RecvSlot};
use crate::provider::taken::{CELL_BYTES, SLOTS, Taken};

/// One message.
#[derive(Copy, Clone)]
struct Held {
    /// The vendor's slot, or that of the memory.
    slot: RecvSlot,
    length: u32,
}

impl Held {
    const NONE: Held = Held { slot: RecvSlot(0), length: 0 };
}

/// What is held, of all peers.
pub struct Shelter<'m> {
    held: &'m mut [[Held; SLOTS]],
    /// By peer, a bit for each slot of ours that is in use.
    in_use: &'m mut [u64],
    memory: Taken,
    /// Whether what is held was brought to memory.
    is_brought: bool,
}

const _: () = assert!(SLOTS == u64::BITS as usize);

impl<'m> Shelter<'m> {
    /// Bytes that [`Shelter::open`] cuts.
    pub const fn bytes(peers_max: u32) -> usize {
        bytes_for::<[Held; SLOTS]>(peers_max as usize) + bytes_for::<u64>(peers_max as usize)
    }

    /// Address space for what peers may have sent, which becomes memory if it is used.
    pub fn open(block: &mut Carver<'m>, peers_max: u32) -> Option<Shelter<'m>> {
        let held = block.filled(peers_max as usize, [Held::NONE; SLOTS]).ok()?;
        let in_use = block.slice(peers_max as usize).ok()?;
        let memory = Taken::create(peers_max).ok()?;
        Some(Shelter { held, in_use, memory, is_brought: false })
    }

    /// A slot for a message that the vendor has; `None`: there are too many, or it is too long.
    #[inline]
    pub fn hold(&mut self, peer: PeerIndex, slot: RecvSlot, length: u32) -> Option<RecvSlot> {
        let in_use = &mut self.in_use[peer.as_usize()];
        let at = in_use.trailing_ones() as usize;
        if at >= SLOTS || length as usize > CELL_BYTES {
            return None;
        }
        *in_use |= 1 << at;
        self.held[peer.as_usize()][at] = Held { slot, length };
        Some(RecvSlot(at as u64))
    }

    /// Whether a message of the peer's is held that the vendor calls so.
    #[inline]
    pub fn has(&self, peer: PeerIndex, slot: RecvSlot) -> bool {
        let mut left = self.in_use[peer.as_usize()];
        while left != 0 {
            if self.held[peer.as_usize()][left.trailing_zeros() as usize].slot == slot {
                return true;
            }
            left &= left - 1;
        }
        false
    }

    fn is_held(&self, peer: PeerIndex, slot: RecvSlot) -> bool {
        slot.0 < SLOTS as u64 && self.in_use[peer.as_usize()] >> slot.0 & 1 == 1
    }

    fn held(&self, peer: PeerIndex, slot: RecvSlot) -> Held {
        assert!(self.is_held(peer, slot), "slot {slot:?} is not held");
        self.held[peer.as_usize()][slot.0 as usize]
    }

    /// The vendor's name of a slot; `None`: the message is here. *Panics* when it is not held.
    #[inline]
    pub fn of(&self, peer: PeerIndex, slot: RecvSlot) -> Option<RecvSlot> {
        let held = self.held(peer, slot);
        (!self.is_brought).then_some(held.slot)
    }

    /// Gives a slot back, and says its name where it is the vendor's. One that was given back with
    /// its peer is none.
    #[inline]
    pub fn release(&mut self, peer: PeerIndex, slot: RecvSlot) -> Option<RecvSlot> {
        if !self.is_held(peer, slot) {
            return None;
        }
        let held = self.held(peer, slot);
        self.in_use[peer.as_usize()] &= !(1 << slot.0);
        if self.is_brought {
            self.memory.release(peer.as_usize(), held.slot);
            return None;
        }
        Some(held.slot)
    }

    /// Whether nothing of a peer's is held.
    pub fn is_empty(&self, peer: PeerIndex) -> bool {
        self.in_use[peer.as_usize()] == 0
    }

    /// The peer's slots were given back with it.
    pub fn release_all(&mut self, peer: PeerIndex) {
        self.in_use[peer.as_usize()] = 0;
        if self.is_brought {
            self.memory.discard(peer.as_usize());
        }
    }

    /// Copies what is held out of the vendor's slots, once.
    #[cold]
    pub fn bring(&mut self, vendor: &mut Vendor) {
        if core::mem::replace(&mut self.is_brought, true) {
            return;
        }
        for (index, held) in self.held.iter_mut().enumerate() {
            for (at, held) in held.iter_mut().enumerate() {
                if self.in_use[index] >> at & 1 == 0 {
                    continue;
                }
                let length = held.length as usize;
                let room = self.memory.acquire(index, length);
                let (slot, to) = room.expect("as many cells as slots, as long as they may be");
                // SAFETY: a cell of at least that many bytes, which nobody else knows yet.
                let to = unsafe { core::slice::from_raw_parts_mut(to, length) };
                vendor.received_peek(PeerIndex(index as u32), held.slot, to);
                held.slot = slot;
            }
        }
    }

    /// Copies a part of a message that was brought here. *Panics* when it is not that long.
    ///
    /// # Safety
    /// - `to` is valid for writes of `length` bytes.
    pub unsafe fn copy(
        &self,
        peer: PeerIndex,
        slot: RecvSlot,
        offset: u64,
        to: *mut u8,
        length: usize,
    ) {
        let slot = self.held(peer, slot).slot;
        let from = self.memory.bytes(peer.as_usize(), slot, offset, length);
        // SAFETY: inside of the message (`Taken::bytes`), and this function's contract.
        unsafe { from.copy_to_nonoverlapping(to, length) };
    }
}
