//! The ports of a set, and the ends of lanes on them: prepared, joined, and when the next is due.
//!
//! A port has at most one peer of each connection, so its tables are as long as there are
//! connections, and it numbers its peers by connection. A "queue pair" is an end of a lane on a
//! port of any kind.

use super::port::{PortConfig, PortDomain, PortLimits, PortRail};
use super::port_error::{PortOpenError, PortPeerError};
use super::port_words::Complaint;
use super::seats::{Due, LOOK, Later, Seats};
use super::{ON_PORT, RailSet};
use crate::base::carve::Carver;
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{Completion, OpError, OpId, PostError, Posted, RailKey};
use crate::memory::{Alarm, Reserve};
use crate::provider::verbs::companion::{Companion, CompanionError, Flushing};
use crate::wire::pair::LaneEnd;

/// How long a sleeper looks for nothing, doubled with each sleep that nothing has ended.
pub(super) const NAP: Span = Span::millis(1);
pub(super) const NAP_MAX: Span = Span::millis(8);

/// One port.
pub(super) struct Port<'m> {
    /// Of an RDMA port that was asked for one; dropped before the rail that it stands on.
    companion: Option<Result<Companion<'m>, CompanionError>>,
    /// Flushes of an RDMA port; dropped likewise.
    flush: Flushing,
    pub(super) rail: PortRail<'m>,
    pub(super) seats: Seats,
    /// What it calls our mailboxes.
    mailbox_key: RailKey,
    /// When it is to be brought up again that is down.
    revive_at: Instant,
    /// Its records, which it is dropped before.
    _records: Reserve,
}

