//! The C types of a vendor's provider, as `crosstie_provider.h` has them. What stands above an item
//! here is what a C programmer reads there.
#![allow(non_camel_case_types)]

use core::ffi::{c_int, c_void};

/// Most bytes of a peer's blob (xtie_provider_caps.blob_bytes).
pub const XTIE_PROVIDER_BLOB_BYTES_MAX: u32 = 128;
/// Bytes of the head that every send carries.
pub const XTIE_PROVIDER_HEAD_BYTES: u32 = 32;
/// Bytes of a line, the inline source of a write.
pub const XTIE_PROVIDER_LINE_BYTES: u32 = 64;
/// Most events that the library asks for in one poll.
pub const XTIE_PROVIDER_EVENTS_MAX: u32 = 16;

/// Answer: done as asked. Of post: the op was taken, and its completion will come from poll.
pub const XTIE_PROVIDER_OK: i32 = 0;
/// Answer of post: the op was taken and has completed with success; poll will not report it.
pub const XTIE_PROVIDER_DONE: i32 = 1;
/// Answer of post, fence_begin and peer_open: not now, and nothing was changed; poll, then again.
pub const XTIE_PROVIDER_AGAIN: i32 = -1;
/// Answer of post and fence_begin: the peer is down or was never opened. Nothing was changed.
pub const XTIE_PROVIDER_PEER_DOWN: i32 = -2;
/// Answer of post: beyond the caps. Nothing was changed.
pub const XTIE_PROVIDER_UNSUPPORTED: i32 = -3;
/// Answer of region_deregister, peer_close and peer_detach: ops are in flight. Nothing was changed.
pub const XTIE_PROVIDER_BUSY: i32 = -4;
/// Answer of region_deregister, peer_close and peer_detach: there is no such region or peer.
pub const XTIE_PROVIDER_STALE: i32 = -5;
/// Answer of region_register: as many regions are registered as limits.regions_max says.
pub const XTIE_PROVIDER_FULL: i32 = -6;
/// Answer of region_register: memory of that kind cannot be reached.
pub const XTIE_PROVIDER_KIND: i32 = -7;
/// Answer of region_register: the range is empty or wraps around the address space.
pub const XTIE_PROVIDER_RANGE: i32 = -8;
/// Answer of peer_open: the blob is not one that an end of this kind wrote.
pub const XTIE_PROVIDER_BLOB: i32 = -9;
/// Answers at and below this carry a code of the provider's own: XTIE_PROVIDER_CODE - code, with a
/// code from 0 on, such as an errno. From open, region_register, region_deregister and peer_open.
pub const XTIE_PROVIDER_CODE: i32 = -1000;

/// Flag of xtie_provider_caps: reads work, so that a receiver can pull.
pub const XTIE_PROVIDER_CAP_PULL: u32 = 0x1;
/// Flag of xtie_provider_caps: a write may carry an immediate, which the target's poll reports.
pub const XTIE_PROVIDER_CAP_IMMEDIATE: u32 = 0x2;
/// Flag of xtie_provider_caps: ops to one peer take effect there in the order of their posts.
pub const XTIE_PROVIDER_CAP_ORDERED: u32 = 0x4;
/// Flag of xtie_provider_caps: a send has read its source when post returns. Endpoints need it.
pub const XTIE_PROVIDER_CAP_COPIES_AT_POST: u32 = 0x8;
/// Flag of xtie_provider_caps: an op on a bad key takes the peer with it; those behind it fail.
pub const XTIE_PROVIDER_CAP_BAD_KEY_BREAKS: u32 = 0x10;

/// Fence of xtie_provider_caps: there is none. Such a rail cannot carry an endpoint.
pub const XTIE_PROVIDER_FENCE_NONE: u32 = 0;
/// Fence of xtie_provider_caps: our own act suffices.
pub const XTIE_PROVIDER_FENCE_LOCAL: u32 = 1;
/// Fence of xtie_provider_caps: the peer attests that each of its ops has retired.
pub const XTIE_PROVIDER_FENCE_WRITER_DRAINED: u32 = 2;
/// Fence of xtie_provider_caps: only by closing the whole provider, as XTIE_PROVIDER_FENCE_NONE.
pub const XTIE_PROVIDER_FENCE_ENDPOINT: u32 = 3;

