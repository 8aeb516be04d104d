// What an application may do meanwhile that blocks the driver: our put must come all the same.
//
// The kernel posts its put 20 ms after the hazard begins, and waits for the peer's put. The hazard
// runs in a second thread, because many of these calls return only after the kernel.
#pragma once
#include <thread>

#include "cases.h"

constexpr int QUEUED_STREAMS = 16;
constexpr uint64_t STANDS_NS = 20000000;
constexpr size_t HAZARD_BYTES = 64 << 10;
constexpr size_t COPY_BYTES = 16 * MIB;
// No case uses this part of the source's window.
constexpr size_t SPARE = 512 * MIB;

// Words of `rank.flags`.
enum Flag { STANDS = 0, ENDED = 8 };

struct Stage {
    Rank &rank;
    cudaStream_t stream;  // of the kernel; the legacy stream waits for it
    cudaEvent_t ended;    // recorded behind the kernel
    cudaStream_t others[QUEUED_STREAMS];
    char *pinned, *pageable, *freed, *remote;
    unsigned *words;
};

struct Hazard {
    const char *name;
    void (*stand)(Stage &);
    bool own;             // the put goes to the own rank while all multiprocessors are held
    bool one_connection;  // CUDA_DEVICE_MAX_CONNECTIONS=1
    bool may_block;       // the driver is known to block until the kernel ends
};

// Two blocks of 1,024 threads are all that a multiprocessor can have.
__global__ void __launch_bounds__(1024, 2)
hazard_step(Step s, volatile unsigned *flags, unsigned *held, volatile unsigned *done) {
    if (blockIdx.x != 0) {
        if (threadIdx.x == 0) {
            atomicAdd(held, 1u);
            for (uint64_t until = now_ns() + 3 * WAIT_NS; *done == 0 && now_ns() < until;) continue;
        }
        __syncthreads();
        return;
    }
    wait_exact(s, [=] { return *(volatile unsigned *)held; }, gridDim.x - 1);
    wait_exact(s, [=] { return flags[STANDS]; }, 1);
    if (threadIdx.x == 0) {
        for (uint64_t until = now_ns() + STANDS_NS; now_ns() < until;) continue;
        ncclGin gin(s.comm, s.context);
        gin.put(ncclTeamWorld(s.comm), s.peer, s.target, s.to, s.source, s.from, s.bytes,
                ncclGin_SignalInc{s.signal});
    }
    ncclGin gin(s.comm, s.context);
    if (wait_signal(s, gin, 1)) expect_bytes(s, s.to, s.bytes, s.seed);
    __syncthreads();
    if (threadIdx.x == 0) {
        *done = 1;
        __threadfence_system();
        flags[ENDED] = 1;
    }
}

// What came by the end, also when the kernel gave up before.
__global__ void late_step(Step s) {
    ncclGin gin(s.comm, s.context);
    if (wait_signal(s, gin, 1)) expect_bytes(s, s.to, s.bytes, s.seed);
}

inline void stands(Stage &stage) { *(volatile unsigned *)&stage.rank.flags[STANDS] = 1; }
inline bool ended(Stage &stage) { return *(volatile unsigned *)&stage.rank.flags[ENDED] != 0; }
inline uint8_t *spare(Stage &stage) {
    return reinterpret_cast<uint8_t *>(stage.rank.source) + SPARE;
}

inline void copies_behind(Stage &stage) {
    Rank &rank = stage.rank;
    TRY_CUDA(cudaStreamWaitEvent(stage.others[0], stage.ended, 0));
    for (cudaStream_t stream : {stage.stream, stage.others[0]})
        for (int i = 0; i < 4; i++)
            TRY_CUDA(cudaMemcpyAsync(stage.pinned, spare(stage), COPY_BYTES,
                                     cudaMemcpyDeviceToHost, stream));
    stands(stage);
}

