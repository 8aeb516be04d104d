//! A stream whose progress the CPU reads from a word, without a call of the driver.

use super::batch::Batch;
use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use super::stream::Stream;
use super::words::Words;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

extern crate std;

/// Copies on a stream, with rising numbers. Copies that wait together leave together, with one
/// marker behind them.
#[derive(Debug)]
pub struct Marked {
    stream: Stream,
    /// The word of markers, as the CPU and as the GPU see it.
    word: *const AtomicU64,
    device: u64,
    /// The number of the last marker that was posted.
    issued: u64,
    batch: Batch,
    words: Words,
    /// Something was posted that no marker stands behind.
    is_unmarked: bool,
    broken: Option<CudaError>,
}

// SAFETY: the pointer is to a word that is only touched as an atomic, and outlives the value
// (`new`).
unsafe impl Send for Marked {}

impl Marked {
    /// A stream of `gpu` whose markers go to `word`, which the GPU sees at `device`.
    ///
    /// # Safety
    /// - the word is zero and pinned, and this alone uses it until the value is dropped.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        word: *const AtomicU64,
        device: u64,
    ) -> Result<Marked, CudaError> {
        let (batch, words) = (Batch::new(), Words::new());
        let (stream, is_unmarked, broken) = (Stream::new(gpu)?, false, None);
        Ok(Marked { stream, word, device, issued: 0, batch, words, is_unmarked, broken })
    }

    /// The number of everything that was taken until now: [`Marked::reached`] says it, or more,
    /// once that is done and was flushed.
    pub fn number(&self) -> u64 {
        self.issued + u64::from(self.is_waiting())
    }

    /// Up to which number everything is done. *Cost*: one load.
    pub fn reached(&self) -> u64 {
        // SAFETY: a pinned word that outlives the value (`new`).
        // acquire: the stream has written the word behind the bytes
        unsafe { &*self.word }.load(Ordering::Acquire)
    }

    /// How much is posted and not done, in markers.
    pub fn depth(&self) -> u64 {
        self.issued - self.reached()
    }

    /// Whether something waits for a flush.
    pub fn is_waiting(&self) -> bool {
        self.is_unmarked || !self.batch.is_empty() || !self.words.is_empty()
    }

    /// Why nothing is done any more.
    pub fn broken(&self) -> Option<CudaError> {
        self.broken
    }

    /// Asks the driver whether the GPU has failed.
    pub fn look_for_fault(&mut self, entered: &Entered<'_>) {
        if self.broken.is_none() {
            self.broken = self.stream.fault(entered);
        }
    }

    fn check(&mut self, posted: Result<(), CudaError>) {
        if let (Err(error), None) = (posted, self.broken) {
            self.broken = Some(error);
        }
    }

    /// Takes a copy between device addresses. It may stay here until the next flush.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the copy's number is reached.
    pub unsafe fn copy(&mut self, entered: &Entered<'_>, to: u64, from: u64, bytes: usize) {
        if !self.batch.take(to, from, bytes) {
            self.post_batch(entered);
            let is_taken = self.batch.take(to, from, bytes);
            debug_assert!(is_taken, "an empty batch takes every copy");
        }
    }

    fn post_batch(&mut self, entered: &Entered<'_>) {
        if self.batch.is_empty() {
            return;
        }
        self.is_unmarked = true;
        // SAFETY: by the contract of `copy`.
        let posted = unsafe { self.batch.post(entered, &self.stream) };
        self.check(posted);
    }

    /// Posts a copy from pinned memory to a device address.
    ///
    /// # Safety
    /// - `from` is pinned and keeps its bytes, and `to` stays mapped, until its number is reached.
    pub unsafe fn copy_in(
        &mut self,
        entered: &Entered<'_>,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) {
        self.post_batch(entered);
        self.is_unmarked = true;
        // SAFETY: by this function's contract.
        let posted = unsafe { self.stream.copy_in(entered, to, from, bytes) };
        self.check(posted);
    }

    /// Posts a copy from a device address to pinned memory.
    ///
    /// # Safety
    /// - `to` is pinned and nobody else's, and `from` stays mapped, until its number is reached.
    pub unsafe fn copy_out(&mut self, entered: &Entered<'_>, to: *mut u8, from: u64, bytes: usize) {
        self.post_batch(entered);
        self.is_unmarked = true;
        // SAFETY: by this function's contract.
        let posted = unsafe { self.stream.copy_out(entered, to, from, bytes) };
        self.check(posted);
    }

    /// Takes bytes for a device address, which become words of the stream. Address and length are
    /// multiples of four. They may stay here until the next flush.
    ///
    /// # Safety
    /// - the range is mapped, and stays so until its number is reached.
    pub unsafe fn write(&mut self, entered: &Entered<'_>, to: u64, bytes: &[u8]) {
        let size = if (to | bytes.len() as u64).is_multiple_of(8) { 8 } else { 4 };
        for (at, word) in bytes.chunks_exact(size).enumerate() {
            self.word_take(entered, to + (at * size) as u64, word);
        }
    }

    fn word_take(&mut self, entered: &Entered<'_>, to: u64, word: &[u8]) {
        if !self.words.take(to, word) {
            self.is_unmarked = true;
            self.post_words(entered);
            let is_taken = self.words.take(to, word);
            debug_assert!(is_taken, "an empty batch takes every aligned word");
        }
    }

    fn post_words(&mut self, entered: &Entered<'_>) {
        // SAFETY: by the contracts of `write` and `new`.
        let posted = unsafe { self.words.post(entered, &self.stream) };
        self.check(posted);
    }

    /// Posts what waits, and one marker behind it.
    pub fn flush(&mut self, entered: &Entered<'_>) {
        self.post_batch(entered);
        if !self.is_waiting() {
            return;
        }
        self.issued += 1;
        self.word_take(entered, self.device, &self.issued.to_le_bytes());
        self.post_words(entered);
        self.is_unmarked = false;
    }
}
