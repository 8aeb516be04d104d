//! Born in v7: handles for devices that unpack messages, which is none of ours. NCCL's place for
//! them is never read or written: some callers pass NULL, and RCCL something else.

use super::v6::{self, COMMS_MAX, LATENCY_US, RECVS_MAX};
use super::{call, write};
use crate::abi::props::PropsV7;
use crate::abi::table::Pointer;
use crate::abi::{DeviceHandle, Rc};
use crate::net;
use core::ffi::c_int;
use core::ptr::null;

/// The host unpacks messages.
pub const DEVICE_TYPE_HOST: c_int = 0;
/// Of the host there is no version.
pub const DEVICE_VERSION_NONE: c_int = 0;

/// What a device is.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV7) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let props = PropsV7 {
            name: device.name.as_ptr(),
            pci_path: device.pci_path.map_or(null(), |path| path.as_ptr()),
            guid: device.guid,
            ptr_support: super::pointers(device),
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

/// Connects to a listener.
pub unsafe extern "C" fn connect(
    device: c_int,
    handle: Pointer,
    out: *mut Pointer,
    _unpacks: *mut *mut DeviceHandle,
) -> Rc {
    // SAFETY: the same contract.
    unsafe { v6::connect(device, handle, out) }
}

/// Takes a connection.
pub unsafe extern "C" fn accept(
    listener: Pointer,
    out: *mut Pointer,
    _unpacks: *mut *mut DeviceHandle,
) -> Rc {
    // SAFETY: the same contract.
    unsafe { v6::accept(listener, out) }
}
