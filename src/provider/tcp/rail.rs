//! The rail's storage: opening it, opening peers, and the lists that say where work is.

extern crate std;

use super::area::{Area, SCRATCH_AT};
use super::ops::{Entry, Ops};
use super::peek::Peeked;
use super::peer::{Peer, State};
use super::socket::{self, READY_MAX, Ready, Watch};
use super::stream::{Stream, To};
use super::threads::{Copies, Helper, THREADS_MAX};
use super::{Limits, OpenError, PeerOpenError, STREAMS_MAX, Settings};
use crate::base::carve::{Carver, Zeroable, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::memory::{CpuSet, Errno, PinError, WakeFd, cpus_try};
use crate::provider::events::Events;
use crate::provider::fifo::Fifo;
use crate::provider::host_domain::HostDomain;
use crate::provider::notes::{Note, Notes};
use std::os::fd::AsRawFd;

/// No stream.
pub(super) const NONE: u32 = u32::MAX;

// SAFETY: integers and enums in which zero is a value; nothing is owned.
unsafe impl Zeroable for Entry {}

/// Bytes that [`Tcp::open`] cuts.
pub const fn bytes(limits: &Limits) -> usize {
    let streams = limits.peers_max as usize * limits.streams as usize;
    bytes_for::<Peer>(limits.peers_max as usize)
        + bytes_for::<Stream>(streams)
        + bytes_for::<Entry>(limits.ops_max as usize)
        + bytes_for::<u32>(streams.next_power_of_two())
        + bytes_for::<u32>(streams)
}

/// What the rail keeps, and the sizes in bytes.
pub const RECORD_SIZES: [(&str, usize); 3] = [
    ("tcp peer", size_of::<Peer>()),
    ("tcp stream", size_of::<Stream>()),
    ("tcp op", size_of::<Entry>()),
];

/// What was read last and not looked at yet.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Whether the last read gave as much as was asked for.
    pub(super) is_full: bool,
    /// Where the buffer starts; there is room for the start of a frame before it.
    pub start: *mut u8,
    /// How many of the bytes before the buffer were carried there and not looked at.
    pub before: usize,
    /// The next byte, and the end.
    pub at: usize,
    pub end: usize,
    /// Whose bytes they are; [`NONE`]: all were looked at.
    pub owner: u32,
    /// Whose messages may lie in the buffer.
    pub holder: u32,
    /// Whether this poll has a long message: no more is read before it was looked at, since what
    /// is held in the buffer then moves, and there are few cells for such.
    pub has_long: bool,
    /// Whether a long message waits for one that this poll has reported to be given back.
    pub waits: bool,
}

/// The TCP rail of one endpoint.
#[derive(Debug)]
pub struct Tcp<'m> {
    pub(super) domain: HostDomain<'m>,
    pub(super) limits: Limits,
    /// [`Settings::call_bytes`].
    pub(super) call_bytes: u64,
    pub(super) streams: &'m mut [Stream],
    pub(super) peers: &'m mut [Peer],
    pub(super) ops: Ops<'m>,
    /// Streams with something to send.
    pub(super) dirty: Fifo<'m, u32>,
    /// Streams in use, the first `open_count`.
    pub(super) open: &'m mut [u32],
    pub(super) open_count: usize,
    /// The stream that the next poll alone reads; [`NONE`]: all.
    pub(super) only: u32,
    /// Which of them is read first, where they are read in turn.
    pub(super) first_read: u32,
    pub(super) peers_open: u32,
    pub(super) area: Area,
    pub(super) watch: Watch,
    /// Whether the open streams are watched.
    pub(super) is_watching: bool,
    /// Polls since somebody slept over the watched streams.
    pub(super) polls_awake: u32,
    pub(super) scratch: Scratch,
    pub(super) ready: [Ready; READY_MAX],
    pub(super) ready_at: usize,
    pub(super) ready_count: usize,
    /// Peers that are ending.
    pub(super) endings: u32,
    pub(super) now: Instant,
    /// Whether anything was sent or received since somebody asked.
    pub(super) moved: bool,
    /// Whether a read has left something with the kernel since all of it was taken.
    pub(super) has_peeked: bool,
    /// Whether an op was refused for want of room since the user was about to sleep.
    pub(super) starved: bool,
    /// Whether bytes have left since the last op that was refused.
    pub(super) drained: bool,
    /// Whether it is that of a copy thread, which moves long writes alone.
    pub(super) is_bulk: bool,
    /// Copy threads that the first peer starts, and their CPUs: those of the thread that has opened
    /// the rail, unless the settings say others; empty where the kernel did not say.
    threads_wanted: u32,
    thread_cpus: CpuSet,
    /// What kept them from starting.
    threads_refused: Option<Errno>,
    /// Copy threads, the first so many.
    pub(super) helpers: [Option<Helper>; THREADS_MAX],
    /// Rung by copy threads while this one sleeps.
    pub(super) wake: Option<WakeFd>,
    /// Whether they may ring.
    pub(super) armed: bool,
}

