//! Result codes, each with its sentence.
#![deny(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};

/// What a function answers. Zero is success, XTIE_AGAIN is an answer and not an error, errors are
/// negative. A number is never given a second meaning.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum xtie_result {
    /// Success.
    XTIE_OK = 0,
    /// Not yet: call xtie_endpoint_progress, or of a group xtie_group_progress, then call again.
    XTIE_AGAIN = 1,

    /// A pointer that must be given is NULL; ERRORS above says which.
    XTIE_ERR_NULL = -1,
    /// struct_size is not the size of any version of the structure.
    XTIE_ERR_STRUCT_SIZE = -2,
    /// The structure asks for something that this version of the library does not know.
    XTIE_ERR_STRUCT = -3,
    /// A flag is unknown.
    XTIE_ERR_FLAGS = -4,
    /// The kind of memory is unknown, or the device cannot reach it.
    XTIE_ERR_MEMORY_KIND = -5,
    /// There is no device of that number.
    XTIE_ERR_DEVICE = -6,
    /// The device cannot be used on this host.
    XTIE_ERR_DEVICE_UNAVAILABLE = -7,
    /// The storage is not aligned to XTIE_STORAGE_ALIGN bytes.
    XTIE_ERR_STORAGE_ALIGN = -8,
    /// The storage is smaller than xtie_endpoint_size, or xtie_group_size, asks for.
    XTIE_ERR_STORAGE_SIZE = -9,
    /// connections_max is not from 1 to 65536.
    XTIE_ERR_CONNECTIONS_MAX = -10,
    /// requests_max is not 32, 64, 128 or 256; of a connection over TCP: it is 32 at one end, and
    /// more at the other.
    XTIE_ERR_REQUESTS_MAX = -11,
    /// regions_max is not from 1 to 65534.
    XTIE_ERR_REGIONS_MAX = -12,
    /// A ring size is no power of two from 4096 to 131072 (send ring) or 16777216 (write ring), or
    /// the eager size is over a quarter of the send ring less 64 bytes, or over 16384, or the heap
    /// 2^47 bytes or more.
    XTIE_ERR_RINGS = -13,
    /// A reserved field is not zero.
    XTIE_ERR_RESERVED = -14,
    /// There is no room for text.
    XTIE_ERR_TEXT = -15,
    /// An endpoint that is not closed stands in the storage.
    XTIE_ERR_STORAGE_IN_USE = -16,
    /// A limit of the group is out of range; the log says which.
    XTIE_ERR_GROUP_LIMITS = -17,
    /// The comparison is none of XTIE_COMPARE_.
    XTIE_ERR_COMPARISON = -18,
    /// There is no such algorithm of AllGathers, or the ranks' hosts do not allow it.
    XTIE_ERR_ALGORITHM = -19,

    /// The pointer is not one that xtie_endpoint_open gave.
    XTIE_ERR_ENDPOINT = -20,
    /// The endpoint is closed.
    XTIE_ERR_CLOSED = -21,
    /// A bug of the library showed in an earlier call; the endpoint can no longer be used.
    XTIE_ERR_POISONED = -22,
    /// The endpoint was opened before a fork, and belongs to the parent process.
    XTIE_ERR_FORKED = -23,
    /// The connection is closed, or never was one of this endpoint.
    XTIE_ERR_CONNECTION = -24,
    /// The listener is closed, or never was one of this endpoint.
    XTIE_ERR_LISTENER = -25,
    /// The attempt is over or abandoned, or never was one of this endpoint.
    XTIE_ERR_ATTEMPT = -26,
    /// The memory is not registered with this endpoint.
    XTIE_ERR_MEMORY = -27,
    /// The request was tested to its end, or never was one of this endpoint.
    XTIE_ERR_STALE = -28,
    /// The pointer is not one that xtie_group_open gave.
    XTIE_ERR_NO_GROUP = -29,

    /// The buffer does not lie inside the memory that was named for it.
    XTIE_ERR_RANGE = -30,
    /// The range to register is empty, or longer than can be, or wraps around the address space.
    XTIE_ERR_REGISTER_RANGE = -31,
    /// Requests that use the memory are outstanding.
    XTIE_ERR_MEMORY_BUSY = -32,
    /// A group has 1 to XTIE_GROUP_MAX receives.
    XTIE_ERR_GROUP = -33,
    /// The message is longer than any message may be, or than the connection takes.
    XTIE_ERR_TOO_LONG = -34,
    /// The request is under way already, or has ended: test it until it says so.
    XTIE_ERR_UNDER_WAY = -35,
    /// The bytes do not lie inside that rank's part of the window.
    XTIE_ERR_WINDOW_RANGE = -36,
    /// Other ranks may only read that rank's part of the window.
    XTIE_ERR_READ_ONLY = -37,
    /// The window has no signal, counter or barrier of that number.
    XTIE_ERR_ID = -38,
    /// The group has no rank of that number.
    XTIE_ERR_RANK = -39,

    /// As much memory is registered as regions_max allows.
    XTIE_ERR_REGIONS_FULL = -40,
    /// All listeners are in use.
    XTIE_ERR_LISTENERS_FULL = -41,
    /// As many connections are open as connections_max allows, with those that are closed here and
    /// not by their peers.
    XTIE_ERR_CONNECTIONS_FULL = -42,
    /// The endpoint is connected to as many other endpoints as it can be.
    XTIE_ERR_PEERS_FULL = -43,
    /// The process may open no more file descriptors (ulimit -n).
    XTIE_ERR_DESCRIPTORS = -44,
    /// There is not enough (shared) memory.
    XTIE_ERR_NO_MEMORY = -45,
    /// The operating system refused.
    XTIE_ERR_SYSTEM = -46,
    /// All windows of the group are in use.
    XTIE_ERR_WINDOWS_FULL = -47,
    /// All prepared AllGathers of the group are in use.
    XTIE_ERR_ALL_GATHERS_FULL = -48,
    /// The AllGather was destroyed, or its window freed; or it is not one of that stream.
    XTIE_ERR_ALL_GATHER = -49,

    /// The handle is damaged.
    XTIE_ERR_HANDLE_CORRUPT = -50,
    /// The bytes are not a handle of this library.
    XTIE_ERR_HANDLE_FOREIGN = -51,
    /// The peer speaks a newer wire version: upgrade this side.
    XTIE_ERR_VERSION_HERE = -52,
    /// The peer speaks an older wire version: upgrade the peer.
    XTIE_ERR_VERSION_PEER = -53,
    /// The listener is on another host, which this device does not reach; of the loopback device:
    /// it is another endpoint's.
    XTIE_ERR_OTHER_HOST = -54,
    /// Nobody listens there any more; another program may answer in its place.
    XTIE_ERR_NO_LISTENER = -55,
    /// The peer has no connection left.
    XTIE_ERR_PEER_FULL = -56,
    /// The peer has no memory for a connection.
    XTIE_ERR_PEER_MEMORY = -57,
    /// The peer may open no more file descriptors.
    XTIE_ERR_PEER_DESCRIPTORS = -58,
    /// The peer did not answer within CROSSTIE_CONNECT_TIMEOUT_MS, although somebody took the
    /// connection, or it is on this host.
    XTIE_ERR_DEADLINE = -59,

    /// The message was longer than the receive; nothing was written to the buffer.
    XTIE_ERR_TRUNCATED = -60,
    /// The peer closed the connection.
    XTIE_ERR_PEER_CLOSED = -61,
    /// The peer's process ended, or cannot be reached any more.
    XTIE_ERR_PEER_DIED = -62,
    /// This side closed the connection before the request ended.
    XTIE_ERR_CONNECTION_CLOSED = -63,
    /// The request was canceled.
    XTIE_ERR_CANCELED = -64,
    /// The peer broke the protocol.
    XTIE_ERR_PROTOCOL = -65,
    /// The rail failed.
    XTIE_ERR_FABRIC = -66,
    /// The rank that has the window could not move the bytes.
    XTIE_ERR_WINDOW_MEMORY = -67,
    /// That rank has freed its part of the window.
    XTIE_ERR_WINDOW_FREED = -68,
    /// A NIC failed before it had added to a counter of the window: its counters are not known.
    XTIE_ERR_OUTCOME_UNKNOWN = -69,

    /// One side does not let the other in: the shared keys differ, or one alone has one
    /// (CROSSTIE_KEY_FILE); or on this host, without a key, it is another user's process
    /// (CROSSTIE_ALLOW_UIDS).
    XTIE_ERR_KEY = -70,
    /// Of open: CROSSTIE_RAILS leaves the device no rail, or CROSSTIE_RAILS_REQUIRED names one that
    /// is not to be had. Of connect: no rail that both sides allow leads to the peer.
    XTIE_ERR_NO_RAIL = -71,
    /// None of the peer's addresses can be reached: the kernel said so, or none took the connection
    /// within CROSSTIE_CONNECT_TIMEOUT_MS.
    XTIE_ERR_UNREACHABLE = -72,
    /// Of open: no chosen interface that is up has an address (CROSSTIE_SOCKET_IFNAME). Of connect:
    /// no such interface leads to the peer.
    XTIE_ERR_INTERFACE = -73,
    /// The file of CROSSTIE_KEY_FILE cannot be used.
    XTIE_ERR_KEY_FILE = -74,
    /// Every rail of the connection failed, and none came back in time.
    XTIE_ERR_RAILS_LOST = -75,
    /// A rail failed, and the peer never said what it had carried.
    XTIE_ERR_NO_ANSWER = -76,
    /// A rail failed and could not be fenced in time: the request's memory may still be touched. It
    /// must stay mapped; deregistering it says XTIE_ERR_MEMORY_BUSY until the fence holds.
    XTIE_ERR_UNFENCED = -77,
    /// rails_max is not 1, 2, 4 or 8.
    XTIE_ERR_RAILS_MAX = -78,
    /// The connection has no rail of that number.
    XTIE_ERR_RAIL = -79,
    /// The peer's host acknowledged nothing on the connection for too long, although the peer was
    /// heard otherwise: packets are lost on the way.
    XTIE_ERR_SILENT = -80,
    /// The peer gave the connection up, for a reason of its own: its requests ended with that.
    XTIE_ERR_PEER_GAVE_UP = -81,
    /// A rail of a vendor's that the program gives is none; the log says which and why.
    XTIE_ERR_VENDOR_RAIL = -82,
    /// Of open: a CROSSTIE_ variable of the environment has a value that cannot be meant. The log
    /// has a line with its name, its value and what it may be.
    XTIE_ERR_SETTING = -83,
    /// The memory does not lie on the device that was named.
    XTIE_ERR_MEMORY_DEVICE = -84,
    /// The descriptor is no dma-buf, or is given for memory that has none.
    XTIE_ERR_DMABUF = -85,
    /// The memory ends beyond the dma-buf.
    XTIE_ERR_DMABUF_RANGE = -86,
    /// The time that was given has passed.
    XTIE_ERR_TIMEOUT = -87,
    /// The group was aborted (xtie_group_abort).
    XTIE_ERR_ABORTED = -88,
    /// A rank opens another group than this one: another number of ranks, another rank's number, or
    /// a library of another version.
    XTIE_ERR_GROUP_MISMATCH = -89,
    /// gather or look of the group's configuration has failed.
    XTIE_ERR_BOOTSTRAP = -90,
    /// A rank did not come in time.
    XTIE_ERR_RANK_MISSING = -91,
    /// Another rank could not open its group; its own error says why.
    XTIE_ERR_RANK_FAILED = -92,
    /// The window was not exchanged yet.
    XTIE_ERR_NOT_EXCHANGED = -93,
    /// The window was exchanged already.
    XTIE_ERR_EXCHANGED = -94,
    /// The window was freed, or never was one of this group.
    XTIE_ERR_WINDOW = -95,
    /// The group is closed, or its endpoint was.
    XTIE_ERR_GROUP_CLOSED = -96,
    /// No NIC can add to the counter: the endpoint has no companions
    /// (XTIE_ENDPOINT_COMPANIONS), or the connection no RDMA rail that takes the add.
    XTIE_ERR_NO_NIC_COUNTER = -97,
    /// The group has no queues for kernels: call xtie_group_device_open first.
    XTIE_ERR_NO_QUEUES = -98,
    /// The driver of the GPU has refused a call, or memory of another rank's GPU cannot be mapped.
    XTIE_ERR_GPU = -99,
}

