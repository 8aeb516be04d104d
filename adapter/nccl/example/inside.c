/* A program that has the plugin inside, and finds it as NCCL does under
 * NCCL_NET_PLUGIN=STATIC_PLUGIN: by dlopen(NULL) and dlsym, among its own symbols. Then it sends
 * itself a message through the newest table, to see that what it found works.
 *
 *   cc inside.c $(pkg-config --libs --static crosstie-nccl) -o inside && ./inside
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NEWEST = 12, HANDLE_BYTES = 128, HOST_MEMORY = 1 };

/* The part of ncclNet_v12_t (NCCL's plugins/net) that is used here, in its order. */
struct net {
    const char *name;
    int (*init)(void **context, uint64_t communicator, void *config, void *logger, void *profiler);
    int (*devices)(int *count);
    int (*get_properties)(int device, void *properties);
    int (*listen)(void *context, int device, void *handle, void **listener);
    int (*connect)(void *context, int device, void *handle, void **comm, void **unpacks);
    int (*accept)(void *listener, void **comm, void **unpacks);
    int (*reg)(void *comm, void *data, size_t bytes, int kind, void **memory);
    void *reg_dma_buf;
    int (*dereg)(void *comm, void *memory);
    int (*isend)(void *comm, void *data, size_t bytes, int tag, void *memory, void *parent,
        void **request);
    int (*irecv)(void *comm, int count, void **data, size_t *bytes, int *tags, void **memory,
        void **parents, void **request);
    void *iflush;
    int (*test)(void *request, int *done, int *bytes);
    int (*close_send)(void *comm), (*close_recv)(void *comm), (*close_listen)(void *listener);
    void *get_device_mr, *irecv_consumed, *make_v_device;
    int (*finalize)(void *context);
};

#define TRY(call) do { int rc_ = (call); if (rc_) { \
    fprintf(stderr, "%s: result %d\n", #call, rc_); return 1; } } while (0)

/* A message through a connection of the first device to itself. */
static int message_to_itself(const struct net *net) {
    char handle[HANDLE_BYTES], sent[] = "carried by the plugin inside", got[sizeof sent] = "";
    void *context, *listener, *send = NULL, *recv = NULL, *out, *in, *sending, *receiving;
    int count = 0, done = 0, bytes = 0, tag = 1, config = -1;
    size_t room = sizeof got;
    TRY(net->init(&context, 1, &config, NULL, NULL));
    TRY(net->devices(&count));
    TRY(net->listen(context, 0, handle, &listener));
    while (!send || !recv) {
        if (!send) TRY(net->connect(context, 0, handle, &send, NULL));
        if (!recv) TRY(net->accept(listener, &recv, NULL));
    }
    TRY(net->close_listen(listener));
    TRY(net->reg(send, sent, sizeof sent, HOST_MEMORY, &out));
    TRY(net->reg(recv, got, sizeof got, HOST_MEMORY, &in));
    void *place = got;
    TRY(net->irecv(recv, 1, &place, &room, &tag, &in, NULL, &receiving));
    TRY(net->isend(send, sent, sizeof sent, tag, out, NULL, &sending));
    while (!done) TRY(net->test(receiving, &done, &bytes));
    for (done = 0; !done;) TRY(net->test(sending, &done, NULL));
    TRY(net->dereg(send, out));
    TRY(net->dereg(recv, in));
    TRY(net->close_send(send));
    TRY(net->close_recv(recv));
    TRY(net->finalize(context));
    if ((size_t)bytes != sizeof sent || strcmp(got, sent)) {
        fprintf(stderr, "%d bytes came: %s\n", bytes, got);
        return 1;
    }
    printf("%d devices; %d bytes: \"%s\"\n", count, bytes, got);
    return 0;
}

int main(void) {
    void *program = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    const struct net *net = NULL;
    for (int version = 6; program && version <= NEWEST; version++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        net = dlsym(program, symbol);
        if (!net || strcmp(net->name, "crosstie")) {
            fprintf(stderr, "%s is not in this program: how was it linked?\n", symbol);
            return 1;
        }
        printf("%s ", symbol);
    }
    return net ? message_to_itself(net) : 1;
}
