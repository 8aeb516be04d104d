//! Two shared-memory providers in one process, over one mapping.
//!
//! What every provider must do is tested by the conformance suite; here stands what only this one
//! has: three ways of reading, rings that a peer has broken, doorbells.

#[path = "common/shm_pair.rs"]
mod shm_pair;

use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::*;
use crosstie::provider::shm::layout::{self, RingSizes};
use crosstie::provider::shm::record::{Header, Kind};
use crosstie::provider::shm::{Limits, Shm};
use shm_pair::{PairConfig, PairMemory};

const PEER: PeerIndex = PeerIndex(0);
const NOW: Instant = Instant(0);
const BUDGET: Bytes = Bytes::kib(256);
const NOTHING: Completion = Completion::PeerDown { peer: PEER, cause: DownCause::Closed };

fn poll(shm: &mut Shm) -> Vec<Completion> {
    let mut out = [NOTHING; 16];
    let used = shm.poll(&mut out, BUDGET, NOW);
    out[..used].to_vec()
}

/// Polls both until neither reports anything for a while; what each reported.
fn settle(a: &mut Shm, b: &mut Shm) -> [Vec<Completion>; 2] {
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    let mut quiet = 0;
    while quiet < 20_000 {
        let (more_a, more_b) = (poll(a), poll(b));
        quiet = if more_a.is_empty() && more_b.is_empty() { quiet + 1 } else { 0 };
        from_a.extend(more_a);
        from_b.extend(more_b);
    }
    [from_a, from_b]
}

fn op(id: u64, kind: OpKind) -> Op {
    Op { id: OpId(id), peer: PEER, kind }
}

fn span_of(bytes: &mut [u8], key: RailKey) -> LocalSpan {
    // SAFETY: the tests keep their buffers until the ops have ended.
    unsafe { LocalSpan::new(bytes.as_mut_ptr() as u64, Bytes::of(bytes.len()), key) }
}

fn register(shm: &Shm, bytes: &mut [u8]) -> RailKey {
    let (address, length) = (bytes.as_mut_ptr() as u64, Bytes::of(bytes.len()));
    let region = Region { address, length, kind: MemoryKind::Host };
    // SAFETY: the tests keep their buffers longer than their providers.
    unsafe { shm.domain().register(region) }.unwrap()
}

fn remote(bytes: &[u8], key: RailKey) -> RemoteSpan {
    RemoteSpan { key, address: bytes.as_ptr() as u64 }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

fn results(completions: &[Completion]) -> Vec<(u64, Result<(), OpErrorKind>)> {
    let done = |c: &Completion| match c {
        Completion::Done { id, result, .. } => Some((id.0, result.map_err(|e| e.kind))),
        _ => None,
    };
    completions.iter().filter_map(done).collect()
}

fn downs(completions: &[Completion]) -> Vec<DownCause> {
    let down = |c: &Completion| match c {
        Completion::PeerDown { cause, .. } => Some(*cause),
        _ => None,
    };
    completions.iter().filter_map(down).collect()
}

fn post_send(shm: &mut Shm, tag: u8, payload: LocalSpan) -> Result<Posted, PostError> {
    shm.post(&op(1, OpKind::Send { head: [tag; HEAD_BYTES], payload }), NOW)
}

fn post_read(shm: &mut Shm, id: u64, target: LocalSpan, source: RemoteSpan) {
    let posted = shm.post(&op(id, OpKind::Read { target, source }), NOW);
    assert_eq!(posted, Ok(Posted::Pending));
}

#[test]
fn messages_of_all_lengths_arrive_whole_and_are_released_in_any_order() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut held: Vec<(RecvSlot, usize, u8)> = Vec::new();
    let (mut sent, mut received) = (0usize, 0usize);
    let length_of = |n: usize| [0, 1, 8, 24, 25, 64, 65, 1000, 4096][n % 9];
    while received < 3000 {
        let (mut payload, mut is_full) = (pattern(length_of(sent), sent as u8), false);
        let span = span_of(&mut payload, RailKey(0));
        match post_send(&mut a, sent as u8, span) {
            Ok(posted) => {
                assert_eq!(posted, Posted::Done);
                sent += 1;
            }
            Err(error) => {
                assert_eq!(error, PostError::Again);
                is_full = true;
            }
        }
        // a reader that is not polled gives nothing back
        if is_full || sent % 5 == 0 || sent - received > 20 {
            for completion in poll(&mut b) {
                let Completion::Received { slot, head, length, .. } = completion else {
                    panic!("{completion:?}")
                };
                assert_eq!(head, [received as u8; HEAD_BYTES]);
                assert_eq!(length as usize, length_of(received));
                held.push((slot, received, received as u8));
                received += 1;
            }
        }
        if held.len() > 8 {
            let (slot, number, seed) = held.remove((sent * 7) % held.len());
            let mut got = vec![0; length_of(number)];
            b.received_peek(PEER, slot, &mut got);
            assert_eq!(got, pattern(length_of(number), seed));
            b.received_release(PEER, slot);
        }
    }
}

