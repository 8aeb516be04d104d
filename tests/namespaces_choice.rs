//! Which way leads to a peer, between hosts that are network namespaces: shared memory or TCP, by
//! which interfaces; and what is said when there is none.

mod host_support;
mod namespace_support;

use crosstie::connect::interfaces::{self, AddressFamily, InterfaceAddress};
use host_support::deny::deny_where_here;
use host_support::roles::{self, Process};
use namespace_support::two::{Log, Two, tcp_sockets};
use namespace_support::work::{role_connect, role_hub, role_listen, role_open};
use namespace_support::{Hosts, Start, may};
use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[test]
fn role() {
    roles::take(&[
        ("listen", role_listen),
        ("connect", role_connect),
        ("open", role_open),
        ("hub", role_hub),
        ("device", role_device),
    ]);
}

/// Each pair wants two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---------------------------------------------------------------- both rails in one endpoint

/// An endpoint in host 0 with a peer in the same host and one in host 1: over what each connection
/// runs, and the sockets of TCP that the peers and the endpoint hold.
fn two_peers(hosts: &Hosts, environment: &[(&str, &str)]) -> ([String; 2], [usize; 3]) {
    let mut hub = hosts.start(0, "hub", Start { environment, log: None });
    let handle = hub.line.hear::<128>();
    let mut peers = [0, 1].map(|at| {
        let mut peer = hosts.start(at, "connect", Start { environment, log: None });
        peer.line.say(&handle);
        assert_eq!(peer.line.hear_text(), "connected");
        peer
    });
    let rails = [(); 2].map(|()| hub.line.hear_text());
    for (at, peer) in peers.iter_mut().enumerate() {
        let seed = 0x5eed_0261 + 2 * at as u64;
        peer.line.say_text("exchange");
        for line in [&mut peer.line, &mut hub.line] {
            line.say_number(40);
            line.say_number(seed);
        }
        let arrived = [&mut peer.line, &mut hub.line].map(|line| line.hear_number());
        assert_eq!(arrived[0], arrived[1]);
        peer.line.say_text("rail");
        assert_eq!(peer.line.hear_text(), rails[at], "both sides know the same");
    }
    let sockets = [&peers[0], &peers[1], &hub].map(tcp_sockets);
    hub.line.say_text("end");
    for mut peer in peers {
        peer.line.say_text("end");
        assert!(peer.finished().success());
    }
    assert!(hub.finished().success());
    (rails, sockets)
}

#[test]
fn peer_of_the_same_host_takes_shared_memory_and_the_others_tcp_in_one_endpoint() {
    if !may("peer_of_the_same_host_takes_shared_memory_and_the_others_tcp_in_one_endpoint") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let words = |rails: [&str; 2]| rails.map(str::to_owned);
    let (rails, sockets) = two_peers(&hosts, &[]);
    assert_eq!((rails, sockets), (words(["Shm", "Tcp"]), [0, 2, 2]), "a link and a stream");
    let (rails, sockets) = two_peers(&hosts, &[("CROSSTIE_RAILS", "tcp")]);
    assert_eq!((rails, sockets), (words(["Tcp", "Tcp"]), [2, 2, 4]));
}

#[test]
fn rails_that_the_sides_do_not_share_are_named() {
    if !may("rails_that_the_sides_do_not_share_are_named") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let [shm, tcp] = [[("CROSSTIE_RAILS", "shm")], [("CROSSTIE_RAILS", "tcp")]];
    for (listening, connecting, at) in [(&shm, &tcp, 0), (&tcp, &shm, 0), (&tcp, &shm, 1)] {
        let start = Start { environment: listening, log: None };
        let mut process = hosts.start(0, "listen", start);
        let text = refused(&hosts, at, &process.line.hear::<128>(), connecting);
        let named = text.starts_with("Rail {") || text.starts_with("OtherHost");
        assert!(named, "{listening:?}, {connecting:?}, host {at}: {text}");
    }
}

#[test]
fn hosts_that_say_the_same_number_are_still_two() {
    if !may("hosts_that_say_the_same_number_are_still_two") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    for number in ["77", "78"] {
        let mut two = Two::joined(&hosts, &[("CROSSTIE_NODE_ID", number)]);
        two.exchange(20, 0x5eed_0270);
        assert!(tcp_sockets(&two.connecting) >= 2);
        two.end();
    }
}

// ---------------------------------------------------------------- interfaces

