//! Memory of a GPU as a dma-buf, which NICs register.

use super::gpu::{Entered, Gpu, devices};
use super::library::{CudaError, Library};
use crate::base::descriptor;
use crate::base::text::Text;
use core::ffi::c_int;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUmemRangeHandleType};
use std::os::fd::OwnedFd;

/// The call, in errors.
const CALL: &str = "cuMemGetHandleForAddressRange";

/// Writes of a NIC, once it has reported them, are there for every kernel of the GPU: the least of
/// the driver's values that says so, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER.
const ORDERED: c_int = 100;
/// Which value says that.
const ORDERING: CUdevice_attribute =
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
/// The first number of a compute capability from which on NCCL flushes nothing.
const FLUSHED_BEFORE: c_int = 9;
/// Which value is that number.
const MAJOR: CUdevice_attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
/// Whether the driver makes dma-bufs of a GPU's memory.
const EXPORTS: CUdevice_attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;

/// Whether NICs may write to a GPU: what they have written, and have reported, is there for its
/// kernels without a flush; or `flushed`: somebody flushes it as NCCL does, of all GPUs before
/// compute capability 9.0 (`ncclTopoNeedFlush`).
///
/// *Errors*: the driver's.
pub fn suits_nics(gpu: &Gpu, flushed: bool) -> Result<bool, CudaError> {
    is_suited(gpu.library(), gpu.device(), flushed)
}

/// The same of every GPU that this process sees, and, where that is asked, the driver makes
/// dma-bufs of their memory. Makes no context.
///
/// *Errors*: the driver's.
pub fn all_suit_nics(library: &Library, exported: bool, flushed: bool) -> Result<bool, CudaError> {
    let devices = devices(library)?;
    for device in &devices {
        let exports = !exported || attribute(library, EXPORTS, *device)?.is_some_and(|it| it != 0);
        if !(exports && is_suited(library, *device, flushed)?) {
            return Ok(false);
        }
    }
    Ok(!devices.is_empty())
}

fn is_suited(library: &Library, device: CUdevice, flushed: bool) -> Result<bool, CudaError> {
    let Some(order) = attribute(library, ORDERING, device)? else { return Ok(false) };
    let is_old = attribute(library, MAJOR, device)?.is_some_and(|major| major < FLUSHED_BEFORE);
    Ok(order >= ORDERED || flushed && is_old)
}

/// An attribute of a GPU; `None`: the driver is too old for dma-bufs.
fn attribute(
    library: &Library,
    name: CUdevice_attribute,
    device: CUdevice,
) -> Result<Option<c_int>, CudaError> {
    let Ok(functions) = &library.dmabufs else { return Ok(None) };
    let mut value = 0;
    // SAFETY: valid for a write; a device of the driver's.
    let code = unsafe { (functions.attribute)(&mut value, name, device) };
    library.check("cuDeviceGetAttribute", code)?;
    Ok(Some(value))
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
