//! Two sets of rails, shared memory and TCP, in one process, and what joins them.
#![allow(dead_code)]

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Bytes;
use crosstie::memory::{CpuSet, SharedHeap, WakeFd};
use crosstie::provider::rail_set::{Limits, RailSet, Way, bytes};
use crosstie::provider::shm::{self, HeapSpan, PeerSetup, RingSizes, SharedView};
use crosstie::provider::tcp;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

pub const SIZES: RingSizes = RingSizes { send_bytes: 64 << 10, write_bytes: 64 << 10 };
pub const REGIONS_MAX: u32 = 64;
/// So little with a call that a poll cannot take all of a long write.
pub const SETTINGS: tcp::Settings =
    tcp::Settings { threads: 0, thread_cpus: CpuSet::EMPTY, call_bytes: Bytes::kib(4) };

pub fn limits() -> Limits {
    Limits {
        shm: shm::Limits {
            peers_max: 2,
            regions_max: REGIONS_MAX,
            ops_max: 64,
            send_ring_bytes: SIZES.send_bytes,
            send_payload_max: 4096,
        },
        peers_max: 2,
        lane_bits: 0,
    }
}

pub fn alone() -> Limits {
    let both = limits();
    Limits { shm: shm::Limits { peers_max: 0, ..both.shm }, ..both }
}

pub fn tcp_limits(streams: u32) -> tcp::Limits {
    tcp::Limits { peers_max: 2, ops_max: 128, streams, lanes: 1 }
}

pub struct Side {
    pub rail: RailSet<'static>,
    pub ground: Ground,
}

/// What a rail's peers must know of it.
#[derive(Copy, Clone)]
pub struct Ground {
    heap: HeapSpan,
    bell: i32,
}

/// A provider without peers; what it stands on lives as long as the test.
pub fn side(limits: &Limits, streams: u32) -> Side {
    let heap = SharedHeap::create(c"mixed", 1 << 30, shm::board_bytes(REGIONS_MAX), 64).unwrap();
    let heap: &'static SharedHeap = Box::leak(Box::new(heap));
    let heap = HeapSpan { start: heap.start(), length: heap.length() };
    let block: &'static mut HeapBlock = Box::leak(Box::new(HeapBlock::new(bytes(limits))));
    let mut carver = block.carver();
    // SAFETY: the heap's head was made for the board, and it is never unmapped.
    let rail = unsafe {
        RailSet::open(&mut carver, limits, Some(heap), Some((tcp_limits(streams), SETTINGS)))
    };
    let rail = rail.unwrap();
    assert_eq!(carver.left(), 0, "`bytes` says what is carved");
    let bell: &'static WakeFd = Box::leak(Box::new(WakeFd::create().unwrap()));
    Side { rail, ground: Ground { heap, bell: bell.fd().as_raw_fd() } }
}

/// Joins peer `number` of both through shared memory.
pub fn join_shm(sides: &mut [Side; 2], number: u32) {
    let grounds = sides.each_ref().map(|side| side.ground);
    join_rails_shm(sides.each_mut().map(|side| &mut side.rail), grounds, number);
}

pub fn join_rails_shm(rails: [&mut RailSet<'static>; 2], grounds: [Ground; 2], number: u32) {
    let length = shm::rings_bytes(SIZES.send_bytes, SIZES.write_bytes);
    let rings = [(); 2].map(|()| Box::leak(Box::new(HeapBlock::new(length))).start());
    for (ours, rail) in rails.into_iter().enumerate() {
        let Ground { heap, bell } = grounds[1 - ours];
        // SAFETY: it lives as long as the test.
        let heap = unsafe { SharedView::new(heap.start, heap.length) };
        let setup = PeerSetup {
            rings: rings[ours],
            peer_rings: rings[1 - ours],
            sizes: SIZES,
            kernel_copy_pid: Some(std::process::id() as i32),
            heap: Some(heap),
            doorbell: Some(bell),
            use_fence_for_doorbell: false,
        };
        let peer = PeerIndex(number);
        // SAFETY: fresh zeroed rings; everything lives as long as the test.
        unsafe { rail.peer_open_shm(peer, &setup) }.expect("a fresh peer");
        assert_eq!(rail.way(peer), Some(Way::Shm));
    }
}

/// Joins peer `number` of both over TCP.
pub fn join_tcp(sides: &mut [Side; 2], number: u32, streams: usize) {
    join_rails_tcp(sides.each_mut().map(|side| &mut side.rail), number, streams);
}

pub fn join_rails_tcp(rails: [&mut RailSet<'static>; 2], number: u32, streams: usize) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut fds = [vec![], vec![]];
    for _ in 0..streams {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        for (fds, end) in fds.iter_mut().zip([near, far]) {
            end.set_nonblocking(true).unwrap();
            // open until the test's process ends
            fds.push(end.into_raw_fd());
        }
    }
    for (rail, fds) in rails.into_iter().zip(&fds) {
        let peer = PeerIndex(number);
        rail.peer_open_tcp(peer, fds, false).expect("a fresh peer");
        assert_eq!(rail.way(peer), Some(Way::Tcp));
    }
}
