//! What a program does with its GPUs while messages of their memory flow, over the test double of
//! the CUDA driver: neither waits for the other.

mod cuda_support;
mod gpu_support;
mod host_support;

use crosstie::base::units::Bytes;
use crosstie::fabric::MemoryKind;
use crosstie::host::Shared;
use crosstie::transport::{Incoming, Outgoing};
use cuda_support::control::{self, assert_nothing_lives};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_double;
use gpu_support::{Kind, Memory, ROOM, SIZES, Way, begin_of, end, exchange, pair, submitted, swap};
use host_support::joined;
use host_support::pair::Pair;
use std::sync::atomic::{AtomicBool, Ordering};

/// Between two GPUs, and from and to the host.
const ENDS: [(Kind, Kind); 3] = [
    (Kind::Exported(0), Kind::Alloc(1)),
    (Kind::Host, Kind::Exported(1)),
    (Kind::Alloc(0), Kind::Host),
];

/// Messages of each length between each two ends, while `around` holds.
fn messages(way: Way, around: impl Fn(bool)) {
    let mut pair = pair(way);
    for (from, into) in ENDS {
        let mut from = Memory::new(&pair.a, from);
        let mut into = Memory::new(&pair.b, into);
        exchange(&mut pair, &mut from, &mut into, 8, false);
        around(true);
        for early in [false, true] {
            for bytes in SIZES {
                exchange(&mut pair, &mut from, &mut into, bytes, early);
            }
        }
        around(false);
        from.free(&pair.a);
        into.free(&pair.b);
    }
    pair.close();
}

#[test]
fn streams_have_the_highest_priority() {
    with_double("streams_have_the_highest_priority", &[], || {
        on(0);
        let pair = pair(Way::Pull);
        let memory = Memory::new(&pair.a, Kind::Exported(0));
        let streams = control::streams();
        assert!(!streams.is_empty());
        for stream in streams {
            assert_eq!(out(|priority| cuStreamGetPriority(stream, priority)), -5);
        }
        memory.free(&pair.a);
        pair.close();
    });
}

/// A kernel that waits for a message holds its stream, and all processors.
#[test]
fn messages_come_while_a_kernel_spins_on_the_legacy_stream() {
    with_double("messages_come_while_a_kernel_spins_on_the_legacy_stream", &[], || {
        on(0);
        for way in [Way::Pull, Way::Push, Way::Tcp] {
            messages(way, |holds| {
                for gpu in [0, 1] {
                    control::spin(gpu, holds);
                    control::busy(gpu, holds);
                }
            });
        }
        assert_nothing_lives();
    });
}

/// It waits for the kernel, and the kernel for the message.
#[test]
fn messages_come_while_another_thread_frees_memory_behind_a_kernel() {
    with_double("messages_come_while_another_thread_frees_memory_behind_a_kernel", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        exchange(&mut pair, &mut from, &mut into, 8, false);
        let theirs = alloc(4096);
        control::spin(0, true);
        let is_freed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let free = scope.spawn(|| {
                on(0);
                let calls = control::calls("cuMemFree_v2");
                ok(cuMemFree_v2(theirs));
                is_freed.store(true, Ordering::SeqCst);
                calls
            });
            while control::calls("cuMemFree_v2") == 0 {
                std::thread::yield_now();
            }
            for bytes in SIZES {
                exchange(&mut pair, &mut from, &mut into, bytes, false);
            }
            assert!(!is_freed.load(Ordering::SeqCst), "the kernel spins");
            control::spin(0, false);
            free.join().expect("the memory is freed");
        });
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
    });
}

/// A call of a thread that is not relaxed ends it with an error.
#[test]
fn capture_of_another_thread_is_left_alone() {
    with_double("capture_of_another_thread_is_left_alone", &[], || {
        on(0);
        for way in [Way::Pull, Way::Push, Way::Tcp] {
            messages(way, control::capture);
        }
        assert_eq!(control::captures_broken(), 0);
        assert_nothing_lives();
    });
}

/// NCCL's threads have the context of their GPU, another one, or none.
#[test]
fn context_of_the_calling_thread_stays_as_it_is() {
    with_double("context_of_the_calling_thread_stays_as_it_is", &[], || {
        let other = on(1);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(0));
        for context in [other, 0] {
            ok(cuCtxSetCurrent(context));
            for bytes in SIZES {
                exchange(&mut pair, &mut from, &mut into, bytes, false);
            }
            assert_eq!(out(cuCtxGetCurrent), context);
        }
        ok(cuCtxSetCurrent(other));
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
    });
}

/// NCCL's service thread registers the buffers of one communicator while another one sends.
#[test]
fn memory_is_registered_by_another_thread_while_messages_flow() {
    with_double("memory_is_registered_by_another_thread_while_messages_flow", &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut from = Memory::new(&pair.a, Kind::Exported(0));
        let mut into = Memory::new(&pair.b, Kind::Exported(1));
        // SAFETY: it lies in the endpoint's block, which outlives the scope below.
        let shared: &Shared =
            unsafe { core::ptr::from_ref(&*pair.a.shared).as_ref() }.expect("shared");
        let (start, is_over) = (from.start, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let registers = scope.spawn(|| {
                on(0);
                let mut count = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let length = Bytes(4096 * (1 + count % 8));
                    // SAFETY: it stays until the thread has ended.
                    let region = unsafe { shared.register(start, length, MemoryKind::Cuda(0)) };
                    shared.deregister(region.expect("room for it")).expect("idle memory");
                    count += 1;
                }
                count
            });
            for _ in 0..20 {
                for bytes in SIZES {
                    exchange(&mut pair, &mut from, &mut into, bytes, false);
                }
            }
            is_over.store(true, Ordering::SeqCst);
            assert!(registers.join().expect("no panic") > 0);
        });
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
    });
}

