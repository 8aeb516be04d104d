//! Operations under way, in places that are made beforehand: so many for each context and rank.
#![forbid(unsafe_code)]

use super::error::{Refused, RmaError, What};
use crate::base::slab::Handle;
use crate::host::Endpoint;
use crate::host::group::Group;
use crate::host::group::jobs::{Before, JobId, Jobs, Until, Work};
use crate::window::{After, WindowError};
use std::vec;
use std::vec::Vec;

/// Requests of one context towards one rank. NCCL has 32 outstanding, and some of its own.
pub const EACH: usize = 64;
/// Jobs of a request: the bytes, and the signal.
const PARTS: usize = 2;

/// A word that grows behind the bytes of a request.
#[derive(Copy, Clone, Debug)]
pub struct Word {
    /// The window that it lies in.
    pub window: Handle,
    /// Where in it.
    pub offset: u64,
    /// By how much.
    pub value: u64,
}

impl Word {
    fn add(self, after: Before) -> Work {
        let Word { window, offset, value } = self;
        Work::Add { window, offset, value, after }
    }
}

/// One request.
#[derive(Copy, Clone, Debug, Default)]
struct Row {
    /// Its number among those of its lane.
    order: u64,
    /// Where its bytes lie at the peer, and how many.
    bytes: (u64, u64),
    signal: Option<Word>,
    /// The signal was refused for an operation that is no concern of its lane, and issued again.
    is_again: bool,
    /// What has not ended of it: the bytes, and the signal.
    parts: [Option<JobId>; PARTS],
    /// Gets that a flush waits for, a bit for each place.
    gets: u64,
    /// A put before it was refused, and its user has been told since.
    behind: Option<WindowError>,
    /// What has failed of it first.
    error: Option<(Part, WindowError)>,
    /// Its user was told of this. It keeps its place, as NCCL up to 2.29 passes over the error, and
    /// asks for ever: it must not be given the end of another.
    told: Option<Refused>,
}

/// What fails of a request.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Part {
    Put,
    Get,
    Signal,
    /// A signal, since a put before it was refused.
    Behind,
    /// A flush, since a get before it was refused.
    Flush,
}

/// The requests towards one rank of one context, a bit for each place.
#[derive(Copy, Clone, Debug, Default)]
struct Lane {
    used: u64,
    gets: u64,
    /// Of those that are used, puts and gets that were refused.
    puts_failed: u64,
    gets_failed: u64,
    /// How many there were.
    count: u64,
}

/// The requests of a set of contexts.
///
/// A signal covers the puts of its lane that came before, however NCCL splits them. Where one was
/// refused of which the user had not been told, the signal is not raised. The owner sees to that by
/// the records between; where it was another lane's that it refused, the signal is issued again.
#[derive(Debug)]
pub struct Requests {
    jobs: Jobs,
    /// Failures of jobs that were taken in.
    failures: u64,
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
            jobs: Jobs::new(ranks, contexts * EACH * PARTS),
            failures: 0,
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

    /// Queues a put or a get, a signal, or both; the row.
    pub fn push(
        &mut self,
        (context, rank): (usize, u32),
        transfer: Option<Work>,
        signal: Option<Word>,
    ) -> Result<usize, RmaError> {
        let lane = self.lane_of(context, rank)?;
        self.failures_take();
        let place = self.free(lane).ok_or(RmaError::Full)?;
        let order = self.lanes[lane].count;
        let (bytes, until) = match transfer {
            Some(Work::Put { offset, local, .. }) => ((offset, local.length), Until::Applied),
            Some(Work::Get { offset, local, .. }) => {
                self.lanes[lane].gets |= 1 << place;
                ((offset, local.length), Until::Local)
            }
            Some(Work::Add { .. }) | None => ((0, 0), Until::Applied),
        };
        let mut row = Row { order, bytes, signal, ..Row::default() };
        // before the transfer, which it needs, too
        let so_far = self.jobs.so_far(rank);
        // there is a row of `jobs` for each part
        if let Some(work) = transfer {
            row.parts[0] = Some(self.jobs.push(rank, work, until).ok_or(RmaError::Full)?);
        }
        let failed = self.first(lane, self.lanes[lane].puts_failed);
        match (signal, failed) {
            (Some(_), Some(why)) => row.error = Some((Part::Behind, why)),
            (Some(word), None) => {
                let add = self.jobs.push(rank, word.add(so_far), Until::Applied);
                row.parts[1] = Some(add.ok_or(RmaError::Full)?);
            }
            (None, _) => {}
        }
        self.lanes[lane].used |= 1 << place;
        self.lanes[lane].count += 1;
        self.rows[lane * EACH + place] = row;
        Ok(lane * EACH + place)
    }