/// System calls of xtie_provider_caps: post and poll make none.
pub const XTIE_PROVIDER_SYSCALLS_NONE: u32 = 0;
/// System calls of xtie_provider_caps: one for each large copy.
pub const XTIE_PROVIDER_SYSCALLS_PER_COPY: u32 = 1;
/// System calls of xtie_provider_caps: one for each batch of messages.
pub const XTIE_PROVIDER_SYSCALLS_PER_BATCH: u32 = 2;

/// Kind of memory: pages of this process.
pub const XTIE_PROVIDER_MEMORY_HOST: u32 = 0;
/// Kind of memory: pages of this process that its peers have mapped.
pub const XTIE_PROVIDER_MEMORY_MAPPED: u32 = 1;
/// Kind of memory: of a CUDA device; its ordinal in the bits from 8 on.
pub const XTIE_PROVIDER_MEMORY_CUDA: u32 = 2;

/// Kind of op: the head in data, and the bytes of local behind it, appear as one message.
pub const XTIE_PROVIDER_OP_SEND: u32 = 1;
/// Kind of op: bytes appear at remote; those of local, or the line in data (flag _LINE).
pub const XTIE_PROVIDER_OP_WRITE: u32 = 2;
/// Kind of op: the peer's bytes at remote appear in local.
pub const XTIE_PROVIDER_OP_READ: u32 = 3;
/// Kind of op: the 64-bit word at remote, 8-byte aligned, grows by value.
pub const XTIE_PROVIDER_OP_ADD: u32 = 4;

/// Flag of a write: its source is the line in data, XTIE_PROVIDER_LINE_BYTES long, and not local.
pub const XTIE_PROVIDER_OP_LINE: u32 = 0x1;
/// Flag of a write: when its bytes are visible, the target's poll reports immediate.
pub const XTIE_PROVIDER_OP_IMMEDIATE: u32 = 0x2;

/// Kind of event: an op ended. peer, id, status, code.
pub const XTIE_PROVIDER_EVENT_DONE: u32 = 1;
/// Kind of event: a peer's send arrived. peer, id (the receive slot), bytes, head.
pub const XTIE_PROVIDER_EVENT_RECEIVED: u32 = 2;
/// Kind of event: a peer's write with immediate arrived, its bytes are visible. peer, word.
pub const XTIE_PROVIDER_EVENT_IMMEDIATE: u32 = 3;
/// Kind of event: a fence holds. peer, id, word (the generation).
pub const XTIE_PROVIDER_EVENT_FENCED: u32 = 4;
/// Kind of event: nothing more will come from this peer. peer, status (the cause), code.
pub const XTIE_PROVIDER_EVENT_PEER_DOWN: u32 = 5;

/// Status of an op: success.
pub const XTIE_PROVIDER_OP_OK: u32 = 0;
/// Status of an op: the peer is gone.
pub const XTIE_PROVIDER_OP_PEER_DOWN: u32 = 1;
/// Status of an op: a key names no registered region, or the range lies outside of it.
pub const XTIE_PROVIDER_OP_KEY: u32 = 2;
/// Status of an op: this side closed the peer or fenced the op.
pub const XTIE_PROVIDER_OP_CANCELED: u32 = 3;
/// Status of an op: the rail failed otherwise.
pub const XTIE_PROVIDER_OP_FABRIC: u32 = 4;

/// Cause of a peer's end: it closed the connection.
pub const XTIE_PROVIDER_DOWN_CLOSED: u32 = 1;
/// Cause of a peer's end: its process ended.
pub const XTIE_PROVIDER_DOWN_DIED: u32 = 2;
/// Cause of a peer's end: it broke the wire format.
pub const XTIE_PROVIDER_DOWN_FAILED: u32 = 3;
/// Cause of a peer's end: its host has acknowledged nothing for too long.
pub const XTIE_PROVIDER_DOWN_SILENT: u32 = 4;
/// Cause of a peer's end: the rail to it failed; code says more, such as an errno.
pub const XTIE_PROVIDER_DOWN_BROKEN: u32 = 5;

