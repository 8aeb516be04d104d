//! How connections stand, asked over the side band (W8.11), also by peers that ask and answer what
//! no honest one does: nothing of it changes a connection.
#![allow(dead_code)] // of the shared parts

mod connect_support;
#[path = "connect_support/raw.rs"]
mod raw;

use connect_support::*;
use crosstie::base::slab::Handle;
use crosstie::wire::hello::*;
use crosstie::wire::status::*;
use raw::{ARENA_BYTES, Raw, hello_to, memfd};

const DATA: [u32; 2] = [0, 1];

fn left(sends: u16) -> StatusHello {
    let status = Status { standing: Standing::Open as u8, sends, ..Status::ZERO };
    StatusHello { status, ..StatusHello::ZERO }
}

fn flags(said: &StatusHello) -> u32 {
    said.status.flags
}

#[test]
fn peer_is_told_what_was_left_last_and_then_what_is_left_anew() {
    for streams in DATA {
        let (a, b) = (Node::new(&Limits::of(streams)), Node::new(&Limits::of(streams)));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        assert_eq!(a.band.status_of_peer(here), None);
        // nothing was left yet; the question is passed on
        assert!(a.band.status_ask(here));
        let said = until("an answer", || a.band.status_of_peer(here));
        assert_eq!((flags(&said), said.status.silent_ms), (0, AGE_UNKNOWN_MS));
        let wanted = until("a question", || b.band.status_wanted(0));
        assert_eq!((wanted, b.band.status_wanted(0)), (there, None));
        b.band.status_leave(there, &left(3));
        let fresh = |said: &StatusHello| flags(said) & STATUS_FRESH != 0;
        let said = until("news", || a.band.status_of_peer(here).filter(fresh));
        assert_eq!((said.status.sends, flags(&said)), (3, STATUS_SNAPSHOT | STATUS_FRESH));
        // asked again, what was left before counts as old
        assert!(a.band.status_ask(here));
        until("a question", || b.band.status_wanted(0));
        let said = until("an answer", || a.band.status_of_peer(here));
        assert_eq!(said.status.sends, 3);
        b.band.connection_close(there).unwrap();
        a.band.connection_close(here).unwrap();
        assert!(!a.band.status_ask(here));
        assert_eq!(a.band.status_of_peer(here), None);
    }
}

#[test]
fn questions_and_answers_of_strange_peers_change_nothing() {
    let b = Node::new(&Limits::default());
    let (listener, handle) = b.band.listen().unwrap();
    let raw = Raw::dial(&handle);
    raw.send(Frame::LinkHello(hello_to(&handle)), &[&memfd(ARENA_BYTES)]);
    assert!(matches!(raw.receive(), Frame::LinkReply(_)));
    raw.send(Frame::LinkReady(hello_to(&handle)), &[]);
    let connect = ConnectHello {
        connection: 1,
        target: handle.listener,
        send_ring_bytes: 1024,
        write_ring_bytes: 512,
        ..ConnectHello::ZERO
    };
    raw.send(Frame::Connect(connect), &[]);
    let Frame::Accepted(accepted) = raw.receive() else { panic!() };
    let ours = until("accept", || b.band.accept(listener).unwrap());
    assert_eq!(ours, Handle::unpack(accepted.connection));
    // of what does not exist: said so, to the number that the peer gave
    for target in [0, u64::MAX, accepted.connection ^ 2, accepted.connection ^ 1 << 33] {
        raw.send(Frame::StatusAsk(StatusAsk { target, connection: 77, number: 5, flags: 0 }), &[]);
        let Frame::Status(said) = raw.receive() else { panic!() };
        assert_eq!((said.status.target, said.status.number), (77, 5));
        assert_eq!(flags(&said), STATUS_CLOSED);
    }
    // answers that nobody asked for, of any connection, with any number
    for target in [0, u64::MAX, accepted.connection] {
        for number in [0, 1, u32::MAX] {
            let status = Status { target, number, ..left(9).status };
            raw.send(Frame::Status(StatusHello { status, ..StatusHello::ZERO }), &[]);
        }
    }
    for number in 0..100 {
        let ask = StatusAsk { target: accepted.connection, connection: 1, number, flags: 0 };
        raw.send(Frame::StatusAsk(ask), &[]);
        let Frame::Status(said) = raw.receive() else { panic!() };
        assert_eq!((said.status.target, said.status.number), (1, number));
    }
    assert_eq!(b.band.status_of_peer(ours), None);
    // asked for, and all wrong: kept as it was said, for people
    assert!(b.band.status_ask(ours));
    let Frame::StatusAsk(ask) = raw.receive() else { panic!() };
    assert_eq!((ask.target, ask.connection), (1, accepted.connection));
    let mut bytes = [0xff; Status::SIZE];
    bytes[..8].copy_from_slice(&ask.connection.to_le_bytes());
    bytes[8..12].copy_from_slice(&ask.number.to_le_bytes());
    let wrong = StatusHello::decode(&bytes).unwrap();
    raw.send(Frame::Status(wrong), &[]);
    let said = until("an answer", || b.band.status_of_peer(ours));
    assert_eq!((said.status.sends, said.status.left_ms), (u16::MAX, u32::MAX));
    assert_eq!((b.band.counters().links_lost, b.band.counters().strangers), (0, 0));
}
