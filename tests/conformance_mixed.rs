//! Shared memory and TCP as one rail keep the contract, on whichever of the two the peer is.

mod common;
#[path = "common/set_pair.rs"]
mod set_pair;

use common::{Pair, Rejoin};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, LocalSpan, Op, OpId, OpKind, PeerLife, Provider, RailKey, RecvSlot, Syscalls,
};
use crosstie::provider::rail_set::{RailSet, Way};
use crosstie::provider::tcp;
use set_pair::{Side, alone, join_rails_shm, join_rails_tcp, join_shm, join_tcp, limits, side};

/// What peer 0 is on.
#[derive(Copy, Clone)]
enum On {
    Shm,
    ShmLane,
    Tcp(usize),
}

fn pair(sides: [Side; 2], on: On) -> Pair<RailSet<'static>> {
    let grounds = sides.each_ref().map(|side| side.ground);
    let rejoin: Rejoin<RailSet<'static>> = Box::new(move |rails| {
        let [a, b] = rails else { panic!("two rails") };
        match on {
            On::Shm | On::ShmLane => join_rails_shm([a, b], grounds, 0),
            On::Tcp(streams) => join_rails_tcp([a, b], 0, streams),
        }
        if let On::ShmLane = on {
            rails.iter_mut().for_each(|rail| rail.peer_is_lane(PeerIndex(0)));
        }
    });
    let providers = sides.map(|side| side.rail).into();
    Pair { providers, peers: [PeerIndex(0); 2], rejoin: Some(rejoin) }
}

#[test]
fn peer_in_shared_memory_finds_every_promise_kept() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&limits(), 1));
        join_shm(&mut sides, 0);
        pair(sides, On::Shm)
    };
    common::run_all(make, SHM_SKIPS);
}

#[test]
fn lane_in_shared_memory_finds_every_promise_kept() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&limits(), 1));
        for side in &mut sides {
            side.rail.lanes_reserve().unwrap();
        }
        join_shm(&mut sides, 0);
        join_tcp(&mut sides, 1, 1);
        for side in &mut sides {
            side.rail.peer_is_lane(PeerIndex(0));
            side.rail.peer_is_lane(PeerIndex(1));
            assert_eq!(side.rail.way(PeerIndex(0)), Some(Way::Shm));
        }
        pair(sides, On::ShmLane)
    };
    common::run_all(make, SHM_SKIPS);
}

/// One message is never released, and many times what the ring holds comes past it; those that find
/// no cell stay in the ring, and are whole.
#[test]
fn ring_of_a_lane_moves_on_past_messages_that_are_held() {
    const LENGTH: usize = 900;
    let mut sides = [(); 2].map(|()| side(&limits(), 1));
    sides.iter_mut().for_each(|side| side.rail.lanes_reserve().unwrap());
    join_shm(&mut sides, 0);
    sides.iter_mut().for_each(|side| side.rail.peer_is_lane(PeerIndex(0)));
    let [from, to] = &mut sides;
    let mut held = vec![];
    for number in 0..2000u64 {
        let byte = number as u8;
        let (head, payload) = ([byte; 32], [byte; LENGTH]);
        // SAFETY: readable for its length until it is posted, which copies it.
        let span =
            unsafe { LocalSpan::new(payload.as_ptr() as u64, Bytes(LENGTH as u64), RailKey(0)) };
        let op =
            Op { id: OpId(number), peer: PeerIndex(0), kind: OpKind::Send { head, payload: span } };
        assert!(from.rail.post(&op, Instant(number)).is_ok(), "message {number}");
        let mut out = [common::NOTHING; 4];
        assert_eq!(to.rail.poll(&mut out, Bytes::kib(64), Instant(number)), 1);
        let Completion::Received { peer, slot, length, .. } = out[0] else { panic!("{out:?}") };
        assert_eq!(length as usize, LENGTH);
        held.push((slot, byte));
        // the first, and some of the newest, stay
        if held.len() > 40 {
            let (slot, byte) = held.remove(1 + number as usize % 39);
            whole(&to.rail, peer, slot, byte);
            to.rail.received_release(peer, slot);
        }
    }
    for (slot, byte) in held {
        whole(&to.rail, PeerIndex(0), slot, byte);
        to.rail.received_release(PeerIndex(0), slot);
    }

    fn whole(rail: &RailSet<'_>, peer: PeerIndex, slot: RecvSlot, byte: u8) {
        let mut bytes = [0; LENGTH];
        rail.received_peek(peer, slot, &mut bytes);
        assert_eq!(bytes, [byte; LENGTH]);
    }
}

/// Shared memory keeps no order between its two rings, nor do several streams. What one rail does
/// not promise, the other still does.
const UNORDERED: usize = 3;
/// And it detaches no peers, and has no longer payloads towards one.
const SHM_SKIPS: usize = UNORDERED + 2;

