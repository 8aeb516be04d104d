/*
 * The strict fabric: a libfabric of our own for tests, loaded as the real one is. Its providers
 * reach endpoints of the same process. They demand what the real ones may demand, and end the
 * program at any misuse:
 *
 *   - a registration used on an endpoint that it is not bound to, or not enabled, or made of
 *     memory that is not mapped;
 *   - a descriptor that is missing, closed, or of other memory;
 *   - an endpoint, queue, vector, domain or network closed before what was made of it;
 *   - a key used twice, ever;
 *   - a call on what was closed; a completion without room; a context in use twice, or written to;
 *   - hints that the library did not allocate, or fields of it that the caller must not know;
 *   - two threads inside of what is one thread's at a time.
 *
 * With -DLAYOUT_2 its structures are as long as those of libfabric 2.x. Of functions that take such
 * structures it has older versions, too, as the real one (one.map, two.map), which end the program.
 */
#include "strict.h"

#define ALL_ORDERS FI_ORDER_STRICT
#define ENDPOINT_SCOPED                                                                           \
    (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)

static const struct kind kinds[] = {
    {"strict", ENDPOINT_SCOPED, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, ALL_ORDERS, 0},
    {"strict-domain", FI_MR_LOCAL, FI_CONTEXT, 8, 8, ALL_ORDERS, 0},
    {"strict-short", FI_MR_LOCAL | FI_MR_ENDPOINT, FI_CONTEXT2, 4, 4, ALL_ORDERS, 0},
    {"strict-silent", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 0, FI_ORDER_SAS, 0},
    {"strict-again", ENDPOINT_SCOPED, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, ALL_ORDERS, SAYS_AGAIN},
    {"strict-again-short", FI_MR_LOCAL, FI_CONTEXT, 4, 4, FI_ORDER_SAS, SAYS_AGAIN},
    {"strict-again-unordered", ENDPOINT_SCOPED, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, FI_ORDER_SAS,
     SAYS_AGAIN},
    {"strict-memory", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, REFUSES_MEMORY},
    {"strict-inject", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, LIES_ABOUT_INJECT},
    {"strict-reads", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8,
     ALL_ORDERS & ~(FI_ORDER_WAR | FI_ORDER_SAR), 0},
    {"strict-strange", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, STRANGE},
    {"strict-overrun", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, OVERRUNS},
    {"strict-miscounts", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, MISCOUNTS},
    {"strict-delivery", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, NO_DELIVERY},
    {"strict-messages", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, NO_RMA},
    {"strict-prefix", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, PREFIXES},
    {"strict-failing", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FAILS},
    {"strict-deaf", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, DEAF},
    {"strict-away", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, STAYS_AWAY},
    {"strict-away-long", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS,
     STAYS_AWAY | REFUSES_LONG},
    {"strict-length", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, LIES_ABOUT_LENGTH},
    {"strict-regrets", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, OVERRUNS | REGRETS},
    /* as libfabric 1.17 has it */
    {"tcp", FI_MR_LOCAL, FI_CONTEXT, 8, 8, ALL_ORDERS, ONE_AT_A_TIME},
    /* one thread at a time at a queue and its endpoints, or at all */
    {"strict-completion", ENDPOINT_SCOPED, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, ALL_ORDERS,
     ONE_AT_QUEUE},
    {"strict-completion-shares", ENDPOINT_SCOPED, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, ALL_ORDERS,
     ONE_AT_QUEUE | SHARES_IF_SAFE},
    {"strict-completion-domain", FI_MR_LOCAL, FI_CONTEXT, 8, 8, ALL_ORDERS, ONE_AT_QUEUE},
    {"strict-one", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 0, ALL_ORDERS, ONE_IN_DOMAIN},
    {"strict-gpus", ENDPOINT_SCOPED | FI_MR_HMEM, FI_CONTEXT2 | FI_RX_CQ_DATA, 8, 8, ALL_ORDERS,
     REACHES_GPUS},
    {"strict-gpus-overrun", ENDPOINT_SCOPED | FI_MR_HMEM, FI_CONTEXT2, 8, 8, ALL_ORDERS,
     REACHES_GPUS | OVERRUNS},
    {"strict-gpus-domain", FI_MR_LOCAL | FI_MR_HMEM, FI_CONTEXT, 8, 8, ALL_ORDERS, REACHES_GPUS},
    {"strict-gpus-plain", ENDPOINT_SCOPED | FI_MR_HMEM, FI_CONTEXT2, 8, 8, ALL_ORDERS,
     REACHES_GPUS | REFUSES_DMABUFS},
    {"strict-gpus-dmabufs", ENDPOINT_SCOPED | FI_MR_HMEM, FI_CONTEXT2, 8, 8, ALL_ORDERS,
     REACHES_GPUS | DMABUFS_ALONE | OVERRUNS},
    {"strict-hmem", ENDPOINT_SCOPED | FI_MR_HMEM, FI_CONTEXT2, 8, 8, ALL_ORDERS, 0},
    /* what those of NICs do, and none of software */
    {"efa", ENDPOINT_SCOPED & ~FI_MR_ENDPOINT, 0, 4, 4, FI_ORDER_SAS,
     FORGETS_OPS | ORDERS_IF_ASKED | OWN_SHORTCUT},
    {"strict-forgets", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FORGETS_OPS},
    {"strict-asked", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 4, FI_ORDER_SAS, ORDERS_IF_ASKED},
    {"strict-direct", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, DIRECT_FIRST},
    {"cxi", FI_MR_ENDPOINT | FI_MR_ALLOCATED, 0, 4, 8, FI_ORDER_SAS, REFUSES_WORDS},
    {"strict-wordless", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, REFUSES_WORDS},
    {"strict-full", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, SAYS_NO_MEMORY},
    {"strict-fills", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FILLS_UP},
    {"strict-poor", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, LACKS_MEMORY},
    {"strict-cut", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, CUTS_WORDS},
    {"strict-beside", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FAILS_BESIDE},
    {"strict-again-wordless", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS,
     SAYS_AGAIN | REFUSES_WORDS},
    {"strict-eventless", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, REFUSES_EVENTS},
    {"strict-shuffled", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 0, 0, SHUFFLES},
    {"strict-queue", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, SHORT_QUEUES},
    {"strict-wolf", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, CRIES_WOLF},
    {"strict-dies", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, DIES},
    {"strict-flood", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FLOODS},
    {"strict-event-flood", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, FLOODS_EVENTS},
    /* as sockets do it */
    {"strict-lingers", ENDPOINT_SCOPED, FI_CONTEXT2, 8, 8, ALL_ORDERS, LINGERS},
    {"strict-tiny", FI_MR_LOCAL, FI_CONTEXT, 2, 8, ALL_ORDERS, 0},
    {"strict-unknown", FI_MR_LOCAL, FI_CONTEXT, 8, 8, ALL_ORDERS, NICS_UNKNOWN},
    {"strict-linkless", FI_MR_LOCAL, FI_CONTEXT, 8, 8, ALL_ORDERS, NICS_WITHOUT_LINK},
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void stop(const char *what) {
    fprintf(stderr, "STRICT: %s\n", what);
    abort();
}

/* ---------------------------------------------------------------- offers */

#define MARK 0x57121c7057121c70ull

/* What libfabric 2.x appended to fi_domain_attr, and nobody of 1.17 may touch. */
struct domain_attr {
    struct fi_domain_attr attr;
#ifdef LAYOUT_2
    uint64_t appended[4];
#endif
};

struct offer {
    uint64_t mark;
    struct fi_info info;
    struct fi_tx_attr tx;
    struct fi_rx_attr rx;
    struct fi_ep_attr ep;
    struct domain_attr domain;
    struct fi_fabric_attr fabric;
};

static struct offer *offer_of(const struct fi_info *info) {
    return (struct offer *)((char *)info - offsetof(struct offer, info));
}

struct fi_info *checked(const struct fi_info *info) {
    if (offer_of(info)->mark != MARK)
        stop("an offer that this library did not allocate");
#ifdef LAYOUT_2
    for (int n = 0; n < 4; n++)
        if (offer_of(info)->domain.appended[n] != ~MARK)
            stop("a field of libfabric 2 written by a caller of 1.17");
#endif
    return (struct fi_info *)info;
}

static struct offer *offer_new(void) {
    struct offer *offer = calloc(1, sizeof *offer);
    offer->mark = MARK;
    offer->info.tx_attr = &offer->tx;
    offer->info.rx_attr = &offer->rx;
    offer->info.ep_attr = &offer->ep;
    offer->info.domain_attr = &offer->domain.attr;
    offer->info.fabric_attr = &offer->fabric;
#ifdef LAYOUT_2
    for (int n = 0; n < 4; n++)
        offer->domain.appended[n] = ~MARK;
#endif
    return offer;
}

static char *text_copy(const char *text) { return text ? strdup(text) : NULL; }

PUBLIC struct fi_info *fi_dupinfo(const struct fi_info *info) {
    struct offer *offer = offer_new();
    if (!info)
        return &offer->info;
    const struct offer *from = offer_of(checked(info));
    offer->info.caps = info->caps;
    offer->info.mode = info->mode;
    offer->info.addr_format = info->addr_format;
    offer->tx = from->tx;
    offer->rx = from->rx;
    offer->ep = from->ep;
    offer->domain = from->domain;
    offer->fabric = from->fabric;
    offer->info.nic = info->nic;
    offer->domain.attr.name = text_copy(from->domain.attr.name);
    offer->fabric.prov_name = text_copy(from->fabric.prov_name);
    offer->fabric.name = text_copy(from->fabric.name);
    return &offer->info;
}

PUBLIC void fi_freeinfo(struct fi_info *info) {
    while (info) {
        struct offer *offer = offer_of(checked(info));
        info = info->next;
        free(offer->domain.attr.name);
        free(offer->fabric.prov_name);
        free(offer->fabric.name);
        offer->mark = 0;
        free(offer);
    }
}

/* A device of 200 Gbit/s, as far as the provider knows it. */
static struct fid_nic *nic_of_kind(const struct kind *kind) {
    static struct fi_link_attr link = {.speed = 200000000000ull};
    static struct fid_nic known = {.link_attr = &link}, linkless;
    return kind->faults & NICS_UNKNOWN ? NULL
           : kind->faults & NICS_WITHOUT_LINK ? &linkless : &known;
}

static struct fi_info *offer_of_kind(const struct kind *kind, const struct fi_info *hints) {
    int shares = kind->faults & SHARES_IF_SAFE;
    shares = shares && hints->domain_attr->threading == FI_THREAD_SAFE;
    enum fi_threading threading = kind->faults & ONE_IN_DOMAIN           ? FI_THREAD_DOMAIN
                                  : kind->faults & ONE_AT_QUEUE && !shares ? FI_THREAD_COMPLETION
                                                                         : FI_THREAD_SAFE;
    uint64_t caps = FI_MSG | FI_RMA | FI_ATOMIC;
    if (kind->faults & REACHES_GPUS)
        caps |= hints->caps & FI_HMEM; /* not unless it is asked for */
    if (kind->faults & NO_RMA)
        caps = FI_MSG;
    else if (hints->caps & ~caps)
        return NULL;
    if ((kind->faults & NO_DELIVERY) && (hints->tx_attr->op_flags & FI_DELIVERY_COMPLETE))
        return NULL;
    if (kind->mr_mode & ~hints->domain_attr->mr_mode || kind->mode & ~hints->mode)
        return NULL;
    if (hints->ep_attr->type != FI_EP_RDM && hints->ep_attr->type != FI_EP_UNSPEC)
        return NULL;
    if (hints->domain_attr->threading == FI_THREAD_SAFE && threading != FI_THREAD_SAFE)
        return NULL;
    struct offer *offer = offer_new();
    offer->info.caps = caps;
    offer->info.mode = kind->mode | (kind->faults & PREFIXES ? FI_MSG_PREFIX : 0);
    offer->tx.op_flags = hints->tx_attr->op_flags;
    offer->tx.msg_order = offer->rx.msg_order = kind->order;
    if (kind->faults & ORDERS_IF_ASKED) {
        offer->tx.msg_order &= hints->tx_attr->msg_order;
        offer->rx.msg_order &= hints->rx_attr->msg_order;
    } else if ((hints->tx_attr->msg_order | hints->rx_attr->msg_order) & ~kind->order) {
        fi_freeinfo(&offer->info);
        return NULL;
    }
    offer->tx.inject_size = 128;
    offer->tx.size = offer->rx.size = 1024;
    offer->ep.type = FI_EP_RDM;
    offer->ep.rx_ctx_cnt = shares ? FI_SHARED_CONTEXT : 1;
    offer->ep.max_msg_size = 1ull << 40;
    offer->ep.max_order_raw_size = offer->ep.max_order_war_size = 1ull << 40;
    offer->ep.max_order_waw_size = 1ull << 40;
    offer->domain.attr.name = strdup("strict0");
    offer->domain.attr.threading = threading;
    offer->domain.attr.control_progress = offer->domain.attr.data_progress = FI_PROGRESS_MANUAL;
    offer->domain.attr.mr_mode = kind->mr_mode;
    offer->domain.attr.mr_key_size = kind->key_bytes;
    offer->domain.attr.cq_data_size = kind->data_bytes;
    offer->fabric.prov_name = strdup(kind->name);
    offer->fabric.name = strdup("strict");
    offer->info.nic = nic_of_kind(kind);
    return &offer->info;
}

PUBLIC uint32_t fi_version(void) {
#ifdef LAYOUT_2
    return FI_VERSION(2, 6);
#else
    return FI_VERSION(1, 17);
#endif
}

PUBLIC int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **out) {
    (void)node, (void)service, (void)flags;
    uint32_t own = fi_version(), known = FI_VERSION(1, 18);
    if (version != (own < known ? own : known))
        stop("another API version than the newest that both sides know");
    checked(hints);
    struct fi_info **last = out;
    *out = NULL;
    const char *wanted = hints->fabric_attr->prov_name;
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) {
        if (wanted && strcmp(wanted, kinds[n].name))
            continue;
        if ((*last = offer_of_kind(&kinds[n], hints))) {
            if (kinds[n].faults & DIRECT_FIRST) {
                free((*last)->fabric_attr->name);
                (*last)->fabric_attr->name = strdup(OTHER_NETWORK);
                last = &(*last)->next;
                *last = offer_of_kind(&kinds[n], hints);
            }
            last = &(*last)->next;
        }
    }
    return *out ? 0 : -FI_ENODATA;
}

