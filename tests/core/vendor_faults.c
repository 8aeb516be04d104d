// The provider of examples-c/vendor_provider.c with one fault planted at a time: for each of them
// the suite says which entry found it. Then tables, caps and blobs that cannot be.
#define VENDOR_PROVIDER_ALONE
#include "../../examples-c/vendor_provider.c"

#include <stdlib.h>

typedef enum {
    NONE,
    HALF_WRITE,
    REFUSED_BUT_WRITTEN,
    REFUSED_BUT_SENT,
    FORGETS_COMPLETION,
    REPEATS_COMPLETION,
    LOSES_BEYOND_SLICE,
    IGNORES_BUDGET,
    ALLOCATES,
    SWAPS_MESSAGES,
    SEND_OVERTAKES,
    IMMEDIATE_FIRST,
    READS_BESIDE,
    ADDS_HALF,
    DROPS_EMPTY,
    CUTS_LONGEST,
    SENDS_LATE,
    BREAKS_LINE,
    BREAKS_HEAD,
    SERVES_ANOTHER,
    LEAKS_SLOT,
    CUTS_TO_CAPS,
    SWALLOWS_ERRORS,
    SPEAKS_AFTER_DOWN,
    ACCEPTS_FOR_THE_DEAD,
    WRONG_ID,
    TAKES_STALE_KEYS,
    FORGETS_RANGES,
    DEREGISTERS_EARLY,
    OWN_DICE,
    CLOSES_ANYWAY,
    FENCES_IN_NAME_ONLY,
    ROUNDS_READ_TARGETS,
    ROUNDS_READ_SOURCES,
    ROUNDS_WRITE_TARGETS,
    ROUNDS_WRITE_SOURCES,
    ROUNDS_LINE_TARGETS,
    WORDS_OF_31_BITS,
    LINES_LOSE_WORDS,
    LOSES_NEGATIVE_ADDS,
    ADDS_OF_63_BITS,
    SUMS_OF_63_BITS,
    GENERATIONS_OF_8_BITS,
    TELLS_ANOTHER_CAUSE,
    ENDS_WELL_WHAT_DEATH_CUT_OFF,
    REFUSES_SHORT_REGIONS,
    TAKES_EMPTY_REGIONS,
    TAKES_REGIONS_THAT_WRAP,
    CHANGES_CAPS,
    THROWS_AWAY_WHAT_CAME,
    TELLS_ENDS_LAST,
    TAKES_MORE_REGIONS,
    TAKES_ANY_MEMORY,
    PROMISES_MORE_RECEIVES,
    WRITES_THEN_REFUSES_WORD,
    LEAKS_HELD_AT_CLOSE,
    FREES_HELD_AT_DETACH,
    OWN_POSTS_PASS_FENCE,
    OWN_OPS_OUTLIVE_FENCE,
    LONG_WRITE_OVERTAKEN,
    LONG_IMMEDIATE_FIRST,
    CUTS_LONG_WRITES,
    CUTS_LONG_READS,
    WRITES_OVERTAKE,
    LINES_OVERTAKE,
    ADDS_OVERTAKE,
    READS_OVERTAKE,
    POST_ANSWERS_NONSENSE,
    REFUSES_WITHIN_CAPS,
    FENCE_ANSWERS_NONSENSE,
    CLOSE_ANSWERS_NONSENSE,
    COUNTS_TOO_MANY,
    EVENT_OF_NO_KIND,
    EVENT_OF_NO_PEER,
    EVENT_OF_CLOSED_PEER,
    STATUS_OF_NO_KIND,
    CAUSE_OF_NO_KIND,
    MESSAGE_TOO_LONG,
} fault;

static fault planted;
static int has_no_reads;  // and the caps say so
static uint64_t transfer_max, granule, send_max;  // what the caps say, if it is not 0
static uint64_t counted, allocated;
#define SHORT_BYTES ((uint64_t)64 * 1024)  // what one poll of the suite may move
#define LATER_OPS (JOBS + 12)  // more ops than end in the entries before the one about ends
static xtie_provider_op late_op;  // kept back, with what it points to
static unsigned char late_data[XTIE_PROVIDER_LINE_BYTES];
static unsigned late_polls;
static end *late_end;
static xtie_provider_event extra;  // made up
static end *extra_end;
static end *fenced_end;
static xtie_provider_op outliving;  // under way when its end was fenced, for so many polls more
static unsigned outliving_polls;

static int held_of(const end *e)
{
    int held = 0;
    for (int n = 0; n < SLOTS; n++)
        held += e->held[n];
    return held;
}

static int every(unsigned n) { return ++counted % n == 0; }

static int keep_back(end *e, const xtie_provider_op *op, unsigned polls)
{
    if (late_end != NULL)
        return XTIE_PROVIDER_AGAIN;
    late_op = *op;
    if (op->data != NULL)
        memcpy(late_data, op->data,
               op->kind == XTIE_PROVIDER_OP_SEND ? XTIE_PROVIDER_HEAD_BYTES
                                                 : XTIE_PROVIDER_LINE_BYTES);
    late_op.data = op->data == NULL ? NULL : late_data;
    late_polls = polls;
    late_end = e;
    return XTIE_PROVIDER_OK;
}

// Posts what was kept back; if that is complete at once, tells it all the same.
static void post_late(end *e)
{
    if (late_end != e || late_polls-- != 0)
        return;
    late_end = NULL;
    if (vendor_post(e, &late_op, 0) == XTIE_PROVIDER_DONE)
        taken(e, late_op.id, XTIE_PROVIDER_OP_OK);
}

static int with_bytes(void *self, const xtie_provider_op *op, uint64_t bytes)
{
    xtie_provider_op cut = *op;
    cut.local.bytes = bytes;
    return vendor_post(self, &cut, 0);
}

static int post_send(void *self, const xtie_provider_op *op)
{
    unsigned char head[XTIE_PROVIDER_HEAD_BYTES];
    xtie_provider_op other = *op;
    switch (planted) {
    case REFUSED_BUT_SENT:
        if (!every(3))
            break;
        vendor_post(self, op, 0);
        return XTIE_PROVIDER_AGAIN;
    case DROPS_EMPTY:
        if (op->local.bytes == 0)
            return XTIE_PROVIDER_DONE;
        break;
    case CUTS_LONGEST:
        if (op->local.bytes == SEND_BYTES)
            return with_bytes(self, op, SEND_BYTES - 1);
        break;
    case SENDS_LATE: return keep_back(self, op, 1);
    case CUTS_TO_CAPS:
        return with_bytes(self, op, op->local.bytes < SEND_BYTES ? op->local.bytes : SEND_BYTES);
    case BREAKS_HEAD:
        memcpy(head, op->data, sizeof head);
        head[31] ^= 1;
        other.data = head;
        return vendor_post(self, &other, 0);
    default: break;
    }
    return vendor_post(self, op, 0);
}

static uint64_t rounded(uint64_t address) { return address & ~(uint64_t)7; }

// A write whose queue is full is refused, and carried out.
static int post_or_move(void *self, const xtie_provider_op *op)
{
    int answer = vendor_post(self, op, 0);
    if (answer == XTIE_PROVIDER_AGAIN)
        op_move(op, op->data, 0, op_bytes(op));
    return answer;
}

