//! Memory that cannot be registered as memory of a GPU, over the test double of the CUDA driver:
//! each has the name of what is wrong with it, nothing is registered, and nothing is left behind.

mod cuda_support;
mod gpu_support;
mod host_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{MemoryKind, RegisterError};
use cuda_support::control::{self, assert_nothing_lives, live};
use cuda_support::driver::*;
use cuda_support::steps::*;
use cuda_support::with_double;
use gpu_support::{Kind, Memory, Way, exchange, pair};
use host_support::Node;
use host_support::pair::Pair;

/// More than there is room for regions.
const TIMES: usize = 300;
const NOTHING: [u64; 4] = [0; 4];

fn register(node: &Node, start: u64, bytes: usize) -> Result<Handle, RegisterError> {
    // SAFETY: nothing is sent.
    unsafe { node.shared.register(start, Bytes::of(bytes), MemoryKind::Cuda(0)) }
}

/// What a registration holds.
fn held() -> [u64; 4] {
    ["registrations", "streams", "imports", "handles"].map(live)
}

/// Refused as often as one tries, before a GPU is in use and while one is.
fn refused(start: u64, bytes: usize, error: RegisterError) {
    let pair = pair(Way::Pull);
    let others = held();
    // what is opened once is opened here
    assert_eq!(register(&pair.a, start, bytes), Err(error));
    let descriptors = host_support::descriptors();
    for _ in 0..TIMES {
        assert_eq!(register(&pair.a, start, bytes), Err(error));
    }
    // the pair's own threads may open and close some of theirs meanwhile
    assert!(host_support::descriptors() < descriptors + TIMES, "descriptors are left open");
    assert_eq!(held(), others);
    goes_on(pair);
}

/// Good memory can be registered, and used.
fn goes_on(mut pair: Pair) {
    let mut from = Memory::new(&pair.a, Kind::Exported(0));
    let mut into = Memory::new(&pair.b, Kind::Alloc(0));
    exchange(&mut pair, &mut from, &mut into, 4096, false);
    from.free(&pair.a);
    into.free(&pair.b);
    pair.close();
}

/// Mapped memory with that access.
fn with_access(gpu: i32, flags: u32) -> u64 {
    let handle = create(gpu, POSIX, BLOCK);
    let start = map(handle, gpu, BLOCK);
    let access = Access { place: [1, gpu], flags };
    ok(cuMemSetAccess(start, BLOCK, &raw const access, 1));
    ok(cuMemRelease(handle));
    start
}

#[test]
fn memory_of_the_host_is_no_memory_of_a_gpu() {
    with_double("memory_of_the_host_is_no_memory_of_a_gpu", &[], || {
        on(0);
        let host = [0u8; 64];
        refused(host.as_ptr() as u64, 64, RegisterError::Kind);
        let pinned = out(|start| cuMemAllocHost_v2(start, 4096));
        refused(pinned, 4096, RegisterError::Kind);
        ok(cuMemFreeHost(pinned));
        let managed = out(|start| cuMemAllocManaged(start, 4096, 1));
        refused(managed, 4096, RegisterError::Kind);
        ok(cuMemFree_v2(managed));
        assert_nothing_lives();
    });
}

/// The processor would touch it.
#[test]
fn memory_of_a_gpu_is_no_memory_of_the_host() {
    with_double("memory_of_a_gpu_is_no_memory_of_the_host", &[], || {
        on(0);
        let start = alloc(4096);
        let pair = pair(Way::Pull);
        for _ in 0..TIMES {
            // SAFETY: nothing is sent.
            let done = unsafe { pair.a.shared.register(start, Bytes(4096), MemoryKind::Host) };
            assert_eq!(done, Err(RegisterError::Kind));
        }
        assert_eq!(held(), NOTHING);
        goes_on(pair);
        ok(cuMemFree_v2(start));
        assert_nothing_lives();
    });
}

#[test]
fn freed_memory_is_refused() {
    with_double("freed_memory_is_refused", &[], || {
        on(0);
        let freed = alloc(4096);
        ok(cuMemFree_v2(freed));
        refused(freed, 4096, RegisterError::Kind);
        let unmapped = with_access(0, READ_WRITE);
        unmap(unmapped, BLOCK);
        refused(unmapped, BLOCK, RegisterError::Kind);
        assert_nothing_lives();
    });
}

#[test]
fn range_over_two_allocations_is_refused() {
    with_double("range_over_two_allocations_is_refused", &[("CUDA_DOUBLE_GAP", "0")], || {
        on(0);
        let [a, b] = [(); 2].map(|()| alloc(BLOCK));
        assert_eq!(a + BLOCK as u64, b, "one behind the other");
        refused(a + 4096, BLOCK, RegisterError::Range);
        refused(a, 2 * BLOCK, RegisterError::Range);
        // of cuMemCreate and of cuMemAlloc
        let mapped = with_access(0, READ_WRITE);
        let behind = alloc(BLOCK);
        assert_eq!(mapped + BLOCK as u64, behind, "one behind the other");
        refused(mapped, 2 * BLOCK, RegisterError::Range);
        [a, b, behind].into_iter().for_each(|start| ok(cuMemFree_v2(start)));
        unmap(mapped, BLOCK);
        assert_nothing_lives();
    });
}

