//! What a rail does that loses the device, queue or GID that it stands on: over a libibverbs of our
//! own (`tests/verbs_fake`), whose ports change in the midst of a connection.

mod verbs_support;

use crosstie::base::ids::RailGeneration;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{Completion, Domain, MemoryDomain, PeerLife, Provider};
use crosstie::provider::verbs::{GidText, RECEIVES, loss_words};
use std::path::Path;
use verbs_support::fake::{libraries, story_in, story_told};
use verbs_support::{NOTHING, PEER, World};

/// What the device of a story has from now on: what the variable of this name says.
fn turn(variable: &str) -> bool {
    let fake = std::env::var(variable).unwrap_or_default();
    // SAFETY: a process of one story; its only other thread waits for this one.
    unsafe { std::env::set_var("FAKE", &fake) };
    fake.contains("event=")
}

/// The same, and both rails hear of it, if the device tells.
fn hear(world: &mut World, variable: &str) -> bool {
    let before = world.rails.each_ref().map(|rail| rail.health().events);
    let tells = turn(variable);
    if tells {
        world.until("the event", |world| {
            let now = world.rails.each_ref().map(|rail| rail.health().events);
            now[0] > before[0] && now[1] > before[1]
        });
    }
    tells
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "lose" => lose(),
        "look for long" => look_for_long(),
        "go home" => go_home(),
        "come late" => come_late(),
        "give back" => give_back(),
        "be silent" => be_silent(),
        "be unanswered" => be_unanswered(),
        "be stopped" => be_stopped(),
        _ => panic!("no story is called {story}"),
    }
}

/// A standing connection, until it is lost.
fn lost_world() -> World {
    let mut world = World::new().expect("devices");
    world.fill(0, 0, 4096, 1);
    let write = world.write(0, 0, 4096);
    assert!(world.end(0, write) && world.holds(1, 0, 4096, 1));
    assert_eq!(world.rails[0].fenced_through(), 0, "its peer may write");
    turn("FAKE_FIRST");
    world.until("the peers end", |world| world.downs(0) == 1 && world.downs(1) == 1);
    for side in 0..2 {
        let fence = world.fence(side);
        assert!(world.end(side, fence));
        assert_eq!(world.rails[side].fenced_through(), u32::MAX, "nothing is under way");
        assert_eq!(world.rails[side].peer_close(PEER), Ok(()));
    }
    world
}

/// As people are told.
fn why(world: &World) -> &'static str {
    let rail = &world.rails[0];
    loss_words(rail.health().lost_code, !rail.may_revive())
}

/// The ports of a connection have what `FAKE_FIRST` says, and are looked at; then what `FAKE_THEN`
/// says, and are looked at soon and long after.
fn lose() {
    let mut world = lost_world();
    let down = world.seen[0].iter().find(|it| matches!(it, Completion::PeerDown { .. }));
    println!("{down:?}, because {}", why(&world));
    let lost = Instant(world.now.0);
    let looks = world.rails.each_mut().map(|rail| rail.revive(lost));
    println!("revived: {looks:?}");
    if hear(&mut world, "FAKE_THEN") {
        println!("then {}", why(&world));
    }
    for (when, after) in [("soon", 4000), ("late", 10_000)] {
        let now = lost.after(Span::millis(after));
        for rail in &mut world.rails {
            if rail.health().is_lost() && rail.revive(now) {
                println!("{when} on {}", GidText(rail.gid()));
            }
        }
    }
    let refused = world.rails[0].peer_prepare(PEER, RailGeneration(2), 7).map(|_| ());
    if let Err(refused) = refused {
        return println!("{refused}");
    }
    assert_eq!(world.rails[0].peer_close(PEER), Ok(()));
    world.join(PEER, 2);
    world.fill(0, 0, 4096, 2);
    let write = world.write(0, 0, 4096);
    println!("carries bytes: {}", world.end(0, write) && world.holds(1, 0, 4096, 2));
    // the new peer may write; the fence of the loss still counts
    let rail = &world.rails[0];
    assert_eq!(rail.fenced_through(), rail.health().revivals);
}

