//! Lanes of a connection over TCP: they join, die and come back, each alone.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use raw::{RawTcp, hello_to};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

/// Everything that bands of this process have said.
static SAID: Mutex<Vec<Note>> = Mutex::new(Vec::new());

fn listen_to_notes(note: Note) {
    if matches!(note, Note::Connected { .. } | Note::Closed(_)) {
        return;
    }
    SAID.lock().unwrap().push(note);
}

fn said(of: impl Fn(&Note) -> bool) -> usize {
    SAID.lock().unwrap().iter().filter(|note| of(note)).count()
}

/// A lane as the data thread is told of it.
#[derive(Copy, Clone, Debug)]
struct Up {
    generation: u32,
    streams: [i32; STREAMS_MAX],
    count: usize,
}

/// What a node was told last of a lane, if that is `generation` or later.
fn up(node: &mut Node, of: Handle, wanted: u8, least: u32) -> Option<Up> {
    node.drain();
    let known = node.seen.iter().rev().find_map(|event| match *event {
        BandEvent::Lane { index, generation, lane, lane_generation, streams, stream_count }
            if (index, generation, lane) == (of.index, of.generation, wanted) =>
        {
            Some(Up { generation: lane_generation, streams, count: stream_count.into() })
        }
        _ => None,
    });
    known.filter(|up| up.generation >= least)
}

fn gone(node: &mut Node, of: Handle, wanted: u8) -> Option<DownCause> {
    node.drain();
    node.seen.iter().find_map(|event| match *event {
        BandEvent::LaneGone { index, generation, lane, cause, .. }
            if (index, generation, lane) == (of.index, of.generation, wanted) =>
        {
            Some(cause)
        }
        _ => None,
    })
}

/// How many events about lanes a node was told.
fn told(node: &mut Node) -> usize {
    node.drain();
    let of =
        |event: &&BandEvent| matches!(event, BandEvent::Lane { .. } | BandEvent::LaneGone { .. });
    node.seen.iter().filter(of).count()
}

/// An endpoint at so many addresses of this host.
fn at(addresses: u8, lanes: u32) -> Limits {
    let addresses = (1..=addresses).map(|n| ([127, 0, 0, n].into(), 8)).collect();
    Limits { lanes, addresses, note: listen_to_notes, ..Limits::tcp() }
}

/// Two endpoints and a connection.
struct Pair {
    a: Node,
    b: Node,
    here: Handle,
    there: Handle,
}

impl Pair {
    fn new(a: &Limits, b: &Limits) -> Pair {
        let (a, b) = (Node::new(a), Node::new(b));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        Pair { a, b, here, there }
    }

    /// How many lanes both sides believe to have.
    fn lanes(&mut self) -> (u8, u8) {
        let of_a = self.a.established(self.here).unwrap();
        let of_b = self.b.established(self.there).unwrap();
        (of_a.lanes, of_b.lanes)
    }

    /// Waits until both sides have a lane, and sends bytes both ways on each of its streams.
    fn joined(&mut self, lane: u8, least: u32) -> (Up, Up) {
        let (here, there) = (self.here, self.there);
        let of_a = until("the lane here", || up(&mut self.a, here, lane, least));
        let of_b = until("the lane there", || up(&mut self.b, there, lane, of_a.generation));
        assert_eq!((of_a.generation, of_a.count), (of_b.generation, of_b.count));
        for stream in 0..of_a.count {
            carry(of_a.streams[stream], of_b.streams[stream]);
            carry(of_b.streams[stream], of_a.streams[stream]);
        }
        (of_a, of_b)
    }

    /// Closes both sides, and sees that nothing is left.
    fn close(self) {
        self.a.band.connection_close(self.here).unwrap();
        self.b.band.connection_close(self.there).unwrap();
        until("a free", || self.a.all_free());
        until("b free", || self.b.all_free());
    }
}

/// One end's address of a socket: ours, or with `peer` the other one.
fn name(socket: i32, peer: bool) -> SocketAddrV4 {
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as u32;
    let at = (&raw mut address).cast();
    let get = if peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: writable for its length.
    assert_eq!(unsafe { get(socket, at, &mut length) }, 0);
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    SocketAddrV4::new(ip, u16::from_be(address.sin_port))
}

