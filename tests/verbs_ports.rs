//! RDMA devices as they are read from sysfs: from trees made here, of hardware that few have, and,
//! where `XTIE_VM` says that this machine is the guest of `tests/vm`, from the kernel, compared
//! with what `ibv_devinfo` says.

use crosstie::connect::interfaces::all_addresses;
use crosstie::provider::verbs::choice::{HcaChoice, Unusable, usable};
use crosstie::provider::verbs::gid::{Family, Gid, GidEntry, GidKind, GidRule, LinkLayer, Range};
use crosstie::provider::verbs::ports::{
    Device, NodeType, PortState, SYSFS, chip_ports, survey, survey_of,
};
use crosstie::provider::verbs::rails::{HostAddress, Hosts, RailEnd, RailPair, pairs};
use crosstie::provider::verbs::settings::Settings;
use crosstie::provider::verbs::sys::{Device as Opened, FILES_FOLDER, Library};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, os};

// Trees made here.

/// A tree that looks like sysfs.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sysfs-{name}"));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("class/infiniband")).unwrap();
        Tree(root.canonicalize().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        os::unix::fs::symlink(self.0.join(to), path).unwrap();
    }

    /// A device of a PCI function, as the kernel links it.
    fn device(&self, name: &str, function: &str, node_type: &str) {
        let folder = format!("{function}/infiniband/{name}");
        self.write(&format!("{folder}/node_type"), node_type);
        self.write(&format!("{folder}/node_guid"), "0c42:a103:0064:2b1c");
        self.link(&format!("{folder}/device"), function);
        self.link(&format!("class/infiniband/{name}"), &folder);
    }

    /// A port of it, with the GIDs of its table: address, type and interface.
    fn port(&self, device: &str, number: u8, words: [&str; 4], gids: &[(&str, &str, &str)]) {
        let folder = format!("class/infiniband/{device}/ports/{number}");
        let names = ["state", "phys_state", "rate", "link_layer"];
        for (name, word) in names.iter().zip(words) {
            self.write(&format!("{folder}/{name}"), word);
        }
        self.write(&format!("{folder}/pkeys/0"), "0xffff");
        self.write(&format!("{folder}/pkeys/1"), "0x0000");
        for (index, (gid, kind, interface)) in gids.iter().enumerate() {
            self.write(&format!("{folder}/gids/{index}"), gid);
            // an entry that is not in use has neither
            if !kind.is_empty() {
                self.write(&format!("{folder}/gid_attrs/types/{index}"), kind);
            }
            if !interface.is_empty() {
                self.write(&format!("{folder}/gid_attrs/ndevs/{index}"), interface);
            }
        }
    }

    fn survey(&self) -> Vec<Device> {
        survey(&self.0).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ACTIVE: [&str; 4] = ["4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "Ethernet"];
const IB: [&str; 4] = ["4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "InfiniBand"];
const DOWN: [&str; 4] = ["1: DOWN", "3: Disabled", "40 Gb/sec (4X QDR)", "Ethernet"];
const LINK_LOCAL: &str = "fe80:0000:0000:0000:0e42:a1ff:fe64:2b1c";
const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
const ZERO: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
const ROCE: [(&str, &str, &str); 5] = [
    (LINK_LOCAL, "IB/RoCE v1", "eth0"),
    (LINK_LOCAL, "RoCE v2", "eth0"),
    (IPV4, "IB/RoCE v1", "eth0"),
    (IPV4, "RoCE v2", "eth0"),
    (ZERO, "", ""),
];

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn host_without_rdma_has_no_devices() {
    let tree = Tree::new("none");
    assert_eq!(tree.survey(), []);
    fs::remove_dir_all(tree.0.join("class")).unwrap();
    assert_eq!(tree.survey(), []);
}

/// What could not be read was left out: "no RDMA port can be used (there is none)" with devices
/// there, or "the port has no GID".
#[test]
fn what_cannot_be_read_for_want_of_files_does_not_pass_for_what_is_not_there() {
    if let Some(root) = std::env::var_os("XTIE_TREE") {
        let whole = survey(Path::new(&root)).expect("files");
        let mut held = Vec::from_iter(std::iter::from_fn(|| fs::File::open("/dev/null").ok()));
        let mut refused = 0;
        let read = loop {
            match survey(Path::new(&root)) {
                Ok(read) => break read,
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}"),
            }
            refused += 1;
            held.pop();
        };
        assert!(read == whole && refused >= 2, "{refused} refused, {read:?}");
        return println!("{refused} refused, then all was read");
    }
    let tree = Tree::new("files");
    tree.device("mlx5_0", "devices/pci0000:3a/0000:3b:00.0", "1: CA");
    tree.port("mlx5_0", 1, ACTIVE, &ROCE);
    let name = "what_cannot_be_read_for_want_of_files_does_not_pass_for_what_is_not_there";
    let program = std::env::current_exe().unwrap();
    let mut alone = Command::new(program);
    alone.args(["--exact", name, "--nocapture"]).env("XTIE_TREE", &tree.0);
    let done = alone.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("then all was read"), "{done:?}");
}

#[test]
fn everything_of_a_roce_port_is_read() {
    let tree = Tree::new("roce");
    let function = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    tree.device("mlx5_0", function, "1: CA");
    tree.write(&format!("{function}/numa_node"), "1");
    tree.port("mlx5_0", 1, ACTIVE, &ROCE);
    tree.write("class/infiniband_verbs/abi_version", "6");
    tree.write("class/infiniband_verbs/uverbs3/ibdev", "mlx5_0");
    tree.write("class/infiniband_verbs/uverbs4/ibdev", "mlx5_1");
    let devices = tree.survey();
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!((device.node, device.numa), (NodeType::ChannelAdapter, Some(1)));
    assert_eq!(device.guid, "0c42:a103:0064:2b1c");
    assert_eq!(device.pci, Some(tree.0.join(function)));
    assert_eq!(device.file.as_deref(), Some("uverbs3"));
    assert_eq!(device.physical, None);
    let [port] = device.ports.as_slice() else { panic!("{device:?}") };
    assert_eq!((port.number, port.state, port.layer), (1, PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.physical.as_str(), port.speed_mbit_s, port.pkeys), ("LinkUp", 100_000, 2));
    let kinds: Vec<_> = port.gids.iter().map(|it| (it.index, it.kind)).collect();
    let (v1, v2) = (GidKind::RoceV1, GidKind::RoceV2);
    assert_eq!(kinds, [(0, v1), (1, v2), (2, v1), (3, v2)]);
    assert_eq!(port.gids[3].interface.as_deref(), Some("eth0"));
    let gid = usable(device, port, &Settings::default(), &[]).unwrap();
    assert_eq!((gid.index, gid.gid.ip()), (3, IpAddr::from([10, 0, 0, 1])));
}

#[test]
fn gids_that_no_queue_pair_can_name_are_left_out() {
    let tree = Tree::new("many");
    tree.device("rxe0", "devices/virtual/infiniband0", "1: CA");
    tree.port("rxe0", 1, ACTIVE, &vec![(IPV4, "RoCE v2", "eth0"); 257]);
    let gids = &tree.survey()[0].ports[0].gids;
    assert_eq!((gids.len(), gids[255].index), (256, 255));
}

/// A table of GIDs has up to 256 entries, each of them a file: those of ports that are left out by
/// name are not opened.
#[test]
fn gids_of_ports_that_are_not_meant_are_not_read() {
    let tree = Tree::new("meant");
    tree.device("mlx5_0", "devices/pci0000:3a/0000:3b:00.0", "1: CA");
    tree.port("mlx5_0", 1, ACTIVE, &ROCE);
    tree.port("mlx5_0", 2, ACTIVE, &ROCE);
    let hca = HcaChoice::parse("=mlx5_0:2").unwrap();
    let settings = Settings { hca, ..Settings::default() };
    let found = survey_of(&tree.0, &|device, port| settings.means(device, port)).unwrap();
    let count = |at: usize| found[0].ports[at].gids.len();
    assert_eq!((count(0), count(1)), (0, 4));
    let usable = |at: usize| usable(&found[0], &found[0].ports[at], &settings, &[]);
    assert!(matches!(usable(0), Err(Unusable::NotChosen(_))));
    assert!(usable(1).is_ok());
    let none = Settings { disabled: true, ..settings };
    assert!(!none.means("mlx5_0", 2));
}

#[test]
fn devices_come_in_the_order_of_their_functions_and_soft_ones_last() {
    let tree = Tree::new("order");
    for (name, function) in [
        ("mlx5_0", "devices/pci0000:9a/0000:9b:00.0"),
        ("mlx5_10", "devices/pci0000:3a/0000:3b:00.1"),
        ("mlx5_9", "devices/pci0000:3a/0000:3b:00.0"),
        ("irdma0", "devices/pci10000:00/10000:01:00.0"),
        ("rxe10", "devices/virtual/infiniband0"),
        ("rxe9", "devices/virtual/infiniband1"),
    ] {
        tree.device(name, function, "1: CA");
    }
    let devices = tree.survey();
    assert_eq!(names(&devices), ["mlx5_9", "mlx5_10", "mlx5_0", "irdma0", "rxe9", "rxe10"]);
    assert_eq!(devices[4].pci, None);
    assert_eq!(devices[0].numa, None);
}

#[test]
fn functions_of_one_card_are_told_from_others() {
    let tree = Tree::new("chips");
    let card = "devices/pci0000:3a/0000:3b:00";
    for (name, function) in [
        ("mlx5_0", format!("{card}.0")),
        ("mlx5_1", format!("{card}.1")),
        // virtual functions: of the first, in another slot, and on another bus
        ("mlx5_2", format!("{card}.2")),
        ("mlx5_3", "devices/pci0000:3a/0000:3b:01.4".into()),
        ("mlx5_4", "devices/pci0000:3a/0000:3c:00.2".into()),
        ("mlx5_5", "devices/pci0000:3a/0000:3d:00.0".into()),
    ] {
        tree.device(name, &function, "1: CA");
        if ["mlx5_2", "mlx5_3", "mlx5_4"].contains(&name) {
            tree.link(&format!("{function}/physfn"), &format!("{card}.0"));
        }
    }
    let devices = tree.survey();
    assert_eq!(names(&devices), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"]);
    let is_virtual: Vec<bool> = devices.iter().map(|device| device.physical.is_some()).collect();
    assert_eq!(is_virtual, [false, false, true, true, true, false]);
    assert_eq!(chip_ports(&devices, true), [0, 1, 2, 3, 4, 0]);
    assert_eq!(chip_ports(&devices, false), [0, 1, 2, 0, 0, 0]);
    assert_eq!(devices[3].chip(true), Some(tree.0.join(format!("{card}.0"))));
}

#[test]
fn device_of_several_ports_and_what_is_wrong_with_each_port_is_read() {
    let tree = Tree::new("ports");
    tree.device("mlx4_0", "devices/pci0000:3a/0000:3b:00.0", "1: CA");
    tree.write("devices/pci0000:3a/0000:3b:00.0/numa_node", "-1");
    let far = "fec0:0000:0000:0007:0000:0000:0000:0002";
    tree.port("mlx4_0", 2, IB, &[(far, "IB/RoCE v1", ""), (far, "", "")]);
    tree.port("mlx4_0", 1, DOWN, &ROCE);
    tree.port("mlx4_0", 3, ACTIVE, &[(ZERO, "", "")]);
    tree.port("mlx4_0", 10, ["2: INIT", "5: LinkUp", "?", "InfiniBand"], &[]);
    tree.device("siw0", "devices/pci0000:3a/0000:3b:00.1", "4: RNIC");
    tree.port("siw0", 1, ACTIVE, &ROCE);
    tree.device("efa_0", "devices/pci0000:3a/0000:3c:00.0", "7: <unknown>");
    tree.port("efa_0", 1, ["4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "Unspecified"], &[]);
    let devices = tree.survey();
    let (mlx4, siw, efa) = (&devices[0], &devices[1], &devices[2]);
    assert_eq!(mlx4.numa, None, "-1 is no node");
    let settings = Settings::default();
    let why = |device: &Device, at: usize| {
        usable(device, &device.ports[at], &settings, &[]).map(|gid| gid.index)
    };
    let numbers: Vec<u8> = mlx4.ports.iter().map(|port| port.number).collect();
    assert_eq!(numbers, [1, 2, 3, 10]);
    let state = |state, link: &str, layer| Err(Unusable::State(state, link.into(), layer));
    assert_eq!(why(mlx4, 0), state(PortState::Down, "Disabled", LinkLayer::Ethernet));
    assert_eq!(why(mlx4, 1), Ok(0));
    let kinds: Vec<GidKind> = mlx4.ports[1].gids.iter().map(|gid| gid.kind).collect();
    assert_eq!(kinds, [GidKind::InfiniBand; 2]);
    assert!(matches!(why(mlx4, 2), Err(Unusable::Gid(_))));
    assert_eq!(why(mlx4, 3), state(PortState::Initialize, "LinkUp", LinkLayer::InfiniBand));
    assert_eq!(mlx4.ports[3].speed_mbit_s, 0);
    assert_eq!(why(siw, 0), Err(Unusable::Node(NodeType::Iwarp)));
    assert_eq!(why(efa, 0), Err(Unusable::Node(NodeType::Other(7))));
}

// The devices of the guest.

/// What `ip` may change while one test looks, no other sees.
static GUEST: Mutex<()> = Mutex::new(());
/// A guest may be busy; what does not come in this time does not come.
const WATCHDOG: Duration = Duration::from_secs(600);

/// The guest's devices for one test; `None`: this machine is none.
fn guest() -> Option<MutexGuard<'static, ()>> {
    if std::env::var_os("XTIE_VM").is_none() {
        println!("not in the guest of tests/vm: `make vm` runs this");
        return None;
    }
    Some(GUEST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// libibverbs says "errno 2, there is no such file".
#[test]
fn device_that_this_user_may_not_open_is_told_so() {
    let name = "rxe0";
    if std::env::var_os("XTIE_NOBODY").is_some() {
        let library = Library::load().expect("libibverbs");
        let Err(told) = Opened::open(library, name) else { panic!("it opens") };
        return println!("told: {told}");
    }
    let Some(_guard) = guest() else { return };
    let file = Path::new(FILES_FOLDER).join(device(name).file.expect("a file"));
    let before = fs::metadata(&file).unwrap().permissions();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut nobody = Command::new(std::env::current_exe().unwrap());
    nobody.args(["--exact", "device_that_this_user_may_not_open_is_told_so", "--nocapture"]);
    let done = nobody.env("XTIE_NOBODY", "1").uid(65534).gid(65534).output().unwrap();
    fs::set_permissions(&file, before).unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("told: errno 13"), "{done:?}");
}

fn devices() -> Vec<Device> {
    survey(Path::new(SYSFS)).unwrap()
}

fn device(name: &str) -> Device {
    devices().into_iter().find(|device| device.name == name).expect(name)
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect(program);
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asks again until there is an answer.
fn until<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < WATCHDOG, "{what} did not come");
        std::thread::yield_now();
    }
}

/// The value of a line `name: value (number)`, and its number.
fn field<'t>(text: &'t str, name: &str) -> &'t str {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{name} in {text}")).trim()
}

