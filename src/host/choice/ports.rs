//! The ports of an endpoint, of RDMA, libfabric and vendors: opened beside the other rails, and
//! told to peers.

use super::device::{REACHES_OTHERS, REACHES_OWN, Rails};
use super::plan::PlannedPort;
use super::settings::Environment;
use super::vendor::{self, VendorRail};
use super::{libfabric, rdma};
use crate::base::units::Span;
use crate::fabric::{MemoryKind, Region};
use crate::host::log::Level;
use crate::host::log::event::tell;
use crate::host::log::life::Astray;
use crate::host::log::news::NotRegistered;
use crate::host::log::ports::{NoRail, PortEvent, PortOut, queue_pairs};
use crate::host::ports_memory::NamedDomain;
use crate::provider::libfabric::choice::Nic;
use crate::provider::rail_set::{PortConfig, RailSet};
use crate::provider::verbs;
use crate::transport::Limits;
use crate::transport::limits::KEPT_BYTES;
use crate::wire::pair::{PORTS_MAX, PortHello, PortList};
use crate::wire::report::REPORT_BYTES_MAX;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Longest payload of a send: of the stream where it is kept to be sent again, or a report.
const PAYLOAD_BYTES_MAX: u32 = {
    let (kept, report) = (KEPT_BYTES / 4, REPORT_BYTES_MAX as u32);
    (if kept > report { kept } else { report }).next_multiple_of(64)
};

/// A port that is used.
#[derive(Clone, Debug)]
pub(in crate::host) enum Port {
    /// Of an RDMA device.
    Verbs(rdma::Port),
    /// Of libfabric.
    Libfabric(Nic),
    /// Of a vendor.
    Vendor(VendorRail),
}

impl Port {
    /// `RDMA port mlx5_0:1`.
    fn name(&self) -> String {
        match self {
            Port::Verbs(port) => format!("RDMA port {}", port.name()),
            Port::Libfabric(nic) => format!("libfabric's {}", libfabric::name_of(nic)),
            Port::Vendor(rail) => format!("vendor's rail {}", rail.name.as_str()),
        }
    }

    /// Adds the rail that it is of.
    pub(in crate::host) const fn add_to(&self, rails: &mut Rails) {
        match self {
            Port::Verbs(_) => rails.verbs = true,
            Port::Libfabric(_) => rails.libfabric = true,
            Port::Vendor(_) => rails.vendor = true,
        }
    }

    /// As the plan has it.
    pub(in crate::host) fn planned(&self) -> PlannedPort {
        match self {
            Port::Verbs(port) => PlannedPort::Verbs(port.planned()),
            Port::Libfabric(nic) => PlannedPort::Libfabric(nic.clone()),
            Port::Vendor(rail) => PlannedPort::Vendor(rail.name.as_str().into()),
        }
    }

    fn hello(&self) -> PortHello {
        match self {
            Port::Verbs(port) => rdma::hello_of(port),
            Port::Libfabric(nic) => libfabric::hello_of(nic),
            Port::Vendor(rail) => vendor::hello_of(rail),
        }
    }

    fn config<'a>(&'a self, environment: &'a Environment) -> PortConfig<'a> {
        match self {
            Port::Verbs(port) => {
                let config = rdma::config_of(port, &environment.verbs);
                // as of sockets whose data nobody acknowledges
                let silence_max = Span(environment.peer_timeout.0 / 8 * 5);
                PortConfig::Verbs(verbs::Config { silence_max, ..config })
            }
            Port::Libfabric(nic) => {
                let settings = &environment.libfabric;
                PortConfig::Libfabric(libfabric::config_of(nic, settings))
            }
            Port::Vendor(rail) => PortConfig::Vendor(vendor::config_of(rail)),
        }
    }
}

/// What peers are told of the ports.
pub(in crate::host) fn port_list(ports: &[Port]) -> PortList {
    let mut list = PortList { count: ports.len().min(PORTS_MAX), ..PortList::EMPTY };
    for (hello, port) in list.all.iter_mut().zip(ports) {
        *hello = port.hello();
    }
    list
}

