//! Connections of whole endpoints over rails that the program brings: every byte compared, while
//! they work, break, come back, and while their vendor breaks its promises.
#![allow(dead_code)] // of the shared parts

mod host_support;
mod vendor_support;

use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, MemoryKind};
use crosstie::host::endpoint::ConnectionRail;
use crosstie::host::log::{Level, sink_set};
use crosstie::host::vendor::{VendorRail, VendorRailError, network};
use crosstie::host::{DeviceKind, OpenError, Options};
use crosstie::transport::rail::LaneState;
use crosstie::transport::{Incoming, Outgoing, RequestError};
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Watch, small, wait_both};
use std::sync::{Mutex, PoisonError};
use vendor_support::{Faults, WRONGS, Wire, Wrong};

/// What was said, by the tests of this program that take turns.
static SAID: Mutex<String> = Mutex::new(String::new());

fn keep(_: usize, _: Level, text: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.push_str(text);
    said.push('\n');
}

fn said() -> String {
    std::mem::take(&mut SAID.lock().unwrap_or_else(PoisonError::into_inner))
}

fn open(rails_max: u32, rails: &[VendorRail]) -> Result<Node, OpenError> {
    open_as(DeviceKind::Host, "vendor", rails_max, rails)
}

fn open_as(
    device: DeviceKind,
    names: &str,
    rails_max: u32,
    rails: &[VendorRail],
) -> Result<Node, OpenError> {
    let mut options = Options { device, ..small(2) };
    options.limits.rails_max = rails_max;
    for (name, value) in
        [("CROSSTIE_RAILS", names), ("CROSSTIE_SOCKET_IFNAME", "=lo"), ("CROSSTIE_LOG", "info")]
    {
        host_support::set(name, value);
    }
    sink_set(Some((keep, 0)));
    Node::open_with(&options, rails)
}

/// Two endpoints with a rail for each wire, behind rail 0, which is TCP. The wires come in the
/// order of their lanes, which that of their networks' hashes is.
fn pair(wires: &mut [&'static Wire]) -> Pair {
    let alone = alone();
    said();
    let mut networks: Vec<String> = (0..wires.len()).map(|at| at.to_string()).collect();
    networks.sort_by_key(|name| network(name.as_bytes()));
    let rails = wires.iter().zip(&networks).map(|(wire, on)| wire.rail("acme0", on));
    let rails: Vec<VendorRail> = rails.collect();
    let rails_max = (wires.len() as u32 + 1).next_power_of_two();
    let [a, b] = [(); 2].map(|()| open(rails_max, &rails).expect("an endpoint"));
    Pair::of(alone, a, b, wires.len() as u8 + 1)
}

#[test]
fn payload_of_a_connection_goes_over_the_rail_of_a_vendor() {
    let wire = Wire::new();
    let mut pair = pair(&mut [wire]);
    let to_b = pair.to_b;
    assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Vendor));
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = wire.bytes();
    pair.carries(&mut flows, "the vendor's rail");
    assert!(wire.bytes() - before > 1 << 20, "the vendor was not asked to carry it");
}

#[test]
fn rail_that_breaks_costs_no_message_and_comes_back() {
    let mut wires = [Wire::new(), Wire::new()];
    let mut pair = pair(&mut wires);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    for round in 0..6 {
        let lane = 1 + round % 2;
        let before = pair.views(lane);
        wires[usize::from(lane) - 1].cut();
        pair.flow_until_back(&mut flows, lane, before[0].generation);
        for (before, after) in before.iter().zip(pair.views(lane)) {
            assert!(after.stats.failures > before.stats.failures, "{after:?}");
            assert!(after.stats.joins > before.stats.joins, "{after:?}");
        }
    }
    pair.flow(&mut flows, 16);
}

