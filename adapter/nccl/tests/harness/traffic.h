/* Random traffic for as long as HARNESS_SECONDS says: communicators with a thread each in both
 * processes, groups and single messages of all lengths both ways, connections that are made anew,
 * in order or with requests outstanding. Both sides draw the same plan from one seed
 * (HARNESS_SEED), so every byte is checked. Included by scenarios.h alone. */

enum { CREWS = 3, AREA = 1 << 20, AHEAD = STEPS };

static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t x = first_seed * 0x9e3779b97f4a7c15u ^ a * 0xff51afd7ed558ccdu ^ (b + 1) << 17;
    x ^= x >> 31, x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 29;
}

/* One grouped receive, and the sends for it. */
struct group {
    int count, first_tag, stride;
    size_t room, bytes[GROUP];
};

/* Group `at` of what `sender` sends in a round. */
static struct group group_of(uint64_t round, int sender, int at) {
    static const int STRIDE[] = {1, 3, 5, 7};
    uint64_t x = mixed(round * 2 + (uint64_t)sender, (uint64_t)at);
    struct group group = {.count = x & 1 ? 1 : 1 + (int)(x >> 1 & 7)};
    group.first_tag = (int)(x >> 8 & 0xffff) - 0x8000;
    group.stride = STRIDE[x >> 30 & 3];
    group.room = AREA / (size_t)group.count / 64 * 64;
    for (int i = 0; i < group.count; i++) {
        uint64_t y = mixed(x, (uint64_t)i);
        size_t most = (size_t)1 << (y >> 50) % 21;
        group.bytes[i] = y >> 40 & 15 ? (size_t)(y & 0xffffffff) % (most + 1) : 0;
        if (group.bytes[i] > group.room) group.bytes[i] = group.room;
    }
    return group;
}

struct side {
    unsigned char *memory;
    void *handle;
    void *requests[AHEAD][GROUP];
    int begun, ended, next;
};

struct stream {
    struct net net;
    struct pair pair;
    struct side in, out;
    int number;
    uint64_t round, messages, bytes, made;
};

/* The order in which a group is sent: not that of its receives. */
static int turn(const struct group *group, int at) {
    return (group->count & (group->count - 1)) ? group->count - 1 - at
                                               : at * group->stride % group->count;
}

static uint64_t mark_of(const struct stream *s, int sender, int group, int message) {
    uint64_t number = (uint64_t)((group * 16 + message) * 2 + sender);
    return mixed(s->round * 64 + (uint64_t)s->number, number);
}

static void receive_some(struct stream *s, int all) {
    struct side *in = &s->in;
    uint64_t key = s->round * 8 + (uint64_t)s->number;
    if (in->begun < all && in->begun - in->ended < AHEAD) {
        struct group group = group_of(key, !rank, in->begun);
        void *data[GROUP], *handles[GROUP];
        size_t rooms[GROUP];
        int tags[GROUP];
        unsigned char *area = in->memory + (size_t)(in->begun % AHEAD) * AREA;
        for (int i = 0; i < group.count; i++) {
            data[i] = area + (size_t)i * group.room, handles[i] = in->handle;
            rooms[i] = group.room, tags[i] = group.first_tag + i;
        }
        void **slot = &in->requests[in->begun % AHEAD][0];
        *slot = group.count == 1 && (mixed(key, 7) & 1) ? HINT : STALE;
        OK(net_irecv(
            &s->net, s->pair.recv, group.count, data, rooms, tags, handles, slot));
        ROUGH(*slot != HINT && *slot != STALE);
        in->begun += *slot != NULL;
    }
    if (in->ended < in->begun) {
        int sizes[GROUP] = {0}, done = 77, at = in->ended % AHEAD;
        OK(net_test(&s->net, in->requests[at][0], &done, sizes));
        ROUGH(done == 0 || done == 1);
        if (!done) return;
        struct group group = group_of(key, !rank, in->ended);
        for (int i = 0; i < group.count; i++) {
            unsigned char *data = in->memory + (size_t)at * AREA + (size_t)i * group.room;
            ROUGH((size_t)sizes[i] == group.bytes[i]);
            verify(data, group.bytes[i], mark_of(s, !rank, in->ended, i));
            s->messages++, s->bytes += group.bytes[i];
        }
        in->ended++;
    }
}