/// The port has no GID for ten seconds in which somebody asks every 20 ms, as endpoints do; then it
/// has one, of which the device tells.
fn look_for_long() {
    let mut world = lost_world();
    let start = world.now;
    let mut now = start;
    while now.since(start) < Span::millis(10_000) {
        assert!(!world.rails[0].revive(now));
        now = now.after(Span::millis(20));
    }
    let before = world.rails[0].health().events;
    turn("FAKE_THEN");
    world.until("the event", |world| world.rails[0].health().events > before);
    println!("at once: {}", world.rails[0].revive(now));
}

/// Which of the rails can be revived at this time, and on which GIDs they stand then.
fn look_at(world: &mut World, now: Instant) -> String {
    let looks = world.rails.each_mut().map(|rail| (rail.revive(now), GidText(rail.gid())));
    format!("{} {} on {} {}", looks[0].0, looks[1].0, looks[0].1, looks[1].1)
}

/// Ports that have taken a GID of another subnet, after a while, come to have what `FAKE_LAST`
/// says: with peers by then if `FAKE_PEERS` says so.
fn go_home() {
    let mut world = lost_world();
    hear(&mut world, "FAKE_THEN");
    let start = Instant(world.now.0);
    look_at(&mut world, start);
    println!("late: {}", look_at(&mut world, start.after(Span::millis(6000))));
    let has_peers = std::env::var_os("FAKE_PEERS").is_some();
    if has_peers {
        world.join(PEER, 2);
    }
    hear(&mut world, "FAKE_LAST");
    if has_peers {
        world.fill(0, 0, 4096, 2);
        let write = world.write(0, 0, 4096);
        println!("goes on: {}", world.end(0, write) && world.holds(1, 0, 4096, 2));
        for side in 0..2 {
            assert_eq!(world.rails[side].peer_close(PEER), Ok(()));
        }
    }
    for rail in &mut world.rails {
        match rail.peer_prepare(PEER, RailGeneration(3), 7) {
            Ok(_) => assert_eq!(rail.peer_close(PEER), Ok(())),
            Err(error) => println!("{error}"),
        }
    }
    println!("then: {}", look_at(&mut world, start.after(Span::millis(7000))));
    world.join(PEER, 4);
    world.fill(0, 0, 4096, 4);
    let write = world.write(0, 0, 4096);
    println!("carries bytes: {}", world.end(0, write) && world.holds(1, 0, 4096, 4));
}

/// A port was left alone for minutes, as one without connections is; it has come up meanwhile, and
/// the device has told of it, behind much else.
fn come_late() {
    let mut world = lost_world();
    let start = Instant(world.now.0);
    assert!(!world.rails[0].revive(start));
    for variable in ["FAKE_THEN", "FAKE_LAST"] {
        turn(variable);
        // the device tells all when one is polled
        assert_eq!(world.rails[1].poll(&mut [NOTHING], Bytes::kib(64), start), 0);
    }
    let minutes = start.after(Span::millis(180_000));
    for after in (0..=6000).step_by(20) {
        if world.rails[0].revive(minutes.after(Span::millis(after))) {
            return println!("{} seconds after it was looked at", after / 1000);
        }
    }
}

/// For how long, by a clock of its own, both rails are polled until side 0's peer has ended once
/// more; `None`: it stays.
fn silence(world: &mut World, clock: &mut Instant) -> Option<Span> {
    let (start, before) = (*clock, world.downs(0));
    while clock.since(start) < Span::millis(4000) {
        *clock = clock.after(Span::millis(5));
        for side in 0..2 {
            let mut out = [NOTHING; 16];
            let count = world.rails[side].poll(&mut out, Bytes::kib(64), *clock);
            world.seen[side].extend_from_slice(&out[..count]);
        }
        if world.downs(0) > before {
            return Some(clock.since(start));
        }
    }
    None
}

