// crosstie_provider.hpp: crosstie_provider.h for C++17. Header-only: a provider's table out of a
// class, the conformance suite, and an endpoint that closes itself. Nothing here allocates;
// crosstie_provider.h says what each call does and promises.
#ifndef CROSSTIE_PROVIDER_HPP
#define CROSSTIE_PROVIDER_HPP

#include "crosstie_provider.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

namespace crosstie::core {

// A call or a request failed: the result code and its sentence.
class error : public std::exception {
public:
    explicit error(int code) noexcept : code_(code) {}
    int code() const noexcept { return code_; }
    const char *what() const noexcept override { return xtie_core_result_str(code_); }

private:
    int code_;
};

// The code, when it is none of a failure. Without exceptions a failure ends the program.
inline int check(int code)
{
#ifdef __cpp_exceptions
    if (code < 0)
        throw error(code);
#else
    if (code < 0)
        std::terminate();
#endif
    return code;
}

namespace detail {
// Whether the table can call the members that may be left out. As the entries do: with variables,
// since a zero that stands there by itself is a pointer, too.
using u32 = std::uint32_t &;
using u64 = std::uint64_t &;
template <typename P, typename = void>
struct has_detach : std::false_type {};
template <typename P>
struct has_detach<P, std::void_t<decltype(std::declval<P &>().peer_detach(std::declval<u32>()))>>
    : std::is_convertible<decltype(std::declval<P &>().peer_detach(std::declval<u32>())), int> {};
template <typename P, typename = void>
struct has_flush : std::false_type {};
template <typename P>
struct has_flush<P, std::void_t<decltype(std::declval<P &>().flush(std::declval<u64>()))>>
    : std::true_type {};
template <typename P, typename = void>
struct has_fence : std::false_type {};
template <typename P>
struct has_fence<P, std::void_t<decltype(std::declval<P &>().fence_begin(
                        std::declval<u32>(), std::declval<u64>(), std::declval<u32>(),
                        std::declval<u64>()))>>
    : std::is_convertible<decltype(std::declval<P &>().fence_begin(
                              std::declval<u32>(), std::declval<u64>(), std::declval<u32>(),
                              std::declval<u64>())),
                          int> {};

// Whether a class has a member of a name, whatever that takes and whoever may use it: then the name
// has two meanings in what is made of the class and `optional`. Nothing can be made of a final
// class, of a union, or where a virtual destructor is not for all; of such a one a member is seen
// that is public and has one signature. Nor of a class whose destructor is final: say that the
// class is.
struct optional {
    int peer_detach, flush, fence_begin;
};
template <typename P>
constexpr bool is_base_v = std::is_class_v<P> && !std::is_final_v<P> &&
                           (std::is_destructible_v<P> || !std::has_virtual_destructor_v<P>);
// No object of it is ever made. Its destructor is declared, since one of the compiler's would be
// deleted where that of the class, or its operator delete, is private.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Weffc++"
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"
template <typename P, bool IsBase = is_base_v<P>>
struct beside : P, optional {
    ~beside() noexcept;
};
#pragma GCC diagnostic pop
template <typename P>
struct beside<P, false> : optional {};
#define XTIE_DETAIL_NAMES(name)                                                                    \
    template <typename P, typename = void>                                                         \
    struct has_two_##name : std::true_type {};                                                     \
    template <typename P>                                                                          \
    struct has_two_##name<P, std::void_t<decltype(&beside<P>::name)>> : std::false_type {};        \
    template <typename P, typename = void>                                                         \
    struct names_##name : has_two_##name<P> {};                                                    \
    template <typename P>                                                                          \
    struct names_##name<P, std::void_t<decltype(&P::name)>> : std::true_type {};
XTIE_DETAIL_NAMES(peer_detach)
XTIE_DETAIL_NAMES(flush)
XTIE_DETAIL_NAMES(fence_begin)
#undef XTIE_DETAIL_NAMES

// The entries of the table. They are noexcept: what a member throws ends the program there, and
// does not unwind through the library.
template <typename P>
struct entries {
    static P &self(void *provider) noexcept { return *static_cast<P *>(provider); }

