//! The test double of the CUDA driver (`tests/cuda-double`) behaves as the library's tests need it.

mod cuda_support;

use crosstie::memory::cuda::{Batch, Export, Gpu, Import, Library, LoadError, Pinned, Stream};
use crosstie::memory::cuda::{post_word, vmm::create_exported};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::{control, with_double, with_old_double};
use std::os::fd::AsFd;
use std::process::Command;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Says which part a process plays, and with what.
const ROLE: &str = "CUDA_DOUBLE_ROLE";

/// Runs a test of this file in another process, under the double as well.
fn in_another_process(test: &str, role: &str) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.output().unwrap()
}

fn assert_success(done: &std::process::Output) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", done.status);
}

/// Plays its part for the test that shares memory.
#[test]
fn importer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let descriptor: usize = role.parse().unwrap();
    on(1);
    let handle = out(|handle| cuMemImportFromShareableHandle(handle, descriptor, POSIX));
    let start = map(handle, 1, BLOCK);
    ok(cuMemRelease(handle));
    let mut text = [0_u8; 5];
    ok(cuMemcpyDtoH_v2(text.as_mut_ptr(), start + 100, 5));
    assert_eq!(&text, b"hello");
    ok(cuMemcpyHtoD_v2(start + 200, b"world".as_ptr(), 5));
    assert_eq!(attribute::<i32>(start, 9), 0, "it lies on the exporter's GPU");
    ok(cuMemUnmap(start, BLOCK));
    ok(cuMemAddressFree(start, BLOCK));
    assert_eq!(["mappings", "handles", "reservations"].map(control::live), [0; 3]);
}

#[test]
fn two_processes_share_memory_through_an_exported_descriptor() {
    with_double("two_processes_share_memory_through_an_exported_descriptor", &[], || {
        on(0);
        let handle = create(0, POSIX, BLOCK);
        let start = map(handle, 0, BLOCK);
        let descriptor = out(|out| cuMemExportToShareableHandle(out, handle, POSIX, 0));
        // SAFETY: a descriptor of this test's; the other process inherits it.
        assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) }, 0);
        ok(cuMemcpyHtoD_v2(start + 100, b"hello".as_ptr(), 5));
        assert_success(&in_another_process("importer", &descriptor.to_string()));
        assert_eq!(control::read(start + 200, 5), b"world");
    });
}

/// Plays its part for the test of legacy handles.
#[test]
fn legacy_importer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    on(1);
    let words: Vec<u64> = role.split(',').map(|word| word.parse().unwrap()).collect();
    let handle = IpcHandle(words.try_into().unwrap());
    let start = out(|start| cuIpcOpenMemHandle_v2(start, handle, 1));
    assert_eq!(out(|start| cuIpcOpenMemHandle_v2(start, handle, 1)), start, "it is counted");
    assert_eq!(control::read(start + 8, 5), b"hello");
    control::write(start + 100, b"world");
    ok(cuIpcCloseMemHandle(start));
    assert_eq!(control::live("imports"), 1);
    ok(cuIpcCloseMemHandle(start));
    assert_eq!(cuIpcCloseMemHandle(start), INVALID_VALUE);
}

#[test]
fn memory_without_a_handle_is_shared_by_legacy_handles_alone() {
    with_double("memory_without_a_handle_is_shared_by_legacy_handles_alone", &[], || {
        on(0);
        let start = alloc(1000);
        let mut other = 0;
        assert_eq!(cuMemRetainAllocationHandle(&raw mut other, start), INVALID_VALUE);
        control::write(start + 8, b"hello");
        let handle: IpcHandle = out(|handle| cuIpcGetMemHandle(handle, start + 500));
        assert_eq!(cuIpcOpenMemHandle_v2(&raw mut other, handle, 1), INVALID_CONTEXT, "its own");
        let role = handle.0.map(|word| word.to_string()).join(",");
        assert_success(&in_another_process("legacy_importer", &role));
        assert_eq!(control::read(start + 100, 5), b"world");
        let mapped = map(create(0, 0, BLOCK), 0, BLOCK);
        let mut handle = IpcHandle::default();
        assert_eq!(cuIpcGetMemHandle(&raw mut handle, mapped), INVALID_VALUE);
    });
}

