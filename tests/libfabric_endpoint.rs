//! Connections of whole endpoints over libfabric: every byte compared, while rails work, break and
//! come back. Over the software providers of Debian's library, and over the strict fabric, which
//! stops the test at any misuse.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod libfabric_support;

use crosstie::base::slab::Handle;
use crosstie::host::endpoint::{Closing, ConnectionRail};
use crosstie::host::log::{Level, sink_set};
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::libfabric::survey::survey;
use crosstie::provider::libfabric::{Config, OpenError};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{LaneView, RequestError};
use host_support::exchange::Exchange;
use host_support::flow::Flow;
use host_support::pair::{Pair, alone, disconnect_both};
use host_support::{Memory, Node, Place, Watch, roles, small, wait_both};
use libfabric_support::{Layout, skip, strict};
use std::ffi::CString;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an endpoint is told of libfabric.
#[derive(Copy, Clone)]
struct Wish<'a> {
    library: &'a str,
    provider: &'a str,
    domains: &'a str,
}

const RXM: Wish = Wish { library: "", provider: "tcp;ofi_rxm", domains: "lo" };

/// Providers that carry two endpoints of one process.
const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "tcp"];

/// Whether the library has a provider; says so where not.
fn has(provider: &str) -> bool {
    let name = CString::new(provider).unwrap();
    let config = Config { provider: Some(&name), ..Config::DEFAULT };
    match survey(&config) {
        Ok(found) if found.offers.iter().any(|offer| offer.provider == provider) => true,
        Ok(_) => {
            println!("SKIP: this libfabric has no {provider}");
            false
        }
        Err(error @ (OpenError::Library(_) | OpenError::NoOffer)) => {
            skip(&error.to_string());
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// An endpoint of so many rails at most.
fn open(rails_max: u32, wish: Wish) -> Node {
    Node::open(&options(rails_max, wish))
}

/// What it is opened with; the rest is in the environment.
fn options(rails_max: u32, wish: Wish) -> Options {
    let mut options = Options { device: DeviceKind::Host, ..small(2) };
    options.limits.rails_max = rails_max;
    for (name, value) in [
        ("CROSSTIE_RAILS", "libfabric"),
        ("CROSSTIE_SOCKET_IFNAME", "=lo"),
        ("CROSSTIE_OFI_LIBRARY", wish.library),
        ("CROSSTIE_OFI_PROVIDER", wish.provider),
        ("CROSSTIE_OFI_DOMAINS", wish.domains),
        ("CROSSTIE_LOG", "info"),
    ] {
        host_support::set(name, value);
    }
    options
}

/// Two endpoints with a libfabric rail for each domain, behind rail 0, which is TCP.
fn pair(wishes: [Wish; 2]) -> Pair {
    pair_of(alone(), wishes)
}

fn pair_of(alone: MutexGuard<'static, ()>, wishes: [Wish; 2]) -> Pair {
    let count = |wish: &Wish| wish.domains.split(',').count() as u32;
    let rails = count(&wishes[0]).min(count(&wishes[1])) + 1;
    let [a, b] = wishes.map(|wish| open((count(&wish) + 1).next_power_of_two(), wish));
    Pair::of(alone, a, b, rails as u8)
}

#[test]
fn payload_of_a_connection_goes_over_libfabric() {
    for provider in PROVIDERS {
        if !has(provider) {
            continue;
        }
        println!("over {provider}");
        let mut pair = pair([Wish { provider, ..RXM }; 2]);
        let to_b = pair.to_b;
        assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Libfabric));
        let mut flows = pair.flows(Place::Private);
        pair.settle(&mut flows);
        pair.carries(&mut flows, "libfabric");
        let [local, remote] =
            pair.a.rail_view(to_b, 1).unwrap().unwrap().ends.map(|it| it.to_string());
        let address = local.strip_prefix(&format!("{provider} lo ")).expect("the NIC");
        for address in [address, &remote] {
            let address: SocketAddr = address.parse().expect("an address");
            assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
        }
        pair.close();
    }
}

#[test]
fn two_rails_share_the_payload_and_one_that_breaks_costs_no_message() {
    if has(RXM.provider) {
        two_rails_break(Wish { domains: "lo,lo", ..RXM });
    }
}

/// In the guest of tests/vm: queue pairs of soft-RoCE.
#[test]
fn two_rails_of_verbs_break_and_come_back() {
    if std::env::var_os("XTIE_VM").is_none() {
        return println!("SKIP: RDMA devices are in the guest of tests/vm alone");
    }
    two_rails_break(Wish { provider: "verbs;ofi_rxm", domains: "rxe0,rxe1", ..RXM });
}

fn two_rails_break(wish: Wish) {
    let mut pair = pair([wish; 2]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = [1, 2].map(|lane| pair.bytes(lane));
    pair.flow_until(&mut flows, "bytes on both rails", |pair, _| {
        [1u8, 2].iter().zip(&before).all(|(lane, before)| {
            pair.bytes(*lane).iter().zip(before).all(|(now, before)| now - before > 200_000)
        })
    });
    for round in 0..6 {
        let lane = 1 + round % 2;
        let before = pair.views(lane);
        let to_b = pair.to_b;
        pair.a.lane_break(to_b, lane);
        pair.flow_until_back(&mut flows, lane, before[0].generation);
        for (before, after) in before.iter().zip(pair.views(lane)) {
            assert!(after.stats.failures > before.stats.failures, "{after:?}");
            assert!(after.stats.joins > before.stats.joins, "{after:?}");
        }
    }
    pair.flow(&mut flows, 16);
    pair.close();
}

/// The strict fabric as an endpoint is told of it, a rail for each of the domains.
fn strict_wish(provider: &'static str, rails: usize) -> Option<Wish<'static>> {
    // an older `efa` reaches its own host another way
    let layout = if provider == "efa" { Layout::Two } else { Layout::One };
    let library = strict(layout)?.to_str().unwrap();
    let domains = [
        "strict0",
        "strict0,strict0",
        "strict0,strict0,strict0",
        "strict0,strict0,strict0,strict0",
    ][rails - 1];
    Some(Wish { library, provider, domains })
}

/// `cxi` may not loop back.
#[test]
fn peers_of_one_host_get_no_rail_that_may_not_reach_them() {
    let Some(wish) = strict_wish("cxi", 1) else { return };
    let alone = alone();
    let [a, b] = [wish; 2].map(|wish| open(2, wish));
    let mut pair = Pair::of(alone, a, b, 1);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 32);
    assert_eq!(pair.a.connection_rail(pair.to_b), Some(ConnectionRail::Tcp));
    assert!(pair.view(0, 1).is_none());
    pair.close();
}

#[test]
fn both_scopes_carry_one_to_four_rails_without_a_misuse() {
    // bound to endpoints, with words, with short words, without words; bound to domains
    for provider in [
        "strict",
        "strict-short",
        "strict-silent",
        "strict-domain",
        // as that of a NIC (`cxi` reaches no port of its own host); words that are refused with
        // their writes; no order at all
        "efa",
        "strict-wordless",
        "strict-shuffled",
    ] {
        for rails in 1..=4 {
            let Some(wish) = strict_wish(provider, rails) else { return };
            println!("{rails} rails over {provider}");
            let mut pair = pair([wish; 2]);
            exchange(&mut pair, rails);
            let mut flows = pair.flows(Place::Private);
            pair.settle(&mut flows);
            let before: Vec<_> = (1..=rails as u8).map(|lane| pair.bytes(lane)).collect();
            pair.flow(&mut flows, 48);
            // how messages fall to rails is a matter of time
            pair.flow_until(&mut flows, "bytes on every rail", |pair, _| {
                (1..).zip(&before).all(|(lane, before)| {
                    pair.bytes(lane).iter().zip(before).all(|(now, before)| now > before)
                })
            });
            for lane in 1..=rails as u8 {
                let (to_b, before) = (pair.to_b, pair.views(lane)[0].generation);
                pair.a.lane_break(to_b, lane);
                pair.flow_until_back(&mut flows, lane, before);
            }
            pair.close();
        }
    }
}

/// Groups with tags, before and behind their receives, and long messages, both ways at once, as
/// soon as so many rails are up.
fn exchange(pair: &mut Pair, rails: usize) {
    const ROUNDS: u64 = 16;
    let Pair { a, b, to_b, to_a, .. } = pair;
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for (side, node, connection) in [(0, a, *to_b), (1, b, *to_a)] {
            let done = &done;
            scope.spawn(move || {
                let exchange = Exchange::new(node, connection, side, Place::Private);
                exchange.run(node, 3, 5);
                let watch = Watch::start();
                let is_up = |view: LaneView| view.state == LaneState::Up;
                for lane in 1..=rails as u8 {
                    while !node.lane_view(connection, lane).is_some_and(is_up) {
                        node.progress();
                        watch.look("a rail of libfabric");
                    }
                }
                exchange.run(node, ROUNDS, 7);
                done.fetch_add(1, Ordering::Relaxed);
                while done.load(Ordering::Relaxed) < 2 {
                    node.progress(); // what the other side still waits for
                    watch.look("the other side's end");
                }
                exchange.release(node);
            });
        }
    });
}

