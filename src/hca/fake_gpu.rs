//! Writes work queue entries as a GPU does, for tests.
//!
//! Bytes that device code leaves alone keep the fill pattern, and those that it leaves
//! uninitialised hold garbage.

use super::ENTRY_WORDS;
use super::entry::{Segment, Work};
use crate::base::sync::{AtomicU64, Ordering};

/// Garbage in the control segment's uninitialised bytes; byte 11 asks for a completion.
const CONTROL_REST: u64 = 0x5a5a_5a5a_0847_4645;

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low.to_be()) | u64::from(high.to_be()) << 32
}

fn segment(local: &Segment) -> [u64; 2] {
    [
        u64::from((local.bytes as u32).to_be()) | u64::from(local.at.key) << 32,
        local.at.offset.to_be(),
    ]
}

/// The words of an entry of `queue` at `index`, in a slot that held `pattern`.
pub fn encode(work: &Work, queue: u32, index: u64, pattern: u64) -> [u64; ENTRY_WORDS] {
    let mut words = [pattern; ENTRY_WORDS];
    let (opcode, segments) = match work {
        Work::Nop => (0x00, 1),
        Work::Write { local, .. } => (0x08, if local[1].bytes == 0 { 3 } else { 4 }),
        Work::WriteInline { bytes, .. } => (0x08, if *bytes > 12 { 4 } else { 3 }),
        Work::Read { local, .. } => (0x10, if local[1].bytes == 0 { 3 } else { 4 }),
        Work::FetchAdd { .. } => (0x12, 4),
        Work::Wait { .. } => (0x0f, 2),
        Work::Dump { .. } => (0x23, 2),
    };
    words[0] = pair(((index as u32 & 0xffff) << 8) | opcode, queue << 8 | segments);
    words[1] = CONTROL_REST;
    match work {
        Work::Nop => {}
        Work::Write { remote, local } | Work::Read { remote, local } => {
            words[2] = remote.offset.to_be();
            words[3] = u64::from(remote.key) | 0x7777_7777 << 32;
            words[4..6].copy_from_slice(&segment(&local[0]));
            if local[1].bytes > 0 {
                words[6..8].copy_from_slice(&segment(&local[1]));
            }
        }
        Work::WriteInline { remote, data, bytes } => {
            words[2] = remote.offset.to_be();
            words[3] = u64::from(remote.key) | 0x7777_7777 << 32;
            inline(&mut words, &data[..*bytes as usize]);
        }
        Work::FetchAdd { remote, add, local } => {
            words[2] = remote.offset.to_be();
            words[3] = u64::from(remote.key) | 0x7777_7777 << 32;
            words[4] = add.to_be();
            words[5] = 0;
            words[6..8].copy_from_slice(&segment(local));
        }
        Work::Wait { queue, index } => {
            words[2] = 0x6666_6666_6666_6666;
            words[3] = pair(*index, *queue);
        }
        Work::Dump { local } => words[2..4].copy_from_slice(&segment(local)),
    }
    words
}

/// The length and the value alone; bytes behind the value stay as they were.
fn inline(words: &mut [u64; ENTRY_WORDS], data: &[u8]) {
    let mut bytes = [0; ENTRY_WORDS * 8];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words.iter()) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes[32..36].copy_from_slice(&(data.len() as u32 | 1 << 31).to_be_bytes());
    bytes[36..36 + data.len()].copy_from_slice(data);
    for (chunk, word) in bytes.chunks_exact(8).zip(words.iter_mut()) {
        *word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    }
}

/// One queue as its GPU sees it.
#[derive(Debug)]
pub struct FakeQueue<'m> {
    ring: &'m [AtomicU64],
    completions: &'m [AtomicU64],
    doorbell: &'m AtomicU64,
    number: u32,
    written: u64,
}

impl<'m> FakeQueue<'m> {
    /// The queue `number` over the memory that both sides share.
    pub fn new(
        ring: &'m [AtomicU64],
        completions: &'m [AtomicU64],
        doorbell: &'m AtomicU64,
        number: u32,
    ) -> FakeQueue<'m> {
        FakeQueue { ring, completions, doorbell, number, written: 0 }
    }

    /// Goes on as if the entries before `index` had come and gone.
    #[cfg(test)]
    pub fn skip_to(&mut self, index: u64) {
        self.written = index;
    }

    fn depth(&self) -> u64 {
        (self.ring.len() / ENTRY_WORDS) as u64
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The words of the slot of `index`, for stores that come late.
    pub fn slot_words(&self, index: u64) -> &'m [AtomicU64] {
        &self.ring[(index % self.depth()) as usize * ENTRY_WORDS..][..ENTRY_WORDS]
    }

    /// The doorbell, for values that no device code writes.
    pub fn doorbell(&self) -> &'m AtomicU64 {
        self.doorbell
    }

    /// Writes an entry into its slot, without a doorbell; its index. `fence` is what device code
    /// puts into the fence bits.
    pub fn write(&mut self, work: &Work, fence: u64) -> u64 {
        let index = self.written;
        let at = (index % self.depth()) as usize * ENTRY_WORDS;
        let slot = &self.ring[at..at + ENTRY_WORDS];
        let mut words = encode(work, self.number, index, slot[0].load(Ordering::Relaxed));
        words[1] |= fence << 29;
        for (place, word) in slot.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.written += 1;
        index
    }

    /// Rings: all that was written is announced.
    pub fn ring(&self) {
        self.doorbell.store(self.written, Ordering::Release);
    }

    /// Writes an entry and rings; its index.
    pub fn post(&mut self, work: &Work) -> u64 {
        let index = self.write(work, 0);
        self.ring();
        index
    }

    /// Whether there is room for another entry, as device code asks before it writes.
    pub fn has_room(&self) -> bool {
        match self.written.checked_sub(self.depth()) {
            None => true,
            Some(index) => self.poll(index).is_some(),
        }
    }

    /// What the completion queue says of `index`: nothing yet, completed, or the syndrome.
    pub fn poll(&self, index: u64) -> Option<Result<(), u8>> {
        let at = (index % self.depth()) as usize * ENTRY_WORDS;
        let last = self.completions[at + 7].load(Ordering::Acquire).to_le_bytes();
        let lap = ((index / self.depth()) & 1) as u8;
        let counter = u16::from_be_bytes([last[4], last[5]]);
        if last[7] & 1 != lap || counter != index as u16 {
            return None;
        }
        let syndrome = (self.completions[at + 6].load(Ordering::Relaxed) >> 56) as u8;
        Some(if last[7] >> 4 == 0 { Ok(()) } else { Err(syndrome) })
    }
}
