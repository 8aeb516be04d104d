// The kernels of device.cu: each is one step of a case, and both ranks run it at once.
#pragma once
#include <crosstie.h>

#include "crosstie_device.cuh"

namespace port = XTIE_DEVICE_PORT;

// A part of a window: what a rank puts, then where the other's bytes arrive.
constexpr uint64_t PART_BYTES = 8 << 20, TARGET = 4 << 20;
constexpr uint64_t BLANK = 0xa5a5a5a5a5a5a5a5;
constexpr uint64_t SHORT_NS = 2000000;  // a timeout that is meant to pass
enum { SIGNALS = 8, COUNTERS = 4, SETS = 2 };

// What a kernel says, in pinned host memory.
struct Report {
    uint64_t line, is, wanted;  // of the first value that is wrong
    uint64_t told;              // by the kernel to the host
    uint64_t go;                // by the host to the kernel
    uint64_t ns[4];
};

struct Step {
    const xtie_device_view *view, *read_only, *broken;
    uint32_t me, peer;
    Report *report;
    uint64_t seed;  // of a case; each rank's is its own
    uint64_t from, to, bytes, times;
};

XTIE_DEVICE void note(const Step &s, uint64_t line, uint64_t is, uint64_t wanted) {
    if (is == wanted || port::swap_if(&s.report->line, 0, line) != 0) return;
    port::store_relaxed_system(&s.report->is, is);
    port::store_relaxed_system(&s.report->wanted, wanted);
}
#define EXPECT(is, wanted) note(s, __LINE__, uint64_t(is), uint64_t(wanted))

XTIE_DEVICE uint64_t pattern(uint64_t seed, uint64_t word) {
    uint64_t x = seed + word * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
XTIE_DEVICE uint64_t seed_of(const Step &s, uint32_t rank) { return s.seed << 8 | (rank + 1); }
XTIE_DEVICE uint8_t byte_of(uint64_t word, uint64_t at) { return uint8_t(word >> at % 8 * 8); }

// This rank's part: the word that byte `at` is in.
XTIE_DEVICE uint64_t *word_at(const crosstie::window &w, uint64_t at) {
    return static_cast<uint64_t *>(w.data()) + at / 8;
}

// Fills what is put, and blanks where bytes arrive, 64 bytes beyond on either side.
__global__ void fill_step(Step s) {
    crosstie::window w(s.view);
    uint64_t step = uint64_t(blockDim.x) * 8;
    for (uint64_t at = s.from / 8 * 8 + threadIdx.x * 8; at < s.from + s.bytes; at += step)
        port::store_relaxed_system(word_at(w, at), pattern(seed_of(s, s.me), at / 8));
    for (uint64_t at = s.to - 64 + threadIdx.x * 8; at < s.to + s.bytes + 64; at += step)
        port::store_relaxed_system(word_at(w, at), BLANK);
}

// Compares what has come, and the 64 bytes beside it, by all threads of the block.
XTIE_DEVICE void expect_bytes(const Step &s, const crosstie::window &w, uint32_t whose) {
    uint64_t first = (s.to - 64) / 8 * 8, last = s.to + s.bytes + 64;
    for (uint64_t at = first + threadIdx.x * 8; at < last; at += uint64_t(blockDim.x) * 8) {
        uint64_t seen = port::load_relaxed_system(word_at(w, at)), wanted = 0;
        for (uint64_t i = at; i < at + 8; i++) {
            uint64_t from = s.from + (i - s.to);
            bool came = i >= s.to && i < s.to + s.bytes;
            uint64_t byte = byte_of(came ? pattern(seed_of(s, whose), from / 8) : BLANK, from);
            wanted |= (came ? byte : 0xa5) << i % 8 * 8;
        }
        EXPECT(seen, wanted);
    }
}

template <class Scope> XTIE_DEVICE void put_by(const Step &s, const crosstie::window &w, Scope scope) {
    crosstie::transfer all{s.peer, s.to, w, s.from, s.bytes};
    crosstie::ticket told;
    EXPECT(w.put_signal(scope, all, {1, 1}, &told), crosstie::OK);
    EXPECT(w.wait_signal(scope, 1, crosstie::EQUAL, 1), crosstie::OK);
    EXPECT(w.wait_local(scope, told), crosstie::OK);
    EXPECT(w.syndrome(told), 0);
}

// One put with a signal, by a thread, a warp or the block.
__global__ void put_step(Step s, int scope) {
    crosstie::window w(s.view);
    __syncthreads();
    if (scope == 0 && threadIdx.x == 0) put_by(s, w, crosstie::thread());
    if (scope == 1 && threadIdx.x < 32) put_by(s, w, crosstie::warp());
    if (scope == 2) put_by(s, w, crosstie::block());
    __syncthreads();
    expect_bytes(s, w, s.peer);
}

// A put whose end is awaited, then a signal: the bytes are there with it. Then gets of the same.
__global__ void ticket_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    if (threadIdx.x == 0) {
        crosstie::ticket told, none;
        EXPECT(w.wait_local(one, none), crosstie::OK);
        EXPECT(w.put(one, {s.peer, s.to, w, s.from, s.bytes}, &told), crosstie::OK);
        EXPECT(w.wait_local(one, told), crosstie::OK);
        EXPECT(w.test_local(told), crosstie::OK);
        EXPECT(w.signal(one, s.peer, {2, 1}), crosstie::OK);
        EXPECT(w.wait_signal(one, 2, crosstie::EQUAL, 1), crosstie::OK);
    }
    __syncthreads();
    expect_bytes(s, w, s.peer);
}

