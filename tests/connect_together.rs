//! Lanes over TCP beside shared memory, as the side band makes them (W8.13): where both sides want
//! them, and against peers that do not, or that lie.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::connect::*;
use crosstie::wire::handle::{Family, ListenHandle};
use crosstie::wire::hello::*;
use raw::{ARENA_BYTES, Raw, RawTcp, hello_to, memfd};
use std::sync::Mutex;

const BOTH: u32 = RAIL_SHM | RAIL_TCP;

/// Why bands of this process have said that something runs over shared memory alone, and of whom.
static SAID: Mutex<Vec<(u128, Apart)>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    if let Note::Apart { peer, why } = note {
        SAID.lock().unwrap().push((peer.endpoint_id, why));
    }
}

/// What was said of an endpoint.
fn said_of(endpoint_id: u128) -> Vec<Apart> {
    let said = SAID.lock().unwrap();
    said.iter().filter(|(id, _)| *id == endpoint_id).map(|(_, why)| *why).collect()
}

fn together(lanes: u32, streams: u32) -> Limits {
    Limits { rails: BOTH | RAIL_TOGETHER, lanes, streams, note: listen_to_notes, ..Limits::tcp() }
}

/// The sockets of a lane that a node was told of, of generation `least` or later.
fn up(node: &mut Node, of: Handle, wanted: u8, least: u32) -> Option<Vec<i32>> {
    node.drain();
    node.seen.iter().rev().find_map(|event| match *event {
        BandEvent::Lane { index, generation, lane, lane_generation, streams, stream_count }
            if (index, generation, lane) == (of.index, of.generation, wanted)
                && lane_generation >= least =>
        {
            Some(streams[..usize::from(stream_count)].to_vec())
        }
        _ => None,
    })
}

fn closed_both(a: &Node, b: &Node, here: Handle, there: Handle) {
    a.band.connection_close(here).unwrap();
    b.band.connection_close(there).unwrap();
    until("a free", || a.all_free());
    until("b free", || b.all_free());
}

#[test]
fn lanes_over_tcp_join_a_connection_through_shared_memory_and_come_back() {
    let (mut a, mut b) = (Node::new(&together(4, 2)), Node::new(&together(3, 2)));
    let (listener, handle) = b.band.listen().unwrap();
    let before = descriptors();
    for _ in 0..3 {
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        let (of_a, of_b) = (a.established(here).unwrap(), b.established(there).unwrap());
        for params in [of_a, of_b] {
            assert_eq!((params.rail, params.lanes, params.stream_count), (Rail::Shm, 2, 0));
            assert_ne!(params.rings_address, 0);
        }
        for generation in 1..4 {
            let near = until("the lane here", || up(&mut a, here, 1, generation));
            let far = until("the lane there", || up(&mut b, there, 1, generation));
            assert_eq!((near.len(), far.len()), (2, 2));
            for (near, far) in near.iter().zip(&far) {
                carry(*near, *far);
                carry(*far, *near);
            }
            // let go of by both, it is dialled again
            a.band.lane_wanted(here, 1).unwrap();
            b.band.lane_wanted(there, 1).unwrap();
        }
        // the rings are used once
        assert_eq!(a.band.lane_wanted(here, 0), Err(CloseError::Stale));
        assert_eq!(b.band.lane_wanted(there, 0), Err(CloseError::Stale));
        closed_both(&a, &b, here, there);
    }
    assert_eq!(a.band.counters().links, 1);
    until("no descriptor left behind", || (descriptors() <= before + 8).then_some(()));
    assert_eq!(b.band.counters().strangers, 0);
}

#[test]
fn as_many_lanes_as_are_wished_for_and_both_allow() {
    for (a, b, wish, lanes) in
        [(2, 2, 0, 2), (8, 8, 0, 2), (8, 8, 3, 4), (8, 2, 3, 2), (2, 8, 3, 2), (8, 8, 8, 8)]
    {
        let mut a = Node::new(&Limits { lanes_wish: wish, ..together(a, 1) });
        let mut b = Node::new(&together(b, 1));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        assert_eq!(a.established(here).unwrap().lanes, lanes);
        assert_eq!(b.established(there).unwrap().lanes, lanes);
        for lane in 1..lanes {
            until("the lane", || up(&mut b, there, lane, 1));
        }
        closed_both(&a, &b, here, there);
    }
}

