//! The bytes of a work queue entry.
//!
//! An entry is one to four segments of 16 bytes: control, remote address, then data or an atomic.
//! Fields are big-endian; keys are opaque words. Control bytes 8 to 10, the immediate, and the
//! reserved words of other segments are never written by device code, so nothing here reads them.
//!
//! *Source*: NVIDIA's public header `doca_gpunetio_verbs_def.h`, and mlx5's programmer's reference.

use super::ENTRY_WORDS;

/// Longest inline value: two segments without their length word.
pub const INLINE_MAX: usize = 28;
/// A length word with this bit has its bytes behind it.
const INLINE: u32 = 1 << 31;
/// What a length of zero means, as on the adapter.
const LENGTH_OF_ZERO: u64 = 1 << 31;

const NOP: u8 = 0x00;
const WRITE: u8 = 0x08;
const WAIT: u8 = 0x0f;
const READ: u8 = 0x10;
const FETCH_ADD: u8 = 0x12;
const DUMP: u8 = 0x23;

/// A place in registered memory: a key, and an offset from the start of its region.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Address {
    /// The key, as the plugin handed it to the GPU.
    pub key: u32,
    /// Bytes from the start of the region.
    pub offset: u64,
}

/// A stretch of local memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Segment {
    /// Where it begins.
    pub at: Address,
    /// Its length in bytes; zero for a segment that is not there.
    pub bytes: u64,
}

/// What an entry asks for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Work {
    /// Nothing but a completion.
    Nop,
    /// Local bytes go to the peer.
    Write {
        /// Where they go.
        remote: Address,
        /// Where they are.
        local: [Segment; 2],
    },
    /// Bytes of the entry itself go to the peer.
    WriteInline {
        /// Where they go.
        remote: Address,
        /// The bytes; those behind `bytes` are zero.
        data: [u8; INLINE_MAX],
        /// How many they are.
        bytes: u8,
    },
    /// Bytes of the peer come here.
    Read {
        /// Where they are.
        remote: Address,
        /// Where they go.
        local: [Segment; 2],
    },
    /// A 64-bit add to a word of the peer; its old value comes here.
    FetchAdd {
        /// The word.
        remote: Address,
        /// What is added.
        add: u64,
        /// Where the old value goes.
        local: Segment,
    },
    /// Waits until another queue has completed an index.
    Wait {
        /// The number of the completion queue.
        queue: u32,
        /// The index, of which the queue counts the low 32 bits.
        index: u32,
    },
    /// Reads local bytes to nowhere: orders what came before.
    Dump {
        /// The bytes.
        local: Segment,
    },
}

/// A whole entry.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Entry {
    /// What it asks for.
    pub work: Work,
    /// Whether it waits for all that its queue has in flight.
    pub fenced: bool,
}

/// Why an entry is none.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Malformed {
    /// No adapter of ours knows the opcode.
    Opcode,
    /// The opcode and the number of segments do not go together.
    Segments,
    /// An inline value is longer than its segments.
    Length,
}

/// What stands in a slot of a ring.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Slot {
    /// The control segment is not that of this queue and index.
    Empty,
    /// The control segment is there; `settled` says that no word still has the fill pattern.
    Filled {
        /// Whether all of it has come.
        settled: bool,
    },
}

fn words_of(word: u64) -> [u32; 2] {
    [u32::from_be(word as u32), u32::from_be((word >> 32) as u32)]
}

/// How many segments the control word announces.
fn segments(words: &[u64; ENTRY_WORDS]) -> usize {
    (words_of(words[0])[1] & 0x3f) as usize
}

/// Whether `words` hold an entry of `queue` at `index`, and whether all of it has come.
///
/// Words that no device code writes never count: the GPU leaves the tail of an inline value alone.
pub fn inspect(words: &[u64; ENTRY_WORDS], queue: u32, index: u64, pattern: u64) -> Slot {
    let [opcode, number] = words_of(words[0]);
    let here = words[0] != pattern
        && (opcode >> 8) & 0xffff == (index & 0xffff) as u32
        && number >> 8 == queue;
    if !here {
        return Slot::Empty;
    }
    let written = segments(words).min(4) * 2;
    let last = match inline_length(words) {
        Some(bytes) => return Slot::Filled { settled: inline_settled(words, bytes, pattern) },
        None => written,
    };
    Slot::Filled { settled: words[1..last.max(2)].iter().all(|word| *word != pattern) }
}

/// The length of an inline value, where this is one.
fn inline_length(words: &[u64; ENTRY_WORDS]) -> Option<usize> {
    let length = words_of(words[4])[0];
    let is_write = words_of(words[0])[0] as u8 == WRITE;
    (is_write && length & INLINE != 0).then_some((length & !INLINE) as usize)
}

