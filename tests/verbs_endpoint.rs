//! Connections of whole endpoints over RDMA ports: every byte compared, while rails work, break and
//! come back. Where there are no devices, as `XTIE_VM` does not promise them, nothing is proven.
#![allow(dead_code)] // of the shared parts

mod guest_support;
mod host_support;

use crosstie::host::endpoint::ConnectionRail;
use crosstie::transport::rail::LaneState;
use guest_support::verbs_pair::devices;
use guest_support::{
    address_add, address_take, dropped, ends, flow_until_given_up, is_given_up, link_down,
    link_down_with_stripes, link_up, neighbours_stay, open, pair, pair_in, pair_of, run,
    wired_pair, wires,
};
use host_support::flow::Flow;
use host_support::long_drops::long_drops;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Place, Random, Watch, roles, stalled};
use std::process::Command;

#[test]
fn payload_of_a_connection_goes_over_one_port() {
    let Some(mut pair) = pair(1) else { return };
    let to_b = pair.to_b;
    assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Verbs));
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.carries(&mut flows, "verbs");
}

#[test]
fn two_ports_share_the_payload() {
    let Some(pair) = pair(2) else { return };
    both_rails_carry(pair);
}

#[test]
fn two_queue_pairs_of_one_port_share_the_payload() {
    let Some(pair) = pair_of(1, 2) else { return };
    both_rails_carry(pair);
}

fn both_rails_carry(mut pair: Pair) {
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    // how much each has is a matter of how busy the host is
    let before = [1, 2].map(|lane| pair.bytes(lane));
    pair.flow_until(&mut flows, "bytes on both rails", |pair, _| {
        [1, 2].iter().zip(before).all(|(lane, before)| {
            pair.bytes(*lane).iter().zip(before).all(|(now, before)| now - before > 200_000)
        })
    });
    for lane in [1, 2] {
        println!("rail {lane}: {:?} bytes", pair.bytes(lane));
    }
}

/// A connection over the first wire, of whose link this end has this MTU, is told of with so many
/// bytes a packet, or not at all.
fn packets_told(ends: &[String; 2], mtu: u32, wanted: Option<&str>) {
    // what comes behind it is told of by another test
    let alone = alone();
    run("ip", &format!("link set rail0 mtu {mtu}"));
    let before = stalled::said().len();
    let [a, b] = [0, 1].map(|end: usize| open(2, &ends[end], 1));
    let mut pair = Pair::of(alone, a, b, 2);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.carries(&mut flows, "verbs");
    let said = stalled::said().split_off(before);
    let told: Vec<&String> = said.iter().filter(|text| text.contains(" has packets of ")).collect();
    match wanted {
        Some(wanted) => assert!(told.iter().any(|text| text.ends_with(wanted)), "{said:#?}"),
        None => assert!(told.is_empty(), "{told:#?}"),
    }
    run("ip", "link set rail0 mtu 9000");
}

/// Packets were as long as the shorter end takes, and nobody was told why they are short.
#[test]
fn ports_whose_mtu_differs_carry_by_the_smaller_and_that_is_said() {
    let Some(ends) = wires(1) else { return };
    stalled::listen(&[]);
    packets_told(&ends, 9000, None);
    let words =
        "has packets of 1024 bytes: the MTU of this side's port is 1024, that of the peer's 4096";
    packets_told(&ends, 1500, Some(words));
    packets_told(&ends, 9000, None);
}

/// Of a rail that came back with shorter packets nobody was told.
#[test]
fn rail_that_comes_back_with_another_mtu_is_told_of_with_both() {
    let Some(mut pair) = pair(1) else { return };
    stalled::listen(&[]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = stalled::said().len();
    link_down(0);
    flow_until_given_up(&mut pair, &mut flows, 1);
    run("ip", "link set rail0 mtu 1500");
    link_up(0);
    pair.flow_until(&mut flows, "both ports' MTU to be told", |_, _| {
        let words = "that of the peer's 4096";
        stalled::said()[before..].iter().any(|text| text.ends_with(words))
    });
    run("ip", "link set rail0 mtu 9000");
}

#[test]
fn link_that_goes_down_and_up_under_load_costs_no_message_and_the_rail_comes_back() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for rail in 0..2 {
        let lane = rail as u8 + 1;
        let before = pair.views(lane);
        link_down_with_stripes(&mut pair, &mut flows, rail);
        pair.flow(&mut flows, 24);
        assert!(!pair.is_up(lane), "a rail without a link is not in use");
        link_up(rail);
        pair.flow_until_back(&mut flows, lane, before[0].generation);
        let after = pair.views(lane);
        for (before, after) in before.iter().zip(&after) {
            assert!(after.stats.failures > before.stats.failures, "{after:?}");
            assert!(after.stats.joins > before.stats.joins, "{after:?}");
        }
        let moved = [0, 1].map(|side: usize| after[side].stats.moved - before[side].stats.moved);
        println!("rail {lane} is back as {}, {moved:?} stripes moved", after[0].generation);
        assert!(moved[0] > 0, "what was on its way is not said to have gone by other rails");
    }
    pair.flow(&mut flows, 16);
}

