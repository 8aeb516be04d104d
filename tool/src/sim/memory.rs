//! The user's memory in a simulation: buffers with guards, and a watch over those given back.
//!
//! It has unsafe code (`doc/decisions/0002-host-room.md`): it vouches for what a simulation
//! registers.

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{Domain, MemoryKind, RailKey, Region, RegisterError};
use crosstie::transport::DataMrs;
use crosstie::window::Span;
use crosstie_kit::random::Random;
use std::ops::Range;

/// Longest message in bytes.
pub const BUFFER_BYTES: usize = 2048;
/// Bytes on both sides of a buffer that nobody may touch.
const GUARD_BYTES: usize = 64;
const STRIDE: usize = BUFFER_BYTES + 2 * GUARD_BYTES;
/// Buffers of one region.
const PER_REGION: usize = 16;
/// What stands in guards and in buffers that were given back.
const IDLE: u8 = 0xee;

/// A buffer in use, by number.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Buffer(usize);

/// What a receive left in its buffer.
#[derive(Clone, Debug)]
pub struct Held {
    body: Vec<u8>,
    guarded: bool,
}

impl Held {
    /// Whether it is the message made of `seed`, and nothing else was touched.
    pub fn check(&self, length: usize, seed: u64) -> Result<(), &'static str> {
        if !self.guarded {
            return Err("bytes beyond the message were touched");
        }
        let same = self.body.iter().enumerate().all(|(at, byte)| *byte == byte_of(seed, at));
        if self.body.len() == length && same { Ok(()) } else { Err("it holds another message") }
    }
}

/// All buffers of one endpoint.
pub struct Memory {
    bytes: Vec<u8>,
    free: Vec<Buffer>,
}

impl Memory {
    /// Regions that hold at least `buffers` buffers.
    pub fn regions_for(buffers: usize) -> usize {
        buffers.div_ceil(PER_REGION)
    }

    /// `regions` regions of buffers, all given back.
    pub fn new(regions: usize) -> Memory {
        let count = regions * PER_REGION;
        let mut bytes = vec![IDLE; count * STRIDE];
        bytes.as_mut_ptr().expose_provenance();
        Memory { bytes, free: (0..count).map(Buffer).collect() }
    }

    /// The range of one region.
    pub fn region(&mut self, index: usize) -> Region {
        let length = PER_REGION * STRIDE;
        let start = self.bytes.as_mut_ptr().expose_provenance() + index * length;
        Region { address: start as u64, length: Bytes::of(length), kind: MemoryKind::Host }
    }

    /// The region that a buffer lies in.
    pub fn region_of(&self, buffer: Buffer) -> usize {
        buffer.0 / PER_REGION
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.free.len()
    }

    /// Takes a buffer at random. *Panics* when none is left.
    pub fn take(&mut self, random: &mut Random) -> Buffer {
        let at = random.below(self.free.len() as u64) as usize;
        self.free.swap_remove(at)
    }

    /// Takes the first one that is free, so that many lie in few regions. *Panics* as `take`.
    pub fn take_first(&mut self) -> Buffer {
        let first = (0..self.free.len()).min_by_key(|at| self.free[*at].0);
        self.free.swap_remove(first.expect("one that is left"))
    }

    /// Address of a buffer.
    pub fn address(&self, buffer: Buffer) -> u64 {
        self.bytes.as_ptr() as u64 + (buffer.0 * STRIDE + GUARD_BYTES) as u64
    }

    /// Fills a buffer with the bytes of a message.
    pub fn fill(&mut self, buffer: Buffer, length: usize, seed: u64) {
        for (at, byte) in self.slot(buffer)[GUARD_BYTES..][..length].iter_mut().enumerate() {
            *byte = byte_of(seed, at);
        }
    }

    /// Whether a buffer holds exactly the bytes of a message, and idle ones behind it.
    pub fn holds(&mut self, buffer: Buffer, length: usize, seed: u64) -> bool {
        let slot = self.slot(buffer);
        let (body, rest) = slot[GUARD_BYTES..].split_at(length);
        let front = slot[..GUARD_BYTES].iter().all(|byte| *byte == IDLE);
        front
            && body.iter().enumerate().all(|(at, byte)| *byte == byte_of(seed, at))
            && rest.iter().all(|byte| *byte == IDLE)
    }

    /// A copy of what a receive left in a buffer.
    pub fn content(&mut self, buffer: Buffer, length: usize) -> Held {
        let slot = self.slot(buffer);
        let (body, rest) = slot[GUARD_BYTES..].split_at(length.min(BUFFER_BYTES));
        let guards = slot[..GUARD_BYTES].iter().chain(rest);
        Held { body: body.to_vec(), guarded: guards.into_iter().all(|byte| *byte == IDLE) }
    }

    /// Gives a buffer back. From now on nobody may touch it.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.slot(buffer).fill(IDLE);
        self.free.push(buffer);
    }

    /// Whether everything that was given back is untouched.
    pub fn is_untouched(&mut self) -> bool {
        let free = self.free.clone();
        free.into_iter().all(|buffer| self.slot(buffer).iter().all(|byte| *byte == IDLE))
    }

    fn slot(&mut self, buffer: Buffer) -> &mut [u8] {
        // the library writes through pointers made of addresses: nothing of the slice is cached
        // across calls, since each call takes the vector anew
        &mut self.bytes[buffer.0 * STRIDE..][..STRIDE]
    }
}

