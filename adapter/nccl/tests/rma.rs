//! The tables by which NCCL's host threads put, get and signal: GIN v11 and v13 by proxy, RMA v14
//! and v15. Each is called as NCCL's sources do, by threads and by processes, over shared memory,
//! over TCP and between hosts, and over the test double of the CUDA driver. A test for each rule.
#![allow(dead_code)] // of the shared parts

#[path = "rma/allocations.rs"]
mod allocations;
#[path = "rma/bad_input.rs"]
mod bad_input;
#[path = "../../../tests/cuda_support/mod.rs"]
mod cuda_support;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "rma/interfaces.rs"]
mod interfaces;
#[path = "support/log.rs"]
mod log;
#[path = "rma/memory.rs"]
mod memory;
#[path = "rma/refused.rs"]
mod refused;
#[path = "rma/table.rs"]
mod table;
#[path = "../../../tests/common/wait.rs"]
mod wait;
#[path = "support/wires.rs"]
mod wires;
#[path = "rma/world.rs"]
mod world;

use crosstie_cuda_double as _; // so that cargo builds the double
use memory::{Area, Kind, pattern};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use table::{ADD, INC, Table};
use world::{
    CONTEXTS, HOSTS, PROCESSES, Rank, TCP, THREADS, VERBS, all_succeed, is_child, play, start,
    wait_until,
};

const ALL: [usize; 4] = [11, 13, 14, 15];
const LAYOUTS: [world::Layout; 4] = [THREADS, PROCESSES, TCP, HOSTS];
/// Of no bytes, one, a word, what fits a frame and what does not, and what goes apart.
const SIZES: [usize; 6] = [1, 8, 2048, 2049, 65_536, 1_500_000];

/// Bytes of each kind of memory to each kind, between every two ranks, self included. A signal
/// covers the plain puts before it.
fn every_rank_to_every_rank(rank: &mut Rank, kinds: &[Kind]) {
    let (own, ranks) = (rank.own(), rank.ranks());
    let part: usize = SIZES.iter().map(|bytes| bytes.next_multiple_of(8)).sum();
    let signals = Area::new(Kind::Private, 4096, own);
    let signals_name = rank.register(signals.at(), signals.number());
    let mut round = 0;
    for from in kinds {
        for to in kinds {
            let (source, target) =
                (Area::new(*from, ranks * part, own), Area::new(*to, ranks * part, own));
            let names = [source, target].map(|area| rank.register(area.at(), area.number()));
            for peer in 0..ranks {
                source.write(peer * part, &pattern(own * ranks + peer, part));
            }
            let mut requests = Vec::new();
            for peer in 0..ranks {
                let mut at = 0;
                for bytes in SIZES {
                    let ends = (
                        ((peer * part + at) as u64, names[0]),
                        bytes,
                        ((own * part + at) as u64, names[1]),
                    );
                    requests.push(rank.put(0, ends, peer));
                    at += bytes.next_multiple_of(8);
                }
                requests.push(rank.signal(peer, ((8 * round, signals_name), 7, INC)));
            }
            round += 1;
            requests.into_iter().for_each(|request| rank.wait(request));
            wait_until("a signal of each rank", || {
                signals.word(8 * (round as usize - 1)) == ranks as u64
            });
            for peer in 0..ranks {
                let (all, expected) =
                    (target.read(peer * part, part), pattern(peer * ranks + own, part));
                let mut at = 0;
                for bytes in SIZES {
                    let range = at..at + bytes;
                    assert!(
                        all[range.clone()] == expected[range],
                        "{bytes} bytes of rank {peer} from {from:?} to {to:?}"
                    );
                    at += bytes.next_multiple_of(8);
                }
            }
            rank.meet();
        }
    }
}

#[test]
fn bytes_of_the_host_are_there_when_their_signal_is_seen() {
    play("bytes_of_the_host_are_there_when_their_signal_is_seen", &ALL, &LAYOUTS, |rank| {
        every_rank_to_every_rank(rank, &[Kind::Host])
    });
}

