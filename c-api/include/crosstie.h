// crosstie.h: messages between processes, fast, without allocation after open. Made from c-api/src
// by cbindgen; do not edit.
//
// OVERVIEW
//
// An *endpoint* is the library's state for one thread of the program, in storage that the program
// gives. It opens *listeners*, whose 128-byte *handles* tell other endpoints where they are, and
// *connections*, which carry *messages* in order. Messages lie in registered *memory*. Sending and
// receiving give *requests*, which are tested until they have ended. Nothing blocks: a function that
// cannot go on yet gives NULL or XTIE_AGAIN, and is called again.
//
// The whole of one side, errors left out (examples-c/ has complete programs):
//
//     XTIE_ENDPOINT_STORAGE(storage, 4, 32, 16);  // static; connections, requests, memory
//
//     xtie_endpoint_config config;
//     xtie_endpoint_config_init(&config, sizeof config);
//     config.connections_max = 4;
//     config.requests_max = 32;
//     config.regions_max = 16;
//     xtie_endpoint *endpoint = NULL;
//     xtie_endpoint_open(storage, sizeof storage, &config, &endpoint);
//
//     // The side that listens; the handle reaches the other side in a way of its own.
//     xtie_handle handle;
//     xtie_listener *listener = NULL;
//     xtie_connection *connection = NULL;
//     xtie_endpoint_listen(endpoint, &handle, &listener);
//     while (connection == NULL)
//         xtie_listener_accept(endpoint, listener, &connection);
//
//     // The side that connects.
//     xtie_attempt *attempt = NULL;
//     while (connection == NULL)
//         xtie_endpoint_connect(endpoint, &handle, &attempt, &connection);
//
//     // Both sides: memory, a message there, a message back.
//     void *data = NULL;
//     xtie_memory *memory = NULL;
//     xtie_memory_alloc(endpoint, 8192, &data, &memory);
//     xtie_request *send = NULL, *receive = NULL;
//     xtie_buffer buffer = {(char *)data + 4096, 4096, 7, 0, memory};  // 4096 bytes, tag 7
//     while (receive == NULL) {  // NULL: no room now
//         xtie_connection_irecv(endpoint, connection, &buffer, 1, &receive);
//         xtie_endpoint_progress(endpoint, NULL);
//     }
//     while (send == NULL) {
//         xtie_connection_isend(endpoint, connection, data, 4096, 7, memory, &send);
//         xtie_endpoint_progress(endpoint, NULL);
//     }
//     int sent = 0, received = 0;
//     size_t bytes = 0;
//     while (!sent || !received) {
//         if (!sent) xtie_request_test(endpoint, send, &sent, NULL);
//         if (!received) xtie_request_test(endpoint, receive, &received, &bytes);
//     }
//
//     while (xtie_connection_close(endpoint, connection) == XTIE_AGAIN)
//         xtie_endpoint_progress(endpoint, NULL);
//     xtie_endpoint_close(endpoint);
//
// GROUPS. Instead of messages, the ranks of a *group* may put bytes into each other's memory and
// signal that. A *window* is memory that each rank gives to the others: its part, of any size. A
// *signal* is a word of a window that other ranks add to; a *counter* is such a word at the rank
// that starts an operation. A *ticket* names an operation. Starting one never blocks: XTIE_AGAIN
// means that there is no room now. Opening, exchanging and waiting block, for a time that is given.
// An operation takes effect while the rank that has the window makes progress. On each of n ranks:
//
//     xtie_group_config config = {.struct_size = sizeof config};
//     config.rank = rank;
//     config.ranks = n;
//     config.windows_max = config.signals_max = config.barriers_max = 1;
//     config.gather = gather;  // a function of the program's: how the ranks meet
//     xtie_group *group = NULL;
//     xtie_group_open(endpoint, storage, sizeof storage, &config, &group);
//     xtie_window_alloc(group, 8192, 0, &data, &memory, &window);
//     xtie_window_exchange(group, window, 0);
//     xtie_transfer transfer = {data, 4096, memory, 4096, (rank + 1) % n, 0};
//     xtie_add signal = {0, 0, 1};  // signal 0 grows by 1
//     while (xtie_window_put_signal(group, window, &transfer, &signal, NULL) == XTIE_AGAIN)
//         xtie_group_progress(group);
//     xtie_window_wait_signal(group, window, 0, XTIE_COMPARE_GREATER_EQUAL, 1, 0);
//     xtie_window_barrier(group, window, 0, 0);
//     xtie_group_close(group);
//
// UNITS. Sizes are bytes; a name ends in its unit or bound: _bytes, _ms, _max. Text is UTF-8.
//
// THREADS. An endpoint has one thread at a time, which alone may call the functions whose comment
// says "the endpoint's"; another thread may become that thread with the usual synchronisation.
// Functions that say "any" may be called from any thread, also while the endpoint's thread is in a
// call. Endpoints are independent of each other; give each busy thread its own. A thread must not be
// cancelled (pthread_cancel) while it is in a call: what it has locked would stay locked. It may
// forbid that around its calls (pthread_setcancelstate).
//
// THE PROCESS. Its environment is read once, by the first call that opens an endpoint, on the
// caller's thread: nothing may change it (setenv, putenv) during that call, and later changes have
// no effect. Libraries of NICs, which are loaded when an endpoint is opened on such a device, read
// variables of their own when they like. Every descriptor of the library has a number from 3 on,
// also where standard streams are closed; while a library of NICs is in use, the numbers of closed
// ones are held by descriptors that can be neither read nor written. A line of the log raises no
// SIGPIPE.
//
// OWNERSHIP. The storage is the library's from open to close, and must not move. A buffer is the
// library's from isend or irecv until its request has ended. Structures and handles are read during
// the call. What open, listen, accept, connect, register and alloc give stands until the function
// that ends it. xtie_endpoint * and xtie_group * are pointers; all other objects are numbers in a
// pointer's clothes, never followed, and using one after its end is an error with a code of its
// own. Objects belong to the endpoint or group that gave them. After fork(), endpoints belong to
// the parent; the child opens its own.
//
// ERRORS. Functions return an int: XTIE_OK, XTIE_AGAIN, or a negative XTIE_ERR_ code. A call that
// failed has changed nothing and written no output (the exceptions are said: xtie_request_test and
// xtie_endpoint_connect). xtie_result_str has a sentence for each code, xtie_endpoint_error the
// particulars, with the peer's name. A bug of the library never unwinds into the program: the
// endpoint is poisoned, and from then on answers XTIE_ERR_POISONED. XTIE_ERR_NULL is for an
// endpoint, a group, storage, a structure, an array of buffers, memory to register and an output
// that are NULL, but for outputs that may be (events_out, sizes_out, requests_out, ticket_out,
// userdata). An object that is NULL names none, and has the code for that: XTIE_ERR_CONNECTION,
// XTIE_ERR_LISTENER, XTIE_ERR_MEMORY, XTIE_ERR_WINDOW, of a request XTIE_ERR_STALE. So has a
// message: bytes at NULL lie outside of their memory (XTIE_ERR_RANGE), and where there are none,
// neither data nor memory is looked at.
//
// STRUCTURES that the program fills begin with struct_size, which it sets to sizeof; they are read
// as far as that says. Later versions only lengthen them: shorter ones are taken as they are,
// longer ones if the rest is zero. Of a size over 4096, or of one that is no multiple of the
// alignment, nothing else is read.


#ifndef CROSSTIE_H
#define CROSSTIE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define XTIE_ALIGNAS(bytes) alignas(bytes)
#else
#define XTIE_ALIGNAS(bytes) _Alignas(bytes)
#endif

// Version of this header, 0xMMmmpp: major, minor, patch. Compare with xtie_version().
#define XTIE_VERSION                                                                               \
    ((XTIE_VERSION_MAJOR << 16) | (XTIE_VERSION_MINOR << 8) | XTIE_VERSION_PATCH)

// Outstanding transfers of an endpoint, a power of two from 16 on; a part of the macros below.
#define XTIE_OPERATIONS(connections_max)                                                           \
    ((size_t)((connections_max) <= 16    ? 16                                                      \
              : (connections_max) <= 32    ? 32                                                    \
              : (connections_max) <= 64    ? 64                                                    \
              : (connections_max) <= 128   ? 128                                                   \
              : (connections_max) <= 256   ? 256                                                   \
              : (connections_max) <= 512   ? 512                                                   \
              : (connections_max) <= 1024  ? 1024                                                  \
              : (connections_max) <= 2048  ? 2048                                                  \
              : (connections_max) <= 4096  ? 4096                                                  \
              : (connections_max) <= 8192  ? 8192                                                  \
              : (connections_max) <= 16384 ? 16384                                                 \
              : (connections_max) <= 32768 ? 32768                                                 \
                                         : 65536))

// Storage of an endpoint in bytes, as an integer constant expression: what xtie_endpoint_size says
// for a configuration with these limits. For all devices but the loopback.
#define XTIE_ENDPOINT_BYTES(connections_max, requests_max, regions_max)                            \
    ((size_t)XTIE_BYTES_FIXED + (size_t)(connections_max) * (size_t)XTIE_BYTES_CONNECTION +        \
     (size_t)(connections_max) * (size_t)(requests_max) * (size_t)XTIE_BYTES_REQUEST +             \
     XTIE_OPERATIONS(connections_max) * (size_t)XTIE_BYTES_OPERATION +               \
     (size_t)(regions_max) * (size_t)XTIE_BYTES_REGION + XTIE_RAILS_BYTES(connections_max, 2))

// The part of it that several rails take; XTIE_ENDPOINT_BYTES has that of the default rails_max.
#define XTIE_RAILS_BYTES(connections_max, rails_max)                                               \
    ((rails_max) == 1 ? (size_t)0                                                                  \
                      : (size_t)(connections_max) *                                                \
                            ((size_t)XTIE_BYTES_SEVERAL +                                          \
                             (size_t)(rails_max) * (size_t)XTIE_BYTES_RAIL))

// The same for the loopback device.
#define XTIE_LOOPBACK_BYTES(connections_max, requests_max, regions_max)                            \
    (XTIE_ENDPOINT_BYTES(connections_max, requests_max, regions_max) +                             \
     (size_t)(connections_max) * (size_t)XTIE_BYTES_LOOPBACK +                                     \
     XTIE_OPERATIONS(connections_max) * (size_t)XTIE_BYTES_LOOPBACK_OPERATION)

// Storage of a group in bytes, as an integer constant expression: what xtie_group_size says for a
// configuration with these limits.
#define XTIE_GROUP_BYTES(ranks, windows_max, signals_max, counters_max, barriers_max)              \
    (((size_t)XTIE_BYTES_GROUP + (size_t)(ranks) * (size_t)XTIE_BYTES_GROUP_RANK +                 \
      (size_t)(windows_max) * (size_t)XTIE_BYTES_GROUP_WINDOW +                                    \
      (size_t)(windows_max) * (size_t)(ranks) * (size_t)XTIE_BYTES_GROUP_SHARE +                   \
      (size_t)(windows_max) *                                                                      \
          ((size_t)(ranks) * ((size_t)(signals_max) + (size_t)(barriers_max)) +                    \
           (size_t)(counters_max) + (size_t)(barriers_max)) *                                      \
          (size_t)XTIE_BYTES_GROUP_WORD +                                                          \
      XTIE_STORAGE_ALIGN - 1) /                                                                    \
     XTIE_STORAGE_ALIGN * XTIE_STORAGE_ALIGN)

// Connections that a group takes of its endpoint: two to each rank, and both ends of those to this
// rank itself.
#define XTIE_GROUP_CONNECTIONS(ranks) (2 * (ranks) + 2)

// Declares a static array that an endpoint can be opened in, with the default rails_max. For
// another, an array of XTIE_ENDPOINT_BYTES(c, r, m) - XTIE_RAILS_BYTES(c, 2) +
// XTIE_RAILS_BYTES(c, rails_max) bytes, aligned to XTIE_STORAGE_ALIGN, is needed.
#define XTIE_ENDPOINT_STORAGE(name, connections_max, requests_max, regions_max)                    \
    XTIE_ALIGNAS(XTIE_STORAGE_ALIGN)                                                               \
    static unsigned char name[XTIE_ENDPOINT_BYTES(connections_max, requests_max, regions_max)]


// Version of this header: major.
#define XTIE_VERSION_MAJOR 0

// Version of this header: minor.
#define XTIE_VERSION_MINOR 1

// Version of this header: patch.
#define XTIE_VERSION_PATCH 0

// Steps when a program built with an older header would break; the shared library's name carries
// it. Compare with xtie_abi_version().
#define XTIE_ABI_VERSION 0

// Log level: something does not work.
#define XTIE_LOG_ERROR 1

// Log level: something works otherwise than was asked.
#define XTIE_LOG_WARNING 2

// Log level: what is going on, once per object.
#define XTIE_LOG_INFO 3

// Kind of device: processes of one host, through shared memory alone.
#define XTIE_DEVICE_SHARED_MEMORY 1

// Kind of device: an endpoint that reaches only itself, for tests and measurements.
#define XTIE_DEVICE_LOOPBACK 2

