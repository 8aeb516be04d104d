//! Shared memory and TCP with the copy engine keep the contract where memory lies in GPUs, over the
//! test double of the CUDA driver: with its delays, with markers that come in another order than
//! copies were posted, with and without access between GPUs.

mod common;
mod cuda_support;
#[path = "common/gpu_rail.rs"]
mod gpu_rail;
#[path = "common/set_pair.rs"]
mod set_pair;

use common::{Pair, PairRig, Pause, Rejoin};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, MemoryKind, Op, OpId, OpKind, PeerLife,
    PostError, Posted, Provider, RailKey, Region, RemoteSpan, Source,
};
use crosstie_kit::conformance::ARENA_BYTES;
use cuda_support::control::assert_nothing_lives;
use cuda_support::driver::cuStreamQuery;
use cuda_support::steps::NOT_READY;
use cuda_support::{control, with_double};
use gpu_rail::{Arena, GpuRail, Place, gpu_rails};
use set_pair::{Ground, join_rails_shm, join_rails_tcp, limits, side};
use std::rc::Rc;

/// How long anything may take before a test says that it hangs.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(600);
const PEER: PeerIndex = PeerIndex(0);

/// What the peers are on.
#[derive(Copy, Clone, Debug)]
enum Way {
    Shm,
    /// Shared memory, as one of several lanes.
    Lane,
    Tcp,
}

fn join(rails: &mut [GpuRail], grounds: [Ground; 2], way: Way) {
    let [a, b] = rails else { panic!("two rails") };
    match way {
        Way::Shm | Way::Lane => join_rails_shm([a.set(), b.set()], grounds, 0),
        Way::Tcp => join_rails_tcp([a.set(), b.set()], 0, 1),
    }
    for rail in rails {
        rail.set().peer_has_gpus(PEER);
        if let Way::Lane = way {
            rail.set().peer_is_lane(PEER);
        }
    }
}

fn pair(way: Way, arenas: [Arena; 2]) -> Pair<GpuRail> {
    let mut sides = [(); 2].map(|()| side(&limits(), 1));
    if let Way::Lane = way {
        sides.iter_mut().for_each(|side| side.rail.lanes_reserve().unwrap());
    }
    let grounds = sides.each_ref().map(|side| side.ground);
    let mut providers: Vec<GpuRail> = gpu_rails(sides.map(|side| side.rail), arenas).into();
    join(&mut providers, grounds, way);
    let rejoin: Rejoin<GpuRail> = Box::new(move |rails| join(rails, grounds, way));
    Pair { providers, peers: [PEER; 2], rejoin: Some(rejoin) }
}

/// Shared memory keeps no order between its two rings, and memory of GPUs keeps none on any rail;
/// bytes move between polls, and nothing repeats exactly.
const SKIPS: usize = 3 + 2;
/// Shared memory detaches no peers, and has no longer payloads towards one.
const SHM_SKIPS: usize = SKIPS + 2;

/// Lets streams and threads have their turn.
fn yield_now(_: &mut Pair<GpuRail>) {
    std::thread::yield_now();
}

/// The whole suite between memory at two places, whose bytes go one way, as the double counts them.
fn suite(way: Way, places: [Place; 2], copies: &str) {
    let arenas = places.map(Arena::new);
    let make: Rc<dyn Fn() -> Pair<GpuRail>> = Rc::new(move || pair(way, arenas));
    let pause = Pause { wait: yield_now, threads: true };
    let rig = || PairRig::on(make.clone(), arenas.map(|arena| arena.memory()), pause);
    let skips = if let Way::Tcp = way { SKIPS } else { SHM_SKIPS };
    common::run_all_rigs(rig, skips);
    assert_eq!(control::faults(), 0, "a stream found its memory gone");
    assert!(control::bytes(copies) > 0);
    assert_eq!(control::bytes("peer") > 0, copies == "peer", "copies from GPU to GPU");
    assert_eq!(control::bytes("pageable"), 0);
    arenas.into_iter().for_each(Arena::free);
    assert_nothing_lives();
}

/// A test under the double: its name, settings, rail and places.
macro_rules! suites {
    ($($name:ident: $way:ident, $settings:expr, $places:expr, $copies:literal;)*) => { $(
        #[test]
        fn $name() {
            with_double(stringify!($name), $settings, || suite(Way::$way, $places, $copies));
        }
    )* };
}

const LATE: (&str, &str) = ("CUDA_DOUBLE_DELAY_NS", "20000");

