//! What providers of NICs do and those of software do not: they refuse words with writes, forget
//! what was posted to an address that is taken out, tell of failures beside the completion queue,
//! keep less order, have other networks and queues that are too short. Over the strict fabric,
//! whose `efa` and `cxi` do what the sources of those providers say.

mod libfabric_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::fabric::{
    Completion, DeregisterError, Domain, MemoryDomain, Op, OpId, OpKind, PeerLife, Provider,
    RailKey, RemoteSpan, Source,
};
use crosstie::provider::libfabric::choice::choose;
use crosstie::provider::libfabric::settings::Settings;
use crosstie::provider::libfabric::survey::{Survey, survey};
use crosstie::provider::libfabric::{Config, Libfabric, Limits, OpenError, bytes};
use crosstie::provider::rail_set::PortOpenError;
use libfabric_support::{
    LIMITS, Layout, OTHER, PEER, World, register, skip, strict, strict_config,
};
use std::ffi::CStr;
use std::time::Duration;

fn strict_world(provider: &'static CStr) -> Option<World> {
    Some(World::open(&strict_config(Layout::One, provider)?).unwrap())
}

fn write_with_word(world: &World, at: usize, word: u32) -> OpKind {
    let source = Source::Span(world.local(0, at, 4096));
    OpKind::Write { source, target: world.remote(1, at), immediate: Some(word) }
}

/// `cxi` says that a word goes with a write, and refuses each such write (`FI_EBADFLAGS`). The peer
/// ended at its first long message, for ever.
#[test]
fn word_goes_behind_its_write_where_the_library_refuses_it_there() {
    for provider in [c"cxi", c"strict-wordless"] {
        let Some(mut world) = strict_world(provider) else { return };
        for word in 0..20u32 {
            world.seen = [Vec::new(), Vec::new()];
            let at = 4096 * word as usize;
            world.fill(0, at, 4096, 1 + word as u8);
            let kind = write_with_word(&world, at, word);
            let id = world.post(0, kind);
            world.send(0, word as u8, 64);
            let came = |world: &World, wanted: fn(&Completion) -> bool| {
                world.seen[1].iter().position(wanted)
            };
            let is_word = |seen: &Completion| matches!(seen, Completion::Immediate { .. });
            let is_message = |seen: &Completion| matches!(seen, Completion::Received { .. });
            world.until("the word comes", |world| came(world, is_word).is_some());
            assert!(world.holds(1, at, 4096, 1 + word as u8), "a word before its bytes");
            assert!(world.end(0, id), "{provider:?}");
            world.until("the message comes", |world| came(world, is_message).is_some());
            if world.rails[0].caps(PEER).ordered {
                assert!(came(&world, is_word) < came(&world, is_message), "{provider:?}");
            }
            for seen in std::mem::take(&mut world.seen[1]) {
                match seen {
                    Completion::Immediate { immediate, .. } => assert_eq!(immediate, word),
                    Completion::Received { slot, .. } => {
                        world.rails[1].received_release(PEER, slot);
                    }
                    seen => panic!("{provider:?}: {seen:?}"),
                }
            }
        }
        assert!(!world.rails[0].traits().carries_words, "it is not tried again");
    }
}

/// A provider's own word for what has no order is that it keeps none unless it is asked to.
#[test]
fn order_of_messages_is_asked_for_where_it_is_not_given_unasked() {
    for provider in [c"strict-asked", c"efa"] {
        let Some(world) = strict_world(provider) else { return };
        assert!(world.rails[0].traits().messages_ordered, "{provider:?}");
    }
    let Some(world) = strict_world(c"strict") else { return };
    assert!(world.rails[0].traits().ordered, "less order than there was unasked");
}

/// Takes a peer's address out of the vector while a write to it is under way, whose end then never
/// comes (`efa`): its place and the pin of its memory were lost.
#[test]
fn address_stays_as_long_as_an_op_to_it_is_under_way() {
    let Some(mut world) = strict_world(c"strict-forgets") else { return };
    world.write_well();
    world.give_up_while_writing();
    world.rails[1].peer_detach(PEER).unwrap();
    world.pass(Duration::from_secs(3));
    world.poll_side(0);
    world.join(PEER, 0x9000);
    world.write_well();
    world.until_quiet();
    let (key, domain) = (world.keys[0], world.rails[0].domain());
    assert_eq!(domain.deregister(key), Ok(()), "what is lost holds its memory for ever");
}

