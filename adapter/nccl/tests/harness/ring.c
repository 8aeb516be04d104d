/* What NCCL's proxies do in an all_reduce of two ranks, without GPUs: both send and receive on each
 * channel, from and to a ring of steps, and one thread of each asks for all of it in turn. Beside
 * the plugin stand bare sockets, used as NCCL's own network uses them: the length, then the bytes.
 *
 *   cc -O2 ring.c -o ring && ./ring LIBRARY.so [CHANNELS]
 *
 * "hop" is the time from rank to rank of a short message, one at a time, on the first channel while
 * the others are open; "each way" is what a rank sends while it receives as much. An "exchange" is
 * what a short all_reduce of two ranks is: on each channel a step each way, and, when it has come,
 * another. */
#define _GNU_SOURCE
#include "net.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 11, STEPS = 8, STEP = 512 << 10, CHANNELS_MAX = 16, SHORT = 128, RUNS = 5 };
enum { EXCHANGED = 4 << 10, EXCHANGES = 6 }; /* the shortest step of an exchange, and doublings */

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* A direction of a channel, of the plugin or of a socket. */
struct end {
    void *comm, *handle;
    int fd;
    char *memory;
    /* Of a socket: the step that moves, and how much of it has. */
    uint32_t length;
    size_t moved, bytes;
    long begun, ended;
    void *request[STEPS];
};

static struct net net;
static struct end out[CHANNELS_MAX], in[CHANNELS_MAX];
static int channels = 2, is_bare;

static char *step_of(struct end *end, long step) { return end->memory + step % STEPS * STEP; }

/* ---- bare sockets ---- */

static int moved(ssize_t result) {
    if (result > 0) return (int)result;
    if (result == 0 || errno != EAGAIN) FAIL("a socket: %s", strerror(errno));
    return 0;
}

/* Moves the oldest step on: 4 bytes of length, then the step. A short one leaves with its length,
 * as NCCL does it since it has NCCL_SOCKET_INLINE; it is read by two calls all the same. */
static void bare_move(struct end *end, int is_out) {
    while (end->ended < end->begun) {
        int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        char *at = step_of(end, end->ended);
        if (is_out && end->moved == 0 && end->bytes <= SHORT) {
            end->length = (uint32_t)end->bytes;
            struct iovec parts[2] = {{&end->length, 4}, {at, end->bytes}};
            struct msghdr both = {.msg_iov = parts, .msg_iovlen = 2};
            end->moved += (size_t)moved(sendmsg(end->fd, &both, flags));
            if (end->moved == 0) return;
            if (end->moved == 4 + end->bytes) {
                end->moved = 0, end->ended++;
                continue;
            }
        }
        if (end->moved < 4) {
            char *head = (char *)&end->length + end->moved;
            if (is_out) end->length = (uint32_t)end->bytes;
            ssize_t part = is_out ? send(end->fd, head, 4 - end->moved, flags)
                                  : recv(end->fd, head, 4 - end->moved, flags);
            int bytes = moved(part);
            end->moved += (size_t)bytes;
            if (end->moved < 4) return;
        }
        size_t done = end->moved - 4, left = end->length - done;
        ssize_t part = is_out ? send(end->fd, at + done, left, flags)
                              : recv(end->fd, at + done, left, flags);
        end->moved += (size_t)moved(part);
        if (end->moved < 4 + (size_t)end->length) return;
        end->moved = 0, end->ended++;
    }
}

/* ---- both ---- */

/* Begins a step, as long as there is room; `ready` steps may be begun. */
static void begin(struct end *end, int is_out, size_t bytes, long ready) {
    end->bytes = bytes;
    if (end->begun >= ready || end->begun - end->ended >= STEPS) return;
    if (!is_bare) {
        void *request = NULL, *at = step_of(end, end->begun);
        size_t room = STEP;
        int tag = 0;
        if (is_out) OK(net_isend(&net, end->comm, at, bytes, 0, end->handle, &request));
        else OK(net_irecv(&net, end->comm, 1, &at, &room, &tag, &end->handle, &request));
        if (!request) return;
        end->request[end->begun % STEPS] = request;
    }
    end->begun++;
}

