// Memory of a GPU that is mapped by hand: by cuMemCreate, one allocation or several side by side.
#ifndef MAPPED_H
#define MAPPED_H

#include "gpu.h"

struct location {
    int kind, id;
};
struct allocation {  // CUmemAllocationProp
    int kind, handle_types;
    struct location location;
    void *metadata;
    unsigned char flags[8];
};
struct access {  // CUmemAccessDesc
    struct location location;
    int flags;
};
enum { DEVICE = 1, PINNED = 1, POSIX = 1, READ_ONLY = 1, READ_WRITE = 3 };

static struct {
    int (*create)(uint64_t *, size_t, const struct allocation *, unsigned long long);
    int (*release)(uint64_t);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*reserve_free)(uint64_t, size_t);
    int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
    int (*unmap)(uint64_t, size_t);
    int (*access)(uint64_t, size_t, const struct access *, size_t);
} mapped;

static inline void mapped_load(void)
{
    const struct {
        const char *name;
        void *place;
    } all[] = {
        {"cuMemCreate", &mapped.create},
        {"cuMemRelease", &mapped.release},
        {"cuMemAddressReserve", &mapped.reserve},
        {"cuMemAddressFree", &mapped.reserve_free},
        {"cuMemMap", &mapped.map},
        {"cuMemUnmap", &mapped.unmap},
        {"cuMemSetAccess", &mapped.access},
    };
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        if (!gpu_find(all[at].name, all[at].place))
            gpu_none(all[at].name);
}

// What memory is wanted: bytes in so many allocations, each a multiple of 2 MiB.
struct mapping {
    size_t bytes;
    int segments, handle_types, flags;
};

// Makes it; the driver's code.
static inline int mapped_make(const struct mapping *mapping, uint64_t *start)
{
    struct allocation wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.kind = PINNED;
    wanted.handle_types = mapping->handle_types;
    wanted.location = (struct location){DEVICE, gpu.device};
    size_t each = mapping->bytes / (size_t)mapping->segments;
    int code = mapped.reserve(start, mapping->bytes, 0, 0, 0);
    for (int at = 0; code == 0 && at < mapping->segments; at++) {
        uint64_t handle = 0;
        gpu_check(mapped.create(&handle, each, &wanted, 0), "cuMemCreate");
        code = mapped.map(*start + (uint64_t)at * each, each, 0, handle, 0);
        gpu_check(mapped.release(handle), "cuMemRelease");
    }
    struct access access = {{DEVICE, gpu.device}, mapping->flags};
    return code != 0 ? code : mapped.access(*start, mapping->bytes, &access, 1);
}

static inline void mapped_end(const struct mapping *mapping, uint64_t start)
{
    size_t each = mapping->bytes / (size_t)mapping->segments;
    for (int at = 0; at < mapping->segments; at++)
        gpu_check(mapped.unmap(start + (uint64_t)at * each, each), "cuMemUnmap");
    gpu_check(mapped.reserve_free(start, mapping->bytes), "cuMemAddressFree");
}

#endif
