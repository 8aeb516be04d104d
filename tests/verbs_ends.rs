//! How a verbs rail's peers end where devices are unwilling, and what its user may sleep on then:
//! over a libibverbs of our own (`tests/verbs_fake`).

mod verbs_support;

use crosstie::base::ids::RailGeneration;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{Completion, DownCause, PeerLife, Provider};
use crosstie::provider::verbs::RECEIVES;
use verbs_support::fake::{libraries, story_told, told_in};
use verbs_support::{NOTHING, OTHER, PEER, World};

/// What the device of a story does from now on.
fn turn(fake: &str) {
    // SAFETY: a process of one story; its only other thread waits for this one.
    unsafe { std::env::set_var("FAKE", fake) };
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "release late" => release_late(),
        "sleep beside the dead" => sleep_beside_the_dead(),
        "sleep while it is down" => sleep_while_it_is_down(),
        "sleep when it is gone" => sleep_when_it_is_gone(),
        "obey no more" => obey_no_more(),
        "overrun what goes on" => overrun_what_goes_on(),
        "take no marker" => take_no_marker(),
        "ask for the gid in vain" => ask_for_the_gid_in_vain(),
        "come up unheard" => come_up_unheard(),
        _ => panic!("no story is called {story}"),
    }
}

fn tell(story: &str, wanted: &str) {
    let Some([new, _]) = libraries() else { return };
    let said = told_in(new, story, "");
    assert!(said.contains(wanted), "{said}");
}

fn end_both(world: &mut World) {
    for side in 0..2 {
        world.rails[side].peer_fail(PEER, DownCause::Silent);
        let fence = world.fence(side);
        assert!(world.end(side, fence));
        world.until("its end is told", |world| world.downs(side) == 1);
    }
}

/// What one side is told by so many polls at a time.
fn told(world: &mut World, side: usize, polls: u32, now: Instant) -> Vec<Completion> {
    let mut all = Vec::new();
    for _ in 0..polls {
        let mut out = [NOTHING; 16];
        let count = world.rails[side].poll(&mut out, Bytes::kib(64), now);
        all.extend_from_slice(&out[..count]);
    }
    all
}

fn has_fence(events: &[Completion]) -> bool {
    events.iter().any(|event| matches!(event, Completion::Fenced { .. }))
}

/// Messages of the last peer are let go when the next one has its queue pair, and does not know
/// its other end yet.
fn release_late() {
    const HELD: usize = 20;
    let mut world = World::new().expect("devices");
    let slots = |world: &World| -> Vec<_> {
        let slot = |event: &Completion| match event {
            Completion::Received { slot, .. } => Some(*slot),
            _ => None,
        };
        world.seen[1].iter().filter_map(slot).collect()
    };
    for number in 0..HELD {
        world.send(0, number as u8, 8);
    }
    world.until("all came", |world| slots(world).len() == HELD);
    let held = slots(&world);
    end_both(&mut world);
    world.rails.iter_mut().for_each(|rail| rail.peer_detach(PEER).unwrap());
    let mut prepare = |side: usize| {
        world.rails[side].peer_prepare(PEER, RailGeneration(2), 7).expect("a queue pair")
    };
    let ends = [prepare(0), prepare(1)];
    held.into_iter().for_each(|slot| world.rails[1].received_release(PEER, slot));
    world.rails[0].peer_connect(PEER, &ends[1]).unwrap();
    world.rails[1].peer_connect(PEER, &ends[0]).unwrap();
    world.seen = [Vec::new(), Vec::new()];
    // some of them may wait to be posted
    let promised = world.rails[1].caps(PEER).recv_slots as usize;
    for number in 0..promised {
        world.send(0, number as u8, 8);
    }
    world.until("each found a receive", |world| {
        slots(world).len() == promised || world.downs(0) > 0
    });
    assert_eq!(slots(&world).len(), promised);
    println!("each found a receive, {} lazy", RECEIVES - promised);
}

#[test]
fn message_released_before_the_next_peer_is_joined_gives_its_receive_back() {
    tell("release late", "each found a receive, 8 lazy");
}

/// Both peers have ended and are fenced; nobody has closed them.
fn sleep_beside_the_dead() {
    let mut world = World::new().expect("devices");
    world.join(OTHER, 1);
    end_both(&mut world);
    (0..8).for_each(|_| world.poll());
    println!("sleeps: {}", world.rails[0].arm());
}

#[test]
fn fenced_peer_that_nobody_closes_keeps_nobody_awake() {
    tell("sleep beside the dead", "sleeps: true");
}

/// The port goes down while a peer waits for its other end.
fn sleep_while_it_is_down() {
    let mut world = World::of(|config| config.port_grace = Span::millis(1)).expect("devices");
    world.rails[0].peer_prepare(OTHER, RailGeneration(1), 7).expect("a queue pair");
    turn("event=10 port_down");
    world.until("the end is told", |world| world.downs(0) == 1);
    let fence = world.fence(0);
    assert!(world.end(0, fence));
    (0..8).for_each(|_| world.poll());
    println!("sleeps: {}", world.rails[0].arm());
}

#[test]
fn peer_that_waits_for_its_other_end_keeps_nobody_awake_while_the_port_is_down() {
    tell("sleep while it is down", "sleeps: true");
}

