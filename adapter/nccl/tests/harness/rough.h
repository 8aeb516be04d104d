/* What NCCL does not do, and its rules do not forbid; and what they forbid, but a program that
 * fails does all the same. Random, by a seed that is printed when something is wrong. Included by
 * scenarios.h alone. */

static uint64_t seed;

static unsigned draw(unsigned below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed >> 33) % below;
}

#define ROUGH(what) ((what) ? (void)0 : FAIL("seed %lu: not so: %s", first_seed, #what))

static uint64_t first_seed;

static void seeded(void) {
    const char *given = getenv("HARNESS_SEED");
    first_seed = given ? strtoull(given, NULL, 10) : 1 + (uint64_t)version;
    seed = first_seed * 0x9e3779b97f4a7c15u + (uint64_t)rank;
}

/* Both sides draw the same: what is sent, and for what there is room. */
struct plan {
    size_t bytes, room;
    int tag;
};

static struct plan plan_of(int at) {
    uint64_t mixed = (first_seed + (uint64_t)at + 1) * 0xff51afd7ed558ccdu;
    static const size_t SIZE[] = {0, 1, 64, 4095, 8192, 8193, 70000, 300000};
    struct plan plan = {SIZE[mixed >> 40 & 7], 0, (int)(mixed >> 50 & 3)};
    plan.room = plan.bytes + (mixed >> 20 & 255);
    /* now and then there is too little room */
    if (plan.bytes > 64 && (mixed >> 55 & 15) == 0) plan.room = plan.bytes / 2;
    return plan;
}

enum { ROUGH_STEPS = 24, ROUGH_ROOM = 300000 + 256 };

struct rough {
    void *request;
    int at;
};

/* Posts and tests in any order, leaves requests for long, asks for sizes or not, takes the end of
 * one late: each message arrives whole once, in the place of its number, or is refused by its
 * receive alone. */
static void rough_run(struct net *net, struct pair pair, int all) {
    unsigned char *in = malloc((size_t)ROUGH_STEPS * ROUGH_ROOM);
    unsigned char *out = malloc((size_t)ROUGH_STEPS * ROUGH_ROOM);
    void *in_memory = NULL, *out_memory = NULL;
    struct rough recvs[ROUGH_STEPS] = {{NULL, 0}}, sends[ROUGH_STEPS] = {{NULL, 0}};
    int posted = 0, sent = 0, got = 0, gone = 0;
    OK(net_reg(net, pair.recv, in, (size_t)ROUGH_STEPS * ROUGH_ROOM, HOST_MEMORY, &in_memory));
    OK(net_reg(net, pair.send, out, (size_t)ROUGH_STEPS * ROUGH_ROOM, HOST_MEMORY, &out_memory));
    while (got < all || gone < all) {
        unsigned at = draw(ROUGH_STEPS);
        struct rough *slot;
        switch (draw(4)) {
        case 0: /* a receive, into any free place */
            slot = &recvs[at];
            if (slot->request || posted == all) break;
            struct plan plan = plan_of(posted * 2 + !rank);
            void *data = in + at * (size_t)ROUGH_ROOM, *hint = draw(2) ? HINT : STALE;
            memset(data, 0xee, plan.room + 1);
            slot->request = hint;
            OK(net_irecv(
                net, pair.recv, 1, &data, &plan.room, &plan.tag, &in_memory, &slot->request));
            ROUGH(slot->request != HINT && slot->request != STALE);
            if (slot->request) slot->at = posted++;
            break;
        case 1: /* a send */
            slot = &sends[at];
            if (slot->request || sent == all) break;
            struct plan one = plan_of(sent * 2 + rank);
            fill(out + at * (size_t)ROUGH_ROOM, one.bytes, (uint64_t)(sent * 2 + rank));
            slot->request = STALE;
            OK(net_isend(net, pair.send, out + at * (size_t)ROUGH_ROOM, one.bytes, one.tag,
                out_memory, &slot->request));
            ROUGH(slot->request != STALE);
            if (slot->request) slot->at = sent++;
            break;
        case 2: { /* any receive */
            int done = 77, size = -1, rc;
            if (!(slot = &recvs[at])->request) break;
            rc = net_test(net, slot->request, &done, draw(4) ? &size : NULL);
            ROUGH(done == 0 || done == 1);
            if (!done) { ROUGH(rc == SUCCESS); break; }
            struct plan what = plan_of(slot->at * 2 + !rank);
            unsigned char *place = in + at * (size_t)ROUGH_ROOM;
            ROUGH(rc == (what.bytes > what.room ? USAGE : SUCCESS));
            ROUGH(size == -1 || (size_t)size == what.bytes);
            if (!rc) verify(place, what.bytes, (uint64_t)(slot->at * 2 + !rank));
            ROUGH(place[what.room] == 0xee);
            slot->request = NULL, got++;
            break;
        }
        default: { /* any send */
            int done = 77, size = -1;
            if (!(slot = &sends[at])->request) break;
            OK(net_test(net, slot->request, &done, draw(2) ? &size : NULL));
            ROUGH(done == 0 || done == 1);
            if (done) slot->request = NULL, gone++;
        }
        }
        if (!draw(64)) sched_yield();
    }
    OK(net_dereg(net, pair.recv, in_memory));
    OK(net_dereg(net, pair.send, out_memory));
    free(in), free(out);
}