#[test]
fn post_says_again_when_messages_are_held_and_goes_on_after_release() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut slots = Vec::new();
    let mut payload = vec![7; 4096];
    let span = span_of(&mut payload, RailKey(0));
    loop {
        let posted = post_send(&mut a, 0, span);
        for completion in poll(&mut b) {
            let Completion::Received { slot, .. } = completion else { panic!() };
            slots.push(slot);
        }
        if posted.is_err() {
            break;
        }
    }
    assert!(slots.len() >= a.caps(PEER).recv_slots as usize);
    for slot in slots {
        b.received_release(PEER, slot);
    }
    assert_eq!(post_send(&mut a, 0, span), Ok(Posted::Done));
}

#[test]
#[should_panic(expected = "not held")]
fn releasing_a_slot_twice_panics() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    post_send(&mut a, 0, LocalSpan::EMPTY).unwrap();
    let Completion::Received { slot, .. } = poll(&mut b)[0] else { panic!() };
    b.received_release(PEER, slot);
    b.received_release(PEER, slot);
}

#[test]
fn writes_adds_and_immediates_take_effect_and_end() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut source = pattern(300_000, 1);
    let mut target = vec![0u8; 300_000];
    let mut words = [5u64, 0];
    let key = register(&a, &mut source);
    let target_key = register(&b, &mut target);
    // SAFETY: two words seen as their bytes.
    let bytes = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 16) };
    let words_key = register(&b, bytes);
    let at = remote(bytes, words_key);
    let write = OpKind::Write {
        source: Source::Span(span_of(&mut source, key)),
        target: remote(&target, target_key),
        immediate: Some(99),
    };
    assert_eq!(a.post(&op(1, write), NOW), Ok(Posted::Pending));
    assert_eq!(a.post(&op(2, OpKind::Add { target: at, value: 37 }), NOW), Ok(Posted::Pending));
    assert_eq!(a.domain().deregister(key), Err(DeregisterError::Busy));
    let [from_a, from_b] = settle(&mut a, &mut b);
    assert_eq!(results(&from_a), [(1, Ok(())), (2, Ok(()))]);
    assert!(matches!(from_b[..], [Completion::Immediate { immediate: 99, .. }]));
    assert_eq!(source, target);
    assert_eq!(words[0], 42);
    assert_eq!(a.domain().deregister(key), Ok(()));
    let line = OpKind::Write {
        source: Source::Line([9; LINE_BYTES]),
        target: remote(&target, target_key).plus(64),
        immediate: None,
    };
    assert_eq!(a.post(&op(3, line), NOW), Ok(Posted::Done));
    settle(&mut a, &mut b);
    assert_eq!(target[64..128], [9; 64]);
    assert_eq!(target[..64], source[..64]);
}