// A launch blocks when the stream's queue is full, so the kernel is told before.
inline void kernels_behind(Stage &stage) {
    Rank &rank = stage.rank;
    stands(stage);
    for (int i = 0; i < 3000; i++) fill<<<1, 32, 0, stage.stream>>>(spare(stage), 64, 1);
    TRY_CUDA(cudaGetLastError());
}

inline void pageable_behind(Stage &stage) {
    Rank &rank = stage.rank;
    stands(stage);
    TRY_CUDA(cudaMemcpyAsync(stage.pageable, spare(stage), COPY_BYTES, cudaMemcpyDeviceToHost,
                             stage.stream));
    TRY_CUDA(cudaMemcpyAsync(spare(stage), stage.pageable, COPY_BYTES, cudaMemcpyHostToDevice,
                             stage.stream));
}

inline void legacy_copy(Stage &stage) {
    Rank &rank = stage.rank;
    stands(stage);
    TRY_CUDA(cudaMemcpy(stage.pinned, spare(stage), COPY_BYTES, cudaMemcpyDeviceToHost));
}

inline void device_synchronize(Stage &stage) {
    Rank &rank = stage.rank;
    stands(stage);
    TRY_CUDA(cudaDeviceSynchronize());
}

inline void device_malloc(Stage &stage) {
    Rank &rank = stage.rank;
    void *memory = nullptr;
    stands(stage);
    TRY_CUDA(cudaMalloc(&memory, 256 * MIB));
}

inline void host_alloc(Stage &stage) {
    Rank &rank = stage.rank;
    void *memory = nullptr;
    stands(stage);
    TRY_CUDA(cudaHostAlloc(&memory, 256 * MIB, cudaHostAllocDefault));
}

inline void streams_wait(Stage &stage) {
    Rank &rank = stage.rank;
    for (cudaStream_t stream : stage.others) {
        TRY_CUDA(cudaStreamWaitEvent(stream, stage.ended, 0));
        fill<<<1, 32, 0, stream>>>(spare(stage), 64, 1);
    }
    TRY_CUDA(cudaGetLastError());
    stands(stage);
}

inline void device_free(Stage &stage) {
    Rank &rank = stage.rank;
    stands(stage);
    TRY_CUDA(cudaFree(stage.freed));
}

// A driver call of ours outside the relaxed mode would spoil this capture.
inline void capture(Stage &stage) {
    Rank &rank = stage.rank;
    cudaGraph_t graph = nullptr;
    TRY_CUDA(cudaStreamBeginCapture(stage.others[0], cudaStreamCaptureModeGlobal));
    fill<<<1, 32, 0, stage.others[0]>>>(spare(stage), 64, 1);
    stands(stage);
    while (!ended(stage)) usleep(200);
    TRY_CUDA(cudaStreamEndCapture(stage.others[0], &graph));
}

inline void kernel_behind(Stage &stage) {
    Rank &rank = stage.rank;
    fill<<<1, 32, 0, stage.stream>>>(spare(stage), 64, 1);
    TRY_CUDA(cudaGetLastError());
    stands(stage);
}

inline void peer_copy_behind(Stage &stage) {
    Rank &rank = stage.rank;
    TRY_CUDA(cudaMemcpyPeerAsync(stage.remote, other(rank), spare(stage), rank.me, COPY_BYTES,
                                 stage.stream));
    stands(stage);
}

constexpr Hazard HAZARDS[] = {
    // name, what stands, own, one connection, may block
    {"D2H copies behind", copies_behind, false, false, false},
    {"3,000 kernels behind", kernels_behind, false, false, false},
    {"pageable copies behind", pageable_behind, false, false, false},
    {"memcpy, legacy stream", legacy_copy, false, false, true},
    {"cudaDeviceSynchronize", device_synchronize, false, false, false},
    {"cudaMalloc", device_malloc, false, false, false},
    {"cudaHostAlloc", host_alloc, false, false, false},
    {"16 streams wait", streams_wait, false, false, false},
    {"cudaFree", device_free, false, false, true},
    {"capture in global mode", capture, false, false, false},
    {"1 connection, kernel", kernel_behind, false, true, false},
    {"1 connection, P2P copy", peer_copy_behind, false, true, true},
    {"own put, SMs held, 16 wait", streams_wait, true, false, false},
};

