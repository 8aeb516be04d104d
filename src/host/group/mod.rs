//! A group of ranks over an endpoint: how the ranks meet, and calls that wait. What a group does is
//! in [`crate::window`].

pub mod board;
pub mod error;
mod gather;
pub(super) mod gpu_adds;
pub mod helper;
pub mod jobs;
mod meeting;
pub mod nic_count;
pub mod seen;

use super::Endpoint;
use super::endpoint::Closing;
use super::gather::Gathers;
use super::machine::each;
use crate::base::carve::{BLOCK_ALIGN, Carver};
use crate::base::slab::Handle;
use crate::base::units::{Bytes, Span as Time};
use crate::connect::ListenerId;
use crate::fabric::MemoryKind;
use crate::memory::probe::clock_ns;
use crate::memory::rights;
use crate::transport::mr::Held;
use crate::transport::request::RequestIdError;
use crate::transport::{DataMrs, Incoming, Outcome, Outgoing, RequestId, SubmitError};
use crate::window::group::Flushed;
use crate::window::{
    Add, AddError, Carrier, Comparison, Limits, Links, Local, Put, Span, Ticket, WindowError,
    WindowMemory, group,
};
pub use crate::wire::handle::HANDLE_BYTES;
pub use error::{BootstrapError, GroupError, WaitError};
pub use helper::Helper;
pub use meeting::Bootstrap;
use meeting::{Acquaintance, CLOSING, Meeting, close_all};
pub use nic_count::NicCountError;
use nic_count::{COUNTS_MAX, NicCount};
pub use seen::Abort;
use seen::{Kind, Mirror, Seen};
use std::sync::Arc;
use std::thread::yield_now;
use std::vec::Vec;

/// How long a wait takes at most where its caller does not say.
pub const TIMEOUT: Time = Time::millis(30_000);
/// Looks of a wait before it offers the processor to others with each.
const SPINS: u32 = 32;
/// Looks between two looks at the clock.
const LOOKS_EACH: u32 = 64;
/// Looks before it sleeps.
const LOOKS: u32 = 4_000;
/// How long it sleeps at a time at most: an abort is seen by then.
const SLEEP_MS: i32 = 10;

/// What a group is opened with.
#[derive(Copy, Clone, Debug)]
pub struct GroupOptions {
    /// The capacities, and the number of ranks.
    pub limits: Limits,
    /// This rank.
    pub rank: u32,
    /// How long opening, and each wait that does not say, may take.
    pub timeout: Time,
}

impl GroupOptions {
    /// Bytes of the block that a group is opened in, a multiple of 64.
    pub const fn bytes(&self) -> usize {
        self.limits.frames_bytes() + self.limits.state_bytes::<Handle>()
    }
}

impl Carrier for Endpoint {
    type Link = Handle;

    #[inline]
    fn isend(&mut self, link: Handle, message: Outgoing) -> Result<RequestId, SubmitError> {
        Endpoint::isend(self, link, message)
    }

    #[inline]
    fn irecv(&mut self, link: Handle, rooms: &[Incoming]) -> Result<RequestId, SubmitError> {
        Endpoint::irecv(self, link, rooms)
    }

    #[inline(always)]
    fn test(&mut self, request: RequestId) -> Result<Option<Outcome>, RequestIdError> {
        each!(&mut self.machine, endpoint => endpoint.test(request))
    }

    #[inline]
    fn locate(&self, region: Handle, address: u64, length: u64) -> Result<bool, SubmitError> {
        each!(&self.machine, endpoint => endpoint.locate(region, address, length))
    }

    fn reaches_device(&self, link: Handle) -> bool {
        let Some(index) = self.used(link) else { return false };
        each!(&self.machine, endpoint => endpoint.reaches_device(index))
    }

    fn word_add(&mut self, region: Handle, address: u64, value: u64) -> Result<Add, AddError> {
        self.gpu_adds.ask(region, address, value)
    }

    fn word_added(&mut self, add: Add) -> Result<bool, AddError> {
        self.gpu_adds.has_ended(add)
    }

    fn stop(&mut self, link: Handle) -> bool {
        self.connection_stop(link) != Closing::Again
    }
}

