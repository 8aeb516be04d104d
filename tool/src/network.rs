//! What `crosstie info` says of TCP: which addresses of this host peers are told, and by which
//! rails a certain peer would be reached, and why.
#![forbid(unsafe_code)]

use super::Failure;
use super::opened::plan;
use super::section::{Line, Section, line};
use super::{libfabric, rdma};
use core::fmt;
use crosstie::connect::interfaces::{
    InterfaceAddress, InterfaceError, InterfaceName, all_addresses, ip_of, is_common_subnet,
    local_addresses, rank, subnet_rank, unmatched_text, without_room,
};
use crosstie::connect::routed::{leads_by_its_own, source};
use crosstie::host::device::Rails;
use crosstie::host::mistyped;
use crosstie::host::settings::{Environment, environment};
use crosstie::memory::Variables;
use crosstie::wire::hello::{ADDRESSES_MAX, AddressHello};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a port of a peer may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Each address of this host: whether peers are told, and why not.
pub fn section() -> Section {
    let settings = environment();
    let choice = settings.socket_ifname.clone().unwrap_or_default();
    let chosen = local_addresses(&choice);
    let used = chosen.as_deref().unwrap_or_default();
    let out = without_room(used);
    let mut lines: Vec<Line> = Vec::new();
    for address in all_addresses().unwrap_or_default() {
        let text = match (used.contains(&address), speed(&address)) {
            (true, _) if out.contains(&address) => {
                "used, but no peer connects to it: a handle has no room for it".into()
            }
            (true, speed) if address.tentative => format!("used{speed}, tentative at present"),
            (true, speed) => format!("used{speed}"),
            (false, _) => format!("not used: {}", why_not(&address, &choice)),
        };
        lines.push(line(&shown(&address), text));
    }
    lines.extend(of_choice(&chosen, &choice));
    lines.push(line("rails", allowed(&settings)));
    Section { name: "network", lines }
}

/// What is wrong with the choice of interfaces: that it leaves none, or what it names in vain.
fn of_choice<T>(found: &Result<T, InterfaceError>, choice: &str) -> Option<Line> {
    let text = match found {
        Ok(_) => unmatched_text(choice)?,
        Err(error) => format!("unavailable: {error}"),
    };
    Some(line("tcp", text))
}

/// `eth0 10.0.0.2/24`.
fn shown(address: &InterfaceAddress) -> String {
    format!("{} {}/{}", address.name.as_str(), address.ip, address.prefix_bits)
}

fn speed(address: &InterfaceAddress) -> String {
    match address.speed_mbit_s {
        0 => String::new(),
        speed => format!(", {speed} Mbit/s"),
    }
}

fn why_not(address: &InterfaceAddress, choice: &str) -> String {
    if !address.up {
        return "the interface is down".into();
    }
    if address.link_local && address.ip.is_ipv6() {
        return "good on one link only".into();
    }
    if address.duplicate {
        return "another host has it".into();
    }
    if !address.running && (choice.trim().is_empty() || choice.trim().starts_with('^')) {
        return "no carrier, unless CROSSTIE_SOCKET_IFNAME names it".into();
    }
    match choice.trim() {
        "" if address.loopback => "reaches this host alone, and there are others".into(),
        "" => "left out unless CROSSTIE_SOCKET_IFNAME names it".into(),
        choice => format!("not among CROSSTIE_SOCKET_IFNAME={choice}"),
    }
}

fn allowed(settings: &Environment) -> String {
    let names = match (settings.rails.shm, settings.rails.tcp) {
        (true, true) => "shm and tcp",
        (true, false) => "shm alone",
        (false, true) => "tcp alone",
        (false, false) => "none",
    };
    let ports = [
        (settings.rails.verbs, "RDMA"),
        (settings.rails.libfabric, "libfabric"),
        (settings.rails.vendor, "vendors"),
    ];
    let ports: Vec<_> = ports.iter().filter(|(is_in, _)| *is_in).map(|(_, of)| *of).collect();
    let beside = match settings.rails.tcp && !ports.is_empty() {
        true => format!(", beside tcp ports of {} if there are any", ports.join(", ")),
        false => String::new(),
    };
    match Variables::of_process().text("CROSSTIE_RAILS") {
        Some(text) => format!("{names}{beside} (CROSSTIE_RAILS={text})"),
        None => format!("{names}{beside} (CROSSTIE_RAILS is not set)"),
    }
}

