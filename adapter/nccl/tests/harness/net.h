/* Calls through a table of NCCL's, by version. Nothing here comes from the plugin's own sources:
 * a table is read as pointers at multiples of 8 bytes, properties at the offsets that were measured
 * with NCCL's headers. */
#ifndef CROSSTIE_NET_H
#define CROSSTIE_NET_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { HANDLE = 128, HOST_MEMORY = 1, GROUP = 8 };
enum slot {
    NAME, INIT, DEVICES, PROPERTIES, LISTEN, CONNECT, ACCEPT, REG, REG_DMA_BUF, DEREG, ISEND, IRECV,
    IFLUSH, TEST, CLOSE_SEND, CLOSE_RECV, CLOSE_LISTEN, DEVICE_MR, CONSUMED, V_DEVICE, FINALIZE,
    SET_ATTR
};

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

struct net {
    int version;
    void *library;
    void *const *slot;
    void *context;
};

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), \
    fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(what) ((what) ? (void)0 : FAIL("not so: %s", #what))
#define OK(call) do { int rc_ = (call); if (rc_) FAIL("%s: %d", #call, rc_); } while (0)

/* A function of the table, called as `type` says. */
#define CALL(net, at, type) ((int(*) type)(net)->slot[at])

/* What is given to init, isend and irecv where a table takes it. */
static void *net_profiler, *net_parent;

/* The traffic class of communicators and, in v10, of connections; -1: none. */
static int net_class = -1;

static inline struct net net_load(const char *library, int version) {
    /* as NCCL_NET_PLUGIN=STATIC_PLUGIN: the tables are looked up in the program */
    const char *path = *library ? library : NULL;
    struct net net = {version, dlopen(path, RTLD_NOW | RTLD_LOCAL), NULL, NULL};
    if (!net.library) FAIL("%s", dlerror());
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    net.slot = dlsym(net.library, symbol);
    if (!net.slot) FAIL("%s", dlerror());
    return net;
}

static inline int net_init(struct net *net, logger log) {
    int config = net_class;
    if (net->version < 10) return CALL(net, INIT, (logger))(log);
    if (net->version == 10) return CALL(net, INIT, (logger, void *))(log, net_profiler);
    return CALL(net, INIT, (void **, uint64_t, void *, logger, void *))(
        &net->context, 42, &config, log, net_profiler);
}

static inline int net_finalize(struct net *net) {
    return net->version < 11 ? SUCCESS : CALL(net, FINALIZE, (void *))(net->context);
}

static inline int net_devices(struct net *net, int *count) {
    return CALL(net, DEVICES, (int *))(count);
}

static inline int net_properties(struct net *net, int device, void *out) {
    return CALL(net, PROPERTIES, (int, void *))(device, out);
}

static inline int net_listen(struct net *net, int device, void *handle, void **comm) {
    if (net->version < 11) return CALL(net, LISTEN, (int, void *, void **))(device, handle, comm);
    return CALL(net, LISTEN, (void *, int, void *, void **))(net->context, device, handle, comm);
}

/* `unpacks`: what NCCL passes for device offload; versions 2.20 to 2.23 also pass NULL. */
static inline int net_connect(
    struct net *net, int device, void *handle, void **comm, void **unpacks) {
    int config = net_class;
    switch (net->version) {
    case 6: return CALL(net, CONNECT, (int, void *, void **))(device, handle, comm);
    case 7: case 8: case 9:
        return CALL(net, CONNECT, (int, void *, void **, void **))(device, handle, comm, unpacks);
    case 10:
        return CALL(net, CONNECT, (int, void *, void *, void **, void **))(
            device, &config, handle, comm, unpacks);
    default:
        return CALL(net, CONNECT, (void *, int, void *, void **, void **))(
            net->context, device, handle, comm, unpacks);
    }
}

static inline int net_accept(struct net *net, void *listener, void **comm, void **unpacks) {
    if (net->version == 6) return CALL(net, ACCEPT, (void *, void **))(listener, comm);
    return CALL(net, ACCEPT, (void *, void **, void **))(listener, comm, unpacks);
}

static inline int net_reg(
    struct net *net, void *comm, void *data, size_t size, int kind, void **handle) {
    if (net->version < 8)
        return CALL(net, REG, (void *, void *, int, int, void **))(
            comm, data, (int)size, kind, handle);
    return CALL(net, REG, (void *, void *, size_t, int, void **))(comm, data, size, kind, handle);
}

static inline int net_dereg(struct net *net, void *comm, void *handle) {
    return CALL(net, DEREG, (void *, void *))(comm, handle);
}

static inline int net_isend(
    struct net *net, void *comm, void *data, size_t size, int tag, void *handle, void **request) {
    if (net->version < 9)
        return CALL(net, ISEND, (void *, void *, int, int, void *, void **))(
            comm, data, (int)size, tag, handle, request);
    if (net->version == 9)
        return CALL(net, ISEND, (void *, void *, size_t, int, void *, void **))(
            comm, data, size, tag, handle, request);
    return CALL(net, ISEND, (void *, void *, size_t, int, void *, void *, void **))(
        comm, data, size, tag, handle, net_parent, request);
}

static inline int net_irecv(struct net *net, void *comm, int n, void **data, const size_t *sizes,
    int *tags, void **handles, void **request) {
    int ints[GROUP];
    size_t bytes[GROUP];
    for (int i = 0; i < n && i < GROUP; i++) ints[i] = (int)sizes[i], bytes[i] = sizes[i];
    if (net->version < 9)
        return CALL(net, IRECV, (void *, int, void **, int *, int *, void **, void **))(
            comm, n, data, ints, tags, handles, request);
    if (net->version == 9)
        return CALL(net, IRECV, (void *, int, void **, size_t *, int *, void **, void **))(
            comm, n, data, bytes, tags, handles, request);
    void *profiled[GROUP];
    for (int i = 0; i < GROUP; i++) profiled[i] = net_parent;
    return CALL(net, IRECV, (void *, int, void **, size_t *, int *, void **, void **, void **))(
        comm, n, data, bytes, tags, handles, profiled, request);
}

static inline int net_iflush(struct net *net, void *comm, int n, void **data, int *sizes,
    void **handles, void **request) {
    return CALL(net, IFLUSH, (void *, int, void **, int *, void **, void **))(
        comm, n, data, sizes, handles, request);
}

static inline int net_test(struct net *net, void *request, int *done, int *sizes) {
    return CALL(net, TEST, (void *, int *, int *))(request, done, sizes);
}

static inline int net_close(struct net *net, enum slot which, void *comm) {
    return CALL(net, which, (void *))(comm);
}

/* Properties as NCCL reads them. An offset of 0 (but of the name) means: not in that version. */
struct seen {
    const char *name, *pci;
    uint64_t guid, p2p_bytes, coll_bytes;
    int pointers, global, flush, speed, port, comms, recvs, type, type_version, members, member;
    int multi;
    float latency;
    int16_t rail, plane;
    size_t size;
};

static inline struct seen seen_of(int version, const unsigned char *at) {
    struct seen s;
    memset(&s, 0, sizeof s);
    int global = version >= 8 ? 4 : 0, flush = version >= 9 ? 4 : 0;
    size_t speed = 28 + (size_t)(global + flush);
    memcpy(&s.name, at, 8), memcpy(&s.pci, at + 8, 8), memcpy(&s.guid, at + 16, 8);
    memcpy(&s.pointers, at + 24, 4);
    if (global) memcpy(&s.global, at + 28, 4);
    if (flush) memcpy(&s.flush, at + 32, 4);
    memcpy(&s.speed, at + speed, 4), memcpy(&s.port, at + speed + 4, 4);
    memcpy(&s.latency, at + speed + 8, 4), memcpy(&s.comms, at + speed + 12, 4);
    memcpy(&s.recvs, at + speed + 16, 4);
    s.size = version == 6 ? 48 : version == 7 ? 56 : version == 8 ? 64 : version <= 10 ? 104 :
        version == 11 ? 112 : 128;
    if (version < 7) return s;
    memcpy(&s.type, at + speed + 20, 4), memcpy(&s.type_version, at + speed + 24, 4);
    if (version < 9) return s;
    size_t bytes = version < 12 ? 88 : 104;
    memcpy(&s.members, at + 64, 4), memcpy(&s.member, at + 68, 4);
    memcpy(&s.p2p_bytes, at + bytes, 8), memcpy(&s.coll_bytes, at + bytes + 8, 8);
    if (version >= 11) memcpy(&s.multi, at + bytes + 16, 4);
    if (version >= 12) memcpy(&s.rail, at + 124, 2), memcpy(&s.plane, at + 126, 2);
    return s;
}

#endif