static int post_write(void *self, const xtie_provider_op *op)
{
    unsigned char line[XTIE_PROVIDER_LINE_BYTES];
    xtie_provider_op other = *op;
    int span = !(op->flags & XTIE_PROVIDER_OP_LINE);
    switch (planted) {
    case HALF_WRITE:
        if (!span || !every(3))
            break;
        // not posted: its completion would be one that nobody waits for
        memcpy((void *)(uintptr_t)op->remote.address, (void *)(uintptr_t)op->local.address,
               op->local.bytes / 2);
        return XTIE_PROVIDER_AGAIN;
    case REFUSED_BUT_WRITTEN: return post_or_move(self, op);
    case SEND_OVERTAKES:
        if (span && op->local.bytes == 64 * 1024)
            return keep_back(self, op, 3);
        break;
    case WRITES_THEN_REFUSES_WORD:
        if (!(op->flags & XTIE_PROVIDER_OP_IMMEDIATE) || held_of(((end *)self)->other) < SLOTS)
            break;
        op_move(op, op->data, 0, op_bytes(op));
        return XTIE_PROVIDER_AGAIN;
    case OWN_POSTS_PASS_FENCE:
        if (fenced_end != self)
            break;
        op_move(op, op->data, 0, op_bytes(op));
        return XTIE_PROVIDER_DONE;
    case LONG_WRITE_OVERTAKEN:
        if (span && op->local.bytes > SHORT_BYTES)
            return keep_back(self, op, 3);
        break;
    case CUTS_LONG_WRITES:
        if (span && op->local.bytes > 2 * SHORT_BYTES)
            return with_bytes(self, op, 2 * SHORT_BYTES);
        break;
    case LONG_IMMEDIATE_FIRST:
        if (op_bytes(op) <= SHORT_BYTES)
            break;
        // fall through
    case IMMEDIATE_FIRST:
        if (!(op->flags & XTIE_PROVIDER_OP_IMMEDIATE))
            break;
        event_put(((end *)self)->other, XTIE_PROVIDER_EVENT_IMMEDIATE)->word = op->immediate;
        other.flags &= ~(uint32_t)XTIE_PROVIDER_OP_IMMEDIATE;
        return keep_back(self, &other, 3);
    case BREAKS_LINE:
        if (span)
            break;
        memcpy(line, op->data, sizeof line);
        line[63] = 0;
        other.data = line;
        return vendor_post(self, &other, 0);
    case ROUNDS_WRITE_TARGETS:
        if (span)
            other.remote.address = rounded(op->remote.address);
        break;
    case ROUNDS_WRITE_SOURCES: other.local.address = rounded(op->local.address); break;
    case ROUNDS_LINE_TARGETS:
        if (!span)
            other.remote.address = rounded(op->remote.address);
        break;
    case WORDS_OF_31_BITS: other.immediate &= 0x7fffffff; break;
    case LINES_LOSE_WORDS:
        if (!span)
            other.flags = XTIE_PROVIDER_OP_LINE;
        break;
    default: break;
    }
    return vendor_post(self, &other, 0);
}

static int post_add(void *self, const xtie_provider_op *op)
{
    const uint64_t top = (uint64_t)1 << 63;
    xtie_provider_op other = *op;
    if (planted == ADDS_HALF)
        other.value &= 0xffffffff;
    if (planted == LOSES_NEGATIVE_ADDS && (op->value & top))
        other.value = 0;
    if (planted == ADDS_OF_63_BITS)
        other.value &= ~top;
    int answer = vendor_post(self, &other, 0);
    if (planted == SUMS_OF_63_BITS && answer == XTIE_PROVIDER_DONE)
        *(uint64_t *)(uintptr_t)op->remote.address &= ~top;
    return answer;
}

static int post_read(void *self, const xtie_provider_op *op)
{
    xtie_provider_op other = *op;
    if (planted == READS_BESIDE && op->local.bytes != 0)
        other.remote.address++;
    if (planted == ROUNDS_READ_TARGETS)
        other.local.address = rounded(op->local.address);
    if (planted == ROUNDS_READ_SOURCES)
        other.remote.address = rounded(op->remote.address);
    if (planted == CUTS_LONG_READS && op->local.bytes > 2 * SHORT_BYTES)
        other.local.bytes = 2 * SHORT_BYTES;
    return vendor_post(self, &other, 0);
}

// The key of whatever region of the peer's begins at or before the address, or the one given.
static uint64_t master_key(end *e, const xtie_provider_remote *remote)
{
    for (uint32_t n = 0; n < REGIONS; n++) {
        region *r = &e->regions[n];
        if ((r->generation & 1) && remote->address - r->address < r->bytes)
            return key_of(e, r);
    }
    return remote->key;
}

static int is_too_long(const xtie_provider_op *op)
{
    uint64_t most = op->kind == XTIE_PROVIDER_OP_SEND ? send_max : transfer_max;
    return most != 0 && op_bytes(op) > most;
}

// Whether an op does not wait behind those that do.
static int is_overtaking(const end *e, const xtie_provider_op *op)
{
    if (!jobs_any(e) || op_bytes(op) > POST_BYTES)
        return 0;
    switch (planted) {
    case WRITES_OVERTAKE:
        return op->kind == XTIE_PROVIDER_OP_WRITE && !(op->flags & XTIE_PROVIDER_OP_LINE);
    case LINES_OVERTAKE: return (op->flags & XTIE_PROVIDER_OP_LINE) != 0;
    case ADDS_OVERTAKE: return op->kind == XTIE_PROVIDER_OP_ADD;
    case READS_OVERTAKE: return op->kind == XTIE_PROVIDER_OP_READ;
    default: return 0;
    }
}

// Moves the bytes at once; a write of none waits in its place, and ends by its name.
static int overtake(void *self, const xtie_provider_op *op)
{
    xtie_provider_op rest = *op;
    rest.kind = XTIE_PROVIDER_OP_WRITE;
    rest.flags &= XTIE_PROVIDER_OP_IMMEDIATE;
    rest.local.bytes = 0;
    int answer = vendor_post(self, &rest, 0);
    if (answer == XTIE_PROVIDER_OK)
        op_move(op, op->data, 0, op_bytes(op));
    return answer;
}

static int fault_post(void *self, const xtie_provider_op *op, uint64_t now_ns)
{
    xtie_provider_op opened = *op;
    end *e = self;
    int answer;
    (void)now_ns;
    if (is_too_long(op))
        return XTIE_PROVIDER_UNSUPPORTED;
    if (planted == POST_ANSWERS_NONSENSE)
        return 77;
    if (planted == REFUSES_WITHIN_CAPS && op->kind == XTIE_PROVIDER_OP_WRITE)
        return XTIE_PROVIDER_UNSUPPORTED;
    if (planted == ALLOCATES)
        allocated++;
    if (planted == OWN_DICE && rand() % 4 == 0)
        return XTIE_PROVIDER_AGAIN;
    if (planted == TAKES_STALE_KEYS && region_of(e->other, op->remote.key) == NULL)
        opened.remote.key = master_key(e->other, &op->remote);
    if (planted == FORGETS_RANGES && region_of(e->other, op->remote.key) != NULL)
        opened.remote.key = master_key(e->other, &op->remote);
    if (is_overtaking(e, op))
        return overtake(self, op);
    switch (op->kind) {
    case XTIE_PROVIDER_OP_SEND: answer = post_send(self, &opened); break;
    case XTIE_PROVIDER_OP_WRITE: answer = post_write(self, &opened); break;
    case XTIE_PROVIDER_OP_ADD: answer = post_add(self, &opened); break;
    default: answer = has_no_reads ? XTIE_PROVIDER_UNSUPPORTED : post_read(self, &opened); break;
    }
    if (planted == ACCEPTS_FOR_THE_DEAD && answer == XTIE_PROVIDER_PEER_DOWN)
        return XTIE_PROVIDER_DONE;
    return answer;
}

// What becomes of one true event; the number of events there are then.
static uint32_t pass(end *e, xtie_provider_event *event)
{
    int done = event->kind == XTIE_PROVIDER_EVENT_DONE;
    switch (planted) {
    case FORGETS_COMPLETION: return !(done && every(LATER_OPS));
    case REPEATS_COMPLETION:
        if (done && every(LATER_OPS)) {
            extra = *event;
            extra_end = e;
        }
        return 1;
    case SWALLOWS_ERRORS: return !(done && event->status != XTIE_PROVIDER_OP_OK);
    case SPEAKS_AFTER_DOWN:
        if (event->kind == XTIE_PROVIDER_EVENT_PEER_DOWN) {
            extra = *event;
            extra.kind = XTIE_PROVIDER_EVENT_IMMEDIATE;
            extra_end = e;
        }
        return 1;
    case WRONG_ID:
        if (done && event->status != XTIE_PROVIDER_OP_OK)
            event->id ^= (uint64_t)1 << 40;
        return 1;
    case ENDS_WELL_WHAT_DEATH_CUT_OFF:
        if (done && event->status == XTIE_PROVIDER_OP_PEER_DOWN)
            event->status = XTIE_PROVIDER_OP_OK;
        return 1;
    case TELLS_ANOTHER_CAUSE:
        if (event->kind == XTIE_PROVIDER_EVENT_PEER_DOWN)
            event->status = XTIE_PROVIDER_DOWN_SILENT;
        return 1;
    case EVENT_OF_NO_KIND: event->kind = 99; return 1;
    case EVENT_OF_NO_PEER: event->peer = 2; return 1;
    case EVENT_OF_CLOSED_PEER: event->peer ^= 1; return 1;
    case STATUS_OF_NO_KIND:
        if (done)
            event->status = 99;
        return 1;
    case CAUSE_OF_NO_KIND:
        if (event->kind == XTIE_PROVIDER_EVENT_PEER_DOWN)
            event->status = 0;
        return 1;
    case MESSAGE_TOO_LONG:
        if (event->kind == XTIE_PROVIDER_EVENT_RECEIVED)
            event->bytes = SEND_BYTES + 1;
        return 1;
    default: return 1;
    }
}

