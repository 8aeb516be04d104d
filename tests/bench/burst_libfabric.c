// Whether ops of libfabric end that are posted at once, without anything of ours above it.
//
//     burst_libfabric PROVIDER ROUNDS SEED [writes]
//
// Two endpoints of one process; in each round 100 to 200 ops of 1 to 100,000 bytes, from either
// side, as far as they are taken: writes (FI_DELIVERY_COMPLETE), and reads among them if not only
// writes are asked for. Both sides poll until all have ended, 8 seconds at most.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BLOCK (1u << 20)
#define SLOTS 64
#define PATIENCE 8000000000ull
#define MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

struct end {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *mr;
    char *block;
    fi_addr_t peer;
    struct fi_context2 contexts[SLOTS];
    uint64_t busy; // a bit for each context in use
    const char *verbs[SLOTS];
    size_t lengths[SLOTS];
};

static struct fi_info *info;
static struct end ends[2];
static uint64_t state;

static void must(const char *what, long code) {
    if (code < 0) {
        printf("%s: %s\n", what, fi_strerror((int)-code));
        exit(3);
    }
}

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t below(uint64_t bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % bound;
}

static void take(struct end *end) {
    struct fi_cq_data_entry entries[16];
    ssize_t count = fi_cq_read(end->cq, entries, 16);
    if (count == -FI_EAVAIL)
        must("an op failed", -FI_EIO);
    for (ssize_t n = 0; n < count; n++) {
        long at = (struct fi_context2 *)entries[n].op_context - end->contexts;
        if (at >= 0 && at < SLOTS)
            end->busy &= ~(1ull << at);
    }
}

static void take_both(void) {
    take(&ends[0]);
    take(&ends[1]);
}

static void open_end(struct end *end) {
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    struct fi_cq_attr queue = {.size = 300, .format = FI_CQ_FORMAT_DATA};
    struct fi_av_attr vector = {.type = FI_AV_TABLE, .count = 2};
    must("fabric", fi_fabric(info->fabric_attr, &end->fabric, NULL));
    must("domain", fi_domain(end->fabric, info, &end->domain, NULL));
    must("queue", fi_cq_open(end->domain, &queue, &end->cq, NULL));
    must("vector", fi_av_open(end->domain, &vector, &end->av, NULL));
    must("endpoint", fi_endpoint(end->domain, info, &end->ep, NULL));
    must("bind", fi_ep_bind(end->ep, &end->cq->fid, FI_SEND | FI_RECV));
    must("bind", fi_ep_bind(end->ep, &end->av->fid, 0));
    must("enable", fi_enable(end->ep));
    int how = MAP_PRIVATE | MAP_ANONYMOUS;
    end->block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, how, -1, 0);
    must("register", fi_mr_reg(end->domain, end->block, BLOCK, access, 0, 1, 0, &end->mr, NULL));
}

static void open_both(const char *provider) {
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = MODES;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    must("offers", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    info->tx_attr->op_flags = 0;
    open_end(&ends[0]);
    open_end(&ends[1]);
    for (int side = 0; side < 2; side++) {
        char name[256];
        size_t length = sizeof name;
        must("name", fi_getname(&ends[1 - side].ep->fid, name, &length));
        must("address", fi_av_insert(ends[side].av, name, 1, &ends[side].peer, 0, NULL));
    }
}

// Posts a random op, if it is taken.
static void post(int only_writes) {
    static const size_t lengths[] = {1, 64, 300, 4096, 100000};
    int side = (int)below(2), reads = below(6) == 1 && !only_writes;
    struct end *end = &ends[side], *other = &ends[1 - side];
    size_t at = 4096 * below(64), length = lengths[below(5)];
    if (~end->busy == 0)
        return;
    int slot = __builtin_ctzll(~end->busy);
    uint64_t base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)other->block : 0;
    void *desc = fi_mr_desc(end->mr);
    struct iovec near = {end->block + at, length};
    struct fi_rma_iov far = {base + at, length, fi_mr_key(other->mr)};
    struct fi_msg_rma message = {&near, &desc, 1, end->peer, &far, 1, &end->contexts[slot], 0};
    long code = reads ? fi_readmsg(end->ep, &message, FI_COMPLETION)
                      : fi_writemsg(end->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (code == -FI_EAGAIN)
        return;
    must("post", code);
    end->busy |= 1ull << slot;
    end->verbs[slot] = reads ? "read" : "write";
    end->lengths[slot] = length;
}

int main(int count, char **words) {
    if (count < 4)
        return 2;
    state = strtoull(words[3], NULL, 10);
    open_both(words[1]);
    for (int round = 0; round < atoi(words[2]); round++) {
        for (uint64_t ops = 100 + below(100); ops; ops--) {
            post(count > 4);
            if (below(4) == 0)
                take_both();
        }
        for (uint64_t start = now(); ends[0].busy | ends[1].busy;) {
            take_both();
            if (now() - start < PATIENCE)
                continue;
            printf("round %d, never ended:", round);
            for (int at = 0; at < 2 * SLOTS; at++)
                if (ends[at / SLOTS].busy >> at % SLOTS & 1)
                    printf(" %s of %zu,", ends[at / SLOTS].verbs[at % SLOTS],
                           ends[at / SLOTS].lengths[at % SLOTS]);
            printf("\n");
            return 1;
        }
    }
    printf("all ended\n");
    return 0;
}
