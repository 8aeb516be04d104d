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
            let link_local = match ip {
                IpAddr::V4(ip) => ip.is_link_local(),
                IpAddr::V6(ip) => ip.is_unicast_link_local(),
            };
            found.addresses.push(InterfaceAddress {
                name,
                ip,
                prefix_bits: *prefix_bits,
                up,
                running,
                loopback: ip.is_loopback(),
                link_local,
                speed_mbit_s: *speed_mbit_s,
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
    let unmatched = |choice| unmatched_in(Choice::parse(choice).unwrap(), &usual().all);
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
    InterfaceAddress {
        name,
        ip,
        prefix_bits,
        up: true,
        running: true,
        loopback: false,
        link_local: false,
        speed_mbit_s,
    }
    .hello(7)
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
    assert!(parsed.lists("eth0") && parsed.lists("eth10") && !parsed.lists("eth1"));
    assert_eq!(Interfaces::NONE.exact_choice(), None);
    let eight = (1..8).fold(one("a"), |all, _| all.with(&one("a")).unwrap());
    assert_eq!((eight.iter().count(), eight.with(&one("b"))), (8, None));
}
