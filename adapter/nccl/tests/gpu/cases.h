// The cases: what each does on the host, around its kernels.
#pragma once
#include <functional>

#include "rank.h"

struct Case {
    std::string name;
    std::function<void(Rank &)> run;
};

constexpr size_t FROM = 4096;
constexpr size_t TO = 8192;
constexpr size_t MIB = 1 << 20;

inline int other(const Rank &rank) { return 1 - rank.me; }

// A put of `bytes`, at odd addresses where it is small.
inline void case_put(Rank &rank, int peer, size_t bytes) {
    size_t odd = bytes <= 4096 ? 3 : 0;
    Step step = begin_step(rank, peer, FROM + 2 * odd - (odd != 0), TO + odd, bytes, bytes);
    meet(rank.shared);
    put_step<<<1, 1024, 0, rank.stream>>>(step);
    end_step(rank);
}

inline void case_put_held(Rank &rank, int peer, size_t bytes) {
    unsigned *words = nullptr;
    TRY_CUDA(cudaMalloc(&words, 256));
    TRY_CUDA(cudaMemset(words, 0, 256));
    Step step = begin_step(rank, peer, FROM, TO, bytes, bytes);
    meet(rank.shared);
    put_held_step<<<2 * rank.multiprocessors, 1024, 0, rank.stream>>>(step, words, words + 32);
    end_step(rank);
    TRY_CUDA(cudaFree(words));
}

template <class T>
void case_value(Rank &rank) {
    Step step = begin_step(rank, other(rank), FROM, TO, sizeof(T), sizeof(T));
    meet(rank.shared);
    T value = T(pattern_word(seed_of(rank, rank.me), 0));
    value_step<T><<<1, 128, 0, rank.stream>>>(step, value);
    end_step(rank);
}

inline void case_signal(Rank &rank, uint64_t add, int times) {
    Step step = begin_step(rank, other(rank), FROM, TO, 0, 0);
    meet(rank.shared);
    signal_step<<<1, 32, 0, rank.stream>>>(step, add, times);
    end_step(rank);
}

#if NCCL_VERSION_CODE >= 22907
inline void case_va_signal(Rank &rank, uint64_t add) {
    constexpr size_t WORD = 512;
    TRY_CUDA(cudaMemset(rank.target + WORD, 0, 8));
    Step step = begin_step(rank, other(rank), FROM, TO, 4096, 4096);
    meet(rank.shared);
    va_signal_step<<<1, 256, 0, rank.stream>>>(step, WORD, add);
    end_step(rank);
}
#endif

inline void case_counter(Rank &rank, bool flush) {
    constexpr int TIMES = 100;
    constexpr size_t BYTES = 64;
    Step step = begin_step(rank, other(rank), FROM, TO, BYTES, TIMES * BYTES);
    meet(rank.shared);
    if (flush) flush_step<<<1, 128, 0, rank.stream>>>(step, TIMES);
    else counter_step<<<1, 128, 0, rank.stream>>>(step, TIMES);
    end_step(rank);
}

inline void case_barrier(Rank &rank) {
    Step step = begin_step(rank, other(rank), FROM, TO, 8, 8);
    meet(rank.shared);
    barrier_step<<<1, 64, 0, rank.stream>>>(step, 100);
    end_step(rank);
}

#if NCCL_VERSION_CODE >= 23003
inline void case_get(Rank &rank) {
    for (size_t bytes : {size_t(1), size_t(8), size_t(4096), MIB}) {
        Step step = begin_step(rank, other(rank), FROM, TO, bytes, bytes);
        meet(rank.shared);
        get_step<<<1, 1024, 0, rank.stream>>>(step);
        end_step(rank, std::to_string(bytes).append(" bytes").c_str());
    }
}
#endif

// Counts, sets to 0, and counts again: the second count must begin at 0.
inline void case_reset(Rank &rank, bool counter) {
    Step step = begin_step(rank, other(rank), FROM, TO, 64, 640);
    for (int round = 0; round < 2; round++) {
        meet(rank.shared);
        if (counter) counter_step<<<1, 128, 0, rank.stream>>>(step, 10);
        else signal_step<<<1, 32, 0, rank.stream>>>(step, 0, 10);
        end_step(rank, round == 0 ? "before" : "after the reset");
        reset_step<<<1, 1, 0, rank.stream>>>(step, false);
        end_step(rank, "resetSignal");
        reset_step<<<1, 1, 0, rank.stream>>>(step, true);
        end_step(rank, "resetCounter");
    }
}

