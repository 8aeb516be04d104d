//! The simulator keeps the contract as a push rail and as a pull rail, ordered and not, with
//! every fault that the contract allows.

mod common;

use crosstie::base::units::{Bytes, Span};
use crosstie::fabric::Syscalls;
use crosstie_kit::sim::{CERTAIN, Faults, SimConfig, SimFabric, SimPort};

const FAULTS: Faults = Faults {
    delay: CERTAIN / 4,
    reorder: CERTAIN / 4,
    again: CERTAIN / 8,
    error: 0,
    rail_death: 0,
    late_completion: CERTAIN / 4,
    ghost: 0,
};

const PUSH: SimConfig = SimConfig {
    ports: 2,
    peers_max: 2,
    recv_slots: 4,
    payload_max: Bytes::kib(8),
    regions_max: 16,
    flights_max: 16,
    pull: false,
    ordered: true,
    immediate: true,
    copies_at_post: false,
    syscalls: Syscalls::None,
    latency: Span::micros(2),
    delay_max: Span::micros(5),
    seed: 1,
    faults: FAULTS,
};

fn pair(config: SimConfig) -> common::Pair<SimPort<'static, 'static>> {
    let fabric = SimFabric::open(config, &mut common::carver(SimFabric::bytes(config))).unwrap();
    let fabric: &'static SimFabric<'static> = Box::leak(Box::new(fabric));
    let (a, b) = fabric.connect(0, 1).unwrap();
    assert_eq!(a, b);
    let rejoin: common::Rejoin<_> = Box::new(move |_| fabric.connect_at(0, 1, a).unwrap());
    let providers = vec![fabric.port(0), fabric.port(1)];
    common::Pair { providers, peers: [a, b], rejoin: Some(rejoin) }
}

#[test]
fn ordered_push_rail_keeps_every_promise() {
    // no reads; sources are read late; no longer payloads towards one peer
    common::run_all(|| pair(PUSH), 3);
}

#[test]
fn unordered_push_rail_keeps_every_promise() {
    // beside these no order
    common::run_all(|| pair(SimConfig { ordered: false, ..PUSH }), 6);
}

#[test]
fn ordered_pull_rail_keeps_every_promise() {
    common::run_all(|| pair(SimConfig { pull: true, copies_at_post: true, ..PUSH }), 1);
}

#[test]
fn unordered_pull_rail_without_immediates_keeps_every_promise() {
    let config = SimConfig { pull: true, ordered: false, immediate: false, ..PUSH };
    common::run_all(move || pair(config), 7);
}

#[test]
fn many_seeds_keep_every_promise() {
    for seed in 2..12 {
        println!("seed {seed}");
        let config = SimConfig { seed, ordered: seed % 2 == 0, pull: seed % 3 == 0, ..PUSH };
        let skips = 2 + if config.pull { 0 } else { 1 } + if config.ordered { 0 } else { 3 };
        common::run_all(move || pair(config), skips);
    }
}
