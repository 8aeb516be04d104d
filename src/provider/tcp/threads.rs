//! Copy threads: each drives some of the streams beside the first with a rail of its own, and is
//! told and tells through two queues.
//!
//! The data thread pins the source of a write before it hands it over. The target of a write that
//! comes in the thread pins itself, read by read, in the counter of those beside the data thread.

use super::rail::{self, Tcp};
use super::{Limits, OpenError, Settings};
use crate::base::carve::{Carver, Zeroable, bytes_for};
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::ring::{Consumer, Indices, Producer, split};
use crate::base::sync::{AtomicU32, Cell, Ordering, fence};
use crate::base::units::{Bytes, Instant};
use crate::base::{descriptor, private};
use crate::fabric::{
    Completion, DownCause, LocalSpan, Op, OpError, OpErrorKind, OpId, OpKind, PeerLife, Provider,
    RemoteSpan, Source,
};
use crate::memory::{Errno, PinError, Reserve, WakeFd, thread_pin, threads};
use crate::provider::host_domain::HostDomain;
use std::os::fd::AsRawFd;
use std::os::fd::IntoRawFd;
use std::thread::JoinHandle;

/// Bytes that a thread moves between looks at its queue.
const BUDGET: Bytes = Bytes::kib(256);
/// Turns without work until a thread sleeps.
const IDLE_MAX: u32 = 200;
/// How long a thread sleeps at a time while it waits for the data thread, in milliseconds.
const WAIT_MS: i32 = 1;
/// Events of one turn.
const BATCH: usize = 16;

/// What a thread is told.
#[derive(Copy, Clone)]
pub(super) enum Command {
    /// Takes streams of a peer; the descriptors are the thread's own.
    Open { peer: PeerIndex, fds: Copies, sums: bool },
    /// A write whose source is pinned; `op` is the number of its entry.
    Write {
        op: u32,
        peer: PeerIndex,
        source: LocalSpan,
        target: RemoteSpan,
        immediate: Option<u32>,
    },
    /// The peer is gone.
    Fail { peer: PeerIndex },
    /// Stops moving anything of the peer's.
    Fence { peer: PeerIndex },
    /// Forgets the peer.
    Close { peer: PeerIndex },
}

/// What a thread tells.
#[derive(Copy, Clone)]
pub(super) enum Event {
    /// A write of that entry ended.
    Done { op: u32, result: Result<(), OpError> },
    /// A write with immediate came.
    Immediate { peer: PeerIndex, immediate: u32 },
    /// The peer is gone, as far as these streams say.
    Down { peer: PeerIndex, cause: DownCause },
    /// Nothing of the peer's moves here any more.
    Fenced { peer: PeerIndex },
    /// The peer is forgotten.
    Closed { peer: PeerIndex },
}

/// Words that the two threads share beside the queues.
#[repr(C)]
struct Shared {
    /// Whether the thread sleeps, or is about to.
    asleep: AtomicU32,
    /// Whether the data thread sleeps, or is about to.
    armed: AtomicU32,
    /// Whether the thread is to end.
    stop: AtomicU32,
    commands: Indices,
    events: Indices,
}

// SAFETY: atomics of integers.
unsafe impl Zeroable for Shared {}

/// The data thread's end of one copy thread. Dropping it ends the thread.
pub(super) struct Helper {
    commands: Option<Producer<'static, Command>>,
    events: Option<Consumer<'static, Event>>,
    shared: &'static Shared,
    wake: i32,
    thread: Option<JoinHandle<()>>,
    /// Bytes handed over and not reported.
    pub queued: u64,
    /// What everything above lies in, or holds open: last, so that it goes last.
    _wake: WakeFd,
    _memory: Reserve,
}

impl core::fmt::Debug for Helper {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        f.debug_struct("Helper").field("queued", &self.queued).finish_non_exhaustive()
    }
}

/// Commands that wait at most: a write per op, and per peer one of each other.
fn commands_max(limits: &Limits) -> usize {
    (limits.ops_max as usize + limits.peers_max as usize * 4).next_power_of_two()
}

