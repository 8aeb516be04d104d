// A provider as a C++ class: a loopback whose two ends are two objects, and whose every op is
// complete when it was posted. Runs the conformance suite over it, then sends a message from an
// endpoint on one end to one on the other. Links libcrosstie-core.a and nothing else of the
// library. The same in C, with ops that take their time: vendor_provider.c.
#include <crosstie_provider.hpp>

#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

template <typename T>
T *at(std::uint64_t address)
{
    return reinterpret_cast<T *>(static_cast<std::uintptr_t>(address));
}

class loop {
public:
    static constexpr std::uint32_t slots = 64, events_max = 256, regions_max = 32;
    static constexpr std::uint64_t send_bytes = 1024;

    static int open(void *context, const xtie_provider_limits &limits, loop **out)
    {
        loop *self = static_cast<loop *>(context);
        if (limits.regions_max > regions_max)
            return XTIE_PROVIDER_CODE - 12;  // ENOMEM
        loop *other = self->other_;
        *self = loop{};
        self->other_ = other;
        self->regions_wanted_ = limits.regions_max;
        *out = self;
        return XTIE_PROVIDER_OK;
    }
    void close()
    {
        if (state_ == state::open)
            other_->down(XTIE_PROVIDER_DOWN_CLOSED);
        state_ = state::closed;
    }
    void join(loop &other) { other_ = &other; }

    void caps(xtie_provider_caps &caps)
    {
        caps.flags = XTIE_PROVIDER_CAP_PULL | XTIE_PROVIDER_CAP_IMMEDIATE |
                     XTIE_PROVIDER_CAP_ORDERED | XTIE_PROVIDER_CAP_COPIES_AT_POST;
        caps.send_bytes_max = send_bytes;
        caps.transfer_bytes_max = std::uint64_t{1} << 40;
        caps.copy_granule_bytes = 64;
        caps.recv_slots = slots;
        caps.blob_bytes = 0;  // there is but one other end
        caps.atomic_bytes = 8;
        caps.fence = XTIE_PROVIDER_FENCE_LOCAL;
    }
    int peer_blob(std::uint32_t, void *) { return XTIE_PROVIDER_OK; }
    int peer_open(std::uint32_t peer, const void *)
    {
        state_ = state::open;
        peer_ = peer;
        return XTIE_PROVIDER_OK;
    }

    int region_register(std::uint64_t address, std::uint64_t bytes, std::uint32_t kind,
                        std::uint64_t &key)
    {
        // MAPPED is memory of xtie_memory_alloc: pages of the process, too
        if (kind != XTIE_PROVIDER_MEMORY_HOST && kind != XTIE_PROVIDER_MEMORY_MAPPED)
            return XTIE_PROVIDER_KIND;
        if (bytes == 0 || address + bytes < address)
            return XTIE_PROVIDER_RANGE;
        for (std::uint32_t n = 0; n < regions_wanted_; n++) {
            region &r = regions_[n];
            if (r.bytes != 0)
                continue;
            r = region{address, bytes, r.generation + 1};
            key = std::uint64_t{r.generation} << 32 | n;
            return XTIE_PROVIDER_OK;
        }
        return XTIE_PROVIDER_FULL;
    }
    int region_deregister(std::uint64_t key)
    {
        region *r = find(key);
        if (r == nullptr)
            return XTIE_PROVIDER_STALE;
        r->bytes = 0;
        return XTIE_PROVIDER_OK;
    }

