// crosstie.hpp: crosstie.h for C++17. Header-only; owners that close what they own, and one
// exception that carries the code. Nothing here allocates, and the data path adds nothing but a
// compare. crosstie.h says what each call does, costs, and which thread may make it.
#ifndef CROSSTIE_HPP
#define CROSSTIE_HPP

#include "crosstie.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

namespace crosstie {

// A call or a request failed: the result code, and the sentence with the peer's name.
class error : public std::exception {
public:
    explicit error(int code, const xtie_endpoint *endpoint = nullptr) noexcept : code_(code)
    {
        if (endpoint == nullptr ||
            xtie_endpoint_error(endpoint, text_.data(), text_.size()) != XTIE_OK)
            text_[0] = '\0';
    }
    int code() const noexcept { return code_; }
    const char *what() const noexcept override
    {
        return text_[0] != '\0' ? text_.data() : xtie_result_str(code_);
    }

private:
    int code_;
    std::array<char, 320> text_{};
};

namespace detail {
inline void check(int code, const xtie_endpoint *endpoint = nullptr)
{
    if (code < 0)
        throw error(code, endpoint);
}

// An object and the endpoint it belongs to; what it points to is given to one owner at a time.
template <typename T>
class owned {
public:
    owned() noexcept = default;
    owned(xtie_endpoint *endpoint, T *object) noexcept : endpoint_(endpoint), object_(object) {}
    owned(owned &&other) noexcept
        : endpoint_(other.endpoint_), object_(std::exchange(other.object_, nullptr))
    {
    }
    owned(const owned &) = delete;
    owned &operator=(const owned &) = delete;

    T *get() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }
    // Gives the object away: it is not closed here.
    T *release() noexcept { return std::exchange(object_, nullptr); }

protected:
    ~owned() = default;
    void take(owned &other) noexcept
    {
        endpoint_ = other.endpoint_;
        object_ = std::exchange(other.object_, nullptr);
    }
    xtie_endpoint *endpoint_ = nullptr;
    T *object_ = nullptr;
};
}  // namespace detail

// How a configuration starts: with the defaults.
inline xtie_endpoint_config config()
{
    xtie_endpoint_config config;
    detail::check(xtie_endpoint_config_init(&config, sizeof config));
    return config;
}

// Storage in bytes for a configuration.
inline std::size_t storage_bytes(const xtie_endpoint_config &config)
{
    std::size_t bytes = 0;
    detail::check(xtie_endpoint_size(&config, &bytes));
    return bytes;
}

// Storage for an endpoint, as a member or a static variable.
template <std::uint32_t Connections, std::uint32_t Requests, std::uint32_t Regions>
struct storage {
    alignas(XTIE_STORAGE_ALIGN) unsigned char bytes[XTIE_ENDPOINT_BYTES(Connections, Requests,
                                                                        Regions)];

    // The defaults, with these limits.
    static xtie_endpoint_config config()
    {
        xtie_endpoint_config config = crosstie::config();
        config.connections_max = Connections;
        config.requests_max = Requests;
        config.regions_max = Regions;
        return config;
    }
};

// A send or a group of receives that has not been tested to its end. Not an owner: dropping it
// ends nothing.
class request {
public:
    request() noexcept = default;
    request(xtie_endpoint *endpoint, xtie_request *object) noexcept
        : endpoint_(endpoint), object_(object)
    {
    }
    request(request &&other) noexcept
        : endpoint_(other.endpoint_), object_(std::exchange(other.object_, nullptr))
    {
    }
    request &operator=(request &&other) noexcept
    {
        endpoint_ = other.endpoint_;
        object_ = std::exchange(other.object_, nullptr);
        return *this;
    }

    // False: there was no room, or it has ended.
    explicit operator bool() const noexcept { return object_ != nullptr; }

    // True once it has ended; throws when it did not end well. sizes: an entry per buffer, or null.
    bool test(std::size_t *sizes = nullptr)
    {
        int done = 0;
        int code = xtie_request_test(endpoint_, object_, &done, sizes);
        if (done != 0)
            object_ = nullptr;
        if (code != XTIE_OK)
            throw error(code, endpoint_);
        return done != 0;
    }

