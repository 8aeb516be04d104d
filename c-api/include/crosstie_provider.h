// crosstie_provider.h: a provider written in C, the suite that tries what it promises, and
// endpoints over it. Made from src/provider/vendor/abi.rs and c-api/core/src by cbindgen; do not
// edit.
//
// OVERVIEW
//
// A *provider* carries bytes over one kind of rail: a NIC, a switch, memory. Whoever has a rail of
// their own writes a table of functions, xtie_provider_ops, and links libcrosstie-core.a, which
// needs no operating system, allocates nothing, and calls nothing but memcpy, memmove, memset,
// memcmp and bcmp. examples-c/vendor_provider.c is a whole one.
// Programs of the whole library hand the same table to xtie_endpoint_open_with_rails (crosstie.h).
//
//     static const xtie_provider_ops ops = {.struct_size = sizeof ops, .open = ..., .post = ...};
//
//     // Does it keep its promises? The suite names the entry that found one broken.
//     xtie_conformance_setup setup = {.struct_size = sizeof setup};
//     setup.context_a = &nic_a;  // what open gets for each of two ends
//     setup.context_b = &nic_b;
//     setup.storage = storage;  // XTIE_CONFORMANCE_BYTES, aligned to 64
//     setup.storage_bytes = sizeof storage;
//     xtie_conformance_result result;
//     if (xtie_conformance_run(&ops, &setup, &result) != XTIE_CORE_OK)
//         printf("P%u %s: %s", result.promise, result.entry_name, result.why);
//
//     // An endpoint over it. The blob reaches the other side in a way of the program's own.
//     xtie_core_endpoint *endpoint = NULL;
//     xtie_core_endpoint_open(storage, sizeof storage, &config, &ops, &nic, &endpoint);
//     xtie_core_blob ours, theirs;
//     xtie_core_connection_blob(endpoint, 0, &ours);
//     ...
//     xtie_core_connection_open(endpoint, 0, &theirs);
//     xtie_core_connection_isend(endpoint, 0, data, bytes, tag, memory, &request);
//     while (!done) {
//         xtie_core_endpoint_progress(endpoint, now_ns);
//         xtie_core_request_test(endpoint, request, &done, NULL);
//     }
//
// PROMISES of a provider, which the comments of xtie_provider_ops name:
//   P1  post takes the whole op, or says AGAIN and has changed nothing.
//   P2  Each op that was taken yields exactly one completion: DONE at once, or later from poll.
//   P3  poll stays inside its slice and its budget of bytes, never blocks and never calls out.
//   P4  post and poll allocate nothing and take no lock shared with threads of the program.
//   P5  Order, atomic width, and when data is visible are as caps says.
//   P6  An error names its op and peer. After a peer's end all that was taken still completes.
//   P7  A region stays valid until region_deregister returns; an op on a key that is not registered
//       ends with XTIE_PROVIDER_OP_KEY and moves nothing.
//   P8  Time is an argument: the same calls have the same answers.
//   P9  peer_close says BUSY while ops are in flight, and changes nothing.
//   P10 After a fence nothing of its generation writes here, nor reads or writes on our behalf.
//
// UNITS. Sizes are bytes; a name ends in its unit or bound. Numbers are in the machine's order.
//
// THREADS. An endpoint, and an object of a provider's, has one thread at a time; region_register
// and region_deregister alone come from any.
//
// ERRORS. Functions of the library return an int: XTIE_CORE_OK, XTIE_CORE_AGAIN, or a negative
// XTIE_CORE_ERR_ code, for which xtie_core_result_str has a sentence. A call that failed has
// changed nothing and written no output (the exceptions are said). A bug of the library calls the
// hook of xtie_core_panic_hook_set and then traps; it never unwinds.
//
// STRUCTURES that begin with struct_size are filled with sizeof, and read as far as that says.
// Later versions only lengthen them: shorter ones are taken as they are, longer ones if the rest is
// zero. Of a size over 4096, or of one that is no multiple of the alignment, nothing else is read.


#ifndef CROSSTIE_PROVIDER_H
#define CROSSTIE_PROVIDER_H

#include <stddef.h>
#include <stdint.h>

// Most bytes of a peer's blob (xtie_provider_caps.blob_bytes).
#define XTIE_PROVIDER_BLOB_BYTES_MAX 128

// Bytes of the head that every send carries.
#define XTIE_PROVIDER_HEAD_BYTES 32

// Bytes of a line, the inline source of a write.
#define XTIE_PROVIDER_LINE_BYTES 64

// Most events that the library asks for in one poll.
#define XTIE_PROVIDER_EVENTS_MAX 16

// Answer: done as asked. Of post: the op was taken, and its completion will come from poll.
#define XTIE_PROVIDER_OK 0

// Answer of post: the op was taken and has completed with success; poll will not report it.
#define XTIE_PROVIDER_DONE 1

// Answer of post, fence_begin and peer_open: not now, and nothing was changed; poll, then again.
#define XTIE_PROVIDER_AGAIN -1

// Answer of post and fence_begin: the peer is down or was never opened. Nothing was changed.
#define XTIE_PROVIDER_PEER_DOWN -2

// Answer of post: beyond the caps. Nothing was changed.
#define XTIE_PROVIDER_UNSUPPORTED -3

// Answer of region_deregister, peer_close and peer_detach: ops are in flight. Nothing was changed.
#define XTIE_PROVIDER_BUSY -4

