//! The interfaces of this host and their addresses, as the kernel lists them. Only at open: it
//! allocates.
//!
//! | source | used |
//! | --- | --- |
//! | netlink ([`super::dump`]) | where the kernel answers |
//! | ioctl and `/proc` ([`super::listed`]) | where it refuses netlink, as for some services |
//! | `/sys` | where netlink is refused, and only if it shows this network's interfaces |

use super::address::{InterfaceAddress, InterfaceName};
use super::device::{self, Link};
use super::{dump, listed};
use crate::connect::netdevice::NetDevices;
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

/// Asks the kernel.
///
/// *Errors*: it refuses netlink, and sockets of both families.
pub fn survey() -> io::Result<Survey> {
    let devices = NetDevices::open();
    let told = dump::survey();
    let (mut found, links) = match (told, &devices) {
        (Ok(told), _) => told,
        (Err(_), Ok(devices)) => listed::survey(devices),
        (Err(error), Err(_)) => return Err(error),
    };
    found_complete(&mut found, &links, devices.ok().as_ref());
    Ok(found)
}

/// Adds what is of the interface, and not of the address.
fn found_complete(found: &mut Survey, links: &[Link], devices: Option<&NetDevices>) {
    for address in &mut found.addresses {
        (address.device, address.inner) = device::below(links, address.name);
        address.speed_mbit_s = devices.map_or(0, |devices| devices.speed_mbit_s(address.name));
    }
}