/// `tcp` and others of 1.17 offer all their domains, whichever was named: every rail was on the
/// first.
#[test]
fn domain_that_is_named_is_the_one_that_is_opened() {
    for provider in [c"tcp", c"tcp;ofi_rxm"] {
        let config = Config { provider: Some(provider), ..Config::DEFAULT };
        // what it opens by itself, and the one that every host has
        let Ok(first) = World::open(&config) else { continue };
        for domain in [first.rails[0].domain_name().to_owned(), c"lo".to_owned()] {
            let config = Config { domain: Some(&domain), ..config };
            match World::open(&config) {
                Ok(world) => assert_eq!(world.rails[0].domain_name(), &*domain, "{provider:?}"),
                Err(OpenError::NoOffer) if &*domain == c"lo" => {} // it has no loop-back
                Err(why) => panic!("{provider:?} over {domain:?}: {why}"),
            }
        }
        let config = Config { domain: Some(c"eth77"), ..config };
        assert_eq!(World::open(&config).err(), Some(OpenError::NoOffer), "{provider:?}");
    }
}

#[test]
fn providers_of_software_that_nobody_deploys_are_refused_by_name() {
    for provider in [c"net", c"sockets", c"udp", c"udp;ofi_rxd"] {
        match World::open(&Config { provider: Some(provider), ..Config::DEFAULT }) {
            Ok(_) => panic!("{provider:?} was taken"),
            Err(OpenError::Library(why)) => return skip(&why.to_string()),
            Err(OpenError::NoOffer) => println!("SKIP: this libfabric has no {provider:?}"),
            Err(why) => assert_eq!(why, OpenError::Software, "{provider:?}"),
        }
    }
    let found = survey(&Config::DEFAULT).unwrap();
    let names: Vec<_> = found.offers.iter().map(|offer| offer.provider.as_str()).collect();
    assert!(!names.iter().any(|it| ["net", "sockets", "udp"].contains(it)), "{names:?}");
    let text = OpenError::Software.to_string();
    assert!(text.contains("net, sockets and udp") && text.contains("tcp;ofi_rxm"), "{text}");
}

/// Without an event queue the process would end (`efa`).
#[test]
fn failure_beside_the_completion_queue_is_the_endpoints() {
    let Some(mut world) = strict_world(c"strict-beside") else { return };
    for round in 0.. {
        assert!(round < 1000, "the failure is never told of");
        let payload = world.local(0, 0, 64);
        let kind = OpKind::Send { head: [1; 32], payload };
        let op = Op { id: OpId(round), peer: PEER, kind };
        let _ = world.rails[0].post(&op, world.now);
        world.pass(Duration::from_millis(20));
        world.poll();
        if world.downs(1) == 1 {
            break;
        }
        for seen in std::mem::take(&mut world.seen[1]) {
            if let Completion::Received { slot, .. } = seen {
                world.rails[1].received_release(PEER, slot);
            }
        }
    }
    assert_eq!(world.rails[1].health().lost_code, libc::EIO);
    let said = world.rails[1].error(PEER).expect("a report").to_string();
    assert!(said.contains("errno 5"), "{said}");
    world.rails[1].reopen().unwrap();
    assert_eq!(world.rails[1].health().lost_code, 0);
}

#[test]
fn provider_that_joins_nothing_to_an_event_queue_works_without() {
    let Some(mut world) = strict_world(c"strict-eventless") else { return };
    world.write_well();
}

/// What rails say of the end is told when what was sent before it has come, in whatever order.
#[test]
fn end_of_a_peer_without_order_comes_behind_its_messages() {
    const MESSAGES: usize = 5;
    let Some(mut world) = strict_world(c"strict-shuffled") else { return };
    for n in 0..MESSAGES as u8 {
        world.send(0, n, 64);
    }
    world.rails[0].peer_detach(PEER).unwrap();
    world.until("the end is told", |world| world.downs(1) == 1);
    let is_message = |seen: &&Completion| matches!(seen, Completion::Received { .. });
    assert_eq!(world.seen[1].iter().filter(is_message).count(), MESSAGES, "{:?}", world.seen[1]);
    assert!(matches!(world.seen[1].last(), Some(Completion::PeerDown { .. })));
}

