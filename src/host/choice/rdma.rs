//! RDMA ports: which of them an endpoint uses, and which make lanes with those of a peer.
#![forbid(unsafe_code)]

use super::device::Rails;
use super::plan::PlannedRdma;
use super::settings::Environment;
use crate::base::units::Span;
use crate::connect::interfaces::all_addresses;
use crate::host::log::event::tell;
use crate::host::log::ports::{AsSet, RdmaEvent};
use crate::host::log::{self, Level};
use crate::provider::verbs::choice::{Unusable, usable};
use crate::provider::verbs::gid::{Gid, GidEntry, GidKind, LinkLayer, is_elsewhere};
use crate::provider::verbs::ports::{SYSFS, survey_of};
use crate::provider::verbs::rails::{HostAddress, Hosts, RailEnd, RailPair, apart, pairs_into};
use crate::provider::verbs::settings::Settings;
use crate::provider::verbs::sys::{self, Library};
use crate::provider::verbs::{Config, PathConfig, speed};
use crate::wire::pair::{PORTS_MAX, PortHello};
use core::fmt;
use core::net::IpAddr;
use std::format;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

/// How long a port may be down before its lanes are given up: others live.
const PORT_GRACE: Span = Span::millis(50);

/// A port that is used.
#[derive(Clone, Debug)]
pub(in crate::host) struct Port {
    device: String,
    number: u8,
    gid_index: u8,
    end: RailEnd,
    /// Its GID in words, where that is no address of this network namespace.
    elsewhere: Option<String>,
}

impl Port {
    /// `mlx5_0:1`.
    pub(in crate::host) fn name(&self) -> String {
        format!("{}:{}", self.device, self.number)
    }

    pub(super) fn planned(&self) -> PlannedRdma {
        PlannedRdma { name: self.name(), end: self.end, elsewhere: self.elsewhere.clone() }
    }

    fn layer(&self) -> LinkLayer {
        match self.end.kind {
            GidKind::InfiniBand => LinkLayer::InfiniBand,
            GidKind::RoceV1 | GidKind::RoceV2 => LinkLayer::Ethernet,
        }
    }
}

/// The ports that can be used; says why there is none, where there are devices or somebody asked
/// for them, and which names are of none.
pub(in crate::host) fn choose(environment: &Environment) -> Vec<Port> {
    let (settings, asked) = (&environment.verbs, environment.verbs_named);
    let required = environment.requires(Rails { verbs: true, ..Rails::NONE });
    let means = |device: &str, port| settings.means(device, port);
    let mut devices = match survey_of(Path::new(SYSFS), &means) {
        Ok(devices) => devices,
        Err(error) => {
            let level = if asked { Level::Warning } else { Level::Info };
            tell(&RdmaEvent::NoList { level, error: &error, required });
            return Vec::new();
        }
    };
    let is_choice = !devices.is_empty() && settings.narrows();
    let level = if asked || is_choice { Level::Warning } else { Level::Info };
    if !devices.is_empty() {
        guard_from_forks();
    }
    speed::correct(&mut devices, settings);
    let all = all_addresses().unwrap_or_default();
    let addresses: Vec<HostAddress> =
        all.iter().map(|it| HostAddress { ip: it.ip, prefix_bits: it.prefix_bits }).collect();
    let here: Vec<IpAddr> = all.iter().map(|it| it.ip).collect();
    if !settings.disabled {
        missing_tell(settings, &settings.hca.unmatched(&devices));
    }
    let (mut ports, mut reasons) = (Vec::new(), Vec::new());
    for device in &devices {
        for port in &device.ports {
            match usable(device, port, settings, &here) {
                Ok(gid) => ports.push(Port {
                    device: device.name.clone(),
                    number: port.number,
                    gid_index: gid.index,
                    end: RailEnd::new(port, gid, &addresses),
                    elsewhere: is_elsewhere(gid, port.layer, &here)
                        .then(|| elsewhere(&device.name, port.number, gid)),
                }),
                Err(why) => {
                    let is_meant = !matches!(why, Unusable::NotChosen(_));
                    reasons.push((is_meant, format!("{}:{}: {why}", device.name, port.number)));
                }
            }
        }
    }
    if ports.is_empty() && (asked || !devices.is_empty()) {
        let reasons: Vec<String> = reasons.into_iter().map(|(_, why)| why).collect();
        let (reasons, devices) = (reasons.as_slice(), !devices.is_empty());
        tell(&AsSet(settings, RdmaEvent::NoPort { level, reasons, devices, required }));
    } else {
        // this endpoint does not look again what has become of them
        for (_, why) in reasons.iter().filter(|(is_meant, _)| *is_meant) {
            tell(&AsSet(settings, RdmaEvent::Unusable(why)));
        }
    }
    more_queue_pairs_tell(ports.len(), settings);
    with_queue_pairs(ports, settings.queue_pairs)
}

