//! What a rail does that loses the device, queue or GID that it stands on: over a libibverbs of our
//! own (`tests/verbs_fake`), whose ports change in the midst of a connection.

mod verbs_support;

use crosstie::base::ids::RailGeneration;
use crosstie::base::units::{Instant, Span};
use crosstie::fabric::{Completion, Provider};
use crosstie::provider::verbs::{GidText, loss_words};
use std::path::Path;
use verbs_support::fake::{libraries, story_in, tell_in};
use verbs_support::{PEER, World};

/// What the device of a story has from now on: what the variable of this name says.
fn turn(variable: &str) -> bool {
    let fake = std::env::var(variable).unwrap_or_default();
    // SAFETY: a process of one story; its only other thread waits for this one.
    unsafe { std::env::set_var("FAKE", &fake) };
    fake.contains("event=")
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Ok(story) = std::env::var("FAKE_STORY") else {
        let Some([folder, _]) = libraries() else { return };
        let done = tell_in(folder, "of nobody", "");
        return assert!(!done.status.success(), "a story that nobody knows was told");
    };
    match story.as_str() {
        "lose" => lose(),
        "look for long" => look_for_long(),
        _ => panic!("no story is called {story}"),
    }
}

/// A standing connection, until it is lost.
fn lost_world() -> World {
    let mut world = World::new().expect("devices");
    world.fill(0, 0, 4096, 1);
    let write = world.write(0, 0, 4096);
    assert!(world.end(0, write) && world.holds(1, 0, 4096, 1));
    turn("FAKE_FIRST");
    world.until("the peers end", |world| world.downs(0) == 1 && world.downs(1) == 1);
    for side in 0..2 {
        let fence = world.fence(side);
        assert!(world.end(side, fence));
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
    let before = world.rails.each_ref().map(|rail| rail.health().events);
    if turn("FAKE_THEN") {
        world.until("the event", |world| {
            let now = world.rails.each_ref().map(|rail| rail.health().events);
            now[0] > before[0] && now[1] > before[1]
        });
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
