//! Which interfaces a choice means, and in which order a peer's addresses are tried.

use super::*;
use std::string::ToString;

/// How an interface stands.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Link {
    Running,
    /// Switched on, and no cable.
    Bare,
    Down,
}
use Link::{Bare, Down, Running};

#[allow(clippy::type_complexity)] // a table
fn host(interfaces: &[(&str, Link, u32, &[(&str, u8)])]) -> Survey {
    let mut found = Survey::default();
    for (name, link, speed_mbit_s, addresses) in interfaces {
        let name = InterfaceName::new(name.as_bytes());
        let (up, running) = (*link != Down, *link == Running);
        found.all.push(Interface { name, up, running });
        for (ip, prefix_bits) in *addresses {
            let ip: IpAddr = ip.parse().unwrap();
            found.addresses.push(InterfaceAddress {
                up,
                running,
                speed_mbit_s: *speed_mbit_s,
                ..InterfaceAddress::new(name, ip, *prefix_bits)
            });
        }
    }
    found
}

fn usual() -> Survey {
    host(&[
        ("lo", Running, 0, &[("127.0.0.1", 8), ("::1", 128)]),
        ("eth0", Running, 10_000, &[("fd00::5", 64), ("10.1.0.5", 16), ("fe80::5", 64)]),
        ("eth01", Running, 0, &[("10.3.0.5", 16)]),
        ("ens5", Running, 100_000, &[("192.168.7.5", 24)]),
        ("docker0", Running, 0, &[("172.17.0.1", 16)]),
        ("eth2", Down, 0, &[("10.2.0.5", 16)]),
    ])
}

fn chosen(choice: &str, found: &Survey) -> Result<Vec<std::string::String>, InterfaceError> {
    choose(choice, found).map(|all| all.iter().map(|address| address.ip.to_string()).collect())
}

#[test]
fn interface_with_a_link_local_address_alone_is_said_to_be_so() {
    let found = host(&[
        ("lo", Running, 0, &[("127.0.0.1", 8)]),
        ("eth0", Running, 10_000, &[("fe80::5", 64)]),
        ("eth1", Running, 10_000, &[]),
    ]);
    let text = chosen("eth0", &found).unwrap_err().to_string();
    let there = "lo, eth0 (a link-local IPv6 address alone, which is not used), eth1";
    assert!(text.ends_with(there), "{text}");
}

#[test]
fn names_that_no_interface_has_are_told() {
    let unmatched = |choice| unmatched_in(Choice::parse(choice).unwrap(), &usual());
    assert_eq!(unmatched("eth,ens5"), None);
    let (missing, there) = unmatched("eth0,ib,ens5p").unwrap();
    assert_eq!(missing, "ib, ens5p");
    assert!(there.contains("eth2 (down)"), "{there}");
    assert_eq!(unmatched("=eth").unwrap().0, "eth");
}

#[test]
fn a_choice_means_what_users_of_nccl_expect() {
    let cases: &[(&str, &[&str])] = &[
        ("", &["192.168.7.5", "10.1.0.5", "fd00::5", "10.3.0.5"]),
        ("eth", &["10.1.0.5", "fd00::5", "10.3.0.5"]),
        ("ens,docker", &["192.168.7.5", "172.17.0.1"]),
        ("=eth0", &["10.1.0.5", "fd00::5"]),
        ("=eth0, ens5", &["192.168.7.5", "10.1.0.5", "fd00::5"]),
        ("^docker,ens", &["10.1.0.5", "fd00::5", "10.3.0.5"]),
        ("^=eth0,docker0", &["192.168.7.5", "10.3.0.5"]),
        ("^eth,ens,docker", &["127.0.0.1", "::1"]),
        ("lo", &["127.0.0.1", "::1"]),
        (" docker0 ", &["172.17.0.1"]),
    ];
    for (choice, expected) in cases {
        assert_eq!(chosen(choice, &usual()).unwrap(), *expected, "{choice}");
    }
}

#[test]
fn without_another_interface_the_loopback_serves() {
    let bare = host(&[
        ("lo", Running, 0, &[("127.0.0.1", 8)]),
        ("docker0", Running, 0, &[("172.17.0.1", 16)]),
    ]);
    assert_eq!(chosen("", &bare).unwrap(), ["127.0.0.1"]);
}