    // Tests until it has ended. Returns the size of a send, or of the first buffer of a receive.
    std::size_t wait()
    {
        std::size_t sizes[XTIE_GROUP_MAX] = {};
        while (!test(sizes)) {
        }
        return sizes[0];
    }

    // False: it is under way and will end by itself. It must be tested to its end either way.
    bool cancel()
    {
        int code = xtie_request_cancel(endpoint_, object_);
        if (code == XTIE_ERR_UNDER_WAY)
            return false;
        detail::check(code, endpoint_);
        return true;
    }

private:
    xtie_endpoint *endpoint_ = nullptr;
    xtie_request *object_ = nullptr;
};

// Registered or allocated memory. Its requests have ended when it is destroyed.
class memory : public detail::owned<xtie_memory> {
public:
    memory() noexcept = default;
    memory(xtie_endpoint *endpoint, xtie_memory *object, void *data, std::size_t bytes,
           bool allocated) noexcept
        : owned(endpoint, object), data_(data), bytes_(bytes), allocated_(allocated)
    {
    }
    memory(memory &&other) noexcept = default;
    memory(const memory &) = delete;
    memory &operator=(const memory &) = delete;
    memory &operator=(memory &&other) noexcept
    {
        if (this != &other) {
            reset();
            take(other);
            data_ = other.data_;
            bytes_ = other.bytes_;
            allocated_ = other.allocated_;
        }
        return *this;
    }
    ~memory() { reset(); }

    unsigned char *data() const noexcept { return static_cast<unsigned char *>(data_); }
    std::size_t size() const noexcept { return bytes_; }

    // Room for a message of the given tag.
    xtie_buffer buffer(std::size_t offset, std::size_t bytes, std::int32_t tag = 0) const noexcept
    {
        return xtie_buffer{data() + offset, bytes, tag, 0, object_};
    }

private:
    void reset() noexcept
    {
        if (object_ != nullptr && allocated_)
            xtie_memory_free(endpoint_, object_);
        else if (object_ != nullptr)
            xtie_memory_deregister(endpoint_, object_);
        object_ = nullptr;
    }
    void *data_ = nullptr;
    std::size_t bytes_ = 0;
    bool allocated_ = false;
};

// A connection. Destroying it closes it, and waits until its memory is left alone; not for longer
// than close_wait, after which the endpoint's end closes it: a rail that nothing can stop has no
// end. Memory that its requests were given must then outlive the endpoint.
class connection : public detail::owned<xtie_connection> {
public:
    using owned::owned;
    connection(connection &&other) noexcept = default;
    connection &operator=(connection &&other) noexcept
    {
        if (this != &other) {
            reset();
            take(other);
        }
        return *this;
    }
    ~connection() { reset(); }

    // How long destroying it waits at most: longer than a peer may be silent
    // (CROSSTIE_PEER_TIMEOUT_MS), and 30 seconds at least. Reads the environment at its first call,
    // which opening an endpoint makes.
    static std::chrono::milliseconds close_wait() noexcept
    {
        static const unsigned long silence_ms = [] {
            const char *said = std::getenv("CROSSTIE_PEER_TIMEOUT_MS");
            return said == nullptr ? 0 : std::strtoul(said, nullptr, 10);
        }();
        const unsigned long day_ms = 86400000; // the longest that may be said
        return std::chrono::milliseconds(20000 + std::min(std::max(silence_ms, 10000ul), day_ms));
    }

    // Starts to send; an empty request when there is no room now.
    request isend(const memory &from, std::size_t offset, std::size_t bytes, std::int32_t tag = 0)
    {
        xtie_request *started = nullptr;
        int code = xtie_connection_isend(endpoint_, object_, from.data() + offset, bytes, tag,
                                         from.get(), &started);
        if (code != XTIE_OK)
            throw error(code, endpoint_);
        return request(endpoint_, started);
    }

