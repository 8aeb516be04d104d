use super::*;
use crate::provider::verbs::gid::LinkLayer;
use crate::provider::verbs::ports::PortState;
use crate::random::Random;
use std::string::ToString;
use std::vec;

fn end_of(text: &str, kind: GidKind, speed_mbit_s: u32) -> RailEnd {
    let (ip, bits) = text.split_once('/').unwrap();
    let gid = Gid::from(ip.parse::<IpAddr>().unwrap());
    RailEnd { gid, kind, prefix_bits: bits.parse().unwrap(), speed_mbit_s }
}

fn roce(text: &str) -> RailEnd {
    end_of(text, GidKind::RoceV2, 100_000)
}

fn all(ours: &[RailEnd], theirs: &[RailEnd]) -> Vec<(usize, usize)> {
    pairs(ours, theirs, Hosts::Apart, 8).iter().map(|pair| (pair.ours, pair.theirs)).collect()
}

#[test]
fn ports_of_a_subnet_are_a_rail_and_others_are_not() {
    let ours = [roce("10.77.0.1/24"), roce("10.77.1.1/24")];
    let theirs = [roce("10.77.1.2/24"), roce("10.77.2.2/24")];
    assert_eq!(all(&ours, &theirs), [(1, 0)]);
    let why = |ours: &[RailEnd], theirs: &[RailEnd]| {
        apart(ours, theirs, Hosts::Apart).map(|why| why.to_string())
    };
    assert_eq!(why(&ours, &theirs), None);
    let twice = [ours[0], ours[0]]; // with two queue pairs
    assert_eq!(
        why(&twice, &theirs).unwrap(),
        "no subnet in common: this side's ports are 10.77.0.1/24 (RoCE v2); the peer's are \
         10.77.1.2/24 (RoCE v2), 10.77.2.2/24 (RoCE v2)"
    );
    assert!(why(&[], &theirs).unwrap().contains("this side's ports are none"));
}

#[test]
fn several_matches_are_several_rails() {
    let ours = [roce("10.77.0.1/24"), roce("10.77.1.1/24"), roce("fd00:2::1/64")];
    let theirs = [roce("10.77.1.2/24"), roce("10.77.0.2/24"), roce("fd00:2::2/64")];
    let mut found = all(&ours, &theirs);
    found.sort_unstable();
    assert_eq!(found, [(0, 1), (1, 0), (2, 2)]);
    assert_eq!(pairs(&ours, &theirs, Hosts::Apart, 2).len(), 2);
}

