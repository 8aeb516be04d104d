//! What fails about memory of GPUs, over the test double of the CUDA driver: each failure has a
//! name or a way round, loses nothing, and leaves alone what has nothing to do with it.

mod cuda_support;
mod gpu_support;
mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{MemoryKind, RegisterError};
use crosstie::transport::{RequestError, RequestId, SubmitError};
use cuda_support::control::{self, assert_nothing_lives, live};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_double;
use gpu_support::{Kind, Memory, ROOM, Way, begin_of, end, exchange, mapped, pair, pair_of, swap};
use host_support::pair::Pair;
use host_support::{Node, Watch, joined};

const BYTES: usize = 70_000;
/// The code with which calls fail here.
const CODE: u32 = OUT_OF_MEMORY;
/// The driver's copies between GPUs, and out of one into host memory.
const PEER: &str = "cuMemcpyDtoDAsync_v2";
const OUT: &str = "cuMemcpyDtoHAsync_v2";

fn register(node: &Node, start: u64, bytes: usize) -> Result<Handle, RegisterError> {
    // SAFETY: memory of the test's, which stays as long as the endpoint.
    unsafe { node.shared.register(start, Bytes::of(bytes), MemoryKind::Cuda(0)) }
}

/// A second connection between the same endpoints: what each calls it.
fn second_of(pair: &mut Pair) -> (Handle, Handle) {
    joined(&mut pair.a, &mut pair.b)
}

/// A message that is on its way: the requests at `a` and `b`.
fn begin(pair: &mut Pair, from: &Memory, into: &Memory) -> (RequestId, RequestId) {
    begin_of(pair, from, into, BYTES)
}

#[test]
fn peer_memory_that_cannot_be_mapped_goes_by_way_of_the_host() {
    let test = "peer_memory_that_cannot_be_mapped_goes_by_way_of_the_host";
    with_double(test, &[], || {
        const CALLS: [&str; 4] =
            ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"];
        on(0);
        let mut pair = pair(Way::Pull);
        for call in CALLS {
            let mut from = Memory::new(&pair.a, Kind::Exported(0));
            let mut into = Memory::new(&pair.b, Kind::Exported(1));
            let by_engine = control::bytes("peer");
            control::fail(call, 1, CODE);
            exchange(&mut pair, &mut from, &mut into, BYTES, false);
            assert_eq!(control::bytes("peer"), by_engine, "{call}");
            from.free(&pair.a);
            into.free(&pair.b);
        }
        pair.close();
        assert_nothing_lives();
    });
}

#[test]
fn memory_whose_export_is_refused_is_registered_for_the_host_to_copy() {
    with_double("memory_whose_export_is_refused_is_registered_for_the_host_to_copy", &[], || {
        on(0);
        let pair = pair(Way::Pull);
        let two = mapped(0, 2);
        let one = alloc(ROOM);
        for (start, call, nth) in [
            (two, "cuMemExportToShareableHandle", 1),
            (two, "cuMemExportToShareableHandle", 2),
            (one, "cuIpcGetMemHandle", 1),
        ] {
            control::fail(call, nth, NOT_PERMITTED);
            for what in [call, "once it is exported"] {
                let region = register(&pair.a, start, ROOM).expect(what);
                pair.a.shared.deregister(region).unwrap();
            }
        }
        pair.close();
        assert_eq!([live("registrations"), live("streams"), live("imports")], [0; 3]);
    });
}

/// Want of memory or of descriptors says nothing of what is registered.
#[test]
fn memory_whose_export_fails_for_want_of_something_is_not_registered() {
    with_double("memory_whose_export_fails_for_want_of_something_is_not_registered", &[], || {
        on(0);
        let pair = pair(Way::Pull);
        let two = mapped(0, 2);
        let one = alloc(ROOM);
        let held = || ["registrations", "streams", "imports", "handles"].map(live);
        // what is opened once is opened here
        pair.a.shared.deregister(register(&pair.a, one, ROOM).unwrap()).unwrap();
        for (start, call, nth, code) in [
            (two, "cuMemRetainAllocationHandle", 1, OUT_OF_MEMORY),
            (two, "cuMemExportToShareableHandle", 1, OUT_OF_MEMORY),
            (two, "cuMemExportToShareableHandle", 2, OPERATING_SYSTEM),
            (one, "cuMemRetainAllocationHandle", 1, OPERATING_SYSTEM),
            (one, "cuIpcGetMemHandle", 1, OUT_OF_MEMORY),
        ] {
            let before = held();
            control::fail(call, nth, code);
            let refused = register(&pair.a, start, ROOM);
            assert_eq!(refused, Err(RegisterError::Fabric(code as i32)), "{call}");
            assert_eq!(held(), before, "{call}");
            let region = register(&pair.a, start, ROOM).expect(call);
            pair.a.shared.deregister(region).unwrap();
        }
        pair.close();
    });
}

