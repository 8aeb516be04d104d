//! Words that a stream writes, many by one call: values for other GPUs, and markers for the host.

use super::gpu::Entered;
use super::library::CudaError;
use super::stream::Stream;
use core::ffi::c_uint;
use core::mem::zeroed;
use cudarc::driver::sys::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Kind};
use std::vec::Vec;

extern crate std;

/// Most words of a call. The driver takes up to 256.
pub const WORDS_MAX: usize = 64;

/// Words that wait to be posted. The stream writes them in the order in which they were taken, each
/// visible after all that came before it.
pub struct Words(Vec<CUstreamBatchMemOpParams>);

impl core::fmt::Debug for Words {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Words").field(&self.0.len()).finish()
    }
}

impl Words {
    /// None.
    pub fn new() -> Words {
        Words(Vec::with_capacity(WORDS_MAX))
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a word for device memory, or for pinned host memory by its device address. `false`: it
    /// has not four or eight bytes, is not aligned, or there is no room.
    pub fn take(&mut self, to: u64, bytes: &[u8]) -> bool {
        // SAFETY: integers, for which zero is a value: every write is fenced.
        let mut word: CUstreamBatchMemOpParams = unsafe { zeroed() };
        if let Ok(bytes) = bytes.try_into().map(u64::from_le_bytes) {
            word.writeValue.operation = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64;
            word.writeValue.__bindgen_anon_1.value64 = bytes;
        } else if let Ok(bytes) = bytes.try_into().map(u32::from_le_bytes) {
            word.writeValue.operation = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32;
            word.writeValue.__bindgen_anon_1.value = bytes;
        } else {
            return false;
        }
        word.writeValue.address = to;
        let fits = to.is_multiple_of(bytes.len() as u64) && self.0.len() < WORDS_MAX;
        if fits {
            self.0.push(word);
        }
        fits
    }

    /// Posts what was taken behind all that `stream` has, and is empty then in any case.
    ///
    /// *Errors*: the driver's.
    ///
    /// # Safety
    /// - the words are mapped, and stay so until the last one, or a later marker, is seen.
    pub unsafe fn post(&mut self, entered: &Entered<'_>, stream: &Stream) -> Result<(), CudaError> {
        let (count, library) = (self.0.len() as c_uint, entered.library());
        if count == 0 {
            return Ok(());
        }
        // SAFETY: `count` operations; mapped words by this function's contract.
        let code = unsafe { (library.write)(stream.raw(), count, self.0.as_mut_ptr(), 0) };
        self.0.clear();
        library.check("cuStreamBatchMemOp", code)
    }
}

impl Default for Words {
    fn default() -> Words {
        Words::new()
    }
}
