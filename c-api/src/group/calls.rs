//! Groups of ranks: open, progress, abort, what belongs to no single window, close.

use super::config::{Functions, XTIE_RANK_ALL, options, storage_bytes, timeout, xtie_group_config};
use super::room::{self, Inside, room_bytes};
use crate::config::XTIE_STORAGE_ALIGN;
use crate::guard;
use crate::handle::{xtie_endpoint, xtie_group};
use crate::result::xtie_result::*;
use core::ffi::{c_int, c_void};
use crosstie::host::group::{Group, WaitError};
use crosstie::window::Ticket;

/// ---- Group -------------------------------------------------------------------------------------
///
/// How much storage a group takes; XTIE_GROUP_BYTES says the same to the compiler.
///
/// config: the caller's, read only during the call.
/// bytes_out: the size in bytes.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_RANK;
///     XTIE_ERR_GROUP_LIMITS: the log says which.
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_size(
    config: *const xtie_group_config,
    bytes_out: *mut usize,
) -> c_int {
    guard::free(|| {
        if bytes_out.is_null() {
            return XTIE_ERR_NULL;
        }
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { options(config) } {
            Ok((options, _)) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { bytes_out.write(storage_bytes(&options.limits)) };
                XTIE_OK
            }
            Err(result) => result,
        }
    })
}

/// Opens a group with the other ranks: every rank calls this, and it returns when all have met. The
/// group makes two connections to each rank, also to this one itself: of connections_max it takes
/// XTIE_GROUP_CONNECTIONS(ranks), and of regions_max one; requests_max may be any. No operation
/// allocates after this call; xtie_window_alloc, xtie_group_helper_start and xtie_all_gather_init
/// do.
///
/// storage: XTIE_STORAGE_ALIGN aligned; the library's from now on until xtie_group_close has
///     succeeded. It must not be moved, copied or touched. Not that of an open group.
/// storage_bytes: at least what xtie_group_size says; more is not used.
/// config: read during the call alone; the functions that it names are called during it alone.
/// group_out: the group, which is the storage's address.
/// Results: XTIE_OK; those of xtie_group_size; XTIE_ERR_STORAGE_ALIGN, XTIE_ERR_STORAGE_SIZE;
///     XTIE_ERR_BOOTSTRAP: gather or look gave a code, which xtie_endpoint_error has;
///     XTIE_ERR_GROUP_MISMATCH; XTIE_ERR_RANK_MISSING: a rank did not connect in time;
///     XTIE_ERR_RANK_FAILED; those of xtie_memory_register, xtie_endpoint_listen,
///     xtie_endpoint_connect and, where a connection fails meanwhile, of xtie_request_test. Nothing
///     is left of the group then.
/// Threads: the endpoint's. Cost: control path; blocks until all ranks have come, or timeout_ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_open(
    endpoint: *mut xtie_endpoint,
    storage: *mut c_void,
    storage_bytes: usize,
    config: *const xtie_group_config,
    group_out: *mut *mut xtie_group,
) -> c_int {
    if storage.is_null() || config.is_null() || group_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        // SAFETY: a structure whose size its first word says (crosstie.h).
        let (options, config) = match unsafe { options(config) } {
            Ok(read) => read,
            Err(result) => return entered.fail(&result),
        };
        let Some(gather) = config.gather else { return entered.fail(&XTIE_ERR_NULL) };
        if !(storage as usize).is_multiple_of(XTIE_STORAGE_ALIGN as usize) {
            return entered.fail(&XTIE_ERR_STORAGE_ALIGN);
        }
        if storage_bytes < super::config::storage_bytes(&options.limits) {
            return entered.fail(&XTIE_ERR_STORAGE_SIZE);
        }
        let mut functions = Functions { context: config.context, gather, look: config.look };
        let windows_max = options.limits.windows_max;
        let front = room_bytes(windows_max);
        // SAFETY: the storage is longer than the room (checked above).
        let block = unsafe { storage.cast::<u8>().add(front) };
        let place = (block, storage_bytes - front);
        // SAFETY: aligned, since storage and room are; valid until close by this function's
        // comment, and nobody else touches it.
        let opened = unsafe { Group::open(entered.host, place, &options, &mut functions) };
        let group = match opened {
            Ok(group) => group,
            Err(error) => return entered.fail(&error),
        };
        let opening = entered.opening();
        // SAFETY: the storage's first bytes, aligned and not part of the block.
        let group = unsafe { room::put(storage.cast(), endpoint, opening, windows_max, group) };
        // SAFETY: not null, and the caller's to be written.
        unsafe { group_out.write(group) };
        XTIE_OK as c_int
    })
}

/// Closes a group: its connections, and its windows with their allocated memory. What was issued
/// leaves first, for timeout_ms at most; that it has taken effect is known after a flush. Other
/// ranks hear what of theirs has taken effect here. Their waits for this one end with an error, so
/// meet them at a barrier first. The storage is the caller's again. Close groups before their
/// endpoint; after xtie_endpoint_close this function gives the group's own state back.
///
/// group: not to be used afterwards; while the storage stands untouched, doing so is answered by
///     XTIE_ERR_GROUP_CLOSED.
/// Results: XTIE_OK, XTIE_ERR_NULL; XTIE_ERR_UNFENCED: the group is closed, but a rail that nothing
///     can stop may still touch the storage and memory of windows, which must stay until the
///     endpoint is closed; XTIE_ERR_NO_GROUP, XTIE_ERR_GROUP_CLOSED and those that every function
///     of an endpoint can answer, which all functions below can answer, too, and whose comments
///     leave them out.
/// Threads: the endpoint's, with no other thread in a call. Cost: control path; waits as
///     xtie_connection_close does for what is on its way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_close(group: *mut xtie_group) -> c_int {
    room::take(group)
}

