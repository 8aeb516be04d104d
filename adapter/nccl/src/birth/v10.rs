//! Born in v10: profilers, and a configuration of each connection.

use super::{call, v6, v9};
use crate::abi::table::Pointer;
use crate::abi::{CommConfig, DeviceHandle, Logger, ProfilerCallback, Rc, result};
use crate::net::comm::Request;
use crate::net::profile;
use core::ffi::c_int;

/// Opens the plugin.
pub unsafe extern "C" fn init(logger: Option<Logger>, profiler: Option<ProfilerCallback>) -> Rc {
    profile::set(profiler);
    // SAFETY: the same contract.
    unsafe { v6::init(logger) }
}

/// Connects to a listener.
pub unsafe extern "C" fn connect(
    device: c_int,
    config: *const CommConfig,
    handle: Pointer,
    out: *mut Pointer,
    _unpacks: *mut *mut DeviceHandle,
) -> Rc {
    // SAFETY: this function's contract is that of the calls.
    call(|| unsafe { v6::connect_of(0, device, traffic_class(config), handle, out) })
}

/// The traffic class that a communicator's user wants, if any.
///
/// # Safety
/// - `config` is NULL or valid for reads.
pub(super) unsafe fn traffic_class(config: *const CommConfig) -> Option<c_int> {
    // SAFETY: by this function's contract.
    let config = unsafe { config.as_ref() }?;
    (config.traffic_class >= 0).then_some(config.traffic_class)
}

/// Sends a message.
#[allow(clippy::too_many_arguments)] // NCCL's
pub unsafe extern "C" fn isend(
    of: Pointer,
    data: Pointer,
    size: usize,
    tag: c_int,
    handle: Pointer,
    parent: Pointer,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: the same contract.
    let rc = unsafe { v9::isend(of, data, size, tag, handle, out) };
    if !parent.is_null() && rc == result::SUCCESS {
        // SAFETY: sent, so `out` was written; `parent` is the profiler's.
        unsafe { profiled(*out, parent, true, size) };
    }
    rc
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
    parents: *mut Pointer,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: the same contract.
    let rc = unsafe { v9::irecv(of, count, data, sizes, tags, handles, out) };
    if parents.is_null() || rc != result::SUCCESS {
        return rc;
    }
    for at in 0..count as usize {
        // SAFETY: received, so `count` was sound and `out` was written; the arrays have `count`
        // entries.
        let (parent, size) = unsafe { (*parents.add(at), *sizes.add(at)) };
        if !parent.is_null() {
            // SAFETY: as above; `parent` is the profiler's.
            unsafe { profiled(*out, parent, false, size) };
        }
    }
    rc
}

/// Begins an event, where a request was made.
///
/// # Safety
/// - `request` is NULL or was given by isend or irecv just now, `parent` is the profiler's.
#[inline]
unsafe fn profiled(request: Pointer, parent: Pointer, is_send: bool, bytes: usize) {
    // SAFETY: NULL or a request by this function's contract.
    if let Some(request) = unsafe { request.cast::<Request>().as_ref() } {
        // SAFETY: by this function's contract.
        unsafe { request.spans().begin(parent, is_send, bytes as u64) };
    }
}
