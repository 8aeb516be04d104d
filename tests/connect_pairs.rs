//! Lanes of queue pairs as the side band makes them: both ends offer what they have prepared, and
//! each attempt has one generation on both sides. There are no devices: the ends are bytes.
#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::hello::*;
use crosstie::wire::pair::{LaneEnd, PAIR_ANSWER, PAIR_ASK, PAIR_GONE, PairHello, PortList};
use crosstie::wire::queue_pair::QueuePairHello;
use raw::{RawTcp, hello_to};
use std::sync::Mutex;

const RAILS: u32 = RAIL_TCP | RAIL_VERBS;

fn limits(lanes: u32, ports: usize) -> Limits {
    Limits { rails: RAILS, lanes, ports, ..Limits::tcp() }
}

/// An end that a device would take.
fn hello(number: u32) -> QueuePairHello {
    QueuePairHello {
        gid: u128::MAX,
        number,
        first_packet: 1,
        mtu_bytes: 4096,
        receives: 64,
        payload_bytes_max: 2048,
        generation: 1,
        lid: 0,
        reads_max: 1,
        link_layer: 2,
        ece_vendor: 0,
        ece_options: 0,
    }
}

fn end(number: u32) -> PairEnd {
    PairEnd { end: hello(number).into(), mailbox_key: u64::from(number) << 8 }
}

/// Two bands with a connection whose further lanes are queue pairs.
struct Both {
    near: Node,
    far: Node,
    out: Handle,
    into: Handle,
}

fn both(near: &Limits, far: &Limits) -> Both {
    let (near, mut far) = (Node::new(near), Node::new(far));
    let (listener, handle) = far.band.listen().unwrap();
    let (out, into) = pair(&near, &far, listener, &handle.encode());
    until("the connection", || far.established(into));
    Both { near, far, out, into }
}

/// The ends that a node was given of a lane so far: generations and numbers.
fn given(node: &mut Node, of: Handle, wanted: u8) -> Vec<(u32, u32)> {
    node.drain();
    let of_lane = node.ends.iter().filter(|(by, lane, ..)| *by == of && *lane == wanted);
    let numbers = of_lane.map(|(_, _, generation, theirs)| {
        let LaneEnd::QueuePair(hello) = theirs.end else { panic!("another kind of end") };
        assert_eq!(theirs.mailbox_key, u64::from(hello.number) << 8);
        (*generation, hello.number)
    });
    numbers.collect()
}

/// How often a node was told that a lane is gone.
fn told_gone(node: &mut Node, of: Handle, wanted: u8) -> usize {
    node.drain();
    let is_gone = |event: &&BandEvent| {
        matches!(**event, BandEvent::LaneGone { index, generation, lane, cause, .. }
            if (index, generation, lane) == (of.index, of.generation, wanted)
                && cause == DownCause::Failed)
    };
    node.seen.iter().filter(is_gone).count()
}

impl Both {
    fn offer(&self, lane: u32, near: u32, far: u32) {
        self.near.band.pair_offer(self.out, lane, &end(near)).unwrap();
        self.far.band.pair_offer(self.into, lane, &end(far)).unwrap();
    }

    /// The listener has its end and answers; then the connector has its own.
    fn join(&mut self, lane: u8, near: u32, far: u32, past: u32) -> u32 {
        let (generation, number) = until("the end at the listener", || {
            let last = given(&mut self.far, self.into, lane).last().copied();
            last.filter(|(generation, _)| *generation > past)
        });
        assert_eq!(number, near);
        self.far.band.pair_answer(self.into, lane.into(), generation);
        let met = until("the end at the connector", || {
            given(&mut self.near, self.out, lane).last().copied().filter(|(_, n)| *n == far)
        });
        assert_eq!(met, (generation, far), "both mean the same attempt");
        generation
    }
}