static void swap_messages(xtie_provider_event *events, uint32_t count)
{
    if (count < 2 || events[0].kind != XTIE_PROVIDER_EVENT_RECEIVED ||
        events[1].kind != XTIE_PROVIDER_EVENT_RECEIVED)
        return;
    xtie_provider_event first = events[0];
    events[0] = events[1];
    events[1] = first;
}

static uint32_t fault_poll(void *self, xtie_provider_event *events_out, uint32_t events_max,
                           uint64_t budget_bytes, uint64_t now_ns)
{
    xtie_provider_event events[XTIE_PROVIDER_EVENTS_MAX];
    uint32_t kept = 0, room = planted == LOSES_BEYOND_SLICE ? XTIE_PROVIDER_EVENTS_MAX : events_max;
    if (planted == IGNORES_BUDGET)
        budget_bytes = UINT64_MAX;
    if (extra_end == self && events_max != 0) {
        events_out[0] = extra;
        extra_end = NULL;
        return 1;
    }
    post_late(self);
    if (outliving_polls != 0 && --outliving_polls == 0)
        op_move(&outliving, NULL, 0, op_bytes(&outliving));
    uint32_t count = vendor_poll(self, events, room, budget_bytes, now_ns);
    for (uint32_t n = 0; n < count; n++)
        if (pass(self, &events[n]))
            events[kept++] = events[n];
    if (planted == SWAPS_MESSAGES)
        swap_messages(events, kept);
    if (planted == COUNTS_TOO_MANY && kept != 0)
        return events_max + 1;
    if (kept > events_max)
        kept = events_max;
    memcpy(events_out, events, kept * sizeof *events);
    return kept;
}

static int fault_fence_begin(void *self, uint32_t peer, uint64_t id, uint32_t generation,
                             uint64_t now_ns)
{
    if (planted == FENCE_ANSWERS_NONSENSE)
        return XTIE_PROVIDER_DONE;
    if (planted == GENERATIONS_OF_8_BITS)
        generation &= 0xff;
    fenced_end = self;
    if (planted == OWN_OPS_OUTLIVE_FENCE && jobs_any(self)) {
        outliving = ((end *)self)->jobs[((end *)self)->jobs_head % JOBS].op;
        outliving_polls = 16;
    }
    if (planted != FENCES_IN_NAME_ONLY)
        return vendor_fence_begin(self, peer, id, generation, now_ns);
    xtie_provider_event *event = event_put(self, XTIE_PROVIDER_EVENT_FENCED);
    event->id = id;
    event->word = generation;
    ((end *)self)->in_flight++;
    return XTIE_PROVIDER_OK;
}

static void fault_received_copy(void *self, uint32_t peer, uint64_t slot, uint64_t offset,
                                const xtie_provider_span *to)
{
    if (planted == SERVES_ANOTHER && slot != 0)
        slot--;
    vendor_received_copy(self, peer, slot, offset, to);
}

static void fault_received_release(void *self, uint32_t peer, uint64_t slot)
{
    if (planted != LEAKS_SLOT || held_of(self) <= 8)
        vendor_received_release(self, peer, slot);
}

static void fault_caps(void *self, xtie_provider_caps *caps)
{
    vendor_caps(self, caps);
    if (has_no_reads)
        caps->flags &= ~(uint32_t)XTIE_PROVIDER_CAP_PULL;
    if (transfer_max != 0)
        caps->transfer_bytes_max = transfer_max;
    if (granule != 0)
        caps->copy_granule_bytes = granule;
    if (send_max != 0)
        caps->send_bytes_max = send_max;
    if (planted == CHANGES_CAPS)
        caps->recv_slots -= every(2);
    if (planted == PROMISES_MORE_RECEIVES)
        caps->recv_slots++;
}

static int fault_region_register(void *self, uint64_t address, uint64_t bytes, uint32_t kind,
                                 uint64_t *key_out)
{
    int wraps = address + bytes < address;
    if (planted == REFUSES_SHORT_REGIONS && bytes != 0 && bytes < 4096)
        return XTIE_PROVIDER_CODE - 22;  // EINVAL
    if ((planted == TAKES_EMPTY_REGIONS && bytes == 0) ||
        (planted == TAKES_REGIONS_THAT_WRAP && wraps))
        bytes = 1;
    if (planted == TAKES_MORE_REGIONS)
        ((end *)self)->regions_max = REGIONS;
    if (planted == TAKES_ANY_MEMORY)
        kind = XTIE_PROVIDER_MEMORY_HOST;
    return vendor_region_register(self, address, bytes, kind, key_out);
}

static int fault_region_deregister(void *self, uint64_t key)
{
    int answer = vendor_region_deregister(self, key);
    return planted == DEREGISTERS_EARLY && answer == XTIE_PROVIDER_BUSY ? XTIE_PROVIDER_OK : answer;
}

static int fault_peer_detach(void *self, uint32_t peer)
{
    return planted == FREES_HELD_AT_DETACH ? vendor_peer_close(self, peer)
                                           : vendor_peer_detach(self, peer);
}

static int fault_peer_close(void *self, uint32_t peer)
{
    if (planted == LEAKS_HELD_AT_CLOSE)
        return vendor_peer_detach(self, peer);
    int answer = vendor_peer_close(self, peer);
    if (planted == CLOSE_ANSWERS_NONSENSE)
        return XTIE_PROVIDER_FULL;
    return planted == CLOSES_ANYWAY && answer == XTIE_PROVIDER_BUSY ? XTIE_PROVIDER_OK : answer;
}

// What came and was not yet polled: its messages and words.
static void throw_away(end *e)
{
    uint32_t tail = e->events_head;
    for (uint32_t n = tail; n != e->events_tail; n++) {
        uint32_t kind = e->events[n % EVENTS].kind;
        if (kind != XTIE_PROVIDER_EVENT_RECEIVED && kind != XTIE_PROVIDER_EVENT_IMMEDIATE)
            e->events[tail++ % EVENTS] = e->events[n % EVENTS];
    }
    e->events_tail = tail;
}

// Ends of ops go behind that of their peer.
static void put_ends_last(end *e)
{
    static xtie_provider_event ended[EVENTS];
    uint32_t tail = e->events_head, count = 0;
    for (uint32_t n = tail; n != e->events_tail; n++) {
        const xtie_provider_event *event = &e->events[n % EVENTS];
        if (event->kind == XTIE_PROVIDER_EVENT_DONE)
            ended[count++] = *event;
        else
            e->events[tail++ % EVENTS] = *event;
    }
    for (uint32_t n = 0; n < count; n++)
        e->events[tail++ % EVENTS] = ended[n];
}

static void fault_peer_fail(void *self, uint32_t peer, uint32_t cause, int32_t code)
{
    if (planted == THROWS_AWAY_WHAT_CAME)
        throw_away(self);
    vendor_peer_fail(self, peer, cause, code);
    if (planted == TELLS_ENDS_LAST)
        put_ends_last(self);
}

static int fault_open(void *context, const xtie_provider_limits *limits, void **provider_out)
{
    fenced_end = NULL;
    outliving_polls = 0;
    return vendor_open(context, limits, provider_out);
}

static xtie_provider_ops faulty(void)
{
    xtie_provider_ops ops = vendor_ops;
    ops.open = fault_open;
    ops.caps = fault_caps;
    ops.region_register = fault_region_register;
    ops.post = fault_post;
    ops.poll = fault_poll;
    ops.fence_begin = fault_fence_begin;
    ops.received_copy = fault_received_copy;
    ops.received_release = fault_received_release;
    ops.region_deregister = fault_region_deregister;
    ops.peer_fail = fault_peer_fail;
    ops.peer_close = fault_peer_close;
    ops.peer_detach = fault_peer_detach;
    return ops;
}

// ---------------------------------------------------------------- the suite and the faults

// What the suite says of a fault: the entry that finds it, and the promise or the breach.
typedef struct {
    fault fault;
    int result;
    unsigned promise;
    const char *entry;
} expected;

