/* Uses a built plugin as NCCL does: loads it, makes connections on a service thread that polls
 * connect and accept in turn, moves bytes on a progress thread that posts and tests in NCCL's
 * order, with requests and outputs as dirty as NCCL leaves them.
 *
 * usage: harness LIBRARY VERSION SCENARIO; an empty LIBRARY is this program itself. Most scenarios
 * run in two processes. Silent and 0 when all is as it must be. */
#define _GNU_SOURCE
#include "net.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STALE ((void *)0x5a5a5a5a5a5a5a50)
#define HINT ((void *)1)
#define STEPS 8

static const char *library;
static int version, rank;
/* To the other process; a thread of a crew has its own. */
static __thread int peer_socket;
enum { CREWS_MAX = 4 };
static int crew_sockets[CREWS_MAX];
static pid_t peer_process;

/* ---- what is allocated ---- */

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t), __libc_free(void *);

static __thread int counting;
static int allocations;
/* Bytes of the heap in use. */
static atomic_long held;

/* A sanitizer has its own allocator. */
#ifndef HARNESS_SANITIZED
static void *taken(void *place) {
    allocations += counting;
    held += (long)malloc_usable_size(place);
    return place;
}

void *malloc(size_t bytes) {
    return taken(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes) {
    return taken(__libc_calloc(count, bytes));
}

void *realloc(void *place, size_t bytes) {
    long before = (long)malloc_usable_size(place);
    void *after = __libc_realloc(place, bytes);
    if (after || !bytes) held -= before;
    return taken(after);
}

int posix_memalign(void **place, size_t align, size_t bytes) {
    *place = taken(__libc_memalign(align, bytes));
    return *place ? 0 : 12;
}

void free(void *place) {
    held -= (long)malloc_usable_size(place);
    __libc_free(place);
}
#endif

/* ---- who was waited for ---- */

/* Threads that were started and not joined, the library's too. */
static atomic_int unjoined;

/* A sanitizer has its own of these, too. */
#ifndef HARNESS_SANITIZED
int pthread_create(
    pthread_t *thread, const pthread_attr_t *with, void *(*run)(void *), void *argument) {
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    int rc = next(thread, with, run, argument);
    unjoined += !rc;
    return rc;
}

int pthread_join(pthread_t thread, void **result) {
    int (*next)(pthread_t, void **);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_join");
    int rc = next(thread, result);
    unjoined -= !rc;
    return rc;
}
#endif

/* ---- what was logged ---- */

static char logged[1 << 16];
static size_t logged_bytes;
static pthread_mutex_t logged_lock = PTHREAD_MUTEX_INITIALIZER;

static void log_line(
    int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strcmp(format, "%s")) FAIL("the format is not %%s: %s", format);
    if (!file || !flags || line < 0) FAIL("a log line without its place");
    /* NCCL shows no warning whose subsystem was not chosen */
    if (level == 2 && ~flags) FAIL("a warning that NCCL_DEBUG_SUBSYS hides");
    pthread_mutex_lock(&logged_lock);
    size_t room = sizeof logged - logged_bytes;
    int more = snprintf(logged + logged_bytes, room, "%d %s\n", level, text);
    if (more > 0 && (size_t)more < room) logged_bytes += (size_t)more;
    pthread_mutex_unlock(&logged_lock);
    if (getenv("HARNESS_LOG")) fprintf(stderr, "[%d] %d %s\n", rank, level, text);
}

static void forget_log(void) {
    pthread_mutex_lock(&logged_lock);
    logged[logged_bytes = 0] = 0;
    pthread_mutex_unlock(&logged_lock);
}

static int was_logged(const char *text) {
    pthread_mutex_lock(&logged_lock);
    int was = strstr(logged, text) != NULL;
    pthread_mutex_unlock(&logged_lock);
    return was;
}

/* ---- the other process ---- */

static void tell(const void *bytes, size_t count) {
    CHECK(write(peer_socket, bytes, count) == (ssize_t)count);
}

static void hear(void *bytes, size_t count) {
    for (size_t got = 0; got < count;) {
        ssize_t more = read(peer_socket, (char *)bytes + got, count - got);
        if (more <= 0) FAIL("rank %d: the other process is gone", rank);
        got += (size_t)more;
    }
}

static void meet(void) {
    char byte = 'm';
    tell(&byte, 1), hear(&byte, 1);
}

/* ---- hosts ---- */

