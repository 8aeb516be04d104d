//! The plugin over RDMA ports: in the guest of `tests/vm` with its wires, where two processes are
//! two ends of them. What NCCL does is done over queue pairs, with the bytes that they carried.

#[allow(dead_code)] // of the shared parts
mod support;
#[path = "support/wires.rs"]
mod wires;

use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{CONTRACT, harness, play_in, plugin};

/// One at a time, on few and slow CPUs; `None`: there are no such ports here, and it was said.
fn alone_on_wires() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    wires::are_here().then_some(alone)
}

/// Over the ports of both ends, and nothing else but what connections are made by.
const OVER_PORTS: [(&str, &str); 3] = [
    ("HARNESS_PORTS", "=rxe0,rxe1;=rxe2,rxe3"),
    ("CROSSTIE_RAILS", "verbs"),
    // an eighth of a second: emulated devices are slow, and lose packets when they are busy
    ("NCCL_IB_TIMEOUT", "15"),
];

fn play(scenario: &str, version: u32, more: &[(&str, &str)]) {
    let environment: Vec<_> = OVER_PORTS.iter().chain(more).copied().collect();
    let start = std::time::Instant::now();
    play_in(&environment, harness(), &plugin(), scenario, version);
    println!("{scenario} with v{version}: {} ms", start.elapsed().as_millis());
}

/// Where links are cut below the sockets that are the reserve, these go another way.
const BESIDE: [(&str, &str); 1] = [("CROSSTIE_SOCKET_IFNAME", "lo")];

#[test]
fn harness_is_built() {
    assert!(harness().exists() && plugin().exists());
}

#[test]
fn ports_are_devices_and_interfaces_only_without_them() {
    let Some(_alone) = alone_on_wires() else { return };
    for version in [6, 9, 12] {
        play("ports_shown", version, &[]);
        play("ports_chosen", version, &[]);
    }
    play("properties", 12, &[]);
    play("lines", 12, &[]);
}

#[test]
fn connection_of_a_port_goes_over_that_port_alone() {
    let Some(_alone) = alone_on_wires() else { return };
    play("ports_apart", 12, &[]);
    play("ports_apart", 6, &[]);
}

/// Those of NCCL's variables that say which GID, with the addresses of IPv6 that the guest has.
#[test]
fn connection_of_a_port_goes_over_ipv6_where_nccl_asks_for_it() {
    let Some(_alone) = alone_on_wires() else { return };
    let family = ("NCCL_IB_ADDR_FAMILY", "AF_INET6");
    play("ports_apart", 12, &[family]);
    play("ports_fused", 12, &[family, ("NCCL_IB_ADDR_RANGE", "fd77::/48")]);
}

#[test]
fn device_of_two_ports_has_a_rail_on_each() {
    let Some(_alone) = alone_on_wires() else { return };
    play("ports_fused", 9, &[]);
    play("ports_fused", 12, &[]);
}

#[test]
fn devices_that_are_not_alike_use_the_ports_that_both_reach() {
    let Some(_alone) = alone_on_wires() else { return };
    play("ports_uneven", 12, &[]);
    play("ports_and_interfaces", 12, &[]);
}

#[test]
fn link_that_goes_down_and_up_costs_no_message() {
    let Some(_alone) = alone_on_wires() else { return };
    play("ports_link_pulled", 12, &BESIDE);
    // with a socket of the reserve on each link
    play("ports_link_pulled", 9, &[]);
}

/// By one table: `plugin.rs` has them by each, and what differs between tables is above the rails.
/// The tables' own ways to make and leave devices of ports are played above.
#[test]
fn points_of_the_contract_hold_over_ports() {
    let Some(_alone) = alone_on_wires() else { return };
    for scenario in CONTRACT {
        play(scenario, 12, &[]);
    }
}

#[test]
fn traffic_at_random_arrives_whole_over_ports() {
    let Some(_alone) = alone_on_wires() else { return };
    play("traffic", 12, &[]);
}
