//! A vendor's rail as a port of a host. Peers are prepared, described to their other end, and
//! joined to it. A [`super::Breach`] takes this rail down, and no other rail of the host.

use super::flights::{self, Flights};
pub use super::port_words::{ErrorReport, PortOpenError, PortPeerError, Unended};
use super::shelter::Shelter;
use super::{BLOB_BYTES_MAX, OpenError, PeerError, Table, Vendor, VendorDomain};
use crate::base::carve::{Carver, bytes_for};
use crate::base::ids::{PeerIndex, RailGeneration};
use crate::base::text::Text;
use crate::base::units::{Bytes, Instant, Span};
use crate::fabric::{
    Caps, CloseError, Completion, DownCause, FenceKind, LocalSpan, MemoryDomain, Op, OpError,
    OpErrorKind, OpId, OpKind, PeerLife, PostError, Posted, Provider, RecvSlot,
};
use crate::wire::vendor_end::VendorEndHello;
use core::ffi::c_void;

/// Receives that a lane wants of a peer.
pub const RECV_SLOTS_MIN: u32 = 48;
/// Room for the name of a rail.
pub const NAME_BYTES_MAX: usize = 32;

/// What people call a rail: `acme0`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct RailName(Text<NAME_BYTES_MAX>);

impl RailName {
    /// A text as a name; `None`: it is empty, longer than [`NAME_BYTES_MAX`], or has bytes that are
    /// no printed ASCII.
    pub fn new(text: &[u8]) -> Option<RailName> {
        let is_name = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
        Text::whole(text).filter(|_| is_name).map(RailName)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// What a port is opened on.
#[derive(Copy, Clone, Debug)]
pub struct PortConfig {
    /// The vendor's functions.
    pub table: Table,
    /// What its `open` gets.
    pub context: *mut c_void,
    /// What people call it.
    pub name: RailName,
}

// SAFETY: the context is handed to the vendor's `open` by the thread that opens the endpoint, and
// nothing else is done with it.
unsafe impl Send for PortConfig {}

/// A fence that does not hold for so long is told to people.
const UNFENCED: Span = Span::millis(3000);

/// How far a peer is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum State {
    /// It has no blob.
    Closed,
    /// Its blob was told; nothing of its other end reaches us before it is open.
    Prepared,
    /// The vendor is asked by each poll to join it.
    Opening,
    /// The vendor has it.
    Open,
    /// The vendor had it when its object was closed: the ends of its ops are to be told.
    Cut,
    /// It was never open, and will not be: its end is to be told.
    Failed(DownCause),
    /// Its end was told.
    Ended,
}

/// A fence that the vendor was asked for, of which people are told if it, or an op, does not end.
#[derive(Copy, Clone)]
struct Fencing {
    since: Instant,
    /// Whether it has not been taken yet.
    is_refused: bool,
    is_told: bool,
}

/// One peer.
#[derive(Copy, Clone)]
struct Seat {
    state: State,
    /// Longest payload of a send to it.
    payload_bytes_max: u32,
    /// Whether it ends on account of a breach.
    is_given_up: bool,
    /// A fence of a peer that was never open, or whose object is closed: it is to be told.
    fence: Option<(OpId, RailGeneration)>,
    /// Its fence, since the vendor was asked for it.
    fencing: Option<Fencing>,
    error: Option<PeerError>,
    /// The other end's.
    blob: [u8; BLOB_BYTES_MAX],
}

impl Seat {
    const CLOSED: Seat = Seat {
        state: State::Closed,
        payload_bytes_max: 0,
        is_given_up: false,
        fence: None,
        fencing: None,
        error: None,
        blob: [0; BLOB_BYTES_MAX],
    };
}

/// Ops that the vendor may have of a peer and not have ended; with more it is "not now".
const OPS_MAX: u32 = 128;

/// Bytes that [`VendorPort::open`] cuts.
pub const fn bytes(peers_max: u32) -> usize {
    bytes_for::<Seat>(peers_max as usize)
        + flights::bytes(peers_max, OPS_MAX)
        + Shelter::bytes(peers_max)
}

/// A vendor's rail as a port.
pub struct VendorPort<'m> {
    vendor: Vendor<'m>,
    name: RailName,
    seats: &'m mut [Seat],
    /// What was received and not released.
    shelter: Shelter<'m>,
    peers_open: u32,
    /// Seats of which a poll has something to ask or to tell.
    due: u32,
    /// Whether a peer's fence may not hold yet, and the last poll's time.
    fences: bool,
    now: Instant,
    /// Whether something was posted since it was handed over.
    is_posted: bool,
    /// Whether there was a breach, and the object is closed.
    is_over: bool,
}

