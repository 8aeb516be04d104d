//! Connections of an endpoint over a provider in C, and their messages. Both ends carry a blob to
//! each other in a way of their own.

use core::ffi::{c_int, c_void};

use crosstie::base::ids::ConnectionIndex;
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{RailKey, RemoteSpan};
use crosstie::transport::endpoint::ConnectionCloseError;
use crosstie::transport::limits::CREDITS;
use crosstie::transport::{ConnectionSetup, Incoming, Outgoing, RequestId};
use crosstie::wire::blob::{BLOB_BYTES, BLOB_IMMEDIATE, BLOB_PULL, BLOB_RUNS, ConnectionBlob};
use crosstie::wire::{DecodeError, GROUP_MAX};

use crate::endpoint::{Host, enter, peer_of, xtie_core_endpoint};
use crate::result::xtie_core_result;
use crate::result::xtie_core_result::*;

/// Most receives in one call of xtie_core_connection_irecv.
pub const XTIE_CORE_GROUP_MAX: u32 = 8;

/// What one end of a connection tells the other: plain data without pointers.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_core_blob {
    /// The bytes, not for reading.
    pub bytes: [u8; 192],
}

const _: () = assert!(size_of::<xtie_core_blob>() == BLOB_BYTES);
const _: () = assert!(XTIE_CORE_GROUP_MAX as usize == GROUP_MAX);

/// Room for one message. Of fixed size: it will not grow.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_core_buffer {
    /// First byte; may be NULL when bytes is zero.
    pub data: *mut c_void,
    /// Room in bytes.
    pub bytes: usize,
    /// Takes a message that was sent with this tag.
    pub tag: i32,
    /// Zero.
    pub reserved: u32,
    /// The memory that the room lies in; does not count when bytes is zero.
    pub memory: u64,
}

/// A connection that may be opened: the number is in range, and free.
fn free(host: &Host, connection: u32) -> Result<ConnectionIndex, xtie_core_result> {
    if connection >= host.machine.limits().connections_max {
        return Err(XTIE_CORE_ERR_CONNECTION);
    }
    let index = ConnectionIndex(connection);
    if host.machine.is_used(index) { Err(XTIE_CORE_ERR_CONNECTION_OPEN) } else { Ok(index) }
}

/// What the other end needs to open its end of a connection.
///
/// connection: a number of the program's, below connections_max, that is not open. blob_out: to be
/// carried to the other end, in any way.
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_CONNECTION, _CONNECTION_OPEN, or XTIE_CORE_ERR_PEER.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_connection_blob(
    endpoint: *mut xtie_core_endpoint,
    connection: u32,
    blob_out: *mut xtie_core_blob,
) -> c_int {
    if blob_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    enter(endpoint, |host| {
        let index = free(host, connection)?;
        let caps = host.machine.rail().promised();
        let mut flags = BLOB_RUNS;
        if caps.pull {
            flags |= BLOB_PULL;
        }
        if caps.immediate {
            flags |= BLOB_IMMEDIATE;
        }
        let rail = host.machine.rail_mut().peer_blob(peer_of(connection))?;
        let blob = ConnectionBlob {
            mailbox_key: host.mailbox_key.0,
            mailbox_address: host.machine.mailboxes().address(index.0),
            eager_bytes_max: host.eager.0 as u32,
            credits: CREDITS,
            groups_max: host.machine.limits().groups_max(),
            flags,
            transfer_bytes_max: caps.transfer_max.0,
            rail_bytes: host.machine.rail().blob_bytes() as u32,
            rail,
        };
        // SAFETY: not null, and valid by this function's contract.
        unsafe { blob_out.write(xtie_core_blob { bytes: blob.encode() }) };
        Ok(XTIE_CORE_OK)
    })
}