// Kind of device: processes of every host, of this one through shared memory, of others over TCP.
#define XTIE_DEVICE_HOST 3

// Kind of device: processes of every host, over TCP alone.
#define XTIE_DEVICE_TCP 4

// Alignment of an endpoint's storage in bytes.
#define XTIE_STORAGE_ALIGN 64

// Most receives in one call of xtie_connection_irecv.
#define XTIE_GROUP_MAX 8

// Flag of xtie_endpoint_config: without xtie_memory_alloc, and the address space it reserves.
#define XTIE_ENDPOINT_NO_HEAP 1

// Flag of xtie_endpoint_config: receives are offered to senders also over shared memory, where the
// peer's endpoint has the flag, too, and requests_max 32 both or neither, as always over TCP.
// Messages that nobody receives yet then never stand before others, whatever their tags; a short
// message takes some 0.3 us more, and from 2 KiB on it waits for its receive, as a long one does.
// The NCCL plugin's endpoints do so.
#define XTIE_ENDPOINT_PUSH 2

// Flag of xtie_endpoint_config: RDMA ports have companions, queue pairs by which the NIC adds to
// counters of this process (doc/verbs.md). A connection then has one RDMA rail at most, whatever
// rails_max is, and ends when it loses that rail.
#define XTIE_ENDPOINT_COMPANIONS 4

// Term of XTIE_ENDPOINT_BYTES: an endpoint without anything.
#define XTIE_BYTES_FIXED 8192

// Term of XTIE_ENDPOINT_BYTES: a connection without requests.
#define XTIE_BYTES_CONNECTION 4096

// Term of XTIE_RAILS_BYTES: a connection that may have several rails.
#define XTIE_BYTES_SEVERAL 10240

// Term of XTIE_RAILS_BYTES: each of them.
#define XTIE_BYTES_RAIL 2560

// Term of XTIE_ENDPOINT_BYTES: a send and a group of eight receives of one connection.
#define XTIE_BYTES_REQUEST 880

// Term of XTIE_ENDPOINT_BYTES: a transfer that is under way, and news from the side band.
#define XTIE_BYTES_OPERATION 512

// Term of XTIE_ENDPOINT_BYTES: registered memory.
#define XTIE_BYTES_REGION 144

// Term of XTIE_LOOPBACK_BYTES: what a connection takes more than elsewhere.
#define XTIE_BYTES_LOOPBACK 90112

// Term of XTIE_LOOPBACK_BYTES: what a transfer takes more than elsewhere.
#define XTIE_BYTES_LOOPBACK_OPERATION 512

// Rail of a connection: shared memory.
#define XTIE_RAIL_SHARED_MEMORY 1

// Rail of a connection: the endpoint itself.
#define XTIE_RAIL_LOOPBACK 2

// Rail of a connection: TCP.
#define XTIE_RAIL_TCP 3

// Rail of a connection: RDMA ports; of a connection it says that TCP is rail 0, their reserve.
#define XTIE_RAIL_VERBS 5

// Rail of a connection: NICs that libfabric reaches; of a connection likewise.
#define XTIE_RAIL_LIBFABRIC 6

// Rail of a connection: rails of vendors; of a connection likewise.
#define XTIE_RAIL_VENDOR 7

// Kind of memory: pages of this process.
#define XTIE_MEMORY_HOST 1

// Kind of memory: of a GPU, by CUDA. The GPU is found by the address.
#define XTIE_MEMORY_CUDA 2

// As a timeout: none.
#define XTIE_NO_TIMEOUT UINT32_MAX

// All ranks of a group, where a function takes that.
#define XTIE_RANK_ALL UINT32_MAX

// Term of XTIE_GROUP_BYTES: a group without anything.
#define XTIE_BYTES_GROUP 1024

// Term of XTIE_GROUP_BYTES: a rank.
#define XTIE_BYTES_GROUP_RANK 73728

// Term of XTIE_GROUP_BYTES: a window.
#define XTIE_BYTES_GROUP_WINDOW 128

// Term of XTIE_GROUP_BYTES: a window at a rank.
#define XTIE_BYTES_GROUP_SHARE 64

// Term of XTIE_GROUP_BYTES: a counter, or a signal or a barrier of one rank.
#define XTIE_BYTES_GROUP_WORD 8

// Algorithm of an AllGather: the library chooses by the ranks' hosts.
#define XTIE_ALGORITHM_AUTO 0

// Each rank gives its bytes to every other one.
#define XTIE_ALGORITHM_DIRECT 1

// A ring over the hosts; each rank passes on within its host what came. Each host has as many
// ranks, numbered one after another.
#define XTIE_ALGORITHM_PIPELINE 2

// Flag of a window: other ranks may read this rank's part of it, and not write to it.
#define XTIE_WINDOW_READ_ONLY 1

// Comparison of a wait: the word is the value.
#define XTIE_COMPARE_EQUAL 1

// Comparison of a wait: the word is not the value.
#define XTIE_COMPARE_NOT_EQUAL 2

// Comparison of a wait: the word is larger.
#define XTIE_COMPARE_GREATER 3

// Comparison of a wait: the word is larger, or the value.
#define XTIE_COMPARE_GREATER_EQUAL 4

// Comparison of a wait: the word is smaller.
#define XTIE_COMPARE_LESS 5

// Comparison of a wait: the word is smaller, or the value.
#define XTIE_COMPARE_LESS_EQUAL 6

// State of a rail: not in use; it was never up, or is being connected again.
#define XTIE_RAIL_STATE_DOWN 0

// State of a rail: connected, and the peer has not said that it is there too.
#define XTIE_RAIL_STATE_JOINING 1

// State of a rail: in use.
#define XTIE_RAIL_STATE_UP 2

// State of a rail: it failed, and what was on it is being stopped.
#define XTIE_RAIL_STATE_FAILING 3

// State of a rail: it failed and is stopped; the peer has not said what it had carried.
#define XTIE_RAIL_STATE_FENCED 4

// Bytes of the text of a rail's end, with the zero behind it.
#define XTIE_ADDRESS_BYTES 64

// Most rails that an endpoint is opened with: one less than a connection may have.
#define XTIE_VENDOR_RAILS_MAX 7

// Flag of xtie_vendor_rail: it reaches processes of its own host.
#define XTIE_VENDOR_RAIL_OWN_HOST 1

// Flag of xtie_vendor_rail: it reaches processes of other hosts.
#define XTIE_VENDOR_RAIL_OTHER_HOSTS 2

// What a function answers. Zero is success, XTIE_AGAIN is an answer and not an error, errors are
// negative. A number is never given a second meaning.
typedef enum xtie_result {
    // Success.
    XTIE_OK = 0,
    // Not yet: call xtie_endpoint_progress, or of a group xtie_group_progress, then call again.
    XTIE_AGAIN = 1,
    // A pointer that must be given is NULL; ERRORS above says which.
    XTIE_ERR_NULL = -1,
    // struct_size is not the size of any version of the structure.
    XTIE_ERR_STRUCT_SIZE = -2,
    // The structure asks for something that this version of the library does not know.
    XTIE_ERR_STRUCT = -3,
    // A flag is unknown.
    XTIE_ERR_FLAGS = -4,
    // The kind of memory is unknown, or the device cannot reach it.
    XTIE_ERR_MEMORY_KIND = -5,
    // There is no device of that number.
    XTIE_ERR_DEVICE = -6,
    // The device cannot be used on this host.
    XTIE_ERR_DEVICE_UNAVAILABLE = -7,
    // The storage is not aligned to XTIE_STORAGE_ALIGN bytes.
    XTIE_ERR_STORAGE_ALIGN = -8,
    // The storage is smaller than xtie_endpoint_size, or xtie_group_size, asks for.
    XTIE_ERR_STORAGE_SIZE = -9,
    // connections_max is not from 1 to 65536.
    XTIE_ERR_CONNECTIONS_MAX = -10,
    // requests_max is not 32, 64, 128 or 256; of a connection over TCP: it is 32 at one end, and
    // more at the other.
    XTIE_ERR_REQUESTS_MAX = -11,
    // regions_max is not from 1 to 65534.
    XTIE_ERR_REGIONS_MAX = -12,
    // A ring size is no power of two from 4096 to 131072 (send ring) or 16777216 (write ring), or
    // the eager size is over a quarter of the send ring less 64 bytes, or over 16384, or the heap
    // 2^47 bytes or more.
    XTIE_ERR_RINGS = -13,
    // A reserved field is not zero.
    XTIE_ERR_RESERVED = -14,
    // There is no room for text.
    XTIE_ERR_TEXT = -15,
    // An endpoint that is not closed stands in the storage.
    XTIE_ERR_STORAGE_IN_USE = -16,
    // A limit of the group is out of range; the log says which.
    XTIE_ERR_GROUP_LIMITS = -17,
    // The comparison is none of XTIE_COMPARE_.
    XTIE_ERR_COMPARISON = -18,
    // There is no such algorithm of AllGathers, or the ranks' hosts do not allow it.
    XTIE_ERR_ALGORITHM = -19,
    // The pointer is not one that xtie_endpoint_open gave.
    XTIE_ERR_ENDPOINT = -20,
    // The endpoint is closed.
    XTIE_ERR_CLOSED = -21,
    // A bug of the library showed in an earlier call; the endpoint can no longer be used.
    XTIE_ERR_POISONED = -22,
    // The endpoint was opened before a fork, and belongs to the parent process.
    XTIE_ERR_FORKED = -23,
    // The connection is closed, or never was one of this endpoint.
    XTIE_ERR_CONNECTION = -24,
    // The listener is closed, or never was one of this endpoint.
    XTIE_ERR_LISTENER = -25,
    // The attempt is over or abandoned, or never was one of this endpoint.
    XTIE_ERR_ATTEMPT = -26,
    // The memory is not registered with this endpoint.
    XTIE_ERR_MEMORY = -27,
    // The request was tested to its end, or never was one of this endpoint.
    XTIE_ERR_STALE = -28,
    // The pointer is not one that xtie_group_open gave.
    XTIE_ERR_NO_GROUP = -29,
    // The buffer does not lie inside the memory that was named for it.
    XTIE_ERR_RANGE = -30,
    // The range to register is empty, or longer than can be, or wraps around the address space.
    XTIE_ERR_REGISTER_RANGE = -31,
    // Requests that use the memory are outstanding.
    XTIE_ERR_MEMORY_BUSY = -32,
    // A group has 1 to XTIE_GROUP_MAX receives.
    XTIE_ERR_GROUP = -33,
    // The message is longer than any message may be, or than the connection takes.
    XTIE_ERR_TOO_LONG = -34,
    // The request is under way already, or has ended: test it until it says so.
    XTIE_ERR_UNDER_WAY = -35,
    // The bytes do not lie inside that rank's part of the window.
    XTIE_ERR_WINDOW_RANGE = -36,
    // Other ranks may only read that rank's part of the window.
    XTIE_ERR_READ_ONLY = -37,
    // The window has no signal, counter or barrier of that number.
    XTIE_ERR_ID = -38,
    // The group has no rank of that number.
    XTIE_ERR_RANK = -39,
    // As much memory is registered as regions_max allows.
    XTIE_ERR_REGIONS_FULL = -40,
    // All listeners are in use.
    XTIE_ERR_LISTENERS_FULL = -41,
    // As many connections are open as connections_max allows, with those that are closed here and
    // not by their peers.
    XTIE_ERR_CONNECTIONS_FULL = -42,
    // The endpoint is connected to as many other endpoints as it can be.
    XTIE_ERR_PEERS_FULL = -43,
    // The process may open no more file descriptors (ulimit -n).
    XTIE_ERR_DESCRIPTORS = -44,
    // There is not enough (shared) memory.
    XTIE_ERR_NO_MEMORY = -45,
    // The operating system refused.
    XTIE_ERR_SYSTEM = -46,
    // All windows of the group are in use.
    XTIE_ERR_WINDOWS_FULL = -47,
    // All prepared AllGathers of the group are in use.
    XTIE_ERR_ALL_GATHERS_FULL = -48,
    // The AllGather was destroyed, or its window freed; or it is not one of that stream.
    XTIE_ERR_ALL_GATHER = -49,
    // The handle is damaged.
    XTIE_ERR_HANDLE_CORRUPT = -50,
    // The bytes are not a handle of this library.
    XTIE_ERR_HANDLE_FOREIGN = -51,
    // The peer speaks a newer wire version: upgrade this side.
    XTIE_ERR_VERSION_HERE = -52,
    // The peer speaks an older wire version: upgrade the peer.
    XTIE_ERR_VERSION_PEER = -53,
    // The listener is on another host, which this device does not reach; of the loopback device:
    // it is another endpoint's.
    XTIE_ERR_OTHER_HOST = -54,
    // Nobody listens there any more; another program may answer in its place.
    XTIE_ERR_NO_LISTENER = -55,
    // The peer has no connection left.
    XTIE_ERR_PEER_FULL = -56,
    // The peer has no memory for a connection.
    XTIE_ERR_PEER_MEMORY = -57,
    // The peer may open no more file descriptors.
    XTIE_ERR_PEER_DESCRIPTORS = -58,
    // The peer did not answer within CROSSTIE_CONNECT_TIMEOUT_MS, although somebody took the
    // connection, or it is on this host.
    XTIE_ERR_DEADLINE = -59,
    // The message was longer than the receive; nothing was written to the buffer.
    XTIE_ERR_TRUNCATED = -60,
    // The peer closed the connection.
    XTIE_ERR_PEER_CLOSED = -61,
    // The peer's process ended, or cannot be reached any more.
    XTIE_ERR_PEER_DIED = -62,
    // This side closed the connection before the request ended.
    XTIE_ERR_CONNECTION_CLOSED = -63,
    // The request was canceled.
    XTIE_ERR_CANCELED = -64,
    // The peer broke the protocol.
    XTIE_ERR_PROTOCOL = -65,
    // The rail failed.
    XTIE_ERR_FABRIC = -66,
    // The rank that has the window could not move the bytes.
    XTIE_ERR_WINDOW_MEMORY = -67,
    // That rank has freed its part of the window.
    XTIE_ERR_WINDOW_FREED = -68,
    // A NIC failed before it had added to a counter of the window: its counters are not known.
    XTIE_ERR_OUTCOME_UNKNOWN = -69,
    // One side does not let the other in: the shared keys differ, or one alone has one
    // (CROSSTIE_KEY_FILE); or on this host, without a key, it is another user's process
    // (CROSSTIE_ALLOW_UIDS).
    XTIE_ERR_KEY = -70,
    // Of open: CROSSTIE_RAILS leaves the device no rail, or CROSSTIE_RAILS_REQUIRED names one that
    // is not to be had. Of connect: no rail that both sides allow leads to the peer.
    XTIE_ERR_NO_RAIL = -71,
    // None of the peer's addresses can be reached: the kernel said so, or none took the connection
    // within CROSSTIE_CONNECT_TIMEOUT_MS.
    XTIE_ERR_UNREACHABLE = -72,
    // Of open: no chosen interface that is up has an address (CROSSTIE_SOCKET_IFNAME). Of connect:
    // no such interface leads to the peer.
    XTIE_ERR_INTERFACE = -73,
    // The file of CROSSTIE_KEY_FILE cannot be used.
    XTIE_ERR_KEY_FILE = -74,
    // Every rail of the connection failed, and none came back in time.
    XTIE_ERR_RAILS_LOST = -75,
    // A rail failed, and the peer never said what it had carried.
    XTIE_ERR_NO_ANSWER = -76,
    // A rail failed and could not be fenced in time: the request's memory may still be touched. It
    // must stay mapped; deregistering it says XTIE_ERR_MEMORY_BUSY until the fence holds.
    XTIE_ERR_UNFENCED = -77,
    // rails_max is not 1, 2, 4 or 8.
    XTIE_ERR_RAILS_MAX = -78,
    // The connection has no rail of that number.
    XTIE_ERR_RAIL = -79,
    // The peer's host acknowledged nothing on the connection for too long, although the peer was
    // heard otherwise: packets are lost on the way.
    XTIE_ERR_SILENT = -80,
    // The peer gave the connection up, for a reason of its own: its requests ended with that.
    XTIE_ERR_PEER_GAVE_UP = -81,
    // A rail of a vendor's that the program gives is none; the log says which and why.
    XTIE_ERR_VENDOR_RAIL = -82,
    // Of open: a CROSSTIE_ variable of the environment has a value that cannot be meant. The log
    // has a line with its name, its value and what it may be.
    XTIE_ERR_SETTING = -83,
    // The memory does not lie on the device that was named.
    XTIE_ERR_MEMORY_DEVICE = -84,
    // The descriptor is no dma-buf, or is given for memory that has none.
    XTIE_ERR_DMABUF = -85,
    // The memory ends beyond the dma-buf.
    XTIE_ERR_DMABUF_RANGE = -86,
    // The time that was given has passed.
    XTIE_ERR_TIMEOUT = -87,
    // The group was aborted (xtie_group_abort).
    XTIE_ERR_ABORTED = -88,
    // A rank opens another group than this one: another number of ranks, another rank's number, or
    // a library of another version.
    XTIE_ERR_GROUP_MISMATCH = -89,
    // gather or look of the group's configuration has failed.
    XTIE_ERR_BOOTSTRAP = -90,
    // A rank did not come in time.
    XTIE_ERR_RANK_MISSING = -91,
    // Another rank could not open its group; its own error says why.
    XTIE_ERR_RANK_FAILED = -92,
    // The window was not exchanged yet.
    XTIE_ERR_NOT_EXCHANGED = -93,
    // The window was exchanged already.
    XTIE_ERR_EXCHANGED = -94,
    // The window was freed, or never was one of this group.
    XTIE_ERR_WINDOW = -95,
    // The group is closed, or its endpoint was.
    XTIE_ERR_GROUP_CLOSED = -96,
    // No NIC can add to the counter: the endpoint has no companions
    // (XTIE_ENDPOINT_COMPANIONS), or the connection no RDMA rail that takes the add.
    XTIE_ERR_NO_NIC_COUNTER = -97,
    // The group has no queues for kernels: call xtie_group_device_open first.
    XTIE_ERR_NO_QUEUES = -98,
    // The driver of the GPU has refused a call, or memory of another rank's GPU cannot be mapped.
    XTIE_ERR_GPU = -99,
} xtie_result;