/// A fence found no room where ops of a peer that takes nothing had taken it all.
#[test]
fn fence_finds_room_however_many_ops_wait() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, b] = memory.open();
    let (mut source, mut target) = (pattern(100_000, 1), vec![0u8; 100_000]);
    let (key, target_key) = (register(&a, &mut source), register(&b, &mut target));
    let write = OpKind::Write {
        source: Source::Span(span_of(&mut source, key)),
        target: remote(&target, target_key),
        immediate: None,
    };
    let mut posted = 0;
    while a.post(&op(posted, write), NOW) == Ok(Posted::Pending) {
        posted += 1;
    }
    assert!(posted > 8);
    let fence = OpKind::Fence { generation: RailGeneration(1) };
    assert_eq!(a.post(&op(posted, fence), NOW), Ok(Posted::Pending));
    let ended: Vec<_> = (0..posted).flat_map(|_| poll(&mut a)).collect();
    let canceled = results(&ended).iter().filter(|(_, r)| *r == Err(OpErrorKind::Canceled)).count();
    assert_eq!(canceled as u64, posted);
    assert!(ended.iter().any(|it| matches!(it, Completion::Fenced { .. })));
    assert_eq!(a.domain().deregister(key), Ok(()));
    assert_eq!(a.peer_close(PEER), Ok(()));
}

#[test]
fn ops_on_bad_keys_end_with_key_and_move_nothing() {
    for heaps in [true, false] {
        let mut memory = PairMemory::new(PairConfig { heaps, ..PairConfig::default() });
        let [mut a, mut b] = memory.open();
        let mut source = pattern(20_000, 1);
        let mut target = vec![0u8; 20_000];
        let key = register(&a, &mut source);
        let target_key = register(&b, &mut target);
        let span = span_of(&mut source, key);
        let beyond = remote(&target, target_key).plus(1);
        let at = remote(&target, RailKey(target_key.0 + (2 << 32)));
        let write = |target| OpKind::Write { source: Source::Span(span), target, immediate: None };
        a.post(&op(1, write(beyond)), NOW).unwrap();
        a.post(&op(2, write(at)), NOW).unwrap();
        a.post(&op(3, OpKind::Add { target: RemoteSpan { address: 8, ..at }, value: 1 }), NOW)
            .unwrap();
        post_read(&mut a, 4, span, beyond);
        post_read(&mut a, 5, span_of(&mut pattern(10, 0), RailKey(77)), beyond);
        post_read(&mut a, 6, span, remote(&target, target_key));
        let [from_a, from_b] = settle(&mut a, &mut b);
        let mut ended = results(&from_a);
        ended.sort_by_key(|result| result.0);
        let bad = Err(OpErrorKind::Key);
        assert_eq!(ended, [(1, bad), (2, bad), (3, bad), (4, bad), (5, bad), (6, Ok(()))]);
        assert!(from_b.is_empty());
        assert!(target.iter().all(|byte| *byte == 0));
    }
}

/// Which of the three ways moved bytes.
fn read_through(config: PairConfig, in_heap: bool) -> [bool; 3] {
    const BYTES: usize = 1_000_003;
    let mut memory = PairMemory::new(config);
    let mut private = vec![0u8; BYTES];
    let source: &mut [u8] = if in_heap {
        let (at, length) = memory.heaps[1].as_ref().unwrap().allocate(BYTES).unwrap();
        assert!(length >= BYTES);
        // SAFETY: just allocated, and the memory outlives the test.
        unsafe { core::slice::from_raw_parts_mut(at, BYTES) }
    } else {
        &mut private
    };
    source.copy_from_slice(&pattern(BYTES, 3));
    let [mut a, mut b] = memory.open();
    let mut targets = vec![vec![0u8; BYTES]; 6];
    let key = register(&b, source);
    for (i, target) in targets.iter_mut().enumerate() {
        let local = register(&a, target);
        let length = BYTES - i * 7777;
        let span = span_of(&mut target[..length], local);
        post_read(&mut a, i as u64, span, remote(source, key).plus(i as u64 * 7777));
    }
    let mut nothing = [0u8; 1];
    let local = register(&a, &mut nothing);
    post_read(&mut a, 6, span_of(&mut nothing[..0], local), remote(source, key));
    let [from_a, _] = settle(&mut a, &mut b);
    assert_eq!(results(&from_a), [0, 1, 2, 3, 4, 5, 6].map(|id| (id, Ok(()))));
    for (i, target) in targets.iter().enumerate() {
        assert_eq!(target[..BYTES - i * 7777], source[i * 7777..]);
    }
    assert_eq!(b.domain().deregister(key), Ok(()));
    let pulled = a.pulled(PEER).unwrap();
    assert_eq!(a.peer_close(PEER), Ok(()));
    [pulled.direct_bytes, pulled.kernel_bytes, pulled.ring_bytes].map(|bytes| bytes != 0)
}

