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

extern crate std;

use super::address::socket_of;
use super::peer::Lingering;
use super::rail::Libfabric;
use super::sys::numbers as n;
use crate::base::descriptor;
use crate::base::units::{Instant, Span};
use crate::memory::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// From one to the next of a peer, and how long one may hang.
const EVERY: Span = Span::millis(500);
/// Whose endpoints listen over TCP.
const LISTENERS: [&[u8]; 2] = [b"tcp", b"tcp;ofi_rxm"];

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
pub(super) struct Probes([Option<Probe>; AT_ONCE]);

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
}

impl Libfabric<'_> {
    /// Whether a peer's address is that of a socket which listens for as long as its endpoint is
    /// open, and whose kernel goes on sending what that has left.
    pub(super) fn has_listener(&self, index: usize) -> bool {
        let name = &self.names[index][..usize::from(self.peers[index].name_bytes)];
        let is_socket = socket_of(self.address_format, name).is_some();
        is_socket && LISTENERS.contains(&self.provider_name().to_bytes())
    }

    /// Goes on finding out whether anybody listens at the address of a peer that counts as dead.
    #[cold]
    pub(super) fn probe_on(&mut self, index: usize) {
        let code = match self.probes.of(index) {
            Some(probe) => {
                let code = probe.answer(self.now);
                if code.is_some() || self.now.since(probe.since) >= EVERY {
                    // who comes behind it in this poll has the next turn
                    self.probes.end(index);
                }
                code
            }
            None => self.probe_begin(index),
        };
        match code {
            Some(libc::ECONNREFUSED) if self.has_no_connection(index) => {
                self.drain_failed(index, libc::ECONNREFUSED, 0);
            }
            // its endpoint lives, and the path works: what it posted was left to no kernel, and its
            // word may never come, of an end that it never joined, or whose number it gave anew
            Some(0) if self.peers[index].ending.lingering == Lingering::Closed => {
                self.outlast(index, self.posted_for(index));
            }
            // somebody does: each time costs it a look, and its word will come
            Some(0) => self.peers[index].ending.probe_at = self.now.after(Span(10 * EVERY.0)),
            Some(_) | None => {}
        }
    }

    /// Asks, if it is time and its turn; the code of an answer that comes at once.
    fn probe_begin(&mut self, index: usize) -> Option<i32> {
        let now = self.now;
        let record = &self.peers[index];
        if record.address == n::ADDR_UNSPEC
            || now < record.ending.probe_at
            || !self.has_listener(index)
        {
            return None;
        }
        let place = self.probes.room()?;
        let record = &mut self.peers[index];
        record.ending.probe_at = now.after(EVERY);
        let name = &self.names[index][..usize::from(record.name_bytes)];
        match Probe::begin(index, name, now) {
            Ok(probe) => {
                *place = Some(probe);
                None
            }
            Err(code) => Some(code),
        }
    }
}
