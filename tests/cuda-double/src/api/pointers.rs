//! What the driver knows of an address.

use crate::codes::{Answer, Code, INVALID_VALUE, put};
use crate::context::{named, ordinal};
use crate::ranges::{Kind, Place, Range, Ranges, ranges};
use std::ffi::{c_int, c_uint, c_void};

/// The number of pool memory's pool.
const POOL: usize = 0x0900_1000;
/// Memory types: host, device.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// What is told of an address, by the size that the driver's interface gives it.
enum Told {
    Word(u32),
    Long(u64),
    Bool(bool),
}

fn put_told(out: *mut c_void, told: Told) -> Answer {
    match told {
        Told::Word(value) => put(out.cast(), value),
        Told::Long(value) => put(out.cast(), value),
        Told::Bool(value) => put(out.cast(), value),
    }
}

/// Nothing, as `cuPointerGetAttributes` says it of an address that it does not know.
fn nothing(attribute: u32) -> Result<Told, Code> {
    Ok(match attribute {
        2 | 16 => Told::Word(0),
        9 => Told::Word(-2_i32 as u32),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => Told::Long(0),
        6 | 8 | 10 | 13 | 15 => Told::Bool(false),
        _ => return Err(INVALID_VALUE),
    })
}

fn access_flags(range: &Range) -> u32 {
    match range.kind {
        // Read and write by all that may: the driver's number for that.
        Kind::Mapping => u32::from(*range.access.iter().max().unwrap_or(&0)),
        _ => 3,
    }
}

/// Whether the thread's GPU reaches it.
fn is_reachable(range: &Range) -> bool {
    let device = named().ok().map(|context| context.device);
    device.is_none_or(|device| range.access[device] != 0)
}

fn told(range: &Range, address: u64, attribute: u32) -> Result<Told, Code> {
    let is_device = matches!(range.place(), Place::Device(_));
    let is_managed = range.kind == Kind::Managed;
    let is_own = !matches!(range.kind, Kind::Pool | Kind::Managed);
    let is_rdma = is_device && is_own && range.backing.maker().is_rdma();
    let owner = range.backing.device().or(range.context.map(|context| context.device));
    Ok(match attribute {
        1 => Told::Long(range.context.map_or(0, |context| context.handle as u64)),
        2 => Told::Word(if is_device || is_managed { DEVICE } else { HOST }),
        3 if !is_reachable(range) => return Err(INVALID_VALUE),
        3 => Told::Long(address),
        4 if is_device => return Err(INVALID_VALUE),
        4 => Told::Long(address),
        6 => Told::Bool(false),
        7 => Told::Long(range.id),
        8 => Told::Bool(is_managed),
        9 => Told::Word(owner.map_or(-2, ordinal) as u32),
        10 => Told::Bool(range.is_legacy()),
        11 => Told::Long(range.start),
        12 => Told::Long(range.bytes as u64),
        13 => Told::Bool(true),
        14 => Told::Long(u64::from(range.backing.handle_types())),
        15 => Told::Bool(is_rdma),
        16 => Told::Word(access_flags(range)),
        17 => Told::Long(if range.kind == Kind::Pool { POOL as u64 } else { 0 }),
        _ => return Err(INVALID_VALUE),
    })
}

fn ask(ranges: &Ranges, address: u64, attribute: u32) -> Result<Told, Code> {
    // Address space without memory in it is unknown, too.
    told(ranges.find(address).ok_or(INVALID_VALUE)?, address, attribute)
}

driver! {
    fn cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: u64) {
        put_told(out, ask(&ranges(), address, attribute)?)
    }

    fn cuPointerGetAttributes(
        count: c_uint, attributes: *const u32, outs: *const *mut c_void, address: u64,
    ) {
        if attributes.is_null() || outs.is_null() {
            return Err(INVALID_VALUE);
        }
        let ranges = ranges();
        for at in 0..count as usize {
            // SAFETY: `count` of each, of the caller's.
            let (attribute, out) = unsafe { (attributes.add(at).read(), outs.add(at).read()) };
            let known = ask(&ranges, address, attribute);
            put_told(out, known.or_else(|_| nothing(attribute))?)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_int, attribute: u32, address: u64) {
        // Synchronous memory operations alone can be asked for; they are here in any case.
        let is_known = ranges().find(address).is_some_and(|range| range.backing.device().is_some());
        if value.is_null() || attribute != 6 || !is_known { Err(INVALID_VALUE) } else { Ok(()) }
    }
}
