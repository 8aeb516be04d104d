//! A connection in one direction, as NCCL has them, and its requests.
//!
//! A request is a pointer to one of the connection's places for requests, which never move. All
//! that changes in them changes under the lock of the connection's room.

use super::device::{Device, GpuWay, MEMBERS_MAX};
use super::profile::Spans;
use super::room::{Entered, Room};
use super::{Fault, log};
use crosstie::base::slab::Handle;
use crosstie::host::RailView;
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::gpu::FlushId;
use crosstie::memory::Reserve;
use crosstie::transport::flush::FlushEnd;
use crosstie::transport::{Incoming, Outcome, Outgoing, RequestError, RequestId, SubmitError};
use crosstie::wire::GROUP_MAX;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Requests that a connection has at a time: NCCL's 32 for each of the ranks that may share it,
/// also where each is a message of its own, and where all are asked for before any is tested.
pub const REQUESTS: usize = 32 * GROUP_MAX;

/// Places that requests take turns in while few are outstanding: the others stay untouched. These
/// are in one page.
const TURNS: u64 = 16;
const _: () = assert!(TURNS as usize * size_of::<Request>() <= 4096);

/// Words that say which places are free.
const WORDS: usize = REQUESTS / u64::BITS as usize;

/// Which direction a connection is used in.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Way {
    /// What connect made.
    Send,
    /// What accept made.
    Receive,
}

/// A place for a request. Zeroed: it was never used.
pub struct Request {
    /// Its connection, once it was used.
    comm: AtomicPtr<Comm>,
    /// The endpoint's number of it; 0: it has ended.
    id: AtomicU64,
    /// Of one that is no message, the flush's number; 0: it is a message.
    flush: AtomicU64,
    /// How it failed, as NCCL's number; 0: not.
    fault: AtomicI32,
    /// Room of the receives, to be told where a message is longer; of those of a group alone that
    /// count.
    rooms: [AtomicU64; GROUP_MAX],
    /// What the profiler is to be told of its end; touched by the thread alone that submits and
    /// tests.
    spans: Spans,
}

/// A connection.
pub struct Comm {
    /// Where it lives.
    pub room: Arc<Room>,
    /// The number of the context that it was made in, which may have ended.
    pub context: u64,
    /// Which it is.
    pub connection: Handle,
    /// Under which device.
    pub device: &'static Device,
    way: Way,
    /// What it runs over, as far as was known when it stood.
    over: Option<ConnectionRail>,
    /// A bit for each place that holds no request.
    free: [AtomicU64; WORDS],
    /// The place after the one that was taken last: a place that has failed is told so for long.
    next: AtomicU64,
    /// The failure that was logged last, as NCCL's number; 0: none.
    told: AtomicI32,
    /// What was registered with it and not deregistered.
    pub memories: Mutex<Vec<Handle>>,
    /// Who the peer was, once the connection was given up because memory of its requests was
    /// deregistered.
    given_up: OnceLock<String>,
    /// Messages that have ended well, and their bytes.
    messages: AtomicU64,
    bytes: AtomicU64,
    /// [`REQUESTS`] places, of which those exist that were used.
    requests: Reserve,
}

// Relaxed throughout this file: all of it is written under the lock of the room, which orders it.
const ORDER: Ordering = Ordering::Relaxed;

impl Comm {
    /// A connection that stands.
    pub fn new(
        context: u64,
        room: Arc<Room>,
        connection: Handle,
        device: &'static Device,
        way: Way,
    ) -> Result<Box<Comm>, Fault> {
        let requests = Reserve::create(REQUESTS * size_of::<Request>()).map_err(|error| {
            log::warn(&format!(
                "device {:?}: no memory for the requests of a connection ({error}); it is closed",
                device.name
            ));
            let _ = room.enter().endpoint().connection_stop(connection);
            Fault::System
        })?;
        let over = room.enter().endpoint().connection_rail(connection);
        Ok(Box::new(Comm {
            room,
            context,
            connection,
            device,
            way,
            over,
            free: [const { AtomicU64::new(u64::MAX) }; WORDS],
            next: AtomicU64::new(0),
            told: AtomicI32::new(0),
            memories: Mutex::new(Vec::new()),
            given_up: OnceLock::new(),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            requests,
        }))
    }

