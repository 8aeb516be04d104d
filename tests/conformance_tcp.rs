//! The TCP rail keeps the contract, over real sockets of the loopback device.

mod common;

use common::Pair;
use crosstie::base::ids::PeerIndex;
use crosstie::provider::tcp::pair::{PairConfig, PairMemory};
use crosstie::provider::tcp::{Limits, Tcp};

fn pair(config: PairConfig) -> Pair<Tcp<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    let [a, b] = memory.open();
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2] }
}

fn streams(streams: u32) -> PairConfig {
    let config = PairConfig::default();
    PairConfig { limits: Limits { streams, ..config.limits }, ..config }
}

/// Several streams keep no order among each other.
const SKIPS_UNORDERED: usize = 2;

#[test]
fn one_stream_keeps_every_promise() {
    common::run_all(|| pair(streams(1)), 0);
}

#[test]
fn one_stream_over_ipv6_keeps_every_promise() {
    common::run_all(|| pair(PairConfig { v6: true, ..streams(1) }), 0);
}

#[test]
fn four_streams_keep_every_promise() {
    common::run_all(|| pair(streams(4)), SKIPS_UNORDERED);
}
