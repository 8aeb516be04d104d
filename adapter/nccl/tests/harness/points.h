/* Points of the checklist that no larger scenario shows by itself. Included by scenarios.h
 * alone. */

/* One receive of `count` messages with tags 1, 2, ...; each has 100 bytes of room. */
static void *recv_some(struct net *net, void *comm, unsigned char *memory, void *known, int count) {
    void *data[GROUP], *handles[GROUP];
    size_t rooms[GROUP];
    int tags[GROUP];
    for (int i = 0; i < count; i++)
        data[i] = memory + 100 * i, rooms[i] = 100, tags[i] = i + 1, handles[i] = known;
    return recv_group(net, comm, count, data, rooms, tags, handles, STALE);
}

/* `done` is written by every test, sizes by those that end a request, as many as it has messages,
 * and not where NCCL has no place for them. */
static void asked(void) {
    enum { COUNT = 3 };
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[100 * GROUP];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, sizeof memory, HOST_MEMORY, &out));
    for (int round = 0; round < 2; round++) {
        int sizes[COUNT + 1], done;
        for (int i = 0; i <= COUNT; i++) sizes[i] = 4711;
        if (rank == 0) {
            void *recv = recv_some(&net, pair.recv, memory, in, COUNT);
            for (int i = 0; i < 50; i++) {
                done = 77;
                OK(net_test(&net, recv, &done, round ? sizes : NULL));
                CHECK(done == 0);
            }
            for (int i = 0; i <= COUNT; i++) CHECK(sizes[i] == 4711);
            meet();
            OK(finish(&net, recv, round ? sizes : NULL));
            for (int i = 0; i < COUNT; i++) CHECK(sizes[i] == (round ? 10 * i : 4711));
            CHECK(sizes[COUNT] == 4711);
        } else {
            meet();
            for (int i = 0; i < COUNT; i++) {
                void *send = send_one(&net, pair.send, memory, 10 * (size_t)i, i + 1, out);
                OK(finish(&net, send, round ? &sizes[i] : NULL));
                /* a place for one number */
                CHECK(sizes[i + 1] == 4711);
            }
        }
        meet();
    }
    /* a failed one is done, too */
    if (rank == 0) {
        void *recv = recv_some(&net, pair.recv, memory, in, 1);
        int size = 4711;
        meet();
        CHECK(finish(&net, recv, &size) == USAGE);
    } else {
        meet();
        OK(finish(&net, send_one(&net, pair.send, memory, 101, 1, out), NULL));
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* As many receives as NCCL guarantees not to exceed, each of as many messages as a group may have,
 * stand before the first message is sent. */
static void deep(void) {
    enum { GROUPS = 32 };
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char *memory = calloc(GROUPS, 100 * GROUP);
    void *known = NULL, *requests[GROUPS * GROUP];
    OK(net_reg(&net, rank ? pair.send : pair.recv, memory, GROUPS * 100 * GROUP, HOST_MEMORY,
        &known));
    for (int at = 0; rank == 0 && at < GROUPS; at++) {
        void *data[GROUP], *handles[GROUP];
        size_t rooms[GROUP];
        int tags[GROUP];
        for (int i = 0; i < GROUP; i++) {
            data[i] = memory + (at * GROUP + i) * 100, rooms[i] = 100;
            tags[i] = i + 1, handles[i] = known;
        }
        requests[at] = STALE;
        OK(net_irecv(
            &net, pair.recv, GROUP, data, rooms, tags, handles, &requests[at]));
        if (!requests[at]) FAIL("no room for receive %d of %d", at, GROUPS);
    }
    meet();
    int most = 0;
    for (int at = 0, ended = 0; rank == 1 && ended < GROUPS * GROUP;) {
        if (at < GROUPS * GROUP) {
            fill(memory + at * 100, 100, (uint64_t)at);
            requests[at] = STALE;
            OK(net_isend(&net, pair.send, memory + at * 100, (size_t)at % 101, at % GROUP + 1,
                known, &requests[at]));
            if (requests[at]) at++, most = at - ended > most ? at - ended : most;
            if (at < GROUPS * GROUP && requests[at - 1] && at - ended < GROUPS) continue;
        }
        int done = 77;
        OK(net_test(&net, requests[ended], &done, NULL));
        ended += done == 1;
    }
    CHECK(rank == 0 || most >= GROUPS);
    for (int at = 0; rank == 0 && at < GROUPS; at++) {
        int sizes[GROUP];
        OK(finish(&net, requests[at], sizes));
        for (int i = 0; i < GROUP; i++) {
            int number = at * GROUP + i;
            CHECK(sizes[i] == number % 101);
            verify(memory + number * 100, (size_t)sizes[i], (uint64_t)number);
        }
    }
    meet();
    OK(net_dereg(&net, rank ? pair.send : pair.recv, known));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
}

/* As test programs of other plugins do: all requests of one kind, each a message, asked for again
 * and again until there is room, and none tested before the last is had; by the receiver while
 * nobody sends, and by the sender while nobody receives. In this order: where a NIC has its host
 * answer for what it takes in, a receiver's last word ends when the sender next calls, and only
 * then is there room for all again. Then more than there is room for: who is given none tests those
 * it has. */
static void untested(void) {
    enum { ALL = 32 * GROUP, MORE = ALL + 100, ROOM = 20000 };
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char *memory = malloc((size_t)MORE * ROOM);
    void *known = NULL, *requests[MORE];
    OK(net_reg(&net, rank ? pair.send : pair.recv, memory, (size_t)MORE * ROOM, HOST_MEMORY,
        &known));
    for (int round = 0; round < 3; round++) {
        int count = round == 2 ? MORE : ALL;
        if (round < 2 && rank != round) meet(); /* late: the other has asked for all */
        for (int at = 0, ended = 0; ended < count;) {
            unsigned char *data = memory + (size_t)at * ROOM;
            size_t bytes = at % 3 ? (size_t)at % 1000 : (size_t)(ROOM - at), room = ROOM;
            int tag = 5, done = 0, size = 0;
            if (at < count) {
                requests[at] = STALE;
                if (rank) fill(data, bytes, (uint64_t)(round * 1000 + at));
                if (rank)
                    OK(net_isend(&net, pair.send, data, bytes, tag, known, &requests[at]));
                else
                    OK(net_irecv(
                        &net, pair.recv, 1, (void **)&data, &room, &tag, &known, &requests[at]));
                if (requests[at]) {
                    if (++at == count && round < 2 && rank == round) meet();
                    continue;
                }
                if (round < 2) continue;
            }
            OK(net_test(&net, requests[ended], &done, &size));
            data = memory + (size_t)ended * ROOM;
            bytes = ended % 3 ? (size_t)ended % 1000 : (size_t)(ROOM - ended);
            if (done && !rank) CHECK((size_t)size == bytes);
            if (done && !rank) verify(data, bytes, (uint64_t)(round * 1000 + ended));
            ended += done;
        }
    }
    meet();
    OK(net_dereg(&net, rank ? pair.send : pair.recv, known));
    part(&net, pair);
    free(memory);
    OK(net_finalize(&net));
}

/* RCCL may hand the number of its channel, four bytes, where NCCL hands the place for a device's
 * handle: nobody reads or writes it. Behind it lies a page that nobody may touch. */
static void as_rccl(void) {
    enum { CHANNEL = 0x1234 };
    struct net net = started();
    struct pair pair = {NULL, NULL};
    unsigned char mine[HANDLE], theirs[HANDLE], memory[1000];
    void *listener = NULL, *known = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !mprotect(pages + page, page, PROT_NONE));
    uint32_t *channel = (uint32_t *)(void *)(pages + page) - 1;
    *channel = CHANNEL;
    OK(net_listen(&net, 0, mine, &listener));
    tell(mine, HANDLE), hear(theirs, HANDLE);
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(&net, 0, theirs, &pair.send, (void **)(void *)channel));
        if (!pair.recv) OK(net_accept(&net, listener, &pair.recv, (void **)(void *)channel));
    }
    CHECK(*channel == CHANNEL);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    void *comm = rank ? pair.send : pair.recv, *request;
    OK(net_reg(&net, comm, memory, sizeof memory, HOST_MEMORY, &known));
    if (rank) fill(memory, sizeof memory, 9);
    request = rank ? send_one(&net, comm, memory, sizeof memory, 1, known)
                   : recv_one(&net, comm, memory, sizeof memory, 1, known);
    OK(finish(&net, request, NULL));
    verify(memory, sizeof memory, 9);
    meet();
    OK(net_dereg(&net, comm, known));
    part(&net, pair);
    CHECK(!munmap(pages, 2 * page));
    OK(net_finalize(&net));
}