// Answer of region_deregister, peer_close and peer_detach: there is no such region or peer.
#define XTIE_PROVIDER_STALE -5

// Answer of region_register: as many regions are registered as limits.regions_max says.
#define XTIE_PROVIDER_FULL -6

// Answer of region_register: memory of that kind cannot be reached.
#define XTIE_PROVIDER_KIND -7

// Answer of region_register: the range is empty or wraps around the address space.
#define XTIE_PROVIDER_RANGE -8

// Answer of peer_open: the blob is not one that an end of this kind wrote.
#define XTIE_PROVIDER_BLOB -9

// Answers at and below this carry a code of the provider's own: XTIE_PROVIDER_CODE - code, with a
// code from 0 on, such as an errno. From open, region_register, region_deregister and peer_open.
#define XTIE_PROVIDER_CODE -1000

// Flag of xtie_provider_caps: reads work, so that a receiver can pull.
#define XTIE_PROVIDER_CAP_PULL 1

// Flag of xtie_provider_caps: a write may carry an immediate, which the target's poll reports.
#define XTIE_PROVIDER_CAP_IMMEDIATE 2

// Flag of xtie_provider_caps: ops to one peer take effect there in the order of their posts.
#define XTIE_PROVIDER_CAP_ORDERED 4

// Flag of xtie_provider_caps: a send has read its source when post returns. Endpoints need it.
#define XTIE_PROVIDER_CAP_COPIES_AT_POST 8

// Flag of xtie_provider_caps: an op on a bad key takes the peer with it; those behind it fail.
#define XTIE_PROVIDER_CAP_BAD_KEY_BREAKS 16

// Fence of xtie_provider_caps: there is none. Such a rail cannot carry an endpoint.
#define XTIE_PROVIDER_FENCE_NONE 0

// Fence of xtie_provider_caps: our own act suffices.
#define XTIE_PROVIDER_FENCE_LOCAL 1

// Fence of xtie_provider_caps: the peer attests that each of its ops has retired.
#define XTIE_PROVIDER_FENCE_WRITER_DRAINED 2

// Fence of xtie_provider_caps: only by closing the whole provider, as XTIE_PROVIDER_FENCE_NONE.
#define XTIE_PROVIDER_FENCE_ENDPOINT 3

// System calls of xtie_provider_caps: post and poll make none.
#define XTIE_PROVIDER_SYSCALLS_NONE 0

// System calls of xtie_provider_caps: one for each large copy.
#define XTIE_PROVIDER_SYSCALLS_PER_COPY 1

// System calls of xtie_provider_caps: one for each batch of messages.
#define XTIE_PROVIDER_SYSCALLS_PER_BATCH 2

// Kind of memory: pages of this process.
#define XTIE_PROVIDER_MEMORY_HOST 0

// Kind of memory: pages of this process that its peers have mapped.
#define XTIE_PROVIDER_MEMORY_MAPPED 1

// Kind of memory: of a CUDA device; its ordinal in the bits from 8 on.
#define XTIE_PROVIDER_MEMORY_CUDA 2

// Kind of op: the head in data, and the bytes of local behind it, appear as one message.
#define XTIE_PROVIDER_OP_SEND 1

// Kind of op: bytes appear at remote; those of local, or the line in data (flag _LINE).
#define XTIE_PROVIDER_OP_WRITE 2

// Kind of op: the peer's bytes at remote appear in local.
#define XTIE_PROVIDER_OP_READ 3

// Kind of op: the 64-bit word at remote, 8-byte aligned, grows by value.
#define XTIE_PROVIDER_OP_ADD 4

// Flag of a write: its source is the line in data, XTIE_PROVIDER_LINE_BYTES long, and not local.
#define XTIE_PROVIDER_OP_LINE 1

// Flag of a write: when its bytes are visible, the target's poll reports immediate.
#define XTIE_PROVIDER_OP_IMMEDIATE 2

// Kind of event: an op ended. peer, id, status, code.
#define XTIE_PROVIDER_EVENT_DONE 1

// Kind of event: a peer's send arrived. peer, id (the receive slot), bytes, head.
#define XTIE_PROVIDER_EVENT_RECEIVED 2

// Kind of event: a peer's write with immediate arrived, its bytes are visible. peer, word.
#define XTIE_PROVIDER_EVENT_IMMEDIATE 3

// Kind of event: a fence holds. peer, id, word (the generation).
#define XTIE_PROVIDER_EVENT_FENCED 4

// Kind of event: nothing more will come from this peer. peer, status (the cause), code.
#define XTIE_PROVIDER_EVENT_PEER_DOWN 5

// Status of an op: success.
#define XTIE_PROVIDER_OP_OK 0

// Status of an op: the peer is gone.
#define XTIE_PROVIDER_OP_PEER_DOWN 1

// Status of an op: a key names no registered region, or the range lies outside of it.
#define XTIE_PROVIDER_OP_KEY 2

// Status of an op: this side closed the peer or fenced the op.
#define XTIE_PROVIDER_OP_CANCELED 3

// Status of an op: the rail failed otherwise.
#define XTIE_PROVIDER_OP_FABRIC 4

// Cause of a peer's end: it closed the connection.
#define XTIE_PROVIDER_DOWN_CLOSED 1

// Cause of a peer's end: its process ended.
#define XTIE_PROVIDER_DOWN_DIED 2

