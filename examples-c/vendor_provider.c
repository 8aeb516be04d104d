// A whole provider in C: a loopback whose two ends are objects of their own, in static memory. The
// program links libcrosstie-core.a and nothing else of the library. It runs the conformance suite
// over the provider, then an endpoint on each end, and sends messages from one to the other.
//
// Small ops happen inside post; a write or a read longer than POST_BYTES is a job that the polls of
// the end that posted it work on, within their budget, and later ops of that end wait behind it.
#include <crosstie_provider.h>
#include <stdio.h>
#include <string.h>

enum {
    ENDS = 2,
    PEERS = 2,           // limits.peers_max at most
    SLOTS = 64,          // messages that may be received and not released, of one end
    SEND_BYTES = 2048,   // longest payload
    EVENTS = 512,        // events that wait for a poll, of one end; a power of two
    JOBS = 64,           // ops that wait behind a long one, of one end; a power of two
    REGIONS = 32,        // registered at a time, of one end
    POST_BYTES = 4096,   // longest copy that post makes itself
    GRANULE_BYTES = 64,  // what a poll copies at least when it copies
};

enum { CLOSED, OPEN, FENCED, DOWN };  // states of a peer

typedef struct {
    uint32_t generation;  // odd while it is registered; a part of its key
    uint32_t pins;        // jobs that use it
    uint64_t address, bytes;
} region;

typedef struct {
    xtie_provider_op op;
    unsigned char data[XTIE_PROVIDER_LINE_BYTES];  // copied at post
    uint64_t done;                                 // bytes copied so far
    uint32_t slot;                                 // of a send: filled, not yet shown
    region *near_region, *far_region;              // pinned while it waits
} job;

// One end: what open makes. An end has one peer open at most, whose other end is the other end's.
typedef struct end {
    struct end *other;
    int state;
    uint32_t peer;      // its number
    uint32_t in_flight; // ops taken whose completion was not polled
    xtie_provider_event events[EVENTS];
    uint32_t events_head, events_tail;
    job jobs[JOBS];
    uint32_t jobs_head, jobs_tail;
    region regions[REGIONS];
    uint32_t regions_max;
    unsigned char payloads[SLOTS][SEND_BYTES];
    uint32_t payload_bytes[SLOTS];
    unsigned char held[SLOTS];
} end;

static end ends[ENDS];

// ---------------------------------------------------------------- events

// Room for an event, with one kept for the end of the peer and one for what an op becomes.
static int events_room(const end *e) { return EVENTS - (e->events_tail - e->events_head); }

static xtie_provider_event *event_put(end *e, uint32_t kind)
{
    xtie_provider_event *event = &e->events[e->events_tail++ % EVENTS];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->peer = e->peer;
    return event;
}

static void op_end(end *e, uint64_t id, uint32_t status)
{
    xtie_provider_event *event = event_put(e, XTIE_PROVIDER_EVENT_DONE);
    event->id = id;
    event->status = status;
}

// An op that was taken has ended: later in any case, so that what came before it is told first.
static int taken(end *e, uint64_t id, uint32_t status)
{
    e->in_flight++;
    op_end(e, id, status);
    return XTIE_PROVIDER_OK;
}

// ---------------------------------------------------------------- regions

static uint64_t key_of(const end *e, const region *r)
{
    return (uint64_t)r->generation << 32 | (uint64_t)(r - e->regions);
}

// The region of e that key names.
static region *region_of(end *e, uint64_t key)
{
    uint32_t index = (uint32_t)key;
    if (index >= REGIONS || !(key >> 32 & 1) || e->regions[index].generation != key >> 32)
        return NULL;
    return &e->regions[index];
}

// The same, if the range lies inside of it.
static region *region_find(end *e, uint64_t key, uint64_t address, uint64_t bytes)
{
    region *r = region_of(e, key);
    if (r == NULL)
        return NULL;
    uint64_t offset = address - r->address;  // far beyond when it lies before
    return offset <= r->bytes && bytes <= r->bytes - offset ? r : NULL;
}