/// Says that there are not so many queue pairs as were asked for.
fn more_queue_pairs_tell(ports: usize, settings: &Settings) {
    let wanted = ports * usize::from(settings.queue_pairs);
    // ports beyond that have a line of their own
    if wanted > PORTS_MAX && settings.queue_pairs > 1 {
        let event = RdmaEvent::QueuePairs { each: settings.queue_pairs, wanted, ports };
        tell(&AsSet(settings, event));
    }
}

/// Says which names that were asked for are those of no port.
fn missing_tell(settings: &Settings, names: &[String]) {
    if !names.is_empty() {
        tell(&AsSet(settings, RdmaEvent::Missing { names, asker: settings.hca.asker() }));
    }
}

/// Says that a port is used by an address that is none of ours; returns that in words.
fn elsewhere(device: &str, port: u8, gid: &GidEntry) -> String {
    tell(&RdmaEvent::Elsewhere { device, port, gid });
    format!("{gid}")
}

/// Before a device is opened: where there are none, nobody is told.
fn guard_from_forks() {
    let guarded = Library::load().map(|library| sys::guard_from_forks(&library));
    if let Ok(Err(error)) = guarded {
        tell(&RdmaEvent::Forks(&error));
    }
}

/// Each port as often as a connection is to have queue pairs on it, as far as there are lanes: each
/// is a lane of its own. All ports come first, so that none is without.
fn with_queue_pairs(mut ports: Vec<Port>, count: u16) -> Vec<Port> {
    let once = ports.len();
    let wanted = (once * usize::from(count)).min(PORTS_MAX);
    for n in once..wanted {
        ports.push(ports[n - once].clone());
    }
    ports
}

/// What a peer is told of a port.
pub(in crate::host) fn hello_of(port: &Port) -> PortHello {
    let RailEnd { gid, kind, prefix_bits, speed_mbit_s } = port.end;
    let kind = match kind {
        GidKind::InfiniBand => 1,
        GidKind::RoceV1 => 2,
        GidKind::RoceV2 => 3,
    };
    let gid = u128::from_le_bytes(gid.0);
    PortHello { gid, prefix_bits, kind, speed_mbit_s }
}

/// The end that a peer tells; of a kind that this version does not know it reaches nobody.
fn end_of(hello: &PortHello) -> Option<RailEnd> {
    let kind = match hello.kind {
        1 => GidKind::InfiniBand,
        2 => GidKind::RoceV1,
        3 => GidKind::RoceV2,
        _ => return None,
    };
    let (prefix_bits, speed_mbit_s) = (hello.prefix_bits.min(128), hello.speed_mbit_s);
    Some(RailEnd { gid: Gid(hello.gid.to_le_bytes()), kind, prefix_bits, speed_mbit_s })
}

/// The ends of a side's ports.
struct Ends {
    all: [RailEnd; PORTS_MAX],
    count: usize,
}

impl Ends {
    /// Those of another kind are ends that reach nobody, so that the others keep their places.
    fn of(hellos: &[PortHello]) -> Ends {
        Ends::taken(hellos.iter().map(|hello| end_of(hello).unwrap_or(RailEnd::NOWHERE)))
    }

    /// Without those of another kind.
    fn of_rdma(hellos: &[PortHello]) -> Ends {
        Ends::taken(hellos.iter().filter_map(end_of))
    }

    fn taken(ends: impl Iterator<Item = RailEnd>) -> Ends {
        let (mut all, mut count) = ([RailEnd::NOWHERE; PORTS_MAX], 0);
        for (place, end) in all.iter_mut().zip(ends) {
            *place = end;
            count += 1;
        }
        Ends { all, count }
    }

    fn as_slice(&self) -> &[RailEnd] {
        &self.all[..self.count]
    }
}

