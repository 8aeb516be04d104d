//! Endpoints: open, progress, wait, close.

use crate::config::{options, refused, storage_bytes, xtie_endpoint_config};
use crate::errors::open_result;
use crate::guard::{self, ROOM_BYTES};
use crate::handle::xtie_endpoint;
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Out, give, give_text};
use crate::text::Text;
use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write;
use crosstie::base::carve::BLOCK_ALIGN;
use crosstie::host::vendor::VendorRail;
use crosstie::host::{Endpoint, OpenError, log};

/// Opens an endpoint in memory of the caller's. Nothing is allocated after this, on any thread, but
/// for threads that CROSSTIE_TCP_THREADS or CROSSTIE_SHM_THREADS ask for, which start with the
/// first connection that they serve.
///
/// storage: XTIE_STORAGE_ALIGN aligned; the library's from now on until xtie_endpoint_close has
///     succeeded. It must not be moved, copied or touched.
/// storage_bytes: at least what xtie_endpoint_size says; more is not used.
/// config: read only during the call. CROSSTIE_ variables of the environment override the fields
///     that do not change the size.
/// endpoint_out: the endpoint, which is the storage's address.
/// Results: XTIE_OK; those of xtie_endpoint_size; XTIE_ERR_STORAGE_ALIGN, XTIE_ERR_STORAGE_SIZE,
///     XTIE_ERR_STORAGE_IN_USE: an endpoint that is not closed begins there (one that begins
///     elsewhere in the storage is not looked for, nor are more than 64 remembered);
///     XTIE_ERR_SETTING, XTIE_ERR_DEVICE_UNAVAILABLE,
///     XTIE_ERR_NO_RAIL, XTIE_ERR_INTERFACE,
///     XTIE_ERR_DESCRIPTORS, XTIE_ERR_NO_MEMORY, XTIE_ERR_SYSTEM. The log says more.
/// Threads: any, with storage of its own each. Cost: control path; starts a thread for set-up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_open(
    storage: *mut c_void,
    storage_bytes: usize,
    config: *const xtie_endpoint_config,
    endpoint_out: *mut *mut xtie_endpoint,
) -> c_int {
    guard::free(|| {
        if storage.is_null() || endpoint_out.is_null() {
            return XTIE_ERR_NULL;
        }
        // SAFETY: the caller's storage, by this function's comment; `config` is null or a
        // structure whose size its first word says.
        match unsafe { open_in(storage.cast(), storage_bytes, config, &[]) } {
            Ok(endpoint) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { endpoint_out.write(endpoint) };
                XTIE_OK
            }
            Err(result) => result,
        }
    })
}

/// # Safety
/// - as [`xtie_endpoint_open`] and, of the rails, [`Endpoint::open_with`].
pub(crate) unsafe fn open_in(
    storage: *mut u8,
    length: usize,
    config: *const xtie_endpoint_config,
    rails: &[VendorRail],
) -> Result<*mut xtie_endpoint, xtie_result> {
    // SAFETY: as the caller of this function was promised.
    let options = unsafe { options(config)? };
    if !(storage as usize).is_multiple_of(BLOCK_ALIGN) {
        let why = format_args!(
            "no endpoint was opened: storage is at {storage:p}, which is no multiple of \
             XTIE_STORAGE_ALIGN, {BLOCK_ALIGN}"
        );
        return Err(refused(XTIE_ERR_STORAGE_ALIGN, why));
    }
    let needed = storage_bytes(&options);
    if length < needed {
        let why = format_args!(
            "no endpoint was opened: storage has {length} bytes, {needed} are needed with this \
             configuration"
        );
        return Err(refused(XTIE_ERR_STORAGE_SIZE, why));
    }
    guard::forks_watch();
    if guard::is_open_at(storage) {
        let why = format_args!("no endpoint was opened: one that is not closed is at {storage:p}");
        return Err(refused(XTIE_ERR_STORAGE_IN_USE, why));
    }
    // SAFETY: the storage is longer than the guard's room (checked above).
    let block = unsafe { storage.add(ROOM_BYTES) };
    // SAFETY: aligned, since storage and room are; valid until close by the comment of
    // `xtie_endpoint_open`, and nobody else touches it.
    let opened = unsafe { Endpoint::open_with(block, length - ROOM_BYTES, &options, rails) };
    let endpoint = opened.map_err(|error| {
        // which has had its line
        if !matches!(error, OpenError::Setting(_)) {
            let text: Text = Text::of(|text| write!(text, "no endpoint was opened: {error}"));
            log::say(log::Level::Error, text.as_str());
        }
        open_result(&error)
    })?;
    // SAFETY: the storage's first bytes, aligned and not part of the block.
    Ok(unsafe { guard::put(storage, endpoint) })
}

/// Moves everything on that can move: requests, control messages, copies of up to about 256 KiB,
/// and over TCP of a MiB of what has come.
/// xtie_request_test does this too while its request is outstanding.
///
/// endpoint: the caller's.
/// events_out: how many things happened, or NULL. Zero does not mean that nothing is outstanding.
/// Results: XTIE_OK, XTIE_ERR_NULL, and XTIE_ERR_ENDPOINT, XTIE_ERR_CLOSED, XTIE_ERR_POISONED or
///     XTIE_ERR_FORKED, which every function that takes an endpoint can answer and which the
///     comments below leave out.
/// Threads: the endpoint's. Cost: data path; no system call when nothing happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_progress(
    endpoint: *mut xtie_endpoint,
    events_out: *mut u32,
) -> c_int {
    guard::data(endpoint, |entered| {
        let events = entered.host.progress().events as u32;
        // SAFETY: null or the caller's to be written (crosstie.h).
        unsafe { give(events_out, events) };
        XTIE_OK as c_int
    })
}

