//! An endpoint that owns its block and its message buffers.
//!
//! An [`Endpoint`]'s caller vouches for memory; here every call is safe. Buffers live as long as
//! the endpoint. Their contents are accessed through raw pointers and volatile accesses only,
//! because the peer may write them at any time.

use crate::Failure;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::endpoint::Endpoint;
use crosstie::host::group::{Bootstrap, Group, GroupError, GroupOptions, WaitError};
use crosstie::host::{AllocateError, OpenError, Options, RegisterError};
use crosstie::memory::cuda::{CudaError, DeviceBlock, Gpu, Library, LoadError};
use crosstie::transport::{Incoming, Outgoing};
use crosstie::window::{Put, Ticket, WindowError};
use std::fmt;
use std::sync::Arc;

/// Where a buffer's memory comes from.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Backing {
    /// [`crosstie::host::Shared::allocate`]: peers reach it without a system call.
    Shared,
    /// The heap of this process, registered.
    Private,
    /// Where this side's memory is said to be.
    Located,
}

impl Backing {
    const ALL: [Backing; 3] = [Backing::Shared, Backing::Private, Backing::Located];

    /// As it is printed and told to a peer.
    pub fn name(self) -> &'static str {
        match self {
            Backing::Shared => "shared",
            Backing::Private => "private",
            Backing::Located => "located",
        }
    }

    /// The inverse of [`Backing::name`].
    pub fn named(name: &str) -> Option<Backing> {
        Backing::ALL.into_iter().find(|backing| backing.name() == name)
    }
}

/// Why there is no buffer.
#[derive(Debug)]
pub enum BufferError {
    /// Memory of the library's, or its registration.
    Allocate(AllocateError),
    /// There is no driver.
    Driver(LoadError),
    /// The driver refused.
    Cuda(CudaError),
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BufferError::Allocate(error) => error.fmt(f),
            BufferError::Driver(error) => error.fmt(f),
            BufferError::Cuda(error) => error.fmt(f),
        }
    }
}

impl From<RegisterError> for BufferError {
    fn from(error: RegisterError) -> BufferError {
        BufferError::Allocate(error.into())
    }
}

/// Where memory of one side lies, when it is said for each.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Location {
    /// The heap, registered.
    Host,
    /// The GPU of that number.
    Cuda(i32),
}

impl Location {
    /// The inverse of its text.
    pub fn parse(text: &str) -> Result<Location, Failure> {
        if text == "host" {
            return Ok(Location::Host);
        }
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse::<u16>().ok());
        let number = number.ok_or_else(|| format!("`{text}` is neither host nor cuda:N"))?;
        Ok(Location::Cuda(i32::from(number)))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Location::Host => f.write_str("host"),
            Location::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// Names a buffer of an [`Owned`] endpoint.
#[derive(Copy, Clone, Debug)]
pub struct Buffer(usize);

struct Memory {
    region: Handle,
    place: Place,
    length: u64,
}

/// Where a buffer lies.
enum Place {
    /// In memory of the host.
    Host(*mut u8),
    /// In that of a GPU.
    Gpu(DeviceBlock),
}

impl Memory {
    fn start(&self) -> u64 {
        match &self.place {
            Place::Host(start) => *start as u64,
            Place::Gpu(block) => block.start(),
        }
    }
}

/// The endpoint, its block and its buffers.
pub struct Owned {
    endpoint: Option<Endpoint>,
    group: Option<Group>,
    location: Location,
    // Both are freed after the endpoint: fields are dropped in order, and `drop` closes it before.
    memory: Vec<Memory>,
    _heap: Vec<HeapBlock>,
}

impl Owned {
    /// Allocates a block for `options` and opens an endpoint in it. Buffers that are located lie in
    /// `location`.
    pub fn open(options: &Options, location: Location) -> Result<Owned, OpenError> {
        let mut block = HeapBlock::new(options.bytes());
        // SAFETY: the block is aligned to a line, as long as told, owned by the result until the
        // endpoint is closed (`drop`), and its heap memory does not move with the vector.
        let endpoint = unsafe { Endpoint::open(block.start(), block.length(), options) }?;
        let endpoint = Some(endpoint);
        let (group, memory) = (None, Vec::new());
        Ok(Owned { endpoint, group, location, memory, _heap: [block].into() })
    }

