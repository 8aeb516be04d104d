// Both sides send to each other at once, many messages outstanding, received in groups of eight.
//
//     bandwidth                  forks its peer
//     bandwidth listen FILE      one side of two programs; its handle goes to FILE
//     bandwidth connect FILE     the other side
//     mpirun -n 2 bandwidth      or srun, or torchrun --no-python: the two ranks are the two sides
#define _POSIX_C_SOURCE 200809L
#include "example.h"
#include "launch.h"

enum { GROUP = XTIE_GROUP_MAX, GROUPS = 6, WINDOW = GROUP * GROUPS, REQUESTS = 64 };
#define BYTES_MAX ((size_t)256 << 10)
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the messages, as under valgrind
#endif

// What both sides run: bytes of a message, and how many groups of eight each side sends.
static const struct {
    size_t bytes;
    int groups;
} steps[] = {{8, 20000}, {512, 10000}, {4096, 4000}, {32768, 1000}, {BYTES_MAX, 200}};

XTIE_ENDPOINT_STORAGE(storage, 1, REQUESTS, 4);
static struct launch launch;  // under a launcher; else its size is 0
static xtie_connection *connection;
static xtie_memory *memory;
static unsigned char *source, *target;  // WINDOW messages each

// Offers room for one group: eight buffers with eight tags.
static xtie_request *group_receive(int group, size_t bytes)
{
    xtie_buffer buffers[GROUP];
    for (int at = 0; at < GROUP; at++) {
        unsigned char *place = target + (size_t)(group % GROUPS * GROUP + at) * bytes;
        buffers[at] = (xtie_buffer){place, bytes, at, 0, memory};
    }
    return receive_start(connection, buffers, GROUP);
}

static void group_verify(int group, size_t bytes, const size_t *sizes)
{
    for (int at = 0; at < GROUP; at++) {
        if (sizes[at] != bytes)
            fail("a message has the wrong length");
        size_t message = (size_t)group * GROUP + (size_t)at;
        verify(target + (size_t)(group % GROUPS * GROUP + at) * bytes, bytes, message);
    }
}

// Starts message number `message`, if there is room for it.
static xtie_request *message_send(int message, size_t bytes)
{
    unsigned char *place = source + (size_t)(message % WINDOW) * bytes;
    xtie_request *request = NULL;
    CHECK(xtie_connection_isend(endpoint, connection, place, bytes, message % GROUP, memory,
                                &request));
    return request;
}

// Sends and receives `groups` groups of messages; returns the time in microseconds. Filling and
// verifying are part of it, which costs large messages much of their speed.
static double exchange(size_t bytes, int groups)
{
    xtie_request *sends[WINDOW], *receives[GROUPS];
    int messages = groups * GROUP;
    int started = 0, sent = 0, posted = 0, received = 0;
    double start = now_us();
    while (sent < messages || received < groups) {
        while (posted < groups && posted < received + GROUPS) {
            receives[posted % GROUPS] = group_receive(posted, bytes);
            posted++;
        }
        while (started < messages && started < sent + WINDOW) {
            fill(source + (size_t)(started % WINDOW) * bytes, bytes, (uint64_t)started);
            if ((sends[started % WINDOW] = message_send(started, bytes)) == NULL)
                break;  // no room now
            started++;
        }
        int done = 0;
        if (sent < started) {
            CHECK(xtie_request_test(endpoint, sends[sent % WINDOW], &done, NULL));
            sent += done;
        }
        if (received < posted) {
            size_t sizes[GROUP];
            int whole = 0;
            CHECK(xtie_request_test(endpoint, receives[received % GROUPS], &whole, sizes));
            if (whole)
                group_verify(received++, bytes, sizes);
            done |= whole;
        }
        if (!done)
            pause_now_and_then();
    }
    return now_us() - start;
}

// Both sides are here: neither starts a step while the other is still in the last one.
static void meet(void)
{
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    xtie_request *receive = receive_start(connection, &nothing, 1);
    finish(send_start(connection, NULL, 0, NULL), NULL);
    finish(receive, NULL);
}

static void run(int prints)
{
    if (prints)
        printf("%10s %16s %16s   both directions, verified\n", "bytes", "MB/s", "messages/s");
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        size_t bytes = steps[step].bytes;
        int groups = (steps[step].groups + PART - 1) / PART;
        meet();
        double us = exchange(bytes, groups);
        double messages = 2.0 * groups * GROUP;
        if (prints)
            printf("%10zu %16.0f %16.0f\n", bytes, messages * (double)bytes / us,
                   messages / us * 1e6);
        fflush(stdout);
    }
    meet();
}

static void endpoint_open(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = REQUESTS;
    config.regions_max = 4;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    void *data = NULL;
    CHECK(xtie_memory_alloc(endpoint, 2 * WINDOW * BYTES_MAX, &data, &memory));
    source = data;
    target = source + WINDOW * BYTES_MAX;
}

static void close_all(void)
{
    connection_close(connection);
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
}

// The handle of the other rank.
static void handle_gathered(xtie_handle *handle)
{
    xtie_handle both[2];
    memset(handle, 0, sizeof *handle);
    launch_gather(&launch, handle, sizeof *handle, both);
    *handle = both[0];
}

// Ends the program when another rank is gone: it may have been refused.
static void ranks_look(void)
{
    launch_look(&launch);
}

static void listen_on(const char *path, int fd)
{
    endpoint_open();
    xtie_handle handle, both[2];
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    if (launch.size == 2)
        launch_gather(&launch, &handle, sizeof handle, both);
    else if (path != NULL)
        handle_write(&handle, path);
    else
        handle_send(&handle, fd);
    connection = accept_looking(listener, ranks_look);
    CHECK(xtie_listener_close(endpoint, listener));
    run(0);
    // The last message said that the other side has everything, and this one too.
    close_all();
}

static void connect_to(const char *path, int fd)
{
    endpoint_open();
    xtie_handle handle;
    if (launch.size == 2)
        handle_gathered(&handle);
    else if (path != NULL)
        handle_read(&handle, path);
    else
        handle_receive(&handle, fd);
    connection = connect_one(&handle);
    run(1);
    close_all();
}

static void listen_side(int fd) { listen_on(NULL, fd); }
static void connect_side(int fd) { connect_to(NULL, fd); }

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "listen") == 0) {
        listen_on(argv[2], -1);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "connect") == 0) {
        connect_to(argv[2], -1);
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "usage: bandwidth [listen FILE | connect FILE]\n");
        return 2;
    }
    if (launch_find(&launch)) {
        if (launch.size != 2 && launch.rank == 0)
            fail("two ranks are wanted");
        if (launch.size != 2)
            return 1;  // rank 0 says why
        launch_meet(&launch);
        if (launch.rank == 0)
            listen_on(NULL, -1);
        else
            connect_to(NULL, -1);
        launch_end(&launch);
        return 0;
    }
    return two_processes(listen_side, connect_side);
}
