//! The bytes of a completion queue entry.
//!
//! Device code on compute capability 9.0 reads the last byte alone; older code reads the last four.
//! All that is read stands in the last word, so one store with release publishes an entry.
//!
//! *Source*: mlx5's programmer's reference; NVIDIA's `doca_gpunetio_dev_verbs_cq.cuh`.

use super::ENTRY_WORDS;
use crate::base::sync::{AtomicU64, Ordering};

/// Completed.
const REQUEST: u8 = 0;
/// Completed with an error.
const REQUEST_ERROR: u8 = 13;
/// What a slot holds before its first lap: owned by hardware, and invalid.
const INVALID: u8 = 0xf1;

/// Why an entry failed, as the adapter numbers it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Syndrome {
    /// A length is over what its segments hold.
    LocalLength = 0x01,
    /// The entry makes no sense: its opcode, its segments, its queue.
    LocalOperation = 0x02,
    /// A local key or address is not registered.
    LocalProtection = 0x04,
    /// An earlier entry of the queue failed.
    Flushed = 0x05,
    /// The peer has no such key, or the address lies outside.
    RemoteAccess = 0x13,
    /// The copy or the atomic failed at the peer.
    RemoteOperation = 0x14,
    /// The peer is gone.
    PeerLost = 0x15,
}

/// Makes every slot of a completion queue invalid.
pub fn clear(ring: &[AtomicU64]) {
    for (at, word) in ring.iter().enumerate() {
        let last = at % ENTRY_WORDS == ENTRY_WORDS - 1;
        word.store(if last { u64::from(INVALID) << 56 } else { 0 }, Ordering::Relaxed);
    }
}

/// Publishes the completion of `index` on the queue `number`, whose ring has a slot per entry.
///
/// *Cost*: one store, or two for an error.
pub fn publish(ring: &[AtomicU64], number: u32, index: u64, failed: Option<Syndrome>) {
    let slots = (ring.len() / ENTRY_WORDS) as u64;
    let at = (index % slots) as usize * ENTRY_WORDS;
    let owner = ((index / slots) & 1) as u8;
    let opcode = if failed.is_some() { REQUEST_ERROR } else { REQUEST };
    if let Some(syndrome) = failed {
        // byte 55 of the entry
        ring[at + 6].store(u64::from(syndrome as u8) << 56, Ordering::Relaxed);
    }
    let counter = (index as u16).to_be_bytes();
    let queue = number.to_be_bytes();
    let bytes =
        [queue[0], queue[1], queue[2], queue[3], counter[0], counter[1], 0, opcode << 4 | owner];
    // pairs with the system-scope load of the GPU's poll
    ring[at + 7].store(u64::from_le_bytes(bytes), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 4;

    fn ring() -> [AtomicU64; SLOTS * ENTRY_WORDS] {
        let ring = [const { AtomicU64::new(0) }; SLOTS * ENTRY_WORDS];
        clear(&ring);
        ring
    }

    fn last_byte(ring: &[AtomicU64], slot: usize) -> u8 {
        (ring[slot * ENTRY_WORDS + 7].load(Ordering::Acquire) >> 56) as u8
    }

    #[test]
    fn a_slot_is_invalid_and_owned_by_hardware_before_its_first_lap() {
        let ring = ring();
        for slot in 0..SLOTS {
            assert_eq!(last_byte(&ring, slot), 0xf1);
        }
    }

    #[test]
    fn the_owner_bit_flips_with_each_lap() {
        let ring = ring();
        for index in 0..3 * SLOTS as u64 {
            publish(&ring, 7, index, None);
            let lap = ((index / SLOTS as u64) & 1) as u8;
            assert_eq!(last_byte(&ring, (index % SLOTS as u64) as usize), lap);
        }
    }

    #[test]
    fn an_error_says_opcode_and_syndrome() {
        let ring = ring();
        publish(&ring, 0x00ab_cdef, 0x1_0102, Some(Syndrome::RemoteAccess));
        let last = ring[2 * ENTRY_WORDS + 7].load(Ordering::Acquire).to_le_bytes();
        assert_eq!(last, [0, 0xab, 0xcd, 0xef, 0x01, 0x02, 0, 13 << 4]);
        assert_eq!(ring[2 * ENTRY_WORDS + 6].load(Ordering::Acquire) >> 56, 0x13);
    }
}