use xtie_result::*;

/// Every code with its sentence; a number that is missing here has no meaning.
pub const RESULTS: &[(xtie_result, &CStr)] = &[
    (XTIE_OK, c"success"),
    (XTIE_AGAIN, c"not yet: make progress, then call again"),
    (XTIE_ERR_NULL, c"a pointer that must be given is NULL"),
    (XTIE_ERR_STRUCT_SIZE, c"struct_size is not the size of any version of the structure"),
    (
        XTIE_ERR_STRUCT,
        c"the structure asks for something that this version of the library does not know",
    ),
    (XTIE_ERR_FLAGS, c"a flag is unknown"),
    (XTIE_ERR_MEMORY_KIND, c"the kind of memory is unknown, or the endpoint has none (no heap)"),
    (XTIE_ERR_DEVICE, c"there is no device of that number"),
    (XTIE_ERR_DEVICE_UNAVAILABLE, c"the device cannot be used on this host"),
    (XTIE_ERR_STORAGE_ALIGN, c"the storage is not aligned to XTIE_STORAGE_ALIGN bytes"),
    (
        XTIE_ERR_STORAGE_SIZE,
        c"the storage is smaller than xtie_endpoint_size or xtie_group_size asks for",
    ),
    (XTIE_ERR_STORAGE_IN_USE, c"the storage holds an endpoint that is not closed"),
    (XTIE_ERR_GROUP_LIMITS, c"a limit of the group is out of range; the log says which"),
    (XTIE_ERR_COMPARISON, c"the comparison is none of XTIE_COMPARE_"),
    (XTIE_ERR_ALGORITHM, c"there is no such algorithm, or the ranks' hosts do not allow it"),
    (XTIE_ERR_CONNECTIONS_MAX, c"connections_max must be from 1 to 65536"),
    (
        XTIE_ERR_REQUESTS_MAX,
        c"requests_max must be 32, 64, 128 or 256, and 32 at both ends over TCP, or at neither",
    ),
    (XTIE_ERR_REGIONS_MAX, c"regions_max must be from 1 to 65534"),
    (
        XTIE_ERR_RINGS,
        c"a ring size is no power of two in its range, or the eager size or the heap is too large",
    ),
    (XTIE_ERR_RESERVED, c"a reserved field is not zero"),
    (XTIE_ERR_TEXT, c"there is no room for text"),
    (XTIE_ERR_ENDPOINT, c"the pointer is not one that xtie_endpoint_open gave"),
    (XTIE_ERR_CLOSED, c"the endpoint is closed"),
    (XTIE_ERR_POISONED, c"a bug of the library showed in an earlier call: close the program"),
    (XTIE_ERR_FORKED, c"the endpoint belongs to the parent process: open one after the fork"),
    (XTIE_ERR_CONNECTION, c"the connection is closed, or not one of this endpoint"),
    (XTIE_ERR_LISTENER, c"the listener is closed, or not one of this endpoint"),
    (XTIE_ERR_ATTEMPT, c"the attempt to connect is over, or not one of this endpoint"),
    (XTIE_ERR_MEMORY, c"the memory is not registered with this endpoint"),
    (XTIE_ERR_STALE, c"the request was tested to its end, or is not one of this endpoint"),
    (XTIE_ERR_NO_GROUP, c"the pointer is not one that xtie_group_open gave"),
    (XTIE_ERR_RANGE, c"the buffer does not lie inside the memory that was named for it"),
    (XTIE_ERR_REGISTER_RANGE, c"the range is empty or wraps around the address space"),
    (XTIE_ERR_MEMORY_BUSY, c"requests that use the memory are outstanding"),
    (XTIE_ERR_GROUP, c"a group has 1 to 8 receives"),
    (XTIE_ERR_TOO_LONG, c"the message, or its buffer, is longer than the connection takes"),
    (XTIE_ERR_UNDER_WAY, c"the request is under way, or has ended: test it until it says so"),
    (XTIE_ERR_WINDOW_RANGE, c"the bytes do not lie inside that rank's part of the window"),
    (XTIE_ERR_READ_ONLY, c"other ranks may only read that rank's part of the window"),
    (XTIE_ERR_ID, c"the window has no signal, counter or barrier of that number"),
    (XTIE_ERR_RANK, c"the group has no rank of that number"),
    (XTIE_ERR_REGIONS_FULL, c"regions_max regions are registered, or the heap is used up"),
    (XTIE_ERR_LISTENERS_FULL, c"all listeners are in use: close one first"),
    (
        XTIE_ERR_CONNECTIONS_FULL,
        c"connections_max connections are open, or closed here and not yet by their peers",
    ),
    (XTIE_ERR_PEERS_FULL, c"the endpoint is connected to as many peers as its limit allows"),
    (XTIE_ERR_DESCRIPTORS, c"the process may open no more file descriptors (ulimit -n)"),
    (XTIE_ERR_NO_MEMORY, c"there is not enough (shared) memory"),
    (XTIE_ERR_SYSTEM, c"the operating system refused"),
    (XTIE_ERR_WINDOWS_FULL, c"all windows of the group are in use: free one first"),
    (XTIE_ERR_ALL_GATHERS_FULL, c"all AllGathers of the group are in use: destroy one first"),
    (XTIE_ERR_ALL_GATHER, c"the AllGather or its window is gone, or it is of another stream"),
    (XTIE_ERR_GPU, c"the GPU's driver has refused a call, or memory cannot be mapped"),
    (XTIE_ERR_HANDLE_CORRUPT, c"the handle is damaged"),
    (XTIE_ERR_HANDLE_FOREIGN, c"the bytes are not a handle of crosstie"),
    (XTIE_ERR_VERSION_HERE, c"the peer speaks a newer wire version: upgrade this side"),
    (XTIE_ERR_VERSION_PEER, c"the peer speaks an older wire version: upgrade the peer"),
    (XTIE_ERR_OTHER_HOST, c"the device does not reach the listener"),
    (XTIE_ERR_NO_LISTENER, c"no listener is there: it was closed, or its process has ended"),
    (XTIE_ERR_PEER_FULL, c"the peer has no connection left"),
    (XTIE_ERR_PEER_MEMORY, c"the peer has no memory for a connection"),
    (XTIE_ERR_PEER_DESCRIPTORS, c"the peer may open no more file descriptors (ulimit -n)"),
    (XTIE_ERR_DEADLINE, c"the peer did not answer in time (CROSSTIE_CONNECT_TIMEOUT_MS)"),
    (XTIE_ERR_TRUNCATED, c"the message was longer than the receive"),
    (XTIE_ERR_PEER_CLOSED, c"the peer closed the connection"),
    (XTIE_ERR_PEER_DIED, c"the peer's process ended, or cannot be reached any more"),
    (XTIE_ERR_CONNECTION_CLOSED, c"this side closed the connection before the request ended"),
    (XTIE_ERR_CANCELED, c"the request was canceled"),
    (XTIE_ERR_PROTOCOL, c"the peer broke the protocol"),
    (XTIE_ERR_FABRIC, c"the rail failed"),
    (XTIE_ERR_WINDOW_MEMORY, c"the rank that has the window could not move the bytes"),
    (XTIE_ERR_WINDOW_FREED, c"that rank has freed its part of the window"),
    (XTIE_ERR_OUTCOME_UNKNOWN, c"a NIC failed before it had added to a counter of the window"),
    (XTIE_ERR_NO_NIC_COUNTER, c"no NIC can add to the counter"),
    (XTIE_ERR_NO_QUEUES, c"the group has no queues for kernels (xtie_group_device_open)"),
    (XTIE_ERR_KEY, c"the two sides have different shared keys, or only one side has one"),
    (
        XTIE_ERR_NO_RAIL,
        c"CROSSTIE_RAILS and the device leave no rail, none that the peer has, or not all that \
          CROSSTIE_RAILS_REQUIRED names",
    ),
    (XTIE_ERR_UNREACHABLE, c"none of the peer's addresses can be reached"),
    (
        XTIE_ERR_INTERFACE,
        c"no chosen interface has an address, or leads there (CROSSTIE_SOCKET_IFNAME)",
    ),
    (XTIE_ERR_KEY_FILE, c"the file of CROSSTIE_KEY_FILE cannot be used"),
    (XTIE_ERR_RAILS_LOST, c"every rail of the connection failed, and none came back in time"),
    (XTIE_ERR_NO_ANSWER, c"a rail failed, and the peer never said what it had carried"),
    (XTIE_ERR_UNFENCED, c"a rail failed and could not be fenced: its memory may still be touched"),
    (XTIE_ERR_RAILS_MAX, c"rails_max must be 1, 2, 4 or 8"),
    (XTIE_ERR_RAIL, c"the connection has no rail of that number"),
    (
        XTIE_ERR_SILENT,
        c"the peer's host acknowledged nothing on the connection for too long: packets are lost",
    ),
    (XTIE_ERR_PEER_GAVE_UP, c"the peer gave the connection up, and its requests say why"),
    (XTIE_ERR_VENDOR_RAIL, c"a vendor's rail that the program gives is not valid"),
    (XTIE_ERR_SETTING, c"the value of a CROSSTIE_ variable is not valid; the log says more"),
    (XTIE_ERR_MEMORY_DEVICE, c"the memory does not lie on the device that was named"),
    (XTIE_ERR_DMABUF, c"the descriptor is no dma-buf, or the memory takes none"),
    (XTIE_ERR_DMABUF_RANGE, c"the memory ends beyond the dma-buf"),
    (XTIE_ERR_TIMEOUT, c"the time that was given has passed"),
    (XTIE_ERR_ABORTED, c"the group was aborted"),
    (XTIE_ERR_GROUP_MISMATCH, c"a rank opens another group, or its library is of another version"),
    (XTIE_ERR_BOOTSTRAP, c"the group's gather or look has failed"),
    (XTIE_ERR_RANK_MISSING, c"a rank did not come in time"),
    (XTIE_ERR_RANK_FAILED, c"another rank could not open its group; its own error says why"),
    (XTIE_ERR_NOT_EXCHANGED, c"the window was not exchanged yet"),
    (XTIE_ERR_EXCHANGED, c"the window was exchanged already"),
    (XTIE_ERR_WINDOW, c"the window was freed, or is not one of this group"),
    (XTIE_ERR_GROUP_CLOSED, c"the group is closed, or its endpoint was"),
];

impl xtie_result {
    /// The sentence.
    pub fn sentence(self) -> &'static CStr {
        sentence(self as c_int)
    }
}

fn sentence(code: c_int) -> &'static CStr {
    let known = RESULTS.iter().find(|(result, _)| *result as c_int == code);
    known.map_or(c"not a result code of crosstie", |(_, sentence)| sentence)
}

/// One sentence for a result code. For the particulars (which peer, which error number) see
/// xtie_endpoint_error.
///
/// result: any number; one that is no code has a sentence too.
/// Returns a static string in English, without a full stop.
/// Threads: any. Cost: a search of a short table.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub extern "C" fn xtie_result_str(result: c_int) -> *const c_char {
    sentence(result).as_ptr()
}
