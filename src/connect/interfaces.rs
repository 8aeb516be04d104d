//! Which addresses of this host peers are told, and which of a peer's are tried first.
//!
//! `CROSSTIE_SOCKET_IFNAME` chooses as NCCL's users know it: names by prefix, separated by commas
//! (`eth,ens`); a leading `^` leaves them out (`^docker,lo`); a leading `=` asks for whole names
//! (`=eth0`, `^=eth0`). Without a choice it is every interface but `lo`, `docker*` and `virbr*`,
//! `lo` when nothing else is there, and `virbr*` when not even that is. One that is switched on and
//! has no carrier is used where it is named. A labelled address (`eth0:hsn`) is its interface's; a
//! name with a colon chooses the address alone.
//!
//! Peers are told them in this order, since there is not always room for all:
//!
//! | first | then | last |
//! | --- | --- | --- |
//! | addresses of NICs | | those that peers can hardly use ([`InterfaceAddress::is_hard`]) |
//! | one of each device and family | one of each further subnet | aliases |
//! | the faster interface | | unknown speed |
#![forbid(unsafe_code)]

mod address;
mod device;
mod dump;
mod listed;
mod settled;
mod survey;

use super::route::{handle_addresses, handle_socket};
use crate::base::errno::Errno;
use crate::base::words::said;
use crate::wire::RAILS_MAX;
use crate::wire::handle::ListenHandle;
use crate::wire::hello::{AddressHello, AddressList};
pub use address::{InterfaceAddress, InterfaceName};
use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use settled::settled_addresses_of;
use std::string::String;
use std::vec::Vec;
use survey::{Interface, Survey};

/// The variable that chooses.
const NAME: &str = "CROSSTIE_SOCKET_IFNAME";
/// What holds without a choice.
const CHOICE_DEFAULT: &str = "^docker,lo,virbr";
/// What then is used in the end: a bridge to virtual machines of this host, and mostly to no other.
const CHOICE_LAST: &str = "virbr";

/// Interfaces by name, in an order: those that make one device.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Interfaces {
    all: [Option<InterfaceName>; RAILS_MAX],
}

impl Interfaces {
    /// Not one.
    pub const NONE: Interfaces = Interfaces { all: [None; RAILS_MAX] };

    /// These too; `None`: there are more than a connection has rails.
    pub fn with(mut self, more: &Interfaces) -> Option<Interfaces> {
        for name in more.iter() {
            *self.all.iter_mut().find(|place| place.is_none())? = Some(name);
        }
        Some(self)
    }

