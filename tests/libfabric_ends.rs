//! What two ends say to each other at the end of either, when an endpoint is opened anew or finds
//! no room: each fence holds, and no end takes another's word for its own. Over the strict fabric.

mod libfabric_support;

use crosstie::base::ids::RailGeneration;
use crosstie::fabric::{Completion, Domain, DownCause, MemoryDomain, OpKind, PeerLife};
use crosstie::provider::libfabric::{Hello, PeerOpenError};
use libfabric_support::{Layout, OTHER, PEER, World, hold_read, register, strict_config};
use std::ffi::CStr;
use std::time::Duration;

/// Polls that take in whatever one peer may have had under way.
const TAKING: usize = 80;

fn strict_world(provider: &'static CStr) -> Option<World> {
    Some(World::open(&strict_config(Layout::One, provider)?).unwrap())
}

/// A peer that was prepared before the endpoint was opened anew is known elsewhere by an address
/// that leads nowhere. It once was joined all the same, took no op and never ended.
#[test]
fn peer_prepared_before_its_endpoint_was_opened_anew_is_not_joined() {
    let Some(mut world) = strict_world(c"strict") else { return };
    let near = world.rails[0].peer_prepare(OTHER, 0x77).unwrap();
    let far = world.rails[1].peer_prepare(OTHER, 0x78).unwrap();
    world.rails[1].peer_connect(OTHER, &near).unwrap();
    world.rails[0].reopen().unwrap();
    world.poll();
    assert_eq!(world.rails[0].peer_connect(OTHER, &far), Err(PeerOpenError::RailLost));
    // whoever was told of it hears that nothing of it is under way, and need not wait
    let fence = world.post_to(1, OTHER, OpKind::Fence { generation: RailGeneration(1) });
    assert!(world.end(1, fence));
    assert_eq!(world.rails[1].health().reopened, 0, "it did not wait in vain");
    world.rails[1].peer_detach(OTHER).unwrap();
    world.join(OTHER, 0x9100);
    let id = world.post_to(0, OTHER, world.write_kind(0, 0, 64));
    assert!(world.end(0, id), "it is joined with another");
}

/// An end that nobody answered is told to the other side's next end as well. What the one before
/// said of its own end once ended the lane of the next, on one side alone.
#[test]
fn word_of_an_end_that_is_no_more_ends_nothing_of_the_next() {
    let Some(mut world) = strict_world(c"strict") else { return };
    let near = world.rails[0].peer_prepare(OTHER, 0x77).unwrap();
    for token in [0x78, 0x79] {
        let far = world.rails[1].peer_prepare(OTHER, token).unwrap();
        world.rails[1].peer_connect(OTHER, &near).unwrap();
        if token == 0x79 {
            world.rails[0].peer_connect(OTHER, &far).unwrap();
            break;
        }
        world.rails[1].reopen().unwrap(); // and says so
        world.poll();
        world.rails[1].peer_detach(OTHER).unwrap();
    }
    for side in [0, 1] {
        let id = world.post_to(side, OTHER, world.write_kind(side, 0, 64));
        assert!(world.end(side, id));
        let of_it = |it: &Completion| matches!(it, Completion::PeerDown { peer: OTHER, .. });
        assert_eq!(world.seen[side].iter().filter(|it| of_it(it)).count(), side);
    }
}

/// A region that was told of with the hello was held until the number was prepared again.
#[test]
fn peer_that_cannot_be_joined_holds_no_region() {
    let Some(mut world) = strict_world(c"strict") else { return };
    let key = register(&world.rails[0], world.blocks[0], 4096).unwrap();
    let near = world.rails[0].peer_prepare_telling(OTHER, 0x77, key).unwrap();
    let foreign = Hello { format: 77, ..near };
    assert_eq!(world.rails[0].peer_connect(OTHER, &foreign), Err(PeerOpenError::Format));
    assert_eq!(world.rails[0].domain().deregister(key), Ok(()));
}

/// Where the endpoint could not be opened anew either, the end of a closed number was told.
#[test]
fn peer_that_cannot_be_joined_since_its_nic_is_away_has_no_end() {
    let Some(mut world) = strict_world(c"strict-away") else { return };
    let _ = world.rails[0].peer_prepare(OTHER, 0x77).unwrap();
    let far = world.rails[1].peer_prepare(OTHER, 0x78).unwrap();
    assert!(world.rails[0].reopen().is_err());
    assert_eq!(world.rails[0].peer_connect(OTHER, &far), Err(PeerOpenError::RailLost));
    while world.rails[0].reopen().is_err() {
        world.poll();
    }
    world.until("the other's end is told", |world| world.downs(0) > 0);
    world.until_quiet();
    let is_its = |seen: &Completion| matches!(seen, Completion::PeerDown { peer: OTHER, .. });
    assert!(!world.seen[0].iter().any(is_its), "{:?}", world.seen[0]);
}

/// Whose endpoint is opened anew has not closed its connections: a lane that ends so is a lane that
/// failed, and comes back. As one that was closed it waited for the word of the other side, which
/// may have left on another lane that ended so.
#[test]
fn reopened_endpoint_is_no_closed_connection() {
    let Some(mut world) = strict_world(c"strict") else { return };
    world.rails[0].reopen().unwrap();
    world.until("the end is told", |world| world.downs(1) == 1);
    let is_broken = |seen: &Completion| {
        matches!(seen, Completion::PeerDown { peer: PEER, cause: DownCause::Broken(_) })
    };
    assert!(world.seen[1].iter().any(is_broken), "{:?}", world.seen[1]);
}

