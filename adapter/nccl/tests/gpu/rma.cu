// rma [--hosts] [--contexts N] [--signals N]: two ranks put into each other's windows and signal,
// by calls of the host (ncclPutSignal, ncclSignal, ncclWaitSignal of NCCL 2.29.2 and later), and
// compare every byte. The plugin's RMA tables carry it where the ranks are in two LSA teams.
//
// --hosts gives each rank a host of its own (NCCL_HOSTID, CROSSTIE_NODE_ID). --contexts and
// --signals say how many of them are used; the release may take only the first of each.
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

static const size_t SIZES[] = {1, 8, 2048, 2049, 65536, 1 << 20, (16 << 20) + 8, 128 << 20};
static const size_t WINDOW = 128 << 20;
static const int RANKS = 2, ROUNDS = 20;

struct Shared {
    ncclUniqueId id;
    volatile int is_ready;
};

#define TRY_NCCL(call)                                                               \
    do {                                                                             \
        ncclResult_t result_ = (call);                                               \
        if (result_ != ncclSuccess) {                                                \
            printf("FAILED: rank %d: %s: %s\n", me, #call, ncclGetErrorString(result_)); \
            return 1;                                                                \
        }                                                                            \
    } while (0)

#define TRY_CUDA(call)                                                                \
    do {                                                                              \
        cudaError_t error_ = (call);                                                  \
        if (error_ != cudaSuccess) {                                                  \
            printf("FAILED: rank %d: %s: %s\n", me, #call, cudaGetErrorString(error_)); \
            return 1;                                                                 \
        }                                                                             \
    } while (0)

static unsigned char byte_of(int rank, int round, size_t at) {
    return (unsigned char)(rank * 101 + round * 37 + at * 11 + at / 251);
}

struct Rank {
    int me, peer;
    ncclComm_t comm;
    cudaStream_t stream;
    char *source, *target;
    ncclWindow_t source_window, target_window;
    std::vector<unsigned char> bytes;
};

// One exchange of so many bytes by one context and signal; the wrong bytes, or -1.
static long exchange(Rank &rank, size_t bytes, int round, int context, int signal) {
    int me = rank.me;
    auto fail = [&](const char *what) {
        printf("FAILED: rank %d: %s of %zu bytes, context %d, signal %d: %s\n", me, what, bytes,
               context, signal, ncclGetLastError(rank.comm));
        return -1L;
    };
    for (size_t at = 0; at < bytes; at++) rank.bytes[at] = byte_of(me, round, at);
    if (cudaMemcpy(rank.source, rank.bytes.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess)
        return fail("a copy");
    // the peer puts only when this rank says that its window is free
    ncclWaitSignalDesc_t one = {1, rank.peer, signal, context};
    if (ncclSignal(rank.peer, signal, context, 0, rank.comm, rank.stream) != ncclSuccess)
        return fail("a signal");
    if (ncclWaitSignal(1, &one, rank.comm, rank.stream) != ncclSuccess) return fail("a wait");
    if (ncclPutSignal(rank.source, bytes, ncclInt8, rank.peer, rank.target_window, 0, signal,
                      context, 0, rank.comm, rank.stream) != ncclSuccess)
        return fail("a put");
    if (ncclWaitSignal(1, &one, rank.comm, rank.stream) != ncclSuccess) return fail("a wait");
    if (cudaStreamSynchronize(rank.stream) != cudaSuccess) return fail("the stream");
    if (cudaMemcpy(rank.bytes.data(), rank.target, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)
        return fail("a copy");
    long wrong = 0;
    for (size_t at = 0; at < bytes; at++)
        wrong += rank.bytes[at] != byte_of(rank.peer, round, at);
    return wrong;
}

// Every size by every context and signal; then the time of a put of 8 B that is answered.
static int play(Rank &rank, int contexts, int signals) {
    int me = rank.me, round = 0;
    for (size_t bytes : SIZES) {
        long wrong = 0;
        for (int context = 0; context < contexts; context++)
            for (int signal = 0; signal < signals; signal++) {
                long here = exchange(rank, bytes, round++, context, signal);
                if (here < 0) return 1;
                wrong += here;
            }
        printf("rank %d: %zu bytes, %d contexts, %d signals: %ld wrong\n", me, bytes, contexts,
               signals, wrong);
        if (wrong) return 1;
    }
    ncclWaitSignalDesc_t one = {1, rank.peer, 0, 0};
    auto begin = std::chrono::steady_clock::now();
    for (int at = 0; at < ROUNDS; at++) {
        if (me == 0)
            TRY_NCCL(ncclPutSignal(rank.source, 8, ncclInt8, rank.peer, rank.target_window, 0, 0,
                                   0, 0, rank.comm, rank.stream));
        TRY_NCCL(ncclWaitSignal(1, &one, rank.comm, rank.stream));
        if (me == 1)
            TRY_NCCL(ncclPutSignal(rank.source, 8, ncclInt8, rank.peer, rank.target_window, 0, 0,
                                   0, 0, rank.comm, rank.stream));
    }
    TRY_CUDA(cudaStreamSynchronize(rank.stream));
    std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    double each = time.count() / 2 / ROUNDS;
    if (me == 0) printf("put of 8 B with signal, half of both ways: %.1f us\n", each);
    return 0;
}

static int run(int me, Shared *shared, bool hosts, int contexts, int signals) {
    if (hosts) {
        const char *number = me ? "72" : "71";
        setenv("NCCL_HOSTID", number, 1);
        setenv("CROSSTIE_NODE_ID", number, 1);
    }
    int gpus = 0;
    TRY_CUDA(cudaGetDeviceCount(&gpus));
    TRY_CUDA(cudaSetDevice(me % gpus));
    if (me == 0) {
        TRY_NCCL(ncclGetUniqueId(&shared->id));
        __sync_synchronize();
        shared->is_ready = 1;
    }
    while (!shared->is_ready) usleep(1000);
    Rank rank = {};
    rank.me = me;
    rank.peer = 1 - me;
    rank.bytes.resize(WINDOW + 8);
    TRY_NCCL(ncclCommInitRank(&rank.comm, RANKS, shared->id, me));
    TRY_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    TRY_NCCL(ncclMemAlloc((void **)&rank.source, WINDOW));
    TRY_NCCL(ncclMemAlloc((void **)&rank.target, WINDOW));
    TRY_NCCL(ncclCommWindowRegister(rank.comm, rank.source, WINDOW, &rank.source_window,
                                    NCCL_WIN_COLL_SYMMETRIC));
    TRY_NCCL(ncclCommWindowRegister(rank.comm, rank.target, WINDOW, &rank.target_window,
                                    NCCL_WIN_COLL_SYMMETRIC));
    if (play(rank, contexts, signals)) return 1;
    TRY_NCCL(ncclCommWindowDeregister(rank.comm, rank.target_window));
    TRY_NCCL(ncclCommWindowDeregister(rank.comm, rank.source_window));
    TRY_NCCL(ncclMemFree(rank.target));
    TRY_NCCL(ncclMemFree(rank.source));
    TRY_NCCL(ncclCommDestroy(rank.comm));
    return 0;
}

int main(int count, char **arguments) {
    bool hosts = false;
    int contexts = 1, signals = 1;
    for (int i = 1; i < count; i++) {
        auto is = [&](const char *name) { return !strcmp(arguments[i], name); };
        if (is("--hosts")) hosts = true;
        else if (is("--contexts") && i + 1 < count) contexts = atoi(arguments[++i]);
        else if (is("--signals") && i + 1 < count) signals = atoi(arguments[++i]);
        else {
            fprintf(stderr, "usage: %s [--hosts] [--contexts N] [--signals N]\n", arguments[0]);
            return 2;
        }
    }
    int rights = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    Shared *shared = (Shared *)mmap(NULL, sizeof(Shared), rights, flags, -1, 0);
    if (shared == MAP_FAILED) return 2;
    pid_t children[RANKS];
    for (int me = 0; me < RANKS; me++) {
        children[me] = fork();
        if (children[me] == 0) {
            int failed = run(me, shared, hosts, contexts, signals);
            fflush(stdout);
            _exit(failed);
        }
    }
    int failed = 0;
    for (int me = 0; me < RANKS; me++) {
        int status = 0;
        waitpid(children[me], &status, 0);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    puts(failed ? "RMA: FAILED" : "RMA: ok");
    return failed;
}
