//! Links that no connection uses give way when somebody needs a place, and nobody notices.

#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::key::Key;
use crosstie::connect::*;
use crosstie::wire::handle::ListenHandle;
use crosstie::wire::hello::*;
use raw::{Raw, RawTcp, memfd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of an endpoint as a host makes it: twice as many links as connections.
fn small(streams: u32) -> Limits {
    Limits { connections: 4, links: 8, ..Limits::of(streams) }
}

/// Living peers, more than a small endpoint has links.
const PEERS: usize = 12;

/// Closes both ends, and waits until both slots are free.
fn part(ends: [(&Node, crosstie::base::slab::Handle); 2]) {
    for (node, connection) in ends {
        node.band.connection_close(connection).unwrap();
    }
    for (node, _) in ends {
        until("free", || node.all_free());
    }
}

#[test]
fn a_listener_outlasts_more_living_peers_than_it_has_links() {
    for streams in [0, 1] {
        let b = Node::new(&small(streams));
        let (listener, handle) = b.band.listen().unwrap();
        let peers: Vec<_> = (0..PEERS).map(|_| Node::new(&small(streams))).collect();
        for peer in peers.iter().chain(&peers) {
            let (here, there) = pair(peer, &b, listener, &handle.encode());
            part([(peer, here), (&b, there)]);
        }
        let lost = |node: &Node| node.band.counters().links_lost;
        assert_eq!(peers.iter().map(lost).sum::<u64>() + lost(&b), 0);
    }
}

#[test]
fn a_connector_outlasts_more_living_listeners_than_it_has_links() {
    for streams in [0, 1] {
        let a = Node::new(&small(streams));
        let peers: Vec<_> = (0..PEERS).map(|_| Node::new(&small(streams))).collect();
        let listeners: Vec<_> = peers.iter().map(|peer| peer.band.listen().unwrap()).collect();
        for (peer, (listener, handle)) in
            peers.iter().zip(&listeners).chain(peers.iter().zip(&listeners))
        {
            let (here, there) = pair(&a, peer, *listener, &handle.encode());
            part([(&a, here), (peer, there)]);
        }
        let lost = |node: &Node| node.band.counters().links_lost;
        assert_eq!(peers.iter().map(lost).sum::<u64>() + lost(&a), 0);
    }
}

#[test]
fn a_link_in_use_never_gives_way() {
    for streams in [0, 1] {
        let mut b = Node::new(&small(streams));
        let (listener, handle) = b.band.listen().unwrap();
        let a = Node::new(&small(streams));
        let (_here, there) = pair(&a, &b, listener, &handle.encode());
        let peers: Vec<_> = (0..PEERS).map(|_| Node::new(&small(streams))).collect();
        for peer in &peers {
            let (here, there) = pair(peer, &b, listener, &handle.encode());
            peer.band.connection_close(here).unwrap();
            b.band.connection_close(there).unwrap();
            until("free", || peer.all_free());
        }
        assert_eq!(b.gone(there), None);
    }
}

#[test]
fn who_asks_while_its_link_is_closed_succeeds_over_a_new_one() {
    const ROUNDS: usize = 200;
    for streams in [0, 1, 2] {
        // so few links that every peer but one has lost its own by the time it asks again
        let crowded = Limits { connections: 16, links: 4, events: 4096, ..Limits::of(streams) };
        let b = Node::new(&crowded);
        let (listener, handle) = b.band.listen().unwrap();
        let peers: Vec<_> =
            (0..6).map(|_| Node::new(&Limits { events: 4096, ..small(streams) })).collect();
        let tokens = [(); 2].map(|()| std::sync::Mutex::new(()));
        let turn = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (number, peer) in peers.iter().enumerate() {
                let (tokens, turn, b) = (&tokens, &turn, &b);
                scope.spawn(move || {
                    while turn.fetch_add(1, Ordering::Relaxed) < ROUNDS {
                        let _token = tokens[number % tokens.len()].lock().unwrap();
                        let (here, there) = pair(peer, b, listener, &handle.encode());
                        // the two that connect at a time may have each other's ends
                        peer.band.connection_close(here).unwrap();
                        b.band.connection_close(there).unwrap();
                    }
                });
            }
        });
        until("free", || b.all_free());
        let counters = b.band.counters();
        assert_eq!((counters.links_lost, counters.strangers), (0, 0));
    }
}

