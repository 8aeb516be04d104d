//! Memory that messages lie in.

use crate::guard;
use crate::handle::{tag, untag, xtie_endpoint, xtie_memory};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use core::ffi::{c_int, c_void};
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind, RegisterError};
use crosstie::host::AllocateError;

/// Kind of memory: pages of this process.
pub const XTIE_MEMORY_HOST: u32 = 0x1;
/// Kind of memory: of a GPU, by CUDA. The GPU is found by the address.
pub const XTIE_MEMORY_CUDA: u32 = 0x2;

/// ---- Memory ------------------------------------------------------------------------------------
///
/// Makes memory of the caller's known, so that messages can lie in it. Peers cannot reach it but
/// through messages.
///
/// data: first byte. The memory stays the caller's, who keeps it mapped until
///     xtie_memory_deregister has succeeded.
/// bytes: its length, not zero.
/// kind: XTIE_MEMORY_HOST, or XTIE_MEMORY_CUDA: memory that cudaMalloc, ncclMemAlloc or cuMemCreate
///     has given, which moves between processes of one host by the GPUs' copy engines.
/// memory_out: to be given with each message that lies in it.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL,
///     XTIE_ERR_NO_MEMORY; XTIE_ERR_MEMORY_KIND: it is of another kind, no driver is installed, or
///     other processes cannot map it; XTIE_ERR_FABRIC: the driver refused. The log has the reason.
/// Threads: any. Cost: control path; no page is touched. Ranges may overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_memory_register(
    endpoint: *mut xtie_endpoint,
    data: *mut c_void,
    bytes: usize,
    kind: u32,
    memory_out: *mut *mut xtie_memory,
) -> c_int {
    if data.is_null() || memory_out.is_null() {
        return guard::null(endpoint);
    }
    guard::shared(endpoint, |shared| -> Result<xtie_result, RegisterError> {
        let kind = match kind {
            XTIE_MEMORY_HOST => MemoryKind::Host,
            XTIE_MEMORY_CUDA => MemoryKind::Cuda(0),
            _ => return Err(RegisterError::Kind),
        };
        let address = data.expose_provenance() as u64;
        // SAFETY: the caller keeps the memory mapped until it is deregistered, and leaves to the
        // library what a request was given (this function's comment, and isend's and irecv's).
        let memory = unsafe { shared.register(address, Bytes::of(bytes), kind)? };
        // SAFETY: not null, and the caller's to be written.
        unsafe { memory_out.write(tag(memory)) };
        Ok(XTIE_OK)
    })
}

/// Forgets memory; the caller may unmap it after XTIE_OK.
///
/// memory: of xtie_memory_register; not to be used after XTIE_OK.
/// Results: XTIE_OK, XTIE_ERR_MEMORY; XTIE_ERR_MEMORY_BUSY: requests that use it are outstanding,
///     test them to their end first; or have ended with XTIE_ERR_UNFENCED, and the fence has not
///     come; XTIE_ERR_FABRIC: a port's library refused to forget it, call again.
/// Threads: any. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_memory_deregister(
    endpoint: *mut xtie_endpoint,
    memory: *mut xtie_memory,
) -> c_int {
    guard::shared(endpoint, |shared| -> Result<xtie_result, DeregisterError> {
        shared.deregister(untag(memory))?;
        Ok(XTIE_OK)
    })
}

/// Allocates registered memory that peers on this host read without a system call: the fastest
/// place for messages.
///
/// bytes: its length, not zero. Whole pages are taken for it; messages lie in these bytes alone.
/// data_out: first byte, page-aligned; the memory is zero.
/// memory_out: to be given with each message that lies in it.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL (also when
///     heap_bytes is used up, which xtie_endpoint_error tells apart); XTIE_ERR_NO_MEMORY: the
///     kernel refuses, or less than that is left by what /proc/meminfo says (MemAvailable and
///     SwapFree) or by the memory limit of a cgroup around the process; XTIE_ERR_MEMORY_KIND: the
///     endpoint has no heap.
/// Threads: any. Cost: control path; the pages are really allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_memory_alloc(
    endpoint: *mut xtie_endpoint,
    bytes: usize,
    data_out: *mut *mut c_void,
    memory_out: *mut *mut xtie_memory,
) -> c_int {
    if data_out.is_null() || memory_out.is_null() {
        return guard::null(endpoint);
    }
    guard::shared(endpoint, |shared| -> Result<xtie_result, AllocateError> {
        let (data, memory) = shared.allocate(Bytes::of(bytes))?;
        // SAFETY: not null, and the caller's to be written.
        unsafe { data_out.write(data.cast()) };
        // SAFETY: as above.
        unsafe { memory_out.write(tag(memory)) };
        Ok(XTIE_OK)
    })
}

/// Gives memory of xtie_memory_alloc back; its bytes are gone. Once a peer of this host has come,
/// which reads that memory, its pages stay the endpoint's, for later allocations.
///
/// memory: not to be used after XTIE_OK.
/// Results: XTIE_OK; XTIE_ERR_MEMORY: it is not from xtie_memory_alloc, or gone;
///     XTIE_ERR_MEMORY_BUSY, XTIE_ERR_FABRIC: as of xtie_memory_deregister.
/// Threads: any. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_memory_free(
    endpoint: *mut xtie_endpoint,
    memory: *mut xtie_memory,
) -> c_int {
    guard::shared(endpoint, |shared| -> Result<xtie_result, DeregisterError> {
        shared.free(untag(memory))?;
        Ok(XTIE_OK)
    })
}