fn kill(socket: i32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::shutdown(socket, libc::SHUT_RDWR) }, 0);
}

/// Whether the other end of a socket is at its end.
fn is_at_end(socket: i32) -> Option<()> {
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    let got = unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
    (got == 0).then_some(())
}

/// Lets as much time pass as lets something unwanted happen.
fn a_while(ms: u64) {
    let end = std::time::Instant::now() + Duration::from_millis(ms);
    until("a while", || (std::time::Instant::now() > end).then_some(()));
}

#[test]
fn lanes_join_between_addresses_of_their_own() {
    for streams in [1, 2, 4] {
        let limits = Limits { streams, ..at(3, 8) };
        let mut both = Pair::new(&limits, &limits);
        assert_eq!(both.lanes(), (3, 3));
        let first = both.a.established(both.here).unwrap();
        assert_eq!((first.peer.data_rails, first.peer.control_rails), (3, 3));
        for lane in 1..3 {
            let (of_a, _) = both.joined(lane, 1);
            assert_eq!((of_a.generation, of_a.count), (1, streams as usize));
            for socket in &of_a.streams[..of_a.count] {
                let ip = Ipv4Addr::new(127, 0, 0, lane + 1);
                assert_eq!((*name(*socket, false).ip(), *name(*socket, true).ip()), (ip, ip));
            }
        }
        carry(first.streams[0], both.b.established(both.there).unwrap().streams[0]);
        // nothing more comes of it
        assert_eq!((told(&mut both.a), told(&mut both.b)), (2, 2));
        both.close();
    }
    // an interface's other family is no rail beside it
    let ips = vec![([127, 0, 0, 1].into(), 8), ("::1".parse().unwrap(), 128)];
    let limits = Limits { addresses: ips, ..at(1, 8) };
    let mut both = Pair::new(&limits, &limits);
    assert_eq!(both.lanes(), (1, 1));
    both.close();
}

#[test]
fn the_smaller_limit_and_the_wish_count() {
    // addresses and limit of who connects, its wish, addresses and limit of who listens: lanes
    let cases = [
        ((3, 8), 0, (3, 2), 2),
        ((3, 2), 0, (3, 8), 2),
        ((3, 1), 0, (3, 8), 1),
        ((3, 8), 0, (3, 1), 1),
        ((3, 8), 2, (3, 8), 2),
        ((1, 8), 0, (4, 8), 4),
        ((4, 8), 0, (1, 8), 4),
        ((1, 8), 0, (1, 8), 1),
        ((1, 8), 5, (1, 8), 5),
        ((2, 8), 100, (2, 8), 8),
    ];
    for (a, wish, b, lanes) in cases {
        let limits = Limits { lanes_wish: wish, ..at(a.0, a.1) };
        let mut both = Pair::new(&limits, &at(b.0, b.1));
        assert_eq!(both.lanes(), (lanes, lanes), "{a:?} {wish} {b:?}");
        for lane in 1..lanes {
            both.joined(lane, 1);
        }
        assert_eq!(
            (told(&mut both.a), told(&mut both.b)),
            (lanes as usize - 1, lanes as usize - 1)
        );
        let none = both.a.band.lane_wanted(both.here, lanes.into());
        assert_eq!(none, Err(CloseError::Stale));
        if lanes == 1 {
            assert_eq!(both.b.band.lane_wanted(both.there, 0), Err(CloseError::Stale));
        }
        both.close();
    }
}