// SAFETY: the pointers of its records lead into the reserve that it owns.
unsafe impl Send for Tcp<'_> {}

impl<'m> Tcp<'m> {
    /// Takes notes from now on; a peer that sends one before has broken the format.
    pub fn notes_accept(&mut self) {
        self.area.notes = Notes::accepted(self.streams.len());
    }

    /// Whether notes have come.
    #[inline(always)]
    pub fn has_notes(&self) -> bool {
        !self.area.notes.is_empty()
    }

    /// The oldest note that came, and from whom.
    pub fn note_take(&mut self) -> Option<(PeerIndex, Note)> {
        self.area.notes.take()
    }

    /// Cuts a rail out of `block`. `domain` may share its table with another rail.
    ///
    /// # Safety
    /// - with copy threads (`settings.threads`), the memory of `domain` stays valid until the rail
    ///   was dropped, which ends them: not only as long as it is borrowed.
    pub unsafe fn open(
        block: &mut Carver<'m>,
        limits: &Limits,
        domain: HostDomain<'m>,
        settings: Settings,
    ) -> Result<Tcp<'m>, OpenError> {
        let fits = (1..=STREAMS_MAX as u32).contains(&limits.streams);
        if !fits || limits.peers_max == 0 || limits.lanes == 0 || settings.threads >= limits.streams
        {
            return Err(OpenError::Settings);
        }
        let count = limits.peers_max as usize * limits.streams as usize;
        let peers = block.slice::<Peer>(limits.peers_max as usize)?;
        let streams = block.slice::<Stream>(count)?;
        let ops = Ops::new(block.slice::<Entry>(limits.ops_max as usize)?);
        let dirty = Fifo::new(block.slice::<u32>(count.next_power_of_two())?);
        let open = block.slice::<u32>(count)?;
        let area = Area::create(limits).map_err(OpenError::System)?;
        let watch = Watch::create().map_err(|errno| OpenError::System(errno.0))?;
        // SAFETY: the buffer's part of the reserve starts with the room for starts of frames.
        let start = unsafe { area.scratch().add(SCRATCH_AT) };
        let nothing = Ready { stream: NONE, readable: false, writable: false };
        let thread_cpus = thread_cpus(&settings)?;
        Ok(Tcp {
            domain,
            limits: *limits,
            call_bytes: settings.call_bytes.0,
            streams,
            peers,
            ops,
            dirty,
            open,
            open_count: 0,
            only: NONE,
            first_read: 0,
            peers_open: 0,
            area,
            watch,
            is_watching: false,
            polls_awake: 0,
            scratch: Scratch {
                start,
                before: 0,
                at: 0,
                end: 0,
                is_full: false,
                owner: NONE,
                holder: NONE,
                has_long: false,
                waits: false,
            },
            ready: [nothing; READY_MAX],
            ready_at: 0,
            ready_count: 0,
            endings: 0,
            now: Instant(0),
            moved: false,
            has_peeked: false,
            starved: false,
            drained: false,
            is_bulk: false,
            threads_wanted: settings.threads,
            thread_cpus,
            threads_refused: None,
            helpers: [const { None }; THREADS_MAX],
            wake: None,
            armed: false,
        })
    }

    /// What kept the copy threads from starting, or from having the streams of a peer, which the
    /// thread that polls moves then; told once.
    pub fn threads_refused(&mut self) -> Option<Errno> {
        self.threads_refused.take()
    }

    /// Starts the copy threads, once.
    #[cold]
    fn threads_start(&mut self) {
        let threads = core::mem::take(&mut self.threads_wanted);
        let (thread_cpus, call_bytes) = (self.thread_cpus, Bytes(self.call_bytes));
        let settings = Settings { threads, thread_cpus, call_bytes };
        // SAFETY: the contract of `open`.
        match unsafe { start_helpers(&self.limits, &settings, &self.watch, self.domain) } {
            Ok((helpers, wake)) => (self.helpers, self.wake) = (helpers, Some(wake)),
            Err(OpenError::System(errno)) => self.threads_refused = Some(Errno(errno)),
            Err(_) => self.threads_refused = Some(Errno(libc::EINVAL)),
        }
    }

    /// Whether what is long goes to a peer on one stream.
    pub fn is_single_stream(&self, peer: PeerIndex) -> bool {
        let record = &self.peers[peer.as_usize()];
        record.streams == 1 && !record.aside.is_used()
    }

    /// Takes a peer into use, over connected sockets of which the first carries sends and lines.
    /// They stay the caller's, who closes them after [`crate::fabric::PeerLife::peer_close`].
    pub fn peer_open(&mut self, peer: PeerIndex, fds: &[i32]) -> Result<(), PeerOpenError> {
        self.peer_open_with(peer, fds, false)
    }

    /// The same with sums behind headers and payloads, as both sides have agreed (W9.1), or
    /// without.
    pub fn peer_open_with(
        &mut self,
        peer: PeerIndex,
        fds: &[i32],
        sums: bool,
    ) -> Result<(), PeerOpenError> {
        match self.peers.get(peer.as_usize()) {
            Some(record) if record.state == State::Closed => {}
            Some(_) | None => return Err(PeerOpenError::Index),
        }
        if fds.is_empty() || fds.len() > self.limits.streams as usize {
            return Err(PeerOpenError::Streams);
        }
        if self.threads_wanted != 0 {
            self.threads_start();
        }
        if self.peers[peer.as_usize()].aside.closing != 0 {
            return Err(PeerOpenError::Again);
        }
        let (fds, aside) = self.divided(fds);
        for (n, fd) in fds.iter().enumerate() {
            socket::without_delay(*fd);
            socket::unpaced_within_host(*fd);
            self.watch_one(*fd, self.stream_index(peer, n)).map_err(|errno| {
                fds[..n].iter().for_each(|fd| self.watch.remove(*fd));
                aside.close();
                PeerOpenError::System(errno.0)
            })?;
        }
        let record = &mut self.peers[peer.as_usize()];
        *record = Peer::opened(fds.len() as u32, record.aside, (record.held, record.long_held));
        if self.has_helpers() {
            self.open_aside(peer, &aside, sums);
        }
        for (n, fd) in fds.iter().enumerate() {
            let index = self.stream_index(peer, n);
            let is_dirty = self.streams[index].is_dirty;
            // the first alone carries messages
            let peeked = Peeked::opened(n == 0 && !self.is_bulk && socket::remember_peeks(*fd));
            let out = self.area.out(peer.as_usize(), n);
            let fresh = Stream::opened(*fd, is_dirty, sums, peeked, out);
            self.streams[index] = fresh;
            self.open[self.open_count] = index as u32;
            self.open_count += 1;
        }
        self.peers_open += 1;
        self.watch_many();
        Ok(())
    }

    /// The streams that this thread moves, and copies of the others for the copy threads: none
    /// where there are no such threads, or no descriptors for them, which is told as their refusal.
    fn divided<'f>(&mut self, fds: &'f [i32]) -> (&'f [i32], Copies) {
        if !self.has_helpers() {
            return (fds, Copies::NONE);
        }
        match Copies::of(&fds[1..]) {
            Ok(copies) => (&fds[..1], copies),
            Err(errno) => {
                self.threads_refused = Some(errno);
                (fds, Copies::NONE)
            }
        }
    }

    /// An open peer is one of several ways to one process: that a stream of it has ended says
    /// nothing of the process, and is reported without waiting for what the side band knows.
    pub fn peer_is_lane(&mut self, peer: PeerIndex) {
        self.peers[peer.as_usize()].is_lane = true;
    }

    /// The first socket of a peer that is open.
    pub fn socket(&self, peer: PeerIndex) -> Option<i32> {
        let record = self.peers.get(peer.as_usize()).filter(|record| record.takes_ops())?;
        (record.streams > 0).then(|| self.streams[self.stream_index(peer, 0)].fd)
    }

    /// Whether the next poll must be told the time: a peer is ending.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        self.endings > 0
    }

    /// Whether no peer is open, or held by a thread, so that polling is of no use.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.peers_open == 0
    }

    /// Whether something was posted that no poll has handed to the kernel yet.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether something that was posted to a living peer has not reached its host yet: it is
    /// staged here, or the kernel has it and no acknowledgement. Of one of several ways to it, also
    /// while its end is to be reported. *Cost*: a system call per stream.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        match self.peers.get(peer.as_usize()) {
            Some(record) if record.takes_ops() => {}
            Some(record) if record.is_lane && record.state == State::Ending => return true,
            Some(_) | None => return false,
        }
        self.streams_of(peer.as_usize()).map(|index| &self.streams[index]).any(|stream| {
            stream.is_open && (stream.out.queued() > 0 || socket::unacknowledged(stream.fd) > 0)
        })
    }

    /// The same of messages alone, and of what stands before them on their stream.
    pub fn is_message_undelivered(&self, peer: PeerIndex) -> bool {
        let stream = &self.streams[self.stream_index(peer, 0)];
        self.is_undelivered(peer)
            && (!stream.is_open
                || stream.out.is_message_left(socket::unacknowledged(stream.fd).into()))
    }

    /// A descriptor that is readable while a poll would find something, once [`Tcp::arm`] has said
    /// so.
    pub fn wait_fd(&self) -> i32 {
        self.watch.fd()
    }

    /// The number of an open stream.
    pub(super) fn open_stream(&self, n: usize) -> usize {
        self.open[n] as usize
    }

    pub(super) fn stream_index(&self, peer: PeerIndex, n: usize) -> usize {
        peer.as_usize() * self.limits.streams as usize + n
    }

    /// The peer whose stream that is, and which of its streams.
    #[inline]
    pub(super) fn peer_of(&self, index: usize) -> (usize, usize) {
        let streams = self.limits.streams as usize;
        if streams == 1 { (index, 0) } else { (index / streams, index % streams) }
    }

    /// The stream that is read next: its number, and a number to ask with for the one after it.
    /// `None`: each that may have something had its turn.
    #[inline]
    pub(super) fn next_readable(&mut self, turn: &mut usize) -> Option<usize> {
        if self.reads_directly() {
            if *turn >= self.open_count {
                return None;
            }
            // others may have closed since
            let first = self.first_read as usize;
            let at = if first < self.open_count { first + *turn } else { *turn };
            let at = if at < self.open_count { at } else { at - self.open_count };
            *turn += 1;
            return self.open[..self.open_count].get(at).map(|index| *index as usize);
        }
        loop {
            if self.ready_at == self.ready_count {
                if *turn > 0 {
                    return None;
                }
                *turn += 1;
                self.ready_count = self.watch.look(&mut self.ready);
                self.ready_at = 0;
                if self.ready_count == 0 {
                    return None;
                }
            }
            let ready = self.ready[self.ready_at];
            self.ready_at += 1;
            let index = ready.stream as usize;
            if ready.stream == NONE {
                continue; // a copy thread has rung
            }
            if ready.writable && self.streams[index].is_open {
                self.mark_dirty(index);
            }
            if ready.readable && self.streams[index].is_open {
                return Some(index);
            }
        }
    }

    /// Puts a stream among those with something to send.
    #[inline]
    pub(super) fn mark_dirty(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if !stream.is_dirty {
            stream.is_dirty = true;
            self.dirty.push(index as u32);
        }
    }

    /// Stops reading and writing a stream for good. What was peeked at is taken out of its socket,
    /// which is not touched again.
    pub(super) fn stream_close(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if !stream.is_open {
            return;
        }
        if stream.peeked.is_due() {
            stream.peeked_take();
        }
        stream.is_open = false;
        let cut_off = core::mem::take(&mut stream.payload);
        stream.carried = 0;
        self.watch.remove(stream.fd);
        if cut_off.to == To::Cell {
            // nobody is told of it, who would give it back
            let (peer, _) = self.peer_of(index);
            self.peers[peer].slot_release(&self.area, peer, cut_off.slot.into());
        }
        let open = &mut self.open[..self.open_count];
        if let Some(at) = open.iter().position(|open| *open == index as u32) {
            open[at] = open[open.len() - 1];
            self.open_count -= 1;
            self.one_less();
        }
        if self.scratch.owner == index as u32 {
            self.scratch.owner = NONE;
        }
        let domain = self.domain;
        self.streams[index].out.clear(|region| domain.pin(region, -1));
    }

    /// Whether anything was sent or received since the last call.
    pub fn take_moved(&mut self) -> bool {
        core::mem::take(&mut self.moved)
    }

    #[cold]
    pub(super) fn report_done(&mut self, events: &mut Events) {
        while events.has_room() {
            let Some(entry) = self.ops.take_done() else { break };
            self.peers[entry.peer.as_usize()].in_flight -= 1;
            events.push(entry.completion());
        }
    }
}

