// The few functions of the CUDA driver that the examples need, found when the program runs: so they
// compile without CUDA, and say in one line where there is no GPU.
#ifndef GPU_H
#define GPU_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    int (*init)(unsigned);
    int (*count)(int *);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*upload)(uint64_t, const void *, size_t);
    int (*download)(void *, uint64_t, size_t);
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

static inline void *gpu_function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        gpu_none(name);
    return found;
}

// Loads the driver, and makes a GPU the calling thread's; its number among those that there are.
static inline int gpu_use(int wanted)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (library == NULL)
        gpu_none("libcuda.so.1 cannot be loaded");
#define GPU_FIND(field, name) *(void **)&gpu.field = gpu_function(library, name)
    GPU_FIND(init, "cuInit");
    GPU_FIND(count, "cuDeviceGetCount");
    GPU_FIND(device, "cuDeviceGet");
    GPU_FIND(retain, "cuDevicePrimaryCtxRetain");
    GPU_FIND(current, "cuCtxSetCurrent");
    GPU_FIND(alloc, "cuMemAlloc_v2");
    GPU_FIND(free, "cuMemFree_v2");
    GPU_FIND(upload, "cuMemcpyHtoD_v2");
    GPU_FIND(download, "cuMemcpyDtoH_v2");
    GPU_FIND(synchronize, "cuCtxSynchronize");
#undef GPU_FIND
    int count = 0, device = 0;
    if (gpu.init(0) != 0 || gpu.count(&count) != 0 || count == 0)
        gpu_none("the driver sees none");
    wanted %= count;
    gpu_check(gpu.device(&device, wanted), "cuDeviceGet");
    gpu_check(gpu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    gpu_check(gpu.current(context), "cuCtxSetCurrent");
    return wanted;
}

// Copies to a GPU. The driver's call may return before the bytes are there, and the library's
// copies wait for no stream of the program: what is sent has to be there.
static inline void gpu_upload(uint64_t to, const void *from, size_t bytes)
{
    gpu_check(gpu.upload(to, from, bytes), "cuMemcpyHtoD");
    gpu_check(gpu.synchronize(), "cuCtxSynchronize");
}

#endif
