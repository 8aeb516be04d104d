//! Copies on a stream, one behind the other.
//!
//! A marker says when they are done: a [word](super::Words) of pinned host memory, into which the
//! stream writes a rising number behind them. A thread reads it by a plain load: no event, no
//! query, no wait.

use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use core::ffi::c_int;
use core::ptr::null_mut;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype, CUresult, CUstream, CUstreamCaptureStatus};
use std::sync::Arc;

/// Shorter copies out of host memory go as two rows, which a copy engine makes. Copies of one row,
/// up to 24 KiB, are made by the compute unit. In a context of our own they wait there for their
/// turn while a kernel of the program runs: 2.4 ms each (H200).
const ROWS_BELOW: usize = 64 << 10;

/// A stream that does not wait for the legacy stream.
const NON_BLOCKING: u32 = 1;

/// A stream of a high priority, so that it is not queued behind the user's; or one of the user's.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    stream: CUstream,
    is_own: bool,
}

// SAFETY: the driver's streams may be used by any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes one for copies.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Stream, CudaError> {
        Stream::with_priority(gpu, |_, greatest| greatest)
    }

    /// Makes one for kernels: of the priority below that of copies, where it is still above the
    /// least. Streams of one priority share hardware queues, and a kernel may wait long in its.
    pub fn for_kernels(gpu: &Arc<Gpu>) -> Result<Stream, CudaError> {
        Stream::with_priority(gpu, |least, greatest| (greatest + 1).min(least - 1).max(greatest))
    }

    fn with_priority(
        gpu: &Arc<Gpu>,
        choose: impl FnOnce(c_int, c_int) -> c_int,
    ) -> Result<Stream, CudaError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are valid for writes.
        let code = unsafe { (library.priorities)(&mut least, &mut greatest) };
        library.check("cuCtxGetStreamPriorityRange", code)?;
        let mut stream = null_mut();
        // SAFETY: valid for a write.
        let code =
            unsafe { (library.stream_create)(&mut stream, NON_BLOCKING, choose(least, greatest)) };
        library.check("cuStreamCreateWithPriority", code)?;
        Ok(Stream { gpu: gpu.clone(), stream, is_own: true })
    }

    /// A stream of the user's, by the driver's name of it.
    ///
    /// # Safety
    /// - it is a stream of the GPU's primary context, and stays until the result is dropped.
    pub unsafe fn of_user(gpu: &Arc<Gpu>, stream: CUstream) -> Stream {
        Stream { gpu: gpu.clone(), stream, is_own: false }
    }

    /// Whether what is posted now is recorded in a graph instead of carried out.
    ///
    /// *Errors*: the driver's. For the legacy stream, also that another stream captures in a mode
    /// which forbids its use.
    pub fn is_capturing(&self, entered: &Entered<'_>) -> Result<bool, CudaError> {
        let library = entered.library();
        let calls = library.captures()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: valid for a write; a stream of this context.
        let code = unsafe { (calls.is_capturing)(self.stream, &mut status) };
        library.check("cuStreamIsCapturing", code)?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The driver's name of it, for launches.
    pub fn raw(&self) -> CUstream {
        self.stream
    }

    /// Why the GPU does nothing any more, if it has failed: an illegal address of a kernel, say.
    pub fn fault(&self, entered: &Entered<'_>) -> Option<CudaError> {
        // SAFETY: a stream of this context.
        match unsafe { (entered.library().stream_query)(self.stream) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY => None,
            code => entered.library().check("cuStreamQuery", code).err(),
        }
    }

    /// Copies between device addresses: of this GPU, or mapped from another's.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until a later marker is seen.
    pub unsafe fn copy(
        &self,
        entered: &Entered<'_>,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: mapped ranges, by this function's contract.
        let code = unsafe { (entered.library().copy)(to, from, bytes, self.stream) };
        entered.library().check("cuMemcpyDtoDAsync", code)
    }

    /// Copies pinned host memory to a device address.
    ///
    /// # Safety
    /// - `from` is pinned and keeps its bytes, and `to` stays mapped, until a later marker is seen.
    pub unsafe fn copy_in(
        &self,
        entered: &Entered<'_>,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if !(2..ROWS_BELOW).contains(&bytes) {
            // SAFETY: by this function's contract.
            let code = unsafe { (entered.library().copy_in)(to, from.cast(), bytes, self.stream) };
            return entered.library().check("cuMemcpyHtoDAsync", code);
        }
        let rows = |at: usize, bytes: usize| {
            let half = bytes / 2;
            let copy = CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
                srcHost: from.wrapping_add(at).cast(),
                srcDevice: 0,
                srcArray: null_mut(),
                srcPitch: half,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                dstHost: null_mut(),
                dstDevice: to + at as u64,
                dstArray: null_mut(),
                dstPitch: half,
                WidthInBytes: half,
                Height: 2,
            };
            // SAFETY: two rows, one behind the other, within the ranges of this contract.
            let code = unsafe { (entered.library().copy_rows)(&copy, self.stream) };
            entered.library().check("cuMemcpy2DAsync", code)
        };
        rows(0, bytes & !1)?;
        // the last byte of an odd number goes with the one before it
        if bytes % 2 == 1 { rows(bytes - 2, 2) } else { Ok(()) }
    }

    /// Copies device memory to pinned host memory.
    ///
    /// # Safety
    /// - `to` is pinned and nobody else's, and `from` stays mapped, until a later marker is seen.
    pub unsafe fn copy_out(
        &self,
        entered: &Entered<'_>,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: by this function's contract.
        let code = unsafe { (entered.library().copy_out)(to.cast(), from, bytes, self.stream) };
        entered.library().check("cuMemcpyDtoHAsync", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        let Ok(entered) = self.gpu.enter() else { return };
        // SAFETY: made in `new`; the driver ends it once its work is done.
        unsafe { (entered.library().stream_destroy)(self.stream) };
    }
}
