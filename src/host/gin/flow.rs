//! Copies under way: one stream for each rank, and a marker behind each batch.
//!
//! The stream of a rank keeps the order of that rank's copies. A batch is what one pass of the
//! engine posted; the stream then writes a rising number into a word of pinned memory, and the
//! operations of the batch have ended once the word says so.

extern crate std;

use super::GinError;
use crate::hca::executor::Operation;
use crate::memory::SharedMapping;
use crate::memory::cuda::{CudaError, Entered, Gpu, Import, Pinned, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

/// Bytes that a copy within one GPU goes through at a time, where no other GPU lends memory.
const STAGING_BYTES: usize = 1 << 20;
/// Bytes that another GPU lends for copies within one: a multiple of the driver's granularity.
pub const DETOUR_BYTES: usize = 8 << 20;
/// Markers stand a cache line apart.
const MARKER_BYTES: usize = 64;
/// Operations under way for which there is room before a queue grows.
const PENDING: usize = 1024;

/// Where an operation belongs.
#[derive(Copy, Clone, Debug)]
pub struct Pending {
    /// Which context.
    pub context: u64,
    /// The operation.
    pub operation: Operation,
}

#[derive(Debug)]
struct Road {
    stream: Stream,
    issued: u64,
    posted: bool,
    pending: VecDeque<(u64, Pending)>,
}

/// All copies of one communicator.
#[derive(Debug)]
pub struct Flow {
    roads: Vec<Road>,
    pinned: Pinned,
    mapping: SharedMapping,
    own: usize,
    /// Memory of another GPU, for copies within this one.
    detour: Option<Import>,
}

impl Flow {
    /// Streams for `ranks`, of which `own` is this one. `detour` has [`DETOUR_BYTES`].
    pub fn new(
        gpu: &Arc<Gpu>,
        ranks: usize,
        own: usize,
        detour: Option<Import>,
    ) -> Result<Flow, GinError> {
        let bytes = STAGING_BYTES + ranks * MARKER_BYTES;
        let mapping = SharedMapping::create(c"crosstie-markers", bytes)?;
        mapping.populate(0, bytes)?;
        // SAFETY: the mapping stands in the same value, behind its registration.
        let pinned = unsafe { Pinned::new(gpu, mapping.start(), bytes) }?;
        let mut roads = Vec::new();
        for _ in 0..ranks {
            let stream = Stream::new(gpu)?;
            let pending = VecDeque::with_capacity(PENDING);
            roads.push(Road { stream, issued: 0, posted: false, pending });
        }
        Ok(Flow { roads, pinned, mapping, own, detour })
    }

    fn marker(&self, rank: usize) -> &AtomicU64 {
        let at = STAGING_BYTES + rank * MARKER_BYTES;
        // SAFETY: inside the mapping (`new`), aligned, and only touched as an atomic.
        unsafe { &*self.mapping.start().add(at).cast::<AtomicU64>() }
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
    ) -> Result<(), CudaError> {
        let staging = self.mapping.start();
        let own = rank == self.own;
        let road = &mut self.roads[rank];
        road.posted = true;
        if !own {
            // SAFETY: by this function's contract.
            return unsafe { road.stream.copy(entered, to, from, bytes) };
        }
        let (mut done, detour) = (0, self.detour.as_ref().map(Import::start));
        while done < bytes {
            let at = done as u64;
            if let Some(detour) = detour {
                let now = DETOUR_BYTES.min(bytes - done);
                // SAFETY: `now` bytes of each; the stream keeps the order of the detour's uses.
                unsafe { road.stream.copy(entered, detour, from + at, now) }?;
                // SAFETY: as above.
                unsafe { road.stream.copy(entered, to + at, detour, now) }?;
                done += now;
                continue;
            }
            let now = STAGING_BYTES.min(bytes - done);
            // SAFETY: `now` bytes of each; the stream keeps the order of its uses of the staging.
            unsafe { road.stream.copy_out(entered, staging, from + at, now) }?;
            // SAFETY: as above.
            unsafe { road.stream.copy_in(entered, to + at, staging, now) }?;
            done += now;
        }
        Ok(())
    }

    /// Posts the bytes of an inline value, of which `kept` is a copy in pinned memory.
    ///
    /// # Safety
    /// - `to` is mapped, and stays so until the operation has ended; `kept` likewise, and is not
    ///   changed.
    pub unsafe fn write(
        &mut self,
        entered: &Entered<'_>,
        rank: usize,
        to: u64,
        value: &[u8],
        kept: *mut u8,
    ) -> Result<(), CudaError> {
        let road = &mut self.roads[rank];
        road.posted = true;
        if let (Ok(word), true) = (value.try_into(), to.is_multiple_of(8)) {
            let value = u64::from_le_bytes(word);
            // SAFETY: by this function's contract.
            return unsafe { road.stream.write64(entered, to, value) };
        }
        // SAFETY: room for an inline value, which nobody else touches.
        unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), kept, value.len()) };
        // SAFETY: by this function's contract.
        unsafe { road.stream.copy_in(entered, to, kept, value.len()) }
    }

    /// Notes an operation that was posted on the road of `rank`; it ends with the next marker.
    pub fn note(&mut self, rank: usize, pending: Pending) {
        let road = &mut self.roads[rank];
        road.pending.push_back((road.issued + 1, pending));
    }

    /// Writes a marker behind what was posted since the last call.
    pub fn mark(&mut self, entered: &Entered<'_>) -> Result<(), CudaError> {
        for rank in 0..self.roads.len() {
            let at = self.pinned.device() + (STAGING_BYTES + rank * MARKER_BYTES) as u64;
            let road = &mut self.roads[rank];
            if !core::mem::take(&mut road.posted) {
                continue;
            }
            road.issued += 1;
            // SAFETY: a word of the pinned mapping, which stands as long as the streams.
            unsafe { road.stream.write64(entered, at, road.issued) }?;
        }
        Ok(())
    }

    /// The next operation that has ended.
    pub fn ended(&mut self) -> Option<Pending> {
        for rank in 0..self.roads.len() {
            let Some((number, _)) = self.roads[rank].pending.front() else { continue };
            // pairs with the stream's write, which is fenced behind its copies
            if *number <= self.marker(rank).load(Ordering::Acquire) {
                return self.roads[rank].pending.pop_front().map(|(_, pending)| pending);
            }
        }
        None
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.roads.iter().all(|road| road.pending.is_empty())
    }

    /// Forgets what is under way, because its context goes although it never ended.
    pub fn forget(&mut self, context: u64) {
        for road in &mut self.roads {
            road.pending.retain(|(_, pending)| pending.context != context);
        }
    }
}