#[test]
fn lanes_are_as_many_as_both_have_ports_and_room_for() {
    for (near, far, pairs) in [
        (limits(4, 2), limits(4, 3), 2),
        (limits(4, 3), limits(2, 3), 1),
        (limits(8, 1), limits(8, 7), 1),
        (limits(4, 2), limits(4, 0), 0),
        (limits(1, 2), limits(4, 2), 0),
        (limits(4, 2), Limits { lanes: 4, ports: 2, ..Limits::tcp() }, 0),
    ] {
        let mut both = both(&near, &far);
        let ports = both.near.band.pair_ports(both.out);
        assert_eq!(ports.1, pairs, "{pairs}");
        assert_eq!(both.far.band.pair_ports(both.into), ports);
        let lanes = [both.near.established(both.out), both.far.established(both.into)];
        for params in lanes.map(Option::unwrap) {
            assert_eq!(params.rail, Rail::Tcp);
            assert!(pairs == 0 || params.lanes as usize == pairs + 1, "{params:?}");
        }
        let refused = both.near.band.pair_offer(both.out, pairs as u32 + 1, &end(1));
        assert_eq!(refused, Err(CloseError::Stale));
    }
}

#[test]
fn ends_meet_whoever_is_first_and_again_after_either_lets_go() {
    let mut both = both(&limits(4, 2), &limits(4, 2));
    // the connector is first
    both.near.band.pair_offer(both.out, 1, &end(11)).unwrap();
    both.far.band.pair_offer(both.into, 1, &end(21)).unwrap();
    let first = both.join(1, 11, 21, 0);
    // the listener is first
    both.far.band.pair_offer(both.into, 2, &end(42)).unwrap();
    both.near.band.pair_offer(both.out, 2, &end(32)).unwrap();
    both.join(2, 32, 42, 0);

    // the connector lets go: the listener is told, and gets the next end when it has one
    both.near.band.pair_offer(both.out, 1, &end(12)).unwrap();
    until("word of the end", || (told_gone(&mut both.far, both.into, 1) == 1).then_some(()));
    both.far.band.pair_offer(both.into, 1, &end(22)).unwrap();
    let second = both.join(1, 12, 22, first);

    // the listener lets go: the connector is told, and asks with the next one
    both.far.band.pair_offer(both.into, 1, &end(23)).unwrap();
    until("word of the end", || (told_gone(&mut both.near, both.out, 1) == 1).then_some(()));
    both.near.band.pair_offer(both.out, 1, &end(13)).unwrap();
    both.join(1, 13, 23, second);
    assert_eq!(given(&mut both.near, both.out, 2).len(), 1, "the other lane was left alone");
}

/// Lanes for which an end was waited for in vain, by the nodes of one test.
static AWAITED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn awaited(note: Note) {
    if let Note::PairAwaited(_, lane, _) = note {
        AWAITED.lock().unwrap().push(lane);
    }
}

/// Neither side knew what the other, whose port refused, was telling people.
#[test]
fn end_that_does_not_come_is_said_by_who_waits_for_it() {
    let limits = Limits { note: awaited, deadline: Span::millis(1000), ..limits(4, 2) };
    let mut both = both(&limits, &limits);
    let count = |lane| AWAITED.lock().unwrap().iter().filter(|it| **it == lane).count();
    both.near.band.pair_offer(both.out, 1, &end(11)).unwrap();
    both.far.band.pair_offer(both.into, 2, &end(22)).unwrap();
    for lane in [1, 2] {
        until("the wait to be said", || (count(lane) == 1).then_some(()));
    }
    // they are waited for all the same
    both.far.band.pair_offer(both.into, 1, &end(21)).unwrap();
    both.near.band.pair_offer(both.out, 2, &end(12)).unwrap();
    both.join(1, 11, 21, 0);
    both.join(2, 12, 22, 0);
    assert_eq!([1, 2].map(count), [1, 1]);
}

#[test]
fn listener_that_cannot_join_is_asked_again() {
    let mut both = both(&limits(2, 1), &limits(2, 1));
    both.offer(1, 11, 21);
    let asked = until("the end", || given(&mut both.far, both.into, 1).first().copied());
    // instead of an answer
    both.far.band.pair_offer(both.into, 1, &end(22)).unwrap();
    both.join(1, 11, 22, asked.0);
    assert_eq!(told_gone(&mut both.near, both.out, 1), 0, "it had nothing");
}

