//! What the test double of the CUDA driver and a real driver answer alike.
//!
//! Here the tests run on the double. `XTIE_CUDA_REAL=1 cargo test --test cuda_facts` runs them on
//! the driver of a host with a GPU. The codes are those of an H200 with driver 580 (2026-11-28).

mod cuda_support;

use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_driver;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};

const CONTEXT_IS_DESTROYED: u32 = 709;
const READ: u32 = 1;
/// Bytes of two pages.
const PAGES: usize = 8192;

/// Memory that is mapped, without access.
fn unreachable(access: u32) -> u64 {
    let start = out(|start| cuMemAddressReserve(start, BLOCK, 0, 0, 0));
    ok(cuMemMap(start, BLOCK, 0, create(0, POSIX, BLOCK), 0));
    if access != 0 {
        let access = Access { place: [1, 0], flags: access };
        ok(cuMemSetAccess(start, BLOCK, &raw const access, 1));
    }
    start
}

/// New pages of the host.
fn pages(protection: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the system likes.
    let at = unsafe { libc::mmap(null_mut(), PAGES, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[test]
fn calls_without_a_context() {
    with_driver("calls_without_a_context", || {
        assert_eq!(cuMemAlloc_v2(&mut 0, 8), NOT_INITIALIZED);
        ok(cuInit(0));
        assert_eq!(cuMemAlloc_v2(&mut 0, 8), INVALID_CONTEXT);
        ok(cuMemRelease(create(0, POSIX, BLOCK)));
        let context = on(0);
        ok(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
        ok(cuCtxPushCurrent_v2(context));
        assert_eq!(cuMemAlloc_v2(&mut 0, 8), CONTEXT_IS_DESTROYED);
    });
}

#[test]
fn attributes_of_each_kind_of_memory() {
    with_driver("attributes_of_each_kind_of_memory", || {
        let context = on(0) as u64;
        let mapped = map(create(0, POSIX, BLOCK), 0, BLOCK);
        let pool: u64 = out(|start| cuMemAllocAsync(start, 4096, 0));
        let host: u64 = out(|start| cuMemAllocHost_v2(start, 4096));
        let device = alloc(4096);
        // context, type, managed, GPU, legacy handles, mapped, handle types, access
        type Told = (u64, u32, bool, i32, bool, bool, u64, u32);
        let told = |at| -> Told {
            let first = (attribute(at, 1), attribute(at, 2), attribute(at, 8), attribute(at, 9));
            let second = (attribute(at, 10), attribute(at, 13), attribute(at, 14));
            let access = attribute(at, 16);
            (first.0, first.1, first.2, first.3, second.0, second.1, second.2, access)
        };
        assert_eq!(told(device + 8), (context, 2, false, 0, true, true, 0, 3));
        assert_eq!(told(mapped + 8), (0, 2, false, 0, false, true, 1, 3));
        assert_eq!(told(unreachable(0)), (0, 2, false, 0, false, true, 1, 0));
        assert_eq!(told(pool + 8), (0, 2, false, 0, false, true, 0, 3));
        assert_eq!(told(host + 8), (context, 1, false, 0, false, true, 0, 3));
        let pools = [device, mapped, pool, host].map(|at| attribute::<u64>(at, 17) != 0);
        assert_eq!(pools, [false, false, true, false]);
        assert_eq!([device, mapped].map(|at| attribute::<bool>(at, 15)), [true, false], "RDMA");
        let range = |at| (attribute::<u64>(at, 11), attribute::<u64>(at, 12));
        assert_eq!(range(device + 8), (device, 4096));
        assert_eq!(range(mapped + 8), (mapped, BLOCK as u64));
        let reserved = out(|start| cuMemAddressReserve(start, BLOCK, 0, 0, 0));
        for unknown in [reserved, pages(BOTH) as u64] {
            for attribute in [2, 11, 13] {
                let mut value = 0_u64;
                let code = cuPointerGetAttribute((&raw mut value).cast(), attribute, unknown);
                assert_eq!(code, INVALID_VALUE, "attribute {attribute}");
            }
        }
    });
}

#[test]
fn exports_and_imports() {
    with_driver("exports_and_imports", || {
        on(0);
        let kinds = |handle_types, bytes| {
            let wanted = Wanted { kind: 1, handle_types, place: [1, 0], rest: [0; 2] };
            cuMemCreate(&mut 0, bytes, &raw const wanted, 0)
        };
        assert_eq!([kinds(8, BLOCK), kinds(9, BLOCK)], [NOT_PERMITTED; 2], "fabric");
        assert_eq!([kinds(1, 1000), kinds(1, 0)], [INVALID_VALUE; 2]);
        let (none, posix) = (create(0, 0, BLOCK), create(0, POSIX, BLOCK));
        let (hidden, start) = (map(none, 0, BLOCK), map(posix, 0, BLOCK));
        assert_eq!(cuMemExportToShareableHandle(&mut -1, none, POSIX, 0), INVALID_VALUE);
        assert_eq!(out(|handle| cuMemRetainAllocationHandle(handle, start + 9)), posix);
        let device = alloc(4096);
        assert_eq!(cuMemRetainAllocationHandle(&mut 0, device), INVALID_VALUE);
        let file = std::fs::File::open("/dev/null").unwrap();
        let dma_buf: i32 = out(|out| cuMemGetHandleForAddressRange(out, hidden, 4096, 1, 0));
        for descriptor in [file.as_raw_fd(), dma_buf, 9999] {
            let code = cuMemImportFromShareableHandle(&mut 0, descriptor as usize, POSIX);
            assert_eq!(code, UNKNOWN);
        }
        let dma_buf = |at, bytes| cuMemGetHandleForAddressRange(&mut -1, at, bytes, 1, 0);
        ok(dma_buf(start + 4096, 8192));
        assert_eq!([dma_buf(start + 8, 4096), dma_buf(start, 100)], [INVALID_VALUE; 2]);
        let mut handle = IpcHandle::default();
        assert_eq!(cuIpcGetMemHandle(&raw mut handle, start), INVALID_VALUE);
        ok(cuIpcGetMemHandle(&raw mut handle, device + 8));
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 1), INVALID_CONTEXT, "its own");
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, handle, 0), INVALID_VALUE);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut 0, IpcHandle::default(), 1), INVALID_VALUE);
        assert_eq!(cuIpcCloseMemHandle(device), INVALID_VALUE);
    });
}