const fn hosts(same_host: bool) -> Hosts {
    if same_host { Hosts::Same } else { Hosts::Apart }
}

/// Which of our ports make lanes with those of a peer, of those that are of RDMA.
pub(in crate::host) fn pair_ports(
    ours: &[PortHello],
    theirs: &[PortHello],
    same_host: bool,
    out: &mut [u8; PORTS_MAX],
) -> usize {
    let (ours, theirs) = (Ends::of(ours), Ends::of(theirs));
    let mut pairs = [RailPair { ours: 0, theirs: 0 }; PORTS_MAX];
    let count = pairs_into(ours.as_slice(), theirs.as_slice(), hosts(same_host), &mut pairs);
    for (place, pair) in out.iter_mut().zip(&pairs[..count]) {
        *place = pair.ours as u8;
    }
    count
}

/// What is to be said of the ports of two sides that make no lane: of RDMA the subnets of both,
/// nothing where one of them has none, or they would make one; of libfabric, where both have some,
/// how many the other has.
pub(in crate::host) struct Apart {
    ours: Ends,
    theirs: Ends,
    hosts: Hosts,
    of_libfabric: usize,
}

impl Apart {
    pub(in crate::host) fn of(ours: &[PortHello], theirs: &[PortHello], same_host: bool) -> Apart {
        let [own, of_libfabric] = [ours, theirs].map(|hellos| {
            hellos.iter().filter(|hello| hello.kind == super::libfabric::KIND).count()
        });
        Apart {
            ours: Ends::of_rdma(ours),
            theirs: Ends::of_rdma(theirs),
            hosts: hosts(same_host),
            of_libfabric: if own == 0 { 0 } else { of_libfabric },
        }
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, theirs) = (self.ours.as_slice(), self.theirs.as_slice());
        let is_told = !ours.is_empty() && !theirs.is_empty();
        let of_rdma = apart(ours, theirs, self.hosts).filter(|_| is_told);
        log::life::Apart { of_rdma, of_libfabric: self.of_libfabric }.fmt(f)
    }
}

