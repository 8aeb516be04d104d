use super::*;
use crosstie::connect::interfaces::{AddressFamily, InterfaceName};
use crosstie::host::settings::Environment;
use crosstie::provider::verbs::choice::HcaChoice;
use crosstie::provider::verbs::gid::{Gid, GidKind, LinkLayer};
use crosstie::provider::verbs::ports::{NodeType, Port, PortState};
use std::net::IpAddr;

const ANY: Reach = Reach { family: AddressFamily::Any, chosen: None, named: true, choice: "" };

fn port(number: u8, state: PortState, ip: [u8; 4]) -> Port {
    let gid = Gid::from(IpAddr::from(ip));
    Port {
        number,
        state,
        physical: "LinkUp".into(),
        layer: LinkLayer::Ethernet,
        speed_mbit_s: 100_000,
        gids: vec![GidEntry { index: 0, gid, kind: GidKind::RoceV2, interface: None }],
        mtu_bytes: 0,
        pkeys: 1,
    }
}

fn device(name: &str, function: &str, ports: Vec<Port>) -> ports::Device {
    ports::Device {
        name: name.into(),
        node: NodeType::ChannelAdapter,
        guid: String::new(),
        pci: Some(Path::new("/sys/devices/pci0").join(function)),
        physical: None,
        numa: None,
        file: None,
        ports,
    }
}

fn active(number: u8, ip: [u8; 4]) -> Port {
    port(number, PortState::Active, ip)
}

fn address(name: &str, ip: [u8; 4]) -> InterfaceAddress {
    InterfaceAddress::new(InterfaceName::new(name.as_bytes()), ip.into(), 24)
}

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.to_str().unwrap()).collect()
}

/// Two functions of one card, a card with two ports on one, and one that is down.
fn cards() -> Vec<ports::Device> {
    vec![
        device("mlx5_0", "0000:3b:00.0", vec![active(1, [10, 0, 0, 1])]),
        device("mlx5_1", "0000:3b:00.1", vec![active(1, [10, 0, 1, 1])]),
        device("mlx4_0", "0000:5e:00.0", vec![active(1, [10, 0, 2, 1]), active(2, [10, 0, 3, 1])]),
        device("mlx5_2", "0000:86:00.0", vec![port(1, PortState::Down, [10, 0, 4, 1])]),
    ]
}

fn of(found: &[ports::Device], settings: &Settings, reach: &Reach) -> (Vec<Device>, Vec<String>) {
    let addresses = [address("ens1", [10, 0, 0, 1]), address("ens2", [10, 0, 1, 1])];
    let host = Host { sysfs: Path::new("/nowhere"), found, addresses: &addresses };
    host.devices(settings, reach, |_| Ok(GpuWay::None))
}

#[test]
fn ports_that_work_are_devices_as_nccl_names_and_counts_them() {
    let (devices, reasons) = of(&cards(), &Settings::default(), &ANY);
    assert_eq!(names(&devices), ["mlx5_0", "mlx5_1", "mlx4_0:1", "mlx4_0:2"]);
    let numbers: Vec<i32> = devices.iter().map(|device| device.port).collect();
    assert_eq!(numbers, [1, 2, 1, 2]);
    assert_eq!(devices[0].guid, devices[1].guid, "one card");
    assert_ne!(devices[1].guid, devices[2].guid, "two cards");
    assert!(devices.iter().all(|device| device.speed_mbps == 100_000));
    assert_eq!(reasons, ["mlx5_2:1: the port is down (the link: LinkUp)"]);
}

