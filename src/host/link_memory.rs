//! What the side band asks of `memory`.

use super::log::news;
use crate::connect::{LinkMemory, MemoryError};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedHeap, SharedMapping, ViewMapping, WakeFd, kernel_copy};
use crate::provider::shm::{self, RingSizes};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The endpoint's shared memory, as the side band uses it.
pub(super) struct HostMemory {
    pub(super) heap: Option<Arc<SharedHeap>>,
    pub(super) wake: Arc<WakeFd>,
    /// Whether peers' memory may be read through the kernel, by the user's setting.
    pub(super) kernel_copy: bool,
    /// Whether a peer's heap that could not be mapped was reported: once per endpoint is enough.
    pub(super) heap_told: bool,
}

/// What is mapped of a peer's heap where the address space has no room for it all: the keys of its
/// registered memory stand there, without which the kernel could not be asked for it either.
const HEAP_HEAD_BYTES: u64 = 2 << 20;

fn memory_error(errno: Errno) -> MemoryError {
    match errno.0 {
        libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG => MemoryError::Exhausted,
        libc::EMFILE | libc::ENFILE => MemoryError::Descriptors,
        code => MemoryError::System(code),
    }
}

impl LinkMemory for HostMemory {
    type Mapping = SharedMapping;
    type View = ViewMapping;

    fn create_arena(&mut self, bytes: u64) -> Result<SharedMapping, MemoryError> {
        let make = || {
            let arena = SharedMapping::create(c"crosstie-rings", bytes as usize)?;
            match arena.seal_writes() {
                Err(errno @ Errno(libc::EINVAL)) => {
                    news::not_sealed(errno);
                    arena.seal_seals()?;
                }
                sealed => sealed?,
            }
            // whether memory is granted shows here, while there still is another way to the peer
            arena.populate(0, (bytes as usize).min(page_bytes()))?;
            Ok(arena)
        };
        make().map_err(memory_error)
    }

    fn arena_fd<'a>(&self, arena: &'a SharedMapping) -> BorrowedFd<'a> {
        arena.fd()
    }

    fn populate(
        &mut self,
        arena: &SharedMapping,
        offset: u64,
        rings: (u32, u32),
    ) -> Result<(), MemoryError> {
        let (send_bytes, write_bytes) = rings;
        // the rings' contract is zeroed memory; they grow by themselves
        let parts = shm::first_parts(RingSizes { send_bytes, write_bytes });
        let bytes = shm::rings_bytes(send_bytes, write_bytes);
        arena.renew(offset as usize, bytes, &parts).map_err(memory_error)
    }

    fn map_arena(&mut self, fd: OwnedFd, bytes: u64) -> Result<ViewMapping, MemoryError> {
        ViewMapping::new(fd, bytes as usize, bytes as usize).map_err(memory_error)
    }

    fn map_heap(&mut self, fd: OwnedFd, bytes: u64) -> Result<(ViewMapping, u64), MemoryError> {
        let head = HEAP_HEAD_BYTES as usize;
        let heap = ViewMapping::new(fd, bytes as usize, head).map_err(memory_error)?;
        let mapped = heap.length() as u64;
        if mapped < bytes && !core::mem::replace(&mut self.heap_told, true) {
            news::heap_not_mapped(bytes);
        }
        Ok((heap, mapped))
    }

    fn address(&self, mapping: &SharedMapping) -> usize {
        mapping.start().expose_provenance()
    }

    fn view_address(&self, view: &ViewMapping) -> usize {
        view.start().expose_provenance()
    }

    fn heap(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let heap = self.heap.as_ref().filter(|heap| heap.is_shared())?;
        if let Err(errno) = heap.seal() {
            news::not_sealed(errno);
        }
        Some((heap.fd(), heap.length() as u64))
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.fd())
    }

    fn probe(&mut self, pid: i32, address: u64, word: u64) -> bool {
        self.kernel_copy && kernel_copy::probe(pid, address, word)
    }

    fn allow_tracer(&mut self) {
        if self.kernel_copy {
            // a host that forbids it has links without kernel copies: the probe finds out
            let _ = kernel_copy::allow_tracer();
        }
    }
}
