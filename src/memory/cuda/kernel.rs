//! A kernel of ours that copies, and that the CPU can take back until it starts.
//!
//! It does many copies by one launch. It also copies within one GPU, where the driver's own copy is
//! run by a kernel, too: that waits for a free multiprocessor, and nothing takes it back. Ours asks
//! first, by two words of a slot in pinned memory:
//!
//! | step | kernel, at its start | CPU, out of patience |
//! |---|---|---|
//! | 1 | writes `progress` | writes `taken_back` |
//! | 2 | fence | fence |
//! | 3 | reads `taken_back` | reads `progress` |
//! | reads zero | copies | has the copy: the kernel will not do it |
//! | reads another value | gives way, and says so | waits for what the kernel does |
//!
//! At least one of them sees the other, so a copy is never done twice. If each sees the other, the
//! kernel gives way and says so. Loads and stores are enough for this: a compare-and-swap of a GPU
//! on host memory is atomic for the CPU on few machines
//! (`CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED`).
//!
//! One launch is under way at a time, and nothing stands behind it in its stream. Streams share
//! hardware queues, so a kernel that cannot start must hold up nothing that others wait for.

use super::gpu::{Entered, Gpu};
use super::library::{CudaError, LoadError};
use super::pinned::{DeviceBlock, Pinned};
use super::stream::Stream;
use crate::base::words::{said, wraps};
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping};
use core::ffi::{c_uint, c_void};
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use cudarc::driver::sys::{CUfunction, CUmodule};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use std::vec;
use std::vec::Vec;

/// The program, which the driver compiles for its GPU.
const PROGRAM: &str = concat!(include_str!("copy.ptx"), "\0");
/// Threads of a block, as the program says.
const THREADS: c_uint = 256;
/// Most blocks of a launch: enough for more bytes a second than NVLink brings, and few enough to
/// leave most of the GPU to its user.
const BLOCKS: u64 = 32;
/// Most pieces of a launch, as the program says: its parameters have 4 KiB.
pub const PIECES_MAX: usize = 160;
/// Bytes of a piece, at least: one turn of a block's inner loop.
const PIECE_MIN: u64 = 32 << 10;
/// Words in device memory that the blocks of a launch share: see `copy.ptx`.
const STATE_BYTES: usize = 64;

/// Values of [`Words::progress`].
const BEGUN: u32 = 1;
const COPIED: u32 = 2;
const GAVE_WAY: u32 = 3;

/// The slot, as the program knows it.
#[repr(C)]
struct Words {
    /// Written by the kernel.
    progress: AtomicU32,
    /// Written by the CPU.
    taken_back: AtomicU32,
    /// Written by the last block that leaves.
    left: AtomicU32,
}

said! {
    /// Why there is no kernel.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum KernelError {
        /// The driver lacks a function.
        Missing(error: LoadError) => "{error}",
        /// A call of the driver failed; a program that it refuses among others.
        Cuda(error: CudaError) => "{error}",
        /// There is no memory for the slot.
        System(error: Errno) => "{error}",
    }
}

wraps!(KernelError: Cuda(CudaError), System(Errno));

/// How far a launch is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Progress {
    /// It has not started.
    Waiting,
    /// It has started. It copies, or gives way, without waiting for anything.
    Begun,
    /// Every byte has arrived.
    Copied,
    /// It copies nothing, because it was taken back.
    GaveWay,
}

/// The program, loaded for one GPU.
#[derive(Clone, Debug)]
pub struct Program(Arc<Module>);

impl Program {
    /// Loads it. *Errors*: [`KernelError`]. *Cost*: the driver may compile it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Program, KernelError> {
        Ok(Program(Arc::new(Module::new(gpu)?)))
    }
}

#[derive(Debug)]
struct Module {
    gpu: Arc<Gpu>,
    module: CUmodule,
    copy: CUfunction,
}

