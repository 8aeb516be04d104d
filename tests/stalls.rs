//! Requests that do not end, between two real processes: each class of `doc/stalls.md` is named by
//! itself, once, with who owes what.

#[path = "common/black_hole.rs"]
mod black_hole;
mod host_support;

use crosstie::base::slab::Handle;
use crosstie::connect::ListenerId;
use crosstie::host::endpoint::Closing;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Limits, RequestError, RequestId};
use host_support::roles::{self, Process};
use host_support::stalled;
use host_support::{Memory, Node, Place, Watch, small};

/// How old a request is when it is reported.
const STALL_MS: &str = "300";
const LONG: usize = 1 << 20;
const DEVICES: [(DeviceKind, &str); 2] =
    [(DeviceKind::SharedMemory, "shm0"), (DeviceKind::Tcp, "tcp0")];

/// What the other process is told to do; each with a tag.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// Does nothing, and calls nothing, until it is told more.
const IDLE: u64 = 3;
const CLOSE: u64 = 4;
/// Drops what comes over its data streams, unacknowledged.
const DEAFEN: u64 = 5;
const SEND_LONG: u64 = 6;
/// Loses its slots from now on.
#[cfg(feature = "proof")]
const PLANT: u64 = 7;

fn prepare() {
    stalled::listen(&[("CROSSTIE_STALL_MS", STALL_MS), ("CROSSTIE_TCP_RAILS", "2")]);
}

fn options(device: DeviceKind, rails_max: u32) -> Options {
    let limits = Limits { rails_max, ..small(4).limits };
    Options { device, limits, ..small(4) }
}

#[test]
fn role() {
    roles::take(&[("other", role_other)]);
}

/// Does what it is told, and makes progress meanwhile.
fn role_other() {
    let mut line = roles::line();
    let device = std::env::var("TEST_DEVICE").unwrap();
    let rails = std::env::var("TEST_RAILS").map_or(1, |text| text.parse().unwrap());
    let mut node = Node::open(&options(DeviceKind::named(&device).unwrap(), rails));
    let (listener, handle): (ListenerId, _) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    let memory = Memory::new(&node, Place::Private, LONG);
    line.say_number(0);
    loop {
        while !line.is_ready() {
            node.progress();
        }
        let Ok(bytes) = line.try_hear::<16>() else { return };
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let tag = word(8) as i32;
        match word(0) {
            RECEIVE => drop(node.irecv(connection, &[memory.incoming(0, LONG, tag)]).unwrap()),
            SEND => drop(node.isend(connection, memory.outgoing(0, 8, tag)).unwrap()),
            CLOSE => while node.connection_close(connection) == Closing::Again {},
            SEND_LONG => drop(node.isend(connection, memory.outgoing(0, LONG, tag)).unwrap()),
            DEAFEN => deafen(),
            #[cfg(feature = "proof")]
            PLANT => {
                node.mutant_set(Some(crosstie::transport::mutant::Mutant::SlotUnwritten));
            }
            _ => {
                line.say_number(IDLE);
                while !line.is_ready() {
                    std::thread::yield_now();
                }
                continue;
            }
        }
        node.progress();
        line.say_number(0);
    }
}

/// The data stream is the last socket that came in.
fn deafen() {
    let socket = |fd: &i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        path.to_string_lossy().starts_with("socket:") && is_tcp(*fd)
    };
    let fd = (3..256).filter(socket).max().expect("a data stream");
    black_hole::black_hole(fd);
}

/// Whether a socket is a connected one of TCP.
fn is_tcp(fd: i32) -> bool {
    let mut info = [0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    let into = info.as_mut_ptr().cast();
    // SAFETY: `info` is valid for writes of `length` bytes.
    let rc = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut length) };
    rc == 0 && info[0] == 1 // TCP_ESTABLISHED
}

/// This process, connected to another.
struct Pair {
    node: Node,
    connection: Handle,
    memory: Memory,
    other: Process,
}

impl Pair {
    fn new(device: (DeviceKind, &str)) -> Pair {
        Pair::of_rails(device, 1)
    }

    fn of_rails(device: (DeviceKind, &str), rails: u32) -> Pair {
        prepare();
        let rails_text = rails.to_string();
        let environment = [("TEST_DEVICE", device.1), ("TEST_RAILS", &rails_text)];
        let mut other = roles::start("other", &environment);
        let mut node = Node::open(&options(device.0, rails));
        let handle = other.line.hear::<128>();
        let attempt = node.shared.connect(&handle).unwrap();
        let connection = node.connected(attempt).unwrap();
        let memory = Memory::new(&node, Place::Private, LONG);
        let mut pair = Pair { node, connection, memory, other };
        pair.heard();
        pair
    }

