//! The addresses that the lanes of a connection use. Pure arithmetic.
//!
//! Lane 0 uses the addresses of the link. Each further lane joins one of our addresses and one of
//! the peer's in the same subnet. The choice spreads lanes over interfaces, in this order:
//!
//! 1. network devices with the fewest lanes: a cable that fails takes down all its lanes;
//! 2. addresses with the fewest lanes.
//!
//! All addresses are of the link's family. Otherwise an interface with an IPv4 and an IPv6 address
//! would get two lanes.
#![forbid(unsafe_code)]

use super::interfaces::{ip_of, is_common_subnet};
use crate::wire::RAILS_MAX;
use crate::wire::hello::{ADDRESSES_MAX, AddressList};
use core::net::{IpAddr, SocketAddr};

/// The way of one lane.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Path {
    /// Our address; `None`: the kernel chooses.
    pub from: Option<IpAddr>,
    /// Where the peer answers; `None`: where the link goes.
    pub to: Option<SocketAddr>,
}

impl Path {
    /// That of the link.
    pub const OF_LINK: Path = Path { from: None, to: None };
}

/// What a plan is made of.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ends<'a> {
    /// Our addresses.
    pub ours: &'a AddressList,
    /// The peer's.
    pub theirs: &'a AddressList,
    /// Our end of the link, if the kernel says it.
    pub from: Option<IpAddr>,
    /// The peer's end of the link.
    pub to: SocketAddr,
    /// Whether both are one host, so that loopback leads there.
    pub same_host: bool,
}

/// The ways of a connection's lanes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Plan {
    /// How many lanes, at least 1.
    pub count: usize,
    /// Their ways, at the front.
    pub paths: [Path; RAILS_MAX],
}

/// The addresses of one side, each once.
struct SideList {
    all: [Option<(IpAddr, u16, u8)>; ADDRESSES_MAX],
    /// The number of the device of each; 0: not known.
    devices: [u8; ADDRESSES_MAX],
    /// Lanes that each has.
    used: [u8; ADDRESSES_MAX],
}

impl SideList {
    fn new(said: &AddressList) -> SideList {
        let used = [0; ADDRESSES_MAX];
        let mut list = SideList { all: [None; ADDRESSES_MAX], devices: said.devices, used };
        for (at, hello) in said.as_slice().iter().enumerate() {
            let Some(ip) = ip_of(hello) else { continue };
            let known = list.all[..at].iter().flatten().any(|(other, ..)| *other == ip);
            list.all[at] = (!known).then_some((ip, hello.port, hello.prefix_bits));
        }
        list
    }

    fn position(&self, ip: IpAddr) -> Option<usize> {
        self.all.iter().position(|known| known.is_some_and(|(other, ..)| other == ip))
    }

    /// Lanes that the device of an address has; one that is not known is each address's own.
    fn device_used(&self, at: usize) -> u8 {
        let device = self.devices[at];
        let each = self.devices.iter().zip(self.used).enumerate();
        let same =
            each.filter(|(other, (its, _))| *other == at || (device != 0 && **its == device));
        same.map(|(_, (_, used))| used).sum()
    }
}

/// Which addresses are in one subnet, and how often each and each pair is used.
struct Pairs {
    ours: SideList,
    theirs: SideList,
    joined: [[bool; ADDRESSES_MAX]; ADDRESSES_MAX],
    used: [[u8; ADDRESSES_MAX]; ADDRESSES_MAX],
}

impl Pairs {
    fn new(ends: &Ends<'_>) -> Pairs {
        let (ours, theirs) = (SideList::new(ends.ours), SideList::new(ends.theirs));
        let mut joined = [[false; ADDRESSES_MAX]; ADDRESSES_MAX];
        for (row, our) in joined.iter_mut().zip(ours.all) {
            for (cell, their) in row.iter_mut().zip(theirs.all) {
                let (Some((a, _, a_bits)), Some((b, port, b_bits))) = (our, their) else {
                    continue;
                };
                let reach = match ends.same_host {
                    true => a.is_loopback() == b.is_loopback(),
                    // an address that both hosts have, as those of bridges, leads to ourselves
                    false => !a.is_loopback() && !b.is_loopback() && a != b,
                };
                // a port of 0 says that nobody listens there
                let sound = reach && port != 0 && b.is_ipv4() == ends.to.is_ipv4();
                *cell = sound && is_common_subnet(a, b, a_bits.max(b_bits));
            }
        }
        Pairs { ours, theirs, joined, used: [[0; ADDRESSES_MAX]; ADDRESSES_MAX] }
    }

