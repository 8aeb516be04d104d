// Which of several processes this one is, and a place where they meet: from the variables that
// mpirun, srun and torchrun set for the processes that they start, without any library of theirs.
//
//     struct launch launch;
//     if (launch_find(&launch)) {          // 0: started by hand, or alone
//         launch_meet(&launch);            // within half a minute, or the program ends
//         launch_gather(&launch, &mine, sizeof mine, all);  // all: launch.size parts, by rank
//         launch_look(&launch);            // while others are waited for: are they there?
//         launch_barrier(&launch);
//         config.context = &launch;        // of xtie_group_config, to open a group of the ranks
//         config.gather = launch_group_gather;
//         config.look = launch_group_look;
//         launch_end(&launch);
//     }
//
// Where the ranks meet: CROSSTIE_RENDEZVOUS=HOST:PORT, else MASTER_ADDR and MASTER_PORT, else what
// the launcher tells. Rank 0 is a small TCP server; whoever connects to it and does not know the
// launch is dropped. Whatever is missing is named in one line, which ends the program.
// tool/src/launch.rs is the same in Rust.
#ifndef LAUNCH_H
#define LAUNCH_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    LAUNCH_RANKS_MAX = 1024,
    LAUNCH_SECONDS = 30,   // for all ranks to arrive
    LAUNCH_STEP_MS = 2000, // for one attempt to connect, and for a stranger to say who it is
    LAUNCH_HELLO = 24      // magic and key, 8 bytes each; size and rank, 4 each
};
static const char launch_magic[8] = {'x', 't', 'i', 'e', 'm', 'e', 'e', 't'};
// Answered to a process whose rank is there already.
static const char launch_twin[8] = {'x', 't', 'i', 'e', 't', 'w', 'i', 'n'};

struct launch {
    int rank, size;
    int local_rank;               // among the ranks of this host; the rank where nobody says
    char hosts[512];              // of rank 0, separated by commas
    int port;
    uint64_t key;                 // tells this launch from others
    int fds[LAUNCH_RANKS_MAX];    // [0]: to rank 0; on rank 0 [r]: to rank r
};

static inline void launch_sleep(long ns)
{
    struct timespec span = {0, ns};
    nanosleep(&span, NULL);
}

static inline void launch_fail(const char *what, const char *name)
{
    fprintf(stderr, "launch: %s%s%s\n", what, name[0] != '\0' ? " " : "", name);
    exit(1);
}

#define LAUNCH_HOW "; set CROSSTIE_RENDEZVOUS=HOST:PORT to an address of rank 0's host"

// ---------------------------------------------------------------- what the environment says

// -1: not set.
static inline long launch_number(const char *name, long max)
{
    const char *text = getenv(name);
    if (text == NULL)
        return -1;
    char *end = NULL;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 0 || number > max)
        launch_fail("not a number that can be:", name);
    return number;
}

// FNV-1a.
static inline uint64_t launch_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

// Ports that are derived from a job's name lie below those that the kernel hands out by itself.
static inline void launch_derive(struct launch *launch, const char *name)
{
    launch->key = launch_hash(name);
    launch->port = 20000 + (int)(launch->key % 12000);
}

static inline void launch_host(struct launch *launch, const char *host, size_t length)
{
    size_t used = strlen(launch->hosts);
    if (used + length + 2 > sizeof launch->hosts)
        return;
    if (used > 0)
        launch->hosts[used++] = ',';
    memcpy(launch->hosts + used, host, length);
    launch->hosts[used + length] = '\0';
}

