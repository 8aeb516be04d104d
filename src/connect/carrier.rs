//! Interfaces that lose their carrier: a cable is pulled, a switch fails, an interface is taken
//! down. The kernel tells of it, so that a lane need not be silent first ([`super::stalls`]).
//!
//! A lane lies on the interface that has its own end's address. When that interface has no carrier,
//! the lane is given up at once, if the connection has another that stands on one which has; so is
//! a link whose connections all have such a lane. Where nothing else stands nothing is given up: a
//! cable that is put back in time costs no connection.
//!
//! The peer may see nothing of it, behind a switch: it hears of the lane from us, over the others.
//! A lane to an address of our own host needs no carrier.
#![forbid(unsafe_code)]

use super::band::BandConfig;
use super::channel::Channel;
use super::connection::Phase;
use super::control::{Control, TOKEN_CARRIER};
use super::event::Rail;
use super::lanes::LaneState;
use super::link::LinkPhase;
use super::memory::LinkMemory;
use super::netlink::Netlink;
use super::note::Note;
use super::os::Poller;
use super::stream::{StreamSocket, ends_of};
use crate::base::netlink::{Request, attribute, messages};
use crate::base::units::Span;
use crate::fabric::completion::DownCause;
use crate::wire::hello::RAIL_TCP;
use core::net::IpAddr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::vec::Vec;

/// Addresses of this host that are kept; lanes of others wait for silence.
const KNOWN_MAX: usize = 256;
/// What the kernel says in one piece at most (`NLMSG_GOODSIZE`).
const ROOM_BYTES: usize = 8192;
/// Pieces taken in one go, under the lock.
const PIECES_MAX: usize = 64;
/// `struct ifinfomsg` and `struct ifaddrmsg`; attributes follow.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
/// What we want to be told of.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// One address of this host.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Known {
    ip: IpAddr,
    interface: u32,
    /// Whether the interface has no carrier, or is switched off.
    dark: bool,
}

/// Which addresses of this host are on interfaces without a carrier.
#[derive(Debug)]
pub(super) struct Carriers {
    /// `None`: nobody wants to know, or the kernel refuses.
    socket: Option<Netlink>,
    known: Vec<Known>,
    /// The table that is being told, and those that are to be asked for behind it.
    asked: Option<u16>,
    due: [Option<u16>; 2],
}

impl Carriers {
    /// Learns of all interfaces, if any lane may ever have another beside it.
    pub fn open(config: &BandConfig, poller: &Poller) -> Carriers {
        let mut carriers =
            Carriers { socket: None, known: Vec::new(), asked: None, due: [None; 2] };
        if config.rails & RAIL_TCP == 0 || config.lanes_max == 1 {
            return carriers;
        }
        let watched = Netlink::open(GROUPS).and_then(|socket| {
            poller.add(socket.as_fd(), TOKEN_CARRIER)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                carriers.socket = Some(socket);
                carriers.known = Vec::with_capacity(KNOWN_MAX);
                carriers.ask_anew();
            }
            Err(error) => (config.note)(Note::CarriersUnknown(error.raw_os_error().unwrap_or(0))),
        }
        carriers
    }

    /// Asks for all addresses, and then for all interfaces.
    fn ask_anew(&mut self) {
        self.due = [Some(libc::RTM_GETADDR), Some(libc::RTM_GETLINK)];
        self.ask_next();
    }

    fn ask_next(&mut self) {
        let Some(socket) = &self.socket else { return };
        if self.asked.is_some() {
            return;
        }
        let Some(table) = self.due.iter_mut().find_map(Option::take) else { return };
        let room = [0; LINK_BYTES];
        let length = if table == libc::RTM_GETLINK { LINK_BYTES } else { ADDRESS_BYTES };
        // what is not told now is told when it changes
        self.asked = socket.ask(&Request::all(table, &room[..length])).ok().map(|()| table);
    }

