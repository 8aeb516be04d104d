//! Words of windows: signals, counters and barriers.

use super::calls::waited;
use super::config::timeout;
use super::room::{self, Inside};
use super::window::{add, issued, xtie_add};
use crate::handle::{untag, xtie_group, xtie_window};
use crate::result::xtie_result::*;
use core::ffi::c_int;
use crosstie::base::slab::Handle;
use crosstie::host::group::NicCountError;
use crosstie::window::{Comparison, Ticket, WindowError};

/// Comparison of a wait: the word is the value.
pub const XTIE_COMPARE_EQUAL: u32 = 1;
/// Comparison of a wait: the word is not the value.
pub const XTIE_COMPARE_NOT_EQUAL: u32 = 2;
/// Comparison of a wait: the word is larger.
pub const XTIE_COMPARE_GREATER: u32 = 3;
/// Comparison of a wait: the word is larger, or the value.
pub const XTIE_COMPARE_GREATER_EQUAL: u32 = 4;
/// Comparison of a wait: the word is smaller.
pub const XTIE_COMPARE_LESS: u32 = 5;
/// Comparison of a wait: the word is smaller, or the value.
pub const XTIE_COMPARE_LESS_EQUAL: u32 = 6;

fn comparison(comparison: u32) -> Option<Comparison> {
    Some(match comparison {
        XTIE_COMPARE_EQUAL => Comparison::Equal,
        XTIE_COMPARE_NOT_EQUAL => Comparison::NotEqual,
        XTIE_COMPARE_GREATER => Comparison::Greater,
        XTIE_COMPARE_GREATER_EQUAL => Comparison::GreaterEqual,
        XTIE_COMPARE_LESS => Comparison::Less,
        XTIE_COMPARE_LESS_EQUAL => Comparison::LessEqual,
        _ => return None,
    })
}

/// A number of a signal, counter or barrier. One that is too large names none.
fn number(id: u32) -> Result<u16, WindowError> {
    u16::try_from(id).map_err(|_| WindowError::Id)
}

/// # Safety
/// - `signal` and `counter` are null, or valid for reads.
/// - `ticket_out` is null, or valid for a write.
#[inline(always)]
unsafe fn signal(
    group: *mut xtie_group,
    target: (*mut xtie_window, u32),
    signal: *const xtie_add,
    fence: bool,
    counter: Option<*const xtie_add>,
    ticket_out: *mut u64,
) -> c_int {
    if signal.is_null() || counter.is_some_and(|counter| counter.is_null()) {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: not null, and valid for reads by this function's contract.
        let signal = unsafe { *signal };
        // SAFETY: as above.
        let counter = counter.map(|counter| unsafe { *counter });
        if signal.reserved != 0 || counter.is_some_and(|counter| counter.reserved != 0) {
            return inside.entered.fail(&XTIE_ERR_RESERVED);
        }
        let window: Handle = untag(target.0);
        let made = add(&signal).and_then(|signal| {
            let counter = counter.as_ref().map(add).transpose()?;
            inside.group.inner().signal((window, target.1), signal, fence, counter)
        });
        issued(&mut inside, made, ticket_out)
    })
}

/// ---- Words of a window -------------------------------------------------------------------------
///
/// Adds to a signal of a window at another rank. It may pass puts that were issued before.
///
/// window: exchanged.
/// rank: whose signal, also this one's.
/// signal: which, and by how much it grows; read during the call.
/// ticket_out: for xtie_group_wait_local, or NULL.
/// Results: XTIE_OK; XTIE_AGAIN: there is no room now, nothing was issued: make progress, call
///     again; XTIE_ERR_NULL, XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED,
///     XTIE_ERR_RANK, XTIE_ERR_ID, and when the connection has failed its cause.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_signal(
    group: *mut xtie_group,
    window: *mut xtie_window,
    rank: u32,
    signal: *const xtie_add,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { self::signal(group, (window, rank), signal, false, None, ticket_out) }
}

/// xtie_window_signal after all that was issued to the rank before has taken effect there.
///
/// window, rank, signal, ticket_out: as of xtie_window_signal.
/// Results: those of xtie_window_signal; XTIE_AGAIN also while gets from that rank have not ended.
/// Threads: the endpoint's. Cost: data path; the rank waits for the earlier ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_signal_with_fence(
    group: *mut xtie_group,
    window: *mut xtie_window,
    rank: u32,
    signal: *const xtie_add,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { self::signal(group, (window, rank), signal, true, None, ticket_out) }
}

