/* Other libraries in the process. Included by scenarios.h alone. */

/* All of HARNESS_NEIGHBOURS ("a.so,b.so"), visible to whoever is loaded later. */
static int neighbours_load(void *libraries[8], int (*functions[8])(void)) {
    char *names = strdup(getenv("HARNESS_NEIGHBOURS")), *rest = names, *name;
    int count = 0;
    while ((name = strsep(&rest, ","))) {
        CHECK(count < 8);
        libraries[count] = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
        if (!libraries[count]) FAIL("%s", dlerror());
        *(void **)&functions[count] = dlsym(libraries[count], "neighbour");
        CHECK(functions[count]);
        count++;
    }
    free(names);
    return count;
}

/* Another plugin and other Rust libraries were loaded before, for everybody to see; a second copy
 * of this one is loaded, too. Each works as if alone, also while the others do, and after they
 * are gone; the copies talk to each other. */
static void neighbours(void) {
    void *libraries[8];
    int (*functions[8])(void), count = neighbours_load(libraries, functions);
    CHECK(count >= 3);
    for (int i = 0; i < count; i++) CHECK(functions[i]() == 0);
    struct net net = started(), twin = net_load(getenv("HARNESS_TWIN"), version);
    CHECK(!strcmp(net.slot[NAME], "crosstie") && !strcmp(twin.slot[NAME], "crosstie"));
    CHECK(net.slot != twin.slot);
    OK(net_init(&twin, log_line));
    for (int round = 0; round < 10; round++) {
        struct pair pair = {NULL, NULL};
        unsigned char handle[HANDLE], data[200];
        void *listener = NULL, *in = NULL, *out = NULL;
        OK(net_listen(&net, 0, handle, &listener));
        while (!pair.send || !pair.recv) {
            if (!pair.send) OK(net_connect(&twin, 0, handle, &pair.send, NULL));
            if (!pair.recv) OK(net_accept(&net, listener, &pair.recv, NULL));
        }
        OK(net_close(&net, CLOSE_LISTEN, listener));
        for (int i = 0; i < count; i++) CHECK(functions[i]() == 0);
        OK(net_reg(&net, pair.recv, data, 100, HOST_MEMORY, &in));
        OK(net_reg(&twin, pair.send, data + 100, 100, HOST_MEMORY, &out));
        fill(data + 100, 100, (uint64_t)round);
        void *recv = recv_one(&net, pair.recv, data, 100, 1, in);
        void *send = send_one(&twin, pair.send, data + 100, 100, 1, out);
        for (int received = 0, sent = 0; !received || !sent;) {
            int size = 0;
            if (!received) OK(net_test(&net, recv, &received, &size));
            if (!sent) OK(net_test(&twin, send, &sent, NULL));
        }
        verify(data, 100, (uint64_t)round);
        OK(net_dereg(&net, pair.recv, in));
        OK(net_dereg(&twin, pair.send, out));
        OK(net_close(&net, CLOSE_RECV, pair.recv));
        OK(net_close(&twin, CLOSE_SEND, pair.send));
    }
    OK(net_finalize(&twin));
    CHECK(!dlclose(twin.library));
    for (int i = 0; i < count; i++) CHECK(!functions[i]() && !dlclose(libraries[i]));
    loopback();
    OK(net_finalize(&net));
}
