//! Operations under way, in places that are made beforehand: so many for each context and rank.
#![forbid(unsafe_code)]

use super::error::RmaError;
use crate::host::Endpoint;
use crate::host::group::Group;
use crate::host::group::jobs::{JobId, Jobs, Until, Work};
use crate::window::WindowError;
use std::vec;
use std::vec::Vec;

/// Requests of one context towards one rank. NCCL has 32 outstanding, and some of its own.
pub const EACH: usize = 64;
/// Jobs of a request: the bytes, and the signal.
const PARTS: usize = 2;

/// One request.
#[derive(Copy, Clone, Debug, Default)]
struct Row {
    /// What has not ended of it.
    parts: [Option<JobId>; PARTS],
    /// Gets that a flush waits for, a bit for each place.
    gets: u64,
    /// The first error of a part.
    error: Option<WindowError>,
}

/// The requests towards one rank of one context, a bit for each place.
#[derive(Copy, Clone, Debug, Default)]
struct Lane {
    used: u64,
    gets: u64,
}

/// The requests of a set of contexts.
#[derive(Debug)]
pub struct Requests {
    jobs: Jobs,
    ranks: usize,
    lanes: Vec<Lane>,
    rows: Vec<Row>,
}

impl Requests {
    /// Makes all places.
    pub fn new(ranks: usize, contexts: usize) -> Requests {
        let lanes = ranks * contexts;
        let rows = lanes * EACH;
        Requests {
            jobs: Jobs::new(ranks, rows * PARTS),
            ranks,
            lanes: vec![Lane::default(); lanes],
            rows: vec![Row::default(); rows],
        }
    }

    /// The lane of a context and rank.
    pub fn lane_of(&self, context: usize, rank: u32) -> Result<usize, RmaError> {
        let rank = rank as usize;
        if rank >= self.ranks {
            return Err(RmaError::Argument("the rank"));
        }
        let lane = context.checked_mul(self.ranks).and_then(|first| first.checked_add(rank));
        let lane = lane.filter(|lane| *lane < self.lanes.len());
        lane.ok_or(RmaError::Argument("the context"))
    }

    /// Queues the parts of an operation; its row.
    pub fn push(
        &mut self,
        (context, rank): (usize, u32),
        parts: [Option<(Work, Until)>; PARTS],
    ) -> Result<usize, RmaError> {
        let lane = self.lane_of(context, rank)?;
        let place = (!self.lanes[lane].used).trailing_zeros() as usize;
        if place >= EACH {
            return Err(RmaError::Full);
        }
        let row = lane * EACH + place;
        self.rows[row] = Row::default();
        for (at, part) in parts.into_iter().enumerate() {
            let Some((work, until)) = part else { continue };
            if matches!(work, Work::Get { .. }) {
                self.lanes[lane].gets |= 1 << place;
            }
            // there is a row of `jobs` for each part
            let job = self.jobs.push(rank, work, until).ok_or(RmaError::Full)?;
            self.rows[row].parts[at] = Some(job);
        }
        self.lanes[lane].used |= 1 << place;
        Ok(row)
    }

    /// Queues a flush; its row, or `None` where there is no get to wait for.
    pub fn flush(&mut self, context: usize, rank: u32) -> Result<Option<usize>, RmaError> {
        let lane = self.lane_of(context, rank)?;
        let gets = self.lanes[lane].gets;
        if gets == 0 {
            return Ok(None);
        }
        let row = self.push((context, rank), [None, None])?;
        self.rows[row].gets = gets;
        Ok(Some(row))
    }

    /// Issues what has room, and finds ends; whether anything moved.
    pub fn step(&mut self, group: &mut Group, endpoint: &mut Endpoint) -> bool {
        self.jobs.step(group.inner(), endpoint)
    }

    /// Takes in the ends of a row's parts; whether all have ended.
    fn look(&mut self, row: usize) -> bool {
        let (lane, place) = (row / EACH, row % EACH);
        let it = &mut self.rows[row];
        for part in &mut it.parts {
            let Some(job) = *part else { continue };
            if let Some(outcome) = self.jobs.outcome(job) {
                *part = None;
                it.error = it.error.or(outcome.err());
            }
        }
        let has_ended = it.parts.iter().all(Option::is_none);
        if has_ended && self.lanes[lane].gets & 1 << place != 0 {
            self.get_ended(lane, place);
        }
        has_ended
    }

    /// No flush waits for a get that has ended: its place may get another.
    fn get_ended(&mut self, lane: usize, place: usize) {
        self.lanes[lane].gets &= !(1 << place);
        for row in &mut self.rows[lane * EACH..(lane + 1) * EACH] {
            row.gets &= !(1 << place);
        }
    }

    /// How a request stands; one that has ended is free again.
    pub fn test(&mut self, row: usize) -> Result<bool, RmaError> {
        let (lane, place) = (row / EACH, row % EACH);
        let is_used = self.lanes.get(lane).is_some_and(|lane| lane.used & 1 << place != 0);
        if !is_used {
            return Err(RmaError::Argument("the request"));
        }
        for get in bits(self.rows[row].gets) {
            self.look(lane * EACH + get);
        }
        if !self.look(row) || self.rows[row].gets != 0 {
            return Ok(false);
        }
        self.lanes[lane].used &= !(1 << place);
        match self.rows[row].error {
            Some(error) => Err(error.into()),
            None => Ok(true),
        }
    }

    /// Whether nothing of it is under way any more.
    pub fn has_ended(&mut self) -> bool {
        let mut all = true;
        for lane in 0..self.lanes.len() {
            for place in bits(self.lanes[lane].used) {
                all &= self.look(lane * EACH + place);
            }
        }
        all
    }
}

/// The numbers of the bits that are set.
fn bits(mut of: u64) -> impl Iterator<Item = usize> {
    ::core::iter::from_fn(move || {
        let at = of.trailing_zeros();
        (at < u64::BITS).then(|| {
            of &= of - 1;
            at as usize
        })
    })
}