/// How opening an endpoint ends in host 0.
fn opened(hosts: &Hosts, environment: &[(&str, &str)]) -> String {
    let mut process = hosts.start(0, "open", Start { environment, log: None });
    let text = process.line.hear_text();
    assert!(process.finished().success());
    text
}

#[test]
fn interfaces_that_are_missing_or_excluded_are_named() {
    if !may("interfaces_that_are_missing_or_excluded_are_named") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let tcp = ("CROSSTIE_RAILS", "tcp");
    let by = |choice| [tcp, ("CROSSTIE_SOCKET_IFNAME", choice)];
    let text = opened(&hosts, &[tcp]);
    assert!(text.starts_with("listens ") && text.contains("Ipv4"), "{text}");
    assert!(text.contains("Ipv6"), "{text}");
    for wrong in ["nosuch", "=eth", "^eth,lo"] {
        let text = opened(&hosts, &by(wrong));
        assert!(text.starts_with("open Interface"), "{wrong}: {text}");
        assert!(text.contains("CROSSTIE_SOCKET_IFNAME"), "{wrong}: {text}");
    }
    for right in ["eth0", "=eth0", "eth", "^lo"] {
        let text = opened(&hosts, &by(right));
        assert!(text.starts_with("listens "), "{right}: {text}");
    }
    // nothing leads out of this host
    hosts.ip(0, "link set eth0 down\n");
    let text = opened(&hosts, &by("eth0"));
    assert!(text.starts_with("open Interface"), "{text}");
    // shared memory is enough for those who stay at home
    let text = opened(&hosts, &[("CROSSTIE_RAILS", "shm")]);
    assert!(text.starts_with("listens "), "{text}");
}

/// The local addresses of the TCP sockets that a process holds and that have a peer.
fn local_addresses(process: &Process) -> Vec<String> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", process.id())).expect("proc");
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let standing = rows.filter(|row| row.len() > 9 && row[3] == "01");
    standing.map(|row| row[1].split(':').next().expect("an address").to_owned()).collect()
}

#[test]
fn connector_goes_out_of_chosen_interfaces_alone() {
    if !may("connector_goes_out_of_chosen_interfaces_alone") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let by = |choice| [("CROSSTIE_SOCKET_IFNAME", choice), ("CROSSTIE_TCP_RAILS", "1")];
    let start = |at, role: &str, environment: &[(&str, &str)]| {
        hosts.start(at, role, Start { environment, log: None })
    };
    // the listener is reached by one of the two, and the connector has chosen the other
    for (there, here) in [("eth0", "eth1"), ("eth1", "eth0")] {
        let mut listening = start(0, "listen", &by(there));
        let handle = listening.line.hear::<128>();
        let text = refused(&hosts, 1, &handle, &by(here));
        assert!(text.starts_with("Interface"), "{text}");
        assert!(text.contains("CROSSTIE_SOCKET_IFNAME"), "{text}");
        assert!(text.contains(&format!("over {there}, ")), "{text}");
    }
    // a listener with both is reached by the one that was chosen
    let mut ends = vec![];
    for here in ["eth0", "eth1"] {
        let mut listening = start(0, "listen", &by("eth"));
        let mut connecting = start(1, "connect", &by(here));
        let handle = listening.line.hear::<128>();
        connecting.line.say(&handle);
        assert_eq!(connecting.line.hear_text(), "connected");
        let mut used = local_addresses(&connecting);
        assert!(used.len() >= 2, "a link and a stream: {used:?}");
        used.dedup();
        assert_eq!(used.len(), 1, "{used:?}");
        ends.extend(used);
        for process in [&mut listening, &mut connecting] {
            process.line.say_text("close");
        }
    }
    assert_ne!(ends[0], ends[1]);
}