/// It was told to peers, and was a device of the plugin, first of all where its speed was unknown.
#[test]
fn an_interface_without_a_carrier_is_used_when_it_is_named() {
    let found = host(&[
        ("lo", Running, 0, &[("127.0.0.1", 8)]),
        ("eth0", Running, 1000, &[("10.1.0.5", 16)]),
        ("eth1", Bare, 10_000, &[("10.2.0.5", 16)]),
    ]);
    assert_eq!(chosen("", &found).unwrap(), ["10.1.0.5"]);
    assert_eq!(chosen("^docker", &found).unwrap(), ["10.1.0.5"]);
    assert_eq!(chosen("eth", &found).unwrap(), ["10.2.0.5", "10.1.0.5"]);
    assert_eq!(chosen("=eth1", &found).unwrap(), ["10.2.0.5"]);
    let text = chosen("ib", &found).unwrap_err().to_string();
    assert!(text.ends_with("there are lo, eth0, eth1 (no carrier)"), "{text}");
}

/// A cable that was out for a moment when the choice was made left a host its loopback alone.
#[test]
fn an_interface_without_a_carrier_is_better_than_none() {
    let found = host(&[
        ("lo", Running, 0, &[("127.0.0.1", 8)]),
        ("docker0", Bare, 0, &[("172.17.0.1", 16)]),
        ("eth0", Bare, 1000, &[("10.1.0.5", 16)]),
    ]);
    assert_eq!(chosen("", &found).unwrap(), ["10.1.0.5"]);
    assert_eq!(chosen("^eth", &found).unwrap(), ["172.17.0.1"]);
    assert_eq!(chosen("^eth,docker", &found).unwrap(), ["127.0.0.1"]);
}

/// A bridge to virtual machines leads to these alone.
#[test]
fn bridges_of_virtual_machines_are_the_last_resort() {
    let lo: (&str, _, _, &[_]) = ("lo", Running, 0, &[("127.0.0.1", 8)]);
    let eth: (&str, _, _, &[_]) = ("eth0", Running, 0, &[("10.1.0.5", 16)]);
    let bridge: (&str, _, _, &[_]) = ("virbr0", Running, 10_000, &[("192.168.122.1", 24)]);
    assert_eq!(chosen("", &host(&[lo, bridge, eth])).unwrap(), ["10.1.0.5"]);
    assert_eq!(chosen("", &host(&[lo, bridge])).unwrap(), ["127.0.0.1"]);
    assert_eq!(chosen("", &host(&[bridge])).unwrap(), ["192.168.122.1"]);
    assert_eq!(chosen("virbr", &host(&[lo, bridge])).unwrap(), ["192.168.122.1"]);
    assert_eq!(chosen("^docker", &host(&[lo, bridge, eth])).unwrap()[0], "192.168.122.1");
}

#[test]
fn what_matches_nothing_is_named_with_what_there_is() {
    let text = chosen("ib,mlx", &usual()).unwrap_err().to_string();
    assert!(text.contains("CROSSTIE_SOCKET_IFNAME=ib,mlx"), "{text}");
    assert!(text.ends_with("there are lo, eth0, eth01, ens5, docker0, eth2 (down)"), "{text}");
    let down = chosen("=eth2", &usual());
    assert!(matches!(down, Err(InterfaceError::NoMatch(..))), "{down:?}");
    let all = chosen("^eth,ens,docker,lo", &usual());
    assert!(matches!(all, Err(InterfaceError::AllExcluded(..))), "{all:?}");
    for choice in ["^", "=", "^=", "eth,", ",", "eth,,ens"] {
        let empty = chosen(choice, &usual());
        assert!(matches!(empty, Err(InterfaceError::Choice(_))), "{choice} {empty:?}");
    }
    let nothing = chosen("", &host(&[]));
    let text = nothing.unwrap_err().to_string();
    assert_eq!(text, "no interface that is up has an address; there are none");
}

