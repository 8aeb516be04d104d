// Two ranks put bytes into each other's window, each put with a signal: the time of one put, from
// its call until the other rank has seen its signal; every byte is verified.
//
//     put_signal                 forks its two ranks
//     mpirun -n 2 put_signal     or srun, or torchrun --no-python
//
// Compiles by itself, with ranks.h, example.h and launch.h beside it:
//     cc put_signal.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

enum { ROUNDS_MAX = 2000, SIGNAL = 0, BARRIER = 0 };
#define BYTES_MAX ((size_t)1 << 20)
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the rounds, as under valgrind
#endif

static const size_t sizes[] = {8, 256, 4096, 65536, BYTES_MAX};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

// A window of three parts: what this rank puts, and two where the other's bytes come in turns, so
// that one is verified while the next is on its way.
static unsigned char *data;
static xtie_memory *memory;
static xtie_window *window;
static uint64_t seen;  // how far this rank's signal has grown

static size_t place_of(int round)
{
    return BYTES_MAX * (size_t)(1 + round % 2);
}

static uint64_t put_signal(size_t bytes, int round)
{
    uint64_t ticket = 0;
    uint32_t other = (uint32_t)(1 - launch.rank);
    xtie_transfer transfer = {data, bytes, memory, place_of(round), other, 0};
    xtie_add signal = {SIGNAL, 0, 1};
    int result;
    while ((result = xtie_window_put_signal(group, window, &transfer, &signal, &ticket)) ==
           XTIE_AGAIN)
        CHECK(xtie_group_progress(group));
    check(result, "xtie_window_put_signal");
    return ticket;
}

// Waits for the other rank's next put.
static void wait_next(void)
{
    seen++;
    CHECK(xtie_window_wait_signal(group, window, SIGNAL, XTIE_COMPARE_GREATER_EQUAL, seen, 0));
}

// Each put is answered by one; half of that time is one put's.
static double round_trip(size_t bytes, int round)
{
    fill(data, bytes, (uint64_t)round);
    double start = now_us();
    uint64_t ticket = put_signal(bytes, round);
    wait_next();
    double us = (now_us() - start) / 2;
    verify(data + place_of(round), bytes, (uint64_t)round + 1000000);
    CHECK(xtie_group_wait_local(group, ticket, 0));
    return us;
}

static void answer(size_t bytes, int round)
{
    wait_next();
    uint64_t ticket = put_signal(bytes, round);
    verify(data + place_of(round), bytes, (uint64_t)round);
    CHECK(xtie_group_wait_local(group, ticket, 0));
    fill(data, bytes, (uint64_t)round + 1000001);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void size_run(size_t bytes)
{
    static double times[ROUNDS_MAX];
    int rounds = (bytes <= 4096 ? ROUNDS_MAX : 200) / PART;
    fill(data, bytes, 1000000);
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
    for (int round = 0; round < rounds; round++) {
        if (launch.rank == 0)
            times[round] = round_trip(bytes, round);
        else
            answer(bytes, round);
    }
    if (launch.rank != 0)
        return;
    qsort(times, (size_t)rounds, sizeof times[0], compare);
    printf("%10zu %12.2f\n", bytes, times[rounds / 2]);
    fflush(stdout);
}

static void run(void)
{
    if (launch.size != 2)
        fail("two ranks are wanted");
    void *start = NULL;
    group_open(1, 1, 0);
    CHECK(xtie_window_alloc(group, 3 * BYTES_MAX, 0, &start, &memory, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    data = start;
    if (launch.rank == 0)
        printf("put and signal\n%10s %12s\n", "bytes", "p50 us");
    for (int size = 0; size < SIZES; size++)
        size_run(sizes[size]);
    if (launch.rank == 0)
        printf("every byte verified\n");
    fflush(stdout);
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
    window_free(window);
    group_close();
}

int main(int argc, char **argv)
{
    if (argc != 1) {
        fprintf(stderr, "usage: %s, alone or as two ranks of mpirun, srun or torchrun\n", argv[0]);
        return 2;
    }
    return run_ranks(2, run);
}
