//! What the thread that makes progress does for an AllGather: puts to strangers, and words for the
//! stream. It calls no function of the driver.

use super::board::{Board, Count};
use super::error::GatherError;
use crate::base::slab::Handle;
use crate::collective::Plan;
use crate::host::Endpoint;
use crate::host::group::jobs::{Before, JobId, Jobs, Until, Work};
use crate::window::{After, Local, WindowMemory, group};
use std::vec::Vec;

/// Most operations of a run that wait for room or for their end.
const JOBS_MAX: usize = 256;

/// Where the chunks lie.
#[derive(Copy, Clone, Debug)]
pub struct Chunks {
    /// The window, and this rank's part of it.
    pub window: Handle,
    /// As above.
    pub memory: WindowMemory,
    /// Where the first chunk begins, in every rank's part.
    pub offset: u64,
}

/// The service of one request.
#[derive(Debug)]
pub struct Service {
    slot: usize,
    place: Chunks,
    jobs: Jobs,
    pending: Vec<JobId>,
    /// Ranks that were told that this one is ready.
    told: usize,
    issued: usize,
    landed: u32,
    bytes: u64,
    /// Runs that have begun.
    runs: u64,
    is_running: bool,
}

/// What has happened in a step.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Step {
    /// Nothing.
    Waits,
    /// Something was issued, or has left.
    Moved,
    /// Chunks are there; the number of the landing.
    Landed(u32),
    /// All landings are there, and all puts have left.
    Ended,
}

impl Service {
    /// One that rests.
    pub fn new(slot: usize, place: Chunks, ranks: usize) -> Service {
        let capacity = (3 * ranks).min(JOBS_MAX);
        Service {
            slot,
            place,
            jobs: Jobs::new(ranks, capacity),
            pending: Vec::with_capacity(capacity),
            told: 0,
            issued: 0,
            landed: 0,
            bytes: 0,
            runs: 0,
            is_running: false,
        }
    }

    /// Begins a run with chunks of `bytes`.
    pub fn begin(&mut self, bytes: u64) {
        (self.told, self.issued, self.landed, self.bytes) = (0, 0, 0, bytes);
        self.runs += 1;
        self.is_running = true;
    }

    /// Whether a run is under way.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Goes on.
    ///
    /// *Errors*: an operation was refused, or its connection has failed.
    pub fn step(
        &mut self,
        plan: Plan<'_>,
        board: &Board,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> Result<Step, GatherError> {
        if !self.is_running {
            return Ok(Step::Waits);
        }
        let has_told = self.tell(plan, board);
        let has_issued = self.issue(plan, board);
        let has_moved = self.jobs.step(group, endpoint);
        self.collect()?;
        if let Some(landing) = self.land(plan, board) {
            return Ok(Step::Landed(landing));
        }
        let is_over = self.landed == plan.landings()
            && self.issued == plan.puts().count()
            && self.pending.is_empty();
        if is_over {
            self.is_running = false;
            return Ok(Step::Ended);
        }
        Ok(if has_told || has_issued || has_moved { Step::Moved } else { Step::Waits })
    }

    fn push(&mut self, rank: u32, work: Work) -> bool {
        let pushed = self.jobs.push(rank, work, Until::Local);
        self.pending.extend(pushed);
        pushed.is_some()
    }

    fn add(&mut self, board: &Board, to: u32, count: Count, by: u32) -> bool {
        let offset = board.count_offset(self.slot, count, by as usize);
        let after = Before::Known(After::All);
        self.push(to, Work::Add { window: board.window, offset, value: 1, after })
    }

    /// Tells the ranks that put here that they may.
    fn tell(&mut self, plan: Plan<'_>, board: &Board) -> bool {
        let before = self.told;
        while let Some(peer) = plan.sources().nth(self.told)
            && self.add(board, peer, Count::Ready, plan.rank())
        {
            self.told += 1;
        }
        self.told != before
    }

    /// Issues the next puts, each with the add that tells of it: the add has a fence, so that the
    /// chunk is there and visible when it is counted.
    fn issue(&mut self, plan: Plan<'_>, board: &Board) -> bool {
        let before = self.issued;
        while let Some(put) = plan.puts().nth(self.issued) {
            let is_ready = board.count(self.slot, Count::Ready, put.to) >= self.runs;
            let has_room = self.pending.capacity() - self.pending.len() >= 2;
            if !is_ready || put.after > self.landed || !has_room {
                break;
            }
            let Chunks { window, memory, offset } = self.place;
            let offset = offset + u64::from(put.chunk) * self.bytes;
            let local = Local {
                region: memory.region,
                address: memory.address + offset,
                length: self.bytes,
                bytes: memory.bytes.part(offset, self.bytes),
            };
            let has_both = self.push(put.to, Work::Put { window, offset, local })
                && self.add(board, put.to, Count::Arrived, plan.rank());
            debug_assert!(has_both, "there was room for two");
            self.issued += 1;
        }
        self.issued != before
    }

    /// Takes what has ended.
    fn collect(&mut self) -> Result<(), GatherError> {
        let (jobs, mut failed) = (&mut self.jobs, None);
        self.pending.retain(|id| match jobs.outcome(*id) {
            None => true,
            Some(outcome) => {
                failed = failed.or(outcome.err());
                false
            }
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn land(&mut self, plan: Plan<'_>, board: &Board) -> Option<u32> {
        let next = self.landed + 1;
        if next > plan.landings() {
            return None;
        }
        let before = (self.runs - 1) * u64::from(plan.chunks_each());
        let wanted = before + u64::from(plan.landed(next));
        let has_come = |from: u32| board.count(self.slot, Count::Arrived, from) >= wanted;
        if !plan.landing(next).all(|(_, from)| has_come(from)) {
            return None;
        }
        self.landed = next;
        Some(next)
    }
}