#[test]
fn mappings() {
    with_driver("mappings", || {
        on(0);
        let start = out(|start| cuMemAddressReserve(start, 2 * BLOCK, 0, 0, 0));
        let [one, two] = [(); 2].map(|()| create(0, POSIX, BLOCK));
        let (big, second) = (create(0, POSIX, 2 * BLOCK), start + BLOCK as u64);
        let access = |bytes, gpu, flags| {
            let access = Access { place: [1, gpu], flags };
            cuMemSetAccess(start, bytes, &raw const access, 1)
        };
        ok(cuMemMap(start, BLOCK, 0, one, 0));
        assert_eq!(cuMemMap(start, BLOCK, 0, two, 0), INVALID_VALUE, "mapped already");
        assert_eq!(cuMemMap(second, BLOCK, 0, big, 0), NOT_SUPPORTED, "a part");
        assert_eq!(cuMemMap(second, BLOCK, BLOCK, big, 0), NOT_SUPPORTED, "an offset");
        assert_eq!(access(2 * BLOCK, 0, READ_WRITE), INVALID_VALUE, "half is not mapped");
        ok(cuMemMap(second, BLOCK, 0, two, 0));
        assert_eq!(access(BLOCK / 2, 0, READ_WRITE), INVALID_VALUE);
        ok(access(2 * BLOCK, 0, READ_WRITE));
        assert_eq!([access(BLOCK, 9, 3), access(BLOCK, 0, 2)], [INVALID_VALUE; 2]);
        assert_eq!(cuMemUnmap(start, BLOCK / 2), INVALID_VALUE);
        assert_eq!(cuMemAddressFree(start, 2 * BLOCK), INVALID_VALUE, "still mapped");
        ok(cuMemUnmap(start, 2 * BLOCK));
        ok(cuMemUnmap(start, 2 * BLOCK));
        assert_eq!(cuMemAddressFree(start, BLOCK), INVALID_VALUE);
        ok(cuMemAddressFree(start, 2 * BLOCK));
        ok(cuMemRelease(one));
        assert_eq!(cuMemRelease(one), INVALID_VALUE);
        assert_eq!(cuMemAddressReserve(&mut 0, 1000, 0, 0, 0), INVALID_VALUE);
    });
}

#[test]
fn host_memory() {
    with_driver("host_memory", || {
        on(0);
        let register = |at, flags, bytes| cuMemHostRegister_v2(at, bytes, flags);
        let device = with_exposed_provenance_mut(alloc(4096) as usize);
        let read_only = pages(libc::PROT_READ);
        for at in [device, null_mut(), read_only, pages(libc::PROT_NONE)] {
            assert_eq!(register(at, 3, 64), INVALID_VALUE);
        }
        ok(register(read_only, 3 | 8, 64));
        let host = pages(BOTH);
        assert_eq!([register(host, 16, 64), register(host, 3, 0)], [INVALID_VALUE; 2]);
        ok(register(host, 3, PAGES));
        assert_eq!([register(host, 3, 64), register(host, 3, PAGES)], [ALREADY_REGISTERED; 2]);
        let inside = host.wrapping_add(8);
        assert_eq!(out(|at| cuMemHostGetDevicePointer_v2(at, inside, 0)), inside as u64);
        ok(cuMemGetAddressRange_v2(&mut 0, &mut 0, inside as u64));
        assert_eq!(cuMemHostUnregister(inside), INVALID_VALUE);
        assert_eq!(cuMemFreeHost(host as u64), INVALID_VALUE);
        ok(cuMemHostUnregister(host));
    });
}