/// A vendor said of a peer that it had closed, which had not: the rail was neither used nor fenced,
/// and what it carried stood still for ever, although TCP stood.
#[test]
fn rail_whose_peer_has_not_closed_and_is_said_to_have_is_lost() {
    let wire = Wire::new();
    let mut pair = pair(&mut [wire]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let before = pair.views(1);
    wire.close_all();
    pair.flow_until_back(&mut flows, 1, before[0].generation);
    assert!(pair.views(1)[0].stats.failures > before[0].stats.failures);
    pair.flow(&mut flows, 16);
}

/// The system's code for a connection that was reset stood there, and the log told of a stream.
#[test]
fn rail_that_fails_without_a_code_has_none() {
    let wire = Wire::new();
    let mut pair = pair(&mut [wire]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let generation = pair.views(1)[0].generation;
    let _ = said();
    wire.cut_with(0);
    pair.flow_until_back(&mut flows, 1, generation);
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    for view in [pair.a.rail_view(to_b, 1), pair.b.rail_view(to_a, 1)] {
        let lane = view.unwrap().expect("a rail").lane;
        assert!(lane.stats.failures > 0 && lane.code == 0, "{lane:?}");
    }
    let said = said();
    assert!(said.contains("was lost: the provider failed it without a code"), "{said}");
    pair.flow(&mut flows, 16);
}

/// `peer_open` may say that it takes longer; messages go over TCP meanwhile.
#[test]
fn vendor_that_says_not_yet_is_asked_again() {
    let wire = Wire::new();
    wire.fail(Faults { not_yet: 200, ..Faults::default() });
    let mut pair = pair(&mut [wire]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.carries(&mut flows, "the vendor's rail");
}

/// One refusal ended the rail for the life of the connection. It is told of once, and its end too.
#[test]
fn vendor_that_refuses_an_end_is_asked_again() {
    let wire = Wire::new();
    wire.fail(Faults { no_blob: 4, ..Faults::default() });
    let mut pair = pair(&mut [wire]);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    refused_and_granted(&said(), "refused the peer with code 12");
    let before = pair.views(1);
    wire.fail(Faults { no_blob: 3, ..Faults::default() });
    wire.cut();
    pair.flow_until_back(&mut flows, 1, before[0].generation);
    refused_and_granted(&said(), "refused the peer with code 12");
    pair.flow(&mut flows, 64);
}

/// Each of two endpoints, or one of them, has said so, and then that it is over.
fn refused_and_granted(said: &str, why: &str) {
    let refused = said.matches("vendor's rail acme0 opens no new rail").count();
    let granted = said.matches("vendor's rail acme0 opens new rails again").count();
    assert!((1..=2).contains(&refused) && refused == granted && said.contains(why), "{said}");
}

/// What is no answer takes that rail out of use, and no other: the vendor's object is closed, the
/// connection goes on, and both can be closed.
fn rail_alone_is_lost_by(faults: Faults, entry: &str) {
    let mut wires = [Wire::new(), Wire::new()];
    let mut pair = pair(&mut wires);
    messages_until(&mut pair, "control to leave the reserve", |pair| {
        pair.views(0).iter().all(|view| !view.control)
    });
    wires[0].fail(faults);
    messages_until(&mut pair, "the rail to go", |pair| {
        pair.views(1).iter().all(|view| view.state == LaneState::Down)
    });
    assert!(wires[0].failed());
    let mut more = 16;
    messages_until(&mut pair, "messages", |_| {
        more -= 1;
        more == 0
    });
    let views = [1, 2].map(|lane| pair.views(lane));
    assert!(views[0].iter().all(|view| view.state != LaneState::Up), "{views:?}");
    assert!(views[1].iter().all(|view| view.state == LaneState::Up), "{views:?}");
    let said = said();
    let words = format!("the rail is out of use: of the vendor's {entry}");
    // it was said to be connected again, and of which rail of the program's it was not
    let line = said.lines().find(|line| line.contains(&words)).expect(&said);
    assert!(
        line.contains(" over vendor, acme0, was lost: ") && line.ends_with("; 2 other rails go on")
    );
    assert!(!said.contains("rail 1: "), "{said}");
    assert_eq!((wires[0].open(), wires[1].open()), (1, 2), "objects that are open");
    pair.close();
    assert_eq!((wires[0].open(), wires[1].open()), (0, 0), "objects that are open");
}

/// Short messages and long ones, each way, until something is so.
fn messages_until(pair: &mut Pair, what: &str, mut is_so: impl FnMut(&Pair) -> bool) {
    let watch = Watch::start();
    while !is_so(pair) {
        for bytes in [100, 1_000_000] {
            message(pair, bytes);
            std::mem::swap(&mut pair.a, &mut pair.b);
            std::mem::swap(&mut pair.to_a, &mut pair.to_b);
            message(pair, bytes);
            std::mem::swap(&mut pair.a, &mut pair.b);
            std::mem::swap(&mut pair.to_a, &mut pair.to_b);
        }
        pair.progress();
        watch.look(what);
    }
}

#[test]
fn vendor_that_breaks_its_promises_loses_its_rail_alone() {
    for wrong in WRONGS {
        rail_alone_is_lost_by(Faults { wrong: Some(wrong), ..Faults::default() }, "poll");
    }
}

/// A refusal of what the caps promise held a message up for ever, without a word.
#[test]
fn vendor_that_refuses_what_its_caps_promise_loses_its_rail_alone() {
    rail_alone_is_lost_by(Faults { refuses: true, ..Faults::default() }, "post");
}

/// Messages that lay in the vendor's slots, because nobody had asked for them, are there when its
/// object is not.
#[test]
fn messages_that_had_come_outlive_the_vendors_object() {
    const COUNT: usize = 20;
    let wire = Wire::new();
    let mut pair = pair(&mut [wire]);
    messages_until(&mut pair, "control to leave the reserve", |pair| {
        pair.views(0).iter().all(|view| !view.control)
    });
    let Pair { a, b, to_b, to_a, .. } = &mut pair;
    let (to_b, to_a) = (*to_b, *to_a);
    let out = Memory::new(a, Place::Private, COUNT * 1000);
    for at in 0..COUNT {
        out.fill(at * 1000, 1000, at as u64);
        let send = a.isend(to_b, out.outgoing(at * 1000, 1000, 3)).unwrap();
        assert_eq!(wait_both(a, b, send).result, Ok(()));
    }
    let watch = Watch::start();
    for _ in 0..64 {
        a.progress(); // what was sent is taken in
        b.progress();
    }
    wire.fail(Faults { wrong: Some(Wrong::MessageLength), at_second: true, ..Faults::default() });
    let into = Memory::new(b, Place::Private, 1000);
    let send = a.isend(to_b, out.outgoing(0, 1000, 4)).unwrap();
    while wire.open() == 2 {
        a.progress();
        b.progress();
        watch.look("the breach");
    }
    assert!(wire.failed());
    for at in 0..COUNT {
        let receive = b.irecv(to_a, &[into.incoming(0, 1000, 3)]).unwrap();
        assert_eq!(wait_both(b, a, receive).result, Ok(()));
        into.verify(0, 1000, at as u64);
    }
    let receive = b.irecv(to_a, &[into.incoming(0, 1000, 4)]).unwrap();
    assert_eq!(wait_both(b, a, receive).result, Ok(()));
    into.verify(0, 1000, 0);
    assert_eq!(wait_both(a, b, send).result, Ok(()));
    out.release(a);
    into.release(b);
    pair.close();
}

#[test]
fn connections_are_closed_and_made_again_over_the_same_rail() {
    let wire = Wire::new();
    let mut pair = pair(&mut [wire]);
    for _ in 0..8 {
        pair.reconnect(2);
        pair.hello();
    }
    let before = wire.bytes();
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    pair.carries(&mut flows, "the vendor's rail");
    assert!(wire.bytes() - before > 1 << 20, "the vendor was not asked to carry it");
}

/// A message of so many bytes from one end to the other, every byte compared.
fn message(pair: &mut Pair, bytes: usize) {
    let Pair { a, b, to_b, to_a, .. } = pair;
    let (out, into) =
        (Memory::new(a, Place::Private, bytes), Memory::new(b, Place::Private, bytes));
    out.fill(0, bytes, 7);
    let receive = b.irecv(*to_a, &[into.incoming(0, bytes, 3)]).unwrap();
    let send = a.isend(*to_b, out.outgoing(0, bytes, 3)).unwrap();
    assert_eq!(wait_both(b, a, receive).result, Ok(()));
    assert_eq!(wait_both(a, b, send).result, Ok(()));
    into.verify(0, bytes, 7);
    out.release(a);
    into.release(b);
}

/// What such a rail cannot take in 64 writes went nowhere, and said so to nobody.
#[test]
fn message_too_long_for_a_rail_goes_over_the_others() {
    const SHORT: u64 = 64 << 10;
    let wire = Wire::new();
    wire.fail(Faults { transfer_bytes_max: SHORT, ..Faults::default() });
    let mut pair = pair(&mut [wire]);
    let before = wire.bytes();
    for bytes in [64 * SHORT as usize, 64 * SHORT as usize + 1, 9 << 20] {
        message(&mut pair, bytes);
    }
    assert!(wire.bytes() - before >= SHORT, "the vendor was not asked to carry what it can");
}

#[test]
fn rail_that_cannot_carry_a_lane_is_left_out_and_said() {
    let alone = alone();
    for (faults, why) in [
        (
            Faults { no_open: 19, ..Faults::default() },
            "peers_max 2 and regions_max 65 with code 19",
        ),
        (Faults { send_bytes_max: 512, ..Faults::default() }, "send_bytes_max is too small"),
        (
            Faults { transfer_bytes_max: (64 << 10) - 1, ..Faults::default() },
            "transfer_bytes_max is below 65536",
        ),
    ] {
        said();
        let wire = Wire::new();
        wire.fail(faults);
        open(2, &[wire.rail("acme7", "")]).unwrap().close();
        let said = said();
        assert!(said.contains("vendor's rail acme7 is not used") && said.contains(why), "{said}");
    }
    drop(alone);
}

/// Each opened without a word of the rail.
#[test]
fn rail_that_a_device_or_a_setting_leaves_out_is_said() {
    let alone = alone();
    let wire = Wire::new();
    for (device, rails, rails_max, why) in [
        (DeviceKind::Tcp, "vendor", 2, "this device has no rails of vendors"),
        (DeviceKind::SharedMemory, "shm", 2, "this device has no rails of vendors"),
        (DeviceKind::Loopback, "vendor", 2, "this device has no rails of vendors"),
        (DeviceKind::Host, "shm,tcp", 2, "CROSSTIE_RAILS leaves out"),
        (DeviceKind::Host, "shm", 2, "CROSSTIE_RAILS leaves out"),
        (DeviceKind::Host, "vendor", 1, "it needs rails_max of 2 or more"),
    ] {
        said();
        open_as(device, rails, rails_max, &[wire.rail("my0", "")]).unwrap().close();
        let said = said();
        let named = format!("vendor's rail my0 is left out: {why}");
        assert_eq!(said.matches(&named).count(), 1, "{device:?} {rails} {rails_max}: {said}");
    }
    said();
    open_as(DeviceKind::Host, "vendor", 2, &[]).unwrap().close();
    assert!(said().contains("the program gives no vendor's rail"));
    drop(alone);
}

const PAGE: u64 = 4096;

fn register(node: &Node, memory: &[u8]) -> Handle {
    let (address, length) = (memory.as_ptr() as u64, Bytes::of(memory.len()));
    // SAFETY: memory that outlives its registration.
    unsafe { node.shared.register(address, length, MemoryKind::Host) }.unwrap()
}

/// What was refused once may be granted later, and is asked for then.
#[test]
fn refusal_is_no_registration_for_whoever_comes_later() {
    let alone = alone();
    let wire = Wire::new();
    let node = open(2, &[wire.rail("acme0", "")]).unwrap();
    let memory = vec![0u8; 4 * PAGE as usize];
    let before = wire.registered();
    let since = || wire.registered() - before;
    wire.fail(Faults { no_memory: 2, ..Faults::default() });
    let refused = [(); 2].map(|()| register(&node, &memory));
    let named = "vendor's rail acme0 does not register memory";
    assert!(said().contains(named), "it said: {}", said());
    assert_eq!(since(), 2, "a refusal was handed on");
    let good = [(); 2].map(|()| register(&node, &memory));
    assert_eq!(since(), 3, "what is registered is registered once");
    wire.deregistered();
    for region in refused {
        node.shared.deregister(region).unwrap();
    }
    assert_eq!(wire.deregistered(), [], "what was refused is given back to nobody");
    for region in good {
        node.shared.deregister(region).unwrap();
    }
    assert_eq!(wire.deregistered().len(), 1);
    node.close();
    drop(alone);
}

/// Key 0 means none: what the vendor calls so is given back to it at once, and used no more.
#[test]
fn vendor_that_gives_key_zero_has_registered_nothing() {
    let alone = alone();
    let wire = Wire::new();
    let node = open(2, &[wire.rail("acme0", "")]).unwrap();
    let memory = vec![0u8; 4 * PAGE as usize];
    wire.fail(Faults { key_zero: true, ..Faults::default() });
    let region = register(&node, &memory);
    assert_eq!(wire.deregistered(), [0], "at once");
    node.shared.deregister(region).unwrap();
    assert_eq!(wire.deregistered(), [], "and no second time");
    node.close();
    drop(alone);
}

/// Memory on two rails of which one is busy at first is deregistered, and deregistered again: how
/// often that one and the other were asked the first time, and the second.
fn asked_while_one_is_busy(busy: usize) -> [[usize; 2]; 2] {
    let wires = [Wire::new(), Wire::new()];
    let node = open(4, &[wires[0].rail("acme0", "0"), wires[1].rail("acme1", "1")]).unwrap();
    let memory = vec![0u8; 4 * PAGE as usize];
    let region = register(&node, &memory);
    wires[busy].fail(Faults { busy: 1, ..Faults::default() });
    let asked = || [busy, 1 - busy].map(|at| wires[at].deregistered().len());
    assert_eq!(node.shared.deregister(region), Err(DeregisterError::Busy));
    let first = asked();
    assert_eq!(node.shared.deregister(region), Ok(()));
    let second = asked();
    node.close();
    [first, second]
}

/// A vendor may call other memory so as soon as it has forgotten this.
#[test]
fn rail_that_has_forgotten_memory_is_not_asked_again_because_another_is_busy() {
    let alone = alone();
    for busy in 0..2 {
        let [first, second] = asked_while_one_is_busy(busy);
        assert_eq!([first[0] + second[0], first[1] + second[1]], [2, 1]);
    }
    drop(alone);
}

/// The memory of a rail that is not asked would stay registered, although it may be busy no longer.
#[test]
fn rail_that_is_busy_keeps_memory_with_no_other_rail() {
    let alone = alone();
    for busy in 0..2 {
        assert_eq!(asked_while_one_is_busy(busy), [[1, 1], [1, 0]]);
    }
    drop(alone);
}

/// The number by which a rail has known memory may be that of other memory by now.
#[test]
fn memory_that_a_rail_has_forgotten_goes_over_another_when_it_is_used_on() {
    let mut wires = [Wire::new(), Wire::new()];
    let mut pair = pair(&mut wires);
    pair.all_up(3);
    let length = 8 << 20;
    let (data, mut room) = (vec![7u8; length], vec![0u8; length]);
    let (from, to) = (register(&pair.a, &data), register(&pair.b, &room));
    let (length, address) = (length as u64, room.as_mut_ptr() as u64);
    let receive = Incoming { region: to, address, length, tag: 3 };
    let send = Outgoing { region: from, address: data.as_ptr() as u64, length, tag: 3 };
    let carry = |pair: &mut Pair| {
        let receive = pair.b.irecv(pair.to_a, &[receive]).unwrap();
        let send = pair.a.isend(pair.to_b, send).unwrap();
        assert_eq!(wait_both(&mut pair.b, &mut pair.a, receive).result, Ok(()));
        assert_eq!(wait_both(&mut pair.a, &mut pair.b, send).result, Ok(()));
    };
    let watch = Watch::start();
    while pair.views(1)[0].stats.stripes == 0 {
        carry(&mut pair);
        watch.look("a part of a message on the first vendor's rail");
    }
    for (node, region) in [(&pair.a, from), (&pair.b, to)] {
        wires[1].fail(Faults { busy: 1, ..Faults::default() });
        assert_eq!(node.shared.deregister(region), Err(DeregisterError::Busy));
    }
    let before = pair.views(1);
    (0..4).for_each(|_| carry(&mut pair));
    for (before, after) in before.iter().zip(pair.views(1)) {
        assert_eq!(after.stats.failures, before.stats.failures, "{after:?}");
        assert_eq!(after.stats.stripes, before.stats.stripes, "{after:?}");
    }
    for (node, region) in [(&pair.a, from), (&pair.b, to)] {
        assert_eq!(node.shared.deregister(region), Ok(()));
    }
    assert_eq!(data, room);
}

#[test]
fn rails_of_other_networks_make_no_pair() {
    let alone = alone();
    let wire = Wire::new();
    let a = open(2, &[wire.rail("acme0", "left")]).unwrap();
    let b = open(2, &[wire.rail("acme0", "right")]).unwrap();
    let mut pair = Pair::of(alone, a, b, 1);
    let to_b = pair.to_b;
    assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Tcp));
    let said = said();
    let count = said.matches("is reached over TCP alone").count();
    assert!(count == 2 && said.contains("vendor's rail acme0 is the first"), "{said}");
}

/// It was said that the peer has no port that pairs, although it has.
#[test]
fn rail_that_reaches_other_hosts_alone_is_said_to_be_unused_on_this_one() {
    const WHY: &str = "it reaches other hosts alone, and the peer is on this one \
                       (XTIE_VENDOR_RAIL_OTHER_HOSTS)";
    let alone = alone();
    let (wire, other) = (Wire::new(), Wire::new());
    let far = || VendorRail { reaches_own: false, ..wire.rail("acme0", "fabric") };
    let mut pair = Pair::of(alone, open(2, &[far()]).unwrap(), open(2, &[far()]).unwrap(), 1);
    let to_b = pair.to_b;
    assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Tcp));
    let text = said();
    let line = format!("is reached over TCP alone: vendor's rail acme0 is not used, since {WHY}");
    assert_eq!(text.matches(&line).count(), 2, "{text}");
    assert!(!text.contains("no port that pairs") && !text.contains("not used for"), "{text}");
    drop(pair);

    // beside one that is used, too
    let alone = self::alone();
    let near = || other.rail("acme1", "fabric");
    let ends = [(); 2].map(|()| open(4, &[far(), near()]).unwrap());
    let [a, b] = ends;
    let mut pair = Pair::of(alone, a, b, 2);
    let to_b = pair.to_b;
    assert_eq!(pair.a.connection_rail(to_b), Some(ConnectionRail::Vendor));
    let text = said();
    assert!(text.contains("vendor's rail acme0 is not used for "), "{text}");
    assert!(text.contains(WHY) && !text.contains("TCP alone"), "{text}");
    assert!(!text.contains("vendor's rail acme1 is not used"), "{text}");
}

#[test]
fn more_rails_than_lanes_are_refused() {
    let alone = alone();
    let wire = Wire::new();
    let rails = [(); 8].map(|()| wire.rail("acme0", ""));
    let refused = open(8, &rails).err();
    assert_eq!(refused, Some(OpenError::VendorRail(VendorRailError::TooMany(7))));
    drop(alone);
}

/// The peer's endpoint goes without a word: its connection ends, the rail stays.
#[test]
fn peer_that_closes_takes_its_connection_alone() {
    let wire = Wire::new();
    let Pair { mut a, b, to_b, .. } = {
        let mut pair = pair(&mut [wire]);
        let mut flows = pair.flows(Place::Private);
        pair.settle(&mut flows);
        pair
    };
    b.close();
    let memory = Memory::new(&a, Place::Private, 1 << 20);
    let watch = Watch::start();
    loop {
        match a.isend(to_b, memory.outgoing(0, 1 << 20, 0)) {
            Err(_) => break,
            Ok(request) => {
                let ended = a.wait(request).result;
                if ended.is_err() {
                    assert_eq!(ended, Err(RequestError::PeerClosed));
                    break;
                }
            }
        }
        watch.look("the peer's end");
    }
}
