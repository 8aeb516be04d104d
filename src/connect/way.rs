//! Which local address is used to dial another host, where interfaces were chosen.
//!
//! A listener answers only at the addresses of its chosen interfaces, and a connector uses only
//! these. The choice, first match first:
//!
//! 1. An address of ours in the same subnet.
//! 2. Through a router: the address that the kernel chooses, unless its interface was left out.
//! 3. An address of a chosen interface whose own routes lead there through that interface.
//! 4. The kernel's choice, if its interface may be used where no chosen one leads.
//! 5. Otherwise the dial is refused.
//!
//! Peers of this host are not concerned.
#![forbid(unsafe_code)]

use super::channel::Channel;
use super::connection::NONE;
use super::control::Control;
use super::error::ConnectError;
use super::interfaces::{InterfaceName, ip_of, is_common_subnet};
use super::memory::LinkMemory;
use super::note::Note;
use super::routed;
use super::stream;
use core::net::IpAddr;

/// Where a way begins.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Way {
    /// Wherever the kernel likes.
    Any,
    /// At this address of ours.
    From(IpAddr),
    /// At this address, which the kernel chose, and whose interface may be used where none of those
    /// chosen leads.
    Spare(IpAddr),
    /// At this address, whose interface was left out.
    Excluded(IpAddr),
}

impl<M: LinkMemory> Control<M> {
    /// How an address of a link's peer is dialled. *Cost*: where a router is needed, a few system
    /// calls for each interface.
    pub fn way_to(&self, to: IpAddr) -> Way {
        if !self.config.bind || self.is_own(to) {
            return Way::Any;
        }
        let ours = self.config.addresses.as_slice();
        let mut near = ours.iter().filter_map(|hello| {
            ip_of(hello).filter(|ip| is_common_subnet(*ip, to, hello.prefix_bits))
        });
        if let Some(ip) = near.next() {
            return Way::From(ip);
        }
        let source = stream::source(to);
        // one that we have not seen at open may be of a chosen interface, too
        if source.as_ref().is_ok_and(|ip| self.excluded(*ip).is_none()) {
            return Way::Any;
        }
        let mut routed = ours.iter().filter_map(ip_of);
        if let Some(ip) = routed.find(|ip| routed::leads_by_its_own(*ip, to)) {
            return Way::From(ip);
        }
        match source {
            Ok(ip) if self.config.spare.iter().any(|it| it.ip == ip) => Way::Spare(ip),
            Ok(ip) => Way::Excluded(ip),
            // what has no way at all says so when it is dialled
            Err(_) => Way::Any,
        }
    }

    /// Whether an address is one of this host, whose peers are reached over no interface. A host's
    /// number does not tell: containers that only a network joins may have the same.
    fn is_own(&self, ip: IpAddr) -> bool {
        let ours = self.config.addresses.as_slice();
        let chosen = ours.iter().any(|hello| ip_of(hello) == Some(ip));
        chosen || ip.is_loopback() || self.excluded(ip).is_some()
    }

    /// Where a link begins, if what follows it has to begin there, too.
    pub fn way_of(&self, index: u32) -> Option<IpAddr> {
        let link = &self.links[index as usize];
        let Some(Channel::Stream(socket)) = &link.socket else { return None };
        let choosy = self.config.bind && link.remote.is_some_and(|to| !self.is_own(to.ip()));
        if choosy { socket.local().ok() } else { None }
    }

    /// The interface of an address of ours, if it was left out.
    fn excluded(&self, ip: IpAddr) -> Option<InterfaceName> {
        self.config.excluded.iter().find(|other| other.ip == ip).map(|other| other.name)
    }

    /// Says that a link's peer is reached over an interface that is not the first choice: once, and
    /// not again when a link that ended is dialled anew.
    pub fn way_note(&mut self, index: u32, from: IpAddr) {
        let link = &mut self.links[index as usize];
        if core::mem::replace(&mut link.spare_said, true) || link.resumes != NONE {
            return;
        }
        let peer = self.links[index as usize].named();
        let over = self.excluded(from).unwrap_or(InterfaceName::new(b""));
        (self.config.note)(Note::Spare { peer, over });
    }

    /// What to say of a link to whose peer no chosen interface leads.
    pub fn way_error(&self, index: u32, ip: IpAddr) -> ConnectError {
        let peer = self.links[index as usize].named();
        let interface = self.excluded(ip).unwrap_or(InterfaceName::new(b""));
        ConnectError::Interface { peer, interface }
    }
}