    /// How many lanes it takes until each address with a match has one.
    fn lanes(&self) -> usize {
        let ours = self.joined.iter().filter(|row| row.contains(&true)).count();
        let column = |at: &usize| self.joined.iter().any(|row| row[*at]);
        ours.max((0..ADDRESSES_MAX).filter(column).count())
    }

    /// Gives a lane to a pair, or to one of its addresses when the other is not known.
    fn take(&mut self, our: Option<usize>, their: Option<usize>) {
        if let Some(our) = our {
            self.ours.used[our] += 1;
        }
        if let Some(their) = their {
            self.theirs.used[their] += 1;
        }
        if let (Some(our), Some(their)) = (our, their) {
            self.used[our][their] += 1;
        }
    }

    /// The pair that comes next.
    fn next(&self) -> Option<(usize, usize)> {
        let all = (0..ADDRESSES_MAX).flat_map(|our| (0..ADDRESSES_MAX).map(move |at| (our, at)));
        let cost = |&(our, their): &(usize, usize)| {
            let devices = (self.ours.device_used(our), self.theirs.device_used(their));
            let (a, b) = (self.ours.used[our], self.theirs.used[their]);
            (
                (devices.0.min(devices.1), devices.0.max(devices.1)),
                (a.min(b), a.max(b), self.used[our][their]),
            )
        };
        all.filter(|&(our, their)| self.joined[our][their]).min_by_key(cost)
    }
}