// A get, a signal and a flush by all threads of a scope.
template <class Scope>
XTIE_DEVICE void get_by(const Step &s, const crosstie::window &w, Scope scope) {
    crosstie::ticket told;
    EXPECT(w.get(scope, {s.peer, s.from, w, s.to, s.bytes}, &told), crosstie::OK);
    EXPECT(w.wait_local(scope, told), crosstie::OK);
    EXPECT(w.signal(scope, s.peer, {2, 1}), crosstie::OK);
    EXPECT(w.flush(scope, s.peer), crosstie::OK);
    EXPECT(w.wait_signal(scope, 2, crosstie::EQUAL, 1), crosstie::OK);
}

__global__ void get_step(Step s, int scope) {
    crosstie::window w(s.view);
    if (scope == 0 && threadIdx.x == 0) get_by(s, w, crosstie::thread());
    if (scope == 1 && threadIdx.x < 32) get_by(s, w, crosstie::warp());
    if (scope == 2) get_by(s, w, crosstie::block());
    __syncthreads();
    expect_bytes(s, w, s.peer);
}

// Puts, and a fenced signal behind them.
__global__ void fence_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    if (threadIdx.x == 0) {
        uint64_t each = s.bytes / 16;
        for (uint64_t at = 0; at < 16; at++)
            EXPECT(w.put(one, {s.peer, s.to + at * each, w, s.from + at * each, each}), 0);
        EXPECT(w.signal_with_fence(one, s.peer, {3, 7}), crosstie::OK);
        EXPECT(w.wait_signal(one, 3, crosstie::EQUAL, 7), crosstie::OK);
    }
    __syncthreads();
    expect_bytes(s, w, s.peer);
}

// Nothing to move: a put is a no-op that ends, and its signal and counter come.
__global__ void nothing_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    crosstie::transfer none{s.peer, PART_BYTES, w, PART_BYTES, 0};
    crosstie::ticket told;
    EXPECT(w.put(one, none, &told), crosstie::OK);
    EXPECT(w.wait_local(one, told), crosstie::OK);
    EXPECT(w.put_signal(one, none, {0, 3}), crosstie::OK);
    EXPECT(w.put_counter(one, none, {0, 5}), crosstie::OK);
    EXPECT(w.wait_signal(one, 0, crosstie::EQUAL, 3), crosstie::OK);
    EXPECT(w.wait_counter(one, 0, crosstie::EQUAL, 5), crosstie::OK);
}

// Counters: with a put, with put and signal, with a signal; one word does not touch another.
__global__ void counters_step(Step s) {
    crosstie::window w(s.view);
    crosstie::block all;
    crosstie::transfer eight{s.peer, s.to, w, s.from, 8};
    for (uint64_t at = 1; at <= s.times; at++) {
        EXPECT(w.put_counter(all, eight, {0, 1}), crosstie::OK);
        EXPECT(w.put_signal_counter(all, eight, {0, 2}, {1, 3}), crosstie::OK);
        EXPECT(w.signal_counter(all, s.peer, {1, 4}, {2, 5}), crosstie::OK);
        EXPECT(w.wait_counter(all, 2, crosstie::GREATER_EQUAL, 5 * at), crosstie::OK);
    }
    EXPECT(w.wait_counter(all, 0, crosstie::EQUAL, s.times), crosstie::OK);
    EXPECT(w.wait_counter(all, 1, crosstie::EQUAL, 3 * s.times), crosstie::OK);
    EXPECT(w.wait_counter(all, 2, crosstie::EQUAL, 5 * s.times), crosstie::OK);
    EXPECT(w.wait_signal(all, 0, crosstie::EQUAL, 2 * s.times), crosstie::OK);
    EXPECT(w.wait_signal(all, 1, crosstie::EQUAL, 4 * s.times), crosstie::OK);
    EXPECT(w.read_counter(3), 0);
    EXPECT(w.read_signal(2), 0);
}

