//! A loopback behind a vendor's table keeps the contract, and what no provider may answer is
//! noticed. The same of a provider that is C to the core: `tests/core`, the rung `core`.

mod common;
#[allow(dead_code)]
mod vendor_support;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};

use common::{NOTHING, PEERS, Pair};
use crosstie::base::carve::Carver;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Domain, MemoryDomain, MemoryKind, PostError, Posted, Provider, Region, RegisterError,
};
use crosstie::provider::vendor::abi::*;
use crosstie::provider::vendor::flights::{Flights, bytes};
use crosstie::provider::vendor::{CapsError, OpenError, PeerError, Table, TableError, Vendor};
use vendor_support::{OPS, Wire, close, promise};

fn check(ops: &xtie_provider_ops) -> Result<Table, TableError> {
    // SAFETY: the functions above, or NULL.
    unsafe { Table::check(ops) }
}

fn wire() -> &'static Wire {
    Wire::with(common::LOOPBACK)
}

fn open_over(ops: &xtie_provider_ops, wire: &'static Wire) -> Result<Vendor<'static>, OpenError> {
    let context = from_ref(wire).cast_mut().cast();
    let block: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(bytes(2, FLIGHTS))));
    // SAFETY: leaked, and nobody else's.
    let mut carver: Carver<'static> = unsafe { Carver::new(block.start(), block.length()) };
    let flights = Flights::carve(&mut carver, 2, FLIGHTS).unwrap();
    // SAFETY: a wire, which is never freed.
    unsafe { Vendor::open(check(ops).unwrap(), context, flights, 8) }
}

/// Ops of a peer.
const FLIGHTS: u32 = 256;

fn pair() -> Pair<Vendor<'static>> {
    let wire = wire();
    let mut ends = [(); 2].map(|()| open_over(&OPS, wire).unwrap());
    join(&mut ends);
    Pair { providers: ends.into(), peers: PEERS, rejoin: Some(Box::new(join)) }
}

