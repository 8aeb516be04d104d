//! The life of a peer on a vendor's rail beside others: before the vendor has opened it, while it
//! says "not yet", and when it ends.
#![allow(dead_code)] // of the shared parts

mod vendor_support;

use crosstie::base::carve::Carver;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    CloseError, Completion, Domain, DownCause, LocalSpan, MemoryDomain, MemoryKind, Op,
    OpErrorKind, OpId, OpKind, PeerLife, PostError, Posted, Provider, RailKey, Region,
    RegisterError, RemoteSpan,
};
use crosstie::provider::vendor::PeerError;
use crosstie::provider::vendor::port::{
    PortConfig, PortPeerError, RECV_SLOTS_MIN, RailName, VendorPort, bytes,
};
use vendor_support::{Faults, Wire, Wrong};

const PEERS: u32 = 2;
const NOW: Instant = Instant(1);
const PEER: PeerIndex = PeerIndex(1);
const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(99), immediate: 0 };

fn port(wire: &'static Wire) -> VendorPort<'static> {
    let block: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(bytes(PEERS))));
    // SAFETY: leaked, and nobody else's.
    let mut carver: Carver<'static> = unsafe { Carver::new(block.start(), block.length()) };
    let rail = wire.rail("acme0", "");
    let name = RailName::new(b"acme0").unwrap();
    let config = PortConfig { table: rail.table, context: rail.context, name };
    // SAFETY: the wire stays, and domains are not used here.
    unsafe { VendorPort::open(&mut carver, PEERS, 8, 2048, &config) }.unwrap()
}

/// Both ends of a wire.
fn ports(wire: &'static Wire) -> [VendorPort<'static>; 2] {
    [port(wire), port(wire)]
}

fn joined(ends: &mut [VendorPort<'static>; 2]) {
    let hellos = [0, 1].map(|side: usize| ends[side].peer_prepare(PEER).unwrap());
    for side in [0, 1] {
        ends[side].peer_connect(PEER, &hellos[1 - side]).unwrap();
    }
}

fn polled(port: &mut VendorPort) -> Vec<Completion> {
    let mut out = [NOTHING; 16];
    let count = port.poll(&mut out, Bytes::kib(64), NOW);
    out[..count].to_vec()
}

/// What a poll tells, in words that can be compared.
fn told(port: &mut VendorPort) -> Vec<String> {
    polled(port).iter().map(|event| format!("{event:?}")).collect()
}

fn words<const N: usize>(events: [Completion; N]) -> Vec<String> {
    events.iter().map(|event| format!("{event:?}")).collect()
}

fn fence(port: &mut VendorPort, id: u64) -> Result<Posted, PostError> {
    let kind = OpKind::Fence { generation: RailGeneration(3) };
    port.post(&Op { id: OpId(id), peer: PEER, kind }, NOW)
}

fn send(port: &mut VendorPort, id: u64) -> Result<Posted, PostError> {
    // SAFETY: nothing of it is read.
    let payload = unsafe { LocalSpan::new(0, Bytes(0), RailKey(0)) };
    let kind = OpKind::Send { head: [7; 32], payload };
    port.post(&Op { id: OpId(id), peer: PEER, kind }, NOW)
}

fn fenced(id: u64) -> Completion {
    Completion::Fenced { peer: PEER, id: OpId(id), generation: RailGeneration(3) }
}

#[test]
fn peer_that_was_only_told_is_fenced_failed_and_closed_without_the_vendor() {
    let mut port = port(Wire::new());
    assert_eq!(fence(&mut port, 1), Err(PostError::PeerDown), "a closed peer");
    assert!(port.is_idle());
    port.peer_prepare(PEER).unwrap();
    assert_eq!(port.peer_prepare(PEER), Err(PortPeerError::Index), "prepared twice");
    assert!(!port.is_idle());
    assert_eq!(send(&mut port, 2), Err(PostError::PeerDown));
    assert_eq!(fence(&mut port, 3), Ok(Posted::Pending));
    port.peer_fail(PEER, DownCause::Died);
    let down = Completion::PeerDown { peer: PEER, cause: DownCause::Died };
    assert_eq!(told(&mut port), words([down, fenced(3)]));
    assert_eq!(told(&mut port), words([]), "told twice");
    assert_eq!(fence(&mut port, 4), Ok(Posted::Pending), "also of a peer that is down");
    assert_eq!(told(&mut port), words([fenced(4)]));
    assert_eq!(port.peer_close(PEER), Ok(()));
    assert_eq!(port.peer_close(PEER), Err(CloseError::Stale));
    assert!(port.is_idle());
}

#[test]
fn peer_that_the_vendor_puts_off_is_asked_for_by_polls_and_may_end_before() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    let hellos = [0, 1].map(|side: usize| ends[side].peer_prepare(PEER).unwrap());
    wire.fail(Faults { not_yet: 3, ..Faults::default() });
    ends[0].peer_connect(PEER, &hellos[1]).unwrap();
    assert_eq!(send(&mut ends[0], 1), Err(PostError::Again));
    polled(&mut ends[0]);
    assert_eq!(send(&mut ends[0], 1), Err(PostError::Again));
    for _ in 0..2 {
        polled(&mut ends[0]);
    }
    ends[1].peer_connect(PEER, &hellos[0]).unwrap();
    assert!(send(&mut ends[0], 1).is_ok(), "the vendor has opened it");
    // another, which ends while it is put off
    wire.fail(Faults { not_yet: u32::MAX, ..Faults::default() });
    let mut other = ports(Wire::new());
    let hello = other[1].peer_prepare(PEER).unwrap();
    other[0].peer_prepare(PEER).unwrap();
    let mut port = port(wire);
    port.peer_prepare(PEER).unwrap();
    port.peer_connect(PEER, &hello).unwrap();
    port.peer_fail(PEER, DownCause::Closed);
    let down = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };
    assert_eq!(told(&mut port), words([down]));
    assert_eq!(port.peer_detach(PEER), Ok(()));
    assert!(port.is_idle());
}

