//! Probes: a peer's kernel says whether a process still listens at the peer's address.
//!
//! Socket-based providers retry for ever when a peer's process has died. They return `-FI_EAGAIN`,
//! never the kernel's answer (`tcp;ofi_rxm` of 1.17). Their endpoints listen at their address while
//! they are open.
//!
//! | connection to that address | means |
//! |---|---|
//! | refused | the endpoint is closed |
//! | accepted | a process listens there |
//! | no answer | nothing |
//!
//! `verbs;ofi_rxm` has no socket address, and other providers have no listener.

use super::peer::{Address, Lingering};
use super::peers::Peers;
use super::sys::numbers as n;
use crate::base::descriptor;
use crate::base::units::{Instant, Span};
use crate::memory::Errno;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// From one to the next of a peer, and how long one may hang.
const EVERY: Span = Span::millis(500);
/// From one look for an answer to the next: each is a system call, of polls that others wait for.
const LOOK: Span = Span::millis(1);
/// How many at once, of a rail: each takes a descriptor. Where more peers do not answer, they take
/// turns.
const AT_ONCE: usize = 8;

/// A connection that is being made, for its answer alone.
#[derive(Debug)]
struct Probe {
    socket: OwnedFd,
    index: usize,
    since: Instant,
    looked_at: Instant,
}

impl Probe {
    /// `Err`: the kernel has answered at once, with this code or 0.
    fn begin(index: usize, name: &[u8], since: Instant) -> Result<Probe, i32> {
        let family = i32::from(u16::from_ne_bytes([name[0], name[1]]));
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: numbers.
        let made = descriptor::made(|| unsafe { libc::socket(family, kind, 0) });
        let socket = made.map_err(|error| Errno::from(error).0)?;
        let length = name.len() as libc::socklen_t;
        // SAFETY: an address of that length, which the call copies.
        let rc = unsafe { libc::connect(socket.as_raw_fd(), name.as_ptr().cast(), length) };
        match if rc == 0 { 0 } else { Errno::last().0 } {
            libc::EINPROGRESS => Ok(Probe { socket, index, since, looked_at: since }),
            code => Err(code),
        }
    }

    /// The kernel's answer, if it has come, and it is time to look.
    fn answer(&mut self, now: Instant) -> Option<i32> {
        if now.since(self.looked_at) < LOOK {
            return None;
        }
        self.looked_at = now;
        let events = libc::POLLOUT;
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        if unsafe { libc::poll(&mut poll, 1, 0) } != 1 {
            return None;
        }
        let (mut code, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ERROR);
        let (at, bytes) = ((&raw mut code).cast(), &raw mut length);
        // SAFETY: writable for that length.
        let rc = unsafe { libc::getsockopt(poll.fd, level, option, at, bytes) };
        Some(if rc == 0 { code } else { Errno::last().0 })
    }
}

/// Those that are under way, of one peer each.
#[derive(Debug)]
pub struct Probes([Option<Probe>; AT_ONCE]);

impl Probes {
    pub const NONE: Probes = Probes([const { None }; AT_ONCE]);

    fn of(&mut self, index: usize) -> Option<&mut Probe> {
        self.0.iter_mut().flatten().find(|probe| probe.index == index)
    }

    fn room(&mut self) -> Option<&mut Option<Probe>> {
        self.0.iter_mut().find(|place| place.is_none())
    }

    /// What is asked of a peer matters no more: its number may be another's next.
    pub fn end(&mut self, index: usize) {
        for place in &mut self.0 {
            place.take_if(|probe| probe.index == index);
        }
    }

    /// Goes on finding out whether anybody listens at the address of a peer that counts as dead.
    #[cold]
    pub fn go_on(&mut self, peers: &mut Peers, index: usize) {
        let now = peers.now;
        let code = match self.of(index) {
            Some(probe) => {
                let code = probe.answer(now);
                if code.is_some() || now.since(probe.since) >= EVERY {
                    // who comes behind it in this poll has the next turn
                    self.end(index);
                }
                code
            }
            None => self.begin(peers, index),
        };
        match code {
            Some(libc::ECONNREFUSED) if peers.has_no_connection(index) => {
                peers.drain_failed(index, libc::ECONNREFUSED, 0);
            }
            // its endpoint lives, and the path works: what it posted was left to no kernel, and its
            // word may never come, of an end that it never joined, or whose number it gave anew
            Some(0) if peers.all[index].ending.lingering == Lingering::Closed => {
                peers.outlast(index, peers.posted_for(index));
            }
            // somebody does: each time costs it a look, and its word will come
            Some(0) => peers.all[index].ending.probe_at = now.after(Span(10 * EVERY.0)),
            Some(_) | None => {}
        }
    }

    /// Asks, if it is time and its turn; the code of an answer that comes at once.
    fn begin(&mut self, peers: &mut Peers, index: usize) -> Option<i32> {
        let (now, record) = (peers.now, &peers.all[index]);
        let is_due = record.address != Address::NONE && now >= record.ending.probe_at;
        if !is_due || !peers.has_listener(index) {
            return None;
        }
        let place = self.room()?;
        peers.all[index].ending.probe_at = now.after(EVERY);
        match Probe::begin(index, peers.name(index), now) {
            Ok(probe) => {
                *place = Some(probe);
                None
            }
            Err(code) => Some(code),
        }
    }
}

const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;

/// The address of a socket that stands in an endpoint's address (`sockaddr_in`, `sockaddr_in6`);
/// `None`: it is of another kind. `format`: libfabric's number.
pub fn socket_of(format: u32, bytes: &[u8]) -> Option<SocketAddr> {
    if !matches!(format, n::SOCKADDR | n::SOCKADDR_IN | n::SOCKADDR_IN6) {
        return None;
    }
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let ip = match u16::from_ne_bytes(*family) {
        FAMILY_V4 => IpAddr::from(Ipv4Addr::from(*rest.first_chunk::<4>()?)),
        // behind the label of its flow
        FAMILY_V6 => IpAddr::from(Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_addresses_are_read_and_others_are_not() {
        let [family, other] = [FAMILY_V4, FAMILY_V6].map(u16::to_ne_bytes);
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&family);
        bytes[2..8].copy_from_slice(&[0x9c, 0xb0, 10, 0, 0, 7]);
        let four = Some(SocketAddr::from(([10, 0, 0, 7], 40112)));
        for format in [n::SOCKADDR, n::SOCKADDR_IN] {
            assert_eq!(socket_of(format, &bytes[..16]), four);
        }
        const EFA: u32 = 14;
        assert_eq!(socket_of(EFA, &bytes), None, "of another provider");
        assert_eq!(socket_of(n::SOCKADDR, &bytes[..7]), None, "too short");
        bytes[..2].copy_from_slice(&other);
        bytes[4..].fill(0);
        (bytes[8], bytes[23]) = (0xfd, 2);
        let six = socket_of(n::SOCKADDR_IN6, &bytes).unwrap();
        assert_eq!(six, "[fd00::2]:40112".parse().unwrap());
        assert_eq!(socket_of(n::SOCKADDR, &[0; 28]), None, "of no family");
    }
}