#[test]
fn a_killed_lane_comes_back_whoever_wants_it_first() {
    let limits = Limits { streams: 2, ..at(2, 8) };
    let mut both = Pair::new(&limits, &limits);
    let (here, there) = (both.here, both.there);
    both.joined(1, 1);
    let mut generation = [1, 1];
    for round in 0..12 {
        let lane = (round / 2 % 2) as u8;
        let known = generation[usize::from(lane)];
        let socket = match (lane, known) {
            (0, 1) => both.a.established(here).unwrap().streams[1],
            _ => up(&mut both.a, here, lane, known).unwrap().streams[1],
        };
        let other = match (lane, known) {
            (0, 1) => both.b.established(there).unwrap().streams[1],
            _ => up(&mut both.b, there, lane, known).unwrap().streams[1],
        };
        kill(socket);
        until("the end", || is_at_end(other));
        if round % 2 == 0 {
            both.a.band.lane_wanted(here, lane.into()).unwrap();
            both.b.band.lane_wanted(there, lane.into()).unwrap();
        } else {
            both.b.band.lane_wanted(there, lane.into()).unwrap();
            // while it is wanted, that is nothing new
            both.b.band.lane_wanted(there, lane.into()).unwrap();
            both.a.band.lane_wanted(here, lane.into()).unwrap();
        }
        let (of_a, _) = both.joined(lane, known + 1);
        generation[usize::from(lane)] = of_a.generation;
        // lane 0 never has the number that a hello at set-up stands for
        assert!(of_a.generation > known);
    }
    assert_eq!((both.a.gone(here), both.b.gone(there)), (None, None));
    both.close();
}

#[test]
fn a_lane_is_kept_until_it_is_wanted_with_what_was_sent_on_it() {
    let mut both = Pair::new(&at(2, 2), &at(2, 2));
    let (here, there) = (both.here, both.there);
    let (_, old) = both.joined(1, 1);
    // the connector is faster, and uses it
    both.a.band.lane_wanted(here, 1).unwrap();
    let early = until("a lane", || up(&mut both.a, here, 1, 2));
    // SAFETY: readable bytes.
    let sent = unsafe { libc::send(early.streams[0], b"early".as_ptr().cast(), 5, 0) };
    assert_eq!(sent, 5);
    until("the end of the old one", || is_at_end(old.streams[0]));
    a_while(30);
    assert_eq!(told(&mut both.b), 1);
    // and faster still: only the newest is kept
    both.a.band.lane_wanted(here, 1).unwrap();
    let newest = until("a lane", || up(&mut both.a, here, 1, early.generation + 1));
    // SAFETY: readable bytes.
    let sent = unsafe { libc::send(newest.streams[0], b"later".as_ptr().cast(), 5, 0) };
    assert_eq!(sent, 5);
    a_while(30);
    assert_eq!(told(&mut both.b), 1);
    both.b.band.lane_wanted(there, 1).unwrap();
    let of_b = until("the lane", || up(&mut both.b, there, 1, 2));
    assert_eq!(of_b.generation, newest.generation);
    let mut got = [0u8; 8];
    let length = until("what was sent", || {
        // SAFETY: writable bytes.
        let got = unsafe { libc::recv(of_b.streams[0], got.as_mut_ptr().cast(), 8, 0) };
        (got > 0).then_some(got as usize)
    });
    assert_eq!(&got[..length], b"later");
    assert_eq!(told(&mut both.b), 2);
    both.joined(1, newest.generation);
    both.close();
}

/// A peer made by hand that connects, with a connection of two lanes.
struct Hand {
    link: RawTcp,
    reply: LinkHello,
    /// The streams of the set-up.
    first: Vec<RawTcp>,
    asks: u64,
}

impl Hand {
    fn new(handle: &ListenHandle, lanes: u32, streams: u32) -> Hand {
        let hello =
            LinkHello { rails: RAIL_TCP, arena_bytes: 0, streams, lanes, ..hello_to(handle) };
        let link = RawTcp::dial(handle);
        link.send(Frame::LinkHello(hello));
        let Frame::LinkReply(reply) = link.receive() else { panic!("no reply") };
        link.send(Frame::LinkReady(hello));
        let mut hand = Hand { link, reply, first: Vec::new(), asks: 0 };
        for stream in 0..streams {
            let socket = RawTcp::dial(handle);
            hand.say(&socket, handle, hand.hello(0, 0, stream, streams), lanes);
            hand.asks += 1;
            hand.first.push(socket);
        }
        hand
    }

    fn hello(&self, lane: u8, lane_generation: u32, stream: u32, streams: u32) -> StreamHello {
        StreamHello {
            endpoint_id: 0xabcd,
            proof: self.reply.nonce,
            connection: 5,
            stream,
            streams,
            ask: self.asks + 1,
            lane,
            lane_generation,
        }
    }

