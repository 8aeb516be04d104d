// The kernels: each is one step of a case, and both ranks run it at once.
//
// Every wait for a signal or a counter is bounded: from NCCL 2.30 on its own waits spin for ever
// when a queue has failed. A flush and a barrier are NCCL's, so the parent's watchdog bounds these.
#pragma once
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>

constexpr uint64_t WAIT_NS = 5000000000;
// Bytes on either side of what arrives. They must stay as they are.
constexpr size_t GUARD_BYTES = 64;
constexpr uint8_t GUARD = 0xa5;

// What a kernel says of its step. It lies in pinned host memory.
struct Report {
    unsigned long long wrong;           // words, bytes or values that are not as expected
    unsigned long long seen, expected;  // of the last wait that gave up, or went too far
    unsigned expired;                   // waits that gave up
    unsigned posted;
    unsigned long long cycles, ns;      // what a measured loop took, by both clocks of the GPU
};

struct Step {
    ncclDevComm comm;
    ncclWindow_t source, target;
    int peer, context;
    size_t from, to, bytes;
    uint64_t seed;  // of the bytes that arrive here
    ncclGinSignal_t signal;
    ncclGinCounter_t counter;
    ncclGinBarrierHandle_t barrier;
    Report *report;
};

__device__ inline uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Byte `i` of a sequence is byte `i % 8` of its word `i / 8`.
__host__ __device__ inline uint64_t pattern_word(uint64_t seed, uint64_t word) {
    uint64_t x = seed + word * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

__host__ __device__ inline uint8_t pattern_byte(uint64_t seed, size_t at) {
    return pattern_word(seed, at / 8) >> at % 8 * 8;
}

__global__ void fill(uint8_t *at, size_t bytes, uint64_t seed) {
    size_t first = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    size_t stride = gridDim.x * size_t(blockDim.x);
    size_t words = uintptr_t(at) % 8 == 0 ? bytes / 8 : 0;
    for (size_t w = first; w < words; w += stride) ((uint64_t *)at)[w] = pattern_word(seed, w);
    for (size_t i = words * 8 + first; i < bytes; i += stride) at[i] = pattern_byte(seed, i);
}

// Compares by all threads of the block.
__device__ inline void expect_bytes(const Step &s, size_t to, size_t bytes, uint64_t seed) {
    auto *at = static_cast<const uint8_t *>(ncclGetLocalPointer(s.target, to));
    unsigned long long wrong = 0;
    size_t words = uintptr_t(at) % 8 == 0 ? bytes / 8 : 0;
    for (size_t w = threadIdx.x; w < words; w += blockDim.x)
        wrong += ((const uint64_t *)at)[w] != pattern_word(seed, w);
    for (size_t i = words * 8 + threadIdx.x; i < bytes; i += blockDim.x)
        wrong += at[i] != pattern_byte(seed, i);
    for (size_t i = threadIdx.x; i < GUARD_BYTES; i += blockDim.x)
        wrong += (at[bytes + i] != GUARD) + (*(at - 1 - i) != GUARD);
    if (wrong != 0) atomicAdd_system(&s.report->wrong, wrong);
}

// Waits until the value that `read` returns is `expected`. More than that is wrong. One thread
// reads, and the whole block learns whether the value came.
template <class Read>
__device__ bool wait_exact(const Step &s, Read read, uint64_t expected) {
    __shared__ bool came;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t until = now_ns() + WAIT_NS, seen;
        do seen = read();
        while (seen < expected && now_ns() < until);
        came = seen >= expected;
        if (seen != expected) {
            s.report->seen = seen;
            s.report->expected = expected;
            if (came) atomicAdd_system(&s.report->wrong, 1ull);
            else atomicAdd_system(&s.report->expired, 1u);
        }
    }
    __syncthreads();
    return came;
}

__device__ inline bool wait_signal(const Step &s, const ncclGin &gin, uint64_t expected) {
    return wait_exact(s, [&] { return gin.readSignal(s.signal); }, expected);
}

__device__ inline bool wait_counter(const Step &s, const ncclGin &gin, uint64_t expected) {
    return wait_exact(s, [&] { return gin.readCounter(s.counter); }, expected);
}

