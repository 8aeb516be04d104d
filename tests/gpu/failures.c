// Failures with memory of GPUs, and what goes on beside them: a peer that holds imports is killed,
// again and again; a GPU has no memory left; memory that is in use is unmapped; a kernel of the
// program writes to an illegal address. Prints a row for each.
// Status 1: something is not as doc/gpu.md says; 77: there is no GPU.
//
//     cc -I../../examples-c failures.c $(pkg-config --cflags --libs --static crosstie)
#define _DEFAULT_SOURCE
#include "mapped.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { REQUESTS = 64, KILLS = 20, PAIRS = 2 };
#define BYTES ((size_t)1 << 20)
#define ROOM (2 * BYTES)              // the first half is sent, the second received into
#define VICTIM_BYTES ((size_t)256 << 20)
#define SLACK ((uint64_t)64 << 20)    // memory of a GPU that may come and go with others

XTIE_ENDPOINT_STORAGE(storage, 4, REQUESTS, 8);

// What the processes tell each other.
struct board {
    _Atomic int is_open[PAIRS + 1];  // the handle of that listener is there
    xtie_handle handles[PAIRS + 1];
    _Atomic int stop;             // pairs end
    _Atomic int is_free;          // the GPU that was full has memory again
    _Atomic uint64_t moved;       // bytes that pairs have verified
    _Atomic uint64_t exchanged;   // messages that the survivor has had from its peer of this round
    _Atomic int killed, noticed;  // rounds
    _Atomic uint64_t free_before[2], free_after[2];
};
static struct board *board;

// Memory of one GPU, in the primary context there, or of the host (device -1).
struct place {
    int device;
    void *context, *stream;
    uint64_t data;
    xtie_memory *memory;
};
static unsigned char *scratch;
static int (*memory_info)(size_t *, size_t *);

// ---------------------------------------------------------------- places

// Makes the GPU of a place the thread's.
static void on(const struct place *place)
{
    gpu_check(gpu.current(place->context), "cuCtxSetCurrent");
    gpu.stream = place->stream;
}

static struct place place_of(int device)
{
    struct place place = {device, NULL, NULL, 0, NULL};
    gpu_check(gpu.retain(&place.context, device), "cuDevicePrimaryCtxRetain");
    gpu_check(gpu.current(place.context), "cuCtxSetCurrent");
    gpu_check(gpu.stream_create(&place.stream, 1, 0), "cuStreamCreateWithPriority");
    gpu.stream = place.stream;
    return place;
}

static void known(struct place *place, size_t bytes)
{
    CHECK(xtie_memory_register(endpoint, (void *)(uintptr_t)place->data, bytes, XTIE_MEMORY_CUDA,
                               &place->memory));
}

static void place_register(struct place *place)
{
    gpu_check(gpu.alloc(&place->data, ROOM), "cuMemAlloc");
    known(place, ROOM);
}

static struct place host_place(void)
{
    struct place place = {-1, NULL, NULL, (uint64_t)(uintptr_t)malloc(ROOM), NULL};
    CHECK(xtie_memory_register(endpoint, (void *)(uintptr_t)place.data, ROOM, XTIE_MEMORY_HOST,
                               &place.memory));
    return place;
}

static int gpus(void)
{
    int count = 0;
    gpu_check(gpu.count(&count), "cuDeviceGetCount");
    return count;
}

static void ignore(void *userdata, uint32_t level, const char *text)
{
    (void)userdata, (void)level, (void)text;
}

static void begin(int device)
{
    gpu_use(device);
    scratch = gpu_host(BYTES);
    CHECK(xtie_log_set(NULL, ignore));  // it names what these programs break
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 4;
    config.requests_max = REQUESTS;
    config.regions_max = 8;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
}

// ---------------------------------------------------------------- messages that may fail

// Waits for a request: its result.
static int ended(xtie_request *request, size_t *bytes)
{
    int done = 0, result = XTIE_OK;
    while (result == XTIE_OK && !done) {
        pause_now_and_then();
        result = xtie_request_test(endpoint, request, &done, bytes);
    }
    return result;
}

