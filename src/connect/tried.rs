//! Where a peer was looked for, in words.
#![forbid(unsafe_code)]

use super::route::{handle_address, handle_socket};
use crate::wire::handle::{ADDRESSES_MAX, Address, Family, ListenHandle};
use core::fmt;
use core::net::SocketAddr;

/// The addresses at which a peer was dialled, with their ports; none within a host.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Tried {
    addresses: [Address; ADDRESSES_MAX],
    /// How many others there are.
    more: u16,
}

impl Tried {
    /// None.
    pub const NONE: Tried = Tried {
        addresses: [Address { family: Family::None, port: 0, ip: [0; 16] }; ADDRESSES_MAX],
        more: 0,
    };

    /// These; what is beyond those of a handle is counted.
    pub fn of(addresses: impl IntoIterator<Item = SocketAddr>) -> Tried {
        let mut tried = Tried::NONE;
        for (at, address) in addresses.into_iter().enumerate() {
            match tried.addresses.get_mut(at) {
                Some(place) => *place = handle_address(address),
                None => tried.more = tried.more.saturating_add(1),
            }
        }
        tried
    }

    /// All that a listener's handle names.
    pub fn of_handle(handle: &ListenHandle) -> Tried {
        Tried::of(handle.all_addresses().filter_map(handle_socket))
    }

    /// Whether other hosts cannot use any of them.
    pub fn is_own_host(&self) -> bool {
        self.addresses().all(|at| at.ip().is_loopback())
    }

    /// Whether there are some, and other hosts cannot use any of them.
    pub fn is_loopback_alone(&self) -> bool {
        !self.is_empty() && self.is_own_host()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.addresses().next().is_none()
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.addresses.iter().filter_map(handle_socket)
    }
}

impl Default for Tried {
    fn default() -> Tried {
        Tried::NONE
    }
}

/// ` at 10.0.0.2:4000, [fd00::2]:4001`; nothing where there is none.
impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, address) in self.addresses().enumerate() {
            f.write_str(if at == 0 { " at " } else { ", " })?;
            write!(f, "{address}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn addresses_are_named_with_their_ports() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let tried = Tried::of([at("10.0.0.2:4000"), at("[fd00::2]:4001")]);
        assert_eq!(tried.to_string(), " at 10.0.0.2:4000, [fd00::2]:4001");
        assert_eq!(Tried::NONE.to_string(), "");
        let eight = Tried::of((1..=8).map(|port| SocketAddr::from(([10, 0, 0, 2], port))));
        let rest = 8 - ADDRESSES_MAX;
        assert!(eight.to_string().ends_with(&std::format!(" and {rest} more")), "{eight}");
    }
}
