//! AllGathers of a group: prepared by all ranks together, then carried out without them.

use super::Group;
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span as Time};
use crate::collective::{Algorithm, Plan};
use crate::fabric::MemoryKind;
use crate::host::Endpoint;
use crate::host::gather::board::{Board, RECORD_BYTES};
use crate::host::gather::device::Device;
use crate::host::gather::error::GatherError;
use crate::host::gather::service::Chunks;
use crate::host::gather::team::{self, Share, Team};
use crate::host::gather::told::{Told, teams};
use crate::host::gather::{Key, Parts, release};
use crate::memory::cuda::{Gpu, Library, Place};
use crate::memory::threads;
use crate::provider::copy_engine::imports::{Look, Wanted};
use crate::window::group::Flushed;
use crate::window::{After, Put, WindowError, WindowMemory};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread::yield_now;
use std::time::Duration;
use std::vec::Vec;

/// The place of the shared memory rail's key among those of a region.
const SHM: usize = 0;

/// What all ranks have agreed on.
struct Agreed {
    ranks: Vec<Told>,
    teams: Vec<u32>,
    slot: usize,
}

impl Group {
    /// Prepares an AllGather, or finds the one that was prepared for the same key: all ranks call
    /// this with keys alike, in the same order. `is_kept`: it goes with its window; else it is
    /// there until [`Group::gather_destroy`] was called as often as this.
    ///
    /// *Errors*: [`GatherError`], at all ranks where one of them fails.
    pub fn gather_prepare(
        &mut self,
        endpoint: &mut Endpoint,
        key: Key,
        is_kept: bool,
        timeout: Option<Time>,
    ) -> Result<Handle, GatherError> {
        if let Some(found) = self.gathers.find(&key, is_kept) {
            return Ok(found);
        }
        self.board_open(endpoint, timeout)?;
        let agreed = self.agree(endpoint, &key, timeout)?;
        let algorithm = key.algorithm.unwrap_or_else(|| choice(&agreed.teams));
        let rank = self.inner.rank();
        Plan::new(&agreed.teams, rank, algorithm).map_err(|_| GatherError::Teams)?;
        let mut holds = Vec::new();
        let device = self.device(endpoint, &key, &agreed, (&mut holds, timeout));
        let mut said = [0; RECORD_BYTES];
        said[0] = u8::from(device.is_ok());
        let told = self.talk(endpoint, &said, timeout);
        let made = device.and_then(|mut device| {
            for (rank, record) in told?.iter().enumerate() {
                if record[0] != 1 {
                    return Err(GatherError::Elsewhere(rank as u32));
                }
            }
            if let Some(device) = &mut device {
                device.holds = core::mem::take(&mut holds);
            }
            Ok(device)
        });
        release(endpoint, &mut holds);
        let memory = self.inner.memory(key.window)?;
        let place = Chunks { window: key.window, memory, offset: key.offset };
        let patience_ns = timeout.unwrap_or(self.timeout).0;
        let (teams, slot) = (agreed.teams, agreed.slot);
        let device = made?;
        let parts = Parts { key, rank, algorithm, is_kept, teams, place, device, patience_ns };
        Ok(self.gathers.insert(slot, parts))
    }

    /// Carries out a prepared AllGather with chunks of `bytes`. With memory of a GPU it is put on
    /// the stream, or recorded where that is captured; with memory of the host it has ended on
    /// return.
    ///
    /// # Safety
    /// - `send` stays valid for reads of `bytes`, and unchanged, until the AllGather has ended, and
    ///   whenever a graph that has it is launched;
    /// - `stream` is one of the primary context of the window's GPU.
    pub unsafe fn gather(
        &mut self,
        endpoint: &mut Endpoint,
        request: Handle,
        send: (u64, u64),
        stream: Option<u64>,
        timeout: Option<Time>,
    ) -> Result<(), GatherError> {
        self.gather_check(Some(request))?;
        // SAFETY: this function's contract.
        let ended = unsafe { self.gathers.begin(request, send, stream) }?;
        let Some(ended) = ended else { return Ok(()) };
        let waited = self.wait(endpoint, timeout, |_| {
            let has_ended = ended.load(Ordering::Acquire);
            Ok(if has_ended { Flushed::Done } else { Flushed::Waiting(u32::MAX) })
        });
        if let Err(error) = waited {
            self.gathers.fail(request, error.into());
        }
        self.gathers.failure(request)
    }

