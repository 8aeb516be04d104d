/* The strict fabric: endpoints, and what is posted to them. See strict.c. */
#include "strict.h"

#define CONTEXTS_MAX 65536
#define INJECT_MAX 128

static struct {
    void *context;
    struct endpoint *owner;
} contexts[CONTEXTS_MAX];
static size_t context_count;

static size_t context_bytes(const struct kind *kind) {
    return kind->mode & FI_CONTEXT2 ? sizeof(struct fi_context2) : sizeof(struct fi_context);
}

/* The library keeps something in a context until its op has ended. */
static void context_take(struct endpoint *ep, void *context) {
    if (!context)
        stop("an op without a context");
    for (size_t n = 0; n < context_count; n++)
        if (contexts[n].context == context)
            stop("a context used by two ops at a time");
    if (context_count == CONTEXTS_MAX)
        stop("more ops in flight than this library was made for");
    contexts[context_count].context = context;
    contexts[context_count++].owner = ep;
    memset(context, 0xc5, context_bytes(ep->domain->kind));
}

static void context_give(const struct kind *kind, void *context) {
    for (size_t n = 0; n < context_bytes(kind); n++)
        if (((unsigned char *)context)[n] != 0xc5)
            stop("a context written to while its op was in flight");
    for (size_t n = 0; n < context_count; n++)
        if (contexts[n].context == context) {
            contexts[n] = contexts[--context_count];
            return;
        }
    stop("a completion of an op that is not in flight");
}

static uint64_t sum_of(const char *start, size_t length) {
    uint64_t sum = 14695981039346656037ull;
    for (size_t n = 0; n < length; n++)
        sum = (sum ^ (unsigned char)start[n]) * 1099511628211ull;
    return sum;
}

static void complete(struct queue *queue, struct fi_cq_data_entry entry, int err) {
    if (queue->count == queue->capacity)
        stop("a completion without room: it is lost");
    queue->items[(queue->head + queue->count++) % queue->capacity] = (struct item){entry, err};
}

static void end_op(struct op *op, int err) {
    if (op->lingers) { /* its endpoint has gone */
        free(op->start);
        free(op);
        return;
    }
    static const uint64_t flags[] = {FI_MSG | FI_SEND, FI_RMA | FI_WRITE, FI_RMA | FI_READ,
                                     FI_ATOMIC | FI_WRITE};
    struct endpoint *from = op->from;
    if (!op->copy && from->is_open) {
        context_give(from->domain->kind, op->context);
        complete(from->queue, (struct fi_cq_data_entry){op->context, flags[op->verb], 0, NULL, 0},
                 err);
    }
    if (from->is_open && from->domain->kind->faults & STRANGE) {
        static char nobody[64];
        complete(from->queue,
                 (struct fi_cq_data_entry){nobody, FI_MSG | FI_SEND, 0, NULL, 0}, 0);
    }
    free(op->copy);
    free(op);
}

/* Memory of the caller's, by its descriptor. */
static void check_local(struct endpoint *ep, void *descriptor, const void *start, size_t length) {
    struct region *region = descriptor;
    struct region *known = regions;
    while (known && known != region)
        known = known->next;
    if (!known)
        stop("a descriptor that is none");
    if (!region->is_open)
        stop("a descriptor of a registration that was closed");
    if (region->domain->kind->mr_mode & FI_MR_ENDPOINT && region->bound != ep)
        stop("a registration used on an endpoint that it is not bound to");
    if (!region->is_enabled)
        stop("a registration used that was not enabled");
    const char *first = start;
    if (first < region->start || first + length > region->start + region->length)
        stop("a descriptor of other memory");
}

/* Memory of the peer's, by its key. */
static char *check_remote(struct endpoint *ep, const struct op *op, uint64_t access) {
    for (struct region *region = regions; region; region = region->next) {
        if (!region->is_open || region->domain != ep->domain || region->fid.key != op->key)
            continue;
        if (region->domain->kind->mr_mode & FI_MR_ENDPOINT && region->bound != ep)
            stop("a key used on an endpoint that its registration is not bound to");
        if (!region->is_enabled)
            stop("a key used of a registration that was not enabled");
        if (!(region->access & access))
            stop("a key used for what its registration does not allow");
        int by_address = region->domain->kind->mr_mode & FI_MR_VIRT_ADDR;
        uint64_t offset = op->address - (by_address ? (uint64_t)(uintptr_t)region->start : 0);
        if (offset > region->length || op->length > region->length - offset)
            stop("a key used for other memory");
        return region->start + offset;
    }
    stop("a key that names no registration");
    return NULL;
}