// An AllGather that a group has prepared on a window.
typedef struct xtie_all_gather xtie_all_gather;

// An attempt to connect that is under way.
typedef struct xtie_attempt xtie_attempt;

// A connection to one peer: reliable, ordered, both ways.
typedef struct xtie_connection xtie_connection;

// A window as kernels see it, in memory of the GPU: crosstie_device.cuh has its fields.
typedef struct xtie_device_view xtie_device_view;

// An endpoint: the address of the storage it was opened in. All other objects belong to one.
typedef struct xtie_endpoint xtie_endpoint;

// A group of ranks: the address of the storage it was opened in. It belongs to an endpoint.
typedef struct xtie_group xtie_group;

// Takes connections from other endpoints.
typedef struct xtie_listener xtie_listener;

// Registered memory.
typedef struct xtie_memory xtie_memory;

// A vendor's functions: crosstie_provider.h has them, which who brings no rail need not include.
struct xtie_provider_ops;

// An outstanding send, or group of receives.
typedef struct xtie_request xtie_request;

// Memory that each rank of a group gives to the others.
typedef struct xtie_window xtie_window;

// Receives log messages: userdata as given to xtie_log_set, one of XTIE_LOG_, and a text that is
// valid during the call: UTF-8 of 1280 bytes at most before its zero; what is longer is cut. It
// may be called from any thread, and must not call the library.
typedef void (*xtie_log_function)(void *userdata, uint32_t level, const char *text);

// What is known of a device. Set struct_size before xtie_device_properties_get.
typedef struct xtie_device_properties {
    // sizeof(xtie_device_properties).
    uint32_t struct_size;
    // One of XTIE_DEVICE_.
    uint32_t kind;
    // 1: this host has what it needs; 0: not, and the remark says why. Settings that an open would
    // refuse are named by that, and by `crosstie info`.
    uint32_t available;
    // A rough bandwidth in Mbit/s.
    uint32_t speed_mbps;
    // Most receives in one call of xtie_connection_irecv.
    uint32_t group_max;
    // Zero.
    uint32_t reserved;
    // Its name, such as "host0".
    char name[32];
    // What it reaches.
    char description[96];
    // What is missing, or an empty string.
    char remark[128];
} xtie_device_properties;

// What an endpoint is opened with. A field that is zero means the default, so that a zeroed
// structure with struct_size set is complete; xtie_endpoint_config_init writes the defaults out.
typedef struct xtie_endpoint_config {
    // sizeof(xtie_endpoint_config).
    uint32_t struct_size;
    // The device's number; 0 reaches processes of every host, each by the rail that suits it.
    uint32_t device;
    // Most connections at a time, 1 to 65536; default 64.
    uint32_t connections_max;
    // Most outstanding sends, and most outstanding groups of receives, of one connection: 32, 64,
    // 128 or 256; default 32. Peers over TCP must both have 32, or neither.
    uint32_t requests_max;
    // Most pieces of registered memory, 1 to 65534; default 256.
    uint32_t regions_max;
    // Longest message in bytes that is copied instead of read in place: up to a quarter of the
    // send ring less 64, and 16384; default 8192, or what a shorter ring takes. From memory of
    // xtie_memory_alloc, 1024 at most: peers read that without help. Over TCP sixteen times as
    // many, and 131072 at most, leave before their receive is there; a connection of several
    // rails sends 2048 at most so.
    uint32_t eager_bytes_max;
    // Shared memory in bytes for messages, of each connection and direction: a power of two from
    // 4096 to 131072; default 65536.
    uint32_t send_ring_bytes;
    // Shared memory in bytes for control and for transfers in two copies, of each connection and
    // direction: a power of two from 4096 to 16777216; default 32768. From 262144 on ordinary
    // memory is always copied through it, which is faster than the kernel's one copy, but takes
    // place only while its owner calls the library.
    uint32_t write_ring_bytes;
    // Address space in bytes that xtie_memory_alloc takes from, in whole pages; memory is used as
    // it is allocated. Below 2^47; under a limit (ulimit -v) half of what is left at most. Each
    // peer on this host maps it, too, or reads what lies in it more slowly. Default 64 GiB.
    uint64_t heap_bytes;
    // How long a connect may take, with all addresses that are tried, in milliseconds; default
    // 10000. CROSSTIE_CONNECT_TIMEOUT_MS overrides it.
    uint32_t connect_timeout_ms;
    // XTIE_ENDPOINT_ flags, or zero.
    uint32_t flags;
    // Most rails of one connection, each of which may die without it: 1, 2, 4 or 8; default 2.
    // Of the loopback device there is one.
    uint32_t rails_max;
    // Zero.
    uint32_t reserved;
} xtie_endpoint_config;

// Bytes that tell other endpoints where a listener is: send them there in any way, such as a
// file, a socket or MPI. Plain data without pointers; valid as long as the listener.
typedef struct xtie_handle {
    // The bytes, not for reading.
    uint8_t bytes[128];
} xtie_handle;

// Room for one message. Of fixed size: it will not grow.
typedef struct xtie_buffer {
    // First byte; may be NULL when bytes is zero.
    void *data;
    // Room in bytes.
    size_t bytes;
    // Takes a message that was sent with this tag.
    int32_t tag;
    // Zero.
    uint32_t reserved;
    // The memory that the room lies in; may be NULL when bytes is zero.
    struct xtie_memory *memory;
} xtie_buffer;

// What is said of memory to xtie_memory_register_with. Set struct_size; -1 is a value of two
// fields, and zero is another.
typedef struct xtie_memory_options {
    // sizeof(xtie_memory_options).
    uint32_t struct_size;
    // XTIE_MEMORY_HOST or XTIE_MEMORY_CUDA.
    uint32_t kind;
    // The GPU that the memory must lie on, by its number in CUDA; -1: the one that the address
    // tells.
    int32_t device;
    // A descriptor of the dma-buf that the memory is part of, as cuMemGetHandleForAddressRange
    // gives it; -1: none. Memory of the host has none.
    int32_t dmabuf;
    // Where the first byte of the memory lies in the dma-buf.
    uint64_t dmabuf_offset;
} xtie_memory_options;

// Gives bytes of this rank to all, and takes those of all ranks: the program's, by a launcher, MPI
// or a file. context as of the configuration; mine: bytes bytes of this rank; all: room for
// ranks * bytes, in the order of the ranks, also this rank's own. It is called twice, with 160
// bytes; once at all ranks where one cannot open its group. Returns 0 when all ranks have given
// theirs, or a code of its own in bounded time: a rank does not come. It must not call functions
// of the group's endpoint.
typedef int (*xtie_gather_function)(void *context, const void *mine, size_t bytes, void *all);

// Called again and again while a rank waits for others to connect: 0, or a code of the program's
// own when one is known to be gone. It must not call functions of the group's endpoint.
typedef int (*xtie_look_function)(void *context);

// What a group is opened with. Set struct_size, rank, ranks, windows_max and gather; a field that
// is zero stands for what its comment says.
typedef struct xtie_group_config {
    // sizeof(xtie_group_config).
    uint32_t struct_size;
    // This rank, from 0 on.
    uint32_t rank;
    // How many ranks there are, 1 to 4096; the same at all.
    uint32_t ranks;
    // Most windows at a time, 1 to 1024; the same at all.
    uint32_t windows_max;
    // Signals of each window, 0 to 4096. A rank's signals are those of its own configuration.
    uint32_t signals_max;
    // Counters of each window, 0 to 4096.
    uint32_t counters_max;
    // Barriers of each window, 0 to 4096. Ranks meet at those that all of them have.
    uint32_t barriers_max;
    // How long opening, and each wait whose timeout is zero, may take, in milliseconds; 0: 30000.
    // XTIE_NO_TIMEOUT: without end.
    uint32_t timeout_ms;
    // Handed to gather and look, otherwise not looked at.
    void *context;
    // How the ranks meet; not NULL.
    xtie_gather_function gather;
    // NULL: the time alone ends the wait for a rank that is gone.
    xtie_look_function look;
} xtie_group_config;

