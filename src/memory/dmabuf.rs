//! Buffers that devices share: what a descriptor of one is told by.

use core::mem::zeroed;
use std::os::fd::RawFd;

/// The kernel's number of the file system that such buffers lie in: DMA_BUF_MAGIC of
/// `linux/magic.h`, since Linux 5.3.
const FILE_SYSTEM: u64 = 0x444d_4142;

/// Bytes of the dma-buf that a descriptor stands for; `None`: it is of something else, or not open.
pub fn bytes_of(descriptor: RawFd) -> Option<u64> {
    // SAFETY: a plain structure of numbers, for which zero is a value.
    let mut system: libc::statfs = unsafe { zeroed() };
    // SAFETY: valid for a write; the kernel checks the number.
    if unsafe { libc::fstatfs(descriptor, &mut system) } != 0 {
        return None;
    }
    if system.f_type as u64 != FILE_SYSTEM {
        return None;
    }
    // SAFETY: as above.
    let mut file: libc::stat = unsafe { zeroed() };
    // SAFETY: valid for a write; the kernel checks the number.
    (unsafe { libc::fstat(descriptor, &mut file) } == 0).then_some(file.st_size as u64)
}
