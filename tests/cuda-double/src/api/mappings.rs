//! Memory that is mapped by hand: handles, address space, access, and descriptors for others.

use crate::attributes::has_dma_buf;
use crate::backing::{Backing, Maker};
use crate::codes::{
    Answer, INVALID_DEVICE, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN, put,
};
use crate::context::{current, device, ordinal};
use crate::ranges::{self, Kind, ranges};
use crate::settings::DEVICES_MAX;
use crate::space::GRANULARITY;
use crate::vmm;
use cudarc::driver::sys::{CUmemAccessDesc, CUmemAllocationProp};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;

/// Handle types.
const POSIX: u32 = 1;
const FABRIC: u32 = 8;
/// The only type of allocations.
const PINNED: u32 = 1;
/// The kind of a place that is a GPU.
const DEVICE: u32 = 1;
/// The kind of a handle of a range: a dma-buf.
const DMA_BUF: u32 = 1;
/// The step of a dma-buf's range.
const PAGE: u64 = 4096;

/// A place, with numbers that may be wrong.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Place {
    kind: u32,
    id: c_int,
}

/// What is wanted of an allocation, with numbers that may be wrong.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Wanted {
    kind: u32,
    handle_types: u32,
    place: Place,
    _metadata: *mut c_void,
    flags: [u8; 8],
}

/// What a GPU may do, with numbers that may be wrong.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Access {
    place: Place,
    flags: u32,
}

const _: () = assert!(size_of::<Wanted>() == size_of::<CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<CUmemAccessDesc>());

/// The GPU of a place, by its number in the host.
fn place(place: Place) -> Result<usize, u32> {
    if place.kind != DEVICE {
        return Err(NOT_SUPPORTED);
    }
    device(place.id)
}

/// Reads an input of a call.
fn read<T: Copy>(input: *const T) -> Result<T, u32> {
    if input.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: valid by the contract of every exported function.
    Ok(unsafe { input.read() })
}

/// Whole mappings that make up a range; none is cut.
fn whole(start: u64, bytes: usize) -> Result<Vec<ranges::Range>, u32> {
    let all = ranges().among(start, bytes);
    let mut at = start;
    for range in &all {
        if range.kind != Kind::Mapping || range.start != at {
            return Err(INVALID_VALUE);
        }
        at += range.bytes as u64;
    }
    if all.is_empty() || at != start + bytes as u64 { Err(INVALID_VALUE) } else { Ok(all) }
}

fn is_step(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}

fn set_access(start: u64, bytes: usize, wanted: &[Access]) -> Answer {
    let mappings = whole(start, bytes)?;
    let mut flags = Vec::new();
    for one in wanted {
        let device = place(one.place).map_err(|_| INVALID_VALUE)?;
        if !matches!(one.flags, 0 | 1 | 3) {
            return Err(INVALID_VALUE);
        }
        if !mappings.iter().all(|range| range.may_map(device)) {
            return Err(INVALID_DEVICE);
        }
        flags.push((device, one.flags as u8));
    }
    let mut ranges = ranges();
    for mapping in &mappings {
        let range = ranges.at(mapping.start).ok_or(INVALID_VALUE)?;
        flags.iter().for_each(|(device, flags)| range.access[*device] = *flags);
    }
    Ok(())
}

fn map(start: u64, bytes: usize, memory: Arc<Backing>) -> Answer {
    let mut ranges = ranges();
    let end = start.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
    let inside = ranges.reservation(start).is_some_and(|(at, room)| end <= at + room as u64);
    let is_free = ranges.among(start, bytes).is_empty();
    if !inside || !is_free || !start.is_multiple_of(GRANULARITY as u64) {
        return Err(INVALID_VALUE);
    }
    ranges.add(start, Kind::Mapping, None, memory, [0; DEVICES_MAX]);
    Ok(())
}

