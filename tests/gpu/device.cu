// Every function of crosstie_device.cuh, called from kernels of two ranks, which verify every value:
// one row for each case. Each rank takes a GPU of its own where there are two.
//
//     nvcc -std=c++17 -arch=native -I device -I c-api/include -I examples-c tests/gpu/device.cu LIBS
//     device [kill]      forks its two ranks; kill: rank 1 ends at last while rank 0 waits for it
//     device hosts       the two ranks act as two hosts
//
// Without a GPU: c++ -x c++ -std=c++20 -DXTIE_ON_CPU, over the test double of the driver
// (c-api/tests/device.rs).
#ifdef XTIE_ON_CPU
#include "cuda_on_cpu.h"
#endif
#include "device_ranks.h"

#ifdef XTIE_ON_CPU
#define TRIPS 20
#define MANY 24
#define MANY_THREADS 16u
#else
// kernels of ranks that share a GPU take turns, some milliseconds each
#define TRIPS (is_apart ? 2000 : 100)
#define MANY (is_apart ? 400 : 24)
#define MANY_THREADS (is_apart ? 64u : 16u)
#endif

static int is_killed;

static void puts_run(uint32_t peer, const char *where) {
    static const struct {
        uint64_t from, to, bytes;
    } places[] = {{0, TARGET + 64, 8},        {1, TARGET + 67, 1},      {3, TARGET + 65, 4093},
                  {64, TARGET + 128, 65536},  {0, TARGET + 64, 1 << 20}, {5, TARGET + 71, 777777}};
    static const char *const scopes[] = {"put_signal by a thread", "put_signal by a warp",
                                         "put_signal by a block"};
    for (int scope = 0; scope < 3; scope++) {
        for (size_t at = 0; at < sizeof places / sizeof places[0]; at++) {
            Step s = begin(peer, places[at].from, places[at].to, places[at].bytes, 0);
            LAUNCH(put_step, 1, WIDE, s, scope);
            serve();
            if (report->line != 0) break;
        }
        row(scopes[scope], where);
    }
}

static void steps_run(uint32_t peer, const char *where) {
    Step s = begin(peer, 0, TARGET + 64, 100000, 0);
    LAUNCH(ticket_step, 1, WIDE, s);
    row("put, wait_local, signal", where);
    static const char *const gets[] = {"get, signal, flush by a thread",
                                       "get, signal, flush by a warp",
                                       "get, signal, flush by a block"};
    for (int scope = 0; scope < 3; scope++) {
        s = begin(peer, 8, TARGET + 72, 50001, 0);
        LAUNCH(get_step, 1, WIDE, s, scope);
        row(gets[scope], where);
    }
    s = begin(peer, 0, TARGET + 64, 16 * 4096, 0);
    LAUNCH(fence_step, 1, WIDE, s);
    row("signal_with_fence behind puts", where);
    s = begin(peer, 0, TARGET + 64, 8, 0);
    LAUNCH(nothing_step, 1, 1, s);
    row("puts of no bytes", where);
    s = begin(peer, 0, TARGET + 64, 8, 10);
    LAUNCH(counters_step, 1, 32, s);
    row("put_counter, put_signal_counter, signal_counter", where);
    s = begin(peer, 0, TARGET + 64, 4096, MANY);
    LAUNCH(many_step, 2, MANY_THREADS, s);
    row("rings that wrap, many threads, two sets", where);
    s = begin(peer, 0, TARGET + 64, 4096, 40);
    LAUNCH(flush_step, 1, 8, s);
    row("flush, several at once", where);
    s = begin(peer, 0, TARGET + 64, 8, 0);
    LAUNCH(arguments_step, 1, 1, s);
    row("arguments out of range", where);
}

static void words_run(void) {
    Step s = begin((uint32_t)launch.rank, 0, TARGET + 64, 8, 0);
    LAUNCH(compare_step, 1, 1, s);
    row("six comparisons, each with its timeout", "own rank");
    s = begin((uint32_t)launch.rank, 0, TARGET + 64, 8, 0);
    LAUNCH(values_step, 1, 1, s);
    row("ends of 64 bits, waits after a timeout, resets", "own rank");
}

static void host_expect(uint64_t line, uint64_t is, uint64_t wanted) {
    if (is == wanted || report->line != 0) return;
    report->line = line;
    report->is = is;
    report->wanted = wanted;
}
#define HOST_EXPECT(is, wanted) host_expect(10000 + __LINE__, (uint64_t)(is), (uint64_t)(wanted))

static uint64_t signal_of(uint32_t id) {
    uint64_t value = 0;
    CHECK(xtie_window_read_signal(group, window, id, &value));
    return value;
}