// One put with both actions. The bytes are there when the signal is.
__device__ inline void put_and_check(const Step &s) {
    ncclGin gin(s.comm, s.context);
    if (threadIdx.x == 0)
        gin.put(ncclTeamWorld(s.comm), s.peer, s.target, s.to, s.source, s.from, s.bytes,
                ncclGin_SignalInc{s.signal}, ncclGin_CounterInc{s.counter});
    if (!wait_signal(s, gin, 1)) return;
    expect_bytes(s, s.to, s.bytes, s.seed);
    if (!wait_counter(s, gin, 1)) return;
    gin.flush(ncclCoopCta());
}

__global__ void put_step(Step s) { put_and_check(s); }

// The same while waiting blocks hold every multiprocessor: two of 1,024 threads are all that one of
// them can have, and a copy that needs a multiprocessor would never start.
__global__ void __launch_bounds__(1024, 2)
put_held_step(Step s, unsigned *held, volatile unsigned *done) {
    if (blockIdx.x != 0) {
        if (threadIdx.x == 0) {
            atomicAdd(held, 1u);
            for (uint64_t until = now_ns() + 2 * WAIT_NS; *done == 0 && now_ns() < until;) continue;
        }
        __syncthreads();
        return;
    }
    wait_exact(s, [=] { return *(volatile unsigned *)held; }, gridDim.x - 1);
    put_and_check(s);
    __syncthreads();
    *done = 1;
}

template <class T>
__global__ void value_step(Step s, T value) {
    ncclGin gin(s.comm, s.context);
    if (threadIdx.x == 0)
        gin.putValue(ncclTeamWorld(s.comm), s.peer, s.target, s.to, value,
                     ncclGin_SignalInc{s.signal});
    if (wait_signal(s, gin, 1)) expect_bytes(s, s.to, sizeof(T), s.seed);
}

// Signals without data. `add` is 0 for SignalInc: a signal takes one of the two kinds alone.
__global__ void signal_step(Step s, uint64_t add, int times) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    for (int i = 0; threadIdx.x == 0 && i < times; i++) {
        if (add == 0) gin.signal(world, s.peer, ncclGin_SignalInc{s.signal});
        else gin.signal(world, s.peer, ncclGin_SignalAdd{s.signal, add});
    }
    wait_signal(s, gin, times * (add == 0 ? 1 : add));
}

#if NCCL_VERSION_CODE >= 22907
// A put whose signal is a word of a window, and two that carry nothing.
__global__ void va_signal_step(Step s, size_t word, uint64_t add) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    if (threadIdx.x == 0 && add == 0) {
        gin.put(world, s.peer, s.target, s.to, s.source, s.from, s.bytes,
                ncclGin_VASignalInc{s.target, word});
        for (int i = 0; i < 2; i++)
            gin.signal(world, s.peer, ncclGin_VASignalInc{s.target, word});
    } else if (threadIdx.x == 0) {
        gin.put(world, s.peer, s.target, s.to, s.source, s.from, s.bytes,
                ncclGin_VASignalAdd{s.target, word, add});
        for (int i = 0; i < 2; i++)
            gin.signal(world, s.peer, ncclGin_VASignalAdd{s.target, word, add});
    }
    uint64_t expected = 3 * (add == 0 ? 1 : add);
    if (wait_exact(s, [&] { return gin.readSignal(s.target, word); }, expected))
        expect_bytes(s, s.to, s.bytes, s.seed);
}
#endif

// Puts of `s.bytes` each, to places side by side. The counter counts all of them, and the signal of
// the last says that all have arrived: they are of one context.
__global__ void counter_step(Step s, int times) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    ncclGin_CounterInc counted{s.counter};
    for (int i = 0; threadIdx.x == 0 && i < times; i++) {
        size_t to = s.to + i * s.bytes, from = s.from + i * s.bytes;
        if (i + 1 < times)
            gin.put(world, s.peer, s.target, to, s.source, from, s.bytes, ncclGin_None{}, counted);
        else
            gin.put(world, s.peer, s.target, to, s.source, from, s.bytes,
                    ncclGin_SignalInc{s.signal}, counted);
    }
    bool came = wait_counter(s, gin, times);
    if (wait_signal(s, gin, 1) && came) expect_bytes(s, s.to, times * s.bytes, s.seed);
}

