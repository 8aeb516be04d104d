//! Out of which interface the kernel sends what begins at an address: hosts with several NICs often
//! have routes of their own for each (`ip rule add from`), which a socket that is bound to no
//! address does not see. Asks netlink. One of the six files of this room that call the C library.
//!
//! *Source*: rtnetlink(7); `inet_rtm_getroute` in Linux's `net/ipv4/route.c`.

extern crate std;

use super::fork::PrivateFd;
use super::interfaces::all_addresses;
use core::net::IpAddr;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// `struct nlmsghdr`, and `struct rtmsg` behind it; attributes follow.
const HEADER_BYTES: usize = 16;
const ATTRIBUTES_AT: usize = HEADER_BYTES + 12;
/// `struct rtattr`: a length that counts itself, and a kind.
const ATTRIBUTE_BYTES: usize = 4;
const ANSWER_BYTES: usize = 1024;

/// Whether packets from `from`, an address of ours, leave for `to` by the interface that has it.
/// `false` also where the kernel does not say.
///
/// *Cost*: allocates; a few system calls for each interface. For set-up.
pub fn leads_by_its_own(from: IpAddr, to: IpAddr) -> bool {
    if from.is_ipv4() != to.is_ipv4() {
        return false;
    }
    let Some(out) = interface_out(from, to) else { return false };
    let all = all_addresses().unwrap_or_default();
    let mut having = all.iter().filter(|address| address.ip == from);
    having.any(|address| number_of(address.name.as_str()) == Some(out))
}

fn number_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: a name that ends with a zero.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// The number of the interface by which packets leave; `None`: by none, or it is not to be had.
fn interface_out(from: IpAddr, to: IpAddr) -> Option<u32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a call without pointers.
    let made = || unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    let socket = PrivateFd::made(made).ok()?;
    let (fd, request) = (socket.as_raw_fd(), request(from, to));
    // SAFETY: bytes of ours, as many as are said.
    if unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) } < 0 {
        return None;
    }
    let mut room = [0u8; ANSWER_BYTES];
    // SAFETY: room of ours, as much as is said. The kernel has answered before `send` returned.
    let count = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) };
    answered(room.get(..usize::try_from(count).ok()?)?)
}

/// The request for the route of one packet.
fn request(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let (from, to) = (octets(from), octets(to));
    let family = if to.len() == 4 { libc::AF_INET } else { libc::AF_INET6 };
    let bits = (to.len() * 8) as u8;
    let length = ATTRIBUTES_AT + 2 * (ATTRIBUTE_BYTES + to.len());
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(libc::RTM_GETROUTE.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]); // number, and whose: the kernel's business
    bytes.extend([family as u8, bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (kind, octets) in [(libc::RTA_DST, to), (libc::RTA_SRC, from)] {
        bytes.extend(((ATTRIBUTE_BYTES + octets.len()) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(octets);
    }
    bytes
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => Vec::from(ip.octets()),
        IpAddr::V6(ip) => Vec::from(ip.octets()),
    }
}

/// The interface of the route that the kernel has answered with, if it has one.
fn answered(bytes: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    if kind != libc::RTM_NEWROUTE {
        return None;
    }
    let mut rest = bytes.get(ATTRIBUTES_AT..)?;
    loop {
        let length = u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        if kind == libc::RTA_OIF {
            return Some(u32::from_ne_bytes(value.try_into().ok()?));
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn request_is_laid_out_as_the_kernel_reads_it() {
        let bytes = request([10, 1, 0, 1].into(), [10, 2, 0, 9].into());
        assert_eq!(bytes.len(), 44);
        assert_eq!(bytes[..8], [44u32.to_ne_bytes(), [26, 0, 1, 0]].concat());
        assert_eq!(bytes[16..20], [2, 32, 32, 0]);
        assert_eq!(bytes[28..36], [8, 0, 1, 0, 10, 2, 0, 9]);
        assert_eq!(bytes[36..], [8, 0, 2, 0, 10, 1, 0, 1]);
        assert_eq!(request([0u16; 8].into(), [0u16; 8].into()).len(), 28 + 40);
    }

    #[test]
    fn answer_that_is_cut_off_names_no_interface() {
        let mut bytes = [0; ATTRIBUTES_AT + 16];
        bytes[4] = libc::RTM_NEWROUTE as u8;
        bytes[ATTRIBUTES_AT..].copy_from_slice(&[7, 0, 1, 0, 9, 9, 9, 0, 8, 0, 4, 0, 5, 0, 0, 0]);
        assert_eq!(answered(&bytes), Some(5));
        for count in 0..bytes.len() {
            assert_eq!(answered(&bytes[..count]), None);
        }
        bytes[ATTRIBUTES_AT] = 0; // shorter than itself
        assert_eq!(answered(&bytes), None);
        bytes[4] = 2; // NLMSG_ERROR
        assert_eq!(answered(&bytes), None);
    }

    #[test]
    fn loopback_leads_to_itself_alone() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(leads_by_its_own(loopback, IpAddr::from([127, 0, 0, 2])));
        assert!(!leads_by_its_own(loopback, IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])));
    }
}
