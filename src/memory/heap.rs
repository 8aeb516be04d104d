//! Memory for user buffers that peers on the same host can reach with plain loads.

use super::available;
use super::errno::Errno;
use super::locked;
use super::shared::SharedMapping;
use crate::base::sync::{AtomicU32, Ordering};
use core::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::vec::Vec;

/// Less than this is not worth having; [`SharedHeap::create`] gives up below.
const RESERVE_BYTES_MIN: usize = 1 << 20;
/// More than any process can address (x86-64 with five levels has 2^56 bytes); what is asked for
/// beyond shrinks.
const RESERVE_BYTES_MAX: usize = 1 << 56;
/// Allocations this large start on a boundary of this size, so that huge pages fit.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Why nothing was allocated, or nothing freed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum HeapError {
    /// Zero bytes were asked for, or no allocation starts at the address.
    Argument,
    /// The table of allocations is full: free one first.
    Full,
    /// No gap in the reserved address space is long enough.
    Space,
    /// The system has no memory for it (ENOSPC, ENOMEM), or refused otherwise.
    System(Errno),
}

#[derive(Copy, Clone, Debug)]
struct Extent {
    offset: usize,
    length: usize,
}

impl Extent {
    const fn end(self) -> usize {
        self.offset + self.length
    }
}

/// Page-aligned allocations in one mapping that peers map, too, unless it is private.
///
/// A byte at `start() + offset` here is at `its start + offset` in a peer that maps
/// [`SharedHeap::fd`]. The first `head_bytes` belong to the creator.
#[derive(Debug)]
pub struct SharedHeap {
    mapping: SharedMapping,
    head_bytes: usize,
    page_bytes: usize,
    /// Sorted by offset; never longer than the capacity that it was made with.
    live: Mutex<Vec<Extent>>,
    /// The file is sealed, and pages cannot be given back. Changed under the lock of `live`.
    sealed: AtomicU32,
    /// How much memory can still be had.
    available: fn() -> u64,
}

impl SharedHeap {
    /// Reserves `reserve_bytes`, or half of the address space that is left, and before them
    /// `head_bytes`, which it allocates; makes room to account for `allocations_max` allocations.
    pub fn create(
        name: &CStr,
        reserve_bytes: usize,
        head_bytes: usize,
        allocations_max: usize,
    ) -> Result<SharedHeap, Errno> {
        let head_bytes = head_bytes.next_multiple_of(page_bytes());
        let bytes = head_bytes + wanted(reserve_bytes);
        let mapping = reserve(bytes, head_bytes, |bytes| SharedMapping::create(name, bytes))?;
        if head_bytes != 0 {
            mapping.populate(0, head_bytes)?;
        }
        // SAFETY: nobody knows the mapping.
        unsafe { mapping.reserve(head_bytes, mapping.length() - head_bytes) }?;
        Ok(SharedHeap::over(mapping, head_bytes, allocations_max))
    }

    /// [`SharedHeap::create`] without a head in memory that no peer can map, for where the kernel
    /// makes no shared memory.
    pub fn private(reserve_bytes: usize, allocations_max: usize) -> Result<SharedHeap, Errno> {
        let mapping = reserve(wanted(reserve_bytes), 0, SharedMapping::private)?;
        Ok(SharedHeap::over(mapping, 0, allocations_max))
    }

    fn over(mapping: SharedMapping, head_bytes: usize, allocations_max: usize) -> SharedHeap {
        let live = Mutex::new(Vec::with_capacity(allocations_max));
        let (sealed, available) = (AtomicU32::new(0), available::bytes as fn() -> u64);
        SharedHeap { mapping, head_bytes, page_bytes: page_bytes(), live, sealed, available }
    }

    /// Whether peers can map it.
    pub fn is_shared(&self) -> bool {
        self.mapping.is_shared()
    }

    /// Allocates `bytes`, rounded up to whole pages. The pages are there when this returns.
    ///
    /// *Shape*: address and length in bytes; the address is a multiple of the page size.
    /// *Errors*: ENOMEM of the system. Also ENOMEM if the host or a cgroup has less left
    /// ([`available::bytes`]): the kernel would kill a process instead of refusing.
    /// *Cost*: some system calls and a walk over the live allocations; never calls malloc.
    pub fn allocate(&self, bytes: usize) -> Result<(*mut u8, usize), HeapError> {
        let length = bytes.checked_next_multiple_of(self.page_bytes).ok_or(HeapError::Argument)?;
        if length == 0 {
            return Err(HeapError::Argument);
        }
        let align = if length >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { self.page_bytes };
        let mut live = locked(&self.live);
        if live.len() == live.capacity() {
            return Err(HeapError::Full);
        }
        // what fits nowhere on a huge page may fit beside one
        let gap = self.gap(&live, length, align);
        let gap = gap.or_else(|| self.gap(&live, length, self.page_bytes));
        let (position, offset) = gap.ok_or(HeapError::Space)?;
        // what peers may have seen stays ours, and is used again
        let wanted = match self.is_sealed() {
            true => self.mapping.missing(offset, length),
            false => length,
        };
        if wanted as u64 > (self.available)() {
            return Err(HeapError::System(Errno::NO_MEMORY));
        }
        let lent = self.mapping.lend(offset, length);
        if let Err(errno) = lent.and_then(|()| self.mapping.populate_lent(offset, length)) {
            let _ = self.mapping.release(offset, length);
            // SAFETY: nobody knows the range. Where the kernel refuses, it stays as it was.
            let _ = unsafe { self.mapping.reserve(offset, length) };
            return Err(HeapError::System(errno));
        }
        self.mapping.touch(offset, length);
        live.insert(position, Extent { offset, length });
        // SAFETY: `gap` found the range inside the mapping.
        Ok((unsafe { self.mapping.start().add(offset) }, length))
    }