    /// One alone.
    pub fn one(name: InterfaceName) -> Interfaces {
        let mut one = Interfaces::NONE;
        one.all[0] = Some(name);
        one
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = InterfaceName> {
        self.all.into_iter().flatten()
    }

    /// The choice that allows these interfaces alone; `None`: there are none.
    pub fn exact_choice(&self) -> Option<String> {
        let mut choice = String::new();
        for name in self.iter() {
            choice.push(if choice.is_empty() { '=' } else { ',' });
            choice.push_str(name.as_str());
        }
        (!choice.is_empty()).then_some(choice)
    }
}

/// Which addresses are used.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AddressFamily {
    /// All.
    Any,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

impl AddressFamily {
    /// Whether the address is one of them.
    pub const fn allows(self, ip: IpAddr) -> bool {
        match self {
            AddressFamily::Any => true,
            AddressFamily::V4 => ip.is_ipv4(),
            AddressFamily::V6 => ip.is_ipv6(),
        }
    }
}

/// The address that a peer tells; `None`: of a family that this version does not know.
pub fn ip_of(hello: &AddressHello) -> Option<IpAddr> {
    let bytes = hello.ip.to_le_bytes();
    match hello.family {
        4 => Some(IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
        _ => None,
    }
}

said! {
    /// Why no address is left. What was asked for, and which interfaces there are.
    #[derive(Clone, Eq, PartialEq, Debug)]
    pub enum InterfaceError {
        /// The choice names nothing, as `^`, has an empty name between commas, or mixes what is
        /// left out with what is not.
        Choice(choice: String) => "{NAME}={choice}: {CHOICE_WRONG}",
        /// None that was asked for is up and has an address.
        NoMatch(choice: String, there: String) =>
            "{NAME}={choice} matches no interface with an address; there are {there}",
        /// The choice leaves every interface out; an empty one is nobody's.
        AllExcluded(choice: String, there: String) => |f| match choice.trim() {
            "" => write!(f, "no interface that is up has an address; there are {there}"),
            _ => {
                write!(f, "{NAME}={choice} leaves no interface with an address; there are {there}")
            }
        },
        Family(family: AddressFamily) =>
            "no interface that is up and chosen has an address of {family:?}",
        /// The kernel has not found that out in time.
        Tentative(addresses: String) =>
            "all addresses are still tentative: the kernel is still checking whether another host \
             has {addresses}",
        /// The kernel tells of them in neither way, with its code for the first.
        System(code: i32) => |f| write!(
            f,
            "the interfaces cannot be listed: the kernel refuses netlink ({}), and IP sockets",
            Errno(*code)
        ),
    }
}

/// The addresses of this host that `choice` allows, in the order of this module's head, and IPv4
/// before IPv6 of the same interface. IPv6 addresses of one link are left out: a peer could not use
/// them without knowing the link. An empty choice is the default.
///
/// *Cost*: allocates; a few system calls per interface. For open.
pub fn local_addresses(choice: &str) -> Result<Vec<InterfaceAddress>, InterfaceError> {
    choose(choice, &survey()?)
}

/// [`local_addresses`] of one family.
pub fn local_addresses_of(
    family: AddressFamily,
    choice: &str,
) -> Result<Vec<InterfaceAddress>, InterfaceError> {
    let mut found = local_addresses(choice)?;
    found.retain(|address| family.allows(address.ip));
    if found.is_empty() { Err(InterfaceError::Family(family)) } else { Ok(found) }
}

/// The names of a choice that asks for what no interface is called, and which interfaces there are
/// instead. None of a choice that leaves interfaces out: that they are not there is its aim.
pub fn unmatched(choice: &str) -> Option<(String, String)> {
    let parsed = Choice::parse(choice).filter(|parsed| !parsed.exclude)?;
    unmatched_in(parsed, &survey().ok()?)
}

/// [`unmatched`] of `CROSSTIE_SOCKET_IFNAME`, in a sentence.
pub fn unmatched_text(choice: &str) -> Option<String> {
    let (missing, there) = unmatched(choice)?;
    Some(std::format!("{NAME}={choice}: no interface matches {missing}; there are {there}"))
}

fn unmatched_in(choice: Choice<'_>, found: &Survey) -> Option<(String, String)> {
    let is_there = |name: &&str| {
        let one = Choice { names: name, ..choice };
        let is_label = |address: &InterfaceAddress| one.lists(&address.name, &address.label);
        found.all.iter().any(|it| one.lists(&it.name, &it.name))
            || found.addresses.iter().any(is_label)
    };
    let names = choice.names.split(',').map(str::trim);
    let missing: Vec<&str> = names.filter(|name| !is_there(name)).collect();
    (!missing.is_empty()).then(|| (missing.join(", "), there(&found.all, &[])))
}

/// All addresses of this host, chosen or not, for explanations.
pub fn all_addresses() -> Result<Vec<InterfaceAddress>, InterfaceError> {
    Ok(survey()?.addresses)
}

fn survey() -> Result<Survey, InterfaceError> {
    survey::survey().map_err(|error| InterfaceError::System(error.raw_os_error().unwrap_or(0)))
}

/// Why a choice cannot be meant.
pub const CHOICE_WRONG: &str = "a name of an interface is missing, or ^ or = stands elsewhere than \
                                in front of the whole list";

/// Whether a choice can be meant.
pub fn is_choice(text: &str) -> bool {
    Choice::parse(text).is_some()
}

/// A choice, taken apart.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Choice<'c> {
    exclude: bool,
    exact: bool,
    names: &'c str,
}

impl<'c> Choice<'c> {
    /// `None` when a name is missing, or a sign is not in front of all.
    fn parse(text: &'c str) -> Option<Choice<'c>> {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, names) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let is_name = |name: &str| !name.trim().is_empty() && !name.contains(['^', '=']);
        let whole = names.split(',').all(is_name);
        whole.then_some(Choice { exclude, exact, names })
    }

    /// Whether the name is in the list, or the label that a name with a colon means.
    fn lists(&self, interface: &InterfaceName, label: &InterfaceName) -> bool {
        self.names.split(',').map(str::trim).any(|name| {
            let whole = if name.contains(':') { label } else { interface }.as_str();
            if self.exact { whole == name } else { whole.starts_with(name) }
        })
    }

