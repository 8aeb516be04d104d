//! Counters that the NIC adds to, of whole endpoints: in the guest over soft-RoCE devices, and over
//! our own libibverbs with refusals and failures that no device here has.
#![allow(dead_code)] // of the shared parts

mod guest_support;
mod host_support;
#[path = "verbs_support/hosts.rs"]
mod hosts;
mod verbs_support;

use crosstie::base::slab::Handle;
use crosstie::host::nic_counter::{self, CounterTicket, NicCounterError, OutcomeUnknown};
use crosstie::host::{DeviceKind, Options};
use crosstie::provider::verbs::companion::CompanionError;
use crosstie::transport::RequestError;
use guest_support::{ends, link_down, link_up, wires};
use host_support::pair::{Pair, alone};
use host_support::{Memory, Node, Place, Watch, small};
use hosts::told;
use verbs_support::fake::{libraries, story_told};

/// More rails than such connections have.
fn options() -> Options {
    let mut options = Options { device: DeviceKind::Host, companions: true, ..small(2) };
    options.limits.rails_max = 4;
    options
}

/// Adds to a word of a memory, polling as long as the answer is `Again`.
fn add(node: &mut Node, to: Handle, memory: &Memory, at: u64, value: u64) -> CounterTicket {
    let watch = Watch::start();
    loop {
        match nic_counter::add(node, to, memory.region, memory.start as u64 + at, value) {
            Ok(ticket) => return ticket,
            Err(NicCounterError::Again) => drop(node.progress()),
            Err(error) => panic!("{error:?}"),
        }
        watch.look("room for an add");
    }
}

fn end(node: &mut Node, ticket: CounterTicket) -> Result<(), OutcomeUnknown> {
    let watch = Watch::start();
    loop {
        if let Some(outcome) = nic_counter::test(node, ticket) {
            return outcome;
        }
        watch.look("an add");
    }
}

fn word(memory: &Memory, at: usize) -> u64 {
    assert!(at.is_multiple_of(8) && at + 8 <= memory.length);
    // SAFETY: an aligned word of the memory; volatile because a device writes it.
    unsafe { memory.start.add(at).cast::<u64>().read_volatile() }
}

/// Two endpoints with companions over the first wire of the guest, or over one device.
fn guests_pair(ends: &[String; 2]) -> Pair {
    let alone = alone();
    let [a, b] = [0, 1].map(|end: usize| guest_support::open_with(&options(), &ends[end], &[]));
    Pair::of(alone, a, b, 2)
}

#[test]
fn counters_of_a_device_hold_the_sum_of_all_adds_beside_messages() {
    let Some(ends) = ends(1) else { return };
    const ADDS: u64 = 300;
    let mut pair = guests_pair(&ends);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let counters = Memory::new(&pair.a, Place::Private, 4096 + 8);
    let at = (counters.start as u64).next_multiple_of(8) - counters.start as u64;
    let mut tickets = vec![];
    for n in 0..ADDS {
        let to_b = pair.to_b;
        tickets.push(add(&mut pair.a, to_b, &counters, at, n));
        tickets.push(add(&mut pair.a, to_b, &counters, at + 8, 1 << 40));
        pair.step(&mut flows);
    }
    for ticket in tickets {
        assert_eq!(end(&mut pair.a, ticket), Ok(()));
    }
    assert_eq!(word(&counters, at as usize), ADDS * (ADDS - 1) / 2);
    assert_eq!(word(&counters, at as usize + 8), ADDS << 40);
    pair.flow(&mut flows, 16);
    counters.release(&pair.a);
}

