//! P1 to P4 and P8: taking ops, answering for them, staying in bounds.

use super::bench::{Bench, Check, Fate, PASSED, QUIET, ensure, fail, pieces, skipped};
use super::{ARENA_BYTES, Rig, Side, Verdict};
use crosstie::base::ids::PeerIndex;
use crosstie::base::units::Bytes;
use crosstie::fabric::{Completion, LINE_BYTES, LocalSpan, OpId, OpKind, PostError, Source};

const PART: usize = 8 * 1024;
const PARTS: usize = 48;
/// Short writes behind those, which fill a long queue, too; and how far they are apart.
const SHORTS: usize = 384;
const SHORT: usize = 256;
const ROUNDS: u8 = 8;
const LARGE: usize = 128 * 1024;
const BUDGET: u64 = 4096;

const _: () = assert!(PARTS * PART + SHORTS * SHORT <= ARENA_BYTES);

fn was_refused<R: Rig>(bench: &Bench<R>, id: OpId) -> Check<bool> {
    match bench.fate(id) {
        Fate::Refused(PostError::Again) => Ok(true),
        Fate::Refused(_) => fail(1, "an op that Caps allows was refused for good"),
        Fate::Pending | Fate::Ended(_) => Ok(false),
    }
}

/// Place and length of a write of those that fill a queue.
const fn part(number: usize) -> (usize, usize) {
    match number.checked_sub(PARTS) {
        None => (number * PART, PART),
        Some(short) => (PARTS * PART + short * SHORT, SHORT),
    }
}

pub fn post_takes_whole_write_or_again_changes_nothing<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.fill(Side::A, 0, ARENA_BYTES, 0xa5);
    let mut refused = [false; PARTS + SHORTS];
    for (number, refused) in refused.iter_mut().enumerate() {
        let (at, length) = part(number);
        let kind = bench.write_kind(Side::A, at, bench.cut(length));
        let id = bench.post(Side::A, kind)?;
        *refused = was_refused(&bench, id)?;
    }
    bench.finish(2)?;
    let broken = (1, "a write was taken in part, or refused and done");
    for number in (0..refused.len()).filter(|number| !refused[*number]) {
        let (at, length) = part(number);
        let length = bench.cut(length);
        bench.wait_until(broken, |bench| bench.holds(Side::B, at, length, 0xa5))?;
    }
    bench.rounds(QUIET)?;
    for (number, refused) in refused.into_iter().enumerate() {
        let (at, length) = part(number);
        let length = bench.cut(length);
        let byte = if refused { 0 } else { 0xa5 };
        ensure(bench.holds(Side::B, at, length, byte), broken.0, broken.1)?;
    }
    PASSED
}

pub fn post_takes_whole_send_or_again_changes_nothing<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let count = bench.caps.recv_slots.min(64) as u8;
    let mut expected = 0;
    for number in 0..count {
        let kind = OpKind::Send { head: [number; 32], payload: LocalSpan::EMPTY };
        let id = bench.post(Side::A, kind)?;
        expected += usize::from(!was_refused(&bench, id)?);
    }
    bench.finish(2)?;
    let broken = (1, "accepted and arrived sends differ in number");
    bench.wait_until(broken, |bench| bench.arrived(Side::B) >= expected)?;
    bench.rounds(QUIET)?;
    ensure(bench.arrived(Side::B) == expected, broken.0, broken.1)?;
    PASSED
}

/// Each kind of op that the rail has, a few times over, no more receives than the rail has slots.
fn mixed<R: Rig>(bench: &mut Bench<R>) -> Check {
    let caps = bench.caps;
    let long = bench.cut(3 * PART);
    for number in 0..ROUNDS {
        let before = bench.arrived(Side::B);
        bench.send(Side::A, number, LocalSpan::EMPTY)?;
        let target = bench.remote(Side::B, 0);
        let source = Source::Line([number; LINE_BYTES]);
        bench.post_patiently(Side::A, OpKind::Write { source, target, immediate: None })?;
        bench.write(Side::A, 4096, 100)?;
        bench.write(Side::A, 8192, long)?;
        bench.write(Side::B, 8192 + 4 * PART, long)?;
        if caps.pull {
            bench.read(Side::A, ARENA_BYTES / 2, 64)?;
            bench.read(Side::A, ARENA_BYTES / 2 + 4096, long)?;
        }
        if caps.atomic_bytes == 8 {
            let target = bench.remote(Side::B, 128);
            bench.post_patiently(Side::A, OpKind::Add { target, value: 1 })?;
        }
        bench.await_arrivals(Side::B, before + 1, 2)?;
        bench.finish(2)?;
    }
    Ok(())
}

