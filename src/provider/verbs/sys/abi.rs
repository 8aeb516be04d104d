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
        /// Private to the library.
        ops: [*mut c_void; 2] = "_ops" @ 0,
        /// What it is.
        node_type: c_int = "node_type" @ 16,
        /// What it speaks: `TRANSPORT_IB` also for RoCE.
        transport_type: c_int = "transport_type" @ 20,
        /// Its name, which ends with a zero.
        name: [c_char; 64] = "name" @ 24,
        /// The name of its file, likewise.
        dev_name: [c_char; 64] = "dev_name" @ 88,
    }
    /// An open device. The library's; read up to the descriptor of its events.
    struct Context = "struct ibv_context" {
        /// Which.
        device: *mut DeviceEntry = "device" @ 0,
        /// Its functions.
        ops: ContextOps = "ops" @ 8,
        /// Its commands.
        cmd_fd: c_int = "cmd_fd" @ 264,
        /// Readable when an event waits.
        async_fd: c_int = "async_fd" @ 268,
    }
    /// A protection domain. The library's.
    struct Pd = "struct ibv_pd" [16] {
        /// Whose.
        context: *mut Context = "context" @ 0,
        /// The kernel's number.
        handle: u32 = "handle" @ 8,
    }
    /// A registration. The library's.
    struct Mr = "struct ibv_mr" [48] {
        /// Whose.
        context: *mut Context = "context" @ 0,
        /// Where it was made.
        pd: *mut Pd = "pd" @ 8,
        /// First byte.
        addr: *mut c_void = "addr" @ 16,
        /// In bytes.
        length: usize = "length" @ 24,
        /// The kernel's number.
        handle: u32 = "handle" @ 32,
        /// What our own work requests call it.
        lkey: u32 = "lkey" @ 36,
        /// What the peer's call it.
        rkey: u32 = "rkey" @ 40,
    }
    /// A channel of completions' events. The library's.
    struct CompChannel = "struct ibv_comp_channel" [16] {
        /// Whose.
        context: *mut Context = "context" @ 0,
        /// Readable when an event waits.
        fd: c_int = "fd" @ 8,
        /// Queues that tell it.
        refcnt: c_int = "refcnt" @ 12,
    }
    /// A completion queue. The library's; read up to its length.
    struct Cq = "struct ibv_cq" {
        /// Whose.
        context: *mut Context = "context" @ 0,
        /// Of events.
        channel: *mut CompChannel = "channel" @ 8,
        /// Ours.
        cq_context: *mut c_void = "cq_context" @ 16,
        /// The kernel's number.
        handle: u32 = "handle" @ 24,
        /// How many completions fit.
        cqe: c_int = "cqe" @ 28,
    }
    /// A queue pair. The library's; read up to its number.
    struct Qp = "struct ibv_qp" {
        /// Whose.
        context: *mut Context = "context" @ 0,
        /// Ours.
        qp_context: *mut c_void = "qp_context" @ 8,
        /// Where it was made.
        pd: *mut Pd = "pd" @ 16,
        /// Where its sends complete.
        send_cq: *mut Cq = "send_cq" @ 24,
        /// Where its receives complete.
        recv_cq: *mut Cq = "recv_cq" @ 32,
        /// Where it takes receives from, if not from a queue of its own.
        srq: *mut c_void = "srq" @ 40,
        /// The kernel's number.
        handle: u32 = "handle" @ 48,
        /// Its number on the wire.
        qp_num: u32 = "qp_num" @ 52,
    }
    /// How deep the queues of a pair are.
    struct QpCap = "struct ibv_qp_cap" [20] {
        /// Sends.
        max_send_wr: u32 = "max_send_wr" @ 0,
        /// Receives.
        max_recv_wr: u32 = "max_recv_wr" @ 4,
        /// Parts of one send.
        max_send_sge: u32 = "max_send_sge" @ 8,
        /// Parts of one receive.
        max_recv_sge: u32 = "max_recv_sge" @ 12,
        /// Bytes that a post copies.
        max_inline_data: u32 = "max_inline_data" @ 16,
    }
    /// What a queue pair is made with.
    struct QpInitAttr = "struct ibv_qp_init_attr" [64] {
        /// Ours.
        qp_context: *mut c_void = "qp_context" @ 0,
        /// Where sends complete.
        send_cq: *mut Cq = "send_cq" @ 8,
        /// Where receives complete.
        recv_cq: *mut Cq = "recv_cq" @ 16,
        /// A shared receive queue.
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
        /// Whereto.
        dgid: Gid = "dgid" @ 0,
        /// For switches.
        flow_label: u32 = "flow_label" @ 16,
        /// Which of our GIDs it comes from.
        sgid_index: u8 = "sgid_index" @ 20,
        /// Most routers on the way.
        hop_limit: u8 = "hop_limit" @ 21,
        /// Priority, and congestion marks.
        traffic_class: u8 = "traffic_class" @ 22,
    }
    /// The way to a peer.
    struct AhAttr = "struct ibv_ah_attr" [32] {
        /// With [`AhAttr::is_global`].
        grh: GlobalRoute = "grh" @ 0,
        /// InfiniBand's local address.
        dlid: u16 = "dlid" @ 24,
        /// Service level.
        sl: u8 = "sl" @ 26,
        /// Low bits of our LID.
        src_path_bits: u8 = "src_path_bits" @ 27,
        /// 0: as fast as it goes.
        static_rate: u8 = "static_rate" @ 28,
        /// Whether `grh` counts.
        is_global: u8 = "is_global" @ 29,
        /// Which port of ours.
        port_num: u8 = "port_num" @ 30,
    }
    /// What is changed of a queue pair; a mask says which fields count.
    struct QpAttr = "struct ibv_qp_attr" [144] {
        /// One of `QPS_`.
        qp_state: c_int = "qp_state" @ 0,
        /// The present one.
        cur_qp_state: c_int = "cur_qp_state" @ 4,
        /// One of `MTU_`.
        path_mtu: c_int = "path_mtu" @ 8,
        /// Of path migration.
        path_mig_state: c_int = "path_mig_state" @ 12,
        /// Of datagrams.
        qkey: u32 = "qkey" @ 16,
        /// First packet that the peer sends.
        rq_psn: u32 = "rq_psn" @ 20,
        /// First packet that we send.
        sq_psn: u32 = "sq_psn" @ 24,
        /// The peer's queue pair.
        dest_qp_num: u32 = "dest_qp_num" @ 28,
        /// What the peer may do.
        qp_access_flags: u32 = "qp_access_flags" @ 32,
        /// Not changed by us.
        cap: QpCap = "cap" @ 36,
        /// The way.
        ah_attr: AhAttr = "ah_attr" @ 56,
        /// Another one.
        alt_ah_attr: AhAttr = "alt_ah_attr" @ 88,
        /// Partition, by index.
        pkey_index: u16 = "pkey_index" @ 120,
        /// Of the other way.
        alt_pkey_index: u16 = "alt_pkey_index" @ 122,
        /// Of draining.
        en_sqd_async_notify: u8 = "en_sqd_async_notify" @ 124,
        /// Whether it drains.
        sq_draining: u8 = "sq_draining" @ 125,
        /// Reads and atomics of ours in flight.
        max_rd_atomic: u8 = "max_rd_atomic" @ 126,
        /// The same of the peer's.
        max_dest_rd_atomic: u8 = "max_dest_rd_atomic" @ 127,
        /// How long a peer waits that found no receive.
        min_rnr_timer: u8 = "min_rnr_timer" @ 128,
        /// Which port of ours.
        port_num: u8 = "port_num" @ 129,
        /// 4.096 us times two to the power of this, until a packet is sent again.
        timeout: u8 = "timeout" @ 130,
        /// How often it is, 7 at most.
        retry_cnt: u8 = "retry_cnt" @ 131,
        /// The same where no receive was found; 7 is for ever.
        rnr_retry: u8 = "rnr_retry" @ 132,
        /// Of the other way.
        alt_port_num: u8 = "alt_port_num" @ 133,
        /// Of the other way.
        alt_timeout: u8 = "alt_timeout" @ 134,
        /// 0: none.
        rate_limit: u32 = "rate_limit" @ 136,
    }
    /// Extensions of a vendor that a queue pair has or is to use.
    struct Ece = "struct ibv_ece" [12] {
        /// Whose; 0: none.
        vendor_id: u32 = "vendor_id" @ 0,
        /// Which, as bits.
        options: u32 = "options" @ 4,
        /// Must be 0.
        comp_mask: u32 = "comp_mask" @ 8,
    }
    /// A part of a message in memory of ours.
    struct Sge = "struct ibv_sge" [16] {
        /// First byte.
        addr: u64 = "addr" @ 0,
        /// In bytes.
        length: u32 = "length" @ 8,
        /// The registration it lies in.
        lkey: u32 = "lkey" @ 12,
    }
    /// A send, of any kind.
    struct SendWr = "struct ibv_send_wr" [128] {
        /// Comes back in the completion.
        wr_id: u64 = "wr_id" @ 0,
        /// The one behind it.
        next: *mut SendWr = "next" @ 8,
        /// Its parts.
        sg_list: *mut Sge = "sg_list" @ 16,
        /// How many.
        num_sge: c_int = "num_sge" @ 24,
        /// One of `WR_`.
        opcode: c_int = "opcode" @ 28,
        /// Of `SEND_`.
        send_flags: u32 = "send_flags" @ 32,
        /// Carried to the peer, in its byte order.
        imm_data: u32 = "imm_data" @ 36,
        /// The peer's memory.
        remote_addr: u64 = "wr.rdma.remote_addr" @ 40,
        /// Of a write or a read the peer's key, in its low half; of an atomic, what is added.
        rkey_or_add: u64 = "wr.rdma.rkey" @ 48,
        /// Of atomics.
        swap: u64 = "wr.atomic.swap" @ 56,
        /// Of an atomic the peer's key.
        atomic_rkey: u32 = "wr.atomic.rkey" @ 64,
        /// Of other queue pairs.
        unused: [u64; 7] = "qp_type" @ 72,
    }
    /// A receive.
    struct RecvWr = "struct ibv_recv_wr" [32] {
        /// Comes back in the completion.
        wr_id: u64 = "wr_id" @ 0,
        /// The one behind it.
        next: *mut RecvWr = "next" @ 8,
        /// Its parts.
        sg_list: *mut Sge = "sg_list" @ 16,
        /// How many.
        num_sge: c_int = "num_sge" @ 24,
    }
    /// A completion.
    struct Wc = "struct ibv_wc" [48] {
        /// As it was posted.
        wr_id: u64 = "wr_id" @ 0,
        /// One of `WC_`; of the others only `wr_id`, `qp_num` and `vendor_err` count.
        status: c_int = "status" @ 8,
        /// What was completed.
        opcode: c_int = "opcode" @ 12,
        /// The maker's own code of a failure.
        vendor_err: u32 = "vendor_err" @ 16,
        /// Received.
        byte_len: u32 = "byte_len" @ 20,
        /// Received, in the order of its bytes.
        imm_data: u32 = "imm_data" @ 24,
        /// Ours.
        qp_num: u32 = "qp_num" @ 28,
        /// The peer's.
        src_qp: u32 = "src_qp" @ 32,
        /// Of `WC_WITH_`.
        wc_flags: u32 = "wc_flags" @ 36,
        /// Partition.
        pkey_index: u16 = "pkey_index" @ 40,
        /// The peer's LID.
        slid: u16 = "slid" @ 42,
        /// Service level.
        sl: u8 = "sl" @ 44,
        /// Low bits of our LID.
        dlid_path_bits: u8 = "dlid_path_bits" @ 45,
    }
    /// What a port is.
    struct PortAttr = "struct ibv_port_attr" [52] {
        /// One of `PORT_`.
        state: c_int = "state" @ 0,
        /// One of `MTU_`.
        max_mtu: c_int = "max_mtu" @ 4,
        /// What the link has now.
        active_mtu: c_int = "active_mtu" @ 8,
        /// How many GIDs there may be.
        gid_tbl_len: c_int = "gid_tbl_len" @ 12,
        /// Bits.
        port_cap_flags: u32 = "port_cap_flags" @ 16,
        /// Longest message.
        max_msg_sz: u32 = "max_msg_sz" @ 20,
        /// Counters.
        bad_pkey_cntr: u32 = "bad_pkey_cntr" @ 24,
        /// Counters.
        qkey_viol_cntr: u32 = "qkey_viol_cntr" @ 28,
        /// Partitions.
        pkey_tbl_len: u16 = "pkey_tbl_len" @ 32,
        /// InfiniBand's local address.
        lid: u16 = "lid" @ 34,
        /// Of the subnet manager.
        sm_lid: u16 = "sm_lid" @ 36,
        /// How many low bits of the LID are free.
        lmc: u8 = "lmc" @ 38,
        /// Virtual lanes.
        max_vl_num: u8 = "max_vl_num" @ 39,
        /// Of the subnet manager.
        sm_sl: u8 = "sm_sl" @ 40,
        /// Of the subnet manager.
        subnet_timeout: u8 = "subnet_timeout" @ 41,
        /// Of the subnet manager.
        init_type_reply: u8 = "init_type_reply" @ 42,
        /// Lanes: 1, 2, 4, 8 are 1, 4, 8, 12; 16 is 2.
        active_width: u8 = "active_width" @ 43,
        /// Speed of a lane, as a bit.
        active_speed: u8 = "active_speed" @ 44,
        /// Of the link.
        phys_state: u8 = "phys_state" @ 45,
        /// One of `LINK_LAYER_`.
        link_layer: u8 = "link_layer" @ 46,
        /// Bits.
        flags: u8 = "flags" @ 47,
        /// Bits.
        port_cap_flags2: u16 = "port_cap_flags2" @ 48,
    }
    /// What a device is.
    struct DeviceAttr = "struct ibv_device_attr" [232] {
        /// Text.
        fw_ver: [c_char; 64] = "fw_ver" @ 0,
        /// In the order of its bytes.
        node_guid: u64 = "node_guid" @ 64,
        /// In the order of its bytes.
        sys_image_guid: u64 = "sys_image_guid" @ 72,
        /// Longest registration.
        max_mr_size: u64 = "max_mr_size" @ 80,
        /// Bits.
        page_size_cap: u64 = "page_size_cap" @ 88,
        /// Who made it.
        vendor_id: u32 = "vendor_id" @ 96,
        /// What they call it.
        vendor_part_id: u32 = "vendor_part_id" @ 100,
        /// Which version of that.
        hw_ver: u32 = "hw_ver" @ 104,
        /// Queue pairs.
        max_qp: c_int = "max_qp" @ 108,
        /// Work requests of a queue.
        max_qp_wr: c_int = "max_qp_wr" @ 112,
        /// Bits.
        device_cap_flags: u32 = "device_cap_flags" @ 116,
        /// Parts of one work request.
        max_sge: c_int = "max_sge" @ 120,
        /// Of datagrams.
        max_sge_rd: c_int = "max_sge_rd" @ 124,
        /// Completion queues.
        max_cq: c_int = "max_cq" @ 128,
        /// Completions in one.
        max_cqe: c_int = "max_cqe" @ 132,
        /// Registrations.
        max_mr: c_int = "max_mr" @ 136,
        /// Protection domains.
        max_pd: c_int = "max_pd" @ 140,
        /// Reads and atomics of a peer in flight.
        max_qp_rd_atom: c_int = "max_qp_rd_atom" @ 144,
        /// Not used by RC.
        max_ee_rd_atom: c_int = "max_ee_rd_atom" @ 148,
        /// The same of all peers together.
        max_res_rd_atom: c_int = "max_res_rd_atom" @ 152,
        /// Of our own.
        max_qp_init_rd_atom: c_int = "max_qp_init_rd_atom" @ 156,
        /// Not used by RC.
        max_ee_init_rd_atom: c_int = "max_ee_init_rd_atom" @ 160,
        /// One of `ATOMIC_`.
        atomic_cap: c_int = "atomic_cap" @ 164,
        /// What we do not use.
        unused: [c_int; 14] = "max_ee" @ 168,
        /// Partitions.
        max_pkeys: u16 = "max_pkeys" @ 224,
        /// How late an acknowledgement may be, as [`QpAttr::timeout`].
        local_ca_ack_delay: u8 = "local_ca_ack_delay" @ 226,
        /// Ports.
        phys_port_cnt: u8 = "phys_port_cnt" @ 227,
    }
    /// An entry of a port's table of GIDs.
    struct GidEntry = "struct ibv_gid_entry" [32] {
        /// The GID.
        gid: Gid = "gid" @ 0,
        /// Its place.
        gid_index: u32 = "gid_index" @ 16,
        /// Whose.
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
    pub const NOTHING: RecvWr = RecvWr {
        wr_id: 0,
        next: core::ptr::null_mut(),
        sg_list: core::ptr::null_mut(),
        num_sge: 0,
    };
}

impl SendWr {
    /// A work request of nothing.
    pub const NOTHING: SendWr = SendWr {
        wr_id: 0,
        next: core::ptr::null_mut(),
        sg_list: core::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey_or_add: 0,
        swap: 0,
        atomic_rkey: 0,
        unused: [0; 7],
    };

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
    pub const NOTHING: Wc = Wc {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
}
