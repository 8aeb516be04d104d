/* What the plugin's calls cost, beside those of the C API, in one process and run; and between two
 * processes how long messages take, how many go a second, and what groups of receives save.
 *
 *   cc -O2 bench.c libcrosstie.a LIBRARIES -o bench && ./bench LIBRARY.so
 *
 * Both sides of the first comparison do the same: an endpoint that is connected to itself over the
 * rails of CROSSTIE_RAILS, a receive, a send, and tests of both until they end, on one thread. */
#define _GNU_SOURCE
#include "net.h"
#include <crosstie.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 200000, RUNS = 9, BYTES = 8, VERSION = 12, SMALL = 1024, MESSAGES = 40000 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *all, int count) {
    qsort(all, (size_t)count, sizeof *all, ascending);
    return all[count / 2];
}

struct cost {
    double ns;
    long calls;
};

/* ---- the plugin ---- */

static struct net net;
static void *net_send, *net_recv, *net_out, *net_in;
static char net_memory[2 * 65536];

static void net_open(const char *library) {
    char handle[HANDLE];
    void *listener;
    net = net_load(library, VERSION);
    OK(net_init(&net, NULL));
    OK(net_listen(&net, 0, handle, &listener));
    while (!net_send || !net_recv) {
        if (!net_send) OK(net_connect(&net, 0, handle, &net_send, NULL));
        if (!net_recv) OK(net_accept(&net, listener, &net_recv, NULL));
    }
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_reg(&net, net_send, net_memory, 65536, HOST_MEMORY, &net_out));
    OK(net_reg(&net, net_recv, net_memory + 65536, 65536, HOST_MEMORY, &net_in));
}

static struct cost net_pairs(void) {
    long calls = 0;
    double start = now_ns();
    for (int round = 0; round < ROUNDS; round++) {
        void *place = net_memory + 65536, *recv, *send;
        size_t room = BYTES;
        int tag = 0, done = 0, bytes = 0;
        OK(net_irecv(&net, net_recv, 1, &place, &room, &tag, &net_in, &recv));
        OK(net_isend(&net, net_send, net_memory, BYTES, 0, net_out, &send));
        for (calls += 2; !done; calls++) OK(net_test(&net, recv, &done, &bytes));
        for (done = 0; !done; calls++) OK(net_test(&net, send, &done, &bytes));
    }
    return (struct cost){(now_ns() - start) / ROUNDS, calls};
}

/* ---- the C API ---- */

XTIE_ENDPOINT_STORAGE(storage, 64, 256, 64);
static xtie_endpoint *endpoint;
static xtie_connection *c_send, *c_recv;
static xtie_memory *c_out, *c_in;
static char c_memory[2 * 65536];

static void c_open(void) {
    xtie_endpoint_config config;
    xtie_handle handle;
    xtie_listener *listener;
    xtie_attempt *attempt = NULL;
    OK(xtie_endpoint_config_init(&config, sizeof config));
    /* as the plugin opens its endpoints, so that what is left is what its calls cost */
    config.connections_max = 64, config.requests_max = 256, config.regions_max = 64;
    config.flags = XTIE_ENDPOINT_PUSH, config.write_ring_bytes = 1 << 20;
    OK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    OK(xtie_endpoint_listen(endpoint, &handle, &listener));
    while (!c_send || !c_recv) {
        if (!c_send) OK(xtie_endpoint_connect(endpoint, &handle, &attempt, &c_send));
        if (!c_recv) OK(xtie_listener_accept(endpoint, listener, &c_recv));
    }
    OK(xtie_memory_register(endpoint, c_memory, 65536, XTIE_MEMORY_HOST, &c_out));
    OK(xtie_memory_register(endpoint, c_memory + 65536, 65536, XTIE_MEMORY_HOST, &c_in));
}

