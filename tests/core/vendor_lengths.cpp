// crosstie_provider.hpp tells how long each message of a group was that had a message too long for
// its room: by what it throws, and without a throw. Over the provider of
// examples-c/vendor_provider.cpp.
#define VENDOR_PROVIDER_ALONE
#include "../../examples-c/vendor_provider.cpp"

namespace {

namespace core = crosstie::core;

constexpr std::size_t sent[2] = {50, 33}, rooms[2] = {10, 100};

// The code that the group ended with; its lengths are in told.
int group(core::endpoint &left, core::endpoint &right, bool throws, std::size_t (&told)[2])
{
    static unsigned char source[64], target[2][128];
    xtie_core_buffer buffers[2]{};
    std::uint64_t from = left.memory_register(source, sizeof source);
    std::uint64_t to = right.memory_register(target, sizeof target);
    for (std::size_t n = 0; n < 2; n++) {
        buffers[n].data = target[n];
        buffers[n].bytes = rooms[n];
        buffers[n].tag = static_cast<std::int32_t>(n);
        buffers[n].memory = to;
    }
    core::request receive = right.irecv(0, buffers, 2);
    core::request sends[2] = {left.isend(0, source, sent[0], 0, from),
                              left.isend(0, source, sent[1], 1, from)};
    int code = XTIE_CORE_OK;
    while (receive || sends[0] || sends[1]) {
        bool done = false;
        left.progress(0);
        right.progress(0);
        for (core::request &send : sends)
            if (send)
                send.try_test(done);
        if (!receive)
            continue;
        if (!throws) {
            code = receive.try_test(done, told);
            continue;
        }
        try {
            receive.test(told);
        } catch (const core::error &error) {
            code = error.code();
        }
    }
    left.memory_deregister(from);
    right.memory_deregister(to);
    return code;
}

}  // namespace

int main()
{
    const xtie_provider_ops ops = core::provider_ops<loop>();
    ends[0].join(ends[1]);
    ends[1].join(ends[0]);
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
    for (bool throws : {false, true}) {
        std::size_t told[2] = {777, 777};
        int code = group(left, right, throws, told);
        if (code != XTIE_CORE_ERR_TRUNCATED || told[0] != sent[0] || told[1] != sent[1]) {
            std::fprintf(stderr, "%s: %s, %zu and %zu bytes\n", throws ? "test" : "try_test",
                         xtie_core_result_str(code), told[0], told[1]);
            return 1;
        }
    }
    std::printf("a group of %zu bytes in %zu and %zu in %zu told its lengths\n", sent[0], rooms[0],
                sent[1], rooms[1]);
    return 0;
}
