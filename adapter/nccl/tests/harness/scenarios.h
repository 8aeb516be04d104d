/* What is done with the plugin, one function each. Included by harness.c alone. */

struct scenario {
    const char *name;
    /* 0: one process; 1: two; 2: two, of which rank 1 is killed */
    int two;
    void (*run)(void);
};

/* Verified bytes both ways between two processes, of all sizes, with 8 steps outstanding. */
static void bytes(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 110);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Every slot is as NCCL wants it: a name, functions, NULL only where it may stand. */
static void table(void) {
    struct net net = net_load(library, version);
    int last = version == 6 ? CLOSE_LISTEN : version < 9 ? CONSUMED :
        version < 11 ? V_DEVICE : SET_ATTR;
    CHECK(!strcmp(net.slot[NAME], "crosstie"));
    for (int at = NAME; at <= last; at++) {
        int may = at == REG_DMA_BUF || at == DEVICE_MR || at == CONSUMED || at == V_DEVICE ||
            at == SET_ATTR;
        if (!net.slot[at] && !may) FAIL("slot %d is NULL", at);
    }
}

/* getProperties writes every field of memory that was dirty, and nothing behind. */
static void properties(void) {
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    for (int device = 0; device < count; device++) {
        unsigned char first[192], second[192];
        memset(first, 0xa5, sizeof first), memset(second, 0x5a, sizeof second);
        OK(net_properties(&net, device, first));
        OK(net_properties(&net, device, second));
        struct seen a = seen_of(version, first), b = seen_of(version, second);
        /* all that was read is the same, whatever lay there: all of it was written */
        CHECK(!memcmp(&a, &b, sizeof a));
        for (size_t i = a.size; i < sizeof first; i++) CHECK(first[i] == 0xa5);
        CHECK(a.name && a.name[0] && a.pointers == HOST_MEMORY && a.speed > 0 && a.port > 0);
        CHECK(a.latency >= 0 && a.comms > 0 && a.recvs == GROUP && a.type == 0);
        CHECK(a.type_version == 0 && a.global == 0 && a.flush == 0 && a.guid);
        if (a.pci) CHECK(!strncmp(a.pci, "/sys/", 5));
        if (version >= 9) {
            CHECK(a.members == 1 && a.member == device);
            CHECK(a.p2p_bytes > 0 && a.p2p_bytes <= (uint64_t)1 << 40);
            CHECK(a.coll_bytes > 0 && a.coll_bytes <= (uint64_t)1 << 40);
        }
        if (version >= 11) CHECK(a.multi == 1);
        if (version >= 12) CHECK(a.rail == -1 && a.plane == -1);
        for (int other = 0; other < device; other++) {
            OK(net_properties(&net, other, second));
            b = seen_of(version, second);
            CHECK(strcmp(a.name, b.name));
        }
    }
    unsigned char none[192];
    CHECK(net_properties(&net, count, none) == ARGUMENT);
    CHECK(net_properties(&net, -1, none) == ARGUMENT);
    OK(net_finalize(&net));
}

/* Both processes see the same devices in the same order. */
static void order(void) {
    struct net net = started();
    int count = 0, theirs = 0;
    OK(net_devices(&net, &count));
    tell(&count, sizeof count), hear(&theirs, sizeof theirs);
    CHECK(count == theirs && (!getenv("HARNESS_HOSTS") || count == 8));
    for (int device = 0; device < count; device++) {
        unsigned char raw[192];
        char name[64] = "", other[64];
        OK(net_properties(&net, device, raw));
        struct seen seen = seen_of(version, raw);
        strncpy(name, seen.name, sizeof name - 1);
        tell(name, sizeof name), hear(other, sizeof other);
        CHECK(!strcmp(name, other));
        uint64_t guid = 0;
        tell(&seen.guid, sizeof guid), hear(&guid, sizeof guid);
        CHECK(guid == seen.guid);
    }
    meet();
    OK(net_finalize(&net));
}

/* Groups of receives: sends go to the oldest group, inside it by tag; short and empty messages. */
static void groups(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    enum { ROOM = 8192, ROUNDS = 40 };
    unsigned char *memory = malloc(4 * GROUP * ROOM);
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, 4 * GROUP * ROOM, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, 4 * GROUP * ROOM, HOST_MEMORY, &out));
    for (int round = 0; round < ROUNDS; round++) {
        /* two groups; rank 0 receives, rank 1 sends, both with tags 100 to 107 */
        size_t bytes[2][GROUP];
        void *requests[2 * GROUP];
        for (int i = 0; i < 2 * GROUP; i++)
            bytes[i / GROUP][i % GROUP] = (size_t)((i * 977 + round * 131) % 5 ? i * 500 : 0);
        if (rank == 0) {
            for (int group = 0; group < 2; group++) {
                void *data[GROUP], *handles[GROUP];
                size_t rooms[GROUP];
                int tags[GROUP];
                for (int i = 0; i < GROUP; i++) {
                    data[i] = memory + (size_t)(group * GROUP + i) * ROOM;
                    handles[i] = in, rooms[i] = ROOM, tags[i] = 100 + i;
                }
                memset(data[0], 0xee, GROUP * ROOM);
                requests[group] = recv_group(
                    &net, pair.recv, GROUP, data, rooms, tags, handles, STALE);
            }
            for (int group = 0; group < 2; group++) {
                int sizes[GROUP + 1] = {0};
                sizes[GROUP] = 4711;
                OK(finish(&net, requests[group], sizes));
                CHECK(sizes[GROUP] == 4711);
                for (int i = 0; i < GROUP; i++) {
                    CHECK((size_t)sizes[i] == bytes[group][i]);
                    unsigned char *data = memory + (size_t)(group * GROUP + i) * ROOM;
                    verify(data, bytes[group][i], (uint64_t)(round * 100 + group * GROUP + i));
                    CHECK(data[bytes[group][i]] == 0xee);
                }
            }
        } else {
            /* within a group in another order than the receives, and tags of both groups mixed:
             * the second send of a tag is for the second group, even if the first is not full */
            int at = 0;
            for (int i = GROUP - 1; i >= 0; i--)
                for (int group = 0; group < 2; group++, at++) {
                    int which = group * GROUP + i;
                    unsigned char *data = memory + (size_t)(2 * GROUP + which) * ROOM;
                    fill(data, bytes[group][i], (uint64_t)(round * 100 + which));
                    requests[at] = send_one(&net, pair.send, data, bytes[group][i], 100 + i, out);
                }
            for (int i = 0; i < at; i++) OK(finish(&net, requests[i], NULL));
        }
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
}

