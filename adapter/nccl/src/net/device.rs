//! Devices: one for each RDMA port that works, or where there is none, one for each interface that
//! other hosts reach this one by. Peers of this host are reached under the same devices, through
//! shared memory.
#![forbid(unsafe_code)]

use super::kind::{Kind, joined};
use super::process::{OfProcess, locked};
use super::{Fault, log, nics, ports};
use crosstie::base::hash::{fnv1a, fnv1a_more};
use crosstie::connect::interfaces::{
    AddressFamily, InterfaceAddress, InterfaceError, Interfaces, local_addresses_of, unmatched,
};
use crosstie::memory::Variables;
use crosstie::provider::verbs::choice::Cabling;
use crosstie::wire::RAILS_MAX;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What NCCL assumes where the driver does not say how fast an interface is, in Mbit/s.
pub const SPEED_MBPS_DEFAULT: i32 = 10_000;

/// What NCCL's users choose interfaces by, where [`CHOICE`] is not set.
pub const NCCL_CHOICE: &str = "NCCL_SOCKET_IFNAME";
/// What ours do.
const CHOICE: &str = "CROSSTIE_SOCKET_IFNAME";
/// By which they choose addresses: `AF_INET` or `AF_INET6`.
pub const NCCL_FAMILY: &str = "NCCL_SOCKET_FAMILY";
/// Functions of a PCI device (PCI Local Bus Specification 3.0, 3.2.2.3.4).
const FUNCTIONS_MAX: i32 = 8;
/// Planes that a device made of several can say, with that of ports of which nothing is said.
const PLANES_MAX: usize = 14;
/// What is set in the plane of every such device, and in no port's.
const PLANE_OF_SEVERAL: i16 = 1 << PLANES_MAX;
/// Physical devices that one is made of at most, by its rails.
pub const MEMBERS_MAX: usize = RAILS_MAX;

/// A device. Lives as long as the process, because NCCL keeps pointers to its texts.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Device {
    /// Its name: the port's or the interface's; of several `+` stands between them.
    pub name: &'static CStr,
    /// What it is made of.
    pub kind: Kind,
    /// The numbers of the physical devices that it is made of: of one of these its own.
    pub members: Members,
    /// Its PCI function, resolved.
    pub pci_path: Option<&'static CStr>,
    /// Names the chip: functions of one chip have the same.
    pub guid: u64,
    /// In Mbit/s.
    pub speed_mbps: i32,
    /// The chip's port, from 1.
    pub port: i32,
    /// Which interfaces are used where its own lead to no peer, as of `CROSSTIE_SOCKET_IFNAME`.
    pub spare: &'static str,
    /// Which of the interfaces' addresses are used.
    pub family: AddressFamily,
    /// The rail and plane that NCCL is told.
    pub cabling: Cabling,
    /// How its NICs register memory of GPUs.
    pub gpus: GpuWay,
}

/// How NICs register memory of GPUs.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum GpuWay {
    /// Not at all.
    None,
    /// By a dma-buf, which NCCL may give, or the driver makes.
    Dmabuf,
    /// By its address, as libfabric has it.
    Address,
}

impl Device {
    /// The rail and plane that NCCL is told, if any, behind a comma.
    pub fn cabling_text(&self) -> String {
        let text = |name: &str, number: Option<i16>| {
            number.map_or(String::new(), |number| format!(", NCCL's {name} {number}"))
        };
        text("rail", self.cabling.rail) + &text("plane", self.cabling.plane)
    }
}

/// By which sockets this host is reached.
#[derive(Copy, Clone, Debug)]
pub struct Reach {
    /// Their addresses' family.
    pub family: AddressFamily,
    /// Their interfaces, where somebody has chosen.
    pub chosen: Option<Interfaces>,
    /// Whether they were named, and not what is left when others are left out.
    pub named: bool,
    /// The text of the choice: what devices have as [`Device::spare`].
    pub choice: &'static str,
}