fn join(ends: &mut [Vendor<'static>]) {
    let blobs = [0, 1].map(|side| ends[side].peer_blob(PEERS[side]).unwrap());
    for side in [0, 1] {
        ends[side].peer_open(PEERS[side], &blobs[1 - side]).unwrap();
    }
}

#[test]
fn loopback_behind_a_table_keeps_every_promise() {
    // a loopback detaches no peers, and a table has no longer payloads towards one
    common::run_all(pair, 2);
}

#[test]
fn table_with_a_null_entry_or_another_size_is_refused_by_name() {
    let without = |change: fn(&mut xtie_provider_ops)| {
        let mut ops = OPS;
        change(&mut ops);
        check(&ops).unwrap_err()
    };
    assert_eq!(without(|ops| ops.post = None), TableError::Entry("post"));
    assert_eq!(without(|ops| ops.close = None), TableError::Entry("close"));
    assert_eq!(without(|ops| ops.struct_size = 0), TableError::Size);
    assert_eq!(without(|ops| ops.struct_size -= 1), TableError::Size);
    assert_eq!(without(|ops| ops.reserved = 1), TableError::Reserved);
    // SAFETY: NULL is allowed.
    assert_eq!(unsafe { Table::check(std::ptr::null()) }.unwrap_err(), TableError::Null);
    let mut longer = [OPS, OPS];
    longer[0].struct_size = size_of_val(&longer) as u32;
    // SAFETY: both tables are there to be read.
    let refused = unsafe { Table::check(longer.as_ptr()) }.unwrap_err();
    assert_eq!(refused, TableError::Longer);
    let optional: [fn(&mut xtie_provider_ops); 2] =
        [|ops| ops.fence_begin = None, |ops| ops.flush = None];
    for leave_out in optional {
        let mut ops = OPS;
        leave_out(&mut ops);
        assert!(check(&ops).is_ok());
    }
}

/// Whoever says too much has left the size to chance: what lies behind the table, if anything does,
/// was read for it.
#[test]
fn size_that_no_version_has_is_refused_before_anything_else_is_read() {
    const PAGE: usize = 4096;
    const BYTES: usize = size_of::<xtie_provider_ops>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of two pages, of which the second one cannot be read.
    let pages = unsafe { libc::mmap(null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(pages, libc::MAP_FAILED);
    // SAFETY: its first page.
    let opened = unsafe { libc::mprotect(pages, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(opened, 0);
    let place: *mut xtie_provider_ops = pages.wrapping_byte_add(PAGE - BYTES).cast();
    let check = |struct_size| {
        // SAFETY: the end of that page, aligned as the table is.
        unsafe { place.write(xtie_provider_ops { struct_size, ..OPS }) };
        // SAFETY: no more is read than the sizes of versions say.
        unsafe { Table::check(place) }
    };
    assert!(check(BYTES as u32).is_ok());
    for beyond in (1..8).chain([12, 4097 - BYTES as u32, u32::MAX - BYTES as u32]) {
        let refused = check(BYTES as u32 + beyond).unwrap_err();
        assert_eq!(refused, TableError::Size, "{beyond} beyond");
    }
    // SAFETY: ours, and used no more.
    unsafe { libc::munmap(pages, 2 * PAGE) };
}

thread_local! {
    /// What the object says of itself, if not the truth.
    static SAID: Cell<xtie_provider_caps> = const { Cell::new(NO_CAPS) };
    /// Objects that were closed.
    static CLOSED: Cell<u32> = const { Cell::new(0) };
    /// What the next poll gives.
    static EVENT: Cell<xtie_provider_event> = const { Cell::new(NO_EVENT) };
    /// What the next post answers.
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
    /// What the last post called its op.
    static TOLD: Cell<u64> = const { Cell::new(0) };
}

const NO_CAPS: xtie_provider_caps = xtie_provider_caps {
    struct_size: 0,
    flags: 0,
    send_bytes_max: 0,
    transfer_bytes_max: 0,
    copy_granule_bytes: 0,
    recv_slots: 0,
    blob_bytes: 0,
    atomic_bytes: 0,
    fence: 0,
    syscalls: 0,
    reserved: 0,
};
const NO_EVENT: xtie_provider_event = xtie_provider_event {
    kind: 0,
    peer: 0,
    id: 0,
    status: 0,
    code: 0,
    bytes: 0,
    word: 0,
    head: [0; 32],
};

unsafe extern "C" fn caps_said(_: *mut c_void, out: *mut xtie_provider_caps) {
    // SAFETY: room for caps.
    unsafe { out.write(SAID.get()) };
}

unsafe extern "C" fn close_counted(provider: *mut c_void) {
    CLOSED.set(CLOSED.get() + 1);
    // SAFETY: as it came.
    unsafe { close(provider) };
}

#[test]
fn caps_that_cannot_be_are_refused_and_the_object_closed() {
    let mut truth = xtie_provider_caps { struct_size: 56, ..NO_CAPS };
    assert_eq!(size_of_val(&truth), 56);
    promise(&common::LOOPBACK, &mut truth);
    let wire = wire();
    let ops = xtie_provider_ops { caps: Some(caps_said), close: Some(close_counted), ..OPS };
    SAID.set(truth);
    drop(open_over(&ops, wire).unwrap());
    assert_eq!(CLOSED.get(), 1);
    type Change = fn(&mut xtie_provider_caps);
    let bad: [(CapsError, Change); 12] = [
        (CapsError::Size, |caps| caps.struct_size += 8),
        (CapsError::Size, |caps| caps.reserved = 1),
        (CapsError::Flags, |caps| caps.flags |= 1 << 31),
        (CapsError::Nothing, |caps| caps.send_bytes_max = 0),
        (CapsError::Nothing, |caps| caps.recv_slots = 0),
        (CapsError::Nothing, |caps| caps.transfer_bytes_max = 63),
        (CapsError::Way, |caps| caps.flags = XTIE_PROVIDER_CAP_ORDERED),
        (CapsError::Atomic, |caps| caps.atomic_bytes = 4),
        (CapsError::Fence, |caps| caps.fence = 4),
        (CapsError::Granule, |caps| caps.copy_granule_bytes = u64::MAX),
        (CapsError::Syscalls, |caps| caps.syscalls = 3),
        (CapsError::Blob, |caps| caps.blob_bytes = XTIE_PROVIDER_BLOB_BYTES_MAX + 1),
    ];
    for (at, (error, change)) in bad.into_iter().enumerate() {
        let mut caps = truth;
        change(&mut caps);
        SAID.set(caps);
        assert_eq!(open_over(&ops, wire).unwrap_err(), OpenError::Caps(error));
        assert_eq!(CLOSED.get(), at as u32 + 2);
    }
    SAID.set(truth);
    let unfenced = xtie_provider_ops { fence_begin: None, ..ops };
    let refused = open_over(&unfenced, wire).unwrap_err();
    assert_eq!(refused, OpenError::Caps(CapsError::Fence), "promised, and not there");
}

unsafe extern "C" fn poll_said(
    _: *mut c_void,
    events: *mut xtie_provider_event,
    max: u32,
    _: u64,
    _: u64,
) -> u32 {
    if max != 0 {
        // SAFETY: room for one.
        unsafe { events.write(EVENT.get()) };
    }
    if EVENT.get().kind == 77 { max + 1 } else { max.min(1) }
}

unsafe extern "C" fn post_said(_: *mut c_void, op: *const xtie_provider_op, _: u64) -> c_int {
    // SAFETY: an op, until we return.
    TOLD.set(unsafe { (*op).id });
    ANSWER.get()
}

#[test]
fn answers_that_are_none_are_noticed_and_go_no_further() {
    let wire = wire();
    let ops = xtie_provider_ops { poll: Some(poll_said), ..OPS };
    let done = xtie_provider_event { kind: XTIE_PROVIDER_EVENT_DONE, ..NO_EVENT };
    let bad = [
        NO_EVENT,
        xtie_provider_event { kind: 6, ..NO_EVENT },
        xtie_provider_event { kind: 77, ..NO_EVENT },
        xtie_provider_event { peer: 2, ..done },
        xtie_provider_event { status: 5, ..done },
        xtie_provider_event { kind: XTIE_PROVIDER_EVENT_PEER_DOWN, ..NO_EVENT },
        xtie_provider_event {
            kind: XTIE_PROVIDER_EVENT_RECEIVED,
            bytes: common::LOOPBACK.payload_max.0 as u32 + 1,
            ..NO_EVENT
        },
    ];
    for event in bad {
        let mut vendor = open_over(&ops, wire).unwrap();
        EVENT.set(event);
        assert_eq!(vendor.breach(), None);
        assert_eq!(vendor.poll(&mut [NOTHING; 4], Bytes::ZERO, Instant(0)), 0, "{event:?}");
        assert_eq!(vendor.breach().map(|breach| breach.entry), Some("poll"), "{event:?}");
    }
}

/// An event, or more than one, said of an object whose peer is open; what the poll makes of it.
fn polled_of_open(events: &[xtie_provider_event], answer: c_int) -> (Vendor<'static>, Vec<usize>) {
    let ops =
        xtie_provider_ops { poll: Some(poll_said), post: Some(post_said), ..vendor_support::OPS };
    let wire = wire();
    let mut vendor = open_over(&ops, wire).unwrap();
    let mut other = open_over(&vendor_support::OPS, wire).unwrap();
    let blob = other.peer_blob(PEERS[1]).unwrap();
    vendor.peer_open(PEERS[0], &blob).unwrap();
    ANSWER.set(answer);
    let _ = vendor.post(&common::empty_send(PEERS[0], 1), Instant(0));
    let mut counts = Vec::new();
    for event in events {
        // the name that the vendor was told, changed by what the test says
        EVENT.set(xtie_provider_event { id: event.id ^ TOLD.get(), ..*event });
        counts.push(vendor.poll(&mut [NOTHING; 4], Bytes::ZERO, Instant(0)));
    }
    (vendor, counts)
}

fn of_open() -> xtie_provider_event {
    xtie_provider_event { kind: XTIE_PROVIDER_EVENT_DONE, peer: PEERS[0].0, ..NO_EVENT }
}

#[test]
fn completion_of_what_is_not_in_flight_is_none() {
    let done = of_open();
    let (vendor, counts) = polled_of_open(&[done], XTIE_PROVIDER_OK);
    assert_eq!((vendor.breach(), counts), (None, vec![1]), "what was taken ends");
    let (vendor, counts) = polled_of_open(&[done, done], XTIE_PROVIDER_OK);
    assert_eq!(counts, [1, 0], "twice");
    assert_eq!(vendor.breach().map(|breach| breach.entry), Some("poll"));
    for answer in [XTIE_PROVIDER_DONE, XTIE_PROVIDER_AGAIN, XTIE_PROVIDER_PEER_DOWN] {
        let (vendor, counts) = polled_of_open(&[done], answer);
        assert_eq!(counts, [0], "not pending: {answer}");
        assert!(vendor.breach().is_some(), "{answer}");
    }
    let fenced = xtie_provider_event { kind: XTIE_PROVIDER_EVENT_FENCED, ..done };
    let other = xtie_provider_event { peer: PEERS[1].0, ..done };
    let bits = (0..64).map(|bit| xtie_provider_event { id: 1 << bit, ..done });
    for event in bits.chain([fenced, other]) {
        let (vendor, counts) = polled_of_open(&[event, done], XTIE_PROVIDER_OK);
        assert_eq!(counts, [0, 0], "{event:?}; and nothing is believed behind it");
        assert!(vendor.breach().is_some(), "{event:?}");
    }
}

#[test]
fn event_of_a_peer_that_is_not_open_is_none() {
    for kind in
        [XTIE_PROVIDER_EVENT_RECEIVED, XTIE_PROVIDER_EVENT_IMMEDIATE, XTIE_PROVIDER_EVENT_PEER_DOWN]
    {
        let event = xtie_provider_event { kind, status: 1, ..of_open() };
        let (vendor, counts) = polled_of_open(&[event], XTIE_PROVIDER_AGAIN);
        assert_eq!((vendor.breach(), counts), (None, vec![1]), "{event:?}");
        let event = xtie_provider_event { peer: PEERS[1].0, ..event };
        let (vendor, counts) = polled_of_open(&[event], XTIE_PROVIDER_AGAIN);
        assert_eq!(counts, [0], "{event:?}");
        assert!(vendor.breach().is_some(), "{event:?}");
    }
}

#[test]
fn answers_of_post_that_are_none_are_noticed() {
    let send = common::empty_send(PEERS[0], 2);
    for (answer, is_breach) in [
        (XTIE_PROVIDER_AGAIN, false),
        (XTIE_PROVIDER_PEER_DOWN, false),
        (XTIE_PROVIDER_BUSY, true),
        // it is within the caps
        (XTIE_PROVIDER_UNSUPPORTED, true),
    ] {
        let (mut vendor, _) = polled_of_open(&[], answer);
        let breach = vendor.breach().map(|breach| breach.entry);
        assert_eq!(breach, is_breach.then_some("post"), "{answer}");
        let expected =
            if answer == XTIE_PROVIDER_AGAIN { PostError::Again } else { PostError::PeerDown };
        assert_eq!(vendor.post(&send, Instant(0)), Err(expected), "{answer}");
    }
    let (mut vendor, _) = polled_of_open(&[], XTIE_PROVIDER_OK);
    let other = common::empty_send(PEERS[1], 2);
    assert_eq!(vendor.post(&other, Instant(0)), Err(PostError::PeerDown), "not open, and taken");
    assert_eq!(vendor.breach().map(|breach| breach.entry), Some("post"));
}

/// One place is left for a fence, however much is in flight.
#[test]
fn more_than_so_many_ops_are_not_now() {
    let (mut vendor, _) = polled_of_open(&[], XTIE_PROVIDER_OK);
    let send = common::empty_send(PEERS[0], 2);
    for _ in 2..FLIGHTS {
        assert_eq!(vendor.post(&send, Instant(0)), Ok(Posted::Pending));
    }
    assert_eq!(vendor.post(&send, Instant(0)), Err(PostError::Again));
    EVENT.set(xtie_provider_event { id: TOLD.get(), ..of_open() });
    assert_eq!(vendor.poll(&mut [NOTHING; 4], Bytes::ZERO, Instant(0)), 1);
    assert_eq!(vendor.post(&send, Instant(0)), Ok(Posted::Pending), "a place is free");
    assert_eq!(vendor.breach(), None);
}

unsafe extern "C" fn open_refused(
    _: *mut c_void,
    _: *const xtie_provider_limits,
    _: *mut *mut c_void,
) -> c_int {
    XTIE_PROVIDER_CODE - 19
}

#[test]
fn refusals_carry_the_vendors_code() {
    let wire = wire();
    let ops = xtie_provider_ops { open: Some(open_refused), ..OPS };
    assert_eq!(open_over(&ops, wire).unwrap_err(), OpenError::Refused(19));
    let mut vendor = open_over(&OPS, wire).unwrap();
    let own = vendor.peer_blob(PEERS[0]).unwrap();
    assert_eq!(vendor.peer_open(PEERS[0], &own), Err(PeerError::Blob));
    let region = Region { address: 64, length: Bytes(8), kind: MemoryKind::Cuda(3) };
    // SAFETY: it is refused.
    let refused = unsafe { vendor.domain().register(region) };
    assert_eq!(refused, Err(RegisterError::Kind));
}
