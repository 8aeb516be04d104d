//! Shared memory and TCP as one rail keep the contract, on whichever of the two the peer is.

mod common;

use common::Pair;
use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::memory::{SharedHeap, WakeFd};
use crosstie::provider::mixed::{Limits, Mixed, Way, bytes};
use crosstie::provider::shm::{self, HeapSpan, PeerSetup, RingSizes};
use crosstie::provider::tcp;
use std::os::fd::AsRawFd;

const SIZES: RingSizes = RingSizes { send_bytes: 64 << 10, write_bytes: 64 << 10 };
const REGIONS_MAX: u32 = 16;
const SETTINGS: tcp::Settings = tcp::Settings { threads: 0, thread_cpus: 0 };

fn limits() -> Limits {
    Limits {
        shm: shm::Limits {
            peers_max: 2,
            regions_max: REGIONS_MAX,
            ops_max: 64,
            send_ring_bytes: SIZES.send_bytes,
            send_payload_max: 4096,
        },
        tcp: Some(tcp::Limits { peers_max: 2, ops_max: 64 }),
    }
}

struct Side {
    rail: Mixed<'static>,
    heap: HeapSpan,
    bell: i32,
}

/// A provider without peers; what it stands on lives as long as the test.
fn side(limits: &Limits) -> Side {
    let heap = SharedHeap::create(c"mixed", 1 << 30, shm::board_bytes(REGIONS_MAX), 64).unwrap();
    let heap: &'static SharedHeap = Box::leak(Box::new(heap));
    let heap = HeapSpan { start: heap.start(), length: heap.length() };
    let block: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(bytes(limits))));
    let mut carver = block.carver();
    // SAFETY: the heap's head was made for the board, and it is never unmapped.
    let rail = unsafe { Mixed::open(&mut carver, limits, Some(heap), Some(SETTINGS)) }.unwrap();
    assert_eq!(carver.left(), 0, "`bytes` says what is carved");
    let bell: &'static WakeFd = Box::leak(Box::new(WakeFd::create().unwrap()));
    Side { rail, heap, bell: bell.fd().as_raw_fd() }
}

/// Joins peer `number` of both through shared memory.
fn join_shm(sides: &mut [Side; 2], number: u32) {
    let length = shm::rings_bytes(SIZES.send_bytes, SIZES.write_bytes);
    let rings: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(length)));
    let rings = rings.start();
    let others = sides.each_ref().map(|side| (side.heap, side.bell));
    for (ours, side) in sides.iter_mut().enumerate() {
        let (heap, bell) = others[1 - ours];
        let setup = PeerSetup {
            rings,
            sizes: SIZES,
            side: ours as u8,
            kernel_copy_pid: Some(std::process::id() as i32),
            heap: Some(heap),
            doorbell: Some(bell),
            use_fence_for_doorbell: false,
        };
        let peer = PeerIndex(number);
        // SAFETY: fresh zeroed rings, one side each; everything lives as long as the test.
        unsafe { side.rail.peer_open_shm(peer, &setup) }.expect("a fresh peer");
        assert_eq!(side.rail.way(peer), Some(Way::Shm));
    }
}

fn pair(sides: [Side; 2]) -> Pair<Mixed<'static>> {
    Pair { providers: sides.map(|side| side.rail).into(), peers: [PeerIndex(0); 2] }
}

#[test]
fn peer_in_shared_memory_finds_every_promise_kept() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&limits()));
        join_shm(&mut sides, 0);
        pair(sides)
    };
    common::run_all(make, SHM_SKIPS);
}

/// Shared memory keeps no order between its two rings.
const SHM_SKIPS: usize = 2;
