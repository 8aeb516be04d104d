/* Peers of other wire versions, made of the frames that those have written: HARNESS_FRAMES is the
 * folder of all. What stands where, doc/wire.md says (W7, W8). Included by scenarios.h alone. */
#include "sha256.h"
#include <sys/un.h>

enum { FRAME = 1024, FRAME_HEAD = 16, OUR_ENDPOINT = 0xabcd, ARENA = 1 << 20 };
enum { KNOCK = 17, CHALLENGE = 18, PROVE = 19, PROVED = 20, DOOR = 96, DOOR_VERSION = 3 };
enum { LINK_REPLY = 2, LINK_READY = 3, ACCEPTED = 5, REFUSED_FRAME = 6, PING = 9, BY_VERSION = 3 };

struct frame {
    unsigned char bytes[FRAME];
    size_t length;
};

static uint64_t number_at(const unsigned char *at, size_t bytes) {
    uint64_t number = 0;
    memcpy(&number, at, bytes);
    return number;
}

static struct frame recorded(const char *release, const char *name) {
    struct frame frame = {{0}, 0};
    char path[500];
    snprintf(path, sizeof path, "%s/%s/%s", getenv("HARNESS_FRAMES"), release, name);
    FILE *file = fopen(path, "rb");
    if (!file) FAIL("%s: no such file", path);
    frame.length = fread(frame.bytes, 1, FRAME, file);
    CHECK(frame.length > FRAME_HEAD && !fclose(file));
    return frame;
}

/* Writes into a frame's body. */
static void body(struct frame *frame, size_t at, const void *bytes, size_t count) {
    memcpy(frame->bytes + FRAME_HEAD + at, bytes, count);
}

static void body_number(struct frame *frame, size_t at, uint64_t number) {
    body(frame, at, &number, 8);
}

/* A recorded hello as if it had been said by one endpoint to another. */
static struct frame addressed(
    const char *release, const char *name, const unsigned char *from, const unsigned char *to) {
    struct frame frame = recorded(release, name);
    body(&frame, 8, from, 16), body(&frame, 24, to, 16);
    return frame;
}

static void major_set(struct frame *frame, uint16_t major) {
    memcpy(frame->bytes + 4, &major, 2);
}

static int shared_bytes(off_t bytes) {
    int fd = memfd_create("harness", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && !ftruncate(fd, bytes) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    return fd;
}

static void frame_send(int link, const struct frame *frame, const int *fds, size_t count) {
    union { struct cmsghdr head; char room[CMSG_SPACE(3 * sizeof(int))]; } control;
    struct iovec part = {(void *)frame->bytes, frame->length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = &control, message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    }
    CHECK(sendmsg(link, &message, MSG_NOSIGNAL) == (ssize_t)frame->length);
}

/* The next frame that is no ping, of a kind. */
static struct frame frame_receive(int link, int kind) {
    struct frame frame;
    for (;;) {
        ssize_t got = recv(link, frame.bytes, FRAME, 0);
        CHECK(got >= FRAME_HEAD);
        frame.length = (size_t)got;
        if (number_at(frame.bytes + 8, 2) != PING) break;
    }
    if (number_at(frame.bytes + 8, 2) != (uint64_t)kind)
        FAIL("frame %lu for %d, reason %lu", number_at(frame.bytes + 8, 2), kind,
            number_at(frame.bytes + FRAME_HEAD + 8, 4));
    return frame;
}

/* The socket of an endpoint's name on this host. */
static struct sockaddr_un name_of(const unsigned char *endpoint, socklen_t *length) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    unsigned char secret[32] = "xtie socket name", public[32];
    memcpy(secret + 16, endpoint, 16);
    sha256(secret, sizeof secret, public);
    int text = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "crosstie-%016lx%016lx",
        number_at(public + 8, 8), number_at(public, 8));
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)text);
    return at;
}

static void handle_checked(unsigned char *handle) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (int i = 0; i < 120; i++) sum = (sum ^ handle[i]) * 0x100000001b3u;
    memcpy(handle + 120, &sum, 8);
}

/* What is said at a local door before a hello (W8.15). */
static void door_say(int link, int kind, struct frame *said) {
    static const unsigned char HEAD[8] = {'X', 'T', 'I', 'E', 1, 0, 1, 0};
    uint16_t about[2] = {(uint16_t)kind, DOOR};
    uint32_t version = DOOR_VERSION;
    memcpy(said->bytes, HEAD, 8), memcpy(said->bytes + 8, about, 4);
    body(said, 0, &version, 4);
    said->length = FRAME_HEAD + DOOR;
    frame_send(link, said, NULL, 0);
}

