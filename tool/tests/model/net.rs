//! A network of which nothing happens until the model says so: each op becomes a flight, and the
//! model lands them one by one, lets an end of a lane fail, or lets a fence hold.
//!
//! It is as bad as the provider contract (`crosstie::fabric`) lets it be. When one end of a lane
//! fails, the other goes on, and what was on its way may still land, with its events, until the
//! target's own fence holds. A write may be complete for its writer before it has landed.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Caps, CloseError, Completion, DeregisterError, Domain, DownCause, FenceKind, Head, Line,
    LocalSpan, MemoryDomain, Op, OpError, OpErrorKind, OpId, OpKind, PeerLife, PostError, Posted,
    Provider, RailKey, RecvSlot, Region, RegisterError, Source, Syscalls,
};
use crosstie::transport::limits::{CREDITS, RECEIVES_SPARE};

use crate::memory::{MAILBOX, Memory};

pub const LANES: usize = 2;
/// Longest payload of a send.
const PAYLOAD_MAX: Bytes = Bytes(2048);

/// What must not happen.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Invariant {
    /// (a) Two writes of one place are under way at once.
    OneWrite,
    /// (b) A receive ended while something of it was missing or could still land.
    Complete,
    /// (c) A request does not end, or ends badly although a lane lives.
    Ends,
    /// (d) A message came twice, or out of order.
    Once,
    /// (e) Memory was touched that its user has back.
    GivenBack,
}

/// A sentence about what happened all the same.
pub type Violation = (Invariant, String);

#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Link {
    Closed,
    Open,
    /// Its failure was reported.
    Down,
    /// Nothing lands here any more.
    Fenced,
}

/// One end of a lane.
#[derive(Copy, Clone, Hash, Debug)]
pub struct End {
    pub link: Link,
    /// Which use of the lane: what was posted in one lands in the same only.
    pub era: u32,
    /// The fence that is under way.
    pub fence: Option<(u64, u32)>,
}

#[derive(Clone, Hash, Debug)]
enum Cargo {
    Send {
        head: Head,
        payload: Vec<u8>,
    },
    Line {
        address: u64,
        line: Line,
    },
    /// `bytes` once the source has been read.
    Stripe {
        from: u64,
        length: u64,
        bytes: Option<Vec<u8>>,
        to: u64,
        immediate: u32,
    },
}

#[derive(Clone, Hash, Debug)]
struct Flight {
    id: u64,
    era: u32,
    /// Its completion has been reported, or was at post.
    told: bool,
    cargo: Cargo,
}

#[derive(Clone, Hash, Debug)]
enum Event {
    Received { lane: usize, slot: usize },
    Immediate { lane: usize, immediate: u32 },
    Done { lane: usize, id: u64, failed: bool },
    Fenced { lane: usize, id: u64, generation: u32 },
    Down { lane: usize },
}

/// Head and payload of a send.
type Message = (Head, Vec<u8>);

/// Everything that the network holds. Sides are 0 and 1.
pub struct Net {
    /// Whether ops are complete when they are posted, as on a socket, or when they have landed.
    local: bool,
    pub ends: [[End; LANES]; 2],
    flights: [[VecDeque<Flight>; LANES]; 2],
    events: [VecDeque<Event>; 2],
    slots: [[Vec<Option<Message>>; LANES]; 2],
    /// What stands in the mailbox of a side, by distance from its start.
    lines: [BTreeMap<u64, Line>; 2],
    /// Where the mailboxes really are.
    mailboxes: [*mut u8; 2],
    pub memory: Memory,
    pub wrong: Option<Violation>,
}

impl Net {
    pub fn new(local: bool, memory: Memory) -> Net {
        let closed = End { link: Link::Closed, era: 0, fence: None };
        Net {
            local,
            ends: [[closed; LANES]; 2],
            flights: Default::default(),
            events: Default::default(),
            slots: Default::default(),
            lines: Default::default(),
            mailboxes: [std::ptr::null_mut(); 2],
            memory,
            wrong: None,
        }
    }

    /// Says where the mailbox of a side is.
    pub fn mailbox_is(&mut self, side: usize, region: Region) {
        self.mailboxes[side] = std::ptr::with_exposed_provenance_mut(region.address as usize);
    }

    pub fn digest(&self, out: &mut impl Hasher) {
        self.ends.hash(out);
        self.flights.hash(out);
        self.events.hash(out);
        self.slots.hash(out);
        self.lines.hash(out);
        self.memory.hash(out);
    }

