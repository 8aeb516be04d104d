//! Which ports of two hosts are rails of one connection: those in one subnet. Pure arithmetic, the
//! same on both sides.

use super::gid::{Gid, GidEntry, GidKind, IB_PREFIX_BITS};
use super::ports::Port;
use crate::base::integer::bits_common;
use core::cmp::Reverse;
use core::fmt;
use core::net::IpAddr;
use std::vec::Vec;

/// An address of a network interface of this host, with the length of its subnet's prefix: what
/// makes a subnet of a RoCE port's GID. Who knows the interfaces gives it; this room does not.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of it that name the subnet.
    pub prefix_bits: u8,
}

/// A port, as one end of a rail: what peers tell each other.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct RailEnd {
    /// The GID by which it is used.
    pub gid: Gid,
    /// What its packets look like; both ends' look alike.
    pub kind: GidKind,
    /// Bits of the GID's address that name its subnet.
    pub prefix_bits: u8,
    /// In Mbit/s; 0: not known.
    pub speed_mbit_s: u32,
}

impl RailEnd {
    /// One that reaches nobody.
    pub const NOWHERE: RailEnd =
        RailEnd { gid: Gid([0; 16]), kind: GidKind::RoceV2, prefix_bits: 0, speed_mbit_s: 0 };

    /// The end that a port is when it is used by this GID. On RoCE the subnet is that of the
    /// address which is the GID; without one it reaches nobody but those of its own link, or
    /// itself.
    pub fn new(port: &Port, gid: &GidEntry, addresses: &[HostAddress]) -> RailEnd {
        let ip = gid.gid.ip();
        let of_address = addresses.iter().find(|address| address.ip == ip);
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match (gid.kind, of_address) {
            (GidKind::InfiniBand, _) => IB_PREFIX_BITS,
            (_, Some(address)) => address.prefix_bits.min(width),
            (_, None) if gid.gid.is_link_local() => IB_PREFIX_BITS,
            (_, None) => width,
        };
        RailEnd { gid: gid.gid, kind: gid.kind, prefix_bits, speed_mbit_s: port.speed_mbit_s }
    }

    /// Length of the subnet's prefix that both ends are in; `None`: they are in different ones.
    /// Where they disagree on its length, the longer one counts: each then sees the other in its
    /// own subnet.
    pub fn subnet_with(&self, other: &RailEnd) -> Option<u8> {
        let nowhere = |end: &RailEnd| end.gid == RailEnd::NOWHERE.gid;
        if self.kind != other.kind || nowhere(self) || nowhere(other) {
            return None;
        }
        // an InfiniBand GID may look like an IPv4 address, and is none
        let common = match self.kind {
            GidKind::InfiniBand => {
                let bits = |gid: Gid| u128::from_be_bytes(gid.0);
                (bits(self.gid) ^ bits(other.gid)).leading_zeros()
            }
            GidKind::RoceV1 | GidKind::RoceV2 => bits_common(self.gid.ip(), other.gid.ip())?,
        };
        let bits = self.prefix_bits.max(other.prefix_bits);
        (common >= u32::from(bits)).then_some(bits)
    }
}

impl fmt::Display for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.gid, self.prefix_bits, self.kind)
    }
}

/// A rail: an end of ours and one of theirs, by their places.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct RailPair {
    /// Among ours.
    pub ours: usize,
    /// Among theirs.
    pub theirs: usize,
}

/// Where two peers are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Hosts {
    /// On one: a port may be both ends of a rail.
    Same,
    /// On two: an address that both have, as those of bridges, leads to the asking one itself.
    Apart,
}

/// The rails between two peers, at most so many. Each end is in one of them; ends of a subnet that
/// has several are paired in their order, the first with the first. Narrower subnets come first,
/// then faster ports. Both sides find the same pairs, so that it does not matter which one asks.
///
/// *Cost*: allocates; as [`pairs_into`].
pub fn pairs(
    ours: &[RailEnd],
    theirs: &[RailEnd],
    hosts: Hosts,
    rails_max: usize,
) -> Vec<RailPair> {
    let most = rails_max.min(ours.len()).min(theirs.len());
    let mut found = std::vec![RailPair { ours: 0, theirs: 0 }; most];
    let count = pairs_into(ours, theirs, hosts, &mut found);
    found.truncate(count);
    found
}

