//! Interfaces and addresses as netlink tells them: what getifaddrs(3) says, and how interfaces lie
//! upon each other.
//!
//! *Source*: rtnetlink(7); `rtnl_fill_ifinfo` in Linux's `net/core/rtnetlink.c`.

use super::address::{InterfaceAddress, InterfaceName};
use super::device::Link;
use super::survey::{Interface, Survey};
use crate::base::netlink::{Request, attribute, messages};
use crate::connect::netlink::Netlink;
use core::net::IpAddr;
use std::io;
use std::vec::Vec;

/// `struct ifinfomsg` and `struct ifaddrmsg`; attributes follow.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
/// What a reader should have room for (`netlink_dump` in Linux's `net/netlink/af_netlink.c`).
const ROOM_BYTES: usize = 32 << 10;
/// Kinds of which the interface that they name is the other end, and not below them.
const ENDS: [&[u8]; 2] = [b"veth", b"netkit"];
/// A wireless NIC, which has a kind, as virtual interfaces have.
const WIRELESS: &[u8] = b"wlan";

/// One interface.
struct Told {
    number: u32,
    name: InterfaceName,
    flags: u32,
    /// What it is, if it is virtual.
    kind: Vec<u8>,
    /// Whether a bus has it.
    on_bus: bool,
    /// The one below it, and the bridge or bond above it; 0: none.
    lower: u32,
    upper: u32,
}

/// All interfaces, and how they lie upon each other.
pub fn survey() -> io::Result<(Survey, Vec<Link>)> {
    let socket = Netlink::open(0)?;
    let mut told: Vec<Told> = Vec::new();
    let table = Request::all(libc::RTM_GETLINK, &[0; LINK_BYTES]);
    each(&socket, &table, libc::RTM_NEWLINK, |body| told.extend(link_of(body)))?;
    let all = told.iter().map(Told::interface).collect();
    let mut found = Survey { all, addresses: Vec::new() };
    let table = Request::all(libc::RTM_GETADDR, &[0; ADDRESS_BYTES]);
    each(&socket, &table, libc::RTM_NEWADDR, |body| {
        found.addresses.extend(address_of(body, &told));
    })?;
    let links = told.iter().map(|it| it.link(&told)).collect();
    Ok((found, links))
}

/// Puts a question, and takes all entries of the answer.
fn each(
    socket: &Netlink,
    question: &Request,
    entry: u16,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    socket.ask(question)?;
    let mut room = std::vec![0; ROOM_BYTES];
    loop {
        // the kernel answers before the call returns
        let count = match socket.receive(&mut room) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        for (kind, body) in messages(&room[..count]) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => return Err(refused(body)),
                _ if kind == entry => take(body),
                _ => {}
            }
        }
    }
}

/// Of a message that says why there is no answer.
fn refused(body: &[u8]) -> io::Error {
    let code = word(body, 0).map_or(0, |code| code as i32);
    io::Error::from_raw_os_error(code.saturating_neg())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A text of the kernel's, which ends with a zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

fn link_of(body: &[u8]) -> Option<Told> {
    let (number, flags) = (word(body, 4)?, word(body, 8)?);
    let attributes = body.get(LINK_BYTES..)?;
    let number_at = |kind| attribute(attributes, kind).and_then(|value| word(value, 0));
    let kind = attribute(attributes, libc::IFLA_LINKINFO)
        .and_then(|info| attribute(info, libc::IFLA_INFO_KIND));
    let kind = kind.map(|kind| text(kind).to_vec()).unwrap_or_default();
    // of another namespace's the number says nothing here
    let elsewhere = attribute(attributes, libc::IFLA_LINK_NETNSID).is_some();
    let is_end = elsewhere || ENDS.contains(&&kind[..]);
    Some(Told {
        number,
        name: InterfaceName::new(text(attribute(attributes, libc::IFLA_IFNAME)?)),
        flags,
        kind,
        on_bus: attribute(attributes, libc::IFLA_PARENT_DEV_NAME).is_some(),
        lower: if is_end { 0 } else { number_at(libc::IFLA_LINK).unwrap_or(0) },
        upper: number_at(libc::IFLA_MASTER).unwrap_or(0),
    })
}

impl Told {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag as u32 != 0
    }

    fn interface(&self) -> Interface {
        // that it is running the kernel says a while later
        let (up, running) = (self.has(libc::IFF_UP), self.has(libc::IFF_LOWER_UP));
        Interface { name: self.name, up, running }
    }

    fn link(&self, all: &[Told]) -> Link {
        let is_below = |it: &&Told| {
            it.number != self.number && (it.number == self.lower || it.upper == self.number)
        };
        let hardware = self.kind.is_empty() && !self.has(libc::IFF_LOOPBACK);
        Link {
            name: self.name,
            lower: all.iter().filter(is_below).map(|it| it.name).collect(),
            bridge: self.kind == b"bridge",
            hardware: hardware || self.on_bus || self.kind == WIRELESS,
        }
    }
}

fn address_of(body: &[u8], told: &[Told]) -> Option<InterfaceAddress> {
    let [_, prefix_bits, flags, _] = *body.first_chunk()?;
    let number = word(body, 4)?;
    let interface = told.iter().find(|it| it.number == number)?;
    let attributes = body.get(ADDRESS_BYTES..)?;
    // of an interface between two points the first is ours
    let ours = attribute(attributes, libc::IFA_LOCAL);
    let ip = ours.or(attribute(attributes, libc::IFA_ADDRESS)).and_then(ip_of)?;
    let label = attribute(attributes, libc::IFA_LABEL).map(|label| InterfaceName::new(text(label)));
    let mut address = InterfaceAddress {
        label: label.unwrap_or(interface.name),
        up: interface.has(libc::IFF_UP),
        running: interface.has(libc::IFF_LOWER_UP),
        loopback: interface.has(libc::IFF_LOOPBACK),
        ..InterfaceAddress::new(interface.name, ip, prefix_bits)
    };
    if ip.is_ipv6() {
        let more = attribute(attributes, libc::IFA_FLAGS).and_then(|flags| word(flags, 0));
        address.flags_take(more.unwrap_or(flags.into()));
    }
    Some(address)
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    let four = || Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?));
    let six = || Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?));
    four().or_else(six)
}
