//! The shared-memory rail keeps the contract, whichever way it reads its peer.

mod common;
#[path = "host_support/deny.rs"]
#[allow(dead_code)]
mod deny;
#[path = "common/shm_pair.rs"]
#[allow(dead_code)]
mod shm_pair;

use common::{Pair, Pause};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, Provider, Region,
    RemoteSpan, Source,
};
use crosstie::memory::Errno;
use crosstie::provider::shm::layout::ACKED_AT;
use crosstie::provider::shm::{RingSizes, Shm};
use shm_pair::{PairConfig, PairMemory};
use std::sync::atomic::{AtomicU32, Ordering};

fn pair(config: PairConfig) -> Pair<Shm<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    let [a, b] = memory.open();
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2], rejoin: None }
}

#[test]
fn kernel_copies_keep_every_promise() {
    common::run_all(|| pair(PairConfig::default()), SKIPS);
}

#[test]
fn copies_through_the_ring_keep_every_promise() {
    let config = PairConfig { heaps: false, kernel_copy: false, ..PairConfig::default() };
    common::run_all(move || pair(config), SKIPS);
}

#[test]
fn doorbells_with_fences_keep_every_promise() {
    let config = PairConfig { use_fence: true, ..PairConfig::default() };
    common::run_all(move || pair(config), SKIPS);
}

/// Long rings, and threads that copy beside the one that polls; each side with or without.
#[test]
fn copies_by_threads_keep_every_promise() {
    let sizes = RingSizes { send_bytes: 64 << 10, write_bytes: 256 << 10 };
    let base = PairConfig { sizes, heaps: false, kernel_copy: false, ..PairConfig::default() };
    let pause = Some(Pause { wait: wait_for_threads, threads: true });
    for threads in [1, 3] {
        // the poll that keeps its budget, and the one that repeats itself
        let make = move || pair(PairConfig { threads, ..base });
        common::run_all_pausing(make, SKIPS + 2, pause);
    }
}

/// Gives the threads their turn also while the polling one has work.
fn wait_for_threads(_: &mut Pair<Shm<'static>>) {
    // SAFETY: no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
}

/// How long threads may take to get a CPU.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(600);