/// The second took the place of the first, which nothing ever told of.
#[test]
fn second_fence_before_a_poll_waits_until_the_first_is_told() {
    let mut port = port(Wire::new());
    let _ = port.peer_prepare(PEER).unwrap();
    assert_eq!(fence(&mut port, 1), Ok(Posted::Pending));
    assert_eq!(fence(&mut port, 2), Err(PostError::Again));
    assert_eq!(told(&mut port), words([fenced(1)]));
    assert_eq!(fence(&mut port, 2), Ok(Posted::Pending));
    assert_eq!(told(&mut port), words([fenced(2)]));
    assert_eq!(port.peer_close(PEER), Ok(()));
}

/// The vendor opened it behind the fence, and nothing ever told of that fence.
#[test]
fn fence_of_a_peer_that_the_vendor_puts_off_ends_the_attempt() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    let hellos = [0, 1].map(|side: usize| ends[side].peer_prepare(PEER).unwrap());
    wire.fail(Faults { not_yet: 1, ..Faults::default() });
    ends[0].peer_connect(PEER, &hellos[1]).unwrap();
    assert_eq!(fence(&mut ends[0], 1), Ok(Posted::Pending));
    assert_eq!(send(&mut ends[0], 2), Err(PostError::PeerDown), "a fenced peer");
    assert_eq!(told(&mut ends[0]), words([fenced(1)]));
    assert_eq!(told(&mut ends[0]), words([]));
    ends[0].peer_fail(PEER, DownCause::Closed);
    let down = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };
    assert_eq!(told(&mut ends[0]), words([down]));
    assert_eq!(ends[0].peer_close(PEER), Ok(()));
    assert!(ends[0].is_idle());
}

#[test]
fn blob_of_another_length_or_of_ones_own_side_is_refused_and_the_number_is_free() {
    let mut ends = ports(Wire::new());
    let hello = ends[0].peer_prepare(PEER).unwrap();
    let mut short = ends[1].peer_prepare(PEER).unwrap();
    short.blob_bytes = 3;
    let refused = Err(PortPeerError::Peer(PeerError::Blob));
    assert_eq!(ends[0].peer_connect(PEER, &short), refused);
    assert!(ends[0].is_idle());
    ends[0].peer_prepare(PEER).unwrap();
    assert_eq!(ends[0].peer_connect(PEER, &hello), refused, "its own");
    assert!(ends[0].is_idle());
    ends[0].peer_prepare(PEER).unwrap();
    assert_eq!(ends[0].peer_close(PEER), Ok(()));
}