#[test]
fn one_side_that_does_not_want_both_has_shared_memory_alone_and_each_side_says_who() {
    let apart = Limits { rails: BOTH, ..together(2, 1) };
    for (a, b, why_a, why_b) in [
        (together(2, 1), apart.clone(), Apart::There, Apart::Here),
        (apart.clone(), together(2, 1), Apart::Here, Apart::There),
        // without a second lane there is nothing to put beside
        (together(1, 1), together(2, 1), Apart::Here, Apart::There),
    ] {
        let (mut a, mut b) = (Node::new(&a), Node::new(&b));
        let (listener, handle) = b.band.listen().unwrap();
        let (_, own) = a.band.listen().unwrap();
        let ids = (own.endpoint_id, handle.endpoint_id);
        for _ in 0..2 {
            let (here, there) = pair(&a, &b, listener, &handle.encode());
            for params in [a.established(here).unwrap(), b.established(there).unwrap()] {
                assert_eq!((params.rail, params.lanes), (Rail::Shm, 1));
            }
            closed_both(&a, &b, here, there);
        }
        // once per link
        assert_eq!((said_of(ids.1), said_of(ids.0)), (vec![why_a], vec![why_b]));
    }
}

/// A connector made by hand, on a link through shared memory.
struct Hand {
    link: Raw,
    reply: LinkHello,
    /// The listener's addresses, if it has said any.
    addresses: Option<AddressList>,
}

impl Hand {
    fn new(handle: &ListenHandle, rails: u32, lanes: u32) -> Hand {
        let link = Raw::dial(handle);
        let hello = LinkHello { rails, lanes, streams: 1, ..hello_to(handle) };
        link.send(Frame::LinkHello(hello), &[&memfd(ARENA_BYTES)]);
        let Frame::LinkReply(reply) = link.receive() else { panic!("no reply") };
        let wanted = rails & RAIL_TOGETHER != 0 && lanes > 1;
        let addresses = wanted.then(|| match link.receive() {
            Frame::Addresses(list) => list,
            frame => panic!("{frame:?}"),
        });
        link.send(Frame::LinkReady(hello), &[]);
        Hand { link, reply, addresses }
    }

    fn connect(&self, handle: &ListenHandle, streams: u32, lanes: u32) -> ConnectHello {
        let connect = ConnectHello {
            connection: 5,
            target: handle.listener,
            send_ring_bytes: 1024,
            write_ring_bytes: 512,
            groups_max: 8,
            streams,
            data_rails: lanes,
            control_rails: lanes,
            ..ConnectHello::ZERO
        };
        self.link.send(Frame::Connect(connect), &[]);
        let Frame::Accepted(accepted) = self.link.receive() else { panic!("not accepted") };
        accepted
    }

    /// Dials a stream as the address list says.
    fn stream(&self, lane: u8, generation: u32, ask: u64) -> RawTcp {
        let list = self.addresses.as_ref().expect("addresses");
        let at = (std::net::Ipv4Addr::LOCALHOST, list.all[0].port);
        let socket = RawTcp::of(std::net::TcpStream::connect(at).unwrap());
        let hello = StreamHello {
            endpoint_id: 0xabcd,
            proof: self.reply.nonce,
            connection: 5,
            stream: 0,
            streams: 1,
            ask,
            lane,
            lane_generation: generation,
        };
        let connect = ConnectHello { connection: 5, streams: 1, ..ConnectHello::ZERO };
        socket.send(Frame::StreamHello(hello, connect));
        socket
    }
}

#[test]
fn lanes_are_given_to_who_said_in_the_hello_that_it_wants_them() {
    for (rails, lanes, streams, asked) in [
        // a peer that does not know of it asks for nothing, with whatever number of rails
        (RAIL_SHM, 0, 0, 2),
        (BOTH, 2, 0, 2),
        // it has not said so, and asks
        (BOTH, 2, 1, 2),
        (BOTH | RAIL_TOGETHER, 1, 1, 2),
        // more streams than were agreed on, or no second lane
        (BOTH | RAIL_TOGETHER, 2, 2, 2),
        (BOTH | RAIL_TOGETHER, 2, 900, 2),
        (BOTH | RAIL_TOGETHER, 2, 1, 0),
        (BOTH | RAIL_TOGETHER, 2, 1, 1),
    ] {
        let mut b = Node::new(&together(4, 1));
        let (listener, handle) = b.band.listen().unwrap();
        let hand = Hand::new(&handle, rails, lanes);
        assert_eq!(hand.reply.rails, BOTH | RAIL_TOGETHER);
        assert_eq!(hand.connect(&handle, streams, asked).streams, 0);
        let there = until("accept", || b.band.accept(listener).unwrap());
        assert_eq!(b.established(there).unwrap().lanes, 1);
        b.band.connection_close(there).unwrap();
        assert!(matches!(hand.link.receive(), Frame::Closed(_)));
    }
}

