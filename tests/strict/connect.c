/* The strict fabric: connections of endpoints one to one. See strict.c. */
#include "strict.h"

static void happen(struct events *events, struct event event) {
    struct event *made = malloc(sizeof *made);
    *made = event;
    made->next = NULL;
    struct event **last = &events->first;
    while (*last)
        last = &(*last)->next;
    *last = made;
}

static void fail(struct endpoint *ep, int err) {
    ep->phase = ENDED;
    if (ep->events)
        happen(ep->events, (struct event){.what = FI_SHUTDOWN, .fid = &ep->fid.fid, .err = err});
}

/* A failure that no op is the cause of: where nobody hears of it, the process ends, as efa's. */
void fail_beside(struct endpoint *ep) {
    if (ep->has_failed)
        return;
    ep->has_failed = 1;
    if (!ep->events)
        stop("a failure of no op, which nobody can be told of");
    happen(ep->events, (struct event){.what = FI_NOTIFY, .fid = NULL, .err = FI_EIO});
}

/* ---------------------------------------------------------------- event queues */

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

/* Whether its provider goes on for ever in this way, behind what is to be told. */
static int goes_on(const struct events *events, uint64_t how) {
    const struct kind *kind = events->fabric->kind;
    return kind->faults & how && (events->was_connected || !(kind->faults & CONNECTS));
}