/// What a provider promises, fixed while it is open.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct xtie_provider_caps {
    /// sizeof(xtie_provider_caps) of the library's; all bytes behind it are zero when caps is
    /// called. A provider writes the fields that its header has.
    pub struct_size: u32,
    /// XTIE_PROVIDER_CAP_ flags.
    pub flags: u32,
    /// Longest payload of one send in bytes, beside its head; at least 1. Endpoints need 512.
    pub send_bytes_max: u64,
    /// Longest write or read in one op, in bytes; at least 128. A message that endpoints push has
    /// 64 times as much at most, rounded down to a multiple of 8192; one that they pull, as much.
    /// As a rail among those of a connection it needs 65536, and leaves messages of more than 64
    /// times as much to the others.
    pub transfer_bytes_max: u64,
    /// Largest copy in bytes that cannot be divided: a poll may exceed its budget by so much.
    pub copy_granule_bytes: u64,
    /// Receives that one peer has for the other: messages, and words of writes, that may be on
    /// their way, or received and not released. Endpoints need 48, and never post beyond them. The
    /// suite tries up to 1024.
    pub recv_slots: u32,
    /// Bytes of the blob that peer_blob writes, up to XTIE_PROVIDER_BLOB_BYTES_MAX.
    pub blob_bytes: u32,
    /// Width of atomic adds in bytes: 8, or 0 for none.
    pub atomic_bytes: u32,
    /// XTIE_PROVIDER_FENCE_: what a fence takes.
    pub fence: u32,
    /// XTIE_PROVIDER_SYSCALLS_: what post and poll do.
    pub syscalls: u32,
    /// Zero.
    pub reserved: u32,
}

/// How much a provider is opened for.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct xtie_provider_limits {
    /// sizeof(xtie_provider_limits) of the library's.
    pub struct_size: u32,
    /// Peers that may be open at a time; they are numbered below this.
    pub peers_max: u32,
    /// Regions that may be registered at a time.
    pub regions_max: u32,
    /// Zero.
    pub reserved: u32,
}

/// Memory of this process that an op may read or write until it has completed.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct xtie_provider_span {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes. Where it is 0, nothing else of the span counts.
    pub bytes: u64,
    /// What region_register called the region that it lies in. Sends of memory that is not
    /// registered have 0, which is no region's key: they are copied at post.
    pub key: u64,
}

/// Memory of a peer's, as long as local of the same op.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct xtie_provider_remote {
    /// Address in the peer's process.
    pub address: u64,
    /// What the peer's region_register called the region.
    pub key: u64,
}

/// One operation, addressed to one peer. Read during post.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct xtie_provider_op {
    /// The poster's name for it, which comes back in the completion.
    pub id: u64,
    /// The other end.
    pub peer: u32,
    /// XTIE_PROVIDER_OP_SEND, _WRITE, _READ or _ADD.
    pub kind: u32,
    /// XTIE_PROVIDER_OP_LINE, XTIE_PROVIDER_OP_IMMEDIATE.
    pub flags: u32,
    /// With XTIE_PROVIDER_OP_IMMEDIATE: the word.
    pub immediate: u32,
    /// Source of a send or a write, target of a read.
    pub local: xtie_provider_span,
    /// Target of a write or an add, source of a read.
    pub remote: xtie_provider_remote,
    /// Of an add: added modulo 2^64.
    pub value: u64,
    /// Of a send: its head, XTIE_PROVIDER_HEAD_BYTES. Of a write of a line: the line. Else NULL.
    /// To be copied before post returns.
    pub data: *const u8,
}

