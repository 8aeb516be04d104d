//! Shared memory and TCP as one rail: each peer is reached by one of the two.
//!
//! Both share one table of regions, so that one key names a region whichever way its user comes.
//! What the other rail costs a peer of shared memory is one look at whether it is in use; see
//! `doc/decisions/0006-one-rail-per-peer.md`.

use super::host_domain::HostDomain;
use super::shm::{self, HeapSpan, PeerSetup, Shm, ShmDomain};
use super::taken::Taken;
use super::tcp::{self, PeerOpenError, Tcp};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, Head, Line, LocalSpan, Next, Op, OpId,
    PostError, Posted, Provider, RecvSlot, RemoteSpan, SentThrough, Syscalls,
};
use crate::memory::{Errno, Reserve};

/// Polls of a busy shared memory between two looks at quiet sockets: so far a message over TCP may
/// wait, some 100 ns, and so much less than a system call each costs a message in shared memory.
const QUIET_POLLS: u32 = 8;

/// Capacities of one [`Mixed`].
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Of shared memory, whose table of regions serves both. No peers: TCP alone.
    pub shm: shm::Limits,
    /// Peers at a time, on either rail.
    pub peers_max: u32,
}

/// What [`Mixed::open`] carves out of its block. What TCP keeps lies outside: in address space that
/// becomes memory with use, so that who has no peers over TCP pays nothing.
pub const fn bytes(limits: &Limits) -> usize {
    shm::bytes(&limits.shm) + bytes_for::<u8>(limits.peers_max as usize)
}

/// Which rail a peer is on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Way {
    /// Shared memory.
    Shm,
    /// Sockets.
    Tcp,
}

const CLOSED: u8 = 0;
const ON_SHM: u8 = 1;
const ON_TCP: u8 = 2;
/// Shared memory, as one of several lanes.
const ON_LANE: u8 = 3;

/// Both rails, and which of them each peer is on.
pub struct Mixed<'m> {
    shm: Shm<'m>,
    tcp: Option<Tcp<'m>>,
    /// The records of `tcp`, which is dropped before.
    _reserve: Option<Reserve>,
    /// By peer: `CLOSED`, `ON_SHM`, `ON_TCP` or `ON_LANE`.
    rail_of: &'m mut [u8],
    /// What came through the rings of peers that are `ON_LANE`.
    taken: Option<Taken>,
    caps: Caps,
    /// Whether the sockets are looked at first.
    tcp_first: bool,
    /// Whether the last look at the sockets found something.
    tcp_busy: bool,
    /// Polls since then.
    tcp_passed: u32,
}