// "host:port", "1.2.3.4:port" or "[::1]:port"
static inline void launch_told(struct launch *launch, const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    long port = colon != NULL ? strtol(colon + 1, &end, 10) : 0;
    if (port <= 0 || port > 65535 || *end != '\0' || colon == text)
        launch_fail("not HOST:PORT: CROSSTIE_RENDEZVOUS", "");
    size_t length = (size_t)(colon - text);
    if (text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    launch_host(launch, text, length);
    launch->port = (int)port;
}

// The first name of a list such as "gpu[03-07,12]-ib,login1".
static inline void launch_first_host(struct launch *launch, const char *list)
{
    char name[256];
    size_t length = 0;
    int skipping = 0, inside = 0;
    for (; *list != '\0' && (*list != ',' || inside) && length + 1 < sizeof name; list++) {
        if (*list == '[') {
            inside = 1;
        } else if (*list == ']') {
            inside = skipping = 0;
        } else {
            skipping |= inside && (*list == '-' || *list == ',');
            if (!skipping)
                name[length++] = *list;
        }
    }
    launch_host(launch, name, length);
}

static inline void launch_where_slurm(struct launch *launch)
{
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (job == NULL || step == NULL)
        launch_fail("srun has not set SLURM_JOB_ID and SLURM_STEP_ID" LAUNCH_HOW, "");
    char name[128];
    snprintf(name, sizeof name, "slurm %s.%s", job, step);
    launch_derive(launch, name);
    if (launch_number("SLURM_STEP_NUM_NODES", 1 << 30) == 1)
        launch_host(launch, "127.0.0.1", 9);
    else if (getenv("SLURM_STEP_NODELIST") != NULL)
        launch_first_host(launch, getenv("SLURM_STEP_NODELIST"));
    else if (getenv("SLURM_LAUNCH_NODE_IPADDR") != NULL)
        launch_first_host(launch, getenv("SLURM_LAUNCH_NODE_IPADDR"));
    if (launch->hosts[0] == '\0')
        launch_fail("srun has not set SLURM_STEP_NODELIST" LAUNCH_HOW, "");
}

// mpirun tells its own addresses, "678.0;tcp://10.0.0.1,10.1.0.1:53765;tcp6://[fd00::2]:57433":
// rank 0 is on its host, or else the user must say where.
static inline void launch_where_mpirun(struct launch *launch)
{
    const char *job = getenv("PMIX_NAMESPACE");
    if (job == NULL)
        job = getenv("OMPI_MCA_ess_base_jobid");
    if (job == NULL)
        launch_fail("mpirun has not set PMIX_NAMESPACE" LAUNCH_HOW, "");
    launch_derive(launch, job);
    if (launch_number("OMPI_COMM_WORLD_LOCAL_SIZE", LAUNCH_RANKS_MAX) == launch->size) {
        launch_host(launch, "127.0.0.1", 9);
        return;
    }
    const char *uri = getenv("OMPI_MCA_orte_hnp_uri");
    if (uri == NULL)
        uri = getenv("PMIX_SERVER_URI41");
    while (uri != NULL && (uri = strstr(uri, "://")) != NULL) {
        uri += 3;
        const char *last = uri + strcspn(uri, ";");
        while (last > uri && *last != ':')  // before the port
            last--;
        while (uri < last) {
            size_t length = strcspn(uri, ",");
            if (length > (size_t)(last - uri))
                length = (size_t)(last - uri);
            int bare = uri[0] == '[';
            if (strncmp(uri, "127.", 4) != 0)
                launch_host(launch, uri + bare, length - 2 * (size_t)bare);
            uri += length + (length < (size_t)(last - uri));
        }
    }
    if (launch->hosts[0] == '\0')
        launch_fail("mpirun has not set OMPI_MCA_orte_hnp_uri" LAUNCH_HOW, "");
}

static inline void launch_where(struct launch *launch, const char *launcher)
{
    const char *told = getenv("CROSSTIE_RENDEZVOUS");
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (told != NULL) {
        launch_told(launch, told);
        launch->key = launch_hash(told);
    } else if (host != NULL && host[0] != '\0' && port == NULL) {
        launch_fail("MASTER_ADDR is set but MASTER_PORT is not" LAUNCH_HOW, "");
    } else if (host != NULL && host[0] != '\0') {
        const char *run = getenv("TORCHELASTIC_RUN_ID");
        const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");
        char name[512];
        snprintf(name, sizeof name, "%s:%s %s", host, port, run != NULL ? run : "");
        launch_derive(launch, name);
        launch_host(launch, host, strlen(host));
        // torchrun's agent listens on its port itself, and says so; rank 0 then takes another.
        if (taken == NULL || strcmp(taken, "True") != 0)
            launch->port = (int)launch_number("MASTER_PORT", 65535);
    } else if (strcmp(launcher, "mpirun") == 0) {
        launch_where_mpirun(launch);
    } else if (getenv("SLURM_STEP_ID") != NULL && strcmp(launcher, "") != 0) {
        launch_where_slurm(launch);
    } else {
        launch_fail("nobody says where the ranks meet" LAUNCH_HOW, "");
    }
    if (launch->port == 0)
        launch_fail("no port:", "MASTER_PORT");
}

// In the order in which they are believed: torchrun is started inside a task of srun or mpirun, and
// leaves a mark; its plain names come last. A batch script has SLURM_PROCID too; only tasks of a
// step have the step's number, and those without tasks of their own the highest ones.
static const struct launch_names {
    const char *launcher, *mark, *rank, *size, *local_rank;
} launch_names[] = {
    {"", "CROSSTIE_RANK", "CROSSTIE_RANK", "CROSSTIE_SIZE", "CROSSTIE_LOCAL_RANK"},
    {"", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"pmi", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
    {"srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"pmi", "PMIX_RANK", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"},
    {"", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
};

// Ends the program when variables of a launcher are set that do not make a launch.
static inline void launch_incomplete(void)
{
    if (getenv("CROSSTIE_RENDEZVOUS") != NULL && getenv("CROSSTIE_RANK") == NULL)
        launch_fail("CROSSTIE_RENDEZVOUS is set, CROSSTIE_RANK and CROSSTIE_SIZE are not, and no "
                    "launcher is seen; set all, or none", "");
    if (getenv("CROSSTIE_SIZE") != NULL && getenv("CROSSTIE_RANK") == NULL)
        launch_fail("CROSSTIE_SIZE is set but CROSSTIE_RANK is not", "");
    if (getenv("RANK") != NULL && getenv("WORLD_SIZE") == NULL)
        launch_fail("RANK is set but WORLD_SIZE is not", "");
    const char *tasks = getenv("SLURM_NTASKS");
    if (tasks != NULL && strtol(tasks, NULL, 10) > 1 && getenv("SLURM_PROCID") != NULL &&
        getenv("SLURM_STEP_ID") == NULL)
        launch_fail("a batch script is none of the job's tasks: start it with srun", "");
}

// Whether this process is one of several that a launcher started; fills all but the sockets.
static inline int launch_find(struct launch *launch)
{
    memset(launch, 0, sizeof *launch);
    for (size_t at = 0; at < sizeof launch_names / sizeof launch_names[0]; at++) {
        const struct launch_names *names = &launch_names[at];
        const char *step = getenv("SLURM_STEP_ID");
        if (getenv(names->mark) == NULL || getenv(names->rank) == NULL)
            continue;
        if (strcmp(names->launcher, "srun") == 0 &&
            (step == NULL || strtoul(step, NULL, 10) >= 0xfffffff0u))
            continue;
        long size = launch_number(names->size, LAUNCH_RANKS_MAX);
        if (size <= 0)
            launch_fail("set CROSSTIE_RANK and CROSSTIE_SIZE, since the launcher does not set",
                        names->size);
        if (size == 1 && getenv("CROSSTIE_RENDEZVOUS") != NULL)
            launch_fail("CROSSTIE_RENDEZVOUS is set, but one process meets no other; it is 1:",
                        names->size);
        if (size == 1)
            return 0;
        launch->size = (int)size;
        launch->rank = (int)launch_number(names->rank, size - 1);
        long local = launch_number(names->local_rank, LAUNCH_RANKS_MAX);
        launch->local_rank = local < 0 ? launch->rank : (int)local;
        launch_where(launch, names->launcher);
        return 1;
    }
    launch_incomplete();
    return 0;
}

// ---------------------------------------------------------------- sockets

static inline long launch_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Sends or receives all of it, or says 0: the other end is gone or too late.
static inline int launch_move(int fd, void *data, size_t bytes, int out, long deadline_ms)
{
    char *at = (char *)data;
    while (bytes > 0) {
        struct pollfd poller = {fd, (short)(out ? POLLOUT : POLLIN), 0};
        long left = deadline_ms - launch_ms();
        if (left <= 0 || poll(&poller, 1, (int)left) == 0)
            return 0;
        ssize_t moved = out ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : recv(fd, at, bytes, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (moved <= 0)
            return 0;
        at += moved;
        bytes -= (size_t)moved;
    }
    return 1;
}

static inline void launch_hello(const struct launch *launch, unsigned char *hello)
{
    uint32_t size = (uint32_t)launch->size, rank = (uint32_t)launch->rank;
    memcpy(hello, launch_magic, 8);
    for (int at = 0; at < 8; at++)
        hello[8 + at] = (unsigned char)(launch->key >> (8 * at));
    for (int at = 0; at < 4; at++) {
        hello[16 + at] = (unsigned char)(size >> (8 * at));
        hello[20 + at] = (unsigned char)(rank >> (8 * at));
    }
}

// Rank 0's listener: on the loopback address when all meet there, else on all addresses.
static inline int launch_listen(const struct launch *launch)
{
    char port[8];
    snprintf(port, sizeof port, "%d", launch->port);
    int local = strncmp(launch->hosts, "127.", 4) == 0 || strcmp(launch->hosts, "::1") == 0;
    const int families[2] = {AF_INET6, AF_INET}, one = 1;
    for (int at = 0; at < 2; at++) {
        struct addrinfo hints, *found = NULL;
        memset(&hints, 0, sizeof hints);
        hints.ai_family = local ? AF_UNSPEC : families[at];
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_PASSIVE;
        if (getaddrinfo(local ? launch->hosts : NULL, port, &hints, &found) != 0)
            continue;
        int fd = socket(found->ai_family, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        int bound = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1024) == 0;
        freeaddrinfo(found);
        if (bound)
            return fd;
        close(fd);
    }
    fprintf(stderr, "launch: rank 0 cannot listen at %s, port %d (%s)%s" LAUNCH_HOW "\n",
            launch->hosts, launch->port, strerror(errno),
            errno == EADDRINUSE ? ": a second rank 0, or another program, has the port" : "");
    exit(1);
}

// A connection that has not said who it is. Strangers are told nothing.
struct launch_stranger {
    int fd;
    long since_ms;
};

// 0: has not said all yet; -1: is no rank of this launch; else the rank.
static inline int launch_hear(const struct launch *launch, const struct launch_stranger *stranger)
{
    unsigned char hello[LAUNCH_HELLO], wanted[LAUNCH_HELLO];
    ssize_t length = recv(stranger->fd, hello, sizeof hello, MSG_PEEK | MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        length = 0;
    else if (length <= 0)
        return -1;
    launch_hello(launch, wanted);
    if (memcmp(hello, wanted, length < 20 ? (size_t)length : 20) != 0)
        return -1;
    if (length < (ssize_t)sizeof hello)
        return launch_ms() - stranger->since_ms > LAUNCH_STEP_MS ? -1 : 0;
    uint32_t rank = 0;
    for (int at = 0; at < 4; at++)
        rank |= (uint32_t)hello[20 + at] << (8 * at);
    return rank == 0 || rank >= (uint32_t)launch->size ? -1 : (int)rank;
}

// Whether the other end is there. What it has said is left to be read.
static inline int launch_open(int fd)
{
    char byte;
    ssize_t length = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR));
}

// Answers a rank and keeps its connection; whether it was not here before.
static inline int launch_take(struct launch *launch, int fd, int rank)
{
    unsigned char hello[LAUNCH_HELLO];
    char magic[8];
    const int one = 1;
    int again = launch->fds[rank] != 0;
    int twin = again && launch_open(launch->fds[rank]);
    memcpy(magic, twin ? launch_twin : launch_magic, 8);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    long deadline = launch_ms() + LAUNCH_STEP_MS;
    if (!launch_move(fd, hello, sizeof hello, 0, deadline) ||
        !launch_move(fd, magic, sizeof magic, 1, deadline)) {
        close(fd);
        return 0;
    }
    if (twin) {
        fprintf(stderr, "launch: two processes say that they are rank %d\n", rank);
        exit(1);
    }
    if (again)  // it waited too long for our answer, and came again
        close(launch->fds[rank]);
    launch->fds[rank] = fd;
    return !again;
}

// Waits until all ranks are here, with so many strangers at a time; others wait in the kernel.
static inline void launch_serve(struct launch *launch)
{
    enum { STRANGERS = 64 };
    struct launch_stranger strangers[STRANGERS];
    int listener = launch_listen(launch), count = 0, here = 1;
    long deadline = launch_ms() + LAUNCH_SECONDS * 1000;
    while (here < launch->size) {
        struct pollfd poller = {listener, POLLIN, 0};
        if (count < STRANGERS && poll(&poller, 1, 1) > 0) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0)
                strangers[count++] = (struct launch_stranger){fd, launch_ms()};
        } else if (count == STRANGERS) {
            launch_sleep(1000000);
        }
        for (int at = 0; at < count; at++) {
            int rank = launch_hear(launch, &strangers[at]);
            if (rank == 0)
                continue;
            if (rank > 0)
                here += launch_take(launch, strangers[at].fd, rank);
            else
                close(strangers[at].fd);
            strangers[at--] = strangers[--count];
        }
        if (launch_ms() > deadline) {
            fprintf(stderr, "launch: waited %d s at %s, port %d: %d of %d ranks have come\n",
                    LAUNCH_SECONDS, launch->hosts, launch->port, here, launch->size);
            exit(1);
        }
    }
    while (count > 0)
        close(strangers[--count].fd);
    close(listener);
}

// One attempt to reach rank 0 at one address. -1: it is not there.
static inline int launch_reach(const struct launch *launch, const struct addrinfo *address)
{
    unsigned char hello[LAUNCH_HELLO];
    char answer[8];
    const int one = 1;
    int fd = socket(address->ai_family, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    // A connect that takes longer than a step is given up.
    struct timeval step = {LAUNCH_STEP_MS / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &step, sizeof step);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    launch_hello(launch, hello);
    long deadline = launch_ms() + 2 * LAUNCH_STEP_MS;
    if (connect(fd, address->ai_addr, address->ai_addrlen) == 0 &&
        launch_move(fd, hello, sizeof hello, 1, deadline) &&
        launch_move(fd, answer, sizeof answer, 0, deadline)) {
        if (memcmp(answer, launch_magic, sizeof answer) == 0)
            return fd;
        if (memcmp(answer, launch_twin, sizeof answer) == 0) {
            fprintf(stderr, "launch: two processes say that they are rank %d, and this is one of "
                    "them\n", launch->rank);
            exit(1);
        }
    }
    close(fd);
    return -1;
}

static inline int launch_reach_any(const struct launch *launch)
{
    char hosts[sizeof launch->hosts], port[8], *rest = NULL;
    memcpy(hosts, launch->hosts, sizeof hosts);
    snprintf(port, sizeof port, "%d", launch->port);
    for (char *host = strtok_r(hosts, ",", &rest); host; host = strtok_r(NULL, ",", &rest)) {
        struct addrinfo hints, *found = NULL;
        memset(&hints, 0, sizeof hints);
        hints.ai_socktype = SOCK_STREAM;
        if (getaddrinfo(host, port, &hints, &found) != 0)
            continue;
        int fd = -1;
        for (struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next)
            fd = launch_reach(launch, at);
        freeaddrinfo(found);
        if (fd >= 0)
            return fd;
    }
    return -1;
}

// ---------------------------------------------------------------- meeting

static inline void launch_meet(struct launch *launch)
{
    if (launch->rank == 0) {
        launch_serve(launch);
        return;
    }
    long deadline = launch_ms() + LAUNCH_SECONDS * 1000;
    while ((launch->fds[0] = launch_reach_any(launch)) < 0) {
        if (launch_ms() > deadline) {
            fprintf(stderr, "launch: rank 0 did not answer at %s, port %d, for %d s" LAUNCH_HOW
                    "\n", launch->hosts, launch->port, LAUNCH_SECONDS);
            exit(1);
        }
        launch_sleep(10000000);
    }
}

// To be called while something is waited for that other ranks are to do, such as to connect: ends
// the program when one is gone. Nothing happens outside a launch.
static inline void launch_look(const struct launch *launch)
{
    int first = launch->rank == 0 ? 1 : 0, end = launch->rank == 0 ? launch->size : 1;
    for (int at = first; at < end && launch->size > 0; at++) {
        if (launch_open(launch->fds[at]))
            continue;
        fprintf(stderr, "launch: rank %d is gone; its own error says why\n", at);
        exit(1);
    }
}

static inline void launch_part(int fd, void *data, size_t bytes, int out)
{
    // Far more than any step of an example takes.
    if (!launch_move(fd, data, bytes, out, launch_ms() + 4 * LAUNCH_SECONDS * 1000))
        launch_fail("another rank is gone, or does not come", "");
}

// Gives `bytes` bytes, as every rank does, and takes those of all ranks, in their order.
static inline void launch_gather(struct launch *launch, const void *mine, size_t bytes, void *all)
{
    char *parts = (char *)all;
    memcpy(parts + (size_t)launch->rank * bytes, mine, bytes);
    if (launch->rank != 0) {
        launch_part(launch->fds[0], parts + (size_t)launch->rank * bytes, bytes, 1);
        launch_part(launch->fds[0], parts, bytes * (size_t)launch->size, 0);
        return;
    }
    for (int rank = 1; rank < launch->size; rank++)
        launch_part(launch->fds[rank], parts + (size_t)rank * bytes, bytes, 0);
    for (int rank = 1; rank < launch->size; rank++)
        launch_part(launch->fds[rank], parts, bytes * (size_t)launch->size, 1);
}

// The two functions of xtie_group_config, whose context is the launch. Where a rank is gone, they
// end the program, as the two above do.
static inline int launch_group_gather(void *launch, const void *mine, size_t bytes, void *all)
{
    launch_gather((struct launch *)launch, mine, bytes, all);
    return 0;
}

static inline int launch_group_look(void *launch)
{
    launch_look((const struct launch *)launch);
    return 0;
}

// Returns when all ranks are here.
static inline void launch_barrier(struct launch *launch)
{
    char all[LAUNCH_RANKS_MAX];
    launch_gather(launch, "", 1, all);
}

static inline void launch_end(struct launch *launch)
{
    int count = launch->rank == 0 ? launch->size : 1;
    for (int at = launch->rank == 0 ? 1 : 0; at < count; at++)
        close(launch->fds[at]);
}

#endif  // LAUNCH_H
