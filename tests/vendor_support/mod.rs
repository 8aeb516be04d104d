//! A vendor for tests of whole endpoints: a table of functions over a loopback that both ends
//! share, with faults that a test asks for.

pub mod words;

use crosstie::base::carve::Carver;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, Op, OpId, OpKind, PeerLife, Provider,
    RailKey, RecvSlot,
};
use crosstie::host::vendor::{VendorRail, network};
use crosstie::provider::loopback::{Limits, Loopback};
use crosstie::provider::vendor::Table;
use crosstie::provider::vendor::abi::*;
use crosstie::provider::vendor::port::RailName;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use words::{closed, deregistered, event_of, kind_of, peer_of, posted, region_of, registered};

/// Peers of each end.
const PEERS: u32 = 8;
const LIMITS: Limits = Limits {
    peers_max: 2 * PEERS,
    slots: 64,
    payload_max: Bytes::kib(4),
    regions_max: 256,
    jobs: 256,
};

/// What goes wrong with a wire, as long as a test wants it.
#[derive(Copy, Clone, Default, Debug)]
pub struct Faults {
    /// So many times `peer_open` says "not yet".
    pub not_yet: u32,
    /// So many times `peer_blob` refuses, for want of memory.
    pub no_blob: u32,
    /// The next event that this is about is told so, and not as it is.
    pub wrong: Option<Wrong>,
    /// At the end that was opened second alone.
    pub at_second: bool,
    /// The next write is refused, although the caps promise it.
    pub refuses: bool,
    /// `open` refuses with this code, if it is not 0.
    pub no_open: i32,
    /// `send_bytes_max`, if it is not 0.
    pub send_bytes_max: u64,
    /// `transfer_bytes_max`, if it is not 0.
    pub transfer_bytes_max: u64,
    /// So many times `region_register` refuses, for want of memory.
    pub no_memory: u32,
    /// `region_register` calls its regions 0, which is no key.
    pub key_zero: bool,
    /// So many times `region_deregister` says that ops are in flight.
    pub busy: u32,
    /// No fence is told to hold.
    pub no_fenced: bool,
    /// No fence is taken.
    pub no_fence: bool,
}

/// What is wrong with an event.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Wrong {
    /// It has no known kind.
    Kind,
    /// An op ended with no known status.
    Status,
    /// An op ended that is not in flight.
    Name,
    /// An op of a peer that is not open ended.
    DonePeer,
    /// An immediate came from a peer that is not open.
    ImmediatePeer,
    /// A message came from a peer that is not open.
    MessagePeer,
    /// A message is longer than the caps say.
    MessageLength,
    /// A message came twice, in one slot.
    MessageAgain,
    /// The poll says that it gave more events than it was asked for.
    Count,
}

/// Each of them.
pub const WRONGS: [Wrong; 9] = [
    Wrong::Kind,
    Wrong::Status,
    Wrong::Name,
    Wrong::DonePeer,
    Wrong::ImmediatePeer,
    Wrong::MessagePeer,
    Wrong::MessageLength,
    Wrong::MessageAgain,
    Wrong::Count,
];

impl Wrong {
    /// Makes an event so, if it is one of those; says whether it was.
    fn spoil(self, event: &mut xtie_provider_event) -> bool {
        let about = match self {
            Wrong::Kind | Wrong::Count => event.kind,
            Wrong::Status | Wrong::Name | Wrong::DonePeer => XTIE_PROVIDER_EVENT_DONE,
            Wrong::ImmediatePeer => XTIE_PROVIDER_EVENT_IMMEDIATE,
            Wrong::MessagePeer | Wrong::MessageLength | Wrong::MessageAgain => {
                XTIE_PROVIDER_EVENT_RECEIVED
            }
        };
        if event.kind != about {
            return false;
        }
        match self {
            Wrong::Kind => event.kind = 77,
            Wrong::Status => event.status = 5,
            Wrong::Name => event.id ^= 1 << 40,
            // the other of the first two
            Wrong::DonePeer | Wrong::ImmediatePeer | Wrong::MessagePeer => event.peer ^= 1,
            Wrong::MessageLength => event.bytes = 1 << 20,
            Wrong::MessageAgain | Wrong::Count => {}
        }
        true
    }
}