static struct op *receive_take(struct endpoint *ep) {
    struct op *receive = ep->receives;
    if (receive)
        ep->receives = receive->next;
    return receive;
}

/* Of a strange provider's receives, those that end twice: messages that are held when they came. */
enum { TWICE_MIN = 512 };

static void received(struct endpoint *ep, struct op *receive, uint64_t flags, size_t length,
                     uint64_t data) {
    struct fi_cq_data_entry entry = {receive->context, flags, length, NULL, data};
    context_give(ep->domain->kind, receive->context);
    complete(ep->queue, entry, 0);
    if (ep->domain->kind->faults & STRANGE && length >= TWICE_MIN)
        complete(ep->queue, entry, 0);
    free(receive);
}

/* Whoever is taken out of a vector: what was posted to it is given back by nobody. */
void forget_ops(struct vector *vector, struct endpoint *peer) {
    for (struct op **list = &peer->inbound; *list;) {
        struct op *op = *list;
        if (op->from->vector != vector) {
            list = &op->next;
            continue;
        }
        *list = op->next;
        if (!op->copy)
            context_give(op->from->domain->kind, op->context);
        free(op->copy);
        free(op);
    }
}

/* The message that was sent last is carried out first. */
static void shuffle(struct endpoint *ep) {
    struct op **last = NULL;
    for (struct op **list = &ep->inbound; *list; list = &(*list)->next)
        if ((*list)->verb == SEND)
            last = list;
    if (!last)
        return;
    struct op *op = *last;
    *last = op->next;
    op->next = ep->inbound;
    ep->inbound = op;
}

/* One read that ends late, with an error. */
static enum { NOT_HELD, NEXT_HELD, HELD } hold;

/* 1: the next read is held, and what is posted behind it goes by; 0: it fails. */
PUBLIC void strict_hold(int on) {
    pthread_mutex_lock(&lock);
    hold = on ? NEXT_HELD : NOT_HELD;
    pthread_mutex_unlock(&lock);
}

/* Carries one op out. 0: it must wait for a receive. */
static int carry_out(struct endpoint *ep, struct op *op) {
    const struct kind *kind = ep->domain->kind;
    char *source = op->copy ? op->copy : op->start;
    if (op->verb == SEND) {
        struct op *receive = receive_take(ep);
        if (!receive)
            return 0;
        if (sum_of(source, op->length) != op->sum)
            stop("a message written to while it was in flight");
        if (op->length > receive->length)
            stop("a message longer than its receive");
        memcpy(receive->start, source, op->length);
        received(ep, receive, FI_MSG | FI_RECV, op->length, 0);
        return 1;
    }
    if (kind->faults & FAILS || op->held)
        return end_op(op, FI_EIO), 2;
    char *target = check_remote(ep, op, op->verb == READ ? FI_REMOTE_READ : FI_REMOTE_WRITE);
    uint64_t word;
    switch (op->verb) {
    case READ:
        copy(op->start, target, op->length);
        break;
    case ADD:
        memcpy(&word, op->start, sizeof word);
        __atomic_fetch_add((uint64_t *)target, word, __ATOMIC_SEQ_CST);
        break;
    default:
        if (op->flags & FI_REMOTE_CQ_DATA) {
            uint64_t flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            if (kind->faults & CUTS_WORDS)
                op->data &= 0xffffffff;
            struct op *receive = NULL;
            if (kind->mode & FI_RX_CQ_DATA && !(receive = receive_take(ep)))
                return 0;
            copy(target, op->start, op->length);
            if (receive)
                received(ep, receive, flags, op->length, op->data);
            else
                complete(ep->queue, (struct fi_cq_data_entry){NULL, flags, op->length, NULL,
                                                               op->data}, 0);
        } else {
            copy(target, op->start, op->length);
        }
    }
    return 1;
}

