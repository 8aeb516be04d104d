//! Flushes of libfabric's rails: a read by way of the rail's own endpoint, over every provider that
//! peers share an endpoint of, and over the strict fabric, which stops the test where the buffer's
//! registration belongs to another endpoint, or outlives its own. Several rails are counted by
//! `transport::flush`.
#![allow(dead_code)] // of the shared parts

mod libfabric_support;

use crosstie::base::ids::RailGeneration;
use crosstie::fabric::{
    Domain, DownCause, MemoryDomain, OpError, OpErrorKind, OpId, PeerLife, PostError, Posted,
    RailKey,
};
use crosstie::provider::libfabric::{Config, Scope};
use crosstie::transport::flush::{Flush, FlushEnd};
use libfabric_support::{
    BLOCK_BYTES, Layout, PEER, World, hold_read, reaches_its_own_process, skip, strict_config,
};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SHARED: [&CStr; 4] = [c"strict", c"strict-domain", c"efa", c"cxi"];
const PROVIDERS: [&CStr; 3] = [c"tcp;ofi_rxm", c"shm", c"tcp"];
const FLUSH: OpId = OpId(7);
/// How long what must end is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
const GENERATIONS: [RailGeneration; 8] = [RailGeneration(1); 8];

/// The strict fabric holds reads of all that use it.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin(world: &mut World, at: usize) -> Result<Posted, PostError> {
    let (key, address) = (world.keys[0], world.blocks[0] as u64 + at as u64);
    world.rails[0].flush_begin(FLUSH, key, address)
}

/// Polls until the flush of the first side has ended.
fn ended(world: &mut World) -> Result<(), OpError> {
    let mut end = None;
    let start = Instant::now();
    while end.is_none() {
        assert!(start.elapsed() < PATIENCE, "a flush that does not end");
        world.poll();
        end = world.rails[0].flush_end();
    }
    let (id, result) = end.expect("seen above");
    assert_eq!(id, FLUSH);
    result
}

/// One after the other, between messages and writes, at the start, the middle and the last byte.
fn flush_well(world: &mut World) {
    for at in [0, 4096, BLOCK_BYTES - 1] {
        world.write_well();
        let start = Instant::now();
        // some connect to themselves first
        while let Err(refused) = begin(world, at) {
            assert_eq!(refused, PostError::Again);
            assert!(start.elapsed() < PATIENCE, "there is never room for a flush");
            world.poll();
        }
        assert_eq!(begin(world, at), Err(PostError::Again), "one at a time");
        assert_eq!(ended(world), Ok(()));
    }
}

#[test]
fn rails_flush_by_way_of_their_own_endpoint() {
    let _alone = alone();
    for provider in SHARED {
        let Some(config) = strict_config(Layout::One, provider) else { return };
        flush_well(&mut World::open(&config).unwrap());
    }
    for provider in PROVIDERS {
        let config = Config { provider: Some(provider), ..Config::DEFAULT };
        match World::open(&config) {
            Ok(world) if !reaches_its_own_process(&world.rails[0]) => {}
            Ok(mut world) => {
                println!("over {provider:?}");
                flush_well(&mut world);
            }
            Err(why) => skip(&format!("{provider:?}: {why}")),
        }
    }
}

/// Both ways to register: the buffer belongs to the domain, or to the endpoint, with which it goes
/// and comes.
#[test]
fn flush_ends_with_its_endpoint_and_works_on_the_next_one() {
    let _alone = alone();
    for (provider, scope) in [(c"strict", Scope::Endpoint), (c"strict-domain", Scope::Domain)] {
        let Some(config) = strict_config(Layout::One, provider) else { return };
        let mut world = World::open(&config).unwrap();
        assert_eq!(world.rails[0].scope(), scope);
        flush_well(&mut world);
        hold_read(config.library, true);
        assert_eq!(begin(&mut world, 0), Ok(Posted::Pending));
        assert_eq!(world.rails[0].fenced_through(), 0);
        world.rails[0].reopen().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(world.rails[0].fenced_through(), 1, "its first endpoint was closed");
        hold_read(config.library, false);
        let canceled = OpError { kind: OpErrorKind::Canceled, code: 0 };
        assert_eq!(world.rails[0].flush_end(), Some((FLUSH, Err(canceled))));
        assert_eq!(begin(&mut world, 0), Ok(Posted::Pending));
        assert_eq!(ended(&mut world), Ok(()));
        // the region was let go of each time
        world.rails[0].domain().deregister(world.keys[0]).unwrap();
    }
}