    fn say(&self, on: &RawTcp, handle: &ListenHandle, hello: StreamHello, lanes: u32) {
        let connect = ConnectHello {
            connection: hello.connection,
            target: handle.listener,
            streams: hello.streams,
            data_rails: lanes,
            ..ConnectHello::ZERO
        };
        on.send(Frame::StreamHello(hello, connect));
    }

    /// Dials a stream of a lane.
    fn lane(
        &mut self,
        handle: &ListenHandle,
        lane: u8,
        generation: u32,
        stream: u32,
        streams: u32,
    ) -> RawTcp {
        let socket = RawTcp::dial(handle);
        self.say(&socket, handle, self.hello(lane, generation, stream, streams), 2);
        self.asks += 1;
        socket
    }
}

#[test]
fn hellos_of_lanes_that_are_late_repeated_or_of_nothing_are_dropped() {
    let mut b = Node::new(&Limits { streams: 2, ..at(1, 2) });
    let (listener, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle, 7, 2);
    assert_eq!(hand.reply.lanes, 2);
    let Frame::Accepted(accepted) = hand.link.receive() else { panic!("not accepted") };
    assert_eq!((accepted.data_rails, accepted.control_rails), (2, 2));
    let there = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(b.established(there).unwrap().lanes, 2);
    // in any order, and older ones make room
    let stale = hand.lane(&handle, 1, 3, 1, 2);
    let one = hand.lane(&handle, 1, 7, 1, 2);
    stale.closed();
    hand.lane(&handle, 1, 3, 0, 2).closed();
    hand.lane(&handle, 1, 7, 1, 2).closed();
    assert_eq!(told(&mut b), 0);
    let _other = hand.lane(&handle, 1, 7, 0, 2);
    let up_b = until("the lane", || up(&mut b, there, 1, 1));
    assert_eq!((up_b.generation, up_b.count), (7, 2));
    use std::os::fd::AsRawFd;
    carry(one.0.as_raw_fd(), up_b.streams[1]);
    // not above what it has; lane 0 as set up counts as 1
    hand.lane(&handle, 1, 7, 0, 2).closed();
    hand.lane(&handle, 1, 6, 0, 2).closed();
    hand.lane(&handle, 0, 1, 0, 2).closed();
    // no such lane, other number of streams
    hand.lane(&handle, 2, 1, 0, 2).closed();
    hand.lane(&handle, 200, 1, 0, 2).closed();
    hand.lane(&handle, 1, 8, 0, 1).closed();
    assert_eq!(b.band.counters().strangers, 0);
    // recorded, and sent again; without proof; a lane that claims to be set up
    let again = RawTcp::dial(&handle);
    hand.say(&again, &handle, StreamHello { ask: hand.asks, ..hand.hello(1, 9, 0, 2) }, 2);
    again.closed();
    let forged = RawTcp::dial(&handle);
    hand.say(&forged, &handle, StreamHello { proof: 0, ..hand.hello(1, 9, 0, 2) }, 2);
    forged.closed();
    hand.lane(&handle, 1, 0, 0, 2).closed();
    assert_eq!(b.band.counters().strangers, 3);
    assert_eq!((told(&mut b), b.band.counters().links_lost), (1, 0));
    // the next is kept, and closed with the connection
    let kept = [hand.lane(&handle, 1, 9, 0, 2), hand.lane(&handle, 1, 9, 1, 2)];
    let half = hand.lane(&handle, 0, 2, 0, 2);
    a_while(20);
    assert_eq!(told(&mut b), 1);
    b.band.connection_close(there).unwrap();
    kept.iter().for_each(RawTcp::closed);
    half.closed();
    assert!(matches!(hand.link.receive(), Frame::Closed(_)));
    hand.lane(&handle, 1, 10, 0, 2).closed();
}