/// Both ends of a rail.
pub struct Wire(Mutex<State>);

struct State {
    limits: Limits,
    rail: Loopback<'static>,
    /// What came for ends that did not poll.
    events: [VecDeque<xtie_provider_event>; 2],
    /// By place in the loopback: with which other it was opened.
    opened: [Option<u32>; 2 * PEERS as usize],
    /// Whether both had opened, until this one is closed.
    joined: [bool; 2 * PEERS as usize],
    ends: usize,
    open: usize,
    faults: Faults,
    /// Bytes of messages and writes that were posted.
    bytes: u64,
    /// How often `region_register` was called, and with which keys `region_deregister`.
    registered: usize,
    deregistered: Vec<u64>,
}

// SAFETY: the loopback's pointers lead to memory that is never freed.
unsafe impl Sync for Wire {}
// SAFETY: as above.
unsafe impl Send for Wire {}

/// One object of the table.
struct End {
    wire: &'static Wire,
    side: u32,
}

impl Wire {
    /// A wire that stays until the program ends.
    pub fn new() -> &'static Wire {
        Wire::with(LIMITS)
    }

    /// One with so much of everything, but for peers.
    pub fn with(limits: Limits) -> &'static Wire {
        let limits = Limits { peers_max: LIMITS.peers_max, ..limits };
        let length = Loopback::bytes(limits);
        let block: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(length)));
        // SAFETY: leaked, and nobody else's.
        let mut carver: Carver<'static> = unsafe { Carver::new(block.start(), block.length()) };
        let rail = Loopback::open(limits, &mut carver).unwrap();
        let events = [VecDeque::new(), VecDeque::new()];
        let (opened, joined) = ([None; 2 * PEERS as usize], [false; 2 * PEERS as usize]);
        let faults = Faults::default();
        let (registered, deregistered) = (0, Vec::new());
        Box::leak(Box::new(Wire(Mutex::new(State {
            limits,
            rail,
            events,
            opened,
            joined,
            ends: 0,
            open: 0,
            faults,
            bytes: 0,
            registered,
            deregistered,
        }))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to go wrong from now on.
    pub fn fail(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Every connection of it breaks.
    pub fn cut(&self) {
        self.cut_with(libc::ENETDOWN);
    }

    /// The same with a code of the provider's.
    pub fn cut_with(&self, code: i32) {
        self.end_all(DownCause::Broken(code));
    }

    /// Every connection of it is closed, as it says, by peers that have closed nothing.
    pub fn close_all(&self) {
        self.end_all(DownCause::Closed);
    }

    fn end_all(&self, cause: DownCause) {
        let mut state = self.state();
        for place in 0..2 * PEERS {
            state.rail.peer_fail(PeerIndex(place), cause);
        }
    }

    /// Whether what was to go wrong went wrong.
    pub fn failed(&self) -> bool {
        let state = self.state();
        state.faults.wrong.is_none() && !state.faults.refuses
    }

    /// How many objects are open.
    pub fn open(&self) -> usize {
        self.state().open
    }

    /// Bytes that were posted to it.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// How often it was asked to register memory.
    pub fn registered(&self) -> usize {
        self.state().registered
    }

    /// With which keys it was asked to forget memory, since this was asked last.
    pub fn deregistered(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().deregistered)
    }

    /// One end of it as an endpoint is given it: the first that is opened is side 0.
    pub fn rail(&'static self, name: &str, on: &str) -> VendorRail {
        // SAFETY: the functions below.
        let table = unsafe { Table::check(&OPS) }.unwrap();
        VendorRail {
            table,
            context: std::ptr::from_ref(self).cast_mut().cast(),
            name: RailName::new(name.as_bytes()).unwrap(),
            network: network(on.as_bytes()),
            reaches_own: true,
            reaches_others: true,
            speed_mbit_s: 0,
        }
    }
}

impl End {
    fn place(&self, peer: u32) -> u32 {
        assert!(peer < PEERS, "a peer beyond the limits");
        self.side * PEERS + peer
    }
}

fn end<'e>(provider: *mut c_void) -> &'e End {
    // SAFETY: what `open` gave, until `close`.
    unsafe { &*provider.cast::<End>() }
}

unsafe extern "C" fn open(
    context: *mut c_void,
    limits: *const xtie_provider_limits,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: a wire, which is never freed.
    let wire = unsafe { &*context.cast::<Wire>() };
    // SAFETY: limits, until we return.
    assert!(unsafe { (*limits).peers_max } <= PEERS, "more peers than the vendor of tests has");
    let mut state = wire.state();
    if state.faults.no_open != 0 {
        return XTIE_PROVIDER_CODE - state.faults.no_open;
    }
    let side = (state.ends % 2) as u32;
    state.ends += 1;
    state.open += 1;
    // SAFETY: a place for the object.
    unsafe { out.write(Box::into_raw(Box::new(End { wire, side })).cast()) };
    XTIE_PROVIDER_OK
}

/// With everything that it has: nothing of it touches memory any more.
pub unsafe extern "C" fn close(provider: *mut c_void) {
    // SAFETY: what `open` gave, for the last time.
    let end = unsafe { Box::from_raw(provider.cast::<End>()) };
    let mut state = end.wire.state();
    state.open -= 1;
    let places = end.side * PEERS..(end.side + 1) * PEERS;
    for place in places.clone() {
        if state.joined[place as usize] {
            state.rail.peer_fail(PeerIndex(place), DownCause::Closed);
        }
    }
    for place in places {
        state.opened[place as usize] = None;
        while std::mem::take(&mut state.joined[place as usize]) {
            state.joined[place as usize] = state.rail.peer_close(PeerIndex(place)).is_err();
            state.collect(16, Bytes::kib(64), Instant(0));
        }
    }
    state.events[end.side as usize].clear();
}

impl State {
    /// Takes events out of the loopback, for both ends.
    fn collect(&mut self, max: usize, budget: Bytes, now: Instant) {
        let mut polled = [NOTHING; 16];
        let count = self.rail.poll(&mut polled[..max], budget, now);
        for completion in &polled[..count] {
            let place = peer_of(completion);
            let event = xtie_provider_event { peer: place % PEERS, ..event_of(completion) };
            self.events[(place / PEERS) as usize].push_back(event);
        }
    }
}

unsafe extern "C" fn caps(provider: *mut c_void, out: *mut xtie_provider_caps) {
    let state = end(provider).wire.state();
    // SAFETY: room for caps.
    let out = unsafe { &mut *out };
    promise(&state.limits, out);
    if state.faults.send_bytes_max != 0 {
        out.send_bytes_max = state.faults.send_bytes_max;
    }
    if state.faults.transfer_bytes_max != 0 {
        out.transfer_bytes_max = state.faults.transfer_bytes_max;
    }
}

/// What a wire of such limits promises.
pub fn promise(limits: &Limits, out: &mut xtie_provider_caps) {
    out.flags = XTIE_PROVIDER_CAP_PULL
        | XTIE_PROVIDER_CAP_IMMEDIATE
        | XTIE_PROVIDER_CAP_ORDERED
        | XTIE_PROVIDER_CAP_COPIES_AT_POST;
    out.send_bytes_max = limits.payload_max.0;
    out.transfer_bytes_max = 1 << 40;
    out.copy_granule_bytes = 64;
    out.recv_slots = limits.slots;
    out.blob_bytes = 4;
    out.atomic_bytes = 8;
    out.fence = XTIE_PROVIDER_FENCE_LOCAL;
}

unsafe extern "C" fn peer_blob(provider: *mut c_void, peer: u32, out: *mut c_void) -> c_int {
    let mut state = end(provider).wire.state();
    if state.faults.no_blob > 0 {
        state.faults.no_blob -= 1;
        return XTIE_PROVIDER_CODE - libc::ENOMEM;
    }
    drop(state);
    // SAFETY: room for a blob.
    unsafe { out.cast::<u32>().write_unaligned(end(provider).place(peer)) };
    XTIE_PROVIDER_OK
}

unsafe extern "C" fn peer_open(provider: *mut c_void, peer: u32, blob: *const c_void) -> c_int {
    let end = end(provider);
    // SAFETY: a blob.
    let other = unsafe { blob.cast::<u32>().read_unaligned() };
    let place = end.place(peer);
    if other / PEERS == end.side || other >= 2 * PEERS {
        return XTIE_PROVIDER_BLOB;
    }
    let mut state = end.wire.state();
    if state.faults.not_yet > 0 {
        state.faults.not_yet -= 1;
        return XTIE_PROVIDER_AGAIN;
    }
    assert_eq!(state.opened[place as usize], None, "a peer that is open");
    state.opened[place as usize] = Some(other);
    if state.opened[other as usize] == Some(place) {
        state.rail.peer_open_at(PeerIndex(place), PeerIndex(other)).unwrap();
        for place in [place, other] {
            state.joined[place as usize] = true;
        }
    }
    XTIE_PROVIDER_OK
}

unsafe extern "C" fn region_register(
    provider: *mut c_void,
    address: u64,
    bytes: u64,
    kind: u32,
    out: *mut u64,
) -> c_int {
    let mut state = end(provider).wire.state();
    state.registered += 1;
    if state.faults.no_memory > 0 {
        state.faults.no_memory -= 1;
        return XTIE_PROVIDER_CODE - libc::ENOMEM;
    }
    let domain = state.rail.domain();
    // SAFETY: handed on as it came.
    match registered(unsafe { domain.register(region_of(address, bytes, kind)) }) {
        Ok(key) => {
            let key = if state.faults.key_zero { 0 } else { key };
            // SAFETY: a place for the key.
            unsafe { out.write(key) };
            XTIE_PROVIDER_OK
        }
        Err(answer) => answer,
    }
}

unsafe extern "C" fn region_deregister(provider: *mut c_void, key: u64) -> c_int {
    let mut state = end(provider).wire.state();
    state.deregistered.push(key);
    if state.faults.busy > 0 {
        state.faults.busy -= 1;
        return XTIE_PROVIDER_BUSY;
    }
    deregistered(state.rail.domain().deregister(RailKey(key)))
}

unsafe extern "C" fn post(provider: *mut c_void, op: *const xtie_provider_op, now: u64) -> c_int {
    // SAFETY: an op, until we return.
    let op = unsafe { &*op };
    let place = end(provider).place(op.peer);
    let mut state = end(provider).wire.state();
    if !state.joined[place as usize] {
        return XTIE_PROVIDER_AGAIN;
    }
    if op.kind == XTIE_PROVIDER_OP_WRITE && std::mem::take(&mut state.faults.refuses) {
        return XTIE_PROVIDER_UNSUPPORTED;
    }
    let most = state.faults.transfer_bytes_max;
    if most != 0 && op.local.bytes > most {
        return XTIE_PROVIDER_UNSUPPORTED;
    }
    let taken = Op { id: OpId(op.id), peer: PeerIndex(place), kind: kind_of(op) };
    let answer = posted(state.rail.post(&taken, Instant(now)));
    if answer >= 0 {
        state.bytes += op.local.bytes;
    }
    answer
}

unsafe extern "C" fn fence_begin(
    provider: *mut c_void,
    peer: u32,
    id: u64,
    generation: u32,
    now: u64,
) -> c_int {
    let end = end(provider);
    let place = end.place(peer);
    let mut state = end.wire.state();
    if state.faults.no_fence {
        return XTIE_PROVIDER_AGAIN;
    }
    if !state.joined[place as usize] {
        let kind = XTIE_PROVIDER_EVENT_FENCED;
        let event = xtie_provider_event::default();
        let event = xtie_provider_event { kind, peer, id, word: generation, ..event };
        state.events[end.side as usize].push_back(event);
        return XTIE_PROVIDER_OK;
    }
    let kind = OpKind::Fence { generation: RailGeneration(generation) };
    posted(state.rail.post(&Op { id: OpId(id), peer: PeerIndex(place), kind }, Instant(now)))
}

const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(99), immediate: 0 };

