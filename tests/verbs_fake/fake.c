/* A libibverbs that is not one: a device, or several alike, whose number, ports, answers and
   refusals are as the variable FAKE says, words with spaces between them. Queue pairs of the
   process reach each other; what is posted is done when the post returns. It says on stderr what it
   was asked for, one line each. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { QUEUE = 256, PAIRS = 64, COMPLETIONS = 4096, PARTS = 4, STRAYS = 32, CARDS = 16 };
enum { BUFFERS = 256, PAGE = 4096 };

struct queue {
    struct ibv_cq cq;
    struct ibv_wc all[COMPLETIONS];
    unsigned first, next;
};

struct receive { uint64_t id, address; };

/* A write on its way by a path of its own; its bytes lie here. */
struct strayed { struct ibv_send_wr wr; struct ibv_sge part; int polls; };

struct pair {
    union { struct ibv_qp qp; struct ibv_qp_ex ex; };
    struct receive receives[QUEUE];
    unsigned first, next, other;
    int state;
    struct strayed *strayed;
    uint32_t extensions;
    /* what was told since wr_start */
    struct ibv_send_wr told[QUEUE];
    struct ibv_sge parts[QUEUE][PARTS];
    int told_count;
    /* the last of what is on its way and never acknowledged; 0: nothing */
    uint64_t unacknowledged;
    /* whose it is; others may destroy it alone, and it goes with the next poll */
    pthread_t maker;
    atomic_int is_destroyed;
};

static struct pair *pairs[PAIRS];
static unsigned pairs_made, keys_made, gids_asked;
static int tellers[PAIRS], opened; /* the ends that devices are told by */
static int callers[PAIRS], channels; /* those of completion channels, which hang up */
static struct ibv_device devices[CARDS];
static atomic_int held; /* whether who destroys what another has made waits, as the kernel may */

/* Where the bytes of registered dma-bufs are, which processors do not reach by their addresses. */
static struct buffer { uint32_t key; uint64_t start; size_t length, skipped; char *pages; }
    buffers[BUFFERS];

/* What was registered to be named by other addresses than its own. */
static struct named { uint32_t key; uint64_t name; char *start; size_t length; } names[BUFFERS];

static const char *value(const char *word) {
    const char *at = getenv("FAKE");
    size_t length = strlen(word);
    while (at && (at = strstr(at, word))) {
        if (at[length] == '=') return at + length + 1;
        if (at[length] == ' ' || at[length] == 0) return at + length;
        at += length;
    }
    return NULL;
}

static int number(const char *word, int otherwise) {
    const char *text = value(word);
    return text ? (int)strtol(text, NULL, 0) : otherwise;
}

/* One thread at a time is in the device: ranks of a test may be threads. */
static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static pthread_mutex_t *enter(void) { pthread_mutex_lock(&busy); return &busy; }

static void leave(pthread_mutex_t **entered) { pthread_mutex_unlock(*entered); }

#define ALONE __attribute__((cleanup(leave), unused)) pthread_mutex_t *entered = enter()

/* ------------------------------------------------------------------ completions and posts */

static void complete(struct ibv_cq *cq, struct ibv_wc wc) {
    struct queue *queue = (struct queue *)cq;
    queue->all[queue->next++ % COMPLETIONS] = wc;
}

/* Nobody sleeps here: what is posted is done at once. */
static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    (void)cq, (void)solicited;
    return 0;
}

/* Each event that FAKE asks for happens once, or a number of times in a row. */
static void happen(void) {
    static int happened = -1;
    int event = number("event", -1);
    for (int n = 0; event >= 0 && event != happened && n < opened; n++)
        for (int times = number("times", 1); times > 0; times--)
            if (write(tellers[n], &event, sizeof event) < 0) abort();
    /* a device that is gone hangs up at those who wait for its completions, as the kernel does */
    while (event == IBV_EVENT_DEVICE_FATAL && channels > 0) close(callers[--channels]);
    happened = event;
    held = value("held_destroy") != NULL;
}

static void arrive(struct pair *pair);

