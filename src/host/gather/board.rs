//! Host memory by which the ranks of a group tell each other of their AllGathers: a window of the
//! group's own. It has records for the set-up, and words that other ranks add to.

use crate::base::slab::Handle;
use crate::window::{Span, WindowMemory};
use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::vec::Vec;

/// Requests of a group at a time: a bit of a word for each.
pub const SLOTS: usize = 64;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 256;

/// What a word of a request counts: by rank that adds.
#[derive(Copy, Clone, Debug)]
pub enum Count {
    /// How often that rank was ready.
    Ready,
    /// How many chunks it has put here, which are there and visible.
    Arrived,
}

/// The memory.
#[derive(Debug)]
pub struct Board {
    memory: Box<[AtomicU64]>,
    ranks: usize,
    /// Its region.
    pub region: Handle,
    /// The window, which all ranks have exchanged.
    pub window: Handle,
    /// Rounds of records so far.
    round: AtomicU64,
}

impl Board {
    /// Memory for so many ranks; region and window are yet to be made.
    pub fn new(ranks: usize) -> Board {
        let words = words_before(ranks) + ranks + SLOTS * 2 * ranks;
        let memory: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (region, window) = (Handle::default(), Handle::default());
        Board { memory: memory.into(), ranks, region, window, round: AtomicU64::new(0) }
    }

    /// As a window is made of it.
    pub fn window_memory(&self) -> WindowMemory {
        let (address, length) = (self.address(), self.length());
        // SAFETY: the board's own memory, of atomics, which stays until the window has ended.
        let bytes = unsafe { Span::new(address, length) };
        let (is_device, is_read_only) = (false, false);
        WindowMemory { region: self.region, address, length, is_device, is_read_only, bytes }
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        size_of_val(&*self.memory) as u64
    }

    /// This rank comes to the next round. One thread calls this.
    pub fn round_begin(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    fn parity(&self) -> usize {
        (self.round.load(Ordering::Relaxed) % 2) as usize
    }

    /// Where a rank's record of this round lies, at every rank.
    pub fn record_offset(&self, rank: usize) -> u64 {
        ((self.parity() * self.ranks + rank) * RECORD_BYTES) as u64
    }

    /// The word that a rank adds to when its record is there.
    pub fn round_offset(&self, rank: usize) -> u64 {
        (words_before(self.ranks) + rank) as u64 * 8
    }

    /// Writes the own record of this round; where it lies.
    pub fn record_write(&self, record: &[u8; RECORD_BYTES]) -> (u64, u64) {
        let at = 2 * self.ranks * RECORD_BYTES + self.parity() * RECORD_BYTES;
        for (word, bytes) in self.memory[at / 8..].iter().zip(record.chunks_exact(8)) {
            let value = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            word.store(value, Ordering::Relaxed);
        }
        (self.address() + at as u64, RECORD_BYTES as u64)
    }

    /// A rank's record of this round.
    pub fn record_read(&self, rank: usize) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        let first = self.record_offset(rank) as usize / 8;
        for (word, bytes) in self.memory[first..].iter().zip(record.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        record
    }

    /// The first rank whose record of this round has not come.
    pub fn missing(&self) -> Option<u32> {
        let word = |rank: usize| &self.memory[self.round_offset(rank) as usize / 8];
        // acquire: pairs with the release of `Span::add`, behind the record
        let round = self.round.load(Ordering::Relaxed);
        let has_come = |rank: &usize| word(*rank).load(Ordering::Acquire) >= round;
        (0..self.ranks).find(|rank| !has_come(rank)).map(|rank| rank as u32)
    }

    /// Where the word of a request lies that `by` adds to, at every rank.
    pub fn count_offset(&self, slot: usize, count: Count, by: usize) -> u64 {
        let kind = match count {
            Count::Ready => 0,
            Count::Arrived => 1,
        };
        let word = words_before(self.ranks) + self.ranks + (slot * 2 + kind) * self.ranks + by;
        word as u64 * 8
    }

    /// What `by` has added to a word of a request.
    pub fn count(&self, slot: usize, count: Count, by: u32) -> u64 {
        let at = self.count_offset(slot, count, by as usize) as usize / 8;
        self.memory[at].load(Ordering::Acquire) // pairs with the release of `Span::add`
    }

    /// A request begins in a slot: its words count from zero.
    pub fn clear(&self, slot: usize) {
        let first = self.count_offset(slot, Count::Ready, 0) as usize / 8;
        self.memory[first..][..2 * self.ranks].iter().for_each(|w| w.store(0, Ordering::Relaxed));
    }
}

/// Words of the records, before all others: two rounds of all ranks, and two of the own rank.
fn words_before(ranks: usize) -> usize {
    (2 * ranks + 2) * RECORD_BYTES / 8
}