static const expected faults[] = {
    {NONE, XTIE_CORE_OK, 0, ""},
    {HALF_WRITE, XTIE_CORE_ERR_PROMISE, 1, "post_takes_whole_write_or_again_changes_nothing"},
    {REFUSED_BUT_WRITTEN, XTIE_CORE_ERR_PROMISE, 1,
     "post_takes_whole_write_or_again_changes_nothing"},
    {REFUSED_BUT_SENT, XTIE_CORE_ERR_PROMISE, 1, "post_takes_whole_send_or_again_changes_nothing"},
    {FORGETS_COMPLETION, XTIE_CORE_ERR_PROMISE, 2, "accepted_op_completes"},
    {REPEATS_COMPLETION, XTIE_CORE_ERR_BREACH, 0, "accepted_op_completes"},
    {LOSES_BEYOND_SLICE, XTIE_CORE_ERR_PROMISE, 3, "poll_stays_inside_its_slice"},
    {IGNORES_BUDGET, XTIE_CORE_ERR_PROMISE, 3, "poll_stays_inside_its_budget"},
    {ALLOCATES, XTIE_CORE_ERR_PROMISE, 4, "post_and_poll_do_not_allocate"},
    {SWAPS_MESSAGES, XTIE_CORE_ERR_PROMISE, 5, "sends_arrive_in_order"},
    {SEND_OVERTAKES, XTIE_CORE_ERR_PROMISE, 5, "write_is_visible_before_a_later_send"},
    {IMMEDIATE_FIRST, XTIE_CORE_ERR_PROMISE, 5, "immediate_comes_after_its_data"},
    {READS_BESIDE, XTIE_CORE_ERR_PROMISE, 5, "read_brings_the_peers_bytes"},
    {ADDS_HALF, XTIE_CORE_ERR_PROMISE, 5, "adds_sum_in_64_bits"},
    {DROPS_EMPTY, XTIE_CORE_ERR_PROMISE, 1, "post_takes_whole_send_or_again_changes_nothing"},
    {CUTS_LONGEST, XTIE_CORE_ERR_PROMISE, 5, "longest_payload_arrives_whole"},
    {SENDS_LATE, XTIE_CORE_ERR_PROMISE, 5, "send_source_is_free_after_post"},
    {BREAKS_LINE, XTIE_CORE_ERR_PROMISE, 5, "line_lands_whole_at_its_target"},
    {BREAKS_HEAD, XTIE_CORE_ERR_PROMISE, 5, "head_and_payload_arrive_unchanged"},
    {SERVES_ANOTHER, XTIE_CORE_ERR_PROMISE, 5, "held_payload_stays_until_release"},
    {LEAKS_SLOT, XTIE_CORE_ERR_PROMISE, 5, "slots_come_back_in_any_order"},
    {CUTS_TO_CAPS, XTIE_CORE_ERR_PROMISE, 5, "ops_beyond_caps_are_unsupported"},
    {SWALLOWS_ERRORS, XTIE_CORE_ERR_PROMISE, 6, "death_completes_everything"},
    {SPEAKS_AFTER_DOWN, XTIE_CORE_ERR_PROMISE, 6, "nothing_arrives_after_peer_down"},
    {ACCEPTS_FOR_THE_DEAD, XTIE_CORE_ERR_PROMISE, 6, "post_to_a_dead_peer_is_refused"},
    {WRONG_ID, XTIE_CORE_ERR_BREACH, 0, "death_completes_everything"},
    {TAKES_STALE_KEYS, XTIE_CORE_ERR_PROMISE, 7, "error_names_its_op"},
    {FORGETS_RANGES, XTIE_CORE_ERR_PROMISE, 7, "range_outside_of_region_is_refused"},
    {DEREGISTERS_EARLY, XTIE_CORE_ERR_PROMISE, 7, "region_stays_until_deregister_returns"},
    {OWN_DICE, XTIE_CORE_ERR_PROMISE, 8, "same_calls_give_same_answers"},
    {CLOSES_ANYWAY, XTIE_CORE_ERR_PROMISE, 9, "close_is_busy_while_ops_are_in_flight"},
    {FENCES_IN_NAME_ONLY, XTIE_CORE_ERR_PROMISE, 10, "nothing_is_touched_after_the_fence"},
    {ROUNDS_READ_TARGETS, XTIE_CORE_ERR_PROMISE, 5, "read_brings_the_peers_bytes"},
    {ROUNDS_READ_SOURCES, XTIE_CORE_ERR_PROMISE, 5, "read_brings_the_peers_bytes"},
    {ROUNDS_WRITE_TARGETS, XTIE_CORE_ERR_PROMISE, 5, "write_lands_at_any_address"},
    {ROUNDS_WRITE_SOURCES, XTIE_CORE_ERR_PROMISE, 5, "write_lands_at_any_address"},
    {ROUNDS_LINE_TARGETS, XTIE_CORE_ERR_PROMISE, 5, "line_lands_whole_at_its_target"},
    {WORDS_OF_31_BITS, XTIE_CORE_ERR_PROMISE, 5, "immediate_comes_after_its_data"},
    {LINES_LOSE_WORDS, XTIE_CORE_ERR_PROMISE, 5, "line_lands_whole_at_its_target"},
    {LOSES_NEGATIVE_ADDS, XTIE_CORE_ERR_PROMISE, 5, "adds_sum_in_64_bits"},
    {ADDS_OF_63_BITS, XTIE_CORE_ERR_PROMISE, 5, "adds_sum_in_64_bits"},
    {SUMS_OF_63_BITS, XTIE_CORE_ERR_PROMISE, 5, "adds_sum_in_64_bits"},
    {GENERATIONS_OF_8_BITS, XTIE_CORE_ERR_BREACH, 0, "nothing_is_touched_after_the_fence"},
    {TELLS_ANOTHER_CAUSE, XTIE_CORE_ERR_PROMISE, 6, "end_is_told_with_its_cause"},
    {ENDS_WELL_WHAT_DEATH_CUT_OFF, XTIE_CORE_ERR_PROMISE, 6, "death_completes_everything"},
    {REFUSES_SHORT_REGIONS, XTIE_CORE_ERR_PROMISE, 7, "region_has_any_length_but_none"},
    {TAKES_EMPTY_REGIONS, XTIE_CORE_ERR_PROMISE, 7, "region_has_any_length_but_none"},
    {TAKES_REGIONS_THAT_WRAP, XTIE_CORE_ERR_PROMISE, 7, "region_has_any_length_but_none"},
    {CHANGES_CAPS, XTIE_CORE_ERR_PROMISE, 5, "caps_stay_as_they_are"},
    {THROWS_AWAY_WHAT_CAME, XTIE_CORE_ERR_PROMISE, 6, "what_had_come_is_told_before_the_end"},
    {TELLS_ENDS_LAST, XTIE_CORE_ERR_PROMISE, 6, "what_had_come_is_told_before_the_end"},
    {TAKES_MORE_REGIONS, XTIE_CORE_ERR_PROMISE, 7, "regions_are_as_many_as_were_asked_for"},
    {TAKES_ANY_MEMORY, XTIE_CORE_ERR_PROMISE, 7, "memory_that_cannot_be_is_refused"},
    {PROMISES_MORE_RECEIVES, XTIE_CORE_ERR_PROMISE, 5, "receives_are_as_many_as_promised"},
    {WRITES_THEN_REFUSES_WORD, XTIE_CORE_ERR_PROMISE, 1, "refused_write_with_word_leaves_no_bytes"},
    {LEAKS_HELD_AT_CLOSE, XTIE_CORE_ERR_PROMISE, 9, "close_gives_held_receives_back"},
    {FREES_HELD_AT_DETACH, XTIE_CORE_ERR_PROMISE, 9, "held_messages_outlive_a_detach"},
    {OWN_POSTS_PASS_FENCE, XTIE_CORE_ERR_PROMISE, 10, "own_posts_do_not_pass_the_fence"},
    {OWN_OPS_OUTLIVE_FENCE, XTIE_CORE_ERR_PROMISE, 10, "own_posts_do_not_pass_the_fence"},
    {LONG_WRITE_OVERTAKEN, XTIE_CORE_ERR_PROMISE, 5, "write_is_visible_before_a_later_send"},
    {LONG_IMMEDIATE_FIRST, XTIE_CORE_ERR_PROMISE, 5, "immediate_comes_after_its_data"},
    {CUTS_LONG_WRITES, XTIE_CORE_ERR_PROMISE, 5, "write_is_visible_before_a_later_send"},
    {CUTS_LONG_READS, XTIE_CORE_ERR_PROMISE, 5, "read_brings_the_peers_bytes"},
    {WRITES_OVERTAKE, XTIE_CORE_ERR_PROMISE, 5, "short_ops_stay_behind_longer_ones"},
    {LINES_OVERTAKE, XTIE_CORE_ERR_PROMISE, 5, "short_ops_stay_behind_longer_ones"},
    {ADDS_OVERTAKE, XTIE_CORE_ERR_PROMISE, 5, "short_ops_stay_behind_longer_ones"},
    {READS_OVERTAKE, XTIE_CORE_ERR_PROMISE, 5, "short_ops_stay_behind_longer_ones"},
    {POST_ANSWERS_NONSENSE, XTIE_CORE_ERR_BREACH, 0,
     "post_takes_whole_write_or_again_changes_nothing"},
    {REFUSES_WITHIN_CAPS, XTIE_CORE_ERR_BREACH, 0,
     "post_takes_whole_write_or_again_changes_nothing"},
    {FENCE_ANSWERS_NONSENSE, XTIE_CORE_ERR_BREACH, 0, "nothing_is_touched_after_the_fence"},
    {CLOSE_ANSWERS_NONSENSE, XTIE_CORE_ERR_BREACH, 0, "close_is_busy_while_ops_are_in_flight"},
    {COUNTS_TOO_MANY, XTIE_CORE_ERR_BREACH, 0, "post_takes_whole_write_or_again_changes_nothing"},
    {EVENT_OF_NO_KIND, XTIE_CORE_ERR_BREACH, 0, "post_takes_whole_write_or_again_changes_nothing"},
    {EVENT_OF_NO_PEER, XTIE_CORE_ERR_BREACH, 0, "post_takes_whole_write_or_again_changes_nothing"},
    {EVENT_OF_CLOSED_PEER, XTIE_CORE_ERR_BREACH, 0,
     "post_takes_whole_write_or_again_changes_nothing"},
    {STATUS_OF_NO_KIND, XTIE_CORE_ERR_BREACH, 0, "post_takes_whole_write_or_again_changes_nothing"},
    {CAUSE_OF_NO_KIND, XTIE_CORE_ERR_BREACH, 0, "death_completes_everything"},
    {MESSAGE_TOO_LONG, XTIE_CORE_ERR_BREACH, 0, "post_takes_whole_send_or_again_changes_nothing"},
};

