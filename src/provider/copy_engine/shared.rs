//! What the data thread and other threads of an endpoint share of its GPUs.

use super::imports::Imports;
use super::lanes::{Cells, Lanes};
use super::note::Exporter;
use crate::base::units::Instant;
use crate::memory::locked;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// GPUs that one process may use.
pub const GPUS_MAX: usize = 16;

/// GPUs that are in use, and memory of peers.
#[derive(Debug)]
pub struct Shared {
    /// By number of the GPU.
    pub gpus: [OnceLock<Mutex<Lanes>>; GPUS_MAX],
    /// What all their cells lie in: dropped behind them.
    pub cells: Mutex<Option<Cells>>,
    /// Memory of peers.
    pub imports: Imports,
    /// Where peers get ours, once there is some.
    pub exporter: OnceLock<Exporter>,
    /// A bit for each GPU whose copies are overdue, which the helper has not told yet.
    overdue: AtomicU32,
    /// The driver's code of a copy that it has refused, the same.
    refused: AtomicI32,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::new()
    }
}

impl Shared {
    /// No GPU is in use yet.
    pub fn new() -> Shared {
        let (gpus, exporter) = ([const { OnceLock::new() }; GPUS_MAX], OnceLock::new());
        let (overdue, refused) = (AtomicU32::new(0), AtomicI32::new(0));
        let (cells, imports) = (Mutex::default(), Imports::new());
        Shared { gpus, cells, imports, exporter, overdue, refused }
    }

    /// The streams of a GPU, if it is in use.
    pub fn lanes(&self, gpu: u8) -> Option<MutexGuard<'_, Lanes>> {
        self.gpus.get(usize::from(gpu))?.get().map(locked)
    }

    /// The streams of each GPU that is in use, one at a time.
    fn all_lanes(&self) -> impl Iterator<Item = MutexGuard<'_, Lanes>> {
        self.gpus.iter().filter_map(OnceLock::get).map(locked)
    }

    /// A GPU for copies into host memory: one that is in use, or else the first, which a helper
    /// opens before it maps anything.
    pub fn any_gpu(&self) -> u8 {
        self.gpus.iter().position(|gpu| gpu.get().is_some()).unwrap_or(0) as u8
    }

    /// Whether a stream has moved on, or failed, since the last call.
    pub fn has_moved(&self) -> bool {
        self.all_lanes().any(|mut lanes| lanes.has_moved())
    }

    /// Asks the driver about each GPU on which something is under way.
    pub fn look_for_faults(&self) {
        for mut lanes in self.all_lanes() {
            if !lanes.is_quiet() {
                lanes.look_for_fault();
            }
        }
    }

    /// Wakes the helper where copies are overdue.
    pub fn look_for_overdue(&self, now: Instant) {
        for (number, lanes) in self.gpus.iter().enumerate() {
            if lanes.get().is_some_and(|lanes| locked(lanes).is_overdue(now)) {
                self.overdue.fetch_or(1 << number, Ordering::Relaxed);
                self.imports.wake().inspect(|wake| wake.ring());
            }
        }
    }

    /// The driver has refused a copy out of a peer's memory, and the bytes go another way. The
    /// helper tells of it.
    pub fn refuse(&self, code: i32) {
        if self.refused.swap(code, Ordering::Relaxed) == 0 {
            self.imports.wake().inspect(|wake| wake.ring());
        }
    }

    /// For the helper: the code of a copy that was refused since the last call.
    pub fn refused(&self) -> Option<i32> {
        Some(self.refused.swap(0, Ordering::Relaxed)).filter(|code| *code != 0)
    }

    /// The GPUs whose copies are overdue, each once.
    pub fn overdue(&self) -> impl Iterator<Item = usize> {
        let overdue = self.overdue.swap(0, Ordering::Relaxed);
        (0..GPUS_MAX).filter(move |number| overdue & 1 << number != 0)
    }

    /// Waits until nothing is under way any more, at most so long; whether that is so.
    pub fn settle(&self, patience: Duration) -> bool {
        let start = std::time::Instant::now();
        while !self.all_lanes().all(|lanes| lanes.is_quiet()) {
            if start.elapsed() >= patience {
                return false;
            }
            std::thread::yield_now();
            self.look_for_faults();
        }
        true
    }

    /// Posts on all GPUs what waits.
    pub fn flush(&self) {
        for mut lanes in self.all_lanes() {
            lanes.flush();
        }
    }
}
