//! Peers, receive slots and events of a loopback.

use super::jobs::Job;
use super::{HostDomain, Limits, PostResult, Transfer, touch};
use crate::base::carve::{BlockTooSmall, Carver, Zeroable, bytes_for, lines};
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::fabric::{
    Completion, DownCause, HEAD_BYTES, Head, LocalSpan, Next, OpError, OpErrorKind, OpId, Posted,
    RecvSlot,
};
use crate::provider::fifo::Fifo;

/// Events beyond those that have a place of their own: immediates and errors of ops that ended
/// at post. Running out says `Again`.
const LOOSE_EVENTS_MIN: u32 = 64;

/// End of a list of free slots; table indices are stored plus one. Also the owner of a free slot.
const NONE: u32 = 0;

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(super) enum State {
    Closed,
    Open,
    Down,
    Fenced,
}

/// One end of a connection.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Peer {
    state: State,
    /// First free slot plus one.
    free: u32,
    partner: u32,
    /// Jobs posted to this peer that wait.
    pub(super) jobs: u32,
    /// Accepted ops whose completion was not reported.
    pub(super) inflight: u32,
}

// SAFETY: integers and an enum whose zero is `Closed`.
unsafe impl Zeroable for Peer {}

/// The head of a receive slot; its payload lies in a table of its own.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub(super) struct Slot {
    head: Head,
    length: u32,
    next: u32,
    /// The peer that holds it, plus one.
    owner: u32,
}

// SAFETY: integers.
unsafe impl Zeroable for Slot {}

/// What `poll` will report.
#[derive(Copy, Clone, Debug)]
#[repr(u32)]
pub(super) enum Event {
    Received {
        peer: u32,
        slot: u32,
    },
    Ended {
        peer: u32,
        id: u64,
    },
    Failed {
        peer: u32,
        id: u64,
        kind: OpErrorKind,
    },
    Immediate {
        peer: u32,
        immediate: u32,
    },
    Fenced {
        peer: u32,
        id: u64,
        generation: u32,
    },
    Down {
        peer: u32,
        cause: DownCause,
    },
    /// Of a peer that was closed since.
    Void,
}

// SAFETY: the tag zero is `Received` of two integers.
unsafe impl Zeroable for Event {}

/// Everything that a loopback holds.
#[derive(Debug)]
pub(super) struct Tables<'m> {
    pub(super) limits: Limits,
    /// From one payload to the next.
    stride: usize,
    pub(super) peers: &'m mut [Peer],
    slots: &'m mut [Slot],
    payloads: &'m mut [u8],
    pub(super) events: Fifo<'m, Event>,
    pub(super) jobs: Fifo<'m, Job>,
    pub(super) regions: HostDomain<'m>,
}

/// Events with a place of their own: each slot's arrival, each peer's end, each job's two.
const fn events_reserved(limits: Limits) -> usize {
    (limits.peers_max * (limits.slots + 1) + 2 * limits.jobs) as usize
}

const fn events(limits: Limits) -> usize {
    (events_reserved(limits) + LOOSE_EVENTS_MIN as usize).next_power_of_two()
}

const fn slots(limits: Limits) -> usize {
    (limits.peers_max * limits.slots) as usize
}

const fn stride(limits: Limits) -> usize {
    lines(limits.payload_max.as_usize())
}

/// What [`Tables::carve`] cuts, without the regions.
pub(super) const fn bytes(limits: Limits) -> usize {
    bytes_for::<Peer>(limits.peers_max as usize)
        + bytes_for::<Slot>(slots(limits))
        + bytes_for::<u8>(slots(limits) * stride(limits))
        + bytes_for::<Event>(events(limits))
        + bytes_for::<Job>(limits.jobs as usize)
}