    static int open(void *context, const xtie_provider_limits *limits, void **out) noexcept
    {
        P *provider = nullptr;
        int answer = P::open(context, *limits, &provider);
        *out = provider;
        return answer;
    }
    static void close(void *p) noexcept { self(p).close(); }
    static void caps(void *p, xtie_provider_caps *caps) noexcept { self(p).caps(*caps); }
    static int peer_blob(void *p, std::uint32_t peer, void *blob) noexcept
    {
        return self(p).peer_blob(peer, blob);
    }
    static int peer_open(void *p, std::uint32_t peer, const void *blob) noexcept
    {
        return self(p).peer_open(peer, blob);
    }
    static int region_register(void *p, std::uint64_t address, std::uint64_t bytes,
                               std::uint32_t kind, std::uint64_t *key) noexcept
    {
        return self(p).region_register(address, bytes, kind, *key);
    }
    static int region_deregister(void *p, std::uint64_t key) noexcept
    {
        return self(p).region_deregister(key);
    }
    static int post(void *p, const xtie_provider_op *op, std::uint64_t now_ns) noexcept
    {
        return self(p).post(*op, now_ns);
    }
    static std::uint32_t poll(void *p, xtie_provider_event *events, std::uint32_t events_max,
                              std::uint64_t budget_bytes, std::uint64_t now_ns) noexcept
    {
        return self(p).poll(events, events_max, budget_bytes, now_ns);
    }
    static int fence_begin(void *p, std::uint32_t peer, std::uint64_t id, std::uint32_t generation,
                           std::uint64_t now_ns) noexcept
    {
        return self(p).fence_begin(peer, id, generation, now_ns);
    }
    static void received_copy(void *p, std::uint32_t peer, std::uint64_t slot, std::uint64_t offset,
                              const xtie_provider_span *to) noexcept
    {
        self(p).received_copy(peer, slot, offset, *to);
    }
    static void received_release(void *p, std::uint32_t peer, std::uint64_t slot) noexcept
    {
        self(p).received_release(peer, slot);
    }
    static void peer_fail(void *p, std::uint32_t peer, std::uint32_t cause,
                          std::int32_t code) noexcept
    {
        self(p).peer_fail(peer, cause, code);
    }
    static int peer_close(void *p, std::uint32_t peer) noexcept { return self(p).peer_close(peer); }
    static int peer_detach(void *p, std::uint32_t peer) noexcept
    {
        return self(p).peer_detach(peer);
    }
    static void flush(void *p, std::uint64_t budget_bytes) noexcept { self(p).flush(budget_bytes); }
};
}  // namespace detail

// The table of a class whose members are named as the entries, with references where those have
// pointers that must be given; `open` is static and gives the object. fence_begin, peer_detach and
// flush may be left out; one that is there and that the table cannot call does not compile.
template <typename Provider>
xtie_provider_ops provider_ops() noexcept
{
    using entries = detail::entries<Provider>;
    static_assert(detail::has_fence<Provider>::value || !detail::names_fence_begin<Provider>::value,
                  "the member fence_begin is not one that the table can call: public, and "
                  "int fence_begin(std::uint32_t peer, std::uint64_t id, "
                  "std::uint32_t generation, std::uint64_t now_ns)");
    static_assert(detail::has_detach<Provider>::value ||
                      !detail::names_peer_detach<Provider>::value,
                  "the member peer_detach is not one that the table can call: public, and "
                  "int peer_detach(std::uint32_t peer)");
    static_assert(detail::has_flush<Provider>::value || !detail::names_flush<Provider>::value,
                  "the member flush is not one that the table can call: public, and "
                  "void flush(std::uint64_t budget_bytes)");
    xtie_provider_ops ops{};
    ops.struct_size = sizeof ops;
    ops.open = entries::open;
    ops.close = entries::close;
    ops.caps = entries::caps;
    ops.peer_blob = entries::peer_blob;
    ops.peer_open = entries::peer_open;
    ops.region_register = entries::region_register;
    ops.region_deregister = entries::region_deregister;
    ops.post = entries::post;
    ops.poll = entries::poll;
    if constexpr (detail::has_fence<Provider>::value)
        ops.fence_begin = entries::fence_begin;
    ops.received_copy = entries::received_copy;
    ops.received_release = entries::received_release;
    ops.peer_fail = entries::peer_fail;
    ops.peer_close = entries::peer_close;
    if constexpr (detail::has_detach<Provider>::value)
        ops.peer_detach = entries::peer_detach;
    if constexpr (detail::has_flush<Provider>::value)
        ops.flush = entries::flush;
    return ops;
}

// Memory for the suite, as a static variable.
struct suite_storage {
    alignas(64) unsigned char bytes[XTIE_CONFORMANCE_BYTES];
};

// A setup of the suite, to which more may be added.
inline xtie_conformance_setup suite_setup(suite_storage &storage, void *context_a,
                                          void *context_b) noexcept
{
    xtie_conformance_setup setup{};
    setup.struct_size = sizeof setup;
    setup.context_a = context_a;
    setup.context_b = context_b;
    setup.storage = storage.bytes;
    setup.storage_bytes = sizeof storage.bytes;
    return setup;
}

// Runs the suite; its result says whether all is well, and if not, which entry found what.
inline xtie_conformance_result suite_run(const xtie_provider_ops &ops,
                                         const xtie_conformance_setup &setup) noexcept
{
    xtie_conformance_result result{};
    xtie_conformance_run(&ops, &setup, &result);
    return result;
}

// A send or a group of receives that was not tested to its end. Not an owner.
class request {
public:
    request() noexcept = default;
    request(xtie_core_endpoint *endpoint, std::uint64_t number) noexcept
        : endpoint_(endpoint), number_(number)
    {
    }

