// Two processes exchange messages: latency, bandwidth, message rate; every byte is verified.
//
//     pingpong                   forks its peer
//     pingpong listen FILE       one side of two programs; its handle goes to FILE, or - for stdout
//     pingpong connect FILE      the other side; FILE, or - for stdin
//     mpirun -n 2 pingpong       or srun, or torchrun --no-python: the two ranks are the two sides
//
// Compiles by itself, with launch.h beside it:
//     cc pingpong.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "launch.h"

#include <crosstie.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REQUESTS = 64, WINDOW = 48, BATCH_MAX = 1024, ROUNDS_MAX = 5000 };
#define ARENA_BYTES ((size_t)16 << 20)
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the messages, as under valgrind
#endif

// What both sides run, in this order.
static const struct {
    size_t bytes;
    int rounds, batches;
} steps[] = {
    {8, 5000, 20},      {64, 5000, 20},     {512, 5000, 20},           {4096, 2000, 10},
    {16384, 1000, 6},   {65536, 500, 4},    {(size_t)1 << 20, 60, 3},  {(size_t)4 << 20, 20, 3},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

XTIE_ENDPOINT_STORAGE(storage, 1, REQUESTS, 4);
static struct launch launch;  // under a launcher; else its size is 0
static xtie_endpoint *endpoint;
static xtie_connection *connection;
static xtie_memory *memory;
static unsigned char *source, *target;  // ARENA_BYTES each, both in `memory`
static double times_us[ROUNDS_MAX];  // of rounds, then of batches

// Ends the program when a call has failed, and says why.
static void check(int result, const char *call)
{
    if (result == XTIE_OK)
        return;
    char text[320] = "";
    if (endpoint != NULL && xtie_endpoint_error(endpoint, text, sizeof text) != XTIE_OK)
        text[0] = '\0';
    // it says all that the code says, and more
    fprintf(stderr, "%s: %s\n", call, text[0] != '\0' ? text : xtie_result_str(result));
    exit(1);
}
#define CHECK(call) check((call), #call)

static void fail(const char *what)
{
    fprintf(stderr, "pingpong: %s\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

// Lets others run when waiting takes long: there may be fewer cores than processes.
static void pause_now_and_then(unsigned *spins)
{
    if (++*spins % 4096 == 0)
        sched_yield();
}

// ---------------------------------------------------------------- messages

static xtie_request *send_start(const void *data, size_t bytes)
{
    xtie_request *request = NULL;
    CHECK(xtie_connection_isend(endpoint, connection, data, bytes, 0, memory, &request));
    while (request == NULL) {  // no room now
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_isend(endpoint, connection, data, bytes, 0, memory, &request));
    }
    return request;
}

static xtie_request *receive_start(void *data, size_t bytes)
{
    xtie_buffer buffer = {data, bytes, 0, 0, memory};
    xtie_request *request = NULL;
    CHECK(xtie_connection_irecv(endpoint, connection, &buffer, 1, &request));
    while (request == NULL) {
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_irecv(endpoint, connection, &buffer, 1, &request));
    }
    return request;
}

static void finish(xtie_request *request, size_t expected)
{
    int done = 0;
    size_t bytes = 0;
    unsigned spins = 0;
    for (;;) {
        CHECK(xtie_request_test(endpoint, request, &done, &bytes));
        if (done)
            break;
        pause_now_and_then(&spins);
    }
    if (bytes != expected)
        fail("a message has the wrong length");
}

// Each message of the run has words of its own.
static uint64_t word_of(uint64_t message, size_t at)
{
    return (message * 0x9e3779b97f4a7c15u) ^ (at * 0xff51afd7ed558ccdu);
}

static void fill(unsigned char *data, size_t bytes, uint64_t message)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = word_of(message, at);
        memcpy(data + at, &word, 8);
    }
}

static void verify(const unsigned char *data, size_t bytes, uint64_t message)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        if (word != word_of(message, at))
            fail("a message has the wrong bytes");
    }
}

// ---------------------------------------------------------------- back and forth

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sends, and times until the message is back: half of that is one way.
static void latency_measure(size_t bytes, int rounds, double *p50, double *p99)
{
    for (int round = 0; round < rounds; round++) {
        fill(source, bytes, (uint64_t)round);
        xtie_request *receive = receive_start(target, bytes);
        double start = now_us();
        xtie_request *send = send_start(source, bytes);
        finish(receive, bytes);
        times_us[round] = (now_us() - start) / 2;
        finish(send, bytes);
        verify(target, bytes, (uint64_t)round);
    }
    qsort(times_us, (size_t)rounds, sizeof times_us[0], compare);
    *p50 = times_us[rounds / 2];
    *p99 = times_us[(int)(rounds * 0.99)];
}

