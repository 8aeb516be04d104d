//! Memory of GPUs between whole endpoints, over the test double of the CUDA driver.
//!
//! In the double a GPU's memory has pages that the CPU may not touch: a library that reads it ends
//! with SIGSEGV, where a real one would too.

mod cuda_support;
mod gpu_support;
mod host_support;

use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{MemoryKind, RegisterError};
use crosstie::memory::cuda::gpu::{GpuLink, visible};
use crosstie::memory::cuda::{Gpu, Library};
use crosstie::provider::copy_engine::{Cells, Lanes, OVERDUE, Progress};
use crosstie::transport::RequestError;
use cuda_support::control::{self, assert_no_slow_calls, assert_nothing_lives, calls_reset};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_double;
use gpu_support::{
    Kind, Memory, ROOM, SIZES, Way, begin_of, end, exchange, mapped, pair, submitted,
};
use host_support::wait_both;
use std::sync::Arc;

const KINDS: [Kind; 6] = [
    Kind::Host,
    Kind::Alloc(0),
    Kind::Alloc(1),
    Kind::Exported(0),
    Kind::Exported(1),
    Kind::TwoExported(1),
];

fn every_kind(way: Way) {
    on(0);
    let mut pair = pair(way);
    for from in KINDS {
        for into in KINDS.into_iter().filter(|into| from != Kind::Host || *into != Kind::Host) {
            let mut from = Memory::new(&pair.a, from);
            let mut into = Memory::new(&pair.b, into);
            for early in [false, true] {
                for bytes in SIZES {
                    exchange(&mut pair, &mut from, &mut into, bytes, early);
                }
            }
            from.free(&pair.a);
            into.free(&pair.b);
        }
    }
    pair.close();
    assert_nothing_lives();
}

#[test]
fn messages_of_every_kind_of_memory_come_whole_where_receivers_pull() {
    let test = "messages_of_every_kind_of_memory_come_whole_where_receivers_pull";
    with_double(test, &[("CUDA_DOUBLE_DELAY_NS", "2000")], || every_kind(Way::Pull));
}

#[test]
fn messages_of_every_kind_of_memory_come_whole_where_senders_push() {
    let test = "messages_of_every_kind_of_memory_come_whole_where_senders_push";
    with_double(test, &[("CUDA_DOUBLE_DELAY_NS", "2000")], || every_kind(Way::Push));
}

#[test]
fn messages_of_every_kind_of_memory_come_whole_over_tcp() {
    let test = "messages_of_every_kind_of_memory_come_whole_over_tcp";
    with_double(test, &[("CUDA_DOUBLE_DELAY_NS", "0")], || every_kind(Way::Tcp));
}

#[test]
fn without_access_between_gpus_the_owner_copies_out() {
    let test = "without_access_between_gpus_the_owner_copies_out";
    with_double(test, &[("CUDA_DOUBLE_DENY", "0-1")], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        SIZES.into_iter().for_each(|bytes| exchange(&mut pair, &mut from, &mut into, bytes, false));
        assert_eq!(control::bytes("peer"), 0, "no copy between GPUs");
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
    });
}