#[test]
fn memory_without_a_handle_type_cannot_be_exported_but_yields_a_dma_buf() {
    with_double(
        "memory_without_a_handle_type_cannot_be_exported_but_yields_a_dma_buf",
        &[],
        || {
            on(0);
            let handle = create(0, 0, BLOCK);
            let start = map(handle, 0, BLOCK);
            let mut descriptor = -1;
            let code = cuMemExportToShareableHandle(&raw mut descriptor, handle, POSIX, 0);
            assert_eq!((code, descriptor), (INVALID_VALUE, -1));
            let descriptor =
                out(|out: *mut i32| cuMemGetHandleForAddressRange(out, start + 4096, 8192, 1, 0));
            // SAFETY: a descriptor of this test's.
            assert_eq!(unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) }, 4096);
            let mut other = 0;
            let code = cuMemImportFromShareableHandle(&raw mut other, descriptor as usize, POSIX);
            assert_eq!(code, UNKNOWN, "a dma-buf is no handle");
            let mut import = |file| cuMemImportFromShareableHandle(&raw mut other, file, POSIX);
            assert_eq!((import(0), import(9999)), (UNKNOWN, UNKNOWN), "no memory of a GPU");
            control::attribute(0, 124, 0);
            let mut other = -1;
            assert_ne!(cuMemGetHandleForAddressRange(&raw mut other, start, 4096, 1, 0), 0);
        },
    );
}

#[test]
fn memory_stays_until_the_last_handle_and_mapping_goes() {
    let settings = [("CUDA_DOUBLE_MEMORY", "4194304")];
    with_double("memory_stays_until_the_last_handle_and_mapping_goes", &settings, || {
        on(0);
        let handle = create(0, POSIX, 2 * BLOCK);
        let wanted = Wanted { kind: 1, handle_types: POSIX, place: [1, 0], rest: [0; 2] };
        let mut other = 0;
        let mut full = || cuMemCreate(&raw mut other, BLOCK, &raw const wanted, 0);
        assert_eq!(full(), OUT_OF_MEMORY);
        let start = map(handle, 0, 2 * BLOCK);
        control::write(start, b"x");
        ok(cuMemRelease(handle));
        assert_eq!(control::live("handles"), 0);
        assert_eq!(full(), OUT_OF_MEMORY);
        assert_eq!(control::read(start, 1), b"x");
        let again = out(|again| cuMemRetainAllocationHandle(again, start + 5));
        ok(cuMemUnmap(start, 2 * BLOCK));
        assert_eq!(full(), OUT_OF_MEMORY);
        ok(cuMemRelease(again));
        ok(full());
    });
}

/// A processor touches device memory.
#[test]
fn toucher() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    on(0);
    let start = alloc(4096);
    let byte: *mut u8 = with_exposed_provenance_mut(start as usize);
    // SAFETY: it is not allowed, and ends the process: that is what the test is for.
    unsafe { byte.write_volatile(1) };
}

#[test]
fn processor_that_touches_device_memory_gets_a_signal() {
    with_double("processor_that_touches_device_memory_gets_a_signal", &[], || {
        let done = in_another_process("toucher", "touch");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&done.status),
            Some(libc::SIGSEGV)
        );
    });
}

#[test]
fn word_of_a_stream_comes_after_all_that_was_before_it() {
    let settings = [("CUDA_DOUBLE_DELAY_NS", "200000"), ("CUDA_DOUBLE_SEED", "7")];
    with_double("word_of_a_stream_comes_after_all_that_was_before_it", &settings, || {
        on(0);
        const BYTES: usize = 400_000;
        let (from, to, stream) = (alloc(BYTES), alloc(BYTES), stream());
        let markers = words(1);
        let marker = pinned(&markers);
        for round in 1..=20_u64 {
            control::write(from, &[round as u8; BYTES]);
            ok(cuMemcpyDtoDAsync_v2(to, from, BYTES, stream));
            post(stream, &[word(to, round), word(marker, round)]);
            while markers[0].load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
            let seen = control::read(to, BYTES);
            assert_eq!(seen[..8], round.to_le_bytes());
            assert!(seen[8..].iter().all(|byte| *byte == round as u8), "round {round}");
        }
        ok(cuMemHostUnregister(markers.as_ptr().cast_mut().cast()));
    });
}

/// Later copies of a batch are often visible before earlier ones, and later pieces of a copy, too.
#[test]
fn copies_of_a_batch_have_no_order() {
    let settings = [("CUDA_DOUBLE_DELAY_NS", "400000")];
    with_double("copies_of_a_batch_have_no_order", &settings, || {
        on(0);
        let (from, to, stream) = (alloc(64), alloc(64), stream());
        control::write(from, &[1; 64]);
        let copies: Vec<_> = (0..8).map(|at| (to + 8 * at, from + 8 * at, 8)).collect();
        let mut orders = std::collections::BTreeSet::new();
        let mut rounds = 0;
        while orders.len() < 3 {
            rounds += 1;
            assert!(rounds < 1000, "copies have always the same order");
            control::write(to, &[0; 64]);
            ok(batch(stream, &copies));
            let first = loop {
                let seen = control::read(to, 64);
                if let Some(first) = (0..8).find(|at| seen[8 * at] == 1) {
                    break first;
                }
            };
            orders.insert(first);
            ok(cuStreamSynchronize(stream));
            assert_eq!(control::read(to, 64), [1; 64]);
        }
    });
}