/// What one write must carry: with less, it would be a lane for few messages that are cut at all,
/// and would have all connections of its endpoint cut theirs so short.
const TRANSFER_BYTES_MIN: u64 = 64 << 10;

/// What is too little for a lane among others.
fn lacks(caps: &Caps, payload_bytes_min: u32) -> Option<&'static str> {
    let fences = matches!(caps.fence, FenceKind::Local | FenceKind::WriterDrained);
    let wants = [
        (fences, "fence is not that of one peer (_LOCAL or _WRITER_DRAINED)"),
        (caps.pull, "reads (_PULL)"),
        (caps.immediate, "writes with immediates (_IMMEDIATE)"),
        (caps.copies_at_post, "sends that are copied at post (_COPIES_AT_POST)"),
        (caps.recv_slots >= RECV_SLOTS_MIN, "recv_slots is below 48"),
        (caps.send_payload_max.0 >= payload_bytes_min.into(), "send_bytes_max is too small"),
        (caps.transfer_max.0 >= TRANSFER_BYTES_MIN, "transfer_bytes_max is below 65536"),
    ];
    wants.into_iter().find(|(has, _)| !has).map(|(_, what)| what)
}

impl<'m> VendorPort<'m> {
    /// Opens the vendor's object.
    ///
    /// # Safety
    /// - as [`Vendor::open`].
    pub unsafe fn open(
        block: &mut Carver<'m>,
        peers_max: u32,
        regions_max: u32,
        payload_bytes_min: u32,
        config: &PortConfig,
    ) -> Result<VendorPort<'m>, PortOpenError> {
        let seats = block.filled(peers_max as usize, Seat::CLOSED);
        let seats = seats.map_err(|_| PortOpenError::Block)?;
        let flights =
            Flights::carve(block, peers_max, OPS_MAX).map_err(|_| PortOpenError::Block)?;
        let shelter = Shelter::open(block, peers_max).ok_or(PortOpenError::Block)?;
        // SAFETY: this function's contract.
        let vendor = unsafe { Vendor::open(config.table, config.context, flights, regions_max) };
        let vendor = vendor.map_err(|error| match error {
            OpenError::Refused(code) => {
                PortOpenError::Refused { code, peers: peers_max, regions: regions_max }
            }
            OpenError::Caps(error) => PortOpenError::Caps(error),
        })?;
        if let Some(what) = lacks(&vendor.promised(), payload_bytes_min) {
            return Err(PortOpenError::Small(what));
        }
        Ok(VendorPort {
            vendor,
            name: config.name,
            seats,
            shelter,
            peers_open: 0,
            due: 0,
            fences: false,
            now: Instant(0),
            is_posted: false,
            is_over: false,
        })
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Whether no peer is prepared or open, so that polling is of no use.
    pub fn is_idle(&self) -> bool {
        self.peers_open == 0
    }

    /// Whether something was posted that no poll or flush has handed over.
    pub fn is_unsent(&self) -> bool {
        self.is_posted && self.vendor.table.flush.is_some()
    }

    /// Whether something that was posted to a living peer has not ended yet.
    pub fn is_undelivered(&self, peer: PeerIndex) -> bool {
        let seat = self.seats.get(peer.as_usize());
        seat.is_some_and(|seat| seat.state == State::Open) && self.vendor.in_flight(peer) != 0
    }

    /// Whether it has broken its promises: no peer can be joined any more.
    pub fn is_lost(&self) -> bool {
        self.vendor.breach().is_some()
    }

    /// Whether [`VendorPort::complaint`] may have one to name.
    #[inline]
    pub fn has_complaints(&self) -> bool {
        self.fences
    }