    /// An AllGather like those of other libraries, from `send` to all ranks' `receive`, which lies
    /// in the window: prepared when it is first called with that place, length and stream, then
    /// carried out, or recorded where the stream is captured. What was prepared goes with the
    /// window.
    ///
    /// # Safety
    /// - as [`Group::gather`].
    pub unsafe fn all_gather(
        &mut self,
        endpoint: &mut Endpoint,
        (window, receive): (Handle, u64),
        send: (u64, u64),
        stream: Option<u64>,
    ) -> Result<(), GatherError> {
        let start = self.inner.memory(window)?.address;
        let bytes = send.1.checked_mul(u64::from(self.inner.ranks()));
        let bytes = bytes.ok_or(WindowError::Range(0))?;
        let offset = receive.checked_sub(start).ok_or(WindowError::Range(0))?;
        let stream_of_key = stream.unwrap_or(0);
        let (algorithm, team_max) = (None, 0);
        let key = Key { window, offset, bytes, stream: stream_of_key, algorithm, team_max };
        let request = self.gather_prepare(endpoint, key, true, None)?;
        // SAFETY: this function's contract.
        unsafe { self.gather(endpoint, request, send, stream, None) }
    }

    /// Whether a request, or with `None` each of the group, is of use; else why it has failed, also
    /// while a graph was launched.
    pub fn gather_check(&mut self, request: Option<Handle>) -> Result<(), GatherError> {
        match request {
            Some(request) => self.gathers.failure(request)?,
            None => self.gathers.any_failure()?,
        }
        let failed = self.inner.failed();
        failed.map_or(Ok(()), |(rank, error)| Err(GatherError::Failed(rank, error)))
    }

    /// Gives a prepared AllGather up. No stream and no graph uses it any more. Not collective.
    pub fn gather_destroy(&mut self, request: Handle) -> Result<(), GatherError> {
        self.gathers.remove(request)
    }

    /// How many AllGathers are prepared.
    pub fn gather_count(&self) -> usize {
        self.gathers.count()
    }