/// The CPUs of copy threads, which can be had: those that the settings say, or this thread's.
fn thread_cpus(settings: &Settings) -> Result<CpuSet, OpenError> {
    if settings.threads == 0 {
        return Ok(CpuSet::EMPTY);
    }
    if settings.thread_cpus.is_empty() {
        return Ok(CpuSet::of_this_thread());
    }
    match cpus_try(&settings.thread_cpus) {
        Ok(()) => Ok(settings.thread_cpus),
        Err(PinError::Cpu(cpu)) => Err(OpenError::Cpu(cpu)),
        Err(PinError::System(errno)) => Err(OpenError::System(errno.0)),
    }
}

type Helpers = ([Option<Helper>; THREADS_MAX], WakeFd);

/// Starts the copy threads, which end when they are dropped.
///
/// # Safety
/// - as [`Tcp::open`].
unsafe fn start_helpers(
    limits: &Limits,
    settings: &Settings,
    watch: &Watch,
    domain: HostDomain<'_>,
) -> Result<Helpers, OpenError> {
    let mut helpers = [const { None }; THREADS_MAX];
    let system = |errno: Errno| OpenError::System(errno.0);
    let wake = WakeFd::create().map_err(system)?;
    let fd = wake.fd().as_raw_fd();
    watch.add(fd, NONE).map_err(system)?;
    for slot in helpers.iter_mut().take(settings.threads as usize) {
        // SAFETY: this function's contract.
        *slot = Some(unsafe { Helper::start(limits, settings, fd, domain) }?);
    }
    Ok((helpers, wake))
}