    /// The next peer whose fence does not hold, for longer than it may take. Each is named once.
    #[cold]
    pub fn complaint(&mut self) -> Option<(PeerIndex, Unended)> {
        self.fences = false;
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let Some(fencing) = &mut seat.fencing else { continue };
            let peer = PeerIndex(index as u32);
            let (waited, count) = (self.now.since(fencing.since), self.vendor.in_flight(peer));
            if (count == 0 && !fencing.is_refused) || seat.state != State::Open {
                seat.fencing = None;
                continue;
            }
            self.fences |= !fencing.is_told;
            if waited >= UNFENCED && !core::mem::replace(&mut fencing.is_told, true) {
                return Some((peer, Unended { waited, count, is_refused: fencing.is_refused }));
            }
        }
        None
    }

    /// What ended a peer, until it is prepared again.
    pub fn error(&self, peer: PeerIndex) -> Option<ErrorReport> {
        let seat = self.seats.get(peer.as_usize())?;
        let breach = self.vendor.breach().filter(|_| seat.is_given_up).map(ErrorReport::Breach);
        breach.or(seat.error.map(ErrorReport::Peer))
    }

    /// Has the vendor write a blob for a peer.
    pub fn peer_prepare(&mut self, peer: PeerIndex) -> Result<VendorEndHello, PortPeerError> {
        match self.seats.get(peer.as_usize()) {
            Some(seat) if seat.state == State::Closed => {}
            Some(_) | None => return Err(PortPeerError::Index),
        }
        if self.is_lost() {
            return Err(PortPeerError::Lost);
        }
        let blob = self.vendor.peer_blob(peer).map_err(PortPeerError::Peer)?;
        self.seats[peer.as_usize()] = Seat { state: State::Prepared, ..Seat::CLOSED };
        self.peers_open += 1;
        let payload = self.vendor.promised().send_payload_max.0.min(u32::MAX.into());
        Ok(VendorEndHello {
            blob,
            blob_bytes: self.vendor.blob_bytes() as u32,
            payload_bytes_max: payload as u32,
        })
    }

    /// Joins a prepared peer to its other end; where the vendor says "not yet", polls go on.
    pub fn peer_connect(
        &mut self,
        peer: PeerIndex,
        other: &VendorEndHello,
    ) -> Result<(), PortPeerError> {
        let index = peer.as_usize();
        match self.seats.get(index) {
            Some(seat) if seat.state == State::Prepared => {}
            Some(_) | None => return Err(PortPeerError::Index),
        }
        if self.is_lost() {
            self.forget(index);
            return Err(PortPeerError::Lost);
        }
        let own = self.vendor.promised().send_payload_max.0.min(u32::MAX.into()) as u32;
        let seat = &mut self.seats[index];
        (seat.blob, seat.payload_bytes_max) = (other.blob, other.payload_bytes_max.min(own));
        if other.blob_bytes as usize != self.vendor.blob_bytes() {
            self.forget(index);
            return Err(PortPeerError::Peer(PeerError::Blob));
        }
        match self.vendor.peer_open(peer, &other.blob) {
            Ok(()) => self.seats[index].state = State::Open,
            Err(PeerError::Again) => {
                (self.seats[index].state, self.due) = (State::Opening, self.due + 1);
            }
            Err(error) => {
                self.forget(index);
                return Err(PortPeerError::Peer(error));
            }
        }
        Ok(())
    }

    fn forget(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        self.peers_open -= u32::from(seat.state != State::Closed);
        let is_due = matches!(seat.state, State::Opening | State::Cut | State::Failed(_));
        self.due -= u32::from(is_due) + u32::from(seat.fence.is_some());
        *seat = Seat::CLOSED;
    }

    /// A fence of a peer that the vendor never opened, or that ends with the vendor's object:
    /// nothing of its other end reaches us. There is room for one, until that is told.
    fn fence_ours(&mut self, op: &Op, generation: RailGeneration) -> Result<Posted, PostError> {
        let seat = &mut self.seats[op.peer.as_usize()];
        match seat.fence {
            Some(_) => return Err(PostError::Again),
            None => (seat.fence, self.due) = (Some((op.id, generation)), self.due + 1),
        }
        Ok(Posted::Pending)
    }

    /// Asks for peers that are to be joined, and tells of those that never were.
    #[cold]
    fn look_at_seats(&mut self, out: &mut [Completion]) -> usize {
        let mut told = 0;
        for index in 0..self.seats.len() {
            let peer = PeerIndex(index as u32);
            if self.seats[index].state == State::Opening {
                self.open_on(peer);
            }
            if self.seats[index].state == State::Cut {
                told += self.cut_on(peer, &mut out[told..]);
            }
            let seat = &mut self.seats[index];
            if matches!(seat.state, State::Open | State::Cut) {
                continue; // its fence holds when the object is closed, and its ops have ended
            }
            if let (State::Failed(cause), true) = (seat.state, told < out.len()) {
                out[told] = Completion::PeerDown { peer, cause };
                seat.state = State::Ended;
                (told, self.due) = (told + 1, self.due - 1);
            }
            if let (Some((id, generation)), true) = (seat.fence, told < out.len()) {
                out[told] = Completion::Fenced { peer, id, generation };
                seat.fence = None;
                (told, self.due) = (told + 1, self.due - 1);
            }
        }
        told
    }

    /// Tells of the ends of ops that the vendor had when its object was closed, then of the peer's.
    fn cut_on(&mut self, peer: PeerIndex, out: &mut [Completion]) -> usize {
        for (told, place) in out.iter_mut().enumerate() {
            *place = match self.vendor.drain(peer) {
                Some((id, Some(generation))) => Completion::Fenced { peer, id, generation },
                Some((id, None)) => {
                    let error = OpError { kind: OpErrorKind::Canceled, code: 0 };
                    Completion::Done { peer, id, result: Err(error) }
                }
                None => {
                    self.seats[peer.as_usize()].state = State::Failed(DownCause::Failed);
                    return told;
                }
            };
        }
        out.len()
    }

    fn open_on(&mut self, peer: PeerIndex) {
        let index = peer.as_usize();
        match self.vendor.peer_open(peer, &self.seats[index].blob) {
            Ok(()) => {
                self.seats[index].state = State::Open;
                self.due -= 1;
            }
            Err(PeerError::Again) => {}
            Err(error) => {
                let code = if let PeerError::Refused(code) = error { code } else { 0 };
                self.seats[index].error = Some(error);
                self.seats[index].state = State::Failed(DownCause::Broken(code));
            }
        }
    }

    /// The vendor has answered what is none. Messages that were not taken yet are brought to
    /// memory of ours, and the object is closed, which is the fence that no event has to tell of:
    /// then nothing touches memory any more, and the ops that the vendor had are over.
    #[cold]
    fn give_up(&mut self) {
        self.shelter.bring(&mut self.vendor);
        if !self.vendor.end() {
            return; // the next poll
        }
        self.is_over = true;
        for seat in self.seats.iter_mut() {
            match seat.state {
                State::Open => (seat.state, self.due) = (State::Cut, self.due + 1),
                State::Opening => seat.state = State::Failed(DownCause::Failed),
                State::Closed | State::Prepared | State::Cut => continue,
                State::Failed(_) | State::Ended => continue,
            }
            seat.is_given_up = true;
        }
    }

    /// Gives messages slots of ours. What a peer sends beyond its credits, or longer than lanes
    /// send, ends that peer; a slot that names another message still is no event.
    fn take(&mut self, event: Completion) -> Option<Completion> {
        let Completion::Received { peer, slot, head, length } = event else { return Some(event) };
        if self.shelter.has(peer, slot) {
            self.vendor.note("poll", "a message came in a slot that is not released");
            return None;
        }
        match self.shelter.hold(peer, slot, length) {
            Some(slot) => Some(Completion::Received { peer, slot, head, length }),
            None => {
                self.vendor.received_release(peer, slot);
                self.vendor.peer_fail(peer, DownCause::Failed);
                None
            }
        }
    }
}

