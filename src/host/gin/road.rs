//! The way to one rank: a stream, whose order is kept, and the markers behind what it does.
//!
//! What one pass of the engine posts ends with a marker: the stream writes a rising number into a
//! word of pinned memory, and the operations of the pass have ended once the word says so. Copies
//! of a pass go to the driver in [batches](Batch), and so do [words](Words) with their marker.
//!
//! Where the driver refuses a batch or a marker, the road is broken: from there on its operations
//! fail.

extern crate std;

use super::flow::Pending;
use crate::hca::completion::Syndrome;
use crate::host::log::{self, Level};
use crate::memory::cuda::{Batch, CudaError, Entered, Gpu, Stream, Words};
use std::collections::VecDeque;
use std::format;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations under way for which there is room before a queue grows.
pub const PENDING: usize = 1024;

/// A stream and what was posted on it.
#[derive(Debug)]
pub struct Road {
    stream: Stream,
    /// The word of markers, as the CPU and as the GPU see it.
    word: *const AtomicU64,
    device: u64,
    /// The number of the last marker, and of the last one that the driver took.
    issued: u64,
    taken: u64,
    /// The first number whose operations fail.
    broken_from: u64,
    posted: bool,
    /// One of the two is empty.
    batch: Batch,
    words: Words,
    pending: VecDeque<(u64, Pending)>,
}

// SAFETY: the pointer is to a word that is only touched as an atomic, and outlives the value
// (`new`).
unsafe impl Send for Road {}

impl Road {
    /// A stream whose markers go to `word`, which the GPU sees at `device`.
    ///
    /// # Safety
    /// - the word is zero, pinned, nobody else's, and stays so until the road is dropped.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        word: *const AtomicU64,
        device: u64,
    ) -> Result<Road, CudaError> {
        Ok(Road {
            stream: Stream::new(gpu)?,
            word,
            device,
            issued: 0,
            taken: 0,
            broken_from: u64::MAX,
            posted: false,
            batch: Batch::new(),
            words: Words::new(),
            pending: VecDeque::with_capacity(PENDING),
        })
    }

    /// Posts a copy, which may wait for more.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the operation has ended.
    pub unsafe fn copy(&mut self, entered: &Entered<'_>, to: u64, from: u64, bytes: usize) {
        self.posted = true;
        self.flush_words(entered);
        if !self.batch.take(to, from, bytes) {
            self.flush(entered);
            let taken = self.batch.take(to, from, bytes);
            debug_assert!(taken, "an empty batch takes every copy");
        }
    }

    /// Posts a value, which may wait for more.
    ///
    /// # Safety
    /// - `to` is mapped, and stays so until the operation has ended; `kept` are as many bytes of
    ///   pinned memory, and keep their value.
    pub unsafe fn write(
        &mut self,
        entered: &Entered<'_>,
        to: u64,
        kept: *const u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.posted = true;
        self.flush_copies(entered);
        // SAFETY: by this function's contract.
        let value = unsafe { core::slice::from_raw_parts(kept, bytes) };
        if self.words.take(to, value) {
            return Ok(());
        }
        self.flush_words(entered);
        if self.words.take(to, value) {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        unsafe { self.stream.copy_in(entered, to, kept, bytes) }
    }

    /// The stream, for a post behind all others: a marker comes behind it.
    pub fn post(&mut self, entered: &Entered<'_>) -> &Stream {
        self.posted = true;
        self.flush(entered);
        &self.stream
    }

    /// Notes an operation that ends with all that was posted so far.
    pub fn note(&mut self, pending: Pending) {
        self.pending.push_back((self.issued + u64::from(self.posted), pending));
    }

    fn flush(&mut self, entered: &Entered<'_>) {
        self.flush_copies(entered);
        self.flush_words(entered);
    }

    fn flush_words(&mut self, entered: &Entered<'_>) {
        // SAFETY: by the contract of `write`.
        let posted = unsafe { self.words.post(entered, &self.stream) };
        self.check(posted);
    }

    fn flush_copies(&mut self, entered: &Entered<'_>) {
        if self.batch.is_empty() {
            return;
        }
        // SAFETY: by the contract of `copy`.
        let posted = unsafe { self.batch.post(entered, &self.stream) };
        self.check(posted);
    }

    /// Breaks the road where the driver has refused something that the next marker stands for.
    fn check(&mut self, posted: Result<(), CudaError>) {
        let Err(error) = posted else { return };
        let text = format!("gin: the driver refused copies ({error}); queues to that rank fail");
        log::say_once(Level::Error, &text);
        self.broken_from = self.broken_from.min(self.issued + 1);
    }

    /// Writes a marker behind what was posted since the last call.
    pub fn mark(&mut self, entered: &Entered<'_>) {
        if !core::mem::take(&mut self.posted) {
            return;
        }
        self.flush_copies(entered);
        let number = (self.issued + 1).to_le_bytes();
        if !self.words.take(self.device, &number) {
            self.flush_words(entered);
            self.words.take(self.device, &number);
        }
        // SAFETY: words by the contract of `write`, and a pinned one, which stands as long as the
        // stream (`new`).
        let marked = unsafe { self.words.post(entered, &self.stream) };
        self.check(marked);
        self.issued += 1;
        if marked.is_ok() {
            self.taken = self.issued;
        }
    }

    /// The number of the last marker that has come.
    fn reached(&self) -> u64 {
        // SAFETY: it stands as long as the road (`new`).
        let word = unsafe { &*self.word };
        word.load(Ordering::Acquire) // pairs with the stream's write, which is fenced
    }

    /// The next operation that has ended, and how.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        let number = self.pending.front()?.0;
        // what was posted before a refusal is done once the last marker has come
        if self.reached() < number.min(self.taken) || number > self.issued {
            return None;
        }
        let outcome = match number < self.broken_from {
            true => Ok(()),
            false => Err(Syndrome::RemoteOperation),
        };
        self.pending.pop_front().map(|(_, pending)| (pending, outcome))
    }

    /// Whether no operation is under way.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether all that was ever posted has ended.
    pub fn is_idle(&self) -> bool {
        !self.posted && self.reached() >= self.taken
    }

    /// Forgets the operations of a context.
    pub fn forget(&mut self, context: u64) {
        self.pending.retain(|(_, pending)| pending.context != context);
    }
}
