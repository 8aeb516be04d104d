// NVIDIA's device functions of DOCA GPUNetIO, unmodified, on queues of a group: one row for each
// function. The headers are those of NCCL's public wheel, 2.30.3 or later.
//
//     nvcc -std=c++17 -arch=native -I NCCL/include -I device -I c-api/include -I examples-c
//         tests/gpu/doca.cu LIBS
#include <errno.h>

#include <nccl_device/utility.h>

#include <nccl_device/gin/gdaki/doca_gpunetio/doca_gpunetio_device.h>

#include "device_ranks.h"

using Address = doca_gpu_dev_verbs_addr;
using Queue = doca_gpu_dev_verbs_qp;
constexpr auto ADD = DOCA_GPUNETIO_VERBS_SIGNAL_OP_ADD;
static_assert(sizeof(Queue) == sizeof(xtie_device_queue), "NCCL 2.30.3 or later");

// What DOCA's functions are given: queues of the first set, and addresses.
struct Names {
    Queue *queue, *companion;
    Address there, here, signal, counter, sink;
    const xtie_device_view *view;
    XTIE_DEVICE Names(const Step &s) : view(s.view) {
        const xtie_device_peer *peer = view->peers + s.peer, *own = view->peers + s.me;
        queue = reinterpret_cast<Queue *>(view->queues->queues + s.peer);
        companion = reinterpret_cast<Queue *>(view->queues->companions + s.peer);
        there = {s.to, peer->key};
        here = {s.from, own->key};
        signal = {peer->signals_offset + 8, peer->signals_key};  // number 1
        counter = {view->counters_offset + 8, view->counters_key};
        sink = {0, view->queues->sink_key};
    }
};

enum Function {
    PUT, PUT_WARP, P, PUT_SIGNAL, P_SIGNAL, SIGNAL, GET, GET_WARP, GET_WAIT, GET_WAIT_DUMP, MCST,
    POLL_CQ, POLL_ONE, WAIT_ALL,
    PUT_COUNTER, P_COUNTER, PUT_SIGNAL_COUNTER, SIGNAL_COUNTER, GET_COUNTER, FUNCTIONS
};
static const char *const names[FUNCTIONS] = {
    "put", "put, by a warp", "p", "put_signal", "p_signal", "signal", "get", "get, by a warp",
    "get_wait", "get_wait, with a dump", "mcst", "poll_cq", "poll_one_cq_at", "wait, of all",
    "put_counter", "p_counter", "put_signal_counter", "signal_counter", "get_counter"};

constexpr auto GPU = DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU;
constexpr auto AUTO = DOCA_GPUNETIO_VERBS_NIC_HANDLER_AUTO;
constexpr auto WARP = DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP;

XTIE_DEVICE uint64_t value_of(const Step &s, uint32_t rank) { return pattern(seed_of(s, rank), 0); }