// After a flush the source may be written again, and what was put stays as it was.
__global__ void flush_step(Step s, int times) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    for (int i = 0; threadIdx.x == 0 && i < times; i++)
        gin.put(world, s.peer, s.target, s.to + i * s.bytes, s.source, s.from + i * s.bytes,
                s.bytes);
    __syncthreads();
    gin.flush(ncclCoopCta());
    __syncthreads();
    auto *source = static_cast<uint8_t *>(ncclGetLocalPointer(s.source, s.from));
    for (size_t i = threadIdx.x; i < times * s.bytes; i += blockDim.x) source[i] = 0;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) gin.signal(world, s.peer, ncclGin_SignalInc{s.signal});
    if (wait_signal(s, gin, 1)) expect_bytes(s, s.to, times * s.bytes, s.seed);
}

#if NCCL_VERSION_CODE >= 23000
constexpr ncclGinFenceLevel FENCE = ncclGinFenceLevel::Put;
#else
constexpr ncclGinFenceLevel FENCE = ncclGinFenceLevel::Relaxed;
#endif

// The barrier of GIN over both ranks. Each round's word is there after it, and no word of a round
// to which this rank has not come: the peer may be one round ahead.
__global__ void barrier_step(Step s, int rounds) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, world, s.barrier, 0};
    auto *word = static_cast<volatile uint64_t *>(ncclGetLocalPointer(s.target, s.to));
    for (uint64_t round = 1; round <= rounds; round++) {
        if (threadIdx.x == 0) gin.putValue(world, s.peer, s.target, s.to, round);
        barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, FENCE);
        uint64_t seen = *word;
        if (threadIdx.x == 0 && (seen < round || seen > round + 1) && s.report->wrong++ == 0) {
            s.report->seen = seen;
            s.report->expected = round;
        }
    }
}

#if NCCL_VERSION_CODE >= 23003
__global__ void get_step(Step s) {
    ncclGin gin(s.comm, s.context);
    if (threadIdx.x == 0)
        gin.get(ncclTeamWorld(s.comm), s.peer, s.source, s.from, s.target, s.to, s.bytes);
    __syncthreads();
    gin.flush(ncclCoopCta());
    __syncthreads();
    expect_bytes(s, s.to, s.bytes, s.seed);
}
#endif

// No rank may add meanwhile: the host's barrier is before and behind.
__global__ void reset_step(Step s, bool counter) {
    ncclGin gin(s.comm, s.context);
    if (counter) gin.resetCounter(s.counter);
    else gin.resetSignal(s.signal);
    __threadfence_system();
    s.report->wrong += (counter ? gin.readCounter(s.counter) : gin.readSignal(s.signal)) != 0;
}

__global__ void read_step(Step s) {
    s.report->seen = ncclGin(s.comm, s.context).readSignal(s.signal);
}

// Block c uses context c, and makes (c + 1) * `times` puts. Signal and counter have the same number
// in each context and are words of their own: each must count the calls of its context alone.
__global__ void contexts_step(Step s, int times) {
    s.context = blockIdx.x;
    int calls = (blockIdx.x + 1) * times;
    size_t skip = size_t(blockIdx.x) * gridDim.x * times * (s.bytes + GUARD_BYTES);
    ncclGin gin(s.comm, s.context);
    for (int i = 0; threadIdx.x == 0 && i < calls; i++)
        gin.put(ncclTeamWorld(s.comm), s.peer, s.target, s.to + skip + i * s.bytes, s.source,
                s.from + i * s.bytes, s.bytes, ncclGin_SignalInc{s.signal},
                ncclGin_CounterInc{s.counter});
    bool came = wait_signal(s, gin, calls);
    if (wait_counter(s, gin, calls) && came) expect_bytes(s, s.to + skip, calls * s.bytes, s.seed);
}

// More entries than the queue is deep, by many threads at once, each to a word of its own. The last
// value must stand there, so entries of one thread stay in order.
__global__ void wrap_step(Step s, uint64_t times, bool inlined) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    size_t to = s.to + 8 * thread;
    for (uint64_t i = 1; i <= times; i++) {
        if (inlined)
            gin.putValue(world, s.peer, s.target, to, thread << 32 | i,
                         ncclGin_SignalInc{s.signal});
        else
            gin.put(world, s.peer, s.target, to, s.source, s.from + 8 * thread, 8,
                    ncclGin_SignalInc{s.signal});
    }
    if (!wait_signal(s, gin, gridDim.x * blockDim.x * times)) return;
    auto word = *static_cast<volatile uint64_t *>(ncclGetLocalPointer(s.target, to));
    uint64_t expected = inlined ? thread << 32 | times : pattern_word(s.seed, thread);
    if (word != expected) atomicAdd_system(&s.report->wrong, 1ull);
}

