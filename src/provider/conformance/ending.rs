//! P6, P9 and P10: death, closing and fences.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, QUIET, ensure, fail, skipped};
use super::{Rig, Side, Verdict};
use crate::base::ids::RailGeneration;
use crate::fabric::{
    CloseError, DownCause, FenceKind, LocalSpan, OpId, OpKind, PostError, Provider,
};

const LARGE: usize = 128 * 1024;

/// What every byte is that a transfer moves.
const MOVED: u8 = 0x5a;

/// An op that moves bytes from one side to the same place of the other.
struct Transfer {
    id: OpId,
    to: Side,
    at: usize,
}

/// Large transfers of both sides, and sends of both sides, none waited for.
fn traffic<R: Rig>(bench: &mut Bench<R>) -> Check<[Option<Transfer>; 3]> {
    bench.fill(Side::A, 0, LARGE, MOVED);
    bench.fill(Side::B, LARGE, 2 * LARGE, MOVED);
    let there = Transfer { id: bench.write(Side::A, 0, LARGE)?, to: Side::B, at: 0 };
    let back = Transfer { id: bench.write(Side::B, LARGE, LARGE)?, to: Side::A, at: LARGE };
    let mut read = None;
    if bench.caps.pull {
        let id = bench.read(Side::A, 2 * LARGE, LARGE)?;
        read = Some(Transfer { id, to: Side::A, at: 2 * LARGE });
    }
    for side in [Side::A, Side::B] {
        bench.post(side, OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY })?;
    }
    Ok([Some(there), Some(back), read])
}

fn downs<R: Rig>(bench: &Bench<R>, side: Side) -> usize {
    bench.arrivals(side).filter(|arrival| *arrival == Arrival::Down).count()
}

pub fn death_completes_everything<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let transfers = traffic(&mut bench)?;
    bench.rig.sever();
    bench.finish(6)?;
    bench.rounds(QUIET)?;
    for side in [Side::A, Side::B] {
        ensure(downs(&bench, side) == 1, 6, "a death was not reported exactly once")?;
    }
    for Transfer { id, to, at } in transfers.into_iter().flatten() {
        let whole = !bench.succeeded(id) || bench.holds(to, at, LARGE, MOVED);
        ensure(whole, 6, "an op that a death cut off ended with success")?;
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
    bench.rounds(QUIET)?;
    let kind = OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY };
    let id = bench.post_past_again(Side::A, kind)?;
    let refused = bench.fate(id) == Fate::Refused(PostError::PeerDown);
    ensure(refused, 6, "an op to a dead peer was not refused as such")?;
    PASSED
}

fn close<R: Rig>(bench: &mut Bench<R>) -> Result<(), CloseError> {
    let peer = bench.rig.peer(Side::A);
    bench.rig.provider(Side::A).peer_close(peer)
}

pub fn close_is_busy_while_ops_are_in_flight<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    bench.fill(Side::A, 0, LARGE, 0xa5);
    let id = bench.write(Side::A, 0, LARGE)?;
    if bench.fate(id) == Fate::Pending {
        let busy = close(&mut bench) == Err(CloseError::Busy);
        ensure(busy, 9, "a peer was closed with an op in flight")?;
    }
    bench.finish(9)?;
    let done = bench.succeeded(id) && bench.holds(Side::B, 0, LARGE, 0xa5);
    ensure(done, 9, "a close that said Busy harmed the op")?;
    ensure(close(&mut bench).is_ok(), 9, "a quiet peer could not be closed")?;
    ensure(close(&mut bench) == Err(CloseError::Stale), 9, "a peer was closed twice")?;
    PASSED
}

/// No two of its bytes are the same.
const GENERATION: RailGeneration = RailGeneration(0x8102_0304);

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
    let mut rounds = 0;
    while bench.fate(id) == Fate::Pending {
        ensure(rounds < 4096, 10, "a fence was never answered")?;
        bench.round()?;
        rounds += 1;
    }
    bench.fill(Side::A, 0, 3 * LARGE, 0xee);
    let late = bench.write_kind(Side::B, LARGE, LARGE);
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