/// Opens a connection to the end that wrote blob.
///
/// connection: as told to xtie_core_connection_blob.
/// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (make progress, then call again); XTIE_CORE_ERR_BLOB,
/// _VERSION, _PEER_OTHER (what the ends can do does not fit), _PEER (the provider refused),
/// _CONNECTION, _CONNECTION_OPEN.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_connection_open(
    endpoint: *mut xtie_core_endpoint,
    connection: u32,
    blob: *const xtie_core_blob,
) -> c_int {
    if blob.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    // SAFETY: not null, and valid by this function's contract.
    let bytes = unsafe { blob.read() }.bytes;
    enter(endpoint, |host| {
        let index = free(host, connection)?;
        let blob = ConnectionBlob::decode(&bytes).map_err(|error| match error {
            DecodeError::Version(_) => XTIE_CORE_ERR_VERSION,
            DecodeError::Short
            | DecodeError::Magic
            | DecodeError::Field
            | DecodeError::Checksum => XTIE_CORE_ERR_BLOB,
        })?;
        if blob.rail_bytes as usize != host.machine.rail().blob_bytes() {
            return Err(XTIE_CORE_ERR_BLOB);
        }
        let setup = setup(host, &blob)?;
        host.machine.rail_mut().peer_open(peer_of(connection), &blob.rail)?;
        host.machine.connection_open(index, &setup);
        Ok(XTIE_CORE_OK)
    })
}

/// What both ends agree on.
fn setup(host: &Host, blob: &ConnectionBlob) -> Result<ConnectionSetup, xtie_core_result> {
    let caps = host.machine.rail().promised();
    let groups_max = host.machine.limits().groups_max();
    // a message is read in one op, so the ends read as much; writes are cut by their writer. An
    // older end says nothing of that, and reads
    let alike = [0, caps.transfer_max.0].contains(&blob.transfer_bytes_max);
    let pull = caps.pull && blob.flags & BLOB_PULL != 0 && alike;
    let push = caps.immediate && blob.flags & BLOB_IMMEDIATE != 0 && blob.groups_max == groups_max;
    if !pull && !push {
        return Err(XTIE_CORE_ERR_PEER_OTHER);
    }
    // no writer of ours says anything else
    let known = matches!(blob.groups_max, 32 | 64) && (1..=CREDITS).contains(&blob.credits);
    if !known {
        return Err(XTIE_CORE_ERR_BLOB);
    }
    Ok(ConnectionSetup {
        pull,
        mailbox: RemoteSpan { key: RailKey(blob.mailbox_key), address: blob.mailbox_address },
        eager_bytes_max: Bytes(blob.eager_bytes_max.into()),
        credits: blob.credits,
        groups_max: blob.groups_max,
        lanes: 1,
        reserve: 0,
        probed: false,
        reads_runs: blob.flags & BLOB_RUNS != 0,
        reads_filled: false,
        slots_in_rows: false,
    })
}

/// Accepts a message. The buffer is the library's until the request has ended.
///
/// data, bytes: the message, inside memory; neither counts when bytes is zero. tag: matched against
/// receives. request_out: its number.
/// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (too many are outstanding); XTIE_CORE_ERR_CONNECTION,
/// _MEMORY, _RANGE, _TOO_LONG; or what the connection has failed with.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_connection_isend(
    endpoint: *mut xtie_core_endpoint,
    connection: u32,
    data: *const c_void,
    bytes: usize,
    tag: i32,
    memory: u64,
    request_out: *mut u64,
) -> c_int {
    if request_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    let message = Outgoing {
        region: Handle::unpack(memory),
        address: data.expose_provenance() as u64,
        length: bytes as u64,
        tag,
    };
    enter(endpoint, |host| {
        let request = host.machine.isend(ConnectionIndex(connection), message)?;
        // SAFETY: not null, and valid by this function's contract.
        unsafe { request_out.write(request.0) };
        Ok(XTIE_CORE_OK)
    })
}

