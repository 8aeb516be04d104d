//! One-sided operations of a group, over each rail.

mod group_support;
mod host_support;

use crosstie::host::{DeviceKind, Options};
use crosstie::window::{Comparison, Put};
use group_support::run;
use host_support::small;

fn ring(options: &Options, ranks: u32) {
    run(options, ranks, |rank| {
        let (window, memory) = rank.window(1 << 20);
        let source = rank.memory(1 << 20);
        let next = (rank.rank + 1) % rank.ranks;
        let before = (rank.rank + rank.ranks - 1) % rank.ranks;
        let mut expected = 0;
        for (step, bytes) in [0, 1, 8, 2048, 2049, 65_536, 1 << 20].into_iter().enumerate() {
            source.fill(u64::from(rank.rank) + step as u64);
            let put =
                Put { window, rank: next, offset: 0, signal: Some((1, 3)), counter: Some((2, 1)) };
            let ticket = rank.put(&put, source, 0, bytes).unwrap();
            expected += 3;
            rank.wait_signal((window, 1, Some(before)), Comparison::GreaterEqual, expected, None)
                .unwrap();
            memory.check(0, bytes, u64::from(before) + step as u64);
            rank.wait_local(ticket).unwrap();
            rank.wait_counter((window, 2), Comparison::Equal, step as u64 + 1, None).unwrap();
            rank.barrier(window, 0).unwrap();
            let back = rank.get((window, next), 0, source, bytes).unwrap();
            rank.wait_local(back).unwrap();
            source.check(0, bytes, u64::from(rank.rank) + step as u64);
            rank.barrier(window, 1).unwrap();
        }
        rank.flush().unwrap();
        rank.barrier(window, 0).unwrap();
    });
}

#[test]
fn a_ring_over_shared_memory() {
    ring(&Options { device: DeviceKind::SharedMemory, ..small(16) }, 3);
}

#[test]
fn a_ring_over_tcp() {
    ring(&Options { device: DeviceKind::Tcp, ..small(16) }, 3);
}

#[test]
fn a_ring_over_loopback() {
    ring(&Options { device: DeviceKind::Loopback, ..small(16) }, 1);
}
