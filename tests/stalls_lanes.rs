//! A rail of several fails while the peer is stopped: the report names the rail and what is owed.
//! Alone in its process, so that its sockets are known.

mod host_support;

use crosstie::host::{DeviceKind, Options, log};
use crosstie::transport::Limits;
use crosstie::transport::rail::LaneState;
use host_support::{Memory, Node, Place, Watch, roles, small};
use std::sync::Mutex;

const LONG: usize = 4 << 20;
const SETTINGS: [(&str, &str); 2] = [("CROSSTIE_STALL_MS", "300"), ("CROSSTIE_TCP_RAILS", "2")];

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn options() -> Options {
    let limits = Limits { rails_max: 2, ..small(2).limits };
    Options { device: DeviceKind::Tcp, limits, ..small(2) }
}

#[test]
fn role() {
    roles::take(&[("other", role_other)]);
}

fn role_other() {
    let mut line = roles::line();
    let mut node = Node::open(&options());
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    let memory = Memory::new(&node, Place::Private, LONG);
    node.irecv(connection, &[memory.incoming(0, LONG, 7)]).unwrap();
    while !line.is_ready() {
        node.progress();
    }
}

/// The established TCP sockets of this process, in the order in which they were dialled.
fn sockets() -> Vec<i32> {
    let is_tcp = |fd: &i32| {
        let mut info = [0u8; 256];
        let mut length = info.len() as libc::socklen_t;
        let into = info.as_mut_ptr().cast();
        // SAFETY: `info` is valid for writes of `length` bytes.
        let rc =
            unsafe { libc::getsockopt(*fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut length) };
        rc == 0 && info[0] == 1 // TCP_ESTABLISHED
    };
    (3..256).filter(is_tcp).collect()
}

#[test]
fn failed_rail_that_the_peer_does_not_report_on_is_named() {
    for (name, value) in SETTINGS {
        // SAFETY: the only test of this process that reads the environment, before it does.
        unsafe { std::env::set_var(name, value) };
    }
    log::sink_set(Some((|_, _, text| SAID.lock().unwrap().push(text.into()), 0)));
    let mut other = roles::start("other", &[]);
    let mut node = Node::open(&options());
    let handle = other.line.hear::<128>();
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    let memory = Memory::new(&node, Place::Private, LONG);
    let watch = Watch::start();
    loop {
        node.progress();
        let view = node.rail_view(connection, 1).unwrap().expect("two rails");
        if view.state == LaneState::Up {
            break;
        }
        watch.look("the second rail");
    }
    assert_eq!(node.rail_view(connection, 2), Ok(None));
    let before = node.rail_view(connection, 1).unwrap().unwrap().stats.stripes;
    other.signal(libc::SIGSTOP);
    node.isend(connection, memory.outgoing(0, LONG, 7)).unwrap();
    while node.rail_view(connection, 1).unwrap().unwrap().stats.stripes == before {
        node.progress();
        watch.look("stripes");
    }
    let all = sockets();
    assert_eq!(all.len(), 3, "a link and two rails: {all:?}");
    // SAFETY: a call without pointers on an open descriptor.
    assert_eq!(unsafe { libc::shutdown(all[2], libc::SHUT_RDWR) }, 0);
    loop {
        node.progress();
        let said = SAID.lock().unwrap();
        if let Some(text) = said.iter().find(|text| text.starts_with("stalled")) {
            assert!(text.contains(": unfenced region: rail 1 (generation 1) has failed"), "{text}");
            assert!(text.contains("the peer owes its report"), "{text}");
            println!("{text}");
            break;
        }
        drop(said);
        watch.look("a sentence");
    }
    other.kill();
}