/// The descriptor to sleep on: when xtie_endpoint_wait_arm has answered XTIE_OK, it becomes
/// readable as soon as there may be something to do: for a request, or for a connect (its deadline
/// too) or an accept that answered NULL. Only poll(2), select(2) or epoll(7) it; never read or
/// close it.
///
/// fd_out: the same number until the endpoint is closed.
/// Results: XTIE_OK, XTIE_ERR_NULL.
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_wait_fd(
    endpoint: *const xtie_endpoint,
    fd_out: *mut c_int,
) -> c_int {
    guard::shared(endpoint, |shared| {
        if fd_out.is_null() {
            return Err(XTIE_ERR_NULL);
        }
        // SAFETY: not null, and the caller's to be written.
        unsafe { fd_out.write(shared.wait_fd()) };
        Ok(XTIE_OK)
    })
}

/// Asks to be woken by the descriptor of xtie_endpoint_wait_fd. Call it when there is nothing to
/// do, before each sleep: it makes progress, looks once more, and answers XTIE_AGAIN if that
/// changed anything, or while a transfer in two copies needs this side to keep going.
///
/// Results: XTIE_OK: sleep now. XTIE_AGAIN: something happened meanwhile; test your requests
///     instead of sleeping. The loopback device never sleeps.
/// Threads: the endpoint's. Cost: two system calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_wait_arm(endpoint: *mut xtie_endpoint) -> c_int {
    guard::data(endpoint, |entered| match entered.host.wait_arm() {
        true => XTIE_OK as c_int,
        false => XTIE_AGAIN as c_int,
    })
}

/// Why the last call on this endpoint failed, with its particulars: the peer's program, process
/// and host, numbers of the system. Every failing call that found its endpoint replaces it,
/// but for this one and those that answer XTIE_ERR_FORKED.
///
/// text_out: room for the sentence, in UTF-8; what does not fit is cut. 320 bytes hold any.
/// text_bytes: that room in bytes, with the zero at the end; not zero.
/// Results: XTIE_OK, also of a poisoned endpoint; XTIE_ERR_NULL, XTIE_ERR_TEXT.
/// Threads: any, but which call failed last is then a matter of luck. Cost: a lock, and a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_error(
    endpoint: *const xtie_endpoint,
    text_out: *mut c_char,
    text_bytes: usize,
) -> c_int {
    guard::free(|| {
        let text = match guard::last_error(endpoint) {
            Ok(text) => text,
            Err(result) => return result,
        };
        // SAFETY: null, or `text_bytes` of the caller's.
        match unsafe { give_text(text_out, text_bytes, text.as_str().as_bytes()) } {
            Ok(result) | Err(result) => result,
        }
    })
}

/// What every open request waits for, and who owes what to whom: one line of text each, as
/// doc/stalls.md explains. It has the peers' side as far as they have said it when they were asked
/// last, and asks them again: the first one says "peer not asked yet"; call it a second time after
/// some progress for both sides' view.
///
/// The library says the same by itself, once for each request that is older than
/// CROSSTIE_STALL_MS, to the log callback or standard error.
///
/// text_out: room for the lines, in UTF-8, each with a newline; what does not fit is cut. 1280
///     bytes hold any line.
/// text_bytes: that room in bytes, with the zero at the end; not zero.
/// requests_out: how many requests are open, or NULL.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_TEXT.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_report(
    endpoint: *mut xtie_endpoint,
    text_out: *mut c_char,
    text_bytes: usize,
    requests_out: *mut u32,
) -> c_int {
    if text_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        if text_bytes == 0 {
            return entered.fail(&XTIE_ERR_TEXT);
        }
        // SAFETY: `text_bytes` of the caller's to be written, at least one (checked above).
        let mut out = unsafe { Out::new(text_out, text_bytes) };
        // a text that is cut is better than none
        let open = entered.host.report(&mut out).unwrap_or(0);
        // SAFETY: null or the caller's to be written (crosstie.h).
        unsafe { give(requests_out, open) };
        XTIE_OK as c_int
    })
}

/// Ends everything that the endpoint has: connections, listeners, attempts, registrations,
/// allocated memory, its thread. Peers learn of it. The storage is the caller's again. Messages
/// whose requests have not been tested to their end may be lost.
///
/// endpoint: not to be used afterwards; while the storage stands untouched, doing so is answered
///     by XTIE_ERR_CLOSED.
/// Results: XTIE_OK. XTIE_ERR_POISONED: nothing was done, the storage must stay.
/// Threads: the endpoint's, with no other thread in a call. Cost: control path; may wait for the
///     thread and for a copy of a peer's that is under way, and as xtie_connection_close does for
///     messages that have not reached their peers: CROSSTIE_PEER_TIMEOUT_MS at most, for all
///     connections at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_close(endpoint: *mut xtie_endpoint) -> c_int {
    guard::take(endpoint)
}
