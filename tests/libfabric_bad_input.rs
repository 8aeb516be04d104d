//! Providers of libfabric that lack something, refuse, lie or fail: each is answered with a result
//! and a sentence.

mod libfabric_support;

use crosstie::base::carve::heap::HeapBlock;
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::{Bytes, Instant};
use crosstie::fabric::{
    Completion, Domain, DownCause, LocalSpan, MemoryDomain, Op, OpId, OpKind, PeerLife, PostError,
    Provider, RegisterError, Source,
};
use crosstie::provider::libfabric::choice::choose;
use crosstie::provider::libfabric::settings::Settings;
use crosstie::provider::libfabric::survey::survey;
use crosstie::provider::libfabric::sys::Code;
use crosstie::provider::libfabric::{
    Config, Libfabric, Limits, OpenError, PeerOpenError, Step, bytes,
};
use libfabric_support::{
    BLOCK_BYTES, LIMITS, Layout, OTHER, PEER, World, reaches_its_own_process, register, skip,
    strict, strict_config,
};
use std::ffi::CStr;
use std::path::Path;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(600);

fn config(provider: &'static CStr) -> Option<Config<'static>> {
    strict_config(Layout::One, provider)
}

fn open(config: &Config) -> Result<Libfabric<'static>, OpenError> {
    let block = Box::leak(Box::new(HeapBlock::new(bytes(&LIMITS))));
    Libfabric::open(&mut block.carver(), &LIMITS, config)
}

/// Opening says this, in one line.
fn refused(config: &Config, words: &str) -> OpenError {
    let error = open(config).map(|_| ()).expect_err("it cannot be used");
    let text = error.to_string();
    assert!(text.contains(words) && text.lines().count() == 1, "{text}");
    error
}

#[test]
fn host_without_libfabric_is_told_so_in_one_line() {
    let config = Config { library: c"libfabric-of-nobody.so.1", ..Config::DEFAULT };
    refused(&config, "no libfabric: libfabric-of-nobody.so.1 (CROSSTIE_OFI_LIBRARY) cannot be");
    let text = survey(&config).unwrap_err().to_string();
    assert!(!text.contains("package"), "the package has another: {text}");
}

#[test]
fn library_that_is_none_is_told_so() {
    let config = Config { library: c"libm.so.6", ..Config::DEFAULT };
    refused(&config, "libm.so.6 has no fi_getinfo");
}

#[test]
fn provider_of_another_name_is_not_there() {
    let Some(config) = config(c"nobody") else { return };
    assert_eq!(refused(&config, "no libfabric provider of that name"), OpenError::NoOffer);
}

#[test]
fn provider_that_cannot_confirm_delivery_is_not_used() {
    let Some(config) = config(c"strict-delivery") else { return };
    assert_eq!(refused(&config, "confirmed delivery"), OpenError::NoOffer);
}

#[test]
fn provider_without_writes_is_refused_by_what_it_lacks() {
    let Some(config) = config(c"strict-messages") else { return };
    let error = refused(&config, "lacks messages and writes (FI_MSG, FI_RMA)");
    assert!(matches!(error, OpenError::Lacks(_)));
}

#[test]
fn provider_that_wants_what_nobody_knows_is_refused_with_the_bits() {
    let Some(config) = config(c"strict-prefix") else { return };
    let error = refused(&config, "wants a mode that is not known here: 0x400000000000000");
    assert_eq!(error, OpenError::Wants("a mode", 1 << 58));
}

