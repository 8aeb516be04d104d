//! Peers whose sockets have all ended without a silence, as they do when a process dies, and as a
//! network ends them that is reset: over an endpoint that peers share, nothing of such a peer ends
//! before it is known that nothing of it can come any more. Over the strict fabric, which is no
//! part of the network that is taken away.
#![allow(dead_code)] // of the shared parts

#[path = "common/network.rs"]
mod common_network;
mod host_support;
mod libfabric_support;
#[path = "common/strict_pair.rs"]
mod strict_pair;

use common_network::{network, sockets_end};
use crosstie::base::ids::RailGeneration;
use crosstie::base::units::{Bytes, Instant, Span};
use crosstie::fabric::{Completion, DownCause, Op, OpId, OpKind, PeerLife, Provider};
use crosstie::host::endpoint::Closing;
use crosstie::provider::libfabric::Libfabric;
use crosstie::transport::RequestError;
use crosstie::transport::rail::LaneState;
use host_support::flow::Flow;
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Watch, joined, wait_both};
use libfabric_support::{
    Layout, NOTHING, OTHER, PEER, World, is_silent, silence, strict, strict_config,
};
use std::time::Duration;
use strict_pair::{apart, options, pair};

const LENGTH: usize = 1 << 20;
/// Polls of a rail, or of an endpoint, that take in whatever there is.
const TAKING: usize = 1000;
/// Longer than any fence waits that time alone lets hold.
const PAST: Duration = Duration::from_secs(30);

/// What is in the memory of a receive: what it was given last, or the peer's message.
const OURS: u64 = 999;
const THEIRS: u64 = 77;

/// Another peer of the first endpoint, on the same rail.
fn beside(pair: &mut Pair) -> Node {
    let mut c = Node::open(&options());
    let (to_c, to_a) = joined(&mut pair.a, &mut c);
    let mut flows = [Flow::new(&pair.a, to_c, Place::Private), Flow::new(&c, to_a, Place::Private)];
    let is_up = |node: &Node, connection| {
        node.lane_view(connection, 1).is_some_and(|view| view.state == LaneState::Up)
    };
    let watch = Watch::start();
    while !(is_up(&pair.a, to_c) && is_up(&c, to_a)) || flows[0].received < 20 {
        flows[0].step(&mut pair.a);
        flows[1].step(&mut c);
        pair.b.progress();
        watch.look("another peer");
    }
    // requests stand on its memory to the end
    std::mem::forget(flows);
    c
}

fn step(node: &mut Node) {
    node.progress();
}

/// A message from the second endpoint to the first.
fn message(pair: &mut Pair, out: &Memory, into: &Memory) {
    let receive = pair.a.irecv(pair.to_b, &[into.incoming(0, LENGTH, 1)]).unwrap();
    let send = pair.b.isend(pair.to_a, out.outgoing(0, LENGTH, 1)).unwrap();
    let Pair { a, b, .. } = pair;
    assert_eq!(wait_both(a, b, receive).result, Ok(()));
    assert_eq!(wait_both(b, a, send).result, Ok(()));
}

