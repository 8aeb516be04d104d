//! Which of a listener's addresses are tried, and in what order. Pure arithmetic.
#![forbid(unsafe_code)]

use super::interfaces::ip_of;
use crate::base::integer::bits_common;
use crate::base::units::{Instant, Span};
use crate::wire::handle::{self, ADDRESSES_MAX, Family, ListenHandle, MORE_MAX};
use crate::wire::hello::{AddressHello, AddressList};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most addresses at which one listener is tried.
pub(super) const ROUTE_MAX: usize = ADDRESSES_MAX + MORE_MAX;

/// How long after a socket that closed before it answered the same address is tried again; doubled
/// each time up to the second.
const BACKOFF: Span = Span::millis(1);
const BACKOFF_MAX: Span = Span::millis(64);

fn ipv4(bytes: &[u8; 16]) -> IpAddr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
}

fn octets(ip: IpAddr) -> ([u8; 16], u8) {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            (bytes, 4)
        }
        IpAddr::V6(ip) => (ip.octets(), 6),
    }
}

/// An address as a handle says it.
pub(super) fn handle_address(at: SocketAddr) -> handle::Address {
    let (ip, number) = octets(at.ip());
    let family = if number == 4 { Family::Ipv4 } else { Family::Ipv6 };
    handle::Address { family, port: at.port(), ip }
}

/// Those of a list, likewise.
pub(super) fn handle_addresses(
    list: &AddressList,
) -> impl Iterator<Item = handle::Address> + Clone + '_ {
    let of = |hello| Some(handle_address(SocketAddr::new(ip_of(hello)?, hello.port)));
    list.as_slice().iter().filter_map(of)
}

pub(super) fn handle_socket(address: &handle::Address) -> Option<SocketAddr> {
    match address.family {
        Family::Ipv4 => Some(SocketAddr::new(ipv4(&address.ip), address.port)),
        Family::Ipv6 => Some(SocketAddr::new(Ipv6Addr::from(address.ip).into(), address.port)),
        Family::None | Family::Local => None,
    }
}

/// How promising an address is; less is better.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
enum Nearness {
    /// In a subnet of ours.
    Subnet,
    /// Of a family that we have, so that a router may know the way.
    Family,
    /// Of a family that we have not, or one that means the asking host itself.
    Far,
}

fn nearness(ours: &[AddressHello], to: IpAddr, same_host: bool) -> Nearness {
    // an address that both hosts have, as those of bridges, leads to ourselves
    let own = || ours.iter().any(|hello| ip_of(hello) == Some(to));
    if !same_host && (to.is_loopback() || own()) {
        return Nearness::Far;
    }
    let mut best = Nearness::Far;
    for hello in ours {
        let Some(bits) = ip_of(hello).and_then(|ip| bits_common(ip, to)) else { continue };
        let subnet = bits >= u32::from(hello.prefix_bits);
        best = best.min(if subnet { Nearness::Subnet } else { Nearness::Family });
    }
    best
}

/// Whether an address may lead from a host with these addresses to another, or to itself.
pub(super) fn is_way(ours: &[AddressHello], to: IpAddr, same_host: bool) -> bool {
    nearness(ours, to, same_host) != Nearness::Far
}

/// The addresses at which a listener is tried, and how far the trial is.
#[derive(Copy, Clone, Debug)]
pub(super) struct Route {
    addresses: [Option<SocketAddr>; ROUTE_MAX],
    next: usize,
    /// How many have said that nobody listens.
    refused: usize,
    /// How many no chosen interface leads to, and the last one's address of ours.
    excluded: usize,
    excluded_from: Option<IpAddr>,
    /// The kernel's last code.
    pub code: i32,
    /// Whether somebody at the current address took the connection.
    pub connected: bool,
    /// Whether the address given up last had taken the connection.
    pub answered: bool,
    /// When the current address is given up.
    pub slice_end: Instant,
    /// When the current address is tried again.
    pub retry_at: Instant,
    backoff: Span,
}