/// Endpoints, the log and `crosstie info` said that there is no such provider.
#[test]
fn provider_that_cannot_carry_a_rail_is_named_with_the_reason() {
    let words = |provider: &CStr| {
        let (library, provider) = (strict(Layout::One)?.to_owned(), provider.to_owned());
        let (library, provider) = (Some(library), Some(provider));
        let settings = Settings { library, provider, ..Settings::default() };
        Some(choose(&settings, Path::new("/none"), true).unwrap_err().words(&settings))
    };
    for (provider, reason) in [
        (c"strict-prefix", "wants a mode that is not known here: 0x400000000000000"),
        (c"strict-messages", "lacks messages and writes (FI_MSG, FI_RMA)"),
        (c"strict-delivery", "offers reliable endpoints with messages, writes and confirmed"),
        (c"strict-tiny", "lacks keys of 4 bytes"),
    ] {
        let Some(said) = words(provider) else { return };
        let name = provider.to_str().unwrap();
        let start = format!(
            "there is no provider {name} that can carry a rail (CROSSTIE_OFI_PROVIDER); {name}: "
        );
        assert!(said.starts_with(&start) && said.lines().count() == 1, "{said}");
        assert!(said.contains(reason) && said.contains("; libfabric has strict, "), "{said}");
    }
    let said = words(c"nobody").unwrap();
    assert!(
        said.contains("(CROSSTIE_OFI_PROVIDER); libfabric has strict, "),
        "no reason of none: {said}"
    );
}

#[test]
fn limits_out_of_range_and_a_short_block_are_refused() {
    let Some(config) = config(c"strict") else { return };
    let block = Box::leak(Box::new(HeapBlock::new(bytes(&LIMITS))));
    let limits = crosstie::provider::libfabric::Limits { peers_max: 0, ..LIMITS };
    let error = Libfabric::open(&mut block.carver(), &limits, &config).unwrap_err();
    assert_eq!(error, OpenError::Limits);
    let short = Box::leak(Box::new(HeapBlock::new(bytes(&LIMITS) - 64)));
    let error = Libfabric::open(&mut short.carver(), &LIMITS, &config).unwrap_err();
    assert_eq!(error, OpenError::Block);
}

#[test]
fn refused_registration_is_the_callers_to_see() {
    let Some(config) = config(c"strict-memory") else { return };
    let mut rail = open(&config).unwrap();
    let start = Box::leak(Box::new(HeapBlock::new(BLOCK_BYTES))).start();
    assert_eq!(register(&rail, start, 4096), Err(RegisterError::Fabric(libc::ENOMEM)));
    let error = rail.peer_prepare(PEER, 7).unwrap_err();
    assert!(matches!(error, PeerOpenError::Refused(Step::Buffers, _)), "{error}");
    assert!(error.to_string().contains("buffers cannot be registered: errno 12"), "{error}");
}

/// It says that it injects 128 bytes, and takes 16.
#[test]
fn lie_about_a_limit_ends_the_peer_with_the_code() {
    let Some(config) = config(c"strict-inject") else { return };
    let mut world = World::open(&config).unwrap();
    let payload = world.local(0, 0, 8);
    let post =
        world.rails[0].post_send(Default::default(), PEER, &[1; 32], payload, Default::default());
    assert_eq!(post, Err(PostError::PeerDown));
    world.until("the end is told", |world| world.downs(0) == 1);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EMSGSIZE));
}

/// It says that a write may have a terabyte, and takes 32 KiB.
#[test]
fn lie_about_the_length_of_a_write_ends_the_peer_with_the_code() {
    let Some(config) = config(c"strict-length") else { return };
    let mut world = World::open(&config).unwrap();
    let id = world.write(0, 0, 4096);
    assert!(world.end(0, id), "a short one is taken");
    let op = Op { id: OpId(1), peer: PEER, kind: world.write_kind(0, 0, 65536) };
    assert_eq!(world.rails[0].post(&op, world.now), Err(PostError::PeerDown));
    world.until("the end is told", |world| world.downs(0) == 1);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EMSGSIZE));
}

fn down_cause(world: &World, side: usize) -> DownCause {
    let cause = world.seen[side].iter().find_map(|seen| match seen {
        Completion::PeerDown { cause, .. } => Some(*cause),
        _ => None,
    });
    cause.expect("an end that was told")
}

#[test]
fn completions_of_nobody_are_counted_and_harm_nothing() {
    let Some(config) = config(c"strict-strange") else { return };
    let mut world = World::open(&config).unwrap();
    world.fill(0, 0, 4096, 0x66);
    let id = world.write(0, 0, 4096);
    assert!(world.end(0, id) && world.holds(1, 0, 4096, 0x66));
    world.until("they are counted", |world| world.rails[0].health().strange > 0);
    // the end of a receive that has ended was believed
    let before = world.rails[1].health().unknown;
    for number in 0..3 {
        let send = world.send(0, number, 1024);
        assert!(world.end(0, send));
    }
    let received = |seen: &&Completion| matches!(seen, Completion::Received { .. });
    world.until("all came", |world| world.seen[1].iter().filter(received).count() >= 3);
    world.until_quiet();
    assert_eq!(world.seen[1].iter().filter(received).count(), 3);
    assert!(world.rails[1].health().unknown > before);
    assert_eq!([world.downs(0), world.downs(1)], [0, 0]);
}

