//! Memory of a GPU as a dma-buf, which NICs register.

extern crate std;

use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use crate::base::descriptor;
use crate::base::text::Text;
use core::ffi::c_int;
use cudarc::driver::sys::{CUdevice_attribute, CUmemRangeHandleType};
use std::os::fd::OwnedFd;

/// The call, in errors.
const CALL: &str = "cuMemGetHandleForAddressRange";

/// Writes of a NIC, once it has reported them, are there for every kernel of the GPU: the least of
/// the driver's values that says so, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER.
const ORDERED: c_int = 100;

/// Whether what a NIC has written to a GPU, and has reported, is there for the GPU's kernels
/// without a flush.
///
/// *Errors*: the driver's.
pub fn needs_no_flush(gpu: &Gpu) -> Result<bool, CudaError> {
    let library = gpu.library();
    let Ok(functions) = &library.dmabufs else { return Ok(false) };
    let name = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
    let mut value = 0;
    // SAFETY: valid for a write; a device of the driver's.
    let code = unsafe { (functions.attribute)(&mut value, name, gpu.device()) };
    library.check("cuDeviceGetAttribute", code)?;
    Ok(value >= ORDERED)
}

/// A dma-buf of a range, whose first byte is the buffer's first.
///
/// *Shape*: both ends are multiples of the host's page size.
///
/// *Errors*: the driver's; it may be too old, or its kernel module may not support dma-bufs.
pub fn export(entered: &Entered<'_>, start: u64, bytes: usize) -> Result<OwnedFd, CudaError> {
    let library = entered.library();
    let failed = |code, words: &[u8]| CudaError { call: CALL, code, name: Text::beginning(words) };
    let Ok(functions) = &library.dmabufs else {
        return Err(failed(500, b"the driver is too old"));
    };
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let mut raw: i32 = -1;
    // SAFETY: room for a descriptor, which is what this handle type gives.
    let code = unsafe { (functions.of_range)((&raw mut raw).cast(), start, bytes, kind, 0) };
    library.check(CALL, code)?;
    descriptor::made(|| raw).map_err(|_| failed(304, b"no descriptor is left"))
}