/// A stream that holds no more makes the driver's call wait, and so its messages.
#[test]
fn messages_come_while_launch_queues_are_full() {
    let settings = [("CUDA_DOUBLE_QUEUE", "2"), ("CUDA_DOUBLE_DELAY_NS", "20000")];
    with_double("messages_come_while_launch_queues_are_full", &settings, || {
        on(0);
        for way in [Way::Pull, Way::Push] {
            messages(way, |_| {});
        }
        assert_nothing_lives();
    });
}

/// With PXN a rank registers memory of another rank's GPU, which it has imported.
#[test]
fn memory_of_another_ranks_gpu_moves_as_any_other() {
    with_double("memory_of_another_ranks_gpu_moves_as_any_other", &[], || {
        on(0);
        for way in [Way::Pull, Way::Push, Way::Tcp] {
            let mut pair = pair(way);
            let mut from = Memory::new(&pair.a, Kind::Imported(1));
            let mut into = Memory::new(&pair.b, Kind::Imported(0));
            for bytes in SIZES {
                exchange(&mut pair, &mut from, &mut into, bytes, false);
            }
            from.free(&pair.a);
            into.free(&pair.b);
            pair.close();
        }
        assert_nothing_lives();
    });
}

/// A GPU whose copies do not end is given 256 MiB of them; a short message goes on beside.
#[test]
fn bytes_on_their_way_between_gpus_are_bounded() {
    with_double("bytes_on_their_way_between_gpus_are_bounded", &[], || {
        const LONG: usize = 64 << 20;
        on(0);
        let mut pair = pair(Way::Pull);
        let [long, short] = [(pair.to_b, pair.to_a), joined(&mut pair.a, &mut pair.b)];
        let place = |gpu, shared: &Shared| {
            on(gpu);
            let start = alloc(LONG);
            // SAFETY: it stays as long as the endpoint.
            let region = unsafe { shared.register(start, Bytes::of(LONG), MemoryKind::Cuda(0)) };
            (start, region.expect("memory"))
        };
        let (from, into) = (place(0, &pair.a.shared), place(1, &pair.b.shared));
        let begin = |pair: &mut Pair, (to_b, to_a), bytes: usize| {
            let (length, tag) = (bytes as u64, 0);
            let room = Incoming { region: into.1, address: into.0, length, tag };
            let message = Outgoing { region: from.1, address: from.0, length, tag };
            let received = submitted(&mut pair.b, |node| node.irecv(to_a, &[room]));
            (submitted(&mut pair.a, |node| node.isend(to_b, message)), received)
        };
        let end = |pair: &mut Pair, requests| {
            assert_eq!(end(pair, requests).map(|it| it.result), [Ok(()); 2]);
        };
        for way in [long, short] {
            let first = begin(&mut pair, way, 4096);
            end(&mut pair, first); // all is mapped now
        }
        let posted = || control::calls("cuMemcpyDtoDAsync_v2");
        let before = posted();
        control::hold(0);
        let all: Vec<_> = (0..7).map(|_| begin(&mut pair, long, LONG)).collect();
        let poll = |pair: &mut Pair| (0..20_000).for_each(|_| pair.progress());
        poll(&mut pair);
        assert_eq!(posted() - before, 4, "copies of 64 MiB");
        let last = begin(&mut pair, short, 4096);
        poll(&mut pair);
        assert_eq!(posted() - before, 5, "the short one");
        control::release(0);
        all.into_iter().chain([last]).for_each(|it| end(&mut pair, it));
        pair.close();
    });
}

/// A copy within a GPU waits for a multiprocessor, and nothing waits for it.
#[test]
fn copies_from_other_gpus_pass_one_within_a_gpu_that_waits_for_its_kernels() {
    let test = "copies_from_other_gpus_pass_one_within_a_gpu_that_waits_for_its_kernels";
    with_double(test, &[], || {
        on(0);
        let mut pair = pair(Way::Pull);
        let mut other = joined(&mut pair.a, &mut pair.b);
        for kind in [Kind::Alloc, Kind::Exported] {
            let [mut near, mut far] = [1, 0].map(|gpu| Memory::new(&pair.a, kind(gpu)));
            let [mut into, mut beside] = [(); 2].map(|()| Memory::new(&pair.b, kind(1)));
            exchange(&mut pair, &mut near, &mut into, ROOM, false);
            near.fill(ROOM, 1);
            control::busy(1, true);
            let held: Vec<_> = (0..4).map(|_| begin_of(&mut pair, &near, &into, ROOM)).collect();
            swap(&mut pair, &mut other);
            for bytes in SIZES {
                exchange(&mut pair, &mut far, &mut beside, bytes, false);
            }
            let is_there = |pair: &mut Pair, received| pair.b.test(received).unwrap().is_some();
            assert!(!is_there(&mut pair, held[0].1), "its kernels hold all multiprocessors");
            control::busy(1, false);
            swap(&mut pair, &mut other);
            for requests in held {
                assert_eq!(end(&mut pair, requests).map(|it| it.result), [Ok(()); 2]);
            }
            assert!(into.holds(ROOM, 1));
            [near, far].into_iter().for_each(|memory| memory.free(&pair.a));
            [into, beside].into_iter().for_each(|memory| memory.free(&pair.b));
        }
        pair.close();
        assert_nothing_lives();
    });
}
