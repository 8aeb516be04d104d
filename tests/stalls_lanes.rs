//! Rails of several fail, one of them while the peer is stopped, or all while its program is
//! elsewhere: the report says what is owed, by itself and once, and every request ends by name.

mod host_support;

use crosstie::base::slab::Handle;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Limits, RequestError, RequestId};
use host_support::roles::{self, Process};
use host_support::stalled;
use host_support::{Memory, Node, Place, Watch, small};
use std::time::{Duration, Instant};

/// More than the kernel keeps of a stream whose reader is stopped.
const LONG: usize = 32 << 20;
const SHORT: usize = 8;
const SETTINGS: [(&str, &str); 2] = [("CROSSTIE_STALL_MS", "100"), ("CROSSTIE_TCP_RAILS", "2")];
/// The time in which a peer that makes progress reports on a rail is 10 s.
const LONGER_THAN_AN_ANSWER: Duration = Duration::from_millis(9_000);
/// Many looks.
const MUCH_LATER: Duration = Duration::from_millis(3_000);
/// Less than the time after which a request is reported without the peer's word, which is a second
/// and the time after which it counts as stalled.
const SOON: Duration = Duration::from_millis(400);

fn prepare() {
    stalled::listen(&SETTINGS);
}

fn options() -> Options {
    let limits = Limits { rails_max: 2, ..small(2).limits };
    Options { device: DeviceKind::Tcp, limits, ..small(2) }
}

#[test]
fn role() {
    roles::take(&[("other", role_other)]);
}

/// Posts its receive, then says so with a message, which comes behind the slot. Makes progress
/// until it is told not to.
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
    line.hear_number();
    line.say_number(0);
    while !line.is_ready() {
        std::thread::yield_now();
    }
}

/// This process, connected to another over two rails, whose receive it knows.
struct Pair {
    node: Node,
    connection: Handle,
    memory: Memory,
    other: Process,
}

impl Pair {
    fn new() -> Pair {
        prepare();
        let mut other = roles::start("other", &[]);
        let mut node = Node::open(&options());
        let handle = other.line.hear::<128>();
        let attempt = node.shared.connect(&handle).unwrap();
        let connection = node.connected(attempt).unwrap();
        let memory = Memory::new(&node, Place::Private, LONG);
        let slot_is_here = node.irecv(connection, &[memory.incoming(0, SHORT, 8)]).unwrap();
        node.wait(slot_is_here).result.unwrap();
        let mut pair = Pair { node, connection, memory, other };
        pair.progress_until("two rails", |pair| {
            let view = pair.node.rail_view(pair.connection, 1).unwrap().expect("two rails").lane;
            view.state == LaneState::Up
        });
        pair
    }

    /// Makes progress, and asks for nothing else, until something holds.
    fn progress_until(&mut self, what: &str, mut holds: impl FnMut(&mut Pair) -> bool) {
        let watch = Watch::start();
        while !holds(self) {
            self.node.progress();
            watch.look(what);
        }
    }

    fn progress_for(&mut self, span: Duration) {
        let later = Instant::now() + span;
        self.progress_until("a while", |_| Instant::now() >= later);
    }

    /// Sends a long message, and waits until each rail carries some of it.
    fn send(&mut self) -> RequestId {
        let message = self.memory.outgoing(0, LONG, 7);
        let request = self.node.isend(self.connection, message).unwrap();
        self.progress_until("stripes", |pair| {
            let node = &mut pair.node;
            let view = |rail| node.rail_view(pair.connection, rail).unwrap().unwrap();
            [0, 1].map(view).iter().all(|view| view.lane.stats.stripes != 0)
        });
        request
    }

    /// Ends the socket of a rail.
    fn cut(&mut self, rail: u8) {
        let socket = self.node.lane_socket(self.connection, rail).expect("an open rail");
        // SAFETY: a call without pointers on an open descriptor.
        assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
    }

    /// The sentences about this pair so far.
    fn said(&self) -> Vec<String> {
        stalled::said_of(&self.other)
    }
}

#[test]
fn failed_rail_that_a_stopped_peer_does_not_report_on_is_named_once_and_costs_nothing() {
    let mut pair = Pair::new();
    pair.other.stop();
    let request = pair.send();
    pair.cut(1);
    pair.progress_until("a sentence", |pair| !pair.said().is_empty());
    let text = &pair.said()[0];
    assert!(text.contains(": unfenced region: rail 1 (generation 1) has failed"), "{text}");
    assert!(text.contains("the peer owes its report"), "{text}");
    println!("{text}");
    pair.progress_for(MUCH_LATER);
    assert_eq!(pair.said().len(), 1, "{:?}", pair.said());
    // longer than a peer that does make progress may owe it
    pair.progress_for(LONGER_THAN_AN_ANSWER);
    assert_eq!(pair.said().len(), 1, "{:?}", pair.said());
    pair.other.signal(libc::SIGCONT);
    assert_eq!(pair.node.wait(request).result, Ok(()));
    pair.memory.release(&pair.node);
    pair.other.kill();
}

#[test]
fn loss_of_all_rails_is_named_and_ends_every_request() {
    let mut pair = Pair::new();
    pair.other.line.say_number(0);
    pair.other.line.hear_number();
    let incoming = pair.memory.incoming(0, LONG, 9);
    let unsent = pair.node.irecv(pair.connection, &[incoming]).unwrap();
    let sent = pair.send();
    pair.progress_for(SOON);
    pair.cut(0);
    pair.cut(1);
    pair.progress_until("two sentences", |pair| pair.said().len() >= 2);
    let said = pair.said();
    for (text, what) in said.iter().zip(["stalled: send 0, ", "stalled: receive of group 1, "]) {
        assert!(text.starts_with(what), "{text}");
        assert!(text.contains(": dead rail: no rail is up that could carry it"), "{text}");
        println!("{text}");
    }
    for request in [unsent, sent] {
        let result = pair.node.wait(request).result;
        assert!(matches!(result, Err(RequestError::RailsLost(_))), "{result:?}");
    }
    assert_eq!(pair.said().len(), 2, "{:?}", pair.said());
    pair.memory.release(&pair.node);
    pair.other.kill();
}
