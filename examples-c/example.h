// What the examples besides pingpong.c share: errors, time, waiting, two processes.
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <crosstie.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static xtie_endpoint *endpoint;  // the program's one endpoint

static inline void fail(const char *what)
{
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
}

// Ends the program when a call has failed, and says why.
static inline void check(int result, const char *call)
{
    if (result == XTIE_OK)
        return;
    char text[320] = "";
    if (endpoint == NULL || xtie_endpoint_error(endpoint, text, sizeof text) != XTIE_OK)
        text[0] = '\0';
    // it says all that the code says, and more
    fprintf(stderr, "%s: %s\n", call, text[0] != '\0' ? text : xtie_result_str(result));
    exit(1);
}
#define CHECK(call) check((call), #call)

static inline void sleep_ns(long ns)
{
    struct timespec span = {0, ns};
    nanosleep(&span, NULL);
}

static inline double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

// Lets others run when waiting takes long: there may be fewer cores than processes.
static inline void pause_now_and_then(void)
{
    static unsigned spins;
    if (++spins % 4096 == 0)
        sched_yield();
}

// Accepts a connection; look is called while there is none.
static inline xtie_connection *accept_looking(xtie_listener *listener, void (*look)(void))
{
    xtie_connection *connection = NULL;
    CHECK(xtie_listener_accept(endpoint, listener, &connection));
    while (connection == NULL) {
        look();
        pause_now_and_then();
        CHECK(xtie_listener_accept(endpoint, listener, &connection));
    }
    return connection;
}

static inline void look_nowhere(void)
{
}

static inline xtie_connection *accept_one(xtie_listener *listener)
{
    return accept_looking(listener, look_nowhere);
}

static inline xtie_connection *connect_one(const xtie_handle *handle)
{
    xtie_attempt *attempt = NULL;
    xtie_connection *connection = NULL;
    CHECK(xtie_endpoint_connect(endpoint, handle, &attempt, &connection));
    while (connection == NULL) {
        pause_now_and_then();
        CHECK(xtie_endpoint_connect(endpoint, handle, &attempt, &connection));
    }
    return connection;
}

static inline xtie_request *send_start(xtie_connection *connection, const void *data, size_t bytes,
                                       xtie_memory *memory)
{
    xtie_request *request = NULL;
    CHECK(xtie_connection_isend(endpoint, connection, data, bytes, 0, memory, &request));
    while (request == NULL) {  // no room now
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_isend(endpoint, connection, data, bytes, 0, memory, &request));
    }
    return request;
}

static inline xtie_request *receive_start(xtie_connection *connection, const xtie_buffer *buffers,
                                          uint32_t count)
{
    xtie_request *request = NULL;
    CHECK(xtie_connection_irecv(endpoint, connection, buffers, count, &request));
    while (request == NULL) {
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_irecv(endpoint, connection, buffers, count, &request));
    }
    return request;
}

// Waits for a request; sizes has an entry for each buffer, or is NULL.
static inline void finish(xtie_request *request, size_t *sizes)
{
    int done = 0;
    CHECK(xtie_request_test(endpoint, request, &done, sizes));
    while (!done) {
        pause_now_and_then();
        CHECK(xtie_request_test(endpoint, request, &done, sizes));
    }
}

static inline void connection_close(xtie_connection *connection)
{
    int result;
    while ((result = xtie_connection_close(endpoint, connection)) == XTIE_AGAIN)
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    check(result, "xtie_connection_close");
}

// Each message of a run has words of its own; bytes is a multiple of 8.
static inline uint64_t word_of(uint64_t message, size_t at)
{
    return (message * 0x9e3779b97f4a7c15u) ^ (at * 0xff51afd7ed558ccdu);
}

static inline void fill(void *data, size_t bytes, uint64_t message)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = word_of(message, at);
        memcpy((char *)data + at, &word, 8);
    }
}

static inline void verify(const void *data, size_t bytes, uint64_t message)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, (const char *)data + at, 8);
        if (word != word_of(message, at))
            fail("a message has the wrong bytes");
    }
}

// ---------------------------------------------------------------- handles between processes

static inline void handle_write(const xtie_handle *handle, const char *path)
{
    // Under its name when it is whole: the other side may be waiting for it.
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *file = fopen(temporary, "wb");
    if (file == NULL || fwrite(handle, sizeof *handle, 1, file) != 1 || fclose(file) != 0 ||
        rename(temporary, path) != 0)
        fail("the handle could not be written");
}

static inline void handle_read(xtie_handle *handle, const char *path)
{
    FILE *file = NULL;
    for (int tries = 0; file == NULL; tries++) {
        file = fopen(path, "rb");
        if (file == NULL && tries == 3000)
            fail("no handle came");
        if (file == NULL)
            sleep_ns(10000000);
    }
    if (fread(handle, sizeof *handle, 1, file) != 1)
        fail("the handle could not be read");
    fclose(file);
}

static inline void handle_send(const xtie_handle *handle, int fd)
{
    if (write(fd, handle, sizeof *handle) != (ssize_t)sizeof *handle)
        fail("the handle could not be sent");
}

static inline void handle_receive(xtie_handle *handle, int fd)
{
    if (read(fd, handle, sizeof *handle) != (ssize_t)sizeof *handle)
        fail("no handle came");
}

// In a child: it ends with its parent, which alone would tell it that nothing comes any more.
static inline void end_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);  // the parent may have ended before the call
}

// Runs two functions in two processes, joined by a pipe from listener to connector. Before any
// endpoint is open: endpoints do not outlive a fork.
static inline int two_processes(void (*listen_side)(int), void (*connect_side)(int))
{
    int ends[2];
    if (pipe(ends) != 0)
        fail("no pipe");
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0)
        fail("no process");
    if (child == 0) {
        end_with(parent);
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

#endif  // EXAMPLE_H