static int vendor_region_register(void *self, uint64_t address, uint64_t bytes, uint32_t kind,
                                  uint64_t *key_out)
{
    end *e = self;
    // MAPPED is memory of xtie_memory_alloc: pages of the process, too
    if (kind != XTIE_PROVIDER_MEMORY_HOST && kind != XTIE_PROVIDER_MEMORY_MAPPED)
        return XTIE_PROVIDER_KIND;
    if (bytes == 0 || address + bytes < address)
        return XTIE_PROVIDER_RANGE;
    for (uint32_t n = 0; n < e->regions_max; n++) {
        region *r = &e->regions[n];
        if (r->generation & 1)
            continue;
        r->generation++;
        r->address = address;
        r->bytes = bytes;
        *key_out = key_of(e, r);
        return XTIE_PROVIDER_OK;
    }
    return XTIE_PROVIDER_FULL;
}

static int vendor_region_deregister(void *self, uint64_t key)
{
    region *r = region_of(self, key);
    if (r == NULL)
        return XTIE_PROVIDER_STALE;
    if (r->pins != 0)
        return XTIE_PROVIDER_BUSY;
    r->generation++;
    return XTIE_PROVIDER_OK;
}

// ---------------------------------------------------------------- moving bytes

static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

// A free receive slot of e, or SLOTS.
static uint32_t slot_find(const end *e)
{
    uint32_t slot = 0;
    while (slot < SLOTS && e->held[slot])
        slot++;
    return slot;
}

static void slot_fill(end *to, uint32_t slot, const xtie_provider_op *op)
{
    if (op->local.bytes != 0)
        memcpy(to->payloads[slot], at(op->local.address), op->local.bytes);
    to->payload_bytes[slot] = (uint32_t)op->local.bytes;
    to->held[slot] = 1;
}

static void message_show(end *to, uint32_t slot, const unsigned char *head)
{
    xtie_provider_event *event = event_put(to, XTIE_PROVIDER_EVENT_RECEIVED);
    event->id = slot;
    event->bytes = to->payload_bytes[slot];
    memcpy(event->head, head, sizeof event->head);
}

static uint64_t op_bytes(const xtie_provider_op *op)
{
    if (op->kind == XTIE_PROVIDER_OP_ADD)
        return sizeof op->value;
    return op->flags & XTIE_PROVIDER_OP_LINE ? XTIE_PROVIDER_LINE_BYTES : op->local.bytes;
}

// Up to bytes of an op, from done on; says how many are left.
static uint64_t op_move(const xtie_provider_op *op, const unsigned char *data, uint64_t done,
                        uint64_t bytes)
{
    uint64_t whole = op_bytes(op), part = whole - done < bytes ? whole - done : bytes;
    unsigned char *far_end = at(op->remote.address + done);
    if (op->kind == XTIE_PROVIDER_OP_ADD) {
        uint64_t *word = at(op->remote.address);
        *word += op->value;
        part = whole;
    } else if (part != 0 && op->kind == XTIE_PROVIDER_OP_READ) {
        memmove(at(op->local.address + done), far_end, part);
    } else if (part != 0) {
        int line = (op->flags & XTIE_PROVIDER_OP_LINE) != 0;
        const unsigned char *from = line ? data + done : at(op->local.address + done);
        memmove(far_end, from, part);
    }
    return whole - done - part;
}

// What the other end is told of an op whose bytes are there.
static void op_show(end *e, const xtie_provider_op *op, const unsigned char *data, uint32_t slot)
{
    if (op->kind == XTIE_PROVIDER_OP_SEND)
        message_show(e->other, slot, data);
    else if (op->flags & XTIE_PROVIDER_OP_IMMEDIATE)
        event_put(e->other, XTIE_PROVIDER_EVENT_IMMEDIATE)->word = op->immediate;
}

// ---------------------------------------------------------------- jobs

static int jobs_any(const end *e) { return e->jobs_head != e->jobs_tail; }

static void job_release(end *e, job *j)
{
    if (j->near_region != NULL)
        j->near_region->pins--;
    if (j->far_region != NULL)
        j->far_region->pins--;
    e->jobs_head++;
}