// All that a hazard uses is made here: making it later would be a hazard too.
inline void make_stage(Stage &stage) {
    Rank &rank = stage.rank;
    TRY_CUDA(cudaSetDevice(other(rank)));
    TRY_CUDA(cudaMalloc(&stage.remote, COPY_BYTES));
    TRY_CUDA(cudaSetDevice(rank.me));
    cudaError_t enabled = cudaDeviceEnablePeerAccess(other(rank), 0);
    if (enabled != cudaErrorPeerAccessAlreadyEnabled) TRY_CUDA(enabled);
    cudaGetLastError();
    TRY_CUDA(cudaStreamCreate(&stage.stream));
    for (cudaStream_t &stream : stage.others)
        TRY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY_CUDA(cudaEventCreateWithFlags(&stage.ended, cudaEventDisableTiming));
    TRY_CUDA(cudaHostAlloc(&stage.pinned, COPY_BYTES, cudaHostAllocDefault));
    stage.pageable = static_cast<char *>(calloc(1, COPY_BYTES));
    TRY_CUDA(cudaMalloc(&stage.freed, 256 * MIB));
    TRY_CUDA(cudaMalloc(&stage.words, 256));
    TRY_CUDA(cudaMemset(stage.words, 0, 256));
    cudaFuncAttributes loaded;
    TRY_CUDA(cudaFuncGetAttributes(&loaded, late_step));
    TRY_CUDA(cudaFuncGetAttributes(&loaded, hazard_step));
    TRY_CUDA(cudaDeviceSynchronize());
}

// Right data after the kernel gave up: the driver was blocked. Otherwise nothing came at all.
inline void judge(Rank &rank, const Hazard &hazard, const Report &first, double seconds) {
    int at = rank.case_now;
    const Report &late = *rank.report;
    bool right = late.wrong == 0 && late.expired == 0 && first.wrong == 0;
    bool in_time = first.expired == 0;
    rank.shared->outcome[rank.me][at] =
        right && (in_time || hazard.may_block) ? OK : FAILED;
    snprintf(rank.shared->said[rank.me][at], sizeof rank.shared->said[0][0],
             "%s, hazard %.0f ms (%llu wrong)",
             !right ? "wrong in the end" : in_time ? "in time" : "blocked until the kernel ended",
             seconds * 1e3, first.wrong + late.wrong);
}

inline int rank_hazard(Shared *shared, int me, int at) {
    const Hazard &hazard = HAZARDS[at];
    if (hazard.one_connection) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    Rank rank = {};
    rank.me = me;
    rank.shared = shared;
    rank.case_now = at;
    set_up(rank);
    Stage stage = {rank};
    make_stage(stage);
    int peer = hazard.own ? me : other(rank);
    Step step = begin_step(rank, peer, FROM, TO, HAZARD_BYTES, HAZARD_BYTES);
    shared->at[me] = at;
    meet(shared);
    int blocks = hazard.own ? 2 * rank.multiprocessors : 1;
    hazard_step<<<blocks, 1024, 0, stage.stream>>>(step, rank.flags, stage.words,
                                                   stage.words + 32);
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaEventRecord(stage.ended, stage.stream));
    double begun = seconds_now(), seconds = 0;
    std::thread second([&] {
        cudaSetDevice(me);
        hazard.stand(stage);
        seconds = seconds_now() - begun;
    });
    while (!ended(stage)) usleep(200);  // a call of CUDA here would be a hazard of its own
    second.join();
    TRY_CUDA(cudaDeviceSynchronize());
    Report first = *rank.report;
    memset(rank.report, 0, sizeof(Report));
    late_step<<<1, 1024, 0, stage.stream>>>(step);
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(stage.stream));
    judge(rank, hazard, first, seconds);
    meet(shared);
    _exit(0);
}