// What queues for kernels are opened with. Set struct_size and gather; a field that stays zero
// has the default.
typedef struct xtie_group_device_config {
    // sizeof(xtie_group_device_config).
    uint32_t struct_size;
    // Sets of queues, 1 to 64: order holds within a queue, which is one of a set to a rank. 0: 1.
    uint32_t sets;
    // Entries of each queue, 64 to 32768, rounded up to a power of two. 0: 512.
    uint32_t depth;
    // How long a kernel waits that does not say, in milliseconds; 0: 30000. XTIE_NO_TIMEOUT:
    // without end.
    uint32_t timeout_ms;
    // Handed to gather, otherwise not looked at.
    void *context;
    // As of xtie_group_config; called once, with 128 bytes.
    xtie_gather_function gather;
} xtie_group_device_config;

// What an AllGather is prepared for. Set struct_size and bytes; a field that is zero stands for
// what its comment says. All but stream and timeout_ms are the same at all ranks.
typedef struct xtie_all_gather_config {
    // sizeof(xtie_all_gather_config).
    uint32_t struct_size;
    // XTIE_ALGORITHM_AUTO, or another.
    uint32_t algorithm;
    // Where the bytes of rank 0 come in every rank's part of the window, in bytes.
    uint64_t offset;
    // Room for the bytes of all ranks.
    uint64_t bytes;
    // The CUDA stream that carries it out, of the primary context of the window's GPU; NULL: the
    // legacy stream. Not looked at where the window is memory of the host.
    void *stream;
    // Most ranks of one host that write to each other's memory directly; 0: all.
    uint32_t team_max;
    // How long preparing it, and each time that it is carried out, may take, in milliseconds; 0:
    // as long as the group's timeout. XTIE_NO_TIMEOUT: without end.
    uint32_t timeout_ms;
} xtie_all_gather_config;

// Bytes that go from this rank to another's part of a window, or come from there. Of fixed size:
// it will not grow.
typedef struct xtie_transfer {
    // First byte at this rank; may be NULL when bytes is zero.
    void *data;
    // How many bytes.
    size_t bytes;
    // The registered memory that data lies in; may be NULL when bytes is zero.
    struct xtie_memory *memory;
    // Where they go to, or come from, in that rank's part of the window, in bytes.
    uint64_t offset;
    // The rank, also this one.
    uint32_t rank;
    // Zero.
    uint32_t reserved;
} xtie_transfer;

// A signal or counter of a window, and by how much it grows.
typedef struct xtie_add {
    // Its number, from 0 on.
    uint32_t id;
    // Zero.
    uint32_t reserved;
    // What is added to it, modulo 2^64.
    uint64_t value;
} xtie_add;

// Counts since an endpoint was opened. Set struct_size before xtie_endpoint_stats.
typedef struct xtie_stats {
    // sizeof(xtie_stats).
    uint32_t struct_size;
    // Zero.
    uint32_t reserved;
    // Messages accepted by xtie_connection_isend.
    uint64_t sends;
    // Bytes of those messages.
    uint64_t send_bytes;
    // Messages that ended in a receive.
    uint64_t receives;
    // Bytes of those messages.
    uint64_t receive_bytes;
    // Messages that were copied through the stream of short messages.
    uint64_t eager;
    // Messages that the receiver read out of the sender's memory.
    uint64_t pulled;
    // Messages that the sender wrote into the receiver's memory.
    uint64_t pushed;
    // Messages that arrived before their receive was offered.
    uint64_t unexpected;
    // Messages longer than their receive.
    uint64_t truncated;
    // Sends that had to wait for room.
    uint64_t queued;
    // Times that a rail had no room.
    uint64_t again;
    // Control messages about what has arrived.
    uint64_t state_lines;
    // Connections that failed: those that either side closed are not among them.
    uint64_t failures;
    // Bytes that a copy engine brought from a GPU into a GPU's memory of this process.
    uint64_t gpu_engine_bytes;
    // Bytes from or to a GPU that came to memory of this process through memory of the host.
    uint64_t gpu_staged_bytes;
} xtie_stats;

// One rail of a connection. Set struct_size before xtie_connection_rail_stats.
typedef struct xtie_rail_stats {
    // sizeof(xtie_rail_stats).
    uint32_t struct_size;
    // One of XTIE_RAIL_STATE_.
    uint32_t state;
    // Which use of it this is: higher each time it comes up, the same at both sides.
    uint32_t generation;
    // The system's code (errno) of its last failure, kept when it is up again; 0: it has not
    // failed. ETIMEDOUT: it was silent; ECONNRESET: also when its socket just ended, or the peer
    // gave it up first. Of a vendor's rail its provider's code; 0 also where that gave none, or
    // the peer gave the rail up first.
    int32_t code;
    // 1: it carries this side's control messages and short messages.
    uint32_t control;
    // What it is: XTIE_RAIL_SHARED_MEMORY, XTIE_RAIL_TCP, XTIE_RAIL_VERBS,
    // XTIE_RAIL_LIBFABRIC, XTIE_RAIL_VENDOR or XTIE_RAIL_LOOPBACK.
    uint32_t rail;
    // Bytes of long messages that this side has sent on it. What is received is not counted: a
    // side that only receives has 0 here, and its peer has the number.
    uint64_t bytes;
    // Parts of long messages posted on it.
    uint64_t stripes;
    // Parts that it lost, and that moved to other rails.
    uint64_t moved;
    // Times that it failed.
    uint64_t failures;
    // Times that it came up behind the connection.
    uint64_t joins;
    // Bytes per second as measured lately; 0: not known, as of a rail that has carried little.
    uint64_t speed;
    // This side's end, or what it was when the rail was up last; empty: nothing is known. Of TCP
    // where its first socket begins, `10.77.1.2:40112` or `[fd00::2]:40112`: the interface that
    // has this address is the rail's. Of an RDMA port the address of its GID, with port 0. Of
    // libfabric provider and domain (the NIC), `efa rdmap0s6-rdm`, and behind them the endpoint's
    // address where that is one of a socket and there is room, `tcp;ofi_rxm eth0 10.77.1.2:40112`.
    // Of a vendor's rail its name (xtie_vendor_rail). Of shared memory nothing.
    char local[XTIE_ADDRESS_BYTES];
    // The peer's end, as an address likewise; empty where that is of another kind, as of EFA, or
    // there is none, as of a vendor's rail.
    char remote[XTIE_ADDRESS_BYTES];
} xtie_rail_stats;

// A rail of a vendor's own, for xtie_endpoint_open_with_rails.
typedef struct xtie_vendor_rail {
    // sizeof(xtie_vendor_rail).
    uint32_t struct_size;
    // XTIE_VENDOR_RAIL_ flags; 0: both.
    uint32_t flags;
    // The vendor's functions, of crosstie_provider.h. Read during the call; the functions stay in
    // the program until the endpoint is closed.
    const struct xtie_provider_ops *ops;
    // What the open of ops gets.
    void *context;
    // What people call it, such as acme0: 1 to 32 printed characters without a space.
    const char *name;
    // What network it is on: rails of two endpoints carry a connection together where this is the
    // same text, the first of each side with the first. NULL: one for all rails without.
    const char *network;
    // Speed in Mbit/s, for people; 0: not known.
    uint32_t speed_mbps;
    // Zero.
    uint32_t reserved;
} xtie_vendor_rail;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// ---- Library -----------------------------------------------------------------------------------
//
// The version of the library that the program runs with, as XTIE_VERSION.
//
// Threads: any. Cost: none.
uint32_t xtie_version(void);

// The version as text, such as "0.1.0". A static string.
//
// Threads: any. Cost: none.
const char *xtie_version_str(void);

// The library's XTIE_ABI_VERSION; a program must not go on when it differs from its header's.
//
// Threads: any. Cost: none.
uint32_t xtie_abi_version(void);

// Sends log messages of the whole process to a function of the caller's: those of all levels,
// XTIE_LOG_INFO too, whatever CROSSTIE_LOG says; look at the level to leave some out. Before that,
// messages go to standard error, as far as CROSSTIE_LOG says: warnings and errors by default.
//
// userdata: handed to each call, otherwise not looked at; may be NULL.
// function: NULL restores standard error. A call that is under way in another thread may still
//     end after this function returned.
// Results: XTIE_OK.
// Threads: any. Cost: a lock. Nothing is logged while data moves.
int xtie_log_set(void *userdata, xtie_log_function function);

// One sentence for a result code. For the particulars (which peer, which error number) see
// xtie_endpoint_error.
//
// result: any number; one that is no code has a sentence too.
// Returns a static string in English, without a full stop.
// Threads: any. Cost: a search of a short table.
const char *xtie_result_str(int result);

// ---- Device ------------------------------------------------------------------------------------
//
// How many devices there are. Their numbers, 0 to count - 1, are the same in every process of
// this version; 0 is the device that reaches the most.
//
// Threads: any. Cost: none.
uint32_t xtie_device_count(void);

// What is known of a device.
//
// device: its number.
// properties_out: with struct_size set; the rest is filled.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_DEVICE.
// Threads: any. Cost: control path; may look at the system.
int xtie_device_properties_get(uint32_t device, struct xtie_device_properties *properties_out);

// ---- Endpoint ----------------------------------------------------------------------------------
//
// Writes the defaults.
//
// config_out: all of it is written, struct_size too.
// struct_size: sizeof(xtie_endpoint_config) of the program, so that a library older than the
//     program's header can tell when it is asked for something that it does not know.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE.
// Threads: any. Cost: none.
int xtie_endpoint_config_init(struct xtie_endpoint_config *config_out, size_t struct_size);

// How much storage an endpoint takes; XTIE_ENDPOINT_BYTES and XTIE_LOOPBACK_BYTES say the same to
// the compiler. Only the device's kind, connections_max, requests_max, regions_max and rails_max
// matter.
//
// config: the caller's, read only during the call.
// bytes_out: the size in bytes.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_FLAGS,
//     XTIE_ERR_DEVICE, XTIE_ERR_CONNECTIONS_MAX, XTIE_ERR_REQUESTS_MAX, XTIE_ERR_REGIONS_MAX,
//     XTIE_ERR_RAILS_MAX, XTIE_ERR_RINGS. The log says which value was wrong and what is needed.
// Threads: any. Cost: none.
int xtie_endpoint_size(const struct xtie_endpoint_config *config, size_t *bytes_out);

// Opens an endpoint in memory of the caller's. Nothing is allocated after this, on any thread, but
// for threads that CROSSTIE_TCP_THREADS or CROSSTIE_SHM_THREADS ask for, which start with the
// first connection that they serve.
//
// storage: XTIE_STORAGE_ALIGN aligned; the library's from now on until xtie_endpoint_close has
//     succeeded. It must not be moved, copied or touched.
// storage_bytes: at least what xtie_endpoint_size says; more is not used.
// config: read only during the call. CROSSTIE_ variables of the environment override the fields
//     that do not change the size.
// endpoint_out: the endpoint, which is the storage's address.
// Results: XTIE_OK; those of xtie_endpoint_size; XTIE_ERR_STORAGE_ALIGN, XTIE_ERR_STORAGE_SIZE,
//     XTIE_ERR_STORAGE_IN_USE: an endpoint that is not closed begins there (one that begins
//     elsewhere in the storage is not looked for, nor are more than 64 remembered);
//     XTIE_ERR_SETTING, XTIE_ERR_DEVICE_UNAVAILABLE,
//     XTIE_ERR_NO_RAIL, XTIE_ERR_INTERFACE,
//     XTIE_ERR_DESCRIPTORS, XTIE_ERR_NO_MEMORY, XTIE_ERR_SYSTEM. The log says more.
// Threads: any, with storage of its own each. Cost: control path; starts a thread for set-up.
int xtie_endpoint_open(void *storage,
                       size_t storage_bytes,
                       const struct xtie_endpoint_config *config,
                       struct xtie_endpoint **endpoint_out);

// Moves everything on that can move: requests, control messages, copies of up to about 256 KiB,
// and over TCP of a MiB of what has come.
// xtie_request_test does this too while its request is outstanding.
//
// endpoint: the caller's.
// events_out: how many things happened, or NULL. Zero does not mean that nothing is outstanding.
// Results: XTIE_OK, XTIE_ERR_NULL, and XTIE_ERR_ENDPOINT, XTIE_ERR_CLOSED, XTIE_ERR_POISONED or
//     XTIE_ERR_FORKED, which every function that takes an endpoint can answer and which the
//     comments below leave out.
// Threads: the endpoint's. Cost: data path; no system call when nothing happened.
int xtie_endpoint_progress(struct xtie_endpoint *endpoint, uint32_t *events_out);

// The descriptor to sleep on: when xtie_endpoint_wait_arm has answered XTIE_OK, it becomes
// readable as soon as there may be something to do: for a request, or for a connect (its deadline
// too) or an accept that answered NULL. Only poll(2), select(2) or epoll(7) it; never read or
// close it.
//
// fd_out: the same number until the endpoint is closed.
// Results: XTIE_OK, XTIE_ERR_NULL.
// Threads: any. Cost: none.
int xtie_endpoint_wait_fd(const struct xtie_endpoint *endpoint, int *fd_out);

