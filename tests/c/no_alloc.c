// Nothing allocates in any thread of two processes between xtie_endpoint_open and
// xtie_endpoint_close. Built with tests/interpose/malloc_count.c, whose allocator counts.
#define _POSIX_C_SOURCE 200809L
#include <crosstie.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void mark_begin(void);
unsigned long mark_end(void);

#define LONG ((size_t)1 << 20)
enum { ROUNDS = 10, CONNECTIONS = 20, GROUP = XTIE_GROUP_MAX, SECONDS = 600 };
static const size_t sizes[] = {0, 1, 8, 25, 4096, 8192, 8193, 100000, LONG};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

XTIE_ENDPOINT_STORAGE(storage, 4, 32, 8);
static unsigned char ours[2 * LONG], spare[1 << 16];
static xtie_endpoint *endpoint;
static xtie_connection *connection;
static xtie_memory *memory;
static unsigned char *source, *target;
static atomic_int helper_goes, helper_stops;

static void check(int result, int expected, int line)
{
    if (result == expected)
        return;
    char text[320] = "";
    if (endpoint != NULL)
        xtie_endpoint_error(endpoint, text, sizeof text);
    fprintf(stderr, "no_alloc.c:%d: %s (%s)\n", line, xtie_result_str(result), text);
    _exit(1);
}
#define EXPECT(result, call) check((call), (result), __LINE__)
#define CHECK(call) EXPECT(XTIE_OK, call)

static void must(int holds, int line)
{
    if (holds)
        return;
    fprintf(stderr, "no_alloc.c:%d: wrong\n", line);
    _exit(1);
}
#define MUST(holds) must((holds), __LINE__)

// Registers and allocates beside everything else, as any thread may.
static void *helper(void *unused)
{
    (void)unused;
    while (!atomic_load(&helper_goes))
        sched_yield();
    while (!atomic_load(&helper_stops)) {
        xtie_memory *region = NULL;
        void *data = NULL;
        CHECK(xtie_memory_register(endpoint, spare, sizeof spare, XTIE_MEMORY_HOST, &region));
        CHECK(xtie_memory_deregister(endpoint, region));
        CHECK(xtie_memory_alloc(endpoint, 10000, &data, &region));
        memset(data, 1, 10000);
        CHECK(xtie_memory_free(endpoint, region));
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    return NULL;
}

static xtie_request *send_start(size_t bytes, int32_t tag)
{
    xtie_request *request = NULL;
    CHECK(xtie_connection_isend(endpoint, connection, source, bytes, tag, memory, &request));
    while (request == NULL) {
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_isend(endpoint, connection, source, bytes, tag, memory, &request));
    }
    return request;
}

static xtie_request *receive_start(const xtie_buffer *buffers, uint32_t count)
{
    xtie_request *request = NULL;
    CHECK(xtie_connection_irecv(endpoint, connection, buffers, count, &request));
    while (request == NULL) {
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        CHECK(xtie_connection_irecv(endpoint, connection, buffers, count, &request));
    }
    return request;
}

static int finish(xtie_request *request, size_t *bytes)
{
    int done = 0, result = XTIE_OK;
    unsigned spins = 0;
    while (!done) {
        result = xtie_request_test(endpoint, request, &done, bytes);
        MUST(done || result == XTIE_OK);
        if (!done && ++spins % 256 == 0)
            sched_yield();  // there may be fewer cores than threads
    }
    return result;
}

static void send_one(size_t bytes, int round)
{
    memset(source, round + 1, bytes);
    CHECK(finish(send_start(bytes, round), NULL));
}

static void receive_one(size_t bytes, int round)
{
    xtie_buffer room = {target, LONG, round, 0, memory};
    size_t arrived = 0;
    CHECK(finish(receive_start(&room, 1), &arrived));
    MUST(arrived == bytes);
    for (size_t at = 0; at < bytes; at++)
        MUST(target[at] == (unsigned char)(round + 1));
}

static void sizes_exchange(int first)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < SIZES; at++) {
            for (int turn = 0; turn < 2; turn++) {
                if (turn == first)
                    send_one(sizes[at], round);
                else
                    receive_one(sizes[at], round);
            }
        }
    }
}

static void group_send(void)
{
    for (int tag = GROUP - 1; tag >= 0; tag--)
        CHECK(finish(send_start(tag % 2 ? 100 : 50000, tag), NULL));
}

static void group_receive(void)
{
    xtie_buffer rooms[GROUP];
    size_t arrived[GROUP];
    for (int tag = 0; tag < GROUP; tag++)
        rooms[tag] = (xtie_buffer){target + ((size_t)tag << 16), 1 << 16, tag, 0, memory};
    CHECK(finish(receive_start(rooms, GROUP), arrived));
    for (int tag = 0; tag < GROUP; tag++)
        MUST(arrived[tag] == (tag % 2 ? 100 : 50000));
}

static void sleep_until_ended(xtie_request *request, int expected)
{
    struct pollfd wait = {-1, POLLIN, 0};
    CHECK(xtie_endpoint_wait_fd(endpoint, &wait.fd));
    for (;;) {
        int done = 0;
        int result = xtie_request_test(endpoint, request, &done, NULL);
        if (done) {
            EXPECT(expected, result);
            return;
        }
        CHECK(result);
        if (xtie_endpoint_wait_arm(endpoint) == XTIE_OK)
            poll(&wait, 1, 1000);
    }
}

