//! Companions: adds of a port to words of its own process. In the guest over soft-RoCE devices, and
//! over our own libibverbs with refusals and failures that no device here has.

mod verbs_support;

use crosstie::base::units::Bytes;
use crosstie::fabric::{DeregisterError, Domain, MemoryDomain, MemoryKind, RailKey, Region};
use crosstie::memory::Errno;
use crosstie::provider::verbs::companion::{ADDS_MAX, AddError, AddNumber, Companion};
use crosstie::provider::verbs::companion::{CompanionError, OutcomeUnknown};
use verbs_support::fake::{libraries, story_told, told_in};
use verbs_support::{BLOCK_BYTES, World};

/// Where counters lie in a block; writes go elsewhere.
const WORDS_AT: usize = 512 << 10;

/// Adds to a word of side 0's block, polling as long as the answer is `Again`.
fn add(world: &mut World, companion: &mut Companion<'static>, at: usize, value: u64) -> AddNumber {
    let (key, address) = (world.keys[0], world.remote(0, at).address);
    loop {
        match companion.add(key, address, value) {
            Ok(number) => return number,
            Err(AddError::Again) => {
                world.poll();
                companion.poll(&mut world.rails[0]);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// How an add ends.
fn end(
    world: &mut World,
    companion: &mut Companion<'static>,
    number: AddNumber,
) -> Result<(), OutcomeUnknown> {
    loop {
        if let Some(outcome) = companion.outcome(number) {
            return outcome;
        }
        world.poll();
        companion.poll(&mut world.rails[0]);
    }
}

fn open(world: &World) -> Companion<'static> {
    Companion::open(&world.rails[0]).unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn counters_of_a_device_hold_the_sum_of_all_adds_beside_traffic() {
    let Some(mut world) = World::new() else { return };
    const ADDS: u64 = 500;
    let mut companion = open(&world);
    let mut numbers = vec![];
    for n in 0..ADDS {
        let write = world.write(0, (n as usize % 16) * 4096, 4096);
        if n % 8 == 0 {
            assert!(world.end(0, write));
        }
        world.write(1, 128 << 10, 1000);
        // two words, one of which wraps around
        numbers.push(add(&mut world, &mut companion, WORDS_AT, 3));
        numbers.push(add(&mut world, &mut companion, WORDS_AT + 8, u64::MAX));
    }
    for number in numbers {
        assert_eq!(end(&mut world, &mut companion, number), Ok(()));
    }
    assert_eq!(world.word(0, WORDS_AT), 3 * ADDS);
    assert_eq!(world.word(0, WORDS_AT + 8), ADDS.wrapping_neg());
    assert!(!companion.is_busy() && !companion.is_lost());
    assert_eq!(world.downs(0) + world.downs(1), 0);
}

#[test]
fn sink_of_a_device_at_its_own_address_is_refused_at_set_up() {
    let Some(world) = World::new() else { return };
    let refused = Companion::open_with_ordinary_sink(&world.rails[0]);
    let why = refused.map(drop).unwrap_err();
    assert!(matches!(why, CompanionError::SinkElsewhere(_)), "{why:?}");
    assert!(why.to_string().contains("iova 0"), "{why}");
}

#[test]
fn words_that_no_add_of_a_device_can_be_meant_for_are_refused_and_nothing_is_posted() {
    let Some(mut world) = World::new() else { return };
    let mut companion = open(&world);
    let (key, address) = (world.keys[0], world.remote(0, WORDS_AT).address);
    let behind = world.remote(0, 0).address + BLOCK_BYTES as u64;
    assert_eq!(companion.add(key, address + 4, 1), Err(AddError::Unaligned));
    assert_eq!(companion.add(key, behind, 1), Err(AddError::Region));
    assert_eq!(companion.add(key, address - (2 << 20), 1), Err(AddError::Region));
    assert_eq!(companion.add(RailKey(key.0 ^ 1 << 16), address, 1), Err(AddError::Region));
    assert!(!companion.is_busy());
    let number = add(&mut world, &mut companion, WORDS_AT, 1);
    assert_eq!(end(&mut world, &mut companion, number), Ok(()));
    assert_eq!(world.word(0, WORDS_AT), 1);
}

/// What the device of a story has from now on.
fn turn(fake: &str) {
    // SAFETY: the one thread of the story's that reads or writes the environment.
    unsafe { std::env::set_var("FAKE", fake) };
}

/// What the others start, each in a process of its own.
#[test]
fn storyteller() {
    let Some(story) = story_told() else { return };
    let mut world = World::new().expect("the library is there");
    match story.as_str() {
        "open" => match Companion::open(&world.rails[0]) {
            Ok(_) => println!("opened"),
            Err(why) => println!("{why}"),
        },
        "fail" => fail(&mut world, "unanswered"),
        "bad key" => fail(&mut world, "bad_key"),
        "fail and stay" => fail_and_stay(&mut world),
        "be removed" => fail(&mut world, "silent event=8 dead"),
        "lose the address" => fail(&mut world, "silent event=18 gid_moves"),
        "fill" => fill(&mut world),
        "lack adds" => lack_adds(&mut world),
        "refuse a post" => refuse_a_post(&mut world),
        _ => panic!("no story is called {story}"),
    }
}

/// An add ends well, another was posted when the device or its port fails.
fn fail(world: &mut World, fake: &str) {
    let mut companion = open(world);
    let early = add(world, &mut companion, WORDS_AT, 1);
    assert_eq!(end(world, &mut companion, early), Ok(()));
    turn(fake);
    let late = add(world, &mut companion, WORDS_AT, 1);
    let domain = world.rails[0].domain();
    assert_eq!(domain.deregister(world.keys[0]), Err(DeregisterError::Busy));
    // the companion alone is polled, as where no peer is open
    while companion.outcome(late).is_none() {
        companion.poll(&mut world.rails[0]);
    }
    assert_eq!(companion.outcome(late), Some(Err(OutcomeUnknown)));
    assert_eq!(companion.outcome(early), Some(Ok(())), "what was known stays so");
    let (key, address) = (world.keys[0], world.remote(0, WORDS_AT).address);
    turn("");
    assert_eq!(companion.add(key, address, 1), Err(AddError::Lost));
    assert!(companion.is_lost() && !companion.is_busy());
    assert_eq!(domain.deregister(key), Ok(()), "the device touches nothing any more");
    println!("unknown");
}

/// A device that does not destroy queue pairs may add still: the word stays registered.
fn fail_and_stay(world: &mut World) {
    let mut companion = open(world);
    turn("unanswered stuck");
    let number = add(world, &mut companion, WORDS_AT, 1);
    companion.poll(&mut world.rails[0]);
    assert_eq!(companion.outcome(number), Some(Err(OutcomeUnknown)));
    turn("");
    let deregistered = world.rails[0].domain().deregister(world.keys[0]);
    assert_eq!(deregistered, Err(DeregisterError::Busy));
    println!("unknown");
}

fn fill(world: &mut World) {
    let mut companion = open(world);
    let (key, address) = (world.keys[0], world.remote(0, WORDS_AT).address);
    turn("late");
    for _ in 0..ADDS_MAX {
        companion.add(key, address, 1).expect("room");
    }
    assert_eq!(companion.add(key, address, 1), Err(AddError::Again));
    turn("");
    companion.poll(&mut world.rails[0]);
    companion.add(key, address, 1).expect("room again");
    println!("filled");
}

/// The device registers some memory without adds, which it has.
fn lack_adds(world: &mut World) {
    let mut companion = open(world);
    let address = world.remote(0, WORDS_AT).address;
    let region = Region { address, length: Bytes::kib(4), kind: MemoryKind::Host };
    turn("refuses_adds=22");
    // SAFETY: a part of a leaked block.
    let key = unsafe { world.rails[0].domain().register(region) }.expect("memory of our own");
    turn("");
    assert_eq!(companion.add(key, address, 1), Err(AddError::NoAdds));
    assert_eq!(world.rails[0].domain().deregister(key), Ok(()), "nothing holds it");
    let number = add(world, &mut companion, WORDS_AT, 1);
    assert_eq!(end(world, &mut companion, number), Ok(()));
    println!("refused");
}

fn refuse_a_post(world: &mut World) {
    let mut companion = open(world);
    let (key, address) = (world.keys[0], world.remote(0, WORDS_AT).address);
    turn("sends_refused");
    assert_eq!(companion.add(key, address, 1), Err(AddError::Refused(Errno(libc::EINVAL))));
    assert!(!companion.is_busy());
    turn("");
    let number = add(world, &mut companion, WORDS_AT, 1);
    assert_eq!(end(world, &mut companion, number), Ok(()));
    assert_eq!(world.word(0, WORDS_AT), 1);
    println!("refused");
}

/// The story of a device that is so has this in it.
fn tells(story: &str, fake: &str, wanted: &str) {
    let Some([folder, _]) = libraries() else { return };
    let said = told_in(folder, story, fake);
    assert!(said.contains(wanted), "{story} of a device with {fake:?} has no {wanted:?}:\n{said}");
}

#[test]
fn devices_that_can_have_none_are_refused_by_name() {
    tells("open", "", "opened");
    tells("open", "no_atomics", "the device has no atomics");
    tells("open", "iova_refused", "does not register memory at address 0 (iova 0): errno 22");
    tells("open", "no_iova", "does not find the memory that was registered at address 0");
    tells("open", "sink_lost", "an add for trial has left a wrong value");
    let Some([_, old]) = libraries() else { return };
    let said = told_in(old, "open", "");
    assert!(said.contains("libibverbs has no ibv_reg_mr_iova2"), "{said}");
}

#[test]
fn outcome_of_an_add_is_unknown_when_device_or_port_fails_before_it_ends() {
    tells("fail", "", "unknown");
    tells("bad key", "", "unknown");
    tells("be removed", "", "unknown");
    tells("lose the address", "", "unknown");
    tells("fail and stay", "", "unknown");
}

#[test]
fn companion_that_has_no_room_says_again() {
    tells("fill", "", "filled");
}

#[test]
fn add_that_the_device_does_not_take_has_not_been_posted() {
    tells("refuse a post", "", "refused");
}

#[test]
fn memory_that_the_device_registers_without_adds_takes_none() {
    tells("lack adds", "", "refused");
}
