//! Numbers of libfabric's headers that we use.

use super::layout::Fact;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr, $c:literal;)*) => {
        $($(#[$doc])* #[allow(missing_docs)] pub const $name: $ty = $value;)*

        /// What a C compiler must say of each.
        pub const FACTS: &[Fact] =
            &[$(Fact { expression: $c, value: $name as u64 }),*];
    };
}

/// As `FI_VERSION`.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

numbers! {
    /// What is asked for of a library that knows it. Between 1.17 and this nothing of ours grew; of
    /// less `efa` takes its own way without the device's reads and writes.
    API: u32 = version(1, 18), "FI_VERSION(1, 18)";
    MSG: u64 = 1 << 1, "FI_MSG";
    RMA: u64 = 1 << 2, "FI_RMA";
    ATOMIC: u64 = 1 << 4, "FI_ATOMIC";
    HMEM: u64 = 1 << 47, "FI_HMEM";
    /// Such a device is one of CUDA.
    HMEM_CUDA: i32 = 1, "FI_HMEM_CUDA";
    READ: u64 = 1 << 8, "FI_READ";
    WRITE: u64 = 1 << 9, "FI_WRITE";
    RECV: u64 = 1 << 10, "FI_RECV";
    SEND: u64 = 1 << 11, "FI_SEND";
    REMOTE_READ: u64 = 1 << 12, "FI_REMOTE_READ";
    REMOTE_WRITE: u64 = 1 << 13, "FI_REMOTE_WRITE";
    /// A word of the peer's came with it.
    REMOTE_CQ_DATA: u64 = 1 << 17, "FI_REMOTE_CQ_DATA";
    COMPLETION: u64 = 1 << 24, "FI_COMPLETION";
    /// It comes when the bytes are in the peer's memory.
    DELIVERY_COMPLETE: u64 = 1 << 28, "FI_DELIVERY_COMPLETE";
    /// The library keeps 32 bytes of each op's context.
    CONTEXT: u64 = 1 << 59, "FI_CONTEXT";
    /// 64 bytes.
    CONTEXT2: u64 = 1 << 52, "FI_CONTEXT2";
    /// A word that comes in takes a receive.
    RX_CQ_DATA: u64 = 1 << 56, "FI_RX_CQ_DATA";
    /// Local memory is registered too.
    MR_LOCAL: i32 = 1 << 2, "FI_MR_LOCAL";
    /// Peers name memory by address.
    MR_VIRT_ADDR: i32 = 1 << 4, "FI_MR_VIRT_ADDR";
    /// Memory exists when it is registered.
    MR_ALLOCATED: i32 = 1 << 5, "FI_MR_ALLOCATED";
    MR_PROV_KEY: i32 = 1 << 6, "FI_MR_PROV_KEY";
    /// A registration belongs to an endpoint.
    MR_ENDPOINT: i32 = 1 << 9, "FI_MR_ENDPOINT";
    /// Memory of devices is registered, and named by every op.
    MR_HMEM: i32 = 1 << 10, "FI_MR_HMEM";
    /// An address of a socket's, whose family says of which kind.
    SOCKADDR: u32 = 1, "FI_SOCKADDR";
    /// One of IPv4.
    SOCKADDR_IN: u32 = 2, "FI_SOCKADDR_IN";
    /// One of IPv6.
    SOCKADDR_IN6: u32 = 3, "FI_SOCKADDR_IN6";
    EP_UNSPEC: i32 = 0, "FI_EP_UNSPEC";
    EP_RDM: i32 = 3, "FI_EP_RDM";
    /// Its receives are those of others too.
    SHARED_CONTEXT: usize = usize::MAX, "FI_SHARED_CONTEXT";
    /// Whoever offers says which threads may call.
    THREAD_UNSPEC: i32 = 0, "FI_THREAD_UNSPEC";
    THREAD_SAFE: i32 = 1, "FI_THREAD_SAFE";
    /// One at an object at a time.
    THREAD_FID: i32 = 2, "FI_THREAD_FID";
    THREAD_DOMAIN: i32 = 3, "FI_THREAD_DOMAIN";
    /// One at a completion queue and its endpoints at a time.
    THREAD_COMPLETION: i32 = 4, "FI_THREAD_COMPLETION";
    /// One at an endpoint at a time.
    THREAD_ENDPOINT: i32 = 5, "FI_THREAD_ENDPOINT";
    /// Data moves on without us.
    PROGRESS_AUTO: i32 = 1, "FI_PROGRESS_AUTO";
    /// Data moves on when we poll.
    PROGRESS_MANUAL: i32 = 2, "FI_PROGRESS_MANUAL";
    /// It holds us off before it runs over.
    RM_ENABLED: i32 = 2, "FI_RM_ENABLED";
    ORDER_RAR: u64 = 1 << 0, "FI_ORDER_RAR";
    ORDER_RAW: u64 = 1 << 1, "FI_ORDER_RAW";
    ORDER_RAS: u64 = 1 << 2, "FI_ORDER_RAS";
    ORDER_WAR: u64 = 1 << 3, "FI_ORDER_WAR";
    ORDER_WAW: u64 = 1 << 4, "FI_ORDER_WAW";
    ORDER_WAS: u64 = 1 << 5, "FI_ORDER_WAS";
    ORDER_SAR: u64 = 1 << 6, "FI_ORDER_SAR";
    ORDER_SAW: u64 = 1 << 7, "FI_ORDER_SAW";
    ORDER_SAS: u64 = 1 << 8, "FI_ORDER_SAS";
    CQ_FORMAT_DATA: i32 = 3, "FI_CQ_FORMAT_DATA";
    WAIT_NONE: i32 = 0, "FI_WAIT_NONE";
    AV_TABLE: i32 = 2, "FI_AV_TABLE";
    /// Of `control`.
    ENABLE: i32 = 6, "FI_ENABLE";
    ADDR_UNSPEC: u64 = u64::MAX, "FI_ADDR_UNSPEC";
    /// 64 bits.
    UINT64: i32 = 7, "FI_UINT64";
    SUM: i32 = 2, "FI_SUM";
    EAGAIN: i32 = libc::EAGAIN, "FI_EAGAIN";
    EAVAIL: i32 = 259, "FI_EAVAIL";
    /// Flags of a call are not for this provider.
    EBADFLAGS: i32 = 260, "FI_EBADFLAGS";
    OPT_ENDPOINT: i32 = 0, "FI_OPT_ENDPOINT";
    /// Whether it may go by memory that a host's processes share. Named so since 1.21; older
    /// libraries have no option of that number.
    OPT_SHARED_MEMORY_PERMITTED: i32 = 11, "FI_OPT_XPU_TRIGGER + 2";
    ENODATA: i32 = libc::ENODATA, "FI_ENODATA";
    ECANCELED: i32 = libc::ECANCELED, "FI_ECANCELED";
}
