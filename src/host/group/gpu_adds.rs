//! Adds to words of windows in memory of GPUs, which this endpoint owns.

use crate::base::slab::Handle;
use crate::memory::cuda::adder::{AdderError, Round};
use crate::memory::cuda::{Adder, Gpu, Library, Place};
use crate::window::{Add, AddError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Vec;

/// Adds of one GPU that have not begun.
const WAITING: usize = 1024;
/// An [`Add`] has its GPU's place above the number.
const NUMBER_BITS: u32 = 56;

/// The adds of one GPU, which end in the order in which they were asked.
#[derive(Debug)]
struct OfGpu {
    adder: Adder,
    gpu: Arc<Gpu>,
    waiting: VecDeque<(u64, u64)>,
    /// How many were asked, are in the round or before it, and have ended.
    asked: u64,
    taken: u64,
    ended: u64,
    has_failed: bool,
}

/// The adds of one endpoint.
#[derive(Debug, Default)]
pub struct GpuAdds {
    gpus: Vec<OfGpu>,
    /// The GPU of each region that windows lie in.
    regions: Vec<(Handle, usize)>,
}

impl GpuAdds {
    /// None, for an endpoint that has no memory of GPUs yet.
    pub const NONE: GpuAdds = GpuAdds { gpus: Vec::new(), regions: Vec::new() };

    /// Windows lie in that region from now on, which has this address of a GPU's memory.
    pub fn prepare(
        &mut self,
        region: Handle,
        address: u64,
        is_live: impl Fn(Handle) -> bool,
    ) -> Result<(), AddError> {
        let library = Library::load().map_err(|_| AddError::Memory)?;
        let Ok(Place::Device(number)) = Place::of(library, address) else {
            return Err(AddError::Memory);
        };
        let known = self.gpus.iter().position(|of| of.gpu.device() == number);
        let at = match known {
            Some(at) => at,
            None => {
                self.gpus.push(OfGpu::new(library, number).map_err(|_| AddError::Memory)?);
                self.gpus.len() - 1
            }
        };
        self.regions.retain(|(it, _)| *it != region && is_live(*it));
        self.regions.push((region, at));
        Ok(())
    }

    /// Asks for an add.
    pub fn ask(&mut self, region: Handle, address: u64, value: u64) -> Result<Add, AddError> {
        let row = self.regions.iter().find(|(it, _)| *it == region).ok_or(AddError::Memory)?;
        let of = &mut self.gpus[row.1];
        if of.has_failed {
            return Err(AddError::Memory);
        }
        if of.waiting.len() == WAITING {
            return Err(AddError::Again);
        }
        of.waiting.push_back((address, value));
        of.asked += 1;
        Ok(Add((row.1 as u64) << NUMBER_BITS | of.asked))
    }

    /// Whether an add has ended.
    pub fn has_ended(&self, add: Add) -> Result<bool, AddError> {
        let (at, number) = (add.0 >> NUMBER_BITS, add.0 & ((1 << NUMBER_BITS) - 1));
        let of = self.gpus.get(at as usize).ok_or(AddError::Memory)?;
        match number <= of.ended {
            true => Ok(true),
            false if of.has_failed => Err(AddError::Memory),
            false => Ok(false),
        }
    }

    /// Whether none is under way.
    pub fn is_idle(&self) -> bool {
        self.gpus.iter().all(|of| of.has_failed || of.ended == of.asked)
    }

    /// Goes on with rounds; whether anything happened.
    pub fn step(&mut self) -> bool {
        self.gpus.iter_mut().fold(false, |any, of| any | of.step())
    }
}

impl OfGpu {
    fn new(library: &'static Library, number: i32) -> Result<OfGpu, AdderError> {
        let gpu = Arc::new(Gpu::at(library, number)?);
        Ok(OfGpu {
            adder: Adder::new(&gpu)?,
            gpu,
            waiting: VecDeque::with_capacity(WAITING),
            asked: 0,
            taken: 0,
            ended: 0,
            has_failed: false,
        })
    }

    fn step(&mut self) -> bool {
        if self.has_failed || self.ended == self.asked {
            return false;
        }
        if self.adder.is_idle() {
            while let Some((address, value)) = self.waiting.front().copied()
                && self.adder.take(address, value)
            {
                self.waiting.pop_front();
                self.taken += 1;
            }
        }
        let Ok(entered) = self.gpu.enter() else { return false };
        // SAFETY: words of windows, whose memory stays while adds to it are under way: a window is
        // not freed before (`Table::transfer_count`), nor its region forgotten.
        match unsafe { self.adder.go_on(&entered) } {
            Round::Idle | Round::Waits => return false,
            Round::Moved => {}
            Round::Ended(Ok(())) => self.ended = self.taken,
            Round::Ended(Err(_)) => self.has_failed = true,
        }
        true
    }
}
