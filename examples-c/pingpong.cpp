// Two processes exchange messages through crosstie.hpp; prints the one-way time of each size. Every
// byte is verified. The same in C, with more measurements: pingpong.c.
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <crosstie.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr std::size_t sizes[] = {8, 512, 4096, 65536, 1 << 20};
constexpr std::size_t bytes_max = 1 << 20;
#ifndef PART
#define PART 1  // -DPART=20: a twentieth of the messages, as under valgrind
#endif
constexpr int rounds = 300 / PART;

crosstie::storage<1, 32, 4> place;

unsigned char byte_of(int round, std::size_t at)
{
    return static_cast<unsigned char>(static_cast<std::size_t>(round) * 31 + at * 7 + (at >> 8));
}

void measure(crosstie::connection &peer, crosstie::memory &memory)
{
    std::array<double, rounds> times_us;
    for (std::size_t bytes : sizes) {
        for (int round = 0; round < rounds; round++) {
            for (std::size_t at = 0; at < bytes; at++)
                memory.data()[at] = byte_of(round, at);
            crosstie::request receive = peer.receive(memory, bytes_max, bytes);
            auto start = std::chrono::steady_clock::now();
            crosstie::request send = peer.send(memory, 0, bytes);
            std::size_t received = receive.wait();
            std::chrono::duration<double, std::micro> took =
                std::chrono::steady_clock::now() - start;
            send.wait();
            times_us[static_cast<std::size_t>(round)] = took.count() / 2;
            bool same = received == bytes;
            for (std::size_t at = 0; at < bytes; at++)
                same = same && memory.data()[bytes_max + at] == byte_of(round, at);
            if (!same) {
                std::fprintf(stderr, "pingpong: a message came back different\n");
                std::exit(1);
            }
        }
        std::sort(times_us.begin(), times_us.end());
        std::printf("%8zu bytes %10.2f us one way\n", bytes, times_us[rounds / 2]);
    }
}

void answer(crosstie::connection &peer, crosstie::memory &memory)
{
    for (std::size_t bytes : sizes) {
        for (int round = 0; round < rounds; round++) {
            peer.receive(memory, 0, bytes).wait();
            peer.send(memory, 0, bytes).wait();
        }
    }
    peer.receive(memory, 0, 0).wait();  // the other side has everything
}

void listen_side(int out)
{
    crosstie::endpoint endpoint(place);
    crosstie::memory memory = endpoint.alloc(2 * bytes_max);
    crosstie::listener listener = endpoint.listen();
    const xtie_handle &handle = listener.handle();
    if (write(out, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle))
        std::exit(1);
    crosstie::connection peer = listener.accept();
    while (!peer)
        peer = listener.accept();
    answer(peer, memory);
}

void connect_side(int in)
{
    xtie_handle handle;
    if (read(in, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) {
        std::fprintf(stderr, "pingpong: no handle came\n");
        std::exit(1);
    }
    crosstie::endpoint endpoint(place);
    crosstie::memory memory = endpoint.alloc(2 * bytes_max);
    crosstie::attempt attempt = endpoint.connect(handle);
    crosstie::connection peer = attempt.poll();
    while (!peer)
        peer = attempt.poll();
    std::printf("connected to %s\n", peer.peer().data());
    measure(peer, memory);
    for (std::uint32_t rail = 0; auto stats = peer.rail_stats(rail); rail++)
        std::printf("rail %u, from %s: %llu bytes of long messages\n", static_cast<unsigned>(rail),
                    stats->local[0] != '\0' ? stats->local : "this host",
                    static_cast<unsigned long long>(stats->bytes));
    peer.send(memory, 0, 0).wait();
}

}  // namespace

int main()
{
    int ends[2];
    if (pipe(ends) != 0)
        return 1;
    pid_t parent = getpid();
    pid_t child = fork();  // before any endpoint is open
    if (child < 0)
        return 1;
    // it ends with its parent, which may have ended before the call
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(1);
    try {
        if (child == 0) {
            listen_side(ends[1]);
            return 0;
        }
        close(ends[1]);
        connect_side(ends[0]);
    } catch (const crosstie::error &failed) {
        std::fprintf(stderr, "pingpong: %s (%d)\n", failed.what(), failed.code());
        return 1;
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
