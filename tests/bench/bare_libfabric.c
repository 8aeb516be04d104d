// A bare driver of libfabric: what a provider gives to a program that does nothing else.
//
//     bare_libfabric PROVIDER CPU,CPU [DOMAIN]      reads lines: "lat BYTES ROUNDS",
//                                                   "write BYTES OPS OUTSTANDING"
//
// Two processes, one endpoint of reliable datagrams each. Messages are injected where they are
// short enough, writes ask for FI_DELIVERY_COMPLETE as the rail does, and each side polls its
// queue. A line of input is answered by a line: nanoseconds of one way (p50, mean) or seconds.
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RECEIVES 64
#define CELL 16384
#define SLOTS 64
#define BLOCK (132ul << 20)
#define MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

struct told {
    char name[192];
    uint64_t key, base;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_mr *mr, *cells_mr;
static char *block, *cells;
static fi_addr_t peer;
static struct told theirs;
// the library's room beside each op, and receives behind them
static struct fi_context2 contexts[SLOTS + RECEIVES];
static uint64_t busy; // ops in flight, a bit each

static void must(const char *what, long code) {
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
        exit(3);
    }
}

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set); // one CPU where there is but one: no harm
}

static void receive(int n) {
    long code;
    while ((code = fi_recv(ep, cells + n * CELL, CELL, fi_mr_desc(cells_mr), FI_ADDR_UNSPEC,
                           &contexts[SLOTS + n])) == -FI_EAGAIN)
        fi_cq_read(cq, NULL, 0);
    must("receive", code);
}

// Takes completions: ops become free; the length of a message that came, or 0.
static size_t take(void) {
    struct fi_cq_data_entry entries[16];
    size_t came = 0;
    ssize_t count = fi_cq_read(cq, entries, 16);
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(cq, &error, 0);
        fprintf(stderr, "an op failed: %s\n", fi_strerror(error.err));
        exit(3);
    }
    for (ssize_t n = 0; n < count; n++) {
        long at = (struct fi_context2 *)entries[n].op_context - contexts;
        if (at < SLOTS) {
            busy &= ~(1ull << at);
        } else {
            came = entries[n].len;
            receive((int)(at - SLOTS));
        }
    }
    return came;
}

static void send_message(size_t bytes) {
    for (;;) {
        long code;
        int slot = -1;
        if (bytes <= info->tx_attr->inject_size) {
            code = fi_inject(ep, block, bytes, peer);
        } else {
            slot = __builtin_ctzll(~busy);
            code = fi_send(ep, block, bytes, fi_mr_desc(mr), peer, &contexts[slot]);
        }
        if (code == 0) {
            if (slot >= 0)
                busy |= 1ull << slot;
            return;
        }
        if (code != -FI_EAGAIN)
            must("send", code);
        take();
    }
}

static int write_at(uint64_t offset, size_t bytes) {
    int slot = __builtin_ctzll(~busy);
    void *desc = fi_mr_desc(mr);
    struct iovec near = {block + offset, bytes};
    struct fi_rma_iov far = {theirs.base + offset, bytes, theirs.key};
    struct fi_msg_rma message = {&near, &desc, 1, peer, &far, 1, &contexts[slot], 0};
    long code = fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (code == 0)
        busy |= 1ull << slot;
    else if (code != -FI_EAGAIN)
        must("write", code);
    return code == 0;
}

static char *pages(size_t bytes) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS;
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how, -1, 0);
    return memset(start, 1, bytes);
}

static void open_all(const char *provider, const char *name) {
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = MODES;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    if (name)
        hints->domain_attr->name = strdup(name);
    must("offers", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    info->tx_attr->op_flags = 0;
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    must("domain", fi_domain(fabric, info, &domain, NULL));
    struct fi_cq_attr queue = {.size = SLOTS + RECEIVES + 1, .format = FI_CQ_FORMAT_DATA};
    must("queue", fi_cq_open(domain, &queue, &cq, NULL));
    struct fi_av_attr vector = {.type = FI_AV_TABLE, .count = 2};
    must("vector", fi_av_open(domain, &vector, &av, NULL));
    must("endpoint", fi_endpoint(domain, info, &ep, NULL));
    must("bind", fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    must("bind", fi_ep_bind(ep, &av->fid, 0));
    must("enable", fi_enable(ep));
    block = pages(BLOCK);
    cells = pages(RECEIVES * CELL);
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    must("register", fi_mr_reg(domain, block, BLOCK, access, 0, 1, 0, &mr, NULL));
    must("register", fi_mr_reg(domain, cells, RECEIVES * CELL, access, 0, 2, 0, &cells_mr, NULL));
    for (int n = 0; n < RECEIVES; n++)
        receive(n);
}

static void join(int fd) {
    struct told ours = {.key = fi_mr_key(mr)};
    size_t length = sizeof ours.name;
    must("name", fi_getname(&ep->fid, ours.name, &length));
    if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        ours.base = (uint64_t)block;
    if (write(fd, &ours, sizeof ours) != sizeof ours ||
        recv(fd, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
        must("the other process", -FI_EIO);
    must("address", fi_av_insert(av, theirs.name, 1, &peer, 0, NULL));
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void latency(size_t bytes, size_t rounds) {
    uint64_t *took = malloc(rounds * sizeof *took), start = now(), before = start;
    for (size_t n = 0; n < rounds; n++) {
        send_message(bytes);
        while (take() == 0)
            ;
        uint64_t at = now();
        took[n] = at - before;
        before = at;
    }
    double mean = (double)(before - start) / (double)rounds / 2;
    qsort(took, rounds, sizeof *took, by_value);
    printf("%.1f %.1f\n", (double)took[rounds / 2] / 2, mean);
    free(took);
}

static void stream(size_t bytes, size_t ops, int outstanding) {
    uint64_t start = now();
    for (size_t posted = 0; posted < ops || busy;) {
        while (posted < ops && __builtin_popcountll(busy) < outstanding &&
               write_at(posted % (size_t)outstanding * bytes, bytes))
            posted++;
        take();
    }
    printf("%.9f\n", (double)(now() - start) / 1e9);
}

int main(int count, char **words) {
    int fds[2], cpus[2] = {0, 1};
    if (count < 3 || sscanf(words[2], "%d,%d", &cpus[0], &cpus[1]) != 2 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        return 2;
    pid_t child = fork(); // before the library is used at all
    int side = child == 0;
    if (side)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cpus[side]);
    open_all(words[1], count > 3 ? words[3] : NULL);
    join(fds[side]);
    if (side) { // an echo, until a message of one byte
        for (size_t length;;) {
            if ((length = take()) == 1)
                break;
            if (length)
                send_message(length);
        }
        return 0;
    }
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        size_t bytes, times;
        int outstanding;
        if (sscanf(line, "lat %zu %zu", &bytes, &times) == 2)
            latency(bytes, times);
        else if (sscanf(line, "write %zu %zu %d", &bytes, &times, &outstanding) == 3)
            stream(bytes, times, outstanding);
        fflush(stdout);
    }
    send_message(1);
    while (waitpid(child, NULL, WNOHANG) == 0)
        take();
    return 0;
}
