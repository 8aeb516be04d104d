//! What `crosstie info` says of RDMA devices: their ports, by which GID each would be used, and why
//! one would not.
#![forbid(unsafe_code)]

use super::network::Towards;
use super::opened;
use super::section::{Line, Section, line};
use core::net::IpAddr;
use crosstie::connect::interfaces::all_addresses;
use crosstie::host::plan::{Plan, PlannedRdma};
use crosstie::host::settings::{Environment, environment};
use crosstie::provider::verbs::choice::{Unusable, usable};
use crosstie::provider::verbs::companion::{CompanionError, QUEUE_PAIRS};
use crosstie::provider::verbs::gid::{GidEntry, GidKind, LinkLayer, is_elsewhere};
use crosstie::provider::verbs::mtu;
use crosstie::provider::verbs::ports::{Device, Port, SYSFS, chip_ports, survey};
use crosstie::provider::verbs::rails::{HostAddress, RailEnd};
use crosstie::provider::verbs::settings::Settings;
use crosstie::provider::verbs::speed;
use crosstie::provider::verbs::sys::{Device as Opened, FILES_FOLDER, Library, LoadError};
use crosstie::wire::pair::PORTS_MAX;
use std::fs::File;
use std::path::Path;

/// What a peer's ports are paired by, and when they are known.
const PAIRED: &str = "each with a port of the peer in the same subnet, up to rails_max (default 2, \
                      and tcp takes one); the peer's ports are known only when it is connected \
                      (`crosstie info --all` there has them at `rdma`)";

/// What is done with usable ports.
const USE: &str = "hosts with usable ports in a common subnet are reached by them, with TCP as \
                   backup (host0; rails_max of 2 or more, one for each port besides TCP)";
/// The same where a setting leaves them out.
const NO_USE: &str = "none: CROSSTIE_RAILS leaves out verbs; below is what would be used";

/// Why a port that works is left out.
const TOO_MANY: &str = "an endpoint uses seven ports, and there are seven before this one \
                        (CROSSTIE_IB_HCA chooses)";
const _: () = assert!(PORTS_MAX == 7);
/// The same for a reason that open has said.
const LEFT_OUT: &str = "an endpoint leaves it out (CROSSTIE_LOG=info says why when one opens)";

/// What a port does not do whose GID is an address of another network namespace: how long its
/// subnet is nobody here knows.
const ELSEWHERE: &str = "which is no address of this network namespace; it reaches only peers of \
                         this host, and other hosts are reached over TCP";

/// Each device and each port of this host.
///
/// `plan`: what an endpoint uses; none: none opens.
pub fn section(plan: Option<&Plan>) -> Section {
    let settings = environment();
    // what another setting leaves out is said as it would be used
    let plan = plan.filter(|plan| settings.rails.verbs && plan.rails.tcp);
    let used = if settings.rails.verbs { USE } else { NO_USE };
    let library = Library::load();
    let mut lines = vec![line("use", used), line("library", library_text(&library))];
    match survey(Path::new(SYSFS)) {
        Ok(mut devices) => {
            speed::correct(&mut devices, &settings.verbs);
            if let Ok(library) = &library {
                mtu::ask(library, &mut devices);
            }
            let barrier = |device: &Device| barrier(&library, device);
            lines.extend(described(&devices, &settings.verbs, &addresses(), &barrier, plan));
        }
        Err(error) => lines.push(line("devices", format!("cannot be listed: {error}"))),
    }
    if plan.is_some_and(|plan| !plan.rdma().is_empty()) {
        lines.extend(companion_lines(&opened::companions()));
    }
    Section { name: "rdma", lines }
}

/// The queue pairs for NIC counters that ports have where an endpoint asks for them.
fn companion_lines(ports: &[(String, Result<(), CompanionError>)]) -> Vec<Line> {
    let able = ports.iter().filter(|(_, able)| able.is_ok()).count();
    let all = format!(
        "{} queue pairs on {able} of {} ports, in an endpoint that asks for NIC counters \
         (XTIE_ENDPOINT_COMPANIONS); others have none",
        QUEUE_PAIRS * able,
        ports.len()
    );
    let refused = ports.iter().filter_map(|(name, able)| {
        let why = able.err()?;
        Some(line(&format!("{name} companion"), format!("none: {why}")))
    });
    let mut lines = vec![line("companions", all)];
    lines.extend(refused);
    lines
}

