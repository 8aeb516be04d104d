//! GIDs: the addresses of a port, and which of them is used.
//!
//! The rules are NCCL's (`NCCL_IB_GID_INDEX`, `_ADDR_FAMILY`, `_ADDR_RANGE`, `_ROCE_VERSION_NUM`),
//! with three differences:
//!
//! 1. Addresses of this network namespace come first: a container may see its neighbors', too.
//! 2. If no family is set, it is IPv4 if there is such a GID, and else IPv6.
//! 3. A port without an allowed GID is refused by name. NCCL takes the first, which no router
//!    knows.

use crate::base::integer::bits_common;
use crate::base::words::{named, said};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::string::String;
use std::vec::Vec;

/// Bits of an InfiniBand GID that name the subnet (InfiniBand specification 1, 4.1.1).
pub const IB_PREFIX_BITS: u8 = 64;

/// A GID: 16 bytes, in the order of the wire. On RoCE it is an IPv6 address, or an IPv4 address
/// within one (`::ffff:10.0.0.1`).
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// As the kernel writes it: eight groups of four digits. `None`: it is none, or an entry of the
    /// table that is not in use.
    pub fn parse(text: &str) -> Option<Gid> {
        let gid = Gid(text.trim().parse::<Ipv6Addr>().ok()?.octets());
        (gid != Gid([0; 16])).then_some(gid)
    }

    /// The address that it is.
    pub fn ip(self) -> IpAddr {
        let ip = Ipv6Addr::from(self.0);
        ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
    }

    /// Whether it is good on one link alone.
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether it may name a port: not one without an interface id, nor a group of ports.
    fn is_port(self) -> bool {
        self.0[8..] != [0; 8] && self.0[0] != 0xff
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Gid(ip.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What carries the packets of a port.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LinkLayer {
    /// InfiniBand's own.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Something else, as of devices that have no queue pairs of the kind that is needed.
    Other,
}

named! {
    /// What packets of a GID look like.
    #[derive(Ord, PartialOrd)]
    pub enum GidKind {
        /// InfiniBand.
        InfiniBand = "InfiniBand",
        /// RoCE version 1: Ethernet frames, which no router forwards.
        RoceV1 = "RoCE v1",
        /// RoCE version 2: UDP packets.
        RoceV2 = "RoCE v2",
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct GidEntry {
    /// Its place in the table. Queue pairs name it in 8 bits (`sgid_index` of `ibv_global_route`):
    /// entries further on, which soft-RoCE has, are of no use.
    pub index: u8,
    /// The GID.
    pub gid: Gid,
    /// What its packets look like.
    pub kind: GidKind,
    /// The network interface that it belongs to; of RoCE alone.
    pub interface: Option<String>,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} {} ({}", self.index, self.gid, self.kind)?;
        if let Some(interface) = &self.interface {
            write!(f, ", {interface}")?;
        }
        f.write_str(")")
    }
}

said! {
    /// A family of addresses.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum Family {
        V4 => "IPv4",
        V6 => "IPv6",
    }
}

impl Family {
    /// That of an address.
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn has(self, gid: Gid) -> bool {
        Family::of(gid.ip()) == self
    }
}

/// Addresses that begin alike.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Range {
    /// One of them.
    pub ip: IpAddr,
    /// How many bits they have in common.
    pub prefix_bits: u8,
}

impl Range {
    /// Reads `10.0.0.0/8` or `fd00::/16`; `None`: it is neither, or has more bits than an address.
    pub fn parse(text: &str) -> Option<Range> {
        let (ip, bits) = text.split_once('/')?;
        let ip: IpAddr = ip.trim().parse().ok()?;
        let prefix_bits: u8 = bits.trim().parse().ok()?;
        let width = if ip.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        (u32::from(prefix_bits) <= width).then_some(Range { ip, prefix_bits })
    }

    /// Whether the address is one of them. None of another family is.
    pub fn has(&self, ip: IpAddr) -> bool {
        bits_common(self.ip, ip).is_some_and(|bits| bits >= u32::from(self.prefix_bits))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_bits)
    }
}

