// Two processes over two TCP rails of this host. The sender breaks one of its own rails again and
// again, behind the library's back, while messages flow: every byte still arrives, in order.
#define _POSIX_C_SOURCE 200809L
#include "example.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { MESSAGES = 400, BYTES = 256 << 10, EACH = 40, FDS = 256 };

XTIE_ENDPOINT_STORAGE(storage, 1, 32, 1);
static xtie_connection *connection;
static xtie_memory *memory;
static unsigned char *data;

static void endpoint_open(void)
{
    xtie_endpoint_config config;
    CHECK(xtie_endpoint_config_init(&config, sizeof config));
    config.connections_max = 1;
    config.requests_max = 32;
    config.regions_max = 1;
    CHECK(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    void *start = NULL;
    CHECK(xtie_memory_alloc(endpoint, BYTES, &start, &memory));
    data = start;
}

static void close_all(void)
{
    connection_close(connection);
    CHECK(xtie_memory_free(endpoint, memory));
    CHECK(xtie_endpoint_close(endpoint));
}

// Sockets of this process that have a peer on a TCP port: the link over which the library sets
// connections up, which it opens first, and the rails.
static int sockets(int *found)
{
    int count = 0;
    for (int fd = 0; fd < FDS; fd++) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 &&
            (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
            found[count++] = fd;
    }
    return count;
}

// Breaks a rail, when both are there.
static int rail_break(int link, int which)
{
    int all[FDS], rails[FDS], count = sockets(all), left = 0;
    for (int at = 0; at < count; at++)
        if (all[at] != link)
            rails[left++] = all[at];
    return left == 2 && shutdown(rails[which], SHUT_RDWR) == 0;
}

static void listen_side(int fd)
{
    endpoint_open();
    xtie_handle handle;
    xtie_listener *listener = NULL;
    CHECK(xtie_endpoint_listen(endpoint, &handle, &listener));
    handle_send(&handle, fd);
    connection = accept_one(listener);
    for (int message = 0; message < MESSAGES; message++) {
        xtie_buffer buffer = {data, BYTES, 0, 0, memory};
        size_t bytes = 0;
        finish(receive_start(connection, &buffer, 1), &bytes);
        if (bytes != BYTES)
            fail("a message has the wrong length");
        verify(data, BYTES, (uint64_t)message);
    }
    finish(send_start(connection, NULL, 0, NULL), NULL);  // all is here
    // The sender closes first, so that this message is not cut off.
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    xtie_request *request = receive_start(connection, &nothing, 1);
    int done = 0;
    while (xtie_request_test(endpoint, request, &done, NULL) == XTIE_OK && !done)
        pause_now_and_then();
    close_all();
}

static void connect_side(int fd)
{
    endpoint_open();
    xtie_handle handle;
    handle_receive(&handle, fd);
    connection = connect_one(&handle);
    int first[FDS], link = sockets(first) > 0 ? first[0] : -1;
    int broken = 0, due = 0;
    for (int message = 0; message < MESSAGES; message++) {
        fill(data, BYTES, (uint64_t)message);
        xtie_request *request = send_start(connection, data, BYTES, memory);
        due += message % EACH == EACH - 1;
        if (due > 0 && rail_break(link, broken % 2)) {
            due--;
            broken++;
        }
        finish(request, NULL);
    }
    xtie_buffer nothing = {NULL, 0, 0, 0, NULL};
    finish(receive_start(connection, &nothing, 1), NULL);
    printf("%d messages of %d bytes, %d times a rail was broken, no byte lost\n", MESSAGES, BYTES,
           broken);
    if (broken == 0)
        fail("no rail was broken");
    close_all();
}

int main(void)
{
    // all rails between the same two addresses, which every host has
    setenv("CROSSTIE_RAILS", "tcp", 1);
    setenv("CROSSTIE_TCP_RAILS", "2", 1);
    setenv("CROSSTIE_SOCKET_IFNAME", "=lo", 1);
    return two_processes(listen_side, connect_side);
}
