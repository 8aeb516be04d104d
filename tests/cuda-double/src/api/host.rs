//! Host memory that GPUs reach.

use crate::backing::Backing;
use crate::codes::{
    Answer, Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, put,
};
use crate::context::current;
use crate::ranges::{self, Kind, all_may, ranges};
use crate::space::is_device;
use crate::stream;
use std::ffi::c_uint;
use std::sync::Arc;

/// Flags of `cuMemHostRegister`: portable, mapped, I/O memory, read-only.
const FLAGS: c_uint = 1 | 2 | 4 | 8;
const READ_ONLY: c_uint = 8;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Whether the process may read a range, and write it.
fn is_accessible(start: u64, bytes: usize, writes: bool) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let (mut at, end) = (start, start + bytes as u64);
    for line in maps.lines() {
        let Some((from, rest)) = line.split_once('-') else { continue };
        let Some((to, rest)) = rest.split_once(' ') else { continue };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (from, to) = (number(from), number(to));
        let may = rest.starts_with(if writes { "rw" } else { "r" });
        if from <= at && at < to && may {
            at = to;
        }
    }
    at >= end
}

fn allocate(bytes: usize) -> Result<u64, Code> {
    let context = current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let memory = Arc::new(Backing::pinned(bytes)?);
    let start = memory.view() as u64;
    ranges().add(start, Kind::Host, Some(context), memory, all_may());
    Ok(start)
}

fn register(start: u64, bytes: usize, flags: c_uint) -> Answer {
    let context = current()?;
    if start == 0 || bytes == 0 || flags & !FLAGS != 0 || start.checked_add(bytes as u64).is_none()
    {
        return Err(INVALID_VALUE);
    }
    if is_device(start) || !is_accessible(start, bytes, flags & READ_ONLY == 0) {
        return Err(INVALID_VALUE);
    }
    let mut ranges = ranges();
    // A page is registered once, whoever has its other bytes.
    let (first, last) = (start & !(PAGE - 1), (start + bytes as u64).next_multiple_of(PAGE));
    if !ranges.among(first, (last - first) as usize).is_empty() {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    let memory = Arc::new(Backing::host(start as *mut u8, bytes));
    ranges.add(start, Kind::Registered, Some(context), memory, all_may());
    Ok(())
}

driver! {
    fn cuMemAllocHost_v2(out: *mut u64, bytes: usize) {
        put(out, allocate(bytes)?)
    }

    fn cuMemHostAlloc(out: *mut u64, bytes: usize, _flags: c_uint) {
        put(out, allocate(bytes)?)
    }

    fn cuMemFreeHost(start: u64) {
        current()?;
        if !ranges().at(start).is_some_and(|range| range.kind == Kind::Host) {
            return Err(INVALID_VALUE);
        }
        stream::drain_all();
        ranges::remove(start);
        Ok(())
    }

    fn cuMemHostRegister_v2(start: u64, bytes: usize, flags: c_uint) {
        register(start, bytes, flags)
    }

    fn cuMemHostUnregister(start: u64) {
        current()?;
        match ranges().find(start) {
            Some(range) if range.kind == Kind::Registered && range.start == start => {}
            Some(_) => return Err(INVALID_VALUE),
            None => return Err(HOST_MEMORY_NOT_REGISTERED),
        }
        ranges::remove(start);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(out: *mut u64, address: u64, flags: c_uint) {
        current()?;
        let ranges = ranges();
        let range = ranges.find(address).ok_or(INVALID_VALUE)?;
        if flags != 0 || !matches!(range.kind, Kind::Host | Kind::Registered) {
            return Err(INVALID_VALUE);
        }
        put(out, address)
    }
}
