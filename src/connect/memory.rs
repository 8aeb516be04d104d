//! What the side band needs of shared memory. `memory` answers it; tests bring their own.
#![forbid(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};

/// Why memory could not be had.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum MemoryError {
    /// The host, or the limit that it sets us, has no room.
    Exhausted,
    /// The process may open no more descriptors.
    Descriptors,
    /// The kernel refused otherwise, with its code.
    System(i32),
}

/// Shared memory for links: arenas that we make and write, arenas and heaps of peers that we read.
///
/// Nothing here may allocate from the heap: it is called after open.
pub trait LinkMemory: Send + 'static {
    /// A mapping of memory that we made, which ends when it is dropped.
    type Mapping: Send + 'static;
    /// A mapping of memory that a peer made, for reading alone; likewise.
    type View: Send + 'static;

    /// Makes an arena of `bytes` address space, of which nothing is populated yet. It is sealed, so
    /// that peers can only read it.
    fn create_arena(&mut self, bytes: u64) -> Result<Self::Mapping, MemoryError>;

    /// The descriptor that a peer needs to map what [`LinkMemory::create_arena`] made.
    fn arena_fd<'a>(&self, arena: &'a Self::Mapping) -> BorrowedFd<'a>;

    /// Makes sure that our rings of a connection, the part of our arena at `offset`, are zero and
    /// have as much memory behind them as is needed before they grow. A part may be populated
    /// again. `rings`: lengths in bytes of a send ring and of a write ring.
    fn populate(
        &mut self,
        arena: &Self::Mapping,
        offset: u64,
        rings: (u32, u32),
    ) -> Result<(), MemoryError>;

    /// Maps a peer's arena for reading.
    ///
    /// *Errors*: also when the file behind `fd` is shorter than `bytes`, or can still shrink.
    fn map_arena(&mut self, fd: OwnedFd, bytes: u64) -> Result<Self::View, MemoryError>;

    /// Maps a peer's heap for reading, or where the address space has no room for it, less of it
    /// from the start: what is not mapped is not read in place. Says how many bytes are.
    fn map_heap(&mut self, fd: OwnedFd, bytes: u64) -> Result<(Self::View, u64), MemoryError>;

    /// Address of a mapping's first byte.
    fn address(&self, mapping: &Self::Mapping) -> usize;

    /// Address of a view's first byte.
    fn view_address(&self, view: &Self::View) -> usize;

    /// Our own heap, sealed so that peers can only read it, and its size in bytes; if there is one.
    fn heap(&self) -> Option<(BorrowedFd<'_>, u64)>;

    /// Our own doorbell, which peers ring when we sleep, if we can sleep.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the kernel lets us read `word` at `address` of process `pid`.
    fn probe(&mut self, pid: i32, address: u64, word: u64) -> bool;

    /// Lets peers read our memory where the host forbids it by default (Yama).
    fn allow_tracer(&mut self);
}