static void send_some(struct stream *s, int all) {
    struct side *out = &s->out;
    uint64_t key = s->round * 8 + (uint64_t)s->number;
    if (out->begun < all && out->begun - out->ended < AHEAD) {
        struct group group = group_of(key, rank, out->begun);
        int i = turn(&group, out->next), at = out->begun % AHEAD;
        unsigned char *data = out->memory + (size_t)at * AREA + (size_t)i * group.room;
        void **slot = &out->requests[at][out->next];
        fill(data, group.bytes[i], mark_of(s, rank, out->begun, i));
        *slot = STALE;
        OK(net_isend(&s->net, s->pair.send, data, group.bytes[i], group.first_tag + i,
            out->handle, slot));
        ROUGH(*slot != STALE);
        if (*slot && ++out->next == group.count) out->next = 0, out->begun++;
    }
    if (out->ended < out->begun) {
        struct group group = group_of(key, rank, out->ended);
        int at = out->ended % AHEAD, left = 0;
        for (int i = 0; i < group.count; i++) {
            int done = 77;
            if (!out->requests[at][i]) continue;
            OK(net_test(&s->net, out->requests[at][i], &done, NULL));
            ROUGH(done == 0 || done == 1);
            if (done) out->requests[at][i] = NULL;
            left += !done;
        }
        out->ended += !left;
    }
}

static void memory_known(struct stream *s) {
    OK(net_reg(&s->net, s->pair.recv, s->in.memory, AHEAD * AREA, HOST_MEMORY, &s->in.handle));
    OK(net_reg(&s->net, s->pair.send, s->out.memory, AHEAD * AREA, HOST_MEMORY, &s->out.handle));
}

static void made_anew(struct stream *s, int busy) {
    for (int i = 0; busy && i < STEPS; i++) {
        /* which nobody sends, and nobody receives */
        recv_one(&s->net, s->pair.recv, s->in.memory, AREA, 1, s->in.handle);
        send_one(&s->net, s->pair.send, s->out.memory, (size_t)i * 9000, 2, s->out.handle);
    }
    if (!busy) meet();
    OK(net_dereg(&s->net, s->pair.recv, s->in.handle));
    OK(net_dereg(&s->net, s->pair.send, s->out.handle));
    part(&s->net, s->pair);
    s->pair = cross(&s->net, 0);
    memory_known(s);
    s->made++;
}

static void *stream_run(void *argument) {
    struct stream *s = argument;
    time_t end = time(NULL) + seconds();
    char on = 1;
    peer_socket = crew_sockets[s->number];
    s->pair = cross(&s->net, 0);
    s->in.memory = malloc(AHEAD * AREA), s->out.memory = malloc(AHEAD * AREA);
    memory_known(s);
    for (s->round = 1; on; s->round++) {
        uint64_t x = mixed(s->round, 1000 + (uint64_t)s->number);
        int all = 1 + (int)(x & 63);
        s->in.begun = s->in.ended = s->out.begun = s->out.ended = s->out.next = 0;
        while (s->in.ended < all || s->out.ended < all) {
            receive_some(s, all);
            send_some(s, all);
            if (!(x = x * 6364136223846793005u + 1442695040888963407u, x >> 58)) sched_yield();
        }
        /* rank 0 says how long */
        if (rank == 0) on = time(NULL) < end, tell(&on, 1);
        else hear(&on, 1);
        uint64_t y = mixed(s->round, 2000 + (uint64_t)s->number);
        if (on && !(y & 15)) made_anew(s, (int)(y >> 8 & 1));
    }
    meet();
    OK(net_dereg(&s->net, s->pair.recv, s->in.handle));
    OK(net_dereg(&s->net, s->pair.send, s->out.handle));
    part(&s->net, s->pair);
    free(s->in.memory), free(s->out.memory);
    return NULL;
}

static void traffic(void) {
    struct stream streams[CREWS];
    pthread_t thread[CREWS];
    seeded();
    /* where processors are scarce a message may take long: half of what this process has */
    CHECK(!setenv("CROSSTIE_STALL_MS", "60000", 1));
    memset(streams, 0, sizeof streams);
    for (int i = 0; i < CREWS; i++) streams[i].net = started(), streams[i].number = i;
    for (int i = 0; i < CREWS; i++)
        CHECK(!pthread_create(&thread[i], NULL, stream_run, &streams[i]));
    for (int i = 0; i < CREWS; i++) CHECK(!pthread_join(thread[i], NULL));
    meet();
    for (int i = 0; i < CREWS; i++) {
        OK(net_finalize(&streams[i].net));
        CHECK(streams[i].messages > 0 && streams[i].bytes > 0);
        if (rank || !getenv("HARNESS_SECONDS")) continue;
        printf("communicator %d: %lu messages, %lu bytes received, connected %lu times; seed %lu\n",
            i, streams[i].messages, streams[i].bytes, 1 + streams[i].made, first_seed);
    }
    CHECK(!was_logged("stalled"));
}
