//! Two shared-memory providers in two processes, one of which is killed.

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::*;
use crosstie::memory::{SharedHeap, SharedMapping, WakeFd, kernel_copy, wake};
use crosstie::provider::shm::{self, HeapSpan, Limits, PeerSetup, RingSizes, SharedView, Shm};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

const PEER: PeerIndex = PeerIndex(0);
const NOW: Instant = Instant(0);
const BYTES: usize = 1 << 20;
const SIZES: RingSizes = RingSizes { send_bytes: 16 << 10, write_bytes: 32 << 10 };
const LIMITS: Limits = Limits {
    peers_max: 1,
    regions_max: 8,
    ops_max: 32,
    send_ring_bytes: 16 << 10,
    send_payload_max: 1024,
};

/// Made before the fork, so both processes map it.
struct Link {
    rings: [SharedMapping; 2],
    heaps: [SharedHeap; 2],
    bells: [WakeFd; 2],
}

impl Link {
    fn new() -> Link {
        let bytes = shm::rings_bytes(SIZES.send_bytes, SIZES.write_bytes);
        let rings = || {
            let rings = SharedMapping::create(c"rings", bytes).unwrap();
            rings.populate(0, bytes).unwrap();
            rings
        };
        let heap = || {
            let head = shm::board_bytes(LIMITS.regions_max);
            SharedHeap::create(c"heap", 1 << 30, head, 8).unwrap()
        };
        let bells = [(); 2].map(|()| WakeFd::create().unwrap());
        Link { rings: [rings(), rings()], heaps: [heap(), heap()], bells }
    }

    fn span(&self, side: usize) -> HeapSpan {
        HeapSpan { start: self.heaps[side].start(), length: self.heaps[side].length() }
    }

    /// Opens one side's provider, not connected yet.
    fn provider<'m>(&self, side: usize, block: &'m mut HeapBlock) -> Shm<'m> {
        // SAFETY: the heap's head was made for the board; the link outlives the provider.
        unsafe { Shm::open(&mut block.carver(), &LIMITS, Some(self.span(side))) }.unwrap()
    }

    fn connect(&self, shm: &mut Shm, side: usize, pid: Option<i32>) {
        let HeapSpan { start, length } = self.span(1 - side);
        // SAFETY: the link outlives the provider.
        let heap = unsafe { SharedView::new(start, length) };
        let setup = PeerSetup {
            rings: self.rings[side].start(),
            peer_rings: self.rings[1 - side].start(),
            sizes: SIZES,
            kernel_copy_pid: pid,
            heap: Some(heap),
            doorbell: Some(self.bells[1 - side].fd().as_raw_fd()),
            use_fence_for_doorbell: false,
        };
        // SAFETY: fresh zeroed rings; the link outlives the provider.
        unsafe { shm.peer_open(PEER, &setup) }.unwrap();
    }
}

fn span(bytes: &mut [u8], key: RailKey) -> LocalSpan {
    // SAFETY: the buffers outlive the ops.
    unsafe { LocalSpan::new(bytes.as_mut_ptr() as u64, Bytes::of(bytes.len()), key) }
}

fn register(shm: &Shm, bytes: &[u8]) -> RailKey {
    let (address, length) = (bytes.as_ptr() as u64, Bytes::of(bytes.len()));
    // SAFETY: the buffers outlive the providers.
    unsafe { shm.domain().register(Region { address, length, kind: MemoryKind::Host }) }.unwrap()
}

fn poll(shm: &mut Shm) -> Option<Completion> {
    let mut out = [Completion::PeerDown { peer: PEER, cause: DownCause::Closed }];
    (shm.poll(&mut out, Bytes::kib(256), NOW) == 1).then_some(out[0])
}

