//! The rails of a host and its ports as one rail. Each peer is on exactly one of them.
//!
//! A port is a rail of its own ([`PortRail`]): RDMA, libfabric or a vendor's. All other peers
//! belong to [`Mixed`]. An endpoint without ports has a [`Mixed`] alone and nothing of this module.
//!
//! A port has at most one peer of each connection, so its tables are as long as there are
//! connections. Peers are numbered as everywhere, lanes included. A "queue pair" is an end of a
//! lane on a port of any kind.

extern crate std;

mod doubts;
mod looks;
mod pairs;
mod seats;

use self::looks::Looks;
use self::seats::Seats;
pub use self::seats::{Due, Later};
use super::mixed::{Mixed, both};
use super::port::{PortConfig, PortDomain, PortError, PortLimits, PortOpenError, PortRail};
use super::shm::ShmDomain;
use super::verbs::mtu::Packets;
use crate::base::carve::Carver;
use crate::base::ids::PeerIndex;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, Gather, Head, Line, LocalSpan, Next, Op, OpId,
    PostError, Posted, Provider, RailKey, RecvSlot, RemoteSpan, SentThrough,
};
use crate::memory::{Alarm, Reserve};
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// How long a port that is down is left alone.
const LOOK: Span = Span::millis(20);
/// How long a sleeper looks for nothing, doubled with each sleep that nothing has ended.
const NAP: Span = Span::millis(1);
const NAP_MAX: Span = Span::millis(8);

/// One port.
struct Device<'m> {
    rail: PortRail<'m>,
    seats: Seats,
    /// What it calls our mailboxes.
    mailbox_key: RailKey,
    /// When it is to be brought up again that is down.
    revive_at: Instant,
}

/// All rails, and which of them each peer is on.
pub struct WithPorts<'m> {
    mixed: Mixed<'m>,
    devices: Vec<Device<'m>>,
    /// By peer: 0 for `mixed`, else one more than the place of its device.
    on: Vec<u8>,
    /// The records of the devices, which are dropped before.
    reserves: Vec<Reserve>,
    lane_bits: u32,
    caps: Caps,
    /// Which rail is polled first.
    turn: usize,
    /// When what is no port is polled.
    looks: Looks,
    /// Wakes who sleeps while there are queue pairs; `None`: nobody does.
    alarm: Option<Alarm>,
    nap: Span,
}

impl<'m> WithPorts<'m> {
    /// Takes the rails of a host, for so many peers, of which two to the power of `lane_bits` are
    /// one connection's.
    pub fn new(mixed: Mixed<'m>, peers_max: u32, lane_bits: u32) -> WithPorts<'m> {
        let caps = mixed.caps();
        let on = std::vec![0; peers_max as usize];
        let (devices, reserves) = (Vec::new(), Vec::new());
        let (alarm, nap) = (Alarm::create().ok(), NAP);
        let (turn, looks) = (0, Looks::FIRST);
        WithPorts { mixed, devices, on, reserves, lane_bits, caps, turn, looks, alarm, nap }
    }

    /// Opens a port for connections as far as it has completions for them; says for how many. Its
    /// place is the number of those before.
    ///
    /// # Safety
    /// - as [`PortRail::open`], when this is dropped.
    pub unsafe fn add(
        &mut self,
        regions_max: u32,
        payload_bytes_max: u32,
        config: &PortConfig,
    ) -> Result<u32, PortOpenError> {
        let peers_max = self.on.len() as u32 >> self.lane_bits;
        let limits = PortLimits { peers_max, regions_max, payload_bytes_max };
        // SAFETY: this function's contract.
        match unsafe { self.add_for(&limits, config) } {
            Err(error) => {
                let most = error.peers_most(peers_max).ok_or(error)?;
                // SAFETY: this function's contract.
                unsafe { self.add_for(&PortLimits { peers_max: most, ..limits }, config) }
            }
            done => done,
        }
    }

    /// As [`WithPorts::add`].
    ///
    /// # Safety
    /// - as there.
    unsafe fn add_for(
        &mut self,
        limits: &PortLimits,
        config: &PortConfig,
    ) -> Result<u32, PortOpenError> {
        let length = config.bytes(limits);
        let records = Reserve::create(length).map_err(PortOpenError::Records)?;
        // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the rail
        // is gone (order of the fields), and nobody else knows it.
        let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
        // SAFETY: `add`'s contract.
        let rail = unsafe { PortRail::open(&mut carver, limits, config)? };
        let (before, caps) = (self.caps, rail.caps());
        let bad_key_breaks = before.bad_key_breaks || caps.bad_key_breaks;
        self.caps = Caps { bad_key_breaks, ..both(before, caps) };
        let seats = Seats::new(limits.peers_max);
        let (mailbox_key, revive_at) = (RailKey(0), Instant(0));
        self.devices.push(Device { rail, seats, mailbox_key, revive_at });
        self.reserves.push(records);
        Ok(limits.peers_max)
    }

    /// Closes a port that has no peers; the places of those behind it move up.
    pub fn remove(&mut self, place: usize) {
        drop(self.devices.remove(place));
        self.reserves.remove(place);
    }

    /// What is left without ports.
    pub fn into_mixed(self) -> Mixed<'m> {
        self.mixed
    }

