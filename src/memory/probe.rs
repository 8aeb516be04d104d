//! What the kernel grants this process: CPUs, system calls, room in a file system. Control path.

use super::errno::Errno;
use crate::base::descriptor;
use core::mem;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// CPUs that this thread may run on, by number.
pub fn cpus_allowed() -> Vec<u32> {
    // SAFETY: the set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is writable memory of the size told.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    let end = if result == 0 { libc::CPU_SETSIZE as usize } else { 0 };
    // SAFETY: `cpu` is below the set's size.
    (0..end).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).map(|cpu| cpu as u32).collect()
}

/// Keeps this thread, and those that it starts from now on, on one CPU.
pub fn cpu_pin(cpu: u32) -> Result<(), Errno> {
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the set is an array of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `cpu` is below the set's size, checked above.
    unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    // SAFETY: `set` is readable memory of the size told.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    Errno::check(result.into()).map(|_| ())
}

/// Nanoseconds of a clock that all processes of this host share and that cannot be set.
#[inline]
pub fn clock_ns() -> u64 {
    let mut told = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writable memory; the call fails for unknown clocks only.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut told) };
    told.tv_sec as u64 * 1_000_000_000 + told.tv_nsec as u64
}

/// Size of a file system and how much of it is free for us, in bytes.
pub fn file_system(path: &str) -> Result<(u64, u64), Errno> {
    let path = CString::new(path).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut told: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: `path` is a C string and `told` writable.
    let result = unsafe { libc::statvfs(path.as_ptr(), &mut told) };
    Errno::check(result.into())?;
    Ok((told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail))
}

/// A call that the kernel refuses, and its answer.
pub type Refused = (&'static str, Errno);

/// Whether memory can be shared with other processes of this host: each call that it takes, once.
/// Want of descriptors or memory is no refusal.
pub fn shared_memory() -> Result<(), Refused> {
    let named = |name| {
        move |errno: Errno| match errno.0 {
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSPC | libc::EDQUOT => Ok(()),
            // locked memory is limited (`mlockall(MCL_FUTURE)`)
            libc::EAGAIN => Ok(()),
            _ => Err((name, errno)),
        }
    };
    let socket = || {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: a call without pointers.
        unsafe { libc::socket(libc::AF_UNIX, kind, 0) }
    };
    let socket = descriptor::made(socket).map(drop).map_err(Errno::from);
    socket.or_else(named("socket of AF_UNIX"))?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let file = || unsafe { libc::memfd_create(c"crosstie-probe".as_ptr(), flags) };
    let file = match descriptor::made(file).map_err(Errno::from) {
        Ok(file) => file,
        Err(errno) => return named("memfd_create")(errno),
    };
    let fd = file.as_raw_fd();
    let check = |result: i32| Errno::check(result.into()).map(|_| ());
    let bytes = super::heap::page_bytes();
    if bytes as u64 > super::shared::file_bytes_max() {
        return Ok(());
    }
    let end = bytes as libc::off_t;
    // SAFETY: a call without pointers on a descriptor that we own.
    check(unsafe { libc::ftruncate(fd, end) }).or_else(named("ftruncate"))?;
    // SAFETY: as above.
    let sealed = unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    check(sealed).or_else(named("fcntl"))?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }).or_else(named("fcntl"))?;
    // SAFETY: as above.
    check(unsafe { libc::fallocate(fd, 0, 0, end) }).or_else(named("fallocate"))?;
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut told: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: `told` is valid for writes for the length of the call.
    check(unsafe { libc::fstatfs(fd, &mut told) }).or_else(named("fstatfs"))?;
    let mapped = super::space::map(fd, bytes, libc::MAP_SHARED, super::space::Use::Internal);
    match mapped {
        Ok(start) => {
            // SAFETY: just mapped, and known to nobody.
            unsafe { libc::munmap(start.cast(), bytes) };
            Ok(())
        }
        Err(errno) => named("mmap")(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        assert!(!cpus_allowed().is_empty());
        assert!(file_system("/proc").is_ok());
        assert_eq!(file_system("/nowhere/at/all"), Err(Errno(libc::ENOENT)));
        assert_eq!(cpu_pin(u32::MAX), Err(Errno(libc::EINVAL)));
    }
}