impl<'m> MemoryDomain for VendorPort<'m> {
    type Domain = VendorDomain<'m>;

    fn domain(&self) -> VendorDomain<'m> {
        self.vendor.domain()
    }
}

impl<'m> Provider for VendorPort<'m> {
    fn caps(&self, _peer: PeerIndex) -> Caps {
        self.vendor.promised()
    }

    fn send_payload_max(&self, peer: PeerIndex) -> Bytes {
        let seat = self.seats.get(peer.as_usize());
        match seat.map(|seat| seat.payload_bytes_max) {
            Some(bytes @ 1..) => Bytes(bytes.into()),
            Some(0) | None => self.vendor.promised().send_payload_max,
        }
    }

    #[inline]
    fn post(&mut self, op: &Op, now: Instant) -> Result<Posted, PostError> {
        let seat = self.seats.get(op.peer.as_usize()).ok_or(PostError::PeerDown)?;
        match (seat.state, op.kind) {
            (State::Open, OpKind::Fence { generation }) if self.is_lost() => {
                self.fence_ours(op, generation)
            }
            (State::Open, kind) => {
                let answer = self.vendor.post(op, now);
                self.is_posted |= answer.is_ok();
                if matches!(kind, OpKind::Fence { .. }) {
                    let fencing = &mut self.seats[op.peer.as_usize()].fencing;
                    let new = Fencing { since: now, is_refused: false, is_told: false };
                    let is_refused = answer == Err(PostError::Again);
                    fencing.get_or_insert(new).is_refused = is_refused;
                    self.fences = true;
                }
                answer
            }
            (State::Closed, _) => Err(PostError::PeerDown),
            (State::Opening, OpKind::Fence { generation }) => {
                // the vendor has nothing of it yet, and is asked for it no more
                (self.seats[op.peer.as_usize()].state, self.due) = (State::Prepared, self.due - 1);
                self.fence_ours(op, generation)
            }
            (_, OpKind::Fence { generation }) => self.fence_ours(op, generation),
            (State::Opening, _) => Err(PostError::Again),
            (State::Prepared | State::Cut | State::Failed(_) | State::Ended, _) => {
                Err(PostError::PeerDown)
            }
        }
    }

