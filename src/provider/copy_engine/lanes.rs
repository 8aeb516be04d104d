//! One GPU as the copy engine uses it: streams, and pinned memory to copy through.

use crate::base::units::{Bytes, Instant, Span};
use crate::base::words::{said, wraps};
use crate::fabric::{LocalSpan, RailKey};
use crate::memory::cuda::{CudaError, Gpu, Marked, Pinned};
use crate::memory::{Errno, Reserve};
use core::sync::atomic::AtomicU64;
use std::sync::Arc;

/// Streams that copy between devices: a second one gains a fifth, a third one nothing (H200).
const PEERS: usize = 2;
/// The streams that copy to and from the host, the one that writes short messages, and the one that
/// copies within the device, which waits while kernels hold all multiprocessors.
const IN: usize = PEERS;
const OUT: usize = PEERS + 1;
const WORDS: usize = PEERS + 2;
const WITHIN: usize = PEERS + 3;
const STREAMS: usize = PEERS + 4;

/// Up to here bytes from the host are written by the stream itself: two words are there after 6 µs,
/// a copy after 9, and each further word takes 0.8 (H200).
const WRITTEN_MAX: u64 = 32;

/// A stream that has copies and does not move for so long is told of.
pub const OVERDUE: Span = Span::millis(3_000);

/// Bytes between devices that are under way at a time, for more than one copy.
const FLYING_MAX: u64 = 256 << 20;
/// Copies up to here are not among them.
const SHORT: u64 = 64 << 10;

/// Cells that bytes are copied through.
pub const CELLS: usize = 32;
/// Bytes of each.
pub const CELL_BYTES: usize = 256 << 10;
/// The words of markers stand before the cells.
const WORDS_BYTES: usize = 4096;
/// Bytes of pinned memory that each GPU costs.
const PINNED_BYTES: usize = WORDS_BYTES + CELLS * CELL_BYTES;

/// The memory of all GPUs' cells: address space, of which each GPU that is opened pins its part.
#[derive(Debug)]
pub struct Cells {
    memory: Reserve,
    /// What shared memory calls it.
    key: RailKey,
}

impl Cells {
    /// Address space for so many GPUs.
    pub fn create(gpus: usize) -> Result<Cells, Errno> {
        Ok(Cells { memory: Reserve::create(gpus * PINNED_BYTES)?, key: RailKey(0) })
    }

    /// Where it lies, for registration as host memory.
    pub fn span(&self) -> (u64, Bytes) {
        (self.memory.start() as u64, Bytes::of(self.memory.length()))
    }

    /// What shared memory calls it.
    pub fn key_set(&mut self, key: RailKey) {
        self.key = key;
    }
}

said! {
    /// Why a GPU cannot be used.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum LaneError {
        /// The driver refused.
        Cuda(error: CudaError) => "{error}",
        /// There is no host memory for it.
        System(error: Errno) => "{error}",
    }
}

wraps!(LaneError: Cuda(CudaError));

// SAFETY: the pointer is to cells, which one thread at a time uses.
unsafe impl Send for Lanes {}

/// The streams of one GPU. The data thread alone uses them.
#[derive(Debug)]
pub struct Lanes {
    // dropped before the words that they write, and those before the memory
    streams: [Marked; STREAMS],
    _pinned: Pinned,
    start: *mut u8,
    gpu: Arc<Gpu>,
    /// What shared memory calls the cells.
    key: RailKey,
    /// A bit for each cell that is in use.
    used: u32,
    /// Bytes between devices that are under way.
    flying: u64,
    /// A copy has found no room for its bytes: those that come after it find none either.
    is_full: bool,
    /// The markers that [`Lanes::has_moved`] has seen.
    seen: [u64; STREAMS],
    rests: [Rest; STREAMS],
}

/// Since when a stream has not moved, though it has something; from when on it is told of.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
struct Rest {
    reached: u64,
    since: Option<Instant>,
    is_told: bool,
}

/// The number that a stream reaches when a copy is done.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Mark {
    stream: u8,
    number: u64,
    /// Where the bytes go.
    to: u64,
}

/// What a cell is for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Use {
    /// Bytes for us.
    Fetch,
    /// Bytes of ours that a peer reads.
    Lend,
}

/// What became of a copy.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Progress {
    /// It is under way.
    Flying,
    /// All bytes are there.
    Done,
    /// The driver has refused it, with its code: no byte moves any more.
    Refused(i32),
    /// The GPU does nothing any more, with the driver's code.
    Failed(i32),
}