    int post(const xtie_provider_op &op, std::uint64_t)
    {
        if (state_ != state::open || op.peer != peer_ || other_->state_ != state::open)
            return XTIE_PROVIDER_PEER_DOWN;
        if (room() < 4 || other_->room() < 4)
            return XTIE_PROVIDER_AGAIN;
        return op.kind == XTIE_PROVIDER_OP_SEND ? send(op) : move(op);
    }
    std::uint32_t poll(xtie_provider_event *events, std::uint32_t count, std::uint64_t,
                       std::uint64_t)
    {
        std::uint32_t given = 0;
        while (given < count && head_ != tail_) {
            events[given++] = events_[head_++ % events_max];
            in_flight_ -= events[given - 1].kind == XTIE_PROVIDER_EVENT_DONE ||
                          events[given - 1].kind == XTIE_PROVIDER_EVENT_FENCED;
        }
        return given;
    }
    int fence_begin(std::uint32_t peer, std::uint64_t id, std::uint32_t generation, std::uint64_t)
    {
        if (state_ == state::closed || peer != peer_)
            return XTIE_PROVIDER_PEER_DOWN;
        if (room() < 4)
            return XTIE_PROVIDER_AGAIN;
        if (state_ == state::open) {
            state_ = state::fenced;
            other_->down(XTIE_PROVIDER_DOWN_CLOSED);
        }
        xtie_provider_event &event = put(XTIE_PROVIDER_EVENT_FENCED);
        event.id = id;
        event.word = generation;
        in_flight_++;
        return XTIE_PROVIDER_OK;
    }

    void received_copy(std::uint32_t, std::uint64_t slot, std::uint64_t offset,
                       const xtie_provider_span &to)
    {
        if (to.bytes != 0)
            std::memcpy(at<void>(to.address), payloads_[slot].data() + offset, to.bytes);
    }
    void received_release(std::uint32_t, std::uint64_t slot) { held_[slot] = false; }
    void peer_fail(std::uint32_t peer, std::uint32_t cause, std::int32_t)
    {
        if ((state_ != state::open && state_ != state::fenced) || peer != peer_)
            return;
        down(cause);
        other_->down(cause);
    }
    int peer_close(std::uint32_t peer)
    {
        if (state_ == state::closed || peer != peer_)
            return XTIE_PROVIDER_STALE;
        if (in_flight_ != 0)
            return XTIE_PROVIDER_BUSY;
        close();
        head_ = tail_;
        held_.fill(false);
        return XTIE_PROVIDER_OK;
    }

private:
    enum class state { closed, open, fenced, down };
    struct region {
        std::uint64_t address = 0, bytes = 0;  // no bytes: free
        std::uint32_t generation = 0;
    };

    std::uint32_t room() const { return events_max - (tail_ - head_); }
    xtie_provider_event &put(std::uint32_t kind)
    {
        xtie_provider_event &event = events_[tail_++ % events_max];
        event = xtie_provider_event{};
        event.kind = kind;
        event.peer = peer_;
        return event;
    }
    void down(std::uint32_t cause)
    {
        if (state_ != state::open && state_ != state::fenced)
            return;
        state_ = state::down;
        put(XTIE_PROVIDER_EVENT_PEER_DOWN).status = cause;
    }
    region *find(std::uint64_t key)
    {
        std::uint32_t index = static_cast<std::uint32_t>(key);
        bool known = index < regions_max && regions_[index].bytes != 0 &&
                     regions_[index].generation == key >> 32;
        return known ? &regions_[index] : nullptr;
    }
    bool holds(std::uint64_t key, std::uint64_t address, std::uint64_t bytes)
    {
        region *r = find(key);
        std::uint64_t offset = r != nullptr ? address - r->address : 0;
        return r != nullptr && offset <= r->bytes && bytes <= r->bytes - offset;
    }
    int send(const xtie_provider_op &op)
    {
        if (op.local.bytes > send_bytes)
            return XTIE_PROVIDER_UNSUPPORTED;
        std::uint32_t slot = 0;
        while (slot < slots && other_->held_[slot])
            slot++;
        if (slot == slots)
            return XTIE_PROVIDER_AGAIN;
        other_->held_[slot] = true;
        if (op.local.bytes != 0)
            std::memcpy(other_->payloads_[slot].data(), at<void>(op.local.address), op.local.bytes);
        xtie_provider_event &event = other_->put(XTIE_PROVIDER_EVENT_RECEIVED);
        event.id = slot;
        event.bytes = static_cast<std::uint32_t>(op.local.bytes);
        std::memcpy(event.head, op.data, sizeof event.head);
        return XTIE_PROVIDER_DONE;
    }
    int move(const xtie_provider_op &op)
    {
        bool add = op.kind == XTIE_PROVIDER_OP_ADD;
        bool line = (op.flags & XTIE_PROVIDER_OP_LINE) != 0;
        std::uint64_t bytes = add ? 8 : line ? XTIE_PROVIDER_LINE_BYTES : op.local.bytes;
        if (add && op.remote.address % 8 != 0)
            return XTIE_PROVIDER_UNSUPPORTED;
        bool local = add || line || holds(op.local.key, op.local.address, bytes);
        if (bytes != 0 && !(local && other_->holds(op.remote.key, op.remote.address, bytes))) {
            xtie_provider_event &event = put(XTIE_PROVIDER_EVENT_DONE);
            event.id = op.id;
            event.status = XTIE_PROVIDER_OP_KEY;
            in_flight_++;
            return XTIE_PROVIDER_OK;
        }
        if (add)
            *at<std::uint64_t>(op.remote.address) += op.value;
        else if (bytes != 0 && op.kind == XTIE_PROVIDER_OP_READ)
            std::memmove(at<void>(op.local.address), at<void>(op.remote.address), bytes);
        else if (bytes != 0)
            std::memmove(at<void>(op.remote.address), line ? op.data : at<void>(op.local.address),
                         bytes);
        if ((op.flags & XTIE_PROVIDER_OP_IMMEDIATE) != 0)
            other_->put(XTIE_PROVIDER_EVENT_IMMEDIATE).word = op.immediate;
        return XTIE_PROVIDER_DONE;
    }