/// The lanes of a connection: as many as `wish` says, or, when that is 0, as addresses can be used;
/// `limit` at most.
pub(super) fn plan(ends: &Ends<'_>, wish: u32, limit: u32) -> Plan {
    let mut pairs = Pairs::new(ends);
    let wanted = if wish == 0 { pairs.lanes() } else { wish as usize };
    let count = wanted.min(limit as usize).clamp(1, RAILS_MAX);
    let mut paths = [Path::OF_LINK; RAILS_MAX];
    let from = ends.from.and_then(|ip| pairs.ours.position(ip));
    pairs.take(from, pairs.theirs.position(ends.to.ip()));
    for path in &mut paths[1..count] {
        // without a common subnet all go where the link goes
        let Some((our, their)) = pairs.next() else { break };
        pairs.take(Some(our), Some(their));
        let (Some((ip, ..)), Some((to, port, _))) = (pairs.ours.all[our], pairs.theirs.all[their])
        else {
            break;
        };
        // the link knows a port that leads to this address, whatever the peer believes
        let to = if to == ends.to.ip() { ends.to } else { SocketAddr::new(to, port) };
        *path = Path { from: Some(ip), to: Some(to) };
    }
    Plan { count, paths }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::wire::hello::AddressHello;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn hello(text: &str, port: u16) -> AddressHello {
        let (ip, bits) = text.split_once('/').unwrap();
        let prefix_bits = bits.parse().unwrap();
        let (ip, family) = match ip.parse().unwrap() {
            IpAddr::V4(ip) => (u128::from(u32::from_le_bytes(ip.octets())), 4),
            IpAddr::V6(ip) => (u128::from_le_bytes(ip.octets()), 6),
        };
        AddressHello { ip, port, family, prefix_bits, speed_mbit_s: 0 }
    }

    /// Addresses, some behind the number of their device: `1=10.0.0.1/24`.
    fn list(texts: &str, port: u16) -> AddressList {
        let mut list = AddressList::EMPTY;
        for text in texts.split_whitespace() {
            let (device, text) = text.split_once('=').unwrap_or(("0", text));
            list.push(hello(text, port), device.parse().unwrap());
        }
        list
    }

    /// The lanes of a connection whose link goes between the first addresses of both, as text.
    fn ways_of(ours: &str, theirs: &str, same_host: bool, wish: u32, limit: u32) -> String {
        let (ours, theirs) = (list(ours, 0), list(theirs, 7));
        let to = SocketAddr::new(ip_of(&theirs.all[0]).unwrap(), 9);
        let from = ip_of(&ours.all[0]);
        let ends = Ends { ours: &ours, theirs: &theirs, from, to, same_host };
        let plan = plan(&ends, wish, limit);
        assert_eq!(plan.paths[0], Path::OF_LINK);
        let text = |path: &Path| match (path.from, path.to) {
            (Some(from), Some(to)) => std::format!("{from}>{to}"),
            _ => "link".to_string(),
        };
        plan.paths[..plan.count].iter().map(text).collect::<Vec<_>>().join(" ")
    }

    fn ways(ours: &str, theirs: &str) -> String {
        ways_of(ours, theirs, false, 0, 8)
    }

    #[test]
    fn each_pair_in_a_subnet_has_a_lane() {
        let ours = "10.0.0.1/24 10.0.1.1/24 10.0.2.1/24";
        let theirs = "10.0.0.2/24 10.0.2.2/24 10.0.1.2/24";
        assert_eq!(ways(ours, theirs), "link 10.0.1.1>10.0.1.2:7 10.0.2.1>10.0.2.2:7");
        assert_eq!(ways("10.0.0.1/24", "10.0.0.2/24"), "link");
        // the third one of ours has nobody to talk to
        assert_eq!(ways(ours, "10.0.0.2/24 10.0.1.2/24"), "link 10.0.1.1>10.0.1.2:7");
    }

    #[test]
    fn unequal_numbers_use_the_smaller_side_again() {
        let one = "10.0.0.1/24";
        let three = "10.0.0.4/24 10.0.0.5/24 10.0.0.6/24";
        assert_eq!(ways(one, three), "link 10.0.0.1>10.0.0.5:7 10.0.0.1>10.0.0.6:7");
        assert_eq!(ways(three, one), "link 10.0.0.5>10.0.0.1:9 10.0.0.6>10.0.0.1:9");
        // two subnets: the one with more of the peer's addresses has more lanes
        let (ours, theirs) = ("10.0.0.1/24 10.0.1.1/24", "10.0.0.4/24 10.0.0.5/24 10.0.1.4/24");
        assert_eq!(ways(ours, theirs), "link 10.0.1.1>10.0.1.4:7 10.0.0.1>10.0.0.5:7");
    }

    #[test]
    fn devices_that_no_lane_has_come_before_second_addresses_of_one_that_has() {
        let two = |a: &str, b: &str| (ways_of(a, b, false, 0, 2), ways_of(b, a, false, 0, 2));
        let (a, b) = (
            "1=10.0.0.1/24 1=10.0.1.1/24 2=10.0.2.1/24",
            "1=10.0.0.2/24 1=10.0.1.2/24 2=10.0.2.2/24",
        );
        let wanted = ("link 10.0.2.1>10.0.2.2:7", "link 10.0.2.2>10.0.2.1:7");
        assert_eq!(two(a, b), (wanted.0.into(), wanted.1.into()));
        // one side says it, the other is of a version that does not
        let older = "10.0.0.2/24 10.0.1.2/24 10.0.2.2/24";
        assert_eq!(two(a, older), (wanted.0.into(), wanted.1.into()));
        // they come last, and come
        let all = "link 10.0.2.1>10.0.2.2:7 10.0.1.1>10.0.1.2:7";
        assert_eq!(ways(a, b), all);
        // one subnet for all: aliases on both sides, and second cables
        let (a, b) = (
            "5=10.0.0.1/24 5=10.0.0.3/24 6=10.0.0.5/24",
            "8=10.0.0.2/24 8=10.0.0.4/24 9=10.0.0.6/24",
        );
        assert_eq!(ways_of(a, b, false, 0, 2), "link 10.0.0.5>10.0.0.6:7");
    }

    #[test]
    fn prefixes_count_as_they_are_configured() {
        let (ours, theirs) = ("10.0.0.1/16 10.0.128.1/16", "10.0.0.2/16 10.0.128.2/16");
        assert_eq!(ways(ours, theirs), "link 10.0.128.1>10.0.128.2:7");
        let apart = ("10.0.0.1/17 10.0.128.1/17", "10.0.0.2/17 10.0.128.2/17");
        assert_eq!(ways(apart.0, apart.1), "link 10.0.128.1>10.0.128.2:7");
        assert_eq!(ways("10.0.0.1/24 10.1.0.1/24", "10.0.0.2/24 10.2.0.2/24"), "link");
        assert_eq!(ways("10.0.0.1/24 10.1.0.1/0", "10.0.0.2/24 10.2.0.2/0"), "link");
        assert_eq!(ways("10.0.0.1/24 10.1.0.1/16", "10.0.0.2/24 10.1.0.2/99"), "link");
    }

    #[test]
    fn families_do_not_mix() {
        let (ours, theirs) = ("10.0.0.1/24 fd00::1/64", "10.0.0.2/24 fd00::2/64");
        assert_eq!(ways(ours, theirs), "link", "one interface has both");
        let (ours, theirs) = ("fd00::1/64 fd01::1/64", "fd00::2/64 fd01::2/64");
        assert_eq!(ways(ours, theirs), "link fd01::1>[fd01::2]:7");
    }

    #[test]
    fn loopback_is_for_one_host() {
        let (ours, theirs) = ("127.0.0.1/8 127.0.0.2/8", "127.0.0.1/8 127.0.0.2/8");
        assert_eq!(ways_of(ours, theirs, true, 0, 8), "link 127.0.0.2>127.0.0.2:7");
        assert_eq!(ways_of(ours, theirs, false, 0, 8), "link");
        assert_eq!(ways_of("::1/128 127.0.0.1/8", "::1/128 10.0.0.1/8", true, 0, 8), "link");
        let mixed = ("10.0.0.1/24 127.0.0.1/8", "10.0.0.2/24 127.0.0.2/8");
        assert_eq!(ways(mixed.0, mixed.1), "link");
    }

    #[test]
    fn an_address_that_two_hosts_have_is_no_way_between_them() {
        let (ours, theirs) = ("10.0.0.1/24 10.9.0.1/16", "10.0.0.2/24 10.9.0.1/16");
        assert_eq!(ways_of(ours, theirs, false, 0, 8), "link");
        assert_eq!(ways_of(ours, theirs, true, 0, 8), "link 10.9.0.1>10.9.0.1:7");
    }

    #[test]
    fn duplicates_and_addresses_without_a_listener_do_not_count() {
        let (ours, theirs) = ("10.0.0.1/24 10.0.0.1/24", "10.0.0.2/24 10.0.0.2/24");
        assert_eq!(ways(ours, theirs), "link");
        let (ours, theirs) = (list("10.0.0.1/24 10.0.0.3/24", 0), list("10.0.0.2/24", 0));
        let (from, to) = (ip_of(&ours.all[0]), "10.0.0.2:9".parse().unwrap());
        let ends = Ends { ours: &ours, theirs: &theirs, from, to, same_host: false };
        assert_eq!(plan(&ends, 0, 8).count, 1);
        let mut strange = theirs;
        strange.all[0].family = 9;
        assert_eq!(plan(&Ends { theirs: &strange, ..ends }, 0, 8).count, 1);
    }

    #[test]
    fn a_wish_goes_round_the_pairs_and_limits_hold() {
        let (ours, theirs) = ("10.0.0.1/24 10.0.1.1/24", "10.0.0.2/24 10.0.1.2/24");
        let all = "link 10.0.1.1>10.0.1.2:7 10.0.0.1>10.0.0.2:9 10.0.1.1>10.0.1.2:7";
        assert_eq!(ways_of(ours, theirs, false, 4, 8), all);
        assert_eq!(ways_of(ours, theirs, false, 0, 1), "link");
        assert_eq!(ways_of(ours, theirs, false, 1, 8), "link");
        assert_eq!(ways_of(ours, theirs, false, 100, 100).split(' ').count(), RAILS_MAX);
        // one pair for all
        let one = ways_of("10.0.0.1/24", "10.0.0.2/24", false, 3, 8);
        assert_eq!(one, "link 10.0.0.1>10.0.0.2:9 10.0.0.1>10.0.0.2:9");
        // no pair at all
        assert_eq!(ways_of("10.0.0.1/24", "10.9.0.2/24", false, 2, 8), "link link");
        // within one subnet each pair before one is used twice
        let four = ways_of("10.0.0.1/24 10.0.0.3/24", "10.0.0.2/24 10.0.0.4/24", false, 4, 8);
        let rest = "10.0.0.1>10.0.0.4:7 10.0.0.3>10.0.0.2:9";
        assert_eq!(four, std::format!("link 10.0.0.3>10.0.0.4:7 {rest}"));
    }

    #[test]
    fn full_lists_are_planned() {
        let all = |subnet: u8| {
            let texts = (1..=16).map(|n| std::format!("10.0.{n}.{subnet}/24 "));
            list(&texts.collect::<String>(), 7)
        };
        let (ours, theirs) = (all(1), all(2));
        let to = SocketAddr::new(ip_of(&theirs.all[4]).unwrap(), 7);
        let ends = Ends { ours: &ours, theirs: &theirs, from: None, to, same_host: false };
        let made = plan(&ends, 0, 8);
        assert_eq!(made.count, 8);
        let mut seen: Vec<_> = made.paths[1..].iter().map(|path| path.to).collect();
        seen.sort();
        seen.dedup();
        // our end of the link is not known, the peer's is: nobody else has its address
        assert!(seen.len() == 7 && !seen.contains(&Some(to)), "{seen:?}");
    }
}
