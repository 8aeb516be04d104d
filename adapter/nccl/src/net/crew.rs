//! How many threads of ours a rank has CPUs for.
//!
//! Each rank has two threads of its own that do not wait quietly, NCCL's and the user's. Where
//! ours are more than the CPUs that are left, messages wait for a thread that the scheduler has put
//! aside: eight ranks on 16 CPUs with two each took five to ten times as long as with none.

use crosstie::memory::Variables;
use std::fs;

/// One CPU of eight, as there are other ranks, and threads of NCCL's.
const CPUS_PER_THREAD: usize = 8;
/// Threads of each rank beside ours.
const BUSY: usize = 2;

/// More copy faster than GPUs behind host memory take it.
const SHM_THREADS: usize = 4;
/// More, with NCCL's own, take no message faster than its GPUs do.
const TCP_THREADS: usize = 3;

/// By what launchers say how many ranks they have started on this host: torchrun, Open MPI, MPICH
/// and Intel MPI, MVAPICH, Cray's PALS, and a step of Slurm's.
const LAUNCHERS: [&str; 6] = [
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
];

/// Threads that copy through shared memory, where `CROSSTIE_SHM_THREADS` does not say it.
pub fn shm_threads() -> u32 {
    Share::of_this_rank().threads(SHM_THREADS)
}

/// The same of threads that move what is long over TCP, and of `CROSSTIE_TCP_THREADS`.
pub fn tcp_threads() -> u32 {
    Share::of_this_rank().threads(TCP_THREADS)
}

/// The CPUs of the host, and what this rank may have of them.
#[derive(Copy, Clone, Debug)]
struct Share {
    /// CPUs of the host.
    online: usize,
    /// Those that this process may run on.
    allowed: usize,
    /// How many of these at a time, where there is a quota.
    usable: usize,
    /// Ranks on this host.
    ranks: usize,
}

impl Share {
    fn of_this_rank() -> Share {
        let usable = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = allowed.and_then(listed).unwrap_or(usable).max(usable);
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        Share {
            online: listed(&online).unwrap_or(allowed),
            allowed,
            usable,
            ranks: ranks(|name| Variables::of_process().text(name)),
        }
    }

    /// CPUs that are this rank's, if all are alike. Where every rank could have as many as this one
    /// may run on, each has been given its own; a quota is of all together.
    const fn cpus(&self) -> usize {
        let has_own = self.allowed * self.ranks <= self.online;
        let cpus = if has_own { self.allowed } else { self.allowed / self.ranks };
        let quota = self.usable / self.ranks;
        if self.usable < self.allowed && quota < cpus { quota } else { cpus }
    }

    fn threads(&self, most: usize) -> u32 {
        let left = self.cpus().saturating_sub(BUSY);
        most.min(self.usable / CPUS_PER_THREAD).min(left) as u32
    }
}

/// How many ranks there are on this host: the most that any launcher says, since one may have
/// started another; 1 where none says.
fn ranks(variable: impl Fn(&str) -> Option<String>) -> usize {
    let said = |name: &&str| {
        let text = variable(name)?;
        // Slurm says `8(x2)` for two hosts of eight
        let digits = text.trim().split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    LAUNCHERS.iter().filter_map(said).max().unwrap_or(1).max(1)
}

/// How many CPUs a list of the kernel's names, as in `0-3,8`.
fn listed(text: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last.checked_sub(first)? + 1).into()
    };
    text.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(online: usize, allowed: usize, usable: usize, ranks: usize) -> [u32; 2] {
        let share = Share { online, allowed, usable, ranks };
        [share.threads(SHM_THREADS), share.threads(TCP_THREADS)]
    }

    #[test]
    fn ranks_that_fill_the_host_have_no_threads() {
        // as measured: doc/benchmarks.md
        assert_eq!(threads(16, 16, 16, 8), [0, 0]);
        assert_eq!(threads(16, 16, 16, 4), [2, 2]);
        assert_eq!(threads(16, 16, 16, 2), [2, 2]);
        assert_eq!(threads(16, 16, 16, 1), [2, 2]);
        assert_eq!(threads(192, 192, 192, 8), [4, 3]);
        assert_eq!(threads(2, 2, 2, 2), [0, 0]);
        assert_eq!(threads(1, 1, 1, 64), [0, 0]);
    }

    #[test]
    fn cpus_of_its_own_are_a_ranks_own_and_a_quota_is_of_all() {
        assert_eq!(threads(128, 16, 16, 8), [2, 2], "bound");
        assert_eq!(threads(128, 64, 64, 8), [4, 3], "four on each half");
        assert_eq!(threads(16, 8, 8, 8), [0, 0], "four on each half of few");
        assert_eq!(threads(128, 128, 16, 8), [0, 0], "a container's quota");
        assert_eq!(threads(128, 128, 64, 8), [4, 3], "a large one's");
    }

    #[test]
    fn launchers_are_understood() {
        let said = |text: &'static str| {
            move |name: &str| (name == "SLURM_STEP_TASKS_PER_NODE").then(|| text.to_owned())
        };
        let texts = ["8(x2),4", "8", " 8 ", "", "many", "0", "-3"];
        assert_eq!(texts.map(|text| ranks(said(text))), [8, 8, 8, 1, 1, 1, 1]);
        let both = |name: &str| match name {
            "LOCAL_WORLD_SIZE" => Some("4".into()),
            "SLURM_STEP_TASKS_PER_NODE" => Some("1".into()),
            _ => None,
        };
        assert_eq!((ranks(both), ranks(|_| None)), (4, 1));
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        let texts = ["0\n", "0-15\n", "\t0-3,8,10-11", "3-1", "", "a-b"];
        let counts = [Some(1), Some(16), Some(7), None, None, None];
        assert_eq!(texts.map(listed), counts);
        let share = Share::of_this_rank();
        assert!(share.usable <= share.allowed && share.ranks > 0, "{share:?}");
    }
}