/// Whether a port leads to peers of our host, or of others: what keeps it from that.
pub(in crate::host) fn astray(port: &PortHello, same_host: bool) -> Option<Astray> {
    let has_bits = matches!(port.kind, vendor::KIND | libfabric::KIND);
    let leads = port.prefix_bits & way(same_host) != 0;
    let is_vendor = port.kind == vendor::KIND;
    (has_bits && !leads).then_some(Astray { is_vendor, same_host })
}

const fn way(same_host: bool) -> u8 {
    if same_host { REACHES_OWN } else { REACHES_OTHERS }
}

/// Which of our ports make lanes with those of a peer: [`crate::connect::PairPorts`]. Those of
/// vendors come first, then those of RDMA.
pub(in crate::host) fn pair_ports(
    ours: &[PortHello],
    theirs: &[PortHello],
    same_host: bool,
    out: &mut [u8; PORTS_MAX],
) -> usize {
    let mut count = pair_named(vendor::KIND, ours, theirs, same_host, out);
    let mut of_rdma = [0; PORTS_MAX];
    let found = rdma::pair_ports(ours, theirs, same_host, &mut of_rdma);
    let taken = found.min(out.len() - count);
    out[count..count + taken].copy_from_slice(&of_rdma[..taken]);
    count += taken;
    count + pair_named(libfabric::KIND, ours, theirs, same_host, &mut out[count..])
}

/// Which of our ports of a kind that is paired by its network's name make lanes with those of a
/// peer: of each network that both have, the first with the first, and so on. What is early in both
/// lists comes first: the order in which the user has named them, where both sides have the same.
/// Both sides find the same pairs in the same order.
fn pair_named(
    kind: u8,
    ours: &[PortHello],
    theirs: &[PortHello],
    same_host: bool,
    out: &mut [u8],
) -> usize {
    let way = way(same_host);
    let reaches = |port: &PortHello| port.kind == kind && port.prefix_bits & way != 0;
    let mut pairs = [(usize::MAX, 0, 0); PORTS_MAX];
    for (place, (pair, port)) in pairs.iter_mut().zip(ours).enumerate() {
        let of_it = |port: &PortHello, gid| reaches(port) && port.gid == gid;
        if !reaches(port) {
            continue;
        }
        let before = ours[..place].iter().filter(|other| of_it(other, port.gid)).count();
        let mut likes = theirs.iter().enumerate().filter(|(_, other)| of_it(other, port.gid));
        if let Some((other, _)) = likes.nth(before) {
            *pair = (place + other, port.gid, place as u8);
        }
    }
    pairs.sort_unstable();
    let found = pairs.iter().take_while(|(sum, ..)| *sum != usize::MAX);
    let mut count = 0;
    for (entry, (.., place)) in out.iter_mut().zip(found) {
        *entry = *place;
        count += 1;
    }
    count
}

/// Says that a port is left out. Where one of its kind must be there, what is used instead is seen
/// when all have been tried.
fn left_out(port: &Port, environment: &Environment, why: PortOut<'_>) {
    let (name, mut kind) = (port.name(), Rails::NONE);
    port.add_to(&mut kind);
    tell(&PortEvent::Out { port: &name, why, tcp_instead: !environment.requires(kind) });
}

