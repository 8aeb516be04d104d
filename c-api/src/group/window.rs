//! Windows: register or allocate, exchange, put and get, free.

use super::calls::waited;
use super::config::timeout;
use super::room::{self, Allocated, Inside};
use crate::handle::{tag, untag, xtie_group, xtie_memory, xtie_window};
use crate::result::xtie_result::*;
use crate::structs::give;
use core::ffi::{c_int, c_void};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::DeregisterError;
use crosstie::window::{Put, Ticket, WindowError};

/// Flag of a window: other ranks may read this rank's part of it, and not write to it.
pub const XTIE_WINDOW_READ_ONLY: u32 = 0x1;

/// Bytes that go from this rank to another's part of a window, or come from there. Of fixed size:
/// it will not grow.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_transfer {
    /// First byte at this rank; may be NULL when bytes is zero.
    pub data: *mut c_void,
    /// How many bytes.
    pub bytes: usize,
    /// The registered memory that data lies in; may be NULL when bytes is zero.
    pub memory: *mut xtie_memory,
    /// Where they go to, or come from, in that rank's part of the window, in bytes.
    pub offset: u64,
    /// The rank, also this one.
    pub rank: u32,
    /// Zero.
    pub reserved: u32,
}

/// A signal or counter of a window, and by how much it grows.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_add {
    /// Its number, from 0 on.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
    /// What is added to it, modulo 2^64.
    pub value: u64,
}

/// ---- Window ------------------------------------------------------------------------------------
///
/// Makes a window of registered memory: this rank's part of it. Each rank makes one, of any size of
/// its own, then all exchange it. Its signals, counters and barriers are zero.
///
/// data: first byte; may be NULL when bytes is zero.
/// bytes: the length of this rank's part; zero: it has none, and takes part alone.
/// memory: registered memory that the part lies in; not looked at when bytes is zero. It stays
///     registered, and mapped, until xtie_window_free has succeeded.
/// flags: XTIE_WINDOW_READ_ONLY, or zero.
/// window_out: to be exchanged.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_FLAGS, XTIE_ERR_WINDOWS_FULL, XTIE_ERR_MEMORY,
///     XTIE_ERR_RANGE; XTIE_ERR_READ_ONLY: the memory is mapped read only, and the flag is missing.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_register(
    group: *mut xtie_group,
    data: *mut c_void,
    bytes: usize,
    memory: *mut xtie_memory,
    flags: u32,
    window_out: *mut *mut xtie_window,
) -> c_int {
    if window_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        if flags & !XTIE_WINDOW_READ_ONLY != 0 {
            return inside.entered.fail(&XTIE_ERR_FLAGS);
        }
        let place = (untag(memory), data as u64, bytes as u64);
        let is_read_only = flags & XTIE_WINDOW_READ_ONLY != 0;
        let (endpoint, group) = inside.parts();
        // SAFETY: the caller keeps the memory mapped until the window was freed (this function's
        // comment), and expects that other ranks use it.
        match unsafe { group.register(endpoint, place, is_read_only) } {
            Ok(window) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { window_out.write(tag(window)) };
                XTIE_OK as c_int
            }
            Err(error) => inside.entered.fail(&error),
        }
    })
}

/// Allocates memory as xtie_memory_alloc does, and makes a window of it. xtie_window_free, or
/// xtie_group_close, gives the memory back.
///
/// bytes: its length, not zero.
/// flags: as of xtie_window_register.
/// data_out: first byte, page-aligned; the memory is zero.
/// memory_out: for transfers of this rank from and to that memory, or NULL.
/// window_out: to be exchanged.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_FLAGS, XTIE_ERR_WINDOWS_FULL, and those of
///     xtie_memory_alloc.
/// Threads: the endpoint's. Cost: control path; the pages are really allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_alloc(
    group: *mut xtie_group,
    bytes: usize,
    flags: u32,
    data_out: *mut *mut c_void,
    memory_out: *mut *mut xtie_memory,
    window_out: *mut *mut xtie_window,
) -> c_int {
    if data_out.is_null() || window_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        if flags & !XTIE_WINDOW_READ_ONLY != 0 {
            return inside.entered.fail(&XTIE_ERR_FLAGS);
        }
        let Some(free) = inside.allocated.iter().position(|one| one.pair.is_none()) else {
            return inside.entered.fail(&XTIE_ERR_WINDOWS_FULL);
        };
        let (data, memory) = match inside.entered.host.shared.allocate(Bytes::of(bytes)) {
            Ok(allocated) => allocated,
            Err(error) => return inside.entered.fail(&error),
        };
        let place = (memory, data.expose_provenance() as u64, bytes as u64);
        let is_read_only = flags & XTIE_WINDOW_READ_ONLY != 0;
        let (endpoint, group) = inside.parts();
        // SAFETY: the memory is freed after the window.
        let window = match unsafe { group.register(endpoint, place, is_read_only) } {
            Ok(window) => window,
            Err(error) => {
                // of which nobody knows yet
                let _ = inside.entered.host.shared.free(memory);
                return inside.entered.fail(&error);
            }
        };
        inside.allocated[free] = Allocated { pair: Some((window, memory)) };
        // SAFETY: not null, and the caller's to be written.
        unsafe { data_out.write(data.cast()) };
        // SAFETY: null or the caller's to be written.
        unsafe { give(memory_out, tag(memory)) };
        // SAFETY: as of `data_out`.
        unsafe { window_out.write(tag(window)) };
        XTIE_OK as c_int
    })
}

