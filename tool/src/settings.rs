//! What each `CROSSTIE_` variable means: one table for `crosstie info --all` and `doc/settings.md`.
//! The library has the names and what reads them alone ([`crosstie::host::settings`]).
#![forbid(unsafe_code)]

/// One variable. Its texts are Markdown, with code between backticks; the pages of `doc` are named
/// as `doc/verbs.md`.
#[derive(Copy, Clone, Debug)]
pub struct Setting {
    /// Its name in the environment.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it may be.
    pub values: &'static str,
    /// What it does, in sentences.
    pub effect: &'static str,
}

/// Settings that belong together.
pub struct Group {
    /// What they are about.
    pub title: &'static str,
    /// What holds for all of them; may be empty.
    pub about: &'static str,
    /// In the order in which they are shown.
    pub settings: &'static [Setting],
}

/// All settings, the public ones first.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    PUBLIC.iter().flat_map(|group| group.settings).chain(DEBUG.settings)
}

impl Setting {
    /// A text of this setting for a terminal.
    pub fn plain(text: &str) -> String {
        text.replace('`', "")
    }
}

/// One row of the table.
const fn of(
    name: &'static str,
    default: &'static str,
    values: &'static str,
    effect: &'static str,
) -> Setting {
    Setting { name, default, values, effect }
}

/// What a list of CPUs may be.
const CPUS: &str = "numbers of CPUs, comma-separated; no ranges";
/// What a switch may be.
const SWITCH: &str = "0 or 1";
/// What a launcher tells.
const LAUNCHER: &str = "the launcher's";

/// What a user can choose with what they know.
pub const PUBLIC: &[Group] =
    &[RAILS, PEERS, TIMES, THREADS, RDMA_PORTS, LIBFABRIC, NCCL_PLUGIN, PERF];

const RAILS: Group = Group {
    title: "Rails and interfaces",
    about: "",
    settings: &[
        of(
            "CROSSTIE_RAILS",
            "`shm,verbs,libfabric,vendor,tcp`",
            "some of these names, comma-separated",
            "The rails that the devices host0, shm0 and tcp0 may use. `shm` reaches peers of this \
             host, `tcp` all peers. `verbs` (RDMA ports), `libfabric` (NICs) and `vendor` (rails \
             that the program brings) have `tcp` as their backup, also where it is not named. \
             When this variable is not set, `libfabric` serves only NICs that nothing else \
             reaches. shm0 does not open without `shm`, nor tcp0 without `tcp`. See \
             doc/connecting.md.",
        ),
        of(
            "CROSSTIE_RAILS_REQUIRED",
            "none",
            "`shm`, `verbs`, `libfabric`, `vendor`, `tcp`, comma-separated",
            "host0 opens only if it has a rail of each of these kinds; else open gives \
             `XTIE_ERR_NO_RAIL`. By default the log names a rail that is missing, and TCP takes \
             its place. A peer that has no such rail is reached over TCP all the same.",
        ),
        of(
            "CROSSTIE_SOCKET_IFNAME",
            "every interface with a carrier but loopback, docker and virbr; without a carrier, if \
             there is no other. In the NCCL plugin, beside an RDMA port, the interface of that \
             port",
            "prefixes, comma-separated; `^` in front excludes all, `=` wants whole names",
            "The interfaces by which other hosts reach this host. When it is set, this host \
             connects to others by these alone. A labelled address (`eth0:hsn`) belongs to its \
             interface; a name with a colon means that address alone.",
        ),
        of(
            "CROSSTIE_TCP_RAILS",
            "one for each local address in a common subnet with the peer",
            "1 to 8",
            "TCP rails of each connection that this side makes, up to the smaller `rails_max` of \
             both sides. While one works, no message is lost. Several on one interface are \
             several sockets.",
        ),
        of(
            "CROSSTIE_CHECKSUM",
            "0",
            SWITCH,
            "1: each frame and payload over TCP has a CRC-32C. One side is enough. A rail that \
             delivers changed bytes fails, and other rails send them again. The log names a peer \
             whose version cannot check; that connection goes on without.",
        ),
    ],
};