/* That the handle of an endpoint's listener is held: over both ends' random numbers. */
static void door_proof(struct frame *said, const char *label, const unsigned char *endpoint,
    const unsigned char *connector, const unsigned char *listener) {
    unsigned char text[72] = {0}, proof[32];
    memcpy(text, label, strlen(label));
    memcpy(text + 16, connector, 16), memcpy(text + 32, listener, 16);
    memcpy(text + 48, endpoint, 16), memcpy(text + 64, said->bytes + FRAME_HEAD + 8, 8);
    hmac_sha256(endpoint, text, sizeof text, proof);
    body(said, 32, proof, 32);
}

/* Enters the plugin's door with a handle. */
static void door_enter(int link, const unsigned char *handle) {
    struct frame knock = {{0}, 0}, prove = {{0}, 0};
    body_number(&knock, 16, 0x77);
    door_say(link, KNOCK, &knock);
    struct frame challenge = frame_receive(link, CHALLENGE);
    body(&prove, 8, handle + 40, 8);
    door_proof(&prove, "xtie door asks", handle + 24, knock.bytes + FRAME_HEAD + 16,
        challenge.bytes + FRAME_HEAD + 16);
    door_say(link, PROVE, &prove);
    frame_receive(link, PROVED);
}

/* Lets the plugin in that has dialled the door of a handle. */
static void door_open(int link, const unsigned char *handle) {
    struct frame knock = frame_receive(link, KNOCK), challenge = {{0}, 0}, proved = {{0}, 0};
    body_number(&challenge, 16, 0x88);
    door_say(link, CHALLENGE, &challenge);
    struct frame prove = frame_receive(link, PROVE);
    body(&proved, 8, prove.bytes + FRAME_HEAD + 8, 8);
    door_proof(&proved, "xtie door opens", handle + 24, knock.bytes + FRAME_HEAD + 16,
        challenge.bytes + FRAME_HEAD + 16);
    door_say(link, PROVED, &proved);
}

static const unsigned char PEER[16] = {OUR_ENDPOINT & 0xff, OUR_ENDPOINT >> 8};

/* A link to the plugin's listener, by a peer of a release; `major`: of another one, 0: its own. */
static int dialled(const unsigned char *handle, const char *release, int major) {
    const unsigned char *endpoint = handle + 24;
    socklen_t length;
    struct sockaddr_un at = name_of(endpoint, &length);
    int link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(link >= 0 && !connect(link, (struct sockaddr *)&at, length));
    door_enter(link, handle);
    struct frame hello = addressed(release, "link_hello", PEER, endpoint);
    body_number(&hello, 72, ARENA);
    if (major) major_set(&hello, (uint16_t)major);
    int fds[3] = {shared_bytes(ARENA), shared_bytes(4096), shared_bytes(4096)};
    frame_send(link, &hello, fds, 3);
    for (int i = 0; i < 3; i++) close(fds[i]);
    return link;
}

static const uint32_t RINGS[2] = {64 << 10, 32 << 10};

/* A peer of a release connects to the plugin: it is accepted, a receive may wait for it, and ends
 * when it closes. */
static void served(struct net *net, const char *release) {
    unsigned char handle[HANDLE], memory[100];
    void *listener = NULL, *recv = NULL, *known = NULL;
    OK(net_listen(net, 0, handle, &listener));
    int link = dialled(handle, release, 0);
    frame_receive(link, LINK_REPLY);
    struct frame ready = addressed(release, "link_ready", PEER, handle + 24);
    frame_send(link, &ready, NULL, 0);
    struct frame wish = recorded(release, "connect");
    body(&wish, 8, handle + 40, 8);
    /* rings as endpoints have them: those of the record are of a test's */
    body(&wish, 24, RINGS, sizeof RINGS);
    frame_send(link, &wish, NULL, 0);
    struct frame accepted = frame_receive(link, ACCEPTED);
    while (!recv) OK(net_accept(net, listener, &recv, NULL));
    OK(net_reg(net, recv, memory, sizeof memory, HOST_MEMORY, &known));
    void *request = recv_one(net, recv, memory, sizeof memory, 1, known);
    int done = 77;
    OK(net_test(net, request, &done, NULL));
    CHECK(!done);
    struct frame closed = recorded(release, "closed");
    body(&closed, 0, accepted.bytes + FRAME_HEAD, 8);
    frame_send(link, &closed, NULL, 0);
    CHECK(finish(net, request, NULL) == REMOTE);
    OK(net_dereg(net, recv, known));
    OK(net_close(net, CLOSE_RECV, recv));
    OK(net_close(net, CLOSE_LISTEN, listener));
    close(link);
}

