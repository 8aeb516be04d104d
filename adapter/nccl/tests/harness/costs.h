/* What set-up costs: time, and resident memory of connections that carry short messages. The
 * figures are printed where HARNESS_COSTS is set; else what does not hang on the machine's load is
 * held to bounds. Included by scenarios.h alone. */

enum {
    COSTS_MOST = 64,
    COSTS_BYTES = 64,
    /* So many messages on each connection go through every place that a message may take. */
    COSTS_ROUNDS = 300,
    /* Bounds of memory. */
    COSTS_FIRST_MAX = 8 << 20,
    COSTS_EACH_MAX = 64 << 10,
    COSTS_USED_MAX = 128 << 10,
};

struct cost {
    void *comm, *memory, *request;
    unsigned char data[COSTS_BYTES];
};

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Bytes of this process that are in memory, each page counted whoever else has it. */
static long resident(void) {
    char line[200];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file);
    while (kib < 0 && fgets(line, sizeof line, file)) sscanf(line, "Rss: %ld kB", &kib);
    fclose(file);
    CHECK(kib >= 0);
    return kib << 10;
}

/* As `hear`, without sleep: what it takes to wake a process is no part of a set-up. */
static void hear_awake(void *bytes, size_t count) {
    for (size_t got = 0; got < count;) {
        ssize_t more = recv(peer_socket, (char *)bytes + got, count - got, MSG_DONTWAIT);
        if (more > 0) {
            got += (size_t)more;
        } else {
            if (!more || errno != EAGAIN) FAIL("rank %d: the other process is gone", rank);
            sched_yield();
        }
    }
}

static void meet_awake(void) {
    char byte = 'm';
    tell(&byte, 1), hear_awake(&byte, 1);
}

/* A listener of rank 1, a connection to it, and memory for a message. */
static void cost_open(struct net *net, struct cost *it) {
    unsigned char handle[HANDLE];
    void *listener = NULL;
    if (rank == 1) {
        OK(net_listen(net, 0, handle, &listener));
        tell(handle, HANDLE);
        while (!it->comm) OK(net_accept(net, listener, &it->comm, NULL));
        OK(net_close(net, CLOSE_LISTEN, listener));
    } else {
        hear_awake(handle, HANDLE);
        while (!it->comm) OK(net_connect(net, 0, handle, &it->comm, NULL));
    }
    OK(net_reg(net, it->comm, it->data, COSTS_BYTES, HOST_MEMORY, &it->memory));
}

static void cost_post(struct net *net, struct cost *it, uint64_t mark) {
    if (rank == 0) fill(it->data, COSTS_BYTES, mark);
    it->request = (rank ? recv_one : send_one)(net, it->comm, it->data, COSTS_BYTES, 1, it->memory);
}

static void cost_finish(struct net *net, struct cost *it, uint64_t mark) {
    int size = 0;
    finish(net, it->request, &size);
    CHECK(size == COSTS_BYTES);
    if (rank == 1) verify(it->data, COSTS_BYTES, mark);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *all, int count) {
    qsort(all, (size_t)count, sizeof *all, by_size);
    return all[count / 2];
}

static void cost_say(const char *what, double figure, const char *unit) {
    if (!getenv("HARNESS_COSTS")) return;
    const char *who = rank ? "accepts" : "connects";
    printf("%s, %s, %s: %.1f %s\n", getenv("CROSSTIE_RAILS"), who, what, figure, unit);
}

/* Memory that is new since `before`, of each of `count`, which may be so much. */
static void cost_memory(const char *what, long before, int count, long most) {
    long each = (resident() - before) / count;
    cost_say(what, (double)each / 1024, "KiB");
#ifndef HARNESS_SANITIZED
    if (each > most && !getenv("HARNESS_COSTS"))
        FAIL("rank %d: %s: %ld bytes, more than %ld", rank, what, each, most);
#else
    (void)most;
#endif
}

/* As many connections as NCCL makes on a large host, each by a listener of its own, with messages
 * in step on all of them: memory that nothing has used is not touched. */
static void costs(void) {
    static struct cost all[COSTS_MOST];
    static double took[COSTS_MOST];
    struct net net = started();
    long before = resident(), first = 0;
    for (int at = 0; at < COSTS_MOST; at++) {
        meet_awake();
        double start = now_us();
        cost_open(&net, &all[at]);
        cost_post(&net, &all[at], 0);
        cost_finish(&net, &all[at], 0);
        meet_awake();
        took[at] = now_us() - start;
        if (at == 0) {
            cost_memory("first connection, memory", before, 1, COSTS_FIRST_MAX);
            first = resident();
        }
    }
    cost_say("first connection", took[0], "us");
    cost_say("further connection, median", median(took + 1, COSTS_MOST - 1), "us");
    cost_memory("further connection, memory", first, COSTS_MOST - 1, COSTS_EACH_MAX);
    for (uint64_t round = 1; round <= COSTS_ROUNDS; round++) {
        /* what is received was posted */
        if (rank == 0) meet_awake();
        for (int at = 0; at < COSTS_MOST; at++) cost_post(&net, &all[at], round);
        if (rank == 1) meet_awake();
        for (int at = 0; at < COSTS_MOST; at++) cost_finish(&net, &all[at], round);
    }
    cost_memory("further connection in use, memory", first, COSTS_MOST - 1, COSTS_USED_MAX);
    for (int at = 0; at < COSTS_MOST; at++) {
        meet_awake();
        OK(net_dereg(&net, all[at].comm, all[at].memory));
        double start = now_us();
        OK(net_close(&net, rank ? CLOSE_RECV : CLOSE_SEND, all[at].comm));
        took[at] = now_us() - start;
    }
    cost_say("close, median", median(took, COSTS_MOST), "us");
    meet_awake();
    OK(net_finalize(&net));
}
