//! Memory that messages lie in.

use crate::guard;
use crate::handle::{tag, untag, xtie_endpoint, xtie_memory};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, read};
use core::ffi::{c_int, c_void};
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind, RegisterError};
use crosstie::host::{AllocateError, MemoryError, MemoryOptions};

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
///     has given, which moves between processes of one host by the GPUs' copy engines; through
///     memory of the host where they cannot map it, such as cudaMallocAsync's.
/// memory_out: to be given with each message that lies in it.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL,
///     XTIE_ERR_NO_MEMORY; XTIE_ERR_MEMORY_KIND: it is of another kind, such as
///     cudaMallocManaged's, or no driver is installed; XTIE_ERR_FABRIC: the driver refused. The log
///     has the reason.
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

/// What is said of memory to xtie_memory_register_with. Set struct_size; -1 is a value of two
/// fields, and zero is another.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_memory_options {
    /// sizeof(xtie_memory_options).
    pub struct_size: u32,
    /// XTIE_MEMORY_HOST or XTIE_MEMORY_CUDA.
    pub kind: u32,
    /// The GPU that the memory must lie on, by its number in CUDA; -1: the one that the address
    /// tells.
    pub device: i32,
    /// A descriptor of the dma-buf that the memory is part of, as cuMemGetHandleForAddressRange
    /// gives it; -1: none. Memory of the host has none.
    pub dmabuf: i32,
    /// Where the first byte of the memory lies in the dma-buf.
    pub dmabuf_offset: u64,
}

// SAFETY: integers without padding (four of 4 bytes, then one of 8); the snapshot has the offsets.
unsafe impl Sized32 for xtie_memory_options {}

impl xtie_memory_options {
    fn options(&self) -> Result<MemoryOptions, MemoryError> {
        let kind = match self.kind {
            XTIE_MEMORY_HOST => MemoryKind::Host,
            XTIE_MEMORY_CUDA => MemoryKind::Cuda(0),
            _ => return Err(RegisterError::Kind.into()),
        };
        let device = (self.device != -1).then_some(self.device);
        let dmabuf = (self.dmabuf != -1).then_some((self.dmabuf, self.dmabuf_offset));
        Ok(MemoryOptions { kind, device, dmabuf })
    }
}

/// xtie_memory_register of memory of which more is known. Ports of the endpoint that take the
/// dma-buf move messages in the memory without a copy; others leave it to the other rails.
///
/// data, bytes, memory_out: as of xtie_memory_register.
/// options: with struct_size set; read during the call. The descriptor stays the caller's, who may
///     close it after the call: the endpoint keeps a duplicate where it needs one.
/// Results: as of xtie_memory_register, and XTIE_ERR_STRUCT_SIZE; XTIE_ERR_STRUCT: bytes behind
///     the options that this version knows are not zero; XTIE_ERR_MEMORY_KIND: the kind is unknown,
///     memory of the host is said to be a GPU's, or the other way round; XTIE_ERR_MEMORY_DEVICE;
///     XTIE_ERR_DMABUF; XTIE_ERR_DMABUF_RANGE. Nothing is registered then.
/// Threads: any. Cost: control path; no page is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_memory_register_with(
    endpoint: *mut xtie_endpoint,
    data: *mut c_void,
    bytes: usize,
    options: *const xtie_memory_options,
    memory_out: *mut *mut xtie_memory,
) -> c_int {
    if data.is_null() || options.is_null() || memory_out.is_null() {
        return guard::null(endpoint);
    }
    // SAFETY: not null, and the caller's to be read.
    let options = match unsafe { read(options) } {
        Ok(options) => options,
        Err(error) => return guard::shared(endpoint, |_| -> Result<_, xtie_result> { Err(error) }),
    };
    guard::shared(endpoint, |shared| -> Result<xtie_result, MemoryError> {
        let address = data.expose_provenance() as u64;
        let options = options.options()?;
        // SAFETY: as in `xtie_memory_register`; the caller says that the dma-buf is of the memory.
        let memory = unsafe { shared.register_with(address, Bytes::of(bytes), &options)? };
        // SAFETY: not null, and the caller's to be written.
        unsafe { memory_out.write(tag(memory)) };
        Ok(XTIE_OK)
    })
}

/// Forgets memory; the caller may unmap it after XTIE_OK.
///
/// memory: of xtie_memory_register or _with; not to be used after XTIE_OK.
/// Results: XTIE_OK, XTIE_ERR_MEMORY; XTIE_ERR_MEMORY_BUSY: requests that use it are outstanding,
///     test them to their end first; or have ended with XTIE_ERR_UNFENCED, and the fence has not
///     come; or a window lies in it, free that first; XTIE_ERR_FABRIC: a port's library refused to
///     forget it, call again.
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
/// place for messages. Where the kernel makes no shared memory (a seccomp filter), it is private
/// memory, and peers are reached by other rails.
///
/// bytes: its length, not zero. Whole pages are taken for it; messages lie in these bytes alone.
/// data_out: first byte, page-aligned; the memory is zero.
/// memory_out: to be given with each message that lies in it.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL (also when
///     heap_bytes is used up, which xtie_endpoint_error tells apart); XTIE_ERR_NO_MEMORY: the
///     kernel refuses, or less than that is left by what /proc/meminfo says (MemAvailable and
///     SwapFree) or by the memory limit of a cgroup around the process; XTIE_ERR_MEMORY_KIND: the
///     endpoint was opened without a heap.
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