// Six comparisons, by the host's names, of a signal and a counter that are 5, with 4, 5 and 6.
__global__ void compare_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    EXPECT(w.signal_counter(one, s.me, {4, 5}, {3, 5}), crosstie::OK);
    EXPECT(w.wait_counter(one, 3, crosstie::EQUAL, 5), crosstie::OK);
    EXPECT(w.read_signal(4), 5);
    const uint32_t hows[6] = {XTIE_COMPARE_EQUAL,         XTIE_COMPARE_NOT_EQUAL,
                              XTIE_COMPARE_GREATER,       XTIE_COMPARE_GREATER_EQUAL,
                              XTIE_COMPARE_LESS,          XTIE_COMPARE_LESS_EQUAL};
    const bool holds[6][3] = {{false, true, false}, {true, false, true}, {true, false, false},
                              {true, true, false},  {false, false, true}, {false, true, true}};
    for (uint32_t how = 0; how < 6; how++)
        for (uint32_t at = 0; at < 3; at++) {
            auto compared = static_cast<crosstie::comparison>(hows[how]);
            crosstie::result wanted = holds[how][at] ? crosstie::OK : crosstie::TIMEOUT;
            EXPECT(w.wait_signal(one, 4, compared, 4 + at, SHORT_NS), wanted);
            EXPECT(w.wait_counter(one, 3, compared, 4 + at, SHORT_NS), wanted);
        }
    EXPECT(w.wait_signal(one, 4, crosstie::comparison(0), 0), crosstie::ARGUMENT);
    EXPECT(w.wait_signal(one, 4, crosstie::comparison(7), 0), crosstie::ARGUMENT);
}

// Values at the ends of 64 bits; a wait that has timed out can be made again; resets.
__global__ void values_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    EXPECT(w.wait_signal(one, 5, crosstie::GREATER_EQUAL, 0), crosstie::OK);
    EXPECT(w.wait_signal(one, 5, crosstie::GREATER_EQUAL, 1, SHORT_NS), crosstie::TIMEOUT);
    EXPECT(w.signal(one, s.me, {5, ~uint64_t(0)}), crosstie::OK);
    EXPECT(w.wait_signal(one, 5, crosstie::EQUAL, ~uint64_t(0)), crosstie::OK);
    EXPECT(w.signal(one, s.me, {5, 2}), crosstie::OK);
    EXPECT(w.wait_signal(one, 5, crosstie::EQUAL, 1), crosstie::OK);
    for (uint64_t at = 1; at <= 5; at++) {
        EXPECT(w.reset_signal(5), crosstie::OK);
        EXPECT(w.reset_counter(1), crosstie::OK);
        EXPECT(w.wait_signal(one, 5, crosstie::NOT_EQUAL, 0, SHORT_NS / 10), crosstie::TIMEOUT);
        EXPECT(w.signal_counter(one, s.me, {5, at}, {1, at}), crosstie::OK);
        EXPECT(w.wait_counter(one, 1, crosstie::EQUAL, at), crosstie::OK);
        EXPECT(w.wait_signal(one, 5, crosstie::EQUAL, at), crosstie::OK);
    }
}

