//! Address space that operations on the whole process leave alone.
//!
//! The reserved ranges are larger than the host's memory. A core dump writes everything that is
//! mapped, and allocates the unwritten pages of a shared file. `mlockall` allocates all accessible
//! pages. So these ranges are excluded from both.

use super::errno::Errno;
use core::ptr;

/// The access to a range, and whether it is in core dumps.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Use {
    /// No access: it is reserved.
    Reserved,
    /// The library: it is in no core dump.
    Internal,
    /// The library, which reads what another process writes: likewise.
    View,
    /// The program: it is in core dumps.
    Program,
}

/// Maps `length` bytes of a file, or private ones with -1, for a use; nothing is allocated, also
/// where `mlockall(MCL_FUTURE)` holds.
pub(super) fn map(
    fd: i32,
    length: usize,
    flags: libc::c_int,
    wanted: Use,
) -> Result<*mut u8, Errno> {
    let flags = flags | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    // SAFETY: our mapping; where it is not locked nothing changes.
    unsafe { libc::munlock(start, length) };
    let start: *mut u8 = start.cast();
    // SAFETY: advice on our mapping.
    unsafe { libc::madvise(start.cast(), length, libc::MADV_DONTDUMP) };
    // SAFETY: our mapping, which nobody knows yet.
    let opened = unsafe { change(start, length, Use::Reserved, wanted) };
    opened.inspect_err(|_| {
        // SAFETY: as above.
        unsafe { libc::munmap(start.cast(), length) };
    })?;
    Ok(start)
}

/// The most address space that this process may have (`ulimit -v`); `u64::MAX`: any.
pub(super) fn limit_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes for the length of the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Changes the use of a range. If the kernel refuses the advice about core dumps, nothing is
/// reported.
///
/// # Safety
/// - the range is whole pages of a mapping of [`map`];
/// - pages that become [`Use::Reserved`] are no longer accessed.
pub(super) unsafe fn change(
    start: *mut u8,
    length: usize,
    from: Use,
    to: Use,
) -> Result<(), Errno> {
    let access = |at| match at {
        Use::Reserved => libc::PROT_NONE,
        Use::View => libc::PROT_READ,
        Use::Internal | Use::Program => libc::PROT_READ | libc::PROT_WRITE,
    };
    if access(from) != access(to) {
        // SAFETY: this function's contract.
        Errno::check(unsafe { libc::mprotect(start.cast(), length, access(to)) }.into())?;
    }
    let is_dumped = |at| at == Use::Program;
    if is_dumped(from) != is_dumped(to) {
        let advice = if is_dumped(to) { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
        // SAFETY: as above; advice that is refused changes nothing.
        unsafe { libc::madvise(start.cast(), length, advice) };
    }
    Ok(())
}