/* A stand-in for a listener: its socket, and a handle that leads there. */
static int stand_in(struct net *net, unsigned char *handle, unsigned char mark) {
    void *listener = NULL;
    OK(net_listen(net, 0, handle, &listener));
    handle[24] ^= mark, handle[39] ^= (unsigned char)rank;
    handle_checked(handle);
    OK(net_close(net, CLOSE_LISTEN, listener));
    socklen_t length;
    struct sockaddr_un at = name_of(handle + 24, &length);
    int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(socket_fd >= 0 && !bind(socket_fd, (struct sockaddr *)&at, length));
    CHECK(!listen(socket_fd, 8));
    return socket_fd;
}

/* The plugin dials it. */
static int answered(struct net *net, int socket_fd, unsigned char *handle, struct frame *hello) {
    void *send = NULL;
    int link = -1;
    while (link < 0) {
        OK(net_connect(net, 0, handle, &send, NULL));
        CHECK(!send);
        link = accept(socket_fd, NULL, NULL);
    }
    door_open(link, handle);
    *hello = frame_receive(link, 1);
    return link;
}

/* The plugin connects to a listener of a release. */
static void serves(struct net *net, const char *release) {
    unsigned char handle[HANDLE];
    struct frame hello;
    int socket_fd = stand_in(net, handle, 1), link = answered(net, socket_fd, handle, &hello);
    uint64_t arena = number_at(hello.bytes + FRAME_HEAD + 72, 8);
    int fds[3] = {shared_bytes((off_t)arena), shared_bytes(4096), shared_bytes(4096)};
    unsigned char caller[16];
    memcpy(caller, hello.bytes + FRAME_HEAD + 8, 16);
    struct frame reply = addressed(release, "link_reply", handle + 24, caller);
    body_number(&reply, 72, arena);
    frame_send(link, &reply, fds, 3);
    for (int i = 0; i < 3; i++) close(fds[i]);
    frame_receive(link, LINK_READY);
    struct frame wish = frame_receive(link, 4), accepted = recorded(release, "accepted");
    body(&accepted, 8, wish.bytes + FRAME_HEAD, 8);
    frame_send(link, &accepted, NULL, 0);
    void *send = NULL;
    while (!send) OK(net_connect(net, 0, handle, &send, NULL));
    OK(net_close(net, CLOSE_SEND, send));
    close(link), close(socket_fd);
}

/* The plugin connects to a listener of another major version, which says so in its own words or in
 * those of a version that nobody can know: the user reads which side is to be upgraded. */
static void refused_by(struct net *net, uint16_t major, int own_words, const char *which) {
    unsigned char handle[HANDLE];
    struct frame hello, refusal = recorded("0.1.0-minor-1", "refused");
    int socket_fd = stand_in(net, handle, 2), link = answered(net, socket_fd, handle, &hello), rc;
    uint32_t reason = BY_VERSION;
    body_number(&refusal, 0, 0), body(&refusal, 8, &reason, 4), body(&refusal, 12, &major, 2);
    if (own_words) major_set(&refusal, major);
    frame_send(link, &refusal, NULL, 0);
    void *send = NULL;
    forget_log();
    while (!(rc = net_connect(net, 0, handle, &send, NULL))) CHECK(!send);
    char said[100];
    snprintf(said, sizeof said, "the peer speaks wire version %d, ", major);
    CHECK(rc == USAGE && !send && was_logged("no connection: ") && was_logged(said));
    CHECK(was_logged(which));
    close(link), close(socket_fd);
}

static void mixed_versions(void) {
    static const char *const RELEASES[] = {"0.1.0-minor-0", "0.1.0-minor-1"};
    for (int i = 0; i < 2; i++) {
        /* with an endpoint each, to which nobody has a link */
        struct net net = started();
        served(&net, RELEASES[i]);
        serves(&net, RELEASES[i]);
        OK(net_finalize(&net));
    }
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL, *recv = NULL;
    for (int own_words = 0; own_words < 2; own_words++) {
        refused_by(&net, 0, own_words, ": upgrade the peer");
        refused_by(&net, 7, own_words, ": upgrade this side");
    }
    /* one of another major version at the plugin's door is told ours; others are served */
    OK(net_listen(&net, 0, handle, &listener));
    int link = dialled(handle, RELEASES[1], 7);
    struct frame refusal = frame_receive(link, REFUSED_FRAME);
    CHECK(number_at(refusal.bytes + FRAME_HEAD + 8, 4) == BY_VERSION);
    CHECK(number_at(refusal.bytes + FRAME_HEAD + 12, 2) == number_at(handle + 8, 2));
    for (int i = 0; i < 100; i++) OK(net_accept(&net, listener, &recv, NULL));
    CHECK(!recv);
    struct pair pair = joined(&net, listener, handle);
    pass(&net, pair, 1);
    part(&net, pair);
    close(link);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}