// Sends each message back out of the buffer it arrived in; the other side verifies it.
static void latency_echo(size_t bytes, int rounds)
{
    unsigned char *buffers[2] = {source, target};
    xtie_request *receive = receive_start(buffers[0], bytes);
    for (int round = 0; round < rounds; round++) {
        finish(receive, bytes);
        xtie_request *send = send_start(buffers[round % 2], bytes);
        if (round + 1 < rounds)
            receive = receive_start(buffers[(round + 1) % 2], bytes);
        finish(send, bytes);
    }
}

// ---------------------------------------------------------------- one way, many at a time

static int batch_count(size_t bytes)
{
    size_t count = ARENA_BYTES / bytes;
    return count < BATCH_MAX ? (int)count : BATCH_MAX;
}

static int part(int count) { return (count + PART - 1) / PART; }

// Sends batches; a batch ends when the receiver says that it is whole. Returns the time of the
// median one.
static double stream_send(size_t bytes, int batches)
{
    int count = batch_count(bytes);
    for (int batch = 0; batch < batches; batch++) {
        for (int at = 0; at < count; at++)
            fill(source + (size_t)at * bytes, bytes, (uint64_t)(batch * count + at));
        finish(receive_start(target, 0), 0);  // the receiver is ready
        xtie_request *whole = receive_start(target, 0);
        xtie_request *window[WINDOW];
        double start = now_us();
        for (int at = 0; at < count; at++) {
            if (at >= WINDOW)
                finish(window[at % WINDOW], bytes);
            window[at % WINDOW] = send_start(source + (size_t)at * bytes, bytes);
        }
        finish(whole, 0);
        times_us[batch] = now_us() - start;
        for (int at = count > WINDOW ? count - WINDOW : 0; at < count; at++)
            finish(window[at % WINDOW], bytes);
    }
    qsort(times_us, (size_t)batches, sizeof times_us[0], compare);
    return times_us[batches / 2];
}

static void stream_receive(size_t bytes, int batches)
{
    int count = batch_count(bytes);
    for (int batch = 0; batch < batches; batch++) {
        xtie_request *window[WINDOW];
        int posted = 0;
        for (; posted < count && posted < WINDOW; posted++)
            window[posted] = receive_start(target + (size_t)posted * bytes, bytes);
        finish(send_start(source, 0), 0);
        for (int at = 0; at < count; at++) {
            finish(window[at % WINDOW], bytes);
            if (posted < count) {
                window[at % WINDOW] = receive_start(target + (size_t)posted * bytes, bytes);
                posted++;
            }
        }
        finish(send_start(source, 0), 0);
        for (int at = 0; at < count; at++)
            verify(target + (size_t)at * bytes, bytes, (uint64_t)(batch * count + at));
    }
}

static void measure(void)
{
    printf("%10s %12s %12s %14s %14s\n", "bytes", "p50 us", "p99 us", "MB/s", "messages/s");
    for (int step = 0; step < STEPS; step++) {
        size_t bytes = steps[step].bytes;
        int rounds = part(steps[step].rounds), batches = part(steps[step].batches);
        double p50, p99;
        latency_measure(bytes, rounds, &p50, &p99);
        double us = stream_send(bytes, batches);
        double messages = (double)batch_count(bytes);
        printf("%10zu %12.2f %12.2f %14.0f %14.0f\n", bytes, p50, p99,
               messages * (double)bytes / us, messages / us * 1e6);
        fflush(stdout);
    }
    printf("every byte verified\n");
}

static void answer(void)
{
    for (int step = 0; step < STEPS; step++) {
        latency_echo(steps[step].bytes, part(steps[step].rounds));
        stream_receive(steps[step].bytes, part(steps[step].batches));
    }
}

// ---------------------------------------------------------------- set-up

static void endpoint_open(void)
{
    if (xtie_abi_version() != XTIE_ABI_VERSION)
        fail("the library does not fit the header");
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = REQUESTS;
    config.regions_max = 4;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    void *data = NULL;
    CHECK(xtie_memory_alloc(endpoint, 2 * ARENA_BYTES, &data, &memory));
    source = data;
    target = source + ARENA_BYTES;
}

