//! Structures of libfabric that we use, as its API 1.17 has them.
//!
//! libfabric 2.x appended fields to some: what a caller allocates there is longer. So every
//! structure that grew is allocated by the library ([`super::library::Info`]) and read up to the
//! fields of 1.17 alone; those that we fill ourselves did not grow, or get room behind them.
//! Enums are numbers here: what a library of another age says need not be one of ours.

use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;

use super::calls::FidEp;
use super::layout::{Fact, layout};

/// A function that we do not call.
pub type Unused = *mut c_void;

layout! { STRUCT_FACTS:
    /// What every object starts with.
    struct Fid = "fid" {
        /// Its kind.
        fclass: usize = "fclass",
        /// Ours.
        context: *mut c_void = "context",
        /// Its functions.
        ops: *const FidOps = "ops",
    }
    /// Functions of every object.
    struct FidOps = "fi_ops" {
        /// Of this table.
        size: usize = "size",
        /// Gives it back.
        close: unsafe extern "C" fn(*mut Fid) -> c_int = "close",
        /// Joins it to another object.
        bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int> = "bind",
        /// Commands, `ENABLE` among them.
        control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int> = "control",
    }
    /// What is offered or wanted.
    struct InfoRaw = "fi_info" {
        /// The next offer.
        next: *mut InfoRaw = "next",
        /// What it can do.
        caps: u64 = "caps",
        /// What it wants of us.
        mode: u64 = "mode",
        /// Of its addresses.
        addr_format: u32 = "addr_format",
        /// Length of our address.
        src_addrlen: usize = "src_addrlen",
        /// Length of the peer's.
        dest_addrlen: usize = "dest_addrlen",
        /// Ours.
        src_addr: *mut c_void = "src_addr",
        /// The peer's.
        dest_addr: *mut c_void = "dest_addr",
        /// Of a connection request.
        handle: *mut Fid = "handle",
        /// What sends are like.
        tx_attr: *mut TxAttr = "tx_attr",
        /// What receives are like.
        rx_attr: *mut RxAttr = "rx_attr",
        /// What an endpoint is like.
        ep_attr: *mut EpAttr = "ep_attr",
        /// What a domain is like.
        domain_attr: *mut DomainAttr = "domain_attr",
        /// Which provider and network.
        fabric_attr: *mut FabricAttr = "fabric_attr",
        /// What device, where that is known. Since 1.6.
        nic: *const FidNic = "nic",
    }
    /// A device.
    struct FidNic = "fid_nic" [1] {
        /// As every object.
        fid: Fid = "fid",
        /// What it is called.
        device_attr: *const c_void = "device_attr",
        /// Where it is plugged in.
        bus_attr: *const c_void = "bus_attr",
        /// Its link, where that is known.
        link_attr: *const LinkAttr = "link_attr",
        /// More of the provider's.
        prov_attr: *const c_void = "prov_attr",
    }
    /// The link of a device.
    struct LinkAttr = "fi_link_attr" [1] {
        /// Its address.
        address: *const c_char = "address",
        /// Longest packet.
        mtu: usize = "mtu",
        /// In bit/s; 0: not known.
        speed: usize = "speed",
        /// Whether it is up.
        state: c_int = "state",
        /// Of what kind it is.
        network_type: *const c_char = "network_type",
    }
    /// What sends are like.
    struct TxAttr = "fi_tx_attr" {
        /// What they can do.
        caps: u64 = "caps",
        /// What they want of us.
        mode: u64 = "mode",
        /// Flags of calls that take none.
        op_flags: u64 = "op_flags",
        /// Of `ORDER_`.
        msg_order: u64 = "msg_order",
        /// Order of completions.
        comp_order: u64 = "comp_order",
        /// Bytes that a call may copy.
        inject_size: usize = "inject_size",
        /// How many at a time.
        size: usize = "size",
        /// Parts of one.
        iov_limit: usize = "iov_limit",
        /// The same of the peer's memory.
        rma_iov_limit: usize = "rma_iov_limit",
        /// Traffic class.
        tclass: u32 = "tclass",
    }
    /// What receives are like.
    struct RxAttr = "fi_rx_attr" {
        /// What they can do.
        caps: u64 = "caps",
        /// What they want of us.
        mode: u64 = "mode",
        /// Flags of calls that take none.
        op_flags: u64 = "op_flags",
        /// Of `ORDER_`.
        msg_order: u64 = "msg_order",
        /// Order of completions.
        comp_order: u64 = "comp_order",
        /// No promise.
        total_buffered_recv: usize = "total_buffered_recv",
        /// How many at a time.
        size: usize = "size",
        /// Parts of one.
        iov_limit: usize = "iov_limit",
    }
    /// What an endpoint is like.
    struct EpAttr = "fi_ep_attr" {
        /// Of `EP_`.
        ep_type: c_int = "type",
        /// What is spoken.
        protocol: u32 = "protocol",
        /// Which version of that.
        protocol_version: u32 = "protocol_version",
        /// Longest message or transfer.
        max_msg_size: usize = "max_msg_size",
        /// Bytes that it wants before each message.
        msg_prefix_size: usize = "msg_prefix_size",
        /// Longest read that keeps order behind a write.
        max_order_raw_size: usize = "max_order_raw_size",
        /// Longest write that keeps order behind a read.
        max_order_war_size: usize = "max_order_war_size",
        /// Longest write that keeps order behind a write.
        max_order_waw_size: usize = "max_order_waw_size",
        /// Of tagged messages.
        mem_tag_format: u64 = "mem_tag_format",
        /// Contexts of sends.
        tx_ctx_cnt: usize = "tx_ctx_cnt",
        /// Contexts of receives, or `SHARED_CONTEXT`.
        rx_ctx_cnt: usize = "rx_ctx_cnt",
    }
    /// What a domain is like. Longer in 2.x.
    struct DomainAttr = "fi_domain_attr" {
        /// An open one.
        domain: *mut FidDomain = "domain",
        /// Its name, such as that of an interface.
        name: *mut c_char = "name",
        /// Of `THREAD_`.
        threading: c_int = "threading",
        /// Whether connections move on without us.
        control_progress: c_int = "control_progress",
        /// Whether data does.
        data_progress: c_int = "data_progress",
        /// Whether it holds us off before it runs over.
        resource_mgmt: c_int = "resource_mgmt",
        /// Of address vectors.
        av_type: c_int = "av_type",
        /// Of `MR_`.
        mr_mode: c_int = "mr_mode",
        /// Bytes of a key.
        mr_key_size: usize = "mr_key_size",
        /// Bytes of the word that goes with a message or a write.
        cq_data_size: usize = "cq_data_size",
        /// Completion queues.
        cq_cnt: usize = "cq_cnt",
        /// Endpoints.
        ep_cnt: usize = "ep_cnt",
        /// Contexts of sends.
        tx_ctx_cnt: usize = "tx_ctx_cnt",
        /// Contexts of receives.
        rx_ctx_cnt: usize = "rx_ctx_cnt",
    }
    /// Which provider and network.
    struct FabricAttr = "fi_fabric_attr" {
        /// An open one.
        fabric: *mut FidFabric = "fabric",
        /// The network.
        name: *mut c_char = "name",
        /// The provider.
        prov_name: *mut c_char = "prov_name",
        /// Its version.
        prov_version: u32 = "prov_version",
        /// What was asked for.
        api_version: u32 = "api_version",
    }
    /// A network.
    struct FidFabric = "fid_fabric" {
        /// As every object.
        fid: Fid = "fid",
        /// Its functions.
        ops: *const FabricOps = "ops",
        /// What was asked for.
        api_version: u32 = "api_version",
    }
    /// Functions of a network.
    struct FabricOps = "fi_ops_fabric" {
        /// Of this table.
        size: usize = "size",
        /// Opens a domain.
        domain: unsafe extern "C" fn(
            *mut FidFabric, *mut InfoRaw, *mut *mut FidDomain, *mut c_void
        ) -> c_int = "domain",
        /// Opens an endpoint that listens.
        passive_ep: Unused = "passive_ep",
        /// Opens an event queue.
        eq_open: Option<unsafe extern "C" fn(
            *mut FidFabric, *mut EqAttr, *mut *mut FidEq, *mut c_void
        ) -> c_int> = "eq_open",
    }
    /// A domain: a NIC's port, mostly.
    struct FidDomain = "fid_domain" [1] {
        /// As every object.
        fid: Fid = "fid",
        /// Its functions.
        ops: *const DomainOps = "ops",
        /// Those about memory.
        mr: *const MrOps = "mr",
    }
    /// Functions of a domain.
    struct DomainOps = "fi_ops_domain" {
        /// Of this table.
        size: usize = "size",
        /// Opens an address vector.
        av_open: unsafe extern "C" fn(
            *mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void
        ) -> c_int = "av_open",
        /// Opens a completion queue.
        cq_open: unsafe extern "C" fn(
            *mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void
        ) -> c_int = "cq_open",
        /// Opens an endpoint.
        endpoint: unsafe extern "C" fn(
            *mut FidDomain, *mut InfoRaw, *mut *mut FidEp, *mut c_void
        ) -> c_int = "endpoint",
        /// Opens one of several contexts.
        scalable_ep: Unused = "scalable_ep",
        /// Opens a counter.
        cntr_open: Unused = "cntr_open",
        /// Opens a set of queues.
        poll_open: Unused = "poll_open",
        /// Opens a shared context of sends.
        stx_ctx: Unused = "stx_ctx",
        /// Opens a shared context of receives.
        srx_ctx: Unused = "srx_ctx",
        /// Says what atomics there are.
        query_atomic: Unused = "query_atomic",
    }
    /// Functions about memory.
    struct MrOps = "fi_ops_mr" [1] {
        /// Of this table.
        size: usize = "size",
        /// Registers memory: object, start, length, access, offset, key, flags.
        reg: unsafe extern "C" fn(
            *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void
        ) -> c_int = "reg",
        /// The same of several parts.
        regv: Unused = "regv",
        /// The same with attributes: object, attributes, flags.
        regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int
            = "regattr",
    }
    /// Attributes of a registration, which later versions have more of.
    struct MrAttr = "fi_mr_attr" {
        /// Its parts.
        mr_iov: *const libc::iovec = "mr_iov",
        /// How many.
        iov_count: usize = "iov_count",
        /// What may be done in it.
        access: u64 = "access",
        /// What the first byte is named by.
        offset: u64 = "offset",
        /// The key that is asked for.
        requested_key: u64 = "requested_key",
        /// The caller's.
        context: *mut c_void = "context",
        /// Of keys that authorise.
        auth_key_size: usize = "auth_key_size",
        /// Such a key.
        auth_key: *mut u8 = "auth_key",
        /// Of whose devices' memory it is.
        iface: c_int = "iface",
        /// Which of them.
        device: u64 = "device",
    }
    /// A registration.
    struct FidMr = "fid_mr" [1] {
        /// As every object.
        fid: Fid = "fid",
        /// What our own calls name it by.
        mem_desc: *mut c_void = "mem_desc",
        /// What peers name it by.
        key: u64 = "key",
    }
    /// Of an address vector.
    struct AvAttr = "fi_av_attr" [1] {
        /// Table or map.
        av_type: c_int = "type",
        /// Of scalable endpoints.
        rx_ctx_bits: c_int = "rx_ctx_bits",
        /// How many addresses, as a hint.
        count: usize = "count",
        /// How many on one host, as a hint.
        ep_per_node: usize = "ep_per_node",
        /// Of a shared one.
        name: *const c_char = "name",
        /// Where a shared one is mapped.
        map_addr: *mut c_void = "map_addr",
        /// Bits.
        flags: u64 = "flags",
    }
    /// An address vector.
    struct FidAv = "fid_av" {
        /// As every object.
        fid: Fid = "fid",
        /// Its functions.
        ops: *const AvOps = "ops",
    }
    /// Functions of an address vector.
    struct AvOps = "fi_ops_av" {
        /// Of this table.
        size: usize = "size",
        /// Puts addresses in.
        insert: unsafe extern "C" fn(
            *mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void
        ) -> c_int = "insert",
        /// By name.
        insertsvc: Unused = "insertsvc",
        /// Several by name.
        insertsym: Unused = "insertsym",
        /// Takes addresses out.
        remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int = "remove",
    }
    /// Of a completion queue.
    struct CqAttr = "fi_cq_attr" [1] {
        /// How many fit.
        size: usize = "size",
        /// Bits.
        flags: u64 = "flags",
        /// Of `CQ_FORMAT_`.
        format: c_int = "format",
        /// What can be slept on.
        wait_obj: c_int = "wait_obj",
        /// Of interrupts.
        signaling_vector: c_int = "signaling_vector",
        /// When it wakes.
        wait_cond: c_int = "wait_cond",
        /// A set of queues.
        wait_set: *mut c_void = "wait_set",
    }
    /// A completion queue.
    struct FidCq = "fid_cq" {
        /// As every object.
        fid: Fid = "fid",
        /// Its functions.
        ops: *const CqOps = "ops",
    }
    /// Functions of a completion queue.
    struct CqOps = "fi_ops_cq" {
        /// Of this table.
        size: usize = "size",
        /// Takes completions.
        read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize = "read",
        /// The same with who sent.
        readfrom: Unused = "readfrom",
        /// Takes a failure.
        readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize = "readerr",
        /// Sleeps.
        sread: Unused = "sread",
        /// Sleeps, and says who sent.
        sreadfrom: Unused = "sreadfrom",
        /// Wakes a sleeper.
        signal: Unused = "signal",
        /// The provider's words for a failure.
        strerror: Option<unsafe extern "C" fn(
            *mut FidCq, c_int, *const c_void, *mut c_char, usize
        ) -> *const c_char> = "strerror",
    }
    /// A completion.
    struct CqEntry = "fi_cq_data_entry" [1] {
        /// As it was posted.
        op_context: *mut c_void = "op_context",
        /// What was completed.
        flags: u64 = "flags",
        /// Bytes received.
        len: usize = "len",
        /// Where, of some receives.
        buf: *mut c_void = "buf",
        /// The peer's word.
        data: u64 = "data",
    }
    /// A failure. Longer in 2.x, whose libraries fill the rest for callers that ask for it alone.
    struct CqErrEntry = "fi_cq_err_entry" {
        /// As it was posted.
        op_context: *mut c_void = "op_context",
        /// What failed.
        flags: u64 = "flags",
        /// Bytes received.
        len: usize = "len",
        /// Where.
        buf: *mut c_void = "buf",
        /// The peer's word.
        data: u64 = "data",
        /// Of tagged messages.
        tag: u64 = "tag",
        /// Bytes that found no room.
        olen: usize = "olen",
        /// Why: an errno, or one of libfabric's own.
        err: c_int = "err",
        /// Why: the provider's own number.
        prov_errno: c_int = "prov_errno",
        /// More of the provider's.
        err_data: *mut c_void = "err_data",
        /// How much.
        err_data_size: usize = "err_data_size",
    }
    /// Of an event queue.
    struct EqAttr = "fi_eq_attr" [1] {
        /// How many fit.
        size: usize = "size",
        /// Bits.
        flags: u64 = "flags",
        /// What can be slept on.
        wait_obj: c_int = "wait_obj",
        /// Of interrupts.
        signaling_vector: c_int = "signaling_vector",
        /// A set of queues.
        wait_set: *mut c_void = "wait_set",
    }
    /// An event queue.
    struct FidEq = "fid_eq" [1] {
        /// As every object.
        fid: Fid = "fid",
        /// Its functions.
        ops: *const EqOps = "ops",
    }
    /// Functions of an event queue.
    struct EqOps = "fi_ops_eq" {
        /// Of this table.
        size: usize = "size",
        /// Takes an event.
        read: unsafe extern "C" fn(
            *mut FidEq, *mut u32, *mut c_void, usize, u64
        ) -> isize = "read",
        /// Takes a failure.
        readerr: unsafe extern "C" fn(*mut FidEq, *mut EqErrEntry, u64) -> isize = "readerr",
        /// Puts one in.
        write: Unused = "write",
        /// Sleeps.
        sread: Unused = "sread",
        /// The provider's words for a failure.
        strerror: Option<unsafe extern "C" fn(
            *mut FidEq, c_int, *const c_void, *mut c_char, usize
        ) -> *const c_char> = "strerror",
    }
    /// An event of a connection; what came with it follows.
    struct EqCmEntry = "fi_eq_cm_entry" [1] {
        /// Whose.
        fid: *mut Fid = "fid",
        /// Of a request: what the endpoint is opened with, to be freed by us.
        info: *mut InfoRaw = "info",
    }
    /// A failed connection.
    struct EqErrEntry = "fi_eq_err_entry" [1] {
        /// Whose.
        fid: *mut Fid = "fid",
        /// Ours.
        context: *mut c_void = "context",
        /// Of other events.
        data: u64 = "data",
        /// Why: an errno, or one of libfabric's own.
        err: c_int = "err",
        /// Why: the provider's own number.
        prov_errno: c_int = "prov_errno",
        /// More of the provider's.
        err_data: *mut c_void = "err_data",
        /// How much.
        err_data_size: usize = "err_data_size",
    }
}