impl Lanes {
    /// Makes streams of the highest priority, and pins the part of the cells that is of this
    /// `number`. Control path.
    ///
    /// # Safety
    /// - the cells stay until the lanes are dropped, and there is one value of each number.
    pub unsafe fn new(gpu: Arc<Gpu>, number: usize, cells: &Cells) -> Result<Lanes, LaneError> {
        assert!((number + 1) * PINNED_BYTES <= cells.memory.length());
        let start = cells.memory.start().wrapping_add(number * PINNED_BYTES);
        // SAFETY: mapped until the registration is dropped (this function's contract).
        let pinned = unsafe { Pinned::new(&gpu, start, PINNED_BYTES) }?;
        let stream = |n: usize| {
            let word = start.wrapping_add(n * 64).cast::<AtomicU64>();
            // SAFETY: a pinned word of its own, zero as fresh memory is; it outlives the stream
            // (order of the fields).
            unsafe { Marked::new(&gpu, word, pinned.device() + n as u64 * 64) }
        };
        let mut streams =
            [stream(0)?, stream(1)?, stream(IN)?, stream(OUT)?, stream(WORDS)?, stream(WITHIN)?];
        prepare_words(&gpu, &mut streams[WORDS], start)?;
        let (seen, rests) = ([0; STREAMS], [Rest::default(); STREAMS]);
        Ok(Lanes {
            streams,
            _pinned: pinned,
            start,
            gpu,
            key: cells.key,
            used: 0,
            flying: 0,
            is_full: false,
            seen,
            rests,
        })
    }

    fn cell(&self, cell: u8) -> *mut u8 {
        self.start.wrapping_add(WORDS_BYTES + usize::from(cell) * CELL_BYTES)
    }

    /// The first bytes of a cell.
    ///
    /// # Safety
    /// - the caller has taken the cell, and uses the span within its hold.
    pub unsafe fn span(&self, cell: u8, length: u64) -> LocalSpan {
        assert!(length <= CELL_BYTES as u64);
        // SAFETY: a cell lies in the region of the key.
        unsafe { LocalSpan::new(self.cell(cell) as u64, Bytes(length), self.key) }
    }

    /// Takes a cell. Each use has half of them, so that two processes which wait for each other's
    /// pieces never wait for room.
    pub fn cell_take(&mut self, what: Use) -> Option<u8> {
        let half = CELLS as u32 / 2;
        let first = if what == Use::Lend { half } else { 0 };
        let cell = first + (self.used >> first).trailing_ones();
        if cell >= first + half {
            return None;
        }
        self.used |= 1 << cell;
        Some(cell as u8)
    }

    /// Gives a cell back.
    pub fn cell_give(&mut self, cell: u8) {
        self.used &= !(1 << cell);
    }

    /// The GPU, in the context that its streams are of.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Whether so many bytes more may come from another device. Until the next flush there is none
    /// for others either when there is none.
    pub fn has_room(&mut self, bytes: u64) -> bool {
        let fits = self.flying == 0 || self.flying + bytes <= FLYING_MAX;
        self.is_full |= bytes > SHORT && !fits;
        bytes <= SHORT || !self.is_full
    }

    /// Posts a copy between device addresses; `is_within`: both are of this device. Its end is told
    /// ([`Lanes::copied`]).
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the mark is reached.
    pub unsafe fn copy(
        &mut self,
        (to, from): (u64, u64),
        bytes: u64,
        is_within: bool,
    ) -> Result<Mark, CudaError> {
        let entered = self.gpu.enter()?;
        let least = (0..PEERS).min_by_key(|n| self.streams[*n].depth()).unwrap_or(0);
        let stream = if is_within { WITHIN } else { least };
        // SAFETY: by this function's contract.
        unsafe { self.streams[stream].copy(&entered, to, from, bytes as usize) };
        let mark = Mark { stream: stream as u8, number: self.streams[stream].number(), to };
        self.flying += flying(mark, bytes);
        Ok(mark)
    }

    /// A copy between device addresses is under way no more.
    pub fn copied(&mut self, mark: Mark, bytes: u64) {
        self.flying -= flying(mark, bytes);
    }

    /// Posts a copy out of a cell.
    ///
    /// # Safety
    /// - `to` is mapped, and the cell is kept as it is, until the mark is reached.
    pub unsafe fn copy_in(&mut self, to: u64, cell: u8, bytes: u64) -> Result<Mark, CudaError> {
        if bytes > WRITTEN_MAX || !(to | bytes).is_multiple_of(4) {
            // SAFETY: by this function's contract.
            return unsafe { self.copy_in_whole(to, cell, bytes) };
        }
        let from = self.cell(cell);
        let entered = self.gpu.enter()?;
        // SAFETY: a cell, whose first bytes nobody changes now; by this function's contract.
        unsafe {
            let bytes = core::slice::from_raw_parts(from, bytes as usize);
            self.streams[WORDS].write(&entered, to, bytes);
        }
        Ok(Mark { stream: WORDS as u8, number: self.streams[WORDS].number(), to })
    }