/// The two lines of a region's cell never both found room here.
#[test]
fn provider_that_refuses_every_second_post_carries_all_the_same() {
    let Some(wish) = strict_wish("strict-again", 2) else { return };
    let mut pair = pair([wish; 2]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.flow(&mut flows, 32);
    for lane in [1, 2] {
        let (to_b, before) = (pair.to_b, pair.views(lane)[0].generation);
        pair.a.lane_break(to_b, lane);
        pair.flow_until_back(&mut flows, lane, before);
    }
    pair.close();
}

#[test]
fn memory_is_given_back_at_once_and_forgotten_when_the_peer_polls() {
    const LENGTH: usize = 300_000;
    // more than there are places for regions
    const ROUNDS: u64 = 200;
    for provider in ["strict", "strict-domain"] {
        let Some(wish) = strict_wish(provider, 2) else { return };
        let mut pair = pair([wish; 2]);
        for round in 0..ROUNDS {
            let Pair { a, b, to_b, to_a, .. } = &mut pair;
            let out = Memory::new(a, Place::Private, LENGTH);
            let into = Memory::new(b, Place::Private, LENGTH);
            out.fill(0, LENGTH, round);
            let receive = b.irecv(*to_a, &[into.incoming(0, LENGTH, 3)]).unwrap();
            let send = a.isend(*to_b, out.outgoing(0, LENGTH, 3)).unwrap();
            assert_eq!(wait_both(b, a, receive).result, Ok(()));
            assert_eq!(wait_both(a, b, send).result, Ok(()));
            into.verify(0, LENGTH, round);
            // the writer holds what it was told, and is not asked before it polls again
            into.release(b);
            out.release(a);
        }
        let bytes = [1, 2].map(|lane| pair.bytes(lane)[0]);
        println!("{provider}: {bytes:?} bytes over libfabric of {}", ROUNDS * LENGTH as u64);
        assert!(bytes[0] + bytes[1] > ROUNDS * LENGTH as u64 / 2, "{bytes:?}");
    }
}

#[test]
fn sides_with_unlike_numbers_of_rails_use_what_both_have() {
    for provider in ["strict", "strict-domain", "strict-short"] {
        for (near, far) in [(1, 3), (4, 2), (3, 1)] {
            let wishes = [near, far].map(|rails| strict_wish(provider, rails));
            let [Some(a), Some(b)] = wishes else { return };
            let mut pair = pair([a, b]);
            exchange(&mut pair, near.min(far));
            let mut flows = pair.flows(Place::Private);
            pair.settle(&mut flows);
            pair.flow(&mut flows, 32);
            for side in [0, 1] {
                let lanes = (0..8).filter(|lane| pair.view(side, *lane).is_some()).count();
                assert_eq!(lanes, near.min(far) + 1);
            }
            pair.close();
        }
    }
}

#[test]
fn nics_that_fail_again_and_again_are_opened_anew_and_cost_no_message() {
    nics_fail("strict-overrun");
}

/// Memory that the provider refuses then would be there for nobody: messages ended with errors.
#[test]
fn nics_that_refuse_memory_when_they_come_back_are_tried_again_and_cost_no_message() {
    nics_fail("strict-regrets");
}

/// Their failure belongs to no op.
#[test]
fn nics_that_fail_beside_the_completion_queue_are_opened_anew_and_cost_no_message() {
    nics_fail("strict-beside");
}

/// Theirs belongs to no op either, and is in the completion queue.
#[test]
fn nics_whose_device_dies_are_opened_anew_and_cost_no_message() {
    nics_fail("strict-dies");
}

/// The provider fails after each hundred completions.
fn nics_fail(provider: &'static str) {
    let Some(wish) = strict_wish(provider, 2) else { return };
    let mut pair = pair([wish; 2]);
    let mut flows = pair.flows(Place::Private);
    let goal = 4;
    pair.flow_until(&mut flows, "both rails to come back", |pair, _| {
        [1, 2].iter().all(|lane| pair.views(*lane).iter().all(|view| view.stats.joins > goal))
    });
    for lane in [1, 2] {
        for view in pair.views(lane) {
            assert!(view.stats.failures >= goal && view.stats.bytes > 0, "{view:?}");
        }
    }
    pair.flow(&mut flows, 32);
    pair.close();
}

/// One end of a connection.
type End = (Node, Handle);

/// Tries something over several providers at once, because each waits for seconds. Endpoints are
/// opened one after another, since the environment says over what. What was said meanwhile.
fn at_once(wishes: &[Wish<'static>], act: fn(End, End)) -> Vec<String> {
    let mut turn = alone();
    let hearing = Hearing::start();
    let mut pairs = Vec::new();
    for wish in wishes {
        if has(wish.provider) {
            println!("over {}", wish.provider);
            let (ends, alone) = pair_of(turn, [*wish; 2]).into_ends();
            turn = alone;
            pairs.push(ends);
        }
    }
    std::thread::scope(|scope| {
        for [a, b] in pairs {
            scope.spawn(move || act(a, b));
        }
    });
    let said = hearing.end();
    drop(turn);
    said
}

fn wishes() -> [Wish<'static>; 2] {
    PROVIDERS.map(|provider| Wish { provider, ..RXM })
}

#[test]
fn connection_closes_although_its_peer_does_not_poll() {
    at_once(&[RXM], |(mut a, to_b), (mut b, to_a)| {
        // nobody else uses the endpoint, which is closed in place of the word that does not come
        a.disconnect(to_b);
        b.disconnect(to_a);
        let (to_b, to_a) = host_support::joined(&mut a, &mut b);
        let is_up = |node: &Node, connection| {
            node.lane_view(connection, 1).is_some_and(|view: LaneView| view.state == LaneState::Up)
        };
        let mut flows =
            [(&a, to_b), (&b, to_a)].map(|(node, to)| Flow::new(node, to, Place::Private));
        let watch = Watch::start();
        // messages bring rails up
        while !is_up(&a, to_b) || !is_up(&b, to_a) || flows.iter().any(|it| it.received < 16) {
            flows[0].step(&mut a);
            flows[1].step(&mut b);
            watch.look("messages, and a rail of libfabric");
        }
        disconnect_both((&mut a, to_b), (&mut b, to_a));
        a.close();
        b.close();
    });
}

/// A library that tells of the end of ops that nobody posted is told of, once, and harms nothing.
#[test]
fn library_that_makes_completions_up_is_told_of_once() {
    let Some(wish) = strict_wish("strict-strange", 1) else { return };
    let turn = alone();
    let hearing = Hearing::start();
    let (ends, turn) = pair_of(turn, [wish; 2]).into_ends();
    let [(mut a, to_b), (mut b, to_a)] = ends;
    let (from, into) = (Memory::new(&a, Place::Private, 64), Memory::new(&b, Place::Private, 64));
    let watch = Watch::start();
    for _ in 0..100 {
        let receive = b.irecv(to_a, &[into.incoming(0, 64, 1)]).unwrap();
        let send = a.isend(to_b, from.outgoing(0, 64, 1)).unwrap();
        assert_eq!(wait_both(&mut a, &mut b, send).result, Ok(()));
        assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()));
        watch.look("messages beside completions that are made up");
    }
    disconnect_both((&mut a, to_b), (&mut b, to_a));
    from.release(&a);
    into.release(&b);
    let said = hearing.end();
    let count =
        said.iter().filter(|text| text.contains("operations that were never posted")).count();
    assert!((1..=2).contains(&count), "once of each end at most: {said:?}");
    drop(turn);
}