/// The ring for notes has no room now and then: a piece whose bytes were there already, and whose
/// peer could not be told yet that its cell is free, counted as lost, and the connection ended.
#[test]
fn pieces_are_over_although_the_peer_cannot_be_told_yet() {
    const AT_ONCE: usize = 4;
    let test = "pieces_are_over_although_the_peer_cannot_be_told_yet";
    let settings = [("CUDA_DOUBLE_DENY", "0-1"), ("CROSSTIE_WRITE_RING_BYTES", "4096")];
    with_double(test, &settings, || {
        on(0);
        let mut pair = pair(Way::Pull);
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        let mut memories =
            [Kind::Exported(0), Kind::Exported(0)].map(|it| Memory::new(&pair.a, it));
        let mut others = [Kind::Exported(1), Kind::Exported(1)].map(|it| Memory::new(&pair.b, it));
        for round in 0..20 {
            memories[0].fill(ROOM, round);
            others[0].fill(ROOM, round + 1);
            let mut requests = [Vec::new(), Vec::new()];
            for _ in 0..AT_ONCE {
                let (room, out) = (memories[1].incoming(ROOM), memories[0].outgoing(ROOM));
                requests[0].push(submitted(&mut pair.a, |node| node.irecv(to_b, &[room])));
                requests[0].push(submitted(&mut pair.a, |node| node.isend(to_b, out)));
                let (room, out) = (others[1].incoming(ROOM), others[0].outgoing(ROOM));
                requests[1].push(submitted(&mut pair.b, |node| node.irecv(to_a, &[room])));
                requests[1].push(submitted(&mut pair.b, |node| node.isend(to_a, out)));
            }
            // each side by itself for a while, so that the ring to the other is full
            for _ in 0..30 {
                for node in [&mut pair.a, &mut pair.b] {
                    for _ in 0..500 {
                        node.progress();
                    }
                }
            }
            let [of_a, of_b] = requests;
            for request in of_a {
                assert_eq!(wait_both(&mut pair.a, &mut pair.b, request).result, Ok(()));
            }
            for request in of_b {
                assert_eq!(wait_both(&mut pair.b, &mut pair.a, request).result, Ok(()));
            }
            assert!(memories[1].holds(ROOM, round + 1) && others[1].holds(ROOM, round));
        }
        memories.into_iter().for_each(|memory| memory.free(&pair.a));
        others.into_iter().for_each(|memory| memory.free(&pair.b));
        pair.close();
        assert_nothing_lives();
    });
}

/// A peer takes so many pieces of ours at a time; more of them counted as an attack.
#[test]
fn many_copies_that_the_peer_makes_take_turns() {
    with_double("many_copies_that_the_peer_makes_take_turns", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Hidden(0));
        from.fill(ROOM, 3);
        for kind in [Kind::Host, Kind::Alloc(1)] {
            let into = Memory::new(&pair.b, kind);
            let all: Vec<_> = (0..24).map(|_| begin_of(&mut pair, &from, &into, ROOM)).collect();
            for requests in all {
                assert_eq!(end(&mut pair, requests).map(|it| it.result), [Ok(()); 2]);
            }
            assert!(into.holds(ROOM, 3));
            into.free(&pair.b);
        }
        from.free(&pair.a);
        pair.close();
    });
}

/// Allocating, freeing, mapping and waiting stop all GPUs of a process, or a thread.
#[test]
fn messages_make_no_slow_call_once_memory_is_known() {
    let test = "messages_make_no_slow_call_once_memory_is_known";
    with_double(test, &[], || {
        on(0);
        for way in [Way::Pull, Way::Push] {
            let mut pair = pair(way);
            let mut from = Memory::new(&pair.a, Kind::Exported(0));
            let mut into = Memory::new(&pair.b, Kind::Exported(1));
            exchange(&mut pair, &mut from, &mut into, 4096, false);
            calls_reset();
            for bytes in SIZES {
                exchange(&mut pair, &mut from, &mut into, bytes, false);
            }
            assert_no_slow_calls();
            assert!(control::copies("peer") > 0 && control::copies("pageable") == 0);
            from.free(&pair.a);
            into.free(&pair.b);
            pair.close();
        }
    });
}

/// A request that ended before its bytes were there would give the user what was there before.
#[test]
fn receive_ends_when_the_stream_has_copied_and_no_sooner() {
    let test = "receive_ends_when_the_stream_has_copied_and_no_sooner";
    with_double(test, &[], || {
        on(0);
        for (from, into) in [
            (Kind::Exported(0), Kind::Exported(1)),
            (Kind::Host, Kind::Exported(1)),
            (Kind::Exported(0), Kind::Host),
        ] {
            let mut pair = pair(Way::Push);
            let mut from = Memory::new(&pair.a, from);
            let mut into = Memory::new(&pair.b, into);
            exchange(&mut pair, &mut from, &mut into, 8, false);
            let (to_a, to_b) = (pair.to_a, pair.to_b);
            from.fill(5000, 3);
            control::hold(0);
            let (room, outgoing) = (into.incoming(5000), from.outgoing(5000));
            let received = submitted(&mut pair.b, |node| node.irecv(to_a, &[room]));
            let sent = submitted(&mut pair.a, |node| node.isend(to_b, outgoing));
            for _ in 0..2000 {
                assert!(pair.b.test(received).unwrap().is_none(), "before its bytes");
                pair.a.progress();
            }
            control::release(0);
            assert_eq!(wait_both(&mut pair.b, &mut pair.a, received).result, Ok(()));
            assert!(into.holds(5000, 3));
            assert_eq!(wait_both(&mut pair.a, &mut pair.b, sent).result, Ok(()));
            from.free(&pair.a);
            into.free(&pair.b);
            pair.close();
        }
        assert_nothing_lives();
    });
}

