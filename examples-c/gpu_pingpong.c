// Two processes exchange messages that lie in memory of GPUs, or one of them in memory of the host:
// latency and bandwidth; every byte is verified. Each process takes a GPU of its own where there
// are two.
//
//     gpu_pingpong               forks its peer
//     mpirun -n 2 gpu_pingpong   or srun, or torchrun --no-python
//
// Compiles by itself, with launch.h and gpu.h beside it; CUDA is not needed for that:
//     cc gpu_pingpong.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"
#include "launch.h"

#include <crosstie.h>

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

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
static struct launch launch;  // under a launcher; else its size is 0
static xtie_endpoint *endpoint;
static xtie_connection *connection;
static xtie_memory *host_memory, *gpu_memory;
static unsigned char *host_data;  // the first half is sent, the second received into
static uint64_t gpu_data;
static unsigned char *scratch;

static void check(int result, const char *call)
{
    if (result == XTIE_OK)
        return;
    char text[320] = "";
    if (endpoint != NULL && xtie_endpoint_error(endpoint, text, sizeof text) != XTIE_OK)
        text[0] = '\0';
    fprintf(stderr, "%s: %s\n", call, text[0] != '\0' ? text : xtie_result_str(result));
    exit(1);
}
#define CHECK(call) check((call), #call)

static void fail(const char *what)
{
    fprintf(stderr, "gpu_pingpong: %s\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

// ---------------------------------------------------------------- messages

static void *place(int on_gpu, size_t offset)
{
    return on_gpu ? (void *)(uintptr_t)(gpu_data + offset) : host_data + offset;
}

static xtie_request *send_start(int on_gpu, size_t bytes)
{
    xtie_memory *memory = on_gpu ? gpu_memory : host_memory;
    xtie_request *request = NULL;
    for (;;) {
        CHECK(xtie_connection_isend(endpoint, connection, place(on_gpu, 0), bytes, 0, memory,
                                    &request));
        if (request != NULL)
            return request;
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    }
}

static xtie_request *receive_start(int on_gpu, size_t bytes)
{
    xtie_memory *memory = on_gpu ? gpu_memory : host_memory;
    xtie_buffer buffer = {place(on_gpu, BYTES_MAX), bytes, 0, 0, memory};
    xtie_request *request = NULL;
    for (;;) {
        CHECK(xtie_connection_irecv(endpoint, connection, &buffer, 1, &request));
        if (request != NULL)
            return request;
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    }
}

static void finish(xtie_request *request, size_t expected)
{
    int done = 0;
    size_t bytes = 0;
    for (unsigned spins = 1;; spins++) {
        CHECK(xtie_request_test(endpoint, request, &done, &bytes));
        if (done)
            break;
        if (spins % 1024 == 0)
            sched_yield();
    }
    if (bytes != expected)
        fail("a message has the wrong length");
}

static uint64_t word_of(uint64_t message, size_t at)
{
    return (message * 0x9e3779b97f4a7c15u) ^ (at * 0xff51afd7ed558ccdu);
}

static void fill(int on_gpu, size_t bytes, uint64_t message)
{
    unsigned char *to = on_gpu ? scratch : host_data;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = word_of(message, at);
        memcpy(to + at, &word, 8);
    }
    if (on_gpu)
        gpu_upload(gpu_data, scratch, bytes);
}

static void verify(int on_gpu, size_t bytes, uint64_t message)
{
    const unsigned char *from = on_gpu ? scratch : host_data + BYTES_MAX;
    if (on_gpu)
        gpu_check(gpu.download(scratch, gpu_data + BYTES_MAX, bytes), "cuMemcpyDtoH");
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, from + at, 8);
        if (word != word_of(message, at)) {
            fprintf(stderr, "byte %zu of %zu, message %llu\n", at, bytes,
                    (unsigned long long)message);
            fail("a message has the wrong bytes");
        }
    }
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
        fill(mine, bytes, (uint64_t)round);
        xtie_request *receive = receive_start(mine, bytes);
        double start = now_us();
        xtie_request *send = send_start(mine, bytes);
        finish(receive, bytes);
        times[round] = (now_us() - start) / 2;
        finish(send, bytes);
        verify(mine, bytes, (uint64_t)round + 1000000);
    }
    qsort(times, (size_t)rounds, sizeof times[0], compare);
    return times[rounds / 2];
}

static void latency_answer(int mine, size_t bytes)
{
    int rounds = rounds_of(bytes);
    fill(mine, bytes, 1000000);
    for (int round = 0; round < rounds; round++) {
        xtie_request *receive = receive_start(mine, bytes);
        finish(receive, bytes);
        finish(send_start(mine, bytes), bytes);
        verify(mine, bytes, (uint64_t)round);
        fill(mine, bytes, (uint64_t)round + 1000001);
    }
}