/// A peer that was asked for.
struct Asked {
    name: String,
    port: Option<u16>,
    /// Its addresses, in the order in which they would be tried once they are ranked.
    addresses: Vec<AddressHello>,
    /// The same as the resolver gave them: with the link of those that are good on one alone.
    sockets: Vec<SocketAddr>,
    /// Addresses were left out, being too many.
    more: bool,
}

impl Asked {
    /// Reads `HOST`, `HOST:PORT` or `[ADDRESS]:PORT` and asks the resolver.
    fn find(text: &str) -> Result<Asked, Failure> {
        let (name, port) = host_port(text)?;
        let found = (name.as_str(), port.unwrap_or(0)).to_socket_addrs();
        let found = found.map_err(|error| format!("option --peer: {name}: {error}"))?;
        let sockets: Vec<SocketAddr> = found.collect();
        let mut ips: Vec<IpAddr> = Vec::new();
        for address in &sockets {
            if let Some(why) = no_hosts(address) {
                return Err(format!("option --peer: {} {why}", address.ip()));
            }
            if !ips.contains(&address.ip()) {
                ips.push(address.ip());
            }
        }
        let more = ips.len() > ADDRESSES_MAX;
        ips.truncate(ADDRESSES_MAX);
        let addresses = ips.into_iter().map(hello).collect();
        Ok(Asked { name, port, addresses, sockets, more })
    }

    fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().filter_map(ip_of)
    }
}

/// Why no host can be meant by an address.
fn no_hosts(address: &SocketAddr) -> Option<&'static str> {
    let ip = address.ip();
    let zoned = match address {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(six) => six.scope_id() != 0 || !six.ip().is_unicast_link_local(),
    };
    match ip {
        _ if ip.is_unspecified() => Some("stands for all addresses of a host, and names none"),
        _ if ip.is_multicast() => Some("names a group, not a host"),
        _ if !zoned => Some("is good on one link only: add % and the interface that leads there"),
        _ => None,
    }
}

/// An address of which nothing else is known, as its owner would tell it.
fn hello(ip: IpAddr) -> AddressHello {
    InterfaceAddress::new(InterfaceName::new(b""), ip, 0).hello(0)
}

fn host_port(text: &str) -> Result<(String, Option<u16>), Failure> {
    let wrong = || format!("option --peer: `{text}` is not HOST or HOST:PORT");
    // an IPv6 address may name its link, and may stand in brackets
    let bare = |text: &str| {
        let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let text = inside.unwrap_or(text);
        let (ip, _) = text.split_once('%').unwrap_or((text, ""));
        ip.parse::<IpAddr>().is_ok().then(|| text.to_string())
    };
    if let Some(ip) = bare(text) {
        return Ok((ip, None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse::<u16>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bare.unwrap_or(host) {
        "" => Err(wrong()),
        host => Ok((host.to_string(), port)),
    }
}

/// A peer, as far as it is known before it is connected to.
pub(super) struct Towards<'a> {
    /// Its addresses.
    pub(super) ips: &'a [IpAddr],
    /// It is on this host.
    pub(super) own: bool,
    /// TCP leads to it.
    pub(super) tcp: bool,
}

impl Towards<'_> {
    /// Why no rail of a kind that goes beside TCP would lead there, whatever NICs there are.
    pub(super) fn none_beside_tcp(&self, rails: Rails, is_allowed: bool) -> Option<&'static str> {
        if self.own && rails.shm {
            return Some("none: the peer is on this host, and shm is allowed");
        }
        (is_allowed && !self.tcp)
            .then_some("none: tcp, over which such rails are set up, leads nowhere")
    }

    /// `, in which 10.0.0.7 is`: one of the peer's addresses is in this subnet of ours.
    pub(super) fn in_subnet(&self, of: IpAddr, bits: u8) -> String {
        match self.ips.iter().find(|ip| is_common_subnet(of, **ip, bits)) {
            Some(ip) => format!(", in which {ip} is"),
            None => ", in which none of these addresses is".into(),
        }
    }
}