/* No room is NULL and success; at least 32 x 8 requests of each kind fit; all of them end. */
static void full(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    enum { MOST = 512, ROOM = 100000 };
    unsigned char *memory = malloc(ROOM);
    void *in = NULL, *out = NULL, *requests[MOST];
    int count = 0;
    OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, ROOM, HOST_MEMORY, &out));
    for (; count < MOST; count++) {
        void *data = memory;
        size_t room = ROOM;
        int tag = 1;
        requests[count] = STALE;
        if (rank == 0)
            OK(net_irecv(&net, pair.recv, 1, &data, &room, &tag, &in, &requests[count]));
        else
            OK(net_isend(&net, pair.send, memory, ROOM, 1, out, &requests[count]));
        CHECK(requests[count] != STALE);
        if (!requests[count]) break;
    }
    CHECK(count >= 32 * GROUP && count < MOST);
    int theirs = 0;
    tell(&count, sizeof count), hear(&theirs, sizeof theirs);
    for (int i = 0; i < count && i < theirs; i++) OK(finish(&net, requests[i], NULL));
    for (int i = theirs; i < count; i++) {
        /* what one side has more, the other gives now */
        OK(finish(&net, requests[i], NULL));
    }
    for (int i = count; i < theirs; i++) {
        void *more = rank == 0 ? recv_one(&net, pair.recv, memory, ROOM, 1, in)
                               : send_one(&net, pair.send, memory, ROOM, 1, out);
        OK(finish(&net, more, NULL));
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
}

