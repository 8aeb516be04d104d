/* Counts what any thread takes from the C allocator between two marks. To be preloaded; a program
 * finds the marks by dlsym, or links against this library. glibc only: it hands on to the names
 * under which glibc exports its own allocator. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void *__libc_valloc(size_t);
extern void *__libc_pvalloc(size_t);

static atomic_ulong taken;
static atomic_int marked;

static void note(void)
{
    if (atomic_load_explicit(&marked, memory_order_relaxed))
        atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    /* to find who it was: MALLOC_COUNT_ABORT=1 and a debugger */
    if (atomic_load_explicit(&marked, memory_order_relaxed) == 2)
        abort();
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    note();
    return __libc_realloc(old, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    note();
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    note();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    note();
    void *got = __libc_memalign(align, bytes);
    if (!got)
        return ENOMEM;
    *out = got;
    return 0;
}

void *valloc(size_t bytes)
{
    note();
    return __libc_valloc(bytes);
}

void *pvalloc(size_t bytes)
{
    note();
    return __libc_pvalloc(bytes);
}

/* From now on allocations count. */
void mark_begin(void)
{
    atomic_store(&taken, 0);
    atomic_store(&marked, getenv("MALLOC_COUNT_ABORT") ? 2 : 1);
}

/* How many there were since the mark; none counts from now on. */
unsigned long mark_end(void)
{
    atomic_store(&marked, 0);
    return atomic_load(&taken);
}