/// The same, as many as there is room for; says how many.
///
/// *Cost*: the product of both lengths, for each pair.
pub fn pairs_into(
    ours: &[RailEnd],
    theirs: &[RailEnd],
    hosts: Hosts,
    out: &mut [RailPair],
) -> usize {
    let is_of = |end: &RailEnd, ends: &[RailEnd]| ends.iter().any(|other| other.gid == end.gid);
    let leads_home = |our: &RailEnd, their: &RailEnd| match hosts {
        Hosts::Same => false,
        Hosts::Apart => is_of(our, theirs) || is_of(their, ours),
    };
    // an end that is listed again is a further queue pair of its port
    let before =
        |ends: &[RailEnd], at: usize| ends[..at].iter().filter(|e| e.gid == ends[at].gid).count();
    let order = |pair: &RailPair| {
        let (our, their) = (&ours[pair.ours], &theirs[pair.theirs]);
        let bits = our.subnet_with(their).filter(|_| !leads_home(our, their))?;
        // what is slower decides; what is not known is slow
        let speed = our.speed_mbit_s.min(their.speed_mbit_s);
        let ends = (our.gid.min(their.gid), our.gid.max(their.gid));
        // no port is without a rail because another has several
        let further = before(ours, pair.ours).max(before(theirs, pair.theirs));
        // the sum is the same from both sides, and pairs of one sum have no end in common
        Some((further, Reverse(bits), Reverse(speed), pair.ours + pair.theirs, ends))
    };
    for count in 0..out.len() {
        let taken =
            |it: &RailPair| out[..count].iter().any(|p| p.ours == it.ours || p.theirs == it.theirs);
        let all = (0..ours.len())
            .flat_map(|i| (0..theirs.len()).map(move |j| RailPair { ours: i, theirs: j }));
        let free = all.filter(|pair| !taken(pair));
        let next = free.filter_map(|pair| order(&pair).map(|order| (order, pair)));
        let Some((_, pair)) = next.min_by_key(|(order, _)| *order) else { return count };
        out[count] = pair;
    }
    out.len()
}

/// Why there is no rail, in words: which subnets each side has. `None`: there is one.
///
/// *Cost*: as [`pairs_into`], for one; nothing allocates.
pub fn apart<'e>(ours: &'e [RailEnd], theirs: &'e [RailEnd], hosts: Hosts) -> Option<Apart<'e>> {
    let mut first = [RailPair { ours: 0, theirs: 0 }];
    let count = pairs_into(ours, theirs, hosts, &mut first);
    (count == 0).then_some(Apart { ours, theirs })
}

/// Ports of two sides of which none makes a rail.
#[derive(Copy, Clone, Debug)]
pub struct Apart<'e> {
    ours: &'e [RailEnd],
    theirs: &'e [RailEnd],
}

impl fmt::Display for Apart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = |our: &RailEnd| self.theirs.iter().any(|it| our.subnet_with(it).is_some());
        let why = match self.ours.iter().any(shares) {
            true => {
                "in each common subnet both sides have the same address, which leads back to the \
                 host that uses it"
            }
            false => "no subnet in common",
        };
        let (ours, theirs) = (Ends(self.ours), Ends(self.theirs));
        write!(f, "{why}: this side's ports are {ours}; the peer's are {theirs}")
    }
}

/// Each once: further queue pairs of a port are listed, too.
struct Ends<'e>(&'e [RailEnd]);

impl fmt::Display for Ends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends(ends) = self;
        let is_first = |at: usize| !ends[..at].contains(&ends[at]);
        for at in (0..ends.len()).filter(|at| is_first(*at)) {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, ends[at])?;
        }
        if ends.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