/// xtie_window_signal with a counter: a word of this rank, which grows once the signal has grown.
///
/// window, rank, signal, ticket_out: as of xtie_window_signal.
/// counter: of the window at this rank; read during the call.
/// Results: those of xtie_window_signal.
/// Threads: the endpoint's. Cost: data path; the counter grows after a round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_signal_counter(
    group: *mut xtie_group,
    window: *mut xtie_window,
    rank: u32,
    signal: *const xtie_add,
    counter: *const xtie_add,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { self::signal(group, (window, rank), signal, false, Some(counter), ticket_out) }
}

/// Waits for a signal of this rank, of one rank or of all.
fn wait_signal(
    group: *mut xtie_group,
    (window, id, from): (*mut xtie_window, u32, Option<u32>),
    (compare, value): (u32, u64),
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let Some(compare) = comparison(compare) else {
            return inside.entered.fail(&XTIE_ERR_COMPARISON);
        };
        let id = match number(id) {
            Ok(id) => id,
            Err(error) => return inside.entered.fail(&error),
        };
        let (endpoint, group) = inside.parts();
        let (which, value) = ((untag(window), id, from), (compare, value));
        let ended = group.wait_signal(endpoint, which, value, timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}

/// Waits until a signal of this rank compares with a value: the sum of what all ranks have added.
///
/// window: exchanged.
/// id: the signal's number.
/// compare: one of XTIE_COMPARE_; both numbers are unsigned.
/// timeout_ms: as of xtie_group_wait_local.
/// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID, XTIE_ERR_COMPARISON;
///     XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: the signal is as it is, call again; and when a
///     connection to any rank has failed its cause.
/// Threads: the endpoint's. Cost: blocks; makes progress, and sleeps when that takes long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_wait_signal(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    compare: u32,
    value: u64,
    timeout_ms: u32,
) -> c_int {
    wait_signal(group, (window, id, None), (compare, value), timeout_ms)
}

/// xtie_window_wait_signal for what one rank has added alone.
///
/// window, id, compare, value, timeout_ms: as of xtie_window_wait_signal.
/// rank: the rank.
/// Results: those of xtie_window_wait_signal, and XTIE_ERR_RANK; of connections the one to that
///     rank counts.
/// Threads: the endpoint's. Cost: as of xtie_window_wait_signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_wait_signal_from(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    rank: u32,
    compare: u32,
    value: u64,
    timeout_ms: u32,
) -> c_int {
    wait_signal(group, (window, id, Some(rank)), (compare, value), timeout_ms)
}

/// Waits until a counter of this rank compares with a value.
///
/// window, id, compare, value, timeout_ms: as of xtie_window_wait_signal, of a counter.
/// Results: those of xtie_window_wait_signal.
/// Threads: the endpoint's. Cost: as of xtie_window_wait_signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_wait_counter(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    compare: u32,
    value: u64,
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let Some(compare) = comparison(compare) else {
            return inside.entered.fail(&XTIE_ERR_COMPARISON);
        };
        let id = match number(id) {
            Ok(id) => id,
            Err(error) => return inside.entered.fail(&error),
        };
        let (endpoint, group) = inside.parts();
        let (which, value) = ((untag(window), id), (compare, value));
        let ended = group.wait_counter(endpoint, which, value, timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}

/// Reads a word into the caller's place.
fn word_read(
    group: *mut xtie_group,
    value_out: *mut u64,
    read: impl FnOnce(&mut Inside<'_>) -> Result<u64, WindowError>,
) -> c_int {
    if value_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| match read(&mut inside) {
        Ok(value) => {
            // SAFETY: not null, and the caller's to be written.
            unsafe { value_out.write(value) };
            XTIE_OK as c_int
        }
        Err(error) => inside.entered.fail(&error),
    })
}

/// Sets a word to zero.
fn word_reset(
    group: *mut xtie_group,
    reset: impl FnOnce(&mut Inside<'_>) -> Result<(), WindowError>,
) -> c_int {
    room::data(group, |mut inside| match reset(&mut inside) {
        Ok(()) => XTIE_OK as c_int,
        Err(error) => inside.entered.fail(&error),
    })
}

/// Reads a signal of this rank: the sum of what all ranks have added. It does not grow by itself:
/// make progress between two looks.
///
/// window: exchanged.
/// id: the signal's number.
/// value_out: the sum, modulo 2^64.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID.
/// Threads: the endpoint's. Cost: data path; a word of each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_read_signal(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    value_out: *mut u64,
) -> c_int {
    word_read(group, value_out, |inside| inside.group.signal_read(untag(window), number(id)?))
}

