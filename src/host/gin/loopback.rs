//! Puts of a rank to itself: which copies a kernel does, and which take the detour.
//!
//! The driver's copy within a GPU waits for a free multiprocessor, and the kernel that waits for
//! the put may hold them all. So there are two ways, and neither depends on one:
//!
//! | way | when |
//! |---|---|
//! | our own [`Kernel`], taken back if it does not start soon | nothing else is under way |
//! | the detour: out to another GPU or to the host, and back | otherwise |
//!
//! What is posted stands in one line, and only its front is acted on. So the order at the target is
//! that of the posts, whichever way each of them takes.

extern crate std;

use super::GinError;
use super::flow::Pending;
use super::road::{PENDING, Road};
use crate::hca::completion::Syndrome;
use crate::host::log::{self, Level};
use crate::memory::cuda::{CudaError, Entered, Gpu, Import, Kernel, Pinned, Progress};
use crate::memory::{SharedMapping, Variables};
use std::collections::VecDeque;
use std::format;
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that another GPU lends for copies within one: a multiple of the driver's granularity.
pub const DETOUR_BYTES: usize = 8 << 20;
/// Bytes that a copy goes through at a time, where no other GPU lends memory.
const STAGING_BYTES: usize = 1 << 20;
/// How long a kernel may take to start. Where there is room it takes about 5 µs, and up to 90 where
/// many threads of the GPU read host memory.
const PATIENCE_NS: u64 = 150_000;
/// Bytes for each of which it gets a nanosecond more: the detour would take longer for them.
const PATIENCE_BYTES: u64 = 64;
/// Most copies that go by the detour, after one was taken back, before the kernel is tried again.
const REFRAIN_MAX: u32 = 64;
/// From so many entries in line on, small copies take the detour: the stream does them one behind
/// the other, where each kernel waits for the engine's look at the one before.
const CROWD: usize = 8;
/// Copies of so many bytes go by the kernel, also in a crowd: the detour moves the bytes twice.
const LARGE_BYTES: u64 = 1 << 20;
/// How long an end waits for a kernel that was taken back and has not run yet.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What the detour goes through.
#[derive(Debug)]
enum Detour {
    /// Memory of another GPU: [`DETOUR_BYTES`].
    Gpu(Import),
    /// Memory of the host: [`STAGING_BYTES`]. The registration is dropped before the memory.
    Host { _pinned: Pinned, mapping: SharedMapping },
}

impl Detour {
    fn host(gpu: &Arc<Gpu>) -> Result<Detour, GinError> {
        let mapping = SharedMapping::create(c"crosstie-staging", STAGING_BYTES)?;
        mapping.populate(0, STAGING_BYTES)?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, mapping.start(), STAGING_BYTES) }?;
        Ok(Detour::Host { _pinned: pinned, mapping })
    }

    /// Posts a copy.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the road's marker has come.
    unsafe fn post(
        &self,
        entered: &Entered<'_>,
        road: &mut Road,
        copy: &Copy,
    ) -> Result<(), CudaError> {
        let stream = road.post(entered);
        let mut done = 0;
        while done < copy.bytes {
            let (to, from, left) = (copy.to + done, copy.from + done, copy.bytes - done);
            let step = match self {
                Detour::Gpu(import) => {
                    let (between, now) = (import.start(), left.min(DETOUR_BYTES as u64));
                    // SAFETY: `now` bytes of each; the stream keeps the order of its uses.
                    unsafe { stream.copy(entered, between, from, now as usize) }?;
                    // SAFETY: as above.
                    unsafe { stream.copy(entered, to, between, now as usize) }?;
                    now
                }
                Detour::Host { mapping, .. } => {
                    let (between, now) = (mapping.start(), left.min(STAGING_BYTES as u64));
                    // SAFETY: as above.
                    unsafe { stream.copy_out(entered, between, from, now as usize) }?;
                    // SAFETY: as above.
                    unsafe { stream.copy_in(entered, to, between, now as usize) }?;
                    now
                }
            };
            done += step;
        }
        Ok(())
    }
}

/// A copy within the GPU. Its ranges are mapped until its operation has ended (`Loopback::copy`).
#[derive(Copy, Clone, Debug)]
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
}

/// What stands in line.
#[derive(Debug)]
enum Entry {
    Copy(Copy),
    /// Bytes in pinned memory, and where they go.
    Value(*const u8, usize, u64),
    /// The operation of the entries before it.
    End(Pending),
}