/* A path that goes silent: of two endpoints, one of which posts the next op to the other. What
 * either posts to the other from then on is carried out when the path is let go, and not before. */
static enum { OPEN, ARMED, ARMED_FOR_SEND, SILENT } path;
static struct endpoint *path_ends[2];

/* Shorter writes are words that control it. */
enum { PAYLOAD_MIN = 4096 };

/* 1: the path of the next write of payload goes silent; 2: of the next send; 0: it is let go. */
PUBLIC void strict_silence(int how) {
    pthread_mutex_lock(&lock);
    path = how == 2 ? ARMED_FOR_SEND : how ? ARMED : OPEN;
    pthread_mutex_unlock(&lock);
}

/* Whether there was such an op since. */
PUBLIC int strict_is_silent(void) { return path == SILENT; }

/* Its endpoint is closed: the kernel has a copy of what it had written. */
static void linger(struct endpoint *ep) {
    for (size_t n = 0; ep->vector && n < 256; n++) {
        struct endpoint *peer = ep->vector->ends[n];
        for (struct op *op = peer ? peer->inbound : NULL; op; op = op->next)
            if (op->from == ep && op->verb == WRITE && !op->lingers) {
                op->start = copy(malloc(op->length), op->start, op->length);
                op->lingers = 1;
            }
    }
}

/* One of the writes that closed endpoints have left. */
static void look_at_lingering(struct endpoint *ep) {
    for (struct op **list = &ep->inbound; *list; list = &(*list)->next) {
        struct op *op = *list;
        if (!op->lingers)
            continue;
        *list = op->next;
        copy(check_remote(ep, op, FI_REMOTE_WRITE), op->start, op->length);
        end_op(op, 0);
        return;
    }
}

static int is_silent(const struct op *op, const struct endpoint *to) {
    const struct endpoint *from = op->from;
    return path == SILENT && from->is_open &&
           ((from == path_ends[0] && to == path_ends[1]) ||
            (from == path_ends[1] && to == path_ends[0]));
}

void move_on(struct endpoint *ep) {
    int shuffles = ep->domain->kind->faults & SHUFFLES;
    if (shuffles && ep->queue->reads++ % 2)
        return;
    look_at_lingering(ep);
    struct op **first = &ep->inbound;
    for (int n = 0; n < (shuffles ? 1 : 64) && *first; n++) {
        if (shuffles)
            shuffle(ep);
        while (*first && ((*first)->lingers || is_silent(*first, ep) ||
                          ((*first)->held && hold == HELD)))
            first = &(*first)->next;
        struct op *op = *first;
        if (!op)
            return;
        if (ep->domain->kind->faults & DEAF && op->verb != SEND) {
            *first = op->next; /* nobody ever hears of it */
            continue;
        }
        struct op *next = op->next;
        int done = op->from->is_open ? carry_out(ep, op) : 1;
        if (!done)
            return;
        *first = next;
        if (done == 1)
            end_op(op, 0);
    }
}

/* What a provider says that has no memory for a post; 0: it has. */
static int lacks_memory(struct endpoint *ep) {
    uint64_t faults = ep->domain->kind->faults;
    if (!(faults & (SAYS_NO_MEMORY | LACKS_MEMORY)))
        return 0;
    int n = ep->posts++;
    if (faults & LACKS_MEMORY)
        return n < 20 ? 0 : -FI_ENOMEM;
    return n % 2 ? 0 : n % 4 ? -FI_ENOBUFS : -FI_ENOMEM;
}

static _Atomic int is_full;

/* 1: endpoints that fill up have no room from now on; 0: they have. */
PUBLIC void strict_fill(int on) { is_full = on; }