/* What programs get that were linked with an older library, whose structures are shorter. */
#ifdef LAYOUT_2
#define BEFORE "FABRIC_1.3"
#else
#define BEFORE "FABRIC_1.2"
#endif
#define OLDER(name, version)                                                                      \
    __asm__(".symver older_" #name ", " #name "@" version);                                       \
    PUBLIC void older_##name(void) {                                                              \
        stop("a function of an older library's, which takes shorter structures");                 \
    }
OLDER(fi_getinfo, BEFORE)
OLDER(fi_freeinfo, BEFORE)
OLDER(fi_dupinfo, BEFORE)
OLDER(fi_fabric, "FABRIC_1.0")

PUBLIC const char *fi_strerror(int code) { return strerror(code); }

/* ---------------------------------------------------------------- network and domain */

static int close_fabric(struct fid *fid) {
    struct fabric *fabric = (struct fabric *)fid;
    if (!fabric->is_open)
        stop("a network closed twice");
    if (fabric->domains)
        stop("a network closed before its domains");
    if (fabric->others)
        stop("a network closed before its event queues");
    fabric->is_open = 0;
    return 0;
}

static int close_domain(struct fid *fid) {
    struct domain *domain = (struct domain *)fid;
    if (!domain->is_open)
        stop("a domain closed twice");
    if (domain->objects)
        stop("a domain closed before what was made of it");
    domain->is_open = 0;
    domain->fabric->domains--;
    return 0;
}