/// Whether kernels start.
#[derive(Debug, Default)]
struct Trust {
    /// Copies that do without one after one was taken back, and how many of them are left.
    refrain: u32,
    left: u32,
    /// The driver refused a launch.
    refused: bool,
}

impl Trust {
    /// Says what became of a launch.
    fn tell(&mut self, is_copied: bool) {
        self.refrain = match is_copied {
            true => 0,
            false => (self.refrain * 2).clamp(1, REFRAIN_MAX),
        };
        self.left = self.refrain;
    }

    /// Whether the next copy may try.
    fn is_due(&mut self) -> bool {
        let due = self.left == 0 && !self.refused;
        self.left = self.left.saturating_sub(1);
        due
    }
}

/// The way of a rank to itself.
#[derive(Debug)]
pub struct Loopback {
    kernel: Option<Kernel>,
    detour: Detour,
    trust: Trust,
    line: VecDeque<Entry>,
    ended: VecDeque<(Pending, Result<(), Syndrome>)>,
    /// Since when the front of the line is the kernel's.
    launched_ns: Option<u64>,
    now_ns: u64,
    /// An entry of the operation at the front was refused.
    failed: bool,
}

// SAFETY: the pointers are to pinned memory that nobody changes while they stand in line
// (`Loopback::write`).
unsafe impl Send for Loopback {}

impl Loopback {
    /// Loads the kernel. `lent` are [`DETOUR_BYTES`] of another GPU.
    pub fn new(gpu: &Arc<Gpu>, lent: Option<Import>) -> Result<Loopback, GinError> {
        let detour = lent.map_or_else(|| Detour::host(gpu), |import| Ok(Detour::Gpu(import)))?;
        let kernel = match blocking_launches() {
            true => Err(String::from("CUDA_LAUNCH_BLOCKING is set")),
            false => Kernel::new(gpu).map_err(|error| error.to_string()),
        };
        let through = match &detour {
            Detour::Gpu(_) => "another GPU",
            Detour::Host { .. } => "the host",
        };
        log::say(
            Level::Info,
            &match &kernel {
                Ok(_) => format!(
                    "gin: a kernel copies within the GPU; if it cannot start, copies go through \
                     {through}"
                ),
                Err(why) => format!(
                    "gin: no kernel copies within the GPU ({why}); copies go through {through}"
                ),
            },
        );
        Ok(Loopback {
            kernel: kernel.ok(),
            detour,
            trust: Trust::default(),
            line: VecDeque::with_capacity(PENDING),
            ended: VecDeque::with_capacity(PENDING),
            launched_ns: None,
            now_ns: 0,
            failed: false,
        })
    }

    /// Posts a copy.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the operation has ended.
    pub unsafe fn copy(
        &mut self,
        entered: &Entered<'_>,
        road: &mut Road,
        [to, from, bytes]: [u64; 3],
    ) {
        if bytes > 0 {
            self.line.push_back(Entry::Copy(Copy { to, from, bytes }));
        }
        self.go_on(entered, road);
    }

    /// Posts bytes of pinned memory.
    ///
    /// # Safety
    /// - `to` is mapped, and stays so until the operation has ended; `kept` likewise, and is not
    ///   changed.
    pub unsafe fn write(
        &mut self,
        entered: &Entered<'_>,
        road: &mut Road,
        to: u64,
        kept: *const u8,
        bytes: usize,
    ) {
        if bytes > 0 {
            self.line.push_back(Entry::Value(kept, bytes, to));
        }
        self.go_on(entered, road);
    }

    /// Notes the operation of what was posted since the last call.
    pub fn note(&mut self, entered: &Entered<'_>, road: &mut Road, pending: Pending) {
        self.line.push_back(Entry::End(pending));
        self.go_on(entered, road);
    }

    /// One look at the kernel, at the time `now_ns`; posts what may be posted now.
    pub fn pass(&mut self, entered: &Entered<'_>, road: &mut Road, now_ns: u64) {
        self.now_ns = now_ns;
        self.go_on(entered, road);
    }

