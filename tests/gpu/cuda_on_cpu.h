// Lets a program with kernels be compiled by a C++ compiler and run on threads, over the test
// double of the CUDA driver: each thread of a kernel is one of the system's. Define XTIE_ON_CPU.
//
// Device addresses of the double have no access (tests/cuda-double/src/space.rs). So every access
// of a kernel goes through port::, which finds the double's own view of the memory.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#define XTIE_DEVICE inline
#define XTIE_DEVICE_PORT cpu
#define __global__
#define __device__
// One block at a time may use it.
#define __shared__ static

struct Place {
    unsigned x, y, z;
};
inline thread_local Place threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

// A place where threads meet, and the first of them may leave a value.
class Meeting {
  public:
    explicit Meeting(unsigned count) : count_(count) {}
    void meet() {
        std::unique_lock<std::mutex> lock(mutex_);
        unsigned round = round_;
        if (++come_ == count_) {
            come_ = 0;
            round_++;
            all_.notify_all();
        }
        all_.wait(lock, [&] { return round_ != round; });
    }
    uint32_t value = 0;

  private:
    std::mutex mutex_;
    std::condition_variable all_;
    unsigned count_, come_ = 0, round_ = 0;
};

inline thread_local Meeting *of_block, *of_warp;
inline thread_local bool is_first_of_warp;

inline uint64_t viewed(uint64_t address) {
    using View = uint64_t (*)(uint64_t);
    static View view = [] {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        void *found = library ? dlsym(library, "double_view") : nullptr;
        if (!found) abort();
        return reinterpret_cast<View>(found);
    }();
    return view(address);
}

// Where the processor reaches an address. The double does not use addresses again.
inline char *reached(const void *address) {
    static thread_local std::unordered_map<uint64_t, uint64_t> known;
    uint64_t at = reinterpret_cast<uint64_t>(address), page = at >> 12;
    auto found = known.find(page);
    if (found == known.end()) {
        uint64_t view = viewed(at);
        found = known.emplace(page, view ? view - at : 0).first;
    }
    return reinterpret_cast<char *>(at + found->second);
}

template <class T> T *as(const void *address) { return reinterpret_cast<T *>(reached(address)); }

inline uint64_t load(const uint64_t *at) { return *as<uint64_t>(at); }
inline uint32_t load(const uint32_t *at) { return *as<uint32_t>(at); }
inline uint64_t load_relaxed_gpu(const uint64_t *at) {
    return __atomic_load_n(as<uint64_t>(at), __ATOMIC_RELAXED);
}
inline uint64_t load_acquire_gpu(const uint64_t *at) {
    return __atomic_load_n(as<uint64_t>(at), __ATOMIC_ACQUIRE);
}
inline uint64_t load_relaxed_system(const uint64_t *at) { return load_relaxed_gpu(at); }
// What waits, waits with this: those who are waited for need the processor.
inline uint64_t load_acquire_system(const uint64_t *at) {
    std::this_thread::yield();
    return load_acquire_gpu(at);
}
inline void store_release_gpu(uint64_t *at, uint64_t value) {
    __atomic_store_n(as<uint64_t>(at), value, __ATOMIC_RELEASE);
}
inline void store_relaxed_system(uint64_t *at, uint64_t value) {
    __atomic_store_n(as<uint64_t>(at), value, __ATOMIC_RELAXED);
}
inline void store_release_system(uint64_t *at, uint64_t value) { store_release_gpu(at, value); }
inline void store_pair(uint64_t *at, uint64_t first, uint64_t second) {
    store_relaxed_system(at, first);
    std::this_thread::yield();  // a reader may look between the two
    store_relaxed_system(at + 1, second);
}
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline uint64_t swap_if(uint64_t *at, uint64_t expected, uint64_t value) {
    __atomic_compare_exchange_n(as<uint64_t>(at), &expected, value, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return expected;
}
inline void raise(uint64_t *at, uint64_t value) {
    uint64_t seen = load_relaxed_gpu(at);
    while (seen < value) {
        uint64_t before = swap_if(at, seen, value);
        if (before == seen) break;
        seen = before;
    }
}
inline uint64_t now_ns() {
    std::this_thread::yield();
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}
inline uint32_t swapped(uint32_t value) { return __builtin_bswap32(value); }

// A kernel that runs.
struct Launch {
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<Meeting>> meetings;
    std::atomic<unsigned> left{0};

    void start(unsigned blocks, unsigned count, std::function<void()> kernel) {
        left = blocks * count;
        for (unsigned block = 0; block < blocks; block++) {
            meetings.emplace_back(new Meeting(count));
            Meeting *of = meetings.back().get(), *warp = nullptr;
            for (unsigned at = 0; at < count; at++) {
                if (at % 32 == 0) {
                    meetings.emplace_back(new Meeting(count - at < 32 ? count - at : 32));
                    warp = meetings.back().get();
                }
                threads.emplace_back([=, this] {
                    threadIdx = {at, 0, 0};
                    blockIdx = {block, 0, 0};
                    blockDim = {count, 1, 1};
                    gridDim = {blocks, 1, 1};
                    of_block = of;
                    of_warp = warp;
                    is_first_of_warp = at % 32 == 0;
                    kernel();
                    left--;
                });
            }
        }
    }
    bool runs() const { return left != 0; }
    void end() {
        for (std::thread &thread : threads) thread.join();
        threads.clear();
        meetings.clear();
    }
};

}  // namespace cpu

inline void __syncthreads() { cpu::of_block->meet(); }
inline void __syncwarp(uint32_t) { cpu::of_warp->meet(); }
// From the first lane alone.
inline uint32_t __shfl_sync(uint32_t, uint32_t value, int) {
    if (cpu::is_first_of_warp) cpu::of_warp->value = value;
    cpu::of_warp->meet();
    uint32_t seen = cpu::of_warp->value;
    cpu::of_warp->meet();
    return seen;
}