/// How many parts a transfer has on the way out of memory and on the way in: some of either are
/// left to threads, and every byte is where it belongs whoever copied it.
#[test]
fn threads_copy_parts_of_long_writes_and_of_their_arrival() {
    const BYTES: usize = 4 << 20;
    let sizes = RingSizes { send_bytes: 64 << 10, write_bytes: 1 << 20 };
    let base = PairConfig { sizes, heaps: false, kernel_copy: false, ..PairConfig::default() };
    let Pair { providers, .. } = pair(PairConfig { threads: 2, ..base });
    let [mut from, mut to]: [Shm<'static>; 2] = providers.try_into().unwrap();
    let peer = PeerIndex(0);
    let mut source = vec![0u8; BYTES];
    let mut target = vec![0u8; BYTES];
    let region = |memory: &mut [u8]| Region {
        kind: MemoryKind::Host,
        address: memory.as_mut_ptr() as u64,
        length: Bytes(memory.len() as u64),
    };
    // SAFETY: both live until the providers have gone.
    let [ours, theirs] = unsafe {
        [
            from.domain().register(region(&mut source)).unwrap(),
            to.domain().register(region(&mut target)).unwrap(),
        ]
    };
    let start = std::time::Instant::now();
    // how much threads copy is what the host gives them of its CPUs
    for round in (0..200u32).cycle().take_while(|_| start.elapsed() < PATIENCE) {
        for (n, byte) in source.iter_mut().enumerate() {
            *byte = (n as u32).wrapping_mul(2654435761).wrapping_add(round) as u8;
        }
        // an odd start and an odd length, so that the last part is a short one
        let (at, length) = (round as usize, BYTES - 2 * round as usize - 1);
        // SAFETY: inside the source, which lives on.
        let span = unsafe {
            LocalSpan::new(source.as_ptr() as u64 + at as u64, Bytes(length as u64), ours)
        };
        let target_at = RemoteSpan { key: theirs, address: target.as_ptr() as u64 };
        let kind =
            OpKind::Write { source: Source::Span(span), target: target_at, immediate: Some(round) };
        from.post(&Op { id: OpId(7), peer, kind }, Instant(0)).unwrap();
        let (mut done, mut came) = (false, false);
        while !(done && came) {
            let mut events = [common::NOTHING; 4];
            let count = from.poll(&mut events, Bytes::kib(256), Instant(0));
            for event in &events[..count] {
                done |= matches!(event, Completion::Done { result: Ok(()), .. });
            }
            let count = to.poll(&mut events, Bytes::kib(256), Instant(0));
            for event in &events[..count] {
                came |=
                    matches!(event, Completion::Immediate { immediate, .. } if *immediate == round);
            }
            std::thread::yield_now();
        }
        assert!(target[..length] == source[at..at + length], "round {round}");
        if from.parts_aside() > 50 && to.parts_aside() > 50 {
            return;
        }
    }
    panic!("threads copied {} parts in and {} out", from.parts_aside(), to.parts_aside());
}

/// A peer that counts writes as carried out before it has them: its word lies in shared memory. The
/// memory was given back while a thread still copied out of it.
#[test]
fn write_is_not_over_while_a_thread_copies_whatever_the_peer_says() {
    const BYTES: usize = 32 << 10;
    const WRITES: usize = 4;
    let sizes = RingSizes { send_bytes: 64 << 10, write_bytes: 1 << 20 };
    let base = PairConfig { sizes, heaps: false, kernel_copy: false, ..PairConfig::default() };
    let config = PairConfig { threads: 1, ..base };
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    // SAFETY: an aligned word of the second side's places, in memory that is never freed.
    let acked = unsafe { AtomicU32::from_ptr(memory.rings(1).add(ACKED_AT).cast()) };
    let [mut from, mut to] = memory.open();
    let (mut source, mut target) = (vec![0u8; WRITES * BYTES], vec![0u8; WRITES * BYTES]);
    let region = |memory: &mut [u8]| Region {
        kind: MemoryKind::Host,
        address: memory.as_mut_ptr() as u64,
        length: Bytes(memory.len() as u64),
    };
    // SAFETY: both live until the providers have gone.
    let [ours, theirs] = unsafe {
        [
            from.domain().register(region(&mut source)).unwrap(),
            to.domain().register(region(&mut target)).unwrap(),
        ]
    };
    let mut told_early = 0;
    let start = std::time::Instant::now();
    for round in 0u32.. {
        // the thread gets a whole round when the host gives it a CPU
        if round >= 500 && (told_early > 0 || start.elapsed() >= PATIENCE) {
            break;
        }
        source.fill(round as u8);
        let before = from.parts_aside();
        for n in 0..WRITES {
            let [at, target] = [&source, &target].map(|all| all[n * BYTES..].as_ptr() as u64);
            // SAFETY: inside the source, which lives on.
            let span = unsafe { LocalSpan::new(at, Bytes(BYTES as u64), ours) };
            let target = RemoteSpan { key: theirs, address: target };
            let kind = OpKind::Write { source: Source::Span(span), target, immediate: Some(round) };
            from.post(&Op { id: OpId(7), peer: PeerIndex(0), kind }, Instant(0)).unwrap();
        }
        // all of them are the thread's, and in the ring as far as the peer may know
        if from.parts_aside() - before == WRITES as u64 {
            acked.store((round + 1) * WRITES as u32, Ordering::Release);
            told_early += 1;
        }
        let (mut done, mut came) = (0, 0);
        while done < WRITES || came < WRITES {
            let mut events = [common::NOTHING; 8];
            let count = from.poll(&mut events, Bytes::kib(256), Instant(0));
            let well = |it: &Completion| matches!(it, Completion::Done { result: Ok(()), .. });
            assert!(events[..count].iter().all(well), "{:?}", &events[..count]);
            done += count;
            if count > 0 && done == WRITES {
                source.fill(!round as u8);
            }
            // what was said early is true only when all has come
            if done == WRITES || acked.load(Ordering::Relaxed) != (round + 1) * WRITES as u32 {
                came += to.poll(&mut events, Bytes::kib(256), Instant(0));
            }
        }
        let torn = target.iter().position(|byte| *byte != round as u8);
        assert_eq!(torn, None, "round {round}: memory was read after its write was over");
    }
    assert!(told_early > 0, "no write was the thread's alone");
}

/// A container may have room for no more threads. The first connection failed, and the others had
/// no threads.
#[test]
fn threads_that_cannot_be_started_are_done_without() {
    // a thread whose own limit it is, so that other tests keep theirs
    let refused = std::thread::spawn(|| {
        assert!(deny::deny_here(libc::SYS_clone3, libc::EAGAIN));
        assert!(deny::deny_here(libc::SYS_clone, libc::EAGAIN));
        let sizes = RingSizes { send_bytes: 64 << 10, write_bytes: 256 << 10 };
        let mut pair = pair(PairConfig { sizes, threads: 2, ..PairConfig::default() });
        pair.providers.iter_mut().map(|shm| shm.copy_threads_refused()).collect::<Vec<_>>()
    });
    assert_eq!(refused.join().unwrap(), [Some(Errno(libc::EAGAIN)); 2]);
}

/// The rail keeps no order between its two rings, detaches no peers, and has no longer payloads
/// towards one; `conformance_mixed` joins peers again.
const SKIPS: usize = 6;
