//! The side band between hosts, over TCP on loopback.

mod connect_support;

use connect_support::*;
use crosstie::base::units::Span;
use crosstie::connect::*;
use crosstie::fabric::completion::DownCause;
use crosstie::wire::handle::{Family, ListenHandle};
use crosstie::wire::hello::{RAIL_SHM, RAIL_TCP};

/// Another host's number: the same machine, seen as two.
fn elsewhere(handle: &ListenHandle) -> [u8; 128] {
    ListenHandle { node_id: !handle.node_id, ..*handle }.encode()
}

#[test]
fn a_connection_over_tcp_is_established_with_its_streams() {
    for streams in 1..=4 {
        let limits = Limits { streams, ..Limits::tcp() };
        let (mut a, mut b) = (Node::new(&limits), Node::new(&limits));
        let (listener, handle) = b.band.listen().unwrap();
        let (here, there) = pair(&a, &b, listener, &handle.encode());
        let of_a = a.established(here).expect("the event comes before the handle");
        let of_b = b.established(there).expect("the event comes before the handle");
        assert_eq!((of_a.rail, of_b.rail), (Rail::Tcp, Rail::Tcp));
        assert_eq!((of_a.side, of_b.side), (Side::Connector, Side::Listener));
        assert_eq!((of_a.peer.connection, of_b.peer.connection), (there.pack(), here.pack()));
        assert_eq!((of_a.stream_count, of_b.stream_count), (streams, streams));
        assert_eq!((of_a.peer.streams, of_b.peer.streams), (streams, streams));
        for stream in 0..streams as usize {
            carry(of_a.streams[stream], of_b.streams[stream]);
            carry(of_b.streams[stream], of_a.streams[stream]);
        }
        a.band.connection_close(here).unwrap();
        assert_eq!(until("gone", || b.gone(there)), DownCause::Closed);
        b.band.connection_close(there).unwrap();
        until("a free", || a.all_free());
        until("b free", || b.all_free());
    }
}

include!("connect_support/roles.rs");