/// Tells all ranks of this rank's part of a window, and waits for theirs. Every rank calls this,
/// for its windows in the same order; the window can be used then. Ranks may have other sizes,
/// flags and numbers of signals.
///
/// window: not exchanged yet.
/// timeout_ms: as of xtie_group_wait_local.
/// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_EXCHANGED; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: call
///     again, it goes on; and when a connection has failed its cause.
/// Threads: the endpoint's. Cost: control path; blocks until all ranks have called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_exchange(
    group: *mut xtie_group,
    window: *mut xtie_window,
    timeout_ms: u32,
) -> c_int {
    room::data(group, |mut inside| {
        let (endpoint, group) = inside.parts();
        let ended = group.exchange(endpoint, untag(window), timeout(timeout_ms));
        waited(&mut inside, ended)
    })
}

/// Gives up this rank's part of a window; windows may be freed in any order. What other ranks do
/// with this part later is refused with XTIE_ERR_WINDOW_FREED, and changes nothing.
///
/// window: not to be used after this call, but for calling it again after XTIE_AGAIN. The memory of
///     xtie_window_alloc goes with it.
/// Results: XTIE_OK, XTIE_ERR_WINDOW; XTIE_AGAIN: transfers are under way in its memory, make
///     progress, call again; of xtie_window_alloc also XTIE_ERR_FABRIC.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_free(
    group: *mut xtie_group,
    window: *mut xtie_window,
) -> c_int {
    room::data(group, |mut inside| {
        let window: Handle = untag(window);
        inside.device.iter_mut().for_each(|device| device.detach(window));
        let is_it = |one: &Allocated| one.pair.is_some_and(|(whose, _)| whose == window);
        let at = inside.allocated.iter().position(is_it);
        match (inside.group.free(window), at) {
            (Ok(()), None) => return XTIE_OK as c_int,
            // its memory was in use when it was freed
            (Ok(()) | Err(WindowError::Window), Some(_)) => {}
            (Err(WindowError::Again), _) => return XTIE_AGAIN as c_int,
            (Err(error), _) => return inside.entered.fail(&error),
        }
        let Some((at, (_, memory))) = at.and_then(|at| Some((at, inside.allocated[at].pair?)))
        else {
            return XTIE_OK as c_int;
        };
        match inside.entered.host.shared.free(memory) {
            Ok(()) => {
                inside.allocated[at] = Allocated::default();
                XTIE_OK as c_int
            }
            Err(DeregisterError::Busy) => XTIE_AGAIN as c_int,
            Err(error) => inside.entered.fail(&error),
        }
    })
}

/// How long a rank's part of a window is.
///
/// window: exchanged.
/// rank: the rank, also this one.
/// bytes_out: the length in bytes.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_RANK.
/// Threads: the endpoint's. Cost: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_bytes(
    group: *mut xtie_group,
    window: *const xtie_window,
    rank: u32,
    bytes_out: *mut u64,
) -> c_int {
    if bytes_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| match inside.group.view().length(untag(window), rank) {
        Ok(bytes) => {
            // SAFETY: not null, and the caller's to be written.
            unsafe { bytes_out.write(bytes) };
            XTIE_OK as c_int
        }
        Err(error) => inside.entered.fail(&error),
    })
}

/// A signal or counter of the caller's, as the library has it.
pub(super) fn add(add: &xtie_add) -> Result<(u16, u64), WindowError> {
    let id = u16::try_from(add.id).map_err(|_| WindowError::Id)?;
    Ok((id, add.value))
}

/// The end of a call that issues an operation.
#[inline(always)]
pub(super) fn issued(
    inside: &mut Inside<'_>,
    issued: Result<Ticket, WindowError>,
    ticket_out: *mut u64,
) -> c_int {
    match issued {
        Ok(ticket) => {
            // SAFETY: null or the caller's to be written (crosstie.h).
            unsafe { give(ticket_out, ticket.0) };
            XTIE_OK as c_int
        }
        Err(WindowError::Again) => XTIE_AGAIN as c_int,
        Err(error) => inside.entered.fail(&error),
    }
}

