//! Standard error without the lock of the standard library: a child that was forked while another
//! thread of its parent held it would wait for it for ever.

extern crate std;

use super::errno::Errno;
use std::io::IoSlice;

/// Writes the parts, one behind the other, in one system call; says how many bytes of them.
pub fn write(parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let count = parts.len() as i32;
    // SAFETY: a slice of the standard library's has the layout of the system's, as that promises,
    // and each leads to bytes that it borrows.
    let written = unsafe { libc::writev(libc::STDERR_FILENO, parts.as_ptr().cast(), count) };
    Errno::check(written as i64).map(|written| written as usize)
}