static void message_fill(const struct place *place, size_t bytes, uint64_t message)
{
    if (place->device < 0) {
        fill((unsigned char *)(uintptr_t)place->data, bytes, message);
        return;
    }
    fill(scratch, bytes, message);
    gpu_upload(place->data, scratch, bytes);
}

static int put_filled(xtie_connection *to, const struct place *place, size_t bytes)
{
    xtie_request *request = NULL;
    while (request == NULL) {
        int result = xtie_connection_isend(endpoint, to, (void *)(uintptr_t)place->data, bytes, 0,
                                           place->memory, &request);
        if (result != XTIE_OK)
            return result;
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    }
    return ended(request, NULL);
}

static int put(xtie_connection *to, const struct place *place, size_t bytes, uint64_t message)
{
    message_fill(place, bytes, message);
    return put_filled(to, place, bytes);
}

static int take(xtie_connection *from, const struct place *place, size_t *bytes)
{
    xtie_buffer buffer = {(void *)(uintptr_t)(place->data + BYTES), BYTES, 0, 0, place->memory};
    xtie_request *request = NULL;
    while (request == NULL) {
        int result = xtie_connection_irecv(endpoint, from, &buffer, 1, &request);
        if (result != XTIE_OK)
            return result;
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    }
    return ended(request, bytes);
}

static void place_verify(const struct place *place, size_t bytes, uint64_t message)
{
    if (place->device < 0) {
        verify((unsigned char *)(uintptr_t)(place->data + BYTES), bytes, message);
        return;
    }
    gpu_download(scratch, place->data + BYTES, bytes);
    verify(scratch, bytes, message);
}

// A message there and one back; what it ended with.
static int ask(xtie_connection *to, const struct place *place, uint64_t message)
{
    size_t bytes = 0;
    int result = put(to, place, BYTES, message);
    result = result != XTIE_OK ? result : take(to, place, &bytes);
    if (result != XTIE_OK)
        return result;
    if (bytes != BYTES)
        fail("a message has the wrong length");
    place_verify(place, bytes, message + 1);
    return XTIE_OK;
}

// Answers until the other side ends with a short message, or something fails.
static int answer(xtie_connection *to, const struct place *place, _Atomic uint64_t *count)
{
    for (uint64_t message = 0;; message += 2) {
        size_t bytes = 0;
        int result = take(to, place, &bytes);
        if (result != XTIE_OK || bytes != BYTES)
            return result;
        place_verify(place, bytes, message);
        result = put(to, place, BYTES, message + 1);
        if (result != XTIE_OK)
            return result;
        atomic_fetch_add(count, 1);
    }
}

static void leave(xtie_connection *to, struct place *place)
{
    connection_close(to);
    CHECK(xtie_memory_deregister(endpoint, place->memory));
    CHECK(xtie_endpoint_close(endpoint));
    exit(0);
}

// ---------------------------------------------------------------- pairs that go on

static xtie_listener *board_listen(int at)
{
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &board->handles[at], &listener));
    atomic_store(&board->is_open[at], 1);
    return listener;
}

static xtie_connection *board_connect(int at)
{
    while (!atomic_load(&board->is_open[at]))
        pause_now_and_then();
    return connect_one(&board->handles[at]);
}

static void pair_listen(int pair)
{
    static _Atomic uint64_t count;
    begin(pair);
    struct place place = place_of(gpu.device);
    place_register(&place);
    xtie_connection *peer = accept_one(board_listen(pair));
    check(answer(peer, &place, &count), "a message of another pair");
    leave(peer, &place);
}

static void pair_connect(int pair)
{
    begin(pair + 1);
    struct place place = place_of(gpu.device);
    place_register(&place);
    xtie_connection *peer = board_connect(pair);
    for (uint64_t message = 0; !atomic_load(&board->stop); message += 2) {
        check(ask(peer, &place, message), "a message of another pair");
        atomic_fetch_add(&board->moved, 2 * BYTES);
    }
    check(put(peer, &place, 8, 0), "the last message");
    leave(peer, &place);
}

// ---------------------------------------------------------------- a peer that is killed

