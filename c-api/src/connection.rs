//! Connections: messages in and out, the peer's name, the end.

use crate::errors::Ended;
use crate::guard::{self, Entered};
use crate::handle::{tag, untag, xtie_connection, xtie_endpoint, xtie_memory, xtie_request};
use crate::result::xtie_result::*;
use crate::structs::give_text;
use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::slice;
use crosstie::base::slab::Handle;
use crosstie::host::endpoint::{Closing, ConnectionRail};
use crosstie::transport::{Incoming, Outgoing, SubmitError};
use crosstie::wire::GROUP_MAX;

/// Room for one message. Of fixed size: it will not grow.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_buffer {
    /// First byte; may be NULL when bytes is zero.
    pub data: *mut c_void,
    /// Room in bytes.
    pub bytes: usize,
    /// Takes a message that was sent with this tag.
    pub tag: i32,
    /// Zero.
    pub reserved: u32,
    /// The memory that the room lies in; may be NULL when bytes is zero.
    pub memory: *mut xtie_memory,
}

/// ---- Message -----------------------------------------------------------------------------------
///
/// Starts to send a message. Messages of one connection and tag arrive in the order of these
/// calls; the receiver needs a receive for each.
///
/// The request of a short message ends when it was copied, which may be at once: test it all the
/// same. That of a long one ends when the receiver has its bytes. Neither says that the receiving
/// program has looked at them.
///
/// connection: where to.
/// data: first byte of the message; the library's to read until the request has ended.
/// bytes: its length, from 0 to 2^40, and where rail 0 of the connection is TCP to 2^36: a message
///     has 64 parts, and one of TCP's is 2^30 bytes long at most. Other rails may carry less in one
///     part (ports of RDMA, rails of vendors): messages too long for them leave them out.
/// tag: any number; the receiver's buffer has the same.
/// memory: registered memory that the message lies in; not looked at when bytes is zero.
/// request_out: to be tested to its end; NULL: there is no room now (requests_max sends are
///     outstanding, or as many as the peer takes), nothing was sent: make progress, call again.
/// Results: XTIE_OK in both cases; XTIE_ERR_NULL, XTIE_ERR_CONNECTION, XTIE_ERR_MEMORY,
///     XTIE_ERR_RANGE, XTIE_ERR_TOO_LONG (the sentence has the limit); XTIE_ERR_REQUESTS_MAX: over
///     TCP the ends do not go together; and when the connection has failed its cause, such as
///     XTIE_ERR_PEER_DIED or XTIE_ERR_PEER_CLOSED.
/// Threads: the endpoint's. Cost: data path. A short message is copied. Through shared memory it
/// leaves at once, else with the test of its request or any progress: several in one call of the
/// system. What that has no room for leaves with later progress; the request of a message of more
/// than 8192 bytes ends only then.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // a structure would be filled and read again for each message
pub unsafe extern "C" fn xtie_connection_isend(
    endpoint: *mut xtie_endpoint,
    connection: *mut xtie_connection,
    data: *const c_void,
    bytes: usize,
    tag: i32,
    memory: *mut xtie_memory,
    request_out: *mut *mut xtie_request,
) -> c_int {
    if request_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        let connection: Handle = untag(connection);
        let message =
            Outgoing { region: untag(memory), address: data as u64, length: bytes as u64, tag };
        let request = match entered.host.isend(connection, message) {
            Ok(request) => self::tag(request),
            Err(SubmitError::Again) => null_mut(),
            Err(SubmitError::TooLong) => return too_long(&mut entered, connection),
            Err(error) => return entered.fail(&Ended::submit(error, connection)),
        };
        // SAFETY: not null, and the caller's to be written.
        unsafe { request_out.write(request) };
        XTIE_OK as c_int
    })
}

#[cold]
fn too_long(entered: &mut Entered<'_>, connection: Handle) -> c_int {
    let bytes_max = entered.host.message_bytes_max(connection);
    entered.fail(&Ended { bytes_max, ..Ended::submit(SubmitError::TooLong, connection) })
}