// Asks to be woken by the descriptor of xtie_endpoint_wait_fd. Call it when there is nothing to
// do, before each sleep: it makes progress, looks once more, and answers XTIE_AGAIN if that
// changed anything, or while a transfer in two copies needs this side to keep going.
//
// Results: XTIE_OK: sleep now. XTIE_AGAIN: something happened meanwhile; test your requests
//     instead of sleeping. The loopback device never sleeps.
// Threads: the endpoint's. Cost: two system calls.
int xtie_endpoint_wait_arm(struct xtie_endpoint *endpoint);

// Why the last call on this endpoint failed, with its particulars: the peer's program, process
// and host, numbers of the system. Every failing call that found its endpoint replaces it,
// but for this one and those that answer XTIE_ERR_FORKED.
//
// text_out: room for the sentence, in UTF-8; what does not fit is cut. 320 bytes hold any.
// text_bytes: that room in bytes, with the zero at the end; not zero.
// Results: XTIE_OK, also of a poisoned endpoint; XTIE_ERR_NULL, XTIE_ERR_TEXT.
// Threads: any, but which call failed last is then a matter of luck. Cost: a lock, and a copy.
int xtie_endpoint_error(const struct xtie_endpoint *endpoint, char *text_out, size_t text_bytes);

// What every open request waits for, and who owes what to whom: one line of text each, as
// doc/stalls.md explains. It has the peers' side as far as they have said it when they were asked
// last, and asks them again: the first one says "peer not asked yet"; call it a second time after
// some progress for both sides' view.
//
// The library says the same by itself, once for each request that is older than
// CROSSTIE_STALL_MS, to the log callback or standard error.
//
// text_out: room for the lines, in UTF-8, each with a newline; what does not fit is cut. 1280
//     bytes hold any line.
// text_bytes: that room in bytes, with the zero at the end; not zero.
// requests_out: how many requests are open, or NULL.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_TEXT.
// Threads: the endpoint's. Cost: control path.
int xtie_endpoint_report(struct xtie_endpoint *endpoint,
                         char *text_out,
                         size_t text_bytes,
                         uint32_t *requests_out);

// Ends everything that the endpoint has: connections, listeners, attempts, registrations,
// allocated memory, its thread. Peers learn of it. The storage is the caller's again. Messages
// whose requests have not been tested to their end may be lost.
//
// endpoint: not to be used afterwards; while the storage stands untouched, doing so is answered
//     by XTIE_ERR_CLOSED.
// Results: XTIE_OK. XTIE_ERR_POISONED: nothing was done, the storage must stay.
// Threads: the endpoint's, with no other thread in a call. Cost: control path; may wait for the
//     thread and for a copy of a peer's that is under way, and as xtie_connection_close does for
//     messages that have not reached their peers: CROSSTIE_PEER_TIMEOUT_MS at most, for all
//     connections at once.
int xtie_endpoint_close(struct xtie_endpoint *endpoint);

// ---- Listener and connection -------------------------------------------------------------------
//
// Opens a listener: other endpoints connect to it with its handle. An endpoint has as many as
// connections_max at a time; on the loopback device 4.
//
// handle_out: the bytes for them.
// listener_out: the listener, until xtie_listener_close or xtie_endpoint_close.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_LISTENERS_FULL, XTIE_ERR_DESCRIPTORS,
//     XTIE_ERR_SYSTEM.
// Threads: any. Cost: control path; never blocks.
int xtie_endpoint_listen(struct xtie_endpoint *endpoint,
                         struct xtie_handle *handle_out,
                         struct xtie_listener **listener_out);

// Takes a connection that a peer has made, and perhaps closed since: it has its place among
// connections_max until it is accepted and closed, or its listener is closed.
//
// listener: open.
// connection_out: the connection, until xtie_connection_close; NULL: none is there now, call
//     again.
// Results: XTIE_OK in both cases, XTIE_ERR_NULL, XTIE_ERR_LISTENER.
// Threads: any. Cost: control path; never blocks.
int xtie_listener_accept(struct xtie_endpoint *endpoint,
                         struct xtie_listener *listener,
                         struct xtie_connection **connection_out);

// Closes a listener. Its handle is void; connections that nobody accepted are closed with it,
// accepted ones stay.
//
// listener: not to be used afterwards.
// Results: XTIE_OK, XTIE_ERR_LISTENER.
// Threads: any. Cost: control path; never blocks.
int xtie_listener_close(struct xtie_endpoint *endpoint, struct xtie_listener *listener);

// Connects to a listener: call it again with the same arguments until *connection_out is not NULL
// or an error comes. Nobody needs to accept for that; what nobody accepts has its place among the
// connections of both ends all the same, also after it was closed here.
//
// An attempt ends connect_timeout_ms (CROSSTIE_CONNECT_TIMEOUT_MS) after its first call at the
// latest, and no other timeout ends it. XTIE_ERR_UNREACHABLE: no address of a listener on another
// host took the connection until then, or the kernel said before that none can.
// XTIE_ERR_DEADLINE: somebody took it, or is on this host, and did not answer.
//
// handle: the listener's, read during the first call only.
// attempt_inout: *attempt_inout is NULL for the first call, which starts an attempt and leaves it
//     there. When the connection is made, and also after an error, it is NULL again: the attempt
//     is over. XTIE_ERR_ATTEMPT (it is none of this endpoint's, or over) leaves it as it is, and
//     so do XTIE_ERR_NULL and errors of the endpoint itself.
// connection_out: the connection, until xtie_connection_close; NULL: not yet.
// Results: XTIE_OK; XTIE_ERR_NULL, XTIE_ERR_ATTEMPT; about the handle XTIE_ERR_HANDLE_CORRUPT,
//     XTIE_ERR_HANDLE_FOREIGN, XTIE_ERR_VERSION_HERE, XTIE_ERR_VERSION_PEER, XTIE_ERR_OTHER_HOST;
//     about the peer XTIE_ERR_NO_LISTENER, XTIE_ERR_PEER_FULL, XTIE_ERR_PEER_MEMORY,
//     XTIE_ERR_PEER_DESCRIPTORS, XTIE_ERR_DEADLINE, XTIE_ERR_PEER_DIED, XTIE_ERR_PROTOCOL,
//     XTIE_ERR_KEY, XTIE_ERR_NO_RAIL, XTIE_ERR_UNREACHABLE; about this side
//     XTIE_ERR_CONNECTIONS_FULL, XTIE_ERR_PEERS_FULL, XTIE_ERR_NO_MEMORY, XTIE_ERR_DESCRIPTORS,
//     XTIE_ERR_INTERFACE, XTIE_ERR_SYSTEM. xtie_endpoint_error names the peer.
// Threads: any. Cost: control path; never blocks.
int xtie_endpoint_connect(struct xtie_endpoint *endpoint,
                          const struct xtie_handle *handle,
                          struct xtie_attempt **attempt_inout,
                          struct xtie_connection **connection_out);

// Gives up an attempt to connect. Without this an attempt ends by itself, with XTIE_ERR_DEADLINE
// at the latest, and keeps its place among the connections until xtie_endpoint_connect has said
// so: one that is no longer asked for is given up here.
//
// attempt: of xtie_endpoint_connect; over from now on.
// Results: XTIE_OK; XTIE_ERR_ATTEMPT: it was over; where it made a connection, that stays.
// Threads: any. Cost: control path; never blocks.
int xtie_attempt_abandon(struct xtie_endpoint *endpoint, struct xtie_attempt *attempt);

// ---- Message -----------------------------------------------------------------------------------
//
// Starts to send a message. Messages of one connection and tag arrive in the order of these
// calls; the receiver needs a receive for each.
//
// The request of a short message ends when it was copied, which may be at once: test it all the
// same. That of a long one ends when the receiver has its bytes. Neither says that the receiving
// program has looked at them.
//
// connection: where to.
// data: first byte of the message; the library's to read until the request has ended.
// bytes: its length, from 0 to 2^40, and where rail 0 of the connection is TCP to 2^36: a message
//     has 64 parts, and one of TCP's is 2^30 bytes long at most. Other rails may carry less in one
//     part (ports of RDMA, rails of vendors): messages too long for them leave them out.
// tag: any number; the receiver's buffer has the same.
// memory: registered memory that the message lies in; not looked at when bytes is zero.
// request_out: to be tested to its end; NULL: there is no room now (requests_max sends are
//     outstanding, or as many as the peer takes), nothing was sent: make progress, call again.
// Results: XTIE_OK in both cases; XTIE_ERR_NULL, XTIE_ERR_CONNECTION, XTIE_ERR_MEMORY,
//     XTIE_ERR_RANGE, XTIE_ERR_TOO_LONG (the sentence has the limit); XTIE_ERR_REQUESTS_MAX: over
//     TCP the ends do not go together; and when the connection has failed its cause, such as
//     XTIE_ERR_PEER_DIED or XTIE_ERR_PEER_CLOSED.
// Threads: the endpoint's. Cost: data path. A short message is copied. Through shared memory it
// leaves at once, else with the test of its request or any progress: several in one call of the
// system. What that has no room for leaves with later progress; the request of a message of more
// than 8192 bytes ends only then.
int xtie_connection_isend(struct xtie_endpoint *endpoint,
                          struct xtie_connection *connection,
                          const void *data,
                          size_t bytes,
                          int32_t tag,
                          struct xtie_memory *memory,
                          struct xtie_request **request_out);

// Offers a group of buffers for 1 to XTIE_GROUP_MAX messages, one each; its request ends when all
// of them have theirs.
//
// Only the oldest group that is not full takes messages: each goes to the group's first free
// buffer with its tag. A message whose tag the group does not have waits for a later group, while
// others pass it. So one receive at a time matches in the order of the sends, if their tags agree.
// Two receives are two groups: the second takes nothing before the first has all its messages.
//
// Short messages may wait here for a group that takes them, so many of one connection: 48 where
// shared memory alone carries it, but no more than send_ring_bytes hold, which by default are 30
// of 2048 bytes and 7 of 8192; and 24 where TCP does, alone or beside shared memory (fewer than
// the smallest requests_max: the sender has to remember them until it sees their groups), or 8
// where one of more than 8192 bytes is sent behind them; and on the loopback device 48 of 1024
// bytes at most. Further ones, and all long ones (over TCP those of more than 131072 bytes), wait
// at the sender, whatever their tags: their requests do not end, and when requests_max sends are
// outstanding xtie_connection_isend gives NULL until a receive takes one. Do not wait for a send
// before the peer has posted the receives of what was sent before it: post receives for what is
// sent.
//
// A message longer than its buffer is not written: the request ends with XTIE_ERR_TRUNCATED once
// the group is full, sizes_out of xtie_request_test has the message's length, and the send ends
// well. The message is gone; the group's others are there.
//
// connection: where from.
// buffers: read only during the call; the bytes that they name are the library's to write until
//     the request has ended.
// count: how many.
// request_out: to be tested to its end; NULL: there is no room now, mostly because the group
//     that was posted requests_max groups before has not been tested to its end: test that, make
//     progress, call again.
// Results: XTIE_OK in both cases; XTIE_ERR_NULL, XTIE_ERR_GROUP, XTIE_ERR_RESERVED,
//     XTIE_ERR_CONNECTION, XTIE_ERR_MEMORY, XTIE_ERR_RANGE; XTIE_ERR_TOO_LONG: a buffer of more
//     than 2^40 bytes; XTIE_ERR_REQUESTS_MAX as of isend; and when the connection has failed its
//     cause.
// Threads: the endpoint's. Cost: data path.
int xtie_connection_irecv(struct xtie_endpoint *endpoint,
                          struct xtie_connection *connection,
                          const struct xtie_buffer *buffers,
                          uint32_t count,
                          struct xtie_request **request_out);

// The peer's program, process and host, as text for people.
//
// connection: open.
// text_out: room for it, in UTF-8; what does not fit is cut. 128 bytes hold any.
// text_bytes: that room in bytes, with the zero at the end; not zero.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_TEXT, XTIE_ERR_CONNECTION.
// Threads: any. Cost: control path.
int xtie_connection_peer(const struct xtie_endpoint *endpoint,
                         const struct xtie_connection *connection,
                         char *text_out,
                         size_t text_bytes);

// What a connection runs over. It stays the same until the connection is closed.
//
// connection: open.
// rail_out: one of XTIE_RAIL_.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_CONNECTION.
// Threads: the endpoint's. Cost: control path.
int xtie_connection_rail(struct xtie_endpoint *endpoint,
                         const struct xtie_connection *connection,
                         uint32_t *rail_out);