    /// A place for a request: a free one, else that of the oldest refused one which was told.
    fn free(&self, lane: usize) -> Option<usize> {
        let row = |place: &usize| &self.rows[lane * EACH + place];
        let told = (0..EACH).filter(|place| row(place).told.is_some());
        let free = bits(!self.lanes[lane].used).next();
        free.or_else(|| told.min_by_key(|place| row(place).order))
    }

    /// Queues a flush; its row, or `None` where there is no get to wait for.
    pub fn flush(&mut self, context: usize, rank: u32) -> Result<Option<usize>, RmaError> {
        let lane = self.lane_of(context, rank)?;
        self.failures_take();
        let Lane { gets, gets_failed, .. } = self.lanes[lane];
        if gets | gets_failed == 0 {
            return Ok(None);
        }
        let row = self.push((context, rank), None, None)?;
        self.rows[row].gets = gets;
        self.rows[row].error = self.first(lane, gets_failed).map(|why| (Part::Flush, why));
        Ok(Some(row))
    }

    /// Why the first of some places has failed, if there is one.
    fn first(&self, lane: usize, places: u64) -> Option<WindowError> {
        let rows = bits(places).map(|place| &self.rows[lane * EACH + place]);
        Some(rows.min_by_key(|row| row.order)?.error?.1)
    }

    /// Issues what has room, and finds ends; whether anything moved.
    pub fn step(&mut self, group: &mut Group, endpoint: &mut Endpoint) -> bool {
        self.jobs.step(group.inner(), endpoint)
    }

    /// Takes in what has failed, of each lane in the order of its requests: a signal asks for what
    /// came before it.
    #[inline]
    fn failures_take(&mut self) {
        if self.failures != self.jobs.failures() {
            self.failures = self.jobs.failures();
            (0..self.lanes.len()).for_each(|lane| self.lane_look(lane));
        }
    }

    #[cold]
    fn lane_look(&mut self, lane: usize) {
        let mut left = self.lanes[lane].used;
        while let Some(place) = bits(left).min_by_key(|at| self.rows[lane * EACH + at].order) {
            left &= !(1 << place);
            self.look(lane * EACH + place);
        }
    }

    /// Takes in the ends of a row's parts; whether all have ended.
    fn look(&mut self, row: usize) -> bool {
        let (lane, place) = (row / EACH, row % EACH);
        for part in 0..PARTS {
            let Some(job) = self.rows[row].parts[part] else { continue };
            let Some(outcome) = self.jobs.outcome(job) else { continue };
            self.rows[row].parts[part] = None;
            match outcome {
                Ok(()) => {}
                Err(error) if part == 0 => self.transfer_failed(row, error),
                Err(error) => self.signal_failed(row, error),
            }
        }
        let has_ended = self.rows[row].parts.iter().all(Option::is_none);
        if has_ended && self.lanes[lane].gets & 1 << place != 0 {
            self.get_ended(lane, place);
        }
        has_ended
    }

    fn transfer_failed(&mut self, row: usize, error: WindowError) {
        let (lane, place) = (&mut self.lanes[row / EACH], row % EACH);
        let is_get = lane.gets & 1 << place != 0;
        let failed = if is_get { &mut lane.gets_failed } else { &mut lane.puts_failed };
        *failed |= 1 << place;
        self.rows[row].error = Some((if is_get { Part::Get } else { Part::Put }, error));
    }