/// The port lost the end that was prepared before anybody joined it: the listener tried to join
/// that one, again and again, and the lane was down for good.
#[test]
fn end_that_is_lost_before_it_is_joined_gives_its_place_to_the_next() {
    let mut both = both(&limits(2, 1), &limits(2, 1));
    both.offer(1, 11, 21);
    let asked = until("the end", || given(&mut both.far, both.into, 1).first().copied());
    assert_eq!(asked.1, 11);
    // it has not been joined, and is no more
    both.near.band.pair_offer(both.out, 1, &end(12)).unwrap();
    until("word of the end", || (told_gone(&mut both.far, both.into, 1) == 1).then_some(()));
    both.far.band.pair_offer(both.into, 1, &end(22)).unwrap();
    let met = both.join(1, 12, 22, asked.0);
    // likewise the listener's, of which nobody was told yet
    both.far.band.pair_offer(both.into, 1, &end(23)).unwrap();
    both.far.band.pair_offer(both.into, 1, &end(24)).unwrap();
    until("word of the end", || (told_gone(&mut both.near, both.out, 1) == 1).then_some(()));
    both.near.band.pair_offer(both.out, 1, &end(13)).unwrap();
    both.join(1, 13, 24, met);
}

#[test]
fn answer_to_an_attempt_that_is_past_is_not_said() {
    let mut both = both(&limits(2, 1), &limits(2, 1));
    both.offer(1, 11, 21);
    let generation = both.join(1, 11, 21, 0);
    both.near.band.pair_offer(both.out, 1, &end(12)).unwrap();
    until("word of the end", || (told_gone(&mut both.far, both.into, 1) == 1).then_some(()));
    both.far.band.pair_answer(both.into, 1, generation);
    both.far.band.pair_offer(both.into, 1, &end(22)).unwrap();
    both.join(1, 12, 22, generation);
    assert_eq!(given(&mut both.near, both.out, 1).len(), 2);
}

/// A connector by hand, whose connection has one lane of queue pairs.
struct Hand {
    link: RawTcp,
    _stream: RawTcp,
    connection: u64,
}

/// `early`: its stream is there before the link's last words.
fn by_hand(node: &mut Node, early: bool) -> (Hand, Handle) {
    let (listener, handle) = node.band.listen().unwrap();
    let hello =
        LinkHello { rails: RAILS, arena_bytes: 0, streams: 1, lanes: 2, ..hello_to(&handle) };
    let link = RawTcp::dial(&handle);
    link.send(Frame::LinkHello(hello));
    let Frame::LinkReply(reply) = link.receive() else { panic!("no reply") };
    assert_eq!(reply.rails, RAILS);
    let Frame::Ports(ports) = link.receive() else { panic!("ports come before addresses") };
    assert_eq!(ports.count, 1);
    let addresses = Frame::decode(&link.receive_bytes());
    assert!(matches!(addresses, Ok(Frame::Addresses(_))), "{addresses:?}");
    if !early {
        link.send(Frame::LinkReady(hello));
        link.send(Frame::Ports(PortList { count: 1, ..PortList::EMPTY }));
    }
    let stream = RawTcp::dial(&handle);
    let connect = ConnectHello {
        connection: 5,
        target: handle.listener,
        streams: 1,
        data_rails: 2,
        features: CONNECT_PAIRS,
        ..ConnectHello::ZERO
    };
    let said = StreamHello {
        endpoint_id: 0xabcd,
        proof: reply.nonce,
        connection: 5,
        streams: 1,
        ask: 1,
        ..StreamHello::ZERO
    };
    stream.send(Frame::StreamHello(said, connect));
    if early {
        link.send(Frame::LinkReady(hello));
        link.send(Frame::Ping(PingHello { number: 1 }));
        let Frame::Pong(_) = link.receive() else { panic!("not accepted yet") };
        link.send(Frame::Ports(PortList { count: 1, ..PortList::EMPTY }));
    }
    let Frame::Accepted(accepted) = link.receive() else { panic!("not accepted") };
    assert_eq!((accepted.features & CONNECT_PAIRS, accepted.data_rails), (CONNECT_PAIRS, 2));
    let into = until("the connection", || node.band.accept(listener).unwrap());
    (Hand { link, _stream: stream, connection: accepted.connection }, into)
}