    // False: there was no room, or it has ended.
    explicit operator bool() const noexcept { return number_ != 0; }

    // True once it has ended; throws when it did not end well. bytes: an entry per buffer, or null;
    // written before XTIE_CORE_ERR_TRUNCATED is thrown, too.
    bool test(std::size_t *bytes = nullptr)
    {
        bool done = false;
        check(try_test(done, bytes));
        return done;
    }

    // The same without a throw: the code that it ended with, if done_out is true.
    int try_test(bool &done_out, std::size_t *bytes = nullptr) noexcept
    {
        int done = 0;
        int code = xtie_core_request_test(endpoint_, number_, &done, bytes);
        done_out = done != 0;
        if (done_out)
            number_ = 0;
        return code;
    }

private:
    xtie_core_endpoint *endpoint_ = nullptr;
    std::uint64_t number_ = 0;
};

// An endpoint in storage of the program's, which must outlive it. Closed at the end.
class endpoint {
public:
    endpoint(void *storage, std::size_t storage_bytes, const xtie_core_config &config,
             const xtie_provider_ops &ops, void *context)
    {
        check(xtie_core_endpoint_open(storage, storage_bytes, &config, &ops, context, &endpoint_));
    }
    endpoint(endpoint &&other) noexcept : endpoint_(std::exchange(other.endpoint_, nullptr)) {}
    endpoint(const endpoint &) = delete;
    endpoint &operator=(const endpoint &) = delete;
    ~endpoint()
    {
        if (endpoint_ != nullptr)
            xtie_core_endpoint_close(endpoint_);
    }

    // Storage for a configuration, in bytes.
    static std::size_t bytes(const xtie_core_config &config)
    {
        std::size_t bytes = 0;
        check(xtie_core_endpoint_size(&config, &bytes));
        return bytes;
    }

    void progress(std::uint64_t now_ns) { check(xtie_core_endpoint_progress(endpoint_, now_ns)); }

    std::uint64_t memory_register(void *data, std::size_t bytes,
                                  std::uint32_t kind = XTIE_PROVIDER_MEMORY_HOST)
    {
        std::uint64_t memory = 0;
        check(xtie_core_memory_register(endpoint_, data, bytes, kind, &memory));
        return memory;
    }
    void memory_deregister(std::uint64_t memory)
    {
        check(xtie_core_memory_deregister(endpoint_, memory));
    }

    xtie_core_blob connection_blob(std::uint32_t connection)
    {
        xtie_core_blob blob;
        check(xtie_core_connection_blob(endpoint_, connection, &blob));
        return blob;
    }
    // False: not yet; make progress, then call again.
    bool connection_open(std::uint32_t connection, const xtie_core_blob &blob)
    {
        return check(xtie_core_connection_open(endpoint_, connection, &blob)) == XTIE_CORE_OK;
    }
    // False: not yet; make progress, then call again.
    bool connection_close(std::uint32_t connection)
    {
        return check(xtie_core_connection_close(endpoint_, connection)) == XTIE_CORE_OK;
    }

    // An empty request: there is no room now.
    request isend(std::uint32_t connection, const void *data, std::size_t bytes, std::int32_t tag,
                  std::uint64_t memory)
    {
        std::uint64_t number = 0;
        check(xtie_core_connection_isend(endpoint_, connection, data, bytes, tag, memory, &number));
        return request(endpoint_, number);
    }
    // The same of a group of receives.
    request irecv(std::uint32_t connection, const xtie_core_buffer *buffers, std::size_t count)
    {
        std::uint64_t number = 0;
        check(xtie_core_connection_irecv(endpoint_, connection, buffers, count, &number));
        return request(endpoint_, number);
    }

    xtie_core_endpoint *get() const noexcept { return endpoint_; }

private:
    xtie_core_endpoint *endpoint_ = nullptr;
};

}  // namespace crosstie::core

#endif  // CROSSTIE_PROVIDER_HPP
