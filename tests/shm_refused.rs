//! Where the kernel refuses a call that shared memory needs, peers of this host are reached over
//! TCP, and one warning says so. Each end is a process of its own, with a filter of system calls.

mod host_support;

use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, OpenError};
use crosstie::wire::handle::HANDLE_BYTES;
use host_support::deny::{deny, deny_where};
use host_support::{Memory, Node, Place, roles, small};
use std::sync::Mutex;

/// TCP within this host, whatever interfaces it has.
const LOOPBACK: (&str, &str) = ("CROSSTIE_SOCKET_IFNAME", "=lo");
const LENGTH: usize = 100_000;
/// Where messages lie, each time that a peer is connected to.
const PLACES: [Place; 2] = [Place::Private, Place::Shared];

/// What the kernel refuses: a name, the call, which of its arguments must be what, and its answer.
type Refusal = (&'static str, libc::c_long, Option<(u32, u32)>, i32);
const REFUSALS: [Refusal; 9] = [
    ("socket", libc::SYS_socket, Some((0, libc::AF_UNIX as u32)), libc::EAFNOSUPPORT),
    (INTERNET, libc::SYS_socket, Some((0, libc::AF_UNIX as u32)), libc::EAFNOSUPPORT),
    ("memfd_create", libc::SYS_memfd_create, None, libc::EPERM),
    ("ftruncate", libc::SYS_ftruncate, None, libc::EACCES),
    ("seals", libc::SYS_fcntl, Some((1, libc::F_ADD_SEALS as u32)), libc::EPERM),
    ("asked seals", libc::SYS_fcntl, Some((1, libc::F_GET_SEALS as u32)), libc::EPERM),
    ("fallocate", libc::SYS_fallocate, None, libc::EOPNOTSUPP),
    ("fstatfs", libc::SYS_fstatfs, None, libc::ENOSYS),
    ("mmap", libc::SYS_mmap, Some((3, SHARED)), libc::EPERM),
];
/// AF_NETLINK too, as by a service's `RestrictAddressFamilies=AF_INET AF_INET6`.
const INTERNET: &str = "netlink and socket";
const SHARED: u32 = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u32;
/// When it is refused: before the endpoint is opened, or after.
const NEVER: &str = "never";
const BEFORE: &str = "before";
const AFTER: &str = "after";

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: usize, level: Level, text: &str) {
    if level != Level::Info {
        SAID.lock().unwrap().push(text.to_string());
    }
}

fn refuse() {
    let name = std::env::var("TEST_REFUSED").unwrap();
    let (_, call, argument, errno) = *REFUSALS.iter().find(|(known, ..)| *known == name).unwrap();
    let refused = match argument {
        None => deny(call, errno),
        Some((at, value)) => deny_where(call, at, value, errno),
    };
    let netlink = libc::AF_NETLINK as u32;
    let both = name != INTERNET || deny_where(call, 0, netlink, errno);
    assert!(refused && both, "this system has no filters");
}

/// An end that is refused something, or nothing.
fn opened() -> Node {
    let when = std::env::var("TEST_REFUSED_WHEN").unwrap();
    sink_set(Some((keep, 0)));
    if when == BEFORE {
        refuse();
    }
    let node = Node::open(&small(4));
    if when == AFTER {
        refuse();
    }
    node
}

/// Says what was warned of.
fn told(line: &mut roles::Line) {
    line.say_text(&SAID.lock().unwrap().join("\n"));
}

fn listen() {
    let (mut line, mut node) = (roles::line(), opened());
    let (listener, handle) = node.shared.listen().expect("a listener");
    line.say(&handle);
    for (place, round) in PLACES.into_iter().zip(0..) {
        let into = Memory::new(&node, place, LENGTH);
        let connection = node.accepted(listener);
        let receive = node.irecv(connection, &[into.incoming(0, LENGTH, 0)]).unwrap();
        assert_eq!(node.wait(receive).result, Ok(()));
        into.verify(0, LENGTH, round);
        line.say_number(rail(&mut node, connection));
        line.hear_number();
        node.disconnect(connection);
        into.release(&node);
    }
    told(&mut line);
}

