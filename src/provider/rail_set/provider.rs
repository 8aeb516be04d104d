//! [`Provider`] of the set: each call of one peer goes to the rail that the peer is on; a poll goes
//! to all that have something to do.

use super::gpu::{Beneath, Gpus, has_device};
use super::port::PortRail;
use super::ports::{NAP, NAP_MAX, Port};
use super::{CLOSED, ON_LANE, ON_PORT, ON_TCP, Polled, RailSet, Sockets};
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, Gather, Head, Line, LocalSpan, MemoryDomain, Next, Op,
    OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot, RemoteSpan, SentThrough,
};
use crate::provider::shm::ShmDomain;
use crate::provider::taken::Taken;
use crate::provider::tcp::Tcp;
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// Polls of a busy shared memory between two looks at quiet sockets: so far a message over TCP may
/// wait, some 100 ns, and so much less than a system call each costs a message in shared memory.
const QUIET_POLLS: u32 = 8;

/// Evaluates one expression on the rail that a peer is on, whatever its type: the set's one
/// dispatch. `number` is what that rail calls the peer. A peer that is on none is left to shared
/// memory, which knows it as closed. With two expressions the second is for ports.
macro_rules! on {
    ($set:ident $([$mut:tt])?, $peer:expr, $rail:ident, $number:ident => $body:expr) => {{
        let $number = $peer;
        on!($set $([$mut])?, $number, $rail => $body; $number => $body)
    }};
    ($set:ident $([$mut:tt])?, $peer:expr, $rail:ident => $body:expr;
     $number:ident => $on_port:expr) => {{
        let peer = $peer;
        match ($set.on(peer), &$($mut)? $set.sockets) {
            (ON_TCP, Some(Sockets { tcp: $rail, .. })) => $body,
            (at @ ON_PORT.., _) => {
                let $number = PeerIndex(peer.0 >> $set.lane_bits);
                match &$($mut)? $set.ports[usize::from(at - ON_PORT)].rail {
                    PortRail::Verbs($rail) => $on_port,
                    PortRail::Libfabric($rail) => $on_port,
                    PortRail::Vendor($rail) => $on_port,
                }
            }
            _ => {
                let $rail = &$($mut)? $set.shm;
                $body
            }
        }
    }};
}

impl Sockets<'_> {
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let found = self.tcp.poll(out, budget, now);
        // without a place for an event nothing was learnt
        self.busy = found != 0 || (out.is_empty() && self.busy);
        found
    }
}

impl<'m> RailSet<'m> {
    /// Whether something was posted that no poll has handed to the kernel or a library yet.
    #[inline(always)]
    pub fn is_unsent(&self) -> bool {
        self.tcp().is_some_and(Tcp::is_unsent) || self.ports.iter().any(|it| it.rail.is_unsent())
    }

    /// Whether the next poll must be told the time: something ends over TCP, a port is in use, or a
    /// GPU copies.
    #[inline(always)]
    pub fn wants_time(&self) -> bool {
        self.gpus.is_busy()
            || self.tcp().is_some_and(Tcp::wants_time)
            || self.ports.iter().any(|it| it.rail.wants_time())
    }

    /// Descriptors of which one is readable while a rail has something, once [`RailSet::arm`] has
    /// said so. Beside them the doorbell of shared memory rings.
    pub fn wait_fds(&self) -> Vec<i32> {
        let of_ports = self.ports.iter().filter_map(|port| port.rail.wait_fds());
        let alarm = self.alarm.as_ref().map(|alarm| alarm.fd().as_raw_fd());
        let of_tcp = self.tcp().map(Tcp::wait_fd);
        of_tcp.into_iter().chain(alarm).chain(of_ports.flatten()).collect()
    }