/* Whether this process is in another network namespace than it was started in. */
static int is_apart;

/* Two processes are two hosts: each goes into a network namespace of HARNESS_HOSTS ("a,b"), or has
 * RDMA ports of its own, of HARNESS_PORTS ("=rxe0;=rxe2"). */
static void host_enter(void) {
    char path[300], *names = getenv("HARNESS_HOSTS"), *ports = getenv("HARNESS_PORTS");
    if (ports) {
        char *second = strchr(ports, ';'), mine[100];
        CHECK(second);
        snprintf(mine, sizeof mine, "%.*s", (int)(second - ports), ports);
        CHECK(!setenv("NCCL_IB_HCA", rank ? second + 1 : mine, 1));
    }
    if (!names) return;
    char *second = strchr(names, ',');
    CHECK(second);
    int length = rank ? (int)strlen(second + 1) : (int)(second - names);
    snprintf(path, sizeof path, "/var/run/netns/%.*s", length, rank ? second + 1 : names);
    int namespace = open(path, O_RDONLY);
    struct stat before, after;
    CHECK(namespace >= 0 && !stat("/proc/self/ns/net", &before) && !fstat(namespace, &after));
    CHECK(!setns(namespace, CLONE_NEWNET));
    close(namespace);
    is_apart = before.st_dev != after.st_dev || before.st_ino != after.st_ino;
    /* both may be in one host */
    int apart = strncmp(names, second + 1, (size_t)(second - names)) != 0;
    CHECK(!setenv("CROSSTIE_NODE_ID", rank && apart ? "a2" : "a1", 1));
}

/* A scenario begins that silences interfaces: they are a host's of HARNESS_HOSTS, or the guest's of
 * tests/vm, never those of the machine where somebody tries it. Nothing else can tell: the first
 * process of a container has the same namespace. */
static void interfaces_own(void) {
    if (is_apart || getenv("XTIE_VM")) return;
    if (rank == 1) exit(1); /* who is rank 0 says it */
    FAIL("silences interfaces: it wants network namespaces of its own, as HARNESS_HOSTS=a,b");
}

/* With one of them. */
static void interface_do(const char *command) {
    interfaces_own();
    CHECK(!system(command));
}

/* ---- bytes ---- */

static unsigned char pattern(uint64_t seed, size_t at) {
    uint64_t mixed = seed * 0x9e3779b97f4a7c15u ^ at * 0xff51afd7ed558ccdu;
    return (unsigned char)(mixed >> 56 ^ mixed >> 24);
}

static void fill(unsigned char *data, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(seed, i);
}

static void verify(const unsigned char *data, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != pattern(seed, i)) FAIL("byte %zu of %zu is wrong, seed %lu", i, bytes, seed);
}

/* How often this thread has given its processor up: the plugin does where it waits. */
static _Thread_local long yields;

int sched_yield(void) {
    yields++;
    return (int)syscall(SYS_sched_yield);
}

/* ---- connections ---- */

struct pair {
    void *send, *recv;
};

/* Listens, gives the handle to the peer, and polls both ways as NCCL's service thread does. Both
 * ranks do so at once: neither may block in connect. */
static struct pair cross(struct net *net, int device) {
    unsigned char mine[HANDLE], theirs[HANDLE];
    struct pair pair = {NULL, NULL};
    void *listener = NULL, *unpacks = NULL;
    memset(mine, 0x77, sizeof mine);
    OK(net_listen(net, device, mine, &listener));
    CHECK(listener);
    tell(mine, HANDLE), hear(theirs, HANDLE);
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(net, device, theirs, &pair.send, &unpacks));
        if (!pair.recv) OK(net_accept(net, listener, &pair.recv, &unpacks));
    }
    CHECK(!unpacks);
    OK(net_close(net, CLOSE_LISTEN, listener));
    return pair;
}

static void part(struct net *net, struct pair pair) {
    OK(net_close(net, CLOSE_SEND, pair.send));
    OK(net_close(net, CLOSE_RECV, pair.recv));
}

/* Runs a part of a scenario in a process of its own, and fails as it does: a process reads its
 * environment once. No plugin was opened here before. */
static void in_own_process(void (*part)(int), int number) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        alarm(600);
        part(number);
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

static struct net started(void) {
    struct net net = net_load(library, version);
    OK(net_init(&net, log_line));
    int count = -1;
    OK(net_devices(&net, &count));
    CHECK(count > 0);
    return net;
}