// What is out of range is refused, and changes nothing.
__global__ void arguments_step(Step s) {
    crosstie::window w(s.view), kept(s.read_only), no_set(s.view, SETS);
    crosstie::thread one;
    crosstie::ticket told;
    const crosstie::result no = crosstie::ARGUMENT;
    uint64_t end = PART_BYTES;
    EXPECT(w.put(one, {w.ranks(), 0, w, 0, 8}, &told), no);
    EXPECT(w.put(one, {s.peer, end - 7, w, 0, 8}, &told), no);
    EXPECT(w.put(one, {s.peer, 0, w, end - 7, 8}, &told), no);
    EXPECT(w.put(one, {s.peer, ~uint64_t(3), w, 0, 8}, &told), no);
    EXPECT(w.put(one, {s.peer, 8, w, 0, ~uint64_t(3)}, &told), no);
    EXPECT(kept.put(one, {s.peer, 0, w, 0, 8}, &told), no);
    EXPECT(w.put_signal(one, {s.peer, 0, w, 0, 8}, {SIGNALS, 1}, &told), no);
    EXPECT(w.put_counter(one, {s.peer, 0, w, 0, 8}, {COUNTERS, 1}, &told), no);
    EXPECT(w.signal(one, w.ranks(), {0, 1}, &told), no);
    EXPECT(w.signal_counter(one, s.peer, {SIGNALS, 1}, {0, 1}), no);
    EXPECT(w.wait_signal(one, SIGNALS, crosstie::EQUAL, 0), no);
    EXPECT(w.wait_counter(one, COUNTERS, crosstie::EQUAL, 0), no);
    EXPECT(w.flush(one, w.ranks()), no);
    EXPECT(w.reset_signal(SIGNALS), no);
    EXPECT(w.reset_counter(COUNTERS), no);
    EXPECT(w.read_signal(SIGNALS), 0);
    EXPECT(no_set.put(one, {s.peer, 0, w, 0, 8}), no);
    EXPECT(no_set.flush(one, s.peer), no);
    EXPECT(told.end, 0);
    EXPECT(w.bytes(s.peer), end);
    EXPECT(w.bytes(w.ranks()), 0);
    // reading a window that is only read works
    EXPECT(kept.get(one, {s.peer, 0, w, s.to, 8}, &told), crosstie::OK);
    EXPECT(w.wait_local(one, told), crosstie::OK);
    EXPECT(w.flush_all(one), crosstie::OK);
    for (uint32_t id = 0; id < SIGNALS; id++) EXPECT(w.read_signal(id), 0);
    for (uint32_t id = 0; id < COUNTERS; id++) EXPECT(w.read_counter(id), 0);
}

// Far more entries than a queue holds, by many threads, each with a word of its own. The last value
// must stand there: entries of one thread stay in order.
__global__ void many_step(Step s) {
    crosstie::window w(s.view, blockIdx.x % SETS);
    crosstie::thread one;
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    uint64_t at = 16 * thread, total = all * s.times;
    for (uint64_t i = 1; i <= s.times; i++) {
        // two words in turn: the one before may be on its way
        uint64_t from = s.from + at + i % 2 * 8;
        crosstie::ticket told;
        port::store_relaxed_system(word_at(w, from), thread << 32 | i);
        if (i % 8 == 0)
            EXPECT(w.put_signal_counter(one, {s.peer, s.to + at, w, from, 8}, {6, 1}, {0, 1},
                                        &told), crosstie::OK);
        else
            EXPECT(w.put_signal(one, {s.peer, s.to + at, w, from, 8}, {6, 1}, &told), crosstie::OK);
        EXPECT(w.wait_local(one, told), crosstie::OK);
    }
    EXPECT(w.wait_signal(one, 6, crosstie::GREATER_EQUAL, total), crosstie::OK);
    EXPECT(w.wait_counter(one, 0, crosstie::GREATER_EQUAL, all * (s.times / 8)), crosstie::OK);
    EXPECT(port::load_relaxed_system(word_at(w, s.to + at)), thread << 32 | s.times);
    EXPECT(w.read_signal(6), total);
}

// Several threads post and flush at once: each finds its own ended, counters included.
__global__ void flush_step(Step s) {
    crosstie::window w(s.view);
    crosstie::thread one;
    crosstie::ticket told;
    uint64_t at = 8 * threadIdx.x;
    for (uint64_t i = 0; i < s.times; i++)
        EXPECT(w.put_signal_counter(one, {s.peer, s.to + at, w, s.from + at, 8}, {7, 1}, {1, 1},
                                    &told), crosstie::OK);
    EXPECT(w.flush(one, s.peer), crosstie::OK);
    EXPECT(w.test_local(told), crosstie::OK);
    EXPECT(w.read_counter(1) >= s.times, 1);
    EXPECT(w.flush_all(crosstie::block()), crosstie::OK);
    EXPECT(w.read_counter(1), s.times * blockDim.x);
}

// Waits for a signal that only the host, or nobody, adds to; tells what became of it.
__global__ void await_step(Step s, uint64_t value, uint64_t timeout_ns) {
    crosstie::window w(s.view);
    port::store_relaxed_system(&s.report->told, 1);
    crosstie::result code =
        w.wait_signal(crosstie::thread(), 0, crosstie::GREATER_EQUAL, value, timeout_ns);
    port::store_relaxed_system(&s.report->told, 2 + code);
}