/// Writes as much as is taken until the peer ends; the numbers of the ops are those below.
fn written_until_lost(world: &mut World) -> u64 {
    let mut posted = 0;
    while world.downs(0) == 0 {
        let op = Op { id: OpId(posted), peer: PEER, kind: world.write_kind(0, 0, 4096) };
        posted += u64::from(world.rails[0].post(&op, world.now).is_ok());
        world.poll();
    }
    posted
}

fn all_end(world: &mut World, posted: u64) {
    for id in 0..posted {
        world.until("every op ends", |world| world.result(0, OpId(id)).is_some());
    }
}

#[test]
fn queue_that_fails_ends_every_peer_and_the_rail_can_be_opened_again() {
    let Some(config) = config(c"strict-overrun") else { return };
    let mut world = World::open(&config).unwrap();
    let posted = written_until_lost(&mut world);
    // the library's own number for an overrun is no errno
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EIO));
    assert!(world.rails[0].health().is_lost());
    let again = world.rails[0].peer_prepare(libfabric_support::OTHER, 9);
    assert_eq!(again.unwrap_err(), PeerOpenError::RailLost);
    world.rails[0].reopen().unwrap();
    all_end(&mut world, posted);
    assert!(!world.rails[0].health().is_lost());
}

/// What lay behind the entries that it gave was taken for more of them.
#[test]
fn queue_that_says_it_gave_more_than_it_was_asked_for_loses_the_rail_with_a_sentence() {
    let Some(config) = config(c"strict-miscounts") else { return };
    let mut world = World::open(&config).unwrap();
    let posted = written_until_lost(&mut world);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EIO));
    let health = world.rails[0].health();
    assert_eq!((Code(health.lost_code), health.unknown), (Code::MISCOUNT, 0));
    let report = world.rails[0].error(PEER).expect("what broke it").to_string();
    let words = "the completion queue claims more entries than there was room for";
    assert!(report.starts_with(words), "{report}");
    world.rails[0].reopen().unwrap();
    all_end(&mut world, posted);
}

/// Over a device that has died `ofi_rxm` writes an error of no op each time that it is asked: one
/// poll took them for ever, and nobody heard that the NIC was gone.
#[test]
fn nic_that_fails_by_no_op_is_lost_and_comes_back() {
    let Some(config) = config(c"strict-dies") else { return };
    let mut world = World::open(&config).unwrap();
    let posted = written_until_lost(&mut world);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EIO));
    assert!(world.rails[0].health().is_lost());
    let report = world.rails[0].error(PEER).expect("what broke it").to_string();
    assert!(report.contains("strict trouble"), "{report}");
    world.rails[0].reopen().unwrap();
    all_end(&mut world, posted);
    assert!(!world.rails[0].health().is_lost());
}

/// It says that a word has 8 bytes, and delivers 4, without those that say whose it is: it was
/// dropped, and who waited for it waited for ever.
#[test]
fn words_that_are_cut_end_their_peers_with_a_sentence_and_go_as_messages_from_then_on() {
    let Some(config) = config(c"strict-cut") else { return };
    let mut world = World::open(&config).unwrap();
    assert!(world.rails[0].traits().carries_words, "it is believed at first");
    let write = |world: &mut World, peer, word| {
        let source = Source::Span(world.local(0, 0, 4096));
        let target = world.remote(1, 0);
        world.post_to(0, peer, OpKind::Write { source, target, immediate: Some(word) });
    };
    write(&mut world, PEER, 0x7777);
    world.until("the end is told", |world| world.downs(1) == 1);
    let is_word = |seen: &&Completion| matches!(seen, Completion::Immediate { .. });
    assert_eq!(world.seen[1].iter().filter(is_word).count(), 0, "it may be another's");
    assert_eq!(down_cause(&world, 1), DownCause::Broken(libc::EPROTO));
    let report = world.rails[1].error(PEER).expect("what broke it").to_string();
    assert!(report.contains("of 8 bytes") && report.contains("delivers 4"), "{report}");
    world.join(OTHER, 0x300);
    write(&mut world, OTHER, 0x8888);
    world.until("the word comes", |world| world.seen[1].iter().any(|seen| is_word(&seen)));
    let came = world.seen[1].iter().find(is_word);
    assert!(
        matches!(came, Some(Completion::Immediate { peer: OTHER, immediate: 0x8888 })),
        "{came:?}"
    );
    assert_eq!([0, 1].map(|side| world.rails[side].traits().carries_words), [false; 2]);
}