/// The devices acknowledge nothing any more, and do not say so.
fn be_silent() {
    // far ahead of that of the world
    let mut clock = Instant(1 << 40);
    let most = Span::millis(400);
    let patient = std::env::var_os("FAKE_PATIENT").is_some();
    let silence_max = if patient { Span(0) } else { most };
    let mut world = World::of(|config| config.silence_max = silence_max).expect("devices");
    world.fill(0, 0, 4096, 1);
    let write = world.write(0, 0, 4096);
    assert!(world.end(0, write) && world.holds(1, 0, 4096, 1));
    // nobody waits for its end, and nobody would hear of it
    world.send(0, 1, 64);
    assert_eq!(silence(&mut world, &mut clock), None, "it was acknowledged");
    turn("FAKE_FIRST");
    assert_eq!(silence(&mut world, &mut clock), None, "nothing is under way");
    let write = world.write(0, 0, 4096);
    let Some(span) = silence(&mut world, &mut clock) else { return println!("it stays") };
    println!("{} of {} ms", span.0 / 1_000_000, most.0 / 1_000_000);
    assert!(span >= most && span < Span(2 * most.0), "{span:?}");
    println!("{:?}", world.seen[0].last());
    println!("{}", world.rails[0].error(PEER).expect("why"));
    assert_eq!(world.downs(1), 0, "the other side has sent nothing");
    assert_eq!(world.ended(0, write), Some(false));
    for side in 0..2 {
        let fence = world.fence(side);
        assert!(world.end(side, fence));
        assert_eq!(world.rails[side].peer_close(PEER), Ok(()));
    }
    turn("FAKE_THEN");
    world.join(PEER, 2);
    world.send(0, 1, 64);
    assert_eq!(silence(&mut world, &mut clock), None, "it was acknowledged");
    turn("FAKE_FIRST");
    world.send(0, 2, 64);
    println!("of a short message, too: {}", silence(&mut world, &mut clock).is_some());
}

/// The device has sent a write as often as it was told to.
fn be_unanswered() {
    let mut world = World::new().expect("devices");
    turn("FAKE_FIRST");
    let id = world.write(0, 0, 4096);
    assert!(!world.end(0, id));
    let of_it = |it: &&Completion| matches!(it, Completion::Done { id: done, .. } if *done == id);
    println!("{:?}", world.seen[0].iter().find(of_it));
    world.until("the peer ends", |world| world.downs(0) == 1);
    let is_end = |it: &&Completion| matches!(it, Completion::PeerDown { .. });
    println!("{:?}", world.seen[0].iter().find(is_end));
}

/// One side stops its queue pair. The other, which has not heard of that, sends as much as finds a
/// receive, once more, and a write.
fn be_stopped() {
    let mut world = World::new().expect("devices");
    world.fill(0, 0, 4096, 1);
    world.fence(1);
    for number in 0..=RECEIVES {
        world.send(0, number as u8, 8);
    }
    let write = world.write(0, 0, 4096);
    assert!(!world.end(0, write) && world.holds(1, 0, 4096, 0), "bytes came behind a fence");
    world.until("the peer ends", |world| world.downs(0) == 1);
    println!("{}", world.rails[0].error(PEER).expect("why"));
}

/// What was registered with a device that is gone is given back, and the rail, too.
fn give_back() {
    let world = lost_world();
    for side in 0..2 {
        println!("{:?}", world.rails[side].domain().deregister(world.keys[side]));
    }
    drop(world);
    println!("closed");
}

/// What a story says in which the port loses what it stands on, and has something else then; and
/// what its library was asked for.
fn told(folder: &Path, story: &str, first: &str, then: &str) -> [String; 2] {
    let done = story_in(folder, story, "")
        .envs([("FAKE_FIRST", first), ("FAKE_THEN", then)])
        .output()
        .expect("this program runs");
    let said = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(done.status.success(), "{}{}", said[0], said[1]);
    said
}

