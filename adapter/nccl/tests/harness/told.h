/* What NCCL tells the plugin, and what the plugin tells the log and the profiler. Included by
 * scenarios.h alone. */

/* Hints are taken. */
static void hints(void) {
    struct net net = started();
    int attributes[11];
    memset(attributes, 0xff, sizeof attributes);
    CHECK(net.slot[SET_ATTR]);
    OK(CALL(&net, SET_ATTR, (void *, void *))(net.context, attributes));
    OK(net_finalize(&net));
}

/* A communicator's traffic class is told of with what becomes of it, and nothing without one. */
static void classes(void) {
    static const int asked[] = {-1, 106, 300};
    static const char *const said[] = {NULL,
        "3 NET/crosstie : lo: traffic class 106 is ignored: only RDMA ports have one",
        "3 NET/crosstie : lo: traffic class 300 is ignored: it may be up to 255"};
    for (int i = 0; i < 3; i++) {
        net_class = asked[i];
        struct net net = started();
        struct pair pair = cross(&net, 0);
        exchange(&net, pair, SHORT, 3, 30);
        CHECK(said[i] ? was_logged(said[i]) : !was_logged("traffic class"));
        meet();
        part(&net, pair);
        OK(net_finalize(&net));
        forget_log();
    }
}

/* What shares the resources of a communicator may outlive it, and is told of as before. */
static void outlived(void) {
    struct net net = started();
    struct pair of_parent = cross(&net, 0);
    exchange(&net, of_parent, SHORT, 3, 30);
    meet();
    OK(net_finalize(&net));
    forget_log();
    meet();
    struct pair of_child = cross(&net, 0);
    CHECK(was_logged("connected to ") && was_logged("connected by "));
    exchange(&net, of_child, SHORT, 3, 30);
    exchange(&net, of_parent, SHORT, 3, 30);
    meet();
    part(&net, of_parent);
    forget_log();
    part(&net, of_child);
    CHECK(was_logged(" bytes sent to "));
}

/* ---- the profiler ---- */

static int begun, ended, parents[2], operations[2];
static size_t begun_bytes;
static int events[64];

static int profiler(void **event, int kind, void *parent, int64_t plugin, void *data) {
    CHECK(plugin == (2 << 16 | 1) && event);
    if (kind == 0) {
        unsigned char *told = data;
        int operation;
        size_t bytes;
        memcpy(&operation, told + 12, 4), memcpy(&bytes, told + 16, 8);
        CHECK(told[0] == 1 && parent == (void *)parents && (operation == 0 || operation == 1));
        CHECK(begun < 64);
        *event = &events[begun];
        begun++, operations[operation]++, begun_bytes += bytes;
        return 0;
    }
    CHECK(kind == 1 && *event >= (void *)events && *event < (void *)(events + 64));
    CHECK(++*(int *)*event == 1);
    ended++;
    return 0;
}

/* NCCL's own leaves the event as it is where its user wants none, and says success. */
static int profiler_of_nothing(void **event, int kind, void *parent, int64_t plugin, void *data) {
    if (kind != 0) FAIL("the end of an event that there is not");
    CHECK(plugin == (2 << 16 | 1) && event && data && parent == (void *)parents);
    begun++;
    return 0;
}

/* NCCL gives every request a parent; where the profiler made no event of it, none is ended. */
static void profiled_without_events(void) {
    net_profiler = (void *)profiler_of_nothing, net_parent = parents;
    struct net net = started();
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SHORT, 3, 30);
    CHECK(begun == 60);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Each request with a parent begins an event for each of its messages, and ends it; one without
 * does not, and what is outstanding ends when its connection is closed. */
static void profiled(void) {
    net_profiler = (void *)profiler;
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[1000];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, 500, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory + 500, 500, HOST_MEMORY, &out));
    for (int round = 0; round < 4; round++) {
        void *data[2] = {memory, memory + 200}, *handles[2] = {in, in};
        size_t sizes[2] = {200, 200};
        int tags[2] = {1, 2}, got[2] = {0};
        net_parent = round % 2 ? parents : NULL;
        void *recv = recv_group(&net, pair.recv, 2, data, sizes, tags, handles, STALE);
        void *first = send_one(&net, pair.send, memory + 500, 100, 1, out);
        void *second = send_one(&net, pair.send, memory + 600, 100, 2, out);
        OK(finish(&net, recv, got));
        OK(finish(&net, first, NULL));
        OK(finish(&net, second, NULL));
        CHECK(got[0] == 100 && got[1] == 100);
        CHECK(begun == (round + 1) / 2 * 4 && ended == begun);
    }
    CHECK(operations[0] == 4 && operations[1] == 4 && begun_bytes == 2 * (100 + 100 + 200 + 200));
    recv_one(&net, pair.recv, memory, 100, 1, in);
    CHECK(begun == 9 && ended == 8);
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    CHECK(begun == 9 && ended == 9);
    OK(net_finalize(&net));
}

/* ---- the log ---- */