    /// Waits for the other's word, making progress.
    fn heard(&mut self) -> u64 {
        let watch = Watch::start();
        while !self.other.line.is_ready() {
            self.node.progress();
            watch.look("the other process");
        }
        self.other.line.hear_number()
    }

    fn tell(&mut self, what: u64, tag: i32) {
        let bytes = [what.to_le_bytes(), (tag as u64).to_le_bytes()].concat();
        self.other.line.say(&bytes);
        self.heard();
    }

    fn send(&mut self, length: usize, tag: i32) -> RequestId {
        self.node.isend(self.connection, self.memory.outgoing(0, length, tag)).unwrap()
    }

    fn receive(&mut self, tag: i32) -> RequestId {
        self.node.irecv(self.connection, &[self.memory.incoming(0, LONG, tag)]).unwrap()
    }

    /// The sentences about this pair so far.
    fn said(&self) -> Vec<String> {
        stalled::said_of(&self.other)
    }

    /// Makes progress until something is said of a stall.
    fn sentence(&mut self) -> String {
        let watch = Watch::start();
        loop {
            self.node.progress();
            if let Some(text) = self.said().first() {
                return text.clone();
            }
            watch.look("a sentence");
        }
    }

    fn expect(&mut self, class: &str, words: &str) {
        let text = self.sentence();
        assert!(text.contains(&format!(": {class}: ")) && text.contains(words), "{class}: {text}");
        println!("{text}");
    }
}

#[test]
fn stopped_peer_is_named_once() {
    for device in DEVICES {
        let mut pair = Pair::new(device);
        pair.receive(7);
        pair.node.progress();
        pair.other.stop();
        pair.expect("stopped peer", "owes an answer");
        // the request is older by far when it would be said again
        let later = std::time::Instant::now() + std::time::Duration::from_millis(1500);
        while std::time::Instant::now() < later {
            pair.node.progress();
        }
        assert_eq!(pair.said().len(), 1);
        pair.other.signal(libc::SIGCONT);
    }
}

#[test]
fn peer_that_computes_without_progress_is_not_called_stopped() {
    for device in DEVICES {
        let mut pair = Pair::new(device);
        pair.tell(IDLE, 0);
        pair.receive(7);
        pair.expect("peer makes no progress", "owes a call of progress");
    }
}

#[test]
fn receive_that_the_peer_never_posts_is_named() {
    for device in DEVICES {
        let mut pair = Pair::new(device);
        pair.send(LONG, 7);
        pair.expect("peer never posted its receive", "the peer owes a receive");
    }
}

#[test]
fn message_that_the_peer_never_sends_is_named() {
    for device in DEVICES {
        let mut pair = Pair::new(device);
        pair.receive(7);
        pair.expect("peer never sent", "the peer owes a message");
    }
}

#[test]
fn wrong_tag_is_named_by_sender_and_receiver() {
    for device in DEVICES {
        let mut pair = Pair::new(device);
        pair.tell(RECEIVE, 8);
        pair.send(LONG, 7);
        pair.expect("wrong tag", "waits for tag 8");
        let mut pair = Pair::new(device);
        pair.tell(SEND, 8);
        pair.receive(7);
        pair.expect("wrong tag", "the peer owes tag 7: its first message has tag 8");
    }
}

#[test]
fn exhausted_credits_are_named() {
    // a rail that pushes stops early messages before the credits end
    let mut pair = Pair::new(DEVICES[0]);
    pair.tell(RECEIVE, 8);
    for _ in 0..60 {
        pair.send(8, 7);
    }
    pair.expect("exhausted credits", "48 message(s) wait for a receive");
}

#[test]
fn rail_whose_packets_vanish_is_named_while_its_peer_answers() {
    let mut pair = Pair::new(DEVICES[1]);
    pair.tell(RECEIVE, 7);
    pair.tell(DEAFEN, 0);
    pair.send(LONG, 7);
    pair.expect("dead rail", "rail 0 (generation 1) owes");
}