/// How a peer would be reached, and why; and whether any rail leads there.
pub fn peer(text: &str) -> Result<(Section, bool), Failure> {
    // before anything is opened: of a name that leads nowhere nothing else is of use
    let mut asked = Asked::find(text)?;
    // before other variables are read, since it reads how much is to be said
    let plan = plan();
    mistyped::report();
    let settings = environment();
    let choice = settings.socket_ifname.clone().unwrap_or_default();
    let used = local_addresses(&choice);
    let ours = used.as_deref().unwrap_or_default();
    subnet_rank(ours, &mut asked.addresses);
    let all = all_addresses().unwrap_or_default();
    let own = asked.ips().find(|ip| ip.is_loopback() || all.iter().any(|our| our.ip == *ip));

    let ips: Vec<String> = asked.ips().map(|ip| ip.to_string()).collect();
    let more = if asked.more { ", …" } else { "" };
    let mut lines: Vec<Line> = Vec::new();
    lines.push(line(
        "peer",
        match ips.join(", ") + more {
            // an address is its own name
            ips if ips == asked.name => ips,
            ips => format!("{}: {ips}", asked.name),
        },
    ));
    lines.push(line(
        "same host",
        match own {
            Some(ip) => format!("yes: {ip} is an address of this host"),
            None => "not by its addresses: none is one of this host".into(),
        },
    ));
    lines.push(line("rails", allowed(&settings)));
    lines.extend(of_choice(&used, &choice));
    let (each, any) = reached(&asked, ours, &all, &choice);
    lines.extend(each);
    let node_id = settings.node_id.or_else(|| crosstie::connect::node_id().ok());
    let tcp = used.is_ok() && any;
    let towards = Towards { ips: &asked.ips().collect::<Vec<_>>(), own: own.is_some(), tcp };
    let verbs = rdma::towards(&settings, plan.as_ref().ok(), &towards);
    let ofi = libfabric::towards(&settings, plan.as_ref().ok(), &towards);
    let ways = Ways::of(ours, &asked.addresses, settings.tcp_rails);
    let ways = Ways { beside: beside(&verbs, &ofi), ..ways };
    lines.push(line("rdma", verbs));
    lines.push(line("libfabric", ofi));
    let choice = match plan {
        Err(why) => format!("none: {why}"),
        Ok(_) => chosen(settings.rails, own.is_some(), tcp, &ways, node_id),
    };
    let leads = !choice.starts_with("none");
    lines.push(line("choice", choice));
    Ok((Section { name: "peer", lines }, leads))
}

/// By what each address of the peer is reached, and whether any is.
fn reached(
    asked: &Asked,
    ours: &[InterfaceAddress],
    all: &[InterfaceAddress],
    choice: &str,
) -> (Vec<Line>, bool) {
    let (mut lines, mut any) = (Vec::new(), false);
    for address in &asked.addresses {
        let Some(ip) = ip_of(address) else { continue };
        let bound = if choice.trim().is_empty() { &[] } else { ours };
        let leads = leads(bound, ip);
        let socket = asked.sockets.iter().find(|socket| socket.ip() == ip);
        let answer = asked.port.and(socket).map(answers).unwrap_or_default();
        let (way, reaches) = match all.iter().find(|our| our.ip == ip) {
            Some(our) if !ours.contains(our) => {
                let (name, why) = (our.name.as_str(), why_not(our, choice));
                (format!("of this host ({name}), peers are not told: {why}"), leads.is_ok())
            }
            _ => route(ours, all, choice, address, leads),
        };
        any |= reaches;
        lines.push(line(&ip.to_string(), format!("{way}{answer}")));
    }
    (lines, any)
}

/// Whose rails would go beside TCP's, by what is said of them.
fn beside(verbs: &str, ofi: &str) -> Vec<&'static str> {
    let kinds = [(verbs, "RDMA"), (ofi, "libfabric")];
    kinds.iter().filter(|(text, _)| !text.starts_with("none")).map(|(_, of)| *of).collect()
}

