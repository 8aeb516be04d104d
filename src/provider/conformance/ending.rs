//! P6, P9 and P10: death, closing and fences.

use super::bench::{Arrival, Bench, Check, Fate, PASSED, QUIET, ensure, fail, skipped};
use super::{Rig, Side, Verdict};
use crate::base::ids::RailGeneration;
use crate::fabric::{CloseError, FenceKind, LocalSpan, OpId, OpKind, PostError, Provider};

const LARGE: usize = 128 * 1024;

/// Large transfers of both sides, and sends of both sides, none waited for.
fn traffic<R: Rig>(bench: &mut Bench<R>) -> Check {
    bench.write(Side::A, 0, LARGE)?;
    bench.write(Side::B, LARGE, LARGE)?;
    if bench.caps.pull {
        bench.read(Side::A, 2 * LARGE, LARGE)?;
    }
    for side in [Side::A, Side::B] {
        bench.post(side, OpKind::Send { head: [1; 32], payload: LocalSpan::EMPTY })?;
    }
    Ok(())
}

fn downs<R: Rig>(bench: &Bench<R>, side: Side) -> usize {
    bench.arrivals(side).filter(|arrival| *arrival == Arrival::Down).count()
}

pub fn death_completes_everything<R: Rig>(rig: &mut R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    traffic(&mut bench)?;
    bench.rig.sever();
    bench.finish(6)?;
    bench.rounds(QUIET)?;
    for side in [Side::A, Side::B] {
        ensure(downs(&bench, side) == 1, 6, "a death was not reported exactly once")?;
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

fn fence<R: Rig>(bench: &mut Bench<R>) -> Check<OpId> {
    bench.post_patiently(Side::A, OpKind::Fence { generation: RailGeneration(1) })
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
    let generation = RailGeneration(2);
    let id = bench.post_past_again(Side::A, OpKind::Fence { generation })?;
    if let Fate::Refused(_) = bench.fate(id) {
        return fail(10, "a dead peer could not be fenced");
    }
    bench.finish(10)?;
    PASSED
}
