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
static unsigned long rail_bytes_of(const char *kind, int rail) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "rail %d %s ", rail, kind);
    const char *at = NULL;
    for (const char *next = logged; (next = strstr(next, wanted)); next++)
        if (strstr(next, "in stripes")) at = next;
    return at ? strtoul(at + strlen(wanted), NULL, 10) : 0;
}

static unsigned long rail_bytes(int rail) {
    return rail_bytes_of("Tcp", rail);
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

/* Peers of one host take shared memory under a device of several interfaces, too. */
static void fused_on_one_host(void) {
    CHECK(!unsetenv("CROSSTIE_RAILS"));
    struct net net = started();
    struct pair pair = cross(&net, fuse(&net, 2, FIRST));
    exchange(&net, pair, SIZES, sizeof SIZES / sizeof *SIZES, 33);
    meet();
    part(&net, pair);
    CHECK(was_logged("eth0+eth1: ") && was_logged("rail 0 Shm") && !was_logged("rail 0 Tcp"));
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
    /* NCCL loads the plugin again, and makes its device again: it has the same number. Until then
     * it is not there, where a table has an end; without one nobody knows that NCCL has left, and
     * the count that it was told holds. */
    for (int round = 0; round < 3; round++) {
        CHECK(fuse(&net, 1, FIRST) == count);
        OK(net_devices(&net, &now));
        CHECK(now == count + 1);
        OK(net_finalize(&net));
        OK(net_init(&net, log_line));
        OK(net_devices(&net, &now));
        CHECK(now == (version < 11 ? count + 1 : count));
    }
    OK(net_finalize(&net));
}

/* NCCL 2.28.3 opens the plugin for each communicator, counts its devices and makes them of several
 * again, while another communicator uses those that were made: each has one number. */
static void fused_again(void) {
    struct net first = started(), second;
    int count = 0, now = 0;
    OK(net_devices(&first, &count));
    int device = fuse(&first, 1, FIRST);
    CHECK(device == count);
    for (int round = 0; round < 3; round++) {
        second = net_load(library, version);
        OK(net_init(&second, log_line));
        OK(net_devices(&second, &now));
        CHECK(now == count + 1);
        /* what was made is no member of another */
        const int made[8] = {0, device};
        CHECK(fuse(&second, 2, made) == -ARGUMENT);
        CHECK(fuse(&second, 1, FIRST) == device);
        OK(net_devices(&second, &now));
        CHECK(now == count + 1);
        OK(net_finalize(&second));
    }
    OK(net_finalize(&first));
}

/* The name of the first device, which is the only one. */
static const char *only(struct net *net) {
    unsigned char raw[192];
    int count = 0;
    OK(net_devices(net, &count));
    CHECK(count == 1 && !net_properties(net, 0, raw));
    return seen_of(version, raw).name;
}

/* All communicators have ended, and other interfaces are there than before. Where NCCL has kept the
 * plugin, the number that it holds is of the same device, which says by name that it is gone; where
 * it has loaded it anew, of the one that is there now. */
static void numbers_found(int stays) {
    if (stays) CHECK(!setenv("NCCL_NET_PLUGIN_REF_COUNT", "1", 1));
    struct net net = started();
    CHECK(!strcmp(only(&net), "lo"));
    OK(net_finalize(&net));
    /* who is no user of its own has no other interfaces */
    if (unshare(CLONE_NEWNET)) return;
    OK(net_init(&net, log_line));
    CHECK(!strcmp(only(&net), stays ? "lo" : "shm"));
    if (stays) {
        unsigned char handle[HANDLE];
        void *listener = NULL;
        int rc = net_listen(&net, 0, handle, &listener);
        CHECK(rc == USAGE && !listener);
        CHECK(was_logged("device \"lo\" cannot be opened: no interface that is up and chosen "));
    }
    OK(net_finalize(&net));
}

static void numbers_held(void) {
    in_own_process(numbers_found, 1);
    in_own_process(numbers_found, 0);
}

/* The devices are the interfaces of HARNESS_WIRES ("eth0 eth1 "), in this order. */
static void wires_shown(void) {
    struct net net = started();
    unsigned char raw[192];
    char names[200] = "";
    int count = 0;
    OK(net_devices(&net, &count));
    for (int device = 0; device < count; device++) {
        OK(net_properties(&net, device, raw));
        strcat(strcat(names, seen_of(version, raw).name), " ");
    }
    if (strcmp(names, getenv("HARNESS_WIRES"))) FAIL("devices are %s", names);
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

/* ---- devices that are not alike ---- */

enum { WIRES = 8 };

/* The device with a wire's name. */
static int device_named(struct net *net, int wire) {
    char name[16];
    int count = 0;
    OK(net_devices(net, &count));
    snprintf(name, sizeof name, "eth%d", wire);
    for (int device = 0; device < count; device++) {
        unsigned char raw[192];
        OK(net_properties(net, device, raw));
        if (!strcmp(seen_of(version, raw).name, name)) return device;
    }
    FAIL("no device %s", name);
}

/* What this host has sent and received by each wire, as the kernel counts it. */
static void wires_read(uint64_t bytes[WIRES]) {
    char line[400];
    FILE *file = fopen("/proc/net/dev", "r");
    CHECK(file);
    memset(bytes, 0, WIRES * sizeof *bytes);
    while (fgets(line, sizeof line, file)) {
        int wire;
        unsigned long in, out;
        if (sscanf(line, " eth%d: %lu %*u %*u %*u %*u %*u %*u %*u %lu", &wire, &in, &out) == 3)
            CHECK(wire < WIRES), bytes[wire] = in + out;
    }
    fclose(file);
}

/* Numbers with commas between them; how many. */
static int numbers_of(const char *name, int which, int *out) {
    const char *text = getenv(name);
    CHECK(text);
    if (which && strchr(text, ';')) text = strchr(text, ';') + 1;
    int count = 0;
    for (char *end; *text && *text != ';'; text = end + (*end == ','))
        CHECK(count < WIRES), out[count++] = (int)strtol(text, &end, 10);
    return count;
}

/* The device of this side's wires, of HARNESS_MEMBERS ("0,1,2,3;0"). */
static int device_of_wires(struct net *net) {
    int wires[WIRES], devices[WIRES], count = numbers_of("HARNESS_MEMBERS", rank, wires);
    for (int i = 0; i < count; i++) devices[i] = device_named(net, wires[i]);
    int device = count == 1 ? devices[0] : fuse(net, count, devices);
    CHECK(device >= 0);
    return device;
}

/* Devices of different interfaces: each that leads to one of the peer's (HARNESS_COMMON) carries
 * bytes, by the kernel's count and, where there are several rails, by the plugin's; none of the
 * others does. */
static void uneven(void) {
    struct net net = started();
    int common[WIRES], rails = numbers_of("HARNESS_COMMON", !rank, common);
    int mine = numbers_of("HARNESS_COMMON", rank, common);
    rails = mine > rails ? mine : rails;
    uint64_t before[WIRES], after[WIRES];
    struct pair pair = cross(&net, device_of_wires(&net));
    wires_read(before);
    exchange(&net, pair, LONG, 3, 24);
    meet();
    wires_read(after);
    part(&net, pair);
    for (int wire = 0; wire < WIRES; wire++) {
        uint64_t grown = after[wire] - before[wire];
        int is_common = 0;
        for (int i = 0; i < mine; i++) is_common |= common[i] == wire;
        if (is_common ? grown < 8 << 20 : grown > 1 << 20)
            FAIL("%lu bytes on eth%d: %s", grown, wire, logged);
    }
    for (int rail = 0; rails > 1 && rail < rails; rail++)
        if (!rail_bytes(rail)) FAIL("no bytes on rail %d of %d: %s", rail, rails, logged);
    CHECK(!rail_bytes(rails) && was_logged(rails == 1 ? "messages; rail 0 Tcp" : "rail 1 Tcp"));
    OK(net_finalize(&net));
}

/* Whether one side or the other says so. */
static int either(int mine) {
    char said = (char)mine, heard;
    tell(&said, 1), hear(&heard, 1);
    return mine || heard;
}

/* Whether both do. */
static int both(int mine) {
    return !either(!mine);
}

/* While messages flow one wire is pulled: all arrive, the log names rail and peer; it is put back
 * and carries bytes again. */
static void wire_pulled(void) {
    interfaces_own();
    CHECK(!setenv("CROSSTIE_PEER_TIMEOUT_MS", "1000", 1));
    struct net net = started();
    struct pair pair = cross(&net, device_of_wires(&net));
    int common[WIRES], rails = numbers_of("HARNESS_COMMON", 0, common), rounds = 0;
    char pull[60], back[60];
    CHECK(rails > 1);
    snprintf(pull, sizeof pull, "ip link set eth%d down", common[1]);
    snprintf(back, sizeof back, "ip link set eth%d up", common[1]);
    exchange(&net, pair, LONG, 3, 24);
    CHECK(!was_logged("was lost"));
    meet(); /* a side that is slower may still look */
    if (rank == 0) interface_do(pull);
    do exchange(&net, pair, LONG, 3, 24), rounds++; while (!either(was_logged(" was lost: ")));
    exchange(&net, pair, LONG, 3, 24);
    if (rank == 0) interface_do(back);
    do exchange(&net, pair, LONG, 3, 24); while (!either(was_logged(" carries bytes again")));
    exchange(&net, pair, LONG, 3, 24);
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
    /* which rail it is differs, who sees it first, too; of whom is said */
    if (was_logged(" was lost: ")) {
        CHECK(was_logged("2 NET/crosstie : rail ") && was_logged(" to nccl-harness"));
        CHECK(was_logged(" over tcp, 10.80."));
    }
}

/* Hosts that number their interfaces the other way round: each pair of ends meets. */
static void numbered_otherwise(void) {
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    CHECK(count > 1);
    for (int wire = 0; wire < count; wire++) {
        struct pair pair = cross(&net, device_named(&net, rank ? count - 1 - wire : wire));
        exchange(&net, pair, SHORT, 3, 30);
        meet();
        part(&net, pair);
    }
    OK(net_finalize(&net));
}

/* One end's device and another's of the other host: no subnet is theirs alike, and the routes lead
 * there by another device. Only one that nobody may use is no way. */
static void unlike(void) {
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    CHECK(count == 2);
    for (int mine = 0; mine < 2; mine++) {
        struct pair pair = cross(&net, rank ? 1 - mine : mine);
        exchange(&net, pair, SHORT, 3, 30);
        meet();
        part(&net, pair);
        CHECK(was_logged("none of the device's interfaces leads to "));
    }
    OK(net_finalize(&net));
}

/* There is a way to the other host by the routes, and nobody at its end: connect ends by name after
 * the time that it may take; accept is told of that nobody comes. */
static void no_answer(void) {
    CHECK(!setenv("CROSSTIE_CONNECT_TIMEOUT_MS", "300", 1));
    struct net net = started();
    unsigned char mine[HANDLE], theirs[HANDLE];
    void *listener = NULL, *send = NULL, *recv = NULL;
    int rc = 0;
    OK(net_listen(&net, 0, mine, &listener));
    tell(mine, HANDLE), hear(theirs, HANDLE);
    while (!(rc = net_connect(&net, 0, theirs, &send, NULL)) && !send)
        OK(net_accept(&net, listener, &recv, NULL));
    CHECK(rc == REMOTE && !send && !recv);
    CHECK(was_logged(rank ? "10.1.0.1" : "10.2.0.1") && was_logged("no connection: "));
    /* the kernel says so, or a busy host's own clock */
    CHECK(was_logged("errno 110, timed out") || was_logged("did not answer in time"));
    while (!was_logged("has waited 300 ms for a connection")) {
        OK(net_accept(&net, listener, &recv, NULL));
        CHECK(!recv);
    }
    meet();
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}