// Cause of a peer's end: it broke the wire format.
#define XTIE_PROVIDER_DOWN_FAILED 3

// Cause of a peer's end: its host has acknowledged nothing for too long.
#define XTIE_PROVIDER_DOWN_SILENT 4

// Cause of a peer's end: the rail to it failed; code says more, such as an errno.
#define XTIE_PROVIDER_DOWN_BROKEN 5

// Storage that xtie_conformance_run asks for, in bytes.
#define XTIE_CONFORMANCE_BYTES 1048576

// Entries of the suite.
#define XTIE_CONFORMANCE_ENTRIES 45

// Room for an entry's name with its zero, in bytes.
#define XTIE_CONFORMANCE_NAME_BYTES 64

// Flag of xtie_conformance_setup: bytes move although nobody polls.
#define XTIE_CONFORMANCE_THREADS 1

// Most receives in one call of xtie_core_connection_irecv.
#define XTIE_CORE_GROUP_MAX 8

// What a function of the core archive answers. Zero is success, XTIE_CORE_AGAIN is an answer and
// not an error, errors are negative. A number is never given a second meaning.
typedef enum xtie_core_result {
    // Success.
    XTIE_CORE_OK = 0,
    // Not yet: call xtie_core_endpoint_progress, then call again.
    XTIE_CORE_AGAIN = 1,
    // A pointer that must be given is NULL.
    XTIE_CORE_ERR_NULL = -1,
    // struct_size is not the size of any version of the structure.
    XTIE_CORE_ERR_STRUCT_SIZE = -2,
    // The structure asks for something that this version of the library does not know.
    XTIE_CORE_ERR_STRUCT = -3,
    // A flag is unknown.
    XTIE_CORE_ERR_FLAGS = -4,
    // The kind of memory is unknown, or the provider cannot reach it.
    XTIE_CORE_ERR_MEMORY_KIND = -5,
    // The storage is not aligned to 64 bytes.
    XTIE_CORE_ERR_STORAGE_ALIGN = -8,
    // The storage is smaller than it must be.
    XTIE_CORE_ERR_STORAGE_SIZE = -9,
    // connections_max is not from 1 to 65536.
    XTIE_CORE_ERR_CONNECTIONS_MAX = -10,
    // requests_max is not 32, 64, 128 or 256.
    XTIE_CORE_ERR_REQUESTS_MAX = -11,
    // regions_max is not from 1 to 65534.
    XTIE_CORE_ERR_REGIONS_MAX = -12,
    // A reserved field is not zero.
    XTIE_CORE_ERR_RESERVED = -14,
    // The pointer is not one that xtie_core_endpoint_open gave.
    XTIE_CORE_ERR_ENDPOINT = -20,
    // The endpoint is closed.
    XTIE_CORE_ERR_CLOSED = -21,
    // The connection is closed, or its number is beyond connections_max.
    XTIE_CORE_ERR_CONNECTION = -24,
    // The memory is not registered with this endpoint.
    XTIE_CORE_ERR_MEMORY = -27,
    // The request was tested to its end, or never was one of this endpoint.
    XTIE_CORE_ERR_STALE = -28,
    // The buffer does not lie inside the memory that was named for it.
    XTIE_CORE_ERR_RANGE = -30,
    // The range to register is empty or wraps around the address space.
    XTIE_CORE_ERR_REGISTER_RANGE = -31,
    // Requests that use the memory are outstanding.
    XTIE_CORE_ERR_MEMORY_BUSY = -32,
    // A group has 1 to 8 receives.
    XTIE_CORE_ERR_GROUP = -33,
    // The message is longer than any message may be, or than the connection takes.
    XTIE_CORE_ERR_TOO_LONG = -34,
    // As much memory is registered as regions_max allows.
    XTIE_CORE_ERR_REGIONS_FULL = -40,
    // The message was longer than the receive; nothing was written to the buffer.
    XTIE_CORE_ERR_TRUNCATED = -60,
    // The peer closed the connection.
    XTIE_CORE_ERR_PEER_CLOSED = -61,
    // The peer's process ended, or cannot be reached any more.
    XTIE_CORE_ERR_PEER_DIED = -62,
    // This side closed the connection before the request ended.
    XTIE_CORE_ERR_CONNECTION_CLOSED = -63,
    // The request was canceled.
    XTIE_CORE_ERR_CANCELED = -64,
    // The peer broke the protocol.
    XTIE_CORE_ERR_PROTOCOL = -65,
    // The rail failed.
    XTIE_CORE_ERR_FABRIC = -66,
    // Every rail of the connection failed, and none came back in time.
    XTIE_CORE_ERR_RAILS_LOST = -75,
    // A rail failed, and the peer never said what it had carried.
    XTIE_CORE_ERR_NO_ANSWER = -76,
    // A rail failed and could not be fenced in time: the request's memory may still be touched.
    XTIE_CORE_ERR_UNFENCED = -77,
    // The peer's host acknowledged nothing on the connection for too long.
    XTIE_CORE_ERR_SILENT = -80,
    // The peer gave the connection up, for a reason of its own: its requests ended with that.
    XTIE_CORE_ERR_PEER_GAVE_UP = -81,
    // An entry of xtie_provider_ops that must be given is NULL; xtie_provider_ops_check names it.
    XTIE_CORE_ERR_ENTRY = -100,
    // caps changed struct_size, or left reserved other than zero.
    XTIE_CORE_ERR_CAPS_STRUCT = -101,
    // caps set a flag that is unknown.
    XTIE_CORE_ERR_CAPS_FLAGS = -102,
    // The caps contradict themselves: nothing could be sent, written or received.
    XTIE_CORE_ERR_CAPS_NOTHING = -103,
    // The caps contradict themselves: without reads and without immediates no long message ends.
    XTIE_CORE_ERR_CAPS_WAY = -104,
    // The caps have atomic adds of another width than 8 bytes.
    XTIE_CORE_ERR_CAPS_ATOMIC = -105,
    // The caps name an unknown fence, or promise one although fence_begin is NULL.
    XTIE_CORE_ERR_CAPS_FENCE = -106,
    // The caps contradict themselves: what cannot be divided is longer than any transfer.
    XTIE_CORE_ERR_CAPS_GRANULE = -107,
    // The caps name an unknown kind of system calls.
    XTIE_CORE_ERR_CAPS_SYSCALLS = -108,
    // The caps have a blob longer than XTIE_PROVIDER_BLOB_BYTES_MAX.
    XTIE_CORE_ERR_CAPS_BLOB = -109,
    // The provider's open refused.
    XTIE_CORE_ERR_OPEN = -110,
    // The provider could not make or open a peer.
    XTIE_CORE_ERR_PEER = -111,
    // The provider gave an answer, or an event, that is none.
    XTIE_CORE_ERR_BREACH = -112,
    // An entry of the conformance suite found a promise broken.
    XTIE_CORE_ERR_PROMISE = -113,
    // The rail cannot carry an endpoint: it has too few receives, too short sends, no fence of one
    // peer, or does not copy sends at post.
    XTIE_CORE_ERR_RAIL_SMALL = -114,
    // The bytes are not a connection's blob, or are damaged.
    XTIE_CORE_ERR_BLOB = -115,
    // The blob is of another wire version.
    XTIE_CORE_ERR_VERSION = -116,
    // Both ends have no way for long messages in common: reads at both, or immediates at both and
    // the same requests_max.
    XTIE_CORE_ERR_PEER_OTHER = -117,
    // The connection of that number is open already.
    XTIE_CORE_ERR_CONNECTION_OPEN = -118,
} xtie_core_result;