driver! {
    fn cuMemGetAllocationGranularity(out: *mut usize, wanted: *const Wanted, _option: u32) {
        place(read(wanted)?.place)?;
        put(out, GRANULARITY)
    }

    fn cuMemCreate(out: *mut u64, bytes: usize, wanted: *const Wanted, flags: u64) {
        let wanted = read(wanted)?;
        if flags != 0 || wanted.kind != PINNED || !is_step(bytes) {
            return Err(INVALID_VALUE);
        }
        if wanted.handle_types & FABRIC != 0 {
            return Err(NOT_PERMITTED);
        }
        if wanted.handle_types & !POSIX != 0 {
            return Err(NOT_SUPPORTED);
        }
        let device = place(wanted.place)?;
        let maker = Maker::Create { rdma: wanted.flags[1] == 1 };
        let memory = Backing::new(device, bytes, maker, wanted.handle_types)?;
        put(out, vmm::retain(Arc::new(memory)))
    }

    fn cuMemRelease(handle: u64) {
        vmm::release(handle)
    }

    fn cuMemRetainAllocationHandle(out: *mut u64, address: u64) {
        let memory = {
            let ranges = ranges();
            let range = ranges.find(address).filter(|range| range.kind == Kind::Mapping);
            range.ok_or(INVALID_VALUE)?.backing.clone()
        };
        put(out, vmm::retain(memory))
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: *mut Wanted, handle: u64) {
        let memory = vmm::find(handle)?;
        let id = memory.device().map_or(-2, ordinal);
        let place = Place { kind: DEVICE, id };
        let (_metadata, flags) = (std::ptr::null_mut(), [0; 8]);
        let handle_types = memory.handle_types();
        put(out, Wanted { kind: PINNED, handle_types, place, _metadata, flags })
    }

    fn cuMemExportToShareableHandle(out: *mut c_int, handle: u64, kind: u32, flags: u64) {
        let memory = vmm::find(handle)?;
        if flags != 0 || kind != POSIX || memory.handle_types() & POSIX == 0 || out.is_null() {
            return Err(INVALID_VALUE);
        }
        put(out, memory.export()?)
    }

    fn cuMemImportFromShareableHandle(out: *mut u64, descriptor: usize, kind: u32) {
        let descriptor = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
        if kind != POSIX || out.is_null() {
            return Err(INVALID_VALUE);
        }
        let memory = Backing::import(descriptor)?;
        if memory.maker() == Maker::Alloc {
            return Err(UNKNOWN);
        }
        put(out, vmm::retain(Arc::new(memory)))
    }

    fn cuMemAddressReserve(
        out: *mut u64, bytes: usize, alignment: usize, _wish: u64, flags: u64,
    ) {
        if flags != 0 || !is_step(bytes) || out.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut ranges = ranges();
        let start = ranges.space.take(bytes, alignment)?;
        ranges.reserved.insert(start, bytes);
        put(out, start)
    }

    fn cuMemAddressFree(start: u64, bytes: usize) {
        let mut ranges = ranges();
        if ranges.reserved.get(&start) != Some(&bytes) || !ranges.among(start, bytes).is_empty() {
            return Err(INVALID_VALUE);
        }
        ranges.reserved.remove(&start);
        ranges.space.give(start);
        Ok(())
    }

    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 || !is_step(bytes) {
            return Err(INVALID_VALUE);
        }
        let memory = vmm::find(handle)?;
        if offset != 0 || bytes != memory.bytes() {
            return Err(NOT_SUPPORTED);
        }
        map(start, bytes, memory)
    }

    fn cuMemUnmap(start: u64, bytes: usize) {
        let reserved = ranges().reservation(start);
        let end = start.saturating_add(bytes as u64);
        let is_reserved = reserved.is_some_and(|(at, room)| end <= at + room as u64);
        if is_reserved && ranges().among(start, bytes).is_empty() {
            return Ok(());
        }
        for mapping in whole(start, bytes)? {
            ranges::remove(mapping.start);
        }
        Ok(())
    }

    fn cuMemSetAccess(start: u64, bytes: usize, wanted: *const Access, count: usize) {
        if wanted.is_null() || count == 0 || count > DEVICES_MAX {
            return Err(INVALID_VALUE);
        }
        // SAFETY: `count` descriptions of the caller's.
        set_access(start, bytes, unsafe { std::slice::from_raw_parts(wanted, count) })
    }

    fn cuMemGetAccess(out: *mut u64, where_: *const Place, address: u64) {
        let device = place(read(where_)?)?;
        let ranges = ranges();
        let range = ranges.find(address).filter(|range| range.kind == Kind::Mapping);
        put(out, u64::from(range.ok_or(INVALID_VALUE)?.access[device]))
    }

    fn cuMemGetHandleForAddressRange(
        out: *mut c_int, start: u64, bytes: usize, kind: u32, _flags: u64,
    ) {
        current()?;
        let end = start.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let is_page = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        if kind != DMA_BUF || bytes == 0 || !is_page {
            return Err(INVALID_VALUE);
        }
        let ranges = ranges();
        let range = ranges.find(start).ok_or(INVALID_VALUE)?;
        let is_host = matches!(range.kind, Kind::Host | Kind::Registered | Kind::Managed);
        if end > range.start + range.bytes as u64 || is_host {
            return Err(INVALID_VALUE);
        }
        if !range.backing.device().is_some_and(has_dma_buf) {
            return Err(NOT_SUPPORTED);
        }
        put(out, range.backing.dma_buf((start - range.start) as usize)?)
    }
}
