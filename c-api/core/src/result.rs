//! Result codes of the core archive, each with its sentence. A number that `crosstie.h` has too
//! means the same there.
#![deny(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use crosstie::provider::vendor::{CapsError, OpenError, PeerError, TableError};
use crosstie::transport::limits::LimitsError;
use crosstie::transport::request::RequestIdError;
use crosstie::transport::{RequestError, SubmitError};

/// What a function of the core archive answers. Zero is success, XTIE_CORE_AGAIN is an answer and
/// not an error, errors are negative. A number is never given a second meaning.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[allow(non_camel_case_types)]
pub enum xtie_core_result {
    /// Success.
    XTIE_CORE_OK = 0,
    /// Not yet: call xtie_core_endpoint_progress, then call again.
    XTIE_CORE_AGAIN = 1,

    /// A pointer that must be given is NULL.
    XTIE_CORE_ERR_NULL = -1,
    /// struct_size is not the size of any version of the structure.
    XTIE_CORE_ERR_STRUCT_SIZE = -2,
    /// The structure asks for something that this version of the library does not know.
    XTIE_CORE_ERR_STRUCT = -3,
    /// A flag is unknown.
    XTIE_CORE_ERR_FLAGS = -4,
    /// The kind of memory is unknown, or the provider cannot reach it.
    XTIE_CORE_ERR_MEMORY_KIND = -5,
    /// The storage is not aligned to 64 bytes.
    XTIE_CORE_ERR_STORAGE_ALIGN = -8,
    /// The storage is smaller than it must be.
    XTIE_CORE_ERR_STORAGE_SIZE = -9,
    /// connections_max is not from 1 to 65536.
    XTIE_CORE_ERR_CONNECTIONS_MAX = -10,
    /// requests_max is not 32, 64, 128 or 256.
    XTIE_CORE_ERR_REQUESTS_MAX = -11,
    /// regions_max is not from 1 to 65534.
    XTIE_CORE_ERR_REGIONS_MAX = -12,
    /// A reserved field is not zero.
    XTIE_CORE_ERR_RESERVED = -14,

    /// The pointer is not one that xtie_core_endpoint_open gave.
    XTIE_CORE_ERR_ENDPOINT = -20,
    /// The endpoint is closed.
    XTIE_CORE_ERR_CLOSED = -21,
    /// The connection is closed, or its number is beyond connections_max.
    XTIE_CORE_ERR_CONNECTION = -24,
    /// The memory is not registered with this endpoint.
    XTIE_CORE_ERR_MEMORY = -27,
    /// The request was tested to its end, or never was one of this endpoint.
    XTIE_CORE_ERR_STALE = -28,

    /// The buffer does not lie inside the memory that was named for it.
    XTIE_CORE_ERR_RANGE = -30,
    /// The range to register is empty or wraps around the address space.
    XTIE_CORE_ERR_REGISTER_RANGE = -31,
    /// Requests that use the memory are outstanding.
    XTIE_CORE_ERR_MEMORY_BUSY = -32,
    /// A group has 1 to 8 receives.
    XTIE_CORE_ERR_GROUP = -33,
    /// The message is longer than any message may be, or than the connection takes.
    XTIE_CORE_ERR_TOO_LONG = -34,

    /// As much memory is registered as regions_max allows.
    XTIE_CORE_ERR_REGIONS_FULL = -40,

    /// The message was longer than the receive; nothing was written to the buffer.
    XTIE_CORE_ERR_TRUNCATED = -60,
    /// The peer closed the connection.
    XTIE_CORE_ERR_PEER_CLOSED = -61,
    /// The peer's process ended, or cannot be reached any more.
    XTIE_CORE_ERR_PEER_DIED = -62,
    /// This side closed the connection before the request ended.
    XTIE_CORE_ERR_CONNECTION_CLOSED = -63,
    /// The request was canceled.
    XTIE_CORE_ERR_CANCELED = -64,
    /// The peer broke the protocol.
    XTIE_CORE_ERR_PROTOCOL = -65,
    /// The rail failed.
    XTIE_CORE_ERR_FABRIC = -66,
    /// Every rail of the connection failed, and none came back in time.
    XTIE_CORE_ERR_RAILS_LOST = -75,
    /// A rail failed, and the peer never said what it had carried.
    XTIE_CORE_ERR_NO_ANSWER = -76,
    /// A rail failed and could not be fenced in time: the request's memory may still be touched.
    XTIE_CORE_ERR_UNFENCED = -77,
    /// The peer's host acknowledged nothing on the connection for too long.
    XTIE_CORE_ERR_SILENT = -80,
    /// The peer gave the connection up, for a reason of its own: its requests ended with that.
    XTIE_CORE_ERR_PEER_GAVE_UP = -81,