/// A provider that cuts the words of writes kept long messages waiting for ever.
#[test]
fn provider_that_cuts_words_is_told_of_and_carries_messages_all_the_same() {
    let Some(wish) = strict_wish("strict-cut", 1) else { return };
    let turn = alone();
    let hearing = Hearing::start();
    let mut pair = pair_of(turn, [wish; 2]);
    let mut flows = pair.flows(Place::Private);
    pair.flow(&mut flows, 64);
    pair.flow_until(&mut flows, "the rail to come back", |pair, _| {
        pair.views(1).iter().any(|view| view.stats.failures > 0)
            && pair.views(1).iter().all(|view| view.state == LaneState::Up)
    });
    let before = pair.bytes(1);
    pair.flow_until(&mut flows, "long messages over it", |pair, _| {
        pair.bytes(1).iter().zip(&before).all(|(now, before)| now - before > 200_000)
    });
    let turn = close_in_turn(pair);
    let said = hearing.end();
    drop(turn);
    let lines = said.iter().filter(|text| text.contains("but delivers 4 bytes"));
    let lines: Vec<_> = lines.collect();
    assert!((1..=2).contains(&lines.len()), "once of each end at most: {said:?}");
    assert!(lines[0].contains(wish.provider), "{lines:?}");
}

/// Lines that have these words.
fn with(said: &[String], words: &str) -> usize {
    said.iter().filter(|text| text.contains(words)).count()
}

