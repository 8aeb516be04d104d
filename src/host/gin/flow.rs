//! Copies under way: a [road](super::road) to each rank, and the [way](super::loopback) of this
//! rank to itself.

use super::GinError;
use super::launcher::Launcher;
use super::loopback::Loopback;
use super::road::{Pending, Road};
use crate::hca::completion::Syndrome;
use crate::memory::cuda::{CudaError, Entered, Gpu, Import, Kernel, Pinned, Program};
use crate::memory::{SharedMapping, Variables};
use std::string::{String, ToString};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

/// Markers stand a cache line apart.
const MARKER_BYTES: usize = 64;

/// How long a kernel may take to start: copy engines do the same a little later.
const PATIENCE_NS: u64 = 40_000;

/// How much was posted until some moment.
#[derive(Debug)]
pub struct Posted {
    roads: Vec<u64>,
    /// The loopback's share of it, until that moves to the rank's own road.
    line: Option<u64>,
}

/// All copies of one communicator.
#[derive(Debug)]
pub struct Flow {
    own: usize,
    /// Dropped before the memory that they use.
    roads: Vec<Road>,
    loopback: Loopback,
    _pinned: Pinned,
    _mapping: SharedMapping,
}

impl Flow {
    /// Streams for `ranks`, of which `own` is this one. `lent` is memory of another GPU.
    pub fn new(
        gpu: &Arc<Gpu>,
        ranks: usize,
        own: usize,
        lent: Option<Import>,
    ) -> Result<Flow, GinError> {
        let bytes = ranks * MARKER_BYTES;
        let mapping = SharedMapping::create(c"crosstie-markers", bytes)?;
        mapping.populate(0, bytes)?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, mapping.start(), bytes) }?;
        let program = program(gpu);
        let mut roads = Vec::new();
        for rank in 0..ranks {
            let at = rank * MARKER_BYTES;
            let word = mapping.start().wrapping_add(at).cast::<AtomicU64>();
            let kernel = program.as_ref().ok().filter(|_| rank != own);
            let launcher =
                Launcher::new(kernel.and_then(|program| Kernel::new(program).ok()), PATIENCE_NS);
            // SAFETY: a fresh word inside the mapping, which stands in the same value.
            roads.push(unsafe { Road::new(gpu, word, pinned.device() + at as u64, launcher) }?);
        }
        let loopback = Loopback::new(gpu, &program, lent)?;
        Ok(Flow { own, roads, loopback, _pinned: pinned, _mapping: mapping })
    }

    /// Posts a copy from `from` to `to` on the road of `rank`.
    ///
    /// # Safety
    /// - both ranges are mapped, and stay so until the operation has ended.
    pub unsafe fn copy(
        &mut self,
        entered: &Entered<'_>,
        rank: usize,
        to: u64,
        from: u64,
        bytes: usize,
    ) {
        let road = &mut self.roads[rank];
        if rank != self.own {
            // SAFETY: by this function's contract.
            return unsafe { road.copy(entered, to, from, bytes) };
        }
        // SAFETY: by this function's contract.
        unsafe { self.loopback.copy(entered, road, [to, from, bytes as u64]) };
    }

    /// Posts the bytes of an inline value. `kept` is a copy of it in pinned memory.
    ///
    /// # Safety
    /// - `to` and `kept` are mapped, and stay so until the operation has ended.
    /// - the bytes at `kept` are not changed until then.
    pub unsafe fn write(
        &mut self,
        entered: &Entered<'_>,
        rank: usize,
        to: u64,
        value: &[u8],
        kept: *mut u8,
    ) -> Result<(), CudaError> {
        let road = &mut self.roads[rank];
        // SAFETY: room for an inline value, which nobody else touches.
        unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), kept, value.len()) };
        if rank != self.own {
            // SAFETY: by this function's contract.
            return unsafe { road.write(entered, to, kept, value.len()) };
        }
        // SAFETY: by this function's contract.
        unsafe { self.loopback.write(entered, road, to, kept, value.len()) };
        Ok(())
    }

    /// Notes the operation of what was posted on the road of `rank`; it ends with all of that.
    pub fn note(&mut self, entered: &Entered<'_>, rank: usize, pending: Pending) {
        let road = &mut self.roads[rank];
        match rank == self.own {
            true => self.loopback.note(entered, road, pending),
            false => road.note(pending),
        }
    }

    /// Whether what goes to `rank` must wait for what a kernel copies there.
    pub fn is_held(&self, rank: usize) -> bool {
        self.roads[rank].is_held()
    }

    /// Fails what is under way if the GPU has failed.
    pub fn look_for_fault(&mut self, entered: &Entered<'_>) {
        if self.is_quiet() {
            return;
        }
        let Some(error) = self.roads[self.own].fault(entered) else { return };
        self.roads.iter_mut().for_each(|road| road.fail(error));
        self.loopback.give_up();
    }

    /// Goes on with what waits, at the time `now_ns`.
    pub fn pass(&mut self, entered: &Entered<'_>, now_ns: u64) {
        self.roads.iter_mut().for_each(|road| road.pass(entered, now_ns));
        self.loopback.pass(entered, &mut self.roads[self.own], now_ns);
    }

    /// Writes markers behind what was posted since the last call.
    pub fn mark(&mut self, entered: &Entered<'_>) {
        self.roads.iter_mut().for_each(|road| road.mark(entered));
    }

    /// The next operation that has ended.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        self.roads.iter_mut().find_map(Road::ended).or_else(|| self.loopback.ended())
    }

    /// How much was posted so far.
    pub fn posted(&self) -> Posted {
        let roads = self.roads.iter().map(Road::due).collect();
        Posted { roads, line: Some(self.loopback.due()) }
    }

    /// Whether all of `posted` has ended, so that nothing of it touches memory any more.
    pub fn has_ended(&self, posted: &mut Posted) -> bool {
        if posted.line.is_some_and(|due| self.loopback.has_reached(due)) {
            posted.line = None;
            posted.roads[self.own] = self.roads[self.own].due();
        }
        let reached = |(road, due): (&Road, &u64)| road.has_reached(*due);
        posted.line.is_none() && self.roads.iter().zip(&posted.roads).all(reached)
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.loopback.is_quiet() && self.roads.iter().all(Road::is_quiet)
    }

    /// Forgets what is under way, because its context goes although it never ended.
    pub fn forget(&mut self, context: u64) {
        self.loopback.forget(context);
        self.roads.iter_mut().for_each(|road| road.forget(context));
    }
}

/// The program that copies, or why there is none.
fn program(gpu: &Arc<Gpu>) -> Result<Program, String> {
    let value = Variables::of_process().text("CUDA_LAUNCH_BLOCKING");
    // launches would wait for their kernel, which may wait for what the engine does next
    match value.is_some_and(|value| !matches!(value.trim(), "" | "0")) {
        true => Err(String::from("CUDA_LAUNCH_BLOCKING is set")),
        false => Program::new(gpu).map_err(|error| error.to_string()),
    }
}