    // Offers room; an empty request when there is no room for that now.
    request irecv(const xtie_buffer *buffers, std::uint32_t count)
    {
        xtie_request *started = nullptr;
        int code = xtie_connection_irecv(endpoint_, object_, buffers, count, &started);
        if (code != XTIE_OK)
            throw error(code, endpoint_);
        return request(endpoint_, started);
    }
    request irecv(const memory &into, std::size_t offset, std::size_t bytes, std::int32_t tag = 0)
    {
        xtie_buffer buffer = into.buffer(offset, bytes, tag);
        return irecv(&buffer, 1);
    }

    // As above, making progress until there is room.
    request send(const memory &from, std::size_t offset, std::size_t bytes, std::int32_t tag = 0)
    {
        request started = isend(from, offset, bytes, tag);
        while (!started) {
            detail::check(xtie_endpoint_progress(endpoint_, nullptr), endpoint_);
            started = isend(from, offset, bytes, tag);
        }
        return started;
    }
    request receive(const memory &into, std::size_t offset, std::size_t bytes,
                    std::int32_t tag = 0)
    {
        request started = irecv(into, offset, bytes, tag);
        while (!started) {
            detail::check(xtie_endpoint_progress(endpoint_, nullptr), endpoint_);
            started = irecv(into, offset, bytes, tag);
        }
        return started;
    }

    // The peer's program, process and host.
    std::array<char, 128> peer() const
    {
        std::array<char, 128> text{};
        detail::check(xtie_connection_peer(endpoint_, object_, text.data(), text.size()),
                      endpoint_);
        return text;
    }

    // What it runs over: one of XTIE_RAIL_.
    std::uint32_t rail() const
    {
        std::uint32_t rail = 0;
        detail::check(xtie_connection_rail(endpoint_, object_, &rail), endpoint_);
        return rail;
    }

    // How one of its rails is, from 0 on; none when it has no rail of that number. Makes progress
    // while the place of a connection that was not used yet is still being left.
    std::optional<xtie_rail_stats> rail_stats(std::uint32_t rail) const
    {
        xtie_rail_stats stats{};
        stats.struct_size = sizeof stats;
        int code = XTIE_OK;
        while ((code = xtie_connection_rail_stats(endpoint_, object_, rail, &stats)) == XTIE_AGAIN)
            detail::check(xtie_endpoint_progress(endpoint_, nullptr), endpoint_);
        if (code == XTIE_ERR_RAIL)
            return std::nullopt;
        detail::check(code, endpoint_);
        return stats;
    }

private:
    void reset() noexcept
    {
        if (object_ == nullptr)
            return;
        const auto until = std::chrono::steady_clock::now() + close_wait();
        while (xtie_connection_close(endpoint_, object_) == XTIE_AGAIN &&
               std::chrono::steady_clock::now() < until)
            xtie_endpoint_progress(endpoint_, nullptr);
        object_ = nullptr;
    }
};

// A listener, with the handle that others connect to.
class listener : public detail::owned<xtie_listener> {
public:
    listener(xtie_endpoint *endpoint, xtie_listener *object, const xtie_handle &handle) noexcept
        : owned(endpoint, object), handle_(handle)
    {
    }
    listener(listener &&other) noexcept = default;
    ~listener()
    {
        if (object_ != nullptr)
            xtie_listener_close(endpoint_, object_);
    }

    const xtie_handle &handle() const noexcept { return handle_; }

    // An empty connection when nobody has connected yet.
    connection accept()
    {
        xtie_connection *accepted = nullptr;
        detail::check(xtie_listener_accept(endpoint_, object_, &accepted), endpoint_);
        return connection(endpoint_, accepted);
    }

private:
    xtie_handle handle_{};
};

// An attempt to connect; destroying it abandons it.
class attempt : public detail::owned<xtie_attempt> {
public:
    attempt(xtie_endpoint *endpoint, const xtie_handle &handle) noexcept
        : owned(endpoint, nullptr), handle_(handle)
    {
    }
    attempt(attempt &&other) noexcept = default;
    ~attempt()
    {
        if (object_ != nullptr)
            xtie_attempt_abandon(endpoint_, object_);
    }

    // An empty connection when it is not made yet; call again.
    connection poll()
    {
        xtie_connection *made = nullptr;
        detail::check(xtie_endpoint_connect(endpoint_, &handle_, &object_, &made), endpoint_);
        return connection(endpoint_, made);
    }

private:
    xtie_handle handle_{};
};