#[test]
fn both_links_down_leave_tcp_and_control_comes_home() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = [1, 2].map(|lane| pair.views(lane)[0].generation);
    link_down(0);
    link_down(1);
    pair.flow_until(&mut flows, "both rails to be given up", |pair, _| {
        [1, 2].iter().all(|lane| is_given_up(pair, *lane))
    });
    pair.flow(&mut flows, 24);
    assert!(pair.views(0).iter().all(|view| view.control), "control runs over TCP");
    link_up(0);
    link_up(1);
    for lane in [1, 2] {
        pair.flow_until_back(&mut flows, lane, before[usize::from(lane) - 1]);
    }
    pair.settle(&mut flows);
}

/// Taken away, with nothing in its place for a while; and taken away for another at once.
#[test]
fn address_that_changes_under_load_costs_no_message_and_the_rail_comes_back_by_another() {
    let Some(ends) = wires(2) else { return };
    // it has an IPv6 one, too, which would do after a while
    let family = [("CROSSTIE_IB_ADDR_FAMILY", "AF_INET")];
    let mut pair = pair_in(&ends, 2, [&family, &family]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for (old, new, stays_away) in [(1, 9, true), (9, 1, false)] {
        let before = pair.views(1);
        address_take(old);
        if stays_away {
            flow_until_given_up(&mut pair, &mut flows, 1);
            pair.flow(&mut flows, 24);
            assert!(!pair.is_up(1), "a rail without a GID is not in use");
        }
        address_add(new);
        pair.flow_until_back(&mut flows, 1, before[0].generation);
        let codes = pair.views(1).map(|view| view.code);
        println!("back with 10.77.0.{new}, after codes {codes:?}");
        // the look at the address says so, or a send that could not leave from it any more
        let is_why = |code: &i32| [libc::EADDRNOTAVAIL, libc::EIO].contains(code);
        assert!(codes.iter().any(is_why), "{codes:?}");
        assert!(pair.is_up(2) && pair.views(2).iter().all(|view| view.stats.failures == 0));
    }
    pair.flow(&mut flows, 16);
}

/// A wire of its own, between the devices `gone0` and `gone1`: 10.79.0.1 and 10.79.0.2.
fn spare_wire() {
    for words in [
        "link add spare0 mtu 9000 type veth peer name spare1 mtu 9000",
        "addr add 10.79.0.1/24 dev spare0",
        "addr add 10.79.0.2/24 dev spare1",
        "link set spare0 up",
        "link set spare1 up",
        "route add 10.79.0.2 dev spare0 src 10.79.0.1 table 110",
        "route add 10.79.0.1 dev spare1 src 10.79.0.2 table 111",
        "rule add pref 10 iif lo from 10.79.0.1 to 10.79.0.2 lookup 110",
        "rule add pref 10 iif lo from 10.79.0.2 to 10.79.0.1 lookup 111",
    ] {
        run("ip", words);
    }
    for end in 0..2 {
        run("rdma", &format!("link add gone{end} type rxe netdev spare{end}"));
    }
}

/// The kernel takes the port at once, and keeps what is left of the device for those who have it
/// open: it is gone when the last has closed it.
#[test]
fn device_that_is_removed_under_load_costs_no_message_and_is_let_go_at_the_end() {
    let Some(ends) = wires(1) else { return };
    spare_wire();
    let alone = alone();
    let [a, b] = [0, 1].map(|end| open(4, &format!("{},gone{end}", ends[end]), 1));
    let mut pair = Pair::of(alone, a, b, 3);
    let (gone, other) = (1, 2); // by their names
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = pair.views(gone).map(|view| view.stats.failures);
    let mut remove = Command::new("ip").args(["link", "del", "spare0"]).spawn().expect("ip");
    pair.flow_until(&mut flows, "the removed device to be given up", |pair, _| {
        pair.views(gone).iter().all(|view| view.state != LaneState::Up)
    });
    pair.flow(&mut flows, 48);
    for (view, before) in pair.views(gone).iter().zip(before) {
        assert!(view.state != LaneState::Up && view.stats.failures > before, "{view:?}");
    }
    assert!(pair.is_up(other) && pair.views(other).iter().all(|view| view.stats.failures == 0));
    println!("codes {:?}", pair.views(gone).map(|view| view.code));
    assert!(remove.try_wait().expect("its state").is_none(), "nobody had the device open");
    pair.close();
    assert!(remove.wait().expect("its end").success());
    let left = devices().expect("the other devices");
    assert!(!left.iter().any(|name| name.starts_with("gone")), "{left:?}");
}

#[test]
fn packets_that_are_lost_cost_no_message() {
    let Some(mut pair) = wired_pair(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let links = ["rail0", "far0", "rail1", "far1"];
    for link in links {
        run("tc", &format!("qdisc add dev {link} root netem loss 1%"));
    }
    pair.flow(&mut flows, 96);
    let lost: u64 = links.iter().map(|link| dropped(link)).sum();
    for link in links {
        run("tc", &format!("qdisc del dev {link} root"));
    }
    println!("{lost} packets were lost");
    assert!(lost > 0, "nothing was lost, so nothing is proven");
    for lane in 1..=2 {
        println!("rail {lane}: {:?}", pair.views(lane).map(|view| view.stats));
    }
    pair.flow_until(&mut flows, "both rails to be in use", |pair, _| {
        (0..=2).all(|lane| pair.is_up(lane))
    });
    pair.flow(&mut flows, 16);
}

/// The device, as patient as it is by default, would send again for half a minute; and a rail that
/// joins is heard by one side at once, which cannot be heard there itself.
#[test]
fn path_that_loses_everything_one_way_costs_no_message_and_no_rail_goes_there() {
    path_that_loses(|link| {
        run("tc", &format!("qdisc add dev {link} root netem loss 100%"));
        move || {
            assert!(dropped(link) > 0, "nothing was lost, so nothing is proven");
            run("tc", &format!("qdisc del dev {link} root"));
            false
        }
    });
}

/// As switches of 1500 bytes do between hosts of 9000. The rail joined by short messages, and all
/// stood still until it was given up, again and again.
#[test]
fn path_that_loses_long_packets_alone_costs_no_message_and_no_rail_goes_there() {
    path_that_loses(|link| {
        let far = if link == "rail0" { "far0" } else { "rail0" };
        let drops = long_drops(far, 1600);
        move || {
            drop(drops);
            true
        }
    });
}

/// What a link sends is lost, and then is not: by what `lose` returns, which says whether it was
/// long packets alone. One way, then the other.
fn path_that_loses<E: FnOnce() -> bool>(lose: impl Fn(&'static str) -> E) {
    let Some(ends) = wires(1) else { return };
    let patient = [("CROSSTIE_IB_TIMEOUT", "20"), ("CROSSTIE_PEER_TIMEOUT_MS", "2000")];
    let mut pair = pair_in(&ends, 1, [&patient, &patient]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    neighbours_stay(true);
    for link in ["rail0", "far0"] {
        let before = pair.views(1);
        let end = lose(link);
        flow_until_given_up(&mut pair, &mut flows, 1);
        pair.flow_until(&mut flows, "the rail to be tried twice", |pair, _| {
            pair.views(1).iter().all(|view| view.generation >= before[0].generation + 2)
        });
        pair.flow(&mut flows, 96);
        for (before, after) in before.iter().zip(pair.views(1)) {
            println!("{link}: {after:?}");
            assert_eq!(after.stats.joins, before.stats.joins, "{link}: nobody hears it");
        }
        let is_known = pair.views(1).iter().any(|view| view.short_alone);
        let generation = pair.views(1)[0].generation;
        assert_eq!(is_known, end(), "{link}: whether long ones alone were lost");
        pair.flow_until(&mut flows, "the rail to be used again", |pair, _| pair.is_up(1));
        println!("{link}: back, as {} of {generation}", pair.views(1)[0].generation);
        pair.settle(&mut flows);
    }
    neighbours_stay(false);
    pair.flow(&mut flows, 16);
    let codes = pair.views(1).map(|view| view.code);
    assert!(codes.contains(&libc::ETIMEDOUT), "{codes:?}");
}

#[test]
fn role() {
    roles::take(&[("flow", role_flow), ("sleep", role_sleep)]);
}

/// A peer whose messages flow until it is killed.
fn role_flow() {
    let mut line = roles::line();
    let devices = line.hear_text();
    let mut node = open(4, &devices, 1);
    let mut flow = Flow::with_parent(&mut node, &mut line);
    loop {
        flow.step(&mut node);
        assert!(!flow.failed(), "the parent lives");
    }
}

#[test]
fn peer_that_is_killed_ends_every_request_by_name() {
    let _alone = alone();
    let Some(ends) = ends(2) else { return };
    let mut node = open(4, &ends[0], 1);
    for round in 0..3 {
        let (listener, handle) = node.shared.listen().unwrap();
        let mut child = roles::start("flow", &[]);
        child.line.say_text(&ends[1]);
        child.line.say(&handle);
        let connection = node.accepted(listener);
        node.shared.listener_close(listener).unwrap();
        assert_eq!(child.line.hear_number(), 1);
        let mut flow = Flow::new(&node, connection, Place::Private);
        let watch = Watch::start();
        while flow.received < 16 << round {
            flow.step(&mut node);
            assert!(!flow.failed(), "{:?} {:?}", flow.refused, flow.errors);
            watch.look("messages");
        }
        child.kill();
        flow.end_with_peer(&mut node);
        flow.release(&node);
        node.disconnect(connection);
    }
    node.close();
}

/// Messages that are answered between two words over the line.
const BATCH: u64 = 16;
/// Batches that count.
const BATCHES: u64 = 16;
/// Longest message of a sleeper: written in place, beside such as are copied.
const SLEEPER_BYTES: usize = 20_000;

fn sleeper_length(round: u64) -> usize {
    if round % 4 == 3 { SLEEPER_BYTES } else { 8 }
}

/// Answers every message, and sleeps in between, until the parent says that it is enough.
fn role_sleep() {
    let mut line = roles::line();
    let devices = line.hear_text();
    let mut node = open(2, &devices, 1);
    let handle = line.hear::<128>();
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    let memory = Memory::new(&node, Place::Private, SLEEPER_BYTES);
    let mut slept = 0;
    while line.hear_number() != 0 {
        for round in 0..BATCH {
            let room = memory.incoming(0, SLEEPER_BYTES, 0);
            let receive = node.irecv(connection, &[room]).unwrap();
            let (result, sleeps) = node.sleep_until_done(receive);
            assert_eq!(result, Ok(()));
            memory.verify(0, sleeper_length(round), round);
            slept += sleeps;
            // over several rails it ends when it was taken in, which the next message may say
            let send = node.isend(connection, memory.outgoing(0, 8, 0)).unwrap();
            let (result, sleeps) = node.sleep_until_done(send);
            assert_eq!(result, Ok(()));
            slept += sleeps;
        }
        let view = node.lane_view(connection, 1).expect("a rail");
        line.say_number(slept);
        line.say_number(view.control.into());
    }
}

/// Who sleeps between messages misses none. Whether the port's queue wakes it, or the alarm of a
/// nap, a few milliseconds later, is not told apart here.
#[test]
fn sleeper_misses_no_message_over_a_port() {
    let _alone = alone();
    let Some(ends) = ends(1) else { return };
    let mut node = open(2, &ends[0], 1);
    let (listener, handle) = node.shared.listen().unwrap();
    let mut child = roles::start("sleep", &[]);
    child.line.say_text(&ends[1]);
    child.line.say(&handle);
    let connection = node.accepted(listener);
    let from = Memory::new(&node, Place::Private, SLEEPER_BYTES);
    let into = Memory::new(&node, Place::Private, 8);
    let (mut counted, mut before, mut slept) = (0, 0, 0);
    let mut random = Random(0x5eed_0015);
    while counted < BATCHES {
        child.line.say_number(1);
        for round in 0..BATCH {
            // until the other side sleeps, or not; control moves to the port while nobody is away
            for _ in 0..if before == 0 { 0 } else { random.below(50_000) } {
                std::hint::spin_loop();
            }
            from.fill(0, sleeper_length(round), round);
            let receive = node.irecv(connection, &[into.incoming(0, 8, 0)]).unwrap();
            let message = from.outgoing(0, sleeper_length(round), 0);
            let send = node.isend(connection, message).unwrap();
            for request in [send, receive] {
                assert_eq!(node.wait(request).result, Ok(()), "batch {counted}, round {round}");
            }
        }
        slept = child.line.hear_number();
        let control = child.line.hear_number() == 1;
        println!("batch {counted}: {slept} sleeps, control over the port: {control}");
        // what goes over the port alone counts
        match control {
            true if before == 0 => before = slept.max(1),
            true => counted += 1,
            false => {}
        }
    }
    child.line.say_number(0);
    assert!(child.finished().success());
    let (sleeps, rounds) = (slept.saturating_sub(before), BATCHES * BATCH);
    println!("{sleeps} sleeps in {rounds} rounds");
    assert!(sleeps > rounds / 4, "only {sleeps} sleeps: nothing was tried");
    node.disconnect(connection);
    node.close();
}
