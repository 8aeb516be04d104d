//! Registrations that belong to the endpoint of one peer (`FI_MR_ENDPOINT` of connected endpoints):
//! when they are made and closed, counted by the strict fabric, which stops the test at any misuse.

mod libfabric_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{
    CloseError, DeregisterError, Domain as _, LocalSpan, Op, OpId, OpKind, PostError, Posted,
    Provider, RailKey, RemoteSpan, Source,
};
use crosstie::provider::libfabric::{Hello, Libfabric, Limits, PeerOpenError, Step, bytes};
use libfabric_support::{
    BLOCK_BYTES, LIMITS, Layout, NOTHING, OTHER, PEER, World, counts, register, strict_config,
};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Registrations of one kind are counted for the whole process, so that tests take turns.
static ALONE: Mutex<()> = Mutex::new(());

/// Regions that are registered for one peer at a time (`bound::BOUND`).
const PLACES: usize = 128;

struct Counted {
    world: World,
    library: &'static CStr,
    before: [usize; 2],
    _alone: MutexGuard<'static, ()>,
}

impl Counted {
    fn open(provider: &'static CStr, limits: Limits) -> Option<Counted> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let config = strict_config(Layout::One, provider)?;
        let library = config.library;
        let before = counts(library);
        let world = World::open_with(&config, limits).unwrap();
        Some(Counted { world, library, before, _alone: alone })
    }

    /// Made, and open, since it was opened.
    fn since(&self) -> [usize; 2] {
        let now = counts(self.library);
        [now[0] - self.before[0], now[1] - self.before[1]]
    }

    /// A write of 64 bytes to its end.
    fn write(&mut self, peer: PeerIndex) {
        let kind = self.world.write_kind(0, 0, 64);
        let id = self.world.post_to(0, peer, kind);
        assert!(self.world.end(0, id));
    }

    /// Fences a peer at both sides and closes it.
    fn close(&mut self, peer: PeerIndex) {
        for side in 0..2 {
            while self.world.rails[side].peer_close(peer) == Err(CloseError::Busy) {
                self.world.poll();
            }
        }
        self.world.until_quiet();
    }
}

/// Of each side: the parts of the area of so many peers.
const fn parts(peers: usize) -> usize {
    2 * peers
}

#[test]
fn region_has_a_registration_for_each_peer_that_uses_it_and_none_before() {
    let Some(mut at) = Counted::open(c"strict-msg-bound", LIMITS) else { return };
    assert!(at.since()[1] <= parts(1), "a block that no peer uses: {:?}", at.since());
    at.write(PEER);
    assert_eq!(at.since(), [parts(1) + 2; 2], "source, and target");
    at.write(PEER);
    assert_eq!(at.since(), [parts(1) + 2; 2], "once for each peer");
    at.world.join(OTHER, 0x7000);
    at.write(OTHER);
    assert_eq!(at.since(), [parts(2) + 4; 2]);
    at.close(PEER);
    assert_eq!(at.since(), [parts(2) + 4, parts(1) + 2], "its own end with it, and no others");
    at.write(OTHER);
    at.world.join(PEER, 0x8000);
    at.write(PEER);
    let all = parts(3) + 6;
    assert_eq!(at.since(), [all, parts(2) + 4], "what is connected anew has its own");
    at.world.rails[0].reopen().unwrap();
    assert_eq!(at.since(), [all, 2 + 2], "those of the other side are left");
    let Counted { world, library, before, _alone } = at;
    drop(world);
    assert_eq!(counts(library)[1], before[1], "a rail that closes leaves none");
}

