// Two processes exchange messages in memory of GPUs while a kernel of the program spins on the
// legacy default stream of each GPU, from before the first message until after the last: messages
// go on, and every byte is verified. Each process takes a GPU of its own where there are two.
//
//     gpu_overlap                forks its peer
//     gpu_overlap late           the kernels begin after the first message
//     mpirun -n 2 gpu_overlap    or srun, or torchrun --no-python
//
// Compiles by itself, with gpu.h, example.h and launch.h beside it; CUDA is not needed for that:
//     cc gpu_overlap.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

#include <stdatomic.h>

enum { REQUESTS = 64, ROUNDS = 50 };
#define BYTES_MAX ((size_t)4 << 20)

static const size_t sizes[] = {8, 4096, 65536, (size_t)1 << 20, BYTES_MAX};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

XTIE_ENDPOINT_STORAGE(storage, 1, REQUESTS, 2);
static xtie_memory *memory;
static uint64_t data;  // the first half is sent, the second received into
static unsigned char *scratch;
static int is_late;

// ---------------------------------------------------------------- the kernel

// One thread, which counts until the host says that it is enough.
static const char program[] = ".version 7.0\n"
                              ".target sm_70\n"
                              ".address_size 64\n"
                              ".visible .entry spin(.param .u64 p_stop, .param .u64 p_beats)\n"
                              "{\n"
                              "    .reg .pred %p;\n"
                              "    .reg .b32 %r;\n"
                              "    .reg .b64 %stop, %beats, %n;\n"
                              "    ld.param.u64 %stop, [p_stop];\n"
                              "    ld.param.u64 %beats, [p_beats];\n"
                              "    mov.u64 %n, 0;\n"
                              "again:\n"
                              "    add.u64 %n, %n, 1;\n"
                              "    st.volatile.u64 [%beats], %n;\n"
                              "    ld.volatile.u32 %r, [%stop];\n"
                              "    setp.eq.u32 %p, %r, 0;\n"
                              "    @%p bra again;\n"
                              "    ret;\n"
                              "}\n";

// What the host and the kernel share; on a cache line each.
struct shared {
    _Alignas(64) _Atomic uint32_t stop;
    _Alignas(64) _Atomic uint64_t beats;
};
static struct shared *shared;
static int (*double_spin)(int, _Bool);  // of the test double of the driver, which runs no PTX

static uint64_t beats_now(void)
{
    return atomic_load(&shared->beats);
}

// Starts the kernel on the legacy stream, and waits until it runs.
static void kernel_start(void)
{
    static int (*load)(void **, const void *);
    static int (*function)(void **, void *, const char *);
    static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                unsigned, void *, void **, void **);
    shared = gpu_host(sizeof *shared);
    if (!gpu_find("cuModuleLoadData", &load)) {
        if (!gpu_find("double_spin", &double_spin))
            gpu_none("the driver has no cuModuleLoadData");
        gpu_check(double_spin(gpu.device, 1), "double_spin");
        return;
    }
    if (!gpu_find("cuModuleGetFunction", &function) || !gpu_find("cuLaunchKernel", &launch_kernel))
        gpu_none("the driver has no cuLaunchKernel");
    void *module = NULL, *kernel = NULL;
    gpu_check(load(&module, program), "cuModuleLoadData");
    gpu_check(function(&kernel, module, "spin"), "cuModuleGetFunction");
    // memory of cuMemHostAlloc has the same address on both sides
    void *stop = &shared->stop, *beats = &shared->beats, *arguments[] = {&stop, &beats};
    gpu_check(launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
    while (beats_now() == 0) {
        gpu_runs();
        pause_now_and_then();
    }
}

// Ends the kernel, which has run until now.
static void kernel_end(uint64_t beats_before)
{
    gpu_runs();
    if (double_spin == NULL && beats_now() == beats_before)
        fail("the kernel has not run meanwhile");
    atomic_store(&shared->stop, 1);
    if (double_spin != NULL)
        gpu_check(double_spin(gpu.device, 0), "double_spin");
    gpu_check(gpu.synchronize(), "cuCtxSynchronize");
}

// ---------------------------------------------------------------- messages

static xtie_request *outgoing(size_t bytes, uint64_t message)
{
    fill(scratch, bytes, message);
    gpu_upload(data, scratch, bytes);
    return send_start(connection, (void *)(uintptr_t)data, bytes, memory);
}

static xtie_request *incoming(size_t bytes)
{
    xtie_buffer buffer = {(void *)(uintptr_t)(data + BYTES_MAX), bytes, 0, 0, memory};
    return receive_start(connection, &buffer, 1);
}

static void received(xtie_request *request, size_t expected, uint64_t message)
{
    size_t bytes = 0;
    finish(request, &bytes);
    if (bytes != expected)
        fail("a message has the wrong length");
    gpu_download(scratch, data + BYTES_MAX, bytes);
    verify(scratch, bytes, message);
}

static void open_side(int side)
{
    gpu_use(side);
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = REQUESTS;
    config.regions_max = 2;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    gpu_check(gpu.alloc(&data, 2 * BYTES_MAX), "cuMemAlloc");
    scratch = gpu_host(BYTES_MAX);
    CHECK(xtie_memory_register(endpoint, (void *)(uintptr_t)data, 2 * BYTES_MAX, XTIE_MEMORY_CUDA,
                               &memory));
}

// A message comes back, changed.
static void exchange_one(int side, size_t bytes, uint64_t message)
{
    if (side == 1) {
        xtie_request *back = incoming(bytes), *sent = outgoing(bytes, message);
        received(back, bytes, message + 1);
        finish(sent, NULL);
    } else {
        received(incoming(bytes), bytes, message);
        finish(outgoing(bytes, message + 1), NULL);
    }
}

static unsigned exchange(int side)
{
    unsigned count = 0;
    for (int size = 0; size < SIZES; size++)
        for (int round = 0; round < ROUNDS; round++, count++) {
            exchange_one(side, sizes[size], 2 * count);
            gpu_runs();
        }
    return count;
}

static void run_side(int side)
{
    if (is_late)
        exchange_one(side, 8, 0);
    kernel_start();
    uint64_t beats = beats_now();
    unsigned count = exchange(side);
    kernel_end(beats);
    if (double_spin != NULL)
        printf("side %d: %u messages verified while the test double's kernel span\n", side, count);
    else
        printf("side %d: %u messages verified while a kernel of GPU %d counted to %llu\n", side,
               count, gpu.device, (unsigned long long)beats_now());
    fflush(stdout);
    connection_close(connection);
    CHECK(xtie_memory_deregister(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
    gpu_check(gpu.free(data), "cuMemFree");
    gpu_check(gpu.host_free(scratch), "cuMemFreeHost");
    gpu_check(gpu.host_free(shared), "cuMemFreeHost");
}

int main(int argc, char **argv)
{
    is_late = argc == 2 && strcmp(argv[1], "late") == 0;
    return gpu_two_sides(open_side, run_side);
}
