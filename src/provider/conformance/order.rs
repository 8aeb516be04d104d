//! P5: what comes after what.

use super::bench::{Arrival, Bench, Check, PASSED, ensure, pieces, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crate::fabric::{LocalSpan, OpKind, Source};

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
