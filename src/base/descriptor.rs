//! How descriptors become the library's: with a number of 3 or higher.
//!
//! A program may run without standard input, output or error. The kernel gives the lowest free
//! number, so without care a socket or a memory file would become that program's standard error,
//! and its next print would go to a peer. So everything that makes or receives a descriptor goes
//! through this file (`tests/tidy.rs`). What other libraries open, [`StandardHeld`] keeps off.
//!
//! Files that are opened for reading and closed within one call are left alone: nothing that is
//! written to a standard stream reaches them.

use super::sync::{AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// The lowest number of a descriptor of the library.
pub const LOWEST: RawFd = 3;

/// Takes over the descriptor that `make` makes: a system call's result, below 0 for an error.
pub fn made(make: impl FnOnce() -> RawFd) -> io::Result<OwnedFd> {
    let fd = make();
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    lift(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The same file under a number that is high enough.
///
/// *Errors*: there is no such number left; the descriptor is closed then.
pub fn lift(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= LOWEST { Ok(fd) } else { copy(fd.as_raw_fd()) }
}

/// A copy of `fd`.
pub fn copy(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a call without pointers.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, LOWEST) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Opens `/dev/null`, to have a descriptor.
pub fn spare() -> io::Result<OwnedFd> {
    // SAFETY: a terminated name.
    made(|| unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
}

/// Descriptors that the kernel's table has room for at most, beside those that are open: 128 KiB of
/// its memory.
const HEADROOM_MAX: u32 = 1 << 14;

/// What all living [`Headroom`]s ask for together.
static HEADROOM: AtomicU32 = AtomicU32::new(0);

/// Room in the kernel's table of descriptors, which never gets shorter.
///
/// When a process has threads, each growth of its table waits until every CPU has passed through
/// the scheduler (`synchronize_rcu`). Where many processes spin, that can take seconds
/// (`doc/limits.md`). So the table grows here, where no lock is held that others wait for.
///
/// *Source*: Linux `fs/file.c`, `expand_fdtable`.
#[derive(Debug)]
pub struct Headroom(u32);

impl Headroom {
    /// Makes room for `count` descriptors beside those that are open and those that others ask for:
    /// as far as the process's limit allows, and for 16384 in all.
    ///
    /// *Cost*: may block for as long as the kernel needs.
    pub fn new(count: u32) -> Headroom {
        let count = count.min(HEADROOM_MAX);
        // relaxed: a sum; each caller makes room for what it has added itself
        let all = HEADROOM.fetch_add(count, Ordering::Relaxed).saturating_add(count);
        grow(all.min(HEADROOM_MAX));
        Headroom(count)
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        HEADROOM.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Opens a descriptor whose number is `more` above the lowest that is free, and closes it. Where
/// none can be opened, the table stays as it is.
fn grow(more: u32) {
    let Ok(lowest) = spare() else { return };
    let last = limit().saturating_sub(1).min(i32::MAX as u64) as RawFd;
    let wanted = lowest.as_raw_fd().saturating_add(more as RawFd).min(last);
    // SAFETY: a call without pointers.
    let highest = unsafe { libc::fcntl(lowest.as_raw_fd(), libc::F_DUPFD_CLOEXEC, wanted) };
    close(highest);
}

/// Numbers of descriptors are below this.
fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: valid for writes for the length of the call, which fills it.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => 0,
    }
}

/// While it lives, no other library opens a descriptor below [`LOWEST`].
///
/// Standard streams that are closed are held by `/dev/null`, opened with `O_PATH`: who reads or
/// writes them is refused as before (`EBADF`).
#[derive(Debug)]
pub struct StandardHeld(());

/// Who holds them: how many, and the numbers that were free, a bit each.
struct Holders {
    count: usize,
    held: u8,
}

static HOLDERS: Mutex<Holders> = Mutex::new(Holders { count: 0, held: 0 });

impl StandardHeld {
    /// Holds what is closed now. Where no descriptor is left, nothing: others get none either.
    pub fn new() -> StandardHeld {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.count += 1;
        loop {
            let flags = libc::O_PATH | libc::O_CLOEXEC;
            // SAFETY: a terminated name.
            let fd = unsafe { libc::open(c"/dev/null".as_ptr(), flags) };
            match fd {
                0..LOWEST => holders.held |= 1 << fd,
                fd => {
                    close(fd);
                    break StandardHeld(());
                }
            }
        }
    }
}

impl Default for StandardHeld {
    fn default() -> StandardHeld {
        StandardHeld::new()
    }
}

impl Drop for StandardHeld {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.count -= 1;
        if holders.count > 0 {
            return;
        }
        let held = core::mem::take(&mut holders.held);
        (0..LOWEST).filter(|fd| held & (1 << fd) != 0 && is_holder(*fd)).for_each(close);
    }
}

/// Whether the program has not put a file of its own there meanwhile.
fn is_holder(fd: RawFd) -> bool {
    // SAFETY: a call without pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_PATH != 0
}

fn close(fd: RawFd) {
    // SAFETY: a call without pointers; opened by us, or -1, which is refused.
    unsafe { libc::close(fd) };
}