/// Which ports of an endpoint would be rails to a peer, or why none. The peer tells its own when it
/// is connected to, and not before.
pub(super) fn towards(settings: &Environment, plan: Option<&Plan>, peer: &Towards) -> String {
    if let Some(why) = peer.none_beside_tcp(settings.rails, settings.rails.verbs) {
        return why.into();
    }
    if !settings.rails.verbs {
        return "none: CROSSTIE_RAILS leaves out verbs".into();
    }
    ports_towards(&plan.map(Plan::rdma).unwrap_or_default(), peer)
}

fn ports_towards(ports: &[&PlannedRdma], peer: &Towards) -> String {
    let (mut names, mut elsewhere) = (Vec::new(), Vec::new());
    for PlannedRdma { name, end, elsewhere: gid } in ports {
        if let (false, Some(gid)) = (peer.own, gid) {
            elsewhere.push(format!("{name} is used by {gid}, {ELSEWHERE}"));
            continue;
        }
        let subnet = match end.kind {
            GidKind::InfiniBand => format!("InfiniBand subnet of {}", end.gid),
            GidKind::RoceV1 | GidKind::RoceV2 => {
                let (ip, bits) = (end.gid.ip(), end.prefix_bits);
                format!("subnet {ip}/{bits}{}", peer.in_subnet(ip, bits))
            }
        };
        names.push(format!("{name} ({subnet})"));
    }
    match (names.is_empty(), elsewhere.is_empty()) {
        (true, true) => {
            "none: this host has no usable port (`crosstie info --all` says why at `rdma`)".into()
        }
        (true, false) => format!("none: {}", elsewhere.join("; ")),
        (false, true) => format!("{}, {PAIRED}", names.join(", ")),
        (false, false) => format!("{}, {PAIRED}; {}", names.join(", "), elsewhere.join("; ")),
    }
}

fn addresses() -> Vec<HostAddress> {
    let all = all_addresses().unwrap_or_default();
    all.iter().map(|it| HostAddress { ip: it.ip, prefix_bits: it.prefix_bits }).collect()
}

/// `/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0 (rdma-core 34 to 61)`.
fn library_text(library: &Result<Library, LoadError>) -> String {
    match library {
        Ok(library) => match library.file() {
            Some(file) => format!("{} ({})", file.display(), library.age()),
            None => format!("libibverbs.so.1 ({})", library.age()),
        },
        Err(error) => error.to_string(),
    }
}

/// What keeps this program from a device, tried.
fn barrier(library: &Result<Library, LoadError>, device: &Device) -> Option<String> {
    let library = match library {
        Ok(library) => *library,
        Err(_) => return Some("libibverbs cannot be used (`library` says why)".into()),
    };
    let error = Opened::open(library, &device.name).err()?;
    Some(match file_text(device) {
        Ok(_) => format!("libibverbs does not open it: {error}"),
        Err(why) => format!("device file: {why}"),
    })
}

/// `barrier` says what keeps this program from a device. `plan`: what an endpoint uses.
fn described(
    devices: &[Device],
    settings: &Settings,
    addresses: &[HostAddress],
    barrier: &dyn Fn(&Device) -> Option<String>,
    plan: Option<&Plan>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    if devices.is_empty() {
        let text = "none (/sys/class/infiniband shows none: is there one, and its driver loaded?)";
        lines.push(line("devices", text));
    }
    let places = chip_ports(devices, settings.merge_vfs);
    let here: Vec<IpAddr> = addresses.iter().map(|address| address.ip).collect();
    let used = plan.map(Plan::rdma);
    let left_out = plan.map(|plan| if plan.ports.len() < PORTS_MAX { LEFT_OUT } else { TOO_MANY });
    for (device, place) in devices.iter().zip(places) {
        lines.push(line(&device.name, device_text(device, place)));
        let file = file_text(device).unwrap_or_else(|why| why);
        lines.push(line(&format!("{} file", device.name), file));
        let verdicts = device.ports.iter().map(|port| usable(device, port, settings, &here));
        let verdicts: Vec<_> = verdicts.collect();
        let is_used = |name: &str| used.iter().flatten().any(|port| port.name == name);
        let name_of = |port: &Port| format!("{}:{}", device.name, port.number);
        let is_tried = device
            .ports
            .iter()
            .zip(&verdicts)
            .any(|(port, verdict)| verdict.is_ok() && !is_used(&name_of(port)));
        let barrier = if is_tried { barrier(device) } else { None };
        for (port, verdict) in device.ports.iter().zip(verdicts) {
            let name = name_of(port);
            let gids: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            let gids = if gids.is_empty() { "none".into() } else { gids.join(", ") };
            let barrier = barrier.as_deref().or(left_out).filter(|_| !is_used(&name));
            lines.push(line(&name, port_text(port, verdict, barrier, addresses, &here)));
            lines.push(line(&format!("{name} GIDs"), gids));
        }
    }
    let missing = settings.hca.unmatched(devices);
    if !missing.is_empty() {
        let text = format!("{} (CROSSTIE_IB_HCA asks for it)", missing.join(", "));
        lines.push(line("not there", text));
    }
    lines
}

