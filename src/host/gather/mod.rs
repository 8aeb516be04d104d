//! AllGathers that are prepared once and carried out often, over windows of a group.
//! `doc/collective.md` is the guide; the schedules are in [`crate::collective`].
//!
//! - [`board`]: host memory by which the ranks tell each other
//! - [`team`]: words that streams of one host share
//! - [`device`]: what a stream does
//! - [`service`]: what the thread that makes progress does
//!
//! `host/group/gather.rs` has the calls that wait.

pub mod board;
pub mod device;
pub mod error;
pub mod service;
pub mod team;
pub mod told;

use crate::base::slab::Handle;
use crate::collective::{Algorithm, Plan};
use crate::host::Endpoint;
use crate::host::log::event::tell;
use crate::host::log::gather::GatherEvent;
use crate::memory::probe::clock_ns;
use crate::window::group;
use board::{Board, SLOTS};
use core::sync::atomic::{AtomicBool, Ordering};
use device::{Call, Device};
use error::GatherError;
use service::{Chunks, Service, Step};
use std::sync::Arc;
use std::vec::Vec;
use team::Team;

/// Which AllGather: those alike are one request.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Key {
    /// The window.
    pub window: Handle,
    /// Where the first chunk begins in every rank's part, in bytes.
    pub offset: u64,
    /// Room for the chunks of all ranks, in bytes.
    pub bytes: u64,
    /// The program's stream, as the driver names it; not looked at for memory of the host.
    pub stream: u64,
    /// Its schedule; `None`: the pipeline where several ranks of each host reach each other's
    /// memory and there are several hosts, else the direct one.
    pub algorithm: Option<Algorithm>,
    /// Most ranks of one host that reach each other's memory; 0: all.
    pub team_max: u32,
}

/// A prepared AllGather.
#[derive(Debug)]
pub struct Request {
    /// What it was made for.
    pub key: Key,
    /// This use of its slot.
    generation: u32,
    /// How often it was prepared and not destroyed; 0: it goes with its window.
    uses: u32,
    rank: u32,
    algorithm: Algorithm,
    teams: Vec<u32>,
    place: Chunks,
    service: Service,
    /// None: the memory is the host's.
    device: Option<Device>,
    patience_ns: u64,
    /// Of memory of the host: the run has ended.
    has_ended: Arc<AtomicBool>,
    failure: Option<GatherError>,
}

/// What a request is made of.
#[derive(Debug)]
pub struct Parts {
    /// What it is made for.
    pub key: Key,
    /// This rank.
    pub rank: u32,
    /// The schedule.
    pub algorithm: Algorithm,
    /// It goes with its window, and is destroyed by nobody.
    pub is_kept: bool,
    /// The team of each rank.
    pub teams: Vec<u32>,
    /// Where the chunks lie.
    pub place: Chunks,
    /// None: the memory is the host's.
    pub device: Option<Device>,
    /// How long one run may take, in nanoseconds.
    pub patience_ns: u64,
}

/// All that a group has of AllGathers.
#[derive(Debug, Default)]
pub struct Gathers {
    /// Made with the first request.
    pub board: Option<Arc<Board>>,
    /// Teams that this rank was ever in.
    pub teams: Vec<Arc<Team>>,
    requests: Vec<Option<Request>>,
    generations: u32,
    live: usize,
    /// What is held of peers' memory and was of requests that are gone.
    let_go: Vec<u32>,
}

