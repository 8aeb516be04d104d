//! Where the rings of a connection may lie: a peer made by hand asks for places.
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
