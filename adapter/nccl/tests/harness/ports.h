/* RDMA ports as devices, in the guest of tests/vm with its wires: this side has rxe0 and rxe1, or,
 * as rank 1, rxe2 and rxe3 at the other ends. Included by scenarios.h alone. */

static const char *const PORTS[2][2] = {{"rxe0", "rxe1"}, {"rxe2", "rxe3"}};
static const char *const LINKS[2][2] = {{"rail0", "rail1"}, {"far0", "far1"}};
static const size_t LONGER[] = {1 << 20, (1 << 20) + 5, 700000};

/* Packets that a port of ours has sent, as its driver counts them. */
static unsigned long packets(int port) {
    char path[200];
    unsigned long count = 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/sent_pkts",
        PORTS[rank][port]);
    FILE *file = fopen(path, "r");
    CHECK(file && fscanf(file, "%lu", &count) == 1);
    fclose(file);
    return count;
}

static struct seen device_seen(struct net *net, int device) {
    unsigned char raw[192];
    OK(net_properties(net, device, raw));
    return seen_of(version, raw);
}

/* Exchanges messages until both sides have said that so many rails of queue pairs are in use. */
static void exchange_until_joined(struct net *net, struct pair pair, int rails) {
    char said[40];
    for (int rail = 1; rail <= rails; rail++) {
        snprintf(said, sizeof said, "3 NET/crosstie : rail %d to ", rail);
        do exchange(net, pair, LONGER, 3, 6); while (!both(was_logged(said)));
    }
}

/* Ports that work are the devices, by NCCL's names, and no interface is. */
static void ports_shown(void) {
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    CHECK(count == 2);
    for (int port = 0; port < 2; port++) {
        struct seen seen = device_seen(&net, port);
        char line[300];
        CHECK(!strcmp(seen.name, PORTS[0][port]) && seen.port == 1 && seen.speed > 0);
        CHECK(!seen.pci && seen.guid && seen.pointers == HOST_MEMORY);
        CHECK(version < 9 || (seen.members == 1 && seen.member == port));
        snprintf(line, sizeof line, "3 NET/crosstie : device %d is %s: ", port, PORTS[0][port]);
        CHECK(was_logged(line));
        snprintf(line, sizeof line, "one RDMA rail to other hosts, %s:1, with TCP over %s; ",
            PORTS[0][port], LINKS[0][port]);
        CHECK(was_logged(line));
    }
    CHECK(device_seen(&net, 0).guid != device_seen(&net, 1).guid);
    CHECK(!was_logged("2 NET/crosstie"));
    OK(net_finalize(&net));
}

enum { PORT_CHOICES = 5 };

/* NCCL's variables choose; where they leave nothing, or RDMA is left out, interfaces are the
 * devices, and it is said. */
static void ports_chosen_by(int round) {
    static const struct {
        const char *name, *value, *device, *said;
    } ROUNDS[] = {
        {"NCCL_IB_HCA", "=rxe1:1", "rxe1", "device 0 is rxe1"},
        {"NCCL_IB_HCA", "^rxe0,rxe2,rxe3", "rxe1", "device 0 is rxe1"},
        {"NCCL_IB_DISABLE", "1", NULL, "no RDMA port can be used, interfaces are the devices ("},
        {"NCCL_IB_HCA", "=mlx5_0", NULL, "(there is none that NCCL_IB_HCA==mlx5_0 allows)"},
        {"CROSSTIE_RAILS", "tcp", NULL, "rxe1:1 work and are not used: CROSSTIE_RAILS leaves out"},
    };
    _Static_assert(sizeof ROUNDS / sizeof *ROUNDS == PORT_CHOICES, "as many as are asked for");
    CHECK(!setenv(ROUNDS[round].name, ROUNDS[round].value, 1));
    struct net net = started();
    const char *name = device_seen(&net, 0).name;
    const char *wanted = ROUNDS[round].device;
    if (wanted ? strcmp(name, wanted) != 0 : !strncmp(name, "rxe", 3))
        FAIL("%s=%s: device %s", ROUNDS[round].name, ROUNDS[round].value, name);
    if (!was_logged(ROUNDS[round].said)) FAIL("%s not in %s", ROUNDS[round].said, logged);
    OK(net_finalize(&net));
}

static void ports_chosen(void) {
    for (int round = 0; round < PORT_CHOICES; round++) in_own_process(ports_chosen_by, round);
}