/// Opens the ports beside the other rails; those that cannot be opened are taken out of the list,
/// and those for which there is no lane.
pub(in crate::host) fn open(
    rail: &mut RailSet<'static>,
    ports: &mut Vec<Port>,
    limits: &Limits,
    environment: &Environment,
) {
    let (mut opened, mut too_many) = (Vec::new(), Vec::new());
    let (mut hellos, mut useless) = (Vec::new(), Vec::new());
    ports.retain(|port| {
        let name = port.name();
        if rail.port_count() == PORTS_MAX {
            // second queue pairs of an RDMA port are another matter; a domain that was named twice
            // was meant so
            let is_known = opened.contains(&name) || too_many.contains(&name);
            if !is_known || matches!(port, Port::Libfabric(_)) {
                too_many.push(name);
            }
            return false;
        }
        if is_useless(port, &hellos, limits.rails_max) {
            useless.push(port.clone());
            return false;
        }
        let config = port.config(environment);
        // the mailboxes are a region, too
        // SAFETY: domains are used by the endpoint's other half alone, which nobody uses when this
        // one is gone (`Endpoint::open`).
        match unsafe { rail.port_add(limits.regions_max + 1, PAYLOAD_BYTES_MAX, &config) } {
            Ok(connections) => {
                if connections < limits.connections_max {
                    tell(&PortEvent::FewConnections { port: &name, connections });
                }
                opened.push(name);
                hellos.push(port.hello());
                true
            }
            Err(error) => {
                left_out(port, environment, PortOut::Open(&error));
                false
            }
        }
    });
    if !too_many.is_empty() {
        tell(&PortEvent::TooMany(&too_many));
    }
    let spare = spare(port_list(ports).as_slice(), limits.rails_max);
    let spare: Vec<_> = spare.into_iter().map(|place| ports[place].clone()).collect();
    let left = Left { used: ports, spare: &spare, useless: &useless, rails_max: limits.rails_max };
    // who has named none has not asked for all of them
    let is_meant = !environment.libfabric.domains.is_empty();
    let level = if is_meant { Level::Warning } else { Level::Info };
    let is_kind = |port: &Port| matches!(port, Port::Libfabric(_));
    let each = |names: &[String], _: &[String]| names.to_vec();
    left.say(is_kind, each, (level, "CROSSTIE_OFI_DOMAINS"));
    let is_kind = |port: &Port| matches!(port, Port::Verbs(_));
    let variables = match environment.verbs.queue_pairs {
        ..=1 => "CROSSTIE_IB_HCA",
        _ => "CROSSTIE_IB_HCA or CROSSTIE_IB_QPS_PER_CONNECTION",
    };
    // a port without a rail is half of what somebody has bought, a queue pair without one is not
    let level = if left.has_whole(is_kind) { Level::Warning } else { Level::Info };
    left.say(is_kind, queue_pairs, (level, variables));
}

/// Makes the companions of RDMA ports, which are open in the order of the list; says why a port has
/// none.
pub(in crate::host) fn companions_open(rail: &mut RailSet<'static>, ports: &[Port]) {
    for (place, port) in ports.iter().enumerate() {
        if let Err(error) = rail.companion_open(place) {
            tell(&PortEvent::NoCompanion { port: &port.name(), error });
        }
    }
}

/// Whether no connection can have a rail on a port beside those that are opened: so many of them
/// are the same to every peer, as further queue pairs are, that all its rails are taken before.
/// Vendors' rails are opened all the same, since nobody is told of those that are left out.
fn is_useless(port: &Port, opened: &[PortHello], rails_max: u32) -> bool {
    !matches!(port, Port::Vendor(_)) && is_behind_its_like(&port.hello(), opened, rails_max)
}

fn is_behind_its_like(hello: &PortHello, before: &[PortHello], rails_max: u32) -> bool {
    let alike = before.iter().filter(|other| *other == hello).count();
    alike >= rails_max.saturating_sub(1) as usize
}

/// Which ports no connection has a rail for whose peer has the same ones: those that are paired
/// when all its rails are taken.
fn spare(ports: &[PortHello], rails_max: u32) -> Vec<usize> {
    let most = rails_max.saturating_sub(1) as usize;
    let pairs = |same_host| {
        let mut places = [0; PORTS_MAX];
        let count = pair_ports(ports, ports, same_host, &mut places);
        places.map(usize::from)[..count].to_vec()
    };
    let ways = [pairs(false), pairs(true)];
    let is_used =
        |place: &usize| ways.iter().any(|way| way.iter().take(most).any(|it| it == place));
    let is_paired = |place: &usize| ways.iter().any(|way| way.contains(place));
    (0..ports.len()).filter(|place| is_paired(place) && !is_used(place)).collect()
}

/// Ports that are open, those of them that a connection has no rail for whose peer has the same
/// ones, and those that are not open since no connection ever has.
struct Left<'p> {
    used: &'p [Port],
    spare: &'p [Port],
    useless: &'p [Port],
    rails_max: u32,
}

