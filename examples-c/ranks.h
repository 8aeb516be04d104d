// What the examples of several ranks share: they run under a launcher of launch.h, or fork their
// ranks; and groups of the ranks.
#ifndef RANKS_H
#define RANKS_H

#include "example.h"
#include "launch.h"

enum { RANKS_ALONE_MAX = 16 };

static struct launch launch;  // under a launcher; else its size is 0

// A port that nobody has.
static inline int port_free(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        fail("no port");
    close(fd);
    return ntohs(address.sin_port);
}

// Without a launcher: one for ourselves, of so many ranks.
static inline int fork_ranks(int alone, void (*run)(void))
{
    char meeting[64], number[16];
    pid_t ranks[RANKS_ALONE_MAX];
    snprintf(meeting, sizeof meeting, "127.0.0.1:%d", port_free());
    setenv("CROSSTIE_RENDEZVOUS", meeting, 1);
    snprintf(number, sizeof number, "%d", alone);
    setenv("CROSSTIE_SIZE", number, 1);
    for (int rank = 0; rank < alone; rank++) {
        snprintf(number, sizeof number, "%d", rank);
        setenv("CROSSTIE_RANK", number, 1);
        pid_t parent = getpid();
        ranks[rank] = fork();
        if (ranks[rank] < 0)
            fail("no process");
        if (ranks[rank] == 0) {
            end_with(parent);
            launch_find(&launch);
            run();
            return 0;
        }
    }
    int result = 0;  // of the first that failed
    for (int left = alone; left > 0; left--) {
        int status = 0;
        pid_t ended = wait(&status);
        for (int rank = 0; rank < alone; rank++) {
            if (ranks[rank] == ended)
                ranks[rank] = 0;
            else if (status != 0 && ranks[rank] != 0)
                kill(ranks[rank], SIGTERM);  // the others would wait for it
        }
        if (result == 0 && status != 0)
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return result;
}

// Runs the ranks: this process under a launcher, else as many as that, which it forks.
static inline int run_ranks(int alone, void (*run)(void))
{
    if (!launch_find(&launch))
        return fork_ranks(alone, run);
    run();
    return 0;
}

// ---------------------------------------------------------------- groups

static xtie_group *group;
static void *group_storage, *endpoint_storage;

// Memory for an endpoint or a group: zero, as a static array is, which the library looks at first.
static inline void *storage_of(size_t bytes)
{
    size_t most = (bytes + XTIE_STORAGE_ALIGN - 1) / XTIE_STORAGE_ALIGN * XTIE_STORAGE_ALIGN;
    void *storage = aligned_alloc(XTIE_STORAGE_ALIGN, most);
    if (storage == NULL)
        fail("no storage");
    memset(storage, 0, most);
    return storage;
}

// Meets the other ranks, and opens an endpoint and a group of all.
static inline void group_open(uint32_t windows, uint32_t signals, uint32_t counters)
{
    size_t bytes = 0;
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = XTIE_GROUP_CONNECTIONS((uint32_t)launch.size);
    config.requests_max = 64;
    config.regions_max = windows + 8;
    CHECK(xtie_endpoint_size(&config, &bytes));
    endpoint_storage = storage_of(bytes);
    CHECK(xtie_endpoint_open(endpoint_storage, bytes, &config, &endpoint));
    launch_meet(&launch);

    xtie_group_config ranks;
    memset(&ranks, 0, sizeof ranks);
    ranks.struct_size = sizeof ranks;
    ranks.rank = (uint32_t)launch.rank;
    ranks.ranks = (uint32_t)launch.size;
    ranks.windows_max = windows;
    ranks.signals_max = signals;
    ranks.counters_max = counters;
    ranks.barriers_max = 1;
    ranks.timeout_ms = 4 * LAUNCH_SECONDS * 1000;  // far more than any step of an example takes
    ranks.context = &launch;
    ranks.gather = launch_group_gather;
    ranks.look = launch_group_look;
    CHECK(xtie_group_size(&ranks, &bytes));
    group_storage = storage_of(bytes);
    CHECK(xtie_group_open(endpoint, group_storage, bytes, &ranks, &group));
}

static inline void window_free(xtie_window *window)
{
    int result;
    while ((result = xtie_window_free(group, window)) == XTIE_AGAIN)
        CHECK(xtie_group_progress(group));
    check(result, "xtie_window_free");
}

// Closes both. All ranks have passed a barrier: closing would cut short one that is still at work.
static inline void group_close(void)
{
    CHECK(xtie_group_close(group));
    CHECK(xtie_endpoint_close(endpoint));
    free(group_storage);
    free(endpoint_storage);
    launch_end(&launch);
}

#endif  // RANKS_H
