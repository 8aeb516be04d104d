//! What the first connection over libfabric's shared memory costs: alone in its process, because
//! the memory that it takes is that of the process.

mod libfabric_support;

use crosstie::fabric::{Completion, OpKind};
use crosstie::provider::libfabric::{Config, survey::survey};
use libfabric_support::PEER;
use libfabric_support::end::{End, WHICH, join, pipe};
use std::time::{Duration, Instant};

const MEMORY_KIB_MAX: u64 = 20 << 10;

/// Runs in children alone: answers the first message.
#[test]
fn child() {
    let Ok(provider) = std::env::var(WHICH) else { return };
    let (mut to, mut from) = (pipe(3), std::io::stdin());
    let Some(mut end) = End::open(&provider, 0x5eed_0002, &mut to, &mut from) else { return };
    message(&mut end);
    send(&mut end);
    while !end.seen.iter().any(|seen| matches!(seen, Completion::PeerDown { .. })) {
        end.poll_politely(); // until it is killed
    }
}

fn send(end: &mut End) {
    let payload = end.span(0, 8);
    assert!(end.post(OpKind::Send { head: [1; 32], payload }).is_some());
}

fn message(end: &mut End) {
    end.until("a message", |end| {
        end.seen.iter().any(|seen| matches!(seen, Completion::Received { peer: PEER, .. }))
    });
}

/// The process's resident memory.
fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What this thread and the library's have spent, which others on the machine do not change.
fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    let said = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(said, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn first_connection_over_shm_takes_at_most_20_mb() {
    if std::env::var_os(WHICH).is_some() {
        return;
    }
    let (start, before) = (Instant::now(), spent());
    let found = survey(&Config { provider: Some(c"shm"), ..Config::DEFAULT });
    let (loaded, load_spent) = (start.elapsed(), spent() - before);
    let (memory, before) = (resident_kib(), spent());
    let Some((mut child, mut end)) = join("shm") else { return };
    let start = Instant::now();
    send(&mut end);
    message(&mut end);
    let (answered, all_spent) = (start.elapsed(), spent() - before);
    let grown = resident_kib() - memory;
    println!(
        "libfabric {}, {:?}: found in {loaded:?} ({load_spent:?} of CPU time); rail and first \
         connection {all_spent:?} of CPU time and {grown} KiB; first answer after {answered:?}",
        end.rail.version(),
        end.rail.provider_name(),
    );
    assert!(found.is_ok());
    assert!(grown <= MEMORY_KIB_MAX, "{grown} KiB");
    child.kill().unwrap();
    child.wait().unwrap();
}
