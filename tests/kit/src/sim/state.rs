//! Ports, ends of connections, receive slots and events of a simulated network.

use super::config::{Breach, PORTS_MAX, SimConfig, SimCounts};
use super::flight::Flight;
use crate::random::Random;
use crosstie::base::carve::{BlockTooSmall, Carver, RawSlice, Zeroable, bytes_for, lines};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::Instant;
use crosstie::fabric::{
    CloseError, Completion, DownCause, Head, OpError, OpErrorKind, OpId, RecvSlot,
};
use crosstie::provider::fifo::Fifo;
use crosstie::provider::host_domain::HostDomain;
use crosstie::provider::touch;

/// End of a list of free slots; indices are stored plus one.
const NONE: u32 = 0;

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(super) enum Link {
    Closed,
    Open,
    Down,
    Fenced,
}

/// One end of a connection; the ends of port `p` start at `p * peers_max`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct End {
    pub(super) last_due: u64,
    /// Bytes per second that it carries; 0: any number at once. Outlives its connections.
    pub(super) speed: u64,
    /// When it has carried what was posted.
    pub(super) free_at: u64,
    /// Counts the connections, so that a partner is recognized.
    serial: u64,
    partner: u32,
    free: u32,
    pub(super) inflight: u32,
    pub(super) link: Link,
}

// SAFETY: integers and an enum whose zero is `Closed`.
unsafe impl Zeroable for End {}

/// The head of a receive slot.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
struct Slot {
    head: Head,
    length: u32,
    next: u32,
    held: bool,
}

// SAFETY: integers and a `bool`.
unsafe impl Zeroable for Slot {}

/// What a port's `poll` will report.
#[derive(Copy, Clone, Debug)]
#[repr(u32)]
pub(super) enum Event {
    Received {
        end: u32,
        slot: u32,
    },
    Immediate {
        end: u32,
        slot: u32,
        immediate: u32,
    },
    Ended {
        end: u32,
        id: u64,
    },
    Failed {
        end: u32,
        id: u64,
        kind: OpErrorKind,
        code: i32,
    },
    Fenced {
        end: u32,
        id: u64,
        generation: u32,
    },
    Down {
        end: u32,
        cause: DownCause,
    },
    /// Of an end that was closed since.
    Void,
}

// SAFETY: the tag zero is `Received` of two integers.
unsafe impl Zeroable for Event {}

/// One endpoint.
#[derive(Debug)]
pub(super) struct Port<'m> {
    events: Option<Fifo<'m, Event>>,
    /// Accepted ops that were not reported as ended.
    pub(super) inflight: u32,
}

/// Everything that a network holds.
#[derive(Debug)]
pub(super) struct State<'m> {
    pub(super) config: SimConfig,
    pub(super) breach: Breach,
    pub(super) counts: SimCounts,
    pub(super) random: Random,
    pub(super) serial: u64,
    pub(super) domain: HostDomain<'m>,
    pub(super) ports: [Port<'m>; PORTS_MAX],
    pub(super) ends: &'m mut [End],
    pub(super) flights: &'m mut [Flight],
    slots: &'m mut [Slot],
    payloads: &'m mut [u8],
    /// Payloads of sends under way, reached through addresses only.
    flight_payloads: RawSlice,
}

const fn ends(config: SimConfig) -> usize {
    (config.ports * config.peers_max) as usize
}

const fn slots(config: SimConfig) -> usize {
    ends(config) * config.recv_slots as usize
}

const fn stride(config: SimConfig) -> usize {
    lines(config.payload_max.as_usize())
}

/// Events of one port: each slot's, each end's death, each op's completion.
const fn events(config: SimConfig) -> usize {
    let own = config.peers_max * (config.recv_slots + 1) + config.flights_max;
    (own as usize).next_power_of_two()
}