/// A socket that is bound to no address does not see such a route: the way was over another
/// interface then, and refused.
#[test]
fn route_of_a_chosen_address_alone_leads_to_the_listener() {
    if !may("route_of_a_chosen_address_alone_leads_to_the_listener") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged_twice(2);
    let by = |choice| [("CROSSTIE_SOCKET_IFNAME", choice), ("CROSSTIE_TCP_RAILS", "1")];
    // host 0 is the router and the listener, too
    hosts.ip(1, "rule add from 10.78.0.2 table 7\nroute add 10.77.0.0/24 via 10.78.0.1 table 7\n");
    let start = |at, role: &str, environment: &[(&str, &str)]| {
        hosts.start(at, role, Start { environment, log: None })
    };
    let mut listening = start(0, "listen", &by("eth0"));
    let mut connecting = start(1, "connect", &by("eth1"));
    let handle = listening.line.hear::<128>();
    connecting.line.say(&handle);
    assert_eq!(connecting.line.hear_text(), "connected");
    let used = local_addresses(&connecting);
    assert!(used.len() >= 2 && used.iter().all(|ip| ip == "02004E0A"), "10.78.0.2: {used:?}");
    for process in [&mut listening, &mut connecting] {
        process.line.say_text("close");
    }
}

#[test]
fn wrong_interface_names_are_named_when_other_hosts_cannot_be_reached_for_them() {
    if !may("wrong_interface_names_are_named_when_other_hosts_cannot_be_reached_for_them") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let wrong = [("CROSSTIE_SOCKET_IFNAME", "nosuch"), ("CROSSTIE_NODE_ID", "7")];
    let mut process = hosts.start(0, "listen", Start::default());
    let text = refused(&hosts, 1, &process.line.hear::<128>(), &wrong);
    assert!(text.starts_with("NoInterface"), "{text}");
    assert!(text.contains("no interface") && text.contains("CROSSTIE_SOCKET_IFNAME"), "{text}");
    let mut process = hosts.start(0, "listen", Start { environment: &wrong, log: None });
    let text = refused(&hosts, 1, &process.line.hear::<128>(), &[]);
    assert!(text.starts_with("Rail {"), "{text}");
    assert!(text.contains("no interface") && text.contains("CROSSTIE_SOCKET_IFNAME"), "{text}");
}

#[test]
fn addresses_that_are_all_in_use_are_named() {
    if !may("addresses_that_are_all_in_use_are_named") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(1);
    let taken = hosts.inside(0, || {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000").unwrap();
        ["0.0.0.0:40000", "[::]:40000"].map(|at| TcpListener::bind(at).ok())
    });
    let text = opened(&hosts, &[("CROSSTIE_RAILS", "tcp")]);
    let words = "all local ports are in use (net.ipv4.ip_local_port_range)";
    assert!(text.starts_with("listen ") && text.contains(words), "{text}");
    drop(taken);
    let text = opened(&hosts, &[("CROSSTIE_RAILS", "tcp")]);
    assert!(text.starts_with("listens "), "{text}");
}

/// Starts something in host 1 while its only address of the interface is tentative.
fn while_tentative<T>(hosts: &Hosts, address: &str, act: impl FnOnce() -> T) -> T {
    hosts.inside(1, || {
        std::fs::write("/proc/sys/net/ipv6/conf/eth0/dad_transmits", "2").expect("a setting");
    });
    hosts.forget(1, "-4");
    hosts.forget(1, "-6");
    hosts.ip(1, &format!("addr add {address}/64 dev eth0\n"));
    act()
}

#[test]
fn tentative_address_is_waited_for_by_both_sides_and_where_its_interface_is_named() {
    if !may("tentative_address_is_waited_for_by_both_sides_and_where_its_interface_is_named") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let address = hosts.ipv6(1);
    for environment in [&[][..], &[("CROSSTIE_SOCKET_IFNAME", "eth0")]] {
        let tentative = |at| {
            while_tentative(&hosts, &address, || {
                Two::logged(&hosts, at, environment, None).end();
            });
        };
        tentative([0, 1]);
        tentative([1, 0]);
    }
    // another host has it: the kernel finds that out meanwhile
    let start = || hosts.start(1, "open", Start { environment: &TCP_ALONE, log: None });
    let mut process = while_tentative(&hosts, &hosts.ipv6(0), start);
    let text = process.line.hear_text();
    assert!(text.starts_with("open Interface"), "{text}");
    assert!(process.finished().success());
}

const TCP_ALONE: [(&str, &str); 2] =
    [("CROSSTIE_RAILS", "tcp"), ("CROSSTIE_SOCKET_IFNAME", "eth0")];