#[test]
fn bytes_of_gpus_are_there_when_their_signal_is_seen() {
    play("bytes_of_gpus_are_there_when_their_signal_is_seen", &[11, 14], &LAYOUTS, |rank| {
        every_rank_to_every_rank(rank, &[Kind::Host, Kind::Device]);
    });
}

#[test]
fn bytes_are_there_when_their_signal_is_seen_over_verbs() {
    const TEST: &str = "bytes_are_there_when_their_signal_is_seen_over_verbs";
    if is_child() {
        return play(TEST, &[], &[], |rank| {
            every_rank_to_every_rank(rank, &[Kind::Host, Kind::Device]);
        });
    }
    if !wires::are_here() {
        return;
    }
    let ports = wires::PORTS.map(|ports| [("NCCL_IB_HCA", ports)]);
    for version in [11, 14] {
        all_succeed(TEST, start(TEST, version, &VERBS, &ports.each_ref().map(|it| &it[..])));
    }
}

/// All ranks add to one word of each rank, by one and by values, and lose nothing.
fn all_add_to_one_word(rank: &mut Rank) {
    const ROUNDS: u64 = 60;
    let (own, ranks) = (rank.own(), rank.ranks());
    for kind in [Kind::Host, Kind::Private] {
        let area = Area::new(kind, 4096, own);
        let name = rank.register(area.at(), area.number());
        for round in 1..=ROUNDS {
            let mut requests = Vec::new();
            for peer in 0..ranks {
                requests.push(rank.signal(peer, ((128, name), 99, INC)));
                requests.push(rank.signal(peer, ((128, name), round << 32, ADD)));
            }
            requests.into_iter().for_each(|request| rank.wait(request));
        }
        let sum = ranks as u64 * ((ROUNDS * (ROUNDS + 1) / 2) << 32 | ROUNDS);
        wait_until("every add", || area.word(128) == sum);
        rank.meet();
    }
}

#[test]
fn signals_of_all_ranks_add_up_in_one_word() {
    play("signals_of_all_ranks_add_up_in_one_word", &[11, 15], &LAYOUTS, all_add_to_one_word);
}

/// The source of a put with a signal is as NCCL's inlines: a word of the host, used once.
fn values_and_their_signals(rank: &mut Rank) {
    const ROUNDS: usize = 100;
    let (own, ranks) = (rank.own(), rank.ranks());
    let inlines = Area::new(Kind::Host, 8 * ROUNDS, own);
    let window = Area::new(Kind::Host, 8 * ranks * (ROUNDS + 1), own);
    let names = [inlines, window].map(|area| rank.register(area.at(), area.number()));
    let next = (own + 1) % ranks;
    let before = (own + ranks - 1) % ranks;
    let signal = (8 * ranks * ROUNDS) as u64;
    for round in 0..ROUNDS {
        inlines.write(8 * round, &((own << 32 | round) as u64).to_le_bytes());
        let to = (8 * (own * ROUNDS + round)) as u64;
        let raise = ((signal, names[1]), 1, ADD);
        let ends = ((8 * round as u64, names[0]), 8, (to, names[1]));
        let request = rank.put_signal(1 % CONTEXTS, ends, next, Some(raise));
        wait_until("the round's signal", || window.word(signal as usize) > round as u64);
        let got = window.word(8 * (before * ROUNDS + round));
        assert_eq!(got, (before << 32 | round) as u64);
        rank.wait(request);
    }
}

#[test]
fn value_is_there_when_the_signal_of_its_own_put_is_seen() {
    play(
        "value_is_there_when_the_signal_of_its_own_put_is_seen",
        &ALL,
        &LAYOUTS,
        values_and_their_signals,
    );
}

