//! Born in v12: devices of up to eight, rails and planes.

use super::v6::{COMMS_MAX, LATENCY_US, RECVS_MAX};
use super::v7::{DEVICE_TYPE_HOST, DEVICE_VERSION_NONE};
use super::v8::REG_IS_GLOBAL;
use super::v9::{FORCE_FLUSH, write_fused};
use super::v11::MULTI_REQUEST_MAX;
use super::{call, write};
use crate::abi::props::PropsV12;
use crate::abi::{NET_BYTES_MAX, Rc, UNDEFINED, VPropsV12};
use crate::net::{self, Fault};
use core::ffi::c_int;
use core::ptr::null;

/// Makes one device of up to eight.
pub unsafe extern "C" fn make_v_device(out: *mut c_int, props: *mut VPropsV12) -> Rc {
    call(|| {
        // SAFETY: NULL, or NCCL's.
        let props = unsafe { props.as_ref() }.ok_or(Fault::Argument)?;
        // SAFETY: NULL, or an `int` of NCCL's.
        unsafe { write_fused(out, props.count, &props.devices) }
    })
}

/// What a device is.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV12) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let (count, devices) = device.members.array();
        let props = PropsV12 {
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
            v_props: VPropsV12 { count, devices },
            max_p2p_bytes: NET_BYTES_MAX,
            max_coll_bytes: NET_BYTES_MAX,
            max_multi_request_size: MULTI_REQUEST_MAX,
            rail_id: device.cabling.rail.unwrap_or(UNDEFINED),
            plane_id: device.cabling.plane.unwrap_or(UNDEFINED),
        };
        // SAFETY: NULL, or properties of NCCL's.
        unsafe { write(out, props) }
    })
}