// An endpoint: the library's state for one thread of the program, in storage that the program
// gives. Not for looking into.
typedef struct xtie_core_endpoint xtie_core_endpoint;

// What a program wants to be called with before the trap. It may end the program by itself.
//
// userdata: as given with it. file: where the bug is, file_bytes long, without a zero behind it.
// line: in that file.
typedef void (*xtie_core_panic_hook)(void *userdata,
                                     const char *file,
                                     size_t file_bytes,
                                     uint32_t line);

// How much a provider is opened for.
typedef struct xtie_provider_limits {
    // sizeof(xtie_provider_limits) of the library's.
    uint32_t struct_size;
    // Peers that may be open at a time; they are numbered below this.
    uint32_t peers_max;
    // Regions that may be registered at a time.
    uint32_t regions_max;
    // Zero.
    uint32_t reserved;
} xtie_provider_limits;

// What a provider promises, fixed while it is open.
typedef struct xtie_provider_caps {
    // sizeof(xtie_provider_caps) of the library's; all bytes behind it are zero when caps is
    // called. A provider writes the fields that its header has.
    uint32_t struct_size;
    // XTIE_PROVIDER_CAP_ flags.
    uint32_t flags;
    // Longest payload of one send in bytes, beside its head; at least 1. Endpoints need 512.
    uint64_t send_bytes_max;
    // Longest write or read in one op, in bytes; at least 128. A message that endpoints push has
    // 64 times as much at most, rounded down to a multiple of 8192; one that they pull, as much.
    // As a rail among those of a connection it needs 65536, and leaves messages of more than 64
    // times as much to the others.
    uint64_t transfer_bytes_max;
    // Largest copy in bytes that cannot be divided: a poll may exceed its budget by so much.
    uint64_t copy_granule_bytes;
    // Receives that one peer has for the other: messages, and words of writes, that may be on
    // their way, or received and not released. Endpoints need 48, and never post beyond them. The
    // suite tries up to 1024.
    uint32_t recv_slots;
    // Bytes of the blob that peer_blob writes, up to XTIE_PROVIDER_BLOB_BYTES_MAX.
    uint32_t blob_bytes;
    // Width of atomic adds in bytes: 8, or 0 for none.
    uint32_t atomic_bytes;
    // XTIE_PROVIDER_FENCE_: what a fence takes.
    uint32_t fence;
    // XTIE_PROVIDER_SYSCALLS_: what post and poll do.
    uint32_t syscalls;
    // Zero.
    uint32_t reserved;
} xtie_provider_caps;

// Memory of this process that an op may read or write until it has completed.
typedef struct xtie_provider_span {
    // Address of its first byte.
    uint64_t address;
    // Length in bytes. Where it is 0, nothing else of the span counts.
    uint64_t bytes;
    // What region_register called the region that it lies in. Sends of memory that is not
    // registered have 0, which is no region's key: they are copied at post.
    uint64_t key;
} xtie_provider_span;

// Memory of a peer's, as long as local of the same op.
typedef struct xtie_provider_remote {
    // Address in the peer's process.
    uint64_t address;
    // What the peer's region_register called the region.
    uint64_t key;
} xtie_provider_remote;

