//! What tests tell the double, and ask of it: functions of the same library, found by `dlsym`.
//!
//! They count for the calling process alone, and are never counted as calls of the driver.
//! Where one gives a number, `u64::MAX` says that it does not know the name.

use crate::api::live;
use crate::attributes;
use crate::backing;
use crate::calls::calls;
use crate::codes::Code;
use crate::context::{self, contexts, device};
use crate::copy::{self, FAULTS};
use crate::ranges::{Range, ranges};
use crate::settings::DEVICES_MAX;
use crate::stream;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;

/// The answer to a wrong name.
const UNKNOWN: u64 = u64::MAX;
/// Defines functions for tests.
macro_rules! control {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty $body:block)*)
        => { $(
        $(#[$about])*
        ///
        /// # Safety
        /// - names are texts that end with a zero; memory is valid for what is done with it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $out $body
    )* };
}

/// A name that a test gives.
fn text(name: *const c_char) -> &'static str {
    assert!(!name.is_null(), "a name");
    // SAFETY: a text of the test's, which stands during the call.
    unsafe { CStr::from_ptr(name) }.to_str().expect("a name")
}

fn code(answer: Result<(), Code>) -> Code {
    answer.err().unwrap_or(0)
}

/// A GPU by its ordinal, or a panic: the test is wrong.
fn gpu(ordinal: c_int) -> usize {
    device(ordinal).expect("a GPU that this process sees")
}

control! {
    /// Holds a stream, or all (null), also those that are made later: nothing is carried out there
    /// any more.
    fn double_hold(stream: usize) -> Code {
        code(stream::hold(stream))
    }

    /// Holds the words of a stream, or of all that live (null): markers are late, and what is
    /// before them is carried out.
    fn double_hold_words(stream: usize) -> Code {
        code(stream::hold_words(stream))
    }

    /// Lets a stream go on, or all (null).
    fn double_release(stream: usize) -> Code {
        code(stream::release(stream))
    }

    /// The stream at a place among those that live, in the order in which they were made; 0: none.
    fn double_stream(at: usize) -> usize {
        stream::handles().get(at).copied().unwrap_or(0)
    }

    /// The GPU of a stream that lives; -1: there is no such stream.
    fn double_stream_gpu(stream: usize) -> c_int {
        stream::device_of(stream).map_or(-1, context::ordinal)
    }

    /// Says that all processors of a GPU are taken, or no more: copies within it and fills must
    /// wait, as behind a kernel.
    fn double_busy(ordinal: c_int, busy: bool) -> () {
        stream::set_busy(gpu(ordinal), busy);
    }

    /// Starts a kernel on the legacy stream of a GPU's primary context, which spins, or ends it.
    /// Blocking streams of the GPU wait for it, and so do frees and synchronous copies.
    fn double_spin(ordinal: c_int, spins: bool) -> Code {
        let device = gpu(ordinal);
        let handle = contexts().retain(device);
        let released = contexts().release(device);
        code(released.and_then(|()| stream::spin(context::Context { handle, device }, spins)))
    }

    /// Makes the `nth` next call of a function fail with a code; 1 is the next one.
    fn double_fail(name: *const c_char, nth: u64, code: Code) -> () {
        calls().fail(text(name), nth, code);
    }

    /// Makes a GPU lost: its queues are dropped, and later calls on it fail with
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`. As driver 580 does it, those for mappings, contexts and
    /// attributes go on.
    fn double_lose(ordinal: c_int) -> () {
        context::lose(gpu(ordinal));
        stream::wake_all();
    }

    /// Sets the bytes that this process may have of a GPU; 0: what the settings say.
    fn double_limit(ordinal: c_int, bytes: usize) -> () {
        backing::set_limit(gpu(ordinal), bytes);
    }

    /// Denies two GPUs access to each other, or allows it again.
    fn double_deny(a: c_int, b: c_int, denied: bool) -> () {
        let (a, b) = (gpu(a), gpu(b));
        contexts().deny(a, b, denied);
    }

    /// Sets an attribute of a GPU. Dma-bufs are refused where attribute 124 is 0.
    fn double_attribute(ordinal: c_int, attribute: u32, value: c_int) -> () {
        attributes::set(gpu(ordinal), attribute, value);
    }

    /// Says that another thread captures in the global mode, or no more.
    fn double_capture(capturing: bool) -> () {
        calls().capturing = capturing;
    }

    /// Captures that calls have broken.
    fn double_captures_broken() -> u64 {
        calls().captures_broken
    }

    /// Calls of a function so far; null: of all functions.
    fn double_calls(name: *const c_char) -> u64 {
        let calls = calls();
        match name.is_null() {
            true => calls.counts().map(|(_, count)| count).sum(),
            false => calls.count(text(name)),
        }
    }

    /// Counts calls from zero again.
    fn double_calls_reset() -> () {
        calls().reset();
    }

    /// What lives: `allocations` (of devices, managed, of pools), `host_allocations`, `handles`,
    /// `mappings`, `reservations`, `imports`, `registrations`, `streams`, `events`, `contexts`.
    fn double_live(what: *const c_char) -> u64 {
        live(text(what)).unwrap_or(UNKNOWN)
    }

    /// Bytes that went one way: `peer`, `same_device`, `device_to_host`, `host_to_device`,
    /// `host_to_host`; and `pageable`, which are counted by their way, too.
    fn double_bytes(way: *const c_char) -> u64 {
        copy::moved(text(way)).map_or(UNKNOWN, |(bytes, _)| bytes)
    }

    /// Copies that went one way.
    fn double_copies(way: *const c_char) -> u64 {
        copy::moved(text(way)).map_or(UNKNOWN, |(_, copies)| copies)
    }

    /// Operations of streams that found their memory gone.
    fn double_faults() -> u64 {
        FAULTS.load(Ordering::SeqCst)
    }

    /// Where the processor reaches the allocation around an address, from there on; 0: nowhere.
    fn double_view(address: u64) -> usize {
        let ranges = ranges();
        let view = |range: &Range| {
            range.backing.view().wrapping_add((address - range.start) as usize) as usize
        };
        ranges.find(address).map_or(0, view)
    }

    /// Reads memory, of devices too, without a call of the driver.
    fn double_read(address: u64, out: *mut u8, bytes: usize) -> Code {
        code(peek(address, bytes, |memory, at, bytes| {
            // SAFETY: room of the test's, and a piece of live memory.
            unsafe { out.add(at).copy_from(memory, bytes) };
        }))
    }

    /// Writes memory, of devices too, without a call of the driver.
    fn double_write(address: u64, from: *const u8, bytes: usize) -> Code {
        code(peek(address, bytes, |memory, at, bytes| {
            // SAFETY: bytes of the test's, and a piece of live memory.
            unsafe { memory.copy_from(from.add(at), bytes) };
        }))
    }
}

/// Goes through known memory: address, place from the start, bytes.
fn peek(
    address: u64,
    bytes: usize,
    mut each: impl FnMut(*mut u8, usize, usize),
) -> Result<(), Code> {
    let any = context::Context { handle: 0, device: DEVICES_MAX - 1 };
    let pieces = ranges().pieces(address, bytes, any, 0)?.ok_or(crate::codes::INVALID_VALUE)?;
    let mut at = 0;
    for piece in pieces {
        each(piece.at, at, piece.bytes);
        at += piece.bytes;
    }
    Ok(())
}
