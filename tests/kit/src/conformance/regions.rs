//! P6 and P7: keys, ranges, and errors that say whose they are.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, PIECES_MAX, QUIET, ensure, fail, pieces};
use super::{Rig, Side, Verdict};
use crosstie::fabric::{
    DeregisterError, Domain, MemoryDomain, MemoryKind, OpErrorKind, OpId, OpKind, Provider,
    RailKey, RegisterError, RemoteSpan, Source,
};

const AT: usize = 8192;
const LENGTH: usize = 128 * 1024;

fn deregister<R: Rig>(bench: &mut Bench<R>, key: RailKey) -> Result<(), DeregisterError> {
    bench.rig.provider(Side::B).domain().deregister(key)
}

/// Polls as long as the answer is `Busy`.
fn deregister_patiently<R: Rig>(bench: &mut Bench<R>, key: RailKey) -> Check {
    let mut tries = 0;
    while let Err(error) = deregister(bench, key) {
        ensure(error == DeregisterError::Busy, 7, "deregister refused a good key")?;
        ensure(bench.rig.is_patient(tries), 7, "a region stays busy for ever")?;
        bench.round()?;
        tries += 1;
    }
    Ok(())
}

fn write_to<R: Rig>(bench: &mut Bench<R>, target: RemoteSpan, length: usize) -> Check<OpId> {
    let source = Source::Span(bench.local(Side::A, AT, length));
    bench.post_patiently(Side::A, OpKind::Write { source, target, immediate: None })
}

fn ended_by_key<R: Rig>(bench: &Bench<R>, id: OpId) -> bool {
    matches!(bench.fate(id), Fate::Ended(Err(error)) if error.kind == OpErrorKind::Key)
}

/// A key that was good once.
fn stale_key<R: Rig>(bench: &mut Bench<R>) -> Check<RailKey> {
    let key = bench.register(Side::B, AT, LENGTH)?;
    match deregister(bench, key) {
        Ok(()) => Ok(key),
        Err(_) => fail(7, "an unused region could not be deregistered"),
    }
}

/// A kind of access to a peer's memory.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Access {
    Write,
    Read,
    Add,
}

const ALL: [Access; 3] = [Access::Write, Access::Read, Access::Add];

/// Tries accesses through a span that must be refused.
fn all_refused<R: Rig>(
    bench: &mut Bench<R>,
    bad: RemoteSpan,
    length: usize,
    accesses: &[Access],
) -> Check {
    bench.fill(Side::A, AT, length, 0xa5);
    let mut ids = [None; 3];
    for (access, id) in accesses.iter().zip(&mut ids) {
        *id = match access {
            Access::Write => Some(write_to(bench, bad, length)?),
            Access::Read if bench.caps.pull => {
                let target = bench.local(Side::A, AT, length);
                Some(bench.post_patiently(Side::A, OpKind::Read { target, source: bad })?)
            }
            Access::Add if bench.caps.atomic_bytes == 8 && length >= 8 => {
                let kind = OpKind::Add { target: bad, value: 1 };
                Some(bench.post_patiently(Side::A, kind)?)
            }
            Access::Read | Access::Add => None,
        };
    }
    if bench.caps.bad_key_breaks && ids[0].is_some() {
        takes_the_peer_with_it(bench)?;
    }
    bench.finish(7)?;
    for id in ids.into_iter().flatten() {
        ensure(ended_by_key(bench, id), 7, "an op on a bad key or range did not end with Key")?;
    }
    ensure(bench.holds(Side::A, AT, length, 0xa5), 7, "a refused read brought bytes")?;
    ensure(bench.holds(Side::B, AT, LENGTH, 0), 7, "a refused op wrote bytes")
}

