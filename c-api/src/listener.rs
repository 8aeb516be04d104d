//! Listeners, and attempts to connect to one.

use crate::guard;
use crate::handle::{
    tag, untag, xtie_attempt, xtie_connection, xtie_endpoint, xtie_handle, xtie_listener,
};
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use core::ffi::c_int;
use core::ptr::null_mut;
use crosstie::host::{AcceptError, ConnectError, ListenError, Shared};

/// ---- Listener and connection -------------------------------------------------------------------
///
/// Opens a listener: other endpoints connect to it with its handle. An endpoint has as many as
/// connections_max at a time; on the loopback device 4.
///
/// handle_out: the bytes for them.
/// listener_out: the listener, until xtie_listener_close or xtie_endpoint_close.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_LISTENERS_FULL, XTIE_ERR_DESCRIPTORS,
///     XTIE_ERR_SYSTEM.
/// Threads: any. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_listen(
    endpoint: *mut xtie_endpoint,
    handle_out: *mut xtie_handle,
    listener_out: *mut *mut xtie_listener,
) -> c_int {
    if handle_out.is_null() || listener_out.is_null() {
        return guard::null(endpoint);
    }
    guard::shared(endpoint, |shared| -> Result<xtie_result, ListenError> {
        let (listener, bytes) = shared.listen()?;
        // SAFETY: not null, and the caller's to be written.
        unsafe { handle_out.write(xtie_handle { bytes }) };
        // SAFETY: as above.
        unsafe { listener_out.write(tag(listener)) };
        Ok(XTIE_OK)
    })
}

/// Takes a connection that a peer has made, and perhaps closed since: it has its place among
/// connections_max until it is accepted and closed, or its listener is closed.
///
/// listener: open.
/// connection_out: the connection, until xtie_connection_close; NULL: none is there now, call
///     again.
/// Results: XTIE_OK in both cases, XTIE_ERR_NULL, XTIE_ERR_LISTENER.
/// Threads: any. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_listener_accept(
    endpoint: *mut xtie_endpoint,
    listener: *mut xtie_listener,
    connection_out: *mut *mut xtie_connection,
) -> c_int {
    if connection_out.is_null() {
        return guard::null(endpoint);
    }
    guard::shared(endpoint, |shared| -> Result<xtie_result, AcceptError> {
        let accepted = shared.accept(untag(listener))?;
        // SAFETY: not null, and the caller's to be written.
        unsafe { connection_out.write(accepted.map_or(null_mut(), tag)) };
        Ok(XTIE_OK)
    })
}

/// Closes a listener. Its handle is void; connections that nobody accepted are closed with it,
/// accepted ones stay.
///
/// listener: not to be used afterwards.
/// Results: XTIE_OK, XTIE_ERR_LISTENER.
/// Threads: any. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_listener_close(
    endpoint: *mut xtie_endpoint,
    listener: *mut xtie_listener,
) -> c_int {
    guard::shared(endpoint, |shared| -> Result<xtie_result, AcceptError> {
        shared.listener_close(untag(listener))?;
        Ok(XTIE_OK)
    })
}