suites! {
    gpu_to_gpu_keeps_every_promise_beside_shared_memory:
        Shm, &[LATE], [Place::Exported(0), Place::Exported(1)], "peer";
    host_to_gpu_keeps_every_promise_beside_shared_memory:
        Shm, &[LATE], [Place::Host, Place::Alloc(1)], "host_to_device";
    gpu_to_host_keeps_every_promise_beside_shared_memory:
        Shm, &[LATE], [Place::Exported(0), Place::Host], "device_to_host";
    gpus_without_access_keep_every_promise_beside_shared_memory:
        Shm, &[LATE, ("CUDA_DOUBLE_DENY", "0-1")], [Place::Exported(0), Place::Exported(1)],
        "device_to_host";
    gpu_to_gpu_keeps_every_promise_beside_a_lane_in_shared_memory:
        Lane, &[LATE, ("CUDA_DOUBLE_SEED", "7")], [Place::Alloc(1), Place::Exported(0)], "peer";
    memory_of_one_gpu_keeps_every_promise_beside_shared_memory:
        Shm, &[("CUDA_DOUBLE_SEED", "3")], [Place::Alloc(0), Place::Alloc(0)], "same_device";
    gpu_to_gpu_keeps_every_promise_beside_tcp:
        Tcp, &[LATE], [Place::Exported(0), Place::Alloc(1)], "host_to_device";
    host_to_gpu_keeps_every_promise_beside_tcp:
        Tcp, &[LATE], [Place::Host, Place::Exported(1)], "host_to_device";
    gpu_to_host_keeps_every_promise_beside_tcp:
        Tcp, &[LATE], [Place::Alloc(0), Place::Host], "device_to_host";
}

/// Two joined sets over two arenas, which are registered: their keys.
fn joined(way: Way, places: [Place; 2]) -> (Pair<GpuRail>, [Arena; 2], [RailKey; 2]) {
    let arenas = places.map(Arena::new);
    let pair = pair(way, arenas);
    let key = |at: usize| {
        let (address, length) = (arenas[at].start, Bytes::of(ARENA_BYTES));
        let region = Region { address, length, kind: MemoryKind::Host };
        // SAFETY: the arenas stay until the sets are gone.
        unsafe { pair.providers[at].domain().register(region) }.unwrap()
    };
    let keys = [key(0), key(1)];
    (pair, arenas, keys)
}

/// One poll of both: how an op of the first one has ended, if it has.
fn poll_both(pair: &mut Pair<GpuRail>, id: u64) -> Option<Completion> {
    let mut found = None;
    for at in [0, 1] {
        let mut out = [common::NOTHING; 16];
        let count = pair.providers[at].poll(&mut out, Bytes::kib(64), Instant(0));
        for event in &out[..count] {
            match *event {
                Completion::Done { id: OpId(ended), .. }
                | Completion::Fenced { id: OpId(ended), .. }
                    if at == 0 && ended == id =>
                {
                    found = Some(*event);
                }
                _ => {}
            }
        }
    }
    found
}

/// Polls both until the first has reported how an op of that number ended.
fn end_of(pair: &mut Pair<GpuRail>, id: u64) -> Completion {
    let start = std::time::Instant::now();
    loop {
        if let Some(event) = poll_both(pair, id) {
            return event;
        }
        assert!(start.elapsed() < WATCHDOG, "op {id} never ended");
        std::thread::yield_now();
    }
}

/// A fence that nothing stands in the way of was not told to the copy engine.
#[test]
fn copies_that_are_posted_behind_a_fence_of_a_quiet_peer_move_nothing() {
    with_double("copies_that_are_posted_behind_a_fence_of_a_quiet_peer_move_nothing", &[], || {
        let places = [Place::Exported(0), Place::Exported(1)];
        let (mut pair, arenas, keys) = joined(Way::Shm, places);
        let post = |pair: &mut Pair<GpuRail>, id: u64, kind: OpKind| {
            pair.providers[0].post(&Op { id: OpId(id), peer: PEER, kind }, Instant(0))
        };
        // SAFETY: inside the arena, which is registered.
        let target = unsafe { LocalSpan::new(arenas[0].start, Bytes(4096), keys[0]) };
        let source = RemoteSpan { key: keys[1], address: arenas[1].start };
        let read = OpKind::Read { target, source };
        assert_eq!(post(&mut pair, 1, read), Ok(Posted::Pending));
        let ended = end_of(&mut pair, 1);
        assert!(matches!(ended, Completion::Done { result: Ok(()), .. }), "{ended:?}");
        let fence = OpKind::Fence { generation: RailGeneration(1) };
        assert_eq!(post(&mut pair, 2, fence), Ok(Posted::Pending));
        end_of(&mut pair, 2);
        control::write(arenas[1].start, &[0x77; 4096]);
        assert_eq!(post(&mut pair, 3, read), Err(PostError::PeerDown), "behind its fence");
        let write = OpKind::Write { source: Source::Span(target), target: source, immediate: None };
        assert_eq!(post(&mut pair, 4, write), Err(PostError::PeerDown), "behind its fence");
    });
}

