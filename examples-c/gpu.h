// What the examples with memory of GPUs share: the few functions of the CUDA driver that they need,
// found when the program runs, and two processes with a connection. So they compile without CUDA,
// and say in one line where there is no GPU.
#ifndef GPU_H
#define GPU_H

#include "ranks.h"

#include <dlfcn.h>

static struct {
    void *library;
    int device;
    void *stream;  // for the program's copies: it waits for no kernel
    int (*init)(unsigned);
    int (*count)(int *);
    int (*find)(int *, int);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*host_alloc)(void **, size_t, unsigned);
    int (*host_free)(void *);
    int (*stream_create)(void **, unsigned, int);
    int (*stream_wait)(void *);
    int (*stream_query)(void *);
    int (*upload)(uint64_t, const void *, size_t, void *);
    int (*download)(void *, uint64_t, size_t, void *);
    int (*synchronize)(void);
} gpu;

// Ends the program with status 77 where there is no GPU: the status of a test that is left out.
static inline void gpu_none(const char *why)
{
    fprintf(stderr, "no GPU: %s\n", why);
    exit(77);
}

static inline void gpu_check(int code, const char *what)
{
    if (code != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, code);
        exit(1);
    }
}

// Whether the driver has a function, which is written to place.
static inline int gpu_find(const char *name, void *place)
{
    void *found = dlsym(gpu.library, name);
    memcpy(place, &found, sizeof found);
    return found != NULL;
}

static inline void gpu_load(void)
{
    gpu.library = dlopen("libcuda.so.1", RTLD_NOW);
    if (gpu.library == NULL)
        gpu_none("libcuda.so.1 cannot be loaded");
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cuInit", &gpu.init},
        {"cuDeviceGetCount", &gpu.count},
        {"cuDeviceGet", &gpu.find},
        {"cuDevicePrimaryCtxRetain", &gpu.retain},
        {"cuCtxSetCurrent", &gpu.current},
        {"cuMemAlloc_v2", &gpu.alloc},
        {"cuMemFree_v2", &gpu.free},
        {"cuMemHostAlloc", &gpu.host_alloc},
        {"cuMemFreeHost", &gpu.host_free},
        {"cuStreamCreateWithPriority", &gpu.stream_create},
        {"cuStreamSynchronize", &gpu.stream_wait},
        {"cuStreamQuery", &gpu.stream_query},
        {"cuMemcpyHtoDAsync_v2", &gpu.upload},
        {"cuMemcpyDtoHAsync_v2", &gpu.download},
        {"cuCtxSynchronize", &gpu.synchronize},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof wanted[0]; at++)
        if (!gpu_find(wanted[at].name, wanted[at].place))
            gpu_none(wanted[at].name);
}

// Loads the driver, and makes a GPU the calling thread's: the one of that number, or of those that
// there are.
static inline void gpu_use(int wanted)
{
    void *context = NULL;
    int count = 0;
    gpu_load();
    if (gpu.init(0) != 0 || gpu.count(&count) != 0 || count == 0)
        gpu_none("the driver sees none");
    gpu_check(gpu.find(&gpu.device, wanted % count), "cuDeviceGet");
    gpu_check(gpu.retain(&context, gpu.device), "cuDevicePrimaryCtxRetain");
    gpu_check(gpu.current(context), "cuCtxSetCurrent");
    gpu_check(gpu.stream_create(&gpu.stream, 1, 0), "cuStreamCreateWithPriority");
}

// Host memory that a GPU reaches. Copies out of it are asynchronous.
static inline void *gpu_host(size_t bytes)
{
    void *data = NULL;
    gpu_check(gpu.host_alloc(&data, bytes, 1 | 2), "cuMemHostAlloc");
    memset(data, 0, bytes);
    return data;
}

// Copies between memory of gpu_host and a GPU, and waits. The library's copies wait for no stream
// of the program: what is sent has to be there.
static inline void gpu_upload(uint64_t to, const void *from, size_t bytes)
{
    gpu_check(gpu.upload(to, from, bytes, gpu.stream), "cuMemcpyHtoDAsync");
    gpu_check(gpu.stream_wait(gpu.stream), "cuStreamSynchronize");
}

static inline void gpu_download(void *to, uint64_t from, size_t bytes)
{
    gpu_check(gpu.download(to, from, bytes, gpu.stream), "cuMemcpyDtoHAsync");
    gpu_check(gpu.stream_wait(gpu.stream), "cuStreamSynchronize");
}

// Ends the program unless something runs on the legacy stream.
static inline void gpu_runs(void)
{
    int code = gpu.stream_query(NULL);
    if (code == 0)
        fail("nothing runs on the legacy stream");
    if (code != 600)  // CUDA_ERROR_NOT_READY
        gpu_check(code, "cuStreamQuery");
}

// ---------------------------------------------------------------- two processes, one connection

static xtie_connection *connection;
static struct {
    void (*open)(int side);  // opens the endpoint; side 1 connects
    void (*run)(int side);
} gpu_sides;

static inline void gpu_listen_side(int fd)
{
    gpu_sides.open(0);
    xtie_handle both[2];
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &both[0], &listener));
    if (launch.size == 2)
        launch_gather(&launch, &both[0], sizeof both[0], both);
    else
        handle_send(&both[0], fd);
    connection = accept_one(listener);
    CHECK(xtie_listener_close(endpoint, listener));
    gpu_sides.run(0);
}

static inline void gpu_connect_side(int fd)
{
    gpu_sides.open(1);
    xtie_handle both[2];
    memset(both, 0, sizeof both);
    if (launch.size == 2)
        launch_gather(&launch, &both[1], sizeof both[1], both);
    else
        handle_receive(&both[0], fd);
    connection = connect_one(&both[0]);
    gpu_sides.run(1);
}

// Runs both sides: as the two ranks of a launcher, or this process and one that it forks, before
// the driver and any endpoint: neither outlives a fork.
static inline int gpu_two_sides(void (*open)(int), void (*run)(int))
{
    gpu_sides.open = open;
    gpu_sides.run = run;
    if (xtie_abi_version() != XTIE_ABI_VERSION)
        fail("the library does not fit the header");
    if (!launch_find(&launch))
        return two_processes(gpu_listen_side, gpu_connect_side);
    if (launch.size != 2)
        fail("two ranks are wanted");
    launch_meet(&launch);
    if (launch.rank == 0)
        gpu_listen_side(-1);
    else
        gpu_connect_side(-1);
    launch_end(&launch);
    return 0;
}

#endif
