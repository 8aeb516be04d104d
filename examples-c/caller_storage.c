// Everything in static arrays: the endpoint, its buffers, the program's own data. The program calls
// no malloc; the library takes what it needs from the system when the endpoint is opened, and
// nothing afterwards. One process, on the loopback device.
#include <crosstie.h>

#include <stdio.h>

enum { CONNECTIONS = 2, REQUESTS = 32, REGIONS = 2, MESSAGES = 1000, BYTES = 4096 };

// The loopback device takes more than the others, so the size is named.
XTIE_ALIGNAS(XTIE_STORAGE_ALIGN)
static unsigned char storage[XTIE_LOOPBACK_BYTES(CONNECTIONS, REQUESTS, REGIONS)];
static unsigned char source[BYTES], target[BYTES];
static xtie_endpoint *endpoint;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != XTIE_OK) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, xtie_result_str(result_));                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int exchange(xtie_connection *to, xtie_connection *from, xtie_memory *source_memory,
                    xtie_memory *target_memory, unsigned message)
{
    for (unsigned at = 0; at < BYTES; at++)
        source[at] = (unsigned char)(message * 31 + at * 7);
    xtie_buffer buffer = {target, BYTES, 0, 0, target_memory};
    xtie_request *send = NULL, *receive = NULL;
    while (receive == NULL) {  // no room now
        TRY(xtie_connection_irecv(endpoint, from, &buffer, 1, &receive));
        TRY(xtie_endpoint_progress(endpoint, NULL));
    }
    while (send == NULL) {
        TRY(xtie_connection_isend(endpoint, to, source, BYTES, 0, source_memory, &send));
        TRY(xtie_endpoint_progress(endpoint, NULL));
    }
    int received = 0, sent = 0;
    size_t bytes = 0;
    while (!received)
        TRY(xtie_request_test(endpoint, receive, &received, &bytes));
    while (!sent)
        TRY(xtie_request_test(endpoint, send, &sent, NULL));
    int same = bytes == BYTES;
    for (unsigned at = 0; at < BYTES; at++)
        same = same && target[at] == (unsigned char)(message * 31 + at * 7);
    if (!same)
        fprintf(stderr, "message %u arrived different\n", message);
    return !same;
}

static int close_connection(xtie_connection *connection)
{
    int result;
    while ((result = xtie_connection_close(endpoint, connection)) == XTIE_AGAIN)
        TRY(xtie_endpoint_progress(endpoint, NULL));
    return result;
}

// The number of the loopback device.
static int loopback_find(uint32_t *device)
{
    for (*device = 0; *device < xtie_device_count(); ++*device) {
        xtie_device_properties properties = {.struct_size = sizeof properties};
        TRY(xtie_device_properties_get(*device, &properties));
        if (properties.kind == XTIE_DEVICE_LOOPBACK)
            return 0;
    }
    return 1;
}

int main(void)
{
    xtie_endpoint_config config;
    TRY(xtie_endpoint_config_init(&config, sizeof config));
    if (loopback_find(&config.device) != 0)
        return 1;
    config.connections_max = CONNECTIONS;
    config.requests_max = REQUESTS;
    config.regions_max = REGIONS;
    size_t bytes = 0;
    TRY(xtie_endpoint_size(&config, &bytes));
    printf("storage: %zu bytes in an array, %zu asked for\n", sizeof storage, bytes);
    TRY(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));

    xtie_memory *source_memory = NULL, *target_memory = NULL;
    TRY(xtie_memory_register(endpoint, source, BYTES, XTIE_MEMORY_HOST, &source_memory));
    TRY(xtie_memory_register(endpoint, target, BYTES, XTIE_MEMORY_HOST, &target_memory));

    xtie_handle handle;
    xtie_listener *listener = NULL;
    xtie_attempt *attempt = NULL;
    xtie_connection *to = NULL, *from = NULL;
    TRY(xtie_endpoint_listen(endpoint, &handle, &listener));
    while (to == NULL)
        TRY(xtie_endpoint_connect(endpoint, &handle, &attempt, &to));
    while (from == NULL)
        TRY(xtie_listener_accept(endpoint, listener, &from));

    for (unsigned message = 0; message < MESSAGES; message++) {
        if (exchange(to, from, source_memory, target_memory, message) != 0)
            return 1;
    }
    xtie_stats stats = {.struct_size = sizeof stats};
    TRY(xtie_endpoint_stats(endpoint, &stats));
    printf("%llu messages, %llu bytes, every byte verified\n", (unsigned long long)stats.receives,
           (unsigned long long)stats.receive_bytes);

    TRY(close_connection(to));
    TRY(close_connection(from));
    TRY(xtie_memory_deregister(endpoint, source_memory));
    TRY(xtie_memory_deregister(endpoint, target_memory));
    TRY(xtie_endpoint_close(endpoint));
    return 0;
}