#[test]
fn region_is_given_back_when_the_rail_has_polled() {
    let Some(mut at) = Counted::open(c"strict-msg-bound", LIMITS) else { return };
    at.world.join(OTHER, 0x7000);
    for peer in [PEER, OTHER] {
        at.write(peer);
    }
    let open = at.since()[1];
    let domain = at.world.rails[0].domain();
    let key = at.world.keys[0];
    assert_eq!(domain.deregister(key), Err(DeregisterError::Busy));
    at.world.until_quiet();
    assert_eq!(domain.deregister(key), Ok(()));
    assert_eq!(at.since()[1], open - 2, "one for each peer");
    // of the peers' that were told of it, with their word
    let (domain, key) = (at.world.rails[1].domain(), at.world.keys[1]);
    assert_eq!(domain.deregister_soon(key), Ok(()));
    at.world.until_quiet();
    assert_eq!(at.since()[1], open - 4);
    assert_eq!(domain.deregister(key), Err(DeregisterError::Stale));
}

/// A thread gives memory up for good and unmaps it as soon as it may, while a peer asks for it: the
/// rail registered what was gone. The strict fabric looks.
#[test]
fn memory_that_may_go_is_not_registered_for_a_peer_any_more() {
    const ROUNDS: usize = 40;
    const BYTES: usize = 4096;
    let Some(mut at) = Counted::open(c"strict-msg-bound-slow", LIMITS) else { return };
    let world = &mut at.world;
    let domain = world.rails[1].domain();
    for round in 0..ROUNDS {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start: *mut u8 = start.cast();
        let mut key = register(&world.rails[1], start, BYTES);
        while key.is_err() {
            world.poll(); // those before have not gone yet
            key = register(&world.rails[1], start, BYTES);
        }
        let key = key.unwrap();
        let target = RemoteSpan { key, address: start as u64 };
        let source = Source::Span(world.local(0, 0, 64));
        let kind = OpKind::Write { source, target, immediate: None };
        // asks, and is not posted again: other rails carry it
        let op = Op { id: OpId(round as u64), peer: PEER, kind };
        assert_eq!(world.rails[0].post(&op, world.now), Err(PostError::Again));
        let address = start as usize;
        std::thread::scope(|scope| {
            let gives_up = scope.spawn(move || {
                // at any time of the registration
                std::thread::sleep(Duration::from_micros(100 * (round % 10) as u64));
                while domain.deregister_soon(key) == Err(DeregisterError::Busy) {
                    std::hint::spin_loop();
                }
                // SAFETY: whoever gave it up uses it no more.
                unsafe { libc::munmap(address as *mut libc::c_void, BYTES) };
            });
            while !gives_up.is_finished() {
                world.poll();
            }
        });
        world.until_quiet();
    }
}

fn span(at: *mut u8, key: RailKey) -> LocalSpan {
    // SAFETY: inside the leaked block, which is registered.
    unsafe { LocalSpan::new(at as u64, Bytes(64), key) }
}

/// Those that nothing uses give way, so that there always is room.
#[test]
fn more_regions_than_a_peer_has_places_for_take_turns() {
    const REGIONS: usize = 3 * PLACES;
    let limits = Limits { regions_max: REGIONS as u32 + 1, ..LIMITS };
    for provider in [c"strict-msg-bound", c"strict-msg-bound-short"] {
        let Some(mut at) = Counted::open(provider, limits) else { return };
        let places: [Vec<_>; 2] = [0, 1].map(|side| {
            let block = at.world.blocks[side];
            let place = |n: usize| {
                // SAFETY: inside the block.
                let start = unsafe { block.add(n * BLOCK_BYTES / REGIONS / 64 * 64) };
                (start, register(&at.world.rails[side], start, 64).unwrap())
            };
            (0..REGIONS).map(place).collect()
        });
        for round in 0..2u8 {
            for (n, (near, far)) in places[0].iter().zip(&places[1]).enumerate() {
                let byte = round.wrapping_add(n as u8);
                // the places of answers are fewer, and give way likewise
                let (&(from, near), &(to, key)) = (near, far);
                // SAFETY: inside the block; no op is under way there.
                unsafe { from.write_bytes(byte, 64) };
                let (source, target) =
                    (Source::Span(span(from, near)), RemoteSpan { key, address: to as u64 });
                let id = at.world.post(0, OpKind::Write { source, target, immediate: None });
                assert!(at.world.end(0, id), "{n}");
                // SAFETY: inside the block; the op has ended.
                assert_eq!(unsafe { to.read_volatile() }, byte);
                at.world.seen[0].clear();
            }
        }
        let [made, open] = at.since();
        assert!(made > 2 * REGIONS && open <= 2 * PLACES + parts(1), "{made} made, {open} open");
        for (side, places) in places.iter().enumerate() {
            let domain = at.world.rails[side].domain();
            for (_, key) in places {
                at.world.until("it is given back", |_| domain.deregister(*key) == Ok(()));
            }
        }
        assert_eq!(at.since()[1], parts(1), "what was used has gone");
    }
}

