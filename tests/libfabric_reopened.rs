//! What an endpoint had posted that was closed and opened anew: its bytes may still be under way,
//! and come behind the word that says so, which has taken another connection. Over the strict
//! fabric, and over sockets of libfabric.

mod libfabric_support;

use crosstie::fabric::{DeregisterError, Domain, MemoryDomain, Op, OpId, Posted, Provider};
use crosstie::provider::libfabric::Config;
use libfabric_support::{
    BLOCK_BYTES, Layout, OTHER, PEER, World, let_library_work, skip, strict_config,
};
use std::ffi::CStr;
use std::time::Duration;

/// Ops that may be under way to one peer.
const WRITES: u64 = 60;
/// Longer than whatever is under way is waited for.
const LONG: Duration = Duration::from_secs(3);
const OLD: u8 = 0x11;
const NEW: u8 = 0xee;

/// Side 1 writes to side 0, which computes, as much as the library takes; then its endpoint is
/// opened anew.
fn leaves_writes_on_their_way(world: &mut World, length: usize) {
    world.fill(1, 0, length, OLD);
    let known = world.write(1, 0, 64);
    assert!(world.end(1, known));
    for n in 0..WRITES {
        let op = Op { id: OpId(n), peer: PEER, kind: world.write_kind(1, 0, length) };
        let posted = world.rails[1].post(&op, world.now);
        assert_eq!(posted, Ok(Posted::Pending));
        world.poll_side(1);
        let_library_work();
    }
    world.rails[1].reopen().unwrap();
    for _ in 0..WRITES {
        world.poll_side(1);
        let_library_work();
    }
}

/// Nothing of before comes behind the fence of side 0; `pass` is time that it computes between two
/// polls.
fn is_fenced(world: &mut World, length: usize, pass: Duration) {
    let limit = 100_000;
    let mut polls = 0;
    let mut poll = |world: &mut World| {
        polls += 1;
        assert!(polls < limit, "never");
        world.pass(pass);
        world.poll();
        let_library_work();
    };
    while world.downs(0) == 0 {
        poll(world);
    }
    let fence = world.fence(0);
    while world.result(0, fence).is_none() {
        poll(world);
    }
    world.fill(0, 0, length, NEW);
    for _ in 0..4 * WRITES {
        world.poll();
        let_library_work();
    }
    assert!(world.holds(0, 0, length, NEW), "bytes came behind the fence");
}

#[test]
fn fence_outlasts_what_a_closed_endpoint_has_left_on_its_way() {
    // also for who polls seldom: time alone takes nothing in
    for pass in [Duration::ZERO, LONG] {
        let Some(config) = strict_config(Layout::One, c"strict-lingers") else { return };
        let mut world = World::open(&config).unwrap();
        leaves_writes_on_their_way(&mut world, 4096);
        is_fenced(&mut world, 4096, pass);
    }
}

/// The kernel goes on sending what a closed socket has, until it is told that nobody wants that:
/// which it is, so that the fence holds although the endpoint has another peer.
#[test]
fn fence_outlasts_what_a_closed_socket_has_left_on_its_way() {
    for provider in [c"tcp", c"tcp;ofi_rxm"] {
        for pass in [Duration::ZERO, Duration::from_millis(250)] {
            let Some(mut world) = world_of(provider) else { continue };
            let own = world.rails[0].peer_prepare(OTHER, 0x1111_1111).unwrap();
            world.rails[0].peer_connect(OTHER, &own).unwrap();
            leaves_writes_on_their_way(&mut world, BLOCK_BYTES);
            is_fenced(&mut world, BLOCK_BYTES, pass);
            assert_eq!(world.rails[0].health().reopened, 0, "{provider:?}");
        }
    }
}

fn world_of(provider: &'static CStr) -> Option<World> {
    let config = Config { provider: Some(provider), ..Config::DEFAULT };
    match World::open(&config) {
        Ok(world) => Some(world),
        Err(why) => {
            skip(&format!("{provider:?}: {why}"));
            None
        }
    }
}

/// A region that the other end was told of stays registered until what it has left has come.
#[test]
fn region_stays_as_long_as_what_a_closed_endpoint_has_left_may_come() {
    let Some(config) = strict_config(Layout::One, c"strict-lingers") else { return };
    let mut world = World::open(&config).unwrap();
    leaves_writes_on_their_way(&mut world, 4096);
    while world.downs(0) == 0 {
        world.poll();
    }
    let (key, domain) = (world.keys[0], world.rails[0].domain());
    assert_eq!(domain.deregister(key), Err(DeregisterError::Busy));
    let fence = world.fence(0);
    world.pass(LONG);
    assert!(world.end(0, fence));
    assert_eq!(domain.deregister(key), Ok(()));
}
