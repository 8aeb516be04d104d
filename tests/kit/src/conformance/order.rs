//! P5: what comes after what.

use super::bench::{Arrival, Bench, Check, PASSED, ensure, pieces, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::fabric::{LINE_BYTES, LocalSpan, OpId, OpKind, Source};

const ROUNDS: u8 = 16;
const LARGE: usize = 64 * 1024;
/// Rounds behind those, of all that the arena holds, which takes many polls.
const LONG_ROUNDS: u8 = 1;

/// How long what a round writes is.
const fn length_of(round: u8) -> usize {
    if round > ROUNDS { ARENA_BYTES } else { LARGE }
}

/// Waits for what a round sends behind its writes, by polls that leave long ones half-way.
fn await_round<R: Rig>(bench: &mut Bench<R>, round: u8) -> Check {
    match round > ROUNDS {
        true => bench.await_slowly(Side::B, round.into(), 5),
        false => bench.await_arrivals(Side::B, round.into(), 5),
    }
}

pub fn sends_arrive_in_order<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.ordered {
        return skipped("the rail does not keep order");
    }
    let burst = bench.caps.recv_slots.min(8) as u8;
    for round in 0..ROUNDS {
        for number in 0..burst {
            bench.send(Side::A, round * burst + number, LocalSpan::EMPTY)?;
        }
        bench.await_arrivals(Side::B, (round as usize + 1) * burst as usize, 5)?;
    }
    let in_order = bench.arrivals(Side::B).enumerate().all(|(n, arrival)| match arrival {
        Arrival::Message { head, .. } => head[0] == n as u8,
        Arrival::Word(_) | Arrival::Down => false,
    });
    ensure(in_order, 5, "sends arrived out of order")?;
    PASSED
}

pub fn write_is_visible_before_a_later_send<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.ordered {
        return skipped("the rail does not keep order");
    }
    for round in 1..=ROUNDS + LONG_ROUNDS {
        bench.fill(Side::A, 0, length_of(round), round);
        for (at, length) in pieces(&bench.caps, length_of(round)) {
            bench.write(Side::A, at, length)?;
        }
        bench.send(Side::A, round, LocalSpan::EMPTY)?;
        await_round(&mut bench, round)?;
        let why = "a send overtook an earlier write";
        let length = bench.whole(length_of(round));
        ensure(bench.holds(Side::B, 0, length, round), 5, why)?;
        bench.finish(2)?;
    }
    PASSED
}

/// The word of a round: each of its bits is set in one round and clear in another.
const fn word(round: u8) -> u32 {
    let word = (round as u32) << 24 | 0xffff;
    if round.is_multiple_of(2) { !word } else { word }
}

pub fn immediate_comes_after_its_data<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.immediate {
        return skipped("the rail has no immediates");
    }
    for round in 1..=ROUNDS + LONG_ROUNDS {
        let length = bench.cut(length_of(round));
        bench.fill(Side::A, 0, length, round);
        let source = Source::Span(bench.local(Side::A, 0, length));
        let target = bench.remote(Side::B, 0);
        let immediate = Some(word(round));
        bench.post_patiently(Side::A, OpKind::Write { source, target, immediate })?;
        await_round(&mut bench, round)?;
        let why = "an immediate came before its data";
        ensure(bench.holds(Side::B, 0, length, round), 5, why)?;
        let last = bench.arrivals(Side::B).last();
        ensure(last == immediate.map(Arrival::Word), 5, "another immediate came than was sent")?;
        bench.finish(2)?;
    }
    PASSED
}

/// What an op moves that goes behind longer ones.
const SHORT: usize = LINE_BYTES;
/// Rounds of such ops, behind longer ones that one poll may work off and that take many, in turn.
const ROUNDS_BEHIND: u8 = 4;
/// Where short ops take their bytes from at A, or bring them to: beside what long ones move.
const ASIDE: usize = ARENA_BYTES / 2;
/// What long writes bring, short ones, and lines.
const LONG: u8 = 0x11;
const BRIEF: u8 = 0x22;
const LINED: u8 = 0x33;

/// The last places of what long writes bring to B, one for each kind of short op.
const fn places(whole: usize) -> [usize; 4] {
    [whole - SHORT, whole - 2 * SHORT, whole - 3 * SHORT, whole - 4 * SHORT]
}

/// Reads a place of B's to another one of A's.
fn read_place<R: Rig>(bench: &mut Bench<R>, from: usize, to: usize) -> Check<OpId> {
    let (target, source) = (bench.local(Side::A, to, SHORT), bench.remote(Side::B, from));
    bench.post_patiently(Side::A, OpKind::Read { target, source })
}

/// Posts a short op of each kind that the rail has; reads of what short and long writes bring.
fn post_short<R: Rig>(bench: &mut Bench<R>, whole: usize) -> Check {
    let [written, lined, added, left] = places(whole);
    let sources = [Source::Span(bench.local(Side::A, ASIDE, SHORT)), Source::Line([LINED; SHORT])];
    for (source, at) in sources.into_iter().zip([written, lined]) {
        let target = bench.remote(Side::B, at);
        bench.post_patiently(Side::A, OpKind::Write { source, target, immediate: None })?;
    }
    if bench.caps.atomic_bytes == 8 {
        let target = bench.remote(Side::B, added);
        bench.post_patiently(Side::A, OpKind::Add { target, value: 1 })?;
    }
    if bench.caps.pull {
        read_place(bench, written, ASIDE + SHORT)?;
        read_place(bench, left, ASIDE + 2 * SHORT)?;
    }
    Ok(())
}

/// Whether each of them found what long writes had brought.
fn ensure_behind<R: Rig>(bench: &mut Bench<R>, whole: usize) -> Check {
    let [written, lined, added, _] = places(whole);
    let sum = u64::from_ne_bytes([LONG; 8]) + u64::from(bench.caps.atomic_bytes == 8);
    let in_order = bench.holds(Side::B, 0, added, LONG)
        && bench.holds(Side::B, written, SHORT, BRIEF)
        && bench.holds(Side::B, lined, SHORT, LINED)
        && bench.word(Side::B, added) == sum;
    ensure(in_order, 5, "a short op overtook an earlier long write")?;
    let sees = !bench.caps.pull
        || bench.holds(Side::A, ASIDE + SHORT, SHORT, BRIEF)
            && bench.holds(Side::A, ASIDE + 2 * SHORT, SHORT, LONG);
    ensure(sees, 5, "a short read overtook an earlier write")
}

pub fn short_ops_stay_behind_longer_ones<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    if !bench.caps.ordered {
        return skipped("the rail does not keep order");
    }
    for round in 1..=ROUNDS_BEHIND {
        let wanted = if round.is_multiple_of(2) { ASIDE } else { LARGE };
        let whole = bench.whole(wanted);
        bench.fill(Side::A, 0, whole, LONG);
        bench.fill(Side::A, ASIDE, SHORT, BRIEF);
        bench.fill(Side::A, ASIDE + SHORT, 2 * SHORT, 0);
        bench.fill(Side::B, 0, whole, 0);
        for (at, length) in pieces(&bench.caps, wanted) {
            bench.write(Side::A, at, length)?;
        }
        post_short(&mut bench, whole)?;
        bench.send(Side::A, round, LocalSpan::EMPTY)?;
        bench.await_slowly(Side::B, round.into(), 5)?;
        bench.finish(2)?;
        ensure_behind(&mut bench, whole)?;
    }
    PASSED
}