static void jobs_work(end *e, uint64_t budget)
{
    while (jobs_any(e)) {
        job *j = &e->jobs[e->jobs_head % JOBS];
        uint64_t left = op_bytes(&j->op) - j->done;
        if (j->op.kind != XTIE_PROVIDER_OP_SEND && left != 0) {
            if (budget == 0)
                return;
            uint64_t part = left < budget ? left : budget;
            if (part < GRANULE_BYTES)
                part = GRANULE_BYTES;
            uint64_t rest = op_move(&j->op, j->data, j->done, part);
            budget -= left - rest < budget ? left - rest : budget;
            j->done += left - rest;
            if (rest != 0)
                return;
        }
        op_show(e, &j->op, j->data, j->slot);
        op_end(e, j->op.id, XTIE_PROVIDER_OP_OK);
        job_release(e, j);
    }
}

// Ends every job of e without carrying it out.
static void jobs_end(end *e, uint32_t status)
{
    while (jobs_any(e)) {
        job *j = &e->jobs[e->jobs_head % JOBS];
        if (j->op.kind == XTIE_PROVIDER_OP_SEND)
            e->other->held[j->slot] = 0;
        op_end(e, j->op.id, status);
        job_release(e, j);
    }
}

// ---------------------------------------------------------------- the table's functions

static void end_down(end *e, uint32_t cause)
{
    if (e->state != OPEN && e->state != FENCED)
        return;
    jobs_end(e, XTIE_PROVIDER_OP_PEER_DOWN);
    e->state = DOWN;
    event_put(e, XTIE_PROVIDER_EVENT_PEER_DOWN)->status = cause;
}

static int vendor_open(void *context, const xtie_provider_limits *limits, void **provider_out)
{
    end *e = context;
    if (limits->peers_max > PEERS || limits->regions_max > REGIONS)
        return XTIE_PROVIDER_CODE - 12;  // ENOMEM
    memset(e, 0, sizeof *e);
    e->other = e == &ends[0] ? &ends[1] : &ends[0];
    e->regions_max = limits->regions_max;
    *provider_out = e;
    return XTIE_PROVIDER_OK;
}

static void vendor_close(void *self)
{
    end *e = self;
    if (e->other != NULL)
        jobs_end(e, XTIE_PROVIDER_OP_CANCELED);  // they hold regions of the other end
    if (e->other != NULL && e->other->other == e && e->other->state != CLOSED)
        end_down(e->other, XTIE_PROVIDER_DOWN_CLOSED);
    memset(e, 0, sizeof *e);
}

static void vendor_caps(void *self, xtie_provider_caps *caps)
{
    (void)self;
    caps->flags = XTIE_PROVIDER_CAP_PULL | XTIE_PROVIDER_CAP_IMMEDIATE | XTIE_PROVIDER_CAP_ORDERED |
                  XTIE_PROVIDER_CAP_COPIES_AT_POST;
    caps->send_bytes_max = SEND_BYTES;
    caps->transfer_bytes_max = (uint64_t)1 << 40;
    caps->copy_granule_bytes = GRANULE_BYTES;
    caps->recv_slots = SLOTS;
    caps->blob_bytes = sizeof(uint32_t);
    caps->atomic_bytes = 8;
    caps->fence = XTIE_PROVIDER_FENCE_LOCAL;
    caps->syscalls = XTIE_PROVIDER_SYSCALLS_NONE;
}

// The blob of a NIC would be its address; ours is the number of the end.
static int vendor_peer_blob(void *self, uint32_t peer, void *blob_out)
{
    uint32_t number = (uint32_t)((end *)self - ends);
    (void)peer;
    memcpy(blob_out, &number, sizeof number);
    return XTIE_PROVIDER_OK;
}

static int vendor_peer_open(void *self, uint32_t peer, const void *blob)
{
    end *e = self;
    uint32_t number;
    memcpy(&number, blob, sizeof number);
    if (number >= ENDS || &ends[number] != e->other)
        return XTIE_PROVIDER_BLOB;
    if (e->state != CLOSED)
        return XTIE_PROVIDER_CODE - 16;  // EBUSY
    e->state = OPEN;
    e->peer = peer;
    return XTIE_PROVIDER_OK;
}