/// Its bytes were here: the sender may have been told that they are delivered.
#[test]
fn message_that_has_come_gets_into_a_gpu_although_its_peer_has_ended() {
    with_double("message_that_has_come_gets_into_a_gpu_although_its_peer_has_ended", &[], || {
        for way in [Way::Shm, Way::Tcp] {
            let (mut pair, arenas, keys) = joined(way, [Place::Exported(0), Place::Host]);
            // SAFETY: inside the arena, which is registered.
            let payload = unsafe { LocalSpan::new(arenas[1].start, Bytes(1000), keys[1]) };
            let kind = OpKind::Send { head: [0; 32], payload };
            let [to, from] = &mut pair.providers[..] else { panic!("two rails") };
            // SAFETY: memory of the test's.
            unsafe { arenas[1].memory().1.write_bytes(0x77, 1000) };
            from.post(&Op { id: OpId(1), peer: PEER, kind }, Instant(0)).unwrap();
            let slot = loop {
                let mut out = [common::NOTHING; 1];
                from.poll(&mut [common::NOTHING; 4], Bytes::kib(64), Instant(0));
                if to.poll(&mut out, Bytes::kib(64), Instant(0)) == 1 {
                    let Completion::Received { slot, .. } = out[0] else { panic!("{out:?}") };
                    break slot;
                }
            };
            control::hold(0);
            // SAFETY: as above.
            let target = unsafe { LocalSpan::new(arenas[0].start, Bytes(1000), keys[0]) };
            assert_eq!(to.set().received_read(OpId(2), PEER, slot, target), Ok(Posted::Pending));
            to.peer_fail(PEER, DownCause::Died);
            for _ in 0..100 {
                let count = to.poll(&mut [common::NOTHING; 4], Bytes::kib(64), Instant(0));
                assert_eq!(count, 0, "{way:?}: its stream is held");
            }
            control::release(0);
            let ended = end_of(&mut pair, 2);
            assert!(matches!(ended, Completion::Done { result: Ok(()), .. }), "{ended:?}");
            assert_eq!(control::read(arenas[0].start, 1000), [0x77; 1000]);
        }
    });
}

/// Copies take turns on two streams, whose markers know nothing of each other.
#[test]
fn copies_end_with_their_own_marker_in_whatever_order_markers_come() {
    with_double("copies_end_with_their_own_marker_in_whatever_order_markers_come", &[], || {
        const BYTES: usize = 4096;
        let places = [Place::Exported(0), Place::Exported(1)];
        let (mut pair, arenas, keys) = joined(Way::Shm, places);
        let read = |pair: &mut Pair<GpuRail>, id: u64| {
            let at = id * BYTES as u64;
            control::write(arenas[1].start + at, &[id as u8; BYTES]);
            // SAFETY: inside the arena, which is registered.
            let target = unsafe { LocalSpan::new(arenas[0].start + at, Bytes::of(BYTES), keys[0]) };
            let source = RemoteSpan { key: keys[1], address: arenas[1].start + at };
            let op = Op { id: OpId(id), peer: PEER, kind: OpKind::Read { target, source } };
            assert_eq!(pair.providers[0].post(&op, Instant(0)), Ok(Posted::Pending));
        };
        let came = |id: u64| control::read(arenas[0].start + id * BYTES as u64, BYTES);
        read(&mut pair, 1);
        end_of(&mut pair, 1); // the memory is mapped
        control::hold_words(0);
        let mut held: Vec<usize> = Vec::new();
        for id in [2, 3] {
            read(&mut pair, id);
            let start = std::time::Instant::now();
            let stream = loop {
                assert!(poll_both(&mut pair, id).is_none(), "its marker is held");
                let waits = |it: &usize| !held.contains(it) && cuStreamQuery(*it) == NOT_READY;
                if let Some(stream) = control::streams().into_iter().find(waits) {
                    break stream;
                }
                assert!(start.elapsed() < WATCHDOG, "copy {id} has no stream of its own");
            };
            held.push(stream);
        }
        control::release(held[1]);
        end_of(&mut pair, 3);
        assert_eq!(came(3), [3; BYTES]);
        assert!(poll_both(&mut pair, 2).is_none(), "its marker is held");
        control::release(held[0]);
        end_of(&mut pair, 2);
        assert_eq!(came(2), [2; BYTES]);
    });
}