/// The handshake of a listener made by hand, up to a link that stands. `say` is told the bytes of
/// the arena that it brings, within a host.
fn shake(from: Frame, handle: &ListenHandle, say: impl Fn(Frame, u64)) {
    let Frame::LinkHello(hello) = from else { panic!("{from:?}") };
    let reply = LinkHello {
        endpoint_id: handle.endpoint_id,
        node_id: handle.node_id,
        peer_endpoint_id: hello.endpoint_id,
        features: 0,
        heap_bytes: 0,
        nonce: 9,
        ..hello
    };
    say(Frame::LinkReply(reply), hello.arena_bytes);
}

#[test]
fn an_attempt_goes_on_over_a_new_link_when_its_own_is_given_up() {
    let goodbye = Frame::Closed(RefusedHello { target: 0, reason: 1, ..RefusedHello::ZERO });
    let a = Node::new(&Limits::default());
    let handle = ListenHandle { endpoint_id: 0x51de, ..a.band.listen().unwrap().1 };
    let door = Raw::listen(handle.endpoint_id);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    for round in 0..3 {
        let link = door.accept();
        shake(link.receive(), &handle, |frame, bytes| link.send(frame, &[&memfd(bytes)]));
        assert!(matches!(link.receive(), Frame::LinkReady(_)));
        let Frame::Connect(connect) = link.receive() else { panic!("not asked") };
        if round < 2 {
            link.send(goodbye, &[]);
            continue;
        }
        let body = ConnectHello { connection: 5, target: connect.connection, ..connect };
        link.send(Frame::Accepted(body), &[]);
        let here = until("connect", || a.band.connect_poll(pending).unwrap());
        a.band.connection_close(here).unwrap();
        assert!(matches!(link.receive(), Frame::Closed(closed) if closed.target == 5));
        assert_eq!(a.band.counters().links_lost, 0);
    }
}

#[test]
fn an_attempt_over_tcp_goes_on_also_when_the_goodbye_was_lost() {
    let goodbye = Frame::Closed(RefusedHello { target: 0, reason: 1, ..RefusedHello::ZERO });
    let a = Node::new(&Limits::tcp());
    let (door, handle) = RawTcp::listen(&a.band.listen().unwrap().1);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    for round in 0..3 {
        let link = RawTcp::of(door.accept().unwrap().0);
        shake(link.receive(), &handle, |frame, _| link.send(frame));
        assert!(matches!(link.receive(), Frame::LinkReady(_)));
        let stream = RawTcp::of(door.accept().unwrap().0);
        let Frame::StreamHello(_, connect) = stream.receive() else { panic!("not asked") };
        match round {
            0 => link.send(goodbye),
            1 => {}
            _ => {
                let body = ConnectHello { connection: 5, target: connect.connection, ..connect };
                link.send(Frame::Accepted(body));
                let _ = until("connect", || a.band.connect_poll(pending).unwrap());
            }
        }
    }
}

/// A listener that has closed lets go of the stream and refuses the connection; who sees the first
/// before it reads the second asks again, and is refused twice.
#[test]
fn an_answer_that_comes_again_before_the_first_was_asked_for_ends_nothing_else() {
    let mut a = Node::new(&Limits::tcp());
    let (door, handle) = RawTcp::listen(&a.band.listen().unwrap().1);
    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let link = RawTcp::of(door.accept().unwrap().0);
    shake(link.receive(), &handle, |frame, _| link.send(frame));
    assert!(matches!(link.receive(), Frame::LinkReady(_)));
    let asked = || {
        let stream = RawTcp::of(door.accept().unwrap().0);
        let Frame::StreamHello(_, connect) = stream.receive() else { panic!("not asked") };
        (stream, connect)
    };
    let accepted = |connect: &ConnectHello, connection| {
        Frame::Accepted(ConnectHello { connection, target: connect.connection, ..*connect })
    };
    let (_stream, connect) = asked();
    link.send(accepted(&connect, 5));
    let here = until("connect", || a.band.connect_poll(pending).unwrap());
    assert!(a.established(here).is_some());

    let pending = a.band.connect_begin(&handle.encode()).unwrap();
    let (_stream, connect) = asked();
    let (target, reason) = (connect.connection, RefuseReason::NoListener as u32);
    let refused = Frame::Refused(RefusedHello { target, reason, ..RefusedHello::ZERO });
    for frame in [refused, refused, accepted(&connect, 6), Frame::Ping(PingHello { number: 7 })] {
        link.send(frame);
    }
    // all of them were read, and the link stands
    while !matches!(link.receive(), Frame::Pong(_)) {}
    let error = until("an error", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::NoListener(_)), "{error:?}");
    assert_eq!(a.band.counters().links_lost, 0);
}