static int poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *out) {
    ALONE;
    struct queue *queue = (struct queue *)cq;
    int count = 0;
    happen();
    for (unsigned n = 0; n < pairs_made; n++) {
        struct pair *pair = pairs[n];
        if (pair && pair->is_destroyed) {
            free(pair);
            pair = pairs[n] = NULL;
        }
        int strays = pair && pair->strayed && pair->qp.send_cq == cq;
        if (strays && ++pair->strayed->polls >= STRAYS) arrive(pair);
    }
    if (value("broken_queue")) return -1;
    if (value("late")) return 0; /* what was lost on the way is sent again, later */
    while (count < room && queue->first != queue->next)
        out[count++] = queue->all[queue->first++ % COMPLETIONS];
    return count;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    ALONE;
    struct pair *pair = (struct pair *)qp;
    (void)bad;
    if (value("dead")) return 0; /* nobody reads it any more */
    for (; wr; wr = wr->next) {
        if (pair->state == IBV_QPS_ERR) {
            struct ibv_wc wc = { .wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR };
            complete(qp->recv_cq, wc);
            continue;
        }
        pair->receives[pair->next++ % QUEUE] =
            (struct receive){ wr->wr_id, wr->num_sge ? wr->sg_list->addr : 0 };
    }
    return 0;
}

static uint32_t length_of(struct ibv_send_wr *wr) {
    uint32_t length = 0;
    for (int n = 0; n < wr->num_sge; n++) length += wr->sg_list[n].length;
    return length;
}

/* What a key and an address mean: a place in a dma-buf, or in the process's memory. */
static void *place(uint32_t key, uint64_t address, size_t length) {
    for (int n = 0; n < BUFFERS; n++) {
        struct buffer *buffer = &buffers[n];
        if (key == 0 || buffer->key != key) continue;
        uint64_t offset = address - buffer->start;
        if (offset > buffer->length || length > buffer->length - offset) abort();
        return buffer->pages + buffer->skipped + offset;
    }
    return (void *)(uintptr_t)address;
}

static void *part_of(struct ibv_sge *part) {
    return place(part->lkey, part->addr, part->length);
}

static void copy_parts(uint32_t key, uint64_t to, struct ibv_send_wr *wr) {
    for (int n = 0; n < wr->num_sge; to += wr->sg_list[n++].length)
        memcpy(place(key, to, wr->sg_list[n].length), part_of(&wr->sg_list[n]),
               wr->sg_list[n].length);
}

static void fetch_parts(uint32_t key, uint64_t from, struct ibv_send_wr *wr) {
    for (int n = 0; n < wr->num_sge; from += wr->sg_list[n++].length)
        memcpy(part_of(&wr->sg_list[n]), place(key, from, wr->sg_list[n].length),
               wr->sg_list[n].length);
}

/* Bytes that were written to a dma-buf, and have not reached the GPU: with "held_back" none do
 * before something there is read. */
static struct held { struct held *next; void *to; size_t length; char bytes[]; } *first, **last;

static void land(void) {
    for (struct held *now; (now = first);) {
        memcpy(now->to, now->bytes, now->length);
        first = now->next;
        free(now);
    }
    last = NULL;
}

static int is_buffer(uint32_t key) {
    for (int n = 0; n < BUFFERS; n++) if (key && buffers[n].key == key) return 1;
    return 0;
}

static void hold_back(uint32_t key, uint64_t to, struct ibv_send_wr *wr) {
    for (int n = 0; n < wr->num_sge; to += wr->sg_list[n++].length) {
        size_t length = wr->sg_list[n].length;
        struct held *held_back = malloc(sizeof *held_back + length);
        *held_back = (struct held){ NULL, place(key, to, length), length };
        memcpy(held_back->bytes, part_of(&wr->sg_list[n]), length);
        *(last ? last : &first) = held_back;
        last = &held_back->next;
    }
}

static void write_parts(uint32_t key, uint64_t to, struct ibv_send_wr *wr) {
    if (value("held_back") && is_buffer(key)) hold_back(key, to, wr);
    else copy_parts(key, to, wr);
}

/* Where the old value of an add goes; none: nothing of that key lies there. */
static void *sink_of(const struct ibv_sge *part) {
    for (int n = 0; n < BUFFERS; n++)
        if (names[n].key == part->lkey && names[n].name <= part->addr &&
            part->addr + part->length <= names[n].name + names[n].length)
            return names[n].start + (part->addr - names[n].name);
    return part->addr < PAGE ? NULL : (void *)(uintptr_t)part->addr;
}