    /// The places for requests.
    #[inline]
    fn places(&self) -> &[Request] {
        // SAFETY: the reserve is as long as `REQUESTS` of them and aligned to a page; it reads as
        // zero, and a request is atomics alone, of which zero is a value.
        unsafe { core::slice::from_raw_parts(self.requests.start().cast(), REQUESTS) }
    }

    /// Starts to send; `None`: no room now, come again.
    pub fn isend(&self, message: Outgoing) -> Result<Option<NonNull<Request>>, Fault> {
        if self.way != Way::Send {
            return Err(Fault::Argument);
        }
        if !self.takes_requests() {
            return Err(Fault::Usage);
        }
        let mut entered = self.room.enter();
        let Some(place) = self.place() else { return Ok(None) };
        let submitted = entered.endpoint().isend(self.connection, message);
        self.submitted(&mut entered, place, submitted)
    }

    /// Offers room for a group of messages; `None`: no room now, come again.
    pub fn irecv(&self, group: &[Incoming]) -> Result<Option<NonNull<Request>>, Fault> {
        if self.way != Way::Receive || group.is_empty() || group.len() > GROUP_MAX {
            return Err(Fault::Argument);
        }
        if !self.takes_requests() {
            return Err(Fault::Usage);
        }
        let mut entered = self.room.enter();
        let Some(place) = self.place() else { return Ok(None) };
        let submitted = entered.endpoint().irecv(self.connection, group);
        for (room, receive) in self.places()[place].rooms.iter().zip(group) {
            room.store(receive.length, ORDER);
        }
        self.submitted(&mut entered, place, submitted)
    }

    /// Whether it is this process's, and was not given up: that has lost messages.
    #[inline]
    fn takes_requests(&self) -> bool {
        !self.room.is_forked() && self.given_up.get().is_none()
    }

    /// A free place, which stays free.
    fn place(&self) -> Option<usize> {
        let free = |word: usize| self.free[word].load(ORDER);
        let ahead = free(0) & u64::MAX << self.next.load(ORDER);
        if ahead != 0 {
            return Some(ahead.trailing_zeros() as usize);
        }
        let word = (0..WORDS).find(|word| free(*word) != 0)?;
        Some(word * 64 + free(word).trailing_zeros() as usize)
    }

    #[inline]
    fn submitted(
        &self,
        entered: &mut Entered<'_>,
        place: usize,
        submitted: Result<RequestId, SubmitError>,
    ) -> Result<Option<NonNull<Request>>, Fault> {
        let (id, fault) = match submitted {
            Ok(id) => (id.0, 0),
            Err(SubmitError::Again) => {
                entered.endpoint().progress();
                return Ok(None);
            }
            // the connection's failure is told by test, as NCCL expects it
            Err(error @ (SubmitError::Failed(_) | SubmitError::Connection)) => {
                let code = Fault::from(error).code();
                self.tell(&error, code);
                (0, code)
            }
            Err(error) => {
                self.tell(&error, Fault::from(error).code());
                return Err(error.into());
            }
        };
        let request = self.taken(place);
        request.id.store(id, ORDER);
        request.fault.store(fault, ORDER);
        Ok(Some(NonNull::from(request)))
    }

    /// A place that holds a request from now on, of a message unless it is said otherwise.
    #[inline]
    fn taken(&self, place: usize) -> &Request {
        let request = &self.places()[place];
        request.comm.store(std::ptr::from_ref(self).cast_mut(), ORDER);
        request.flush.store(0, ORDER);
        let free = &self.free[place / 64];
        free.store(free.load(ORDER) & !(1 << (place % 64)), ORDER);
        self.next.store((place as u64 + 1) % TURNS, ORDER);
        request
    }

    /// Whether its NICs may write to GPUs, so that there is something to flush. A connection within
    /// the host has none: copy engines bring what it receives, and no copy counts as received
    /// before its GPU has said that it is there.
    pub fn is_flushed(&self) -> bool {
        let within = matches!(self.over, Some(ConnectionRail::Shm | ConnectionRail::Loopback));
        self.device.gpus != GpuWay::None && !within
    }

