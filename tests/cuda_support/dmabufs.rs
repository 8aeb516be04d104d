//! The double's dma-bufs are memfds. For programs that have this module the kernel says that they
//! are dma-bufs: this `fstatfs` stands before the C library's.

use std::ffi::{c_int, c_long};

/// `DMA_BUF_MAGIC` of `linux/magic.h`.
const FILE_SYSTEM: u64 = 0x444d_4142;

/// Whether a descriptor is one that the double has made.
fn is_dmabuf(descriptor: c_int) -> bool {
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{descriptor}")) else { return false };
    // SAFETY: reads flags of a descriptor.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    path.to_string_lossy().starts_with("/memfd:cuda-double:") && flags & libc::O_APPEND != 0
}

/// # Safety
/// - as the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatfs(descriptor: c_int, out: *mut libc::statfs) -> c_int {
    // SAFETY: the caller's arguments.
    let answer: c_long = unsafe { libc::syscall(libc::SYS_fstatfs, descriptor, out) };
    if answer == 0 && is_dmabuf(descriptor) {
        // SAFETY: the kernel has just filled it.
        unsafe { (*out).f_type = FILE_SYSTEM as _ };
    }
    answer as c_int
}