    /// Whether the interface may be used. One that reaches this host alone, or has no carrier, is
    /// used when it is asked for; a choice that only leaves others out does not ask for it.
    fn allows(&self, address: &InterfaceAddress) -> bool {
        let listed = self.lists(&address.name, &address.label);
        if self.exclude { !listed && !address.loopback && address.running } else { listed }
    }
}

/// Whether a peer could use the address at all.
fn is_usable(address: &InterfaceAddress) -> bool {
    address.up && !address.duplicate && !(address.link_local && address.ip.is_ipv6())
}

/// [`local_addresses`] of a host that has what is `found`.
fn choose(choice: &str, found: &Survey) -> Result<Vec<InterfaceAddress>, InterfaceError> {
    let text = || String::from(choice);
    let unchosen = choice.trim().is_empty();
    let parsed = Choice::parse(if unchosen { CHOICE_DEFAULT } else { choice });
    let parsed = parsed.ok_or_else(|| InterfaceError::Choice(text()))?;
    let usable = || found.addresses.iter().filter(|address| is_usable(address)).copied();
    let mut chosen: Vec<_> = usable().filter(|address| parsed.allows(address)).collect();
    if chosen.is_empty() && parsed.exclude {
        // a link may be down for this moment alone, and the choice is made once
        let dark =
            |it: &InterfaceAddress| parsed.allows(&InterfaceAddress { running: true, ..*it });
        chosen = usable().filter(dark).collect();
    }
    if chosen.is_empty() && parsed.exclude {
        let listed = |address: &InterfaceAddress| parsed.lists(&address.name, &address.label);
        let own = usable().filter(|address| address.loopback && (unchosen || !listed(address)));
        chosen = own.collect();
    }
    if chosen.is_empty() && unchosen {
        let last = |it: &InterfaceAddress| it.running && it.name.as_str().starts_with(CHOICE_LAST);
        chosen = usable().filter(last).collect();
    }
    if chosen.is_empty() {
        let there = there(&found.all, &found.addresses);
        return Err(match parsed.exclude {
            true => InterfaceError::AllExcluded(text(), there),
            false => InterfaceError::NoMatch(text(), there),
        });
    }
    let place = |name| found.all.iter().position(|interface| interface.name == name);
    // stable: several addresses of one interface stay in the kernel's order
    chosen.sort_by_key(|a| (a.is_hard(), Reverse(a.speed_mbit_s), place(a.name), a.ip.is_ipv6()));
    let turns: Vec<_> = (0..chosen.len()).map(|at| turn(&chosen[..at], &chosen[at])).collect();
    let mut turned: Vec<_> = turns.into_iter().zip(chosen).collect();
    turned.sort_by_key(|(turn, address)| (address.is_hard(), *turn));
    Ok(turned.into_iter().map(|(_, address)| address).collect())
}

/// When an address has its turn behind those `before` it: first one of each device and family, then
/// one of each further subnet of the device, then the rest.
fn turn(before: &[InterfaceAddress], address: &InterfaceAddress) -> u8 {
    let alike = |other: &&InterfaceAddress| {
        (other.device, other.ip.is_ipv4()) == (address.device, address.ip.is_ipv4())
    };
    let bits = |other: &InterfaceAddress| other.prefix_bits.max(address.prefix_bits);
    let subnet = |it: &InterfaceAddress| is_common_subnet(it.ip, address.ip, bits(it));
    match (before.iter().any(|it| alike(&it)), before.iter().filter(alike).any(subnet)) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    }
}

/// The addresses as peers are told, as many as there is room for; the side band knows the ports.
pub fn address_list(found: &[InterfaceAddress]) -> AddressList {
    let mut list = AddressList::EMPTY;
    for address in found {
        let first = found.iter().position(|other| other.device == address.device);
        list.push(address.hello(0), first.map_or(0, |at| at as u8 + 1));
    }
    list
}