static void rough(void) {
    seeded();
    struct net net = started();
    struct pair pair = cross(&net, 0);
    rough_run(&net, pair, 400);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* The same on several communicators at once, each with a thread. */
static void *rough_crew(void *argument) {
    struct crew *crew = argument;
    exchange(&crew->net, crew->pair, SIZES, sizeof SIZES / sizeof *SIZES, 22);
    return NULL;
}

/* Communicators come and go while others work: closed at any time, with requests outstanding, with
 * memory that is registered, on one side first. */
static void comes_and_goes(void) {
    enum { CREWS = 3, ROUNDS = 12 };
    seeded();
    struct crew crew[CREWS];
    pthread_t thread[CREWS];
    struct net late[ROUNDS];
    int late_count = 0;
    for (int i = 0; i < CREWS; i++) crew[i].net = started(), crew[i].pair = cross(&crew[i].net, 0);
    for (int i = 0; i < CREWS; i++) CHECK(!pthread_create(&thread[i], NULL, rough_crew, &crew[i]));
    for (int round = 0; round < ROUNDS; round++) {
        struct net net = started();
        struct pair pair = cross(&net, 0);
        enum { ROOM = 1 << 17 };
        unsigned char *memory = calloc(2, ROOM);
        void *in = NULL, *out = NULL, *request = NULL;
        OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &in));
        OK(net_reg(&net, pair.send, memory + ROOM, ROOM, HOST_MEMORY, &out));
        /* set-up that is dropped half-way: a listener stays, nobody asks for the attempt again */
        unsigned char handle[HANDLE];
        for (int i = (int)draw(4); i > 0; i--) {
            void *listener = NULL, *half = NULL;
            OK(net_listen(&net, 0, handle, &listener));
            OK(net_connect(&net, 0, handle, &half, NULL));
            OK(net_close(&net, CLOSE_SEND, half));
            if (draw(2)) OK(net_close(&net, CLOSE_LISTEN, listener));
        }
        int recvs = (int)draw(9), sends = (int)draw(9);
        void *place = memory;
        for (int i = 0; i < recvs; i++) {
            size_t room = 1 + draw(ROOM);
            int tag = 1;
            OK(net_irecv(&net, pair.recv, 1, &place, &room, &tag, &in, &request));
        }
        for (int i = 0; i < sends; i++)
            OK(net_isend(&net, pair.send, memory + ROOM, draw(ROOM), 1, out, &request));
        /* some tests, of which the peer's end may already be seen */
        for (int i = (int)draw(50), done; request && i > 0; i--) {
            int rc = net_test(&net, request, &done, NULL);
            if (done) request = NULL;
            if (rc) { ROUGH(rc == REMOTE || rc == USAGE); break; }
        }
        int tidy = (int)draw(2);
        if (tidy) OK(net_dereg(&net, pair.recv, in));
        if (tidy) OK(net_dereg(&net, pair.send, out));
        part(&net, pair);
        /* what was closed uses its memory no more */
        memset(memory, 0x11, 2 * ROOM);
        for (int i = 0; i < 2 * ROOM; i++) ROUGH(memory[i] == 0x11);
        if (draw(2)) OK(net_finalize(&net));
        else late[late_count++] = net;
        free(memory);
    }
    for (int i = 0; i < CREWS; i++) CHECK(!pthread_join(thread[i], NULL));
    meet();
    for (int i = 0; i < CREWS; i++) part(&crew[i].net, crew[i].pair);
    for (int i = 0; i < CREWS; i++) OK(net_finalize(&crew[i].net));
    /* the last one waits for all threads that still see something off */
    for (int i = 0; i < late_count; i++) OK(net_finalize(&late[i]));
}

/* Arguments that mean nothing, on a connection that works: each is refused, and nothing else is
 * changed. */
