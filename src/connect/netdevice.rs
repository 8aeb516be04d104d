//! What the kernel says of network interfaces to ioctl(2). Any socket serves, so this works where
//! netlink is refused, and it is of the socket's own network, as `/sys` need not be. One of the
//! files of this room that call the C library.
//!
//! *Source*: netdevice(7); `linux/ethtool.h`.

use super::fork::PrivateFd;
use super::interfaces::InterfaceName;
use core::ffi::CStr;
use core::net::Ipv4Addr;
use std::io;
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// Bytes of a `struct ifreq` behind the name.
const VALUE_BYTES: usize = 24;
/// Entries that are asked for first.
const ENTRIES_FIRST: usize = 64;

/// `struct ifreq`.
#[repr(C)]
#[derive(Copy, Clone)]
struct Asked {
    name: [u8; libc::IFNAMSIZ],
    value: [u64; VALUE_BYTES / 8],
}

const _: () = assert!(size_of::<Asked>() == size_of::<libc::ifreq>());

impl Asked {
    const ZERO: Asked = Asked { name: [0; libc::IFNAMSIZ], value: [0; VALUE_BYTES / 8] };

    fn of(name: InterfaceName) -> Asked {
        let mut asked = Asked::ZERO;
        let bytes = name.as_str().as_bytes();
        // the last byte stays zero
        let count = bytes.len().min(libc::IFNAMSIZ - 1);
        asked.name[..count].copy_from_slice(&bytes[..count]);
        asked
    }

    fn bytes(&self) -> [u8; VALUE_BYTES] {
        let mut all = [0; VALUE_BYTES];
        for (place, word) in all.chunks_exact_mut(8).zip(self.value) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        all
    }

    /// The address of a `struct sockaddr_in`.
    fn ipv4(&self) -> Option<Ipv4Addr> {
        let bytes = self.bytes();
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let is_ipv4 = i32::from(family) == libc::AF_INET;
        is_ipv4.then(|| Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]))
    }

    fn ipv4_set(&mut self, ip: Ipv4Addr) {
        let [a, b] = (libc::AF_INET as u16).to_ne_bytes();
        let [c, d, e, f] = ip.octets();
        self.value[0] = u64::from_ne_bytes([a, b, 0, 0, c, d, e, f]);
    }
}

/// `struct ifconf`.
#[repr(C)]
struct List {
    bytes: i32,
    entries: *mut Asked,
}

/// `struct ethtool_cmd`, as words of 32 bits.
type Link = [u32; 11];
/// `struct ethtool_drvinfo`: the driver's name is behind the command.
type Driver = [u32; 49];
/// `struct ethtool_value`.
type Value = [u32; 2];
/// Commands of ethtool, which anyone may give.
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
/// Words of 32 bits that a driver's name has.
const DRIVER_WORDS: usize = 8;
/// The name of the kernel's bridge (`br_getinfo` in Linux's `net/bridge/br_device.c`).
const BRIDGE: &CStr = c"bridge";

/// A socket to ask with.
#[derive(Debug)]
pub struct NetDevices(PrivateFd);

impl NetDevices {
    /// *Errors*: the kernel gives no socket of either family.
    pub fn open() -> io::Result<NetDevices> {
        let socket = |family| {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
            // SAFETY: a call without pointers.
            PrivateFd::made(|| unsafe { libc::socket(family, kind, 0) })
        };
        socket(libc::AF_INET).or_else(|_| socket(libc::AF_INET6)).map(NetDevices)
    }

    fn ask(&self, call: libc::c_ulong, mut asked: Asked) -> Option<Asked> {
        let pointer: *mut Asked = &mut asked;
        // SAFETY: a whole `struct ifreq`, which lives until the call returns. Where it points at
        // something else, `ethtool` keeps that alive.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), call as _, pointer) };
        (answer >= 0).then_some(asked)
    }

    /// Gives a command of ethtool, of which `told` is the structure.
    fn ethtool<const WORDS: usize>(
        &self,
        name: InterfaceName,
        command: u32,
    ) -> Option<[u32; WORDS]> {
        let mut told = [0; WORDS];
        told[0] = command;
        let mut asked = Asked::of(name);
        // the kernel writes there during the call alone
        asked.value[0] = (&raw mut told).expose_provenance() as u64;
        self.ask(libc::SIOCETHTOOL as _, asked).map(|_| told)
    }