#[test]
fn a_lane_whose_streams_never_all_come_is_dropped_at_the_deadline() {
    let mut b = Node::new(&Limits { streams: 2, deadline: Span::millis(700), ..at(1, 2) });
    let (listener, handle) = b.band.listen().unwrap();
    let mut hand = Hand::new(&handle, 2, 2);
    assert!(matches!(hand.link.receive(), Frame::Accepted(_)));
    until("accept", || b.band.accept(listener).unwrap());
    hand.lane(&handle, 1, 1, 0, 2).closed();
    // the same, later
    let late = hand.lane(&handle, 1, 1, 1, 2);
    late.closed();
    assert_eq!((told(&mut b), b.band.counters().strangers), (0, 0));
}

/// A listener made by hand, its link, and the first lane.
struct Listener {
    socket: TcpListener,
    link: RawTcp,
    first: RawTcp,
    number: u64,
    handle: ListenHandle,
    pending: PendingId,
}

/// Answers a connector by hand: with an offer of lanes, so many addresses, and so many lanes.
fn answer(a: &Node, lanes: u32, addresses: Option<usize>) -> Listener {
    let (_, like) = Node::new(&Limits::tcp()).band.listen().unwrap();
    let (socket, handle) = RawTcp::listen(&like);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = RawTcp::of(socket.accept().unwrap().0);
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    link.send(Frame::LinkReply(LinkHello {
        node_id: handle.node_id,
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        rails: RAIL_TCP,
        streams: 1,
        arena_bytes: 0,
        lanes: 8,
        ..hello_to(&handle)
    }));
    let Frame::LinkReady(_) = link.receive() else { panic!("not ready") };
    if let Some(count) = addresses {
        assert_eq!(a.band.connect_poll(pending), Ok(None));
        link.send(Frame::Addresses(AddressList { count, ..AddressList::EMPTY }));
    }
    let first = RawTcp::of(socket.accept().unwrap().0);
    let Frame::StreamHello(stream, connect) = first.receive() else { panic!("no stream") };
    assert_eq!((stream.lane, stream.lane_generation), (0, 0));
    let answer = ConnectHello {
        connection: 9,
        target: connect.connection,
        data_rails: lanes,
        streams: 1,
        ..ConnectHello::ZERO
    };
    link.send(Frame::Accepted(answer));
    let number = connect.connection;
    Listener { socket, link, first, number, handle, pending }
}

#[test]
fn who_connects_takes_the_lanes_that_are_answered() {
    for (answered, lanes) in [(0, 1), (1, 1), (2, 2), (4, 4), (9, 4), (u32::MAX, 4)] {
        let mut a = Node::new(&Limits { lanes_wish: 4, ..at(1, 8) });
        let by_hand = answer(&a, answered, Some(0));
        let here = until("connect", || a.band.connect_poll(by_hand.pending).unwrap());
        assert_eq!(a.established(here).unwrap().lanes, lanes);
        let mut seen = 0u32;
        for _ in 1..lanes {
            let socket = RawTcp::of(by_hand.socket.accept().unwrap().0);
            let Frame::StreamHello(stream, _) = socket.receive() else { panic!("no stream") };
            assert_eq!((stream.connection, stream.lane_generation), (by_hand.number, 1));
            seen |= 1 << stream.lane;
        }
        assert_eq!(seen, (1 << lanes) - 2);
        by_hand.socket.set_nonblocking(true).unwrap();
        assert!(by_hand.socket.accept().is_err());
    }
}

/// Several attempts wait for the list, and are begun when it comes.
#[test]
fn addresses_are_waited_for_where_there_may_be_lanes() {
    let a = Node::new(&Limits { lanes_wish: 2, ..at(1, 8) });
    let by_hand = answer(&a, 2, Some(1));
    until("connect", || a.band.connect_poll(by_hand.pending).unwrap());
    // one that is not waited for, since we take one lane
    let a = Node::new(&at(1, 1));
    let by_hand = answer(&a, 1, None);
    until("connect", || a.band.connect_poll(by_hand.pending).unwrap());
    // and a second attempt on the link
    a.band.connect_begin(&by_hand.handle.encode()).unwrap();
    assert!(matches!(
        RawTcp::of(by_hand.socket.accept().unwrap().0).receive(),
        Frame::StreamHello(..)
    ));
}

