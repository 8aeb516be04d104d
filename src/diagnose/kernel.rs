//! The kernel's settings that decide what shared memory can do.

use crate::base::words::named;
use std::fs;
use std::string::{String, ToString};

named! {
    /// Who may read another process's memory (Yama's `ptrace_scope`).
    pub enum Yama {
        /// No Yama, or scope 0.
        Open = "open: processes of the same user may read each other",
        /// Parents, too; endpoints name everyone.
        Named = "scope 1: endpoints permit their peers to read them",
        Administrator = "scope 2: reading takes CAP_SYS_PTRACE",
        Nobody = "scope 3: nobody may read another process",
    }
}

impl Yama {
    /// As this kernel is set.
    pub fn read() -> Yama {
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        Yama::parse(&scope)
    }

    fn parse(scope: &str) -> Yama {
        match scope.trim() {
            "1" => Yama::Named,
            "2" => Yama::Administrator,
            "3" => Yama::Nobody,
            _ => Yama::Open,
        }
    }
}

/// A resource limit of this process: soft, hard; `None` is unlimited.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct ResourceLimit {
    /// What holds now.
    pub soft: Option<u64>,
    /// Up to where the process itself may raise it.
    pub hard: Option<u64>,
}

/// Reads a line of `/proc/self/limits`, such as `Max open files`.
pub fn resource_limit(name: &str) -> Option<ResourceLimit> {
    resource_limit_in(&fs::read_to_string("/proc/self/limits").ok()?, name)
}

fn resource_limit_in(text: &str, name: &str) -> Option<ResourceLimit> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = rest.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(ResourceLimit { soft: limit()?, hard: limit()? })
}

/// When transparent huge pages are used: `always`, `madvise` or `never`.
pub fn huge_pages() -> Option<String> {
    chosen("/sys/kernel/mm/transparent_hugepage/enabled")
}

/// When shared memory gets huge pages: `always`, `advise`, `never` and others.
pub fn huge_pages_shared() -> Option<String> {
    chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
}

/// The word in brackets of a file such as `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    bracketed(&fs::read_to_string(path).ok()?)
}

fn bracketed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_string())
}

/// The kernel's release.
pub fn release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_string()
}

/// The processor's name, as `/proc/cpuinfo` tells it.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  unlimited  files\n";
        let wanted = ResourceLimit { soft: Some(1024), hard: None };
        assert_eq!(resource_limit_in(limits, "Max open files"), Some(wanted));
        assert_eq!(resource_limit_in(limits, "Max locked memory"), None);
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed("nothing"), None);
        assert_eq!(Yama::parse("1\n"), Yama::Named);
        assert_eq!(Yama::parse(""), Yama::Open);
    }
}