// One operation, addressed to one peer. Read during post.
typedef struct xtie_provider_op {
    // The poster's name for it, which comes back in the completion.
    uint64_t id;
    // The other end.
    uint32_t peer;
    // XTIE_PROVIDER_OP_SEND, _WRITE, _READ or _ADD.
    uint32_t kind;
    // XTIE_PROVIDER_OP_LINE, XTIE_PROVIDER_OP_IMMEDIATE.
    uint32_t flags;
    // With XTIE_PROVIDER_OP_IMMEDIATE: the word.
    uint32_t immediate;
    // Source of a send or a write, target of a read.
    struct xtie_provider_span local;
    // Target of a write or an add, source of a read.
    struct xtie_provider_remote remote;
    // Of an add: added modulo 2^64.
    uint64_t value;
    // Of a send: its head, XTIE_PROVIDER_HEAD_BYTES. Of a write of a line: the line. Else NULL.
    // To be copied before post returns.
    const uint8_t *data;
} xtie_provider_op;

// One event of a poll. Fields that the kind does not name do not count.
typedef struct xtie_provider_event {
    // XTIE_PROVIDER_EVENT_.
    uint32_t kind;
    // Whose peer.
    uint32_t peer;
    // The op's id; of a message its receive slot, any number that names it until it is released.
    uint64_t id;
    // Of an op XTIE_PROVIDER_OP_OK and the like; of a peer's end XTIE_PROVIDER_DOWN_.
    uint32_t status;
    // The provider's own code of a failure, for people: an errno; 0 for none.
    int32_t code;
    // Of a message: length of its payload.
    uint32_t bytes;
    // Of a write its immediate; of a fence its generation.
    uint32_t word;
    // Of a message: its head.
    uint8_t head[32];
} xtie_provider_event;

// A provider: a table of functions over an object of the vendor's. What they promise is P1 to P10
// above; xtie_conformance_run tries each of them. It does not try ops of more than 512 KiB, an
// op's own key and range, for which its poster vouches, blobs that no end of the kind wrote,
// memory but the host's and that of a device that there is not, nor several peers or threads at a
// time.
//
// An object has one thread at a time, except for region_register and region_deregister, which come
// from any thread. No function blocks, and none may call the library. After open none allocates.
typedef struct xtie_provider_ops {
    // sizeof(xtie_provider_ops). As many bytes are read; those behind the entries below must be
    // zero.
    uint32_t struct_size;
    // Zero.
    uint32_t reserved;
    // Makes an object. context: as given to the library with the table. limits: read during the
    // call. provider_out: the object, any pointer.
    // Returns XTIE_PROVIDER_OK or XTIE_PROVIDER_CODE - code.
    int (*open)(void *context, const struct xtie_provider_limits *limits, void **provider_out);
    // Ends the object with everything that it has. Afterwards nothing of it touches any memory of
    // an op or a region, and no function is called with it. The last call.
    void (*close)(void *provider);
    // Says what the object promises, always the same.
    void (*caps)(void *provider, struct xtie_provider_caps *caps);
    // Writes what the other end needs to open its peer towards this one: caps.blob_bytes bytes,
    // which the program carries there. peer: a number below limits.peers_max that is not open.
    // Returns XTIE_PROVIDER_OK or XTIE_PROVIDER_CODE - code.
    int (*peer_blob)(void *provider, uint32_t peer, void *blob_out);
    // Joins peer to the end that wrote blob; from then on ops may be posted to it. Until then
    // nothing of its other end reaches this side.
    // Returns XTIE_PROVIDER_OK, _AGAIN, _BLOB or XTIE_PROVIDER_CODE - code.
    int (*peer_open)(void *provider, uint32_t peer, const void *blob);
    // Makes memory known to the rail and its peers (P7), which may overlap other regions. kind:
    // XTIE_PROVIDER_MEMORY_. key_out: the region's name, not 0, which stands for none: a region
    // that is called so is deregistered at once, and not used.
    // Returns XTIE_PROVIDER_OK, _FULL, _KIND, _RANGE or XTIE_PROVIDER_CODE - code. Any thread.
    int (*region_register)(void *provider,
                           uint64_t address,
                           uint64_t bytes,
                           uint32_t kind,
                           uint64_t *key_out);
    // Forgets a region; after XTIE_PROVIDER_OK no peer touches it any more (P7).
    // Returns XTIE_PROVIDER_OK, _BUSY, _STALE or XTIE_PROVIDER_CODE - code. Any thread.
    int (*region_deregister)(void *provider, uint64_t key);
    // Takes the whole op, or refuses it and changes nothing (P1): a write with an immediate that
    // finds no receive has written none of its bytes. Each op that is taken yields exactly one
    // completion (P2).
    // Returns XTIE_PROVIDER_OK, _DONE, _AGAIN, _PEER_DOWN or _UNSUPPORTED, which an op that the
    // caps promise may not be answered: the rail is out of use then.
    int (*post)(void *provider, const struct xtie_provider_op *op, uint64_t now_ns);
    // Writes up to events_max events, and says how many. Copies about budget_bytes bytes at most,
    // and one granule more (P3). events_max may be 0.
    uint32_t (*poll)(void *provider,
                     struct xtie_provider_event *events_out,
                     uint32_t events_max,
                     uint64_t budget_bytes,
                     uint64_t now_ns);
    // Begins a fence (P10), which ends with XTIE_PROVIDER_EVENT_FENCED: from then on nothing of
    // that generation, whenever it was posted, by either side, can still write here, nor read or
    // write here on our own behalf. Also of a peer that is down. May be NULL where caps.fence is
    // XTIE_PROVIDER_FENCE_NONE. The other end need not hear of it; where it does, the cause of
    // its peer's end is XTIE_PROVIDER_DOWN_CLOSED: any other is told of as the loss of a rail. Ops
    // that were taken before may be told of behind EVENT_FENCED, and have ended by then. Those
    // that are posted behind fence_begin are refused, as _PEER_DOWN, or end with an error, and
    // move nothing.
    // Returns XTIE_PROVIDER_OK, _AGAIN or _PEER_DOWN.
    int (*fence_begin)(void *provider,
                       uint32_t peer,
                       uint64_t id,
                       uint32_t generation,
                       uint64_t now_ns);
    // Copies to->bytes bytes of a received payload, from offset on, to memory of this process,
    // which may be unregistered (key 0). The library asks for no more than the payload has.
    void (*received_copy)(void *provider,
                          uint32_t peer,
                          uint64_t slot,
                          uint64_t offset,
                          const struct xtie_provider_span *to);
    // Gives a receive slot back, in any order. When this returns, the peer may post to it again,
    // without a poll here between: its credit may come over another rail.
    void (*received_release)(void *provider, uint32_t peer, uint64_t slot);
    // Says from outside that a peer is gone: the next polls report what had come, complete all
    // that was taken, and then report XTIE_PROVIDER_EVENT_PEER_DOWN (P6). cause:
    // XTIE_PROVIDER_DOWN_, which the event has too unless the object knew of an end before. Of a
    // peer that is not open nothing happens.
    void (*peer_fail)(void *provider, uint32_t peer, uint32_t cause, int32_t code);
    // Forgets a peer (P9). Receive slots that it still holds are given back with it: opened again,
    // it has as many as caps says.
    // Returns XTIE_PROVIDER_OK, _BUSY or _STALE.
    int (*peer_close)(void *provider, uint32_t peer);
    // Forgets a fenced peer but for what it sent: slots still held stay valid, with their bytes,
    // until they are released, also when the peer is open again, which has so many receives fewer
    // until then. May be NULL: then peers that hold slots cannot be opened again.
    // Returns XTIE_PROVIDER_OK, _BUSY or _STALE.
    int (*peer_detach)(void *provider, uint32_t peer);
    // Hands over what was posted as far as that waits for the next poll. May be NULL.
    void (*flush)(void *provider, uint64_t budget_bytes);
} xtie_provider_ops;