#ifdef HARNESS_SANITIZED
static void *nothing(void *argument) {
    return argument;
}
#endif

/* Entries of a folder. */
static int entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* Threads of this process. */
static int threads(void) {
#ifdef HARNESS_SANITIZED
    /* a sanitizer starts one of its own with the first that the program does */
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, nothing, NULL) && !pthread_join(thread, NULL));
#endif
    return entries("/proc/self/task");
}

/* The last communicator has ended, and no thread outlives it: NCCL may unload the library at once.
 * Up to v10 nobody says so, and threads end by themselves. */
static void threads_ended(int before) {
    if (version >= 11 && unjoined) FAIL("%d threads were not waited for", (int)unjoined);
    /* one that was joined stands in /proc a moment longer */
    while (threads() > before) sched_yield();
}

/* Tests until the end; its result. */
static int finish(struct net *net, void *request, int *sizes) {
    int done = STEPS * 1000, rc;
    while (!(rc = net_test(net, request, &done, sizes)) && !done) CHECK(done == 0), sched_yield();
    CHECK(done == 1);
    return rc;
}

static void *send_one(
    struct net *net, void *comm, void *data, size_t bytes, int tag, void *memory) {
    void *request;
    do {
        request = STALE;
        OK(net_isend(net, comm, data, bytes, tag, memory, &request));
        CHECK(request != STALE);
    } while (!request);
    return request;
}

static void *recv_group(struct net *net, void *comm, int n, void **data, const size_t *sizes,
    int *tags, void **memory, void *slot) {
    void *request;
    do {
        request = slot;
        OK(net_irecv(net, comm, n, data, sizes, tags, memory, &request));
        CHECK(request != STALE && request != HINT);
    } while (!request);
    return request;
}

static void *recv_one(
    struct net *net, void *comm, void *data, size_t bytes, int tag, void *memory) {
    return recv_group(net, comm, 1, &data, &bytes, &tag, &memory, STALE);
}

/* Polls both ends of one connection until they stand. */
static struct pair joined(struct net *net, void *listener, unsigned char *handle) {
    struct pair pair = {NULL, NULL};
    while (!pair.send || !pair.recv) {
        if (!pair.send) OK(net_connect(net, 0, handle, &pair.send, NULL));
        if (!pair.recv) OK(net_accept(net, listener, &pair.recv, NULL));
    }
    return pair;
}

/* One message over a connection of this process to itself. */
static void pass(struct net *net, struct pair pair, uint64_t mark) {
    unsigned char data[200];
    void *in = NULL, *out = NULL;
    fill(data, 100, mark), memset(data + 100, 0, 100);
    OK(net_reg(net, pair.recv, data + 100, 100, HOST_MEMORY, &in));
    OK(net_reg(net, pair.send, data, 100, HOST_MEMORY, &out));
    void *recv = recv_one(net, pair.recv, data + 100, 100, 3, in);
    void *send = send_one(net, pair.send, data, 100, 3, out);
    for (int received = 0, sent = 0; !received || !sent;) {
        int size = 0;
        if (!received) OK(net_test(net, recv, &received, &size));
        if (!sent) OK(net_test(net, send, &sent, NULL));
    }
    verify(data + 100, 100, mark);
    OK(net_dereg(net, pair.recv, in));
    OK(net_dereg(net, pair.send, out));
}

/* ---- the progress thread ---- */

struct work {
    struct net *net;
    struct pair pair;
    unsigned char *out, *in;
    void *out_memory, *in_memory;
    size_t room;
    int messages;
    const size_t *sizes;
    int size_count;
};

/* Sends and receives `messages` at once, up to STEPS of each outstanding, into places of one
 * registered buffer each: interior pointers. */
