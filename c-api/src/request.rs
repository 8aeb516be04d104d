//! Requests: what became of a message.

use crate::errors::Ended;
use crate::guard::{self, Entered};
use crate::handle::{untag, xtie_endpoint, xtie_request};
use crate::result::xtie_result::*;
use core::ffi::c_int;
use crosstie::transport::request::{RequestIdError, RequestKind};
use crosstie::transport::{RequestError, RequestId};

/// Asks whether a request has ended, and how; makes progress while it has not. Nothing moves
/// between calls: who waits keeps calling this, or xtie_endpoint_progress. The end is told once;
/// the request is gone then, and its buffers and memory are the caller's again. (A short send that
/// was complete when it was accepted has nothing to forget: asked again it says the same again.)
/// The end of a send says nothing of the peer: what a full socket did not take, or was on a rail
/// that dies, moves when the sender makes progress again, as a test does of what is outstanding or
/// has not left. So who has nothing to wait for, but a peer that waits for what was sent, or for
/// receives, calls xtie_endpoint_progress now and then, or closes the connection.
///
/// The one function whose error may be the request's own: when *done_out was set to 1, the result
/// is how the request ended, else why the call failed. Set the variable to 0 before.
///
/// request: of isend or irecv.
/// done_out: 1: it has ended; 0: call again.
/// sizes_out: NULL, or one entry for a send and as many as buffers for a receive, written when it
///     has ended: bytes sent, or of the message for each buffer, also where it was too long
///     (XTIE_ERR_TRUNCATED). After other errors the entries say nothing.
/// Results: XTIE_OK; of the request XTIE_ERR_TRUNCATED, XTIE_ERR_PEER_CLOSED, XTIE_ERR_PEER_DIED,
///     XTIE_ERR_CONNECTION_CLOSED, XTIE_ERR_CANCELED, XTIE_ERR_PROTOCOL, XTIE_ERR_PEER_GAVE_UP,
///     XTIE_ERR_SILENT, XTIE_ERR_FABRIC, XTIE_ERR_RAILS_LOST, XTIE_ERR_NO_ANSWER,
///     XTIE_ERR_UNFENCED; of the call XTIE_ERR_NULL, XTIE_ERR_STALE.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_request_test(
    endpoint: *mut xtie_endpoint,
    request: *mut xtie_request,
    done_out: *mut c_int,
    sizes_out: *mut usize,
) -> c_int {
    if done_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        let request: RequestId = untag(request);
        // By reference: an outcome is 80 bytes, and copying it would cost as much as the call.
        let asked = entered.host.test(request);
        let outcome = match &asked {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { done_out.write(0) };
                return XTIE_OK as c_int;
            }
            Err(_) => return entered.fail(&XTIE_ERR_STALE),
        };
        // SAFETY: as above.
        unsafe { done_out.write(1) };
        if !sizes_out.is_null() {
            for (at, length) in outcome.lengths.iter().enumerate().take(outcome.count.into()) {
                // SAFETY: the caller has an entry for each buffer (crosstie.h).
                unsafe { sizes_out.add(at).write(*length as usize) };
            }
        }
        match outcome.result {
            Ok(()) => XTIE_OK as c_int,
            Err(error) => ended(&mut entered, request, error),
        }
    })
}

#[cold]
fn ended(entered: &mut Entered<'_>, request: RequestId, error: RequestError) -> c_int {
    let connection = match request.unpack() {
        Some(RequestKind::Send { connection, .. } | RequestKind::Receive { connection, .. }) => {
            // not whichever has its place by now
            entered.host.used_at(connection.0)
        }
        Some(RequestKind::Complete { .. }) | None => None,
    };
    entered.fail(&Ended::request(error, connection))
}

/// Asks for a request to end early, with XTIE_ERR_CANCELED: a receive that no message has reached,
/// or a send that has not left. Where receives are offered to senders (any rail but shared memory
/// alone, and that with XTIE_ENDPOINT_PUSH) a long message leaves when its receive is there. Where
/// shared memory alone carries the connection the peer is told at once where a long message lies
/// (one of more than eager_bytes_max, in memory of xtie_memory_alloc of more than 1024 bytes), and
/// reads it when a receive takes it: such a send is under way as soon as it is made, and its memory
/// in use until it is received or the connection closed.
///
/// A request that is canceled must still be tested to its end, and may end otherwise: a receive
/// that the peer knows of ends when those posted before it have ended, or have been canceled, too,
/// and until then a message may come. The peer's program must make progress meanwhile, and have
/// posted something on its end of the connection.
///
/// request: of isend or irecv, not yet tested to its end.
/// Results: XTIE_OK; XTIE_ERR_UNDER_WAY: its data may be moving, so it ends with the message, when
///     the peer receives it, or with the connection; XTIE_ERR_STALE. A send that is complete
///     already is under way in this sense.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_request_cancel(
    endpoint: *mut xtie_endpoint,
    request: *mut xtie_request,
) -> c_int {
    guard::data(endpoint, |mut entered| match entered.host.cancel(untag(request)) {
        Ok(()) => XTIE_OK as c_int,
        Err(RequestIdError::Busy) => entered.fail(&XTIE_ERR_UNDER_WAY),
        Err(RequestIdError::Stale) => entered.fail(&XTIE_ERR_STALE),
    })
}