// What the suite runs on. Zeroed but for struct_size, storage and contexts it is complete.
typedef struct xtie_conformance_setup {
    // sizeof(xtie_conformance_setup).
    uint32_t struct_size;
    // XTIE_CONFORMANCE_THREADS, or zero.
    uint32_t flags;
    // What open gets for the one end.
    void *context_a;
    // What it gets for the other. Both may be the same: each end is an object of its own.
    void *context_b;
    // Memory that is registered and sent from: XTIE_CONFORMANCE_BYTES, aligned to 64 bytes.
    void *storage;
    // Its length in bytes.
    size_t storage_bytes;
    // What the functions below get.
    void *userdata;
    // Called before each round of polls, where the rail depends on the world outside: 64 calls are
    // longer than any delay of the rail. May be NULL.
    void (*advance)(void *userdata);
    // The time in nanoseconds. NULL: the suite counts 10 ms per round, and also tries whether the
    // same calls have the same answers.
    uint64_t (*now_ns)(void *userdata);
    // How often the calling thread has allocated so far. NULL: nobody counts.
    uint64_t (*allocations)(void *userdata);
} xtie_conformance_setup;

// What a run found.
typedef struct xtie_conformance_result {
    // The answer of xtie_conformance_run.
    int32_t result;
    // Number of the entry in which it ended; XTIE_CONFORMANCE_ENTRIES when all were run.
    uint32_t entry;
    // The promise that was broken: 1 for P1; 0 when it is none of them.
    uint32_t promise;
    // The code that the provider's open, peer_blob or peer_open refused with; else 0.
    int32_t code;
    // A bit for each entry that passed.
    uint64_t passed;
    // A bit for each entry that was skipped, because the caps do not promise what it is about.
    uint64_t skipped;
    // The entry's name, with a zero; empty when none was run or all were.
    char entry_name[64];
    // What was seen, with a zero; empty when nothing was wrong. Of a table the entry that is NULL.
    char why[128];
} xtie_conformance_result;

// What an endpoint is opened with. A field that is zero means the default.
typedef struct xtie_core_config {
    // sizeof(xtie_core_config).
    uint32_t struct_size;
    // Most connections at a time, 1 to 65536; default 8. Each is a peer of the provider's, with
    // the same number.
    uint32_t connections_max;
    // Most outstanding sends, and groups of receives, of one connection: 32, 64, 128 or 256;
    // default 32.
    uint32_t requests_max;
    // Most pieces of registered memory, 1 to 65534; default 16.
    uint32_t regions_max;
    // Longest message in bytes that is copied instead of taken from its place; default 8192, and
    // never more than the provider's send_bytes_max.
    uint32_t eager_bytes_max;
    // A random number, by which requests of different endpoints differ; may be zero.
    uint32_t salt;
} xtie_core_config;