/* A connection of a port goes over its queue pairs, and over no other port's. */
static void ports_apart(void) {
    struct net net = started();
    for (int port = 0; port < 2; port++) {
        struct pair pair = cross(&net, port);
        exchange_until_joined(&net, pair, 1);
        unsigned long before[2] = {packets(0), packets(1)};
        exchange(&net, pair, LONGER, 3, 24);
        meet();
        unsigned long after[2] = {packets(0), packets(1)};
        part(&net, pair);
        /* 24 messages of some 0.9 MB, cut into packets of 4 KiB */
        if (after[port] - before[port] < 4000 || after[!port] - before[!port] > 100)
            FAIL("port %d: %lu packets, the other %lu", port, after[port] - before[port],
                after[!port] - before[!port]);
        CHECK(rail_bytes_of("Verbs", 1) > 16 << 20 && !rail_bytes_of("Verbs", 2));
        OK(net_devices(&net, &(int){0}));
        forget_log();
    }
    OK(net_finalize(&net));
}

/* A device of both ports: both carry bytes. How many is for the rails to find: where CPUs are few
 * and busy, one may seem much slower than the other for a while. */
static void ports_fused(void) {
    struct net net = started();
    int device = fuse(&net, 2, FIRST);
    char name[40];
    CHECK(device == 2);
    snprintf(name, sizeof name, "%s+%s", PORTS[rank][0], PORTS[rank][1]);
    struct seen seen = device_seen(&net, device);
    CHECK(!strcmp(seen.name, name) && seen.members == 2);
    CHECK(seen.speed == 2 * device_seen(&net, 0).speed);
    struct pair pair = cross(&net, device);
    exchange_until_joined(&net, pair, 2);
    unsigned long before[2] = {packets(0), packets(1)};
    exchange(&net, pair, LONGER, 3, 24);
    meet();
    for (int port = 0; port < 2; port++)
        if (packets(port) - before[port] < 256)
            FAIL("port %d: %lu packets", port, packets(port) - before[port]);
    part(&net, pair);
    for (int rail = 1; rail <= 2; rail++)
        if (rail_bytes_of("Verbs", rail) < 1 << 20) FAIL("rail %d: %s", rail, logged);
    OK(net_finalize(&net));
}

/* One side's device has both ports, the other's only the second; then no port at all. */
static void ports_uneven(void) {
    if (rank == 1) CHECK(!setenv("NCCL_IB_HCA", "=rxe3", 1));
    struct net net = started();
    int device = rank == 0 ? fuse(&net, 2, FIRST) : 0;
    struct pair pair = cross(&net, device);
    exchange_until_joined(&net, pair, 1);
    unsigned long before[2] = {packets(0), packets(1)};
    exchange(&net, pair, LONGER, 3, 24);
    meet();
    if (packets(1) - before[1] < 4000 || packets(0) - before[0] > 100)
        FAIL("%lu and %lu packets", packets(0) - before[0], packets(1) - before[1]);
    part(&net, pair);
    OK(net_finalize(&net));
    CHECK(rail_bytes_of("Verbs", 1) && !rail_bytes_of("Verbs", 2));
}

/* One side's device is a port, the other's an interface: TCP joins them. */
static void ports_and_interfaces(void) {
    if (rank == 1) CHECK(!setenv("NCCL_IB_DISABLE", "1", 1));
    struct net net = started();
    int count = 0, device = -1;
    OK(net_devices(&net, &count));
    for (int at = 0; at < count; at++)
        if (!strcmp(device_seen(&net, at).name, rank ? "far0" : "rxe0")) device = at;
    CHECK(device >= 0);
    struct pair pair = cross(&net, device);
    exchange(&net, pair, LONGER, 3, 12);
    meet();
    part(&net, pair);
    CHECK(was_logged("messages; rail 0 Tcp") && !was_logged("Verbs"));
    OK(net_finalize(&net));
}

static void link_set(const char *state) {
    char command[200];
    snprintf(command, sizeof command, "ip link set rail0 %s", state);
    interface_do(command);
    /* the guest's own way to the other end, which went with the link */
    if (!strcmp(state, "up"))
        interface_do("ip route replace 10.77.0.2 dev rail0 src 10.77.0.1 table 100");
}

/* While messages flow over two ports, the link of one goes down and comes back, twice: all arrive,
 * the log names rail and peer, and the port carries bytes again. */
static void ports_link_pulled(void) {
    interfaces_own();
    struct net net = started();
    struct pair pair = cross(&net, fuse(&net, 2, FIRST));
    exchange_until_joined(&net, pair, 2);
    for (int round = 0; round < 2; round++) {
        forget_log();
        meet();
        if (rank == 0) link_set("down");
        do exchange(&net, pair, LONGER, 3, 6); while (!either(was_logged(" was lost: ")));
        unsigned long before = packets(0);
        exchange(&net, pair, LONGER, 3, 12);
        CHECK(packets(0) - before < 100);
        meet();
        if (rank == 0) link_set("up");
        do exchange(&net, pair, LONGER, 3, 6); while (!both(packets(0) - before > 1000));
        exchange(&net, pair, LONGER, 3, 12);
        CHECK(either(was_logged(" carries bytes again")));
    }
    meet();
    part(&net, pair);
    OK(net_finalize(&net));
}