    /// Prepares to sleep until the doorbell rings or a descriptor is readable. `false`: something
    /// came meanwhile, or is left to do; poll instead. *Cost*: as
    /// [`Shm::arm`](crate::provider::shm::Shm::arm).
    ///
    /// What peers write over ports without a completion (acknowledgements, offers) wakes nobody, so
    /// while ports have peers nobody sleeps longer than a nap.
    pub fn arm(&mut self) -> bool {
        self.looks.hasten();
        if self.is_copying() {
            return false;
        }
        if !self.ports.iter_mut().all(|port| port.rail.arm()) {
            return false;
        }
        let at_work = self.ports.iter().any(|port| !port.is_idle());
        match (&self.alarm, at_work) {
            (Some(alarm), true) => {
                alarm.set(self.nap);
                self.nap = NAP_MAX.min(Span(2 * self.nap.0));
            }
            (Some(alarm), false) => alarm.set(Span(0)),
            (None, true) => return false,
            (None, false) => {}
        }
        self.tcp_mut().is_none_or(Tcp::arm) && self.shm.arm()
    }

    /// [`Provider::send_now`] to a peer that is on a port.
    #[inline(never)]
    fn port_send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        on!(self [mut], peer, _rail => false; number => _rail.send_now(number, head, payload))
    }

    /// The cells, if a slot that a peer's message lies in is one of them.
    #[inline(always)]
    fn taken_of(&self, peer: PeerIndex, slot: RecvSlot) -> Option<&Taken> {
        match self.on(peer) {
            ON_LANE if Taken::is(slot) => self.taken.as_ref(),
            _ => None,
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
            if self.on.get(at) != Some(&ON_LANE) {
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

    /// Whether the next poll looks at the sockets: one is open, and it was not quiet a moment ago,
    /// or shared memory is not in use.
    #[inline(always)]
    fn looks_at_sockets(&self) -> bool {
        match &self.sockets {
            None => false,
            Some(Sockets { tcp, busy, passed, .. }) => {
                !tcp.is_idle()
                    && (*busy
                        || *passed >= QUIET_POLLS - 1
                        || self.shm.is_idle()
                        || tcp.is_unsent())
            }
        }
    }

    /// Whether the copy engine has something to do.
    #[inline(always)]
    fn is_copying(&self) -> bool {
        let of_tcp = |sockets: &Sockets<'_>| sockets.tcp.has_notes();
        self.gpus.is_busy() || self.shm.has_notes() || self.sockets.as_ref().is_some_and(of_tcp)
    }

    /// A poll of the rails that are no ports, and of the copy engine beside them.
    #[inline(always)]
    fn poll_host(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let found = self.poll_rails(out, budget, now);
        match self.is_copying() {
            false => found,
            true => {
                let (gpus, beneath) = self.gpus();
                gpus.poll(beneath, (out, found), now)
            }
        }
    }

    /// The copy engine, and what it stands on.
    fn gpus(&mut self) -> (&mut Gpus<'m>, Beneath<'_, 'm>) {
        let RailSet { shm, sockets, on, gpus, .. } = self;
        (gpus, Beneath { shm, sockets, on })
    }

    #[inline(always)]
    fn poll_rails(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        if self.looks_at_sockets() {
            return self.poll_both(out, budget, now);
        }
        if let Some(sockets) = &mut self.sockets {
            sockets.passed = sockets.passed.wrapping_add(1);
        }
        self.poll_shm(out, budget, now)
    }

    /// A poll of shared memory and sockets: each gets half of the slice and of the budget, and what
    /// the first leaves of its places is the second's.
    #[inline(never)]
    fn poll_both(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let Some(sockets) = &mut self.sockets else { return 0 };
        sockets.passed = 0;
        if self.shm.is_idle() {
            return sockets.poll(out, budget, now);
        }
        sockets.first = !sockets.first;
        let is_first = sockets.first;
        let half = Bytes(budget.0 / 2);
        let mut found = 0;
        for (is_sockets, end) in [(is_first, out.len().div_ceil(2)), (!is_first, out.len())] {
            let part = &mut out[found..end];
            found += match &mut self.sockets {
                Some(sockets) if is_sockets => sockets.poll(part, half, now),
                _ => self.poll_shm(part, half, now),
            };
        }
        found
    }

    /// Whether this poll looks at what is no port.
    #[inline]
    fn looks_beside(&mut self, now: Instant) -> bool {
        let is_alone = self.ports.iter().all(|port| port.rail.is_idle());
        let must = is_alone || self.is_copying() || !self.is_quiet();
        self.looks.is_due(must, now)
    }

    /// Whether nothing moved at the last look beside ports, and nothing is known to have to.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        let moves = |it: &mut Sockets| {
            it.busy || it.tcp.take_moved() || it.tcp.is_unsent() || it.tcp.wants_time()
        };
        self.shm.is_idle() && !self.sockets.as_mut().is_some_and(moves)
    }

    #[inline(always)]
    fn poll_port(
        &mut self,
        place: usize,
        out: &mut [Completion],
        budget: Bytes,
        now: Instant,
    ) -> usize {
        let port = &mut self.ports[place];
        if port.is_idle() {
            return 0;
        }
        let found = port.poll(self.lane_bits, out, budget, now);
        if found > 0 {
            self.nap = NAP;
        }
        match self.gpus.is_busy() {
            true => self.gpus.fences_hold(&mut out[..found]),
            false => found,
        }
    }

    /// A poll of each port, and of what is no port where it is looked at.
    #[inline(never)]
    fn poll_with_ports(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let looks = self.looks_beside(now);
        if !looks && self.ports.len() == 1 {
            return self.poll_port(0, out, budget, now);
        }
        self.poll_all(out, budget, now, looks)
    }

    /// Polls them in turn: what one leaves of its places is the next one's.
    fn poll_all(
        &mut self,
        out: &mut [Completion],
        budget: Bytes,
        now: Instant,
        looks: bool,
    ) -> usize {
        for port in &mut self.ports {
            port.rail.flush(budget); // before sockets are looked at
        }
        let rails = self.ports.len() + 1;
        self.turn = if self.turn + 1 < rails { self.turn + 1 } else { 0 };
        let mut found = 0;
        for at in 0..rails {
            let left = out.len() - found;
            let places = if at + 1 == rails { left } else { left.div_ceil(2) };
            let part = &mut out[found..found + places];
            found += match ((self.turn + at) % rails).checked_sub(1) {
                Some(place) => self.poll_port(place, part, budget, now),
                None if looks && !part.is_empty() => self.poll_host(part, budget, now),
                None => {
                    if looks {
                        self.looks.hasten(); // ports had filled all places
                    }
                    0
                }
            };
        }
        found
    }
}