#[test]
fn hellos_without_an_end_keep_nobody_out() {
    const FLOOD: usize = 200;
    let b = Node::new(&small(1));
    let (listener, handle) = b.band.listen().unwrap();
    let mut flood = Vec::new();
    for number in 0..FLOOD {
        let stranger = RawTcp::dial(&handle);
        let hello = LinkHello { rails: RAIL_TCP, streams: 1, ..raw::hello_to(&handle) };
        stranger.send(Frame::LinkHello(hello));
        if number % 2 == 1 {
            // every other link stands, and is never used
            let Frame::LinkReply(reply) = stranger.receive() else { panic!("no reply") };
            stranger.send(Frame::LinkReady(LinkHello { nonce: hello.nonce, ..reply }));
        }
        flood.push(stranger);
        if number % 20 == 19 {
            let peer = Node::new(&small(1));
            let (here, there) = pair(&peer, &b, listener, &handle.encode());
            part([(&peer, here), (&b, there)]);
        }
    }
}

#[test]
fn a_recorded_hello_said_again_and_again_does_not_lock_a_peer_with_the_key_out() {
    let key = Some(Key::new(b"a key of enough bytes for everybody").unwrap());
    let limits = Limits { key, ..small(1) };
    let b = Node::new(&limits);
    let (listener, handle) = b.band.listen().unwrap();
    // said to somebody in the middle, who stands in for the listener
    let a = Node::new(&limits);
    let (door, false_handle) = RawTcp::listen(&handle);
    let _pending = a.band.connect_begin(&false_handle.encode()).unwrap();
    let recorded = RawTcp::of(door.accept().unwrap().0).receive_bytes();
    let replayed: Vec<_> = (0..200)
        .map(|_| {
            let stranger = RawTcp::dial(&handle);
            stranger.send_bytes(&recorded);
            stranger
        })
        .collect();
    // the listener has read them all up to the last, which is answered
    assert!(matches!(replayed[199].receive(), Frame::LinkReply(_)));
    let peer = Node::new(&limits);
    pair(&peer, &b, listener, &handle.encode());
}

static SILENCES: AtomicUsize = AtomicUsize::new(0);

fn count_silences(note: Note) {
    if matches!(note, Note::Stopped { .. }) {
        SILENCES.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_silent_peer_without_connections_is_closed_and_not_reported() {
    let hasty = Limits { peer_deadline: Span::millis(200), note: count_silences, ..Limits::tcp() };
    let b = Node::new(&hasty);
    let (_, handle) = b.band.listen().unwrap();
    let peer = RawTcp::dial(&handle);
    let hello = LinkHello { rails: RAIL_TCP, streams: 1, ..raw::hello_to(&handle) };
    peer.send(Frame::LinkHello(hello));
    let Frame::LinkReply(reply) = peer.receive() else { panic!("no reply") };
    peer.send(Frame::LinkReady(LinkHello { nonce: hello.nonce, ..reply }));
    assert!(matches!(peer.receive(), Frame::Closed(closed) if closed.target == 0));
    peer.closed();
    assert_eq!((SILENCES.load(Ordering::Relaxed), b.band.counters().links_lost), (0, 0));
}

#[test]
fn a_hello_over_tcp_without_a_nonce_is_refused() {
    let b = Node::new(&Limits::tcp());
    let (_, handle) = b.band.listen().unwrap();
    let peer = RawTcp::dial(&handle);
    let hello = LinkHello { rails: RAIL_TCP, streams: 1, nonce: 0, ..raw::hello_to(&handle) };
    peer.send(Frame::LinkHello(hello));
    let Frame::Refused(refused) = peer.receive() else { panic!("not refused") };
    assert_eq!(RefuseReason::from_wire(refused.reason), RefuseReason::Protocol);
    // and as an answer
    let (door, false_handle) = RawTcp::listen(&handle);
    let a = Node::new(&Limits::tcp());
    let pending = a.band.connect_begin(&false_handle.encode()).unwrap();
    let link = RawTcp::of(door.accept().unwrap().0);
    let Frame::LinkHello(hello) = link.receive() else { panic!("no hello") };
    link.send(Frame::LinkReply(LinkHello {
        endpoint_id: handle.endpoint_id,
        peer_endpoint_id: hello.endpoint_id,
        nonce: 0,
        ..hello
    }));
    let error = until("an error", || a.band.connect_poll(pending).err());
    assert!(matches!(error, ConnectError::Protocol(_)), "{error:?}");
}