#[test]
fn copies() {
    with_driver("copies", || {
        on(0);
        let (stream, to, from, freed) = (stream(), alloc(4096), alloc(4096), alloc(64 << 20));
        ok(cuMemFree_v2(freed));
        let (hidden, read_only) = (unreachable(0), unreachable(READ));
        let unknown = pages(BOTH) as u64;
        let copy = |to, from, bytes| cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
        let wrong = [
            ("over the end", to, from, 4097),
            ("far over the end", to, from, 5 << 20),
            ("from freed memory", to, freed, 8),
            ("to freed memory", freed, from, 8),
            ("from memory without access", to, hidden, 8),
            ("to memory without access", hidden, from, 8),
            ("to memory that may be read alone", read_only, from, 8),
            ("from host memory", to, unknown, 8),
        ];
        for (what, to, from, bytes) in wrong {
            assert_eq!(copy(to, from, bytes), INVALID_VALUE, "{what}");
        }
        ok(cuMemcpyAsync(to, unknown, 64, stream));
        ok(batch(stream, &[(to, unknown, 64), (unknown, from, 64)]));
        for (what, to, from, bytes) in [wrong[1], wrong[4], wrong[6]] {
            assert_eq!(batch(stream, &[(to, from, bytes)]), INVALID_VALUE, "{what}");
        }
        assert_eq!(batch(stream, &[(to, from, 0)]), INVALID_VALUE, "no bytes");
        assert_eq!([0, 1].map(|legacy| batch(legacy, &[(to, from, 8)])), [INVALID_VALUE; 2]);
        for order in [0, 9] {
            let (how, at, bytes) = (How { order, ..How::default() }, 0, 8);
            let code = cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &how, &at, 1, stream);
            assert_eq!(code, INVALID_VALUE, "order {order}");
        }
        ok(cuStreamSynchronize(stream));
    });
}

#[test]
fn words_of_streams() {
    with_driver("words_of_streams", || {
        on(0);
        let (stream, memory, freed) = (stream(), alloc(4096), alloc(64 << 20));
        ok(cuMemFree_v2(freed));
        let post = |word: WordOp| cuStreamBatchMemOp_v2(stream, 1, &raw const word, 0);
        for wrong in [memory + 4, freed, unreachable(0), pages(BOTH) as u64] {
            assert_eq!(post(word(wrong, 1)), INVALID_VALUE);
        }
        assert_eq!(post(WordOp { flags: 1, ..word(memory, 1) }), INVALID_VALUE, "no barrier");
        assert_eq!(post(WordOp { operation: 3, ..word(memory, 1) }), NOT_SUPPORTED, "a flush");
        assert_eq!(post(WordOp { operation: 9, ..word(memory, 1) }), INVALID_VALUE);
        let many = [word(memory, 1); 257];
        ok(cuStreamBatchMemOp_v2(stream, 0, null(), 0));
        ok(cuStreamBatchMemOp_v2(stream, 256, many.as_ptr(), 0));
        assert_eq!(cuStreamBatchMemOp_v2(stream, 257, many.as_ptr(), 0), INVALID_VALUE);
        ok(cuStreamSynchronize(stream));
        ok(cuStreamDestroy_v2(stream));
        assert_eq!(cuStreamQuery(stream), INVALID_CONTEXT);
    });
}

#[test]
fn frees() {
    with_driver("frees", || {
        on(0);
        let (memory, mapped) = (alloc(4096), map(create(0, POSIX, BLOCK), 0, BLOCK));
        let pool: u64 = out(|start| cuMemAllocAsync(start, 4096, 0));
        let host: u64 = out(|start| cuMemAllocHost_v2(start, 4096));
        assert_eq!([memory + 8, mapped, host].map(cuMemFree_v2), [INVALID_VALUE; 3]);
        ok(cuMemFree_v2(pool));
        ok(cuMemFree_v2(memory));
        assert_eq!(cuMemFree_v2(memory), INVALID_VALUE);
        ok(cuMemFree_v2(0));
        assert_eq!(cuMemAlloc_v2(&mut 0, 0), INVALID_VALUE);
    });
}