/// All memory of one rank of a group: its frames, its windows and its buffers.
pub struct Arena(Vec<u8>);

impl Arena {
    /// So many bytes, all idle.
    pub fn new(length: usize) -> Arena {
        let mut bytes = vec![IDLE; length];
        bytes.as_mut_ptr().expose_provenance();
        Arena(bytes)
    }

    fn address(&mut self, at: usize) -> u64 {
        self.0[at..].as_mut_ptr().expose_provenance() as u64
    }

    /// A part of it, to be registered.
    pub fn region(&mut self, part: &Range<usize>) -> Region {
        let (address, length) = (self.address(part.start), Bytes::of(part.len()));
        Region { address, length, kind: MemoryKind::Host }
    }

    /// A part of it, for a group.
    pub fn span(&mut self, part: &Range<usize>) -> Span {
        assert!(part.end <= self.0.len());
        let address = self.0.as_mut_ptr().expose_provenance() as u64 + part.start as u64;
        // SAFETY: inside the vector (above), which lives as long as its group, and is looked at by
        // nobody else while the group works.
        unsafe { Span::new(address, part.len() as u64) }
    }

    /// Copies inside it, by addresses.
    pub fn copy(&mut self, from: u64, to: u64, length: usize) {
        let start = self.0.as_ptr() as u64;
        let (from, to) = ((from - start) as usize, (to - start) as usize);
        self.0.copy_within(from..from + length, to);
    }

    /// The bytes of a part.
    pub fn bytes(&mut self, part: &Range<usize>) -> &mut [u8] {
        // taken anew at each call, as in `Memory::slot`
        &mut self.0[part.clone()]
    }

    /// Gives a part back. From now on nobody may touch it.
    pub fn give_back(&mut self, part: &Range<usize>) {
        self.bytes(part).fill(IDLE);
    }

    /// Whether nobody has touched a part that was given back.
    pub fn is_untouched(&mut self, part: &Range<usize>) -> bool {
        self.bytes(part).iter().all(|byte| *byte == IDLE)
    }
}

/// Bytes that their seed determines, different in each place.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ seed;
    let words = (0..length.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes());
    words.take(length).collect()
}

/// Long messages side by side, of which each page tells whose it is.
#[cfg(any(test, feature = "proof"))]
pub struct Pages {
    words: Vec<u64>,
    message_words: usize,
}

#[cfg(any(test, feature = "proof"))]
impl Pages {
    /// Words of a page.
    const PAGE: usize = 512;

    /// So many messages of so many bytes, whole pages.
    pub fn new(count: usize, message_bytes: usize) -> Pages {
        let message_words = message_bytes / size_of::<u64>();
        let mut words = vec![0; count * message_words];
        words.as_mut_ptr().expose_provenance();
        Pages { words, message_words }
    }

    /// All of it.
    pub fn region(&mut self) -> Region {
        let length = Bytes::of(self.words.len() * size_of::<u64>());
        let address = self.words.as_mut_ptr().expose_provenance() as u64;
        Region { address, length, kind: MemoryKind::Host }
    }

    /// Address of a message.
    pub fn address(&self, index: usize) -> u64 {
        self.words.as_ptr() as u64 + (index * self.message_words * size_of::<u64>()) as u64
    }

    /// Makes it message `number`.
    pub fn stamp(&mut self, index: usize, number: u64) {
        for (page, words) in self.message(index).chunks_mut(Pages::PAGE).enumerate() {
            words[0] = Pages::word(number, page);
        }
    }

    /// Whether it is message `number`, every page.
    pub fn holds(&mut self, index: usize, number: u64) -> bool {
        let mut pages = self.message(index).chunks(Pages::PAGE).enumerate();
        pages.all(|(page, words)| words[0] == Pages::word(number, page))
    }

    fn word(number: u64, page: usize) -> u64 {
        (number + 1) << 32 | page as u64
    }

    fn message(&mut self, index: usize) -> &mut [u64] {
        // taken anew at each call, as in `Memory::slot`
        &mut self.words[index * self.message_words..][..self.message_words]
    }
}

/// Registers memory of a simulation on its rail.
pub fn register(domain: &impl Domain, region: Region) -> Result<RailKey, RegisterError> {
    // SAFETY: a simulation registers its `Memory`, `Arena` or `Pages` and its endpoints' mailboxes.
    // They stand in one object with the endpoints (`World`) or in blocks that it borrows, so that
    // they live as long.
    unsafe { domain.register(region) }
}

/// Enters memory of a simulation into the table of an endpoint.
pub fn enter(table: &DataMrs<'_>, region: Region, key: RailKey) -> Option<Handle> {
    let keys = [key; 8];
    // SAFETY: as in `register`; buffers in flight are looked at only when their request has ended,
    // and fabric, endpoints and user are one thread.
    unsafe { table.insert(region, &keys) }
}

fn byte_of(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64 * 0x0100_0193) >> 7) as u8
}