#[test]
fn reads_go_directly_through_the_kernel_and_through_the_ring() {
    let whole = PairConfig::default();
    assert_eq!(read_through(whole, true), [true, false, false]);
    assert_eq!(read_through(whole, false), [false, true, false]);
    let ring = [false, false, true];
    assert_eq!(read_through(PairConfig { kernel_copy: false, ..whole }, false), ring);
    assert_eq!(read_through(PairConfig { heaps: false, ..whole }, false), ring);
    let sizes = RingSizes { send_bytes: 4096, write_bytes: 1024 };
    let limits = Limits { send_ring_bytes: 4096, send_payload_max: 512, ..whole.limits };
    let small = PairConfig { heaps: false, sizes, limits, ..whole };
    assert_eq!(read_through(small, false), ring);
    let sizes = RingSizes { write_bytes: 256 << 10, ..whole.sizes };
    assert_eq!(read_through(PairConfig { sizes, ..whole }, false), ring);
    assert_eq!(read_through(PairConfig { sizes, ..whole }, true), [true, false, false]);
}

/// The kernel's own page that processes read the time from: like those of a GPU's driver, it is
/// none that the kernel lends to other processes.
fn page_of_a_device() -> &'static mut [u8] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vvar]")).expect("[vvar]");
    let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: mapped as long as the process lives; the test only reads it.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(start), 4096) }
}

#[test]
fn memory_that_the_kernel_does_not_lend_goes_through_the_ring() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let source = page_of_a_device();
    let key = register(&b, source);
    let mut target = vec![0u8; source.len()];
    let local = register(&a, &mut target);
    post_read(&mut a, 1, span_of(&mut target, local), remote(source, key));
    let [from_a, _] = settle(&mut a, &mut b);
    assert_eq!(results(&from_a), [(1, Ok(()))]);
    assert_eq!(a.pulled(PEER).unwrap().ring_bytes, source.len() as u64);
    assert_eq!(b.domain().deregister(key), Ok(()));
    assert_eq!(a.peer_close(PEER), Ok(()));
}

#[test]
fn reads_the_other_way_do_not_block_each_other_in_small_rings() {
    let whole = PairConfig::default();
    let sizes = RingSizes { send_bytes: 4096, write_bytes: 1024 };
    let limits = Limits { send_ring_bytes: 4096, send_payload_max: 512, ..whole.limits };
    let mut memory = PairMemory::new(PairConfig { heaps: false, sizes, limits, ..whole });
    let [mut a, mut b] = memory.open();
    let mut buffers: Vec<Vec<u8>> = (0..8).map(|i| pattern(100_000, i)).collect();
    let keys: Vec<RailKey> = buffers
        .iter_mut()
        .enumerate()
        .map(|(i, buffer)| register(if i < 4 { &a } else { &b }, buffer))
        .collect();
    let spans: Vec<LocalSpan> =
        buffers.iter_mut().zip(&keys).map(|(buffer, key)| span_of(buffer, *key)).collect();
    let at = |i: usize| remote(&buffers[i], keys[i]);
    post_read(&mut a, 0, spans[0], at(4));
    post_read(&mut b, 0, spans[5], at(1));
    let write = |from: usize, to| OpKind::Write {
        source: Source::Span(spans[from]),
        target: at(to),
        immediate: None,
    };
    a.post(&op(1, write(2, 6)), NOW).unwrap();
    b.post(&op(1, write(7, 3)), NOW).unwrap();
    let [from_a, from_b] = settle(&mut a, &mut b);
    assert_eq!((results(&from_a).len(), results(&from_b).len()), (2, 2));
    for (to, seed) in [(0, 4), (5, 1), (6, 2), (3, 7)] {
        assert_eq!(buffers[to], pattern(100_000, seed), "buffer {to}");
    }
}