/// 32 requests to each rank of each context, none of them tested before all are issued; then one
/// call of test for each at a time, the last ones first.
fn as_many_as_nccl_has(rank: &mut Rank) {
    let (own, ranks) = (rank.own(), rank.ranks());
    let contexts = if rank.table.has_gets() { CONTEXTS } else { 1 };
    let each = 32 * ranks * contexts as usize;
    const BYTES: usize = 4096;
    let source = Area::new(Kind::Host, BYTES, own);
    let target = Area::new(Kind::Host, ranks * BYTES + 8, own);
    let names = [source, target].map(|area| rank.register(area.at(), area.number()));
    source.write(0, &pattern(own, BYTES));
    let mut requests = Vec::new();
    for _ in 0..32 {
        for context in 0..contexts {
            for peer in 0..ranks {
                let to = ((own * BYTES) as u64, names[1]);
                let raise = (((ranks * BYTES) as u64, names[1]), 0, INC);
                let ends = ((0, names[0]), BYTES, to);
                requests.push(rank.put_signal(context, ends, peer, Some(raise)));
            }
        }
    }
    let mut unique = requests.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), each, "each request has its own name");
    wait_until("every request", || {
        let is_open = |request: &_| !rank.table.test(rank.coll, *request).expect("a test");
        requests = requests.iter().rev().copied().filter(is_open).collect();
        requests.is_empty()
    });
    wait_until("every signal", || target.word(ranks * BYTES) == each as u64);
    for peer in 0..ranks {
        assert!(target.read(peer * BYTES, BYTES) == pattern(peer, BYTES));
    }
}

#[test]
fn requests_have_room_and_end_in_any_order_by_test_alone() {
    play(
        "requests_have_room_and_end_in_any_order_by_test_alone",
        &ALL,
        &LAYOUTS,
        as_many_as_nccl_has,
    );
}

/// Gets, and a flush of them whose memory has no name, since there are no signals.
fn gets_and_flushes(rank: &mut Rank) {
    let (own, ranks) = (rank.own(), rank.ranks());
    const BYTES: usize = 300_000;
    for kind in [Kind::Host, Kind::Device] {
        let source = Area::new(kind, BYTES, own);
        let target = Area::new(kind, ranks * BYTES, own);
        source.write(0, &pattern(own, BYTES));
        let names = [source, target].map(|area| rank.register(area.at(), area.number()));
        rank.meet();
        let by = (rank.context, 1);
        let flushed = rank.table.flush(by, null_mut(), 0).expect("a flush");
        assert!(flushed.is_null(), "there is nothing to wait for");
        for peer in 0..ranks {
            let mut requests = Vec::new();
            for bytes in [1, 8, BYTES] {
                let ends = ((0, names[0]), bytes, ((peer * BYTES) as u64, names[1]));
                requests.push(rank.table.get(by, ends, peer as u32).expect("a get"));
            }
            let flush = rank.table.flush(by, null_mut(), peer as u32).expect("a flush");
            // of another context, which has no gets
            let other = rank.table.flush((rank.context, 0), null_mut(), peer as u32);
            assert!(other.expect("a flush").is_null());
            if !flush.is_null() {
                rank.wait(flush);
            }
            assert!(target.read(peer * BYTES, BYTES) == pattern(peer, BYTES), "{kind:?} {peer}");
            requests.into_iter().for_each(|request| rank.wait(request));
        }
        rank.meet();
    }
}

#[test]
fn flush_ends_when_the_gets_before_it_are_there() {
    play("flush_ends_when_the_gets_before_it_are_there", &[13, 14, 15], &LAYOUTS, gets_and_flushes);
}

