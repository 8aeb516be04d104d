/* A libfabric of our own for tests: what its objects are. See strict.c. */
#ifndef STRICT_H
#define STRICT_H

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define PUBLIC __attribute__((visibility("default")))

/* What a provider of this library does wrong, on purpose. */
enum {
    REFUSES_MEMORY = 1 << 0,   /* no registration */
    LIES_ABOUT_INJECT = 1 << 1, /* takes less than it says */
    STRANGE = 1 << 2,          /* completions of nobody */
    OVERRUNS = 1 << 3,         /* its queue fails after a while */
    NO_DELIVERY = 1 << 4,      /* cannot confirm delivery */
    NO_RMA = 1 << 5,           /* no writes */
    PREFIXES = 1 << 6,         /* wants a mode that nobody knows */
    SAYS_AGAIN = 1 << 7,       /* every second post finds no room */
    FAILS = 1 << 8,            /* every write fails */
    DEAF = 1 << 9,             /* keeps what writes have done to itself */
    LIES_ABOUT_LENGTH = 1 << 10, /* writes less at a time than it says */
    ONE_AT_A_TIME = 1 << 11,   /* no two threads at its registrations, nor at what looks for them */
    STAYS_AWAY = 1 << 12,      /* of its endpoints, the third and fourth cannot be opened */
    ONE_AT_QUEUE = 1 << 14,    /* no fault: FI_THREAD_COMPLETION */
    ONE_IN_DOMAIN = 1 << 15,   /* nor this: FI_THREAD_DOMAIN */
    SHARES_IF_SAFE = 1 << 16,  /* nor this: for all threads it has shared receives alone */
    REFUSES_WORDS = 1 << 17,   /* says that words go with writes, and refuses them, as cxi does */
    FORGETS_OPS = 1 << 18,     /* whose address is taken out, nothing to it ever ends, as of efa */
    FAILS_BESIDE = 1 << 19,    /* its failure belongs to no op, and is told to an event queue */
    REFUSES_EVENTS = 1 << 20,  /* joins no endpoint to an event queue */
    ORDERS_IF_ASKED = 1 << 21, /* no fault: it keeps the orders that it is asked for */
    SHUFFLES = 1 << 22,        /* nor this: what was sent last comes first, one with two looks */
    DIRECT_FIRST = 1 << 23,    /* nor this: another network of its comes first, that of efa */
    SHORT_QUEUES = 1 << 24,    /* no completion queue is as long as is wanted */
    CRIES_WOLF = 1 << 25,      /* says that a failure waits, and has none */
    OWN_SHORTCUT = 1 << 26,    /* no fault: within a host it goes another way, if it may */
    NICS_UNKNOWN = 1 << 27,    /* says nothing of its device */
    NICS_WITHOUT_LINK = 1 << 28, /* says of its device not how fast it is */
    LINGERS = 1 << 29,         /* what a closed endpoint has written comes all the same, as from a
                                  socket, one write with each look, and sends overtake it */
    DIES = 1 << 30,            /* its device: after a while each look finds an error of no op */
    FLOODS = 1ull << 31,       /* completions of nobody, as many as there is room for, ever again */
    REGRETS = 1ull << 40,      /* when its queue has failed, it refuses long memory a few times */
    CUTS_WORDS = 1ull << 32,   /* of a word with a write it delivers 4 of its 8 bytes */
    SAYS_NO_MEMORY = 1ull << 33, /* every second post finds no memory, or no buffer */
    FILLS_UP = 1ull << 35,     /* no post finds room, when it is told so */
    LACKS_MEMORY = 1ull << 34, /* after a while no post finds memory any more */
    REFUSES_LONG = 1ull << 36, /* no registration of long memory */
    FLOODS_EVENTS = 1ull << 38, /* events of nobody, ever again */
    MISCOUNTS = 1ull << 41, /* after a while its queue says that it gave more than it was asked
                               for */
    REACHES_GPUS = 1ull << 42, /* no fault: FI_HMEM, for memory of the double of the CUDA driver */
    REFUSES_DMABUFS = 1ull << 43, /* such memory not by its dma-buf */
    DMABUFS_ALONE = 1ull << 44, /* nor this: and by that alone */
};