/// What a port is opened with.
pub(in crate::host) fn config_of<'a>(port: &'a Port, settings: &Settings) -> Config<'a> {
    Config {
        device: &port.device,
        port: port.number,
        gid_index: port.gid_index,
        gid_chosen: Some((port.end.gid, port.end.kind)),
        gid_rule: settings.gid,
        subnet_bits: port.end.prefix_bits,
        path: PathConfig {
            timeout: settings.timeout,
            retries: settings.retries,
            pkey_index: settings.pkey_index,
            service_level: settings.service_level.unwrap_or(0),
            traffic_class: settings.traffic_class.unwrap_or(0),
        },
        relaxed_ordering: settings.relaxed_ordering.unwrap_or(true),
        extensions: settings.ece,
        extended_post: settings.extended_post,
        adaptive_bytes_min: settings.adaptive_from(port.layer()),
        port_grace: PORT_GRACE,
        silence_max: Span(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(ip: &str, bits: u8) -> PortHello {
        let gid = Gid::from(ip.parse::<IpAddr>().unwrap());
        let gid = u128::from_le_bytes(gid.0);
        PortHello { gid, prefix_bits: bits, kind: 3, speed_mbit_s: 100 }
    }

    #[test]
    fn each_port_is_there_as_often_as_queue_pairs_are_wanted() {
        let gid = Gid::from("10.0.0.1".parse::<IpAddr>().unwrap());
        let end = RailEnd { gid, kind: GidKind::RoceV2, prefix_bits: 24, speed_mbit_s: 100 };
        let of = |name: &str| Port {
            device: name.into(),
            number: 1,
            gid_index: 0,
            end,
            elsewhere: None,
        };
        let names = |count| {
            let ports = with_queue_pairs(Vec::from([of("a"), of("b")]), count);
            ports.iter().map(|port| port.device.as_str()).collect::<String>()
        };
        assert_eq!(names(1), "ab");
        assert_eq!(names(2), "abab");
        assert_eq!(names(128), "abababa", "as many as there are lanes");
        // ends of the same port are lanes of their own
        let ends = [port("10.0.0.1", 24); 2];
        let theirs = [port("10.0.0.2", 24); 2];
        let mut places = [9; PORTS_MAX];
        assert_eq!(pair_ports(&ends, &theirs, false, &mut places), 2);
        assert_eq!(places[..2], [0, 1]);
    }

    #[test]
    fn ports_of_a_subnet_pair_alike_from_both_sides() {
        let ours = [port("10.0.1.1", 24), port("10.0.0.1", 24), port("10.9.0.1", 24)];
        let theirs = [port("10.0.0.2", 24), port("10.0.1.2", 24)];
        let mut found = [[9; PORTS_MAX]; 2];
        let [a, b] = &mut found;
        assert_eq!(pair_ports(&ours, &theirs, false, a), 2);
        assert_eq!(pair_ports(&theirs, &ours, false, b), 2);
        // lane by lane both mean one subnet
        for lane in 0..2 {
            let subnet = |port: &PortHello| port.gid.to_le_bytes()[14];
            let (mine, other) = (ours[found[0][lane] as usize], theirs[found[1][lane] as usize]);
            assert_eq!(subnet(&mine), subnet(&other));
        }
        let strange = [PortHello { kind: 7, ..ours[0] }];
        assert_eq!(pair_ports(&ours, &strange, false, &mut [0; PORTS_MAX]), 0);
    }

    /// Whoever asked for IPv6 on one side was told of a first port, and of no address.
    #[test]
    fn ports_that_make_no_lane_are_told_with_the_addresses_of_both_sides() {
        let told = |ours: &[PortHello], theirs: &[PortHello]| {
            format!("{}", Apart::of(ours, theirs, false))
        };
        let (ours, theirs) = ([port("10.77.0.1", 24)], [port("fd77::2", 64)]);
        let words = "; RDMA: no subnet in common: this side's ports are 10.77.0.1/24 (RoCE \
                     v2); the peer's are fd77::2/64 (RoCE v2)";
        assert_eq!(told(&ours, &theirs), words);
        // those of libfabric are no ports of RDMA
        let strange = PortHello { kind: 4, ..ours[0] };
        assert_eq!(told(&[strange, ours[0]], &theirs), words);
        assert_eq!(told(&ours, &[strange]) + &told(&ours, &[]), "");
        // it was for another reason, as the other side's `rails_max`
        assert_eq!(told(&ours, &[port("10.77.0.2", 24)]), "");
        // whoever had named another provider was told of no pair, and of no other
        let other = PortHello { gid: 9, ..strange };
        assert!(told(&[strange], &[other]).starts_with("; libfabric: 1 of the peer have another"));
    }

    /// The second queue pair of a port that is faster, or in a smaller subnet, came before all
    /// others, which had no rail where there were not enough for both.
    #[test]
    fn second_queue_pairs_of_a_fast_port_leave_a_slower_port_its_rail() {
        let lanes_of = |speeds: &[u32], bits: &[u8], queue_pairs: u16| {
            let side = |last: u8| -> Vec<PortHello> {
                let ports = speeds.iter().zip(bits).enumerate().map(|(net, (speed, bits))| {
                    let ip: IpAddr = format!("10.{net}.0.{last}").parse().unwrap();
                    let (gid, kind) = (Gid::from(ip), GidKind::RoceV2);
                    let end = RailEnd { gid, kind, prefix_bits: *bits, speed_mbit_s: *speed };
                    Port {
                        device: format!("d{net}"),
                        number: 1,
                        gid_index: 0,
                        end,
                        elsewhere: None,
                    }
                });
                with_queue_pairs(ports.collect(), queue_pairs).iter().map(hello_of).collect()
            };
            let (ours, theirs) = (side(1), side(2));
            let mut places = [9; PORTS_MAX];
            pair_ports(&ours, &theirs, false, &mut places);
            places[..3].iter().map(|at| ours[usize::from(*at)].gid.to_le_bytes()[13]).collect()
        };
        let lanes: [Vec<u8>; 4] = [
            lanes_of(&[100, 100, 100], &[24, 24, 24], 2),
            lanes_of(&[100, 200, 400], &[24, 24, 24], 2),
            lanes_of(&[100, 100, 100], &[26, 25, 24], 2),
            lanes_of(&[400, 100], &[24, 24], 3),
        ];
        assert_eq!(
            lanes,
            [std::vec![0, 1, 2], std::vec![2, 1, 0], std::vec![0, 1, 2], std::vec![0, 1, 0]]
        );
    }
}