    /// Takes what the kernel has said; whether an interface has lost or got its carrier.
    fn read(&mut self) -> bool {
        let mut changed = false;
        let mut room = [0; ROOM_BYTES];
        for _ in 0..PIECES_MAX {
            let Some(socket) = &self.socket else { return changed };
            match socket.receive(&mut room) {
                Ok(count) => {
                    for (kind, body) in messages(&room[..count]) {
                        changed |= self.told(kind, body);
                    }
                }
                // more has changed than there was room for
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.ask_anew(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        changed
    }

    /// One message; whether an interface has lost or got its carrier.
    fn told(&mut self, kind: u16, body: &[u8]) -> bool {
        match kind {
            libc::RTM_NEWADDR => self.address_told(body, true),
            libc::RTM_DELADDR => self.address_told(body, false),
            libc::RTM_NEWLINK => return self.link_told(body, true).unwrap_or(false),
            libc::RTM_DELLINK => return self.link_told(body, false).unwrap_or(false),
            kind if i32::from(kind) == libc::NLMSG_DONE || i32::from(kind) == libc::NLMSG_ERROR => {
                self.asked = None;
                self.ask_next();
            }
            _ => {}
        }
        false
    }

    fn address_told(&mut self, body: &[u8], there: bool) {
        let interface = body.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let (Some(interface), Some(attributes)) = (interface, body.get(ADDRESS_BYTES..)) else {
            return;
        };
        // of an interface between two points the first is ours
        let ours = attribute(attributes, libc::IFA_LOCAL);
        let Some(ip) = ours.or(attribute(attributes, libc::IFA_ADDRESS)).and_then(ip_of) else {
            return;
        };
        let interface = u32::from_ne_bytes(interface);
        let dark = self.known.iter().any(|known| known.interface == interface && known.dark);
        self.known.retain(|known| (known.ip, known.interface) != (ip, interface));
        if there && self.known.len() < KNOWN_MAX {
            self.known.push(Known { ip, interface, dark });
        }
    }

    /// Whether that is new; `None`: it says nothing of an interface.
    fn link_told(&mut self, body: &[u8], there: bool) -> Option<bool> {
        let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
        // others tell of a bridge's ports
        if *body.first()? != libc::AF_UNSPEC as u8 {
            return None;
        }
        let (interface, flags) = (word(4)?, word(8)?);
        // the carrier itself: that an interface is running is told a while later
        let carries = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
        let dark = !there || flags & carries != carries;
        let of = |known: &&mut Known| known.interface == interface && known.dark != dark;
        Some(self.known.iter_mut().filter(of).map(|known| known.dark = dark).count() > 0)
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.known.iter().any(|known| known.ip == ip)
    }

    /// Whether the address is one of ours, and every interface that has it is dark.
    fn is_dark(&self, ip: IpAddr) -> bool {
        let mut having = self.known.iter().filter(|known| known.ip == ip).peekable();
        having.peek().is_some() && having.all(|known| known.dark)
    }

    /// Whether what a socket sends has nowhere to go.
    fn darkens(&self, socket: &StreamSocket) -> bool {
        let ends = ends_of(socket.as_fd().as_raw_fd());
        ends.is_some_and(|[ours, theirs]| self.is_dark(ours.ip()) && !self.has(theirs.ip()))
    }

    fn any_dark(&self) -> bool {
        self.known.iter().any(|known| known.dark)
    }
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = || Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?));
    let six = || Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?));
    four().or_else(six)
}

impl<M: LinkMemory> Control<M> {
    /// The kernel tells of interfaces.
    pub fn carriers_ready(&mut self) {
        if !self.carriers.read() {
            return;
        }
        for index in 0..self.connections.len() as u32 {
            self.lanes_darken(index);
        }
        for index in 0..self.links.len() as u32 {
            self.link_darken(index);
        }
    }

    /// Gives up the lanes of a connection that have no carrier, if another has.
    pub fn lanes_darken(&mut self, index: u32) {
        if !self.carriers.any_dark() || !self.is_kept(index) {
            return;
        }
        let is_dark = |lane: &u32| self.lane_carries(index, *lane) == Some(false);
        let dark =
            (0..self.lanes_of(index)).filter(is_dark).fold(0u32, |all, lane| all | 1 << lane);
        if dark == 0 || !self.has_carrier(index) {
            return;
        }
        for lane in (0..self.lanes_of(index)).filter(|lane| dark >> lane & 1 == 1) {
            self.counters.carriers_lost += 1;
            self.lane_gone(index, lane, DownCause::Broken(libc::ENETDOWN), Span(0));
        }
    }

    /// Whether any lane of a connection stands on an interface with a carrier.
    fn has_carrier(&self, index: u32) -> bool {
        (0..self.lanes_of(index)).any(|lane| self.lane_carries(index, lane) == Some(true))
    }

    /// Whether a lane's interface has a carrier; `None`: it has no sockets that stand. Ports tell
    /// of themselves.
    fn lane_carries(&self, index: u32, lane: u32) -> Option<bool> {
        let entry = &self.lanes[self.lane_place(index, lane) as usize];
        let sockets = if lane == 0 { &self.streams[index as usize] } else { &entry.streams };
        let stands = entry.state == LaneState::Held && !entry.stalled;
        let socket = sockets.iter().flatten().next().filter(|_| stands)?;
        socket.heard_ms()?;
        Some(!self.carriers.darkens(socket))
    }