#[test]
fn reads_end_with_an_error_when_the_peer_closes_on_the_way() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut source = pattern(1 << 20, 1);
    let mut target = vec![0u8; 1 << 20];
    let (key, local) = (register(&b, &mut source), register(&a, &mut target));
    post_read(&mut a, 1, span_of(&mut target, local), remote(&source, key));
    assert!(poll(&mut a).is_empty(), "the budget is a quarter of it");
    assert_eq!(a.peer_close(PEER), Err(CloseError::Busy));
    assert_eq!(b.peer_close(PEER), Ok(()));
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.extend(poll(&mut a));
    }
    assert_eq!(results(&seen), [(1, Err(OpErrorKind::PeerDown))]);
    assert_eq!(downs(&seen), [DownCause::Closed]);
    assert_eq!(post_send(&mut a, 0, LocalSpan::EMPTY), Err(PostError::PeerDown));
    assert_eq!(a.peer_close(PEER), Ok(()));
    assert_eq!(a.peer_close(PEER), Err(CloseError::Stale));
}

#[test]
fn read_of_a_region_that_vanished_meanwhile_ends_with_key() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut source = pattern(1 << 20, 1);
    let mut target = vec![0u8; 1 << 20];
    let (key, local) = (register(&b, &mut source), register(&a, &mut target));
    post_read(&mut a, 1, span_of(&mut target, local), remote(&source, key));
    assert!(poll(&mut a).is_empty());
    assert_eq!(b.domain().deregister(key), Ok(()));
    let [from_a, _] = settle(&mut a, &mut b);
    assert_eq!(results(&from_a), [(1, Err(OpErrorKind::Key))]);
}

#[test]
fn what_had_come_is_reported_before_the_peer_is_down() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    for tag in 0..40 {
        post_send(&mut a, tag, LocalSpan::EMPTY).unwrap();
    }
    assert_eq!(a.peer_close(PEER), Ok(()));
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.extend(poll(&mut b));
    }
    assert_eq!(seen.len(), 41);
    assert!(matches!(seen[39], Completion::Received { head: [39, ..], .. }));
    assert_eq!(downs(&seen), [DownCause::Closed]);
}

#[test]
fn broken_rings_take_the_peer_down_as_failed_on_both_sides() {
    let whole = PairConfig::default();
    let offsets = [layout::SEND_RING_AT, layout::write_ring_at(whole.sizes)];
    let bad = [
        Header(u64::MAX),
        Header(9 << 32),
        Header::new(Kind::Send, 0, u32::MAX),
        Header::new(Kind::Pad, 0, 5),
        Header::new(Kind::Data, 0, 8),
        Header::new(Kind::Refuse, 0, 0),
    ];
    for offset in offsets {
        for header in bad {
            let mut memory = PairMemory::new(whole);
            let rings = memory.rings(0);
            let [mut a, mut b] = memory.open();
            let mut source = pattern(100, 1);
            let mut target = vec![0u8; 100];
            let (key, local) = (register(&a, &mut source), register(&b, &mut target));
            // SAFETY: the first line of one of the rings that `a` writes.
            unsafe { rings.add(offset).cast::<u64>().write(header.0) };
            post_read(&mut b, 5, span_of(&mut target, local), remote(&source, key));
            let [from_a, from_b] = settle(&mut a, &mut b);
            assert_eq!(downs(&from_b), [DownCause::Failed], "{header:?}");
            assert_eq!(downs(&from_a), [DownCause::Failed], "{header:?}");
            assert_eq!(results(&from_b).len(), 1);
        }
    }
}

