/* Connections in the making: peers that are late, stopped or of another network, listeners that
 * are used again, limits that are too low. Included by scenarios.h alone. */

/* ---- other networks ---- */

/* Handles as other networks write them, by their own definitions. */
static void socket_handle(unsigned char *handle) {
    /* NCCL's sockets: address (28 bytes of 32), magic, sockets, threads, stage */
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(41234)};
    uint64_t magic = 0x564ab9f2fc4b9d6cu;
    int counts[2] = {1, 1};
    CHECK(inet_pton(AF_INET, "192.0.2.7", &at.sin_addr) == 1);
    memset(handle, 0, HANDLE);
    memcpy(handle, &at, sizeof at), memcpy(handle + 32, &magic, 8);
    memcpy(handle + 40, counts, sizeof counts);
}

static void verbs_handle(unsigned char *handle) {
    /* NCCL's InfiniBand: address, magic, stage */
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(50001)};
    uint64_t magic = 0x8d23f60b1c2a77e5u;
    CHECK(inet_pton(AF_INET6, "2001:db8::17", &at.sin6_addr) == 1);
    memset(handle, 0, HANDLE);
    memcpy(handle, &at, sizeof at), memcpy(handle + 32, &magic, 8);
}

static void libfabric_handle(unsigned char *handle) {
    /* an endpoint's name of 56 bytes, which begins with a GID, then a number */
    static const unsigned char gid[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x06, 0x3c, 0x2f, 0xff,
        0xfe, 0xd1, 0x44, 0x09};
    uint32_t queue_pair = 0x2a, key = 0x5e0c81f3, number = 4;
    memset(handle, 0, HANDLE);
    memcpy(handle, gid, 16), memcpy(handle + 16, &queue_pair, 4), memcpy(handle + 20, &key, 4);
    memcpy(handle + 56, &number, 4);
}

static void mesh_handle(unsigned char *handle) {
    /* a magic, addresses and a port */
    uint32_t words[8] = {0x4d455348, 2, 0x0a00000a, 0xffffff00, 0x0a01000a, 0xffffff00, 47101, 0};
    memset(handle, 0, HANDLE);
    memcpy(handle, words, sizeof words);
}

static const struct {
    void (*write)(unsigned char *);
    const char *said;
} OTHERS[] = {
    {socket_handle, "but of another network at 192.0.2.7:41234: "},
    {verbs_handle, "but of another network at [2001:db8::17]:50001: "},
    {libfabric_handle, "but of another network: "},
    {mesh_handle, "but of another network: "},
};

/* A rank has the plugin, the other has not: what it gives is the handle of another network. The
 * connect ends at once, by name; the accept of the same communicator does too, where a table tells
 * communicators apart, else it warns. Another communicator waits on, warns, and is served. */
static void one_rank_alone(void) {
    CHECK(!setenv("CROSSTIE_CONNECT_TIMEOUT_MS", "300", 1));
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        struct net net = started(), other = started();
        unsigned char mine[HANDLE], theirs[HANDLE], handle[HANDLE];
        void *listener = NULL, *waits = NULL, *comm = STALE;
        OK(net_listen(&net, 0, mine, &listener));
        OK(net_listen(&other, 0, handle, &waits));
        OK(net_accept(&net, listener, &comm, NULL));
        CHECK(!comm);
        OTHERS[i].write(theirs);
        comm = STALE;
        CHECK(net_connect(&net, 0, theirs, &comm, NULL) == ARGUMENT && !comm);
        CHECK(was_logged("2 NET/crosstie : ") && was_logged("this is not a handle of crosstie"));
        CHECK(was_logged(OTHERS[i].said));
        CHECK(was_logged("set the plugin on every rank (NCCL_NET_PLUGIN)"));
        int rc = SUCCESS;
        comm = STALE;
        while (!(rc = net_accept(&net, listener, &comm, NULL)) &&
               !was_logged("has waited 300 ms for a connection")) CHECK(!comm);
        CHECK(!comm && rc == (version < 11 ? SUCCESS : USAGE));
        CHECK(was_logged("no rank will connect") == (version >= 11));
        /* nothing is known of the other's ranks */
        while (!was_logged("has waited 300 ms for a connection")) {
            OK(net_accept(&other, waits, &comm, NULL));
            CHECK(!comm);
        }
        struct pair pair = joined(&other, waits, handle);
        pass(&other, pair, i);
        part(&other, pair);
        OK(net_close(&other, CLOSE_LISTEN, waits));
        OK(net_close(&net, CLOSE_LISTEN, listener));
        OK(net_finalize(&other));
        OK(net_finalize(&net));
        forget_log();
    }
}