#[test]
fn a_lane_that_cannot_be_dialled_is_said_once_and_tried_until_it_can() {
    let mut a = Node::new(&Limits { lanes_wish: 2, ..at(1, 2) });
    let by_hand = answer(&a, 2, Some(0));
    let here = until("connect", || a.band.connect_poll(by_hand.pending).unwrap());
    let mut of = |generation: u32| until("the lane", || up(&mut a, here, 1, generation)).generation;
    assert_eq!(of(1), 1);
    // nobody listens any more
    let to = by_hand.socket.local_addr().unwrap();
    drop(by_hand.socket);
    let missed = |note: &Note| {
        matches!(note, Note::LaneMissed { lane: 1, code: libc::ECONNREFUSED, peer }
            if peer.endpoint_id == by_hand.handle.endpoint_id)
    };
    for outage in 1..3 {
        a.band.lane_wanted(here, 1).unwrap();
        until("it to be said", || (said(missed) == outage).then_some(()));
        a_while(60);
        assert_eq!((said(missed), a.gone(here)), (outage, None));
        let again = TcpListener::bind(to).unwrap();
        let socket = RawTcp::of(again.accept().unwrap().0);
        let Frame::StreamHello(stream, _) = socket.receive() else { panic!("no stream") };
        assert!(stream.lane_generation > 2 * outage as u32, "{}", stream.lane_generation);
        let known = until("the lane", || up(&mut a, here, 1, stream.lane_generation));
        assert_eq!(known.generation, stream.lane_generation);
    }
    // closed while it is tried
    a.band.lane_wanted(here, 1).unwrap();
    a_while(30);
    a.band.connection_close(here).unwrap();
    by_hand.link.send(Frame::Closed(RefusedHello {
        target: by_hand.number,
        reason: RefuseReason::Closed as u32,
        major: 1,
    }));
    until("free", || a.all_free());
}

#[test]
fn a_connection_is_closed_in_any_phase_of_its_lanes() {
    let limits = Limits { streams: 2, connections: 64, events: 1024, ..at(4, 8) };
    let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    for round in 0..60 {
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        for _ in 0..round % 7 {
            let _ = a.band.accept(ListenerId(there));
            a.drain();
            b.drain();
        }
        if round % 3 == 0 {
            for lane in 0..4 {
                a.band.lane_wanted(here, lane).unwrap();
            }
        }
        if round % 2 == 0 {
            a.band.connection_close(here).unwrap();
            until("gone", || b.gone(there));
            assert_eq!(b.band.lane_wanted(there, 1), Ok(()));
            b.band.connection_close(there).unwrap();
        } else {
            b.band.connection_close(there).unwrap();
            a.band.connection_close(here).unwrap();
        }
        assert_eq!(a.band.lane_wanted(here, 1), Err(CloseError::Stale));
    }
    until("a free", || a.all_free());
    until("b free", || b.all_free());
    assert_eq!((a.band.counters().links_lost, b.band.counters().links_lost), (0, 0));
}

#[test]
fn events_that_find_no_room_come_later_in_order() {
    let small = Limits { events: 2, ..at(8, 8) };
    let mut both = Pair::new(&small, &small);
    let (here, there) = (both.here, both.there);
    for lane in 1..8 {
        both.joined(lane, 1);
    }
    for lane in 0..8 {
        both.b.band.lane_wanted(there, lane).unwrap();
        both.a.band.lane_wanted(here, lane).unwrap();
    }
    for lane in 0..8 {
        both.joined(lane, 2);
    }
    let first = |node: &Node| matches!(node.seen[0], BandEvent::Established { .. });
    assert!(first(&both.a) && first(&both.b));
    both.close();
}