/// Of CUDA 12.8: it says which copy has failed, or that no single one has.
#[test]
fn first_version_of_batches_copies_too_and_takes_sources_during_the_call() {
    let test = "first_version_of_batches_copies_too_and_takes_sources_during_the_call";
    with_double(test, &[], || {
        on(0);
        let (stream, memory) = (stream(), alloc(256));
        control::write(memory, &[1; 128]);
        let (to, from) = ([memory + 128, memory + 192], [memory, memory + 64]);
        let hows = [1, 2].map(|order| How { order, ..How::default() });
        let mut failed = 7;
        let mut post = |bytes: [usize; 2]| {
            let (to, from, hows) = (to.as_ptr(), from.as_ptr(), hows.as_ptr());
            let (bytes, first) = (bytes.as_ptr(), [0, 1]);
            let first = first.as_ptr();
            cuMemcpyBatchAsync(to, from, bytes, 2, hows, first, 2, &raw mut failed, stream)
        };
        control::hold(stream);
        ok(post([64, 64]));
        control::write(memory, &[2; 128]);
        control::release(stream);
        ok(cuStreamSynchronize(stream));
        let seen = control::read(memory + 128, 128);
        assert_eq!((seen[0], seen[64]), (2, 1), "in the stream's order, and during the call");
        assert_eq!(post([64, 4096]), INVALID_VALUE);
        assert_eq!(failed, usize::MAX);
    });
}

#[test]
fn long_copy_becomes_visible_in_pieces() {
    let settings = [("CUDA_DOUBLE_DELAY_NS", "2000000")];
    with_double("long_copy_becomes_visible_in_pieces", &settings, || {
        on(0);
        const BYTES: usize = 1 << 20;
        let (from, to, stream) = (alloc(BYTES), alloc(BYTES), stream());
        let mut out_of_order = false;
        for round in 1..=200_u8 {
            control::write(from, &vec![round; BYTES]);
            ok(cuMemcpyDtoDAsync_v2(to, from, BYTES, stream));
            while cuStreamQuery(stream) == NOT_READY && !out_of_order {
                let first = control::read(to, 1)[0];
                let last = control::read(to + BYTES as u64 - 1, 1)[0];
                out_of_order = first != round && last == round;
            }
            ok(cuStreamSynchronize(stream));
            assert!(control::read(to, BYTES).iter().all(|byte| *byte == round));
            if out_of_order {
                return;
            }
        }
        panic!("the last byte never came before the first");
    });
}

/// What a user does who frees memory while a kernel runs.
#[test]
fn free_waits_for_all_streams() {
    with_double("free_waits_for_all_streams", &[], || {
        let context = on(0);
        let (stream, to, other) = (stream(), alloc(64), alloc(64));
        control::hold(stream);
        post(stream, &[word(to, 1)]);
        let freed = std::thread::spawn(move || {
            ok(cuCtxSetCurrent(context));
            ok(cuMemFree_v2(other));
        });
        while control::calls("cuMemFree_v2") == 0 {
            std::thread::yield_now();
        }
        assert!(!freed.is_finished());
        assert_eq!(control::live("allocations"), 2);
        control::release(stream);
        freed.join().unwrap();
        assert_eq!(control::live("allocations"), 1);
        assert_eq!(control::read(to, 1), [1]);
    });
}

#[test]
fn kernel_on_the_legacy_stream_holds_blocking_streams_alone() {
    with_double("kernel_on_the_legacy_stream_holds_blocking_streams_alone", &[], || {
        on(0);
        let blocking = out(|stream| cuStreamCreateWithPriority(stream, 0, 0));
        let (own, to) = (stream(), alloc(64));
        control::spin(0, true);
        post(blocking, &[word(to, 1)]);
        post(own, &[word(to + 8, 1)]);
        ok(cuStreamSynchronize(own));
        assert_eq!((cuStreamQuery(blocking), cuStreamQuery(0)), (NOT_READY, NOT_READY));
        control::spin(0, false);
        ok(cuCtxSynchronize());
        assert_eq!(control::read(to, 1), [1]);
    });
}

