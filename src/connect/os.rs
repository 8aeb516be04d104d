//! What the side band asks of the kernel besides sockets: readiness, a wake-up, signals, limits,
//! random numbers. One of the files of this room that call the C library.

use super::address;
use super::fork::PrivateFd;
use crate::base::descriptor;
use crate::base::errno::Errno;
use core::fmt;
use core::mem::zeroed;
use core::ptr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Events taken by one wait; more stay ready for the next.
pub const EVENTS_MAX: usize = 64;

/// What became ready.
pub struct Ready {
    events: [libc::epoll_event; EVENTS_MAX],
    count: usize,
}

impl Ready {
    /// Room for the answers of a wait.
    pub const fn new() -> Ready {
        Ready { events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX], count: 0 }
    }

    /// The tokens of what is ready.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.events[..self.count].iter().map(|event| event.u64)
    }
}

/// A set of descriptors and a way to wait for one of them.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// An empty set.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: a call without pointers.
        descriptor::made(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Poller)
    }

    /// Reports `token` while `fd` is readable.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add_for(fd, token, true, false)
    }

    /// Reports `token` while `fd` is readable, has room, or both.
    pub fn add_for(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest(read, write), token)
    }

    /// Says in what `fd` is interesting from now on.
    pub fn change(&self, fd: BorrowedFd<'_>, token: u64, read: bool, write: bool) {
        // a descriptor that is in the set and open cannot be refused
        let _ = self.control(libc::EPOLL_CTL_MOD, fd, interest(read, write), token);
    }

    /// Forgets `fd`. Closing it would not: a forked child may hold a copy.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// A descriptor to fill places with that are never sent.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        let set = self.0.as_raw_fd();
        // SAFETY: `event` lives until the call returns.
        check(unsafe { libc::epoll_ctl(set, op, fd.as_raw_fd(), &mut event) }).map(|_| ())
    }

    /// Waits until something is ready or `timeout_ms` is over; -1 is for ever, 0 not at all.
    pub fn wait(&self, ready: &mut Ready, timeout_ms: i32) {
        let set = self.0.as_raw_fd();
        let events = ready.events.as_mut_ptr();
        // SAFETY: `events` is valid for writes of EVENTS_MAX events.
        let got = unsafe { libc::epoll_wait(set, events, EVENTS_MAX as i32, timeout_ms) };
        // interrupted: nothing is ready
        ready.count = got.max(0) as usize;
    }
}

fn interest(read: bool, write: bool) -> i32 {
    (if read { libc::EPOLLIN } else { 0 }) | (if write { libc::EPOLLOUT } else { 0 })
}

/// An event descriptor on which a thread is woken.
#[derive(Debug)]
pub struct Kick(OwnedFd);

impl Kick {
    /// One that was not rung.
    pub fn new() -> io::Result<Kick> {
        // SAFETY: a call without pointers.
        let made = || unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        descriptor::made(made).map(Kick)
    }

    /// Wakes who waits.
    pub fn ring(&self) {
        let one = 1u64;
        let one: *const u64 = &one;
        // SAFETY: eight readable bytes. A full counter refuses, and is rung already.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.cast(), 8) };
    }

    /// Makes it silent again.
    pub fn silence(&self) {
        let mut count = 0u64;
        let count: *mut u64 = &mut count;
        // SAFETY: eight writable bytes.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), count.cast(), 8) };
    }

    /// For the poller.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether `fd` is readable now.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives until the call returns.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Runs `f` with every signal of this thread blocked: a thread that it starts inherits that, so
/// that the application's handlers never run on it.
pub fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: plain sets of bits, for which zero is a value.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { zeroed() };
    // SAFETY: valid for writes.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: two whole sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
    let result = f();
    // SAFETY: the set that the kernel gave us.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    result
}

/// The number of the next descriptor that this process opens: the lowest that is free, so that at
/// least as many are in use. The highest number where none can be opened.
pub fn descriptor_next() -> u64 {
    // SAFETY: a call without pointers.
    let made = PrivateFd::made(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
    made.map_or(u64::MAX, |fd| fd.as_raw_fd() as u64)
}

/// How many descriptors this process may have open.
pub fn descriptor_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// How much of something this process may have (getrlimit(2)).
fn limit(of: libc::__rlimit_resource_t) -> u64 {
    // SAFETY: two integers, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { zeroed() };
    // SAFETY: valid for writes.
    unsafe { libc::getrlimit(of, &mut limit) };
    limit.rlim_cur
}

/// Whether this process can open no descriptor more.
pub fn is_out_of_descriptors() -> bool {
    descriptor::spare().is_err_and(|error| address::is_out_of_descriptors(&error))
}

/// How many processes, and threads, this process's user may have.
fn process_limit() -> u64 {
    limit(libc::RLIMIT_NPROC)
}

/// Why the kernel starts no thread. `pthread_create` says `EAGAIN` of all that it has no room for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum NoThread {
    /// There are too many; how many this process's user may have, as far as the process knows.
    TooMany(u64),
    /// The address space has no room for its stack; how many bytes it may have.
    AddressSpace(u64),
    /// Another reason, with the kernel's code.
    Refused(i32),
}

impl NoThread {
    /// Of what the start of a thread has just said, as long as things are as they were.
    pub fn of(error: &io::Error) -> NoThread {
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOMEM if !has_room(STACK_BYTES) => {
                NoThread::AddressSpace(limit(libc::RLIMIT_AS))
            }
            libc::EAGAIN => NoThread::TooMany(process_limit()),
            code => NoThread::Refused(code),
        }
    }
}

impl fmt::Display for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this process cannot start a thread: ")?;
        match self {
            NoThread::TooMany(libc::RLIM_INFINITY) => f.write_str(
                "its user may have any number, its container or cgroup fewer (pids.max)",
            ),
            NoThread::TooMany(limit) => write!(
                f,
                "its user may have {limit} threads and processes (ulimit -u), its container or \
                 cgroup perhaps fewer (pids.max)"
            ),
            NoThread::AddressSpace(limit) => {
                f.write_str("its address space has no room for a stack (ulimit -v")?;
                match *limit {
                    libc::RLIM_INFINITY => {}
                    limit => write!(f, ", {} KiB", limit / 1024)?,
                }
                f.write_str("); a smaller heap_bytes (CROSSTIE_HEAP_BYTES) leaves more")
            }
            NoThread::Refused(code @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => write!(
                f,
                "the kernel refuses (clone3: {}); the usual cause is a seccomp filter of the \
                 container",
                Errno(*code)
            ),
            NoThread::Refused(code) => write!(f, "the kernel refuses ({})", Errno(*code)),
        }
    }
}

/// Stack of a thread, as the standard library asks for it, with what guards it.
const STACK_BYTES: usize = (2 << 20) + (64 << 10);

/// Whether the address space has room for so many bytes.
fn has_room(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever the kernel likes, which nobody can touch.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the mapping made above, whole.
    unsafe { libc::munmap(at, bytes) };
    true
}

/// A random number that nobody else has.
pub fn random() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: sixteen writable bytes; so few come whole or not at all (getrandom(2)).
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 16 {
        return Err(io::Error::last_os_error());
    }
    Ok(u128::from_le_bytes(bytes))
}

/// This process's user.
pub fn user() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// Page size in bytes.
pub fn page_bytes() -> u64 {
    // SAFETY: a call without pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
