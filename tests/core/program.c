// A program of the core archive alone: no C library, no start-up code, no operating system but the
// call that ends it. Its status is 0 when the machine worked in this program's static storage.
#include <crosstie_provider.h>

// The four functions that a C compiler may call by itself; the archive calls no others.
void *memcpy(void *to, const void *from, unsigned long bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    while (bytes--)
        *out++ = *in++;
    return to;
}

void *memmove(void *to, const void *from, unsigned long bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (out < in)
        return memcpy(to, from, bytes);
    while (bytes--)
        out[bytes] = in[bytes];
    return to;
}

void *memset(void *to, int byte, unsigned long bytes)
{
    unsigned char *out = to;
    while (bytes--)
        *out++ = (unsigned char)byte;
    return to;
}

int memcmp(const void *left, const void *right, unsigned long bytes)
{
    const unsigned char *a = left, *b = right;
    for (; bytes--; a++, b++)
        if (*a != *b)
            return *a - *b;
    return 0;
}

int bcmp(const void *left, const void *right, unsigned long bytes)
{
    return memcmp(left, right, bytes);
}

static _Alignas(64) unsigned char storage[512 << 10];
static const unsigned char no_handle[128];

static int run(void)
{
    unsigned long bytes = xtie_core_loopback_bytes();
    if (xtie_core_version() == 0 || xtie_core_handle_check(no_handle) != 0)
        return 1;
    if (bytes > sizeof storage)
        return 2;
    if (xtie_core_loopback_check(0, bytes) != -1)
        return 3;
    if (xtie_core_loopback_check(storage, bytes - 1) != -1)
        return 4;
    if (xtie_core_loopback_check(storage + 1, bytes) != -1)
        return 5;
    if (xtie_core_loopback_check(storage, bytes) != 0)
        return 6;
    for (unsigned long at = bytes; at < sizeof storage; at++)
        if (storage[at] != 0)
            return 7;
    return 0;
}

static void leave(int status)
{
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(231L), "D"((long)status) : "memory");
#elif defined(__aarch64__)
    register long call __asm__("x8") = 94;
    register long code __asm__("x0") = status;
    __asm__ volatile("svc 0" : : "r"(call), "r"(code) : "memory");
#endif
    for (;;) {
    }
}

#if defined(__x86_64__)
__attribute__((force_align_arg_pointer))
#endif
void _start(void);
void _start(void) { leave(run()); }