static void look(struct end *end, int is_out) {
    if (is_bare) return bare_move(end, is_out);
    if (end->ended == end->begun) return;
    int done = 0, bytes = 0;
    OK(net_test(&net, end->request[end->ended % STEPS], &done, &bytes));
    end->ended += done;
}

/* Short messages there and back on the first channel: microseconds of each way. */
static double hops(long count) {
    long start_out = out[0].begun, start_in = in[0].begun;
    double start = now_us();
    for (long hop = 0; hop < count; hop++) {
        while (out[0].begun < start_out + hop + 1 || in[0].ended < start_in + hop + 1) {
            begin(&in[0], 0, SHORT, start_in + count);
            begin(&out[0], 1, SHORT, start_out + hop + 1);
            look(&out[0], 1), look(&in[0], 0);
        }
    }
    while (out[0].ended < out[0].begun) look(&out[0], 1);
    return (now_us() - start) / (double)count;
}

/* So many steps each way on each channel; a step is sent when one has come, but for the first. */
static double flood(long count, size_t bytes) {
    long begun[CHANNELS_MAX], come[CHANNELS_MAX], left = 1;
    for (int c = 0; c < channels; c++) begun[c] = out[c].begun, come[c] = in[c].ended;
    double start = now_us();
    while (left) {
        left = 0;
        for (int c = 0; c < channels; c++) {
            long ready = in[c].ended - come[c] + STEPS / 2;
            begin(&in[c], 0, bytes, come[c] + count);
            begin(&out[c], 1, bytes, begun[c] + (ready < count ? ready : count));
            look(&out[c], 1), look(&in[c], 0);
            left += count - (out[c].ended - begun[c]) + count - (in[c].ended - come[c]);
        }
    }
    return (double)count * (double)bytes * channels / (now_us() - start) / 1e3;
}

/* Microseconds of one exchange; the next begins when all steps of the last have ended. */
static double exchanges(long count, size_t bytes) {
    double start = now_us();
    for (long turn = 0; turn < count; turn++) {
        long left = 1, sent[CHANNELS_MAX], come[CHANNELS_MAX];
        for (int c = 0; c < channels; c++) sent[c] = out[c].ended, come[c] = in[c].ended;
        while (left) {
            left = 0;
            for (int c = 0; c < channels; c++) {
                begin(&in[c], 0, bytes, come[c] + 2);
                begin(&out[c], 1, bytes, sent[c] + (in[c].ended > come[c] ? 2 : 1));
                look(&out[c], 1), look(&in[c], 0);
                left += sent[c] + 2 - out[c].ended + come[c] + 2 - in[c].ended;
            }
        }
    }
    return (now_us() - start) / (double)count;
}

static void say(int with, const void *data, size_t bytes) {
    if (write(with, data, bytes) != (ssize_t)bytes) FAIL("the other rank is gone");
}

static void hear(int with, void *data, size_t bytes) {
    if (recv(with, data, bytes, MSG_WAITALL) != (ssize_t)bytes) FAIL("the other rank is gone");
}

static void together(int with) {
    char byte = 0;
    say(with, &byte, 1), hear(with, &byte, 1);
}

static void plugin_open(const char *library, int with) {
    net = net_load(library, VERSION);
    OK(net_init(&net, NULL));
    for (int c = 0; c < channels; c++) {
        char mine[HANDLE], theirs[HANDLE];
        void *listener;
        OK(net_listen(&net, 0, mine, &listener));
        say(with, mine, HANDLE), hear(with, theirs, HANDLE);
        while (!out[c].comm || !in[c].comm) {
            if (!out[c].comm) OK(net_connect(&net, 0, theirs, &out[c].comm, NULL));
            if (!in[c].comm) OK(net_accept(&net, listener, &in[c].comm, NULL));
        }
        OK(net_close(&net, CLOSE_LISTEN, listener));
        struct end *both[2] = {&out[c], &in[c]};
        for (int i = 0; i < 2; i++)
            OK(net_reg(&net, both[i]->comm, both[i]->memory, STEPS * STEP, HOST_MEMORY,
                &both[i]->handle));
    }
}