static ssize_t post_inside(struct endpoint *ep, struct op op, fi_addr_t to, void *descriptor,
                           int inject) {
    pthread_mutex_lock(&lock);
    if (!ep->is_open)
        stop("an op posted to a closed endpoint");
    if (!ep->is_enabled)
        stop("an op posted to an endpoint that was not enabled");
    if (ep->domain->kind->faults & SAYS_AGAIN && op.verb != RECEIVE && ep->posts++ % 2 == 0) {
        pthread_mutex_unlock(&lock);
        return -FI_EAGAIN;
    }
    if (ep->domain->kind->faults & FILLS_UP && op.verb != RECEIVE && is_full) {
        pthread_mutex_unlock(&lock);
        return -FI_EAGAIN;
    }
    int lacks = op.verb == RECEIVE ? 0 : lacks_memory(ep);
    if (lacks) {
        pthread_mutex_unlock(&lock);
        return lacks;
    }
    struct op *made = malloc(sizeof *made);
    *made = op;
    made->from = ep;
    made->copy = NULL;
    made->next = NULL;
    made->lingers = 0;
    made->held = op.verb == READ && hold == NEXT_HELD;
    if (made->held)
        hold = HELD;
    if (inject) {
        made->copy = malloc(op.length);
        memcpy(made->copy, op.start, op.length);
    } else {
        check_local(ep, descriptor, op.start, op.length);
        context_take(ep, op.context);
    }
    if (op.verb == SEND)
        made->sum = sum_of(op.start, op.length);
    struct op **list = &ep->receives;
    if (op.verb != RECEIVE) {
        struct endpoint *peer = to < 256 ? ep->vector->ends[to] : NULL;
        if (!peer)
            stop("an op to an address that is not in the vector");
        if (!peer->is_open) {
            end_op(made, FI_ECONNREFUSED);
            pthread_mutex_unlock(&lock);
            return 0;
        }
        list = &peer->inbound;
        if ((path == ARMED && op.verb == WRITE && op.length >= PAYLOAD_MIN) ||
            (path == ARMED_FOR_SEND && op.verb == SEND)) {
            path = SILENT;
            path_ends[0] = ep;
            path_ends[1] = peer;
        }
    }
    while (*list)
        list = &(*list)->next;
    *list = made;
    pthread_mutex_unlock(&lock);
    return 0;
}

static ssize_t post(struct fid_ep *fid, struct op op, fi_addr_t to, void *descriptor, int inject) {
    struct endpoint *ep = (struct endpoint *)fid;
    enter(ep->domain, ep->queue);
    ssize_t posted = post_inside(ep, op, to, descriptor, inject);
    leave(ep->domain, ep->queue);
    return posted;
}

static ssize_t post_receive(struct fid_ep *fid, void *start, size_t length, void *descriptor,
                            fi_addr_t from, void *context) {
    if (from != FI_ADDR_UNSPEC)
        stop("a receive from one peer");
    struct op op = {.verb = RECEIVE, .context = context, .start = start, .length = length};
    return post(fid, op, 0, descriptor, 0);
}

static _Atomic size_t message_bytes;

/* How many bytes the messages have that were ever posted. */
PUBLIC size_t strict_message_bytes(void) { return message_bytes; }

static ssize_t post_message(struct fid_ep *fid, struct op op, fi_addr_t to, void *descriptor,
                            int injects) {
    size_t length = op.length;
    ssize_t code = post(fid, op, to, descriptor, injects);
    if (code == 0)
        message_bytes += length;
    return code;
}

static ssize_t post_send(struct fid_ep *fid, const void *start, size_t length, void *descriptor,
                         fi_addr_t to, void *context) {
    struct op op = {.verb = SEND, .context = context, .start = (char *)start, .length = length};
    return post_message(fid, op, to, descriptor, 0);
}

static ssize_t post_inject(struct fid_ep *fid, const void *start, size_t length, fi_addr_t to) {
    struct endpoint *ep = (struct endpoint *)fid;
    if (length > INJECT_MAX)
        stop("more injected than the provider takes");
    if (ep->domain->kind->faults & LIES_ABOUT_INJECT && length > 16)
        return -FI_EMSGSIZE;
    struct op op = {.verb = SEND, .start = (char *)start, .length = length};
    return post_message(fid, op, to, NULL, 1);
}

static struct op op_of(enum verb verb, const struct fi_msg_rma *msg, uint64_t flags) {
    if (msg->iov_count != 1 || msg->rma_iov_count != 1)
        stop("an op of several parts");
    if (msg->msg_iov->iov_len != msg->rma_iov->len)
        stop("an op of two lengths");
    return (struct op){.verb = verb,
                       .context = msg->context,
                       .start = msg->msg_iov->iov_base,
                       .length = msg->msg_iov->iov_len,
                       .data = msg->data,
                       .flags = flags,
                       .address = msg->rma_iov->addr,
                       .key = msg->rma_iov->key};
}