impl<'m> Tables<'m> {
    pub(super) fn carve(
        limits: Limits,
        carver: &mut Carver<'m>,
    ) -> Result<Tables<'m>, BlockTooSmall> {
        Ok(Tables {
            limits,
            stride: stride(limits),
            peers: carver.slice(limits.peers_max as usize)?,
            slots: carver.slice(slots(limits))?,
            payloads: carver.slice(slots(limits) * stride(limits))?,
            events: Fifo::new(carver.slice(events(limits))?),
            jobs: Fifo::new(carver.slice(limits.jobs as usize)?),
            regions: HostDomain::carve(carver, limits.regions_max)?,
        })
    }

    #[inline]
    pub(super) fn state(&self, peer: PeerIndex) -> Option<State> {
        self.peers.get(peer.as_usize()).map(|peer| peer.state)
    }

    #[inline]
    pub(super) fn partner(&self, peer: usize) -> usize {
        self.peers[peer].partner as usize
    }

    /// Where an op is posted to, and where it appears.
    #[inline]
    pub(super) fn ends(&self, peer: PeerIndex) -> (usize, usize) {
        (peer.as_usize(), self.partner(peer.as_usize()))
    }

    pub(super) fn join(&mut self, a: usize, b: usize) {
        for (peer, partner) in [(a, b), (b, a)] {
            let free = self.slots_free_all(peer);
            let partner = partner as u32;
            self.peers[peer] = Peer { state: State::Open, free, partner, jobs: 0, inflight: 0 };
        }
    }

    fn slots_free_all(&mut self, peer: usize) -> u32 {
        let count = self.limits.slots as usize;
        let first = peer * count;
        let end = first + count;
        for (index, slot) in self.slots.iter_mut().enumerate().take(end).skip(first) {
            slot.next = if index + 1 < end { index as u32 + 2 } else { NONE };
            slot.owner = NONE;
        }
        if count == 0 { NONE } else { first as u32 + 1 }
    }

    /// Where a send appears that nothing delays; `None` when the peer is not open, or has jobs.
    #[inline(always)]
    pub(super) fn straight(&self, peer: PeerIndex) -> Option<usize> {
        let from = self.peers.get(peer.as_usize())?;
        (from.state == State::Open && from.jobs == 0).then_some(from.partner as usize)
    }

    /// Table index of a slot that was free.
    #[inline(always)]
    pub(super) fn slot_take(&mut self, peer: usize) -> Option<u32> {
        let free = &mut self.peers[peer].free;
        let index = free.checked_sub(1)?;
        let slot = &mut self.slots[index as usize];
        slot.owner = peer as u32 + 1;
        *free = slot.next;
        Some(index)
    }

    #[inline(always)]
    pub(super) fn slot_fill(&mut self, slot: u32, head: &Head, payload: LocalSpan) {
        let length = payload.length().as_usize();
        let start = slot as usize * self.stride;
        let slot = &mut self.slots[slot as usize];
        slot.head = *head;
        slot.length = length as u32;
        let to = &mut self.payloads[start..start + length];
        // SAFETY: the span's maker vouches for it, and our block is not part of it.
        unsafe { touch::copy_in(payload.address(), to) };
    }

    #[inline(always)]
    pub(super) fn slot_give_back(&mut self, peer: usize, slot: u32) {
        let free = &mut self.peers[peer].free;
        let place = &mut self.slots[slot as usize];
        place.owner = NONE;
        place.next = *free;
        *free = slot + 1;
    }

    #[inline]
    pub(super) fn slot_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        self.slot_held(peer, slot);
        self.slot_give_back(peer.as_usize(), slot.0 as u32);
    }

    /// A slot that the peer holds. *Panics* when it does not.
    #[inline(always)]
    fn slot_held(&self, peer: PeerIndex, slot: RecvSlot) -> &Slot {
        let place = &self.slots[slot.0 as usize];
        assert!(place.owner == peer.0 + 1, "slot not held");
        place
    }

    #[inline(always)]
    pub(super) fn payload(&self, peer: PeerIndex, slot: RecvSlot, from: u64, length: u64) -> &[u8] {
        let whole = u64::from(self.slot_held(peer, slot).length);
        assert!(from <= whole && length <= whole - from, "payload shorter");
        let start = slot.0 as usize * self.stride + from as usize;
        &self.payloads[start..start + length as usize]
    }

    /// Whether one more event without a place of its own fits.
    #[inline]
    pub(super) fn has_loose_room(&self) -> bool {
        self.events.room() > events_reserved(self.limits)
    }

    /// Queues the immediate of a write, if it has one, at the other end.
    #[inline]
    pub(super) fn announce(&mut self, peer: PeerIndex, imm: u64) {
        if imm != 0 {
            let to = self.partner(peer.as_usize()) as u32;
            self.events.push(Event::Immediate { peer: to, immediate: imm as u32 });
        }
    }

    /// Accepts an op whose one event is known already.
    pub(super) fn accept(&mut self, peer: PeerIndex, event: Event) -> PostResult {
        self.peers[peer.as_usize()].inflight += 1;
        self.events.push(event);
        Ok(Posted::Pending)
    }

    /// The regions that a copy must keep, or nothing if one of them does not hold its range. A
    /// copy of no bytes touches none, so its keys are not looked at.
    #[inline]
    pub(super) fn pins_of(&self, copy: &Transfer) -> Option<[u32; 2]> {
        if copy.length == 0 {
            return Some([0; 2]);
        }
        let (near, far) = (copy.local, copy.remote);
        let near = self.regions.find(near.key(), near.address(), copy.length)?;
        let far = self.regions.find(far.key, far.address, copy.length)?;
        Some([near + 1, far + 1])
    }

    /// Ends one direction's jobs and says so to whoever polls. Nothing if that was done before.
    pub(super) fn go_down(&mut self, peer: usize, cause: DownCause) {
        if matches!(self.peers[peer].state, State::Open | State::Fenced) {
            self.cancel(peer, OpErrorKind::PeerDown);
            self.peers[peer].state = State::Down;
            self.events.push(Event::Down { peer: peer as u32, cause });
        }
    }

    /// Makes sure that no job of either direction is left, nor can come.
    pub(super) fn fence(&mut self, peer: usize) {
        if self.peers[peer].state == State::Open {
            self.cancel(peer, OpErrorKind::Canceled);
            self.peers[peer].state = State::Fenced;
            self.go_down(self.partner(peer), DownCause::Closed);
        }
    }

    /// Forgets a peer that has no op in flight; its other end learns of it.
    pub(super) fn close(&mut self, peer: usize) {
        if self.peers[peer].state == State::Open {
            self.go_down(self.partner(peer), DownCause::Closed);
        }
        for n in 0..self.events.len() {
            let event = self.events.at_mut(n);
            if event.peer() == Some(peer as u32) {
                *event = Event::Void;
            }
        }
        self.peers[peer].state = State::Closed;
    }

    /// Takes the oldest event if it is an arrival.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Next {
        match self.events.front() {
            None => Next::Nothing,
            Some(&Event::Received { peer, slot }) => {
                let Slot { head, length, .. } = self.slots[slot as usize];
                self.events.skip();
                Next::Received { peer: PeerIndex(peer), slot: RecvSlot(slot.into()), head, length }
            }
            Some(_) => Next::Poll,
        }
    }

    /// Takes the oldest event and writes what there is to report. Says whether there is something.
    #[inline]
    pub(super) fn report(&mut self, out: &mut Completion) -> bool {
        match self.events.front() {
            Some(&Event::Received { peer, slot }) => {
                let at = &self.slots[slot as usize];
                let (head, length) = (at.head, at.length);
                let (peer, slot) = (PeerIndex(peer), RecvSlot(slot.into()));
                *out = Completion::Received { peer, slot, head, length };
            }
            Some(&Event::Immediate { peer, immediate }) => {
                *out = Completion::Immediate { peer: PeerIndex(peer), immediate };
            }
            Some(&Event::Ended { peer, id }) => *out = self.ended(peer, id, Ok(())),
            Some(&Event::Failed { peer, id, kind }) => {
                *out = self.ended(peer, id, Err(OpError { kind, code: 0 }));
            }
            Some(&Event::Fenced { peer, id, generation }) => {
                self.peers[peer as usize].inflight -= 1;
                let generation = RailGeneration(generation);
                *out = Completion::Fenced { peer: PeerIndex(peer), id: OpId(id), generation };
            }
            Some(&Event::Down { peer, cause }) => {
                *out = Completion::PeerDown { peer: PeerIndex(peer), cause };
            }
            Some(Event::Void) => {
                self.events.skip();
                return false;
            }
            None => return false,
        }
        self.events.skip();
        true
    }

    fn ended(&mut self, peer: u32, id: u64, result: Result<(), OpError>) -> Completion {
        self.peers[peer as usize].inflight -= 1;
        Completion::Done { peer: PeerIndex(peer), id: OpId(id), result }
    }
}

impl Event {
    fn peer(&self) -> Option<u32> {
        match *self {
            Event::Received { peer, .. }
            | Event::Ended { peer, .. }
            | Event::Failed { peer, .. }
            | Event::Immediate { peer, .. }
            | Event::Fenced { peer, .. }
            | Event::Down { peer, .. } => Some(peer),
            Event::Void => None,
        }
    }
}

const _: () = assert!(HEAD_BYTES + 12 <= size_of::<Slot>());