/// No marker comes from a GPU that has failed: the request would never end.
#[test]
fn copy_under_way_on_a_gpu_that_fails_ends_by_name() {
    let test = "copy_under_way_on_a_gpu_that_fails_ends_by_name";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair(Way::Push);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, 4096, false);
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        control::hold(0);
        let (room, outgoing) = (into.incoming(4096), from.outgoing(4096));
        let received = submitted(&mut pair.b, |node| node.irecv(to_a, &[room]));
        let sent = submitted(&mut pair.a, |node| node.isend(to_b, outgoing));
        for _ in 0..2000 {
            assert!(pair.b.test(received).unwrap().is_none());
            pair.a.progress();
        }
        control::lose(1);
        // where senders push, the writer's op fails, and the receiver hears of that
        let outcome = wait_both(&mut pair.a, &mut pair.b, sent);
        assert!(matches!(outcome.result, Err(RequestError::Fabric(_))), "{outcome:?}");
        let outcome = wait_both(&mut pair.b, &mut pair.a, received);
        assert!(outcome.result.is_err(), "{outcome:?}");
        pair.close();
    });
}

#[test]
fn lost_gpu_ends_its_connection_by_name_and_others_go_on() {
    let test = "lost_gpu_ends_its_connection_by_name_and_others_go_on";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, 4096, false);
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        control::lose(1);
        let (room, outgoing) = (into.incoming(4096), from.outgoing(4096));
        let received = submitted(&mut pair.b, |node| node.irecv(to_a, &[room]));
        let _sent = submitted(&mut pair.a, |node| node.isend(to_b, outgoing));
        let outcome = wait_both(&mut pair.b, &mut pair.a, received);
        assert!(matches!(outcome.result, Err(RequestError::Fabric(_))), "{outcome:?}");
        pair.close();
        let mut pair = self::pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(0));
        exchange(&mut pair, &mut from, &mut into, 70_000, false);
    });
}

#[test]
fn memory_that_nobody_else_can_map_goes_through_the_host() {
    let test = "memory_that_nobody_else_can_map_goes_through_the_host";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut hidden = Memory::new(&pair.a, Kind::Hidden(0));
        let mut exported = Memory::new(&pair.b, Kind::Exported(1));
        for bytes in [1, 8, 70_000, ROOM] {
            exchange(&mut pair, &mut hidden, &mut exported, bytes, true);
        }
        pair.close();
    });
}

/// The driver writes no words into such memory, so that a short message had ended its connection.
#[test]
fn memory_of_a_pool_takes_messages_of_every_length() {
    let test = "memory_of_a_pool_takes_messages_of_every_length";
    with_double(test, &[], || {
        on(0);
        for way in [Way::Pull, Way::Push, Way::Tcp] {
            let mut pair = pair(way);
            let mut from = Memory::new(&pair.a, Kind::Pool(0));
            let mut into = Memory::new(&pair.b, Kind::Pool(1));
            for bytes in [1, 8, 32, 4096, 8, 70_000, ROOM] {
                exchange(&mut pair, &mut from, &mut into, bytes, true);
            }
            pair.close();
        }
    });
}