/// An op behind one with a bad key ends with an error, and the peer goes down on both sides.
fn takes_the_peer_with_it<R: Rig>(bench: &mut Bench<R>) -> Check {
    let behind = bench.write_kind(Side::A, 0, 64);
    let id = bench.post(Side::A, behind)?;
    bench.finish(7)?;
    let failed = matches!(bench.fate(id), Fate::Ended(Err(_)) | Fate::Refused(_));
    ensure(failed, 7, "an op behind one with a bad key was carried out")?;
    for side in [Side::A, Side::B] {
        bench.await_arrivals(side, 1, 7)?;
        let last = bench.arrivals(side).last();
        ensure(last == Some(Arrival::Down), 7, "a bad key did not break the peer, as Caps says")?;
    }
    Ok(())
}

/// Tries each access through what `bad` makes: where a bad key breaks the connection, on a fresh
/// one each.
fn each_refused<R: Rig>(
    rig: &mut R,
    bad: impl Fn(&mut Bench<R>) -> Check<RemoteSpan>,
    length: usize,
) -> Check {
    let peer = rig.peer(Side::A);
    if !rig.provider(Side::A).caps(peer).bad_key_breaks {
        let mut bench = Bench::new(rig)?;
        let bad = bad(&mut bench)?;
        return all_refused(&mut bench, bad, length, &ALL);
    }
    for access in ALL {
        ensure(rig.anew(), 7, "the rig cannot be built anew")?;
        let mut bench = Bench::new(rig)?;
        let bad = bad(&mut bench)?;
        all_refused(&mut bench, bad, length, &[access])?;
    }
    Ok(())
}

pub fn deregistered_key_is_refused<R: Rig>(rig: &mut R) -> Verdict {
    let stale = |bench: &mut Bench<R>| {
        let key = stale_key(bench)?;
        let again = deregister(bench, key);
        ensure(again == Err(DeregisterError::Stale), 7, "a key was deregistered twice")?;
        Ok(RemoteSpan { key, ..bench.remote(Side::B, AT) })
    };
    each_refused(rig, stale, 64)?;
    PASSED
}

pub fn range_outside_of_region_is_refused<R: Rig>(rig: &mut R) -> Verdict {
    let span = |bench: &mut Bench<R>, at: usize| {
        let key = bench.register(Side::B, AT, 4096)?;
        Ok(RemoteSpan { key, ..bench.remote(Side::B, at) })
    };
    each_refused(rig, |bench| span(bench, AT + 4096), 64)?;
    let peer = rig.peer(Side::A);
    if rig.provider(Side::A).caps(peer).bad_key_breaks {
        ensure(rig.anew(), 7, "the rig cannot be built anew")?;
    }
    let mut bench = Bench::new(rig)?;
    let across = span(&mut bench, AT + 4096 - 64)?;
    let id = write_to(&mut bench, across, 65)?;
    bench.finish(7)?;
    ensure(ended_by_key(&bench, id), 7, "a write over a region's end did not end with Key")?;
    ensure(bench.holds(Side::B, AT, LENGTH, 0), 7, "a refused op wrote bytes")?;
    PASSED
}

pub fn error_names_its_op<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let key = stale_key(&mut bench)?;
    let bad = RemoteSpan { key, ..bench.remote(Side::B, AT) };
    let id = write_to(&mut bench, bad, 64)?;
    bench.finish(6)?;
    // a provider that takes the key breaks another promise than one that names no op
    ensure(!bench.succeeded(id), 7, "a key was valid after its region was deregistered")?;
    ensure(ended_by_key(&bench, id), 6, "an op on a bad key did not end with its error")?;
    PASSED
}

pub fn region_stays_until_deregister_returns<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let key = bench.register(Side::B, AT, LENGTH)?;
    bench.fill(Side::A, AT, LENGTH, 0xa5);
    let target = RemoteSpan { key, ..bench.remote(Side::B, AT) };
    let mut ids = [None; PIECES_MAX];
    for ((at, length), id) in pieces(&bench.caps, LENGTH).zip(&mut ids) {
        *id = Some(write_to(&mut bench, target.plus(at as u64), length)?);
    }
    deregister_patiently(&mut bench, key)?;
    bench.fill(Side::B, AT, LENGTH, 0xee);
    bench.rounds(QUIET)?;
    bench.finish(7)?;
    let untouched = bench.holds(Side::B, AT, LENGTH, 0xee);
    ensure(untouched, 7, "memory was touched after deregister had returned")?;
    let mut is_broken = false;
    for id in ids.into_iter().flatten() {
        let is_refused = ended_by_key(&bench, id);
        let told = bench.succeeded(id) || is_refused || is_broken;
        ensure(told, 7, "an op on a vanished region ended with neither success nor Key")?;
        is_broken |= is_refused && bench.caps.bad_key_breaks;
    }
    PASSED
}