static enum ibv_wc_status fetch_add(struct ibv_send_wr *wr) {
    uint64_t *word = place(wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, sizeof *word);
    uint64_t old = *word, *sink = sink_of(wr->sg_list);
    *word += wr->wr.atomic.compare_add; /* before the answer has found its place */
    if (!sink) return IBV_WC_LOC_PROT_ERR;
    if (!value("sink_lost")) *sink = old;
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status carry(struct pair *pair, struct ibv_send_wr *wr) {
    struct pair *other = pair->other < PAIRS ? pairs[pair->other] : NULL;
    uint32_t length = length_of(wr);
    int is_send = wr->opcode == IBV_WR_SEND, has_word = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (pair->state == IBV_QPS_ERR) return IBV_WC_WR_FLUSH_ERR;
    /* a queue pair that was stopped takes no packets, and acknowledges none */
    int is_deaf = !other || other->state == IBV_QPS_ERR;
    if (is_deaf || value("unanswered")) return IBV_WC_RETRY_EXC_ERR;
    if (!is_send && length && value("bad_key")) return IBV_WC_REM_ACCESS_ERR;
    if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return fetch_add(wr);
    if (wr->opcode == IBV_WR_RDMA_READ) {
        if (value("no_reads")) return IBV_WC_REM_ACCESS_ERR;
        if (is_buffer(wr->wr.rdma.rkey)) land();
        fetch_parts(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr);
    } else if (!is_send) {
        write_parts(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr);
    }
    if (!is_send && !has_word) return IBV_WC_SUCCESS;
    if (other->first == other->next) return IBV_WC_RNR_RETRY_EXC_ERR;
    struct receive to = other->receives[other->first++ % QUEUE];
    if (is_send) copy_parts(0, to.address, wr);
    struct ibv_wc wc = { .wr_id = to.id, .status = IBV_WC_SUCCESS, .byte_len = length };
    wc.opcode = has_word ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.imm_data = wr->imm_data;
    complete(other->qp.recv_cq, wc);
    return IBV_WC_SUCCESS;
}

static void end_send(struct pair *pair, struct ibv_send_wr *wr, enum ibv_wc_status status) {
    if (status != IBV_WC_SUCCESS) pair->state = IBV_QPS_ERR;
    if (status != IBV_WC_SUCCESS || wr->send_flags & IBV_SEND_SIGNALED) {
        struct ibv_wc wc = { .wr_id = wr->wr_id, .status = status, .vendor_err = 0x81 };
        complete(pair->qp.send_cq, wc);
    }
}

/* What has strayed lands now. */
static void arrive(struct pair *pair) {
    struct strayed *strayed = pair->strayed;
    if (!strayed) return;
    pair->strayed = NULL;
    end_send(pair, &strayed->wr, carry(pair, &strayed->wr));
    free((void *)(uintptr_t)strayed->part.addr), free(strayed);
}

/* A write takes another path than the next: it lands behind that, or when nothing follows soon. */
static void stray(struct pair *pair, struct ibv_send_wr *wr) {
    struct strayed *strayed = pair->strayed = calloc(1, sizeof *strayed);
    uint32_t length = length_of(wr);
    strayed->part.addr = (uintptr_t)malloc(length), strayed->part.length = length;
    copy_parts(0, strayed->part.addr, wr);
    strayed->wr = *wr, strayed->wr.sg_list = &strayed->part, strayed->wr.num_sge = length > 0;
}

/* Only packets of writes without a word are placed as they come, whatever came before. */
static void go(struct pair *pair, struct ibv_send_wr *wr) {
    int is_plain = wr->opcode == IBV_WR_RDMA_WRITE && pair->state != IBV_QPS_ERR;
    int strays = is_plain && value("infiniband") && value("swaps");
    if (strays && !pair->strayed) return stray(pair, wr);
    if (!strays) arrive(pair);
    enum ibv_wc_status status = carry(pair, wr);
    arrive(pair);
    end_send(pair, wr, status);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    ALONE;
    (void)bad;
    if (value("dead")) return 0;
    if (value("sends_refused")) return EINVAL; /* as bnxt_re, of a queue pair with an error */
    if (value("say_doorbells")) fprintf(stderr, "doorbell\n");
    for (; wr; wr = wr->next) {
        struct pair *pair = (struct pair *)qp;
        if (value("silent") && pair->state != IBV_QPS_ERR) {
            pair->unacknowledged = wr->wr_id;
            continue;
        }
        if (value("say_posts"))
            fprintf(stderr, "post %d of %u bytes%s%s\n", wr->opcode, length_of(wr),
                    wr->send_flags & IBV_SEND_SIGNALED ? ", signalled" : "",
                    wr->send_flags & IBV_SEND_INLINE && value("say_inline") ? ", inline" : "");
        go((struct pair *)qp, wr);
    }
    return 0;
}

/* ------------------------------------------------------------------ the extended interface */

static void tell(struct ibv_qp_ex *qp, struct ibv_send_wr wr) {
    struct pair *pair = (struct pair *)qp;
    if (pair->told_count == QUEUE) abort();
    wr.wr_id = qp->wr_id, wr.send_flags = qp->wr_flags, wr.num_sge = -1;
    pair->told[pair->told_count++] = wr;
}

static struct ibv_send_wr to(int opcode, uint32_t key, uint64_t address) {
    struct ibv_send_wr wr = { .opcode = opcode };
    wr.wr.rdma.rkey = key, wr.wr.rdma.remote_addr = address;
    return wr;
}

static void wr_read(struct ibv_qp_ex *qp, uint32_t key, uint64_t address) {
    tell(qp, to(IBV_WR_RDMA_READ, key, address));
}

static void wr_write(struct ibv_qp_ex *qp, uint32_t key, uint64_t address) {
    tell(qp, to(IBV_WR_RDMA_WRITE, key, address));
}

static void wr_write_imm(struct ibv_qp_ex *qp, uint32_t key, uint64_t address, __be32 word) {
    struct ibv_send_wr wr = to(IBV_WR_RDMA_WRITE_WITH_IMM, key, address);
    wr.imm_data = word;
    tell(qp, wr);
}

static void wr_add(struct ibv_qp_ex *qp, uint32_t key, uint64_t address, uint64_t value) {
    struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
    wr.wr.atomic.rkey = key, wr.wr.atomic.remote_addr = address, wr.wr.atomic.compare_add = value;
    tell(qp, wr);
}

static void wr_send(struct ibv_qp_ex *qp) { tell(qp, to(IBV_WR_SEND, 0, 0)); }

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list) {
    struct pair *pair = (struct pair *)qp;
    int at = pair->told_count - 1;
    if (count > PARTS || pair->told[at].num_sge != -1) abort();
    if (count) memcpy(pair->parts[at], list, count * sizeof *list);
    pair->told[at].sg_list = pair->parts[at], pair->told[at].num_sge = (int)count;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint32_t length) {
    struct ibv_sge part = { .addr = address, .length = length, .lkey = lkey };
    wr_set_sge_list(qp, 1, &part);
}

