/* Memory of a GPU over the NICs of a device, by a connection of this process with itself. The
 * driver is whichever libcuda.so.1 the loader finds. Included by scenarios.h alone. */
#include <sys/statfs.h>

enum { CUDA_MEMORY = 2, DMABUF_MEMORY = 4, GPU_ROOM = 1 << 20, GPU_PAGE = 4096 };

/* The double's dma-bufs are memfds: this says of those that they are what they stand for. */
int fstatfs(int file, struct statfs *out) {
    char link[40], path[200] = "";
    int rc = (int)syscall(SYS_fstatfs, file, out);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (!rc && readlink(link, path, sizeof path - 1) > 0 && (fcntl(file, F_GETFL) & O_APPEND)
        && !strncmp(path, "/memfd:cuda-double:", 19))
        out->f_type = 0x444d4142; /* DMA_BUF_MAGIC of linux/magic.h */
    return rc;
}

static void *driver(const char *name) {
    void *library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library_) FAIL("%s", dlerror());
    void *function = dlsym(library_, name);
    if (!function) FAIL("the driver has no %s", name);
    return function;
}

#define CU(name, type) ((int(*) type)driver(name))

static void gpu_use(void) {
    void *context = NULL;
    OK(CU("cuInit", (unsigned))(0));
    OK(CU("cuDevicePrimaryCtxRetain", (void **, int))(&context, 0));
    OK(CU("cuCtxSetCurrent", (void *))(context));
    /* attributes of the double's GPUs: GPU, number, value, as often as wanted */
    const char *set = getenv("HARNESS_GPU");
    for (int gpu, number, value, length; set; set += length) {
        length = 0;
        if (sscanf(set, "%d:%d=%d %n", &gpu, &number, &value, &length) < 3) break;
        ((void (*)(int, uint32_t, int))driver("double_attribute"))(gpu, (uint32_t)number, value);
    }
}

static uint64_t gpu_alloc(void) {
    uint64_t start = 0;
    OK(CU("cuMemAlloc_v2", (uint64_t *, size_t))(&start, 2 * GPU_ROOM));
    return start;
}

static int gpu_file(uint64_t start) {
    int file = -1;
    OK(CU("cuMemGetHandleForAddressRange", (int *, uint64_t, size_t, int, uint64_t))(
        &file, start, 2 * GPU_ROOM, 1, 0));
    return file;
}

static int net_reg_dma_buf(struct net *net, void *comm, uint64_t data, size_t size, int kind,
    uint64_t offset, int file, void **handle) {
    CHECK(net->slot[REG_DMA_BUF]);
    return CALL(net, REG_DMA_BUF, (void *, uint64_t, size_t, int, uint64_t, int, void **))(
        comm, data, size, kind, offset, file, handle);
}

/* A connection of this process with itself, on the first device. */
static struct pair looped(struct net *net) {
    unsigned char handle[HANDLE];
    struct pair pair = {NULL, NULL};
    void *listener = NULL;
    OK(net_listen(net, 0, handle, &listener));
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(net, 0, handle, &pair.send, NULL));
        if (!pair.recv) OK(net_accept(net, listener, &pair.recv, NULL));
    }
    OK(net_close(net, CLOSE_LISTEN, listener));
    return pair;
}

/* What the rail of the connections is, as HARNESS_RAIL says. */
static const char *rail_wanted(void) {
    const char *kind = getenv("HARNESS_RAIL");
    CHECK(kind);
    return kind;
}

/* Sends a part of memory of the GPU into another, flushes it, and verifies it. Whether a flush has
 * failed, where HARNESS_FLUSH_FAILS asks for that: what came before the ports joined needs none.
 * Within the host there is none. */
static int gpu_pass(struct net *net, struct pair pair, uint64_t from, uint64_t into, void *out,
    void *in, uint64_t seed) {
    static unsigned char bytes[GPU_ROOM];
    fill(bytes, sizeof bytes, seed);
    OK(CU("cuMemcpyHtoD_v2", (uint64_t, const void *, size_t))(from, bytes, sizeof bytes));
    fill(bytes, sizeof bytes, seed + 1);
    OK(CU("cuMemcpyHtoD_v2", (uint64_t, const void *, size_t))(into, bytes, sizeof bytes));
    void *data = (void *)(uintptr_t)into;
    void *recv = recv_one(net, pair.recv, data, sizeof bytes, 3, in);
    void *send = send_one(net, pair.send, (void *)(uintptr_t)from, sizeof bytes, 3, out);
    int size = 0;
    for (int received = 0, sent = 0; !received || !sent;) {
        if (!received) OK(net_test(net, recv, &received, &size));
        if (!sent) OK(net_test(net, send, &sent, NULL));
    }
    CHECK(size == GPU_ROOM);
    void *flush = net;
    OK(net_iflush(net, pair.recv, 1, &data, &size, &in, &flush));
    const char *fails = getenv("HARNESS_FLUSH_FAILS");
    CHECK(!flush == !strcmp(rail_wanted(), "Shm"));
    for (int done = !flush; !done;) {
        int rc = net_test(net, flush, &done, NULL);
        if (fails && rc == SYSTEM && done) return 1;
        if (rc) FAIL("a flush: %d: %s", rc, logged);
    }
    OK(CU("cuMemcpyDtoH_v2", (void *, uint64_t, size_t))(bytes, into, sizeof bytes));
    verify(bytes, sizeof bytes, seed);
    return 0;
}