/* A message longer than the receive: an error by test, nothing written, the others arrive. */
static void oversize(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[4096];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, sizeof memory, HOST_MEMORY, &out));
    if (rank == 0) {
        memset(memory, 0xee, sizeof memory);
        void *small = recv_one(&net, pair.recv, memory, 10, 1, in);
        void *next = recv_one(&net, pair.recv, memory + 100, 100, 1, in);
        int size = 0;
        CHECK(finish(&net, small, &size) == USAGE);
        CHECK(was_logged("Truncated: the message has 1000 bytes, but its receive has room for 10"));
        OK(finish(&net, next, &size));
        CHECK(size == 50);
        verify(memory + 100, 50, 2);
        for (int i = 0; i < 100; i++) CHECK(memory[i] == 0xee);
    } else {
        fill(memory, 1000, 1), fill(memory + 2000, 50, 2);
        void *first = send_one(&net, pair.send, memory, 1000, 1, out);
        void *second = send_one(&net, pair.send, memory + 2000, 50, 1, out);
        OK(finish(&net, first, NULL));
        OK(finish(&net, second, NULL));
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Everything that may be NULL, and what is wrong: an answer, never a crash. */
static void nulls(void) {
    struct net net = started();
    OK(net_close(&net, CLOSE_SEND, NULL));
    OK(net_close(&net, CLOSE_RECV, NULL));
    OK(net_close(&net, CLOSE_LISTEN, NULL));
    OK(net_dereg(&net, NULL, NULL));
    void *out = STALE;
    CHECK(net_accept(&net, NULL, &out, NULL) == ARGUMENT && !out);
    unsigned char handle[HANDLE] = {0};
    out = STALE;
    CHECK(net_connect(&net, 0, handle, &out, NULL) == ARGUMENT && !out);
    memset(handle, 0xab, sizeof handle);
    CHECK(net_connect(&net, 0, handle, &out, NULL) == ARGUMENT && !out);
    CHECK(strstr(logged, "not a handle of crosstie") && strstr(logged, "on every rank"));
    CHECK(net_connect(&net, 0, NULL, &out, NULL) == ARGUMENT);
    CHECK(net_connect(&net, 99, handle, &out, NULL) == ARGUMENT);
    CHECK(net_listen(&net, 99, handle, &out) == ARGUMENT);
    CHECK(net_listen(&net, 0, NULL, &out) == ARGUMENT);
    void *request = STALE;
    CHECK(net_isend(&net, NULL, handle, 1, 0, NULL, &request) == ARGUMENT && !request);
    int done = 77;
    CHECK(net_test(&net, NULL, &done, NULL) == ARGUMENT);
    request = STALE;
    OK(net_iflush(&net, NULL, 0, NULL, NULL, NULL, &request));
    CHECK(!request);
    OK(net_finalize(&net));
}

/* The connection that NCCL 2.20 to 2.23 make to their own device, on one thread, without places
 * for device offload; closed again, often. */
static void loopback(void) {
    struct net net = started();
    for (int round = 0; round < 20; round++) {
        unsigned char handle[HANDLE], data[300];
        struct pair pair = {NULL, NULL};
        void *listener = NULL, *in = NULL, *out = NULL;
        OK(net_listen(&net, 0, handle, &listener));
        while (!pair.send || !pair.recv) {
            if (!pair.send) OK(net_connect(&net, 0, handle, &pair.send, NULL));
            if (!pair.recv) OK(net_accept(&net, listener, &pair.recv, NULL));
        }
        OK(net_close(&net, CLOSE_LISTEN, listener));
        /* ranges that overlap, and pointers into them */
        OK(net_reg(&net, pair.recv, data, 200, HOST_MEMORY, &in));
        OK(net_reg(&net, pair.send, data, 300, HOST_MEMORY, &out));
        fill(data + 150, 100, (uint64_t)round);
        void *recv = recv_one(&net, pair.recv, data + 20, 100, 3, in);
        void *send = send_one(&net, pair.send, data + 150, 100, 3, out);
        int size = 0, done = 0;
        while (!done) {
            OK(net_test(&net, recv, &done, &size));
            int sent = 77;
            if (send) OK(net_test(&net, send, &sent, NULL));
            if (sent == 1) send = NULL;
        }
        while (send) {
            int sent = 77;
            OK(net_test(&net, send, &sent, NULL));
            if (sent == 1) send = NULL;
        }
        CHECK(size == 100);
        verify(data + 20, 100, (uint64_t)round);
        OK(net_dereg(&net, pair.send, out));
    OK(net_dereg(&net, pair.recv, in));
        part(&net, pair);
    }
    OK(net_finalize(&net));
}

/* One communicator is aborted: its memory is forgotten and freed while receives and sends stand,
 * then it is closed. What the peer still sends it is written nowhere, although another communicator
 * of the same endpoint makes progress; that one works on, and a new one works. */
static void abort_busy(void) {
    struct net net = started();
    struct pair stays = cross(&net, 0);
    enum { ROOM = 1 << 20, PART = ROOM / STEPS };
    unsigned char *in = malloc(ROOM), *out = malloc(ROOM);
    for (int round = 0; round < 5; round++) {
        struct pair pair = cross(&net, 0);
        void *in_memory = NULL, *out_memory = NULL, *sends[STEPS];
        OK(net_reg(&net, pair.recv, in, ROOM, HOST_MEMORY, &in_memory));
        OK(net_reg(&net, pair.send, out, ROOM, HOST_MEMORY, &out_memory));
        for (int i = 0; i < STEPS; i++) {
            unsigned char *data = in + (size_t)i * PART;
            if (rank == 0) recv_one(&net, pair.recv, data, PART, 1, in_memory);
            /* which nobody receives */
            if (rank == 0) send_one(&net, pair.send, out, PART, 2, out_memory);
        }
        if (rank == 0) {
            OK(net_dereg(&net, pair.recv, in_memory));
            OK(net_dereg(&net, pair.send, out_memory));
            memset(in, 0xdd, ROOM);
        }
        meet();
        memset(out, 0x11, ROOM);
        for (int i = 0; rank == 1 && i < STEPS; i++)
            sends[i] = send_one(&net, pair.send, out, PART, 1, out_memory);
        exchange(&net, stays, SHORT, 3, 30);
        for (int i = 0; rank == 1 && i < STEPS; i++) {
            int rc = finish(&net, sends[i], NULL);
            if (rc && rc != REMOTE) FAIL("a send to who has gone: %d", rc);
        }
        for (int i = 0; rank == 0 && i < ROOM; i++) CHECK(in[i] == 0xdd);
        if (rank == 1) {
            OK(net_dereg(&net, pair.recv, in_memory));
            OK(net_dereg(&net, pair.send, out_memory));
        }
        part(&net, pair);
        for (int i = 0; rank == 0 && i < ROOM; i++) CHECK(in[i] == 0xdd);
    }
    /* closed with requests outstanding, their memory registered still */
    struct pair pair = cross(&net, 0);
    void *memory = NULL;
    OK(net_reg(&net, pair.recv, in, ROOM, HOST_MEMORY, &memory));
    for (int i = 0; i < STEPS; i++) recv_one(&net, pair.recv, in, PART, 1, memory);
    part(&net, pair);
    pair = cross(&net, 0);
    exchange(&net, pair, SHORT, 3, 30);
    exchange(&net, stays, SHORT, 3, 30);
    meet();
    part(&net, pair);
    part(&net, stays);
    free(in), free(out);
    OK(net_finalize(&net));
}

/* Two tags share a connection, as two ranks' do, and the first goes as far ahead as it can before
 * the second, which every group needs too, begins. */
static void tag_ahead(void) {
    enum { COUNT = 120, TAGS = 2, LATE = 20000 };
    struct net net = started();
    const size_t parts[] = {0, 128, 4096, 8192, 8193, 20000};
    for (size_t size = 0; size < sizeof parts / sizeof *parts; size++) {
        size_t part_bytes = parts[size], each = part_bytes + 1, room = STEPS * TAGS * each;
        struct pair pair = cross(&net, 0);
        unsigned char *memory = calloc(1, room);
        void *handle, *requests[TAGS][STEPS];
        int begun[TAGS] = {0}, ended[TAGS] = {0};
        void *comm = rank == 0 ? pair.send : pair.recv;
        OK(net_reg(&net, comm, memory, room, HOST_MEMORY, &handle));
        for (long idle = 0; rank == 0 && ended[0] + ended[1] < TAGS * COUNT; idle++) {
            for (int tag = 0; tag < TAGS; tag++) {
                int late = tag == 1 && idle < LATE && begun[1] == 0 && begun[0] < COUNT;
                void *request = NULL;
                int done = 0, bytes, at = begun[tag] % STEPS, oldest = ended[tag] % STEPS;
                unsigned char *data = memory + (size_t)(tag * STEPS + at) * each;
                if (!late && begun[tag] < COUNT && begun[tag] - ended[tag] < STEPS) {
                    memset(data, 16 * tag + begun[tag], part_bytes);
                    OK(net_isend(&net, comm, data, part_bytes, tag, handle, &request));
                    if (request) requests[tag][at] = request, begun[tag]++, idle = 0;
                }
                if (ended[tag] == begun[tag]) continue;
                OK(net_test(&net, requests[tag][oldest], &done, &bytes));
                if (done) ended[tag]++, idle = 0;
            }
        }
        while (rank == 1 && ended[0] < COUNT) {
            int at = begun[0] % STEPS, done = 0, bytes[GROUP], tags[TAGS] = {0, 1};
            unsigned char *first = memory + (size_t)(at * TAGS) * each;
            void *data[TAGS] = {first, first + each}, *handles[TAGS] = {handle, handle};
            size_t sizes[TAGS] = {part_bytes, part_bytes};
            void *request = NULL;
            if (begun[0] < COUNT && begun[0] - ended[0] < STEPS) {
                OK(net_irecv(&net, comm, TAGS, data, sizes, tags, handles, &request));
                if (request) requests[0][at] = request, begun[0]++;
            }
            OK(net_test(&net, requests[0][ended[0] % STEPS], &done, bytes));
            for (int tag = 0; done && tag < TAGS; tag++) {
                unsigned char *came = memory + (size_t)(ended[0] % STEPS * TAGS + tag) * each;
                CHECK((size_t)bytes[tag] == part_bytes && came[part_bytes] == 0);
                for (size_t i = 0; i < part_bytes; i++)
                    CHECK(came[i] == (unsigned char)(16 * tag + ended[0]));
            }
            ended[0] += done;
        }
        meet();
        OK(net_dereg(&net, comm, handle));
        part(&net, pair);
        free(memory);
    }
    OK(net_finalize(&net));
}

/* A send of which half has left, to a peer that does not look: its memory is let go at once, with
 * the registration or without, and nobody takes what it is used for next for the message. */
static void half_written(void) {
    enum { ROOM = 32 << 20 };
    struct net net = started();
    unsigned char *memory = malloc(ROOM);
    for (int round = 0; round < 4; round++) {
        struct pair pair = cross(&net, 0);
        void *comm = rank == 0 ? pair.send : pair.recv, *handle, *request = NULL;
        int done = 0, bytes = 0;
        memset(memory, rank == 0 ? 0x22 : 0, ROOM);
        OK(net_reg(&net, comm, memory, ROOM, HOST_MEMORY, &handle));
        if (rank == 1) request = recv_one(&net, comm, memory, ROOM, 1, handle);
        for (int i = 0; rank == 1 && i < 1000; i++) OK(net_test(&net, request, &done, &bytes));
        meet();
        if (rank == 0) {
            request = send_one(&net, comm, memory, ROOM, 1, handle);
            for (int i = 0; i < 1000; i++) OK(net_test(&net, request, &done, &bytes));
            CHECK(!done);
            if (round & 1) {
                /* it said that the peer was gone, which is there */
                OK(net_dereg(&net, comm, handle));
                CHECK(net_test(&net, request, &done, &bytes) == USAGE);
                CHECK(was_logged("failed: Closed: memory of a request that had not ended was "));
                CHECK(!was_logged("send to a peer that is gone"));
            }
            OK(net_close(&net, CLOSE_SEND, pair.send));
            memset(memory, 0x99, ROOM);
        }
        meet();
        if (rank == 1) {
            CHECK(finish(&net, request, NULL) == REMOTE);
            for (int i = 0; i < ROOM; i++) CHECK(memory[i] == 0x22 || memory[i] == 0);
            OK(net_close(&net, CLOSE_SEND, pair.send));
        }
        OK(net_close(&net, CLOSE_RECV, pair.recv));
        meet();
    }
    free(memory);
    OK(net_finalize(&net));
}

/* The peer is killed: its communicator fails by test with a remote error, another does not. */
static void peer_dies(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[100];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, sizeof memory, HOST_MEMORY, &out));
    void *request = recv_one(&net, pair.recv, memory, 100, 1, in);
    meet();
    if (rank == 1) for (;;) pause();
    kill(peer_process, SIGKILL);
    int done = 77, rc = 0;
    while (!(rc = net_test(&net, request, &done, NULL)) && !done) CHECK(done == 0);
    CHECK(rc == REMOTE && done == 1);
    /* told again to who asks again, and to who sends */
    CHECK(net_test(&net, request, &done, NULL) == REMOTE && done == 1);
    int failed = 0;
    for (int tries = 0; tries < 100000 && !failed; tries++) {
        void *send = STALE;
        OK(net_isend(&net, pair.send, memory, 100, 1, out, &send));
        if (!send) continue;
        while (!(failed = net_test(&net, send, &done, NULL)) && !done) sched_yield();
    }
    CHECK(failed == REMOTE);
    pthread_mutex_lock(&logged_lock);
    CHECK(strstr(logged, "failed") && strstr(logged, "harness"));
    pthread_mutex_unlock(&logged_lock);
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    /* the plugin works on */
    loopback();
    OK(net_finalize(&net));
}