/* A rank that was served has not waited since: when it waits again, its patience begins anew. */
static void patience_anew(void) {
    CHECK(!setenv("CROSSTIE_CONNECT_TIMEOUT_MS", "300", 1));
    struct net net = started();
    unsigned char handle[HANDLE], unused[HANDLE];
    void *listener = NULL, *clock = NULL, *comm = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    OK(net_listen(&net, 0, unused, &clock));
    OK(net_accept(&net, listener, &comm, NULL));
    CHECK(!comm);
    struct pair pair = joined(&net, listener, handle);
    forget_log();
    while (!was_logged("has waited 300 ms for a connection")) {
        OK(net_accept(&net, clock, &comm, NULL));
        CHECK(!comm);
    }
    forget_log();
    OK(net_accept(&net, listener, &comm, NULL));
    CHECK(!comm && !was_logged("for a connection"));
    while (!was_logged("has waited 300 ms for a connection")) {
        OK(net_accept(&net, listener, &comm, NULL));
        CHECK(!comm);
    }
    part(&net, pair);
    OK(net_close(&net, CLOSE_LISTEN, clock));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* ---- peers that are late ---- */

/* The peer's process stands still: connect and accept say "not yet" a hundred times each, which
 * they could not if either waited for it; then it goes on, and so do they. */
static void stopped_in_set_up(void) {
    struct net net = started();
    unsigned char mine[HANDLE], theirs[HANDLE];
    struct pair pair = {NULL, NULL};
    void *listener = NULL;
    OK(net_listen(&net, 0, mine, &listener));
    tell(mine, HANDLE), hear(theirs, HANDLE);
    meet();
    if (rank == 0) {
        int status = 0;
        CHECK(!kill(peer_process, SIGSTOP));
        CHECK(waitpid(peer_process, &status, WUNTRACED) == peer_process && WIFSTOPPED(status));
        for (int i = 0; i < 100; i++) {
            OK(net_connect(&net, 0, theirs, &pair.send, NULL));
            OK(net_accept(&net, listener, &pair.recv, NULL));
            CHECK(!pair.send && !pair.recv);
        }
        CHECK(!kill(peer_process, SIGCONT));
    }
    if (rank == 0) tell("", 1);
    /* it waits for that without a call */
    char byte;
    if (rank == 1) hear(&byte, 1);
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(&net, 0, theirs, &pair.send, NULL));
        if (!pair.recv) OK(net_accept(&net, listener, &pair.recv, NULL));
    }
    OK(net_close(&net, CLOSE_LISTEN, listener));
    exchange(&net, pair, SHORT, 3, 30);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* One listener serves several, one after the other and at once; the connections outlive it; a
 * new one may have its place, and who comes with the old one's handle is told. */
