/* What a container may not give: the log names it. Included by scenarios.h alone. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/syscall.h>

/* Nothing is mounted at /proc. */
static void without_proc(void) {
    CHECK(!unshare(CLONE_NEWNS));
    CHECK(!mount("", "/", "", MS_REC | MS_PRIVATE, NULL));
    CHECK(!mount("tmpfs", "/proc", "tmpfs", 0, NULL));
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    CHECK(net_listen(&net, 0, handle, &listener) == SYSTEM && !listener);
    CHECK(was_logged(" cannot be opened: ") && was_logged("/proc/sys/kernel/random/boot_id"));
    CHECK(was_logged("CROSSTIE_NODE_ID"));
    OK(net_finalize(&net));
    /* as the line says */
    CHECK(!setenv("CROSSTIE_NODE_ID", "a1", 1));
    net = started();
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

/* A filter of system calls, as of a container, has no memfd_create. */
static void without_memfd(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    if (!strstr(getenv("CROSSTIE_RAILS"), "tcp"))
        return rings_refused("the kernel refuses to make shared memory (memfd_create)");
    /* the other way is taken */
    struct net net = started();
    unsigned char handle[HANDLE];
    void *listener = NULL;
    OK(net_listen(&net, 0, handle, &listener));
    struct pair pair = joined(&net, listener, handle);
    pass(&net, pair, 1);
    CHECK(was_logged("2 NET/crosstie : the kernel refuses to make shared memory (memfd_create: "));
    part(&net, pair);
    OK(net_close(&net, CLOSE_LISTEN, listener));
    OK(net_finalize(&net));
}

/* Files may have no bytes, and shared memory is one. */
static void without_file_bytes(void) {
    struct rlimit none = {0, 0};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK(!setrlimit(RLIMIT_FSIZE, &none));
    rings_refused("(ulimit -f, ulimit -v)");
}
