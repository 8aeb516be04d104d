//! Which CPUs two processes are pinned to.
#![forbid(unsafe_code)]

use crosstie::memory::probe;
use std::fs;

/// Two allowed CPUs, on different cores where there are such; `None` with a single CPU.
pub fn two() -> Option<(u32, u32)> {
    let allowed = probe::cpus_allowed();
    let (first, rest) = allowed.split_first()?;
    let siblings = siblings(*first);
    let apart = rest.iter().find(|cpu| !siblings.split(',').any(|part| covers(part, **cpu)));
    apart.or(rest.first()).map(|second| (*first, *second))
}

/// Hardware threads of one core, as the kernel lists them: `0,4` or `0-1`.
fn siblings(cpu: u32) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).unwrap_or_default()
}

fn covers(part: &str, cpu: u32) -> bool {
    let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&cpu),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert!(covers("0-3", 2) && covers("5\n", 5));
        assert!(!covers("0-3", 4) && !covers("", 0));
    }
}
