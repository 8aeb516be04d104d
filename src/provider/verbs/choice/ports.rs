//! What the kernel shows of RDMA devices under `/sys/class/infiniband`: without libibverbs, and for
//! whoever may not open the devices.
//!
//! *Source*: `Documentation/ABI/stable/sysfs-class-infiniband` of Linux.

use super::gid::{Gid, GidEntry, GidKind, LinkLayer};
use crate::base::words::{named, said};
use core::cell::Cell;
use core::cmp::Ordering;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

/// Where sysfs is.
pub const SYSFS: &str = "/sys";

/// A device.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Device {
    /// Its name, as `mlx5_0`.
    pub name: String,
    /// What it is for.
    pub node: NodeType,
    /// Its own number, as the kernel writes it.
    pub guid: String,
    /// Its PCI function, resolved; `None`: it is no PCI device, as soft-RoCE.
    pub pci: Option<PathBuf>,
    /// The function that this one is a virtual function of.
    pub physical: Option<PathBuf>,
    /// The NUMA node that is nearest; `None`: not known, or all are.
    pub numa: Option<u32>,
    /// The file under `/dev/infiniband` by which programs use it; `None`: the kernel offers none
    /// (`ib_uverbs` is not loaded).
    pub file: Option<String>,
    /// Its ports, by number.
    pub ports: Vec<Port>,
}

said! {
    /// What a device is for.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum NodeType {
        /// A channel adapter: InfiniBand and RoCE.
        ChannelAdapter => "channel adapter",
        /// iWARP, which has no write with immediate that a peer could be told by, and no atomics.
        Iwarp => "iWARP",
        /// Something else, with the kernel's number.
        Other(number: u32) => "node type {number}",
    }
}

/// A port.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Whether it carries anything.
    pub state: PortState,
    /// What the link is at, in the kernel's words: `LinkUp`, `Polling`, `Disabled`.
    pub physical: String,
    /// What carries its packets.
    pub layer: LinkLayer,
    /// Its speed with all lanes together, in Mbit/s; 0: not known.
    pub speed_mbit_s: u32,
    /// Most bytes of a packet, headers apart; 0: nobody has asked ([`super::super::mtu::ask`]).
    pub mtu_bytes: u32,
    /// The entries of its GID table that are in use and that a queue pair can name.
    pub gids: Vec<GidEntry>,
    /// Entries of its table of partition keys.
    pub pkeys: u32,
}

named! {
    /// The logical state of a port (InfiniBand specification 1, 14.2.5.6).
    pub enum PortState {
        Down = "down",
        Initialize = "initializing",
        Armed = "armed",
        Active = "active",
        ActiveDefer = "active, deferred",
        Unknown = "in an unknown state",
    }
}

impl PortState {
    fn of_number(number: u32) -> PortState {
        match number {
            1 => PortState::Down,
            2 => PortState::Initialize,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDefer,
            _ => PortState::Unknown,
        }
    }
}

/// All devices of this host, in the order of their PCI functions, as NCCL counts them
/// (`NCCL_IB_DEVICE_PCI_ORDER`); those without one come last, by name. None where the kernel has
/// no RDMA. A device that goes away meanwhile is left out, or its ports are.
///
/// *Shape*: `sysfs` is [`SYSFS`], or a tree that looks like it.
///
/// *Errors*: that the devices cannot be listed, or not be read because no more files can be opened:
/// what is missing then would pass for what is not there.
///
/// *Cost*: allocates; up to three files for each of the first 256 entries of each port's GID table.
/// For open.
pub fn survey(sysfs: &Path) -> io::Result<Vec<Device>> {
    survey_of(sysfs, &|_, _| true)
}

/// The same, but without the GIDs of ports that are not meant, which are told by device and number:
/// they are nearly all that it costs.
pub fn survey_of(sysfs: &Path, is_meant: &dyn Fn(&str, u8) -> bool) -> io::Result<Vec<Device>> {
    let class = sysfs.join("class/infiniband");
    let entries = match fs::read_dir(&class) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut devices = Vec::new();
    let reader = Reader { failed: Cell::new(None) };
    for entry in entries {
        let name = entry?.file_name();
        if let Some(name) = name.to_str() {
            devices.extend(reader.device(&class.join(name), name, is_meant));
        }
    }
    reader.files(&sysfs.join("class/infiniband_verbs"), &mut devices);
    devices.sort_by(in_order);
    match reader.failed.get() {
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Ok(devices),
    }
}

/// Reads what it finds, and leaves out what it does not.
struct Reader {
    /// Why something could not be read that is there.
    failed: Cell<Option<i32>>,
}

impl Reader {
    /// Which file is whose: `uverbs0/ibdev` holds a device's name.
    fn files(&self, folder: &Path, devices: &mut [Device]) {
        for entry in self.entries(folder) {
            let Some(name) = self.word(&entry.path().join("ibdev")) else { continue };
            if let Some(device) = devices.iter_mut().find(|device| device.name == name) {
                device.file = entry.file_name().into_string().ok();
            }
        }
    }

