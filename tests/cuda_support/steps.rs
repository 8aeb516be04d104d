//! Calls of the driver as tests usually make them: they must succeed.

use super::driver::*;
use std::sync::atomic::AtomicU64;

/// Codes of the driver.
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const OPERATING_SYSTEM: u32 = 304;
pub const NOT_INITIALIZED: u32 = 3;
pub const INVALID_CONTEXT: u32 = 201;
pub const PEER_UNSUPPORTED: u32 = 217;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_READY: u32 = 600;
pub const ILLEGAL_ADDRESS: u32 = 700;
pub const PEER_ENABLED: u32 = 704;
pub const ALREADY_REGISTERED: u32 = 712;
pub const NOT_REGISTERED: u32 = 713;
pub const NOT_PERMITTED: u32 = 800;
pub const NOT_SUPPORTED: u32 = 801;
pub const UNKNOWN: u32 = 999;
/// Bytes of an allocation that is mapped by hand.
pub const BLOCK: usize = 2 << 20;
/// A handle type: a descriptor.
pub const POSIX: u32 = 1;
pub const READ_WRITE: u32 = 3;

pub fn ok(code: u32) {
    assert_eq!(code, 0, "the code of a call");
}

/// What a call gives through its first argument.
pub fn out<T: Default>(call: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    ok(call(&raw mut value));
    value
}

/// Makes the primary context of a GPU the thread's.
pub fn on(gpu: i32) -> usize {
    ok(cuInit(0));
    let context = out(|context| cuDevicePrimaryCtxRetain(context, gpu));
    ok(cuCtxSetCurrent(context));
    context
}

pub fn alloc(bytes: usize) -> u64 {
    out(|start| cuMemAlloc_v2(start, bytes))
}

pub fn stream() -> usize {
    out(|stream| cuStreamCreateWithPriority(stream, 1, -5))
}

pub fn create(gpu: i32, handle_types: u32, bytes: usize) -> u64 {
    let wanted = Wanted { kind: 1, handle_types, place: [1, gpu], rest: [0; 2] };
    out(|handle| cuMemCreate(handle, bytes, &raw const wanted, 0))
}

/// Maps memory at an address of its own, for a GPU.
pub fn map(handle: u64, gpu: i32, bytes: usize) -> u64 {
    let start = out(|start| cuMemAddressReserve(start, bytes, 0, 0, 0));
    ok(cuMemMap(start, bytes, 0, handle, 0));
    let access = Access { place: [1, gpu], flags: READ_WRITE };
    ok(cuMemSetAccess(start, bytes, &raw const access, 1));
    start
}

/// Unmaps it, and gives its address back.
pub fn unmap(start: u64, bytes: usize) {
    ok(cuMemUnmap(start, bytes));
    ok(cuMemAddressFree(start, bytes));
}

/// A word that a stream writes.
pub fn word(address: u64, value: u64) -> WordOp {
    WordOp { operation: 5, address, value, ..WordOp::default() }
}

pub fn post(stream: usize, words: &[WordOp]) {
    ok(cuStreamBatchMemOp_v2(stream, words.len() as u32, words.as_ptr(), 0));
}

/// A batch of copies: target, source, bytes.
pub fn batch(stream: usize, copies: &[(u64, u64, usize)]) -> u32 {
    let to: Vec<u64> = copies.iter().map(|copy| copy.0).collect();
    let from: Vec<u64> = copies.iter().map(|copy| copy.1).collect();
    let bytes: Vec<usize> = copies.iter().map(|copy| copy.2).collect();
    let (how, first) = (How { order: 1, ..How::default() }, 0);
    let (to, from, bytes) = (to.as_ptr(), from.as_ptr(), bytes.as_ptr());
    cuMemcpyBatchAsync_v2(to, from, bytes, copies.len(), &how, &first, 1, stream)
}

pub fn attribute<T: Default>(address: u64, attribute: u32) -> T {
    out(|value: *mut T| cuPointerGetAttribute(value.cast(), attribute, address))
}

/// Host memory that streams know.
pub fn pinned(words: &[AtomicU64]) -> u64 {
    let start = words.as_ptr().cast_mut().cast();
    ok(cuMemHostRegister_v2(start, size_of_val(words), 3));
    out(|address| cuMemHostGetDevicePointer_v2(address, start, 0))
}

pub fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}
