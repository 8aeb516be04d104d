//! Connections whose side band and rail over TCP are lost while a rail of libfabric carries: the
//! peer's program is asked over that, and is not taken for dead. Over the strict fabric, which is
//! no part of the network that is taken away. Each test has that network, and its endpoints, in a
//! thread of its own.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
mod libfabric_support;
#[path = "common/strict_pair.rs"]
mod strict_pair;

use common_network::{listeners_end, network, owe, owed, sockets_end};
use crosstie::transport::{RequestError, RequestId};
use host_support::flow::Flow;
use host_support::pair::Pair;
use host_support::{Memory, Place, Watch};
use std::time::{Duration, Instant};
use strict_pair::{apart, pair};

/// How long TCP is away at least: much longer than a peer may be silent.
const AWAY: Duration = Duration::from_millis(2500);

/// What there is while TCP is away.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Away {
    /// Messages.
    Busy,
    /// No message, and programs that call the library.
    Idle,
    /// Nobody who calls the library.
    Alone,
    /// Messages, and all sockets ended when it began.
    Reset,
}

/// Both ends of that rail carry bytes.
fn carrying(pair: &mut Pair) -> [Flow; 2] {
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 16);
    pair.flow_until(&mut flows, "bytes on the rail", |pair, _| {
        pair.bytes(1).iter().all(|bytes| *bytes > 1 << 22)
    });
    flows
}

/// The first socket of rail 0, at one end.
fn socket(pair: &Pair, side: usize) -> i32 {
    let (node, connection) = pair.side(side);
    node.lane_socket(connection, 0).expect("a socket of rail 0")
}

/// Rail 0 carries what there is while the other is broken, which then comes back, too.
fn rail_0_carries(pair: &mut Pair, flows: &mut [Flow; 2]) {
    let (before, generation) = (pair.bytes(0), pair.views(1)[0].generation);
    let watch = Watch::start();
    while !(0..2).all(|side| pair.bytes(0)[side] > before[side]) {
        if pair.is_up(1) {
            pair.a.lane_break(pair.to_b, 1);
        }
        pair.step(flows);
        watch.look("bytes over rail 0");
    }
    pair.flow_until_back(flows, 1, generation);
}

/// Messages go on while TCP is away, in which rail 0 is lost, and it comes back when TCP does.
fn lose_tcp(provider: &str, away: Away) {
    let Some(mut pair) = pair(provider) else { return };
    let mut flows = carrying(&mut pair);
    network(false);
    // a rail on which nothing is under way is not lost by that
    owe(socket(&pair, 0));
    if away == Away::Reset {
        sockets_end();
    }
    let since = Instant::now();
    while since.elapsed() < AWAY {
        match away {
            Away::Busy | Away::Reset => pair.step(&mut flows),
            Away::Idle => pair.progress(),
            Away::Alone => std::thread::yield_now(),
        }
    }
    pair.flow(&mut flows, 32);
    pair.flow_until(&mut flows, "rail 0 to be lost", |pair, _| {
        pair.views(0).iter().all(|view| view.stats.failures > 0)
    });
    network(true);
    pair.flow_until(&mut flows, "rail 0 to come back", |pair, _| {
        pair.is_up(0) && pair.views(0).iter().all(|view| view.generation > 1)
    });
    assert!(pair.views(1).iter().all(|view| view.stats.failures == 0), "the rail stood");
    rail_0_carries(&mut pair, &mut flows);
    drop(flows);
    pair.close();
}

/// It died with its side band, although its rail carried messages.
#[test]
fn connection_whose_rail_carries_messages_outlives_tcp() {
    apart(|| lose_tcp("strict", Away::Busy));
}

/// Nothing is sent that the peer could answer, unless it is asked something.
#[test]
fn connection_whose_rail_lives_outlives_tcp_without_messages() {
    apart(|| lose_tcp("strict", Away::Idle));
}

/// As between two collectives: there is nobody whom the side band could ask.
#[test]
fn connection_whose_rail_lives_outlives_tcp_while_nobody_calls_the_library() {
    apart(|| lose_tcp("strict", Away::Alone));
}

#[test]
fn connection_whose_rail_lives_outlives_the_end_of_all_its_sockets() {
    apart(|| lose_tcp("strict", Away::Reset));
}

/// It need not be lost, since nothing of it is: its sockets go on where they were.
#[test]
fn rail_of_tcp_on_which_nothing_is_under_way_is_of_use_behind_an_outage() {
    apart(|| {
        let Some(mut pair) = pair("strict") else { return };
        let mut flows = carrying(&mut pair);
        pair.settle(&mut flows);
        pair.flow_until(&mut flows, "the last acknowledgement", |pair, _| {
            [0, 1].iter().all(|side| owed(socket(pair, *side)) == 0)
        });
        network(false);
        let since = Instant::now();
        while since.elapsed() < AWAY {
            pair.step(&mut flows);
        }
        network(true);
        pair.flow_until(&mut flows, "rail 0", |pair, _| pair.is_up(0));
        rail_0_carries(&mut pair, &mut flows);
        drop(flows);
        pair.close();
    });
}

/// The peer was dead when the first dial was refused.
#[test]
fn connection_whose_rail_lives_outlives_dials_that_are_refused() {
    apart(|| {
        let Some(mut pair) = pair("strict") else { return };
        let mut flows = carrying(&mut pair);
        listeners_end();
        sockets_end();
        let since = Instant::now();
        while since.elapsed() < AWAY {
            pair.step(&mut flows);
        }
        pair.flow(&mut flows, 32);
        drop(flows);
        pair.close();
    });
}

/// A receive of the first endpoint, whose end is waited for while the other's program does nothing.
fn receive_of_lonely(pair: &mut Pair, lost: impl FnOnce()) -> Result<(), RequestError> {
    let Pair { a, to_b, .. } = pair;
    let into = Memory::new(a, Place::Private, 64);
    let receive: RequestId = a.irecv(*to_b, &[into.incoming(0, 64, 1)]).expect("a receive");
    lost();
    let outcome = a.wait(receive);
    into.release(a);
    outcome.result
}

/// Its program is nowhere to be heard: as one that has died, whose library still has its endpoint.
#[test]
fn peer_whose_sockets_have_ended_and_whose_program_does_not_answer_is_given_up() {
    apart(|| {
        let Some(mut pair) = pair("strict") else { return };
        let ended = receive_of_lonely(&mut pair, || {
            network(false);
            sockets_end();
        });
        assert!(matches!(ended, Err(RequestError::PeerDied)), "{ended:?}");
        network(true);
        pair.close();
    });
}
