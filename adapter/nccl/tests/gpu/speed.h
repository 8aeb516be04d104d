// --speed: medians of round trips, and small entries per second.
#pragma once
#include "cases.h"

constexpr int ROUNDS = 2000;

// The median of what `kernel` noted in `cycles`, in microseconds.
template <class Launch>
double median_us(Rank &rank, Launch launch) {
    unsigned *cycles = nullptr;
    TRY_CUDA(cudaHostAlloc((void **)&cycles, ROUNDS * sizeof(unsigned), cudaHostAllocDefault));
    memset(cycles, 0, ROUNDS * sizeof(unsigned));
    Step step = begin_step(rank, other(rank), FROM, TO, 8, 4096);
    meet(rank.shared);
    launch(step, cycles);
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(rank.stream));
    if (rank.report->expired != 0) die(rank, "a round trip did not come back");
    meet(rank.shared);
    std::sort(cycles, cycles + ROUNDS);
    double us_of_cycle = rank.report->ns * 1e-3 / rank.report->cycles;
    double median = cycles[ROUNDS / 2] * us_of_cycle;
    TRY_CUDA(cudaFreeHost(cycles));
    return median;
}

template <Way way>
void tell_trip(Rank &rank, const char *name) {
    double us = median_us(rank, [&](const Step &step, unsigned *cycles) {
        trips_step<way><<<1, 1, 0, rank.stream>>>(step, ROUNDS, cycles);
    });
    if (rank.me == 0) tell(rank.shared, "  %-28s %8.2f us, half a round trip\n", name, us / 2);
}

// Rank 0 alone puts.
template <Way way>
void tell_rate(Rank &rank, const char *name, int contexts = 1) {
    constexpr int THREADS = 256, TIMES = 200;
    Step step = begin_step(rank, other(rank), FROM, TO, 8, 4096);
    meet(rank.shared);
    if (rank.me == 0) rate_step<way><<<contexts, THREADS, 0, rank.stream>>>(step, TIMES);
    end_step(rank);
    if (rank.me == 0)
        tell(rank.shared, "  %-28s %8.0f thousand a second\n", name,
             contexts * THREADS * TIMES * 1e6 / rank.report->ns);
}

inline int rank_speed(Shared *shared, int me) {
    Rank rank = {};
    rank.me = me;
    rank.shared = shared;
    set_up(rank);
    shared->at[me] = 0;
    tell_trip<PUT>(rank, "put 8 B + signal");
    tell_trip<VALUE>(rank, "putValue 8 B + signal");
    tell_trip<SIGNAL>(rank, "signal");
    double us = median_us(rank, [&](const Step &step, unsigned *cycles) {
        barriers_step<<<1, 32, 0, rank.stream>>>(step, ROUNDS, cycles);
    });
    if (me == 0) tell(shared, "  %-28s %8.2f us\n", "barrier of GIN, two ranks", us);
    shared->at[me] = 1;
    tell_rate<PUT>(rank, "put 8 B");
    tell_rate<VALUE>(rank, "putValue 8 B");
    tell_rate<SIGNAL>(rank, "signal");
    tell_rate<PUT>(rank, "put 8 B, all contexts", rank.dev.ginContextCount);
    tell_rate<VALUE>(rank, "putValue 8 B, all contexts", rank.dev.ginContextCount);
    tell_rate<SIGNAL>(rank, "signal, all contexts", rank.dev.ginContextCount);
    meet(shared);
    take_down(rank);
    return 0;
}