/// `25.0 Gbps (32)` on `4X (2)`, in Mbit/s.
fn speed(text: &str) -> u32 {
    let number = |name| {
        let value = field(text, name);
        let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap();
        value[..end].parse::<f64>().unwrap()
    };
    (number("active_width") * number("active_speed") * 1000.0) as u32
}

/// `GID[  1]:  ::ffff:10.77.0.1, RoCE v2` of each line that has one.
fn gids(text: &str) -> Vec<(u8, Gid, String)> {
    let one = |line: &str| {
        let (index, rest) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        let (gid, kind) = rest.trim().split_once(", ").unwrap_or((rest.trim(), ""));
        let gid = Gid(gid.parse::<Ipv6Addr>().unwrap().octets());
        Some((index.trim().parse().unwrap(), gid, kind.to_string()))
    };
    text.lines().filter_map(one).collect()
}

#[test]
fn what_is_read_is_what_ibv_devinfo_says() {
    let Some(_guest) = guest() else { return };
    let devices = devices();
    assert!(devices.len() >= 2, "{devices:?}");
    let all = output("ibv_devinfo", &["-l"]);
    assert_eq!(all.lines().filter(|line| line.starts_with('\t')).count(), devices.len(), "{all}");
    for device in &devices {
        let text = output("ibv_devinfo", &["-v", "-d", &device.name]);
        assert_eq!(device.guid, field(&text, "node_guid"));
        assert_eq!(device.node, NodeType::ChannelAdapter, "{text}");
        assert_eq!(device.ports.len().to_string(), field(&text, "phys_port_cnt"));
        for port in &device.ports {
            let number = port.number.to_string();
            let text = output("ibv_devinfo", &["-v", "-d", &device.name, "-i", &number]);
            assert!(field(&text, "state").starts_with("PORT_ACTIVE"), "{text}");
            assert!(field(&text, "phys_state").starts_with("LINK_UP"), "{text}");
            assert_eq!((port.state, port.physical.as_str()), (PortState::Active, "LinkUp"));
            assert_eq!(field(&text, "link_layer"), "Ethernet");
            assert_eq!(port.layer, LinkLayer::Ethernet);
            assert_eq!(port.speed_mbit_s, speed(&text), "{text}");
            assert_eq!(port.pkeys.to_string(), field(&text, "pkey_tbl_len"));
            let ours = port.gids.iter().map(|it| (it.index, it.gid, it.kind.to_string()));
            let ours: Vec<_> = ours.collect();
            assert_eq!(ours, gids(&text));
            assert!(ours.len() >= 2, "{ours:?}");
        }
    }
}