#[test]
fn a_peer_that_is_gone_ends_all_lanes() {
    let dir = directory("lanes_gone");
    let (mut a, b) = (Node::new(&at(3, 8)), Node::new(&at(3, 8)));
    let (listener, handle) = b.band.listen().unwrap();
    let (here, _) = pair(&a, &b, listener, &handle.encode());
    until("a lane", || up(&mut a, here, 1, 1));
    until("a lane", || up(&mut a, here, 2, 1));
    b.band.close();
    until("gone", || a.gone(here));
    for lane in 0..3 {
        a.band.lane_wanted(here, lane).unwrap();
    }
    a_while(30);
    assert_eq!(told(&mut a), 2);
    a.band.connection_close(here).unwrap();
    until("free", || a.all_free());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What one side's data thread has of a connection's lanes.
struct Seats {
    node: Node,
    connections: Vec<Handle>,
    held: Vec<[Option<Up>; 4]>,
    highest: Vec<[u32; 4]>,
    read: usize,
}

impl Seats {
    fn new(mut node: Node, connections: Vec<Handle>) -> Seats {
        let first = |of: &Handle| {
            let params = node.established(*of).unwrap();
            let up = Up { generation: 1, streams: params.streams, count: 2 };
            [Some(up), None, None, None]
        };
        let held: Vec<_> = connections.iter().map(first).collect();
        let highest = vec![[1, 0, 0, 0]; connections.len()];
        Seats { node, connections, held, highest, read: 0 }
    }

    /// Takes news in, which must fit to what was known.
    fn take(&mut self) {
        self.node.drain();
        for event in &self.node.seen[self.read..] {
            let BandEvent::Lane { index, lane, lane_generation, streams, stream_count, .. } =
                *event
            else {
                assert!(matches!(event, BandEvent::Established { .. }), "{event:?}");
                continue;
            };
            let at = self.connections.iter().position(|of| of.index == index).unwrap();
            let seat = &mut self.held[at][usize::from(lane)];
            assert!(seat.is_none(), "nobody has let go of it");
            let highest = &mut self.highest[at][usize::from(lane)];
            assert!(lane_generation > *highest, "{lane_generation} after {highest}");
            *highest = lane_generation;
            *seat = Some(Up { generation: lane_generation, streams, count: stream_count.into() });
        }
        self.read = self.node.seen.len();
    }

    fn let_go(&mut self, connection: usize, lane: usize) {
        if self.held[connection][lane].take().is_some() {
            self.node.band.lane_wanted(self.connections[connection], lane as u32).unwrap();
        }
    }

    /// Lets go of what has ended.
    fn look(&mut self, connection: usize, lane: usize) {
        self.take();
        let Some(up) = self.held[connection][lane] else { return };
        if up.streams[..up.count].iter().any(|stream| is_at_end(*stream).is_some()) {
            self.let_go(connection, lane);
        }
    }
}

#[test]
fn whatever_lanes_both_sides_let_go_of_they_meet_again() {
    const CONNECTIONS: usize = 3;
    let seed = std::process::id() | 1;
    let mut random = seed;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as usize % below
    };
    let limits = Limits { streams: 2, ..at(4, 4) };
    let (a, b) = (Node::new(&limits), Node::new(&limits));
    let (listener, handle) = b.band.listen().unwrap();
    let all: Vec<_> = (0..CONNECTIONS).map(|_| pair(&a, &b, listener, &handle.encode())).collect();
    let mut a = Seats::new(a, all.iter().map(|(here, _)| *here).collect());
    let mut b = Seats::new(b, all.iter().map(|(_, there)| *there).collect());
    for _ in 0..300 {
        let (connection, lane) = (next(CONNECTIONS), next(4));
        match next(4) {
            0 => a.let_go(connection, lane),
            1 => b.let_go(connection, lane),
            2 => a.look(connection, lane),
            _ => b.look(connection, lane),
        }
        a.take();
        b.take();
    }
    for connection in 0..CONNECTIONS {
        for lane in 0..4 {
            until(&format!("both, of seed {seed}"), || {
                a.look(connection, lane);
                b.look(connection, lane);
                let (of_a, of_b) = (a.held[connection][lane]?, b.held[connection][lane]?);
                (of_a.generation == of_b.generation).then_some(())
            });
            let (of_a, of_b) = (a.held[connection][lane], b.held[connection][lane]);
            let (of_a, of_b) = (of_a.unwrap(), of_b.unwrap());
            for stream in 0..2 {
                carry(of_a.streams[stream], of_b.streams[stream]);
                carry(of_b.streams[stream], of_a.streams[stream]);
            }
        }
    }
    let (here, there) = (&a.node.band.counters(), &b.node.band.counters());
    assert_eq!((here.strangers, there.strangers, there.links_lost), (0, 0, 0));
    for (here, there) in all {
        a.node.band.connection_close(here).unwrap();
        b.node.band.connection_close(there).unwrap();
    }
    until("a free", || a.node.all_free());
    until("b free", || b.node.all_free());
}