unsafe extern "C" fn poll(
    provider: *mut c_void,
    events: *mut xtie_provider_event,
    max: u32,
    budget: u64,
    now: u64,
) -> u32 {
    let end = end(provider);
    let mut state = end.wire.state();
    state.collect(max as usize, Bytes(budget), Instant(now));
    let mut given = 0;
    while given < max {
        let Some(mut event) = state.events[end.side as usize].pop_front() else { break };
        if state.faults.no_fenced && event.kind == XTIE_PROVIDER_EVENT_FENCED {
            continue;
        }
        let is_here = end.side == 1 || !state.faults.at_second;
        let wrong = state.faults.wrong.filter(|_| is_here);
        let is_wrong = wrong.is_some_and(|wrong| wrong.spoil(&mut event));
        // SAFETY: room for `max` events.
        unsafe { events.add(given as usize).write(event) };
        given += 1;
        if is_wrong {
            state.faults.wrong = None;
            match wrong {
                Some(Wrong::Count) => return max + 1,
                Some(Wrong::MessageAgain) => state.events[end.side as usize].push_front(event),
                Some(_) | None => {}
            }
        }
    }
    given
}

unsafe extern "C" fn received_copy(
    provider: *mut c_void,
    peer: u32,
    slot: u64,
    offset: u64,
    to: *const xtie_provider_span,
) {
    // SAFETY: a span, until we return.
    let to = unsafe { &*to };
    // SAFETY: whoever asks vouches for the memory.
    let to = unsafe { LocalSpan::new(to.address, Bytes(to.bytes), RailKey(to.key)) };
    let place = PeerIndex(end(provider).place(peer));
    end(provider).wire.state().rail.received_copy(place, RecvSlot(slot), offset, to);
}

