//! Which GID of a port is used, by family and range, and which ports are a rail by their subnets:
//! with endpoints over addresses of IPv6, every byte compared. On the wires of the guest of
//! `tests/vm`, which has a /64 on each.

mod guest_support;
mod host_support;

use guest_support::{
    address_add, address_take, flow_until_given_up, ip_all, is_given_up, link_down, link_up,
    open_in, run, wires,
};
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::{Place, Watch, stalled};
use std::net::Ipv6Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

const V6: (&str, &str) = ("CROSSTIE_IB_ADDR_FAMILY", "AF_INET6");

/// Two endpoints with these devices and settings, which must have so many rails beside TCP.
fn pair_with(devices: [&str; 2], settings: [&[(&str, &str)]; 2], rails: u8) -> Pair {
    pair_of(alone(), devices, settings, rails)
}

/// The same for whoever has looked at addresses, which other tests change.
fn pair_of(
    alone: MutexGuard<'static, ()>,
    devices: [&str; 2],
    settings: [&[(&str, &str)]; 2],
    rails: u8,
) -> Pair {
    stalled::listen(&[]);
    let [a, b] = [0, 1].map(|end: usize| open_in(4, devices[end], settings[end]));
    Pair::of(alone, a, b, rails + 1)
}

/// The same on both ends of the first wire, or of both.
fn pair_v6(rails: u8) -> Option<Pair> {
    let ends = wires(rails.into())?;
    Some(pair_with([&ends[0], &ends[1]], [&[V6]; 2], rails))
}

/// Whether a rail was said to be in use between these.
fn is_said(ours: &str, theirs: &str) -> bool {
    let way = format!("over verbs, {ours} to {theirs}, is in use");
    stalled::said().iter().any(|text| text.ends_with(&way))
}

/// Bytes that came in by a link.
fn came_by(link: &str) -> u64 {
    let path = format!("/sys/class/net/{link}/statistics/rx_bytes");
    let text = std::fs::read_to_string(path).expect("an interface");
    text.trim().parse().expect("a number")
}

/// Messages go on over TCP alone.
fn no_rail_carries(pair: &mut Pair) {
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 16);
    assert!(pair.view(0, 1).is_none() && pair.view(1, 1).is_none());
    assert_eq!(pair.views(0).map(|view| view.stats.failures), [0, 0]);
}

#[test]
fn family_that_is_asked_for_is_that_of_the_gids_and_carries_the_payload() {
    let Some(mut pair) = pair_v6(1) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = ["rail0", "far0"].map(came_by);
    pair.carries(&mut flows, "IPv6");
    let after = ["rail0", "far0"].map(came_by);
    println!("links: {before:?}, then {after:?}");
    assert!(after[0] > before[0] + (1 << 20) && after[1] > before[1] + (1 << 20));
    assert!(is_said("fd77::1", "fd77::2") && is_said("fd77::2", "fd77::1"));
}