static void nonsense(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[200];
    void *in = NULL, *out = NULL, *request, *place = memory, *strange = (void *)0xdead00000beef;
    size_t room = 100;
    int tag = 1, done = 77;
    OK(net_reg(&net, pair.recv, memory, 100, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory + 100, 100, HOST_MEMORY, &out));
#define REFUSED(call) (request = STALE, (call) != SUCCESS ? CHECK(!request) : FAIL("%s", #call))
    for (int round = 0; round < 20; round++) {
        /* memory that is not registered, ends outside, or is the other direction's */
        REFUSED(net_isend(&net, pair.send, memory + 100, 100, 1, strange, &request));
        REFUSED(net_isend(&net, pair.send, memory + 100, 101, 1, out, &request));
        REFUSED(net_isend(&net, pair.send, memory + 99, 1, 1, out, &request));
        REFUSED(net_isend(&net, pair.send, memory + 100, 1, 1, NULL, &request));
        REFUSED(net_isend(&net, pair.send, memory + 100, (size_t)-1, 1, out, &request));
        REFUSED(net_irecv(&net, pair.recv, 1, &place, &room, &tag, &strange, &request));
        REFUSED(net_irecv(&net, pair.recv, 0, &place, &room, &tag, &in, &request));
        REFUSED(net_irecv(&net, pair.recv, -1, &place, &room, &tag, &in, &request));
        REFUSED(net_irecv(&net, pair.recv, 1, NULL, &room, &tag, &in, &request));
        REFUSED(net_irecv(&net, pair.recv, 1, &place, &room, NULL, &in, &request));
        /* the wrong direction */
        REFUSED(net_isend(&net, pair.recv, memory, 1, 1, in, &request));
        REFUSED(net_irecv(&net, pair.send, 1, &place, &room, &tag, &in, &request));
        CHECK(net_isend(&net, pair.send, memory + 100, 1, 1, out, NULL) == ARGUMENT);
        /* memory of no kind, of no length, twice forgotten */
        void *none = NULL, *twice = NULL;
        CHECK(net_reg(&net, pair.send, memory, 100, 2, &none) == ARGUMENT && !none);
        CHECK(net_reg(&net, pair.send, memory, 100, 0, &none) == ARGUMENT && !none);
        CHECK(net_reg(&net, pair.send, memory, 100, HOST_MEMORY, NULL) == ARGUMENT);
        CHECK(net_reg(&net, NULL, memory, 100, HOST_MEMORY, &none) == ARGUMENT && !none);
        OK(net_reg(&net, pair.send, memory, 100, HOST_MEMORY, &twice));
        OK(net_dereg(&net, pair.send, twice));
        CHECK(net_dereg(&net, pair.send, twice) == ARGUMENT);
        CHECK(net_dereg(&net, pair.send, strange) == ARGUMENT);
        /* listeners that are none, and one that is closed twice */
        unsigned char handle[HANDLE];
        void *listener = NULL, *comm = STALE;
        OK(net_listen(&net, 0, handle, &listener));
        OK(net_close(&net, CLOSE_LISTEN, listener));
        OK(net_close(&net, CLOSE_LISTEN, listener));
        OK(net_close(&net, CLOSE_LISTEN, strange));
        CHECK(net_accept(&net, listener, &comm, NULL) == ARGUMENT && !comm);
        CHECK(net_accept(&net, NULL, NULL, NULL) == ARGUMENT);
    }
    /* and it works; a request is asked for once more after its end, and long after */
    void *recv = recv_one(&net, pair.recv, memory, 100, 1, in), *old;
    memset(memory + 100, 0x42, 100);
    OK(finish(&net, send_one(&net, pair.send, memory + 100, 100, 1, out), NULL));
    OK(finish(&net, old = recv, NULL));
    CHECK(memory[0] == 0x42 && memory[99] == 0x42);
    CHECK(net_test(&net, old, &done, NULL) == ARGUMENT && done == 1);
    CHECK(net_test(&net, old, NULL, NULL) == ARGUMENT);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* The peer dies in the midst of it, at any moment, with another communicator of the same process
 * working all the while: that one does not notice. */
static void dies_at_any_time(void) {
    seeded();
    struct net net = started(), other = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&other, 0, handle, &listener));
    struct pair pair = cross(&net, 0), works = joined(&other, listener, handle);
    OK(net_close(&other, CLOSE_LISTEN, listener));
    enum { ROOM = 1 << 20 };
    unsigned char *memory = calloc(2, ROOM);
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory + ROOM, ROOM, HOST_MEMORY, &out));
    meet();
    void *sends[STEPS] = {NULL}, *recvs[STEPS] = {NULL}, *place = memory;
    unsigned left = rank ? 200 + draw(5000) : 0;
    size_t room = ROOM;
    int tag = 1, failed = 0;
    for (uint64_t turn = 0; failed < 2; turn++) {
        int at = (int)draw(STEPS), done = 0, rc;
        if (turn % 64 == 0) pass(&other, works, turn);
        if (rank && !left--) kill(getpid(), SIGKILL);
        if (!recvs[at])
            OK(net_irecv(&net, pair.recv, 1, &place, &room, &tag, &in, &recvs[at]));
        else if ((rc = net_test(&net, recvs[at], &done, NULL), done))
            recvs[at] = NULL, failed += rc != 0, ROUGH(rc == 0 || rc == REMOTE);
        if (!sends[at])
            OK(net_isend(&net, pair.send, memory + ROOM, draw(ROOM), 1, out, &sends[at]));
        else if ((rc = net_test(&net, sends[at], &done, NULL), done))
            sends[at] = NULL, failed += rc != 0, ROUGH(rc == 0 || rc == REMOTE);
    }
    /* closed without forgetting its memory, and with what is left */
    part(&net, pair);
    memset(memory, 0x11, 2 * ROOM);
    for (int i = 0; i < 2 * ROOM; i++) ROUGH(memory[i] == 0x11);
    free(memory);
    for (uint64_t turn = 0; turn < 20; turn++) pass(&other, works, turn);
    part(&other, works);
    loopback();
    OK(net_finalize(&other));
    OK(net_finalize(&net));
}
