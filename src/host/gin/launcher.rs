//! Copies by our own [`Kernel`], and whether it starts.
//!
//! A kernel finds no room where the user's kernels hold all multiprocessors. One that does not
//! start soon is taken back, and then some copies do without it.

use crate::host::log::event::tell;
use crate::host::log::gin::GinEvent;
use crate::memory::cuda::{Entered, Kernel, Progress};
use std::time::{Duration, Instant};

/// Bytes for each of which it gets a nanosecond more: another way would take longer for them.
const PATIENCE_BYTES: u64 = 64;
/// Most launches that are left out, after one was taken back, before the kernel is tried again.
const REFRAIN_MAX: u32 = 64;
/// How long an end waits for a kernel that was taken back and has not run yet.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Whether kernels start.
#[derive(Debug, Default)]
struct Trust {
    /// Launches that are left out after one was taken back, and how many of them are to come.
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

    /// Whether the next one may be.
    fn may(&self) -> bool {
        self.left == 0 && !self.refused
    }

    /// The same, of one that is left out or tried now.
    fn is_due(&mut self) -> bool {
        let due = self.may();
        self.left = self.left.saturating_sub(1);
        due
    }
}

/// A kernel, of which one launch at a time is under way.
#[derive(Debug)]
pub struct Launcher {
    kernel: Option<Kernel>,
    trust: Trust,
    /// How long a kernel may take to start.
    patience_ns: u64,
    /// When the launch under way was, and how many bytes it has.
    since: Option<(u64, u64)>,
}

impl Launcher {
    /// Launches of `kernel`, which may take `patience_ns` to start. Without a kernel there are
    /// none. With a free multiprocessor a start takes about 5 µs. It takes up to 90 µs while many
    /// threads of the GPU read host memory.
    pub fn new(kernel: Option<Kernel>, patience_ns: u64) -> Launcher {
        Launcher { kernel, trust: Trust::default(), patience_ns, since: None }
    }

    /// Whether a launch is under way.
    pub fn is_busy(&self) -> bool {
        self.since.is_some()
    }

    /// Whether there may be a launch once nothing else is under way.
    pub fn is_ready(&self) -> bool {
        self.is_free() && self.trust.may()
    }

    /// Whether there is a kernel, and the last launch is over.
    fn is_free(&self) -> bool {
        !self.is_busy() && self.kernel.as_ref().is_some_and(Kernel::has_left)
    }

    /// Launches `copies` at the time `now_ns`, if the kernel is worth a try. Returns whether they
    /// are under way.
    ///
    /// # Safety
    /// - as for [`Kernel::launch`], until [`Launcher::outcome`].
    pub unsafe fn launch(
        &mut self,
        entered: &Entered<'_>,
        copies: &[[u64; 3]],
        now_ns: u64,
    ) -> bool {
        if !self.is_free() || !self.trust.is_due() {
            return false;
        }
        let Some(kernel) = &mut self.kernel else { return false };
        // SAFETY: by this function's contract.
        match unsafe { kernel.launch(entered, copies) } {
            Ok(()) => {
                let bytes = copies.iter().map(|copy| copy[2]).sum();
                self.since = Some((now_ns, bytes));
                true
            }
            Err(error) => {
                tell(&GinEvent::LaunchRefused(error));
                self.trust.refused = true; // dropping the kernel here could wait for the GPU
                false
            }
        }
    }

    /// The GPU has failed: there is no outcome, and no other launch.
    pub fn give_up(&mut self) {
        self.since = None;
        self.trust.refused = true;
    }

    /// The result of the launch under way, at the time `now_ns`. `true`: everything was copied.
    /// `false`: nothing was, nor will be. `None`: the result is not known yet, or there is no
    /// launch.
    pub fn outcome(&mut self, now_ns: u64) -> Option<bool> {
        let ((since_ns, bytes), kernel) = (self.since?, self.kernel.as_ref()?);
        let is_copied = match kernel.progress() {
            Progress::Copied => Some(true),
            Progress::GaveWay => Some(false),
            Progress::Begun => None,
            Progress::Waiting => {
                let patience_ns = self.patience_ns + bytes / PATIENCE_BYTES;
                let is_late = now_ns.saturating_sub(since_ns) > patience_ns;
                (is_late && kernel.take_back()).then_some(false)
            }
        }?;
        self.since = None;
        self.trust.tell(is_copied);
        Some(is_copied)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let Some(kernel) = &self.kernel else { return };
        if self.is_busy() {
            kernel.take_back();
        }
        let until = Instant::now() + END_PATIENCE;
        while !kernel.has_left() {
            if Instant::now() >= until {
                tell(&GinEvent::KernelWaits);
                return;
            }
            std::thread::sleep(super::clock::NAP);
        }
    }
}
