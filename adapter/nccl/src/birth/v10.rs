//! Born in v10: profilers, and a configuration of each connection.

use super::{v6, v9};
use crate::abi::table::Pointer;
use crate::abi::{CommConfig, DeviceHandle, Logger, ProfilerCallback, Rc};
use core::ffi::c_int;

/// Opens the plugin.
pub unsafe extern "C" fn init(logger: Option<Logger>, _profiler: Option<ProfilerCallback>) -> Rc {
    // SAFETY: the same contract.
    unsafe { v6::init(logger) }
}

/// Connects to a listener.
pub unsafe extern "C" fn connect(
    device: c_int,
    _config: *const CommConfig,
    handle: Pointer,
    out: *mut Pointer,
    _unpacks: *mut *mut DeviceHandle,
) -> Rc {
    // SAFETY: the same contract.
    unsafe { v6::connect(device, handle, out) }
}

/// Sends a message.
#[allow(clippy::too_many_arguments)] // NCCL's
pub unsafe extern "C" fn isend(
    of: Pointer,
    data: Pointer,
    size: usize,
    tag: c_int,
    handle: Pointer,
    _profiled: Pointer,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: the same contract.
    unsafe { v9::isend(of, data, size, tag, handle, out) }
}

/// Receives a group of messages.
#[allow(clippy::too_many_arguments)] // NCCL's
pub unsafe extern "C" fn irecv(
    of: Pointer,
    count: c_int,
    data: *mut Pointer,
    sizes: *mut usize,
    tags: *mut c_int,
    handles: *mut Pointer,
    _profiled: *mut Pointer,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: the same contract.
    unsafe { v9::irecv(of, count, data, sizes, tags, handles, out) }
}