impl<'m> MemoryDomain for RailSet<'m> {
    type Domain = ShmDomain<'m>;

    fn domain(&self) -> ShmDomain<'m> {
        self.shm.domain()
    }
}

impl<'m> Provider for RailSet<'m> {
    const REACHES_DEVICES: bool = true;

    /// Those of the peer's rail; a poll goes to all rails, and costs what they all cost.
    fn caps(&self, peer: PeerIndex) -> Caps {
        let Polled { copy_granule, syscalls } = self.polled;
        let caps = on!(self, peer, rail, number => rail.caps(number));
        Caps { copy_granule, syscalls, ..caps }
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        on!(self, peer, rail, number => rail.send_payload_max(number))
    }

    fn sent_through(&self, peer: PeerIndex) -> SentThrough {
        on!(self, peer, rail, number => rail.sent_through(number))
    }

    fn is_single_stream(&self, peer: PeerIndex) -> bool {
        self.tcp_of(peer).is_none_or(|tcp| tcp.is_single_stream(peer))
    }

    fn reaches_device(&self, peer: PeerIndex) -> bool {
        self.gpus.reaches(peer)
    }

    #[inline]
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        // keys of ports are the ports' own
        if self.on(op.peer) < ON_PORT && has_device(op) {
            let (gpus, beneath) = self.gpus();
            return gpus.post(beneath, op, now);
        }
        let posted = on!(self [mut], op.peer, rail => rail.post(op, now);
            peer => rail.post(&Op { peer, ..*op }, now));
        if let (OpKind::Fence { .. }, Ok(_)) = (&op.kind, posted) {
            self.gpus.fence(op.peer);
        }
        posted
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
        on!(self [mut], peer, rail, number => rail.post_send(id, number, head, payload, now))
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
        on!(self [mut], peer, rail, number => rail.post_line(id, number, target, line, now))
    }

    fn parts_max(&self, peer: PeerIndex) -> usize {
        on!(self, peer, rail, number => rail.parts_max(number))
    }

    fn post_gather(&mut self, gather: &Gather, now: Instant) -> Result<Posted, PostError> {
        on!(self [mut], gather.peer, rail => rail.post_gather(gather, now);
            peer => rail.post_gather(&Gather { peer, ..*gather }, now))
    }

    #[inline(always)]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        // shared memory refuses a peer that it has not opened: nothing need be looked up
        self.shm.send_now(peer, head, payload)
            || (!self.ports.is_empty() && self.port_send_now(peer, head, payload))
    }

    #[inline]
    fn look_at(&mut self, peer: PeerIndex) {
        // beside other rails not every poll looks at the sockets
        if self.shm.is_idle() && self.ports.is_empty() {
            on!(self [mut], peer, rail, number => rail.look_at(number));
        }
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        match self.ports.is_empty() {
            true => self.poll_host(out, budget, now),
            false => self.poll_with_ports(out, budget, now),
        }
    }

    #[inline]
    fn next(&mut self) -> Next {
        if !self.ports.iter().all(Port::is_idle) {
            return Next::Poll;
        }
        if self.is_copying() {
            return Next::Poll;
        }
        if self.shm.is_idle() {
            // then it does not look at a ring, either
            return match self.tcp_mut() {
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
        if let Some(tcp) = self.tcp_mut() {
            tcp.flush(budget);
        }
        for port in &mut self.ports {
            port.rail.flush(budget);
        }
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        on!(self, peer, rail, number => rail.is_leaving(number))
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        if let Some(taken) = self.taken_of(peer, slot) {
            let length = to.length().as_usize();
            let from = taken.bytes(peer.as_usize(), slot, offset, length);
            // SAFETY: that many bytes of a held cell; the target's maker vouches for it.
            unsafe { from.copy_to_nonoverlapping(to.address() as *mut u8, length) };
            return;
        }
        on!(self [mut], peer, rail, number => rail.received_copy(number, slot, offset, to));
    }

    #[inline]
    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        if let Some(taken) = self.taken_of(peer, slot) {
            let from = taken.bytes(peer.as_usize(), slot, 0, to.len());
            // SAFETY: that many bytes of a held cell.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
            return;
        }
        on!(self, peer, rail, number => rail.received_peek(number, slot, to));
    }

    fn received_read(
        &mut self,
        id: OpId,
        peer: PeerIndex,
        slot: RecvSlot,
        to: LocalSpan,
    ) -> Result<Posted, PostError> {
        let mut gpus = core::mem::take(&mut self.gpus);
        let posted = gpus.received((id, peer), to, |cell| self.received_copy(peer, slot, 0, cell));
        self.gpus = gpus;
        posted
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        if self.taken_of(peer, slot).is_some() {
            if let Some(taken) = &mut self.taken {
                taken.release(peer.as_usize(), slot);
            }
            return;
        }
        on!(self [mut], peer, rail, number => rail.received_release(number, slot));
    }

    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        if self.taken_of(peer, slot).is_some() {
            self.received_copy(peer, slot, 0, to);
            return self.received_release(peer, slot);
        }
        on!(self [mut], peer, rail, number => rail.received_take(number, slot, to));
    }
}

impl<'m> PeerLife for RailSet<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        on!(self [mut], peer, rail, number => rail.peer_fail(number, cause));
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        self.gpus.may_close(peer)?;
        let closed = on!(self [mut], peer, rail, number => rail.peer_close(number));
        match self.port_of(peer) {
            Some(_) if closed == Err(CloseError::Busy) => return closed,
            Some(place) => self.seat_forget(peer, place),
            None => closed?,
        }
        if let (Some(taken), ON_LANE) = (&mut self.taken, self.on[peer.as_usize()]) {
            taken.discard(peer.as_usize());
        }
        self.gpus.close(peer);
        self.on[peer.as_usize()] = CLOSED;
        closed
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        // what it sent is still asked for where it is
        on!(self [mut], peer, rail, number => rail.peer_detach(number))
    }
}