/// The GID by which a guest's device is used under this rule.
fn gid_of(name: &str, gid: GidRule) -> Result<GidEntry, Unusable> {
    let device = device(name);
    let settings = Settings { gid, ..Settings::default() };
    usable(&device, &device.ports[0], &settings, &[]).cloned()
}

#[test]
fn gid_that_is_chosen_follows_the_addresses_of_the_interface() {
    let Some(_guest) = guest() else { return };
    let v6 = GidRule { family: Some(Family::V6), ..GidRule::DEFAULT };
    let by_default = gid_of("rxe0", GidRule::DEFAULT).unwrap();
    assert_eq!(by_default.gid.ip(), IpAddr::from([10, 77, 0, 1]));
    assert_eq!(by_default.interface.as_deref(), Some("rail0"));
    let first = gid_of("rxe0", v6).unwrap();
    assert_eq!(first.gid.ip(), "fd77::1".parse::<IpAddr>().unwrap());
    assert_eq!((first.kind, first.interface.as_deref()), (GidKind::RoceV2, Some("rail0")));
    let in_range = |text| GidRule { range: Some(Range::parse(text).unwrap()), ..v6 };
    let range = in_range("fd78::/64");
    let none = gid_of("rxe0", range).unwrap_err().to_string();
    assert!(none.contains("no GID is RoCE v2, IPv6, in fd78::/64"), "{none}");
    assert!(none.contains("fe80::") && none.contains("fd77::1"), "{none}");

    output("ip", &["addr", "add", "fd78::1/64", "dev", "rail0"]);
    let chosen = until("the GID of a new address", || gid_of("rxe0", range).ok());
    assert_eq!(chosen.gid.ip(), "fd78::1".parse::<IpAddr>().unwrap());
    assert_eq!(gid_of("rxe0", in_range("fd77::/64")).unwrap(), first);
    let table = || device("rxe0").ports[0].gids.clone();
    assert!([&chosen, &first, &by_default].iter().all(|it| table().contains(it)));

    output("ip", &["addr", "del", "fd78::1/64", "dev", "rail0"]);
    until("the end of a GID", || (!table().contains(&chosen)).then_some(()));
    assert!(table().contains(&by_default));
}