/// What was lost with the sender's endpoint is not waited for without an end.
#[test]
fn end_of_a_peer_without_order_waits_for_no_lost_messages() {
    let Some(mut world) = strict_world(c"strict-shuffled") else { return };
    world.send(0, 1, 64);
    world.rails[0].reopen().unwrap();
    for _ in 0..64 {
        world.poll();
    }
    world.pass(Duration::from_secs(1));
    world.until("the end is told", |world| world.downs(1) == 1);
}

/// A region is wanted back while its user goes on writing. In order, with room for one message at a
/// time, and without order: what was said of one hold was taken for the next one's, and the owner
/// forgot a region that the other side still wrote to.
#[test]
fn region_that_is_used_again_while_it_is_given_back_is_held() {
    for provider in [c"strict-again", c"strict-again-unordered", c"strict-shuffled", c"strict"] {
        let Some(mut world) = strict_world(provider) else { return };
        for round in 0..40 {
            let start = world.blocks[1];
            let key = register(&world.rails[1], start, 4096).unwrap();
            let target = RemoteSpan { key, address: start as u64 };
            let source = Source::Span(world.local(0, 0, 64));
            let write = OpKind::Write { source, target, immediate: None };
            let id = world.post(0, write);
            assert!(world.end(0, id));
            if round % 2 == 1 {
                world.send(0, 1, 64); // every second post finds no room
            }
            let is_gone = writes_while_wanted(&mut world, key, write, round);
            world.until_quiet();
            if !is_gone {
                let mut tries = 0;
                while world.rails[1].domain().deregister(key) == Err(DeregisterError::Busy) {
                    tries += 1;
                    assert!(tries < 100_000, "over {provider:?} a region never comes back");
                    world.poll();
                }
            }
            let id = world.post(0, write);
            assert!(!world.end(0, id), "a key that was taken back was used");
            for seen in std::mem::take(&mut world.seen[1]) {
                if let Completion::Received { slot, .. } = seen {
                    world.rails[1].received_release(PEER, slot);
                }
            }
        }
    }
}

/// Writes again and again while the region is wanted back; whether it came back. A write to what
/// the owner has forgotten ends the program.
fn writes_while_wanted(world: &mut World, key: RailKey, write: OpKind, round: u64) -> bool {
    for n in 0..60u64 {
        if n.is_multiple_of(1 + round % 7) {
            match world.rails[1].domain().deregister(key) {
                Err(DeregisterError::Busy) => {}
                Ok(()) => return true,
                Err(error) => panic!("{error:?}"),
            }
        }
        let op = Op { id: OpId(n), peer: PEER, kind: write };
        let _ = world.rails[0].post(&op, world.now);
        if !round.is_multiple_of(3) {
            world.poll_side((round % 3) as usize - 1);
        }
        world.poll();
    }
    false
}

/// A library that knows more is asked for what both know: `efa` does worse by who asks for less.
#[test]
fn newest_api_that_both_know_is_asked_for() {
    for layout in [Layout::One, Layout::Two] {
        let Some(config) = strict_config(layout, c"strict") else { return };
        World::open(&config).unwrap().write_well();
    }
}

fn surveyed() -> Option<Survey> {
    let config = Config { library: strict(Layout::One)?, ..Config::DEFAULT };
    Some(survey(&config).unwrap())
}

/// `efa-direct`, which newer libraries have beside `efa`, is another network, and no peer of it.
#[test]
fn network_of_other_endpoints_is_passed_over() {
    let Some(found) = surveyed() else { return };
    let offer = found.offers.iter().find(|offer| offer.provider == "strict-direct").unwrap();
    assert_eq!(offer.networks, ["strict"]);
    strict_world(c"strict-direct").unwrap().write_well();
}

#[test]
fn survey_tells_of_no_provider_that_a_rail_would_refuse() {
    let Some(found) = surveyed() else { return };
    let names: Vec<_> = found.offers.iter().map(|offer| offer.provider.as_str()).collect();
    for taken in ["strict", "strict-domain"] {
        assert!(names.contains(&taken), "{names:?}");
    }
    for refused in ["strict-prefix", "strict-messages", "strict-tiny"] {
        assert!(!names.contains(&refused), "{names:?}");
    }
}

/// Peers of one host may take another way than the NIC, which has promises of its own: `efa` is
/// told not to.
#[test]
fn provider_goes_no_way_of_its_own_within_a_host() {
    let Some(mut world) = strict_world(c"efa") else { return };
    world.write_well();
}

