//! The shared-memory rail keeps the contract, whichever way it reads its peer.

mod common;

use common::Pair;
use crosstie::base::ids::PeerIndex;
use crosstie::provider::shm::Shm;
use crosstie::provider::shm::pair::{PairConfig, PairMemory};

fn pair(config: PairConfig) -> Pair<Shm<'static>> {
    let memory: &'static mut PairMemory = Box::leak(Box::new(PairMemory::new(config)));
    let [a, b] = memory.open();
    Pair { providers: vec![a, b], peers: [PeerIndex(0); 2] }
}

#[test]
fn kernel_copies_keep_every_promise() {
    common::run_all(|| pair(PairConfig::default()), SKIPS);
}

#[test]
fn copies_through_the_ring_keep_every_promise() {
    let config = PairConfig { heaps: false, kernel_copy: false, ..PairConfig::default() };
    common::run_all(move || pair(config), SKIPS);
}

#[test]
fn doorbells_with_fences_keep_every_promise() {
    let config = PairConfig { use_fence: true, ..PairConfig::default() };
    common::run_all(move || pair(config), SKIPS);
}

/// The rail keeps no order between its two rings.
const SKIPS: usize = 2;