const PEERS: Group = Group {
    title: "Peers that may connect",
    about: "[security.md](security.md) has the rules.",
    settings: &[
        of(
            "CROSSTIE_KEY_FILE",
            "none",
            "path",
            "A file with a key. Only peers with the same key can connect, also on this host.",
        ),
        of(
            "CROSSTIE_ALLOW_UIDS",
            "none",
            "numbers of users, comma-separated",
            "Without a key: processes of these users may use shared memory with this process, \
             beside its own user and root. Both sides must allow the other's user; root must, too.",
        ),
    ],
};

const TIMES: Group = Group {
    title: "Times and log",
    about: "",
    settings: &[
        of(
            "CROSSTIE_PEER_TIMEOUT_MS",
            "10000",
            "100 to 86400000",
            "How long a peer on another host may be silent before it counts as dead. A rail of \
             sockets or of an RDMA port fails when nobody acknowledges its data for five eighths \
             of this time.",
        ),
        of(
            "CROSSTIE_CONNECT_TIMEOUT_MS",
            "10000; 120000 for GIN",
            "1 to 86400000",
            "How long a connect may take, or a collective call of GIN.",
        ),
        of(
            "CROSSTIE_LOG",
            "`warning`",
            "`error`, `warning` or `info`",
            "Which lines go to standard error where the program has set no log callback. `info` \
             has a line for each endpoint, listener and connection. In the NCCL plugin \
             `NCCL_DEBUG` decides instead.",
        ),
    ],
};

const THREADS: Group = Group {
    title: "Threads",
    about: "[nccl.md](nccl.md#tune) says what they are good for.",
    settings: &[
        of(
            "CROSSTIE_TCP_THREADS",
            "0; in the NCCL plugin, where neither RDMA ports nor libfabric are used, an eighth of \
             the CPUs, 3 at most, fewer with many ranks",
            "0 to 5; fewer than `CROSSTIE_TCP_STREAMS` where that is set",
            "Threads that move long messages over TCP. 0: the calling thread moves everything.",
        ),
        of(
            "CROSSTIE_SHM_THREADS",
            "0; in the NCCL plugin an eighth of the CPUs, 4 at most, fewer with many ranks",
            "0 to 7",
            "Threads that copy long messages through shared memory where the sender pushes them, \
             as in the NCCL plugin. 0: the calling thread copies.",
        ),
    ],
};

const RDMA_PORTS: Group = Group {
    title: "RDMA ports",
    about: "Each means what NCCL's variable `NCCL_IB_...` of the same ending means, and has its \
            default. The NCCL plugin reads NCCL's where ours is not set. Numbers are decimal, \
            hexadecimal behind `0x`, or octal behind `0`. [verbs.md](verbs.md) has the details.",
    settings: &[
        of(
            "CROSSTIE_IB_HCA",
            "every port that works",
            "prefixes, with `:port` or without, comma-separated; `^` in front excludes \
             all, `=` wants whole names",
            "The ports that are used. For NCCL, a rail and a plane may follow: \
             `mlx5_0:1:rail:plane`.",
        ),
        of(
            "CROSSTIE_IB_GID_INDEX",
            "-1: the first GID that is an address of this network namespace",
            "-1 to 255",
            "On RoCE, the place of the GID in the port's table. By default, the first that \
             `CROSSTIE_IB_ADDR_FAMILY`, `CROSSTIE_IB_ADDR_RANGE` and \
             `CROSSTIE_IB_ROCE_VERSION_NUM` allow.",
        ),
        of(
            "CROSSTIE_IB_TC",
            "-1, which is 0",
            "-1 to 255",
            "Traffic class. On RoCE it is four times the DSCP.",
        ),
        of("CROSSTIE_IB_SL", "-1, which is 0", "-1 to 15", "Service level."),
        of(
            "CROSSTIE_IB_PKEY",
            "0",
            "0 to 65535",
            "Index of the partition key in the port's table.",
        ),
        of(
            "CROSSTIE_IB_ADAPTIVE_ROUTING",
            "-2: on for InfiniBand, off for RoCE",
            "-2, 0 or 1",
            "1: the packets of a queue pair may take several paths. Set it on a RoCE network \
             with several paths (Spectrum-X): without it a connection may stand still.",
        ),
    ],
};