/// Without `peer_detach` a peer that holds nothing goes all the same; one that holds a message
/// stays until that is released.
#[test]
fn peer_of_a_vendor_without_detach_goes_when_it_holds_nothing() {
    let mut ends = ports(Wire::new());
    joined(&mut ends);
    assert!(send(&mut ends[0], 1).is_ok());
    polled(&mut ends[0]);
    let came = polled(&mut ends[1]);
    let Some(Completion::Received { slot, .. }) = came.first().copied() else { panic!("{came:?}") };
    for end in &mut ends {
        end.peer_fail(PEER, DownCause::Died);
        assert_eq!(fence(end, 9), Ok(Posted::Pending));
    }
    for end in &mut ends {
        let told = [told(end), told(end)].concat();
        assert!(told.contains(&format!("{:?}", fenced(9))), "{told:?}");
    }
    assert_eq!(ends[0].peer_detach(PEER), Ok(()));
    assert_eq!(ends[1].peer_detach(PEER), Err(CloseError::Busy));
    ends[1].received_release(PEER, slot);
    assert_eq!(ends[1].peer_detach(PEER), Ok(()));
    joined(&mut ends);
    assert!(send(&mut ends[1], 2).is_ok(), "the numbers are free again");
}

#[test]
fn breach_fails_every_peer_and_nothing_is_joined_any_more() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    joined(&mut ends);
    assert!(send(&mut ends[0], 1).is_ok());
    wire.fail(Faults { wrong: Some(Wrong::Kind), ..Faults::default() });
    polled(&mut ends[1]);
    assert!(ends[1].is_lost() && !ends[0].is_lost());
    let error = ends[1].error(PEER).unwrap().to_string();
    assert!(error.contains("of the vendor's poll"), "{error}");
    assert_eq!(send(&mut ends[1], 2), Err(PostError::PeerDown));
    let told: Vec<Completion> = (0..4).flat_map(|_| polled(&mut ends[1])).collect();
    assert!(matches!(told.last(), Some(Completion::PeerDown { .. })), "{told:?}");
    assert_eq!(ends[1].peer_prepare(PeerIndex(0)), Err(PortPeerError::Lost));
}

/// After a breach the object is closed, what it had in flight ends, and what had come is there.
#[test]
fn what_was_in_flight_ends_with_the_object_and_what_had_come_stays() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    joined(&mut ends);
    let data = [5u8; 100];
    // SAFETY: it outlives the ops.
    let payload = unsafe { LocalSpan::new(data.as_ptr() as u64, Bytes(100), RailKey(0)) };
    let kind = OpKind::Send { head: [7; 32], payload };
    ends[0].post(&Op { id: OpId(1), peer: PEER, kind }, NOW).unwrap();
    polled(&mut ends[0]);
    let came = polled(&mut ends[1]);
    let Some(Completion::Received { slot, .. }) = came.first().copied() else { panic!("{came:?}") };
    wire.fail(Faults { wrong: Some(Wrong::Kind), ..Faults::default() });
    assert!(send(&mut ends[0], 2).is_ok());
    assert_eq!(fence(&mut ends[1], 3), Ok(Posted::Pending), "the vendor has it");
    assert_eq!(ends[1].peer_close(PEER), Err(CloseError::Busy));
    assert_eq!(told(&mut ends[1]), words([]), "a message of no kind, and all behind it");
    assert_eq!((ends[1].is_lost(), wire.open()), (true, 1));
    assert_eq!(ends[1].peer_close(PEER), Err(CloseError::Busy), "its fence is not told");
    assert_eq!(fence(&mut ends[1], 4), Ok(Posted::Pending));
    let down = Completion::PeerDown { peer: PEER, cause: DownCause::Failed };
    assert_eq!(told(&mut ends[1]), words([fenced(3), down, fenced(4)]));
    let mut bytes = [0; 100];
    ends[1].received_peek(PEER, slot, &mut bytes);
    assert_eq!(bytes, data);
    assert_eq!(ends[1].peer_detach(PEER), Ok(()));
    bytes = [0; 100];
    // SAFETY: it outlives the copy.
    let to = unsafe { LocalSpan::new(bytes[60..].as_mut_ptr() as u64, Bytes(40), RailKey(0)) };
    ends[1].received_copy(PEER, slot, 60, to);
    assert_eq!(bytes[60..], data[60..]);
    ends[1].received_release(PEER, slot);
    assert!(ends[1].is_idle());
    let domain = ends[1].domain();
    let region = Region { address: 64, length: Bytes(8), kind: MemoryKind::Host };
    // SAFETY: it is refused.
    assert_eq!(unsafe { domain.register(region) }, Err(RegisterError::Fabric(libc::ENODEV)));
    assert_eq!(domain.deregister(RailKey(7)), Ok(()), "a closed object has no regions");
}

