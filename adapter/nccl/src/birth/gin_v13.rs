//! GIN, born in v13: several contexts, and properties of v12.

use super::gin_v11::{self, RECVS_MAX, context_made, count};
use super::{call, write};
use crate::abi::gin::ConfigV13;
use crate::abi::props::PropsV12;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, Logger, PTR_CUDA, PTR_HOST, Rc};
use crate::gin::{self, DEVICE_TYPE, Table};
use crate::net::Fault;
use core::ffi::c_int;
use crosstie::host::gin::{Config, Layout};

/// `netDeviceVersion` from NCCL 2.30.3 on.
pub const DEVICE_VERSION: c_int = 200;

/// Opens the plugin for a communicator. Where NCCL takes this table for one of RMA, it gets none.
pub unsafe extern "C" fn init(out: *mut Pointer, comm: u64, logger: Option<Logger>) -> Rc {
    if gin::is_asked_for_rma() {
        return Fault::Usage.code();
    }
    // SAFETY: this function's contract is that of the call.
    unsafe { gin_v11::init(out, comm, logger) }
}

/// How many devices there are.
pub unsafe extern "C" fn devices(out: *mut c_int) -> Rc {
    // SAFETY: NULL, or an `int` of NCCL's.
    call(|| unsafe { write(out, gin::device_count(Table::V13OrLater) as c_int) })
}

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
