//! How much memory this host and the cgroup of this process can still give.
//!
//! A shared anonymous file has no limit of its own: shmem is charged to the host and the cgroup.
//! Pages beyond these limits end in the kernel's OOM killer instead of ENOMEM. So the size is
//! checked before the allocation. The answer holds for a moment only: other processes may take the
//! memory meanwhile.
#![forbid(unsafe_code)]

use super::heap::page_bytes;
use super::space;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

/// Longer files are cut: the lines looked for stand in the first part of each.
const TEXT_BYTES: usize = 4096;
/// Longer paths of cgroups are not looked at.
const PATH_BYTES: usize = 320;

/// The names of one version of cgroups' files.
struct Names {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Pages of files, of those inside of the group, too, as `used` counts them.
    files: [&'static str; 2],
}

const V2: Names = Names {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    files: ["inactive_file ", "active_file "],
};
const V1: Names = Names {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file ", "total_active_file "],
};

/// Bytes that can still be allocated: the minimum of two limits.
///
/// - the host's available memory and swap;
/// - what each cgroup around this process may still take.
///
/// A limit that cannot be read counts as infinite.
///
/// *Cost*: reads a few files of the kernel; never calls malloc.
pub fn bytes() -> u64 {
    let mut text = [0; TEXT_BYTES];
    let host = read("/proc/meminfo".as_bytes(), &mut text).map_or(u64::MAX, host_bytes);
    let mut groups = [0; TEXT_BYTES];
    let around = read("/proc/self/cgroup".as_bytes(), &mut groups).unwrap_or("");
    around
        .lines()
        .filter_map(memory_group)
        .fold(host, |least, (names, path)| least.min(groups_bytes(names, path)))
}

/// The most address space that this process may have (`ulimit -v`), if there is a limit.
pub fn address_space_limit() -> Option<u64> {
    Some(space::limit_bytes()).filter(|bytes| *bytes != u64::MAX)
}

/// Half of the address space that this process may still map; much without a limit.
///
/// What is as large as somebody likes takes this at most. What is as large as it must be (stacks,
/// buffers, the program's own memory) has the other half. So whether it fits never depends on how
/// well the larger part fits.
///
/// *Cost*: reads one file of the kernel; never calls malloc.
pub fn address_space_half() -> usize {
    usize::try_from(address_space_left() / 2).unwrap_or(usize::MAX)
}

/// The address space that this process may still map; `u64::MAX` without a limit.
///
/// *Cost*: as of [`address_space_half`].
pub fn address_space_left() -> u64 {
    let Some(limit) = address_space_limit() else { return u64::MAX };
    let mut text = [0; TEXT_BYTES];
    let statm = read("/proc/self/statm".as_bytes(), &mut text).unwrap_or("");
    let pages = statm.split_ascii_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    // without /proc, what is used is not known
    let used = pages.unwrap_or(0).saturating_mul(page_bytes() as u64);
    limit.saturating_sub(used)
}

/// Available memory and free swap, from `/proc/meminfo`.
fn host_bytes(meminfo: &str) -> u64 {
    let of = |name: &str| field(meminfo, name).map(|kib| kib.saturating_mul(1024));
    let Some(available) = of("MemAvailable:") else { return u64::MAX };
    available.saturating_add(of("SwapFree:").unwrap_or(0))
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The path and the file names of the cgroup that accounts memory, from a line of
/// `/proc/self/cgroup`.
fn memory_group(line: &str) -> Option<(&'static Names, &str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    if number == "0" && controllers.is_empty() {
        return Some((&V2, path));
    }
    controllers.split(',').any(|name| name == "memory").then_some((&V1, path))
}

/// The least that a group and those around it may still take.
fn groups_bytes(names: &Names, path: &str) -> u64 {
    let (mut path, mut least) = (path.trim_end_matches('/'), u64::MAX);
    loop {
        least = least.min(group_bytes(names, path));
        match path.rfind('/') {
            Some(end) => path = &path[..end],
            None => return least,
        }
    }
}

fn group_bytes(names: &Names, path: &str) -> u64 {
    let number = |name| {
        let mut text = [0; TEXT_BYTES];
        group_read(names, path, name, &mut text)?.trim().parse().ok()
    };
    let (Some(limit), Some(used)) = (number(names.limit), number(names.used)) else {
        return u64::MAX;
    };
    let mut text = [0; TEXT_BYTES];
    let stat = group_read(names, path, "memory.stat", &mut text).unwrap_or("");
    left(names, limit, used, stat)
}

/// How much a group with this limit may still take. The kernel drops pages of files before it
/// kills.
fn left(names: &Names, limit: u64, used: u64, stat: &str) -> u64 {
    let of = |name: &&str| field(stat, name).unwrap_or(0);
    let files = names.files.iter().map(of).fold(0, u64::saturating_add);
    limit.saturating_sub(used.saturating_sub(files))
}

fn group_read<'t>(
    names: &Names,
    path: &str,
    name: &str,
    text: &'t mut [u8; TEXT_BYTES],
) -> Option<&'t str> {
    let mut whole = [0; PATH_BYTES];
    let mut rest = &mut whole[..];
    write!(rest, "{}{path}/{name}", names.root).ok()?;
    let length = PATH_BYTES - rest.len();
    read(&whole[..length], text)
}

fn read<'t>(path: &[u8], text: &'t mut [u8; TEXT_BYTES]) -> Option<&'t str> {
    let mut file = File::open(OsStr::from_bytes(path)).ok()?;
    let mut length = 0;
    while length < text.len() {
        match file.read(&mut text[length..]).ok()? {
            0 => break,
            more => length += more,
        }
    }
    core::str::from_utf8(&text[..length]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn host_gives_what_is_available_and_its_swap() {
        let text =
            "MemTotal: 24000000 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\nSwapFree: 1 kB\n";
        assert_eq!(host_bytes(text), 2049 * 1024);
        assert_eq!(host_bytes("MemTotal: 3 kB\n"), u64::MAX, "before Linux 3.14");
    }

    #[test]
    fn group_gives_its_limit_less_what_is_used_and_not_of_files() {
        assert_eq!(left(&V2, 4 * GIB, GIB, ""), 3 * GIB);
        let stat = "anon 5\ninactive_file 1073741824\nactive_file 0\n";
        assert_eq!(left(&V2, 4 * GIB, 2 * GIB, stat), 3 * GIB);
        assert_eq!(left(&V2, GIB, 2 * GIB, ""), 0);
    }

    /// Its own pages of files are few where those of its jobs fill it.
    #[test]
    fn group_of_the_first_version_counts_files_of_those_inside() {
        let stat = "inactive_file 0\ntotal_inactive_file 1073741824\ntotal_active_file 0\n";
        assert_eq!(left(&V1, 4 * GIB, 4 * GIB, stat), GIB);
    }

    #[test]
    fn group_of_memory_is_found_in_both_versions() {
        let found = |line| memory_group(line).map(|(names, path)| (names.limit, path));
        assert_eq!(found("0::/a/b"), Some(("memory.max", "/a/b")));
        assert_eq!(found("4:cpu,memory:/x"), Some(("memory.limit_in_bytes", "/x")));
        assert_eq!(found("5:cpuset:/x"), None);
    }

    #[test]
    fn this_host_has_some_and_less_than_all() {
        let mut text = [0; TEXT_BYTES];
        let meminfo = read("/proc/meminfo".as_bytes(), &mut text).unwrap();
        let of = |name| field(meminfo, name).unwrap() * 1024;
        let all = of("MemTotal:") + of("SwapTotal:");
        assert!((1..all).contains(&bytes()), "{} of {all}", bytes());
    }
}