    /// An entry of xtie_provider_ops that must be given is NULL; xtie_provider_ops_check names it.
    XTIE_CORE_ERR_ENTRY = -100,
    /// caps changed struct_size, or left reserved other than zero.
    XTIE_CORE_ERR_CAPS_STRUCT = -101,
    /// caps set a flag that is unknown.
    XTIE_CORE_ERR_CAPS_FLAGS = -102,
    /// The caps contradict themselves: nothing could be sent, written or received.
    XTIE_CORE_ERR_CAPS_NOTHING = -103,
    /// The caps contradict themselves: without reads and without immediates no long message ends.
    XTIE_CORE_ERR_CAPS_WAY = -104,
    /// The caps have atomic adds of another width than 8 bytes.
    XTIE_CORE_ERR_CAPS_ATOMIC = -105,
    /// The caps name an unknown fence, or promise one although fence_begin is NULL.
    XTIE_CORE_ERR_CAPS_FENCE = -106,
    /// The caps contradict themselves: what cannot be divided is longer than any transfer.
    XTIE_CORE_ERR_CAPS_GRANULE = -107,
    /// The caps name an unknown kind of system calls.
    XTIE_CORE_ERR_CAPS_SYSCALLS = -108,
    /// The caps have a blob longer than XTIE_PROVIDER_BLOB_BYTES_MAX.
    XTIE_CORE_ERR_CAPS_BLOB = -109,

    /// The provider's open refused.
    XTIE_CORE_ERR_OPEN = -110,
    /// The provider could not make or open a peer.
    XTIE_CORE_ERR_PEER = -111,
    /// The provider gave an answer, or an event, that is none.
    XTIE_CORE_ERR_BREACH = -112,
    /// An entry of the conformance suite found a promise broken.
    XTIE_CORE_ERR_PROMISE = -113,
    /// The rail cannot carry an endpoint: it has too few receives, too short sends, no fence of one
    /// peer, or does not copy sends at post.
    XTIE_CORE_ERR_RAIL_SMALL = -114,
    /// The bytes are not a connection's blob, or are damaged.
    XTIE_CORE_ERR_BLOB = -115,
    /// The blob is of another wire version.
    XTIE_CORE_ERR_VERSION = -116,
    /// Both ends have no way for long messages in common: reads at both, or immediates at both and
    /// the same requests_max.
    XTIE_CORE_ERR_PEER_OTHER = -117,
    /// The connection of that number is open already.
    XTIE_CORE_ERR_CONNECTION_OPEN = -118,
}

use xtie_core_result::*;