static void wr_set_inline(struct ibv_qp_ex *qp, void *address, size_t length) {
    if (!(qp->wr_flags & IBV_SEND_INLINE)) abort(); /* as soft-RoCE wants it */
    wr_set_sge(qp, 0, (uintptr_t)address, (uint32_t)length);
}

static void wr_start(struct ibv_qp_ex *qp) { ((struct pair *)qp)->told_count = 0; }

static int wr_complete(struct ibv_qp_ex *qp) {
    struct pair *pair = (struct pair *)qp;
    struct ibv_send_wr *bad;
    int count = pair->told_count;
    if (value("say_posts")) fprintf(stderr, "doorbell of %d told one by one\n", count);
    for (int n = 0; n < count; n++) {
        /* a driver that is told nothing of a request's bytes sends what was there before */
        if (pair->told[n].num_sge == -1) abort();
        pair->told[n].next = n + 1 < count ? &pair->told[n + 1] : NULL;
    }
    return count ? post_send(&pair->qp, pair->told, &bad) : 0;
}

static void wr_abort(struct ibv_qp_ex *qp) { wr_start(qp); }

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init) {
    struct ibv_qp *qp;
    (void)context;
    if (value("no_extended")) { errno = EOPNOTSUPP; return NULL; }
    qp = ibv_create_qp(init->pd, (struct ibv_qp_init_attr *)init);
    struct ibv_qp_ex *ex = (struct ibv_qp_ex *)qp;
    if (!qp) return NULL;
    fprintf(stderr, "a queue pair that is told of %#llx\n",
            (unsigned long long)init->send_ops_flags);
    ex->wr_rdma_read = wr_read, ex->wr_rdma_write = wr_write;
    ex->wr_rdma_write_imm = wr_write_imm, ex->wr_atomic_fetch_add = wr_add;
    ex->wr_send = value("extended_lacks") ? NULL : wr_send;
    ex->wr_set_sge = wr_set_sge, ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_set_inline_data = wr_set_inline;
    ex->wr_start = wr_start, ex->wr_complete = wr_complete, ex->wr_abort = wr_abort;
    return qp;
}

