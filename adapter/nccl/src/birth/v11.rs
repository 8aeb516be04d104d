//! Born in v11: a context for each communicator, and its end.

use super::v6::{self, COMMS_MAX, LATENCY_US, RECVS_MAX};
use super::v7::{DEVICE_TYPE_HOST, DEVICE_VERSION_NONE};
use super::v8::REG_IS_GLOBAL;
use super::v9::FORCE_FLUSH;
use super::v10::traffic_class;
use super::{call, named, number, write};
use crate::abi::props::PropsV11;
use crate::abi::table::Pointer;
use crate::abi::{
    CommConfig, DeviceHandle, Logger, NET_BYTES_MAX, NetAttr, ProfilerCallback, Rc, VPropsV9,
    result,
};
use crate::net::{self, Fault, profile};
use core::ffi::c_int;
use core::ptr::null;

/// Messages that one request may have; NCCL does not look.
pub const MULTI_REQUEST_MAX: c_int = 1;

/// Opens a communicator's context.
pub unsafe extern "C" fn init(
    out: *mut Pointer,
    _communicator: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
    profiler: Option<ProfilerCallback>,
) -> Rc {
    call(|| {
        profile::set(profiler);
        if out.is_null() {
            return Err(Fault::Argument);
        }
        // SAFETY: NULL, or NCCL's.
        let traffic_class = unsafe { traffic_class(config) };
        let context = net::context_open(logger, traffic_class)?;
        // SAFETY: not NULL, so NCCL's place for it.
        unsafe { write(out, named(context)) }
    })
}

/// What a device is.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV11) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let (count, devices) = device.members.array();
        let props = PropsV11 {
            name: device.name.as_ptr(),
            pci_path: device.pci_path.map_or(null(), |path| path.as_ptr()),
            guid: device.guid,
            ptr_support: super::pointers(device),
            reg_is_global: REG_IS_GLOBAL,
            force_flush: FORCE_FLUSH,
            speed: crate::cuda::speed_mbps(device),
            port: device.port,
            latency: LATENCY_US,
            max_comms: COMMS_MAX,
            max_recvs: RECVS_MAX,
            net_device_type: DEVICE_TYPE_HOST,
            net_device_version: DEVICE_VERSION_NONE,
            v_props: VPropsV9 { count, devices },
            max_p2p_bytes: NET_BYTES_MAX,
            max_coll_bytes: NET_BYTES_MAX,
            max_multi_request_size: MULTI_REQUEST_MAX,
        };
        // SAFETY: NULL, or properties of NCCL's.
        unsafe { write(out, props) }
    })
}

/// Opens a listener.
pub unsafe extern "C" fn listen(
    context: Pointer,
    device: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { v6::listen_of(number(context), device, handle, out) })
}

/// Connects to a listener.
pub unsafe extern "C" fn connect(
    context: Pointer,
    device: c_int,
    handle: Pointer,
    out: *mut Pointer,
    _unpacks: *mut *mut DeviceHandle,
) -> Rc {
    // SAFETY: this function's contract is that of the call.
    call(|| unsafe { v6::connect_of(number(context), device, None, handle, out) })
}

/// Takes hints, which are for networks that are shared out: those of a socket are not.
pub unsafe extern "C" fn set_net_attr(_context: Pointer, _hints: *mut NetAttr) -> Rc {
    result::SUCCESS
}

/// Ends a communicator's context.
pub unsafe extern "C" fn finalize(context: Pointer) -> Rc {
    call(|| net::context_close(number(context)))
}
