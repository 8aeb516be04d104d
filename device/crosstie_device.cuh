// One-sided operations of crosstie, called from CUDA kernels. doc/device.md has the tables: shapes,
// units, scopes, memory order, errors.
//
//     // host: xtie_group_device_open(group, &config), then xtie_device_window(group, window, &view)
//     __global__ void kernel(const xtie_device_view *view, uint32_t peer) {
//         crosstie::window w(view);
//         w.put_signal(crosstie::thread(), {peer, 0, w, 0, 8}, {0, 1});
//         w.wait_signal(crosstie::thread(), 0, crosstie::GREATER_EQUAL, 1);
//     }
//
// Header-only, for CUDA 12 and 13 and compute capability 7.0 and later; C++17. The functions write
// work queue entries in mlx5's format into pinned host memory. A thread of the process, which
// xtie_group_device_open starts, executes them.
#ifndef CROSSTIE_DEVICE_CUH
#define CROSSTIE_DEVICE_CUH

#include <stdint.h>

// A test that compiles this header for the CPU brings its own.
#ifndef XTIE_DEVICE_PORT
#include <cuda_runtime.h>
#define XTIE_DEVICE_PORT crosstie::port
#define XTIE_DEVICE __device__ __forceinline__

namespace crosstie {
// How memory is reached. The name of each says its order and its scope.
namespace port {
XTIE_DEVICE uint64_t load(const uint64_t *at) { return *at; }
XTIE_DEVICE uint32_t load(const uint32_t *at) { return *at; }
XTIE_DEVICE uint64_t load_relaxed_gpu(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
XTIE_DEVICE uint64_t load_acquire_gpu(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
XTIE_DEVICE uint64_t load_relaxed_system(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
XTIE_DEVICE uint64_t load_acquire_system(const uint64_t *at) {
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
XTIE_DEVICE void store_release_gpu(uint64_t *at, uint64_t value) {
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
XTIE_DEVICE void store_relaxed_system(uint64_t *at, uint64_t value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
XTIE_DEVICE void store_release_system(uint64_t *at, uint64_t value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
// Sixteen bytes at an address of that alignment.
XTIE_DEVICE void store_pair(uint64_t *at, uint64_t first, uint64_t second) {
    asm volatile("st.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second) : "memory");
}
XTIE_DEVICE void fence_system() { __threadfence_system(); }
XTIE_DEVICE uint64_t swap_if(uint64_t *at, uint64_t expected, uint64_t value) {
    return atomicCAS((unsigned long long *)at, (unsigned long long)expected,
                     (unsigned long long)value);
}
XTIE_DEVICE void raise(uint64_t *at, uint64_t value) {
    atomicMax((unsigned long long *)at, (unsigned long long)value);
}
// %globaltimer: nanoseconds. The GPU updates it every 32 ns to 1 us, as its kind is.
XTIE_DEVICE uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
XTIE_DEVICE uint32_t swapped(uint32_t value) { return __byte_perm(value, 0, 0x0123); }
}  // namespace port
}  // namespace crosstie
#endif

// ---- What the host has filled: src/hca/layout.rs has the same. -----------------------------------

// One rank's part of a window.
struct xtie_device_peer {
    uint64_t bytes;           // its length
    uint64_t signals_offset;  // bytes from the first word of all windows to this window's signal 0
    uint32_t key;             // of its memory
    uint32_t signals;         // how many signals it has
    uint32_t signals_key;     // of its words
    uint32_t flags;           // 1: other ranks may only read it
};

// A queue pair: a ring of entries with its completions. These are the fields of mlx5's that are
// used here, at their places.
struct xtie_device_queue {
    uint64_t reserved;   // entries that threads have taken
    uint64_t ready;      // entries that are announced
    uint64_t unused_0;
    uint32_t number;
    uint32_t unused_1[8];
    uint16_t depth, mask;  // a power of two, and one less
    uint64_t *entries;     // host memory: 64 bytes for each
    uint64_t unused_2;
    uint64_t *doorbell;    // host memory
    uint64_t unused_3[9];
    uint64_t *completions; // host memory: 64 bytes for each
    uint64_t unused_4[2];
    uint64_t completed;    // entries that are known to have ended well
    uint64_t unused_5[13];
};

// The queues of a set: to each rank one, and its companion, which counts.
struct xtie_device_set {
    xtie_device_queue *queues;
    xtie_device_queue *companions;
    uint64_t unused_0[6];
    uint32_t sink_key;  // of where the old values of added-to words go
    uint32_t unused_1;
};

// A window of a group as a kernel of this rank sees it: what xtie_device_window gives.
struct xtie_device_view {
    uint32_t version;  // XTIE_DEVICE_VERSION
    uint32_t rank, ranks;
    uint32_t sets;                  // sets of queues
    const xtie_device_peer *peers;  // one for each rank
    const xtie_device_set *queues;  // one for each set
    uint64_t data;                  // this rank's part: where it begins
    uint64_t *signals;              // this rank's words
    uint64_t *counters;
    uint64_t counters_offset;  // as signals_offset
    uint32_t signals_max, counters_max;
    uint32_t counters_key, unused_0;
    const uint64_t *state;  // host memory: an abort, then how many ranks have ended
    uint64_t timeout_ns;    // of waits that do not say
    uint64_t unused_1[5];
};

#define XTIE_DEVICE_VERSION 1u

static_assert(sizeof(xtie_device_peer) == 32, "src/hca/layout.rs");
static_assert(sizeof(xtie_device_queue) == 296, "src/hca/layout.rs");
static_assert(sizeof(xtie_device_set) == 72, "src/hca/layout.rs");
static_assert(sizeof(xtie_device_view) == 136, "src/hca/layout.rs");

namespace crosstie {

// ---- What the functions take and give ------------------------------------------------------------

enum result : uint32_t {
    OK = 0,
    TIMEOUT = 1,   // the time has passed; everything is as before, and the call may be made again
    ABORTED = 2,   // the host has called xtie_group_abort
    FAILED = 3,    // the queue has failed, or a rank has ended
    ARGUMENT = 4,  // a rank, a range, a signal or a counter that is not there; nothing was done
};

// How a word is compared with a value, both unsigned. The numbers are those of XTIE_COMPARE_.
enum comparison : uint32_t {
    EQUAL = 1,
    NOT_EQUAL = 2,
    GREATER = 3,
    GREATER_EQUAL = 4,
    LESS = 5,
    LESS_EQUAL = 6,
};

// As a timeout: the window's own, which is that of xtie_group_device_config; or none.
constexpr uint64_t TIMEOUT_OF_WINDOW = 0;
constexpr uint64_t NO_TIMEOUT = ~uint64_t(0);

// Names entries of a queue. One that is zero has ended.
struct ticket {
    xtie_device_queue *queue = nullptr;
    uint64_t end = 0;  // the index behind its last entry
};

// A signal or counter, and by how much it grows.
struct add {
    uint32_t id;
    uint64_t value;
};

class window;

// Bytes that go to a rank's part of a window, or come from there.
struct transfer {
    uint32_t rank;           // also this rank's own
    uint64_t offset;         // in that rank's part, in bytes
    const window &local;     // the window whose part of this rank has the local bytes
    uint64_t local_offset;   // where, in bytes
    uint64_t bytes;          // zero: nothing moves
};

// ---- Scopes: which threads make a call together --------------------------------------------------

// Each thread makes its own call.
struct thread {
    XTIE_DEVICE bool leads() const { return true; }
    XTIE_DEVICE void meet() const {}
    template <class T> XTIE_DEVICE T share(const T &value) const { return value; }
};

// All threads of a warp make one call, with the same arguments; its first thread posts. All threads
// that the warp has take part.
struct warp {
    XTIE_DEVICE static uint32_t number() {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    XTIE_DEVICE static uint32_t mask() {
        uint32_t left = blockDim.x * blockDim.y * blockDim.z - (number() & ~31u);
        return left >= 32 ? ~0u : (1u << left) - 1;
    }
    XTIE_DEVICE bool leads() const { return (number() & 31) == 0; }
    XTIE_DEVICE void meet() const { __syncwarp(mask()); }
    template <class T> XTIE_DEVICE T share(const T &value) const {
        static_assert(sizeof(T) % 4 == 0, "whole words");
        union {
            T all;
            uint32_t words[sizeof(T) / 4];
        } it = {value};
        for (uint32_t &word : it.words) word = __shfl_sync(mask(), word, 0);
        __syncwarp(mask());
        return it.all;
    }
};

// All threads of a block make one call, with the same arguments; the first posts.
struct block {
    XTIE_DEVICE bool leads() const { return warp::number() == 0; }
    XTIE_DEVICE void meet() const { __syncthreads(); }
    template <class T> XTIE_DEVICE T share(const T &value) const {
        __shared__ uint64_t shared[(sizeof(T) + 7) / 8];
        T *it = reinterpret_cast<T *>(shared);
        if (leads()) *it = value;
        __syncthreads();
        T seen = *it;
        __syncthreads();
        return seen;
    }
};

// ---- Queues --------------------------------------------------------------------------------------

namespace detail {
namespace port = XTIE_DEVICE_PORT;

constexpr uint32_t NOP = 0x00, WRITE = 0x08, WAIT = 0x0f, READ = 0x10, FETCH_ADD = 0x12;
// Bits of a control segment: an entry always completes; one that is fenced waits for all before it.
constexpr uint64_t COMPLETES = 0x08u << 24, FENCED = 0x40u << 24;
// Most bytes of an entry, and most entries that a call takes at once: a queue has 64 at least.
constexpr uint64_t PIECE_BYTES = uint64_t(1) << 30;
constexpr uint32_t BATCH = 16;
constexpr uint64_t ENTRY_WORDS = 8;
// Looks between two looks at the clock and at what the host says.
constexpr uint32_t LOOKS = 16;
constexpr uint8_t INVALID = 15;

enum look { BUSY, DONE, ERROR };

XTIE_DEVICE uint64_t pair(uint32_t low, uint32_t high) {
    return uint64_t(port::swapped(high)) << 32 | port::swapped(low);
}
XTIE_DEVICE uint64_t wide(uint64_t value) { return pair(uint32_t(value >> 32), uint32_t(value)); }

template <class T> XTIE_DEVICE T *pointer(T *const *at) {
    return reinterpret_cast<T *>(port::load(reinterpret_cast<const uint64_t *>(at)));
}

// A queue's memory. Its fields never change: they are read at once, before anything is waited for,
// as each read alone would take as long as all together.
struct ring {
    xtie_device_queue *queue;
    uint64_t *entries, *completions, *doorbell;
    uint64_t depth;
    uint32_t number;

    XTIE_DEVICE explicit ring(xtie_device_queue *queue)
        : queue(queue), entries(pointer(&queue->entries)),
          completions(pointer(&queue->completions)), doorbell(pointer(&queue->doorbell)),
          // depth and mask are one aligned word
          depth(port::load(reinterpret_cast<const uint32_t *>(&queue->depth)) & 0xffff),
          number(port::load(&queue->number)) {}
    XTIE_DEVICE uint64_t *entry(uint64_t index) const {
        return entries + (index & (depth - 1)) * ENTRY_WORDS;
    }
    XTIE_DEVICE uint64_t *completion(uint64_t index) const {
        return completions + (index & (depth - 1)) * ENTRY_WORDS;
    }
};

// How far a queue was when it was looked at.
struct progress {
    uint64_t reserved, completed;
    XTIE_DEVICE explicit progress(const ring &it)
        : reserved(port::load_relaxed_gpu(&it.queue->reserved)),
          completed(port::load_relaxed_gpu(&it.queue->completed)) {}
};

// What has become of the entry `index`, which was reserved. Acquires at system scope.
XTIE_DEVICE look look_at(const ring &it, uint64_t index) {
    if (index < port::load_acquire_gpu(&it.queue->completed)) return DONE;
    uint64_t last = port::load_acquire_system(it.completion(index) + 7);
    uint8_t opcode = uint8_t(last >> 60);
    uint16_t counter = uint16_t(port::swapped(uint32_t(last >> 32)) >> 16);
    if (opcode == INVALID || int16_t(counter - uint16_t(index)) < 0) return BUSY;
    if (opcode != 0) return ERROR;
    port::fence_system();  // for those who see the index alone
    port::raise(&it.queue->completed, index + 1);
    return DONE;
}

// Whether `count` entries have room.
XTIE_DEVICE look look_for_room(const ring &it, const progress &far, uint64_t count) {
    if (far.reserved + count <= it.depth) return DONE;
    uint64_t last = far.reserved + count - it.depth - 1;
    if (last < far.completed) return DONE;
    // one look at an entry further on spares looks of later calls
    uint64_t ahead = last + it.depth / 4;
    if (ahead < far.reserved && look_at(it, ahead) == DONE) return DONE;
    return look_at(it, last);
}

// Takes `count` entries, if there is room now.
XTIE_DEVICE look reserve(const ring &it, progress far, uint64_t count, uint64_t *first) {
    for (;;) {
        look room = look_for_room(it, far, count);
        if (room != DONE) return room;
        uint64_t seen = port::swap_if(&it.queue->reserved, far.reserved, far.reserved + count);
        if (seen == far.reserved) break;
        far.reserved = seen;
    }
    *first = far.reserved;
    return DONE;
}

// An entry of a queue that is being written.
struct entry {
    uint64_t *words;
    XTIE_DEVICE entry(const ring &it, uint64_t index, uint32_t opcode, uint32_t segments,
                      bool fenced = false)
        : words(it.entry(index)) {
        port::store_pair(words, pair(uint32_t(index & 0xffff) << 8 | opcode,
                                     it.number << 8 | segments),
                         COMPLETES | (fenced ? FENCED : 0));
    }
    XTIE_DEVICE void remote(uint32_t key, uint64_t offset) const {
        port::store_pair(words + 2, wide(offset), key);
    }
    XTIE_DEVICE void data(uint32_t key, uint64_t offset, uint32_t bytes) const {
        port::store_pair(words + 4, uint64_t(key) << 32 | port::swapped(bytes), wide(offset));
    }
    XTIE_DEVICE void add(uint64_t value, uint32_t sink_key) const {
        port::store_pair(words + 4, wide(value), 0);
        port::store_pair(words + 6, uint64_t(sink_key) << 32 | port::swapped(8), 0);
    }
    XTIE_DEVICE void wait(uint32_t queue, uint64_t index) const {
        port::store_pair(words + 2, 0, pair(uint32_t(index), queue));
    }
};

// Entries that a thread has taken and written, and announces after all that were taken before.
// Those before are on their way: no thread waits for anything else between taking and announcing.
struct taken {
    const ring &it;
    uint64_t first, count;

    // With a fence behind it, this acquires what those before have rung.
    XTIE_DEVICE bool is_next() const { return port::load_relaxed_gpu(&it.queue->ready) == first; }
    XTIE_DEVICE void await() const {
        while (port::load_acquire_gpu(&it.queue->ready) != first) continue;
    }
    XTIE_DEVICE void tell() const { port::store_relaxed_system(it.doorbell, first + count); }
    // Lets those behind tell.
    XTIE_DEVICE void pass_on() const {
        port::store_release_gpu(&it.queue->ready, first + count);
    }
};

// Announces entries. Releases at system scope what this thread has done and seen.
XTIE_DEVICE void announce(const taken &entries) {
    bool is_next = entries.is_next();
    port::fence_system();
    if (!is_next) entries.await();
    entries.tell();
    entries.pass_on();
}

// Announces entries and those of the companion that counts them, behind one fence. Every thread
// passes its companion on before it waits for the queue, so none waits for another in a circle.
// Where nobody is before this thread, the host is told of both first: passing on takes as long as
// the host's answer.
XTIE_DEVICE void announce(const taken &entries, const taken &companion) {
    bool is_next = entries.is_next(), companion_is_next = companion.is_next();
    port::fence_system();
    if (!companion_is_next) companion.await();
    if (is_next) entries.tell();
    companion.tell();
    companion.pass_on();
    if (!is_next) {
        entries.await();
        entries.tell();
    }
    entries.pass_on();
}

XTIE_DEVICE void fill(const taken &all) {
    for (uint64_t at = all.first; at < all.first + all.count; at++) entry(all.it, at, NOP, 1);
    announce(all);
}

XTIE_DEVICE bool holds(comparison how, uint64_t word, uint64_t value) {
    switch (how) {
    case EQUAL: return word == value;
    case NOT_EQUAL: return word != value;
    case GREATER: return word > value;
    case GREATER_EQUAL: return word >= value;
    case LESS: return word < value;
    case LESS_EQUAL: return word <= value;
    }
    return false;
}

// What a call asks for.
struct request {
    uint32_t rank = 0;
    uint32_t opcode = NOP;
    uint64_t offset = 0, local_offset = 0, bytes = 0;
    uint32_t key = 0, local_key = 0;
    bool signals = false, counts = false, fenced = false;
    add signal = {0, 0}, counter = {0, 0};
};

struct outcome {
    result code;
    uint32_t unused;
    ticket told;
};
}  // namespace detail

// ---- A window ------------------------------------------------------------------------------------

// A handle of one thread: it holds what xtie_device_window has described, in registers. `set` names
// the set of queues that its calls use: order holds within one queue, which is one of a set to a
// rank. Sets let blocks post without waiting for each other's entries.
class window {
  public:
    XTIE_DEVICE explicit window(const xtie_device_view *view, uint32_t set = 0) : view_(view) {
        namespace port = XTIE_DEVICE_PORT;
        rank_ = port::load(&view->rank);
        ranks_ = port::load(&view->ranks);
        peers_ = detail::pointer(&view->peers);
        sets_ = detail::pointer(&view->queues);
        signals_ = detail::pointer(&view->signals);
        counters_ = detail::pointer(&view->counters);
        state_ = detail::pointer(&view->state);
        timeout_ns_ = port::load(&view->timeout_ns);
        is_usable_ = port::load(&view->version) == XTIE_DEVICE_VERSION &&
                     set < port::load(&view->sets);
        const xtie_device_set *own = sets_ + (is_usable_ ? set : 0);
        queues_ = detail::pointer(&own->queues);
        companions_ = detail::pointer(&own->companions);
        sink_key_ = port::load(&own->sink_key);
    }

    XTIE_DEVICE uint32_t rank() const { return rank_; }
    XTIE_DEVICE uint32_t ranks() const { return ranks_; }
    // How long a rank's part is, in bytes; 0 for a rank that is not there.
    XTIE_DEVICE uint64_t bytes(uint32_t rank) const {
        return rank < ranks_ ? XTIE_DEVICE_PORT::load(&peers_[rank].bytes) : 0;
    }
    // This rank's part.
    XTIE_DEVICE void *data() const {
        return reinterpret_cast<void *>(XTIE_DEVICE_PORT::load(&view_->data));
    }

    // Puts bytes of this rank into a rank's part.
    template <class Scope>
    XTIE_DEVICE result put(Scope scope, const transfer &it, ticket *told = nullptr,
                           uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        return run(scope, moved(detail::WRITE, it), told, timeout_ns);
    }
    // Gets bytes of a rank's part. They are there when the ticket has ended.
    template <class Scope>
    XTIE_DEVICE result get(Scope scope, const transfer &it, ticket *told = nullptr,
                           uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        return run(scope, moved(detail::READ, it), told, timeout_ns);
    }
    // A put, and a signal at that rank that grows once the bytes are there.
    template <class Scope>
    XTIE_DEVICE result put_signal(Scope scope, const transfer &it, add signal,
                                  ticket *told = nullptr,
                                  uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        detail::request all = moved(detail::WRITE, it);
        signalled(all, signal);
        return run(scope, all, told, timeout_ns);
    }
    // A put, and a counter of this rank that grows once its bytes are there. No thread waits for
    // that: a companion queue counts.
    template <class Scope>
    XTIE_DEVICE result put_counter(Scope scope, const transfer &it, add counter,
                                   ticket *told = nullptr,
                                   uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        detail::request all = moved(detail::WRITE, it);
        counted(all, counter);
        return run(scope, all, told, timeout_ns);
    }
    // Both.
    template <class Scope>
    XTIE_DEVICE result put_signal_counter(Scope scope, const transfer &it, add signal, add counter,
                                          ticket *told = nullptr,
                                          uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        detail::request all = moved(detail::WRITE, it);
        signalled(all, signal);
        counted(all, counter);
        return run(scope, all, told, timeout_ns);
    }
    // Adds to a signal at a rank.
    template <class Scope>
    XTIE_DEVICE result signal(Scope scope, uint32_t rank, add signal, ticket *told = nullptr,
                              uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        return run(scope, told_only(rank, signal), told, timeout_ns);
    }
    // Adds to a signal at a rank after all before it on this set's queue to that rank has ended.
    template <class Scope>
    XTIE_DEVICE result signal_with_fence(Scope scope, uint32_t rank, add signal,
                                         ticket *told = nullptr,
                                         uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        detail::request all = told_only(rank, signal);
        all.fenced = true;
        return run(scope, all, told, timeout_ns);
    }
    // Adds to a signal at a rank, then to a counter of this rank.
    template <class Scope>
    XTIE_DEVICE result signal_counter(Scope scope, uint32_t rank, add signal, add counter,
                                      ticket *told = nullptr,
                                      uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        detail::request all = told_only(rank, signal);
        counted(all, counter);
        return run(scope, all, told, timeout_ns);
    }

    // Waits until what a ticket names has ended: it has taken effect at its rank, and the local
    // bytes may be used again. Counters are not waited for.
    template <class Scope>
    XTIE_DEVICE result wait_local(Scope scope, ticket it,
                                  uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        return together(scope, timeout_ns, false, [=] { return ended(it.queue, it.end); });
    }
    // Whether it has ended; OK or FAILED as wait_local would say, TIMEOUT: not yet.
    XTIE_DEVICE result test_local(ticket it) const {
        switch (ended(it.queue, it.end)) {
        case detail::DONE: return OK;
        case detail::ERROR: return FAILED;
        case detail::BUSY: break;
        }
        return TIMEOUT;
    }
    // Why a ticket's wait has FAILED: mlx5's syndrome, or 0. doc/device.md has a table.
    XTIE_DEVICE uint32_t syndrome(ticket it) const {
        namespace port = XTIE_DEVICE_PORT;
        if (ended(it.queue, it.end) != detail::ERROR) return 0;
        const uint64_t *entry = detail::ring(it.queue).completion(it.end - 1);
        return uint32_t(port::load_relaxed_system(entry + 6) >> 56);
    }

    // Waits until a signal of this rank compares with a value: the sum of what kernels of all ranks
    // have added.
    template <class Scope>
    XTIE_DEVICE result wait_signal(Scope scope, uint32_t id, comparison how, uint64_t value,
                                   uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        if (!has_signal(id)) return argument(scope);
        return wait_word(scope, signals_ + id, how, value, timeout_ns);
    }
    // Waits until a counter of this rank compares with a value.
    template <class Scope>
    XTIE_DEVICE result wait_counter(Scope scope, uint32_t id, comparison how, uint64_t value,
                                    uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        if (!has_counter(id)) return argument(scope);
        return wait_word(scope, counters_ + id, how, value, timeout_ns);
    }
    // A signal or counter of this rank; 0 for one that is not there. Acquires at system scope.
    XTIE_DEVICE uint64_t read_signal(uint32_t id) const {
        return has_signal(id) ? XTIE_DEVICE_PORT::load_acquire_system(signals_ + id) : 0;
    }
    XTIE_DEVICE uint64_t read_counter(uint32_t id) const {
        return has_counter(id) ? XTIE_DEVICE_PORT::load_acquire_system(counters_ + id) : 0;
    }
    // Sets a signal or counter of this rank to zero. What is on its way is lost, or added to zero.
    XTIE_DEVICE result reset_signal(uint32_t id) const {
        if (!has_signal(id)) return ARGUMENT;
        XTIE_DEVICE_PORT::store_release_system(signals_ + id, 0);
        return OK;
    }
    XTIE_DEVICE result reset_counter(uint32_t id) const {
        if (!has_counter(id)) return ARGUMENT;
        XTIE_DEVICE_PORT::store_release_system(counters_ + id, 0);
        return OK;
    }

    // Waits until all that any thread has posted to a rank before, by this set, has taken effect,
    // counters included.
    template <class Scope>
    XTIE_DEVICE result flush(Scope scope, uint32_t rank,
                             uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        namespace port = XTIE_DEVICE_PORT;
        if (!is_usable_ || rank >= ranks_) return argument(scope);
        xtie_device_queue *queue = queues_ + rank, *companion = companions_ + rank;
        uint64_t end = port::load_relaxed_gpu(&queue->reserved);
        uint64_t counted = port::load_relaxed_gpu(&companion->reserved);
        return together(scope, timeout_ns, false, [=] {
            detail::look first = ended(queue, end);
            return first == detail::DONE ? ended(companion, counted) : first;
        });
    }
    // The same for all ranks, one after the other: the first that does not end well ends it.
    template <class Scope>
    XTIE_DEVICE result flush_all(Scope scope, uint64_t timeout_ns = TIMEOUT_OF_WINDOW) const {
        for (uint32_t rank = 0; rank < ranks_; rank++) {
            result code = flush(scope, rank, timeout_ns);
            if (code != OK) return code;
        }
        return OK;
    }

  private:
    XTIE_DEVICE static detail::look ended(xtie_device_queue *queue, uint64_t end) {
        return end == 0 ? detail::DONE : detail::look_at(detail::ring(queue), end - 1);
    }
    XTIE_DEVICE bool has_signal(uint32_t id) const {
        return is_usable_ && id < XTIE_DEVICE_PORT::load(&view_->signals_max);
    }
    XTIE_DEVICE bool has_counter(uint32_t id) const {
        return is_usable_ && id < XTIE_DEVICE_PORT::load(&view_->counters_max);
    }
    template <class Scope> XTIE_DEVICE static result argument(Scope scope) {
        scope.meet();
        return ARGUMENT;
    }
    XTIE_DEVICE detail::request moved(uint32_t opcode, const transfer &it) const {
        namespace port = XTIE_DEVICE_PORT;
        detail::request all;
        all.rank = it.rank;
        all.opcode = opcode;
        all.offset = it.offset;
        all.local_offset = it.local_offset;
        all.bytes = it.bytes;
        uint64_t here = it.local.bytes(it.local.rank_);
        bool is_there = is_usable_ && it.rank < ranks_ && it.local.sets_ == sets_ &&
                        it.local_offset <= here && it.bytes <= here - it.local_offset;
        if (!is_there) {
            all.rank = ranks_;  // no rank
            return all;
        }
        const xtie_device_peer *peer = peers_ + it.rank;
        uint64_t there = port::load(&peer->bytes);
        bool is_read_only = (port::load(&peer->flags) & 1) != 0 && opcode == detail::WRITE;
        if (it.offset > there || it.bytes > there - it.offset || is_read_only) all.rank = ranks_;
        all.key = port::load(&peer->key);
        all.local_key = port::load(&it.local.peers_[it.local.rank_].key);
        return all;
    }
    XTIE_DEVICE static detail::request told_only(uint32_t rank, add signal) {
        detail::request all;
        all.rank = rank;
        signalled(all, signal);
        return all;
    }
    XTIE_DEVICE static void signalled(detail::request &all, add signal) {
        all.signals = true;
        all.signal = signal;
    }
    XTIE_DEVICE static void counted(detail::request &all, add counter) {
        all.counts = true;
        all.counter = counter;
    }

    // The first thread does it for all of the scope. What the others did before is covered: they
    // have met the first.
    template <class Scope>
    XTIE_DEVICE result run(Scope scope, const detail::request &all, ticket *told,
                           uint64_t timeout_ns) const {
        scope.meet();
        detail::outcome outcome = {OK, 0, ticket()};
        if (scope.leads()) outcome.code = post(all, outcome.told, timeout_ns);
        outcome = scope.share(outcome);
        if (told != nullptr && outcome.code == OK) *told = outcome.told;
        return outcome.code;
    }

    template <class Scope, class Look>
    XTIE_DEVICE result together(Scope scope, uint64_t timeout_ns, bool needs_all, Look look) const {
        scope.meet();
        uint32_t code = OK;
        if (scope.leads()) code = wait(timeout_ns, needs_all, look);
        return result(scope.share(code));
    }

    template <class Scope>
    XTIE_DEVICE result wait_word(Scope scope, const uint64_t *word, comparison how, uint64_t value,
                                 uint64_t timeout_ns) const {
        if (how < EQUAL || how > LESS_EQUAL) return argument(scope);
        return together(scope, timeout_ns, true, [=] {
            uint64_t seen = XTIE_DEVICE_PORT::load_acquire_system(word);
            return detail::holds(how, seen, value) ? detail::DONE : detail::BUSY;
        });
    }

    // Looks until there is an answer. `needs_all`: a rank that has ended is one.
    template <class Look>
    XTIE_DEVICE result wait(uint64_t timeout_ns, bool needs_all, Look look) const {
        namespace port = XTIE_DEVICE_PORT;
        uint64_t limit = timeout_ns == TIMEOUT_OF_WINDOW ? timeout_ns_ : timeout_ns, begun = 0;
        for (uint32_t looks = 1;; looks++) {
            detail::look seen = look();
            if (seen != detail::BUSY) return seen == detail::DONE ? OK : FAILED;
            if (looks % detail::LOOKS != 0) continue;
            if (port::load_relaxed_system(state_) != 0) return ABORTED;
            // what that rank has done before is there
            if (needs_all && port::load_acquire_system(state_ + 1) != 0)
                return look() == detail::DONE ? OK : FAILED;
            uint64_t now = port::now_ns();
            if (begun == 0) begun = now;
            if (limit != NO_TIMEOUT && now - begun >= limit) return TIMEOUT;
        }
    }

    // Posts a request by the calling thread.
    XTIE_DEVICE result post(const detail::request &all, ticket &told, uint64_t timeout_ns) const {
        if (!is_usable_ || all.rank >= ranks_) return ARGUMENT;
        detail::ring queue(queues_ + all.rank), companion(companions_ + all.rank);
        const word signal = signal_of(all), counter = counter_of(all);
        if (all.signals && all.signal.id >= signal.count) return ARGUMENT;
        if (all.counts && all.counter.id >= counter.count) return ARGUMENT;
        uint64_t pieces = (all.bytes + detail::PIECE_BYTES - 1) / detail::PIECE_BYTES;
        uint64_t count = pieces + (all.signals ? 1 : 0);
        if (count == 0) count = 1;
        // where the entry is that a counter waits for
        uint64_t counted_for = pieces == 0 ? count - 1 : pieces - 1, counted_at = 0;
        for (uint64_t at = 0; at < count;) {
            uint64_t left = count - at;
            uint32_t now = left < detail::BATCH ? uint32_t(left) : detail::BATCH;
            bool counts = all.counts && now == left;
            uint64_t first = 0, counts_first = 0;
            result code = counts ? take(queue, now, &first, companion, &counts_first, timeout_ns)
                                 : take(queue, now, &first, timeout_ns);
            if (code != OK) return code;
            if (counted_for >= at && counted_for < at + now) counted_at = first + counted_for - at;
            write_batch(all, queue, signal, at, pieces, now, first);
            if (counts) {
                write_count(all, queue.number, counted_at, companion, counter, counts_first);
                detail::announce({queue, first, now}, {companion, counts_first, 2});
            } else {
                detail::announce({queue, first, now});
            }
            told.queue = queue.queue;
            told.end = first + now;
            at += now;
        }
        return OK;
    }

    // Words that a call may add to: how many there are, and where the first is.
    struct word {
        uint32_t count, key;
        uint64_t offset;
    };
    XTIE_DEVICE word signal_of(const detail::request &all) const {
        namespace port = XTIE_DEVICE_PORT;
        if (!all.signals) return {};
        const xtie_device_peer *peer = peers_ + all.rank;
        return {port::load(&peer->signals), port::load(&peer->signals_key),
                port::load(&peer->signals_offset)};
    }
    XTIE_DEVICE word counter_of(const detail::request &all) const {
        namespace port = XTIE_DEVICE_PORT;
        if (!all.counts) return {};
        return {port::load(&view_->counters_max), port::load(&view_->counters_key),
                port::load(&view_->counters_offset)};
    }

    // Takes entries of a queue.
    XTIE_DEVICE result take(const detail::ring &queue, uint32_t count, uint64_t *first,
                            uint64_t timeout_ns) const {
        return wait(timeout_ns, false, [&] {
            return detail::reserve(queue, detail::progress(queue), count, first);
        });
    }

    // Takes entries of a queue, and two of its companion. A thread that finds no room gives back
    // what it has before it waits, so that nobody waits for it.
    XTIE_DEVICE result take(const detail::ring &queue, uint32_t count, uint64_t *first,
                            const detail::ring &companion, uint64_t *counts_first,
                            uint64_t timeout_ns) const {
        return wait(timeout_ns, false, [&] {
            detail::progress far(queue), counted(companion);
            detail::look room = detail::look_for_room(queue, far, count);
            if (room != detail::DONE) return room;
            room = detail::reserve(companion, counted, 2, counts_first);
            if (room != detail::DONE) return room;
            room = detail::reserve(queue, far, count, first);
            if (room != detail::DONE) detail::fill({companion, *counts_first, 2});
            return room;
        });
    }

    // The companion waits for an entry of the queue, then adds to this rank's counter.
    XTIE_DEVICE void write_count(const detail::request &all, uint32_t queue, uint64_t counted_at,
                                 const detail::ring &companion, const word &counter,
                                 uint64_t first) const {
        detail::entry(companion, first, detail::WAIT, 2).wait(queue, counted_at);
        detail::entry add(companion, first + 1, detail::FETCH_ADD, 4);
        add.remote(counter.key, counter.offset + 8 * uint64_t(all.counter.id));
        add.add(all.counter.value, sink_key_);
    }

    // Entries `at` to `at + count` of a request: pieces of its bytes, then its signal.
    XTIE_DEVICE void write_batch(const detail::request &all, const detail::ring &queue,
                                 const word &signal, uint64_t at, uint64_t pieces, uint32_t count,
                                 uint64_t first) const {
        for (uint32_t i = 0; i < count; i++) {
            if (at + i < pieces) {
                uint64_t skip = (at + i) * detail::PIECE_BYTES, left = all.bytes - skip;
                uint32_t bytes = uint32_t(left < detail::PIECE_BYTES ? left : detail::PIECE_BYTES);
                detail::entry move(queue, first + i, all.opcode, 3);
                move.remote(all.key, all.offset + skip);
                move.data(all.local_key, all.local_offset + skip, bytes);
            } else if (all.signals) {
                detail::entry add(queue, first + i, detail::FETCH_ADD, 4, all.fenced);
                add.remote(signal.key, signal.offset + 8 * uint64_t(all.signal.id));
                add.add(all.signal.value, sink_key_);
            } else {
                detail::entry(queue, first + i, detail::NOP, 1);
            }
        }
    }

    const xtie_device_view *view_;
    const xtie_device_peer *peers_;
    const xtie_device_set *sets_;
    xtie_device_queue *queues_, *companions_;
    uint64_t *signals_, *counters_;
    const uint64_t *state_;
    uint64_t timeout_ns_;
    uint32_t rank_, ranks_, sink_key_;
    bool is_usable_;
};

}  // namespace crosstie
#endif  // CROSSTIE_DEVICE_CUH