// Closes a connection: call it again while it answers XTIE_AGAIN. After XTIE_OK nothing reads or
// writes the buffers of its requests any more. Those that were outstanding have ended with
// XTIE_ERR_CONNECTION_CLOSED, which can be tested until another connection is made; the peer's
// end with XTIE_ERR_PEER_CLOSED. Messages whose requests have ended still reach the host of a
// living peer, others are lost; beside a long send that has not ended, over RDMA, libfabric and
// rails of vendors as far as 200 ms are enough. What a dead rail has lost of them goes over
// another first, for which the peer must make progress; closing waits CROSSTIE_PEER_TIMEOUT_MS for
// that, and says in a warning that it has given up. That the peer's program has a message is known
// by a message of its own alone. Of messages that are lost the receives end with the cause, and a
// later message of the same tag does not go into them, but may into the receives behind.
//
// A closed connection keeps its place, of which there are connections_max, until the peer's
// program has closed its end, too, or is gone: the peer may use what they share until then.
//
// connection: not to be used after XTIE_OK.
// Results: XTIE_OK; XTIE_AGAIN: operations on its memory are being stopped, or messages
//     are on their way, make progress first; XTIE_ERR_CONNECTION. A rail that nothing can stop any
//     more (its requests have ended with XTIE_ERR_UNFENCED) has XTIE_AGAIN without end: leave the
//     connection to xtie_endpoint_close then.
// Threads: the endpoint's. Cost: control path; never blocks.
int xtie_connection_close(struct xtie_endpoint *endpoint, struct xtie_connection *connection);

// ---- Memory ------------------------------------------------------------------------------------
//
// Makes memory of the caller's known, so that messages can lie in it. Peers cannot reach it but
// through messages.
//
// data: first byte. The memory stays the caller's, who keeps it mapped until
//     xtie_memory_deregister has succeeded.
// bytes: its length, not zero.
// kind: XTIE_MEMORY_HOST, or XTIE_MEMORY_CUDA: memory that cudaMalloc, ncclMemAlloc or cuMemCreate
//     has given, which moves between processes of one host by the GPUs' copy engines; through
//     memory of the host where they cannot map it, such as cudaMallocAsync's.
// memory_out: to be given with each message that lies in it.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL,
//     XTIE_ERR_NO_MEMORY; XTIE_ERR_MEMORY_KIND: it is of another kind, such as
//     cudaMallocManaged's, or no driver is installed; XTIE_ERR_FABRIC: the driver refused. The log
//     has the reason.
// Threads: any. Cost: control path; no page is touched. Ranges may overlap.
int xtie_memory_register(struct xtie_endpoint *endpoint,
                         void *data,
                         size_t bytes,
                         uint32_t kind,
                         struct xtie_memory **memory_out);

// xtie_memory_register of memory of which more is known. Ports of the endpoint that take the
// dma-buf move messages in the memory without a copy; others leave it to the other rails.
//
// data, bytes, memory_out: as of xtie_memory_register.
// options: with struct_size set; read during the call. The descriptor stays the caller's, who may
//     close it after the call: the endpoint keeps a duplicate where it needs one.
// Results: as of xtie_memory_register, and XTIE_ERR_STRUCT_SIZE; XTIE_ERR_STRUCT: bytes behind
//     the options that this version knows are not zero; XTIE_ERR_MEMORY_KIND: the kind is unknown,
//     memory of the host is said to be a GPU's, or the other way round; XTIE_ERR_MEMORY_DEVICE;
//     XTIE_ERR_DMABUF; XTIE_ERR_DMABUF_RANGE. Nothing is registered then.
// Threads: any. Cost: control path; no page is touched.
int xtie_memory_register_with(struct xtie_endpoint *endpoint,
                              void *data,
                              size_t bytes,
                              const struct xtie_memory_options *options,
                              struct xtie_memory **memory_out);

// Forgets memory; the caller may unmap it after XTIE_OK.
//
// memory: of xtie_memory_register or _with; not to be used after XTIE_OK.
// Results: XTIE_OK, XTIE_ERR_MEMORY; XTIE_ERR_MEMORY_BUSY: requests that use it are outstanding,
//     test them to their end first; or have ended with XTIE_ERR_UNFENCED, and the fence has not
//     come; or a window lies in it, free that first; XTIE_ERR_FABRIC: a port's library refused to
//     forget it, call again.
// Threads: any. Cost: control path.
int xtie_memory_deregister(struct xtie_endpoint *endpoint, struct xtie_memory *memory);

// Allocates registered memory that peers on this host read without a system call: the fastest
// place for messages. Where the kernel makes no shared memory (a seccomp filter), it is private
// memory, and peers are reached by other rails.
//
// bytes: its length, not zero. Whole pages are taken for it; messages lie in these bytes alone.
// data_out: first byte, page-aligned; the memory is zero.
// memory_out: to be given with each message that lies in it.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_REGISTER_RANGE, XTIE_ERR_REGIONS_FULL (also when
//     heap_bytes is used up, which xtie_endpoint_error tells apart); XTIE_ERR_NO_MEMORY: the
//     kernel refuses, or less than that is left by what /proc/meminfo says (MemAvailable and
//     SwapFree) or by the memory limit of a cgroup around the process; XTIE_ERR_MEMORY_KIND: the
//     endpoint was opened without a heap.
// Threads: any. Cost: control path; the pages are really allocated.
int xtie_memory_alloc(struct xtie_endpoint *endpoint,
                      size_t bytes,
                      void **data_out,
                      struct xtie_memory **memory_out);

// Gives memory of xtie_memory_alloc back; its bytes are gone. Once a peer of this host has come,
// which reads that memory, its pages stay the endpoint's, for later allocations.
//
// memory: not to be used after XTIE_OK.
// Results: XTIE_OK; XTIE_ERR_MEMORY: it is not from xtie_memory_alloc, or gone;
//     XTIE_ERR_MEMORY_BUSY, XTIE_ERR_FABRIC: as of xtie_memory_deregister.
// Threads: any. Cost: control path.
int xtie_memory_free(struct xtie_endpoint *endpoint, struct xtie_memory *memory);

// Asks whether a request has ended, and how; makes progress while it has not. Nothing moves
// between calls: who waits keeps calling this, or xtie_endpoint_progress. The end is told once;
// the request is gone then, and its buffers and memory are the caller's again. (A short send that
// was complete when it was accepted has nothing to forget: asked again it says the same again.)
// The end of a send says nothing of the peer: what a full socket did not take, or was on a rail
// that dies, moves when the sender makes progress again, as a test does of what is outstanding or
// has not left. So who has nothing to wait for, but a peer that waits for what was sent, or for
// receives, calls xtie_endpoint_progress now and then, or closes the connection.
//
// The one function whose error may be the request's own: when *done_out was set to 1, the result
// is how the request ended, else why the call failed. Set the variable to 0 before.
//
// request: of isend or irecv.
// done_out: 1: it has ended; 0: call again.
// sizes_out: NULL, or one entry for a send and as many as buffers for a receive, written when it
//     has ended: bytes sent, or of the message for each buffer, also where it was too long
//     (XTIE_ERR_TRUNCATED). After other errors the entries say nothing.
// Results: XTIE_OK; of the request XTIE_ERR_TRUNCATED, XTIE_ERR_PEER_CLOSED, XTIE_ERR_PEER_DIED,
//     XTIE_ERR_CONNECTION_CLOSED, XTIE_ERR_CANCELED, XTIE_ERR_PROTOCOL, XTIE_ERR_PEER_GAVE_UP,
//     XTIE_ERR_SILENT, XTIE_ERR_FABRIC, XTIE_ERR_RAILS_LOST, XTIE_ERR_NO_ANSWER,
//     XTIE_ERR_UNFENCED; of the call XTIE_ERR_NULL, XTIE_ERR_STALE.
// Threads: the endpoint's. Cost: data path.
int xtie_request_test(struct xtie_endpoint *endpoint,
                      struct xtie_request *request,
                      int *done_out,
                      size_t *sizes_out);

// Asks for a request to end early, with XTIE_ERR_CANCELED: a receive that no message has reached,
// or a send that has not left. Where receives are offered to senders (any rail but shared memory
// alone, and that with XTIE_ENDPOINT_PUSH) a long message leaves when its receive is there. Where
// shared memory alone carries the connection the peer is told at once where a long message lies
// (one of more than eager_bytes_max, in memory of xtie_memory_alloc of more than 1024 bytes), and
// reads it when a receive takes it: such a send is under way as soon as it is made, and its memory
// in use until it is received or the connection closed.
//
// A request that is canceled must still be tested to its end, and may end otherwise: a receive
// that the peer knows of ends when those posted before it have ended, or have been canceled, too,
// and until then a message may come. The peer's program must make progress meanwhile, and have
// posted something on its end of the connection.
//
// request: of isend or irecv, not yet tested to its end.
// Results: XTIE_OK; XTIE_ERR_UNDER_WAY: its data may be moving, so it ends with the message, when
//     the peer receives it, or with the connection; XTIE_ERR_STALE. A send that is complete
//     already is under way in this sense.
// Threads: the endpoint's. Cost: data path.
int xtie_request_cancel(struct xtie_endpoint *endpoint, struct xtie_request *request);

// ---- Group -------------------------------------------------------------------------------------
//
// How much storage a group takes; XTIE_GROUP_BYTES says the same to the compiler.
//
// config: the caller's, read only during the call.
// bytes_out: the size in bytes.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_RANK;
//     XTIE_ERR_GROUP_LIMITS: the log says which.
// Threads: any. Cost: none.
int xtie_group_size(const struct xtie_group_config *config, size_t *bytes_out);

// Opens a group with the other ranks: every rank calls this, and it returns when all have met. The
// group makes two connections to each rank, also to this one itself: of connections_max it takes
// XTIE_GROUP_CONNECTIONS(ranks), and of regions_max one; requests_max may be any. No operation
// allocates after this call; xtie_window_alloc, xtie_group_helper_start and xtie_all_gather_init
// do.
//
// storage: XTIE_STORAGE_ALIGN aligned; the library's from now on until xtie_group_close has
//     succeeded. It must not be moved, copied or touched. Not that of an open group.
// storage_bytes: at least what xtie_group_size says; more is not used.
// config: read during the call alone; the functions that it names are called during it alone.
// group_out: the group, which is the storage's address.
// Results: XTIE_OK; those of xtie_group_size; XTIE_ERR_STORAGE_ALIGN, XTIE_ERR_STORAGE_SIZE;
//     XTIE_ERR_BOOTSTRAP: gather or look gave a code, which xtie_endpoint_error has;
//     XTIE_ERR_GROUP_MISMATCH; XTIE_ERR_RANK_MISSING: a rank did not connect in time;
//     XTIE_ERR_RANK_FAILED; those of xtie_memory_register, xtie_endpoint_listen,
//     xtie_endpoint_connect and, where a connection fails meanwhile, of xtie_request_test. Nothing
//     is left of the group then.
// Threads: the endpoint's. Cost: control path; blocks until all ranks have come, or timeout_ms.
int xtie_group_open(struct xtie_endpoint *endpoint,
                    void *storage,
                    size_t storage_bytes,
                    const struct xtie_group_config *config,
                    struct xtie_group **group_out);

// Closes a group: its connections, and its windows with their allocated memory. What was issued
// leaves first, for timeout_ms at most; that it has taken effect is known after a flush. Other
// ranks hear what of theirs has taken effect here. Their waits for this one end with an error, so
// meet them at a barrier first. The storage is the caller's again. Close groups before their
// endpoint; after xtie_endpoint_close this function gives the group's own state back.
//
// group: not to be used afterwards; while the storage stands untouched, doing so is answered by
//     XTIE_ERR_GROUP_CLOSED.
// Results: XTIE_OK, XTIE_ERR_NULL; XTIE_ERR_UNFENCED: the group is closed, but a rail that nothing
//     can stop may still touch the storage and memory of windows, which must stay until the
//     endpoint is closed; XTIE_ERR_NO_GROUP, XTIE_ERR_GROUP_CLOSED and those that every function
//     of an endpoint can answer, which all functions below can answer, too, and whose comments
//     leave them out.
// Threads: the endpoint's, with no other thread in a call. Cost: control path; waits as
//     xtie_connection_close does for what is on its way.
int xtie_group_close(struct xtie_group *group);

// Starts a thread, crosstie-window, that makes progress for a group while this program does not:
// other ranks' operations take effect although it computes. It sleeps while nothing comes. While
// it runs, call functions of the endpoint's thread for this group alone, and none of another group
// or of the endpoint's connections; functions of any thread are free. Stop it, or close the group,
// before the endpoint is closed.
//
// Results: XTIE_OK, also where it runs already; XTIE_ERR_SYSTEM: the system has no thread.
// Threads: the endpoint's. Cost: control path.
int xtie_group_helper_start(struct xtie_group *group);

// Ends the thread of xtie_group_helper_start, if it runs; waits until it has ended.
//
// Results: XTIE_OK.
// Threads: the endpoint's. Cost: control path.
int xtie_group_helper_stop(struct xtie_group *group);

// Moves everything on that can move, of the endpoint and of the group: hands over what was issued,
// and applies what other ranks' operations ask of this one. Their operations take effect only
// while this rank calls this function, or waits in one of the group's.
//
// Results: XTIE_OK.
// Threads: the endpoint's. Cost: data path; no system call when nothing happened.
int xtie_group_progress(struct xtie_group *group);

