//! Born in v8: memory of any length.

use super::v6::{self, COMMS_MAX, LATENCY_US, RECVS_MAX};
use super::v7::{DEVICE_TYPE_HOST, DEVICE_VERSION_NONE};
use super::{call, write};
use crate::abi::Rc;
use crate::abi::props::PropsV8;
use crate::abi::table::Pointer;
use crate::net;
use core::ffi::c_int;
use core::ptr::null;

/// A registration holds for its connection alone.
pub const REG_IS_GLOBAL: c_int = 0;

/// What a device is.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV8) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let props = PropsV8 {
            name: device.name.as_ptr(),
            pci_path: device.pci_path.map_or(null(), |path| path.as_ptr()),
            guid: device.guid,
            ptr_support: super::pointers(device),
            reg_is_global: REG_IS_GLOBAL,
            speed: crate::cuda::speed_mbps(device),
            port: device.port,
            latency: LATENCY_US,
            max_comms: COMMS_MAX,
            max_recvs: RECVS_MAX,
            net_device_type: DEVICE_TYPE_HOST,
            net_device_version: DEVICE_VERSION_NONE,
        };
        // SAFETY: NULL, or properties of NCCL's.
        unsafe { write(out, props) }
    })
}

/// Registers memory.
pub unsafe extern "C" fn reg_mr(
    of: Pointer,
    data: Pointer,
    size: usize,
    kind: c_int,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { v6::register(of, data, size, (kind, None), out) })
}