#[test]
fn range_beyond_its_allocation_is_refused() {
    with_double("range_beyond_its_allocation_is_refused", &[], || {
        on(0);
        let start = alloc(4096);
        refused(start, 4097, RegisterError::Range);
        refused(start, 1 << 30, RegisterError::Range);
        refused(start, 0, RegisterError::Range);
        refused(u64::MAX - 8, 64, RegisterError::Range);
        // a hole between two mappings
        let handles = [(); 2].map(|()| create(0, POSIX, BLOCK));
        let mapped = out(|start| cuMemAddressReserve(start, 3 * BLOCK, 0, 0, 0));
        let access = Access { place: [1, 0], flags: READ_WRITE };
        let places = [mapped, mapped + 2 * BLOCK as u64];
        for (place, handle) in places.into_iter().zip(handles) {
            ok(cuMemMap(place, BLOCK, 0, handle, 0));
            ok(cuMemSetAccess(place, BLOCK, &raw const access, 1));
            ok(cuMemRelease(handle));
        }
        refused(mapped, 3 * BLOCK, RegisterError::Range);
        places.into_iter().for_each(|place| ok(cuMemUnmap(place, BLOCK)));
        ok(cuMemAddressFree(mapped, 3 * BLOCK));
        ok(cuMemFree_v2(start));
        assert_nothing_lives();
    });
}

/// Both ends lie on one GPU, and what is between them on another.
#[test]
fn range_with_memory_of_another_gpu_in_its_middle_is_refused() {
    with_double("range_with_memory_of_another_gpu_in_its_middle_is_refused", &[], || {
        on(0);
        let mapped = out(|start| cuMemAddressReserve(start, 3 * BLOCK, 0, 0, 0));
        let places = [0, 1, 2].map(|at| mapped + (at * BLOCK) as u64);
        for (place, gpu) in places.into_iter().zip([0, 1, 0]) {
            let handle = create(gpu, POSIX, BLOCK);
            ok(cuMemMap(place, BLOCK, 0, handle, 0));
            ok(cuMemRelease(handle));
        }
        for gpu in [0, 1] {
            let access = Access { place: [1, gpu], flags: READ_WRITE };
            ok(cuMemSetAccess(mapped, 3 * BLOCK, &raw const access, 1));
        }
        refused(mapped, 3 * BLOCK, RegisterError::Range);
        places.into_iter().for_each(|place| ok(cuMemUnmap(place, BLOCK)));
        ok(cuMemAddressFree(mapped, 3 * BLOCK));
        assert_nothing_lives();
    });
}

/// A copy into it would fail, and a copy engine's stream with it.
#[test]
fn memory_that_its_gpu_may_not_write_is_refused() {
    with_double("memory_that_its_gpu_may_not_write_is_refused", &[], || {
        const READ_ONLY: u32 = 1;
        on(0);
        for flags in [READ_ONLY, 0] {
            let start = with_access(0, flags);
            refused(start, BLOCK, RegisterError::Range);
            unmap(start, BLOCK);
        }
        assert_nothing_lives();
    });
}

#[test]
fn memory_of_a_gpu_that_is_gone_is_refused_with_the_drivers_code() {
    let test = "memory_of_a_gpu_that_is_gone_is_refused_with_the_drivers_code";
    with_double(test, &[], || {
        on(1);
        let lost = with_access(1, READ_WRITE);
        control::lose(1);
        let pair = pair(Way::Pull);
        for _ in 0..TIMES {
            let refused = register(&pair.a, lost, BLOCK);
            assert_eq!(refused, Err(RegisterError::Fabric(ILLEGAL_ADDRESS as i32)));
        }
        assert_eq!(held(), NOTHING);
        on(0);
        goes_on(pair);
    });
}

/// The library enters a context of its own, and not that of the memory.
#[test]
fn memory_of_another_context_moves_as_any_other() {
    with_double("memory_of_another_context_moves_as_any_other", &[], || {
        on(0);
        let context = out(|context| cuCtxCreate_v2(context, 0, 1));
        let mut pair = pair(Way::Pull);
        let mut from = Memory::in_this_context(&pair.a, Kind::Alloc(1));
        let mut popped = 0;
        ok(cuCtxPopCurrent_v2(&raw mut popped));
        assert_eq!(popped, context);
        let mut into = Memory::new(&pair.b, Kind::Exported(0));
        exchange(&mut pair, &mut from, &mut into, 70_000, false);
        exchange(&mut pair, &mut from, &mut into, 70_000, true);
        ok(cuCtxSetCurrent(context));
        from.free(&pair.a);
        into.free(&pair.b);
        pair.close();
        assert_nothing_lives();
        ok(cuCtxDestroy_v2(context));
    });
}
