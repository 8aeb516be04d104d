/* Hosts that nothing reaches any more: what this side sends is lost, and no call waits for them.
 * Included by scenarios.h alone. */

/* From now on no packet leaves this host. */
static void mute(void) {
    interface_do("tc qdisc replace dev eth0 root tbf rate 8bit burst 10 limit 10");
}

static void loud(void) {
    interface_do("tc qdisc del dev eth0 root");
}

/* A receive is closed with its connection while its offer has not reached the peer's host. What
 * comes for it afterwards is written nowhere, whatever else is done. */
static void closed_while_offered(void) {
    enum { ROOM = 1 << 20, BYTES = 4000 };
    interfaces_own();
    int before = threads();
    struct net net = started();
    unsigned char *memory = calloc(1, ROOM);
    for (int round = 0; round < 2; round++) {
        struct pair pair = cross(&net, 0);
        void *handle = NULL;
        OK(net_reg(&net, rank ? pair.send : pair.recv, memory, ROOM, HOST_MEMORY, &handle));
        if (rank == 0) {
            void *request = recv_one(&net, pair.recv, memory, ROOM, 1, handle);
            int done = 0;
            meet();
            mute();
            for (int i = 0; i < 3; i++) OK(net_test(&net, request, &done, NULL));
            if (round) OK(net_dereg(&net, pair.recv, handle));
            OK(net_close(&net, CLOSE_RECV, pair.recv));
            memset(memory, 0x11, ROOM);
            meet();
            /* until the peer has sent; what comes is taken in the meantime */
            char byte;
            hear(&byte, 1);
            pair.recv = NULL;
        } else {
            meet();
            meet();
            memset(memory, 0xee, ROOM);
            void *request = send_one(&net, pair.send, memory, BYTES, 1, handle);
            int rc = finish(&net, request, NULL);
            if (rc && rc != REMOTE) FAIL("a send to who has gone: %d", rc);
            tell("", 1);
        }
        OK(net_close(&net, CLOSE_SEND, pair.send));
        OK(net_close(&net, CLOSE_RECV, pair.recv));
        if (rank == 0) {
            /* as long as anything of the connection is left */
            while (threads() > before) sched_yield();
            loud();
            for (int i = 0; i < ROOM; i++) CHECK(memory[i] == 0x11);
        }
        meet();
    }
    free(memory);
    OK(net_finalize(&net));
}

static void *finalize_it(void *net) {
    OK(net_finalize(net));
    return NULL;
}

/* A communicator that begins while the end of the last one takes its time has NCCL's log for as
 * long as it lives. */
static void end_beside_another(struct net *net) {
    pthread_t ending;
    unsigned char strange[HANDLE];
    void *comm = NULL;
    struct net other;
    memset(strange, 1, sizeof strange);
    CHECK(!pthread_create(&ending, NULL, finalize_it, net));
    /* the lines of devices say that nobody had the plugin open */
    forget_log();
    for (other = started(); !was_logged("device 0 is"); other = started()) {
        OK(net_finalize(&other));
    }
    CHECK(!pthread_join(ending, NULL));
    CHECK(was_logged(" was closed while messages were still on their way after "));
    forget_log();
    CHECK(net_connect(&other, 0, strange, &comm, NULL) && !comm);
    CHECK(was_logged("2 NET/crosstie : "));
    OK(net_finalize(&other));
}

/* The peer's host is reached no more: memory of receives is let go although it owes an answer to
 * them, the log says what ended these, and finalize waits a moment alone for sends that were done.
 * Who waited for the time that a peer may be silent would not come to the end of this. */
static void cut_off(void) {
    enum { COUNT = 3, ROOM = 1 << 20 };
    interfaces_own();
    CHECK(!setenv("CROSSTIE_PEER_TIMEOUT_MS", "600000", 1));
    struct net net = started();
    struct pair pairs[COUNT];
    unsigned char *memory = calloc(1, ROOM);
    void *in[COUNT], *out[COUNT], *receives[COUNT];
    for (int i = 0; i < COUNT; i++) pairs[i] = cross(&net, 0);
    if (rank == 1) for (;;) pause();
    for (int i = 0; i < COUNT; i++) {
        OK(net_reg(&net, pairs[i].recv, memory, ROOM, HOST_MEMORY, &in[i]));
        OK(net_reg(&net, pairs[i].send, memory, ROOM, HOST_MEMORY, &out[i]));
    }
    interface_do("ip link set eth0 down");
    for (int i = 0; i < COUNT; i++) {
        int done = 0;
        receives[i] = recv_one(&net, pairs[i].recv, memory, ROOM, 1, in[i]);
        OK(net_test(&net, receives[i], &done, NULL));
        CHECK(!done);
        OK(finish(&net, send_one(&net, pairs[i].send, memory, 100, 1, out[i]), NULL));
    }
    for (int i = 0; i < COUNT; i++) {
        OK(net_dereg(&net, pairs[i].recv, in[i]));
        memset(memory, 0x11, ROOM);
        CHECK(finish(&net, receives[i], NULL) == USAGE);
        CHECK(was_logged(": receive from nccl-harness (pid "));
        CHECK(was_logged(
            " failed: Closed: memory of a request that had not ended was deregistered here"));
        forget_log();
        OK(net_dereg(&net, pairs[i].send, out[i]));
        part(&net, pairs[i]);
    }
    /* a table without finalize has no end */
    if (version >= 11) end_beside_another(&net);
    free(memory);
    CHECK(!kill(peer_process, SIGKILL));
}
