//! The way to ranks of other hosts: an [`Endpoint`] with a [`Group`] of all ranks. What queues ask
//! of a rank of another host becomes puts, gets and adds of windows.
//!
//! | entry | operation | it ends when |
//! |---|---|---|
//! | write, inline value | put | its bytes are in the window |
//! | read | get | its bytes are here |
//! | add to a signal | add to the owner's table of signals, a window | the word has grown |
//! | add to a word of a window | add to the window | the word has grown |
//!
//! An add to a signal follows what is before it on its queue at once. It has a fence, so the owner
//! adds after the bytes that it announces, whatever rail carried them. Where the owner has refused
//! one of its queue's writes and adds before it, it refuses the add, too ([`After::Success`]). An
//! add to a window starts once all before it on its queue has ended (`Executor`). A connection
//! promises that nothing is done twice.

use super::road::Pending;
use super::{GinError, all_have};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span as Time};
use crate::connect::group::Group as Meeting;
use crate::fabric::MemoryKind;
use crate::hca::completion::Syndrome;
use crate::host::error::DeregisterError;
use crate::host::group::board::{Board, News};
use crate::host::group::jobs::{Before, JobId, Jobs, Until, Work};
use crate::host::group::{Bootstrap, BootstrapError, Group, GroupOptions};
use crate::host::{Endpoint, Options};
use crate::memory::Reserve;
use crate::transport::{Limits as Capacities, RequestError};
use crate::window::group::Flushed;
use crate::window::{After, Limits, WindowError};
use crate::wire::RAILS_MAX;
use core::fmt;
use std::collections::VecDeque;
use std::time::Duration;
use std::vec::Vec;

/// Operations under way to each rank, all queues together.
const JOBS_EACH: usize = 256;
/// Requests of one connection: frames are always posted, and long bytes are a request each.
const REQUESTS: u32 = 64;
/// Connections of a group for each rank, and as many for the own rank's other ends.
const CONNECTIONS_EACH: u32 = 2;

/// Memory of this rank that ranks of other hosts reach, or that is sent to them.
#[derive(Copy, Clone, Debug)]
pub struct Far {
    /// As the endpoint knows it.
    pub region: Handle,
    /// As the group knows it; `None`: it is sent from, and nobody writes to it.
    pub window: Option<Handle>,
}

/// What an operation is made of: its parts go one behind the other.
pub type Works = [Option<Work>; 2];

/// A part of a window that is written, or added to.
#[derive(Copy, Clone, Debug)]
struct Target {
    window: Handle,
    start: u64,
    end: u64,
    is_add: bool,
}

/// An operation under way.
#[derive(Debug)]
struct Flight {
    pending: Pending,
    /// Where it writes.
    target: Option<Target>,
    /// Its parts that have not ended.
    parts: VecDeque<JobId>,
    outcome: Result<(), Syndrome>,
}

/// The way to ranks of other hosts, as one rank has it.
pub struct Hosts {
    /// Whether each rank is of this host.
    near: Vec<bool>,
    jobs: Jobs,
    /// By rank, in the order in which they began.
    flights: Vec<VecDeque<Flight>>,
    /// By rank, the parts of the last one that are not issued.
    waiting: Vec<Option<Works>>,
    /// How many have begun and ended, by rank.
    begun: Vec<u64>,
    ended: Vec<u64>,
    /// `None`: closed.
    open: Option<(Group, Endpoint)>,
    /// Ranks tell by it that they have failed.
    board: Board,
    _blocks: [Reserve; 2],
}

impl Target {
    /// Where works write at their rank.
    fn of(works: &Works) -> Option<Target> {
        let of = |work: &Work| match *work {
            Work::Put { window, offset: start, local } => {
                Some(Target { window, start, end: start + local.length, is_add: false })
            }
            Work::Add { window, offset: start, .. } => {
                Some(Target { window, start, end: start + 8, is_add: true })
            }
            Work::Get { .. } => None,
        };
        let first = works[0].as_ref().and_then(of)?;
        // the second part lies behind the first one
        let end = works[1].as_ref().and_then(of).map_or(first.end, |second| second.end);
        Some(Target { end, ..first })
    }

    /// Whether one must wait for the other; adds go in any order.
    fn meets(self, other: Target) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        self.window == other.window && overlaps && !(self.is_add && other.is_add)
    }
}

/// The ranks gather what the group needs as they gather everything.
struct Gathering<'a>(&'a mut Meeting);