#[test]
fn ports_of_one_subnet_are_paired_in_their_order() {
    let side = |host: u8| [1, 2, 3].map(|port| roce(&std::format!("10.0.{port}.{host}/16")));
    assert_eq!(all(&side(1), &side(2)), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(all(&side(1)[..2], &side(2)), [(0, 0), (1, 1)]);
}

#[test]
fn prefix_lengths_are_the_real_ones() {
    assert_eq!(all(&[roce("10.0.0.1/24")], &[roce("10.0.1.1/24")]), []);
    assert_eq!(all(&[roce("10.0.0.1/23")], &[roce("10.0.1.1/23")]), [(0, 0)]);
    assert_eq!(all(&[roce("10.0.0.1/23")], &[roce("10.0.1.1/24")]), [], "the longer one counts");
    assert_eq!(all(&[roce("10.0.0.0/31")], &[roce("10.0.0.1/31")]), [(0, 0)]);
    assert_eq!(all(&[roce("fd00::1/64")], &[roce("fd00::1:0:0:0:1/64")]), []);
    assert_eq!(all(&[roce("fd00::1/48")], &[roce("fd00::1:0:0:0:1/48")]), [(0, 0)]);
}

#[test]
fn narrower_subnets_and_faster_ports_come_first() {
    let ours = [roce("10.0.0.1/16"), roce("10.9.0.1/24")];
    let theirs = [roce("10.0.0.2/16"), roce("10.9.0.2/24")];
    assert_eq!(all(&ours, &theirs), [(1, 1), (0, 0)]);
    let slow = end_of("10.0.0.1/16", GidKind::RoceV2, 10_000);
    assert_eq!(all(&[slow, roce("10.0.0.3/16")], &[roce("10.0.0.2/16")]), [(1, 0)]);
}

#[test]
fn kinds_do_not_mix() {
    let v1 = end_of("10.0.0.2/24", GidKind::RoceV1, 100_000);
    assert_eq!(all(&[roce("10.0.0.1/24")], &[v1]), []);
    let ib = end_of("fe80::1/64", GidKind::InfiniBand, 100_000);
    assert_eq!(all(&[ib], &[roce("fe80::2/64")]), []);
}

#[test]
fn infiniband_matches_by_its_subnet_prefix() {
    let ib = |text| end_of(text, GidKind::InfiniBand, 400_000);
    assert_eq!(all(&[ib("fe80::1/64")], &[ib("fe80::2/64")]), [(0, 0)]);
    assert_eq!(all(&[ib("fe80::1/64")], &[ib("fec0:0:0:7::2/64")]), []);
    // a GID of prefix zero looks like an IPv4 address
    assert_eq!(all(&[ib("::ffff:1.2.3.4/64")], &[ib("::ffff:9.9.9.9/64")]), [(0, 0)]);
}

#[test]
fn address_that_two_hosts_have_leads_nowhere_and_a_port_of_one_host_to_itself() {
    let ours = [roce("172.17.0.1/16"), roce("10.0.0.1/24")];
    let theirs = [roce("172.17.0.1/16"), roce("10.0.0.2/24")];
    assert_eq!(all(&ours, &theirs), [(1, 1)]);
    let own = pairs(&ours, &ours, Hosts::Same, 8);
    assert_eq!(own.iter().map(|it| (it.ours, it.theirs)).collect::<Vec<_>>(), [(1, 1), (0, 0)]);
}

#[test]
fn both_sides_find_the_same_rails() {
    let (mut random, mut rails) = (Random::new(6), 0);
    for _ in 0..2000 {
        let mut side = |host: u8| -> Vec<RailEnd> {
            let count = random.below(5) as usize;
            let end = |_| {
                let subnet = random.below(3);
                let port = random.below(200);
                let bits = [16, 23, 24][random.below(3) as usize];
                let speed = [0, 100_000][random.below(2) as usize];
                let text = std::format!("10.0.{subnet}.{}/{bits}", port + u64::from(host) % 50);
                end_of(&text, GidKind::RoceV2, speed)
            };
            (0..count).map(end).collect()
        };
        let (a, b) = (side(1), side(2));
        let mut here = all(&a, &b);
        let mut there: Vec<(usize, usize)> = all(&b, &a).iter().map(|(i, j)| (*j, *i)).collect();
        here.sort_unstable();
        there.sort_unstable();
        assert_eq!(here, there, "{a:?} {b:?}");
        rails += here.len();
    }
    assert!(rails > 1000, "{rails}");
}

#[test]
fn subnet_of_a_port_is_that_of_its_address() {
    let port = Port {
        number: 1,
        state: PortState::Active,
        physical: "LinkUp".into(),
        layer: LinkLayer::Ethernet,
        speed_mbit_s: 25_000,
        gids: vec![],
        pkeys: 1,
        mtu_bytes: 0,
    };
    let addresses = [HostAddress { ip: "10.1.2.3".parse().unwrap(), prefix_bits: 20 }];
    let entry = |gid: &str, kind| {
        let gid = Gid::from(gid.parse::<IpAddr>().unwrap());
        GidEntry { index: 1, gid, kind, interface: None }
    };
    let bits = |gid, kind| RailEnd::new(&port, &entry(gid, kind), &addresses).prefix_bits;
    assert_eq!(bits("10.1.2.3", GidKind::RoceV2), 20);
    assert_eq!(bits("10.1.2.4", GidKind::RoceV2), 32, "an address that is not there");
    assert_eq!(bits("fe80::5", GidKind::RoceV2), 64);
    assert_eq!(bits("fd00::5", GidKind::RoceV2), 128);
    assert_eq!(bits("fe80::5", GidKind::InfiniBand), 64);
    let end = RailEnd::new(&port, &entry("10.1.2.3", GidKind::RoceV1), &addresses);
    assert_eq!((end.speed_mbit_s, end.kind), (25_000, GidKind::RoceV1));
}