/// # Safety
/// - `transfer`, `signal` and `counter` are null, or valid for reads.
/// - of `ticket_out` and the bytes of the transfer: as [`xtie_window_put`] says.
#[inline(always)]
unsafe fn put(
    group: *mut xtie_group,
    window: *mut xtie_window,
    transfer: *const xtie_transfer,
    signal: Option<*const xtie_add>,
    counter: Option<*const xtie_add>,
    ticket_out: *mut u64,
) -> c_int {
    let is_null = |add: Option<*const xtie_add>| add.is_some_and(|add| add.is_null());
    if transfer.is_null() || is_null(signal) || is_null(counter) {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: not null, and valid for reads by this function's contract.
        let transfer = unsafe { &*transfer };
        // SAFETY: as above.
        let told = |add: Option<*const xtie_add>| add.map(|add| unsafe { *add });
        let (signal, counter) = (told(signal), told(counter));
        let is_plain = |add: Option<xtie_add>| add.is_none_or(|add| add.reserved == 0);
        if transfer.reserved != 0 || !is_plain(signal) || !is_plain(counter) {
            return inside.entered.fail(&XTIE_ERR_RESERVED);
        }
        let adds = signal.as_ref().map(add).transpose();
        let adds = adds.and_then(|signal| Ok((signal, counter.as_ref().map(add).transpose()?)));
        let (signal, counter) = match adds {
            Ok(adds) => adds,
            Err(error) => return inside.entered.fail(&error),
        };
        let xtie_transfer { data, bytes, memory, offset, rank, .. } = *transfer;
        let put = Put { window: untag(window), rank, offset, signal, counter };
        let (endpoint, group) = inside.parts();
        // SAFETY: the caller leaves the bytes alone until the ticket has ended (crosstie.h).
        let made = unsafe { group.put(endpoint, &put, (untag(memory), data as u64, bytes as u64)) };
        issued(&mut inside, made, ticket_out)
    })
}

/// Starts to put bytes of this rank into another rank's part of a window. They move with the
/// progress of both ranks. Puts to one rank may take effect in any order; xtie_group_fence and
/// signals order them.
///
/// window: exchanged.
/// transfer: read during the call. The bytes at data are the library's to read until the ticket has
///     ended.
/// ticket_out: for xtie_group_wait_local and xtie_group_test_local, or NULL.
/// Results: XTIE_OK; XTIE_AGAIN: there is no room now, nothing was issued: make progress, call
///     again; XTIE_ERR_NULL, XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED,
///     XTIE_ERR_RANK; XTIE_ERR_WINDOW_RANGE: the bytes do not lie inside that rank's part;
///     XTIE_ERR_READ_ONLY; XTIE_ERR_MEMORY, XTIE_ERR_RANGE; XTIE_ERR_MEMORY_KIND: the connection
///     does not reach memory of GPUs; and when the connection has failed its cause.
/// Threads: the endpoint's. Cost: data path. Short bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_put(
    group: *mut xtie_group,
    window: *mut xtie_window,
    transfer: *const xtie_transfer,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { put(group, window, transfer, None, None, ticket_out) }
}

/// xtie_window_put with a signal: it grows at that rank once the bytes are there. It says nothing
/// of other puts.
///
/// window, transfer, ticket_out: as of xtie_window_put.
/// signal: of the window at that rank; read during the call.
/// Results: those of xtie_window_put, and XTIE_ERR_ID.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_put_signal(
    group: *mut xtie_group,
    window: *mut xtie_window,
    transfer: *const xtie_transfer,
    signal: *const xtie_add,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { put(group, window, transfer, Some(signal), None, ticket_out) }
}

/// xtie_window_put_signal with a counter: a word of this rank, which grows when the ticket ends.
///
/// window, transfer, signal, ticket_out: as of xtie_window_put_signal.
/// counter: of the window at this rank; read during the call.
/// Results: those of xtie_window_put_signal.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_put_signal_counter(
    group: *mut xtie_group,
    window: *mut xtie_window,
    transfer: *const xtie_transfer,
    signal: *const xtie_add,
    counter: *const xtie_add,
    ticket_out: *mut u64,
) -> c_int {
    // SAFETY: the caller's, by this function's comment.
    unsafe { put(group, window, transfer, Some(signal), Some(counter), ticket_out) }
}

/// Starts to get bytes of another rank's part of a window. They are there when the ticket has
/// ended. A get may pass puts that were issued before: xtie_group_fence orders them.
///
/// window: exchanged.
/// transfer: read during the call. The bytes at data are the library's to write until the ticket
///     has ended.
/// ticket_out: as of xtie_window_put; not NULL.
/// Results: those of xtie_window_put but for XTIE_ERR_READ_ONLY.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_window_get(
    group: *mut xtie_group,
    window: *mut xtie_window,
    transfer: *const xtie_transfer,
    ticket_out: *mut u64,
) -> c_int {
    if transfer.is_null() || ticket_out.is_null() {
        return room::null(group);
    }
    room::data(group, |mut inside| {
        // SAFETY: not null, and the caller's to be read.
        let xtie_transfer { data, bytes, memory, offset, rank, reserved } = unsafe { *transfer };
        if reserved != 0 {
            return inside.entered.fail(&XTIE_ERR_RESERVED);
        }
        let place = (untag(memory), data as u64, bytes as u64);
        let (endpoint, group) = inside.parts();
        // SAFETY: the caller leaves the bytes alone until the ticket has ended (crosstie.h).
        let made = unsafe { group.get(endpoint, (untag(window), rank), offset, place) };
        issued(&mut inside, made, ticket_out)
    })
}