/// Every code with its sentence.
pub const RESULTS: &[(xtie_core_result, &CStr)] = &[
    (XTIE_CORE_OK, c"success"),
    (XTIE_CORE_AGAIN, c"not yet: make progress, then call again"),
    (XTIE_CORE_ERR_NULL, c"a pointer that must be given is NULL"),
    (XTIE_CORE_ERR_STRUCT_SIZE, c"struct_size is not the size of any version of the structure"),
    (
        XTIE_CORE_ERR_STRUCT,
        c"the structure has fields that this version of the library does not know",
    ),
    (XTIE_CORE_ERR_FLAGS, c"a flag is unknown"),
    (XTIE_CORE_ERR_MEMORY_KIND, c"the kind of memory is unknown, or the provider cannot reach it"),
    (XTIE_CORE_ERR_STORAGE_ALIGN, c"the storage is not aligned to 64 bytes"),
    (XTIE_CORE_ERR_STORAGE_SIZE, c"the storage is smaller than it must be"),
    (XTIE_CORE_ERR_CONNECTIONS_MAX, c"connections_max must be from 1 to 65536"),
    (XTIE_CORE_ERR_REQUESTS_MAX, c"requests_max must be 32, 64, 128 or 256"),
    (XTIE_CORE_ERR_REGIONS_MAX, c"regions_max must be from 1 to 65534"),
    (XTIE_CORE_ERR_RESERVED, c"a reserved field is not zero"),
    (XTIE_CORE_ERR_ENDPOINT, c"the pointer is not one that xtie_core_endpoint_open gave"),
    (XTIE_CORE_ERR_CLOSED, c"the endpoint is closed"),
    (XTIE_CORE_ERR_CONNECTION, c"the connection is closed, or beyond connections_max"),
    (XTIE_CORE_ERR_MEMORY, c"the memory is not registered with this endpoint"),
    (XTIE_CORE_ERR_STALE, c"the request was tested to its end, or is not one of this endpoint"),
    (XTIE_CORE_ERR_RANGE, c"the buffer does not lie inside the memory that was named for it"),
    (XTIE_CORE_ERR_REGISTER_RANGE, c"the range is empty or wraps around the address space"),
    (XTIE_CORE_ERR_MEMORY_BUSY, c"requests that use the memory are outstanding"),
    (XTIE_CORE_ERR_GROUP, c"a group has 1 to 8 receives"),
    (XTIE_CORE_ERR_TOO_LONG, c"the message is longer than the connection takes"),
    (XTIE_CORE_ERR_REGIONS_FULL, c"as much memory is registered as regions_max allows"),
    (XTIE_CORE_ERR_TRUNCATED, c"the message was longer than the receive"),
    (XTIE_CORE_ERR_PEER_CLOSED, c"the peer closed the connection"),
    (XTIE_CORE_ERR_PEER_DIED, c"the peer's process ended, or cannot be reached any more"),
    (XTIE_CORE_ERR_CONNECTION_CLOSED, c"this side closed the connection before the request ended"),
    (XTIE_CORE_ERR_CANCELED, c"the request was canceled"),
    (XTIE_CORE_ERR_PROTOCOL, c"the peer broke the protocol"),
    (XTIE_CORE_ERR_FABRIC, c"the rail failed"),
    (XTIE_CORE_ERR_RAILS_LOST, c"every rail of the connection failed, and none came back in time"),
    (XTIE_CORE_ERR_NO_ANSWER, c"a rail failed, and the peer never said what it had carried"),
    (XTIE_CORE_ERR_UNFENCED, c"a rail failed and could not be fenced: its memory may be touched"),
    (XTIE_CORE_ERR_SILENT, c"the peer's host acknowledged nothing for too long"),
    (XTIE_CORE_ERR_PEER_GAVE_UP, c"the peer gave the connection up, and its requests say why"),
    (XTIE_CORE_ERR_ENTRY, c"an entry of the provider's table that must be given is NULL"),
    (XTIE_CORE_ERR_CAPS_STRUCT, c"caps changed struct_size, or reserved is not zero"),
    (XTIE_CORE_ERR_CAPS_FLAGS, c"the provider's caps have an unknown flag"),
    (XTIE_CORE_ERR_CAPS_NOTHING, c"by its caps the provider could not send, write or receive"),
    (XTIE_CORE_ERR_CAPS_WAY, c"by its caps the provider has no way for long messages"),
    (XTIE_CORE_ERR_CAPS_ATOMIC, c"the caps have atomic adds of another width than 8 bytes"),
    (XTIE_CORE_ERR_CAPS_FENCE, c"the caps' fence is unknown, or fence_begin is NULL"),
    (XTIE_CORE_ERR_CAPS_GRANULE, c"by the caps a part of a copy is longer than any transfer"),
    (XTIE_CORE_ERR_CAPS_SYSCALLS, c"the caps name an unknown kind of system calls"),
    (XTIE_CORE_ERR_CAPS_BLOB, c"the caps have a blob longer than XTIE_PROVIDER_BLOB_BYTES_MAX"),
    (XTIE_CORE_ERR_OPEN, c"the provider's open refused"),
    (XTIE_CORE_ERR_PEER, c"the provider could not open a peer"),
    (XTIE_CORE_ERR_BREACH, c"the provider gave an answer, or an event, that is not valid"),
    (XTIE_CORE_ERR_PROMISE, c"an entry of the conformance suite found a promise broken"),
    (XTIE_CORE_ERR_RAIL_SMALL, c"the provider's rail is too small to carry an endpoint"),
    (XTIE_CORE_ERR_BLOB, c"the bytes are not a connection's blob, or are damaged"),
    (XTIE_CORE_ERR_VERSION, c"the blob is of another wire version"),
    (XTIE_CORE_ERR_PEER_OTHER, c"the two ends have no common way for long messages"),
    (XTIE_CORE_ERR_CONNECTION_OPEN, c"the connection of that number is open already"),
];

/// One sentence for a result code of the core archive.
///
/// result: any number; one that is no code has a sentence too.
/// Returns a static string in English, without a full stop.
/// Threads: any. Cost: a search of a short table.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C" fn xtie_core_result_str(result: c_int) -> *const c_char {
    let known = RESULTS.iter().find(|(code, _)| *code as c_int == result);
    known.map_or(c"not a result code of crosstie", |(_, sentence)| *sentence).as_ptr()
}