#[test]
fn memory_that_cannot_be_used_is_refused_by_kind() {
    let test = "memory_that_cannot_be_used_is_refused_by_kind";
    with_double(test, &[], || {
        on(0);
        let pair = pair(Way::Pull);
        let register = |address: u64, bytes: usize| {
            // SAFETY: nothing is sent.
            unsafe { pair.a.shared.register(address, Bytes::of(bytes), MemoryKind::Cuda(0)) }
        };
        let host = [0u8; 64];
        assert_eq!(register(host.as_ptr() as u64, 64), Err(RegisterError::Kind), "host memory");
        let words = words(8);
        pinned(&words);
        assert_eq!(register(words.as_ptr() as u64, 64), Err(RegisterError::Kind), "pinned memory");
        let managed = out(|start| cuMemAllocManaged(start, 4096, 1));
        assert_eq!(register(managed, 4096), Err(RegisterError::Kind), "managed memory");
        let freed = alloc(4096);
        ok(cuMemFree_v2(freed));
        assert!(register(freed, 4096).is_err(), "freed memory");
        let last = alloc(4096);
        assert!(register(last, 1 << 30).is_err(), "beyond its allocation");
        assert!(register(last, 0).is_err(), "no bytes");
        assert!(register(u64::MAX - 8, 64).is_err(), "a range that wraps");
        let (read_only, host) = (mapped(0, 1), MemoryKind::Host);
        let access = Access { place: [1, 0], flags: 1 };
        ok(cuMemSetAccess(read_only, ROOM, &raw const access, 1));
        assert_eq!(register(read_only, ROOM), Err(RegisterError::Range), "memory for reads alone");
        // SAFETY: nothing is sent.
        let as_host = unsafe { pair.a.shared.register(last, Bytes::of(4096), host) };
        assert_eq!(as_host, Err(RegisterError::Kind), "memory of a GPU as memory of the host");
        // SAFETY: as above.
        let as_host = unsafe { pair.a.shared.register(managed, Bytes::of(4096), host) };
        pair.a.shared.deregister(as_host.expect("memory that both reach")).unwrap();
        let good = register(last, 4096).unwrap();
        pair.a.shared.deregister(good).unwrap();
        pair.close();
    });
}

#[test]
fn gpus_are_named_with_those_that_they_reach() {
    let test = "gpus_are_named_with_those_that_they_reach";
    with_double(test, &[("CUDA_DOUBLE_DEVICES", "3"), ("CUDA_DOUBLE_DENY", "0-2")], || {
        let gpus = visible(Library::load().unwrap()).unwrap();
        let links: Vec<_> = gpus.iter().map(|gpu| gpu.links.clone()).collect();
        let (own, none, near) = (GpuLink::Own, GpuLink::None, GpuLink::NvLink);
        assert_eq!(links, [[own, near, none], [near, own, near], [none, near, own]]);
        assert!(gpus.iter().all(|gpu| !gpu.name.is_empty()));
        assert_ne!(gpus[0].uuid, gpus[1].uuid);
    });
}

#[test]
fn copies_that_do_not_end_are_told_once_and_end_when_the_stream_goes_on() {
    with_double(
        "copies_that_do_not_end_are_told_once_and_end_when_the_stream_goes_on",
        &[],
        || {
            on(0);
            let (to, from) = (alloc(BLOCK), alloc(BLOCK));
            let library = Library::load().expect("the double");
            let gpu = Arc::new(Gpu::at(library, 0).and_then(|gpu| gpu.own()).expect("a GPU"));
            let cells = Cells::create(1).expect("address space");
            // SAFETY: the cells stay behind the lanes.
            let mut lanes = unsafe { Lanes::new(gpu, 0, &cells) }.expect("streams");
            while !lanes.is_quiet() {}
            let at = |span: Span| Instant(1).after(span);
            assert!(!lanes.is_overdue(at(Span(0))), "nothing was posted");
            control::streams().into_iter().for_each(control::hold);
            // SAFETY: both stay mapped until the copy is done.
            let mark = unsafe { lanes.copy((to, from), 8, false) }.expect("posted");
            lanes.flush();
            assert!(!lanes.is_overdue(at(Span(0))) && !lanes.is_overdue(at(Span(OVERDUE.0 - 1))));
            assert!(lanes.is_overdue(at(OVERDUE)), "in its time");
            assert!(!lanes.is_overdue(at(Span(2 * OVERDUE.0))), "only once");
            assert_eq!(lanes.progress(mark), Progress::Flying);
            control::streams().into_iter().for_each(control::release);
            while lanes.progress(mark) == Progress::Flying {}
            assert_eq!(lanes.progress(mark), Progress::Done);
            assert!(!lanes.is_overdue(at(Span(9 * OVERDUE.0))));
        },
    );
}
