// A receiver that sleeps: when there is nothing to do it waits in poll(2) instead of spinning. The
// sender leaves pauses, and the program says how much of the time the receiver really ran.
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#include <poll.h>

enum { MESSAGES = 40, BYTES = 4096, PAUSE_MS = 20, DEADLINE_MS = 20000 };

XTIE_ENDPOINT_STORAGE(storage, 1, 32, 1);
static xtie_connection *connection;
static xtie_memory *memory;
static void *data;

// Waits for a request without using the processor. The order matters: arm, and only then sleep.
static void finish_asleep(xtie_request *request, size_t *bytes)
{
    int fd = -1, done = 0;
    CHECK(xtie_endpoint_wait_fd(endpoint, &fd));
    for (;;) {
        CHECK(xtie_request_test(endpoint, request, &done, bytes));
        if (done)
            return;
        int armed = xtie_endpoint_wait_arm(endpoint);
        if (armed == XTIE_AGAIN)
            continue;  // something happened meanwhile
        check(armed, "xtie_endpoint_wait_arm");
        struct pollfd wait = {fd, POLLIN, 0};
        if (poll(&wait, 1, DEADLINE_MS) == 0)
            fail("nothing came in time");
    }
}

static void endpoint_open(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = 32;
    config.regions_max = 1;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    CHECK(xtie_memory_alloc(endpoint, BYTES, &data, &memory));
}

static void close_all(void)
{
    connection_close(connection);
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
}

static double processor_ms(void)
{
    return (double)clock() * 1e3 / CLOCKS_PER_SEC;
}

static void listen_side(int fd)
{
    endpoint_open();
    xtie_handle handle;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    handle_send(&handle, fd);
    connection = accept_one(listener);
    double start = now_us(), ran = processor_ms();
    for (int message = 0; message < MESSAGES; message++) {
        xtie_buffer buffer = {data, BYTES, 0, 0, memory};
        size_t bytes = 0;
        finish_asleep(receive_start(connection, &buffer, 1), &bytes);
        if (bytes != BYTES)
            fail("a message has the wrong length");
        verify(data, BYTES, (uint64_t)message);
    }
    double took = (now_us() - start) / 1e3;
    ran = processor_ms() - ran;
    printf("%d messages in %.0f ms, of which the receiver ran %.1f ms\n", MESSAGES, took, ran);
    fflush(stdout);
    finish(send_start(connection, NULL, 0, NULL), NULL);  // all is here
    // The sender closes first, so that this message is not cut off.
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    int done = 0, result = XTIE_OK;
    xtie_request *end = receive_start(connection, &nothing, 1);
    while (!done) {
        result = xtie_request_test(endpoint, end, &done, NULL);
        if (result != XTIE_OK && !done)
            check(result, "xtie_request_test");
    }
    if (result != XTIE_ERR_PEER_CLOSED)
        fail("the sender did not close the connection");
    close_all();
    if (ran > took / 2)
        fail("the receiver did not sleep");
}

static void connect_side(int fd)
{
    endpoint_open();
    xtie_handle handle;
    handle_receive(&handle, fd);
    connection = connect_one(&handle);
    for (int message = 0; message < MESSAGES; message++) {
        nanosleep(&(struct timespec){0, PAUSE_MS * 1000000}, NULL);
        fill(data, BYTES, (uint64_t)message);
        finish(send_start(connection, data, BYTES, memory), NULL);
    }
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    finish_asleep(receive_start(connection, &nothing, 1), NULL);
    close_all();
}

int main(void)
{
    return two_processes(listen_side, connect_side);
}