static int no_bind(struct fid *fid, struct fid *other, uint64_t flags) {
    (void)fid, (void)other, (void)flags;
    return -FI_ENOSYS;
}

static int no_control(struct fid *fid, int command, void *argument) {
    (void)fid, (void)command, (void)argument;
    return -FI_ENOSYS;
}

static int open_domain(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **out,
                       void *ours) {
    static struct fi_ops fid_ops = {sizeof fid_ops, close_domain, no_bind, no_control,
                                    NULL, NULL, NULL};
    static struct fi_ops_domain ops = {.size = sizeof ops,
                                       .av_open = open_vector,
                                       .cq_open = open_queue,
                                       .endpoint = open_endpoint};
    static struct fi_ops_mr mr = {.size = sizeof mr,
                                  .reg = register_memory,
                                  .regattr = register_attr};
    struct fabric *fabric = (struct fabric *)fid;
    checked(info);
    if (!fabric->is_open)
        stop("a domain of a closed network");
    struct domain *domain = calloc(1, sizeof *domain); /* never freed: see "a call on" */
    domain->fid.fid = (struct fid){FI_CLASS_DOMAIN, ours, &fid_ops};
    domain->fid.ops = &ops;
    domain->fid.mr = &mr;
    domain->is_open = 1;
    domain->kind = fabric->kind;
    domain->has_gpus = (info->caps & FI_HMEM) != 0;
    domain->fabric = fabric;
    domain->next_key = 0xc0de000000000000ull;
    fabric->domains++;
    *out = &domain->fid;
    return 0;
}

PUBLIC int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *ours) {
    static struct fi_ops fid_ops = {sizeof fid_ops, close_fabric, no_bind, no_control,
                                    NULL, NULL, NULL};
    static struct fi_ops_fabric ops = {.size = sizeof ops,
                                       .domain = open_domain,
                                       .eq_open = open_events};
    struct fabric *fabric = calloc(1, sizeof *fabric);
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++)
        if (attr->prov_name && !strcmp(attr->prov_name, kinds[n].name))
            fabric->kind = &kinds[n];
    if (!fabric->kind)
        stop("a network of no provider");
    if (attr->name && !strcmp(attr->name, OTHER_NETWORK))
        stop("a network whose endpoints are no good here");
    fabric->fid.fid = (struct fid){FI_CLASS_FABRIC, ours, &fid_ops};
    fabric->fid.ops = &ops;
    fabric->is_open = 1;
    *out = &fabric->fid;
    return 0;
}
