//! What `crosstie info` says of RDMA devices: their ports, by which GID each would be used, and why
//! one would not.
#![forbid(unsafe_code)]

extern crate std;

use super::info::{Line, Section, line};
use crate::connect::interfaces::all_addresses;
use crate::host::settings::environment;
use crate::provider::verbs::choice::usable;
use crate::provider::verbs::gid::{LinkLayer, is_elsewhere};
use crate::provider::verbs::ports::{Device, Port, SYSFS, chip_ports, survey};
use crate::provider::verbs::rails::{HostAddress, RailEnd};
use crate::provider::verbs::settings::Settings;
use crate::provider::verbs::speed;
use core::net::IpAddr;
use std::format;
use std::fs::File;
use std::path::Path;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

/// What is done with usable ports.
const USE: &str = "hosts with usable ports in a common subnet are reached by them, with TCP as \
                   reserve (host0; rails_max of 2 or more, one for each port besides TCP)";
/// The same where a setting leaves them out.
const NO_USE: &str = "none: CROSSTIE_RAILS leaves out verbs; below is what would be used";

/// Where the files are by which programs use devices.
const FILES: &str = "/dev/infiniband";

/// Each device and each port of this host.
pub fn section() -> Section {
    let settings = environment();
    let used = if settings.rails.verbs { USE } else { NO_USE };
    let mut lines = vec![line("use", used)];
    match survey(Path::new(SYSFS)) {
        Ok(mut devices) => {
            speed::correct(&mut devices, &settings.verbs);
            lines.extend(described(&devices, &settings.verbs, &addresses()));
        }
        Err(error) => lines.push(line("devices", format!("cannot be listed: {error}"))),
    }
    Section { name: "rdma", lines }
}

fn addresses() -> Vec<HostAddress> {
    let all = all_addresses().unwrap_or_default();
    all.iter().map(|it| HostAddress { ip: it.ip, prefix_bits: it.prefix_bits }).collect()
}

fn described(devices: &[Device], settings: &Settings, addresses: &[HostAddress]) -> Vec<Line> {
    if devices.is_empty() {
        let text = "none (/sys/class/infiniband shows none: is there one, and its driver loaded?)";
        return vec![line("devices", text)];
    }
    let mut lines = Vec::new();
    let places = chip_ports(devices, settings.merge_vfs);
    for (device, place) in devices.iter().zip(places) {
        lines.push(line(&device.name, device_text(device, place)));
        lines.push(line(&format!("{} file", device.name), file_text(device)));
        for port in &device.ports {
            let name = format!("{}:{}", device.name, port.number);
            let gids: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            let gids = if gids.is_empty() { "none".into() } else { gids.join(", ") };
            lines.push(line(&name, port_text(device, port, settings, addresses)));
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
fn file_text(device: &Device) -> String {
    let Some(file) = &device.file else {
        return "none: the kernel lets no program use it (is ib_uverbs loaded?)".into();
    };
    let path = Path::new(FILES).join(file);
    match File::options().read(true).write(true).open(&path) {
        Ok(_) => format!("{} opens", path.display()),
        Err(error) => format!("{} does not open: {error}", path.display()),
    }
}

fn port_text(
    device: &Device,
    port: &Port,
    settings: &Settings,
    addresses: &[HostAddress],
) -> String {
    let here: Vec<IpAddr> = addresses.iter().map(|address| address.ip).collect();
    let verdict = match usable(device, port, settings, &here) {
        Ok(gid) => {
            let bits = RailEnd::new(port, gid, addresses).prefix_bits;
            let elsewhere = match is_elsewhere(gid, port.layer, &here) {
                true => ", which is no address of this network namespace",
                false => "",
            };
            format!("usable by {gid}, subnet of {bits} bits{elsewhere}")
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
    format!("{verdict}; {}, {layer}, {speed}", port.state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::verbs::choice::HcaChoice;
    use crate::provider::verbs::gid::{Gid, GidEntry, GidKind};
    use crate::provider::verbs::ports::{NodeType, PortState};

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

    /// What is said under a name.
    fn said(lines: &[Line], name: &str) -> String {
        lines.iter().find(|line| line.name == name).expect(name).text.clone()
    }

    #[test]
    fn ports_are_said_with_their_gid_or_why_they_are_not_usable() {
        let addresses = [HostAddress { ip: IpAddr::from([10, 0, 0, 1]), prefix_bits: 22 }];
        let lines = described(&[device()], &Settings::default(), &addresses);
        let of_device = said(&lines, "mlx5_0");
        for part in ["PCI /sys/devices/pci0000:3a/0000:3b:00.0", "NUMA node 1", "0c42:a103"] {
            assert!(of_device.contains(part), "{of_device}");
        }
        assert!(said(&lines, "mlx5_0 file").starts_with("none"));
        let used = said(&lines, "mlx5_0:1");
        assert!(used.contains("usable by GID 3 10.0.0.1 (RoCE v2, eth0), subnet of 22"), "{used}");
        assert!(used.contains("active, Ethernet, 100000 Mbit/s"), "{used}");
        assert!(!used.contains("namespace"), "{used}");
        let others = [HostAddress { ip: IpAddr::from([10, 0, 0, 2]), prefix_bits: 22 }];
        let elsewhere = said(&described(&[device()], &Settings::default(), &others), "mlx5_0:1");
        assert!(elsewhere.contains("no address of this network namespace; active"), "{elsewhere}");
        let down = said(&lines, "mlx5_0:2");
        assert!(down.contains("unusable: the port is down (the link: Polling)"), "{down}");
        assert!(said(&lines, "mlx5_0:2 GIDs").contains("GID 0 fe80::1 (RoCE v2, eth0), GID 3"));
    }

    #[test]
    fn file_that_does_not_open_is_said_with_the_reason() {
        let device = Device { file: Some("nobodys".into()), ..device() };
        let text = said(&described(&[device], &Settings::default(), &[]), "mlx5_0 file");
        assert!(text.starts_with("/dev/infiniband/nobodys does not open: "), "{text}");
    }

    #[test]
    fn nothing_is_said_as_such_and_a_name_that_matches_nothing_too() {
        let hca = HcaChoice::parse("mlx5_7").unwrap();
        let settings = Settings { hca, ..Settings::default() };
        let lines = described(&[device()], &settings, &[]);
        assert!(said(&lines, "not there").starts_with("mlx5_7"));
        assert!(said(&lines, "mlx5_0:1").contains("not among CROSSTIE_IB_HCA=mlx5_7"));
        assert!(said(&described(&[], &settings, &[]), "devices").starts_with("none"));
    }
}
