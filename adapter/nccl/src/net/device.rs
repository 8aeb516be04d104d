//! Devices: one for each interface that other hosts reach this one by. Peers of this host are
//! reached under the same devices, through shared memory.
#![forbid(unsafe_code)]

use super::Fault;
use super::log;
use crosstie::connect::interfaces::{
    AddressFamily, InterfaceAddress, Interfaces, local_addresses_of,
};
use crosstie::wire::RAILS_MAX;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

/// What NCCL assumes where the driver does not say how fast an interface is, in Mbit/s.
const SPEED_MBPS_DEFAULT: i32 = 10_000;

/// What NCCL's users choose interfaces by, where [`CHOICE`] is not set.
pub const NCCL_CHOICE: &str = "NCCL_SOCKET_IFNAME";
/// What ours do.
const CHOICE: &str = "CROSSTIE_SOCKET_IFNAME";
/// By which they choose addresses: `AF_INET` or `AF_INET6`.
pub const NCCL_FAMILY: &str = "NCCL_SOCKET_FAMILY";
/// Physical devices that one is made of at most, by its rails.
pub const MEMBERS_MAX: usize = RAILS_MAX;

/// A device. Lives as long as the process, because NCCL keeps pointers to its texts.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Device {
    /// Its name: the interface's; of several `+` stands between them.
    pub name: &'static CStr,
    /// The interfaces; none: shared memory is all.
    pub interfaces: Interfaces,
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
    /// Which of the interfaces' addresses are used.
    pub family: AddressFamily,
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

/// One device of several physical ones; `None`: they have more interfaces than a connection has
/// rails, or one of them has none.
pub fn fused(members: Members, devices: &[&'static Device]) -> Option<Device> {
    let (first, _) = devices.split_first()?;
    let mut interfaces = Interfaces::NONE;
    for device in devices {
        device.interfaces.iter().next()?;
        interfaces = interfaces.with(&device.interfaces)?;
    }
    let names: Vec<_> = devices.iter().map(|device| device.name.to_string_lossy()).collect();
    let speed = devices.iter().fold(0, |sum: i32, it| sum.saturating_add(it.speed_mbps));
    Some(Device {
        name: kept(&names.join("+")),
        interfaces,
        members,
        speed_mbps: speed,
        ..(*first).clone()
    })
}

/// The addresses that [`NCCL_FAMILY`] allows.
fn family() -> AddressFamily {
    match std::env::var(NCCL_FAMILY).as_deref() {
        Ok("AF_INET") => AddressFamily::V4,
        Ok("AF_INET6") => AddressFamily::V6,
        Ok(_) | Err(_) => AddressFamily::Any,
    }
}

/// The devices of this host, in an order that is the same in all of its processes.
pub fn survey() -> Result<Vec<Device>, Fault> {
    let choice = [CHOICE, NCCL_CHOICE]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.trim().is_empty()));
    let family = family();
    if let Ok(text) = std::env::var(NCCL_FAMILY)
        && family == AddressFamily::Any
        && !text.is_empty()
    {
        log::warn(&format!("{NCCL_FAMILY}={text} is ignored: it may be AF_INET or AF_INET6"));
    }
    match local_addresses_of(family, choice.as_deref().unwrap_or("")) {
        Ok(addresses) => Ok(of_addresses(family, &addresses)),
        Err(error) => {
            log::warn(&format!("{error}: peers of this host alone can be reached"));
            Ok(vec![without_interface(family)])
        }
    }
}

fn of_addresses(family: AddressFamily, addresses: &[InterfaceAddress]) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for address in addresses {
        let its = Interfaces::one(address.name);
        if devices.iter().all(|device| device.interfaces != its) {
            devices.push(of_interface(family, address, devices.len()));
        }
    }
    devices
}

fn of_interface(family: AddressFamily, address: &InterfaceAddress, number: usize) -> Device {
    let name = address.name.as_str();
    let folder = Path::new("/sys/class/net").join(name);
    let pci = pci_function(&folder.join("device"));
    let speed = i32::try_from(address.speed_mbit_s).unwrap_or(i32::MAX);
    Device {
        name: kept(name),
        interfaces: Interfaces::one(address.name),
        members: own(number),
        pci_path: pci.as_ref().and_then(|path| path.to_str()).map(kept),
        guid: guid(pci.as_deref().and_then(Path::to_str), name),
        speed_mbps: if speed > 0 { speed } else { SPEED_MBPS_DEFAULT },
        port: port(pci.as_deref(), &folder),
        family,
    }
}

fn own(number: usize) -> Members {
    let mut all = [0; MEMBERS_MAX];
    all[0] = number as i32;
    Members { all, count: 1 }
}

fn without_interface(family: AddressFamily) -> Device {
    Device {
        name: c"shm",
        interfaces: Interfaces::NONE,
        members: own(0),
        pci_path: None,
        guid: guid(None, "shm"),
        speed_mbps: SPEED_MBPS_DEFAULT,
        port: 1,
        family,
    }
}

/// The PCI function that a device belongs to: what it resolves to, or the nearest above that is
/// one, as a virtio device lies below its function.
fn pci_function(device: &Path) -> Option<PathBuf> {
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

/// The same for all functions of one chip of one host, and for nothing else (FNV-1a).
fn guid(pci: Option<&str>, name: &str) -> u64 {
    let chip = pci.and_then(|path| path.rsplit_once('.')).map_or(name, |(chip, _)| chip);
    let host = crosstie::connect::node_id().unwrap_or(0).to_le_bytes();
    let bytes = host.iter().chain(chip.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The function's number, or what the driver says, from 1.
fn port(pci: Option<&Path>, folder: &Path) -> i32 {
    let function = pci
        .and_then(Path::to_str)
        .and_then(|path| path.rsplit_once('.'))
        .and_then(|(_, function)| i32::from_str_radix(function, 16).ok());
    let driver = || std::fs::read_to_string(folder.join("dev_port")).ok()?.trim().parse().ok();
    function.or_else(driver).unwrap_or(0) + 1
}

/// Text that is never freed.
fn kept(text: &str) -> &'static CStr {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    Box::leak(text.into_boxed_c_str())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