    pub fn accuse(&mut self, invariant: Invariant, sentence: String) {
        self.wrong.get_or_insert((invariant, sentence));
    }

    /// Opens one end of a lane, in its next use.
    pub fn open(&mut self, side: usize, lane: usize) {
        let end = &mut self.ends[side][lane];
        if end.link != Link::Closed && end.link != Link::Fenced {
            let sentence = format!("side {side} opens lane {lane} although it is not fenced");
            self.accuse(Invariant::OneWrite, sentence);
            return;
        }
        *end = End { link: Link::Open, era: end.era + 1, fence: None };
        if self.live(1 - side).any(|(other, _, _)| other == lane) {
            let sentence = format!("side {side} opens lane {lane}, on which its writes can land");
            self.accuse(Invariant::OneWrite, sentence);
        }
        self.flights[side][lane].clear();
    }

    /// Whether a side's oldest flight on a lane may land: the other end is as new as the flight.
    pub fn may_land(&self, side: usize, lane: usize) -> bool {
        let target = &self.ends[1 - side][lane];
        self.flights[side][lane].front().is_some_and(|flight| flight.era <= target.era)
    }

    /// Lands a side's oldest flight on a lane.
    pub fn land(&mut self, side: usize, lane: usize) {
        let flight = self.flights[side][lane].pop_front().expect("there is one");
        let target = self.ends[1 - side][lane];
        let gone = target.era != flight.era || matches!(target.link, Link::Fenced | Link::Closed);
        if gone {
            if !flight.told {
                self.done(side, lane, flight.id, true);
            }
            self.fail(side, lane); // nobody answers there
            return;
        }
        let heard = target.link == Link::Open;
        self.arrive(side, lane, flight.cargo, heard);
        if !flight.told {
            self.done(side, lane, flight.id, false);
        }
    }

    fn arrive(&mut self, side: usize, lane: usize, cargo: Cargo, heard: bool) {
        let to = 1 - side;
        match cargo {
            Cargo::Send { head, payload } => {
                if heard {
                    let slot = self.slot_take(to, lane, (head, payload));
                    self.events[to].push_back(Event::Received { lane, slot });
                }
            }
            Cargo::Line { address, line } => self.line_land(to, address, line),
            Cargo::Stripe { from, length, bytes, to: address, immediate } => {
                let read = |memory: &mut Memory| memory.read(side, from, length);
                let bytes = bytes.map_or_else(|| read(&mut self.memory), Ok);
                let written = bytes.and_then(|bytes| self.memory.write(to, address, &bytes));
                if let Err(sentence) = written {
                    self.accuse(Invariant::GivenBack, sentence);
                }
                if heard {
                    self.events[to].push_back(Event::Immediate { lane, immediate });
                }
            }
        }
    }

    fn line_land(&mut self, to: usize, address: u64, line: Line) {
        let offset = address - MAILBOX;
        self.lines[to].insert(offset, line);
        // SAFETY: inside the mailbox, whose block lives as long as its endpoint; that one, which
        // reads it by atomics, is of this thread.
        unsafe { self.mailboxes[to].add(offset as usize).copy_from(line.as_ptr(), line.len()) };
    }

    fn slot_take(&mut self, side: usize, lane: usize, message: Message) -> usize {
        let slots = &mut self.slots[side][lane];
        let slot = slots.iter().position(Option::is_none).unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[slot] = Some(message);
        if slot >= (CREDITS + RECEIVES_SPARE) as usize {
            self.accuse(Invariant::Ends, "a message found no receive slot".into());
        }
        slot
    }

    fn done(&mut self, side: usize, lane: usize, id: u64, failed: bool) {
        self.events[side].push_back(Event::Done { lane, id, failed });
    }

    /// An end fails; the other does not know.
    pub fn fail(&mut self, side: usize, lane: usize) {
        let end = &mut self.ends[side][lane];
        if end.link != Link::Open {
            return;
        }
        end.link = Link::Down;
        self.tell_all(side, lane);
        self.events[side].push_back(Event::Down { lane });
    }

    /// Reports the ops of an end that nothing was said of as failed; they may land nevertheless.
    fn tell_all(&mut self, side: usize, lane: usize) {
        for at in 0..self.flights[side][lane].len() {
            let flight = &mut self.flights[side][lane][at];
            if !std::mem::replace(&mut flight.told, true) {
                let id = flight.id;
                self.done(side, lane, id, true);
            }
        }
    }