impl Module {
    fn new(gpu: &Arc<Gpu>) -> Result<Module, KernelError> {
        let entered = gpu.enter()?;
        let library = entered.library();
        let calls = library.kernels.as_ref().map_err(|error| KernelError::Missing(*error))?;
        let mut module = null_mut();
        // SAFETY: valid for a write; a program's text that ends with a zero.
        let code = unsafe { (calls.module_load)(&mut module, PROGRAM.as_ptr().cast()) };
        library.check("cuModuleLoadData", code)?;
        let mut loaded = Module { gpu: gpu.clone(), module, copy: null_mut() };
        let name = c"crosstie_copy";
        // SAFETY: valid for a write; a module of this context, and a name that ends with a zero.
        let code = unsafe { (calls.module_function)(&mut loaded.copy, module, name.as_ptr()) };
        library.check("cuModuleGetFunction", code)?;
        Ok(loaded)
    }
}

// SAFETY: the driver's modules and functions may be used by any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing changes them.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        let Ok(entered) = self.gpu.enter() else { return };
        let Ok(calls) = &entered.library().kernels else { return };
        // SAFETY: loaded in `new`; its launches have ended (`Kernel::drop`).
        unsafe { (calls.module_unload)(self.module) };
    }
}

/// Dropped in this order: what launches use outlives their stream.
#[derive(Debug)]
struct Parts {
    stream: Stream,
    state: DeviceBlock,
    program: Program,
    pieces: Vec<[u64; 3]>,
    pinned: Pinned,
    mapping: SharedMapping,
}

/// Launches of the copying kernel, one at a time. When it is dropped while a launch has not left,
/// its memory stays.
#[derive(Debug)]
pub struct Kernel(ManuallyDrop<Parts>);

// SAFETY: the driver's modules and functions may be used by any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Launches the program once, taken back. So the driver does the work of a first launch now,
    /// and the kernel is shown to run. Until then nothing [may launch](Kernel::has_left).
    ///
    /// *Errors*: [`KernelError`].
    pub fn new(program: &Program) -> Result<Kernel, KernelError> {
        let (gpu, program) = (&program.0.gpu, program.clone());
        let mapping = SharedMapping::create(c"crosstie-copies", page_bytes())?;
        mapping.populate(0, page_bytes())?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, mapping.start(), page_bytes()) }?;
        let state = DeviceBlock::of(gpu, &[0; STATE_BYTES])?;
        let stream = Stream::for_kernels(gpu)?;
        let pieces = vec![[0; 3]; PIECES_MAX];
        let parts = Parts { stream, state, program, pieces, pinned, mapping };
        let mut kernel = Kernel(ManuallyDrop::new(parts));
        kernel.words().left.store(1, Ordering::Relaxed); // nothing else knows it yet
        let entered = gpu.enter()?;
        // SAFETY: no copy.
        unsafe { kernel.start(&entered, 0, 1) }?;
        Ok(kernel)
    }

    fn words(&self) -> &Words {
        // SAFETY: a page of the mapping, which begins with the slot; only touched as atomics.
        unsafe { &*self.0.mapping.start().cast::<Words>() }
    }

    /// Whether the last launch has ended, so that there may be another.
    pub fn has_left(&self) -> bool {
        // pairs with the last block's release: no block touches the slot any more
        self.words().left.load(Ordering::Acquire) != 0
    }

    /// Launches `copies`, each a target, a source and a length. They are done in any order.
    ///
    /// # Safety
    /// - all ranges are mapped, and stay so until the copies were done or taken back.
    ///
    /// *Panics*: when the last launch has not left, or there are more than [`PIECES_MAX`] copies.
    /// *Errors*: the driver's; nothing is copied then.
    pub unsafe fn launch(
        &mut self,
        entered: &Entered<'_>,
        copies: &[[u64; 3]],
    ) -> Result<(), CudaError> {
        assert!(self.has_left());
        let count = cut(copies, &mut self.0.pieces);
        // SAFETY: by this function's contract.
        unsafe { self.start(entered, count, 0) }
    }

    /// Launches the first `count` pieces on a slot that is free.
    ///
    /// # Safety
    /// - as for [`Kernel::launch`], if `taken_back` is zero.
    unsafe fn start(
        &mut self,
        entered: &Entered<'_>,
        count: usize,
        taken_back: u32,
    ) -> Result<(), CudaError> {
        let words = self.words();
        // relaxed: the launch orders them before the kernel
        words.progress.store(0, Ordering::Relaxed);
        words.taken_back.store(taken_back, Ordering::Relaxed);
        words.left.store(0, Ordering::Relaxed);
        let parts = &mut *self.0;
        let mut values = [count as u64, parts.pinned.device(), parts.state.start()];
        let [count, slot, state] =
            values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        let mut places = [parts.pieces.as_mut_ptr().cast(), count, slot, state];
        let blocks = values[0].clamp(1, BLOCKS) as c_uint;
        let library = entered.library();
        let launched = library.kernels.as_ref().map(|calls| {
            let (function, stream) = (parts.program.0.copy, parts.stream.raw());
            let places = places.as_mut_ptr();
            // SAFETY: the function's parameters in their order; the driver copies them.
            unsafe {
                (calls.launch)(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, places, null_mut())
            }
        });
        let Ok(code) = launched else { unreachable!("the module was loaded by these functions") };
        library.check("cuLaunchKernel", code).inspect_err(|_| {
            self.words().left.store(1, Ordering::Relaxed); // no kernel is there to see it
        })
    }

    /// How far the last launch is.
    pub fn progress(&self) -> Progress {
        // pairs with the kernel's release, which covers the bytes that it copied
        match self.words().progress.load(Ordering::Acquire) {
            BEGUN => Progress::Begun,
            COPIED => Progress::Copied,
            GAVE_WAY => Progress::GaveWay,
            _ => Progress::Waiting,
        }
    }

    /// Takes the copy of the last launch back: whether it will surely not be done. Otherwise the
    /// kernel has begun, and [`Kernel::progress`] soon says what it does.
    pub fn take_back(&self) -> bool {
        self.words().taken_back.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the kernel's, between its store and its load
        self.progress() == Progress::Waiting
    }
}