// Ends all waits in the group's functions with XTIE_ERR_ABORTED: the one that is under way, within
// 10 ms, and all later ones that have to wait, until xtie_group_abort_clear. Nothing else changes:
// operations that were issued go on.
//
// Results: XTIE_OK.
// Threads: any, but not beside xtie_group_close. Cost: none.
int xtie_group_abort(struct xtie_group *group);

// Takes an abort back: waits wait again.
//
// Results: XTIE_OK.
// Threads: any, but not beside xtie_group_close. Cost: none.
int xtie_group_abort_clear(struct xtie_group *group);

// Waits until the local buffer of an operation may be used again; of a get: until the bytes are
// there.
//
// ticket: of the operation; 0 has ended. One is good for as long as the group is open.
// timeout_ms: in milliseconds; 0: the group's; XTIE_NO_TIMEOUT: none.
// Results: XTIE_OK; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: the operation goes on, call again;
//     XTIE_ERR_RANK: no ticket of this group; XTIE_ERR_WINDOW_FREED, XTIE_ERR_WINDOW_RANGE,
//     XTIE_ERR_WINDOW_MEMORY: the rank that it went to refused it. Of a get that is always told,
//     of others once it is known, as it is after xtie_group_flush, until 1024 operations with
//     that rank came after them. A put's counter grows all the same; and when the connection to
//     that rank has failed its cause, as of xtie_request_test.
// Threads: the endpoint's. Cost: blocks; makes progress, and sleeps when that takes long.
int xtie_group_wait_local(struct xtie_group *group, uint64_t ticket, uint32_t timeout_ms);

// Asks what xtie_group_wait_local waits for; makes progress while it is not so.
//
// ticket: as there.
// done_out: 1: the buffer may be used again; 0: call again.
// Results: XTIE_OK, XTIE_ERR_NULL, and those of xtie_group_wait_local but for XTIE_ERR_TIMEOUT and
//     XTIE_ERR_ABORTED.
// Threads: the endpoint's. Cost: data path.
int xtie_group_test_local(struct xtie_group *group, uint64_t ticket, int *done_out);

// Waits until all that was issued to a rank has taken effect there: bytes are in its window, its
// signals have grown. For all ranks, in their order; an error ends it at the first one's.
//
// rank: the rank, or XTIE_RANK_ALL.
// timeout_ms: as of xtie_group_wait_local.
// Results: XTIE_OK; XTIE_ERR_RANK; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: call again; what an
//     operation since the last flush of that rank was refused with, as of xtie_group_wait_local:
//     all others have taken effect; and, when a connection failed before it was known that all
//     had, its cause.
// Threads: the endpoint's. Cost: blocks for a round trip at least, when anything was issued.
int xtie_group_flush(struct xtie_group *group, uint32_t rank, uint32_t timeout_ms);

// Has all that is issued to a rank from now on take effect after all that was issued before.
//
// rank: the rank.
// Results: XTIE_OK, XTIE_ERR_RANK, and when the connection has failed its cause.
// Threads: the endpoint's. Cost: none; the rank waits for the earlier ones before it goes on.
int xtie_group_fence(struct xtie_group *group, uint32_t rank);

// ---- Kernels -----------------------------------------------------------------------------------
//
// Opens queues that kernels of this rank write (crosstie_device.cuh), and a thread,
// crosstie-gin, that executes them. Every rank of the group calls this, with the context of its
// GPU current, and it returns when all have met, within two minutes. The thread reaches ranks of
// other hosts by an endpoint of its own. The queues stand until xtie_group_close.
//
// config: read during the call alone; gather is called during it alone.
// Results: XTIE_OK, also where they are open already; XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE,
//     XTIE_ERR_STRUCT, XTIE_ERR_GROUP_LIMITS: the log says which; XTIE_ERR_BOOTSTRAP;
//     XTIE_ERR_DEVICE_UNAVAILABLE: there is no driver of CUDA; XTIE_ERR_OTHER_HOST;
//     XTIE_ERR_FABRIC: the driver refused; XTIE_ERR_KEY, XTIE_ERR_KEY_FILE, XTIE_ERR_SETTING,
//     XTIE_ERR_SYSTEM; XTIE_ERR_RANK_MISSING, XTIE_ERR_RANK_FAILED. Nothing is left then.
// Threads: the endpoint's. Cost: control path; makes no progress for the group meanwhile. The
//     thread spins while there is work, and for 2 ms after.
int xtie_group_device_open(struct xtie_group *group, const struct xtie_group_device_config *config);

// Lets kernels of this rank use a window: puts into it, and out of this rank's part; its signals
// and counters. The first call for a window is made by all ranks, for their windows in the same
// order, and blocks until all have made it. Kernels must not use the window when xtie_window_free
// is called for it. A signal or counter of the window is one sum, whoever adds: what functions of
// this library add is seen by a kernel once this rank has made progress.
//
// window: exchanged; this rank's part is memory of its GPU, and not empty. Memory of ncclMemAlloc
//     or cuMemCreate, with an exportable handle, or of cudaMalloc.
// view_out: an address of the GPU, to be handed to kernels.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_NO_QUEUES;
//     XTIE_ERR_MEMORY_KIND: it is no memory that the GPUs of other ranks can map;
//     XTIE_ERR_WINDOWS_FULL: more than 1,000 windows; XTIE_ERR_FABRIC: the driver refused;
//     XTIE_ERR_RANK_FAILED: another rank could not, or has ended; XTIE_ERR_RANK_MISSING.
// Threads: the endpoint's. Cost: control path; makes no progress for the group meanwhile.
int xtie_device_window(struct xtie_group *group,
                       struct xtie_window *window,
                       const struct xtie_device_view **view_out);

// Prepares an AllGather on a window that all ranks have exchanged, or finds the one that was
// prepared for the same place, length, algorithm and stream. All ranks call this, in the same
// order. It maps other ranks' memory of GPUs, once. The first one of a group takes one more of
// windows_max and of regions_max.
//
// window: memory of the host, or of a GPU.
// config: read during the call alone.
// all_gather_out: for xtie_all_gather_exec, until xtie_all_gather_destroy was called as often.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_STRUCT, XTIE_ERR_WINDOW,
//     XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_READ_ONLY, XTIE_ERR_WINDOWS_FULL; XTIE_ERR_WINDOW_RANGE: it
//     does not lie inside each rank's part; XTIE_ERR_ALGORITHM; XTIE_ERR_ALL_GATHERS_FULL: there
//     are 64; XTIE_ERR_GROUP_MISMATCH: another rank's config differs; XTIE_ERR_RANK_FAILED:
//     another rank has the error; XTIE_ERR_GPU; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED; those of
//     xtie_memory_register, and the cause where a connection has failed. Nothing is left of it.
// Threads: the endpoint's. Cost: control path; blocks until all ranks have come.
int xtie_all_gather_init(struct xtie_group *group,
                         struct xtie_window *window,
                         const struct xtie_all_gather_config *config,
                         struct xtie_all_gather **all_gather_out);

// Carries out an AllGather: the bytes of rank r come to offset + r * bytes of every rank's part.
// All ranks call it, with the same bytes. Where the window is memory of a GPU, this puts it on the
// stream and returns; where the stream is captured, it is recorded, and each launch of the graph
// carries it out, with what send holds then. Between hosts it takes this rank's progress: call
// xtie_group_progress until the stream is done, or let xtie_group_helper_start do it. Where the
// window is memory of the host, it has ended on return.
//
// send: bytes bytes of memory that the stream reaches, or of the host. This rank's own place in
//     the window: nothing is copied at this rank. It must not overlap anything else that is
//     received.
// bytes: of this rank, also 0; times the ranks at most bytes of the configuration.
// stream: that of the configuration; NULL for memory of the host.
// Results: XTIE_OK, XTIE_ERR_WINDOW_RANGE, XTIE_ERR_RANGE: send overlaps; XTIE_ERR_ALL_GATHER:
//     destroyed, its window freed, or another stream; XTIE_ERR_NULL; XTIE_ERR_TIMEOUT,
//     XTIE_ERR_GPU, or the cause where a connection has failed: also if it failed before, and it
//     can only be destroyed then.
// Threads: the endpoint's. Cost: data path; a few calls of the driver.
int xtie_all_gather_exec(struct xtie_group *group,
                         struct xtie_all_gather *all_gather,
                         const void *send,
                         size_t bytes,
                         void *stream);

// Whether an AllGather is of use: for those that graphs carry out. A rank that has died, or does
// not come in time, is told here; the log says it, too. Its stream goes on then, with bytes that
// are not valid.
//
// all_gather: NULL: all of the group, also those of xtie_window_all_gather.
// Results: XTIE_OK, also while it is under way; else those of xtie_all_gather_exec.
// Threads: the endpoint's. Cost: data path.
int xtie_all_gather_check(struct xtie_group *group, struct xtie_all_gather *all_gather);

// Gives an AllGather up, in any order with its window and graphs: no stream is in it, and no graph
// that has it is launched again. xtie_group_close gives up all that are left.
//
// Results: XTIE_OK, XTIE_ERR_ALL_GATHER.
// Threads: the endpoint's. Cost: control path; no other rank takes part.
int xtie_all_gather_destroy(struct xtie_group *group, struct xtie_all_gather *all_gather);

// An AllGather with the arguments of other libraries. The first call with this place, length and
// stream prepares it as xtie_all_gather_init does, and each carries it out as
// xtie_all_gather_exec. While the stream is captured, it is recorded; else it runs at once. What
// it prepares is its own, also beside one of xtie_all_gather_init, and goes with the window. All
// ranks call it, in the same order.
//
// send: as of xtie_all_gather_exec.
// receive: where the bytes of rank 0 come, in this rank's part of the window; at the same offset
//     in every rank's.
// bytes: of each rank.
// Results: those of xtie_all_gather_init and xtie_all_gather_exec.
// Threads: the endpoint's. Cost: that of xtie_all_gather_exec; the first time blocks until all
//     ranks have come.
int xtie_window_all_gather(struct xtie_group *group,
                           struct xtie_window *window,
                           const void *send,
                           void *receive,
                           size_t bytes,
                           void *stream);

// ---- Window ------------------------------------------------------------------------------------
//
// Makes a window of registered memory: this rank's part of it. Each rank makes one, of any size of
// its own, then all exchange it. Its signals, counters and barriers are zero.
//
// data: first byte; may be NULL when bytes is zero.
// bytes: the length of this rank's part; zero: it has none, and takes part alone.
// memory: registered memory that the part lies in; not looked at when bytes is zero. It stays
//     registered, and mapped, until xtie_window_free has succeeded.
// flags: XTIE_WINDOW_READ_ONLY, or zero.
// window_out: to be exchanged.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_FLAGS, XTIE_ERR_WINDOWS_FULL, XTIE_ERR_MEMORY,
//     XTIE_ERR_RANGE; XTIE_ERR_READ_ONLY: the memory is mapped read only, and the flag is missing.
// Threads: the endpoint's. Cost: control path.
int xtie_window_register(struct xtie_group *group,
                         void *data,
                         size_t bytes,
                         struct xtie_memory *memory,
                         uint32_t flags,
                         struct xtie_window **window_out);

// Allocates memory as xtie_memory_alloc does, and makes a window of it. xtie_window_free, or
// xtie_group_close, gives the memory back.
//
// bytes: its length, not zero.
// flags: as of xtie_window_register.
// data_out: first byte, page-aligned; the memory is zero.
// memory_out: for transfers of this rank from and to that memory, or NULL.
// window_out: to be exchanged.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_FLAGS, XTIE_ERR_WINDOWS_FULL, and those of
//     xtie_memory_alloc.
// Threads: the endpoint's. Cost: control path; the pages are really allocated.
int xtie_window_alloc(struct xtie_group *group,
                      size_t bytes,
                      uint32_t flags,
                      void **data_out,
                      struct xtie_memory **memory_out,
                      struct xtie_window **window_out);

// Tells all ranks of this rank's part of a window, and waits for theirs. Every rank calls this,
// for its windows in the same order; the window can be used then. Ranks may have other sizes,
// flags and numbers of signals.
//
// window: not exchanged yet.
// timeout_ms: as of xtie_group_wait_local.
// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_EXCHANGED; XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: call
//     again, it goes on; and when a connection has failed its cause.
// Threads: the endpoint's. Cost: control path; blocks until all ranks have called it.
int xtie_window_exchange(struct xtie_group *group, struct xtie_window *window, uint32_t timeout_ms);

// Gives up this rank's part of a window; windows may be freed in any order. What other ranks do
// with this part later is refused with XTIE_ERR_WINDOW_FREED, and changes nothing.
//
// window: not to be used after this call, but for calling it again after XTIE_AGAIN. The memory of
//     xtie_window_alloc goes with it.
// Results: XTIE_OK, XTIE_ERR_WINDOW; XTIE_AGAIN: transfers are under way in its memory, make
//     progress, call again; of xtie_window_alloc also XTIE_ERR_FABRIC.
// Threads: the endpoint's. Cost: control path.
int xtie_window_free(struct xtie_group *group, struct xtie_window *window);