/// Only what is in flight ends: another op, another peer's, one of another time, or none at all
/// takes the rail out of use.
#[test]
fn op_that_is_not_in_flight_is_none_that_ends() {
    for wrong in [Wrong::Name, Wrong::DonePeer, Wrong::Status] {
        let wire = Wire::new();
        let mut ends = ports(wire);
        joined(&mut ends);
        wire.fail(Faults { wrong: Some(wrong), ..Faults::default() });
        let mut words = [0u8; 64];
        let region = Region {
            address: words.as_mut_ptr() as u64,
            length: Bytes(64),
            kind: MemoryKind::Host,
        };
        // SAFETY: it outlives the ports' use of it.
        let key = unsafe { ends[0].domain().register(region) }.unwrap();
        // SAFETY: as above.
        let target = unsafe { LocalSpan::new(region.address, Bytes(64), key) };
        // of no region: it ends by an event
        let source = RemoteSpan { key: RailKey(u64::MAX), address: 64 };
        let read = Op { id: OpId(9), peer: PEER, kind: OpKind::Read { target, source } };
        assert_eq!(ends[0].post(&read, NOW), Ok(Posted::Pending));
        let told: Vec<Completion> = (0..4).flat_map(|_| polled(&mut ends[0])).collect();
        assert!(ends[0].is_lost() && wire.failed(), "{wrong:?}: {told:?}");
        let [done, Completion::PeerDown { .. }] = told[..] else { panic!("{told:?}") };
        let Completion::Done { id: OpId(9), result: Err(error), .. } = done else {
            panic!("{done:?}")
        };
        assert_eq!(error.kind, OpErrorKind::Canceled);
    }
}

/// It ended the connection, as if the peer had broken the protocol, although TCP stood.
#[test]
fn message_in_a_slot_that_names_another_still_is_none() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    joined(&mut ends);
    wire.fail(Faults { wrong: Some(Wrong::MessageAgain), ..Faults::default() });
    assert!(send(&mut ends[0], 1).is_ok());
    let came = polled(&mut ends[1]);
    assert!(matches!(came[..], [Completion::Received { .. }]), "{came:?}");
    let error = ends[1].error(PEER).unwrap().to_string();
    let words = "of the vendor's poll, a message came in a slot that is not released";
    assert!(error.contains(words), "{error}");
}

/// Who closed waited without a word of which provider kept it.
#[test]
fn fence_that_does_not_hold_is_told_of_once() {
    let wire = Wire::new();
    let mut ends = ports(wire);
    joined(&mut ends);
    wire.fail(Faults { no_fenced: true, ..Faults::default() });
    assert_eq!(fence(&mut ends[0], 1), Ok(Posted::Pending));
    let poll = |end: &mut VendorPort<'_>, ms: u64| {
        end.poll(&mut [NOTHING; 8], Bytes::mib(1), Instant(ms * 1_000_000));
        end.has_complaints().then(|| end.complaint()).flatten()
    };
    assert_eq!(poll(&mut ends[0], 2999), None);
    let (peer, complaint) = poll(&mut ends[0], 3001).expect("a fence that does not hold");
    assert_eq!((peer, complaint.count), (PEER, 1));
    let said = complaint.to_string();
    assert!(said.contains("is not fenced after 3000 ms") && said.contains("Unfenced"), "{said}");
    assert_eq!(poll(&mut ends[0], 9000), None);
    assert!(!ends[0].has_complaints());
    // one that was never taken had no word either
    let refusing = Wire::new();
    let mut others = ports(refusing);
    joined(&mut others);
    refusing.fail(Faults { no_fence: true, ..Faults::default() });
    assert_eq!(fence(&mut others[0], 1), Err(PostError::Again));
    let (_, complaint) = poll(&mut others[0], 3001).expect("a fence that is not taken");
    assert!(complaint.to_string().contains("still refuses its fence"), "{complaint}");
    // one that holds is none
    wire.fail(Faults::default());
    assert_eq!(fence(&mut ends[1], 2), Ok(Posted::Pending));
    assert_eq!((poll(&mut ends[1], 1), poll(&mut ends[1], 9000)), (None, None));
    assert!(!ends[1].has_complaints());
}

#[test]
fn names_are_short_and_printed() {
    assert!(RailName::new(b"acme0").is_some() && RailName::new(&[b'a'; 32]).is_some());
    for bad in [&b""[..], b"two words", &[b'a'; 33], b"tab\t", "umlaut\u{e4}".as_bytes()] {
        assert_eq!(RailName::new(bad), None, "{bad:?}");
    }
    assert_eq!(RECV_SLOTS_MIN, 48);
}
