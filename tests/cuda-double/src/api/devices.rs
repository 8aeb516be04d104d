//! Start, errors, GPUs and contexts.

use crate::attributes::attribute_of;
use crate::backing;
use crate::calls::{CAPTURE_MODE, RELAXED, calls};
use crate::codes::{
    self, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_UNSUPPORTED, put,
};
use crate::context::{self, contexts, current, device, named};
use crate::ranges;
use crate::settings::settings;
use crate::stream;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null;

/// CUDA 13.0.
const VERSION: c_int = 13_000;
/// Bytes of an id.
const UUID_BYTES: usize = 16;
/// The greatest priority, as the driver counts.
pub const PRIORITY_GREATEST: c_int = -5;

/// Writes a text with its end, as much as fits.
fn put_text(out: *mut c_char, length: c_int, text: &str) -> codes::Answer {
    let Ok(room @ 1..) = usize::try_from(length) else { return Err(INVALID_VALUE) };
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    for (at, byte) in bytes.iter().chain(&[0]).enumerate() {
        // SAFETY: `length` bytes of the caller's.
        unsafe { out.add(at).write(*byte as c_char) };
    }
    Ok(())
}

fn bus_of(device: usize) -> usize {
    0x10 + device
}

driver! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if settings().visible.is_empty() {
            return Err(NO_DEVICE);
        }
        calls().ready = true;
        Ok(())
    }

    fn cuDriverGetVersion(out: *mut c_int) {
        put(out, VERSION)
    }

    fn cuGetErrorName(code: u32, out: *mut *const c_char) {
        let name = codes::name(code);
        put(out, name.map_or(null(), |name| name.as_ptr()))?;
        if name.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuGetErrorString(code: u32, out: *mut *const c_char) {
        let name = codes::name(code);
        put(out, name.map_or(null(), |name| name.as_ptr()))?;
        if name.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuDeviceGetCount(out: *mut c_int) {
        put(out, settings().visible.len() as c_int)
    }

    fn cuDeviceGet(out: *mut c_int, ordinal: c_int) {
        device(ordinal)?;
        put(out, ordinal)
    }

    fn cuDeviceGetName(out: *mut c_char, length: c_int, ordinal: c_int) {
        put_text(out, length, &format!("CUDA double {}", device(ordinal)?))
    }

    fn cuDeviceGetPCIBusId(out: *mut c_char, length: c_int, ordinal: c_int) {
        put_text(out, length, &format!("0000:{:02X}:00.0", bus_of(device(ordinal)?)))
    }

    fn cuDeviceGetUuid_v2(out: *mut [u8; UUID_BYTES], ordinal: c_int) {
        let mut uuid = *b"\xc0\xdaDOUBLE\0\0\0\0\0\0\0\0";
        uuid[UUID_BYTES - 1] = device(ordinal)? as u8;
        put(out, uuid)
    }

    fn cuDeviceTotalMem_v2(out: *mut usize, ordinal: c_int) {
        put(out, backing::limit(device(ordinal)?))
    }

    fn cuDeviceGetAttribute(out: *mut c_int, attribute: u32, ordinal: c_int) {
        let device = device(ordinal)?;
        put(out, attribute_of(device, attribute, bus_of(device)).ok_or(INVALID_VALUE)?)
    }

    fn cuDeviceCanAccessPeer(out: *mut c_int, ordinal: c_int, peer: c_int) {
        let (from, to) = (device(ordinal)?, device(peer)?);
        let can = from != to && contexts().may_access(from, to);
        put(out, c_int::from(can))
    }

    fn cuDeviceGetP2PAttribute(out: *mut c_int, attribute: u32, from: c_int, to: c_int) {
        let (from, to) = (device(from)?, device(to)?);
        if from == to {
            return Err(INVALID_DEVICE);
        }
        let can = c_int::from(contexts().may_access(from, to));
        match attribute {
            1 => put(out, 1 - can),
            2..=4 => put(out, can),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuDevicePrimaryCtxRetain(out: *mut usize, ordinal: c_int) {
        let device = device(ordinal)?;
        put(out, contexts().retain(device))
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        let device = device(ordinal)?;
        contexts().release(device)
    }

    fn cuCtxCreate_v2(out: *mut usize, _flags: c_uint, ordinal: c_int) {
        let device = device(ordinal)?;
        let handle = contexts().create(device);
        put(out, handle)?;
        context::push(handle)
    }

    fn cuCtxDestroy_v2(handle: usize) {
        contexts().destroy(handle)?;
        ranges::free_of(handle);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(handle: usize) {
        context::push(handle)
    }

    fn cuCtxPopCurrent_v2(out: *mut usize) {
        let handle = context::pop()?;
        if out.is_null() { Ok(()) } else { put(out, handle) }
    }

    fn cuCtxSetCurrent(handle: usize) {
        context::set(handle)
    }

    fn cuCtxGetCurrent(out: *mut usize) {
        put(out, context::top())
    }

    fn cuCtxGetDevice(out: *mut c_int) {
        put(out, context::ordinal(named()?.device))
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        if !least.is_null() {
            put(least, 0)?;
        }
        if greatest.is_null() { Ok(()) } else { put(greatest, PRIORITY_GREATEST) }
    }

    fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) {
        let (own, peer) = (current()?, contexts().find(peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut contexts = contexts();
        if own.device == peer.device || !contexts.may_access(own.device, peer.device) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        match contexts.enable_peer(own.handle, peer.device) {
            true => Ok(()),
            false => Err(PEER_ACCESS_ALREADY_ENABLED),
        }
    }

    fn cuCtxSynchronize() {
        stream::drain(current()?)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: valid for a read, as for a write, by the function's contract.
        let wanted = unsafe { mode.read() };
        if wanted > RELAXED {
            return Err(INVALID_VALUE);
        }
        put(mode, CAPTURE_MODE.replace(wanted))
    }

}
