// 1,000 connections between two processes: how long they take to make and to close, the memory that
// becomes resident with them, and a message each way on every one of them, verified.
#define _POSIX_C_SOURCE 200809L
#include "example.h"

enum { CONNECTIONS = 1000, REQUESTS = 32, BYTES = 64 };

XTIE_ENDPOINT_STORAGE(storage, CONNECTIONS, REQUESTS, 1);
static xtie_connection *connections[CONNECTIONS];
static xtie_request *sends[CONNECTIONS], *receives[CONNECTIONS];
static xtie_memory *memory;
static unsigned char *data;  // CONNECTIONS messages to send, then as many to receive
static double took_us[CONNECTIONS];

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts.
static double median(double *all, size_t count)
{
    qsort(all, count, sizeof *all, by_size);
    return all[count / 2];
}

// KiB of this process that are in memory, each page counted whoever else has it; 0: not known.
static long resident_kib(void)
{
    char line[200];
    long kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "Rss: %ld kB", &kib);
    if (file != NULL)
        fclose(file);
    return kib;
}

static void memory_print(const char *side, const char *what, long before, int count)
{
    printf("%s, %s, new memory: %.1f KiB\n", side, what, (double)(resident_kib() - before) / count);
}

static void endpoint_open(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = CONNECTIONS;
    config.requests_max = REQUESTS;
    config.regions_max = 1;
    // Little is outstanding on each of many connections: small rings do.
    config.send_ring_bytes = 8192;
    config.write_ring_bytes = 4096;
    config.eager_bytes_max = 1024;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    void *start = NULL;
    CHECK(xtie_memory_alloc(endpoint, (size_t)2 * CONNECTIONS * BYTES, &start, &memory));
    data = start;
}

static unsigned char *source_of(int at) { return data + (size_t)at * BYTES; }
static unsigned char *target_of(int at) { return data + (size_t)(CONNECTIONS + at) * BYTES; }

// A message each way on all connections at once. A connection's number is its message's: both sides
// count in the order of making, which is the order of accepting.
static void exchange(int side)
{
    for (int at = 0; at < CONNECTIONS; at++) {
        xtie_buffer buffer = {target_of(at), BYTES, 0, 0, memory};
        receives[at] = receive_start(connections[at], &buffer, 1);
    }
    for (int at = 0; at < CONNECTIONS; at++) {
        fill(source_of(at), BYTES, (uint64_t)(2 * at + side));
        sends[at] = send_start(connections[at], source_of(at), BYTES, memory);
    }
    for (int at = 0; at < CONNECTIONS; at++) {
        size_t bytes = 0;
        finish(receives[at], &bytes);
        if (bytes != BYTES)
            fail("a message has the wrong length");
        verify(target_of(at), BYTES, (uint64_t)(2 * at + 1 - side));
        finish(sends[at], NULL);
    }
}

// The last message of all: the other side has everything.
static void leave(void)
{
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    xtie_request *receive = receive_start(connections[0], &nothing, 1);
    finish(send_start(connections[0], NULL, 0, NULL), NULL);
    finish(receive, NULL);
    for (int at = 0; at < CONNECTIONS; at++) {
        double start = now_us();
        connection_close(connections[at]);
        took_us[at] = now_us() - start;
    }
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
}

static void listen_side(int fd)
{
    endpoint_open();
    xtie_handle handle;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    handle_send(&handle, fd);
    long before = resident_kib();
    for (int at = 0; at < CONNECTIONS; at++)
        connections[at] = accept_one(listener);
    CHECK(xtie_listener_close(endpoint, listener));
    exchange(0);
    memory_print("accepts", "each connection with its first message", before, CONNECTIONS);
    exchange(0);
    leave();
}

static void connect_side(int fd)
{
    long bare = resident_kib();
    endpoint_open();
    xtie_handle handle;
    handle_receive(&handle, fd);
    long before = 0;
    for (int at = 0; at < CONNECTIONS; at++) {
        double start = now_us();
        connections[at] = connect_one(&handle);
        took_us[at] = now_us() - start;
        if (at == 0) {
            memory_print("connects", "endpoint and first connection", bare, 1);
            before = resident_kib();
        }
    }
    printf("first connection: %.2f ms; ", took_us[0] / 1e3);
    printf("each of %d more, median: %.1f us\n", CONNECTIONS - 1,
           median(took_us + 1, CONNECTIONS - 1));
    for (int round = 1; round <= 2; round++) {
        double start = now_us();
        exchange(1);
        printf("round %d, a message each way on all: %.2f ms\n", round, (now_us() - start) / 1e3);
        if (round == 1)
            memory_print("connects", "each further one with its first message", before,
                         CONNECTIONS - 1);
    }
    leave();
    printf("close, median: %.1f us; storage %.1f MB a side\n", median(took_us, CONNECTIONS),
           sizeof storage / 1e6);
}

int main(void)
{
    return two_processes(listen_side, connect_side);
}
