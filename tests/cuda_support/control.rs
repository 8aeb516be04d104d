//! What tests tell the double, and ask of it: `tests/cuda-double/src/control.rs`.

use super::driver::find;
use std::ffi::{CString, c_char, c_int};

macro_rules! controls {
    ($($name:ident($($type:ty),*) -> $out:ty;)*) => { $(
        fn $name() -> unsafe extern "C" fn($($type),*) -> $out {
            // SAFETY: the double's function of this name has this type.
            unsafe { std::mem::transmute(find(stringify!($name))) }
        }
    )* };
}

controls! {
    double_hold(usize) -> u32;
    double_hold_words(usize) -> u32;
    double_release(usize) -> u32;
    double_stream(usize) -> usize;
    double_stream_gpu(usize) -> c_int;
    double_busy(c_int, bool) -> ();
    double_spin(c_int, bool) -> u32;
    double_fail(*const c_char, u64, u32) -> ();
    double_lose(c_int) -> ();
    double_limit(c_int, usize) -> ();
    double_deny(c_int, c_int, bool) -> ();
    double_attribute(c_int, u32, c_int) -> ();
    double_capture(bool) -> ();
    double_captures_broken() -> u64;
    double_calls(*const c_char) -> u64;
    double_calls_reset() -> ();
    double_live(*const c_char) -> u64;
    double_bytes(*const c_char) -> u64;
    double_copies(*const c_char) -> u64;
    double_faults() -> u64;
    double_view(u64) -> usize;
    double_read(u64, *mut u8, usize) -> u32;
    double_write(u64, *const u8, usize) -> u32;
}

fn name(text: &str) -> CString {
    CString::new(text).expect("no zero")
}

/// Holds a stream, or all of them (0): nothing is carried out there any more.
pub fn hold(stream: usize) {
    // SAFETY: takes a number.
    assert_eq!(unsafe { double_hold()(stream) }, 0, "no such stream");
}

/// Holds the words of a stream, or of all that live (0): markers are late.
pub fn hold_words(stream: usize) {
    // SAFETY: takes a number.
    assert_eq!(unsafe { double_hold_words()(stream) }, 0, "no such stream");
}

/// Lets a stream go on, or all of them (0).
pub fn release(stream: usize) {
    // SAFETY: takes a number.
    assert_eq!(unsafe { double_release()(stream) }, 0, "no such stream");
}

/// The streams that live, in the order in which they were made.
pub fn streams() -> Vec<usize> {
    // SAFETY: takes a number.
    (0..).map(|at| unsafe { double_stream()(at) }).take_while(|stream| *stream != 0).collect()
}

/// The GPU of a stream.
pub fn gpu_of(stream: usize) -> i32 {
    // SAFETY: takes a number.
    let gpu = unsafe { double_stream_gpu()(stream) };
    assert!(gpu >= 0, "no such stream");
    gpu
}

/// Says whether all processors of a GPU are taken: copies within it must wait then.
pub fn busy(gpu: i32, busy: bool) {
    // SAFETY: takes numbers.
    unsafe { double_busy()(gpu, busy) }
}

/// Starts a kernel on the legacy stream of a GPU, which spins, or ends it.
pub fn spin(gpu: i32, spins: bool) {
    // SAFETY: takes numbers.
    assert_eq!(unsafe { double_spin()(gpu, spins) }, 0, "the GPU is lost");
}

/// Makes the `nth` next call of a function fail; 1 is the next one.
pub fn fail(function: &str, nth: u64, code: u32) {
    // SAFETY: a text that ends with a zero.
    unsafe { double_fail()(name(function).as_ptr(), nth, code) }
}

/// Makes a GPU lost.
pub fn lose(gpu: i32) {
    // SAFETY: takes a number.
    unsafe { double_lose()(gpu) }
}

/// Sets the bytes that this process may have of a GPU; 0: what the settings say.
pub fn limit(gpu: i32, bytes: usize) {
    // SAFETY: takes numbers.
    unsafe { double_limit()(gpu, bytes) }
}

