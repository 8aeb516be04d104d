//! With `CROSSTIE_CHECKSUM=1` bytes of a data stream that are changed on the way fail their rail
//! before anybody believes them: what it carried is sent again, and arrives as it was.

#![allow(dead_code)] // of the shared parts

#[path = "net_support/changed.rs"]
mod changed;
mod host_support;

use changed::{Change, swap};
use crosstie::base::units::Bytes;
use crosstie::host::{DeviceKind, Options};
use crosstie::transport::{Limits, RequestError};
use host_support::pair::{Pair, alone};
use host_support::stalled;
use host_support::{Memory, Node, Place, small, wait_both};

const LONG: usize = 4 << 20;
/// Nothing here waits for a request to stall.
const SETTINGS: [(&str, &str); 4] = [
    ("CROSSTIE_STALL_MS", "0"),
    ("CROSSTIE_TCP_RAILS", "2"),
    ("CROSSTIE_SOCKET_IFNAME", "lo"),
    ("CROSSTIE_CHECKSUM", "1"),
];

fn pair(rails: u8) -> Pair {
    let alone = alone();
    stalled::listen(&SETTINGS);
    let limits = Limits { rails_max: rails.into(), ..small(2).limits };
    let options =
        Options { device: DeviceKind::Tcp, limits, heap_bytes: Bytes::mib(64), ..small(2) };
    Pair::of(alone, Node::open(&options), Node::open(&options), rails)
}

/// A message of so many bytes crosses although the first rail changes something.
fn crosses(length: usize, out: Change, back: Change) {
    let mut pair = pair(2);
    (0..10_000).for_each(|_| pair.progress());
    let way = swap(pair.a.lane_socket(pair.to_b, 0).expect("an open rail"), true);
    let [from, into] = [&pair.a, &pair.b].map(|node| Memory::new(node, Place::Private, LONG));
    from.fill(0, LONG, 5);
    way.out.set(out);
    way.back.set(back);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, length, 7)]).unwrap();
    let send = pair.a.isend(pair.to_b, from.outgoing(0, length, 7)).unwrap();
    assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
    assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    into.verify(0, length, 5);
    assert!(way.changed() > 0, "nothing was changed");
    let views = pair.views(0);
    assert!(views.iter().any(|view| view.code == libc::EBADMSG), "{views:?}");
    pair.hello();
}

/// Without sums it arrives as it was changed.
#[test]
fn payload_that_is_changed_is_sent_again() {
    crosses(LONG, Change::Payload, Change::Nothing);
}

#[test]
fn length_and_line_that_are_changed_fail_their_rail_at_once() {
    crosses(64, Change::Length, Change::Nothing);
    crosses(LONG, Change::Nothing, Change::Lines);
}

#[test]
fn only_rail_whose_bytes_are_changed_ends_its_connection_by_name() {
    let mut pair = pair(1);
    (0..10_000).for_each(|_| pair.progress());
    let way = swap(pair.a.lane_socket(pair.to_b, 0).expect("an open rail"), true);
    let [from, into] = [&pair.a, &pair.b].map(|node| Memory::new(node, Place::Private, LONG));
    way.out.set(Change::Payload);
    let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LONG, 7)]).unwrap();
    pair.a.isend(pair.to_b, from.outgoing(0, LONG, 7)).unwrap();
    let error = wait_both(&mut pair.b, &mut pair.a, receive).result.unwrap_err();
    assert_eq!(error, RequestError::Fabric(libc::EBADMSG));
    assert!(way.changed() > 0, "nothing was changed");
}