static void *progress(void *argument) {
    struct work *w = argument;
    void *sends[STEPS], *recvs[STEPS];
    int posted = 0, received = 0, sent = 0, delivered = 0;
    memset(sends, 0x5a, sizeof sends), memset(recvs, 0x5a, sizeof recvs);
    while (received < w->messages || delivered < w->messages) {
        if (posted < w->messages && posted - received < STEPS) {
            int at = posted % STEPS, tag = 7;
            void *data = w->in + (size_t)at * w->room;
            void **slot = &recvs[at];
            if (posted % 3 == 0) *slot = HINT;
            OK(net_irecv(w->net, w->pair.recv, 1, &data, &w->room, &tag, &w->in_memory, slot));
            CHECK(*slot != HINT && *slot != STALE);
            posted += *slot != NULL;
        }
        if (sent < w->messages && sent - delivered < STEPS) {
            int at = sent % STEPS;
            size_t bytes = w->sizes[sent % w->size_count];
            unsigned char *data = w->out + (size_t)at * w->room;
            fill(data, bytes, (uint64_t)(sent * 2 + rank));
            OK(net_isend(w->net, w->pair.send, data, bytes, 7, w->out_memory, &sends[at]));
            CHECK(sends[at] != STALE);
            sent += sends[at] != NULL;
        }
        if (received < posted) {
            int at = received % STEPS, done = 77, size = 0;
            OK(net_test(w->net, recvs[at], &done, &size));
            CHECK(done == 0 || done == 1);
            if (done) {
                size_t expected = w->sizes[received % w->size_count];
                if ((size_t)size != expected) FAIL("%d bytes for %zu", size, expected);
                verify(w->in + (size_t)at * w->room, expected, (uint64_t)(received * 2 + !rank));
                received++;
            }
        }
        if (delivered < sent) {
            int at = delivered % STEPS, done = 77, size = -1;
            size_t expected = w->sizes[delivered % w->size_count];
            OK(net_test(w->net, sends[at], &done, delivered % 2 ? &size : NULL));
            CHECK(done == 0 || done == 1);
            if (done && delivered % 2) CHECK((size_t)size == expected);
            delivered += done == 1;
        }
        sched_yield();
    }
    return NULL;
}

static void exchange(struct net *net, struct pair pair, const size_t *sizes, int count, int all) {
    size_t most = 1;
    for (int i = 0; i < count; i++) most = sizes[i] > most ? sizes[i] : most;
    struct work work = {net, pair, NULL, NULL, NULL, NULL, most, all, sizes, count};
    work.out = malloc(STEPS * most), work.in = malloc(STEPS * most);
    OK(net_reg(net, pair.send, work.out, STEPS * most, HOST_MEMORY, &work.out_memory));
    OK(net_reg(net, pair.recv, work.in, STEPS * most, HOST_MEMORY, &work.in_memory));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, progress, &work));
    /* the service thread registers and forgets user buffers of the same connections meanwhile */
    for (int i = 0; i < 200; i++) {
        void *memory = NULL;
        OK(net_reg(net, pair.send, work.in, most, HOST_MEMORY, &memory));
        CHECK(memory);
        OK(net_dereg(net, pair.send, memory));
    }
    CHECK(!pthread_join(thread, NULL));
    OK(net_dereg(net, pair.send, work.out_memory));
    OK(net_dereg(net, pair.recv, work.in_memory));
    free(work.out), free(work.in);
}

static const size_t SIZES[] = {0, 1, 8, 100, 4096, 20000, 65536, 0, 1 << 20, 3, (1 << 20) + 3};
static const size_t SHORT[] = {64, 0, 4000};

/* How long random traffic goes on. */
static int seconds(void) {
    const char *given = getenv("HARNESS_SECONDS");
    return given ? atoi(given) : 3;
}

#include "scenarios.h"

int main(int count, char **arguments) {
    if (count != 4) return 2;
    library = arguments[1], version = atoi(arguments[2]);
    unsigned lives = 600 + (unsigned)seconds();
    alarm(lives);
    for (const struct scenario *it = SCENARIOS; it->name; it++) {
        if (strcmp(it->name, arguments[3])) continue;
        if (!it->two) return host_enter(), it->run(), 0;
        int sockets[2];
        int crews[CREWS_MAX][2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
        for (int i = 0; i < CREWS_MAX; i++)
            CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, crews[i]));
        pid_t child = fork();
        rank = child == 0, peer_socket = sockets[rank];
        for (int i = 0; i < CREWS_MAX; i++)
            crew_sockets[i] = crews[i][rank], close(crews[i][!rank]);
        close(sockets[!rank]);
        peer_process = child == 0 ? getppid() : child;
        /* nobody waits for one whose other end has failed, also if it is stopped */
        if (rank == 1) CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL)), alarm(lives);
        host_enter();
        it->run();
        if (rank == 1) return 0;
        int status = 0;
        if (waitpid(child, &status, 0) != child) return 1;
        return it->two == 2 || (WIFEXITED(status) && WEXITSTATUS(status) == 0) ? 0 : 1;
    }
    FAIL("no scenario %s", arguments[3]);
}