/// Of all places, those whose regions ops use are kept.
#[test]
fn region_that_an_op_uses_gives_its_place_to_no_other() {
    const UNDER_WAY: usize = 60;
    const OTHERS: usize = 4;
    let limits = Limits { regions_max: 2 * PLACES as u32, ..LIMITS };
    let Some(mut at) = Counted::open(c"strict-msg-bound", limits) else { return };
    let world = &mut at.world;
    let block = world.blocks[0];
    let regions: Vec<_> = (0..PLACES + OTHERS)
        .map(|n| {
            // SAFETY: inside the block.
            let start = unsafe { block.add(64 * n) };
            (start, register(&world.rails[0], start, 64).unwrap())
        })
        .collect();
    let kind = |world: &World, n: usize| OpKind::Write {
        source: Source::Span(span(regions[n].0, regions[n].1)),
        target: world.remote(1, 64 * n),
        immediate: None,
    };
    for n in 0..PLACES {
        let id = world.post(0, kind(world, n));
        assert!(world.end(0, id), "{n}");
    }
    let mut ids = Vec::new();
    // of the places, as many as may be are in use; the others' own come first
    for n in (0..UNDER_WAY).chain(PLACES..PLACES + OTHERS) {
        let id = OpId(n as u64);
        let op = Op { id, peer: PEER, kind: kind(world, n) };
        assert_eq!(world.rails[0].post(&op, world.now), Ok(Posted::Pending), "{n}");
        ids.push(id);
    }
    for id in ids {
        assert!(world.end(0, id), "{id:?}");
    }
}

/// Its owner wants it back, and has polled; its writer has not heard of that.
#[test]
fn region_that_a_peer_was_told_of_stays_registered_until_that_has_given_it_back() {
    let Some(mut at) = Counted::open(c"strict-msg-bound", LIMITS) else { return };
    at.write(PEER);
    let (domain, key) = (at.world.rails[1].domain(), at.world.keys[1]);
    let open = at.since()[1];
    assert_eq!(domain.deregister_soon(key), Ok(()));
    for _ in 0..8 {
        at.world.poll_side(1);
    }
    assert_eq!(at.since()[1], open);
    at.world.fill(0, 0, 64, 0x5a);
    let op = Op { id: OpId(7), peer: PEER, kind: at.world.write_kind(0, 0, 64) };
    assert_eq!(at.world.rails[0].post(&op, at.world.now), Ok(Posted::Pending));
    assert!(at.world.end(0, op.id) && at.world.holds(1, 0, 64, 0x5a));
    at.world.until_quiet();
    assert_eq!(at.since()[1], open - 1, "it has gone, and the source has not");
}