/// Accepts a group of receives. The buffers are the library's until the request has ended.
///
/// buffers, count: 1 to XTIE_CORE_GROUP_MAX; read during the call. request_out: its number.
/// Returns as xtie_core_connection_isend, and XTIE_CORE_ERR_GROUP or _RESERVED.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_connection_irecv(
    endpoint: *mut xtie_core_endpoint,
    connection: u32,
    buffers: *const xtie_core_buffer,
    count: usize,
    request_out: *mut u64,
) -> c_int {
    if buffers.is_null() || request_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    if count == 0 || count > GROUP_MAX {
        return XTIE_CORE_ERR_GROUP as c_int;
    }
    let none = Incoming { region: Handle::unpack(0), address: 0, length: 0, tag: 0 };
    let mut rooms = [none; GROUP_MAX];
    for (at, room) in rooms[..count].iter_mut().enumerate() {
        // SAFETY: `count` buffers, by this function's contract.
        let buffer = unsafe { buffers.add(at).read() };
        if buffer.reserved != 0 {
            return XTIE_CORE_ERR_RESERVED as c_int;
        }
        *room = Incoming {
            region: Handle::unpack(buffer.memory),
            address: buffer.data.expose_provenance() as u64,
            length: buffer.bytes as u64,
            tag: buffer.tag,
        };
    }
    enter(endpoint, |host| {
        let request = host.machine.irecv(ConnectionIndex(connection), &rooms[..count])?;
        // SAFETY: not null, and valid by this function's contract.
        unsafe { request_out.write(request.0) };
        Ok(XTIE_CORE_OK)
    })
}

/// Asks whether a request has ended. It is forgotten when it has.
///
/// done_out: 1 when it has ended, else 0. bytes_out: NULL, or written when it has ended: of a send
/// its bytes, of a group those of each receive's message, as many as the group has, also where it
/// was too long (XTIE_CORE_ERR_TRUNCATED). After other errors they say nothing.
/// Returns XTIE_CORE_OK, XTIE_CORE_ERR_STALE, or the error that the request ended with (*done_out
/// is 1 then); with a *done_out of 0 XTIE_CORE_ERR_BREACH: a provider broke its promises, and no
/// request of the endpoint ends any more. Threads: the endpoint's. Cost: no progress is made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_core_request_test(
    endpoint: *mut xtie_core_endpoint,
    request: u64,
    done_out: *mut c_int,
    bytes_out: *mut usize,
) -> c_int {
    if done_out.is_null() {
        return XTIE_CORE_ERR_NULL as c_int;
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { done_out.write(0) };
    enter(endpoint, |host| {
        let outcome = host.machine.test(RequestId(request))?;
        let Some(outcome) = outcome else { return Ok(XTIE_CORE_OK) };
        // SAFETY: as above.
        unsafe { done_out.write(1) };
        if !bytes_out.is_null() {
            for (at, length) in outcome.lengths[..outcome.count.into()].iter().enumerate() {
                // SAFETY: as many as the group has, by this function's contract.
                unsafe { bytes_out.add(at).write(*length as usize) };
            }
        }
        outcome.result?;
        Ok(XTIE_CORE_OK)
    })
}

/// Gives a connection up: its outstanding requests end with XTIE_CORE_ERR_CONNECTION_CLOSED.
///
/// A provider that loses the end of an op that it took, or of a fence (P2, P10), has
/// XTIE_CORE_AGAIN without end: nothing says that it has left alone what these requests were given,
/// so they do not end, and their memory stays busy. How long is too long is the program's to say.
/// xtie_core_endpoint_close ends the endpoint then, whatever the provider owes: behind the close of
/// its object nothing touches any memory.
///
/// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (it is being fenced: make progress, then call again);
/// XTIE_CORE_ERR_CONNECTION.
/// Threads: the endpoint's.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_connection_close(
    endpoint: *mut xtie_core_endpoint,
    connection: u32,
) -> c_int {
    enter(endpoint, |host| match host.machine.connection_close(ConnectionIndex(connection)) {
        Ok(()) => Ok(XTIE_CORE_OK),
        Err(ConnectionCloseError::Again) => Ok(XTIE_CORE_AGAIN),
        Err(ConnectionCloseError::Stale) => Err(XTIE_CORE_ERR_CONNECTION),
    })
}
