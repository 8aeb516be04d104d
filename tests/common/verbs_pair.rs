//! Two connected rails of verbs in one process, over devices that reach each other.
#![allow(dead_code)] // not all of it in every program

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::provider::verbs::sys::{Device, Library};
use crosstie::provider::verbs::{Config, Limits, PeerOpenError, Verbs, bytes};
use crosstie::wire::queue_pair::QueuePairHello;
use std::time::Duration;

/// How often, and how long after each time, a peer is tried that the kernel has to look for.
const TRIES_MAX: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// What two connected rails stand on. Outlives both.
pub struct PairMemory {
    limits: Limits,
    blocks: [HeapBlock; 2],
}

impl PairMemory {
    /// A block for each.
    pub fn new(limits: Limits) -> PairMemory {
        PairMemory { limits, blocks: [(); 2].map(|()| HeapBlock::new(bytes(&limits))) }
    }

    /// Opens both rails and connects them as peer 0 of each other. Call it once.
    ///
    /// *Panics* when a device refuses.
    pub fn open(&mut self, configs: [Config; 2]) -> [Verbs<'_>; 2] {
        let limits = self.limits;
        let mut configs = configs.iter();
        let mut rails = self.blocks.each_mut().map(|block| {
            let mut carver = block.carver();
            let config = configs.next().expect("one for each");
            let rail = Verbs::open(&mut carver, &limits, config);
            let rail = rail.unwrap_or_else(|error| panic!("{}: {error}", config.device));
            assert_eq!(carver.left(), 0, "`bytes` says what is carved");
            rail
        });
        connect(&mut rails, PeerIndex(0), RailGeneration(1));
        rails
    }
}

/// Connects two rails as the same peer of each other.
///
/// *Panics* when a device refuses.
pub fn connect(rails: &mut [Verbs; 2], peer: PeerIndex, generation: RailGeneration) {
    let mut first_packet = 0x1234 + generation.0;
    let hellos = rails.each_mut().map(|rail| {
        first_packet += 0x10_0000;
        rail.peer_prepare(peer, generation, first_packet).unwrap_or_else(|error| panic!("{error}"))
    });
    for (rail, hello) in rails.iter_mut().zip([hellos[1], hellos[0]]) {
        let told = QueuePairHello::decode(&hello.encode()).expect("what was just encoded");
        let mut tries = 0;
        let joined = loop {
            tries += 1;
            match rail.peer_connect(peer, &told) {
                Err(PeerOpenError::NoAnswer) if tries < TRIES_MAX => std::thread::sleep(PAUSE),
                joined => break joined,
            }
        };
        joined.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The names of the devices, or why there are none.
pub fn devices() -> Result<Vec<String>, String> {
    let library = Library::load().map_err(|error| format!("{error}"))?;
    let mut names = Vec::new();
    let listed = Device::each(library, |_, name| names.push(String::from(name)));
    listed.map_err(|errno| format!("the RDMA devices cannot be listed: {errno}"))?;
    match names.is_empty() {
        true => Err(String::from("no RDMA device on this host")),
        false => Ok(names),
    }
}