    fn signal_failed(&mut self, row: usize, error: WindowError) {
        let (lane, it) = (row / EACH, self.rows[row]);
        let is_before = |place: &usize| self.rows[lane * EACH + place].order < it.order;
        let before = bits(self.lanes[lane].puts_failed).filter(is_before);
        let before = before.fold(0, |all, place| all | 1 << place);
        let behind = it.behind.or_else(|| self.first(lane, before));
        let is_lost = matches!(error, WindowError::Failed(..));
        let failed = match (it.signal, behind) {
            // its own put has
            _ if it.error.is_some() => return,
            (_, Some(why)) if !is_lost => (Part::Behind, why),
            (Some(word), None) if !is_lost && !it.is_again => {
                let add = word.add(Before::Known(After::All));
                self.rows[row].is_again = true;
                // the row of `jobs` has just become free
                let rank = (lane % self.ranks) as u32;
                self.rows[row].parts[1] = self.jobs.push(rank, add, Until::Applied);
                return;
            }
            _ => (Part::Signal, error),
        };
        self.rows[row].error = Some(failed);
    }

    /// No flush waits for a get that has ended: its place may get another.
    fn get_ended(&mut self, lane: usize, place: usize) {
        let failed = self.rows[lane * EACH + place].error;
        self.lanes[lane].gets &= !(1 << place);
        for row in &mut self.rows[lane * EACH..(lane + 1) * EACH] {
            if row.gets & 1 << place != 0 {
                row.gets &= !(1 << place);
                row.error = row.error.or(failed.map(|(_, why)| (Part::Flush, why)));
            }
        }
    }

    /// How a request stands; one that has ended is free again. One that was refused says so as
    /// often as it is asked.
    ///
    /// *Errors*: [`RmaError::Refused`] of this request alone, [`RmaError::Window`] where its
    /// connection has failed.
    pub fn test(&mut self, row: usize) -> Result<bool, RmaError> {
        let (lane, place) = (row / EACH, row % EACH);
        let is_used = self.lanes.get(lane).is_some_and(|lane| lane.used & 1 << place != 0);
        if !is_used {
            return Err(RmaError::Argument("the request"));
        }
        if let Some(told) = self.rows[row].told {
            return Err(RmaError::Refused(Refused { again: true, ..told }));
        }
        self.failures_take();
        for get in bits(self.rows[row].gets) {
            self.look(lane * EACH + get);
        }
        if !self.look(row) || self.rows[row].gets != 0 {
            return Ok(false);
        }
        match self.rows[row].error {
            Some((part, why)) if !matches!(why, WindowError::Failed(..)) => {
                let refused = self.tell(row, part, why);
                self.rows[row].told = Some(refused);
                Err(RmaError::Refused(refused))
            }
            ended => {
                self.lanes[lane].used &= !(1 << place);
                ended.map_or(Ok(true), |(_, error)| Err(error.into()))
            }
        }
    }

    /// The user hears of a failure: what is issued from now on does not depend on it.
    fn tell(&mut self, row: usize, part: Part, why: WindowError) -> Refused {
        let (lane, it) = (row / EACH, self.rows[row]);
        let bit = 1 << (row % EACH);
        if self.lanes[lane].puts_failed & bit != 0 {
            for place in bits(self.lanes[lane].used) {
                let row = &mut self.rows[lane * EACH + place];
                let is_behind = row.order > it.order && row.parts[1].is_some();
                row.behind = row.behind.or(is_behind.then_some(why));
            }
        }
        self.lanes[lane].puts_failed &= !bit;
        self.lanes[lane].gets_failed &= !bit;
        let (offset, bytes) = it.bytes;
        let signal = it.signal.map_or(0, |signal| signal.offset);
        let what = match part {
            Part::Put => What::Put { bytes, offset },
            Part::Get => What::Get { bytes, offset },
            Part::Signal => What::Signal { offset: signal },
            Part::Behind => What::Behind { offset: signal },
            Part::Flush => What::Flush,
        };
        let (context, rank) = ((lane / self.ranks) as u32, (lane % self.ranks) as u32);
        Refused { what, context, rank, why, again: false }
    }

    /// Whether nothing of it is under way any more.
    pub fn has_ended(&mut self) -> bool {
        self.failures_take();
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