    /// Makes the memory by which the ranks tell each other, once.
    fn board_open(
        &mut self,
        endpoint: &mut Endpoint,
        timeout: Option<Time>,
    ) -> Result<(), GatherError> {
        if self.gathers.board.is_some() {
            return Ok(());
        }
        let mut board = Board::new(self.inner.ranks() as usize);
        let (address, length) = (board.address(), Bytes(board.length()));
        // SAFETY: the board stays until `Gathers::end` has deregistered it.
        let region = unsafe { endpoint.shared.register(address, length, MemoryKind::Host) };
        board.region = region.map_err(GatherError::Register)?;
        let opened = self.inner.register(board.window_memory()).map_err(GatherError::from);
        let opened = opened.and_then(|window| {
            board.window = window;
            let exchanged = self.exchange(endpoint, window, timeout);
            exchanged.map_err(|error| {
                let _ = self.inner.free(window);
                GatherError::from(error)
            })
        });
        match opened {
            Ok(()) => self.gathers.board = Some(Arc::new(board)),
            // peers may reach it until the group is closed
            Err(error) => {
                core::mem::forget(board);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives a record to all ranks and gets theirs. All ranks do, in the same order.
    fn talk(
        &mut self,
        endpoint: &mut Endpoint,
        record: &[u8; RECORD_BYTES],
        timeout: Option<Time>,
    ) -> Result<Vec<[u8; RECORD_BYTES]>, GatherError> {
        let board = self.gathers.board.clone().ok_or(GatherError::Request)?;
        let (me, ranks) = (self.inner.rank() as usize, self.inner.ranks());
        board.round_begin();
        let (address, length) = board.record_write(record);
        let (offset, word) = (board.record_offset(me), board.round_offset(me));
        for rank in 0..ranks {
            let put = Put { window: board.window, rank, offset, signal: None, counter: None };
            loop {
                // SAFETY: the board's memory, which nobody writes before the next round but one.
                match unsafe { self.put(endpoint, &put, (board.region, address, length)) } {
                    Err(WindowError::Again) => _ = self.progress(endpoint),
                    issued => {
                        issued?;
                        break;
                    }
                };
            }
            loop {
                match self.inner.add((board.window, rank), word, 1, After::All) {
                    Err(WindowError::Again) => _ = self.progress(endpoint),
                    issued => {
                        issued?;
                        break;
                    }
                };
            }
        }
        self.wait(endpoint, timeout, |group| match (board.missing(), group.failed()) {
            (None, _) => Ok(Flushed::Done),
            (Some(_), Some((rank, error))) => Err(WindowError::Failed(rank, error)),
            (Some(rank), None) => Ok(Flushed::Waiting(rank)),
        })?;
        Ok((0..ranks as usize).map(|rank| board.record_read(rank)).collect())
    }

    /// What this rank has to tell of its part.
    fn told(&self, endpoint: &Endpoint, key: &Key) -> Result<Told, GatherError> {
        let memory = self.inner.memory(key.window)?;
        let fits = |length: u64| key.offset <= length && key.bytes <= length - key.offset;
        for rank in 0..self.inner.ranks() {
            let length = self.inner.length(key.window, rank)?;
            if !fits(length) {
                return Err(WindowError::Range(length).into());
            }
        }
        if memory.is_read_only {
            return Err(WindowError::ReadOnly.into());
        }
        if !memory.is_device {
            return Ok(Told::of_host(key, self.gathers.free()));
        }
        let gpus = endpoint.shared.gpus.as_ref().ok_or(WindowError::Memory)?;
        let exporter = gpus.gpus().exporter.get().copied().ok_or(WindowError::Memory)?;
        let WindowMemory { region, address, length, .. } = memory;
        let rail_key = self.regions.key_of(region, address, length, SHM);
        let rail_key = rail_key.map_err(|error| WindowError::Buffer(error.into()))?;
        let node = endpoint.shared.band().map_or(0, |band| band.node_id());
        let told = Told::of_host(key, self.gathers.free());
        Ok(Told {
            is_device: true,
            node,
            exporter,
            region: rail_key.0,
            address: address + key.offset,
            ..told
        })
    }

    /// Tells all ranks of this one's part, and hears of theirs.
    fn agree(
        &mut self,
        endpoint: &mut Endpoint,
        key: &Key,
        timeout: Option<Time>,
    ) -> Result<Agreed, GatherError> {
        let mine = self.told(endpoint, key);
        let record = mine.as_ref().map_or([0; RECORD_BYTES], Told::to_bytes);
        let all = self.talk(endpoint, &record, timeout)?;
        let mine = mine?;
        let mut ranks = Vec::with_capacity(all.len());
        for (rank, record) in all.iter().enumerate() {
            let told = Told::from_bytes(record).ok_or(GatherError::Elsewhere(rank as u32))?;
            if told.call != mine.call {
                return Err(GatherError::Mismatch(rank as u32));
            }
            ranks.push(told);
        }
        let free = ranks.iter().fold(u64::MAX, |free, told| free & told.free);
        if free == 0 {
            return Err(GatherError::Full);
        }
        let (teams, slot) = (teams(&ranks, key.team_max), free.trailing_zeros() as usize);
        if let Some(board) = &self.gathers.board {
            board.clear(slot);
        }
        Ok(Agreed { ranks, teams, slot })
    }

    /// What this rank's stream needs: words that it shares with its mates, and their memory.
    fn device(
        &mut self,
        endpoint: &mut Endpoint,
        key: &Key,
        agreed: &Agreed,
        (holds, timeout): (&mut Vec<u32>, Option<Time>),
    ) -> Result<Option<Device>, GatherError> {
        let me = self.inner.rank() as usize;
        let gpu = self.gpu(key);
        let team = self.team(endpoint, agreed, gpu.as_ref().ok().and_then(Option::as_ref), timeout);
        let Some(gpu) = gpu? else { return team.map(|_| None) };
        let team = team?.ok_or(GatherError::Share)?;
        team.clear(agreed.slot, me as u32);
        let is_mate = |rank: &usize| *rank != me && agreed.teams[*rank] == agreed.teams[me];
        let mates: Vec<usize> = (0..agreed.teams.len()).filter(is_mate).collect();
        let number = gpu.device() as u32;
        let gpus = endpoint.shared.gpus.as_ref().map(|gpus| Arc::clone(gpus.gpus()));
        let gpus = gpus.ok_or(WindowError::Memory)?;
        let mut peers: Vec<u64> = agreed.teams.iter().map(|_| 0).collect();
        for rank in &mates {
            let Told { exporter, region, .. } = agreed.ranks[*rank];
            let wanted = Wanted { exporter, key: region, gpu: number };
            let entry = gpus.imports.hold(&wanted);
            holds.push(entry.ok_or(GatherError::Map(*rank as u32, -libc::ENOSPC))?);
        }
        for (rank, entry) in mates.iter().zip(holds.iter()) {
            self.wait(endpoint, timeout, |_| match gpus.imports.look(*entry) {
                Look::Pending => Ok(Flushed::Waiting(*rank as u32)),
                Look::Ready(_) | Look::Failed(_) => Ok(Flushed::Done),
            })?;
            peers[*rank] = match gpus.imports.look(*entry) {
                Look::Ready(it) => it.ours + (agreed.ranks[*rank].address - it.theirs),
                Look::Failed(code) => return Err(GatherError::Map(*rank as u32, code)),
                Look::Pending => return Err(GatherError::Map(*rank as u32, 0)),
            };
        }
        Ok(Some(Device::new(team, key.stream, peers)))
    }

    /// The GPU of a window; `None`: its memory is the host's.
    fn gpu(&self, key: &Key) -> Result<Option<Arc<Gpu>>, GatherError> {
        let memory = self.inner.memory(key.window)?;
        if !memory.is_device {
            return Ok(None);
        }
        let library = Library::load().map_err(|_| WindowError::Memory)?;
        match Place::of(library, memory.address)? {
            Place::Device(number) => Ok(Some(Arc::new(Gpu::at(library, number)?))),
            Place::Host | Place::Pinned | Place::Managed => Err(WindowError::Memory.into()),
        }
    }

    /// The words of this rank's team: those that it has, or new ones where a mate has none.
    fn team(
        &mut self,
        endpoint: &mut Endpoint,
        agreed: &Agreed,
        gpu: Option<&Arc<Gpu>>,
        timeout: Option<Time>,
    ) -> Result<Option<Arc<Team>>, GatherError> {
        let (teams, me) = (&agreed.teams, self.inner.rank());
        let known = gpu.and_then(|gpu| {
            let is_it = |team: &&Arc<Team>| team.is(teams, gpu.device());
            self.gathers.teams.iter().find(is_it).cloned()
        });
        let listener = match (gpu, &endpoint.shared.gpus) {
            (Some(_), Some(gpus)) => Some(team::listen(gpus.trust())),
            (Some(_), None) | (None, _) => None,
        };
        let mut record = [0; RECORD_BYTES];
        record[0] = u8::from(known.is_none());
        if let Some(Ok(listener)) = &listener {
            record[1..][..listener.handle().len()].copy_from_slice(listener.handle());
        }
        let all = self.talk(endpoint, &record, timeout)?;
        let (Some(gpu), Some(listener)) = (gpu, listener) else { return Ok(None) };
        let members: Vec<usize> =
            (0..teams.len()).filter(|rank| teams[*rank] == teams[me as usize]).collect();
        if let (Some(known), true) = (known, members.iter().all(|rank| all[*rank][0] == 0)) {
            return Ok(Some(known));
        }
        let place = members.iter().position(|rank| *rank == me as usize).unwrap_or(0);
        let mut first = [0; _];
        first.copy_from_slice(&all[members[0]][1..][..128]);
        let share = Share {
            listener: listener?,
            first,
            place: (place, members.len()),
            ranks: teams.len() as u32,
            patience: Duration::from_nanos(timeout.unwrap_or(self.timeout).0),
        };
        // in a thread of its own: mates may need this rank's progress meanwhile
        let (sender, receiver) = channel();
        let started = threads::start("crosstie-gather", move || {
            let _ = sender.send(team::share(&share)); // who waits for it is below
        });
        started.map_err(GatherError::System)?;
        let memory = loop {
            match receiver.try_recv() {
                Ok(shared) => break shared?,
                Err(TryRecvError::Empty) => _ = self.progress(endpoint),
                Err(TryRecvError::Disconnected) => return Err(GatherError::Share),
            }
            yield_now();
        };
        let team = Arc::new(Team::new(gpu, memory, (teams, me))?);
        self.gathers.teams.retain(|team| !team.is(teams, gpu.device()));
        self.gathers.teams.push(Arc::clone(&team));
        Ok(Some(team))
    }
}

/// The schedule where the caller does not say.
fn choice(teams: &[u32]) -> Algorithm {
    let can = Plan::new(teams, 0, Algorithm::Pipeline);
    match can.is_ok_and(|plan| plan.has_strangers() && plan.mates().next().is_some()) {
        true => Algorithm::Pipeline,
        false => Algorithm::Direct,
    }
}
