//! Ops that wait for `poll`, and their progress within a budget.

use super::table::{Event, Tables};
use super::{PostResult, touch};
use crate::base::carve::Zeroable;
use crate::base::ids::PeerIndex;
use crate::fabric::{LINE_BYTES, Op, OpErrorKind, PostError, Posted};

/// An accepted op that has not ended.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Job {
    work: Work,
    id: u64,
    imm: u64,
    /// The peer that it was posted to.
    peer: u32,
    /// Cleared by a cancellation; the job then only holds its place in the queue.
    live: bool,
    /// Table index plus one of each region that must stay; zero for none.
    pins: [u32; 2],
}

/// What is left to do.
#[derive(Copy, Clone, Debug)]
#[repr(u32)]
pub(super) enum Work {
    Copy { from: u64, to: u64, left: u64 },
    Line { to: u64, line: [u8; LINE_BYTES] },
    Add { to: u64, value: u64 },
    Deliver { slot: u32 },
}

// SAFETY: integers, a `bool` and an enum whose tag zero is `Copy` of three integers.
unsafe impl Zeroable for Job {}

impl Job {
    pub(super) fn new(op: &Op, work: Work, pins: [u32; 2], imm: u64) -> Job {
        Job { work, id: op.id.0, imm, peer: op.peer.0, live: true, pins }
    }

    /// Does at most `budget` bytes of it, or one indivisible step. Returns what was spent, and
    /// whether the job has ended.
    fn step(&mut self, budget: u64) -> (u64, bool) {
        match &mut self.work {
            Work::Copy { from, to, left } => {
                let now = budget.min(*left);
                // SAFETY: both regions are pinned since the post that checked the ranges.
                unsafe { touch::copy(*from, *to, now) };
                (*from, *to, *left) = (*from + now, *to + now, *left - now);
                (now, *left == 0)
            }
            Work::Line { to, line } => {
                // SAFETY: the region is pinned since the post that checked the range.
                unsafe { touch::copy_out(line, *to) };
                (LINE_BYTES as u64, true)
            }
            Work::Add { to, value } => {
                // SAFETY: the region is pinned since the post that checked range and alignment.
                unsafe { touch::add(*to, *value) };
                (8, true)
            }
            Work::Deliver { .. } => (0, true),
        }
    }
}

impl Tables<'_> {
    /// Takes a job; room for its completion and its immediate is part of the event queue's length.
    pub(super) fn queue(&mut self, job: Job) -> PostResult {
        if self.jobs.room() == 0 {
            return Err(PostError::Again);
        }
        self.pin(job.pins, 1);
        let peer = &mut self.peers[job.peer as usize];
        peer.jobs += 1;
        peer.inflight += 1;
        self.jobs.push(job);
        Ok(Posted::Pending)
    }

    /// Works on the oldest jobs until the budget is spent.
    pub(super) fn work(&mut self, mut budget: u64) {
        while let Some(job) = self.jobs.front_mut() {
            if job.live {
                if budget == 0 {
                    return;
                }
                let (spent, ended) = job.step(budget);
                budget = budget.saturating_sub(spent);
                if !ended {
                    return;
                }
            }
            if let Some(job) = self.jobs.pop().filter(|job| job.live) {
                self.end(&job);
            }
        }
    }

    fn end(&mut self, job: &Job) {
        self.pin(job.pins, -1);
        self.peers[job.peer as usize].jobs -= 1;
        if let Work::Deliver { slot } = job.work {
            let peer = self.partner(job.peer as usize) as u32;
            self.events.push(Event::Received { peer, slot });
        }
        self.announce(PeerIndex(job.peer), job.imm);
        self.events.push(Event::Ended { peer: job.peer, id: job.id });
    }

    /// Ends every job that was posted to `peer` with an error. *Cost*: bounded by the queue.
    pub(super) fn cancel(&mut self, peer: usize, kind: OpErrorKind) {
        for n in 0..self.jobs.len() {
            let job = *self.jobs.at_mut(n);
            if !job.live || job.peer as usize != peer {
                continue;
            }
            self.jobs.at_mut(n).live = false;
            self.pin(job.pins, -1);
            if let Work::Deliver { slot } = job.work {
                self.slot_give_back(self.partner(peer), slot);
            }
            self.events.push(Event::Failed { peer: job.peer, id: job.id, kind });
        }
        self.peers[peer].jobs = 0;
    }

    fn pin(&self, pins: [u32; 2], change: i32) {
        for pin in pins {
            if pin != 0 {
                self.regions.pin(pin - 1, change);
            }
        }
    }
}
