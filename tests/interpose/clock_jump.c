/* A wall clock that jumps: every look at it is years before or after the last one. To be preloaded.
 * Clocks that only go forward are left alone. glibc and musl: hands on to the system call. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_uint looks;

unsigned clock_looks(void)
{
    return atomic_load_explicit(&looks, memory_order_relaxed);
}

static time_t jump(void)
{
    static const time_t years[] = {0, 30, -20, 5, -40, 1};
    unsigned look = atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
    return years[look % (sizeof years / sizeof years[0])] * 31556952;
}

static int is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (rc == 0 && is_wall(clock))
        out->tv_sec += jump();
    return rc;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