    /// Begins to make visible what receives have brought to these regions, of which an address each
    /// is given; `None`: no NIC has written there. NCCL takes that for the end, and never comes
    /// again, so that want of a place is an error.
    pub fn iflush(
        &self,
        receives: impl Iterator<Item = (Handle, u64)>,
    ) -> Result<Option<NonNull<Request>>, Fault> {
        if !self.takes_requests() {
            return Err(Fault::Usage);
        }
        let mut entered = self.room.enter();
        let place = self.place().ok_or(Fault::Internal)?;
        let Some(flush) = entered.endpoint().gpu_flushes().begin(receives) else { return Ok(None) };
        let request = self.taken(place);
        request.id.store(0, ORDER);
        request.fault.store(0, ORDER);
        request.flush.store(flush.number(), ORDER);
        Ok(Some(NonNull::from(request)))
    }

    /// Says why requests fail, once for each result in a row that NCCL gets.
    #[cold]
    fn tell(&self, error: &dyn std::fmt::Debug, code: i32) {
        if self.told.swap(code, ORDER) == code {
            return;
        }
        let what = match self.way {
            Way::Send => "send to",
            Way::Receive => "receive from",
        };
        let (peer, ending) = self.peer();
        let name = self.device.name.to_string_lossy();
        log::warn(&format!("{name}: {what} {peer} failed: {error:?}{ending}"));
    }

    fn count(&self, outcome: &Outcome) {
        let lengths = &outcome.lengths[..usize::from(outcome.count)];
        let (messages, bytes) = (lengths.len() as u64, lengths.iter().sum::<u64>());
        self.messages.store(self.messages.load(ORDER) + messages, ORDER);
        self.bytes.store(self.bytes.load(ORDER) + bytes, ORDER);
    }

    /// Ends what the profiler waits for, and says what went over the connection, and over which of
    /// its rails: for who wants to know whether this network was used.
    pub fn farewell(&self) {
        let mut flushes = Vec::new();
        for (word, free) in self.free.iter().enumerate() {
            let mut used = !free.load(ORDER);
            while used != 0 {
                let request = &self.places()[word * 64 + used.trailing_zeros() as usize];
                request.spans.end();
                flushes.push(FlushId::of(request.flush.swap(0, ORDER)));
                used &= used - 1;
            }
        }
        let mut entered = self.room.enter();
        for flush in flushes.into_iter().filter(|flush| flush.number() != 0) {
            entered.endpoint().gpu_flushes().forget(flush);
        }
        let name = self.device.name.to_string_lossy();
        let (messages, bytes) = (self.messages.load(ORDER), self.bytes.load(ORDER));
        let what = match self.way {
            Way::Send => "sent to",
            Way::Receive => "received from",
        };
        // to look at the rails of one that never carried anything would bring them up
        let is_free = |word: &AtomicU64| word.load(ORDER) == u64::MAX;
        let is_used = messages > 0 || !self.free.iter().all(is_free);
        let views: Vec<_> = (0..if is_used { MEMBERS_MAX as u32 } else { 0 })
            .map_while(|rail| entered.endpoint().rail_view(self.connection, rail).ok().flatten())
            .collect();
        let over = |(at, view): (usize, &RailView)| match self.way {
            Way::Send if views.len() > 1 => {
                let bytes = view.lane.stats.bytes;
                format!("rail {at} {:?} {bytes} bytes in stripes", view.rail)
            }
            // all of it, or what the sender knows
            Way::Send | Way::Receive => format!("rail {at} {:?}", view.rail),
        };
        let mut rails: Vec<String> = views.iter().enumerate().map(over).collect();
        if rails.is_empty() {
            // the peer was first, and they are gone
            rails.extend(self.over.map(|over| format!("over {over:?}")));
        }
        drop(entered);
        let (peer, _) = self.peer();
        let rails = rails.join(", ");
        log::info(&format!("{name}: {bytes} bytes {what} {peer} in {messages} messages; {rails}"));
    }

    /// The connection ends because memory of its requests was deregistered.
    pub fn give_up(&self) {
        self.given_up.get_or_init(|| self.peer().0);
    }

    fn peer(&self) -> (String, String) {
        if let Some(peer) = self.given_up.get() {
            return (peer.clone(), String::new());
        }
        let mut text = [0; 128];
        let shared = self.room.shared();
        let length = shared.peer_text(self.connection, &mut text);
        let ending = shared.peer_ending(self.connection);
        let peer = match length {
            0 => "a peer that is gone".into(),
            _ => String::from_utf8_lossy(&text[..length]).into_owned(),
        };
        (peer, ending.map_or(String::new(), |ending| format!(": {ending}")))
    }
}