/// Cuts `copies` into pieces, of one size but for the ends, and says how many these are.
fn cut(copies: &[[u64; 3]], pieces: &mut [[u64; 3]]) -> usize {
    let spare = (pieces.len() - copies.len()).max(1) as u64;
    let all: u64 = copies.iter().map(|copy| copy[2]).sum();
    // a copy of n bytes has less than n / size + 1 pieces
    let size = all.div_ceil(spare).max(PIECE_MIN).next_multiple_of(16);
    let mut count = 0;
    for &[to, from, bytes] in copies {
        let mut done = 0;
        while done < bytes {
            let now = (bytes - done).min(size);
            pieces[count] = [to + done, from + done, now];
            (count, done) = (count + 1, done + now);
        }
    }
    count
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.has_left() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_copies_and_find_room() {
        let many = vec![[1 << 40, 1 << 41, (32 << 10) + 1]; PIECES_MAX / 2];
        let mixed = [[16, 1 << 30, 1 << 30], [1 << 50, 1 << 51, 0], [3 << 40, 1 << 41, 7]];
        for copies in [&many[..], &mixed, &[[0, 4096, 1]], &vec![[0, 64, 9]; PIECES_MAX]] {
            let mut pieces = [[0; 3]; PIECES_MAX];
            let count = cut(copies, &mut pieces);
            let mut at = 0;
            for &[to, from, bytes] in copies {
                let mut done = 0;
                while done < bytes {
                    assert_eq!(pieces[at][..2], [to + done, from + done]);
                    (done, at) = (done + pieces[at][2], at + 1);
                }
                assert_eq!(done, bytes);
            }
            assert_eq!(at, count);
        }
    }
}
