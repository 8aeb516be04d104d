//! Threads that work for a rail. Control path.

use super::errno::Errno;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Stack of each.
const STACK_BYTES: usize = 2 << 20;

/// What a lock guards, also where a thread has panicked with it.
#[inline]
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that takes no signals: they are the program's.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Errno> {
    let quiet = SignalsBlocked::new();
    // said here, or the standard library would look for it in the environment
    let thread = Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(work);
    drop(quiet);
    thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))
}

/// While it lives, this thread takes no signals, and neither will a thread that it starts.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        // SAFETY: plain sets of bits, for which zero is a value.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
        // SAFETY: both sets are valid for the length of the calls.
        unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        }
        SignalsBlocked(before)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: a valid set; the old one may be left out.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, core::ptr::null_mut()) };
    }
}