/// What is said while messages flow between two ends, until that is said and for so long after.
fn flows_behind(words: &str, time: Duration, wishes: [Wish; 2]) -> Vec<String> {
    let turn = alone();
    let hearing = Hearing::start();
    let [mut a, mut b] = wishes.map(|wish| open(2, wish));
    let ends = host_support::joined(&mut a, &mut b);
    let mut pair = Pair::joined(turn, a, b, ends);
    let mut flows = pair.flows(Place::Private);
    let watch = Watch::start();
    while with(&hearing.so_far(), words) == 0 {
        pair.flow(&mut flows, 8);
        watch.look(words);
    }
    let start = Instant::now();
    while start.elapsed() < time {
        pair.flow(&mut flows, 8);
    }
    let turn = close_in_turn(pair);
    let said = hearing.end();
    drop(turn);
    said
}

#[test]
fn closing_waits_for_no_offer_that_its_peer_does_not_poll_for() {
    const LENGTH: usize = 300_000;
    let said = at_once(&wishes(), |(mut a, to_b), _b| {
        let into = Memory::new(&a, Place::Private, LENGTH);
        a.irecv(to_b, &[into.incoming(0, LENGTH, 3)]).unwrap();
        a.disconnect(to_b);
        into.release(&a);
    });
    assert!(!said.iter().any(|text| text.contains("may be lost")), "{said:?}");
}