/// Whether one of our addresses is in the subnet of the peer's, or both reach this host alone.
fn is_near(our: &InterfaceAddress, address: &AddressHello) -> bool {
    let own = our.loopback && ip_of(address).is_some_and(|ip| ip.is_loopback());
    own || rank(std::slice::from_ref(our), address).is_near()
}

/// Over which interfaces TCP rails would go.
#[derive(Clone, Default, Debug)]
struct Ways {
    /// In the subnet of an address of the peer that is known here.
    near: Vec<String>,
    /// In none of them: the peer's listener may tell of more addresses.
    other: Vec<String>,
    /// `CROSSTIE_TCP_RAILS`; 0: not set.
    wish: u32,
    /// What goes beside them.
    beside: Vec<&'static str>,
}

impl Ways {
    fn of(ours: &[InterfaceAddress], theirs: &[AddressHello], wish: u32) -> Ways {
        let mut ways = Ways { wish, ..Ways::default() };
        for address in theirs {
            for our in ours.iter().filter(|our| is_near(our, address)) {
                let name = our.name.as_str().to_string();
                if !ways.near.contains(&name) {
                    ways.near.push(name);
                }
            }
        }
        for our in ours.iter().filter(|our| !our.loopback) {
            let name = our.name.as_str().to_string();
            if !ways.near.contains(&name) && !ways.other.contains(&name) {
                ways.other.push(name);
            }
        }
        ways
    }
}

/// `, over eth0, and libfabric beside it`; no interface where a router leads.
impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.over(f)?;
        match self.beside.is_empty() {
            true => Ok(()),
            false => write!(f, ", and {} beside it", self.beside.join(" and ")),
        }
    }
}

impl Ways {
    /// `, over eth0`, `, 2 rails: eth0, eth1`, and what else may be.
    fn over(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.near.len();
        let rails = if self.wish == 0 { known } else { self.wish as usize };
        let names = self.near[..known.min(rails)].join(", ");
        match (known, rails) {
            (0, 0 | 1) => return Ok(()),
            (0, rails) => return write!(f, ", {rails} rails"),
            (_, 1) => write!(f, ", over {names}")?,
            (_, rails) => write!(f, ", {rails} rails: {names}")?,
        }
        if rails > 2 {
            f.write_str(", up to rails_max (default 2)")?;
        }
        if self.wish == 0 && !self.other.is_empty() {
            let other = self.other.join(", ");
            write!(f, ", and one more rail over {other} if its listener is in that subnet")?;
        }
        Ok(())
    }
}

/// What speaks for an address of the peer, and whether it is reached. `leads`: from which of our
/// addresses the kernel would go there.
fn route(
    ours: &[InterfaceAddress],
    all: &[InterfaceAddress],
    choice: &str,
    address: &AddressHello,
    leads: io::Result<IpAddr>,
) -> (String, bool) {
    let from = match leads {
        Ok(from) => from,
        Err(error) => return (format!("no route of this host leads there ({error})"), false),
    };
    if let Some(our) = ours.iter().find(|our| is_near(our, address)) {
        return (format!("in the subnet of {}", shown(our)), true);
    }
    if ip_of(address).is_some_and(|ip| ip.is_loopback()) {
        return ("its own loopback".into(), true);
    }
    let taken = all.iter().find(|our| our.ip == from);
    let near = taken.is_some_and(|our| is_near(our, address));
    let over = taken.map(|our| format!(" over {}", shown(our))).unwrap_or_default();
    let used = taken.is_none_or(|our| ours.iter().any(|used| used.name == our.name));
    if !used && !choice.trim().is_empty() {
        let how = if near { "" } else { " through a router" };
        let name = "CROSSTIE_SOCKET_IFNAME";
        return (
            format!("not reached: the route is{how}{over}, which is not among {name}={choice}"),
            false,
        );
    }
    match (near, rank(ours, address).is_hopeless()) {
        (true, _) => (format!("in a subnet of this host{over}, which peers are not told"), true),
        (false, true) => ("no address of this family is used here".into(), true),
        (false, false) => (format!("in no subnet of this host: through a router{over}"), true),
    }
}