#[test]
fn connection_whose_streams_are_faster_than_the_ports_waits_for_them() {
    for early in [false, true] {
        let mut node = Node::new(&limits(2, 1));
        let (_hand, into) = by_hand(&mut node, early);
        assert_eq!(node.band.pair_ports(into).1, 1);
    }
}

impl Hand {
    fn say(&self, word: u8, lane: u8, lane_generation: u32, end: QueuePairHello) {
        let mailbox_key = u64::from(end.number) << 8;
        let connection = self.connection;
        let pair = PairHello { connection, mailbox_key, lane_generation, lane, word, kind: 0 };
        self.link.send(Frame::Pair(pair, end.into()));
    }
}

#[test]
fn what_is_said_twice_or_late_is_ignored() {
    let mut node = Node::new(&limits(2, 1));
    let (hand, into) = by_hand(&mut node, false);
    hand.say(PAIR_ASK, 1, 3, hello(7));
    hand.say(PAIR_ASK, 1, 3, hello(7));
    hand.say(PAIR_ASK, 1, 2, hello(6));
    hand.say(PAIR_GONE, 1, 2, QueuePairHello::ZERO);
    node.band.pair_offer(into, 1, &end(9)).unwrap();
    until("the end", || (given(&mut node, into, 1) == [(3, 7)]).then_some(()));
    node.band.pair_answer(into, 1, 3);
    let Frame::Pair(pair, met) = hand.link.receive() else { panic!("no answer") };
    assert_eq!((pair.word, pair.lane_generation, pair.connection), (PAIR_ANSWER, 3, 5));
    assert_eq!((met, pair.mailbox_key), (LaneEnd::QueuePair(hello(9)), 9 << 8));
    hand.say(PAIR_ASK, 1, 3, hello(7));
    hand.say(PAIR_GONE, 1, 4, QueuePairHello::ZERO);
    hand.say(PAIR_GONE, 1, 3, QueuePairHello::ZERO);
    until("word of the end", || (told_gone(&mut node, into, 1) == 1).then_some(()));
    assert_eq!(given(&mut node, into, 1).len(), 1);
}

/// The queue pair that takes the place of an ended one was given the end that was for that one.
#[test]
fn end_that_was_for_a_queue_pair_which_has_ended_is_given_to_no_other() {
    let mut node = Node::new(&limits(2, 1));
    let (hand, into) = by_hand(&mut node, false);
    node.band.pair_offer(into, 1, &end(9)).unwrap();
    hand.say(PAIR_ASK, 1, 3, hello(7));
    hand.link.send(Frame::Ping(PingHello { number: 1 }));
    let Frame::Pong(_) = hand.link.receive() else { panic!("the ask is taken in before") };
    assert!(node.band.pair_end(into, 1, 3).is_some());
    node.band.pair_offer(into, 1, &end(10)).unwrap();
    assert!(node.band.pair_end(into, 1, 3).is_none(), "it was for the one before");
}

#[test]
fn who_says_what_cannot_be_loses_the_link() {
    let lies: [(u8, u8, u32, QueuePairHello); 6] = [
        (PAIR_ANSWER, 1, 1, hello(7)),
        (PAIR_ASK, 0, 1, hello(7)),
        (PAIR_ASK, 2, 1, hello(7)),
        (PAIR_ASK, 1, 0, hello(7)),
        (9, 1, 1, hello(7)),
        (PAIR_ASK, 1, 1, QueuePairHello { mtu_bytes: 1500, ..hello(7) }),
    ];
    for (word, lane, generation, end) in lies {
        let mut node = Node::new(&limits(2, 1));
        let (hand, into) = by_hand(&mut node, false);
        hand.say(word, lane, generation, end);
        // its socket is of no use any more; lane 0 may outlive it
        hand.link.closed();
        assert_eq!(given(&mut node, into, 1), []);
        drop(hand);
    }
}