    /// A fence holds: nothing lands at `side` any more, nor is a source read there.
    pub fn fence_hold(&mut self, side: usize, lane: usize) {
        let Some((id, generation)) = self.ends[side][lane].fence.take() else { return };
        self.ends[side][lane].link = Link::Fenced;
        self.tell_all(side, lane);
        let unread = |flight: &Flight| matches!(flight.cargo, Cargo::Stripe { bytes: None, .. });
        self.flights[side][lane].retain(|flight| !unread(flight));
        self.events[side].push_back(Event::Fenced { lane, id, generation });
    }

    /// What is under way, for people.
    pub fn text(&self) -> String {
        format!("flights {:?}\nevents {:?}", self.flights, self.events)
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.flights.iter().flatten().all(VecDeque::is_empty)
            && self.events.iter().all(VecDeque::is_empty)
            && self.ends.iter().flatten().all(|end| end.fence.is_none())
    }

    /// Writes to a side that can still land, as lane, address and length.
    fn live(&self, to: usize) -> impl Iterator<Item = (usize, u64, u64)> {
        let lanes = self.flights[1 - to].iter().zip(&self.ends[to]).enumerate();
        lanes.flat_map(|(lane, (flights, target))| {
            let lands = |flight: &&Flight| {
                flight.era > target.era || (flight.era == target.era && target.link != Link::Fenced)
            };
            flights.iter().filter(lands).filter_map(move |flight| match flight.cargo {
                Cargo::Send { .. } => None,
                Cargo::Line { address, .. } => Some((lane, address, 64)),
                Cargo::Stripe { to, length, .. } => Some((lane, to, length)),
            })
        })
    }

    /// Whether something that is under way would write there.
    pub fn is_aimed_at(&self, to: usize, address: u64, length: u64) -> bool {
        self.live(to).any(|(_, start, bytes)| overlap((start, bytes), (address, length)))
    }

    /// (a): what is posted on a lane, and what can still land, do not write one place.
    fn check_alone(&mut self, side: usize, lane: usize, span: (u64, u64), line: bool) {
        let twice = self.live(1 - side).find(|(other, start, bytes)| {
            // lines of one lane land in order: the newer replaces the older
            overlap((*start, *bytes), span) && !(line && *other == lane)
        });
        if let Some((other, _, _)) = twice {
            let what = if line { "line" } else { "stripe" };
            let sentence =
                format!("side {side} writes a {what} on lane {lane} that can land on {other}");
            self.accuse(Invariant::OneWrite, sentence);
        }
    }

    fn post(&mut self, side: usize, op: &Op) -> Result<Posted, PostError> {
        let lane = op.peer.as_usize();
        let end = &mut self.ends[side][lane];
        if let OpKind::Fence { generation } = op.kind {
            if matches!(end.link, Link::Closed | Link::Fenced) {
                return Err(PostError::PeerDown);
            }
            end.fence = Some((op.id.0, generation.0));
            return Ok(Posted::Pending);
        }
        if end.link != Link::Open || end.fence.is_some() {
            return Err(PostError::PeerDown);
        }
        let era = end.era;
        let cargo = self.load(side, lane, op);
        self.flights[side][lane].push_back(Flight { id: op.id.0, era, told: self.local, cargo });
        Ok(if self.local { Posted::Done } else { Posted::Pending })
    }

    fn load(&mut self, side: usize, lane: usize, op: &Op) -> Cargo {
        match op.kind {
            OpKind::Send { head, payload } => Cargo::Send { head, payload: payload_of(payload) },
            OpKind::Write { source: Source::Line(line), target, .. } => {
                self.check_alone(side, lane, (target.address, 64), true);
                Cargo::Line { address: target.address, line }
            }
            OpKind::Write { source: Source::Span(source), target, immediate } => {
                let (from, length) = (source.address(), source.length().0);
                self.check_alone(side, lane, (target.address, length), false);
                let read = self.local.then(|| self.memory.read(side, from, length));
                let bytes = match read.transpose() {
                    Ok(bytes) => bytes,
                    Err(sentence) => {
                        self.accuse(Invariant::GivenBack, sentence);
                        None
                    }
                };
                let immediate = immediate.expect("stripes have immediates");
                Cargo::Stripe { from, length, bytes, to: target.address, immediate }
            }
            OpKind::Read { .. } | OpKind::Add { .. } | OpKind::Fence { .. } => unreachable!(),
        }
    }

