//! RDMA ports: chosen by our variables and NCCL's, and said in the log, because this version does
//! not use them.
#![forbid(unsafe_code)]

use super::log;
use crosstie::provider::verbs::choice::usable;
use crosstie::provider::verbs::ports::{Device, SYSFS, survey};
use crosstie::provider::verbs::settings::{Names, Settings, read};
use std::path::Path;

/// Says which ports could be used, and what is wrong with NCCL's variables; with ours, the library
/// does.
pub fn report() {
    let (settings, complaints) = read(|name| std::env::var(name).ok(), Names::WithNccl);
    for complaint in complaints.iter().filter(|it| it.name.starts_with("NCCL_")) {
        log::warn(&complaint.to_string());
    }
    let devices = survey(Path::new(SYSFS)).unwrap_or_default();
    if let Some(text) = unused(&devices, &settings) {
        log::info(&text);
    }
}

/// The ports that work, in a sentence; `None`: there are none.
fn unused(devices: &[Device], settings: &Settings) -> Option<String> {
    let mut ports = Vec::new();
    for device in devices {
        let working = device.ports.iter().filter(|port| usable(device, port, settings).is_ok());
        ports.extend(working.map(|port| format!("{}:{}", device.name, port.number)));
    }
    let names = ports.join(", ");
    let why = "this version reaches other hosts over TCP";
    (!ports.is_empty()).then(|| format!("RDMA ports {names} work and are not used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosstie::provider::verbs::choice::HcaChoice;
    use crosstie::provider::verbs::gid::{Gid, GidEntry, GidKind, LinkLayer};
    use crosstie::provider::verbs::ports::{NodeType, Port, PortState};

    fn device(name: &str, state: PortState) -> Device {
        let gid = Gid::from(std::net::IpAddr::from([10, 0, 0, 1]));
        let gid = GidEntry { index: 0, gid, kind: GidKind::RoceV2, interface: None };
        let port = Port {
            number: 1,
            state,
            physical: "LinkUp".into(),
            layer: LinkLayer::Ethernet,
            speed_mbit_s: 100_000,
            gids: vec![gid],
            pkeys: 1,
        };
        Device {
            name: name.into(),
            node: NodeType::ChannelAdapter,
            guid: String::new(),
            pci: None,
            physical: None,
            numa: None,
            file: None,
            ports: vec![port],
        }
    }

    #[test]
    fn ports_that_work_and_are_chosen_are_said() {
        let of = |name| device(name, PortState::Active);
        let devices = [of("mlx5_0"), device("mlx5_1", PortState::Down), of("mlx5_2")];
        let text = unused(&devices, &Settings::default()).unwrap();
        assert!(text.contains("RDMA ports mlx5_0:1, mlx5_2:1 work"), "{text}");
        let none = HcaChoice::parse("=mlx5_1").unwrap();
        assert_eq!(unused(&devices, &Settings { hca: none, ..Settings::default() }), None);
        assert_eq!(unused(&[], &Settings::default()), None);
    }
}