#[test]
fn call_waits_while_the_queue_of_its_stream_is_full() {
    let settings = [("CUDA_DOUBLE_QUEUE", "2")];
    with_double("call_waits_while_the_queue_of_its_stream_is_full", &settings, || {
        let context = on(0);
        let (stream, to) = (stream(), alloc(64));
        control::hold(stream);
        post(stream, &[word(to, 1)]);
        post(stream, &[word(to, 2)]);
        control::calls_reset();
        let third = std::thread::spawn(move || {
            ok(cuCtxSetCurrent(context));
            post(stream, &[word(to, 3)]);
        });
        while control::calls("cuStreamBatchMemOp_v2") == 0 {
            std::thread::yield_now();
        }
        assert!(!third.is_finished());
        control::release(stream);
        third.join().unwrap();
        ok(cuStreamSynchronize(stream));
        assert_eq!(control::read(to, 1), [3]);
    });
}

#[test]
fn gpus_without_access_to_each_other_refuse_mappings_and_peers() {
    let settings = [("CUDA_DOUBLE_DENY", "0-1")];
    let test = "gpus_without_access_to_each_other_refuse_mappings_and_peers";
    with_double(test, &settings, || {
        let peer = on(1);
        let handle = create(1, POSIX, BLOCK);
        on(0);
        assert_eq!(out(|can| cuDeviceCanAccessPeer(can, 0, 1)), 0);
        assert_eq!(out(|value| cuDeviceGetP2PAttribute(value, 2, 0, 1)), 0);
        assert_eq!(cuCtxEnablePeerAccess(peer, 0), PEER_UNSUPPORTED);
        let start = out(|start| cuMemAddressReserve(start, BLOCK, 0, 0, 0));
        ok(cuMemMap(start, BLOCK, 0, handle, 0));
        let access = |gpu| Access { place: [1, gpu], flags: READ_WRITE };
        assert_ne!(cuMemSetAccess(start, BLOCK, &access(0), 1), 0);
        ok(cuMemSetAccess(start, BLOCK, &access(1), 1));
        let flags = |gpu| out(|flags: *mut u64| cuMemGetAccess(flags, &[1, gpu], start));
        assert_eq!((flags(0), flags(1)), (0, 3));
        control::deny(0, 1, false);
        ok(cuCtxEnablePeerAccess(peer, 0));
        assert_eq!(cuCtxEnablePeerAccess(peer, 0), PEER_ENABLED);
    });
}

/// Fails under the double, by its name or another one.
#[test]
fn planted() {
    if let Ok(name) = std::env::var(ROLE) {
        with_double(&name, &[], || panic!("it fails"));
    }
}

#[test]
fn story_that_fails_and_a_name_that_is_no_test_are_noticed() {
    for (name, why) in [("planted", "it fails"), ("no_such_test", "is not the whole name")] {
        let done = in_another_process("planted", name);
        assert!(!done.status.success(), "{name}");
        assert!(String::from_utf8_lossy(&done.stderr).contains(why), "{name}");
    }
}

