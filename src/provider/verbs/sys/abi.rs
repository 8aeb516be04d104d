//! Structures and numbers of libibverbs that we use.
//!
//! Structures that the library allocates are declared up to the last field that we read. Enums are
//! numbers here: what a library of another age says need not be one of ours.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

/// What a C compiler must say of the header: an expression, and its value.
#[derive(Copy, Clone, Debug)]
pub struct Fact {
    /// In C.
    pub expression: &'static str,
    /// What it is here.
    pub value: u64,
}

/// Declares a structure, asserts its size and offsets, and adds both to a table of facts.
macro_rules! layout {
    ($facts:ident: $(
        $(#[$doc:meta])* struct $name:ident = $c:literal $([$size:literal])? {
            $($(#[$fdoc:meta])* $field:ident: $ty:ty = $cfield:literal @ $at:literal,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Copy, Clone, Debug)]
            #[repr(C)]
            #[allow(missing_docs)] // the manual has the fields; a comment has what we rely on
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

            $(const _: () = assert!(size_of::<$name>() == $size);)?
            $(const _: () = assert!(offset_of!($name, $field) == $at);)*
        )*

        pub(super) const $facts: &[Fact] = &[$(
            $(Fact { expression: concat!("sizeof(", $c, ")"), value: $size },)?
            $(Fact { expression: concat!("offsetof(", $c, ", ", $cfield, ")"), value: $at },)*
        )*];
    };
}

pub(super) use layout;

/// A GID, in the order of its bytes on the wire.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

/// Functions of an open device. Those that we do not call have no type.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct ContextOps {
    unused_first: [*mut c_void; 11],
    /// Takes completions.
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    /// Asks for one event of a completion channel.
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    unused_second: [*mut c_void; 12],
    /// Posts a chain of sends.
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    /// Posts a chain of receives.
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    unused_third: [*mut c_void; 5],
}

const _: () = assert!(size_of::<ContextOps>() == 256);
const _: () = assert!(offset_of!(ContextOps, poll_cq) == 88);
const _: () = assert!(offset_of!(ContextOps, req_notify_cq) == 96);
const _: () = assert!(offset_of!(ContextOps, post_send) == 200);
const _: () = assert!(offset_of!(ContextOps, post_recv) == 208);
const _: () = assert!(size_of::<Gid>() == 16);

pub(super) const OPS_FACTS: &[Fact] = &[
    Fact { expression: "sizeof(struct ibv_context_ops)", value: 256 },
    Fact { expression: "offsetof(struct ibv_context_ops, poll_cq)", value: 88 },
    Fact { expression: "offsetof(struct ibv_context_ops, req_notify_cq)", value: 96 },
    Fact { expression: "offsetof(struct ibv_context_ops, post_send)", value: 200 },
    Fact { expression: "offsetof(struct ibv_context_ops, post_recv)", value: 208 },
    Fact { expression: "sizeof(union ibv_gid)", value: 16 },
];

layout! { STRUCT_FACTS:
    /// A device that is there. The library's; read up to its name.
    struct DeviceEntry = "struct ibv_device" {
        ops: [*mut c_void; 2] = "_ops" @ 0,
        node_type: c_int = "node_type" @ 16,
        /// What it speaks: `TRANSPORT_IB` also for RoCE.
        transport_type: c_int = "transport_type" @ 20,
        /// Its name, which ends with a zero.
        name: [c_char; 64] = "name" @ 24,
        dev_name: [c_char; 64] = "dev_name" @ 88,
    }
    /// An open device. The library's; read up to the descriptor of its events.
    struct Context = "struct ibv_context" {
        device: *mut DeviceEntry = "device" @ 0,
        ops: ContextOps = "ops" @ 8,
        cmd_fd: c_int = "cmd_fd" @ 264,
        /// Readable when an event waits.
        async_fd: c_int = "async_fd" @ 268,
    }
    /// A protection domain. The library's.
    struct Pd = "struct ibv_pd" [16] {
        context: *mut Context = "context" @ 0,
        handle: u32 = "handle" @ 8,
    }
    /// A registration. The library's.
    struct Mr = "struct ibv_mr" [48] {
        context: *mut Context = "context" @ 0,
        pd: *mut Pd = "pd" @ 8,
        addr: *mut c_void = "addr" @ 16,
        /// In bytes.
        length: usize = "length" @ 24,
        handle: u32 = "handle" @ 32,
        lkey: u32 = "lkey" @ 36,
        rkey: u32 = "rkey" @ 40,
    }
    /// A channel of completions' events. The library's.
    struct CompChannel = "struct ibv_comp_channel" [16] {
        context: *mut Context = "context" @ 0,
        /// Readable when an event waits.
        fd: c_int = "fd" @ 8,
        refcnt: c_int = "refcnt" @ 12,
    }
    /// A completion queue. The library's; read up to its length.
    struct Cq = "struct ibv_cq" {
        context: *mut Context = "context" @ 0,
        channel: *mut CompChannel = "channel" @ 8,
        cq_context: *mut c_void = "cq_context" @ 16,
        handle: u32 = "handle" @ 24,
        cqe: c_int = "cqe" @ 28,
    }
    /// A queue pair. The library's; read up to its number.
    struct Qp = "struct ibv_qp" {
        context: *mut Context = "context" @ 0,
        qp_context: *mut c_void = "qp_context" @ 8,
        pd: *mut Pd = "pd" @ 16,
        send_cq: *mut Cq = "send_cq" @ 24,
        recv_cq: *mut Cq = "recv_cq" @ 32,
        srq: *mut c_void = "srq" @ 40,
        handle: u32 = "handle" @ 48,
        qp_num: u32 = "qp_num" @ 52,
    }
    /// How deep the queues of a pair are.
    struct QpCap = "struct ibv_qp_cap" [20] {
        max_send_wr: u32 = "max_send_wr" @ 0,
        max_recv_wr: u32 = "max_recv_wr" @ 4,
        max_send_sge: u32 = "max_send_sge" @ 8,
        max_recv_sge: u32 = "max_recv_sge" @ 12,
        max_inline_data: u32 = "max_inline_data" @ 16,
    }
    /// What a queue pair is made with.
    struct QpInitAttr = "struct ibv_qp_init_attr" [64] {
        qp_context: *mut c_void = "qp_context" @ 0,
        send_cq: *mut Cq = "send_cq" @ 8,
        recv_cq: *mut Cq = "recv_cq" @ 16,
        srq: *mut c_void = "srq" @ 24,
        /// Asked for; afterwards what there is.
        cap: QpCap = "cap" @ 32,
        /// `QPT_RC`.
        qp_type: c_int = "qp_type" @ 52,
        /// Whether every send is signalled.
        sq_sig_all: c_int = "sq_sig_all" @ 56,
    }
    /// A route between subnets; RoCE needs one always.
    struct GlobalRoute = "struct ibv_global_route" [24] {
        dgid: Gid = "dgid" @ 0,
        flow_label: u32 = "flow_label" @ 16,
        sgid_index: u8 = "sgid_index" @ 20,
        hop_limit: u8 = "hop_limit" @ 21,
        traffic_class: u8 = "traffic_class" @ 22,
    }
    /// The way to a peer.
    struct AhAttr = "struct ibv_ah_attr" [32] {
        /// With [`AhAttr::is_global`].
        grh: GlobalRoute = "grh" @ 0,
        dlid: u16 = "dlid" @ 24,
        sl: u8 = "sl" @ 26,
        src_path_bits: u8 = "src_path_bits" @ 27,
        /// 0: as fast as it goes.
        static_rate: u8 = "static_rate" @ 28,
        /// Whether `grh` counts.
        is_global: u8 = "is_global" @ 29,
        port_num: u8 = "port_num" @ 30,
    }
    /// What is changed of a queue pair; a mask says which fields count.
    struct QpAttr = "struct ibv_qp_attr" [144] {
        /// One of `QPS_`.
        qp_state: c_int = "qp_state" @ 0,
        cur_qp_state: c_int = "cur_qp_state" @ 4,
        /// One of `MTU_`.
        path_mtu: c_int = "path_mtu" @ 8,
        path_mig_state: c_int = "path_mig_state" @ 12,
        qkey: u32 = "qkey" @ 16,
        /// First packet that the peer sends.
        rq_psn: u32 = "rq_psn" @ 20,
        /// First packet that we send.
        sq_psn: u32 = "sq_psn" @ 24,
        dest_qp_num: u32 = "dest_qp_num" @ 28,
        /// What the peer may do.
        qp_access_flags: u32 = "qp_access_flags" @ 32,
        /// Not changed by us.
        cap: QpCap = "cap" @ 36,
        ah_attr: AhAttr = "ah_attr" @ 56,
        alt_ah_attr: AhAttr = "alt_ah_attr" @ 88,
        pkey_index: u16 = "pkey_index" @ 120,
        alt_pkey_index: u16 = "alt_pkey_index" @ 122,
        en_sqd_async_notify: u8 = "en_sqd_async_notify" @ 124,
        sq_draining: u8 = "sq_draining" @ 125,
        max_rd_atomic: u8 = "max_rd_atomic" @ 126,
        max_dest_rd_atomic: u8 = "max_dest_rd_atomic" @ 127,
        min_rnr_timer: u8 = "min_rnr_timer" @ 128,
        port_num: u8 = "port_num" @ 129,
        /// 4.096 us times two to the power of this, until a packet is sent again.
        timeout: u8 = "timeout" @ 130,
        /// How often it is, 7 at most.
        retry_cnt: u8 = "retry_cnt" @ 131,
        /// The same where no receive was found; 7 is for ever.
        rnr_retry: u8 = "rnr_retry" @ 132,
        alt_port_num: u8 = "alt_port_num" @ 133,
        alt_timeout: u8 = "alt_timeout" @ 134,
        /// 0: none.
        rate_limit: u32 = "rate_limit" @ 136,
    }
    /// Extensions of a vendor that a queue pair has or is to use.
    struct Ece = "struct ibv_ece" [12] {
        /// Whose; 0: none.
        vendor_id: u32 = "vendor_id" @ 0,
        options: u32 = "options" @ 4,
        /// Must be 0.
        comp_mask: u32 = "comp_mask" @ 8,
    }
    /// A part of a message in memory of ours.
    struct Sge = "struct ibv_sge" [16] {
        addr: u64 = "addr" @ 0,
        /// In bytes.
        length: u32 = "length" @ 8,
        lkey: u32 = "lkey" @ 12,
    }
    /// A send, of any kind.
    struct SendWr = "struct ibv_send_wr" [128] {
        wr_id: u64 = "wr_id" @ 0,
        next: *mut SendWr = "next" @ 8,
        sg_list: *mut Sge = "sg_list" @ 16,
        num_sge: c_int = "num_sge" @ 24,
        /// One of `WR_`.
        opcode: c_int = "opcode" @ 28,
        /// Of `SEND_`.
        send_flags: u32 = "send_flags" @ 32,
        /// Carried to the peer, in its byte order.
        imm_data: u32 = "imm_data" @ 36,
        remote_addr: u64 = "wr.rdma.remote_addr" @ 40,
        /// Of a write or a read the peer's key, in its low half; of an atomic, what is added.
        rkey_or_add: u64 = "wr.rdma.rkey" @ 48,
        swap: u64 = "wr.atomic.swap" @ 56,
        /// Of an atomic the peer's key.
        atomic_rkey: u32 = "wr.atomic.rkey" @ 64,
        unused: [u64; 7] = "qp_type" @ 72,
    }
    /// A receive.
    struct RecvWr = "struct ibv_recv_wr" [32] {
        wr_id: u64 = "wr_id" @ 0,
        next: *mut RecvWr = "next" @ 8,
        sg_list: *mut Sge = "sg_list" @ 16,
        num_sge: c_int = "num_sge" @ 24,
    }
    /// A completion.
    struct Wc = "struct ibv_wc" [48] {
        wr_id: u64 = "wr_id" @ 0,
        /// One of `WC_`; of the others only `wr_id`, `qp_num` and `vendor_err` count.
        status: c_int = "status" @ 8,
        opcode: c_int = "opcode" @ 12,
        vendor_err: u32 = "vendor_err" @ 16,
        byte_len: u32 = "byte_len" @ 20,
        /// Received, in the order of its bytes.
        imm_data: u32 = "imm_data" @ 24,
        qp_num: u32 = "qp_num" @ 28,
        src_qp: u32 = "src_qp" @ 32,
        /// Of `WC_WITH_`.
        wc_flags: u32 = "wc_flags" @ 36,
        pkey_index: u16 = "pkey_index" @ 40,
        slid: u16 = "slid" @ 42,
        sl: u8 = "sl" @ 44,
        dlid_path_bits: u8 = "dlid_path_bits" @ 45,
    }
    /// What a port is.
    struct PortAttr = "struct ibv_port_attr" [52] {
        /// One of `PORT_`.
        state: c_int = "state" @ 0,
        /// One of `MTU_`.
        max_mtu: c_int = "max_mtu" @ 4,
        active_mtu: c_int = "active_mtu" @ 8,
        /// How many GIDs there may be.
        gid_tbl_len: c_int = "gid_tbl_len" @ 12,
        port_cap_flags: u32 = "port_cap_flags" @ 16,
        max_msg_sz: u32 = "max_msg_sz" @ 20,
        bad_pkey_cntr: u32 = "bad_pkey_cntr" @ 24,
        qkey_viol_cntr: u32 = "qkey_viol_cntr" @ 28,
        pkey_tbl_len: u16 = "pkey_tbl_len" @ 32,
        lid: u16 = "lid" @ 34,
        sm_lid: u16 = "sm_lid" @ 36,
        /// How many low bits of the LID are free.
        lmc: u8 = "lmc" @ 38,
        max_vl_num: u8 = "max_vl_num" @ 39,
        sm_sl: u8 = "sm_sl" @ 40,
        subnet_timeout: u8 = "subnet_timeout" @ 41,
        init_type_reply: u8 = "init_type_reply" @ 42,
        /// Lanes: 1, 2, 4, 8 are 1, 4, 8, 12; 16 is 2.
        active_width: u8 = "active_width" @ 43,
        active_speed: u8 = "active_speed" @ 44,
        phys_state: u8 = "phys_state" @ 45,
        /// One of `LINK_LAYER_`.
        link_layer: u8 = "link_layer" @ 46,
        flags: u8 = "flags" @ 47,
        port_cap_flags2: u16 = "port_cap_flags2" @ 48,
    }
    /// What a device is.
    struct DeviceAttr = "struct ibv_device_attr" [232] {
        fw_ver: [c_char; 64] = "fw_ver" @ 0,
        /// In the order of its bytes.
        node_guid: u64 = "node_guid" @ 64,
        /// In the order of its bytes.
        sys_image_guid: u64 = "sys_image_guid" @ 72,
        max_mr_size: u64 = "max_mr_size" @ 80,
        page_size_cap: u64 = "page_size_cap" @ 88,
        vendor_id: u32 = "vendor_id" @ 96,
        vendor_part_id: u32 = "vendor_part_id" @ 100,
        hw_ver: u32 = "hw_ver" @ 104,
        max_qp: c_int = "max_qp" @ 108,
        max_qp_wr: c_int = "max_qp_wr" @ 112,
        device_cap_flags: u32 = "device_cap_flags" @ 116,
        max_sge: c_int = "max_sge" @ 120,
        max_sge_rd: c_int = "max_sge_rd" @ 124,
        max_cq: c_int = "max_cq" @ 128,
        max_cqe: c_int = "max_cqe" @ 132,
        max_mr: c_int = "max_mr" @ 136,
        max_pd: c_int = "max_pd" @ 140,
        max_qp_rd_atom: c_int = "max_qp_rd_atom" @ 144,
        max_ee_rd_atom: c_int = "max_ee_rd_atom" @ 148,
        max_res_rd_atom: c_int = "max_res_rd_atom" @ 152,
        max_qp_init_rd_atom: c_int = "max_qp_init_rd_atom" @ 156,
        max_ee_init_rd_atom: c_int = "max_ee_init_rd_atom" @ 160,
        /// One of `ATOMIC_`.
        atomic_cap: c_int = "atomic_cap" @ 164,
        unused: [c_int; 14] = "max_ee" @ 168,
        max_pkeys: u16 = "max_pkeys" @ 224,
        /// How late an acknowledgement may be, as [`QpAttr::timeout`].
        local_ca_ack_delay: u8 = "local_ca_ack_delay" @ 226,
        phys_port_cnt: u8 = "phys_port_cnt" @ 227,
    }
    /// An entry of a port's table of GIDs.
    struct GidEntry = "struct ibv_gid_entry" [32] {
        gid: Gid = "gid" @ 0,
        gid_index: u32 = "gid_index" @ 16,
        port_num: u32 = "port_num" @ 20,
        /// One of `GID_`.
        gid_type: u32 = "gid_type" @ 24,
        /// The number of the interface that it belongs to; 0: none.
        ndev_ifindex: u32 = "ndev_ifindex" @ 28,
    }
    /// What happened to a device.
    struct AsyncEvent = "struct ibv_async_event" [16] {
        /// To which part of it: a pointer, or a port's number in its low half.
        element: u64 = "element" @ 0,
        /// One of `EVENT_`.
        event_type: c_int = "event_type" @ 8,
    }
}

impl QpAttr {
    /// Attributes of a queue pair that goes to this state; all others are zero.
    pub fn to(qp_state: c_int) -> QpAttr {
        // SAFETY: integers, for all of which zero is a value; the mask says which count.
        QpAttr { qp_state, ..unsafe { core::mem::zeroed() } }
    }
}

impl QpInitAttr {
    /// A reliable queue pair that completes into one queue.
    pub fn reliable(cq: *mut Cq, cap: QpCap) -> QpInitAttr {
        let none = core::ptr::null_mut();
        let (qp_context, send_cq, recv_cq, srq) = (none, cq, cq, none);
        QpInitAttr {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type: super::numbers::QPT_RC,
            sq_sig_all: 0,
        }
    }
}

impl RecvWr {
    /// A work request of nothing.
    // SAFETY: integers and pointers, for all of which zero is a value.
    pub const NOTHING: RecvWr = unsafe { core::mem::zeroed() };
}

impl SendWr {
    /// A work request of nothing.
    // SAFETY: integers and pointers, for all of which zero is a value.
    pub const NOTHING: SendWr = unsafe { core::mem::zeroed() };

    /// The peer's key of a write or a read.
    #[inline]
    pub const fn rkey(&self) -> u32 {
        let [a, b, c, d, ..] = self.rkey_or_add.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// What stands in [`SendWr::rkey_or_add`] of a write or a read.
    #[inline]
    pub const fn rkey_field(rkey: u32) -> u64 {
        let [a, b, c, d] = rkey.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    }
}

impl Ece {
    /// No extensions.
    pub const NONE: Ece = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
}

impl Wc {
    /// Room for a completion.
    // SAFETY: integers, for all of which zero is a value.
    pub const NOTHING: Wc = unsafe { core::mem::zeroed() };
}
