// An AllGather on a window in memory of GPUs, on a stream and in a CUDA graph: each rank gives a
// chunk and gets those of all. Within a host copy engines move the bytes, and no kernel does. The
// program looks at each node of the graph, changes the data before each launch, verifies every
// byte, and prints the time of one AllGather.
//
//     allgather_graph                 forks two ranks; each takes a GPU of its own where it can
//     mpirun -n 4 allgather_graph     or srun, or torchrun --no-python
//
// GATHER_SHORT=1 leaves long ones out. GATHER_HOSTS=two has each rank take itself for a host of its
// own: then the bytes go by put and signal.
//
// Compiles by itself, with gpu.h, ranks.h, example.h and launch.h beside it; CUDA is not needed for
// that:
//     cc allgather_graph.c $(pkg-config --cflags --libs --static crosstie)
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

enum { COPY = 1, WORDS = 12 };  // kinds of nodes: CU_GRAPH_NODE_TYPE_MEMCPY, _BATCH_MEM_OP
enum { REPLAYS = 5, ROUNDS = 50, NODES_MAX = 256 };
#define BYTES_MAX ((size_t)128 << 20)  // of all ranks

static const size_t sizes[] = {65536, (size_t)512 << 10, (size_t)4 << 20, (size_t)8 << 20,
                               (size_t)32 << 20, BYTES_MAX};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static struct {
    int (*begin)(void *, int);
    int (*end)(void *, void **);
    int (*nodes)(void *, void **, size_t *);
    int (*kind)(void *, int *);
    int (*make)(void **, void *, unsigned long long);
    int (*launch)(void *, void *);
    int (*made_destroy)(void *);
    int (*destroy)(void *);
} graphs;

static uint64_t gpu_data;  // the window: a chunk of each rank
static xtie_memory *memory;
static xtie_window *window;
static unsigned char *scratch;

static void graphs_load(void)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"cuStreamBeginCapture_v2", &graphs.begin},
        {"cuStreamEndCapture", &graphs.end},
        {"cuGraphGetNodes", &graphs.nodes},
        {"cuGraphNodeGetType", &graphs.kind},
        {"cuGraphInstantiateWithFlags", &graphs.make},
        {"cuGraphLaunch", &graphs.launch},
        {"cuGraphExecDestroy", &graphs.made_destroy},
        {"cuGraphDestroy", &graphs.destroy},
    };
    for (size_t at = 0; at < sizeof wanted / sizeof wanted[0]; at++)
        if (!gpu_find(wanted[at].name, wanted[at].place))
            gpu_none(wanted[at].name);
}

static void *own_chunk(size_t bytes)
{
    return (void *)(uintptr_t)(gpu_data + (uint64_t)launch.rank * bytes);
}

// Waits for the stream. Between hosts the library needs this rank meanwhile.
static void settle(void)
{
    int code;
    while ((code = gpu.stream_query(gpu.stream)) == 600)  // CUDA_ERROR_NOT_READY
        CHECK(xtie_group_progress(group));
    gpu_check(code, "cuStreamQuery");
    CHECK(xtie_all_gather_check(group, NULL));  // a rank has died, say
}

static uint64_t number_of(int rank, int round)
{
    return (uint64_t)rank * 100000 + (uint64_t)round;
}

static void give(size_t bytes, int round)
{
    fill(scratch, bytes, number_of(launch.rank, round));
    gpu_upload((uint64_t)(uintptr_t)own_chunk(bytes), scratch, bytes);
}

static void verify_all(size_t bytes, int round)
{
    for (int rank = 0; rank < launch.size; rank++) {
        gpu_download(scratch, gpu_data + (uint64_t)rank * bytes, bytes);
        verify(scratch, bytes, number_of(rank, round));
    }
    CHECK(xtie_window_barrier(group, window, 0, 0));  // others may give the next ones now
}

// While the stream is captured, this prepares the AllGather and records it; else it runs at once.
static void gather(size_t bytes)
{
    CHECK(xtie_window_all_gather(group, window, own_chunk(bytes), (void *)(uintptr_t)gpu_data,
                                 bytes, gpu.stream));
}