/* Who comes instead of a peer that was killed: a program of its own, with its own plugin. */
static void reborn(void) {
    peer_socket = atoi(getenv("HARNESS_SOCKET")), rank = 1;
    struct net net = started();
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 33);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

static pid_t reborn_start(void) {
    int sockets[2];
    char number[16], table[16];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    snprintf(number, sizeof number, "%d", sockets[1]);
    snprintf(table, sizeof table, "%d", version);
    pid_t child = fork();
    if (child == 0) {
        if (setenv("HARNESS_SOCKET", number, 1)) _exit(1);
        execl("/proc/self/exe", "nccl-harness", library, table, "reborn", (char *)NULL);
        _exit(1);
    }
    close(peer_socket), close(sockets[1]);
    peer_socket = sockets[0];
    return child;
}

/* The peer is killed while messages flow; its connections are closed, and the same communicator has
 * new ones with the process that takes its place. */
static void peer_returns(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[1000];
    void *in = NULL;
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    meet();
    if (rank == 1) for (;;) pause();
    void *request = recv_one(&net, pair.recv, memory, 100, 1, in);
    CHECK(!kill(peer_process, SIGKILL));
    CHECK(finish(&net, request, NULL) == REMOTE);
    OK(net_dereg(&net, pair.recv, in));
    part(&net, pair);
    pid_t child = reborn_start();
    pair = cross(&net, 0);
    exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 33);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* The peer is stopped, not dead: closing with all kinds of requests outstanding does not wait for
 * it, and finalize ends. */
static void peer_stops(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    enum { ROOM = 200000 };
    unsigned char *memory = calloc(1, ROOM);
    void *in = NULL, *out = NULL, *request = NULL;
    OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, ROOM, HOST_MEMORY, &out));
    recv_one(&net, pair.recv, memory, ROOM, 1, in);
    meet();
    if (rank == 1) for (;;) pause();
    CHECK(!kill(peer_process, SIGSTOP));
    for (int i = 0; i < 40; i++)
        OK(net_isend(&net, pair.send, memory, i % 2 ? ROOM : 500, 1, out, &request));
    int done = 77;
    for (int i = 0; i < 1000 && request; i++) OK(net_test(&net, request, &done, NULL));
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
    CHECK(!kill(peer_process, SIGKILL));
}

/* Threads of this process that have a name. */
static int threads_called(const char *wanted) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        /* it may have ended since */
        if (!file) continue;
        int read = fscanf(file, "%31s", name);
        fclose(file);
        count += read == 1 && !strcmp(name, wanted);
    }
    closedir(tasks);
    return count;
}

/* Those that see closed connections off. */
static int seeing_off(void) {
    return threads_called("crosstie-close");
}

