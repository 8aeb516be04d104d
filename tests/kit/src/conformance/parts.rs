//! P5: writes whose bytes lie in several places.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, QUIET, ensure, fail};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::fabric::{LocalSpan, OpId, PostError, Provider, RemoteSpan};

/// Parts that are tried at most.
const PARTS_MAX: usize = 8;
/// Places of the parts, further apart than any is long, most of them odd; not in the order of the
/// parts.
const APART: usize = 16 * 1024;
/// Where they go, which is odd too.
const TARGET: usize = ARENA_BYTES / 2 + 3;
/// Lengths of the parts of each round: inline on devices that have that, with empty ones between,
/// of several packets, and all kinds beside each other.
const LENGTHS: [[usize; PARTS_MAX]; 4] = [
    [32, 7, 1, 64, 3, 5, 9, 2],
    [8, 0, 24, 0, 1, 0, 40, 0],
    [64, 9000, 1, 4097, 4096, 33, 12_000, 5],
    [0; PARTS_MAX],
];

/// Where a part lies: even ones in front, odd ones behind, each group backwards.
const fn place(part: usize) -> usize {
    let group = part % 2 * (PARTS_MAX / 2);
    (group + PARTS_MAX / 2 - 1 - part / 2) * APART + part
}

fn posted<R: Rig>(
    bench: &mut Bench<R>,
    parts: &[LocalSpan],
    target: RemoteSpan,
    immediate: Option<u32>,
) -> Check<OpId> {
    let id = bench.past_again(|bench| bench.post_gather(Side::A, parts, target, immediate))?;
    match bench.fate(id) {
        Fate::Refused(_) => fail(1, "a write of parts that the rail has was refused"),
        Fate::Pending | Fate::Ended(_) => Ok(id),
    }
}

pub fn parts_of_a_write_arrive_one_behind_the_other<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let peer = bench.rig.peer(Side::A);
    let most = bench.rig.provider(Side::A).parts_max(peer);
    ensure(most > 0, 5, "a write has at least one part")?;
    let target = bench.remote(Side::B, TARGET);
    let one = bench.local(Side::A, 0, 8);
    let beyond = [one; PARTS_MAX + 1];
    if most <= PARTS_MAX {
        let id = bench.post_gather(Side::A, &beyond[..most + 1], target, None)?;
        let why = "more parts than the rail has were accepted";
        ensure(bench.fate(id) == Fate::Refused(PostError::Unsupported), 5, why)?;
    }
    let mut words = 0;
    for count in 1..=if most == 1 { 0 } else { most.min(PARTS_MAX) } {
        for (round, lengths) in LENGTHS.iter().enumerate() {
            let has_word = bench.caps.immediate && round + 1 < LENGTHS.len();
            let word = has_word.then_some(!(count * 16 + round) as u32);
            words += usize::from(has_word);
            round_of(&mut bench, &lengths[..count], word, words)?;
        }
    }
    PASSED
}

fn round_of<R: Rig>(
    bench: &mut Bench<R>,
    lengths: &[usize],
    word: Option<u32>,
    words: usize,
) -> Check {
    let mut parts = [LocalSpan::EMPTY; PARTS_MAX];
    // all of them together are one transfer
    let most = bench.cut(ARENA_BYTES) / PARTS_MAX;
    let mut whole = 0;
    for (n, length) in lengths.iter().enumerate() {
        let length = most.min(*length);
        bench.fill(Side::A, place(n), length, n as u8 + 1);
        parts[n] = bench.local(Side::A, place(n), length);
        whole += length;
    }
    bench.fill(Side::B, TARGET, whole + 1, 0xee);
    let target = bench.remote(Side::B, TARGET);
    let id = posted(bench, &parts[..lengths.len()], target, word)?;
    bench.finish(2)?;
    ensure(bench.succeeded(id), 5, "a write of several parts failed")?;
    if let Some(word) = word {
        bench.await_arrivals(Side::B, words, 5)?;
        let last = bench.arrivals(Side::B).last();
        ensure(last == Some(Arrival::Word(word)), 5, "another immediate came than was sent")?;
    }
    let why = "the parts of a write lie in another order, or not one behind the other";
    let mut at = TARGET;
    for (n, length) in lengths.iter().map(|length| most.min(*length)).enumerate() {
        let lies = |bench: &mut Bench<R>| bench.holds(Side::B, at, length, n as u8 + 1);
        match word {
            Some(_) => ensure(lies(bench), 5, why)?,
            None => bench.wait_until((5, why), lies)?,
        }
        at += length;
    }
    if word.is_none() {
        bench.rounds(QUIET)?;
    }
    ensure(bench.byte(Side::B, at) == 0xee, 5, "a write of several parts is longer than they are")
}