/// Device code writes inline bytes in words of four, and a shorter value by itself.
fn inline_settled(words: &[u64; ENTRY_WORDS], bytes: usize, pattern: u64) -> bool {
    // the value begins in the upper half of word 4
    let half = |word: u64, at: usize| (word >> (32 * ((at + 1) % 2))) as u32;
    let settled = |at: usize, mask: u32| {
        half(words[4 + at.div_ceil(2)], at) & mask != half(pattern, at) & mask
    };
    let (whole, rest) = (bytes.min(INLINE_MAX) / 4, bytes.min(INLINE_MAX) % 4);
    words[1..4].iter().all(|word| *word != pattern)
        && (0..whole).all(|at| settled(at, u32::MAX))
        && (rest == 0 || settled(whole, (1 << (8 * rest)) - 1))
}

/// Reads an entry whose slot is [`Slot::Filled`].
///
/// *Errors*: [`Malformed`]; the queue fails, and the entry completes with an error.
pub fn decode(words: &[u64; ENTRY_WORDS]) -> Result<Entry, Malformed> {
    let opcode = words_of(words[0])[0] as u8;
    let count = segments(words);
    let expect = |least: usize, most: usize| match (least..=most).contains(&count) {
        true => Ok(()),
        false => Err(Malformed::Segments),
    };
    let work = match opcode {
        NOP => expect(1, 1).map(|()| Work::Nop)?,
        WRITE => expect(3, 4).and_then(|()| write(words, count))?,
        READ => expect(3, 4)
            .map(|()| Work::Read { remote: remote(words), local: data(words, count) })?,
        FETCH_ADD => expect(4, 4).map(|()| Work::FetchAdd {
            remote: remote(words),
            add: u64::from_be(words[4]),
            local: segment(words, 3),
        })?,
        WAIT => expect(2, 2).map(|()| wait(words))?,
        DUMP => expect(2, 2).map(|()| Work::Dump { local: segment(words, 1) })?,
        _ => return Err(Malformed::Opcode),
    };
    // byte 11 holds the fence in its upper three bits; releases differ in the value they write
    Ok(Entry { work, fenced: (words[1] >> 24) as u8 >> 5 != 0 })
}

fn remote(words: &[u64; ENTRY_WORDS]) -> Address {
    Address { offset: u64::from_be(words[2]), key: words[3] as u32 }
}

/// The data segment number `at` of the entry.
fn segment(words: &[u64; ENTRY_WORDS], at: usize) -> Segment {
    let length = u64::from(words_of(words[2 * at])[0] & !INLINE);
    Segment {
        at: Address { key: (words[2 * at] >> 32) as u32, offset: u64::from_be(words[2 * at + 1]) },
        bytes: if length == 0 { LENGTH_OF_ZERO } else { length },
    }
}

fn data(words: &[u64; ENTRY_WORDS], count: usize) -> [Segment; 2] {
    let second = if count == 4 { segment(words, 3) } else { Segment::default() };
    [segment(words, 2), second]
}