/// Ranges that are none: an empty one, and one that goes on at the beginning of the address space.
const fn no_ranges(start: u64) -> [(u64, usize); 2] {
    [(start, 0), (u64::MAX - 4095, 8192)]
}

pub fn region_has_any_length_but_none<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    for side in [Side::A, Side::B] {
        let start = bench.rig.arena(side) as u64;
        for (address, length) in no_ranges(start) {
            let refused = bench.register_range(side, address, length) == Err(RegisterError::Range);
            ensure(refused, 7, "a range that is empty or wraps was not refused as such")?;
        }
    }
    let at = AT + 3;
    let start = bench.rig.arena(Side::B) as u64 + at as u64;
    let Ok(key) = bench.register_range(Side::B, start, 1) else {
        return fail(7, "a region of one byte was refused");
    };
    bench.fill(Side::A, AT, 1, 0xa5);
    let target = RemoteSpan { key, ..bench.remote(Side::B, at) };
    let id = write_to(&mut bench, target, 1)?;
    bench.finish(7)?;
    let lost = (7, "a write to a region of one byte did not land");
    ensure(bench.succeeded(id), lost.0, lost.1)?;
    bench.wait_until(lost, |bench| bench.byte(Side::B, at) == 0xa5)?;
    bench.rounds(QUIET)?;
    ensure(bench.count(Side::B, AT, LENGTH, 0) == LENGTH - 1, 7, "it wrote more than its byte")?;
    deregister_patiently(&mut bench, key)?;
    PASSED
}

/// Regions beside the arena that are tried at most.
const REGIONS_TRIED: usize = 16;

pub fn regions_are_as_many_as_were_asked_for<R: Rig>(rig: &mut R) -> Verdict {
    let most = rig.regions_max().map(|most| most as usize);
    let arenas = if rig.shared() { 2 } else { 1 };
    let mut bench = Bench::new(rig)?;
    let start = bench.rig.arena(Side::B) as u64;
    let (mut keys, mut count) = ([RailKey(0); REGIONS_TRIED], 0);
    while count < REGIONS_TRIED {
        match bench.register_range(Side::B, start + 64 * count as u64, 64) {
            Ok(key) => keys[count] = key,
            Err(RegisterError::Full) => break,
            Err(_) => return fail(7, "memory of the rig could not be registered"),
        }
        count += 1;
    }
    if let Some(most) = most.filter(|most| *most < arenas + REGIONS_TRIED) {
        ensure(arenas + count <= most, 7, "more regions were registered than were asked for")?;
        ensure(arenas + count == most, 7, "fewer regions could be registered than were asked for")?;
    }
    for key in &keys[..count] {
        deregister_patiently(&mut bench, *key)?;
        let again = bench.register_range(Side::B, start, 64);
        let Ok(key) = again else {
            return fail(7, "a region that was deregistered left no room for another");
        };
        deregister_patiently(&mut bench, key)?;
    }
    PASSED
}

/// A CUDA device that no machine has.
const NO_DEVICE: u32 = 0x00ff_ffff;

pub fn memory_that_cannot_be_is_refused<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    for side in [Side::A, Side::B] {
        let start = bench.rig.arena(side) as u64;
        let refused = bench.register_kind(side, start, 64, MemoryKind::Cuda(NO_DEVICE)).is_err();
        ensure(refused, 7, "memory of a device that there is not was registered")?;
    }
    PASSED
}