// How long a rank's part of a window is.
//
// window: exchanged.
// rank: the rank, also this one.
// bytes_out: the length in bytes.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_RANK.
// Threads: the endpoint's. Cost: none.
int xtie_window_bytes(struct xtie_group *group,
                      const struct xtie_window *window,
                      uint32_t rank,
                      uint64_t *bytes_out);

// Starts to put bytes of this rank into another rank's part of a window. They move with the
// progress of both ranks. Puts to one rank may take effect in any order; xtie_group_fence and
// signals order them.
//
// window: exchanged.
// transfer: read during the call. The bytes at data are the library's to read until the ticket has
//     ended.
// ticket_out: for xtie_group_wait_local and xtie_group_test_local, or NULL.
// Results: XTIE_OK; XTIE_AGAIN: there is no room now, nothing was issued: make progress, call
//     again; XTIE_ERR_NULL, XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED,
//     XTIE_ERR_RANK; XTIE_ERR_WINDOW_RANGE: the bytes do not lie inside that rank's part;
//     XTIE_ERR_READ_ONLY; XTIE_ERR_MEMORY, XTIE_ERR_RANGE; XTIE_ERR_MEMORY_KIND: the connection
//     does not reach memory of GPUs; and when the connection has failed its cause.
// Threads: the endpoint's. Cost: data path. Short bytes are copied.
int xtie_window_put(struct xtie_group *group,
                    struct xtie_window *window,
                    const struct xtie_transfer *transfer,
                    uint64_t *ticket_out);

// xtie_window_put with a signal: it grows at that rank once the bytes are there. It says nothing
// of other puts.
//
// window, transfer, ticket_out: as of xtie_window_put.
// signal: of the window at that rank; read during the call.
// Results: those of xtie_window_put, and XTIE_ERR_ID.
// Threads: the endpoint's. Cost: data path.
int xtie_window_put_signal(struct xtie_group *group,
                           struct xtie_window *window,
                           const struct xtie_transfer *transfer,
                           const struct xtie_add *signal,
                           uint64_t *ticket_out);

// xtie_window_put_signal with a counter: a word of this rank, which grows when the ticket ends.
//
// window, transfer, signal, ticket_out: as of xtie_window_put_signal.
// counter: of the window at this rank; read during the call.
// Results: those of xtie_window_put_signal.
// Threads: the endpoint's. Cost: data path.
int xtie_window_put_signal_counter(struct xtie_group *group,
                                   struct xtie_window *window,
                                   const struct xtie_transfer *transfer,
                                   const struct xtie_add *signal,
                                   const struct xtie_add *counter,
                                   uint64_t *ticket_out);

// Starts to get bytes of another rank's part of a window. They are there when the ticket has
// ended. A get may pass puts that were issued before: xtie_group_fence orders them.
//
// window: exchanged.
// transfer: read during the call. The bytes at data are the library's to write until the ticket
//     has ended.
// ticket_out: as of xtie_window_put; not NULL.
// Results: those of xtie_window_put but for XTIE_ERR_READ_ONLY.
// Threads: the endpoint's. Cost: data path.
int xtie_window_get(struct xtie_group *group,
                    struct xtie_window *window,
                    const struct xtie_transfer *transfer,
                    uint64_t *ticket_out);

// ---- Words of a window -------------------------------------------------------------------------
//
// Adds to a signal of a window at another rank. It may pass puts that were issued before.
//
// window: exchanged.
// rank: whose signal, also this one's.
// signal: which, and by how much it grows; read during the call.
// ticket_out: for xtie_group_wait_local, or NULL.
// Results: XTIE_OK; XTIE_AGAIN: there is no room now, nothing was issued: make progress, call
//     again; XTIE_ERR_NULL, XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED,
//     XTIE_ERR_RANK, XTIE_ERR_ID, and when the connection has failed its cause.
// Threads: the endpoint's. Cost: data path.
int xtie_window_signal(struct xtie_group *group,
                       struct xtie_window *window,
                       uint32_t rank,
                       const struct xtie_add *signal,
                       uint64_t *ticket_out);

// xtie_window_signal after all that was issued to the rank before has taken effect there.
//
// window, rank, signal, ticket_out: as of xtie_window_signal.
// Results: those of xtie_window_signal; XTIE_AGAIN also while gets from that rank have not ended.
// Threads: the endpoint's. Cost: data path; the rank waits for the earlier ones.
int xtie_window_signal_with_fence(struct xtie_group *group,
                                  struct xtie_window *window,
                                  uint32_t rank,
                                  const struct xtie_add *signal,
                                  uint64_t *ticket_out);

// xtie_window_signal with a counter: a word of this rank, which grows once the signal has grown.
//
// window, rank, signal, ticket_out: as of xtie_window_signal.
// counter: of the window at this rank; read during the call.
// Results: those of xtie_window_signal.
// Threads: the endpoint's. Cost: data path; the counter grows after a round trip.
int xtie_window_signal_counter(struct xtie_group *group,
                               struct xtie_window *window,
                               uint32_t rank,
                               const struct xtie_add *signal,
                               const struct xtie_add *counter,
                               uint64_t *ticket_out);

// Waits until a signal of this rank compares with a value: the sum of what all ranks have added.
//
// window: exchanged.
// id: the signal's number.
// compare: one of XTIE_COMPARE_; both numbers are unsigned.
// timeout_ms: as of xtie_group_wait_local.
// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID, XTIE_ERR_COMPARISON;
//     XTIE_ERR_TIMEOUT, XTIE_ERR_ABORTED: the signal is as it is, call again; and when a
//     connection to any rank has failed its cause.
// Threads: the endpoint's. Cost: blocks; makes progress, and sleeps when that takes long.
int xtie_window_wait_signal(struct xtie_group *group,
                            struct xtie_window *window,
                            uint32_t id,
                            uint32_t compare,
                            uint64_t value,
                            uint32_t timeout_ms);

// xtie_window_wait_signal for what one rank has added alone.
//
// window, id, compare, value, timeout_ms: as of xtie_window_wait_signal.
// rank: the rank.
// Results: those of xtie_window_wait_signal, and XTIE_ERR_RANK; of connections the one to that
//     rank counts.
// Threads: the endpoint's. Cost: as of xtie_window_wait_signal.
int xtie_window_wait_signal_from(struct xtie_group *group,
                                 struct xtie_window *window,
                                 uint32_t id,
                                 uint32_t rank,
                                 uint32_t compare,
                                 uint64_t value,
                                 uint32_t timeout_ms);

// Waits until a counter of this rank compares with a value.
//
// window, id, compare, value, timeout_ms: as of xtie_window_wait_signal, of a counter.
// Results: those of xtie_window_wait_signal.
// Threads: the endpoint's. Cost: as of xtie_window_wait_signal.
int xtie_window_wait_counter(struct xtie_group *group,
                             struct xtie_window *window,
                             uint32_t id,
                             uint32_t compare,
                             uint64_t value,
                             uint32_t timeout_ms);

// Reads a signal of this rank: the sum of what all ranks have added. It does not grow by itself:
// make progress between two looks.
//
// window: exchanged.
// id: the signal's number.
// value_out: the sum, modulo 2^64.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID.
// Threads: the endpoint's. Cost: data path; a word of each rank.
int xtie_window_read_signal(struct xtie_group *group,
                            struct xtie_window *window,
                            uint32_t id,
                            uint64_t *value_out);

// Reads what one rank has added to a signal of this rank.
//
// window, id, value_out: as of xtie_window_read_signal.
// rank: the rank.
// Results: those of xtie_window_read_signal, and XTIE_ERR_RANK.
// Threads: the endpoint's. Cost: data path.
int xtie_window_read_signal_from(struct xtie_group *group,
                                 struct xtie_window *window,
                                 uint32_t id,
                                 uint32_t rank,
                                 uint64_t *value_out);

// Reads a counter of this rank.
//
// window, id, value_out: as of xtie_window_read_signal, of a counter.
// Results: those of xtie_window_read_signal.
// Threads: the endpoint's. Cost: data path.
int xtie_window_read_counter(struct xtie_group *group,
                             struct xtie_window *window,
                             uint32_t id,
                             uint64_t *value_out);

// Sets a signal of this rank to zero. What was added before is gone; what is on its way now is
// added to zero later.
//
// window: exchanged.
// id: the signal's number.
// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID.
// Threads: the endpoint's. Cost: data path.
int xtie_window_reset_signal(struct xtie_group *group, struct xtie_window *window, uint32_t id);

// Sets a counter of this rank to zero. Operations that have not ended add to it later.
//
// window, id: as of xtie_window_reset_signal, of a counter.
// Results: those of xtie_window_reset_signal.
// Threads: the endpoint's. Cost: data path.
int xtie_window_reset_counter(struct xtie_group *group, struct xtie_window *window, uint32_t id);

// Has a NIC add to a counter of this rank once the local buffer of an operation may be used again.
// The endpoint has XTIE_ENDPOINT_COMPANIONS, and the connection to the operation's rank an RDMA
// rail. A counter is either a NIC's or the library's, and its window stays until the NIC has
// added. Nothing is added where the operation is refused, or its connection fails.
//
// window: exchanged.
// ticket: of the operation.
// counter: read during the call.
// Results: XTIE_OK; XTIE_AGAIN: 64 adds wait, make progress first; XTIE_ERR_NULL,
//     XTIE_ERR_RESERVED, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID, XTIE_ERR_RANK;
//     XTIE_ERR_NO_NIC_COUNTER: no NIC can do it, xtie_endpoint_error says why;
//     XTIE_ERR_CONNECTION: the connection has ended. Where the NIC fails later, reads and waits of
//     the window's counters say XTIE_ERR_OUTCOME_UNKNOWN.
// Threads: the endpoint's. Cost: data path.
int xtie_window_count_by_nic(struct xtie_group *group,
                             struct xtie_window *window,
                             uint64_t ticket,
                             const struct xtie_add *counter);

// Waits until all ranks have come to a barrier of a window as often as this one. What they had
// issued to this rank before has taken effect then.
//
// window: exchanged.
// id: the barrier's number, from 0 on; each may be used again and again.
// timeout_ms: as of xtie_group_wait_local.
// Results: XTIE_OK, XTIE_ERR_WINDOW, XTIE_ERR_NOT_EXCHANGED, XTIE_ERR_ID; XTIE_ERR_TIMEOUT,
//     XTIE_ERR_ABORTED: this rank has come, call again to wait for the others; and when a
//     connection has failed its cause.
// Threads: the endpoint's. Cost: blocks until all ranks have come.
int xtie_window_barrier(struct xtie_group *group,
                        struct xtie_window *window,
                        uint32_t id,
                        uint32_t timeout_ms);

// ---- Statistics --------------------------------------------------------------------------------
//
// Counts since the endpoint was opened.
//
// stats_out: with struct_size set; the rest is filled.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE.
// Threads: the endpoint's. Cost: a copy; counting costs the data path nothing to speak of.
int xtie_endpoint_stats(struct xtie_endpoint *endpoint, struct xtie_stats *stats_out);

// How one rail of a connection is, and what it has carried. Where rails_max is 1 on either side,
// or the connection runs over shared memory alone, or only one rail was made, there is rail 0
// alone, and its counts are zero: xtie_endpoint_stats has them.
//
// connection: open.
// rail: from 0; the first number that is not known ends a loop over them.
// stats_out: with struct_size set; the rest is filled.
// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_CONNECTION, XTIE_ERR_RAIL; of a
//     connection that nothing was sent or received on yet also XTIE_AGAIN, where its place is
//     still being left: make progress first; or the cause, where it cannot be used.
// Threads: the endpoint's. Cost: a copy.
int xtie_connection_rail_stats(struct xtie_endpoint *endpoint,
                               const struct xtie_connection *connection,
                               uint32_t rail,
                               struct xtie_rail_stats *stats_out);

// Opens an endpoint as xtie_endpoint_open does, with rails of vendors beside those of the host.
// Each is a rail of connections to peers that have one of the same network, for messages, and TCP
// is their reserve: a message goes on over another rail when one fails. A rail that refuses, or
// promises too little for this (reads, writes with immediates, sends of 2048 bytes that are copied
// at post, 48 receives, the fence of one peer), is left out, which the log says. CROSSTIE_RAILS
// without vendor leaves all out. Peers of this host take shared memory where both allow it.
//
// storage, storage_bytes, config, endpoint_out: as of xtie_endpoint_open.
// rails: so many as rails_count says, one behind the other, all of one struct_size; read during
//     the call.
// rails_count: up to XTIE_VENDOR_RAILS_MAX; a connection has rails_max - 1 of them at most.
// Results: those of xtie_endpoint_open; XTIE_ERR_VENDOR_RAIL, and the log says which and why.
// Threads: any, with storage of its own each. Cost: control path; starts a thread for set-up.
int xtie_endpoint_open_with_rails(void *storage,
                                  size_t storage_bytes,
                                  const struct xtie_endpoint_config *config,
                                  const struct xtie_vendor_rail *rails,
                                  size_t rails_count,
                                  struct xtie_endpoint **endpoint_out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CROSSTIE_H */