static void endpoint_close(void)
{
    int result;
    while ((result = xtie_connection_close(endpoint, connection)) == XTIE_AGAIN)
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    check(result, "xtie_connection_close");
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
}

// The handle appears under its name when it is whole: the other side may be waiting for it.
static void handle_write(const xtie_handle *handle, const char *path)
{
    char temporary[4096];
    int to_stdout = strcmp(path, "-") == 0;
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = to_stdout ? stdout : fopen(temporary, "wb");
    if (file == NULL || fwrite(handle, sizeof *handle, 1, file) != 1 || fflush(file) != 0)
        fail("the handle could not be written");
    if (!to_stdout && (fclose(file) != 0 || rename(temporary, path) != 0))
        fail("the handle could not be written");
}

static void handle_read(xtie_handle *handle, const char *path)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : NULL;
    for (int tries = 0; file == NULL; tries++) {
        file = fopen(path, "rb");
        if (file == NULL && tries == 3000)
            fail("no handle came");
        if (file == NULL)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    if (fread(handle, sizeof *handle, 1, file) != 1)
        fail("the handle could not be read");
    if (file != stdin)
        fclose(file);
}

static void handle_give(const xtie_handle *handle, const char *path, int pipe_fd)
{
    xtie_handle both[2];
    if (launch.size == 2)
        launch_gather(&launch, handle, sizeof *handle, both);
    else if (path != NULL)
        handle_write(handle, path);
    else if (write(pipe_fd, handle, sizeof *handle) != (ssize_t)sizeof *handle)
        fail("the handle could not be written");
}

static void handle_take(xtie_handle *handle, const char *path, int pipe_fd)
{
    xtie_handle both[2], none = {0};
    if (launch.size == 2)
        launch_gather(&launch, &none, sizeof none, both);
    if (launch.size == 2)
        *handle = both[0];
    else if (path != NULL)
        handle_read(handle, path);
    else if (read(pipe_fd, handle, sizeof *handle) != (ssize_t)sizeof *handle)
        fail("the handle could not be read");
}

static void listen_side(const char *path, int pipe_fd)
{
    endpoint_open();
    xtie_handle handle;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    handle_give(&handle, path, pipe_fd);
    unsigned spins = 0;
    while (connection == NULL) {
        CHECK(xtie_listener_accept(endpoint, listener, &connection));
        launch_look(&launch);  // the other rank may have been refused
        pause_now_and_then(&spins);
    }
    CHECK(xtie_listener_close(endpoint, listener));
    answer();
    // Closing would cut the other side short: it says when it is done.
    finish(receive_start(target, 0), 0);
    endpoint_close();
}

static void connect_side(const char *path, int pipe_fd)
{
    endpoint_open();
    xtie_handle handle;
    handle_take(&handle, path, pipe_fd);
    xtie_attempt *attempt = NULL;
    unsigned spins = 0;
    while (connection == NULL) {
        CHECK(xtie_endpoint_connect(endpoint, &handle, &attempt, &connection));
        pause_now_and_then(&spins);
    }
    char peer[128];
    CHECK(xtie_connection_peer(endpoint, connection, peer, sizeof peer));
    printf("connected to %s\n", peer);
    measure();
    finish(send_start(source, 0), 0);
    endpoint_close();
}

static void launched(void)
{
    if (launch.size != 2 && launch.rank == 0)
        fail("two ranks are wanted");
    if (launch.size != 2)
        exit(1);  // rank 0 says why
    launch_meet(&launch);
    if (launch.rank == 0)
        listen_side(NULL, -1);
    else
        connect_side(NULL, -1);
    launch_end(&launch);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "listen") == 0) {
        listen_side(argv[2], -1);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "connect") == 0) {
        connect_side(argv[2], -1);
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: pingpong [listen FILE | connect FILE]\n");
        return 2;
    }
    if (launch_find(&launch)) {
        launched();
        return 0;
    }
    int ends[2];
    if (pipe(ends) != 0)
        fail("no pipe");
    pid_t parent = getpid();
    pid_t child = fork();  // before any endpoint is open: endpoints do not outlive a fork
    if (child < 0)
        fail("no process");
    if (child == 0) {
        // it ends with its parent, which may have ended before the call
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            _exit(1);
        listen_side(NULL, ends[1]);
        return 0;
    }
    close(ends[1]);
    connect_side(NULL, ends[0]);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the other process failed");
    return 0;
}