/// The first registration opens the GPU: its context, its streams, pinned memory.
#[test]
fn gpu_that_cannot_be_opened_is_named_and_can_be_later() {
    with_double("gpu_that_cannot_be_opened_is_named_and_can_be_later", &[], || {
        const CALLS: [&str; 3] =
            ["cuCtxCreate_v2", "cuMemHostRegister_v2", "cuStreamCreateWithPriority"];
        on(0);
        let mut pair = pair(Way::Pull);
        let start = alloc(4096);
        for call in CALLS {
            control::fail(call, 1, CODE);
            let refused = register(&pair.a, start, 4096);
            assert_eq!(refused, Err(RegisterError::Fabric(CODE as i32)), "{call}");
            assert_eq!([live("registrations"), live("streams")], [0; 2], "{call}");
        }
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, BYTES, false);
        from.free(&pair.a);
        into.free(&pair.b);
        ok(cuMemFree_v2(start));
        pair.close();
        assert_nothing_lives();
    });
}

/// What is mapped is copied in one piece, in pieces, or not at all; the bytes come all the same.
#[test]
fn copy_out_of_a_mapping_that_the_driver_refuses_goes_by_way_of_the_host() {
    let test = "copy_out_of_a_mapping_that_the_driver_refuses_goes_by_way_of_the_host";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        for (from, into, call, nth) in [
            (Kind::Exported(0), Kind::Exported(1), PEER, 1),
            (Kind::Alloc(0), Kind::Alloc(1), PEER, 1),
            (Kind::Exported(1), Kind::Host, OUT, 1),
            (Kind::TwoExported(1), Kind::Host, OUT, 7),
        ] {
            let mut source = Memory::new(&pair.a, from);
            let mut into = Memory::new(&pair.b, into);
            exchange(&mut pair, &mut source, &mut into, ROOM, false);
            let by_engine = control::bytes("peer");
            for early in [false, true] {
                control::fail(call, nth, CODE);
                exchange(&mut pair, &mut source, &mut into, ROOM, early);
                assert_eq!(control::bytes("peer"), by_engine, "{from:?}, {call}");
            }
            // later ones are asked of the driver again
            exchange(&mut pair, &mut source, &mut into, ROOM, false);
            assert_eq!(control::bytes("peer") > by_engine, into.kind != Kind::Host);
            source.free(&pair.a);
            into.free(&pair.b);
        }
        pair.close();
        assert_nothing_lives();
    });
}

#[test]
fn copy_that_the_driver_refuses_ends_by_name_and_others_of_its_gpu_go_on() {
    let test = "copy_that_the_driver_refuses_ends_by_name_and_others_of_its_gpu_go_on";
    with_double(test, &[], || {
        on(0);
        // where the source is mapped, its owner's copy is refused too
        for (from, into, calls) in [
            (Kind::Exported(0), Kind::Exported(1), [Some(PEER), Some(OUT)]),
            (Kind::Host, Kind::Exported(1), [Some("cuMemcpyHtoDAsync_v2"), None]),
            (Kind::Exported(1), Kind::Host, [Some(OUT); 2]),
        ] {
            let mut pair = pair(Way::Pull);
            let mut other = second_of(&mut pair);
            let mut from = Memory::new(&pair.a, from);
            let mut into = Memory::new(&pair.b, into);
            let mut beside = [Memory::new(&pair.a, Kind::Host), Memory::new(&pair.b, Kind::Host)];
            exchange(&mut pair, &mut from, &mut into, BYTES, false);
            calls.iter().flatten().for_each(|call| control::fail(call, 1, CODE));
            let requests = begin(&mut pair, &from, &into);
            let ended = end(&mut pair, requests).map(|outcome| outcome.result);
            let name = Err(RequestError::Fabric(CODE as i32));
            assert!(ended.contains(&name), "{calls:?}: {ended:?}");
            swap(&mut pair, &mut other);
            let [from, into] = &mut beside;
            exchange(&mut pair, from, into, BYTES, false);
            for (from, into) in [
                (Kind::Exported(0), Kind::Exported(1)),
                (Kind::Host, Kind::Exported(1)),
                (Kind::Exported(1), Kind::Host),
            ] {
                let mut from = Memory::new(&pair.a, from);
                let mut into = Memory::new(&pair.b, into);
                exchange(&mut pair, &mut from, &mut into, BYTES, false);
            }
            pair.close();
        }
    });
}