impl Port<'_> {
    /// Whether a poll has nothing to do here; what waits may wait for the port.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.rail.is_idle() && !self.seats.is_waiting()
    }

    /// A poll; its events name peers as all rails know them.
    #[inline(always)]
    pub(super) fn poll(
        &mut self,
        lane_bits: u32,
        out: &mut [Completion],
        budget: Bytes,
        now: Instant,
    ) -> usize {
        let Port { rail, seats, revive_at, .. } = self;
        if rail.is_down() && now >= *revive_at {
            rail.revive(now);
            *revive_at = now.after(LOOK);
        }
        let found = rail.poll(out, budget, now);
        for event in &mut out[..found] {
            let is_end = matches!(event, Completion::PeerDown { .. });
            let peer = peer_of(event);
            let lane = seats.lane(peer.as_usize());
            if is_end && seats.was_prepared(peer.as_usize()) {
                // the peer cannot join it, and waits for another
                let _ = rail.peer_detach(*peer);
                seats.later(peer.as_usize(), lane as u8, now, Later::Down);
            }
            *peer = PeerIndex(peer.0 << lane_bits | lane);
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

impl<'m> RailSet<'m> {
    /// Opens a port for connections as far as it has completions for them; says for how many. Its
    /// place is the number of those before.
    ///
    /// # Safety
    /// - as [`PortRail::open`], when this is dropped.
    pub unsafe fn port_add(
        &mut self,
        regions_max: u32,
        payload_bytes_max: u32,
        config: &PortConfig,
    ) -> Result<u32, PortOpenError> {
        let peers_max = self.on.len() as u32 >> self.lane_bits;
        let limits = PortLimits { peers_max, regions_max, payload_bytes_max };
        // SAFETY: this function's contract.
        match unsafe { self.port_add_for(&limits, config) } {
            Err(error) => {
                let most = error.peers_most(peers_max).ok_or(error)?;
                // SAFETY: this function's contract.
                unsafe { self.port_add_for(&PortLimits { peers_max: most, ..limits }, config) }
            }
            done => done,
        }
    }

    /// As [`RailSet::port_add`].
    ///
    /// # Safety
    /// - as there.
    unsafe fn port_add_for(
        &mut self,
        limits: &PortLimits,
        config: &PortConfig,
    ) -> Result<u32, PortOpenError> {
        let length = config.bytes(limits);
        let records = Reserve::create(length).map_err(PortOpenError::Records)?;
        // SAFETY: a fresh mapping reads as zero and is aligned to a page; it lives until the rail
        // is gone (order of the fields), and nobody else knows it.
        let mut carver = unsafe { Carver::over_zeroed(records.start(), length) };
        // SAFETY: `port_add`'s contract.
        let rail = unsafe { PortRail::open(&mut carver, limits, config)? };
        self.polled = self.polled.and(rail.caps());
        let seats = Seats::new(limits.peers_max);
        let (mailbox_key, revive_at) = (RailKey(0), Instant(0));
        let companion = None;
        let flush = Flushing::default();
        let _records = records;
        self.ports.push(Port { companion, flush, rail, seats, mailbox_key, revive_at, _records });
        if self.alarm.is_none() {
            self.alarm = Alarm::create().ok();
        }
        Ok(limits.peers_max)
    }

    /// Closes a port that has no peers; the places of those behind it move up.
    pub fn port_remove(&mut self, place: usize) {
        drop(self.ports.remove(place));
    }

    /// Makes the companion of a port of RDMA; of another one, nothing.
    ///
    /// *Errors*: why it has none.
    ///
    /// *Cost*: as [`Companion::open`].
    pub fn companion_open(&mut self, place: usize) -> Result<(), CompanionError> {
        let Port { rail, companion, .. } = &mut self.ports[place];
        let PortRail::Verbs(rail) = rail else { return Ok(()) };
        let opened = Companion::open(rail);
        let result = opened.as_ref().map(|_| ()).map_err(|error| *error);
        *companion = Some(opened);
        result
    }

    /// The companion of a port, or why it has none; `None`: it was asked for none.
    pub fn companion(&self, place: usize) -> Option<Result<&Companion<'m>, CompanionError>> {
        let companion = self.ports.get(place)?.companion.as_ref()?;
        Some(companion.as_ref().map_err(|error| *error))
    }

    /// The same, to add by.
    pub fn companion_mut(
        &mut self,
        place: usize,
    ) -> Option<Result<&mut Companion<'m>, CompanionError>> {
        let companion = self.ports.get_mut(place)?.companion.as_mut()?;
        Some(companion.as_mut().map_err(|error| *error))
    }

    /// Takes what the device of a port says of its companion's adds.
    pub fn companion_poll(&mut self, place: usize) {
        if let Some(Port { rail: PortRail::Verbs(rail), companion: Some(Ok(it)), .. }) =
            self.ports.get_mut(place)
        {
            it.poll(rail);
        }
    }

    /// Whether adds of companions are on their way: their ends wake nobody.
    pub fn has_adds(&self) -> bool {
        self.ports.iter().any(|port| matches!(&port.companion, Some(Ok(it)) if it.is_busy()))
    }

    /// How many ports there are.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// A port.
    pub fn port(&self, place: usize) -> Option<&PortRail<'m>> {
        self.ports.get(place).map(|port| &port.rail)
    }

    /// Registration on a port.
    pub fn port_domain(&self, place: usize) -> PortDomain<'m> {
        self.ports[place].rail.port_domain()
    }

    /// What a port calls our mailboxes.
    pub fn mailbox_key(&self, place: usize) -> RailKey {
        self.ports[place].mailbox_key
    }

    /// Says so.
    pub fn mailbox_key_set(&mut self, place: usize, key: RailKey) {
        self.ports[place].mailbox_key = key;
    }

    /// The place of the port that a peer is on, if it is on one: from its first queue pair until it
    /// is closed.
    pub fn port_of(&self, peer: PeerIndex) -> Option<usize> {
        self.on(peer).checked_sub(ON_PORT).map(usize::from)
    }

    fn number(&self, peer: PeerIndex) -> PeerIndex {
        PeerIndex(peer.0 >> self.lane_bits)
    }

    fn lane(&self, peer: PeerIndex) -> u8 {
        (peer.0 & ((1 << self.lane_bits) - 1)) as u8
    }

    /// The port that a peer is on, and how it numbers the peer.
    pub fn port_end(&self, peer: PeerIndex) -> Option<(&PortRail<'m>, PeerIndex)> {
        Some((self.port(self.port_of(peer)?)?, self.number(peer)))
    }

    /// The same, to be changed.
    pub fn port_end_mut(&mut self, peer: PeerIndex) -> Option<(&mut PortRail<'m>, PeerIndex)> {
        let (place, number) = (self.port_of(peer)?, self.number(peer));
        Some((&mut self.ports.get_mut(place)?.rail, number))
    }

    /// Whether something that was posted to a living peer has not reached its host yet.
    pub fn is_undelivered(&mut self, peer: PeerIndex) -> bool {
        match self.port_end_mut(peer) {
            Some((rail, number)) => rail.is_undelivered(number),
            None => self.is_tcp_undelivered(peer),
        }
    }

    /// The same of messages alone; of a port, of all.
    pub fn is_message_undelivered(&mut self, peer: PeerIndex) -> bool {
        match self.port_end_mut(peer) {
            Some((rail, number)) => rail.is_undelivered(number),
            None => self.tcp_of(peer).is_some_and(|tcp| tcp.is_message_undelivered(peer)),
        }
    }

    /// See [`PortRail::is_awaiting`].
    pub fn is_awaiting(&mut self, peer: PeerIndex, awaits: fn(OpId) -> bool) -> bool {
        match self.port_end_mut(peer) {
            Some((rail, number)) => rail.is_awaiting(number, awaits),
            None => self.is_tcp_undelivered(peer),
        }
    }

    /// The connection of a peer leaves its seat on a port.
    pub(super) fn seat_forget(&mut self, peer: PeerIndex, place: usize) {
        let number = self.number(peer).as_usize();
        self.ports[place].seats.forget(number);
    }

    /// Prepares a queue pair for a peer; see [`PortRail::peer_prepare`].
    pub fn pair_prepare(
        &mut self,
        peer: PeerIndex,
        place: usize,
        generation: RailGeneration,
        random: u32,
    ) -> Result<LaneEnd, PortPeerError> {
        let (number, lane) = (self.number(peer), self.lane(peer));
        let port = self.ports.get_mut(place).ok_or(PortPeerError::Index)?;
        if !port.seats.has(number.as_usize()) {
            return Err(PortPeerError::Index);
        }
        let mailbox_key = port.mailbox_key;
        let hello = port.rail.peer_prepare(number, generation, random, mailbox_key)?;
        port.seats.prepared(number.as_usize(), lane);
        self.on[peer.as_usize()] = ON_PORT + place as u8;
        Ok(hello)
    }

    /// Whether a port has refused a queue pair to a peer that waits for one.
    pub fn is_refusing(&self, place: usize) -> bool {
        self.ports.get(place).is_some_and(|port| port.seats.is_refused())
    }

    /// The port has refused to prepare a peer's queue pair: it is asked again later. `false`: it
    /// has no place for that peer, and is not.
    pub fn pair_refused(&mut self, peer: PeerIndex, place: usize, now: Instant) -> bool {
        let number = self.number(peer).as_usize();
        let Some(seats) = self.seats_of(place, number) else { return false };
        seats.was_refused(number);
        self.pair_later(peer, place, now, Later::Missed);
        true
    }

    /// Whether a port is down: a queue pair cannot be joined then.
    pub fn is_down(&self, place: usize) -> bool {
        self.ports.get(place).is_some_and(|port| port.rail.is_down())
    }

    /// The queue pair of a peer is to be prepared later.
    pub fn pair_later(&mut self, peer: PeerIndex, place: usize, now: Instant, why: Later) {
        let (number, lane) = (self.number(peer).as_usize(), self.lane(peer));
        let Some(seats) = self.seats_of(place, number) else { return };
        seats.later(number, lane, now, why);
        self.on[peer.as_usize()] = ON_PORT + place as u8;
    }

    /// The queue pair of a peer is to be joined later, to the end of this generation of its lane:
    /// nobody answers for that end yet. `false`: nobody has for too long.
    pub fn pair_unanswered(&mut self, peer: PeerIndex, now: Instant, generation: u32) -> bool {
        let (number, place) = (self.number(peer).as_usize(), self.port_of(peer));
        let seats = place.and_then(|place| self.seats_of(place, number));
        seats.is_some_and(|seats| seats.unanswered(number, now, generation))
    }

    /// Whether [`RailSet::pair_due`] may have one to name.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.ports.iter().any(|port| port.seats.is_waiting())
    }

    /// The next peer with whose queue pair something is to be done now, on which port, and what.
    /// Each is named once.
    pub fn pair_due(&mut self, now: Instant) -> Option<(PeerIndex, usize, Due)> {
        for (place, port) in self.ports.iter_mut().enumerate() {
            if let Some((number, due)) = port.seats.due(now) {
                let peer = (number as u32) << self.lane_bits | port.seats.lane(number);
                return Some((PeerIndex(peer), place, due));
            }
        }
        None
    }

    /// The seats of a port, if that number has one.
    fn seats_of(&mut self, place: usize, number: usize) -> Option<&mut Seats> {
        let seats = self.ports.get_mut(place).map(|port| &mut port.seats)?;
        seats.has(number).then_some(seats)
    }

    /// Joins it to its other end; see [`PortRail::peer_connect`].
    pub fn pair_connect(&mut self, peer: PeerIndex, other: &LaneEnd) -> Result<(), PortPeerError> {
        let place = self.port_of(peer).ok_or(PortPeerError::Index)?;
        let number = self.number(peer);
        let Port { rail, seats, .. } = &mut self.ports[place];
        rail.peer_connect(number, other)?;
        seats.joined(number.as_usize());
        Ok(())
    }

    /// The last queue pair of a peer has carried something. `enough`: that its path is one for
    /// payload, too.
    pub fn pair_carried(&mut self, peer: PeerIndex, place: usize, enough: bool) {
        let number = self.number(peer).as_usize();
        if let Some(seats) = self.seats_of(place, number) {
            seats.carried(number, enough);
        }
    }

    /// Whether [`RailSet::doubted`] or [`RailSet::complaint`] may have a peer to name.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.ports.iter().any(|port| port.rail.has_words())
    }

    /// The next peer of which is to be known whether its program has polled within that time; see
    /// [`PortRail::doubted`].
    pub fn doubted(&mut self) -> Option<(PeerIndex, Span)> {
        self.next_named(PortRail::doubted)
    }

    /// The next peer that people should know something of; see [`PortRail::complaint`].
    pub fn complaint(&mut self) -> Option<(PeerIndex, Complaint)> {
        self.next_named(PortRail::complaint)
    }

    /// What the first port says that names a peer of its own: of that peer as all rails know it.
    fn next_named<T>(
        &mut self,
        says: impl Fn(&mut PortRail<'m>) -> Option<(PeerIndex, T)>,
    ) -> Option<(PeerIndex, T)> {
        let lane_bits = self.lane_bits;
        self.ports.iter_mut().find_map(|Port { rail, seats, .. }| {
            let (PeerIndex(number), said) = says(rail)?;
            Some((PeerIndex(number << lane_bits | seats.lane(number as usize)), said))
        })
    }

    /// Begins a flush of what a port has written to memory of ours; a vendor's rail has none.
    pub fn flush_begin(
        &mut self,
        place: usize,
        id: OpId,
        (key, address): (RailKey, u64),
        now: Instant,
    ) -> Result<Posted, PostError> {
        match self.ports.get_mut(place) {
            Some(Port { rail: PortRail::Verbs(rail), flush, .. }) => {
                flush.begin(rail, id, (key, address), now)
            }
            Some(Port { rail: PortRail::Libfabric(rail), .. }) => {
                rail.flush_begin(id, key, address)
            }
            Some(Port { rail: PortRail::Vendor(_), .. }) | None => Err(PostError::Unsupported),
        }
    }

    /// The flush of a port that has ended.
    pub fn flush_end(&mut self, place: usize, now: Instant) -> Option<(OpId, Result<(), OpError>)> {
        match self.ports.get_mut(place)? {
            Port { rail: PortRail::Verbs(rail), flush, .. } => flush.end(rail, now),
            Port { rail: PortRail::Libfabric(rail), .. } => rail.flush_end(),
            Port { rail: PortRail::Vendor(_), .. } => None,
        }
    }

    /// What a fence of a port must reach that settles a flush which begins now, and what fences
    /// have reached: see [`Verbs::fenced_through`](crate::provider::verbs::Verbs::fenced_through)
    /// and [`Libfabric::fenced_through`](crate::provider::libfabric::Libfabric::fenced_through).
    pub fn flush_fences(&self, place: usize) -> (RailGeneration, RailGeneration) {
        let (before, through) = match self.port(place) {
            Some(PortRail::Verbs(rail)) => (rail.health().revivals, rail.fenced_through()),
            Some(PortRail::Libfabric(rail)) => (rail.health().reopened, rail.fenced_through()),
            Some(PortRail::Vendor(_)) | None => (0, 0),
        };
        (RailGeneration(before + 1), RailGeneration(through))
    }
}