impl Request {
    /// Asks how a request stands; `None`: it is under way. Its end is told once, its failure as
    /// long as the place is not used again.
    ///
    /// # Safety
    /// - its connection is not closed.
    #[inline]
    pub unsafe fn test(&self) -> Result<Option<Outcome>, Fault> {
        // SAFETY: this function's contract.
        let tested = unsafe { self.look() };
        if !matches!(tested, Ok(None)) {
            self.spans.end();
        }
        tested
    }

    /// Begins events of the profiler.
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    /// # Safety
    /// - its connection is not closed.
    #[inline(always)]
    unsafe fn look(&self) -> Result<Option<Outcome>, Fault> {
        // SAFETY: the connection stands (this function's contract) where it stood in `submitted`,
        // which has handed the request out.
        let comm = unsafe { self.comm.load(ORDER).as_ref() }.ok_or(Fault::Argument)?;
        if comm.room.is_forked() {
            return Err(Fault::Usage);
        }
        let mut entered = comm.room.enter();
        if self.flush.load(ORDER) != 0 {
            return self.flush_look(comm, entered);
        }
        let id = RequestId(self.id.load(ORDER));
        if id.0 == 0 {
            self.release(comm);
            return match self.fault.load(ORDER) {
                0 => Err(Fault::Argument),
                code => Err(Fault::of_code(code)),
            };
        }
        match entered.endpoint().test(id) {
            Ok(None) => Ok(None),
            Ok(Some(outcome)) => {
                self.id.store(0, ORDER);
                self.release(comm);
                outcome.result.map_err(|error| {
                    let lengths = &outcome.lengths[..usize::from(outcome.count)];
                    self.failed(comm, error, lengths)
                })?;
                comm.count(&outcome);
                Ok(Some(outcome))
            }
            // the connection was closed, and its number is another's
            Err(_) => {
                self.id.store(0, ORDER);
                self.release(comm);
                Err(self.failed(comm, RequestError::Closed, &[]))
            }
        }
    }

    /// [`Request::look`] of a flush.
    #[cold]
    fn flush_look(&self, comm: &Comm, mut entered: Entered<'_>) -> Result<Option<Outcome>, Fault> {
        let endpoint = entered.endpoint();
        endpoint.progress();
        let flush = FlushId::of(self.flush.load(ORDER));
        let Some(end) = endpoint.gpu_flushes().test(flush) else { return Ok(None) };
        self.flush.store(0, ORDER);
        self.release(comm);
        match end {
            FlushEnd::Visible => {
                Ok(Some(Outcome { result: Ok(()), count: 0, lengths: [0; GROUP_MAX] }))
            }
            FlushEnd::Unfenced => Err(self.failed(comm, RequestError::Unfenced, &[])),
        }
    }

    fn release(&self, comm: &Comm) {
        let first = comm.requests.start().addr();
        let place = (std::ptr::from_ref(self).addr() - first) / size_of::<Request>();
        let free = &comm.free[place / 64];
        free.store(free.load(ORDER) | 1 << (place % 64), ORDER);
    }

    #[cold]
    fn failed(&self, comm: &Comm, error: RequestError, lengths: &[u64]) -> Fault {
        let fault = Fault::from(error);
        match (error, lengths) {
            (RequestError::Truncated, [length]) => {
                let room = self.rooms[0].load(ORDER);
                let both = format_args!(
                    "{error:?}: the message has {length} bytes, but its receive has room for {room}"
                );
                comm.tell(&both, fault.code());
            }
            (RequestError::Truncated, _) => {
                let rooms: Vec<_> = self.rooms.iter().map(|room| room.load(ORDER)).collect();
                let rooms = &rooms[..lengths.len()];
                let all = format_args!(
                    "{error:?}: the group's messages have {lengths:?} bytes, but its receives have \
                     room for {rooms:?}"
                );
                comm.tell(&all, fault.code());
            }
            (RequestError::Closed, _) if comm.given_up.get().is_some() => {
                let why = "memory of a request that had not ended was deregistered here";
                comm.tell(&format_args!("{error:?}: {why}"), fault.code());
            }
            _ => comm.tell(&error, fault.code()),
        }
        self.fault.store(fault.code(), ORDER);
        fault
    }
}
