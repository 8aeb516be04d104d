//! The way to one rank: a stream, whose order is kept, and the markers behind what it does.
//!
//! A batch is what one pass of the engine posted; the stream then writes a rising number into a
//! word of pinned memory, and the operations of the batch have ended once the word says so.

extern crate std;

use super::flow::Pending;
use crate::memory::cuda::{CudaError, Entered, Gpu, Stream};
use std::collections::VecDeque;
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
    issued: u64,
    posted: bool,
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
        let pending = VecDeque::with_capacity(PENDING);
        Ok(Road { stream: Stream::new(gpu)?, word, device, issued: 0, posted: false, pending })
    }

    /// The stream, for a post: a marker comes behind it.
    pub fn post(&mut self) -> &Stream {
        self.posted = true;
        &self.stream
    }

    /// Notes an operation that ends with all that was posted so far.
    pub fn note(&mut self, pending: Pending) {
        self.pending.push_back((self.issued + u64::from(self.posted), pending));
    }

    /// Writes a marker behind what was posted since the last call.
    pub fn mark(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        if !core::mem::take(&mut self.posted) {
            return Ok(());
        }
        self.issued += 1;
        // SAFETY: a pinned word, which stands as long as the stream (`new`).
        unsafe { self.stream.write64(entered, self.device, self.issued) }
    }

    /// The number of the last marker that has come.
    fn reached(&self) -> u64 {
        // SAFETY: it stands as long as the road (`new`).
        let word = unsafe { &*self.word };
        word.load(Ordering::Acquire) // pairs with the stream's write, which is fenced
    }

    /// The next operation that has ended.
    pub fn ended(&mut self) -> Option<Pending> {
        let (number, _) = self.pending.front()?;
        if *number > self.reached() {
            return None;
        }
        self.pending.pop_front().map(|(_, pending)| pending)
    }

    /// Whether no operation is under way.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether all that was ever posted has ended.
    pub fn is_idle(&self) -> bool {
        !self.posted && self.reached() >= self.issued
    }

    /// Forgets the operations of a context.
    pub fn forget(&mut self, context: u64) {
        self.pending.retain(|(_, pending)| pending.context != context);
    }
}
