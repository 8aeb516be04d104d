// Two ranks, each a process with a GPU of its own, and the page that they share with their parent.
//
// The parent uses no CUDA: it starts the ranks, bounds their time, ends them, and prints. So a
// kernel that spins for ever costs one case and not the run.
#pragma once
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

constexpr int RANKS = 2;
constexpr int CASES_MAX = 64;
// A kernel gives up a wait after 5 s, and a case has at most three waits.
constexpr double CASE_SECONDS_MAX = 20;
// CUDA's context, NCCL's communicator and 2 GiB of windows.
constexpr double SET_UP_SECONDS_MAX = 60;

inline double seconds_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

enum Outcome { OPEN, OK, FAILED, SKIPPED };

struct Shared {
    ncclUniqueId id;
    std::atomic<int> id_written;
    std::atomic<unsigned> arrived;   // ranks at the barrier, over all rounds
    std::atomic<int> at[RANKS];      // the case that the rank is in; -1 while it sets up
    std::atomic<int> lsa_ranks;      // what NCCL says, for the table
    std::atomic<int> contexts;
    std::atomic<int> posted[RANKS];  // entries of the kernel that runs while its peer is killed
    std::atomic<int> aborting;       // the survivor is inside ncclCommAbort
    std::atomic<double> killed_at;
    int outcome[RANKS][CASES_MAX];
    char said[RANKS][CASES_MAX][160];
    char lines[4096];                // what rank 0 reports beside the table
};

inline Shared *shared_page() {
    void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    if (page == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return static_cast<Shared *>(page);
}

// Before each pair of ranks: what the last pair left would mislead them. Outcomes stay.
inline void shared_reset(Shared *shared) {
    shared->id_written = 0;
    shared->arrived = 0;
    shared->aborting = 0;
    shared->killed_at = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        shared->at[rank] = -1;
        shared->posted[rank] = 0;
    }
}

// Adds a line to what rank 0 reports.
__attribute__((format(printf, 2, 3))) inline void tell(Shared *shared, const char *format, ...) {
    size_t used = strlen(shared->lines);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(shared->lines + used, sizeof shared->lines - used, format, arguments);
    va_end(arguments);
}

// Waits until both ranks are here. The parent ends a rank whose peer never comes.
inline void meet(Shared *shared) {
    unsigned round = shared->arrived.fetch_add(1) / RANKS;
    while (shared->arrived.load() < (round + 1) * RANKS) sched_yield();
}

// The unique id comes from rank 0.
inline ncclUniqueId unique_id(Shared *shared, int rank) {
    if (rank == 0) {
        if (ncclGetUniqueId(&shared->id) != ncclSuccess) {
            fprintf(stderr, "ncclGetUniqueId failed\n");
            _exit(1);
        }
        shared->id_written = 1;
    }
    while (!shared->id_written) sched_yield();
    return shared->id;
}

struct Pair {
    pid_t pid[RANKS];
    int status[RANKS];
    bool ended[RANKS];
};

// Makes this process one of another host, where GIN_HOST_0 and GIN_HOST_1 name network namespaces.
inline void enter_host(int rank) {
    char name[32], path[256], number[32];
    snprintf(name, sizeof name, "GIN_HOST_%d", rank);
    const char *host = getenv(name);
    if (host == nullptr) return;
    snprintf(path, sizeof path, "/run/netns/%s", host);
    snprintf(number, sizeof number, "a%d", rank + 1);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
        perror(path);
        _exit(2);
    }
    setenv("NCCL_HOSTID", host, 1);
    setenv("CROSSTIE_NODE_ID", number, 1);
}

// Starts `body(rank)` in two processes. They end when the parent does.
template <class Body>
Pair start_pair(Body body) {
    Pair pair = {};
    fflush(nullptr);
    for (int rank = 0; rank < RANKS; rank++) {
        pair.pid[rank] = fork();
        if (pair.pid[rank] < 0) {
            perror("fork");
            exit(2);
        }
        if (pair.pid[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            signal(SIGTERM, SIG_DFL);
            enter_host(rank);
            dup2(2, 1);  // NCCL's log: the table alone goes to the standard output
            exit(body(rank));
        }
    }
    return pair;
}

// Notes which ranks have ended. True when none is left.
inline bool reap(Pair &pair) {
    bool all = true;
    for (int rank = 0; rank < RANKS; rank++) {
        if (!pair.ended[rank])
            pair.ended[rank] = waitpid(pair.pid[rank], &pair.status[rank], WNOHANG) != 0;
        all &= pair.ended[rank];
    }
    return all;
}

inline bool went_well(const Pair &pair, int rank) {
    return pair.ended[rank] && WIFEXITED(pair.status[rank]) && WEXITSTATUS(pair.status[rank]) == 0;
}

// Somebody wants the program to end (SIGTERM): it prints what it knows by then.
inline std::atomic<bool> told_to_end;

inline void end_when_told() {
    struct sigaction action = {};
    action.sa_handler = [](int) { told_to_end = true; };
    sigaction(SIGTERM, &action, nullptr);
}

// Ends what still runs. A process in the driver may take a while to go, so this does not wait long.
inline void end_pair(Pair &pair) {
    for (int rank = 0; rank < RANKS; rank++)
        if (!pair.ended[rank]) kill(pair.pid[rank], SIGKILL);
    double until = seconds_now() + (told_to_end ? 0.5 : 10);
    while (!reap(pair) && seconds_now() < until) usleep(10000);
}

// Waits for both ranks. It ends them when neither goes on to another case for too long, or when one
// has failed. False then.
inline bool watch_pair(Shared *shared, Pair &pair) {
    int last[RANKS] = {-1, -1};
    for (double since = seconds_now(); !reap(pair); usleep(2000)) {
        for (int rank = 0; rank < RANKS; rank++) {
            if (last[rank] != shared->at[rank]) since = seconds_now();
            last[rank] = shared->at[rank];
            if (pair.ended[rank] && !went_well(pair, rank)) {
                usleep(500000);  // the peer may be about to say more
                end_pair(pair);
                return false;
            }
        }
        bool setting_up = last[0] < 0 || last[1] < 0;
        double seconds_max = setting_up ? SET_UP_SECONDS_MAX : CASE_SECONDS_MAX;
        if (told_to_end || seconds_now() - since > seconds_max) {
            end_pair(pair);
            return false;
        }
    }
    return went_well(pair, 0) && went_well(pair, 1);
}

// Why a pair did not come to its end.
inline void say_end(const Shared *shared, const Pair &pair, char *text, size_t size) {
    for (int rank = 0; rank < RANKS; rank++) {
        if (went_well(pair, rank)) continue;
        size_t used = strlen(text);
        int status = pair.status[rank];
        if (!pair.ended[rank])
            snprintf(text + used, size - used, "rank %d does not end; ", rank);
        else if (WIFEXITED(status))
            snprintf(text + used, size - used, "rank %d exited with %d; ", rank,
                     WEXITSTATUS(status));
        else
            snprintf(text + used, size - used, "rank %d ended by signal %d%s; ", rank,
                     WTERMSIG(status), WTERMSIG(status) == SIGKILL ? " (by the parent)" : "");
    }
}