/// Some libraries say so when their queue is full: the peer was lost for it.
#[test]
fn post_for_which_a_library_has_no_memory_is_taken_when_it_has_some() {
    let Some(config) = config(c"strict-full") else { return };
    let mut world = World::open(&config).unwrap();
    for number in 0..40 {
        let id = world.write(0, 0, 4096);
        assert!(world.end(0, id));
        world.send(0, number, if number % 2 == 0 { 64 } else { 4096 });
        let is_message = |seen: &Completion| matches!(seen, Completion::Received { .. });
        world.until("it comes", |world| world.seen[1].iter().any(is_message));
        for seen in std::mem::take(&mut world.seen[1]) {
            if let Completion::Received { slot, .. } = seen {
                world.rails[1].received_release(PEER, slot);
            }
        }
    }
    assert_eq!([world.downs(0), world.downs(1)], [0, 0]);
}

/// Nobody waits for ever for memory that does not come.
#[test]
fn library_that_never_has_memory_again_loses_the_peer() {
    let Some(config) = config(c"strict-poor") else { return };
    let mut world = World::open(&config).unwrap();
    let mut refused = 0;
    while world.downs(0) == 0 {
        let payload = world.local(0, 0, 64);
        let op = Op { id: OpId(1), peer: PEER, kind: OpKind::Send { head: [1; 32], payload } };
        match world.rails[0].post(&op, world.now) {
            Ok(_) => assert_eq!(refused, 0),
            Err(error) => {
                assert!(matches!(error, PostError::Again | PostError::PeerDown), "{error:?}");
                refused += 1;
                world.pass(std::time::Duration::from_millis(100));
            }
        }
        world.poll();
        for seen in std::mem::take(&mut world.seen[1]) {
            if let Completion::Received { slot, .. } = seen {
                world.rails[1].received_release(PEER, slot);
            }
        }
    }
    assert!(refused > 10, "not at the first refusal");
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::ENOMEM));
}

/// Words carry the lower half of a token alone, and one of zeroes is what a cut word has.
#[test]
fn token_whose_lower_half_is_zero_is_given_to_nobody() {
    let Some(config) = config(c"strict") else { return };
    let mut rail = open(&config).unwrap();
    assert_eq!(rail.peer_prepare(PEER, 0x7_0000).unwrap().token, 0x7_0001);
    assert_eq!(rail.peer_prepare(OTHER, 0x7_0002).unwrap().token, 0x7_0002);
}

/// A queue that is never empty, of nothing that anybody is to hear of.
#[test]
fn poll_ends_however_much_of_nobody_there_is() {
    let Some(config) = config(c"strict-flood") else { return };
    let mut world = World::open(&config).unwrap();
    for _ in 0..4 {
        world.write_well();
    }
    assert!(world.rails[0].health().unknown > 0);
}

/// The same of events, with which one poll never ended.
#[test]
fn poll_ends_however_many_events_of_nobody_there_are() {
    let Some(config) = config(c"strict-event-flood") else { return };
    let mut world = World::open(&config).unwrap();
    for _ in 0..4 {
        world.write_well();
    }
    world.join(OTHER, 0x700);
    assert!(world.exchanges(OTHER), "who comes later is heard of, too");
    assert_eq!([0, 1].map(|side| world.rails[side].health().lost_code), [0, 0]);
}

