//! Which interface the kernel uses for packets from one of our addresses.
//!
//! Hosts with several NICs often have a routing table for each (`ip rule add from`). A socket that
//! is bound to no address does not use these. So this module asks netlink. It is one of the files
//! of this room that call the C library.
//!
//! *Source*: rtnetlink(7); `inet_rtm_getroute` in Linux's `net/ipv4/route.c`.

use super::interfaces::all_addresses;
use super::netlink::Netlink;
pub use super::stream::source;
use crate::base::netlink::{self, ANSWER_BYTES, Request};
use core::net::IpAddr;
use std::ffi::CString;

/// `struct rtmsg`; attributes follow.
const ROUTE_BYTES: usize = 12;

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
    let (family, bits) = if to.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
    let mut route = [0; ROUTE_BYTES];
    route[..3].copy_from_slice(&[family as u8, bits, bits]);
    let request = Request::new(libc::RTM_GETROUTE, &route);
    let request = request.with(libc::RTA_DST, to).with(libc::RTA_SRC, from);
    let socket = Netlink::open(0).ok()?;
    socket.ask(&request).ok()?;
    // the kernel has answered before `ask` returned
    let mut room = [0u8; ANSWER_BYTES];
    let count = socket.receive(&mut room).ok()?;
    let answer = room.get(..count)?;
    let route = netlink::answered(answer, libc::RTM_NEWROUTE)?;
    let interface = netlink::attribute(route.get(ROUTE_BYTES..)?, libc::RTA_OIF)?;
    Some(u32::from_ne_bytes(interface.try_into().ok()?))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_leads_to_itself_alone() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(leads_by_its_own(loopback, IpAddr::from([127, 0, 0, 2])));
        assert!(!leads_by_its_own(loopback, IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])));
    }
}