impl Bootstrap for Gathering<'_> {
    fn gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), BootstrapError> {
        let parts = self.0.gather(mine, &[]).map_err(|_| BootstrapError(libc::ECONNRESET))?;
        for (part, place) in parts.iter().zip(all.chunks_exact_mut(mine.len())) {
            if part.bytes.len() != mine.len() {
                return Err(BootstrapError(libc::EPROTO));
            }
            place.copy_from_slice(&part.bytes);
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), BootstrapError> {
        self.0.left().map_or(Ok(()), |_| Err(BootstrapError(libc::ECONNRESET)))
    }
}

fn options(ranks: u32, regions_max: u32) -> Options {
    Options {
        limits: Capacities {
            connections_max: CONNECTIONS_EACH * (ranks + 1),
            requests_max: REQUESTS,
            regions_max,
            rails_max: RAILS_MAX as u32,
        },
        heap_bytes: Bytes::ZERO,
        thread_retires: true,
        ..Options::default()
    }
}

impl Pending {
    /// What an add comes after: what is `before` it of its queue, the oldest first. `None`: some of
    /// that waits for room. An error: some of that has failed.
    fn after(&self, before: &[Flight], jobs: &Jobs) -> Option<Result<After, Syndrome>> {
        let mut after = After::All;
        for flight in before.iter().filter(|flight| self.is_of_queue(&flight.pending)) {
            if let Err(syndrome) = flight.outcome {
                return Some(Err(syndrome));
            }
            for part in &flight.parts {
                match jobs.ticket(*part)? {
                    Ok(ticket) if after == After::All => after = After::Success(ticket),
                    Ok(_) => {}
                    Err(error) => return Some(Err(syndrome(error))),
                }
            }
        }
        Some(Ok(after))
    }

    fn is_of_queue(&self, other: &Pending) -> bool {
        self.context == other.context && self.operation.queue == other.operation.queue
    }
}

impl Hosts {
    /// Opens the way, with room for `regions_max` regions; a collective call. `None`: all ranks are
    /// of this host.
    pub fn open(
        meeting: &mut Meeting,
        regions_max: usize,
        patience: Duration,
    ) -> Result<Option<Hosts>, GinError> {
        let (rank, ranks) = (meeting.rank(), meeting.ranks());
        if meeting.members().len() == ranks {
            return Ok(None);
        }
        let near = (0..ranks).map(|rank| meeting.members().contains(&rank)).collect();
        // frames of the group lie in one region more, and queues in others
        let options = options(ranks as u32, 2 * regions_max as u32 + 1);
        let limits = Limits {
            ranks: ranks as u32,
            windows_max: regions_max as u32, // the board is one of them
            signals_max: 0,
            counters_max: 0,
            barriers_max: 0,
        };
        let timeout = Time(patience.as_nanos() as u64);
        let group_options = GroupOptions { limits, rank: rank as u32, timeout };
        let blocks = Reserve::create(options.bytes())
            .and_then(|block| Ok([block, Reserve::create(group_options.bytes())?]))
            .and_then(|blocks| Ok((blocks, Board::new(rank as u32, ranks as u32)?)));
        let opened = blocks.map_err(GinError::from).and_then(|(blocks, board)| {
            // SAFETY: fresh pages, which stand until the endpoint is closed (`close`).
            let opened =
                unsafe { Endpoint::open_zeroed(blocks[0].start(), blocks[0].length(), &options) };
            Ok((opened.map_err(GinError::Endpoint)?, blocks, board))
        });
        // no rank waits for one that has no endpoint
        let agreed = all_have(meeting, opened.is_ok());
        let (mut endpoint, blocks, mut board) = opened?;
        let met = agreed.and_then(|()| {
            let block = (blocks[1].start(), blocks[1].length());
            let mut gathering = Gathering(meeting);
            // SAFETY: fresh pages, which stand until the endpoint is closed (`close`).
            let met = unsafe { Group::open(&mut endpoint, block, &group_options, &mut gathering) };
            met.map_err(GinError::Hosts)
        });
        let shown = met.and_then(|mut group| {
            board.open(&mut group, &mut endpoint, timeout)?;
            Ok(group)
        });
        let group = match shown {
            Ok(group) => group,
            Err(error) => {
                endpoint.close();
                return Err(error);
            }
        };
        Ok(Some(Hosts {
            near,
            jobs: Jobs::new(ranks, JOBS_EACH),
            flights: (0..ranks).map(|_| VecDeque::new()).collect(),
            waiting: (0..ranks).map(|_| None).collect(),
            begun: Vec::from_iter((0..ranks).map(|_| 0)),
            ended: Vec::from_iter((0..ranks).map(|_| 0)),
            open: Some((group, endpoint)),
            board,
            _blocks: blocks,
        }))
    }