/// Puts of 8 B with a signal, back and forth, while NCCL's threads make progress; and their time.
/// The thread that puts and tests allocates nothing.
fn back_and_forth(rank: &mut Rank) {
    const ROUNDS: u64 = 2000;
    let own = rank.own();
    let area = Area::new(Kind::Host, 4096, own);
    let name = rank.register(area.at(), area.number());
    rank.meet();
    let (start, before) = (std::time::Instant::now(), allocations::of_this_thread());
    let mut open: *mut std::ffi::c_void = null_mut();
    // as NCCL's threads do while they wait
    let look = |open: &mut *mut std::ffi::c_void| {
        assert_eq!(rank.table.progress(rank.coll, rank.context), 0);
        if !open.is_null() && rank.table.test(rank.coll, *open).expect("a test") {
            *open = null_mut();
        }
    };
    for round in 1..=ROUNDS {
        for turn in 0..2 {
            if turn == own {
                while !open.is_null() {
                    look(&mut open);
                }
                let raise = Some(((64, name), 1, ADD));
                open = rank.put_signal(0, ((0, name), 8, (8, name)), 1 - own, raise);
            } else {
                wait_until("the peer's turn", || {
                    look(&mut open);
                    area.word(64) == round
                });
            }
        }
    }
    while !open.is_null() {
        look(&mut open);
    }
    assert_eq!(allocations::of_this_thread(), before, "allocations");
    let each = start.elapsed().as_secs_f64() * 1e6 / (2 * ROUNDS) as f64;
    println!("put of 8 B with signal: {each:.1} us");
}

#[test]
fn puts_and_signals_go_back_and_forth() {
    play("puts_and_signals_go_back_and_forth", &[11, 14], &[PROCESSES, TCP], back_and_forth);
}

/// What NCCL takes for "all that NICs wrote before is visible".
fn puts_to_oneself(rank: &mut Rank) {
    let own = rank.own();
    for kind in [Kind::Host, Kind::Device, Kind::Private] {
        for bytes in [8, 100_000] {
            let source = Area::new(Kind::Host, bytes, own);
            let target = Area::new(kind, bytes, own);
            let names = [source, target].map(|area| rank.register(area.at(), area.number()));
            for round in 0..10 {
                source.write(0, &pattern(round, bytes));
                let request = rank.put(0, ((0, names[0]), bytes, (0, names[1])), own);
                rank.wait(request);
                assert!(target.read(0, bytes) == pattern(round, bytes), "{kind:?} {bytes}");
            }
        }
    }
}

#[test]
fn put_to_oneself_ends_when_its_bytes_are_there() {
    play("put_to_oneself_ends_when_its_bytes_are_there", &[11, 14], &LAYOUTS, puts_to_oneself);
}

/// The owner makes no call while its peer puts into its memory.
fn owner_makes_no_call(rank: &mut Rank) {
    let own = rank.own();
    let area = Area::new(Kind::Host, 4096, own);
    let name = rank.register(area.at(), area.number());
    if own == 0 {
        rank.signal(1, ((0, name), 1, ADD));
        // whether it has ended is not asked either
        wait_until("the answer", || area.word(8) == 1);
    } else if own == 1 {
        wait_until("a signal", || area.word(0) == 1);
        rank.signal(0, ((8, name), 1, ADD));
    }
}

#[test]
fn peers_reach_an_owner_that_makes_no_call() {
    play("peers_reach_an_owner_that_makes_no_call", &[11, 14], &LAYOUTS, owner_makes_no_call);
}

