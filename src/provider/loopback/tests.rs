use super::*;
use crate::base::carve::heap::HeapBlock;
use crate::base::ids::RailGeneration;
use crate::fabric::{Domain, MemoryDomain, MemoryKind, OpId, PeerLife, RailKey, Region};
use std::vec;

const LIMITS: Limits =
    Limits { peers_max: 3, slots: 4, payload_max: Bytes(100), regions_max: 5, jobs: 4 };
const NOW: Instant = Instant(0);
const NOTHING: Completion = Completion::Immediate { peer: PeerIndex(9), immediate: 0 };

fn send(peer: PeerIndex, id: u64) -> Op {
    Op {
        id: OpId(id),
        peer,
        kind: OpKind::Send { head: [id as u8; 32], payload: LocalSpan::EMPTY },
    }
}

#[test]
fn bytes_are_exactly_what_is_carved() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut carver = block.carver();
    Loopback::open(LIMITS, &mut carver).unwrap();
    assert_eq!(carver.left(), 0);
}

#[test]
fn pairs_open_at_free_indices_only() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut rail = Loopback::open(LIMITS, &mut block.carver()).unwrap();
    rail.peer_open_at(PeerIndex(2), PeerIndex(0)).unwrap();
    assert_eq!(rail.peer_open_at(PeerIndex(1), PeerIndex(0)), Err(OpenError::InUse));
    assert_eq!(rail.peer_open_at(PeerIndex(1), PeerIndex(3)), Err(OpenError::Range));
    rail.peer_close(PeerIndex(2)).unwrap();
    assert_eq!(rail.peer_open_at(PeerIndex(1), PeerIndex(2)), Ok(()));
}

#[test]
fn small_ops_wait_behind_a_large_copy_to_the_same_peer() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut rail = Loopback::open(LIMITS, &mut block.carver()).unwrap();
    let (a, b) = (PeerIndex(0), PeerIndex(1));
    rail.peer_open_at(a, b).unwrap();
    let mut memory = vec![7u8; 20_000];
    let start = memory.as_mut_ptr() as u64;
    let region = Region { address: start, length: Bytes(20_000), kind: MemoryKind::Host };
    // SAFETY: the vector outlives the provider's use of it.
    let key = unsafe { rail.domain().register(region) }.unwrap();
    // SAFETY: the first half is read only, the second written only, until the copy has completed.
    let source = unsafe { LocalSpan::new(start, Bytes(10_000), key) };
    let target = RemoteSpan { key, address: start + 10_000 };
    let write = OpKind::Write { source: Source::Span(source), target, immediate: None };
    rail.post(&Op { id: OpId(1), peer: a, kind: write }, NOW).unwrap();
    assert_eq!(rail.post(&send(a, 2), NOW), Ok(Posted::Pending));
    assert_eq!(rail.post(&send(b, 3), NOW), Ok(Posted::Done));
    let mut out = [NOTHING; 8];
    assert_eq!(rail.poll(&mut out, Bytes(5_000), NOW), 1);
    assert!(matches!(out[0], Completion::Received { peer, .. } if peer == a));
    assert_eq!(rail.poll(&mut out, Bytes(5_001), NOW), 3);
    assert!(matches!(out[0], Completion::Done { id: OpId(1), .. }));
    assert!(matches!(out[1], Completion::Received { peer, .. } if peer == b));
    assert!(matches!(out[2], Completion::Done { id: OpId(2), .. }));
}

#[test]
fn reopened_peer_sees_nothing_of_its_predecessor() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut rail = Loopback::open(LIMITS, &mut block.carver()).unwrap();
    let (a, b) = (PeerIndex(0), PeerIndex(1));
    rail.peer_open_at(a, b).unwrap();
    for id in 0..4 {
        rail.post(&send(a, id), NOW).unwrap();
    }
    assert_eq!(rail.post(&send(a, 4), NOW), Err(PostError::Again));
    rail.peer_close(a).unwrap();
    rail.peer_close(b).unwrap();
    rail.peer_open_at(a, b).unwrap();
    let mut out = [NOTHING; 8];
    assert_eq!(rail.poll(&mut out, Bytes::ZERO, NOW), 0);
    for id in 0..4 {
        rail.post(&send(a, id), NOW).unwrap();
    }
}

#[test]
fn unknown_key_is_a_completion_and_blocks_the_close_until_reported() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut rail = Loopback::open(LIMITS, &mut block.carver()).unwrap();
    let a = PeerIndex(0);
    rail.peer_open_at(a, PeerIndex(1)).unwrap();
    let target = RemoteSpan { key: RailKey(1 << 32), address: 64 };
    let kind = OpKind::Add { target, value: 1 };
    assert_eq!(rail.post(&Op { id: OpId(9), peer: a, kind }, NOW), Ok(Posted::Pending));
    assert_eq!(rail.peer_close(a), Err(CloseError::Busy));
    let mut out = [NOTHING; 1];
    assert_eq!(rail.poll(&mut out, Bytes::ZERO, NOW), 1);
    let Completion::Done { id: OpId(9), result: Err(error), .. } = out[0] else {
        panic!("{:?}", out[0])
    };
    assert_eq!(error.kind, OpErrorKind::Key);
    assert_eq!(rail.peer_close(a), Ok(()));
}

#[test]
fn failure_behind_a_fence_spares_the_next_connection_of_the_other_end() {
    let mut block = HeapBlock::new(Loopback::bytes(LIMITS));
    let mut rail = Loopback::open(LIMITS, &mut block.carver()).unwrap();
    let (a, b) = (PeerIndex(0), PeerIndex(1));
    rail.peer_open_at(a, b).unwrap();
    let stranger = PeerIndex(2);
    let kind = OpKind::Fence { generation: RailGeneration(1) };
    rail.post(&Op { id: OpId(1), peer: a, kind }, NOW).unwrap();
    rail.peer_close(b).unwrap();
    rail.peer_open_at(b, stranger).unwrap();
    rail.peer_fail(a, DownCause::Died);
    assert_eq!(rail.post(&send(b, 2), NOW), Ok(Posted::Done));
}
