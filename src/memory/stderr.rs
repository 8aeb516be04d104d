//! Standard error without the standard library's lock, and without SIGPIPE.
//!
//! - The lock: if another thread of the parent held it at a fork, the child would wait for it for
//!   ever.
//! - SIGPIPE ends a program whose reader of standard error has gone.

use super::errno::Errno;
use core::mem::zeroed;
use core::ptr;
use std::io::IoSlice;

/// Writes the parts, one behind the other, in one system call; says how many bytes of them. A
/// reader that has gone is an error (`EPIPE`), and no signal.
pub fn write(parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let count = parts.len() as i32;
    without_sigpipe(|| {
        // SAFETY: a slice of the standard library's has the layout of the system's, as that
        // promises, and each leads to bytes that it borrows.
        let written = unsafe { libc::writev(libc::STDERR_FILENO, parts.as_ptr().cast(), count) };
        Errno::check(written as i64).map(|written| written as usize)
    })
}

/// Runs `write`, and takes back the SIGPIPE that it raised. The kernel sends it to the writing
/// thread (pipe(7)), and it stays pending while the thread blocks it. A SIGPIPE that was pending
/// before is the program's, and stays.
fn without_sigpipe<T>(write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // SAFETY: plain sets of bits, for which zero is a value.
    let (mut pipe, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
    // SAFETY: a set of ours.
    unsafe { libc::sigemptyset(&mut pipe) };
    // SAFETY: as above.
    unsafe { libc::sigaddset(&mut pipe, libc::SIGPIPE) };
    // SAFETY: two whole sets.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) };
    let was_waiting = is_waiting();
    let result = write();
    if matches!(result, Err(Errno(libc::EPIPE))) && !was_waiting {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a whole set and a time; nothing is wanted of the signal. None is there where the
        // program ignores it.
        unsafe { libc::sigtimedwait(&pipe, ptr::null_mut(), &at_once) };
    }
    // SAFETY: the set that the kernel gave us.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    result
}

/// Whether a SIGPIPE waits until this thread, or any thread of this process, lets it through.
fn is_waiting() -> bool {
    // SAFETY: a plain set of bits, for which zero is a value.
    let mut waiting: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: a set of ours, which the call fills.
    unsafe { libc::sigpending(&mut waiting) };
    // SAFETY: a whole set.
    unsafe { libc::sigismember(&waiting, libc::SIGPIPE) == 1 }
}