pub fn accepted_op_completes<R: Rig>(rig: &mut R) -> Verdict {
    mixed(&mut Bench::new(rig)?)?;
    PASSED
}

pub fn accepted_op_completes_once<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    mixed(&mut bench)?;
    bench.rounds(QUIET)?;
    ensure(bench.arrived(Side::B) == usize::from(ROUNDS), 2, "a send arrived twice")?;
    PASSED
}

pub fn poll_stays_inside_its_slice<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let count = bench.caps.recv_slots.min(8) as usize;
    for number in 0..count {
        bench.send(Side::A, number as u8, LocalSpan::EMPTY)?;
    }
    let nothing = Completion::Immediate { peer: PeerIndex(u32::MAX), immediate: 0 };
    for _ in 0..QUIET {
        bench.rig.advance();
        for side in [Side::A, Side::B] {
            bench.poll_into(side, &mut [], Bytes(BUDGET))?;
            bench.poll_into(side, &mut [nothing], Bytes(BUDGET))?;
        }
    }
    bench.finish(3)?;
    // a sender's op may end before the receiver has reported it
    bench.await_arrivals(Side::B, count, 3)?;
    bench.rounds(QUIET)?;
    ensure(bench.arrived(Side::B) == count, 3, "an event was told twice")?;
    PASSED
}

pub fn poll_stays_inside_its_budget<R: Rig>(rig: &mut R) -> Verdict {
    if rig.has_threads() {
        return skipped("the rail moves bytes between polls");
    }
    let mut bench = Bench::new(rig)?;
    bench.fill(Side::A, 0, LARGE, 0xa5);
    let mut posted = 0;
    for (at, length) in pieces(&bench.caps, LARGE) {
        let kind = bench.write_kind(Side::A, at, length);
        // past the first one no poll may come between, which would not be looked at
        let id =
            if at == 0 { bench.post_patiently(Side::A, kind) } else { bench.post(Side::A, kind) }?;
        if was_refused(&bench, id)? {
            break;
        }
        posted += length;
    }
    let most = BUDGET + bench.caps.copy_granule.0;
    if most >= posted as u64 {
        return skipped("one poll may copy all of it");
    }
    let mut seen = bench.count(Side::B, 0, LARGE, 0xa5);
    for _ in 0..2 * LARGE as u64 / BUDGET + u64::from(QUIET) {
        bench.rig.advance();
        for side in [Side::A, Side::B] {
            let before = bench.count(Side::B, 0, LARGE, 0xa5);
            if before != seen {
                return skipped("the rail moves bytes between polls");
            }
            bench.poll(side, Bytes(BUDGET))?;
            seen = bench.count(Side::B, 0, LARGE, 0xa5);
            let why = "a poll copied more than its budget and a granule";
            ensure((seen - before) as u64 <= most, 3, why)?;
        }
        if !bench.is_pending() {
            break;
        }
    }
    bench.finish(3)?;
    PASSED
}

pub fn post_and_poll_do_not_allocate<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    mixed(&mut bench)?;
    let Some(before) = bench.rig.allocations() else {
        return skipped("nobody counts allocations here");
    };
    mixed(&mut bench)?;
    ensure(bench.rig.allocations() == Some(before), 4, "post or poll allocated")?;
    PASSED
}

fn digest<R: Rig>(rig: &mut R) -> Check<u64> {
    let mut bench = Bench::new(rig)?;
    mixed(&mut bench)?;
    Ok(bench.digest)
}

pub fn same_calls_give_same_answers<R: Rig>(rig: &mut R) -> Verdict {
    let mut before = None;
    for _ in 0..rig.runs_max() {
        if !rig.renew() {
            return skipped("the rig cannot be built twice");
        }
        let answers = digest(rig)?;
        if before == Some(answers) {
            return PASSED;
        }
        before = Some(answers);
    }
    fail(8, "the same calls had other answers the second time")
}