// An endpoint in the caller's storage, which outlives it; all that it gave is destroyed before it.
class endpoint {
public:
    endpoint(void *storage, std::size_t storage_bytes, const xtie_endpoint_config &config)
    {
        connection::close_wait();
        detail::check(xtie_endpoint_open(storage, storage_bytes, &config, &object_));
    }
    template <std::uint32_t C, std::uint32_t R, std::uint32_t M>
    explicit endpoint(storage<C, R, M> &place)
        : endpoint(place.bytes, sizeof place.bytes, storage<C, R, M>::config())
    {
    }
    // With rails of vendors beside those of the host; crosstie_provider.h has their functions.
    endpoint(void *storage, std::size_t storage_bytes, const xtie_endpoint_config &config,
             const xtie_vendor_rail *rails, std::size_t rails_count)
    {
        connection::close_wait();
        detail::check(xtie_endpoint_open_with_rails(storage, storage_bytes, &config, rails,
                                                    rails_count, &object_));
    }
    template <std::uint32_t C, std::uint32_t R, std::uint32_t M>
    endpoint(storage<C, R, M> &place, const xtie_vendor_rail *rails, std::size_t rails_count)
        : endpoint(place.bytes, sizeof place.bytes, storage<C, R, M>::config(), rails, rails_count)
    {
    }
    endpoint(endpoint &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    endpoint(const endpoint &) = delete;
    endpoint &operator=(const endpoint &) = delete;
    ~endpoint()
    {
        if (object_ != nullptr)
            xtie_endpoint_close(object_);
    }

    xtie_endpoint *get() const noexcept { return object_; }

    std::uint32_t progress()
    {
        std::uint32_t events = 0;
        detail::check(xtie_endpoint_progress(object_, &events), object_);
        return events;
    }
    int wait_fd() const
    {
        int fd = -1;
        detail::check(xtie_endpoint_wait_fd(object_, &fd), object_);
        return fd;
    }
    // True: sleep on wait_fd() now. False: something happened, test the requests.
    bool wait_arm()
    {
        int code = xtie_endpoint_wait_arm(object_);
        detail::check(code, object_);
        return code == XTIE_OK;
    }
    xtie_stats stats()
    {
        xtie_stats stats{};
        stats.struct_size = sizeof stats;
        detail::check(xtie_endpoint_stats(object_, &stats), object_);
        return stats;
    }
    // Writes what every open request waits for, a line each, as far as there is room; says how many
    // are open.
    std::uint32_t report(char *text, std::size_t text_bytes)
    {
        std::uint32_t requests = 0;
        detail::check(xtie_endpoint_report(object_, text, text_bytes, &requests), object_);
        return requests;
    }

    crosstie::listener listen()
    {
        xtie_handle handle;
        xtie_listener *opened = nullptr;
        detail::check(xtie_endpoint_listen(object_, &handle, &opened), object_);
        return crosstie::listener(object_, opened, handle);
    }
    attempt connect(const xtie_handle &handle) { return attempt(object_, handle); }

    crosstie::memory register_memory(void *data, std::size_t bytes,
                                     std::uint32_t kind = XTIE_MEMORY_HOST)
    {
        xtie_memory *made = nullptr;
        detail::check(xtie_memory_register(object_, data, bytes, kind, &made), object_);
        return crosstie::memory(object_, made, data, bytes, false);
    }
    // options: struct_size need not be set.
    crosstie::memory register_memory(void *data, std::size_t bytes, xtie_memory_options options)
    {
        xtie_memory *made = nullptr;
        options.struct_size = sizeof options;
        detail::check(xtie_memory_register_with(object_, data, bytes, &options, &made), object_);
        return crosstie::memory(object_, made, data, bytes, false);
    }
    crosstie::memory alloc(std::size_t bytes)
    {
        void *data = nullptr;
        xtie_memory *made = nullptr;
        detail::check(xtie_memory_alloc(object_, bytes, &data, &made), object_);
        return crosstie::memory(object_, made, data, bytes, true);
    }

private:
    xtie_endpoint *object_ = nullptr;
};

// An operation of a group that was started, until its local buffer may be used again; 0: none.
using ticket = std::uint64_t;

// This rank's part of memory that each rank of a group gives to the others. Destroying it frees it,
// and waits until transfers of others in its memory have ended, no longer than
// connection::close_wait. Functions that start an operation give none when there is no room now:
// make progress, and call them again. Those that wait throw XTIE_ERR_TIMEOUT and XTIE_ERR_ABORTED,
// too; a timeout of 0 is the group's.
class window {
public:
    window() noexcept = default;
    window(xtie_endpoint *endpoint, xtie_group *group, xtie_window *object, void *data,
           std::size_t bytes, xtie_memory *memory) noexcept
        : endpoint_(endpoint), group_(group), object_(object), data_(data), bytes_(bytes),
          memory_(memory)
    {
    }
    window(window &&other) noexcept { take(other); }
    window(const window &) = delete;
    window &operator=(const window &) = delete;
    window &operator=(window &&other) noexcept
    {
        if (this != &other) {
            reset();
            take(other);
        }
        return *this;
    }
    ~window() { reset(); }

