// What NCCL says when an entry cannot be executed, and when the peer has died.
#pragma once
#include "cases.h"

constexpr double ERROR_SECONDS_MAX = 10;
constexpr double ABORT_SECONDS_MAX = 15;

// The first error that ncclCommGetAsyncError says before the deadline, and when it came.
inline ncclResult_t async_error(Rank &rank, double since, double *after) {
    ncclResult_t said = ncclSuccess;
    while (seconds_now() - since < ERROR_SECONDS_MAX) {
        ncclResult_t result = ncclCommGetAsyncError(rank.comm, &said);
        if (result != ncclSuccess) said = result;
        if (said != ncclSuccess && said != ncclInProgress) break;
        said = ncclSuccess;
        usleep(500);
    }
    *after = seconds_now() - since;
    return said;
}

inline void tell_error(Rank &rank, ncclResult_t said, double after) {
    if (said == ncclSuccess)
        tell(rank.shared, "  ncclCommGetAsyncError: no error within %.0f s\n", ERROR_SECONDS_MAX);
    else
        tell(rank.shared, "  ncclCommGetAsyncError: %s (%d) after %.1f ms\n",
             ncclGetErrorString(said), said, after * 1e3);
}

// Rank 0 puts to a place behind the peer's window. Its communicator must say so, and the signal of
// data that did not come must not come either.
inline int rank_wrong(Shared *shared, int me, int at) {
    Rank rank = {};
    rank.me = me;
    rank.shared = shared;
    rank.case_now = at;
    set_up(rank);
    shared->at[me] = at;
    Step step = begin_step(rank, other(rank), FROM, TO, 64, 64);
    meet(shared);
    if (me == 0) {
        Step wrong = step;
        wrong.to = size_t(1) << 40;
        put_alone_step<<<1, 1, 0, rank.stream>>>(wrong);
        TRY_CUDA(cudaStreamSynchronize(rank.stream));
        double after = 0;
        ncclResult_t said = async_error(rank, seconds_now(), &after);
        if (said == ncclSuccess)
            die(rank, "ncclCommGetAsyncError: no error within %.0f s", ERROR_SECONDS_MAX);
        snprintf(shared->said[me][at], sizeof shared->said[me][at], "%s after %.1f ms",
                 ncclGetErrorString(said), after * 1e3);
    }
    meet(shared);
    read_step<<<1, 1, 0, rank.stream>>>(step);
    TRY_CUDA(cudaStreamSynchronize(rank.stream));
    if (rank.report->seen != 0) die(rank, "the signal came: %llu", rank.report->seen);
    shared->outcome[me][at] = OK;
    meet(shared);
    _exit(0);
}

// A kernel of each rank puts to the other, and rank 1 is killed meanwhile.
inline int rank_kill(Shared *shared, int me) {
    Rank rank = {};
    rank.me = me;
    rank.shared = shared;
    set_up(rank);
    shared->at[me] = 0;
    Step step = begin_step(rank, other(rank), FROM, TO, 64, 64);
    meet(shared);
    pester_step<<<1, 1, 0, rank.stream>>>(step, 120, rank.flags);
    TRY_CUDA(cudaGetLastError());
    while (shared->killed_at == 0 || me == 1) {
        shared->posted[me] = *(volatile unsigned *)&rank.report->posted;
        usleep(200);
    }
    double after = 0;
    ncclResult_t said = async_error(rank, shared->killed_at, &after);
    tell_error(rank, said, after);
    tell(shared, "  ncclGetLastError: %.300s\n", ncclGetLastError(rank.comm));
    *(volatile unsigned *)rank.flags = 1;
    cudaError_t ended = cudaErrorNotReady;
    double begun = seconds_now();
    while (ended == cudaErrorNotReady && seconds_now() - begun < ERROR_SECONDS_MAX)
        ended = cudaStreamQuery(rank.stream);
    tell(shared, "  kernel of the survivor, %u puts: %s after %.1f ms\n",
         *(volatile unsigned *)&rank.report->posted,
         ended == cudaErrorNotReady ? "still runs" : cudaGetErrorString(ended),
         (seconds_now() - begun) * 1e3);
    shared->outcome[0][0] = said != ncclSuccess && ended == cudaSuccess ? OK : FAILED;
    shared->aborting = 1;
    begun = seconds_now();
    ncclResult_t aborted = ncclCommAbort(rank.comm);
    tell(shared, "  ncclCommAbort: %s after %.1f ms\n", ncclGetErrorString(aborted),
         (seconds_now() - begun) * 1e3);
    shared->aborting = 2;
    _exit(0);
}

// Kills rank 1 in the middle, and waits for what rank 0 makes of it.
inline bool kill_a_peer(Shared *shared) {
    shared_reset(shared);
    Pair pair = start_pair([&](int me) { return rank_kill(shared, me); });
    double until = seconds_now() + SET_UP_SECONDS_MAX;
    while (std::min(shared->posted[0].load(), shared->posted[1].load()) < 20) {
        if (told_to_end || seconds_now() > until || reap(pair) || pair.ended[0] || pair.ended[1]) {
            tell(shared, "  the ranks did not begin: %s %s\n", shared->said[0][0],
                 shared->said[1][0]);
            end_pair(pair);
            return false;
        }
        usleep(200);
    }
    kill(pair.pid[1], SIGKILL);
    shared->killed_at = seconds_now();
    until = seconds_now() + 2 * ERROR_SECONDS_MAX + ABORT_SECONDS_MAX;
    double abort_until = 0;
    while (!reap(pair) && seconds_now() < until && !told_to_end) {
        if (shared->aborting == 1 && abort_until == 0)
            abort_until = seconds_now() + ABORT_SECONDS_MAX;
        if (abort_until != 0 && seconds_now() > abort_until) break;
        usleep(1000);
    }
    if (shared->aborting == 1)
        tell(shared, "  ncclCommAbort: has not returned within %.0f s\n", ABORT_SECONDS_MAX);
    if (shared->aborting == 0) tell(shared, "  the survivor came to no end\n");
    end_pair(pair);
    return shared->outcome[0][0] == OK;
}
