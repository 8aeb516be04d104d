//! What happens to a port while connections stand on it. `XTIE_RDMA_LINK` names the network
//! interface under the first device, which is taken down and up again; nobody else may be using it.

mod verbs_support;

use crosstie::fabric::{Completion, DownCause};
use std::process::Command;
use verbs_support::{PEER, World};

fn link() -> Option<String> {
    let link = std::env::var("XTIE_RDMA_LINK").ok();
    if link.is_none() {
        println!("SKIP: XTIE_RDMA_LINK names no interface that may be taken down");
    }
    link
}

fn set(link: &str, state: &str) {
    let done = Command::new("ip").args(["link", "set", link, state]).status();
    assert!(done.expect("the command ip").success(), "ip link set {link} {state}");
}

/// Down for less than the grace, without traffic (rxe ends a queue pair that sends without a link),
/// and then for longer.
#[test]
fn port_that_comes_back_in_time_costs_nothing_and_one_that_stays_away_is_named() {
    let Some(link) = link() else { return };
    let Some(mut world) = World::new() else { return };
    set(&link, "down");
    world.until("the port goes down", |world| world.rails[0].health().port_down_since.is_some());
    set(&link, "up");
    world.until("the port comes up", |world| world.rails[0].health().port_down_since.is_none());
    world.fill(0, 0, 4096, 5);
    let id = world.write(0, 0, 4096);
    assert!(world.end(0, id), "{:?}: {:?}", world.rails[0].error(PEER), world.rails[0].health());
    assert!(world.holds(1, 0, 4096, 5));
    assert_eq!(world.rails[0].health().port_downs, 1);

    set(&link, "down");
    world.until("the peer is down", |world| world.downs(0) == 1);
    let down = world.seen[0].iter().find_map(|seen| match seen {
        Completion::PeerDown { cause, .. } => Some(*cause),
        _ => None,
    });
    assert_eq!(down, Some(DownCause::Broken(libc::ENETDOWN)), "{:?}", world.rails[0].error(PEER));
    set(&link, "up");
    world.until("the port comes up", |world| world.rails[0].health().port_down_since.is_none());
    let fences = [world.fence(0), world.fence(1)];
    for (side, id) in fences.into_iter().enumerate() {
        assert!(world.end(side, id));
        use crosstie::fabric::PeerLife;
        assert_eq!(world.rails[side].peer_close(PEER), Ok(()));
    }
    world.join(PEER, 2);
    world.fill(0, 0, 4096, 6);
    let id = world.write(0, 0, 4096);
    assert!(world.end(0, id) && world.holds(1, 0, 4096, 6), "the rail did not come back");
}
