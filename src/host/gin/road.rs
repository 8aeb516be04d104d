//! The stream to one rank, which keeps the order, and the markers behind its operations.
//!
//! One pass of the engine posts operations and then a marker: the stream writes a rising number
//! into a word of pinned memory. The operations of the pass have ended once the word holds the
//! number. Copies of a pass go to the driver in [batches](Batch), and so do [words](Words) with
//! their marker.
//!
//! Many small copies go by a [kernel](Launcher), once nothing else of the road is under way. The
//! driver takes a microsecond for each copy; one launch does them all. Later posts wait until it
//! has ended.
//!
//! If the driver refuses a batch or a marker, the road is broken: all later operations fail.

use super::launcher::Launcher;
use crate::hca::completion::Syndrome;
use crate::hca::executor::Operation;
use crate::host::log::event::tell;
use crate::host::log::gin::GinEvent;
use crate::memory::cuda::{Batch, CudaError, Entered, Gpu, Stream, Words, post_word};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations under way for which there is room before a queue grows.
pub const PENDING: usize = 1024;

/// So many copies are worth a launch, if they have not too many bytes: copy engines move more of
/// these in a second.
const LAUNCH_COPIES_MIN: usize = 56;
const LAUNCH_BYTES_MAX: u64 = 16 << 20;

/// How often the GPU is asked whether it has failed, while a kernel is waited for.
const ASK: Duration = Duration::from_millis(1);

/// Where an operation belongs.
#[derive(Copy, Clone, Debug)]
pub struct Pending {
    /// Which context.
    pub context: u64,
    /// The operation.
    pub operation: Operation,
}

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
    /// Something has no marker yet; something of that went to the stream.
    posted: bool,
    unmarked: bool,
    launcher: Launcher,
    /// The copies that the kernel has, and the number that stands for them. Then the last number
    /// that the kernel has done.
    launched: Batch,
    launched_number: Option<u64>,
    copied: u64,
    now_ns: u64,
    /// One of the two is empty.
    batch: Batch,
    words: Words,
    pending: VecDeque<(u64, Pending)>,
}

// SAFETY: the pointer is to a word that is only touched as an atomic, and outlives the value
// (`new`).
unsafe impl Send for Road {}