impl Left<'_> {
    /// Whether a port of a kind has no rail at all.
    fn has_whole(&self, is_kind: impl Fn(&Port) -> bool) -> bool {
        let count =
            |ports: &[Port], name: &str| ports.iter().filter(|it| it.name() == name).count();
        let mut left = self.spare.iter().chain(self.useless).filter(|port| is_kind(port));
        left.any(|port| {
            let name = port.name();
            count(self.spare, &name) == count(self.used, &name)
        })
    }

    /// Says which ports of a kind have no rail because a connection has no more, and by which
    /// variable they are chosen. `in_words` puts names of some of them in words, of all that are
    /// listed second.
    fn say(
        &self,
        is_kind: impl Fn(&Port) -> bool,
        in_words: impl Fn(&[String], &[String]) -> Vec<String>,
        (level, variable): (Level, &str),
    ) {
        let names = |ports: &[Port]| -> Vec<String> {
            ports.iter().filter(|port| is_kind(port)).map(Port::name).collect()
        };
        let all = [names(self.used), names(self.useless)].concat();
        let words = |ports| in_words(&names(ports), &all).join(", ");
        let (spare, useless) = (words(self.spare), words(self.useless));
        if spare.is_empty() && useless.is_empty() {
            return;
        }
        let (left, rails_max) = (NoRail { spare: &spare, useless: &useless }, self.rails_max);
        tell(&PortEvent::NoRail { level, rails_max, left, variable });
    }
}