impl Request {
    /// Its plan. *Panics*: never, since it was made of one.
    fn plan(&self) -> Plan<'_> {
        Plan::new(&self.teams, self.rank, self.algorithm).expect("checked when it was made")
    }

    /// Checks a call: what is sent, and how long a chunk is.
    fn check(&self, send: u64, bytes: u64) -> Result<Call, GatherError> {
        let ranks = self.teams.len() as u64;
        let all = bytes.checked_mul(ranks).filter(|all| *all <= self.key.bytes);
        let all = all.ok_or(GatherError::Bytes(self.key.bytes))?;
        let receive = self.place.memory.address + self.place.offset;
        let own = receive + u64::from(self.rank) * bytes;
        let end = send.checked_add(bytes).ok_or(GatherError::Overlap)?;
        let overlaps = send < receive + all && receive < end;
        if overlaps && send != own && bytes != 0 {
            return Err(GatherError::Overlap);
        }
        Ok(Call { send, receive, bytes })
    }

    fn fail(&mut self, error: GatherError) {
        if self.failure.is_none() {
            self.failure = Some(error);
            tell(&GatherEvent::Failed { rank: self.rank, why: &error });
        }
        self.has_ended.store(true, Ordering::Release);
    }

    /// Why it is of no use, if it is not: it fails with the first mate that has given it up.
    fn usable(&mut self, slot: usize) -> Result<(), GatherError> {
        if self.failure.is_none()
            && let Some(device) = &self.device
            && let Some(rank) = device.given_up(slot, self.plan())
        {
            self.fail(GatherError::Elsewhere(rank));
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Goes on; whether anything happened.
    fn step(
        &mut self,
        slot: usize,
        board: &Board,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> bool {
        if self.usable(slot).is_err() {
            self.let_go(slot);
            return false;
        }
        let rank = self.rank;
        if let Some((peer, error)) = group.failed() {
            // at rest it is of no matter: the peer may have closed its group
            if self.is_under_way(slot) {
                self.fail(GatherError::Failed(peer, error));
            }
            return self.failure.is_some();
        }
        let go = self.device.as_ref().and_then(|device| device.go(slot, rank));
        if let Some(bytes) = go {
            self.service.begin(bytes);
        }
        let step = self.serve(board, group, endpoint);
        match step {
            Ok(Step::Waits) => {}
            Ok(Step::Moved) => {}
            Ok(Step::Landed(landing)) => self.landed(slot, landing),
            Ok(Step::Ended) => {
                self.landed(slot, self.plan().landings() + 1);
                self.has_ended.store(true, Ordering::Release);
            }
            Err(error) => self.fail(error),
        }
        let is_late = self.device.as_mut().is_some_and(|device| {
            let plan = Plan::new(&self.teams, rank, self.algorithm).expect("as `plan` says");
            device.is_late(slot, plan, clock_ns(), self.patience_ns)
        });
        if is_late {
            self.fail(GatherError::Late);
        }
        go.is_some() || step != Ok(Step::Waits)
    }

    fn serve(
        &mut self,
        board: &Board,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> Result<Step, GatherError> {
        let plan = Plan::new(&self.teams, self.rank, self.algorithm);
        let plan = plan.map_err(|_| GatherError::Teams)?;
        self.service.step(plan, board, group, endpoint)
    }

    fn is_under_way(&self, slot: usize) -> bool {
        let on_stream = |device: &Device| device.is_under_way(slot, self.plan());
        self.service.is_running() || self.device.as_ref().is_some_and(on_stream)
    }

    fn landed(&self, slot: usize, landing: u32) {
        if let Some(device) = &self.device {
            device.landed(slot, self.rank, landing);
        }
    }

    fn let_go(&self, slot: usize) {
        if let Some(device) = &self.device {
            if self.failure.is_some() {
                device.give_up(slot, self.plan()); // before anything that the stream copies then
            }
            device.let_go(slot, self.plan());
        }
    }

    /// Whether a stream would wait for a thread that sleeps: chunks go through this process.
    fn is_served(&self) -> bool {
        self.failure.is_none() && self.device.is_some() && self.plan().has_strangers()
    }
}

impl Gathers {
    /// A bit for each slot that is free.
    pub fn free(&self) -> u64 {
        let taken = self.requests.iter().enumerate().filter(|(_, request)| request.is_some());
        taken.fold(u64::MAX, |free, (slot, _)| free & !(1 << slot))
    }

    /// The request of a key, counted once more unless it goes with its window.
    pub fn find(&mut self, key: &Key, is_kept: bool) -> Option<Handle> {
        let is_it = |request: &&mut Request| {
            request.key == *key && request.failure.is_none() && (request.uses == 0) == is_kept
        };
        let mut all = self.requests.iter_mut().enumerate();
        let (slot, request) = all.find_map(|(slot, request)| {
            request.as_mut().filter(is_it).map(|request| (slot, request))
        })?;
        request.uses += u32::from(!is_kept);
        Some(Handle { index: slot as u32, generation: request.generation })
    }

    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.live
    }

    /// Makes a request in a slot that is free at all ranks.
    pub fn insert(&mut self, slot: usize, parts: Parts) -> Handle {
        assert!(slot < SLOTS);
        while self.requests.len() <= slot {
            self.requests.push(None);
        }
        self.generations += 2;
        let generation = self.generations | 1;
        let Parts { key, rank, algorithm, is_kept, teams, place, device, patience_ns } = parts;
        let service = Service::new(slot, place, teams.len());
        self.requests[slot] = Some(Request {
            key,
            generation,
            uses: u32::from(!is_kept),
            rank,
            algorithm,
            teams,
            place,
            service,
            device,
            patience_ns,
            has_ended: Arc::default(),
            failure: None,
        });
        self.live += 1;
        Handle { index: slot as u32, generation }
    }

    /// A request.
    fn get(&mut self, request: Handle) -> Result<&mut Request, GatherError> {
        let row = self.requests.get_mut(request.index as usize).and_then(Option::as_mut);
        let row = row.filter(|row| row.generation == request.generation);
        row.ok_or(GatherError::Request)
    }

    /// Why a request is of no use any more, if it is not.
    pub fn failure(&mut self, request: Handle) -> Result<(), GatherError> {
        let slot = request.index as usize;
        self.get(request)?.usable(slot)
    }

    /// The first failure of any request.
    pub fn any_failure(&mut self) -> Result<(), GatherError> {
        for (slot, request) in self.requests.iter_mut().enumerate() {
            request.as_mut().map_or(Ok(()), |request| request.usable(slot))?;
        }
        Ok(())
    }

    /// Begins an AllGather with chunks of `bytes`. With memory of a GPU it is on the stream then.
    /// With memory of the host, the result says when it has ended.
    ///
    /// # Safety
    /// - `send` stays valid for reads of `bytes`, and unchanged, until the AllGather has ended.
    pub unsafe fn begin(
        &mut self,
        request: Handle,
        (send, bytes): (u64, u64),
        stream: Option<u64>,
    ) -> Result<Option<Arc<AtomicBool>>, GatherError> {
        let slot = request.index as usize;
        let request = self.get(request)?;
        request.usable(slot)?;
        let is_its = match &request.device {
            Some(device) => stream == Some(device.stream),
            None => stream.is_none_or(|stream| stream == 0),
        };
        if !is_its {
            return Err(GatherError::Stream);
        }
        let call = request.check(send, bytes)?;
        if bytes == 0 {
            return Ok(None);
        }
        if let Some(device) = &mut request.device {
            let is_recorded = device.is_recorded()?;
            let plan = Plan::new(&request.teams, request.rank, request.algorithm);
            let plan = plan.map_err(|_| GatherError::Teams)?;
            let posted = device.post(slot, plan, call, is_recorded);
            if let Err(error) = posted {
                request.fail(error);
            }
            return posted.map(|()| None);
        }
        let own = request.place.offset + u64::from(request.rank) * bytes;
        if send != request.place.memory.address + own {
            // SAFETY: the caller's bytes, by this function's contract.
            let from = unsafe { crate::window::Span::new(send, bytes) };
            request.place.memory.bytes.part(own, bytes).copy_from(from);
        }
        request.has_ended.store(request.teams.len() == 1, Ordering::Relaxed);
        if request.teams.len() > 1 {
            request.service.begin(bytes);
        }
        Ok(Some(Arc::clone(&request.has_ended)))
    }

    /// A run took too long for its caller.
    pub fn fail(&mut self, request: Handle, error: GatherError) {
        if let Ok(request) = self.get(request) {
            request.fail(error);
        }
    }

    /// Destroys a request, or takes one use of it back.
    pub fn remove(&mut self, request: Handle) -> Result<(), GatherError> {
        let row = self.get(request)?;
        if row.uses == 0 {
            return Err(GatherError::Request); // it goes with its window
        }
        row.uses -= 1;
        if row.uses == 0 {
            self.take(request.index as usize);
        }
        Ok(())
    }

    fn take(&mut self, slot: usize) {
        let Some(row) = self.requests[slot].take() else { return };
        row.let_go(slot);
        self.live -= 1;
        self.let_go.extend(row.device.map_or(Vec::new(), |device| device.holds));
    }

    /// A window was freed: its requests are of no use any more.
    pub fn window_gone(&mut self, window: Handle) {
        for slot in 0..self.requests.len() {
            let Some(request) = &mut self.requests[slot] else { continue };
            if request.key.window == window {
                request.failure = request.failure.or(Some(GatherError::Request));
                if request.uses == 0 {
                    self.take(slot);
                }
            }
        }
    }

    /// Goes on with all; whether anything happened, or a stream may need this thread soon.
    pub fn step(
        &mut self,
        group: &mut group::Group<'static, Handle>,
        endpoint: &mut Endpoint,
    ) -> bool {
        release(endpoint, &mut self.let_go);
        let Some(board) = &self.board else { return false };
        let mut any = false;
        for (slot, request) in self.requests.iter_mut().enumerate() {
            if let Some(request) = request {
                any |= request.step(slot, board, group, endpoint) | request.is_served();
            }
        }
        any
    }

    /// The group is closed, and its connections are: what peers may still touch stays.
    pub fn end(&mut self, endpoint: &mut Endpoint) {
        (0..self.requests.len()).for_each(|slot| self.take(slot));
        release(endpoint, &mut self.let_go);
        let Some(board) = self.board.take() else { return };
        if endpoint.shared.deregister(board.region).is_err() {
            core::mem::forget(board);
        }
    }
}

/// Gives back what is held of peers' memory.
pub fn release(endpoint: &Endpoint, holds: &mut Vec<u32>) {
    for entry in holds.drain(..) {
        if let Some(gpus) = &endpoint.shared.gpus {
            gpus.gpus().imports.release(entry);
        }
    }
}