/// Which GID of a RoCE port is wanted.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct GidRule {
    /// That at this place, whatever it is; the rest is not asked then.
    pub index: Option<u8>,
    /// Of this family; `None`: IPv4 if there is one, else IPv6.
    pub family: Option<Family>,
    /// In this range.
    pub range: Option<Range>,
    /// [`GidKind::RoceV1`] or [`GidKind::RoceV2`].
    pub kind: GidKind,
}

impl GidRule {
    /// Without settings.
    pub const DEFAULT: GidRule =
        GidRule { index: None, family: None, range: None, kind: GidKind::RoceV2 };

    fn allows(&self, entry: &GidEntry, family: Family) -> bool {
        let in_range = self.range.is_none_or(|range| range.has(entry.gid.ip()));
        let named = entry.gid.is_port() && !entry.gid.is_link_local();
        named && in_range && entry.kind == self.kind && family.has(entry.gid)
    }
}

impl fmt::Display for GidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index {
            return write!(f, "at index {index}");
        }
        write!(f, "{}", self.kind)?;
        if let Some(family) = self.family {
            write!(f, ", {family}")?;
        }
        match self.range {
            Some(range) => write!(f, ", in {range}"),
            None => f.write_str(", of more than one link"),
        }
    }
}

said! {
    /// Why no GID of a port is used.
    #[derive(Clone, Eq, PartialEq, Debug)]
    pub enum NoGid {
        /// The port has none: on RoCE, its interface is down or has no address.
        Empty => "the port has no GID (is its interface up?)",
        /// The index that was asked for is not in use; how many are.
        Index(index: u8, count: usize) =>
            "GID index {index} is asked for and not in use ({count} others are)",
        /// The rule allows none; the rule and the GIDs in words.
        Rule(rule: String, there: String) => "no GID is {rule}; there are {there}",
    }
}

/// The GID of a port that is used. On InfiniBand it is always the first, as with NCCL. Tables show
/// those of all network namespaces: of equals the one is taken that is among the addresses `here`.
///
/// *Cost*: the table's length; allocates for an error.
pub fn choose<'t>(
    table: &'t [GidEntry],
    layer: LinkLayer,
    rule: &GidRule,
    here: &[IpAddr],
) -> Result<&'t GidEntry, NoGid> {
    let at = |index: u8| table.iter().find(|entry| entry.index == index);
    if table.is_empty() {
        return Err(NoGid::Empty);
    }
    let index = if layer == LinkLayer::InfiniBand { Some(0) } else { rule.index };
    if let Some(index) = index {
        return at(index).ok_or(NoGid::Index(index, table.len()));
    }
    let of = |family: Family, is_meant: &dyn Fn(&GidEntry) -> bool| {
        table.iter().find(|entry| rule.allows(entry, family) && is_meant(entry))
    };
    let first = |is_meant: &dyn Fn(&GidEntry) -> bool| match rule.family {
        Some(family) => of(family, is_meant),
        None => of(Family::V4, is_meant).or_else(|| of(Family::V6, is_meant)),
    };
    let found = first(&|entry| here.contains(&entry.gid.ip())).or_else(|| first(&|_| true));
    found.ok_or_else(|| NoGid::Rule(std::format!("{rule}"), listed(table)))
}

/// Whether packets from this GID of a port would leave by another network namespace than that of
/// the addresses `here`, as far as can be told.
pub fn is_elsewhere(entry: &GidEntry, layer: LinkLayer, here: &[IpAddr]) -> bool {
    let is_address = layer == LinkLayer::Ethernet && !entry.gid.is_link_local();
    is_address && !here.is_empty() && !here.contains(&entry.gid.ip())
}

fn listed(table: &[GidEntry]) -> String {
    let words: Vec<String> = table.iter().map(|entry| std::format!("{entry}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;