#[test]
fn send_ends_well_although_its_sender_polls_again_when_its_receiver_closes() {
    for provider in PROVIDERS {
        if !has(provider) {
            continue;
        }
        println!("over {provider}");
        let turn = alone();
        // a close does not wait for ever: for so long that this machine may stand still meanwhile
        host_support::set(TIMEOUT, "86400000");
        let mut pair = pair_of(turn, [Wish { provider, ..RXM }; 2]);
        host_support::unset(TIMEOUT);
        let mut tries = 0;
        while !closes_upon_a_send(&mut pair) {
            tries += 1;
            assert!(tries < 20, "the receiver never had anything under way");
            pair.reconnect(2);
        }
        pair.close();
    }
}

const TIMEOUT: &str = "CROSSTIE_PEER_TIMEOUT_MS";

/// Whether the receiver of a message waits for what its sender is still to hear, which does not
/// poll: for longer than for what no request waits for. Its last line may have reached that before
/// it closes.
fn closes_upon_a_send(pair: &mut Pair) -> bool {
    const LENGTH: usize = 300_000;
    const LONGER: Duration = Duration::from_secs(1);
    let Pair { a, b, to_b, to_a, .. } = pair;
    let (out, into) =
        (Memory::new(b, Place::Private, LENGTH), Memory::new(a, Place::Private, LENGTH));
    out.fill(0, LENGTH, 5);
    let receive = a.irecv(*to_b, &[into.incoming(0, LENGTH, 3)]).unwrap();
    let send = b.isend(*to_a, out.outgoing(0, LENGTH, 3)).unwrap();
    assert_eq!(wait_both(a, b, receive).result, Ok(()));
    into.verify(0, LENGTH, 5);
    // with nothing under way it may wait for something else
    let mut waits = a.connection_close(*to_b) == Closing::Again && a.is_lingering(*to_b);
    let since = Instant::now();
    let mut is_longer = false;
    while waits && !is_longer {
        // before the call, so that the last one comes when it is
        is_longer = since.elapsed() > LONGER;
        waits = a.connection_close(*to_b) == Closing::Again;
        assert_eq!(waits, a.is_lingering(*to_b), "after {:?}", since.elapsed());
    }
    let watch = Watch::start();
    let mut sent = None;
    while a.connection_close(*to_b) == Closing::Again || sent.is_none() {
        sent = sent.or_else(|| b.test(send).expect("a live request"));
        b.progress(); // its word is waited for
        watch.look("the end of a send and of its connection");
    }
    assert_eq!(sent.unwrap().result, Ok(()));
    out.release(b);
    into.release(a);
    waits
}