fn connect() {
    let (mut line, mut node) = (roles::line(), opened());
    let handle: [u8; HANDLE_BYTES] = line.hear();
    for (place, round) in PLACES.into_iter().zip(0..) {
        let from = Memory::new(&node, place, LENGTH);
        let attempt = node.shared.connect(&handle).expect("an attempt");
        let connection = node.connected(attempt).expect("a connection");
        from.fill(0, LENGTH, round);
        let send = node.isend(connection, from.outgoing(0, LENGTH, 0)).unwrap();
        assert_eq!(node.wait(send).result, Ok(()));
        line.say_number(rail(&mut node, connection));
        line.hear_number();
        node.disconnect(connection);
        from.release(&node);
    }
    told(&mut line);
}

fn rail(node: &mut Node, connection: crosstie::base::slab::Handle) -> u64 {
    match node.connection_rail(connection).expect("it stands") {
        ConnectionRail::Shm => 0,
        ConnectionRail::Tcp => 1,
        other => panic!("{other:?}"),
    }
}

/// The only rail that is allowed.
fn open_alone() {
    sink_set(Some((keep, 0)));
    refuse();
    let name = std::env::var("TEST_REFUSED").unwrap();
    let device = crosstie::host::Options { device: DeviceKind::SharedMemory, ..small(2) };
    for options in [device, small(2)] {
        let error = Node::try_open(&options).err().expect("no rail is left");
        assert!(matches!(error, OpenError::SharedMemory { .. }), "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("no other rail is allowed"), "{text}");
        let call = name.split(' ').next_back().unwrap().replace("seals", "fcntl");
        assert!(text.contains(&format!("({call}")), "{call}: {text}");
    }
}

/// Devices that want nothing of it. Their heap is memory all the same.
fn open_others() {
    sink_set(Some((keep, 0)));
    refuse();
    for device in [DeviceKind::Tcp, DeviceKind::Loopback] {
        let node = Node::open(&crosstie::host::Options { device, ..small(2) });
        node.shared.listen().expect("a listener");
        let memory = Memory::new(&node, Place::Shared, LENGTH);
        memory.fill(0, LENGTH, 1);
        memory.release(&node);
    }
    // what lacks without netlink is about the interfaces
    let of_memory = |line: &&String| !line.starts_with("interfaces: ");
    assert_eq!(SAID.lock().unwrap().iter().find(of_memory), None);
}

/// It was said that tcp should be allowed, which it was.
fn open_without_an_interface() {
    sink_set(Some((keep, 0)));
    refuse();
    let error = Node::try_open(&small(2)).err().expect("no rail is left").to_string();
    assert!(error.contains("(socket") && error.contains("no interface with an address"), "{error}");
    assert!(!error.contains("allow tcp"), "{error}");
}

/// Neither netlink nor a socket of the internet: there is no interface to be blamed.
fn open_without_lists() {
    sink_set(Some((keep, 0)));
    for family in [libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6] {
        assert!(deny_where(libc::SYS_socket, 0, family as u32, libc::EAFNOSUPPORT));
    }
    let options = crosstie::host::Options { device: DeviceKind::Tcp, ..small(2) };
    let error = Node::try_open(&options).err().expect("no rail is left");
    assert_eq!(error, OpenError::Interfaces(libc::EAFNOSUPPORT));
    assert!(!error.to_string().contains("CROSSTIE_SOCKET_IFNAME"), "{error}");
}

#[test]
fn role() {
    roles::take(&[
        ("listen", listen),
        ("connect", connect),
        ("open_alone", open_alone),
        ("open_others", open_others),
        ("open_without_an_interface", open_without_an_interface),
        ("open_without_lists", open_without_lists),
    ]);
}

fn start(role: &str, name: &str, when: &str) -> roles::Process {
    let refusal = [("TEST_REFUSED", name), ("TEST_REFUSED_WHEN", when)];
    roles::start(role, &[refusal[0], refusal[1], LOOPBACK])
}

/// What a peer on the same host has over which rail, with what warnings on each side.
fn between(name: &str, listens: &str, connects: &str) -> (Vec<u64>, [Vec<String>; 2]) {
    let mut ends = [start("listen", name, listens), start("connect", name, connects)];
    let handle: [u8; HANDLE_BYTES] = ends[0].line.hear();
    ends[1].line.say(&handle);
    let mut rails = Vec::new();
    for _ in PLACES {
        rails.extend(ends.iter_mut().map(|end| end.line.hear_number()));
        ends.iter_mut().for_each(|end| end.line.say_number(0));
    }
    let said = ends.each_mut().map(|end| {
        let text = end.line.hear_text();
        text.lines().filter(|line| line.contains("shared memory")).map(str::to_string).collect()
    });
    for end in ends {
        let status = end.finished();
        assert!(status.success(), "{name}, {listens}, {connects}: {status}");
    }
    (rails, said)
}

fn refused(listens: &str, connects: &str) {
    if host_support::over_tcp() {
        return;
    }
    for (name, ..) in REFUSALS {
        let (rails, said) = between(name, listens, connects);
        let case = format!("{name}: {listens}, {connects}: {said:#?}");
        // what a side does not need after it was opened, is not missed
        let needless = match name {
            "asked seals" | "fstatfs" => listens == NEVER && connects == AFTER,
            "memfd_create" | "ftruncate" | "seals" | "fallocate" => {
                listens == AFTER && connects == NEVER
            }
            _ => false,
        };
        let lines = said.iter().map(Vec::len).sum::<usize>();
        if needless && rails.iter().all(|rail| *rail == 0) {
            assert_eq!(lines, 0, "{case}");
            continue;
        }
        assert_eq!(rails, [1; 2 * PLACES.len()], "{case}");
        assert_eq!(lines, 1, "{case}");
    }
}

/// It refused to listen: "errno 97".
#[test]
fn listener_that_is_refused_before_open_is_reached_over_tcp() {
    refused(BEFORE, NEVER);
}

#[test]
fn listener_that_is_refused_after_open_is_reached_over_tcp() {
    refused(AFTER, NEVER);
}

#[test]
fn connector_that_is_refused_before_open_takes_tcp() {
    refused(NEVER, BEFORE);
}

#[test]
fn connector_that_is_refused_after_open_takes_tcp() {
    refused(NEVER, AFTER);
}

#[test]
fn nothing_refused_is_shared_memory() {
    if !host_support::over_tcp() {
        let (rails, said) = between("socket", NEVER, NEVER);
        assert_eq!((rails, said), (vec![0; 2 * PLACES.len()], [vec![], vec![]]));
    }
}

#[test]
fn where_no_other_rail_is_allowed_open_says_which_call_is_refused() {
    for (name, ..) in REFUSALS {
        let environment = [("TEST_REFUSED", name), ("CROSSTIE_RAILS", "shm")];
        let status = roles::start("open_alone", &environment).finished();
        assert!(status.success(), "{name}: {status}");
    }
}

/// `xtie_memory_alloc` was refused there.
#[test]
fn other_devices_open_listen_and_allocate_all_the_same() {
    for (name, ..) in REFUSALS {
        let environment = [("TEST_REFUSED", name), ("CROSSTIE_RAILS", "tcp"), LOOPBACK];
        let status = roles::start("open_others", &environment).finished();
        assert!(status.success(), "{name}: {status}");
    }
}

#[test]
fn rail_that_is_allowed_and_has_no_address_is_not_called_forbidden() {
    let environment = [("TEST_REFUSED", "socket"), ("CROSSTIE_SOCKET_IFNAME", "=nobodys0")];
    assert!(roles::start("open_without_an_interface", &environment).finished().success());
}

#[test]
fn kernel_that_lists_no_interfaces_is_blamed_for_it() {
    assert!(roles::start("open_without_lists", &[]).finished().success());
}