/// One event of a poll. Fields that the kind does not name do not count.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub struct xtie_provider_event {
    /// XTIE_PROVIDER_EVENT_.
    pub kind: u32,
    /// Whose peer.
    pub peer: u32,
    /// The op's id; of a message its receive slot, any number that names it until it is released.
    pub id: u64,
    /// Of an op XTIE_PROVIDER_OP_OK and the like; of a peer's end XTIE_PROVIDER_DOWN_.
    pub status: u32,
    /// The provider's own code of a failure, for people: an errno; 0 for none.
    pub code: i32,
    /// Of a message: length of its payload.
    pub bytes: u32,
    /// Of a write its immediate; of a fence its generation.
    pub word: u32,
    /// Of a message: its head.
    pub head: [u8; 32],
}

/// A provider: a table of functions over an object of the vendor's. What they promise is P1 to P10
/// above; xtie_conformance_run tries each of them. It does not try ops of more than 512 KiB, an
/// op's own key and range, for which its poster vouches, blobs that no end of the kind wrote,
/// memory but the host's and that of a device that there is not, nor several peers or threads at a
/// time.
///
/// An object has one thread at a time, except for region_register and region_deregister, which come
/// from any thread. No function blocks, and none may call the library. After open none allocates.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct xtie_provider_ops {
    /// sizeof(xtie_provider_ops). As many bytes are read; those behind the entries below must be
    /// zero.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Makes an object. context: as given to the library with the table. limits: read during the
    /// call. provider_out: the object, any pointer.
    /// Returns XTIE_PROVIDER_OK or XTIE_PROVIDER_CODE - code.
    pub open: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            limits: *const xtie_provider_limits,
            provider_out: *mut *mut c_void,
        ) -> c_int,
    >,
    /// Ends the object with everything that it has. Afterwards nothing of it touches any memory of
    /// an op or a region, and no function is called with it. The last call.
    pub close: Option<unsafe extern "C" fn(provider: *mut c_void)>,
    /// Says what the object promises, always the same.
    pub caps: Option<unsafe extern "C" fn(provider: *mut c_void, caps: *mut xtie_provider_caps)>,
    /// Writes what the other end needs to open its peer towards this one: caps.blob_bytes bytes,
    /// which the program carries there. peer: a number below limits.peers_max that is not open.
    /// Returns XTIE_PROVIDER_OK or XTIE_PROVIDER_CODE - code.
    pub peer_blob: Option<
        unsafe extern "C" fn(provider: *mut c_void, peer: u32, blob_out: *mut c_void) -> c_int,
    >,
    /// Joins peer to the end that wrote blob; from then on ops may be posted to it. Until then
    /// nothing of its other end reaches this side.
    /// Returns XTIE_PROVIDER_OK, _AGAIN, _BLOB or XTIE_PROVIDER_CODE - code.
    pub peer_open: Option<
        unsafe extern "C" fn(provider: *mut c_void, peer: u32, blob: *const c_void) -> c_int,
    >,
    /// Makes memory known to the rail and its peers (P7), which may overlap other regions. kind:
    /// XTIE_PROVIDER_MEMORY_. key_out: the region's name, not 0, which stands for none: a region
    /// that is called so is deregistered at once, and not used.
    /// Returns XTIE_PROVIDER_OK, _FULL, _KIND, _RANGE or XTIE_PROVIDER_CODE - code. Any thread.
    pub region_register: Option<
        unsafe extern "C" fn(
            provider: *mut c_void,
            address: u64,
            bytes: u64,
            kind: u32,
            key_out: *mut u64,
        ) -> c_int,
    >,
    /// Forgets a region; after XTIE_PROVIDER_OK no peer touches it any more (P7).
    /// Returns XTIE_PROVIDER_OK, _BUSY, _STALE or XTIE_PROVIDER_CODE - code. Any thread.
    pub region_deregister: Option<unsafe extern "C" fn(provider: *mut c_void, key: u64) -> c_int>,
    /// Takes the whole op, or refuses it and changes nothing (P1): a write with an immediate that
    /// finds no receive has written none of its bytes. Each op that is taken yields exactly one
    /// completion (P2).
    /// Returns XTIE_PROVIDER_OK, _DONE, _AGAIN, _PEER_DOWN or _UNSUPPORTED, which an op that the
    /// caps promise may not be answered: the rail is out of use then.
    pub post: Option<
        unsafe extern "C" fn(
            provider: *mut c_void,
            op: *const xtie_provider_op,
            now_ns: u64,
        ) -> c_int,
    >,
    /// Writes up to events_max events, and says how many. Copies about budget_bytes bytes at most,
    /// and one granule more (P3). events_max may be 0.
    pub poll: Option<
        unsafe extern "C" fn(
            provider: *mut c_void,
            events_out: *mut xtie_provider_event,
            events_max: u32,
            budget_bytes: u64,
            now_ns: u64,
        ) -> u32,
    >,
    /// Begins a fence (P10), which ends with XTIE_PROVIDER_EVENT_FENCED: from then on nothing of
    /// that generation, whenever it was posted, by either side, can still write here, nor read or
    /// write here on our own behalf. Also of a peer that is down. May be NULL where caps.fence is
    /// XTIE_PROVIDER_FENCE_NONE. The other end need not hear of it; where it does, the cause of
    /// its peer's end is XTIE_PROVIDER_DOWN_CLOSED: any other is told of as the loss of a rail. Ops
    /// that were taken before may be told of behind EVENT_FENCED, and have ended by then. Those
    /// that are posted behind fence_begin are refused, as _PEER_DOWN, or end with an error, and
    /// move nothing.
    /// Returns XTIE_PROVIDER_OK, _AGAIN or _PEER_DOWN.
    pub fence_begin: Option<
        unsafe extern "C" fn(
            provider: *mut c_void,
            peer: u32,
            id: u64,
            generation: u32,
            now_ns: u64,
        ) -> c_int,
    >,
    /// Copies to->bytes bytes of a received payload, from offset on, to memory of this process,
    /// which may be unregistered (key 0). The library asks for no more than the payload has.
    pub received_copy: Option<
        unsafe extern "C" fn(
            provider: *mut c_void,
            peer: u32,
            slot: u64,
            offset: u64,
            to: *const xtie_provider_span,
        ),
    >,
    /// Gives a receive slot back, in any order. When this returns, the peer may post to it again,
    /// without a poll here between: its credit may come over another rail.
    pub received_release: Option<unsafe extern "C" fn(provider: *mut c_void, peer: u32, slot: u64)>,
    /// Says from outside that a peer is gone: the next polls report what had come, complete all
    /// that was taken, and then report XTIE_PROVIDER_EVENT_PEER_DOWN (P6). cause:
    /// XTIE_PROVIDER_DOWN_, which the event has too unless the object knew of an end before. Of a
    /// peer that is not open nothing happens.
    pub peer_fail:
        Option<unsafe extern "C" fn(provider: *mut c_void, peer: u32, cause: u32, code: i32)>,
    /// Forgets a peer (P9). Receive slots that it still holds are given back with it: opened again,
    /// it has as many as caps says.
    /// Returns XTIE_PROVIDER_OK, _BUSY or _STALE.
    pub peer_close: Option<unsafe extern "C" fn(provider: *mut c_void, peer: u32) -> c_int>,
    /// Forgets a fenced peer but for what it sent: slots still held stay valid, with their bytes,
    /// until they are released, also when the peer is open again, which has so many receives fewer
    /// until then. May be NULL: then peers that hold slots cannot be opened again.
    /// Returns XTIE_PROVIDER_OK, _BUSY or _STALE.
    pub peer_detach: Option<unsafe extern "C" fn(provider: *mut c_void, peer: u32) -> c_int>,
    /// Hands over what was posted as far as that waits for the next poll. May be NULL.
    pub flush: Option<unsafe extern "C" fn(provider: *mut c_void, budget_bytes: u64)>,
}

/// The first version of each structure that a vendor fills.
pub(super) const OPS_BYTES_FIRST: usize = 136;

const _: () = assert!(size_of::<xtie_provider_ops>() == OPS_BYTES_FIRST);
const _: () = assert!(size_of::<xtie_provider_event>() == 64);
