//! Where the rings of a connection may lie: a peer made by hand asks for places. And where the
//! descriptors of links find room.
#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::wire::hello::*;
use raw::{ARENA_BYTES, Raw, hello_to, memfd};

/// A connection's rings are zeroed by each side before the connection is used: two at one place
/// would be zeroed under each other.
#[test]
fn rings_at_the_place_of_a_living_connection_are_refused_and_free_when_it_is_over() {
    let b = Node::new(&Limits { connections: 2, ..Limits::default() });
    let (listener, handle) = b.band.listen().unwrap();
    let raw = Raw::dial(&handle);
    raw.send(Frame::LinkHello(hello_to(&handle)), &[&memfd(ARENA_BYTES)]);
    let Frame::LinkReply(reply) = raw.receive() else { panic!("no reply") };
    assert_eq!(reply.arena_bytes, ARENA_BYTES, "its own arena is as long");
    raw.send(Frame::LinkReady(hello_to(&handle)), &[]);
    let ask = |rings_offset| {
        let connect = ConnectHello {
            connection: 1,
            target: handle.listener,
            rings_offset,
            send_ring_bytes: 1024,
            write_ring_bytes: 512,
            ..ConnectHello::ZERO
        };
        raw.send(Frame::Connect(connect), &[]);
        match raw.receive() {
            Frame::Accepted(accepted) => Ok(accepted.connection),
            Frame::Refused(refused) => Err(RefuseReason::from_wire(refused.reason)),
            other => panic!("{other:?}"),
        }
    };
    let first = ask(RINGS_BYTES).expect("the first");
    assert_eq!(ask(RINGS_BYTES), Err(RefuseReason::Protocol));
    assert_eq!(ask(ARENA_BYTES), Err(RefuseReason::Protocol), "outside");
    // more places than twice the connections that there may be
    assert_eq!(ask(4 * RINGS_BYTES), Err(RefuseReason::Full));
    ask(0).expect("another place");
    let here = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(here.pack(), first);
    raw.send(Frame::Closed(RefusedHello { target: first, ..RefusedHello::ZERO }), &[]);
    b.band.connection_close(here).unwrap();
    let Frame::Closed(closed) = raw.receive() else { panic!("not closed") };
    assert_eq!(closed.target, 1);
    ask(RINGS_BYTES).expect("the first one's place");
}

/// Endpoints that all connect to each other.
const PEERS: usize = 8;

/// How many descriptors the kernel's table has room for.
fn table_length() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    line.unwrap().trim().parse().unwrap()
}

/// When the table of a process with threads grows, the kernel waits for all CPUs. Under the band's
/// lock that keeps the process from answering its peers, for seconds where many processes spin.
#[test]
fn the_table_of_descriptors_grows_at_open_and_not_while_links_are_made() {
    let limits = Limits { connections: 2 * PEERS, links: 2 * PEERS as u32, ..Limits::default() };
    let before = descriptors();
    let nodes: Vec<Node> = (0..PEERS).map(|_| Node::new(&limits)).collect();
    let (length, opened) = (table_length(), descriptors());
    assert!(length > opened + 2 * 4 * PEERS * (PEERS - 1), "no room: {length}");
    let listeners: Vec<_> = nodes.iter().map(|node| node.band.listen().unwrap()).collect();
    for (to, (listener, handle)) in nodes.iter().zip(&listeners) {
        for from in nodes.iter().filter(|from| !std::ptr::eq(*from, to)) {
            pair(from, to, *listener, &handle.encode());
        }
    }
    assert!(descriptors() > opened + (opened - before), "links take descriptors");
    assert_eq!(table_length(), length);
}