/// The child: tells where its buffers are, then sends without end. It allocates nothing, as a
/// fork of a process with threads must not.
fn child(link: &Link, shm: &mut Shm, private: &mut [u8], shared: &mut [u8]) -> ! {
    private.fill(7);
    shared.fill(8);
    let mut hello = [0u64; 4];
    hello[0] = register(shm, private).0;
    hello[1] = private.as_ptr() as u64;
    hello[2] = register(shm, shared).0;
    hello[3] = shared.as_ptr() as u64;
    link.connect(shm, 1, None);
    loop {
        // SAFETY: the words live as long as the post.
        let payload = unsafe { LocalSpan::new(hello.as_ptr() as u64, Bytes(32), RailKey(0)) };
        let kind = OpKind::Send { head: [1; HEAD_BYTES], payload };
        let _ = shm.post(&Op { id: OpId(0), peer: PEER, kind }, NOW);
        if let Some(Completion::PeerDown { .. }) = poll(shm) {
            // SAFETY: ends the child without running what the parent registered.
            unsafe { libc::_exit(0) };
        }
    }
}

fn await_hello(shm: &mut Shm) -> [u64; 4] {
    let deadline = Clock::now() + Duration::from_secs(600);
    loop {
        assert!(Clock::now() < deadline, "the child says nothing");
        if let Some(Completion::Received { slot, .. }) = poll(shm) {
            let mut bytes = [0u8; 32];
            shm.received_peek(PEER, slot, &mut bytes);
            shm.received_release(PEER, slot);
            let (words, _) = bytes.as_chunks::<8>();
            return core::array::from_fn(|i| u64::from_ne_bytes(words[i]));
        }
    }
}

/// What a run with a killed child ended with: reads that succeeded, and how many ended at all.
fn run(delay: Duration) -> (u32, u32) {
    let link = Link::new();
    let mut blocks = [0; 2].map(|_| HeapBlock::new(shm::bytes(&LIMITS)));
    let [ours, theirs] = &mut blocks;
    let mut parent = link.provider(0, ours);
    let mut other = link.provider(1, theirs);
    let mut private = vec![0u8; BYTES];
    let (at, _) = link.heaps[1].allocate(BYTES).unwrap();
    // SAFETY: just allocated, and the link outlives it.
    let shared = unsafe { core::slice::from_raw_parts_mut(at, BYTES) };
    // SAFETY: the child only touches what was made before, and leaves by `_exit` or a signal.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        child(&link, &mut other, &mut private, shared);
    }
    link.connect(&mut parent, 0, Some(pid));
    let [key, address, shared_key, shared_address] = await_hello(&mut parent);
    assert!(kernel_copy::probe(pid, address, 0x0707_0707_0707_0707));
    let sources = [(key, address, 7), (shared_key, shared_address, 8)];
    let mut target = vec![0u8; BYTES];
    let local = register(&parent, &target);
    let to = span(&mut target, local);
    let (mut succeeded, mut ended, mut posted, mut down) = (0, 0, 0, false);
    let (start, mut killed) = (Clock::now(), false);
    while !down || ended < posted {
        assert!(start.elapsed() < Duration::from_secs(600), "hangs");
        let (key, address, byte) = sources[posted as usize % 2];
        if ended == posted && !down {
            let source = RemoteSpan { key: RailKey(key), address };
            let kind = OpKind::Read { target: to, source };
            posted += u32::from(parent.post(&Op { id: OpId(byte), peer: PEER, kind }, NOW).is_ok());
        }
        match poll(&mut parent) {
            Some(Completion::Done { id, result, .. }) => {
                ended += 1;
                if result.is_ok() {
                    succeeded += 1;
                    assert!(target.iter().all(|b| u64::from(*b) == id.0));
                }
            }
            Some(Completion::Received { slot, .. }) => parent.received_release(PEER, slot),
            Some(Completion::PeerDown { cause, .. }) => {
                assert_eq!(cause, DownCause::Died);
                down = true;
            }
            _ => {}
        }
        if !killed && start.elapsed() >= delay {
            killed = true;
            // SAFETY: our own child, which nobody has waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
            parent.peer_fail(PEER, DownCause::Died);
        }
    }
    assert_eq!(parent.peer_close(PEER), Ok(()));
    (succeeded, ended)
}

#[test]
fn a_killed_peer_ends_everything_and_reads_that_succeed_are_whole() {
    let _ = wake::barrier_register();
    let (mut succeeded, mut ended) = (0, 0);
    for round in 0..20u64 {
        let (s, e) = run(Duration::from_micros(round * round * 50));
        succeeded += s;
        ended += e;
    }
    assert!(succeeded > 0 && ended > succeeded, "{succeeded} of {ended}");
}