/// Rail 0 carries control, and what was promised; rail 1 loses what it carries.
#[test]
fn receiver_names_the_rail_whose_packets_vanish() {
    let mut pair = Pair::of_rails(DEVICES[1], 2);
    // both programs use the connection, or its rails are not taken up
    pair.tell(SEND, 7);
    let first = pair.receive(7);
    assert_eq!(pair.node.wait(first).result, Ok(()));
    let watch = Watch::start();
    while pair.node.lane_view(pair.connection, 1).map(|view| view.state) != Some(LaneState::Up) {
        pair.node.progress();
        watch.look("two rails");
    }
    // the other program looks at its rails once more before it sends over them
    pair.tell(SEND, 7);
    let second = pair.receive(7);
    assert_eq!(pair.node.wait(second).result, Ok(()));
    black_hole::black_hole(pair.node.lane_socket(pair.connection, 1).unwrap());
    pair.receive(7);
    pair.tell(SEND_LONG, 7);
    pair.expect("dead rail", "rail 1 (generation 1) owes");
}

/// The other program has not used its end of the connection yet.
#[test]
fn short_messages_that_wait_are_counted_and_numbered() {
    for (device, class, words) in [
        (DEVICES[0], "exhausted credits", "48 receives of 48 are consumed, and 48 message(s) wait"),
        (DEVICES[1], "peer never posted its receive", "and 24 message(s) of ours wait there"),
    ] {
        let mut pair = Pair::new(device);
        for _ in 0..60 {
            let message = pair.memory.outgoing(0, 8, 7);
            if pair.node.isend(pair.connection, message).is_err() {
                break;
            }
        }
        pair.expect(class, words);
        let said: Vec<_> = pair.said();
        let first = said[0].split("short send ").nth(1).unwrap().split(',').next().unwrap();
        let first: u32 = first.parse().unwrap();
        for (at, text) in said.iter().take(4).enumerate() {
            let name = format!("short send {}, tag 7", first + at as u32);
            assert!(text.contains(&name) && text.contains(class) && text.contains(words), "{text}");
        }
    }
}

#[test]
fn closed_peer_ends_every_request_by_name_instead() {
    for (device, rails) in [(DEVICES[0], 1), (DEVICES[1], 1), (DEVICES[1], 2)] {
        let mut pair = Pair::of_rails(device, rails);
        let requests = [pair.receive(7), pair.send(LONG, 7), pair.send(LONG, 8)];
        pair.tell(CLOSE, 0);
        for request in requests {
            assert_eq!(pair.node.wait(request).result, Err(RequestError::PeerClosed));
        }
        assert_eq!(pair.said().len(), 0);
    }
}

/// Asleep on its descriptor, a process still looks at its requests.
#[test]
fn sleeper_is_woken_to_report() {
    let mut pair = Pair::new(DEVICES[0]);
    pair.receive(7);
    let watch = Watch::start();
    while pair.said().is_empty() {
        if pair.node.wait_arm() {
            let fd = pair.node.shared.wait_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure, which lives until the call returns.
            unsafe { libc::poll(&mut poll, 1, 10_000) };
        }
        watch.look("a sleeper's sentence");
    }
    pair.expect("peer never sent", "");
}

#[test]
fn report_tells_every_open_request_of_an_endpoint() {
    let mut pair = Pair::new(DEVICES[0]);
    pair.receive(7);
    pair.receive(9);
    let watch = Watch::start();
    loop {
        pair.node.progress();
        let mut text = String::new();
        assert_eq!(pair.node.report(&mut text), Ok(2));
        assert_eq!(text.lines().count(), 2, "{text}");
        if text.contains("peer never sent") && text.contains("stream 0/0") {
            return;
        }
        watch.look("the peer's side");
    }
}

/// Where both ends are this endpoint, no other thread says when to look.
#[test]
fn endpoint_on_itself_reports_too() {
    prepare();
    let mut node = Node::open(&options(DeviceKind::Loopback, 1));
    let (listener, handle) = node.shared.listen().unwrap();
    let attempt = node.shared.connect(&handle).unwrap();
    let here = node.connected(attempt).unwrap();
    let there = node.accepted(listener);
    let memory = Memory::new(&node, Place::Private, LONG);
    node.irecv(there, &[memory.incoming(0, 8, 5)]).unwrap();
    node.isend(here, memory.outgoing(0, 8, 6)).unwrap();
    let watch = Watch::start();
    loop {
        node.progress();
        let said = stalled::said();
        if let Some(text) = said.iter().find(|text| text.contains("from this endpoint itself")) {
            assert!(text.contains(": wrong tag: the peer owes tag 5"), "{text}");
            return;
        }
        watch.look("a sentence");
    }
}

/// What no working rail does, planted in one of the machines.
#[cfg(feature = "proof")]
mod planted {
    use super::*;
    use crosstie::fabric::DeregisterError;
    use crosstie::transport::mutant::Mutant;
    use host_support::{pair, wait_both};

