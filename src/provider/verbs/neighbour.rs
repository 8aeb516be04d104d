//! Whether the kernel knows the link address of a peer's port.
//!
//! On RoCE the kernel looks it up when a queue pair is given its peer. That call blocks the data
//! thread: for a second and more if no host answers. So a datagram of no bytes starts the lookup
//! first. Nothing waits for the answer: joining the queue pair is tried again later.
//!
//! *Source*: `rdma_resolve_ip` in Linux's `drivers/infiniband/core/addr.c`; rtnetlink(7).

use crate::base::descriptor;
use crate::base::netlink::{self, ANSWER_BYTES, Request};
use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::ptr;
use std::ffi::CString;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::vec::Vec;

/// A port that discards what comes (RFC 863).
const DISCARD: u16 = 9;
/// In which the kernel has an address, or needs none.
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;
/// `struct ndmsg`, of which the interface is at 4 and the state at 8.
const ENTRY_BYTES: usize = 12;
const STATE_AT: usize = 8;

/// An address of this network namespace, and the number of the interface that has it.
type Own = (u32, IpAddr);

/// The number of the interface that a port's GID belongs to; 0: not known, or it is one of another
/// network namespace, where one of ours may have the same name.
pub(super) fn interface_of(device: &str, port: u8, gid_index: u8, ip: IpAddr) -> u32 {
    let ports = std::format!("/sys/class/infiniband/{device}/ports/{port}");
    let name = fs::read_to_string(std::format!("{ports}/gid_attrs/ndevs/{gid_index}"));
    let name = name.ok().and_then(|name| CString::new(name.trim()).ok());
    // SAFETY: a name that ends with a zero.
    let index = name.map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    if_it_has(index, ip, &addresses())
}

/// The number of an interface if it has the address, else 0.
pub(super) fn if_it_has(interface: u32, ip: IpAddr, addresses: &[Own]) -> u32 {
    if addresses.contains(&(interface, ip)) { interface } else { 0 }
}

/// All addresses of this network namespace. None where the system does not say.
pub(super) fn addresses() -> Vec<Own> {
    let mut first = ptr::null_mut();
    // SAFETY: a place for the answer.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let (mut all, mut at): (Vec<Own>, *const libc::ifaddrs) = (Vec::new(), first);
    // SAFETY: null, or an entry of the list, which stands until it is given back.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: null, or an address that is as long as its family says.
        if let Some(ip) = unsafe { ip_at(entry.ifa_addr) } {
            // SAFETY: a name that ends with a zero.
            all.push((unsafe { libc::if_nametoindex(entry.ifa_name) }, ip));
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list that was got; nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    all
}

/// # Safety
/// - null, or an address that is as long as its family says.
unsafe fn ip_at(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller vouches for it.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: of this family, as the caller vouches.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, as the caller vouches.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(address.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// Whether giving a queue pair this peer will not wait for the kernel, as far as can be told. If it
/// would, the kernel looks for the peer from now on.
///
/// *Cost*: control path; some system calls, of which none waits.
pub(super) fn is_known(interface: u32, ours: IpAddr, theirs: IpAddr) -> bool {
    if interface == 0 || ours == theirs {
        return true;
    }
    let before = state(interface, theirs);
    if is_valid(before) {
        return true;
    }
    let is_asked = before.is_some_and(|state| state & libc::NUD_INCOMPLETE != 0);
    if !is_asked && ask(interface, ours, theirs).is_err() {
        return true; // the kernel will say why
    }
    // where asking has left no entry, nobody has to be asked on this interface
    let after = state(interface, theirs);
    after.is_none() || is_valid(after)
}

fn is_valid(state: Option<u16>) -> bool {
    state.is_some_and(|state| state & VALID != 0)
}

/// Has the kernel look for a peer, without waiting.
fn ask(interface: u32, ours: IpAddr, theirs: IpAddr) -> io::Result<()> {
    let at = |ip: IpAddr, port| match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { interface } else { 0 };
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
        }
    };
    let socket = UdpSocket::from(descriptor::lift(UdpSocket::bind(at(ours, 0))?.into())?);
    socket.set_nonblocking(true)?;
    socket.send_to(&[], at(theirs, DISCARD)).map(|_| ())
}

/// The state of a peer's entry in the kernel's table; `None`: it has none, or cannot be asked.
fn state(interface: u32, ip: IpAddr) -> Option<u16> {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut entry = [0; ENTRY_BYTES];
    entry[0] = family as u8;
    entry[4..8].copy_from_slice(&interface.to_ne_bytes());
    let request = Request::new(libc::RTM_GETNEIGH, &entry).with(libc::NDA_DST, ip);
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let made = || unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    let socket = descriptor::made(made).ok()?;
    let (fd, request) = (socket.as_raw_fd(), request.bytes());
    // SAFETY: bytes of ours, as many as are said.
    if unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) } < 0 {
        return None;
    }
    let mut room = [0u8; ANSWER_BYTES];
    // SAFETY: room of ours, as much as is said. The kernel answers before `send` returns.
    let count = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) };
    let answer = netlink::answered(room.get(..usize::try_from(count).ok()?)?, libc::RTM_NEWNEIGH)?;
    Some(u16::from_ne_bytes(answer.get(STATE_AT..STATE_AT + 2)?.try_into().ok()?))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn state_that_says_no_address_is_not_valid() {
        assert!(is_valid(Some(libc::NUD_REACHABLE)) && is_valid(Some(libc::NUD_PERMANENT)));
        assert!(!is_valid(Some(libc::NUD_INCOMPLETE)) && !is_valid(Some(libc::NUD_FAILED)));
        assert!(!is_valid(None));
    }

    #[test]
    fn host_has_no_entry_of_what_is_no_neighbour() {
        assert_eq!(state(1, IpAddr::from([192, 0, 2, 9])), None);
    }

    /// The name of another namespace's interface may be that of one of ours.
    #[test]
    fn interface_without_the_address_is_none() {
        let (ours, theirs) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let all = addresses();
        assert_eq!(if_it_has(1, ours, &all), 1, "{all:?}");
        assert_eq!(if_it_has(1, theirs, &all), 0);
        assert_eq!(if_it_has(7, ours, &[]), 0, "nothing is known");
    }

    #[test]
    fn nobody_is_asked_on_an_interface_that_has_no_neighbours() {
        // the loopback interface is the first of every network
        let (ours, theirs) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        assert!(is_known(1, ours, theirs));
        assert!(is_known(0, ours, theirs), "an interface that is not known");
    }
}