unsafe extern "C" fn received_release(provider: *mut c_void, peer: u32, slot: u64) {
    let place = PeerIndex(end(provider).place(peer));
    end(provider).wire.state().rail.received_release(place, RecvSlot(slot));
}

unsafe extern "C" fn peer_fail(provider: *mut c_void, peer: u32, cause: u32, code: i32) {
    let end = end(provider);
    let place = end.place(peer);
    let mut state = end.wire.state();
    if state.joined[place as usize] {
        state.rail.peer_fail(PeerIndex(place), words::cause(cause, code));
    } else if state.opened[place as usize].is_some() {
        let kind = XTIE_PROVIDER_EVENT_PEER_DOWN;
        let event = xtie_provider_event::default();
        let event = xtie_provider_event { kind, peer, status: cause, ..event };
        state.events[end.side as usize].push_back(event);
    }
}

unsafe extern "C" fn peer_close(provider: *mut c_void, peer: u32) -> c_int {
    let place = end(provider).place(peer);
    let mut state = end(provider).wire.state();
    if state.opened[place as usize].is_none() {
        return XTIE_PROVIDER_STALE;
    }
    let answer = match state.joined[place as usize] {
        true => closed(state.rail.peer_close(PeerIndex(place))),
        false => XTIE_PROVIDER_OK,
    };
    if answer == XTIE_PROVIDER_OK {
        state.events[end(provider).side as usize].retain(|event| event.peer != peer);
        state.opened[place as usize] = None;
        state.joined[place as usize] = false;
    }
    answer
}

pub const OPS: xtie_provider_ops = xtie_provider_ops {
    struct_size: size_of::<xtie_provider_ops>() as u32,
    reserved: 0,
    open: Some(open),
    close: Some(close),
    caps: Some(caps),
    peer_blob: Some(peer_blob),
    peer_open: Some(peer_open),
    region_register: Some(region_register),
    region_deregister: Some(region_deregister),
    post: Some(post),
    poll: Some(poll),
    fence_begin: Some(fence_begin),
    received_copy: Some(received_copy),
    received_release: Some(received_release),
    peer_fail: Some(peer_fail),
    peer_close: Some(peer_close),
    peer_detach: None,
    flush: None,
};