    loop *other_ = nullptr;
    state state_ = state::closed;
    std::uint32_t peer_ = 0, in_flight_ = 0, head_ = 0, tail_ = 0;
    std::array<xtie_provider_event, events_max> events_{};
    std::array<region, regions_max> regions_{};
    std::uint32_t regions_wanted_ = 0;  // so many may be registered at a time
    std::array<std::array<unsigned char, send_bytes>, slots> payloads_{};
    std::array<bool, slots> held_{};
};

loop ends[2];
crosstie::core::suite_storage storage;

}  // namespace

#ifndef VENDOR_PROVIDER_ALONE  // another program may have the rest without this

int main()
try {
    namespace core = crosstie::core;
    const xtie_provider_ops ops = core::provider_ops<loop>();
    ends[0].join(ends[1]);
    ends[1].join(ends[0]);
    xtie_conformance_result result =
        core::suite_run(ops, core::suite_setup(storage, &ends[0], &ends[1]));
    if (result.result != XTIE_CORE_OK) {
        std::fprintf(stderr, "P%u %s: %s (%s)\n", static_cast<unsigned>(result.promise),
                     result.entry_name, result.why, xtie_core_result_str(result.result));
        return 1;
    }

    xtie_core_config config{};
    config.struct_size = sizeof config;
    config.connections_max = 1;
    std::size_t half = sizeof storage.bytes / 2;
    core::endpoint left(storage.bytes, half, config, ops, &ends[0]);
    core::endpoint right(storage.bytes + half, half, config, ops, &ends[1]);
    xtie_core_blob from_left = left.connection_blob(0), from_right = right.connection_blob(0);
    while (!left.connection_open(0, from_right))
        left.progress(0);
    while (!right.connection_open(0, from_left))
        right.progress(0);

    std::vector<unsigned char> sent(50000), received(sent.size());
    for (std::size_t n = 0; n < sent.size(); n++)
        sent[n] = static_cast<unsigned char>(n * 7 + n / 256);
    xtie_core_buffer buffer{};
    buffer.data = received.data();
    buffer.bytes = received.size();
    buffer.memory = right.memory_register(received.data(), received.size());
    std::uint64_t memory = left.memory_register(sent.data(), sent.size());
    core::request receive = right.irecv(0, &buffer, 1);
    core::request send = left.isend(0, sent.data(), sent.size(), 0, memory);
    while (send || receive) {
        left.progress(0);
        right.progress(0);
        if (send)
            send.test();
        if (receive)
            receive.test();
    }
    if (sent != received) {
        std::fprintf(stderr, "a message arrived as something else\n");
        return 1;
    }
    for (bool l = false, r = false; !(l && r);) {
        l = l || left.connection_close(0);
        r = r || right.connection_close(0);
        left.progress(0);
        right.progress(0);
    }
    std::printf("the suite passed, and a message of %zu bytes arrived whole\n", sent.size());
    return 0;
} catch (const crosstie::core::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

#endif