impl Helper {
    /// Starts a thread. `main_wake` is rung when the data thread sleeps and there is news.
    ///
    /// # Safety
    /// - the memory of `domain` stays valid until the helper was dropped.
    pub unsafe fn start(
        limits: &Limits,
        settings: &Settings,
        main_wake: i32,
        domain: HostDomain<'_>,
    ) -> Result<Helper, OpenError> {
        let system = |errno: Errno| OpenError::System(errno.0);
        // no sends come here
        let limits = &Limits { lanes: limits.peers_max, ..*limits };
        let commands = commands_max(limits);
        let fds = limits.peers_max as usize * super::STREAMS_MAX;
        let length = bytes_for::<Shared>(1)
            + bytes_for::<Cell<Command>>(commands)
            + bytes_for::<Cell<Event>>(commands)
            + bytes_for::<i32>(fds)
            + rail::bytes(limits);
        let memory = Reserve::create(length).map_err(system)?;
        // SAFETY: fresh zeroed memory of that length, aligned to a page; it outlives the thread,
        // which is joined before it is unmapped (`drop`).
        let mut carver: Carver<'static> = unsafe { Carver::over_zeroed(memory.start(), length) };
        let shared: &'static Shared = carver.value::<Shared>()?;
        let queue = carver.slice::<Cell<Command>>(commands)?;
        let (producer, told) = split(&shared.commands, queue);
        let queue = carver.slice::<Cell<Event>>(commands)?;
        let (tells, consumer) = split(&shared.events, queue);
        let fds = carver.filled(fds, -1)?;
        // SAFETY: the thread is joined in `drop`, until when this function's contract holds.
        let domain: HostDomain<'static> = unsafe { core::mem::transmute(domain.beside()) };
        let none = Settings { threads: 0, ..*settings };
        // SAFETY: no threads.
        let mut rail = unsafe { Tcp::open(&mut carver, limits, domain, none) }?;
        rail.is_bulk = true;
        let wake = WakeFd::create().map_err(system)?;
        let wake_fd = wake.fd().as_raw_fd();
        let begun = std::time::Instant::now();
        let mut work = Work { rail, told, tells, shared, wake: wake_fd, main_wake, fds, begun };
        let thread = threads::start("crosstie-copy", move || work.run()).map_err(system)?;
        let cpus = &settings.thread_cpus;
        let pinned = if cpus.is_empty() { Ok(()) } else { thread_pin(&thread, cpus) };
        let helper = Helper {
            commands: Some(producer),
            events: Some(consumer),
            shared,
            wake: wake_fd,
            thread: Some(thread),
            queued: 0,
            _wake: wake,
            _memory: memory,
        };
        pinned.map_err(|error| match error {
            PinError::Cpu(cpu) => OpenError::Cpu(cpu),
            PinError::System(errno) => system(errno),
        })?;
        Ok(helper)
    }

    /// Tells the thread: its queue has room for everything that may wait.
    pub fn tell(&mut self, command: Command) {
        let told = self.commands.as_mut().is_some_and(|queue| queue.push(command).is_ok());
        assert!(told, "a queue with room for everything that may wait");
        // [asleep]: our command before our look at whether it sleeps
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) != 0 {
            crate::memory::wake::ring(self.wake);
        }
    }

    /// The next thing that the thread tells.
    #[inline]
    pub fn heard(&mut self) -> Option<Event> {
        self.events.as_mut()?.pop()
    }

    /// Says that the data thread is about to sleep. `false`: there is news.
    pub fn arm(&mut self) -> bool {
        self.shared.armed.store(1, Ordering::Relaxed);
        // [armed]: our flag before our look at the queue
        fence(Ordering::SeqCst);
        !self.events.as_ref().is_some_and(Consumer::has_some)
    }

    /// The opposite.
    pub fn disarm(&mut self) {
        self.shared.armed.store(0, Ordering::Relaxed);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // release: [stop], nothing is told any more
        self.shared.stop.store(1, Ordering::Release);
        crate::memory::wake::ring(self.wake);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so; its memory is not used any more either way.
            let _ = thread.join();
        }
        self.commands = None;
        self.events = None;
    }
}

/// Copies of the streams' descriptors for threads, which close them: the caller may close its own
/// as soon as the peer is closed.
#[derive(Copy, Clone)]
pub(super) struct Copies {
    fds: [i32; super::STREAMS_MAX],
    count: usize,
}

impl Copies {
    /// None.
    pub const NONE: Copies = Copies { fds: [-1; super::STREAMS_MAX], count: 0 };

    /// Of all of these.
    pub fn of(fds: &[i32]) -> Result<Copies, Errno> {
        let mut copies = Copies::NONE;
        for fd in fds {
            copies.add(own_copy(*fd).inspect_err(|_| copies.close())?);
        }
        Ok(copies)
    }

    /// One more.
    pub fn add(&mut self, copy: i32) {
        self.fds[self.count] = copy;
        self.count += 1;
    }

    /// Those that were made.
    pub fn as_slice(&self) -> &[i32] {
        &self.fds[..self.count]
    }

    /// Gives up what no thread was told of.
    pub fn close(&self) {
        self.as_slice().iter().for_each(|copy| close(*copy));
    }
}

fn own_copy(fd: i32) -> Result<i32, Errno> {
    private::made(|| Ok(descriptor::copy(fd)?.into_raw_fd()))
}

/// Closes what [`own_copy`] has made.
fn close(fd: i32) {
    private::closed(fd, || {
        // SAFETY: ours, and used by nobody any more.
        unsafe { libc::close(fd) };
    });
}

/// The thread's side.
struct Work {
    rail: Tcp<'static>,
    told: Consumer<'static, Command>,
    tells: Producer<'static, Event>,
    shared: &'static Shared,
    wake: i32,
    main_wake: i32,
    fds: &'static mut [i32],
    begun: std::time::Instant,
}