fn device_text(device: &Device, place: u32) -> String {
    let pci = match &device.pci {
        Some(pci) => format!("PCI {}, port {} of its card", pci.display(), place + 1),
        None => "no PCI device".into(),
    };
    let numa = match device.numa {
        Some(node) => format!("NUMA node {node}"),
        None => "NUMA node not known".into(),
    };
    let of = match &device.physical {
        Some(physical) => format!(", virtual function of {}", physical.display()),
        None => String::new(),
    };
    format!("{}, {pci}{of}, {numa}, GUID {}", device.node, device.guid)
}

/// Whether this user may use the device, tried.
fn file_text(device: &Device) -> Result<String, String> {
    let Some(file) = &device.file else {
        return Err("none: the kernel lets no program use it (is ib_uverbs loaded?)".into());
    };
    let path = Path::new(FILES_FOLDER).join(file);
    match File::options().read(true).write(true).open(&path) {
        Ok(_) => Ok(format!("{} opens", path.display())),
        Err(error) => Err(format!("{} does not open: {error}", path.display())),
    }
}

/// `barrier`: what keeps it from use although it works.
fn port_text(
    port: &Port,
    usable: Result<&GidEntry, Unusable>,
    barrier: Option<&str>,
    addresses: &[HostAddress],
    here: &[IpAddr],
) -> String {
    let verdict = match usable {
        Ok(gid) => {
            let bits = RailEnd::new(port, gid, addresses).prefix_bits;
            let by = match is_elsewhere(gid, port.layer, here) {
                true => format!("by {gid}, {ELSEWHERE}"),
                false => format!("by {gid}, subnet of {bits} bits"),
            };
            match barrier {
                None => format!("usable {by}"),
                Some(barrier) => format!("unusable: {barrier}; it would be used {by}"),
            }
        }
        Err(why) => format!("unusable: {why}"),
    };
    let layer = match port.layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Other => "another link layer",
    };
    let speed = match port.speed_mbit_s {
        0 => "speed not known".into(),
        speed => format!("{speed} Mbit/s"),
    };
    let mtu = match port.mtu_bytes {
        0 => String::new(),
        bytes => format!(", MTU {bytes}"),
    };
    format!("{verdict}; {}, {layer}, {speed}{mtu}", port.state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosstie::host::device::Rails;
    use crosstie::host::plan::PlannedPort;
    use crosstie::provider::verbs::choice::HcaChoice;
    use crosstie::provider::verbs::gid::{Gid, GidEntry};
    use crosstie::provider::verbs::ports::{NodeType, PortState};

    fn port(number: u8, state: PortState) -> Port {
        let entry = |index, ip: &str| GidEntry {
            index,
            gid: Gid::from(ip.parse::<IpAddr>().unwrap()),
            kind: GidKind::RoceV2,
            interface: Some("eth0".into()),
        };
        Port {
            number,
            state,
            physical: "Polling".into(),
            layer: LinkLayer::Ethernet,
            speed_mbit_s: 100_000,
            gids: vec![entry(0, "fe80::1"), entry(3, "10.0.0.1")],
            pkeys: 1,
            mtu_bytes: 1024,
        }
    }

    fn device() -> Device {
        Device {
            name: "mlx5_0".into(),
            node: NodeType::ChannelAdapter,
            guid: "0c42:a103:0064:2b1c".into(),
            pci: Some("/sys/devices/pci0000:3a/0000:3b:00.0".into()),
            physical: None,
            numa: Some(1),
            file: None,
            ports: vec![port(1, PortState::Active), port(2, PortState::Down)],
        }
    }

    fn planned(prefix_bits: u8, elsewhere: Option<String>) -> PlannedRdma {
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        let end = RailEnd { gid, kind: GidKind::RoceV2, prefix_bits, speed_mbit_s: 0 };
        PlannedRdma { name: "mlx5_0:1".into(), end, elsewhere }
    }

    /// As if every device opened.
    fn described_open(
        devices: &[Device],
        settings: &Settings,
        addresses: &[HostAddress],
    ) -> Vec<Line> {
        described(devices, settings, addresses, &|_| None, None)
    }

    /// What is said under a name.
    fn said(lines: &[Line], name: &str) -> String {
        lines.iter().find(|line| line.name == name).expect(name).text.clone()
    }

    #[test]
    fn ports_are_said_with_their_gid_or_why_they_are_not_usable() {
        let addresses = [HostAddress { ip: IpAddr::from([10, 0, 0, 1]), prefix_bits: 22 }];
        let lines = described_open(&[device()], &Settings::default(), &addresses);
        let of_device = said(&lines, "mlx5_0");
        for part in ["PCI /sys/devices/pci0000:3a/0000:3b:00.0", "NUMA node 1", "0c42:a103"] {
            assert!(of_device.contains(part), "{of_device}");
        }
        assert!(said(&lines, "mlx5_0 file").starts_with("none"));
        let used = said(&lines, "mlx5_0:1");
        assert!(used.contains("usable by GID 3 10.0.0.1 (RoCE v2, eth0), subnet of 22"), "{used}");
        assert!(used.ends_with("active, Ethernet, 100000 Mbit/s, MTU 1024"), "{used}");
        assert!(!used.contains("namespace"), "{used}");
        let others = [HostAddress { ip: IpAddr::from([10, 0, 0, 2]), prefix_bits: 22 }];
        let elsewhere =
            said(&described_open(&[device()], &Settings::default(), &others), "mlx5_0:1");
        let wanted = "GID 3 10.0.0.1 (RoCE v2, eth0), which is no address of this network \
                      namespace; it reaches only peers of this host, and other hosts are reached \
                      over TCP; active";
        assert!(elsewhere.contains(wanted), "{elsewhere}");
        let down = said(&lines, "mlx5_0:2");
        assert!(down.contains("unusable: the port is down (the link: Polling)"), "{down}");
        assert!(said(&lines, "mlx5_0:2 GIDs").contains("GID 0 fe80::1 (RoCE v2, eth0), GID 3"));
    }

    #[test]
    fn ports_towards_a_peer_say_which_of_its_addresses_they_share_a_subnet_with() {
        let port = planned(22, None);
        let text = |peer: [u8; 4], opens: bool| {
            let peer = Towards { ips: &[IpAddr::from(peer)], own: false, tcp: true };
            let ports = [&port];
            ports_towards(&ports[..usize::from(opens)], &peer)
        };
        let near = text([10, 0, 3, 7], true);
        assert!(near.starts_with("mlx5_0:1 (subnet 10.0.0.1/22, in which 10.0.3.7 is), each"));
        let far = text([10, 0, 4, 7], true);
        assert!(far.contains("10.0.0.1/22, in which none of these addresses is)"), "{far}");
        assert!(!far.contains("mlx5_0:2"), "a port that is down: {far}");
        assert!(text([10, 0, 3, 7], false).starts_with("none: this host has no usable port"));
    }

    /// It was said to be a rail to other hosts.
    #[test]
    fn port_of_another_network_namespace_leads_to_no_other_host() {
        let port = planned(32, Some("GID 3 10.0.0.1 (RoCE v2, eth0)".into()));
        let text = |own| {
            let peer = Towards { ips: &[IpAddr::from([10, 0, 0, 7])], own, tcp: true };
            ports_towards(&[&port], &peer)
        };
        let other = text(false);
        let wanted =
            "none: mlx5_0:1 is used by GID 3 10.0.0.1 (RoCE v2, eth0), which is no address";
        assert!(other.starts_with(wanted), "{other}");
        assert!(text(true).starts_with("mlx5_0:1 (subnet 10.0.0.1/32"));
    }

    #[test]
    fn ports_towards_an_own_or_unreachable_peer_are_none() {
        let rails = Rails { verbs: true, shm: true, ..Environment::default().rails };
        let settings = |rails| Environment { rails, ..Environment::default() };
        let none_of = |rails, own, tcp| {
            let text = towards(&settings(rails), None, &Towards { ips: &[], own, tcp });
            text.strip_prefix("none: ").expect(&text).to_string()
        };
        assert!(none_of(rails, true, true).contains("shm is allowed"));
        assert!(none_of(rails, false, false).contains("leads nowhere"));
        let without = Rails { verbs: false, ..rails };
        assert!(none_of(without, false, true).contains("leaves out verbs"));
    }

    #[test]
    fn file_that_does_not_open_is_said_with_the_reason() {
        let device = Device { file: Some("nobodys".into()), ..device() };
        let text = said(&described_open(&[device], &Settings::default(), &[]), "mlx5_0 file");
        assert!(text.starts_with("/dev/infiniband/nobodys does not open: "), "{text}");
    }

    #[test]
    fn port_of_a_device_that_does_not_open_is_not_usable() {
        let lines =
            described(&[device()], &Settings::default(), &[], &|_| Some("no library".into()), None);
        let text = said(&lines, "mlx5_0:1");
        let wanted = "unusable: no library; it would be used by GID 3 10.0.0.1";
        assert!(text.starts_with(wanted), "{text}");
        let down = said(&lines, "mlx5_0:2");
        assert!(down.starts_with("unusable: the port is down"), "{down}");
    }

    #[test]
    fn ports_beyond_those_that_an_endpoint_uses_are_said_to_be_left_out() {
        let cards: Vec<Device> =
            (0..9).map(|n| Device { name: format!("mlx5_{n}"), ..device() }).collect();
        let barrier = |it: &Device| (it.name == "mlx5_2").then(|| "it is broken".into());
        let used = [0, 1, 3, 4, 5, 6, 7].map(|n| {
            PlannedPort::Verbs(PlannedRdma { name: format!("mlx5_{n}:1"), ..planned(24, None) })
        });
        let mut plan = Plan { rails: Rails::ALL, ports: used.into() };
        let lines = described(&cards, &Settings::default(), &[], &barrier, Some(&plan));
        for n in 0..9 {
            let text = said(&lines, &format!("mlx5_{n}:1"));
            let wanted = match n {
                2 => "unusable: it is broken; ",
                8 => "unusable: an endpoint uses seven ports, and there are seven before this one ",
                _ => "usable by GID 3 ",
            };
            assert!(text.starts_with(wanted), "mlx5_{n}: {text}");
        }
        plan.ports.pop();
        let lines = described(&cards, &Settings::default(), &[], &barrier, Some(&plan));
        assert!(said(&lines, "mlx5_7:1").starts_with("unusable: an endpoint leaves it out"));
    }

    #[test]
    fn companions_are_counted_and_a_port_without_one_says_why() {
        let name = |port: &str| String::from(port);
        let ports = [
            (name("mlx5_0:1"), Ok(())),
            (name("mlx5_1:1"), Err(CompanionError::Atomics)),
            (name("mlx5_2:1"), Ok(())),
        ];
        let lines = companion_lines(&ports);
        let all = said(&lines, "companions");
        assert!(all.starts_with("4 queue pairs on 2 of 3 ports"), "{all}");
        let none = said(&lines, "mlx5_1:1 companion");
        assert_eq!(none, "none: the device has no atomics");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn nothing_is_said_as_such_and_a_name_that_matches_nothing_too() {
        let hca = HcaChoice::parse("mlx5_7").unwrap();
        let settings = Settings { hca, ..Settings::default() };
        let lines = described_open(&[device()], &settings, &[]);
        assert!(said(&lines, "not there").starts_with("mlx5_7"));
        assert!(said(&lines, "mlx5_0:1").contains("not among CROSSTIE_IB_HCA=mlx5_7"));
        assert!(said(&described_open(&[], &settings, &[]), "devices").starts_with("none"));
    }
}
