// Two processes exchange messages that lie in memory of GPUs, or one of them in memory of the host:
// latency and bandwidth; every byte is verified. Each process takes a GPU of its own where there
// are two.
//
//     gpu_pingpong               forks its peer
//     mpirun -n 2 gpu_pingpong   or srun, or torchrun --no-python
//
// Compiles by itself, with gpu.h, example.h and launch.h beside it; CUDA is not needed for that:
//     cc gpu_pingpong.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

enum { REQUESTS = 64, ROUNDS_MAX = 200, WINDOW = 16 };
#define BYTES_MAX ((size_t)64 << 20)

static const size_t sizes[] = {8, 4096, 65536, (size_t)1 << 20, (size_t)16 << 20, BYTES_MAX};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

// Where the connecting side's messages lie, and the listening side's.
static const struct {
    const char *name;
    int connector, listener;  // 1: in its GPU
} ways[] = {{"GPU to GPU", 1, 1}, {"host to GPU", 0, 1}, {"GPU to host", 1, 0}};
enum { WAYS = sizeof ways / sizeof ways[0] };

XTIE_ENDPOINT_STORAGE(storage, 1, REQUESTS, 4);
static xtie_memory *host_memory, *gpu_memory;
static unsigned char *host_data;  // the first half is sent, the second received into
static uint64_t gpu_data;
static unsigned char *scratch;

// ---------------------------------------------------------------- messages

static void *place(int on_gpu, size_t offset)
{
    return on_gpu ? (void *)(uintptr_t)(gpu_data + offset) : host_data + offset;
}

static xtie_request *outgoing(int on_gpu, size_t bytes)
{
    xtie_memory *memory = on_gpu ? gpu_memory : host_memory;
    return send_start(connection, place(on_gpu, 0), bytes, memory);
}

static xtie_request *incoming(int on_gpu, size_t bytes)
{
    xtie_memory *memory = on_gpu ? gpu_memory : host_memory;
    xtie_buffer buffer = {place(on_gpu, BYTES_MAX), bytes, 0, 0, memory};
    return receive_start(connection, &buffer, 1);
}

static void received(xtie_request *request, size_t expected)
{
    size_t bytes = 0;
    finish(request, &bytes);
    if (bytes != expected)
        fail("a message has the wrong length");
}

static void message_fill(int on_gpu, size_t bytes, uint64_t message)
{
    fill(on_gpu ? scratch : host_data, bytes, message);
    if (on_gpu)
        gpu_upload(gpu_data, scratch, bytes);
}

static void message_verify(int on_gpu, size_t bytes, uint64_t message)
{
    if (on_gpu)
        gpu_download(scratch, gpu_data + BYTES_MAX, bytes);
    verify(on_gpu ? scratch : host_data + BYTES_MAX, bytes, message);
}

// ---------------------------------------------------------------- the two sides

static int rounds_of(size_t bytes) { return bytes <= 65536 ? ROUNDS_MAX : 20; }

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Each message comes back; half of that time is one way.
static double latency(int mine, size_t bytes)
{
    static double times[ROUNDS_MAX];
    int rounds = rounds_of(bytes);
    for (int round = 0; round < rounds; round++) {
        message_fill(mine, bytes, (uint64_t)round);
        xtie_request *receive = incoming(mine, bytes);
        double start = now_us();
        xtie_request *send = outgoing(mine, bytes);
        received(receive, bytes);
        times[round] = (now_us() - start) / 2;
        finish(send, NULL);
        message_verify(mine, bytes, (uint64_t)round + 1000000);
    }
    qsort(times, (size_t)rounds, sizeof times[0], compare);
    return times[rounds / 2];
}

static void latency_answer(int mine, size_t bytes)
{
    int rounds = rounds_of(bytes);
    message_fill(mine, bytes, 1000000);
    for (int round = 0; round < rounds; round++) {
        xtie_request *receive = incoming(mine, bytes);
        received(receive, bytes);
        finish(outgoing(mine, bytes), NULL);
        message_verify(mine, bytes, (uint64_t)round);
        message_fill(mine, bytes, (uint64_t)round + 1000001);
    }
}

// Many at a time, one way; MB/s.
static double bandwidth(int mine, size_t bytes)
{
    xtie_request *window[WINDOW];
    int rounds = rounds_of(bytes);
    message_fill(mine, bytes, 7);
    received(incoming(0, 8), 8);  // the other side is ready
    double start = now_us();
    for (int at = 0; at < rounds; at++) {
        if (at >= WINDOW)
            finish(window[at % WINDOW], NULL);
        window[at % WINDOW] = outgoing(mine, bytes);
    }
    for (int at = rounds > WINDOW ? rounds - WINDOW : 0; at < rounds; at++)
        finish(window[at % WINDOW], NULL);
    return (double)bytes * rounds / (now_us() - start);
}

static void bandwidth_answer(int mine, size_t bytes)
{
    xtie_request *window[WINDOW];
    int rounds = rounds_of(bytes), posted = 0;
    for (; posted < rounds && posted < WINDOW; posted++)
        window[posted] = incoming(mine, bytes);
    finish(outgoing(0, 8), NULL);
    for (int at = 0; at < rounds; at++) {
        received(window[at % WINDOW], bytes);
        if (posted < rounds)
            window[posted++ % WINDOW] = incoming(mine, bytes);
    }
    message_verify(mine, bytes, 7);
}

static void open_side(int side)
{
    gpu_use(side);
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = REQUESTS;
    config.regions_max = 4;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    gpu_check(gpu.alloc(&gpu_data, 2 * BYTES_MAX), "cuMemAlloc");
    host_data = malloc(2 * BYTES_MAX);
    scratch = gpu_host(BYTES_MAX);
    if (host_data == NULL)
        fail("no memory");
    CHECK(xtie_memory_register(endpoint, host_data, 2 * BYTES_MAX, XTIE_MEMORY_HOST, &host_memory));
    CHECK(xtie_memory_register(endpoint, (void *)(uintptr_t)gpu_data, 2 * BYTES_MAX,
                               XTIE_MEMORY_CUDA, &gpu_memory));
    fprintf(stderr, "side %d uses GPU %d\n", side, gpu.device);
}

static void close_side(void)
{
    connection_close(connection);
    CHECK(xtie_memory_deregister(endpoint, gpu_memory));
    CHECK(xtie_memory_deregister(endpoint, host_memory));
    CHECK(xtie_endpoint_close(endpoint));
    gpu_check(gpu.free(gpu_data), "cuMemFree");
    gpu_check(gpu.host_free(scratch), "cuMemFreeHost");
    free(host_data);
}

static void answer_all(void)
{
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < SIZES; size++) {
            latency_answer(ways[way].listener, sizes[size]);
            bandwidth_answer(ways[way].listener, sizes[size]);
        }
    // closing would cut the other side short: it says when it is done
    received(incoming(0, 8), 8);
}

static void measure_all(void)
{
    printf("%-12s %10s %12s %12s\n", "way", "bytes", "p50 us", "GB/s");
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < SIZES; size++) {
            double us = latency(ways[way].connector, sizes[size]);
            double rate = bandwidth(ways[way].connector, sizes[size]);
            printf("%-12s %10zu %12.2f %12.3f\n", ways[way].name, sizes[size], us, rate / 1000);
            fflush(stdout);
        }
    finish(outgoing(0, 8), NULL);
    printf("every byte verified\n");
}

static void run_side(int side)
{
    if (side == 1)
        measure_all();
    else
        answer_all();
    close_side();
}

int main(void)
{
    return gpu_two_sides(open_side, run_side);
}