/// The interfaces in words, with what their addresses say.
fn there(all: &[Interface], addresses: &[InterfaceAddress]) -> String {
    let word = |interface: &Interface| {
        let mut addresses = addresses.iter().filter(|it| it.name == interface.name).peekable();
        let some = addresses.peek().is_some();
        let down = match (interface.up, interface.running) {
            (false, _) => " (down)",
            (true, false) => " (no carrier)",
            (true, true) if some && addresses.clone().any(|it| it.duplicate) => {
                " (another host has its IPv6 address)"
            }
            (true, true) if some && !addresses.any(is_usable) => {
                " (a link-local IPv6 address alone, which is not used)"
            }
            (true, true) => "",
        };
        std::format!("{}{down}", interface.name.as_str())
    };
    let words: Vec<String> = all.iter().map(word).collect();
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

/// Those that no peer is told in a handle, because it has no room for them.
pub fn without_room(found: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let mut handle = ListenHandle::default();
    handle.addresses_set(handle_addresses(&address_list(found)));
    let told: Vec<_> = handle.all_addresses().filter_map(handle_socket).collect();
    let is_out = |it: &&InterfaceAddress| told.iter().all(|at| at.ip() != it.ip);
    found.iter().filter(is_out).copied().collect()
}

/// How likely, and how fast, an address of a peer is reached; less is better.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub struct SubnetRank {
    distance: u8,
    speed: Reverse<u32>,
    ipv6: bool,
    prefix: Reverse<u8>,
}

impl SubnetRank {
    /// Whether one of our interfaces is in the same subnet.
    pub fn is_near(&self) -> bool {
        self.distance == IN_SUBNET
    }

    /// Whether nothing speaks for the address.
    pub fn is_hopeless(&self) -> bool {
        self.distance == HOPELESS
    }
}

/// One of our interfaces is in the same subnet.
const IN_SUBNET: u8 = 0;
/// We have an address of the family and of the kind, private or public: routers may help.
const SAME_KIND: u8 = 1;
/// We have an address of the family.
const SAME_FAMILY: u8 = 2;
/// Nothing speaks for it: another family, or the peer's own loopback.
const HOPELESS: u8 = 3;

/// Ranks an address of a peer by what we have in common with it.
pub fn rank(ours: &[InterfaceAddress], theirs: &AddressHello) -> SubnetRank {
    let worst = SubnetRank {
        distance: HOPELESS,
        speed: Reverse(0),
        prefix: Reverse(0),
        ipv6: theirs.family != 4,
    };
    let Some(ip) = ip_of(theirs) else { return worst };
    let each = ours.iter().map(|our| {
        let bits = our.prefix_bits.max(theirs.prefix_bits);
        let distance = match distance(our.ip, ip, bits) {
            _ if ip.is_loopback() => HOPELESS,
            _ if our.loopback => SAME_FAMILY.max(distance(our.ip, ip, 128)),
            near => near,
        };
        // what is slower decides; what is not known is slow
        let speed = Reverse(our.speed_mbit_s.min(theirs.speed_mbit_s));
        let prefix = Reverse(if distance == IN_SUBNET { bits } else { 0 });
        SubnetRank { distance, speed, prefix, ..worst }
    });
    each.min().unwrap_or(worst)
}

/// How far two addresses are apart, of which the first `bits` name the subnet.
fn distance(ours: IpAddr, theirs: IpAddr, bits: u8) -> u8 {
    let (ours, theirs, width, kinds) = match (ours, theirs) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let kinds = a.is_private() == b.is_private();
            (u128::from(u32::from(a)), u128::from(u32::from(b)), 32, kinds)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (u128::from(a), u128::from(b), 128, a.is_unique_local() == b.is_unique_local())
        }
        _ => return HOPELESS,
    };
    // bits of the host; a prefix of nothing would be common to all
    let host = u32::saturating_sub(width, u32::from(bits));
    let common = bits > 0 && (ours ^ theirs).checked_shr(host).unwrap_or(0) == 0;
    match (common, kinds) {
        (true, _) => IN_SUBNET,
        (false, true) => SAME_KIND,
        (false, false) => SAME_FAMILY,
    }
}

/// Whether two addresses are of one subnet, whose prefix has so many bits.
pub fn is_common_subnet(ours: IpAddr, theirs: IpAddr, bits: u8) -> bool {
    distance(ours, theirs, bits) == IN_SUBNET
}

/// Puts a peer's addresses in the order in which they should be tried: common subnets first, then
/// what routers may reach; within that the faster first, then IPv4. Else their order stays.
/// *Cost*: no allocation; the square of their number, which is at most
/// [`crate::wire::hello::ADDRESSES_MAX`].
pub fn subnet_rank(ours: &[InterfaceAddress], theirs: &mut [AddressHello]) {
    for end in 1..theirs.len() {
        let moved = theirs[end];
        let better = rank(ours, &moved);
        let at = theirs[..end].iter().position(|other| better < rank(ours, other));
        if let Some(at) = at {
            theirs[at..=end].rotate_right(1);
        }
    }
}

#[cfg(test)]
mod tests;