// Checks an op against the caps, and finds the regions that it touches. Negative: an answer of
// post. 0: go on; 1: it was taken, and ends with an error.
static int op_check(end *e, const xtie_provider_op *op, region **near_region, region **far_region)
{
    uint64_t bytes = op_bytes(op);
    *near_region = *far_region = NULL;
    if (op->kind == XTIE_PROVIDER_OP_SEND)
        return bytes > SEND_BYTES ? XTIE_PROVIDER_UNSUPPORTED : 0;
    if (bytes > (uint64_t)1 << 40 ||
        (op->kind == XTIE_PROVIDER_OP_ADD && op->remote.address % 8 != 0))
        return XTIE_PROVIDER_UNSUPPORTED;
    if (bytes == 0)
        return 0;  // touches nothing, so its keys do not count
    int uses_local = op->kind != XTIE_PROVIDER_OP_ADD && !(op->flags & XTIE_PROVIDER_OP_LINE);
    *far_region = region_find(e->other, op->remote.key, op->remote.address, bytes);
    if (uses_local)
        *near_region = region_find(e, op->local.key, op->local.address, bytes);
    return *far_region == NULL || (uses_local && *near_region == NULL);
}

static int vendor_post(void *self, const xtie_provider_op *op, uint64_t now_ns)
{
    end *e = self;
    region *near_region, *far_region;
    uint32_t slot = SLOTS;
    (void)now_ns;
    if (e->state != OPEN || op->peer != e->peer)
        return XTIE_PROVIDER_PEER_DOWN;
    if (e->other->state != OPEN)
        return e->other->state == CLOSED ? XTIE_PROVIDER_AGAIN : XTIE_PROVIDER_PEER_DOWN;
    // what ops become must fit, whatever happens to those that wait
    if (events_room(e) < 2 * JOBS + 4 || events_room(e->other) < 2 * JOBS + 4)
        return XTIE_PROVIDER_AGAIN;
    int checked = op_check(e, op, &near_region, &far_region);
    if (checked < 0)
        return checked;
    if (checked > 0)
        return taken(e, op->id, XTIE_PROVIDER_OP_KEY);
    if (op->kind == XTIE_PROVIDER_OP_SEND && (slot = slot_find(e->other)) == SLOTS)
        return XTIE_PROVIDER_AGAIN;
    int at_once = !jobs_any(e) && (op->kind == XTIE_PROVIDER_OP_SEND || op_bytes(op) <= POST_BYTES);
    if (!at_once && e->jobs_tail - e->jobs_head == JOBS)
        return XTIE_PROVIDER_AGAIN;
    if (slot != SLOTS)
        slot_fill(e->other, slot, op);
    if (at_once) {
        if (op->kind != XTIE_PROVIDER_OP_SEND)
            op_move(op, op->data, 0, op_bytes(op));
        op_show(e, op, op->data, slot);
        return XTIE_PROVIDER_DONE;
    }
    job *j = &e->jobs[e->jobs_tail++ % JOBS];
    *j = (job){.op = *op, .slot = slot, .near_region = near_region, .far_region = far_region};
    if (op->data != NULL)
        memcpy(j->data, op->data,
               op->kind == XTIE_PROVIDER_OP_SEND ? XTIE_PROVIDER_HEAD_BYTES
                                                 : XTIE_PROVIDER_LINE_BYTES);
    if (near_region != NULL)
        near_region->pins++;
    if (far_region != NULL)
        far_region->pins++;
    e->in_flight++;
    return XTIE_PROVIDER_OK;
}

static uint32_t vendor_poll(void *self, xtie_provider_event *events_out, uint32_t events_max,
                            uint64_t budget_bytes, uint64_t now_ns)
{
    end *e = self;
    uint32_t count = 0;
    (void)now_ns;
    jobs_work(e, budget_bytes);
    while (count < events_max && e->events_head != e->events_tail) {
        const xtie_provider_event *event = &e->events[e->events_head++ % EVENTS];
        if (event->kind == XTIE_PROVIDER_EVENT_DONE || event->kind == XTIE_PROVIDER_EVENT_FENCED)
            e->in_flight--;
        events_out[count++] = *event;
    }
    return count;
}