    /// The next operation that has ended without a marker of the road.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        self.ended.pop_front()
    }

    /// Whether nothing is under way or waits. A kernel that was taken back does not count: it
    /// touches no memory of the user's.
    pub fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.ended.is_empty()
    }

    /// Forgets the operations of a context, but for a copy that the kernel has.
    pub fn forget(&mut self, context: u64) {
        self.ended.retain(|(pending, _)| pending.context != context);
        let first = usize::from(self.launched_ns.is_some());
        let mut is_of = false;
        // an operation's end stands behind its entries
        for at in (first..self.line.len()).rev() {
            if let Entry::End(pending) = &self.line[at] {
                is_of = pending.context == context;
            }
            if is_of {
                self.line.remove(at);
            }
        }
    }

    /// Acts on the front of the line until it must wait.
    fn go_on(&mut self, entered: &Entered<'_>, road: &mut Road) {
        while let Some(front) = self.line.front() {
            let acted = match *front {
                Entry::End(pending) => {
                    self.end(road, pending);
                    true
                }
                Entry::Value(kept, bytes, to) => {
                    // SAFETY: by the contract of `write`.
                    let posted = unsafe { road.write(entered, to, kept, bytes) };
                    self.check(posted);
                    true
                }
                Entry::Copy(copy) => self.act(entered, road, &copy),
            };
            if !acted {
                return;
            }
            self.line.pop_front();
        }
    }

    /// Acts on a copy at the front; whether it is done with, or is the road's.
    fn act(&mut self, entered: &Entered<'_>, road: &mut Road, copy: &Copy) -> bool {
        match self.launched_ns {
            None => {
                if self.may_launch(road, copy) && self.launch(entered, copy) {
                    return false;
                }
            }
            Some(since_ns) => {
                let Some(is_copied) = self.verdict(since_ns, copy.bytes) else { return false };
                self.launched_ns = None;
                self.trust.tell(is_copied);
                if is_copied {
                    return true;
                }
            }
        }
        // SAFETY: by the contract of `Loopback::copy`.
        let posted = unsafe { self.detour.post(entered, road, copy) };
        self.check(posted);
        true
    }

    /// Whether the kernel has copied what is at the front, or never will; `None`: nobody knows yet.
    fn verdict(&self, since_ns: u64, bytes: u64) -> Option<bool> {
        let Some(kernel) = &self.kernel else { return Some(false) };
        match kernel.progress() {
            Progress::Copied => Some(true),
            Progress::GaveWay => Some(false),
            Progress::Begun => None,
            Progress::Waiting => {
                let patience_ns = PATIENCE_NS + bytes / PATIENCE_BYTES;
                let is_late = self.now_ns.saturating_sub(since_ns) > patience_ns;
                (is_late && kernel.take_back()).then_some(false)
            }
        }
    }

    /// Whether the kernel is worth a try for the copy at the front. What the road has posted ended
    /// before, so that their order is kept.
    fn may_launch(&mut self, road: &Road, copy: &Copy) -> bool {
        let free = self.kernel.as_ref().is_some_and(Kernel::has_left) && road.is_idle();
        let crowded = self.line.len() > CROWD && copy.bytes < LARGE_BYTES;
        free && !crowded && self.trust.is_due()
    }

    fn launch(&mut self, entered: &Entered<'_>, copy: &Copy) -> bool {
        let Some(kernel) = &mut self.kernel else { return false };
        // SAFETY: by the contract of `Loopback::copy`: the operation ends after this copy has.
        match unsafe { kernel.launch(entered, copy.to, copy.from, copy.bytes) } {
            Ok(()) => {
                self.launched_ns = Some(self.now_ns);
                true
            }
            Err(error) => {
                log::say_once(
                    Level::Warning,
                    &format!("gin: a launch was refused ({error}); copies take the detour"),
                );
                self.trust.refused = true; // dropping the kernel here could wait for the GPU
                false
            }
        }
    }

    fn check(&mut self, posted: Result<(), CudaError>) {
        let Err(error) = posted else { return };
        log::say_once(Level::Error, &format!("gin: a copy was refused ({error}); its queue fails"));
        self.failed = true;
    }

    /// All entries of an operation are copied, or are the road's.
    fn end(&mut self, road: &mut Road, pending: Pending) {
        match core::mem::take(&mut self.failed) {
            true => self.ended.push_back((pending, Err(Syndrome::RemoteOperation))),
            false if road.is_idle() => self.ended.push_back((pending, Ok(()))),
            false => road.note(pending),
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        let until = Instant::now() + END_PATIENCE;
        while !kernel.has_left() {
            if Instant::now() >= until {
                log::say(Level::Warning, "gin: a kernel has not run yet; its memory stays mapped");
                return;
            }
            std::thread::sleep(super::engine::NAP);
        }
    }
}

/// Whether launches wait for their kernel, which may wait for what the engine does next.
fn blocking_launches() -> bool {
    let value = Variables::of_process().text("CUDA_LAUNCH_BLOCKING");
    value.is_some_and(|value| !matches!(value.trim(), "" | "0"))
}
