//! IPv6 addresses of which the kernel still looks whether another host has them. Nothing can begin
//! or be answered at such an address; a host that has just got it waits a second or two.

use super::{AddressFamily, InterfaceAddress, InterfaceError, local_addresses_of};
use crate::base::units::Span;
use core::net::{IpAddr, Ipv6Addr};
use std::string::String;
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Flags of an address (`linux/if_addr.h`).
const IFA_F_TEMPORARY: u8 = 0x01;
const IFA_F_OPTIMISTIC: u8 = 0x04;
const IFA_F_DADFAILED: u8 = 0x08;
const IFA_F_DEPRECATED: u8 = 0x20;
const IFA_F_TENTATIVE: u8 = 0x40;
/// How long until it is looked again.
const LOOK: Duration = Duration::from_millis(10);

/// Takes in what the kernel's list of IPv6 addresses says of them.
pub fn flags_take(addresses: &mut [InterfaceAddress]) {
    // of this thread's network; where there is no such file there is no IPv6
    let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    for address in addresses {
        let of = |line| {
            row(line).filter(|(ip, _, name)| {
                IpAddr::V6(*ip) == address.ip && *name == address.name.as_str()
            })
        };
        let Some((_, flags, _)) = table.lines().find_map(of) else { continue };
        let has = |flag| flags & flag != 0;
        address.passing = has(IFA_F_TEMPORARY) || has(IFA_F_DEPRECATED);
        address.duplicate = has(IFA_F_DADFAILED);
        // an optimistic one is used while the kernel looks (RFC 4429)
        address.tentative = has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC) && !has(IFA_F_DADFAILED);
    }
}

/// A line of the list: address, number of the interface, prefix, scope, flags, name.
fn row(line: &str) -> Option<(Ipv6Addr, u8, &str)> {
    let mut words = line.split_whitespace();
    let ip = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u8::from_str_radix(words.nth(3)?, 16).ok()?;
    Some((Ipv6Addr::from(ip), flags, words.next()?))
}

/// [`local_addresses_of`], when the kernel knows that all can be used, or after `patience` those of
/// which it does; then also says which are left out.
///
/// *Cost*: blocks for up to `patience`, while an address is tentative and its interface has a
/// carrier: without one the kernel does not look.
pub fn settled_addresses_of(
    family: AddressFamily,
    choice: &str,
    patience: Span,
) -> Result<(Vec<InterfaceAddress>, Option<String>), InterfaceError> {
    let began = Instant::now();
    loop {
        let mut found = local_addresses_of(family, choice)?;
        let is_awaited = |it: &InterfaceAddress| it.tentative && it.running;
        if found.iter().any(is_awaited) && began.elapsed() < Duration::from_nanos(patience.0) {
            std::thread::sleep(LOOK);
            continue;
        }
        let late = |it: &&InterfaceAddress| is_awaited(it);
        let word = |it: &InterfaceAddress| std::format!("{} ({})", it.ip, it.name.as_str());
        let out: Vec<String> = found.iter().filter(late).map(word).collect();
        found.retain(|it| !is_awaited(it));
        return match (found.is_empty(), out.is_empty()) {
            (true, _) => Err(InterfaceError::Tentative(out.join(", "))),
            (false, true) => Ok((found, None)),
            (false, false) => Ok((found, Some(out.join(", ")))),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_kernels_list_are_read() {
        let line = "fd770000000000000000000000000001 02 40 00 c0     eth0";
        let ip: Ipv6Addr = "fd77::1".parse().unwrap();
        assert_eq!(row(line), Some((ip, 0xc0, "eth0")));
        for wrong in ["", "fd77", "x 02 40 00 80 eth0", "fd77 02 40 00 80"] {
            assert_eq!(row(wrong), None, "{wrong}");
        }
    }
}