/// A group, in a block of the caller's memory. Its endpoint is given with each call: the same one,
/// on the endpoint's thread.
#[derive(Debug)]
pub struct Group {
    inner: group::Group<'static, Handle>,
    /// Four for each rank, in the order of [`Links`].
    links: Vec<Handle>,
    /// The region of the block.
    memory: Handle,
    /// Regions that windows lie in, which must not be deregistered before those are freed.
    held: Vec<(Handle, Held)>,
    regions: DataMrs<'static>,
    /// Counts of NICs that have not ended.
    counts: Vec<NicCount>,
    gathers: Gathers,
    timeout: Time,
    abort: Abort,
    /// What is known of queues that kernels write, where there are.
    seen: Option<Arc<Seen>>,
}

impl Group {
    /// Opens a group with the other ranks: every rank does. Returns when all have met.
    ///
    /// # Safety
    /// - `block` is aligned to 64 bytes and valid for reads and writes of `length` bytes until
    ///   [`Group::close`] has returned, or the endpoint is closed, and nobody else touches it.
    pub unsafe fn open(
        endpoint: &mut Endpoint,
        block: (*mut u8, usize),
        options: &GroupOptions,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Group, GroupError> {
        // SAFETY: this function's contract.
        unsafe { Group::open_by(endpoint, block, options, Acquaintance::Bootstrap(bootstrap)) }
    }

    /// [`Group::open`] of ranks that have each other's handles: `listener` is this rank's, which
    /// the caller closes, and `handles` are those of all ranks, in their order.
    ///
    /// # Safety
    /// - as [`Group::open`].
    pub unsafe fn open_listening(
        endpoint: &mut Endpoint,
        block: (*mut u8, usize),
        options: &GroupOptions,
        (listener, handles): (ListenerId, &[[u8; HANDLE_BYTES]]),
    ) -> Result<Group, GroupError> {
        if handles.len() != options.limits.ranks as usize {
            return Err(GroupError::Limits);
        }
        let known = Acquaintance::Handles(listener, handles);
        // SAFETY: this function's contract.
        unsafe { Group::open_by(endpoint, block, options, known) }
    }

    /// # Safety
    /// - as [`Group::open`].
    unsafe fn open_by(
        endpoint: &mut Endpoint,
        (block, length): (*mut u8, usize),
        options: &GroupOptions,
        acquaintance: Acquaintance<'_>,
    ) -> Result<Group, GroupError> {
        let limits = options.limits;
        if limits.check().is_err() || options.rank >= limits.ranks {
            return Err(GroupError::Limits);
        }
        if length < options.bytes() || !(block as usize).is_multiple_of(BLOCK_ALIGN) {
            return Err(GroupError::Storage);
        }
        let frames_bytes = limits.frames_bytes();
        let address = block.expose_provenance() as u64;
        let deadline_ns = clock_ns().saturating_add(options.timeout.0);
        // SAFETY: the block is the group's until it is closed, which deregisters it first.
        let registered = unsafe {
            endpoint.shared.register(address, Bytes::of(options.bytes()), MemoryKind::Host)
        };
        let region = registered.map_err(GroupError::Register)?;
        // SAFETY: as above; peers reach it through messages alone.
        let frames = unsafe { Span::new(address, frames_bytes as u64) };
        let who = (options.rank, &limits);
        let meeting = Meeting::new(endpoint, acquaintance, who, (frames, region), deadline_ns);
        let links = match meeting.meet() {
            Ok(links) => links,
            Err(error) => {
                let _ = endpoint.shared.deregister(region);
                return Err(error);
            }
        };
        // receives of frames are always posted
        for link in links.iter().flat_map(|links| [links.frames_out, links.frames_in]) {
            endpoint.standing_set(link);
        }
        // SAFETY: the rest of the block, which is long enough (checked above) and the caller's for
        // as long as needed.
        let mut carver =
            unsafe { Carver::new(block.add(frames_bytes), limits.state_bytes::<Handle>()) };
        let mut all: Vec<Handle> = links.iter().flat_map(every_link).collect();
        let each = |rank: u32| links[rank as usize];
        let opened = group::Group::open(&mut carver, limits, options.rank, (frames, region), each);
        let mut inner = opened.map_err(|_| GroupError::Storage)?;
        if let Err(WindowError::Failed(rank, error)) = inner.begin(endpoint) {
            let deadline_ns = clock_ns().saturating_add(CLOSING.0);
            close_all(endpoint, &mut all, Endpoint::connection_stop, deadline_ns);
            let _ = endpoint.shared.deregister(region);
            return Err(GroupError::Failed(rank, error));
        }
        let (timeout, abort) = (options.timeout, Abort::default());
        let counts = Vec::with_capacity(COUNTS_MAX);
        let held = Vec::with_capacity(limits.windows_max as usize);
        let regions = endpoint.shared.regions;
        let gathers = Gathers::default();
        Ok(Group {
            inner,
            links: all,
            memory: region,
            held,
            regions,
            counts,
            gathers,
            timeout,
            abort,
            seen: None,
        })
    }

    /// The group without waits: what is issued here does not wait.
    pub fn inner(&mut self) -> &mut group::Group<'static, Handle> {
        &mut self.inner
    }