    /// The same, never by words of a stream, which the driver refuses in memory of a pool
    /// (cudaMallocAsync).
    ///
    /// # Safety
    /// - as for [`Lanes::copy_in`].
    pub unsafe fn copy_in_whole(
        &mut self,
        to: u64,
        cell: u8,
        bytes: u64,
    ) -> Result<Mark, CudaError> {
        let from = self.cell(cell);
        let entered = self.gpu.enter()?;
        // SAFETY: a pinned cell; by this function's contract.
        unsafe { self.streams[IN].copy_in(&entered, to, from, bytes as usize) };
        Ok(Mark { stream: IN as u8, number: self.streams[IN].number(), to })
    }

    /// Posts a copy into a cell.
    ///
    /// # Safety
    /// - `from` is mapped, and nobody else uses the cell, until the mark is reached.
    pub unsafe fn copy_out(&mut self, cell: u8, from: u64, bytes: u64) -> Result<Mark, CudaError> {
        let to = self.cell(cell);
        let entered = self.gpu.enter()?;
        // SAFETY: a pinned cell; by this function's contract.
        unsafe { self.streams[OUT].copy_out(&entered, to, from, bytes as usize) };
        Ok(Mark { stream: OUT as u8, number: self.streams[OUT].number(), to: to as u64 })
    }

    /// Whether a copy goes by words of a stream.
    pub fn is_of_words(mark: Mark) -> bool {
        usize::from(mark.stream) == WORDS
    }

    /// What became of a copy.
    #[inline]
    pub fn progress(&self, mark: Mark) -> Progress {
        let stream = &self.streams[usize::from(mark.stream)];
        match stream.broken() {
            Some(error) => Progress::Failed(error.code as i32),
            None if stream.reached() >= mark.number => {
                let refusal = stream.refusal(mark.number, mark.to);
                refusal.map_or(Progress::Done, |error| Progress::Refused(error.code as i32))
            }
            None => Progress::Flying,
        }
    }

    /// Whether a marker was written, or a stream has failed, since the last call.
    pub fn has_moved(&mut self) -> bool {
        let mut is_moved = false;
        for (stream, seen) in self.streams.iter().zip(&mut self.seen) {
            let reached = if stream.broken().is_some() { u64::MAX } else { stream.reached() };
            is_moved |= reached != core::mem::replace(seen, reached);
        }
        is_moved
    }

    /// Posts what waits, with the markers behind it.
    pub fn flush(&mut self) {
        self.is_full = false;
        let waits = |stream: &Marked| stream.is_waiting();
        if !self.streams.iter().any(waits) {
            return;
        }
        match self.gpu.enter() {
            Ok(entered) => self.streams.iter_mut().for_each(|stream| stream.flush(&entered)),
            Err(error) => self.streams.iter_mut().for_each(|stream| stream.break_off(error)),
        }
    }

    /// Whether everything that was posted is done, or never will be.
    pub fn is_quiet(&self) -> bool {
        let is_over = |stream: &Marked| stream.depth() == 0 || stream.broken().is_some();
        self.streams.iter().all(is_over)
    }

    /// Whether copies have not ended for [`OVERDUE`]: once each time that a stream stands still.
    pub fn is_overdue(&mut self, now: Instant) -> bool {
        let mut is_overdue = false;
        for (stream, rest) in self.streams.iter().zip(&mut self.rests) {
            let reached = stream.reached();
            if stream.depth() == 0 || rest.since.is_none() || rest.reached != reached {
                let since = (stream.depth() != 0).then_some(now);
                *rest = Rest { reached, since, is_told: false };
            } else if !rest.is_told && rest.since.is_some_and(|it| now.since(it) >= OVERDUE) {
                (rest.is_told, is_overdue) = (true, true);
            }
        }
        is_overdue
    }

    /// Asks the driver whether the GPU has failed. *Cost*: a call for each stream.
    pub fn look_for_fault(&mut self) {
        match self.gpu.enter() {
            Ok(entered) => self.streams.iter_mut().for_each(|it| it.look_for_fault(&entered)),
            Err(error) => self.streams.iter_mut().for_each(|it| it.break_off(error)),
        }
    }
}

/// What a copy between device addresses counts of the bytes that are under way.
fn flying(mark: Mark, bytes: u64) -> u64 {
    let is_counted = usize::from(mark.stream) < PEERS && bytes > SHORT;
    if is_counted { bytes } else { 0 }
}

/// Brings a stream's words to a copy engine. The unit that has made the stream's last copy writes
/// them. On a fresh stream that is the compute unit, where they wait while a kernel runs. `from` is
/// pinned.
fn prepare_words(gpu: &Gpu, stream: &mut Marked, from: *const u8) -> Result<(), CudaError> {
    let (entered, mut scratch) = (gpu.enter()?, 0);
    // SAFETY: valid for a write. The context, which is ours, frees the memory when it ends.
    let code = unsafe { (gpu.library().alloc)(&mut scratch, WORDS_BYTES) };
    gpu.library().check("cuMemAlloc", code)?;
    // SAFETY: pinned memory whose bytes do not matter, and as many bytes that were just allocated.
    unsafe { stream.copy_in(&entered, scratch, from, WORDS_BYTES) };
    stream.flush(&entered);
    Ok(())
}