/// No message goes on over TCP, and no add is posted any more.
#[test]
fn link_of_a_device_that_goes_down_ends_the_connection() {
    let Some(ends) = wires(1) else { return };
    let Pair { mut a, mut b, to_b, to_a, .. } = guests_pair(&ends);
    let counters = Memory::new(&a, Place::Private, 4096);
    let ticket = add(&mut a, to_b, &counters, 0, 1);
    assert_eq!(end(&mut a, ticket), Ok(()));
    let rooms = [(&mut a, to_b), (&mut b, to_a)].map(|(node, to)| {
        let memory = Memory::new(node, Place::Private, 64);
        (node.irecv(to, &[memory.incoming(0, 64, 1)]).expect("a receive"), memory)
    });
    link_down(0);
    for ((node, to), (receive, _)) in [(&mut a, to_b), (&mut b, to_a)].into_iter().zip(&rooms) {
        let result = node.wait(*receive).result;
        assert!(matches!(result, Err(RequestError::Fabric(_))), "{result:?}");
        let late = nic_counter::add(node, to, counters.region, counters.start as u64, 1);
        assert_eq!(late, Err(NicCounterError::Connection));
    }
    assert_eq!(nic_counter::test(&mut a, ticket), Some(Ok(())), "what was known stays so");
    link_up(0);
}

/// What the device of a story has from now on.
fn turn(fake: &str) {
    // SAFETY: threads of endpoints do not read this variable.
    unsafe { std::env::set_var("FAKE", fake) };
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    match story.as_str() {
        "count" => count(),
        "refuse" => refuse(),
        "have no companions" => have_no_companions(),
        "have no port" => have_no_port(),
        "have no atomics" => refused_by_the_port(NicCounterError::NoAtomics),
        "have no sink" => {
            let why = CompanionError::Sink(crosstie::memory::Errno(libc::EINVAL));
            refused_by_the_port(NicCounterError::Refused(why));
        }
        "lose the device" => lose_the_device(),
        "lose an add" => lose_an_add(),
        _ => panic!("no story is called {story}"),
    }
}

/// Two endpoints of this process, with so many rails: with two, the second is the port's.
fn pair_of(options: &Options, rails: u8) -> Pair {
    let alone = alone();
    let [a, b] = [(); 2].map(|()| hosts::open_with(options));
    Pair::of(alone, a, b, rails)
}

fn count() {
    let mut pair = pair_of(&options(), 2);
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let mut flows = pair.flows(Place::Private);
    pair.settle(&mut flows);
    let to_b = pair.to_b;
    turn("late");
    let ticket = add(&mut pair.a, to_b, &counters, 8, 5);
    assert_eq!(nic_counter::test(&mut pair.a, ticket), None);
    assert!(!pair.a.wait_arm(), "who sleeps would hear nothing of it");
    turn("");
    assert_eq!(end(&mut pair.a, ticket), Ok(()));
    assert_eq!((word(&counters, 0), word(&counters, 8)), (0, 5));
    assert_eq!(nic_counter::of_port(&pair.a, 0), Some(Ok(())));
    assert_eq!(nic_counter::of_port(&pair.a, 1), None);
    pair.flow(&mut flows, 64);
    println!("counted");
}

fn refuse() {
    let mut pair = pair_of(&options(), 2);
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let gone = Memory::new(&pair.a, Place::Private, 4096);
    let (stale, region, to) = (gone.region, counters.region, pair.to_b);
    gone.release(&pair.a);
    let start = counters.start as u64;
    let mut try_add = |to, region, address| nic_counter::add(&mut pair.a, to, region, address, 1);
    assert_eq!(try_add(to, region, start + 4), Err(NicCounterError::Unaligned));
    assert_eq!(try_add(to, region, start + 4096), Err(NicCounterError::Range));
    assert_eq!(try_add(to, region, start - 8), Err(NicCounterError::Range));
    assert_eq!(try_add(to, stale, start), Err(NicCounterError::Region));
    let strange = Handle { generation: to.generation + 2, ..to };
    assert_eq!(try_add(strange, region, start), Err(NicCounterError::Connection));
    assert_eq!(word(&counters, 0), 0);
    turn("locked_memory");
    let unknown = Memory::new(&pair.a, Place::Private, 4096);
    let refused = nic_counter::add(&mut pair.a, to, unknown.region, unknown.start as u64, 1);
    assert_eq!(refused, Err(NicCounterError::NotRegistered));
    println!("refused");
}