fn lost(folder: &Path, first: &str, then: &str) -> String {
    let [said, _] = told(folder, "lose", first, then);
    said
}

const GID_GONE: &str = "event=18 no_gid";
const NO_MORE: &str = "the device or its GID has gone";

#[test]
fn rail_whose_gid_changes_under_a_connection_goes_on_with_another() {
    let Some([new, _]) = libraries() else { return };
    let gone = "Broken(99) }), because its GID or LID has gone (did an address change?); it is \
                used again once it has another\nrevived: [false, false]\n";
    for (then, gid) in [
        ("gid_at=3 gid_ends=7", "10.0.0.7"), // another address
        ("gid_at=3", "10.0.0.1"),            // the same at another place
        ("gid_ends=7", "10.0.0.7"),          // another at the same place
    ] {
        let said = lost(new, GID_GONE, then);
        let wanted = format!("{gone}soon on {gid}\nsoon on {gid}\ncarries bytes: true");
        assert!(said.contains(&wanted), "{then}: {said}");
    }
    let first = "event=18 gid_at=3 gid_ends=7";
    let at_once = lost(new, first, "gid_at=3 gid_ends=7");
    assert!(at_once.contains("revived: [true, true]\ncarries bytes: true"), "{at_once}");
    for then in ["no_gid", "gid_ends=7 gid_version_1"] {
        let said = lost(new, GID_GONE, then);
        assert!(said.contains(&format!("{gone}{NO_MORE}")), "{then}: {said}");
    }
}

/// Addresses come back one after the other: one that no peer may reach is not taken for the first.
#[test]
fn gid_of_another_subnet_is_taken_only_after_a_while_and_as_an_endpoint_would() {
    let Some([new, _]) = libraries() else { return };
    for (then, gid) in [
        ("gid_net=5 gid_ends=7", "10.5.0.7"),
        ("no_gid gid6_at=2", "fd00::1"),
        ("gid6_at=0 gid_at=3 gid_net=5", "10.5.0.1"), // IPv4 before IPv6, not the first
    ] {
        let said = lost(new, GID_GONE, then);
        let wanted = format!("revived: [false, false]\nlate on {gid}\nlate on {gid}\ncarries");
        assert!(said.contains(&wanted), "{then}: {said}");
    }
}

/// The status of its completion, 12, was told as an errno: "no memory".
#[test]
fn write_that_nobody_acknowledges_fails_with_an_errno() {
    let Some([new, _]) = libraries() else { return };
    let [said, _] = told(new, "be unanswered", "unanswered", "");
    assert!(said.contains("Err(OpError { kind: Fabric, code: 110 })"), "{said}");
}

/// A port that is down, of which the device had not told yet, was told as a failure of the send:
/// "errno 5", or packets that nobody acknowledged.
#[test]
fn peer_that_is_lost_while_the_port_is_down_is_lost_by_that() {
    let Some([new, _]) = libraries() else { return };
    for (first, code) in [("unanswered", 110), ("unanswered port_down", 100)] {
        let [said, _] = told(new, "be unanswered", first, "");
        assert!(said.contains(&format!("cause: Broken({code})")), "{first}: {said}");
    }
}