#[test]
fn rails_of_a_connection_that_its_peer_closes_are_not_told_of_as_lost() {
    let known = PROVIDERS.into_iter().filter(|it| has(it));
    let known = known.map(|provider| Wish { provider, ..RXM });
    for wish in known {
        let provider = wish.provider;
        println!("over {provider}");
        let mut pair = pair([wish; 2]);
        let Pair { a, b, to_b, to_a, .. } = &mut pair;
        let into = Memory::new(b, Place::Private, 64);
        let receive = b.irecv(*to_a, &[into.incoming(0, 64, 3)]).unwrap();
        let said = said_while(|| {
            let watch = Watch::start();
            let mut ended = None;
            while a.connection_close(*to_b) == Closing::Again || ended.is_none() {
                ended = ended.or_else(|| b.test(receive).expect("a live request"));
                watch.look("the end of a connection");
            }
            assert_eq!(ended.unwrap().result, Err(RequestError::PeerClosed));
        });
        assert!(!said.iter().any(|text| text.contains("was lost")), "{said:?}");
        for lane in 0..2 {
            let view = b.rail_view(*to_a, lane).expect("a connection").expect("a rail").lane;
            let counted = (view.stats.failures, view.code);
            assert_eq!(counted, (0, 0), "rail {lane} over {provider}");
        }
        into.release(b);
    }
}

#[test]
fn missing_library_is_a_line_and_hosts_talk_over_tcp() {
    let _alone = alone();
    for wish in [
        Wish { library: "libnone-such.so.9", ..RXM },
        Wish { provider: "none-such", ..RXM },
        Wish { domains: "none-such", ..RXM },
    ] {
        let said = said_while(|| {
            let (mut a, mut b) = (open(2, wish), open(2, wish));
            let (to_b, _) = host_support::joined(&mut a, &mut b);
            assert_eq!(a.connection_rail(to_b), Some(ConnectionRail::Tcp));
        });
        let lines: Vec<_> = said.iter().filter(|text| text.contains("no libfabric rail")).collect();
        assert_eq!(lines.len(), 2, "one for each endpoint: {said:?}");
        assert!(lines.iter().all(|line| line.contains("hosts talk over TCP")), "{lines:?}");
        println!("{}", lines[0]);
        if !wish.library.is_empty() {
            assert!(lines[0].contains("libnone-such.so.9 (CROSSTIE_OFI_LIBRARY)"), "{lines:?}");
        }
    }
    let Some(wish) = strict_wish("strict", 1) else { return };
    let said = said_while(|| drop(open(2, Wish { domains: "strict0,none-such", ..wish })));
    let is_it = |text: &String| text.contains("CROSSTIE_OFI_DOMAINS") && text.contains("none-such");
    assert!(said.iter().any(is_it), "{said:?}");
}