    /// The group without waits, to be read.
    pub fn view(&self) -> &group::Group<'static, Handle> {
        &self.inner
    }

    /// Closes the group. What was issued leaves first, within the group's timeout; flush to know
    /// that it has taken effect. Peers hear what of theirs has. Windows end with it. Whether their
    /// memory, and the block, are the caller's again: `false` where a rail that nothing can stop
    /// may still touch them, until the endpoint is closed.
    pub fn close(mut self, endpoint: &mut Endpoint) -> bool {
        let deadline_ns = clock_ns().saturating_add(self.timeout.0);
        self.inner.tell_all_applied();
        while self.inner.is_unsent() && clock_ns() < deadline_ns {
            self.progress(endpoint);
        }
        let deadline_ns = clock_ns().saturating_add(CLOSING.0);
        close_all(endpoint, &mut self.links, Endpoint::connection_close, deadline_ns);
        while !endpoint.gpu_adds.is_idle() && clock_ns() < deadline_ns {
            endpoint.gpu_adds.step();
        }
        self.gathers.end(endpoint);
        self.held.drain(..).for_each(|(_, held)| self.regions.let_go(held));
        endpoint.shared.deregister(self.memory).is_ok()
    }

    /// Moves everything on that can move, of the endpoint and of the group. Whether anything
    /// happened at the endpoint.
    #[inline]
    pub fn progress(&mut self, endpoint: &mut Endpoint) -> bool {
        self.inner.send(endpoint);
        let progress = endpoint.progress();
        let has_added = endpoint.gpu_adds.step();
        self.inner.step(endpoint);
        if !self.counts.is_empty() {
            self.counts_step(endpoint);
        }
        let is_gathering = self.gathers.step(&mut self.inner, endpoint);
        endpoint.hand_over();
        self.carry();
        progress.events != 0 || has_added || is_gathering
    }

    /// Shares its windows' words with kernels, and aborts their waits with its own.
    pub fn see(&mut self, seen: &Arc<Seen>) {
        self.abort.tell(seen.states());
        self.seen = Some(seen.clone());
    }

    /// Lets kernels see what the group's own operations have added.
    #[inline]
    fn carry(&self) {
        let Some(seen) = &self.seen else { return };
        seen.carry(|window, kind, id| match kind {
            Kind::Signal => self.inner.signal_read(window, id).ok(),
            Kind::Counter => self.inner.counter_read(window, id).ok(),
        });
    }

    fn mirror(&self, window: Handle) -> Option<Arc<Mirror>> {
        self.seen.as_ref()?.mirror(window)
    }

    /// A signal of this rank: the sum of what all ranks have added, by kernels too.
    pub fn signal_read(&self, window: Handle, id: u16) -> Result<u64, WindowError> {
        let table = self.inner.signal_read(window, id)?;
        Ok(self.mirror(window).map_or(table, |it| it.sum(Kind::Signal, id, table)))
    }

    /// A counter of this rank, with what kernels have counted.
    pub fn counter_read(&self, window: Handle, id: u16) -> Result<u64, WindowError> {
        let table = self.inner.counter_read(window, id)?;
        Ok(self.mirror(window).map_or(table, |it| it.sum(Kind::Counter, id, table)))
    }

    /// Sets a signal of this rank to zero; see [`group::Group::signal_reset`].
    pub fn signal_reset(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        self.inner.signal_reset(window, id)?;
        self.mirror(window).into_iter().for_each(|it| it.reset(Kind::Signal, id));
        Ok(())
    }

    /// Sets a counter of this rank to zero; see [`group::Group::counter_reset`].
    pub fn counter_reset(&mut self, window: Handle, id: u16) -> Result<(), WindowError> {
        self.inner.counter_reset(window, id)?;
        self.mirror(window).into_iter().for_each(|it| it.reset(Kind::Counter, id));
        Ok(())
    }

    /// What ends this group's waits, for another thread.
    pub fn abort(&self) -> Abort {
        self.abort.clone()
    }

    /// Waits until `look` says `Done`. `timeout`: `None` is that of the group.
    pub fn wait(
        &mut self,
        endpoint: &mut Endpoint,
        timeout: Option<Time>,
        mut look: impl FnMut(&mut group::Group<'static, Handle>) -> Result<Flushed, WindowError>,
    ) -> Result<(), WaitError> {
        let mut looks = 0;
        let mut deadline_ns = 0;
        loop {
            let waiting = match look(&mut self.inner) {
                Ok(Flushed::Done) => return Ok(()),
                Ok(Flushed::Waiting(rank)) => (rank < self.inner.ranks()).then_some(rank),
                Err(WindowError::Again) => None,
                Err(error) => return Err(error.into()),
            };
            if self.abort.is_set() {
                return Err(WaitError::Aborted);
            }
            self.progress(endpoint);
            looks += 1;
            if looks % LOOKS_EACH == 0 || looks > SPINS {
                let now = clock_ns();
                if deadline_ns == 0 {
                    deadline_ns = now.saturating_add(timeout.unwrap_or(self.timeout).0);
                } else if now >= deadline_ns {
                    return Err(WaitError::Timeout(waiting));
                }
            }
            if looks > LOOKS {
                match endpoint.wait_arm() {
                    true => doze(endpoint.shared.wait_fd()),
                    false => yield_now(),
                }
            } else if looks > SPINS {
                yield_now();
            }
        }
    }

    /// Exchanges a window with all ranks. After a timeout it can be called again, and goes on.
    pub fn exchange(
        &mut self,
        endpoint: &mut Endpoint,
        window: Handle,
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        let mut has_begun = false;
        self.wait(endpoint, timeout, |group| {
            if !has_begun {
                group.exchange_begin(window)?;
                has_begun = true;
            }
            group.exchange_look(window)
        })
    }

    /// Makes a window of registered memory. `ReadOnly`: this process may not write to all of the
    /// memory, and the window is not read-only.
    ///
    /// # Safety
    /// - the memory stays valid for reads and writes until the window was freed, and who else
    ///   touches it expects that peers do.
    pub unsafe fn register(
        &mut self,
        endpoint: &mut Endpoint,
        (region, address, length): (Handle, u64, u64),
        is_read_only: bool,
    ) -> Result<Handle, WindowError> {
        let located = Carrier::locate(endpoint, region, address, length);
        let is_device = located.map_err(WindowError::Buffer)?;
        if !(is_device || is_read_only || rights::is_writable(address, length)) {
            return Err(WindowError::ReadOnly);
        }
        // SAFETY: this function's contract; where it is a GPU's, the span is not used.
        let bytes = unsafe { Span::new(address, length) };
        let memory = WindowMemory { region, address, length, is_device, is_read_only, bytes };
        if is_device {
            let is_live = |region| self.regions.range(region).is_some();
            let prepared = endpoint.gpu_adds.prepare(region, address, is_live);
            prepared.map_err(|_| WindowError::Memory)?;
        }
        let window = self.inner.register(memory)?;
        let held = self.regions.hold(region, address, length);
        let held = held.map_err(|error| WindowError::Buffer(error.into()))?;
        self.held.push((window, held));
        Ok(window)
    }

    /// Gives up a window; see [`group::Group::free`]. Its region can be deregistered from then on.
    pub fn free(&mut self, window: Handle) -> Result<(), WindowError> {
        self.inner.free(window)?;
        self.gathers.window_gone(window);
        if let Some(at) = self.held.iter().position(|(it, _)| *it == window) {
            self.regions.let_go(self.held.swap_remove(at).1);
        }
        Ok(())
    }

    /// Waits until the local buffer of an operation may be used again: [`group::Group::has_ended`].
    pub fn wait_local(
        &mut self,
        endpoint: &mut Endpoint,
        ticket: Ticket,
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        self.wait(endpoint, timeout, |group| {
            let done = group.has_ended(ticket)?;
            Ok(if done { Flushed::Done } else { Flushed::Waiting(ticket.rank()) })
        })
    }

    /// Waits until all that was issued to a rank, or to all, has taken effect there.
    pub fn flush(
        &mut self,
        endpoint: &mut Endpoint,
        rank: Option<u32>,
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        let ranks = match rank {
            Some(rank) if rank >= self.inner.ranks() => return Err(WindowError::Rank.into()),
            Some(rank) => rank..rank + 1,
            None => 0..self.inner.ranks(),
        };
        let (mut next, end) = (ranks.start, ranks.end);
        self.wait(endpoint, timeout, |group| {
            while next < end {
                match group.flush(next)? {
                    Flushed::Done => next += 1,
                    waiting @ Flushed::Waiting(_) => return Ok(waiting),
                }
            }
            Ok(Flushed::Done)
        })
    }

    /// Waits until a signal of this rank, of one rank or the sum of all, compares with a value. A
    /// connection that fails while it is waited for ends the wait.
    pub fn wait_signal(
        &mut self,
        endpoint: &mut Endpoint,
        (window, id, from): (Handle, u16, Option<u32>),
        (comparison, value): (Comparison, u64),
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        let mirror = self.mirror(window);
        self.wait(endpoint, timeout, |group| {
            let word = match (from, &mirror) {
                (Some(rank), _) => group.signal_read_from(window, id, rank)?,
                (None, None) => group.signal_read(window, id)?,
                (None, Some(mirror)) => {
                    mirror.sum(Kind::Signal, id, group.signal_read(window, id)?)
                }
            };
            if comparison.holds(word, value) {
                return Ok(Flushed::Done);
            }
            match (from, group.failed()) {
                (Some(rank), _) => group.failure_of(rank)?,
                (None, Some((rank, error))) => return Err(WindowError::Failed(rank, error)),
                (None, None) => {}
            }
            Ok(Flushed::Waiting(from.unwrap_or(u32::MAX)))
        })
    }

    /// Waits until a counter of this rank compares with a value.
    pub fn wait_counter(
        &mut self,
        endpoint: &mut Endpoint,
        (window, id): (Handle, u16),
        (comparison, value): (Comparison, u64),
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        let mirror = self.mirror(window);
        self.wait(endpoint, timeout, |group| {
            let table = group.counter_read(window, id)?;
            let word = mirror.as_ref().map_or(table, |it| it.sum(Kind::Counter, id, table));
            if comparison.holds(word, value) {
                return Ok(Flushed::Done);
            }
            match group.failed_counts() {
                Some((rank, error)) => Err(WindowError::Failed(rank, error)),
                None => Ok(Flushed::Waiting(u32::MAX)),
            }
        })
    }

    /// Waits until all ranks have come to a barrier of a window. After a timeout it can be called
    /// again, and goes on.
    pub fn barrier(
        &mut self,
        endpoint: &mut Endpoint,
        window: Handle,
        id: u16,
        timeout: Option<Time>,
    ) -> Result<(), WaitError> {
        let mut has_entered = false;
        self.wait(endpoint, timeout, |group| {
            if !has_entered {
                group.barrier_enter(window, id)?;
                has_entered = true;
            }
            group.barrier_look(window, id)
        })
    }

    /// Puts bytes of registered memory; see [`group::Group::put`].
    ///
    /// # Safety
    /// - the local buffer stays valid, and nobody writes it, until the ticket has ended.
    #[inline]
    pub unsafe fn put(
        &mut self,
        endpoint: &Endpoint,
        put: &Put,
        (region, address, length): (Handle, u64, u64),
    ) -> Result<Ticket, WindowError> {
        // SAFETY: this function's contract.
        let bytes = unsafe { Span::new(address, length) };
        self.inner.put(endpoint, put, &Local { region, address, length, bytes })
    }

    /// Gets bytes into registered memory; see [`group::Group::get`].
    ///
    /// # Safety
    /// - the local buffer stays valid, and nobody else touches it, until the ticket has ended.
    pub unsafe fn get(
        &mut self,
        endpoint: &Endpoint,
        target: (Handle, u32),
        offset: u64,
        (region, address, length): (Handle, u64, u64),
    ) -> Result<Ticket, WindowError> {
        // SAFETY: this function's contract.
        let bytes = unsafe { Span::new(address, length) };
        self.inner.get(endpoint, target, offset, &Local { region, address, length, bytes })
    }
}

/// Sleeps until something happens at an endpoint whose descriptor was armed, or a moment is over.
pub(in crate::host) fn doze(fd: i32) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, SLEEP_MS) };
}

/// The connections of a pair; one that serves both ways stands twice.
fn every_link(links: &Links<Handle>) -> [Handle; 4] {
    [links.frames_out, links.frames_in, links.bytes_out, links.bytes_in]
}