/* A receive that nobody sends for is told of as a warning, with who owes what. */
static void stalled(void) {
    CHECK(!setenv("CROSSTIE_STALL_MS", "100", 1));
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[100];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, 100, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, 100, HOST_MEMORY, &out));
    if (rank == 0) {
        void *request = recv_one(&net, pair.recv, memory, 100, 1, in);
        int done = 0;
        while (!was_logged("2 NET/crosstie : stalled: ")) OK(net_test(&net, request, &done, NULL));
        char who[60];
        snprintf(who, sizeof who, " from nccl-harness (pid %d) on host ", peer_process);
        CHECK(!done && was_logged("stalled: receive of group 0, tag 1, 100 bytes, open for "));
        CHECK(was_logged("waits for a message") && was_logged(who) && was_logged(" owes "));
        int over_tcp = !strcmp(getenv("CROSSTIE_RAILS"), "tcp");
        CHECK(was_logged(over_tcp ? "[rail 0 tcp " : "[rail 0 shm "));
        meet();
        OK(finish(&net, request, NULL));
    } else {
        meet();
        OK(finish(&net, send_one(&net, pair.send, memory, 100, 1, out), NULL));
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* What went over a connection is told when it is closed, in bytes and messages. */
static void counters(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    const size_t sizes[] = {1000, 0, 70000};
    exchange(&net, pair, sizes, 3, 30);
    meet();
    part(&net, pair);
    CHECK(was_logged("710000 bytes sent to ") && was_logged("710000 bytes received from "));
    /* who closes first knows all of its rails */
    CHECK(was_logged("in 30 messages; ") && !was_logged("messages; \n"));
    pair = cross(&net, 0);
    unsigned char byte = 0;
    void *handle = NULL;
    OK(net_reg(&net, pair.recv, &byte, 1, HOST_MEMORY, &handle));
    if (rank == 1) part(&net, pair);
    meet();
    if (rank == 0) {
        void *request = recv_one(&net, pair.recv, &byte, 1, 1, handle);
        CHECK(finish(&net, request, NULL));
        forget_log();
        part(&net, pair);
        CHECK(was_logged("bytes received from ") && !was_logged("messages; \n"));
    }
    OK(net_finalize(&net));
}

/* The limit of descriptors is named with its value; nothing is left behind, and when there are
 * more it works. */
static void descriptors(void) {
    struct net net = started();
    struct rlimit old, few;
    CHECK(!getrlimit(RLIMIT_NOFILE, &old));
    few = old, few.rlim_cur = 6;
    unsigned char handle[HANDLE];
    void *listener = NULL;
    CHECK(!setrlimit(RLIMIT_NOFILE, &few));
    int rc = net_listen(&net, 0, handle, &listener);
    CHECK(!setrlimit(RLIMIT_NOFILE, &old));
    CHECK(rc == SYSTEM && !listener);
    CHECK(was_logged("no more than 6 file descriptors (ulimit -n)"));
    OK(net_listen(&net, 0, handle, &listener));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* No thread may be started: the limit is named with its value, and nothing stays that is in the way
 * when it is raised. */
static void threads_scarce(void) {
    struct net net = started();
    struct rlimit old, few;
    unsigned char handle[HANDLE];
    void *listener = NULL;
    /* root has no such limit; where its user cannot be changed, there is nothing to see */
    if (!geteuid() && setuid(65534)) return;
    CHECK(!getrlimit(RLIMIT_NPROC, &old));
    few = old, few.rlim_cur = 1;
    CHECK(!setrlimit(RLIMIT_NPROC, &few));
    int rc = net_listen(&net, 0, handle, &listener);
    CHECK(!setrlimit(RLIMIT_NPROC, &old));
    CHECK(rc == SYSTEM && !listener);
    CHECK(was_logged("cannot start a thread") && was_logged("1 threads and processes (ulimit -u)"));
    OK(net_listen(&net, 0, handle, &listener));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A handle of another version of the wire is refused with a sentence on which side is older. */
static void versions(void) {
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL, *send = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    handle[8]++;
    handle_checked(handle);
    CHECK(net_connect(&net, 0, handle, &send, NULL) == USAGE && !send);
    CHECK(was_logged("upgrade this side"));
    handle[9] ^= 1;
    CHECK(net_connect(&net, 0, handle, &send, NULL) == ARGUMENT && !send);
    CHECK(was_logged("the handle is damaged"));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* The addresses of a handle are of the family that NCCL's variable says, and a word that it does
 * not know is told of. */
static void family_said(int at) {
    static const char *const words[] = {"AF_INET", "AF_INET6", "IPv4"};
    CHECK(!setenv("NCCL_SOCKET_FAMILY", words[at], 1));
    struct net net = net_load(library, version);
    OK(net_init(&net, log_line));
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    int four = 0, six = 0;
    for (int at = 48; at < 108; at += 20) four += handle[at] == 4, six += handle[at] == 6;
    CHECK(at == 0 ? four && !six : at == 1 ? !four : four);
    CHECK(was_logged("NCCL_SOCKET_FAMILY=IPv4 is ignored") == (at == 2));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

static void family(void) {
    for (int at = 0; at < 3; at++) in_own_process(family_said, at);
}
