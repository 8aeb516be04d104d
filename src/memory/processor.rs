//! Giving this thread's processor up.

use core::mem;

/// Lets other threads of the same scheduling group run, if some wait for this processor.
pub fn offer() {
    // SAFETY: takes nothing.
    unsafe { libc::sched_yield() };
}

/// Sleeps for as short as the kernel can, some 50 us, so that another thread may run on this
/// processor.
pub fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    // SAFETY: `moment` is valid for the length of the call; what is left is not asked for.
    unsafe { libc::nanosleep(&moment, core::ptr::null_mut()) };
}

/// How often the scheduler has given this thread's processor to another while it wanted to run;
/// offers that were taken count, too. A kernel that does not say it: 0.
pub fn taken() -> u64 {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    if cfg!(not(miri)) {
        // SAFETY: `usage` is valid for writes for the length of the call.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    }
    usage.ru_nivcsw as u64
}