impl Reach {
    /// Those of a device that has an interface of its own, or none.
    pub fn beside(&self, own: Interfaces) -> Interfaces {
        let is_among = |all: &Interfaces| own.iter().any(|it| all.iter().any(|name| name == it));
        match self.chosen {
            None => own,
            Some(all) if !self.named && is_among(&all) => own,
            Some(all) => all,
        }
    }
}

/// Numbers of devices.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Members {
    all: [i32; MEMBERS_MAX],
    count: usize,
}

impl Members {
    /// These; `None`: there are none, too many, or one of them twice.
    pub fn of(numbers: &[i32]) -> Option<Members> {
        let twice = |(at, number): (usize, &i32)| numbers[..at].contains(number);
        if numbers.is_empty() || numbers.len() > MEMBERS_MAX {
            return None;
        }
        if numbers.iter().enumerate().any(twice) {
            return None;
        }
        let mut all = [0; MEMBERS_MAX];
        all[..numbers.len()].copy_from_slice(numbers);
        Some(Members { all, count: numbers.len() })
    }

    /// As an array of `N` and how many of it count; what has no place is left out.
    pub fn array<const N: usize>(&self) -> (i32, [i32; N]) {
        let count = self.count.min(N);
        let mut array = [0; N];
        array[..count].copy_from_slice(&self.all[..count]);
        (count as i32, array)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// One device of several physical ones; `None`: they are more than a connection has rails for, or
/// one of them leads to no other host.
pub fn fused(
    members: Members,
    devices: &[&'static Device],
    physical: &[&'static Device],
) -> Option<Device> {
    let (first, others) = devices.split_first()?;
    let kind = match others {
        [] => Some(first.kind).filter(|kind| *kind != Kind::Alone),
        _ => others.iter().try_fold(first.kind, |all, it| all.with(&it.kind)),
    }?;
    let names: Vec<_> = devices.iter().map(|device| device.name.to_string_lossy()).collect();
    let alike = devices.iter().all(|device| device.gpus == first.gpus);
    let speed = devices.iter().fold(0, |sum: i32, it| sum.saturating_add(it.speed_mbps));
    Some(Device {
        name: kept(&names.join("+")),
        kind,
        members,
        speed_mbps: speed,
        cabling: cabling(devices, physical),
        gpus: if alike { first.gpus } else { GpuWay::None },
        ..(*first).clone()
    })
}

/// Of a device that is made of several, as NCCL's own network has it: the rail that is theirs
/// alike, and a plane that says which planes are in it, by their places among those of all ports.
fn cabling(devices: &[&'static Device], physical: &[&'static Device]) -> Cabling {
    let rail = devices.first().and_then(|it| it.cabling.rail);
    let rail = rail.filter(|rail| devices.iter().all(|it| it.cabling.rail == Some(*rail)));
    if devices.len() < 2 || devices.iter().all(|it| it.cabling.plane.is_none()) {
        let plane = devices.first().and_then(|it| it.cabling.plane);
        return Cabling { rail, plane };
    }
    let mut places = vec![None];
    for plane in physical.iter().map(|it| it.cabling.plane) {
        if !places.contains(&plane) {
            places.push(plane);
        }
    }
    let place = |it: &&Device| places.iter().position(|plane| *plane == it.cabling.plane);
    let plane = devices.iter().try_fold(PLANE_OF_SEVERAL, |all, it| {
        let place = place(it).filter(|place| *place < PLANES_MAX)?;
        Some(all | 1 << place)
    });
    Cabling { rail, plane }
}

/// The addresses that [`NCCL_FAMILY`] allows.
fn family() -> AddressFamily {
    match Variables::of_process().text(NCCL_FAMILY).as_deref() {
        Some("AF_INET") => AddressFamily::V4,
        Some("AF_INET6") => AddressFamily::V6,
        Some(_) | None => AddressFamily::Any,
    }
}

/// Which interfaces somebody wants, and by which variable that was said.
fn choice() -> (&'static str, String) {
    let said = |name| Variables::of_process().text(name).filter(|text| !text.trim().is_empty());
    if let Some(ours) = said(CHOICE) {
        return (CHOICE, ours);
    }
    let theirs = said(NCCL_CHOICE).map(|text| as_nccl_reads(&text));
    match theirs.filter(|text| !text.is_empty()) {
        Some(theirs) => (NCCL_CHOICE, theirs),
        None => (CHOICE, String::new()),
    }
}

/// A choice as NCCL reads it (its `misc/socket.cc` and `parseStringList`): a single character is
/// none, names that are empty are passed over, and so is what stands behind a colon.
fn as_nccl_reads(text: &str) -> String {
    let text = text.trim();
    let names = text.strip_prefix('^').unwrap_or(text);
    let names = names.strip_prefix('=').unwrap_or(names);
    let signs = &text[..text.len() - names.len()];
    let before_colon = |name: &str| name.split(':').next().unwrap_or("").trim().to_string();
    let names: Vec<String> =
        names.split(',').map(before_colon).filter(|name| !name.is_empty()).collect();
    match names.is_empty() || text.len() == 1 {
        true => String::new(),
        false => format!("{signs}{}", names.join(",")),
    }
}

/// The choice that holds, and its addresses. One that NCCL's users cannot have meant is not obeyed,
/// as they would lose all other hosts for a slip.
fn addresses(
    family: AddressFamily,
    variable: &str,
    choice: String,
) -> (String, Result<Vec<InterfaceAddress>, InterfaceError>) {
    let found = local_addresses_of(family, &choice);
    match &found {
        Err(error @ InterfaceError::Choice(_)) if variable == NCCL_CHOICE => {
            let (said, text) =
                (Variables::of_process().text(variable).unwrap_or(choice), error.to_string());
            let why = text.split_once(": ").map_or("", |(_, why)| why);
            log::warn(&format!("{variable}={said} is ignored: {why}"));
            (String::new(), local_addresses_of(family, ""))
        }
        Ok(_) | Err(_) => (choice, found),
    }
}

/// The devices of this host, in an order that is the same in all of its processes.
pub fn survey() -> Result<Vec<Device>, Fault> {
    let family = family();
    if let Some(text) = Variables::of_process().text(NCCL_FAMILY)
        && family == AddressFamily::Any
        && !text.is_empty()
    {
        log::warn(&format!("{NCCL_FAMILY}={text} is ignored: it may be AF_INET or AF_INET6"));
    }
    let (variable, choice) = choice();
    let (choice, found) = addresses(family, variable, choice);
    match found {
        Ok(addresses) => {
            unmatched_say(variable, &choice);
            let chosen = (!choice.is_empty()).then(|| interfaces_of(&addresses));
            let named = !choice.trim().starts_with('^');
            let choice = kept(&choice).to_str().unwrap_or_default();
            let reach = Reach { family, chosen, named, choice };
            let ways: [fn(&Reach) -> Vec<Device>; 2] = match nics::is_asked() {
                true => [nics::survey, ports::survey],
                false => [ports::survey, nics::survey],
            };
            let mut found = ways.iter().map(|way| way(&reach));
            let devices = found.find(|devices| !devices.is_empty());
            Ok(devices.unwrap_or_else(|| of_addresses(&reach, &addresses)))
        }
        Err(error) => {
            let why = error.to_string().replace(CHOICE, variable);
            let then = match crosstie::host::settings::environment().rails.shm {
                true => "only peers of this host can be reached, through shared memory",
                false => "no peer can be reached, since CROSSTIE_RAILS leaves out shm",
            };
            log::warn(&format!("{why}: {then}"));
            Ok(vec![without_interface(family)])
        }
    }
}

/// Says which names of a choice no interface has, where others have some. NCCL passes over such
/// names in its own variable, where they may be those of another host.
fn unmatched_say(variable: &str, choice: &str) {
    let Some((missing, there)) = unmatched(choice) else { return };
    let text = format!(
        "{variable}={choice}: no interface matches {missing}, and the others are used; there are \
         {there}"
    );
    if variable == CHOICE { log::warn(&text) } else { log::info(&text) }
}

/// Those that have the addresses, as many as a connection has rails.
fn interfaces_of(addresses: &[InterfaceAddress]) -> Interfaces {
    let each = addresses.iter().map(|address| Interfaces::one(address.name));
    each.fold(Interfaces::NONE, |all, one| joined(all, &one))
}

fn of_addresses(reach: &Reach, addresses: &[InterfaceAddress]) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for address in addresses {
        let its = Kind::Interfaces(Interfaces::one(address.name));
        if devices.iter().all(|device| device.kind != its) {
            devices.push(of_interface(reach, address, devices.len()));
        }
    }
    devices
}

fn of_interface(reach: &Reach, address: &InterfaceAddress, number: usize) -> Device {
    let name = address.name.as_str();
    let folder = Path::new("/sys/class/net").join(name);
    let pci = pci_function(&folder.join("device"));
    let speed = i32::try_from(address.speed_mbit_s).unwrap_or(i32::MAX);
    Device {
        name: kept(name),
        kind: Kind::Interfaces(Interfaces::one(address.name)),
        members: own(number),
        pci_path: pci.as_ref().and_then(|path| path.to_str()).map(kept),
        guid: guid(pci.as_deref().and_then(Path::to_str), name),
        speed_mbps: if speed > 0 { speed } else { SPEED_MBPS_DEFAULT },
        port: port(pci.as_deref(), &folder),
        spare: reach.choice,
        family: reach.family,
        cabling: Cabling::default(),
        gpus: GpuWay::None,
    }
}

/// The members of a physical device: itself.
pub fn own(number: usize) -> Members {
    let mut all = [0; MEMBERS_MAX];
    all[0] = number as i32;
    Members { all, count: 1 }
}

fn without_interface(family: AddressFamily) -> Device {
    Device {
        name: c"shm",
        kind: Kind::Alone,
        members: own(0),
        pci_path: None,
        guid: guid(None, "shm"),
        speed_mbps: SPEED_MBPS_DEFAULT,
        port: 1,
        spare: "",
        family,
        cabling: Cabling::default(),
        gpus: GpuWay::None,
    }
}

/// The PCI function that a device belongs to: what it resolves to, or the nearest above that is
/// one, as a virtio device lies below its function.
pub fn pci_function(device: &Path) -> Option<PathBuf> {
    let resolved = device.canonicalize().ok()?;
    let is_function = |path: &&Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(is_address)
            && path.join("subsystem").canonicalize().is_ok_and(|bus| bus.ends_with("pci"))
    };
    resolved.ancestors().find(is_function).map(Path::to_path_buf)
}

/// Whether the text is a PCI address: `0000:3b:00.1`.
fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let hex = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    parts.len() == 4
        && parts.iter().all(hex)
        && text.rsplit_once('.').is_some_and(|(_, f)| f.len() == 1)
}

/// The same for all functions of one chip of one host, and for nothing else.
pub fn guid(pci: Option<&str>, name: &str) -> u64 {
    let chip = pci.and_then(|path| path.rsplit_once('.')).map_or(name, |(chip, _)| chip);
    let host = crosstie::connect::node_id().unwrap_or(0).to_le_bytes();
    fnv1a_more(fnv1a(&host), chip.as_bytes())
}

/// From 1, another for each interface of a chip: the function's number, and behind those of all
/// functions what the driver calls the function's further ports.
fn port(pci: Option<&Path>, folder: &Path) -> i32 {
    let function = pci
        .and_then(Path::to_str)
        .and_then(|path| path.rsplit_once('.'))
        .and_then(|(_, function)| i32::from_str_radix(function, 16).ok());
    let text = std::fs::read_to_string(folder.join("dev_port")).unwrap_or_default();
    let within: u8 = text.trim().parse().unwrap_or(0);
    1 + function.unwrap_or(0) + FUNCTIONS_MAX * i32::from(within)
}

/// What is never freed, since NCCL keeps pointers to it, and is there once: NCCL may open the
/// plugin any number of times, and mostly finds what it found before.
struct Kept {
    texts: BTreeSet<&'static CStr>,
    devices: Vec<&'static Device>,
}

impl Kept {
    const fn new() -> Mutex<Kept> {
        Mutex::new(Kept { texts: BTreeSet::new(), devices: Vec::new() })
    }
}

static KEPT: OfProcess<Mutex<Kept>> = OfProcess::new(Kept::new(), Kept::new);

/// Text that is never freed, the same for who asks with the same again.
pub fn kept(text: &str) -> &'static CStr {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let texts = &mut locked(KEPT.get()).texts;
    if let Some(kept) = texts.get(text.as_c_str()) {
        return kept;
    }
    let kept = Box::leak(text.into_boxed_c_str());
    texts.insert(kept);
    kept
}