/// Offers a group of buffers for 1 to XTIE_GROUP_MAX messages, one each; its request ends when all
/// of them have theirs.
///
/// Only the oldest group that is not full takes messages: each goes to the group's first free
/// buffer with its tag. A message whose tag the group does not have waits for a later group, while
/// others pass it. So one receive at a time matches in the order of the sends, if their tags agree.
/// Two receives are two groups: the second takes nothing before the first has all its messages.
///
/// Short messages may wait here for a group that takes them, so many of one connection: 48 where
/// shared memory alone carries it, but no more than send_ring_bytes hold, which by default are 30
/// of 2048 bytes and 7 of 8192; and 24 where TCP does, alone or beside shared memory (fewer than
/// the smallest requests_max: the sender has to remember them until it sees their groups), or 8
/// where one of more than 8192 bytes is sent behind them; and on the loopback device 48 of 1024
/// bytes at most. Further ones, and all long ones (over TCP those of more than 131072 bytes), wait
/// at the sender, whatever their tags: their requests do not end, and when requests_max sends are
/// outstanding xtie_connection_isend gives NULL until a receive takes one. Do not wait for a send
/// before the peer has posted the receives of what was sent before it: post receives for what is
/// sent.
///
/// A message longer than its buffer is not written: the request ends with XTIE_ERR_TRUNCATED once
/// the group is full, sizes_out of xtie_request_test has the message's length, and the send ends
/// well. The message is gone; the group's others are there.
///
/// connection: where from.
/// buffers: read only during the call; the bytes that they name are the library's to write until
///     the request has ended.
/// count: how many.
/// request_out: to be tested to its end; NULL: there is no room now, mostly because the group
///     that was posted requests_max groups before has not been tested to its end: test that, make
///     progress, call again.
/// Results: XTIE_OK in both cases; XTIE_ERR_NULL, XTIE_ERR_GROUP, XTIE_ERR_RESERVED,
///     XTIE_ERR_CONNECTION, XTIE_ERR_MEMORY, XTIE_ERR_RANGE; XTIE_ERR_TOO_LONG: a buffer of more
///     than 2^40 bytes; XTIE_ERR_REQUESTS_MAX as of isend; and when the connection has failed its
///     cause.
/// Threads: the endpoint's. Cost: data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_connection_irecv(
    endpoint: *mut xtie_endpoint,
    connection: *mut xtie_connection,
    buffers: *const xtie_buffer,
    count: u32,
    request_out: *mut *mut xtie_request,
) -> c_int {
    if buffers.is_null() || request_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        if count == 0 || count as usize > GROUP_MAX {
            return entered.fail(&XTIE_ERR_GROUP);
        }
        let mut rooms = [const { MaybeUninit::<Incoming>::uninit() }; GROUP_MAX];
        for (at, room) in rooms.iter_mut().enumerate().take(count as usize) {
            // SAFETY: the caller has `count` buffers there (crosstie.h).
            let buffer = unsafe { &*buffers.add(at) };
            if buffer.reserved != 0 {
                return entered.fail(&XTIE_ERR_RESERVED);
            }
            room.write(Incoming {
                region: untag(buffer.memory),
                address: buffer.data as u64,
                length: buffer.bytes as u64,
                tag: buffer.tag,
            });
        }
        // SAFETY: the loop has written the first `count`, at most GROUP_MAX of them.
        let rooms = unsafe { slice::from_raw_parts(rooms.as_ptr().cast(), count as usize) };
        let connection: Handle = untag(connection);
        let request = match entered.host.irecv(connection, rooms) {
            Ok(request) => tag(request),
            Err(SubmitError::Again) => null_mut(),
            Err(error) => return entered.fail(&Ended::submit(error, connection)),
        };
        // SAFETY: not null, and the caller's to be written.
        unsafe { request_out.write(request) };
        XTIE_OK as c_int
    })
}

/// The peer's program, process and host, as text for people.
///
/// connection: open.
/// text_out: room for it, in UTF-8; what does not fit is cut. 128 bytes hold any.
/// text_bytes: that room in bytes, with the zero at the end; not zero.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_TEXT, XTIE_ERR_CONNECTION.
/// Threads: any. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_connection_peer(
    endpoint: *const xtie_endpoint,
    connection: *const xtie_connection,
    text_out: *mut c_char,
    text_bytes: usize,
) -> c_int {
    guard::shared(endpoint, |shared| {
        let mut text = [0u8; 128];
        let connection: Handle = untag(connection);
        if !shared.is_live(connection) {
            return Err(XTIE_ERR_CONNECTION);
        }
        let length = shared.peer_text(connection, &mut text);
        // SAFETY: null, or `text_bytes` of the caller's.
        unsafe { give_text(text_out, text_bytes, &text[..length]) }
    })
}