/* What is long to a provider with REGRETS: no buffer of a rail's own. */
#define REGRETTED_BYTES 65536
/* What is long to one with REFUSES_LONG, and lets rails of short payloads have their
 * buffers: a block of a test. */
#define LONG_BYTES (1 << 20)

/* The network of efa's other endpoints, which are no good here. */
#define OTHER_NETWORK "efa-direct"
/* The longest completion queue of a provider with SHORT_QUEUES. */
#define SHORT_QUEUE 1200

/* A provider: what it wants of its user. */
struct kind {
    const char *name;
    int mr_mode;
    uint64_t mode;
    size_t key_bytes, data_bytes;
    uint64_t order, faults;
};

struct domain {
    struct fid_domain fid;
    int is_open, objects, regrets, has_gpus;
    const struct kind *kind;
    struct fabric *fabric;
    uint64_t next_key;
    struct used_key *used;
};

struct used_key {
    uint64_t key;
    struct used_key *next;
};

struct fabric {
    struct fid_fabric fid;
    int is_open, domains, others, is_entered;
    const struct kind *kind;
};

struct region {
    struct fid_mr fid;
    int is_open, is_enabled, is_of_gpu;
    struct domain *domain;
    struct endpoint *bound;
    char *start, *pages; /* pages: of the dma-buf that it was registered by */
    size_t length;
    uint64_t access;
    struct region *next;
};

struct item {
    struct fi_cq_data_entry entry;
    int err;
};

struct queue {
    struct fid_cq fid;
    int is_open, users, taken, is_entered, reads;
    struct domain *domain;
    size_t capacity, head, count;
    struct item *items;
    struct endpoint *endpoints;
};

struct vector {
    struct fid_av fid;
    int is_open, users;
    struct domain *domain;
    struct endpoint *ends[256];
};

enum verb { SEND, WRITE, READ, ADD, RECEIVE };

struct op {
    enum verb verb;
    struct endpoint *from;
    void *context;
    char *start;
    size_t length;
    char *copy; /* of what was injected */
    uint64_t data, flags, address, key, sum;
    int held, lingers;
    struct op *next;
};

struct endpoint {
    struct fid_ep fid;
    int is_open, is_enabled, regions, posts, has_shortcut, has_failed;
    struct domain *domain;
    struct queue *queue;
    struct vector *vector;
    struct op *receives, *inbound;
    struct endpoint *next; /* of the same queue */
    struct events *events;
};

struct events {
    struct fid_eq fid;
    int is_open, users, failures;
    struct fabric *fabric;
};

/* Ends the program with the word for what it did wrong. */
void stop(const char *what);
void enter(struct domain *domain, struct queue *queue);
void leave(struct domain *domain, struct queue *queue);
/* Of what belongs to a network: its one thread is that of the network's domain. */
void enter_network(struct fabric *fabric, struct queue *queue);
void leave_network(struct fabric *fabric, struct queue *queue);
extern pthread_mutex_t lock;
extern struct region *regions;
struct fi_info *checked(const struct fi_info *info);
int open_queue(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *ours);
int open_vector(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *ours);
int open_endpoint(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *ours);
int register_memory(struct fid *fid, const void *start, size_t length, uint64_t access,
                    uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **out,
                    void *ours);
int register_attr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                  struct fid_mr **out);
/* Copies, also from and to memory of GPUs, which processors may not touch. With the lock held. */
void *copy(void *to, const void *from, size_t length);
void move_on(struct endpoint *ep);
void forget_ops(struct vector *vector, struct endpoint *peer);
void fail_beside(struct endpoint *ep);
int open_events(struct fid_fabric *fid, struct fi_eq_attr *attr, struct fid_eq **out, void *ours);
/* With the lock held. */
void bind_events(struct endpoint *ep, struct events *events);

#endif