#ifndef OLD /* before rdma-core 24 */
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return (struct ibv_qp_ex *)qp; }
#endif

/* ------------------------------------------------------------------ the device */

struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = calloc(CARDS + 1, sizeof *list);
    *count = value("no_device") ? 0 : number("cards", 1);
    if (*count > CARDS) abort();
    for (int n = 0; n < *count; n++) {
        devices[n].node_type = IBV_NODE_CA;
        snprintf(devices[n].name, sizeof devices[n].name, "fake%d", n);
        list[n] = &devices[n];
    }
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

int ibv_fork_init(void) {
    fprintf(stderr, "children are thought of\n");
    return value("no_children") ? ENOSYS : 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *which) {
    fprintf(stderr, "the device is opened\n");
    struct verbs_context *whole = calloc(1, sizeof *whole);
    struct ibv_context *context = &whole->context;
    whole->sz = sizeof *whole, whole->create_qp_ex = create_qp_ex;
    if (!value("plain_context")) context->abi_compat = __VERBS_ABI_IS_EXTENDED;
    if (value("closed_device")) { errno = EACCES; return NULL; }
    int events[2];
    if (opened == PAIRS) abort();
    if (pipe(events)) { errno = ENOSYS; free(whole); return NULL; } /* as libibverbs does */
    tellers[opened++] = events[1];
    context->device = which;
    context->async_fd = events[0];
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    if (value("removed")) {
        int event = IBV_EVENT_DEVICE_FATAL;
        if (write(events[1], &event, sizeof event) < 0) abort();
    }
    return context;
}

int ibv_close_device(struct ibv_context *context) {
    free((char *)context - offsetof(struct verbs_context, context));
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    int type;
    if (read(context->async_fd, &type, sizeof type) != (ssize_t)sizeof type) return -1;
    event->event_type = type;
    event->element.port_num = 1;
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    (void)context;
    memset(attr, 0, sizeof *attr);
    attr->max_cqe = number("cqes", 100000);
    attr->max_sge = number("parts", PARTS);
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
    attr->atomic_cap = value("no_atomics") ? IBV_ATOMIC_NONE : IBV_ATOMIC_HCA;
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out) {
    struct ibv_port_attr *attr = (struct ibv_port_attr *)out;
    (void)context;
    if (port != 1) return EINVAL;
    if (value("dead")) return EIO;
    attr->state = value("port_down") ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->active_mtu = number("mtu_code", IBV_MTU_4096);
    attr->lid = (uint16_t)number("lid", 0);
    attr->flags = value("wants_grh") ? IBV_QPF_GRH_REQUIRED : 0;
    attr->max_msg_sz = 1u << 31;
    attr->gid_tbl_len = 8;
    attr->link_layer = value("infiniband") ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    (void)port;
    gids_asked++;
    if (value("gid_refused")) { errno = EMFILE; return -1; }
    memset(gid, 0, sizeof *gid);
    int card = (int)(context->device - devices), is_other = card != number("gid6_card", card);
    if (!is_other && index == number("gid6_at", -1)) {
        gid->raw[0] = 0xfd, gid->raw[15] = 1;
        return 0;
    }
    if (value("no_gid") || index != number("gid_at", index)) return 0;
    gid->raw[10] = gid->raw[11] = 0xff;
    gid->raw[12] = 10;
    gid->raw[13] = (uint8_t)number("gid_net", 0);
    gid->raw[15] = value("gid_moves") && gids_asked > 1 ? 9 : (uint8_t)number("gid_ends", 1);
    if (value("gid_by_card")) gid->raw[15] += (uint8_t)card;
    return 0;
}