    /// Gives an allocation's pages back to the system. Once peers can map the heap, or if the
    /// kernel refuses, zeroes them instead and keeps them for later allocations.
    ///
    /// # Safety
    /// - the allocation is no longer used, and a region registered in it has been deregistered.
    pub unsafe fn free(&self, address: *mut u8) -> Result<(), HeapError> {
        let offset = (address as usize).wrapping_sub(self.mapping.start() as usize);
        let mut live = locked(&self.live);
        let found = live.binary_search_by_key(&offset, |extent| extent.offset);
        let position = found.map_err(|_| HeapError::Argument)?;
        let extent = live[position];
        if self.is_sealed() || self.mapping.release(extent.offset, extent.length).is_err() {
            // SAFETY: the allocation lies in our mapping, has memory, and is the caller's to give.
            unsafe { self.mapping.start().add(extent.offset).write_bytes(0, extent.length) };
        }
        // SAFETY: by this function's contract. Where the kernel refuses, it stays as it was.
        let _ = unsafe { self.mapping.reserve(extent.offset, extent.length) };
        live.remove(position);
        Ok(())
    }

    /// Whether `length` bytes at `address` lie in the heap.
    pub fn contains(&self, address: u64, length: u64) -> bool {
        let offset = address.wrapping_sub(self.start() as u64);
        let whole = self.length() as u64;
        offset <= whole && length <= whole - offset
    }

    /// First byte: the head.
    pub fn start(&self) -> *mut u8 {
        self.mapping.start()
    }

    /// Length of the reserved range in bytes, the head included.
    pub fn length(&self) -> usize {
        self.mapping.length()
    }