impl Route {
    /// Nowhere to go.
    pub const NONE: Route = Route {
        addresses: [None; ROUTE_MAX],
        next: 0,
        refused: 0,
        excluded: 0,
        excluded_from: None,
        code: 0,
        connected: false,
        answered: false,
        slice_end: Instant(0),
        retry_at: Instant(0),
        backoff: BACKOFF,
    };

    /// The way to a listener from a host with these addresses: nearest first, and among equals in
    /// the listener's order.
    pub fn to(handle: &ListenHandle, ours: &[AddressHello], same_host: bool) -> Route {
        let mut addresses = [None; ROUTE_MAX];
        for (place, address) in addresses.iter_mut().zip(handle.all_addresses()) {
            *place = handle_socket(address);
        }
        let rank = |address: &Option<SocketAddr>| match address {
            Some(address) => (0, nearness(ours, address.ip(), same_host)),
            None => (1, Nearness::Far),
        };
        // few entries: insertion, because a stable sort of the library may allocate
        for end in 1..addresses.len() {
            let mut at = end;
            while at > 0 && rank(&addresses[at]) < rank(&addresses[at - 1]) {
                addresses.swap(at, at - 1);
                at -= 1;
            }
        }
        Route { addresses, ..Route::NONE }
    }

    /// The way to one address.
    pub fn only(to: SocketAddr) -> Route {
        let mut route = Route::NONE;
        route.addresses[0] = Some(to);
        route
    }

    /// Tries an address after all others: it leads nowhere at present.
    pub fn put_last(&mut self, to: SocketAddr) {
        let count = self.addresses.iter().flatten().count();
        let at = self.addresses.iter().position(|address| *address == Some(to));
        if let Some(at) = at {
            self.addresses[at..count].rotate_left(1);
        }
    }