const LIBFABRIC: Group = Group {
    title: "libfabric",
    about: "[libfabric.md](libfabric.md) has the details.",
    settings: &[
        of(
            "CROSSTIE_OFI_PROVIDER",
            "that of the NIC (`efa`, `cxi`, `psm3`), if there is one and no RDMA port",
            "a name, as `crosstie info --all` shows it",
            "The provider whose domains are rails beside TCP. One without a NIC, such as \
             `tcp;ofi_rxm`, is for trials.",
        ),
        of(
            "CROSSTIE_OFI_DOMAINS",
            "all of the provider but lo and docker",
            "names, comma-separated",
            "The domains (NICs or interfaces) that are rails, in this order. One that is named \
             twice is two rails.",
        ),
    ],
};

const NCCL_PLUGIN: Group = Group {
    title: "NCCL plugin",
    about: "The plugin honours the settings above, too, and some of NCCL's own: \
            [nccl.md](nccl.md#settings).",
    settings: &[of(
        "CROSSTIE_GIN",
        "1 where there is no mlx5 or EFA device; else 0",
        "0, 1 or proxy",
        "Whether the plugin runs NCCL's one-sided operations without a NIC of its own for \
             them. 1: kernels queue them (GIN), and the check of the default is skipped. `proxy`: \
             NCCL's threads ask for them (GIN by proxy). Both have RMA. The CUDA driver is needed \
             in any case. See doc/gin.md.",
    )],
};

const PERF: Group = Group {
    title: "`crosstie perf` and the examples",
    about: "For launchers that are not known.",
    settings: &[
        of("CROSSTIE_RANK", LAUNCHER, "number", "The rank of this process."),
        of("CROSSTIE_SIZE", LAUNCHER, "number", "How many ranks there are."),
        of("CROSSTIE_RENDEZVOUS", LAUNCHER, "`host:port`", "Where rank 0 waits for the others."),
    ],
};