    /// Seals the file before it is handed to a peer. From then on only this process can write it.
    ///
    /// *Errors*: EINVAL: this kernel (before 5.1) has no such seal, and peers could write.
    pub fn seal(&self) -> Result<(), Errno> {
        let _live = locked(&self.live);
        if self.is_sealed() {
            return Ok(());
        }
        self.mapping.seal_writes()?;
        // relaxed: read under the lock
        self.sealed.store(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_sealed(&self) -> bool {
        // relaxed: changed under the lock
        self.sealed.load(Ordering::Relaxed) != 0
    }

    /// The file, to be handed to a peer after [`SharedHeap::seal`], which maps it with
    /// [`ViewMapping::new`](super::shared::ViewMapping::new).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    /// The first gap that holds `length`: its place in the table, and the offset.
    fn gap(&self, live: &[Extent], length: usize, align: usize) -> Option<(usize, usize)> {
        let base = self.mapping.start() as usize;
        let mut from = self.head_bytes;
        for position in 0..=live.len() {
            let until = live.get(position).map_or(self.mapping.length(), |extent| extent.offset);
            let offset = (base + from).next_multiple_of(align) - base;
            if offset <= until && length <= until - offset {
                return Some((position, offset));
            }
            from = live.get(position).map_or(until, |extent| extent.end());
        }
        None
    }
}

/// How much is reserved of what was asked for, in whole pages: half of the address space that is
/// left is for others.
fn wanted(reserve_bytes: usize) -> usize {
    let half = available::address_space_half().max(RESERVE_BYTES_MIN);
    reserve_bytes.min(RESERVE_BYTES_MAX).min(half).next_multiple_of(page_bytes())
}

/// Reserves address space by `make`, and less of it where a limit forbids so much.
fn reserve(
    bytes: usize,
    head_bytes: usize,
    make: impl Fn(usize) -> Result<SharedMapping, Errno>,
) -> Result<SharedMapping, Errno> {
    let mut bytes = bytes;
    loop {
        match make(bytes) {
            Err(Errno(libc::ENOMEM | libc::EFBIG | libc::EINVAL | libc::EAGAIN))
                if bytes / 2 >= RESERVE_BYTES_MIN.max(head_bytes) =>
            {
                bytes = (bytes / 2).next_multiple_of(page_bytes());
            }
            result => return result,
        }
    }
}

/// The system's page size in bytes.
pub fn page_bytes() -> usize {
    // SAFETY: a query without arguments in memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::super::shared::ViewMapping;
    use super::*;

    const RESERVE: usize = 64 << 20;

    #[test]
    fn allocations_do_not_overlap_and_gaps_are_used_again() {
        let heap = SharedHeap::create(c"test", RESERVE, 100, 8).unwrap();
        let (a, a_length) = heap.allocate(5000).unwrap();
        let (b, _) = heap.allocate(1).unwrap();
        assert_eq!(a_length, 8192);
        assert!(b as usize >= a as usize + a_length);
        assert!(a as usize > heap.start() as usize, "the head is not handed out");
        // SAFETY: nobody uses it.
        unsafe { heap.free(a) }.unwrap();
        // SAFETY: refused, as nothing starts there any more.
        assert_eq!(unsafe { heap.free(a) }, Err(HeapError::Argument));
        let (c, _) = heap.allocate(8192).unwrap();
        assert_eq!(c, a);
        let (d, _) = heap.allocate(3 << 20).unwrap();
        assert_eq!(d as usize % HUGE_PAGE_BYTES, 0);
    }

    /// It ended in the kernel's OOM killer.
    #[test]
    fn more_than_the_host_can_give_is_refused_and_less_is_not() {
        let mut heap = SharedHeap::create(c"test", RESERVE, 0, 8).unwrap();
        heap.available = || 1 << 20;
        assert_eq!(heap.allocate((1 << 20) + 1), Err(HeapError::System(Errno::NO_MEMORY)));
        let (first, length) = heap.allocate(1 << 20).unwrap();
        assert_eq!((first, length), (heap.start(), 1 << 20), "nothing was kept of the refused one");
    }

    /// Pages of a sealed file cannot be given back: they are kept, and read as zero.
    #[test]
    fn freed_memory_of_a_sealed_heap_is_zeroed_and_used_again_without_asking_for_more() {
        let mut heap = SharedHeap::create(c"test", RESERVE, 100, 8).unwrap();
        let (first, length) = heap.allocate(1 << 20).unwrap();
        heap.seal().unwrap();
        heap.seal().unwrap();
        // SAFETY: ours.
        unsafe { first.add(5000).write(42) };
        let seen = heap.fd().try_clone_to_owned().unwrap();
        let seen = ViewMapping::new(seen, heap.length(), heap.length()).unwrap();
        let at = first as usize - heap.start() as usize + 5000;
        // SAFETY: an allocated page of both mappings.
        assert_eq!(unsafe { seen.start().add(at).read() }, 42);
        // SAFETY: nobody uses it.
        unsafe { heap.free(first) }.unwrap();
        // SAFETY: as before.
        assert_eq!(unsafe { seen.start().add(at).read() }, 0);
        heap.available = || 0;
        assert_eq!(heap.allocate(length), Ok((first, length)));
        assert_eq!(heap.allocate(1), Err(HeapError::System(Errno::NO_MEMORY)));
    }

    /// Where the kernel made no shared memory, there was no heap.
    #[test]
    fn private_heap_gives_memory_that_is_zero_and_takes_it_back() {
        let heap = SharedHeap::private(RESERVE, 8).unwrap();
        assert!(!heap.is_shared());
        let (first, length) = heap.allocate(1 << 20).unwrap();
        let (second, _) = heap.allocate(1).unwrap();
        assert!(second as usize >= first as usize + length);
        // SAFETY: ours.
        unsafe { first.add(5000).write(42) };
        // SAFETY: nobody uses it.
        unsafe { heap.free(first) }.unwrap();
        assert_eq!(heap.allocate(length), Ok((first, length)));
        // SAFETY: ours.
        assert_eq!(unsafe { first.add(5000).read() }, 0);
        assert_eq!(heap.allocate(2 * RESERVE), Err(HeapError::Space));
    }

    /// The head took all of a small heap, or was refused with EINVAL.
    #[test]
    fn small_heap_has_its_bytes_beside_the_head() {
        let page = page_bytes();
        let heap = SharedHeap::create(c"test", 5, 10 * page, 8).unwrap();
        assert_eq!(heap.allocate(1).unwrap().1, page);
        assert_eq!(heap.allocate(1), Err(HeapError::Space));
    }

    #[test]
    fn full_table_and_full_space_are_answers() {
        let heap = SharedHeap::create(c"test", RESERVE, 0, 2).unwrap();
        assert_eq!(heap.allocate(2 * RESERVE), Err(HeapError::Space));
        assert_eq!(heap.allocate(0), Err(HeapError::Argument));
        assert_eq!(heap.allocate(usize::MAX), Err(HeapError::Argument));
        heap.allocate(1).unwrap();
        heap.allocate(1).unwrap();
        assert_eq!(heap.allocate(1), Err(HeapError::Full));
    }
}
