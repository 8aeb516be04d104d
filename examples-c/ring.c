// A ring: each rank sends to the next and receives from the one before; every byte is verified.
//
//     mpirun -n 4 ring           or srun, or torchrun --no-python: any launcher of launch.h
//     ring                       forks four ranks
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

enum { REQUESTS = 64, WINDOW = 16, ALONE = 4 };
#define BYTES_MAX ((size_t)1 << 20)
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the messages, as under valgrind
#endif

static const struct {
    size_t bytes;
    int messages;
} steps[] = {{8, 4000}, {4096, 1000}, {65536, 200}, {BYTES_MAX, 40}};
enum { STEPS = sizeof steps / sizeof steps[0] };

XTIE_ENDPOINT_STORAGE(storage, 2, REQUESTS, 4);
static xtie_connection *next, *previous;
static xtie_memory *memory;
static unsigned char *source, *target;  // WINDOW messages each

static void endpoint_open(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 2;
    config.requests_max = REQUESTS;
    config.regions_max = 4;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    void *data = NULL;
    CHECK(xtie_memory_alloc(endpoint, 2 * WINDOW * BYTES_MAX, &data, &memory));
    source = data;
    target = source + WINDOW * BYTES_MAX;
}

// Ends the program when another rank is gone: it may have been refused.
static void ranks_look(void)
{
    launch_look(&launch);
}

// Every rank shows its handle to all, connects to the next one, and accepts the one before.
static void ring_close(void)
{
    static xtie_handle handles[LAUNCH_RANKS_MAX];
    xtie_handle mine;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &mine, &listener));
    launch_gather(&launch, &mine, sizeof mine, handles);
    next = connect_one(&handles[(launch.rank + 1) % launch.size]);
    previous = accept_looking(listener, ranks_look);
    CHECK(xtie_listener_close(endpoint, listener));
}

// Messages of a rank differ from those of all others.
static uint64_t number_of(int rank, int step, int message)
{
    return ((uint64_t)rank << 40) + ((uint64_t)step << 32) + (uint64_t)message;
}

// Starts the send of a message, and room for the same message of the rank before.
static void start(int step, int message, xtie_request **send, xtie_request **receive)
{
    size_t bytes = steps[step].bytes, offset = (size_t)(message % WINDOW) * bytes;
    xtie_buffer buffer = {target + offset, bytes, 0, 0, memory};
    *receive = receive_start(previous, &buffer, 1);
    fill(source + offset, bytes, number_of(launch.rank, step, message));
    *send = send_start(next, source + offset, bytes, memory);
}

// Messages of one size around the ring; returns the time in microseconds.
static double round_run(int step)
{
    xtie_request *sends[WINDOW], *receives[WINDOW];
    int messages = (steps[step].messages + PART - 1) / PART, started = 0;
    int before = (launch.rank + launch.size - 1) % launch.size;
    size_t bytes = steps[step].bytes;
    launch_barrier(&launch);
    double began = now_us();
    for (int message = 0; message < messages; message++) {
        for (; started < messages && started < message + WINDOW; started++)
            start(step, started, &sends[started % WINDOW], &receives[started % WINDOW]);
        size_t size = 0;
        finish(receives[message % WINDOW], &size);
        if (size != bytes)
            fail("a message has the wrong length");
        verify(target + (size_t)(message % WINDOW) * bytes, bytes,
               number_of(before, step, message));
        finish(sends[message % WINDOW], NULL);
    }
    return (now_us() - began) / messages;
}

static void run(void)
{
    endpoint_open();
    launch_meet(&launch);
    ring_close();
    if (launch.rank == 0)
        printf("ring of %d\n%10s %16s %16s   each rank, verified; slowest\n", launch.size, "bytes",
               "us a message", "MB/s");
    for (int step = 0; step < STEPS; step++) {
        static double all[LAUNCH_RANKS_MAX];
        double us = round_run(step), slowest = 0;
        launch_gather(&launch, &us, sizeof us, all);
        for (int rank = 0; rank < launch.size; rank++)
            slowest = all[rank] > slowest ? all[rank] : slowest;
        if (launch.rank == 0)
            printf("%10zu %16.2f %16.0f\n", steps[step].bytes, slowest,
                   (double)steps[step].bytes / slowest);
        fflush(stdout);
    }
    if (launch.rank == 0)
        printf("every byte verified\n");
    fflush(stdout);
    launch_barrier(&launch);  // closing would cut short whoever is still at work
    connection_close(next);
    connection_close(previous);
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
    launch_end(&launch);
}

int main(int argc, char **argv)
{
    if (argc != 1) {
        fprintf(stderr, "usage: %s, alone or under mpirun, srun or torchrun\n", argv[0]);
        return 2;
    }
    return run_ranks(ALONE, run);
}