#ifndef OLD /* before rdma-core 62 */
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed) {
    (void)context;
    fprintf(stderr, "the speed of port %u is asked for\n", port);
    *speed = (uint64_t)number("speed", 0);
    return value("speed") ? 0 : EPROTONOSUPPORT;
}
#endif

#ifndef OLD /* before rdma-core 33 */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
    static const union ibv_gid none;
    (void)flags, (void)size;
    memset(entry, 0, sizeof *entry);
    if (value("say_table") && index == 0) fprintf(stderr, "the table of GIDs is read\n");
    if (ibv_query_gid(context, (uint8_t)port, (int)index, &entry->gid)) return errno;
    entry->gid_index = index, entry->port_num = port;
    entry->gid_type = value("infiniband") ? IBV_GID_TYPE_IB
                      : value("gid_version_1") ? IBV_GID_TYPE_ROCE_V1
                                               : IBV_GID_TYPE_ROCE_V2;
    return memcmp(&entry->gid, &none, sizeof none) ? 0 : ENODATA;
}
#endif

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    (void)context, (void)port, (void)index;
    *pkey = 0xffff;
    return 0;
}

/* ------------------------------------------------------------------ what is made of it */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

static int give_back(void *it);

int ibv_dealloc_pd(struct ibv_pd *pd) { return give_back(pd); }

/* What is made of a device that is gone cannot be given back: the kernel has done so. */
static int give_back(void *it) {
    int code = number("dead", 0);
    if (value("dead")) return code ? code : EIO;
    free(it);
    return 0;
}

static int refuses_adds(void) {
    errno = number("refuses_adds", 0);
    return errno != 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
    ALONE;
    if (value("locked_memory")) { errno = ENOMEM; return NULL; }
    if (value("dead")) { errno = EIO; return NULL; }
    fprintf(stderr, "register, access %#x\n", access);
    if (access & IBV_ACCESS_REMOTE_ATOMIC && refuses_adds()) return NULL;
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    mr->pd = pd, mr->addr = address, mr->length = length;
    mr->lkey = mr->rkey = ++keys_made;
    return mr;
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned int access) {
    int is_other = iova != (uintptr_t)address;
    if (is_other && value("iova_refused")) { errno = EINVAL; return NULL; }
    struct ibv_mr *mr = ibv_reg_mr(pd, address, length, (int)access);
    if (!mr || !is_other || value("no_iova")) return mr;
    struct named *named = names;
    while (named->key) if (++named == names + BUFFERS) abort();
    *named = (struct named){ mr->lkey, iova, address, length };
    return mr;
}