/// Whoever registers may be the thread that is to open the endpoint again: it waited for itself.
#[test]
fn memory_comes_and_goes_while_a_nic_stays_away() {
    let Some(config) = config(c"strict-away") else { return };
    let mut world = World::open(&config).unwrap();
    let more = [(); 2].map(|()| Box::leak(Box::new(HeapBlock::new(BLOCK_BYTES))).start());
    let before = register(&world.rails[0], more[0], BLOCK_BYTES).unwrap();
    let away = PeerOpenError::Refused(Step::Endpoint, Code(libc::ENODEV));
    assert_eq!(world.rails[0].reopen(), Err(away));
    assert_eq!(world.rails[0].domain().deregister(before), Ok(()));
    let meanwhile = register(&world.rails[0], more[1], BLOCK_BYTES).unwrap();
    assert_eq!(world.rails[0].reopen(), Err(away));
    assert_eq!(world.rails[0].reopen(), Ok(()));
    assert_eq!(world.rails[0].health().refused, None);
    world.until("the end is told", |world| world.downs(0) == 1);
    assert_eq!(world.rails[0].peer_close(PEER), Ok(()));
    world.join(OTHER, 9);
    world.fill(1, 0, 64, 0x42);
    let (source, target) = (world.remote(1, 0), more[1] as u64);
    // SAFETY: a leaked block that is registered.
    let target = unsafe { LocalSpan::new(target, Bytes(64), meanwhile) };
    let id = world.post_to(0, OTHER, OpKind::Read { target, source });
    assert!(world.end(0, id), "what was registered meanwhile is of use");
    // SAFETY: as above; the read has ended.
    assert_eq!(unsafe { more[1].read_volatile() }, 0x42);
}