static ssize_t post_write(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) {
    struct endpoint *ep = (struct endpoint *)fid;
    if (!(flags & FI_DELIVERY_COMPLETE))
        stop("a write whose end says nothing of its bytes");
    if (flags & FI_REMOTE_CQ_DATA && ep->domain->kind->data_bytes < 8)
        stop("a word longer than the provider carries");
    if (flags & FI_REMOTE_CQ_DATA && ep->domain->kind->faults & REFUSES_WORDS)
        return -FI_EBADFLAGS;
    if (ep->domain->kind->faults & LIES_ABOUT_LENGTH && msg->msg_iov->iov_len > 32768)
        return -FI_EMSGSIZE;
    return post(fid, op_of(WRITE, msg, flags), msg->addr, *msg->desc, 0);
}

static ssize_t post_read(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) {
    return post(fid, op_of(READ, msg, flags), msg->addr, *msg->desc, 0);
}

static ssize_t post_add(struct fid_ep *fid, const struct fi_msg_atomic *msg, uint64_t flags) {
    if (msg->datatype != FI_UINT64 || msg->op != FI_SUM || msg->rma_iov->count != 1)
        stop("an atomic that is no add to one word");
    struct op op = {.verb = ADD,
                    .context = msg->context,
                    .start = msg->msg_iov->addr,
                    .length = sizeof(uint64_t),
                    .flags = flags,
                    .address = msg->rma_iov->addr,
                    .key = msg->rma_iov->key};
    return post(fid, op, msg->addr, *msg->desc, 0);
}

static int adds_alone(struct fid_ep *fid, enum fi_datatype type, enum fi_op op, size_t *count) {
    (void)fid;
    *count = 1;
    return type == FI_UINT64 && op == FI_SUM ? 0 : -FI_EOPNOTSUPP;
}

/* ---------------------------------------------------------------- endpoints */

static int close_endpoint(struct fid *fid) {
    struct endpoint *ep = (struct endpoint *)fid;
    enter(ep->domain, ep->queue);
    pthread_mutex_lock(&lock);
    if (!ep->is_open)
        stop("an endpoint closed twice");
    if (ep->regions)
        stop("an endpoint closed before its registrations");
    if (ep->domain->kind->faults & LINGERS)
        linger(ep);
    ep->is_open = 0;
    if (ep->queue) {
        struct endpoint **list = &ep->queue->endpoints;
        while (*list != ep)
            list = &(*list)->next;
        *list = ep->next;
        ep->queue->users--;
    }
    if (ep->events)
        ep->events->users--;
    if (ep->vector)
        ep->vector->users--;
    ep->domain->objects--;
    for (struct op *receive; (receive = receive_take(ep)); free(receive))
        context_give(ep->domain->kind, receive->context);
    for (struct op *op = ep->inbound; op;) {
        struct op *next = op->next;
        end_op(op, FI_ECONNRESET);
        op = next;
    }
    ep->inbound = NULL;
    for (size_t n = context_count; n-- > 0;) /* what peers still have of it */
        if (contexts[n].owner == ep)
            contexts[n] = contexts[--context_count];
    pthread_mutex_unlock(&lock);
    leave(ep->domain, ep->queue);
    return 0;
}

static int bind_endpoint(struct fid *fid, struct fid *other, uint64_t flags) {
    struct endpoint *ep = (struct endpoint *)fid;
    if (ep->is_enabled)
        stop("an endpoint joined to something after it was enabled");
    struct queue *queue = ep->queue;
    enter(ep->domain, queue);
    pthread_mutex_lock(&lock);
    if (other->fclass == FI_CLASS_CQ && flags == (FI_SEND | FI_RECV)) {
        ep->queue = (struct queue *)other;
        ep->next = ep->queue->endpoints;
        ep->queue->endpoints = ep;
        ep->queue->users++;
    } else if (other->fclass == FI_CLASS_EQ && ep->domain->kind->faults & REFUSES_EVENTS) {
        pthread_mutex_unlock(&lock);
        leave(ep->domain, queue);
        return -FI_EINVAL;
    } else if (other->fclass == FI_CLASS_EQ) {
        bind_events(ep, (struct events *)other);
    } else if (other->fclass == FI_CLASS_AV) {
        ep->vector = (struct vector *)other;
        ep->vector->users++;
    } else {
        stop("an endpoint joined to what it has no use for");
    }
    pthread_mutex_unlock(&lock);
    leave(ep->domain, queue);
    return 0;
}