impl<'m> Mixed<'m> {
    /// Takes its storage: exactly [`bytes`] of the block. Without `tcp` no peer can be reached over
    /// TCP.
    ///
    /// *Panics* when the limits contradict each other.
    ///
    /// # Safety
    /// - as [`Shm::open`]: the heap's first bytes are its board's, and it outlives the rail;
    /// - with copy threads the carver's memory stays valid until the rail was dropped.
    pub unsafe fn open(
        carver: &mut Carver<'m>,
        limits: &Limits,
        heap: Option<HeapSpan>,
        tcp: Option<(tcp::Limits, tcp::Settings)>,
    ) -> Result<Mixed<'m>, tcp::OpenError> {
        // SAFETY: the caller's promise is that of `Shm::open`.
        let shm = unsafe { Shm::open(carver, &limits.shm, heap) }?;
        let rail_of = carver.slice::<u8>(limits.peers_max as usize)?;
        let (mut rail, mut reserve) = (None, None);
        if let Some((tcp_limits, settings)) = tcp {
            assert_eq!(tcp_limits.peers_max, limits.peers_max);
            let length = tcp::bytes(&tcp_limits);
            let records = Reserve::create(length).map_err(|e| tcp::OpenError::System(e.0))?;
            // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the
            // rail is gone (order of the fields), and nobody else knows it.
            let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
            let domain = HostDomain::over(shm.domain().table());
            // SAFETY: the table is that of `shm`, whose memory stays valid until the rail is gone
            // (this function's contract).
            rail = Some(unsafe { Tcp::open(&mut carver, &tcp_limits, domain, settings) }?);
            reserve = Some(records);
        }
        let caps = match &rail {
            None => shm.caps(),
            Some(tcp) if limits.shm.peers_max == 0 => tcp.caps(),
            Some(tcp) => both(shm.caps(), tcp.caps()),
        };
        Ok(Mixed {
            shm,
            tcp: rail,
            _reserve: reserve,
            rail_of,
            taken: None,
            caps,
            tcp_first: false,
            tcp_busy: false,
            tcp_passed: 0,
        })
    }

    /// Has threads copy what is long through shared memory; see [`Shm::copy_threads`].
    ///
    /// # Safety
    /// - as there.
    pub unsafe fn copy_threads(&mut self, count: u32) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.shm.copy_threads(count) };
    }

    /// What kept the threads of shared memory from starting; told once.
    pub fn copy_threads_refused(&mut self) -> Option<Errno> {
        self.shm.copy_threads_refused()
    }

    /// Opens a connection through shared memory.
    ///
    /// # Safety
    /// - as [`Shm::peer_open`].
    pub unsafe fn peer_open_shm(
        &mut self,
        peer: PeerIndex,
        setup: &PeerSetup,
    ) -> Result<(), shm::OpenError> {
        if self.rail_of.get(peer.as_usize()) != Some(&CLOSED) {
            return Err(shm::OpenError::Index);
        }
        // SAFETY: the caller's promise is that of `Shm::peer_open`.
        unsafe { self.shm.peer_open(peer, setup) }?;
        self.rail_of[peer.as_usize()] = ON_SHM;
        Ok(())
    }

    /// Opens a connection over sockets, which stay the caller's; see [`Tcp::peer_open_with`].
    pub fn peer_open_tcp(
        &mut self,
        peer: PeerIndex,
        streams: &[i32],
        sums: bool,
    ) -> Result<(), PeerOpenError> {
        if matches!(self.rail_of.get(peer.as_usize()), Some(&(ON_SHM | ON_LANE))) {
            return Err(PeerOpenError::Index);
        }
        self.tcp.as_mut().ok_or(PeerOpenError::Index)?.peer_open_with(peer, streams, sums)?;
        self.rail_of[peer.as_usize()] = ON_TCP;
        Ok(())
    }

    /// What kept the threads of TCP from starting; told once.
    pub fn tcp_threads_refused(&mut self) -> Option<Errno> {
        self.tcp.as_mut().and_then(Tcp::threads_refused)
    }

    /// Takes address space for what comes through shared memory on one of several lanes; without
    /// it there are none. Once.
    pub fn lanes_reserve(&mut self) -> Result<(), Errno> {
        self.taken = Some(Taken::create(self.rail_of.len() as u32)?);
        Ok(())
    }

    /// A peer that has just been opened is one of several lanes: over sockets see
    /// [`Tcp::peer_is_lane`]; what comes through shared memory does not stay in its ring.
    ///
    /// *Panics* in shared memory without [`Mixed::lanes_reserve`].
    pub fn peer_is_lane(&mut self, peer: PeerIndex) {
        match self.rail_of.get_mut(peer.as_usize()) {
            Some(rail) if *rail == ON_SHM => {
                assert!(self.taken.is_some(), "lanes through shared memory were announced");
                *rail = ON_LANE;
            }
            Some(_) | None => {}
        }
        if let Some(tcp) = self.tcp_of(peer) {
            tcp.peer_is_lane(peer);
        }
    }

    /// A poll of shared memory; what came on lanes is taken out of the rings.
    #[inline(always)]
    fn poll_shm(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let found = self.shm.poll(out, budget, now);
        if self.taken.is_some() && found != 0 {
            self.take_out(&mut out[..found]);
        }
        found
    }

    #[cold]
    #[inline(never)]
    fn take_out(&mut self, events: &mut [Completion]) {
        let Some(taken) = &mut self.taken else { return };
        for event in events {
            let Completion::Received { peer, slot, length, .. } = event else { continue };
            let at = peer.as_usize();
            if self.rail_of.get(at) != Some(&ON_LANE) {
                continue;
            }
            let Some((place, to)) = taken.acquire(at, *length as usize) else { continue };
            // SAFETY: a cell of at least that many bytes, which nobody else knows yet.
            let to = unsafe { core::slice::from_raw_parts_mut(to, *length as usize) };
            self.shm.received_peek(*peer, *slot, to);
            self.shm.received_release(*peer, *slot);
            *slot = place;
        }
    }

    /// The cells, if a slot that a peer's message lies in is one of them.
    #[inline(always)]
    fn taken_of(&self, peer: PeerIndex, slot: RecvSlot) -> Option<&Taken> {
        match self.rail_of.get(peer.as_usize()) {
            Some(&ON_LANE) if Taken::is(slot) => self.taken.as_ref(),
            _ => None,
        }
    }

    /// The first socket of a peer over sockets.
    pub fn socket(&self, peer: PeerIndex) -> Option<i32> {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.socket(peer),
            _ => None,
        }
    }

    /// Which rail an open peer is on.
    pub fn way(&self, peer: PeerIndex) -> Option<Way> {
        match *self.rail_of.get(peer.as_usize())? {
            ON_SHM | ON_LANE => Some(Way::Shm),
            ON_TCP => Some(Way::Tcp),
            _ => None,
        }
    }

    /// Whether something was posted that no poll has handed to the kernel yet.
    #[inline(always)]
    pub fn is_unsent(&self) -> bool {
        self.tcp.as_ref().is_some_and(Tcp::is_unsent)
    }

    /// Whether something that was posted to a living peer has not reached its host yet.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.is_undelivered(peer),
            _ => false,
        }
    }

    /// The same of messages alone.
    pub fn is_message_undelivered(&self, peer: PeerIndex) -> bool {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.is_message_undelivered(peer),
            _ => false,
        }
    }

    /// A descriptor that is readable while the sockets have something, once [`Mixed::arm`] has said
    /// so; `None`: there are none.
    pub fn wait_fd(&self) -> Option<i32> {
        self.tcp.as_ref().map(Tcp::wait_fd)
    }

    /// Prepares to sleep until the doorbell rings or the descriptor is readable. `false`: something
    /// came meanwhile, or is left to do; poll instead. *Cost*: as [`Shm::arm`].
    pub fn arm(&mut self) -> bool {
        self.tcp.as_mut().is_none_or(Tcp::arm) && self.shm.arm()
    }

    /// Whether the next poll must be told the time: over TCP something ends.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        self.tcp.as_ref().is_some_and(Tcp::wants_time)
    }

    /// Whether the next poll looks at the sockets: one is open, and it was not quiet a moment ago,
    /// or shared memory is not in use.
    #[inline(always)]
    fn looks_at_sockets(&self) -> bool {
        match &self.tcp {
            None => false,
            Some(tcp) => {
                !tcp.is_idle()
                    && (self.tcp_busy
                        || self.tcp_passed >= QUIET_POLLS - 1
                        || self.shm.is_idle()
                        || tcp.is_unsent())
            }
        }
    }

    /// Whether nothing moved at the last look, and nothing is known to have to: a poll may be left
    /// out.
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        let moves = |tcp: &mut Tcp| tcp.take_moved() || tcp.is_unsent() || tcp.wants_time();
        self.shm.is_idle() && !self.tcp_busy && !self.tcp.as_mut().is_some_and(moves)
    }

    /// A poll of both: each gets half of the slice and of the budget, and what the first leaves of
    /// its places is the second's.
    #[inline(never)]
    fn poll_both(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.tcp_passed = 0;
        if self.shm.is_idle() {
            return self.poll_tcp(out, budget, now);
        }
        self.tcp_first = !self.tcp_first;
        let places = out.len().div_ceil(2);
        let half = Bytes(budget.0 / 2);
        let first = match self.tcp_first {
            true => self.poll_tcp(&mut out[..places], half, now),
            false => self.poll_shm(&mut out[..places], half, now),
        };
        let rest = &mut out[first..];
        let second = match self.tcp_first {
            true => self.poll_shm(rest, half, now),
            false => self.poll_tcp(rest, half, now),
        };
        first + second
    }

    fn poll_tcp(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let found = self.tcp.as_mut().map_or(0, |tcp| tcp.poll(out, budget, now));
        // without a place for an event nothing was learnt
        self.tcp_busy = found != 0 || (out.is_empty() && self.tcp_busy);
        found
    }

    /// The TCP rail, if the peer is on it.
    #[inline(always)]
    fn tcp_of(&mut self, peer: PeerIndex) -> Option<&mut Tcp<'m>> {
        match self.rail_of.get(peer.as_usize()) {
            Some(&ON_TCP) => self.tcp.as_mut(),
            _ => None,
        }
    }
}