    /// The endpoint.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("open until dropped")
    }

    /// Opens a group of this endpoint's with those of other processes.
    pub fn group_open(
        &mut self,
        options: &GroupOptions,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<(), GroupError> {
        let mut block = HeapBlock::new(options.bytes());
        let place = (block.start(), block.length());
        self._heap.push(block);
        // SAFETY: the block is aligned to a line, as long as told, and was pushed to `_heap`, which
        // outlives the endpoint and its group.
        let group = unsafe { Group::open(self.endpoint(), place, options, bootstrap) }?;
        self.group = Some(group);
        Ok(())
    }

    /// The group, and its endpoint.
    #[inline]
    pub fn group(&mut self) -> (&mut Group, &mut Endpoint) {
        let group = self.group.as_mut().expect("opened before it is used");
        (group, self.endpoint.as_mut().expect("open until dropped"))
    }

    /// Moves everything on, of the group too where there is one.
    pub fn progress(&mut self) {
        if self.group.is_some() {
            let (group, endpoint) = self.group();
            group.progress(endpoint);
        } else {
            self.endpoint().progress();
        }
    }

    /// Makes a window of a buffer, with all ranks.
    pub fn window(&mut self, buffer: Buffer) -> Result<Handle, WaitError> {
        let Memory { region, length, .. } = self.memory[buffer.0];
        let place = (region, self.memory[buffer.0].start(), length);
        let (group, endpoint) = self.group();
        // SAFETY: buffers live as long as the endpoint, and are read and written as memory that
        // peers write at any time.
        let window = unsafe { group.register(endpoint, place, false) }?;
        group.exchange(endpoint, window, None)?;
        Ok(window)
    }

    /// Puts bytes of a buffer.
    #[inline]
    pub fn put(
        &mut self,
        put: &Put,
        (buffer, offset, length): (Buffer, u64, u64),
    ) -> Result<Ticket, WindowError> {
        let memory = &self.memory[buffer.0];
        let place = (memory.region, memory.start() + offset, length);
        let (group, endpoint) = self.group();
        // SAFETY: buffers live as long as the endpoint; bytes that are overwritten too early are
        // other bytes, and nothing worse.
        unsafe { group.put(endpoint, put, place) }
    }

    /// Gets bytes into a buffer.
    #[inline]
    pub fn get(
        &mut self,
        target: (Handle, u32),
        from: u64,
        (buffer, offset, length): (Buffer, u64, u64),
    ) -> Result<Ticket, WindowError> {
        let memory = &self.memory[buffer.0];
        let place = (memory.region, memory.start() + offset, length);
        let (group, endpoint) = self.group();
        // SAFETY: as above.
        unsafe { group.get(endpoint, target, from, place) }
    }

    /// A buffer of at least `length` bytes, present in memory; zeroed but on a GPU.
    pub fn buffer(&mut self, backing: Backing, length: u64) -> Result<Buffer, BufferError> {
        let length = length.max(64).next_multiple_of(64);
        let (place, region) = match (backing, self.location) {
            (Backing::Shared, _) => {
                let shared = &self.endpoint().shared;
                let made = shared.allocate(Bytes(length)).map_err(BufferError::Allocate)?;
                (Place::Host(made.0), made.1)
            }
            (Backing::Private, _) | (Backing::Located, Location::Host) => self.on_heap(length)?,
            (Backing::Located, Location::Cuda(number)) => self.on_gpu(number, length)?,
        };
        self.memory.push(Memory { region, place, length });
        Ok(Buffer(self.memory.len() - 1))
    }

    fn on_heap(&mut self, length: u64) -> Result<(Place, Handle), BufferError> {
        let mut block = HeapBlock::new(length as usize);
        let start = block.start();
        self._heap.push(block);
        let address = start.expose_provenance() as u64;
        let shared = &self.endpoint().shared;
        // SAFETY: the block was pushed to `_heap`, which outlives the endpoint.
        let region = unsafe { shared.register(address, Bytes(length), MemoryKind::Host) }?;
        Ok((Place::Host(start), region))
    }

    fn on_gpu(&mut self, number: i32, length: u64) -> Result<(Place, Handle), BufferError> {
        let library = Library::load().map_err(BufferError::Driver)?;
        let gpu = Arc::new(Gpu::at(library, number).map_err(BufferError::Cuda)?);
        let block = DeviceBlock::new(&gpu, length as usize).map_err(BufferError::Cuda)?;
        let (shared, kind) = (&self.endpoint().shared, MemoryKind::Cuda(number as u32));
        // SAFETY: the caller puts the block into `memory`, which outlives the endpoint.
        let region = unsafe { shared.register(block.start(), Bytes(length), kind) }?;
        Ok((Place::Gpu(block), region))
    }

    /// A message that lies in a buffer.
    #[inline]
    pub fn outgoing(&self, buffer: Buffer, offset: u64, length: u64, tag: i32) -> Outgoing {
        let memory = &self.memory[buffer.0];
        let address = memory.start() + offset;
        Outgoing { region: memory.region, address, length, tag }
    }

    /// Room for a message in a buffer.
    #[inline]
    pub fn incoming(&self, buffer: Buffer, offset: u64, length: u64, tag: i32) -> Incoming {
        let memory = &self.memory[buffer.0];
        let address = memory.start() + offset;
        Incoming { region: memory.region, address, length, tag }
    }

    /// Writes the bytes that `seed` stands for. *Panics* when they do not fit.
    pub fn fill(
        &mut self,
        buffer: Buffer,
        offset: u64,
        length: u64,
        seed: u64,
    ) -> Result<(), Failure> {
        match &self.range(buffer, offset, length).place {
            Place::Host(start) => (0..length).for_each(|at| {
                let place = start.wrapping_add((offset + at) as usize);
                // SAFETY: `range` has checked it against a buffer that lives as long as `self`.
                unsafe { place.write_volatile(pattern(seed, at)) };
            }),
            Place::Gpu(block) => {
                block.write(offset as usize, &patterns(seed, length)).map_err(by_driver)?;
            }
        }
        Ok(())
    }

    /// Whether the bytes are those that `seed` stands for. *Panics* when out of the buffer.
    pub fn check(
        &mut self,
        buffer: Buffer,
        offset: u64,
        length: u64,
        seed: u64,
    ) -> Result<bool, Failure> {
        match &self.range(buffer, offset, length).place {
            Place::Host(start) => Ok((0..length).all(|at| {
                let place = start.wrapping_add((offset + at) as usize);
                // SAFETY: `range` has checked it against a buffer that lives as long as `self`.
                unsafe { place.read_volatile() == pattern(seed, at) }
            })),
            Place::Gpu(block) => {
                let mut found = vec![0; length as usize];
                block.read(offset as usize, &mut found).map_err(by_driver)?;
                Ok(found == patterns(seed, length))
            }
        }
    }

    fn range(&self, buffer: Buffer, offset: u64, length: u64) -> &Memory {
        let memory = &self.memory[buffer.0];
        let end = offset.checked_add(length).expect("a range of memory");
        assert!(end <= memory.length, "outside of the buffer");
        memory
    }
}

fn by_driver(error: CudaError) -> Failure {
    format!("bytes in memory of a GPU: {error}")
}

/// The bytes that `seed` stands for.
fn patterns(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| pattern(seed, at)).collect()
}

/// One byte of the bytes that `seed` stands for: neighbours differ, and so do seeds.
#[inline]
fn pattern(seed: u64, at: u64) -> u8 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 56) as u8
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(mut endpoint) = self.endpoint.take() {
            if let Some(group) = self.group.take() {
                group.close(&mut endpoint);
            }
            endpoint.close();
        }
    }
}