fn have_no_companions() {
    let mut pair = hosts::pair();
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let (to, address) = (pair.to_b, counters.start as u64);
    let refused = nic_counter::add(&mut pair.a, to, counters.region, address, 1);
    assert_eq!(refused, Err(NicCounterError::NoCompanions));
    assert_eq!(nic_counter::of_port(&pair.a, 0), None);
    println!("refused");
}

fn have_no_port() {
    host_support::set("CROSSTIE_IB_DISABLE", "1");
    let mut pair = pair_of(&options(), 1);
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let (to, address) = (pair.to_b, counters.start as u64);
    let refused = nic_counter::add(&mut pair.a, to, counters.region, address, 1);
    assert_eq!(refused, Err(NicCounterError::NoRdmaRail));
    println!("refused");
}

/// Messages go over the port all the same.
fn refused_by_the_port(wanted: NicCounterError) {
    let mut pair = pair_of(&options(), 2);
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let (to, address) = (pair.to_b, counters.start as u64);
    let refused = nic_counter::add(&mut pair.a, to, counters.region, address, 1);
    assert_eq!(refused, Err(wanted));
    pair.hello();
    println!("refused");
}

/// The device goes while an add is on its way.
fn lose_the_device() {
    let Pair { mut a, mut b, to_b, to_a, .. } = pair_of(&options(), 2);
    let counters = Memory::new(&a, Place::Private, 4096);
    let room = Memory::new(&a, Place::Private, 64);
    let receive = a.irecv(to_b, &[room.incoming(0, 64, 1)]).expect("a receive");
    turn("silent");
    let ticket = add(&mut a, to_b, &counters, 0, 1);
    turn("silent event=8 dead");
    assert_eq!(end(&mut a, ticket), Err(OutcomeUnknown));
    let result = a.wait(receive).result;
    assert!(matches!(result, Err(RequestError::Fabric(_))), "{result:?}");
    let late = nic_counter::add(&mut a, to_b, counters.region, counters.start as u64, 1);
    assert_eq!(late, Err(NicCounterError::Connection));
    counters.release(&a);
    let watch = Watch::start();
    while nic_counter::add(&mut b, to_a, room.region, 0, 1) != Err(NicCounterError::Connection) {
        b.progress();
        watch.look("the end of the other side");
    }
    println!("unknown");
}

/// An add fails, and its rail does not.
fn lose_an_add() {
    let mut pair = pair_of(&options(), 2);
    let counters = Memory::new(&pair.a, Place::Private, 4096);
    let (to, address) = (pair.to_b, counters.start as u64);
    turn("unanswered");
    let ticket = add(&mut pair.a, to, &counters, 0, 1);
    turn("");
    assert_eq!(end(&mut pair.a, ticket), Err(OutcomeUnknown));
    let late = nic_counter::add(&mut pair.a, to, counters.region, address, 1);
    assert_eq!(late, Err(NicCounterError::Lost));
    pair.hello();
    counters.release(&pair.a);
    println!("unknown");
}

/// The story of hosts with such a device has all this in it.
fn tells(story: &str, fake: &str, wanted: &[&str]) {
    if libraries().is_none() {
        return;
    }
    let Some(said) = told("Ethernet", story, fake) else { return };
    for wanted in wanted {
        assert!(said.contains(wanted), "{story}, {fake}: no {wanted:?}:\n{said}");
    }
}

#[test]
fn adds_end_beside_messages_and_nobody_sleeps_while_they_are_on_their_way() {
    tells("count", "", &["counted"]);
}

#[test]
fn every_add_that_cannot_be_is_refused_by_type() {
    tells("refuse", "", &["refused"]);
    tells("have no companions", "", &["refused"]);
    tells("have no port", "", &["refused"]);
    tells("have no atomics", "no_atomics", &["refused", "has no companion: the device has no at"]);
    tells("have no sink", "iova_refused", &["refused", "at address 0 (iova 0): errno 22"]);
}

#[test]
fn outcome_of_adds_is_unknown_and_the_connection_ends_when_the_device_goes() {
    tells("lose the device", "", &["unknown", "and its connection ends: an endpoint with comp"]);
}

#[test]
fn port_whose_companion_has_failed_refuses_adds_and_carries_messages() {
    tells("lose an add", "", &["unknown"]);
}