#[test]
fn stream_that_is_held_does_nothing_until_it_is_released() {
    with_double("stream_that_is_held_does_nothing_until_it_is_released", &[], || {
        on(0);
        let (held, other, to) = (stream(), stream(), alloc(64));
        assert_eq!(control::streams(), [held, other]);
        assert_eq!(control::gpu_of(other), 0);
        control::hold(held);
        post(held, &[word(to, 1)]);
        post(other, &[word(to + 8, 2)]);
        ok(cuStreamSynchronize(other));
        assert_eq!(control::read(to, 16), [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(cuStreamQuery(held), NOT_READY);
        control::release(held);
        ok(cuStreamSynchronize(held));
        assert_eq!(control::read(to, 1), [1]);
        control::hold(0);
        let later = stream();
        post(later, &[word(to, 3)]);
        assert_eq!(cuStreamQuery(later), NOT_READY);
        control::release(0);
        ok(cuCtxSynchronize());
        assert_eq!(control::read(to, 1), [3]);
    });
}

#[test]
fn words_that_are_held_come_late_and_copies_before_them_do_not() {
    with_double("words_that_are_held_come_late_and_copies_before_them_do_not", &[], || {
        on(0);
        let (stream, from, to) = (stream(), alloc(64), alloc(64));
        control::write(from, &[4; 64]);
        control::hold_words(stream);
        ok(cuMemcpyDtoDAsync_v2(to, from, 64, stream));
        post(stream, &[word(to, 1)]);
        while control::bytes("same_device") == 0 {
            std::thread::yield_now();
        }
        assert_eq!((cuStreamQuery(stream), control::read(to, 1)), (NOT_READY, vec![4]));
        control::release(stream);
        ok(cuStreamSynchronize(stream));
        assert_eq!(control::read(to, 1), [1]);
    });
}

#[test]
fn wrong_calls_have_the_codes_of_the_driver() {
    with_double("wrong_calls_have_the_codes_of_the_driver", &[], || {
        let mut start = 0;
        assert_eq!(cuMemAlloc_v2(&raw mut start, 8), NOT_INITIALIZED);
        ok(cuInit(0));
        assert_eq!(cuMemAlloc_v2(&raw mut start, 8), INVALID_CONTEXT);
        on(0);
        assert_eq!(cuMemAlloc_v2(&raw mut start, 0), INVALID_VALUE);
        let (memory, stream) = (alloc(1024), stream());
        let other = alloc(1024);
        assert_eq!(cuMemcpyDtoDAsync_v2(memory, other, 1024, 0x1234), INVALID_HANDLE);
        assert_eq!(cuMemcpyDtoDAsync_v2(memory, other, 1025, stream), INVALID_VALUE);
        assert_eq!(cuMemcpyDtoDAsync_v2(memory + 1, other, 1024, stream), INVALID_VALUE);
        assert_eq!(batch(stream, &[(memory, other, 8), (memory, other + 1020, 8)]), INVALID_VALUE);
        assert_eq!(batch(0, &[(memory, other, 8)]), INVALID_VALUE, "the legacy stream");
        ok(cuMemFree_v2(other));
        assert_eq!(cuMemFree_v2(other), INVALID_VALUE);
        assert_eq!(cuMemFree_v2(memory + 8), INVALID_VALUE);
        assert_eq!(cuMemcpyDtoDAsync_v2(memory, other, 8, stream), INVALID_VALUE);
        assert_eq!(cuMemcpyAsync(memory, other, 8, stream), INVALID_VALUE);
        let post = |word: WordOp| cuStreamBatchMemOp_v2(stream, 1, &raw const word, 0);
        assert_eq!(post(word(memory + 4, 1)), INVALID_VALUE, "not aligned");
        assert_eq!(post(WordOp { flags: 1, ..word(memory, 1) }), INVALID_VALUE, "no barrier");
        assert_eq!(post(WordOp { operation: 3, ..word(memory, 1) }), NOT_SUPPORTED, "a flush");
        ok(cuStreamDestroy_v2(stream));
        assert_eq!(cuStreamQuery(stream), INVALID_CONTEXT, "it was destroyed");
        assert_ne!(alloc(1024), other, "addresses are not used again");
    });
}

#[test]
fn mapping_needs_access_and_whole_ranges() {
    with_double("mapping_needs_access_and_whole_ranges", &[], || {
        on(0);
        let stream = stream();
        let start = out(|start| cuMemAddressReserve(start, 2 * BLOCK, 0, 0, 0));
        let (one, two) = (create(0, POSIX, BLOCK), create(1, POSIX, BLOCK));
        ok(cuMemMap(start, BLOCK, 0, one, 0));
        assert_eq!(cuMemcpyDtoDAsync_v2(start, start + 64, 8, stream), INVALID_VALUE, "no access");
        let access = Access { place: [1, 0], flags: READ_WRITE };
        let set = |bytes| cuMemSetAccess(start, bytes, &raw const access, 1);
        assert_eq!(set(2 * BLOCK), INVALID_VALUE, "a part is not mapped");
        ok(set(BLOCK));
        ok(cuMemcpyDtoDAsync_v2(start, start + 64, 8, stream));
        ok(cuMemMap(start + BLOCK as u64, BLOCK, 0, two, 0));
        ok(set(2 * BLOCK));
        let seam = start + BLOCK as u64 - 8;
        control::write(seam, &[5; 16]);
        ok(cuMemcpyDtoDAsync_v2(start, seam, 16, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(control::read(start, 16), [5; 16], "two mappings side by side");
        assert_eq!(attribute::<u64>(seam + 8, 11), start + BLOCK as u64);
        assert_eq!((attribute::<i32>(seam, 9), attribute::<i32>(seam + 8, 9)), (0, 1));
        let big = create(0, POSIX, 2 * BLOCK);
        assert_eq!(cuMemMap(start, BLOCK, 0, big, 0), NOT_SUPPORTED, "a part of an allocation");
        assert_eq!(cuMemMap(start, BLOCK, 0, two, 0), INVALID_VALUE, "mapped already");
        assert_eq!(cuMemUnmap(start, BLOCK / 2), INVALID_VALUE);
        assert_eq!(cuMemAddressFree(start, 2 * BLOCK), INVALID_VALUE, "still mapped");
        control::deny(0, 1, true);
        assert_ne!(set(2 * BLOCK), 0, "no access to the other GPU");
        ok(cuMemUnmap(start, 2 * BLOCK));
        ok(cuMemUnmap(start, 2 * BLOCK));
        ok(cuMemAddressFree(start, 2 * BLOCK));
        let wanted = Wanted { kind: 1, handle_types: 8, place: [1, 0], rest: [0; 2] };
        assert_eq!(cuMemCreate(&mut 0, BLOCK, &raw const wanted, 0), NOT_PERMITTED, "fabric");
    });
}

#[test]
fn host_memory_is_registered_once_and_copies_of_other_host_memory_are_counted() {
    let test = "host_memory_is_registered_once_and_copies_of_other_host_memory_are_counted";
    with_double(test, &[], || {
        on(0);
        let (memory, stream) = (alloc(4096), stream());
        let mut host = vec![9_u8; 4096];
        let at = host.as_mut_ptr();
        assert_eq!(cuMemHostRegister_v2(null_mut(), 64, 3), INVALID_VALUE);
        ok(cuMemHostRegister_v2(at, 4096, 3));
        assert_eq!(cuMemHostRegister_v2(at, 64, 3), ALREADY_REGISTERED);
        ok(cuMemcpyHtoDAsync_v2(memory, at, 4096, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!((control::bytes("host_to_device"), control::bytes("pageable")), (4096, 0));
        ok(cuMemHostUnregister(at));
        assert_eq!(cuMemHostUnregister(at), NOT_REGISTERED);
        ok(cuMemcpyDtoHAsync_v2(at, memory, 100, stream));
        assert_eq!(control::bytes("pageable"), 100, "done on return");
        assert_eq!(cuMemHostRegister_v2(with_exposed_provenance_mut(memory as usize), 64, 3), 1);
        let locked: u64 = out(|start| cuMemAllocHost_v2(start, 64));
        assert_eq!(attribute::<u32>(locked, 2), 1, "host memory");
        ok(cuMemcpyAsync(locked, memory, 64, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!((control::bytes("device_to_host"), control::bytes("pageable")), (164, 100));
        ok(cuMemFreeHost(locked));
    });
}

#[test]
fn every_kind_of_memory_is_told_apart_by_its_attributes() {
    with_double("every_kind_of_memory_is_told_apart_by_its_attributes", &[], || {
        let context = on(1);
        let stream = stream();
        let (device, mapped) = (alloc(1000), map(create(1, POSIX, BLOCK), 1, BLOCK));
        let managed: u64 = out(|start| cuMemAllocManaged(start, 4096, 1));
        let pool: u64 = out(|start| cuMemAllocAsync(start, 4096, stream));
        // context, type, managed, GPU, legacy handles, mapped, handle types, pool
        type Told = (u64, u32, bool, i32, bool, bool, u64, bool);
        let told = |at| -> Told {
            let (legacy, is_mapped) = (attribute(at, 10), attribute(at, 13));
            let pool = attribute::<u64>(at, 17) != 0;
            let start = (attribute(at, 1), attribute(at, 2), attribute(at, 8), attribute(at, 9));
            (start.0, start.1, start.2, start.3, legacy, is_mapped, attribute(at, 14), pool)
        };
        let context = context as u64;
        assert_eq!(told(device + 9), (context, 2, false, 1, true, true, 0, false));
        assert_eq!(told(mapped + 9), (0, 2, false, 1, false, true, 1, false));
        assert_eq!(told(managed + 9), (context, 2, true, 1, false, true, 0, false));
        assert_eq!(told(pool + 9), (0, 2, false, 1, false, true, 0, true));
        assert_eq!(
            (attribute::<u64>(device + 9, 11), attribute::<u64>(device + 9, 12)),
            (device, 1024)
        );
        assert_ne!(attribute::<u64>(device, 7), attribute::<u64>(mapped, 7));
        let (mut kind, mut is_managed) = (7_u32, true);
        let outs = [(&raw mut kind).cast(), (&raw mut is_managed).cast()];
        let host = 5_u8;
        let address = (&raw const host) as u64;
        let code = cuPointerGetAttribute((&raw mut kind).cast(), 2, address);
        assert_eq!(code, INVALID_VALUE, "the driver does not know it");
        ok(cuPointerGetAttributes(2, [2, 8].as_ptr(), outs.as_ptr(), address));
        assert_eq!((kind, is_managed), (0, false));
        // SAFETY: managed memory is the processor's, too.
        unsafe { (managed as *mut u8).write(3) };
        assert_eq!(control::read(managed, 1), [3]);
        ok(cuMemFreeAsync(pool, stream));
        ok(cuStreamSynchronize(stream));
        assert_eq!(control::live("allocations"), 2);
    });
}

#[test]
fn call_fails_when_the_test_said_so_and_calls_are_counted() {
    let settings = [("CUDA_DOUBLE_FAIL", "cuMemAlloc_v2:2:2")];
    with_double("call_fails_when_the_test_said_so_and_calls_are_counted", &settings, || {
        on(0);
        let mut start = 0;
        let codes = [(); 3].map(|()| cuMemAlloc_v2(&raw mut start, 8));
        assert_eq!(codes, [0, OUT_OF_MEMORY, 0]);
        control::fail("cuMemFree_v2", 1, 999);
        assert_eq!((cuMemFree_v2(start), cuMemFree_v2(start)), (999, 0));
        assert_eq!((control::calls("cuMemAlloc_v2"), control::calls("cuMemFree_v2")), (3, 2));
        assert_eq!(control::live("allocations"), 1);
        control::calls_reset();
        assert_eq!(control::calls_in_all(), 0);
        control::limit(0, 1000);
        assert_eq!(cuMemAlloc_v2(&raw mut start, 512), OUT_OF_MEMORY);
    });
}

#[test]
fn lost_gpu_drops_its_queues_and_the_other_one_goes_on() {
    with_double("lost_gpu_drops_its_queues_and_the_other_one_goes_on", &[], || {
        let second = on(1);
        let (other, other_memory) = (stream(), alloc(64));
        on(0);
        let (lost, memory) = (stream(), alloc(64));
        control::hold(lost);
        post(lost, &[word(memory, 1)]);
        control::lose(0);
        assert_eq!(cuStreamSynchronize(lost), ILLEGAL_ADDRESS);
        control::release(lost);
        assert_eq!(cuStreamQuery(lost), ILLEGAL_ADDRESS);
        assert_eq!(cuMemAlloc_v2(&mut 0, 64), ILLEGAL_ADDRESS);
        assert_eq!(cuMemFree_v2(memory), ILLEGAL_ADDRESS);
        let mapped = map(create(0, 0, BLOCK), 0, BLOCK);
        ok(cuMemUnmap(mapped, BLOCK));
        assert_eq!(attribute::<u64>(memory, 11), memory, "attributes and mappings go on");
        assert_eq!(control::read(memory, 1), [0], "the word was dropped");
        ok(cuCtxPushCurrent_v2(second));
        post(other, &[word(other_memory, 1)]);
        ok(cuStreamSynchronize(other));
        assert_eq!(control::read(other_memory, 1), [1]);
    });
}

#[test]
fn memory_that_goes_before_its_copy_is_a_fault() {
    with_double("memory_that_goes_before_its_copy_is_a_fault", &[], || {
        on(0);
        let stream = stream();
        let (from, to) = (map(create(0, 0, BLOCK), 0, BLOCK), alloc(64));
        control::hold(stream);
        ok(cuMemcpyDtoDAsync_v2(to, from, 64, stream));
        ok(cuMemUnmap(from, BLOCK));
        assert_eq!(control::faults(), 0);
        control::release(stream);
        assert_eq!(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
        assert_eq!(control::faults(), 1);
    });
}

#[test]
fn copies_within_a_busy_gpu_wait_and_those_to_its_peer_do_not() {
    with_double("copies_within_a_busy_gpu_wait_and_those_to_its_peer_do_not", &[], || {
        on(1);
        let peer = alloc(64);
        on(0);
        let (within, across, memory) = (stream(), stream(), alloc(128));
        control::write(memory, &[6; 64]);
        control::busy(0, true);
        ok(cuMemcpyDtoDAsync_v2(memory + 64, memory, 64, within));
        ok(cuMemcpyDtoDAsync_v2(peer, memory, 64, across));
        ok(cuStreamSynchronize(across));
        assert_eq!((control::bytes("peer"), control::bytes("same_device")), (64, 0));
        assert_eq!(cuStreamQuery(within), NOT_READY);
        control::busy(0, false);
        ok(cuStreamSynchronize(within));
        assert_eq!((control::copies("peer"), control::copies("same_device")), (1, 1));
    });
}

#[test]
fn call_of_a_thread_that_is_not_relaxed_breaks_a_capture() {
    with_double("call_of_a_thread_that_is_not_relaxed_breaks_a_capture", &[], || {
        on(0);
        let stream = stream();
        control::capture(true);
        let mut mode = 2;
        ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(mode, 0);
        ok(cuStreamQuery(stream));
        ok(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!((mode, control::captures_broken()), (2, 0));
        assert_eq!((cuStreamQuery(stream), control::captures_broken()), (900, 1));
    });
}

#[test]
fn events_end_with_what_was_before_them() {
    with_double("events_end_with_what_was_before_them", &[], || {
        on(0);
        let (first, second, memory) = (stream(), stream(), alloc(64));
        let event = out(|event| cuEventCreate(event, 2));
        ok(cuEventQuery(event));
        control::hold(first);
        post(first, &[word(memory, 1)]);
        ok(cuEventRecord(event, first));
        ok(cuStreamWaitEvent(second, event, 0));
        post(second, &[word(memory, 2)]);
        assert_eq!((cuEventQuery(event), cuStreamQuery(second)), (NOT_READY, NOT_READY));
        control::release(first);
        ok(cuStreamSynchronize(second));
        ok(cuEventQuery(event));
        assert_eq!(control::read(memory, 1), [2]);
        ok(cuEventDestroy_v2(event));
        assert_eq!((cuEventQuery(event), control::live("events")), (INVALID_HANDLE, 0));
    });
}

#[test]
fn gpus_are_those_that_are_visible() {
    let settings = [("CUDA_DOUBLE_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "2,0,9,1")];
    with_double("gpus_are_those_that_are_visible", &settings, || {
        ok(cuInit(0));
        assert_eq!(out(cuDeviceGetCount), 2, "the list ends at a wrong entry");
        let uuid = |gpu| out(|uuid: *mut [u8; 16]| cuDeviceGetUuid_v2(uuid, gpu))[15];
        assert_eq!((uuid(0), uuid(1)), (2, 0));
        let mut text = [0; 32];
        ok(cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, 0));
        assert_eq!(
            text[..13].iter().map(|byte| *byte as u8).collect::<Vec<_>>(),
            b"0000:12:00.0\0"
        );
        assert_eq!(out(|can| cuDeviceCanAccessPeer(can, 0, 1)), 1);
        assert_eq!(out(|value| cuDeviceGetAttribute(value, 75, 0)), 9);
        assert_ne!(cuDeviceGetAttribute(&mut 0, 148, 0), 0, "atomic operations of streams");
        control::deny(0, 1, true);
        assert_eq!(out(|can| cuDeviceCanAccessPeer(can, 1, 0)), 0);
    });
}

/// Copies memory of GPU 0 to memory that is mapped for it, by the library's own functions.
fn move_by_the_library() {
    let library = Library::load().expect("the double");
    on(0);
    let gpu = Arc::new(Gpu::of_thread(library).unwrap());
    assert_eq!(gpu.uuid().unwrap()[..8], *b"\xc0\xdaDOUBLE");
    let entered = gpu.enter().unwrap();
    let descriptor = create_exported(&entered, BLOCK).unwrap();
    let import = Import::new(&gpu, descriptor.as_fd(), BLOCK).unwrap();
    let export = Export::of(&entered, import.start() + 64, BLOCK - 64).unwrap();
    assert_eq!((export.bytes, export.offset), (BLOCK, 64));
    let markers = words(1);
    let bytes = size_of_val(&markers[..]);
    // SAFETY: it lives as long as the registration.
    let pinned = unsafe { Pinned::new(&gpu, markers.as_ptr().cast_mut().cast(), bytes) }.unwrap();
    let (stream, memory, mut batch) = (Stream::new(&gpu).unwrap(), alloc(4096), Batch::new());
    control::write(memory, &[8; 4096]);
    control::calls_reset();
    assert!(batch.take(import.start(), memory, 1024));
    assert!(batch.take(import.start() + 2048, memory + 2048, 1024));
    // SAFETY: mapped until the test has seen the marker.
    unsafe { batch.post(&entered, &stream, |_, error| panic!("{error}")) };
    // SAFETY: as above.
    unsafe { post_word(&entered, &stream, pinned.device(), 7) }.unwrap();
    while markers[0].load(Ordering::Acquire) != 7 {
        std::thread::yield_now();
    }
    let seen = control::read(import.start(), 3072);
    assert!(seen[..1024].iter().chain(&seen[2048..]).all(|byte| *byte == 8));
    control::assert_no_slow_calls();
    ok(cuMemFree_v2(memory));
}

#[test]
fn library_runs_on_the_double() {
    with_double("library_runs_on_the_double", &[("CUDA_DOUBLE_DELAY_NS", "20000")], || {
        move_by_the_library();
        assert_eq!(control::calls("cuMemcpyBatchAsync_v2"), 1);
        control::assert_nothing_lives();
    });
}

#[test]
fn library_runs_on_an_old_driver_without_batches_and_kernels() {
    let test = "library_runs_on_an_old_driver_without_batches_and_kernels";
    with_old_double(test, &["cuMemcpyBatchAsync_v2"], &[], || {
        move_by_the_library();
        let library = Library::load().expect("the double");
        let missing = LoadError::Old("cuMemcpyBatchAsync_v2");
        assert_eq!(library.batches.err(), Some(missing));
        assert_eq!(library.kernels.err(), Some(LoadError::Old("cuModuleLoadData")));
        assert_eq!(control::calls("cuMemcpyDtoDAsync_v2"), 2);
    });
}

#[test]
fn library_needs_every_function_that_it_has_no_way_around() {
    let test = "library_needs_every_function_that_it_has_no_way_around";
    with_old_double(test, &["cuStreamBatchMemOp_v2"], &[], || {
        assert_eq!(Library::load().err(), Some(LoadError::Old("cuStreamBatchMemOp_v2")));
    });
}
