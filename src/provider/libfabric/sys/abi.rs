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
        fclass: usize = "fclass",
        context: *mut c_void = "context",
        ops: *const FidOps = "ops",
    }
    /// Functions of every object.
    struct FidOps = "fi_ops" {
        size: usize = "size",
        close: unsafe extern "C" fn(*mut Fid) -> c_int = "close",
        bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int> = "bind",
        /// Commands, `ENABLE` among them.
        control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int> = "control",
    }
    /// What is offered or wanted.
    struct InfoRaw = "fi_info" {
        next: *mut InfoRaw = "next",
        caps: u64 = "caps",
        /// What it wants of us.
        mode: u64 = "mode",
        addr_format: u32 = "addr_format",
        src_addrlen: usize = "src_addrlen",
        dest_addrlen: usize = "dest_addrlen",
        src_addr: *mut c_void = "src_addr",
        dest_addr: *mut c_void = "dest_addr",
        handle: *mut Fid = "handle",
        tx_attr: *mut TxAttr = "tx_attr",
        rx_attr: *mut RxAttr = "rx_attr",
        ep_attr: *mut EpAttr = "ep_attr",
        domain_attr: *mut DomainAttr = "domain_attr",
        fabric_attr: *mut FabricAttr = "fabric_attr",
        /// What device, where that is known. Since 1.6.
        nic: *const FidNic = "nic",
    }
    /// A device.
    struct FidNic = "fid_nic" [1] {
        fid: Fid = "fid",
        device_attr: *const c_void = "device_attr",
        bus_attr: *const c_void = "bus_attr",
        link_attr: *const LinkAttr = "link_attr",
        prov_attr: *const c_void = "prov_attr",
    }
    /// The link of a device.
    struct LinkAttr = "fi_link_attr" [1] {
        address: *const c_char = "address",
        mtu: usize = "mtu",
        /// In bit/s; 0: not known.
        speed: usize = "speed",
        state: c_int = "state",
        network_type: *const c_char = "network_type",
    }
    /// What sends are like.
    struct TxAttr = "fi_tx_attr" {
        caps: u64 = "caps",
        /// What they want of us.
        mode: u64 = "mode",
        op_flags: u64 = "op_flags",
        /// Of `ORDER_`.
        msg_order: u64 = "msg_order",
        comp_order: u64 = "comp_order",
        /// Bytes that a call may copy.
        inject_size: usize = "inject_size",
        size: usize = "size",
        iov_limit: usize = "iov_limit",
        rma_iov_limit: usize = "rma_iov_limit",
        tclass: u32 = "tclass",
    }
    /// What receives are like.
    struct RxAttr = "fi_rx_attr" {
        caps: u64 = "caps",
        /// What they want of us.
        mode: u64 = "mode",
        op_flags: u64 = "op_flags",
        /// Of `ORDER_`.
        msg_order: u64 = "msg_order",
        comp_order: u64 = "comp_order",
        /// No promise.
        total_buffered_recv: usize = "total_buffered_recv",
        size: usize = "size",
        iov_limit: usize = "iov_limit",
    }
    /// What an endpoint is like.
    struct EpAttr = "fi_ep_attr" {
        /// Of `EP_`.
        ep_type: c_int = "type",
        protocol: u32 = "protocol",
        protocol_version: u32 = "protocol_version",
        max_msg_size: usize = "max_msg_size",
        /// Bytes that it wants before each message.
        msg_prefix_size: usize = "msg_prefix_size",
        /// Longest read that keeps order behind a write.
        max_order_raw_size: usize = "max_order_raw_size",
        /// Longest write that keeps order behind a read.
        max_order_war_size: usize = "max_order_war_size",
        /// Longest write that keeps order behind a write.
        max_order_waw_size: usize = "max_order_waw_size",
        mem_tag_format: u64 = "mem_tag_format",
        tx_ctx_cnt: usize = "tx_ctx_cnt",
        /// Contexts of receives, or `SHARED_CONTEXT`.
        rx_ctx_cnt: usize = "rx_ctx_cnt",
    }
    /// What a domain is like. Longer in 2.x.
    struct DomainAttr = "fi_domain_attr" {
        domain: *mut FidDomain = "domain",
        name: *mut c_char = "name",
        /// Of `THREAD_`.
        threading: c_int = "threading",
        /// Whether connections move on without us.
        control_progress: c_int = "control_progress",
        data_progress: c_int = "data_progress",
        /// Whether it holds us off before it runs over.
        resource_mgmt: c_int = "resource_mgmt",
        av_type: c_int = "av_type",
        /// Of `MR_`.
        mr_mode: c_int = "mr_mode",
        mr_key_size: usize = "mr_key_size",
        cq_data_size: usize = "cq_data_size",
        cq_cnt: usize = "cq_cnt",
        ep_cnt: usize = "ep_cnt",
        tx_ctx_cnt: usize = "tx_ctx_cnt",
        rx_ctx_cnt: usize = "rx_ctx_cnt",
    }
    /// Which provider and network.
    struct FabricAttr = "fi_fabric_attr" {
        fabric: *mut FidFabric = "fabric",
        name: *mut c_char = "name",
        prov_name: *mut c_char = "prov_name",
        prov_version: u32 = "prov_version",
        api_version: u32 = "api_version",
    }
    /// A network.
    struct FidFabric = "fid_fabric" {
        fid: Fid = "fid",
        ops: *const FabricOps = "ops",
        api_version: u32 = "api_version",
    }
    /// Functions of a network.
    struct FabricOps = "fi_ops_fabric" {
        size: usize = "size",
        domain: unsafe extern "C" fn(
            *mut FidFabric, *mut InfoRaw, *mut *mut FidDomain, *mut c_void
        ) -> c_int = "domain",
        passive_ep: Unused = "passive_ep",
        eq_open: Option<unsafe extern "C" fn(
            *mut FidFabric, *mut EqAttr, *mut *mut FidEq, *mut c_void
        ) -> c_int> = "eq_open",
    }
    /// A domain: a NIC's port, mostly.
    struct FidDomain = "fid_domain" [1] {
        fid: Fid = "fid",
        ops: *const DomainOps = "ops",
        mr: *const MrOps = "mr",
    }
    /// Functions of a domain.
    struct DomainOps = "fi_ops_domain" {
        size: usize = "size",
        av_open: unsafe extern "C" fn(
            *mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void
        ) -> c_int = "av_open",
        cq_open: unsafe extern "C" fn(
            *mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void
        ) -> c_int = "cq_open",
        endpoint: unsafe extern "C" fn(
            *mut FidDomain, *mut InfoRaw, *mut *mut FidEp, *mut c_void
        ) -> c_int = "endpoint",
        scalable_ep: Unused = "scalable_ep",
        cntr_open: Unused = "cntr_open",
        poll_open: Unused = "poll_open",
        stx_ctx: Unused = "stx_ctx",
        srx_ctx: Unused = "srx_ctx",
        query_atomic: Unused = "query_atomic",
    }
    /// Functions about memory.
    struct MrOps = "fi_ops_mr" [1] {
        size: usize = "size",
        /// Registers memory: object, start, length, access, offset, key, flags.
        reg: unsafe extern "C" fn(
            *mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void
        ) -> c_int = "reg",
        regv: Unused = "regv",
        /// The same with attributes: object, attributes, flags.
        regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int
            = "regattr",
    }
    /// Attributes of a registration, which later versions have more of.
    struct MrAttr = "fi_mr_attr" {
        mr_iov: *const libc::iovec = "mr_iov",
        iov_count: usize = "iov_count",
        /// What may be done in it.
        access: u64 = "access",
        offset: u64 = "offset",
        requested_key: u64 = "requested_key",
        context: *mut c_void = "context",
        auth_key_size: usize = "auth_key_size",
        auth_key: *mut u8 = "auth_key",
        iface: c_int = "iface",
        device: u64 = "device",
    }
    /// A registration.
    struct FidMr = "fid_mr" [1] {
        fid: Fid = "fid",
        mem_desc: *mut c_void = "mem_desc",
        key: u64 = "key",
    }
    /// Of an address vector.
    struct AvAttr = "fi_av_attr" [1] {
        av_type: c_int = "type",
        rx_ctx_bits: c_int = "rx_ctx_bits",
        count: usize = "count",
        ep_per_node: usize = "ep_per_node",
        name: *const c_char = "name",
        map_addr: *mut c_void = "map_addr",
        flags: u64 = "flags",
    }
    /// An address vector.
    struct FidAv = "fid_av" {
        fid: Fid = "fid",
        ops: *const AvOps = "ops",
    }
    /// Functions of an address vector.
    struct AvOps = "fi_ops_av" {
        size: usize = "size",
        insert: unsafe extern "C" fn(
            *mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void
        ) -> c_int = "insert",
        insertsvc: Unused = "insertsvc",
        insertsym: Unused = "insertsym",
        remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int = "remove",
    }
    /// Of a completion queue.
    struct CqAttr = "fi_cq_attr" [1] {
        size: usize = "size",
        flags: u64 = "flags",
        /// Of `CQ_FORMAT_`.
        format: c_int = "format",
        wait_obj: c_int = "wait_obj",
        signaling_vector: c_int = "signaling_vector",
        wait_cond: c_int = "wait_cond",
        wait_set: *mut c_void = "wait_set",
    }
    /// A completion queue.
    struct FidCq = "fid_cq" {
        fid: Fid = "fid",
        ops: *const CqOps = "ops",
    }
    /// Functions of a completion queue.
    struct CqOps = "fi_ops_cq" {
        size: usize = "size",
        read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize = "read",
        readfrom: Unused = "readfrom",
        readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize = "readerr",
        sread: Unused = "sread",
        sreadfrom: Unused = "sreadfrom",
        signal: Unused = "signal",
        strerror: Option<unsafe extern "C" fn(
            *mut FidCq, c_int, *const c_void, *mut c_char, usize
        ) -> *const c_char> = "strerror",
    }
    /// A completion.
    struct CqEntry = "fi_cq_data_entry" [1] {
        op_context: *mut c_void = "op_context",
        flags: u64 = "flags",
        len: usize = "len",
        buf: *mut c_void = "buf",
        data: u64 = "data",
    }
    /// A failure. Longer in 2.x, whose libraries fill the rest for callers that ask for it alone.
    struct CqErrEntry = "fi_cq_err_entry" {
        op_context: *mut c_void = "op_context",
        flags: u64 = "flags",
        len: usize = "len",
        buf: *mut c_void = "buf",
        data: u64 = "data",
        tag: u64 = "tag",
        olen: usize = "olen",
        /// Why: an errno, or one of libfabric's own.
        err: c_int = "err",
        /// Why: the provider's own number.
        prov_errno: c_int = "prov_errno",
        err_data: *mut c_void = "err_data",
        err_data_size: usize = "err_data_size",
    }
    /// Of an event queue.
    struct EqAttr = "fi_eq_attr" [1] {
        size: usize = "size",
        flags: u64 = "flags",
        wait_obj: c_int = "wait_obj",
        signaling_vector: c_int = "signaling_vector",
        wait_set: *mut c_void = "wait_set",
    }
    /// An event queue.
    struct FidEq = "fid_eq" [1] {
        fid: Fid = "fid",
        ops: *const EqOps = "ops",
    }
    /// Functions of an event queue.
    struct EqOps = "fi_ops_eq" {
        size: usize = "size",
        read: unsafe extern "C" fn(
            *mut FidEq, *mut u32, *mut c_void, usize, u64
        ) -> isize = "read",
        readerr: unsafe extern "C" fn(*mut FidEq, *mut EqErrEntry, u64) -> isize = "readerr",
        write: Unused = "write",
        sread: Unused = "sread",
        strerror: Option<unsafe extern "C" fn(
            *mut FidEq, c_int, *const c_void, *mut c_char, usize
        ) -> *const c_char> = "strerror",
    }
    /// An event of a connection; what came with it follows.
    struct EqCmEntry = "fi_eq_cm_entry" [1] {
        fid: *mut Fid = "fid",
        /// Of a request: what the endpoint is opened with, to be freed by us.
        info: *mut InfoRaw = "info",
    }
    /// A failed connection.
    struct EqErrEntry = "fi_eq_err_entry" [1] {
        fid: *mut Fid = "fid",
        context: *mut c_void = "context",
        data: u64 = "data",
        /// Why: an errno, or one of libfabric's own.
        err: c_int = "err",
        /// Why: the provider's own number.
        prov_errno: c_int = "prov_errno",
        err_data: *mut c_void = "err_data",
        err_data_size: usize = "err_data_size",
    }
}

impl CqEntry {
    /// Room for a completion.
    // SAFETY: integers and pointers, for all of which zero is a value.
    pub const NOTHING: CqEntry = unsafe { core::mem::zeroed() };
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
    // SAFETY: integers and pointers, for all of which zero is a value.
    pub const NOTHING: CqErrRoom = unsafe { core::mem::zeroed() };
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
