/* The strict fabric: the queue of events. See strict.c. */
#include "strict.h"

/* A failure that no op is the cause of: where nobody hears of it, the process ends, as efa's. */
void fail_beside(struct endpoint *ep) {
    if (ep->has_failed)
        return;
    ep->has_failed = 1;
    if (!ep->events)
        stop("a failure of no op, which nobody can be told of");
    ep->events->failures++;
}

static int close_events(struct fid *fid) {
    struct events *events = (struct events *)fid;
    enter_network(events->fabric, NULL);
    if (!events->is_open)
        stop("an event queue closed twice");
    if (events->users)
        stop("an event queue closed before its endpoints");
    events->is_open = 0;
    events->fabric->others--;
    leave_network(events->fabric, NULL);
    return 0;
}

static ssize_t read_inside(struct events *events, uint32_t *what, void *out, size_t length) {
    pthread_mutex_lock(&lock);
    if (!events->is_open)
        stop("an event queue read that was closed");
    int failures = events->failures;
    pthread_mutex_unlock(&lock);
    if (failures || !(events->fabric->kind->faults & FLOODS_EVENTS))
        return failures ? -FI_EAVAIL : -FI_EAGAIN;
    struct fi_eq_entry *entry = out;
    if (length < sizeof *entry)
        stop("an event read without room for it");
    *what = FI_AV_COMPLETE;
    *entry = (struct fi_eq_entry){.fid = NULL};
    return sizeof *entry;
}

static ssize_t read_events(struct fid_eq *fid, uint32_t *what, void *out, size_t length,
                           uint64_t flags) {
    struct events *events = (struct events *)fid;
    (void)flags;
    enter_network(events->fabric, NULL);
    ssize_t read = read_inside(events, what, out, length);
    leave_network(events->fabric, NULL);
    return read;
}

static ssize_t failure_inside(struct events *events, struct fi_eq_err_entry *out) {
    pthread_mutex_lock(&lock);
    if (!events->failures) {
        pthread_mutex_unlock(&lock);
        return -FI_EAGAIN;
    }
    events->failures--;
    out->fid = NULL;
    out->err = FI_EIO;
    out->prov_errno = -FI_EIO - 1000;
    pthread_mutex_unlock(&lock);
    return sizeof *out;
}

static ssize_t read_failure(struct fid_eq *fid, struct fi_eq_err_entry *out, uint64_t flags) {
    struct events *events = (struct events *)fid;
    (void)flags;
    enter_network(events->fabric, NULL);
    ssize_t read = failure_inside(events, out);
    leave_network(events->fabric, NULL);
    return read;
}

int open_events(struct fid_fabric *fid, struct fi_eq_attr *attr, struct fid_eq **out, void *ours) {
    static struct fi_ops fid_ops = {sizeof fid_ops, close_events, NULL, NULL, NULL, NULL, NULL};
    static struct fi_ops_eq ops = {.size = sizeof ops, .read = read_events,
                                   .readerr = read_failure};
    (void)attr;
    struct events *events = calloc(1, sizeof *events);
    events->fid.fid = (struct fid){FI_CLASS_EQ, ours, &fid_ops};
    events->fid.ops = &ops;
    events->is_open = 1;
    events->fabric = (struct fabric *)fid;
    enter_network(events->fabric, NULL);
    events->fabric->others++;
    leave_network(events->fabric, NULL);
    *out = &events->fid;
    return 0;
}

void bind_events(struct endpoint *ep, struct events *events) {
    if (!events->is_open)
        stop("an endpoint joined to a closed event queue");
    ep->events = events;
    events->users++;
}