    /// One device; `None`: it is not there any more.
    fn device(
        &self,
        folder: &Path,
        name: &str,
        is_meant: &dyn Fn(&str, u8) -> bool,
    ) -> Option<Device> {
        let pci = pci_function(&folder.join("device"));
        let numa = pci.as_ref().and_then(|pci| self.word(&pci.join("numa_node"))?.parse().ok());
        let physical = pci.as_ref().and_then(|pci| pci.join("physfn").canonicalize().ok());
        Some(Device {
            name: name.to_string(),
            node: node_type(&self.word(&folder.join("node_type"))?),
            guid: self.word(&folder.join("node_guid")).unwrap_or_default(),
            pci,
            physical,
            numa,
            file: None,
            ports: self.ports(&folder.join("ports"), &|port| is_meant(name, port)),
        })
    }

    fn ports(&self, folder: &Path, is_meant: &dyn Fn(u8) -> bool) -> Vec<Port> {
        let numbers = self.numbered(folder).filter_map(|number| u8::try_from(number).ok());
        let mut found: Vec<Port> =
            numbers.filter_map(|number| self.port(folder, number, is_meant(number))).collect();
        found.sort_by_key(|port| port.number);
        found
    }

    /// The entries of a folder whose names are numbers.
    fn numbered(&self, folder: &Path) -> impl Iterator<Item = u32> {
        self.entries(folder).filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    fn port(&self, folder: &Path, number: u8, is_meant: bool) -> Option<Port> {
        let folder = folder.join(number.to_string());
        let state = self.word(&folder.join("state"))?;
        let layer = link_layer(&self.word(&folder.join("link_layer")).unwrap_or_default());
        let physical = self.word(&folder.join("phys_state")).unwrap_or_default();
        let (_, physical) = physical.split_once(": ").unwrap_or(("", &physical));
        Some(Port {
            number,
            state: PortState::of_number(number_before_colon(&state)),
            physical: physical.to_string(),
            layer,
            speed_mbit_s: self
                .word(&folder.join("rate"))
                .and_then(|text| speed(&text))
                .unwrap_or(0),
            gids: if is_meant { self.gids(&folder, layer) } else { Vec::new() },
            mtu_bytes: 0,
            pkeys: self.numbered(&folder.join("pkeys")).count() as u32,
        })
    }

    /// The GID table, without what is not in use.
    fn gids(&self, port: &Path, layer: LinkLayer) -> Vec<GidEntry> {
        let (gids, attributes) = (port.join("gids"), port.join("gid_attrs"));
        let mut table: Vec<GidEntry> = self
            .numbered(&gids)
            .filter_map(|index| {
                let index = u8::try_from(index).ok()?;
                let name = index.to_string();
                let gid = Gid::parse(&self.word(&gids.join(&name))?)?;
                let kind = match self.word(&attributes.join("types").join(&name)) {
                    Some(kind) => gid_kind(&kind, layer),
                    // older kernels know types of RoCE alone
                    None if layer == LinkLayer::InfiniBand => GidKind::InfiniBand,
                    // an entry that has been taken away since
                    None => return None,
                };
                let interface = self.word(&attributes.join("ndevs").join(&name));
                Some(GidEntry { index, gid, kind, interface })
            })
            .collect();
        table.sort_by_key(|entry| entry.index);
        table
    }

    /// The first line of a file; `None`: it cannot be read, or is empty.
    fn word(&self, path: &Path) -> Option<String> {
        // two system calls fewer than `read_to_string`: hundreds of files are read for a port
        let mut start = [0; WORD_BYTES_MAX];
        let count = self.there(fs::File::open(path))?.read(&mut start).ok()?;
        let line = core::str::from_utf8(&start[..count]).ok()?.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_string())
    }

    /// What a folder has.
    fn entries(&self, folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
        self.there(fs::read_dir(folder)).into_iter().flatten().flatten()
    }

    /// What was opened; `None`: it is not there, or that must be assumed.
    fn there<T>(&self, opened: io::Result<T>) -> Option<T> {
        opened
            .inspect_err(|error| {
                let code = error.raw_os_error();
                if matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
                    self.failed.set(code);
                }
            })
            .ok()
    }
}

/// Reads `1: CA`.
fn node_type(text: &str) -> NodeType {
    match number_before_colon(text) {
        1 => NodeType::ChannelAdapter,
        4 => NodeType::Iwarp,
        other => NodeType::Other(other),
    }
}