/// The peer has posted a write, computes, and lives; all sockets are reset and none can be made.
/// How the receive ends, and that its memory is not written to once it is given back.
fn receive_of_one_that_computes(provider: &str, has_others: bool) -> Option<RequestError> {
    let mut pair = pair(provider)?;
    let mut c = has_others.then(|| beside(&mut pair));
    let library = strict(Layout::One)?;
    let out = Memory::new(&pair.b, Place::Private, LENGTH);
    let into = Memory::new(&pair.a, Place::Private, LENGTH);
    for round in 0..8 {
        out.fill(0, LENGTH, round);
        message(&mut pair, &out, &into);
    }
    out.fill(0, LENGTH, THEIRS);
    silence(library, true);
    let receive = pair.a.irecv(pair.to_b, &[into.incoming(0, LENGTH, 1)]).unwrap();
    let _send = pair.b.isend(pair.to_a, out.outgoing(0, LENGTH, 1)).unwrap();
    let watch = Watch::start();
    while !is_silent(library) {
        pair.progress();
        watch.look("a write");
    }
    (0..50).for_each(|_| pair.progress());
    network(false);
    sockets_end();
    let ended = loop {
        c.iter_mut().for_each(step);
        if let Some(outcome) = pair.a.test(receive).expect("a receive") {
            break outcome.result;
        }
        watch.look("the end of the receive");
    };
    let is_unfenced = ended == Err(RequestError::Unfenced);
    if !is_unfenced {
        into.fill(0, LENGTH, OURS);
    } else {
        assert!(pair.a.shared.deregister(into.region).is_err(), "it may still be written to");
    }
    silence(library, false);
    for _ in 0..TAKING {
        pair.progress();
        c.iter_mut().for_each(step);
    }
    if is_unfenced {
        let watch = Watch::start();
        while pair.a.shared.deregister(into.region).is_err() {
            pair.progress();
            c.iter_mut().for_each(step);
            watch.look("the peer's word");
        }
        into.fill(0, LENGTH, OURS);
        (0..TAKING).for_each(|_| pair.progress());
    }
    into.verify(0, LENGTH, OURS);
    // what stands is no matter of this test, and one side would wait for the other
    let (ends, _alone) = pair.into_ends();
    std::mem::forget((ends, c, out));
    ended.err()
}

/// It ended with the memory of the request given back, and the write came behind.
#[test]
fn receive_of_a_peer_that_computes_ends_when_the_endpoint_was_closed() {
    for provider in ["strict", "strict-domain"] {
        apart(move || {
            let ended = receive_of_one_that_computes(provider, false);
            assert!(matches!(ended, None | Some(RequestError::PeerDied)), "{ended:?}");
        });
    }
}

/// The endpoint is others', too.
#[test]
fn receive_of_a_peer_that_computes_is_unfenced_where_the_endpoint_has_others() {
    apart(|| {
        let ended = receive_of_one_that_computes("strict", true);
        assert!(matches!(ended, None | Some(RequestError::Unfenced)), "{ended:?}");
    });
}

/// Its write is on a path that is silent, and other peers use its endpoint: its close waited for
/// ever, and the receive for more.
#[test]
fn receive_of_a_peer_that_closes_on_a_silent_path_ends() {
    apart(|| {
        host_support::set("CROSSTIE_STALL_MS", "500");
        let Some(mut pair) = pair("strict") else { return };
        let mut c = beside(&mut pair);
        let library = strict(Layout::One).expect("opened above");
        let out = Memory::new(&pair.a, Place::Private, LENGTH);
        let into = Memory::new(&pair.b, Place::Private, LENGTH);
        for round in 0..9 {
            out.fill(0, LENGTH, if round == 8 { THEIRS } else { round });
            silence(library, round == 8);
            let receive = pair.b.irecv(pair.to_a, &[into.incoming(0, LENGTH, 1)]).unwrap();
            let send = pair.a.isend(pair.to_b, out.outgoing(0, LENGTH, 1)).unwrap();
            let watch = Watch::start();
            if round == 8 {
                while !is_silent(library) {
                    pair.progress();
                    watch.look("a write");
                }
                (0..50).for_each(|_| pair.progress());
                let mut is_closed = false;
                let ended = loop {
                    is_closed |= pair.a.connection_close(pair.to_b) != Closing::Again;
                    pair.progress();
                    step(&mut c);
                    if let Some(outcome) = pair.b.test(receive).expect("a receive") {
                        break outcome.result;
                    }
                    watch.look("the end of the receive");
                };
                assert_eq!(ended, Err(RequestError::PeerClosed));
                into.fill(0, LENGTH, OURS);
                silence(library, false);
                while !is_closed {
                    is_closed |= pair.a.connection_close(pair.to_b) != Closing::Again;
                    pair.progress();
                    step(&mut c);
                    watch.look("the close");
                }
                (0..TAKING).for_each(|_| pair.progress());
                into.verify(0, LENGTH, OURS);
            } else {
                let Pair { a, b, .. } = &mut pair;
                assert_eq!(wait_both(b, a, receive).result, Ok(()));
                assert_eq!(wait_both(a, b, send).result, Ok(()));
            }
        }
        let (ends, _alone) = pair.into_ends();
        std::mem::forget((ends, c, out));
    });
}