inline void case_contexts(Rank &rank) {
    constexpr int TIMES = 7;
    constexpr size_t BYTES = 64;
    int contexts = rank.dev.ginContextCount;
    size_t all = size_t(contexts) * contexts * TIMES * (BYTES + GUARD_BYTES);
    Step step = begin_step(rank, other(rank), FROM, TO, BYTES, all);
    meet(rank.shared);
    contexts_step<<<contexts, 64, 0, rank.stream>>>(step, TIMES);
    end_step(rank);
}

inline void case_wrap(Rank &rank, bool inlined) {
    // 76,800 entries and more: 16-bit indices wrap too
    constexpr int BLOCKS = 4, THREADS = 64, TIMES = 150;
    Step step = begin_step(rank, other(rank), FROM, TO, 8, 8 * BLOCKS * THREADS);
    meet(rank.shared);
    wrap_step<<<BLOCKS, THREADS, 0, rank.stream>>>(step, TIMES, inlined);
    end_step(rank);
}

inline void add_puts(std::vector<Case> &cases) {
    struct Size {
        const char *name;
        size_t bytes;
    };
    const Size sizes[] = {{"0 B", 0},       {"1 B", 1},   {"8 B", 8}, {"4 KiB", 4096},
                          {"1 MiB", MIB},   {"1 GiB + 4099 B", 1024 * MIB + 4099}};
    const Size own[] = {{"8 B", 8}, {"64 KiB", 64 << 10}, {"64 MiB", 64 * MIB}};
    for (Size size : sizes)
        cases.push_back({std::string("put ") + size.name,
                         [=](Rank &rank) { case_put(rank, other(rank), size.bytes); }});
    for (Size size : own)
        cases.push_back({std::string("put to itself ") + size.name,
                         [=](Rank &rank) { case_put(rank, rank.me, size.bytes); }});
    cases.push_back({"put, all SMs held",
                     [](Rank &rank) { case_put_held(rank, other(rank), 64 << 10); }});
    cases.push_back({"put to itself, all SMs held",
                     [](Rank &rank) { case_put_held(rank, rank.me, 64 << 10); }});
}

// Those that a version does not have are in the table all the same.
inline std::vector<Case> all_cases() {
    std::vector<Case> cases;
    add_puts(cases);
    cases.push_back({"putValue 1 B", case_value<uint8_t>});
    cases.push_back({"putValue 2 B", case_value<uint16_t>});
    cases.push_back({"putValue 4 B", case_value<uint32_t>});
    cases.push_back({"putValue 8 B", case_value<uint64_t>});
    cases.push_back({"signal inc", [](Rank &rank) { case_signal(rank, 0, 10); }});
    cases.push_back({"signal add", [](Rank &rank) { case_signal(rank, (1ull << 33) + 5, 3); }});
#if NCCL_VERSION_CODE >= 22907
    cases.push_back({"VA signal inc", [](Rank &rank) { case_va_signal(rank, 0); }});
    cases.push_back({"VA signal add", [](Rank &rank) { case_va_signal(rank, 1000); }});
#else
    cases.push_back({"VA signal inc", nullptr});
    cases.push_back({"VA signal add", nullptr});
#endif
    cases.push_back({"counter", [](Rank &rank) { case_counter(rank, false); }});
    cases.push_back({"flush", [](Rank &rank) { case_counter(rank, true); }});
    cases.push_back({"barrier of GIN", case_barrier});
#if NCCL_VERSION_CODE >= 23003
    cases.push_back({"get 1 B to 1 MiB", case_get});
#else
    cases.push_back({"get 1 B to 1 MiB", nullptr});
#endif
    cases.push_back({"resetSignal", [](Rank &rank) { case_reset(rank, false); }});
    cases.push_back({"resetCounter", [](Rank &rank) { case_reset(rank, true); }});
    cases.push_back({"calls of each context", case_contexts});
    cases.push_back({"ring wraps, putValue", [](Rank &rank) { case_wrap(rank, true); }});
    cases.push_back({"ring wraps, put", [](Rank &rank) { case_wrap(rank, false); }});
    cases.push_back({"everything is taken down", take_down});
    return cases;
}

// A rank's part of the run: the cases from `next` on, and the end of everything.
inline int rank_cases(Shared *shared, int me, const std::vector<Case> &cases, size_t next) {
    Rank rank = {};
    rank.me = me;
    rank.shared = shared;
    rank.case_now = next;
    set_up(rank);
    for (size_t i = next; i < cases.size(); i++) {
        rank.case_now = i;
        shared->at[me] = i;
        meet(shared);
        if (cases[i].run) cases[i].run(rank);
        int &outcome = shared->outcome[me][i];
        if (outcome == OPEN) outcome = cases[i].run ? OK : SKIPPED;
    }
    return 0;
}