/// Nobody could have it so: it was a warning, and hosts talked over TCP.
#[test]
fn endpoint_that_must_have_libfabric_is_opened_with_it_alone() {
    let _alone = alone();
    let open = |wish, rails| {
        host_support::set("CROSSTIE_RAILS_REQUIRED", "libfabric");
        let (options, mut result) = (options(2, wish), None);
        host_support::set("CROSSTIE_RAILS", rails);
        let said = said_while(|| result = Some(Node::try_open(&options).map(drop)));
        host_support::unset("CROSSTIE_RAILS_REQUIRED");
        (result.unwrap(), said)
    };
    let missing = Wish { library: "libnone-such.so.9", ..RXM };
    for (wish, rails, word) in [
        (missing, "libfabric", "which cannot be used here; the endpoint is not opened"),
        (RXM, "tcp", "which CROSSTIE_RAILS or the device leaves out"),
    ] {
        let (result, said) = open(wish, rails);
        assert_eq!(result, Err(crosstie::host::OpenError::Required));
        let text = format!("CROSSTIE_RAILS_REQUIRED names libfabric, {word}");
        assert!(said.iter().any(|line| line.contains(&text)), "{said:?}");
    }
    if has(RXM.provider) {
        assert_eq!(open(RXM, "shm,tcp,libfabric").0, Ok(()));
    }
}