// The host sees what kernels add, and the other way round; what either resets is zero for both.
static void host_run(uint32_t peer) {
    Step s = begin(peer, 0, TARGET + 64, 8, 10);
    LAUNCH(counters_step, 1, 32, s);
    CHECK(xtie_window_wait_signal(group, window, 0, XTIE_COMPARE_EQUAL, 20, 0));
    CHECK(xtie_window_wait_counter(group, window, 1, XTIE_COMPARE_EQUAL, 30, 0));
    serve();
    HOST_EXPECT(signal_of(1), 40);
    uint64_t counted = 0;
    CHECK(xtie_window_read_counter(group, window, 2, &counted));
    HOST_EXPECT(counted, 50);
    CHECK(xtie_window_reset_signal(group, window, 0));
    HOST_EXPECT(signal_of(0), 0);
    meet();
    LAUNCH(await_step, 1, 1, s, 9, crosstie::NO_TIMEOUT);
    xtie_add nine = {0, 0, 9};
    int result;
    while ((result = xtie_window_signal(group, window, peer, &nine, NULL)) == XTIE_AGAIN)
        CHECK(xtie_group_progress(group));
    check(result, "xtie_window_signal");
    serve();
    HOST_EXPECT(report->told, 2 + crosstie::OK);
    HOST_EXPECT(signal_of(0), 9);
    row("host and kernels see the same words", "peer");
}

static void abort_run(uint32_t peer) {
    Step s = begin(peer, 0, TARGET + 64, 8, 0);
    LAUNCH(await_step, 1, 1, s, 1, crosstie::NO_TIMEOUT);
    while (((volatile Report *)report)->told == 0) CHECK(xtie_group_progress(group));
    CHECK(xtie_group_abort(group));
    serve();
    HOST_EXPECT(report->told, 2 + crosstie::ABORTED);
    CHECK(xtie_group_abort_clear(group));
    LAUNCH(await_step, 1, 1, s, 1, SHORT_NS);
    serve();
    HOST_EXPECT(report->told, 2 + crosstie::TIMEOUT);
    row("abort of a wait, and a wait after it", "peer");
}

// A copy of the view that says that parts are longer than they are.
static void broken_run(uint32_t peer) {
    Step s = begin(peer, 0, TARGET + 64, 8, 0);
    static xtie_device_view *fake;
    static xtie_device_peer *peers;
    fake = (xtie_device_view *)gpu_host(4096);
    peers = (xtie_device_peer *)gpu_host(4096);
    gpu_download(fake, (uint64_t)(uintptr_t)view, sizeof *fake);
    gpu_download(peers, (uint64_t)(uintptr_t)fake->peers, 2 * sizeof *peers);
    peers[0].bytes = peers[1].bytes = ~(uint64_t)0;
    fake->peers = (const xtie_device_peer *)(uintptr_t)(spare + 4096);
    gpu_upload(spare, fake, sizeof *fake);
    gpu_upload(spare + 4096, peers, 2 * sizeof *peers);
    s.broken = (const xtie_device_view *)(uintptr_t)spare;
    LAUNCH(broken_step, 1, 1, s);
    row("a queue that has failed, and others beside it", "peer");
    gpu_check(gpu.host_free(fake), "cuMemFreeHost");
    gpu_check(gpu.host_free(peers), "cuMemFreeHost");
}

#ifdef XTIE_ON_CPU
// The double holds its streams: nothing moves.
static void room_run(uint32_t peer) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    auto hold = (uint32_t(*)(size_t))dlsym(library, "double_hold");
    auto release = (uint32_t(*)(size_t))dlsym(library, "double_release");
    Step s = begin(peer, 0, TARGET + 64, 8, 0);
    hold(0);
    LAUNCH(room_step, 1, 1, s, DEPTH);
    while (((volatile Report *)report)->told == 0 && kernel_runs())
        CHECK(xtie_group_progress(group));
    release(0);
    ((volatile Report *)report)->go = 1;
    row("a queue without room", "peer");
}
#endif

static void trips_run(uint32_t peer) {
    static const char *const names[] = {"put 8 B and signal, one way", "signal, one way",
                                        "signal and counter", "put 8 B, signal and counter"};
    for (int way = 0; way < 4; way++) {
        Step s = begin(peer, 0, TARGET + 64, 8, TRIPS);
        if (way < 2 || launch.rank == 0) LAUNCH(trips_step, 1, 1, s, way);
        serve();
        double us = (double)report->ns[way] / 1000 / (TRIPS) / (way < 2 ? 2 : 1);
        if (launch.rank == 0) printf("      %s: %.2f us\n", names[way], us);
        row("the values of that", "peer");
    }
}

static void kill_run(uint32_t peer) {
    Step s = begin(peer, 0, TARGET + 64, 8, 0);
    if (launch.rank == 1) _exit(0);
    LAUNCH(await_step, 1, 1, s, 1, crosstie::NO_TIMEOUT);
    while (kernel_runs()) xtie_group_progress(group);
    kernel_end();
    HOST_EXPECT(report->told, 2 + crosstie::FAILED);
    printf("%s a rank that ends while another waits for it\n", report->line ? "WRONG" : "ok   ");
    fflush(stdout);
    exit(report->line != 0);
}

static void cases_run(uint32_t peer) {
    if (is_killed) kill_run(peer);
    puts_run(peer, "peer");
    puts_run((uint32_t)launch.rank, "own rank");
    steps_run(peer, "peer");
    steps_run((uint32_t)launch.rank, "own rank");
    words_run();
    host_run(peer);
    abort_run(peer);
    trips_run(peer);
#ifdef XTIE_ON_CPU
    room_run(peer);
#endif
    broken_run(peer);
}

int main(int count, char **arguments) {
    is_killed = count > 1 && strcmp(arguments[1], "kill") == 0;
    are_hosts = count > 1 && strcmp(arguments[1], "hosts") == 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // no kernel waits for another one's loading
    gpu_load();
    return run_ranks(2, run);
}