#[test]
fn labelled_address_belongs_to_its_interface() {
    if !may("labelled_address_belongs_to_its_interface") {
        return;
    }
    let hosts = Hosts::bridged(1);
    hosts.forget(0, "-6");
    hosts.ip(0, "addr add 10.79.0.1/24 dev eth0 label eth0:hsn\n");
    let found = |choice| {
        let found = hosts.inside(0, || interfaces::local_addresses(choice));
        let word = |it: &InterfaceAddress| format!("{} {}", it.name.as_str(), it.ip);
        found.map(|found| found.iter().map(word).collect::<Vec<_>>())
    };
    let both = ["eth0 10.77.0.1", "eth0 10.79.0.1"];
    for choice in ["", "=eth0", "eth0"] {
        assert_eq!(found(choice).expect("addresses"), both, "{choice}");
    }
    assert_eq!(found("=eth0:hsn").expect("one"), both[1..]);
    let left = found("^=eth0").expect("loopback");
    assert!(left.iter().all(|it| it.starts_with("lo ")), "{left:?}");
}

/// Nine bridges of this host alone, of which each has a port, before the NIC.
fn behind_bridges() -> Hosts {
    let bridge = |at| {
        format!(
            "link add br{at} type bridge\nlink add p{at} type veth peer name q{at}\n\
             link set q{at} master br{at}\nlink set p{at} up\nlink set q{at} up\n\
             link set br{at} up\naddr add 172.17.{at}.1/24 dev br{at}\n"
        )
    };
    let hosts = Hosts::bridged_behind(1, &(1..=9).map(bridge).collect::<String>());
    for at in 1..=9 {
        while !hosts.inside(0, || is_running(&format!("br{at}"))) {
            std::thread::yield_now();
        }
    }
    hosts
}

/// Whether an interface has a carrier.
fn is_running(name: &str) -> bool {
    let all = interfaces::all_addresses().expect("addresses");
    all.iter().any(|it| it.name.as_str() == name && it.running)
}

/// Has the kernel refuse netlink to this thread.
fn netlink_refuse() {
    let (call, netlink) = (libc::SYS_socket, libc::AF_NETLINK as u32);
    assert!(deny_where_here(call, 0, netlink, libc::EAFNOSUPPORT), "this system has no filters");
}

/// They were known from `/sys` alone, which may be absent, or show another network: the NIC's
/// address, the only one that worked, had no room in the handle.
#[test]
fn bridges_are_told_from_nics_where_sysfs_is_of_another_network() {
    if !may("bridges_are_told_from_nics_where_sysfs_is_of_another_network") {
        return;
    }
    let hosts = behind_bridges();
    // a thread sees the `/sys` of the test, and so of another network
    for before in [|| {}, netlink_refuse as fn()] {
        let found = hosts.inside(0, || {
            before();
            interfaces::local_addresses_of(AddressFamily::V4, "").expect("addresses")
        });
        assert_eq!((found.len(), found[0].name.as_str()), (10, "eth0"), "{found:?}");
        let inner = found.iter().filter(|it| it.inner).count();
        assert_eq!(inner, 9, "{found:?}");
        let out = interfaces::without_room(&found);
        assert!(!out.is_empty() && out.iter().all(|it| it.inner), "{out:?}");
    }
}

/// `RestrictAddressFamilies=AF_INET AF_INET6` of a service: no endpoint was opened.
#[test]
fn interfaces_are_found_alike_where_netlink_is_refused() {
    if !may("interfaces_are_found_alike_where_netlink_is_refused") {
        return;
    }
    let hosts = Hosts::bridged(1);
    hosts.ip(
        0,
        "addr add 10.79.0.1/20 dev eth0 label eth0:hsn\naddr add 10.77.0.9/24 dev eth0\n\
         addr add 10.76.0.1 peer 10.76.0.2/32 dev eth0\n\
         addr add fd79::1/56 dev eth0 nodad preferred_lft 0\n\
         link add dark type veth peer name bare\nlink set dark up\n\
         addr add 10.80.0.1/24 dev dark\naddr add 10.81.0.1/24 dev bare\n\
         link add void type bridge\naddr add 10.82.0.1/24 dev void\n",
    );
    // the kernel lists IPv6 addresses in no order, and makes the link-local ones meanwhile
    let found = |before: fn()| {
        let mut found = hosts.inside(0, || {
            before();
            interfaces::all_addresses().expect("addresses")
        });
        found.retain(|it| !it.link_local);
        found.sort_by_key(|it| (it.ip, it.name.as_str().to_owned()));
        found
    };
    let told = found(|| {});
    let named = |name: &str| told.iter().filter(|it| it.name.as_str() == name).count();
    let counts = ["lo", "eth0", "dark", "bare", "void"].map(named);
    assert!(counts[1] >= 6 && counts[2..].iter().all(|count| *count == 1), "{told:?}");
    assert_eq!(found(netlink_refuse), told);
}