impl Road {
    /// A stream with launches, whose markers go to `word`. The GPU sees the word at `device`.
    ///
    /// # Safety
    /// - the word is zero and pinned, and only the road uses it until the road is dropped.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        word: *const AtomicU64,
        device: u64,
        launcher: Launcher,
    ) -> Result<Road, CudaError> {
        Ok(Road {
            stream: Stream::new(gpu)?,
            word,
            device,
            issued: 0,
            taken: 0,
            broken_from: u64::MAX,
            posted: false,
            unmarked: false,
            launcher,
            launched: Batch::new(),
            launched_number: None,
            copied: 0,
            now_ns: 0,
            batch: Batch::new(),
            words: Words::new(),
            pending: VecDeque::with_capacity(PENDING),
        })
    }

    /// Posts a copy. It may stay in the batch until a later call.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the operation has ended.
    pub unsafe fn copy(&mut self, entered: &Entered<'_>, to: u64, from: u64, bytes: usize) {
        self.posted = true;
        self.flush_words(entered);
        if !self.batch.take(to, from, bytes) {
            self.flush_copies(entered);
            self.posted = true;
            let taken = self.batch.take(to, from, bytes);
            debug_assert!(taken, "an empty batch takes every copy");
        }
    }

    /// Posts a value. It may stay in the batch until a later call.
    ///
    /// # Safety
    /// - `to` is mapped, and stays so until the operation has ended.
    /// - `kept` points to as many bytes of pinned memory, which keep their value until then.
    pub unsafe fn write(
        &mut self,
        entered: &Entered<'_>,
        to: u64,
        kept: *const u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.flush_copies(entered);
        self.posted = true;
        // SAFETY: by this function's contract.
        let value = unsafe { core::slice::from_raw_parts(kept, bytes) };
        if self.words.take(to, value) {
            return Ok(());
        }
        self.flush_words(entered);
        if self.words.take(to, value) {
            return Ok(());
        }
        self.await_kernel(entered);
        self.unmarked = true;
        // SAFETY: by this function's contract.
        unsafe { self.stream.copy_in(entered, to, kept, bytes) }
    }

    /// The stream, for a post behind all others: a marker comes behind it.
    pub fn post(&mut self, entered: &Entered<'_>) -> &Stream {
        self.flush_copies(entered);
        self.flush_words(entered);
        self.await_kernel(entered);
        self.posted = true;
        self.unmarked = true;
        &self.stream
    }

    /// Notes an operation that ends with all that was posted so far.
    pub fn note(&mut self, pending: Pending) {
        self.pending.push_back((self.due(), pending));
    }

    fn flush_words(&mut self, entered: &Entered<'_>) {
        if self.words.is_empty() {
            return;
        }
        self.await_kernel(entered);
        self.unmarked = true;
        // SAFETY: by the contract of `write`.
        let posted = unsafe { self.words.post(entered, &self.stream) };
        self.check(posted, self.issued + 1);
    }

    fn flush_copies(&mut self, entered: &Entered<'_>) {
        if self.batch.is_empty() || self.launch(entered) {
            return;
        }
        self.await_kernel(entered);
        self.unmarked = true;
        let mut posted = Ok(());
        // SAFETY: by the contract of `copy`.
        unsafe { self.batch.post(entered, &self.stream, |_, error| posted = Err(error)) };
        self.check(posted, self.issued + 1);
    }

    /// Whether what waits is worth a launch, and comes behind nothing that has no marker.
    fn is_for_kernel(&self) -> bool {
        let copies = self.batch.copies();
        let bytes = || copies.iter().map(|copy| copy[2]).sum::<u64>();
        !self.unmarked && copies.len() >= LAUNCH_COPIES_MIN && bytes() <= LAUNCH_BYTES_MAX
    }

    /// Launches what waits, if that is worth it and nothing else is under way.
    fn launch(&mut self, entered: &Entered<'_>) -> bool {
        if self.is_held() || self.reached() < self.taken || !self.is_for_kernel() {
            return false;
        }
        // SAFETY: by the contract of `copy`: what the number stands for has not ended before.
        let launched = unsafe { self.launcher.launch(entered, self.batch.copies(), self.now_ns) };
        if launched {
            self.issued += 1;
            self.taken = self.issued;
            self.launched_number = Some(self.issued);
            core::mem::swap(&mut self.batch, &mut self.launched);
            self.posted = false;
        }
        launched
    }

    /// Whether a kernel copies, so that nothing may be posted.
    pub fn is_held(&self) -> bool {
        self.launched_number.is_some()
    }

    /// Looks at the kernel, at the time `now_ns`. The stream does what was taken back.
    pub fn pass(&mut self, entered: &Entered<'_>, now_ns: u64) {
        self.now_ns = now_ns;
        let Some(number) = self.launched_number else { return };
        let Some(is_copied) = self.launcher.outcome(now_ns) else { return };
        self.launched_number = None;
        if is_copied {
            self.copied = number;
            return self.launched.clear();
        }
        let mut posted = Ok(());
        // SAFETY: by the contract of `copy`.
        unsafe { self.launched.post(entered, &self.stream, |_, error| posted = Err(error)) };
        self.check(posted, number);
        // SAFETY: a pinned word, which stands as long as the stream (`new`).
        let marked = unsafe { post_word(entered, &self.stream, self.device, number) };
        self.check(marked, number);
        if marked.is_err() {
            self.taken = number - 1;
        }
    }

    /// Waits for the kernel: an operation needs more than one post. A kernel that has begun ends,
    /// or the GPU has failed.
    fn await_kernel(&mut self, entered: &Entered<'_>) {
        let (start, now_ns) = (Instant::now(), self.now_ns);
        let mut asked = start;
        while self.is_held() {
            core::hint::spin_loop();
            self.pass(entered, now_ns + start.elapsed().as_nanos() as u64);
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                if let Some(error) = self.fault(entered) {
                    self.fail(error);
                }
            }
        }
    }

    /// Why the GPU does nothing any more, if it has failed.
    pub fn fault(&self, entered: &Entered<'_>) -> Option<CudaError> {
        self.stream.fault(entered)
    }

    /// Fails what is under way, because the GPU has failed: no marker comes any more.
    pub fn fail(&mut self, error: CudaError) {
        if self.is_idle() {
            return;
        }
        self.taken = self.reached();
        self.check(Err(error), self.taken + 1);
        self.launched_number = None;
        self.launched.clear();
        self.launcher.give_up();
    }

    /// Breaks the road where the driver has refused something that `number` stands for.
    fn check(&mut self, posted: Result<(), CudaError>, number: u64) {
        let Err(error) = posted else { return };
        tell(&GinEvent::RoadRefused(error));
        self.broken_from = self.broken_from.min(number);
    }

    /// Writes a marker behind what was posted since the last call; or does so later, where a kernel
    /// is under way or about to be.
    pub fn mark(&mut self, entered: &Entered<'_>) {
        if !self.posted || self.is_held() {
            return;
        }
        if self.is_for_kernel() && self.launcher.is_ready() && self.reached() < self.taken {
            return; // a kernel comes once that has ended
        }
        self.flush_copies(entered);
        if self.is_held() {
            return;
        }
        let number = (self.issued + 1).to_le_bytes();
        if !self.words.take(self.device, &number) {
            self.flush_words(entered);
            self.words.take(self.device, &number);
        }
        (self.posted, self.unmarked) = (false, false);
        // SAFETY: words by the contract of `write`, and a pinned one, which stands as long as the
        // stream (`new`).
        let marked = unsafe { self.words.post(entered, &self.stream) };
        self.check(marked, self.issued + 1);
        self.issued += 1;
        if marked.is_ok() {
            self.taken = self.issued;
        }
    }

    /// The number of the last marker that has come, or of what the kernel has copied since.
    fn reached(&self) -> u64 {
        // SAFETY: it stands as long as the road (`new`).
        let word = unsafe { &*self.word };
        // pairs with the stream's write, which is fenced
        word.load(Ordering::Acquire).max(self.copied)
    }

    /// The next operation that has ended, and how.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        let number = self.pending.front()?.0;
        if !self.has_reached(number) {
            return None;
        }
        let outcome = match number < self.broken_from {
            true => Ok(()),
            false => Err(Syndrome::RemoteOperation),
        };
        self.pending.pop_front().map(|(_, pending)| (pending, outcome))
    }

    /// The number that stands for the last of what was posted so far.
    pub fn due(&self) -> u64 {
        self.issued + u64::from(self.posted)
    }

    /// Whether all up to the number `due` has ended; what the driver refused never does.
    pub fn has_reached(&self, due: u64) -> bool {
        // what was posted before a refusal is done once the last marker has come
        self.issued >= due && self.reached() >= due.min(self.taken)
    }

    /// Whether no operation is under way, nor what was posted for one that is forgotten.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.is_idle()
    }

    /// Whether all that was ever posted has ended.
    pub fn is_idle(&self) -> bool {
        !self.posted && !self.is_held() && self.reached() >= self.taken
    }

    /// Forgets the operations of a context.
    pub fn forget(&mut self, context: u64) {
        self.pending.retain(|(_, pending)| pending.context != context);
    }
}
