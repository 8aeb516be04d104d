//! The interfaces of this host, as the kernel lists them. Only at open: it allocates.

use super::interfaces::{InterfaceAddress, InterfaceName};
use core::ffi::CStr;
use core::mem::zeroed;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;
use std::io;
use std::vec::Vec;

/// What the kernel says of one interface, whether it has an address or not.
#[derive(Copy, Clone, Debug)]
pub struct Interface {
    /// Its name.
    pub name: InterfaceName,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether its driver has what it needs to carry packets, as a cable.
    pub running: bool,
}

/// All interfaces and all their addresses, in the kernel's order.
#[derive(Default, Debug)]
pub struct Survey {
    /// Each once.
    pub all: Vec<Interface>,
    /// Their IPv4 and IPv6 addresses.
    pub addresses: Vec<InterfaceAddress>,
}

/// The list of getifaddrs(3), freed with it.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by getifaddrs, and freed once.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// Asks the kernel.
pub fn interfaces() -> io::Result<Survey> {
    let mut list = List(ptr::null_mut());
    // SAFETY: valid for the write of a pointer.
    if unsafe { libc::getifaddrs(&mut list.0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Survey::default();
    let mut at = list.0;
    while !at.is_null() {
        // SAFETY: an entry of the list, which lives until the end of this function.
        let entry = unsafe { &*at };
        add(entry, &mut found);
        at = entry.ifa_next;
    }
    Ok(found)
}

fn add(entry: &libc::ifaddrs, found: &mut Survey) {
    // SAFETY: every entry has a terminated name.
    let label = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
    // of an IPv4 address it is the label (`eth0:hsn`); no interface has a colon in its name
    let name = InterfaceName::new(label.split(|byte| *byte == b':').next().unwrap_or(label));
    let set = |flag: i32| entry.ifa_flags & flag as u32 != 0;
    // that it is running the kernel says a while later
    let (up, running) = (set(libc::IFF_UP), set(libc::IFF_LOWER_UP));
    if !found.all.iter().any(|known| known.name == name) {
        found.all.push(Interface { name, up, running });
    }
    // SAFETY: null, or an address of the family that it names (getifaddrs(3)).
    let Some(ip) = (unsafe { address(entry.ifa_addr) }) else { return };
    // SAFETY: as above.
    let prefix_bits = match unsafe { address(entry.ifa_netmask) } {
        Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
        Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
        None if ip.is_ipv4() => 32,
        None => 128,
    };
    found.addresses.push(InterfaceAddress {
        label: InterfaceName::new(label),
        up,
        running,
        loopback: set(libc::IFF_LOOPBACK),
        ..InterfaceAddress::new(name, ip, prefix_bits as u8)
    });
}

/// An IPv4 or IPv6 address; `None`: something else, or nothing.
///
/// # Safety
/// - `at` is null, or points at a socket address as long as its family says.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family.
    let family = unsafe { (*at).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: plain integers, for which zero is a value.
            let mut whole: libc::sockaddr_in = unsafe { zeroed() };
            // SAFETY: as long as this family's, by the contract; the copy asks for no alignment.
            unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut whole).cast(), 16) };
            Some(IpAddr::V4(Ipv4Addr::from(whole.sin_addr.s_addr.to_ne_bytes())))
        }
        libc::AF_INET6 => {
            // SAFETY: plain integers, for which zero is a value.
            let mut whole: libc::sockaddr_in6 = unsafe { zeroed() };
            // SAFETY: as above; 28 bytes is the length of the structure.
            unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut whole).cast(), 28) };
            Some(IpAddr::V6(Ipv6Addr::from(whole.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}