    xtie_window *get() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }
    // This rank's part.
    unsigned char *data() const noexcept { return static_cast<unsigned char *>(data_); }
    std::size_t size() const noexcept { return bytes_; }
    // Bytes of this rank's part that go to another rank's, or come from there.
    xtie_transfer transfer(std::size_t at, std::size_t bytes, std::uint32_t rank,
                           std::uint64_t offset) const noexcept
    {
        return xtie_transfer{data() + at, bytes, memory_, offset, rank, 0};
    }
    // Waits until all ranks have called it; the window can be used then.
    void exchange(std::uint32_t timeout_ms = 0)
    {
        check(xtie_window_exchange(group_, object_, timeout_ms));
    }
    // How long a rank's part is.
    std::uint64_t bytes(std::uint32_t rank) const
    {
        std::uint64_t bytes = 0;
        check(xtie_window_bytes(group_, object_, rank, &bytes));
        return bytes;
    }

    std::optional<ticket> put(const xtie_transfer &transfer)
    {
        return started([&](ticket *out) {
            return xtie_window_put(group_, object_, &transfer, out);
        });
    }
    std::optional<ticket> put_signal(const xtie_transfer &transfer, const xtie_add &signal)
    {
        return started([&](ticket *out) {
            return xtie_window_put_signal(group_, object_, &transfer, &signal, out);
        });
    }
    std::optional<ticket> put_signal_counter(const xtie_transfer &transfer, const xtie_add &signal,
                                             const xtie_add &counter)
    {
        return started([&](ticket *out) {
            return xtie_window_put_signal_counter(group_, object_, &transfer, &signal, &counter,
                                                  out);
        });
    }
    std::optional<ticket> get(const xtie_transfer &transfer)
    {
        return started([&](ticket *out) {
            return xtie_window_get(group_, object_, &transfer, out);
        });
    }
    std::optional<ticket> signal(std::uint32_t rank, const xtie_add &signal)
    {
        return started([&](ticket *out) {
            return xtie_window_signal(group_, object_, rank, &signal, out);
        });
    }
    std::optional<ticket> signal_with_fence(std::uint32_t rank, const xtie_add &signal)
    {
        return started([&](ticket *out) {
            return xtie_window_signal_with_fence(group_, object_, rank, &signal, out);
        });
    }
    std::optional<ticket> signal_counter(std::uint32_t rank, const xtie_add &signal,
                                         const xtie_add &counter)
    {
        return started([&](ticket *out) {
            return xtie_window_signal_counter(group_, object_, rank, &signal, &counter, out);
        });
    }

    // Has a NIC add to a counter once the operation's local buffer may be used again; false: there
    // is no room now.
    bool count_by_nic(ticket operation, const xtie_add &counter)
    {
        int code = xtie_window_count_by_nic(group_, object_, operation, &counter);
        check(code);
        return code == XTIE_OK;
    }