impl CqEntry {
    /// Room for a completion.
    pub const NOTHING: CqEntry = CqEntry {
        op_context: core::ptr::null_mut(),
        flags: 0,
        len: 0,
        buf: core::ptr::null_mut(),
        data: 0,
    };
}

/// Room for a failure of a library of any age.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct CqErrRoom {
    /// What is read.
    pub entry: CqErrEntry,
    behind: [u64; 16],
}

impl CqErrRoom {
    /// Empty.
    pub const NOTHING: CqErrRoom = CqErrRoom {
        entry: CqErrEntry {
            op_context: core::ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: core::ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: core::ptr::null_mut(),
            err_data_size: 0,
        },
        behind: [0; 16],
    };
}

/// What the library keeps of an op while it is in flight: `struct fi_context2`.
#[derive(Copy, Clone, Default, Debug)]
#[repr(C)]
pub struct Context([u64; 8]);

const CONTEXT_FACTS: &[Fact] =
    &[Fact { expression: "sizeof(struct fi_context2)", value: size_of::<Context>() as u64 }];

/// Everything that a C compiler can say of the headers, table by table.
pub const FACTS: [&[Fact]; 4] =
    [STRUCT_FACTS, CONTEXT_FACTS, super::calls::FACTS, super::numbers::FACTS];
