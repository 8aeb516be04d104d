//! Whether the kernel knows the link address of a peer's port.
//!
//! On RoCE it looks that up when a queue pair is given its peer, and the call waits for the answer:
//! for a second and more where nobody answers, with the data thread in it. So it is asked here
//! first, by a datagram of no bytes, and a peer that does not answer at once is tried again later.
//!
//! *Source*: `rdma_resolve_ip` in Linux's `drivers/infiniband/core/addr.c`; rtnetlink(7).

extern crate std;

use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::time::Duration;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::vec::Vec;

/// How long an answer is waited for: hosts of one subnet answer within some hundred microseconds.
const WAIT: Duration = Duration::from_micros(100);
const WAITS_MAX: u32 = 50;
/// A port that discards what comes (RFC 863).
const DISCARD: u16 = 9;
/// In which the kernel has an address, or needs none.
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_NOARP
    | libc::NUD_PERMANENT;
/// `struct nlmsghdr`, and `struct ndmsg` behind it, of which the state is at 8.
const HEADER_BYTES: usize = 16;
const STATE_AT: usize = HEADER_BYTES + 8;

/// The number of the interface that a port's GID belongs to; 0: not known.
pub(super) fn interface_of(device: &str, port: u8, gid_index: u8) -> u32 {
    let ports = std::format!("/sys/class/infiniband/{device}/ports/{port}");
    let name = fs::read_to_string(std::format!("{ports}/gid_attrs/ndevs/{gid_index}"));
    let index = name.and_then(|name| {
        fs::read_to_string(std::format!("/sys/class/net/{}/ifindex", name.trim()))
    });
    index.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Whether giving a queue pair this peer will not wait for the kernel, as far as can be told.
///
/// *Cost*: control path; five milliseconds or little more where the peer has to be asked.
pub(super) fn is_known(interface: u32, ours: IpAddr, theirs: IpAddr) -> bool {
    if interface == 0 || ours == theirs || is_valid(state(interface, theirs)) {
        return true;
    }
    if ask(interface, ours, theirs).is_err() {
        return true; // the kernel will say why
    }
    for _ in 0..WAITS_MAX {
        // where asking has left no entry, nobody has to be asked on this interface
        match state(interface, theirs) {
            None => return true,
            state if is_valid(state) => return true,
            Some(_) => std::thread::sleep(WAIT),
        }
    }
    is_valid(state(interface, theirs))
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
    let socket = UdpSocket::bind(at(ours, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], at(theirs, DISCARD)).map(|_| ())
}

/// The request for one entry of the kernel's table.
fn request(interface: u32, ip: IpAddr) -> Vec<u8> {
    let (family, address) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, Vec::from(ip.octets())),
        IpAddr::V6(ip) => (libc::AF_INET6, Vec::from(ip.octets())),
    };
    let attribute = 4 + address.len();
    let length = STATE_AT + 4 + attribute;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(libc::RTM_GETNEIGH.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend([0; 8]); // number, and whose: the kernel's business
    bytes.extend([family as u8, 0, 0, 0]);
    bytes.extend(interface.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend((attribute as u16).to_ne_bytes());
    bytes.extend(libc::NDA_DST.to_ne_bytes());
    bytes.extend(address);
    bytes
}

/// What the kernel has answered: the state of the entry, if there is one.
fn answer(bytes: &[u8]) -> Option<u16> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let state = u16::from_ne_bytes(bytes.get(STATE_AT..STATE_AT + 2)?.try_into().ok()?);
    (kind == libc::RTM_NEWNEIGH).then_some(state)
}

/// The state of a peer's entry in the kernel's table; `None`: it has none, or cannot be asked.
fn state(interface: u32, ip: IpAddr) -> Option<u16> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let (fd, request) = (socket.as_raw_fd(), request(interface, ip));
    // SAFETY: bytes of ours, as many as are said.
    let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return None;
    }
    let mut room = [0u8; 512];
    // SAFETY: room of ours, as much as is said.
    let count = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), 0) };
    answer(room.get(..usize::try_from(count).ok()?)?)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn request_is_laid_out_as_the_kernel_reads_it() {
        let bytes = request(7, IpAddr::from([10, 0, 0, 9]));
        assert_eq!(bytes.len(), 36);
        assert_eq!(bytes[..8], [36u32.to_ne_bytes(), [30, 0, 1, 0]].concat());
        assert_eq!(bytes[16..24], [2, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[28..], [8, 0, 1, 0, 10, 0, 0, 9]);
        assert_eq!(request(7, IpAddr::from([0u16; 8])).len(), 48);
    }

    #[test]
    fn answer_without_an_entry_is_none() {
        let mut bytes = [0; 28];
        (bytes[4], bytes[STATE_AT]) = (28, libc::NUD_REACHABLE as u8);
        assert_eq!(answer(&bytes), Some(libc::NUD_REACHABLE));
        assert!(is_valid(answer(&bytes)));
        bytes[4] = 2; // NLMSG_ERROR
        assert_eq!(answer(&bytes), None);
        assert_eq!(answer(&bytes[..20]), None);
        assert!(!is_valid(Some(libc::NUD_INCOMPLETE)) && !is_valid(Some(libc::NUD_FAILED)));
    }

    #[test]
    fn nobody_is_asked_on_an_interface_that_has_no_neighbours() {
        // the loopback interface is the first of every network
        let (ours, theirs) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        assert!(is_known(1, ours, theirs));
        assert!(is_known(0, ours, theirs), "an interface that is not known");
    }
}
