//! One-sided operations of a group, over each rail.

mod group_support;
mod host_support;

use crosstie::host::{DeviceKind, Options};
use crosstie::window::{Comparison, Put};
use group_support::run;
use group_support::suite::{Place, Rail, fill};
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

/// The table of what needs no special set-up. Rails of other programs: `one_sided_libfabric`,
/// `one_sided_verbs` and `one_sided_gpu`.
#[test]
fn every_row_on_every_rail() {
    let shm = Rail::new("shm", DeviceKind::SharedMemory, 3);
    let private =
        Rail { place: Place::Private, ..Rail::new("shm, private", DeviceKind::SharedMemory, 2) };
    let rings = Rail {
        settings: vec![("CROSSTIE_KERNEL_COPY", "0".into())],
        place: Place::Private,
        ..Rail::new("shm, no CMA", DeviceKind::SharedMemory, 2)
    };
    let mixed = Rail {
        settings: vec![("CROSSTIE_SOCKET_IFNAME", "=lo".into())],
        // the last rank says that it is on another host
        settings_of: |rank| match rank {
            2 => vec![("CROSSTIE_NODE_ID", "1111222233334444".into())],
            _ => Vec::new(),
        },
        ..Rail::new("shm and TCP", DeviceKind::Host, 3)
    };
    fill(&[
        Rail::new("loopback", DeviceKind::Loopback, 1),
        shm,
        private,
        rings,
        Rail::new("TCP", DeviceKind::Tcp, 3),
        mixed,
    ]);
}
