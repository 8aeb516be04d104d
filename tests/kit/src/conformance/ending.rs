//! P6, P9 and P10: death, closing and fences.

use super::bench::{
    Arrival, Bench, Check, Fate, PASSED, PIECES_MAX, QUIET, ensure, fail, pieces, skipped,
};
use super::{Rig, Side, Verdict};
use crosstie::base::ids::RailGeneration;
use crosstie::base::units::Bytes;
use crosstie::fabric::{
    CloseError, DownCause, FenceKind, LINE_BYTES, LocalSpan, OpId, OpKind, PeerLife, PostError,
    Source,
};

const LARGE: usize = 128 * 1024;

/// What every byte is that a transfer moves.
const MOVED: u8 = 0x5a;

/// A read of A's, from the same place of B.
struct Transfer {
    id: OpId,
    at: usize,
    length: usize,
}

/// Large transfers of both sides, and sends of both sides, none waited for; the reads among them,
/// whose success says that their bytes are here. That of a write may be told before its bytes are
/// there.
fn traffic<R: Rig>(bench: &mut Bench<R>) -> Check<[Option<Transfer>; PIECES_MAX]> {
    bench.fill(Side::B, 2 * LARGE, LARGE, MOVED);
    let mut reads = [const { None }; PIECES_MAX];
    for ((at, length), read) in pieces(&bench.caps, LARGE).zip(&mut reads) {
        bench.write(Side::A, at, length)?;
        bench.write(Side::B, at + LARGE, length)?;
        if bench.caps.pull {
            let at = at + 2 * LARGE;
            let id = bench.read(Side::A, at, length)?;
            *read = Some(Transfer { id, at, length });
        }
    }
    for side in [Side::A, Side::B] {
        bench.post(side, OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY })?;
    }
    Ok(reads)
}

fn downs<R: Rig>(bench: &Bench<R>, side: Side) -> usize {
    bench.arrivals(side).filter(|arrival| *arrival == Arrival::Down).count()
}

pub fn death_completes_everything<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let reads = traffic(&mut bench)?;
    bench.rig.sever();
    bench.finish(6)?;
    bench.await_ends(&[Side::A, Side::B])?;
    bench.rounds(QUIET)?;
    for side in [Side::A, Side::B] {
        ensure(downs(&bench, side) == 1, 6, "a death was not reported exactly once")?;
    }
    for Transfer { id, at, length } in reads.into_iter().flatten() {
        let whole = !bench.succeeded(id) || bench.holds(Side::A, at, length, MOVED);
        ensure(whole, 6, "a read that a death cut off ended with success")?;
    }
    PASSED
}

/// Of causes that every rail tells apart.
const CAUSES: [DownCause; 3] = [DownCause::Died, DownCause::Failed, DownCause::Closed];

pub fn end_is_told_with_its_cause<R: Rig>(rig: &mut R) -> Verdict {
    for cause in CAUSES {
        let mut bench = Bench::new(rig)?;
        let peer = bench.rig.peer(Side::A);
        bench.rig.provider(Side::A).peer_fail(peer, cause);
        bench.await_arrivals(Side::A, 1, 6)?;
        let same = bench.cause(Side::A) == Some(cause);
        ensure(same, 6, "a peer is gone for another cause than was told from outside")?;
        if !rig.anew() {
            break;
        }
    }
    PASSED
}

pub fn nothing_arrives_after_peer_down<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    traffic(&mut bench)?;
    bench.rig.sever();
    bench.await_ends(&[Side::A, Side::B])?;
    bench.rounds(QUIET)?;
    for side in [Side::A, Side::B] {
        let last = bench.arrivals(side).last();
        ensure(last == Some(Arrival::Down), 6, "something arrived after the end of a peer")?;
    }
    PASSED
}

pub fn post_to_a_dead_peer_is_refused<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.rig.sever();
    bench.await_ends(&[Side::A])?;
    let kind = OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY };
    let id = bench.post_past_again(Side::A, kind)?;
    let refused = bench.fate(id) == Fate::Refused(PostError::PeerDown);
    ensure(refused, 6, "an op to a dead peer was not refused as such")?;
    PASSED
}

/// Messages that come before an end, where the rail has room for so many.
const CAME: u32 = 3;