/// The number of `4: ACTIVE`; 0: there is none.
fn number_before_colon(text: &str) -> u32 {
    text.split(':').next().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

fn link_layer(text: &str) -> LinkLayer {
    match text {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other,
    }
}

/// Reads `2.5 Gb/sec (1X SDR)`, in Mbit/s; `None`: it is not of this form.
fn speed(text: &str) -> Option<u32> {
    let gigabits: f64 = text.strip_suffix(')').unwrap_or(text).split(' ').next()?.parse().ok()?;
    text.contains("Gb/sec").then_some((gigabits * 1000.0) as u32)
}

/// `IB/RoCE v1` is what the kernel calls both.
fn gid_kind(text: &str, layer: LinkLayer) -> GidKind {
    match (text, layer) {
        ("RoCE v2", _) => GidKind::RoceV2,
        (_, LinkLayer::Ethernet) => GidKind::RoceV1,
        (_, LinkLayer::InfiniBand | LinkLayer::Other) => GidKind::InfiniBand,
    }
}

/// More than any line that is read here has, and the kernel gives a file at once.
const WORD_BYTES_MAX: usize = 256;

/// The PCI function that a device belongs to: what it resolves to, or the nearest above that is
/// one.
fn pci_function(device: &Path) -> Option<PathBuf> {
    let resolved = device.canonicalize().ok()?;
    let is_function = |path: &&Path| pci_address(path).is_some();
    resolved.ancestors().find(is_function).map(Path::to_path_buf)
}

/// Domain, bus, device and function of a path that ends like `0000:3b:00.1`.
fn pci_address(path: &Path) -> Option<[u32; 4]> {
    let name = path.file_name()?.to_str()?;
    let (slot, function) = name.rsplit_once('.')?;
    let mut parts = slot.split(':').map(|part| u32::from_str_radix(part, 16));
    let mut part = || parts.next()?.ok();
    let address = [part()?, part()?, part()?, u32::from_str_radix(function, 16).ok()?];
    (parts.next().is_none() && function.len() == 1).then_some(address)
}

fn in_order(a: &Device, b: &Device) -> Ordering {
    let place = |device: &Device| {
        let address = device.pci.as_deref().and_then(pci_address);
        (address.is_none(), address, name_parts(&device.name))
    };
    place(a).cmp(&place(b))
}

/// A name with its number apart, so that `mlx5_10` comes behind `mlx5_9`.
fn name_parts(name: &str) -> (String, u64) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text.to_string(), name[text.len()..].parse().unwrap_or(0))
}

impl Device {
    /// What stands for the whole chip: the path of its first function, which the functions of a
    /// card with several ports have in common, and with `merge_vfs` its virtual functions, too.
    /// NCCL takes devices with the same one for one card (`NCCL_IB_MERGE_VFS`). `None`: it is no
    /// PCI device.
    pub fn chip(&self, merge_vfs: bool) -> Option<PathBuf> {
        let own = self.pci.as_deref()?;
        let of = if merge_vfs { self.physical.as_deref().unwrap_or(own) } else { own };
        let name = of.file_name()?.to_str()?;
        let (slot, _) = name.rsplit_once('.')?;
        let (bus, device) = slot.rsplit_once(':')?;
        let device = if merge_vfs { "00" } else { device };
        Some(of.with_file_name(std::format!("{bus}:{device}.0")))
    }
}

/// Which port of its chip each device is, from 0: where each port of a card is a device of its own
/// with one port numbered 1, this is what tells them apart. Devices in the order of [`survey`].
pub fn chip_ports(devices: &[Device], merge_vfs: bool) -> Vec<u32> {
    let chips: Vec<_> = devices.iter().map(|device| device.chip(merge_vfs)).collect();
    let before = |at: usize| match &chips[at] {
        Some(chip) => chips[..at].iter().filter(|other| other.as_ref() == Some(chip)).count(),
        None => 0,
    };
    (0..devices.len()).map(|at| before(at) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_with_their_fractions() {
        assert_eq!(speed("2.5 Gb/sec (1X SDR)"), Some(2500));
        assert_eq!(speed("10 Gb/sec (1X FDR10)"), Some(10_000));
        assert_eq!(speed("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(speed("56 Gb/sec (4X FDR)"), Some(56_000));
        assert_eq!(speed("unknown"), None);
        assert_eq!(speed("100"), None);
    }

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        let address = |text: &str| pci_address(Path::new(text));
        assert_eq!(address("/sys/devices/pci0000:3a/0000:3b:00.1"), Some([0, 0x3b, 0, 1]));
        assert_eq!(address("10000:01:1f.0"), Some([0x10000, 1, 0x1f, 0]));
        for other in ["virtio0", "pci0000:00", "0000:3b:00", "0000:3b:00.12", "rxe0", "0:0:0:0.1"] {
            assert_eq!(address(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_ordered_by_their_number() {
        assert!(name_parts("mlx5_9") < name_parts("mlx5_10"));
        assert!(name_parts("irdma3") < name_parts("mlx5_0"));
    }
}