static void victim(int round)
{
    // by turns memory of cudaMalloc, and such as stays while somebody maps it
    static const struct mapping mapping = {VICTIM_BYTES, 1, POSIX, READ_WRITE};
    begin(1);
    struct place place = place_of(gpu.device);
    mapped_load();
    if (round % 2 == 0)
        gpu_check(gpu.alloc(&place.data, VICTIM_BYTES), "cuMemAlloc");
    else
        gpu_check(mapped_make(&mapping, &place.data), "memory that is mapped");
    known(&place, VICTIM_BYTES);
    xtie_connection *peer = board_connect(PAIRS);
    for (uint64_t message = 0;; message += 2)
        check(ask(peer, &place, message), "a message of the one that is killed");
}

// Free bytes of each GPU.
static void free_bytes(const struct place *places, int count, uint64_t *out)
{
    for (int at = 0; at < count; at++) {
        size_t left = 0, all = 0;
        on(&places[at]);
        gpu_check(memory_info(&left, &all), "cuMemGetInfo");
        out[at] = left;
    }
    on(&places[0]);
}

// Waits until what the peer had is free again.
static void settle(const struct place *places, int count, int round)
{
    uint64_t now[2] = {0, 0};
    while (atomic_load(&board->killed) <= round)
        CHECK(xtie_endpoint_progress(endpoint, NULL));
    if (round == 1)  // contexts and the library's own memory are there
        free_bytes(places, count, now);
    for (int at = 0; at < 2 && round == 1; at++)
        atomic_store(&board->free_before[at], now[at]);
    for (int is_low = round > 1; is_low;) {
        CHECK(xtie_endpoint_progress(endpoint, NULL));
        free_bytes(places, count, now);
        is_low = 0;
        for (int at = 0; at < count; at++) {
            is_low |= now[at] + SLACK < atomic_load(&board->free_before[at]);
            atomic_store(&board->free_after[at], now[at]);
        }
    }
}

static void survivor(void)
{
    begin(0);
    if (!gpu_find("cuMemGetInfo_v2", &memory_info))
        gpu_none("cuMemGetInfo_v2");
    int count = gpus() > 1 ? 2 : 1;
    struct place places[2] = {place_of(0), place_of(count - 1)};
    on(&places[0]);
    place_register(&places[0]);
    xtie_listener *listener = board_listen(PAIRS);
    for (int round = 0; round < KILLS; round++) {
        xtie_connection *peer = accept_one(listener);
        int result = answer(peer, &places[0], &board->exchanged);
        if (result != XTIE_ERR_PEER_DIED)
            check(result == XTIE_OK ? XTIE_ERR_PROTOCOL : result, "after the peer was killed");
        connection_close(peer);
        settle(places, count, round);
        atomic_store(&board->noticed, round + 1);
    }
    CHECK(xtie_memory_deregister(endpoint, places[0].memory));
    CHECK(xtie_endpoint_close(endpoint));
    exit(0);
}

// ---------------------------------------------------------------- an illegal address