    // compare: one of XTIE_COMPARE_.
    void wait_signal(std::uint32_t id, std::uint32_t compare, std::uint64_t value,
                     std::uint32_t timeout_ms = 0)
    {
        check(xtie_window_wait_signal(group_, object_, id, compare, value, timeout_ms));
    }
    void wait_signal_from(std::uint32_t id, std::uint32_t rank, std::uint32_t compare,
                          std::uint64_t value, std::uint32_t timeout_ms = 0)
    {
        check(xtie_window_wait_signal_from(group_, object_, id, rank, compare, value, timeout_ms));
    }
    void wait_counter(std::uint32_t id, std::uint32_t compare, std::uint64_t value,
                      std::uint32_t timeout_ms = 0)
    {
        check(xtie_window_wait_counter(group_, object_, id, compare, value, timeout_ms));
    }
    std::uint64_t read_signal(std::uint32_t id) const
    {
        std::uint64_t value = 0;
        check(xtie_window_read_signal(group_, object_, id, &value));
        return value;
    }
    std::uint64_t read_signal_from(std::uint32_t id, std::uint32_t rank) const
    {
        std::uint64_t value = 0;
        check(xtie_window_read_signal_from(group_, object_, id, rank, &value));
        return value;
    }
    std::uint64_t read_counter(std::uint32_t id) const
    {
        std::uint64_t value = 0;
        check(xtie_window_read_counter(group_, object_, id, &value));
        return value;
    }
    void reset_signal(std::uint32_t id) { check(xtie_window_reset_signal(group_, object_, id)); }
    void reset_counter(std::uint32_t id) { check(xtie_window_reset_counter(group_, object_, id)); }
    void barrier(std::uint32_t id = 0, std::uint32_t timeout_ms = 0)
    {
        check(xtie_window_barrier(group_, object_, id, timeout_ms));
    }

private:
    void check(int code) const { detail::check(code, endpoint_); }
    template <typename Call>
    std::optional<ticket> started(Call call)
    {
        ticket made = 0;
        int code = call(&made);
        check(code);
        return code == XTIE_AGAIN ? std::nullopt : std::optional<ticket>(made);
    }
    void take(window &other) noexcept
    {
        endpoint_ = other.endpoint_;
        group_ = other.group_;
        object_ = std::exchange(other.object_, nullptr);
        data_ = other.data_;
        bytes_ = other.bytes_;
        memory_ = other.memory_;
    }
    void reset() noexcept
    {
        if (object_ == nullptr)
            return;
        const auto until = std::chrono::steady_clock::now() + connection::close_wait();
        while (xtie_window_free(group_, object_) == XTIE_AGAIN &&
               std::chrono::steady_clock::now() < until)
            xtie_group_progress(group_);
        object_ = nullptr;
    }
    xtie_endpoint *endpoint_ = nullptr;
    xtie_group *group_ = nullptr;
    xtie_window *object_ = nullptr;
    void *data_ = nullptr;
    std::size_t bytes_ = 0;
    xtie_memory *memory_ = nullptr;
};

// How a group's configuration starts: struct_size is set, and all else zero.
inline xtie_group_config group_config() noexcept
{
    xtie_group_config config{};
    config.struct_size = sizeof config;
    return config;
}

// Storage of a group in bytes for a configuration.
inline std::size_t group_bytes(const xtie_group_config &config)
{
    std::size_t bytes = 0;
    detail::check(xtie_group_size(&config, &bytes));
    return bytes;
}

// Ranks that put bytes into each other's windows, in the caller's storage, which outlives it, as
// its endpoint does. Windows are destroyed before it. Destroying it closes it: other ranks' waits
// for this one end with an error.
// An AllGather that was prepared on a window; destroying it gives it up. A stream is a CUstream or
// cudaStream_t.
class all_gather {
public:
    all_gather() noexcept = default;
    all_gather(xtie_endpoint *endpoint, xtie_group *group, xtie_all_gather *object) noexcept
        : endpoint_(endpoint), group_(group), object_(object)
    {
    }
    all_gather(all_gather &&other) noexcept
        : endpoint_(other.endpoint_), group_(other.group_),
          object_(std::exchange(other.object_, nullptr))
    {
    }
    all_gather(const all_gather &) = delete;
    all_gather &operator=(const all_gather &) = delete;
    all_gather &operator=(all_gather &&other) noexcept
    {
        if (this != &other) {
            reset();
            endpoint_ = other.endpoint_;
            group_ = other.group_;
            object_ = std::exchange(other.object_, nullptr);
        }
        return *this;
    }
    ~all_gather() { reset(); }

