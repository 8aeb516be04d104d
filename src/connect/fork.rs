//! Forked children do not keep our sockets.
//!
//! A child has copies of all descriptors, and the kernel keeps a socket while a copy is open. If
//! the parent is killed, its peers would not notice. New peers would wait in a queue that no
//! process serves.
//!
//! So a child replaces each of our descriptors by `/dev/null`. It does not close them: the child
//! could open a file under the same number, which a destructor would then close.
//!
//! - vfork(2) and posix_spawn(3) run another program: exec(2) closes our sockets.
//! - A bare clone(2) is not noticed.

use crate::base::sync::{AtomicU32, Ordering};
use crate::base::{descriptor, private};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;

/// A descriptor that a forked child does not keep.
#[derive(Debug)]
pub struct PrivateFd(RawFd);

impl PrivateFd {
    /// The descriptor that `make` makes: a system call's result, below 0 for an error.
    pub fn made(make: impl FnOnce() -> i32) -> io::Result<PrivateFd> {
        watch();
        private::made(|| descriptor::made(make).map(IntoRawFd::into_raw_fd)).map(PrivateFd)
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        private::closed(self.0, || {
            // SAFETY: the kernel gave us this descriptor (`made`), and nobody else has it.
            unsafe { libc::close(self.0) };
        });
    }
}

impl AsRawFd for PrivateFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open for as long as we are.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Forks between the process that has opened the first endpoint and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process that has opened the first endpoint and this one: who
/// remembers it knows whether it is in a child. *Cost*: one load.
pub fn forks() -> u32 {
    // relaxed: changes while a process has one thread alone
    FORKS.load(Ordering::Relaxed)
}

/// Begins to notice forks.
fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handlers touch atomics and make system calls that are allowed after a fork,
        // and live for ever: the shared library is never unloaded (build.rs).
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    private::fork_begins();
}

extern "C" fn in_parent() {
    private::fork_ends();
}

extern "C" fn in_child() {
    FORKS.store(forks() + 1, Ordering::Relaxed);
    let mut nothing: Option<OwnedFd> = None;
    private::fork_takes(|fd| {
        nothing = nothing.take().or_else(|| descriptor::spare().ok());
        // A thread of the parent was about to make or close it: the number was free, and names
        // nothing now, as it shall.
        if let Some(there) = nothing.take_if(|nothing| nothing.as_raw_fd() == fd) {
            let _ = there.into_raw_fd();
            return;
        }
        let nothing = nothing.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: calls without pointers; the number is a copy of a socket of the parent's, which
        // nobody in this process uses.
        unsafe {
            if nothing < 0 || libc::dup3(nothing, fd, libc::O_CLOEXEC) < 0 {
                libc::close(fd);
            }
        }
    });
}