/// Nothing can be posted to a GPU whose context the driver refuses, and no marker tells of that.
#[test]
fn context_that_the_driver_refuses_leaves_no_request_without_an_end() {
    let test = "context_that_the_driver_refuses_leaves_no_request_without_an_end";
    with_double(test, &[], || {
        on(0);
        // a copy is taken, and what was taken is posted
        for nth in [1, 2] {
            let mut pair = pair(Way::Pull);
            let mut from = Memory::new(&pair.a, Kind::Exported(0));
            let mut into = Memory::new(&pair.b, Kind::Exported(1));
            exchange(&mut pair, &mut from, &mut into, BYTES, false);
            control::fail("cuCtxPushCurrent_v2", nth, CODE);
            let requests = begin(&mut pair, &from, &into);
            let ended = end(&mut pair, requests).map(|outcome| outcome.result);
            assert!(ended.contains(&Err(RequestError::Fabric(CODE as i32))), "{nth}: {ended:?}");
            pair.close();
        }
    });
}

/// Pieces of a message lie in cells, in sockets and in the GPU when its rail is lost.
#[test]
fn rail_that_is_lost_amid_a_message_between_gpus_costs_no_byte_and_comes_back() {
    let test = "rail_that_is_lost_amid_a_message_between_gpus_costs_no_byte_and_comes_back";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair_of(Way::Tcp, 2);
        for (from, into) in [
            (Kind::Exported(0), Kind::Exported(1)),
            (Kind::Host, Kind::Alloc(1)),
            (Kind::Pool(0), Kind::Host),
        ] {
            let mut from = Memory::new(&pair.a, from);
            let mut into = Memory::new(&pair.b, into);
            for round in 0..8 {
                from.fill(ROOM, round);
                into.fill(ROOM, round + 1);
                let lane = (round % 2) as u8;
                let posted = |pair: &Pair| pair.views(lane)[0].stats.bytes;
                let before = posted(&pair);
                let requests = begin_of(&mut pair, &from, &into, ROOM);
                let watch = Watch::start();
                while posted(&pair) == before {
                    pair.progress();
                    watch.look("a rail that carries a part of the message");
                }
                let (node, connection) = pair.side(round / 2 % 2);
                let socket = node.lane_socket(connection, lane).expect("a rail in use");
                // SAFETY: no pointers.
                assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
                for outcome in end(&mut pair, requests) {
                    assert_eq!(outcome.result, Ok(()), "{:?}, {round}", from.kind);
                }
                assert!(into.holds(ROOM, round), "{:?} to {:?}, {round}", from.kind, into.kind);
                pair.all_up(2);
            }
            from.free(&pair.a);
            into.free(&pair.b);
        }
        let moved = [0, 1].map(|lane| pair.views(lane)[0].stats.moved);
        assert!(moved.iter().all(|moved| *moved > 0), "no part was on its way: {moved:?}");
        pair.close();
        assert_nothing_lives();
    });
}

/// No marker comes from a GPU that has failed, also not of copies that stand in its queue.
#[test]
fn gpu_that_fails_in_the_middle_ends_its_requests_and_the_endpoint_goes_on() {
    let test = "gpu_that_fails_in_the_middle_ends_its_requests_and_the_endpoint_goes_on";
    with_double(test, &[("CUDA_DOUBLE_DEVICES", "3")], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut other = second_of(&mut pair);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        let mut beside =
            [Memory::new(&pair.a, Kind::Exported(0)), Memory::new(&pair.b, Kind::Exported(2))];
        exchange(&mut pair, &mut from, &mut into, BYTES, false);
        let on_one = |stream: &usize| control::gpu_of(*stream) == 1;
        control::streams().into_iter().filter(on_one).for_each(control::hold);
        let requests = begin(&mut pair, &from, &into);
        swap(&mut pair, &mut other);
        let [from, into] = &mut beside;
        exchange(&mut pair, from, into, BYTES, false);
        control::lose(1);
        exchange(&mut pair, from, into, BYTES, false);
        let ended = end(&mut pair, requests).map(|outcome| outcome.result);
        let name = Err(RequestError::Fabric(ILLEGAL_ADDRESS as i32));
        assert!(ended.contains(&name), "{ended:?}");
        assert!(ended[1].is_err(), "its bytes are not there: {ended:?}");
        exchange(&mut pair, from, into, BYTES, true);
        pair.close();
    });
}