    /// How many ports there are.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// A port.
    pub fn device(&self, place: usize) -> Option<&PortRail<'m>> {
        self.devices.get(place).map(|device| &device.rail)
    }

    /// Registration on a port.
    pub fn device_domain(&self, place: usize) -> PortDomain<'m> {
        self.devices[place].rail.port_domain()
    }

    /// What a port calls our mailboxes.
    pub fn mailbox_key(&self, place: usize) -> RailKey {
        self.devices[place].mailbox_key
    }

    /// Says so.
    pub fn mailbox_key_set(&mut self, place: usize, key: RailKey) {
        self.devices[place].mailbox_key = key;
    }

    /// The rails that are no ports.
    pub fn mixed(&self) -> &Mixed<'m> {
        &self.mixed
    }

    /// The same, for set-up of their peers.
    pub fn mixed_mut(&mut self) -> &mut Mixed<'m> {
        &mut self.mixed
    }

    /// The port that a peer is on, if it is on one: from its first queue pair until it is closed.
    pub fn device_of(&self, peer: PeerIndex) -> Option<usize> {
        usize::from(*self.on.get(peer.as_usize())?).checked_sub(1)
    }

    fn number(&self, peer: PeerIndex) -> PeerIndex {
        PeerIndex(peer.0 >> self.lane_bits)
    }

    fn lane(&self, peer: PeerIndex) -> u8 {
        (peer.0 & ((1 << self.lane_bits) - 1)) as u8
    }

    #[inline]
    fn port_of(&mut self, peer: PeerIndex) -> Option<(&mut PortRail<'m>, PeerIndex)> {
        let place = self.device_of(peer)?;
        let number = self.number(peer);
        Some((&mut self.devices[place].rail, number))
    }

    #[inline]
    fn port_at(&self, peer: PeerIndex) -> Option<(&PortRail<'m>, PeerIndex)> {
        Some((&self.devices[self.device_of(peer)?].rail, self.number(peer)))
    }

    /// What broke the queue pair of a peer, while it is not detached.
    pub fn error(&self, peer: PeerIndex) -> Option<PortError> {
        let (rail, number) = self.port_at(peer)?;
        rail.error(number)
    }

    /// How long the packets of a peer on a port of RDMA are; see [`PortRail::packets`].
    pub fn packets(&self, peer: PeerIndex) -> Option<Packets> {
        let (rail, number) = self.port_at(peer)?;
        rail.packets(number)
    }

    /// Whether something was posted that no poll has handed over yet.
    pub fn is_unsent(&self) -> bool {
        self.mixed.is_unsent() || self.devices.iter().any(|device| device.rail.is_unsent())
    }

    /// Whether something that was posted to a living peer has not reached its host yet.
    pub fn is_undelivered(&mut self, peer: PeerIndex) -> bool {
        match self.port_of(peer) {
            Some((rail, number)) => rail.is_undelivered(number),
            None => self.mixed.is_undelivered(peer),
        }
    }

    /// The same of messages alone; of a port, of all.
    pub fn is_message_undelivered(&mut self, peer: PeerIndex) -> bool {
        match self.port_of(peer) {
            Some((rail, number)) => rail.is_undelivered(number),
            None => self.mixed.is_message_undelivered(peer),
        }
    }

    /// See [`PortRail::is_awaiting`].
    pub fn is_awaiting(&mut self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        match self.port_of(peer) {
            Some((rail, number)) => rail.is_awaiting(number, awaits),
            None => self.mixed.is_undelivered(peer),
        }
    }

    /// Whether the next poll must be told the time.
    pub fn wants_time(&self) -> bool {
        self.mixed.wants_time() || self.devices.iter().any(|device| device.rail.wants_time())
    }

    /// As [`Mixed::wait_fd`]: what is readable while a rail has something, once
    /// [`WithPorts::arm`] has said so.
    pub fn wait_fds(&self) -> Vec<i32> {
        let of_devices = self.devices.iter().filter_map(|device| device.rail.wait_fds());
        let alarm = self.alarm.as_ref().map(|alarm| alarm.fd().as_raw_fd());
        self.mixed.wait_fd().into_iter().chain(alarm).chain(of_devices.flatten()).collect()
    }

    /// As [`Mixed::arm`]. What peers write without a completion (acknowledgements, offers) wakes
    /// nobody, so while there are queue pairs it is looked for now and then: nobody sleeps longer
    /// than a nap.
    pub fn arm(&mut self) -> bool {
        self.looks.hasten();
        if !self.devices.iter_mut().all(|it| it.rail.arm()) {
            return false;
        }
        let at_work = self.devices.iter().any(|it| !it.rail.is_idle() || it.seats.is_waiting());
        match (&self.alarm, at_work) {
            (Some(alarm), true) => {
                alarm.set(self.nap);
                self.nap = NAP_MAX.min(Span(2 * self.nap.0));
            }
            (Some(alarm), false) => alarm.set(Span(0)),
            (None, true) => return false,
            (None, false) => {}
        }
        self.mixed.arm()
    }

    /// Whether this poll looks at what is no port.
    #[inline]
    fn looks_beside(&mut self, now: Instant) -> bool {
        let is_alone = self.devices.iter().all(|device| device.rail.is_idle());
        let must = is_alone || !self.mixed.is_quiet();
        self.looks.is_due(must, now)
    }

    /// A poll of one port.
    #[inline(always)]
    fn poll_device(
        &mut self,
        place: usize,
        out: &mut [Completion],
        budget: Bytes,
        now: Instant,
    ) -> usize {
        let Device { rail, seats, revive_at, .. } = &mut self.devices[place];
        // what waits may wait for the port
        if rail.is_idle() && !seats.is_waiting() {
            return 0;
        }
        if rail.is_down() && now >= *revive_at {
            rail.revive(now);
            *revive_at = now.after(LOOK);
        }
        let found = rail.poll(out, budget, now);
        if found > 0 {
            self.nap = NAP;
        }
        for event in &mut out[..found] {
            let is_end = matches!(event, Completion::PeerDown { .. });
            let peer = peer_of(event);
            let lane = seats.lane(peer.as_usize());
            if is_end && seats.was_prepared(peer.as_usize()) {
                // the peer cannot join it, and waits for another
                let _ = rail.peer_detach(*peer);
                seats.later(peer.as_usize(), lane as u8, now, Later::Down);
            }
            *peer = PeerIndex(peer.0 << self.lane_bits | lane);
        }
        found
    }

    /// A poll of each port, and of what is no port where it is looked at, in turn: what one leaves
    /// of its places is the next one's.
    #[inline(never)]
    fn poll_all(
        &mut self,
        out: &mut [Completion],
        budget: Bytes,
        now: Instant,
        looks: bool,
    ) -> usize {
        for device in &mut self.devices {
            device.rail.flush(budget); // before sockets are looked at
        }
        let rails = self.devices.len() + 1;
        self.turn = if self.turn + 1 < rails { self.turn + 1 } else { 0 };
        let mut found = 0;
        for at in 0..rails {
            let left = out.len() - found;
            let places = if at + 1 == rails { left } else { left.div_ceil(2) };
            let part = &mut out[found..found + places];
            found += match ((self.turn + at) % rails).checked_sub(1) {
                Some(place) => self.poll_device(place, part, budget, now),
                None if looks && !part.is_empty() => self.mixed.poll(part, budget, now),
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

/// Whom an event is about.
fn peer_of(event: &mut Completion) -> &mut PeerIndex {
    match event {
        Completion::Done { peer, .. }
        | Completion::Received { peer, .. }
        | Completion::Immediate { peer, .. }
        | Completion::Fenced { peer, .. }
        | Completion::PeerDown { peer, .. } => peer,
    }
}

impl<'m> Provider for WithPorts<'m> {
    type Domain = ShmDomain<'m>;

    fn domain(&self) -> ShmDomain<'m> {
        self.mixed.domain()
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        match self.port_at(peer) {
            Some((rail, number)) => rail.send_payload_max(number),
            None => self.mixed.send_payload_max(peer),
        }
    }

    fn sent_through(&self, peer: PeerIndex) -> SentThrough {
        match self.port_at(peer) {
            Some((rail, number)) => rail.sent_through(number),
            None => self.mixed.sent_through(peer),
        }
    }

    fn is_single_stream(&self, peer: PeerIndex) -> bool {
        self.port_at(peer).is_some() || self.mixed.is_single_stream(peer)
    }

    fn transfer_max(&self, peer: PeerIndex) -> Bytes {
        match self.port_at(peer) {
            Some((rail, _)) => rail.caps().transfer_max,
            None => self.mixed.transfer_max(peer),
        }
    }

    #[inline]
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        match self.port_of(op.peer) {
            Some((rail, peer)) => rail.post(&Op { peer, ..*op }, now),
            None => self.mixed.post(op, now),
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
        match self.port_of(peer) {
            Some((rail, peer)) => rail.post_send(id, peer, head, payload, now),
            None => self.mixed.post_send(id, peer, head, payload, now),
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
        match self.port_of(peer) {
            Some((rail, peer)) => rail.post_line(id, peer, target, line, now),
            None => self.mixed.post_line(id, peer, target, line, now),
        }
    }

    fn parts_max(&self, peer: PeerIndex) -> usize {
        match self.port_at(peer) {
            Some((rail, number)) => rail.parts_max(number),
            None => self.mixed.parts_max(peer),
        }
    }

    fn post_gather(&mut self, gather: &Gather, now: Instant) -> Result<Posted, PostError> {
        match self.port_of(gather.peer) {
            Some((rail, peer)) => rail.post_gather(&Gather { peer, ..*gather }, now),
            None => self.mixed.post_gather(gather, now),
        }
    }

    #[inline]
    fn send_now(&mut self, peer: PeerIndex, head: &Head, payload: LocalSpan) -> bool {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.send_now(peer, head, payload),
            None => self.mixed.send_now(peer, head, payload),
        }
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        let looks = self.looks_beside(now);
        if !looks && self.devices.len() == 1 {
            return self.poll_device(0, out, budget, now);
        }
        self.poll_all(out, budget, now, looks)
    }

    #[inline]
    fn next(&mut self) -> Next {
        match self.devices.iter().all(|it| it.rail.is_idle() && !it.seats.is_waiting()) {
            true => self.mixed.next(),
            false => Next::Poll,
        }
    }

    #[inline]
    fn flush(&mut self, budget: Bytes) {
        self.mixed.flush(budget);
        for device in &mut self.devices {
            device.rail.flush(budget);
        }
    }

    #[inline]
    fn is_leaving(&self, peer: PeerIndex) -> bool {
        match self.port_at(peer) {
            Some((rail, number)) => rail.is_leaving(number),
            None => self.mixed.is_leaving(peer),
        }
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.received_copy(peer, slot, offset, to),
            None => self.mixed.received_copy(peer, slot, offset, to),
        }
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        match self.port_at(peer) {
            Some((rail, peer)) => rail.received_peek(peer, slot, to),
            None => self.mixed.received_peek(peer, slot, to),
        }
    }

    #[inline]
    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.received_release(peer, slot),
            None => self.mixed.received_release(peer, slot),
        }
    }

    #[inline]
    fn received_take(&mut self, peer: PeerIndex, slot: RecvSlot, to: LocalSpan) {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.received_take(peer, slot, to),
            None => self.mixed.received_take(peer, slot, to),
        }
    }

    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.peer_fail(peer, cause),
            None => self.mixed.peer_fail(peer, cause),
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let Some(place) = self.device_of(peer) else { return self.mixed.peer_close(peer) };
        let number = self.number(peer);
        let closed = self.devices[place].rail.peer_close(number);
        if closed != Err(CloseError::Busy) {
            self.devices[place].seats.forget(number.as_usize());
            self.on[peer.as_usize()] = 0;
        }
        closed
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        match self.port_of(peer) {
            Some((rail, peer)) => rail.peer_detach(peer),
            None => self.mixed.peer_detach(peer),
        }
    }
}
