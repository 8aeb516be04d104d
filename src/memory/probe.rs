//! What the kernel grants this process: CPUs, system calls, room in a file system. Control path.

extern crate std;

use super::errno::Errno;
use crate::base::descriptor;
use core::mem;
use std::ffi::CString;
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

/// Nanoseconds of the clock that all processes of this host share and nobody sets.
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

/// Whether anonymous shared files can be made.
pub fn memfd() -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    let made = || unsafe { libc::memfd_create(c"crosstie-probe".as_ptr(), libc::MFD_CLOEXEC) };
    descriptor::made(made).map(drop).map_err(Errno::from)
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