#[test]
fn reserve_is_the_interface_of_the_gid_unless_others_are_chosen() {
    let reserve = |devices: &[Device]| -> Vec<String> {
        let text = |device: &Device| device.kind.rails_text(&Environment::default());
        let by = |text: String| text.split("with TCP over ").nth(1).unwrap().to_string();
        devices.iter().map(text).map(by).collect()
    };
    let (devices, _) = of(&cards(), &Settings::default(), &ANY);
    let usual = "the usual interfaces";
    assert_eq!(reserve(&devices), ["ens1", "ens2", usual, usual]);
    let chosen = Some(Interfaces::one(InterfaceName::new(b"eth0")));
    let (devices, _) = of(&cards(), &Settings::default(), &Reach { chosen, ..ANY });
    assert_eq!(reserve(&devices), ["eth0"; 4]);
    let left = Interfaces::one(InterfaceName::new(b"ens1"));
    let left = left.with(&Interfaces::one(InterfaceName::new(b"eth0")));
    let (devices, _) =
        of(&cards(), &Settings::default(), &Reach { chosen: left, named: false, ..ANY });
    let both = "ens1 and eth0";
    assert_eq!(reserve(&devices), ["ens1", both, both, both], "ens2 is left out");
    let six = Reach { family: AddressFamily::V6, ..ANY };
    let (devices, _) = of(&cards(), &Settings::default(), &six);
    assert_eq!(reserve(&devices), [usual; 4], "the interface has no such address");
}

#[test]
fn ports_are_chosen_by_the_variables_and_said_where_they_cannot_be_used() {
    let hca = HcaChoice::parse("=mlx5_1,mlx5_2").unwrap();
    let chosen = Settings { hca, ..Settings::default() };
    let (devices, reasons) = of(&cards(), &chosen, &ANY);
    assert_eq!(names(&devices), ["mlx5_1"]);
    assert_eq!(reasons.len(), 1, "those that nobody asked for are no complaint: {reasons:?}");
    let cards = cards();
    let host = Host { sysfs: Path::new("/nowhere"), found: &cards, addresses: &[] };
    let (devices, reasons) = host.devices(&Settings::default(), &ANY, |_| Err(Box::new("no")));
    assert!(devices.is_empty());
    assert_eq!(reasons[..3], ["mlx5_0: no", "mlx5_1: no", "mlx4_0: no"]);
}

/// It said that there is none, and called NCCL's variables by our names.
#[test]
fn choice_of_no_port_is_said_by_the_name_that_it_was_set_by() {
    let read_of = |set: &str, value: &str| {
        let value = |name: &str| (name == set).then(|| value.to_string());
        read(value, Names::WithNccl).0
    };
    let text = |settings: &Settings, reasons: &[String]| none_text(settings, reasons, "then");
    let theirs = read_of("NCCL_IB_HCA", "mlx7");
    let found: Vec<_> = cards();
    let (_, reasons) = of(&found, &theirs, &ANY);
    let said = text(&theirs, &reasons);
    assert_eq!(said, "no RDMA port can be used, then (there is none that NCCL_IB_HCA=mlx7 allows)");
    let ours = text(&read_of("CROSSTIE_IB_HCA", "mlx7"), &[]);
    assert!(ours.contains("CROSSTIE_IB_HCA=mlx7"), "{ours}");
    let by_default = text(&Settings::default(), &[]);
    assert!(by_default.ends_with("(there is none)"), "{by_default}");
    let (_, reasons) = of(&found, &read_of("NCCL_IB_PKEY", "7"), &ANY);
    let said = text(&read_of("NCCL_IB_PKEY", "7"), &reasons);
    assert!(said.contains(": NCCL_IB_PKEY=7: its partition keys"), "{said}");
}

/// Without descriptors, say, there was none, and nobody was told.
#[test]
fn devices_that_cannot_be_listed_are_not_taken_for_none() {
    let sysfs = std::env::temp_dir().join(format!("xtie-unlisted-{}", std::process::id()));
    std::fs::create_dir_all(sysfs.join("class")).unwrap();
    assert_eq!(listed(&sysfs, &Settings::default()).map(|found| found.len()), Ok(0));
    std::fs::write(sysfs.join("class/infiniband"), []).unwrap();
    let why = listed(&sysfs, &Settings::default()).expect_err("a file is no list");
    std::fs::remove_dir_all(&sysfs).unwrap();
    assert!(why.starts_with("RDMA devices cannot be listed: Not a directory"), "{why}");
}

