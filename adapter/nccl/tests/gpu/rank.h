// One rank: communicator, windows, device communicator, and how a step of a case runs.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ranks.h"
#include "steps.cuh"

// The largest put is a little more than 1 GiB, which is what one entry can carry.
constexpr size_t WINDOW_BYTES = (size_t(1) << 30) + (64 << 20);
// Signals and counters are used by one case each, and never again: all begin at 0.
constexpr int SIGNALS = 128;
constexpr int COUNTERS = 64;
constexpr int CONTEXTS = 4;

struct Rank {
    int me;
    Shared *shared;
    ncclComm_t comm;
    ncclDevComm dev;
    char *source, *target;
    ncclWindow_t source_window, target_window;
    ncclGinBarrierHandle_t barrier;
    Report *report;
    unsigned *flags;  // in pinned host memory, read by kernels
    cudaStream_t stream;
    int multiprocessors;
    int case_now;
    unsigned signals, counters;
};

// Ends the process. The parent prints what is said here beside the case.
__attribute__((format(printf, 2, 3))) inline void die(Rank &rank, const char *format, ...) {
    int at = std::max(rank.case_now, 0);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rank.shared->said[rank.me][at], sizeof rank.shared->said[0][0], format, arguments);
    va_end(arguments);
    rank.shared->outcome[rank.me][at] = FAILED;
    _exit(1);
}

#define TRY_NCCL(call)                                                                     \
    do {                                                                                   \
        ncclResult_t result_ = (call);                                                     \
        if (result_ != ncclSuccess) die(rank, "%s: %s", #call, ncclGetErrorString(result_)); \
    } while (0)

#define TRY_CUDA(call)                                                                     \
    do {                                                                                   \
        cudaError_t error_ = (call);                                                       \
        if (error_ != cudaSuccess) die(rank, "%s: %s", #call, cudaGetErrorString(error_)); \
    } while (0)

inline void make_memory(Rank &rank) {
    int gpus = 0;
    TRY_CUDA(cudaGetDeviceCount(&gpus));
    const int gpu = rank.me % gpus;
    TRY_CUDA(cudaSetDevice(gpu));
    TRY_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    TRY_CUDA(cudaDeviceGetAttribute(&rank.multiprocessors, cudaDevAttrMultiProcessorCount,
                                    gpu));
    TRY_CUDA(cudaHostAlloc((void **)&rank.report, sizeof(Report), cudaHostAllocDefault));
    TRY_CUDA(cudaHostAlloc((void **)&rank.flags, 64, cudaHostAllocDefault));
    memset(rank.report, 0, sizeof(Report));
    memset(rank.flags, 0, 64);
}

inline ncclDevCommRequirements_t requirements() {
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements_t need = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements_t need = {};
#endif
#if NCCL_VERSION_CODE >= 22907
    need.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
    need.ginForceEnable = true;
#endif
    need.ginContextCount = CONTEXTS;
    need.ginSignalCount = SIGNALS;
    need.ginCounterCount = COUNTERS;
    return need;
}

// Everything up to the first kernel.
inline void set_up(Rank &rank) {
    int version = 0;
    TRY_NCCL(ncclGetVersion(&version));
    if (version != NCCL_VERSION_CODE)
        die(rank, "NCCL %d is loaded, and %d was compiled for", version, NCCL_VERSION_CODE);
    make_memory(rank);
    ncclUniqueId id = unique_id(rank.shared, rank.me);
    TRY_NCCL(ncclCommInitRank(&rank.comm, RANKS, id, rank.me));
    TRY_NCCL(ncclMemAlloc((void **)&rank.source, WINDOW_BYTES));
    TRY_NCCL(ncclMemAlloc((void **)&rank.target, WINDOW_BYTES));
    TRY_NCCL(ncclCommWindowRegister(rank.comm, rank.source, WINDOW_BYTES, &rank.source_window,
                                    NCCL_WIN_COLL_SYMMETRIC));
    TRY_NCCL(ncclCommWindowRegister(rank.comm, rank.target, WINDOW_BYTES, &rank.target_window,
                                    NCCL_WIN_COLL_SYMMETRIC));
    ncclDevCommRequirements_t need = requirements();
    TRY_NCCL(ncclDevCommCreate(rank.comm, &need, &rank.dev));
    rank.shared->lsa_ranks = ncclTeamLsa(rank.comm).nRanks;
    rank.shared->contexts = rank.dev.ginContextCount;
    if (rank.dev.ginContextCount == 0) die(rank, "NCCL gave no GIN context");
    // Signals of ours. What ncclGinBarrierCreateRequirement asks for is dropped by
    // ncclDevCommCreate up to 2.30.7 at least, and the handle would then name signal 0.
    rank.barrier.signal0 = rank.signals;
    rank.signals += RANKS;
}

inline void take_down(Rank &rank) {
    TRY_NCCL(ncclDevCommDestroy(rank.comm, &rank.dev));
    TRY_NCCL(ncclCommWindowDeregister(rank.comm, rank.source_window));
    TRY_NCCL(ncclCommWindowDeregister(rank.comm, rank.target_window));
    TRY_NCCL(ncclMemFree(rank.source));
    TRY_NCCL(ncclMemFree(rank.target));
    TRY_NCCL(ncclCommDestroy(rank.comm));
}

// What a rank's source holds in a case, so that no case finds what another has left.
inline uint64_t seed_of(const Rank &rank, int whose) {
    return uint64_t(rank.case_now + 1) << 40 | uint64_t(whose + 1) << 32;
}

// A step between this rank and `peer`: the source is filled, the place of what arrives is blank,
// and signal and counter are new.
inline Step begin_step(Rank &rank, int peer, size_t from, size_t to, size_t bytes, size_t all) {
    uint8_t *source = reinterpret_cast<uint8_t *>(rank.source) + from;
    fill<<<256, 256, 0, rank.stream>>>(source, all, seed_of(rank, rank.me));
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaMemsetAsync(rank.target + to - GUARD_BYTES, GUARD, all + 2 * GUARD_BYTES,
                             rank.stream));
    TRY_CUDA(cudaStreamSynchronize(rank.stream));
    memset(rank.report, 0, sizeof(Report));
    memset(rank.flags, 0, 64);
    Step step = {};
    step.comm = rank.dev;
    step.source = rank.source_window;
    step.target = rank.target_window;
    step.peer = peer;
    step.from = from;
    step.to = to;
    step.bytes = bytes;
    step.seed = seed_of(rank, peer);
    step.signal = rank.signals++;
    step.counter = rank.counters++;
    step.barrier = rank.barrier;
    step.report = rank.report;
    if (rank.signals > SIGNALS || rank.counters > COUNTERS) die(rank, "no signal is left");
    return step;
}

// Waits for the kernel of this rank, then for the other rank. What was wrong is added to the case.
inline void end_step(Rank &rank, const char *what = "") {
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(rank.stream));
    const Report &report = *rank.report;
    char *said = rank.shared->said[rank.me][rank.case_now];
    size_t used = strlen(said), size = sizeof rank.shared->said[0][0];
    if (report.wrong != 0 || report.expired != 0) {
        rank.shared->outcome[rank.me][rank.case_now] = FAILED;
        snprintf(said + used, size - used, "%s%s%llu wrong, %u waits gave up (%llu of %llu); ",
                 what, *what ? ": " : "", report.wrong, report.expired, report.seen,
                 report.expected);
    }
    meet(rank.shared);
}
