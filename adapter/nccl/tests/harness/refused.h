/* What a container may not give: the log names it. Included by scenarios.h alone. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/syscall.h>

/* Nothing is mounted at /proc. */
static void without_number(int unused) {
    (void)unused;
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    CHECK(net_listen(&net, 0, handle, &listener) == SYSTEM && !listener);
    CHECK(was_logged(" cannot be opened: ") && was_logged("/proc/sys/kernel/random/boot_id"));
    CHECK(was_logged("CROSSTIE_NODE_ID"));
    OK(net_finalize(&net));
}

static void without_proc(void) {
    CHECK(!unshare(CLONE_NEWNS));
    CHECK(!mount("", "/", "", MS_REC | MS_PRIVATE, NULL));
    CHECK(!mount("tmpfs", "/proc", "tmpfs", 0, NULL));
    in_own_process(without_number, 0);
    /* as the line says */
    CHECK(!setenv("CROSSTIE_NODE_ID", "a1", 1));
    unsigned char handle[HANDLE];
    void *listener = NULL;
    struct net net = started();
    OK(net_listen(&net, 0, handle, &listener));
    struct pair pair = joined(&net, listener, handle);
    pass(&net, pair, 1);
    part(&net, pair);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A connection of this process to itself is refused by name. */
static void rings_refused(const char *said) {
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL, *send = NULL, *recv = NULL;
    int rc = SUCCESS;
    OK(net_listen(&net, 0, handle, &listener));
    while (!(rc = net_connect(&net, 0, handle, &send, NULL))) {
        CHECK(!send);
        OK(net_accept(&net, listener, &recv, NULL));
        CHECK(!recv);
    }
    CHECK(rc == SYSTEM && was_logged(": no connection: ") && was_logged(said));
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* From now on a call fails with `code` where its first argument is `first`; -1: any. */
static void filtered(unsigned call, int64_t first, unsigned code) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 0, first < 0 ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* What shared memory needs is refused: the other way is taken, if one is allowed. */
static void other_way(const char *said) {
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    if (!strstr(getenv("CROSSTIE_RAILS"), "tcp")) {
        CHECK(net_listen(&net, 0, handle, &listener) == SYSTEM && !listener);
        CHECK(was_logged(said) && was_logged("no other rail is allowed"));
        OK(net_finalize(&net));
        return;
    }
    OK(net_listen(&net, 0, handle, &listener));
    struct pair pair = joined(&net, listener, handle);
    pass(&net, pair, 1);
    CHECK(was_logged("2 NET/crosstie : the kernel refuses to make shared memory ("));
    CHECK(was_logged(said));
    part(&net, pair);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* A filter of system calls, as of a container, has no memfd_create. */
static void without_memfd(void) {
    filtered(SYS_memfd_create, -1, EPERM);
    other_way("(memfd_create: ");
}

/* That of a service (RestrictAddressFamilies) has no sockets within a host. */
static void without_local_sockets(void) {
    filtered(SYS_socket, AF_UNIX, EAFNOSUPPORT);
    other_way("(socket of AF_UNIX: ");
}

/* Files may have no bytes, and shared memory is one. */
static void without_file_bytes(void) {
    struct rlimit none = {0, 0};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK(!setrlimit(RLIMIT_FSIZE, &none));
    rings_refused("(ulimit -f, ulimit -v)");
}