static struct cost c_pairs(void) {
    long calls = 0;
    double start = now_ns();
    for (int round = 0; round < ROUNDS; round++) {
        xtie_buffer buffer = {c_memory + 65536, BYTES, 0, 0, c_in};
        xtie_request *recv, *send;
        int done = 0;
        size_t bytes;
        OK(xtie_connection_irecv(endpoint, c_recv, &buffer, 1, &recv));
        OK(xtie_connection_isend(endpoint, c_send, c_memory, BYTES, 0, c_out, &send));
        for (calls += 2; !done; calls++) OK(xtie_request_test(endpoint, recv, &done, &bytes));
        for (done = 0; !done; calls++) OK(xtie_request_test(endpoint, send, &done, &bytes));
    }
    return (struct cost){(now_ns() - start) / ROUNDS, calls};
}

static void compare_calls(const char *library) {
    double plugin[RUNS], c_api[RUNS];
    long calls = 0;
    net_open(library);
    c_open();
    for (int run = -1; run < RUNS; run++) {
        struct cost a = net_pairs(), b = c_pairs();
        if (a.calls != b.calls) printf("(calls: %ld, C API %ld)\n", a.calls, b.calls);
        if (run >= 0) plugin[run] = a.ns, c_api[run] = b.ns, calls = a.calls;
    }
    double a = median(plugin, RUNS), b = median(c_api, RUNS), each = (double)calls / ROUNDS;
    printf("receive, send and tests: plugin %.1f ns, C API %.1f ns; ", a, b);
    printf("%.1f calls: %.1f ns a call more\n", each, (a - b) / each);
}

/* ---- groups ---- */

/* On the connection to itself: what the calls of a receiver take for four messages, which come as
 * one group or one by one, without those of the sender. In ns for each message. */
static double receiver_of_four(int group) {
    double took = 0;
    for (int round = 0; round < ROUNDS / 4; round++) {
        void *data[4], *handles[4], *recvs[4], *sends[4];
        size_t rooms[4];
        int tags[4], bytes[4];
        for (int i = 0; i < 4; i++)
            data[i] = net_memory + 65536 + i * SMALL, handles[i] = net_in, rooms[i] = SMALL,
            tags[i] = i % group;
        double start = now_ns();
        for (int i = 0; i < 4; i += group)
            OK(net_irecv(
                &net, net_recv, group, data + i, rooms, tags, handles, &recvs[i / group]));
        took += now_ns() - start;
        for (int i = 0; i < 4; i++)
            OK(net_isend(&net, net_send, net_memory, SMALL, i % group, net_out, &sends[i]));
        start = now_ns();
        for (int i = 0; i < 4; i += group)
            for (int done = 0; !done;) OK(net_test(&net, recvs[i / group], &done, bytes));
        took += now_ns() - start;
        for (int i = 0; i < 4; i++)
            for (int done = 0; !done;) OK(net_test(&net, sends[i], &done, bytes));
    }
    return took / ROUNDS;
}

static void compare_groups(void) {
    double one[RUNS], four[RUNS];
    for (int run = -1; run < RUNS; run++) {
        double a = receiver_of_four(1), b = receiver_of_four(4);
        if (run >= 0) one[run] = a, four[run] = b;
    }
    double a = median(one, RUNS), b = median(four, RUNS);
    printf("calls of a receiver of 1 KiB: one by one %.1f ns a message, x 4 %.1f: %.2f times\n", a,
        b, a / b);
}

static int peer_socket;

