//! Two connected rails in one process.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::provider::libfabric::{Config, Libfabric, Limits, OpenError, bytes};

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
    /// *Panics* when the library refuses to connect what it has opened.
    pub fn open(&mut self, config: &Config) -> Result<[Libfabric<'_>; 2], OpenError> {
        let limits = self.limits;
        let mut rails = [None, None];
        for (rail, block) in rails.iter_mut().zip(&mut self.blocks) {
            let mut carver = block.carver();
            *rail = Some(Libfabric::open(&mut carver, &limits, config)?);
            assert_eq!(carver.left(), 0, "`bytes` says what is carved");
        }
        let mut rails = rails.map(|rail| rail.expect("just opened"));
        connect(&mut rails, PeerIndex(0), 0x1234_5678);
        Ok(rails)
    }
}

/// Connects two rails as the same peer of each other.
///
/// *Panics* when the library refuses.
pub fn connect(rails: &mut [Libfabric; 2], peer: PeerIndex, token: u32) {
    let mut token = token;
    let hellos = rails.each_mut().map(|rail| {
        token = token.wrapping_add(0x0101).max(1);
        rail.peer_prepare(peer, token).unwrap_or_else(|error| panic!("{error}"))
    });
    for (rail, hello) in rails.iter_mut().zip([hellos[1], hellos[0]]) {
        rail.peer_connect(peer, &hello).unwrap_or_else(|error| panic!("{error}"));
    }
}