    xtie_all_gather *get() const noexcept { return object_; }
    // Puts it on the stream, or records it where the stream is captured.
    void exec(const void *send, std::size_t bytes, void *stream)
    {
        detail::check(xtie_all_gather_exec(group_, object_, send, bytes, stream), endpoint_);
    }
    // Throws where it has failed, also while a graph carried it out.
    void verify() const { detail::check(xtie_all_gather_check(group_, object_), endpoint_); }

private:
    void reset() noexcept
    {
        if (object_ != nullptr)
            xtie_all_gather_destroy(group_, std::exchange(object_, nullptr));
    }

    xtie_endpoint *endpoint_ = nullptr;
    xtie_group *group_ = nullptr;
    xtie_all_gather *object_ = nullptr;
};

class group {
public:
    group(const crosstie::endpoint &endpoint, void *storage, std::size_t storage_bytes,
          const xtie_group_config &config)
        : endpoint_(endpoint.get())
    {
        check(xtie_group_open(endpoint_, storage, storage_bytes, &config, &object_));
    }
    group(group &&other) noexcept
        : endpoint_(other.endpoint_), object_(std::exchange(other.object_, nullptr))
    {
    }
    group(const group &) = delete;
    group &operator=(const group &) = delete;
    ~group()
    {
        if (object_ != nullptr)
            xtie_group_close(object_);
    }

    xtie_group *get() const noexcept { return object_; }
    void progress() { check(xtie_group_progress(object_)); }
    // From any thread.
    void abort() { check(xtie_group_abort(object_)); }
    void abort_clear() { check(xtie_group_abort_clear(object_)); }

    // Windows still to be exchanged. from: this rank's part, which outlives the window.
    crosstie::window register_window(const memory &from, std::uint32_t flags = 0)
    {
        xtie_window *made = nullptr;
        check(xtie_window_register(object_, from.data(), from.size(), from.get(), flags, &made));
        return crosstie::window(endpoint_, object_, made, from.data(), from.size(), from.get());
    }
    // All ranks call it, in the same order.
    crosstie::all_gather prepare(const crosstie::window &on, const xtie_all_gather_config &config)
    {
        xtie_all_gather *made = nullptr;
        check(xtie_all_gather_init(object_, on.get(), &config, &made));
        return crosstie::all_gather(endpoint_, object_, made);
    }
    // Prepares it where that was not done, and carries it out, or records it.
    void all_gather(const crosstie::window &on, const void *send, void *receive,
                    std::size_t bytes, void *stream)
    {
        check(xtie_window_all_gather(object_, on.get(), send, receive, bytes, stream));
    }
    crosstie::window alloc(std::size_t bytes, std::uint32_t flags = 0)
    {
        void *data = nullptr;
        xtie_memory *memory = nullptr;
        xtie_window *made = nullptr;
        check(xtie_window_alloc(object_, bytes, flags, &data, &memory, &made));
        return crosstie::window(endpoint_, object_, made, data, bytes, memory);
    }

    void wait_local(ticket started, std::uint32_t timeout_ms = 0)
    {
        check(xtie_group_wait_local(object_, started, timeout_ms));
    }
    bool test_local(ticket started)
    {
        int done = 0;
        check(xtie_group_test_local(object_, started, &done));
        return done != 0;
    }
    void flush(std::uint32_t rank = XTIE_RANK_ALL, std::uint32_t timeout_ms = 0)
    {
        check(xtie_group_flush(object_, rank, timeout_ms));
    }
    void fence(std::uint32_t rank) { check(xtie_group_fence(object_, rank)); }

private:
    void check(int code) const { detail::check(code, endpoint_); }
    xtie_endpoint *endpoint_ = nullptr;
    xtie_group *object_ = nullptr;
};

}  // namespace crosstie

#endif  // CROSSTIE_HPP