#[test]
fn streams_of_a_connection_through_shared_memory_are_those_of_further_lanes() {
    let mut b = Node::new(&together(4, 1));
    let (listener, handle) = b.band.listen().unwrap();
    let hand = Hand::new(&handle, BOTH | RAIL_TOGETHER, 7);
    assert_eq!(hand.reply.lanes, 4);
    let accepted = hand.connect(&handle, 1, 3);
    assert_eq!((accepted.streams, accepted.data_rails, accepted.control_rails), (1, 3, 3));
    let there = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(b.established(there).unwrap().lanes, 3);
    // a connection is asked for over the link, lane 0 is that of the rings, and there are three
    hand.stream(0, 0, 1).closed();
    hand.stream(0, 2, 2).closed();
    hand.stream(3, 1, 3).closed();
    let two = hand.stream(2, 1, 4);
    let up_b = until("the lane", || up(&mut b, there, 2, 1));
    use std::os::fd::AsRawFd;
    carry(two.0.as_raw_fd(), up_b[0]);
    // recorded, and said again
    hand.stream(1, 1, 4).closed();
    let one = hand.stream(1, 1, 5);
    until("the lane", || up(&mut b, there, 1, 1));
    // the end of the link is the end of all
    drop(hand);
    until("gone", || b.gone(there));
    b.band.connection_close(there).unwrap();
    one.closed();
    two.closed();
    until("free", || b.all_free());
}

#[test]
fn different_numbers_of_requests_are_said_and_shared_memory_is_used_alone() {
    let mut b = Node::new(&together(2, 1));
    let (listener, handle) = b.band.listen().unwrap();
    let hand = Hand::new(&handle, BOTH | RAIL_TOGETHER, 2);
    let connect = ConnectHello {
        connection: 5,
        target: handle.listener,
        send_ring_bytes: 1024,
        write_ring_bytes: 512,
        groups_max: 9,
        streams: 1,
        data_rails: 2,
        ..ConnectHello::ZERO
    };
    hand.link.send(Frame::Connect(connect), &[]);
    let Frame::Accepted(accepted) = hand.link.receive() else { panic!("not accepted") };
    assert_eq!(accepted.streams, 0);
    let there = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(b.established(there).unwrap().lanes, 1);
    assert!(said_of(0xabcd).contains(&Apart::Requests { ours: 8, theirs: 9 }));
}

/// A listener made by hand answers a connector that wants both.
fn answered(rails: u32, lanes: u32, addresses: Option<AddressList>, streams: u32) -> LinkParams {
    let mut a = Node::new(&Limits { lanes_wish: 1, ..together(4, 1) });
    let (listener, handle) = Node::new(&Limits::default())
        .band
        .listen()
        .map(|(id, handle)| {
            let mut handle = ListenHandle { endpoint_id: rand_id(), ..handle };
            handle.addresses = Default::default();
            handle.addresses[0].family = Family::Local;
            (id, handle)
        })
        .unwrap();
    let _ = listener;
    let raw = Raw::listen(handle.endpoint_id);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = raw.accept();
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    assert_eq!((hello.rails, hello.lanes), (BOTH | RAIL_TOGETHER, 4));
    let reply = LinkHello {
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        arena_bytes: hello.arena_bytes,
        rails,
        lanes,
        streams: 1,
        ..hello_to(&handle)
    };
    link.send(Frame::LinkReply(reply), &[&memfd(hello.arena_bytes)]);
    assert!(matches!(link.receive(), Frame::LinkReady(_)));
    if let Some(list) = addresses {
        link.send(Frame::Addresses(list), &[]);
    }
    let Frame::Connect(connect) = link.receive() else { panic!("no connect") };
    let accepted = ConnectHello {
        connection: 77,
        target: connect.connection,
        streams,
        data_rails: 2,
        ..connect
    };
    link.send(Frame::Accepted(accepted), &[]);
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    a.established(here).unwrap()
}

fn rand_id() -> u128 {
    crosstie::connect::random().unwrap()
}

#[test]
fn who_connects_takes_what_is_answered() {
    let mut list = AddressList::EMPTY;
    list.all[0] = AddressHello {
        ip: u128::from(u32::from_le_bytes([127, 0, 0, 1])),
        port: 9,
        family: 4,
        prefix_bits: 8,
        speed_mbit_s: 0,
    };
    list.count = 1;
    let wants = BOTH | RAIL_TOGETHER;
    assert_eq!(answered(wants, 2, Some(list), 1).lanes, 2);
    // it has thought better of it, has no address, or never wanted
    assert_eq!(answered(wants, 2, Some(list), 0).lanes, 1);
    assert_eq!(answered(wants, 2, Some(AddressList::EMPTY), 0).lanes, 1);
    assert_eq!(answered(BOTH, 0, None, 0).lanes, 1);
    assert_eq!(answered(RAIL_SHM, 0, None, 1).lanes, 1);
}