static void listener_reuse(void) {
    enum { MOST = 6 };
    struct net net = started();
    unsigned char mine[HANDLE], theirs[HANDLE], copies[MOST][HANDLE];
    struct pair pairs[MOST];
    void *listener = NULL;
    OK(net_listen(&net, 0, mine, &listener));
    tell(mine, HANDLE), hear(theirs, HANDLE);
    for (int i = 0; i < MOST; i++) memcpy(copies[i], theirs, HANDLE), pairs[i] = (struct pair){0};
    for (int i = 0; i < 2; i++)
        while (!pairs[i].send || !pairs[i].recv) {
            if (!pairs[i].send) OK(net_connect(&net, 0, copies[i], &pairs[i].send, NULL));
            if (!pairs[i].recv) OK(net_accept(&net, listener, &pairs[i].recv, NULL));
        }
    for (int left = 1; left;) {
        left = 0;
        for (int i = 2; i < MOST; i++) {
            if (!pairs[i].send) OK(net_connect(&net, 0, copies[i], &pairs[i].send, NULL));
            if (!pairs[i].recv) OK(net_accept(&net, listener, &pairs[i].recv, NULL));
            left += !pairs[i].send + !pairs[i].recv;
        }
    }
    OK(net_close(&net, CLOSE_LISTEN, listener));
    meet();
    void *none = NULL;
    int rc;
    while (!(rc = net_connect(&net, 0, theirs, &none, NULL))) CHECK(!none);
    CHECK(rc == REMOTE && !none && was_logged("no listener at "));
    OK(net_listen(&net, 0, mine, &listener));
    CHECK(memcmp(mine, theirs, HANDLE));
    /* each of the peer's connections is one of ours: their first messages say which */
    unsigned char got[MOST], sent[MOST];
    void *in[MOST], *out[MOST], *recvs[MOST], *sends[MOST];
    for (int i = 0; i < MOST; i++) {
        got[i] = 99, sent[i] = (unsigned char)i;
        OK(net_reg(&net, pairs[i].recv, &got[i], 1, HOST_MEMORY, &in[i]));
        OK(net_reg(&net, pairs[i].send, &sent[i], 1, HOST_MEMORY, &out[i]));
        recvs[i] = recv_one(&net, pairs[i].recv, &got[i], 1, 1, in[i]);
        sends[i] = send_one(&net, pairs[i].send, &sent[i], 1, 1, out[i]);
    }
    for (int i = 0, seen = 0; i < MOST; i++) {
        OK(finish(&net, recvs[i], NULL));
        OK(finish(&net, sends[i], NULL));
        CHECK(got[i] < MOST && !(seen & 1 << got[i]));
        seen |= 1 << got[i];
        OK(net_dereg(&net, pairs[i].recv, in[i]));
        OK(net_dereg(&net, pairs[i].send, out[i]));
    }
    meet();
    for (int i = 0; i < MOST; i++) part(&net, pairs[i]);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* One listener serves as many connections as doc/nccl.md says, which all stand at once and carry
 * bytes, beside as many others as its endpoint takes: these are served, too. */
static void listener_of_many(void) {
    enum { MANY = 65, OTHERS = 31 };
    struct net net = started();
    unsigned char handle[HANDLE], copies[MANY][HANDLE], got[MANY], sent[MANY];
    unsigned char handles[OTHERS][HANDLE];
    void *listener = NULL, *comms[MANY] = {NULL}, *known[MANY], *requests[MANY], *others[OTHERS];
    enum slot end = rank ? CLOSE_RECV : CLOSE_SEND;
    if (rank) {
        OK(net_listen(&net, 0, handle, &listener));
        for (int i = 0; i < OTHERS; i++) OK(net_listen(&net, 0, handles[i], &others[i]));
        tell(handle, HANDLE), tell(handles, sizeof handles);
    } else {
        hear(handle, HANDLE), hear(handles, sizeof handles);
    }
    for (int i = 0; i < MANY; i++) memcpy(copies[i], handle, HANDLE);
    for (int i = 0; i < MANY; i++) {
        while (!comms[i] && !rank) OK(net_connect(&net, 0, copies[i], &comms[i], NULL));
        while (!comms[i] && rank) OK(net_accept(&net, listener, &comms[i], NULL));
    }
    for (int i = 0; i < MANY; i++) {
        unsigned char *byte = rank ? &got[i] : &sent[i];
        *byte = (unsigned char)i;
        OK(net_reg(&net, comms[i], byte, 1, HOST_MEMORY, &known[i]));
        requests[i] = rank ? recv_one(&net, comms[i], byte, 1, 1, known[i])
                           : send_one(&net, comms[i], byte, 1, 1, known[i]);
    }
    int seen[MANY] = {0};
    for (int i = 0; i < MANY; i++) {
        OK(finish(&net, requests[i], NULL));
        if (rank) CHECK(got[i] < MANY && !seen[got[i]]++);
        OK(net_dereg(&net, comms[i], known[i]));
    }
    for (int i = 0; i < OTHERS; i++) {
        void *comm = NULL;
        while (!comm && !rank) OK(net_connect(&net, 0, handles[i], &comm, NULL));
        while (!comm && rank) OK(net_accept(&net, others[i], &comm, NULL));
        if (rank) OK(net_close(&net, CLOSE_LISTEN, others[i]));
        others[i] = comm;
    }
    meet();
    for (int i = 0; i < MANY; i++) OK(net_close(&net, end, comms[i]));
    for (int i = 0; i < OTHERS; i++) OK(net_close(&net, end, others[i]));
    if (rank) OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* Connections that one side has closed, and the other has not, have places still, and no listener
 * is where they have taken all: who comes to it is served. */
static void listener_beside_closed(void) {
    enum { ROUNDS = 24, EACH = 14 };
    struct net net = started();
    struct pair pairs[ROUNDS * EACH], last;
    unsigned char unused[HANDLE];
    void *stays = NULL;
    /* as long as it stands, so does its endpoint */
    OK(net_listen(&net, 0, unused, &stays));
    for (int round = 0; round < ROUNDS; round++) {
        struct pair *its = pairs + round * EACH;
        for (int i = 0; i < EACH; i++) its[i] = cross(&net, 0);
        for (int i = 0; rank == 0 && i < EACH; i++) part(&net, its[i]);
        meet();
        last = cross(&net, 0);
        exchange(&net, last, SHORT, 3, 3);
        meet();
        part(&net, last);
    }
    for (int i = 0; rank == 1 && i < ROUNDS * EACH; i++) part(&net, pairs[i]);
    OK(net_close(&net, CLOSE_LISTEN, stays));
    OK(net_finalize(&net));
}

/* Ranks of one host that send through one of them share its connection (NCCL 2.13 to 2.26, PXN): it
 * asks for several, into one place, and takes the first that it is given; the others it never asks
 * for again. The peer likewise takes the first that it is given by any of its listeners, and closes
 * all of these. Which is first, both must see alike. */
static void taken_alone(void) {
    enum { SHARERS = 2, ROUNDS = 20 };
    struct net net = started();
    unsigned char handles[SHARERS][HANDLE], data[100];
    for (int round = 0; round < ROUNDS; round++) {
        void *listeners[SHARERS], *comm = NULL, *known = NULL;
        int mine = 0, theirs = 0;
        for (int i = 0; rank == 1 && i < SHARERS; i++)
            OK(net_listen(&net, 0, handles[i], &listeners[i]));
        if (rank == 1) tell(handles, sizeof handles);
        else hear(handles, sizeof handles);
        /* in every other round the peer looks when all are made that are wanted, and where what is
         * not taken comes first */
        if (rank == 1 && round % 2) meet();
        for (int turn = 0; !comm; turn++) {
            mine = rank == 1 && round % 2 ? SHARERS - 1 - turn % SHARERS : turn % SHARERS;
            if (rank == 0) OK(net_connect(&net, 0, handles[mine], &comm, NULL));
            else OK(net_accept(&net, listeners[mine], &comm, NULL));
        }
        if (rank == 0 && round % 2) meet();
        tell(&mine, sizeof mine), hear(&theirs, sizeof theirs);
        if (mine != theirs) FAIL("round %d: %d is kept here, and %d there", round, mine, theirs);
        for (int i = 0; rank == 1 && i < SHARERS; i++)
            OK(net_close(&net, CLOSE_LISTEN, listeners[i]));
        OK(net_reg(&net, comm, data, sizeof data, HOST_MEMORY, &known));
        if (rank == 0) {
            fill(data, sizeof data, (uint64_t)round);
            OK(finish(&net, send_one(&net, comm, data, sizeof data, 1, known), NULL));
        } else {
            OK(finish(&net, recv_one(&net, comm, data, sizeof data, 1, known), NULL));
            verify(data, sizeof data, (uint64_t)round);
        }
        OK(net_dereg(&net, comm, known));
        meet();
        OK(net_close(&net, rank ? CLOSE_RECV : CLOSE_SEND, comm));
    }
    OK(net_finalize(&net));
}

/* GPUs of one process: a service thread each opens the plugin, connects and closes, a progress
 * thread each moves bytes, all at once. */
struct gpu {
    struct net net;
    void *listener;
    unsigned char mine[HANDLE], theirs[HANDLE];
};

static void *gpu_run(void *argument) {
    struct gpu *gpu = argument;
    struct pair pair = {NULL, NULL};
    void *own = NULL;
    unsigned char handle[HANDLE];
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(&gpu->net, 0, gpu->theirs, &pair.send, NULL));
        if (!pair.recv) OK(net_accept(&gpu->net, gpu->listener, &pair.recv, NULL));
    }
    OK(net_close(&gpu->net, CLOSE_LISTEN, gpu->listener));
    /* and one to itself, as NCCL 2.20 to 2.23 have them for registration */
    OK(net_listen(&gpu->net, 0, handle, &own));
    struct pair loop = joined(&gpu->net, own, handle);
    OK(net_close(&gpu->net, CLOSE_LISTEN, own));
    exchange(&gpu->net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 33);
    pass(&gpu->net, loop, 5);
    part(&gpu->net, loop);
    /* the last message of the peer's was received: it may be gone */
    part(&gpu->net, pair);
    return NULL;
}