// Both ends are ours: when the jobs of both have ended and the peer is told, nothing can move.
static int vendor_fence_begin(void *self, uint32_t peer, uint64_t id, uint32_t generation,
                              uint64_t now_ns)
{
    end *e = self;
    (void)now_ns;
    if (e->state == CLOSED || peer != e->peer)
        return XTIE_PROVIDER_PEER_DOWN;
    if (events_room(e) < JOBS + 4)
        return XTIE_PROVIDER_AGAIN;
    if (e->state == OPEN) {
        jobs_end(e, XTIE_PROVIDER_OP_CANCELED);
        e->state = FENCED;
        end_down(e->other, XTIE_PROVIDER_DOWN_CLOSED);
    }
    xtie_provider_event *event = event_put(e, XTIE_PROVIDER_EVENT_FENCED);
    event->id = id;
    event->word = generation;
    e->in_flight++;
    return XTIE_PROVIDER_OK;
}

static void vendor_received_copy(void *self, uint32_t peer, uint64_t slot, uint64_t offset,
                                 const xtie_provider_span *to)
{
    (void)peer;
    if (to->bytes != 0)
        memcpy(at(to->address), ((end *)self)->payloads[slot] + offset, to->bytes);
}

static void vendor_received_release(void *self, uint32_t peer, uint64_t slot)
{
    (void)peer;
    ((end *)self)->held[slot] = 0;
}

static void vendor_peer_fail(void *self, uint32_t peer, uint32_t cause, int32_t code)
{
    end *e = self;
    (void)code;
    if ((e->state != OPEN && e->state != FENCED) || peer != e->peer)
        return;
    end_down(e, cause);
    end_down(e->other, cause);
}

// Slots that no event tells of any more are nobody's; those that were polled stay held.
static void events_forget(end *e)
{
    for (; e->events_head != e->events_tail; e->events_head++) {
        const xtie_provider_event *event = &e->events[e->events_head % EVENTS];
        if (event->kind == XTIE_PROVIDER_EVENT_RECEIVED)
            e->held[event->id] = 0;
    }
}

static int vendor_peer_detach(void *self, uint32_t peer)
{
    end *e = self;
    if (e->state == CLOSED || peer != e->peer)
        return XTIE_PROVIDER_STALE;
    if (e->in_flight != 0)
        return XTIE_PROVIDER_BUSY;
    if (e->state == OPEN)
        end_down(e->other, XTIE_PROVIDER_DOWN_CLOSED);
    e->state = CLOSED;
    events_forget(e);
    return XTIE_PROVIDER_OK;
}

static int vendor_peer_close(void *self, uint32_t peer)
{
    int answer = vendor_peer_detach(self, peer);
    if (answer == XTIE_PROVIDER_OK)
        memset(((end *)self)->held, 0, sizeof((end *)self)->held);
    return answer;
}

static const xtie_provider_ops vendor_ops = {
    .struct_size = sizeof(xtie_provider_ops),
    .open = vendor_open,
    .close = vendor_close,
    .caps = vendor_caps,
    .peer_blob = vendor_peer_blob,
    .peer_open = vendor_peer_open,
    .region_register = vendor_region_register,
    .region_deregister = vendor_region_deregister,
    .post = vendor_post,
    .poll = vendor_poll,
    .fence_begin = vendor_fence_begin,
    .received_copy = vendor_received_copy,
    .received_release = vendor_received_release,
    .peer_fail = vendor_peer_fail,
    .peer_close = vendor_peer_close,
    .peer_detach = vendor_peer_detach,
};

// ---------------------------------------------------------------- what is done with it

static _Alignas(64) unsigned char storage[XTIE_CONFORMANCE_BYTES];

// The suite over a table; result_out is what it says.
static int suite_run(const xtie_provider_ops *ops, xtie_conformance_result *result_out)
{
    xtie_conformance_setup setup = {.struct_size = sizeof setup,
                                    .context_a = &ends[0],
                                    .context_b = &ends[1],
                                    .storage = storage,
                                    .storage_bytes = sizeof storage};
    return xtie_conformance_run(ops, &setup, result_out);
}

enum { MESSAGE_BYTES = 100003, TAG = 7 };

static unsigned char messages[ENDS][MESSAGE_BYTES];
static xtie_core_endpoint *endpoints[ENDS];
static uint64_t memories[ENDS];

#define CHECK(call) check((call), #call)

static int failed;

static int check(int result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, xtie_core_result_str(result));
        failed = 1;
    }
    return result;
}

static void progress(void)
{
    for (int n = 0; n < ENDS; n++)
        CHECK(xtie_core_endpoint_progress(endpoints[n], 0));
}