/* A connection with short messages that have left, and that the stopped peer does not take. */
static void fill_up(struct net *net, void *comm) {
    enum { ROOM = 8192 };
    static unsigned char memory[ROOM];
    void *known = NULL, *request = STALE;
    OK(net_reg(net, comm, memory, ROOM, HOST_MEMORY, &known));
    for (int done = 1; request && done;) {
        OK(net_isend(net, comm, memory, ROOM, 1, known, &request));
        done = 0;
        for (int i = 0; request && i < 1000 && !done; i++)
            OK(net_test(net, request, &done, NULL));
    }
    OK(net_dereg(net, comm, known));
}

/* Connections with a peer that stands still are closed, whose communicators have ended before. The
 * end of another waits for neither; the last waits for both, although it has none of its own. */
static void ends_apart(void) {
    /* so that no thread gives up while this looks */
    CHECK(!setenv("CROSSTIE_PEER_TIMEOUT_MS", "50000", 1));
    struct net first = started(), second = started(), third = started(), last = started();
    struct pair of_first = cross(&first, 0), of_second = cross(&second, 0);
    meet();
    if (rank == 1) for (;;) pause();
    int status = 0;
    CHECK(!kill(peer_process, SIGSTOP));
    CHECK(waitpid(peer_process, &status, WUNTRACED) == peer_process && WIFSTOPPED(status));
    fill_up(&first, of_first.send);
    fill_up(&second, of_second.send);
    OK(net_finalize(&first));
    OK(net_close(&first, CLOSE_SEND, of_first.send));
    /* a thread has its name once it runs */
    while (seeing_off() < 1) sched_yield();
    OK(net_finalize(&second));
    CHECK(seeing_off() == 1);
    /* one thread sees both off */
    OK(net_close(&second, CLOSE_SEND, of_second.send));
    OK(net_finalize(&third));
    CHECK(seeing_off() == 1);
    OK(net_close(&first, CLOSE_RECV, of_first.recv));
    OK(net_close(&second, CLOSE_RECV, of_second.recv));
    CHECK(!kill(peer_process, SIGKILL));
    OK(net_finalize(&last));
    threads_ended(1);
}

/* Half-open connections are dropped without a word, listeners closed that nobody came to, one
 * listener taken by several: finalize gives all back, and no thread is left. */
static void abandoned(void) {
    struct net net = started();
    int before = threads();
    unsigned char handles[4][HANDLE];
    void *listeners[4];
    for (int i = 0; i < 4; i++) OK(net_listen(&net, 0, handles[i], &listeners[i]));
    OK(net_close(&net, CLOSE_LISTEN, listeners[0]));
    unsigned char copy[HANDLE];
    for (int i = 1; i < 4; i++) {
        void *send = NULL;
        memcpy(copy, handles[i], HANDLE);
        /* the same buffer for another handle: the attempt before was dropped */
        OK(net_connect(&net, 0, copy, &send, NULL));
        /* a peer so near may have answered already: then NCCL has it, and closes it */
        if (send) OK(net_close(&net, CLOSE_SEND, send));
    }
    OK(net_finalize(&net));
    if (version < 11) {
        /* nothing ends it but what NCCL closes */
        for (int i = 1; i < 4; i++) OK(net_close(&net, CLOSE_LISTEN, listeners[i]));
        return;
    }
    threads_ended(before);
    /* what comes too late finds nothing */
    void *recv = STALE;
    CHECK(net_accept(&net, listeners[3], &recv, NULL) == ARGUMENT && !recv);
    OK(net_close(&net, CLOSE_LISTEN, listeners[3]));
}

/* A communicator that shares the resources of one which has ended (NCCL 2.28.3) is aborted while it
 * connects: the last finalize gives that up, and joins the thread that would have later. */
static void abandoned_late(void) {
    struct net parent = started(), child = started();
    int before = threads();
    unsigned char handle[HANDLE];
    void *listener = NULL, *send = NULL;
    OK(net_listen(&child, 0, handle, &listener));
    OK(net_finalize(&parent));
    /* a peer so near may have answered already */
    do {
        OK(net_close(&parent, CLOSE_SEND, send));
        OK(net_connect(&parent, 0, handle, &send, NULL));
    } while (send);
    while (!threads_called("crosstie-left")) sched_yield();
    OK(net_finalize(&child));
    threads_ended(before);
}

/* Loaded, used, unloaded, again: no thread is left, and the second time is as the first. */
static void reload(void) {
    int before = threads();
    for (int round = 0; round < 4; round++) {
        struct net net = started();
        struct pair pair = cross(&net, 0);
        exchange(&net, pair, SHORT, 3, 30);
        meet();
        part(&net, pair);
        OK(net_finalize(&net));
        threads_ended(before);
        CHECK(!dlclose(net.library));
    }
}

/* The peer's process stands still, and says no word that a fence waits for: close returns all the
 * same, and its thread has waited for nothing. */
static void closed_at_once(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SHORT, 3, 30);
    meet();
    char byte = 0;
    if (rank == 0) {
        int status = 0;
        CHECK(!kill(peer_process, SIGSTOP));
        CHECK(waitpid(peer_process, &status, WUNTRACED) == peer_process && WIFSTOPPED(status));
        long before = yields;
        part(&net, pair);
        CHECK(yields == before);
        CHECK(!kill(peer_process, SIGCONT));
        tell(&byte, 1);
    } else {
        hear(&byte, 1);
        part(&net, pair);
    }
    OK(net_finalize(&net));
}

/* The peer's process stands still while many connections to it are closed. What waits for its word
 * waits aside: no close does, and the next connection of the same device is made and used before
 * the peer goes on. */
