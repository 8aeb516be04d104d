// Nothing allocates in any thread between xtie_group_open and xtie_group_close: one rank puts, gets
// and signals in its own windows. Built with tests/interpose/malloc_count.c, whose allocator
// counts.
#include <crosstie.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mark_begin(void);
unsigned long mark_end(void);

enum { ROUNDS = 20, LONG = 1 << 20 };
static const size_t sizes[] = {0, 8, 2048, 2049, 100000, LONG};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

XTIE_ENDPOINT_STORAGE(storage, XTIE_GROUP_CONNECTIONS(1), 64, 8);
XTIE_ALIGNAS(XTIE_STORAGE_ALIGN)
static unsigned char group_storage[XTIE_GROUP_BYTES(1, 2, 2, 1, 1)];
static xtie_endpoint *endpoint;
static xtie_group *group;

static void check(int result, int expected, int line)
{
    if (result == expected)
        return;
    char text[320] = "";
    if (endpoint != NULL)
        xtie_endpoint_error(endpoint, text, sizeof text);
    fprintf(stderr, "no_alloc_group.c:%d: %s (%s)\n", line, xtie_result_str(result), text);
    _Exit(1);
}
#define EXPECT(result, call) check((call), (result), __LINE__)
#define CHECK(call) EXPECT(XTIE_OK, call)

static int gather(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    memcpy(all, mine, bytes);
    return 0;
}

static void open_both(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = XTIE_GROUP_CONNECTIONS(1);
    config.requests_max = 64;
    config.regions_max = 8;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    xtie_group_config ranks = {.struct_size = sizeof ranks, .ranks = 1, .gather = gather};
    ranks.windows_max = ranks.signals_max = 2;
    ranks.counters_max = ranks.barriers_max = 1;
    CHECK(xtie_group_open(endpoint, group_storage, sizeof group_storage, &ranks, &group));
}

// Starts an operation as soon as there is room.
#define START(call)                                                                                \
    do {                                                                                           \
        int result;                                                                                \
        while ((result = (call)) == XTIE_AGAIN)                                                    \
            CHECK(xtie_group_progress(group));                                                     \
        CHECK(result);                                                                             \
    } while (0)

static void round_run(xtie_window *window, unsigned char *data, xtie_memory *memory, int round)
{
    for (int at = 0; at < SIZES; at++) {
        uint64_t ticket = 0;
        xtie_transfer put = {data, sizes[at], memory, LONG, 0, 0};
        xtie_transfer get = {data + 2 * LONG, sizes[at], memory, LONG, 0, 0};
        xtie_add signal = {0, 0, 1}, counter = {0, 0, 1};
        memset(data, round + at + 1, sizes[at]);
        START(xtie_window_put_signal_counter(group, window, &put, &signal, &counter, &ticket));
        CHECK(xtie_window_wait_signal(group, window, 0, XTIE_COMPARE_EQUAL, 1, 0));
        CHECK(xtie_window_wait_counter(group, window, 0, XTIE_COMPARE_EQUAL, 1, 0));
        CHECK(xtie_group_wait_local(group, ticket, 0));
        START(xtie_window_get(group, window, &get, &ticket));
        CHECK(xtie_group_wait_local(group, ticket, 0));
        if (memcmp(data, data + 2 * LONG, sizes[at]) != 0)
            check(XTIE_ERR_PROTOCOL, XTIE_OK, __LINE__);
        START(xtie_window_signal_with_fence(group, window, 0, &signal, NULL));
        CHECK(xtie_group_flush(group, XTIE_RANK_ALL, 0));
        CHECK(xtie_window_reset_signal(group, window, 0));
        CHECK(xtie_window_reset_counter(group, window, 0));
    }
    CHECK(xtie_window_barrier(group, window, 0, 0));
    EXPECT(XTIE_ERR_TIMEOUT, xtie_window_wait_signal(group, window, 1, XTIE_COMPARE_EQUAL, 9, 1));
    EXPECT(XTIE_ERR_ID, xtie_window_barrier(group, window, 1, 0));
}

int main(void)
{
    open_both();
    mark_begin();
    void *data = NULL;
    xtie_memory *memory = NULL;
    xtie_window *window = NULL;
    CHECK(xtie_window_alloc(group, 3 * LONG, 0, &data, &memory, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    for (int round = 0; round < ROUNDS; round++) {
        void *other_data = NULL;
        xtie_window *other = NULL;
        CHECK(xtie_window_alloc(group, 8, XTIE_WINDOW_READ_ONLY, &other_data, NULL, &other));
        CHECK(xtie_window_exchange(group, other, 0));
        round_run(window, data, memory, round);
        START(xtie_window_free(group, other));
    }
    START(xtie_window_free(group, window));
    unsigned long calls = mark_end();
    CHECK(xtie_group_close(group));
    CHECK(xtie_endpoint_close(endpoint));
    if (calls != 0)
        fprintf(stderr, "%lu calls of the allocator\n", calls);
    return calls != 0;
}
