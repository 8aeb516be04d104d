//! Waking a sleeper in another process, and the barrier that lets the waker skip a fence.
//!
//! A sleeper writes "armed", then looks at its rings once more; a sender writes its record, then
//! looks at "armed". Each needs its store to be seen before its load. The process-wide barrier
//! moves the whole cost to the sleeper: [`barrier`] makes every registered thread of every
//! registered process pass a full fence.

use super::errno::Errno;
use crate::base::descriptor;
use crate::base::units::Span;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A counter in the kernel that a file descriptor stands for; readable when it was rung.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Makes one: nonblocking, closed on exec.
    pub fn create() -> Result<WakeFd, Errno> {
        // SAFETY: no pointers.
        let made = || unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        Ok(WakeFd(descriptor::made(made)?))
    }

    /// Takes a descriptor that a peer sent.
    pub fn from_fd(fd: OwnedFd) -> WakeFd {
        WakeFd(fd)
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        ring(self.0.as_raw_fd());
    }

    /// Makes it unreadable again; says whether it was rung.
    pub fn drain(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        got == 8
    }

    /// For poll, epoll, and for sending to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}

/// A descriptor that becomes readable after some time.
#[derive(Debug)]
pub struct Alarm(OwnedFd);

impl Alarm {
    /// Makes one that is not set: nonblocking, closed on exec.
    pub fn create() -> Result<Alarm, Errno> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers.
        let made = || unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        Ok(Alarm(descriptor::made(made)?))
    }

    /// Makes the descriptor unreadable, and readable once after so long; zero: not again. *Cost*:
    /// one system call.
    pub fn set(&self, span: Span) {
        const SECOND: u64 = 1_000_000_000;
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (seconds, rest) = (span.0 / SECOND, span.0 % SECOND);
        let after = libc::timespec { tv_sec: seconds as i64, tv_nsec: rest as i64 };
        let timer = libc::itimerspec { it_interval: never, it_value: after };
        let (fd, old) = (self.0.as_raw_fd(), core::ptr::null_mut());
        // SAFETY: `timer` lives until the call returns; nothing is wanted back.
        unsafe { libc::timerfd_settime(fd, 0, &raw const timer, old) };
    }

    /// For poll and epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}

/// A descriptor that is readable while one of several others is.
#[derive(Debug)]
pub struct WaitSet(OwnedFd);

impl WaitSet {
    /// Watches `fds`, which outlive it. Closed on exec.
    pub fn over(fds: &[i32]) -> Result<WaitSet, Errno> {
        // SAFETY: no pointers.
        let made = || unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let set = WaitSet(descriptor::made(made)?);
        let raw = set.0.as_raw_fd();
        for fd in fds {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: `event` lives until the call returns.
            let rc = unsafe { libc::epoll_ctl(raw, libc::EPOLL_CTL_ADD, *fd, &raw mut event) };
            Errno::check(rc.into())?;
        }
        Ok(set)
    }

    /// For poll and epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}

/// Rings the eventfd behind `fd`. There is no error to report: a full counter (EAGAIN) is as good
/// as rung, and behind a closed descriptor no thread waits. *Cost*: one system call.
pub fn ring(fd: i32) {
    let one = 1u64;
    // SAFETY: eight readable bytes; a wrong descriptor is an error of the call.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

// linux/membarrier.h; not in libc for every target.
const QUERY: i32 = 0;
const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> Result<u64, Errno> {
    // SAFETY: no pointers.
    Errno::check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// Takes part in the barriers of other processes from now on. `false`: this kernel has none.
pub fn barrier_register() -> bool {
    let both = (GLOBAL_EXPEDITED | REGISTER_GLOBAL_EXPEDITED) as u64;
    membarrier(QUERY).is_ok_and(|commands| commands & both == both)
        && membarrier(REGISTER_GLOBAL_EXPEDITED).is_ok()
}

/// Makes every running thread of every registered process pass a full fence before it returns.
/// *Cost*: one system call, and an interrupt on each core that runs such a thread.
pub fn barrier() -> Result<(), Errno> {
    membarrier(GLOBAL_EXPEDITED).map(|_| ())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn drain_says_whether_it_was_rung() {
        let wake = WakeFd::create().unwrap();
        assert!(!wake.drain());
        wake.ring();
        wake.ring();
        assert!(wake.drain());
        assert!(!wake.drain());
    }

    #[test]
    fn set_is_readable_while_one_of_its_descriptors_is() {
        let wakes = [WakeFd::create().unwrap(), WakeFd::create().unwrap()];
        let set = WaitSet::over(&wakes.each_ref().map(|wake| wake.fd().as_raw_fd())).unwrap();
        let readable = || {
            let fd = set.fd().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure, which lives until the call returns.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        for wake in &wakes {
            assert!(!readable());
            wake.ring();
            assert!(readable());
            wake.drain();
        }
        assert!(WaitSet::over(&[-1]).is_err());
    }

    #[test]
    fn alarm_is_readable_once_its_time_has_come_and_not_when_it_is_set_again() {
        let alarm = Alarm::create().unwrap();
        let readable = |timeout_ms| {
            let fd = alarm.fd().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure, which lives until the call returns.
            unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
        };
        assert!(!readable(0), "nobody has set it");
        alarm.set(Span::millis(1));
        assert!(readable(-1) && readable(0));
        alarm.set(Span::millis(3_600_000));
        assert!(!readable(0));
        alarm.set(Span(1));
        assert!(readable(-1));
        alarm.set(Span(0));
        assert!(!readable(0));
    }

    #[test]
    fn barrier_works_where_registration_said_so() {
        if barrier_register() {
            assert_eq!(barrier(), Ok(()));
        }
    }
}