    /// Gives up a link's socket that has no carrier, if all connections go on over others.
    fn link_darken(&mut self, index: u32) {
        let link = &self.links[index as usize];
        let (Some(Channel::Stream(socket)), LinkPhase::Ready, Rail::Tcp) =
            (&link.socket, link.phase, link.rail)
        else {
            return;
        };
        let ends = |control: &Self, at: u32| {
            let connection = &control.connections[at as usize];
            let is_closed = connection.phase == Phase::Open && connection.closed_here;
            let goes_on = control.is_kept(at) && control.has_carrier(at);
            !is_closed && !goes_on
        };
        if self.carriers.darkens(socket) && !self.is_any(link.first, ends) {
            self.link_silent(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: u32 = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32;

    fn carriers() -> Carriers {
        Carriers { socket: None, known: Vec::with_capacity(4), asked: None, due: [None; 2] }
    }

    fn link(interface: u32, flags: u32) -> Vec<u8> {
        let words = [0, interface, flags, 0];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn address(interface: u32, ip: [u8; 4]) -> Vec<u8> {
        let mut body = std::vec![2, 24, 0, 0];
        body.extend(interface.to_ne_bytes());
        body.extend([8, 0, libc::IFA_LOCAL as u8, 0]);
        body.extend(ip);
        body
    }

    #[test]
    fn address_is_dark_while_its_interface_has_no_carrier() {
        let (mut carriers, ip) = (carriers(), [10, 0, 0, 1]);
        carriers.told(libc::RTM_NEWADDR, &address(7, ip));
        carriers.told(libc::RTM_NEWADDR, &address(8, [10, 0, 0, 2]));
        assert!(!carriers.told(libc::RTM_NEWLINK, &link(7, UP)));
        assert!(!carriers.is_dark(ip.into()));
        assert!(carriers.told(libc::RTM_NEWLINK, &link(7, libc::IFF_UP as u32)));
        assert!(carriers.is_dark(ip.into()) && !carriers.is_dark([10, 0, 0, 2].into()));
        assert!(!carriers.told(libc::RTM_NEWLINK, &link(7, libc::IFF_UP as u32)), "again");
        assert!(carriers.told(libc::RTM_NEWLINK, &link(7, UP)));
        assert!(!carriers.is_dark(ip.into()) && !carriers.any_dark());
        assert!(carriers.told(libc::RTM_DELLINK, &link(7, UP)));
        assert!(carriers.is_dark(ip.into()));
        carriers.told(libc::RTM_DELADDR, &address(7, ip));
        assert!(!carriers.is_dark(ip.into()) && !carriers.has(ip.into()));
    }

    /// For up to a second behind its carrier the kernel does not call an interface running: rails
    /// were given up that had just come up.
    #[test]
    fn interface_that_is_not_running_yet_has_its_carrier() {
        let (mut carriers, ip) = (carriers(), [10, 0, 0, 1]);
        carriers.told(libc::RTM_NEWADDR, &address(7, ip));
        assert!(!carriers.told(libc::RTM_NEWLINK, &link(7, UP & !(libc::IFF_RUNNING as u32))));
        assert!(!carriers.is_dark(ip.into()));
        assert!(carriers.told(libc::RTM_NEWLINK, &link(7, UP & !(libc::IFF_LOWER_UP as u32))));
        assert!(carriers.is_dark(ip.into()));
    }

    #[test]
    fn address_of_two_interfaces_is_dark_with_both() {
        let (mut carriers, ip) = (carriers(), [10, 0, 0, 1]);
        carriers.told(libc::RTM_NEWADDR, &address(7, ip));
        carriers.told(libc::RTM_NEWADDR, &address(8, ip));
        carriers.told(libc::RTM_NEWLINK, &link(7, 0));
        assert!(!carriers.is_dark(ip.into()));
        carriers.told(libc::RTM_NEWLINK, &link(8, 0));
        assert!(carriers.is_dark(ip.into()));
    }

    #[test]
    fn port_that_leaves_a_bridge_and_words_that_are_cut_off_say_nothing() {
        let (mut carriers, ip) = (carriers(), [10, 0, 0, 1]);
        carriers.told(libc::RTM_NEWADDR, &address(7, ip));
        let mut bridged = link(7, 0);
        bridged[0] = libc::AF_BRIDGE as u8;
        assert!(!carriers.told(libc::RTM_DELLINK, &bridged));
        for length in 0..12 {
            assert!(!carriers.told(libc::RTM_NEWLINK, &link(7, 0)[..length]));
        }
        for length in 0..16 {
            carriers.told(libc::RTM_DELADDR, &address(7, ip)[..length]);
        }
        assert!(carriers.has(ip.into()) && !carriers.any_dark());
    }
}
