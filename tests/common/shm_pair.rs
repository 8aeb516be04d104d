//! Two connected shared-memory providers in one process.

use crosstie::base::carve::Carver;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::memory::{SharedHeap, WakeFd};
use crosstie::provider::shm::{
    HeapSpan, Limits, PeerSetup, RingSizes, SharedView, Shm, board_bytes, bytes, rings_bytes,
};
use std::os::fd::AsRawFd;

/// How the two reach each other's memory.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct PairConfig {
    /// Capacities of each side.
    pub limits: Limits,
    /// Sizes of the rings.
    pub sizes: RingSizes,
    /// Whether each side has a shared heap, and with it a board.
    pub heaps: bool,
    /// Whether each side may read the other through the kernel.
    pub kernel_copy: bool,
    /// Whether doorbells are ordered by fences.
    pub use_fence: bool,
    /// Threads that copy what is long; see [`Shm::copy_threads`].
    pub threads: u32,
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        PairConfig {
            limits: Limits {
                peers_max: 2,
                regions_max: 16,
                ops_max: 64,
                send_ring_bytes: 64 << 10,
                send_payload_max: 4096,
            },
            sizes: RingSizes { send_bytes: 64 << 10, write_bytes: 64 << 10 },
            heaps: true,
            kernel_copy: true,
            use_fence: false,
            threads: 0,
        }
    }
}

/// What two connected providers stand on. Outlives both.
pub struct PairMemory {
    config: PairConfig,
    rings: [HeapBlock; 2],
    blocks: [HeapBlock; 2],
    /// Each side's heap, for buffers that the other reads directly.
    pub heaps: [Option<SharedHeap>; 2],
    /// Each side's doorbell.
    pub bells: [WakeFd; 2],
}

impl PairMemory {
    /// Makes the memory. *Panics* when the system has none.
    pub fn new(config: PairConfig) -> PairMemory {
        let heap = || {
            let head = board_bytes(config.limits.regions_max);
            config.heaps.then(|| SharedHeap::create(c"pair", 1 << 30, head, 64).expect("a heap"))
        };
        let RingSizes { send_bytes, write_bytes } = config.sizes;
        let rings = || HeapBlock::new(rings_bytes(send_bytes, write_bytes));
        let block = || HeapBlock::new(bytes(&config.limits));
        PairMemory {
            config,
            rings: [rings(), rings()],
            blocks: [block(), block()],
            heaps: [heap(), heap()],
            bells: [(); 2].map(|()| WakeFd::create().expect("an eventfd")),
        }
    }

    /// First byte of the rings that a side writes, for tests that break them.
    pub fn rings(&mut self, side: usize) -> *mut u8 {
        self.rings[side].start()
    }

    /// Opens both providers and connects them as peer 0 of each other. Call it once.
    pub fn open(&mut self) -> [Shm<'_>; 2] {
        let spans = self.heaps.each_ref().map(|heap| {
            heap.as_ref().map(|heap| HeapSpan { start: heap.start(), length: heap.length() })
        });
        let bells = self.bells.each_ref().map(|bell| bell.fd().as_raw_fd());
        let config = self.config;
        let rings = self.rings.each_mut().map(HeapBlock::start);
        let mut ours = 0;
        let mut pair = self.blocks.each_mut().map(|block| {
            let mut carver: Carver = block.carver();
            // SAFETY: the heap's head was made for the board, and the heap outlives the borrow.
            let shm = unsafe { Shm::open(&mut carver, &config.limits, spans[ours]) };
            assert_eq!(carver.left(), 0, "`bytes` says what is carved");
            ours += 1;
            let mut shm = shm.expect("the block is as long as `bytes` says");
            // SAFETY: what a test registers, and the rings, outlive the borrow.
            unsafe { shm.copy_threads(config.threads) };
            shm
        });
        // Both boards are laid now, so each finds the other's.
        for (ours, shm) in pair.iter_mut().enumerate() {
            // SAFETY: the heaps outlive the borrow.
            let view = |span: HeapSpan| unsafe { SharedView::new(span.start, span.length) };
            let setup = PeerSetup {
                rings: rings[ours],
                peer_rings: rings[1 - ours],
                sizes: config.sizes,
                kernel_copy_pid: config.kernel_copy.then(|| std::process::id() as i32),
                heap: spans[1 - ours].map(view),
                doorbell: Some(bells[1 - ours]),
                use_fence_for_doorbell: config.use_fence,
            };
            // SAFETY: fresh zeroed rings; everything outlives the borrow.
            unsafe { shm.peer_open(PeerIndex(0), &setup) }.expect("a fresh peer");
        }
        pair
    }
}