// Both ends in the two halves of the storage, joined by the blobs that each wrote.
static void endpoints_open(const xtie_provider_ops *ops)
{
    xtie_core_config config = {.struct_size = sizeof config, .connections_max = 1};
    xtie_core_blob blobs[ENDS];
    size_t bytes = 0;
    CHECK(xtie_core_endpoint_size(&config, &bytes));
    for (int n = 0; n < ENDS && !failed; n++) {
        CHECK(xtie_core_endpoint_open(storage + n * (sizeof storage / 2), sizeof storage / 2,
                                      &config, ops, &ends[n], &endpoints[n]));
        CHECK(xtie_core_memory_register(endpoints[n], messages[n], MESSAGE_BYTES,
                                        XTIE_PROVIDER_MEMORY_HOST, &memories[n]));
        CHECK(xtie_core_connection_blob(endpoints[n], 0, &blobs[n]));
    }
    for (int n = 0; n < ENDS && !failed; n++)
        CHECK(xtie_core_connection_open(endpoints[n], 0, &blobs[1 - n]));
}

// One message from the first end to the second, compared byte for byte.
static void message_cross(size_t bytes)
{
    uint64_t send = 0, receive = 0;
    size_t received = 0;
    int sent_done = 0, received_done = 0;
    xtie_core_buffer buffer = {.data = messages[1], .bytes = bytes, .tag = TAG};
    buffer.memory = memories[1];
    for (size_t n = 0; n < bytes; n++)
        messages[0][n] = (unsigned char)(n * 7 + bytes);
    memset(messages[1], 0, bytes);
    CHECK(xtie_core_connection_irecv(endpoints[1], 0, &buffer, 1, &receive));
    CHECK(xtie_core_connection_isend(endpoints[0], 0, messages[0], bytes, TAG, memories[0], &send));
    while (!failed && !(sent_done && received_done)) {
        progress();
        if (!sent_done)
            CHECK(xtie_core_request_test(endpoints[0], send, &sent_done, NULL));
        if (!received_done)
            CHECK(xtie_core_request_test(endpoints[1], receive, &received_done, &received));
    }
    if (!failed && (received != bytes || memcmp(messages[0], messages[1], bytes) != 0)) {
        fprintf(stderr, "a message of %zu bytes arrived as something else\n", bytes);
        failed = 1;
    }
}

static void endpoints_close(void)
{
    int closed[ENDS] = {0};
    while (!failed && !(closed[0] && closed[1])) {
        for (int n = 0; n < ENDS; n++)
            if (!closed[n])
                closed[n] = CHECK(xtie_core_connection_close(endpoints[n], 0)) == XTIE_CORE_OK;
        progress();
    }
    for (int n = 0; n < ENDS && !failed; n++) {
        CHECK(xtie_core_memory_deregister(endpoints[n], memories[n]));
        CHECK(xtie_core_endpoint_close(endpoints[n]));
    }
}

static void messages_cross(const xtie_provider_ops *ops)
{
    static const size_t lengths[] = {0, 1, 8, 2000, 2048, 2049, 65536, MESSAGE_BYTES};
    endpoints_open(ops);
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths && !failed; n++)
        message_cross(lengths[n]);
    endpoints_close();
}

#ifndef VENDOR_PROVIDER_ALONE  // another program may have the rest without this

int main(void)
{
    xtie_conformance_result result;
    if (suite_run(&vendor_ops, &result) != XTIE_CORE_OK) {
        fprintf(stderr, "P%u %s: %s (%s)\n", (unsigned)result.promise, result.entry_name,
                result.why, xtie_core_result_str(result.result));
        return 1;
    }
    for (uint32_t entry = 0; entry < XTIE_CONFORMANCE_ENTRIES; entry++) {
        char name[XTIE_CONFORMANCE_NAME_BYTES];
        uint32_t promise = 0;
        xtie_conformance_entry(entry, name, &promise);
        printf("P%-2u %-7s %s\n", (unsigned)promise,
               result.passed >> entry & 1 ? "passed" : "skipped", name);
    }
    messages_cross(&vendor_ops);
    if (!failed)
        printf("messages of 0 to %d bytes arrived whole\n", MESSAGE_BYTES);
    return failed;
}

#endif