static void *record(size_t bytes, void **graph)
{
    void *nodes[NODES_MAX], *made = NULL;
    size_t count = NODES_MAX;
    gpu_check(graphs.begin(gpu.stream, 0), "cuStreamBeginCapture");
    gather(bytes);
    gpu_check(graphs.end(gpu.stream, graph), "cuStreamEndCapture");
    gpu_check(graphs.nodes(*graph, nodes, &count), "cuGraphGetNodes");
    for (size_t at = 0; at < count && at < NODES_MAX; at++) {
        int kind = -1;
        gpu_check(graphs.kind(nodes[at], &kind), "cuGraphNodeGetType");
        if (kind != COPY && kind != WORDS)
            fail("the graph has a node that is neither a copy nor words");
    }
    gpu_check(graphs.make(&made, *graph, 0), "cuGraphInstantiate");
    return made;
}

// The time of one of many, in microseconds, and once more with a graph.
static double timed(size_t bytes, void *made)
{
    double start = 0;
    for (int round = -10; round < ROUNDS; round++) {
        if (round == 0) {
            settle();
            CHECK(xtie_window_barrier(group, window, 0, 0));
            start = now_us();
        }
        if (made != NULL)
            gpu_check(graphs.launch(made, gpu.stream), "cuGraphLaunch");
        else
            gather(bytes);
    }
    settle();
    double us = (now_us() - start) / ROUNDS;
    CHECK(xtie_window_barrier(group, window, 0, 0));
    return us;
}

static void size_run(size_t all)
{
    size_t bytes = all / (size_t)launch.size;
    void *graph = NULL, *made = NULL;
    made = record(bytes, &graph);
    for (int round = 0; round < REPLAYS; round++) {
        give(bytes, round);
        gpu_check(graphs.launch(made, gpu.stream), "cuGraphLaunch");
        settle();
        verify_all(bytes, round);
    }
    give(bytes, REPLAYS);
    gather(bytes);
    settle();
    verify_all(bytes, REPLAYS);
    double eager = timed(bytes, NULL), replayed = timed(bytes, made);
    double share = (double)all * (launch.size - 1) / launch.size / 1000;
    if (launch.rank == 0)
        printf("%10zu %10.1f %10.1f %10.1f %10.1f\n", all, eager, share / eager, replayed,
               share / replayed);
    fflush(stdout);
    gpu_check(graphs.made_destroy(made), "cuGraphExecDestroy");
    gpu_check(graphs.destroy(graph), "cuGraphDestroy");
}

static void run(void)
{
    const char *hosts = getenv("GATHER_HOSTS");
    if (hosts != NULL && strcmp(hosts, "two") == 0) {
        setenv("CROSSTIE_NODE_ID", launch.rank % 2 == 0 ? "1" : "2", 1);
        setenv("CROSSTIE_SOCKET_IFNAME", "lo", 1);
    }
    gpu_use(launch.local_rank);
    graphs_load();
    group_open(2, 0, 0);  // the library needs a window of its own
    gpu_check(gpu.alloc(&gpu_data, BYTES_MAX), "cuMemAlloc");
    scratch = gpu_host(BYTES_MAX / (size_t)launch.size);
    void *start = (void *)(uintptr_t)gpu_data;
    CHECK(xtie_memory_register(endpoint, start, BYTES_MAX, XTIE_MEMORY_CUDA, &memory));
    CHECK(xtie_window_register(group, start, BYTES_MAX, memory, 0, &window));
    CHECK(xtie_window_exchange(group, window, 0));
    fprintf(stderr, "rank %d uses GPU %d\n", launch.rank, gpu.device);
    if (launch.rank == 0)
        printf("AllGather of %d ranks, in place; bytes of all, bus bandwidth\n%10s %10s %10s %10s "
               "%10s\n", launch.size, "bytes", "eager us", "GB/s", "graph us", "GB/s");
    int sizes_run = getenv("GATHER_SHORT") != NULL ? 3 : SIZES;
    for (int size = 0; size < sizes_run; size++)
        size_run(sizes[size]);
    if (launch.rank == 0)
        printf("every byte verified\n");
    fflush(stdout);
    CHECK(xtie_window_barrier(group, window, 0, 0));
    window_free(window);
    CHECK(xtie_memory_deregister(endpoint, memory));
    group_close();
    gpu_check(gpu.free(gpu_data), "cuMemFree");
    gpu_check(gpu.host_free(scratch), "cuMemFreeHost");
}

int main(void)
{
    gpu_load();  // where there is no driver, it is said once; what it has does not outlive a fork
    return run_ranks(2, run);
}