#[test]
fn two_prefixes_are_two_rails_and_a_port_of_another_is_none() {
    let Some(mut pair) = pair_v6(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.flow_until(&mut flows, "bytes on both rails", |pair, _| {
        [1, 2].iter().all(|lane| pair.bytes(*lane).iter().all(|bytes| *bytes > 200_000))
    });
    assert!(is_said("fd77:0:0:1::1", "fd77:0:0:1::2"));
    pair.close();
    // one of one side meets that of its own prefix among two of the other
    let one = pair_with(["=rxe1", "=rxe2,rxe3"], [&[V6]; 2], 1);
    one.close();
    no_rail_carries(&mut pair_with(["=rxe0", "=rxe3"], [&[V6]; 2], 0));
}

/// Where in its table a device has the GID of an address by now.
fn gid_place(device: &str, address: &str) -> Option<u8> {
    let wanted = address.parse::<Ipv6Addr>().ok();
    let folder = format!("/sys/class/infiniband/{device}/ports/1/gids");
    let is_it = |index: &u8| {
        let text = std::fs::read_to_string(format!("{folder}/{index}")).unwrap_or_default();
        text.trim().parse::<Ipv6Addr>().ok() == wanted
    };
    (0..16).find(is_it)
}

fn has_gid(device: &str, address: &str) -> bool {
    gid_place(device, address).is_some()
}

/// Addresses of the first wire come and go, and others look at which are there: each in turn.
static ADDRESSES: Mutex<()> = Mutex::new(());

/// Addresses of another network on the first wire, and the guest's own ways between them.
fn other_network(ours: &str, theirs: &str, add: bool) {
    let what = if add { "add" } else { "del" };
    let plain = |address: &str| address.split('/').next().unwrap_or_default().to_string();
    let (a, b) = (plain(ours), plain(theirs));
    ip_all(&[format!("addr {what} {ours} dev rail0"), format!("addr {what} {theirs} dev far0")]);
    if add {
        ip_all(&[
            format!("route replace {b} dev rail0 src {a} table 100"),
            format!("route replace {a} dev far0 src {b} table 101"),
        ]);
    }
    let watch = Watch::start();
    while add && !(has_gid("rxe0", &a) && has_gid("rxe2", &b)) {
        watch.look("the GIDs of new addresses");
    }
    run("ip", &format!("-6 rule {what} pref 10 iif lo from {a} to {b} lookup 100"));
    run("ip", &format!("-6 rule {what} pref 10 iif lo from {b} to {a} lookup 101"));
}

/// A range of addresses, in the other network.
const RANGE: (&str, &str) = ("CROSSTIE_IB_ADDR_RANGE", "fd78::/48");

/// The prefixes of the interfaces count, as long as they are, and not 64 bits.
#[test]
fn range_chooses_the_gid_and_the_prefix_of_its_interface_the_peer() {
    let Some(ends) = wires(1) else { return };
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let _turn = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    for (ours, theirs, rails) in [
        ("fd78::1/48", "fd78:0:0:1::2/48", 1),
        ("fd78::1/64", "fd78:0:0:1::2/48", 0), // the longer one counts
        ("fd78::1/64", "fd78::2/64", 1),
    ] {
        other_network(ours, theirs, true);
        let mut pair = pair_with(ends, [&[V6, RANGE]; 2], rails);
        if rails == 1 {
            let mut flows = pair.flows(Place::Private);
            pair.settle(&mut flows);
            pair.carries(&mut flows, ours);
            assert!(is_said("fd78::1", theirs.split('/').next().unwrap_or_default()));
        } else {
            no_rail_carries(&mut pair);
        }
        pair.close();
        other_network(ours, theirs, false);
    }
}

#[test]
fn range_that_no_gid_is_in_leaves_no_port_and_that_is_said() {
    let Some(ends) = wires(1) else { return };
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let none = ("CROSSTIE_IB_ADDR_RANGE", "fd99::/64");
    let mut pair = pair_with(ends, [&[V6], &[V6, none]], 0);
    let words = "no GID is RoCE v2, IPv6, in fd99::/64";
    assert!(stalled::said().iter().any(|text| text.contains(words)), "{:?}", stalled::said());
    no_rail_carries(&mut pair);
}

/// The address goes with the link, and comes back after it.
#[test]
fn link_of_ipv6_that_goes_down_and_up_under_load_costs_no_message() {
    let Some(mut pair) = pair_v6(2) else { return };
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for rail in 0..2 {
        let lane = rail as u8 + 1;
        let before = pair.views(lane)[0].generation;
        link_down(rail);
        flow_until_given_up(&mut pair, &mut flows, lane);
        pair.flow(&mut flows, 24);
        assert!(is_given_up(&pair, lane), "a rail without a link is not in use");
        link_up(rail);
        pair.flow_until_back(&mut flows, lane, before);
    }
    pair.settle(&mut flows);
}

/// Messages flow until a line behind the first `said` tells that the two ends are of two families,
/// with these words; the rail is not in use then, nor later.
fn other_family_is_tried(pair: &mut Pair, flows: &mut [Flow; 2], said: usize, named: &[&str]) {
    pair.flow_until(flows, "the other family to be tried", |_, _| {
        let is_tried = |text: &String| {
            text.contains("RoCE v2 packets are of one family")
                && named.iter().all(|words| text.contains(words))
        };
        stalled::said()[said..].iter().any(is_tried)
    });
    pair.flow(flows, 24);
    assert!(is_given_up(pair, 1), "families do not mix");
}

/// The port has an address of the other family alone, which the peer is not reached from: messages
/// go over the others, however long that lasts, and the rail comes back with its own.
#[test]
fn port_that_has_the_other_family_alone_comes_back_with_its_own() {
    let Some(ends) = wires(2) else { return };
    let mut pair = pair_with([&ends[0], &ends[1]], [&[]; 2], 2);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = pair.views(1)[0].generation;
    let said = stalled::said().len();
    address_take(1);
    flow_until_given_up(&mut pair, &mut flows, 1);
    other_family_is_tried(&mut pair, &mut flows, said, &[]);
    address_add(1);
    pair.flow_until_back(&mut flows, 1, before);
    assert!(pair.is_up(2) && pair.views(2).iter().all(|view| view.stats.failures == 0));
}

/// The same, where the place in the table is asked for, and the other family comes to stand there.
#[test]
fn port_whose_place_of_the_gid_has_the_other_family_comes_back_with_its_own() {
    const OURS: &str = "::ffff:10.77.0.1";
    const OTHER: &str = "fd77::9";
    let Some(ends) = wires(1) else { return };
    let watch = Watch::start();
    let gid_soon = |address: &str| loop {
        match gid_place("rxe0", address) {
            Some(place) => break place,
            None => watch.look("the GID of an address"),
        }
    };
    let _turn = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = alone(); // other tests take the wire's own address away
    let place = gid_soon(OURS);
    let index = place.to_string();
    let at_place = [("CROSSTIE_IB_GID_INDEX", index.as_str())];
    let mut pair = pair_of(alone, [&ends[0], &ends[1]], [&at_place, &[]], 1);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = pair.views(1)[0].generation;
    let said = stalled::said().len();
    address_take(1);
    flow_until_given_up(&mut pair, &mut flows, 1);
    // the place is free when no queue pair stands on what was there
    loop {
        run("ip", "addr add fd77::9/64 dev rail0 nodad");
        match gid_soon(OTHER) {
            it if it == place => break,
            _ => run("ip", "addr del fd77::9/64 dev rail0"),
        }
        pair.flow(&mut flows, 24);
        watch.look("the place to be free");
    }
    other_family_is_tried(&mut pair, &mut flows, said, &[OTHER, "10.77.0.2"]);
    run("ip", "addr del fd77::9/64 dev rail0");
    while has_gid("rxe0", OTHER) {
        watch.look("the end of a GID");
    }
    address_add(1);
    pair.flow_until_back(&mut flows, 1, before);
    assert_eq!(gid_place("rxe0", OURS), Some(place));
}