static void closed_aside(void) {
    enum { COUNT = 20 };
    struct net net = started();
    struct pair pairs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        pairs[i] = cross(&net, 0);
        exchange(&net, pairs[i], SHORT, 3, 10);
    }
    meet();
    char byte = 0;
    if (rank == 0) {
        int status = 0;
        CHECK(!kill(peer_process, SIGSTOP));
        CHECK(waitpid(peer_process, &status, WUNTRACED) == peer_process && WIFSTOPPED(status));
        long before = yields;
        for (int i = 0; i < COUNT; i++) part(&net, pairs[i]);
        CHECK(yields == before);
        /* its word is waited for */
        int waits = getenv("CROSSTIE_OFI_PROVIDER") != NULL;
        CHECK(!waits || threads_called("crosstie-close") == 1);
        unsigned char handle[HANDLE];
        void *listener = NULL;
        OK(net_listen(&net, 0, handle, &listener));
        struct pair loop = joined(&net, listener, handle);
        OK(net_close(&net, CLOSE_LISTEN, listener));
        for (uint64_t turn = 0; turn < 20; turn++) pass(&net, loop, turn);
        part(&net, loop);
        CHECK(!waits || threads_called("crosstie-close") == 1);
        CHECK(!kill(peer_process, SIGCONT));
        tell(&byte, 1);
    } else {
        hear(&byte, 1);
        for (int i = 0; i < COUNT; i++) part(&net, pairs[i]);
    }
    OK(net_finalize(&net));
}

/* NCCL opens the plugin again and again in one process: the heap does not grow with it. */
static void cycles(void) {
    struct net net = started();
    OK(net_finalize(&net));
    long before = 0;
    for (int i = 0; i < 100; i++) {
        if (i == 10) before = held;
        OK(net_init(&net, log_line));
        OK(net_finalize(&net));
        forget_log();
    }
    if (held != before) FAIL("%ld bytes more of the heap are in use", held - before);
}

/* Communicators that share resources have one service thread, which sets up in the context of the
 * first: that ends while the thread is at it (NCCL 2.28.3), and it goes on. What it leaves open is
 * given back by the last end. */
struct sharer {
    struct net net;
    pthread_barrier_t turn;
};

static void *sharer_run(void *argument) {
    struct sharer *its = argument;
    unsigned char handle[HANDLE], other[HANDLE];
    void *listener = NULL, *left = NULL;
    OK(net_listen(&its->net, 0, handle, &listener));
    OK(net_listen(&its->net, 0, other, &left));
    pthread_barrier_wait(&its->turn);
    pthread_barrier_wait(&its->turn);
    struct pair pair = joined(&its->net, listener, handle);
    OK(net_close(&its->net, CLOSE_LISTEN, listener));
    pass(&its->net, pair, 5);
    part(&its->net, pair);
    return NULL;
}

static void sharers(void) {
    struct net child = started();
    struct sharer parent = {.net = started()};
    int before = threads();
    pthread_t service;
    CHECK(!pthread_barrier_init(&parent.turn, NULL, 2));
    CHECK(!pthread_create(&service, NULL, sharer_run, &parent));
    pthread_barrier_wait(&parent.turn);
    OK(net_finalize(&parent.net));
    pthread_barrier_wait(&parent.turn);
    CHECK(!pthread_join(service, NULL));
    OK(net_finalize(&child));
    threads_ended(before);
}

/* Several communicators, each with two threads, in both processes at once. */
struct crew {
    struct net net;
    struct pair pair;
};

static void *crew_run(void *argument) {
    struct crew *crew = argument;
    exchange(&crew->net, crew->pair, SIZES, sizeof SIZES / sizeof *SIZES, 33);
    return NULL;
}

static void crews(void) {
    enum { CREWS = 4 };
    struct crew crew[CREWS];
    pthread_t thread[CREWS];
    for (int i = 0; i < CREWS; i++) crew[i].net = started(), crew[i].pair = cross(&crew[i].net, 0);
    for (int i = 0; i < CREWS; i++) CHECK(!pthread_create(&thread[i], NULL, crew_run, &crew[i]));
    for (int i = 0; i < CREWS; i++) CHECK(!pthread_join(thread[i], NULL));
    meet();
    for (int i = 0; i < CREWS; i++) part(&crew[i].net, crew[i].pair);
    for (int i = 0; i < CREWS; i++) OK(net_finalize(&crew[i].net));
}

/* More connections of one communicator than one endpoint holds. */
static void many(void) {
    enum { MANY = 150 };
    struct net net = started();
    struct pair pairs[MANY];
    for (int i = 0; i < MANY; i++) pairs[i] = cross(&net, 0);
    for (int i = 0; i < MANY; i += 7) exchange(&net, pairs[i], SHORT, 3, 12);
    meet();
    for (int i = 0; i < MANY; i++) part(&net, pairs[i]);
    OK(net_finalize(&net));
}

/* One INFO line for each device, and no warning. */
static void lines(void) {
    struct net net = started();
    int count = 0, said = 0;
    OK(net_devices(&net, &count));
    pthread_mutex_lock(&logged_lock);
    for (const char *at = logged; (at = strstr(at, "3 NET/crosstie : device ")); at++) said++;
    CHECK(said == count);
    CHECK(!strstr(logged, "2 NET/crosstie"));
    pthread_mutex_unlock(&logged_lock);
    /* without a logger nothing is said, and nothing breaks */
    struct net second = net_load(library, version);
    OK(net_init(&second, NULL));
    /* and the first is still told */
    unsigned char handle[HANDLE] = {0};
    void *comm = NULL;
    CHECK(net_connect(&net, 0, handle, &comm, NULL) == ARGUMENT);
    pthread_mutex_lock(&logged_lock);
    CHECK(strstr(logged, "2 NET/crosstie"));
    pthread_mutex_unlock(&logged_lock);
    OK(net_finalize(&second));
    OK(net_finalize(&net));
}

/* Peers that number their devices otherwise, or have others: what matters stands in the handle. */
static void numbering(void) {
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    for (int round = 0; round < 2; round++) {
        struct pair pair = cross(&net, (rank + round) % count);
        exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 22);
        meet();
        part(&net, pair);
    }
    OK(net_finalize(&net));
}

/* What NCCL reads from properties that were written as a widespread plugin's own header lays them
 * out, which calls itself v8: every number behind the kinds of memory is that of its neighbour. */
