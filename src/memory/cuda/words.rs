//! Words that a stream writes or waits for, many by one call: values for other GPUs, and markers
//! for the host.

use super::gpu::Entered;
use super::library::CudaError;
use super::stream::Stream;
use core::ffi::c_uint;
use core::mem::zeroed;
use cudarc::driver::sys::{CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Kind};
use std::vec::Vec;

/// Most words of a call. The driver takes up to 256.
pub const WORDS_MAX: usize = 64;
/// CU_STREAM_WAIT_VALUE_EQ: until the word is equal.
const WAIT_EQUAL: u32 = 1;

/// Words that wait to be posted. The stream writes them, or waits for them, in the order in which
/// they were taken, each visible after all that came before it.
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
        let word = if let Ok(value) = bytes.try_into().map(u64::from_le_bytes) {
            word64(to, value)
        } else if let Ok(value) = bytes.try_into().map(u32::from_le_bytes) {
            word32(to, value)
        } else {
            return false;
        };
        let fits = to.is_multiple_of(bytes.len() as u64) && self.0.len() < WORDS_MAX;
        if fits {
            self.0.push(word);
        }
        fits
    }

    /// Takes a word of eight bytes that the stream waits for until it has this value. `false`: as
    /// for [`Words::take`].
    pub fn take_wait(&mut self, at: u64, value: u64) -> bool {
        let fits = at.is_multiple_of(8) && self.0.len() < WORDS_MAX;
        if fits {
            let mut word = write_to(at, Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64);
            word.waitValue.__bindgen_anon_1.value64 = value;
            word.waitValue.flags = WAIT_EQUAL;
            self.0.push(word);
        }
        fits
    }

    /// Posts the words behind everything that `stream` has. The batch is empty then, also after an
    /// error.
    ///
    /// *Errors*: the driver's.
    ///
    /// # Safety
    /// - the words are mapped, and stay so until the last one, or a later marker, is seen.
    pub unsafe fn post(&mut self, entered: &Entered<'_>, stream: &Stream) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        let posted = unsafe { post(entered, stream, &mut self.0) };
        self.0.clear();
        posted
    }
}

/// Posts one word of eight bytes by itself, such as a marker.
///
/// *Errors*: the driver's.
///
/// # Safety
/// - the word is aligned and mapped, and stays so until it, or a later marker, is seen.
pub unsafe fn post_word(
    entered: &Entered<'_>,
    stream: &Stream,
    to: u64,
    value: u64,
) -> Result<(), CudaError> {
    // SAFETY: by this function's contract.
    unsafe { post(entered, stream, &mut [word64(to, value)]) }
}

/// # Safety
/// - as for [`Words::post`].
unsafe fn post(
    entered: &Entered<'_>,
    stream: &Stream,
    words: &mut [CUstreamBatchMemOpParams],
) -> Result<(), CudaError> {
    let (count, library) = (words.len() as c_uint, entered.library());
    // SAFETY: `count` operations; mapped words by this function's contract.
    let code = unsafe { (library.write)(stream.raw(), count, words.as_mut_ptr(), 0) };
    library.check("cuStreamBatchMemOp", code)
}

fn word64(to: u64, value: u64) -> CUstreamBatchMemOpParams {
    let mut word = write_to(to, Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64);
    word.writeValue.__bindgen_anon_1.value64 = value;
    word
}

fn word32(to: u64, value: u32) -> CUstreamBatchMemOpParams {
    let mut word = write_to(to, Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32);
    word.writeValue.__bindgen_anon_1.value = value;
    word
}

fn write_to(to: u64, kind: Kind) -> CUstreamBatchMemOpParams {
    // SAFETY: integers, for which zero is a value: every write is fenced.
    let mut word: CUstreamBatchMemOpParams = unsafe { zeroed() };
    word.writeValue.operation = kind;
    word.writeValue.address = to;
    word
}

impl Default for Words {
    fn default() -> Words {
        Words::new()
    }
}