static void bare_open(int rank, int with) {
    for (int c = 0; c < 2 * channels; c++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        if (rank == 0) {
            if (bind(fd, (void *)&at, length) || listen(fd, 1)) FAIL("no listener");
            getsockname(fd, (void *)&at, &length);
            say(with, &at, sizeof at);
            int listener = fd;
            fd = accept(listener, NULL, NULL);
            close(listener);
        } else {
            hear(with, &at, sizeof at);
            if (connect(fd, (void *)&at, length)) FAIL("no connection");
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        *((c & 1) == rank ? &out[c / 2].fd : &in[c / 2].fd) = fd;
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *library, int rank, int with) {
    for (int c = 0; c < channels; c++) {
        size_t bytes = 2 * STEPS * STEP;
        int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
        char *memory = mmap(NULL, bytes, rights, flags, -1, 0);
        if (memory == MAP_FAILED) FAIL("no memory");
        memset(memory, rank, bytes);
        out[c] = (struct end){.memory = memory}, in[c] = (struct end){.memory = memory + bytes / 2};
    }
    if (is_bare) bare_open(rank, with);
    else plugin_open(library, with);
    double hop[RUNS], short_flow[RUNS], flow[RUNS], exchange[EXCHANGES][RUNS];
    for (int run = 0; run < RUNS; run++) {
        together(with), hop[run] = hops(5000);
        together(with), short_flow[run] = flood(2000, 32 << 10);
        together(with), flow[run] = flood(400, STEP);
        for (int size = 0; size < EXCHANGES; size++)
            together(with), exchange[size][run] = exchanges(1000, (size_t)EXCHANGED << size);
    }
    together(with);
    if (rank) return;
    qsort(hop, RUNS, sizeof *hop, ascending), qsort(flow, RUNS, sizeof *flow, ascending);
    qsort(short_flow, RUNS, sizeof *short_flow, ascending);
    printf("%-8s hop %6.2f us (best %6.2f); each way %5.2f GB/s (best %5.2f), of 32 KiB %5.2f\n",
        is_bare ? "sockets" : "plugin", hop[RUNS / 2], hop[0], flow[RUNS / 2], flow[RUNS - 1],
        short_flow[RUNS / 2]);
    printf("         exchange");
    for (int size = 0; size < EXCHANGES; size++) {
        qsort(exchange[size], RUNS, sizeof **exchange, ascending);
        printf("%s %d KiB %.1f", size ? "," : "", (EXCHANGED << size) >> 10,
            exchange[size][RUNS / 2]);
    }
    printf(" us\n");
}

int main(int count, char **words) {
    if (count < 2) FAIL("which library?");
    if (count > 2) channels = atoi(words[2]);
    if (channels < 1 || channels > CHANNELS_MAX) FAIL("1 to %d channels", CHANNELS_MAX);
    for (is_bare = 0; is_bare < 2; is_bare++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) FAIL("no pair");
        pid_t ranks[2];
        for (int rank = 0; rank < 2; rank++) {
            if ((ranks[rank] = fork())) continue;
            const char *pinned = getenv("PIN");
            if (pinned) {
                cpu_set_t set;
                CPU_ZERO(&set);
                CPU_SET(rank, &set);
                sched_setaffinity(0, sizeof set, &set);
            }
            measure(words[1], rank, pair[rank]);
            fflush(stdout), _exit(0);
        }
        for (int rank = 0; rank < 2; rank++) {
            int status;
            waitpid(ranks[rank], &status, 0);
            if (status) return 1;
        }
        close(pair[0]), close(pair[1]);
    }
    return 0;
}