fn strict_world(provider: &'static std::ffi::CStr) -> Option<World> {
    Some(World::open(&strict_config(Layout::One, provider)?).unwrap())
}

/// Time alone lets no fence hold of a peer that does not answer: its word does.
#[test]
fn fence_of_a_peer_that_computes_waits_for_its_word() {
    let _alone = alone();
    for provider in [c"strict", c"strict-domain"] {
        let Some(mut world) = strict_world(provider) else { return };
        world.join(OTHER, 0x9000);
        assert!(world.exchanges(OTHER));
        world.write_well();
        let write = world.write(0, 4096, 64);
        world.rails[1].peer_fail(PEER, DownCause::Severed);
        let fence = world.fence(1);
        for _ in 0..4 {
            (0..TAKING).for_each(|_| world.poll_side(1));
            world.pass(PAST);
        }
        (0..TAKING).for_each(|_| world.poll_side(1));
        assert!(world.result(1, fence).is_none(), "{provider:?}: it may still write");
        assert!(world.end(1, fence), "{provider:?}: its word has come");
        assert!(world.result(0, write).is_some(), "{provider:?}: nothing of it is under way");
        assert!(world.exchanges(OTHER), "{provider:?}: the other peer is left alone");
    }
}

/// One side of a world whose other side is no more.
struct Widow {
    rail: Libfabric<'static>,
    now: Instant,
    fenced: bool,
}

impl Widow {
    fn poll(&mut self, times: usize) {
        for _ in 0..times {
            let mut out = [NOTHING; 16];
            let count = self.rail.poll(&mut out, Bytes::kib(64), self.now);
            let is_fenced = |it: &Completion| matches!(it, Completion::Fenced { .. });
            self.fenced |= out[..count].iter().any(is_fenced);
        }
    }

    fn pass(&mut self, time: Span) {
        self.now = self.now.after(time);
    }
}

/// Where the library says that nobody is at its address, it is gone, and what it had posted has
/// been taken in.
#[test]
fn fence_of_a_peer_whose_endpoint_is_no_more_holds_without_its_word() {
    let _alone = alone();
    for provider in [c"strict", c"strict-domain", c"strict-again-wordless", c"strict-lingers"] {
        let Some(mut world) = strict_world(provider) else { return };
        world.join(OTHER, 0x9000);
        world.write_well();
        world.fill(0, 0, 64, 0x77);
        world.write(0, 0, 64);
        world.fill(1, 0, 64, 0x11);
        let World { rails: [gone, rail], blocks: [_, block], now, .. } = world;
        drop(gone);
        let mut widow = Widow { rail, now, fenced: false };
        widow.rail.peer_fail(PEER, DownCause::Severed);
        let kind = OpKind::Fence { generation: RailGeneration(1) };
        let fence = Op { id: OpId(7), peer: PEER, kind };
        assert!(widow.rail.post(&fence, widow.now).is_ok());
        widow.poll(TAKING);
        assert!(!widow.fenced, "{provider:?}: it may be on its way");
        for _ in 0..4 {
            widow.pass(Span::millis(3000));
            widow.poll(TAKING);
        }
        assert!(widow.fenced, "{provider:?}: nobody is there");
        assert_eq!(widow.rail.health().reopened, 0, "{provider:?}");
        // SAFETY: the block of that side, which nobody else uses.
        unsafe { block.write(0x22) };
        widow.poll(TAKING);
        // SAFETY: as above.
        assert_eq!(unsafe { block.read() }, 0x22, "{provider:?}: written to behind the fence");
    }
}
