/* Devices of several interfaces, between hosts. Included by scenarios.h alone. */

/* Makes one device of the first `count`; its number, or what it was refused with, negative. */
static int fuse(struct net *net, int count, const int *devices) {
    int props[9] = {count}, number = -77;
    for (int i = 0; i < 8; i++) props[1 + i] = devices[i];
    int rc = CALL(net, V_DEVICE, (int *, void *))(&number, props);
    CHECK((number == -77) == (rc != 0));
    return rc ? -rc : number;
}

static const int FIRST[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Bytes of stripes that the log says went over a rail of the connection that was closed last. */
static unsigned long rail_bytes(int rail) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "rail %d Tcp ", rail);
    const char *at = NULL;
    for (const char *next = logged; (next = strstr(next, wanted)); next++)
        if (strstr(next, "in stripes")) at = next;
    return at ? strtoul(at + strlen(wanted), NULL, 10) : 0;
}

static const size_t LONG[] = {8 << 20, (8 << 20) + 5, 6 << 20};

/* A connection of one device of as many interfaces as the table allows has as many rails, and all
 * of them carry bytes. */
static void fused(void) {
    struct net net = started();
    int count = 0, most = version < 12 ? 4 : 8, now = 0;
    OK(net_devices(&net, &count));
    CHECK(count == 8);
    int device = fuse(&net, most, FIRST);
    CHECK(device == count);
    OK(net_devices(&net, &now));
    CHECK(now == count + 1);
    unsigned char raw[192];
    OK(net_properties(&net, device, raw));
    struct seen seen = seen_of(version, raw);
    int members[8], speed = 0;
    char name[200] = "";
    memcpy(members, raw + 68, sizeof(int) * (size_t)most);
    CHECK(seen.members == most && !memcmp(members, FIRST, sizeof(int) * (size_t)most));
    for (int i = 0; i < most; i++) {
        struct seen member;
        OK(net_properties(&net, i, raw));
        member = seen_of(version, raw);
        CHECK(member.members == 1 && member.member == i);
        speed += member.speed;
        strcat(strcat(name, i ? "+" : ""), member.name);
    }
    CHECK(seen.speed == speed && !strcmp(seen.name, name));
    CHECK(strstr(logged, most == 4 ? "4 TCP rails to other hosts" : "8 TCP rails to other hosts"));
    struct pair pair = cross(&net, device);
    exchange(&net, pair, LONG, 3, 24);
    meet();
    part(&net, pair);
    for (int rail = 0; rail < most; rail++)
        if (!rail_bytes(rail)) FAIL("no bytes on rail %d of %d: %s", rail, most, logged);
    CHECK(!rail_bytes(most));
    OK(net_finalize(&net));
}

/* One side's device has two interfaces, the other's one. */
static void fused_and_plain(void) {
    struct net net = started();
    int device = rank == 0 ? fuse(&net, 2, FIRST) : 0;
    CHECK(device == (rank == 0 ? 8 : 0));
    struct pair pair = cross(&net, device);
    exchange(&net, pair, LONG, 3, 12);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}

/* What cannot be made is refused, and nothing is there afterwards. */
static void unfit(void) {
    struct net net = started();
    int count = 0, now = 0, most = version < 12 ? 4 : 8;
    OK(net_devices(&net, &count));
    const int twice[8] = {0, 0}, negative[8] = {-1}, strange[8] = {count};
    CHECK(fuse(&net, 0, FIRST) == -ARGUMENT && fuse(&net, -1, FIRST) == -ARGUMENT);
    CHECK(fuse(&net, most + 1, FIRST) == -ARGUMENT && fuse(&net, 2, twice) == -ARGUMENT);
    CHECK(fuse(&net, 1, negative) == -ARGUMENT && fuse(&net, 1, strange) == -ARGUMENT);
    CHECK(CALL(&net, V_DEVICE, (int *, void *))(&now, NULL) == ARGUMENT);
    CHECK(CALL(&net, V_DEVICE, (int *, void *))(NULL, (void *)FIRST) == ARGUMENT);
    OK(net_devices(&net, &now));
    CHECK(now == count);
    /* NCCL loads the plugin again, and makes its device again: it has the same number, and until
     * then it is not there */
    for (int round = 0; round < 3; round++) {
        CHECK(fuse(&net, 1, FIRST) == count);
        OK(net_devices(&net, &now));
        CHECK(now == count + 1);
        OK(net_finalize(&net));
        OK(net_init(&net, log_line));
        OK(net_devices(&net, &now));
        CHECK(now == count);
    }
    OK(net_finalize(&net));
}

/* Hosts without a common subnet, and without a way: both are told so, by the peer's address. */
static void no_subnet(void) {
    struct net net = started();
    unsigned char mine[HANDLE], theirs[HANDLE];
    void *listener = NULL, *send = NULL, *recv = NULL;
    int rc = 0;
    OK(net_listen(&net, 0, mine, &listener));
    tell(mine, HANDLE), hear(theirs, HANDLE);
    while (!(rc = net_connect(&net, 0, theirs, &send, NULL)) && !send)
        OK(net_accept(&net, listener, &recv, NULL));
    CHECK(rc == REMOTE && !send && !recv);
    CHECK(strstr(logged, rank ? "10.1.0.1" : "10.2.0.1") && strstr(logged, "no connection"));
    meet();
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}