/// Denies two GPUs access to each other, or allows it again.
pub fn deny(a: i32, b: i32, denied: bool) {
    // SAFETY: takes numbers.
    unsafe { double_deny()(a, b, denied) }
}

/// Sets an attribute of a GPU.
pub fn attribute(gpu: i32, attribute: u32, value: i32) {
    // SAFETY: takes numbers.
    unsafe { double_attribute()(gpu, attribute, value) }
}

/// Says whether another thread captures in the global mode.
pub fn capture(capturing: bool) {
    // SAFETY: takes a number.
    unsafe { double_capture()(capturing) }
}

/// Captures that calls have broken.
pub fn captures_broken() -> u64 {
    // SAFETY: takes nothing.
    unsafe { double_captures_broken()() }
}

/// Calls of a function.
pub fn calls(function: &str) -> u64 {
    // SAFETY: a text that ends with a zero.
    unsafe { double_calls()(name(function).as_ptr()) }
}

/// Calls of all functions.
pub fn calls_in_all() -> u64 {
    // SAFETY: no name.
    unsafe { double_calls()(std::ptr::null()) }
}

/// Counts calls from zero again.
pub fn calls_reset() {
    // SAFETY: takes nothing.
    unsafe { double_calls_reset()() }
}

/// Calls that allocate, free, map, register or wait.
const SLOW: &[&str] = &[
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventSynchronize",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocAsync",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Fails when a call since the last [`calls_reset`] has no place on a data path: it allocates,
/// frees, maps, registers or waits.
pub fn assert_no_slow_calls() {
    let counts = SLOW.iter().map(|name| (*name, calls(name)));
    let made: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    assert!(made.is_empty(), "{made:?}");
}

fn number(of: unsafe extern "C" fn(*const c_char) -> u64, what: &str) -> u64 {
    // SAFETY: a text that ends with a zero.
    let number = unsafe { of(name(what).as_ptr()) };
    assert_ne!(number, u64::MAX, "the double knows no {what}");
    number
}

/// How many of something live: `allocations`, `host_allocations`, `handles`, `mappings`,
/// `reservations`, `imports`, `registrations`, `streams`, `events`, `contexts`.
pub fn live(what: &str) -> u64 {
    number(double_live(), what)
}

/// Fails unless nothing lives that a library could have left behind. Contexts stay out: they are
/// the test's own, too.
pub fn assert_nothing_lives() {
    const WHAT: [&str; 9] = [
        "allocations",
        "host_allocations",
        "handles",
        "mappings",
        "reservations",
        "imports",
        "registrations",
        "streams",
        "events",
    ];
    let counts = WHAT.into_iter().map(|what| (what, live(what)));
    let left: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Bytes that went one way: `peer`, `same_device`, `device_to_host`, `host_to_device`,
/// `host_to_host`, `pageable`.
pub fn bytes(way: &str) -> u64 {
    number(double_bytes(), way)
}

/// Copies that went one way.
pub fn copies(way: &str) -> u64 {
    number(double_copies(), way)
}

/// Operations of streams that found their memory gone.
pub fn faults() -> u64 {
    // SAFETY: takes nothing.
    unsafe { double_faults()() }
}

/// Where the processor reaches the allocation around an address, from there on.
pub fn view(address: u64) -> *mut u8 {
    // SAFETY: takes a number.
    let view = unsafe { double_view()(address) };
    assert_ne!(view, 0, "no memory there");
    view as *mut u8
}

/// Reads memory, of devices too, without a call of the driver.
pub fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: room for as many bytes.
    assert_eq!(unsafe { double_read()(address, out.as_mut_ptr(), bytes) }, 0, "no memory there");
    out
}

/// Writes memory, of devices too, without a call of the driver.
pub fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as many bytes.
    let code = unsafe { double_write()(address, bytes.as_ptr(), bytes.len()) };
    assert_eq!(code, 0, "no memory there");
}
