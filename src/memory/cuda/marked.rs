//! A stream whose progress the CPU reads from a word, without a call of the driver.

use super::batch::Batch;
use super::gpu::{Entered, Gpu};
use super::library::CudaError;
use super::stream::Stream;
use super::words::Words;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::vec::Vec;

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
    refused: Refusals,
    broken: Option<CudaError>,
}

/// Most refused copies that are known at a time: more than a stream has under way.
const REFUSED_MAX: usize = 1024;
/// Every target.
const ALL: (u64, u64) = (0, u64::MAX);

/// A copy that the driver has refused: freed memory, say.
#[derive(Copy, Clone, Debug)]
struct Refused {
    number: u64,
    /// Its target, as the caller has named it, and bytes.
    to: u64,
    bytes: u64,
    error: CudaError,
}

/// Copies that the driver has refused, the latest last.
#[derive(Debug)]
struct Refusals(Vec<Refused>);

impl Refusals {
    fn add(&mut self, number: u64, (to, bytes): (u64, u64), error: CudaError) {
        if self.0.len() == REFUSED_MAX {
            self.0.remove(0);
        }
        self.0.push(Refused { number, to, bytes, error });
    }

    fn find(&self, number: u64, to: u64) -> Option<CudaError> {
        let is_it = |it: &&Refused| it.number == number && to.wrapping_sub(it.to) < it.bytes;
        self.0.iter().find(is_it).map(|it| it.error)
    }
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
        Ok(Marked {
            stream: Stream::new(gpu)?,
            word,
            device,
            issued: 0,
            batch: Batch::new(),
            words: Words::new(),
            is_unmarked: false,
            refused: Refusals(Vec::with_capacity(REFUSED_MAX)),
            broken: None,
        })
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

    /// Why a copy to that target was not made, once its number is reached.
    pub fn refusal(&self, number: u64, to: u64) -> Option<CudaError> {
        self.refused.find(number, to)
    }

    /// Its GPU takes no calls any more.
    pub fn break_off(&mut self, error: CudaError) {
        self.broken = self.broken.or(Some(error));
    }

    /// Asks the driver whether the GPU has failed.
    pub fn look_for_fault(&mut self, entered: &Entered<'_>) {
        if self.broken.is_none() {
            self.broken = self.stream.fault(entered);
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
        let number = self.issued + 1;
        let refused =
            |[to, _, bytes]: [u64; 3], error| self.refused.add(number, (to, bytes), error);
        // SAFETY: by the contract of `copy`.
        unsafe { self.batch.post(entered, &self.stream, refused) };
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
        if let Err(error) = unsafe { self.stream.copy_in(entered, to, from, bytes) } {
            self.refused.add(self.issued + 1, (to, bytes as u64), error);
        }
    }

    /// Posts a copy from a device address to pinned memory.
    ///
    /// # Safety
    /// - `to` is pinned and nobody else's, and `from` stays mapped, until its number is reached.
    pub unsafe fn copy_out(&mut self, entered: &Entered<'_>, to: *mut u8, from: u64, bytes: usize) {
        self.post_batch(entered);
        self.is_unmarked = true;
        // SAFETY: by this function's contract.
        if let Err(error) = unsafe { self.stream.copy_out(entered, to, from, bytes) } {
            self.refused.add(self.issued + 1, (to as u64, bytes as u64), error);
        }
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
            if let Err(error) = self.post_words(entered) {
                self.refused.add(self.issued + 1, ALL, error);
            }
            let is_taken = self.words.take(to, word);
            debug_assert!(is_taken, "an empty batch takes every aligned word");
        }
    }

    fn post_words(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        // SAFETY: by the contracts of `write` and `new`.
        unsafe { self.words.post(entered, &self.stream) }
    }

    /// Posts what waits, and one marker behind it. Without its marker the stream is broken.
    pub fn flush(&mut self, entered: &Entered<'_>) {
        self.post_batch(entered);
        if !self.is_waiting() {
            return;
        }
        let (marker, has_words) = (self.issued + 1, !self.words.is_empty());
        self.word_take(entered, self.device, &marker.to_le_bytes());
        let mut posted = self.post_words(entered);
        if let (Err(error), true) = (posted, has_words) {
            self.refused.add(marker, ALL, error);
            self.word_take(entered, self.device, &marker.to_le_bytes());
            posted = self.post_words(entered);
        }
        (self.issued, self.is_unmarked) = (marker, false);
        self.broken = self.broken.or(posted.err());
    }
}
