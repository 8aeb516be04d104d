//! The verbs rail keeps the contract, over the RDMA devices that this host has, and each of its
//! promises beyond it.
//!
//! What stands here and not in the suite is about ops on real queue pairs that may overtake each
//! other's answers, several of them at once, and their life: other rails promise less, or have
//! nothing like it.

mod common;
mod verbs_support;

use common::{Pair, Pause, Rejoin};
use crosstie::base::ids::{PeerIndex, RailGeneration};
use crosstie::fabric::{
    CloseError, Completion, DownCause, FenceKind, LocalSpan, MemoryDomain, Op, OpErrorKind, OpId,
    OpKind, PeerLife, PostError, Posted, Provider, RailKey, RemoteSpan, Source,
};
use crosstie::provider::verbs::{PeerOpenError, RECEIVES, Verbs};
use verbs_support::verbs_pair::connect;
use verbs_support::{
    BLOCK_BYTES, LIMITS, OTHER, PEER, World, ends, let_device_work, rails, rails_adaptive, rails_as,
};

/// The device moves bytes between polls (the budget), nothing repeats exactly, and no peer may be
/// sent longer payloads than all.
const SKIPS: usize = 3;
const LARGE: usize = 128 * 1024;
/// Rounds that are longer than what was on its way takes.
const QUIET: u32 = 64;

fn pair(ends: &[String; 2]) -> Pair<Verbs<'static>> {
    pair_of(rails(ends, LIMITS))
}