static int failures;

static void expect(int holds, const char *what, const xtie_conformance_result *result)
{
    if (holds)
        return;
    failures++;
    printf("not as expected: %s\n", what);
    if (result != NULL)
        printf("    the suite said %d, P%u %s: %s\n", result->result, (unsigned)result->promise,
               result->entry_name, result->why);
}

static uint64_t allocations(void *userdata)
{
    (void)userdata;
    return allocated;
}

static int suite(const xtie_provider_ops *ops, xtie_conformance_result *result)
{
    xtie_conformance_setup setup = {.struct_size = sizeof setup,
                                    .context_a = &ends[0],
                                    .context_b = &ends[1],
                                    .storage = storage,
                                    .storage_bytes = sizeof storage,
                                    .allocations = allocations};
    late_end = extra_end = NULL;
    counted = 0;
    return xtie_conformance_run(ops, &setup, result);
}

// What needs reads: to be one at all, or to be done so often that the entry sees it.
static int is_of_reads(fault it)
{
    return it == READS_BESIDE || it == ROUNDS_READ_TARGETS || it == ROUNDS_READ_SOURCES ||
           it == FORGETS_COMPLETION || it == REPEATS_COMPLETION ||
           it == ENDS_WELL_WHAT_DEATH_CUT_OFF || it == CUTS_LONG_READS || it == READS_OVERTAKE;
}

static int is_of_long_ops(fault it)
{
    return it == LONG_WRITE_OVERTAKEN || it == LONG_IMMEDIATE_FIRST || it == CUTS_LONG_WRITES ||
           it == CUTS_LONG_READS;
}

static void faults_are_found(int without_reads)
{
    xtie_provider_ops ops = faulty();
    has_no_reads = without_reads;
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) {
        xtie_conformance_result result;
        char what[64];
        planted = faults[n].fault;
        if (without_reads && is_of_reads(planted))
            continue;
        if (transfer_max != 0 && transfer_max <= SHORT_BYTES && is_of_long_ops(planted))
            continue;
        int code = suite(&ops, &result);
        snprintf(what, sizeof what, "fault %d%s", (int)planted,
                 without_reads ? " of a rail without reads" : "");
        expect(code == faults[n].result && result.result == code, what, &result);
        expect(result.promise == faults[n].promise, what, &result);
        expect(strcmp(result.entry_name, faults[n].entry) == 0, what, &result);
        expect((code == XTIE_CORE_OK) == (result.why[0] == 0), what, &result);
        expect((code == XTIE_CORE_OK) == (result.entry == XTIE_CONFORMANCE_ENTRIES), what, &result);
    }
    planted = NONE;
    has_no_reads = 0;
}

// Sound rails with little in their caps, and what is found of faults that need long transfers.
static void small_caps_pass(void)
{
    static const uint64_t transfers[] = {128, 4096, 65536}, others[] = {1, 128, 512, SEND_BYTES};
    xtie_provider_ops ops = faulty();
    xtie_conformance_result result;
    for (size_t t = 0; t < 3; t++)
        for (size_t g = 0; g < 4; g++)
            for (size_t s = 0; s < 4; s++) {
                char what[64];
                transfer_max = transfers[t];
                // no more than the longest transfer (XTIE_CORE_ERR_CAPS_GRANULE)
                granule = others[g] < transfer_max ? others[g] : transfer_max;
                send_max = others[s];
                snprintf(what, sizeof what, "transfers of %u, granule %u, sends of %u",
                         (unsigned)transfer_max, (unsigned)granule, (unsigned)send_max);
                expect(suite(&ops, &result) == XTIE_CORE_OK, what, &result);
            }
    granule = send_max = 0;
    transfer_max = 65536;
    faults_are_found(0);
    transfer_max = 0;
}

// ---------------------------------------------------------------- tables that cannot be

static void tables_are_checked(void)
{
    static const struct {
        const char *name;
        size_t at;
    } entries[] = {
#define ENTRY(name) {#name, offsetof(xtie_provider_ops, name)}
        ENTRY(open), ENTRY(close), ENTRY(caps), ENTRY(peer_blob), ENTRY(peer_open),
        ENTRY(region_register), ENTRY(region_deregister), ENTRY(post), ENTRY(poll),
        ENTRY(received_copy), ENTRY(received_release), ENTRY(peer_fail), ENTRY(peer_close),
    };
    xtie_conformance_result result;
    char name[XTIE_CONFORMANCE_NAME_BYTES];
    for (size_t n = 0; n < sizeof entries / sizeof *entries; n++) {
        xtie_provider_ops ops = vendor_ops;
        memset((char *)&ops + entries[n].at, 0, sizeof ops.close);
        expect(xtie_provider_ops_check(&ops, name) == XTIE_CORE_ERR_ENTRY, entries[n].name, NULL);
        expect(strcmp(name, entries[n].name) == 0, entries[n].name, NULL);
        expect(suite(&ops, &result) == XTIE_CORE_ERR_ENTRY, entries[n].name, &result);
        expect(strcmp(result.why, entries[n].name) == 0, entries[n].name, &result);
    }
    expect(xtie_provider_ops_check(&vendor_ops, name) == XTIE_CORE_OK && !name[0], "good", NULL);
    expect(xtie_provider_ops_check(NULL, NULL) == XTIE_CORE_ERR_NULL, "no table", NULL);
    xtie_provider_ops ops = vendor_ops;
    const uint32_t sizes[] = {0, 8, sizeof ops - 1, 4097};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        ops.struct_size = sizes[n];
        expect(suite(&ops, &result) == XTIE_CORE_ERR_STRUCT_SIZE, "struct_size", &result);
    }
    struct {
        xtie_provider_ops ops;
        void *later;
    } longer = {vendor_ops, NULL};
    longer.ops.struct_size = sizeof longer;
    expect(xtie_provider_ops_check(&longer.ops, NULL) == XTIE_CORE_OK, "a later table", NULL);
    longer.later = &longer;
    expect(xtie_provider_ops_check(&longer.ops, NULL) == XTIE_CORE_ERR_STRUCT, "more", NULL);
    ops = vendor_ops;
    ops.reserved = 1;
    expect(xtie_provider_ops_check(&ops, NULL) == XTIE_CORE_ERR_RESERVED, "reserved", NULL);
}

