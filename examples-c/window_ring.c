// An all-gather around a ring, with one-sided operations: each rank puts what it has got into the
// next rank's window, and signals; counters say when what was put may be written again, and a
// barrier parts the rounds. Every byte is verified.
//
//     mpirun -n 4 window_ring    or srun, or torchrun --no-python: any launcher of launch.h
//     window_ring                forks four ranks
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#define BYTES_MAX ((size_t)1 << 20)
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the rounds, and fewer ranks, as under valgrind
#endif
enum { ALONE = PART > 1 ? 2 : 4, SIGNAL = 0, COUNTER = 0, BARRIER = 0 };

static const struct {
    size_t bytes;
    int rounds;
} steps[] = {{8, 1000}, {4096, 400}, {65536, 100}, {BYTES_MAX, 20}};
enum { STEPS = sizeof steps / sizeof steps[0] };

static unsigned char *data;  // a part of each rank's
static xtie_memory *memory;
static xtie_window *window;

// Puts a part into the same place of the next rank's window.
static void part_pass(int part, size_t bytes)
{
    size_t offset = (size_t)part * bytes;
    uint32_t next = (uint32_t)((launch.rank + 1) % launch.size);
    xtie_transfer transfer = {data + offset, bytes, memory, offset, next, 0};
    xtie_add signal = {SIGNAL, 0, 1}, counter = {COUNTER, 0, 1};
    int result;
    while ((result = xtie_window_put_signal_counter(group, window, &transfer, &signal, &counter,
                                                    NULL)) == XTIE_AGAIN)
        CHECK(xtie_group_progress(group));
    check(result, "xtie_window_put_signal_counter");
}

// The parts of a round differ from those of all others.
static uint64_t number_of(int rank, int step, int round)
{
    return ((uint64_t)rank << 40) + ((uint64_t)step << 32) + (uint64_t)round;
}

// One all-gather: in each turn a rank passes on the part that it got in the turn before.
static void gather_once(int step, int round)
{
    size_t bytes = steps[step].bytes;
    uint64_t turns = (uint64_t)launch.size - 1;
    fill(data + (size_t)launch.rank * bytes, bytes, number_of(launch.rank, step, round));
    for (int turn = 0; turn < launch.size - 1; turn++) {
        if (turn > 0)
            CHECK(xtie_window_wait_signal(group, window, SIGNAL, XTIE_COMPARE_GREATER_EQUAL,
                                          (uint64_t)turn, 0));
        part_pass((launch.rank - turn + launch.size) % launch.size, bytes);
    }
    CHECK(xtie_window_wait_signal(group, window, SIGNAL, XTIE_COMPARE_EQUAL, turns, 0));
    CHECK(xtie_window_wait_counter(group, window, COUNTER, XTIE_COMPARE_EQUAL, turns, 0));
    for (int rank = 0; rank < launch.size; rank++)
        verify(data + (size_t)rank * bytes, bytes, number_of(rank, step, round));
    // nobody adds before all have passed the barrier
    CHECK(xtie_window_reset_signal(group, window, SIGNAL));
    CHECK(xtie_window_reset_counter(group, window, COUNTER));
    CHECK(xtie_window_barrier(group, window, BARRIER, 0));
}

static void run(void)
{
    void *start = NULL;
    group_open(1, 1, 1);
    CHECK(xtie_window_alloc(group, (size_t)launch.size * BYTES_MAX, 0, &start, &memory, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    data = start;
    if (launch.rank == 0)
        printf("all-gather of %d\n%10s %16s\n", launch.size, "bytes each", "us, verified");
    for (int step = 0; step < STEPS; step++) {
        int rounds = (steps[step].rounds + PART - 1) / PART;
        CHECK(xtie_window_barrier(group, window, BARRIER, 0));
        double began = now_us();
        for (int round = 0; round < rounds; round++)
            gather_once(step, round);
        if (launch.rank == 0)
            printf("%10zu %16.2f\n", steps[step].bytes, (now_us() - began) / rounds);
        fflush(stdout);
    }
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
        fprintf(stderr, "usage: %s, alone or under mpirun, srun or torchrun\n", argv[0]);
        return 2;
    }
    return run_ranks(ALONE, run);
}