/// Reads what one rank has added to a signal of this rank.
///
/// window, id, value_out: as of xtie_window_read_signal.
/// rank: the rank.
/// Results: those of xtie_window_read_signal, and XTIE_ERR_RANK.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_read_signal_from(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    rank: u32,
    value_out: *mut u64,
) -> c_int {
    word_read(group, value_out, |inside| {
        inside.group.view().signal_read_from(untag(window), number(id)?, rank)
    })
}

/// Reads a counter of this rank.
///
/// window, id, value_out: as of xtie_window_read_signal, of a counter.
/// Results: those of xtie_window_read_signal.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_read_counter(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    value_out: *mut u64,
) -> c_int {
    word_read(group, value_out, |inside| inside.group.counter_read(untag(window), number(id)?))
}

/// Sets a signal of this rank to zero. What was added before is gone; what is on its way now is
/// added to zero later.
///
/// window: exchanged.
/// id: the signal's number.
/// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_reset_signal(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
) -> c_int {
    word_reset(group, |inside| inside.group.signal_reset(untag(window), number(id)?))
}

/// Sets a counter of this rank to zero. Operations that have not ended add to it later.
///
/// window, id: as of xtie_window_reset_signal, of a counter.
/// Results: those of xtie_window_reset_signal.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_reset_counter(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
) -> c_int {
    word_reset(group, |inside| inside.group.counter_reset(untag(window), number(id)?))
}

/// Has a NIC add to a counter of this rank once the local buffer of an operation may be used again.
/// The endpoint has XTIE_ENDPOINT_COMPANIONS, and the connection to the operation's rank an RDMA
/// rail. A counter is either a NIC's or the library's, and its window stays until the NIC has
/// added. Nothing is added where the operation is refused, or its connection fails.
///
/// window: exchanged.
/// ticket: of the operation.
/// counter: read during the call.
/// Results: XTIE_OK; XTIE_AGAIN: 64 adds wait, make progress first; XTIE_ERR_NULL,
///     XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID, XTIE_ERR_RANK;
///     XTIE_ERR_NO_NIC_COUNTER: no NIC can do it, xtie_endpoint_error says why;
///     XTIE_ERR_CONNECTION: the connection has ended. Where the NIC fails later, reads and waits of
///     the window's counters say XTIE_ERR_OUTCOME_UNKNOWN.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_count_by_nic(
    group: *mut xtie_group,
    window: *mut xtie_window,
    ticket: u64,
    counter: *const xtie_add,
) -> c_int {
    if counter.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: not null, and the caller's to be read.
        let counter = unsafe { *counter };
        if counter.reserved != 0 {
            return inside.entered.fail(&XTIE_ERR_RESERVED);
        }
        let (id, value) = match add(&counter) {
            Ok(counter) => counter,
            Err(error) => return inside.entered.fail(&error),
        };
        let (endpoint, group) = inside.parts();
        match group.count_by_nic(endpoint, Ticket(ticket), (untag(window), id), value) {
            Ok(()) => XTIE_OK as c_int,
            Err(NicCountError::Window(WindowError::Again)) => XTIE_AGAIN as c_int,
            Err(error) => inside.entered.fail(&error),
        }
    })
}

/// Waits until all ranks have come to a barrier of a window as often as this one. What they had
/// issued to this rank before has taken effect then.
///
/// window: exchanged.
/// id: the barrier's number, from 0 on; each may be used again and again.
/// timeout_ms: as of xtie_group_wait_local.
/// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID; XTIE_ERR_TIMEOUT,
///     XTIE_ERR_ABORTED: this rank has come, call again to wait for the others; and when a
///     connection has failed its cause.
/// Threads: the endpoint's. Cost: blocks until all ranks have come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_barrier(
    group: *mut xtie_group,
    window: *mut xtie_window,
    id: u32,
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let id = match number(id) {
            Ok(id) => id,
            Err(error) => return inside.entered.fail(&error),
        };
        let (endpoint, group) = inside.parts();
        let ended = group.barrier(endpoint, untag(window), id, timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}