#[test]
fn rails_and_planes_that_the_user_names_are_told_as_nccl_tells_them() {
    let hca = HcaChoice::parse("mlx5_0:1:3:1,mlx5_1:1:3:2,mlx4_0:1:5").unwrap();
    let chosen = Settings { hca, ..Settings::default() };
    let devices: Vec<&'static Device> = of(&cards(), &chosen, &ANY)
        .0
        .into_iter()
        .map(|device| &*Box::leak(device.into()))
        .collect();
    let said = |device: &Device| (device.cabling.rail, device.cabling.plane);
    let all: Vec<_> = devices.iter().map(|device| said(device)).collect();
    assert_eq!(all, [(Some(3), Some(1)), (Some(3), Some(2)), (Some(5), None)]);
    assert_eq!(devices[0].cabling_text(), ", NCCL's rail 3, NCCL's plane 1");
    let fused = |numbers: &[i32]| {
        let members: Vec<_> = numbers.iter().map(|at| devices[*at as usize]).collect();
        said(&device::fused(device::Members::of(numbers).unwrap(), &members, &devices).unwrap())
    };
    // planes by their places: none, 1, 2
    assert_eq!(fused(&[0, 1]), (Some(3), Some(1 << 14 | 0b110)));
    assert_eq!(fused(&[2, 1]), (None, Some(1 << 14 | 0b101)));
    assert_eq!(fused(&[1]), (Some(3), Some(2)));
    let devices: Vec<&'static Device> = of(&cards(), &Settings::default(), &ANY)
        .0
        .into_iter()
        .map(|device| &*Box::leak(device.into()))
        .collect();
    let both = device::fused(device::Members::of(&[0, 1]).unwrap(), &devices[..2], &devices);
    assert_eq!(said(&both.unwrap()), (None, None));
}

#[test]
fn ports_that_the_rails_leave_out_are_said() {
    let text = left_out(&cards()[..2], &Settings::default()).unwrap();
    assert!(text.starts_with("RDMA ports mlx5_0:1, mlx5_1:1 work and are not used: "), "{text}");
    assert_eq!(left_out(&cards()[3..], &Settings::default()), None);
}

#[test]
fn guid_is_that_of_the_card() {
    let sysfs = std::env::temp_dir().join(format!("xtie-plugin-guid-{}", std::process::id()));
    let folder = sysfs.join("class/infiniband");
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("sys_image_guid"), text).unwrap();
    };
    write("mlx5_0", "0c42:a103:0064:2b1c\n");
    write("mlx5_1", "0000:0000:0000:0000\n");
    let host = Host { sysfs: &sysfs, found: &[], addresses: &[] };
    assert_eq!(host.guid("mlx5_0"), Some(0x0c42_a103_0064_2b1c));
    assert_eq!((host.guid("mlx5_1"), host.guid("mlx5_2")), (None, None));
    std::fs::remove_dir_all(&sysfs).unwrap();
}

#[test]
fn pci_function_is_the_cards_first_where_it_is_there() {
    let folder = std::env::temp_dir().join(format!("xtie-plugin-pci-{}", std::process::id()));
    let here = folder.join("0000:3b:00.1");
    std::fs::create_dir_all(&here).unwrap();
    let card = device("mlx5_1", "0000:3b:00.1", Vec::new());
    let card = ports::Device { pci: Some(here.clone()), ..card };
    assert_eq!(pci_path(&card, true), Some(here));
    std::fs::create_dir_all(folder.join("0000:3b:00.0")).unwrap();
    assert_eq!(pci_path(&card, true), Some(folder.join("0000:3b:00.0")));
    std::fs::remove_dir_all(&folder).unwrap();
}