impl From<TableError> for xtie_core_result {
    fn from(error: TableError) -> xtie_core_result {
        match error {
            TableError::Null => XTIE_CORE_ERR_NULL,
            TableError::Size => XTIE_CORE_ERR_STRUCT_SIZE,
            TableError::Longer => XTIE_CORE_ERR_STRUCT,
            TableError::Reserved => XTIE_CORE_ERR_RESERVED,
            TableError::Entry(_) => XTIE_CORE_ERR_ENTRY,
        }
    }
}

impl From<OpenError> for xtie_core_result {
    fn from(error: OpenError) -> xtie_core_result {
        match error {
            OpenError::Refused(_) => XTIE_CORE_ERR_OPEN,
            OpenError::Caps(CapsError::Size) => XTIE_CORE_ERR_CAPS_STRUCT,
            OpenError::Caps(CapsError::Flags) => XTIE_CORE_ERR_CAPS_FLAGS,
            OpenError::Caps(CapsError::Nothing) => XTIE_CORE_ERR_CAPS_NOTHING,
            OpenError::Caps(CapsError::Way) => XTIE_CORE_ERR_CAPS_WAY,
            OpenError::Caps(CapsError::Atomic) => XTIE_CORE_ERR_CAPS_ATOMIC,
            OpenError::Caps(CapsError::Fence) => XTIE_CORE_ERR_CAPS_FENCE,
            OpenError::Caps(CapsError::Granule) => XTIE_CORE_ERR_CAPS_GRANULE,
            OpenError::Caps(CapsError::Syscalls) => XTIE_CORE_ERR_CAPS_SYSCALLS,
            OpenError::Caps(CapsError::Blob) => XTIE_CORE_ERR_CAPS_BLOB,
        }
    }
}

impl From<PeerError> for xtie_core_result {
    fn from(error: PeerError) -> xtie_core_result {
        match error {
            PeerError::Again => XTIE_CORE_AGAIN,
            PeerError::Blob => XTIE_CORE_ERR_BLOB,
            PeerError::Refused(_) => XTIE_CORE_ERR_PEER,
        }
    }
}

impl From<LimitsError> for xtie_core_result {
    fn from(error: LimitsError) -> xtie_core_result {
        match error {
            LimitsError::Connections => XTIE_CORE_ERR_CONNECTIONS_MAX,
            LimitsError::Requests => XTIE_CORE_ERR_REQUESTS_MAX,
            LimitsError::Regions => XTIE_CORE_ERR_REGIONS_MAX,
            LimitsError::Rails => XTIE_CORE_ERR_STRUCT,
        }
    }
}

impl From<RequestError> for xtie_core_result {
    fn from(error: RequestError) -> xtie_core_result {
        match error {
            RequestError::Truncated => XTIE_CORE_ERR_TRUNCATED,
            RequestError::PeerClosed => XTIE_CORE_ERR_PEER_CLOSED,
            RequestError::PeerDied => XTIE_CORE_ERR_PEER_DIED,
            RequestError::Closed => XTIE_CORE_ERR_CONNECTION_CLOSED,
            RequestError::Canceled => XTIE_CORE_ERR_CANCELED,
            RequestError::Protocol => XTIE_CORE_ERR_PROTOCOL,
            RequestError::Fabric(_) => XTIE_CORE_ERR_FABRIC,
            RequestError::RailsLost(_) => XTIE_CORE_ERR_RAILS_LOST,
            RequestError::NoAnswer => XTIE_CORE_ERR_NO_ANSWER,
            RequestError::PeerGaveUp => XTIE_CORE_ERR_PEER_GAVE_UP,
            RequestError::Unfenced => XTIE_CORE_ERR_UNFENCED,
            RequestError::Silent => XTIE_CORE_ERR_SILENT,
        }
    }
}

impl From<SubmitError> for xtie_core_result {
    fn from(error: SubmitError) -> xtie_core_result {
        match error {
            SubmitError::Again => XTIE_CORE_AGAIN,
            SubmitError::Failed(error) => error.into(),
            SubmitError::Connection => XTIE_CORE_ERR_CONNECTION,
            SubmitError::Region => XTIE_CORE_ERR_MEMORY,
            SubmitError::Range => XTIE_CORE_ERR_RANGE,
            SubmitError::Device => XTIE_CORE_ERR_MEMORY,
            SubmitError::Group => XTIE_CORE_ERR_GROUP,
            SubmitError::TooLong => XTIE_CORE_ERR_TOO_LONG,
            SubmitError::RequestsMax => XTIE_CORE_ERR_PEER_OTHER,
        }
    }
}

impl From<RequestIdError> for xtie_core_result {
    fn from(error: RequestIdError) -> xtie_core_result {
        match error {
            RequestIdError::Stale => XTIE_CORE_ERR_STALE,
            RequestIdError::Busy => XTIE_CORE_AGAIN,
        }
    }
}