fn write(words: &[u64; ENTRY_WORDS], count: usize) -> Result<Work, Malformed> {
    let remote = remote(words);
    let Some(bytes) = inline_length(words) else {
        return Ok(Work::Write { remote, local: data(words, count) });
    };
    if bytes > (count - 2) * 16 - 4 {
        return Err(Malformed::Length);
    }
    let mut tail = [0u8; INLINE_MAX + 4];
    for (chunk, word) in tail.chunks_exact_mut(8).zip(&words[4..]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let mut inline = [0u8; INLINE_MAX];
    inline[..bytes].copy_from_slice(&tail[4..4 + bytes]);
    Ok(Work::WriteInline { remote, data: inline, bytes: bytes as u8 })
}

fn wait(words: &[u64; ENTRY_WORDS]) -> Work {
    // two reserved words stand before index and queue
    let [index, queue] = words_of(words[3]);
    Work::Wait { queue, index }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::fake_gpu;

    const QUEUE: u32 = 0x00ab_cdef;
    const PATTERN: u64 = 0xa5c3_f00d_dead_beef;
    const REMOTE: Address = Address { key: 0x8000_0001, offset: 0x1122_3344_5566 };
    const LOCAL: Segment = Segment { at: Address { key: 0x8000_0002, offset: 77 }, bytes: 4096 };

    fn all() -> [Work; 9] {
        let none = Segment::default();
        let mut data = [0; INLINE_MAX];
        data[..8].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        [
            Work::Nop,
            Work::Write { remote: REMOTE, local: [LOCAL, none] },
            Work::Write { remote: REMOTE, local: [LOCAL, LOCAL] },
            Work::WriteInline { remote: REMOTE, data, bytes: 8 },
            Work::WriteInline { remote: REMOTE, data: [0; INLINE_MAX], bytes: 0 },
            Work::Read { remote: REMOTE, local: [LOCAL, none] },
            Work::FetchAdd { remote: REMOTE, add: u64::MAX, local: Segment { bytes: 8, ..LOCAL } },
            Work::Wait { queue: 9, index: 0xffff_fff0 },
            Work::Dump { local: Segment { bytes: 1, ..LOCAL } },
        ]
    }

    #[test]
    fn every_entry_reads_as_it_was_written() {
        for (at, work) in all().into_iter().enumerate() {
            let index = 0x1_fffe + at as u64;
            let words = fake_gpu::encode(&work, QUEUE, index, PATTERN);
            let slot = inspect(&words, QUEUE, index, PATTERN);
            assert_eq!(slot, Slot::Filled { settled: true }, "{work:?}");
            assert_eq!(decode(&words), Ok(Entry { work, fenced: false }));
        }
    }

    #[test]
    fn an_entry_of_another_queue_or_index_is_not_there() {
        let words = fake_gpu::encode(&Work::Nop, QUEUE, 5, PATTERN);
        assert_eq!(inspect(&words, QUEUE, 6, PATTERN), Slot::Empty);
        assert_eq!(inspect(&words, QUEUE + 1, 5, PATTERN), Slot::Empty);
        assert_eq!(inspect(&[PATTERN; ENTRY_WORDS], QUEUE, 5, PATTERN), Slot::Empty);
    }

    #[test]
    fn a_word_that_has_not_come_leaves_the_entry_unsettled() {
        for work in all() {
            let whole = fake_gpu::encode(&work, QUEUE, 5, PATTERN);
            let written = (1..ENTRY_WORDS).filter(|at| whole[*at] != PATTERN);
            for late in written {
                let mut words = whole;
                words[late] = PATTERN;
                let slot = inspect(&words, QUEUE, 5, PATTERN);
                assert_ne!(slot, Slot::Filled { settled: true }, "{work:?}, word {late}");
            }
        }
    }

    #[test]
    fn inline_values_of_every_length_arrive_whole() {
        for bytes in 0..=INLINE_MAX as u8 {
            let data: [u8; INLINE_MAX] =
                core::array::from_fn(|at| if at < bytes as usize { at as u8 + 1 } else { 0 });
            let work = Work::WriteInline { remote: REMOTE, data, bytes };
            let words = fake_gpu::encode(&work, QUEUE, 5, PATTERN);
            assert_eq!(inspect(&words, QUEUE, 5, PATTERN), Slot::Filled { settled: true });
            assert_eq!(decode(&words), Ok(Entry { work, fenced: false }));
        }
    }

    #[test]
    fn any_value_of_the_fence_bits_is_a_fence() {
        for fence in 1..8u64 {
            let mut words = fake_gpu::encode(&Work::Nop, QUEUE, 5, PATTERN);
            words[1] |= fence << 29;
            assert_eq!(decode(&words), Ok(Entry { work: Work::Nop, fenced: true }));
        }
    }

    #[test]
    fn entries_that_make_no_sense_are_refused() {
        let with = |opcode: u32, segments: u32| {
            let mut words = [0; ENTRY_WORDS];
            words[0] = u64::from(opcode.to_be()) | u64::from(segments.to_be()) << 32;
            words
        };
        assert_eq!(decode(&with(0x11, 4)), Err(Malformed::Opcode));
        for (opcode, right) in [(0x00, 1), (0x10, 3), (0x12, 4), (0x0f, 2), (0x23, 2)] {
            assert_eq!(decode(&with(opcode, right + 2)), Err(Malformed::Segments));
            assert_eq!(decode(&with(opcode, 0)), Err(Malformed::Segments));
        }
        let mut long = with(0x08, 3);
        long[4] = u64::from((INLINE | 13).to_be());
        assert_eq!(decode(&long), Err(Malformed::Length));
    }

    #[test]
    fn a_length_of_zero_means_what_the_adapter_means() {
        let mut words = fake_gpu::encode(&Work::Dump { local: LOCAL }, QUEUE, 5, PATTERN);
        words[2] &= !u64::from(u32::MAX);
        let local = Segment { bytes: 1 << 31, ..LOCAL };
        assert_eq!(decode(&words), Ok(Entry { work: Work::Dump { local }, fenced: false }));
    }
}