/* Receives MESSAGES of 1 KiB, `group` with each request, one request at a time; in ns a message. */
static double receive_groups(int group) {
    void *data[GROUP], *handles[GROUP];
    size_t rooms[GROUP];
    int tags[GROUP], sizes[GROUP];
    for (int i = 0; i < group; i++)
        data[i] = net_memory + 65536 + i * SMALL, handles[i] = net_in, rooms[i] = SMALL,
        tags[i] = i;
    char go = 'g';
    CHECK(write(peer_socket, &go, 1) == 1);
    double start = 0;
    for (int at = 0; at < MESSAGES; at += group) {
        void *request = NULL;
        int done = 0;
        while (!request)
            OK(net_irecv(&net, net_recv, group, data, rooms, tags, handles, &request));
        for (int spins = 1; !done; spins++) {
            OK(net_test(&net, request, &done, sizes));
            /* there may be fewer processors than processes */
            if (spins % 1024 == 0) sched_yield();
        }
        CHECK(sizes[group - 1] == SMALL);
        if (!at) start = now_ns();
    }
    return (now_ns() - start) / (MESSAGES - group);
}

/* Sends as many, with up to `window` outstanding. */
static void send_for_groups(int group, int window) {
    void *requests[32] = {NULL};
    char go;
    CHECK(read(peer_socket, &go, 1) == 1);
    for (int at = 0; at < MESSAGES + window; at++) {
        void **slot = &requests[at % window];
        int done = 0;
        for (int spins = 1; *slot && !done; spins++) {
            OK(net_test(&net, *slot, &done, NULL));
            if (spins % 1024 == 0) sched_yield();
        }
        *slot = NULL;
        while (at < MESSAGES && !*slot)
            OK(net_isend(&net, net_send, net_memory, SMALL, at % group, net_out, slot));
    }
}

/* `window` 0: the sender has as many outstanding as a group takes, as the receiver. */
static void measure_groups(int rank, int window) {
    static const int SIZES[] = {1, 4, 8};
    double ns[3][RUNS];
    for (int run = -1; run < RUNS; run++)
        for (int i = 0; i < 3; i++) {
            int most = window ? window : SIZES[i];
            double took = rank ? (send_for_groups(SIZES[i], most), 0) : receive_groups(SIZES[i]);
            if (run >= 0) ns[i][run] = took;
        }
    if (rank) return;
    double one = median(ns[0], RUNS), four = median(ns[1], RUNS), eight = median(ns[2], RUNS);
    printf("1 KiB, %s: one by one %.0f ns each, x 4 %.0f, x 8 %.0f: %.2f and %.2f times as fast\n",
        window ? "sender ahead" : "sender waits", one, four, eight, one / four, one / eight);
}

/* ---- messages one way ---- */

enum { LONGEST = 1 << 20, OUTSTANDING_MAX = 32 };

static char *places; /* so many of the longest to send from, and as many to receive into */

static void one_request(int sends, int at, size_t bytes, void **request) {
    char *place = places + (size_t)at * bytes;
    int tag = 0;
    if (sends) {
        OK(net_isend(&net, net_send, place, bytes, tag, net_out, request));
    } else {
        void *data = place + (size_t)OUTSTANDING_MAX * LONGEST;
        OK(net_irecv(&net, net_recv, 1, &data, &bytes, &tag, &net_in, request));
    }
}

static void until_done(void *request) {
    for (int done = 0, bytes, spins = 1; !done; spins++) {
        OK(net_test(&net, request, &done, &bytes));
        if (spins % 1024 == 0) sched_yield();
    }
}

static void request_and_wait(int sends, size_t bytes) {
    void *request = NULL;
    while (!request) one_request(sends, 0, bytes, &request);
    until_done(request);
}

/* Both processes are at the same place. */
static void meet(void) {
    char word = 'm';
    CHECK(write(peer_socket, &word, 1) == 1);
    CHECK(read(peer_socket, &word, 1) == 1);
}

/* To and fro; half of the median of all rounds, in ns. */
static double one_way(int rank, size_t bytes, int rounds) {
    double *all = malloc(sizeof *all * (size_t)rounds);
    CHECK(all);
    meet();
    for (int round = 0; round < rounds; round++) {
        double start = now_ns();
        request_and_wait(rank == 0, bytes);
        request_and_wait(rank == 1, bytes);
        all[round] = (now_ns() - start) / 2;
    }
    double half = median(all, rounds);
    free(all);
    return half;
}