/// Rail of a connection: shared memory.
pub const XTIE_RAIL_SHARED_MEMORY: u32 = 1;
/// Rail of a connection: the endpoint itself.
pub const XTIE_RAIL_LOOPBACK: u32 = 2;
/// Rail of a connection: TCP.
pub const XTIE_RAIL_TCP: u32 = 3;
// 4 is retired: it stood for shared memory and TCP in one connection.
/// Rail of a connection: RDMA ports; of a connection it says that TCP is rail 0, their reserve.
pub const XTIE_RAIL_VERBS: u32 = 5;
/// Rail of a connection: NICs that libfabric reaches; of a connection likewise.
pub const XTIE_RAIL_LIBFABRIC: u32 = 6;
/// Rail of a connection: rails of vendors; of a connection likewise.
pub const XTIE_RAIL_VENDOR: u32 = 7;

/// What a connection runs over. It stays the same until the connection is closed.
///
/// connection: open.
/// rail_out: one of XTIE_RAIL_.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_CONNECTION.
/// Threads: the endpoint's. Cost: control path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_connection_rail(
    endpoint: *mut xtie_endpoint,
    connection: *const xtie_connection,
    rail_out: *mut u32,
) -> c_int {
    if rail_out.is_null() {
        return guard::null(endpoint);
    }
    guard::data(endpoint, |mut entered| {
        let rail = match entered.host.connection_rail(untag(connection)) {
            Some(ConnectionRail::Shm) => XTIE_RAIL_SHARED_MEMORY,
            Some(ConnectionRail::Loopback) => XTIE_RAIL_LOOPBACK,
            Some(ConnectionRail::Tcp) => XTIE_RAIL_TCP,
            Some(ConnectionRail::Verbs) => XTIE_RAIL_VERBS,
            Some(ConnectionRail::Libfabric) => XTIE_RAIL_LIBFABRIC,
            Some(ConnectionRail::Vendor) => XTIE_RAIL_VENDOR,
            None => return entered.fail(&XTIE_ERR_CONNECTION),
        };
        // SAFETY: not null, and the caller's to be written.
        unsafe { rail_out.write(rail) };
        XTIE_OK as c_int
    })
}

/// Closes a connection: call it again while it answers XTIE_AGAIN. After XTIE_OK nothing reads or
/// writes the buffers of its requests any more. Those that were outstanding have ended with
/// XTIE_ERR_CONNECTION_CLOSED, which can be tested until another connection is made; the peer's
/// end with XTIE_ERR_PEER_CLOSED. Messages whose requests have ended still reach the host of a
/// living peer, others are lost; beside a long send that has not ended, over RDMA, libfabric and
/// rails of vendors as far as 200 ms are enough. What a dead rail has lost of them goes over
/// another first, for which the peer must make progress; closing waits CROSSTIE_PEER_TIMEOUT_MS for
/// that, and says in a warning that it has given up. That the peer's program has a message is known
/// by a message of its own alone. Of messages that are lost the receives end with the cause, and a
/// later message of the same tag does not go into them, but may into the receives behind.
///
/// A closed connection keeps its place, of which there are connections_max, until the peer's
/// program has closed its end, too, or is gone: the peer may use what they share until then.
///
/// connection: not to be used after XTIE_OK.
/// Results: XTIE_OK; XTIE_AGAIN: operations on its memory are being stopped, or messages
///     are on their way, make progress first; XTIE_ERR_CONNECTION. A rail that nothing can stop any
///     more (its requests have ended with XTIE_ERR_UNFENCED) has XTIE_AGAIN without end: leave the
///     connection to xtie_endpoint_close then.
/// Threads: the endpoint's. Cost: control path; never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_connection_close(
    endpoint: *mut xtie_endpoint,
    connection: *mut xtie_connection,
) -> c_int {
    guard::data(endpoint, |mut entered| match entered.host.connection_close(untag(connection)) {
        Closing::Closed => XTIE_OK as c_int,
        Closing::Again => XTIE_AGAIN as c_int,
        Closing::Stale => entered.fail(&XTIE_ERR_CONNECTION),
    })
}