static ssize_t read_inside(struct events *events, uint32_t *what, void *out, size_t length) {
    struct fi_eq_cm_entry *entry = out;
    pthread_mutex_lock(&lock);
    if (!events->is_open)
        stop("an event queue read that was closed");
    struct event *event = events->first;
    if (!event && goes_on(events, FLOODS_EVENTS)) {
        pthread_mutex_unlock(&lock);
        *what = FI_AV_COMPLETE;
        *entry = (struct fi_eq_cm_entry){.fid = NULL};
        return sizeof *entry;
    }
    if (!event || event->err) {
        int failed = event || goes_on(events, FAILS_EVENTS);
        pthread_mutex_unlock(&lock);
        return failed ? -FI_EAVAIL : -FI_EAGAIN;
    }
    if (length < sizeof *entry + event->length)
        stop("an event read without room for what came with it");
    events->first = event->next;
    *what = event->what;
    entry->fid = event->fid;
    entry->info = event->info;
    memcpy(entry->data, event->data, event->length);
    if (event->request)
        event->request->is_read = 1;
    if (event->what == FI_CONNECTED) {
        ((struct endpoint *)event->fid)->phase = CONNECTED;
        events->was_connected = 1;
    }
    ssize_t read = sizeof *entry + event->length;
    free(event);
    pthread_mutex_unlock(&lock);
    return read;
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
    struct event *event = events->first;
    if (!event && goes_on(events, FAILS_EVENTS)) {
        pthread_mutex_unlock(&lock);
        out->fid = NULL;
        out->err = FI_EIO;
        out->prov_errno = -FI_EIO - 1000;
        return sizeof *out;
    }
    if (!event || !event->err) {
        pthread_mutex_unlock(&lock);
        return -FI_EAGAIN;
    }
    events->first = event->next;
    out->fid = event->fid;
    out->err = event->err;
    out->prov_errno = -event->err - 1000;
    free(event);
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

/* An endpoint is closed: what happened to it is of no interest any more. */
void forget_events(struct endpoint *ep) {
    for (struct event **list = &ep->events->first; *list;) {
        struct event *event = *list;
        if (event->fid == &ep->fid.fid) {
            *list = event->next;
            free(event);
        } else {
            list = &event->next;
        }
    }
    ep->events->users--;
}

/* ---------------------------------------------------------------- who listens */

static int close_listener(struct fid *fid) {
    struct listener *listener = (struct listener *)fid;
    enter_network(listener->fabric, NULL);
    pthread_mutex_lock(&lock);
    if (!listener->is_open)
        stop("a listener closed twice");
    listener->is_open = 0;
    for (struct request *request = listener->requests; request; request = request->next) {
        if (request->is_taken || request->is_answered)
            continue;
        /* tcp keeps its socket until the process ends */
        stop(request->is_read ? "a request for a connection that was never answered"
                              : "a request for a connection that was never looked at");
    }
    listener->events->users--;
    listener->fabric->others--;
    pthread_mutex_unlock(&lock);
    fi_freeinfo(listener->info);
    leave_network(listener->fabric, NULL);
    return 0;
}

static int bind_listener(struct fid *fid, struct fid *other, uint64_t flags) {
    struct listener *listener = (struct listener *)fid;
    (void)flags;
    if (other->fclass != FI_CLASS_EQ)
        stop("a listener joined to what is no event queue");
    enter_network(listener->fabric, NULL);
    listener->events = (struct events *)other;
    listener->events->users++;
    leave_network(listener->fabric, NULL);
    return 0;
}

static int listen_now(struct fid_pep *fid) {
    struct listener *listener = (struct listener *)fid;
    if (!listener->events)
        stop("a listener without an event queue");
    listener->is_listening = 1;
    return 0;
}

static int name_of_listener(fid_t fid, void *out, size_t *length) {
    if (*length < sizeof fid)
        return -FI_ETOOSMALL;
    memcpy(out, &fid, sizeof fid);
    *length = sizeof fid;
    return 0;
}

static int reject(struct fid_pep *fid, fid_t handle, const void *data, size_t length) {
    struct request *request = (struct request *)handle;
    struct listener *listener = (struct listener *)fid;
    (void)data, (void)length;
    enter_network(listener->fabric, NULL);
    pthread_mutex_lock(&lock);
    if (handle->fclass != FI_CLASS_CONNREQ || request->is_taken || request->is_answered)
        stop("a request for a connection answered twice");
    request->is_answered = 1;
    if (request->from->is_open)
        fail(request->from, FI_ECONNREFUSED);
    pthread_mutex_unlock(&lock);
    leave_network(listener->fabric, NULL);
    return 0;
}

int open_listener(struct fid_fabric *fid, struct fi_info *info, struct fid_pep **out, void *ours) {
    static struct fi_ops fid_ops = {sizeof fid_ops, close_listener, bind_listener, NULL, NULL,
                                    NULL, NULL};
    static struct fi_ops_cm cm = {.size = sizeof cm,
                                  .getname = name_of_listener,
                                  .listen = listen_now,
                                  .reject = reject};
    struct listener *listener = calloc(1, sizeof *listener);
    listener->fid.fid = (struct fid){FI_CLASS_PEP, ours, &fid_ops};
    listener->fid.cm = &cm;
    listener->is_open = 1;
    listener->fabric = (struct fabric *)fid;
    listener->fabric->others++;
    listener->info = fi_dupinfo(checked(info));
    *out = &listener->fid;
    return 0;
}

/* ---------------------------------------------------------------- who asks, and who grants */

static void ask(struct endpoint *ep, const void *address, const void *data, size_t length) {
    struct listener *listener;
    memcpy(&listener, address, sizeof listener);
    pthread_mutex_lock(&lock);
    if (!ep->is_open || !ep->is_enabled || ep->phase != NEW || ep->request)
        stop("a connection asked for twice, or of an endpoint that cannot");
    if (length > sizeof((struct event *)0)->data)
        stop("more said with a request than the provider carries");
    ep->phase = ASKED;
    if (!listener->is_open || !listener->is_listening) {
        fail(ep, FI_ECONNREFUSED);
        pthread_mutex_unlock(&lock);
        return;
    }
    struct request *request = calloc(1, sizeof *request);
    request->fid = (struct fid){FI_CLASS_CONNREQ, NULL, NULL};
    request->listener = listener;
    request->from = ep;
    request->next = listener->requests;
    listener->requests = request;
    struct event event = {.what = FI_CONNREQ,
                          .fid = &listener->fid.fid,
                          .request = request,
                          .info = request_info(listener->fabric, listener->info),
                          .length = length};
    event.info->handle = &request->fid;
    memcpy(event.data, data, length);
    happen(listener->events, event);
    pthread_mutex_unlock(&lock);
}

int connect_endpoint(struct fid_ep *fid, const void *address, const void *data, size_t length) {
    struct endpoint *ep = (struct endpoint *)fid;
    enter(ep->domain, ep->queue);
    ask(ep, address, data, length);
    leave(ep->domain, ep->queue);
    return 0;
}

void take_request(struct endpoint *ep, struct fid *handle) {
    struct request *request = (struct request *)handle;
    if (handle->fclass != FI_CLASS_CONNREQ || request->is_taken || request->is_answered)
        stop("a request for a connection answered twice");
    request->is_taken = 1;
    ep->request = request;
}

int accept_request(struct fid_ep *fid, const void *data, size_t length) {
    struct endpoint *ep = (struct endpoint *)fid;
    (void)data, (void)length;
    enter(ep->domain, ep->queue);
    pthread_mutex_lock(&lock);
    if (!ep->is_open || !ep->is_enabled || ep->phase != NEW || !ep->request)
        stop("a connection granted that nobody asked for");
    struct endpoint *from = ep->request->from;
    ep->request->is_answered = 1;
    ep->phase = GRANTED;
    if (!from->is_open || from->phase != ASKED) {
        fail(ep, FI_ECONNABORTED);
    } else {
        from->phase = GRANTED;
        from->peer = ep;
        ep->peer = from;
        happen(from->events, (struct event){.what = FI_CONNECTED, .fid = &from->fid.fid});
        happen(ep->events, (struct event){.what = FI_CONNECTED, .fid = &ep->fid.fid});
    }
    pthread_mutex_unlock(&lock);
    leave(ep->domain, ep->queue);
    return 0;
}

/* Its endpoint closes before it was granted: who asks hears that it was refused. */
void end_request(struct endpoint *ep) {
    if (!ep->request || ep->request->is_answered)
        return;
    ep->request->is_answered = 1;
    if (ep->request->from->is_open)
        fail(ep->request->from, FI_ECONNREFUSED);
}

/* The other end hears of it, and everything that was posted there comes back with a failure. */
void end_connection(struct endpoint *ep) {
    struct endpoint *peer = ep->peer;
    ep->phase = ENDED;
    if (!peer)
        return;
    ep->peer = peer->peer = NULL;
    flush(peer);
    peer->phase = ENDED;
    happen(peer->events, (struct event){.what = FI_SHUTDOWN, .fid = &peer->fid.fid});
}

int shut_down(struct fid_ep *fid, uint64_t flags) {
    struct endpoint *ep = (struct endpoint *)fid;
    (void)flags;
    enter(ep->domain, ep->queue);
    pthread_mutex_lock(&lock);
    if (!ep->is_open)
        stop("a connection ended of a closed endpoint");
    end_connection(ep);
    pthread_mutex_unlock(&lock);
    leave(ep->domain, ep->queue);
    return 0;
}
