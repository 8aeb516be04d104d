// Two ranks whose kernels put bytes into each other's window, each put with a signal, and wait for
// the other's: the host only launches. Then a kernel puts with a counter, and waits until its
// source may be written again. Every word is verified. Each rank takes a GPU of its own where there
// are two.
//
//     gpu_kernel_put                 forks its two ranks
//     mpirun -n 2 gpu_kernel_put     or srun, or torchrun --no-python
//
//     flags=$(pkg-config --cflags --libs --static crosstie | sed s/-Wl,/-Xlinker=/g)
//     nvcc -std=c++17 -arch=native gpu_kernel_put.cu $flags
#include "crosstie_device.cuh"
#include "gpu.h"

enum { ROUNDS = 1000, WORDS = 512, SIGNAL = 0, COUNTER = 0, BARRIER = 0 };
constexpr uint64_t BYTES = WORDS * sizeof(uint64_t);

// The window: what this rank puts, then where the other's words come.
__global__ void exchange(const xtie_device_view *view, uint32_t peer, uint64_t *report)
{
    crosstie::window w(view);
    crosstie::block all;
    auto *mine = static_cast<uint64_t *>(w.data()), *theirs = mine + WORDS;
    crosstie::transfer put{peer, BYTES, w, 0, BYTES};
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned at = threadIdx.x; at < WORDS; at += blockDim.x)
            mine[at] = round << 32 | (w.rank() + 1) << 16 | at;
        // all threads have written: the block's call covers that
        crosstie::result code = w.put_signal_counter(all, put, {SIGNAL, 1}, {COUNTER, 1});
        if (code == crosstie::OK)
            code = w.wait_signal(all, SIGNAL, crosstie::GREATER_EQUAL, 2 * round - 1);
        for (unsigned at = threadIdx.x; at < WORDS; at += blockDim.x) {
            uint64_t seen = static_cast<volatile uint64_t *>(theirs)[at];
            if (seen != (round << 32 | (peer + 1) << 16 | at)) report[1] = round;
        }
        // the words may be written again here, and there once the other has read
        if (code == crosstie::OK) code = w.wait_counter(all, COUNTER, crosstie::EQUAL, round);
        if (code == crosstie::OK) code = w.signal(all, peer, {SIGNAL, 1});
        if (code == crosstie::OK)
            code = w.wait_signal(all, SIGNAL, crosstie::GREATER_EQUAL, 2 * round);
        if (code != crosstie::OK) {
            report[0] = code;
            return;
        }
    }
    report[2] = ROUNDS;
}

static void cuda_check(cudaError_t error)
{
    if (error != cudaSuccess)
        fail(cudaGetErrorString(error));
}

static void device_open(void)
{
    xtie_group_device_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.context = &launch;
    config.gather = launch_group_gather;
    CHECK(xtie_group_device_open(group, &config));
}

static void run(void)
{
    if (launch.size != 2)
        fail("two ranks are wanted");
    gpu_use(launch.local_rank);
    group_open(1, 1, 1);
    uint64_t *data = NULL;
    uint64_t *report = (uint64_t *)gpu_host(4096);
    cuda_check(cudaMalloc((void **)&data, 2 * BYTES));
    xtie_memory *memory = NULL;
    xtie_window *window = NULL;
    const xtie_device_view *view = NULL;
    CHECK(xtie_memory_register(endpoint, data, 2 * BYTES, XTIE_MEMORY_CUDA, &memory));
    CHECK(xtie_window_register(group, data, 2 * BYTES, memory, 0, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    device_open();
    CHECK(xtie_device_window(group, window, &view));
    double start = now_us();
    exchange<<<1, 256>>>(view, (uint32_t)(1 - launch.rank), report);
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    double us = (now_us() - start) / ROUNDS;
    if (report[0] != 0 || report[1] != 0 || report[2] != ROUNDS) {
        fprintf(stderr, "rank %d: result %llu, wrong words in round %llu\n", launch.rank,
                (unsigned long long)report[0], (unsigned long long)report[1]);
        exit(1);
    }
    printf("rank %d on GPU %d: %d rounds, every word verified, %.1f us each\n", launch.rank,
           gpu.device, ROUNDS, us);
    fflush(stdout);
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
    window_free(window);
    CHECK(xtie_memory_deregister(endpoint, memory));
    group_close();
    cuda_check(cudaFree(data));
    gpu_check(gpu.host_free(report), "cuMemFreeHost");
}

int main(void)
{
    gpu_load();
    return run_ranks(2, run);
}