// What one end of a connection tells the other: plain data without pointers.
typedef struct xtie_core_blob {
    // The bytes, not for reading.
    uint8_t bytes[192];
} xtie_core_blob;

// Room for one message. Of fixed size: it will not grow.
typedef struct xtie_core_buffer {
    // First byte; may be NULL when bytes is zero.
    void *data;
    // Room in bytes.
    size_t bytes;
    // Takes a message that was sent with this tag.
    int32_t tag;
    // Zero.
    uint32_t reserved;
    // The memory that the room lies in; does not count when bytes is zero.
    uint64_t memory;
} xtie_core_buffer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// One sentence for a result code of the core archive.
//
// result: any number; one that is no code has a sentence too.
// Returns a static string in English, without a full stop.
// Threads: any. Cost: a search of a short table.
const char *xtie_core_result_str(int result);

// Sets what is called when a bug of the library shows; then the processor traps.
//
// hook: NULL for none. userdata: what it gets.
// Threads: any, but not while another one is in this function.
void xtie_core_panic_hook_set(xtie_core_panic_hook hook, void *userdata);

// Runs the house's conformance suite over a provider: opens two of its objects, joins them, tries
// what they promise, and ends them, for each entry anew. Ends at the first entry that finds
// something wrong.
//
// ops: the provider. setup: what it runs on; read during the call. result_out: what was found, as
// a value; always written when it is not NULL.
// Returns XTIE_CORE_OK when every entry passed or was skipped. XTIE_CORE_ERR_PROMISE: an entry
// found a promise broken, and result_out names both. XTIE_CORE_ERR_BREACH: the provider gave an
// answer or an event that is none. XTIE_CORE_ERR_OPEN, _PEER, _BLOB, _CAPS_: no two objects could
// be had. Else a code for a pointer, structure, table or storage that is wrong; nothing was called
// then.
// Threads: any one. Cost: some thousand calls of the provider; 320 KiB of stack.
int xtie_conformance_run(const struct xtie_provider_ops *ops,
                         const struct xtie_conformance_setup *setup,
                         struct xtie_conformance_result *result_out);

// Name and promise of an entry of the suite.
//
// entry: below XTIE_CONFORMANCE_ENTRIES. name_out: room for XTIE_CONFORMANCE_NAME_BYTES; gets the
// name with a zero. promise_out: its number, 1 for P1; may be NULL.
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_NULL, or XTIE_CORE_ERR_RANGE: there is no such entry.
// Threads: any.
int xtie_conformance_entry(uint32_t entry, char *name_out, uint32_t *promise_out);