/// From which of our addresses an address is gone to: what the kernel chooses; where that is none
/// of `bound`, if there are any, one of these that has a route of its own. Nothing is sent.
fn leads(bound: &[InterfaceAddress], ip: IpAddr) -> io::Result<IpAddr> {
    let chosen = source(ip);
    if matches!(chosen, Ok(from) if bound.iter().any(|our| our.ip == from)) {
        return chosen;
    }
    let own = bound.iter().find(|our| leads_by_its_own(our.ip, ip));
    own.map_or(chosen, |own| Ok(own.ip))
}

/// Whether something listens at the port.
fn answers(at: &SocketAddr) -> String {
    let port = at.port();
    match TcpStream::connect_timeout(at, ANSWER) {
        Ok(_) => format!("; port {port} answers"),
        Err(error) => format!("; port {port} does not answer ({error})"),
    }
}

fn chosen(rails: Rails, own: bool, tcp: bool, over: &Ways, node_id: Option<u64>) -> String {
    let id = node_id.map(|id| format!(", {id:016x}")).unwrap_or_default();
    let tcp = rails.tcp && tcp;
    match (own, rails.shm, tcp) {
        (true, true, true) => "shm: the peer is on this host; tcp if shm does not answer, as from \
                               another container"
            .into(),
        (true, true, false) => "shm: the peer is on this host".into(),
        (true, false, true) => {
            format!("tcp{over}: the peer is on this host, but shm is not allowed")
        }
        (false, true, true) => format!(
            "tcp{over}: the peer is on another host, unless its node id is ours{id}: then shm"
        ),
        (false, false, true) => format!("tcp{over}: shm is not allowed"),
        (false, true, false) if !rails.tcp => format!(
            "none: CROSSTIE_RAILS={rails} leads to no other host, and the peer is on another, \
             unless its node id is ours{id}: then shm"
        ),
        (false, true, false) => format!(
            "none: tcp leads nowhere, and the peer is on another host, unless its node id is \
             ours{id}: then shm"
        ),
        (_, false, false) => "none: tcp leads nowhere, and shm is not allowed".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn our(name: &str, ip: [u8; 4], prefix_bits: u8) -> InterfaceAddress {
        let name = InterfaceName::new(name.as_bytes());
        InterfaceAddress::new(name, Ipv4Addr::from(ip).into(), prefix_bits)
    }

    #[test]
    fn peers_are_named_with_and_without_a_port() {
        assert_eq!(host_port("node7"), Ok(("node7".into(), None)));
        assert_eq!(host_port("node7:80"), Ok(("node7".into(), Some(80))));
        assert_eq!(host_port("fd00::2"), Ok(("fd00::2".into(), None)));
        assert_eq!(host_port("[fd00::2]:80"), Ok(("fd00::2".into(), Some(80))));
        assert_eq!(host_port("[fd00::2]"), Ok(("fd00::2".into(), None)));
        assert_eq!(host_port("fe80::2%eth0"), Ok(("fe80::2%eth0".into(), None)));
        assert_eq!(host_port("[fe80::2%eth0]:80"), Ok(("fe80::2%eth0".into(), Some(80))));
        for wrong in ["", ":80", "node:port", "node:99999"] {
            assert!(host_port(wrong).unwrap_err().contains("--peer"), "{wrong}");
        }
    }

    #[test]
    fn a_peer_to_which_no_route_leads_is_said_to_be_so_whatever_its_subnet() {
        let ours = [our("eth0", [10, 1, 0, 2], 24)];
        let nowhere = || Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
        for ip in [[10, 1, 0, 9], [10, 9, 0, 9]] {
            let to = hello(Ipv4Addr::from(ip).into());
            let (text, reaches) = route(&ours, &ours, "", &to, nowhere());
            assert!(text.contains("no route") && text.contains("unreachable"), "{text}");
            assert!(!reaches);
        }
        assert_eq!(leads(&[], Ipv4Addr::LOCALHOST.into()).unwrap(), Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn the_subnet_of_a_peer_is_named_or_the_interface_that_was_left_out() {
        let all = [our("eth0", [10, 1, 0, 2], 24), our("eth1", [10, 2, 0, 2], 24)];
        let to = |chosen: &[InterfaceAddress], choice, ip: [u8; 4], from: [u8; 4]| {
            let address = hello(Ipv4Addr::from(ip).into());
            route(chosen, &all, choice, &address, Ok(Ipv4Addr::from(from).into()))
        };
        let near = to(&all, "", [10, 2, 0, 9], [10, 2, 0, 2]);
        assert_eq!(near, ("in the subnet of eth1 10.2.0.2/24".into(), true));
        let far = to(&all, "", [10, 9, 0, 9], [10, 1, 0, 2]);
        let text = "in no subnet of this host: through a router over eth0 10.1.0.2/24";
        assert_eq!(far, (text.into(), true));
        let excluded = to(&all[..1], "eth0", [10, 2, 0, 9], [10, 2, 0, 2]);
        let text = "not reached: the route is over eth1 10.2.0.2/24, which is not among \
                    CROSSTIE_SOCKET_IFNAME=eth0";
        assert_eq!(excluded, (text.into(), false));
        let excluded = to(&all[..1], "eth0", [10, 9, 0, 9], [10, 2, 0, 2]);
        assert!(excluded.0.contains("through a router over eth1") && !excluded.1, "{excluded:?}");
        assert!(to(&all[..1], "eth0", [10, 9, 0, 9], [10, 1, 0, 2]).1);
    }

    #[test]
    fn all_interfaces_are_named_over_which_rails_would_go() {
        let ours = [our("eth0", [10, 1, 0, 2], 24), our("eth1", [10, 2, 0, 2], 24)];
        let both = [[10, 1, 0, 9], [10, 2, 0, 9]].map(|ip| hello(Ipv4Addr::from(ip).into()));
        let text = |theirs: &[AddressHello], wish| Ways::of(&ours, theirs, wish).to_string();
        assert_eq!(text(&both, 0), ", 2 rails: eth0, eth1");
        assert_eq!(text(&both, 1), ", over eth0");
        assert_eq!(
            text(&both[1..], 0),
            ", over eth1, and one more rail over eth0 if its listener is in that subnet"
        );
        assert_eq!(text(&both[1..], 2), ", 2 rails: eth1");
        assert_eq!(text(&[hello(Ipv4Addr::new(10, 9, 0, 9).into())], 0), "");
    }

    #[test]
    fn the_choice_follows_host_and_rails() {
        let rails = |shm, tcp| Rails { shm, tcp, ..Rails::NONE };
        let eth0 = Ways { near: ["eth0".into()].into(), ..Ways::default() };
        for (rails, own, tcp, wanted) in [
            (rails(true, true), true, true, "shm: "),
            (rails(false, true), true, true, "tcp, over eth0: the peer is on this host"),
            (
                rails(true, true),
                false,
                true,
                "tcp, over eth0: the peer is on another host, unless its node id is ours, \
                 000000000000002a: then shm",
            ),
            (rails(false, true), false, true, "tcp, over eth0: shm is not allowed"),
            (rails(true, false), false, true, "none: CROSSTIE_RAILS=shm leads to no other host"),
            (rails(true, true), false, false, "none: tcp leads nowhere"),
            (rails(false, true), true, false, "none: tcp leads nowhere, and shm is not allowed"),
        ] {
            let text = chosen(rails, own, tcp, &eth0, Some(42));
            assert!(text.starts_with(wanted), "{text}");
        }
        let beside = |verbs: &str, ofi: &str| Ways { beside: beside(verbs, ofi), ..eth0.clone() };
        for (ways, wanted) in [
            (beside("none: no", "net over lo"), "tcp, over eth0, and libfabric beside it: "),
            (beside("mlx5_0:1", "none: no"), "tcp, over eth0, and RDMA beside it: "),
            (beside("a:1", "net over lo"), "tcp, over eth0, and RDMA and libfabric beside it: "),
            (beside("none: no", "none: no"), "tcp, over eth0: "),
        ] {
            let text = chosen(rails(false, true), false, true, &ways, None);
            assert!(text.starts_with(wanted), "{text}");
        }
        assert!(chosen(Rails::ALL, true, false, &Ways::default(), None).starts_with("shm: "));
        assert!(chosen(Rails::ALL, false, true, &Ways::default(), None).starts_with("tcp: "));
    }
}