impl Work {
    fn run(&mut self) {
        let nothing = Completion::Immediate { peer: PeerIndex(0), immediate: 0 };
        let mut out = [nothing; BATCH];
        let mut idle = 0;
        // acquire: pairs with [stop]
        while self.shared.stop.load(Ordering::Acquire) == 0 {
            let mut busy = false;
            while let Some(command) = self.told.pop() {
                self.obey(command);
                busy = true;
            }
            let now = if self.rail.wants_time() { self.now() } else { Instant(0) };
            let count = self.rail.poll(&mut out, BUDGET, now);
            busy |= count > 0 || self.rail.take_moved();
            for completion in &out[..count] {
                self.report(completion);
            }
            idle = if busy { 0 } else { idle + 1 };
            if idle > IDLE_MAX {
                self.sleep();
                idle = 0;
            }
        }
        for fd in self.fds.iter().filter(|fd| **fd >= 0) {
            close(*fd);
        }
    }

    /// The time since the thread began: how long a peer that has closed takes is measured by it.
    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { peer, fds, sums } => {
                let fds = fds.as_slice();
                self.fds[peer.as_usize() * super::STREAMS_MAX..][..fds.len()].copy_from_slice(fds);
                if self.rail.peer_open_with(peer, fds, sums).is_err() {
                    self.tell(Event::Down { peer, cause: DownCause::Failed });
                }
            }
            Command::Write { op, peer, source, target, immediate } => {
                let kind = OpKind::Write { source: Source::Span(source), target, immediate };
                self.post(&Op { id: OpId(op.into()), peer, kind });
            }
            Command::Fail { peer } => self.rail.peer_fail(peer, DownCause::Died),
            Command::Fence { peer } => {
                let kind = OpKind::Fence { generation: RailGeneration(0) };
                self.post(&Op { id: OpId(u64::MAX), peer, kind });
            }
            Command::Close { peer } => {
                // the data thread has seen everything end, so nothing is in flight
                let _ = self.rail.peer_close(peer);
                let own = peer.as_usize() * super::STREAMS_MAX;
                for fd in &mut self.fds[own..own + super::STREAMS_MAX] {
                    if *fd >= 0 {
                        close(core::mem::replace(fd, -1));
                    }
                }
                self.tell(Event::Closed { peer });
            }
        }
    }

    /// Posts. There is room: no more is handed over than one stream takes.
    fn post(&mut self, op: &Op) {
        if self.rail.post(op, Instant(0)).is_ok() {
            return;
        }
        match op.kind {
            OpKind::Fence { .. } => self.tell(Event::Fenced { peer: op.peer }),
            _ => {
                let result = Err(OpError { kind: OpErrorKind::PeerDown, code: 0 });
                self.tell(Event::Done { op: op.id.0 as u32, result });
            }
        }
    }

    fn report(&mut self, completion: &Completion) {
        self.tell(match *completion {
            Completion::Done { id, result, .. } => Event::Done { op: id.0 as u32, result },
            Completion::Immediate { peer, immediate } => Event::Immediate { peer, immediate },
            Completion::PeerDown { peer, cause } => Event::Down { peer, cause },
            Completion::Fenced { peer, .. } => Event::Fenced { peer },
            Completion::Received { .. } => unreachable!("no sends on these streams"),
        });
    }

    /// Tells the data thread, and waits while it does not listen.
    fn tell(&mut self, event: Event) {
        while self.tells.push(event).is_err() {
            if self.shared.stop.load(Ordering::Acquire) != 0 {
                return;
            }
            self.wait(&mut [], WAIT_MS);
        }
        // [armed]: our event before our look at whether it sleeps
        fence(Ordering::SeqCst);
        if self.shared.armed.load(Ordering::Relaxed) != 0 {
            crate::memory::wake::ring(self.main_wake);
        }
    }

    fn sleep(&mut self) {
        self.shared.asleep.store(1, Ordering::Relaxed);
        // [asleep]: our flag before our look at the queue
        fence(Ordering::SeqCst);
        let told = self.told.has_some() || self.shared.stop.load(Ordering::Acquire) != 0;
        if !told && self.rail.arm() {
            self.wait(&mut [self.rail.wait_fd()], -1);
        }
        self.shared.asleep.store(0, Ordering::Relaxed);
    }

    /// Waits until one of the descriptors is readable, or the thread is rung.
    fn wait(&self, fds: &mut [i32], timeout_ms: i32) {
        let nothing = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let mut waits = [nothing; 2];
        waits[0].fd = self.wake;
        if let Some(fd) = fds.first() {
            waits[1].fd = *fd;
        }
        // SAFETY: two whole entries.
        unsafe { libc::poll(waits.as_mut_ptr(), 2, timeout_ms) };
        if waits[0].revents != 0 {
            let mut count = 0u64;
            // SAFETY: eight writable bytes.
            unsafe { libc::read(self.wake, (&raw mut count).cast(), 8) };
        }
    }
}