static void gpus(void) {
    enum { GPUS = 4 };
    struct gpu gpu[GPUS];
    pthread_t thread[GPUS];
    for (int i = 0; i < GPUS; i++) {
        gpu[i].net = started();
        OK(net_listen(&gpu[i].net, 0, gpu[i].mine, &gpu[i].listener));
        tell(gpu[i].mine, HANDLE), hear(gpu[i].theirs, HANDLE);
    }
    for (int i = 0; i < GPUS; i++) CHECK(!pthread_create(&thread[i], NULL, gpu_run, &gpu[i]));
    for (int i = 0; i < GPUS; i++) CHECK(!pthread_join(thread[i], NULL));
    meet();
    for (int i = 0; i < GPUS; i++) OK(net_finalize(&gpu[i].net));
}

/* ---- limits ---- */

static void descriptors_allow(rlim_t count) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = count;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
}

/* The next descriptor that would be opened: as a limit it allows none more. */
static rlim_t descriptors_now(void) {
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(next >= 0 && !close(next));
    return (rlim_t)next;
}

/* While connections are made one side may open no descriptor more: the side that connects says so
 * with the number; the side that is connected to says it in its own log, and the other is told
 * whose limit it is. Afterwards all works. */
static void descriptors_in_set_up(void) {
    CHECK(!setenv("CROSSTIE_CONNECT_TIMEOUT_MS", "5000", 1));
    int before = entries("/proc/self/fd");
    for (int scarce = 0; scarce < 2; scarce++) {
        /* what has no finalize closes the last ones later, and would leave numbers to be had */
        while (entries("/proc/self/fd") > before) sched_yield();
        struct net net = started();
        struct rlimit old;
        unsigned char mine[HANDLE], theirs[HANDLE];
        char said[100];
        void *listener = NULL, *comm = NULL;
        int rc = SUCCESS;
        CHECK(!getrlimit(RLIMIT_NOFILE, &old));
        OK(net_listen(&net, 0, mine, &listener));
        tell(mine, HANDLE), hear(theirs, HANDLE);
        rlim_t now = descriptors_now();
        snprintf(said, sizeof said, "no more than %lu file descriptors (ulimit -n)", now);
        meet();
        /* rank 0 connects to rank 1 */
        if (rank == scarce) descriptors_allow(now);
        meet();
        if (rank == 0) {
            while (!(rc = net_connect(&net, 0, theirs, &comm, NULL))) CHECK(!comm);
            CHECK(!comm && rc == (scarce ? REMOTE : SYSTEM));
            CHECK(was_logged(scarce ? "may open no more file descriptors (ulimit -n)" : said));
        }
        meet();
        if (rank == 1 && scarce == 1) while (!was_logged(said)) sched_yield();
        CHECK(!setrlimit(RLIMIT_NOFILE, &old));
        meet();
        struct pair pair = cross(&net, 0);
        exchange(&net, pair, SHORT, 3, 30);
        meet();
        part(&net, pair);
        OK(net_close(&net, CLOSE_LISTEN, listener));
        OK(net_finalize(&net));
        forget_log();
    }
}

/* A number of /proc/self/status in kB. */
static long status_of(const char *name) {
    char line[200];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) kb = atol(line + strlen(name) + 1);
    fclose(file);
    CHECK(kb >= 0);
    return kb;
}

/* No memory may be locked: nothing changes, because nothing is. */
static void locked_memory(void) {
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_MEMLOCK, &none));
    struct net net = started();
    struct pair pair = cross(&net, 0);
    enum { ROOM = 64 << 20 };
    void *memory = malloc(ROOM), *handle = NULL;
    OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &handle));
    exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 44);
    CHECK(status_of("VmLck:") == 0 && status_of("VmPin:") == 0);
    /* what is asked does tell of locked pages */
    if (!geteuid() && !mlock(memory, 4096)) CHECK(status_of("VmLck:") > 0);
    OK(net_dereg(&net, pair.recv, handle));
    meet();
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
    CHECK(!was_logged("2 NET/crosstie"));
}