/* `count` messages with `window` outstanding, from process 1; in ns for each. */
static double stream(int rank, size_t bytes, int count, int window) {
    void *requests[OUTSTANDING_MAX] = {NULL};
    meet();
    double start = now_ns();
    for (int at = 0; at < count + window; at++) {
        void **slot = &requests[at % window];
        if (*slot) until_done(*slot);
        *slot = NULL;
        while (at < count && !*slot) one_request(rank == 1, at % window, bytes, slot);
    }
    double took = now_ns() - start;
    meet();
    return took / count;
}

static void measure_streams(int rank) {
    static const size_t SIZES[] = {8, 1024, 16 << 10, 64 << 10, LONGEST};
    static const struct {
        size_t bytes;
        int count, window;
    } STREAMS[] = {{8, 100000, 32}, {4096, 40000, 8}, {64 << 10, 5000, 8}, {LONGEST, 400, 8}};
    size_t length = 2 * (size_t)OUTSTANDING_MAX * LONGEST;
    void *out, *in;
    places = malloc(length);
    CHECK(places);
    memset(places, 1, length);
    out = net_out, in = net_in;
    OK(net_reg(&net, net_send, places, length, HOST_MEMORY, &net_out));
    OK(net_reg(&net, net_recv, places, length, HOST_MEMORY, &net_in));
    for (size_t n = 0; n < sizeof SIZES / sizeof *SIZES; n++) {
        one_way(rank, SIZES[n], 200);
        double half = one_way(rank, SIZES[n], SIZES[n] == LONGEST ? 500 : 5000);
        if (!rank) printf("%zu B one way, p50: %.2f us\n", SIZES[n], half / 1e3);
    }
    for (size_t n = 0; n < sizeof STREAMS / sizeof *STREAMS; n++) {
        size_t bytes = STREAMS[n].bytes;
        int window = STREAMS[n].window;
        double all[RUNS];
        for (int run = -1; run < RUNS; run++) {
            double each = stream(rank, bytes, STREAMS[n].count, window);
            if (run >= 0) all[run] = each;
        }
        double middle = median(all, RUNS);
        if (!rank)
            printf("%zu B x %d: %.2f GB/s, %.3f million/s (best %.2f, %.3f)\n", bytes, window,
                (double)bytes / middle, 1e3 / middle, (double)bytes / all[0], 1e3 / all[0]);
    }
    net_out = out, net_in = in;
}

static void between_two(const char *library) {
    int sockets[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    fflush(stdout);
    int rank = fork() == 0;
    peer_socket = sockets[rank];
    char mine[HANDLE], theirs[HANDLE];
    void *listener;
    net = net_load(library, VERSION);
    OK(net_init(&net, NULL));
    OK(net_listen(&net, 0, mine, &listener));
    CHECK(write(peer_socket, mine, HANDLE) == HANDLE);
    CHECK(read(peer_socket, theirs, HANDLE) == HANDLE);
    while (!net_send || !net_recv) {
        if (!net_send) OK(net_connect(&net, 0, theirs, &net_send, NULL));
        if (!net_recv) OK(net_accept(&net, listener, &net_recv, NULL));
    }
    OK(net_reg(&net, net_send, net_memory, 65536, HOST_MEMORY, &net_out));
    OK(net_reg(&net, net_recv, net_memory + 65536, 65536, HOST_MEMORY, &net_in));
    measure_streams(rank);
    measure_groups(rank, 0);
    measure_groups(rank, 32);
    if (rank) _exit(0);
    int status = 0;
    wait(&status);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    int status = 0;
    fflush(stdout);
    if (fork() == 0) return between_two(arguments[1]), 0;
    wait(&status);
    if (status) return 1;
    compare_calls(arguments[1]);
    compare_groups();
    return 0;
}
