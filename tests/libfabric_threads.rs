//! Threads that register memory take turns with the one that posts and polls, where a library does
//! not let all of them in. The strict fabric stops the test if two are inside that may not be.

mod libfabric_support;

use crosstie::fabric::{DownCause, PeerLife};
use crosstie::provider::libfabric::Callers;
use libfabric_support::{Layout, PEER, World, strict_config};
use std::ffi::CStr;

const TIMES: usize = 20;
/// Given to the first peers; those that come later have others.
const TOKEN: u32 = 0x77_0000;

fn takes_turns(provider: &'static CStr, callers: Callers) {
    let Some(config) = strict_config(Layout::One, provider) else { return };
    let mut world = World::open(&config).unwrap();
    assert_eq!(world.rails[0].traits().callers, callers);
    println!("over {provider:?}: {callers:?}");
    let token = std::cell::Cell::new(TOKEN);
    world.register_beside(TIMES, |world| {
        world.write_well();
        world.send(0, 7, 8000);
        token.set(token.get() + 0x1000);
        joins_again(world, token.get());
    });
    for _ in 0..2 {
        world.rails[0].reopen().unwrap();
        token.set(token.get() + 0x1000);
        joins_again(&mut world, token.get());
        world.register_beside(TIMES, World::write_well);
    }
}

/// The peer of both sides ends, and comes again.
fn joins_again(world: &mut World, token: u32) {
    for rail in &mut world.rails {
        rail.peer_fail(PEER, DownCause::Silent);
    }
    let fences = [world.fence(0), world.fence(1)];
    assert!(world.end(0, fences[0]) && world.end(1, fences[1]));
    world.until("both hear of the end", |world| world.downs(0) > 0 && world.downs(1) > 0);
    for rail in &mut world.rails {
        rail.peer_close(PEER).unwrap();
    }
    world.join(PEER, token);
}

#[test]
fn any_thread_calls_where_the_library_is_safe() {
    takes_turns(c"strict", Callers::All);
}

/// `tcp` of 1.17 takes registrations out of its tree without a lock: "key not available", or a
/// search without end, in one of twenty runs over the real one.
#[test]
fn all_calls_take_turns_where_the_library_has_no_lock_at_its_registrations() {
    takes_turns(c"tcp", Callers::OneAtRegistrations);
}

/// `FI_THREAD_COMPLETION`, with registrations that are bound to the endpoint.
#[test]
fn those_that_touch_an_endpoint_take_turns_where_one_may() {
    takes_turns(c"strict-completion", Callers::OneAtQueue);
}

/// The same with registrations of the domain, which touch no endpoint.
#[test]
fn those_that_touch_no_endpoint_take_no_turns() {
    takes_turns(c"strict-completion-domain", Callers::OneAtQueue);
}

/// What it offers for any thread has receives of several endpoints, and is of no use.
#[test]
fn fewer_callers_are_asked_for_where_no_offer_to_all_of_them_fits() {
    takes_turns(c"strict-completion-shares", Callers::OneAtQueue);
}

/// `FI_THREAD_DOMAIN`.
#[test]
fn all_take_turns_where_one_may_call() {
    takes_turns(c"strict-one", Callers::One);
}