/// The buffer's registration was closed without a turn, while others registered.
#[test]
fn flush_goes_with_its_endpoint_while_other_threads_register() {
    let _alone = alone();
    for provider in [c"strict", c"strict-one", c"strict-completion"] {
        let Some(config) = strict_config(Layout::One, provider) else { return };
        let mut world = World::open(&config).unwrap();
        world.register_beside(4, |world| {
            let start = Instant::now();
            while begin(world, 0) == Err(PostError::Again) {
                assert!(start.elapsed() < PATIENCE, "there is never room for a flush");
                world.poll();
            }
            assert_eq!(ended(world), Ok(()));
            world.rails[0].reopen().unwrap_or_else(|error| panic!("{error}"));
        });
    }
}

/// It held up all flushes of the rail, for ever.
#[test]
fn flush_that_the_library_keeps_fails_in_time_and_the_next_is_refused() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict") else { return };
    let mut world = World::open(&config).unwrap();
    hold_read(config.library, true);
    assert_eq!(begin(&mut world, 0), Ok(Posted::Pending));
    world.poll();
    assert_eq!((world.rails[0].flush_end(), world.rails[0].is_idle()), (None, false));
    world.pass(Duration::from_secs(3));
    let late = OpError { kind: OpErrorKind::Fabric, code: libc::ETIMEDOUT };
    assert_eq!(ended(&mut world), Err(late));
    assert_eq!(begin(&mut world, 0), Err(PostError::Unsupported), "its buffer is not ours yet");
    hold_read(config.library, false);
    while begin(&mut world, 0) == Err(PostError::Unsupported) {
        world.poll();
    }
    assert_eq!(ended(&mut world), Ok(()));
}

#[test]
fn flush_of_what_is_not_registered_or_cannot_be_reached_is_refused() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict") else { return };
    let mut world = World::open(&config).unwrap();
    let address = world.blocks[0] as u64;
    for (key, address) in [
        (RailKey(u64::MAX), address),
        (world.keys[0], address - 1),
        (world.keys[0], address + BLOCK_BYTES as u64),
    ] {
        let refused = world.rails[0].flush_begin(FLUSH, key, address);
        assert_eq!(refused, Err(PostError::Unsupported));
    }
}

/// One to four rails, each of which flushes well, late, or not at all: then its fence settles it.
#[test]
fn flush_over_several_rails_ends_when_each_has_ended_or_was_fenced() {
    let _alone = alone();
    let Some(config) = strict_config(Layout::One, c"strict") else { return };
    for rails in 1..=4u32 {
        for failing in 0..1u8 << rails {
            let mut worlds: Vec<World> =
                (0..rails).map(|_| World::open(&config).unwrap()).collect();
            let mut flush = Flush::begin((1 << rails) - 1, GENERATIONS);
            let more = flush.step(|rail| {
                let fails = failing >> rail & 1 == 1;
                hold_read(config.library, fails);
                let posted = begin(&mut worlds[usize::from(rail)], 0);
                if fails {
                    // a read that is held fails when it is let go
                    hold_read(config.library, false);
                }
                posted
            });
            assert!(!more, "each rail took its read");
            let start = Instant::now();
            while flush.flying() & !flush.unsettled() != 0 {
                assert!(start.elapsed() < PATIENCE, "reads that do not end");
                for (number, world) in worlds.iter_mut().enumerate() {
                    world.poll();
                    if let Some((_, result)) = world.rails[0].flush_end() {
                        flush.completed(number as u8, result.is_ok());
                    }
                }
            }
            assert_eq!(flush.unsettled(), failing, "{rails} rails");
            for (number, world) in worlds.iter_mut().enumerate() {
                if failing >> number & 1 == 1 {
                    assert_eq!(flush.end(), None);
                    world.rails[0].peer_fail(PEER, DownCause::Died);
                    let fence = world.fence(0);
                    assert!(world.end(0, fence));
                    flush.fenced(number as u8, GENERATIONS[number]);
                }
            }
            assert_eq!(flush.end(), Some(FlushEnd::Visible));
        }
    }
}
