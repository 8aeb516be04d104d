//! Puts of a rank to itself: which copies a kernel does, and which take the detour.
//!
//! The driver's copy within a GPU waits for a free multiprocessor. The kernel that waits for the
//! put may hold all of them. So there are two ways, and neither needs a free multiprocessor:
//!
//! | way | when |
//! |---|---|
//! | our own [`Kernel`], taken back if it does not start soon | nothing else is under way |
//! | the detour: out to another GPU or to the host, and back | otherwise |
//!
//! Posts stand in one line, and only the front is acted on. So the target sees them in the order of
//! the posts, whichever way each takes.

use super::GinError;
use super::launcher::Launcher;
use super::road::{PENDING, Pending, Road};
use crate::hca::completion::Syndrome;
use crate::host::log::event::tell;
use crate::host::log::gin::{GinEvent, Through};
use crate::memory::SharedMapping;
use crate::memory::cuda::{CudaError, Entered, Gpu, Import, Kernel, Pinned, Program};
use std::collections::VecDeque;
use std::string::{String, ToString};
use std::sync::Arc;

/// Bytes that another GPU lends for copies within one: a multiple of the driver's granularity.
pub const DETOUR_BYTES: usize = 8 << 20;
/// Bytes that a copy goes through at a time, where no other GPU lends memory.
const STAGING_BYTES: usize = 1 << 20;
/// How long a kernel may take to start: the detour is slow.
const PATIENCE_NS: u64 = 150_000;
/// From so many entries in line on, small copies take the detour: the stream does them one behind
/// the other, where each kernel waits for the engine's look at the one before.
const CROWD: usize = 8;
/// Copies of so many bytes go by the kernel, also in a crowd: the detour moves the bytes twice.
const LARGE_BYTES: u64 = 1 << 20;

/// The memory that the detour uses.
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

/// An entry of the line.
#[derive(Debug)]
enum Entry {
    Copy(Copy),
    /// Bytes in pinned memory, and where they go.
    Value(*const u8, usize, u64),
    /// The operation of the entries before it.
    End(Pending),
}

/// The way of a rank to itself.
#[derive(Debug)]
pub struct Loopback {
    launcher: Launcher,
    detour: Detour,
    line: VecDeque<Entry>,
    /// How many entries were ever done with.
    acted: u64,
    ended: VecDeque<(Pending, Result<(), Syndrome>)>,
    now_ns: u64,
    /// An entry of the operation at the front was refused.
    failed: bool,
}

// SAFETY: the pointers are to pinned memory that nobody changes while they stand in line
// (`Loopback::write`).
unsafe impl Send for Loopback {}

impl Loopback {
    /// Copies by `program`, and else through [`DETOUR_BYTES`] that another GPU has `lent`.
    pub fn new(
        gpu: &Arc<Gpu>,
        program: &Result<Program, String>,
        lent: Option<Import>,
    ) -> Result<Loopback, GinError> {
        let detour = lent.map_or_else(|| Detour::host(gpu), |import| Ok(Detour::Gpu(import)))?;
        let kernel = match program {
            Ok(program) => Kernel::new(program).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let through = match &detour {
            Detour::Gpu(_) => Through::Gpu,
            Detour::Host { .. } => Through::Host,
        };
        tell(&GinEvent::Within { refused: kernel.as_ref().err().map(String::as_str), through });
        Ok(Loopback {
            launcher: Launcher::new(kernel.ok(), PATIENCE_NS),
            detour,
            line: VecDeque::with_capacity(PENDING),
            acted: 0,
            ended: VecDeque::with_capacity(PENDING),
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
    /// - `to` and `kept` are mapped, and stay so until the operation has ended.
    /// - the bytes at `kept` are not changed until then.
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

    /// The GPU has failed: what a kernel has, the road's stream refuses.
    pub fn give_up(&mut self) {
        if !self.is_quiet() {
            self.launcher.give_up();
        }
    }

    /// The next operation that has ended without a marker of the road.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        self.ended.pop_front()
    }

    /// The number of the last entry so far.
    pub fn due(&self) -> u64 {
        self.acted + self.line.len() as u64
    }

    /// Whether all up to the number `due` is copied, or is the road's.
    pub fn has_reached(&self, due: u64) -> bool {
        self.acted >= due || self.line.is_empty()
    }

    /// Whether nothing is under way or waits. A kernel that was taken back does not count: it
    /// touches no memory of the user's.
    pub fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.ended.is_empty()
    }

    /// Forgets the operations of a context, but for a copy that the kernel has.
    pub fn forget(&mut self, context: u64) {
        self.ended.retain(|(pending, _)| pending.context != context);
        let first = usize::from(self.launcher.is_busy());
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
            self.acted += 1;
        }
    }

    /// Acts on a copy at the front; whether it is done with, or is the road's.
    fn act(&mut self, entered: &Entered<'_>, road: &mut Road, copy: &Copy) -> bool {
        if self.launcher.is_busy() {
            match self.launcher.outcome(self.now_ns) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        } else if self.launch(entered, road, copy) {
            return false;
        }
        // SAFETY: by the contract of `Loopback::copy`.
        let posted = unsafe { self.detour.post(entered, road, copy) };
        self.check(posted);
        true
    }

    /// Launches the kernel for the copy at the front, if it is worth a try. What the road has
    /// posted ended before, so that their order is kept.
    fn launch(&mut self, entered: &Entered<'_>, road: &Road, copy: &Copy) -> bool {
        let crowded = self.line.len() > CROWD && copy.bytes < LARGE_BYTES;
        if crowded || !road.is_idle() {
            return false;
        }
        let copies = [[copy.to, copy.from, copy.bytes]];
        // SAFETY: by the contract of `Loopback::copy`: the operation ends after this copy has.
        unsafe { self.launcher.launch(entered, &copies, self.now_ns) }
    }

    fn check(&mut self, posted: Result<(), CudaError>) {
        let Err(error) = posted else { return };
        tell(&GinEvent::CopyRefused(error));
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