/// Queue pairs name their peers by LIDs, and are found by them.
#[test]
fn port_that_comes_up_with_another_lid_gets_new_queue_pairs() {
    let Some([new, _]) = libraries() else { return };
    let done = story_in(new, "lose", "infiniband lid=2")
        .envs([("FAKE_FIRST", "event=9 infiniband lid=3"), ("FAKE_THEN", "infiniband lid=3")])
        .output()
        .expect("this program runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let wanted = "because its GID or LID has gone (did an address change?); it is used again once \
                  it has another\nrevived: [true, true]\ncarries bytes: true";
    assert!(said.contains(wanted), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let asked = String::from_utf8_lossy(&done.stderr);
    assert!(
        asked.contains("to LID 2, global 0") && asked.contains("to LID 3, global 0"),
        "{asked}"
    );
}

#[test]
fn gid_of_another_version_of_roce_is_another_gid() {
    let Some([new, _]) = libraries() else { return };
    let said = lost(new, "event=18 gid_version_1", "");
    let wanted = "revived: [false, false]\nsoon on 10.0.0.1\nsoon on 10.0.0.1\ncarries";
    assert!(said.contains("Broken(99)") && said.contains(wanted), "{said}");
}

#[test]
fn rail_over_a_library_without_tables_of_gids_is_out_of_use_for_good() {
    let Some([_, old]) = libraries() else { return };
    let said = lost(old, GID_GONE, "gid_ends=7");
    let wanted = "because its GID or LID has gone (did an address change?); endpoints that are \
                  opened later may use another (this one would with rdma-core 33 or later)\n\
                  revived: [false, false]\n";
    assert!(said.contains(&format!("{wanted}{NO_MORE}")), "{said}");
}

#[test]
fn table_of_gids_is_left_alone_for_longer_and_longer_and_read_when_it_changes() {
    let Some([new, _]) = libraries() else { return };
    let [said, asked] =
        told(new, "look for long", "event=18 no_gid say_table", "event=9 gid_ends=7");
    assert!(said.contains("at once: true"), "{said}");
    let reads = asked.matches("the table of GIDs is read").count();
    assert!((10..=20).contains(&reads), "the table was read {reads} times in ten seconds");
}

#[test]
fn device_that_fails_under_a_connection_ends_it_and_stays_away() {
    let Some([new, _]) = libraries() else { return };
    let said = lost(new, "event=8", "");
    let wanted = "Broken(19) }), because the device failed or was removed";
    assert!(said.contains(wanted) && said.contains("revived: [false, false]"), "{said}");
    assert!(said.contains(NO_MORE), "{said}");
}

/// The kernel has taken all of it away by then, and every call says so.
#[test]
fn memory_is_given_back_by_a_device_that_is_gone() {
    let Some([new, _]) = libraries() else { return };
    for gone in ["event=8 dead", "event=8 dead=19"] {
        let [said, _] = told(new, "give back", gone, "");
        assert!(said.contains("Ok(())\nOk(())\nclosed"), "{gone}: {said}");
    }
}

const STRANGER: &str = "event=9 no_gid gid6_at=2";

/// What is said of a port that has gone to an IPv6 address, and what it does then.
fn gone_home(folder: &Path, last: &str, peers: bool) -> String {
    let mut story = story_in(folder, "go home", "");
    story.envs([("FAKE_FIRST", GID_GONE), ("FAKE_THEN", STRANGER), ("FAKE_LAST", last)]);
    if peers {
        story.env("FAKE_PEERS", "1");
    }
    let done = story.output().expect("this program runs");
    let said = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(done.status.success(), "{last}: {}{}", said[0], said[1]);
    assert!(said[0].contains("late: true true on fd00::1 fd00::1\n"), "{last}: {}", said[0]);
    said[0].clone()
}

/// Peers that are still on the address of the subnet could not be joined from another.
#[test]
fn rail_on_a_gid_of_another_subnet_goes_home_when_its_own_is_back() {
    let Some([new, _]) = libraries() else { return };
    for (last, gid) in [
        ("event=18 gid6_at=2 gid_at=3", "10.0.0.1"), // the device tells
        ("gid6_at=2 gid_at=3", "10.0.0.1"),          // it does not
        ("event=18 gid6_at=2 gid_at=3 gid_ends=7", "10.0.0.7"), // another of the subnet
        ("event=18 gid6_at=0 gid_at=3", "10.0.0.1"), // the stranger has moved
    ] {
        let said = gone_home(new, last, false);
        let then = format!("then: true true on {gid} {gid}\ncarries bytes: true");
        assert!(said.contains(&format!("{NO_MORE}\n{NO_MORE}\n{then}")), "{last}: {said}");
    }
}

#[test]
fn rail_on_a_gid_of_another_subnet_stays_there_while_its_own_is_away() {
    let Some([new, _]) = libraries() else { return };
    for last in ["event=18 no_gid gid6_at=2", "gid6_at=2 gid_at=3 gid_net=5"] {
        let said = gone_home(new, last, false);
        let then = "then: false false on fd00::1 fd00::1\ncarries bytes: true";
        assert!(said.contains(then) && !said.contains(NO_MORE), "{last}: {said}");
    }
}

#[test]
fn peers_that_are_reached_from_another_subnet_are_not_given_up_to_go_home() {
    let Some([new, _]) = libraries() else { return };
    let said = gone_home(new, "event=18 gid6_at=2 gid_at=3", true);
    let then = "then: true true on 10.0.0.1 10.0.0.1\ncarries bytes: true";
    assert!(said.contains(&format!("goes on: true\n{NO_MORE}\n{NO_MORE}\n{then}")), "{said}");
}

/// That it has come up is read before the time since then counts.
#[test]
fn port_that_nobody_polled_for_minutes_has_just_come_up() {
    let Some([new, _]) = libraries() else { return };
    for then in ["", "event=13 times=40 no_gid"] {
        let done = story_in(new, "come late", "")
            .envs([("FAKE_FIRST", GID_GONE), ("FAKE_THEN", then), ("FAKE_LAST", STRANGER)])
            .output()
            .expect("this program runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains("5 seconds after it was looked at"), "{then}: {said}");
    }
}

/// What is lost for good does not come back by a GID, in whichever order it was lost.
#[test]
fn loss_of_the_gid_takes_the_place_of_no_other_loss() {
    let Some([new, _]) = libraries() else { return };
    for (first, then, code, words) in [
        ("event=8", GID_GONE, 19, "the device failed or was removed"),
        ("event=8", "event=18 gid_ends=7", 19, "the device failed or was removed"),
        ("event=0", GID_GONE, 75, "its completion queue overran"),
        ("event=0", "event=18 gid_ends=7", 75, "its completion queue overran"),
        (GID_GONE, "event=8 gid_ends=7", 99, "the device failed or was removed"),
        (GID_GONE, "event=0 gid_ends=7", 99, "its completion queue overran"),
    ] {
        let said = lost(new, first, then);
        assert!(said.contains(&format!("Broken({code})")), "{first}, {then}: {said}");
        let wanted = format!("then {words}");
        assert!(said.contains(&wanted), "{first}, {then}: {said}");
        assert!(said.contains(NO_MORE), "{first}, {then}: {said}");
    }
}

/// The device would send again for half a minute, as it is told to.
#[test]
fn peer_whose_device_acknowledges_nothing_ends_in_the_time_that_was_said() {
    let Some([new, _]) = libraries() else { return };
    let [said, _] = told(new, "be silent", "silent", "");
    assert!(said.contains("of 400 ms"), "{said}");
    assert!(said.contains("PeerDown { peer: PeerIndex(0), cause: Broken(110) }"), "{said}");
    assert!(said.contains("given up: the peer's device has acknowledged nothing"), "{said}");
    assert!(said.contains("of a short message, too: true"), "{said}");
    let done = story_in(new, "be silent", "")
        .envs([("FAKE_FIRST", "silent"), ("FAKE_PATIENT", "1")])
        .output()
        .expect("this program runs");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("it stays"), "{said}");
}

/// The false device gave a queue pair that was stopped what was sent to it, and wrote to address 0
/// when that met the marker, which has no memory.
#[test]
fn queue_pair_that_was_stopped_takes_nothing_that_is_sent_to_it() {
    let Some([new, _]) = libraries() else { return };
    let [said, _] = told(new, "be stopped", "", "");
    assert!(said.contains("the peer's device did not acknowledge it"), "{said}");
}