static int control_endpoint(struct fid *fid, int command, void *argument) {
    struct endpoint *ep = (struct endpoint *)fid;
    (void)argument;
    if (command != FI_ENABLE)
        return -FI_ENOSYS;
    if (!ep->queue || !ep->vector)
        stop("an endpoint enabled without a queue, or without a vector");
    if (ep->has_shortcut)
        stop("an endpoint that goes another way within its host");
    enter(ep->domain, ep->queue);
    ep->is_enabled = 1;
    leave(ep->domain, ep->queue);
    return 0;
}

static int name_of(fid_t fid, void *out, size_t *length) {
    if (*length < sizeof fid)
        return -FI_ETOOSMALL;
    memcpy(out, &fid, sizeof fid);
    *length = sizeof fid;
    return 0;
}

/* The option of 1.21 and later, which 1.17's headers do not name. */
enum { SHARED_MEMORY_PERMITTED = FI_OPT_XPU_TRIGGER + 2 };

static int set_option(struct fid *fid, int level, int name, const void *value, size_t length) {
    struct endpoint *ep = (struct endpoint *)fid;
    if (level != FI_OPT_ENDPOINT || !(ep->domain->kind->faults & OWN_SHORTCUT))
        return -FI_ENOPROTOOPT;
    if (name != SHARED_MEMORY_PERMITTED)
        return -FI_ENOPROTOOPT;
    if (length != sizeof(_Bool) || ep->is_enabled)
        stop("an option of another length, or after the endpoint was enabled");
    ep->has_shortcut = *(const _Bool *)value;
    return 0;
}

int open_endpoint(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *ours) {
    static struct fi_ops fid_ops = {sizeof fid_ops, close_endpoint, bind_endpoint,
                                    control_endpoint, NULL, NULL, NULL};
    static struct fi_ops_cm cm = {.size = sizeof cm, .getname = name_of};
    static struct fi_ops_msg msg = {.size = sizeof msg,
                                    .recv = post_receive,
                                    .send = post_send,
                                    .inject = post_inject};
    static struct fi_ops_rma rma = {.size = sizeof rma,
                                    .readmsg = post_read,
                                    .writemsg = post_write};
    static struct fi_ops_atomic atomic = {.size = sizeof atomic,
                                          .writemsg = post_add,
                                          .writevalid = adds_alone};
    static struct fi_ops_ep options = {.size = sizeof options, .setopt = set_option};
    checked(info);
    if (info->tx_attr->op_flags & FI_DELIVERY_COMPLETE)
        stop("an endpoint whose sends wait for delivery");
    /* of each of the two kinds, whatever other tests open */
    static int opened[2];
    uint64_t faults = ((struct domain *)fid)->kind->faults;
    int *count = &opened[!!(faults & REFUSES_LONG)];
    if (faults & STAYS_AWAY && (++*count == 3 || *count == 4))
        return -FI_ENODEV;
    struct endpoint *ep = calloc(1, sizeof *ep);
    ep->fid.fid = (struct fid){FI_CLASS_EP, ours, &fid_ops};
    ep->fid.cm = &cm;
    ep->fid.msg = &msg;
    ep->fid.rma = &rma;
    ep->fid.atomic = &atomic;
    ep->fid.ops = &options;
    ep->is_open = 1;
    ep->domain = (struct domain *)fid;
    ep->has_shortcut = ep->domain->kind->faults & OWN_SHORTCUT;
    if (info->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT)
        stop("an endpoint without receives of its own");
    enter(ep->domain, NULL);
    pthread_mutex_lock(&lock);
    ep->domain->objects++;
    pthread_mutex_unlock(&lock);
    leave(ep->domain, NULL);
    *out = &ep->fid;
    return 0;
}