// One put, and no wait: its place may be nowhere.
__global__ void put_alone_step(Step s) {
    ncclGin gin(s.comm, s.context);
    gin.put(ncclTeamWorld(s.comm), s.peer, s.target, s.to, s.source, s.from, s.bytes,
            ncclGin_SignalInc{s.signal});
}

// Puts a few entries, at most `times`, while the peer does the same, until the host says stop. They
// are fewer than the queue is deep: in a queue that has failed there is no room for more.
__global__ void pester_step(Step s, unsigned times, volatile unsigned *stop) {
    ncclGin gin(s.comm, s.context);
    uint64_t until = now_ns() + 6 * WAIT_NS;
    for (unsigned i = 0; i < times && *stop == 0; i++) {
        gin.put(ncclTeamWorld(s.comm), s.peer, s.target, s.to, s.source, s.from, s.bytes,
                ncclGin_SignalInc{s.signal});
        *(volatile unsigned *)&s.report->posted = i + 1;
        __threadfence_system();
        for (uint64_t next = now_ns() + 2000000; now_ns() < next && *stop == 0;) continue;
    }
    // The peer never signals this often.
    while (*stop == 0 && now_ns() < until && gin.readSignal(s.signal) < 1u << 30) continue;
}

enum Way { PUT, VALUE, SIGNAL };

template <Way way>
__device__ void send(const Step &s, const ncclGin &gin, uint64_t value) {
    ncclTeam world = ncclTeamWorld(s.comm);
    ncclGin_SignalInc inc{s.signal};
    if (way == PUT) gin.put(world, s.peer, s.target, s.to, s.source, s.from, 8, inc);
    if (way == VALUE) gin.putValue(world, s.peer, s.target, s.to, value, inc);
    if (way == SIGNAL) gin.signal(world, s.peer, inc);
}

// Round trips, one thread on either side. Rank 0 notes the cycles of each.
template <Way way>
__global__ void trips_step(Step s, int rounds, unsigned *cycles) {
    ncclGin gin(s.comm, s.context);
    bool first = s.comm.rank == 0;
    uint64_t begun = now_ns();
    long long begun_cycles = clock64();
    for (int i = 0; i < rounds; i++) {
        long long before = clock64();
        if (first) send<way>(s, gin, i);
        if (!wait_signal(s, gin, i + 1)) return;
        if (!first) send<way>(s, gin, i);
        cycles[i] = clock64() - before;
    }
    s.report->cycles = clock64() - begun_cycles;
    s.report->ns = now_ns() - begun;
}

__global__ void barriers_step(Step s, int rounds, unsigned *cycles) {
    ncclGin gin(s.comm, s.context);
    ncclTeam world = ncclTeamWorld(s.comm);
    ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, world, s.barrier, 0};
    uint64_t begun = now_ns();
    long long begun_cycles = clock64();
    for (int i = 0; i < rounds; i++) {
        long long before = clock64();
        barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
        if (threadIdx.x == 0) cycles[i] = clock64() - before;
    }
    if (threadIdx.x == 0) {
        s.report->cycles = clock64() - begun_cycles;
        s.report->ns = now_ns() - begun;
    }
}

// Entries by one block of each context, from the first to the end of a flush.
template <Way way>
__global__ void rate_step(Step s, int times) {
    ncclGin gin(s.comm, blockIdx.x);
    ncclTeam world = ncclTeamWorld(s.comm);
    uint64_t begun = now_ns();
    size_t skip = 8 * threadIdx.x;
    for (uint64_t i = 0; i < times; i++) {
        if (way == PUT) gin.put(world, s.peer, s.target, s.to + skip, s.source, s.from + skip, 8);
        if (way == VALUE) gin.putValue(world, s.peer, s.target, s.to + skip, i);
        if (way == SIGNAL) gin.signal(world, s.peer, ncclGin_SignalInc{s.signal});
    }
    __syncthreads();
    gin.flush(ncclCoopCta());
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&s.report->ns, now_ns() - begun);
}
