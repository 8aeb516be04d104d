//! Interfaces and addresses without netlink: IPv4 from ioctl, IPv6 from `/proc`, and how interfaces
//! lie upon each other from `/sys` if that shows this network.

use super::address::{InterfaceAddress, InterfaceName};
use super::device::{self, Link};
use super::survey::{Interface, Survey};
use crate::connect::netdevice::NetDevices;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::vec::Vec;

/// Where the kernel lists the interfaces and IPv6 addresses of this thread's network.
const PROC: &str = "/proc/thread-self/net";
/// Where it says more of interfaces, of the network in which it was mounted.
const SYS: &str = "/sys/class/net";

/// A line of the list of IPv6 addresses.
struct Row<'r> {
    ip: Ipv6Addr,
    prefix_bits: u8,
    flags: u8,
    name: &'r str,
}

/// All interfaces, and how they lie upon each other.
pub fn survey(devices: &NetDevices) -> (Survey, Vec<Link>) {
    let file = |name| std::fs::read_to_string(Path::new(PROC).join(name)).unwrap_or_default();
    // where there is no such file there is no IPv6
    let (names, ipv6) = (file("dev"), file("if_inet6"));
    let mut found = Survey::default();
    // two lines say what stands below them
    let is_name = |line: &str| Some(InterfaceName::new(line.split_once(':')?.0.trim().as_bytes()));
    let listed = names.lines().skip(2).filter_map(is_name);
    listed.for_each(|name| interface_add(devices, name, &mut found));
    for (label, ip) in devices.ipv4_addresses() {
        // no interface has a colon in its name
        let name = label.as_str().split(':').next().unwrap_or_default();
        let name = InterfaceName::new(name.as_bytes());
        let mask = devices.netmask(label, ip).unwrap_or(Ipv4Addr::BROADCAST);
        let prefix_bits = u32::from(mask).leading_ones() as u8;
        let address = InterfaceAddress::new(name, IpAddr::V4(ip), prefix_bits);
        address_add(devices, InterfaceAddress { label, ..address }, &mut found);
    }
    for row in ipv6.lines().filter_map(row) {
        let name = InterfaceName::new(row.name.as_bytes());
        let mut address = InterfaceAddress::new(name, IpAddr::V6(row.ip), row.prefix_bits);
        address.flags_take(row.flags.into());
        address_add(devices, address, &mut found);
    }
    let links = links(devices, &found.all);
    (found, links)
}

fn interface_add(devices: &NetDevices, name: InterfaceName, found: &mut Survey) {
    let Some(flags) = devices.flags(name) else { return };
    let running = devices.has_carrier(name).unwrap_or(flags & libc::IFF_RUNNING != 0);
    found.all.push(Interface { name, up: flags & libc::IFF_UP != 0, running });
}

fn address_add(devices: &NetDevices, address: InterfaceAddress, found: &mut Survey) {
    let known = |found: &Survey| found.all.iter().find(|it| it.name == address.name).copied();
    if known(found).is_none() {
        interface_add(devices, address.name, found);
    }
    // none: it has gone meanwhile
    let (Some(it), Some(flags)) = (known(found), devices.flags(address.name)) else { return };
    let loopback = flags & libc::IFF_LOOPBACK != 0;
    let (up, running) = (it.up, it.running);
    found.addresses.push(InterfaceAddress { up, running, loopback, ..address });
}

/// From the kernel's files, if they are of these interfaces; else the drivers say which are
/// bridges, and not of what.
fn links(devices: &NetDevices, all: &[Interface]) -> Vec<Link> {
    let net = Path::new(SYS);
    let is_ours = |it: &Interface| {
        let (number, hardware) = (devices.number(it.name), devices.hardware_address(it.name));
        let both = number.zip(hardware);
        both.is_some_and(|(number, hardware)| device::is_of_files(net, it.name, number, hardware))
    };
    let ours = all.iter().all(is_ours);
    let link = |it: &Interface| match ours {
        true => device::of_files(net, it.name),
        false => {
            let bridge = devices.is_bridge(it.name);
            Link { name: it.name, lower: Vec::new(), bridge, hardware: false }
        }
    };
    all.iter().map(link).collect()
}

/// Address, number of the interface, prefix, scope, flags, name.
fn row(line: &str) -> Option<Row<'_>> {
    let mut words = line.split_whitespace();
    let ip = u128::from_str_radix(words.next()?, 16).ok()?;
    let prefix_bits = u8::from_str_radix(words.nth(1)?, 16).ok()?;
    let flags = u8::from_str_radix(words.nth(1)?, 16).ok()?;
    Some(Row { ip: Ipv6Addr::from(ip), prefix_bits, flags, name: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_kernels_list_are_read() {
        let line = "fd770000000000000000000000000001 02 40 00 c0     eth0";
        let ip: Ipv6Addr = "fd77::1".parse().unwrap();
        let read = row(line).map(|row| (row.ip, row.prefix_bits, row.flags, row.name));
        assert_eq!(read, Some((ip, 64, 0xc0, "eth0")));
        for wrong in ["", "fd77", "x 02 40 00 80 eth0", "fd77 02 40 00 80"] {
            assert!(row(wrong).is_none(), "{wrong}");
        }
    }
}