// ---------------------------------------------------------------- caps that contradict

static xtie_provider_caps caps_said;

static void caps_other(void *self, xtie_provider_caps *caps)
{
    (void)self;
    *caps = caps_said;
}

static void caps_are(int code, const char *what)
{
    xtie_provider_ops ops = vendor_ops;
    xtie_conformance_result result;
    ops.caps = caps_other;
    expect(suite(&ops, &result) == code && result.entry == 0, what, &result);
    expect(result.why[0] != 0, what, &result);
    caps_said = (xtie_provider_caps){.struct_size = sizeof caps_said};
    vendor_caps(NULL, &caps_said);
}

static void caps_are_checked(void)
{
    caps_said = (xtie_provider_caps){.struct_size = sizeof caps_said};
    vendor_caps(NULL, &caps_said);
#define CAPS(field, value, code) \
    caps_said.field = (value);   \
    caps_are(code, #field)
    CAPS(struct_size, 8, XTIE_CORE_ERR_CAPS_STRUCT);
    CAPS(reserved, 1, XTIE_CORE_ERR_CAPS_STRUCT);
    CAPS(flags, 0x80000000, XTIE_CORE_ERR_CAPS_FLAGS);
    CAPS(send_bytes_max, 0, XTIE_CORE_ERR_CAPS_NOTHING);
    CAPS(transfer_bytes_max, 63, XTIE_CORE_ERR_CAPS_NOTHING);
    CAPS(recv_slots, 0, XTIE_CORE_ERR_CAPS_NOTHING);
    CAPS(flags, XTIE_PROVIDER_CAP_COPIES_AT_POST, XTIE_CORE_ERR_CAPS_WAY);
    CAPS(atomic_bytes, 4, XTIE_CORE_ERR_CAPS_ATOMIC);
    CAPS(fence, 4, XTIE_CORE_ERR_CAPS_FENCE);
    CAPS(copy_granule_bytes, UINT64_MAX, XTIE_CORE_ERR_CAPS_GRANULE);
    CAPS(syscalls, 3, XTIE_CORE_ERR_CAPS_SYSCALLS);
    CAPS(blob_bytes, XTIE_PROVIDER_BLOB_BYTES_MAX + 1, XTIE_CORE_ERR_CAPS_BLOB);
    xtie_provider_ops ops = vendor_ops;
    xtie_conformance_result result;
    ops.fence_begin = NULL;
    expect(suite(&ops, &result) == XTIE_CORE_ERR_CAPS_FENCE, "a fence without its entry", &result);
}

// ---------------------------------------------------------------- objects that refuse

static int open_refuses(void *context, const xtie_provider_limits *limits, void **provider_out)
{
    (void)context, (void)limits, (void)provider_out;
    return XTIE_PROVIDER_CODE - 19;
}

static int peer_open_never(void *self, uint32_t peer, const void *blob)
{
    (void)self, (void)peer, (void)blob;
    return XTIE_PROVIDER_AGAIN;
}

static int peer_open_refuses(void *self, uint32_t peer, const void *blob)
{
    (void)self, (void)peer, (void)blob;
    return XTIE_PROVIDER_CODE - 12;
}

static void refusals_are_told(void)
{
    xtie_provider_ops ops = vendor_ops;
    xtie_conformance_result result;
    ops.open = open_refuses;
    expect(suite(&ops, &result) == XTIE_CORE_ERR_OPEN && result.code == 19, "open", &result);
    expect(result.why[0], "why open", &result);
    ops = vendor_ops;
    ops.peer_open = peer_open_refuses;
    expect(suite(&ops, &result) == XTIE_CORE_ERR_PEER && result.code == 12, "a peer", &result);
    expect(result.why[0], "why a peer", &result);
    ops.peer_open = peer_open_never;
    expect(suite(&ops, &result) == XTIE_CORE_ERR_PEER && result.why[0], "peer_open", &result);
    xtie_conformance_setup setup = {.struct_size = sizeof setup,
                                    .context_a = &ends[0],
                                    .context_b = &ends[0],
                                    .storage = storage,
                                    .storage_bytes = sizeof storage};
    // one end twice: its blob is its own
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_BLOB, "a blob", NULL);
    (void)xtie_conformance_run(&vendor_ops, &setup, &result);
    expect(result.result == XTIE_CORE_ERR_BLOB && result.why[0], "why a blob", &result);
    setup.context_b = &ends[1];
    setup.flags = 2;
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_FLAGS, "flags", NULL);
    setup.flags = 0;
    setup.storage = storage + 8;
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_STORAGE_ALIGN, "align",
           NULL);
    setup.storage = storage;
    setup.storage_bytes--;
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_STORAGE_SIZE, "size",
           NULL);
    setup.storage = NULL;
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_NULL, "storage", NULL);
    setup.struct_size = 4;
    expect(xtie_conformance_run(&vendor_ops, &setup, NULL) == XTIE_CORE_ERR_STRUCT_SIZE, "setup",
           NULL);
    expect(xtie_conformance_run(&vendor_ops, NULL, NULL) == XTIE_CORE_ERR_NULL, "no setup", NULL);
}

// ---------------------------------------------------------------- endpoints

static int endpoint_over(const xtie_provider_ops *ops, xtie_core_endpoint **endpoint_out)
{
    xtie_core_config config = {.struct_size = sizeof config, .connections_max = 1};
    return xtie_core_endpoint_open(storage, sizeof storage, &config, ops, &ends[0], endpoint_out);
}

static void rails_are_refused(void)
{
    xtie_provider_ops ops = vendor_ops;
    xtie_core_endpoint *endpoint = NULL;
    ops.caps = caps_other;
#define RAIL(field, value)                                                              \
    caps_said = (xtie_provider_caps){.struct_size = sizeof caps_said};                  \
    vendor_caps(NULL, &caps_said);                                                      \
    caps_said.field = (value);                                                          \
    expect(endpoint_over(&ops, &endpoint) == XTIE_CORE_ERR_RAIL_SMALL && !endpoint, #field, NULL)
    RAIL(recv_slots, 47);
    RAIL(send_bytes_max, 511);
    RAIL(flags, XTIE_PROVIDER_CAP_PULL);
    RAIL(fence, XTIE_PROVIDER_FENCE_NONE);
    RAIL(fence, XTIE_PROVIDER_FENCE_ENDPOINT);
    expect(endpoint_over(NULL, &endpoint) == XTIE_CORE_ERR_NULL, "no table", NULL);
    ops = vendor_ops;
    ops.post = NULL;
    expect(endpoint_over(&ops, &endpoint) == XTIE_CORE_ERR_ENTRY && !endpoint, "no post", NULL);
}

static void endpoints_say_what_is_wrong(void)
{
    xtie_provider_ops ops = faulty();
    xtie_core_endpoint *endpoint = NULL;
    xtie_core_blob blob, other;
    uint64_t memory = 0, request = 0;
    int done = 0;
#define SAYS(code, call) expect((call) == (code), #call, NULL)
    SAYS(XTIE_CORE_OK, endpoint_over(&ops, &endpoint));
    SAYS(XTIE_CORE_ERR_CONNECTION, xtie_core_connection_blob(endpoint, 1, &blob));
    SAYS(XTIE_CORE_OK, xtie_core_connection_blob(endpoint, 0, &blob));
    // its own blob is whole, but not of the other end
    SAYS(XTIE_CORE_ERR_BLOB, xtie_core_connection_open(endpoint, 0, &blob));
    for (unsigned at = 0; at < sizeof blob; at += 7) {
        other = blob;
        other.bytes[at] ^= 0x40;
        SAYS(XTIE_CORE_ERR_BLOB, xtie_core_connection_open(endpoint, 0, &other));
    }
    for (uint32_t closed = 0; closed < 3; closed++)
        SAYS(XTIE_CORE_ERR_CONNECTION,
             xtie_core_connection_isend(endpoint, closed, NULL, 0, 0, 0, &request));
    SAYS(XTIE_CORE_ERR_CONNECTION, xtie_core_connection_close(endpoint, 0));
    SAYS(XTIE_CORE_ERR_STALE, xtie_core_request_test(endpoint, 12345, &done, NULL));
    SAYS(XTIE_CORE_ERR_MEMORY, xtie_core_memory_deregister(endpoint, 12345));
    SAYS(XTIE_CORE_ERR_REGISTER_RANGE, xtie_core_memory_register(endpoint, storage, 0, 0, &memory));
    SAYS(XTIE_CORE_ERR_MEMORY_KIND, xtie_core_memory_register(endpoint, storage, 8, 3, &memory));
    SAYS(XTIE_CORE_ERR_MEMORY_KIND, xtie_core_memory_register(endpoint, storage, 8, 2, &memory));
    for (int n = 0; n < 16; n++)
        SAYS(XTIE_CORE_OK, xtie_core_memory_register(endpoint, late_data, 8, 0, &memory));
    SAYS(XTIE_CORE_ERR_REGIONS_FULL,
         xtie_core_memory_register(endpoint, late_data, 8, 0, &request));
    SAYS(XTIE_CORE_OK, xtie_core_memory_deregister(endpoint, memory));
    SAYS(XTIE_CORE_ERR_MEMORY, xtie_core_memory_deregister(endpoint, memory));
    // an answer that is none ends the endpoint's use
    event_put(&ends[0], 99);
    SAYS(XTIE_CORE_ERR_BREACH, xtie_core_endpoint_progress(endpoint, 0));
    SAYS(XTIE_CORE_ERR_BREACH, xtie_core_endpoint_progress(endpoint, 0));
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoint));
    SAYS(XTIE_CORE_ERR_CLOSED, xtie_core_endpoint_progress(endpoint, 0));
    SAYS(XTIE_CORE_ERR_CLOSED, xtie_core_endpoint_close(endpoint));
    SAYS(XTIE_CORE_ERR_NULL, xtie_core_endpoint_progress(NULL, 0));
    SAYS(XTIE_CORE_ERR_ENDPOINT,
         xtie_core_endpoint_progress((xtie_core_endpoint *)(storage + 4096), 0));
}