/// A NIC that fails loses messages, and what comes after them is not in turn. The word that nothing
/// is under way any more once was dropped as such, and the other side's fence waited for it: for as
/// long as another of its peers worked.
#[test]
fn fence_hears_the_word_behind_lost_messages() {
    for provider in [c"strict", c"strict-domain", c"strict-short", c"strict-silent"] {
        let Some(mut world) = strict_world(provider) else { return };
        world.send(0, 1, 64); // gone with the endpoint
        world.rails[0].reopen().unwrap();
        world.until("the end is told", |world| world.downs(1) == 1);
        let fence = world.fence(1);
        assert!(world.end(1, fence));
        assert_eq!(world.rails[1].health().reopened, 0, "it did not wait in vain");
        let is_message = |seen: &&Completion| matches!(seen, Completion::Received { .. });
        assert_eq!(world.seen[1].iter().filter(is_message).count(), 0);
    }
}

/// Who closes a connection, and its endpoint at once, may take its last word with it. One that was
/// told of no memory can write nothing, and its word was waited for ten times as long. Of one that
/// was, what it has posted may be on its way.
#[test]
fn word_of_a_peer_that_has_closed_is_waited_for_as_far_as_it_could_write() {
    for (cause, side, waits) in [
        (DownCause::Died, 0, false),
        (DownCause::Died, 1, false),
        (DownCause::Closed, 0, false),
        (DownCause::Closed, 1, true),
    ] {
        let Some(mut world) = strict_world(c"strict") else { return };
        world.write_well();
        world.rails[side].peer_fail(PEER, cause);
        let fence = world.fence(side);
        world.poll_side(side);
        world.pass(Duration::from_millis(500));
        (0..TAKING).for_each(|_| world.poll_side(side));
        assert_eq!(world.result(side, fence).is_none(), waits, "{cause:?} of {side}");
        world.pass(Duration::from_millis(2000));
        (0..TAKING).for_each(|_| world.poll_side(side));
        assert!(world.result(side, fence).is_some(), "{cause:?} of {side}");
        assert_eq!(world.downs(side), 1);
    }
}

/// Where there is no room for the last word to a peer, its number is not given to the next before
/// that has left: it would be lost, and a fence would wait for it.
#[test]
fn last_word_to_a_peer_is_not_lost_with_its_number() {
    let Some(mut world) = strict_world(c"strict-again") else { return };
    for round in 0..4 {
        world.join(OTHER, 0x100 * (round + 1));
        if round % 2 == 1 {
            world.send(0, 1, 64); // every second post finds no room
        }
        world.rails[0].peer_detach(OTHER).unwrap();
        world.prepare(0, OTHER, 0x99);
        let fence = world.post_to(1, OTHER, OpKind::Fence { generation: RailGeneration(1) });
        assert!(world.end(1, fence));
        for side in [0, 1] {
            world.rails[side].peer_detach(OTHER).unwrap();
        }
    }
}

/// What is under way to a peer that was given up ends late: its number is not given to the next
/// before it was told so, or its fence would wait until its endpoint is opened anew.
#[test]
fn last_word_to_a_peer_behind_what_ends_late_is_not_lost_with_its_number() {
    for provider in [c"strict", c"efa"] {
        let Some(mut world) = strict_world(provider) else { return };
        world.write_well();
        world.give_up_while_writing();
        world.pass(Duration::from_secs(1));
        world.poll_side(0);
        world.prepare(0, PEER, 0x99);
        let fence = world.fence(1);
        world.until("it holds or is given up", |world| {
            world.result(1, fence).is_some() || world.rails[1].health().is_lost()
        });
        assert_eq!(world.rails[1].health().lost_code, 0, "it did not wait in vain");
    }
}

/// A read of a number's last peer that ends late, and badly, ends nothing of the next one, which
/// meanwhile waits for it with nothing of its own: no write of the next one was ever taken, no
/// fence held, and its end was that read's.
#[test]
fn read_of_a_peer_that_was_given_up_is_no_business_of_the_next_one() {
    let Some(config) = strict_config(Layout::One, c"strict-reads") else { return };
    let mut world = World::open(&config).unwrap();
    world.write_well();
    hold_read(config.library, true);
    let (target, source) = (world.local(0, 8192, 4096), world.remote(1, 8192));
    let late = world.post(0, OpKind::Read { target, source });
    world.until_quiet();
    assert_eq!(world.result(0, late), None, "it is held");
    world.rails[0].peer_fail(PEER, DownCause::Silent);
    world.poll_side(0);
    world.pass(Duration::from_secs(3));
    world.until("it is answered for", |world| world.result(0, late).is_some());
    world.rails[0].peer_close(PEER).unwrap();
    world.rails[1].peer_fail(PEER, DownCause::Silent);
    world.until("its end is told", |world| world.downs(1) == 1);
    world.rails[1].peer_close(PEER).unwrap();
    world.join(PEER, 0x99);
    world.write_well();
    assert!(!world.rails[0].is_undelivered(PEER));
    hold_read(config.library, false);
    world.until_quiet();
    assert_eq!(world.downs(0), 0, "that was the last peer's");
    world.write_well();
    let fence = world.fence(0);
    assert!(world.end(0, fence));
    assert_eq!(world.rails[0].health().unknown, 0);
}

/// The last word to a peer that was given up may still be under way when the NIC fails: the
/// endpoint that is opened anew says it again.
#[test]
fn last_word_to_a_peer_is_said_again_by_the_next_endpoint() {
    let Some(mut world) = strict_world(c"strict") else { return };
    world.join(OTHER, 0x100);
    world.rails[0].peer_detach(OTHER).unwrap();
    world.rails[0].reopen().unwrap();
    let fence = world.post_to(1, OTHER, OpKind::Fence { generation: RailGeneration(1) });
    assert!(world.end(1, fence));
    assert_eq!(world.rails[1].health().reopened, 0, "it did not wait in vain");
}