#[test]
fn after_a_fence_nothing_of_the_peer_lands() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut source = pattern(50_000, 1);
    let mut target = vec![0u8; 50_000];
    let (key, target_key) = (register(&a, &mut source), register(&b, &mut target));
    let span = span_of(&mut source, key);
    let to = remote(&target, target_key);
    let write = OpKind::Write { source: Source::Span(span), target: to, immediate: None };
    a.post(&op(1, write), NOW).unwrap();
    post_read(&mut b, 2, span_of(&mut target, target_key), remote(&source, key));
    let fence = OpKind::Fence { generation: RailGeneration(4) };
    assert_eq!(b.post(&op(3, fence), NOW), Ok(Posted::Pending));
    let [from_a, from_b] = settle(&mut a, &mut b);
    assert_eq!(results(&from_b), [(2, Err(OpErrorKind::Canceled))]);
    let generation = RailGeneration(4);
    assert!(from_b.iter().any(|c| matches!(
        c,
        Completion::Fenced { id: OpId(3), generation: g, .. } if *g == generation
    )));
    assert_eq!(results(&from_a), [(1, Err(OpErrorKind::PeerDown))]);
    assert!(target.iter().all(|byte| *byte == 0));
    assert_eq!(b.peer_close(PEER), Ok(()));
}

#[test]
fn peer_fail_ends_everything_once() {
    let mut memory = PairMemory::new(PairConfig::default());
    let [mut a, mut b] = memory.open();
    let mut source = pattern(500_000, 1);
    let key = register(&a, &mut source);
    let to = RemoteSpan { key: register(&b, &mut vec![0u8; 500_000]), address: 0 };
    let span = span_of(&mut source, key);
    a.post(&op(1, OpKind::Read { target: span, source: to }), NOW).unwrap();
    post_send(&mut b, 9, LocalSpan::EMPTY).unwrap();
    a.peer_fail(PEER, DownCause::Died);
    a.peer_fail(PEER, DownCause::Failed);
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.extend(poll(&mut a));
    }
    assert_eq!(results(&seen).len(), 1);
    assert_eq!(downs(&seen), [DownCause::Died]);
    assert!(seen.iter().any(|c| matches!(c, Completion::Received { .. })));
}

#[test]
fn doorbell_rings_only_who_sleeps() {
    for use_fence in [true, false] {
        assert!(use_fence || crosstie::memory::wake::barrier_register() || cfg!(miri));
        let mut memory = PairMemory::new(PairConfig { use_fence, ..PairConfig::default() });
        let bell =
            crosstie::memory::WakeFd::from_fd(memory.bells[1].fd().try_clone_to_owned().unwrap());
        let [mut a, mut b] = memory.open();
        post_send(&mut a, 1, LocalSpan::EMPTY).unwrap();
        assert!(!bell.drain(), "awake");
        assert!(!b.arm(), "something has come");
        assert_eq!(poll(&mut b).len(), 1);
        assert!(b.arm());
        post_send(&mut a, 2, LocalSpan::EMPTY).unwrap();
        assert!(bell.drain());
        post_send(&mut a, 3, LocalSpan::EMPTY).unwrap();
        assert!(!bell.drain(), "once");
        b.disarm();
        assert_eq!(poll(&mut b).len(), 2);
        assert!(b.arm());
        assert_eq!(a.peer_close(PEER), Ok(()));
        assert!(bell.drain(), "leaving wakes too");
    }
}
