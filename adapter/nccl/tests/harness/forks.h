/* A process that has the plugin open forks, as data loaders do. Included by scenarios.h alone. */

static int churn_ends;

static void *churn(void *argument) {
    struct net *net = argument;
    while (!__atomic_load_n(&churn_ends, __ATOMIC_RELAXED)) {
        unsigned char handle[HANDLE];
        void *listener = NULL;
        OK(net_listen(net, 0, handle, &listener));
        struct pair pair = joined(net, listener, handle);
        OK(net_close(net, CLOSE_LISTEN, listener));
        pass(net, pair, 4);
        part(net, pair);
    }
    return NULL;
}

/* All that a child may ask of what is its parent's: an answer, whatever other threads of the parent
 * were in the midst of. */
static void child_asks(struct net *net, struct pair pair, void *listener, unsigned char *handle) {
    unsigned char other[HANDLE];
    void *comm = STALE, *request = STALE;
    int done = 77, count = 77;
    alarm(600);
    CHECK(net_listen(net, 0, other, &comm) == USAGE);
    CHECK(net_connect(net, 0, handle, &comm, NULL) == USAGE && !comm);
    comm = STALE;
    CHECK(net_accept(net, listener, &comm, NULL) == USAGE && !comm);
    CHECK(net_isend(net, pair.send, other, 1, 1, NULL, &request) == USAGE && !request);
    CHECK(net_reg(net, pair.send, other, 1, HOST_MEMORY, &comm) == USAGE);
    OK(net_devices(net, &count));
    CHECK(net_test(net, NULL, &done, NULL) == ARGUMENT && done == 0);
    OK(net_close(net, CLOSE_SEND, pair.send));
    OK(net_close(net, CLOSE_RECV, pair.recv));
    OK(net_close(net, CLOSE_LISTEN, listener));
    OK(net_finalize(net));
    exit(0);
}

/* Other threads connect and close while a process forks: its child found their locks taken. */
static void forked_busy(void) {
    enum { THREADS = 2, CHILDREN = 20 };
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    struct pair pair = joined(&net, listener, handle);
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, churn, &net));
    for (int i = 0; i < CHILDREN; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) child_asks(&net, pair, listener, handle);
        CHECK(waitpid(child, &status, 0) == child);
        if (status) FAIL("child %d has ended with %x", i, status);
        pass(&net, pair, (uint64_t)i);
    }
    __atomic_store_n(&churn_ends, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(thread[i], NULL));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* A child that opens the plugin for itself has it, also under tables that have one context for all;
 * its parent's goes on. */
static void forked_anew(void) {
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    struct pair pair = joined(&net, listener, handle);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        struct net own = started();
        unsigned char its[HANDLE];
        void *other = NULL, *comm = NULL;
        OK(net_listen(&own, 0, its, &other));
        CHECK(other != listener && net_accept(&own, listener, &comm, NULL) == USAGE);
        struct pair mine = joined(&own, other, its);
        for (uint64_t turn = 0; turn < 20; turn++) pass(&own, mine, turn);
        part(&own, mine);
        OK(net_close(&own, CLOSE_LISTEN, other));
        OK(net_finalize(&own));
        exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (uint64_t turn = 0; turn < 20; turn++) pass(&net, pair, turn);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    part(&net, pair);
    OK(net_finalize(&net));
}