// Many at a time, one way; MB/s.
static double bandwidth(int mine, size_t bytes)
{
    xtie_request *window[WINDOW];
    int rounds = rounds_of(bytes);
    fill(mine, bytes, 7);
    finish(receive_start(0, 8), 8);  // the other side is ready
    double start = now_us();
    for (int at = 0; at < rounds; at++) {
        if (at >= WINDOW)
            finish(window[at % WINDOW], bytes);
        window[at % WINDOW] = send_start(mine, bytes);
    }
    for (int at = rounds > WINDOW ? rounds - WINDOW : 0; at < rounds; at++)
        finish(window[at % WINDOW], bytes);
    return (double)bytes * rounds / (now_us() - start);
}

static void bandwidth_answer(int mine, size_t bytes)
{
    xtie_request *window[WINDOW];
    int rounds = rounds_of(bytes), posted = 0;
    for (; posted < rounds && posted < WINDOW; posted++)
        window[posted] = receive_start(mine, bytes);
    finish(send_start(0, 8), 8);
    for (int at = 0; at < rounds; at++) {
        finish(window[at % WINDOW], bytes);
        if (posted < rounds)
            window[posted++ % WINDOW] = receive_start(mine, bytes);
    }
    verify(mine, bytes, 7);
}

static void endpoint_open(int rank)
{
    int device = gpu_use(rank);
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = REQUESTS;
    config.regions_max = 4;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    gpu_check(gpu.alloc(&gpu_data, 2 * BYTES_MAX), "cuMemAlloc");
    host_data = malloc(2 * BYTES_MAX);
    scratch = malloc(BYTES_MAX);
    if (host_data == NULL || scratch == NULL)
        fail("no memory");
    CHECK(xtie_memory_register(endpoint, host_data, 2 * BYTES_MAX, XTIE_MEMORY_HOST, &host_memory));
    CHECK(xtie_memory_register(endpoint, (void *)(uintptr_t)gpu_data, 2 * BYTES_MAX,
                               XTIE_MEMORY_CUDA, &gpu_memory));
    fprintf(stderr, "side %d uses GPU %d\n", rank, device);
}

static void endpoint_close(void)
{
    int result;
    while ((result = xtie_connection_close(endpoint, connection)) == XTIE_AGAIN)
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    check(result, "xtie_connection_close");
    CHECK(xtie_memory_deregister(endpoint, gpu_memory));
    CHECK(xtie_memory_deregister(endpoint, host_memory));
    CHECK(xtie_endpoint_close(endpoint));
    gpu_check(gpu.free(gpu_data), "cuMemFree");
    free(host_data);
    free(scratch);
}

static void listen_side(int pipe_fd)
{
    endpoint_open(0);
    xtie_handle both[2];
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &both[0], &listener));
    if (launch.size == 2)
        launch_gather(&launch, &both[0], sizeof both[0], both);
    else if (write(pipe_fd, &both[0], sizeof both[0]) != (ssize_t)sizeof both[0])
        fail("the handle could not be written");
    while (connection == NULL)
        CHECK(xtie_listener_accept(endpoint, listener, &connection));
    CHECK(xtie_listener_close(endpoint, listener));
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < SIZES; size++) {
            latency_answer(ways[way].listener, sizes[size]);
            bandwidth_answer(ways[way].listener, sizes[size]);
        }
    // closing would cut the other side short: it says when it is done
    finish(receive_start(0, 8), 8);
    endpoint_close();
}

static void connect_side(int pipe_fd)
{
    endpoint_open(1);
    xtie_handle both[2];
    memset(both, 0, sizeof both);
    if (launch.size == 2)
        launch_gather(&launch, &both[1], sizeof both[1], both);
    else if (read(pipe_fd, &both[0], sizeof both[0]) != (ssize_t)sizeof both[0])
        fail("the handle could not be read");
    xtie_attempt *attempt = NULL;
    while (connection == NULL)
        CHECK(xtie_endpoint_connect(endpoint, &both[0], &attempt, &connection));
    printf("%-12s %10s %12s %12s\n", "way", "bytes", "p50 us", "GB/s");
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < SIZES; size++) {
            double us = latency(ways[way].connector, sizes[size]);
            double rate = bandwidth(ways[way].connector, sizes[size]);
            printf("%-12s %10zu %12.2f %12.3f\n", ways[way].name, sizes[size], us, rate / 1000);
            fflush(stdout);
        }
    finish(send_start(0, 8), 8);
    printf("every byte verified\n");
    endpoint_close();
}

int main(void)
{
    if (xtie_abi_version() != XTIE_ABI_VERSION)
        fail("the library does not fit the header");
    if (launch_find(&launch)) {
        if (launch.size != 2)
            fail("two ranks are wanted");
        launch_meet(&launch);
        if (launch.rank == 0)
            listen_side(-1);
        else
            connect_side(-1);
        launch_end(&launch);
        return 0;
    }
    int ends[2];
    if (pipe(ends) != 0)
        fail("no pipe");
    pid_t parent = getpid();
    pid_t child = fork();  // before the driver and any endpoint: neither outlives a fork
    if (child < 0)
        fail("no process");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(1);
        listen_side(ends[1]);
        return 0;
    }
    close(ends[1]);
    connect_side(ends[0]);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the other process failed");
    return 0;
}