#[test]
fn peer_on_tcp_finds_every_promise_kept() {
    for (streams, skips) in [(1, 0), (4, UNORDERED)] {
        let make = move || {
            let mut sides = [(); 2].map(|()| side(&limits(), streams));
            join_tcp(&mut sides, 0, streams as usize);
            pair(sides, On::Tcp(streams as usize))
        };
        common::run_all_through_kernel(make, skips);
    }
}

#[test]
fn peer_on_tcp_finds_every_promise_kept_beside_one_in_shared_memory() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&limits(), 1));
        join_tcp(&mut sides, 0, 1);
        join_shm(&mut sides, 1);
        pair(sides, On::Tcp(1))
    };
    common::run_all_through_kernel(make, 0);
}

#[test]
fn peer_in_shared_memory_finds_every_promise_kept_beside_one_on_tcp() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&limits(), 1));
        join_shm(&mut sides, 0);
        join_tcp(&mut sides, 1, 1);
        pair(sides, On::Shm)
    };
    common::run_all(make, SHM_SKIPS);
}

#[test]
fn tcp_alone_keeps_every_promise() {
    let make = || {
        let mut sides = [(); 2].map(|()| side(&alone(), 1));
        join_tcp(&mut sides, 0, 1);
        pair(sides, On::Tcp(1))
    };
    common::run_all_through_kernel(make, 0);
}

/// But for what a poll costs, which goes to all rails.
#[test]
fn each_peer_has_the_promises_of_its_rail() {
    let mut sides = [(); 2].map(|()| side(&limits(), 1));
    join_shm(&mut sides, 0);
    join_tcp(&mut sides, 1, 1);
    let [of_shm, of_tcp] = [0, 1].map(|peer| sides[0].rail.caps(PeerIndex(peer)));
    assert_eq!([of_shm.ordered, of_tcp.ordered], [false, true]);
    assert_eq!(of_shm.send_payload_max, Bytes(limits().shm.send_payload_max.into()));
    assert!(of_tcp.send_payload_max > of_shm.send_payload_max);
    assert!(of_tcp.transfer_max < of_shm.transfer_max);
    assert_eq!([of_shm.syscalls, of_tcp.syscalls], [Syscalls::PerBatch; 2]);
    assert_eq!(of_shm.copy_granule, of_tcp.copy_granule);
}

#[test]
fn peer_is_on_one_rail_until_it_is_closed() {
    let mut sides = [(); 2].map(|()| side(&limits(), 1));
    join_tcp(&mut sides, 0, 1);
    let rail = &mut sides[0].rail;
    let again = rail.peer_open_tcp(PeerIndex(0), &[], false);
    assert_eq!(again, Err(tcp::PeerOpenError::Index));
    assert_eq!(rail.peer_open_tcp(PeerIndex(2), &[], false), Err(tcp::PeerOpenError::Index));
    assert_eq!(rail.peer_open_tcp(PeerIndex(1), &[], false), Err(tcp::PeerOpenError::Streams));
    assert_eq!((rail.way(PeerIndex(1)), rail.way(PeerIndex(2))), (None, None));
    for side in &mut sides {
        assert_eq!(side.rail.peer_close(PeerIndex(0)), Ok(()));
        assert_eq!(side.rail.way(PeerIndex(0)), None);
    }
    join_shm(&mut sides, 0);
}

/// A send of a peer in shared memory and one of a peer on TCP, over and over: both get through,
/// however few events a poll may report.
#[test]
fn neither_rail_starves_the_other() {
    const EACH: usize = 200;
    let mut sides = [(); 2].map(|()| side(&limits(), 1));
    join_shm(&mut sides, 0);
    join_tcp(&mut sides, 1, 1);
    let [from, to] = &mut sides;
    let (mut sent, mut arrived) = ([0; 2], [0usize; 2]);
    let mut furthest_apart = 0;
    for now in 0.. {
        for peer in 0..2u32 {
            let op = common::empty_send(PeerIndex(peer), sent[peer as usize] as u64);
            let posted = sent[peer as usize] < EACH && from.rail.post(&op, Instant(now)).is_ok();
            sent[peer as usize] += usize::from(posted);
        }
        from.rail.poll(&mut [common::NOTHING; 1], Bytes::kib(64), Instant(now));
        let mut out = [common::NOTHING; 1];
        let events = to.rail.poll(&mut out, Bytes::kib(64), Instant(now));
        for event in &out[..events] {
            let Completion::Received { peer, slot, .. } = *event else { panic!("{event:?}") };
            arrived[peer.as_usize()] += 1;
            to.rail.received_release(peer, slot);
        }
        furthest_apart = furthest_apart.max(arrived[0].abs_diff(arrived[1]));
        if arrived == [EACH; 2] {
            break;
        }
        assert!(now < 100_000, "{arrived:?} of {sent:?} arrived");
    }
    assert!(furthest_apart < EACH / 2, "one rail was {furthest_apart} messages ahead");
}