fn carry_into_nothing(stream: i32) {
    // SAFETY: one readable byte.
    assert_eq!(unsafe { libc::send(stream, [0u8].as_ptr().cast(), 1, 0) }, 1);
}

#[test]
fn a_lane_whose_packets_vanish_is_given_up_alone() {
    let limits = Limits { peer_deadline: Span::millis(800), ..at(3, 8) };
    let mut both = Pair::new(&limits, &limits);
    let (here, there) = (both.here, both.there);
    let zero = both.a.established(here).unwrap().streams[0];
    let zero_there = both.b.established(there).unwrap().streams[0];
    for (lane, least) in [(1, 1), (2, 1), (1, 2)] {
        let (of_a, of_b) = both.joined(lane, least);
        black_hole(of_b.streams[0]);
        carry_into_nothing(of_a.streams[0]);
        let notes = said(|note| matches!(note, Note::LaneStalled { .. }));
        let before = told(&mut both.a);
        until("it to be seen", || (told(&mut both.a) > before).then_some(()));
        assert_eq!(gone(&mut both.a, here, lane), Some(DownCause::Silent));
        assert_eq!(said(|note| matches!(note, Note::LaneStalled { .. })), notes + 1);
        carry(zero, zero_there);
        both.a.band.lane_wanted(here, lane.into()).unwrap();
        both.b.band.lane_wanted(there, lane.into()).unwrap();
        both.joined(lane, of_a.generation + 1);
    }
    // the first lane, too, while the link answers
    black_hole(zero_there);
    carry_into_nothing(zero);
    until("it to be seen", || gone(&mut both.a, here, 0));
    both.b.band.lane_wanted(there, 0).unwrap();
    both.a.band.lane_wanted(here, 0).unwrap();
    both.joined(0, 2);
    assert_eq!((both.a.gone(here), both.b.gone(there)), (None, None));
    both.close();
}

#[test]
fn role_here() {
    match std::env::var(ROLE).as_deref() {
        Ok("cycles") => cycles(false),
        Ok("no_alloc") => cycles(true),
        _ => {}
    }
}

#[test]
fn cycles_of_lanes_leak_no_slot_and_no_descriptor() {
    run_alone_in("role_here", "cycles");
}

#[test]
fn nothing_allocates_while_lanes_come_and_go() {
    run_alone_in("role_here", "no_alloc");
}

fn cycles(counted: bool) {
    let key = crosstie::connect::key::Key::new(b"a key of many bytes").unwrap();
    let limits = Limits { key: Some(key), streams: 2, ..at(3, 4) };
    let mut both = Pair::new(&limits, &limits);
    let (listener, handle) = both.b.band.listen().unwrap();
    let handle = handle.encode();
    let kept = (both.here, both.there);
    both.joined(1, 1);
    both.joined(2, 1);
    let before = (descriptors(), ALLOCATIONS.load(Ordering::Relaxed));
    for round in 1..17 {
        (both.here, both.there) = pair(&both.a, &both.b, listener, &handle);
        both.joined(2, 1);
        both.a.band.connection_close(both.here).unwrap();
        both.b.band.connection_close(both.there).unwrap();
        (both.here, both.there) = kept;
        let lane = round % 3;
        both.b.band.lane_wanted(kept.1, lane).unwrap();
        both.a.band.lane_wanted(kept.0, lane).unwrap();
        let of_a = both.joined(lane as u8, if lane == 0 { 2 } else { 1 + round / 3 });
        assert_eq!(of_a.0.count, 2);
        both.a.seen.clear();
        both.b.seen.clear();
    }
    if counted {
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before.1, 0);
    } else {
        until("descriptors back", || (descriptors() == before.0).then_some(()));
        both.close();
    }
}

/// What roles talk over: data streams; 0 is shared memory.
const STREAMS: u32 = 1;

include!("connect_support/roles.rs");