/// What [`State::carve`] cuts.
pub(super) const fn bytes(config: SimConfig) -> usize {
    config.ports as usize * bytes_for::<Event>(events(config))
        + bytes_for::<End>(ends(config))
        + bytes_for::<Flight>(config.flights_max as usize)
        + bytes_for::<Slot>(slots(config))
        + bytes_for::<u8>(slots(config) * stride(config))
        + bytes_for::<u8>(config.flights_max as usize * stride(config))
}

impl<'m> State<'m> {
    pub(super) fn carve(
        config: SimConfig,
        domain: HostDomain<'m>,
        carver: &mut Carver<'m>,
    ) -> Result<State<'m>, BlockTooSmall> {
        let mut ports = [const { Port { events: None, inflight: 0 } }; PORTS_MAX];
        for port in &mut ports[..config.ports as usize] {
            port.events = Some(Fifo::new(carver.slice(events(config))?));
        }
        Ok(State {
            config,
            breach: Breach::None,
            counts: SimCounts::default(),
            random: Random::new(config.seed),
            serial: 0,
            domain,
            ports,
            ends: carver.slice(ends(config))?,
            flights: carver.slice(config.flights_max as usize)?,
            slots: carver.slice(slots(config))?,
            payloads: carver.slice(slots(config) * stride(config))?,
            flight_payloads: carver.raw(config.flights_max as usize * stride(config))?,
        })
    }

    /// The table index of an end, if there is such a peer.
    pub(super) fn end(&self, port: u32, peer: PeerIndex) -> Option<usize> {
        let known = peer.0 < self.config.peers_max;
        known.then(|| (port * self.config.peers_max + peer.0) as usize)
    }

    fn peer(&self, end: u32) -> PeerIndex {
        PeerIndex(end % self.config.peers_max)
    }

    /// Where the payload of a send under way is kept.
    pub(super) fn flight_payload(&self, index: usize) -> u64 {
        self.flight_payloads.start as u64 + (index * stride(self.config)) as u64
    }

    pub(super) fn connect(&mut self, a: u32, b: u32) -> Option<(PeerIndex, PeerIndex)> {
        let (a, b) = (self.end_free(a)?, self.end_free(b)?);
        self.join(a, b);
        Some((self.peer(a as u32), self.peer(b as u32)))
    }

    pub(super) fn connect_at(&mut self, a: u32, b: u32, peer: PeerIndex) -> Option<()> {
        let (a, b) = (self.end(a, peer)?, self.end(b, peer)?);
        let free = [a, b].iter().all(|end| self.ends[*end].link == Link::Closed);
        free.then(|| self.join(a, b))
    }

    fn join(&mut self, a: usize, b: usize) {
        self.serial += 1;
        for (end, partner) in [(a, b), (b, a)] {
            let free = self.slots_list(end);
            let (serial, partner) = (self.serial, partner as u32);
            let End { speed, .. } = self.ends[end];
            let (link, last_due, free_at, inflight) = (Link::Open, 0, 0, 0);
            self.ends[end] =
                End { last_due, speed, free_at, serial, partner, free, inflight, link };
        }
    }

    fn end_free(&self, port: u32) -> Option<usize> {
        let first = (port * self.config.peers_max) as usize;
        let mut range = first..first + self.config.peers_max as usize;
        range.find(|end| self.ends[*end].link == Link::Closed)
    }

    /// The other end, if it still belongs to the same connection.
    fn partner(&self, end: usize) -> Option<usize> {
        let partner = self.ends[end].partner as usize;
        let same = self.ends[partner].serial == self.ends[end].serial;
        (same && self.ends[partner].link != Link::Closed).then_some(partner)
    }

    /// Lists the slots that are not held; says which is the first.
    fn slots_list(&mut self, end: usize) -> u32 {
        let count = self.config.recv_slots;
        let first = end * count as usize;
        let mut next = NONE;
        for (index, slot) in self.slots[first..][..count as usize].iter_mut().enumerate().rev() {
            if !slot.held {
                slot.next = core::mem::replace(&mut next, index as u32 + 1);
            }
        }
        next
    }

    fn slots_discard(&mut self, end: usize) {
        let count = self.config.recv_slots as usize;
        self.slots[end * count..][..count].iter_mut().for_each(|slot| slot.held = false);
    }

    fn slot_index(&self, end: usize, slot: u32) -> usize {
        end * self.config.recv_slots as usize + slot as usize
    }

    /// Takes a receive slot at the other end of a connection.
    pub(super) fn slot_take_at_partner(&mut self, end: usize) -> Option<(usize, u32)> {
        let to = self.partner(end)?;
        let slot = self.ends[to].free.checked_sub(1)?;
        let index = self.slot_index(to, slot);
        self.slots[index].held = true;
        self.ends[to].free = self.slots[index].next;
        Some((to, slot))
    }

    pub(super) fn slot_fill(&mut self, end: usize, slot: u32, head: &Head, from: u64, length: u32) {
        let index = self.slot_index(end, slot);
        self.slots[index].head = *head;
        self.slots[index].length = length;
        let to = &mut self.payloads[index * stride(self.config)..][..length as usize];
        // SAFETY: our own copy of the payload, or a span in a region that the flight has pinned.
        unsafe { touch::copy_in(from, to) };
    }

    fn slot_give_back(&mut self, end: usize, slot: u32) {
        let index = self.slot_index(end, slot);
        self.slots[index].held = false;
        self.slots[index].next = self.ends[end].free;
        self.ends[end].free = slot + 1;
    }

    /// Table indices of the end and of the slot. *Panics* when the slot is not held.
    fn slot_held(&self, port: u32, peer: PeerIndex, slot: RecvSlot) -> (usize, usize) {
        let known = slot.0 < u64::from(self.config.recv_slots);
        let end = self.end(port, peer).filter(|_| known).expect("no such slot");
        let index = self.slot_index(end, slot.0 as u32);
        assert!(self.slots[index].held, "slot not held");
        (end, index)
    }

    pub(super) fn slot_release(&mut self, port: u32, peer: PeerIndex, slot: RecvSlot) {
        let (end, _) = self.slot_held(port, peer, slot);
        self.slot_give_back(end, slot.0 as u32);
    }

    pub(super) fn payload(
        &self,
        port: u32,
        peer: PeerIndex,
        slot: RecvSlot,
        from: u64,
        length: u64,
    ) -> &[u8] {
        let (_, index) = self.slot_held(port, peer, slot);
        let whole = self.slots[index].length as usize;
        let start = index * stride(self.config);
        &self.payloads[start..start + whole][from as usize..][..length as usize]
    }

    pub(super) fn event_push(&mut self, end: usize, event: Event) {
        let port = end / self.config.peers_max as usize;
        self.events(port).push(event);
    }

    fn events(&mut self, port: usize) -> &mut Fifo<'m, Event> {
        self.ports[port].events.as_mut().expect("carved for every port")
    }

    /// The next event of a port.
    pub(super) fn report(&mut self, port: u32) -> Option<Completion> {
        loop {
            let event = self.events(port as usize).pop()?;
            if let Some(completion) = self.completion(port, event) {
                return Some(completion);
            }
        }
    }

    fn completion(&mut self, port: u32, event: Event) -> Option<Completion> {
        Some(match event {
            Event::Received { end, slot } => {
                let at = &self.slots[self.slot_index(end as usize, slot)];
                let (head, length) = (at.head, at.length);
                Completion::Received {
                    peer: self.peer(end),
                    slot: RecvSlot(slot.into()),
                    head,
                    length,
                }
            }
            Event::Immediate { end, slot, immediate } => {
                self.slot_give_back(end as usize, slot);
                Completion::Immediate { peer: self.peer(end), immediate }
            }
            Event::Ended { end, id } => {
                Completion::Done { peer: self.ended(port, end), id: OpId(id), result: Ok(()) }
            }
            Event::Failed { end, id, kind, code } => {
                let result = Err(OpError { kind, code });
                Completion::Done { peer: self.ended(port, end), id: OpId(id), result }
            }
            Event::Fenced { end, id, generation } => {
                let generation = RailGeneration(generation);
                Completion::Fenced { peer: self.ended(port, end), id: OpId(id), generation }
            }
            Event::Down { end, cause } => Completion::PeerDown { peer: self.peer(end), cause },
            Event::Void => return None,
        })
    }

    fn ended(&mut self, port: u32, end: u32) -> PeerIndex {
        self.ends[end as usize].inflight -= 1;
        self.ports[port as usize].inflight -= 1;
        self.peer(end)
    }

    fn go_down(&mut self, end: usize, cause: DownCause, now: Instant) {
        if matches!(self.ends[end].link, Link::Open | Link::Fenced) {
            self.cancel(end, OpErrorKind::PeerDown, true, now);
            self.ends[end].link = Link::Down;
            self.event_push(end, Event::Down { end: end as u32, cause });
        }
    }

    /// Ends a connection at both of its ends.
    pub(super) fn link_break(&mut self, end: usize, cause: DownCause, now: Instant) {
        let partner = self.partner(end);
        self.go_down(end, cause, now);
        if let Some(partner) = partner {
            self.go_down(partner, cause, now);
        }
    }

    pub(super) fn peer_fail(&mut self, port: u32, peer: PeerIndex, cause: DownCause, now: Instant) {
        if let Some(end) = self.end(port, peer) {
            self.link_break(end, cause, now);
        }
    }

    /// From here on the end takes no ops; what is under way goes on until the fence holds.
    pub(super) fn fence_begin(&mut self, end: usize) {
        if self.ends[end].link == Link::Open {
            self.ends[end].link = Link::Fenced;
        }
    }

    /// Nothing of this connection is left when this returns, in either direction.
    pub(super) fn fence_end(&mut self, index: usize, generation: u32, now: Instant) {
        let Flight { end, id, .. } = self.flights[index];
        let own = end as usize;
        self.cancel(own, OpErrorKind::Canceled, false, now);
        self.exorcise(own);
        if let Some(partner) = self.partner(own) {
            self.cancel(partner, OpErrorKind::PeerDown, false, now);
            self.exorcise(partner);
            self.go_down(partner, DownCause::Failed, now);
        }
        self.vanish(index);
        self.counts.fences += 1;
        self.event_push(own, Event::Fenced { end, id, generation });
    }

    pub(super) fn peer_close(
        &mut self,
        port: u32,
        peer: PeerIndex,
        keep_slots: bool,
    ) -> Result<(), CloseError> {
        let end = self.end(port, peer).ok_or(CloseError::Stale)?;
        if self.ends[end].link == Link::Closed {
            return Err(CloseError::Stale);
        }
        if self.ends[end].inflight != 0 {
            return Err(CloseError::Busy);
        }
        self.exorcise(end);
        if let Some(partner) = self.partner(end) {
            self.cancel(partner, OpErrorKind::PeerDown, false, Instant(0));
            self.exorcise(partner);
            self.go_down(partner, DownCause::Closed, Instant(0));
        }
        self.events_void(end);
        self.ends[end].link = Link::Closed;
        if !keep_slots {
            self.slots_discard(end);
        }
        Ok(())
    }

    fn events_void(&mut self, end: usize) {
        let events = self.events(end / self.config.peers_max as usize);
        for n in 0..events.len() {
            let event = events.at_mut(n);
            if event.end() == Some(end as u32) {
                *event = Event::Void;
            }
        }
    }
}

impl Event {
    fn end(&self) -> Option<u32> {
        match *self {
            Event::Received { end, .. }
            | Event::Immediate { end, .. }
            | Event::Ended { end, .. }
            | Event::Failed { end, .. }
            | Event::Fenced { end, .. }
            | Event::Down { end, .. } => Some(end),
            Event::Void => None,
        }
    }
}