/// Connects to a listener: call it again with the same arguments until *connection_out is not NULL
/// or an error comes. Nobody needs to accept for that; what nobody accepts has its place among the
/// connections of both ends all the same, also after it was closed here.
///
/// An attempt ends connect_timeout_ms (CROSSTIE_CONNECT_TIMEOUT_MS) after its first call at the
/// latest, and no other timeout ends it. XTIE_ERR_UNREACHABLE: no address of a listener on another
/// host took the connection until then, or the kernel said before that none can.
/// XTIE_ERR_DEADLINE: somebody took it, or is on this host, and did not answer.
///
/// handle: the listener's, read during the first call only.
/// attempt_inout: *attempt_inout is NULL for the first call, which starts an attempt and leaves it
///     there. When the connection is made, and also after an error, it is NULL again: the attempt
///     is over. XTIE_ERR_ATTEMPT (it is none of this endpoint's, or over) leaves it as it is, and
///     so do XTIE_ERR_NULL and errors of the endpoint itself.
/// connection_out: the connection, until xtie_connection_close; NULL: not yet.
/// Results: XTIE_OK; XTIE_ERR_NULL, XTIE_ERR_ATTEMPT; about the handle XTIE_ERR_HANDLE_CORRUPT,
///     XTIE_ERR_HANDLE_FOREIGN, XTIE_ERR_VERSION_HERE, XTIE_ERR_VERSION_PEER, XTIE_ERR_OTHER_HOST;
///     about the peer XTIE_ERR_NO_LISTENER, XTIE_ERR_PEER_FULL, XTIE_ERR_PEER_MEMORY,
///     XTIE_ERR_PEER_DESCRIPTORS, XTIE_ERR_DEADLINE, XTIE_ERR_PEER_DIED, XTIE_ERR_PROTOCOL,
///     XTIE_ERR_KEY, XTIE_ERR_NO_RAIL, XTIE_ERR_UNREACHABLE; about this side
///     XTIE_ERR_CONNECTIONS_FULL, XTIE_ERR_PEERS_FULL, XTIE_ERR_NO_MEMORY, XTIE_ERR_DESCRIPTORS,
///     XTIE_ERR_INTERFACE, XTIE_ERR_SYSTEM. xtie_endpoint_error names the peer.
/// Threads: any. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_endpoint_connect(
    endpoint: *mut xtie_endpoint,
    handle: *const xtie_handle,
    attempt_inout: *mut *mut xtie_attempt,
    connection_out: *mut *mut xtie_connection,
) -> c_int {
    if attempt_inout.is_null() || connection_out.is_null() {
        return guard::null(endpoint);
    }
    // SAFETY: not null, and the caller's to be read.
    let attempt = unsafe { attempt_inout.read() };
    if attempt.is_null() && handle.is_null() {
        return guard::null(endpoint);
    }
    guard::shared(endpoint, |shared| -> Result<xtie_result, ConnectError> {
        // SAFETY: `handle` is not null where no attempt is under way, and the caller's to be read.
        let step = unsafe { connect_step(shared, handle, attempt) };
        let (attempt, connection) = match step {
            Ok((attempt, connection)) => (attempt, connection),
            // perhaps it is another endpoint's, which stands
            Err(ConnectError::Stale) => return Err(ConnectError::Stale),
            Err(error) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { attempt_inout.write(null_mut()) };
                return Err(error);
            }
        };
        // SAFETY: as above.
        unsafe { attempt_inout.write(attempt) };
        // SAFETY: as above.
        unsafe { connection_out.write(connection) };
        Ok(XTIE_OK)
    })
}

/// One call of `xtie_endpoint_connect`: what the attempt and the connection are afterwards.
///
/// # Safety
/// - `handle` is valid for a read when `attempt` is null.
unsafe fn connect_step(
    shared: &Shared,
    handle: *const xtie_handle,
    attempt: *mut xtie_attempt,
) -> Result<(*mut xtie_attempt, *mut xtie_connection), ConnectError> {
    let attempt = if attempt.is_null() {
        // SAFETY: by this function's contract; bytes need no alignment.
        let handle = unsafe { handle.read_unaligned() };
        shared.connect(&handle.bytes)?
    } else {
        untag(attempt)
    };
    Ok(match shared.connect_poll(attempt)? {
        Some(connection) => (null_mut(), tag(connection)),
        None => (tag(attempt), null_mut()),
    })
}

/// Gives up an attempt to connect. Without this an attempt ends by itself, with XTIE_ERR_DEADLINE
/// at the latest, and keeps its place among the connections until xtie_endpoint_connect has said
/// so: one that is no longer asked for is given up here.
///
/// attempt: of xtie_endpoint_connect; over from now on.
/// Results: XTIE_OK; XTIE_ERR_ATTEMPT: it was over; where it made a connection, that stays.
/// Threads: any. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_attempt_abandon(
    endpoint: *mut xtie_endpoint,
    attempt: *mut xtie_attempt,
) -> c_int {
    guard::shared(endpoint, |shared| {
        shared.connect_abandon(untag(attempt)).map_err(|error| match error {
            crosstie::connect::CloseError::Stale => XTIE_ERR_ATTEMPT,
            crosstie::connect::CloseError::Forked => XTIE_ERR_FORKED,
        })?;
        Ok::<_, xtie_result>(XTIE_OK)
    })
}