pub fn what_had_come_is_told_before_the_end<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut expected = bench.caps.recv_slots.min(CAME);
    for number in 0..expected {
        bench.send(Side::A, number as u8, LocalSpan::EMPTY)?;
    }
    if bench.caps.immediate && bench.caps.recv_slots > expected {
        let (source, target) = (Source::Span(LocalSpan::EMPTY), bench.remote(Side::B, 0));
        let immediate = Some(expected);
        bench.post_patiently(Side::A, OpKind::Write { source, target, immediate })?;
        expected += 1;
    }
    for (at, length) in pieces(&bench.caps, LARGE) {
        bench.write(Side::B, at + LARGE, length)?;
    }
    // where order is kept, all of that has come when these bytes are there
    bench.fill(Side::A, 0, LINE_BYTES, MOVED);
    bench.write(Side::A, 0, LINE_BYTES)?;
    // polls at the target that have no room for an event, so that what comes waits there
    for _ in 0..QUIET {
        bench.rig.advance();
        if !bench.rig.shared() {
            bench.poll(Side::A, Bytes::kib(64))?;
        }
        bench.poll_into(Side::B, &mut [], Bytes::kib(64))?;
    }
    let had_come = bench.caps.ordered && bench.holds(Side::B, 0, LINE_BYTES, MOVED);
    let peer = bench.rig.peer(Side::B);
    bench.rig.provider(Side::B).peer_fail(peer, DownCause::Died);
    bench.await_ends(&[Side::B])?;
    bench.rounds(QUIET)?;
    let told = bench.arrivals(Side::B).filter(|arrival| *arrival != Arrival::Down).count();
    ensure(told <= expected as usize, 6, "more came from a peer than was sent before its end")?;
    ensure(
        told == expected as usize || !had_come,
        6,
        "what had come from a peer was not told after its end",
    )?;
    ensure(bench.arrivals(Side::B).last() == Some(Arrival::Down), 6, "an end was not told last")?;
    let in_order = !bench.rig.tells_ends_first() || bench.ended_behind(Side::B) == 0;
    ensure(in_order, 6, "an op's end was told behind that of its peer")?;
    PASSED
}

fn close<R: Rig>(bench: &mut Bench<R>) -> Result<(), CloseError> {
    let peer = bench.rig.peer(Side::A);
    bench.rig.provider(Side::A).peer_close(peer)
}

pub fn close_is_busy_while_ops_are_in_flight<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.fill(Side::A, 0, LARGE, 0xa5);
    let mut ids = [None; PIECES_MAX];
    for ((at, length), id) in pieces(&bench.caps, LARGE).zip(&mut ids) {
        *id = Some(bench.write(Side::A, at, length)?);
    }
    if bench.is_pending() {
        let busy = close(&mut bench) == Err(CloseError::Busy);
        ensure(busy, 9, "a peer was closed with an op in flight")?;
    }
    bench.finish(9)?;
    let ended_well = ids.into_iter().flatten().all(|id| bench.succeeded(id));
    let (length, harmed) = (bench.whole(LARGE), (9, "a close that said Busy harmed the op"));
    ensure(ended_well, harmed.0, harmed.1)?;
    bench.wait_until(harmed, |bench| bench.holds(Side::B, 0, length, 0xa5))?;
    ensure(close(&mut bench).is_ok(), 9, "a quiet peer could not be closed")?;
    ensure(close(&mut bench) == Err(CloseError::Stale), 9, "a peer was closed twice")?;
    PASSED
}

/// No two of its bytes are the same.
const GENERATION: RailGeneration = RailGeneration(0x8102_0304);
const UNANSWERED: (u8, &str) = (10, "a fence was never answered");

fn fence<R: Rig>(bench: &mut Bench<R>) -> Check<OpId> {
    let id = bench.fence(Side::A, GENERATION)?;
    match bench.fate(id) {
        Fate::Refused(_) => fail(1, "a fence that Caps allows was refused for good"),
        Fate::Pending | Fate::Ended(_) => Ok(id),
    }
}

pub fn nothing_is_touched_after_the_fence<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    match bench.caps.fence {
        FenceKind::Local | FenceKind::WriterDrained => {}
        FenceKind::Endpoint | FenceKind::None => return skipped("the rail has no such fence"),
    }
    traffic(&mut bench)?;
    let id = fence(&mut bench)?;
    bench.wait_until(UNANSWERED, |bench| bench.fate(id) != Fate::Pending)?;
    bench.fill(Side::A, 0, 3 * LARGE, 0xee);
    let late = bench.write_kind(Side::B, LARGE, bench.cut(LARGE));
    bench.post(Side::B, late)?;
    bench.rounds(QUIET)?;
    let untouched = bench.holds(Side::A, 0, 3 * LARGE, 0xee);
    ensure(untouched, 10, "memory was touched behind a fence")?;
    bench.finish(10)?;
    fence_of_a_dead_peer(&mut bench)
}