static void mistaken(void) {
    struct {
        const char *name, *pci;
        uint64_t guid;
        int pointers, speed, port;
        float latency;
        int comms, recvs, type, type_version;
        uint64_t p2p_bytes;
    } theirs = {"mlx5_0", NULL, 7, 1, 100000, 1, 2.5f, 1024, 1, 0, 0, 1u << 30};
    CHECK(sizeof theirs == 64);
    struct seen seen = seen_of(8, (unsigned char *)&theirs);
    CHECK(seen.global == 100000 && seen.speed == 1 && seen.recvs == 0);
    CHECK(seen.comms == 1 && seen.type == 0 && seen.type_version == 1 << 30);
    int latency = 0;
    memcpy(&latency, &theirs.latency, sizeof latency);
    CHECK(seen.port == latency);
    /* and from ours */
    struct net net = started();
    unsigned char raw[192];
    OK(net_properties(&net, 0, raw));
    seen = seen_of(version, raw);
    CHECK(seen.global == 0 && seen.speed >= 10 && seen.port < 65536 && seen.recvs == GROUP);
    OK(net_finalize(&net));
}

/* The data path allocates nothing, once its connection stands. */
static void no_alloc(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    enum { ROOM = 1 << 18 };
    unsigned char *memory = malloc(2 * ROOM);
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, ROOM, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory + ROOM, ROOM, HOST_MEMORY, &out));
    meet();
    for (int round = 0; round < 400; round++) {
        size_t bytes = round % 3 == 0 ? ROOM : round % 3 == 1 ? 100 : 0;
        int recv_done = 0, send_done = 0, size = 0;
        counting = round >= 10;
        void *recv = recv_one(&net, pair.recv, memory, ROOM, 1, in);
        void *send = send_one(&net, pair.send, memory + ROOM, bytes, 1, out);
        while (!recv_done || !send_done) {
            if (!recv_done) OK(net_test(&net, recv, &recv_done, &size));
            if (!send_done) OK(net_test(&net, send, &send_done, NULL));
        }
        counting = 0;
        CHECK((size_t)size == bytes);
    }
    if (allocations) FAIL("%d allocations on the data path", allocations);
    /* set-up may allocate, and is counted: the plugin's calls come here */
    unsigned char handle[HANDLE];
    void *listener = NULL;
    counting = 1;
    OK(net_listen(&net, 0, handle, &listener));
    counting = 0;
    CHECK(allocations > 0);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
}