/// Nothing was registered before, so that it is the peer that ends, with the reason.
#[test]
fn memory_that_is_refused_ends_the_peer_with_a_sentence() {
    for side in 0..2 {
        // buffers that are no longer than it takes
        let limits = Limits { payload_bytes_max: 1024, ..LIMITS };
        let Some(mut at) = Counted::open(c"strict-msg-bound-long", limits) else { return };
        // this side's whole block is too long for the provider, and a part of the other's is not
        let mut keys = at.world.keys;
        keys[1 - side] =
            register(&at.world.rails[1 - side], at.world.blocks[1 - side], 64).unwrap();
        let source = Source::Span(span(at.world.blocks[0], keys[0]));
        let target = RemoteSpan { key: keys[1], address: at.world.blocks[1] as u64 };
        let kind = OpKind::Write { source, target, immediate: None };
        let op = Op { id: OpId(7), peer: PEER, kind };
        let refused = loop {
            match at.world.rails[0].post(&op, at.world.now) {
                Err(PostError::Again) => at.world.poll(),
                posted => break posted,
            }
        };
        assert_eq!(refused, Err(PostError::PeerDown), "nothing is under way that could end");
        at.world.until("the end is told", |world| world.downs(side) == 1);
        let why = at.world.rails[side].error(PEER).expect("why it ended").to_string();
        let words = "memory cannot be registered for the peer's endpoint: errno 12";
        assert!(why.starts_with(words) && why.contains("ulimit -l"), "{why}");
    }
}

/// Whoever asks finds out at once, whoever is asked when the request has come, which it refuses.
#[test]
fn buffers_that_are_refused_end_the_peer_with_a_sentence() {
    let Some(config) = strict_config(Layout::One, c"strict-msg-bound-long") else { return };
    let open = |payload_bytes_max| {
        let limits = Limits { payload_bytes_max, ..LIMITS };
        let block = Box::leak(Box::new(HeapBlock::new(bytes(&limits))));
        Libfabric::open(&mut block.carver(), &limits, &config).unwrap()
    };
    let mut seen = [false; 2];
    // which of two asks is a matter of their addresses: those that were seen stay open
    let mut others = Vec::new();
    while seen != [true; 2] {
        assert!(others.len() < 256, "one kind of end always asks: {seen:?}");
        let (mut good, mut refused) = (open(1024), open(8192));
        let near = good.peer_prepare(PEER, 7).unwrap();
        let far = refused.peer_prepare(PEER, 8).unwrap();
        let asks = far.name() < near.name();
        good.peer_connect(PEER, &far).unwrap();
        let joined = refused.peer_connect(PEER, &near);
        if asks {
            let said = joined.unwrap_err();
            assert!(matches!(said, PeerOpenError::Refused(Step::Buffers, _)), "{said}");
            let words = "buffers cannot be registered: errno 12";
            assert!(said.to_string().contains(words), "{said}");
        } else {
            joined.unwrap();
            let mut now = Instant(0);
            while refused.error(PEER).is_none() || good.error(PEER).is_none() {
                now = now.after(Span::millis(1));
                for rail in [&mut good, &mut refused] {
                    rail.poll(&mut [NOTHING; 16], Bytes::kib(64), now);
                }
            }
            let said = [&refused, &good].map(|rail| rail.error(PEER).unwrap().to_string());
            assert!(said[0].starts_with("memory cannot be registered for"), "{said:?}");
            assert!(said[1].contains("errno 111"), "{said:?}");
        }
        seen[usize::from(asks)] = true;
        others.push([good, refused]);
    }
}

/// It is of an endpoint, which there is not yet when the peer is told of the region.
#[test]
fn key_of_a_region_that_the_hello_names_is_asked_for_before_it_is_needed() {
    let Some(mut at) = Counted::open(c"strict-msg-bound", LIMITS) else { return };
    let world = &mut at.world;
    let keys = world.keys;
    let hellos: [Hello; 2] = [0, 1].map(|side| {
        world.rails[side].peer_prepare_telling(OTHER, 0x70 + side as u32, keys[side]).unwrap()
    });
    for side in 0..2 {
        let told = hellos[side].told;
        assert_eq!((told.key, told.library_key, told.length), (keys[side].0, 0, 0));
        world.rails[side].peer_connect(OTHER, &hellos[1 - side]).unwrap();
    }
    world.until_quiet();
    for side in 0..2 {
        let op = Op { id: OpId(9), peer: OTHER, kind: world.write_kind(side, 0, 64) };
        assert_eq!(world.rails[side].post(&op, world.now), Ok(Posted::Pending), "side {side}");
    }
    world.until_quiet();
}
