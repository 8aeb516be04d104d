//! GIN, born in v13: several contexts, and properties of v12.

use super::call;
use super::gin_v11::{RECVS_MAX, context_made, count};
use crate::abi::gin::ConfigV13;
use crate::abi::props::PropsV12;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, PTR_CUDA, PTR_HOST, Rc};
use crate::gin::DEVICE_TYPE;
use crate::net::Fault;
use core::ffi::c_int;
use crosstie::host::gin::{Config, Layout};

/// `netDeviceVersion` from NCCL 2.30.3 on.
pub const DEVICE_VERSION: c_int = 200;

/// What a device is: that of the net tables, with memory of GPUs.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV12) -> Rc {
    // SAFETY: this function's contract is that of the call.
    let rc = unsafe { super::v12::get_properties(number, out) };
    // SAFETY: NULL, or properties of NCCL's, which the call has written where it succeeded.
    if let (0, Some(props)) = (rc, unsafe { out.as_mut() }) {
        props.ptr_support = PTR_HOST | PTR_CUDA;
        props.max_recvs = RECVS_MAX;
        props.net_device_type = DEVICE_TYPE;
        props.net_device_version = DEVICE_VERSION;
    }
    rc
}

/// A configuration of NCCL's.
pub fn config(of: &ConfigV13, layout: Layout) -> Config {
    Config {
        signals: count(of.signals),
        counters: count(of.counters),
        contexts: count(of.contexts),
        depth: count(of.queue_depth),
        layout,
    }
}

/// Makes contexts.
pub unsafe extern "C" fn create_context(
    of: Pointer,
    with: *const ConfigV13,
    out: *mut Pointer,
    handle: *mut *mut DeviceHandle,
) -> Rc {
    call(|| {
        // SAFETY: NULL, or a configuration of NCCL's.
        let with = unsafe { with.as_ref() }.ok_or(Fault::Argument)?;
        let config = config(with, Layout::Nccl30);
        // SAFETY: this function's contract is that of the call.
        unsafe { context_made(of, &config, DEVICE_VERSION, out, handle) }
    })
}
