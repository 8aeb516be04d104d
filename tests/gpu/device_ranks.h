// What device.cu and doca.cu share: two ranks with a group, windows and queues; cases and rows.
// A program defines cases_run.
#pragma once
#include "device_steps.cuh"
#include "gpu.h"

#ifdef XTIE_ON_CPU
static cpu::Launch launched;
#define LAUNCH(kernel, blocks, threads, ...) \
    launched.start(blocks, threads, [=] { kernel(__VA_ARGS__); })
static bool kernel_runs() { return launched.runs(); }
static void kernel_end() { launched.end(); }
constexpr unsigned WIDE = 64;
#else
static cudaStream_t stream;
#define LAUNCH(kernel, blocks, threads, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
static bool kernel_runs() { return cudaStreamQuery(stream) == cudaErrorNotReady; }
static void kernel_end() {
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error != cudaSuccess) fail(cudaGetErrorString(error));
}
constexpr unsigned WIDE = 256;
#endif

enum { DEPTH = 64 };
static xtie_memory *memory;
static xtie_window *window, *kept;
static const xtie_device_view *view, *kept_view;
static uint64_t data, spare;
static Report *report;
static uint64_t cases;
static int failures, is_apart, are_hosts;

static void cases_run(uint32_t peer);

// Runs until the kernel has ended; a rank serves the other meanwhile.
static void serve(void) {
    while (kernel_runs()) {
        CHECK(xtie_group_progress(group));
        sched_yield();
    }
    kernel_end();
}

static void meet(void) { CHECK(xtie_window_barrier(group, window, 0, 0)); }

// Words are zero at all ranks before the next case.
static void settle(void) {
    meet();
    for (uint32_t id = 0; id < SIGNALS; id++) CHECK(xtie_window_reset_signal(group, window, id));
    for (uint32_t id = 0; id < COUNTERS; id++) CHECK(xtie_window_reset_counter(group, window, id));
    memset(report, 0, sizeof *report);
    meet();
}

static Step begin(uint32_t peer, uint64_t from, uint64_t to, uint64_t bytes, uint64_t times) {
    settle();
    cases++;
    Step s = {view, kept_view, NULL, (uint32_t)launch.rank, peer, report, cases, from, to, bytes,
              times};
    LAUNCH(fill_step, 1, WIDE, s);
    serve();
    meet();
    return s;
}

// Ends a case: one row by the rank that has something to say.
static void row(const char *name, const char *where) {
    serve();
    if (report->line != 0) {
        failures++;
        printf("WRONG %s, %s, rank %d: device_steps.cuh:%llu is %llu, wanted %llu\n", name, where,
               launch.rank, (unsigned long long)report->line, (unsigned long long)report->is,
               (unsigned long long)report->wanted);
    } else if (launch.rank == 0) {
        printf("ok    %s, %s\n", name, where);
    }
    fflush(stdout);
    meet();
}

static void device_open(void) {
    xtie_group_device_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.sets = SETS;
    config.depth = DEPTH;
    config.timeout_ms = 60000;
    config.context = &launch;
    config.gather = launch_group_gather;
    const xtie_device_view *none = NULL;
    if (xtie_device_window(group, window, &none) != XTIE_ERR_NO_QUEUES) fail("a view too early");
    CHECK(xtie_group_device_open(group, &config));
    CHECK(xtie_group_device_open(group, &config));
    CHECK(xtie_device_window(group, window, &view));
    CHECK(xtie_device_window(group, kept, &kept_view));
    CHECK(xtie_device_window(group, window, &none));
    if (none != view) fail("another view of the same window");
}

static void run(void) {
    if (launch.size != 2) fail("two ranks are wanted");
    if (are_hosts) setenv("CROSSTIE_NODE_ID", launch.rank == 0 ? "1" : "2", 1);
    gpu_use(launch.local_rank);
    int count = 0;
    gpu_check(gpu.count(&count), "cuDeviceGetCount");
    is_apart = count > 1;
#ifndef XTIE_ON_CPU
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) fail("a stream");
#endif
    group_open(2, SIGNALS, COUNTERS);
    gpu_check(gpu.alloc(&data, 2 * PART_BYTES), "cuMemAlloc");
    gpu_check(gpu.alloc(&spare, 1 << 20), "cuMemAlloc");
    report = (Report *)gpu_host(sizeof(Report));
    void *start = (void *)(uintptr_t)data, *second = (void *)(uintptr_t)(data + PART_BYTES);
    CHECK(xtie_memory_register(endpoint, start, 2 * PART_BYTES, XTIE_MEMORY_CUDA, &memory));
    CHECK(xtie_window_register(group, start, PART_BYTES, memory, 0, &window));
    CHECK(xtie_window_register(group, second, PART_BYTES, memory, XTIE_WINDOW_READ_ONLY, &kept));
    CHECK(xtie_window_exchange(group, window, 0));
    CHECK(xtie_window_exchange(group, kept, 0));
    device_open();
    uint32_t peer = (uint32_t)(1 - launch.rank);
    if (launch.rank == 0) {
        printf("two ranks on %s%s\n", is_apart ? "two GPUs" : "one GPU",
               are_hosts ? ", as two hosts" : "");
    }
    cases_run(peer);
    meet();
    window_free(window);
    window_free(kept);
    CHECK(xtie_memory_deregister(endpoint, memory));
    group_close();
    gpu_check(gpu.free(data), "cuMemFree");
    gpu_check(gpu.free(spare), "cuMemFree");
    gpu_check(gpu.host_free(report), "cuMemFreeHost");
    if (failures != 0) exit(1);
}