// Checks a provider's table without calling it.
//
// ops: the table. name_out: room for XTIE_CONFORMANCE_NAME_BYTES, or NULL; gets the name of the
// entry that is NULL, with a zero, or an empty text.
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_NULL (there is no table), _STRUCT_SIZE, _STRUCT (entries
// that are unknown here), _RESERVED, or XTIE_CORE_ERR_ENTRY.
// Threads: any.
int xtie_provider_ops_check(const struct xtie_provider_ops *ops, char *name_out);

// Storage that an endpoint takes, in bytes: known before it is opened, and never more. What the
// provider takes is the provider's.
//
// Returns XTIE_CORE_OK, or what is wrong with config.
// Threads: any.
int xtie_core_endpoint_size(const struct xtie_core_config *config, size_t *bytes_out);

// Opens an endpoint over an object of a provider's, which it opens and in the end closes.
//
// storage: aligned to 64 bytes, storage_bytes long; the library's until xtie_core_endpoint_close,
// and not to be moved. config, ops: read during the call; the functions of ops stay in the
// program. context: what the provider's open gets. endpoint_out: the endpoint.
// Returns XTIE_CORE_OK; what is wrong with storage, config or table; XTIE_CORE_ERR_OPEN or _CAPS_
// (the provider refused, or contradicts itself); XTIE_CORE_ERR_RAIL_SMALL (it has too little for
// an endpoint); XTIE_CORE_ERR_MEMORY_KIND, _REGIONS_FULL or _FABRIC (it did not register the
// mailboxes).
// Threads: any one, which is the endpoint's.
int xtie_core_endpoint_open(void *storage,
                            size_t storage_bytes,
                            const struct xtie_core_config *config,
                            const struct xtie_provider_ops *ops,
                            void *context,
                            struct xtie_core_endpoint **endpoint_out);

// Ends an endpoint, with its provider's object: afterwards nothing touches the storage, nor memory
// that was registered or given to requests. Peers of connections that were not closed see what the
// rail shows them.
//
// Returns XTIE_CORE_OK, or what is wrong with the pointer.
// Threads: the endpoint's.
int xtie_core_endpoint_close(struct xtie_core_endpoint *endpoint);

// Moves everything on that can move now.
//
// now_ns: the time in nanoseconds, of any clock that does not go back.
// Returns XTIE_CORE_OK, or XTIE_CORE_ERR_BREACH: the provider gave an answer that is none, and the
// endpoint cannot be used any more.
// Threads: the endpoint's. Cost: at most 256 KiB copied by the provider.
int xtie_core_endpoint_progress(struct xtie_core_endpoint *endpoint, uint64_t now_ns);

// Makes memory known to the endpoint and its peers, to send from and receive into.
//
// data, bytes: the range; the program's, and to be kept until the memory is deregistered. kind:
// XTIE_PROVIDER_MEMORY_. memory_out: its number.
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_REGIONS_FULL, _MEMORY_KIND, _REGISTER_RANGE or _FABRIC.
// Threads: the endpoint's.
int xtie_core_memory_register(struct xtie_core_endpoint *endpoint,
                              void *data,
                              size_t bytes,
                              uint32_t kind,
                              uint64_t *memory_out);

// Forgets memory; after success no peer touches it.
//
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_MEMORY_BUSY (requests or ops use it; nothing was changed),
// XTIE_CORE_ERR_MEMORY or _FABRIC.
// Threads: the endpoint's.
int xtie_core_memory_deregister(struct xtie_core_endpoint *endpoint, uint64_t memory);

// What the other end needs to open its end of a connection.
//
// connection: a number of the program's, below connections_max, that is not open. blob_out: to be
// carried to the other end, in any way.
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_CONNECTION, _CONNECTION_OPEN, or XTIE_CORE_ERR_PEER.
// Threads: the endpoint's.
int xtie_core_connection_blob(struct xtie_core_endpoint *endpoint,
                              uint32_t connection,
                              struct xtie_core_blob *blob_out);

// Opens a connection to the end that wrote blob.
//
// connection: as told to xtie_core_connection_blob.
// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (make progress, then call again); XTIE_CORE_ERR_BLOB,
// _VERSION, _PEER_OTHER (what the ends can do does not fit), _PEER (the provider refused),
// _CONNECTION, _CONNECTION_OPEN.
// Threads: the endpoint's.
int xtie_core_connection_open(struct xtie_core_endpoint *endpoint,
                              uint32_t connection,
                              const struct xtie_core_blob *blob);

// Accepts a message. The buffer is the library's until the request has ended.
//
// data, bytes: the message, inside memory; neither counts when bytes is zero. tag: matched against
// receives. request_out: its number.
// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (too many are outstanding); XTIE_CORE_ERR_CONNECTION,
// _MEMORY, _RANGE, _TOO_LONG; or what the connection has failed with.
// Threads: the endpoint's.
int xtie_core_connection_isend(struct xtie_core_endpoint *endpoint,
                               uint32_t connection,
                               const void *data,
                               size_t bytes,
                               int32_t tag,
                               uint64_t memory,
                               uint64_t *request_out);

// Accepts a group of receives. The buffers are the library's until the request has ended.
//
// buffers, count: 1 to XTIE_CORE_GROUP_MAX; read during the call. request_out: its number.
// Returns as xtie_core_connection_isend, and XTIE_CORE_ERR_GROUP or _RESERVED.
// Threads: the endpoint's.
int xtie_core_connection_irecv(struct xtie_core_endpoint *endpoint,
                               uint32_t connection,
                               const struct xtie_core_buffer *buffers,
                               size_t count,
                               uint64_t *request_out);

// Asks whether a request has ended. It is forgotten when it has.
//
// done_out: 1 when it has ended, else 0. bytes_out: NULL, or written when it has ended: of a send
// its bytes, of a group those of each receive's message, as many as the group has, also where it
// was too long (XTIE_CORE_ERR_TRUNCATED). After other errors they say nothing.
// Returns XTIE_CORE_OK, XTIE_CORE_ERR_STALE, or the error that the request ended with (*done_out
// is 1 then); with a *done_out of 0 XTIE_CORE_ERR_BREACH: a provider broke its promises, and no
// request of the endpoint ends any more. Threads: the endpoint's. Cost: no progress is made.
int xtie_core_request_test(struct xtie_core_endpoint *endpoint,
                           uint64_t request,
                           int *done_out,
                           size_t *bytes_out);

// Gives a connection up: its outstanding requests end with XTIE_CORE_ERR_CONNECTION_CLOSED.
//
// A provider that loses the end of an op that it took, or of a fence (P2, P10), has
// XTIE_CORE_AGAIN without end: nothing says that it has left alone what these requests were given,
// so they do not end, and their memory stays busy. How long is too long is the program's to say.
// xtie_core_endpoint_close ends the endpoint then, whatever the provider owes: behind the close of
// its object nothing touches any memory.
//
// Returns XTIE_CORE_OK; XTIE_CORE_AGAIN (it is being fenced: make progress, then call again);
// XTIE_CORE_ERR_CONNECTION.
// Threads: the endpoint's.
int xtie_core_connection_close(struct xtie_core_endpoint *endpoint, uint32_t connection);

// The wire version that this archive speaks: major in the high 16 bits, minor in the low ones.
uint32_t xtie_core_version(void);

// Whether the 128 bytes at `handle` are a listener's handle of this version: 1 or 0.
int xtie_core_handle_check(const uint8_t *handle);

// Bytes of storage that [`xtie_core_loopback_check`] asks for.
size_t xtie_core_loopback_bytes(void);

// Opens an endpoint in the caller's storage, joins two of its connections, sends messages of
// several lengths from one to the other, pulled and pushed, and compares every byte. 0: all
// arrived; -1: the storage is NULL, not aligned to 64 bytes, or too small; -2, -3, -4: set-up,
// message or closing went wrong. Touches nothing but the storage.
int xtie_core_loopback_check(uint8_t *storage, size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CROSSTIE_PROVIDER_H */