/// What both rails promise. Reads work on one of them: who opens a connection says which.
pub(in crate::provider) fn both(shm: Caps, tcp: Caps) -> Caps {
    Caps {
        send_payload_max: shm.send_payload_max.min(tcp.send_payload_max),
        recv_slots: shm.recv_slots.min(tcp.recv_slots),
        transfer_max: shm.transfer_max.min(tcp.transfer_max),
        pull: shm.pull,
        immediate: shm.immediate && tcp.immediate,
        ordered: shm.ordered && tcp.ordered,
        copies_at_post: shm.copies_at_post && tcp.copies_at_post,
        atomic_bytes: shm.atomic_bytes.min(tcp.atomic_bytes),
        // one indivisible copy each
        copy_granule: Bytes(shm.copy_granule.0 + tcp.copy_granule.0),
        fence: FenceKind::Local,
        bad_key_breaks: false,
        syscalls: Syscalls::PerBatch,
    }
}

impl<'m> Provider for Mixed<'m> {
    type Domain = ShmDomain<'m>;

    fn domain(&self) -> ShmDomain<'m> {
        self.shm.domain()
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn is_single_stream(&self, peer: PeerIndex) -> bool {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.is_single_stream(peer),
            _ => true,
        }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.send_payload_max(peer),
            _ => self.shm.caps().send_payload_max,
        }
    }

    fn sent_through(&self, peer: PeerIndex) -> SentThrough {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.sent_through(peer),
            _ => self.shm.sent_through(peer),
        }
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.is_leaving(peer),
            _ => self.shm.is_leaving(peer),
        }
    }

    fn transfer_max(&self, peer: PeerIndex) -> Bytes {
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.caps().transfer_max,
            _ => self.shm.caps().transfer_max,
        }
    }

    #[inline]
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        match self.tcp_of(op.peer) {
            Some(tcp) => tcp.post(op, now),
            None => self.shm.post(op, now),
        }
    }

    #[inline]
    fn post_send(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        head: &Head,
        payload: LocalSpan,
        now: Instant,
    ) -> Result<Posted, PostError> {
        match self.tcp_of(peer) {
            Some(tcp) => tcp.post_send(id, peer, head, payload, now),
            None => self.shm.post_send(id, peer, head, payload, now),
        }
    }

    #[inline]
    fn post_line(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        target: RemoteSpan,
        line: &Line,
        now: Instant,
    ) -> Result<Posted, PostError> {
        match self.tcp_of(peer) {
            Some(tcp) => tcp.post_line(id, peer, target, line, now),
            None => self.shm.post_line(id, peer, target, line, now),
        }
    }

    #[inline(always)]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        // shared memory refuses a peer that it has not opened: nothing need be looked up
        self.shm.send_now(peer, head, payload)
    }

    #[inline]
    fn look_at(&mut self, peer: PeerIndex) {
        // beside rings not every poll looks at the sockets
        if self.shm.is_idle()
            && let Some(tcp) = self.tcp_of(peer)
        {
            tcp.look_at(peer);
        }
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        if self.looks_at_sockets() {
            return self.poll_both(out, budget, now);
        }
        self.tcp_passed = self.tcp_passed.wrapping_add(1);
        self.poll_shm(out, budget, now)
    }

    #[inline]
    fn next(&mut self) -> Next {
        if self.shm.is_idle() {
            // then it does not look at a ring, either
            return match &mut self.tcp {
                Some(tcp) if !tcp.is_idle() => tcp.next_straight(),
                Some(_) | None => Next::Nothing,
            };
        }
        match self.shm.next() {
            Next::Nothing if self.looks_at_sockets() => Next::Poll,
            next => next,
        }
    }

    #[inline(always)]
    fn flush(&mut self, budget: Bytes) {
        if let Some(tcp) = &mut self.tcp {
            tcp.flush(budget);
        }
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        if let Some(taken) = self.taken_of(peer, slot) {
            let length = to.length().as_usize();
            let from = taken.bytes(peer.as_usize(), slot, offset, length);
            // SAFETY: that many bytes of a held cell; the target's maker vouches for it.
            unsafe { from.copy_to_nonoverlapping(to.address() as *mut u8, length) };
            return;
        }
        match self.tcp_of(peer) {
            Some(tcp) => tcp.received_copy(peer, slot, offset, to),
            None => self.shm.received_copy(peer, slot, offset, to),
        }
    }

    #[inline]
    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        if let Some(taken) = self.taken_of(peer, slot) {
            let from = taken.bytes(peer.as_usize(), slot, 0, to.len());
            // SAFETY: that many bytes of a held cell.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
            return;
        }
        match (&self.tcp, self.rail_of.get(peer.as_usize())) {
            (Some(tcp), Some(&ON_TCP)) => tcp.received_peek(peer, slot, to),
            _ => self.shm.received_peek(peer, slot, to),
        }
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        if self.taken_of(peer, slot).is_some() {
            if let Some(taken) = &mut self.taken {
                taken.release(peer.as_usize(), slot);
            }
            return;
        }
        match self.tcp_of(peer) {
            Some(tcp) => tcp.received_release(peer, slot),
            None => self.shm.received_release(peer, slot),
        }
    }

    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        if self.taken_of(peer, slot).is_some() {
            self.received_copy(peer, slot, 0, to);
            return self.received_release(peer, slot);
        }
        match self.tcp_of(peer) {
            Some(tcp) => tcp.received_take(peer, slot, to),
            None => self.shm.received_take(peer, slot, to),
        }
    }

    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        match self.tcp_of(peer) {
            Some(tcp) => tcp.peer_fail(peer, cause),
            None => self.shm.peer_fail(peer, cause),
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.tcp_of(peer) {
            Some(tcp) => tcp.peer_close(peer)?,
            None => self.shm.peer_close(peer)?,
        }
        if let (Some(taken), Some(&ON_LANE)) = (&mut self.taken, self.rail_of.get(peer.as_usize()))
        {
            taken.discard(peer.as_usize());
        }
        self.rail_of[peer.as_usize()] = CLOSED;
        Ok(())
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.tcp_of(peer) {
            Some(tcp) => tcp.peer_detach(peer),
            None => self.shm.peer_detach(peer),
        }
        // what it sent is still asked for where it is
    }
}
