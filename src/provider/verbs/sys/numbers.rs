//! Numbers of libibverbs that we use.
#![forbid(unsafe_code)]

use super::abi::Fact;
use core::ffi::c_int;

/// Declares numbers, and adds them to a table of facts.
macro_rules! numbers {
    ($facts:ident: $($(#[$doc:meta])* $name:ident: $ty:ty = $c:literal $value:literal,)*) => {
        $($(#[$doc])* #[allow(missing_docs)] pub const $name: $ty = $value;)*

        /// The same for a C compiler.
        pub const $facts: &[Fact] = &[
            $(Fact { expression: concat!("(unsigned long long)(", $c, ")"), value: $value },)*
        ];
    };
}

numbers! { FACTS:
    NODE_CA: c_int = "IBV_NODE_CA" 1,
    /// InfiniBand's transport, also over Ethernet.
    TRANSPORT_IB: c_int = "IBV_TRANSPORT_IB" 0,
    QPT_RC: c_int = "IBV_QPT_RC" 2,

    WR_WRITE: c_int = "IBV_WR_RDMA_WRITE" 0,
    /// A write that takes a receive and says a word.
    WR_WRITE_IMM: c_int = "IBV_WR_RDMA_WRITE_WITH_IMM" 1,
    WR_SEND: c_int = "IBV_WR_SEND" 2,
    WR_READ: c_int = "IBV_WR_RDMA_READ" 4,
    /// An add that answers with what was there.
    WR_FETCH_ADD: c_int = "IBV_WR_ATOMIC_FETCH_AND_ADD" 6,

    /// [`super::extended::QpInitAttrEx::pd`] counts.
    QP_INIT_PD: u32 = "IBV_QP_INIT_ATTR_PD" 1,
    /// `send_ops_flags` counts.
    QP_INIT_SEND_OPS: u32 = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS" 0x40,
    QP_EX_WRITE: u64 = "IBV_QP_EX_WITH_RDMA_WRITE" 1,
    QP_EX_WRITE_IMM: u64 = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM" 2,
    QP_EX_SEND: u64 = "IBV_QP_EX_WITH_SEND" 4,
    QP_EX_READ: u64 = "IBV_QP_EX_WITH_RDMA_READ" 0x10,
    QP_EX_FETCH_ADD: u64 = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD" 0x40,

    /// Every packet of the port has a global route header (`ibv_port_attr.flags`).
    PORT_GRH_REQUIRED: u8 = "IBV_QPF_GRH_REQUIRED" 1,

    /// Not before reads and atomics that were posted earlier have ended.
    SEND_FENCE: u32 = "IBV_SEND_FENCE" 1,
    /// Completes also when it succeeds.
    SEND_SIGNALED: u32 = "IBV_SEND_SIGNALED" 2,
    /// Its bytes are copied by the post.
    SEND_INLINE: u32 = "IBV_SEND_INLINE" 8,

    WC_SUCCESS: c_int = "IBV_WC_SUCCESS" 0,
    /// A message longer than its receive.
    WC_LOC_LEN_ERR: c_int = "IBV_WC_LOC_LEN_ERR" 1,
    /// The queue pair cannot do that.
    WC_LOC_QP_OP_ERR: c_int = "IBV_WC_LOC_QP_OP_ERR" 2,
    /// Memory of ours that is not registered so.
    WC_LOC_PROT_ERR: c_int = "IBV_WC_LOC_PROT_ERR" 4,
    /// The queue pair was in the error state already.
    WC_WR_FLUSH_ERR: c_int = "IBV_WC_WR_FLUSH_ERR" 5,
    /// The peer answered what nobody asked.
    WC_BAD_RESP_ERR: c_int = "IBV_WC_BAD_RESP_ERR" 7,
    /// The peer touched memory that it may not.
    WC_LOC_ACCESS_ERR: c_int = "IBV_WC_LOC_ACCESS_ERR" 8,
    /// The peer does not understand it.
    WC_REM_INV_REQ_ERR: c_int = "IBV_WC_REM_INV_REQ_ERR" 9,
    /// The peer's memory is not registered so.
    WC_REM_ACCESS_ERR: c_int = "IBV_WC_REM_ACCESS_ERR" 10,
    /// The peer could not carry it out.
    WC_REM_OP_ERR: c_int = "IBV_WC_REM_OP_ERR" 11,
    /// The peer did not acknowledge it.
    WC_RETRY_EXC_ERR: c_int = "IBV_WC_RETRY_EXC_ERR" 12,
    /// The peer had no receive for it.
    WC_RNR_RETRY_EXC_ERR: c_int = "IBV_WC_RNR_RETRY_EXC_ERR" 13,
    WC_FATAL_ERR: c_int = "IBV_WC_FATAL_ERR" 19,
    /// An answer did not come.
    WC_RESP_TIMEOUT_ERR: c_int = "IBV_WC_RESP_TIMEOUT_ERR" 20,
    WC_GENERAL_ERR: c_int = "IBV_WC_GENERAL_ERR" 21,

    WC_RECV: c_int = "IBV_WC_RECV" 128,
    /// A write's word was received.
    WC_RECV_IMM: c_int = "IBV_WC_RECV_RDMA_WITH_IMM" 129,

    ACCESS_LOCAL_WRITE: c_int = "IBV_ACCESS_LOCAL_WRITE" 1,
    ACCESS_REMOTE_WRITE: c_int = "IBV_ACCESS_REMOTE_WRITE" 2,
    ACCESS_REMOTE_READ: c_int = "IBV_ACCESS_REMOTE_READ" 4,
    ACCESS_REMOTE_ATOMIC: c_int = "IBV_ACCESS_REMOTE_ATOMIC" 8,
    /// Writes may overtake each other on the bus, where the device can.
    ACCESS_RELAXED_ORDERING: c_int = "IBV_ACCESS_RELAXED_ORDERING" 0x10_0000,

    QPS_RESET: c_int = "IBV_QPS_RESET" 0,
    QPS_INIT: c_int = "IBV_QPS_INIT" 1,
    QPS_RTR: c_int = "IBV_QPS_RTR" 2,
    QPS_RTS: c_int = "IBV_QPS_RTS" 3,
    /// Moves nothing; what is posted is flushed.
    QPS_ERR: c_int = "IBV_QPS_ERR" 6,

    /// Changes [`super::abi::QpAttr::qp_state`].
    QP_STATE: c_int = "IBV_QP_STATE" 0x1,
    /// Changes `qp_access_flags`.
    QP_ACCESS_FLAGS: c_int = "IBV_QP_ACCESS_FLAGS" 0x8,
    /// Changes `pkey_index`.
    QP_PKEY_INDEX: c_int = "IBV_QP_PKEY_INDEX" 0x10,
    /// Changes `port_num`.
    QP_PORT: c_int = "IBV_QP_PORT" 0x20,
    /// Changes `ah_attr`.
    QP_AV: c_int = "IBV_QP_AV" 0x80,
    /// Changes `path_mtu`.
    QP_PATH_MTU: c_int = "IBV_QP_PATH_MTU" 0x100,
    /// Changes `timeout`.
    QP_TIMEOUT: c_int = "IBV_QP_TIMEOUT" 0x200,
    /// Changes `retry_cnt`.
    QP_RETRY_CNT: c_int = "IBV_QP_RETRY_CNT" 0x400,
    /// Changes `rnr_retry`.
    QP_RNR_RETRY: c_int = "IBV_QP_RNR_RETRY" 0x800,
    /// Changes `rq_psn`.
    QP_RQ_PSN: c_int = "IBV_QP_RQ_PSN" 0x1000,
    /// Changes `max_rd_atomic`.
    QP_MAX_RD_ATOMIC: c_int = "IBV_QP_MAX_QP_RD_ATOMIC" 0x2000,
    /// Changes `min_rnr_timer`.
    QP_MIN_RNR_TIMER: c_int = "IBV_QP_MIN_RNR_TIMER" 0x8000,
    /// Changes `sq_psn`.
    QP_SQ_PSN: c_int = "IBV_QP_SQ_PSN" 0x1_0000,
    /// Changes `max_dest_rd_atomic`.
    QP_MAX_DEST_RD_ATOMIC: c_int = "IBV_QP_MAX_DEST_RD_ATOMIC" 0x2_0000,
    /// Changes `dest_qp_num`.
    QP_DEST_QPN: c_int = "IBV_QP_DEST_QPN" 0x10_0000,

    /// 256 bytes; each number above is twice as many.
    MTU_256: c_int = "IBV_MTU_256" 1,
    /// 4096 bytes.
    MTU_4096: c_int = "IBV_MTU_4096" 5,

    /// A GID of RoCE version 1.
    GID_ROCE_V1: u32 = "IBV_GID_TYPE_ROCE_V1" 1,
    /// A GID of version 2.
    GID_ROCE_V2: u32 = "IBV_GID_TYPE_ROCE_V2" 2,

    PORT_DOWN: c_int = "IBV_PORT_DOWN" 1,
    PORT_ACTIVE: c_int = "IBV_PORT_ACTIVE" 4,

    LINK_LAYER_UNSPECIFIED: u8 = "IBV_LINK_LAYER_UNSPECIFIED" 0,
    LINK_LAYER_INFINIBAND: u8 = "IBV_LINK_LAYER_INFINIBAND" 1,
    LINK_LAYER_ETHERNET: u8 = "IBV_LINK_LAYER_ETHERNET" 2,

    /// The device has no atomics.
    ATOMIC_NONE: c_int = "IBV_ATOMIC_NONE" 0,
    /// Atomic among the ops of this device.
    ATOMIC_HCA: c_int = "IBV_ATOMIC_HCA" 1,
    ATOMIC_GLOB: c_int = "IBV_ATOMIC_GLOB" 2,

    EVENT_CQ_ERR: c_int = "IBV_EVENT_CQ_ERR" 0,
    EVENT_QP_FATAL: c_int = "IBV_EVENT_QP_FATAL" 1,
    /// A peer asked what it may not.
    EVENT_QP_REQ_ERR: c_int = "IBV_EVENT_QP_REQ_ERR" 2,
    /// A peer touched what it may not.
    EVENT_QP_ACCESS_ERR: c_int = "IBV_EVENT_QP_ACCESS_ERR" 3,
    /// The first packet has come.
    EVENT_COMM_EST: c_int = "IBV_EVENT_COMM_EST" 4,
    EVENT_DEVICE_FATAL: c_int = "IBV_EVENT_DEVICE_FATAL" 8,
    EVENT_PORT_ACTIVE: c_int = "IBV_EVENT_PORT_ACTIVE" 9,
    EVENT_PORT_ERR: c_int = "IBV_EVENT_PORT_ERR" 10,
    /// A port got another LID.
    EVENT_LID_CHANGE: c_int = "IBV_EVENT_LID_CHANGE" 11,
    /// A port got another table of partitions.
    EVENT_PKEY_CHANGE: c_int = "IBV_EVENT_PKEY_CHANGE" 12,
    /// A port got another table of GIDs.
    EVENT_GID_CHANGE: c_int = "IBV_EVENT_GID_CHANGE" 18,
}
