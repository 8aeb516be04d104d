//! A rail of several fails while the peer is stopped: the report names the rail and what is owed,
//! by itself and once. Alone in its process, because all of it has one log.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Options, log};
use crosstie::transport::Limits;
use crosstie::transport::rail::LaneState;
use host_support::{Memory, Node, Place, Watch, roles, small};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// More than the kernel keeps of a stream whose reader is stopped.
const LONG: usize = 32 << 20;
const SHORT: usize = 8;
const SETTINGS: [(&str, &str); 2] = [("CROSSTIE_STALL_MS", "300"), ("CROSSTIE_TCP_RAILS", "2")];
/// The rail that fails: control is not on it.
const RAIL: u8 = 1;
/// Ten looks, and less than the time after which a rail that is not reported on ends its connection.
const MUCH_LATER: Duration = Duration::from_millis(3_000);

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn options() -> Options {
    let limits = Limits { rails_max: 2, ..small(2).limits };
    Options { device: DeviceKind::Tcp, limits, ..small(2) }
}

#[test]
fn role() {
    roles::take(&[("other", role_other)]);
}

/// Posts its receive, then says so with a message, which comes behind the slot.
fn role_other() {
    let mut line = roles::line();
    let mut node = Node::open(&options());
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    let memory = Memory::new(&node, Place::Private, LONG);
    node.irecv(connection, &[memory.incoming(0, LONG, 7)]).unwrap();
    node.isend(connection, memory.outgoing(0, SHORT, 8)).unwrap();
    while !line.is_ready() {
        node.progress();
    }
}

fn said() -> Vec<String> {
    SAID.lock().unwrap().iter().filter(|text| text.starts_with("stalled")).cloned().collect()
}

/// Makes progress, and asks for nothing else, until something holds.
fn progress_until(node: &mut Node, what: &str, mut holds: impl FnMut(&mut Node) -> bool) {
    let watch = Watch::start();
    while !holds(node) {
        node.progress();
        watch.look(what);
    }
}

fn rail_is(node: &mut Node, connection: Handle, state: LaneState) -> bool {
    let view = node.rail_view(connection, RAIL.into()).unwrap().expect("two rails");
    view.state == state
}

#[test]
fn failed_rail_that_the_peer_does_not_report_on_is_named_once() {
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
    let slot_is_here = node.irecv(connection, &[memory.incoming(0, SHORT, 8)]).unwrap();
    node.wait(slot_is_here).result.unwrap();
    progress_until(&mut node, "two rails", |node| rail_is(node, connection, LaneState::Up));
    other.stop();
    node.isend(connection, memory.outgoing(0, LONG, 7)).unwrap();
    progress_until(&mut node, "stripes", |node| {
        node.rail_view(connection, RAIL.into()).unwrap().unwrap().stats.stripes != 0
    });
    let socket = node.lane_socket(connection, RAIL).expect("an open rail");
    // SAFETY: a call without pointers on an open descriptor.
    assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
    progress_until(&mut node, "a sentence", |_| !said().is_empty());
    let text = &said()[0];
    assert!(text.contains(": unfenced region: rail 1 (generation 1) has failed"), "{text}");
    assert!(text.contains("the peer owes its report"), "{text}");
    println!("{text}");
    let later = Instant::now() + MUCH_LATER;
    progress_until(&mut node, "a while", |_| Instant::now() >= later);
    assert_eq!(said().len(), 1, "{:?}", said());
    other.kill();
}