static void configurations_are_checked(void)
{
    xtie_core_config config = {.struct_size = sizeof config};
    xtie_core_endpoint *endpoint = NULL;
    size_t bytes = 0;
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_size(&config, &bytes));
    SAYS(XTIE_CORE_ERR_STORAGE_SIZE,
         xtie_core_endpoint_open(storage, bytes - 1, &config, &vendor_ops, &ends[0], &endpoint));
    SAYS(XTIE_CORE_ERR_STORAGE_ALIGN,
         xtie_core_endpoint_open(storage + 8, bytes, &config, &vendor_ops, &ends[0], &endpoint));
    config.connections_max = 1;
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_size(&config, &bytes));
    SAYS(38464, (int)bytes);  // as doc/vendor.md says
    config.connections_max = 65537;
    SAYS(XTIE_CORE_ERR_CONNECTIONS_MAX, xtie_core_endpoint_size(&config, &bytes));
    config.connections_max = 1;
    config.requests_max = 33;
    SAYS(XTIE_CORE_ERR_REQUESTS_MAX, xtie_core_endpoint_size(&config, &bytes));
    config.requests_max = 64;
    config.regions_max = 65536;
    SAYS(XTIE_CORE_ERR_REGIONS_MAX, xtie_core_endpoint_size(&config, &bytes));
    config.struct_size = 8;
    SAYS(XTIE_CORE_ERR_STRUCT_SIZE, xtie_core_endpoint_size(&config, &bytes));
    // the provider's own open refuses: it has two peers
    config = (xtie_core_config){.struct_size = sizeof config, .connections_max = 3};
    SAYS(XTIE_CORE_ERR_OPEN, xtie_core_endpoint_open(storage, sizeof storage, &config, &vendor_ops,
                                                     &ends[0], &endpoint));
}

static void caps_unequal(void *self, xtie_provider_caps *caps)
{
    caps_other(self, caps);
    if (self == &ends[0])
        caps->transfer_bytes_max = 4096;
}

// Who reads a message whole must be able to: ends that read unequal lengths write instead, and one
// that cannot write has no peer there.
static void rails_of_unequal_lengths_push(void)
{
    xtie_provider_ops ops = vendor_ops;
    ops.caps = caps_unequal;
    caps_said = (xtie_provider_caps){.struct_size = sizeof caps_said};
    vendor_caps(NULL, &caps_said);
    messages_cross(&ops);
    expect(!failed, "messages between rails of unequal lengths", NULL);
    caps_said.flags &= ~(uint32_t)XTIE_PROVIDER_CAP_IMMEDIATE;
    xtie_core_config config = {.struct_size = sizeof config, .connections_max = 1};
    xtie_core_endpoint *both[2] = {NULL, NULL};
    size_t half = sizeof storage / 2;
    xtie_core_blob blob;
    for (int n = 0; n < 2; n++)
        SAYS(XTIE_CORE_OK,
             xtie_core_endpoint_open(storage + half * (size_t)n, half, &config, &ops, &ends[n],
                                     &both[n]));
    SAYS(XTIE_CORE_OK, xtie_core_connection_blob(both[0], 0, &blob));
    SAYS(XTIE_CORE_ERR_PEER_OTHER, xtie_core_connection_open(both[1], 0, &blob));
    for (int n = 0; n < 2; n++)
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(both[n]));
}

// Long messages that the sender writes, since the rail does not read; and each fence its own way.
static void rails_without_reads_push(void)
{
    xtie_provider_ops ops = vendor_ops;
    ops.caps = caps_other;
    caps_said = (xtie_provider_caps){.struct_size = sizeof caps_said};
    vendor_caps(NULL, &caps_said);
    caps_said.flags &= ~(uint32_t)XTIE_PROVIDER_CAP_PULL;
    messages_cross(&ops);
    caps_said.fence = XTIE_PROVIDER_FENCE_WRITER_DRAINED;
    messages_cross(&ops);
    expect(!failed, "messages over a rail without reads", NULL);
    // one that only reads cannot be joined with one that only writes
    xtie_core_config config = {.struct_size = sizeof config, .connections_max = 1};
    xtie_core_endpoint *pushes = NULL, *pulls = NULL;
    size_t half = sizeof storage / 2;
    xtie_core_blob blob;
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_open(storage, half, &config, &ops, &ends[0], &pushes));
    caps_said.flags |= XTIE_PROVIDER_CAP_PULL;
    caps_said.flags &= ~(uint32_t)XTIE_PROVIDER_CAP_IMMEDIATE;
    SAYS(XTIE_CORE_OK,
         xtie_core_endpoint_open(storage + half, half, &config, &ops, &ends[1], &pulls));
    SAYS(XTIE_CORE_OK, xtie_core_connection_blob(pushes, 0, &blob));
    SAYS(XTIE_CORE_ERR_PEER_OTHER, xtie_core_connection_open(pulls, 0, &blob));
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(pulls));
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(pushes));
}

// What is outstanding when the rail dies, or the other end goes, ends by name.
static void requests_end_with_their_peer(void)
{
    uint64_t receive = 0;
    int done = 0, code = XTIE_CORE_OK;
    xtie_core_buffer buffer = {.data = messages[1], .bytes = 8, .tag = TAG};
    for (int dies = 0; dies < 2; dies++) {
        endpoints_open(&vendor_ops);
        buffer.memory = memories[1];
        SAYS(XTIE_CORE_OK, xtie_core_connection_irecv(endpoints[1], 0, &buffer, 1, &receive));
        SAYS(XTIE_CORE_ERR_MEMORY_BUSY, xtie_core_memory_deregister(endpoints[1], memories[1]));
        if (dies)
            vendor_peer_fail(&ends[1], 0, XTIE_PROVIDER_DOWN_DIED, 0);
        else
            SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[0]));
        done = 0;
        for (int rounds = 0; rounds < 1000 && !done; rounds++) {
            xtie_core_endpoint_progress(endpoints[1], (uint64_t)rounds);
            code = xtie_core_request_test(endpoints[1], receive, &done, NULL);
        }
        expect(done && code == (dies ? XTIE_CORE_ERR_PEER_DIED : XTIE_CORE_ERR_PEER_CLOSED),
               dies ? "a receive of a dead peer" : "a receive of a peer that closed", NULL);
        SAYS(XTIE_CORE_OK, xtie_core_memory_deregister(endpoints[1], memories[1]));
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[1]));
        if (dies)
            SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[0]));
    }
}