#[test]
fn this_host_has_a_loopback_with_its_real_prefix() {
    let all = local_addresses("lo").unwrap();
    let first = all.iter().find(|address| address.ip.is_ipv4()).unwrap();
    assert_eq!((first.ip.to_string().as_str(), first.prefix_bits), ("127.0.0.1", 8));
    assert!(first.up && first.loopback && !first.link_local);
    let default = local_addresses("").unwrap();
    let lonely = default.iter().all(|address| address.loopback);
    assert!(lonely || default.iter().all(|address| !address.loopback));
}

fn theirs(ip: &str, prefix_bits: u8, speed_mbit_s: u32) -> AddressHello {
    let ip = ip.parse().unwrap();
    let name = InterfaceName::new(b"x");
    InterfaceAddress { speed_mbit_s, ..InterfaceAddress::new(name, ip, prefix_bits) }.hello(7)
}

#[test]
fn a_peers_addresses_are_tried_by_common_subnet_and_speed() {
    let ours = choose("", &usual()).unwrap();
    let expected = [
        theirs("192.168.7.9", 24, 100_000),
        theirs("10.1.9.9", 16, 10_000),
        theirs("fd00::9", 64, 10_000),
        theirs("10.1.9.8", 16, 1000),
        theirs("192.168.8.9", 24, 100_000),
        theirs("fd77::9", 64, 0),
        theirs("8.8.8.8", 24, 100_000),
        theirs("2001:db8::9", 64, 0),
        theirs("127.0.0.1", 8, 0),
    ];
    let mut list = expected;
    list.reverse();
    subnet_rank(&ours, &mut list);
    assert_eq!(list.map(|a| ip_of(&a).unwrap()), expected.map(|a| ip_of(&a).unwrap()));
    // from any order, and again
    for turn in 0..list.len() {
        list.rotate_left(turn);
        subnet_rank(&ours, &mut list);
        assert_eq!(list, expected);
    }
}

#[test]
fn a_narrower_subnet_of_theirs_is_not_ours() {
    let ours = choose("=eth0", &usual()).unwrap();
    assert!(rank(&ours, &theirs("10.1.0.9", 24, 0)) < rank(&ours, &theirs("10.1.200.9", 24, 0)));
    // a handle says no prefix: ours decides
    assert_eq!(rank(&ours, &theirs("10.1.200.9", 0, 0)).distance, IN_SUBNET);
    assert_eq!(rank(&ours, &AddressHello { family: 9, ..AddressHello::ZERO }).distance, HOPELESS);
    assert_eq!(rank(&[], &theirs("10.1.0.9", 24, 0)).distance, HOPELESS);
}

#[test]
fn an_address_comes_back_as_it_was_told() {
    for address in usual().addresses {
        assert_eq!(ip_of(&address.hello(1)), Some(address.ip));
    }
}

#[test]
fn interfaces_of_one_device_are_chosen_by_their_whole_names() {
    let one = |name: &str| Interfaces::one(InterfaceName::new(name.as_bytes()));
    let two = one("eth0").with(&one("eth10")).unwrap();
    let choice = two.exact_choice().unwrap();
    assert_eq!(choice, "=eth0,eth10");
    let parsed = Choice::parse(&choice).unwrap();
    let lists = |name: &str| {
        let name = InterfaceName::new(name.as_bytes());
        parsed.lists(&name, &name)
    };
    assert!(lists("eth0") && lists("eth10") && !lists("eth1"));
    assert_eq!(Interfaces::NONE.exact_choice(), None);
    let eight = (1..8).fold(one("a"), |all, _| all.with(&one("a")).unwrap());
    assert_eq!((eight.iter().count(), eight.with(&one("b"))), (8, None));
}

/// An address of an interface, with what is not usual about it.
fn special(name: &str, ip: &str, make: impl Fn(&mut InterfaceAddress)) -> InterfaceAddress {
    let name = InterfaceName::new(name.as_bytes());
    let mut address = InterfaceAddress::new(name, ip.parse().unwrap(), 24);
    make(&mut address);
    address
}

fn order(addresses: Vec<InterfaceAddress>) -> Vec<std::string::String> {
    let mut found = Survey::default();
    for address in &addresses {
        let (name, up, running) = (address.name, address.up, address.running);
        found.all.push(Interface { name, up, running });
    }
    found.addresses = addresses;
    chosen("", &found).unwrap()
}

