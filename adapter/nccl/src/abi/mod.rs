//! What NCCL's headers call `ncclNet_vN_t` and the like, in our own words: constants, small
//! structures, properties ([`props`]) and tables ([`table`]). Each layout is asserted against the
//! numbers that were measured with NCCL's headers, never against our own structures.

pub mod gin;
pub mod props;
pub mod rma;
pub mod table;
pub mod tuner;

use core::ffi::{c_char, c_int, c_ulong, c_void};

/// What every function returns; see [`result`].
pub type Rc = c_int;

/// Values of `ncclResult_t`.
pub mod result {
    use super::Rc;

    /// It worked, or nothing is there yet.
    pub const SUCCESS: Rc = 0;
    /// The operating system refused.
    pub const SYSTEM: Rc = 2;
    /// A bug, or a limit of this library.
    pub const INTERNAL: Rc = 3;
    /// An argument is wrong.
    pub const ARGUMENT: Rc = 4;
    /// The application did what it must not.
    pub const USAGE: Rc = 5;
    /// The peer, or the way to it, failed.
    pub const REMOTE: Rc = 6;
}

/// Length of a listen handle in bytes: `NCCL_NET_HANDLE_MAXSIZE`.
pub const HANDLE_BYTES_MAX: usize = 128;
/// `NCCL_PTR_HOST`: memory of the host.
pub const PTR_HOST: c_int = 1;
/// `NCCL_PTR_CUDA`: memory of GPUs.
pub const PTR_CUDA: c_int = 2;
/// `NCCL_PTR_DMABUF`, in properties alone: memory of GPUs may come with a dma-buf.
pub const PTR_DMABUF: c_int = 4;
/// `NCCL_MAX_NET_SIZE_BYTES`: the most that `maxP2pBytes` and `maxCollBytes` may say.
pub const NET_BYTES_MAX: usize = 1 << 40;
/// An id that is not known.
pub const UNDEFINED: i16 = -1;

/// Levels of the logger: `ncclDebugLogLevel`.
pub mod level {
    use super::c_int;

    /// A warning, which NCCL also keeps as its last error.
    pub const WARN: c_int = 2;
    /// What is going on.
    pub const INFO: c_int = 3;
}

/// Subsystems of the logger, one bit each.
pub mod subsystem {
    use super::c_ulong;

    /// Start-up.
    pub const INIT: c_ulong = 0x1;
    /// Networks.
    pub const NET: c_ulong = 0x10;
    /// All: what NCCL's own warnings have, so that no choice of subsystems hides them.
    pub const ALL: c_ulong = c_ulong::MAX;
}

/// NCCL's log function, with a format as `printf` has it.
pub type Logger = unsafe extern "C" fn(
    level: c_int,
    subsystems: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);

/// NCCL's profiler function, from v10 on.
pub type ProfilerCallback = unsafe extern "C" fn(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    plugin: i64,
    data: *mut c_void,
) -> Rc;

/// Text of static life in a table.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The text.
    pub const fn new(text: &'static core::ffi::CStr) -> Text {
        Text(text.as_ptr())
    }
}

// SAFETY: a pointer to text that is never written or freed.
unsafe impl Sync for Text {}

/// `ncclNetDeviceHandle`, the same from v7 to v12. Only passed by: NCCL host networks write none.
#[repr(C)]
pub struct DeviceHandle {
    /// Where messages are unpacked.
    pub device_type: c_int,
    /// Which version of that.
    pub device_version: c_int,
    /// The device's own.
    pub handle: *mut c_void,
    /// Length of what it names.
    pub size: usize,
    /// Whether the host must make progress.
    pub needs_proxy_progress: c_int,
}

/// `ncclNetCommConfig`, v10 to v12.
#[repr(C)]
pub struct CommConfig {
    /// −1: undefined.
    pub traffic_class: c_int,
}

/// `ncclNetVDeviceProps`, v9 to v11.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct VPropsV9 {
    /// How many of `devices` count.
    pub count: c_int,
    /// Members of the device.
    pub devices: [c_int; 4],
}

/// `ncclNetVDeviceProps`, v12.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct VPropsV12 {
    /// How many of `devices` count.
    pub count: c_int,
    /// Members of the device.
    pub devices: [c_int; 8],
}

/// `ncclNetCommAttr`, v11 and v12.
#[repr(C)]
pub struct CommAttr {
    /// −1: undefined, as the others.
    pub concurrent_peers_max: c_int,
    /// Fewest at a time.
    pub concurrent_peers_min: c_int,
    /// Most flows to a peer.
    pub flows_per_peer_max: c_int,
    /// Fewest.
    pub flows_per_peer_min: c_int,
}

/// `ncclNetAttr`, v11 and v12.
#[repr(C)]
pub struct NetAttr {
    /// Of sends.
    pub send: CommAttr,
    /// Of receives.
    pub receive: CommAttr,
    /// Collectives, a bit each.
    pub operation: u32,
    /// Algorithms, a bit each.
    pub algorithm: u32,
    /// Protocols, a bit each.
    pub protocol: u32,
}

/// Asserts a structure's size and alignment, and the offsets of its fields, all in bytes.
macro_rules! layout {
    ($type:ty, $size:literal / $align:literal, $($field:ident $offset:literal),+ $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            assert!(core::mem::align_of::<$type>() == $align);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)+
        };
    };
}
pub(crate) use layout;

layout!(DeviceHandle, 32 / 8, device_type 0, device_version 4, handle 8, size 16,
    needs_proxy_progress 24);
layout!(CommConfig, 4 / 4, traffic_class 0);
layout!(VPropsV9, 20 / 4, count 0, devices 4);
layout!(VPropsV12, 36 / 4, count 0, devices 4);
layout!(CommAttr, 16 / 4, concurrent_peers_max 0, concurrent_peers_min 4, flows_per_peer_max 8,
    flows_per_peer_min 12);
layout!(NetAttr, 44 / 4, send 0, receive 16, operation 32, algorithm 36, protocol 40);