    fn event(&mut self, side: usize) -> Option<Completion> {
        let peer = |lane: usize| PeerIndex(lane as u32);
        Some(match self.events[side].pop_front()? {
            Event::Received { lane, slot } => {
                let (head, payload) = self.slots[side][lane][slot].as_ref().expect("held");
                let (slot, length) = (RecvSlot(slot as u64), payload.len() as u32);
                Completion::Received { peer: peer(lane), slot, head: *head, length }
            }
            Event::Immediate { lane, immediate } => {
                Completion::Immediate { peer: peer(lane), immediate }
            }
            Event::Done { lane, id, failed } => {
                let error = OpError { kind: OpErrorKind::PeerDown, code: 0 };
                let result = if failed { Err(error) } else { Ok(()) };
                Completion::Done { peer: peer(lane), id: OpId(id), result }
            }
            Event::Fenced { lane, id, generation } => {
                let generation = crosstie::base::ids::RailGeneration(generation);
                Completion::Fenced { peer: peer(lane), id: OpId(id), generation }
            }
            Event::Down { lane } => {
                Completion::PeerDown { peer: peer(lane), cause: DownCause::Died }
            }
        })
    }
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

fn payload_of(span: LocalSpan) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(span.address() as usize);
    match span.length().0 as usize {
        0 => Vec::new(),
        // SAFETY: payloads of sends lie in the endpoint's block or in static memory of the test.
        length => unsafe { std::slice::from_raw_parts(from, length) }.to_vec(),
    }
}

/// The rail of one side.
#[derive(Clone)]
pub struct Port {
    pub net: Rc<RefCell<Net>>,
    pub side: usize,
}

/// Nothing is registered: the network knows all memory.
#[derive(Copy, Clone)]
pub struct Everything;

impl Domain for Everything {
    unsafe fn register(&self, _region: Region) -> Result<RailKey, RegisterError> {
        Ok(RailKey(1))
    }

    fn deregister(&self, _key: RailKey) -> Result<(), DeregisterError> {
        Ok(())
    }
}

impl MemoryDomain for Port {
    type Domain = Everything;

    fn domain(&self) -> Everything {
        Everything
    }
}

impl Provider for Port {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        Caps {
            send_payload_max: PAYLOAD_MAX,
            recv_slots: CREDITS + RECEIVES_SPARE,
            transfer_max: Bytes(1 << 30),
            pull: false,
            immediate: true,
            ordered: true,
            copies_at_post: true,
            atomic_bytes: 0,
            copy_granule: PAYLOAD_MAX,
            fence: FenceKind::Local,
            bad_key_breaks: false,
            syscalls: Syscalls::None,
        }
    }

    fn post(&mut self, op: &Op, _now: Instant) -> Result<Posted, PostError> {
        self.net.borrow_mut().post(self.side, op)
    }

    fn poll(&mut self, out: &mut [Completion], _budget: Bytes, _now: Instant) -> usize {
        let mut net = self.net.borrow_mut();
        let mut count = 0;
        while count < out.len() {
            let Some(completion) = net.event(self.side) else { break };
            out[count] = completion;
            count += 1;
        }
        count
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        let mut net = self.net.borrow_mut();
        let (_, payload) =
            net.slots[self.side][peer.as_usize()][slot.0 as usize].as_ref().expect("held");
        let bytes = payload[offset as usize..][..to.length().0 as usize].to_vec();
        if let Err(sentence) = net.memory.write(self.side, to.address(), &bytes) {
            net.accuse(Invariant::GivenBack, sentence);
        }
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        let net = self.net.borrow();
        let (_, payload) =
            net.slots[self.side][peer.as_usize()][slot.0 as usize].as_ref().expect("held");
        to.copy_from_slice(&payload[..to.len()]);
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        let slots = &mut self.net.borrow_mut().slots[self.side][peer.as_usize()];
        assert!(slots[slot.0 as usize].take().is_some(), "slot not held");
    }
}

impl PeerLife for Port {
    fn peer_fail(&mut self, peer: PeerIndex, _cause: DownCause) {
        self.net.borrow_mut().fail(self.side, peer.as_usize());
    }

    fn peer_close(&mut self, _peer: PeerIndex) -> Result<(), CloseError> {
        Ok(())
    }
}