#[test]
fn port_whose_link_is_taken_down_is_unusable_and_comes_back() {
    let Some(_guest) = guest() else { return };
    output("ip", &["link", "set", "rail1", "down"]);
    let why = until("the end of a link", || gid_of("rxe1", GidRule::DEFAULT).err());
    output("ip", &["link", "set", "rail1", "up"]);
    // it went with the link
    output("ip", &["addr", "replace", "fd77:0:0:1::1/64", "dev", "rail1"]);
    assert!(matches!(why, Unusable::State(PortState::Down, _, LinkLayer::Ethernet)), "{why}");
    assert!(why.to_string().contains("the port is down"), "{why}");
    assert!(gid_of("rxe0", GidRule::DEFAULT).is_ok(), "the other one");
    let back = until("the link", || gid_of("rxe1", GidRule::DEFAULT).ok());
    assert_eq!(back.gid.ip(), IpAddr::from([10, 77, 1, 1]));
}

#[test]
fn ports_on_one_wire_are_rails_by_their_subnets() {
    let Some(_guest) = guest() else { return };
    let addresses = all_addresses().unwrap();
    let addresses: Vec<HostAddress> =
        addresses.iter().map(|it| HostAddress { ip: it.ip, prefix_bits: it.prefix_bits }).collect();
    let v6 = GidRule { family: Some(Family::V6), ..GidRule::DEFAULT };
    for (rule, bits) in [(GidRule::DEFAULT, 24), (v6, 64)] {
        let ends = |names: [&str; 2]| {
            names.map(|name| {
                let gid = until("a GID", || gid_of(name, rule).ok());
                RailEnd::new(&device(name).ports[0], &gid, &addresses)
            })
        };
        let (ours, theirs) = (ends(["rxe0", "rxe1"]), ends(["rxe3", "rxe2"]));
        assert_eq!((ours[0].prefix_bits, theirs[0].prefix_bits), (bits, bits));
        let mut found = pairs(&ours, &theirs, Hosts::Apart, 8);
        found.sort_by_key(|pair| pair.ours);
        let pair = |ours, theirs| RailPair { ours, theirs };
        assert_eq!(found, [pair(0, 1), pair(1, 0)]);
    }
}
