//! Devices: what an endpoint can be opened on.

use crate::guard;
use crate::result::xtie_result;
use crate::result::xtie_result::*;
use crate::structs::{Sized32, write};
use core::ffi::{c_char, c_int};
use crosstie::host::device::{DEVICES, DeviceKind, properties};

/// Kind of device: processes of one host, through shared memory alone.
pub const XTIE_DEVICE_SHARED_MEMORY: u32 = 1;
/// Kind of device: an endpoint that reaches only itself, for tests and measurements.
pub const XTIE_DEVICE_LOOPBACK: u32 = 2;
/// Kind of device: processes of every host, of this one through shared memory, of others over TCP.
pub const XTIE_DEVICE_HOST: u32 = 3;
/// Kind of device: processes of every host, over TCP alone.
pub const XTIE_DEVICE_TCP: u32 = 4;

/// What is known of a device. Set struct_size before xtie_device_properties_get.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct xtie_device_properties {
    /// sizeof(xtie_device_properties).
    pub struct_size: u32,
    /// One of XTIE_DEVICE_.
    pub kind: u32,
    /// 1: this host has what it needs; 0: not, and the remark says why. Settings that an open would
    /// refuse are named by that, and by `crosstie info`.
    pub available: u32,
    /// A rough bandwidth in Mbit/s.
    pub speed_mbps: u32,
    /// Most receives in one call of xtie_connection_irecv.
    pub group_max: u32,
    /// Zero.
    pub reserved: u32,
    /// Its name, such as "host0".
    pub name: [c_char; 32],
    /// What it reaches.
    pub description: [c_char; 96],
    /// What is missing, or an empty string.
    pub remark: [c_char; 128],
}

// SAFETY: integers without padding (24 bytes, then characters); the ABI snapshot has the offsets.
unsafe impl Sized32 for xtie_device_properties {}

/// ---- Device ------------------------------------------------------------------------------------
///
/// How many devices there are. Their numbers, 0 to count - 1, are the same in every process of
/// this version; 0 is the device that reaches the most.
///
/// Threads: any. Cost: none.
#[unsafe(no_mangle)]
pub extern "C" fn xtie_device_count() -> u32 {
    DEVICES.len() as u32
}

/// What is known of a device.
///
/// device: its number.
/// properties_out: with struct_size set; the rest is filled.
/// Results: XTIE_OK, XTIE_ERR_NULL, XTIE_ERR_STRUCT_SIZE, XTIE_ERR_DEVICE.
/// Threads: any. Cost: control path; may look at the system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtie_device_properties_get(
    device: u32,
    properties_out: *mut xtie_device_properties,
) -> c_int {
    guard::free(|| {
        let Some(kind) = kind_of(device) else { return XTIE_ERR_DEVICE };
        let known = properties(kind);
        let value = xtie_device_properties {
            struct_size: 0,
            kind: match kind {
                DeviceKind::Host => XTIE_DEVICE_HOST,
                DeviceKind::SharedMemory => XTIE_DEVICE_SHARED_MEMORY,
                DeviceKind::Tcp => XTIE_DEVICE_TCP,
                DeviceKind::Loopback => XTIE_DEVICE_LOOPBACK,
            },
            available: u32::from(known.available),
            speed_mbps: known.speed_mbps,
            group_max: known.group_max,
            reserved: 0,
            name: characters(known.name),
            description: characters(known.description),
            remark: characters(known.remark),
        };
        // SAFETY: null, or a structure whose size its first word says (crosstie.h).
        match unsafe { write(properties_out, &value) } {
            Ok(()) => XTIE_OK,
            Err(result) => result,
        }
    })
}

/// The device of a number.
pub(crate) fn kind_of(device: u32) -> Option<DeviceKind> {
    DEVICES.get(device as usize).copied()
}

/// The device of a number, as the C functions report its absence.
pub(crate) fn kind_or_error(device: u32) -> Result<DeviceKind, xtie_result> {
    kind_of(device).ok_or(XTIE_ERR_DEVICE)
}

/// Text as a zero-padded array; what does not fit is cut.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}