// Calls one function; what it signals or counts is 3.
XTIE_DEVICE void call(const Step &s, const Names &n, Function which) {
    uint64_t ticket = 0, value = value_of(s, s.me);
    auto *cq = doca_gpu_dev_verbs_qp_get_cq_sq(n.queue);
    // the other's source, and where its puts would arrive
    Address source = {s.from, n.there.key}, target = {s.to, n.here.key};
    int polled;
    switch (which) {
    case PUT:
        doca_gpu_dev_verbs_put(n.queue, n.there, n.here, s.bytes, &ticket);
        EXPECT(doca_gpu_dev_verbs_poll_cq_at(cq, ticket), 0);
        break;
    case P: doca_gpu_dev_verbs_p<uint64_t>(n.queue, n.there, value); break;
    case PUT_SIGNAL:
        doca_gpu_dev_verbs_put_signal<ADD>(n.queue, n.there, n.here, s.bytes, n.signal, n.sink, 3);
        break;
    case P_SIGNAL:
        doca_gpu_dev_verbs_p_signal<uint64_t, ADD>(n.queue, n.there, value, n.signal, n.sink, 3);
        break;
    case SIGNAL: doca_gpu_dev_verbs_signal<ADD>(n.queue, n.signal, n.sink, 3); break;
    case GET:
        doca_gpu_dev_verbs_get(n.queue, source, target, s.bytes, n.sink, &ticket);
        doca_gpu_dev_verbs_wait(n.queue, ticket);
        break;
    case GET_WAIT:
        doca_gpu_dev_verbs_get(n.queue, source, target, s.bytes, n.sink, &ticket);
        doca_gpu_dev_verbs_get_wait(n.queue, n.here, ticket);
        break;
    case GET_WAIT_DUMP:
        doca_gpu_dev_verbs_get(n.queue, source, target, s.bytes, n.sink, &ticket);
        doca_gpu_dev_verbs_get_wait<GPU, AUTO, DOCA_GPUNETIO_VERBS_MCST_ENABLED>(n.queue, n.here,
                                                                                 ticket);
        break;
    case MCST:
        doca_gpu_dev_verbs_put(n.queue, n.there, n.here, s.bytes, &ticket);
        doca_gpu_dev_verbs_mcst(n.queue, n.here, &ticket);
        EXPECT(doca_gpu_dev_verbs_poll_cq_at(cq, ticket), 0);
        break;
    case POLL_CQ:
        doca_gpu_dev_verbs_wait(n.queue);  // the next completion is that of the put
        doca_gpu_dev_verbs_put(n.queue, n.there, n.here, s.bytes, &ticket);
        EXPECT(doca_gpu_dev_verbs_poll_cq(cq, 1), 0);
        break;
    case POLL_ONE:
        doca_gpu_dev_verbs_put(n.queue, n.there, n.here, s.bytes, &ticket);
        do polled = doca_gpu_dev_verbs_poll_one_cq_at(cq, ticket);
        while (polled == EBUSY);
        EXPECT(polled, 0);
        break;
    case WAIT_ALL:
        for (int i = 0; i < 40; i++)
            doca_gpu_dev_verbs_put(n.queue, n.there, n.here, s.bytes, &ticket);
        doca_gpu_dev_verbs_wait(n.queue);
        break;
    case PUT_COUNTER:
        doca_gpu_dev_verbs_put_counter(n.queue, n.there, n.here, s.bytes, n.companion, n.counter,
                                       n.sink, 3);
        break;
    case P_COUNTER:
        doca_gpu_dev_verbs_p_counter<uint64_t>(n.queue, n.there, value, n.companion, n.counter,
                                               n.sink, 3);
        break;
    case PUT_SIGNAL_COUNTER:
        doca_gpu_dev_verbs_put_signal_counter<ADD>(n.queue, n.there, n.here, s.bytes, n.signal,
                                                   n.sink, 3, n.companion, n.counter, n.sink, 3);
        break;
    case SIGNAL_COUNTER:
        doca_gpu_dev_verbs_signal_counter<ADD>(n.queue, n.signal, n.sink, 3, n.companion, n.counter,
                                               n.sink, 3);
        break;
    case GET_COUNTER:
        doca_gpu_dev_verbs_get_counter(n.queue, source, target, s.bytes, n.companion, n.counter,
                                       n.sink, 3);
        break;
    case PUT_WARP:
    case GET_WARP:
    case FUNCTIONS: break;
    }
}

XTIE_DEVICE bool signals(Function which) {
    return which == PUT_SIGNAL || which == P_SIGNAL || which == SIGNAL ||
           which == PUT_SIGNAL_COUNTER || which == SIGNAL_COUNTER;
}

__global__ void doca_step(Step s, Function which) {
    Names n(s);
    crosstie::window w(s.view, 1);  // a set of its own
    crosstie::thread one;
    if ((which == PUT_WARP || which == GET_WARP) && threadIdx.x < 32) {
        uint64_t ticket, part = s.bytes / 32, at = part * threadIdx.x;
        Address there = {s.to + at, n.there.key}, here = {s.from + at, n.here.key};
        Address source = {s.from + at, n.there.key}, target = {s.to + at, n.here.key};
        if (which == PUT_WARP)
            doca_gpu_dev_verbs_put<GPU, AUTO, WARP>(n.queue, there, here, part, &ticket);
        else
            doca_gpu_dev_verbs_get<GPU, AUTO, WARP>(n.queue, source, target, part, n.sink, &ticket);
        doca_gpu_dev_verbs_wait(n.queue, ticket);
        __syncwarp();
    }
    if (threadIdx.x != 0) return;
    call(s, n, which);
    if (which >= PUT_COUNTER) EXPECT(w.wait_counter(one, 1, crosstie::EQUAL, 3), crosstie::OK);
    // what has no signal of its own has ended here before the other looks
    if (!signals(which)) doca_gpu_dev_verbs_signal<ADD>(n.queue, n.signal, n.sink, 3);
    EXPECT(w.wait_signal(one, 1, crosstie::EQUAL, 3), crosstie::OK);
}

__global__ void check_step(Step s, bool is_word) {
    crosstie::window w(s.view);
    if (!is_word) expect_bytes(s, w, s.peer);
    else if (threadIdx.x == 0)
        EXPECT(port::load_relaxed_system(word_at(w, s.to)), value_of(s, s.peer));
}

static void cases_run(uint32_t peer) {
    for (int which = 0; which < FUNCTIONS; which++) {
        bool is_word = which == P || which == P_SIGNAL || which == P_COUNTER;
        bool is_empty = which == SIGNAL || which == SIGNAL_COUNTER;
        Step s = begin(peer, 0, TARGET + 64, is_word ? 8 : is_empty ? 0 : 65536, 0);
        LAUNCH(doca_step, 1, 32, s, (Function)which);
        serve();
        LAUNCH(check_step, 1, WIDE, s, is_word);
        row(names[which], "DOCA GPUNetIO");
    }
}

int main(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    gpu_load();
    return run_ranks(2, run);
}