/* Flushes of what was received leave no request, however often; a place for it there must be. */
static void flush(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[100 * GROUP];
    void *in = NULL, *out = NULL;
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, sizeof memory, HOST_MEMORY, &out));
    if (rank == 0) {
        int sizes[2] = {0};
        void *data[2] = {memory, memory + 100}, *handles[2] = {in, in};
        OK(finish(&net, recv_some(&net, pair.recv, memory, in, 2), sizes));
        for (int i = 0; i < 100; i++) {
            void *request = STALE;
            OK(net_iflush(&net, pair.recv, 2, data, sizes, handles, &request));
            CHECK(!request);
        }
        CHECK(net_iflush(&net, pair.recv, 2, data, sizes, handles, NULL) == ARGUMENT);
    } else {
        for (int i = 0; i < 2; i++)
            OK(finish(&net, send_one(&net, pair.send, memory, 50, i + 1, out), NULL));
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* The hint that NCCL need not know of a receive's end changes nothing: a request, in its turn, with
 * its bytes and its size. */
static void hinted(void) {
    struct net net = started();
    struct pair pair = cross(&net, 0);
    unsigned char memory[100 * GROUP];
    void *in = NULL, *out = NULL, *requests[GROUP];
    OK(net_reg(&net, pair.recv, memory, sizeof memory, HOST_MEMORY, &in));
    OK(net_reg(&net, pair.send, memory, sizeof memory, HOST_MEMORY, &out));
    for (int i = 0; i < GROUP; i++) {
        void *data = memory + 100 * i;
        size_t room = 100;
        int tag = 7;
        if (rank == 0) {
            requests[i] = recv_group(&net, pair.recv, 1, &data, &room, &tag, &in, HINT);
        } else {
            fill(data, 100, (uint64_t)i);
            requests[i] = send_one(&net, pair.send, data, 100 - (size_t)i, tag, out);
        }
    }
    for (int i = 0; i < GROUP; i++) {
        int size = 0;
        OK(finish(&net, requests[i], &size));
        CHECK(size == 100 - i);
        if (rank == 0) verify(memory + 100 * i, (size_t)size, (uint64_t)i);
    }
    meet();
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Peers of this host take shared memory under the device of an interface, unless they are told
 * otherwise. */
static void same_host_over(int rail) {
    static const char *const rails[] = {NULL, "tcp"}, *const said[] = {"rail 0 Shm", "rail 0 Tcp"};
    const char *wish = rails[rail];
    CHECK(wish ? !setenv("CROSSTIE_RAILS", wish, 1) : !unsetenv("CROSSTIE_RAILS"));
    struct net net = started();
    unsigned char raw[192];
    OK(net_properties(&net, 0, raw));
    CHECK(!strcmp(seen_of(version, raw).name, "lo"));
    struct pair pair = cross(&net, 0);
    exchange(&net, pair, SHORT, 3, 12);
    meet();
    part(&net, pair);
    CHECK(was_logged(said[rail]) && !was_logged(said[!rail]));
    OK(net_finalize(&net));
}

static void same_host(void) {
    for (int rail = 0; rail < 2; rail++) in_own_process(same_host_over, rail);
}

/* A setting of ours that cannot be meant is one line each, and NCCL goes on without the plugin;
 * what is wrong with NCCL's is a warning. */
static const struct {
    const char *name, *value, *said;
} WRONG[] = {
    {"CROSSTIE_TCP_STREAMS", "99", "it may be a number from 1 to 6"},
    {"CROSSTIE_STALL_MS", "soon", "it may be a number from 0 to 86400000"},
    {"CROSSTIE_RAILS", "carrier-pigeon", "there is no rail carrier-pigeon; there are shm, "},
    {"CROSSTIE_RAILS_REQUIRED", "verbs;tcp", "there is no rail verbs;tcp; there are shm, "},
    {"CROSSTIE_SOCKET_IFNAME", "lo,", "a name of an interface is missing"},
    {"CROSSTIE_IB_TIMEOUT", "0", "it may be from 1 to 31"},
};

static void setting_wrong(int at) {
    char line[200];
    CHECK(!setenv(WRONG[at].name, WRONG[at].value, 1));
    struct net net = net_load(library, version);
    int rc = net_init(&net, log_line);
    snprintf(line, sizeof line, "2 NET/crosstie : %s=%s: %s", WRONG[at].name, WRONG[at].value,
        WRONG[at].said);
    if (rc != USAGE || !was_logged(line)) FAIL("%d, no %s in %s", rc, line, logged);
    CHECK(was_logged("; no endpoint opens until that is corrected") && !was_logged("device 0"));
    const char *first = strstr(logged, line);
    CHECK(!strstr(first + 1, "2 NET/crosstie"));
}

static void settings_wrong(void) {
    for (int at = 0; at < (int)(sizeof WRONG / sizeof *WRONG); at++)
        in_own_process(setting_wrong, at);
    CHECK(!setenv("CROSSTIE_STREAMS", "2", 1) && !setenv("NCCL_SOCKET_FAMILY", "AF_UNIX", 1));
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    CHECK(was_logged("2 NET/crosstie : NCCL_SOCKET_FAMILY=AF_UNIX is ignored"));
    CHECK(was_logged("streams 1, ") && was_logged("stalls after 10000 ms"));
    OK(net_listen(&net, 0, handle, &listener));
    CHECK(was_logged("CROSSTIE_STREAMS"));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A rail that must be there is not: no line says that the device goes on without it. */
static void required(void) {
    CHECK(!unsetenv("CROSSTIE_RAILS") && !setenv("CROSSTIE_RAILS_REQUIRED", "verbs", 1));
    CHECK(!setenv("CROSSTIE_IB_DISABLE", "1", 1));
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    CHECK(net_listen(&net, 0, handle, &listener) == USAGE && !listener);
    CHECK(was_logged("2 NET/crosstie : no RDMA port can be used, and CROSSTIE_RAILS_REQUIRED names "
                     "verbs: no device opens ("));
    CHECK(was_logged(" no rail, and it will not open (CROSSTIE_RAILS_REQUIRED names verbs); "));
    CHECK(was_logged("CROSSTIE_RAILS_REQUIRED names verbs, which CROSSTIE_RAILS or the device "
                     "leaves out; the endpoint is not opened"));
    CHECK(!was_logged("TCP rail to") && !was_logged("over TCP") && !was_logged("interfaces are"));
    OK(net_finalize(&net));
}

/* Names that no interface has are said with what there is instead, and with what becomes of it. */
static void nowhere_in_part(int unused) {
    (void)unused;
    CHECK(!setenv("CROSSTIE_SOCKET_IFNAME", "lo,nowhere", 1));
    struct net net = started();
    CHECK(was_logged("2 NET/crosstie : CROSSTIE_SOCKET_IFNAME=lo,nowhere: no interface matches "
                     "nowhere, and the others are used; there are "));
    OK(net_finalize(&net));
}

static void nowhere_of_ours(void) {
    in_own_process(nowhere_in_part, 0);
    CHECK(!setenv("CROSSTIE_SOCKET_IFNAME", "nowhere", 1) && !setenv("CROSSTIE_RAILS", "tcp", 1));
    struct net net = started();
    CHECK(was_logged("2 NET/crosstie : CROSSTIE_SOCKET_IFNAME=nowhere matches no interface with an "
                     "address; there are "));
    CHECK(was_logged(": no peer can be reached, since CROSSTIE_RAILS leaves out shm"));
    CHECK(was_logged("it will not open (CROSSTIE_RAILS leaves out all that it has); "));
    OK(net_finalize(&net));
}

/* A choice of interfaces is blamed on the variable that has made it. */
static void nowhere(void) {
    CHECK(!unsetenv("CROSSTIE_SOCKET_IFNAME") && !setenv("NCCL_SOCKET_IFNAME", "nowhere", 1));
    struct net net = started();
    CHECK(was_logged(" NCCL_SOCKET_IFNAME=nowhere matches no interface"));
    CHECK(was_logged(": only peers of this host can be reached, through shared memory"));
    CHECK(!was_logged("CROSSTIE_SOCKET_IFNAME"));
    /* and what it leaves is what the device has: no address stands in a handle */
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    for (int at = 48; at < 108; at += 20) CHECK(handle[at] != 4 && handle[at] != 6);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* The device that there is where nobody chooses. */
static char usual_device[64];

static void usual_device_find(int to) {
    struct net net = started();
    unsigned char raw[192];
    OK(net_properties(&net, 0, raw));
    snprintf(usual_device, sizeof usual_device, "%s", seen_of(version, raw).name);
    CHECK(write(to, usual_device, sizeof usual_device) == sizeof usual_device);
    OK(net_finalize(&net));
}

static const struct {
    const char *said;
    int named, warned;
} NAMES[] = {
    {"lo,", 1, 0}, {",lo", 1, 0}, {"=lo,,nowhere,", 1, 0}, {"lo:1", 1, 0},
    {"^", 0, 0}, {"=", 0, 0}, {",", 0, 0}, {"x", 0, 0}, {"^,", 0, 0},
    {"lo,^nowhere", 0, 1}, {"=^lo", 0, 1},
};

static void names_read(int at) {
    const char *said = NAMES[at].said;
    int named = NAMES[at].named, warned = NAMES[at].warned, count = 0;
    unsigned char raw[192];
    char warning[100];
    CHECK(!setenv("NCCL_SOCKET_IFNAME", said, 1));
    struct net net = started();
    OK(net_devices(&net, &count));
    OK(net_properties(&net, 0, raw));
    const char *name = seen_of(version, raw).name;
    if (strcmp(name, named ? "lo" : usual_device) || (named && count != 1))
        FAIL("%s: %d devices, the first is %s", said, count, name);
    snprintf(warning, sizeof warning, "2 NET/crosstie : NCCL_SOCKET_IFNAME=%s is ignored: ", said);
    if (was_logged(warning) != warned) FAIL("%s: %s", said, logged);
    CHECK(warned || !was_logged("2 NET/crosstie"));
    int told = named && strstr(said, "nowhere");
    CHECK(was_logged(": no interface matches nowhere, and the others are used") == told);
    OK(net_finalize(&net));
}

/* What NCCL passes over in its variable is passed over; what it cannot mean is a warning, and the
 * default holds. In ours both are errors (settings_wrong). */
static void empty_names(void) {
    int ends[2];
    CHECK(!unsetenv("CROSSTIE_SOCKET_IFNAME") && !unsetenv("NCCL_SOCKET_IFNAME") && !pipe(ends));
    in_own_process(usual_device_find, ends[1]);
    CHECK(read(ends[0], usual_device, sizeof usual_device) == sizeof usual_device);
    for (int at = 0; at < (int)(sizeof NAMES / sizeof *NAMES); at++) in_own_process(names_read, at);
}

/* NCCL's variables are read by init, and not again: what the program does to its environment later
 * changes nothing. */
static void read_once(void) {
    CHECK(!setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1));
    struct net net = started();
    CHECK(!setenv("NCCL_SOCKET_FAMILY", "AF_INET6", 1));
    CHECK(!setenv("NCCL_SOCKET_IFNAME", "nowhere", 1));
    unsigned char handle[HANDLE];
    void *listener = NULL;
    int count = 0, now = 0, four = 0;
    OK(net_devices(&net, &count));
    OK(net_listen(&net, 0, handle, &listener));
    for (int at = 48; at < 108; at += 20) four += handle[at] == 4, CHECK(handle[at] != 6);
    OK(net_devices(&net, &now));
    CHECK(four > 0 && now == count);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A peer ends without a word; what it was told is done arrives, whoever asks for it when. */
static void done_and_gone(void) {
    enum { COUNT = 24, BYTES = 500 };
    static unsigned char memory[COUNT][BYTES];
    struct net net = started();
    struct pair pair = cross(&net, 0);
    void *comm = rank ? pair.send : pair.recv, *handle = NULL, *request[COUNT];
    OK(net_reg(&net, comm, memory, sizeof memory, HOST_MEMORY, &handle));
    meet(); /* both are connected */
    if (rank == 1) {
        for (int i = 0; i < COUNT; i++) {
            fill(memory[i], BYTES, (uint64_t)i);
            request[i] = send_one(&net, comm, memory[i], BYTES, 1, handle);
        }
        for (int i = 0; i < COUNT; i++) OK(finish(&net, request[i], NULL));
        raise(SIGKILL);
    }
    char byte;
    while (read(peer_socket, &byte, 1) > 0) continue;
    for (int i = 0; i < COUNT; i++) {
        int size = 0;
        request[i] = recv_one(&net, comm, memory[i], BYTES, 1, handle);
        OK(finish(&net, request[i], &size));
        CHECK(size == BYTES);
        verify(memory[i], BYTES, (uint64_t)i);
    }
    request[0] = recv_one(&net, comm, memory[0], BYTES, 1, handle);
    CHECK(finish(&net, request[0], NULL) == REMOTE);
    OK(net_dereg(&net, comm, handle));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* Sends are done before their bytes have left, where sockets take little; who sent calls nothing
 * more, as NCCL does when all of its requests have ended. What is done arrives all the same. */
static void asleep(void) {
    enum { COUNT = 16, BYTES = 8000 };
    static unsigned char memory[COUNT][BYTES];
    struct net net = started();
    struct pair pair = cross(&net, 0);
    void *comm = rank ? pair.recv : pair.send, *handle = NULL, *request = NULL;
    int done = 0;
    OK(net_reg(&net, comm, memory, sizeof memory, HOST_MEMORY, &handle));
    meet(); /* both are connected */
    if (rank == 0) {
        for (int is_done = 1; is_done && done < COUNT; done += is_done) {
            fill(memory[done], BYTES, (uint64_t)done);
            request = NULL;
            OK(net_isend(&net, comm, memory[done], BYTES, 1, handle, &request));
            is_done = 0;
            for (int i = 0; request && i < 2000 && !is_done; i++)
                OK(net_test(&net, request, &is_done, NULL));
        }
        tell(&done, sizeof done);
        char byte;
        hear(&byte, 1);
    } else {
        hear(&done, sizeof done);
        CHECK(done > 2);
        for (int i = 0; i < done; i++) {
            void *receive = recv_one(&net, comm, memory[i], BYTES, 1, handle);
            OK(finish(&net, receive, NULL));
            verify(memory[i], BYTES, (uint64_t)i);
        }
        tell("d", 1);
    }
    OK(net_dereg(&net, comm, handle));
    part(&net, pair);
    OK(net_finalize(&net));
}
