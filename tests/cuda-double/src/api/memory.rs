//! Memory that the driver allocates and maps by itself.

use crate::backing::{self, Backing, Maker};
use crate::codes::{Answer, Code, INVALID_VALUE, put};
use crate::context::{Context, current};
use crate::ranges::{self, Kind, all_may, ranges};
use crate::stream::{self, Operation};
use std::ffi::c_uint;
use std::sync::Arc;

/// Allocations are whole numbers of these.
const STEP_BYTES: usize = 512;
/// The flag of managed memory that any GPU may touch.
const ATTACH_GLOBAL: c_uint = 1;

/// Device memory at an address of its own.
fn allocate(kind: Kind, context: Context, bytes: usize) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = bytes.next_multiple_of(STEP_BYTES);
    let memory = Arc::new(Backing::new(context.device, bytes, Maker::Alloc, 0)?);
    let mut ranges = ranges();
    let start = ranges.space.take(bytes, 0)?;
    let owner = (kind != Kind::Pool).then_some(context);
    ranges.add(start, kind, owner, memory, all_may());
    Ok(start)
}

/// Frees memory of one kind at its first address.
fn free(start: u64, kinds: &[Kind]) -> Answer {
    let is_there = |ranges: &mut ranges::Ranges| {
        ranges.at(start).is_some_and(|range| kinds.contains(&range.kind))
    };
    if !is_there(&mut ranges()) {
        return Err(INVALID_VALUE);
    }
    // As the driver does it: a free waits for everything that the process's GPUs have.
    stream::drain_all();
    ranges::free(start);
    Ok(())
}

driver! {
    fn cuMemAlloc_v2(out: *mut u64, bytes: usize) {
        put(out, allocate(Kind::Alloc, current()?, bytes)?)
    }

    fn cuMemFree_v2(start: u64) {
        current()?;
        if start == 0 {
            return Ok(());
        }
        free(start, &[Kind::Alloc, Kind::Managed, Kind::Pool])
    }

    fn cuMemAllocManaged(out: *mut u64, bytes: usize, flags: c_uint) {
        let context = current()?;
        if flags != ATTACH_GLOBAL || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let memory = Backing::new(context.device, bytes, Maker::Alloc, 0)?;
        let start = memory.view() as u64;
        ranges().add(start, Kind::Managed, Some(context), Arc::new(memory), all_may());
        put(out, start)
    }

    fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: usize) {
        let stream = stream::find(stream, current()?)?;
        put(out, allocate(Kind::Pool, stream.context, bytes)?)
    }

    fn cuMemFreeAsync(start: u64, stream: usize) {
        let stream = stream::find(stream, current()?)?;
        let known = ranges().at(start).map(|range| range.kind);
        if !matches!(known, Some(Kind::Pool | Kind::Alloc)) {
            return Err(INVALID_VALUE);
        }
        stream.post(Operation::Free(start));
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let device = current()?.device;
        let limit = backing::limit(device);
        put(free, limit.saturating_sub(backing::used(device)))?;
        put(total, limit)
    }

    fn cuMemGetAddressRange_v2(start: *mut u64, bytes: *mut usize, address: u64) {
        current()?;
        let ranges = ranges();
        let range = ranges.find(address).ok_or(INVALID_VALUE)?;
        if !start.is_null() {
            put(start, range.start)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, range.bytes) }
    }
}
