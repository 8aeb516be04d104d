// A program with both libraries and another one of Rust in it: each has a runtime of its own.
// main of adapter/nccl/example/inside.c is a function here.
#include <crosstie.h>

#include <stdio.h>
#include <string.h>

int inside(void);
int neighbour(void), sealed_neighbour(void);

XTIE_ALIGNAS(XTIE_STORAGE_ALIGN)
static unsigned char storage[XTIE_LOOPBACK_BYTES(2, 32, 4)];

#define TRY(call) do { int rc_ = (call); if (rc_) { \
    fprintf(stderr, "%s: %d\n", #call, rc_); return 1; } } while (0)

// Opens an endpoint, fails with it, and has the sentence for that.
static int endpoint_of_the_library(void)
{
    xtie_endpoint_config config;
    xtie_endpoint *endpoint = NULL;
    char text[320] = "";
    TRY(xtie_endpoint_config_init(&config, sizeof config));
    config.device = 1;
    config.connections_max = 2;
    config.regions_max = 4;
    TRY(xtie_endpoint_open(storage, sizeof storage, &config, &endpoint));
    TRY(xtie_request_cancel(endpoint, NULL) != XTIE_ERR_STALE);
    TRY(xtie_endpoint_error(endpoint, text, sizeof text));
    TRY(strlen(text) == 0);
    return xtie_endpoint_close(endpoint);
}

int main(void)
{
    // what is caught is caught by its own library, whichever has panicked before
    for (int round = 0; round < 2; round++) {
        TRY(endpoint_of_the_library());
        TRY(neighbour());
        TRY(sealed_neighbour());
    }
    return inside();
}