    fn poll(&mut self, out: &mut [Completion], budget: Bytes, now: Instant) -> usize {
        self.now = now;
        let mut told = if self.due > 0 { self.look_at_seats(out) } else { 0 };
        self.is_posted = false;
        let (from, found) = (told, self.vendor.poll(&mut out[told..], budget, now));
        for at in from..from + found {
            if let Some(event) = self.take(out[at]) {
                out[told] = event;
                told += 1;
            }
        }
        if self.is_lost() && !self.is_over {
            self.give_up();
        }
        told
    }

    fn flush(&mut self, budget: Bytes) {
        self.is_posted = false;
        self.vendor.flush(budget);
    }

    fn received_copy(&mut self, peer: PeerIndex, slot: RecvSlot, offset: u64, to: LocalSpan) {
        match self.shelter.of(peer, slot) {
            Some(slot) => self.vendor.received_copy(peer, slot, offset, to),
            // SAFETY: whoever made the span vouches for its memory.
            None => unsafe {
                let place = to.address() as *mut u8;
                self.shelter.copy(peer, slot, offset, place, to.length().0 as usize);
            },
        }
    }

    fn received_peek(&self, peer: PeerIndex, slot: RecvSlot, to: &mut [u8]) {
        match self.shelter.of(peer, slot) {
            Some(slot) => self.vendor.received_peek(peer, slot, to),
            // SAFETY: a slice, as long as it is.
            None => unsafe { self.shelter.copy(peer, slot, 0, to.as_mut_ptr(), to.len()) },
        }
    }

    fn received_release(&mut self, peer: PeerIndex, slot: RecvSlot) {
        if let Some(slot) = self.shelter.release(peer, slot) {
            self.vendor.received_release(peer, slot);
        }
    }
}

impl<'m> PeerLife for VendorPort<'m> {
    fn peer_fail(&mut self, peer: PeerIndex, cause: DownCause) {
        let Some(seat) = self.seats.get_mut(peer.as_usize()) else { return };
        match seat.state {
            // it ends with the object, if there was a breach
            State::Open if self.vendor.breach().is_none() => self.vendor.peer_fail(peer, cause),
            State::Prepared => {
                seat.state = State::Failed(cause);
                self.due += 1;
            }
            State::Opening => seat.state = State::Failed(cause),
            State::Closed | State::Open | State::Cut | State::Failed(_) | State::Ended => {}
        }
    }

    fn peer_close(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let seat = self.seats.get(peer.as_usize()).ok_or(CloseError::Stale)?;
        match seat.state {
            State::Closed => return Err(CloseError::Stale),
            State::Cut => return Err(CloseError::Busy),
            State::Open if self.vendor.breach().is_some() => return Err(CloseError::Busy),
            State::Open => self.vendor.peer_close(peer)?,
            State::Prepared | State::Opening | State::Failed(_) | State::Ended => {}
        }
        self.shelter.release_all(peer);
        self.forget(peer.as_usize());
        Ok(())
    }

    fn peer_detach(&mut self, peer: PeerIndex) -> Result<(), CloseError> {
        let seat = self.seats.get(peer.as_usize()).ok_or(CloseError::Stale)?;
        match seat.state {
            State::Closed => return Err(CloseError::Stale),
            State::Cut => return Err(CloseError::Busy),
            State::Open if self.vendor.breach().is_some() => return Err(CloseError::Busy),
            // without the entry a peer that holds nothing can go all the same
            State::Open
                if self.vendor.table.peer_detach.is_none() && self.shelter.is_empty(peer) =>
            {
                self.vendor.peer_close(peer)?;
            }
            State::Open => self.vendor.peer_detach(peer)?,
            State::Prepared | State::Opening | State::Failed(_) | State::Ended => {}
        }
        self.forget(peer.as_usize());
        Ok(())
    }
}
