//! Host memory that a GPU maps, and small blocks of device memory for structures.

use super::gpu::Gpu;
use super::library::CudaError;
use core::ffi::c_void;
use cudarc::driver::sys::CUdeviceptr;
use std::sync::Arc;

/// Registered for every context, and mapped into the GPU's address space.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// A registration of host memory; the memory itself stays its owner's.
#[derive(Debug)]
pub struct Pinned {
    gpu: Arc<Gpu>,
    start: *mut u8,
    device: CUdeviceptr,
}

// SAFETY: an address that only the driver is handed.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Registers `bytes` from `start` on.
    ///
    /// # Safety
    /// - the memory stays mapped until the result is dropped.
    ///
    /// *Errors*: the driver's; ENOMEM of `ulimit -l` is CUDA_ERROR_OUT_OF_MEMORY.
    pub unsafe fn new(gpu: &Arc<Gpu>, start: *mut u8, bytes: usize) -> Result<Pinned, CudaError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let place = start.cast::<c_void>();
        // SAFETY: mapped memory, by this function's contract.
        let code = unsafe { (library.host_register)(place, bytes, PORTABLE_AND_MAPPED) };
        library.check("cuMemHostRegister", code)?;
        let mut pinned = Pinned { gpu: gpu.clone(), start, device: 0 };
        // SAFETY: valid for a write; registered above.
        let code = unsafe { (library.host_pointer)(&mut pinned.device, place, 0) };
        library.check("cuMemHostGetDevicePointer", code)?;
        Ok(pinned)
    }

    /// Where the GPU sees the first byte.
    pub fn device(&self) -> u64 {
        self.device
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(entered) = self.gpu.enter() else { return };
        // SAFETY: registered in `new`.
        unsafe { (entered.library().host_unregister)(self.start.cast()) };
    }
}

/// Device memory for structures that kernels read; freed on drop. Control path only: allocating and
/// freeing synchronise.
#[derive(Debug)]
pub struct DeviceBlock {
    gpu: Arc<Gpu>,
    start: CUdeviceptr,
    bytes: usize,
}

impl DeviceBlock {
    /// A block that holds `bytes`.
    pub fn of(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<DeviceBlock, CudaError> {
        let block = DeviceBlock::new(gpu, bytes.len())?;
        block.write(0, bytes)?;
        Ok(block)
    }

    /// A block of so many bytes, whatever they are.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceBlock, CudaError> {
        let entered = gpu.enter()?;
        let mut start = 0;
        // SAFETY: valid for a write.
        let code = unsafe { (entered.library().alloc)(&mut start, bytes) };
        entered.library().check("cuMemAlloc", code)?;
        Ok(DeviceBlock { gpu: gpu.clone(), start, bytes })
    }

    /// Copies bytes to it, and waits until they are there: the copy out of pageable memory may
    /// return before. *Panics* when they do not fit.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), CudaError> {
        let (entered, at) = (self.gpu.enter()?, self.at(offset, from.len()));
        let library = entered.library();
        // SAFETY: as many bytes lie on both sides.
        let code = unsafe { (library.upload)(at, from.as_ptr().cast(), from.len()) };
        library.check("cuMemcpyHtoD", code)?;
        // SAFETY: takes nothing.
        library.check("cuCtxSynchronize", unsafe { (library.synchronize)() })
    }

    /// Copies bytes out of it, and waits for them. *Panics* when there are not as many.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let (entered, at) = (self.gpu.enter()?, self.at(offset, to.len()));
        let library = entered.library();
        // SAFETY: as many bytes lie on both sides.
        let code = unsafe { (library.download)(to.as_mut_ptr().cast(), at, to.len()) };
        library.check("cuMemcpyDtoH", code)
    }

    fn at(&self, offset: usize, length: usize) -> CUdeviceptr {
        let end = offset.checked_add(length).expect("a range of memory");
        assert!(end <= self.bytes, "outside of the block");
        self.start + offset as u64
    }

    /// Its first byte, as device address.
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        let Ok(entered) = self.gpu.enter() else { return };
        // SAFETY: allocated in `alloc`.
        unsafe { (entered.library().free)(self.start) };
    }
}