    #[test]
    fn slot_that_is_lost_is_named_by_both_sides() {
        let mut pair = Pair::new(DEVICES[1]);
        pair.tell(PLANT, 0);
        pair.tell(RECEIVE, 7);
        pair.send(LONG, 7);
        pair.expect("lost slot", "rail 0 owes the slot of group 0: the peer has written it");
        let mut pair = Pair::new(DEVICES[1]);
        pair.node.mutant_set(Some(Mutant::SlotUnwritten));
        pair.receive(7);
        pair.tell(SEND_LONG, 7);
        pair.expect("lost slot", "rail 0 owes the slot of group 0: we have written it");
    }

    #[test]
    fn fence_that_never_comes_is_named_and_ends_the_request_with_its_memory_kept() {
        let mut pair = Pair::of_rails(DEVICES[1], 2);
        let watch = Watch::start();
        let up = |pair: &Pair| {
            let view = pair.node.lane_view(pair.connection, 1).map(|view| view.state);
            view == Some(LaneState::Up)
        };
        // the peer offers its receive, then the long message is on its way over both rails
        pair.tell(RECEIVE, 8);
        let first = pair.send(8, 8);
        assert_eq!(pair.node.wait(first).result, Ok(()));
        while !up(&pair) {
            pair.node.progress();
            watch.look("two rails");
        }
        pair.node.mutant_set(Some(Mutant::FenceNever));
        let request = pair.receive(7);
        let socket = pair.node.lane_socket(pair.connection, 0).unwrap();
        // SAFETY: a call without pointers on an open descriptor.
        assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
        let words = "rail 0 (generation 1) has failed, and it owes its fence";
        pair.expect("unfenced region", words);
        assert_eq!(pair.node.wait(request).result, Err(RequestError::Unfenced));
        let region = pair.memory.region;
        assert_eq!(pair.node.shared.deregister(region), Err(DeregisterError::Busy));
        assert_eq!(pair.node.connection_close(pair.connection), Closing::Again);
        assert_eq!(pair.node.shared.deregister(region), Err(DeregisterError::Busy));
        pair.node.mutant_set(None);
        pair.node.disconnect(pair.connection);
        assert_eq!(pair.node.shared.deregister(region), Ok(()));
        assert_eq!(pair.said().len(), 1, "{:?}", pair.said());
    }

    /// The peer was told of it as of a broken protocol of its own.
    #[test]
    fn peer_that_works_and_never_reports_on_a_rail_is_given_up_and_told_so() {
        prepare();
        let (a, b) = (Node::open(&options(DEVICES[1].0, 2)), Node::open(&options(DEVICES[1].0, 2)));
        let mut pair = pair::Pair::of(pair::alone(), a, b, 2);
        let memories = [0, 1].map(|side| Memory::new(pair.side(side).0, Place::Private, LONG));
        // neither meets the other
        let receive = pair.a.irecv(pair.to_b, &[memories[0].incoming(0, 8, 5)]).unwrap();
        let send = pair.b.isend(pair.to_a, memories[1].outgoing(0, LONG, 9)).unwrap();
        pair.b.mutant_set(Some(Mutant::AnswerNever));
        let idle = (0..2).find(|lane| pair.views(*lane).iter().all(|view| !view.control)).unwrap();
        let socket = pair.a.lane_socket(pair.to_b, idle).unwrap();
        // SAFETY: a call without pointers on an open descriptor.
        assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
        let watch = Watch::start();
        let mut chat: Vec<RequestId> = Vec::new();
        let ended = loop {
            pair.progress();
            watch.look("the end");
            if let Some(outcome) = pair.a.test(receive).unwrap() {
                break outcome.result;
            }
            let done = |node: &mut Node, id: &RequestId| node.test(*id).unwrap().is_some();
            if chat.iter().all(|id| done(&mut pair.a, id)) {
                chat.clear();
                chat.extend(pair.a.isend(pair.to_b, memories[0].outgoing(0, 8, 1)));
                let room = memories[1].incoming(0, 8, 1);
                if let Ok(receive) = pair.b.irecv(pair.to_a, &[room]) {
                    let pair::Pair { a, b, .. } = &mut pair;
                    let _ = wait_both(b, a, receive);
                }
            }
        };
        assert_eq!(ended, Err(RequestError::NoAnswer));
        let pair::Pair { a, b, .. } = &mut pair;
        assert_eq!(wait_both(b, a, send).result, Err(RequestError::PeerGaveUp));
    }
}
