//! The library itself: versions and the log.

use crate::guard;
use crate::result::xtie_result::*;
use crate::text::{LOG_BYTES, Text};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::Write;
use crosstie::host::log;
use std::sync::{PoisonError, RwLock};

/// Version of this header: major.
pub const XTIE_VERSION_MAJOR: u32 = 0;
/// Version of this header: minor.
pub const XTIE_VERSION_MINOR: u32 = 1;
/// Version of this header: patch.
pub const XTIE_VERSION_PATCH: u32 = 0;
/// Steps when a program built with an older header would break; the shared library's name carries
/// it. Compare with xtie_abi_version().
pub const XTIE_ABI_VERSION: u32 = 0;
const VERSION_TEXT: &CStr = c"0.1.0";

/// Log level: something does not work.
pub const XTIE_LOG_ERROR: u32 = 1;
/// Log level: something works otherwise than was asked.
pub const XTIE_LOG_WARNING: u32 = 2;
/// Log level: what is going on, once per object.
pub const XTIE_LOG_INFO: u32 = 3;

/// Receives log messages: userdata as given to xtie_log_set, one of XTIE_LOG_, and a text that is
/// valid during the call: UTF-8 of 1280 bytes at most before its zero; what is longer is cut. It
/// may be called from any thread, and must not call the library.
pub type xtie_log_function =
    Option<unsafe extern "C" fn(userdata: *mut c_void, level: u32, text: *const c_char)>;

#[derive(Copy, Clone)]
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, u32, *const c_char),
    userdata: *mut c_void,
}

// SAFETY: the pointer is never followed here; the caller of `xtie_log_set` says that the function
// may be called with it from any thread.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

static CALLBACK: RwLock<Option<Callback>> = RwLock::new(None);

/// ---- Library -----------------------------------------------------------------------------------
///
/// The version of the library that the program runs with, as XTIE_VERSION.
///
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_version() -> u32 {
    XTIE_VERSION_MAJOR << 16 | XTIE_VERSION_MINOR << 8 | XTIE_VERSION_PATCH
}

/// The version as text, such as "0.1.0". A static string.
///
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_version_str() -> *const c_char {
    VERSION_TEXT.as_ptr()
}

/// The library's XTIE_ABI_VERSION; a program must not go on when it differs from its header's.
///
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_abi_version() -> u32 {
    XTIE_ABI_VERSION
}

/// Sends log messages of the whole process to a function of the caller's: those of all levels,
/// XTIE_LOG_INFO too, whatever CROSSTIE_LOG says; look at the level to leave some out. Before that,
/// messages go to standard error, as far as CROSSTIE_LOG says: warnings and errors by default.
///
/// userdata: handed to each call, otherwise not looked at; may be NULL.
/// function: NULL restores standard error. A call that is under way in another thread may still
///     end after this function returned.
/// Results: XTIE_OK.
/// Threads: any. Cost: a lock. Nothing is logged while data moves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_log_set(userdata: *mut c_void, function: xtie_log_function) -> c_int {
    guard::free(|| {
        let callback = function.map(|function| Callback { function, userdata });
        let sink = callback.as_ref().map(|_| (say as log::Sink, 0));
        *CALLBACK.write().unwrap_or_else(PoisonError::into_inner) = callback;
        log::sink_set(sink);
        XTIE_OK
    })
}

fn say(_: usize, level: log::Level, text: &str) {
    let text: Text<LOG_BYTES> = Text::of(|copy| copy.write_str(text));
    // copied: a child that is forked during the call would find the lock taken for ever
    let callback = *CALLBACK.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(Callback { function, userdata }) = callback {
        // SAFETY: the user gave the function for calls with this userdata, from any thread
        // (`xtie_log_set`); the text ends with a zero and outlives the call.
        unsafe { function(userdata, level as u32, text.with_zero().as_ptr().cast()) };
    }
}