/// With a `/sys` of this network the interface below is known, too.
#[test]
fn macvlan_is_its_nics_however_interfaces_are_listed() {
    if !may("macvlan_is_its_nics_however_interfaces_are_listed") {
        return;
    }
    let hosts = Hosts::bridged(1);
    hosts.ip(
        0,
        "link add link eth0 name up0 type macvlan\nlink set up0 up\n\
         addr add 10.79.0.1/24 dev up0\n",
    );
    for refused in ["", "netlink"] {
        let environment = [("TEST_REFUSED", refused)];
        let start = Start { environment: &environment, log: None };
        let mut process = hosts.start(0, "device", start);
        assert_eq!(process.line.hear_text(), "eth0", "{refused}");
        assert!(process.finished().success());
    }
}

/// Says which device carries `up0`.
fn role_device() {
    let mut line = roles::line();
    if std::env::var("TEST_REFUSED").as_deref() == Ok("netlink") {
        netlink_refuse();
    }
    let found = interfaces::all_addresses().expect("addresses");
    let up = found.iter().find(|it| it.name.as_str() == "up0").expect("its address");
    line.say_text(up.device.as_str());
}

// ---------------------------------------------------------------- what cannot be reached

/// How a process ends that connects to a handle.
fn refused(hosts: &Hosts, at: usize, handle: &[u8; 128], environment: &[(&str, &str)]) -> String {
    let mut connecting = hosts.start(at, "connect", Start { environment, log: None });
    connecting.line.say(handle);
    let text = connecting.line.hear_text();
    assert!(connecting.finished().success());
    text
}

#[test]
fn local_ports_that_are_used_up_are_named() {
    if !may("local_ports_that_are_used_up_are_named") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let mut listening = hosts.start(0, "listen", Start::default());
    let handle = listening.line.hear::<128>();
    // enough for the link, and not for its stream
    hosts.inside(1, || {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000").unwrap();
    });
    for environment in [&[][..], &[("CROSSTIE_SOCKET_IFNAME", "eth0")]] {
        let text = refused(&hosts, 1, &handle, environment);
        assert!(text.contains("all local ports towards it are in use"), "{text}");
        assert!(!text.contains("no address of this host"), "{text}");
    }
}

#[test]
fn listener_with_link_local_addresses_alone_is_not_looked_for_on_the_connectors_host() {
    let test = "listener_with_link_local_addresses_alone_is_not_looked_for_on_the_connectors_host";
    if !may(test) {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    hosts.forget(0, "-4");
    hosts.ip(0, &format!("addr del {}/64 dev eth0\n", hosts.ipv6(0)));
    let log = Log::new("link-local");
    let mut listening = hosts.start(0, "listen", Start { environment: &[], log: Some(log.file()) });
    let handle = listening.line.hear::<128>();
    log.says("link-local IPv6 ones aside");
    let text = refused(&hosts, 1, &handle, &[("CROSSTIE_NODE_ID", "7")]);
    assert!(text.contains("loopback addresses alone, which no other host reaches"), "{text}");
    assert!(!text.contains("process has ended"), "{text}");
}

#[test]
fn unreachable_listeners_are_named_by_cause() {
    if !may("unreachable_listeners_are_named_by_cause") {
        return;
    }
    let _alone = alone();
    let hosts = Hosts::bridged(2);
    let mut listening = hosts.start(0, "listen", Start::default());
    let handle = listening.line.hear::<128>();
    let short = [("CROSSTIE_CONNECT_TIMEOUT_MS", "700")];
    // nobody answers
    hosts.cable(0, false);
    let text = refused(&hosts, 1, &handle, &short);
    assert!(text.starts_with("Deadline") || text.starts_with("Unreachable"), "{text}");
    hosts.cable(0, true);
    // no route
    for family in ["-4", "-6"] {
        hosts.forget(1, family);
    }
    let text = refused(&hosts, 1, &handle, &[]);
    assert!(text.starts_with("Unreachable"), "{text}");
    hosts.configure(1);
    // nobody listens
    listening.kill();
    let text = refused(&hosts, 1, &handle, &[]);
    assert!(text.starts_with("NoListener") || text.starts_with("Unreachable"), "{text}");
}