/// Starts a thread, crosstie-window, that makes progress for a group while this program does not:
/// other ranks' operations take effect although it computes. It sleeps while nothing comes. While
/// it runs, call functions of the endpoint's thread for this group alone, and none of another group
/// or of the endpoint's connections; functions of any thread are free. Stop it, or close the group,
/// before the endpoint is closed.
///
/// Results: XTIE_OK, also where it runs already; XTIE_ERR_SYSTEM: the system has no thread.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_helper_start(group: *mut xtie_group) -> c_int {
    room::helper_start(group)
}

/// Ends the thread of xtie_group_helper_start, if it runs; waits until it has ended.
///
/// Results: XTIE_OK.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_helper_stop(group: *mut xtie_group) -> c_int {
    room::helper_stop(group)
}

/// Moves everything on that can move, of the endpoint and of the group: hands over what was issued,
/// and applies what other ranks' operations ask of this one. Their operations take effect only
/// while this rank calls this function, or waits in one of the group's.
///
/// Results: XTIE_OK.
/// Threads: the endpoint's. Cost: data path; no system call when nothing happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_progress(group: *mut xtie_group) -> c_int {
    room::data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        group.progress(endpoint);
        XTIE_OK as c_int
    })
}

/// Ends all waits in the group's functions with XTIE_ERR_ABORTED: the one that is under way, within
/// 10 ms, and all later ones that have to wait, until xtie_group_abort_clear. Nothing else changes:
/// operations that were issued go on.
///
/// Results: XTIE_OK.
/// Threads: any, but not beside xtie_group_close. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_abort(group: *mut xtie_group) -> c_int {
    room::any(group, |abort| abort.set())
}

/// Takes an abort back: waits wait again.
///
/// Results: XTIE_OK.
/// Threads: any, but not beside xtie_group_close. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_abort_clear(group: *mut xtie_group) -> c_int {
    room::any(group, |abort| abort.clear())
}

/// The code of a wait's end.
pub(super) fn waited(inside: &mut Inside<'_>, ended: Result<(), WaitError>) -> c_int {
    match ended {
        Ok(()) => XTIE_OK as c_int,
        Err(error) => inside.entered.fail(&error),
    }
}

/// Waits until the local buffer of an operation may be used again; of a get: until the bytes are
/// there.
///
/// ticket: of the operation; 0 has ended. One is good for as long as the group is open.
/// timeout_ms: in milliseconds; 0: the group's; XTIE_NO_TIMEOUT: none.
/// Results: XTIE_OK; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: the operation goes on, call again;
///     XTIE_ERR_RANK: no ticket of this group; XTIE_ERR_WINDOW_FREED, XTIE_ERR_WINDOW_RANGE,
///     XTIE_ERR_WINDOW_MEMORY: the rank that it went to refused it. Of a get that is always told,
///     of others once it is known, as it is after xtie_group_flush, until 1024 operations with
///     that rank came after them. A put's counter grows all the same; and when the connection to
///     that rank has failed its cause, as of xtie_request_test.
/// Threads: the endpoint's. Cost: blocks; makes progress, and sleeps when that takes long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_wait_local(
    group: *mut xtie_group,
    ticket: u64,
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        let ended = group.wait_local(endpoint, Ticket(ticket), timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}

/// Asks what xtie_group_wait_local waits for; makes progress while it is not so.
///
/// ticket: as there.
/// done_out: 1: the buffer may be used again; 0: call again.
/// Results: XTIE_OK, XTIE_ERR_NULL, and those of xtie_group_wait_local but for XTIE_ERR_TIMEOUT and
///     XTIE_ERR_ABORTED.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_test_local(
    group: *mut xtie_group,
    ticket: u64,
    done_out: *mut c_int,
) -> c_int {
    if done_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        let ticket = Ticket(ticket);
        if let Ok(false) = group.view().has_ended(ticket) {
            group.progress(endpoint);
        }
        match group.view().has_ended(ticket) {
            Ok(is_done) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { done_out.write(is_done.into()) };
                XTIE_OK as c_int
            }
            Err(error) => inside.entered.fail(&error),
        }
    })
}

/// Waits until all that was issued to a rank has taken effect there: bytes are in its window, its
/// signals have grown. For all ranks, in their order; an error ends it at the first one's.
///
/// rank: the rank, or XTIE_RANK_ALL.
/// timeout_ms: as of xtie_group_wait_local.
/// Results: XTIE_OK; XTIE_ERR_RANK; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: call again; what an
///     operation since the last flush of that rank was refused with, as of xtie_group_wait_local:
///     all others have taken effect; and, when a connection failed before it was known that all
///     had, its cause.
/// Threads: the endpoint's. Cost: blocks for a round trip at least, when anything was issued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_flush(
    group: *mut xtie_group,
    rank: u32,
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        let rank = (rank != XTIE_RANK_ALL).then_some(rank);
        let ended = group.flush(endpoint, rank, timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}

/// Has all that is issued to a rank from now on take effect after all that was issued before.
///
/// rank: the rank.
/// Results: XTIE_OK, XTIE_ERR_RANK, and when the connection has failed its cause.
/// Threads: the endpoint's. Cost: none; the rank waits for the earlier ones before it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_group_fence(group: *mut xtie_group, rank: u32) -> c_int {
    room::data(group, |mut inside| match inside.group.inner().fence(rank) {
        Ok(()) => XTIE_OK as c_int,
        Err(error) => inside.entered.fail(&error),
    })
}