    /// All its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.into_iter().flatten()
    }

    /// Whether there is any address at all.
    pub fn is_empty(&self) -> bool {
        self.addresses[0].is_none()
    }

    /// The address to try now.
    pub fn current(&self) -> Option<SocketAddr> {
        self.addresses.get(self.next).copied().flatten()
    }

    /// Gives the current address its share of the time that is left.
    pub fn begin(&mut self, now: Instant, deadline: Instant) {
        let left = self.addresses[self.next.min(ROUTE_MAX)..].iter().flatten().count();
        // a little is kept back, so that the cause is named before the caller's own deadline
        let usable = deadline.since(now).0 / 16 * 15;
        self.slice_end = now.after(Span(usable / left.max(1) as u64));
        self.connected = false;
        self.backoff = BACKOFF;
        self.retry_at = now;
    }

    /// The current address leads nowhere.
    pub fn failed(&mut self, code: i32) {
        self.code = code;
        self.answered = self.connected;
        self.refused += usize::from(code == libc::ECONNREFUSED);
        self.next += 1;
    }

    /// The current address is reached from `ip` of ours alone, which was not chosen.
    pub fn exclude(&mut self, ip: IpAddr) {
        self.excluded += 1;
        self.excluded_from = Some(ip);
        self.next += 1;
    }

    /// From where all addresses would be reached, if none is from an interface that was chosen.
    pub fn excluded(&self) -> Option<IpAddr> {
        self.excluded_from.filter(|_| self.excluded == self.addresses().count())
    }

    /// The current address is tried again in a while.
    pub fn again(&mut self, now: Instant) {
        self.retry_at = now.after(self.backoff);
        self.backoff = Span((self.backoff.0 * 2).min(BACKOFF_MAX.0));
    }

    /// Whether every address that there is a way to has said that nobody listens.
    pub fn is_refused(&self) -> bool {
        self.refused + self.excluded == self.addresses().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_hello(ip: IpAddr, prefix_bits: u8) -> AddressHello {
        let (octets, family) = octets(ip);
        let ip = u128::from_le_bytes(octets);
        AddressHello { ip, family, prefix_bits, port: 0, speed_mbit_s: 0 }
    }

    fn handle(addresses: [&str; 3]) -> ListenHandle {
        let address = |text: &str| match text.parse::<SocketAddr>() {
            Ok(at) => handle_address(at),
            Err(_) => handle::Address::default(),
        };
        ListenHandle { addresses: addresses.map(address), ..ListenHandle::default() }
    }

    fn order(ours: &[(&str, u8)], theirs: [&str; 3], same_host: bool) -> [std::string::String; 3] {
        let ours: std::vec::Vec<_> = ours
            .iter()
            .map(|(ip, prefix_bits)| address_hello(ip.parse().unwrap(), *prefix_bits))
            .collect();
        let route = Route::to(&handle(theirs), &ours, same_host);
        assert!(route.addresses[3..].iter().all(Option::is_none));
        let text = |at: Option<SocketAddr>| at.map(|at| std::string::ToString::to_string(&at));
        [0, 1, 2].map(|at| text(route.addresses[at]).unwrap_or_default())
    }

    #[test]
    fn a_common_subnet_comes_first_by_its_real_prefix_length() {
        let theirs = ["10.1.0.9:1", "10.0.128.9:1", "10.0.0.9:1"];
        let wide = order(&[("10.0.0.1", 16)], theirs, false);
        assert_eq!(wide, ["10.0.128.9:1", "10.0.0.9:1", "10.1.0.9:1"]);
        let narrow = order(&[("10.0.0.1", 24)], theirs, false);
        assert_eq!(narrow, ["10.0.0.9:1", "10.1.0.9:1", "10.0.128.9:1"]);
    }

    #[test]
    fn families_that_we_lack_and_loopback_of_others_come_last() {
        let theirs = ["127.0.0.1:1", "[fd00::9]:1", "192.0.2.9:1"];
        let ours = [("127.0.0.1", 8), ("198.51.100.1", 24)];
        assert_eq!(order(&ours, theirs, false), ["192.0.2.9:1", "127.0.0.1:1", "[fd00::9]:1"]);
        assert_eq!(order(&ours, theirs, true), ["127.0.0.1:1", "192.0.2.9:1", "[fd00::9]:1"]);
    }

    #[test]
    fn an_address_that_both_hosts_have_comes_last_between_them() {
        let theirs = ["172.17.0.1:1", "192.0.2.9:1", "10.0.0.9:1"];
        let ours = [("172.17.0.1", 16), ("10.0.0.1", 24)];
        let between = ["10.0.0.9:1", "192.0.2.9:1", "172.17.0.1:1"];
        assert_eq!(order(&ours, theirs, false), between);
        assert_eq!(order(&ours, theirs, true)[0], "172.17.0.1:1");
    }

    #[test]
    fn an_address_that_leads_nowhere_comes_last() {
        let mut route = Route::to(&handle(["192.0.2.1:1", "192.0.2.2:1", ""]), &[], false);
        route.put_last("192.0.2.9:1".parse().unwrap());
        assert_eq!(route.current(), Some("192.0.2.1:1".parse().unwrap()));
        route.put_last("192.0.2.1:1".parse().unwrap());
        let order: std::vec::Vec<_> = route.addresses().collect();
        assert_eq!(order, ["192.0.2.2:1", "192.0.2.1:1"].map(|at| at.parse().unwrap()));
    }

    #[test]
    fn gaps_close() {
        assert_eq!(order(&[], ["", "", "192.0.2.9:1"], false), ["192.0.2.9:1", "", ""]);
        assert!(Route::to(&handle(["", "", ""]), &[], false).is_empty());
    }

    #[test]
    fn each_address_gets_its_share_of_the_time() {
        let mut route = Route::to(&handle(["192.0.2.1:1", "192.0.2.2:1", ""]), &[], false);
        route.begin(Instant(0), Instant(3200));
        assert_eq!(route.slice_end, Instant(1500));
        route.failed(libc::ECONNREFUSED);
        route.begin(Instant(100), Instant(3300));
        assert_eq!(route.slice_end, Instant(3100));
        route.failed(libc::ETIMEDOUT);
        assert_eq!((route.current(), route.is_refused()), (None, false));
    }
}
