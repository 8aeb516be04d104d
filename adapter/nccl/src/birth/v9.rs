//! Born in v9: messages of any length, devices of several.

use super::v6::{self, COMMS_MAX, LATENCY_US, RECVS_MAX};
use super::v7::{DEVICE_TYPE_HOST, DEVICE_VERSION_NONE};
use super::v8::REG_IS_GLOBAL;
use super::{Group, call, memory, size_bytes, write};
use crate::abi::props::PropsV9;
use crate::abi::table::Pointer;
use crate::abi::{NET_BYTES_MAX, Rc, VPropsV9};
use crate::net::{self, Fault};
use core::ffi::c_int;
use core::ptr::null;
use crosstie::transport::Outgoing;

/// Nothing is received into GPU memory.
pub const FORCE_FLUSH: c_int = 0;

/// What a device is; v10 has the same.
pub unsafe extern "C" fn get_properties(number: c_int, out: *mut PropsV9) -> Rc {
    call(|| {
        let (_, device) = net::device(number)?;
        let (count, devices) = device.members.array();
        let props = PropsV9 {
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
        };
        // SAFETY: NULL, or properties of NCCL's.
        unsafe { write(out, props) }
    })
}

/// Makes one device of several.
pub unsafe extern "C" fn make_v_device(out: *mut c_int, props: *mut VPropsV9) -> Rc {
    call(|| {
        // SAFETY: NULL, or NCCL's.
        let props = unsafe { props.as_ref() }.ok_or(Fault::Argument)?;
        // SAFETY: NULL, or an `int` of NCCL's.
        unsafe { write_fused(out, props.count, &props.devices) }
    })
}

/// Makes one device of the first `count` of `devices`.
///
/// # Safety
/// - `out` is NULL, or valid for a write.
pub(super) unsafe fn write_fused(
    out: *mut c_int,
    count: c_int,
    devices: &[c_int],
) -> Result<(), Fault> {
    let members = usize::try_from(count).ok().and_then(|count| devices.get(..count));
    if out.is_null() {
        return Err(Fault::Argument);
    }
    let number = net::fuse(members.ok_or(Fault::Argument)?)?;
    // SAFETY: by this function's contract.
    unsafe { write(out, number) }
}

/// Sends a message.
pub unsafe extern "C" fn isend(
    of: Pointer,
    data: Pointer,
    size: usize,
    tag: c_int,
    handle: Pointer,
    out: *mut Pointer,
) -> Rc {
    call(|| {
        let (address, length) = (data as u64, size as u64);
        let message = Outgoing { region: memory(handle), address, length, tag };
        // SAFETY: this function's contract is that of the call.
        unsafe { v6::send(of, Ok(message), out) }
    })
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
    out: *mut Pointer,
) -> Rc {
    call(|| {
        // SAFETY: NCCL's arrays have `count` entries.
        let group = unsafe { Group::read(count, (data, sizes), (tags, handles), size_bytes) };
        // SAFETY: this function's contract is that of the call.
        unsafe { v6::receive(of, group, out) }
    })
}