    /// Whether a rank is of another host.
    pub fn is_far(&self, rank: usize) -> bool {
        !self.near[rank]
    }

    fn opened(&mut self) -> &mut (Group, Endpoint) {
        self.open.as_mut().expect("closed with the communicator alone")
    }

    /// Makes memory known to the endpoint.
    ///
    /// # Safety
    /// - the memory stands until [`Hosts::forget`] has taken it back.
    pub unsafe fn register(
        &mut self,
        address: u64,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<Far, GinError> {
        let (_, endpoint) = self.opened();
        // SAFETY: by this function's contract.
        let region = unsafe { endpoint.shared.register(address, Bytes::of(bytes), kind) };
        Ok(Far { region: region.map_err(GinError::Register)?, window: None })
    }

    /// Makes a window of memory that is known. Ranks reach it once [`Hosts::exchange_look`] says
    /// so.
    ///
    /// # Safety
    /// - as [`Hosts::register`], of the same memory.
    pub unsafe fn window(
        &mut self,
        far: &mut Far,
        address: u64,
        bytes: usize,
    ) -> Result<(), GinError> {
        let (group, endpoint) = self.opened();
        let place = (far.region, address, bytes as u64);
        // SAFETY: by this function's contract.
        let window = unsafe { group.register(endpoint, place, false) };
        far.window = Some(window.map_err(GinError::Window)?);
        Ok(())
    }

    /// Asks whether all ranks have made their part of a window; moves everything on.
    pub fn exchange_look(&mut self, far: &Far) -> Result<Flushed, GinError> {
        let window = far.window.ok_or(GinError::Window(WindowError::Window))?;
        self.progress();
        let (group, _) = self.opened();
        let inner = group.inner();
        let begun = match inner.exchange_begin(window) {
            Err(WindowError::Again) => return Ok(Flushed::Waiting(0)),
            Err(WindowError::Exchanged) => Ok(()),
            begun => begun,
        };
        begun.and_then(|()| inner.exchange_look(window)).map_err(GinError::Window)
    }

    /// Takes memory back; `false`: something is under way there still.
    pub fn forget(&mut self, far: &mut Far) -> bool {
        self.progress();
        let (group, endpoint) = self.opened();
        if let Some(window) = far.window {
            match group.free(window) {
                Err(WindowError::Again) => return false,
                Ok(()) | Err(_) => far.window = None,
            }
        }
        !matches!(endpoint.shared.deregister(far.region), Err(DeregisterError::Busy))
    }

    /// Whether another operation with a rank may begin.
    pub fn has_room(&self, rank: usize) -> bool {
        self.waiting[rank].is_none()
    }

    /// Begins an operation with `rank`, whose memory stands until it has ended. One of each rank at
    /// a time may wait: for room, for earlier ones that write where it does, and an add for those
    /// of its queue to be issued. A group keeps no order of puts to one place.
    pub fn begin(&mut self, rank: usize, works: Works, pending: Pending) {
        debug_assert!(self.has_room(rank));
        self.begun[rank] += 1;
        let (target, parts) = (Target::of(&works), VecDeque::with_capacity(2));
        let flight = Flight { pending, target, parts, outcome: Ok(()) };
        self.flights[rank].push_back(flight);
        self.waiting[rank] = Some(works);
        self.hand_over(rank);
    }

    /// Issues what waits for `rank`, as far as there is room.
    fn hand_over(&mut self, rank: usize) {
        let Some(works) = &mut self.waiting[rank] else { return };
        let flights = self.flights[rank].make_contiguous();
        let Some((flight, before)) = flights.split_last_mut() else { return };
        let meets =
            |other: &Flight| other.target.zip(flight.target).is_some_and(|(a, b)| a.meets(b));
        if before.iter().any(meets) {
            return;
        }
        if let Some(Work::Add { after, .. }) = &mut works[0] {
            match flight.pending.after(before, &self.jobs) {
                None => return,
                Some(Ok(known)) => *after = Before::Known(known),
                Some(Err(syndrome)) => {
                    flight.outcome = Err(syndrome);
                    self.waiting[rank] = None;
                    return;
                }
            }
        }
        for work in works {
            let Some(it) = *work else { continue };
            let until = match it {
                Work::Put { .. } | Work::Add { .. } => Until::Applied,
                Work::Get { .. } => Until::Local,
            };
            let Some(job) = self.jobs.push(rank as u32, it, until) else { return };
            flight.parts.push_back(job);
            *work = None;
        }
        self.waiting[rank] = None;
        if let Some((group, endpoint)) = &mut self.open {
            self.jobs.issue(group.inner(), endpoint);
        }
    }

    /// Moves everything on; whether anything happened.
    pub fn progress(&mut self) -> bool {
        (0..self.waiting.len()).for_each(|rank| self.hand_over(rank));
        let Some((group, endpoint)) = &mut self.open else { return false };
        let before = group.progress(endpoint);
        let told = self.board.step(group, endpoint);
        let moved = self.jobs.step(group.inner(), endpoint) | told;
        // what was issued just now leaves at once
        let after = moved && group.progress(endpoint);
        before | moved | after
    }

    /// The next operation that has ended.
    pub fn ended(&mut self) -> Option<(Pending, Result<(), Syndrome>)> {
        (0..self.flights.len()).find_map(|rank| self.ended_of(rank))
    }

    fn ended_of(&mut self, rank: usize) -> Option<(Pending, Result<(), Syndrome>)> {
        let waits = self.waiting[rank].is_some();
        let is_last = self.flights[rank].len() == 1;
        let flight = self.flights[rank].front_mut()?;
        while let Some(part) = flight.parts.front() {
            let outcome = self.jobs.outcome(*part)?;
            flight.parts.pop_front();
            flight.outcome = flight.outcome.and(outcome.map_err(syndrome));
        }
        if waits && is_last {
            return None;
        }
        let Flight { pending, outcome, .. } = self.flights[rank].pop_front()?;
        self.ended[rank] += 1;
        // what waits behind a failure of its queue is not issued: no signal may hide it
        let follows =
            self.flights[rank].back_mut().filter(|last| pending.is_of_queue(&last.pending));
        if let (true, Some(last), Err(syndrome)) = (waits, follows, outcome) {
            last.outcome = Err(syndrome);
            self.waiting[rank] = None;
        }
        Some((pending, outcome))
    }

    /// How many operations have begun so far, by rank.
    pub fn begun(&self) -> Vec<u64> {
        self.begun.clone()
    }

    /// Whether all of `begun` has ended.
    pub fn has_ended(&self, begun: &[u64]) -> bool {
        self.ended.iter().zip(begun).all(|(ended, begun)| ended >= begun)
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.has_ended(&self.begun)
    }

    /// Why nothing reaches a rank of another host any more.
    pub fn failure_of(&self, rank: usize) -> Option<RequestError> {
        let (group, _) = self.open.as_ref()?;
        match group.view().failure_of(rank as u32) {
            Err(WindowError::Failed(_, error)) if self.is_far(rank) => Some(error),
            Ok(()) | Err(_) => None,
        }
    }

    /// Tells all ranks that this one has failed.
    pub fn tell_failure(&mut self) {
        self.board.tell(News::Failed);
    }

    /// A rank that has told so.
    pub fn told_failure(&self) -> Option<usize> {
        self.board.told(News::Failed).map(|rank| rank as usize)
    }

    /// How many operations with a rank have not ended.
    pub fn under_way(&self, rank: usize) -> u64 {
        self.begun[rank] - self.ended[rank]
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hosts { near, begun, ended, .. } = self;
        let mut fields = f.debug_struct("Hosts");
        fields.field("near", near).field("begun", begun).field("ended", ended);
        fields.finish_non_exhaustive()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let is_quiet = self.is_quiet();
        if let Some((group, mut endpoint)) = self.open.take() {
            // who aborts leaves operations behind, and does not wait for peers that stand still
            if is_quiet {
                group.close(&mut endpoint);
            }
            endpoint.close();
        }
    }
}

/// What a queue hears of a window's error.
fn syndrome(error: WindowError) -> Syndrome {
    match error {
        WindowError::Failed(..) | WindowError::OutcomeUnknown => Syndrome::PeerLost,
        WindowError::Window
        | WindowError::NotExchanged
        | WindowError::Rank
        | WindowError::Id
        | WindowError::Range(_)
        | WindowError::ReadOnly
        | WindowError::Freed => Syndrome::RemoteAccess,
        WindowError::Buffer(_) => Syndrome::LocalProtection,
        WindowError::Again
        | WindowError::WindowsFull
        | WindowError::Exchanged
        | WindowError::Memory => Syndrome::RemoteOperation,
    }
}