/// Registers the mailboxes with each port; ports that refuse are taken out of the list. Says by
/// which domains memory is registered.
///
/// # Safety
/// - as [`PortDomain::register`](crate::provider::rail_set::PortDomain::register).
pub(in crate::host) unsafe fn mailboxes_register(
    rail: &mut RailSet<'static>,
    ports: &mut Vec<Port>,
    environment: &Environment,
    region: Region,
) -> Vec<NamedDomain> {
    let mut domains = Vec::new();
    let mut place = 0;
    ports.retain(|port| {
        let domain = rail.port_domain(place);
        // SAFETY: this function's contract.
        match unsafe { domain.register(region) } {
            Ok(key) => {
                rail.mailbox_key_set(place, key);
                domains.push(NamedDomain { name: port.name(), domain });
                place += 1;
                true
            }
            Err(error) => {
                let why = NotRegistered { domain: &domain, error, kind: MemoryKind::Host };
                left_out(port, environment, PortOut::Memory(why));
                rail.port_remove(place);
                false
            }
        }
    });
    domains
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn port(network: u128, reaches: u8) -> PortHello {
        PortHello { gid: network, prefix_bits: reaches, kind: libfabric::KIND, speed_mbit_s: 0 }
    }

    fn pairs(ours: &[PortHello], theirs: &[PortHello], same_host: bool) -> Vec<u8> {
        let mut out = [9; PORTS_MAX];
        let count = pair_ports(ours, theirs, same_host, &mut out);
        out[..count].to_vec()
    }

    #[test]
    fn ports_of_a_network_pair_alike_from_both_sides() {
        let ours = [port(7, 3), port(3, 3), port(7, 3), port(8, 3)];
        let theirs = [port(3, 3), port(7, 3), port(9, 3)];
        assert_eq!(pairs(&ours, &theirs, false), [1, 0], "alike early: the network decides");
        assert_eq!(pairs(&theirs, &ours, false), [0, 1]);
        // they came in the order of their networks' hashes
        let twice = [port(8, 3), port(7, 3), port(7, 3), port(3, 3)];
        assert_eq!(pairs(&twice, &twice, false), [0, 1, 2, 3], "as both sides name them");
        assert_eq!(pairs(&twice, &ours, false), [1, 0, 3, 2]);
        assert_eq!(pairs(&ours, &twice, false), [0, 3, 1, 2]);
        let verbs = [PortHello { kind: 3, ..port(7, 3) }];
        assert!(pairs(&ours, &verbs, false).is_empty() && pairs(&verbs, &ours, false).is_empty());
    }

    #[test]
    fn ports_for_which_a_connection_has_no_rail_are_found() {
        let ours = [port(7, 3), port(3, 3), port(7, 3), port(8, REACHES_OWN)];
        assert_eq!(spare(&ours, 8), []);
        assert_eq!(spare(&ours, 4), [3]);
        assert_eq!(spare(&ours, 2), [1, 2, 3]);
        assert_eq!(spare(&[port(7, REACHES_OWN), port(8, REACHES_OTHERS)], 2), []);
        assert_eq!(spare(&[port(7, 0)], 2), [], "it reaches nobody, whatever there is room for");
    }

    /// Whatever ports the peer has.
    #[test]
    fn port_behind_as_many_of_its_like_as_there_are_lanes_has_none() {
        let mut random = Random::new(9);
        let (mut lanes, mut behind) = (0, 0);
        for _ in 0..5000 {
            let mut side = |host: u8| -> Vec<PortHello> {
                let count = 1 + random.below(PORTS_MAX as u64);
                let each = |_| {
                    if random.below(2) == 0 {
                        return port(random.below(2).into(), 1 + random.below(3) as u8);
                    }
                    let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host];
                    gid[14] = random.below(2) as u8;
                    let prefix_bits = [16, 24][random.below(2) as usize];
                    let speed_mbit_s = [100, 200][random.below(2) as usize];
                    PortHello { gid: u128::from_le_bytes(gid), prefix_bits, kind: 3, speed_mbit_s }
                };
                (0..count).map(each).collect()
            };
            let (ours, theirs) = (side(1), side(2));
            for (rails_max, same_host) in [(2, false), (2, true), (4, false), (4, true)] {
                let is_behind = |at: usize| is_behind_its_like(&ours[at], &ours[..at], rails_max);
                behind += (0..ours.len()).filter(|at| is_behind(*at)).count();
                for place in pairs(&ours, &theirs, same_host).iter().take(rails_max as usize - 1) {
                    assert!(!is_behind((*place).into()), "{place} of {ours:?}, {theirs:?}");
                    lanes += 1;
                }
            }
        }
        assert!(lanes > 5000 && behind > 5000, "{lanes} {behind}");
    }

    #[test]
    fn who_is_not_reached_makes_no_pair() {
        let (own, others) = ([port(7, REACHES_OWN)], [port(7, REACHES_OTHERS)]);
        assert_eq!(pairs(&own, &own, true), [0]);
        assert!(pairs(&own, &own, false).is_empty(), "a loopback leads to the asking host");
        assert_eq!(pairs(&others, &others, false), [0]);
        assert!(pairs(&others, &others, true).is_empty(), "it drops what it sends to itself");
        assert!(pairs(&own, &others, true).is_empty());
    }

    /// A port of RDMA has other bits there, and is never astray.
    #[test]
    fn port_that_does_not_lead_to_a_peers_host_says_why() {
        let why = |kind, reaches, same_host| {
            let port = PortHello { kind, ..port(7, reaches) };
            astray(&port, same_host).map(|why| format!("{why}"))
        };
        let others = "it reaches other hosts alone, and the peer is on this one";
        let own = "it reaches this host alone, and the peer is on another";
        assert_eq!(why(libfabric::KIND, REACHES_OTHERS, true).as_deref(), Some(others));
        assert_eq!(why(libfabric::KIND, REACHES_OWN, false).as_deref(), Some(own));
        let flag = why(vendor::KIND, REACHES_OTHERS, true).unwrap();
        assert_eq!(flag, format!("{others} (XTIE_VENDOR_RAIL_OTHER_HOSTS)"));
        let flag = why(vendor::KIND, REACHES_OWN, false).unwrap();
        assert_eq!(flag, format!("{own} (XTIE_VENDOR_RAIL_OWN_HOST)"));
        for same_host in [false, true] {
            assert_eq!(why(vendor::KIND, REACHES_OWN | REACHES_OTHERS, same_host), None);
            assert_eq!(why(3, 64, same_host), None);
        }
    }
}