/// Windows come and go on one thread, while another puts on the same communicator.
fn registration_beside_puts(rank: &mut Rank) {
    let (own, ranks) = (rank.own(), rank.ranks());
    let area = Area::new(Kind::Host, 4096, own);
    let name = rank.register(area.at(), area.number());
    let is_over = AtomicBool::new(false);
    let (table, coll, context) = (rank.table, rank.coll as u64, rank.context as u64);
    let (named, peer) = (name as u64, (own + 1) % ranks);
    std::thread::scope(|scope| {
        let puts = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Acquire) {
                let name = named as *mut _;
                let by = (coll as *mut _, context as *mut _, 0);
                let ends = ((0, name), 8, (8, name));
                let raise = Some(((16, name), 1, ADD));
                let request = table.put(by, ends, peer as u32, raise).expect("a put");
                wait_until("a put", || table.test(coll as *mut _, request).expect("a test"));
                assert_eq!(table.progress(coll as *mut _, context as *mut _), 0);
                count += 1;
            }
            count
        });
        let window = Area::new(Kind::Device, 1 << 20, own);
        for _ in 0..20 {
            let other = table.register(coll as *mut _, window.at(), window.number());
            let more = table.contexts(coll as *mut _, 3).expect("contexts");
            assert_eq!(table.destroy(more), 0);
            assert_eq!(table.deregister(coll as *mut _, other.expect("a window")), 0);
        }
        is_over.store(true, Ordering::Release);
        assert!(puts.join().unwrap() > 0);
    });
}

#[test]
fn windows_come_and_go_beside_puts() {
    play("windows_come_and_go_beside_puts", &ALL, &[THREADS, TCP, HOSTS], registration_beside_puts);
}

/// A put of more than a GiB, which NCCL's hosts do not split. Most of its source is pages that were
/// never written, so that only the target takes memory.
#[test]
fn put_of_more_than_a_gib_arrives_whole() {
    play("put_of_more_than_a_gib_arrives_whole", &[14], &[PROCESSES], |rank| {
        const BYTES: usize = (1 << 30) + 4097;
        const PART: usize = 4096;
        let (own, word) = (rank.own(), Area::new(Kind::Host, 64, rank.own()));
        let area = Area::sparse(BYTES);
        let names = [area, word].map(|area| rank.register(area.at(), area.number()));
        let parts = [0, 1 << 29, BYTES - PART];
        if own == 0 {
            parts.iter().for_each(|at| area.write(*at, &pattern(*at, PART)));
            let ends = ((0, names[0]), BYTES, (0, names[0]));
            let request = rank.put_signal(0, ends, 1, Some(((8, names[1]), 1, ADD)));
            rank.wait(request);
        } else {
            wait_until("its signal", || word.word(8) == 1);
            for at in parts {
                assert!(area.read(at, PART) == pattern(at, PART), "at {at}");
            }
            assert!(area.read(PART, PART).iter().all(|byte| *byte == 0), "between the parts");
        }
    });
}

/// The end in NCCL's order: contexts first, then memory that is unmapped already.
#[test]
fn end_touches_no_memory() {
    play("end_touches_no_memory", &ALL, &[THREADS, TCP], |rank| {
        let bytes = 1 << 16;
        // SAFETY: a mapping of its own.
        let start = unsafe {
            let (rights, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(null_mut(), bytes, rights, flags, -1, 0)
        };
        let inlines = rank.register((start as u64, bytes), table::HOST);
        let window = Area::new(Kind::Host, bytes, rank.own());
        let name = rank.register(window.at(), window.number());
        let peer = (rank.own() + 1) % rank.ranks();
        let request = rank.put(0, ((0, inlines), 8, (0, name)), peer);
        rank.wait(request);
        rank.meet();
        assert_eq!(rank.table.destroy(rank.context), 0);
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { libc::munmap(start, bytes) }, 0);
        assert_eq!(rank.table.deregister(rank.coll, inlines), 0);
        rank.context = rank.table.contexts(rank.coll, 1).expect("contexts");
    });
}

/// NCCL 2.30.3 asks with a pointer of its own.
#[test]
fn last_error_of_a_pointer_that_is_not_ours_is_none() {
    play("last_error_of_a_pointer_that_is_not_ours_is_none", &ALL, &[THREADS], |rank| {
        let mut own = [0u64; 16];
        assert!(!rank.table.has_failed(own.as_mut_ptr().cast()));
        assert!(!rank.table.has_failed(null_mut()));
        assert!(matches!(rank.table, Table::V11(_)) || !rank.context.is_null());
    });
}
