//! An endpoint that owns its block and its message buffers.
//!
//! An [`Endpoint`]'s caller vouches for memory; here every call is safe. Buffers live as long as
//! the endpoint. Their contents are accessed through raw pointers and volatile accesses only,
//! because the peer may write them at any time.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::endpoint::Endpoint;
use crosstie::host::{AllocateError, OpenError, Options};
use crosstie::transport::{Incoming, Outgoing};

/// Where a buffer's memory comes from.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Backing {
    /// [`crosstie::host::Shared::allocate`]: peers reach it without a system call.
    Shared,
    /// The heap of this process, registered.
    Private,
}

/// Names a buffer of an [`Owned`] endpoint.
#[derive(Copy, Clone, Debug)]
pub struct Buffer(usize);

struct Memory {
    region: Handle,
    start: *mut u8,
    length: u64,
}

/// The endpoint, its block and its buffers.
pub struct Owned {
    endpoint: Option<Endpoint>,
    memory: Vec<Memory>,
    // Freed after the endpoint: fields are dropped in order, and `drop` closes it before.
    _heap: Vec<HeapBlock>,
}

impl Owned {
    /// Allocates a block for `options` and opens an endpoint in it.
    pub fn open(options: &Options) -> Result<Owned, OpenError> {
        let mut block = HeapBlock::new(options.bytes());
        // SAFETY: the block is aligned to a line, as long as told, owned by the result until the
        // endpoint is closed (`drop`), and its heap memory does not move with the vector.
        let endpoint = unsafe { Endpoint::open(block.start(), block.length(), options) }?;
        Ok(Owned { endpoint: Some(endpoint), memory: Vec::new(), _heap: [block].into() })
    }

    /// The endpoint.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("open until dropped")
    }

    /// A buffer of at least `length` bytes, zeroed and present in memory.
    pub fn buffer(&mut self, backing: Backing, length: u64) -> Result<Buffer, AllocateError> {
        let length = length.max(64).next_multiple_of(64);
        let (start, region) = match backing {
            Backing::Shared => self.endpoint().shared.allocate(Bytes(length))?,
            Backing::Private => {
                let mut block = HeapBlock::new(length as usize);
                let start = block.start();
                self._heap.push(block);
                let address = start.expose_provenance() as u64;
                let shared = &self.endpoint().shared;
                // SAFETY: the block was pushed to `_heap`, which outlives the endpoint.
                let region = unsafe { shared.register(address, Bytes(length), MemoryKind::Host) }?;
                (start, region)
            }
        };
        self.memory.push(Memory { region, start, length });
        Ok(Buffer(self.memory.len() - 1))
    }

    /// A message that lies in a buffer.
    #[inline]
    pub fn outgoing(&self, buffer: Buffer, offset: u64, length: u64, tag: i32) -> Outgoing {
        let memory = &self.memory[buffer.0];
        let address = memory.start as u64 + offset;
        Outgoing { region: memory.region, address, length, tag }
    }

    /// Room for a message in a buffer.
    #[inline]
    pub fn incoming(&self, buffer: Buffer, offset: u64, length: u64, tag: i32) -> Incoming {
        let memory = &self.memory[buffer.0];
        let address = memory.start as u64 + offset;
        Incoming { region: memory.region, address, length, tag }
    }

    /// Writes the bytes that `seed` stands for. *Panics* when they do not fit.
    pub fn fill(&mut self, buffer: Buffer, offset: u64, length: u64, seed: u64) {
        self.walk(buffer, offset, length, |place, at| {
            // SAFETY: `walk` gives places inside a buffer that lives as long as `self`.
            unsafe { place.write_volatile(pattern(seed, at)) };
            true
        });
    }

    /// Whether the bytes are those that `seed` stands for. *Panics* when out of the buffer.
    pub fn check(&mut self, buffer: Buffer, offset: u64, length: u64, seed: u64) -> bool {
        self.walk(buffer, offset, length, |place, at| {
            // SAFETY: `walk` gives places inside a buffer that lives as long as `self`.
            unsafe { place.read_volatile() == pattern(seed, at) }
        })
    }

    fn walk(
        &mut self,
        buffer: Buffer,
        offset: u64,
        length: u64,
        mut each: impl FnMut(*mut u8, u64) -> bool,
    ) -> bool {
        let memory = &self.memory[buffer.0];
        let end = offset.checked_add(length).expect("a range of memory");
        assert!(end <= memory.length, "outside of the buffer");
        (0..length).all(|at| each(memory.start.wrapping_add((offset + at) as usize), at))
    }
}

/// One byte of the bytes that `seed` stands for: neighbours differ, and so do seeds.
#[inline]
fn pattern(seed: u64, at: u64) -> u8 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 56) as u8
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close();
        }
    }
}