/// The others.
pub const DEBUG: Group = Group {
    title: "Debug settings",
    about: "The first three are for hosts of which other pages speak; all others are for \
            diagnosis, measurements and tests. Otherwise the defaults are right. Those of RDMA \
            ports mean what NCCL's of the same ending mean, where NCCL has one.",
    settings: &[
        of(
            "CROSSTIE_SHM_DIR",
            "`/dev/shm`",
            "absolute path of a directory, 60 bytes at most",
            "A directory that containers of a host share. Sockets in it lead from one to another.",
        ),
        of(
            "CROSSTIE_GIN_CPUS",
            "those of the thread that connects",
            CPUS,
            "Where the thread runs that executes GPU-initiated operations.",
        ),
        of(
            "CROSSTIE_NCCL_CUDA",
            "1 where the launcher says that all ranks run on this host; else not set",
            SWITCH,
            "1: the NCCL plugin takes memory of GPUs, which copy engines move, and sets \
             NCCL_NET_GDR_LEVEL and NCCL_MIN_NCHANNELS where they are not set. 0: it takes none. \
             Not set: where NICs take it. See doc/nccl.md.",
        ),
        of(
            "CROSSTIE_HEAP_BYTES",
            "68719476736 (64 GiB); under a limit (`ulimit -v`) half of what is left at most",
            "bytes, below 2^47",
            "Address space for `xtie_memory_alloc`; 0 for none. Each peer of this host maps it, \
             too. See doc/limits.md.",
        ),
        of(
            "CROSSTIE_EAGER_BYTES",
            "8192; less with a short `CROSSTIE_SEND_RING_BYTES`",
            "bytes, up to 16384 and to a quarter of the send ring less 64",
            "Longest message that is copied through the ring; longer ones are read in place. Over \
             TCP, a message of up to sixteen times this length leaves before its receive is \
             posted: 131072 bytes at most, 32768 with threads.",
        ),
        of(
            "CROSSTIE_SEND_RING_BYTES",
            "65536",
            "bytes, a power of two from 4096 to 131072",
            "Shared memory for messages, for each connection and direction.",
        ),
        of(
            "CROSSTIE_WRITE_RING_BYTES",
            "32768; in the NCCL plugin 1048576",
            "bytes, a power of two from 4096 to 16777216",
            "Shared memory for control and for two-copy transfers (one side copies in, the other \
             out), for each connection and direction. From 262144 on, these take the place of \
             kernel copies (the kernel reads the peer's memory).",
        ),
        of(
            "CROSSTIE_KERNEL_COPY",
            "1",
            SWITCH,
            "0: never read a peer's memory through the kernel.",
        ),
        of(
            "CROSSTIE_NODE_ID",
            "from the boot id",
            "up to 16 hexadecimal digits",
            "The number of this host. Processes with the same number are peers of one host.",
        ),
        of(
            "CROSSTIE_STALL_MS",
            "10000",
            "0 to 86400000",
            "How old a request is when it is reported as stalled, once; 0: never. See \
             doc/stalls.md.",
        ),
        of(
            "CROSSTIE_TCP_STREAMS",
            "one more than `CROSSTIE_TCP_THREADS`",
            "1 to 6",
            "Sockets of each TCP rail that this side opens; set the threads, and this follows. \
             Where neither is set, a new connection has one once a quarter of the process's \
             descriptors are in use.",
        ),
        of(
            "CROSSTIE_TCP_THREAD_CPUS",
            "those of the thread that opens",
            CPUS,
            "Where the threads of `CROSSTIE_TCP_THREADS` run: any CPU of the process's cpuset, \
             also where the thread that opens is bound to others.",
        ),
        of(
            "CROSSTIE_LOCAL_RANK",
            LAUNCHER,
            "number",
            "For `crosstie perf` and the examples: the rank of this process among those of its \
             host.",
        ),
        of("CROSSTIE_IB_DISABLE", "0", SWITCH, "1: use no RDMA port."),
        of(
            "CROSSTIE_IB_ADDR_FAMILY",
            "`AF_INET`, and `AF_INET6` where a port has no such GID",
            "`AF_INET` or `AF_INET6`",
            "On RoCE, the address family of the GID.",
        ),
        of(
            "CROSSTIE_IB_ADDR_RANGE",
            "all but link-local addresses",
            "address/bits",
            "On RoCE, the range of addresses that the GID is in.",
        ),
        of("CROSSTIE_IB_ROCE_VERSION_NUM", "2", "1 or 2", "On RoCE, the RoCE version of the GID."),
        of(
            "CROSSTIE_IB_TIMEOUT",
            "20",
            "1 to 31",
            "A packet that is unanswered for 4.096 us times two to this power is sent again.",
        ),
        of(
            "CROSSTIE_IB_RETRY_CNT",
            "7",
            "0 to 7",
            "How often a packet is sent again before the rail fails.",
        ),
        of(
            "CROSSTIE_IB_ECE_ENABLE",
            "1",
            SWITCH,
            "1: both ends agree on vendors' extensions when they connect.",
        ),
        of(
            "CROSSTIE_IB_PCI_RELAXED_ORDERING",
            "2: where the device can",
            "0, 1 or 2",
            "1: devices may write data out of order, but never control words.",
        ),
        of(
            "CROSSTIE_IB_AR_THRESHOLD",
            "8192",
            "bytes",
            "With adaptive routing, longest data that one write sends together with its word.",
        ),
        of(
            "CROSSTIE_IB_EXTENDED_POST",
            "0",
            SWITCH,
            "1: post by `ibv_wr_...` where library and driver have it, not by `ibv_post_send`.",
        ),
        of(
            "CROSSTIE_IB_QPS_PER_CONNECTION",
            "1",
            "1 to 128, as far as there are rails",
            "Queue pairs of each connection and port. Long messages are cut over all of them.",
        ),
        of(
            "CROSSTIE_IB_MERGE_VFS",
            "1",
            SWITCH,
            "1: the virtual functions of a card count as that card.",
        ),
        of("CROSSTIE_OFI_LIBRARY", "`libfabric.so.1`", "file or path", "The libfabric to load."),
        of(
            "CROSSTIE_OFI_SILENCE_MS",
            "0",
            "0 (never) or 100 to 86400000",
            "A libfabric rail is given up when nothing that was sent on it ends for so long, \
             although the peer's program polls.",
        ),
    ],
};