/// It may be late for ever: nothing but the requests that wait for it does.
#[test]
fn marker_that_does_not_come_holds_up_its_own_request_alone() {
    with_double("marker_that_does_not_come_holds_up_its_own_request_alone", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut other = second_of(&mut pair);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        let mut beside =
            [Memory::new(&pair.a, Kind::Exported(1)), Memory::new(&pair.b, Kind::Exported(0))];
        exchange(&mut pair, &mut from, &mut into, BYTES, false);
        let on_one = |stream: &usize| control::gpu_of(*stream) == 1;
        control::streams().into_iter().filter(on_one).for_each(control::hold_words);
        let (sent, received) = begin(&mut pair, &from, &into);
        swap(&mut pair, &mut other);
        let [from, into] = &mut beside;
        for _ in 0..20 {
            exchange(&mut pair, from, into, BYTES, false);
            assert!(pair.b.test(received).unwrap().is_none(), "before its marker");
        }
        control::release(0);
        swap(&mut pair, &mut other);
        for outcome in end(&mut pair, (sent, received)) {
            assert_eq!(outcome.result, Ok(()));
        }
        pair.close();
    });
}

/// What the stream may still touch stays, and nothing waits for it for ever.
#[test]
fn endpoint_whose_copies_do_not_end_is_closed_all_the_same() {
    with_double("endpoint_whose_copies_do_not_end_is_closed_all_the_same", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, BYTES, false);
        control::hold(0);
        let (_, received) = begin(&mut pair, &from, &into);
        for _ in 0..2000 {
            assert!(pair.b.test(received).unwrap().is_none());
            pair.a.progress();
        }
        let (ends, _turn) = pair.into_ends();
        ends.into_iter().for_each(|(node, _)| node.close());
        control::release(0);
        let watch = Watch::start();
        on(1);
        while control::streams().iter().any(|stream| cuStreamQuery(*stream) == NOT_READY) {
            watch.look("copies that were left");
        }
        assert_eq!(control::faults(), 0, "a stream touched what was gone");
    });
}

fn wait_for_mappings(pair: &mut Pair, count: u64) {
    let watch = Watch::start();
    while live("mappings") != count {
        pair.a.progress();
        pair.b.progress();
        watch.look("a peer that unmaps");
    }
}

/// A mapping that stays keeps the memory of the GPU, and there is little of that.
#[test]
fn memory_that_its_owner_forgets_is_unmapped_at_the_peer() {
    with_double("memory_that_its_owner_forgets_is_unmapped_at_the_peer", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        for _ in 0..20 {
            let mut from = Memory::new(&pair.a, Kind::TwoExported(0));
            exchange(&mut pair, &mut from, &mut into, BYTES, false);
            assert_eq!(live("mappings"), 1 + 2 + 2);
            from.free(&pair.a);
            wait_for_mappings(&mut pair, 1);
        }
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
    });
}

#[test]
fn memory_of_a_peer_that_has_ended_is_unmapped() {
    with_double("memory_of_a_peer_that_has_ended_is_unmapped", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, BYTES, false);
        let ([(a, _), (mut b, to_a)], _turn) = pair.into_ends();
        a.close();
        let watch = Watch::start();
        while live("mappings") != 2 {
            b.progress();
            watch.look("an import that goes");
        }
        let room = into.incoming(BYTES);
        // by then the connection may have ended, or ends with the receive
        let is_refused = loop {
            match b.irecv(to_a, &[room]) {
                Ok(received) => break b.wait(received).result.is_err(),
                Err(SubmitError::Again) => drop(b.progress()),
                Err(_) => break true,
            }
            watch.look("a receive that is refused");
        };
        assert!(is_refused);
        b.close();
    });
}