/// A rail is fenced because it died, so death must not keep it from being fenced.
fn fence_of_a_dead_peer<R: Rig>(bench: &mut Bench<R>) -> Verdict {
    bench.rig.sever();
    bench.rounds(QUIET)?;
    let id = bench.fence(Side::A, RailGeneration(GENERATION.0 + 1))?;
    if let Fate::Refused(_) = bench.fate(id) {
        return fail(10, "a dead peer could not be fenced");
    }
    bench.finish(10)?;
    PASSED
}

/// What lies in our memory when a fence holds: whoever reads it afterwards is seen by it.
const LATE: u8 = 0xee;
/// What the heads of sends are that are posted behind a fence.
const BEHIND: u8 = 0xbe;
/// Ops that are posted behind a fence, each time.
const POSTS_BEHIND: usize = 4;

/// Posts ops of each kind once, behind a fence; says how they are called.
fn post_behind<R: Rig>(bench: &mut Bench<R>) -> Check<[Option<OpId>; POSTS_BEHIND]> {
    let caps = bench.caps;
    let length = bench.cut(LARGE);
    let payload = bench.local(Side::A, 0, caps.send_payload_max.as_usize().min(64));
    let send = bench.post(Side::A, OpKind::Send { head: [BEHIND; 32], payload })?;
    let kind = bench.write_kind(Side::A, 0, length);
    let write = bench.post(Side::A, kind)?;
    let (target, source) = (bench.local(Side::A, LARGE, length), bench.remote(Side::B, LARGE));
    let read = match caps.pull {
        true => Some(bench.post(Side::A, OpKind::Read { target, source })?),
        false => None,
    };
    let target = bench.remote(Side::B, 3 * LARGE);
    let add = match caps.atomic_bytes {
        8 => Some(bench.post(Side::A, OpKind::Add { target, value: 1 })?),
        _ => None,
    };
    Ok([Some(send), Some(write), read, add])
}

pub fn own_posts_do_not_pass_the_fence<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    match bench.caps.fence {
        FenceKind::Local | FenceKind::WriterDrained => {}
        FenceKind::Endpoint | FenceKind::None => return skipped("the rail has no such fence"),
    }
    let reads = traffic(&mut bench)?;
    let id = fence(&mut bench)?;
    let begun = post_behind(&mut bench)?;
    bench.wait_until(UNANSWERED, |bench| bench.fate(id) != Fate::Pending)?;
    let mut came = [false; PIECES_MAX];
    for (came, read) in came.iter_mut().zip(&reads) {
        *came = read.as_ref().is_some_and(|it| bench.holds(Side::A, it.at, it.length, MOVED));
    }
    bench.fill(Side::A, 0, 4 * LARGE, LATE);
    let held = post_behind(&mut bench)?;
    bench.rounds(QUIET)?;
    bench.finish(10)?;
    let untouched = bench.holds(Side::A, 0, 4 * LARGE, LATE);
    ensure(untouched, 10, "an op of our own wrote here behind its fence")?;
    let unread = bench.count(Side::B, 0, 4 * LARGE, LATE) == 0;
    ensure(unread, 10, "an op of our own read here behind its fence")?;
    ensure(bench.word(Side::B, 3 * LARGE) == 0, 10, "an add was carried out behind a fence")?;
    for id in begun.into_iter().chain(held).flatten() {
        ensure(!bench.succeeded(id), 10, "an op that was posted behind a fence succeeded")?;
    }
    let behind = |arrival: Arrival| match arrival {
        Arrival::Message { head, .. } => head[0] == BEHIND,
        Arrival::Word(_) | Arrival::Down => false,
    };
    let passed = bench.arrivals(Side::B).any(behind);
    ensure(!passed, 10, "a message that was sent behind a fence arrived")?;
    for (read, came) in reads.into_iter().flatten().zip(came) {
        let told_well = came || !bench.succeeded(read.id);
        ensure(told_well, 10, "a read ended with success that its fence had cut off")?;
    }
    PASSED
}
