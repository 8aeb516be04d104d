// Two ranks put bytes out of their GPU's memory into the other's window, which is memory of a GPU
// too, each put with a signal: the time of one put, from its call until the other rank has seen its
// signal; every byte is verified. Each rank takes a GPU of its own where there are two.
//
//     gpu_put_signal                 forks its two ranks
//     mpirun -n 2 gpu_put_signal     or srun, or torchrun --no-python
//
// Compiles by itself, with gpu.h, ranks.h, example.h and launch.h beside it; CUDA is not needed for
// that:
//     cc gpu_put_signal.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

enum { ROUNDS_MAX = 1000, SIGNAL = 0, BARRIER = 0 };
#define BYTES_MAX ((size_t)16 << 20)

static const size_t sizes[] = {8, 4096, 65536, (size_t)1 << 20, BYTES_MAX};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

// Memory of the GPU in three parts, which are the window: what this rank puts, and two where the
// other's bytes come in turns, so that one is verified while the next is on its way.
static uint64_t gpu_data;
static xtie_memory *memory;
static xtie_window *window;
static unsigned char *scratch;
static uint64_t seen;  // how far this rank's signal has grown

static size_t place_of(int round)
{
    return BYTES_MAX * (size_t)(1 + round % 2);
}

static uint64_t put_signal(size_t bytes, int round)
{
    uint64_t ticket = 0;
    uint32_t other = (uint32_t)(1 - launch.rank);
    xtie_transfer transfer = {(void *)(uintptr_t)gpu_data, bytes, memory, place_of(round), other,
                              0};
    xtie_add signal = {SIGNAL, 0, 1};
    int result;
    while ((result = xtie_window_put_signal(group, window, &transfer, &signal, &ticket)) ==
           XTIE_AGAIN)
        CHECK(xtie_group_progress(group));
    check(result, "xtie_window_put_signal");
    return ticket;
}

// Waits for the other rank's next put: its bytes are in the GPU's memory then.
static void wait_next(void)
{
    seen++;
    CHECK(xtie_window_wait_signal(group, window, SIGNAL, XTIE_COMPARE_GREATER_EQUAL, seen, 0));
}

static void bytes_fill(size_t bytes, uint64_t number)
{
    fill(scratch, bytes, number);
    gpu_upload(gpu_data, scratch, bytes);
}

static void bytes_verify(size_t bytes, int round, uint64_t number)
{
    gpu_download(scratch, gpu_data + place_of(round), bytes);
    verify(scratch, bytes, number);
}

// Each put is answered by one; half of that time is one put's.
static double round_trip(size_t bytes, int round)
{
    bytes_fill(bytes, (uint64_t)round);
    double start = now_us();
    uint64_t ticket = put_signal(bytes, round);
    wait_next();
    double us = (now_us() - start) / 2;
    bytes_verify(bytes, round, (uint64_t)round + 1000000);
    CHECK(xtie_group_wait_local(group, ticket, 0));
    return us;
}

static void answer(size_t bytes, int round)
{
    wait_next();
    uint64_t ticket = put_signal(bytes, round);
    bytes_verify(bytes, round, (uint64_t)round);
    CHECK(xtie_group_wait_local(group, ticket, 0));
    bytes_fill(bytes, (uint64_t)round + 1000001);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void size_run(size_t bytes)
{
    static double times[ROUNDS_MAX];
    int rounds = bytes <= 65536 ? ROUNDS_MAX : 20;
    bytes_fill(bytes, 1000000);
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
    for (int round = 0; round < rounds; round++) {
        if (launch.rank == 0)
            times[round] = round_trip(bytes, round);
        else
            answer(bytes, round);
    }
    if (launch.rank != 0)
        return;
    qsort(times, (size_t)rounds, sizeof times[0], compare);
    double us = times[rounds / 2];
    printf("%10zu %12.2f %12.3f\n", bytes, us, (double)bytes / us / 1000);
    fflush(stdout);
}

static void run(void)
{
    if (launch.size != 2)
        fail("two ranks are wanted");
    gpu_use(launch.local_rank);
    group_open(1, 1, 0);
    gpu_check(gpu.alloc(&gpu_data, 3 * BYTES_MAX), "cuMemAlloc");
    scratch = gpu_host(BYTES_MAX);
    void *start = (void *)(uintptr_t)gpu_data;
    CHECK(xtie_memory_register(endpoint, start, 3 * BYTES_MAX, XTIE_MEMORY_CUDA, &memory));
    CHECK(xtie_window_register(group, start, 3 * BYTES_MAX, memory, 0, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    fprintf(stderr, "rank %d uses GPU %d\n", launch.rank, gpu.device);
    if (launch.rank == 0)
        printf("put and signal, GPU to GPU\n%10s %12s %12s\n", "bytes", "p50 us", "GB/s");
    for (int size = 0; size < SIZES; size++)
        size_run(sizes[size]);
    if (launch.rank == 0)
        printf("every byte verified\n");
    fflush(stdout);
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
    window_free(window);
    CHECK(xtie_memory_deregister(endpoint, memory));
    group_close();
    gpu_check(gpu.free(gpu_data), "cuMemFree");
    gpu_check(gpu.host_free(scratch), "cuMemFreeHost");
}

int main(void)
{
    gpu_load();  // where there is no driver, it is said once; what it has does not outlive a fork
    return run_ranks(2, run);
}