static int polls_are_mute;

static uint32_t poll_mute(void *self, xtie_provider_event *events_out, uint32_t events_max,
                          uint64_t budget_bytes, uint64_t now_ns)
{
    uint32_t count = vendor_poll(self, events_out, events_max, budget_bytes, now_ns);
    return polls_are_mute ? 0 : count;
}

// A provider that loses what it owes, a fence here: its connection is never closed, and the
// endpoint's end gives all memory back.
static void what_a_provider_loses_ends_with_the_endpoint(void)
{
    xtie_provider_ops ops = vendor_ops;
    xtie_core_buffer buffer = {.data = messages[1], .bytes = 50000, .tag = TAG};
    uint64_t receive = 0, sent = 0;
    int done = 0, before = 0;
    ops.poll = poll_mute;
    endpoints_open(&ops);
    buffer.memory = memories[1];
    SAYS(XTIE_CORE_OK, xtie_core_connection_irecv(endpoints[1], 0, &buffer, 1, &receive));
    polls_are_mute = 1;
    for (uint64_t rounds = 0; rounds < 1000; rounds++) {
        SAYS(XTIE_CORE_AGAIN, xtie_core_connection_close(endpoints[1], 0));
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_progress(endpoints[1], rounds * 1000000000));
    }
    SAYS(XTIE_CORE_OK, xtie_core_request_test(endpoints[1], receive, &done, NULL));
    SAYS(XTIE_CORE_ERR_MEMORY_BUSY, xtie_core_memory_deregister(endpoints[1], memories[1]));
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[1]));
    polls_are_mute = 0;
    memset(messages[1], 77, 50000);
    // refused, or never to arrive
    xtie_core_connection_isend(endpoints[0], 0, messages[0], 50000, TAG, memories[0], &sent);
    for (uint64_t rounds = 0; rounds < 100; rounds++)
        xtie_core_endpoint_progress(endpoints[0], rounds);
    for (size_t at = 0; at < 50000; at++)
        before += messages[1][at] == 77;
    expect(!done && before == 50000, "what a provider has lost", NULL);
    SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[0]));
}

// Both receives of a group tell what was sent, also where it was longer than its room.
static void lengths_of_a_short_group_are_told(void)
{
    static const size_t sent[2] = {50, 33}, rooms[2] = {10, 100};
    xtie_core_buffer buffers[2] = {{.tag = TAG}, {.tag = TAG + 1}};
    uint64_t sends[2] = {0}, receive = 0;
    size_t told[2] = {777, 777};
    int done = 0, code = XTIE_CORE_OK, sends_done[2] = {0};
    endpoints_open(&vendor_ops);
    for (int n = 0; n < 2; n++) {
        buffers[n].data = messages[1] + 1000 * n;
        buffers[n].bytes = rooms[n];
        buffers[n].memory = memories[1];
    }
    SAYS(XTIE_CORE_OK, xtie_core_connection_irecv(endpoints[1], 0, buffers, 2, &receive));
    for (int n = 0; n < 2; n++)
        SAYS(XTIE_CORE_OK, xtie_core_connection_isend(endpoints[0], 0, messages[0], sent[n],
                                                      TAG + n, memories[0], &sends[n]));
    for (int rounds = 0; rounds < 1000 && !done; rounds++) {
        progress();
        code = xtie_core_request_test(endpoints[1], receive, &done, told);
    }
    expect(done && code == XTIE_CORE_ERR_TRUNCATED, "a group with a message too long", NULL);
    expect(told[0] == sent[0] && told[1] == sent[1], "the lengths of such a group", NULL);
    for (int n = 0; n < 2; n++)
        while (!failed && !sends_done[n]) {
            progress();
            xtie_core_request_test(endpoints[0], sends[n], &sends_done[n], NULL);
        }
    endpoints_close();
    expect(!failed, "a group with a message too long", NULL);
}

static uint32_t dice_state;

static uint32_t dice(void)
{
    dice_state = dice_state * 1664525 + 1013904223;
    return dice_state >> 8;
}

// An op that was never posted ends, or one of another time: a request that is under way does not
// end with it, nor does the program.
static void unknown_completions_end_nothing(void)
{
    xtie_core_buffer buffer = {.data = messages[1], .bytes = 50000, .tag = TAG};
    for (uint64_t id = 0; id < 256; id++) {
        uint64_t receive = 0;
        int done = 0;
        endpoints_open(&vendor_ops);
        if (id % 2)
            message_cross(50000);
        buffer.memory = memories[1];
        SAYS(XTIE_CORE_OK, xtie_core_connection_irecv(endpoints[1], 0, &buffer, 1, &receive));
        event_put(&ends[1], XTIE_PROVIDER_EVENT_DONE)->id = id % 8 << 32 | id / 8 << 8;
        SAYS(XTIE_CORE_ERR_BREACH, xtie_core_endpoint_progress(endpoints[1], 1));
        SAYS(XTIE_CORE_ERR_BREACH, xtie_core_request_test(endpoints[1], receive, &done, NULL));
        expect(!done, "a receive without its message", NULL);
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[0]));
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[1]));
    }
}

static void progress_goes_on_or_says_breach(unsigned side, uint64_t now_ns, int is_none)
{
    int answer = xtie_core_endpoint_progress(endpoints[side], now_ns);
    expect(answer == XTIE_CORE_ERR_BREACH || (answer == XTIE_CORE_OK && !is_none),
           "progress beside invented events", NULL);
}

// Events that nobody caused, each of a kind that there is: whatever becomes of the connection, the
// machine does not trap.
static void invented_events_end_no_program(void)
{
    for (uint32_t seed = 0; seed < 300; seed++) {
        dice_state = seed;
        endpoints_open(&vendor_ops);
        if (seed % 3 == 1)
            message_cross(5000);
        for (int n = 0; n < 3; n++) {
            xtie_provider_event *event = event_put(&ends[0], 1 + seed % 5);
            event->id = seed % 2 ? dice() : (uint64_t)dice() << 32 | dice();
            event->status = 1 + dice() % 4;
            event->word = dice();
            event->bytes = dice() % 100;
            for (size_t at = 0; at < sizeof event->head; at++)
                event->head[at] = (unsigned char)(seed % 4 ? dice() : dice() % 7);
            if (event->kind == XTIE_PROVIDER_EVENT_RECEIVED) {
                event->id %= SLOTS;
                ends[0].payload_bytes[event->id] = event->bytes;
                ends[0].held[event->id] = 1;
            }
            int is_none = event->kind == XTIE_PROVIDER_EVENT_DONE ||
                          event->kind == XTIE_PROVIDER_EVENT_FENCED;
            for (uint64_t round = 0; round < 5; round++) {
                progress_goes_on_or_says_breach(0, round, is_none && round == 4);
                progress_goes_on_or_says_breach(1, round, 0);
            }
        }
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[0]));
        SAYS(XTIE_CORE_OK, xtie_core_endpoint_close(endpoints[1]));
    }
    expect(!failed, "endpoints beside invented events", NULL);
}

static void sentences_are_there(void)
{
    const char *none = xtie_core_result_str(-9999);
    const int codes[] = {XTIE_CORE_ERR_ENTRY, XTIE_CORE_ERR_STRUCT_SIZE, XTIE_CORE_ERR_CAPS_WAY,
                         XTIE_CORE_ERR_BREACH, XTIE_CORE_ERR_PROMISE, XTIE_CORE_ERR_RAIL_SMALL};
    for (size_t n = 0; n < sizeof codes / sizeof *codes; n++)
        expect(xtie_core_result_str(codes[n]) != none, "a sentence", NULL);
}

int main(void)
{
    xtie_conformance_result result;
    expect(suite_run(&vendor_ops, &result) == XTIE_CORE_OK, "the example itself", &result);
    faults_are_found(0);
    faults_are_found(1);
    small_caps_pass();
    tables_are_checked();
    caps_are_checked();
    refusals_are_told();
    rails_are_refused();
    configurations_are_checked();
    endpoints_say_what_is_wrong();
    rails_without_reads_push();
    rails_of_unequal_lengths_push();
    requests_end_with_their_peer();
    what_a_provider_loses_ends_with_the_endpoint();
    lengths_of_a_short_group_are_told();
    unknown_completions_end_nothing();
    invented_events_end_no_program();
    sentences_are_there();
    printf("%zu faults, %d not as expected\n", sizeof faults / sizeof *faults - 1, failures);
    return failures != 0;
}