    /// `IFF_` flags, the lower sixteen.
    pub fn flags(&self, name: InterfaceName) -> Option<i32> {
        let bytes = self.ask(libc::SIOCGIFFLAGS as _, Asked::of(name))?.bytes();
        Some(i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])))
    }

    /// Its number.
    pub fn number(&self, name: InterfaceName) -> Option<u32> {
        let bytes = self.ask(libc::SIOCGIFINDEX as _, Asked::of(name))?.bytes();
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The first six bytes of its hardware address; zero where it has none.
    pub fn hardware_address(&self, name: InterfaceName) -> Option<[u8; 6]> {
        let bytes = self.ask(libc::SIOCGIFHWADDR as _, Asked::of(name))?.bytes();
        bytes[2..8].try_into().ok()
    }

    /// Whether there is a carrier; `None`: the driver does not say.
    pub fn has_carrier(&self, name: InterfaceName) -> Option<bool> {
        let told: Value = self.ethtool(name, ETHTOOL_GLINK)?;
        Some(told[1] != 0)
    }

    /// Speed in Mbit/s, as the driver says; 0: it does not.
    pub fn speed_mbit_s(&self, name: InterfaceName) -> u32 {
        let Some(told) = self.ethtool(name, ETHTOOL_GSET) else { return 0 };
        let told: Link = told;
        // the lower half at byte 12, the upper at byte 28
        let half = |at: usize| {
            let [a, b, _, _] = told[at].to_ne_bytes();
            u32::from(u16::from_ne_bytes([a, b]))
        };
        let speed = half(7) << 16 | half(3);
        if speed > i32::MAX as u32 { 0 } else { speed }
    }

    /// Whether it is a bridge of the kernel's.
    pub fn is_bridge(&self, name: InterfaceName) -> bool {
        let Some(told) = self.ethtool(name, ETHTOOL_GDRVINFO) else { return false };
        let told: Driver = told;
        let bytes: Vec<u8> =
            told[1..=DRIVER_WORDS].iter().flat_map(|word| word.to_ne_bytes()).collect();
        CStr::from_bytes_until_nul(&bytes).is_ok_and(|driver| driver == BRIDGE)
    }

    /// All IPv4 addresses, with their labels.
    pub fn ipv4_addresses(&self) -> Vec<(InterfaceName, Ipv4Addr)> {
        let mut room = std::vec![Asked::ZERO; ENTRIES_FIRST];
        loop {
            let bytes = size_of_val(&room[..]) as i32;
            let mut list = List { bytes, entries: room.as_mut_ptr() };
            let pointer: *mut List = &mut list;
            // SAFETY: a whole `struct ifconf`, with room for as many bytes as it says.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFCONF as _, pointer) } < 0 {
                return Vec::new();
            }
            let count = list.bytes as usize / size_of::<Asked>();
            if count < room.len() {
                room.truncate(count);
                break;
            }
            // what had no room is left out without a word
            let more = 2 * room.len();
            room.resize(more, Asked::ZERO);
        }
        let of = |entry: &Asked| {
            let label = CStr::from_bytes_until_nul(&entry.name).ok()?;
            Some((InterfaceName::new(label.to_bytes()), entry.ipv4()?))
        };
        room.iter().filter_map(of).collect()
    }

    /// The netmask of an address that has this label.
    pub fn netmask(&self, label: InterfaceName, ip: Ipv4Addr) -> Option<Ipv4Addr> {
        let mut asked = Asked::of(label);
        // several addresses may have one label
        asked.ipv4_set(ip);
        self.ask(libc::SIOCGIFNETMASK as _, asked)?.ipv4()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_as_everywhere() {
        let devices = NetDevices::open().unwrap();
        let (lo, ip) = (InterfaceName::new(b"lo"), Ipv4Addr::LOCALHOST);
        assert_eq!(devices.number(lo), Some(1));
        assert_eq!(devices.hardware_address(lo), Some([0; 6]));
        assert!(devices.flags(lo).unwrap() & libc::IFF_LOOPBACK != 0);
        assert!(devices.ipv4_addresses().contains(&(lo, ip)));
        assert_eq!(devices.netmask(lo, ip), Some(Ipv4Addr::new(255, 0, 0, 0)));
        assert_eq!((devices.speed_mbit_s(lo), devices.is_bridge(lo)), (0, false));
        assert_eq!(devices.number(InterfaceName::new(b"no such")), None);
    }
}