/// The device is gone, and hangs up at who waits for its completions.
fn sleep_when_it_is_gone() {
    let mut world = World::new().expect("devices");
    turn("event=8");
    world.until("the peers end", |world| world.downs(0) == 1 && world.downs(1) == 1);
    let fence = world.fence(0);
    assert!(world.end(0, fence));
    world.rails[0].peer_close(PEER).unwrap();
    assert!(world.rails[0].arm());
    for fd in world.rails[0].wait_fds().expect("a channel") {
        let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        let ready = unsafe { libc::poll(&mut wait, 1, 0) };
        println!("ready: {ready}, {}", wait.revents);
    }
}

#[test]
fn device_that_is_gone_wakes_nobody_for_ever() {
    tell("sleep when it is gone", "ready: 0, 0\nready: 0, 0");
}

/// The device neither stops nor destroys a queue pair, and may move its bytes still.
fn obey_no_more() {
    let mut world = World::new().expect("devices");
    turn("stuck");
    world.fence(0);
    say_fence(&mut world, 4);
}

/// Says whether a fence holds while the device is stuck, and then; of `room` events a poll.
fn say_fence(world: &mut World, room: u32) {
    let after = |seconds: u64| Instant(seconds * 1_000_000_000);
    let is_told = (1..20).any(|at| has_fence(&told(world, 0, room, after(at))));
    turn("");
    let is_told_then = (20..40).any(|at| has_fence(&told(world, 0, room, after(at))));
    println!("a fence: {is_told}, then {is_told_then}");
}

#[test]
fn fence_holds_only_when_the_queue_pair_is_gone() {
    tell("obey no more", "a fence: false, then true");
}

/// The device does not stop a queue pair, and its peer sends words until one of them takes the
/// marker of its receives.
fn overrun_what_goes_on() {
    let mut world = World::new().expect("devices");
    turn("stuck");
    world.fence(0);
    for word in 0..=RECEIVES as u32 {
        world.write_told(1, 0, 8, word);
    }
    told(&mut world, 1, 4, Instant(0));
    say_fence(&mut world, 16);
}

/// The marker counted, so that a fence held of a queue pair that went on.
#[test]
fn marker_that_a_word_was_received_into_is_the_end_of_nothing() {
    tell("overrun what goes on", "a fence: false, then true");
}

/// A queue pair that has failed takes no request, so that none can tell of its end.
fn take_no_marker() {
    let mut world = World::new().expect("devices");
    turn("sends_refused");
    world.fence(0);
    println!("a fence: {}", has_fence(&told(&mut world, 0, 16, Instant(1))));
}

#[test]
fn queue_pair_that_takes_no_marker_is_not_waited_for() {
    tell("take no marker", "a fence: true");
}

/// The GID cannot be asked for, since the process may open no more descriptors; then it can.
fn ask_for_the_gid_in_vain() {
    let mut world = World::new().expect("devices");
    turn("gid_refused");
    let refused = world.rails[0].peer_prepare(OTHER, RailGeneration(2), 7).map(|_| ());
    println!("{}", refused.expect_err("its GID is not known"));
    assert!(!world.rails[0].health().is_lost(), "nothing has gone");
    let write = world.write(0, 0, 64);
    assert!(world.end(0, write) && world.downs(0) == 0);
    turn("");
    world.join(OTHER, 2);
    println!("and then it is known");
}

/// Every peer of the port ended, for good with a library that reads no tables.
#[test]
fn gid_that_cannot_be_asked_for_refuses_one_peer_and_ends_none() {
    let Some(libraries) = libraries() else { return };
    for folder in libraries {
        let said = told_in(folder, "ask for the gid in vain", "");
        let wanted = "the GID of the port cannot be read: errno 24";
        assert!(said.contains(wanted) && said.contains("and then it is known"), "{said}");
    }
}

/// The port goes down and comes up, and its device does not tell of that.
fn come_up_unheard() {
    let mut world = World::of(|config| config.port_grace = Span::millis(1)).expect("devices");
    let down = |world: &World| {
        let is_down = |side: usize| world.rails[side].health().port_down_since.is_some();
        [is_down(0), is_down(1)]
    };
    turn("event=10 port_down");
    world.until("the peers end", |world| world.downs(0) == 1 && world.downs(1) == 1);
    assert!(!world.rails[0].revive(world.now));
    println!("while it is away: {:?}", down(&world));
    turn("");
    assert!(!world.rails[0].revive(world.now));
    println!("looked at: {:?}", down(&world));
    // and the other end is asked for a queue pair
    world.join(OTHER, 2);
    println!("asked: {:?}", down(&world));
    (0..8).for_each(|_| world.poll());
    let write = world.write_kind(0, 0, 64);
    let write = world.post_to(0, OTHER, write);
    println!("carries bytes: {}", world.end(0, write));
}

/// The port was down for ever, and ended each peer that was joined.
#[test]
fn port_that_is_up_is_used_although_nobody_has_told_of_it() {
    let wanted = "while it is away: [true, true]\nlooked at: [false, true]\nasked: [false, false]\n\
                  carries bytes: true";
    tell("come up unheard", wanted);
}
