//! Adds to words of device memory. There is no such operation of a stream: the words are read into
//! pinned memory, and the stream writes the sums, by copies where the driver refuses its words.
//!
//! One *round* is under way at a time, so that no add is lost. It takes many words; adds to one
//! word are summed before.

use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use super::pinned::Pinned;
use super::stream::Stream;
use super::words::{WORDS_MAX, Words};
use crate::base::words::wraps;
use crate::memory::heap::page_bytes;
use crate::memory::{Errno, SharedMapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

/// Most words that a round changes: with their marker they are written by one call.
pub const ROUND: usize = WORDS_MAX - 1;
/// The marker stands behind the words, in a cache line of its own.
const MARKER: usize = WORDS_MAX * 8;
const LINE: usize = 64;

/// Why there is no adder.
#[derive(Debug)]
pub enum AdderError {
    /// The kernel gave no memory.
    System(Errno),
    /// A call of the driver failed.
    Cuda(CudaError),
}

wraps!(AdderError: System(Errno), Cuda(CudaError));

impl core::fmt::Display for AdderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AdderError::System(error) => error.fmt(f),
            AdderError::Cuda(error) => error.fmt(f),
        }
    }
}

/// A word that a round changes.
#[derive(Copy, Clone, Debug)]
struct Sum {
    address: u64,
    value: u64,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Step {
    /// Nothing is under way.
    Idle,
    /// The words are being read.
    Reading,
    /// The sums are being written.
    Writing,
}

/// What became of a round.
#[derive(Debug)]
pub enum Round {
    /// Nothing is under way.
    Idle,
    /// It is, and did nothing now.
    Waits,
    /// It went on, and is not done.
    Moved,
    /// It has ended. An error: which words were reached is not known.
    Ended(Result<(), CudaError>),
}

/// Rounds of adds on one GPU.
#[derive(Debug)]
pub struct Adder {
    step: Step,
    sums: Vec<Sum>,
    issued: u64,
    words: Words,
    /// Dropped before the memory that it writes.
    stream: Stream,
    pinned: Pinned,
    staging: SharedMapping,
}

impl Adder {
    /// One for words that `gpu` reaches.
    ///
    /// *Errors*: the kernel's for the memory, the driver's.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Adder, AdderError> {
        let room = (MARKER + LINE).next_multiple_of(page_bytes());
        let staging = SharedMapping::create(c"crosstie-add-words", room)?;
        staging.populate(0, room)?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, staging.start(), room) }?;
        Ok(Adder {
            step: Step::Idle,
            sums: Vec::with_capacity(ROUND),
            issued: 0,
            words: Words::new(),
            stream: Stream::new(gpu)?,
            pinned,
            staging,
        })
    }

    /// Whether no round is under way.
    pub fn is_idle(&self) -> bool {
        self.step == Step::Idle
    }

    /// Whether the next round has words.
    pub fn has_words(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Takes an add into the next round, while none is under way. `false`: it is full.
    pub fn take(&mut self, address: u64, value: u64) -> bool {
        debug_assert!(self.is_idle() && address.is_multiple_of(8));
        let is_full = self.sums.len() == ROUND;
        match self.sums.iter_mut().find(|sum| sum.address == address) {
            Some(sum) => sum.value = sum.value.wrapping_add(value),
            None if is_full => return false,
            None => self.sums.push(Sum { address, value }),
        }
        true
    }

    /// Begins a round with what was taken, or goes on with the one under way.
    ///
    /// # Safety
    /// - the words that were taken are mapped, and stay so until the round has ended.
    pub unsafe fn go_on(&mut self, entered: &Entered<'_>) -> Round {
        let (step, done) = match self.step {
            Step::Idle if self.sums.is_empty() => return Round::Idle,
            Step::Idle => (Step::Reading, self.read(entered)),
            Step::Reading | Step::Writing if !self.has_come() => return Round::Waits,
            Step::Reading => (Step::Writing, self.write(entered)),
            Step::Writing => return self.end(Ok(())),
        };
        self.step = step;
        match done {
            Ok(()) => Round::Moved,
            Err(error) => self.end(Err(error)),
        }
    }

    fn end(&mut self, outcome: Result<(), CudaError>) -> Round {
        self.sums.clear();
        self.step = Step::Idle;
        Round::Ended(outcome)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping (`new`), aligned, and only touched as an atomic.
        unsafe { &*self.staging.start().add(at).cast::<AtomicU64>() }
    }

    fn has_come(&self) -> bool {
        // pairs with the stream's write, which is fenced behind its copies
        self.word(MARKER).load(Ordering::Acquire) >= self.issued
    }

    fn read(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for (at, sum) in self.sums.iter().enumerate() {
            let to = self.staging.start().wrapping_add(at * 8);
            // SAFETY: a word of the staging, and one that `go_on` vouches for.
            unsafe { self.stream.copy_out(entered, to, sum.address, 8) }?;
        }
        self.mark(entered)
    }

    fn write(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for (at, sum) in self.sums.iter().enumerate() {
            let word = self.word(at * 8);
            let value = word.load(Ordering::Relaxed).wrapping_add(sum.value);
            word.store(value, Ordering::Relaxed); // calls of the driver come behind it
            let taken = self.words.take(sum.address, &value.to_le_bytes());
            debug_assert!(taken, "an aligned word, and there is room for a round");
        }
        // it refuses a call as a whole if one word lies in a pool's memory (cudaMallocAsync)
        self.mark(entered).or_else(|_| self.copy(entered))
    }

    /// Writes the sums without words of the stream, each by a copy of its own, which none can tear.
    fn copy(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for (at, sum) in self.sums.iter().enumerate() {
            let from = self.pinned.device() + at as u64 * 8;
            // SAFETY: a word of the staging, and one that `go_on` vouches for.
            unsafe { self.stream.copy(entered, sum.address, from, 8) }?;
        }
        self.mark(entered)
    }

    fn mark(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        self.issued += 1;
        let at = self.pinned.device() + MARKER as u64;
        let taken = self.words.take(at, &self.issued.to_le_bytes());
        debug_assert!(taken, "there is room for a round and its marker");
        // SAFETY: a word of the pinned mapping, which stands as long as the stream; sums go where
        // `read` found the words.
        unsafe { self.words.post(entered, &self.stream) }
    }
}