#[test]
fn failure_that_is_told_of_and_is_none_holds_nothing_up() {
    let Some(mut world) = strict_world(c"strict-wolf") else { return };
    world.write_well();
}

/// The length of its message was taken for it, where words are messages.
#[test]
fn word_that_comes_before_its_peer_is_joined_is_the_same_word() {
    const WORD: u32 = 0x1234_5678;
    let Some(mut world) = strict_world(c"strict-silent") else { return };
    let near = world.rails[0].peer_prepare(OTHER, 0x77).unwrap();
    let key = world.keys[1];
    let far = world.rails[1].peer_prepare_telling(OTHER, 0x78, key).unwrap();
    world.rails[0].peer_connect(OTHER, &far).unwrap();
    let kind = write_with_word(&world, 0, WORD);
    let id = world.post_to(0, OTHER, kind);
    assert!(world.end(0, id));
    world.until_quiet();
    world.rails[1].peer_connect(OTHER, &near).unwrap();
    let words = |world: &World| -> Vec<u32> {
        let word = |seen: &Completion| match *seen {
            Completion::Immediate { immediate, .. } => Some(immediate),
            _ => None,
        };
        world.seen[1].iter().filter_map(word).collect()
    };
    world.until("the word comes", |world| !words(world).is_empty());
    assert_eq!(words(&world), [WORD]);
}

/// A device of many peers may have no completion queue for all of them.
#[test]
fn rail_is_opened_for_as_many_peers_as_there_are_completions_for() {
    let Some(config) = strict_config(Layout::One, c"strict-queue") else { return };
    let mut limits = Limits { peers_max: 64, ..LIMITS };
    let open = |limits: &Limits| {
        let block = Box::leak(Box::new(HeapBlock::new(bytes(limits))));
        Libfabric::open(&mut block.carver(), limits, &config)
    };
    let error = open(&limits).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no queue for 8705 completions"), "{error}");
    limits.peers_max = PortOpenError::Libfabric(error).peers_most(64).expect("some");
    assert!(limits.peers_max > 1, "{limits:?}");
    open(&limits).unwrap_or_else(|error| panic!("{error}"));
}

/// NCCL plans by it. Not every provider knows its device, or the device's link.
#[test]
fn survey_tells_how_fast_a_device_is() {
    let Some(found) = surveyed() else { return };
    for (provider, speed) in [("strict", 200_000), ("strict-linkless", 0), ("strict-unknown", 0)] {
        let offer = found.offers.iter().find(|offer| offer.provider == provider).unwrap();
        assert_eq!(offer.speeds_mbps, [speed], "{provider}");
    }
}

/// A word that found no room kept its write's place in the table of ops for ever.
#[test]
fn words_that_find_no_room_at_first_take_no_place_for_good() {
    const WRITES: u32 = 300;
    for provider in [c"strict-again-short", c"strict-again-wordless"] {
        let Some(mut world) = strict_world(provider) else { return };
        for word in 0..WRITES {
            let kind = write_with_word(&world, 0, word);
            let id = world.post(0, kind);
            assert!(world.end(0, id), "{provider:?}");
        }
        let is_word = |seen: &&Completion| matches!(seen, Completion::Immediate { .. });
        world.until("every word comes", |world| {
            world.seen[1].iter().filter(is_word).count() == WRITES as usize
        });
        world.until("nothing is under way", |world| !world.rails[0].is_undelivered(PEER));
    }
}

/// What the provider does not say, the kernel may.
#[test]
fn speed_of_a_port_is_the_providers_or_the_kernels() {
    let Some(library) = strict(Layout::One) else { return };
    let sysfs = std::env::temp_dir().join(format!("crosstie-speed-{}", std::process::id()));
    let port = sysfs.join("class/infiniband/strict0/ports/1");
    std::fs::create_dir_all(&port).unwrap();
    std::fs::write(port.join("rate"), "100 Gb/sec (4X EDR)\n").unwrap();
    for (provider, speed) in [(c"strict", 200_000), (c"strict-unknown", 100_000)] {
        let (library, provider) = (Some(library.to_owned()), Some(provider.to_owned()));
        let settings = Settings { library, provider, ..Settings::default() };
        let nics = choose(&settings, &sysfs, true).unwrap();
        assert_eq!(nics[0].speed_mbps, speed, "{settings:?}");
    }
    std::fs::remove_dir_all(&sysfs).unwrap();
}