/// The second naming of a domain was left out without a word, and so was what `rails_max` has no
/// room for.
#[test]
fn domains_that_are_left_out_are_named_in_one_line() {
    let _alone = alone();
    let Some(wish) = strict_wish("strict", 1) else { return };
    let lines = |rails_max, count| {
        let domains = vec!["strict0"; count].join(",");
        let said = said_while(|| drop(open(rails_max, Wish { domains: &domains, ..wish })));
        let is_it = |text: &String| text.contains("libfabric's strict strict0");
        said.into_iter().filter(is_it).collect::<Vec<_>>()
    };
    assert_eq!(lines(8, 7), [] as [String; 0]);
    let said = lines(8, 9);
    let names = "leaves out libfabric's strict strict0, libfabric's strict strict0 (";
    assert!(said.len() == 1 && said[0].contains(names), "{said:?}");
    let said = lines(2, 3);
    let names = "leave out libfabric's strict strict0, libfabric's strict strict0 (CROSSTIE_OFI";
    assert!(said.len() == 1 && said[0].contains(names), "{said:?}");
    assert!(said[0].starts_with("connections have 2 rails at most (rails_max)"), "{said:?}");
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps what is said to people. Begins and ends within a test's turn: there is one place in a
/// process where it is kept, and it would have lines of other tests.
struct Hearing;

impl Hearing {
    fn start() -> Hearing {
        fn keep(_: usize, _: Level, text: &str) {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_string());
        }
        // of a test that failed while it heard
        SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
        sink_set(Some((keep, 0)));
        Hearing
    }

    fn so_far(&self) -> Vec<String> {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(self) -> Vec<String> {
        sink_set(None);
        std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Closes a pair, and keeps the test's turn.
fn close_in_turn(pair: Pair) -> MutexGuard<'static, ()> {
    let ([(mut a, to_b), (mut b, to_a)], turn) = pair.into_ends();
    disconnect_both((&mut a, to_b), (&mut b, to_a));
    a.close();
    b.close();
    turn
}

/// What was said to people meanwhile.
fn said_while(act: impl FnOnce()) -> Vec<String> {
    let hearing = Hearing::start();
    act();
    hearing.end()
}

/// Keys are told in two lines, which a rail with room for one at a time never takes together.
#[test]
fn room_for_one_line_at_a_time_is_enough() {
    for provider in ["strict-again", "strict-again-unordered"] {
        let Some(wish) = strict_wish(provider, 1) else { return };
        let mut pair = pair([wish; 2]);
        let mut flows = pair.flows(Place::Private);
        pair.settle(&mut flows);
        pair.carries(&mut flows, provider);
        pair.close();
    }
}

/// libfabric's shm takes one confirmed write of each peer at a time.
#[test]
fn long_messages_of_two_processes_go_over_shm_whose_rail_breaks_and_comes_back() {
    let _alone = alone();
    if !has("shm") {
        return;
    }
    let mut child = roles::start("exchange", &[]);
    let mut node = open(2, SHM);
    let (listener, handle) = node.shared.listen().unwrap();
    child.line.say(&handle);
    let connection = node.accepted(listener);
    assert_eq!(node.connection_rail(connection), Some(ConnectionRail::Libfabric));
    rail_comes_up(&mut node, connection, 0);
    let exchange = Exchange::new(&node, connection, 0, Place::Private);
    exchange.run(&mut node, EXCHANGES, 7);
    let before = node.lane_view(connection, 1).expect("a rail of libfabric");
    assert!(before.stats.bytes > 0, "{before:?}");
    node.lane_break(connection, 1);
    exchange.run(&mut node, EXCHANGES, 9);
    let watch = Watch::start();
    let is_back = |node: &Node| {
        let view = node.lane_view(connection, 1).expect("a rail of libfabric");
        view.state == LaneState::Up && view.generation > before.generation
    };
    while !is_back(&node) {
        node.progress();
        watch.look("the rail to come back");
    }
    exchange.release(&node);
    // first, while the other side polls: shm of 1.17 ends a process whose peer closes first
    node.disconnect(connection);
    node.close();
    child.kill();
}

const EXCHANGES: u64 = 60;
const SHM: Wish = Wish { library: "", provider: "shm", domains: "shm" };

/// Messages bring the rails up; their memory is not what is told of later.
fn rail_comes_up(node: &mut Node, connection: Handle, side: u64) {
    let first = Exchange::new(node, connection, side, Place::Private);
    first.run(node, 3, 5);
    let watch = Watch::start();
    let is_up = |view: LaneView| view.state == LaneState::Up;
    while !node.lane_view(connection, 1).is_some_and(is_up) {
        node.progress();
        watch.look("a rail of libfabric");
    }
    first.release(node);
}

/// The other side of an exchange.
fn role_exchange() {
    let mut line = roles::line();
    let mut node = open(2, SHM);
    let handle = line.hear::<128>();
    let attempt = node.shared.connect(&handle).unwrap();
    let connection = node.connected(attempt).unwrap();
    rail_comes_up(&mut node, connection, 1);
    let exchange = Exchange::new(&node, connection, 1, Place::Private);
    for seed in [7, 9] {
        exchange.run(&mut node, EXCHANGES, seed);
    }
    loop {
        node.progress(); // until it is killed
    }
}

#[test]
fn role() {
    roles::take(&[("flow", role_flow), ("exchange", role_exchange)]);
}

/// A peer whose messages flow until it is killed.
fn role_flow() {
    let mut line = roles::line();
    let (provider, domains) = (line.hear_text(), line.hear_text());
    let mut node = open(2, Wish { provider: &provider, domains: &domains, ..RXM });
    let mut flow = Flow::with_parent(&mut node, &mut line);
    loop {
        flow.step(&mut node);
        assert!(!flow.failed(), "the parent lives");
    }
}

#[test]
fn peer_that_is_killed_ends_every_request_by_name() {
    let _alone = alone();
    for provider in PROVIDERS {
        if has(provider) {
            println!("over {provider}");
            peer_is_killed(Wish { provider, ..RXM });
        }
    }
}

/// In the guest of tests/vm.
#[test]
fn verbs_peer_that_is_killed_ends_every_request_by_name() {
    if std::env::var_os("XTIE_VM").is_none() {
        return println!("SKIP: RDMA devices are in the guest of tests/vm alone");
    }
    let _alone = alone();
    peer_is_killed(Wish { provider: "verbs;ofi_rxm", domains: "rxe0", ..RXM });
}

fn peer_is_killed(wish: Wish) {
    let mut node = open(2, wish);
    // at once, because most of their time is libfabric's own start
    let mut children = [(); 3].map(|()| {
        let mut child = roles::start("flow", &[]);
        child.line.say_text(wish.provider);
        child.line.say_text(wish.domains);
        child
    });
    for (round, child) in children.iter_mut().enumerate() {
        let (listener, handle) = node.shared.listen().unwrap();
        child.line.say(&handle);
        let connection = node.accepted(listener);
        node.shared.listener_close(listener).unwrap();
        assert_eq!(child.line.hear_number(), 1);
        let mut flow = Flow::new(&node, connection, Place::Private);
        let watch = Watch::start();
        let is_up = |node: &Node| {
            let view = node.lane_view(connection, 1).expect("a rail of libfabric");
            view.state == LaneState::Up && view.stats.bytes > 0
        };
        while flow.received < 16 << round || !is_up(&node) {
            flow.step(&mut node);
            assert!(!flow.failed(), "{:?} {:?}", flow.refused, flow.errors);
            watch.look("messages");
        }
        child.kill();
        flow.end_with_peer(&mut node);
        flow.release(&node);
        node.disconnect(connection);
    }
    node.close();
}