fn pair_of(rails: [Verbs<'static>; 2]) -> Pair<Verbs<'static>> {
    let mut generation = 1;
    let rejoin: Rejoin<_> = Box::new(move |rails| {
        generation += 1;
        let rails = rails.try_into().expect("two rails");
        connect(rails, PeerIndex(0), RailGeneration(generation));
    });
    Pair { providers: rails.into(), peers: [PeerIndex(0); 2], rejoin: Some(rejoin) }
}

#[test]
fn verbs_keep_every_promise() {
    let Some(ends) = ends() else { return };
    println!("over {} and {}", ends[0], ends[1]);
    let pause = Some(Pause { wait: |_| let_device_work(), threads: true });
    common::run_all_pausing(move || pair(&ends), SKIPS, pause);
}

/// As adaptive routing wants it: no order is promised then, which three entries are about.
#[test]
fn verbs_keep_every_promise_when_data_and_word_are_two_requests() {
    let Some(ends) = ends() else { return };
    let pair = |ends: &[String; 2]| pair_of(rails_adaptive(ends, LIMITS, 1));
    let pause = Some(Pause { wait: |_| let_device_work(), threads: true });
    common::run_all_pausing(move || pair(&ends), SKIPS + 3, pause);
}

/// What a device of the guest has: posts told one by one.
#[test]
fn verbs_keep_every_promise_by_the_extended_interface() {
    let Some(ends) = ends() else { return };
    let rails = |ends: &[String; 2]| rails_as(ends, LIMITS, |config| config.extended_post = true);
    let in_use = rails(&ends).map(|rail| rail.is_extended(PEER));
    if std::env::var_os("XTIE_VM").is_none() && in_use != [true; 2] {
        println!("SKIP: library or driver have no extended interface");
        return;
    }
    assert_eq!(in_use, [true; 2], "soft-RoCE has the extended interface");
    let pair = move || pair_of(rails(&ends));
    let pause = Some(Pause { wait: |_| let_device_work(), threads: true });
    common::run_all_pausing(pair, SKIPS, pause);
}

/// Nothing had to be destroyed to be ended.
fn all_drained(world: &World) {
    for rail in &world.rails {
        assert_eq!(rail.health().undrained, 0, "a queue pair did not give back what it had");
    }
}

#[test]
fn read_is_not_changed_by_a_later_write() {
    let Some(mut world) = World::new() else { return };
    let half = BLOCK_BYTES / 2;
    for round in 1..=16u8 {
        world.fill(1, 0, LARGE, round);
        world.fill(0, half, LARGE, 0xee);
        let (target, source) = (world.local(0, 0, LARGE), world.remote(1, 0));
        let read = world.post(0, OpKind::Read { target, source });
        let source = Source::Span(world.local(0, half, LARGE));
        let target = world.remote(1, 0);
        let write = world.post(0, OpKind::Write { source, target, immediate: None });
        assert!(world.end(0, read) && world.end(0, write));
        assert!(world.holds(0, 0, LARGE, round), "a read brought what was written after it");
        assert!(world.holds(1, 0, LARGE, 0xee));
    }
}

#[test]
fn read_sees_an_earlier_add_and_a_line_sees_neither() {
    let Some(mut world) = World::new() else { return };
    for round in 1..=64u64 {
        let target = world.remote(1, 0);
        world.add(0, PEER, target, 1);
        let target = world.local(0, 512, 8);
        let source = world.remote(1, 0);
        let read = world.post(0, OpKind::Read { target, source });
        world.line(0, 64, round as u8);
        assert!(world.end(0, read));
        assert_eq!(world.word(0, 512), round, "a read overtook an add");
    }
}

/// Of control memory nobody gets a completion: who polls it must find in it what came before.
#[test]
fn line_is_seen_after_the_write_before_it() {
    let Some(mut world) = World::new() else { return };
    for round in 1..=32u8 {
        world.fill(0, 4096, LARGE, round);
        world.write(0, 4096, LARGE);
        world.line(0, 0, round);
        world.until("a line is seen", |world| world.byte(1, 63) == round);
        assert!(world.holds(1, 4096, LARGE, round), "a line was seen before an earlier write");
        assert!(world.holds(1, 0, 64, round), "a line was seen in part");
    }
}

#[test]
fn adds_through_several_queue_pairs_and_both_ways_sum_up() {
    let Some(mut world) = World::new() else { return };
    world.join(OTHER, 1);
    let mut ids = Vec::new();
    // four queue pairs of two devices on two words, all at once
    for n in 0..800u64 {
        let side = n as usize / 2 % 2;
        let target = world.remote(1 - side, 0);
        let value = 1 << (n % 2 * 32);
        let peer = [PEER, OTHER][n as usize % 2];
        ids.push((side, world.add(side, peer, target, value)));
    }
    for (side, id) in ids {
        assert!(world.end(side, id), "an add failed");
    }
    for side in [0, 1] {
        assert_eq!(world.word(side, 0), 200 << 32 | 200, "adds of two queue pairs got lost");
    }
}

#[test]
fn bytes_are_whole_whatever_way_they_take() {
    let Some(mut world) = World::new() else { return };
    // inline, staged, in one packet, in many; and beside each other in one chain
    let lengths = [1, 8, 64, 187, 188, 189, 220, 221, 1000, 4096, 8192];
    for (n, length) in lengths.into_iter().enumerate() {
        world.fill(0, 0, length, n as u8 + 1);
        world.send(0, n as u8, length);
        world.fill(0, 0, length, 0xee); // the send has read it
    }
    world.until("all messages come", |world| world.seen[1].len() == lengths.len());
    for (n, length) in lengths.into_iter().enumerate() {
        let Completion::Received { slot, head, length: got, .. } = world.seen[1][n] else {
            panic!("{:?}", world.seen[1][n])
        };
        assert_eq!((head, got as usize), ([n as u8; 32], length));
        let to = world.local(1, 0, length);
        world.rails[1].received_take(PEER, slot, to);
        assert!(world.holds(1, 0, length, n as u8 + 1), "message {n} came with other bytes");
    }
    for (n, length) in [1, 8, 220, 221, 4096, 500_000].into_iter().enumerate() {
        world.fill(0, 64, length, n as u8 + 100);
        let id = world.write(0, 64, length);
        assert!(world.end(0, id), "{length} bytes: {:?}", world.rails[0].error(PEER));
        assert!(world.holds(1, 64, length, n as u8 + 100), "{length} bytes came otherwise");
    }
}

/// The queue of sends is shorter than what is posted, and nobody hears of most of it.
#[test]
fn quiet_sends_never_fill_the_queue() {
    let Some(mut world) = World::new() else { return };
    for round in 0..2000u32 {
        world.line(0, 64 * (round as usize % 64), round as u8);
    }
    let id = world.write(0, 8192, 1);
    assert!(world.end(0, id));
    for n in 0..64 {
        assert_eq!(u32::from(world.byte(1, 64 * n as usize)), last_round(n) & 0xff, "line {n}");
    }
    world.line(0, 0, 1); // one that nobody waits for
    while world.rails[0].is_undelivered(PEER) {
        world.poll();
    }
}

/// The last of 2000 rounds that wrote line `n` of 64.
fn last_round(n: u32) -> u32 {
    (0..2000).rev().find(|round| round % 64 == n).unwrap()
}

#[test]
fn all_receives_are_there_for_words_too() {
    let Some(mut world) = World::new() else { return };
    for round in 0..8u32 {
        let before = world.seen[1].len();
        for n in 0..RECEIVES as u32 {
            let source = Source::Span(LocalSpan::EMPTY);
            let immediate = Some(round << 16 | n);
            let target = world.remote(1, 0);
            world.post(0, OpKind::Write { source, target, immediate });
        }
        world.until("all words come", |world| world.seen[1].len() == before + RECEIVES);
        for (n, seen) in world.seen[1][before..].iter().enumerate() {
            let expected = round << 16 | n as u32;
            let same = matches!(seen, Completion::Immediate { immediate, .. }
                if *immediate == expected);
            assert!(same, "{seen:?} and not {expected:#x}");
        }
    }
}

/// More than the peer has receives for breaks the connection with the word for it, at once: a
/// broken credit is not hidden by waiting.
#[test]
fn message_without_a_receive_is_an_error_with_both_gids() {
    let Some(mut world) = World::new() else { return };
    for n in 0..=RECEIVES {
        world.send(0, n as u8, 0);
    }
    world.until("the peer is down", |world| world.downs(0) == 1);
    let down = world.seen[0].iter().find(|seen| matches!(seen, Completion::PeerDown { .. }));
    let cause = DownCause::Broken(libc::ENOBUFS);
    assert!(
        matches!(down, Some(Completion::PeerDown { cause: told, .. }) if *told == cause),
        "{down:?}"
    );
    let text = world.rails[0].error(PEER).expect("what broke it").to_string();
    println!("{text}");
    assert!(text.contains("the peer had no receive posted"), "{text}");
    assert!(text.contains("vendor code"), "{text}");
    let gids = world
        .rails
        .each_ref()
        .map(|rail| crosstie::provider::verbs::GidText(rail.gid()).to_string());
    assert!(text.contains(&format!("from {} to {}", gids[0], gids[1])), "{text}");
}

/// A key of our own that is none harms nothing but its op.
/// The kernel would look for it for a second, with the caller in it, and say that it timed out.
#[test]
fn peer_that_nobody_answers_for_is_refused_without_the_kernel() {
    let Some(mut world) = World::new() else { return };
    if ends().is_none_or(|ends| ends[0] == ends[1]) {
        println!("no wire: nobody is asked for addresses here");
        return;
    }
    let rail = &mut world.rails[0];
    let mut hello = rail.peer_prepare(OTHER, RailGeneration(1), 7).expect("prepared");
    let mut gid = hello.gid.to_le_bytes();
    gid[15] = 77;
    hello.gid = u128::from_le_bytes(gid);
    for _ in 0..3 {
        assert_eq!(rail.peer_connect(OTHER, &hello), Err(PeerOpenError::NoAnswer));
    }
    rail.peer_detach(OTHER).expect("it has nothing on its way");
    // the number is free again, and the way to others open
    world.join(OTHER, 2);
}

#[test]
fn bad_key_of_our_own_ends_its_op_alone() {
    let Some(mut world) = World::new() else { return };
    let good = world.local(0, 0, 64);
    // SAFETY: memory that stays; no key that names it.
    let bad = unsafe { LocalSpan::new(good.address(), good.length(), Default::default()) };
    let target = world.remote(1, 0);
    let kind = OpKind::Write { source: Source::Span(bad), target, immediate: None };
    let id = world.post(0, kind);
    assert!(!world.end(0, id));
    let told = world.seen[0].iter().any(|seen| {
        matches!(seen, Completion::Done { result: Err(error), .. }
            if error.kind == OpErrorKind::Key)
    });
    assert!(told, "{:?}", world.seen[0]);
    let id = world.write(0, 0, 64);
    assert!(world.end(0, id), "a bad key of our own broke the connection");
}

/// Both sides fence a rail under load and open it again: nothing of the old queue pair lands, held
/// messages stay, and the new one works.
#[test]
fn fenced_peer_comes_back_with_a_new_queue_pair() {
    let Some(mut world) = World::new() else { return };
    assert_eq!(world.rails[0].caps(PEER).fence, FenceKind::Local);
    for generation in 2..6u32 {
        world.seen = [Vec::new(), Vec::new()];
        world.fill(0, 0, 64, generation as u8);
        world.send(0, 7, 64);
        world.until("a message comes", |world| !world.seen[1].is_empty());
        let Completion::Received { slot, .. } = world.seen[1][0] else { panic!() };
        for n in 0..4 {
            world.write(0, 4096 + n * LARGE, LARGE);
            world.write(1, 4096 + n * LARGE, LARGE);
        }
        world.poll(); // now they are on their way
        world.send(0, 8, 100);
        let fences = [world.fence(0), world.fence(1)];
        let busy = world.rails[0].peer_detach(PEER);
        assert_eq!(busy, Err(CloseError::Busy), "fences are ops too");
        for (side, id) in fences.into_iter().enumerate() {
            assert!(world.end(side, id));
            world.fill(side, 4096, 4 * LARGE, 0xee);
        }
        for _ in 0..QUIET {
            world.poll();
            let_device_work();
        }
        for side in 0..2 {
            assert!(world.holds(side, 4096, 4 * LARGE, 0xee), "a fence holds nothing off");
            assert_eq!(world.rails[side].peer_detach(PEER), Ok(()));
        }
        world.join(PEER, generation);
        world.fill(0, 0, 64, 0xaa);
        for n in 0..RECEIVES as u8 - 1 {
            world.send(0, 100 + n, 64); // the last receive is the held message's
        }
        let heads = |world: &World| {
            let seen = world.seen[1].iter();
            let is_new = |head: &[u8; 32]| head[0] >= 100;
            seen.filter(|seen| matches!(seen, Completion::Received { head, .. } if is_new(head)))
                .count()
        };
        world.until("messages come", |world| heads(world) == RECEIVES - 1);
        for side in 0..2 {
            assert!(world.holds(side, 4096, 4 * LARGE, 0xee), "bytes came behind a fence");
        }
        let to = world.local(1, 512, 64);
        world.rails[1].received_take(PEER, slot, to);
        assert!(world.holds(1, 512, 64, generation as u8), "a held message was written over");
        for seen in std::mem::take(&mut world.seen[1]) {
            if let Completion::Received { slot, head, .. } = seen
                && head[0] >= 100
            {
                world.rails[1].received_release(PEER, slot);
            }
        }
        let id = world.write(0, 4096, LARGE);
        assert!(world.end(0, id), "the new queue pair does not work");
    }
    all_drained(&world);
}

/// Whoever only hears of the end from the side band gets back what it had posted.
#[test]
fn one_peer_ends_and_the_other_goes_on() {
    let Some(mut world) = World::new() else { return };
    world.join(OTHER, 1);
    let lost = world.write(0, 0, LARGE);
    world.rails[0].peer_fail(PEER, DownCause::Died);
    world.end(0, lost);
    world.until("the end is told", |world| world.downs(0) == 1);
    let kind = world.write_kind(0, LARGE, LARGE);
    world.fill(0, LARGE, LARGE, 0x77);
    let id = world.post_to(0, OTHER, kind);
    assert!(world.end(0, id) && world.holds(1, LARGE, LARGE, 0x77));
    assert_eq!(world.rails[0].peer_close(PEER), Ok(()));
    all_drained(&world);
}

/// How a peer of [`random_ops_end_once_however_the_peer_ends`] ends.
#[derive(Copy, Clone, Debug)]
enum Ending {
    FenceBoth,
    FenceOne,
    Fail,
    BadKey,
}

const ENDINGS: [Ending; 4] = [Ending::FenceBoth, Ending::FenceOne, Ending::Fail, Ending::BadKey];

/// One op of a kind that `random` chooses; `false`: it was not accepted.
fn post_random(
    world: &mut World,
    side: usize,
    id: u64,
    random: &mut impl FnMut(u64) -> u64,
) -> bool {
    let at = 4096 * random(64) as usize;
    let length = [0, 1, 64, 300, 4096, 100_000][random(6) as usize];
    let kind = match random(6) {
        0 => OpKind::Add { target: world.remote(1 - side, 512 * 1024), value: 1 },
        1 => {
            let target = world.local(side, at, length);
            OpKind::Read { target, source: world.remote(1 - side, at) }
        }
        2 => {
            let source = Source::Line([id as u8; 64]);
            OpKind::Write { source, target: world.remote(1 - side, at), immediate: None }
        }
        _ => world.write_kind(side, at, length),
    };
    match world.rails[side].post(&Op { id: OpId(id), peer: PEER, kind }, world.now) {
        Ok(Posted::Pending) => true,
        Ok(Posted::Done) => {
            world.seen[side].push(Completion::Done { peer: PEER, id: OpId(id), result: Ok(()) });
            true
        }
        Err(PostError::Again | PostError::PeerDown) => false,
        Err(PostError::Unsupported) => panic!("{kind:?} is unsupported"),
    }
}

fn ends_of(world: &World, side: usize, wanted: u64) -> usize {
    let is_its = |seen: &&Completion| match seen {
        Completion::Done { id, .. } | Completion::Fenced { id, .. } => id.0 == wanted,
        _ => false,
    };
    world.seen[side].iter().filter(is_its).count()
}

#[test]
fn random_ops_end_once_however_the_peer_ends() {
    const SEED: u64 = 11;
    const ROUNDS: u32 = 24;
    let Some(mut world) = World::new() else { return };
    let mut state = SEED;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for round in 0..ROUNDS {
        world.seen = [Vec::new(), Vec::new()];
        let mut accepted = Vec::new();
        for id in 0..100 + random(100) {
            let side = random(2) as usize;
            if post_random(&mut world, side, id, &mut random) {
                accepted.push((side, id));
            }
            if random(8) == 0 {
                world.poll();
            }
        }
        let ending = ENDINGS[random(4) as usize];
        let fences = |world: &mut World, side| (side, world.fence(side).0);
        match ending {
            Ending::FenceBoth => accepted.extend([0, 1].map(|side| fences(&mut world, side))),
            Ending::FenceOne => accepted.push(fences(&mut world, 0)),
            Ending::Fail => world.rails[1].peer_fail(PEER, DownCause::Died),
            Ending::BadKey => {
                let target = RemoteSpan { key: RailKey(1 << 32), ..world.remote(1, 0) };
                let source = Source::Line([0; 64]);
                world.post(0, OpKind::Write { source, target, immediate: None });
            }
        }
        for (side, id) in accepted.iter().copied() {
            let what = format!("seed {SEED}, round {round}, {ending:?}: op {id} of side {side}");
            world.until(&what, |world| ends_of(world, side, id) > 0);
        }
        for side in 0..2 {
            let id = world.fence(side);
            assert!(world.end(side, id));
        }
        for (side, id) in accepted {
            assert_eq!(ends_of(&world, side, id), 1, "seed {SEED}, round {round}: op {id}");
        }
        for side in 0..2 {
            assert!(world.downs(side) <= 1, "seed {SEED}, round {round}: {:?}", world.seen[side]);
            assert_eq!(world.rails[side].peer_close(PEER), Ok(()), "round {round}, {ending:?}");
        }
        world.join(PEER, round + 2);
    }
    all_drained(&world);
}

/// A descriptor that is no dma-buf is refused with a sentence, and nothing is registered.
#[test]
fn dmabuf_is_registered_or_refused_with_a_sentence() {
    let Some(world) = World::new() else { return };
    let address = world.blocks[0] as u64;
    let (length, kind) =
        (crosstie::base::units::Bytes::of(4096), crosstie::fabric::MemoryKind::Host);
    let region = crosstie::fabric::Region { address, length, kind };
    let refused = world.rails[0].domain().register_dmabuf(region, 0, 0);
    let error = refused.expect_err("standard input is no dma-buf");
    let words = crosstie::provider::verbs::dmabuf_refusal(error);
    println!("{error:?}: {words}");
    assert!(words.contains("dma-buf"), "{words}");
}