static void connection_end(void)
{
    int result;
    while ((result = xtie_connection_close(endpoint, connection)) == XTIE_AGAIN)
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    CHECK(result);
    EXPECT(XTIE_ERR_CONNECTION, xtie_connection_close(endpoint, connection));
    connection = NULL;
}

// The side that is connected to, and closes.
static void listen_side(int handle_fd)
{
    xtie_handle handle;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    MUST(write(handle_fd, &handle, sizeof handle) == (ssize_t)sizeof handle);
    for (int turn = 0; turn < CONNECTIONS; turn++) {
        while (connection == NULL) {
            CHECK(xtie_listener_accept(endpoint, listener, &connection));
            sched_yield();
        }
        if (turn == 0) {
            sizes_exchange(0);
            group_receive();
            xtie_buffer small = {target, 8, 3, 0, memory};
            EXPECT(XTIE_ERR_TRUNCATED, finish(receive_start(&small, 1), NULL));
        }
        receive_one(100000, turn);
        xtie_buffer never = {target, 8, 4, 0, memory};
        xtie_request *request = receive_start(&never, 1);
        int result = xtie_request_cancel(endpoint, request);
        if (result == XTIE_OK)
            EXPECT(XTIE_ERR_CANCELED, finish(request, NULL));
        else
            check(result, XTIE_ERR_UNDER_WAY, __LINE__);
        connection_end();
    }
    CHECK(xtie_listener_close(endpoint, listener));
    // the thread of set-up is not started again for what comes after a time without anything
    for (int turn = 0; turn < 2000; turn++) {
        CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
        CHECK(xtie_listener_close(endpoint, listener));
        sched_yield();
    }
}

// The side that connects, and finds itself alone each time.
static void connect_side(int handle_fd)
{
    xtie_handle handle;
    MUST(read(handle_fd, &handle, sizeof handle) == (ssize_t)sizeof handle);
    for (int turn = 0; turn < CONNECTIONS; turn++) {
        xtie_attempt *attempt = NULL;
        xtie_handle damaged = handle;
        damaged.bytes[77] ^= 1;
        EXPECT(XTIE_ERR_HANDLE_CORRUPT,
               xtie_endpoint_connect(endpoint, &damaged, &attempt, &connection));
        while (connection == NULL) {
            CHECK(xtie_endpoint_connect(endpoint, &handle, &attempt, &connection));
            sched_yield();
        }
        char text[320];
        CHECK(xtie_connection_peer(endpoint, connection, text, sizeof text));
        if (turn == 0) {
            sizes_exchange(1);
            group_send();
            CHECK(finish(send_start(20000, 3), NULL));
        }
        send_one(100000, turn);
        xtie_buffer never = {target, 8, 5, 0, memory};
        sleep_until_ended(receive_start(&never, 1), XTIE_ERR_PEER_CLOSED);
        CHECK(xtie_endpoint_error(endpoint, text, sizeof text));
        connection_end();
    }
}

static void planted(void)
{
    mark_begin();
    void *volatile taken = malloc(100);
    free(taken);
    MUST(mark_end() == 1);
}

// One side from open to close; memory of the library's, or the program's own.
static void side(void (*run)(int), int handle_fd, int from_library)
{
    pthread_t thread;
    atomic_store(&helper_goes, 0);
    atomic_store(&helper_stops, 0);
    MUST(pthread_create(&thread, NULL, helper, NULL) == 0);
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 4;
    config.regions_max = 8;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    mark_begin();
    atomic_store(&helper_goes, 1);
    void *data = ours;
    if (from_library)
        CHECK(xtie_memory_alloc(endpoint, 2 * LONG, &data, &memory));
    else
        CHECK(xtie_memory_register(endpoint, data, 2 * LONG, XTIE_MEMORY_HOST, &memory));
    source = data;
    target = source + LONG;
    run(handle_fd);
    xtie_stats stats = {.struct_size = sizeof stats};
    CHECK(xtie_endpoint_stats(endpoint, &stats));
    if (from_library)
        CHECK(xtie_memory_free(endpoint, memory));
    else
        CHECK(xtie_memory_deregister(endpoint, memory));
    atomic_store(&helper_stops, 1);
    MUST(pthread_join(thread, NULL) == 0);
    unsigned long count = mark_end();
    if (count != 0)
        fprintf(stderr, "allocated %lu times after open\n", count);
    MUST(count == 0);
    planted();
    CHECK(xtie_endpoint_close(endpoint));
}

int main(void)
{
    for (int from_library = 0; from_library < 2; from_library++) {
        int ends[2];
        MUST(pipe(ends) == 0);
        pid_t child = fork();
        MUST(child >= 0);
        alarm(SECONDS);
        if (child == 0) {
            side(listen_side, ends[1], from_library);
            _exit(0);
        }
        side(connect_side, ends[0], from_library);
        int status = 0;
        MUST(waitpid(child, &status, 0) == child && status == 0);
        close(ends[0]);
        close(ends[1]);
    }
    puts("no allocation between open and close, in two processes");
    return 0;
}