/// A device that is never freed, the same for who asks with the same again.
pub fn device_kept(device: Device) -> &'static Device {
    let devices = &mut locked(KEPT.get()).devices;
    if let Some(kept) = devices.iter().find(|it| ***it == device) {
        return kept;
    }
    let kept = Box::leak(Box::new(device));
    devices.push(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each opening of the plugin left its own behind.
    #[test]
    fn what_is_kept_is_kept_once() {
        let twice = || kept("kept-once");
        assert!(std::ptr::eq(twice(), twice()));
        let device = |name| Device { name: kept(name), ..without_interface(AddressFamily::V6) };
        let first = device_kept(device("kept-once"));
        let other = device_kept(device("kept-too"));
        assert!(std::ptr::eq(first, device_kept(device("kept-once"))));
        assert_ne!(first, other);
    }

    #[test]
    fn choices_are_read_as_nccl_reads_them() {
        for (text, meant) in [
            ("eth0,", "eth0"),
            ("^docker,,lo", "^docker,lo"),
            ("^=eth0:1, ib0", "^=eth0,ib0"),
            ("=eth0", "=eth0"),
            ("eth0,^lo", "eth0,^lo"),
            ("=^eth0", "=^eth0"),
        ] {
            assert_eq!(as_nccl_reads(text), meant, "{text}");
        }
        for none in ["", "^", "=", ",", "^=", "^,", "x", ":1"] {
            assert_eq!(as_nccl_reads(none), "", "{none}");
        }
    }

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        for text in ["0000:3b:00.1", "10000:01:00.0"] {
            assert!(is_address(text), "{text}");
        }
        for text in ["virtio0", "pci0000:00", "0000:3b:00", "0000:3b:00.12", "eth0", ""] {
            assert!(!is_address(text), "{text}");
        }
    }

    #[test]
    fn functions_of_one_chip_share_its_guid_and_differ_in_port() {
        let (a, b) = ("/sys/devices/pci0/0000:3b:00.0", "/sys/devices/pci0/0000:3b:00.1");
        assert_eq!(guid(Some(a), "eth0"), guid(Some(b), "eth1"));
        assert_ne!(guid(None, "eth0"), guid(None, "eth1"));
        let port = |path| port(Some(Path::new(path)), Path::new("/nowhere"));
        assert_eq!((port(a), port(b)), (1, 2));
    }

    /// Several interfaces of one function were one port to NCCL.
    #[test]
    fn ports_of_one_function_differ() {
        let folder = std::env::temp_dir().join(format!("xtie-plugin-port-{}", std::process::id()));
        let port = |function: &str, text: &str| {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("dev_port"), text).unwrap();
            port(Some(Path::new(&format!("/sys/0000:3b:00.{function}"))), &folder)
        };
        let ports: Vec<i32> = [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"), ("7", "3")]
            .map(|(function, text)| port(function, &format!("{text}\n")))
            .into();
        std::fs::remove_dir_all(&folder).unwrap();
        for (at, number) in ports.iter().enumerate() {
            assert!(*number > 0 && *number < 65536 && !ports[..at].contains(number), "{ports:?}");
        }
        assert_eq!((ports[0], ports[2]), (1, 2), "the first is numbered as where there is one");
    }
}