// A queue that has failed: `broken` says that parts are longer than they are.
__global__ void broken_step(Step s) {
    crosstie::window w(s.view), broken(s.broken, 1);
    crosstie::thread one;
    crosstie::ticket told, later;
    EXPECT(broken.put_counter(one, {s.peer, PART_BYTES, w, 0, 8}, {2, 1}, &told), crosstie::OK);
    EXPECT(broken.wait_local(one, told), crosstie::FAILED);
    EXPECT(broken.test_local(told), crosstie::FAILED);
    EXPECT(broken.syndrome(told), 0x13);
    EXPECT(broken.put_signal(one, {s.peer, s.to, w, 0, 8}, {0, 1}, &later), crosstie::OK);
    EXPECT(broken.wait_local(one, later), crosstie::FAILED);
    EXPECT(broken.syndrome(later), 0x05);
    EXPECT(broken.flush(one, s.peer), crosstie::FAILED);
    EXPECT(broken.wait_counter(one, 2, crosstie::NOT_EQUAL, 0, SHORT_NS), crosstie::TIMEOUT);
    // a ring of failed entries has no room
    crosstie::result code = crosstie::OK;
    for (uint32_t i = 0; i < 4 * 32768 && code == crosstie::OK; i++)
        code = broken.put(one, {s.peer, s.to, w, 0, 8});
    EXPECT(code, crosstie::FAILED);
    // other queues go on
    EXPECT(w.put_signal(one, {s.peer, s.to, w, s.from, 8}, {1, 1}), crosstie::OK);
    EXPECT(w.wait_signal(one, 1, crosstie::EQUAL, 1), crosstie::OK);
}

// Fills a queue that does not move: the last put times out and has posted nothing.
__global__ void room_step(Step s, uint64_t depth) {
    crosstie::window w(s.view);
    crosstie::thread one;
    crosstie::transfer eight{s.peer, s.to, w, s.from, 8};
    crosstie::result code;
    uint64_t posted = 0;
    do {
        code = w.put(one, eight, nullptr, SHORT_NS);
        posted += code == crosstie::OK;
    } while (code == crosstie::OK && posted <= depth);
    EXPECT(code, crosstie::TIMEOUT);
    EXPECT(posted, depth);
    EXPECT(w.put_signal_counter(one, eight, {0, 1}, {0, 1}, nullptr, SHORT_NS), crosstie::TIMEOUT);
    EXPECT(w.flush(one, s.peer, SHORT_NS), crosstie::TIMEOUT);
    port::store_relaxed_system(&s.report->told, 1);
    while (port::load_relaxed_system(&s.report->go) == 0) port::now_ns();
    EXPECT(w.flush(one, s.peer), crosstie::OK);
    EXPECT(w.put_signal_counter(one, eight, {0, 1}, {0, 1}), crosstie::OK);
    EXPECT(w.wait_counter(one, 0, crosstie::EQUAL, 1), crosstie::OK);
    EXPECT(w.wait_signal(one, 0, crosstie::EQUAL, 1), crosstie::OK);
}

// Round trips of one thread on either side: 0: put and signal, 1: signal. And by rank 0 alone: 2:
// signal and counter, 3: put, signal and counter, from the call until the counter has grown.
__global__ void trips_step(Step s, int way) {
    crosstie::window w(s.view);
    crosstie::thread one;
    crosstie::transfer eight{s.peer, s.to, w, s.from, 8};
    bool first = s.me == 0;
    uint64_t begun = port::now_ns();
    for (uint64_t i = 1; i <= s.times; i++) {
        if (way >= 2) {
            if (way == 2) EXPECT(w.signal_counter(one, s.peer, {0, 1}, {0, 1}), crosstie::OK);
            else EXPECT(w.put_signal_counter(one, eight, {0, 1}, {0, 1}), crosstie::OK);
            EXPECT(w.wait_counter(one, 0, crosstie::EQUAL, i), crosstie::OK);
            continue;
        }
        for (int half = 0; half < 2; half++)
            if ((half == 0) == first) {
                if (way == 0) EXPECT(w.put_signal(one, eight, {0, 1}), crosstie::OK);
                else EXPECT(w.signal(one, s.peer, {0, 1}), crosstie::OK);
            } else {
                EXPECT(w.wait_signal(one, 0, crosstie::GREATER_EQUAL, i), crosstie::OK);
            }
    }
    port::store_relaxed_system(&s.report->ns[way], port::now_ns() - begun);
}