// Ends the primary context of a GPU: a kernel writes where there is no memory.
static void ruin(const struct place *place)
{
    static const char program[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                  ".visible .entry ruin()\n{\n"
                                  "    .reg .b64 %nowhere;\n"
                                  "    mov.u64 %nowhere, 0;\n"
                                  "    st.global.u32 [%nowhere], 1;\n"
                                  "    ret;\n}\n";
    static int (*load)(void **, const void *);
    static int (*function)(void **, void *, const char *);
    static int (*start)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, void *, void **, void **);
    static void (*lose)(int);  // of the test double of the driver, which runs no PTX
    void *module = NULL, *kernel = NULL;
    on(place);
    if (gpu_find("double_lose", &lose)) {
        lose(place->device);
    } else if (gpu_find("cuModuleLoadData", &load) &&
               gpu_find("cuModuleGetFunction", &function) && gpu_find("cuLaunchKernel", &start)) {
        gpu_check(load(&module, program), "cuModuleLoadData");
        gpu_check(function(&kernel, module, "ruin"), "cuModuleGetFunction");
        gpu_check(start(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    } else {
        gpu_none("the driver has no cuLaunchKernel");
    }
    if (gpu.synchronize() == 0)
        fail("an illegal address was no error");
}

static const struct mapping room = {ROOM, 1, POSIX, READ_WRITE};

// Takes away what a place has.
static void take_away(struct place *place)
{
    on(place);
    gpu_check(gpu.synchronize(), "cuStreamSynchronize");
    mapped_end(&room, place->data);
}

// An endpoint with memory on a GPU and in the host, and a peer for each. Then either the memory is
// unmapped, or the driver refuses all calls of this process, on every GPU.
static void ruined(int is_unmapped)
{
    begin(0);
    struct place places[2] = {place_of(0), host_place()};
    xtie_connection *peers[2];
    on(&places[0]);
    mapped_load();
    gpu_check(mapped_make(&room, &places[0].data), "memory that is mapped");
    known(&places[0], ROOM);
    for (int at = 0; at < 2; at++) {
        peers[at] = board_connect(at);
        check(ask(peers[at], &places[at], 0), "a message before the fault");
    }
    message_fill(&places[0], BYTES, 2);  // later its memory cannot be filled
    if (is_unmapped)
        take_away(&places[0]);
    else
        ruin(&places[0]);
    check(ask(peers[1], &places[1], 2), "a message in host memory");
    size_t bytes = 0;
    int result = put_filled(peers[0], &places[0], BYTES);
    result = result != XTIE_OK ? result : take(peers[0], &places[0], &bytes);
    for (uint64_t message = 4; message < 40; message += 2)
        check(ask(peers[1], &places[1], message), "a later message in host memory");
    check(put(peers[1], &places[1], 8, 0), "the last message");
    printf("      %s: %s; host memory: 20 messages verified\n",
           is_unmapped ? "memory that is unmapped" : "the GPU that failed",
           result == XTIE_OK ? "it could still be copied" : xtie_result_str(result));
    if (is_unmapped && result == XTIE_OK)
        fail("a message came into memory that is unmapped");
    fflush(stdout);
    connection_close(peers[1]);
    connection_close(peers[0]);
    CHECK(xtie_endpoint_close(endpoint));
    exit(0);
}

static void beside_ruined(int at)
{
    static _Atomic uint64_t count;
    begin(1);
    struct place place = at == 0 ? place_of(gpu.device) : host_place();
    if (at == 0)
        place_register(&place);
    xtie_connection *peer = accept_one(board_listen(at));
    int result = answer(peer, &place, &count);
    if (at == 1)
        check(result, "a message in host memory");
    leave(peer, &place);
}

// ---------------------------------------------------------------- no memory left

// A GPU that is full when it is first used here, and is not any more later.
static void short_of_memory(int number)
{
    static uint64_t taken[256];
    int count = 0;
    begin(number);
    struct place place = place_of(gpu.device);
    gpu_check(gpu.alloc(&place.data, ROOM), "cuMemAlloc");
    for (size_t bytes = (size_t)1 << 40; bytes >= 4096 && count < 256;)
        if (gpu.alloc(&taken[count], bytes) == 0)
            count++;
        else
            bytes /= 2;
    int result = xtie_memory_register(endpoint, (void *)(uintptr_t)place.data, ROOM,
                                      XTIE_MEMORY_CUDA, &place.memory);
    printf("      a GPU without free memory: %s\n", xtie_result_str(result));
    fflush(stdout);
    if (result == XTIE_OK)
        fail("a GPU without memory was opened");
    while (count > 0)
        gpu_check(gpu.free(taken[--count]), "cuMemFree");
    known(&place, ROOM);
    atomic_store(&board->is_free, 1);
    xtie_connection *peer = board_connect(0);
    check(ask(peer, &place, 0), "a message after there was memory");
    check(put(peer, &place, 8, 0), "the last message");
    leave(peer, &place);
}

// ---------------------------------------------------------------- the processes

static pid_t started(void (*work)(int), int number)
{
    fflush(stdout);
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        fail("no process");
    if (child == 0) {
        end_with(parent);
        work(number);
        exit(1);
    }
    return child;
}

// Whether a process has ended well; status 77 ends this one with the same.
static int ends_well(pid_t child)
{
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        fail("no such process");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        exit(77);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void any_survivor(int number) { (void)number, survivor(); }

// Waits until a process has come so far. It must not end before.
static void await(const char *what, pid_t child, _Atomic int *now, int wanted)
{
    int status = 0;
    while (atomic_load(now) < wanted) {
        if (waitpid(child, &status, WNOHANG) == child) {
            if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
                exit(77);
            fail(what);
        }
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

static int row(const char *what, int is_right)
{
    printf("%-5s %s\n", is_right ? "ok" : "WRONG", what);
    fflush(stdout);
    return !is_right;
}

// Kills the survivor's peer, once it has exchanged some messages.
static void kill_one(int round, pid_t survivor)
{
    atomic_store(&board->exchanged, 0);
    pid_t child = started(victim, round);
    int status = 0;
    while (atomic_load(&board->exchanged) < 1 + (uint64_t)round % 7) {
        if (waitpid(child, &status, WNOHANG) != 0 || waitpid(survivor, &status, WNOHANG) != 0)
            fail("a process ended by itself");
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        fail("the peer was not killed");
    atomic_store(&board->killed, round + 1);
    await("the survivor ended", survivor, &board->noticed, round + 1);
}

static int kills(void)
{
    pid_t pairs[2 * PAIRS], survives = started(any_survivor, 0);
    await("the survivor did not begin", survives, &board->is_open[PAIRS], 1);
    for (int pair = 0; pair < PAIRS; pair++) {
        pairs[2 * pair] = started(pair_listen, pair);
        pairs[2 * pair + 1] = started(pair_connect, pair);
    }
    while (atomic_load(&board->moved) < 8 * BYTES)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    uint64_t before = atomic_load(&board->moved);
    for (int round = 0; round < KILLS; round++)
        kill_one(round, survives);
    uint64_t moved = atomic_load(&board->moved) - before;
    atomic_store(&board->stop, 1);
    int is_right = moved > 0 && ends_well(survives);
    for (int at = 0; at < 2 * PAIRS; at++)
        is_right &= ends_well(pairs[at]);
    printf("      %llu MiB of other pairs verified meanwhile; MiB free, before and after: %llu and "
           "%llu, %llu and %llu\n",
           (unsigned long long)(moved >> 20), (unsigned long long)board->free_before[0] >> 20,
           (unsigned long long)board->free_after[0] >> 20,
           (unsigned long long)board->free_before[1] >> 20,
           (unsigned long long)board->free_after[1] >> 20);
    return row("a peer that holds imports is killed 20 times: named, and the rest goes on",
               is_right);
}

// The number of GPUs, found out by a process of its own: no driver outlives a fork.
static void count_gpus(int number)
{
    (void)number;
    gpu_use(0);
    exit(gpus() > 1 ? 0 : 3);
}

static int scarce(void)
{
    memset(board, 0, sizeof *board);
    pid_t first = started(short_of_memory, 0);
    await("the GPU could not be used again", first, &board->is_free, 1);
    pid_t other = started(pair_listen, 0);
    int is_right = ends_well(first);
    is_right &= ends_well(other);
    return row("no memory is left on a GPU: a named error, and a later registration works",
               is_right);
}

static int ruin_row(int is_unmapped, const char *what)
{
    memset(board, 0, sizeof *board);
    pid_t beside[2] = {started(beside_ruined, 0), started(beside_ruined, 1)};
    int is_right = ends_well(started(ruined, is_unmapped));
    for (int at = 0; at < 2; at++)
        is_right &= ends_well(beside[at]);
    return row(what, is_right);
}

int main(void)
{
    if (xtie_abi_version() != XTIE_ABI_VERSION)
        fail("the library does not fit the header");
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        fail("no memory");
    int wrong = kills() + scarce();
    if (!ends_well(started(count_gpus, 0))) {
        row("lost memory and an illegal address: left out, they take two GPUs", 1);
        return wrong > 0;
    }
    wrong += ruin_row(1, "memory is unmapped while in use: a named error, and the rest goes on");
    wrong += ruin_row(0, "an illegal address in a kernel: a named error, and host memory goes on");
    return wrong > 0;
}
