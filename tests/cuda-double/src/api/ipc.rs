//! Legacy handles: memory of `cuMemAlloc` in another process.
//!
//! A handle names the process, its descriptor of the memory, and the memory's inode. The importer
//! opens it below `/proc`, so the exporter must still live then.

use crate::backing::{Backing, Maker};
use crate::codes::{
    Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, PEER_ACCESS_UNSUPPORTED, put,
};
use crate::context::current;
use crate::ranges::{self, Kind, all_may, ranges};
use std::ffi::c_uint;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// The flag without which the driver opens nothing.
const LAZY: c_uint = 1;
/// What handles begin with.
const MARK: u64 = 0xcdad_0b1e_1bc0_0001;

/// A handle: 64 bytes, opaque to all but the driver.
#[repr(C)]
#[derive(Copy, Clone, Eq, PartialEq)]
pub struct Handle([u64; 8]);

/// Opens what a handle names. The memory has the inode that the exporter saw.
fn open(handle: Handle) -> Result<Backing, Code> {
    let [mark, process, descriptor, inode, ..] = handle.0;
    if mark != MARK {
        return Err(INVALID_VALUE);
    }
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path).map_err(|_| INVALID_HANDLE)?;
    if !file.metadata().is_ok_and(|about| about.ino() == inode) {
        return Err(INVALID_HANDLE);
    }
    let memory = Backing::import(file.as_raw_fd())?;
    if memory.maker() == Maker::Alloc { Ok(memory) } else { Err(INVALID_HANDLE) }
}

fn inode_of(memory: &Backing) -> Option<u64> {
    let path = format!("/proc/self/fd/{}", memory.file()?);
    std::fs::metadata(path).ok().map(|about| about.ino())
}

/// An import of the same memory in the same context, which is counted once more.
fn again(inode: u64, context: usize) -> Option<u64> {
    let mut ranges = ranges();
    let known = ranges.iter().find(|range| {
        let is_import = matches!(range.kind, Kind::Import(_));
        let same = range.context.is_some_and(|known| known.handle == context);
        is_import && same && inode_of(&range.backing) == Some(inode)
    });
    let start = known?.start;
    let range = ranges.at(start)?;
    if let Kind::Import(opened) = &mut range.kind {
        *opened += 1;
    }
    Some(start)
}

driver! {
    fn cuIpcGetMemHandle(out: *mut Handle, address: u64) {
        current()?;
        let ranges = ranges();
        let range = ranges.find(address).filter(|range| range.is_legacy()).ok_or(INVALID_VALUE)?;
        let memory = &range.backing;
        let file = memory.file().ok_or(INVALID_VALUE)?;
        let inode = inode_of(memory).ok_or(INVALID_VALUE)?;
        let process = u64::from(std::process::id());
        put(out, Handle([MARK, process, file as u64, inode, 0, 0, 0, 0]))
    }

    fn cuIpcOpenMemHandle_v2(out: *mut u64, handle: Handle, flags: c_uint) {
        let context = current()?;
        if flags != LAZY || out.is_null() {
            return Err(INVALID_VALUE);
        }
        if handle.0[1] == u64::from(std::process::id()) {
            return Err(INVALID_CONTEXT);
        }
        let memory = open(handle)?;
        if let Some(start) = again(handle.0[3], context.handle) {
            return put(out, start);
        }
        let owner = memory.device().ok_or(INVALID_VALUE)?;
        if !crate::context::contexts().may_access(context.device, owner) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let mut ranges = ranges();
        let start = ranges.space.take(memory.bytes(), 0)?;
        ranges.add(start, Kind::Import(1), Some(context), Arc::new(memory), all_may());
        put(out, start)
    }

    fn cuIpcCloseMemHandle(start: u64) {
        current()?;
        let is_last = match ranges().at(start).map(|range| &mut range.kind) {
            Some(Kind::Import(opened)) => {
                *opened -= 1;
                *opened == 0
            }
            _ => return Err(INVALID_VALUE),
        };
        if is_last {
            ranges::free(start);
        }
        Ok(())
    }
}