/* What HARNESS_POINTERS says of the first device is what NCCL is told. */
static struct net gpu_started(void) {
    gpu_use();
    struct net net = started();
    unsigned char raw[192];
    const char *wanted = getenv("HARNESS_POINTERS");
    OK(net_properties(&net, 0, raw));
    struct seen seen = seen_of(version, raw);
    if (!wanted || seen.pointers != atoi(wanted))
        FAIL("%d and not %s: %s", seen.pointers, wanted ? wanted : "?", logged);
    CHECK(seen.flush == 0);
    return net;
}

static void *gpu_registered(struct net *net, void *comm, uint64_t start) {
    void *memory = NULL;
    OK(net_reg(net, comm, (void *)(uintptr_t)start, GPU_ROOM, CUDA_MEMORY, &memory));
    return memory;
}

static void gpu_pointers(void) {
    struct net net = gpu_started();
    OK(net_finalize(&net));
}

/* Memory of GPUs goes by the device's NIC, with the dma-buf of NCCL's or without. */
static void gpu_nics(void) {
    struct net net = gpu_started();
    struct pair pair = looped(&net);
    uint64_t from = gpu_alloc(), into = gpu_alloc();
    void *out = gpu_registered(&net, pair.send, from), *in = gpu_registered(&net, pair.recv, into);
    for (int round = 0; round < 4 || !was_logged("3 NET/crosstie : rail 1 to "); round++)
        gpu_pass(&net, pair, from, into, out, in, (uint64_t)round);
    OK(net_dereg(&net, pair.recv, in));
    int file = gpu_file(into);
    /* NCCL's descriptor is of whole pages, and closed at once */
    OK(net_reg_dma_buf(&net, pair.recv, into + GPU_PAGE, GPU_ROOM, CUDA_MEMORY, GPU_PAGE, file,
        &in));
    CHECK(!close(file));
    for (int round = 0; round < 8; round++)
        gpu_pass(&net, pair, from, into + GPU_PAGE, out, in, (uint64_t)round + 100);
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    if (was_logged("no port registers") || was_logged("cannot be registered")) FAIL("%s", logged);
    part(&net, pair);
    OK(net_devices(&net, &(int){0}));
    if (rail_bytes_of(rail_wanted(), 1) < 4 * GPU_ROOM) FAIL("%s", logged);
    OK(net_finalize(&net));
}

/* Memory of GPUs goes by copy engines, although ports have it, too. */
static void gpu_within(void) {
    struct net net = gpu_started();
    struct pair pair = looped(&net);
    uint64_t from = gpu_alloc(), into = gpu_alloc();
    void *out = gpu_registered(&net, pair.send, from), *in = gpu_registered(&net, pair.recv, into);
    for (int round = 0; round < 4; round++)
        gpu_pass(&net, pair, from, into, out, in, (uint64_t)round);
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    if (!was_logged("rail 0 Shm") || was_logged("no port registers")) FAIL("%s", logged);
    OK(net_finalize(&net));
}

/* No port can read: its flush fails, and the connection goes on. */
static void gpu_flush_fails(void) {
    struct net net = gpu_started();
    struct pair pair = looped(&net);
    uint64_t from = gpu_alloc(), into = gpu_alloc();
    void *out = gpu_registered(&net, pair.send, from), *in = gpu_registered(&net, pair.recv, into);
    for (uint64_t seed = 1; !gpu_pass(&net, pair, from, into, out, in, seed); seed++) {}
    CHECK(was_logged("failed: Unfenced"));
    OK(net_dereg(&net, pair.recv, in));
    OK(net_dereg(&net, pair.send, out));
    part(&net, pair);
    OK(net_finalize(&net));
}

/* What is no dma-buf, or ends beyond it, is refused, and registers nothing. */
static void gpu_refused(void) {
    struct net net = gpu_started();
    struct pair pair = looped(&net);
    uint64_t start = gpu_alloc();
    void *none = NULL;
    int file = gpu_file(start), other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    static char host[GPU_PAGE];
    const struct {
        uint64_t data, offset;
        size_t size;
        int kind, file;
    } BAD[] = {
        {start, 0, GPU_ROOM, CUDA_MEMORY, other},
        {start, 0, GPU_ROOM, CUDA_MEMORY, -1},
        {start, 2 * GPU_ROOM, GPU_ROOM, CUDA_MEMORY, file},
        {start, UINT64_MAX, GPU_ROOM, CUDA_MEMORY, file},
        {start, 0, GPU_ROOM, HOST_MEMORY, file},
        {start, 0, GPU_ROOM, DMABUF_MEMORY, file},
        {(uint64_t)(uintptr_t)host, 0, sizeof host, CUDA_MEMORY, file},
        {(uint64_t)(uintptr_t)host, 0, sizeof host, HOST_MEMORY, file},
        {start + GPU_ROOM, 0, 2 * GPU_ROOM, CUDA_MEMORY, file},
    };
    for (size_t at = 0; at < sizeof BAD / sizeof *BAD; at++) {
        int rc = net_reg_dma_buf(&net, pair.recv, BAD[at].data, BAD[at].size, BAD[at].kind,
            BAD[at].offset, BAD[at].file, &none);
        if (rc != ARGUMENT || none) FAIL("case %zu: %d", at, rc);
    }
    CHECK(!close(file) && !close(other));
    part(&net, pair);
    OK(net_finalize(&net));
}
