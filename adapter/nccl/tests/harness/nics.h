/* Domains of libfabric as devices: lo, twice, of a provider of software. Included by scenarios.h
 * alone, behind ports.h. */

/* Each domain that was named is a device, and no interface is. */
static void nics_shown(void) {
    static const char *const NAMES[] = {"lo", "lo#2"};
    const char *provider = getenv("CROSSTIE_OFI_PROVIDER");
    CHECK(provider);
    struct net net = started();
    int count = 0;
    OK(net_devices(&net, &count));
    CHECK(count == 2);
    for (int nic = 0; nic < 2; nic++) {
        struct seen seen = device_seen(&net, nic);
        char line[300];
        CHECK(!strcmp(seen.name, NAMES[nic]) && seen.port == 1 && seen.speed > 0);
        CHECK(seen.guid && seen.pointers == HOST_MEMORY);
        CHECK(version < 9 || (seen.members == 1 && seen.member == nic));
        snprintf(line, sizeof line, "3 NET/crosstie : device %d is %s: ", nic, NAMES[nic]);
        CHECK(was_logged(line));
        snprintf(line, sizeof line,
                 "one libfabric rail to processes of this host alone, %s lo, with TCP over lo; ",
                 provider);
        CHECK(was_logged(line));
    }
    CHECK(device_seen(&net, 0).guid != device_seen(&net, 1).guid);
    CHECK(!was_logged("2 NET/crosstie"));
    OK(net_finalize(&net));
}

/* A connection of a domain goes over its endpoint. */
static void nics_apart(void) {
    struct net net = started();
    for (int nic = 0; nic < 2; nic++) {
        struct pair pair = cross(&net, nic);
        exchange_until_joined(&net, pair, 1);
        exchange(&net, pair, LONGER, 3, 24);
        meet();
        part(&net, pair);
        if (rail_bytes_of("Libfabric", 1) < 16 << 20) FAIL("nic %d: %s", nic, logged);
        CHECK(!rail_bytes_of("Libfabric", 2));
        forget_log();
    }
    OK(net_finalize(&net));
}

/* A device of both: both carry bytes. */
static void nics_fused(void) {
    struct net net = started();
    int device = fuse(&net, 2, FIRST);
    CHECK(device == 2);
    struct seen seen = device_seen(&net, device);
    CHECK(!strcmp(seen.name, "lo+lo#2") && seen.members == 2);
    CHECK(seen.speed == 2 * device_seen(&net, 0).speed);
    struct pair pair = cross(&net, device);
    exchange_until_joined(&net, pair, 2);
    exchange(&net, pair, LONGER, 3, 96);
    meet();
    part(&net, pair);
    for (int rail = 1; rail <= 2; rail++)
        if (rail_bytes_of("Libfabric", rail) < 1 << 20) FAIL("rail %d: %s", rail, logged);
    OK(net_finalize(&net));
}