/// What the NIC would have refused is found out when it is back: it said that the endpoint could
/// not be opened, by the code of the outage before.
#[test]
fn memory_that_a_nic_refuses_when_it_is_back_is_the_reason_that_is_told() {
    const LONG: usize = 2 << 20;
    let Some(config) = config(c"strict-away-long") else { return };
    let limits = Limits { payload_bytes_max: 1024, ..LIMITS };
    let memory = Box::leak(Box::new(HeapBlock::new(LONG))).start();
    let open = || {
        let block = Box::leak(Box::new(HeapBlock::new(bytes(&limits))));
        Libfabric::open(&mut block.carver(), &limits, &config).unwrap()
    };
    let [mut rail, _] = [open(), open()];
    assert_eq!(register(&rail, memory, LONG), Err(RegisterError::Fabric(libc::ENOMEM)));
    let away = PeerOpenError::Refused(Step::Endpoint, Code(libc::ENODEV));
    assert_eq!(rail.reopen(), Err(away));
    let key = register(&rail, memory, LONG).unwrap();
    assert_eq!(rail.reopen(), Err(away));
    for _ in 0..2 {
        let refused = rail.reopen().unwrap_err();
        assert_eq!(rail.health().refused, Some((Step::Regions, Code(libc::ENOMEM))));
        let words = "memory that is registered cannot be registered with it: errno 12";
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert_eq!(rail.domain().deregister(key), Ok(()));
    assert_eq!(rail.reopen(), Ok(()));
}

#[test]
fn failed_write_has_the_providers_words() {
    let Some(config) = config(c"strict-failing") else { return };
    let mut world = World::open(&config).unwrap();
    let id = world.write(0, 0, 64);
    assert!(!world.end(0, id));
    let result = world.result(0, id).unwrap().unwrap_err();
    assert!(result.contains("Fabric") && result.contains("code: 5"), "{result}");
    let text = world.rails[0].error(PEER).expect("what broke it").to_string();
    assert!(text.contains("errno 5"), "{text}");
    assert!(text.contains("the provider says: strict trouble in words of its own"), "{text}");
    assert!(text.contains("(its code -1005)"), "{text}");
    world.until("the end is told", |world| world.downs(0) == 1);
    assert_eq!(down_cause(&world, 0), DownCause::Broken(libc::EIO));
}

/// Ends that a message of another kind cannot hide: a survey names what there is.
#[test]
fn survey_lists_providers_with_what_they_want() {
    let Some(config) = config(c"strict") else { return };
    let found = survey(&Config { provider: None, ..config }).unwrap();
    assert_eq!(found.version, "1.17");
    let names: Vec<&str> = found.offers.iter().map(|offer| offer.provider.as_str()).collect();
    assert!(names.contains(&"strict") && names.contains(&"strict-domain"), "{names:?}");
    assert!(!names.contains(&"strict-delivery"), "what cannot carry a rail is not offered");
    assert!(names.contains(&"strict-one"), "also what lets one thread call at a time: {names:?}");
    let strict = &found.offers[0];
    assert!(strict.endpoint_scoped && strict.carries_words);
    assert_eq!(strict.domains, ["strict0"]);
}

/// `shm` reaches 256 endpoints: peers at more of them are refused by name, and those that it has go
/// on. (Peers at one endpoint share its place.)
#[test]
fn more_endpoints_than_shm_reaches_are_refused_and_the_others_go_on() {
    const REACHED: u32 = 256;
    const ENDPOINTS: u32 = REACHED + 4;
    let hub = Limits { peers_max: ENDPOINTS, regions_max: 1, payload_bytes_max: 256 };
    let leaf = Limits { peers_max: 1, ..hub };
    let config = Config { provider: Some(c"shm"), ..Config::DEFAULT };
    let open = |limits| {
        let block = Box::leak(Box::new(HeapBlock::new(bytes(&limits))));
        Libfabric::open(&mut block.carver(), &limits, &config)
    };
    let mut hub = match open(hub) {
        Ok(hub) if reaches_its_own_process(&hub) => hub,
        Ok(_) => return println!("SKIP: shm of this version does not work within a process"),
        Err(why) => return skip(&format!("shm: {why}")),
    };
    let mut leaves = Vec::new();
    for peer in 0..ENDPOINTS {
        let mut rail = open(leaf).unwrap_or_else(|why| panic!("endpoint {peer}: {why}"));
        let ours = hub.peer_prepare(PeerIndex(peer), 0x100 + peer).unwrap();
        let theirs = rail.peer_prepare(PEER, 0x10_0000 + peer).unwrap();
        match hub.peer_connect(PeerIndex(peer), &theirs) {
            Ok(()) => {
                rail.peer_connect(PEER, &ours).unwrap();
                leaves.push(rail);
            }
            Err(error) => {
                assert!(matches!(error, PeerOpenError::Refused(Step::Address, _)), "{error:?}");
                assert!(peer >= REACHED, "endpoint {peer}: {error}");
            }
        }
    }
    println!("{} endpoints are reached", leaves.len());
    assert_eq!(leaves.len(), REACHED as usize);
    let nothing = Completion::Immediate { peer: PEER, immediate: 0 };
    let mut out = [nothing; 16];
    let send = |peer| {
        let kind = OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY };
        Op { id: OpId(1), peer, kind }
    };
    let (mut came, mut heard) = (vec![0; leaves.len()], vec![0; leaves.len()]);
    let mut sent = vec![[false; 2]; leaves.len()];
    let start = std::time::Instant::now();
    while came.contains(&0) || heard.contains(&0) {
        for (peer, leaf) in leaves.iter_mut().enumerate() {
            let [by_hub, by_leaf] = &mut sent[peer];
            *by_hub = *by_hub || hub.post(&send(PeerIndex(peer as u32)), Instant(0)).is_ok();
            *by_leaf = *by_leaf || leaf.post(&send(PEER), Instant(0)).is_ok();
            let count = leaf.poll(&mut out, Bytes::kib(64), Instant(0));
            for completion in &out[..count] {
                if let Completion::Received { peer: PEER, .. } = completion {
                    came[peer] += 1;
                }
            }
            let count = hub.poll(&mut out, Bytes::kib(64), Instant(0));
            for completion in &out[..count] {
                if let Completion::Received { peer, .. } = completion {
                    heard[peer.0 as usize] += 1;
                }
            }
        }
        let late = sent.iter().filter(|sent| **sent != [true; 2]).count();
        let heard: usize = heard.iter().sum();
        assert!(start.elapsed() < PATIENCE, "{heard} have come, {late} could not be sent");
    }
    assert!(came.iter().chain(&heard).all(|count| *count == 1));
}