/* Somebody who is no peer talks to the port of a handle: he is ignored, and the peer served. */
static void strangers(void) {
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    /* three addresses of 20 bytes: family, a spare byte, port, address */
    unsigned char *address = handle + 48;
    while (address < handle + 108 && *address != 4) address += 20;
    CHECK(*address == 4);
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)(address[2] | address[3] << 8));
    memcpy(&to.sin_addr, address + 4, 4);
    int socket_fd[20];
    for (int i = 0; i < 20; i++) {
        socket_fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(!connect(socket_fd[i], (struct sockaddr *)&to, sizeof to));
        if (i % 2) CHECK(send(socket_fd[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    }
    void *comm = STALE;
    for (int i = 0; i < 1000; i++) {
        OK(net_accept(&net, listener, &comm, NULL));
        CHECK(!comm);
    }
    OK(net_close(&net, CLOSE_LISTEN, listener));
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SHORT, 3, 30);
    meet();
    for (int i = 0; i < 20; i++) close(socket_fd[i]);
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Helper threads run where the thread that made the connection may; a forked child is refused. */
static void affinity_and_fork(void) {
    cpu_set_t one, its;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL, *comm = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    CHECK(threads() > 1);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        CHECK(!sched_getaffinity(atoi(entry->d_name), sizeof its, &its));
        CHECK(CPU_EQUAL(&one, &its));
    }
    closedir(tasks);
    pid_t child = fork();
    if (child == 0) {
        alarm(600);
        int refused = net_accept(&net, listener, &comm, NULL) == USAGE;
        _exit(refused && net_listen(&net, 0, handle, &comm) == USAGE ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A child may neither use a connection of its parent's nor end it. */
static void forked(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char byte = 7;
    void *memory = NULL;
    OK(net_reg(&net, pair.send, &byte, 1, HOST_MEMORY, &memory));
    exchange(&net, pair, SHORT, 3, 30);
    pid_t child = rank == 0 ? fork() : -1;
    if (child == 0) {
        alarm(600);
        void *request = NULL, *other = NULL;
        int refused = net_isend(&net, pair.send, &byte, 1, 1, memory, &request) == USAGE;
        refused += net_reg(&net, pair.recv, &byte, 1, HOST_MEMORY, &other) == USAGE;
        int ended = net_dereg(&net, pair.send, memory) == SUCCESS;
        ended += net_close(&net, CLOSE_SEND, pair.send) == SUCCESS;
        ended += net_close(&net, CLOSE_RECV, pair.recv) == SUCCESS;
        _exit(refused == 2 && ended == 3 ? 0 : 1);
    }
    int status = 1;
    if (rank == 0) CHECK(waitpid(child, &status, 0) == child && status == 0);
    meet();
    exchange(&net, pair, SHORT, 3, 30);
    const size_t longer[] = {300000};
    exchange(&net, pair, longer, 1, 10);
    OK(net_dereg(&net, pair.send, memory));
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* What a connection has registered is given back by its close, and the limit is named. */
static void left_registered(void) {
    enum { MOST = 5000 };
    struct net net = started();
    struct pair stays = cross(&net, 0);
    unsigned char bytes[8] = {0};
    int counts[2];
    for (int round = 0; round < 2; round++) {
        struct pair pair = cross(&net, 0);
        void *memory = NULL;
        int count = 0, rc = SUCCESS;
        while (count < MOST && (rc = net_reg(&net, pair.send, bytes, 8, HOST_MEMORY, &memory)) == 0)
            count++;
        CHECK(rc != SUCCESS && count > 1000);
        CHECK(strstr(logged, "4096 regions are registered"));
        counts[round] = count;
        meet();
        part(&net, pair);
        meet();
    }
    CHECK(counts[0] == counts[1]);
    exchange(&net, stays, SHORT, 3, 30);
    meet();
    part(&net, stays);
    OK(net_finalize(&net));
}

/* NCCL's variable chooses where ours is not set; what is set stands in the log. */
static void settings(void) {
    CHECK(!unsetenv("CROSSTIE_SOCKET_IFNAME"));
    CHECK(!setenv("NCCL_SOCKET_IFNAME", "=lo", 1));
    CHECK(!setenv("NCCL_IB_FIFO_TC", "106", 1) && !setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1));
    struct net net = started();
    CHECK(was_logged("3 NET/crosstie : NCCL_IB_FIFO_TC=106 has no effect: control uses the "));
    CHECK(was_logged("3 NET/crosstie : NCCL_IB_SPLIT_DATA_ON_QPS=1 has no effect: how a message "));
    unsigned char raw[192];
    int count = 0;
    OK(net_devices(&net, &count));
    OK(net_properties(&net, 0, raw));
    CHECK(count == 1 && !strcmp(seen_of(version, raw).name, "lo"));
    CHECK(strstr(logged, "CROSSTIE_RAILS=shm,tcp") && strstr(logged, "NCCL_SOCKET_IFNAME==lo"));
    OK(net_finalize(&net));
}

#include "neighbours.h"
#include "rough.h"
#include "setup.h"
#include "mixed.h"
#include "points.h"
#include "told.h"
#include "traffic.h"
#include "fusion.h"
#include "forks.h"
#include "ports.h"
#include "nics.h"
#include "gpus.h"
#include "silent.h"
#include "refused.h"
#include "costs.h"

static const struct scenario SCENARIOS[] = {
    {"bytes", 1, bytes}, {"table", 0, table}, {"properties", 0, properties}, {"order", 1, order},
    {"groups", 1, groups}, {"full", 1, full}, {"oversize", 1, oversize}, {"nulls", 0, nulls},
    {"loopback", 0, loopback}, {"abort_busy", 1, abort_busy},
    {"tag_ahead", 1, tag_ahead}, {"half_written", 1, half_written}, {"peer_dies", 2, peer_dies},
    {"done_and_gone", 2, done_and_gone}, {"asleep", 1, asleep},
    {"peer_returns", 2, peer_returns}, {"reborn", 0, reborn},
    {"peer_stops", 2, peer_stops}, {"ends_apart", 2, ends_apart}, {"settings", 0, settings},
    {"abandoned", 0, abandoned}, {"abandoned_late", 0, abandoned_late},
    {"cycles", 0, cycles}, {"closed_at_once", 1, closed_at_once},
    {"closed_aside", 1, closed_aside},
    {"reload", 1, reload}, {"crews", 1, crews}, {"sharers", 0, sharers}, {"many", 1, many},
    {"lines", 0, lines}, {"mistaken", 0, mistaken}, {"no_alloc", 1, no_alloc},
    {"strangers", 1, strangers}, {"numbering", 1, numbering},
    {"fused", 1, fused}, {"fused_and_plain", 1, fused_and_plain},
    {"fused_on_one_host", 1, fused_on_one_host}, {"unfit", 0, unfit},
    {"fused_again", 0, fused_again}, {"numbers_held", 0, numbers_held},
    {"no_subnet", 1, no_subnet}, {"no_answer", 1, no_answer}, {"uneven", 1, uneven},
    {"wire_pulled", 1, wire_pulled}, {"numbered_otherwise", 1, numbered_otherwise},
    {"unlike", 1, unlike},
    {"hints", 0, hints}, {"classes", 1, classes}, {"profiled", 1, profiled},
    {"outlived", 1, outlived},
    {"profiled_without_events", 1, profiled_without_events},
    {"stalled", 1, stalled}, {"descriptors", 0, descriptors},
    {"threads_scarce", 0, threads_scarce}, {"versions", 0, versions},
    {"rough", 1, rough}, {"comes_and_goes", 1, comes_and_goes}, {"nonsense", 1, nonsense},
    {"dies_at_any_time", 2, dies_at_any_time},
    {"one_rank_alone", 0, one_rank_alone}, {"patience_anew", 0, patience_anew},
    {"stopped_in_set_up", 1, stopped_in_set_up},
    {"listener_reuse", 1, listener_reuse}, {"gpus", 1, gpus}, {"traffic", 1, traffic},
    {"listener_of_many", 1, listener_of_many},
    {"listener_beside_closed", 1, listener_beside_closed},
    {"taken_alone", 1, taken_alone},
    {"descriptors_in_set_up", 1, descriptors_in_set_up}, {"locked_memory", 1, locked_memory},
    {"neighbours", 0, neighbours}, {"mixed_versions", 0, mixed_versions},
    {"asked", 1, asked}, {"deep", 1, deep}, {"untested", 1, untested},
    {"as_rccl", 1, as_rccl},
    {"flush", 1, flush}, {"hinted", 1, hinted},
    {"same_host", 1, same_host}, {"settings_wrong", 0, settings_wrong},
    {"read_once", 0, read_once}, {"nowhere", 0, nowhere},
    {"nowhere_of_ours", 0, nowhere_of_ours}, {"required", 0, required},
    {"empty_names", 0, empty_names}, {"wires_shown", 1, wires_shown},
    {"family", 0, family}, {"counters", 1, counters},
    {"affinity_and_fork", 0, affinity_and_fork},
    {"ports_shown", 0, ports_shown}, {"ports_chosen", 0, ports_chosen},
    {"ports_apart", 1, ports_apart}, {"ports_fused", 1, ports_fused},
    {"ports_uneven", 1, ports_uneven}, {"ports_and_interfaces", 1, ports_and_interfaces},
    {"ports_link_pulled", 1, ports_link_pulled},
    {"gpu_pointers", 0, gpu_pointers}, {"gpu_nics", 0, gpu_nics}, {"gpu_refused", 0, gpu_refused},
    {"gpu_flush_fails", 0, gpu_flush_fails}, {"gpu_within", 0, gpu_within},
    {"nics_shown", 0, nics_shown}, {"nics_apart", 1, nics_apart}, {"nics_fused", 1, nics_fused},
    {"forked", 1, forked}, {"forked_busy", 0, forked_busy}, {"forked_anew", 0, forked_anew},
    {"left_registered", 1, left_registered},
    {"closed_while_offered", 1, closed_while_offered}, {"cut_off", 2, cut_off},
    {"without_proc", 0, without_proc}, {"without_memfd", 0, without_memfd},
    {"without_local_sockets", 0, without_local_sockets},
    {"without_file_bytes", 0, without_file_bytes}, {"costs", 1, costs}, {NULL, 0, NULL},
};