#[test]
fn each_device_comes_first_with_one_address_then_further_subnets_then_aliases() {
    let on = |device: &'static str| {
        move |it: &mut InterfaceAddress| it.device = InterfaceName::new(device.as_bytes())
    };
    let found = order(std::vec![
        special("eth0", "10.0.0.1", on("eth0")),
        special("eth0", "10.0.0.3", on("eth0")),
        special("eth0", "10.0.1.1", on("eth0")),
        special("eth0.7", "10.7.0.1", on("eth0")),
        special("eth1", "10.0.2.1", on("eth1")),
        special("eth1", "fd00::1", on("eth1")),
    ]);
    assert_eq!(found, ["10.0.0.1", "10.0.2.1", "fd00::1", "10.0.1.1", "10.7.0.1", "10.0.0.3"]);
}

#[test]
fn devices_are_numbered_alike_for_addresses_that_share_one() {
    let on = |device: &'static str| {
        move |it: &mut InterfaceAddress| it.device = InterfaceName::new(device.as_bytes())
    };
    let list = address_list(&[
        special("eth0", "10.0.0.1", on("eth0")),
        special("eth1", "10.0.2.1", on("eth1")),
        special("eth0.7", "10.7.0.1", on("eth0")),
    ]);
    let [a, b, c] = [0, 1, 2].map(|at| list.devices[at]);
    assert!(a == c && a != b && a != 0 && b != 0, "{a} {b} {c}");
}

#[test]
fn addresses_that_peers_can_hardly_use_come_last_however_fast_and_in_no_way_before_unknown_speed() {
    let fast = |it: &mut InterfaceAddress| it.speed_mbit_s = 10_000;
    let found = order(std::vec![
        special("br0", "172.18.0.1", |it| {
            fast(it);
            it.inner = true;
        }),
        special("eth0", "fd00::1", |it| {
            fast(it);
            it.passing = true;
        }),
        special("eth0", "169.254.0.1", fast),
        special("eth0", "fd00::2", fast),
        special("eth1", "10.0.0.1", |_| {}),
    ]);
    assert_eq!(found, ["fd00::2", "10.0.0.1", "172.18.0.1", "169.254.0.1", "fd00::1"]);
}

#[test]
fn what_has_no_room_in_a_handle_is_the_end_of_the_order() {
    let of = |count: u8| -> Vec<InterfaceAddress> {
        (0..count).map(|at| special("eth0", &std::format!("10.0.{at}.1"), |_| {})).collect()
    };
    assert!(without_room(&of(9)).is_empty());
    let out = without_room(&of(11));
    let out: Vec<_> = out.iter().map(|it| it.ip.to_string()).collect();
    assert_eq!(out, ["10.0.9.1", "10.0.10.1"]);
    let six: Vec<_> =
        (0..4).map(|at| special("eth0", &std::format!("fd00:{at}::1"), |_| {})).collect();
    assert_eq!(without_room(&six).len(), 1);
}

#[test]
fn labelled_address_is_its_interfaces_and_a_name_with_a_colon_means_it_alone() {
    let labelled = |label: &'static str| {
        move |it: &mut InterfaceAddress| it.label = InterfaceName::new(label.as_bytes())
    };
    let found = Survey {
        all: std::vec![],
        addresses: std::vec![
            special("eth0", "10.0.0.1", |_| {}),
            special("eth0", "10.0.1.1", labelled("eth0:hsn")),
            special("eth1", "10.0.2.1", |_| {}),
        ],
    };
    for (choice, wanted) in [
        ("=eth0", &["10.0.0.1", "10.0.1.1"][..]),
        ("eth0", &["10.0.0.1", "10.0.1.1"]),
        ("^=eth0", &["10.0.2.1"]),
        ("=eth0:hsn", &["10.0.1.1"]),
        ("^=eth0:hsn", &["10.0.0.1", "10.0.2.1"]),
    ] {
        assert_eq!(chosen(choice, &found).unwrap(), wanted, "{choice}");
    }
    assert_eq!(unmatched_in(Choice::parse("=eth0:hsn").unwrap(), &found), None);
    assert!(unmatched_in(Choice::parse("=eth0:no").unwrap(), &found).is_some());
}
