//! Sets of CPUs, and threads that are kept on them. Control path.

use super::errno::Errno;
use super::threads;
use core::mem;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// CPUs by number, as many as the kernel's own type of fixed size has.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct CpuSet([u64; CpuSet::WORDS]);

impl CpuSet {
    /// None.
    pub const EMPTY: CpuSet = CpuSet([0; CpuSet::WORDS]);
    /// The first number that is none of a set.
    pub const END: u32 = libc::CPU_SETSIZE as u32;
    const WORDS: usize = libc::CPU_SETSIZE as usize / 64;

    /// Those that the calling thread may use; empty where the kernel does not say.
    pub fn of_this_thread() -> CpuSet {
        // SAFETY: a plain set of bits, for which zero is a value.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: a whole set.
        if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
            return CpuSet::EMPTY; // more CPUs than a set has
        }
        // SAFETY: below the size of the set.
        let mine = (0..CpuSet::END).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu as usize, &set) });
        mine.fold(CpuSet::EMPTY, |all, cpu| all.with(cpu).unwrap_or(all))
    }

    /// The same and one more. `None`: the number is too high.
    pub fn with(mut self, cpu: u32) -> Option<CpuSet> {
        *self.0.get_mut(cpu as usize / 64)? |= 1 << (cpu % 64);
        Some(self)
    }

    /// Whether a CPU is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        *self == CpuSet::EMPTY
    }

    /// Those that are in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..CpuSet::END).filter(|cpu| self.contains(*cpu))
    }
}

/// Whether a thread can be kept on `cpus`: tries it with one.
pub fn cpus_try(cpus: &CpuSet) -> Result<(), PinError> {
    let (keep, gone) = std::sync::mpsc::channel::<()>();
    let thread = threads::start("crosstie-try", move || {
        let _ = gone.recv(); // nothing is ever sent
    });
    let thread = thread.map_err(PinError::System)?;
    let pinned = thread_pin(&thread, cpus);
    drop(keep);
    // it waits for nothing but this
    let _ = thread.join();
    pinned
}

/// Why a thread could not be kept where it was wanted.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PinError {
    /// The host lacks this CPU, or its cpuset keeps the process off it.
    Cpu(u32),
    /// The kernel refused.
    System(Errno),
}

/// Keeps a thread on `cpus` and on no others. A thread may use CPUs that its creator may not: only
/// the cpuset binds both.
pub fn thread_pin(thread: &JoinHandle<()>, cpus: &CpuSet) -> Result<(), PinError> {
    // SAFETY: plain sets of bits, for which zero is a value.
    let (mut set, mut got): (libc::cpu_set_t, libc::cpu_set_t) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    for cpu in cpus.iter() {
        // SAFETY: below the size of the set (`CpuSet::END`).
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    let id = thread.as_pthread_t();
    // SAFETY: a thread that was not joined, and a whole set.
    let code = unsafe { libc::pthread_setaffinity_np(id, size_of_val(&set), &set) };
    if code != 0 && code != libc::EINVAL {
        return Err(PinError::System(Errno(code)));
    }
    if code == 0 {
        // SAFETY: as above; the set is written.
        let code = unsafe { libc::pthread_getaffinity_np(id, size_of_val(&got), &mut got) };
        Errno::check((-code).into()).map_err(|_| PinError::System(Errno(code)))?;
    }
    // The kernel leaves out what the cpuset forbids, and refuses when nothing is left.
    // SAFETY: below the size of the set.
    match cpus.iter().find(|cpu| unsafe { !libc::CPU_ISSET(*cpu as usize, &got) }) {
        Some(cpu) => Err(PinError::Cpu(cpu)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn sets_hold_numbers_up_to_their_end() {
        let set = CpuSet::EMPTY.with(0).and_then(|set| set.with(64)?.with(CpuSet::END - 1));
        let set = set.unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 64, CpuSet::END - 1]);
        assert!(!set.contains(1) && !set.contains(u32::MAX) && !set.is_empty());
        assert_eq!(CpuSet::EMPTY.with(CpuSet::END), None);
        assert!(CpuSet::EMPTY.is_empty());
    }
}