/* The dma-bufs of the double of the CUDA driver are files: one begins at the file's position. */
static int map_buffer(struct ibv_mr *mr, uint64_t offset, int fd) {
    struct buffer *buffer = buffers;
    uint64_t at = (uint64_t)lseek(fd, 0, SEEK_CUR) + offset;
    while (buffer->key) if (++buffer == buffers + BUFFERS) abort();
    buffer->start = (uintptr_t)mr->addr, buffer->length = mr->length, buffer->skipped = at % PAGE;
    buffer->pages = mmap(NULL, buffer->skipped + mr->length, PROT_READ | PROT_WRITE, MAP_SHARED,
                         fd, (off_t)(at - at % PAGE));
    fprintf(stderr, "a dma-buf, offset %llu\n", (unsigned long long)offset);
    if (buffer->pages == MAP_FAILED) { errno = EINVAL; return 0; }
    buffer->key = mr->lkey;
    return 1;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access) {
    int card = (int)(pd->context->device - devices);
    errno = number("dmabuf_errno", EOPNOTSUPP);
    if (!value("dmabufs") || card != number("dmabufs_card", card)) return NULL;
    if (fd < 0) { errno = EBADF; return NULL; }
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *)(uintptr_t)iova, length, access);
    return !mr || !value("mapped") || map_buffer(mr, offset, fd) ? mr : NULL;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    ALONE;
    for (int n = 0; n < BUFFERS; n++) if (names[n].key == mr->lkey) names[n].key = 0;
    for (int n = 0; n < BUFFERS; n++)
        if (buffers[n].key == mr->lkey && !value("dead")) {
            land();
            munmap(buffers[n].pages, buffers[n].skipped + buffers[n].length);
            buffers[n].key = 0;
        }
    return give_back(mr);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    int ends[2];
    if (channels == PAIRS || pipe(ends)) abort();
    channel->context = context, channel->fd = ends[0];
    callers[channels++] = ends[1];
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd), free(channel);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **word) {
    (void)channel, (void)cq, (void)word;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { (void)cq, (void)count; }

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user,
                             struct ibv_comp_channel *channel, int vector) {
    struct queue *queue = calloc(1, sizeof *queue);
    (void)user, (void)vector;
    queue->cq.context = context, queue->cq.channel = channel, queue->cq.cqe = entries;
    return &queue->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) { return give_back(cq); }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    ALONE;
    if (value("no_pairs") || pairs_made == PAIRS) { errno = ENOMEM; return NULL; }
    if ((int)init->cap.max_send_sge > number("send_parts", PARTS)) { errno = EINVAL; return NULL; }
    if (init->cap.max_inline_data > (uint32_t)number("inline_max", 1024)) {
        errno = EINVAL;
        return NULL;
    }
    if (value("dead")) { errno = EIO; return NULL; }
    fprintf(stderr, "a queue pair of %u parts, %u bytes inline\n", init->cap.max_send_sge,
            init->cap.max_inline_data);
    struct pair *pair = calloc(1, sizeof *pair);
    pair->qp.context = pd->context, pair->qp.pd = pd;
    pair->qp.send_cq = init->send_cq, pair->qp.recv_cq = init->recv_cq;
    pair->other = PAIRS;
    pair->maker = pthread_self();
    pair->qp.qp_num = pairs_made;
    pairs[pairs_made++] = pair;
    return &pair->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    ALONE;
    struct pair *pair = (struct pair *)qp;
    if (value("dead")) return EIO;
    if (value("stuck")) return ETIMEDOUT; /* a device that obeys no more, and moves bytes */
    if (mask & IBV_QP_ACCESS_FLAGS) {
        fprintf(stderr, "queue pair, access %#x\n", attr->qp_access_flags);
        if (attr->qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC && refuses_adds()) return errno;
    }
    if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR) {
        fprintf(stderr, "ready to receive, mtu code %d\n", attr->path_mtu);
        fprintf(stderr, "to LID %d, global %d, timer %d\n", attr->ah_attr.dlid,
                attr->ah_attr.is_global, attr->min_rnr_timer);
        if (value("no_neighbour")) return ETIMEDOUT;
        if (pair->extensions && value("ece_useless")) return EINVAL;
    }
    if (mask & IBV_QP_RNR_RETRY) fprintf(stderr, "rnr_retry %d\n", attr->rnr_retry);
    if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR) {
        struct ibv_wc wc = { .wr_id = pair->unacknowledged, .status = IBV_WC_WR_FLUSH_ERR };
        arrive(pair);
        if (wc.wr_id) complete(qp->send_cq, wc);
        while (pair->unacknowledged && pair->first != pair->next) {
            wc.wr_id = pair->receives[pair->first++ % QUEUE].id;
            complete(qp->recv_cq, wc);
        }
        pair->unacknowledged = 0;
    }
    if (mask & IBV_QP_STATE) pair->state = attr->qp_state;
    if (mask & IBV_QP_DEST_QPN) pair->other = attr->dest_qp_num;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    struct pair *pair = (struct pair *)qp;
    if (!pthread_equal(pair->maker, pthread_self())) {
        while (held) usleep(1000);
        fprintf(stderr, "a queue pair is destroyed aside\n");
        pair->is_destroyed = 1;
        return 0;
    }
    if (value("stuck")) return ETIMEDOUT;
    arrive(pairs[qp->qp_num]);
    pairs[qp->qp_num] = NULL;
    return give_back(qp);
}

#ifndef OLD /* before rdma-core 28 */
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    (void)qp;
    if (!value("ece")) return EOPNOTSUPP;
    *ece = (struct ibv_ece){ .vendor_id = 0x2c9, .options = (uint32_t)number("ece", 0) };
    return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    ((struct pair *)qp)->extensions = ece->options;
    fprintf(stderr, "extensions %#x of %#x\n", ece->options, ece->vendor_id);
    return value("ece_refused") ? EINVAL : 0;
}
#endif
